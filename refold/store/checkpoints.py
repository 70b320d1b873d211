"""Checkpoints: stored folds at earlier seqs, from which contexts of the past start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

from refold.domain import errors, ports
from refold.domain.canonical import canonical
from refold.domain.envelope import Envelope
from refold.domain.events import JsonObject, Summary
from refold.domain.ids import StreamId
from refold.projections.context.outline import (
    Outline,
    fold_derived,
    is_rebuild,
    since_last_rebuild,
)
from refold.projections.context.strategy import Strategy

# The fewest events between two checkpoints.  Shorter sessions have none.
SPACING: Final = 512
# The most checkpoints of a strategy in a session.  A longer session has a larger
# spacing: the next power of two.
MOST: Final = 64
# The most bytes of a checkpoint's JSON, before it is compressed and encrypted.
MOST_BYTES: Final = 256 * 1024


def spacing(head_seq: int) -> int:
    """Return the number of events between two checkpoints of a session this long."""
    events = SPACING
    while head_seq >= events * (MOST + 1):
        events *= 2
    return events


class Fold(NamedTuple):
    """A fold of the main stream, and the entries of the derived stream it lacks."""

    outline: Outline
    lacks: Sequence[Envelope] = ()


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The checkpoints of one session under one strategy.

    They are stored views with a name of their own: encrypted with the session's key,
    bound to their session, name, and seqs, and deleted with the session.  A checkpoint
    also has the hash of the chain at its seq, so that one of another history of the
    session is not used.
    """

    log: ports.EventLog
    stream: StreamId
    strategy: Strategy

    def seqs(self) -> list[int]:
        """Return the seqs of the stored checkpoints, newest first."""
        prefix = _prefix(self.strategy.fingerprint)
        stored: list[int] = []
        for name in self.log.view_names(self.stream.user_id, self.stream.session_id):
            if name.startswith(prefix):
                stored.append(int(name.removeprefix(prefix)))
        return sorted(stored, reverse=True)

    def before(
        self, seq: int, derived: Sequence[Envelope], shown: Sequence[Envelope]
    ) -> Fold:
        """Return the newest fold up to ``seq`` that a context can start from.

        Without a checkpoint that fits, it is the empty outline.

        derived: the derived stream, from its first entry.
        shown:   the entries that the fold of the context takes in.
        """
        stored = self.seqs() if seq >= SPACING else []
        for stored_seq in stored:
            if stored_seq > seq:
                continue
            outline = self._load(stored_seq)
            if outline is None:
                self._drop([stored_seq])  # the next fold stores it again
                continue
            folded = changes(derived, upto=outline.derived_seq)
            taken = [entry for entry in shown if entry.seq <= outline.derived_seq]
            if folded != taken:
                continue
            last = taken[-1].seq if taken else 0
            outline = without_failures(outline, derived_seq=last)
            return Fold(outline, shown[len(taken) :])
        return Fold(self.strategy.begin(), shown)

    def _load(self, seq: int) -> Outline | None:
        """Read a checkpoint; None if it is damaged, old, or of another history."""
        stored = self.log.load_view(self.stream, self._name(seq))
        if stored is None or stored.through_seq != seq:
            return None
        with suppress(KeyError, ValueError):
            outline = Outline.load(stored.body["checkpoint"])  # type: ignore[arg-type]  # ``_save`` wrote it
            events = self.log.read(self.stream, after=seq - 1, upto=seq)
            hashes = [event.hash for event in events]
            if outline.through_seq == seq and hashes == [stored.body["hash"]]:
                return outline
        return None

    def read(
        self,
        start: Outline,
        events: Iterable[Envelope],
        *,
        head_seq: int,
        upto: int | None = None,
        derived: Sequence[Envelope] = (),
    ) -> Fold:
        """Do what ``Strategy.read`` does, and store checkpoints on the way.

        head_seq: the length of the session, which sets the spacing.
        upto:     the last seq of the events; None means the head.
        derived:  the next entries of the derived stream.  A checkpoint has those that
                  existed at its seq; they are then part of the result.

        Raises HistoryEdited, as ``Strategy.read`` does.
        """
        step = spacing(head_seq)
        after = max(start.through_seq, 0) if start.events else 0
        first = after - after % step + step
        end = head_seq if upto is None else upto
        if first > end:
            return Fold(self.strategy.read(start, events), derived)
        outline = start
        remaining = iter(events)
        waiting = list(derived)
        stored: set[int] | None = None
        for seq in range(first, end + 1, step):
            last: list[Envelope] = []
            outline = self.strategy.read(outline, _through(remaining, seq, last))
            if not last:  # there are no further events
                return Fold(outline, waiting)
            while waiting and _existed(waiting[0], seq):
                outline = fold_derived(outline, waiting.pop(0))
            if stored is None:
                stored = set(self.seqs())
                self._drop(other for other in stored if other % step)
            if seq not in stored:
                self._save(outline, last[0].hash)
        return Fold(self.strategy.read(outline, remaining), waiting)

    def _save(self, outline: Outline, hash_: str) -> None:
        """Store a checkpoint, unless it is too large or the store is only read."""
        body: JsonObject = {
            "checkpoint": outline.dump(),
            "strategy": self.strategy.ref.model_dump(mode="json"),
            "hash": hash_,
        }
        if len(canonical(body)) > MOST_BYTES:
            return
        view = ports.StoredView(outline.through_seq, outline.derived_seq, body)
        with suppress(errors.StoreUnavailable):
            self.log.save_view(
                self.stream, self._name(outline.through_seq), view, replaces=0
            )

    def _drop(self, seqs: Iterable[int]) -> None:
        """Delete checkpoints, such as those that a larger spacing leaves out."""
        for seq in seqs:
            with suppress(errors.StoreUnavailable):
                self.log.drop_view(self.stream, self._name(seq))

    def _name(self, seq: int) -> str:
        return f"{_prefix(self.strategy.fingerprint)}{seq}"


def drop_checkpoints(log: ports.EventLog, stream: StreamId, fingerprint: str) -> None:
    """Delete all checkpoints of a session under one strategy."""
    prefix = _prefix(fingerprint)
    for name in log.view_names(stream.user_id, stream.session_id):
        if name.startswith(prefix):
            log.drop_view(stream, name)


def _prefix(fingerprint: str) -> str:
    """Return the beginning of the names of a strategy's checkpoints."""
    return f"{fingerprint}{ports.VIEW_NAME_SEPARATOR}"


def without_failures(outline: Outline, *, derived_seq: int) -> Outline:
    """Return the outline as if no attempt at a compaction had failed.

    derived_seq: the last entry that it has folded, failed attempts not counted.
    """
    layers = outline.layers._replace(failures=0, failed_at=None)
    return outline._replace(
        derived_seq=derived_seq, failures=0, failed_at=None, layers=layers
    )


def changes(derived: Sequence[Envelope], *, upto: int) -> list[Envelope]:
    """Return the entries up to this seq that change an outline."""
    early = [entry for entry in derived if entry.seq <= upto]
    return [entry for entry in since_last_rebuild(early) if changes_outline(entry)]


def changes_outline(entry: Envelope) -> bool:
    """Whether an entry of the derived stream changes what a context shows."""
    return isinstance(entry.payload, Summary) or is_rebuild(entry)


def _through(
    events: Iterator[Envelope], seq: int, last: list[Envelope]
) -> Iterator[Envelope]:
    """Yield the events up to this seq, and put the one with this seq into ``last``."""
    for envelope in events:
        yield envelope
        if envelope.seq >= seq:
            last.append(envelope)
            return


def _existed(entry: Envelope, seq: int) -> bool:
    """Whether an entry existed, and was decided, when ``seq`` was the newest event."""
    event = entry.payload
    decided_at: int = getattr(event, "decided_at_seq", None) or 0
    if isinstance(event, Summary):
        decided_at = max(decided_at, event.appended_at_seq)
    return decided_at <= seq
