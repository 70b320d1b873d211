"""The schema in writing: what makes it, in the order in which it is made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import MetaData
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from refold.adapters.sql import postgres_rewrite, postgres_roles, sqlite_rewrite, tables
from refold.adapters.sql.postgres_append import SCHEMA
from refold.adapters.sql.sqlite import APPLICATION_ID
from refold.adapters.sql.urls import EngineName


def schema(engine: EngineName) -> list[str]:
    """Tables, indexes and triggers as migrations leave them in an empty database."""
    if engine == "sqlite":
        made = _made(tables.build(None, rowid=True).metadata, sqlite.dialect())
        mark = f"PRAGMA application_id={APPLICATION_ID}"
        return _neat([mark, *made, *sqlite_rewrite.GUARDS])
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]  # SQLAlchemy's
    made = _made(tables.build(SCHEMA, rowid=False).metadata, dialect)
    first = f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"
    return _neat([first, *made, *postgres_rewrite.GUARDS])


def roles() -> list[str]:
    """Roles, grants and policies of PostgreSQL; can be run again, in a transaction."""
    metadata = tables.build(SCHEMA, rowid=False).metadata
    return _neat(["BEGIN", *postgres_roles.statements(metadata), "COMMIT"])


def _made(metadata: MetaData, dialect: Any) -> Iterator[str]:
    for table in sorted(metadata.tables.values(), key=lambda table: table.name):
        yield str(CreateTable(table).compile(dialect=dialect))
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            yield str(CreateIndex(index).compile(dialect=dialect))


def _neat(statements: list[str]) -> list[str]:
    """Without what SQLAlchemy leaves at the ends of lines."""
    return [
        "\n".join(line.rstrip() for line in statement.strip().splitlines())
        for statement in statements
    ]
