"""``refold redact``: the redactor alone, as a filter, or over what is stored."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from refold.adapters.cli import options as opening
from refold.adapters.cli.options import Engines, Json, SomeSession, SomeUser, Values
from refold.adapters.cli.output import print_json, write_line
from refold.domain.errors import InvalidConfiguration, RefoldError

if TYPE_CHECKING:
    from typing import BinaryIO

    from refold.adapters.cli.output import Screen
    from refold.redaction.guard import Limits
    from refold.redaction.policy import Policy
    from refold.redaction.redactor import Redactor
    from refold.store.verification import Exposure, Rechecked


def run(
    context: typer.Context,
    user: str | None,
    session: str | None,
    *,
    redactor: Redactor | None = None,
    limits: Limits | None = None,
    apply: bool,
    as_json: bool,
) -> None:
    """Say what the rules find in stored sessions, and replace it with ``apply``.

    Nothing of what is found is printed but its type and place.  Exits with 1 if a
    session could not be looked at or replaced.
    """
    screen = None if as_json else _screen()
    found: list[Rechecked] = []
    with opening.existing(context, redactor=redactor, limits=limits) as store:
        opening.sessions(store, user, session)
        look = store.reredact if apply else store.recheck
        for rechecked in look(user, session):
            found.append(rechecked)
            if screen:
                _session(screen, rechecked)
    if screen:
        _total(screen, found, apply=apply)
    else:
        print_json(_as_json(found, apply=apply))
    if any(rechecked.problem for rechecked in found):
        raise typer.Exit(1)


def _as_json(found: list[Rechecked], *, apply: bool) -> dict[str, Any]:
    exposures = [exposure for one in found for exposure in one.exposures]
    applied = [one.applied for one in found if one.applied]
    return {
        "applied": apply,
        "sessions": len(found),
        "events": sum(one.events for one in found),
        "types": dict(sorted(_types(exposures).items())),
        "exposures": [exposure.to_json() for exposure in exposures],
        "superseded": sum(done.events for done in applied),
        "blobs": sum(done.blobs for done in applied),
        "unfinished": [_named(one) for one in found if one.unfinished],
        "problems": [
            {**_named(one), "detail": one.problem} for one in found if one.problem
        ],
    }


def _named(one: Rechecked) -> dict[str, str]:
    return {"user_id": one.session.user_id, "session_id": one.session.session_id}


def _types(exposures: list[Exposure]) -> Counter[str]:
    types: Counter[str] = Counter()
    for exposure in exposures:
        types.update(exposure.types)
    return types


def _screen() -> Screen:
    from refold.adapters.cli.output import Screen

    return Screen()


def _session(screen: Screen, one: Rechecked) -> None:
    from refold.adapters.cli.output import counted, shown

    name = shown(f"{one.session.user_id} / {one.session.session_id}")
    if one.problem:
        screen.line(("✗ ", "bold red"), name, "  ", shown(one.problem))
        return
    if one.applied:
        done = f"{counted(one.applied.events, 'event')} replaced, under a new key"
        screen.line(("✓ ", "bold green"), name, f"  {done}")
    elif one.exposures or one.unfinished:
        what = counted(_types(one.exposures).total(), "finding")
        rest = "; the key of before is not destroyed yet" if one.unfinished else ""
        screen.line(("! ", "bold yellow"), name, f"  {what}{rest}")
    else:
        screen.line(("✓ ", "bold green"), name, ("  nothing found", "dim"))
    for exposure in one.exposures:
        _place(screen, exposure)


def _place(screen: Screen, exposure: Exposure) -> None:
    from refold.adapters.cli import output as wording

    stream = "" if exposure.stream == "main" else f"{exposure.stream[:12]} "
    seq = exposure.where if exposure.seq is None else f"seq {exposure.seq}"
    types = wording.types(exposure.types)
    blobs = wording.counted(exposure.blobs, "blob")
    also = f", also in {blobs}" if exposure.blobs else ""
    screen.line("    ", f"{stream}{seq}  ", (types, "red"), (also, "dim"))


def _total(screen: Screen, found: list[Rechecked], *, apply: bool) -> None:
    from refold.adapters.cli.output import counted

    findings = _types([exposure for one in found for exposure in one.exposures])
    looked = f"{counted(sum(one.events for one in found), 'event')} of "
    looked += counted(len(found), "session")
    if apply or not (findings or any(one.unfinished for one in found)):
        way_out = ""
    else:
        way_out = ": --apply replaces what was found, for good"
    screen.line(
        (counted(findings.total(), "finding"), "bold"), f" in {looked}{way_out}"
    )


# What only the filter reads, and what only --recheck does.
_OF_FILTER: Final = {"file": "FILE", "form": "--format"}
_OF_RECHECK: Final = {"apply": "--apply", "user": "--user", "session": "--session"}


class _Clean(NamedTuple):
    value: Any
    receipt: dict[str, Any]


def redact(
    context: typer.Context,
    file: Annotated[
        str, typer.Argument(metavar="[FILE|-]", help="What to read; - is stdin.")
    ] = "-",
    form: Annotated[
        Values,
        typer.Option(
            "--format",
            help="text; json: one value; jsonl: one value a line, each answered by a "
            "line, in order.",
        ),
    ] = Values.TEXT,
    policy: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="What is redacted, in TOML.  Left out: REFOLD_POLICY, else the "
            "default.",
        ),
    ] = None,
    packs: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,…", help="The packs of rules, in place of the policy's."
        ),
    ] = None,
    engine: Annotated[
        Engines | None,
        typer.Option(help="What looks for values, in place of the policy's engine."),
    ] = None,
    recheck: Annotated[
        bool,
        typer.Option(
            "--recheck", help="Look at what is stored, and say what is found now."
        ),
    ] = False,
    apply: Annotated[
        bool,
        typer.Option(
            "--apply", help="With --recheck: replace what is found, for good."
        ),
    ] = False,
    user: SomeUser = None,
    session: SomeSession = None,
    as_json: Json = False,
) -> None:
    """Replace secrets and personal data in a text or in JSON.

    Nothing is stored.  With --json each value comes with the receipt that an event
    would carry: the rules, the engine and what was found by type.

    With --recheck nothing is read but the store: where the rules of today find
    something in it, and of which type, is printed, never the value.  --apply replaces
    it there, for good.
    """
    _check(context, recheck=recheck)
    from refold.opener import make_redactor
    from refold.redaction.engines import start_quickly

    start_quickly()
    chosen = _policy(policy, packs, engine)
    redactor = make_redactor(chosen)
    if not recheck:
        _filter(redactor, file, form, as_json=as_json)
        return
    limits = chosen.limits() if chosen else None
    run(
        *(context, user, session),
        redactor=redactor,
        limits=limits,
        apply=apply,
        as_json=as_json,
    )


def _check(context: typer.Context, *, recheck: bool) -> None:
    """Refuse what does not go with ``--recheck``, or does not go without it."""
    wrong = _OF_FILTER if recheck else _OF_RECHECK
    shown = next((wrong[name] for name in wrong if _is_given(context, name)), None)
    if shown and recheck:
        raise typer.BadParameter(
            f"{shown} is for values to be redacted, --recheck for the store: leave one "
            "of them out"
        )
    if shown:
        raise typer.BadParameter(f"{shown} is for the store: add --recheck")


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _policy(
    path: str | None, packs: str | None, engine: Engines | None
) -> Policy | None:
    """The policy of a file, with other packs and another engine if given."""
    from refold.adapters import config

    chosen = config.policy(path)
    if packs is None and engine is None:
        return chosen
    from refold.redaction.policy import Policy, PolicyError

    chosen = chosen or Policy(version=1)
    try:
        if packs is not None:
            chosen = chosen.with_packs([name.strip() for name in packs.split(",")])
        if engine is not None:
            chosen = chosen.with_engine(engine.value)
    except PolicyError as error:
        raise InvalidConfiguration(error.reason) from None
    return chosen


def _filter(redactor: Redactor, file: str, form: Values, *, as_json: bool) -> None:
    from refold.redaction.redactor import RedactionError

    with _input(file) as (name, source):
        try:
            for clean in _cleaned(redactor, form, name, source):
                _write(clean, form, as_json=as_json)
        except RedactionError as error:
            raise RefoldError(
                f"{name}: could not be redacted ({error}): split it, or raise "
                "the limit in [scan] of a policy"
            ) from None


def _cleaned(
    redactor: Redactor, form: Values, name: str, source: BinaryIO
) -> Iterator[_Clean]:
    if form is Values.TEXT:
        text, counts = redactor.text(_decoded(source.read(), name))
        yield _Clean(text, redactor.receipt(counts))
        return
    for value in _values(form, name, source):
        clean, counts = redactor.value(value)
        yield _Clean(clean, redactor.receipt(counts))


def _values(form: Values, name: str, source: BinaryIO) -> Iterator[Any]:
    if form is Values.JSON:
        yield _parsed(source.read(), name)
        return
    for number, line in enumerate(source, start=1):
        if line.strip():
            yield _parsed(line, f"{name} line {number}")


def _parsed(data: bytes, where: str) -> Any:
    text = _decoded(data, where).removeprefix("\ufeff")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"{error.msg.partition(':')[0]}, column {error.colno}"
        why = f"is not JSON ({place})"
    except RecursionError:
        why = "is nested too deeply"
    except ValueError:
        why = "holds a number with too many digits"
    raise RefoldError(f"{where}: {why}: mend it, or read the file with --format text")


def _decoded(data: bytes, where: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise RefoldError(
            f"{where}: byte {error.start} is not UTF-8: convert it first, for instance "
            "with `iconv -f LATIN1 -t UTF-8`"
        ) from None


def _write(clean: _Clean, form: Values, *, as_json: bool) -> None:
    if as_json:
        write_line(_dumped({"value": clean.value, "redaction": clean.receipt}))
    elif form is Values.TEXT:
        sys.stdout.flush()
        sys.stdout.buffer.write(clean.value.encode())
    else:
        write_line(_dumped(clean.value))
    sys.stdout.buffer.flush()


def _dumped(value: Any) -> bytes:
    """Compact JSON; what UTF-8 cannot hold stays as the escape that it came as."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()


@contextmanager
def _input(file: str) -> Iterator[tuple[str, BinaryIO]]:
    if file == "-":
        yield "stdin", sys.stdin.buffer
        return
    with open(file, "rb") as source:
        yield file, source
