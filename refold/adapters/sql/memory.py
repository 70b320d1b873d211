"""A database of SQLite in memory, which threads use in turn."""

from __future__ import annotations

import sqlite3
from threading import RLock
from typing import Any, cast

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.pool import StaticPool

from refold.adapters.sql import forks
from refold.domain.errors import StoreUnavailable


class OnlyConnection(sqlite3.Connection):
    """The one connection of a database in memory: who reads in a write ends none."""

    users = 0

    def rollback(self) -> None:
        if self.users <= 1:
            super().rollback()


class OnePool(StaticPool):
    """Hands the only connection to one thread at a time, and to that again inside.

    A forked child has a copy of the database, unless a thread was changing it.
    """

    def __init__(self, creator: Any, **settings: Any) -> None:
        super().__init__(creator, **settings)
        self._turn = RLock()
        self._half_copied = False
        self._uses: list[forks.Use] = []
        forks.register(self)

    def __enter__(self) -> None:
        """Take the turn."""
        use = forks.begin_use(self)
        if self._half_copied:
            forks.end_use(use)
            raise StoreUnavailable(
                "another thread used the store in memory while this process was forked",
                remedy="fork when no thread uses it, or open the store in the child",
            )
        self._turn.acquire()
        self._uses.append(use)

    def __exit__(self, *error: object) -> None:
        """Give the turn back."""
        use = self._uses.pop()
        self._turn.release()
        forks.end_use(use)

    def close_before_fork(self) -> None:
        """Nothing to close: the memory is copied with the process."""

    def leave_to_parent(self, *, in_use: bool) -> None:
        self._half_copied = in_use

    def _do_get(self) -> Any:
        self.__enter__()
        record = super()._do_get()
        cast("OnlyConnection", record.driver_connection).users += 1
        return record

    def _do_return_conn(self, record: Any) -> None:
        cast("OnlyConnection", record.driver_connection).users -= 1
        self.__exit__()

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
