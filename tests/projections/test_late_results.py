"""A call waits for its result for a number of turns, and stops no compaction after."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import strategies as st

from refold.domain.envelope import Envelope
from refold.domain.events import (
    AgentResponse,
    Event,
    HumanReview,
    SummarizerRef,
    ToolCall,
    ToolResult,
    UserInput,
)
from refold.projections.context.compaction import Source, Written
from refold.projections.context.strategies.composite import ForAgent, for_one
from refold.projections.context.strategies.history_summary import HistorySummary
from refold.projections.context.strategies.hybrid import Hybrid
from refold.projections.context.strategies.last_turns import LastTurns
from refold.projections.context.strategies.message_window import MessageWindow
from refold.projections.context.strategies.recursive_summary import RecursiveSummary
from refold.projections.context.strategies.spec import parse
from refold.projections.context.strategies.token_budget import TokenBudget
from refold.projections.context.strategies.token_ratio import TokenRatio
from refold.projections.context.strategies.turn_window import TurnWindow
from refold.projections.context.strategy import Strategy
from refold.projections.context.text import NO_RESULT, violations
from refold.projections.context.view import View
from tests.projections.laws import under
from tests.projections.logs import Log, call, log_of, result
from tests.projections.walk import Walk, texts, view_of

WORDS = "word " * 30
FULL_TURNS = 2
SPECS = {
    "turn_window": f"turn_window:full_turns={FULL_TURNS},cached_turns=1,"
    "summary_tokens=100,session_memory_tokens=500",
    "message_window": "message_window:context_size=9,tail_keep_size=4,"
    "compression_window_size=3",
    "hybrid": "hybrid:threshold_low=300,threshold_high=600,every=2",
    "recursive_summary": "recursive_summary:every=2,keep_last=2",
    "history_summary": "history_summary:trigger_on_history_size_chars=900,"
    "history_tail_size_chars_to_exclude=300",
    "token_ratio": "token_ratio:max_context_tokens=900,keep_recent_turns=2",
    "last_turns": "last_turns:n=3",
    "token_budget": "token_budget:max_tokens=400",
    "pipeline": "tool_clearing:trigger_tool_uses=2,keep=1+turn_window:"
    "full_turns=2,cached_turns=1,summary_tokens=100,session_memory_tokens=500",
}
STRATEGIES_OF_SPECS = {
    **{name: parse(spec) for name, spec in SPECS.items()},
    "for_agent": for_one("helper", parse(SPECS["turn_window"])),
}
every = partial(under, STRATEGIES_OF_SPECS, examples=8)


def turn(number: int) -> list[Event]:
    return [
        UserInput(text=f"question {number} {WORDS}"),
        AgentResponse(text=f"answer {number} {WORDS}"),
    ]


def turns(count: int) -> list[Event]:
    events: list[Event] = []
    for number in range(count):
        events += turn(number)
    return events


def ask(call_id: str = "slow") -> list[Event]:
    return [AgentResponse(text="I wait for it."), call(call_id)]


def view_at_end(strategy: Strategy, events: Sequence[Event]) -> View:
    walk = Walk(strategy).go(log_of(*events))
    walk.check()
    return walk.view()


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("late", [30, None])
def test_a_late_or_missing_result_leaves_views_as_small_as_without(
    spec: str, late: int | None
) -> None:
    with_call = [UserInput(text="Start."), *ask(), *turns(30)]
    if late:
        with_call.append(result("slow"))
    without_call = [UserInput(text="Start."), *turns(60)]

    view = view_at_end(parse(spec), [*with_call, *turns(30)])

    largest = view_at_end(parse(spec), without_call).tokens
    assert view.tokens <= 1.3 * largest + 100


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_compaction_after_a_late_result_covers_what_one_before_would(
    spec: str,
) -> None:
    strategy = parse(spec)
    events = log_of(
        UserInput(text="Start."), *ask(), *turns(30), result("slow"), *turns(30)
    )
    walk = Walk(strategy)
    # Nothing is compacted until the end, as after an import.
    walk.events = events
    walk.outline = strategy.read(strategy.begin(), events)

    for _ in range(60):
        walk.check()

    # The words of the user stay, whatever is compacted.
    tokens = walk.view().tokens - walk.outline.protected_tokens
    assert tokens <= view_of(parse("keep_all"), events).tokens / 2


@pytest.mark.parametrize("late", ["result", "decision"])
def test_a_late_answer_is_a_note_and_its_call_keeps_the_placeholder(late: str) -> None:
    opens: list[Event] = [AgentResponse(text="I wait."), call("slow")]
    closes: Event = result("slow", "It is done.")
    if late == "decision":
        opens.append(HumanReview(trigger="risk", question="May I?"))
        closes = HumanReview(trigger="risk", decision="It is done.", refers_to=4)
    events = [UserInput(text="Start."), *opens, *turns(4), closes]

    view = view_of(parse("keep_all"), log_of(*events))

    assert NO_RESULT in texts(view)
    assert "It is done." in texts(view)
    assert violations(view.messages) == []
    assert "It is done." in str(view.messages[-1])


def test_a_call_waits_through_open_calls_after_turns() -> None:
    inputs = [UserInput(text=f"more {number}") for number in range(5)]

    def kinds(strategy: Strategy, waits: int) -> list[bool]:
        events = [UserInput(text="Start."), *ask(), *inputs[:waits], result("slow")]
        view = view_of(strategy, log_of(*events))
        return [NO_RESULT in texts(view), "late_result" in texts(view)]

    assert kinds(parse("keep_all"), 3) == [False, False]
    assert kinds(parse("keep_all"), 4) == [True, True]
    assert kinds(parse("keep_all:open_calls_after=1"), 2) == [True, True]
    assert kinds(parse({"name": "keep_all", "version": 1}), 4) == [False, False]


def test_turns_that_tools_always_straddle_are_compacted() -> None:
    """A user who writes while tools run leaves no legal cut between turns."""
    log = Log()
    log.add(UserInput(text="Start."))
    for number in range(30):
        log.add(AgentResponse(text=f"step {number} {WORDS}"))
        log.add(call(f"c{number}"))
        log.add(UserInput(text=f"And {number}?"))
        log.add(result(f"c{number}", f"output {number}"))
    walk = Walk(STRATEGIES_OF_SPECS["turn_window"]).go(log.events)
    walk.check()

    outline = walk.outline

    assert outline.complete_turns - outline.compacted_turns <= FULL_TURNS
    assert violations(walk.view().messages) == []
    newest = log.events[-1]
    assert isinstance(newest.payload, ToolResult)
    assert "late_result" not in texts(walk.view())


def test_token_budget_reports_the_excess_of_open_calls() -> None:
    calls: list[Event] = []
    for number in range(20):
        calls += [AgentResponse(text=WORDS), call(f"c{number}")]
    events = [*turns(10), UserInput(text="Go on."), *calls]

    view = view_at_end(TokenBudget(max_tokens=400), events)

    assert view.over_budget == view.tokens - 400 > 0
    closed = view_at_end(TokenBudget(max_tokens=400), [*events, *turns(5)])
    assert closed.over_budget == 0
    assert closed.tokens <= 400


def test_token_ratio_reports_the_excess_over_the_window() -> None:
    view = view_of(TokenRatio(max_context_tokens=500), log_of(*turns(10)))

    assert view.over_budget == view.tokens - 500 > 0


@st.composite
def histories(draw: st.DrawFn) -> list[Envelope]:
    """Draw a session with calls whose results come late, twice, or never."""
    log = Log()
    log.add(UserInput(text="Start."))
    for number in range(draw(st.integers(10, 40))):
        agent = draw(st.sampled_from([None, None, "helper"]))
        step = draw(st.sampled_from(["turn", "turn", "steer", "call", "ask", "answer"]))
        open_calls = list(log.state.open_calls)
        if step == "turn":
            for event in turn(number):
                log.add(event, agent=agent)
        elif step == "steer":
            log.add(UserInput(text=f"steer {number}"), agent=agent)
        elif step == "call":
            log.add(AgentResponse(text=f"step {number}"), agent=agent)
            for parallel in range(draw(st.integers(1, 2))):
                log.add(call(f"c{number}.{parallel}"), agent=agent)
        elif step == "ask":
            log.add(HumanReview(trigger="risk", question=WORDS), agent=agent)
        elif open_calls:
            call_id = draw(st.sampled_from(open_calls))
            log.add(result(call_id, WORDS), agent=agent)
            if draw(st.booleans()):
                # The id is used again, as gateways do.
                log.add(AgentResponse(text="again"), agent=agent)
                log.add(call(call_id), agent=agent)
                log.add(result(call_id, "second"), agent=agent)
    return log.events


@every(events=histories())
def test_every_view_fits_or_reports_its_excess(
    strategy: Strategy, events: list[Envelope]
) -> None:
    walk = Walk(strategy)

    for event in events:
        walk.step(event)
        walk.check()
        view = walk.view()

        assert violations(view.messages) == []
        _check_bound(strategy, walk, view)


def _check_bound(strategy: Strategy, walk: Walk, view: View) -> None:
    waits = _waiting(walk.events, 3)
    inputs = [e.seq for e in walk.events if isinstance(e.payload, UserInput)]
    match strategy.strategy if isinstance(strategy, ForAgent) else strategy:
        case TurnWindow(full_turns=full, cached_turns=cached):
            outline = walk.outline
            assert outline.complete_turns - outline.compacted_turns < full + cached
        case LastTurns(n=n):
            if not waits and len(inputs) >= n:
                assert view.spans[0].first == inputs[-n]
        case TokenBudget(max_tokens=most):
            assert view.tokens <= most + view.over_budget
            if not waits:
                newest = walk.outline.units[-1].tokens
                assert view.over_budget <= newest + _tokens_of_input(walk)
        case TokenRatio(max_context_tokens=int(window)):
            assert view.tokens <= window + view.over_budget
        case Hybrid(threshold_high=high):
            if not waits:
                assert view.tokens - walk.outline.summary_tokens <= 2 * high
        case HistorySummary() as history:
            if not waits:
                chars = sum(unit.chars for unit in walk.outline.units)
                assert chars <= 2 * history.trigger_on_history_size_chars
        case RecursiveSummary(every=batch, keep_last=keep):
            if not waits:
                assert len(walk.outline.units) <= keep + 2 * batch + _tied(walk)
        case MessageWindow(context_size=most):
            if not waits:
                assert sum(unit.messages for unit in walk.outline.units) <= 2 * most


def _waiting(events: Sequence[Envelope], limit: int) -> list[int]:
    """The seqs of calls and questions that may still stay raw: they wait."""
    turn_number = 0
    asked: dict[Any, tuple[int, int]] = {}
    for event in events:
        match event.payload:
            case UserInput():
                turn_number += 1
            case ToolCall(call_id=call_id):
                asked[call_id] = (event.seq, turn_number)
            case ToolResult(call_id=call_id):
                asked.pop(call_id, None)
            case HumanReview(decision=None):
                asked[event.seq] = (event.seq, turn_number)
    return [seq for seq, opened in asked.values() if turn_number - opened <= limit]


def _tied(walk: Walk) -> int:
    """The number of exchanges that the newest in-time answer joins."""
    ties = walk.outline.waiting.ties
    return sum(
        1 for unit in walk.outline.units if any(a <= unit.first <= b for a, b in ties)
    )


def _tokens_of_input(walk: Walk) -> int:
    newest = walk.outline.user_seq
    for event in walk.events:
        if event.seq == newest:
            return event.token_estimate + 10
    return 0


class InShort:
    """A summarizer that always writes the same text."""

    def summarise(self, source: Source, *, target_tokens: int) -> Written:
        return Written("Earlier.", SummarizerRef(kind="test"))


OLD = log_of(
    UserInput(text="Start."),
    *ask(),
    *turns(6),
    result("slow"),
    *turns(3),
    *ask("never"),
    *turns(8),
)


@pytest.mark.parametrize(
    ("name", "params", "digest"),
    [
        ("keep_all", {}, "1f09cd87e4d774f6"),
        ("turn_window", {"full_turns": 2, "cached_turns": 1}, "a44ab76a688d3f12"),
        (
            "message_window",
            {"context_size": 9, "tail_keep_size": 4, "compression_window_size": 3},
            "3ecf5b217383fd8a",
        ),
        ("recursive_summary", {"every": 2, "keep_last": 2}, "3d83f88ceaf53515"),
        ("last_turns", {"n": 3}, "244c8835c5111772"),
        ("token_budget", {"max_tokens": 400}, "19e5e48233ae0386"),
    ],
)
def test_version_1_shows_the_same_bytes_as_before(
    name: str, params: dict[str, Any], digest: str
) -> None:
    strategy = parse({"name": name, "version": 1, "params": params})
    walk = Walk(strategy, summarizer=InShort()).go(OLD)
    walk.check()

    view = walk.view()

    assert view.digest.startswith(digest)
    assert strategy.params == params | strategy.params
    assert "open_calls_after" not in strategy.params
    assert parse(strategy.definition) == strategy
