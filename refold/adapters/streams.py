"""Streams over a recorder and a key ring: appends, reads, views, blobs and receipts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    FROZEN_STATUSES,
    WHEN_UNFROZEN,
    Batch,
    BlobRow,
    EncryptedEvent,
    EncryptingMapper,
    HeadRow,
    NotInserted,
    PlacedEvent,
    QueueFull,
    Reading,
    ShownEvents,
    SnapshotRows,
    ViewRow,
    WriteOutcome,
    Wrote,
    pack,
    unpack,
)
from refold.adapters.sql.recorder import Recorder
from refold.domain import errors, ports
from refold.domain.canonical import canonical
from refold.domain.chain import length_prefixed, pack_length
from refold.domain.envelope import Blob, Envelope
from refold.domain.events import Span
from refold.domain.ids import MAIN, StreamId, quoted_id, written
from refold.domain.seals import Use
from refold.domain.session import SessionState
from refold.redaction.chokepoint import RedactedEvent

T = TypeVar("T")
# Precedes the idempotency key of a draft, which may equal that of an append.
_OF_DRAFT: Final = "draft\0"
_EXPIRED: Final = b"\xffexpired"  # the mark of no codec
_FEW: Final = 500  # sessions whose keys are read by their names


# A head row, or a tuple with its columns.
_Row: TypeAlias = tuple[int, bytes, ports.Status, bytes, bytes, int, int, int]


def encrypted_head(row: _Row, state: SessionState, key: SessionKey) -> HeadRow:
    """Return the row with this state, encrypted for this row alone."""
    dumped = canonical(state.dump())
    ciphertext = encrypt(key.cipher, dumped, _head_context(state.stream, row))
    return HeadRow(*row[:3], ciphertext, key.check, *row[5:])


def decrypted_head(stream: StreamId, row: HeadRow, key: SessionKey) -> ports.Head:
    """Return the head in a row.  Raises CorruptEvent if the row was changed."""
    try:
        plain = decrypt(key.cipher, row.state, _head_context(stream, row))
    except InvalidTag:
        raise errors.CorruptEvent(
            f"session {stream.session_id!r} {stream.stream}",
            seq=row.seq,
            reason="the head row is not what was written",
        ) from None
    state = SessionState.load(
        stream,
        row.seq,
        closed=WHEN_UNFROZEN.get(row.status, row.status) == "closed",
        dumped=orjson.loads(plain),
    )
    return head_of(state, row)


def head_of(state: SessionState, row: HeadRow) -> ports.Head:
    """Return the head with this state and row.

    A frozen head has the status that it had before.
    """
    status: ports.Status = WHEN_UNFROZEN.get(row.status, row.status)  # type: ignore[assignment]  # one of them
    return ports.Head(
        state,
        row.hash,
        status,
        row.tokens,
        row.created_at,
        row.updated_at,
        status != row.status,
    )


def check_not_erased(stream: StreamId, row: HeadRow) -> None:
    """Raise Erased for a head that is marked as erased."""
    if row.status == "erased":
        raise errors.Erased(f"session {stream.session_id!r}")


def check_not_frozen(row: HeadRow) -> None:
    """Raise Frozen for a head of a frozen user."""
    if row.status in FROZEN_STATUSES:
        raise errors.Frozen("the user")


def _head_context(stream: StreamId, row: _Row) -> bytes:
    """Return every plain column of a head row, which its state is bound to.

    A freeze changes only the status, and is ignored here.
    """
    seq, last_hash, status, _, _, tokens, created_at, updated_at = row
    ordinary_status = WHEN_UNFROZEN.get(status, status).encode()
    numbers = b"%d %d %d %d" % (seq, tokens, created_at, updated_at)
    columns = length_prefixed((last_hash, ordinary_status, numbers))
    return b"".join((_stream_context(stream), columns))


@lru_cache(maxsize=1024)
def _stream_context(stream: StreamId) -> bytes:
    """Return the part of a head's context that names its stream."""
    return length_prefixed((b"head", written(stream).encode()))


class Blobs:
    """The blobs of one session: whole texts that its events were cut from."""

    def __init__(self, recorder: Recorder, keys: KeyRing, stream: StreamId) -> None:
        self._recorder = recorder
        self._keys = keys
        self._stream = stream

    def read(self, sha256: str) -> bytes | None:
        """Return a whole text.  Raises Expired, CorruptEvent, KeyUnavailable."""
        address = self.address(sha256)
        user_id, session_id, _ = self._stream
        for _ in range(2):
            body = self._recorder.blob_row(self._stream, address)
            if body is None:
                return None
            # A rewriting may have replaced row and key after the row was read.  If so,
            # the second try reads both.
            with suppress(InvalidTag, ValueError):
                context = _blob_context(address)
                packed = self._keys.decrypt(user_id, session_id, body, context)
                if packed == _EXPIRED:
                    raise errors.Expired(sha256)
                return unpack(packed)
        raise errors.CorruptEvent(f"blob {sha256}", seq=0, reason="it does not open")

    def read_all(self, digests: Iterable[str]) -> dict[str, bytes]:
        """Return whole texts by SHA-256, without missing and expired ones.

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
            text: bytes | None = None
            try:
                context = _blob_context(address)
                packed = self._keys.decrypt(user_id, session_id, body, context)
                if packed != _EXPIRED:
                    text = unpack(packed)
            except (InvalidTag, ValueError):
                text = self._read_again(sha256)
            if text is not None:
                texts[sha256] = text
        return texts

    def _read_again(self, sha256: str) -> bytes | None:
        """Read a blob whose key changed after its row was read; None if it expired."""
        try:
            return self.read(sha256)
        except errors.Expired:
            return None

    def rows(self, blobs: Iterable[Blob], key: SessionKey) -> tuple[BlobRow, ...]:
        """Return the rows of blobs, encrypted with this key."""
        rows = []
        for blob in blobs:
            address = self.address(blob.sha256)
            body = encrypt(key.cipher, pack(blob.data), _blob_context(address))
            rows.append(BlobRow(address, body, len(blob.data)))
        return tuple(rows)

    def expired(self, address: bytes, key: SessionKey) -> BlobRow:
        """Return the row that replaces an expired blob.

        It is encrypted, so that nobody without the key can make one.
        """
        body = encrypt(key.cipher, _EXPIRED, _blob_context(address))
        return BlobRow(address, body, 0)

    def address(self, sha256: str) -> bytes:
        """Return the address of the session's blob with this digest."""
        user = self._keys.user(self._stream.user_id, now=None)
        digest = bytes.fromhex(sha256)
        return user.mac("session blob", self._stream.session_id.encode(), digest)


def _blob_context(address: bytes) -> bytes:
    """Return the context that a blob is encrypted for."""
    return length_prefixed((b"blob", address))


class EncryptedStreams:
    """The streams of an EventLog: a recorder for rows, a key ring to decrypt them."""

    def __init__(self, recorder: Recorder, keys: KeyRing) -> None:
        self.recorder = recorder
        self.keys = keys
        self.mapper = EncryptingMapper(keys)

    def head(self, stream: StreamId) -> ports.Head:
        return _twice(lambda: self.open_head(stream, self.recorder.head_row(stream)))

    def open_head(self, stream: StreamId, row: HeadRow | None) -> ports.Head:
        """Return the head in a row.  Raises Erased, CorruptEvent, KeyUnavailable."""
        if row is None:
            self.keys.refuse_erased(stream.user_id, stream.session_id)
            return ports.Head(SessionState(stream))
        check_not_erased(stream, row)
        return decrypted_head(stream, row, self._key_of(stream, row.key_check))

    def append(self, request: ports.Append) -> ports.Outcome:
        if request.base.state.head_seq == 0:
            self._admit(request)
        try:
            batch = self.batch(request)
        except errors.KeyUnavailable:
            # If there is no head, the user may have been erased and readmitted.
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
            return False  # ``append`` reports why there is no key
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
        """Return the rows of an append, encrypted with this key or the session's."""
        state = request.state
        base = request.base
        stream = state.stream
        if key is None:
            key = self.keys.session(stream.user_id, stream.session_id, now=None)
        expected_seq = base.state.head_seq
        seq = expected_seq
        last_hash = base.hash
        tokens = base.tokens
        rows: list[EncryptedEvent] = []
        cut: list[Blob] = []
        append_key = request.idempotency_key
        drafts = _drafts(request.keys) if request.keys else {}
        for index, redacted in enumerate(request.events):
            if type(redacted) is not RedactedEvent:
                raise TypeError("only an event that passed redaction can be written")
            if index in drafts:
                draft_key, index_in_draft = drafts[index]
                event_id = idempotent_id(
                    key.user, stream.session_id, draft_key, index_in_draft
                )
            elif append_key is None:
                event_id = uuid7(request.now)
            else:
                event_id = idempotent_id(key.user, stream.session_id, append_key, index)
            seq += 1
            columns = (
                stream,
                seq,
                redacted.event.type,
                redacted.ts,
                event_id,
                redacted.token_estimate,
                redacted.event.version,
            )
            placed = PlacedEvent(redacted, columns, last_hash, key)
            row = self.mapper.to_stored_event(placed)
            rows.append(row)
            last_hash = row.hash
            tokens += redacted.token_estimate
            cut += redacted.blobs
        status: ports.Status = "closed" if state.closed else "open"
        created_at = base.created_at if expected_seq else request.events[0].ts
        head: _Row = (
            seq,
            last_hash,
            status,
            b"",
            key.check,
            tokens,
            created_at,
            request.now,
        )
        blobs: tuple[BlobRow, ...] = ()
        if cut:
            blobs = Blobs(self.recorder, self.keys, stream).rows(cut, key)
        append_receipt_address = None
        if append_key is not None:
            append_receipt_address = receipt_address(key.user, stream, append_key)
        receipts: tuple[Use, ...] = ()
        if request.keys or append_key is not None:
            receipts = _receipts(request, key)
        refs = NO_REFS
        if not expected_seq:
            refs = self._refs(state, key)
        return Batch(
            stream=stream,
            expected_seq=expected_seq,
            expected_hash=base.hash,
            head=encrypted_head(head, state, key),
            events=tuple(rows),
            blobs=blobs,
            append_receipt_address=append_receipt_address,
            receipts=receipts,
            refs=refs,
        )

    def _refs(self, state: SessionState, key: SessionKey) -> Refs:
        """Return the keyed hashes of a new stream, with the origin of a fork."""
        refs = self.keys.refs(key.user, state.stream)
        if state.forked_from and state.stream.stream == MAIN:
            return refs._replace(origin=state.forked_from[0])
        return refs

    def _admit(self, request: ports.Append) -> None:
        """Make a new session's key, but never to replace a lost one.

        It reads the key store instead of cached keys, because the user may have been
        erased since.
        """
        stream = request.state.stream
        user_id, session_id, _ = stream
        has_user = self.recorder.knows(user_id)
        if has_user and self.recorder.head_row(stream.main) is not None:
            self.key(stream)
            return
        self.keys.forget(user_id, session_id)
        if has_user:
            self.keys.user(user_id, now=None)
        self.keys.session(user_id, session_id, now=request.now)

    def _outcome(self, request: ports.Append, outcome: WriteOutcome) -> ports.Outcome:
        """Return the outcome of a write: the new head, a duplicate, or a conflict.

        Raises Frozen, Erased, and the errors of reading the head.
        """
        if isinstance(outcome, Wrote):
            return ports.Appended(head_of(request.state, outcome.head))
        if isinstance(outcome, ports.Duplicate):
            return outcome
        stream = request.state.stream
        row = outcome.head
        origin = request.state.forked_from
        if origin and request.base.state.head_seq == 0:
            # Raises Erased for a fork of an erased session.
            self.head(stream._replace(session_id=origin[0]))
        main_row = row or self.recorder.head_row(stream.main)
        if main_row is not None:
            check_not_frozen(main_row)
        else:
            status = self.recorder.status_of(self.keys.user_ref(stream.user_id))
            if status == "frozen":
                raise errors.Frozen("the user")
            if status != "live":  # the keys of an erased user may still exist
                raise errors.Erased("the user")
        try:
            return ports.Conflict(self.open_head(stream, row))
        except errors.KeyUnavailable:
            return ports.Conflict(self.head(stream))

    def refuse_erased(self, stream: StreamId) -> None:
        """Raise Erased if an erasure made the database too busy for a write.

        The writer would otherwise try again without success.
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
        """Return the seqs of written drafts with these keys, by their keys."""
        try:
            user = self.keys.user(stream.user_id, now=None)
        except errors.KeyUnavailable:
            return {}  # a new user; for others, the append raises
        keys_by_address: dict[bytes, str] = {}
        for key in keys:
            address = receipt_address(user, stream, _OF_DRAFT + key)
            keys_by_address[address] = key
        written = {}
        for use in self.recorder.uses(stream, [*keys_by_address]):
            written[keys_by_address[use.address]] = ports.Duplicate(*use[1:])
        return written

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
            selected = self.recorder.select_events(
                stream,
                gt=after,
                lte=upto,
                limit=limit,
                desc=newest,
                types=types,
                spans=spans,
            )
            if newest:
                return selected[::-1]
            return selected

        return self.envelopes(rows) or self._nothing(stream)

    def _nothing(self, stream: StreamId) -> list[Envelope]:
        """Return no events.  Raises Erased if the session or the user was erased."""
        row = self.recorder.head_row(stream.main)
        if row is None:
            self.keys.refuse_erased(stream.user_id, stream.session_id)
        else:
            check_not_erased(stream, row)
        return []

    def envelopes(self, rows: Callable[[], Sequence[EncryptedEvent]]) -> list[Envelope]:
        """Read and decrypt rows, and once more if they cannot be decrypted.

        A rewriting may have replaced rows and key after the rows were read.
        """
        try:
            return [self.mapper.to_domain_event(row) for row in rows()]
        except errors.CorruptEvent:
            return [self.envelope(row) for row in rows()]

    def envelope(self, row: EncryptedEvent) -> Envelope:
        """Decrypt and decode one row.

        Raises CorruptEvent, and KeyUnavailable if it has another key.
        """
        try:
            envelope: Envelope = self.mapper.to_domain_event(row)
            return envelope.decoded()
        except errors.CorruptEvent:
            self.key(row.columns[0])
            raise

    def blob(self, stream: StreamId, sha256: str) -> bytes | None:
        try:
            text = Blobs(self.recorder, self.keys, stream).read(sha256)
        except errors.CorruptEvent:
            self.key(stream)
            raise
        if text is None:
            self._nothing(stream)
        return text

    def blobs(self, stream: StreamId, digests: Iterable[str]) -> dict[str, bytes]:
        try:
            return Blobs(self.recorder, self.keys, stream).read_all(digests)
        except errors.CorruptEvent:
            self.key(stream)
            raise

    def load_view(self, stream: StreamId, name: str) -> ports.StoredView | None:
        """Return the stored state of a projection; without a body if it was changed."""
        return self._view(stream, name, self.recorder.view_row(stream, name))

    def _view(
        self, stream: StreamId, name: str, row: ViewRow | None
    ) -> ports.StoredView | None:
        """Decrypt a view; without a body if the row was changed."""
        if row is None:
            return None
        # SQLite stores any type in any column.
        through_seq = row.through_seq if isinstance(row.through_seq, int) else 0
        derived_seq = row.derived_seq if isinstance(row.derived_seq, int) else 0
        try:
            shows = _spans(row.main_spans)
            shows_derived = _spans(row.derived_spans)
            packed = self.keys.decrypt(
                stream.user_id,
                stream.session_id,
                row.body,
                _view_context(written(stream), name, through_seq, derived_seq),
            )
            body = orjson.loads(unpack(packed))
        except (InvalidTag, TypeError, ValueError):
            return ports.StoredView(through_seq, derived_seq)
        return ports.StoredView(through_seq, derived_seq, body, shows, shows_derived)

    def views_named(
        self, user_id: str, name: str, session_ids: Sequence[str] | None = None
    ) -> Iterator[ports.NamedView]:
        rows = self.recorder.view_rows(user_id, name, session_ids)
        # SQLite stores any type in any column.
        rows = [row for row in rows if type(row[1]) is type(row[2]) is int]
        if not rows:
            return
        context = _view_contexts(user_id, name)
        encrypted_rows = (
            (session_id, body, context(session_id, through_seq, derived_seq))
            for session_id, through_seq, derived_seq, body in rows
        )
        few = None if len(rows) > _FEW else [row[0] for row in rows]
        plain_rows = self.keys.decrypt_each(user_id, encrypted_rows, few)
        for (session_id, through_seq, derived_seq, _), packed in zip(
            rows, plain_rows, strict=True
        ):
            if packed is None:
                continue
            try:
                body = orjson.loads(unpack(packed))
            except ValueError:
                continue
            yield ports.NamedView(session_id, through_seq, derived_seq, body)

    def save_view(
        self, stream: StreamId, name: str, view: ports.StoredView, *, replaces: int
    ) -> bool:
        key = self.keys.session(stream.user_id, stream.session_id, now=None)
        stream_text = written(stream)
        context = _view_context(stream_text, name, view.through_seq, view.derived_seq)
        row = ViewRow(
            through_seq=view.through_seq,
            derived_seq=view.derived_seq,
            body=encrypt(key.cipher, pack(canonical(view.body)), context),
            main_spans=orjson.dumps(view.shows).decode(),
            derived_spans=orjson.dumps(view.shows_derived).decode(),
        )
        return self.recorder.save_view_row(
            stream, name, row, replaces=replaces, key_check=key.check
        )

    def snapshot(
        self, stream: StreamId, name: str, *, shown: bool = False
    ) -> ports.SessionSnapshot:
        return _twice(lambda: self._read_snapshot(stream, name, shown=shown))

    def _read_snapshot(
        self, stream: StreamId, name: str, *, shown: bool
    ) -> ports.SessionSnapshot:
        """Read everything that a context is made of, at one moment.

        If a row cannot be decrypted, new rows are read one by one: the context may not
        need that row.
        """
        cached_events = self._shown_events(stream, name) if shown else None
        known_seqs = None
        if cached_events is not None:
            known_seqs = (
                cached_events.view.through_seq,
                cached_events.view.derived_seq,
            )
        rows = self.recorder.snapshot(
            stream, name, shown=shown, limit=ports.PAGE, known=known_seqs
        )
        head = self.open_head(stream, rows.head)
        if cached_events is not None and not self._is_of(
            cached_events, stream, rows.view
        ):
            # The rows of a view with other seqs were read.
            lacks_rows = (
                rows.view is not None and rows.view[:2] == cached_events.view[:2]
            )
            cached_events = None
            if lacks_rows:
                rows = self.recorder.snapshot(
                    stream, name, shown=shown, limit=ports.PAGE
                )
                head = self.open_head(stream, rows.head)
        view = self._view(stream, name, rows.view)
        try:
            return self._decrypted_snapshot(
                stream, name, head, view, rows, cached_events
            )
        except errors.CorruptEvent:
            from_view = view or ports.StoredView(0, 0)
            new = self.read(stream, after=from_view.through_seq, limit=ports.PAGE)
            derived = self.read(
                stream._replace(stream=name),
                after=from_view.derived_seq,
                limit=ports.PAGE,
            )
            return ports.SessionSnapshot(head, view, new=new, derived=derived)

    def _shown_events(self, stream: StreamId, name: str) -> ShownEvents | None:
        """Return the events that the view of this name shows, if they are cached."""
        cached = self.keys.cached(stream.user_id, stream.session_id)
        shown_events: ShownEvents | None = None if cached is None else cached.shown
        if shown_events is None or shown_events.name != name:
            return None
        return shown_events

    def _is_of(
        self, cached_events: ShownEvents, stream: StreamId, view: ViewRow | None
    ) -> bool:
        """Whether these are the events of a view that was read now.

        They are not if the view or the key of the session is another one.  A key is
        another one after a redaction that removed something from stored events.
        """
        if view is None or view.body != cached_events.view.body:
            return False
        return self._shown_events(stream, cached_events.name) is cached_events

    def _decrypted_snapshot(
        self,
        stream: StreamId,
        name: str,
        head: ports.Head,
        view: ports.StoredView | None,
        rows: SnapshotRows,
        cached_events: ShownEvents | None,
    ) -> ports.SessionSnapshot:
        """Decrypt rows of a session, and cache them for the next reading.

        cached_events: the events that the view shows, which ``rows`` then lack.
        """
        parts = (rows.shown, rows.summaries, rows.new_main, rows.new_derived)
        if not any(parts) and cached_events is None:
            return ports.SessionSnapshot(head, view, [], [], [], [])
        key = self.keys.session(stream.user_id, stream.session_id, now=None)
        taken = 0 if cached_events is None else cached_events.size
        reading = Reading(key.decrypted.rows, taken)
        to_envelope = self.mapper.to_domain_event
        shown, summaries, new, derived = (
            [to_envelope(row, reading) for row in part] for part in parts
        )
        if cached_events is not None:
            shown, summaries = cached_events.events(to_envelope)
        elif rows.view is not None and rows.shown and reading.has_all:
            cached_events = ShownEvents(
                name,
                rows.view,
                zip(rows.shown, shown, strict=True),
                zip(rows.summaries, summaries, strict=True),
                reading.decrypted,
            )
        self.keys.cache_rows(key.decrypted, reading.decrypted, cached_events)
        remembered = None if cached_events is None else cached_events.remembered
        return ports.SessionSnapshot(
            head, view, shown, summaries, new, derived, remembered
        )

    def pseudonym_key(self, user_id: str, *, now: int) -> bytes:
        """Return the key for this user's pseudonyms, derived from the user's key."""
        return user_key(self.recorder, self.keys, user_id, now=now).mac("pseudonym")

    def session_proof_key(self, stream: StreamId) -> bytes:
        """Return a key for proofs about this session, derived from its key."""
        key = self.keys.session(stream.user_id, stream.session_id, now=None)
        # Nothing else is encrypted with this nonce.
        secret = key.cipher.encrypt(bytes(12), b"proof", b"derived")
        return hashlib.sha256(secret).digest()

    def encrypt_link(self, names: bytes) -> bytes:
        return self.keys.encrypt_link(names)

    def decrypt_link(self, ciphertext: bytes) -> bytes | None:
        return self.keys.decrypt_link(ciphertext)

    def key(self, stream: StreamId) -> SessionKey:
        """Return the session's key, with which its rows were encrypted.

        Raises KeyUnavailable if this key does not exist.
        """

        def read() -> SessionKey:
            row = self.recorder.head_row(stream.main)
            return self._key_of(stream, row.key_check if row else b"")

        return _twice(read)

    def _key_of(self, stream: StreamId, check: bytes) -> SessionKey:
        """Return the session's key with this check.  Raises KeyUnavailable."""
        key = self.keys.session(
            stream.user_id, stream.session_id, now=None, check=check
        )
        if check and key.check != check:
            raise errors.KeyUnavailable(
                f"session {stream.session_id!r} was written with another key",
                remedy="restore the key store that belongs to this database",
            )
        return key


def user_key(recorder: Recorder, keys: KeyRing, user_id: str, *, now: int) -> UserKey:
    """Return the user's key; makes one for a new user, but never for a lost key."""
    try:
        return keys.user(user_id, now=None)
    except errors.KeyUnavailable:
        if recorder.knows(user_id):
            raise
    return keys.user(user_id, now=now)


def _drafts(keys: Sequence[ports.Keyed]) -> dict[int, tuple[str, int]]:
    """Return the key of each event's draft and the event's index in the draft.

    They are returned by the index of the event in the append.
    """
    drafts: dict[int, tuple[str, int]] = {}
    for keyed in keys:
        for index in range(keyed.events):
            drafts[keyed.first + index] = (_OF_DRAFT + keyed.key, index)
    return drafts


def _receipts(request: ports.Append, key: SessionKey) -> tuple[Use, ...]:
    """Return the receipts of an append: for its key, and for those of its drafts."""
    stream = request.state.stream
    base_seq = request.base.seq
    receipts = []
    for keyed in request.keys:
        address = receipt_address(key.user, stream, _OF_DRAFT + keyed.key)
        first_seq = base_seq + keyed.first + 1
        receipts.append(Use(address, first_seq, base_seq + keyed.first + keyed.events))
    if request.idempotency_key is not None:
        address = receipt_address(key.user, stream, request.idempotency_key)
        receipts.append(Use(address, base_seq + 1, request.state.head_seq))
    return tuple(receipts)


def _twice(read: Callable[[], T]) -> T:
    """Read a row and its key, and once more if the key does not exist.

    A rewriting may have replaced the key after the row was read.
    """
    try:
        return read()
    except errors.KeyUnavailable:
        return read()


def _view_context(stream: str, name: str, through_seq: int, derived_seq: int) -> bytes:
    """Return the context that a view is encrypted for.

    stream: as ``written`` returns it.
    """
    seqs = b"%d %d" % (through_seq, derived_seq)
    return length_prefixed((b"view", stream.encode(), name.encode(), seqs))


def _view_contexts(user_id: str, name: str) -> Callable[[str, int, int], bytes]:
    """Return ``_view_context`` for views of one name of many sessions of a user.

    The parts that all of them share are made once.  ``written`` would push the streams
    of appends out of its cache.
    """
    kind = length_prefixed((b"view",))
    quoted_user = quoted_id(user_id)
    length_and_name = length_prefixed((name.encode(),))
    ends: dict[tuple[int, int], bytes] = {}  # few short sessions have other seqs

    def context(session_id: str, through_seq: int, derived_seq: int) -> bytes:
        stream = f"{quoted_user}/{quoted_id(session_id)}/{MAIN}".encode()
        end = ends.get((through_seq, derived_seq))
        if end is None:
            seqs = b"%d %d" % (through_seq, derived_seq)
            end = length_and_name + pack_length(len(seqs)) + seqs
            ends[through_seq, derived_seq] = end
        return kind + pack_length(len(stream)) + stream + end

    return context


def _spans(text: Any) -> tuple[Span, ...]:
    """Read spans from JSON."""
    return tuple((first, last) for first, last in orjson.loads(text))
