"""Options that several commands take, and the call that a command is given."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from refold.adapters import config
from refold.adapters.cli.output import Result, paint
from refold.domain import errors
from refold.domain.ids import check_id, check_session_id

_STDOUT: Final = "why stdout failed"
_MOST_JOBS: Final = 500
_MANY: Final = 1000  # sessions that are listed at once

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from refold.adapters.cli.output import Screen
    from refold.adapters.sql.recorder import Recorder
    from refold.domain.ports import SessionInfo
    from refold.store import SessionStore


def duration(text: str) -> timedelta:
    """Parse a length of time, such as 30d.  Raises BadParameter for other texts."""
    from refold.domain.erasure import span

    with suppress(errors.InvalidConfiguration):
        return span("a time", text.strip())
    raise typer.BadParameter("write a time as a number with d, h, m or s, such as 30d")


def since(text: str) -> datetime:
    """Parse a date, a time, or how long ago.  Raises BadParameter for other texts.

    A time without a zone is in UTC.
    """
    try:
        if re.match(r"\d{4}-\d\d-\d\d", text):
            time = datetime.fromisoformat(text)
            return time if time.tzinfo else time.replace(tzinfo=UTC)
        return datetime.now(UTC) - duration(text)
    except (ValueError, OverflowError, typer.BadParameter):
        raise typer.BadParameter(
            "give a date (2026-03-16), a time (2026-03-16T10:00:00Z), 30d or 12h"
        ) from None


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those options that the command line has."""
    return {
        name: value
        for name, value in options.items()
        if value is not None and value is not False
    }


Verbosity = Literal["default", "compact", "quiet"]
"""How much of a timeline is shown."""

As = Literal["sent", "rebuilt"]
"""Which summaries a context at an earlier seq may show."""

Summarizer = Literal["abridged", "anthropic"]
"""What writes the text of a summary."""

Engines = Literal["auto", "vectorscan", "stdlib"]
"""What looks for values: all of them find the same."""

Values = Literal["text", "json", "jsonl"]
"""What ``redact`` reads: text, one JSON value, or one in each line."""


class Call(typer.Context):
    """One call of a command: its store, and how its results are printed."""

    @property
    def as_json(self) -> bool:
        """Whether a program reads what is printed."""
        return bool(self.meta.get("--json"))

    @property
    def url(self) -> str:
        """The store's URL: that of ``--db``, else that of the settings."""
        return str(self.meta.get("--db") or config.database())

    def tell(self, result: Result) -> None:
        """Print a result while the command goes on.

        A report of changes is printed on stderr if stdout fails.  The command then
        goes on, and ``check_told`` raises at its end.
        """
        if not result.acted:
            result.print(as_json=self.as_json)
            return
        if result.show == "" and not self.as_json:
            return
        if _STDOUT not in self.meta:
            error = result.try_to_print(as_json=self.as_json)
            if error is None:
                return
            self.meta[_STDOUT] = error
        result.print_on_stderr(as_json=self.as_json)

    def check_told(self) -> None:
        """Raises if a report of changes could not be printed on stdout."""
        error: OSError | None = self.meta.get(_STDOUT)
        if isinstance(error, BrokenPipeError):
            raise error
        if error is not None:
            why = str(error.strerror).lower()
            raise errors.RefoldError(
                f"stdout could not be written ({why}): the command did its work, and "
                "its report stands above, on stderr"
            )

    def remark(self, show: Callable[[Screen], object], *, acted: bool = False) -> None:
        """Print a line for people while the command works; nothing with ``--json``.

        acted: whether it reports a change, which is printed on stderr if stdout fails.
        """
        if self.as_json:
            return
        if acted:
            self.tell(Result(None, show, acted=True))
        else:
            paint(show)

    @contextmanager
    def reporting(self, report: Callable[[], Result]) -> Iterator[None]:
        """If the block fails, print what the command did until then."""
        try:
            yield
        except BaseException:
            self.tell(report())
            raise

    def store(self, *, new: bool = False, **parts: Any) -> SessionStore:
        """Open the store, and close it when the command ends.

        new:   create the store if it does not exist.
        parts: further arguments of ``open_store``.

        Raises StoreUnavailable if there is no such file and ``new`` is not set: a
        misspelt path must not show an empty log.
        """
        from refold.opener import open_store
        from refold.redaction.engines import start_quickly

        start_quickly()
        if not new:
            self.check_there()
        makes = bool(self.meta.get("--make-key"))
        opened = open_store(self.url, make_key=makes, count_uses=False, **parts)
        return self.with_resource(opened)

    def recorder(self) -> Recorder:
        """Open the rows of the store without its keys, until the command ends."""
        from refold.opener import open_recorder

        self.check_there()
        return self.with_resource(closing(open_recorder(self.url)[0]))

    def check_there(self) -> None:
        """Raises StoreUnavailable for a SQLite store whose file is not there."""
        from refold.adapters.sql.database import engine_of

        match engine_of(self.url):
            case "sqlite", parsed if parsed.database not in (None, "", ":memory:"):
                if not Path(parsed.database).exists():
                    raise errors.StoreUnavailable(
                        f"there is no database {parsed.database}",
                        remedy="`refold import` makes one; name another with --db or "
                        "REFOLD_DB",
                    )

    def executor(self, jobs: int) -> Executor | None:
        """An executor with this number of processes; None for one process.

        Raises typer.BadParameter for more than a machine can start.
        """
        from refold.store.work.jobs import beside

        if jobs > _MOST_JOBS:
            raise typer.BadParameter(f"--jobs is at most {_MOST_JOBS}")
        return None if jobs == 1 else self.with_resource(beside(jobs))


def _valid_user(name: str | None) -> str | None:
    return None if name is None else _valid(partial(check_id, "user"), name)


def _valid_session(name: str | None) -> str | None:
    return None if name is None else _valid(check_session_id, name)


def _valid(check: Callable[[str], str], name: str) -> str:
    try:
        return check(name)
    except errors.InvalidEvent as error:
        raise typer.BadParameter(str(error)) from None


def user_option(meaning: str) -> Any:
    """``--user``, with what it means to the command; a name must be a valid one."""
    return typer.Option("--user", metavar="U", callback=_valid_user, help=meaning)


def session_option(meaning: str) -> Any:
    """``--session``, with what it means to the command; a name must be a valid one."""
    return typer.Option("--session", metavar="S", callback=_valid_session, help=meaning)


UserOption = Annotated[str, user_option("Name of the user.")]
UserFilter = Annotated[str | None, user_option("Only this user.  Default: all users.")]
SessionOption = Annotated[str, session_option("Name of the session.")]
SessionFilter = Annotated[str | None, session_option("Only sessions of this name.")]

StrategyOption = Annotated[
    str | None,
    typer.Option(
        metavar="SPEC",
        help="Strategy: name, name:key=value or @file.toml.  Default: the strategy of "
        "the last request, else keep_all.",
    ),
]
AbsentOption = Annotated[
    bool,
    typer.Option(
        "--absent-ok",
        help="Accept a user of whom nothing is stored; the name may be mistyped.",
    ),
]
JobsOption = Annotated[
    int,
    typer.Option(metavar="N", min=1, help="Number of processes that share the work."),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be erased; change nothing.")
]
OperatorOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Name of the person who does this.  Default: your login.",
    ),
]
KeyBackupsOption = Annotated[
    timedelta | None,
    typer.Option(
        metavar="TIME",
        parser=duration,
        help="How long you keep backups of the key store, such as 35d, for the "
        "certificate.",
    ),
]

_reason: Final = typer.Option(
    metavar="TEXT", help="Reason; it is redacted and recorded."
)
ReasonOption = Annotated[str, _reason]
OptionalReason = Annotated[str | None, _reason]


def _keep_for_all(
    context: typer.Context, param: typer.CallbackParam, value: object
) -> None:
    """Keep an option of every command; one after the command's name wins."""
    context.meta.update(given({param.opts[0]: value}))


DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="URL",
        callback=_keep_for_all,
        expose_value=False,
        help="Database: sqlite:///FILE or postgresql://HOST/NAME.  Default: REFOLD_DB, "
        "else sqlite:///refold.db.",
    ),
]
MakeKeyOption = Annotated[
    bool,
    typer.Option(
        "--make-key",
        callback=_keep_for_all,
        expose_value=False,
        help="Create a master key in REFOLD_HOME for a new PostgreSQL store.",
    ),
]
JsonOption = Annotated[
    bool,
    typer.Option(
        "--json", callback=_keep_for_all, expose_value=False, help="Print JSON."
    ),
]


def _print_version(wanted: bool) -> None:
    if wanted:
        from refold import __version__

        typer.echo(f"refold {__version__}")
        raise typer.Exit


VersionOption = Annotated[
    bool,
    typer.Option(
        "--version", is_eager=True, callback=_print_version, help="Print the version."
    ),
]


def operator(name: str | None) -> str:
    """The name of the person who does this: as given, else the login."""
    import getpass

    with suppress(OSError, KeyError):
        return name or getpass.getuser()
    return ""


def pages(
    store: SessionStore,
    user: str | None,
    *,
    label: Mapping[str, str] | None = None,
    after: SessionInfo | str | None = None,
    limit: int | None = None,
    internal: bool = False,
) -> Iterator[list[SessionInfo]]:
    """The sessions that ``store.sessions`` lists, in pages of bounded length."""
    left = sys.maxsize if limit is None else limit
    while page := store.sessions(
        user, label=label, after=after, limit=min(left, _MANY), internal=internal
    ):
        yield page
        after = page[-1]
        left -= len(page)


def sessions(
    store: SessionStore, user: str | None, session: str | None
) -> Iterator[SessionInfo]:
    """The sessions of this user and name; without them, all sessions.

    Includes sessions that Refold itself records, which lists of sessions leave out.

    Raises SessionNotFound, Erased or another RefoldError if none is left.
    """
    infos: Iterator[SessionInfo] = chain.from_iterable(
        pages(store, user, internal=True)
    )
    if session is not None:
        infos = (info for info in infos if info.session_id == session)
    first = next(infos, None)
    if first is not None:
        return chain((first,), infos)
    if user is None and session is None:
        return infos
    if user is not None and session is not None:
        store.session(user_id=user, session_id=session).head()  # raises Erased
        raise errors.SessionNotFound(user, session)
    missing = f"no user has a session {session!r}"
    if user:
        missing = f"user {user!r} has no sessions"
    raise errors.RefoldError(f"{missing}: `refold sessions` lists all sessions")
