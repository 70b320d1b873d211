"""Events on SQLite: whoever writes has the file, so ids are given out in order."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Lock
from typing import Any, Final, cast
from uuid import UUID

from sqlalchemy import Connection, Table

from refold.adapters.eventsourcing.engine import (
    Before,
    Bell,
    Row,
    columns,
    is_sequenced,
    no_position,
)
from refold.adapters.sql.sqlite import SqliteDialect
from refold.domain.errors import StoreUnavailable

_BUSY_SECONDS: Final = 10
_TAKE_PLACES: Final = """
UPDATE es_positions SET last_id = last_id + ? WHERE name = ? RETURNING last_id
"""


class SqliteEvents:
    """The tables of applications in a SQLite file, which may be a store's too."""

    schema = None

    def __init__(self, dialect: SqliteDialect) -> None:
        self.dialect = dialect
        self._locks: dict[int, Lock] = {}

    def prepare(self, connection: Connection) -> None:
        """Mark the file as ours; the transaction has the write lock."""
        self.dialect.prepare(connection)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """One at a time: threads queue here, processes at the file."""
        lock = self._locks.setdefault(os.getpid(), Lock())
        if not lock.acquire(timeout=_BUSY_SECONDS):
            raise StoreUnavailable(
                f"{self.dialect.path} is busy with another writer of this process",
                remedy="end its transaction before the next one",
            )
        try:
            engine = self.dialect.engine().execution_options(refold_begin="IMMEDIATE")
            with engine.begin() as connection:
                yield connection
        finally:
            lock.release()

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
        return _Clock()


def _take_places(driver: sqlite3.Connection, table: Table, count: int) -> list[int]:
    if not count or not is_sequenced(table):
        return []
    taken = driver.execute(_TAKE_PLACES, (count, table.name)).fetchall()
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


class _Clock:
    longest = 0.1

    def __init__(self) -> None:
        self._rung = Event()

    def wait(self, seconds: float) -> None:
        self._rung.wait(seconds)

    def ring(self) -> None:
        self._rung.set()

    def close(self) -> None:
        """There is nothing to let go of."""
