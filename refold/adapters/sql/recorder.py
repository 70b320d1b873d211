"""The recorder over SQL: reads in SQLAlchemy Core, writes through the dialect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import (
    CompoundSelect,
    Connection,
    Select,
    and_,
    delete,
    func,
    select,
)

from refold.adapters.recorder import (
    Batch,
    HeadRow,
    Heads,
    Recorder,
    Rewrite,
    StandingRows,
    ViewRow,
    WriteOutcome,
)
from refold.adapters.sealing import SealedEvent
from refold.adapters.sql import leases
from refold.adapters.sql.audit import SqlAudit
from refold.adapters.sql.dialect import Dialect, ErrorsTranslated
from refold.adapters.sql.erasing import SqlErasing
from refold.adapters.sql.grouping import GroupCommit
from refold.adapters.sql.keeping import SqlKeeping
from refold.adapters.sql.mending import SqlMending
from refold.adapters.sql.reading import COLUMNS, Reader, sealed
from refold.adapters.sql.saving import save_view
from refold.adapters.sql.sizes import Sizes, within
from refold.adapters.sql.standing import standing
from refold.adapters.sql.tree import SqlTree
from refold.domain.chain import GENESIS
from refold.domain.events import Span
from refold.domain.ids import MAIN, StreamId
from refold.domain.ports import Duplicate, SessionInfo
from refold.domain.sizes import Lagging, Place, Scope


class SqlRecorder(Recorder):
    """Rows in a database; the dialect knows which."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect, self._t = dialect, dialect.tables
        self._group = GroupCommit(dialect.write_group)
        self._errors = ErrorsTranslated(dialect)
        self._reader = Reader(dialect)
        self._tree = SqlTree(dialect)

    @property
    def audit_rows(self) -> SqlAudit:
        return SqlAudit(self._dialect)

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
                outcome = self._dialect.translate(outcome) or outcome
            done(outcome)

        return self._group.submit(batch, translated)

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
        with self._errors, self._dialect.writing(user_id) as connection:
            connection.execute(
                delete(views).where(
                    views.c.user_id == user_id, views.c.session_id == session_id
                )
            )

    def head_row(self, stream: StreamId) -> HeadRow | None:
        return self._reader.head(stream)

    def knows(self, user_id: str) -> bool:
        heads = self._t.heads.c
        query = select(heads.seq).where(heads.user_id == user_id).limit(1)
        return self._one(user_id, query) is not None

    def has_sessions(self) -> bool:
        with self._errors:
            return self._dialect.retrying(self._dialect.has_sessions)

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
    ) -> list[SealedEvent]:
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
            self._reader, self._dialect, stream, name, shown=shown, limit=limit
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
            self._dialect,
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
        def take(connection: Connection) -> bool:
            heads = self._t.heads
            live = select(heads.c.seq).where(
                *_at(heads, stream.main), heads.c.status != "erased"
            )
            if connection.execute(live.with_for_update(read=True)).first() is None:
                return False
            return leases.take(connection, self._t.leases, stream, owner, now, until)

        return self._changing(stream, take)

    def renew_lease(self, stream: StreamId, owner: str, *, until: int) -> bool:
        table = self._t.leases
        return self._changing(
            stream, lambda c: leases.renew(c, table, stream, owner, until)
        )

    def release_lease(self, stream: StreamId, owner: str) -> bool:
        table = self._t.leases
        return self._changing(stream, lambda c: leases.release(c, table, stream, owner))

    def _changing(self, stream: StreamId, change: Callable[[Connection], bool]) -> bool:
        def attempt() -> bool:
            with self._dialect.writing(stream.user_id) as connection:
                return change(connection)

        with self._errors:
            return self._dialect.retrying(attempt)

    def lagging(
        self, scope: Scope, *, by: int, limit: int, after: Place | None
    ) -> list[Lagging]:
        query = Sizes(self._t, scope).lagging(by=by, limit=limit, after=after)
        found = self._all(scope.user_id, query)
        return [Lagging(Place(*row[:3]), row[3]) for row in found]

    def stats(self, scope: Scope, *, now: int) -> dict[str, Any]:
        with self._errors, self._dialect.reading(scope.user_id) as connection:
            sizes = Sizes(self._t, scope).read(connection, now=now)
            found = {"engine": self._dialect.name, **sizes}
            if scope.user_id is None:
                found["database_bytes"] = self._dialect.size(connection)
            return found

    def notifications(
        self, *, after: int, upto: int | None, limit: int
    ) -> list[tuple[int, SealedEvent]]:
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
        query = query.where(events.c.position > after, self._dialect.settled())
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
        query = select(func.max(events.position)).where(self._dialect.settled())
        row = self._one(None, query)
        return row[0] if row else None

    def erasing(self) -> SqlErasing:
        return SqlErasing(self._dialect, self.tree)

    def keeping(self) -> SqlKeeping:
        return SqlKeeping(self._dialect, self.tree)

    def mending(self) -> SqlMending:
        return SqlMending(self._dialect)

    def close(self) -> None:
        self._group.close()
        self._dialect.close()

    def _one(self, user_id: str | None, query: Select[Any]) -> Any:
        return next(iter(self._all(user_id, query)), None)

    def _all(
        self, user_id: str | None, query: Select[Any] | CompoundSelect[Any]
    ) -> Sequence[Any]:
        """The rows of that user, of all if it is None."""

        def fetch() -> Sequence[Any]:
            with self._dialect.reading(user_id) as connection:
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
