"""Which engine a database URL names."""

from __future__ import annotations

from typing import Literal

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

EngineName = Literal["sqlite", "postgresql"]


def engine_of(url: str) -> tuple[EngineName, URL] | None:
    """The engine and the parts of its URL; None if it is neither of the two."""
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
    except ArgumentError:
        return None
    if backend == "sqlite":
        return "sqlite", parsed
    return ("postgresql", parsed) if backend in ("postgresql", "postgres") else None
