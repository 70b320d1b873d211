"""What PostgreSQL raised, as an error of ours, and what is worth another attempt."""

from __future__ import annotations

from typing import Final

import psycopg
from sqlalchemy.exc import DBAPIError

from refold.domain.errors import RefoldError, StoreUnavailable

_KNOWN: Final = {
    "53": ("is out of room or connections", "free some and try again"),
    "25": ("is read-only", "connect to the primary"),
    "42501": (
        "refuses: insufficient privilege",
        "connect as a role that may (`refold schema --roles` has them)",
    ),
    "28": ("refuses the login", "check user and password"),
    "3D": ("does not exist", "create the database first"),
}


def translated(shown: str, error: Exception) -> RefoldError | None:
    """The error to raise for what the driver raised at ``shown``; None: none of it."""
    cause = _cause(error)
    if not isinstance(cause, psycopg.Error):
        return None
    state = cause.sqlstate or ""
    for prefix, (what, remedy) in _KNOWN.items():
        if state.startswith(prefix):
            return StoreUnavailable(f"{shown} {what}", remedy=remedy)
    if isinstance(cause, psycopg.OperationalError | psycopg.InterfaceError):
        what = "cannot be reached, or broke the connection"
        return StoreUnavailable(
            f"{shown} {what}", remedy="check that it runs, and try again"
        )
    name = type(cause).__name__
    return StoreUnavailable(
        f"{shown} refused a statement ({name} {state})", remedy="see the server's log"
    )


def broken(error: Exception) -> bool:
    """Whether the server broke the connection, and may come back."""
    cause = _cause(error)
    return isinstance(cause, psycopg.OperationalError) and (
        cause.sqlstate is None or cause.sqlstate.startswith(("08", "57P"))
    )


def collided(error: Exception) -> bool:
    """Whether two transactions collided, and the server gave up on this one."""
    cause = _cause(error)
    return isinstance(cause, psycopg.Error) and cause.sqlstate in ("40001", "40P01")


def _cause(error: Exception) -> object:
    return error.orig if isinstance(error, DBAPIError) else error
