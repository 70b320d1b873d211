"""``refold repair``: what is damaged, and what can be made anew from the events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold.adapters.cli import options as opening
from refold.adapters.cli.options import Json, SomeSession, SomeUser
from refold.adapters.cli.output import print_json

if TYPE_CHECKING:
    from refold.adapters.cli.output import Screen
    from refold.domain.ports import Damage


def repair(
    context: typer.Context,
    user: SomeUser = None,
    session: SomeSession = None,
    apply: Annotated[
        bool,
        typer.Option("--apply", help="Mend what can be mended. Left out: only say it."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Say what is damaged in stored sessions, and with --apply mend what can be.

    What only repeats the events is made anew from them: heads, stored views, blobs
    that no event names, keys that a redaction left. Events are never touched: what is
    wrong with them is told, and stays for `refold verify` to find. Exits with 1 if
    anything is left as it was.
    """
    if session is not None and user is None:
        raise typer.BadParameter("--session needs --user")
    with opening.existing(context) as store:
        looked = 0
        found: list[Damage] = []
        for _, damages in store.repair(user, session, apply=apply):
            looked += 1
            found += damages
        if not looked:
            opening.sessions(store, user, session)
    left = [damage for damage in found if not damage.mended]
    if as_json:
        print_json(_as_json(looked, found))
    else:
        _show(looked, found)
    if left:
        raise typer.Exit(1)


def _as_json(looked: int, found: list[Damage]) -> dict[str, Any]:
    return {
        "sessions": looked,
        "mended": sum(damage.mended for damage in found),
        "mendable": sum(damage.mendable and not damage.mended for damage in found),
        "lost": sum(not damage.mendable for damage in found),
        "damages": [damage.to_json() for damage in found],
    }


def _show(looked: int, found: list[Damage]) -> None:
    from refold.adapters.cli.output import Screen, counted

    screen = Screen()
    for damage in found:
        _line(screen, damage)
    figures = _as_json(looked, found)
    parts = [f"{counted(looked, 'session')} looked at"]
    parts += [
        f"{figures[name]} {what}"
        for name, what in (
            ("mended", "mended"),
            ("mendable", "to mend: --apply does it"),
            ("lost", "beyond repair: restore them from a backup"),
        )
        if figures[name]
    ]
    nothing = [] if found else ["nothing is damaged"]
    screen.line("; ".join([*parts, *nothing]))


def _line(screen: Screen, damage: Damage) -> None:
    from refold.adapters.cli.output import shown

    user_id, session_id, stream = damage.stream
    where = f"{user_id} / {session_id}"
    name = shown(where if stream == "main" else f"{where} {stream[:12]}")
    if damage.mended:
        mark = ("✓ ", "bold green")
    elif damage.mendable:
        mark = ("! ", "bold yellow")
    else:
        mark = ("✗ ", "bold red")
    screen.line(mark, name, f"  {damage.kind}: ", shown(damage.detail))
