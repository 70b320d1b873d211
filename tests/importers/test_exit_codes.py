"""A result that states another exit code than 0 is that of a failed command."""

from __future__ import annotations

import json
from typing import Any

import pytest

from refold.adapters.importers import openai
from refold.adapters.importers.base import Piece
from refold.adapters.importers.exit_codes import of_gemini, stated_exit_code
from refold.adapters.proxy.protocols import gemini, openai_chat, openai_responses
from refold.domain.events import ToolResult

UNIFIED = "Chunk ID: 5a\nWall time: 1 seconds\nProcess exited with code {}\nOutput:\nx"
FAILED: list[Any] = [
    UNIFIED.format(3),
    "Exit code: 3\r\nWall time: 1 seconds\r\nOutput:\r\nx",
    "<returncode>3</returncode>\n<output>x</output>",
    "x\n[The command completed with exit code 3.]",
    '{"output": "x", "metadata": {"exit_code": 3}}',
    {"stdout": "x", "exitCode": 3},
    [{"stdout": "x", "stderr": "", "outcome": {"type": "exit", "exit_code": 3}}],
    [{"type": "input_text", "text": UNIFIED.format(3)}],
]
OTHERS: list[Any] = [
    "Output:\nProcess exited with code 3",
    "the test exits with exit code 3",
    "A file: [The command completed with exit code 3.] and more",
    '{"rows": [{"exit_code": 3}]}',
    {"exit_code": True},
    UNIFIED.format("3" * 5000),  # Python refuses to read so long a number
    f"<returncode>{'3' * 5000}</returncode>",
    f"[The command completed with exit code {'3' * 5000}.]",
    f'{{"exit_code": {"3" * 5000}}}',
    [],
    None,
    3,
]


@pytest.mark.parametrize("content", FAILED)
def test_an_exit_code_is_read_where_a_client_writes_it(content: Any) -> None:
    assert stated_exit_code(content) == 3


@pytest.mark.parametrize("content", OTHERS)
def test_other_texts_state_no_exit_code(content: Any) -> None:
    assert stated_exit_code(content) is None


def test_a_running_or_successful_command_is_no_failure() -> None:
    for content in (UNIFIED.format(0), "[The command completed with exit code -1.]"):
        piece = openai.result({"tool_call_id": "c", "content": content}, calls())
        assert isinstance(piece, Piece)
        assert piece.fields["status"] == "ok"


@pytest.mark.parametrize("content", FAILED)
def test_failed_commands_are_errors_in_messages_of_openai(content: Any) -> None:
    message = openai.result({"tool_call_id": "c", "content": content}, calls())
    item = {"type": "shell_call_output", "call_id": "c", "output": content}
    pieces = [message, *openai.response_item(item)]

    statuses = [piece.fields["status"] for piece in pieces if isinstance(piece, Piece)]

    assert statuses == ["error", "error"]


@pytest.mark.parametrize("content", FAILED)
def test_failed_commands_are_errors_in_recorded_requests(content: Any) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    chat = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": content},
    ]
    items = [
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": content},
    ]

    of_chat = openai_chat.request(json.dumps({"messages": chat}).encode(), {}, "")
    of_items = openai_responses.request(json.dumps({"input": items}).encode(), {}, "")

    assert statuses_in(of_chat) == ["error"]
    assert statuses_in(of_items) == ["error"]


def test_failed_commands_are_errors_in_recorded_requests_of_gemini() -> None:
    call = {"functionCall": {"name": "run", "args": {}}}
    responses = []
    for code in (3, 0):
        output = f"Command: x\nExit Code: {code}\nSignal: none"
        responses.append(
            {"functionResponse": {"name": "run", "response": {"output": output}}}
        )
    contents = [
        {"role": "model", "parts": [call, call]},
        {"role": "user", "parts": responses},
    ]

    request = gemini.request(
        json.dumps({"contents": contents}).encode(), {}, "/v1beta/models/m:x"
    )

    assert statuses_in(request) == ["error", "ok"]


def calls() -> openai.UnnamedCalls:
    return openai.UnnamedCalls()


def statuses_in(request: Any) -> list[str]:
    """Return the statuses of the results in a request."""
    statuses: list[str] = []
    for message in request.messages:
        for event in message.events:
            if isinstance(event, ToolResult):
                statuses.append(event.status)
    return statuses


def test_a_number_of_thousands_of_digits_is_no_exit_code_of_gemini() -> None:
    assert of_gemini("Exit Code: 3\n") == 3
    assert of_gemini(f"Exit Code: {'3' * 5000}\n") is None
