"""URLs of databases: which engine they name, and their parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias
from urllib.parse import parse_qsl

if TYPE_CHECKING:
    from sqlalchemy import URL

EngineName: TypeAlias = Literal["sqlite", "postgresql", "citus"]


class SqliteUrl(NamedTuple):
    """The parts of the URL of a SQLite store."""

    database: str
    query: Mapping[str, str | tuple[str, ...]]


_OF_FILE: Final = "sqlite:///"


def engine_of(
    url: str,
) -> tuple[Literal["sqlite"], SqliteUrl] | tuple[Literal["postgresql"], URL] | None:
    """Return the engine of a URL and its parts; None for another engine."""
    file, _, query = url.removeprefix(_OF_FILE).partition("?")
    if url.startswith(_OF_FILE) and "&" not in query:
        # The usual form, read without SQLAlchemy.
        return "sqlite", SqliteUrl(file, dict(parse_qsl(query)))
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
    except (ArgumentError, ValueError):  # such as brackets that are not closed
        return None
    if backend == "sqlite":
        return "sqlite", SqliteUrl(parsed.database or "", parsed.query)
    if backend in ("postgresql", "postgres"):
        return "postgresql", parsed
    return None
