"""Sessions that need a human, to test review rules on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from refold.domain.envelope import Envelope
from refold.domain.events import (
    AgentError,
    AgentResponse,
    Event,
    Final,
    Reflection,
    ToolCall,
    ToolResult,
    UserInput,
)
from refold.projections.review.incidents import Question, Recovery, Watch
from refold.projections.review.rules import ReviewRules
from tests.projections.logs import Log

ASK = UserInput(text="go")
SHIPPED = ReviewRules.default()


# As those that are shipped, but sooner: in a short session all of them fire.
EAGER = ReviewRules.read("""
[failed_to_parse]
when = "error"
codes = ["*_parse_failed"]
[rejected]
when = "reflection_failed"
reflections = 2
steps = ["retry"]
[unsure]
when = "low_confidence"
below = 0.5
[risky]
when = "issue"
issues = ["data_loss"]
steps = []
[failing]
when = "tool_fails"
failures = 2
""")


def rules_of(text: str) -> ReviewRules:
    """The rules of this TOML."""
    return ReviewRules.read(text)


def call_and_result(
    call_id: str, tool: str = "book", *, fails: bool = True, note: str = ""
) -> list[Event]:
    """A call and its result."""
    content = "error: timed out" if fails else "booked"
    return [
        ToolCall(call_id=call_id, tool_name=tool, arguments={"note": note}),
        ToolResult(call_id=call_id, content=content),
    ]


def fails(count: int, tool: str = "book") -> list[Event]:
    """So many failures of a tool."""
    return [
        event for n in range(count) for event in call_and_result(f"{tool}-{n}", tool)
    ]


def log_of(events: Sequence[Event]) -> list[Envelope]:
    log = Log()
    return [log.add(event) for event in events]


def watched(rules: ReviewRules, events: Sequence[Envelope]) -> Watch:
    return go_on(Watch(rules), events)


def go_on(watch: Watch, events: Sequence[Envelope]) -> Watch:
    for envelope in events:
        watch.take(envelope.seq, envelope.payload, envelope.meta.warnings)
    return watch


def questions(rules: ReviewRules, *events: Event) -> list[Question]:
    """The questions for a human that these events raise."""
    return watched(rules, log_of(events)).questions


def recoveries(rules: ReviewRules, *events: Event) -> list[Recovery]:
    """Return the agent's next step after these events."""
    return watched(rules, log_of(events)).recoveries()


_WHOLE = st.sampled_from(["", "why", "x" * 9_000, "订单" * 2_000, "\x07" * 3_000])
_REFLECTIONS = st.builds(
    Reflection,
    pass_=st.sampled_from([None, True, False, False]),
    confidence=st.sampled_from([None, 0.1, 0.9]),
    issues=st.sampled_from([(), ("style",), ("Data-Loss", "style")]),
    suggestion=_WHOLE,
)
_RESULTS: Any = st.tuples(
    st.sampled_from(["book", "book", "pay"]),
    st.sampled_from([True, True, True, False]),
    st.sampled_from([True, True, True, False]),
    _WHOLE,
)


@st.composite
def sessions(draw: st.DrawFn) -> list[Event]:
    """Draw events with many failures, as a session accepts them."""
    events: list[Event] = []
    for number in range(draw(st.integers(1, 25))):
        match draw(st.integers(0, 9)):
            case 0:
                events.append(UserInput(text=draw(_WHOLE)))
            case 1:
                outcome = draw(st.sampled_from(["success", "unknown"]))
                events.append(Final(outcome=outcome))
            case 2:
                events.append(AgentError(code="reflector_parse_failed"))
            case 3:
                events.append(AgentResponse(text=draw(_WHOLE)))
            case 4 | 5:
                events.append(draw(_REFLECTIONS))
            case _:
                tool, answered, failed, more = draw(_RESULTS)
                name = f"toolu_{number}"
                arguments = {"note": more}
                events.append(
                    ToolCall(call_id=name, tool_name=tool, arguments=arguments)
                )
                if answered:
                    content = f"error: {more}" if failed else f"fine {more}"
                    events.append(ToolResult(call_id=name, content=content))
    return events
