"""Every event leaves evidence in the next request, also after it was summarized."""

from __future__ import annotations

import pytest

import refold
from refold.domain import events
from refold.domain.events import SummarizerRef
from refold.projections.context.abridged import TOOLS, Abridged, on_file
from refold.projections.context.compaction import Source, Written
from refold.redaction.guard import Limits
from refold.redaction.redactor import Redactor
from refold.store import SessionStore
from refold.testing import memory_log

STRATEGIES = [
    "turn_window:full_turns=1,cached_turns=1",
    "message_window:tail_keep_size=2,context_size=3,compression_window_size=2",
    "hybrid:threshold_low=200,threshold_high=400,last_n_events=2,last_n_plans=1",
    "recursive_summary:every=2,keep_last=1",
    "history_summary:trigger_on_history_size_chars=3000,"
    "history_tail_size_chars_to_exclude=200",
    "token_ratio:max_context_tokens=1300,keep_recent_turns=1",
    "tool_clearing+turn_window:full_turns=1,cached_turns=1",
]
HAPPENED: dict[str, list[events.Event]] = {
    "user_input": [refold.UserInput(text="mend the pump-station")],
    "planner": [refold.Planner(plan="open valve-seven first")],
    "tool_call": [
        refold.ToolCall(call_id="a", tool_name="bash", arguments={"cmd": "ls dam-dir"}),
        refold.ToolResult(call_id="a", content="listing"),
    ],
    "tool_result": [
        refold.ToolCall(call_id="b", tool_name="gauge", arguments={}),
        refold.ToolResult(call_id="b", tool_name="gauge", content="level-ninety"),
    ],
    "failed": [
        refold.ToolCall(call_id="c", tool_name="bash", arguments={"cmd": "make weir"}),
        refold.ToolResult(call_id="c", status="error", content="no-such-target"),
    ],
    "reflection": [refold.Reflection(pass_=False, issues=("seal-leaks",))],
    "aggregate": [
        refold.Aggregate(
            results=(events.Verdict(item_id="bolt-nine", verdict="incorrect"),)
        )
    ],
    "error": [refold.AgentError(code="E-FLOOD", message="gate stuck")],
    "hitl": [
        refold.HumanReview(trigger="t", question="drain it?", decision="drain-tonight")
    ],
    "final": [refold.Final(text="basin-is-dry")],
    "agent_response": [refold.AgentResponse(text="the turbine-runs again")],
}
TRACES = {
    "user_input": "pump-station",
    "planner": "valve-seven",
    "tool_call": "dam-dir",
    "tool_result": "level-ninety",
    "failed": "no-such-target",
    "reflection": "seal-leaks",
    "aggregate": "bolt-nine",
    "error": "E-FLOOD",
    "hitl": "drain-tonight",
    "final": "basin-is-dry",
    "agent_response": "turbine-runs",
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("kind", TRACES)
def test_each_kind_of_event_leaves_a_trace(strategy: str, kind: str) -> None:
    store = SessionStore(memory_log(), Redactor(), Limits())
    session = store.session(user_id="ada", session_id="s-1")
    ends = kind not in ("final", "agent_response")
    asked = [refold.UserInput(text="go on: " + "so it is and so it was. " * 24)]
    first = [] if kind == "user_input" else asked
    answer = [refold.AgentResponse(text="well " * 30)] if ends else []
    session.append([*first, *HAPPENED[kind], *answer])
    for number in range(6):
        # The words of the user fit into each window, so nothing protected gives way.
        later = refold.UserInput(text=f"and {number}? " + "what of the rest? " * 5)
        session.append([later, refold.AgentResponse(text="that is fine " * 50)])
        view = session.prepare(strategy)

    assert any(span.kind == "summary" for span in view.spans)
    assert TRACES[kind] in str(view.messages)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_ledger_continues_from_summary_to_summary(strategy: str) -> None:
    store = SessionStore(memory_log(), Redactor(), Limits())
    session = store.session(user_id="ada", session_id="s-1")
    for number in range(12):
        asked = refold.UserInput(text=f"step {number}: " + "go on with it. " * 40)
        write = {"file_path": f"dam/part{number}.toml", "content": "x " * 60}
        session.append(
            [
                asked,
                refold.ToolCall(
                    call_id=f"w{number}", tool_name="Write", arguments=write
                ),
                refold.ToolResult(call_id=f"w{number}", content="written " * 30),
                refold.AgentResponse(text="well " * 60),
            ]
        )
        view = session.prepare(strategy)

    shown = str(view.messages)
    numbers = [n for n in range(12) if f"dam/part{n}.toml" in shown]
    assert any(span.kind == "summary" for span in view.spans)
    assert len(numbers) == 12


def test_the_ledger_has_the_turn_of_the_last_change() -> None:
    store = SessionStore(memory_log(), Redactor(), Limits())
    session = store.session(user_id="ada", session_id="s-1")
    for number in range(8):
        call = {"file_path": f"dam/part{number % 2}.toml"}
        session.append(
            [
                refold.UserInput(text="again? " * 60),
                refold.ToolCall(call_id=f"c{number}", tool_name="Edit", arguments=call),
                refold.ToolResult(call_id=f"c{number}", content="done"),
                refold.AgentResponse(text="so " * 200),
            ]
        )
    spec = "turn_window:full_turns=1,cached_turns=6,summary_tokens=90"

    text = str(session.prepare(spec).messages)

    assert "<changed>" in text
    assert "dam/part0.toml 5" in text


def test_an_excluded_agent_is_never_summarized() -> None:
    store = SessionStore(memory_log(), Redactor(), Limits())
    session = store.session(user_id="ada", session_id="s-1")
    spec = (
        "history_summary:trigger_on_history_size_chars=1500,"
        "history_tail_size_chars_to_exclude=200,exclude_agents=['critic']"
    )
    for number in range(8):
        asked = refold.UserInput(text=f"and {number}? " + "what of the rest? " * 20)
        answer = refold.AgentResponse(text="that is fine " * 20)
        session.append([asked, answer])

    shown = {
        agent: session.prepare(session.settings.for_agent(agent, spec))
        for agent in ("critic", "coder")
    }

    assert not any(span.kind == "summary" for span in shown["critic"].spans)
    assert any(span.kind == "summary" for span in shown["coder"].spans)


class Model:
    """A summarizer that writes almost nothing, as a model may."""

    def summarise(self, source: Source, *, target_tokens: int) -> Written:
        return Written("it went on", SummarizerRef(kind="model"))


@pytest.mark.parametrize("strategy", ["turn_window:full_turns=1,cached_turns=1"])
def test_evidence_that_a_model_omits_is_added_to_its_summary(strategy: str) -> None:
    store = SessionStore(memory_log(), Redactor(), Limits())
    session = store.session(user_id="ada", session_id="s-1")
    for number in range(8):
        path = {"file_path": f"dam/part{number}.toml"}
        session.append(
            [
                refold.UserInput(text=f"step {number}: " + "go on with it. " * 20),
                refold.ToolCall(call_id=f"w{number}", tool_name="Edit", arguments=path),
                refold.ToolResult(call_id=f"w{number}", content="written " * 30),
                refold.AgentResponse(text="well " * 60),
            ]
        )
        view = session.prepare(strategy, summarizer=Model())

    shown = str(view.messages)
    assert "it went on" in shown
    assert all(f"dam/part{number}.toml" in shown for number in range(8))
    assert session.verify().problems == []


def test_the_tool_for_summaries_is_defined_if_no_other_tool_is() -> None:
    store = SessionStore(memory_log(), Redactor(), Limits())
    session = store.session(user_id="ada", session_id="s-1")
    for number in range(8):
        asked = refold.UserInput(text=f"and {number}? " + "what of the rest? " * 20)
        session.append([asked, refold.AgentResponse(text="that is fine " * 20)])
    spec = "token_ratio:max_context_tokens=1300,keep_recent_turns=1"

    view = session.prepare(spec)
    own = session.prepare(spec, tools=[{"name": "ls", "input_schema": {}}])

    request = view.to_request(model="m", max_tokens=9)
    assert [tool["name"] for tool in request["tools"]] == ["memory_compress"]
    request = own.to_request(model="m", max_tokens=9)
    assert [tool["name"] for tool in request["tools"]] == ["ls"]


def test_history_summary_presents_tools_as_the_summarizer_was_instructed() -> None:
    store = SessionStore(memory_log(), Redactor(), Limits())
    session = store.session(user_id="ada", session_id="s-1")
    summarizer = Abridged(tools={**TOOLS, "save": on_file("modified")})
    path = {"path": "dam.toml"}
    session.append(
        [
            refold.UserInput(text="save it. " * 80),
            refold.ToolCall(call_id="c", tool_name="save", arguments=path),
            refold.ToolResult(call_id="c", content="done"),
            refold.AgentResponse(text="saved. " * 80),
            refold.UserInput(text="and now? " * 80),
            refold.AgentResponse(text="rest. " * 80),
        ]
    )
    spec = (
        "history_summary:trigger_on_history_size_chars=900,"
        "history_tail_size_chars_to_exclude=100"
    )

    view = session.prepare(spec, summarizer=summarizer)

    first = view.messages[0]["content"][0]["text"]
    assert "<modified>\ndam.toml\n</modified>" in first
