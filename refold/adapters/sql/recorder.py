"""The recorder: rows in and out of a database, one batch or one statement at a time.

It implements the interfaces of the eventsourcing library and knows no keys.  It writes
a batch with one compare-and-set on its stream's head row, and takes only what the
encrypting mapper made.  What sessions wait for is written out, as one statement each:
to build a query anew costs more than to run it.  A ``?`` in it is a parameter.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from itertools import count, islice
from threading import Event
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from uuid import UUID

from eventsourcing.persistence import (
    ApplicationRecorder,
    Notification,
    StoredEvent,
    Subscription,
)
from sqlalchemy import Connection, Select, delete, insert, select, tuple_, update

from refold.adapters.rows import (
    Batch,
    EncryptedEvent,
    HeadRow,
    Heads,
    NotInserted,
    QueueFull,
    Rewrite,
    StandingRows,
    ViewRow,
    WriteOutcome,
    Wrote,
    stored,
)
from refold.adapters.sql.database import NOBODY, Database, Write
from refold.adapters.sql.tables import (
    FIRST,
    LAST,
    filled,
    of_stream,
    statements,
    stream_of,
    within,
)
from refold.domain import ports
from refold.domain.chain import GENESIS, encoded
from refold.domain.envelope import from_microseconds
from refold.domain.errors import CorruptEvent, KeyUnavailable, StoreUnavailable
from refold.domain.events import Span
from refold.domain.ids import MAIN, StreamId
from refold.domain.ports import JUNK, RATES, Lagging, Place, Scope, SessionInfo
from refold.domain.seals import Use

_KEYS: Final = 500  # in one statement
_RANGES: Final = 100  # in one statement: SQLite takes at most 500
_ROWS: Final = 10_000  # at once, without what is encrypted in them
_ENDS: Final = 1_000  # streams of one page
COLUMNS: Final = (
    "seq",
    "type",
    "ts",
    "event_id",
    "token_estimate",
    "schema_version",
    "hash",
    "body",
    "first_digest",
)
# Of its head, in the order of SessionInfo.
_SESSION: Final = (
    "user_id",
    "session_id",
    "seq",
    "status",
    "tokens",
    "created_at",
    "updated_at",
)
_SQL: Final = statements("recorder")
_GENERATION: Final = "key_generation"
_DONE: Final = ""  # the owner of a mark: nobody is at work
SubjectStatus: TypeAlias = Literal["live", "frozen", "erasing", "erased"]
_HEAD_ROW, _VIEW_ROW, _NEW, _DERIVED, _SHOWN, _SUMMARIES = range(6)


class Recorder(ApplicationRecorder):
    """The rows of a store.

    ``shared``: other processes that open it see the same.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self._t = database.tables
        self._group = database.grouped()
        self.shared = not database.in_memory

    def insert_events(
        self,
        stored_events: Sequence[StoredEvent],
        *,
        batch: Batch | None = None,
        done: Callable[[WriteOutcome | Exception], None] | None = None,
        write: Write | None = None,
        **_: Any,
    ) -> Sequence[int] | None:
        """Write events with the ``batch`` that they are of; durable when it returns.

        Those of several threads share a commit.  ``done`` is for who cannot wait: it is
        called once, maybe in another thread, with the outcome or the error, must return
        at once and raise nothing.  ``write`` is what writes in a transaction that is
        open already.

        Raises NotInserted where the head is elsewhere or the receipt there, QueueFull
        if ``done`` would be waited for too long, TypeError for events that the
        encrypting mapper did not make.
        """
        if type(batch) is not Batch or tuple(stored_events) != batch.events:
            raise TypeError("events are written with the head that goes with them")
        if done is not None:
            if not self.write_soon(batch, done):
                raise QueueFull("too many appends are waiting already")
            return None
        outcome = write(batch) if write else self.write(batch)
        if not isinstance(outcome, Wrote):
            raise NotInserted(outcome)
        return None

    def write(self, batch: Batch) -> WriteOutcome:
        """Write the batch or nothing, together with others; durable when it returns."""
        if self.database.fences.held:
            with self.database.errors:
                return self.database.hold_head(
                    batch.stream, lambda _head, write: write(batch)
                )
        try:
            return self._group.write(batch)
        except Exception as error:
            raise self.database.translate(error) or error from None

    def write_soon(
        self, batch: Batch, done: Callable[[WriteOutcome | Exception], None]
    ) -> bool:
        """``write`` for who cannot wait; False if too much is waiting already."""

        def translated(outcome: WriteOutcome | Exception) -> None:
            if isinstance(outcome, Exception):
                outcome = self.database.translate(outcome) or outcome
            done(outcome)

        return self._group.submit(batch, translated)

    def write_exclusive(
        self, stream: StreamId, build: Callable[[HeadRow | None], Batch]
    ) -> WriteOutcome:
        """Write what ``build`` makes of the head while the head cannot move."""

        def work(row: HeadRow | None, write: Write) -> WriteOutcome:
            batch = build(row)
            try:
                self.insert_events(batch.events, batch=batch, write=write)
            except NotInserted as refused:
                return refused.outcome
            return Wrote(batch.head)

        with self.database.errors:
            return self.database.hold_head(stream, work)

    def rewrite(
        self, stream: StreamId, build: Callable[[Heads], Rewrite | None]
    ) -> bool:
        """Do what ``build`` makes of the session's heads while none can move.

        All views of the session are dropped with it.  False if ``build`` gave None
        and nothing was done.
        """

        def insert(batch: Batch, write: Write) -> None:
            try:
                self.insert_events(batch.events, batch=batch, write=write)
            except NotInserted:
                raise StoreUnavailable(
                    "the head moved while its session was encrypted anew",
                    remedy="try again",
                ) from None

        with self.database.errors:
            return self.database.rewrite(stream, build, insert)

    def flush(self) -> None:
        """Return when all that was written is durable, also where appends need not."""
        with self.database.errors:
            self.database.flush()

    def select_events(
        self,
        originator_id: UUID | str | StreamId,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
        types: Sequence[str] = (),
        spans: Sequence[Span] = (),
    ) -> Sequence[EncryptedEvent]:
        """The rows with ``gt < seq <= lte``, in order or from the end.

        ``types`` keeps only those.  ``spans``, in order and apart from each other, are
        asked for alone, and read at once.

        Raises CorruptEvent if a row cannot be one of ours.
        """
        stream, after = originator_id, gt or 0
        if not isinstance(stream, StreamId):
            stream = StreamId.parse(str(stream))
        if spans:
            return self._spans(stream, spans)
        if after >= LAST:
            return []
        scattered = bool(types) or desc
        query = _SQL["scattered" if scattered else "page"]
        values: list[Any] = [stream.user_id, *stream, *stream[:2], after]
        if not scattered:
            values.insert(0, after + 1)
        if lte is not None:
            query, values = f"{query} AND seq<=?", [*values, lte]
        if types:
            marks = ", ".join("?" * len(types))
            query, values = f"{query} AND type IN ({marks})", [*values, *types]
        query = f"{query} ORDER BY seq{' DESC' if desc else ''}"
        if limit is not None:
            query, values = f"{query} LIMIT ?", [*values, limit]
        found = self.database.fetch(stream.user_id, query, values)
        return rows_of(stream, found, apart=scattered)

    def plain(self, session: StreamId) -> Iterator[tuple[Any, ...]]:
        """What stands in plain of a session's events; nothing if it was erased."""
        names, place, full = session[:2], ("", 0), True
        while full:
            values = (*names, *names, *place, _ROWS)
            page = self.database.fetch(session.user_id, _SQL["plain"], values)
            yield from page
            if full := len(page) == _ROWS:
                place = page[-1][2:4]

    def _spans(self, stream: StreamId, spans: Sequence[Span]) -> list[EncryptedEvent]:
        """A range for each: of alternatives SQLite would look at every row."""
        found, user = list[Any](), stream.user_id
        for start in range(0, len(spans), _RANGES):
            chunk = spans[start : start + _RANGES]
            values = [
                value
                for first, last in chunk
                for value in (first, user, *stream, *stream[:2], first, last)
            ]
            query = f"{' UNION ALL '.join([_SQL['range']] * len(chunk))} ORDER BY seq"
            found += self.database.fetch(stream.user_id, query, values)
        return rows_of(stream, found)

    def standing(
        self, stream: StreamId, name: str, *, shown: bool, limit: int
    ) -> StandingRows:
        """Head, view and what is behind it, at most ``limit`` rows of each stream.

        ``shown`` asks for the rows too that the view names.  The derived stream is
        that of the view's name.
        """
        derived = stream._replace(stream=name)
        user = stream.user_id
        values: list[Any] = [*derived, *stream, user, *stream, limit]
        values += [user, *derived, limit]
        if shown:
            values += [user, *stream, user, *derived]
        parts: list[list[Sequence[Any]]] = [[] for _ in range(6)]
        query = _standing(self.database.each_span, shown=shown)
        for part, *row in self.database.fetch(stream.user_id, query, values):
            parts[part].append(row)
        return StandingRows(
            _head(parts[_HEAD_ROW]),
            _view(parts[_VIEW_ROW]),
            rows_of(stream, sorted(parts[_SHOWN])),
            rows_of(derived, sorted(parts[_SUMMARIES])),
            rows_of(stream, sorted(parts[_NEW])),
            rows_of(derived, sorted(parts[_DERIVED])),
        )

    def select_notifications(
        self,
        start: int | None,
        limit: int,
        stop: int | None = None,
        topics: Sequence[str] = (),
        *,
        inclusive_of_start: bool = True,
    ) -> Sequence[Notification]:
        """Rows by position, none of which a transaction in flight can still precede."""
        after = (start or 0) - (1 if inclusive_of_start and start else 0)
        found: list[Notification] = []
        while len(found) < limit:
            page = self._positioned(after, stop, limit)
            found += [
                _notification(row, position)
                for position, row in page
                if not topics or row.topic in topics
            ]
            if len(page) < limit:
                break
            after = page[-1][0]
        return found[:limit]

    def _positioned(
        self, after: int, upto: int | None, limit: int
    ) -> list[tuple[int, EncryptedEvent]]:
        query = self._settled("positioned")
        values = (after, LAST if upto is None else upto, limit)
        return [
            (row[0], row_of(StreamId(*row[1:4]), row[4:], bytes(row[-1] or GENESIS)))
            for row in self.database.fetch(None, query, values)
        ]

    def _settled(self, name: str) -> str:
        return filled(_SQL[name], settled=self.database.settled())

    def max_notification_id(self) -> int | None:
        """The highest position that no transaction in flight can still precede."""
        ((last,),) = self.database.fetch(None, self._settled("settled_position"), ())
        return None if last is None else int(last)

    def subscribe(
        self, gt: int | None = None, topics: Sequence[str] = ()
    ) -> Subscription[ApplicationRecorder]:
        """Follow the log from behind that position, some topics or all.

        Without an order of all events: from the beginning, each stream in its own.
        """
        if not self.database.ordered and not gt:
            return FollowingStreams(self, topics)
        return Following(self, gt, topics, every=0.5)

    def ends(self, *, after: StreamId | None) -> list[tuple[StreamId, int]]:
        """Streams and the seqs of their heads, in order, a bounded number of them."""
        found = self.database.fetch(None, _SQL["ends"], (*(after or FIRST), _ENDS))
        return [(StreamId(*row[:3]), row[3]) for row in found]

    def head_row(self, stream: StreamId) -> HeadRow | None:
        """The row of the stream's head."""
        found = self.database.fetch(stream.user_id, _SQL["head"], stream)
        return HeadRow(*found[0]) if found else None

    def receipt(self, stream: StreamId, key: bytes) -> ports.Duplicate | None:
        """The seqs that were written under this key, if it was used."""
        found = self.uses(stream, [key])
        return ports.Duplicate(*found[0][1:]) if found else None

    def uses(self, stream: StreamId, keys: Sequence[bytes]) -> list[Use]:
        """The receipts of these keys that are there."""
        found = list[Use]()
        for at in range(0, len(keys), _KEYS):
            some = keys[at : at + _KEYS]
            query = filled(_SQL["uses"], keys=", ".join("?" * len(some)))
            rows = self.database.fetch(stream.user_id, query, (*stream, *some))
            found += [Use(bytes(row[0]), *row[1:]) for row in rows]
        return found

    def knows(self, user_id: str) -> bool:
        """Whether the user has any session."""
        return bool(self.database.fetch(user_id, _SQL["knows"], (user_id,)))

    def status_of(self, user_ref: str) -> SubjectStatus:
        """Whether the user of that keyed hash is live, frozen or erased."""
        subject = Subjects(self.database).of(user_ref)
        return "live" if subject is None else subject.status

    def has_sessions(self) -> bool:
        """Whether there is any session at all."""
        return self.database.attempt(self.database.has_sessions)

    def sessions(
        self,
        user_id: str | None,
        session_id: str | None,
        *,
        labels: Sequence[bytes] = (),
        after: tuple[str, str] | None = None,
        limit: int | None = None,
    ) -> list[SessionInfo]:
        """Those of a user, or of all, by user and name, with labels at these places."""
        heads, marks = self._t.heads.c, self._t.labels.c
        query = select(*(heads[name] for name in _SESSION))
        mine = within(self._t.heads, Scope(user_id, session_id))
        query = query.where(heads.stream == MAIN, *mine)
        for address in labels:
            of_user = marks.user_id == user_id, marks.address == address
            labelled = select(marks.session_id).where(*of_user)
            query = query.where(heads.session_id.in_(labelled))
        place = heads.user_id, heads.session_id
        if after is not None:
            query = query.where(tuple_(*place) > tuple_(*after))
        query = query.order_by(*place).limit(limit)
        return [
            SessionInfo(*row[:5], *map(from_microseconds, row[5:]))
            for row in self.database.read(user_id, query)
        ]

    def streams(self, user_id: str, session_id: str) -> list[str]:
        """The names of the session's streams, the main one first."""
        values = user_id, session_id
        names = [row[0] for row in self.database.fetch(user_id, _SQL["names"], values)]
        return sorted(names, key=lambda name: (name != MAIN, name))

    def orphans(self, scope: Scope) -> list[StreamId]:
        """Streams that have events and no head."""
        events, heads = self._t.events, self._t.heads
        mine = of_stream(heads, stream_of(events)), *within(heads, scope)
        head = select(heads.c.seq).where(*mine).exists()
        query = select(*stream_of(events)).where(~head, *within(events, scope))
        found = self.database.read(scope.user_id, query.distinct())
        return sorted(StreamId(*row) for row in found)

    def blob_row(self, stream: StreamId, address: bytes) -> bytes | None:
        """A blob of the user's, unless the session that asks was erased."""
        values = (stream.user_id, address, *stream[:2])
        found = self.database.fetch(stream.user_id, _SQL["blob"], values)
        return bytes(found[0][0]) if found else None

    def blob_facts(self, stream: StreamId, address: bytes) -> tuple[Any, ...] | None:
        """Whose a blob's row says it is, and of how many bytes, whatever it says."""
        values = stream.user_id, address
        found = self.database.fetch(stream.user_id, _SQL["blob_facts"], values)
        return found[0] if found else None

    def view_row(self, stream: StreamId, name: str) -> ViewRow | None:
        """The row of a stored view of the session."""
        values = (*stream[:2], name, *stream[:2])
        found = self.database.fetch(stream.user_id, _SQL["view"], values)
        return ViewRow(*found[0]) if found else None

    def save_view_row(
        self,
        stream: StreamId,
        name: str,
        row: ViewRow,
        *,
        replaces: int,
        key_check: bytes,
    ) -> bool:
        """Store it if the stored one stands at ``replaces`` and the key is this.

        A database that can only be read keeps no view: each read makes it again.
        """
        if self.database.readonly:
            return False
        place = (stream.user_id, stream.session_id, name)
        fence, owners = self._fence()
        query = f"{_SQL['save']} {fence} {self.database.shared} {_SQL['replace']}"
        values = [name, *row, *stream, key_check, replaces, *place, *owners, replaces]
        return bool(self.database.fetch(stream.user_id, query, values))

    def view_names(self, user_id: str, session_id: str) -> list[str]:
        """The names of the session's stored views, in order."""
        values = user_id, session_id
        found = self.database.fetch(user_id, _SQL["view_names"], values)
        return [name for (name,) in found]

    def drop_views(
        self, user_id: str, session_id: str, *, name: str | None = None
    ) -> None:
        """Forget the session's stored views, or the one of that name."""
        query, values = _SQL["drop_views"], [user_id, session_id]
        if name is not None:
            query, values = f"{query} AND name=?", [*values, name]
        fence, owners = self._fence()
        self.database.fetch(user_id, f"{query} {fence} RETURNING 1", values + owners)

    def _fence(self) -> tuple[str, list[Any]]:
        """A condition for what this thread's leases guard, and its values."""
        condition: list[str] = []
        values: list[Any] = []
        for stream, owner in self.database.fences.held:
            condition.append(_SQL["fenced"])
            values += (*stream, owner)
        return " ".join(condition), values

    def label(self, stream: StreamId, labels: Mapping[bytes, bytes | None]) -> None:
        """Put labels of these names at these places; None takes one away.

        A session that is not there, or erased, has none.
        """
        table, live = self._t.labels, self._live(stream)
        whose = within(table, Scope(*stream[:2]))
        old = delete(table).where(*whose, table.c.name.in_(list(labels)))
        row = stream.main._asdict()
        del row["stream"]
        new = [row | {"name": n, "address": at} for n, at in labels.items() if at]

        def put(connection: Connection) -> None:
            if connection.execute(live).first():
                connection.execute(old)
                if new:
                    connection.execute(insert(table), new)

        self.database.change(stream.user_id, put)

    def labels_of(self, stream: StreamId) -> dict[bytes, bytes | None]:
        """The places of the session's labels, by those of their names."""
        rows = self.database.fetch(stream.user_id, _SQL["labels_of"], stream[:2])
        return {bytes(name): bytes(address) for name, address in rows}

    def _live(self, stream: StreamId) -> Select[Any]:
        """Finds the session's head, which is locked, unless it was erased."""
        heads = self._t.heads
        live = of_stream(heads, stream.main), heads.c.status != "erased"
        return select(heads.c.seq).where(*live).with_for_update(read=True)

    def take_lease(
        self, stream: StreamId, owner: str, *, clock: ports.Clock, period: int
    ) -> bool:
        """Hold the lease for ``period`` if it is free, else mark it as asked for."""
        live = self._live(stream)
        taking = self.database.statement(_SQL["take"])
        values = {**stream._asdict(), "owner": owner, "period": period}

        def taken(connection: Connection) -> bool:
            # The store as a whole is nobody's.
            if stream.user_id and connection.execute(live).first() is None:
                return False
            moment = self.database.moment(connection, clock)
            times = {"now": moment, "until": moment + period}
            holder = connection.execute(taking, values | times).scalar_one()
            return bool(holder == owner)

        return self.database.change(stream.user_id, taken, fenced=False)

    def renew_lease(
        self, stream: StreamId, owner: str, *, clock: ports.Clock, period: int
    ) -> bool:
        """Hold it for ``period`` from now, if it is still the owner's."""
        return self._extend(stream, owner, owner, clock=clock, period=period)

    def mark_done(
        self, stream: StreamId, owner: str, *, clock: ports.Clock, period: int
    ) -> bool:
        """Leave the mark that the work is done, if the lease is still the owner's."""
        return self._extend(stream, owner, _DONE, clock=clock, period=period)

    def _extend(
        self,
        stream: StreamId,
        owner: str,
        next_owner: str,
        *,
        clock: ports.Clock,
        period: int,
    ) -> bool:
        renewing = self.database.statement(_SQL["renew"])
        values = {**stream._asdict(), "owner": owner, "next_owner": next_owner}

        def extended(connection: Connection) -> bool:
            times = {"now": self.database.moment(connection, clock), "period": period}
            return bool(connection.execute(renewing, values | times).rowcount)

        return self.database.change(stream.user_id, extended, fenced=False)

    def holding(self, stream: StreamId, *, clock: ports.Clock) -> ports.Holding:
        """How long the lease or the mark stands."""
        query = self.database.statement(_SQL["lease"])

        def read() -> ports.Holding:
            with self.database.reading(stream.user_id) as connection:
                row = connection.execute(query, stream._asdict()).first()
                if row is None:
                    return ports.Holding(0, done=False)
                left = row.expires_at - self.database.moment(connection, clock)
            if left > 2 * row.period:  # no correct clock can have written that
                left = 0
            return ports.Holding(max(0, left), done=row.owner == _DONE)

        return self.database.attempt(read)

    def fenced(self, stream: StreamId, owner: str) -> AbstractContextManager[None]:
        """Within the block, this thread's writes need ``owner`` to hold the lease."""
        return self.database.fenced(stream, owner)

    def release_lease(self, stream: StreamId, owner: str) -> bool:
        """Give it back; True if it was marked as asked for."""
        values = (*stream, owner)
        found = self.database.fetch(stream.user_id, _SQL["release"], values)
        return any(pending for (pending,) in found)

    def lagging(
        self, scope: Scope, *, by: int, limit: int, after: Place | None = None
    ) -> list[Lagging]:
        """Stored views that are behind by so many events, in order of their places."""
        places = zip(("user", "session", "name"), after or FIRST, strict=True)
        values = {"by": by, "limit": limit, **_named_in(scope), **dict(places)}
        query = self.database.statement(_SQL["lagging"], scope=_condition(scope))
        found = self.database.read(scope.user_id, query, values)
        return [Lagging(Place(*row[:3]), row[3]) for row in found]

    def stats(self, scope: Scope, *, now: int) -> dict[str, Any]:
        """Sizes and rates of what is in the scope; ``now`` is where the rates end."""
        with self.database.errors, self.database.reading(scope.user_id) as connection:
            found: dict[str, Any] = {"engine": self.database.name}
            found |= _sizes(self.database, connection, scope, now=now)
            if scope.user_id is None:
                found["database_bytes"] = self.database.size(connection)
            return found

    def close(self) -> None:
        """Write what is left to be written, and let go of the database."""
        self._group.close()
        self.database.close()


_INT, _BYTES = {int}, {bytes}


def rows_of(
    stream: StreamId, found: Sequence[Any], *, apart: bool = False
) -> list[EncryptedEvent]:
    """The rows of a stream, in order; ``apart``: each has the hash before it."""
    rows: list[EncryptedEvent] = []
    last = GENESIS
    for row in found:
        own = row[9]
        prev = own if own is not None else GENESIS if apart else last
        rows.append(row_of(stream, row, prev))
        last = rows[-1].hash
    return rows


def row_of(stream: StreamId, row: Sequence[Any], prev_hash: bytes) -> EncryptedEvent:
    """The row of an event, its columns in the order of ``Columns`` and on.

    Raises CorruptEvent if one does not hold what was written.
    """
    seq, type_, ts, event_id, tokens, version, hash_, body, first, _ = row
    try:
        # What it is mostly made of needs no turning: a log is read row by row.
        if {type(event_id), type(hash_), type(body)} != _BYTES:
            event_id, hash_, body = bytes(event_id), bytes(hash_), bytes(body)
        if {type(seq), type(ts), type(tokens), type(version)} != _INT:
            seq, ts, tokens, version = int(seq), int(ts), int(tokens), int(version)
        columns = (stream, seq, type_, ts, event_id, tokens, version)
        digest = None if first is None else bytes(first)
        return stored(columns, encoded(columns), body, hash_, bytes(prev_hash), digest)
    except JUNK:
        raise CorruptEvent(
            f"session {stream.session_id!r} {stream.stream}",
            seq=seq,
            reason="a column does not hold what was written",
        ) from None


@cache
def _standing(each_span: str, *, shown: bool) -> str:
    """Reads head, view and what is behind it; with ``shown`` what the view names."""
    parts = [_SQL["first"]]
    for part, known in ((_NEW, "through_seq"), (_DERIVED, "derived_seq")):
        parts.append(filled(_SQL["behind_view"], part=f"{part}", known=known))
    if shown:
        of = filled(each_span, **{name: _SQL[name] for name in ("event_row", "before")})
        for part, spans in ((_SHOWN, "main_spans"), (_SUMMARIES, "derived_spans")):
            parts.append(filled(of, part=f"{part}", spans=spans))
    return " UNION ALL ".join(parts)


def _head(found: Sequence[Sequence[Any]]) -> HeadRow | None:
    if not found:
        return None
    seq, status, created, check, tokens, updated, hash_, state, *_ = found[0]
    return HeadRow(seq, hash_, status, state, check, tokens, created, updated)


def _view(found: Sequence[Sequence[Any]]) -> ViewRow | None:
    if not found:
        return None
    through, _, derived, _, _, _, _, body, *_ = found[0]
    known = isinstance(body, bytes | memoryview)
    return ViewRow(through, derived, bytes(body) if known else b"")


def _notification(row: EncryptedEvent, number: int) -> Notification:
    place = row.originator_id, row.originator_version
    return Notification(*place, row.topic, row.state, id=number)


_FOLLOWED: Final = 500
_SHORTEST: Final = 0.01


class Following(Subscription[ApplicationRecorder]):
    """Yields notifications in order, and looks for more at the end of the log.

    It looks ``every`` so many seconds, or more often, and has no thread of its own.
    ``stop`` may be called from any.
    """

    def __init__(
        self,
        recorder: ApplicationRecorder,
        gt: int | None,
        topics: Sequence[str],
        *,
        every: float,
    ) -> None:
        super().__init__(recorder, gt, topics)
        self._after, self._every = gt or 0, every
        self._waiting: deque[Notification] = deque()
        self._stopped = Event()

    def __next__(self) -> Notification:
        pause = _SHORTEST
        while not self._waiting and not self._has_been_stopped:
            self._look()
            if not self._waiting:
                self._stopped.wait(pause)
                pause = min(pause * 2, self._every)
        if self._has_been_stopped:
            raise StopIteration
        return self._waiting.popleft()

    def _look(self) -> None:
        """Take a page, and pass for good what other topics are in it."""
        last = self._recorder.max_notification_id() or 0
        if last <= self._after:
            return
        found = self._recorder.select_notifications(
            self._after, _FOLLOWED, last, self._topics, inclusive_of_start=False
        )
        self._waiting.extend(found)
        self._after = found[-1].id if len(found) == _FOLLOWED else last

    def stop(self) -> None:
        """End the iteration, also while it waits."""
        super().stop()
        self._stopped.set()


class FollowingStreams(Following):
    """Yields what every stream has behind what was yielded of it, each in its order.

    It needs no order of all events.  The ids of notifications count them, no more.
    """

    def __init__(self, recorder: Recorder, topics: Sequence[str] = ()) -> None:
        super().__init__(recorder, None, topics, every=0.5)
        self._streams, self._ids = recorder, count(1)
        self._taken = Counter[StreamId]()
        self._round = self._behind()

    def _look(self) -> None:
        """Take some of what is behind, and begin anew with the first stream."""
        self._waiting += islice(self._round, _FOLLOWED)
        if len(self._waiting) < _FOLLOWED:
            self._round = self._behind()

    def _behind(self) -> Iterator[Notification]:
        """Go once through all streams."""
        read = partial(self._streams.select_events, limit=_FOLLOWED)
        taken, one = self._taken, None
        while page := self._streams.ends(after=one):
            for one, seq in page:
                # Nothing is found of what is erased meanwhile.
                while taken[one] < seq and (rows := read(one, gt=taken[one], lte=seq)):
                    for row in rows:
                        taken[one] = row.seq
                        if not self._topics or row.topic in self._topics:
                            yield _notification(row, next(self._ids))


def _sizes(
    database: Database, connection: Connection, scope: Scope, *, now: int
) -> dict[str, Any]:
    """Figures of what is in the scope; ``now`` is where the rates end."""
    since = {name: now - span for name, span in RATES.items()}

    def figures(name: str) -> list[dict[str, Any]]:
        query = database.statement(_SQL[name], scope=_condition(scope))
        rows = connection.execute(query, since | _named_in(scope)).mappings()
        return [{name: _plain(value) for name, value in row.items()} for row in rows]

    names = ["size_of_heads", "size_of_events", "size_of_views"]
    if scope.session_id is None:  # whose session a blob is of only its key can tell
        names.append("size_of_blobs")
    found: dict[str, Any] = {}
    for name in names:
        found |= figures(name)[0]
    return {**found, "lag": figures("lag")}


def _named_in(scope: Scope) -> dict[str, str]:
    return {name: one for name, one in scope._asdict().items() if one is not None}


def _condition(scope: Scope) -> str:
    return " AND ".join(f"{name}=:{name}" for name in _named_in(scope)) or "true"


def _plain(value: Any) -> Any:
    return value if isinstance(value, str) else int(value)  # a sum may be a Decimal


class Subject(NamedTuple):
    """A user, or a session that was erased."""

    ref: str
    user_ref: str
    status: SubjectStatus
    epoch: int


class Subjects:
    """The subjects of a database, and the newest key store that it has seen."""

    def __init__(self, database: Database) -> None:
        self._database, self._t = database, database.tables

    def of(self, ref: str) -> Subject | None:
        """The subject, if anything is known of it."""
        found = self._database.fetch(ref, _SQL["subject_of"], (ref,))
        return Subject(*found[0]) if found else None

    def changed(self) -> list[Subject]:
        """All that are not live, or are not in their first epoch."""
        found = self._database.fetch(None, _SQL["changed_subjects"], ())
        return [Subject(*row) for row in found]

    def set(self, subject: Subject) -> None:
        """Keep it."""
        self._database.change(NOBODY, lambda connection: self.put(connection, subject))

    def put(self, connection: Connection, subject: Subject) -> None:
        """Lock and keep it: who is beginning a session of it is waited for."""
        # Two that put it at once: the second waits where it is added, and finds it.
        for name in ("change_subject", "add_subject", "change_subject"):
            done = self._database.statement(_SQL[name])
            if connection.execute(done, subject._asdict()).rowcount:
                return

    def locked(self, connection: Connection, ref: str) -> Subject:
        """The user's subject: who begins a session waits, or was waited for.

        Where there is none it is put first: there is nothing to lock before, and who
        puts another at once would be overwritten.
        """
        subjects = self._t.subjects
        first = Subject(ref, ref, "live", 1)._asdict()
        connection.execute(self._database.statement(_SQL["add_subject"]), first)
        query = select(subjects).where(subjects.c.ref == ref).with_for_update()
        return Subject(*connection.execute(query).one())

    def key_generation(self) -> int:
        """The key store's generation when it was written down last; 0 if never."""
        found = self._database.fetch(NOBODY, _SQL["setting"], (_GENERATION,))
        try:
            return int(found[0][0]) if found else 0
        except ValueError:
            raise KeyUnavailable(
                "the database does not say how new its key store is",
                remedy="restore a backup of the database",
            ) from None

    def saw_generation(self, generation: int) -> None:
        """Write down the key store's generation, if it is higher than before."""
        settings = self._t.settings
        here = settings.c.name == _GENERATION
        # Two that write it first: the second waits here, and finds the row.
        added = self._database.statement(_SQL["add_setting"])

        def attempt(connection: Connection) -> None:
            connection.execute(added, {"name": _GENERATION})
            query = select(settings.c.value).where(here).with_for_update()
            if int(connection.execute(query).scalar_one()) < generation:
                value = {"value": str(generation)}
                connection.execute(update(settings).where(here).values(value))

        if generation > self.key_generation():
            self._database.change(NOBODY, attempt)
