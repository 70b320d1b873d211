"""Spans that follow older conventions are read under the current names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from refold.adapters.importers.otlp_names import RENAMED, current
from refold.domain.events import AgentResponse, ToolCall, ToolResult, UserInput
from tests.importers.samples import events, read_one, span, spans, write_document

Json = dict[str, Any]
CALL: Json = {
    "id": "c1",
    "type": "function",
    "function": {"name": "ls", "arguments": '{"path": "/"}'},
}
# The same two model calls, as programs wrote them.  Attributes and span events of each.
DETAILS: list[tuple[Json, list[tuple[str, Json]]]] = [
    (
        {"gen_ai.operation.name": "chat"},
        [
            (
                "gen_ai.client.inference.operation.details",
                {
                    "gen_ai.input.messages": json.dumps(
                        [
                            {
                                "role": "user",
                                "parts": [{"type": "text", "content": "Go."}],
                            }
                        ]
                    ),
                    "gen_ai.output.messages": json.dumps(
                        [
                            {
                                "role": "assistant",
                                "parts": [
                                    {
                                        "type": "tool_call",
                                        "id": "c1",
                                        "name": "ls",
                                        "arguments": {"path": "/"},
                                    }
                                ],
                            }
                        ]
                    ),
                },
            )
        ],
    ),
    (
        {"gen_ai.operation.name": "chat"},
        [
            (
                "gen_ai.client.inference.operation.details",
                {
                    "gen_ai.input.messages": json.dumps(
                        [
                            {
                                "role": "tool",
                                "parts": [
                                    {
                                        "type": "tool_call_response",
                                        "id": "c1",
                                        "response": "a.txt",
                                    }
                                ],
                            }
                        ]
                    ),
                    "gen_ai.output.messages": json.dumps(
                        [
                            {
                                "role": "assistant",
                                "parts": [{"type": "text", "content": "Done."}],
                            }
                        ]
                    ),
                },
            )
        ],
    ),
]
MESSAGE_EVENTS: list[tuple[Json, list[tuple[str, Json]]]] = [
    (
        {"gen_ai.operation.name": "chat", "gen_ai.system": "openai"},
        [
            ("gen_ai.user.message", {"content": "Go."}),
            ("gen_ai.choice", {"message": json.dumps({"tool_calls": [CALL]})}),
        ],
    ),
    (
        {"gen_ai.operation.name": "chat", "gen_ai.system": "openai"},
        [
            ("gen_ai.user.message", {"content": "Go."}),
            ("gen_ai.assistant.message", {"tool_calls": json.dumps([CALL])}),
            ("gen_ai.tool.message", {"id": "c1", "content": "a.txt"}),
            ("gen_ai.choice", {"message": "Done."}),
        ],
    ),
]
NUMBERED: list[tuple[Json, list[tuple[str, Json]]]] = [
    (
        {
            "llm.request.type": "chat",
            "gen_ai.prompt.0.role": "user",
            "gen_ai.prompt.0.content": "Go.",
            "gen_ai.completion.0.role": "assistant",
            "gen_ai.completion.0.tool_calls.0.id": "c1",
            "gen_ai.completion.0.tool_calls.0.name": "ls",
            "gen_ai.completion.0.tool_calls.0.arguments": '{"path": "/"}',
        },
        [],
    ),
    (
        {
            "llm.request.type": "chat",
            "gen_ai.prompt.0.role": "user",
            "gen_ai.prompt.0.content": '[{"type": "text", "text": "Go."}]',
            "gen_ai.prompt.1.role": "assistant",
            "gen_ai.prompt.1.tool_calls.0.id": "c1",
            "gen_ai.prompt.1.tool_calls.0.name": "ls",
            "gen_ai.prompt.1.tool_calls.0.arguments": '{"path": "/"}',
            "gen_ai.prompt.2.role": "tool",
            "gen_ai.prompt.2.tool_call_id": "c1",
            "gen_ai.prompt.2.content": "a.txt",
            "gen_ai.completion.0.content": "Done.",
        },
        [],
    ),
]


def attributes(values: Json) -> list[Json]:
    return [
        {"key": key, "value": {"stringValue": value}} for key, value in values.items()
    ]


def chat_span(second: int, values: Json, span_events: list[tuple[str, Json]]) -> Json:
    written = span("chat", second, second + 1)
    written["attributes"] = attributes({"session.id": "conv-1", **values})
    written["events"] = [
        {"name": name, "timeUnixNano": "1", "attributes": attributes(fields)}
        for name, fields in span_events
    ]
    return written


@pytest.mark.parametrize(
    "calls", [DETAILS, MESSAGE_EVENTS, NUMBERED], ids=["1.37", "1.36", "OpenLLMetry"]
)
def test_messages_of_each_version_become_the_same_events(
    tmp_path: Path, calls: list[tuple[Json, list[tuple[str, Json]]]]
) -> None:
    written = [chat_span(n, *call) for n, call in enumerate(calls)]

    transcript = read_one(write_document(tmp_path, spans(*written)))

    assert transcript.session_id == "conv-1"
    assert events(transcript) == [
        UserInput(text="Go."),
        ToolCall(call_id="c1", tool_name="ls", arguments={"path": "/"}),
        ToolResult(call_id="c1", tool_name="ls", content="a.txt"),
        AgentResponse(text="Done."),
    ]
    assert not transcript.skipped


@pytest.mark.parametrize("renamed", RENAMED)
def test_a_former_name_is_read_unless_the_current_one_is_there(renamed: Any) -> None:
    assert current({renamed.former: "old"}, ())[renamed.current] == "old"
    both = {renamed.former: "old", renamed.current: "new"}
    assert current(both, ())[renamed.current] == "new"


@pytest.mark.parametrize(
    "odd",
    [
        {"gen_ai.prompt.0.tool_calls": 5, "gen_ai.prompt.0.tool_calls.0.id": 7},
        {"gen_ai.prompt.0.content": [1, {"text": 2}]},
        {"gen_ai.prompt.99999999.content": "x"},
        {"gen_ai.completion.0.tool_calls.0.arguments": "{"},
        {"gen_ai.prompt.0.calls": "x", "gen_ai.prompt.0.tool_calls.0.id": "c"},
    ],
)
def test_odd_values_do_not_fail(odd: Json) -> None:
    current(odd, [("gen_ai.choice", odd), ("gen_ai.user.message", odd)])
