"""The event log over any recorder: seals and writes, reads and opens, proves."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import orjson
from cryptography.exceptions import InvalidTag

from refold.adapters.keys import (
    KeyRing,
    SessionKey,
    idempotent_id,
    seal,
    unseal,
    uuid_of,
)
from refold.adapters.recorder import (
    Batch,
    BlobRow,
    HeadRow,
    Moved,
    Recorder,
    ViewRow,
    WriteOutcome,
    Wrote,
)
from refold.adapters.sealing import (
    PlacedEvent,
    SealedEvent,
    SealingMapper,
    new_header,
    pack,
    unpack,
)
from refold.domain.canonical import canonical
from refold.domain.chain import length_prefixed
from refold.domain.envelope import Envelope
from refold.domain.errors import CorruptEvent, Erased, KeyUnavailable
from refold.domain.ids import StreamId
from refold.domain.ports import (
    Append,
    Appended,
    Conflict,
    Duplicate,
    Head,
    Outcome,
    Problem,
    Recordable,
    SessionInfo,
    StoredView,
)
from refold.domain.session import SessionState
from refold.redaction.chokepoint import RedactedEvent

PAGE: Final = 500


@dataclass(frozen=True, slots=True)
class SealedLog:
    """An EventLog: a recorder for the rows, a key ring for what is in them."""

    recorder: Recorder
    keys: KeyRing

    @property
    def mapper(self) -> SealingMapper:
        """The one way in and out of the rows."""
        return SealingMapper(self.keys)

    def head(self, stream: StreamId) -> Head:
        """The stream's end; seq 0 if there is no such stream."""
        return self._open_head(stream, self.recorder.head_row(stream))

    def append(self, request: Append) -> Outcome:
        """Write all of the events after the base, or nothing."""
        if request.base.seq == 0:
            self._admit(request)
        return self._outcome(request, self.recorder.write(self._batch(request)))

    def append_exclusive(
        self, stream: StreamId, build: Callable[[Head], Append]
    ) -> Outcome:
        """Append what ``build`` makes of the head, while nobody else can move it."""
        requests: list[Append] = []

        def batch(row: HeadRow | None) -> Batch:
            request = build(self._open_head(stream, row))
            requests.append(request)
            if request.base.seq == 0:
                self._admit(request)
            return self._batch(request)

        outcome = self.recorder.write_exclusive(stream, batch)
        return self._outcome(requests[-1], outcome)

    def receipt(self, stream: StreamId, idempotency_key: str) -> Duplicate | None:
        """The seqs that were written under this key, if it was used."""
        if self.recorder.head_row(stream) is None:
            return None
        user = self.keys.user(stream.user_id, now=None)
        address = _receipt_address(user.mac, stream, idempotency_key)
        return self.recorder.receipt(stream, address)

    def read(
        self,
        stream: StreamId,
        *,
        after: int = 0,
        upto: int | None = None,
        limit: int | None = None,
        types: Sequence[str] = (),
        newest: bool = False,
    ) -> list[Envelope]:
        """The events with ``after < seq <= upto``, in order."""
        rows = self.recorder.rows(
            stream, after=after, upto=upto, limit=limit, types=types, newest=newest
        )
        return [self._open(row) for row in rows]

    def audit(self, stream: StreamId) -> Iterator[Envelope | Problem]:
        """Every event with its chain proved, then the head; or what is wrong."""
        after, last = 0, None
        while rows := self.recorder.rows(stream, after=after, limit=PAGE):
            for row in rows:
                if row.header.seq != after + 1:
                    yield _problem(stream, after + 1, "gap", "an event is missing")
                elif not self.mapper.proves(row):
                    yield _problem(
                        stream, row.header.seq, "chain", "the hash does not follow"
                    )
                after, last = row.header.seq, row
                yield from self._audited(row)
        yield from self._audit_head(stream, last)

    def _audited(self, row: SealedEvent) -> Iterator[Envelope | Problem]:
        stream, seq = row.header.stream, row.header.seq
        try:
            yield self._open(row)
            for sha256 in self.mapper.open(row).get("blobs", ()):  # type: ignore[union-attr]
                if not self._blob_proves(stream.user_id, str(sha256)):
                    detail = f"blob {sha256} is missing, or is not what was written"
                    yield _problem(stream, seq, "blob", detail)
        except CorruptEvent as error:
            yield _problem(stream, seq, "corrupt", error.reason)
        except KeyUnavailable as error:
            yield _problem(stream, seq, "key", str(error))

    def _blob_proves(self, user_id: str, sha256: str) -> bool:
        try:
            data = self.blob(user_id, sha256)
        except CorruptEvent:
            return False
        return data is not None and hashlib.sha256(data).hexdigest() == sha256

    def _audit_head(
        self, stream: StreamId, last: SealedEvent | None
    ) -> Iterator[Problem]:
        row = self.recorder.head_row(stream)
        if row is None:
            if last is not None:
                yield _problem(stream, None, "head", "the stream has no head row")
        elif last is None or (row.seq, row.hash) != (last.header.seq, last.hash):
            seq = last.header.seq if last else 0
            detail = f"the head says seq {row.seq}, the events end at {seq}"
            yield _problem(stream, row.seq, "head", detail)

    def sessions(
        self, user_id: str | None = None, *, session_id: str | None = None
    ) -> list[SessionInfo]:
        """The sessions of a user, or of all, by user and name."""
        return self.recorder.sessions(user_id, session_id)

    def streams(self, user_id: str, session_id: str) -> list[str]:
        """The names of the session's streams, the main one first."""
        return self.recorder.streams(user_id, session_id)

    def orphans(self) -> list[Problem]:
        """Streams that have events and no head: their session is not listed."""
        return [
            _problem(stream, None, "head", "the stream has no head row")
            for stream in self.recorder.orphans()
        ]

    def blob(self, user_id: str, sha256: str) -> bytes | None:
        """The whole text of that digest, if this user has it."""
        user = self.keys.user(user_id, now=None)
        address = user.mac("blob", bytes.fromhex(sha256))
        body = self.recorder.blob_row(user_id, address)
        if body is None:
            return None
        try:
            return unpack(unseal(user.cipher, body, address))
        except InvalidTag:
            raise CorruptEvent(
                f"blob {sha256}", seq=0, reason="it does not open"
            ) from None

    def load_view(self, stream: StreamId, name: str) -> StoredView | None:
        """The stored state of a projection; empty if it is not what was stored."""
        row = self.recorder.view_row(stream, name)
        if row is None:
            return None
        key = self.keys.session(stream.user_id, stream.session_id, now=None)
        context = _view_context(stream, name, row.through_seq, row.derived_seq)
        try:
            body = orjson.loads(unpack(unseal(key.cipher, row.body, context)))
        except InvalidTag:
            body = {}
        return StoredView(row.through_seq, row.derived_seq, body)

    def save_view(
        self, stream: StreamId, name: str, view: StoredView, *, replaces: int
    ) -> bool:
        """Store it if the stored one stands at ``replaces``."""
        key = self.keys.session(stream.user_id, stream.session_id, now=None)
        context = _view_context(stream, name, view.through_seq, view.derived_seq)
        body = seal(key.cipher, pack(canonical(view.body)), context)
        row = ViewRow(view.through_seq, view.derived_seq, body)
        return self.recorder.save_view_row(stream, name, row, replaces=replaces)

    def view_names(self, user_id: str, session_id: str) -> list[str]:
        """The names of the projections that are kept for this session."""
        return self.recorder.view_names(user_id, session_id)

    def stats(self) -> dict[str, Any]:
        """Sizes: sessions, events, blobs, views, and bytes of each."""
        return self.recorder.stats()

    def close(self) -> None:
        """Let go of the database and of the keys."""
        self.recorder.close()
        self.keys.close()

    def _admit(self, request: Append) -> None:
        """Make a new session's key, but never in place of one that was lost."""
        user_id, session_id, _ = stream = request.state.stream
        if self.recorder.head_row(stream.main) is not None:
            self._key(stream)
            return
        if self.recorder.knows(user_id):
            self.keys.user(user_id, now=None)
        self.keys.session(user_id, session_id, now=request.now)

    def _batch(self, request: Append) -> Batch:
        stream, base = request.state.stream, request.base
        key = self.keys.session(stream.user_id, stream.session_id, now=None)
        rows = self._seal(request, key)
        head = HeadRow(
            seq=rows[-1].header.seq,
            hash=rows[-1].hash,
            status="closed" if request.state.closed else "open",
            state=b"",
            key_check=key.check,
            tokens=base.tokens + sum(row.header.token_estimate for row in rows),
            created_at=base.created_at or request.now,
            updated_at=request.now,
        )
        dumped = canonical(request.state.dump())
        head = head._replace(
            state=seal(key.cipher, dumped, _state_context(stream, head))
        )
        receipt = None
        if request.idempotency_key is not None:
            receipt = _receipt_address(key.user.mac, stream, request.idempotency_key)
        blobs = tuple(_blob_rows(key, request.events))
        return Batch(stream, base.seq, base.hash, head, rows, blobs, receipt)

    def _seal(self, request: Append, key: SessionKey) -> tuple[SealedEvent, ...]:
        mapper, rows = self.mapper, []
        stream, seq, prev = request.state.stream, request.base.seq, request.base.hash
        for index, event in enumerate(request.events):
            if not isinstance(event, RedactedEvent):
                raise TypeError("only an event that passed redaction can be written")
            seq += 1
            event_id = self._event_id(request, key, index)
            header = new_header(stream, seq, event, event_id)
            row = mapper.to_stored_event(PlacedEvent(event, header, prev))
            rows.append(row)
            prev = row.hash
        return tuple(rows)

    @staticmethod
    def _event_id(request: Append, key: SessionKey, index: int) -> UUID:
        if request.idempotency_key is None:
            return uuid7(request.now)
        session_id = request.state.stream.session_id
        return idempotent_id(key.user, session_id, request.idempotency_key, index)

    def _outcome(self, request: Append, outcome: WriteOutcome) -> Outcome:
        match outcome:
            case Wrote(head=row):
                return Appended(_head(request.state, row))
            case Moved(head=row):
                return Conflict(self._open_head(request.state.stream, row))
            case Duplicate():
                return outcome

    def _open(self, row: SealedEvent) -> Envelope:
        try:
            envelope: Envelope = self.mapper.to_domain_event(row)
        except CorruptEvent:
            self._key(row.header.stream)
            raise
        return envelope

    def _key(self, stream: StreamId) -> SessionKey:
        """The session's key, if it is the one its rows were written with."""
        key = self.keys.session(stream.user_id, stream.session_id, now=None)
        row = self.recorder.head_row(stream.main)
        if row is not None and row.key_check != key.check:
            raise KeyUnavailable(
                f"session {stream.session_id!r} was written with another key",
                remedy="restore the key store that belongs to this database",
            )
        return key

    def _open_head(self, stream: StreamId, row: HeadRow | None) -> Head:
        if row is None:
            return Head(SessionState(stream))
        if row.status == "erased":
            raise Erased(f"session {stream.session_id!r}")
        key = self.keys.session(stream.user_id, stream.session_id, now=None)
        if key.check != row.key_check:
            self._key(stream)
        try:
            dumped = orjson.loads(
                unseal(key.cipher, row.state, _state_context(stream, row))
            )
        except InvalidTag:
            raise CorruptEvent(
                f"session {stream.session_id!r} {stream.stream}",
                seq=row.seq,
                reason="the head row is not what was written",
            ) from None
        closed = row.status == "closed"
        state = SessionState.load(stream, row.seq, closed=closed, dumped=dumped)
        return _head(state, row)


def _head(state: SessionState, row: HeadRow) -> Head:
    return Head(state, row.hash, row.status, row.tokens, row.created_at, row.updated_at)


def uuid7(now: int) -> UUID:
    """A UUID of version 7: ``now`` in microseconds, the rest random (RFC 9562)."""
    stamp = (now // 1000) & ((1 << 48) - 1)
    random = int.from_bytes(os.urandom(10), "big")
    return uuid_of(stamp << 80 | random, version=7)


def _state_context(stream: StreamId, row: HeadRow) -> bytes:
    """Every plain column of a head row: its state opens in that row alone."""
    numbers = (row.seq, row.tokens, row.created_at, row.updated_at)
    return length_prefixed(
        (
            b"head",
            str(stream).encode(),
            row.hash,
            row.status.encode(),
            " ".join(str(number) for number in numbers).encode(),
        )
    )


def _view_context(stream: StreamId, name: str, through: int, derived: int) -> bytes:
    place = b"%d %d" % (through, derived)
    return length_prefixed((b"view", str(stream).encode(), name.encode(), place))


def _receipt_address(
    mac: Callable[..., bytes], stream: StreamId, idempotency_key: str
) -> bytes:
    return mac("receipt", str(stream).encode(), idempotency_key.encode())


def _blob_rows(key: SessionKey, events: Sequence[Recordable]) -> Iterator[BlobRow]:
    for event in events:
        for blob in event.blobs:
            address = key.user.mac("blob", bytes.fromhex(blob.sha256))
            body = seal(key.user.cipher, pack(blob.data), address)
            yield BlobRow(address, body, len(blob.data))


def _problem(stream: StreamId, seq: int | None, code: str, detail: str) -> Problem:
    return Problem(*stream, seq=seq, code=code, detail=detail)
