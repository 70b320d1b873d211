"""``refold erase`` and what goes with it: restore, readmit, hold, freeze, retain."""

from __future__ import annotations

import sys
from contextlib import ExitStack, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import orjson
import typer

from refold.adapters.cli import output
from refold.adapters.cli.files import Destination
from refold.adapters.cli.options import (
    Call,
    DryRunOption,
    KeyBackupsOption,
    OperatorOption,
    OptionalReason,
    ReasonOption,
    UserOption,
    duration,
    operator as who,
    session_option,
    user_option,
)
from refold.adapters.display import values
from refold.domain.erasure import RetentionPolicy
from refold.domain.errors import InvalidConfiguration, counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from refold.domain.erasure import Signed, Stranded
    from refold.domain.events import JsonObject
    from refold.store import SessionStore
    from refold.store.erasure import ErasurePlan, ErasureResult, RetentionResult


def erase(
    call: Call,
    user: Annotated[str | None, user_option("User to erase.")] = None,
    session: Annotated[
        str | None, session_option("Erase only this session of --user.")
    ] = None,
    reason: OptionalReason = None,
    operator: OperatorOption = None,
    grace: Annotated[
        timedelta | None,
        typer.Option(
            metavar="TIME",
            parser=duration,
            help="Time until the data is destroyed, such as 30d or 12h.  It is "
            "unreadable at once; `refold restore` undoes that until then.",
        ),
    ] = None,
    key_backups: KeyBackupsOption = None,
    vacuum: Annotated[
        bool,
        typer.Option(
            "--vacuum", help="Rewrite the tables on disk; this blocks other processes."
        ),
    ] = False,
    absent_ok: Annotated[
        bool,
        typer.Option(
            "--absent-ok",
            help="Sign a certificate even if nothing of the user is stored.",
        ),
    ] = False,
    dry_run: DryRunOption = False,
    due: Annotated[
        bool,
        typer.Option(
            "--due",
            help="Complete interrupted erasures, and those whose grace period is over.",
        ),
    ] = False,
    listed: Annotated[
        bool, typer.Option("--list", help="List certificates and unfinished erasures.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write the certificate to this file."),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Erase without asking for confirmation.")
    ] = False,
) -> output.Result:
    """Erase a user or one session, and sign a certificate.

    Destroys the keys and deletes the rows; nothing can be read from the first
    moment on.  If it is interrupted, run it again to complete it.  Asks for
    confirmation on a terminal; elsewhere it needs --yes.
    """
    ways = {"--list": listed, "--due": due, "--dry-run": dry_run}
    chosen = [option for option, is_given in ways.items() if is_given]
    if len(chosen) > 1:
        raise typer.BadParameter(f"give only one of {' and '.join(chosen)}")
    if due and (user, session, reason, grace) != (None, None, None, None):
        raise typer.BadParameter(
            "--due completes the erasures of all users: leave out --user, --session, "
            "--reason and --grace"
        )
    if out is not None and (listed or due or dry_run or grace is not None):
        raise typer.BadParameter(
            "--out takes the certificate of an erasure that is done at once: leave "
            "out --grace, --due, --list and --dry-run"
        )
    store = call.store()
    if listed:
        return _list(store, user)
    if due:
        return _complete(call, store, vacuum=vacuum)
    if user is None:
        raise typer.BadParameter("give --user, --due or --list")
    if dry_run:
        return _plan(store.erasures.plan(user, session_id=session, absent_ok=absent_ok))
    if not reason:
        raise typer.BadParameter("give --reason, for the certificate")
    if output.is_closed(sys.stdout) and output.is_closed(sys.stderr):
        raise InvalidConfiguration(
            "open stdout: it takes the salt, which is shown once"
        )
    quiet = call.as_json or not sys.stderr.isatty()
    with ExitStack() as files:
        certificate_file = None
        if out is not None:
            certificate_file = files.enter_context(Destination(out, overwrite=False))
        if not yes:
            _confirm(store.erasures.plan(user, session_id=session, absent_ok=absent_ok))
        erased = store.erase(
            user,
            reason,
            session_id=session,
            operator=who(operator),
            grace=grace,
            key_backups=key_backups,
            vacuum=vacuum,
            absent_ok=absent_ok,
            progress=None if quiet else _show_progress,
        )
        unwritten = None
        if certificate_file is not None and erased.certificate is not None:
            unwritten = _unwritten(certificate_file, erased.certificate)

    def show(screen: output.Screen) -> None:
        _report(screen, erased)
        if unwritten is not None and erased.certificate is not None:
            screen.line(output.mark(False), f"{unwritten}; here it is:")
            screen.line(orjson.dumps(erased.certificate.to_json()).decode())

    value = erased.to_json()
    if unwritten is not None:
        value["unwritten"] = unwritten
        output.complain(unwritten)
    failed = unwritten is not None or bool(erased.unfinished)
    return output.Result(value, show, int(failed), acted=True)


def _confirm(plan: ErasurePlan) -> None:
    """Ask a person before erasing; raises if they say no, or if nobody is there."""
    if not sys.stdin.isatty():
        raise typer.BadParameter("this cannot be undone: add --yes if you mean it")
    events = counted(plan.counts.get("events", 0), "event")
    of = counted(len(plan.sessions), "session")
    typer.confirm(f"Erase {events} of {of} for good?", abort=True, err=True)


def _unwritten(destination: Destination, certificate: Signed) -> str | None:
    """Write the certificate; returns why that failed, if it did."""
    try:
        text = orjson.dumps(certificate.to_json(), option=orjson.OPT_INDENT_2)
        destination.write(text + b"\n")
        destination.commit()
    except OSError as error:
        why = str(error.strerror or error).lower()
        return f"the certificate could not be written to {destination.path} ({why})"
    return None


def _complete(call: Call, store: SessionStore, *, vacuum: bool) -> output.Result:
    """Complete all erasures whose time has come; print each at once."""
    done: list[ErasureResult] = []

    def told() -> output.Result:
        value = [erased.to_json() for erased in done]
        return output.Result(value, "", acted=True)

    with call.reporting(told):
        for erased in store.erasures.complete(vacuum=vacuum):
            done.append(erased)
            call.remark(partial(_report, erased=erased), acted=True)
    stranded = store.erasures.stranded()
    if stranded:
        call.remark(partial(_lost, stranded=stranded), acted=True)
    failed = bool(stranded) or any(erased.unfinished for erased in done)
    return told()._replace(code=int(failed))


def _lost(screen: output.Screen, stranded: Sequence[Stranded]) -> None:
    """Name what is marked as erased by an erasure whose record is gone."""
    for whose, restorable in stranded:
        of = whose.user_id
        if whose.sessions is not None:
            of += f" / {', '.join(whose.sessions)}"
        screen.line(output.mark(None), output.shown(of), ": marked as erased, but the")
        undo = "; `refold restore` undoes it" if restorable else ""
        screen.line(f"  record of the erasure is gone: erase it again{undo}")


def _show_progress(table: str, done: int, total: int) -> None:
    end = "\n" if done >= total else ""
    with suppress(OSError):  # nobody reads it: the erasure goes on
        sys.stderr.write(f"\r{table}: {done:,} of {total:,} {end}")
        sys.stderr.flush()


def _moment(when: int | None) -> str | None:
    return None if when is None else values.rfc3339(when)


def _report(screen: output.Screen, erased: ErasureResult) -> None:
    if erased.due_at is not None:
        due = values.moment(erased.due_at)
        screen.line(output.mark(True), f"unreadable from now on, destroyed at {due}")
        screen.line("  until then, `refold restore --user …` undoes it")
        _copies(screen, erased.copies)
        return
    if erased.already:
        _earlier(screen, erased.certificate)
    elif erased.certificate is not None:
        _certificate(screen, erased.certificate.statement, erased.salt)
    _copies(screen, erased.copies)
    for place, files in erased.removed.items():
        if files:
            removed = f"removed {counted(len(files), 'file')} of {place}"
            screen.line(output.mark(True), removed)
    if erased.unfinished:
        screen.line(output.mark(False), output.shown(erased.unfinished))
        screen.line("  the erasure is certified: run the command again for the rest")
        return
    rows = sum(erased.left.values())
    tables = counted(len(erased.left), "table")
    left = f"searched {tables} afterwards: {counted(rows, 'row')} left"
    screen.line(output.mark(not rows), left)
    screen.line((f"  in {erased.database}", "dim"))
    _files(screen, erased)
    names = ", ".join(place.name for place in erased.outside)
    screen.line((f"  beyond the reach of Refold: {names}", "dim"))


def _earlier(screen: output.Screen, certificate: Signed | None) -> None:
    """Say that nothing was erased now, and which certificate stands for it."""
    if certificate is None:
        screen.line(output.mark(True), "erased before: nothing was left to erase")
        return
    statement = certificate.statement
    when = str(statement["completed_at"])
    screen.line(
        output.mark(True), f"erased before, at {when}: nothing was left to erase"
    )
    screen.line(f"  certificate  {statement['certificate_id']}  (signed then)")


# A row of a table, where its name is not the plural in s.
_ONE: Final = {"accesses": "access", "audit": "audit record", "leaves": "leaf"}


def _certificate(screen: output.Screen, said: dict[str, Any], salt: str) -> None:
    counts = ", ".join(
        counted(count, _ONE.get(table) or table.removesuffix("s"), table)
        for table, count in said.get("counts", {}).items()
        if count
    )
    screen.line(
        output.mark(True), f"erased: {counts or 'nothing, for there was nothing'}"
    )
    screen.line(f"  {counted(said.get('keys', 0), 'key')} destroyed")
    screen.line(f"  certificate  {said['certificate_id']}")
    _exports(screen, said.get("exports", []))
    if salt:
        proves = "keep it to prove that the certificate is this user's"
        screen.line(f"  salt         {salt}")
        screen.line((f"  {proves}: it is shown only once", "dim"))


def _files(screen: output.Screen, erased: ErasureResult) -> None:
    files = dict(erased.files.get("files", {}))
    if files and not erased.files["names"]:
        short = "  raw-file search skipped: ids this short match by chance"
        screen.line((short, "dim"))
        files = {}
    for file, found in files.items():
        names = counted(erased.files["names"], "name")
        screen.line(
            output.mark(not found), f"searched {file} for {names}: {found} found"
        )
    if erased.cleaned.get("wal_emptied") is False:
        why = "the write-ahead log could not be emptied because others read"
        screen.line(output.mark(None), f"{why}: close them and run this again")
    if advice := erased.cleaned.get("advice"):
        where = "names may remain in freed space until it is rewritten"
        screen.line(output.mark(None), f"{where}: use --vacuum, or")
        screen.line(f"  {advice}")


def _plan(plan: ErasurePlan) -> output.Result:
    def show(screen: output.Screen) -> None:
        if plan.already:
            screen.line(output.mark(True), "erased before: nothing is left to erase")
            return
        screen.line(f"would erase {counted(len(plan.sessions), 'session')}")
        rows = [(table, values.number(count)) for table, count in plan.counts.items()]
        screen.table(("table", "#rows"), rows)
        for name in plan.holds:
            screen.line(output.mark(None), f"the legal hold {name!r} forbids it")
        _exports(screen, plan.exports)
        _copies(screen, plan.copies)

    return output.Result(plan._asdict(), show)


def _exports(screen: output.Screen, exports: list[dict[str, Any]] | None) -> None:
    """Name the datasets that hold rows of what is erased: nobody else can drop them."""
    if exports is None:
        what = "which datasets hold rows of it cannot be read"
        screen.line(output.mark(None), what)
    for one in exports or ():
        screen.line(output.mark(None), f"drop its rows from dataset {one['export']}:")
        for row in one["rows"]:
            screen.line(f"  {row}")


def _copies(screen: output.Screen, copies: Sequence[JsonObject] | None) -> None:
    """Name the exports that have a copy of it: Refold cannot delete them."""
    if copies is None:
        screen.line(output.mark(None), "which exports have a copy of it cannot be read")
    for copy in copies or ():
        if copy["format"]:
            what = f"{copy['format']}: {copy['location']} (on {copy['machine']})"
        else:
            what = f"{copy['export']}: its record cannot be read"
        screen.line(
            output.mark(None),
            f"delete the export of {copy['made_at']}, which Refold cannot:",
        )
        screen.line(output.shown_in_line(f"  {what}"))


def _list(store: SessionStore, user: str | None) -> output.Result:
    signed = store.erasures.certificates(user)
    stranded = store.erasures.stranded(user)
    open_ = [
        {"job_id": job.job_id, "stage": job.stage, "due_at": _moment(job.due_at)}
        for job in store.erasures.pending()
    ]

    def show(screen: output.Screen) -> None:
        names = ("certificate_id", "completed_at", "act", "scope", "reason")
        facts = ({**one.statement, **(one.said or {})} for one in signed)
        rows = ([str(one.get(name, "")) for name in names] for one in facts)
        screen.table(names, rows)
        _lost(screen, stranded)
        for job in open_:
            stage = "held back" if job["stage"] == "held" else "cut off: run --due"
            screen.line(output.mark(None), f"{job['job_id']}  {stage}  {job['due_at']}")

    told = {"certificates": [one.to_json() for one in signed], "unfinished": open_}
    told["stranded"] = [
        {
            "user_id": whose.user_id,
            "sessions": whose.sessions,
            "restorable": restorable,
        }
        for whose, restorable in stranded
    ]
    return output.Result(told, show)


def restore(
    call: Call,
    user: UserOption,
    reason: ReasonOption,
    operator: OperatorOption = None,
) -> output.Result:
    """Undo an erasure during its grace period.

    Signs a certificate of the restoration.
    """
    signed = call.store().erasures.restore(user, reason, operator=who(operator))
    return _signed(signed, "readable again")


def readmit(
    call: Call,
    user: UserOption,
    reason: ReasonOption,
    operator: OperatorOption = None,
) -> output.Result:
    """Let the id of an erased user be used again, with a new key.

    Erased data stays erased.
    """
    signed = call.store().erasures.readmit(user, reason, operator=who(operator))
    return _signed(signed, f"readmitted, in epoch {signed.statement['epoch']}")


def hold(
    call: Call,
    user: UserOption,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Name of the hold.  Default: list the holds."
        ),
    ] = None,
    reason: OptionalReason = None,
    release: Annotated[
        bool, typer.Option("--release", help="Release the hold.")
    ] = False,
    operator: OperatorOption = None,
) -> output.Result:
    """Set or release a legal hold, which forbids erasing a user."""
    if name is None and (reason is not None or release):
        raise typer.BadParameter("give --name, the name of the hold")
    if name is not None and not reason:
        raise typer.BadParameter("give --reason, for the certificate")
    store = call.store()
    if name is None or reason is None:
        holds = store.erasures.holds(user)
        lines = "\n".join(f"{held.name}  {held.reason}" for held in holds)
        return output.Result([held._asdict() for held in holds], lines)
    change = store.erasures.release if release else store.erasures.hold
    signed = change(user, name, reason, operator=who(operator))
    if signed is None:
        return output.Result(None, "there is already a hold of that name")
    return _signed(signed, "released" if release else "held")


def _signed(signed: Signed, done: str) -> output.Result:
    name = signed.statement["certificate_id"]
    return output.Result(signed.to_json(), f"{done}: certificate {name}", acted=True)


def freeze(
    call: Call,
    user: UserOption,
    reason: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Reason; it is redacted and recorded.  Default: show whether the "
            "user is frozen.",
        ),
    ] = None,
    lift: Annotated[bool, typer.Option("--lift", help="End the freeze.")] = False,
    operator: OperatorOption = None,
) -> output.Result:
    """Refuse new events for a user; --lift ends the freeze.

    Everything stays readable.  The database itself refuses appends, and `refold
    erase` and `refold retain` skip the user.  Signs a certificate.
    """
    if lift and reason is None:
        raise typer.BadParameter("give --reason, for the certificate")
    store = call.store()
    signed = None
    if reason is not None:
        change = store.erasures.unfreeze if lift else store.erasures.freeze
        signed = change(user, reason, operator=who(operator))
    frozen = store.erasures.is_frozen(user)
    told = {"frozen": frozen, "certificate": signed and signed.to_json()}
    text = "frozen" if frozen else "not frozen"
    return output.Result(told, text, acted=signed is not None)


def retain(
    call: Call,
    policy: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help='Policy in TOML, such as sessions = "30d".'),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Predefined policy; seed: sessions 30d, memory 90d, audit 14d.",
        ),
    ] = None,
    dry_run: DryRunOption = False,
    key_backups: KeyBackupsOption = None,
    operator: OperatorOption = None,
) -> output.Result:
    """Erase sessions that were unused for longer than a policy says.

    Needs --policy or --preset.  Erases each user's expired sessions with a
    certificate.  Keeps sessions that are used during the run, held, frozen, or the
    origin of a fork in use.  If it is interrupted, the next run completes it.
    """
    if policy is not None and preset is None:
        chosen = RetentionPolicy.read(policy.read_bytes())
    elif preset is not None and policy is None:
        chosen = RetentionPolicy.preset(preset)
    else:
        raise typer.BadParameter("give one of --policy FILE and --preset NAME")
    store = call.store()
    erasures: list[ErasureResult] = []

    def unfinished() -> output.Result:
        value = [erased.to_json() for erased in erasures]
        text = "\n".join(orjson.dumps(erased).decode() for erased in value)
        return output.Result({"certificates": value}, text, acted=True)

    with call.reporting(unfinished):
        done = store.erasures.retain(
            chosen,
            dry_run=dry_run,
            operator=who(operator),
            key_backups=key_backups,
            erased=erasures.append,
        )
    return output.Result(
        done.to_json(), lambda screen: _went(screen, done), acted=not dry_run
    )


def _went(screen: output.Screen, done: RetentionResult) -> None:
    for user, name in done.sessions:
        screen.line(output.shown(f"{user} / {name}"))
    went = "would be erased" if done.dry_run else "erased"
    told = [f"{counted(len(done.sessions), 'session')} {went}"]
    told += [f"{count:,} kept ({why})" for why, count in sorted(done.kept.items())]
    if done.completed:
        told.append(f"{counted(done.completed, 'earlier erasure')} completed")
    for what, count in (("blob", done.blobs), ("audit record", done.audit)):
        if count is not None:
            told.append(f"{counted(count, what)} {went}")
    if done.memory:
        told.append(f"{counted(done.memory, 'extract')} of memory {went}")
    screen.line(", ".join(told))
