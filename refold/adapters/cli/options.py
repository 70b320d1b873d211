"""The options that several commands take, each described once."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from refold.adapters import config
from refold.domain.errors import (
    InvalidConfiguration,
    InvalidEvent,
    RefoldError,
    SessionNotFound,
    StoreUnavailable,
)
from refold.domain.ids import check_id, check_session_id

if TYPE_CHECKING:
    from refold.domain.ports import SessionInfo
    from refold.redaction.guard import Limits
    from refold.redaction.redactor import Redactor
    from refold.store import SessionStore


def _user(name: str | None) -> str | None:
    return None if name is None else _named("user", name)


def _session(name: str | None) -> str | None:
    return None if name is None else _named("session", name)


def _named(what: str, name: str) -> str:
    """Refuse a name that nobody can have, as the wrong argument that it is."""
    try:
        return check_id(what, name) if what == "user" else check_session_id(name)
    except InvalidEvent as error:
        raise typer.BadParameter(str(error)) from None


User = Annotated[
    str,
    typer.Option("--user", metavar="U", help="Whose session it is.", callback=_user),
]
OneSession = Annotated[
    str,
    typer.Option(
        "--session", metavar="S", help="The session's name.", callback=_session
    ),
]
SomeUser = Annotated[
    str | None,
    typer.Option(
        "--user", metavar="U", help="Only this user's sessions.", callback=_user
    ),
]
SomeSession = Annotated[
    str | None,
    typer.Option(
        "--session", metavar="S", help="Only sessions of this name.", callback=_session
    ),
]
NewSession = Annotated[
    str | None,
    typer.Option(
        "--session",
        metavar="S",
        help="What to call the session; S-0001… if there are several.  Left out: as "
        "the file says, else after the file.",
        callback=_session,
    ),
]
SomeStrategy = Annotated[
    str | None,
    typer.Option(
        "--strategy",
        metavar="SPEC",
        help="name, name:key=value,… or @file.toml.  Left out: that of the last "
        "request, else keep_all.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


class Verbosity(StrEnum):
    """How much of a timeline is shown."""

    DEFAULT = "default"
    COMPACT = "compact"
    QUIET = "quiet"


class As(StrEnum):
    """Which summaries a context at an earlier seq may show."""

    SENT = "sent"
    REBUILT = "rebuilt"


class Summarizer(StrEnum):
    """What writes the text of a summary."""

    ABRIDGED = "abridged"
    ANTHROPIC = "anthropic"


WritesSummaries = Annotated[
    Summarizer,
    typer.Option(
        "--summarizer", help="What writes the summaries; abridged needs no model."
    ),
]
SummarizerModel = Annotated[
    str | None,
    typer.Option("--model", metavar="M", help="The model that anthropic asks."),
]


class Transcripts(StrEnum):
    """The formats of transcripts; ``auto`` tells them by what is in a file."""

    AUTO = "auto"
    CLAUDE_CODE = "claude-code"
    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    TAU_BENCH = "tau-bench"
    SWE_AGENT = "swe-agent"
    LETTA = "letta"
    INSPECT = "inspect"


class Engines(StrEnum):
    """What looks for values: all of them find the same."""

    AUTO = "auto"
    VECTORSCAN = "vectorscan"
    STDLIB = "stdlib"


class Values(StrEnum):
    """What ``redact`` reads: text, one JSON value, or one in each line."""

    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"


def new_or_existing(context: typer.Context) -> SessionStore:
    """The store, made if it is not there."""
    from refold.opener import open_store
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
    from refold.opener import open_store
    from refold.redaction.engines import start_quickly

    start_quickly()
    url = _url(context)
    if url.startswith("sqlite:"):
        _check_file(url)
    return open_store(url, redactor=redactor, limits=limits, count_uses=False)


def reconcile(context: typer.Context) -> int:
    """Destroy again the keys that an older key store brought back; how many."""
    from refold.opener import reconcile_keys

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
    from refold.adapters.sql.database import engine_of

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
