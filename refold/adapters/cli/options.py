"""The options that several commands take, each described once."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from refold.domain.errors import InvalidEvent
from refold.domain.ids import check_id, check_session_id


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
    RE2 = "re2"
    STDLIB = "stdlib"


class Values(StrEnum):
    """What ``redact`` reads: text, one JSON value, or one in each line."""

    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"
