"""Requests and answers of Ollama become the events of a conversation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from refold.adapters.proxy import protocols
from refold.adapters.proxy.conversation import NotRecordable
from refold.adapters.proxy.protocols import ollama, openai_chat
from refold.domain.events import AgentError, AgentResponse, UserInput
from refold.projections.models import Usage
from tests.proxy.wire import asked, conversation, shown

CHAT = "/api/chat"
GENERATE = "/api/generate"
CALL = {"function": {"name": "shell", "arguments": {"command": "ls"}}}


def lines(*chunks: Any) -> bytes:
    """Return chunks as lines."""
    return b"".join(json.dumps(chunk).encode() + b"\n" for chunk in chunks)


def test_both_of_its_apis_are_recorded() -> None:
    assert protocols.of("POST", CHAT) is ollama
    assert protocols.of("POST", GENERATE) is ollama
    assert protocols.of("POST", "/v1/chat/completions") is openai_chat
    assert protocols.of("POST", "/api/embed") is None


def test_a_chat_becomes_the_events_of_its_messages() -> None:
    request = asked(
        ollama,
        {
            "model": "qwen3",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "What is it?", "images": ["iVBORw0="]},
                {
                    "role": "assistant",
                    "content": "",
                    "thinking": "Look.",
                    "tool_calls": [CALL, CALL],
                },
                {"role": "tool", "content": "a.py", "tool_name": "shell"},
                {"role": "tool", "content": "b.py", "tool_name": "shell"},
            ],
            "tools": [
                {"type": "function", "function": {"name": "shell", "parameters": {}}}
            ],
            "options": {"temperature": 0},
        },
        CHAT,
    )

    assert request.system == "Be brief."
    assert request.stream
    assert request.options == {"options": {"temperature": 0}}
    assert request.tools == ({"name": "shell", "input_schema": {}},)
    assert conversation(request) == [
        ("user", "What is it?", "image"),
        ("agent", ""),
        ("call", "shell:0", "shell", {"command": "ls"}),
        ("call", "shell:1", "shell", {"command": "ls"}),
        ("result", "shell:0", "a.py"),
        ("result", "shell:1", "b.py"),
    ]
    event = request.messages[0].events[0]
    assert isinstance(event, UserInput)
    assert event.attachments[0].media_type == "image/png"
    response = request.messages[1].events[0]
    assert isinstance(response, AgentResponse)
    assert [part.thinking for part in response.thinking] == ["Look."]


def test_a_prompt_is_a_message() -> None:
    body = {"model": "qwen3", "system": "Be brief.", "prompt": "Hi", "context": [1, 2]}

    request = asked(ollama, {**body, "stream": False}, GENERATE)

    assert request.system == "Be brief."
    assert conversation(request) == [("user", "Hi")]
    assert request.options == {}
    assert not request.stream
    assert [warning.code for warning in request.warnings] == ["fields_left_out"]


@pytest.mark.parametrize("path", [CHAT, GENERATE])
def test_a_request_that_only_loads_a_model_is_not_recordable(path: str) -> None:
    with pytest.raises(NotRecordable):
        asked(ollama, {"model": "qwen3", "keep_alive": 0}, path)


def test_the_last_line_has_the_usage() -> None:
    body = lines(
        {"model": "qwen3", "message": {"content": "Let me "}, "done": False},
        {"model": "qwen3", "message": {"content": "", "tool_calls": [CALL]}},
        {
            "model": "qwen3",
            "message": {"content": "look."},
            "done": True,
            "done_reason": "stop",
            "prompt_eval_count": 20,
            "eval_count": 4,
            "eval_duration": 7,
        },
    )

    answer = ollama.answer(200, {}, body, complete=True)

    assert shown(answer.events) == [
        ("agent", "Let me look."),
        ("call", "shell:0", "shell", {"command": "ls"}),
    ]
    response = answer.events[0]
    assert isinstance(response, AgentResponse)
    assert response.stop_reason == "tool_use"
    assert response.usage is not None
    assert response.usage["eval_duration"] == 7
    assert Usage.of(response.usage) == Usage(input=20, output=4)
    assert answer.model == "qwen3"


def test_a_generated_text_is_a_response() -> None:
    body = lines(
        {"model": "qwen3", "response": "Hel", "done": False},
        {"model": "qwen3", "response": "lo", "done": True, "context": [1, 2]},
    )

    answer = ollama.answer(200, {}, body, complete=True)

    assert shown(answer.events) == [("agent", "Hello")]


def test_an_error_in_a_line_follows_the_part_that_came() -> None:
    body = lines({"message": {"content": "Let me"}}, {"error": "out of memory"})

    response, error = ollama.answer(200, {}, body, complete=True).events

    assert isinstance(response, AgentResponse)
    assert isinstance(error, AgentError)
    assert error.message == "out of memory"
