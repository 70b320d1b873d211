"""The recorder over SQL: reads in SQLAlchemy Core, writes through the dialect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from sqlalchemy import (
    ColumnElement,
    CompoundSelect,
    Connection,
    Select,
    Table,
    and_,
    delete,
    func,
    insert,
    select,
    text,
    tuple_,
    update,
)

from refold.adapters.recorder import (
    FROZEN,
    Batch,
    HeadRow,
    Heads,
    Recorder,
    Rewrite,
    StandingRows,
    ViewRow,
    WriteOutcome,
)
from refold.adapters.rows import EncryptedEvent
from refold.adapters.sql.access_log import SqlAudit
from refold.adapters.sql.database import Database, ErrorsTranslated, GroupCommit
from refold.adapters.sql.erasure import SqlErasing, SqlKeeping
from refold.adapters.sql.reading import COLUMNS, Reader, save_view, sealed, standing
from refold.adapters.sql.tables import Tables
from refold.adapters.sql.tree import SqlTree
from refold.domain.chain import GENESIS
from refold.domain.events import JsonObject, Span
from refold.domain.ids import MAIN, StreamId
from refold.domain.ports import (
    BESIDE,
    RATES,
    Duplicate,
    Lagging,
    Place,
    Scope,
    SessionInfo,
)

_FREE: Final = "held.expires_at <= :now OR held.owner = excluded.owner"
_TAKE: Final = f"""
INSERT INTO {{table}} AS held
  (user_id, session_id, stream, owner, expires_at, pending)
VALUES (:user_id, :session_id, :stream, :owner, :until, 0)
ON CONFLICT (user_id, session_id, stream) DO UPDATE SET
  owner = CASE WHEN {_FREE} THEN excluded.owner ELSE held.owner END,
  expires_at = CASE WHEN {_FREE} THEN excluded.expires_at ELSE held.expires_at END,
  pending = CASE WHEN {_FREE} THEN 0 ELSE 1 END
RETURNING owner
"""


def take(
    connection: Connection,
    table: Table,
    stream: StreamId,
    owner: str,
    now: int,
    until: int,
) -> bool:
    """Hold the lease if it is free at ``now``; if not, mark it as asked for."""
    statement = text(_TAKE.format(table=table.fullname))
    values = {**stream._asdict(), "owner": owner, "now": now, "until": until}
    return bool(connection.execute(statement, values).scalar_one() == owner)


def renew(
    connection: Connection, table: Table, stream: StreamId, owner: str, until: int
) -> bool:
    """Hold it longer, if it is still the owner's."""
    held = update(table).where(*_held(table, stream, owner))
    return connection.execute(held.values(expires_at=until)).rowcount == 1


def release(connection: Connection, table: Table, stream: StreamId, owner: str) -> bool:
    """Give it back; True if it was marked as asked for."""
    held = delete(table).where(*_held(table, stream, owner))
    pending = connection.execute(held.returning(table.c.pending)).scalar()
    return bool(pending)


def _held(table: Table, stream: StreamId, owner: str) -> tuple[Any, ...]:
    return (
        table.c.user_id == stream.user_id,
        table.c.session_id == stream.session_id,
        table.c.stream == stream.stream,
        table.c.owner == owner,
    )


T = TypeVar("T")


class SqlMending:
    """MendingRows in the database of a dialect."""

    def __init__(self, dialect: Database) -> None:
        self._database, self._t = dialect, dialect.tables
        self._errors = ErrorsTranslated(dialect)

    def put_head(self, stream: StreamId, row: HeadRow, user_ref: str) -> bool:
        heads, events, subjects = self._t.heads, self._t.events, self._t.subjects.c
        # A head that is gone says neither that its user is frozen nor that it was
        # marked as erased; a freeze or an erasure that begins now waits for this.
        user = select(subjects.status).where(subjects.ref == user_ref)
        user = user.with_for_update(read=True)
        known = select(heads.c.status).where(*_stream(heads, stream)).with_for_update()
        last = select(events.c.seq, events.c.hash).where(*_stream(events, stream))
        last = last.order_by(events.c.seq.desc()).limit(1)
        values = row._asdict()

        def attempt(connection: Connection) -> bool:
            if connection.execute(user).scalar() not in (None, "live"):
                return False
            status = connection.execute(known).scalar()
            end = connection.execute(last).one_or_none()
            if status not in (None, *FROZEN) or end is None:  # or it is frozen
                return False
            if (end.seq, bytes(end.hash)) != (row.seq, row.hash):
                return False
            if status is None:
                names = {name: getattr(stream, name) for name in stream._fields}
                connection.execute(insert(heads).values(**names, **values))
            else:
                here = _stream(heads, stream)
                connection.execute(update(heads).where(*here).values(**values))
            return True

        return self._changing(stream, attempt)

    def ends(self, stream: StreamId) -> dict[str, int]:
        return self._changing(stream, lambda c: self._ends(c, stream))

    def _ends(self, connection: Connection, stream: StreamId) -> dict[str, int]:
        """The heads, locked until the transaction ends."""
        heads = self._t.heads.c
        query = select(heads.stream, heads.seq).where(
            heads.user_id == stream.user_id, heads.session_id == stream.session_id
        )
        found = connection.execute(query.order_by(heads.stream).with_for_update())
        return {row.stream: row.seq for row in found}

    def blob_addresses(self, stream: StreamId) -> list[bytes]:
        blobs = self._t.blobs.c
        query = select(blobs.address).where(
            blobs.user_id == stream.user_id, blobs.session_id == stream.session_id
        )
        return self._changing(
            stream, lambda connection: [bytes(one) for one in connection.scalars(query)]
        )

    def delete_blobs(
        self, stream: StreamId, addresses: tuple[bytes, ...], ends: dict[str, int]
    ) -> bool:
        blobs = self._t.blobs
        theirs = blobs.c.user_id == stream.user_id

        def attempt(connection: Connection) -> bool:
            if self._ends(connection, stream) != ends:
                return False
            for address in addresses:
                here = blobs.c.address == address
                connection.execute(delete(blobs).where(theirs, here))
            return True

        return self._changing(stream, attempt)

    def _changing(self, stream: StreamId, change: Callable[[Connection], T]) -> T:
        """One transaction that can write from its first statement on."""

        def attempt() -> T:
            with self._database.writing(stream.user_id) as connection:
                return change(connection)

        with self._errors:
            return self._database.retrying(attempt)


def _stream(table: Any, stream: StreamId) -> list[Any]:
    return [getattr(table.c, name) == getattr(stream, name) for name in stream._fields]


_LAG: Final = ("fingerprint", "views", "behind", "events", "most")


class Sizes:
    """Figures of a store, of a user in it, or of one session."""

    def __init__(self, tables: Tables, scope: Scope) -> None:
        self._t, self._scope = tables, scope

    def read(self, connection: Connection, *, now: int) -> dict[str, Any]:
        """The figures; ``now`` in microseconds since 1970 is where the rates end."""
        lag = [
            dict(zip(_LAG, map(_plain, row), strict=True))
            for row in connection.execute(self._lag())
        ]
        return {
            **_one(connection, self._sessions(now)),
            **_one(connection, self._events(now)),
            **self._beside(connection),
            "lag": lag,
        }

    def lagging(self, *, by: int, limit: int, after: Place | None) -> Select[Any]:
        """Stored views that are behind their heads by so many events, in order."""
        views = self._t.views.c
        place = (views.user_id, views.session_id, views.name)
        query, behind = self._behind(*place)
        query = query.add_columns(behind).where(behind >= by)
        if after is not None:
            query = query.where(tuple_(*place) > tuple_(*after))
        return query.order_by(*place).limit(limit)

    def _sessions(self, now: int) -> Select[Any]:
        heads = self._t.heads.c
        main = heads.stream == MAIN
        columns = [
            func.count(heads.user_id.distinct()).label("users"),
            func.count().filter(main).label("sessions"),
            func.count().filter(~main).label("derived_streams"),
            func.coalesce(func.sum(heads.tokens).filter(main), 0).label("tokens"),
        ]
        for name, span in RATES.items():
            recent = func.count().filter(main, heads.updated_at > now - span)
            columns.append(recent.label(f"sessions_{name}"))
        return select(*columns).where(*within(self._t.heads, self._scope))

    def _events(self, now: int) -> Select[Any]:
        events = self._t.events.c
        size = func.sum(func.length(events.body))
        columns = [
            func.count().label("events"),
            func.coalesce(size, 0).label("event_bytes"),
        ]
        for name, span in RATES.items():
            recent = events.ts > now - span
            columns.append(func.count().filter(recent).label(f"events_{name}"))
            recent_size = func.coalesce(size.filter(recent), 0)
            columns.append(recent_size.label(f"event_bytes_{name}"))
        return select(*columns).where(*within(self._t.events, self._scope))

    def _beside(self, connection: Connection) -> dict[str, Any]:
        views, blobs = self._t.views, self._t.blobs
        found = self._counted(connection, "view", views, func.length(views.c.body))
        # Whose session a blob is of only its key can tell.
        if self._scope.session_id is None:
            found |= self._counted(connection, "blob", blobs, blobs.c.size)
        return found

    def _counted(
        self, connection: Connection, what: str, table: Table, size: Any
    ) -> dict[str, Any]:
        total = func.coalesce(func.sum(size), 0).label(f"{what}_bytes")
        query = select(func.count().label(f"{what}s"), total).select_from(table)
        return _one(connection, query.where(*within(table, self._scope)))

    def _lag(self) -> Select[Any]:
        name = self._t.views.c.name
        query, behind = self._behind(name)
        figures = (
            func.count(),
            func.count().filter(behind > 0),
            func.sum(behind),
            func.max(behind),
        )
        return query.add_columns(*figures).group_by(name).order_by(name)

    def _behind(self, *columns: Any) -> tuple[Select[Any], ColumnElement[int]]:
        views, main = self._t.views, self._t.heads.alias("m")
        derived = self._t.heads.alias("d")
        behind = main.c.seq - views.c.through_seq
        behind += func.coalesce(derived.c.seq, 0) - views.c.derived_seq
        joined = views.join(main, _head_of(views, main, MAIN)).outerjoin(
            derived, _head_of(views, derived, views.c.name)
        )
        query = select(*columns).select_from(joined)
        query = query.where(*within(views, self._scope), main.c.status != "erased")
        return query.where(~views.c.name.contains(BESIDE)), behind


def within(table: Any, scope: Scope) -> list[Any]:
    """The conditions that keep a query to the scope."""
    named = scope._asdict().items()
    return [table.c[name] == value for name, value in named if value is not None]


def _head_of(views: Any, heads: Any, stream: Any) -> Any:
    same = heads.c.user_id == views.c.user_id
    return (
        same & (heads.c.session_id == views.c.session_id) & (heads.c.stream == stream)
    )


def _one(connection: Connection, query: Any) -> JsonObject:
    row = connection.execute(query).mappings().one()
    return {name: _plain(value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    return value if isinstance(value, str) else int(value)  # a sum may be a Decimal


class SqlRecorder(Recorder):
    """Rows in a database; the dialect knows which."""

    def __init__(self, dialect: Database) -> None:
        self._database, self._t = dialect, dialect.tables
        self._group = GroupCommit(dialect.write_group)
        self._errors = ErrorsTranslated(dialect)
        self._reader = Reader(dialect)
        self._tree = SqlTree(dialect)
        self.shared = not dialect.in_memory

    @property
    def audit_rows(self) -> SqlAudit:
        return SqlAudit(self._database)

    @property
    def tree(self) -> SqlTree:
        return self._tree

    def write(self, batch: Batch) -> WriteOutcome:
        with self._errors:
            return self._group.write(batch)

    def write_soon(
        self, batch: Batch, done: Callable[[WriteOutcome | Exception], None]
    ) -> bool:
        def translated(outcome: WriteOutcome | Exception) -> None:
            if isinstance(outcome, Exception):
                outcome = self._database.translate(outcome) or outcome
            done(outcome)

        return self._group.submit(batch, translated)

    def write_exclusive(
        self, stream: StreamId, build: Callable[[HeadRow | None], Batch]
    ) -> WriteOutcome:
        with self._errors:
            return self._database.write_exclusive(stream, build)

    def rewrite(
        self, stream: StreamId, build: Callable[[Heads], Rewrite | None]
    ) -> bool:
        with self._errors:
            return self._database.rewrite(stream, build)

    def flush(self) -> None:
        with self._errors:
            self._database.flush()

    def drop_views(
        self, user_id: str, session_id: str, *, name: str | None = None
    ) -> None:
        views = self._t.views
        mine = [views.c.user_id == user_id, views.c.session_id == session_id]
        if name is not None:
            mine.append(views.c.name == name)
        with self._errors, self._database.writing(user_id) as connection:
            connection.execute(delete(views).where(*mine))

    def head_row(self, stream: StreamId) -> HeadRow | None:
        return self._reader.head(stream)

    def knows(self, user_id: str) -> bool:
        heads = self._t.heads.c
        query = select(heads.seq).where(heads.user_id == user_id).limit(1)
        return self._one(user_id, query) is not None

    def has_sessions(self) -> bool:
        with self._errors:
            return self._database.retrying(self._database.has_sessions)

    def receipt(self, stream: StreamId, key: bytes) -> Duplicate | None:
        receipts = self._t.receipts.c
        query = select(receipts.first_seq, receipts.last_seq)
        query = query.where(*_at(self._t.receipts, stream), receipts.address == key)
        row = self._one(stream.user_id, query)
        return Duplicate(*row) if row else None

    def rows(
        self,
        stream: StreamId,
        *,
        after: int = 0,
        upto: int | None = None,
        limit: int | None = None,
        types: Sequence[str] = (),
        newest: bool = False,
        spans: Sequence[Span] = (),
    ) -> list[EncryptedEvent]:
        if spans:
            return self._reader.spans(stream, spans)
        return self._reader.page(
            stream, after=after, upto=upto, limit=limit, types=types, newest=newest
        )

    def sessions(
        self, user_id: str | None, session_id: str | None
    ) -> list[SessionInfo]:
        heads = self._t.heads.c
        query = select(
            heads.user_id,
            heads.session_id,
            heads.seq,
            heads.status,
            heads.tokens,
            heads.created_at,
            heads.updated_at,
        ).where(heads.stream == MAIN)
        if user_id is not None:
            query = query.where(heads.user_id == user_id)
        if session_id is not None:
            query = query.where(heads.session_id == session_id)
        query = query.order_by(heads.user_id, heads.session_id)
        return [SessionInfo(*row) for row in self._all(user_id, query)]

    def streams(self, user_id: str, session_id: str) -> list[str]:
        heads = self._t.heads.c
        query = select(heads.stream).where(
            heads.user_id == user_id, heads.session_id == session_id
        )
        names = [row.stream for row in self._all(user_id, query)]
        return sorted(names, key=lambda name: (name != MAIN, name))

    def orphans(self, scope: Scope) -> list[StreamId]:
        events, heads = self._t.events, self._t.heads
        head = select(heads.c.seq).where(*_at(heads, _like(events))).exists()
        query = select(*_like(events)).where(~head, *within(events, scope)).distinct()
        return sorted(StreamId(*row) for row in self._all(scope.user_id, query))

    def blob_row(self, stream: StreamId, address: bytes) -> bytes | None:
        blobs, heads = self._t.blobs.c, self._t.heads
        mine = blobs.user_id == stream.user_id, blobs.address == address
        erased = select(heads.c.seq).where(
            *_at(heads, stream.main), heads.c.status == "erased"
        )
        query = select(blobs.body).where(*mine, ~erased.exists())
        row = self._one(stream.user_id, query)
        return bytes(row.body) if row else None

    def view_row(self, stream: StreamId, name: str) -> ViewRow | None:
        return self._reader.view(stream, name)

    def standing(
        self, stream: StreamId, name: str, *, shown: bool, limit: int
    ) -> StandingRows:
        return standing(
            self._reader, self._database, stream, name, shown=shown, limit=limit
        )

    def save_view_row(
        self,
        stream: StreamId,
        name: str,
        row: ViewRow,
        *,
        replaces: int,
        key_check: bytes,
    ) -> bool:
        return save_view(
            self._reader,
            self._database,
            stream,
            name,
            row,
            replaces=replaces,
            key_check=key_check,
        )

    def view_names(self, user_id: str, session_id: str) -> list[str]:
        views = self._t.views.c
        query = select(views.name).where(
            views.user_id == user_id, views.session_id == session_id
        )
        found = self._all(user_id, query.order_by(views.name))
        return [row.name for row in found]

    def take_lease(self, stream: StreamId, owner: str, *, now: int, until: int) -> bool:
        def taken(connection: Connection) -> bool:
            heads = self._t.heads
            live = select(heads.c.seq).where(
                *_at(heads, stream.main), heads.c.status != "erased"
            )
            if connection.execute(live.with_for_update(read=True)).first() is None:
                return False
            return take(connection, self._t.leases, stream, owner, now, until)

        return self._changing(stream, taken)

    def renew_lease(self, stream: StreamId, owner: str, *, until: int) -> bool:
        table = self._t.leases
        return self._changing(stream, lambda c: renew(c, table, stream, owner, until))

    def release_lease(self, stream: StreamId, owner: str) -> bool:
        table = self._t.leases
        return self._changing(stream, lambda c: release(c, table, stream, owner))

    def _changing(self, stream: StreamId, change: Callable[[Connection], bool]) -> bool:
        def attempt() -> bool:
            with self._database.writing(stream.user_id) as connection:
                return change(connection)

        with self._errors:
            return self._database.retrying(attempt)

    def lagging(
        self, scope: Scope, *, by: int, limit: int, after: Place | None
    ) -> list[Lagging]:
        query = Sizes(self._t, scope).lagging(by=by, limit=limit, after=after)
        found = self._all(scope.user_id, query)
        return [Lagging(Place(*row[:3]), row[3]) for row in found]

    def stats(self, scope: Scope, *, now: int) -> dict[str, Any]:
        with self._errors, self._database.reading(scope.user_id) as connection:
            sizes = Sizes(self._t, scope).read(connection, now=now)
            found = {"engine": self._database.name, **sizes}
            if scope.user_id is None:
                found["database_bytes"] = self._database.size(connection)
            return found

    def notifications(
        self, *, after: int, upto: int | None, limit: int
    ) -> list[tuple[int, EncryptedEvent]]:
        events, before = self._t.events, self._t.events.alias()
        previous = (
            select(before.c.hash)
            .where(*_at(before, _like(events)), before.c.seq == events.c.seq - 1)
            .scalar_subquery()
        )
        columns = [events.c[name] for name in COLUMNS]
        heads = self._t.heads
        erased = select(heads.c.seq).where(
            *_at(heads, (events.c.user_id, events.c.session_id, MAIN)),
            heads.c.status == "erased",
        )
        query = select(events.c.position, *_like(events), *columns, previous)
        query = query.where(events.c.position > after, self._database.settled())
        query = query.where(~erased.exists())
        if upto is not None:
            query = query.where(events.c.position <= upto)
        query = query.order_by(events.c.position).limit(limit)
        return [
            (row[0], sealed(StreamId(*row[1:4]), row[4:], bytes(row[-1] or GENESIS)))
            for row in self._all(None, query)
        ]

    def max_notification_id(self) -> int | None:
        events = self._t.events.c
        query = select(func.max(events.position)).where(self._database.settled())
        row = self._one(None, query)
        return row[0] if row else None

    def erasing(self) -> SqlErasing:
        return SqlErasing(self._database, self.tree)

    def keeping(self) -> SqlKeeping:
        return SqlKeeping(self._database, self.tree)

    def mending(self) -> SqlMending:
        return SqlMending(self._database)

    def close(self) -> None:
        self._group.close()
        self._database.close()

    def _one(self, user_id: str | None, query: Select[Any]) -> Any:
        return next(iter(self._all(user_id, query)), None)

    def _all(
        self, user_id: str | None, query: Select[Any] | CompoundSelect[Any]
    ) -> Sequence[Any]:
        """The rows of that user, of all if it is None."""

        def fetch() -> Sequence[Any]:
            with self._database.reading(user_id) as connection:
                return connection.execute(query).all()

        with self._errors:
            return self._database.retrying(fetch)


def _like(table: Any) -> Any:
    """The three columns that name the stream of a row of ``table``."""
    return table.c.user_id, table.c.session_id, table.c.stream


def _at(table: Any, stream: Any) -> tuple[Any, ...]:
    user_id, session_id, name = stream
    return (
        and_(
            table.c.user_id == user_id,
            table.c.session_id == session_id,
            table.c.stream == name,
        ),
    )
