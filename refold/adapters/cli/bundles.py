"""A review bundle on the screen: what was found, where, and what happened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from refold.adapters.cli.previews import OTHER_STYLE, STYLES, preview
from refold.adapters.cli.screen import Screen, shown_in_line
from refold.adapters.cli.wording import counted
from refold.projections.review.bundle import fires_again

if TYPE_CHECKING:
    from refold.projections.review.bundle import Bundle, Entry

_DIGEST, _TALL = 12, 12


def show_bundle(screen: Screen, bundle: Bundle) -> bool:
    """Print it; returns whether its rule fires again on its events.

    Raises InvalidEvent, before anything is printed, if an event in it is none.
    """
    again = fires_again(bundle)
    _facts(screen, bundle)
    last = 0
    for entry in bundle.events:
        if last and entry.seq > last + 1:
            screen.line(("…", "dim"))
        _entry(screen, entry, marked=entry.seq in bundle.where.seqs)
        last = entry.seq
    if bundle.left_out:
        screen.line(
            (f"{counted(bundle.left_out, 'event')} of the turn left out", "dim")
        )
    verdict = "fires again" if again else "does not fire again"
    if bundle.refused:
        screen.line("no events: ", shown_in_line(bundle.refused))
    screen.line(f"the rule {verdict} on these events (*)")
    return again


def _facts(screen: Screen, bundle: Bundle) -> None:
    where, rule = bundle.where, bundle.rule
    name = shown_in_line(rule.get("name", "?"))
    name.stylize("bold")
    screen.line(name, "  ", shown_in_line(bundle.says))
    place = f"{where.user_id} / {where.session_id}, seq {where.first_seq}"
    until = "" if where.at_seq == where.first_seq else f" to {where.at_seq}"
    screen.line("where     ", shown_in_line(place + until))
    steps: Any = rule.get("steps") or ["none"]
    screen.line("before    ", shown_in_line(", ".join(map(str, steps))))
    made = f"refold {bundle.refold}, rules {bundle.rules[:_DIGEST]}"
    screen.line("asked by  ", shown_in_line(made))
    sent = _sent(bundle)
    if sent:
        screen.line("sent      ", shown_in_line(sent))


def _sent(bundle: Bundle) -> str:
    """What the model was sent: by which strategy, and the digests of it."""
    strategy: Any = bundle.strategy or {}
    parts = {
        "strategy": strategy.get("name"),
        "model": bundle.model,
        "request": bundle.request_digest and bundle.request_digest[:_DIGEST],
        "system": bundle.system_digest and bundle.system_digest[:_DIGEST],
    }
    return ", ".join(f"{key} {value}" for key, value in parts.items() if value)


def _entry(screen: Screen, entry: Entry, *, marked: bool) -> None:
    said = preview(entry.event())
    style = "bold red" if said.failed else STYLES.get(entry.type, OTHER_STYLE)
    sign = "*" if marked else " "
    agent = f"  agent {entry.agent}" if entry.agent else ""
    warned = "".join(f"  [{warning.code}]" for warning in entry.warnings)
    about = shown_in_line(f"  {said.note}{agent}{warned}")
    screen.line((f"{entry.seq:>5}", "dim"), f" {sign} ", (entry.type, style), about)
    screen.body(said.body, indent=" " * 8, tall=_TALL)
