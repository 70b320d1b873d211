"""``refold redact --recheck``: the present rules over what is stored already."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import typer

from refold.adapters.cli import opening
from refold.adapters.cli.output import print_json

if TYPE_CHECKING:
    from refold.adapters.cli.screen import Screen
    from refold.redaction.engine import Redactor
    from refold.redaction.guard import Limits
    from refold.store.rechecking import Exposure, Rechecked


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
    from refold.adapters.cli.screen import Screen

    return Screen()


def _session(screen: Screen, one: Rechecked) -> None:
    from refold.adapters.cli.screen import shown
    from refold.adapters.cli.wording import counted

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
    from refold.adapters.cli import wording

    stream = "" if exposure.stream == "main" else f"{exposure.stream[:12]} "
    seq = exposure.where if exposure.seq is None else f"seq {exposure.seq}"
    types = wording.types(exposure.types)
    blobs = wording.counted(exposure.blobs, "blob")
    also = f", also in {blobs}" if exposure.blobs else ""
    screen.line("    ", f"{stream}{seq}  ", (types, "red"), (also, "dim"))


def _total(screen: Screen, found: list[Rechecked], *, apply: bool) -> None:
    from refold.adapters.cli.wording import counted

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
