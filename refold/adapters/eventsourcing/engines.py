"""A database of applications' events, and its errors as the library knows them."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import sqlite3
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from threading import Lock
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias, cast
from uuid import UUID

import psycopg
from eventsourcing import persistence
from sqlalchemy import URL, Connection, Executable, MetaData, Table, Uuid, inspect, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from refold.adapters.sql.database import Database, ErrorsTranslated, engine_of
from refold.adapters.sql.libpq import Driver
from refold.adapters.sql.postgres import PostgresDatabase, dropped_if_broken
from refold.adapters.sql.recorder import Bell, Clock
from refold.adapters.sql.sqlite import SqliteDatabase
from refold.adapters.sql.tables import statements
from refold.domain.errors import InvalidConfiguration, RefoldError, StoreUnavailable

Before: TypeAlias = Callable[[Connection], None] | None


class Row(NamedTuple):
    """One event as it is stored; ``state`` is sealed."""

    originator_id: Any
    originator_version: int
    topic: str
    state: bytes


def columns(table: Table) -> str:
    """The columns that are written, for an INSERT."""
    return ", ".join(column.name for column in table.columns)


def is_sequenced(table: Table) -> bool:
    """Whether its rows have notification ids."""
    return "notification_id" in table.columns


def no_position(table: Table) -> persistence.ProgrammingError:
    """The error where the table's row in ``es_positions`` is missing."""
    return persistence.ProgrammingError(
        f"es_positions has no row for {table.name}: construct the application once "
        "with CREATE_TABLE=yes"
    )


_REFUSED: Final = (
    "the database refuses it as a duplicate, or by another rule of its tables: read "
    "again and decide anew"
)

_NO_TABLES: Final = (
    "the tables of this application are not there: construct it once with "
    "CREATE_TABLE=yes, as a user that may create tables"
)


class EventsDatabase:
    """One database, shared by all recorders of an application."""

    def __init__(self, engine: SqliteEvents | PostgresEvents, url: str) -> None:
        self._engine, self.url = engine, url
        self.schema = engine.schema
        self._close = weakref.finalize(self, _close, engine, os.getpid())

    def read(self, query: Executable) -> Sequence[Any]:
        """All rows of a query; again if the connection broke meanwhile."""

        def fetch() -> Sequence[Any]:
            with self._engine.engine().connect() as connection:
                return connection.execute(query).all()

        with self.errors():
            return self._engine.retrying(fetch)

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
            connection, begun = self._engine.retrying(begin)
            with begun:
                yield connection

    def insert(
        self, table: Table, rows: Sequence[Row], *, taken: str, before: Before = None
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
            with self._engine.engine().connect() as connection:
                known = inspect(connection).get_table_names(schema=self.schema)
                if names <= set(known) and is_done(connection):
                    return
            with self._engine.transaction() as connection:
                self._engine.prepare(connection)
                metadata.create_all(connection)
                finish(connection)

    def columns(self, table: Table) -> dict[str, Any]:
        """The columns of a table as it stands in the database, with their types."""
        with self.errors(), self._engine.engine().connect() as connection:
            found = inspect(connection).get_columns(table.name, schema=self.schema)
            return {column["name"]: column["type"] for column in found}

    def errors(self, *, taken: str = _REFUSED) -> AbstractContextManager[None]:
        """Turn what is raised inside into errors of the library.

        ``taken`` is the message where a row is there already.
        """
        return ErrorsTranslated(partial(_translated, self._engine, taken))

    def close(self) -> None:
        """Close all connections; the database cannot be used any more."""
        self._close()


def open_database(url: str) -> EventsDatabase:
    """The database at ``url``: SQLite or PostgreSQL.  Connects on first use.

    Raises InvalidConfiguration if it is neither.
    """
    match engine_of(url):
        case "sqlite", parsed:
            return EventsDatabase(SqliteEvents(parsed), url)
        case "postgresql", parsed:
            return EventsDatabase(PostgresEvents(parsed), url)
        case _:
            raise InvalidConfiguration(
                "REFOLD_DB must name a database that keeps events: sqlite:///app.db or "
                "postgresql://user:password@host/database (for tests without one, set "
                "PERSISTENCE_MODULE=eventsourcing.popo)"
            )


def _close(database: Database, pid: int) -> None:
    """Not in a forked child: the connections are its parent's."""
    if pid == os.getpid():
        database.close()


def _translated(
    database: Database, taken: str, error: Exception
) -> persistence.PersistenceError | None:
    if isinstance(error, RefoldError):
        return persistence.OperationalError(str(error))
    cause = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(cause, sqlite3.Error | psycopg.Error):
        if _is_missing_table(cause):
            return persistence.ProgrammingError(_NO_TABLES)
        kind = _same_kind(cause)
        is_taken = kind is persistence.IntegrityError
        return kind(taken if is_taken else str(database.translate(cause)))
    if isinstance(error, SQLAlchemyError):
        return persistence.OperationalError(
            f"the database cannot be used ({type(error).__name__}): try again"
        )
    return None


def _is_missing_table(cause: Exception) -> bool:
    undefined = isinstance(cause, psycopg.errors.UndefinedTable)
    return undefined or "no such table" in str(cause)


def _same_kind(cause: Exception) -> type[persistence.PersistenceError]:
    """The library's error of the same name: both have the names of the DB-API."""
    for kind in type(cause).__mro__:
        ours = getattr(persistence, kind.__name__, None)
        if isinstance(ours, type) and issubclass(ours, persistence.PersistenceError):
            return ours
    return persistence.DatabaseError


_BUSY_SECONDS: Final = 10
_SQL: Final = statements("applications")


class SqliteEvents(SqliteDatabase):
    """The tables of applications in a SQLite file, which may be a store's too."""

    schema: ClassVar[str | None] = None

    def __init__(self, url: URL) -> None:
        super().__init__(url)
        self._turn = Lock()

    def _forget(self) -> None:
        super()._forget()
        self._turn = Lock()

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """One at a time: threads queue here, processes at the file."""
        self._check_process()
        turn = self._turn
        if not turn.acquire(timeout=_BUSY_SECONDS):
            raise StoreUnavailable(
                f"{self.path} is busy with another writer of this process",
                remedy="end its transaction before the next one",
            )
        try:
            with self.writing() as connection:
                yield connection
        finally:
            turn.release()

    def insert(self, table: Table, rows: Sequence[Row], *, before: Before) -> list[int]:
        """Take places and fill them while nobody else can write."""
        with self.transaction() as connection:
            if before is not None:
                before(connection)
            driver = cast("sqlite3.Connection", connection.connection.driver_connection)
            ids = _take_places(driver, table, len(rows))
            if rows:
                _fill(driver, table, ids, rows)
        return ids

    def bell(self, table: Table) -> Bell:  # noqa: ARG002  # the protocol's
        """A clock: a file tells nobody that it was written."""
        return Clock(0.1)


def _take_places(driver: sqlite3.Connection, table: Table, count: int) -> list[int]:
    if not count or not is_sequenced(table):
        return []
    taken = driver.execute(_SQL["take_places"], (count, table.name)).fetchall()
    if not taken:
        raise no_position(table)
    ((last_id,),) = taken
    return list(range(last_id - count + 1, last_id + 1))


def _fill(
    driver: sqlite3.Connection, table: Table, ids: Sequence[int], rows: Sequence[Row]
) -> None:
    values: list[Any] = [(_plain(row[0]), *row[1:]) for row in rows]
    if ids:
        values = [(id_, *row) for id_, row in zip(ids, values, strict=True)]
    marks = ", ".join("?" * len(table.columns))
    into = f'"{table.name}" ({columns(table)})'
    driver.executemany(f"INSERT INTO {into} VALUES ({marks})", values)  # noqa: S608  # names that we made


def _plain(originator_id: UUID | str) -> str:
    return originator_id.hex if isinstance(originator_id, UUID) else originator_id


_SCHEMA: Final = "refold_es"


class PostgresEvents(PostgresDatabase):
    """The tables of applications, in a schema of their own."""

    schema: ClassVar[str | None] = _SCHEMA

    def prepare(self, connection: Connection) -> None:
        """Wait for who makes tables at present, then make the schema."""
        self.lock_schema(connection)
        connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {_SCHEMA}"))

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Any: writers wait for each other at the row that counts."""
        with (
            self.engine().connect() as connection,
            dropped_if_broken(connection),
            connection.begin(),
        ):
            yield connection

    @contextmanager
    def _one_statement(self) -> Iterator[Connection]:
        engine = self.engine().execution_options(isolation_level="AUTOCOMMIT")
        with engine.connect() as connection, dropped_if_broken(connection):
            yield connection

    def insert(self, table: Table, rows: Sequence[Row], *, before: Before) -> list[int]:
        """One statement; if the connection breaks, find out whether it took effect."""
        tried = False

        def attempt() -> list[int]:
            nonlocal tried
            scope = self._one_statement if before is None else self.transaction
            try:
                with scope() as connection:
                    driver = _driver(connection)
                    if tried and (ids := _written(driver, table, rows)) is not None:
                        return ids
                    tried = bool(rows)
                    if before is not None:
                        before(connection)
                    return _insert(driver, table, rows)
            except (psycopg.errors.UniqueViolation, persistence.IntegrityError):
                # The first attempt may have been committing while this one looked.
                with self._one_statement() as connection:
                    ids = _written(_driver(connection), table, rows) if tried else None
                if ids is None:
                    raise
                return ids

        if rows:
            return self.retrying(attempt)
        return attempt()

    def bell(self, table: Table) -> Bell:
        """A connection that listens for inserts into this table."""
        return _Listener(self, table.name)


def _driver(connection: Connection) -> Driver:
    return cast("Driver", connection.connection.driver_connection)


def _insert(driver: Driver, table: Table, rows: Sequence[Row]) -> list[int]:
    if not rows:
        return []
    originators, versions, topics, states = map(list, zip(*rows, strict=True))
    kind = "uuid" if isinstance(table.c.originator_id.type, Uuid) else "text"
    parts = {
        "schema": _SCHEMA,
        "table": _quoted(table),
        "columns": columns(table),
        "rows": _SQL["unnested"].format(kind=kind),
    }
    sequenced = is_sequenced(table)
    statement = _SQL["sequenced" if sequenced else "plain"].format(**parts)
    values = {
        "count": len(rows),
        "name": table.name,
        "originators": originators,
        "versions": versions,
        "topics": topics,
        "states": states,
    }
    cursor = driver.execute(cast("Any", statement), values)
    if not sequenced:
        return []
    ids = sorted(row[0] for row in cursor.fetchall())
    if not ids:
        raise no_position(table)
    return ids


def _written(driver: Driver, table: Table, rows: Sequence[Row]) -> list[int] | None:
    """The ids of these rows if it is they that are stored, and not a rival's.

    A sealed state is like no other, so the first row tells.
    """
    first = rows[0]
    sequenced = is_sequenced(table)
    statement = _SQL["find"].format(
        what="notification_id" if sequenced else "0", table=_quoted(table)
    )
    values = (first.originator_id, first.originator_version, first.state)
    found = driver.execute(cast("Any", statement), values).fetchone()
    if found is None:
        return None
    return list(range(found[0], found[0] + len(rows))) if sequenced else []


def _quoted(table: Table) -> str:
    return f'{_SCHEMA}."{table.name}"'


class _Listener:
    """A connection outside the pool, made at the first wait.

    ``longest`` bounds how late a follower is that lost its connection unnoticed.
    """

    longest = 5.0

    def __init__(self, database: PostgresDatabase, channel: str) -> None:
        self._database, self._channel = database, channel
        self._connection: Driver | None = None
        self._ears, self._rope = socket.socketpair()

    def wait(self, seconds: float) -> None:
        if self._connection is None:
            self._listen()  # What came before is found by looking once more.
            return
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._connection.fileno(), selectors.EVENT_READ)
                selector.register(self._ears, selectors.EVENT_READ)
                selector.select(seconds)
            for _ in self._connection.notifies(timeout=0):
                pass
        except psycopg.OperationalError:
            self._hang_up()

    def _listen(self) -> None:
        pooled = self._database.engine().raw_connection()
        self._connection = cast("Driver", pooled.driver_connection)
        pooled.detach()
        self._connection.autocommit = True
        channel = psycopg.sql.Identifier(self._channel)
        self._connection.execute(psycopg.sql.SQL("LISTEN {}").format(channel))

    def ring(self) -> None:
        with contextlib.suppress(OSError):  # closed: nobody waits any more
            self._rope.send(b"!")

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        self._hang_up()
        self._ears.close()
        self._rope.close()
