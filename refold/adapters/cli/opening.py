"""Opens the store that ``--db`` names, and says so where there is none to read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import typer

from refold import config
from refold.domain.errors import RefoldError, SessionNotFound, StoreUnavailable

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
    return open_store(_url(context))


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
    return open_store(url, redactor=redactor, limits=limits)


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
        raise SessionNotFound(user, session)
    what = (
        f"user {user!r} has no sessions"
        if user
        else f"no user has a session {session!r}"
    )
    raise RefoldError(f"{what}: `refold sessions` lists those there are")


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
