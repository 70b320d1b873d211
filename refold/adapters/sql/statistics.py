"""The planner's statistics of PostgreSQL, which hold values of rows in plain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from refold.adapters.sql.tables import statements

_SQL: Final = statements("postgres")


def replace(connection: Connection, schema: str, tables: Sequence[str]) -> list[str]:
    """Write tables anew, and replace the statistics of their columns.

    Each statement is a transaction.  Returns the columns whose old statistics stay,
    each with the reason.
    """
    ask = connection.exec_driver_sql
    for table in tables:
        ask(f"VACUUM FULL {table}")
        ask(f"ANALYZE {table}")
    left: list[str] = []
    # ANALYZE leaves the statistics of a table that is empty now.  To give a column its
    # type again drops them, unless a policy or a partition names it.
    for table, column, kind in ask(_SQL["described"], (schema,)).all():
        if ask(f"SELECT 1 FROM {table} LIMIT 1").first() is not None:
            continue
        try:
            ask(f"ALTER TABLE {table} ALTER COLUMN {column} TYPE {kind}")
        except DBAPIError as error:
            left.append(f"{table}.{column} ({type(error.orig).__name__})")
    # Replaced rows stay in its file; only a database owner's command runs.
    ask("VACUUM FULL pg_catalog.pg_statistic")
    return left
