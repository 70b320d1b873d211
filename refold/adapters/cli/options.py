"""The options of commands as the tables of help say, and what a command is given."""

from __future__ import annotations

import getpass
import inspect
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import cache, partial, update_wrapper
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import typer

from refold.adapters import config
from refold.adapters.cli.output import Result, paint
from refold.domain import errors
from refold.domain.ids import check_id, check_session_id

_STDOUT: Final = "why stdout failed"
_MANY: Final = 1000  # sessions that are listed at once

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from refold.adapters.cli.output import Screen
    from refold.adapters.sql.recorder import Recorder
    from refold.domain.ports import SessionInfo
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


def since(text: str) -> datetime:
    """The time that ``text`` says, or so long ago; refuses what is none."""
    try:
        if re.match(r"\d{4}-\d\d-\d\d", text):
            found = datetime.fromisoformat(text)
            return found if found.tzinfo else found.replace(tzinfo=UTC)
        return datetime.now(UTC) - duration(text)
    except (ValueError, OverflowError, typer.BadParameter):
        raise typer.BadParameter(
            "give a date (2026-03-16), a time (2026-03-16T10:00:00Z), 30d or 12h"
        ) from None


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those options that were given."""
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

_Clients = Literal["auto", "claude-code", "codex", "openai", "anthropic"]
_Runs = Literal["tau-bench", "swe-agent", "letta", "inspect", "atif", "otlp", "refold"]
Transcripts = Literal[_Clients, _Runs]
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
        """Print a result at once: of a command that goes on.

        What a command did is printed on stderr if stdout does not take it, and the
        command goes on: ``check_told`` fails at its end.
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
        """Raises if what a command did could not be printed on stdout."""
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
        """Print what only people want to read while a command works.

        acted: whether it says what the command changed: then it is always printed.
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
        """Open the store; it is closed when the command ends.

        new: make it if it is not there.  parts: what ``open_store`` takes besides.

        Raises StoreUnavailable where a file would have to be made: a misspelt path is
        no empty log.
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
        """Open the rows of the store without its keys, as ``store`` does with them."""
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
        """So many processes; None for one."""
        from refold.store.work.jobs import beside

        return None if jobs == 1 else self.with_resource(beside(jobs))


def _keep(context: typer.Context, param: typer.CallbackParam, value: object) -> None:
    """An option of every command, before it or behind it: what is behind outweighs."""
    context.meta.update(given({param.opts[0]: value}))


def _version(wanted: bool) -> None:
    if wanted:
        from refold import __version__

        typer.echo(f"refold {__version__}")
        raise typer.Exit


_CHECKS: Final = {
    "user": _checked(partial(check_id, "user")),
    "session": _checked(check_session_id),
    "version": _version,
    **dict.fromkeys(("db", "make_key", "as_json"), _keep),
}
_PARSERS: Final[Mapping[object, Callable[[str], object]]] = {
    timedelta | None: duration,
    datetime | None: since,
}


@cache
def texts(name: str) -> Mapping[str, Any]:
    """What the help says of commands, by their names, from the table ``name``."""
    file = Path(__file__).with_name("help") / f"{name}.toml"
    return tomllib.loads(file.read_text("utf-8"))


def described(function: Callable[..., Any], told: Mapping[str, Any]) -> Any:
    """``function`` for typer: ``told`` has what each parameter does, or is.

    A text, or a table: ``argument`` is the name of what is taken by its place, ``name``
    how an option is written if not as its parameter; the rest is typer's.
    """
    signature = inspect.signature(function, eval_str=True)
    parameters = [
        one if one.annotation is Call else one.replace(default=_described(one, told))
        for one in signature.parameters.values()
    ]
    read: Any = update_wrapper(partial(function), function)
    read.__signature__ = signature.replace(parameters=parameters)
    return read


def _described(one: inspect.Parameter, told: Mapping[str, Any]) -> Any:
    facts: dict[str, Any] = {}
    for source in (texts("every")["every"], told):
        fact = source.get(one.name, {})
        facts |= {"help": fact} if isinstance(fact, str) else fact
    default = ... if one.default is one.empty else one.default
    if "argument" in facts:
        return typer.Argument(default, metavar=facts.pop("argument"), **facts)
    name = facts.pop("name", f"--{one.name.replace('_', '-')}")
    facts["callback"] = check = _CHECKS.get(one.name)
    facts["parser"] = _PARSERS.get(one.annotation)
    return typer.Option(default, name, expose_value=check is not _keep, **facts)


def operator(name: str | None) -> str:
    """Who does it: as given, else who is logged in."""
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
    """What ``store.sessions`` lists, a bounded number at a time."""
    left = sys.maxsize if limit is None else limit
    while page := store.sessions(
        user, label=label, after=after, limit=min(left, _MANY), internal=internal
    ):
        yield page
        after, left = page[-1], left - len(page)


def sessions(
    store: SessionStore, user: str | None, session: str | None
) -> Iterator[SessionInfo]:
    """The sessions of that user and name, else all; raises SessionNotFound for none.

    Those of Refold's own are among them: a command that lists sessions leaves them out.
    """
    every = chain.from_iterable(pages(store, user, internal=True))
    found = (info for info in every if session in (None, info.session_id))
    first = next(found, None)
    if first is not None or (user is None and session is None):
        return chain((first,) if first else (), found)
    if user is not None and session is not None:
        store.session(user_id=user, session_id=session).head()  # says if it was erased
        raise errors.SessionNotFound(user, session)
    nobody = f"no user has a session {session!r}"
    what = f"user {user!r} has no sessions" if user else nobody
    raise errors.RefoldError(f"{what}: `refold sessions` lists all sessions")
