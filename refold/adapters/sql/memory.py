"""How SQLite is opened: a file, or a database in memory that threads use in turn."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from threading import RLock
from typing import Any, Final, cast

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.pool import QueuePool, StaticPool

from refold.domain.errors import StoreUnavailable

BUSY_MS: Final = 10_000


class OnlyConnection(sqlite3.Connection):
    """The one connection of a database in memory: who reads in a write ends none."""

    users = 0

    def rollback(self) -> None:
        if self.users <= 1:
            super().rollback()


class OnePool(StaticPool):
    """Hands the only connection to one thread at a time, and to that again inside."""

    def __init__(self, creator: Any, **settings: Any) -> None:
        super().__init__(creator, **settings)
        self.turn = RLock()

    def _do_get(self) -> Any:
        self.turn.acquire()
        record = super()._do_get()
        cast("OnlyConnection", record.driver_connection).users += 1
        return record

    def _do_return_conn(self, record: Any) -> None:
        cast("OnlyConnection", record.driver_connection).users -= 1
        self.turn.release()

    def recreate(self) -> OnePool:
        """The same: a forked child goes on with its copy."""
        return self


def engine_in_memory() -> Engine:
    """A database that lives as long as its engine, used by one thread after another."""
    only = sqlite3.connect(
        ":memory:",
        check_same_thread=False,
        isolation_level=None,
        cached_statements=256,
        factory=OnlyConnection,
    )
    engine = create_engine(
        "sqlite://", creator=lambda: only, poolclass=OnePool, pool_reset_on_return=None
    )
    event.listen(engine, "begin", _begin_in_memory)
    return engine


def connected(place: str) -> sqlite3.Connection:
    """A connection to the file of this URI, for any thread."""
    return sqlite3.connect(
        place,
        uri=True,
        timeout=BUSY_MS / 1000,
        check_same_thread=False,
        cached_statements=256,
    )


def engine_of_file(
    connect: Callable[[], Any], on_connect: Callable[..., None]
) -> Engine:
    """A pool of connections to a file, each prepared by ``on_connect``."""
    engine = create_engine("sqlite://", creator=connect, poolclass=QueuePool)
    event.listen(engine, "connect", on_connect)
    event.listen(engine, "begin", _begin)
    return engine


def _begin_in_memory(connection: Connection) -> None:
    # Each statement reads one moment by itself, and nobody else has a turn.
    if connection.get_execution_options().get("refold_begin"):
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _begin(connection: Connection) -> None:
    """Begin a transaction of a file as the connection's options say."""
    mode = connection.get_execution_options().get("refold_begin", "DEFERRED")
    if mode:
        connection.exec_driver_sql(f"BEGIN {mode}")


def only_read(path: Path) -> bool:
    """Whether the file is there, and this process cannot write it where it lies."""
    beside = (path.parent, path.with_name(f"{path.name}-shm"))
    can = os.access(path, os.W_OK) and any(os.access(one, os.W_OK) for one in beside)
    return path.exists() and not can


def place_of(path: Path, *, readonly: bool) -> str:
    """The URI that opens a file, which is never made by that.

    Where a log lies beside a file that cannot be written, SQLite reads both if the
    index of the log is there or can be made.  Without one the file is all there is.

    Raises StoreUnavailable for a log that cannot be read where it lies.
    """
    place = path.as_uri()
    if not readonly:
        return f"{place}?mode=rw"
    wal, index, journal = (
        path.with_name(f"{path.name}{end}") for end in ("-wal", "-shm", "-journal")
    )
    held = any(one.exists() and one.stat().st_size for one in (wal, journal))
    if not held and not (wal.exists() and index.exists()):
        return f"{place}?mode=ro&immutable=1"
    if wal.exists() and not index.exists() and not os.access(path.parent, os.W_OK):
        raise StoreUnavailable(
            f"{path} cannot be read where it lies: part of it is in {wal.name}",
            remedy="copy both to a folder that can be written",
        )
    return f"{place}?mode=ro"
