"""A database of applications' events, and its errors as the library knows them."""

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
    "again and decide anew"
)


class EventsDatabase:
    """One database, shared by all recorders of an application.

    ``schema`` is where their tables are, on an engine that has schemas.

    Raises InvalidConfiguration if ``url`` names neither SQLite nor PostgreSQL.  It
    connects on first use.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.schema: str | None = None
        match engine_of(url):
            case "sqlite", parsed:
                self._engine: Database = SqliteDatabase(parsed)
            case "postgresql", parsed:
                self._engine, self.schema = PostgresDatabase(parsed), "refold_es"
            case _:
                raise InvalidConfiguration(
                    "REFOLD_DB must name a database that keeps events: "
                    "sqlite:///app.db or postgresql://user:password@host/database (for "
                    "tests without one, set PERSISTENCE_MODULE=eventsourcing.popo)"
                )
        self._close = weakref.finalize(self, self._engine.close)

    def read(self, query: sa.Executable) -> Sequence[Any]:
        """All rows of a query; again if the connection broke meanwhile."""

        def fetch() -> Sequence[Any]:
            with self._engine.engine().connect() as connection:
                return connection.execute(query).all()

        with self.errors():
            return self._engine.retrying(fetch)

    @contextmanager
    def transaction(self, first: Before = None) -> Iterator[sa.Connection]:
        """A transaction that can write; committed unless the block raises.

        ``first`` is done in it before the block: if the connection turns out to be
        broken there, on another one.
        """

        def begin() -> tuple[sa.Connection, ExitStack]:
            with ExitStack() as begun:
                connection = begun.enter_context(self._begun())
                if first is not None:
                    first(connection)
                return connection, begun.pop_all()

        with self.errors():
            connection, begun = self._engine.retrying(begin)
            with begun:
                yield connection

    def _begun(self) -> AbstractContextManager[sa.Connection]:
        """A transaction; on SQLite it has the write lock from its beginning."""
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
        """Write all rows or none, ``before`` with them; returns notification ids.

        They are taken from ``positions``, whose row stays locked until the commit: who
        takes later ids commits later.  If the connection breaks, it is found out
        whether the rows were written.

        Raises IntegrityError with the message ``taken`` if one is stored already.
        """
        tried = False

        def attempt() -> list[int]:
            nonlocal tried
            again, tried = tried, bool(rows)
            try:
                with self._begun() as connection:
                    written = _written(connection, table, rows) if again else None
                    if written is None:
                        if before is not None:
                            before(connection)
                        return _insert(connection, table, rows, positions)
            except (sa.exc.IntegrityError, persistence.IntegrityError):
                # The first attempt may have been committing while this one looked.
                with self._begun() as connection:
                    written = _written(connection, table, rows) if again else None
                if written is None:
                    raise
            return written

        with self.errors(taken=taken):
            return self._engine.retrying(attempt)

    def create(
        self,
        metadata: sa.MetaData,
        *,
        is_done: Callable[[sa.Connection], bool] = lambda _: True,
        finish: Callable[[sa.Connection], None] = lambda _: None,
    ) -> None:
        """Make what is missing of these tables, while no other process makes any.

        ``finish`` is done in the same transaction; ``is_done`` says, where all tables
        are there, whether it was.
        """
        names = {table.name for table in metadata.tables.values()}
        with self.errors():
            with self._engine.engine().connect() as connection:
                known = sa.inspect(connection).get_table_names(schema=self.schema)
                if names <= set(known) and is_done(connection):
                    return
            with self._begun() as connection:
                self._engine.lock_schema(connection)
                if self.schema is None:
                    self._engine.prepare(connection)
                else:
                    schema = sa.schema.CreateSchema(self.schema, if_not_exists=True)
                    connection.execute(schema)
                metadata.create_all(connection)
                finish(connection)

    def columns(self, table: sa.Table) -> dict[str, Any]:
        """The columns of a table as it stands in the database, with their types."""
        with self.errors(), self._engine.engine().connect() as connection:
            found = sa.inspect(connection).get_columns(table.name, schema=self.schema)
            return {column["name"]: column["type"] for column in found}

    def errors(self, *, taken: str = _REFUSED) -> AbstractContextManager[None]:
        """Turn what is raised inside into errors of the library.

        ``taken`` is the message where a row is there already.
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
    values, ids = [*rows], list[int]()
    if positions is not None:
        counted = positions.c.last_id + len(rows)
        take = sa.update(positions).where(positions.c.name == table.name)
        last = connection.scalar(
            take.values(last_id=counted).returning(positions.c.last_id)
        )
        if last is None:
            raise persistence.ProgrammingError(
                f"es_positions has no row for {table.name}: construct the application "
                "once with CREATE_TABLE=yes"
            )
        ids = [*range(last - len(rows) + 1, last + 1)]
        both = zip(rows, ids, strict=True)
        values = [{**row, "notification_id": id_} for row, id_ in both]
    connection.execute(sa.insert(table), values)
    return ids


def _written(
    connection: sa.Connection, table: sa.Table, rows: Sequence[Row]
) -> list[int] | None:
    """The ids of these rows if it is they that are stored, and not a rival's.

    An encrypted state is like no other, so the first row tells.
    """
    place = table.c.get("notification_id", sa.literal(0))
    mine = (table.c[name] == value for name, value in rows[0].items())
    first = connection.scalar(sa.select(place).where(*mine))
    if first is None:
        return None
    return [*range(first, first + len(rows))] if first else []


def _translated(
    database: Database, taken: str, error: Exception
) -> persistence.PersistenceError | None:
    if isinstance(error, RefoldError):
        return persistence.OperationalError(str(error))
    cause = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(cause, sqlite3.Error | psycopg.Error):
        undefined = isinstance(cause, psycopg.errors.UndefinedTable)
        if undefined or "no such table" in str(cause):
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
    base = persistence.PersistenceError
    ours = (getattr(persistence, kind.__name__, 0) for kind in type(cause).__mro__)
    same = (kind for kind in ours if isinstance(kind, type) and issubclass(kind, base))
    return next(same, persistence.DatabaseError)
