"""The sections of a context, each within its budget, added up to one view.

What is cut is only what was handed in, whole items of it, and every cut is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from refold.domain.envelope import Envelope
from refold.domain.errors import InvalidEvent
from refold.domain.tokens import MESSAGE_OVERHEAD, estimate, estimate_text
from refold.projections.context.extras import NO_EXTRAS, SECTIONS, Extras
from refold.projections.context.outline import Outline
from refold.projections.context.render import render
from refold.projections.context.strategy import Strategy
from refold.projections.context.view import Cut, Message, View
from refold.projections.memory.section import cost as advice_cost

Budgets = Mapping[str, int]
NO_BUDGETS: Final[Budgets] = MappingProxyType({})
# What goes first when the whole is too much.
_GIVEN_UP: Final = ("evidence", "examples", "memory", "advice")


def assembled(
    strategy: Strategy,
    outline: Outline,
    events: Iterable[Envelope],
    *,
    summaries: Iterable[Envelope] = (),
    extras: Extras = NO_EXTRAS,
    budgets: Budgets = NO_BUDGETS,
) -> View:
    """The view, with of ``extras`` what fits; ``cuts`` says what does not, and why.

    A section over its budget loses its last items.  If the whole is over the window,
    evidence goes first, then examples, memory and advice, last items first.  What the
    session holds is never cut here; nor are system, tools and state: that they are too
    large is told, and ``over_budget`` says by how much the whole is.

    The view's extras are those that fit: made of them, it is the same again.

    Raises InvalidEvent for a budget of no section, or below 0.
    """
    _check(budgets)
    events, summaries = list(events), list(summaries)
    fitting, cuts = _within_budgets(extras, budgets)
    view = render(strategy, outline, events, summaries=summaries, extras=fitting)
    if view.over_budget:
        fitting, more = _within_window(fitting, view)
        cuts += more
        if fitting != view.extras:
            view = render(
                strategy, outline, events, summaries=summaries, extras=fitting
            )
    return replace(view, cuts=tuple(cuts))


def _check(budgets: Budgets) -> None:
    for name, budget in budgets.items():
        if name not in SECTIONS:
            known = ", ".join(SECTIONS)
            raise InvalidEvent(
                f"budgets: there is no section {name!r} (there is: {known})"
            )
        if not isinstance(budget, int) or budget < 0:
            raise InvalidEvent(f"budgets: {name} must be 0 tokens or more")


def _within_budgets(extras: Extras, budgets: Budgets) -> tuple[Extras, list[Cut]]:
    cuts: list[Cut] = []
    for name, budget in budgets.items():
        items = _items(extras, name)
        tokens = sum(cost for _, cost in items)
        if tokens <= budget:
            continue
        if name not in _GIVEN_UP:
            cuts.append(Cut(name, tokens, budget, "sent whole: it cannot be cut"))
            continue
        left, kept = budget, 0
        for _, cost in items:
            left -= cost
            if left < 0:
                break
            kept += 1
        extras = _keep(extras, name, items[:kept])
        cuts.append(Cut(name, tokens, budget, _left_out(len(items) - kept, items)))
    return extras, cuts


def _within_window(extras: Extras, view: View) -> tuple[Extras, list[Cut]]:
    over, window, cuts = view.over_budget, extras.window_tokens, []
    for name in _GIVEN_UP:
        items = _items(extras, name)
        kept = len(items)
        while kept and over > 0:
            kept -= 1
            over -= items[kept][1]
        if kept < len(items):
            tokens = sum(cost for _, cost in items)
            why = f"the whole is over the window: {_left_out(len(items) - kept, items)}"
            cuts.append(Cut(name, tokens, max(0, tokens - view.over_budget), why))
            extras = _keep(extras, name, items[:kept])
    if over > 0:
        why = "sent whole: only what is handed in can be left out; compact the session"
        cuts.append(Cut("whole", view.tokens, window, why))
    return extras, cuts


def _items(extras: Extras, name: str) -> list[tuple[tuple[Any, ...], int]]:
    """What of a section is kept or left out together, with its cost."""
    match name:
        case "examples":
            groups = _groups(extras.examples)
            return [
                (group, sum(estimate(m["content"]) + MESSAGE_OVERHEAD for m in group))
                for group in groups
            ]
        case "memory":
            texts = extras.memory
            return [((t,), estimate_text(t) + MESSAGE_OVERHEAD) for t in texts]
        case "evidence":
            return [((t,), estimate_text(t)) for t in extras.evidence]
        case "advice":
            text = extras.advice_text
            return [((extras.advice,), advice_cost(text))] if text else []
    value = getattr(extras, name)
    return [((value,), estimate(value))] if value else []


def _groups(messages: Sequence[Message]) -> list[tuple[Message, ...]]:
    """Examples, each from a question of the user to before the next."""
    groups: list[tuple[Message, ...]] = []
    for message in messages:
        if groups and not _asks(message):
            groups[-1] = (*groups[-1], message)
        else:
            groups.append((message,))
    return groups


def _asks(message: Message) -> bool:
    content = message["content"]
    return message["role"] == "user" and not (
        isinstance(content, list)
        and any(block["type"] == "tool_result" for block in content)
    )


def _keep(
    extras: Extras, name: str, items: Iterable[tuple[tuple[Any, ...], int]]
) -> Extras:
    kept = tuple(one for group, _ in items for one in group)
    if name == "advice":
        return replace(extras, advice=kept[0] if kept else None)
    changed: dict[str, Any] = {name: kept}
    return replace(extras, **changed)


def _left_out(count: int, items: Sequence[object]) -> str:
    return f"the last {count} of {len(items)} left out"
