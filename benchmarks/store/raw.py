"""The driver alone, and a file: what no store can beat while it keeps its promises.

A table with the payload and a primary key of session and seq: the least from which a
session can be read again.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from threading import local
from typing import Any

import psycopg

from benchmarks.store import payloads
from benchmarks.store.contestant import Contestant
from benchmarks.store.engines import Engine

RAW = "raw driver"
_TABLE = (
    "CREATE TABLE raw (s text, seq integer, body {blob} NOT NULL, PRIMARY KEY (s, seq))"
)


class Raw(Contestant):
    """A table of payloads; the numbers of the calls are counted on by session."""

    name = RAW

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._seqs: dict[str, int] = {}

    def rows(self, session: str, bodies: Sequence[bytes]) -> list[tuple[Any, ...]]:
        """The next rows of a session."""
        first = self._seqs.get(session, 0) + 1
        self._seqs[session] = first + len(bodies) - 1
        return [(session, seq, body) for seq, body in enumerate(bodies, first)]

    def batch(self, session: str, numbers: Sequence[int]) -> None:
        self.put(session, _bodies(numbers))

    def put(self, session: str, bodies: Sequence[bytes]) -> None:
        """Add rows with these bodies, in one transaction."""
        raise NotImplementedError  # each engine has its own way

    def copy(self, session: str, numbers: Sequence[int]) -> None:
        """The same as ``batch`` by the engine's way for bulk."""
        self.put(session, _bodies(numbers))

    def read(self, session: str) -> Any:
        return self.newest(session, 2**31 - 1)

    def newest(self, session: str, count: int) -> Any:
        """The last rows of a session."""
        raise NotImplementedError  # each engine has its own way


def _bodies(numbers: Sequence[int]) -> list[bytes]:
    return [payloads.text(number).encode() for number in numbers]


class RawPostgres(Raw):
    """psycopg: prepared, binary, one round trip; a connection for each thread."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._local, self._open = local(), list[psycopg.Connection[Any]]()

    @property
    def driver(self) -> psycopg.Connection[Any]:
        """This thread's connection."""
        if not hasattr(self._local, "driver"):
            self._local.driver = psycopg.connect(self.url, autocommit=True)
            self._open.append(self._local.driver)
        found: psycopg.Connection[Any] = self._local.driver
        return found

    async def open(self) -> None:
        self.driver.execute(_TABLE.format(blob="bytea"))

    def append(self, session: str, number: int) -> None:
        ((s, seq, body),) = self.rows(session, _bodies([number]))
        self.driver.execute(
            "INSERT INTO raw VALUES (%s, %b, %b)", (s, seq, body), prepare=True
        )

    def put(self, session: str, bodies: Sequence[bytes]) -> None:
        values = [value for row in self.rows(session, bodies) for value in row]
        places = ", ".join(["(%s, %b, %b)"] * len(bodies))
        query = f"INSERT INTO raw VALUES {places}"  # noqa: S608 - places only
        self.driver.execute(query, values, prepare=True)

    def copy(self, session: str, numbers: Sequence[int]) -> None:
        """COPY, in binary."""
        query = "COPY raw FROM STDIN (FORMAT BINARY)"
        with self.driver.cursor() as cursor, cursor.copy(query) as copy:
            copy.set_types(("text", "int4", "bytea"))
            for row in self.rows(session, _bodies(numbers)):
                copy.write_row(row)

    def newest(self, session: str, count: int) -> Any:
        return self.driver.execute(
            "SELECT seq, body FROM raw WHERE s = %s ORDER BY seq DESC LIMIT %s",
            (session, count),
            prepare=True,
            binary=True,
        ).fetchall()

    async def close(self) -> None:
        for driver in self._open:
            driver.close()


class RawSqlite(Raw):
    """sqlite3: WAL, the same ``synchronous``; a connection for each thread."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._local, self._open = local(), list[sqlite3.Connection]()

    @property
    def driver(self) -> sqlite3.Connection:
        """This thread's connection."""
        if not hasattr(self._local, "driver"):
            driver = sqlite3.connect(
                self.url.removeprefix("sqlite:///"),
                timeout=60,
                isolation_level=None,
                check_same_thread=False,
            )
            driver.execute(f"PRAGMA synchronous={self.engine.level}")
            self._local.driver = driver
            self._open.append(driver)
        found: sqlite3.Connection = self._local.driver
        return found

    async def open(self) -> None:
        self.driver.execute(_TABLE.format(blob="blob"))

    def append(self, session: str, number: int) -> None:
        (row,) = self.rows(session, _bodies([number]))
        self.driver.execute("INSERT INTO raw VALUES (?, ?, ?)", row)

    def put(self, session: str, bodies: Sequence[bytes]) -> None:
        self.driver.execute("BEGIN IMMEDIATE")
        rows = self.rows(session, bodies)
        self.driver.executemany("INSERT INTO raw VALUES (?, ?, ?)", rows)
        self.driver.execute("COMMIT")

    def newest(self, session: str, count: int) -> Any:
        query = "SELECT seq, body FROM raw WHERE s = ? ORDER BY seq DESC LIMIT ?"
        return self.driver.execute(query, (session, count)).fetchall()

    async def close(self) -> None:
        for driver in self._open:
            driver.close()


class File:
    """A file of lines, synced after each: no database at all."""

    name = "file, fdatasync"

    def __init__(self, folder: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._file = os.open(folder / "raw.log", flags, 0o600)
        self._sync = getattr(os, "fdatasync", os.fsync)

    def append(self, number: int) -> None:
        """One line."""
        os.write(self._file, payloads.text(number).encode() + b"\n")
        self._sync(self._file)

    def close(self) -> None:
        """Close it."""
        os.close(self._file)


class RawAsyncio:
    """psycopg's own asyncio: a connection for each session."""

    name = "raw driver, asyncio"

    def __init__(self, table: RawPostgres) -> None:
        self._table = table
        self._drivers: dict[str, psycopg.AsyncConnection[Any]] = {}

    async def begin(self, session: str) -> None:
        """Connect for a session."""
        self._drivers[session] = await psycopg.AsyncConnection.connect(
            self._table.url, autocommit=True
        )

    async def append(self, session: str, number: int) -> None:
        """One row."""
        (row,) = self._table.rows(session, _bodies([number]))
        query = "INSERT INTO raw VALUES (%s, %b, %b)"
        await self._drivers[session].execute(query, row, prepare=True)

    async def close(self) -> None:
        """Disconnect."""
        for driver in self._drivers.values():
            await driver.close()


def raw(engine: Engine) -> RawPostgres | RawSqlite:
    """The driver of that engine."""
    return RawPostgres(engine) if engine.server else RawSqlite(engine)
