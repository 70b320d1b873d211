"""``refold erase``: forget a user for good, and keep a certificate that says so."""

from __future__ import annotations

import getpass
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold.adapters.cli import options as opening
from refold.adapters.cli.options import Json, SomeSession, SomeUser, User
from refold.adapters.cli.output import duration, print_json

if TYPE_CHECKING:
    from refold.adapters.cli.output import Screen
    from refold.domain.erasure import RetentionPolicy, Signed
    from refold.store import SessionStore
    from refold.store.erasure import Erasure, ErasurePlan, Retained

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
    from refold.adapters.cli.output import counted

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
    from refold.adapters.cli import output as wording

    return None if when is None else wording.rfc3339(when)


def _report(screen: Screen, erased: Erasure) -> None:
    from refold.adapters.cli.output import counted, moment

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
    from refold.adapters.cli.output import counted

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
    from refold.adapters.cli.output import counted

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
    from refold.adapters.cli.output import number

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
    from refold.adapters.cli.output import Screen

    return Screen()


Reason = Annotated[str, typer.Option(metavar="TEXT", help="Why; it is redacted.")]


def restore(
    context: typer.Context,
    user: User,
    reason: Reason,
    operator: Operator = None,
    as_json: Json = False,
) -> None:
    """Undo an erasure that is held back, before its date; a certificate says so."""
    with opening.existing(context) as store:
        signed = store.restore(user, reason, operator=who(operator))
    _say(signed, as_json, "readable again")


def readmit(
    context: typer.Context,
    user: User,
    reason: Reason,
    operator: Operator = None,
    as_json: Json = False,
) -> None:
    """Let a user who was erased come back with a new key; nothing returns with them."""
    with opening.existing(context) as store:
        signed = store.readmit(user, reason, operator=who(operator))
    _say(signed, as_json, f"readmitted, in epoch {signed.statement['epoch']}")


def hold(
    context: typer.Context,
    user: User,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="What the hold is called.")
    ] = None,
    reason: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Why; it is redacted.")
    ] = None,
    release: Annotated[
        bool, typer.Option("--release", help="End the hold instead.")
    ] = False,
    operator: Operator = None,
    as_json: Json = False,
) -> None:
    """Forbid to erase a user, by a named legal hold; without --name, list the holds."""
    if name is not None and not reason:
        raise typer.BadParameter("--reason says why, for the certificate")
    with opening.existing(context) as store:
        if name is None or reason is None:
            holds = [held._asdict() for held in store.holds(user)]
            signed = None
        elif release:
            signed = store.release_hold(user, name, reason, operator=who(operator))
        else:
            signed = store.hold(user, name, reason, operator=who(operator))
    if name is None:
        if as_json:
            print_json(holds)
        else:
            for held in holds:
                typer.echo(f"{held['name']}  {held['reason']}")
    elif signed is None:
        _nothing(as_json)
    else:
        _say(signed, as_json, "released" if release else "held")


def _nothing(as_json: bool) -> None:
    if as_json:
        print_json(None)
    else:
        typer.echo("there is a hold of that name already")


def _say(signed: Signed, as_json: bool, done: str) -> None:
    if as_json:
        print_json(signed.to_json())
    else:
        typer.echo(f"{done}: certificate {signed.statement['certificate_id']}")


def freeze(
    context: typer.Context,
    user: User,
    reason: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Why; it is redacted.  Left out: only show."),
    ] = None,
    lift: Annotated[
        bool, typer.Option("--lift", help="Let the user go on instead.")
    ] = False,
    operator: Operator = None,
    as_json: Json = False,
) -> None:
    """Take nothing of a user any more, or with --lift again; a certificate says so.

    What is there can be read.  The database itself refuses appends, whoever makes
    them, and neither `refold erase` nor `refold retain` takes anything.
    """
    if lift and reason is None:
        raise typer.BadParameter("--reason says why, for the certificate")
    with opening.existing(context) as store:
        signed = None
        if reason is not None:
            change = store.unfreeze if lift else store.freeze
            signed = change(user, reason, operator=who(operator))
        frozen = store.is_frozen(user)
    if as_json:
        certificate = signed and signed.to_json()
        print_json({"frozen": frozen, "certificate": certificate})
    else:
        typer.echo("frozen" if frozen else "not frozen")


def retain(
    context: typer.Context,
    policy: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help='TOML: sessions = "30d", audit = "14d" …'),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="seed: sessions 30d, memory 90d, audit 14d."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would go; change nothing.")
    ] = False,
    key_backups: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="How long backups of the key store survive: 35d, …"
        ),
    ] = None,
    operator: Operator = None,
    as_json: Json = False,
) -> None:
    """Erase what nobody used for as long as a policy says; nothing expires without.

    Each user's expired sessions are erased with a certificate.  Those stay that are
    used meanwhile, held, frozen, or gone on from by a fork in use.  Cut off, it is
    completed by the next run.
    """
    chosen, survive = _policy(policy, preset), duration(key_backups)
    with opening.existing(context) as store:
        done = store.retain(
            chosen, dry_run=dry_run, operator=who(operator), key_backups=survive
        )
    if as_json:
        print_json(_as_json(done))
    else:
        _show(done)


def _policy(file: Path | None, preset: str | None) -> RetentionPolicy:
    from refold.domain.erasure import RetentionPolicy

    if (file is None) == (preset is None):
        raise typer.BadParameter("give one of --policy FILE and --preset NAME")
    if file is not None:
        return RetentionPolicy.read(file.read_bytes())
    return RetentionPolicy.preset(preset or "")


def _as_json(done: Retained) -> dict[str, Any]:
    certificates = [
        {"certificate": one.certificate.to_json(), "salt": one.salt}
        for one in done.erasures
        if one.certificate is not None
    ]
    return {
        "dry_run": done.dry_run,
        "sessions": [
            {"user_id": user, "session_id": name} for user, name in done.sessions
        ],
        "kept": done.kept,
        "completed": done.completed,
        "blobs": done.blobs,
        "audit": done.audit,
        "certificates": certificates,
    }


def _show(done: Retained) -> None:
    from refold.adapters.cli.output import Screen, counted, shown

    screen = Screen()
    for user, name in done.sessions:
        screen.line(shown(f"{user} / {name}"))
    went = "would be erased" if done.dry_run else "erased"
    told = [f"{counted(len(done.sessions), 'session')} {went}"]
    told += [f"{number:,} kept ({why})" for why, number in sorted(done.kept.items())]
    if done.completed:
        told.append(f"{counted(done.completed, 'erasure')} of before completed")
    for what, number in (("blob", done.blobs), ("audit record", done.audit)):
        if number is not None:
            told.append(f"{counted(number, what)} {went}")
    screen.line(", ".join(told))
