"""Bodies of requests and answers for tests of the wire protocols."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from hypothesis import strategies as st

from refold.adapters.proxy.conversation import WireAnswer, WireProtocol, WireRequest
from refold.domain.events import Event

JSON = {"content-type": "application/json"}
EVENTS = {"content-type": "text/event-stream; charset=utf-8"}


def sse(*events: Any, name: bool = True, done: bool = False) -> bytes:
    """Return server-sent events with these JSON objects as data.

    name: whether each event has the object's type as its name.
    done: whether ``[DONE]`` follows.
    """
    lines: list[str] = []
    for event in events:
        if name and "type" in event:
            lines.append(f"event: {event['type']}")
        lines += [f"data: {json.dumps(event)}", ""]
    if done:
        lines += ["data: [DONE]", ""]
    return ("\n".join(lines) + "\n").encode()


def asked(
    protocol: WireProtocol, body: Any, path: str = "", **headers: str
) -> WireRequest:
    """Return a request with this JSON as its body."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return protocol.request(json.dumps(body).encode(), named, path)


def answered(
    protocol: WireProtocol, body: Any, *, status: int = 200, complete: bool = True
) -> WireAnswer:
    """Return an answer: bytes are a stream of events, other values are JSON."""
    if isinstance(body, bytes):
        return protocol.answer(status, EVENTS, body, complete=complete)
    return protocol.answer(status, JSON, json.dumps(body).encode(), complete=complete)


def shown(events: Iterable[Event]) -> list[tuple[Any, ...]]:
    """Return events as tuples of their type and their most important fields."""
    values: list[tuple[Any, ...]] = []
    for event in events:
        payload = event.payload()
        match event.type:
            case "user_input":
                files = [file["kind"] for file in payload["attachments"]]  # type: ignore[union-attr,call-overload,index]  # JSON
                values.append(("user", payload["text"], *files))
            case "agent_response":
                values.append(("agent", payload["text"]))
            case "tool_call":
                call = payload["tool_name"], payload["arguments"]
                values.append(("call", payload["call_id"], *call))
            case "tool_result":
                values.append(("result", payload["call_id"], payload["content"]))
            case "system":
                values.append(("system", payload["text"]))
            case "item":
                values.append(("item", payload["kind"]))
            case kind:
                values.append((kind,))
    return values


def conversation(request: WireRequest) -> list[tuple[Any, ...]]:
    """Return the events of all messages of a request as tuples."""
    events: list[Event] = []
    for message in request.messages:
        events += message.events
    return shown(events)


def codes(warned: WireRequest | WireAnswer) -> list[str]:
    """Return the codes of the warnings."""
    return [warning.code for warning in warned.warnings]


def prefixes(body: bytes) -> st.SearchStrategy[bytes]:
    """Return a strategy of the beginnings of a body."""
    return st.integers(0, len(body) - 1).map(lambda end: body[:end])


def pieces(text: str, sizes: Sequence[int]) -> list[str]:
    """Return a text in pieces of these sizes, and the rest in one piece."""
    cut: list[str] = []
    for size in sizes:
        if not text:
            break
        cut.append(text[:size])
        text = text[size:]
    return [*cut, text] if text or not cut else cut
