"""Streams and whole answers are equal in each protocol, and any bytes are read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from refold.adapters.proxy import protocols
from refold.adapters.proxy.conversation import WireProtocol
from refold.domain.events import AgentError, AgentResponse, ToolCall
from tests.fuzz import wire
from tests.support.provider_shapes import (
    Answer,
    Call,
    Failure,
    Protocol,
    Shape,
    failure,
    shape,
)

PATHS: dict[Protocol, str] = {
    "anthropic-messages": "/v1/messages",
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
    "gemini": "/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse",
    "ollama": "/api/chat",
}
REQUEST = {"model": "some-model", "stream_options": {"include_usage": True}}
TEXT = st.text(max_size=40)
ARGUMENTS = st.dictionaries(st.text(max_size=8), TEXT, max_size=3)


@st.composite
def replies(draw: st.DrawFn) -> Answer:
    """Answers with a text, thinking, and calls."""
    calls: list[Call] = []
    for number in range(draw(st.integers(0, 3))):
        name = draw(st.sampled_from(["shell", "read", "edit"]))
        calls.append(Call(name, draw(ARGUMENTS), f"call_{number}"))
    return Answer(draw(TEXT), draw(TEXT), tuple(calls))


def _protocol_and_shape(name: Protocol, reply: Answer) -> tuple[WireProtocol, Shape]:
    """Return a protocol, and the reply in its form."""
    return protocols.named(name), shape(name, reply, REQUEST, PATHS[name])


def _streamed(shaped: Shape) -> bytes:
    """Return the stream of an answer."""
    return b"".join(shaped.frames())


@pytest.mark.parametrize("name", PATHS)
def test_each_protocol_matches_its_own_path_alone(name: Protocol) -> None:
    assert protocols.of("POST", PATHS[name]) is protocols.named(name)
    assert protocols.of("GET", PATHS[name]) is None
    assert protocols.of("POST", PATHS[name].partition("?")[0] + "/x") is None


@pytest.mark.parametrize("name", PATHS)
@given(reply=replies())
def test_a_stream_and_the_whole_answer_give_the_same_events(
    name: Protocol, reply: Answer
) -> None:
    protocol, shaped = _protocol_and_shape(name, reply)
    headers = {"content-type": shaped.content_type}

    whole = protocol.answer(200, {}, json.dumps(shaped.body).encode(), complete=True)
    streamed = protocol.answer(200, headers, _streamed(shaped), complete=True)

    assert streamed.events == whole.events
    assert streamed == whole
    assert whole.complete


@pytest.mark.parametrize("name", PATHS)
@given(reply=replies())
def test_an_answer_has_its_text_its_thinking_and_its_calls(
    name: Protocol, reply: Answer
) -> None:
    protocol, shaped = _protocol_and_shape(name, reply)

    answer = protocol.answer(200, {}, _streamed(shaped), complete=True)

    response, *rest = answer.events
    assert isinstance(response, AgentResponse)
    assert response.text == reply.text
    thinking = [part.thinking for part in response.thinking if part.thinking]
    assert "".join(thinking) == reply.thinking
    calls = [event for event in rest if isinstance(event, ToolCall)]
    assert [call.tool_name for call in calls] == [call.name for call in reply.calls]
    assert [call.arguments for call in calls] == [
        call.arguments for call in reply.calls
    ]
    assert len({call.call_id for call in calls}) == len(calls)
    assert response.usage is not None


@pytest.mark.parametrize("name", PATHS)
@given(reply=replies(), data=st.data())
def test_the_beginning_of_a_stream_is_an_answer_that_broke_off(
    name: Protocol, reply: Answer, data: st.DataObject
) -> None:
    protocol, shaped = _protocol_and_shape(name, reply)
    headers = {"content-type": shaped.content_type}
    # ``last`` is the frame that completes the answer.
    *frames, last = shaped.frames()
    if shaped.ending:
        *frames, last = frames
    if "usage" in shaped.events[-1] and name == "openai-chat":
        *frames, last = frames
    body = b"".join(frames) + last[: data.draw(st.integers(0, len(last) // 2))]
    body = body[: data.draw(st.integers(0, len(body)))]

    answer = protocol.answer(200, headers, body, complete=False)

    assert not answer.complete
    error = answer.events[-1]
    assert isinstance(error, AgentError)
    assert error.code == "interrupted"
    assert not any(isinstance(event, ToolCall) for event in answer.events)


@pytest.mark.parametrize("name", PATHS)
def test_a_request_that_repeats_messages_has_the_same_events(name: Protocol) -> None:
    body = json.dumps(wire.REQUESTS[name]).encode()
    protocol = protocols.named(name)

    first = protocol.request(body, {}, wire.PATHS[name])
    second = protocol.request(body, {}, wire.PATHS[name])

    assert second == first
    for message, repeated in zip(first.messages, second.messages, strict=True):
        # Only results without an id, which answer calls of earlier messages, and items
        # of an unknown kind are converted again.
        types = {event.type for event in message.events}
        assert types & {"item", "tool_result"} or repeated is message


@pytest.mark.parametrize("name", wire.PATHS)
def test_an_error_after_half_of_an_answer_follows_that_half(name: Protocol) -> None:
    protocol, shaped = _protocol_and_shape(
        name, Answer("Let me look for it right now.")
    )
    headers = {"content-type": shaped.content_type}
    frames = list(shaped.frames())
    error: Any = failure(name, Failure(529, "Overloaded"))
    if name == "openai-responses":
        error = {**error["error"], "type": "error"}
    frame = json.dumps(error).encode()
    if shaped.framing != "ndjson":
        frame = b"data: %b\n\n" % frame
    left_out = 3 if shaped.ending else 2
    half = frames[:-left_out]

    answer = protocol.answer(200, headers, b"".join([*half, frame]), complete=True)

    response, failed = answer.events
    assert isinstance(response, AgentResponse)
    assert response.text.startswith("Let me look")
    assert isinstance(failed, AgentError)
    assert failed.message == "Overloaded"
    assert not answer.complete


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("status", [400, 429, 500, 529])
def test_an_error_names_its_message_and_whether_a_retry_helps(
    name: Protocol, status: int
) -> None:
    body = json.dumps(failure(name, Failure(status, "Not now"))).encode()

    answer = protocols.named(name).answer(status, {}, body, complete=True)

    (error,) = answer.events
    assert isinstance(error, AgentError)
    assert error.message == "Not now"
    assert error.context is not None
    assert error.context["status"] == status
    if status != 400:
        assert error.retryable
        assert error.is_transport


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("ending", [b"\r\n", b"\r", b"\n"])
def test_lines_may_end_in_any_way(name: Protocol, ending: bytes) -> None:
    protocol, shaped = _protocol_and_shape(
        name, Answer("Done.", "", (Call("f", {}, "c"),))
    )
    if shaped.framing == "ndjson" and ending == b"\r":
        return
    headers = {"content-type": shaped.content_type}
    body = _streamed(shaped)

    other = protocol.answer(200, headers, body.replace(b"\n", ending), complete=True)

    assert other == protocol.answer(200, headers, body, complete=True)


@st.composite
def mutated(draw: st.DrawFn, value: Any) -> Any:
    """Return JSON with values at some places replaced by others."""
    copy = json.loads(json.dumps(value))
    for _ in range(draw(st.integers(1, 3))):
        parent: Any = [copy]
        place: Any = 0
        while isinstance(parent[place], dict | list) and parent[place]:
            if draw(st.integers(0, 4)) == 0:
                break
            parent = parent[place]
            keys = list(parent) if isinstance(parent, dict) else range(len(parent))
            place = draw(st.sampled_from(keys))
        if parent[place] is copy:  # the whole value is not replaced
            continue
        parent[place] = draw(VALUES)
    return copy


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False)
    | st.sampled_from(["", " ", "\ud800", "user", "assistant", "tool", "text"])
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["type", "text", "id", "x"]), inner, max_size=2
        )
    ),
    max_leaves=4,
)


@pytest.mark.parametrize("name", PATHS)
@given(data=st.data())
def test_a_request_with_any_values_is_read_or_refused(
    name: Protocol, data: st.DataObject
) -> None:
    body = json.dumps(data.draw(mutated(wire.REQUESTS[name]))).encode()

    wire.read_request(protocols.named(name), PATHS[name])(body)


@pytest.mark.parametrize("name", PATHS)
@given(reply=replies(), data=st.data())
def test_an_answer_with_any_values_is_read(
    name: Protocol, reply: Answer, data: st.DataObject
) -> None:
    protocol, shaped = _protocol_and_shape(name, reply)
    read = wire.read_answer(protocol, 200)

    read(json.dumps(data.draw(mutated(shaped.body))).encode())
    events = data.draw(mutated(list(shaped.events)))
    frames = (b"data: %b\n\n" % json.dumps(event).encode() for event in events)
    read(b"".join(frames))
    read(b"".join(json.dumps(event).encode() + b"\n" for event in events))
