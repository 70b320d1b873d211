"""``refold erase``, ``restore``, ``readmit``, ``hold``, ``freeze`` and ``retain``."""

from __future__ import annotations

import sys
from contextlib import ExitStack, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import orjson
import typer

from refold.adapters.cli import output
from refold.adapters.cli.files import Destination
from refold.adapters.cli.options import (
    AbsentOption,
    Call,
    DryRunOption,
    KeyBackupsOption,
    OperatorOption,
    OptionalReason,
    ReasonOption,
    UserOption,
    check_user,
    duration,
    operator as operator_name,
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
    absent_ok: AbsentOption = False,
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
    actions = {"--list": listed, "--due": due, "--dry-run": dry_run}
    used = [option for option, is_used in actions.items() if is_used]
    if len(used) > 1:
        raise typer.BadParameter(f"give only one of {' and '.join(used)}")
    names_one = any(value is not None for value in (user, session, reason, grace))
    if due and names_one:
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
        plan = store.erasures.plan(user, session_id=session, absent_ok=absent_ok)
        return _planned(plan)
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
            plan = store.erasures.plan(user, session_id=session, absent_ok=absent_ok)
            _confirm(plan)
        erased = store.erase(
            user,
            reason,
            session_id=session,
            operator=operator_name(operator),
            grace=grace,
            key_backups=key_backups,
            vacuum=vacuum,
            absent_ok=absent_ok,
            progress=None if quiet else _show_progress,
        )
        unwritten = None  # the reason if the certificate could not be written
        if certificate_file is not None and erased.certificate is not None:
            unwritten = _write_certificate(certificate_file, erased.certificate)

    def show(screen: output.Screen) -> None:
        _show_erasure(screen, erased)
        if unwritten is not None and erased.certificate is not None:
            screen.line(output.mark(ok=False), f"{unwritten}; here it is:")
            screen.line(orjson.dumps(erased.certificate.to_json()).decode())

    value = erased.to_json()
    if unwritten is not None:
        value["unwritten"] = unwritten
        output.complain(unwritten)
    failed = unwritten is not None or bool(erased.unfinished)
    return output.Result(value, show, int(failed), changed=True)


def _confirm(plan: ErasurePlan) -> None:
    """Ask for confirmation; raises an error without a terminal, or for a no."""
    if not sys.stdin.isatty():
        raise typer.BadParameter("this cannot be undone: add --yes if you mean it")
    events = counted(plan.counts.get("events", 0), "event")
    sessions = counted(len(plan.sessions), "session")
    typer.confirm(f"Erase {events} of {sessions} for good?", abort=True, err=True)


def _write_certificate(destination: Destination, certificate: Signed) -> str | None:
    """Write the certificate; returns a sentence if that fails, else None."""
    try:
        text = orjson.dumps(certificate.to_json(), option=orjson.OPT_INDENT_2)
        destination.write(text + b"\n")
        destination.commit()
    except OSError as error:
        why = str(error.strerror or error).lower()
        return f"the certificate could not be written to {destination.path} ({why})"
    return None


def _complete(call: Call, store: SessionStore, *, vacuum: bool) -> output.Result:
    """Complete the erasures whose grace period is over, and print each at once."""
    completed: list[ErasureResult] = []

    def report() -> output.Result:
        value = [erased.to_json() for erased in completed]
        return output.Result(value, "", changed=True)

    with call.reporting(report):
        for erased in store.erasures.complete(vacuum=vacuum):
            completed.append(erased)
            call.remark(partial(_show_erasure, erased=erased), changed=True)
    stranded = store.erasures.stranded()
    if stranded:
        call.remark(partial(_show_stranded, stranded=stranded), changed=True)
    failed = bool(stranded) or any(erased.unfinished for erased in completed)
    return report()._replace(code=int(failed))


def _show_stranded(screen: output.Screen, stranded: Sequence[Stranded]) -> None:
    """Name users and sessions that a lost erasure marked as erased."""
    for owner, is_restorable in stranded:
        name = owner.user_id
        if owner.sessions is not None:
            name += f" / {', '.join(owner.sessions)}"
        screen.line(
            output.mark(ok=None), output.shown(name), ": marked as erased, but the"
        )
        undo = "; `refold restore` undoes it" if is_restorable else ""
        screen.line(f"  record of the erasure is gone: erase it again{undo}")


def _show_progress(table: str, done: int, total: int) -> None:
    """Print the progress of an erasure over the line before."""
    end = "\n" if done >= total else ""
    with suppress(OSError):  # the erasure continues without a reader
        name = _names_of_rows(table).plural
        sys.stderr.write(f"\rdeleting {name}: {done:,} of {total:,} {end}")
        sys.stderr.flush()


def _moment(microseconds: int | None) -> str | None:
    """Return a time as JSON has it; None for none."""
    return None if microseconds is None else values.rfc3339(microseconds)


def _show_erasure(screen: output.Screen, erased: ErasureResult) -> None:
    """Print the result of an erasure: the certificate, and what is left."""
    if erased.due_at is not None:
        destroyed_at = values.moment(erased.due_at)
        screen.line(
            output.mark(ok=True), f"unreadable from now on, destroyed at {destroyed_at}"
        )
        screen.line("  until then, `refold restore --user …` undoes it")
        _show_copies(screen, erased.copies)
        return
    if erased.already:
        _show_earlier(screen, erased.certificate)
    elif erased.certificate is not None:
        _show_certificate(screen, erased.certificate.statement, erased.salt)
    _show_copies(screen, erased.copies)
    for place, files in erased.removed.items():
        if files:
            removed = f"removed {counted(len(files), 'file')} of {place}"
            screen.line(output.mark(ok=True), removed)
    if erased.unfinished:
        screen.line(output.mark(ok=False), output.shown(erased.unfinished))
        screen.line("  the erasure is certified: run the command again for the rest")
        return
    rows = sum(erased.left.values())
    tables = counted(len(erased.left), "table")
    left = f"searched {tables} afterwards: {counted(rows, 'row')} left"
    screen.line(output.mark(ok=not rows), left)
    screen.line((f"  in {erased.database}", "dim"))
    _show_search(screen, erased)
    names = ", ".join(place.name for place in erased.outside)
    text = f"beyond the reach of Refold: {names}"
    margin = "  "
    for line in wrap(
        text, screen.width, initial_indent=margin, subsequent_indent=margin * 2
    ):
        screen.line((line, "dim"))


def _show_earlier(screen: output.Screen, certificate: Signed | None) -> None:
    """Print an earlier erasure and its certificate."""
    if certificate is None:
        screen.line(output.mark(ok=True), "erased before: nothing was left to erase")
        return
    statement = certificate.statement
    completed_at = str(statement["completed_at"])
    screen.line(
        output.mark(ok=True),
        f"erased before, at {completed_at}: nothing was left to erase",
    )
    screen.line(f"  certificate  {statement['certificate_id']}  (signed then)")


class _RowNames(NamedTuple):
    """The words for one row of a table, and for several."""

    singular: str
    plural: str


_ROW_NAMES: Final = {
    "accesses": _RowNames("record of last use", "records of last use"),
    "audit": _RowNames("entry of the access log", "entries of the access log"),
    "blobs": _RowNames("large text", "large texts"),
    "events": _RowNames("event", "events"),
    "exports": _RowNames("record of an export", "records of exports"),
    "heads": _RowNames("stream", "streams"),
    "labels": _RowNames("label", "labels"),
    "leases": _RowNames("mark of background work", "marks of background work"),
    "leaves": _RowNames("leaf of the seals", "leaves of the seals"),
    "receipts": _RowNames("idempotency key", "idempotency keys"),
    "seals": _RowNames("seal", "seals"),
    "views": _RowNames("stored view", "stored views"),
}


def _names_of_rows(table: str) -> _RowNames:
    """Return the words for the rows of a table, also for one of an application."""
    return _ROW_NAMES.get(table) or _RowNames(f"row of {table}", f"rows of {table}")


def _show_certificate(
    screen: output.Screen, statement: dict[str, Any], salt: str
) -> None:
    """Print what a certificate says, and its salt."""
    counts: list[str] = []
    for table, count in statement.get("counts", {}).items():
        if count:
            counts.append(counted(count, *_names_of_rows(table)))
    erased = ", ".join(counts) or "nothing, since nothing was stored"
    screen.line(output.mark(ok=True), f"erased: {erased}")
    screen.line(f"  {counted(statement.get('keys', 0), 'key')} destroyed")
    screen.line(f"  certificate  {statement['certificate_id']}")
    _show_datasets(screen, statement.get("exports", []))
    if salt:
        advice = "keep it to prove that the certificate is this user's"
        screen.line(f"  salt         {salt}")
        screen.line((f"  {advice}: it is shown only once", "dim"))


def _show_search(screen: output.Screen, erased: ErasureResult) -> None:
    """Print the search for erased names in the database's files."""
    files = dict(erased.files.get("files", {}))
    if files and not erased.files["names"]:
        remark = "  raw-file search skipped: ids this short match by chance"
        screen.line((remark, "dim"))
        files = {}
    for file, matches in files.items():
        names = counted(erased.files["names"], "name")
        screen.line(
            output.mark(ok=not matches), f"searched {file} for {names}: {matches} found"
        )
    if erased.cleaned.get("wal_emptied") is False:
        problem = "the write-ahead log could not be emptied because others read"
        screen.line(output.mark(ok=None), f"{problem}: close them and run this again")
    advice = erased.cleaned.get("advice")
    if advice:
        remark = "names may remain in freed space until it is rewritten"
        screen.line(output.mark(ok=None), f"{remark}: use --vacuum, or")
        screen.line(f"  {advice}")


def _planned(plan: ErasurePlan) -> output.Result:
    """Return the report of what an erasure would delete."""

    def show(screen: output.Screen) -> None:
        if plan.already:
            screen.line(output.mark(ok=True), "erased before: nothing is left to erase")
            return
        screen.line(f"would erase {counted(len(plan.sessions), 'session')}")
        rows: list[tuple[str, str]] = []
        for table, count in plan.counts.items():
            if count:
                rows.append((_names_of_rows(table).plural, values.number(count)))
        if rows:
            screen.table(("data", "#number"), rows)
        for name in plan.holds:
            screen.line(output.mark(ok=None), f"the legal hold {name!r} forbids it")
        _show_datasets(screen, plan.exports)
        _show_copies(screen, plan.copies)

    return output.Result(plan._asdict(), show)


def _show_datasets(
    screen: output.Screen, datasets: list[dict[str, Any]] | None
) -> None:
    """Print the datasets with rows of the erased data, which their owner must drop."""
    if datasets is None:
        screen.line(
            output.mark(ok=None), "the list of datasets with its rows is unreadable"
        )
    for dataset in datasets or ():
        name = dataset["export"]
        screen.line(output.mark(ok=None), f"drop its rows from dataset {name}:")
        for row in dataset["rows"]:
            screen.line(f"  {row}")


def _show_copies(screen: output.Screen, copies: Sequence[JsonObject] | None) -> None:
    """Print the exports with a copy of the erased data, which Refold cannot delete."""
    if copies is None:
        screen.line(
            output.mark(ok=None), "the list of exports with a copy is unreadable"
        )
    for copy in copies or ():
        if copy["format"]:
            place = f"{copy['format']}: {copy['location']} (on {copy['machine']})"
        else:
            place = f"{copy['export']}: its record cannot be read"
        screen.line(
            output.mark(ok=None),
            f"delete the export of {copy['made_at']}, which Refold cannot reach:",
        )
        screen.line(output.shown_in_line(f"  {place}"))


def _list(store: SessionStore, user: str | None) -> output.Result:
    """Return the list of certificates and of unfinished erasures."""
    certificates = store.erasures.certificates(user)
    stranded = store.erasures.stranded(user)
    if user is not None and not certificates and not stranded:
        _check_known(store, user)
    unfinished = [
        {"job_id": job.job_id, "stage": job.stage, "due_at": _moment(job.due_at)}
        for job in store.erasures.pending()
    ]

    def show(screen: output.Screen) -> None:
        names = ("certificate_id", "completed_at", "act", "scope", "reason")
        rows: list[list[str]] = []
        for certificate in certificates:
            texts = {**certificate.statement, **(certificate.texts or {})}
            rows.append([str(texts.get(name, "")) for name in names])
        screen.table(names, rows)
        _show_stranded(screen, stranded)
        for job in unfinished:
            state = "interrupted: run `refold erase --due`"
            if job["stage"] == "held":
                state = f"in its grace period until {job['due_at']}"
            screen.line(output.mark(ok=None), f"{job['job_id']}  {state}")

    value = {
        "certificates": [certificate.to_json() for certificate in certificates],
        "unfinished": unfinished,
        "stranded": [
            {
                "user_id": owner.user_id,
                "sessions": owner.sessions,
                "restorable": is_restorable,
            }
            for owner, is_restorable in stranded
        ],
    }
    return output.Result(value, show)


def restore(
    call: Call,
    user: UserOption,
    reason: ReasonOption,
    operator: OperatorOption = None,
) -> output.Result:
    """Undo an erasure during its grace period.

    Signs a certificate of the restoration.
    """
    signed = call.store().erasures.restore(
        user, reason, operator=operator_name(operator)
    )
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
    signed = call.store().erasures.readmit(
        user, reason, operator=operator_name(operator)
    )
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
    absent_ok: AbsentOption = False,
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
        if not holds:
            _check_known(store, user)
        lines = "\n".join(f"{each.name}  {each.reason}" for each in holds)
        return output.Result([each._asdict() for each in holds], lines)
    operated_by = operator_name(operator)
    if release:
        signed = store.erasures.release(user, name, reason, operator=operated_by)
        return _signed(signed, "released")
    placed = store.erasures.hold(
        user, name, reason, operator=operated_by, absent_ok=absent_ok
    )
    if placed is None:
        return output.Result(None, "there is already a hold of that name")
    return _signed(placed, "held")


def _check_known(store: SessionStore, user: str) -> None:
    """Raise RefoldError for a user without sessions and certificates.

    The id may be mistyped, and an empty answer would pass for the user's.
    """
    if not store.erasures.certificates(user):
        check_user(store, user)


def _signed(signed: Signed, result: str) -> output.Result:
    """Return the report of a change with a certificate."""
    name = signed.statement["certificate_id"]
    return output.Result(
        signed.to_json(), f"{result}: certificate {name}", changed=True
    )


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
    absent_ok: AbsentOption = False,
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
    operated_by = operator_name(operator)
    if reason is not None and lift:
        signed = store.erasures.unfreeze(user, reason, operator=operated_by)
    elif reason is not None:
        signed = store.erasures.freeze(
            user, reason, operator=operated_by, absent_ok=absent_ok
        )
    frozen = store.erasures.is_frozen(user)
    if not frozen:
        _check_known(store, user)
    value = {"frozen": frozen, "certificate": signed and signed.to_json()}
    text = "frozen" if frozen else "not frozen"
    if signed is not None:
        text += f": certificate {signed.statement['certificate_id']}"
    return output.Result(value, text, changed=signed is not None)


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
        retention = RetentionPolicy.read(policy.read_bytes())
    elif preset is not None and policy is None:
        retention = RetentionPolicy.preset(preset)
    else:
        raise typer.BadParameter("give one of --policy FILE and --preset NAME")
    store = call.store()
    erasures: list[ErasureResult] = []

    def unfinished() -> output.Result:
        """Return the report of an interrupted run."""
        value = [erased.to_json() for erased in erasures]
        text = "\n".join(orjson.dumps(erased).decode() for erased in value)
        return output.Result({"certificates": value}, text, changed=True)

    with call.reporting(unfinished):
        result = store.erasures.retain(
            retention,
            dry_run=dry_run,
            operator=operator_name(operator),
            key_backups=key_backups,
            erased=erasures.append,
        )
    return output.Result(
        result.to_json(),
        lambda screen: _show_retention(screen, result),
        changed=not dry_run,
    )


def _show_retention(screen: output.Screen, result: RetentionResult) -> None:
    """Print the erased sessions, and the totals."""
    for user, name in result.sessions:
        screen.line(output.shown(f"{user} / {name}"))
    erased = "would be erased" if result.dry_run else "erased"
    counts = [f"{counted(len(result.sessions), 'session')} {erased}"]
    for reason, count in sorted(result.kept.items()):
        counts.append(f"{count:,} kept ({reason})")
    if result.completed:
        counts.append(f"{counted(result.completed, 'earlier erasure')} completed")
    if result.blobs is not None:
        counts.append(f"{counted(result.blobs, 'blob')} {erased}")
    if result.audit is not None:
        counts.append(f"{counted(result.audit, 'audit record')} {erased}")
    if result.memory:
        counts.append(f"{counted(result.memory, 'extract')} of memory {erased}")
    screen.line(", ".join(counts))
