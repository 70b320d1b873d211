"""Writes the files of statements that create the tables of SQLite, and checks them.

    python -m tools.sqlite_tables [--check]

A process that opens a SQLite store reads these files, and need not load SQLAlchemy.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from sqlalchemy import MetaData
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateIndex, CreateTable, ExecutableDDLElement

import refold
from refold.adapters.sql import key_tables, tables

_DATA: Final = Path(refold.__file__).parent / "adapters" / "sql" / "data"


def texts() -> dict[Path, str]:
    """The text of each file, by its path."""
    return {
        _DATA / "sqlite_tables.sql": _text(tables.build(None, rowid=True).metadata),
        _DATA / "sqlite_keys.sql": _text(key_tables.key_tables(schema=False).metadata),
    }


def _text(metadata: MetaData) -> str:
    """The statements that create these tables and their indexes, each with its name."""
    parts = ["-- Written by `python -m tools.sqlite_tables`.\n"]
    for table in metadata.sorted_tables:
        parts.append(_section(table.name, CreateTable(table)))
        for index in sorted(table.indexes, key=lambda index: str(index.name)):
            parts.append(_section(f"{table.name}.{index.name}", CreateIndex(index)))
    return "\n".join(parts)


def _section(name: str, element: ExecutableDDLElement) -> str:
    lines = str(element.compile(dialect=sqlite.dialect())).strip().splitlines()
    statement = "\n".join(line.rstrip() for line in lines)
    return f"-- name: {name}\n{statement}\n"


def main(arguments: list[str]) -> int:
    """Write the files, or with ``--check`` only compare them; returns the exit code."""
    status = 0
    for path, text in texts().items():
        if "--check" not in arguments:
            path.write_text(text, "utf-8")
        elif not path.is_file() or path.read_text("utf-8") != text:
            sys.stderr.write(f"{path.name} is old: python -m tools.sqlite_tables\n")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
