"""Exchanges that are open at a compaction stay raw, even if discovered later."""

from __future__ import annotations

import pytest

from refold.domain.envelope import Envelope
from refold.domain.events import (
    AgentResponse,
    Event,
    HumanReview,
    Reflection,
    ToolCall,
    ToolResult,
    UserInput,
)
from refold.projections.context.compaction import Compaction
from refold.projections.context.outline import Outline, fold_derived
from refold.projections.context.strategies.spec import parse
from refold.projections.context.units import Spans
from tests.projections.logs import log_of
from tests.projections.walk import Walk

STRATEGY = parse("message_window:context_size=9,tail_keep_size=2")
Kept = tuple[Spans, ...]

ASKED = (UserInput(text="go"), AgentResponse(stop_reason="tool_use"))
CALL = ToolCall(call_id="c", tool_name="bash")
RESULT = ToolResult(call_id="c", content="done")
QUESTION = HumanReview(trigger="rule", severity="low", question="May I?")
AFTER = Reflection(issues=("slow",), suggestion="cache it")


def folded(events: list[Envelope], *, through: int, at: int) -> tuple[Outline, Outline]:
    """The outline with a compaction folded at once, and folded after everything."""
    walk = Walk(STRATEGY, events=events[:at])
    walk.outline = STRATEGY.read(STRATEGY.begin(), events[:at])
    walk.compact(Compaction(1, through, 100, at, 10, "by hand"))
    early = STRATEGY.read(walk.outline, events[at:])
    late = fold_derived(STRATEGY.read(STRATEGY.begin(), events), walk.derived[0])
    return early, late


@pytest.mark.parametrize(
    ("log", "cut", "kept"),
    [
        pytest.param((*ASKED, CALL, AFTER, RESULT), 3, (((2, 3),),), id="call"),
        pytest.param(
            (*ASKED, CALL, QUESTION, AFTER, RESULT), 4, (((2, 4),),), id="both"
        ),
        pytest.param((*ASKED, CALL, RESULT, AFTER, AFTER), 4, (), id="answered"),
    ],
)
def test_an_open_exchange_stays_raw_even_if_discovered_late(
    log: tuple[Event, ...], cut: int, kept: Kept
) -> None:
    early, late = folded(log_of(*log), through=cut, at=cut + 1)

    assert early == late
    assert early.kept == kept


def test_a_call_in_a_compacted_response_does_not_restore_it() -> None:
    first = (AgentResponse(text="first"), {"response_id": "r1"})
    events = log_of(first, AFTER, (CALL, {"response_id": "r1"}), RESULT)

    early, late = folded(events, through=1, at=2)

    assert early == late
    assert early.kept == ()


@pytest.mark.parametrize(
    ("opens", "closes"),
    [
        pytest.param(CALL, RESULT, id="result"),
        pytest.param(
            QUESTION,
            HumanReview(
                trigger="rule",
                severity="low",
                question="May I?",
                decision="approve",
                refers_to=3,
            ),
            id="decision",
        ),
    ],
)
def test_no_cut_separates_an_answer_from_its_question(
    opens: Event, closes: Event
) -> None:
    """This holds even where a cut has removed the exchange that both belong to."""
    response = (AgentResponse(text="first"), {"response_id": "r1"})
    more = (UserInput(text="well?"), AFTER, closes, AFTER)
    events = log_of(response, AFTER, (opens, {"response_id": "r1"}), *more)

    early, late = folded(events, through=1, at=2)

    assert early == late
    assert [cut for cut in range(1, 7) if early.waiting.allows(cut)] == [1, 2, 6]
