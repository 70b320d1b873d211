"""Memory on the screen: items, one item with its events, advice, and its effect."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from refold.adapters.cli.output import print_json
from refold.adapters.cli.previews import preview
from refold.adapters.cli.profile import kind_of, unsaid
from refold.adapters.cli.screen import Screen, shown
from refold.adapters.cli.wording import counted
from refold.domain.errors import RefoldError
from refold.projections.memory.advice import Choosing, why_not
from refold.projections.memory.declared.said import told
from refold.projections.memory.telling import said

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from refold.domain.envelope import Envelope
    from refold.projections.memory.item import Item
    from refold.projections.memory.section import Advice
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


class _Opened(NamedTuple):
    """One item: what it says, why it is not said to a model, and what else is told."""

    item: Item
    says: str
    not_said: list[str]
    facts: list[str]


def show_item(store: SessionStore, user: str, name: str, as_json: bool) -> None:
    """What an item says, whether it may be said to a model, and the events behind.

    Raises RefoldError if there is none of that name.
    """
    opened = _procedural(store, user, name) or _declarative(store, user, name)
    if opened is None:
        raise RefoldError(
            f"there is no item {name!r}: `refold memory --all` and `refold memory "
            "--profile` list those there are"
        )
    events = list(_events(store, opened.item))
    if as_json:
        shows = [envelope.to_json() for envelope in events]
        reasons = opened.not_said
        print_json({**opened.item.to_json(), "not_said": reasons, "events": shows})
        return
    screen = Screen()
    _facts(screen, opened)
    for envelope in events:
        note, body, _ = preview(envelope.payload)
        place = f"{envelope.session_id} seq {envelope.seq}  {envelope.type}  {note}"
        line = next(iter(body.splitlines()), "")
        screen.line(shown(place), "  ", (line[:_LINE], "dim"))


def _procedural(store: SessionStore, user: str, name: str) -> _Opened | None:
    found, now = store.memory(user), store.clock()
    one = found.named(name)
    if one is None:
        return None
    reasons = why_not(one, now=now, threshold=Choosing().threshold, means=found.means)
    facts, mean = [], found.means.get(one.scenario)
    if one.success is not None and mean is not None:
        facts.append(f"success {one.success:.0%}, of all sessions {mean:.0%}")
    facts.append(_sure(one))
    return _Opened(one, said(one), reasons, facts)


def _declarative(store: SessionStore, user: str, name: str) -> _Opened | None:
    found, now = store.profile(user), store.clock()
    one = next((one for one in found.items if one.memory_id == name), None)
    if one is None:
        return None
    own = {"preference": "the user's own word", "mistake": "one event"}
    facts = [own.get(one.kind) or _sure(one)]
    says = f"{kind_of(one)}: {told(one)}"
    return _Opened(one, says, unsaid(found, one, now), facts)


def _sure(one: Item) -> str:
    return f"at least {one.confidence:.0%}, by {counted(one.sessions, 'session')}"


def _events(store: SessionStore, one: Item) -> Iterator[Envelope]:
    for evidence in one.evidence:
        session = store.session(one.user_id, evidence.session_id)
        for seq in evidence.seqs:
            yield from session.events(after=seq - 1, limit=1)


def _facts(screen: Screen, opened: _Opened) -> None:
    item = opened.item.to_json()
    screen.line(shown(opened.says))
    for fact in opened.facts:
        screen.line(fact)
    screen.line(f"seen {item['created_at']} to {item['updated_at']}")
    if not opened.not_said:
        screen.line(f"may be said to a model until {item['expires_at']}")
    for reason in opened.not_said:
        screen.line(f"not said to a model: {reason}")


def show_advice(advice: Advice, as_json: bool) -> None:
    """The section as a model is sent it."""
    if as_json:
        print_json(
            {
                "text": advice.text,
                "items": list(advice.items),
                "tokens": advice.tokens,
                "left_out": list(advice.left_out),
            }
        )
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
