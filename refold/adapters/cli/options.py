"""The options that several commands take, each described once."""

from __future__ import annotations

import getpass
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from refold.adapters import config
from refold.adapters.cli.output import Result, paint
from refold.domain import errors
from refold.domain.ids import check_id, check_session_id

if TYPE_CHECKING:
    from refold.adapters.cli.output import Screen
    from refold.domain.ports import SessionInfo
    from refold.redaction.guard import Limits
    from refold.redaction.redactor import Redactor
    from refold.store import SessionStore


def _checked(check: Callable[[str], str]) -> Callable[[str | None], str | None]:
    """Refuses a name that nobody can have, as the wrong argument that it is."""

    def checked(name: str | None) -> str | None:
        try:
            return None if name is None else check(name)
        except errors.InvalidEvent as error:
            raise typer.BadParameter(str(error)) from None

    return checked


def duration(text: str) -> timedelta:
    """The time that ``text`` says; refuses what is none, as a wrong argument."""
    from refold.domain.erasure import span

    with suppress(errors.InvalidConfiguration):
        return span("a time", text.strip())
    raise typer.BadParameter("write a time as a number with d, h, m or s, such as 30d")


def flag(help: str, *names: str) -> Any:  # noqa: A002  # as typer calls it
    """An option without a value: what it does if it is given."""
    return typer.Option(False, *names, help=help)


def option(
    help: str,  # noqa: A002  # the same
    *names: str,
    default: Any = None,
    of: str | None = None,
    min: int | None = None,  # noqa: A002  # the same
    check: Callable[..., object] | None = None,
    parser: Callable[[str], object] | None = None,
) -> Any:
    """An option of a command: what it does, and its names if not its parameter's.

    of: stands for its value in the help.  check: refuses values.  A default of ``...``
    is none, and what an annotation has.
    """
    return typer.Option(
        default, *names, metavar=of, help=help, min=min, callback=check, parser=parser
    )


def argument(help: str, *, of: str, default: Any = ...) -> Any:  # noqa: A002  # the same
    """What a command takes by its place; ``of`` is its name in the help."""
    return typer.Argument(default, metavar=of, help=help)


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those options that were given."""
    return {
        name: value
        for name, value in options.items()
        if value is not None and value is not False
    }


def user_option(does: str, default: Any = None) -> Any:
    """``--user``, where it does something of its own."""
    check = _checked(partial(check_id, "user"))
    return option(does, default=default, of="U", check=check)


def session_option(does: str, default: Any = None) -> Any:
    """``--session``, where it does something of its own."""
    return option(does, default=default, of="S", check=_checked(check_session_id))


User = Annotated[str, user_option("Name of the user.", default=...)]
OneSession = Annotated[str, session_option("Name of the session.", default=...)]
SomeUser = Annotated[
    str | None, user_option("Only this user.  Without it: all users.", default=...)
]
SomeSession = Annotated[
    str | None, session_option("Only sessions of this name.", default=...)
]
NewSession = Annotated[
    str | None,
    session_option(
        "Name of the session; several become S-0001, S-0002 and so on.  Without it: "
        "the name in the file, else the file's own.",
        default=...,
    ),
]
SPEC = "name, name:key=value or @file.toml"
SomeStrategy = Annotated[
    str | None,
    option(
        f"Strategy: {SPEC}.  Without it: the strategy of the last request, else "
        "keep_all.",
        of="SPEC",
        default=...,
    ),
]
Operator = Annotated[
    str | None,
    option("Who does this.  Without it: your login.", of="NAME", default=...),
]
Span = timedelta | None
KeyBackups = Annotated[
    Span,
    option(
        "How long backups of the key store live, such as 35d, for the certificate.",
        of="TIME",
        parser=duration,
        default=...,
    ),
]
WHY = "Reason; it is redacted and recorded."

Verbosity = Literal["default", "compact", "quiet"]
"""How much of a timeline is shown."""

As = Literal["sent", "rebuilt"]
"""Which summaries a context at an earlier seq may show."""

Summarizer = Literal["abridged", "anthropic"]
"""What writes the text of a summary."""

WritesSummaries = Annotated[
    Summarizer,
    option("What writes the summaries; abridged needs no model.", default=...),
]
SummarizerModel = Annotated[
    str | None, option("Model that anthropic asks.", of="M", default=...)
]

Transcripts = Literal[
    "auto",
    "claude-code",
    "codex",
    "openai",
    "anthropic",
    "tau-bench",
    "swe-agent",
    "letta",
    "inspect",
    "atif",
    "otlp",
    "refold",
]
"""The formats of transcripts; ``auto`` tells them by what is in a file."""

Engines = Literal["auto", "vectorscan", "stdlib"]
"""What looks for values: all of them find the same."""

Values = Literal["text", "json", "jsonl"]
"""What ``redact`` reads: text, one JSON value, or one in each line."""


class Call(typer.Context):
    """A command that was called, and the store that it is for."""

    @property
    def as_json(self) -> bool:
        """Whether a program reads what is printed."""
        return bool(self.meta.get("--json"))

    @property
    def url(self) -> str:
        """The store's: of ``--db``, else of the settings."""
        return str(self.meta.get("--db") or config.database())

    def tell(self, result: Result) -> None:
        """Print a result at once: of a command that goes on."""
        result.print(as_json=self.as_json)

    def remark(self, show: Callable[[Screen], object]) -> None:
        """Print what only people want to read while a command works."""
        if not self.as_json:
            paint(show)

    def store(
        self,
        *,
        new: bool = False,
        redactor: Redactor | None = None,
        limits: Limits | None = None,
        access_log: str | None = None,
    ) -> SessionStore:
        """Open the store; it is closed when the command ends.

        new: make it if it is not there.  redactor, limits: other than the policy's.
        access_log: where uses are recorded, other than as the settings say.

        Raises StoreUnavailable where a file would have to be made: a misspelt path is
        no empty log.
        """
        from refold.adapters.sql.database import engine_of
        from refold.opener import open_store
        from refold.redaction.engines import start_quickly

        start_quickly()
        match None if new else engine_of(self.url):
            case "sqlite", parsed if parsed.database not in (None, "", ":memory:"):
                if not Path(parsed.database).exists():
                    raise errors.StoreUnavailable(
                        f"there is no database {parsed.database}",
                        remedy="`refold import` makes one; name another with --db or "
                        "REFOLD_DB",
                    )
        return self.with_resource(
            open_store(
                self.url,
                redactor=redactor,
                limits=limits,
                make_key=bool(self.meta.get("--make-key")),
                count_uses=False,
                access_log=access_log,
            )
        )


def _of_all(name: str, help: str, of: str | None = None) -> Any:  # noqa: A002  # the same
    """An option of every command, before it or behind it: what is behind outweighs.

    A ``Call`` finds its value.
    """

    def keep(context: typer.Context, value: Any) -> None:
        context.meta.update(given({name: value}))

    return typer.Option(name, metavar=of, callback=keep, expose_value=False, help=help)


Db = Annotated[
    str | None,
    _of_all(
        "--db",
        "Database: sqlite:///FILE or postgresql://HOST/NAME.  Without it: REFOLD_DB, "
        "else sqlite:///refold.db.",
        of="URL",
    ),
]
MakeKey = Annotated[
    bool,
    _of_all(
        "--make-key", "Make a master key in REFOLD_HOME for a new PostgreSQL store."
    ),
]
Json = Annotated[bool, _of_all("--json", "Print JSON.")]


def operator(name: str | None) -> str:
    """Who does it: as given, else who is logged in."""
    with suppress(OSError, KeyError):
        return name or getpass.getuser()
    return ""


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
        store.session(user_id=user, session_id=session).head()  # says if it was erased
        raise errors.SessionNotFound(user, session)
    what = (
        f"user {user!r} has no sessions"
        if user
        else f"no user has a session {session!r}"
    )
    raise errors.RefoldError(f"{what}: `refold sessions` lists all sessions")
