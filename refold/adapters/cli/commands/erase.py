"""``refold erase``: forget a user for good, and keep a certificate that says so."""

from __future__ import annotations

import getpass
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold.adapters.cli import opening
from refold.adapters.cli.durations import duration
from refold.adapters.cli.options import Json, SomeSession, SomeUser
from refold.adapters.cli.output import print_json

if TYPE_CHECKING:
    from refold.adapters.cli.screen import Screen
    from refold.store import SessionStore
    from refold.store.erasing import Erasure, ErasurePlan

Operator = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Who does it; left out, who is logged in."),
]


def erase(
    context: typer.Context,
    user: SomeUser = None,
    session: SomeSession = None,
    reason: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Why; it is redacted.")
    ] = None,
    operator: Operator = None,
    grace: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Unreadable at once, destroyed after 30d, 12h, …; `refold restore` "
            "undoes it until then.",
        ),
    ] = None,
    key_backups: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="How long backups of the key store survive: 35d, …"
        ),
    ] = None,
    vacuum: Annotated[
        bool,
        typer.Option(
            "--vacuum", help="Write the tables anew, which keeps others waiting."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count what would go; change nothing.")
    ] = False,
    due: Annotated[
        bool,
        typer.Option(
            "--due", help="Complete what was cut off, or whose time has come."
        ),
    ] = False,
    listed: Annotated[
        bool, typer.Option("--list", help="List certificates, and what is not done.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the certificate there, too."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Forget a user, or one session: destroy keys, delete rows, sign a certificate.

    Nothing of it can be read from the first moment on.  Run again, it completes what
    was cut off.  What cannot be undone is asked for on a terminal, and elsewhere needs
    --yes.
    """
    with opening.existing(context) as store:
        if listed:
            _list(store, user, as_json)
        elif due:
            done = [_shown(one, as_json) for one in store.erase_due(vacuum=vacuum)]
            if as_json:
                print_json(done)
        elif user is None:
            raise typer.BadParameter("--user says who; or give --due or --list")
        elif dry_run:
            _plan(store.plan_erasure(user, session), as_json)
        elif not reason:
            raise typer.BadParameter("--reason says why, for the certificate")
        else:
            span, kept = duration(grace), duration(key_backups)
            _confirm(store, user, session, yes=yes)
            erased = store.erase(
                user,
                reason,
                session_id=session,
                operator=who(operator),
                grace=span,
                key_backups=kept,
                vacuum=vacuum,
                progress=None if as_json else _told(),
            )
            _written(out, erased)
            told = _shown(erased, as_json)
            if as_json:
                print_json(told)


def who(operator: str | None) -> str:
    """Who does it: as given, else who is logged in."""
    with suppress(OSError, KeyError):
        return operator or getpass.getuser()
    return ""


def _confirm(store: SessionStore, user: str, session: str | None, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter("it cannot be undone: --yes says that you mean it")
    plan = store.plan_erasure(user, session)
    from refold.adapters.cli.wording import counted

    events = counted(plan.counts.get("events", 0), "event")
    sessions = counted(len(plan.sessions), "session")
    typer.confirm(f"Erase {events} of {sessions} for good?", abort=True, err=True)


def _told() -> Any:
    """Says on a terminal how far the deleting is."""
    if not sys.stderr.isatty():
        return None

    def tell(table: str, done: int, total: int) -> None:
        end = "\n" if done >= total else ""
        sys.stderr.write(f"\r{table}: {done:,} of {total:,} {end}")
        sys.stderr.flush()

    return tell


def _written(out: Path | None, erased: Erasure) -> None:
    if out is not None and erased.certificate is not None:
        import orjson

        text = orjson.dumps(erased.certificate.to_json(), option=orjson.OPT_INDENT_2)
        out.write_bytes(text + b"\n")


def _shown(erased: Erasure, as_json: bool) -> dict[str, Any]:
    """What came of it, for programs; for people it is printed."""
    told: dict[str, Any] = {
        "salt": erased.salt or None,
        "already": erased.already,
        "due_at": _moment(erased.due_at),
        "left": dict(erased.left),
        "cleaned": dict(erased.cleaned),
        "files": dict(erased.files),
    }
    if erased.certificate is not None:
        told = {**erased.certificate.to_json(), **told}
    if not as_json:
        _report(_screen(), erased)
    return told


def _moment(when: int | None) -> str | None:
    from refold.adapters.cli import wording

    return None if when is None else wording.rfc3339(when)


def _report(screen: Screen, erased: Erasure) -> None:
    from refold.adapters.cli.wording import counted, moment

    if erased.due_at is not None:
        due = moment(erased.due_at)
        screen.line(("✓ ", "bold green"), f"unreadable from now on, destroyed at {due}")
        screen.line("  until then, `refold restore --user …` undoes it")
        return
    if erased.certificate is None:
        screen.line(("✓ ", "bold green"), "erased before; nothing is left to do")
    else:
        _certificate(screen, erased)
    rows = sum(erased.left.values())
    tables = counted(len(erased.left), "table")
    ok = ("✓ ", "bold green") if not rows else ("✗ ", "bold red")
    screen.line(ok, f"searched {tables} afterwards: {counted(rows, 'row')} left")
    _files(screen, erased)


def _certificate(screen: Screen, erased: Erasure) -> None:
    from refold.adapters.cli.wording import counted

    assert erased.certificate is not None  # noqa: S101  # as the caller has seen
    said = erased.certificate.statement
    counts = ", ".join(counted(n, t.removesuffix("s")) for t, n in _many(said))
    screen.line(("✓ ", "bold green"), f"erased: {counts or 'there was nothing'}")
    screen.line(f"  {counted(said.get('keys', 0), 'key')} destroyed")
    screen.line(f"  certificate  {said['certificate_id']}")
    if erased.salt:
        screen.line(f"  salt         {erased.salt}")
        screen.line(
            ("  with it the certificate is proved to be this user's; ", "dim"),
            ("it is shown once", "dim"),
        )


def _many(said: dict[str, Any]) -> list[tuple[str, int]]:
    return [(table, count) for table, count in said.get("counts", {}).items() if count]


def _files(screen: Screen, erased: Erasure) -> None:
    from refold.adapters.cli.wording import counted

    files = dict(erased.files.get("files", {}))
    if files and not erased.files["names"]:
        screen.line(("  its names are too short to be looked for in files", "dim"))
        files = {}
    for file, found in files.items():
        ok = ("✓ ", "bold green") if not found else ("✗ ", "bold red")
        names = counted(erased.files["names"], "name")
        screen.line(ok, f"searched {file} for {names}: {found} found")
    if erased.cleaned.get("wal_emptied") is False:
        screen.line(
            ("! ", "bold yellow"),
            "the write-ahead log could not be emptied, for others read: close them, "
            "and run this again",
        )
    if advice := erased.cleaned.get("advice"):
        screen.line(
            ("! ", "bold yellow"),
            "names may stand in freed space until it is written anew: --vacuum, or",
        )
        screen.line(f"  {advice}")


def _plan(plan: ErasurePlan, as_json: bool) -> None:
    if as_json:
        print_json(plan._asdict())
        return
    from refold.adapters.cli.wording import number

    screen = _screen()
    screen.line(f"would erase {len(plan.sessions)} sessions")
    rows = [(table, number(count)) for table, count in plan.counts.items()]
    screen.table(("table", "#rows"), rows)
    for name in plan.holds:
        screen.line(("! ", "bold yellow"), f"the legal hold {name!r} forbids it")


def _list(store: SessionStore, user: str | None, as_json: bool) -> None:
    signed = [one.to_json() for one in store.certificates(user)]
    open_ = [
        {"job_id": job.job_id, "stage": job.stage, "due_at": _moment(job.due_at)}
        for job in store.erasures()
    ]
    if as_json:
        print_json({"certificates": signed, "unfinished": open_})
        return
    screen = _screen()
    rows = [one.statement for one in store.certificates(user)]
    names = ("certificate_id", "completed_at", "act", "scope", "reason")
    screen.table(names, ([str(row.get(name, "")) for name in names] for row in rows))
    for job in open_:
        stage = "held back" if job["stage"] == "held" else "cut off: run --due"
        screen.line(("! ", "bold yellow"), f"{job['job_id']}  {stage}  {job['due_at']}")


def _screen() -> Screen:
    from refold.adapters.cli.screen import Screen

    return Screen()
