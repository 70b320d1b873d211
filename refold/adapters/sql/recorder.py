"""The recorder over SQL: reads in SQLAlchemy Core, writes through the dialect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final
from uuid import UUID

from sqlalchemy import (
    CompoundSelect,
    Connection,
    Select,
    and_,
    case,
    delete,
    func,
    insert,
    select,
    union_all,
    update,
)
from sqlalchemy.exc import IntegrityError as SqlIntegrityError

from refold.adapters.recorder import (
    Batch,
    HeadRow,
    Heads,
    Recorder,
    Rewrite,
    ViewRow,
    WriteOutcome,
)
from refold.adapters.sealing import SealedEvent, stored
from refold.adapters.sql import leases
from refold.adapters.sql.dialect import Dialect, ErrorsTranslated
from refold.adapters.sql.grouping import GroupCommit
from refold.domain.chain import GENESIS, Header
from refold.domain.errors import CorruptEvent
from refold.domain.events import Span
from refold.domain.ids import MAIN, StreamId
from refold.domain.ports import Duplicate, SessionInfo

_RANGES: Final = 100  # in one statement: SQLite takes at most 500


class SqlRecorder(Recorder):
    """Rows in a database; the dialect knows which."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect, self._t = dialect, dialect.tables
        self._group = GroupCommit(dialect.write_group)
        self._errors = ErrorsTranslated(dialect)

    def write(self, batch: Batch) -> WriteOutcome:
        with self._errors:
            return self._group.write(batch)

    def write_exclusive(
        self, stream: StreamId, build: Callable[[HeadRow | None], Batch]
    ) -> WriteOutcome:
        with self._errors:
            return self._dialect.write_exclusive(stream, build)

    def rewrite(
        self, stream: StreamId, build: Callable[[Heads], Rewrite | None]
    ) -> bool:
        with self._errors:
            return self._dialect.rewrite(stream, build)

    def flush(self) -> None:
        with self._errors:
            self._dialect.flush()

    def drop_views(self, user_id: str, session_id: str) -> None:
        views = self._t.views
        with self._errors, self._exclusive() as connection:
            connection.execute(
                delete(views).where(
                    views.c.user_id == user_id, views.c.session_id == session_id
                )
            )

    def _exclusive(self) -> Any:
        """A transaction that can write from its first statement on."""
        engine = self._dialect.engine()
        return engine.execution_options(refold_begin="IMMEDIATE").begin()

    def head_row(self, stream: StreamId) -> HeadRow | None:
        heads = self._t.heads.c
        columns = [heads[name] for name in HeadRow._fields]
        row = self._one(select(*columns).where(*_at(self._t.heads, stream)))
        return HeadRow(*row) if row else None

    def knows(self, user_id: str) -> bool:
        heads = self._t.heads.c
        query = select(heads.seq).where(heads.user_id == user_id).limit(1)
        return self._one(query) is not None

    def has_sessions(self) -> bool:
        return self._one(select(self._t.heads.c.seq).limit(1)) is not None

    def receipt(self, stream: StreamId, key: bytes) -> Duplicate | None:
        receipts = self._t.receipts.c
        query = select(receipts.first_seq, receipts.last_seq)
        row = self._one(
            query.where(*_at(self._t.receipts, stream), receipts.address == key)
        )
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
    ) -> list[SealedEvent]:
        if spans:
            return self._rows_of(stream, spans)
        events = self._t.events
        query = select(*self._columns(), self._prev_hash(after, types or newest))
        query = query.where(*_at(events, stream), events.c.seq > after)
        if upto is not None:
            query = query.where(events.c.seq <= upto)
        if types:
            query = query.where(events.c.type.in_(types))
        order = events.c.seq.desc() if newest else events.c.seq
        found = self._all(query.order_by(order).limit(limit))
        rows: list[SealedEvent] = []
        for row in reversed(found) if newest else found:
            if row.prev_hash is not None:
                prev = bytes(row.prev_hash)
            else:
                prev = GENESIS if types or newest or not rows else rows[-1].hash
            rows.append(_sealed(row, prev))
        return rows

    def _rows_of(self, stream: StreamId, spans: Sequence[Span]) -> list[SealedEvent]:
        """A range for each span: of alternatives SQLite would look at all rows."""
        events = self._t.events
        found: list[Any] = []
        for start in range(0, len(spans), _RANGES):
            chunk = spans[start : start + _RANGES]
            ranges = [
                select(*self._columns(), self._prev_hash(first - 1, ()))
                .where(*_at(events, stream))
                .where(events.c.seq.between(first, last))
                for first, last in chunk
            ]
            query = union_all(*ranges) if len(ranges) > 1 else ranges[0]
            found += self._all(query.order_by("seq"))
        rows: list[SealedEvent] = []
        for row in found:
            prev = rows[-1].hash if rows else GENESIS
            own = row.prev_hash
            rows.append(_sealed(row, prev if own is None else bytes(own)))
        return rows

    def _columns(self) -> list[Any]:
        names = [c.name for c in self._t.events.c if c.name != "position"]
        return [self._t.events.c[name] for name in names]

    def _prev_hash(self, after: int, scattered: object) -> Any:
        """The hash of the row before; asked for only where it is not in the page."""
        events, before = self._t.events, self._t.events.alias()
        previous = (
            select(before.c.hash)
            .where(*_at(before, _like(events)), before.c.seq == events.c.seq - 1)
            .scalar_subquery()
        )
        if scattered:
            return previous.label("prev_hash")
        return case((events.c.seq == after + 1, previous)).label("prev_hash")

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
        return [SessionInfo(*row) for row in self._all(query)]

    def streams(self, user_id: str, session_id: str) -> list[str]:
        heads = self._t.heads.c
        query = select(heads.stream).where(
            heads.user_id == user_id, heads.session_id == session_id
        )
        names = [row.stream for row in self._all(query)]
        return sorted(names, key=lambda name: (name != MAIN, name))

    def orphans(self) -> list[StreamId]:
        events, heads = self._t.events, self._t.heads
        head = select(heads.c.seq).where(*_at(heads, _like(events))).exists()
        query = select(*_like(events)).where(~head).distinct()
        return sorted(StreamId(*row) for row in self._all(query))

    def blob_row(self, user_id: str, address: bytes) -> bytes | None:
        blobs = self._t.blobs.c
        row = self._one(
            select(blobs.body).where(blobs.user_id == user_id, blobs.address == address)
        )
        return bytes(row.body) if row else None

    def view_row(self, stream: StreamId, name: str) -> ViewRow | None:
        views = self._t.views.c
        query = select(views.through_seq, views.derived_seq, views.body)
        row = self._one(query.where(*self._view(stream, name)))
        return ViewRow(row[0], row[1], bytes(row[2])) if row else None

    def save_view_row(
        self,
        stream: StreamId,
        name: str,
        row: ViewRow,
        *,
        replaces: int,
        key_check: bytes,
    ) -> bool:
        views, heads = self._t.views, self._t.heads
        values = row._asdict()
        same_key = select(heads.c.seq).where(
            *_at(heads, stream), heads.c.key_check == key_check
        )
        with self._errors, self._exclusive() as connection:
            if connection.execute(same_key.with_for_update(read=True)).first() is None:
                return False
            found = connection.execute(
                update(views)
                .where(*self._view(stream, name), views.c.through_seq == replaces)
                .values(values)
            )
            if found.rowcount or replaces:
                return bool(found.rowcount)
            keys = {"user_id": stream.user_id, "session_id": stream.session_id}
            try:
                connection.execute(insert(views).values(**keys, name=name, **values))
            except SqlIntegrityError:
                connection.rollback()
                return False
            return True

    def _view(self, stream: StreamId, name: str) -> tuple[Any, ...]:
        views = self._t.views.c
        return (
            views.user_id == stream.user_id,
            views.session_id == stream.session_id,
            views.name == name,
        )

    def view_names(self, user_id: str, session_id: str) -> list[str]:
        views = self._t.views.c
        query = select(views.name).where(
            views.user_id == user_id, views.session_id == session_id
        )
        return [row.name for row in self._all(query.order_by(views.name))]

    def take_lease(self, stream: StreamId, owner: str, *, now: int, until: int) -> bool:
        def take(connection: Connection) -> bool:
            heads = self._t.heads
            live = select(heads.c.seq).where(
                *_at(heads, stream.main), heads.c.status != "erased"
            )
            if connection.execute(live.with_for_update(read=True)).first() is None:
                return False
            return leases.take(connection, self._t.leases, stream, owner, now, until)

        return self._changing(take)

    def renew_lease(self, stream: StreamId, owner: str, *, until: int) -> bool:
        table = self._t.leases
        return self._changing(lambda c: leases.renew(c, table, stream, owner, until))

    def release_lease(self, stream: StreamId, owner: str) -> bool:
        table = self._t.leases
        return self._changing(lambda c: leases.release(c, table, stream, owner))

    def _changing(self, change: Callable[[Connection], bool]) -> bool:
        def attempt() -> bool:
            with self._exclusive() as connection:
                return change(connection)

        with self._errors:
            return self._dialect.retrying(attempt)

    def stats(self) -> dict[str, Any]:
        t = self._t
        with self._errors, self._dialect.engine().connect() as connection:

            def count(table: Any, size: Any, *where: Any) -> Any:
                total = func.coalesce(func.sum(size), 0)
                query = select(func.count(), total).select_from(table).where(*where)
                return connection.execute(query).one()

            events = count(t.events, func.length(t.events.c.body))
            blobs = count(t.blobs, t.blobs.c.size)
            sessions = count(t.heads, t.heads.c.tokens, t.heads.c.stream == MAIN)
            return {
                "engine": self._dialect.name,
                "sessions": sessions[0],
                "tokens": int(sessions[1]),
                "events": events[0],
                "event_bytes": int(events[1]),
                "blobs": blobs[0],
                "blob_bytes": int(blobs[1]),
                "views": count(t.views, t.views.c.through_seq)[0],
                "database_bytes": self._dialect.size(connection),
            }

    def notifications(
        self, *, after: int, upto: int | None, limit: int
    ) -> list[tuple[int, SealedEvent]]:
        events = self._t.events
        query = select(
            events.c.position, *self._columns(), self._prev_hash(0, scattered=True)
        )
        query = query.where(events.c.position > after, self._dialect.settled())
        if upto is not None:
            query = query.where(events.c.position <= upto)
        query = query.order_by(events.c.position).limit(limit)
        return [
            (row.position, _sealed(row, bytes(row.prev_hash or GENESIS)))
            for row in self._all(query)
        ]

    def max_notification_id(self) -> int | None:
        events = self._t.events.c
        row = self._one(
            select(func.max(events.position)).where(self._dialect.settled())
        )
        return row[0] if row else None

    def close(self) -> None:
        self._dialect.close()

    def _one(self, query: Select[Any]) -> Any:
        return next(iter(self._all(query)), None)

    def _all(self, query: Select[Any] | CompoundSelect[Any]) -> Sequence[Any]:
        def fetch() -> Sequence[Any]:
            with self._dialect.engine().connect() as connection:
                return connection.execute(query).all()

        with self._errors:
            return self._dialect.retrying(fetch)


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


def _sealed(row: Any, prev_hash: bytes) -> SealedEvent:
    stream = StreamId(row.user_id, row.session_id, row.stream)
    try:
        header = Header(
            stream,
            int(row.seq),
            row.type,
            int(row.ts),
            UUID(bytes=bytes(row.event_id)),
            int(row.token_estimate),
            int(row.schema_version),
        )
        first = None if row.first_digest is None else bytes(row.first_digest)
        return stored(header, bytes(row.body), bytes(row.hash), prev_hash, first)
    except (TypeError, ValueError):
        raise CorruptEvent(
            f"session {stream.session_id!r} {stream.stream}",
            seq=row.seq,
            reason="a column does not hold what was written",
        ) from None
