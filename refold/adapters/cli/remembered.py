"""Memory on the screen: items, one item with its events, advice, and its effect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from refold.adapters.cli.output import print_json
from refold.adapters.cli.previews import preview
from refold.adapters.cli.screen import Screen, shown
from refold.adapters.cli.wording import counted
from refold.projections.memory.advice import Choosing, why_not
from refold.projections.memory.telling import said

if TYPE_CHECKING:
    from collections.abc import Sequence

    from refold.projections.memory.advice import Advice
    from refold.projections.memory.item import Item
    from refold.store import SessionStore
    from refold.store.remembering import Memory

_SHOWN, _LINE = 30, 100


def show_items(found: Memory, items: Sequence[Item], as_json: bool) -> None:
    """A line an item, the surest first."""
    if as_json:
        print_json([one.to_json() for one in items])
        return
    screen = Screen()
    rows = [
        (
            one.memory_id,
            one.kind,
            shown(one.scenario),
            shown(said(one)),
            str(one.sessions),
            "" if one.success is None else f"{one.success:.0%}",
            f"{one.confidence:.2f}",
        )
        for one in items[:_SHOWN]
    ]
    head = ("item", "kind", "scenario", "what", "#sessions", "#success", "#confidence")
    if rows:
        screen.table(head, rows)
    if len(items) > _SHOWN:
        screen.line((f"and {len(items) - _SHOWN} more: --json has all", "dim"))
    if found.opted_out:
        screen.line("the user opted out of memory: there is none")
        return
    ended = "" if found.success is None else f", {found.success:.0%} of them went well"
    screen.line(
        f"{counted(len(items), 'item')} of {counted(found.sessions, 'session')}{ended}"
    )


def show_item(store: SessionStore, found: Memory, one: Item, as_json: bool) -> None:
    """What an item says, whether it may be said to a model, and the events behind."""
    now = store.clock()
    reasons = why_not(one, now=now, threshold=Choosing().threshold, means=found.means)
    events = [
        envelope
        for evidence in one.evidence
        for seq in evidence.seqs
        for envelope in store.session(found.user_id, evidence.session_id).events(
            after=seq - 1, limit=1
        )
    ]
    if as_json:
        told = [envelope.to_json() for envelope in events]
        print_json({**one.to_json(), "not_said": list(reasons), "events": told})
        return
    screen = Screen()
    _facts(screen, found, one, reasons)
    for envelope in events:
        note, body, _ = preview(envelope.payload)
        place = f"{envelope.session_id} seq {envelope.seq}  {envelope.type}  {note}"
        line = next(iter(body.splitlines()), "")
        screen.line(shown(place), "  ", (line[:_LINE], "dim"))


def _facts(screen: Screen, found: Memory, one: Item, reasons: Sequence[str]) -> None:
    told = one.to_json()
    screen.line(shown(said(one)))
    mean = found.means.get(one.scenario)
    if one.success is not None and mean is not None:
        screen.line(f"success {one.success:.0%}, of all sessions {mean:.0%}")
    screen.line(f"at least {one.confidence:.0%}, by {one.sessions} sessions")
    screen.line(f"seen {told['created_at']} to {told['updated_at']}")
    if not reasons:
        screen.line(f"may be said to a model until {told['expires_at']}")
    for reason in reasons:
        screen.line(f"not said to a model: {reason}")


def show_advice(advice: Advice, as_json: bool) -> None:
    """The section as a model is sent it."""
    if as_json:
        out = list(advice.left_out)
        print_json({**advice.handed(), "tokens": advice.tokens, "left_out": out})
        return
    screen = Screen()
    for line in advice.text.splitlines():
        screen.line(shown(line))
    count = counted(len(advice.items), "item")
    left = f", {len(advice.left_out)} left out" if advice.left_out else ""
    screen.line((f"{count}, {advice.tokens} tokens{left}", "dim"))


def show_effect(found: Memory, as_json: bool) -> None:
    """How sessions ended that were shown an item, against those that were not."""
    if as_json:
        print_json([lift.to_json() for lift in found.effect])
        return
    screen = Screen()
    rows = []
    for lift in found.effect[:_SHOWN]:
        item = found.named(lift.memory_id)
        rows.append(
            (
                lift.memory_id,
                shown(said(item)) if item else "(not there any more)",
                str(lift.shown),
                _percent(lift.success),
                str(lift.without),
                _percent(lift.otherwise),
                _between(lift.low, lift.high),
                _number(lift.iterations),
                _number(lift.iterations_otherwise),
            )
        )
    head = ("item", "what", "#shown", "#success", "#without", "#success")
    more = ("#difference", "#reflections", "#without")
    if rows:
        screen.table((*head, *more), rows)
    count = counted(len(found.effect), "item")
    screen.line(f"{count} were shown in sessions that ended; shown is not caused by")


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _between(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{low:+.0%} to {high:+.0%}"
