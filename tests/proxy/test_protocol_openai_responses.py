"""Requests and answers of the Responses API become the events of a conversation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from refold.adapters.proxy.protocols import openai_responses
from refold.domain.events import AgentError, AgentResponse, ProviderEdit, ToolResult
from tests.proxy.wire import answered, asked, codes, conversation, shown, sse

REASONING = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "Look first."}],
    "encrypted_content": "gAAAAAB",
}
MESSAGE = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Let me look.", "annotations": []}],
}
CALL = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "call_1",
    "name": "shell",
    "arguments": '{"command": "ls"}',
}
OUTPUT = [REASONING, MESSAGE, CALL]


def response(*output: Any, **fields: Any) -> dict[str, Any]:
    """Return a response with these items."""
    usage = {"input_tokens": 10, "output_tokens": 5}
    return {
        "id": "resp_1",
        "object": "response",
        "model": "gpt-5",
        "status": "completed",
        "output": list(output),
        "usage": usage,
        **fields,
    }


def test_the_input_may_be_a_text() -> None:
    request = asked(
        openai_responses,
        {"model": "gpt-5", "instructions": "Be brief.", "input": "Hello"},
    )

    assert request.system == "Be brief."
    assert conversation(request) == [("user", "Hello")]


def test_items_become_events_in_their_order() -> None:
    request = asked(
        openai_responses,
        {
            "input": [
                {"role": "developer", "content": "Be brief."},
                {
                    "type": "additional_tools",
                    "tools": [{"type": "custom", "name": "x"}],
                },
                {"type": "message", "role": "developer", "content": "Rules"},
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "What is this?"},
                        {"type": "input_image", "image_url": "https://x/a.png"},
                        {"type": "input_file", "file_id": "file-1"},
                    ],
                },
                *OUTPUT,
                {"type": "function_call_output", "call_id": "call_1", "output": "a.py"},
                {
                    "type": "custom_tool_call",
                    "call_id": "call_2",
                    "name": "apply_patch",
                    "input": "*** Begin",
                },
                {
                    "type": "local_shell_call",
                    "call_id": "call_3",
                    "action": {"type": "exec", "command": ["ls"]},
                },
                {
                    "type": "custom_tool_call_output",
                    "call_id": "call_2",
                    "output": [{"type": "input_text", "text": "Done"}],
                },
                {"type": "item_reference", "id": "msg_0"},
                {"type": "configuration_update", "reasoning": {"effort": "low"}},
                {
                    "type": "agent_message",
                    "author": "/root",
                    "content": [{"type": "input_text", "text": "NEW_TASK"}],
                },
                {"type": "web_search_call", "id": "ws_1", "status": "completed"},
                {"role": "assistant", "content": "Found it."},
            ],
            "tools": [
                {"type": "function", "name": "shell", "parameters": {"type": "object"}},
                {"type": "mcp", "server_url": "https://x", "authorization": "t0p"},
            ],
        },
    )

    assert request.system == "Be brief."
    assert request.tools == (
        {"name": "shell", "input_schema": {"type": "object"}},
        {"type": "mcp", "server_url": "https://x"},
        {"type": "custom", "name": "x"},
    )
    assert conversation(request) == [
        ("system", "Rules"),
        ("user", "What is this?", "image", "file"),
        ("agent", "Let me look."),
        ("call", "call_1", "shell", {"command": "ls"}),
        ("result", "call_1", "a.py"),
        ("agent", ""),
        ("call", "call_2", "apply_patch", "*** Begin"),
        (
            "call",
            "call_3",
            "local_shell_call",
            {"type": "exec", "command": ["ls"]},
        ),
        ("result", "call_2", [{"type": "input_text", "text": "Done"}]),
        ("item", "item_reference"),
        ("item", "configuration_update"),
        ("user", "NEW_TASK"),
        ("agent", "Found it."),
        ("provider_edit",),
    ]
    assert codes(request) == ["not_converted"]


def test_reasoning_keeps_its_summary_and_its_encrypted_form() -> None:
    answer = answered(openai_responses, response(*OUTPUT))

    event = answer.events[0]
    assert isinstance(event, AgentResponse)
    (thinking,) = event.thinking
    assert (thinking.thinking, thinking.data) == ("Look first.", "gAAAAAB")
    assert thinking.signature is None


def test_a_repeated_answer_has_the_events_of_the_answer() -> None:
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    for output in (OUTPUT, [REASONING, search, MESSAGE, REASONING, CALL]):
        answer = answered(openai_responses, response(*output))
        repeated = asked(openai_responses, {"input": output}).messages[0]

        event, *rest = answer.events
        assert isinstance(event, AgentResponse)
        in_request, *rest_in_request = repeated.events
        assert in_request == event.model_copy(
            update={"usage": None, "stop_reason": None}
        )
        assert rest_in_request == rest


def test_items_of_the_provider_may_come_back_without_their_ids() -> None:
    search = {
        "type": "web_search_call",
        "status": "completed",
        "action": {"query": "x"},
    }

    answer = answered(openai_responses, response({**search, "id": "ws_1"}, MESSAGE))
    repeated = asked(openai_responses, {"input": [search, MESSAGE]})

    assert repeated.messages[0].events[1:] == answer.events[1:]


def test_a_continued_response_keeps_results_of_calls_that_it_does_not_repeat() -> None:
    output = {"type": "function_call_output", "call_id": "call_1", "output": "a.py"}
    body = {"input": [output], "previous_response_id": "resp_1"}

    continued = asked(openai_responses, body)
    alone = asked(openai_responses, {"input": [output]})

    assert continued.hint.previous_response_id == "resp_1"
    assert conversation(continued) == [("result", "call_1", "a.py")]
    assert conversation(alone) == [("item", "tool_result")]
    assert codes(alone) == ["result_without_call"]


def test_a_compaction_of_the_provider_is_kept_as_it_came() -> None:
    item = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAAAB"}

    request = asked(
        openai_responses, {"input": [item, {"role": "user", "content": "x"}]}
    )

    (edit,) = request.messages[0].events
    assert isinstance(edit, ProviderEdit)
    sealed = {"type": "compaction", "encrypted_content": "gAAAAAB"}
    assert edit.blocks == (sealed,)
    _, in_answer = answered(openai_responses, response(item)).events
    assert in_answer == edit


def test_codex_names_its_session_and_its_threads() -> None:
    turn = {"session_id": "s1", "thread_id": "t2", "parent_thread_id": "s1"}
    headers = {
        "user-agent": "codex_exec/0.171.0 (Debian)",
        "session-id": "s1",
        "thread-id": "t2",
        "x-codex-turn-metadata": json.dumps(turn),
    }

    hint = openai_responses.request(b'{"input":"x"}', headers, "").hint

    assert (hint.agent, hint.session_id, hint.thread) == ("codex", "s1", "t2")
    assert hint.parent == "s1"


@pytest.mark.parametrize(
    ("output", "status"),
    [("Exit code: 1\nOutput:\nno", "error"), ("Exit code: 0\nOutput:\nok", "ok")],
)
def test_a_failed_command_of_codex_is_an_error(output: str, status: str) -> None:
    item = {"type": "function_call_output", "call_id": "call_1", "output": output}
    body = json.dumps({"input": [CALL, item]}).encode()

    request = openai_responses.request(body, {"user-agent": "codex_cli_rs/1"}, "")

    result = request.messages[1].events[0]
    assert isinstance(result, ToolResult)
    assert result.status == status


def test_items_of_a_stream_count_if_its_last_event_has_no_output() -> None:
    events: list[Any] = [{"type": "response.created", "response": response()}]
    for index, item in enumerate(OUTPUT):
        done = {"type": "response.output_item.done", "output_index": index}
        events.append({**done, "item": item})
    ended = {"type": "response.completed", "response": response()}

    answer = answered(openai_responses, sse(*events, ended))

    assert answer == answered(openai_responses, response(*OUTPUT))


def test_the_part_of_an_answer_that_broke_off_is_kept() -> None:
    begun = {"type": "response.output_item.added"}
    events: list[Any] = [
        {"type": "response.created", "response": response(status="in_progress")},
        {**begun, "output_index": 0, "item": {**MESSAGE, "content": []}},
        {"type": "response.output_text.delta", "output_index": 0, "delta": "Let "},
        {"type": "response.output_text.delta", "output_index": 0, "delta": "me"},
        {**begun, "output_index": 1, "item": {**CALL, "arguments": ""}},
        {
            "type": "response.function_call_arguments.delta",
            "output_index": 1,
            "delta": '{"command": ',
        },
    ]

    answer = answered(openai_responses, sse(*events), complete=False)

    event, error = answer.events
    assert isinstance(event, AgentResponse)
    assert event.text == "Let me"
    assert isinstance(error, AgentError)
    assert error.context is not None
    assert error.context["calls"] == [
        {
            "type": "tool_use",
            "id": "call_1",
            "name": "shell",
            "input": '{"command": ',
        }
    ]


def test_a_failed_response_is_an_error() -> None:
    error = {"code": "server_error", "message": "Down"}
    body = response(status="failed", error=error, usage=None)
    event = {"type": "response.failed", "response": body}

    for failed in (body, sse(event)):
        answer = answered(openai_responses, failed)

        (failure,) = answer.events
        assert isinstance(failure, AgentError)
        assert (failure.code, failure.message) == ("server_error", "Down")


def test_an_incomplete_response_says_why() -> None:
    details = {"reason": "max_output_tokens"}
    body = response(MESSAGE, status="incomplete", incomplete_details=details)

    (event,) = answered(openai_responses, body).events

    assert isinstance(event, AgentResponse)
    assert event.stop_reason == "max_output_tokens"


def test_annotations_and_unknown_fields_are_kept_as_items() -> None:
    part = {
        "type": "output_text",
        "text": "Found.",
        "annotations": [{"type": "url_citation", "url": "https://x"}],
    }
    body = response({**MESSAGE, "content": [part]}, moderation={"flagged": False})

    answer = answered(openai_responses, body)

    assert shown(answer.events) == [
        ("agent", "Found."),
        ("item", "annotations"),
        ("item", "response"),
    ]
