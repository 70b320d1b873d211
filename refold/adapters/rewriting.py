"""The rewriting of a session: its rows under a new key, without what was redacted.

The session is readable at every moment, and complete after every interruption: the new
key is durable before a row is encrypted under it, all rows change in one transaction,
and the old key is destroyed when that transaction is durable.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, cast

from refold.adapters import streams
from refold.adapters.keys.ring import SessionKey
from refold.adapters.rows import Batch, EncryptedEvent, Heads, ReplacedEvent, Rewrite
from refold.adapters.verification import PAGE
from refold.domain import errors
from refold.domain.chain import resealed
from refold.domain.envelope import Blob
from refold.domain.events import RedactionApplied
from refold.domain.ids import MAIN, StreamId
from refold.domain.ports import Append, Rewriting, Rewritten
from refold.domain.session import evolve
from refold.redaction.chokepoint import RedactedEvent

_TRIES: Final = 3
# At most so many rows are bound by one event, and so many of them named in it.
_BOUND: Final = 10_000
_NAMED: Final = 1_000


@dataclass(frozen=True, slots=True)
class Rewriter:
    """Seals one session anew."""

    _log: streams.EncryptedStreams
    _stream: StreamId
    _rewriting: Rewriting
    _now: int

    def run(self) -> Rewritten:
        """Do it, again if another rewriting of the session was first.

        Who was late several times reads the session while nobody can move it: others
        wait for that, but it ends.
        """
        for _ in range(_TRIES):
            draft = self._draft()
            if draft is None:
                continue
            done = self._log.recorder.rewrite(self._stream, draft.finished)
            if done or draft.is_there():
                break
        else:
            draft = self._while_none_moves()
        return draft.result()

    def _while_none_moves(self) -> _Draft:
        drafts: list[_Draft] = []

        def finished(heads: Heads) -> Rewrite | None:
            drafts.extend(filter(None, [self._draft()]))
            return drafts[-1].finished(heads) if drafts else None

        done = self._log.recorder.rewrite(self._stream, finished)
        if not drafts or not (done or drafts[-1].is_there()):
            raise errors.StoreUnavailable(
                f"other processes keep encrypting session {self._stream.session_id!r}",
                remedy="try again when they are done",
            )
        return drafts[-1]

    def _draft(self) -> _Draft | None:
        """The session, read once; None if others sealed it anew meanwhile."""
        user_id, session_id, _ = self._stream
        row = self._log.recorder.head_row(self._stream)
        if row is None:
            raise errors.SessionNotFound(user_id, session_id)
        streams.check_not_erased(self._stream, row)
        streams.check_not_frozen(row)
        old = self._log.key(self._stream)
        new = self._log.keys.successor(user_id, session_id, of=old, now=self._now)
        draft = _Draft(self._log, self._stream, self._rewriting, old, new, self._now)
        try:
            for name in self._log.recorder.streams(user_id, session_id):
                draft.read(name)
        except errors.CorruptEvent:
            if self._log.key(self._stream).check == old.check:
                raise
            return None
        return draft


class _Draft:
    """The session under its new key, as far as it was read."""

    def __init__(
        self,
        log: streams.EncryptedStreams,
        stream: StreamId,
        rewriting: Rewriting,
        old: SessionKey,
        new: SessionKey,
        now: int,
    ) -> None:
        self._log, self._stream, self._rewriting = log, stream, rewriting
        self._old, self.new, self._now = old, new, now
        self._rows: dict[str, list[EncryptedEvent]] = {}
        self._superseded: dict[str, set[int]] = {}
        self._cut_before: set[str] = set()
        self._cut: dict[str, Blob] = {}
        self._expired: set[str] = set()
        self._blobs = streams.Blobs(log.recorder, log.keys, stream)
        self._batch: Batch | None = None

    def is_there(self) -> bool:
        """Whether it took effect though the answer to the commit was lost."""
        if self._batch is None:
            return False
        first, recorder = self._batch.events[0], self._log.recorder
        found = recorder.select_events(self._stream, gt=first.seq - 1, limit=1)
        return bool(found) and found[0].hash == first.hash

    def result(self) -> Rewritten:
        """What was done."""
        events = sum(len(seqs) for seqs in self._superseded.values())
        gone = len(self._cut_before - set(self._cut) - self._expired)
        return Rewritten(events, gone, self.new.version)

    def read(self, name: str, upto: int | None = None) -> None:
        """Seal anew what of this stream was not yet."""
        stream = self._stream._replace(stream=name)
        sealed = self._rows.setdefault(name, [])
        while page := self._log.recorder.select_events(
            stream, gt=len(sealed), lte=upto, limit=PAGE
        ):
            sealed.extend(self._resealed(row) for row in page)

    def _resealed(self, row: EncryptedEvent) -> EncryptedEvent:
        envelope = self._log.envelope(row)
        again = self._rewriting.again(envelope)
        replaced = ReplacedEvent(row, cast("RedactedEvent | None", again), self.new)
        new_row = self._log.mapper.to_stored_event(replaced)
        self._cut_before.update(envelope.blobs)
        if again is None:
            self._keep(envelope.blobs)
        else:
            self._cut |= {blob.sha256: blob for blob in again.blobs}
            self._superseded.setdefault(envelope.stream, set()).add(row.seq)
        return new_row

    def _keep(self, digests: tuple[str, ...]) -> None:
        for sha256 in digests:
            try:
                data = self._blobs.read(sha256)
            except errors.Expired:
                self._expired.add(sha256)
                continue
            if data is not None:
                self._cut[sha256] = Blob(sha256, data)

    def finished(self, heads: Heads) -> Rewrite | None:
        """The whole session, read to these heads; None if its key is another now."""
        if MAIN not in heads:  # it was erased meanwhile, or somebody deleted the row
            self._log.keys.refuse_erased(*self._stream[:2])
            raise errors.SessionNotFound(*self._stream[:2])
        for name, head in heads.items():
            streams.check_not_erased(self._stream._replace(stream=name), head)
            streams.check_not_frozen(head)
        if any(head.key_check != self._old.check for head in heads.values()):
            return None
        for name, head in heads.items():
            self.read(name, upto=head.seq)
        kept, expired = self._blobs.rows(self._cut.values(), self.new), self._expired
        marks = (
            self._blobs.expired(self._blobs.address(sha256), self.new)
            for sha256 in expired - set(self._cut)
        )
        batch = self._log.batch(self._append(heads), self.new)
        self._batch = replace(batch, blobs=(*kept, *marks))
        return Rewrite(
            batch=self._batch,
            rows=tuple(row for rows in self._rows.values() for row in rows),
            states={name: self._state(name, heads) for name in heads if name != MAIN},
            blobs=tuple(map(self._blobs.address, self._cut_before)),
        )

    def _append(self, heads: Heads) -> Append:
        base = streams.opened_head(self._stream, heads[MAIN], self._old)
        state, events = self._rewriting.state(base.state), list(self._bound())
        for event in events:
            state = evolve(state, event)
        recorded = tuple(self._rewriting.record(event) for event in events)
        return Append(base, state, recorded, self._now)

    def _state(self, name: str, heads: Heads) -> bytes:
        stream, head = self._stream._replace(stream=name), heads[name]
        state = streams.opened_head(stream, head, self._old).state
        state = self._rewriting.state(state)
        return streams.encrypted_head(head, state, self.new).state

    def _bound(self) -> Iterator[RedactionApplied]:
        """The events that bind all rows, a run of them each."""
        for name, sealed in self._rows.items():
            superseded = self._superseded.get(name, set())
            for run in _runs(sealed, superseded):
                rows = [row.resealing for row in run]
                named = [row for row in rows if row.seq in superseded]
                yield RedactionApplied(
                    stream=name,
                    seqs=tuple(row.seq for row in named),
                    hashes=tuple(row.digest.hex() for row in named),
                    first_hashes=tuple(row.first_digest.hex() for row in named),
                    first_seq=rows[0].seq,
                    last_seq=rows[-1].seq,
                    digest=resealed(rows),
                    key_version=self.new.version,
                )


def _runs(
    rows: list[EncryptedEvent], superseded: set[int]
) -> Iterator[list[EncryptedEvent]]:
    run: list[EncryptedEvent] = []
    named = 0
    for row in rows:
        run.append(row)
        named += row.header.seq in superseded
        if len(run) == _BOUND or named == _NAMED:
            yield run
            run, named = [], 0
    if run:
        yield run
