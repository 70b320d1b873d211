"""Transactions on PostgreSQL whose COMMIT does not wait for the disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from refold.adapters.sql.dialect import NOBODY

if TYPE_CHECKING:
    from refold.adapters.sql.postgres import PostgresDialect


@contextmanager
def transaction(dialect: PostgresDialect) -> Iterator[Connection]:
    """One that a crash of the server may take back, of a table without users."""
    with dialect.writing(NOBODY) as connection:
        connection.exec_driver_sql("SET LOCAL synchronous_commit TO off")
        yield connection
