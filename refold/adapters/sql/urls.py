"""URLs of databases: which engine they name, and their parts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias
from urllib.parse import parse_qs, unquote

if TYPE_CHECKING:
    from sqlalchemy import URL

EngineName: TypeAlias = Literal["sqlite", "postgresql", "citus"]


class SqliteUrl(NamedTuple):
    """The parts of the URL of a SQLite store."""

    database: str
    query: Mapping[str, str | tuple[str, ...]]


_OF_FILE: Final = "sqlite:///"


def url_of_file(path: str | os.PathLike[str]) -> str:
    """Return the URL that ``engine_of`` reads as this path of a SQLite file."""
    return _OF_FILE + encoded(path)


def encoded(path: str | os.PathLike[str]) -> str:
    """Return the path as it stands in a URL."""
    return os.fspath(path).replace("%", "%25").replace("?", "%3F")


def engine_of(
    url: str,
) -> tuple[Literal["sqlite"], SqliteUrl] | tuple[Literal["postgresql"], URL] | None:
    """Return the engine of a URL and its parts; None for another engine."""
    if url.startswith(_OF_FILE):
        # The usual form, read without SQLAlchemy, and in the same way.
        return "sqlite", _parts_of(url.removeprefix(_OF_FILE))
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


def _parts_of(path_and_query: str) -> SqliteUrl:
    """Return the parts of the URL of a file, without the ``sqlite:///`` before them.

    A name that occurs several times in the query has a tuple of values.
    """
    path, _, encoded_query = path_and_query.partition("?")
    query: dict[str, str | tuple[str, ...]] = {}
    for name, values in parse_qs(encoded_query).items():
        query[name] = values[0] if len(values) == 1 else tuple(values)
    # A name of a file need not be UTF-8.
    return SqliteUrl(unquote(path, errors="surrogateescape"), query)
