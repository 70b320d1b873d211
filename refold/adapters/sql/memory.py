"""SQLite in memory: one connection, which threads use one after another."""

from __future__ import annotations

import sqlite3
from threading import RLock
from typing import Any, cast

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.pool import StaticPool

from refold.adapters.sql import compiled, forks
from refold.domain.errors import StoreUnavailable


class OnlyConnection(sqlite3.Connection):
    """The only connection of a database in memory.

    A read inside of a write must not roll the write back.

    users: how many uses of the connection are nested.
    """

    users = 0

    def rollback(self) -> None:
        if self.users <= 1:
            super().rollback()


class OnePool(StaticPool):
    """Gives the only connection to one thread at a time, which may nest its uses.

    A forked child has a copy of the database, unless a thread used it at that moment.
    """

    def __init__(self, creator: Any, **settings: Any) -> None:
        super().__init__(creator, **settings)
        self._turn = RLock()
        self._half_copied = False
        self._uses: list[forks.Use] = []
        forks.register(self)

    def __enter__(self) -> None:
        """Wait until no other thread uses the connection."""
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
        """Let other threads use the connection."""
        use = self._uses.pop()
        self._turn.release()
        forks.end_use(use)

    def close_before_fork(self) -> None:
        """Close nothing, because a fork copies the memory of the process."""

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
        """Return the same pool: a forked child continues with its copy."""
        return self


def engine_in_memory() -> Engine:
    """Return the engine of a new database, which exists as long as the engine."""
    connection = sqlite3.connect(
        ":memory:",
        check_same_thread=False,
        isolation_level=None,
        cached_statements=256,
        factory=OnlyConnection,
    )
    engine = create_engine(
        "sqlite://",
        creator=lambda: connection,
        poolclass=OnePool,
        pool_reset_on_return=None,
    )
    compiled.share(engine)
    event.listen(engine, "begin", _begin_in_memory)
    return engine


def _begin_in_memory(connection: Connection) -> None:
    """Begin a transaction, if one was requested."""
    # Single statements need none, because no other thread uses the connection.
    if connection.get_execution_options().get("refold_begin"):
        connection.exec_driver_sql("BEGIN IMMEDIATE")
