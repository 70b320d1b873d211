"""The options that several commands take, each described once."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

User = Annotated[str, typer.Option("--user", metavar="U", help="Whose session it is.")]
OneSession = Annotated[
    str, typer.Option("--session", metavar="S", help="The session's name.")
]
SomeUser = Annotated[
    str | None, typer.Option("--user", metavar="U", help="Only this user's sessions.")
]
SomeSession = Annotated[
    str | None,
    typer.Option("--session", metavar="S", help="Only sessions of this name."),
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


class Values(StrEnum):
    """What ``redact`` reads: text, one JSON value, or one in each line."""

    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"
