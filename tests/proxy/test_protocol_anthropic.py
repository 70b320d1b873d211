"""Requests and answers of the Messages API become the events of a conversation."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from refold.adapters.proxy import protocols
from refold.adapters.proxy.conversation import NotRecordable
from refold.adapters.proxy.protocols import anthropic
from refold.domain.events import AgentError, AgentResponse, ProviderEdit
from tests.proxy.wire import (
    EVENTS,
    JSON,
    answered,
    asked,
    codes,
    conversation,
    pieces,
    prefixes,
    shown,
    sse,
)

USAGE = {"input_tokens": 12, "cache_read_input_tokens": 100, "output_tokens": 7}
CONTENT: list[Any] = [
    {"type": "thinking", "thinking": "Where is it?", "signature": "c2ln"},
    {"type": "text", "text": "Let me look."},
    {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls"}},
]
MESSAGE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-opus-4-5",
    "content": CONTENT,
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": USAGE,
}


def streamed(message: dict[str, Any], sizes: list[int]) -> bytes:
    """Return a message as a stream whose deltas have these sizes."""
    events: list[Any] = []
    usage = {**message["usage"], "output_tokens": 1}
    start = {**message, "content": [], "stop_reason": None, "usage": usage}
    events.append({"type": "message_start", "message": start})
    events.append({"type": "ping"})
    for index, block in enumerate(message["content"]):
        empty, deltas = _parts(block, sizes)
        place = {"index": index}
        events.append({"type": "content_block_start", **place, "content_block": empty})
        for delta in deltas:
            events.append({"type": "content_block_delta", **place, "delta": delta})
        events.append({"type": "content_block_stop", **place})
    end = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    events.append({"type": "message_delta", "delta": end, "usage": message["usage"]})
    events.append({"type": "message_stop"})
    return sse(*events)


def _parts(block: dict[str, Any], sizes: list[int]) -> tuple[Any, list[Any]]:
    """Return a block without its values, and the deltas with them."""
    match block["type"]:
        case "text":
            texts = pieces(block["text"], sizes)
            deltas = [{"type": "text_delta", "text": text} for text in texts]
            return {"type": "text", "text": ""}, deltas
        case "thinking":
            texts = pieces(block["thinking"], sizes)
            deltas = [{"type": "thinking_delta", "thinking": text} for text in texts]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
            return {"type": "thinking", "thinking": "", "signature": ""}, deltas
        case "tool_use":
            texts = pieces(json.dumps(block["input"]), sizes)
            name = "partial_json"
            deltas = [{"type": "input_json_delta", name: text} for text in texts]
            return {**block, "input": {}}, deltas
    return block, []


STREAM = streamed(MESSAGE, [3, 5])


def test_only_requests_for_messages_are_recorded() -> None:
    assert protocols.of("POST", "/v1/messages?beta=true") is anthropic
    assert protocols.of("POST", "/v1/messages/count_tokens") is None
    assert protocols.of("POST", "/v1/messages/batches") is None
    assert protocols.of("GET", "/v1/messages") is None


def test_a_request_becomes_the_events_of_its_messages() -> None:
    request = asked(
        anthropic,
        {
            "model": "claude-opus-4-5",
            "max_tokens": 100,
            "system": [
                {"type": "text", "text": "x-anthropic-billing-header: cch=1;"},
                {"type": "text", "text": "Be brief."},
                {
                    "type": "text",
                    "text": "Be kind.",
                    "cache_control": {"type": "ephemeral"},
                },
            ],
            "tools": [{"name": "Bash", "input_schema": {"type": "object"}}],
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "text",
                            "text": "<system-reminder>a</system-reminder>",
                        },
                        {"type": "text", "text": "List the files."},
                        {
                            "type": "image",
                            "source": {
                                "type": "base64",
                                "media_type": "image/png",
                                "data": "iVBORw0=",
                            },
                        },
                    ],
                },
                {
                    "role": "system",
                    "content": "# Environment",
                    "output_config": {"effort": "low"},
                },
                {"role": "system", "content": []},
                {"role": "assistant", "content": CONTENT},
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "toolu_1",
                            "content": [
                                {
                                    "type": "text",
                                    "text": "a.py",
                                    "cache_control": {"type": "ephemeral"},
                                }
                            ],
                        },
                        {"type": "text", "text": "And now?"},
                    ],
                },
            ],
            "stream": True,
        },
    )

    assert request.system == "Be brief.\n\nBe kind."
    assert request.options == {
        "max_tokens": 100,
        "message_settings": {"1": {"output_config": {"effort": "low"}}},
        "system_blocks": [
            {"characters": 9},
            {"characters": 8, "cache_control": {"type": "ephemeral"}},
        ],
        "system_headers": ["x-anthropic-billing-header: cch=1;"],
    }
    assert [message.role for message in request.messages] == [
        "user",
        "system",
        "assistant",
        "user",
    ]
    assert conversation(request) == [
        ("user", "<system-reminder>a</system-reminder>"),
        ("user", "List the files.", "image"),
        ("system", "# Environment"),
        ("agent", "Let me look."),
        ("call", "toolu_1", "Bash", {"command": "ls"}),
        ("result", "toolu_1", [{"type": "text", "text": "a.py"}]),
        ("user", "And now?"),
    ]
    assert request.stream
    assert request.warnings == ()


def test_a_repeated_answer_has_the_events_of_the_answer() -> None:
    answer = answered(anthropic, MESSAGE)
    repeated = asked(
        anthropic, {"messages": [{"role": "assistant", "content": CONTENT}]}
    )

    response, *rest = answer.events
    assert isinstance(response, AgentResponse)
    in_request, *rest_in_request = repeated.messages[0].events
    assert in_request == response.model_copy(
        update={"usage": None, "stop_reason": None}
    )
    assert rest_in_request == rest


def test_unknown_content_is_kept_as_items() -> None:
    request = asked(
        anthropic,
        {
            "messages": [
                {"role": "user", "content": [{"type": "hologram", "data": "x"}, 7]},
                {"role": "narrator", "content": "Once upon a time"},
                "no message",
                {"role": "user", "content": []},
                {"role": "user", "content": [{"type": "tool_result", "content": "x"}]},
            ]
        },
    )

    assert conversation(request) == [
        ("item", "hologram"),
        ("item", "block"),
        ("item", "message"),
        ("item", "message"),
        ("item", "tool_result"),
    ]
    assert codes(request) == ["not_converted", "empty_message"]


def test_a_result_without_its_call_is_kept_as_an_item() -> None:
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "a.py"}
    request = asked(
        anthropic,
        {
            "messages": [
                {"role": "user", "content": [{**result, "tool_use_id": "lost"}]},
                {"role": "assistant", "content": CONTENT},
                {"role": "user", "content": [result, result]},
            ]
        },
    )

    assert conversation(request) == [
        ("item", "tool_result"),
        ("agent", "Let me look."),
        ("call", "toolu_1", "Bash", {"command": "ls"}),
        ("result", "toolu_1", "a.py"),
        ("item", "tool_result"),
    ]
    assert codes(request) == ["result_without_call"]


def test_credentials_in_a_body_are_not_recorded() -> None:
    server = {"type": "url", "url": "https://x", "authorization_token": "t0p"}
    request = asked(
        anthropic,
        {"messages": [], "mcp_servers": [server], "fallback_credit_token": "t0p"},
    )

    assert "t0p" not in json.dumps(request.options)
    assert request.options["mcp_servers"] == [{"type": "url", "url": "https://x"}]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff{}"])
def test_a_body_without_a_json_object_is_not_recordable(body: bytes) -> None:
    with pytest.raises(NotRecordable):
        anthropic.request(body, {}, "/v1/messages")


@pytest.mark.parametrize(
    ("headers", "user_id", "session", "thread"),
    [
        ({"x-claude-code-session-id": "s1"}, None, "s1", None),
        (
            {"x-claude-code-session-id": "s1", "x-claude-code-agent-id": "a1"},
            None,
            "s1",
            "a1",
        ),
        ({}, '{"device_id":"d","session_id":"s2"}', "s2", None),
        (
            {},
            "user_1_account__session_01a21a96-45ea-7053-b078-cb2fb44fda8e",
            "01a21a96-45ea-7053-b078-cb2fb44fda8e",
            None,
        ),
        ({"x-session-id": "ses_1"}, None, "ses_1", None),
        ({}, "somebody", None, None),
    ],
)
def test_clients_name_their_session(
    headers: dict[str, str],
    user_id: str | None,
    session: str | None,
    thread: str | None,
) -> None:
    headers = {"user-agent": "claude-cli/2.1 (external, cli)", **headers}
    body = {"messages": [], "metadata": {"user_id": user_id}}

    hint = anthropic.request(json.dumps(body).encode(), headers, "").hint

    assert (hint.session_id, hint.thread) == (session, thread)
    assert hint.agent == "claude-code"


def test_an_answer_becomes_a_response_and_its_calls() -> None:
    answer = answered(anthropic, MESSAGE)

    assert shown(answer.events) == [
        ("agent", "Let me look."),
        ("call", "toolu_1", "Bash", {"command": "ls"}),
    ]
    response = answer.events[0]
    assert isinstance(response, AgentResponse)
    assert response.usage == USAGE
    assert response.stop_reason == "tool_use"
    assert (answer.response_id, answer.model) == ("msg_1", "claude-opus-4-5")
    assert answer.complete


def test_blocks_of_the_provider_are_kept_in_their_order() -> None:
    content = [
        {"type": "text", "text": "I search."},
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []},
        {"type": "text", "text": "Found it."},
    ]
    message = {**MESSAGE, "content": content, "stop_reason": "end_turn"}

    for body in (message, streamed(message, [2])):
        answer = answered(anthropic, body)

        response, edit = answer.events
        assert isinstance(response, AgentResponse)
        assert response.text == "I search.Found it."
        assert isinstance(edit, ProviderEdit)
        assert [block["type"] for block in edit.blocks] == [
            "server_tool_use",
            "web_search_tool_result",
        ]
        assert edit.content is not None
        assert len(edit.content) == 4


@given(
    texts=st.lists(st.text(max_size=20), max_size=3),
    arguments=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    sizes=st.lists(st.integers(1, 4), max_size=20),
)
def test_a_stream_and_the_whole_answer_give_the_same_events(
    texts: list[str], arguments: dict[str, str], sizes: list[int]
) -> None:
    content: list[Any] = [{"type": "text", "text": text} for text in texts]
    call = {"type": "tool_use", "id": "t", "name": "f", "input": arguments}
    message = {**MESSAGE, "content": [CONTENT[0], *content, call]}

    assert answered(anthropic, streamed(message, sizes)) == answered(anthropic, message)


@given(prefixes(STREAM))
def test_the_beginning_of_a_stream_is_an_answer_that_broke_off(body: bytes) -> None:
    answer = answered(anthropic, body, complete=False)

    if b"message_stop" in body:  # only the blank line behind the last event is missing
        return
    assert not answer.complete
    assert isinstance(answer.events[-1], AgentError)
    assert answer.events[-1].code == "interrupted"


def test_the_part_of_an_answer_that_broke_off_is_kept() -> None:
    body = STREAM[: STREAM.index(b"event: message_delta")]

    response, error = answered(anthropic, body, complete=False).events

    assert isinstance(response, AgentResponse)
    assert response.text == "Let me look."
    assert response.usage == {**USAGE, "output_tokens": 1}
    assert isinstance(error, AgentError)
    assert error.context is not None
    assert error.context["partial"] is True
    assert error.context["calls"] == [CONTENT[2]]


def test_the_end_of_a_stream_decides_whether_it_is_complete() -> None:
    # Clients close the connection as soon as they have read the last event.
    assert answered(anthropic, STREAM, complete=False).complete
    without_end = STREAM[: STREAM.index(b"event: message_stop")]
    assert not answered(anthropic, without_end, complete=True).complete


def test_an_error_within_a_stream_follows_the_part_that_came() -> None:
    error = {"type": "overloaded_error", "message": "Overloaded"}
    part = STREAM[: STREAM.index(b"event: message_delta")]
    body = part + sse({"type": "error", "error": error})

    response, failure = answered(anthropic, body).events

    assert isinstance(response, AgentResponse)
    assert isinstance(failure, AgentError)
    assert failure.code == "overloaded_error"
    assert failure.retryable


@pytest.mark.parametrize(
    ("status", "headers", "body", "code", "message", "retryable"),
    [
        (
            529,
            JSON,
            b'{"type":"error","error":{"type":"overloaded_error","message":"Busy"}}',
            "overloaded_error",
            "Busy",
            True,
        ),
        (
            400,
            JSON,
            b'{"type":"error","error":{"type":"invalid_request_error","message":"No"}}',
            "invalid_request_error",
            "No",
            False,
        ),
        (
            502,
            {"content-type": "text/html"},
            b"<html>Bad gateway</html>",
            "http_502",
            "HTTP 502",
            True,
        ),
        (
            503,
            {"content-type": "text/plain"},
            b"upstream connect error",
            "http_503",
            "upstream connect error",
            True,
        ),
        (200, {"content-type": "text/html"}, b"<html>", "connection", "HTTP 200", True),
        (200, JSON, b'{"id": 1}', "connection", '{"id": 1}', True),
        (401, JSON, b"", "http_401", "HTTP 401", False),
        (0, {}, b"", "connection", "the provider sent no answer", True),
    ],
)
def test_an_answer_that_is_an_error_names_its_code(
    status: int,
    headers: dict[str, str],
    body: bytes,
    code: str,
    message: str,
    retryable: bool,
) -> None:
    (error,) = anthropic.answer(status, headers, body, complete=True).events

    assert isinstance(error, AgentError)
    assert (error.code, error.message, error.retryable) == (code, message, retryable)


def test_an_error_keeps_the_id_of_its_request() -> None:
    headers = {**JSON, "request-id": "req_1", "retry-after": "7"}
    body = b'{"type":"error","error":{"type":"rate_limit_error","message":"Slow"}}'

    (error,) = anthropic.answer(429, headers, body, complete=True).events

    assert isinstance(error, AgentError)
    assert error.context == {"status": 429, "request_id": "req_1", "retry_after": "7"}


def test_values_that_json_cannot_hold_are_repaired_and_reported() -> None:
    body = b'{"messages":[{"role":"user","content":"\\ud800"}],"top_k":' + b"9" * 30
    request = anthropic.request(body + b"}", {}, "")

    assert conversation(request) == [("user", "\ufffd")]
    assert request.options["top_k"] == "9" * 30
    assert codes(request) == ["repaired"]


def test_arguments_that_are_no_json_object_stay_a_text() -> None:
    for arguments in ('{"command": "ls', "[1]", "no"):
        start = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
        delta = {"type": "input_json_delta", "partial_json": arguments}
        body = sse(
            {"type": "message_start", "message": MESSAGE | {"content": []}},
            {"type": "content_block_start", "index": 0, "content_block": start},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "message_stop"},
        )

        answer = answered(anthropic, body)

        assert shown(answer.events) == [("agent", ""), ("call", "t", "f", arguments)]


def test_data_of_a_stream_that_is_no_json_is_reported() -> None:
    body = b"data: nonsense\n\n" + STREAM

    answer = anthropic.answer(200, EVENTS, body, complete=True)

    assert answer.events == answered(anthropic, STREAM).events
    assert codes(answer) == ["unreadable_event"]
