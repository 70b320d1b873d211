"""Query plans: which tables a database would scan completely for a statement."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import psycopg

from tests.support.statements import Statement

TABLES: Final = (
    "heads",
    "events",
    "blobs",
    "receipts",
    "views",
    "leases",
    "audit",
    "leaves",
    "seals",
    "tree_heads",
)
_TABLE: Final = rf"\b(?:refold\.)?({'|'.join(TABLES)})\b(?:\s+(?:AS\s+)?(\w+))?"
_QUERY: Final = re.compile(r"\s*(SELECT|WITH|INSERT|UPDATE|DELETE)\b", re.IGNORECASE)
# The columns by which a search must be narrowed at least; the position in the whole log
# is enough alone.
_KEYS: Final = ("user_id", "session_id")
# Lists of a user's sessions, and erasures; blobs have no narrower key.
_OF_A_USER: Final = ("heads", "blobs", "seals")
_OF_THE_TREE: Final = {"leaves": "leaf", "tree_heads": "size"}
_SESSIONS: Final = 20_000


def queries(statements: list[Statement]) -> set[Statement]:
    """Return the statements that read rows of our tables."""
    return {
        statement
        for statement in statements
        if _QUERY.match(statement.text) and re.search(_TABLE, statement.text)
    }


def fill_tables(connection: psycopg.Connection[Any]) -> None:
    """Insert rows of many sessions into every table, so that plans are realistic."""
    who = "'user-' || n / 20, 's-' || n"
    for table, columns in {
        "heads": f"{who}, 'main', 1, '', 'open', '', '', 1, 0, 0",
        "events": f"n, {who}, 'main', 1, 'system', 0, '', 1, 1, '', 'body', NULL",
        "blobs": "'user-' || n / 20, int4send(n), 1, 0, 'body'",
        "receipts": f"{who}, 'main', int4send(n), 1, 1",
        "views": f"{who}, 'name', 1, 0, 'body', '[[1, 1]]', '[]'",
        "leases": f"{who}, 'derived', 'owner', 0, 0, 0",
        "leaves": "1000000 + n, '', NULL",
        "seals": f"{who}, 'main', 1, 1000000 + n, '', ''",
        "tree_heads": "1000000 + n, '', 0, '', '', '', 0",
        "audit": "decode(lpad(to_hex(n), 32, '0'), 'hex'), n, 'session_load', "
        "'user-' || n / 20, NULL, NULL, 1, NULL, 1, 'ok', NULL, '{}'",
    }.items():
        numbers = f"generate_series(1, {_SESSIONS}) n"
        connection.execute(
            f"INSERT INTO refold.{table} SELECT {columns} FROM {numbers}"
        )  # type: ignore[arg-type, unused-ignore]  # no user's text
        connection.execute(f"ANALYZE refold.{table}")  # type: ignore[arg-type, unused-ignore]  # the same


def scanned_on_postgres(
    connection: psycopg.Connection[Any], statement: Statement
) -> set[str]:
    """Return the tables that PostgreSQL would scan completely for any parameters."""
    return {
        name
        for node in plan_nodes(connection, statement)
        for name in _scanned_tables(node)
    }


def plan_nodes(
    connection: psycopg.Connection[Any], statement: Statement
) -> list[dict[str, Any]]:
    """Return the nodes of PostgreSQL's plan for any parameters."""
    connection.prepare_threshold = None  # psycopg would not notice DEALLOCATE
    connection.execute("SET plan_cache_mode = force_generic_plan")
    connection.execute("DEALLOCATE ALL")
    connection.pgconn.prepare(b"asked", statement.text.encode(), statement.types)
    types = "SELECT cardinality(parameter_types) FROM pg_prepared_statements"
    parameters = connection.execute(types + " WHERE name = 'asked'").fetchone()
    assert parameters is not None
    values = f"({', '.join(['NULL'] * parameters[0])})" if parameters[0] else ""
    plan = connection.execute(f"EXPLAIN (FORMAT JSON) EXECUTE asked{values}")  # type: ignore[arg-type, unused-ignore]  # the same
    row = plan.fetchone()
    assert row is not None
    return list(_nodes(row[0][0]["Plan"]))


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from _nodes(below)


def _scanned_tables(node: dict[str, Any]) -> Iterator[str]:
    kind = node["Node Type"]
    table = node.get("Relation Name")
    if kind == "Seq Scan" and table in TABLES:
        yield table
    if kind in ("Index Scan", "Index Only Scan") and table in TABLES:
        if not _narrow(table, node.get("Index Cond", "")):
            yield table
    elif kind == "Bitmap Index Scan":
        table = node["Index Name"].partition("_")[0]
        if not _narrow(table, node.get("Index Cond", "")):
            yield table


def _narrow(table: str, condition: str) -> bool:
    if table == "audit":  # of a user, from a record on, or by the row's address
        return any(key in condition for key in ("user_hash", "record_id", "position"))
    if table in _OF_THE_TREE:
        return _OF_THE_TREE[table] in condition
    keys = _KEYS[:1] if table in _OF_A_USER else _KEYS
    return all(key in condition for key in keys) or "position" in condition


def scanned_on_sqlite(path: str, statement: Statement) -> set[str]:
    """Return the tables that SQLite would scan completely."""
    names = {
        name: table
        for table, alias in re.findall(_TABLE, statement.text)
        for name in (table, alias)
        if name
    }
    with closing(sqlite3.connect(path)) as connection:
        steps = connection.execute(f"EXPLAIN QUERY PLAN {statement.text}").fetchall()
    tables_read = set()
    for *_, step in steps:
        verb, name, how = (*step.split(" ", 2), "", "")[:3]
        table = names.get(name, "")
        if table and (verb == "SCAN" or not _searches(table, how)):
            tables_read.add(table)
    return tables_read


def _searches(table: str, how: str) -> bool:
    if not how:  # from one end of the index: the first or the last
        return True
    return _narrow(table, how.replace("rowid", "position"))
