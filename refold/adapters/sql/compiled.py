"""Statements for SQLite that are compiled once in a process, for all engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

from sqlalchemy import Connection, Dialect, Engine, MetaData, create_engine
from sqlalchemy.schema import CreateIndex, CreateTable
from sqlalchemy.util import LRUCache

_STATEMENTS: Final = 2000


def share(engine: Engine) -> None:
    """Let an engine of SQLite use the statements that other engines have compiled.

    SQLAlchemy looks for a compiled statement by the engine's dialect.  Engines have a
    dialect each, but those of SQLite are equal.
    """
    engine.dialect, statements = _shared()
    engine.update_execution_options(compiled_cache=statements)


def create_missing(connection: Connection, metadata: MetaData) -> None:
    """Create the tables that a SQLite database lacks, with their indexes."""
    query = "SELECT name FROM sqlite_master WHERE type = 'table'"
    existing = set(connection.exec_driver_sql(query).scalars())
    for name, statements in _creation(metadata).items():
        if name not in existing:
            for statement in statements:
                connection.exec_driver_sql(statement)


@cache
def _shared() -> tuple[Dialect, LRUCache[Any, Any]]:
    """Return a dialect that has learned what the library can do, and a cache."""
    engine = create_engine("sqlite://")
    with engine.connect():
        pass
    engine.dispose()
    return engine.dialect, LRUCache(_STATEMENTS)


@cache
def _creation(metadata: MetaData) -> Mapping[str, Sequence[str]]:
    """Return the statements that create each table."""
    dialect, _ = _shared()
    creation: dict[str, list[str]] = {}
    for table in metadata.sorted_tables:
        statements = [str(CreateTable(table).compile(dialect=dialect))]
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            statements.append(str(CreateIndex(index).compile(dialect=dialect)))
        creation[table.name] = statements
    return creation
