"""Conversions of messages are remembered within their bounds."""

from __future__ import annotations

from typing import Any

import pytest

from refold.adapters.proxy.conversation import WireMessage
from refold.adapters.proxy.protocols import named, reading
from refold.adapters.proxy.protocols.reading import Conversions, Notes
from refold.domain.events import ToolResult
from tests.proxy.wire import asked


def test_a_message_that_two_threads_convert_at_once_counts_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "_MOST_BYTES", 30)
    conversions = Conversions()
    message = {"role": "user", "id": 1}  # more than half of the bytes
    converted = WireMessage("user", ())

    def convert_as_another_thread_does() -> WireMessage:
        conversions.message(message, Notes(), lambda: converted)
        return converted

    def convert_again() -> WireMessage:
        raise AssertionError("the message was forgotten")

    conversions.message(message, Notes(), convert_as_another_thread_does)

    assert conversions.message(message, Notes(), convert_again) is converted


@pytest.mark.parametrize("protocol", ["gemini", "ollama", "openai-chat"])
def test_a_result_without_an_id_is_converted_once_for_each_call(protocol: str) -> None:
    """The same result later in a conversation may answer another call."""
    bodies: list[Any] = []
    messages: list[Any] = []
    for _ in range(2):
        if protocol == "gemini":
            response = {"name": "run", "response": {"output": "the same text"}}
            messages += [
                {"role": "model", "parts": [{"functionCall": {"name": "run"}}] * 2},
                {"role": "user", "parts": [{"functionResponse": response}] * 2},
            ]
            bodies.append({"contents": [*messages]})
        else:
            calls = [{"function": {"name": "run", "arguments": {}}}] * 2
            result = {"role": "tool", "name": "run", "content": "the same text"}
            messages += [
                {"role": "assistant", "content": "", "tool_calls": calls},
                *[result] * 2,
            ]
            bodies.append({"model": "m", "messages": [*messages]})

    first, second = [asked(named(protocol), body, "/api/chat") for body in bodies]

    assert all(
        old is new for old, new in zip(first.messages, second.messages, strict=False)
    )
    assert len(second.messages) == 2 * len(first.messages)
    results = [
        event.call_id
        for message in second.messages
        for event in message.events
        if isinstance(event, ToolResult)
    ]
    assert results == ["run:0", "run:1"] * 2
