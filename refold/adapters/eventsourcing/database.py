"""A database of applications' events, which raises errors of ``eventsourcing``."""

from __future__ import annotations

import sqlite3
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

import psycopg
import sqlalchemy as sa
from eventsourcing import persistence
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from refold.adapters.sql.database import Database, ErrorsTranslated
from refold.adapters.sql.postgres import PostgresDatabase
from refold.adapters.sql.queries import statements
from refold.adapters.sql.sqlite import SqliteDatabase
from refold.adapters.sql.urls import engine_of
from refold.domain.errors import InvalidConfiguration, RefoldError

# Executes a statement of the driver in an open transaction.
Execute: TypeAlias = Callable[[str, Sequence[Any]], Any]
Write: TypeAlias = Callable[[Execute], None]  # writes in an open transaction

_SQL: Final = statements("applications")
_CONFLICT: Final = (
    "the database refuses it as a duplicate, or by another rule of its tables: read "
    "again and repeat the command"
)


class Row(NamedTuple):
    """An event as it is stored, its state encrypted."""

    originator_id: UUID | str
    originator_version: int
    topic: str
    state: bytes


class EventsDatabase:
    """One database, shared by all recorders of an application.

    It connects on first use.

    schema: the schema of the recorders' tables; None on SQLite, which has no schemas.

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
    def transaction(self, write_first: Write | None = None) -> Iterator[sa.Connection]:
        """Begin a transaction that can write, and commit it unless the block raises.

        write_first: runs in the transaction before the block.  If the connection turns
                     out to be broken, it runs again in a transaction of a new one.
        """

        def begin() -> tuple[sa.Connection, ExitStack]:
            with ExitStack() as stack:
                connection = stack.enter_context(self._begin())
                if write_first is not None:
                    write_first(connection.exec_driver_sql)
                # The caller closes the stack, which ends the transaction.
                return connection, stack.pop_all()

        with self.errors():
            connection, open_transaction = self._engine.retrying(begin)
            with open_transaction:
                yield connection

    def _begin(self) -> AbstractContextManager[sa.Connection]:
        """Begin a transaction; on SQLite, it takes the write lock immediately."""
        return self._engine.engine().execution_options(refold_begin="IMMEDIATE").begin()

    def insert(
        self,
        table: EventsTable,
        rows: Sequence[Row],
        *,
        conflict: str,
        write_first: Write | None = None,
    ) -> list[int]:
        """Write all rows or none; returns their notification ids.

        conflict:    the message of the IntegrityError that is raised if a row exists.
        write_first: runs in the same transaction, before the rows are written.
        """
        # A broken connection does not tell whether its transaction was committed.  So
        # a retry first looks for the rows.
        may_be_stored = False

        def attempt() -> list[int]:
            nonlocal may_be_stored
            is_retry = may_be_stored
            may_be_stored = bool(rows)

            def write(driver: Any) -> list[int]:
                if is_retry:
                    ids = table.ids_of_stored(driver, rows)
                    if ids is not None:
                        return ids
                if write_first is not None:
                    write_first(driver.execute)
                return table.insert(driver, rows)

            is_single = write_first is None and not is_retry
            try:
                return self._engine.with_driver(write, single=is_single)
            except (
                sqlite3.IntegrityError,
                psycopg.IntegrityError,
                persistence.IntegrityError,
            ):
                if not is_retry:
                    raise
                # The first attempt may have been committed after this one looked.
                ids = self._engine.with_driver(
                    lambda driver: table.ids_of_stored(driver, rows)
                )
                if ids is None:
                    raise
                return ids

        with self.errors(conflict=conflict):
            return self._engine.retrying(attempt)

    @property
    def placeholder(self) -> str:
        """The placeholder of a value in the driver's SQL."""
        return self._engine.mark

    def create(
        self,
        metadata: sa.MetaData,
        *,
        is_done: Callable[[sa.Connection], bool] = lambda _: True,
        finish: Callable[[sa.Connection], None] = lambda _: None,
    ) -> None:
        """Create the missing tables, under a lock that other processes wait for.

        finish:  runs in the same transaction, after the tables were created.
        is_done: returns whether ``finish`` ran before.  If so, and if all tables exist,
                 nothing is locked or written.
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
                    # Mark the file as one of Refold's.
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

    def errors(self, *, conflict: str = _CONFLICT) -> AbstractContextManager[None]:
        """Raise the errors of the block as errors of ``eventsourcing``.

        conflict: the message of the IntegrityError that is raised if a row exists.
        """
        return ErrorsTranslated(partial(_to_library_error, self._engine, conflict))

    def close(self) -> None:
        """Close all connections; the database cannot be used any more."""
        self._close()


class EventsTable:
    """Writes the rows of one table of events or snapshots, with the driver itself.

    The ids of events come from ``positions``, whose row stays locked until the commit,
    so that later ids are committed later.  A table of snapshots has no ids and no
    ``positions``.
    """

    def __init__(
        self, database: EventsDatabase, table: sa.Table, positions: sa.Table | None
    ) -> None:
        self._name = table.name
        self._is_numbered = positions is not None
        self._joins_rows = database.schema is not None
        self._has_uuids = isinstance(table.c.originator_id.type, sa.Uuid)
        names = {
            "events": quoted_name(table),
            "positions": "" if positions is None else quoted_name(positions),
            "id_type": "uuid" if self._has_uuids else "text",
        }
        kind = "numbered" if self._is_numbered else "unnumbered"
        self._take_ids = _SQL["take_ids"].format(**names)
        self._insert_row = _SQL[f"insert_{kind}"].format(**names)
        self._insert_joined = _SQL[f"insert_{kind}_joined"].format(**names)
        find = _SQL[f"find_{kind}"].format(**names)
        self._find = find.replace("?", database.placeholder)

    def insert(self, driver: Any, rows: Sequence[Row]) -> list[int]:
        """Write rows in an open transaction; returns their notification ids.

        PostgreSQL does that in one statement, which needs no transaction around it.
        """
        if not rows:
            return []
        if self._joins_rows:
            return self._insert_in_one_statement(driver, rows)
        if not self._is_numbered:
            driver.executemany(self._insert_row, [self._stored(row) for row in rows])
            return []
        taken = driver.execute(self._take_ids, (len(rows), self._name)).fetchone()
        if taken is None:
            raise self._no_positions()
        ids = list(range(taken[0] - len(rows) + 1, taken[0] + 1))
        numbered = []
        for id_, row in zip(ids, rows, strict=True):
            numbered.append((id_, *self._stored(row)))
        driver.executemany(self._insert_row, numbered)
        return ids

    def _insert_in_one_statement(self, driver: Any, rows: Sequence[Row]) -> list[int]:
        """Insert rows with one round trip, and return their notification ids."""
        ids, versions, topics, states = zip(*rows, strict=True)
        values = {
            "ids": list(ids),
            "versions": list(versions),
            "topics": list(topics),
            "states": list(states),
            "count": len(rows),
            "name": self._name,
        }
        written = driver.execute(self._insert_joined, values)
        if not self._is_numbered:
            return []
        inserted = written.fetchall()
        if not inserted:
            raise self._no_positions()
        return sorted(id_ for (id_,) in inserted)

    def _no_positions(self) -> persistence.ProgrammingError:
        """Return the error for a table without a count of notification ids."""
        return persistence.ProgrammingError(
            f"es_positions has no row for {self._name}: construct the application "
            "once with CREATE_TABLE=yes"
        )

    def ids_of_stored(self, driver: Any, rows: Sequence[Row]) -> list[int] | None:
        """Return the notification ids of these rows, or None if they are not stored.

        Rows of another writer have other encrypted states.  No two encrypted states are
        equal, and rows are written all or none, so comparing the first one suffices.
        """
        first = driver.execute(self._find, self._stored(rows[0])).fetchone()
        if first is None:
            return None
        if not self._is_numbered:
            return []
        return list(range(first[0], first[0] + len(rows)))

    def _stored(self, row: Row) -> Sequence[Any]:
        """Return the values of a row in the form that the driver takes."""
        if self._has_uuids and not self._joins_rows:
            # SQLite has no type for them.  SQLAlchemy stores and reads these digits.
            return (row.originator_id.hex, *row[1:])  # type: ignore[union-attr]  # a UUID, as ``_has_uuids`` says
        return row


def quoted_name(table: sa.Table) -> str:
    """Return the name of a table in SQL, with its schema."""
    return DefaultDialect().identifier_preparer.format_table(table)


def _to_library_error(
    database: Database, conflict: str, error: Exception
) -> persistence.PersistenceError | None:
    """The error of ``eventsourcing`` for an error of Refold, SQLAlchemy or a driver.

    None for any other error, which is raised as it is.
    """
    if isinstance(error, RefoldError):
        return persistence.OperationalError(str(error))
    cause = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(cause, sqlite3.Error | psycopg.Error):
        is_undefined = isinstance(cause, psycopg.errors.UndefinedTable)
        if is_undefined or "no such table" in str(cause):  # the words of SQLite
            return persistence.ProgrammingError(
                "the tables of this application are not there: construct it once with "
                "CREATE_TABLE=yes, as a user that may create tables"
            )
        library_error = _library_class_of(cause)
        if library_error is persistence.IntegrityError:
            return library_error(conflict)
        return library_error(str(database.translate(cause)))
    if isinstance(error, SQLAlchemyError):
        return persistence.OperationalError(
            f"the database cannot be used ({type(error).__name__}): try again"
        )
    return None


def _library_class_of(cause: Exception) -> type[persistence.PersistenceError]:
    """The error class of ``eventsourcing`` for an error of a database driver.

    The drivers and the library name their classes as the DB-API does, so it is the one
    with the same name.
    """
    for driver_class in type(cause).__mro__:
        same_name = getattr(persistence, driver_class.__name__, None)
        if not isinstance(same_name, type):
            continue
        if issubclass(same_name, persistence.PersistenceError):
            return same_name
    return persistence.DatabaseError
