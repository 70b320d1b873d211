"""Events on PostgreSQL: one row counts them, and a bell rings at each commit."""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, cast

import psycopg
from eventsourcing.persistence import IntegrityError
from sqlalchemy import Connection, Table, Uuid, text

from refold.adapters.eventsourcing.engine import (
    Before,
    Bell,
    Row,
    columns,
    is_sequenced,
    no_position,
)
from refold.adapters.sql.postgres import PostgresDialect

Driver = psycopg.Connection[Any]
_SCHEMA: Final = "refold_es"
# The row stays locked until the commit: who takes later places commits later.
_SEQUENCED: Final = """
WITH place AS (
  UPDATE {schema}.es_positions SET last_id = last_id + %(count)s
  WHERE name = %(name)s
  RETURNING last_id - %(count)s AS base, pg_notify(%(name)s, '')
)
INSERT INTO {table} ({columns})
SELECT base + n, originator_id, originator_version, topic, state
FROM place, {rows} WITH ORDINALITY
  AS new (originator_id, originator_version, topic, state, n)
RETURNING notification_id
"""
_PLAIN: Final = "INSERT INTO {table} ({columns}) SELECT * FROM {rows}"
_ROWS: Final = (
    "unnest(%(originators)b::{kind}[], %(versions)b::bigint[], %(topics)b::text[], "
    "%(states)b::bytea[])"
)
_FIND: Final = """
SELECT {what} FROM {table}
WHERE originator_id = %s AND originator_version = %s AND state = %b
"""


class PostgresEvents:
    """The tables of applications, in a schema of their own."""

    schema = _SCHEMA

    def __init__(self, dialect: PostgresDialect) -> None:
        self.dialect = dialect

    def prepare(self, connection: Connection) -> None:
        """Wait for who makes tables at present, then make the schema."""
        self.dialect.lock_schema(connection)
        connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {_SCHEMA}"))

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Any: writers wait for each other at the row that counts."""
        with (
            self.dialect.engine().connect() as connection,
            _dropped_if_broken(connection),
            connection.begin(),
        ):
            yield connection

    @contextmanager
    def _one_statement(self) -> Iterator[Connection]:
        engine = self.dialect.engine().execution_options(isolation_level="AUTOCOMMIT")
        with engine.connect() as connection, _dropped_if_broken(connection):
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
            except (psycopg.errors.UniqueViolation, IntegrityError):
                # The first attempt may have been committing while this one looked.
                with self._one_statement() as connection:
                    ids = _written(_driver(connection), table, rows) if tried else None
                if ids is None:
                    raise
                return ids

        if rows:
            return self.dialect.retrying(attempt)
        return attempt()

    def bell(self, table: Table) -> Bell:
        """A connection that listens for inserts into this table."""
        return _Listener(self.dialect, table.name)


@contextmanager
def _dropped_if_broken(connection: Connection) -> Iterator[None]:
    """Keep a broken connection out of the pool, which sees no error of the driver."""
    driver = _driver(connection)
    try:
        yield
    finally:
        if driver.closed:
            connection.invalidate()


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
        "rows": _ROWS.format(kind=kind),
    }
    sequenced = is_sequenced(table)
    statement = (_SEQUENCED if sequenced else _PLAIN).format(**parts)
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
    statement = _FIND.format(
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

    def __init__(self, dialect: PostgresDialect, channel: str) -> None:
        self._dialect, self._channel = dialect, channel
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
        pooled = self._dialect.engine().raw_connection()
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
