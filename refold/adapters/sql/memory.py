"""SQLite's database in memory: one connection, which threads use in turn."""

from __future__ import annotations

import sqlite3
from threading import RLock
from typing import Any, cast

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.pool import StaticPool


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


def _begin_in_memory(connection: Connection) -> None:
    # Each statement reads one moment by itself, and nobody else has a turn.
    if connection.get_execution_options().get("refold_begin"):
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def begin(connection: Connection) -> None:
    """Begin a transaction of a file as the connection's options say."""
    mode = connection.get_execution_options().get("refold_begin", "DEFERRED")
    connection.exec_driver_sql(f"BEGIN {mode}")
