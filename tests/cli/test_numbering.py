"""Response and call numbers do not depend on how a transcript is split."""

from datetime import UTC, datetime
from uuid import UUID

import pytest

from refold.adapters.cli.events import LANES, Rails
from refold.adapters.display.events import Numbering, seq_before
from refold.domain.envelope import Envelope, Meta
from refold.domain.errors import RefoldError
from refold.domain.events import (
    AgentError,
    AgentResponse,
    SessionEvent,
    ToolCall,
    ToolResult,
    UserInput,
)
from refold.projections.context.units import arrange


def envelopes(*events: SessionEvent | tuple[SessionEvent, str]) -> list[Envelope]:
    """Return envelopes of the events; some carry the id of their response."""
    events_with_seq = []
    for seq, item in enumerate(events, start=1):
        event, response_id = item if isinstance(item, tuple) else (item, None)
        events_with_seq.append(
            Envelope(
                event_id=UUID(int=seq),
                seq=seq,
                ts=datetime(2026, 1, 1, tzinfo=UTC),
                type=event.type,
                user_id="u",
                session_id="s",
                stream="main",
                payload=event,
                redaction={"n": 0},
                token_estimate=1,
                prev_hash="",
                hash="",
                schema_version=1,
                meta=Meta(response_id=response_id),
            )
        )
    return events_with_seq


def call(name: str) -> ToolCall:
    return ToolCall(call_id=name, tool_name="t")


def result(name: str) -> ToolResult:
    return ToolResult(call_id=name)


def response_and_call_numbers(
    log: list[Envelope],
) -> list[tuple[int | None, int | None]]:
    return [(item.response, item.call) for item in Numbering().number(log)]


def test_calls_after_a_response_are_part_of_it() -> None:
    log = envelopes(UserInput(), AgentResponse(), call("a"), call("b"))

    assert response_and_call_numbers(log) == [(None, None), (1, None), (1, 1), (1, 2)]


def test_a_result_has_the_number_of_its_call() -> None:
    log = envelopes(call("a"), call("b"), result("b"), result("a"))

    assert response_and_call_numbers(log) == [(1, 1), (1, 2), (None, 2), (None, 1)]


def test_a_call_after_a_result_is_another_response() -> None:
    log = envelopes(call("a"), result("a"), call("b"))

    assert response_and_call_numbers(log) == [(1, 1), (None, 1), (2, 2)]


def test_a_response_with_an_id_continues_after_a_result() -> None:
    log = envelopes((call("a"), "m1"), result("a"), (call("b"), "m1"))

    assert response_and_call_numbers(log) == [(1, 1), (None, 1), (1, 2)]


def test_parts_of_a_response_count_once() -> None:
    log = envelopes((AgentResponse(), "m1"), (AgentResponse(), "m1"), (call("a"), "m1"))

    assert response_and_call_numbers(log) == [(1, None), (1, None), (1, 1)]


def test_another_agent_is_another_response() -> None:
    log = envelopes((AgentResponse(), "m1"), (call("a"), "m2"))

    assert response_and_call_numbers(log) == [(1, None), (2, 1)]


def test_an_api_error_does_not_split_a_response() -> None:
    busy = AgentError(code="overloaded", context={"status": 529})
    log = envelopes(AgentResponse(), busy, call("a"))

    assert response_and_call_numbers(log) == [(1, None), (None, None), (1, 1)]
    assert len(arrange(log)) == 1


def test_a_calls_context_ends_before_its_response() -> None:
    log = envelopes(UserInput(), AgentResponse(), call("a"), call("b"))

    assert seq_before(log, "tool call", 2) == 1
    assert seq_before(log, "response", 1) == 1


@pytest.mark.parametrize("n", [2, 3])
def test_a_missing_number_is_an_error(n: int) -> None:
    log = envelopes(UserInput(), AgentResponse(), call("a"))

    with pytest.raises(RefoldError, match="1 tool call"):
        seq_before(log, "tool call", n)


def test_the_context_before_the_first_event_is_empty() -> None:
    with pytest.raises(RefoldError, match="begins with that response"):
        seq_before(envelopes(AgentResponse()), "response", 1)


def test_rails_join_calls_and_results() -> None:
    rails = Rails()

    drawn = [rails.open("a"), rails.open("b"), rails.close("a"), rails.close("b")]

    assert drawn == ["╭──", "│╭─", "╰┼─", " ╰─"]


def test_calls_beyond_the_available_lanes_have_no_rail() -> None:
    rails = Rails()
    for lane in range(LANES):
        rails.open(str(lane))

    assert rails.open("more") == rails.close("more") == "│" * LANES
