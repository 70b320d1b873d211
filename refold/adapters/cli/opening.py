"""Opens the store that ``--db`` names, and says so where there is none to read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import typer

from refold import config
from refold.domain.errors import (
    InvalidConfiguration,
    RefoldError,
    SessionNotFound,
    StoreUnavailable,
)

if TYPE_CHECKING:
    from refold.domain.ports import SessionInfo
    from refold.redaction.engine import Redactor
    from refold.redaction.guard import Limits
    from refold.store import SessionStore


def new_or_existing(context: typer.Context) -> SessionStore:
    """The store, made if it is not there."""
    from refold.bootstrap import open_store
    from refold.redaction.engines import start_quickly

    start_quickly()
    return open_store(_url(context), count_uses=False)


def existing(
    context: typer.Context,
    *,
    redactor: Redactor | None = None,
    limits: Limits | None = None,
) -> SessionStore:
    """The store, to be read; a redactor and limits other than the policy's if given.

    Raises StoreUnavailable where a file would have to be made: a misspelt path is
    no empty log.
    """
    from refold.bootstrap import open_store
    from refold.redaction.engines import start_quickly

    start_quickly()
    url = _url(context)
    if url.startswith("sqlite:"):
        _check_file(url)
    return open_store(url, redactor=redactor, limits=limits, count_uses=False)


def reconcile(context: typer.Context) -> int:
    """Destroy again the keys that an older key store brought back; how many."""
    from refold.bootstrap import reconcile_keys

    return reconcile_keys(_url(context))


def sessions(
    store: SessionStore, user: str | None, session: str | None
) -> list[SessionInfo]:
    """The sessions of that user and name; without either, all there are.

    Raises SessionNotFound if a session or user was named that is not there.
    """
    named = session is not None
    found = [
        info
        for info in store.sessions(user)
        if (not named or info.session_id == session)
        and (named or info.status != "erased")
    ]
    if found or (user is None and not named):
        return found
    if user is not None and session is not None:
        store.session(user, session).head()  # says if it was erased
        raise SessionNotFound(user, session)
    what = (
        f"user {user!r} has no sessions"
        if user
        else f"no user has a session {session!r}"
    )
    raise RefoldError(f"{what}: `refold sessions` lists those there are")


def engine(context: typer.Context) -> str:
    """The engine that the URL names, which is not opened.

    Raises InvalidConfiguration if it has no tables.
    """
    from refold.adapters.sql.urls import engine_of

    match engine_of(_url(context)):
        case name, _:
            return name
        case _:
            raise InvalidConfiguration(
                "only SQLite and PostgreSQL have a schema: --engine names one"
            )


def _url(context: typer.Context) -> str:
    given = cast("str | None", context.find_root().params.get("db"))
    return given or config.database()


def _check_file(url: str) -> None:
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        path = make_url(url).database
    except ArgumentError:
        return
    if path and path != ":memory:" and not Path(path).exists():
        raise StoreUnavailable(
            f"there is no database {path}",
            remedy="`refold import` makes one; --db or REFOLD_DB names another",
        )
