"""A database of applications' events, and its errors as the library knows them."""

from __future__ import annotations

import os
import sqlite3
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Final

import psycopg
from eventsourcing import persistence
from eventsourcing.persistence import OperationalError, PersistenceError
from sqlalchemy import (
    URL,
    Connection,
    Executable,
    MetaData,
    Table,
    inspect,
)
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from refold.adapters.eventsourcing.engine import Before, Bell, EventsEngine, Row
from refold.adapters.sql.dialect import Dialect
from refold.adapters.sql.urls import engine_of
from refold.domain.errors import InvalidConfiguration, RefoldError

_REFUSED: Final = (
    "the database refuses it as a duplicate, or by another rule of its tables: read "
    "again and decide anew"
)

_NO_TABLES: Final = (
    "the tables of this application are not there: construct it once with "
    "CREATE_TABLE=yes, as a user that may create tables"
)


class Database:
    """One database, shared by all recorders of an application."""

    def __init__(self, engine: EventsEngine, url: str) -> None:
        self._engine, self.url = engine, url
        self.schema = engine.schema
        self._close = weakref.finalize(self, _close, engine.dialect, os.getpid())

    def read(self, query: Executable) -> Sequence[Any]:
        """All rows of a query; again if the connection broke meanwhile."""

        def fetch() -> Sequence[Any]:
            with self._engine.dialect.engine().connect() as connection:
                return connection.execute(query).all()

        with self.errors():
            return self._engine.dialect.retrying(fetch)

    @contextmanager
    def transaction(self, first: Before = None) -> Iterator[Connection]:
        """A transaction that can write; committed unless the block raises.

        ``first`` is done in it before the block: if the connection turns out to be
        broken there, on another one.
        """

        def begin() -> tuple[Connection, ExitStack]:
            with ExitStack() as begun:
                connection = begun.enter_context(self._engine.transaction())
                if first is not None:
                    first(connection)
                return connection, begun.pop_all()

        with self.errors():
            connection, begun = self._engine.dialect.retrying(begin)
            with begun:
                yield connection

    def insert(
        self,
        table: Table,
        rows: Sequence[Row],
        *,
        taken: str,
        before: Before = None,
    ) -> list[int]:
        """Write all rows or none, ``before`` with them; returns notification ids.

        Raises IntegrityError with the message ``taken`` if one is stored already.
        """
        with self.errors(taken=taken):
            return self._engine.insert(table, rows, before=before)

    def bell(self, table: Table) -> Bell:
        """What a follower of this table waits at."""
        return self._engine.bell(table)

    def create(
        self,
        metadata: MetaData,
        *,
        is_done: Callable[[Connection], bool],
        finish: Callable[[Connection], None],
    ) -> None:
        """Make what is missing of these tables, while no other process makes any.

        ``finish`` is done in the same transaction; ``is_done`` says, where all tables
        are there, whether it was.
        """
        names = {table.name for table in metadata.tables.values()}
        with self.errors():
            with self._engine.dialect.engine().connect() as connection:
                known = inspect(connection).get_table_names(schema=self.schema)
                if names <= set(known) and is_done(connection):
                    return
            with self._engine.transaction() as connection:
                self._engine.prepare(connection)
                metadata.create_all(connection)
                finish(connection)

    def columns(self, table: Table) -> dict[str, Any]:
        """The columns of a table as it stands in the database, with their types."""
        with self.errors(), self._engine.dialect.engine().connect() as connection:
            found = inspect(connection).get_columns(table.name, schema=self.schema)
            return {column["name"]: column["type"] for column in found}

    def errors(self, *, taken: str = _REFUSED) -> AbstractContextManager[None]:
        """Turn what is raised inside into errors of the library.

        ``taken`` is the message where a row is there already.
        """
        return _Translated(self._engine.dialect, taken)

    def close(self) -> None:
        """Close all connections; the database cannot be used any more."""
        self._close()


def open_database(url: str) -> Database:
    """The database at ``url``: SQLite or PostgreSQL.  Connects on first use.

    Raises InvalidConfiguration if it is neither.
    """
    match engine_of(url):
        case "sqlite", parsed:
            return Database(_sqlite(parsed), url)
        case "postgresql", parsed:
            return Database(_postgres(parsed), url)
        case _:
            raise InvalidConfiguration(
                "REFOLD_DB must name a database that keeps events: sqlite:///app.db or "
                "postgresql://user:password@host/database (for tests without one, set "
                "PERSISTENCE_MODULE=eventsourcing.popo)"
            )


def _sqlite(url: URL) -> EventsEngine:
    from refold.adapters.eventsourcing.sqlite import SqliteEvents
    from refold.adapters.sql.sqlite import SqliteDialect

    return SqliteEvents(SqliteDialect(url))


def _postgres(url: URL) -> EventsEngine:
    from refold.adapters.eventsourcing.postgres import PostgresEvents
    from refold.adapters.sql.postgres import PostgresDialect

    return PostgresEvents(PostgresDialect(url))


def _close(dialect: Dialect, pid: int) -> None:
    """Not in a forked child: the connections are its parent's."""
    if pid == os.getpid():
        dialect.close()


class _Translated(AbstractContextManager[None]):
    def __init__(self, dialect: Dialect, taken: str) -> None:
        self._dialect, self._taken = dialect, taken

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception):
            ours = self._translated(error)
            if ours is not None:
                raise ours from None

    def _translated(self, error: Exception) -> PersistenceError | None:
        if isinstance(error, RefoldError):
            return OperationalError(str(error))
        cause = error.orig if isinstance(error, DBAPIError) else error
        if isinstance(cause, sqlite3.Error | psycopg.Error):
            if _is_missing_table(cause):
                return persistence.ProgrammingError(_NO_TABLES)
            said = str(self._dialect.translate(cause))
            kind = _same_kind(cause)
            taken = kind is persistence.IntegrityError
            return kind(self._taken if taken else said)
        if isinstance(error, SQLAlchemyError):
            return OperationalError(
                f"the database cannot be used ({type(error).__name__}): try again"
            )
        return None


def _is_missing_table(cause: Exception) -> bool:
    undefined = isinstance(cause, psycopg.errors.UndefinedTable)
    return undefined or "no such table" in str(cause)


def _same_kind(cause: Exception) -> type[PersistenceError]:
    """The library's error of the same name: both have the names of the DB-API."""
    for kind in type(cause).__mro__:
        ours = getattr(persistence, kind.__name__, None)
        if isinstance(ours, type) and issubclass(ours, PersistenceError):
            return ours
    return persistence.DatabaseError
