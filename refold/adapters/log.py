"""The event log over any recorder: seals and writes, reads and opens, proves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from refold.adapters.auditing import Auditor
from refold.adapters.batching import batch_of, vanished
from refold.adapters.blobs import Blobs
from refold.adapters.erasing import SealedErasures
from refold.adapters.heads import check_not_erased, head_of, opened_head
from refold.adapters.keeping import SealedKeeping
from refold.adapters.keys import KeyRing, SessionKey, UserKey, receipt_address
from refold.adapters.mending import SealedMends
from refold.adapters.recorder import (
    Batch,
    HeadRow,
    Moved,
    Recorder,
    WriteOutcome,
    Wrote,
)
from refold.adapters.rewriting import Rewriter
from refold.adapters.sealed_streams import sealed_problems
from refold.adapters.sealing import SealedEvent, SealingMapper, envelope_of
from refold.adapters.views import Views, standing
from refold.domain.envelope import Envelope
from refold.domain.erasure import Erasures
from refold.domain.errors import CorruptEvent, KeyUnavailable
from refold.domain.events import JsonObject, Span
from refold.domain.ids import StreamId
from refold.domain.ports import (
    Append,
    Appended,
    Conflict,
    Duplicate,
    Head,
    Leases,
    Outcome,
    Problem,
    Rewriting,
    Rewritten,
    SessionInfo,
    Standing,
    StoredView,
)
from refold.domain.session import SessionState
from refold.domain.sizes import EVERYTHING, Lagging, Place, Scope

T = TypeVar("T")


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
        return _twice(lambda: self.open_head(stream, self.recorder.head_row(stream)))

    def append(self, request: Append) -> Outcome:
        """Write all of the events after the base, or nothing."""
        if request.base.seq == 0:
            self._admit(request)
        try:
            batch = self._batch(request)
        except KeyUnavailable as error:
            return vanished(self, request, error)
        return self._outcome(request, self.recorder.write(batch))

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

        outcome = self.recorder.write_exclusive(stream, batch)
        return self._outcome(requests[-1], outcome)

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

    def opened(self, rows: Callable[[], list[SealedEvent]]) -> list[Envelope]:
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
    def erasures(self) -> Erasures:
        """What erases."""
        return SealedErasures(self.recorder, self.keys)

    @property
    def keeping(self) -> SealedKeeping:
        """What freezes users, and knows which sessions are used."""
        return SealedKeeping(self.recorder, self.keys)

    @property
    def mends(self) -> SealedMends:
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
        self.keeping.refuse_frozen(stream, row)
        try:
            return self.open_head(stream, row)
        except KeyUnavailable:
            return self.head(stream)

    def content(self, row: SealedEvent) -> JsonObject:
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
