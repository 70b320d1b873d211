"""``refold redact``: the redactor alone, as a filter, or over what is stored."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from refold.adapters import config, rule_cache
from refold.adapters.cli import options, output
from refold.adapters.display import values
from refold.domain.errors import InvalidConfiguration, RefoldError, counted
from refold.opener import make_redactor
from refold.redaction.engines import start_quickly
from refold.redaction.json_text import compact_json
from refold.redaction.policy import Policy, PolicyError
from refold.redaction.redactor import RedactionError

if TYPE_CHECKING:
    from typing import BinaryIO

    from refold.redaction.redactor import Redactor
    from refold.redaction.values import Tally
    from refold.store.proofs.verification import Exposure, Rechecked


def redact(
    call: options.Call,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="File to read; - is stdin.")
    ] = "-",
    form: Annotated[
        options.Values,
        typer.Option(
            "--format",
            help="text; json: one value; jsonl: one value per line, answered line by "
            "line.",
        ),
    ] = "text",
    policy: options.PolicyOption = None,
    packs: Annotated[
        str | None,
        typer.Option(
            metavar="A,B", help="Packs of rules that replace those of the policy."
        ),
    ] = None,
    engine: Annotated[
        options.Engines | None,
        typer.Option(help="Engine that replaces that of the policy."),
    ] = None,
    recheck: Annotated[
        bool,
        typer.Option("--recheck", help="Scan stored events with the current rules."),
    ] = False,
    apply: Annotated[
        bool,
        typer.Option("--apply", help="With --recheck: replace the findings, for good."),
    ] = False,
    user: options.UserFilter = None,
    session: options.SessionFilter = None,
    jobs: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="With --recheck: number of processes that share the work.",
        ),
    ] = 1,
) -> output.Result | None:
    """Replace secrets and personal data in a text.

    Stores nothing.  With --json, each value has a receipt: the rules, the engine
    and the findings by type.  "n": 0 means that the value was scanned and nothing
    was redacted.

    --recheck scans the store instead.  It prints the place and type of each
    finding, never the value.  --apply replaces the findings in the store, for good.
    """
    _check(call, recheck=recheck)
    rule_cache.use(fills=True)
    start_quickly()
    chosen = _policy(policy, packs, engine)
    if not recheck:
        _filter(make_redactor(chosen), file, form, as_json=call.as_json)
        return None
    store = call.store(policy=chosen)
    session = options.optional_session_name(store, user, session)
    options.sessions(store, user, session)
    checked: list[Rechecked] = []
    check = store.reredact if apply else store.recheck

    def report() -> output.Result:
        figures = _figures(checked, apply=apply)
        code = 1 if figures["problems"] else 0
        show = partial(_show_total, figures=figures)
        return output.Result(figures, show, code, changed=apply)

    with call.reporting(report) if apply else nullcontext():
        for rechecked in check(user, session_id=session, executor=call.executor(jobs)):
            checked.append(rechecked)
            call.remark(partial(_show_session, rechecked=rechecked), changed=apply)
    return report()


def _figures(checked: list[Rechecked], *, apply: bool) -> dict[str, Any]:
    """Return the findings and replacements in all checked sessions, for JSON."""
    events = 0
    superseded = 0
    blobs = 0
    exposures: list[Exposure] = []
    unfinished: list[dict[str, str]] = []
    problems: list[dict[str, str]] = []
    for rechecked in checked:
        events += rechecked.events
        exposures += rechecked.exposures
        if rechecked.applied:
            superseded += rechecked.applied.events
            blobs += rechecked.applied.blobs
        if rechecked.unfinished:
            unfinished.append(output.names_of(rechecked.session))
        if rechecked.problem:
            problem = {"detail": rechecked.problem}
            problems.append(output.names_of(rechecked.session) | problem)
    return {
        "applied": apply,
        "sessions": len(checked),
        "events": events,
        "types": dict(sorted(_types(exposures).items())),
        "exposures": [exposure.to_json() for exposure in exposures],
        "superseded": superseded,
        "blobs": blobs,
        "unfinished": unfinished,
        "problems": problems,
    }


def _types(exposures: list[Exposure]) -> Counter[str]:
    """Return the number of findings of each type."""
    counts: Counter[str] = Counter()
    for exposure in exposures:
        counts.update(exposure.types)
    return counts


def _show_session(screen: output.Screen, rechecked: Rechecked) -> None:
    """Print a line about a checked session, and one for each place with findings."""
    session = rechecked.session
    name = output.shown(f"{session.user_id} / {session.session_id}")
    if rechecked.problem:
        screen.line(output.mark(ok=False), name, "  ", output.shown(rechecked.problem))
        return
    if rechecked.applied:
        events = counted(rechecked.applied.events, "event")
        screen.line(output.mark(ok=True), name, f"  {events} replaced, under a new key")
    elif rechecked.exposures or rechecked.unfinished:
        text = counted(_types(rechecked.exposures).total(), "finding")
        if rechecked.unfinished:
            text += "; the previous key is not destroyed yet"
        screen.line(output.mark(ok=None), name, f"  {text}")
    else:
        screen.line(output.mark(ok=True), name, ("  nothing found", "dim"))
    for exposure in rechecked.exposures:
        place: str = exposure.where
        if exposure.seq is not None:
            place = f"seq {exposure.seq}"
        if exposure.stream != "main":
            place = f"{exposure.stream[:12]} {place}"
        types = (values.type_counts(exposure.types), "red")
        copies = ""
        if exposure.blobs:
            copies = f", also in {counted(exposure.blobs, 'blob')}"
        screen.line("    ", f"{place}  ", types, (copies, "dim"))


def _show_total(screen: output.Screen, figures: dict[str, Any]) -> None:
    """Print the total of the findings, and the next step."""
    findings = sum(figures["types"].values())
    events = counted(figures["events"], "event")
    text = f" in {events} of {counted(figures['sessions'], 'session')}"
    if not figures["applied"] and (findings or figures["unfinished"]):
        text += ": add --apply to replace them for good"
    screen.line((counted(findings, "finding"), "bold"), text)


# Options that only the filter takes, and options that only --recheck takes.
_OF_FILTER: Final = {"file": "FILE", "form": "--format"}
_OF_RECHECK: Final = {
    "apply": "--apply",
    "user": "--user",
    "session": "--session",
    "jobs": "--jobs",
}


def _check(call: options.Call, *, recheck: bool) -> None:
    """Raise BadParameter for options that ``--recheck`` excludes, or that need it."""
    if recheck:
        refused = _OF_FILTER
        preposition = "without"
    else:
        refused = _OF_RECHECK
        preposition = "with"
    for name, option in refused.items():
        source = call.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(
                f"use {option} {preposition} --recheck, which scans the store"
            )


def _policy(
    path: str | None, packs: str | None, engine: options.Engines | None
) -> Policy | None:
    """Return the policy in a file, with these packs and this engine instead of its own.

    Returns None for the default policy.
    """
    policy = config.policy(path)
    if packs is None and engine is None:
        return policy
    policy = policy or Policy(version=1)
    try:
        if packs is not None:
            policy = policy.with_packs([name.strip() for name in packs.split(",")])
        if engine is not None:
            policy = policy.with_engine(engine)
    except PolicyError as error:
        raise InvalidConfiguration(error.reason) from None
    return policy


_CLEAN: Final = "scanned: nothing found that the policy redacts"


def _filter(
    redactor: Redactor, file: str, form: options.Values, *, as_json: bool
) -> None:
    """Write the values in a file or in stdin to stdout, redacted.

    Raises RefoldError for input that is not of this format, or takes too much work.
    """
    name = "stdin" if file == "-" else file
    redacted: Counter[str] = Counter()
    with nullcontext(sys.stdin.buffer) if file == "-" else open(file, "rb") as source:
        try:
            for clean, counts in _cleaned(redactor, form, name, source):
                redacted.update(counts.types)
                if as_json:
                    line = {"value": clean, "redaction": redactor.receipt(counts)}
                    output.write_line(compact_json(line).encode())
                elif form == "text":
                    sys.stdout.flush()
                    sys.stdout.buffer.write(clean.encode())
                else:
                    output.write_line(compact_json(clean).encode())
                sys.stdout.buffer.flush()
        except RedactionError as error:
            raise RefoldError(
                f"{name} could not be redacted ({error}): split it, or raise the limit "
                "in [scan] of a policy"
            ) from None
    if not as_json and sys.stderr.isatty():
        if redacted:
            output.complain(f"redacted {values.type_counts(redacted)}")
        else:
            output.complain(_CLEAN)


def _cleaned(
    redactor: Redactor, form: options.Values, name: str, source: BinaryIO
) -> Iterator[tuple[Any, Tally]]:
    """Yield each value of the source after redaction, with the counts of its findings.

    name: the name of the source, for errors.
    """
    if form == "text":
        yield redactor.text(_decoded(source.read(), name))
    elif form == "json":
        yield redactor.value(_parsed(source.read(), name))
    else:
        for number, line in enumerate(source, start=1):
            if line.strip():
                yield redactor.value(_parsed(line, f"{name} line {number}"))


def _parsed(data: bytes, where: str) -> Any:
    """Return a JSON value.  Raises RefoldError, which names the place in the input."""
    text = _decoded(data, where).removeprefix("\ufeff")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"{error.msg.partition(':')[0]}, column {error.colno}"
        why = f"is not JSON ({place})"
    except RecursionError:
        why = "is nested too deeply"
    except ValueError:
        why = "has a number with too many digits"
    raise RefoldError(f"{where}: {why}: correct it, or use --format text")


def _decoded(data: bytes, where: str) -> str:
    """Return a text.  Raises RefoldError if it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise RefoldError(
            f"{where}: byte {error.start} is not UTF-8: convert it first, for instance "
            "with `iconv -f LATIN1 -t UTF-8`"
        ) from None
