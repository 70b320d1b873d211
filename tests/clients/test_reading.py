"""Requests of all protocols become the same parts, which contexts are compared with."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.clients.reading import Part, joined, sent, shown
from tests.support.provider import Seen

ARGUMENTS = {"command": "ls"}
_FUNCTION = {"name": "bash", "arguments": json.dumps(ARGUMENTS)}
MESSAGES: list[Any] = [
    {"role": "user", "content": "Look."},
    {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "c1", "name": "bash", "input": ARGUMENTS},
        ],
    },
    {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "a.py"}],
    },
]
CHAT = [
    {"role": "system", "content": "You are helpful."},
    {"role": "user", "content": "Look."},
    {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [{"id": "x", "type": "function", "function": _FUNCTION}],
    },
    {"role": "tool", "tool_call_id": "x", "content": "a.py"},
]
ITEMS = [
    {"type": "message", "role": "developer", "content": "You are helpful."},
    {"type": "message", "role": "user", "content": "Look."},
    {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "I look."}],
    },
    {"type": "function_call", "call_id": "x", **_FUNCTION},
    {"type": "function_call_output", "call_id": "x", "output": "a.py"},
]
REQUESTS = {
    "/v1/messages": {"messages": MESSAGES},
    "/v1/chat/completions": {"messages": CHAT},
    "/v1/responses": {"input": ITEMS},
    "/api/chat": {"messages": CHAT},
}


def _seen(path: str, body: Any) -> Seen:
    return Seen(1, "POST", path, "", (), json.dumps(body).encode(), 0.0)


@pytest.mark.parametrize("path", REQUESTS)
def test_all_protocols_have_the_same_parts(path: str) -> None:
    assert sent(_seen(path, REQUESTS[path])) == [
        Part("user", "text", "Look."),
        Part("assistant", "text", "I look."),
        Part("assistant", "call", ARGUMENTS, "bash"),
        Part("user", "result", "a.py", "1"),
    ]


def test_a_result_of_gemini_is_its_whole_response() -> None:
    call = {"functionCall": {"name": "bash", "args": ARGUMENTS}}
    response = {"functionResponse": {"name": "bash", "response": {"output": "a.py"}}}
    contents = [
        {"role": "user", "parts": [{"text": "Look."}]},
        {"role": "model", "parts": [{"text": "I look."}, call]},
        {"role": "user", "parts": [response]},
    ]
    path = "/v1beta/models/gemini-x:generateContent"

    *_, tool_call, result = sent(_seen(path, {"contents": contents}))

    assert tool_call == Part("assistant", "call", ARGUMENTS, "bash")
    assert result == Part("user", "result", '{"output":"a.py"}', "1")


@pytest.mark.parametrize(
    "changed",
    [
        [{"role": "user", "content": "Look!"}, *MESSAGES[1:]],
        MESSAGES[:2],
        [*MESSAGES, {"role": "user", "content": "And?"}],
        [MESSAGES[0], {**MESSAGES[1], "content": MESSAGES[1]["content"][1:]}],
        [*MESSAGES[:2], *MESSAGES[2:], *MESSAGES[2:]],
    ],
)
def test_a_difference_is_found(changed: list[Any]) -> None:
    assert joined(shown(changed)) != joined(shown(MESSAGES))


def test_system_messages_and_parallel_results_are_compared_as_contexts_show_them() -> (
    None
):
    system = [{"type": "text", "text": "Mind"}, {"type": "text", "text": "the gap."}]
    received = [
        {"role": "user", "content": "Go."},
        {"role": "system", "content": system},
    ]
    text = "Go.\n\n<system>\nMind\n\nthe gap.\n</system>"

    context = shown([{"role": "user", "content": text}])

    request = _seen("/v1/messages", {"messages": received})
    assert joined(sent(request)) == joined(context)
