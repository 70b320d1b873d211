"""A comparison as people read it: a line for each strategy, in 100 columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from rich.text import Text

from refold.adapters.cli.output import visible
from refold.adapters.cli.wording import counted, number

if TYPE_CHECKING:
    from refold.adapters.cli.screen import Screen
    from refold.projections.compare.outcome import Outcome
    from refold.store.comparing import Compared

_COLUMNS: Final = (
    "strategy",
    "#tokens",
    "#peak",
    "#cached",
    "#written",
    "#uncached",
    "#compactions",
    "#cost $",
    "#recall",
)
_DASH: Final = "–"


def show_comparison(screen: Screen, compared: Compared) -> None:
    """Print the table, and below it what its figures mean."""
    outcomes = compared.outcomes
    first = outcomes[0] if outcomes else None
    screen.line(
        (counted(len(first.sent) if first else 0, "request"), "bold"),
        f" in {counted(compared.events, 'event')}, ",
        f"{counted(first.references if first else 0, 'reference')} back; ",
        f"prices and cache of {compared.model.name}",
    )
    screen.line("")
    screen.table(_COLUMNS, (_row(outcome, outcomes) for outcome in outcomes))
    screen.line("")
    for line in _notes(compared):
        screen.line((line, "dim"))


def _row(outcome: Outcome, outcomes: Sequence[Outcome]) -> list[str | Text]:
    return [
        visible(outcome.label),
        number(outcome.tokens_total),
        number(outcome.tokens_peak),
        _share(outcome.cached, outcome.tokens_total),
        _share(outcome.cache_writes, outcome.tokens_total),
        _share(outcome.uncached, outcome.tokens_total),
        number(len(outcome.compactions)) if outcome.compactions else _DASH,
        _best(outcome.cost, [one.cost for one in outcomes]),
        _DASH
        if outcome.reference_recall is None
        else f"{outcome.reference_recall:.1%}",
    ]


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else _DASH


def _best(cost: float | None, costs: Sequence[float | None]) -> Text:
    """A cost; the lowest stands out."""
    if cost is None:
        return Text(_DASH)
    lowest = min(one for one in costs if one is not None)
    return Text(_dollars(cost), "bold" if cost == lowest else "")


def _dollars(cost: float) -> str:
    return f"{cost:,.2f}" if cost >= 100 else f"{cost:.4f}"


def _notes(compared: Compared) -> list[str]:
    notes = [
        "Tokens are those sent, in shares: read from the prompt cache, written to it, "
        "and neither.",
        "Cost is that of the prompts.  Recall: how much of what the agent referred "
        "back to it was shown.",
    ]
    made = [one for one in compared.outcomes if one.done]
    if made:
        notes.append("Summaries took no model.  One at these prices would add:")
        notes += [_added(one) for one in made]
    over = [one for one in compared.outcomes if one.over_budget]
    notes += [
        f"{visible(one.label)} is over the window by up to {number(one.over_budget)} "
        "tokens"
        for one in over
    ]
    return notes


def _added(outcome: Outcome) -> str:
    cost = outcome.summarizer_cost
    price = "" if cost is None else f"${_dollars(cost)}, "
    failed = len(outcome.done) - len(outcome.compactions)
    calls = counted(len(outcome.done), "call")
    return (
        f"  {visible(outcome.label)}: {price}{calls}, "
        f"{number(outcome.summarizer_tokens)} tokens"
        + (f"; {failed} of them failed" if failed else "")
    )
