"""What each session store is asked to do, in its own way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from benchmarks.store import payloads
from benchmarks.store.engines import Engine


class Contestant:
    """A store with sessions.  What may be awaited returns a coroutine or is done.

    style:    how its users run several sessions at once.
    batches:  whether it can add many events in one go.
    most:     events of a session beyond which it is not filled: it would take too long.
    """

    name: str
    style: Literal["threads", "asyncio"] = "threads"
    batches: bool = True
    most: int = 10**9

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.url = engine.fresh()

    async def open(self) -> None:
        """Connect, and make the tables."""

    async def begin(self, session: str) -> None:
        """Make a session, if it has to be made."""

    def append(self, session: str, number: int) -> Any:
        """Add one event; durable when done."""
        return self.batch(session, range(number, number + 1))

    def batch(self, session: str, numbers: Sequence[int]) -> Any:
        """Add an event for each number."""
        raise NotImplementedError  # each store has its own way

    def read(self, session: str) -> Any:
        """Everything of a session, as this store gives it."""
        raise NotImplementedError  # each store has its own way

    async def fill(self, session: str, count: int) -> None:
        """Give a session so many events, as fast as it goes."""
        await self.begin(session)
        for numbers in payloads.chunks(count, 100):
            await done(self.batch(session, numbers))

    def stored(self) -> int:
        """Bytes on the disk, with all indexes."""
        return stored(self.engine, self.url)

    async def close(self) -> None:
        """Let go of the database."""


async def done(result: Any) -> Any:
    """The result, once it is there."""
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
