"""The recorder: reads and writes the rows of a store.

It implements the interfaces of the eventsourcing library and has no keys.  It writes a
batch with one compare-and-set on the head row of the stream, and accepts only rows that
the encrypting mapper made.  Queries that sessions wait for are ready-made statements,
since building a query takes longer than running it.  ``?`` marks a parameter in them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from itertools import count, islice
from threading import Event
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias
from uuid import UUID

from eventsourcing.persistence import (
    ApplicationRecorder,
    Notification,
    StoredEvent,
    Subscription,
)

from refold.adapters.rows import (
    Batch,
    EncryptedEvent,
    HeadRow,
    Heads,
    NotInserted,
    QueueFull,
    Rewrite,
    SnapshotRows,
    ViewRow,
    WriteOutcome,
    Wrote,
    encrypted_event,
)
from refold.adapters.sql.database import NOBODY, Database, Write, octets
from refold.adapters.sql.queries import FIRST, LAST, filled, statements
from refold.domain import ports
from refold.domain.chain import GENESIS, encoded
from refold.domain.envelope import from_microseconds
from refold.domain.errors import CorruptEvent, KeyUnavailable, StoreUnavailable
from refold.domain.events import Span
from refold.domain.ids import MAIN, StreamId
from refold.domain.ports import (
    MALFORMED_DATA,
    RATES,
    Lagging,
    Place,
    Scope,
    SessionInfo,
)
from refold.domain.seals import Use

if TYPE_CHECKING:
    from sqlalchemy import Connection, Select

_KEYS: Final = 500  # in one statement
_RANGES: Final = 100  # in one statement; SQLite takes at most 500
_ROWS: Final = 10_000  # in one page, without their encrypted columns
_ENDS: Final = 1_000  # streams in one page
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
_SQL: Final = statements("recorder")
_NO_SEQS: Final = (-1, -1)  # no view has folded events up to these seqs
_GENERATION: Final = "key_generation"
_SHARES: Final = f"{ports.SHARE_PREFIX}%"  # a pattern of names of views
_DONE: Final = ""  # the owner in a mark of finished work
SubjectStatus: TypeAlias = Literal["live", "frozen", "erasing", "erased"]
# The parts of a snapshot, as the first column of its rows numbers them.
_HEAD_ROW: Final = 0
_VIEW_ROW: Final = 1
_NEW: Final = 2
_DERIVED: Final = 3
_SHOWN: Final = 4
_SUMMARIES: Final = 5


class Recorder(ApplicationRecorder):
    """Reads and writes the rows of a store.

    ``shared``: other processes can open the same store.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
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
        """Write events with their ``batch``; they are durable when this returns.

        Writes of several threads share a commit.

        done:  for callers that cannot wait.  It is called once, perhaps in another
               thread, with the outcome or the error.  It must return at once and raise
               nothing.
        write: writes the batch in a transaction that is open already.

        Raises NotInserted if the head has moved or the receipt exists, QueueFull if too
        many appends wait already, TypeError for events that the encrypting mapper did
        not make.
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
        """Write the whole batch or nothing; it is durable when this returns.

        Batches of other threads may share the commit.
        """
        if self.database.fences.leases:
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
        """Queue a batch for callers that cannot wait; False if the queue is full.

        done: called with the outcome, as in ``insert_events``.
        """

        def translated(outcome: WriteOutcome | Exception) -> None:
            if isinstance(outcome, Exception):
                outcome = self.database.translate(outcome) or outcome
            done(outcome)

        return self._group.submit(batch, translated)

    def write_exclusive(
        self, stream: StreamId, build: Callable[[HeadRow | None], Batch]
    ) -> WriteOutcome:
        """Lock the head, and write the batch that ``build`` returns for it."""

        def work(row: HeadRow | None, write: Write) -> WriteOutcome:
            batch = build(row)
            try:
                self.insert_events(batch.events, batch=batch, write=write)
            except NotInserted as conflict:
                return conflict.outcome
            return Wrote(batch.head)

        with self.database.errors:
            return self.database.hold_head(stream, work)

    def rewrite(
        self, stream: StreamId, build: Callable[[Heads], Rewrite | None]
    ) -> bool:
        """Do the rewrite that ``build`` returns for the session's heads.

        The heads stay locked until the commit.  A rewrite drops all views of the
        session.  Returns False if ``build`` returned None, and nothing changed.
        """

        def insert(batch: Batch, write: Write) -> None:
            try:
                self.insert_events(batch.events, batch=batch, write=write)
            except NotInserted:
                raise StoreUnavailable(
                    "the head moved while its session was encrypted again",
                    remedy="try again",
                ) from None

        with self.database.errors:
            return self.database.rewrite(stream, build, insert)

    def flush(self) -> None:
        """Wait until all writes are durable, also those whose callers did not wait."""
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
        """Return the rows with ``gt < seq <= lte``, in order; ``desc`` reverses it.

        types: only rows of these types.
        spans: only rows of these spans, all of them; the other arguments are ignored.
               The spans are in order and do not overlap.

        Raises CorruptEvent if a row was not written by Refold.
        """
        stream = originator_id
        if not isinstance(stream, StreamId):
            stream = StreamId.parse(str(stream))
        if spans:
            return self._spans(stream, spans)
        after = gt or 0
        if after >= LAST:
            return []
        # Neighbours in the result need not be neighbours in the stream.
        scattered = bool(types) or desc
        values: list[Any] = []
        if scattered:
            query = _SQL["scattered"]
        else:
            query = _SQL["page"]
            values.append(after + 1)
        values += (stream.user_id, *stream, stream.user_id, stream.session_id, after)
        if lte is not None:
            query += " AND seq<=?"
            values.append(lte)
        if types:
            marks = ", ".join("?" * len(types))
            query += f" AND type IN ({marks})"
            values += types
        query += " ORDER BY seq"
        if desc:
            query += " DESC"
        if limit is not None:
            query += " LIMIT ?"
            values.append(limit)
        rows = self.database.fetch(stream.user_id, query, values)
        return rows_of(stream, rows, apart=scattered)

    def plain(self, session: StreamId) -> Iterator[tuple[Any, ...]]:
        """Yield the columns of a session's events that are not encrypted.

        Yields nothing if the session was erased.
        """
        names = session[:2]
        stream_and_seq: Sequence[Any] = ("", 0)
        while True:
            values = (*names, *names, *stream_and_seq, _ROWS)
            page = self.database.fetch(session.user_id, _SQL["plain"], values)
            yield from page
            if len(page) < _ROWS:
                return
            stream_and_seq = page[-1][2:4]

    def _spans(self, stream: StreamId, spans: Sequence[Span]) -> list[EncryptedEvent]:
        """Return the rows of the spans, each read by its own query.

        SQLite would scan every row if the spans were alternatives of one condition.
        """
        user_id = stream.user_id
        session_id = stream.session_id
        rows: list[Any] = []
        for start in range(0, len(spans), _RANGES):
            chunk = spans[start : start + _RANGES]
            values: list[Any] = []
            for first, last in chunk:
                values += (first, user_id, *stream, user_id, session_id, first, last)
            ranges = " UNION ALL ".join([_SQL["range"]] * len(chunk))
            rows += self.database.fetch(user_id, f"{ranges} ORDER BY seq", values)
        return rows_of(stream, rows)

    def snapshot(
        self,
        stream: StreamId,
        name: str,
        *,
        shown: bool,
        limit: int,
        known: tuple[int, int] | None = None,
    ) -> SnapshotRows:
        """Return the head, the view, and at most ``limit`` later rows of each stream.

        name:  the name of the view, and of the derived stream.
        shown: whether to read the rows that the view names, too.
        known: the ``through_seq`` and ``derived_seq`` of a view whose rows are not
               read, because the caller has them.
        """
        derived = stream._replace(stream=name)
        user_id = stream.user_id
        values: list[Any] = []
        if shown:
            values += 2 * (known or _NO_SEQS)
        values += [
            *derived,
            *stream,
            user_id,
            *stream,
            limit,
            user_id,
            *derived,
            limit,
        ]
        if shown:
            values += (user_id, *stream, user_id, *derived)
        parts: list[list[Sequence[Any]]] = [[] for _ in range(6)]
        query = _snapshot_query(self.database.each_span, shown=shown)
        for part, *row in self.database.fetch(user_id, query, values):
            parts[part].append(row)
        return SnapshotRows(
            head=_head(parts[_HEAD_ROW]),
            view=_view(parts[_VIEW_ROW]),
            shown=rows_of(stream, sorted(parts[_SHOWN])),
            summaries=rows_of(derived, sorted(parts[_SUMMARIES])),
            new_main=rows_of(stream, sorted(parts[_NEW])),
            new_derived=rows_of(derived, sorted(parts[_DERIVED])),
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
        """Return rows in order of position.

        Rows that an open transaction could still precede are left out.
        """
        after = start or 0
        if inclusive_of_start and after:
            after -= 1
        notifications: list[Notification] = []
        while len(notifications) < limit:
            page = self._positioned(after, stop, limit)
            for position, row in page:
                if not topics or row.topic in topics:
                    notifications.append(_notification(row, position))
            if len(page) < limit:
                break
            after = page[-1][0]
        return notifications[:limit]

    def _positioned(
        self, after: int, upto: int | None, limit: int
    ) -> list[tuple[int, EncryptedEvent]]:
        """Return a page of the log: the position and the row of each event."""
        query = self._settled("positioned")
        values = (after, LAST if upto is None else upto, limit)
        page: list[tuple[int, EncryptedEvent]] = []
        for columns in self.database.fetch(None, query, values):
            position = columns[0]
            stream = StreamId(*columns[1:4])
            prev_hash = bytes(columns[-1] or GENESIS)
            page.append((position, row_of(stream, columns[4:], prev_hash)))
        return page

    def _settled(self, name: str) -> str:
        """Return a statement, limited to positions no open transaction can precede."""
        return filled(_SQL[name], settled=self.database.settled())

    def max_notification_id(self) -> int | None:
        """Return the highest position that no open transaction can still precede."""
        ((last,),) = self.database.fetch(None, self._settled("settled_position"), ())
        return None if last is None else int(last)

    def subscribe(
        self, gt: int | None = None, topics: Sequence[str] = ()
    ) -> Subscription[ApplicationRecorder]:
        """Follow the log after the position ``gt``; only these topics, or all.

        A database without an order of all events is followed stream by stream, from
        the beginning.
        """
        if not self.database.ordered and not gt:
            return FollowingStreams(self, topics)
        return Following(self, gt, topics, every=0.5)

    def ends(self, *, after: StreamId | None) -> list[tuple[StreamId, int]]:
        """Return a page of streams after ``after``, in order, with their head seqs."""
        values = (*(after or FIRST), _ENDS)
        rows = self.database.fetch(None, _SQL["ends"], values)
        return [(StreamId(*row[:3]), row[3]) for row in rows]

    def head_row(self, stream: StreamId) -> HeadRow | None:
        """Return the row of the stream's head; None without one."""
        rows = self.database.fetch(stream.user_id, _SQL["head"], stream)
        return HeadRow(*rows[0]) if rows else None

    def receipt(self, stream: StreamId, key: bytes) -> ports.Duplicate | None:
        """Return the seqs of the append with this idempotency key; None without one."""
        uses = self.uses(stream, [key])
        if not uses:
            return None
        return ports.Duplicate(*uses[0][1:])

    def uses(self, stream: StreamId, keys: Sequence[bytes]) -> list[Use]:
        """Return the receipts of those keys that were used."""
        uses: list[Use] = []
        for start in range(0, len(keys), _KEYS):
            chunk = keys[start : start + _KEYS]
            query = filled(_SQL["uses"], keys=", ".join("?" * len(chunk)))
            rows = self.database.fetch(stream.user_id, query, (*stream, *chunk))
            uses += [Use(bytes(row[0]), *row[1:]) for row in rows]
        return uses

    def knows(self, user_id: str) -> bool:
        """Whether the user has any session."""
        return bool(self.database.fetch(user_id, _SQL["knows"], (user_id,)))

    def status_of(self, user_ref: str) -> SubjectStatus:
        """Return the status of the user with this keyed hash."""
        subject = Subjects(self.database).of(user_ref)
        return "live" if subject is None else subject.status

    def has_sessions(self) -> bool:
        """Whether the store has any session."""
        return self.database.attempt(self.database.has_sessions)

    def sessions(
        self,
        user_id: str | None,
        session_id: str | None,
        *,
        labels: Sequence[bytes] = (),
        after: tuple[str, str] | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> list[SessionInfo]:
        """Return sessions of a user, or of all users, in order of user and name.

        labels: the addresses of labels, all of which a session must have.
        after:  the user and the name of the session before the first.
        newest_first: orders them by their last change instead.
        """
        query = _SQL["sessions"]
        values: list[Any] = [MAIN]
        for name, value in _scope_values(Scope(user_id, session_id)).items():
            query += f" AND {name}=?"
            values.append(value)
        for address in labels:
            query += f" {_SQL['labelled']}"
            values += (user_id, address)
        if after is not None:
            query += " AND (user_id, session_id)>(?, ?)"
            values += after
        if newest_first:
            query += " ORDER BY updated_at DESC, user_id, session_id"
        else:
            query += " ORDER BY user_id, session_id"
        if limit is not None:
            query += " LIMIT ?"
            values.append(limit)
        rows = self.database.fetch(user_id, query, values)
        return [_session_info(*row) for row in rows]

    def listed_sessions(
        self,
        user_id: str,
        *,
        order: ports.ListOrder,
        descending: bool,
        labels: Sequence[bytes],
        after: tuple[int, str] | None,
        limit: int,
    ) -> list[ports.ListedSession]:
        """Return a page of the user's sessions that lists show, in this order.

        labels: the addresses of labels, all of which a session must have.
        after:  the time and the name of the session before the first.
        """
        values: list[Any] = []
        if order == "newest_event":
            values.append(user_id)
        values += _values_in_lists(user_id, labels)
        query = _in_lists("by_time" if order == "newest_event" else "by_name", labels)
        comparison = "<" if descending else ">"
        direction = "DESC" if descending else "ASC"
        if order == "newest_event":
            if after is not None:
                query += f" WHERE (newest, session_id){comparison}(?, ?)"
                values += after
            query += f" ORDER BY newest {direction}, session_id {direction}"
        else:
            if after is not None:
                query += f" AND h.session_id{comparison}?"
                values.append(after[1])
            query += f" ORDER BY h.session_id {direction}"
        values.append(limit)
        sessions: list[ports.ListedSession] = []
        rows = self.database.fetch(user_id, f"{query} LIMIT ?", values)
        for *columns, newest in rows:
            info = _session_info(user_id, *columns)
            sessions.append(ports.ListedSession(info, newest))
        return sessions

    def listed_heads(
        self, user_id: str | None, labels: Sequence[bytes]
    ) -> list[ports.HeadColumns]:
        """Return the heads of the sessions that lists show, of a user or of all users.

        labels: the addresses of labels, all of which a session must have.
        """
        heads_of_user = self.database.many_rows("{heads}", "user_id=?")
        query = filled(
            _SQL["listed_heads"],
            heads_of_user="" if user_id is None else f"{heads_of_user} AND",
            labelled_too=" ".join([_SQL["labelled"]] * len(labels)),
        )
        values: list[Any] = []
        if user_id is not None:
            values = _values_in_lists(user_id, labels)
        heads: list[Any] = self.database.fetch(user_id, query, values)
        return heads

    def count_listed(self, user_id: str, labels: Sequence[bytes]) -> int:
        """Return the number of the user's sessions that lists show."""
        query = _in_lists("count_listed", labels)
        values = _values_in_lists(user_id, labels)
        ((count_of_sessions,),) = self.database.fetch(user_id, query, values)
        return int(count_of_sessions)

    def listed_names(self, user_id: str, names: Sequence[str]) -> set[str]:
        """Return those of these names that sessions in lists of the user have."""
        listed: set[str] = set()
        for chunk in _chunks(names):
            marks = ", ".join("?" * len(chunk))
            query = filled(_in_lists("listed_names", ()), names=marks)
            rows = self.database.fetch(user_id, query, (user_id, *chunk))
            listed.update(name for (name,) in rows)
        return listed

    def streams(self, user_id: str, session_id: str) -> list[str]:
        """Return the names of the session's streams, the main one first."""
        rows = self.database.fetch(user_id, _SQL["names"], (user_id, session_id))
        names = [row[0] for row in rows]
        return sorted(names, key=lambda name: (name != MAIN, name))

    def orphans(self, scope: Scope) -> list[StreamId]:
        """Return the streams that have events and no head."""
        from sqlalchemy import select

        from refold.adapters.sql.tables import of_stream, stream_of, within

        events = self.database.tables.events
        heads = self.database.tables.heads
        head = select(heads.c.seq).where(
            of_stream(heads, stream_of(events)), *within(heads, scope)
        )
        query = select(*stream_of(events)).where(~head.exists(), *within(events, scope))
        rows = self.database.read(scope.user_id, query.distinct())
        return sorted(StreamId(*row) for row in rows)

    def blob_row(self, stream: StreamId, address: bytes) -> bytes | None:
        """Return the encrypted body of a blob; None if the session was erased."""
        values = (stream.user_id, address, stream.user_id, stream.session_id)
        rows = self.database.fetch(stream.user_id, _SQL["blob"], values)
        return octets(rows[0][0]) if rows else None

    def blob_rows(
        self, stream: StreamId, addresses: Sequence[bytes]
    ) -> dict[bytes, bytes]:
        """Return the encrypted bodies of the stored ones of these blobs, by address."""
        bodies: dict[bytes, bytes] = {}
        for start in range(0, len(addresses), _KEYS):
            chunk = addresses[start : start + _KEYS]
            marks = ", ".join("?" * len(chunk))
            query = filled(_SQL["several_blobs"], addresses=marks)
            values = (stream.user_id, *chunk, stream.user_id, stream.session_id)
            for address, body in self.database.fetch(stream.user_id, query, values):
                bodies[bytes(address)] = octets(body)
        return bodies

    def blob_facts(self, stream: StreamId, address: bytes) -> tuple[Any, ...] | None:
        """Return the session and the size in a blob's row, unchecked."""
        values = (stream.user_id, address)
        rows = self.database.fetch(stream.user_id, _SQL["blob_facts"], values)
        return rows[0] if rows else None

    def view_row(self, stream: StreamId, name: str) -> ViewRow | None:
        """Return the row of a stored view of the session; None without one."""
        values = (*stream[:2], name, *stream[:2])
        rows = self.database.fetch(stream.user_id, _SQL["view"], values)
        return ViewRow(*rows[0]) if rows else None

    def save_view_row(
        self,
        stream: StreamId,
        name: str,
        row: ViewRow,
        *,
        replaces: int,
        key_check: bytes,
    ) -> bool:
        """Save a view.  Returns False if another process has saved one since.

        replaces:  the ``through_seq`` that the stored view must have.
        key_check: the mark of the key that the session must have.

        A read-only database stores no views: every read folds them again.
        """
        if self.database.readonly:
            return False
        fence, fence_values = self._fence()
        lock = self.database.lock_against_changes
        query = f"{_SQL['save']} {fence} {lock} {_SQL['replace']}"
        values = [
            name,
            *row,
            *stream,
            key_check,
            replaces,
            stream.user_id,
            stream.session_id,
            name,
            *fence_values,
            replaces,
        ]
        return bool(self.database.fetch(stream.user_id, query, values))

    def view_rows(
        self, user_id: str, name: str, session_ids: Sequence[str] | None = None
    ) -> list[tuple[str, int, int, bytes]]:
        """Return the views of this name of a user's sessions, of these or of all.

        Each row has the session, the two seqs of the view, and its encrypted body.
        """
        condition = "user_id=? AND name=?"
        values = (user_id, name)
        rows = self._among("views_named", "{views}", condition, values, session_ids)
        if all(type(row[3]) is bytes for row in rows):
            return rows
        return [(row[0], row[1], row[2], octets(row[3])) for row in rows]

    def derived_seqs(
        self, user_id: str, session_ids: Sequence[str] | None = None
    ) -> dict[str, int]:
        """Return the sum of the seqs of the derived streams, by session of a user.

        session_ids: only of these sessions.
        """
        condition = "user_id=? AND stream<>'main'"
        rows = self._among(
            "derived_seqs", "{heads}", condition, (user_id,), session_ids
        )
        return {session_id: int(total) for session_id, total in rows}

    def _among(
        self,
        name: str,
        table: str,
        condition: str,
        values: Sequence[Any],
        session_ids: Sequence[str] | None,
    ) -> list[tuple[Any, ...]]:
        """Return the rows of a query of a user, about these sessions or about all.

        condition: of the rows of the table; begins with the user.
        values:    of the condition.
        """
        user_id = values[0]
        if session_ids is None:
            of_all = self.database.many_rows(table, condition)
            query = filled(_SQL[name], of_sessions=of_all)
            return self.database.fetch(user_id, query, values)
        rows: list[tuple[Any, ...]] = []
        for chunk in _chunks(session_ids):
            marks = ", ".join("?" * len(chunk))
            of_some = f"{condition} AND session_id IN ({marks})"
            query = filled(_SQL[name], of_sessions=of_some)
            rows += self.database.fetch(user_id, query, (*values, *chunk))
        return rows

    def view_names(self, user_id: str, session_id: str) -> list[str]:
        """Return the names of the session's stored views, in order."""
        rows = self.database.fetch(user_id, _SQL["view_names"], (user_id, session_id))
        return [name for (name,) in rows]

    def share_places(self, user_id: str) -> list[ports.Place]:
        """Return the places of all served shares of a user, in order."""
        rows = self.database.fetch(user_id, _SQL["share_places"], (user_id, _SHARES))
        return [ports.Place(*row) for row in rows]

    def drop_views(
        self, user_id: str, session_id: str, *, name: str | None = None
    ) -> None:
        """Delete the view of that name, or all views that can be folded again."""
        query = _SQL["drop_views"]
        values: list[Any] = [user_id, session_id]
        if name is not None:
            query += " AND name=?"
            values.append(name)
        else:
            query += " AND name NOT LIKE ?"
            values.append(_SHARES)
        fence, fence_values = self._fence()
        values += fence_values
        self.database.fetch(user_id, f"{query} {fence} RETURNING 1", values)

    def _fence(self) -> tuple[str, list[Any]]:
        """Return the condition that this thread has its leases, with its values."""
        conditions: list[str] = []
        values: list[Any] = []
        for stream, owner in self.database.fences.leases:
            conditions.append(_SQL["fenced"])
            values += (*stream, owner)
        return " ".join(conditions), values

    def label(self, stream: StreamId, labels: Mapping[bytes, bytes | None]) -> None:
        """Set labels of a session.  Does nothing for one that is missing or erased.

        labels: the address of each label by the hash of its name; None removes it.
        """
        from sqlalchemy import delete, insert

        from refold.adapters.sql.tables import within

        table = self.database.tables.labels
        live = self._live(stream)
        in_session = within(table, Scope(stream.user_id, stream.session_id))
        old = delete(table).where(*in_session, table.c.name.in_(list(labels)))
        new: list[dict[str, Any]] = []
        for name, address in labels.items():
            if address:
                row = {
                    "user_id": stream.user_id,
                    "session_id": stream.session_id,
                    "name": name,
                    "address": address,
                }
                new.append(row)

        def put(connection: Connection) -> None:
            if connection.execute(live).first():
                connection.execute(old)
                if new:
                    connection.execute(insert(table), new)

        self.database.change(stream.user_id, put)

    def labels_of(self, stream: StreamId) -> dict[bytes, bytes | None]:
        """Return the addresses of the session's labels, by the hash of their names."""
        rows = self.database.fetch(stream.user_id, _SQL["labels_of"], stream[:2])
        return {bytes(name): bytes(address) for name, address in rows}

    def _live(self, stream: StreamId) -> Select[Any]:
        """Return a query that locks the session's head; it has no row if erased."""
        from sqlalchemy import select

        from refold.adapters.sql.tables import of_stream

        heads = self.database.tables.heads
        query = select(heads.c.seq)
        query = query.where(of_stream(heads, stream.main), heads.c.status != "erased")
        return query.with_for_update(read=True)

    def take_lease(
        self, stream: StreamId, owner: str, *, clock: ports.Clock, period: int
    ) -> bool:
        """Take the lease for ``period`` if it is free, and return whether it was.

        A lease that its owner did not renew in time is free, so that another process
        takes over the work of a dead one (``free`` in ``data/recorder.sql``).
        Otherwise, the lease is marked as requested, which its owner sees.
        """
        live = self._live(stream)
        taking = self.database.statement(_SQL["take"])
        values = {**stream._asdict(), "owner": owner, "period": period}

        def taken(connection: Connection) -> bool:
            # A duty of the store as a whole has no session.
            if stream.user_id and connection.execute(live).first() is None:
                return False
            now = self.database.lease_time(connection, clock)
            times = {"now": now, "until": now + period}
            holder = connection.execute(taking, values | times).scalar_one()
            return bool(holder == owner)

        return self.database.change(stream.user_id, taken, fenced=False)

    def renew_lease(
        self, stream: StreamId, owner: str, *, clock: ports.Clock, period: int
    ) -> bool:
        """Extend the lease to ``period`` from now, if the owner still has it."""
        return self._extend(stream, owner, owner, clock=clock, period=period)

    def mark_done(
        self, stream: StreamId, owner: str, *, clock: ports.Clock, period: int
    ) -> bool:
        """Mark the work as done for ``period``, if the owner still has the lease."""
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
            times = {
                "now": self.database.lease_time(connection, clock),
                "period": period,
            }
            return bool(connection.execute(renewing, values | times).rowcount)

        return self.database.change(stream.user_id, extended, fenced=False)

    def holding(self, stream: StreamId, *, clock: ports.Clock) -> ports.Holding:
        """Return how long the lease, or the mark of finished work, stays valid."""
        query = self.database.statement(_SQL["lease"])

        def read() -> ports.Holding:
            with self.database.reading(stream.user_id) as connection:
                row = connection.execute(query, stream._asdict()).first()
                if row is None:
                    return ports.Holding(0, done=False)
                left = row.expires_at - self.database.lease_time(connection, clock)
            if left > 2 * row.period:  # a wrong clock wrote it
                left = 0
            return ports.Holding(max(0, left), done=row.owner == _DONE)

        return self.database.attempt(read)

    def fenced(self, stream: StreamId, owner: str) -> AbstractContextManager[None]:
        """Within the block, writes of this thread need ``owner`` to have the lease."""
        return self.database.fenced(stream, owner)

    def release_lease(self, stream: StreamId, owner: str) -> bool:
        """Give the lease back; True if another process asked for it."""
        values = (*stream, owner)
        rows = self.database.fetch(stream.user_id, _SQL["release"], values)
        return any(pending for (pending,) in rows)

    def lagging(
        self, scope: Scope, *, by: int, limit: int, after: Place | None = None
    ) -> list[Lagging]:
        """Return the stored views that lack at least ``by`` events, by place."""
        user, session, name = after or FIRST
        values = {
            "by": by,
            "limit": limit,
            "user": user,
            "session": session,
            "name": name,
            **_scope_values(scope),
        }
        query = self.database.statement(_SQL["lagging"], scope=_condition(scope))
        rows = self.database.read(scope.user_id, query, values)
        return [Lagging(Place(*row[:3]), row[3]) for row in rows]

    def stats(self, scope: Scope, *, now: int) -> dict[str, Any]:
        """Return sizes and rates within the scope; the rates end at ``now``."""
        with self.database.errors, self.database.reading(scope.user_id) as connection:
            figures: dict[str, Any] = {"engine": self.database.name}
            figures |= _sizes(self.database, connection, scope, now=now)
            if scope.user_id is None:
                figures["database_bytes"] = self.database.size(connection)
            return figures

    def close(self) -> None:
        """Write the queued batches, and close the database."""
        self._group.close()
        self.database.close()


def _session_info(
    user_id: str,
    session_id: str,
    seq: int,
    status: Any,
    tokens: int,
    created_at: int,
    updated_at: int,
) -> SessionInfo:
    """Return the session in a list with these columns of its head."""
    return SessionInfo(
        user_id=user_id,
        session_id=session_id,
        head_seq=seq,
        status=status,
        tokens=tokens,
        created_at=from_microseconds(created_at),
        updated_at=from_microseconds(updated_at),
    )


def _in_lists(name: str, labels: Sequence[bytes]) -> str:
    """Return the statement about sessions in lists, with a condition for each label."""
    return filled(_SQL[name], labelled_too=" ".join([_SQL["labelled"]] * len(labels)))


def _values_in_lists(user_id: str, labels: Sequence[bytes]) -> list[Any]:
    """Return the values of the conditions of sessions in lists."""
    values: list[Any] = [user_id]
    for address in labels:
        values += (user_id, address)
    return values


def _chunks(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the names in parts that fit in one statement."""
    for start in range(0, len(names), _KEYS):
        yield names[start : start + _KEYS]


_ONLY_INT: Final = {int}
_ONLY_BYTES: Final = {bytes}


def rows_of(
    stream: StreamId, rows: Sequence[Any], *, apart: bool = False
) -> list[EncryptedEvent]:
    """Return the events of a stream from the rows of a query, in order.

    apart: whether rows may be missing between them.  Then each row has the hash of the
           event before it, unless it is the first of its stream.  Otherwise, only the
           first row of a run has that hash.
    """
    events: list[EncryptedEvent] = []
    last_hash = GENESIS
    for row in rows:
        prev_hash = row[9]
        if prev_hash is None:
            prev_hash = GENESIS if apart else last_hash
        event = row_of(stream, row, prev_hash)
        events.append(event)
        last_hash = event.hash
    return events


def row_of(stream: StreamId, row: Sequence[Any], prev_hash: bytes) -> EncryptedEvent:
    """Return the event of a row, whose columns are in the order of ``COLUMNS``.

    Raises CorruptEvent if a column does not hold what was written.
    """
    seq, type_, ts, event_id, tokens, version, hash_, body, first, _ = row
    try:
        # Most rows need no conversion, and this runs for every row of the log.
        if {type(event_id), type(hash_), type(body)} != _ONLY_BYTES:
            event_id = bytes(event_id)
            hash_ = bytes(hash_)
            body = bytes(body)
        if {type(seq), type(ts), type(tokens), type(version)} != _ONLY_INT:
            # SQLite also stores fractions and texts in columns of integers.  Converted,
            # they could have the header of the row that was written.
            raise TypeError("a column of integers holds another type")
        columns = (stream, seq, type_, ts, event_id, tokens, version)
        digest = None if first is None else bytes(first)
        return encrypted_event(
            columns, encoded(columns), body, hash_, bytes(prev_hash), digest
        )
    except MALFORMED_DATA:
        raise CorruptEvent(
            f"session {stream.session_id!r} {stream.stream}",
            seq=seq,
            reason="a column does not hold what was written",
        ) from None


@cache
def _snapshot_query(each_span: str, *, shown: bool) -> str:
    """Return the query for the head, the view, and later rows.

    shown: whether it also reads the rows that the view names, unless they are known.
    """
    behind = _SQL["behind_view"]
    spans = _SQL["spans_unless_known"] if shown else "main_spans, derived_spans"
    parts = [
        filled(_SQL["first"], spans=spans),
        filled(behind, part=str(_NEW), known="through_seq"),
        filled(behind, part=str(_DERIVED), known="derived_seq"),
    ]
    if shown:
        named = filled(each_span, event_row=_SQL["event_row"], before=_SQL["before"])
        parts.append(filled(named, part=str(_SHOWN), spans="main_spans"))
        parts.append(filled(named, part=str(_SUMMARIES), spans="derived_spans"))
    return " UNION ALL ".join(parts)


def _head(rows: Sequence[Sequence[Any]]) -> HeadRow | None:
    """Return the head in the rows of a snapshot, which have the columns of an event."""
    if not rows:
        return None
    seq, status, created_at, key_check, tokens, updated_at, hash_, state, *_ = rows[0]
    return HeadRow(
        seq=seq,
        hash=hash_,
        status=status,
        state=state,
        key_check=key_check,
        tokens=tokens,
        created_at=created_at,
        updated_at=updated_at,
    )


def _view(rows: Sequence[Sequence[Any]]) -> ViewRow | None:
    """Return the view in the rows of a snapshot, which have the columns of an event."""
    if not rows:
        return None
    through_seq, _, derived_seq, _, _, _, _, body, *_ = rows[0]
    if not isinstance(body, bytes | memoryview):  # damaged: it is folded again
        body = b""
    return ViewRow(through_seq, derived_seq, bytes(body))


def _notification(row: EncryptedEvent, number: int) -> Notification:
    return Notification(
        row.originator_id, row.originator_version, row.topic, row.state, id=number
    )


_PAGE: Final = 500  # notifications in one page
_SHORTEST_PAUSE: Final = 0.01  # seconds


class Following(Subscription[ApplicationRecorder]):
    """Yields notifications in order, and waits for more at the end of the log.

    It looks for more at least every ``every`` seconds, and has no thread of its own.
    Any thread may call ``stop``.
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
        self._after = gt or 0
        self._every = every
        self._waiting: deque[Notification] = deque()
        self._stopped = Event()

    def __next__(self) -> Notification:
        pause = _SHORTEST_PAUSE
        while not self._waiting and not self._has_been_stopped:
            self._look()
            if not self._waiting:
                self._stopped.wait(pause)
                pause = min(pause * 2, self._every)
        if self._has_been_stopped:
            raise StopIteration
        return self._waiting.popleft()

    def _look(self) -> None:
        """Queue the next page of notifications; events of other topics are skipped."""
        last = self._recorder.max_notification_id() or 0
        if last <= self._after:
            return
        page = self._recorder.select_notifications(
            self._after, _PAGE, last, self._topics, inclusive_of_start=False
        )
        self._waiting.extend(page)
        self._after = page[-1].id if len(page) == _PAGE else last

    def stop(self) -> None:
        """End the iteration, also while it waits."""
        super().stop()
        self._stopped.set()


class FollowingStreams(Following):
    """Yields the events of all streams, each stream in its own order.

    It needs no order of all events.  The ids of notifications are mere counts.
    """

    def __init__(self, recorder: Recorder, topics: Sequence[str] = ()) -> None:
        super().__init__(recorder, None, topics, every=0.5)
        self._streams = recorder
        self._ids = count(1)
        self._yielded = Counter[StreamId]()  # the last seq of each stream
        self._round = self._new_notifications()

    def _look(self) -> None:
        """Queue a page of this round; start the next round at the end."""
        self._waiting += islice(self._round, _PAGE)
        if len(self._waiting) < _PAGE:
            self._round = self._new_notifications()

    def _new_notifications(self) -> Iterator[Notification]:
        """Yield the new events of each stream, for one round."""
        stream: StreamId | None = None
        while page := self._streams.ends(after=stream):
            for stream, seq in page:
                yield from self._new_in(stream, seq)

    def _new_in(self, stream: StreamId, seq: int) -> Iterator[Notification]:
        """Yield the new events of a stream up to ``seq``."""
        while self._yielded[stream] < seq:
            rows = self._streams.select_events(
                stream, gt=self._yielded[stream], lte=seq, limit=_PAGE
            )
            if not rows:  # erased since its end was read
                return
            for row in rows:
                self._yielded[stream] = row.seq
                if not self._topics or row.topic in self._topics:
                    yield _notification(row, next(self._ids))


def _sizes(
    database: Database, connection: Connection, scope: Scope, *, now: int
) -> dict[str, Any]:
    """Return sizes and rates within the scope; the rates end at ``now``."""
    values: dict[str, Any] = {name: now - span for name, span in RATES.items()}
    values |= _scope_values(scope)

    def figures(name: str) -> list[dict[str, Any]]:
        query = database.statement(_SQL[name], scope=_condition(scope))
        rows = connection.execute(query, values).mappings()
        return [_plain_row(row) for row in rows]

    names = ["size_of_heads", "size_of_events", "size_of_views"]
    if scope.session_id is None:  # only its key can tell the session of a blob
        names.append("size_of_blobs")
    sizes: dict[str, Any] = {}
    for name in names:
        sizes |= figures(name)[0]
    sizes["lag"] = figures("lag")
    return sizes


def _scope_values(scope: Scope) -> dict[str, str]:
    """Return the names that the scope sets, by column."""
    return {name: value for name, value in scope._asdict().items() if value is not None}


def _condition(scope: Scope) -> str:
    """Return the SQL condition that a row is in the scope."""
    return " AND ".join(f"{name}=:{name}" for name in _scope_values(scope)) or "true"


def _plain_row(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Return a row as texts and whole numbers, since sums may come as Decimal."""
    return {
        name: value if isinstance(value, str) else int(value)
        for name, value in row.items()
    }


class Subject(NamedTuple):
    """A user, or an erased session, by keyed hash."""

    ref: str
    user_ref: str
    status: SubjectStatus
    epoch: int


class Subjects:
    """The subjects of a database, and the newest generation of its key store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, ref: str) -> Subject | None:
        """Return the subject with this keyed hash; None if the database has none."""
        rows = self._database.fetch(ref, _SQL["subject_of"], (ref,))
        return Subject(*rows[0]) if rows else None

    def changed(self) -> list[Subject]:
        """Return all subjects that are not live, or not in their first epoch."""
        rows = self._database.fetch(None, _SQL["changed_subjects"], ())
        return [Subject(*row) for row in rows]

    def set(self, subject: Subject) -> None:
        """Insert or replace the subject."""
        self._database.change(NOBODY, lambda connection: self.put(connection, subject))

    def put(self, connection: Connection, subject: Subject) -> None:
        """Insert or replace the subject in this transaction.

        It waits for transactions that begin a session of the subject.
        """
        # If two insert it at once, the second waits at its insert, and then updates.
        for name in ("change_subject", "add_subject", "change_subject"):
            statement = self._database.statement(_SQL[name])
            if connection.execute(statement, subject._asdict()).rowcount:
                return

    def locked(self, connection: Connection, ref: str) -> Subject:
        """Lock and return the user's subject, so that no session of it begins.

        A subject that does not exist is inserted first.  Without a row there is nothing
        to lock, and this transaction would overwrite a concurrent insert.
        """
        from sqlalchemy import select

        subjects = self._database.tables.subjects
        first = Subject(ref, ref, "live", 1)._asdict()
        connection.execute(self._database.statement(_SQL["add_subject"]), first)
        query = select(subjects).where(subjects.c.ref == ref).with_for_update()
        return Subject(*connection.execute(query).one())

    def key_generation(self) -> int:
        """Return the newest recorded generation of the key store; 0 without one."""
        rows = self._database.fetch(NOBODY, _SQL["setting"], (_GENERATION,))
        try:
            return int(rows[0][0]) if rows else 0
        except ValueError:
            raise KeyUnavailable(
                "the database does not say how new its key store is",
                remedy="restore a backup of the database",
            ) from None

    def saw_generation(self, generation: int) -> None:
        """Record the generation of the key store, if it is newer than the record."""
        if generation <= self.key_generation():
            return
        from sqlalchemy import select, update

        settings = self._database.tables.settings
        is_generation = settings.c.name == _GENERATION
        # If two record the first one at once, the second waits at its insert.
        insert_first = self._database.statement(_SQL["add_setting"])

        def record(connection: Connection) -> None:
            connection.execute(insert_first, {"name": _GENERATION})
            query = select(settings.c.value).where(is_generation).with_for_update()
            recorded = int(connection.execute(query).scalar_one())
            if recorded < generation:
                change = update(settings).where(is_generation)
                connection.execute(change.values(value=str(generation)))

        self._database.change(NOBODY, record)
