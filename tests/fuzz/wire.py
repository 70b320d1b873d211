"""Requests and answers of the wire protocols, as targets of the fuzzer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import orjson

from refold.adapters.proxy import protocols
from refold.adapters.proxy.conversation import NotRecordable, WireProtocol
from tests.importers import samples
from tests.support.provider_shapes import (
    Answer,
    Call,
    Failure,
    Protocol,
    failure,
    shape,
)

PATHS: Final[dict[Protocol, str]] = {
    "anthropic-messages": "/v1/messages",
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
    "gemini": "/v1beta/models/gemini-2.5-pro:generateContent",
    "ollama": "/api/chat",
}
_CALL: Final = {"functionCall": {"name": "shell", "args": {"command": "ls"}}}
_RESPONSE: Final = {"name": "shell", "response": {"output": "a.py"}}
REQUESTS: Final[dict[Protocol, Any]] = {
    "anthropic-messages": {**samples.ANTHROPIC, "metadata": {"user_id": "{}"}},
    "openai-chat": {"messages": samples.OPENAI, "tools": [{"function": {}}]},
    "openai-responses": {
        "input": [line["payload"] for line in samples.CODEX],
        "previous_response_id": None,
    },
    "gemini": {
        "contents": [
            {"role": "user", "parts": [{"text": "List them."}]},
            {"role": "model", "parts": [{"text": "x", "thought": True}, _CALL]},
            {"role": "user", "parts": [{"functionResponse": _RESPONSE}]},
        ],
        "tools": [{"functionDeclarations": [{"name": "shell"}]}],
    },
    "ollama": {"messages": samples.OPENAI, "stream": False},
}


def read_request(protocol: WireProtocol, path: str) -> Callable[[bytes], None]:
    """Return a target: any body is read as a request, or is not recordable."""

    def read(data: bytes) -> None:
        try:
            request = protocol.request(data, {}, path)
        except NotRecordable:
            return
        orjson.dumps([request.options, request.tools])
        for message in request.messages:
            assert message.events
            for event in message.events:
                event.payload()

    return read


def read_answer(protocol: WireProtocol, status: int) -> Callable[[bytes], None]:
    """Return a target: any bytes are read as an answer with at least one event."""

    def read(data: bytes) -> None:
        for complete in (True, False):
            answer = protocol.answer(status, {}, data, complete=complete)
            assert answer.events
            for event in answer.events:
                event.payload()

    return read


def _answers(name: Protocol) -> tuple[bytes, ...]:
    """Return an answer of a protocol, whole and as a stream."""
    calls = (Call("shell", {"command": "ls"}, "call_1"),)
    reply = Answer("Let me look.", "Where is it?", calls)
    shaped = shape(name, reply, {"model": "m"}, PATHS[name])
    return json.dumps(shaped.body).encode(), b"".join(shaped.frames())


def targets() -> Iterator[tuple[str, Callable[[bytes], None], tuple[bytes, ...]]]:
    """Yield the name, the target, and the inputs to begin with."""
    for name, path in PATHS.items():
        protocol = protocols.named(name)
        body = json.dumps(REQUESTS[name]).encode()
        error = json.dumps(failure(name, Failure(429))).encode()
        yield f"wire-request-{name}", read_request(protocol, path), (body,)
        yield f"wire-answer-{name}", read_answer(protocol, 200), _answers(name)
        yield f"wire-error-{name}", read_answer(protocol, 429), (error,)
