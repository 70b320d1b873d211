"""A database of applications' events, whose errors become those of the library."""

from __future__ import annotations

import sqlite3
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any, Final, TypeAlias

import psycopg
import sqlalchemy as sa
from eventsourcing import persistence
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from refold.adapters.sql.database import Database, ErrorsTranslated, engine_of
from refold.adapters.sql.postgres import PostgresDatabase
from refold.adapters.sql.sqlite import SqliteDatabase
from refold.domain.errors import InvalidConfiguration, RefoldError

Before: TypeAlias = Callable[[sa.Connection], None] | None
Row: TypeAlias = Mapping[str, Any]  # an event as it is stored, its state encrypted


_REFUSED: Final = (
    "the database refuses it as a duplicate, or by another rule of its tables: read "
    "again and repeat the command"
)


class EventsDatabase:
    """One database, shared by all recorders of an application.

    It connects on first use.

    schema: the schema of their tables, on an engine with schemas.

    Raises InvalidConfiguration if ``url`` names neither SQLite nor PostgreSQL.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.schema: str | None = None
        match engine_of(url):
            case "sqlite", parsed:
                self._engine: Database = SqliteDatabase(parsed)
            case "postgresql", parsed:
                self._engine = PostgresDatabase(parsed)
                self.schema = "refold_es"
            case _:
                raise InvalidConfiguration(
                    "REFOLD_DB must name a database that keeps events: "
                    "sqlite:///app.db or postgresql://user:password@host/database (for "
                    "tests without one, set PERSISTENCE_MODULE=eventsourcing.popo)"
                )
        self._close = weakref.finalize(self, self._engine.close)

    def read(self, query: sa.Executable) -> Sequence[Any]:
        """Return all rows of a query; retries it if the connection breaks."""

        def fetch() -> Sequence[Any]:
            with self._engine.engine().connect() as connection:
                return connection.execute(query).all()

        with self.errors():
            return self._engine.retrying(fetch)

    @contextmanager
    def transaction(self, first: Before = None) -> Iterator[sa.Connection]:
        """Begin a transaction that can write, and commit it unless the block raises.

        first: runs in it before the block; if the connection is broken, it runs again
               on another one.
        """

        def begin() -> tuple[sa.Connection, ExitStack]:
            with ExitStack() as begun:
                connection = begun.enter_context(self._begin())
                if first is not None:
                    first(connection)
                return connection, begun.pop_all()

        with self.errors():
            connection, begun = self._engine.retrying(begin)
            with begun:
                yield connection

    def _begin(self) -> AbstractContextManager[sa.Connection]:
        """Begin a transaction; on SQLite it has the write lock from its beginning."""
        return self._engine.engine().execution_options(refold_begin="IMMEDIATE").begin()

    def insert(
        self,
        table: sa.Table,
        rows: Sequence[Row],
        positions: sa.Table | None,
        *,
        taken: str,
        before: Before = None,
    ) -> list[int]:
        """Write all rows or none; returns their notification ids.

        The ids come from ``positions``, whose row stays locked until the commit, so
        that later ids are committed later.  After a broken connection, a retry looks
        first whether the rows were written.

        before: writes in the same transaction before the rows.
        taken:  the message of the IntegrityError that is raised if a row exists.
        """
        was_tried = False

        def attempt() -> list[int]:
            nonlocal was_tried
            is_retry = was_tried
            was_tried = bool(rows)
            try:
                with self._begin() as connection:
                    ids = _written(connection, table, rows) if is_retry else None
                    if ids is None:
                        if before is not None:
                            before(connection)
                        return _insert(connection, table, rows, positions)
            except (sa.exc.IntegrityError, persistence.IntegrityError):
                # The first attempt may have committed after this one looked.
                with self._begin() as connection:
                    ids = _written(connection, table, rows) if is_retry else None
                if ids is None:
                    raise
            return ids

        with self.errors(taken=taken):
            return self._engine.retrying(attempt)

    def create(
        self,
        metadata: sa.MetaData,
        *,
        is_done: Callable[[sa.Connection], bool] = lambda _: True,
        finish: Callable[[sa.Connection], None] = lambda _: None,
    ) -> None:
        """Make the missing tables, under a lock that other processes wait for.

        finish:  runs in the same transaction.
        is_done: whether ``finish`` ran before; asked if all tables exist.
        """
        names = {table.name for table in metadata.tables.values()}
        with self.errors():
            with self._engine.engine().connect() as connection:
                existing = sa.inspect(connection).get_table_names(schema=self.schema)
                if names <= set(existing) and is_done(connection):
                    return
            with self._begin() as connection:
                self._engine.lock_schema(connection)
                if self.schema is None:
                    self._engine.prepare(connection)
                else:
                    schema = sa.schema.CreateSchema(self.schema, if_not_exists=True)
                    connection.execute(schema)
                metadata.create_all(connection)
                finish(connection)

    def columns(self, table: sa.Table) -> dict[str, Any]:
        """Return the columns of a table in the database, with their types."""
        with self.errors(), self._engine.engine().connect() as connection:
            columns = sa.inspect(connection).get_columns(table.name, schema=self.schema)
            return {column["name"]: column["type"] for column in columns}

    def errors(self, *, taken: str = _REFUSED) -> AbstractContextManager[None]:
        """Turn errors in the block into errors of the library.

        taken: the message if a row exists already.
        """
        return ErrorsTranslated(partial(_translated, self._engine, taken))

    def close(self) -> None:
        """Close all connections; the database cannot be used any more."""
        self._close()


def _insert(
    connection: sa.Connection,
    table: sa.Table,
    rows: Sequence[Row],
    positions: sa.Table | None,
) -> list[int]:
    if not rows:
        return []
    values = list(rows)
    ids: list[int] = []
    if positions is not None:
        take_ids = (
            sa.update(positions)
            .where(positions.c.name == table.name)
            .values(last_id=positions.c.last_id + len(rows))
            .returning(positions.c.last_id)
        )
        last = connection.scalar(take_ids)
        if last is None:
            raise persistence.ProgrammingError(
                f"es_positions has no row for {table.name}: construct the application "
                "once with CREATE_TABLE=yes"
            )
        ids = list(range(last - len(rows) + 1, last + 1))
        values = [
            {**row, "notification_id": id_} for row, id_ in zip(rows, ids, strict=True)
        ]
    connection.execute(sa.insert(table), values)
    return ids


def _written(
    connection: sa.Connection, table: sa.Table, rows: Sequence[Row]
) -> list[int] | None:
    """The ids of these rows if they are stored, and not those of another writer.

    No two encrypted states are equal, so comparing the first row suffices.
    """
    notification_id = table.c.get("notification_id", sa.literal(0))
    is_equal = [table.c[name] == value for name, value in rows[0].items()]
    first = connection.scalar(sa.select(notification_id).where(*is_equal))
    if first is None:
        return None
    if not first:  # a table of snapshots has no notification ids
        return []
    return list(range(first, first + len(rows)))


def _translated(
    database: Database, taken: str, error: Exception
) -> persistence.PersistenceError | None:
    if isinstance(error, RefoldError):
        return persistence.OperationalError(str(error))
    cause = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(cause, sqlite3.Error | psycopg.Error):
        is_undefined = isinstance(cause, psycopg.errors.UndefinedTable)
        if is_undefined or "no such table" in str(cause):
            return persistence.ProgrammingError(
                "the tables of this application are not there: construct it once with "
                "CREATE_TABLE=yes, as a user that may create tables"
            )
        kind = _same_kind(cause)
        is_taken = kind is persistence.IntegrityError
        return kind(taken if is_taken else str(database.translate(cause)))
    if isinstance(error, SQLAlchemyError):
        return persistence.OperationalError(
            f"the database cannot be used ({type(error).__name__}): try again"
        )
    return None


def _same_kind(cause: Exception) -> type[persistence.PersistenceError]:
    """The library's error of the same name: both have the names of the DB-API."""
    for kind in type(cause).__mro__:
        same = getattr(persistence, kind.__name__, None)
        if isinstance(same, type) and issubclass(same, persistence.PersistenceError):
            return same
    return persistence.DatabaseError
