"""``refold repair``: what is damaged, and what can be made anew from the events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from refold.adapters.cli.options import Call, SomeSession, SomeUser, flag, sessions
from refold.adapters.cli.output import Result, Screen, counted, mark, shown

if TYPE_CHECKING:
    from refold.domain.ports import Damage


def repair(
    call: Call,
    user: SomeUser = None,
    session: SomeSession = None,
    apply: bool = flag("--apply", "Mend what can be mended.  Left out: only say it."),
) -> Result:
    """Say what is damaged, and mend what can be.

    What only repeats the events is made anew from them with --apply: heads, stored
    views, blobs that no event names, keys that a redaction left.  Events are never
    touched: what is wrong with them is told, and stays for `refold verify` to find.
    Exits with 1 if anything is left as it was.
    """
    if session is not None and user is None:
        raise typer.BadParameter("--session needs --user")
    store, looked = call.store(), 0
    found: list[Damage] = []
    for _, damages in store.repair(user, session, apply=apply):
        looked += 1
        found += damages
    if not looked:
        sessions(store, user, session)
    told = {
        "sessions": looked,
        "mended": sum(damage.mended for damage in found),
        "mendable": sum(damage.mendable and not damage.mended for damage in found),
        "lost": sum(not damage.mendable for damage in found),
        "damages": [damage.to_json() for damage in found],
    }
    left = any(not damage.mended for damage in found)
    return Result(told, lambda screen: _show(screen, told, found), int(left))


_FIGURES = {
    "mended": "mended",
    "mendable": "to mend: --apply does it",
    "lost": "beyond repair: restore them from a backup",
}


def _show(screen: Screen, told: dict[str, Any], found: list[Damage]) -> None:
    for damage in found:
        user_id, session_id, stream = damage.stream
        where = f"{user_id} / {session_id}"
        name = shown(where if stream == "main" else f"{where} {stream[:12]}")
        ok = True if damage.mended else None if damage.mendable else False
        screen.line(mark(ok), name, f"  {damage.kind}: ", shown(damage.detail))
    parts = [f"{counted(told['sessions'], 'session')} looked at"]
    parts += [f"{told[name]} {what}" for name, what in _FIGURES.items() if told[name]]
    screen.line("; ".join(parts if found else [*parts, "nothing is damaged"]))
