"""The planner statistics of PostgreSQL, which contain plain values of rows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from refold.adapters.sql.queries import statements

_SQL: Final = statements("postgres")
PATIENCE: Final = 30.0  # seconds to wait for transactions that see deleted rows
_PAUSE: Final = 0.05  # seconds between two looks


def replace(connection: Connection, schema: str, tables: Sequence[str]) -> list[str]:
    """Rewrite the tables on disk, and replace the statistics of their columns.

    Each statement is a transaction.  VACUUM keeps the deleted rows that an older
    transaction still sees, such as an ANALYZE of the server, so that ends first.

    Returns the columns that keep their old statistics, each with the reason, and the
    tables that keep deleted rows because a transaction does not end.
    """
    execute = connection.exec_driver_sql
    failures: list[str] = []
    if not _older_transactions_end(connection):
        failures.append(f"deleted rows of {schema}, which an older transaction sees")
    for table in tables:
        execute(f"VACUUM FULL {table}")
        execute(f"ANALYZE {table}")
    # ANALYZE keeps the statistics of a table that is empty now.  Setting a column to
    # the type it has drops them, unless a policy or a partition names the column.
    for table, column, kind in execute(_SQL["described"], (schema,)).all():
        if execute(f"SELECT 1 FROM {table} LIMIT 1").first() is not None:
            continue
        try:
            execute(f"ALTER TABLE {table} ALTER COLUMN {column} TYPE {kind}")
        except DBAPIError as error:
            failures.append(f"{table}.{column} ({type(error.orig).__name__})")
    # The file of the statistics still contains the replaced rows.  This statement works
    # for the owner of the database alone.
    if not _older_transactions_end(connection):
        failures.append("replaced statistics, which an older transaction sees")
    execute("VACUUM FULL pg_catalog.pg_statistic")
    return failures


def _older_transactions_end(connection: Connection) -> bool:
    """Wait until no other transaction of the server still sees deleted rows.

    Standbys and replication slots that need the deleted rows count, too.

    Returns False if one is still there after ``PATIENCE``.  A role that may not see the
    transactions of others waits only for those that have written something.
    """
    execute = connection.exec_driver_sql
    newest = execute("SELECT pg_current_xact_id()::text").scalar_one()
    deadline = time.monotonic() + PATIENCE
    while execute(_SQL["has_older_transactions"], (newest,) * 3).scalar_one():
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE)
    return True
