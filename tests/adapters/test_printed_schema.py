"""The printed schema equals the one that migrations create."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

import refold
from refold.adapters.sql import tables
from refold.adapters.sql.queries import SCHEMA, TABLES
from refold.adapters.sql.schema import roles, schema
from tests.support.stores import open_at
from tools import sqlite_tables

ASKED: Final = {
    "columns": "SELECT c.relname, a.attname, a.attnum, a.attnotnull, a.attstorage, "
    "format_type(a.atttypid, a.atttypmod), pg_get_expr(d.adbin, d.adrelid) "
    "FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 "
    "LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum "
    "WHERE c.relkind = 'r' AND c.relnamespace = 'refold'::regnamespace",
    "indexes": "SELECT indexdef FROM pg_indexes WHERE schemaname = 'refold'",
    "constraints": "SELECT conname, conrelid::regclass::text, "
    "pg_get_constraintdef(oid) FROM pg_constraint "
    "WHERE connamespace = 'refold'::regnamespace",
    "triggers": "SELECT pg_get_triggerdef(t.oid) FROM pg_trigger t "
    "JOIN pg_class c ON c.oid = t.tgrelid "
    "WHERE NOT tgisinternal AND c.relnamespace = 'refold'::regnamespace",
    "functions": "SELECT pg_get_functiondef(oid) FROM pg_proc "
    "WHERE pronamespace = 'refold'::regnamespace",
}


def catalogue(url: str) -> dict[str, list[str]]:
    with psycopg.connect(url) as connection:
        return {
            name: sorted(map(str, connection.execute(query).fetchall()))
            for name, query in ASKED.items()
        }


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
def test_the_printed_schema_of_postgresql_equals_the_migrated_one(
    store_url: str, postgres_url: str, tmp_path: Path
) -> None:
    with psycopg.connect(postgres_url) as connection:
        for statement in schema("postgresql"):
            connection.execute(statement)

    printed = catalogue(postgres_url)
    created = catalogue(store_url)

    assert printed == created
    assert all(created.values())
    with open_at(postgres_url, tmp_path) as store:
        assert store.session(user_id="ada", session_id="s").append(
            refold.UserInput(text="x")
        )


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_the_printed_schema_of_sqlite_equals_the_migrated_one(
    store_url: str, tmp_path: Path
) -> None:
    created = Path(store_url.removeprefix("sqlite:///"))
    printed = tmp_path / "printed.db"
    with closing(sqlite3.connect(printed)) as connection:
        connection.executescript(";\n".join(schema("sqlite")))

    assert master(printed) == master(created)
    with open_at(f"sqlite:///{printed}", tmp_path) as store:
        assert store.session(user_id="ada", session_id="s").append(
            refold.UserInput(text="x")
        )


def master(path: Path) -> list[Any]:
    query = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name"
    with closing(sqlite3.connect(path)) as connection:
        mark = connection.execute("PRAGMA application_id").fetchone()
        rows = connection.execute(query).fetchall()
    return [mark, *([*row[:3], (row[3] or "").split()] for row in rows)]


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
def test_the_printed_schema_is_reproducible(engine: Any) -> None:
    assert schema(engine) == schema(engine)
    assert roles() == roles()


@pytest.mark.parametrize("path", sqlite_tables.texts(), ids=lambda path: path.name)
def test_a_file_creates_the_tables_that_are_described(path: Path) -> None:
    assert path.read_text("utf-8") == sqlite_tables.texts()[path]


def test_every_table_has_a_name_in_statements() -> None:
    for schema_name in (None, SCHEMA):
        built = tables.build(schema_name, rowid=schema_name is None)
        assert {table.name for table in built.metadata.sorted_tables} == {*TABLES}
