"""The event log over any recorder: seals and writes, reads and opens, proves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, TypeVar
from uuid import UUID

import orjson
from cryptography.exceptions import InvalidTag
from eventsourcing.persistence import (
    AggregateRecorder,
    EventStore,
    InfrastructureFactory,
    InfrastructureFactoryError,
    Mapper,
    ProcessRecorder,
    TrackingRecorder,
)

from refold.adapters.erasure import SealedErasures, SealedKeeping, SealedMends
from refold.adapters.heads import (
    Blobs,
    check_not_erased,
    head_of,
    opened_head,
    sealed_head,
)
from refold.adapters.keys.ring import (
    KeyRing,
    SessionKey,
    UserKey,
    idempotent_id,
    receipt_address,
    seal,
    uuid7,
)
from refold.adapters.keys.store import NO_REFS, Refs
from refold.adapters.recorder import (
    Batch,
    HeadRow,
    Moved,
    Recorder,
    ViewRow,
    WriteOutcome,
    Wrote,
)
from refold.adapters.rewriting import Rewriter
from refold.adapters.rows import (
    EncryptedEvent,
    EncryptingMapper,
    PlacedEvent,
    envelope_of,
    new_header,
    pack,
    unpack,
)
from refold.adapters.seals.tree import sealed_problems
from refold.adapters.verification import Auditor
from refold.domain.canonical import canonical
from refold.domain.chain import length_prefixed
from refold.domain.envelope import Envelope
from refold.domain.erasure import ErasureSteps
from refold.domain.errors import CorruptEvent, KeyUnavailable, StoreUnavailable
from refold.domain.events import JsonObject, Span
from refold.domain.ids import MAIN, StreamId
from refold.domain.ports import (
    EVERYTHING,
    PAGE,
    Append,
    Appended,
    Conflict,
    Duplicate,
    Head,
    Lagging,
    Leases,
    Outcome,
    Place,
    Problem,
    Rewriting,
    Rewritten,
    Scope,
    SessionInfo,
    Standing,
    StoredView,
)
from refold.domain.session import SessionState
from refold.redaction.chokepoint import RedactedEvent


def batch_of(log: EncryptedLog, request: Append, key: SessionKey) -> Batch:
    """The rows of an append, sealed under this key."""
    stream, base = request.state.stream, request.base
    rows = _seal(log, request, key)
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
    head = sealed_head(head, request.state, key)
    receipt = None
    if request.idempotency_key is not None:
        receipt = receipt_address(key.user, stream, request.idempotency_key)
    cut = [blob for event in request.events for blob in event.blobs]
    blobs = Blobs(log.recorder, log.keys, stream.main).rows(cut, key)
    refs = NO_REFS if base.seq else _refs(log, request, key)
    return Batch(stream, base.seq, base.hash, head, rows, blobs, receipt, refs)


def _refs(log: EncryptedLog, request: Append, key: SessionKey) -> Refs:
    refs, origin = log.keys.refs(key.user, request.state.stream), None
    if request.state.stream.stream == MAIN:
        origin = request.state.forked_from
    return refs._replace(origin=origin[0]) if origin else refs


def vanished(log: EncryptedLog, request: Append, error: KeyUnavailable) -> Outcome:
    """What became of a stream whose key is gone: was it erased, and let in again?

    Raises ``error`` if it is there all the same, Erased.
    """
    stream = request.state.stream
    if log.recorder.head_row(stream) is not None:
        raise error
    return Conflict(log.open_head(stream, None))


def _seal(
    log: EncryptedLog, request: Append, key: SessionKey
) -> tuple[EncryptedEvent, ...]:
    mapper, rows = log.mapper, []
    stream, seq, prev = request.state.stream, request.base.seq, request.base.hash
    for index, event in enumerate(request.events):
        if not isinstance(event, RedactedEvent):
            raise TypeError("only an event that passed redaction can be written")
        seq += 1
        event_id = _event_id(request, key, index)
        header = new_header(stream, seq, event, event_id)
        row = mapper.seal(PlacedEvent(event, header, prev), key)
        rows.append(row)
        prev = row.hash
    return tuple(rows)


def _event_id(request: Append, key: SessionKey, index: int) -> UUID:
    if request.idempotency_key is None:
        return uuid7(request.now)
    session_id = request.state.stream.session_id
    return idempotent_id(key.user, session_id, request.idempotency_key, index)


@dataclass(frozen=True, slots=True)
class Views:
    """The stored views of all sessions."""

    recorder: Recorder
    keys: KeyRing

    def load(self, stream: StreamId, name: str) -> StoredView | None:
        """The stored state of a projection; empty if it is not what was stored."""
        return self.opened(stream, name, self.recorder.view_row(stream, name))

    def opened(
        self, stream: StreamId, name: str, row: ViewRow | None
    ) -> StoredView | None:
        """What a row holds; empty if it is not what was stored."""
        if row is None:
            return None
        main, made = _seq(row.through_seq), _seq(row.derived_seq)
        context = _context(stream, name, main, made)
        try:
            shows, derived = _spans(row.main_spans), _spans(row.derived_spans)
            plain = self.keys.unseal(*stream[:2], row.body, context)
            body = orjson.loads(unpack(plain))
        except (InvalidTag, TypeError, ValueError):  # SQLite takes any type anywhere
            return StoredView(main, made)
        return StoredView(main, made, body, shows, derived)

    def save(
        self, stream: StreamId, name: str, view: StoredView, *, replaces: int
    ) -> bool:
        """Store it if the stored one stands at ``replaces``."""
        key = self.keys.session(stream.user_id, stream.session_id, now=None)
        context = _context(stream, name, view.through_seq, view.derived_seq)
        body = seal(key.cipher, pack(canonical(view.body)), context)
        spans = (orjson.dumps(s).decode() for s in (view.shows, view.shows_derived))
        row = ViewRow(view.through_seq, view.derived_seq, body, *spans)
        return self.recorder.save_view_row(
            stream, name, row, replaces=replaces, key_check=key.check
        )


def standing(
    log: EncryptedLog, stream: StreamId, name: str, *, shown: bool
) -> Standing:
    """How a session stands: head, stored view and what is behind it, in one read.

    Where a row does not open they are read apart: it may be one that nobody needs.
    """
    found = log.recorder.standing(stream, name, shown=shown, limit=PAGE)
    head = log.open_head(stream, found.head)
    view = Views(log.recorder, log.keys).opened(stream, name, found.view)
    try:
        return Standing(head, view, *(_opened(log, rows) for rows in found[2:]))
    except CorruptEvent:
        known, derived = view or StoredView(0, 0), stream._replace(stream=name)
        new = log.read(stream, after=known.through_seq, limit=PAGE)
        made = log.read(derived, after=known.derived_seq, limit=PAGE)
        return Standing(head, view, new=new, derived=made)


def _context(stream: StreamId, name: str, through: int, derived: int) -> bytes:
    place = b"%d %d" % (through, derived)
    return length_prefixed((b"view", str(stream).encode(), name.encode(), place))


def _seq(written: object) -> int:
    return written if isinstance(written, int) else 0


def _spans(written: str) -> tuple[Span, ...]:
    return tuple((first, last) for first, last in orjson.loads(written))


def _opened(log: EncryptedLog, rows: list[EncryptedEvent]) -> list[Envelope]:
    return log.opened(lambda: rows)


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EncryptedLog:
    """An EventLog: a recorder for the rows, a key ring for what is in them."""

    recorder: Recorder
    keys: KeyRing

    @property
    def mapper(self) -> EncryptingMapper:
        """The one way in and out of the rows."""
        return EncryptingMapper(self.keys)

    def head(self, stream: StreamId) -> Head:
        """The stream's end; seq 0 if there is no such stream."""
        return _twice(lambda: self.open_head(stream, self.recorder.head_row(stream)))

    def append(self, request: Append) -> Outcome:
        """Write all of the events after the base, or nothing."""
        if request.base.seq == 0:
            self._admit(request)
        try:
            batch = self._batch(request)
        except KeyUnavailable as error:
            return vanished(self, request, error)
        with self._erased_first(request.state.stream):
            written = self.recorder.write(batch)
        return self._outcome(request, written)

    def append_soon(
        self, request: Append, done: Callable[[Outcome | Exception], None]
    ) -> bool:
        """``append`` for who cannot wait; False if too much is waiting already."""

        def opened(outcome: WriteOutcome | Exception) -> None:
            result: Outcome | Exception
            try:
                if isinstance(outcome, Exception):
                    result = outcome
                else:
                    result = self._outcome(request, outcome)
            except Exception as error:
                result = error
            done(result)

        try:
            batch = self._batch(request)
        except KeyUnavailable:
            return False  # ``append`` finds out why
        return self.recorder.write_soon(batch, opened)

    def append_exclusive(
        self, stream: StreamId, build: Callable[[Head], Append]
    ) -> Outcome:
        """Append what ``build`` makes of the head, while nobody else can move it."""
        requests: list[Append] = []

        def batch(row: HeadRow | None) -> Batch:
            request = build(self.open_head(stream, row))
            requests.append(request)
            if request.base.seq == 0:
                self._admit(request)
            return self._batch(request)

        with self._erased_first(stream):
            outcome = self.recorder.write_exclusive(stream, batch)
        return self._outcome(requests[-1], outcome)

    @contextmanager
    def _erased_first(self, stream: StreamId) -> Iterator[None]:
        """Where the database is busy, say so only of what is not erased meanwhile.

        An erasure keeps it busy, and who waits for that in vain would try again.
        """
        try:
            yield
        except StoreUnavailable:
            with suppress(StoreUnavailable, KeyUnavailable):
                self._nothing(stream)
            raise

    def receipt(self, stream: StreamId, idempotency_key: str) -> Duplicate | None:
        """The seqs that were written under this key, if it was used."""
        row = self.recorder.head_row(stream)
        if row is None:
            return None
        check_not_erased(stream, row)
        user = self.keys.user(stream.user_id, now=None)
        address = receipt_address(user, stream, idempotency_key)
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
        spans: Sequence[Span] = (),
    ) -> list[Envelope]:
        """The events with ``after < seq <= upto``, in order."""
        rows = partial(
            self.recorder.rows,
            stream,
            after=after,
            upto=upto,
            limit=limit,
            types=types,
            newest=newest,
            spans=spans,
        )
        found = self.opened(rows)
        return found or self._nothing(stream)

    def _nothing(self, stream: StreamId) -> list[Envelope]:
        """No events, unless they were erased."""
        row = self.recorder.head_row(stream.main)
        if row is None:
            self.keys.refuse_erased(stream.user_id, stream.session_id)
        else:
            check_not_erased(stream, row)
        return []

    def opened(self, rows: Callable[[], list[EncryptedEvent]]) -> list[Envelope]:
        """The envelopes of ``rows``, read a second time if they do not open.

        Between reading them and having their key, a rewriting may have ended.
        """
        try:
            return self.mapper.open_all(rows())
        except CorruptEvent:
            return [envelope_of(row, self.content(row)) for row in rows()]

    def audit(self, stream: StreamId) -> Iterator[Envelope | Problem]:
        """Every event with its chain proved, then the head; or what is wrong."""
        yield from Auditor(self, stream).run()
        yield from sealed_problems(self.recorder.tree, stream)

    @property
    def shared(self) -> bool:
        """Whether other processes that open it see the same log."""
        return self.recorder.shared

    def audit_chain(self, stream: StreamId) -> Iterator[int | Problem]:
        """How many events each page has, its chain proved, or what is wrong with it."""
        yield from Auditor(self, stream).chain()
        yield from sealed_problems(self.recorder.tree, stream)

    def sessions(
        self, user_id: str | None = None, *, session_id: str | None = None
    ) -> list[SessionInfo]:
        """The sessions of a user, or of all, by user and name."""
        return self.recorder.sessions(user_id, session_id)

    def streams(self, user_id: str, session_id: str) -> list[str]:
        """The names of the session's streams, the main one first."""
        return self.recorder.streams(user_id, session_id)

    def orphans(self, scope: Scope = EVERYTHING) -> list[Problem]:
        """Streams that have events and no head: their session is not listed."""
        return [
            Problem(*stream, None, "head", "the stream has no head row")
            for stream in self.recorder.orphans(scope)
        ]

    def blob(self, stream: StreamId, sha256: str) -> bytes | None:
        """The whole text of that digest, if an event of this session was cut."""
        try:
            found = Blobs(self.recorder, self.keys, stream.main).read(sha256)
        except CorruptEvent:
            self.key(stream)
            raise
        if found is None:
            self._nothing(stream)
        return found

    def load_view(self, stream: StreamId, name: str) -> StoredView | None:
        """The stored state of a projection; empty if it is not what was stored."""
        return self._views.load(stream, name)

    def save_view(
        self, stream: StreamId, name: str, view: StoredView, *, replaces: int
    ) -> bool:
        """Store it if the stored one stands at ``replaces``."""
        return self._views.save(stream, name, view, replaces=replaces)

    @property
    def _views(self) -> Views:
        return Views(self.recorder, self.keys)

    def standing(self, stream: StreamId, name: str, *, shown: bool = False) -> Standing:
        """Head, stored view and what is behind it, in one read."""
        return _twice(lambda: standing(self, stream, name, shown=shown))

    def view_names(self, user_id: str, session_id: str) -> list[str]:
        """The names of the projections that are kept for this session."""
        return self.recorder.view_names(user_id, session_id)

    def pseudonym_key(self, user_id: str, *, now: int) -> bytes:
        """What this user's pseudonyms are made with, derived from the user's key."""
        return self._user(user_id, now=now).mac("pseudonym")

    def _user(self, user_id: str, *, now: int) -> UserKey:
        """The user's key; a new user's is made, but never in place of a lost one."""
        try:
            return self.keys.user(user_id, now=None)
        except KeyUnavailable:
            if self.recorder.knows(user_id):
                raise
        return self.keys.user(user_id, now=now)

    def drop_views(self, user_id: str, session_id: str) -> None:
        """Forget the stored views of this session."""
        self.recorder.drop_views(user_id, session_id)

    def rewrite(self, stream: StreamId, rewriting: Rewriting, *, now: int) -> Rewritten:
        """Replace what ``rewriting`` changes, and seal the session under a new key."""
        with self._erased_first(stream):
            return Rewriter(self, stream.main, rewriting, now).run()

    def retire_keys(self, stream: StreamId) -> int:
        """Destroy the keys that a rewriting which was cut off left; how many."""
        if not self.retired_keys(stream):
            return 0
        self.recorder.flush()
        return self.keys.retire(*stream[:2], before=self.key(stream))

    def retired_keys(self, stream: StreamId) -> int:
        """How many keys of before a rewriting are not destroyed yet."""
        return self.keys.older(*stream[:2], than=self.key(stream))

    @property
    def leases(self) -> Leases:
        """The leases of all derived streams."""
        return self.recorder

    def lagging(
        self, scope: Scope, *, by: int, limit: int, after: Place | None = None
    ) -> list[Lagging]:
        """Stored views that are behind by so many events."""
        return self.recorder.lagging(scope, by=by, limit=limit, after=after)

    def stats(self, scope: Scope, *, now: int) -> dict[str, Any]:
        """Sizes, rates, how far views are behind, and keys that should be gone."""
        found = self.recorder.stats(scope, now=now)
        return {**found, "retired_keys": self.keys.surplus(*scope)}

    @property
    def erasures(self) -> ErasureSteps:
        """What erases."""
        return SealedErasures(self.recorder, self.keys)

    @property
    def retention(self) -> SealedKeeping:
        """What freezes users, and knows which sessions are used."""
        return SealedKeeping(self.recorder, self.keys)

    @property
    def repairs(self) -> SealedMends:
        """What repairs."""
        return SealedMends(self, self.recorder.mending())

    def close(self) -> None:
        """Let go of the database and of the keys."""
        self.recorder.close()
        self.keys.close()

    def _admit(self, request: Append) -> None:
        """Make a new session's key, but never in place of one that was lost.

        The key store is asked, not what this process remembers: the user may have been
        erased since.
        """
        user_id, session_id, _ = stream = request.state.stream
        if self.recorder.head_row(stream.main) is not None:
            self.key(stream)
            return
        self.keys.forget(user_id, session_id)
        if self.recorder.knows(user_id):
            self.keys.user(user_id, now=None)
        self.keys.session(user_id, session_id, now=request.now)

    def _batch(self, request: Append) -> Batch:
        stream = request.state.stream
        key = self.keys.session(stream.user_id, stream.session_id, now=None)
        return self.batch(request, key)

    def batch(self, request: Append, key: SessionKey) -> Batch:
        """The rows of an append, sealed under this key."""
        return batch_of(self, request, key)

    def _outcome(self, request: Append, outcome: WriteOutcome) -> Outcome:
        match outcome:
            case Wrote(head=row):
                return Appended(head_of(request.state, row))
            case Moved(head=row):
                if request.base.seq == 0 and (origin := request.state.forked_from):
                    self.head(request.state.stream._replace(session_id=origin[0]))
                return Conflict(self._head_after(request.state.stream, row))
            case Duplicate():
                return outcome

    def _head_after(self, stream: StreamId, row: HeadRow | None) -> Head:
        """The head that an append found in its way, or the one that is there since."""
        self.retention.refuse_frozen(stream, row)
        try:
            return self.open_head(stream, row)
        except KeyUnavailable:
            return self.head(stream)

    def content(self, row: EncryptedEvent) -> JsonObject:
        """What was sealed in a row.

        Raises CorruptEvent, KeyUnavailable if it was sealed under another key.
        """
        try:
            return self.mapper.open(row)
        except CorruptEvent:
            self.key(row.columns[0])
            raise

    def key(self, stream: StreamId) -> SessionKey:
        """The session's key, if it is the one its rows were written with.

        Raises KeyUnavailable if that one is not there.
        """
        return _twice(lambda: self._key_of(stream, self._check(stream)))

    def _check(self, stream: StreamId) -> bytes:
        row = self.recorder.head_row(stream.main)
        return row.key_check if row else b""

    def _key_of(self, stream: StreamId, check: bytes) -> SessionKey:
        key = self.keys.session(*stream[:2], now=None, check=check)
        if check and key.check != check:
            raise KeyUnavailable(
                f"session {stream.session_id!r} was written with another key",
                remedy="restore the key store that belongs to this database",
            )
        return key

    def open_head(self, stream: StreamId, row: HeadRow | None) -> Head:
        """What a head row says.  Raises Erased, CorruptEvent, KeyUnavailable."""
        if row is None:
            self.keys.refuse_erased(stream.user_id, stream.session_id)
            return Head(SessionState(stream))
        check_not_erased(stream, row)
        return opened_head(stream, row, self._key_of(stream, row.key_check))


def _twice(read: Callable[[], T]) -> T:
    """Read a row and find its key, again if a rewriting ended between the two."""
    try:
        return read()
    except KeyUnavailable:
        return read()


class LogFactory(InfrastructureFactory[TrackingRecorder]):
    """Hands out the one recorder and the one mapper of a store.

    Projections of that library can follow the log (``eventsourcing.SessionLog``); what
    they track they keep in a view of their own.
    """

    def __init__(self, recorder: Recorder, keys: KeyRing) -> None:
        super().__init__({})
        self._recorder, self._keys = recorder, keys

    def log(self) -> EncryptedLog:
        """The event log over this recorder and these keys."""
        return EncryptedLog(self._recorder, self._keys)

    def mapper(self, transcoder: Any = None, mapper_class: Any = None) -> Mapper[Any]:
        """The encrypting mapper; another one would write what nobody may read."""
        if transcoder is not None or mapper_class is not None:
            raise InfrastructureFactoryError("a Refold log is sealed by its own mapper")
        return EncryptingMapper(self._keys)

    def application_recorder(self) -> Recorder:
        """The recorder of the log."""
        return self._recorder

    def aggregate_recorder(self, purpose: str = "events") -> AggregateRecorder:
        """The same recorder; there are no snapshots, a stored view is one."""
        if purpose != "events":
            raise InfrastructureFactoryError(f"a Refold log keeps no {purpose}")
        return self._recorder

    def event_store(self, mapper: Any = None, recorder: Any = None) -> EventStore[Any]:
        """An event store that reads envelopes by the name of their stream."""
        return EventStore(mapper or self.mapper(), recorder or self._recorder)

    def tracking_recorder(
        self,
        tracking_recorder_class: Any = None,  # noqa: ARG002  # the library's
    ) -> NoReturn:
        """There is none: a follower tracks its place in a database of its own."""
        raise InfrastructureFactoryError(
            "a Refold log tracks nobody's progress: keep it in a view, with "
            "PERSISTENCE_MODULE=refold.adapters.eventsourcing"
        )

    def process_recorder(self) -> ProcessRecorder:
        """There is none, for the same reason."""
        return self.tracking_recorder()

    def close(self) -> None:
        """Let go of the database and of the keys."""
        self.log().close()
