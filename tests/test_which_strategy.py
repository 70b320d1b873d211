"""The page on choosing a strategy shows current figures."""

from __future__ import annotations

import re

from refold.projections.compare import Outcome
from tools import strategy_figures
from tools.strategy_figures import PAGE, long, short


def by_name(outcomes: tuple[Outcome, ...]) -> dict[str, Outcome]:
    return {outcome.name: outcome for outcome in outcomes}


def price(outcome: Outcome) -> float:
    assert outcome.cost is not None
    return outcome.cost


def with_summaries(outcome: Outcome) -> float:
    assert outcome.summarizer_cost is not None
    return price(outcome) + outcome.summarizer_cost


def test_its_figures_are_those_of_compare() -> None:
    text = PAGE.read_text("utf-8")

    assert strategy_figures.page(text) == text, "`make fix` writes them anew"


def test_the_text_on_short_sessions_follows_from_the_figures() -> None:
    outcomes = by_name(short().outcomes)

    assert min(outcomes.values(), key=price).name == "keep_all"
    assert (
        max(outcomes.values(), key=lambda outcome: outcome.tokens_total).name
        == "keep_all"
    )
    assert max(outcomes.values(), key=price).name == "token_budget"


def test_the_page_names_the_strategies_that_cost_less_and_more() -> None:
    outcomes = by_name(long().outcomes)
    keep = price(outcomes.pop("keep_all"))
    no_model = {"tool_clearing", "last_turns", "token_budget"}  # they write nothing
    cheaper = set[str]()
    cheaper_without_model = set[str]()
    dearer = set[str]()

    for name, outcome in outcomes.items():
        with_model = price(outcome) if name in no_model else with_summaries(outcome)
        if with_model < keep:
            cheaper.add(name)
        elif price(outcome) < keep:
            cheaper_without_model.add(name)
        else:
            dearer.add(name)

    text = PAGE.read_text("utf-8").partition("Compared with `keep_all`:")[2]
    bullets = text.split("\n- ")[1:4]
    named = [set(re.findall(r"`(\w+)`", bullet.split("\n\n")[0])) for bullet in bullets]
    assert named == [cheaper, cheaper_without_model, dearer]


def test_the_text_on_longer_sessions_follows_from_the_figures() -> None:
    outcomes = by_name(long().outcomes)
    keep = price(outcomes["keep_all"])
    saving = {"turn_window", "hybrid", "recursive_summary", "history_summary"}

    assert all(price(outcomes[name]) < keep for name in saving)
    many_summaries = {"hybrid", "recursive_summary"}
    by_model = saving - many_summaries
    assert all(with_summaries(outcomes[name]) < keep for name in by_model)
    assert all(
        keep < with_summaries(outcomes[name]) < 1.1 * keep for name in many_summaries
    )
    recall = {name: outcome.reference_recall or 0 for name, outcome in outcomes.items()}
    assert min(recall[name] for name in saving) > 0.9
    turn_window = outcomes["turn_window"]
    assert recall["turn_window"] >= 0.94
    assert turn_window.tokens_total <= 0.5 * outcomes["keep_all"].tokens_total
    assert price(turn_window) <= 0.75 * keep
    assert min(recall, key=lambda name: recall[name]) == "last_turns"
