"""The databases: a PostgreSQL that really syncs, and SQLite with FULL and NORMAL."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

import refold
from tests.support.postgres import Postgres, PostgresUnavailable

POSTGRES, FULL, NORMAL = "PostgreSQL", "SQLite FULL", "SQLite NORMAL"
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
    """One engine, a folder for its files, and what redacts for Refold on it."""

    name: str
    folder: Path
    server: Postgres | None = None
    redactor: refold.redaction.Redactor | None = None
    _counter: Iterator[int] = field(default_factory=itertools.count)

    @property
    def level(self) -> str:
        """What SQLite's ``synchronous`` is to be."""
        return "NORMAL" if self.name == NORMAL else "FULL"

    def fresh(self) -> str:
        """The URL of an empty database; a file of SQLite keeps its WAL from here on."""
        name = f"bench{next(self._counter)}"
        if self.server:
            return self.server.create_database(name)
        path = self.folder / f"{self.name.replace(' ', '-')}-{name}.db"
        with closing(sqlite3.connect(path)) as made:
            made.execute("PRAGMA journal_mode=WAL")
        return f"sqlite:///{path}"

    def keys(self) -> str:
        """The URL of a key store for one store."""
        name = f"{self.name}-keys{next(self._counter)}.db".replace(" ", "-")
        return f"sqlite:///{self.folder / name}"

    def conditions(self) -> dict[str, str]:
        """What decides over the figures of this engine."""
        if not self.server:
            return {"SQLite": f"{sqlite3.sqlite_version} (WAL)"}
        with psycopg.connect(self.server.url) as connection:
            told = {
                name: connection.execute(f"SHOW {name}").fetchone()[0]  # type: ignore[index]  # one row
                for name in _TOLD
            }
        version = told.pop("server_version").split()[0]
        settings = ", ".join(f"{name} {value}" for name, value in told.items())
        return {"PostgreSQL": f"{version} ({settings})"}


@contextmanager
def engines(
    names: Iterable[str], folder: Path, redactor: refold.redaction.Redactor
) -> Iterator[list[Engine]]:
    """The engines of these names, started; PostgreSQL is gone afterwards.

    A PostgreSQL that cannot be had is named and left out.
    """
    wanted, server = [ENGINES[name] for name in names], None
    if POSTGRES in wanted:
        try:
            server = Postgres.given() or Postgres.start(**_DURABLE)
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
