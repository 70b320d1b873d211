"""The contestants on each database: Refold, the driver alone, and a file.

A table of the driver has the payload and a primary key of session and seq: the minimum
from which a session can be read again.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import local
from typing import Any, Literal

import psycopg

import refold
from benchmarks.redaction.tools import EngineName, redactor
from benchmarks.store import payloads
from refold.store import Session
from tests.support.postgres import Postgres, PostgresUnavailable

OURS = "refold"
POSTGRES = "PostgreSQL"
FULL = "SQLite FULL"
NORMAL = "SQLite NORMAL"
# As they are called on the command line.
ENGINES = {"postgresql": POSTGRES, "sqlite-full": FULL, "sqlite-normal": NORMAL}
_DURABLE = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",  # so that no checkpoint falls into a race by its size
    "checkpoint_timeout": "30min",
}
_TOLD = ("server_version", "fsync", "synchronous_commit", "full_page_writes")


@dataclass
class Engine:
    """One engine, a folder for its files, and Refold's redactor."""

    name: str
    folder: Path
    server: Postgres | None = None
    redactor: refold.redaction.Redactor | None = None
    _counter: Iterator[int] = field(default_factory=itertools.count)

    @property
    def level(self) -> str:
        """The setting of SQLite's ``synchronous``."""
        return "NORMAL" if self.name == NORMAL else "FULL"

    def fresh(self) -> str:
        """Return the URL of an empty database; a SQLite file keeps its WAL."""
        name = f"bench{next(self._counter)}"
        if self.server:
            return self.server.create_database(name)
        path = self.folder / f"{self.name.replace(' ', '-')}-{name}.db"
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
        return f"sqlite:///{path}"

    def keys(self) -> str:
        """The URL of a key store for one store."""
        name = f"{self.name}-keys{next(self._counter)}.db".replace(" ", "-")
        return f"sqlite:///{self.folder / name}"

    def conditions(self) -> dict[str, str]:
        """Return the setting that decides the figures of this engine."""
        if not self.server:
            return {"SQLite": f"{sqlite3.sqlite_version} (WAL)"}
        with psycopg.connect(self.server.url) as connection:
            reported = {
                name: connection.execute(f"SHOW {name}").fetchone()[0]  # type: ignore[index]  # one row
                for name in _TOLD
            }
        version = reported.pop("server_version").split()[0]
        settings = ", ".join(f"{name} {value}" for name, value in reported.items())
        return {"PostgreSQL": f"{version} ({settings})"}


@contextmanager
def engines(
    names: Iterable[str], folder: Path, redactor: refold.redaction.Redactor
) -> Iterator[list[Engine]]:
    """Start the engines of these names; PostgreSQL is removed afterwards.

    A PostgreSQL that cannot be started is named and left out.
    """
    wanted = [ENGINES[name] for name in names]
    server = None
    if POSTGRES in wanted:
        try:
            server = Postgres.from_environment() or Postgres.start(**_DURABLE)
        except PostgresUnavailable as error:
            print(f"{POSTGRES}: not measured ({error})")
            wanted.remove(POSTGRES)
    try:
        yield [
            Engine(name, folder, server if name == POSTGRES else None, redactor)
            for name in wanted
        ]
    finally:
        if server:
            server.stop()


class Contestant:
    """A store with sessions.  Operations that can be awaited return a coroutine.

    style:    how its users run several sessions concurrently.
    batches:  whether it can add many events in one call.
    most:     the longest session that is filled: more would take too long.
    """

    name: str
    style: Literal["threads", "asyncio"] = "threads"
    batches: bool = True
    most: int = 10**9

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.url = engine.fresh()

    async def open(self) -> None:
        """Connect, and create the tables."""

    async def begin(self, session: str) -> None:
        """Create a session, if that is needed."""

    def append(self, session: str, number: int) -> Any:
        """Add one event; durable when done."""
        return self.batch(session, range(number, number + 1))

    def batch(self, session: str, numbers: Sequence[int]) -> Any:
        """Add an event for each number."""
        raise NotImplementedError  # each store has its own way

    def read(self, session: str) -> Any:
        """Return everything of a session, in the form of this store."""
        raise NotImplementedError  # each store has its own way

    async def fill(self, session: str, count: int) -> None:
        """Add that many events to a session, as fast as possible."""
        await self.begin(session)
        for numbers in payloads.chunks(count, 100):
            await done(self.batch(session, numbers))

    def stored(self) -> int:
        """Bytes on the disk, with all indexes."""
        return stored(self.engine, self.url)

    async def close(self) -> None:
        """Let go of the database."""


async def done(result: Any) -> Any:
    """Return the result once it is complete."""
    return await result if hasattr(result, "__await__") else result


def stored(engine: Engine, url: str) -> int:
    """Bytes of all tables and indexes of a database, but not of its catalogue."""
    if engine.server is None:
        return _file(url)
    import psycopg

    query = (
        "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint "
        "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE c.relkind IN ('r', 'm') AND n.nspname NOT LIKE 'pg\\_%' "
        "AND n.nspname <> 'information_schema'"
    )
    with psycopg.connect(url) as connection:
        (size,) = connection.execute(query).fetchone() or (0,)
    return int(size)


def _file(url: str) -> int:
    import sqlite3
    from contextlib import closing
    from pathlib import Path

    path = Path(url.removeprefix("sqlite:///").partition("?")[0])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path.stat().st_size


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
        self._local = local()
        self._open = list[psycopg.Connection[Any]]()

    @property
    def driver(self) -> psycopg.Connection[Any]:
        """This thread's connection."""
        if not hasattr(self._local, "driver"):
            self._local.driver = psycopg.connect(self.url, autocommit=True)
            self._open.append(self._local.driver)
        connection: psycopg.Connection[Any] = self._local.driver
        return connection

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
        self._local = local()
        self._open = list[sqlite3.Connection]()

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
        connection: sqlite3.Connection = self._local.driver
        return connection

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


USER = "ada"


def warm_redactor() -> refold.redaction.Redactor:
    """The default policy on the fastest installed engine, ready to run.

    A store that was opened without one would change to it during a race.
    """
    names: tuple[EngineName, ...] = ("vectorscan", "stdlib")
    for name in names:
        try:
            return redactor(name)
        except ModuleNotFoundError:
            continue
    raise AssertionError("the standard library is always there")


class Refold(Contestant):
    """Refold's public calls, with the default policy."""

    name = OURS

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.keys = engine.keys()
        if engine.server is None:
            self.url = f"{self.url}?synchronous={engine.level.lower()}"
        self.store = refold.open(
            self.url, keys=self.keys, redactor=engine.redactor, make_key=True
        )

    def session(self, name: str) -> Session:
        """The session of that name."""
        return self.store.session(user_id=USER, session_id=name)

    def append(self, session: str, number: int) -> Any:
        return self.session(session).append(payloads.event(number))

    def append_async(self, session: str, number: int) -> Any:
        """The same for asyncio."""
        return self.session(session).append_async(payloads.event(number))

    def batch(self, session: str, numbers: Sequence[int]) -> Any:
        events = [payloads.event(number) for number in numbers]
        return self.session(session).append(events)

    def read(self, session: str) -> Any:
        return list(self.session(session).history.pages())

    async def close(self) -> None:
        self.store.close()
