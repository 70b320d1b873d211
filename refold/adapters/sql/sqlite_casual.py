"""Transactions on SQLite that no append waits for longer than for their rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from sqlalchemy import Connection

if TYPE_CHECKING:
    import sqlite3

    from refold.adapters.sql.sqlite import SqliteDialect


@contextmanager
def transaction(dialect: SqliteDialect) -> Iterator[Connection]:
    """One that a power cut may take back: it holds the write lock for no disk's sake.

    The next append makes it durable with itself.
    """
    engine = dialect.engine().execution_options(refold_begin="IMMEDIATE")
    with engine.connect() as connection:
        driver = cast("sqlite3.Connection", connection.connection.driver_connection)
        (level,) = driver.execute("PRAGMA synchronous").fetchone()
        driver.execute("PRAGMA synchronous=NORMAL")
        try:
            with connection.begin():
                yield connection
        finally:
            driver.execute(f"PRAGMA synchronous={level}")
