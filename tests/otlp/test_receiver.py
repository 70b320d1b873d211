"""Spans that an exporter sends are recorded as sessions, each model call once."""

from __future__ import annotations

from typing import Any

import pytest

from refold.adapters.importers.otlp import traces
from refold.adapters.otlp.receiver import Taken, TraceReceiver
from refold.domain.envelope import Envelope
from refold.domain.events import (
    AgentError,
    AgentResponse,
    ToolCall,
    ToolResult,
    UserInput,
)
from refold.store import SessionStore
from tests.importers.samples import OTLP, span, spans

Json = dict[str, Any]
SHOWN = ("user_input", "agent_response", "tool_call", "tool_result", "error")


def text_message(role: str, text: str) -> Json:
    return {"role": role, "parts": [{"type": "text", "content": text}]}


CALLED: Json = {
    "role": "assistant",
    "parts": [
        {"type": "tool_call", "id": "c1", "name": "ls", "arguments": {"path": "/"}}
    ],
}
RESULT: Json = {
    "role": "tool",
    "parts": [{"type": "tool_call_response", "id": "c1", "response": "a.txt"}],
}
GO = text_message("user", "Go.")
DONE = text_message("assistant", "Done.")


def chat(second: int, sent: list[Json], answer: Json | None, **more: Any) -> Json:
    attributes = {
        "gen_ai.conversation.id": "conv-1",
        "gen_ai.request.model": "gpt-5",
        "gen_ai.input.messages": sent,
        **more,
    }
    if answer is not None:
        attributes["gen_ai.output.messages"] = [answer]
    return span("chat", second, second + 1, **attributes)


def recorded(store: SessionStore, name: str = "conv-1") -> list[Any]:
    session = store.session(user_id="ada", session_id=name)
    return [event.payload for event in session.events(types=SHOWN)]


FIRST = chat(1, [GO], CALLED, **{"gen_ai.response.id": "r1"})
SECOND = chat(4, [GO, CALLED, RESULT], DONE, **{"gen_ai.response.id": "r2"})
CONVERSATION = [
    UserInput(text="Go."),
    ToolCall(call_id="c1", tool_name="ls", arguments={"path": "/"}),
    ToolResult(call_id="c1", tool_name="ls", content="a.txt"),
    AgentResponse(text="Done."),
]


def shown(events: list[Any]) -> list[Any]:
    """Return the events without responses that have no text."""
    return [
        event for event in events if not isinstance(event, AgentResponse) or event.text
    ]


@pytest.mark.each_engine
def test_the_spans_of_a_trace_come_in_several_requests(store: SessionStore) -> None:
    receiver = TraceReceiver(store)

    assert receiver.take("ada", spans(FIRST)) == Taken()
    assert receiver.take("ada", spans(SECOND, span("invoke_agent", 0, 6))) == Taken()

    assert shown(recorded(store)) == CONVERSATION
    session = store.session(user_id="ada", session_id="conv-1")
    requests = [event.payload for event in session.events(types=("request",))]
    assert [getattr(request, "model", None) for request in requests] == ["gpt-5"] * 2
    assert not session.verify().problems
    roles = [message["role"] for message in session.context().messages]
    assert roles == ["user", "assistant", "user", "assistant"]


def test_the_calls_in_a_request_are_recorded_as_they_ended(store: SessionStore) -> None:
    TraceReceiver(store).take("ada", spans(SECOND, FIRST))

    assert shown(recorded(store)) == CONVERSATION


@pytest.mark.each_engine
@pytest.mark.parametrize("is_new_process", [False, True])
def test_a_repeated_request_is_recorded_once(
    store: SessionStore, is_new_process: bool
) -> None:
    receiver = TraceReceiver(store)
    receiver.take("ada", spans(FIRST, SECOND))
    head = store.session(user_id="ada", session_id="conv-1").head().seq

    again = TraceReceiver(store) if is_new_process else receiver
    assert again.take("ada", spans(FIRST)) == Taken()
    assert again.take("ada", spans(FIRST, SECOND)) == Taken()

    assert store.session(user_id="ada", session_id="conv-1").head().seq == head


def test_a_call_without_messages_is_rejected_with_the_reason(
    store: SessionStore,
) -> None:
    bare = span("chat", 1, 2, **{"gen_ai.conversation.id": "conv-2"})

    taken = TraceReceiver(store).take("ada", spans(bare, FIRST))

    assert taken.rejected == 1
    assert "no messages" in taken.reason
    assert [info.session_id for info in store.sessions("ada")] == ["conv-1"]


def test_without_a_conversation_the_trace_names_the_session(
    store: SessionStore,
) -> None:
    call = span("chat", 1, 2, gen_ai__input__messages=[GO])

    TraceReceiver(store).take("ada", spans(call))

    assert [info.session_id for info in store.sessions("ada")] == ["t" * 32]


def test_a_failed_call_is_an_error(store: SessionStore) -> None:
    failed = chat(1, [GO], None, **{"error.type": "timeout"})
    failed["status"] = {"code": 2, "message": "no answer"}

    TraceReceiver(store).take("ada", spans(failed))

    error = recorded(store)[-1]
    assert isinstance(error, AgentError)
    assert (error.code, error.message, error.retryable) == (
        "timeout",
        "no answer",
        True,
    )


def test_usage_is_recorded_for_costs(store: SessionStore) -> None:
    counts = {
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.cache_read.input_tokens": 60,
        "gen_ai.usage.output_tokens": 7,
    }

    TraceReceiver(store).take("ada", spans(chat(1, [GO], DONE, **counts)))

    usage = recorded(store)[-1].usage
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (40, 60)
    assert usage["output_tokens"] == 7


def test_users_are_kept_apart(store: SessionStore) -> None:
    receiver = TraceReceiver(store)

    receiver.take("ada", spans(FIRST))
    receiver.take("bob", spans(FIRST))

    for user in ("ada", "bob"):
        assert [info.session_id for info in store.sessions(user)] == ["conv-1"]


def test_a_secret_in_a_span_is_redacted(store: SessionStore) -> None:
    secret = "sk-ant-api03-" + "a1B2" * 20
    call = chat(1, [text_message("user", f"use {secret}")], DONE)

    TraceReceiver(store).take("ada", spans(call))

    session = store.session(user_id="ada", session_id="conv-1")
    assert secret not in str([event.to_json() for event in session.events()])


def test_a_program_that_sends_only_new_messages_continues_the_session(
    store: SessionStore,
) -> None:
    origin = store.session(user_id="kim", session_id="s")
    origin.append([UserInput(text="Go."), AgentResponse(text="Where?")])
    origin.append([UserInput(text="There."), AgentResponse(text="Done.")])
    receiver = TraceReceiver(store)

    for request in traces(origin.history.timeline(), "s", content=True):
        assert receiver.take("ada", request) == Taken()

    texts = [event.text for event in recorded(store, "s")]
    assert texts == ["Go.", "Where?", "There.", "Done."]
    session = store.session(user_id="ada", session_id="s")
    assert len(session.context().messages) == 4


@pytest.mark.parametrize(
    "request_value",
    [
        {},
        {"resourceSpans": 5},
        {"resourceSpans": [{"scopeSpans": [{"spans": [5, {}, {"attributes": 7}]}]}]},
        spans(span("chat", -1, -5, **{"gen_ai.input.messages": "[{"})),
        spans(chat(1, [{"role": 5, "parts": [1, {"type": "image"}]}], {"parts": 4})),
    ],
)
def test_odd_requests_do_not_fail(store: SessionStore, request_value: Json) -> None:
    TraceReceiver(store).take("ada", request_value)


def test_the_sample_of_another_program_is_recorded(store: SessionStore) -> None:
    assert TraceReceiver(store).take("ada", OTLP) == Taken()

    types = [type(event).__name__ for event in shown(recorded(store))]
    assert types == ["UserInput", "ToolCall", "ToolResult", "AgentResponse"]


def test_a_further_call_reads_only_the_requests_since_the_last_one(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = TraceReceiver(store)
    read: list[Envelope] = []
    read_log = type(store.log).read

    def counted(*args: Any, **options: Any) -> list[Envelope]:
        events = read_log(*args, **options)
        if options.get("types") == ("request",):
            read.extend(events)
        return events

    monkeypatch.setattr(type(store.log), "read", counted)
    for number in range(20):
        receiver.take("ada", spans(chat(number, [GO], DONE)))

    assert len(read) <= 20


def test_a_call_that_another_process_recorded_later_is_known(
    store: SessionStore,
) -> None:
    receiver = TraceReceiver(store)
    receiver.take("ada", spans(FIRST))
    TraceReceiver(store).take("ada", spans(SECOND))

    assert receiver.take("ada", spans(SECOND)) == Taken()

    assert shown(recorded(store)) == CONVERSATION
