"""Repair: what only repeats the events is made anew from them; they are not touched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from refold.domain.envelope import Envelope, microseconds
from refold.domain.errors import CorruptEvent, Erased, KeyUnavailable
from refold.domain.events import Fork
from refold.domain.ids import MAIN, StreamId
from refold.domain.mending import Damage, Kind, Mends
from refold.domain.ports import EXPIRED, EventLog, Head, Problem
from refold.domain.session import SessionState, evolve
from refold.domain.sizes import Scope
from refold.store.history import born
from refold.store.verifying import unnamed


@dataclass(slots=True)
class _Fold:
    """What follows from the events of a stream, as far as its head says it."""

    state: SessionState
    hash: bytes = b""
    tokens: int = 0
    first: int = 0
    last: int = 0
    problems: list[Problem] = field(default_factory=list)

    def head(self, known: Head | None) -> Head:
        """The head that these events have; times are kept where they are known."""
        return Head(
            self.state,
            self.hash,
            "closed" if self.state.closed else "open",
            self.tokens,
            known.created_at if known else self.first,
            known.updated_at if known else self.last,
        )


class Repairer:
    """Looks at one session, and with ``apply`` mends what can be mended."""

    def __init__(
        self, log: EventLog, mends: Mends, stream: StreamId, *, apply: bool
    ) -> None:
        self._log, self._mends, self._stream = log, mends, stream.main
        self._apply = apply

    def run(self, names: list[str]) -> Iterator[Damage]:
        """What is damaged in these streams of the session, and what was done."""
        try:
            broken = False
            for name in [MAIN, *(name for name in names if name != MAIN)]:
                for damage in self._events_and_head(self._stream._replace(stream=name)):
                    broken = broken or not damage.mended
                    yield damage
            if not broken:
                yield from self._views()
                yield from self._blobs()
                yield from self._keys()
        except Erased:
            return

    def _events_and_head(self, stream: StreamId) -> Iterator[Damage]:
        fold = self._folded(stream)
        if fold.problems:
            first, more = fold.problems[0], len(fold.problems) - 1
            where = "" if first.seq is None else f"seq {first.seq}: "
            rest = f", and {more} more: `refold verify` names them" if more else ""
            detail = f"{where}{first.detail}{rest}; only a backup has what was there"
            yield self._lost(stream, "events", detail)
            return
        known = self._head(stream)
        seq = known.seq if known else 0
        if seq > fold.state.head_seq:
            # Written since the events were read, if it is there.
            for envelope in self._log.read(stream, after=fold.state.head_seq, upto=seq):
                self._add(fold, envelope)
        if seq > fold.state.head_seq:
            gone = f"seq {fold.state.head_seq + 1} to {seq}"
            detail = f"{gone} are gone; only a backup has them"
            yield self._lost(stream, "events", detail)
            return
        if fold.state.head_seq == 0:
            return
        right = fold.head(known)
        if known is None or not _same(known, right):
            what = "does not say" if known else "is gone, or is not what was written:"
            detail = f"the head {what} what the events say, up to seq {right.seq}"
            mended = self._apply and self._mends.put_head(stream, right)
            yield Damage(stream, "head", detail, True, mended)

    def _folded(self, stream: StreamId) -> _Fold:
        fold = _Fold(SessionState(stream))
        try:
            for item in self._log.audit(stream):
                if isinstance(item, Envelope):
                    self._add(fold, item)
                elif item.code not in ("head", EXPIRED):
                    fold.problems.append(item)
        except (CorruptEvent, KeyUnavailable) as error:
            fold.problems.append(Problem(*stream, None, "unreadable", str(error)))
        return fold

    def _add(self, fold: _Fold, envelope: Envelope) -> None:
        if isinstance(envelope.payload, Fork) and envelope.seq == 1:
            fold.state = born(self._log, fold.state.stream, envelope.payload)
        fold.state = evolve(fold.state, envelope.payload)
        fold.hash = bytes.fromhex(envelope.hash)
        fold.tokens += envelope.token_estimate
        fold.last = _written(envelope)
        fold.first = fold.first or fold.last

    def _head(self, stream: StreamId) -> Head | None:
        try:
            head = self._log.head(stream)
        except (CorruptEvent, KeyUnavailable):
            return None
        return head if head.seq else None

    def _views(self) -> Iterator[Damage]:
        user_id, session_id, _ = self._stream
        end = self._log.head(self._stream).seq
        bad = [
            name
            for name in self._log.view_names(user_id, session_id)
            if (view := self._log.load_view(self._stream, name))
            and (not view.body or view.through_seq > end)
        ]
        if bad and self._apply:
            self._log.drop_views(user_id, session_id)
        for name in bad:
            detail = f"the stored view {name[:12]} is not what was stored; it is folded"
            yield Damage(self._stream, "view", f"{detail} again", True, self._apply)

    def _blobs(self) -> Iterator[Damage]:
        found = self._mends.unnamed_blobs(self._stream)
        if found.addresses:
            mended = self._may_destroy and self._mends.drop_blobs(self._stream, found)
            detail = f"{len(found.addresses)} blobs that no event names"
            yield Damage(self._stream, "blob", detail, True, mended)

    @property
    def _may_destroy(self) -> bool:
        """Of who is held or frozen nothing is destroyed, be it of no use."""
        return self._apply and not self._log.erasures.holds(self._stream.user_id)

    def _keys(self) -> Iterator[Damage]:
        left = self._log.retired_keys(self._stream)
        if left:
            mended = self._may_destroy and self._log.retire_keys(self._stream) > 0
            detail = f"{left} keys of before a redaction that was cut off"
            yield Damage(self._stream, "key", detail, True, mended)

    def _lost(self, stream: StreamId, kind: Kind, detail: str) -> Damage:
        return Damage(stream, kind, detail, False)


def _same(one: Head, other: Head) -> bool:
    return replace(one, state=unnamed(one.state)) == replace(
        other, state=unnamed(other.state)
    )


def repair(
    log: EventLog, scope: Scope, *, apply: bool
) -> Iterator[tuple[StreamId, list[Damage]]]:
    """Look at session after session, those too that are not listed any more."""
    streams: dict[tuple[str, str], list[str]] = {}
    for info in log.sessions(scope.user_id, session_id=scope.session_id):
        if info.status != "erased":
            place = info.user_id, info.session_id
            streams[place] = log.streams(*place)
    for lost in log.orphans(scope):
        streams.setdefault((lost.user_id, lost.session_id), []).append(lost.stream)
    for place, names in sorted(streams.items()):
        main = StreamId(*place, MAIN)
        yield main, list(Repairer(log, log.mends, main, apply=apply).run(names))


def _written(envelope: Envelope) -> int:
    """When the event was written: its id says so, if it is of the time (RFC 9562)."""
    if envelope.event_id.version == 7:
        return (envelope.event_id.int >> 80) * 1000
    return microseconds(envelope.ts)
