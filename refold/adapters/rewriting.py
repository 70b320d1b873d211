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
from refold.adapters.rows import Batch, EncryptedEvent, Heads, Rewrite, RowReplacement
from refold.adapters.verification import PAGE
from refold.domain import errors
from refold.domain.chain import reencryption_digest_hex
from refold.domain.envelope import Blob
from refold.domain.events import RedactionApplied
from refold.domain.ids import MAIN, StreamId
from refold.domain.ports import Append, Rewriting, Rewritten
from refold.domain.session import evolve
from refold.redaction.chokepoint import RedactedEvent

_TRIES: Final = 3
# The most rows that one event binds, and the most replaced rows that it names.
_BOUND: Final = 10_000
_NAMED: Final = 1_000


@dataclass(frozen=True, slots=True)
class Rewriter:
    """Encrypts one session under a new key."""

    _log: streams.EncryptedStreams
    _stream: StreamId
    _rewriting: Rewriting
    _now: int

    def run(self) -> Rewritten:
        """Rewrite the session; try again if another rewriting was first.

        After several tries, the session is read while it is locked: other writers wait
        for that, and it ends.

        Raises SessionNotFound, Erased, Frozen, CorruptEvent, StoreUnavailable.
        """
        for _ in range(_TRIES):
            draft = self._draft()
            if draft is None:
                continue
            done = self._log.recorder.rewrite(self._stream, draft.finished)
            if done or draft.is_there():
                break
        else:
            draft = self._while_locked()
        return draft.result()

    def _while_locked(self) -> _Draft:
        """Read and rewrite the session in one transaction that locks it."""
        drafts: list[_Draft] = []

        def finished(heads: Heads) -> Rewrite | None:
            draft = self._draft()
            if draft is None:
                return None
            drafts.append(draft)
            return draft.finished(heads)

        done = self._log.recorder.rewrite(self._stream, finished)
        if not drafts or not (done or drafts[-1].is_there()):
            raise errors.StoreUnavailable(
                f"other processes keep encrypting session {self._stream.session_id!r}",
                remedy="try again when they are done",
            )
        return drafts[-1]

    def _draft(self) -> _Draft | None:
        """Read the session once; None if another process rewrote it during the read."""
        user_id, session_id, _ = self._stream
        row = self._log.recorder.head_row(self._stream)
        if row is None:
            self._log.keys.refuse_erased(user_id, session_id)
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
    """The rows of a session under its new key, as far as they were read."""

    def __init__(
        self,
        log: streams.EncryptedStreams,
        stream: StreamId,
        rewriting: Rewriting,
        old: SessionKey,
        new: SessionKey,
        now: int,
    ) -> None:
        self._log = log
        self._stream = stream
        self._rewriting = rewriting
        self._old = old
        self.new = new
        self._now = now
        # By stream: the rewritten rows, and the seqs of those that were replaced.
        self._rows: dict[str, list[EncryptedEvent]] = {}
        self._superseded: dict[str, set[int]] = {}
        # The digests of blobs before, the blobs afterwards, and the expired ones.
        self._cut_before: set[str] = set()
        self._cut: dict[str, Blob] = {}
        self._expired: set[str] = set()
        self._blobs = streams.Blobs(log.recorder, log.keys, stream)
        self._batch: Batch | None = None

    def is_there(self) -> bool:
        """Whether the rewriting took effect although the answer to COMMIT was lost."""
        if self._batch is None:
            return False
        first = self._batch.events[0]
        rows = self._log.recorder.select_events(self._stream, gt=first.seq - 1, limit=1)
        return bool(rows) and rows[0].hash == first.hash

    def result(self) -> Rewritten:
        """Count the replaced events and the blobs that are gone."""
        events = sum(len(seqs) for seqs in self._superseded.values())
        gone = len(self._cut_before - set(self._cut) - self._expired)
        return Rewritten(events, gone, self.new.version)

    def read(self, name: str, upto: int | None = None) -> None:
        """Rewrite the rows of a stream that were not read yet, up to a seq."""
        stream = self._stream._replace(stream=name)
        rewritten = self._rows.setdefault(name, [])
        while page := self._log.recorder.select_events(
            stream, gt=len(rewritten), lte=upto, limit=PAGE
        ):
            rewritten.extend(self._rewritten(row) for row in page)

    def _rewritten(self, row: EncryptedEvent) -> EncryptedEvent:
        """Return the row that replaces this one, and keep the blobs that it names."""
        envelope = self._log.envelope(row)
        new_content = cast(
            "RedactedEvent | None", self._rewriting.replacement(envelope)
        )
        replacement = RowReplacement(row, new_content, self.new)
        new_row = self._log.mapper.to_stored_event(replacement)
        self._cut_before.update(envelope.blobs)
        if new_content is None:
            self._keep(envelope.blobs)
        else:
            self._cut |= {blob.sha256: blob for blob in new_content.blobs}
            self._superseded.setdefault(envelope.stream, set()).add(row.seq)
        return new_row

    def _keep(self, digests: tuple[str, ...]) -> None:
        """Keep the blobs of an event that is not replaced, except expired ones."""
        for sha256 in digests:
            try:
                data = self._blobs.read(sha256)
            except errors.Expired:
                self._expired.add(sha256)
                continue
            if data is not None:
                self._cut[sha256] = Blob(sha256, data)

    def finished(self, heads: Heads) -> Rewrite | None:
        """Return the session up to these heads; None if it has another key now."""
        if MAIN not in heads:  # the session was erased, or the row was deleted
            self._log.keys.refuse_erased(*self._stream[:2])
            raise errors.SessionNotFound(*self._stream[:2])
        for name, head in heads.items():
            streams.check_not_erased(self._stream._replace(stream=name), head)
            streams.check_not_frozen(head)
        if any(head.key_check != self._old.check for head in heads.values()):
            return None
        for name, head in heads.items():
            self.read(name, upto=head.seq)
        blobs = self._blobs.rows(self._cut.values(), self.new)
        marks = [
            self._blobs.expired(self._blobs.address(sha256), self.new)
            for sha256 in self._expired - set(self._cut)
        ]
        batch = self._log.batch(self._append(heads), self.new)
        self._batch = replace(batch, blobs=(*blobs, *marks))
        return Rewrite(
            batch=self._batch,
            rows=tuple(row for rows in self._rows.values() for row in rows),
            states={name: self._state(name, heads) for name in heads if name != MAIN},
            old_blob_addresses=tuple(map(self._blobs.address, self._cut_before)),
        )

    def _append(self, heads: Heads) -> Append:
        """Return the events that record the rewriting, to append to the main stream."""
        base = streams.decrypted_head(self._stream, heads[MAIN], self._old)
        state = self._rewriting.state(base.state)
        events = list(self._bound())
        for event in events:
            state = evolve(state, event)
        recorded = tuple(self._rewriting.record(event) for event in events)
        return Append(base, state, recorded, self._now)

    def _state(self, name: str, heads: Heads) -> bytes:
        stream = self._stream._replace(stream=name)
        head = heads[name]
        state = streams.decrypted_head(stream, head, self._old).state
        state = self._rewriting.state(state)
        return streams.encrypted_head(head, state, self.new).state

    def _bound(self) -> Iterator[RedactionApplied]:
        """The events that bind all rows to the chain, one for each run of rows."""
        for name, rewritten in self._rows.items():
            superseded = self._superseded.get(name, set())
            for run in _runs(rewritten, superseded):
                rows = [row.reencryption for row in run]
                replaced = [row for row in rows if row.seq in superseded]
                yield RedactionApplied(
                    stream=name,
                    seqs=tuple(row.seq for row in replaced),
                    hashes=tuple(row.current_digest.hex() for row in replaced),
                    first_hashes=tuple(row.first_digest.hex() for row in replaced),
                    first_seq=rows[0].seq,
                    last_seq=rows[-1].seq,
                    digest=reencryption_digest_hex(rows),
                    key_version=self.new.version,
                )


def _runs(
    rows: list[EncryptedEvent], superseded: set[int]
) -> Iterator[list[EncryptedEvent]]:
    """Split rows into runs that one event can bind."""
    run: list[EncryptedEvent] = []
    replaced = 0
    for row in rows:
        run.append(row)
        if row.header.seq in superseded:
            replaced += 1
        if len(run) == _BOUND or replaced == _NAMED:
            yield run
            run = []
            replaced = 0
    if run:
        yield run
