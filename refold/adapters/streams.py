"""Streams over a recorder and a key ring: append, read, and what stands beside them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, TypeAlias, TypeVar

import orjson
from cryptography.exceptions import InvalidTag

from refold.adapters.keys.ring import (
    KeyRing,
    SessionKey,
    UserKey,
    decrypt,
    encrypt,
    idempotent_id,
    receipt_address,
    uuid7,
)
from refold.adapters.keys.store import NO_REFS, Refs
from refold.adapters.rows import (
    FROZEN,
    THAWED,
    Batch,
    BlobRow,
    EncryptedEvent,
    EncryptingMapper,
    HeadRow,
    NotInserted,
    PlacedEvent,
    QueueFull,
    Reading,
    ViewRow,
    WriteOutcome,
    Wrote,
    pack,
    unpack,
)
from refold.adapters.sql.recorder import Recorder
from refold.domain import errors, ports
from refold.domain.canonical import canonical
from refold.domain.chain import length_prefixed
from refold.domain.envelope import Blob, Envelope
from refold.domain.events import Span
from refold.domain.ids import MAIN, StreamId, written
from refold.domain.seals import Use
from refold.domain.session import SessionState
from refold.redaction.chokepoint import RedactedEvent

T = TypeVar("T")
_OF_DRAFT: Final = "draft\0"  # before the key of one: it is none of an append
_EXPIRED: Final = b"\xffexpired"  # no codec has this mark


# A head row, or what one is made of.
_Row: TypeAlias = tuple[int, bytes, ports.Status, bytes, bytes, int, int, int]


def encrypted_head(row: _Row, state: SessionState, key: SessionKey) -> HeadRow:
    """The row with this state, encrypted under this key for that row alone."""
    dumped, columns = canonical(state.dump()), _of_head(state.stream, row)
    sealed = encrypt(key.cipher, dumped, columns)
    return HeadRow(*row[:3], sealed, key.check, *row[5:])


def opened_head(stream: StreamId, row: HeadRow, key: SessionKey) -> ports.Head:
    """What the row says.  Raises CorruptEvent if it is not what was written."""
    try:
        dumped = orjson.loads(decrypt(key.cipher, row.state, _of_head(stream, row)))
    except InvalidTag:
        raise errors.CorruptEvent(
            f"session {stream.session_id!r} {stream.stream}",
            seq=row.seq,
            reason="the head row is not what was written",
        ) from None
    closed = THAWED.get(row.status, row.status) == "closed"
    state = SessionState.load(stream, row.seq, closed=closed, dumped=dumped)
    return head_of(state, row)


def head_of(state: SessionState, row: HeadRow) -> ports.Head:
    """The head of that state and row; one that is frozen is what it was before."""
    _, last, said, _, _, tokens, created, updated = row
    status: ports.Status = THAWED.get(said, said)  # type: ignore[assignment]  # one of them
    return ports.Head(state, last, status, tokens, created, updated, status != said)


def check_not_erased(stream: StreamId, row: HeadRow) -> None:
    """Raises Erased."""
    if row.status == "erased":
        raise errors.Erased(f"session {stream.session_id!r}")


def check_not_frozen(row: HeadRow) -> None:
    """Raises Frozen."""
    if row.status in FROZEN.values():
        raise errors.Frozen("the user")


def _of_head(stream: StreamId, row: _Row) -> bytes:
    """Every plain column of a head row: its state opens in that row alone."""
    seq, last, said, _, _, tokens, created, updated = row
    status = THAWED.get(said, said).encode()
    numbers = b"%d %d %d %d" % (seq, tokens, created, updated)
    return b"".join((_head_of(stream), length_prefixed((last, status, numbers))))


@lru_cache(maxsize=1024)
def _head_of(stream: StreamId) -> bytes:
    return length_prefixed((b"head", written(stream).encode()))


class Blobs:
    """The blobs of one session: whole texts that its events were cut from."""

    def __init__(self, recorder: Recorder, keys: KeyRing, stream: StreamId) -> None:
        self._recorder, self._keys, self._stream = recorder, keys, stream

    def read(self, sha256: str) -> bytes | None:
        """The whole text of it.  Raises Expired, CorruptEvent, KeyUnavailable."""
        address = self.address(sha256)
        user_id, session_id, _ = self._stream
        for _ in range(2):
            body = self._recorder.blob_row(self._stream, address)
            if body is None:
                return None
            # Between the row and its key, a rewriting may have ended: once more then.
            with suppress(InvalidTag, ValueError):
                place = _of_blob(address)
                packed = self._keys.decrypt(user_id, session_id, body, place)
                if packed == _EXPIRED:
                    raise errors.Expired(sha256)
                return unpack(packed)
        raise errors.CorruptEvent(f"blob {sha256}", seq=0, reason="it does not open")

    def read_all(self, digests: Iterable[str]) -> dict[str, bytes]:
        """The whole texts of those that are there and have not expired, by SHA-256.

        They are read in one round trip.  Raises CorruptEvent, KeyUnavailable.
        """
        address_of = {sha256: self.address(sha256) for sha256 in digests}
        bodies = self._recorder.blob_rows(self._stream, [*address_of.values()])
        user_id, session_id, _ = self._stream
        texts: dict[str, bytes] = {}
        for sha256, address in address_of.items():
            body = bodies.get(address)
            if body is None:
                continue
            try:
                place = _of_blob(address)
                packed = self._keys.unseal(user_id, session_id, body, place)
                text = None if packed == _EXPIRED else unpack(packed)
            except (InvalidTag, ValueError):
                text = self._again(sha256)
            if text is not None:
                texts[sha256] = text
        return texts

    def _again(self, sha256: str) -> bytes | None:
        """A blob whose key changed while it was read; None if it has expired."""
        try:
            return self.read(sha256)
        except errors.Expired:
            return None

    def rows(self, blobs: Iterable[Blob], key: SessionKey) -> tuple[BlobRow, ...]:
        """The blobs, encrypted under this key."""
        found = []
        for blob in blobs:
            address = self.address(blob.sha256)
            body = encrypt(key.cipher, pack(blob.data), _of_blob(address))
            found.append(BlobRow(address, body, len(blob.data)))
        return tuple(found)

    def expired(self, address: bytes, key: SessionKey) -> BlobRow:
        """What stands where a blob was: under the key, so that nobody else makes it."""
        return BlobRow(address, encrypt(key.cipher, _EXPIRED, _of_blob(address)), 0)

    def address(self, sha256: str) -> bytes:
        """Where the session's blob of that digest is."""
        user = self._keys.user(self._stream.user_id, now=None)
        digest = bytes.fromhex(sha256)
        return user.mac("session blob", self._stream.session_id.encode(), digest)


def _of_blob(address: bytes) -> bytes:
    return length_prefixed((b"blob", address))


class EncryptedStreams:
    """Streams of an EventLog: a recorder for rows, a key ring for what they hold."""

    def __init__(self, recorder: Recorder, keys: KeyRing) -> None:
        self.recorder, self.keys = recorder, keys
        self.mapper = EncryptingMapper(keys)

    def head(self, stream: StreamId) -> ports.Head:
        return _twice(lambda: self.open_head(stream, self.recorder.head_row(stream)))

    def open_head(self, stream: StreamId, row: HeadRow | None) -> ports.Head:
        """What a head row says.  Raises Erased, CorruptEvent, KeyUnavailable."""
        if row is None:
            self.keys.refuse_erased(stream.user_id, stream.session_id)
            return ports.Head(SessionState(stream))
        check_not_erased(stream, row)
        return opened_head(stream, row, self._key_of(stream, row.key_check))

    def append(self, request: ports.Append) -> ports.Outcome:
        if request.base.state.head_seq == 0:
            self._admit(request)
        try:
            batch = self.batch(request)
        except errors.KeyUnavailable:
            # Was it erased, and let in again?
            if self.recorder.head_row(request.state.stream) is not None:
                raise
            return ports.Conflict(self.open_head(request.state.stream, None))
        try:
            self.recorder.insert_events(batch.events, batch=batch)
        except NotInserted as refused:
            return self._outcome(request, refused.outcome)
        except errors.StoreUnavailable:
            self.refuse_erased(request.state.stream)
            raise
        return ports.Appended(head_of(request.state, batch.head))

    def append_soon(
        self, request: ports.Append, done: Callable[[ports.Outcome | Exception], None]
    ) -> bool:
        def written(outcome: WriteOutcome | Exception) -> None:
            result: ports.Outcome | Exception
            try:
                if isinstance(outcome, Exception):
                    result = outcome
                else:
                    result = self._outcome(request, outcome)
            except Exception as error:
                result = error
            done(result)

        try:
            batch = self.batch(request)
            self.recorder.insert_events(batch.events, batch=batch, done=written)
        except (errors.KeyUnavailable, QueueFull):
            return False  # ``append`` finds out why there is no key
        return True

    def append_exclusive(
        self, stream: StreamId, build: Callable[[ports.Head], ports.Append]
    ) -> ports.Outcome:
        requests: list[ports.Append] = []

        def batch(row: HeadRow | None) -> Batch:
            request = build(self.open_head(stream, row))
            requests.append(request)
            if request.base.state.head_seq == 0:
                self._admit(request)
            return self.batch(request)

        try:
            outcome = self.recorder.write_exclusive(stream, batch)
        except errors.StoreUnavailable:
            self.refuse_erased(stream)
            raise
        return self._outcome(requests[-1], outcome)

    def batch(self, request: ports.Append, key: SessionKey | None = None) -> Batch:
        """The rows of an append, encrypted under this key, else under the session's."""
        state, base, now = request.state, request.base, request.now
        stream, prev, tokens = state.stream, base.hash, base.tokens
        seq = expected = base.state.head_seq
        if key is None:
            key = self.keys.session(stream.user_id, stream.session_id, now=None)
        rows, cut, used = [], list[Blob](), request.idempotency_key
        names = _drafts(request.keys) if request.keys else {}
        for index, event in enumerate(request.events):
            if type(event) is not RedactedEvent:
                raise TypeError("only an event that passed redaction can be written")
            if index in names:
                event_id = idempotent_id(key.user, stream.session_id, *names[index])
            elif used is None:
                event_id = uuid7(now)
            else:
                event_id = idempotent_id(key.user, stream.session_id, used, index)
            made, estimate = event.event, event.token_estimate
            seq, tokens = seq + 1, tokens + estimate
            kind, version = made.type, made.version
            columns = (stream, seq, kind, event.ts, event_id, estimate, version)
            row = self.mapper.to_stored_event(PlacedEvent(event, columns, prev, key))
            rows.append(row)
            prev = row.hash
            cut += event.blobs
        status: ports.Status = "closed" if state.closed else "open"
        begun = base.created_at if expected else request.events[0].ts
        head = (seq, prev, status, b"", key.check, tokens, begun, now)
        return Batch(
            stream,
            expected,
            base.hash,
            encrypted_head(head, state, key),
            tuple(rows),
            Blobs(self.recorder, self.keys, stream).rows(cut, key) if cut else (),
            None if used is None else receipt_address(key.user, stream, used),
            _uses(request, key) if request.keys or used is not None else (),
            NO_REFS if expected else self._refs(state, key),
        )

    def _refs(self, state: SessionState, key: SessionKey) -> Refs:
        """Whose stream begins, and what it goes on from if it is a fork."""
        refs = self.keys.refs(key.user, state.stream)
        origin = state.forked_from if state.stream.stream == MAIN else None
        return refs._replace(origin=origin[0]) if origin else refs

    def _admit(self, request: ports.Append) -> None:
        """Make a new session's key, but never in place of one that was lost.

        The key store is asked, not what this process remembers: the user may have been
        erased since.
        """
        user_id, session_id, _ = stream = request.state.stream
        known = self.recorder.knows(user_id)
        if known and self.recorder.head_row(stream.main) is not None:
            self.key(stream)
            return
        self.keys.forget(user_id, session_id)
        if known:
            self.keys.user(user_id, now=None)
        self.keys.session(user_id, session_id, now=request.now)

    def _outcome(self, request: ports.Append, outcome: WriteOutcome) -> ports.Outcome:
        """The new head; or what an append that wrote nothing found, or is there since.

        Raises Frozen, and what reading the head raises.
        """
        if isinstance(outcome, Wrote):
            return ports.Appended(head_of(request.state, outcome.head))
        if isinstance(outcome, ports.Duplicate):
            return outcome
        stream, row = request.state.stream, outcome.head
        if request.base.state.head_seq == 0 and (origin := request.state.forked_from):
            self.head(stream._replace(session_id=origin[0]))
        known = row or self.recorder.head_row(stream.main)
        if known is not None:
            check_not_frozen(known)
        else:
            status = self.recorder.status_of(self.keys.user_ref(stream.user_id))
            if status == "frozen":
                raise errors.Frozen("the user")
            if status != "live":  # and the keys may be there for a moment yet
                raise errors.Erased("the user")
        try:
            return ports.Conflict(self.open_head(stream, row))
        except errors.KeyUnavailable:
            return ports.Conflict(self.head(stream))

    def refuse_erased(self, stream: StreamId) -> None:
        """Raises Erased, where the database was too busy: an erasure keeps it busy, and
        who waits for that in vain would try again.
        """
        with suppress(errors.StoreUnavailable, errors.KeyUnavailable):
            self._nothing(stream)

    def receipt(self, stream: StreamId, idempotency_key: str) -> ports.Duplicate | None:
        row = self.recorder.head_row(stream)
        if row is None:
            return None
        check_not_erased(stream, row)
        user = self.keys.user(stream.user_id, now=None)
        address = receipt_address(user, stream, idempotency_key)
        return self.recorder.receipt(stream, address)

    def known(
        self, stream: StreamId, keys: Sequence[str]
    ) -> dict[str, ports.Duplicate]:
        """The seqs that were written of drafts with these keys, of those that were."""
        try:
            user = self.keys.user(stream.user_id, now=None)
        except errors.KeyUnavailable:
            return {}  # a new user; of another, the append says so
        names = {receipt_address(user, stream, _OF_DRAFT + key): key for key in keys}
        found = self.recorder.uses(stream, [*names])
        return {names[use.address]: ports.Duplicate(*use[1:]) for use in found}

    def read(
        self,
        stream: StreamId,
        *,
        after: int = 0,
        upto: int | None = None,
        limit: int | None = None,
        types: Sequence[str] = (),
        newest: bool = False,
        spans: Sequence[Span] = (),
    ) -> list[Envelope]:
        def rows() -> Sequence[EncryptedEvent]:
            found = self.recorder.select_events(
                stream,
                gt=after,
                lte=upto,
                limit=limit,
                desc=newest,
                types=types,
                spans=spans,
            )
            return found[::-1] if newest else found

        return self.opened(rows) or self._nothing(stream)

    def _nothing(self, stream: StreamId) -> list[Envelope]:
        """No events, unless they were erased."""
        row = self.recorder.head_row(stream.main)
        if row is None:
            self.keys.refuse_erased(stream.user_id, stream.session_id)
        else:
            check_not_erased(stream, row)
        return []

    def opened(self, rows: Callable[[], Sequence[EncryptedEvent]]) -> list[Envelope]:
        """The envelopes of ``rows``, read a second time if they do not open.

        Between reading them and having their key, a rewriting may have ended.
        """
        try:
            return [self.mapper.to_domain_event(row) for row in rows()]
        except errors.CorruptEvent:
            return [self.envelope(row) for row in rows()]

    def envelope(self, row: EncryptedEvent) -> Envelope:
        """One row, opened, and what it holds decoded.

        Raises CorruptEvent, KeyUnavailable if it is under another key.
        """
        try:
            envelope: Envelope = self.mapper.to_domain_event(row)
            return envelope.decoded()
        except errors.CorruptEvent:
            self.key(row.columns[0])
            raise

    def blob(self, stream: StreamId, sha256: str) -> bytes | None:
        try:
            found = Blobs(self.recorder, self.keys, stream).read(sha256)
        except errors.CorruptEvent:
            self.key(stream)
            raise
        if found is None:
            self._nothing(stream)
        return found

    def blobs(self, stream: StreamId, digests: Iterable[str]) -> dict[str, bytes]:
        try:
            return Blobs(self.recorder, self.keys, stream).read_all(digests)
        except errors.CorruptEvent:
            self.key(stream)
            raise

    def load_view(self, stream: StreamId, name: str) -> ports.StoredView | None:
        """The stored state of a projection; empty if it is not what was stored."""
        return self._view(stream, name, self.recorder.view_row(stream, name))

    def _view(
        self, stream: StreamId, name: str, row: ViewRow | None
    ) -> ports.StoredView | None:
        if row is None:
            return None
        # SQLite takes any type in any column.
        through = row.through_seq if isinstance(row.through_seq, int) else 0
        derived = row.derived_seq if isinstance(row.derived_seq, int) else 0
        try:
            shown, made = _spans(row.main_spans), _spans(row.derived_spans)
            context = _of_view(stream, name, through, derived)
            plain = self.keys.decrypt(*stream[:2], row.body, context)
            body = orjson.loads(unpack(plain))
        except (InvalidTag, TypeError, ValueError):
            return ports.StoredView(through, derived)
        return ports.StoredView(through, derived, body, shown, made)

    def save_view(
        self, stream: StreamId, name: str, view: ports.StoredView, *, replaces: int
    ) -> bool:
        key = self.keys.session(stream.user_id, stream.session_id, now=None)
        context = _of_view(stream, name, view.through_seq, view.derived_seq)
        body = encrypt(key.cipher, pack(canonical(view.body)), context)
        spans = (orjson.dumps(s).decode() for s in (view.shows, view.shows_derived))
        row = ViewRow(view.through_seq, view.derived_seq, body, *spans)
        return self.recorder.save_view_row(
            stream, name, row, replaces=replaces, key_check=key.check
        )

    def standing(
        self, stream: StreamId, name: str, *, shown: bool = False
    ) -> ports.Standing:
        return _twice(lambda: self._standing(stream, name, shown=shown))

    def _standing(self, stream: StreamId, name: str, *, shown: bool) -> ports.Standing:
        """Where a row does not open they are read apart: it may be needed by nobody."""
        found = self.recorder.standing(stream, name, shown=shown, limit=ports.PAGE)
        head = self.open_head(stream, found.head)
        view = self._view(stream, name, found.view)
        try:
            return ports.Standing(head, view, *self._together(stream, found[2:]))
        except errors.CorruptEvent:
            known = view or ports.StoredView(0, 0)
            new = self.read(stream, after=known.through_seq, limit=ports.PAGE)
            derived = stream._replace(stream=name)
            made = self.read(derived, after=known.derived_seq, limit=ports.PAGE)
            return ports.Standing(head, view, new=new, derived=made)

    def _together(
        self, stream: StreamId, parts: Sequence[Sequence[EncryptedEvent]]
    ) -> list[list[Envelope]]:
        """The envelopes of a session's rows; the next time, those rows are known."""
        if not any(parts):
            return [[] for _ in parts]
        opened = self.keys.session(*stream[:2], now=None).decrypted
        reading, open_ = Reading(opened.rows), self.mapper.to_domain_event
        found = [[open_(row, reading) for row in rows] for rows in parts]
        self.keys.keep(opened, reading.opened)
        return found

    def pseudonym_key(self, user_id: str, *, now: int) -> bytes:
        """What this user's pseudonyms are made with, derived from the user's key."""
        return user_key(self.recorder, self.keys, user_id, now=now).mac("pseudonym")

    def session_proof_key(self, stream: StreamId) -> bytes:
        """What proves things about this session, derived from its key."""
        cipher = self.keys.session(*stream[:2], now=None).cipher
        # Nothing else is encrypted under this nonce.
        return hashlib.sha256(cipher.encrypt(bytes(12), b"proof", b"derived")).digest()

    def key(self, stream: StreamId) -> SessionKey:
        """The session's key, if it is the one its rows were written with.

        Raises KeyUnavailable if that one is not there.
        """

        def found() -> SessionKey:
            row = self.recorder.head_row(stream.main)
            return self._key_of(stream, row.key_check if row else b"")

        return _twice(found)

    def _key_of(self, stream: StreamId, check: bytes) -> SessionKey:
        key = self.keys.session(*stream[:2], now=None, check=check)
        if check and key.check != check:
            raise errors.KeyUnavailable(
                f"session {stream.session_id!r} was written with another key",
                remedy="restore the key store that belongs to this database",
            )
        return key


def user_key(recorder: Recorder, keys: KeyRing, user_id: str, *, now: int) -> UserKey:
    """The user's key; a new user's is made, but never in place of a lost one."""
    try:
        return keys.user(user_id, now=None)
    except errors.KeyUnavailable:
        if recorder.knows(user_id):
            raise
    return keys.user(user_id, now=now)


def _drafts(keys: Sequence[ports.Keyed]) -> dict[int, tuple[str, int]]:
    """By the index of an event, the key of its draft, and its place there."""
    return {
        one.first + place: (_OF_DRAFT + one.key, place)
        for one in keys
        for place in range(one.events)
    }


def _uses(request: ports.Append, key: SessionKey) -> tuple[Use, ...]:
    """The receipts of an append: of its key, and of those of its drafts."""
    stream, base = request.state.stream, request.base.seq
    named = [
        (_OF_DRAFT + one.key, base + one.first + 1, base + one.first + one.events)
        for one in request.keys
    ]
    if (name := request.idempotency_key) is not None:
        named.append((name, base + 1, request.state.head_seq))
    user = key.user
    return tuple([Use(receipt_address(user, stream, one), *at) for one, *at in named])


def _twice(read: Callable[[], T]) -> T:
    """Read a row and find its key, again if a rewriting ended between the two."""
    try:
        return read()
    except errors.KeyUnavailable:
        return read()


def _of_view(stream: StreamId, name: str, through: int, derived: int) -> bytes:
    place = b"%d %d" % (through, derived)
    return length_prefixed((b"view", written(stream).encode(), name.encode(), place))


def _spans(written: Any) -> tuple[Span, ...]:
    return tuple((first, last) for first, last in orjson.loads(written))
