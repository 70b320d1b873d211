"""Options that several commands have, and the call that a command receives."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from refold.adapters import config
from refold.adapters.cli.output import Result, paint, shown_in_line
from refold.adapters.cli.session_names import Beginning, short_names
from refold.domain import errors
from refold.domain.ids import StreamId, check_id, check_session_id

_STDOUT: Final = "the error of stdout"  # a key of ``Call.meta``
_MOST_JOBS: Final = 500

PROGRAM: Final = "CMD"
"""The name, in help, of an argument that is another program with its arguments.

Options after its first word belong to that program.
"""

_SESSIONS_AT_ONCE: Final = 1000
_MOST_CANDIDATES: Final = 5  # names that an error lists

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from refold.adapters.cli.output import Screen
    from refold.adapters.sql.recorder import Recorder
    from refold.domain.ports import SessionInfo
    from refold.store import Session, SessionStore


def duration(text: str) -> timedelta:
    """Return a length of time, such as 30d.  Raises BadParameter for other texts."""
    from refold.domain.erasure import span

    with suppress(errors.InvalidConfiguration):
        return span("a time", text.strip())
    raise typer.BadParameter("write a time as a number with d, h, m or s, such as 30d")


def since(text: str) -> datetime:
    """Return the time that a text means: a date, a time, or a length before now.

    A time without a zone is in UTC.  Raises BadParameter for other texts.
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


def used(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are on the command line."""
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
"""The writer of a summary's text."""

Engines = Literal["auto", "vectorscan", "stdlib"]
"""The engine that searches for values; all of them find the same."""

Values = Literal["text", "json", "jsonl"]
"""The input of ``redact``: text, one JSON value, or one in each line."""


class Call(typer.Context):
    """One call of a command: its store, and the form of its results."""

    @property
    def as_json(self) -> bool:
        """Whether the results are printed as JSON."""
        return bool(self.meta.get("--json"))

    @property
    def url(self) -> str:
        """The URL of the store, from ``--db`` or the settings."""
        return str(self.meta.get("--db") or config.database())

    def report(self, result: Result) -> None:
        """Print a result; the command may go on.

        A report of changes is printed on stderr if stdout fails.  The command then
        goes on, and ``check_reported`` raises at its end.
        """
        if not result.changed:
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

    def check_reported(self) -> None:
        """Raise an error if a report of changes could not be printed on stdout."""
        error: OSError | None = self.meta.get(_STDOUT)
        if isinstance(error, BrokenPipeError):
            raise error
        if error is not None:
            reason = str(error.strerror).lower()
            raise errors.RefoldError(
                f"stdout could not be written ({reason}): the command did its work, "
                "and its report is above, on stderr"
            )

    def remark(
        self, show: Callable[[Screen], object], *, changed: bool = False
    ) -> None:
        """Print a line for people during the work; nothing with ``--json``.

        changed: whether it reports a change, which goes to stderr if stdout fails.
        """
        if self.as_json:
            return
        if changed:
            self.report(Result(None, show, changed=True))
        else:
            paint(show)

    @contextmanager
    def reporting(self, report: Callable[[], Result]) -> Iterator[None]:
        """Print the report of the work so far if the block fails."""
        try:
            yield
        except BaseException:
            self.report(report())
            raise

    def store(
        self, *, new: bool = False, long_running: bool = False, **parts: Any
    ) -> SessionStore:
        """Open the store, and close it when the command ends.

        new:          create the store if it does not exist.
        long_running: whether the command runs for a long time; then it may compile
                      the rules.
        parts:        further arguments of ``open_store``.

        Raises StoreUnavailable if there is no such file and ``new`` is not set: a
        misspelt path must not show an empty log.
        """
        from refold.adapters import rule_cache
        from refold.opener import open_store
        from refold.redaction import engines

        rule_cache.use(fills=True)
        if not long_running:
            engines.start_quickly()
        if not new:
            self.check_exists()
        make_key = bool(self.meta.get("--make-key"))
        store = open_store(self.url, make_key=make_key, count_uses=False, **parts)
        if long_running:
            store.writer.redactor.scanner.look_for_faster_engine()
        return self.with_resource(store)

    def session(self, user: str | None, name: str) -> Session:
        """Open the store, and return the session that a name or its beginning means.

        user: None means the only user who has such a session.

        Raises SessionNotFound, Erased, or InvalidConfiguration if several sessions fit.
        """
        return found_session(self.store(), user, name)

    def recorder(self) -> Recorder:
        """Open the rows of the store without its keys, until the command ends."""
        from refold.opener import open_recorder

        self.check_exists()
        recorder, _ = open_recorder(self.url)
        return self.with_resource(closing(recorder))

    def check_exists(self) -> None:
        """Raise StoreUnavailable for a SQLite store without a file."""
        from refold.adapters.sql.urls import engine_of

        match engine_of(self.url):
            case "sqlite", url if url.database not in (None, "", ":memory:"):
                if not Path(url.database).exists():
                    raise errors.StoreUnavailable(
                        f"there is no database {url.database}",
                        remedy="`refold import` or `refold run` makes one; name "
                        "another with --db or REFOLD_DB",
                    )

    def executor(self, jobs: int) -> Executor | None:
        """Return an executor with this number of processes; None for one process.

        Raises typer.BadParameter for more than a machine can start.
        """
        from refold.store.work.jobs import process_pool

        if jobs > _MOST_JOBS:
            raise typer.BadParameter(f"--jobs is at most {_MOST_JOBS}")
        if jobs == 1:
            return None
        return self.with_resource(process_pool(jobs))


def _valid_user(name: str | None) -> str | None:
    """Return the value of ``--user`` if it can be one."""
    return _valid(partial(check_id, "user"), name)


def _valid_session(name: str | None) -> str | None:
    """Return the value of ``--session`` if it can be one."""
    return _valid(check_session_id, name)


def _valid(check: Callable[[str], str], name: str | None) -> str | None:
    """Return the name after its check; None without a name.

    Raises typer.BadParameter for a name that is not valid.
    """
    if name is None:
        return None
    try:
        return check(name)
    except errors.InvalidEvent as error:
        raise typer.BadParameter(str(error)) from None


def user_option(meaning: str) -> Any:
    """Return ``--user`` with its meaning for the command as help."""
    return typer.Option("--user", metavar="U", callback=_valid_user, help=meaning)


def session_option(meaning: str) -> Any:
    """Return ``--session`` with its meaning for the command as help."""
    return typer.Option("--session", metavar="S", callback=_valid_session, help=meaning)


UserOption = Annotated[str, user_option("Name of the user.")]
ReaderOption = Annotated[
    str | None, user_option("Name of the user.  Default: the only user.")
]
"""``--user`` of a command that changes nothing in the store."""
UserFilter = Annotated[str | None, user_option("Only this user.  Default: all users.")]
SessionOption = Annotated[str, session_option("Name of the session, or its beginning.")]
SessionFilter = Annotated[
    str | None, session_option("Only sessions of this name, or its beginning.")
]

PolicyOption = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="FILE",
        help="Policy in TOML.  Default: REFOLD_POLICY, else the default policy.",
    ),
]
StrategyOption = Annotated[
    str | None,
    typer.Option(
        metavar="SPEC",
        help="Strategy: name, name:key=value or @file.toml.  Default: the strategy of "
        "the last request, else keep_all.",
    ),
]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Show details.")]
FullOption = Annotated[
    bool,
    typer.Option("--full", help="Show long texts in full on a terminal, too."),
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


def _remember(
    context: typer.Context, param: typer.CallbackParam, value: object
) -> None:
    """Store a common option for the command.

    The option after the command's name comes last, and wins over the one before it.
    """
    context.meta.update(used({param.opts[0]: value}))


DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="URL",
        callback=_remember,
        expose_value=False,
        help="Database: sqlite:///FILE or postgresql://HOST/NAME.  Default: REFOLD_DB, "
        "else sqlite:///refold.db.",
    ),
]
MakeKeyOption = Annotated[
    bool,
    typer.Option(
        "--make-key",
        callback=_remember,
        expose_value=False,
        help="Create a master key in REFOLD_HOME for a new PostgreSQL store.",
    ),
]
JsonOption = Annotated[
    bool,
    typer.Option("--json", callback=_remember, expose_value=False, help="Print JSON."),
]


def _print_version(is_set: bool) -> None:
    """Print the version and exit if the option is set."""
    if is_set:
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
    """Return the name of the person who does this; by default the login."""
    import getpass

    if name:
        return name
    with suppress(OSError, KeyError):
        return getpass.getuser()
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
    """Return the sessions that ``store.sessions`` lists, in pages."""
    left = sys.maxsize if limit is None else limit
    while True:
        page = store.sessions(
            user,
            label=label,
            after=after,
            limit=min(left, _SESSIONS_AT_ONCE),
            internal=internal,
        )
        if not page:
            return
        yield page
        after = page[-1]
        left -= len(page)


def session_name(store: SessionStore, user: str | None, name: str) -> str:
    """Return the whole name of the session that a name or its beginning means.

    A list in a terminal shortens names, as ``short_names`` does.  A session with
    exactly this name wins, and no list is read.  A beginning means a session rather
    than the sessions of its sub-agents.

    user: only sessions of this user; None means those of all users.

    Raises SessionNotFound, Erased or RefoldError if no session fits,
    InvalidConfiguration if several do.
    """
    if user is not None and _exists(store, user, name):
        return name
    beginning = Beginning(name)
    names: set[str] = set()
    for info in chain.from_iterable(pages(store, user, internal=True)):
        if info.session_id == name:
            return name
        if not info.is_internal and beginning.fits(info.session_id):
            names.add(info.session_id)
    candidates = beginning.chosen(names)
    if not beginning.text or not candidates:
        if user is not None:
            store.session(user_id=user, session_id=name).head()  # raises Erased
        raise _not_found(user, name)
    if len(candidates) > 1:
        shown = ", ".join(shown_in_line(each) for each in candidates[:_MOST_CANDIDATES])
        more = len(candidates) - _MOST_CANDIDATES
        and_more = f" and {more} more" if more > 0 else ""
        raise errors.InvalidConfiguration(
            f"{errors.counted(len(candidates), 'session')} begin with "
            f"{beginning.text!r}, give more of the name: {shown}{and_more}"
        )
    return candidates[0]


def found_session(store: SessionStore, user: str | None, name: str) -> Session:
    """Return the session that a name or its beginning means.

    user: None means the only user who has such a session.

    Raises the errors of ``session_name`` and ``only_user``.
    """
    whole_name = session_name(store, user, name)
    if user is None:
        user = only_user(sessions(store, None, whole_name))
    return store.session(user_id=user, session_id=whole_name)


def names_in_lists(store: SessionStore, user: str | None) -> dict[str, str]:
    """Return the short names of all sessions of a user, or of all users, by name."""
    infos = chain.from_iterable(pages(store, user))
    return short_names({info.session_id for info in infos})


def optional_session_name(
    store: SessionStore, user: str | None, name: str | None
) -> str | None:
    """Return the whole name of a session as ``session_name`` does; None for None."""
    return None if name is None else session_name(store, user, name)


def _exists(store: SessionStore, user: str, session: str) -> bool:
    """Whether a user has a session with exactly this name."""
    try:
        return store.log.head(StreamId(user, session)).seq > 0
    except errors.RefoldError:
        return True  # the command reports it


def sessions(
    store: SessionStore, user: str | None, session: str | None
) -> Iterator[SessionInfo]:
    """Return the sessions of this user and of this name; without both, all sessions.

    They include Refold's own sessions, which lists of sessions leave out.

    Raises SessionNotFound, Erased or another RefoldError if there is none.
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
    raise _not_found(user, session)


def check_user(store: SessionStore, user: str) -> None:
    """Raise RefoldError if the store has no sessions of this user."""
    sessions(store, user, None)


def _not_found(user: str | None, session: str | None) -> errors.RefoldError:
    """Return the error for a session, or a user, that a store does not have."""
    if user is not None and session is not None:
        return errors.SessionNotFound(user, session)
    missing = f"no user has a session {session!r}"
    if user is not None:
        missing = f"user {user!r} has no sessions"
    return errors.RefoldError(f"{missing}: `refold sessions --ids` lists all sessions")


def only_user(infos: Iterable[SessionInfo]) -> str:
    """Return the user of some sessions.  Raises RefoldError if they have several."""
    users = {info.user_id for info in infos}
    if len(users) > 1:
        raise errors.RefoldError(
            f"{errors.counted(len(users), 'user')} have such sessions: name one with "
            "--user"
        )
    return users.pop()


def chosen_user(store: SessionStore, user: str | None) -> str:
    """Return the user that a command is about; None means the only user.

    Raises RefoldError if the store has no user or several.
    """
    if user is not None:
        return user
    only: str | None = None
    for info in chain.from_iterable(pages(store, None, internal=True)):
        if only is not None and info.user_id != only:
            examples = f"{shown_in_line(only)} or {shown_in_line(info.user_id)}"
            raise errors.RefoldError(
                f"the store has several users: name one with --user, such as {examples}"
            )
        only = info.user_id
    if only is None:
        raise errors.RefoldError(
            "no sessions yet: `refold run` and `refold import` add them"
        )
    return only
