"""The planner statistics of PostgreSQL, which contain plain values of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from refold.adapters.sql.tables import statements

_SQL: Final = statements("postgres")


def replace(connection: Connection, schema: str, tables: Sequence[str]) -> list[str]:
    """Rewrite the tables on disk, and replace the statistics of their columns.

    Each statement is a transaction.  Returns the columns that keep their old
    statistics, each with the reason.
    """
    execute = connection.exec_driver_sql
    for table in tables:
        execute(f"VACUUM FULL {table}")
        execute(f"ANALYZE {table}")
    failures: list[str] = []
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
    execute("VACUUM FULL pg_catalog.pg_statistic")
    return failures
