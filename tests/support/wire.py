"""A small protocol in the form of the Messages API, and a client that speaks it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import Any

from refold.adapters.importers import messages as blocks
from refold.adapters.importers.base import Piece
from refold.adapters.importers.response import events_of
from refold.adapters.proxy.conversation import (
    SessionHint,
    WireAnswer,
    WireMessage,
    WireRequest,
)
from refold.adapters.proxy.exchange import Answer, Exchange
from refold.domain.events import AgentError, AgentResponse, UserInput, event_of
from refold.store import SessionStore

_NUMBERS = count(1)


class MessagesProtocol:
    """Reads the Messages API, with the session in headers."""

    NAME = "anthropic-messages"
    LAST_LINES: tuple[bytes, ...] = (b"event: message_stop",)

    def matches(self, method: str, path: str) -> bool:
        return method == "POST" and path.startswith("/v1/messages")

    def request(
        self,
        body: bytes,
        headers: Mapping[str, str],
        path: str,
    ) -> WireRequest:
        fields = json.loads(body)
        messages = []
        for message in fields["messages"]:
            pieces_of = blocks.agent if message["role"] == "assistant" else blocks.user
            events = [
                event_of(piece.type, piece.fields)
                for piece in pieces_of(message["content"])
                if isinstance(piece, Piece)
            ]
            messages.append(WireMessage(message["role"], tuple(events)))
        hint = SessionHint(
            session_id=headers.get("x-session"),
            agent="test-client",
            previous_response_id=fields.get("previous_response_id"),
            thread=headers.get("x-thread"),
        )
        return WireRequest(
            protocol=self.NAME,
            model=fields.get("model"),
            system=fields.get("system"),
            tools=tuple(fields.get("tools", ())),
            messages=tuple(messages),
            options={"max_tokens": 1000},
            hint=hint,
            stream=False,
        )

    def answer(
        self,
        status: int,
        headers: Mapping[str, str],
        body: bytes,
        *,
        complete: bool,
    ) -> WireAnswer:
        if status >= 400:
            error = AgentError(
                code="overloaded_error",
                message=f"HTTP {status}",
                where=self.NAME,
                retryable=True,
                context={"status": status},
            )
            return WireAnswer((error,), None, None, complete=False)
        message = json.loads(body)
        return WireAnswer(
            tuple(events_of(message)), message["id"], message["model"], complete
        )


PROTOCOL = MessagesProtocol()
TOOLS = (
    {
        "name": "bash",
        "description": "Runs a command.",
        "input_schema": {"type": "object", "properties": {}},
    },
    {
        "name": "task",
        "description": "Starts a sub-agent.",
        "input_schema": {"type": "object", "properties": {}},
    },
)


def text(words: str) -> dict[str, Any]:
    """Return a text block."""
    return {"type": "text", "text": words}


def call(call_id: str, name: str = "bash", **arguments: Any) -> dict[str, Any]:
    """Return the block of a call."""
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def result(call_id: str, content: Any = "done") -> dict[str, Any]:
    """Return the block of a result."""
    return {"type": "tool_result", "tool_use_id": call_id, "content": content}


def user(*content: Any) -> dict[str, Any]:
    """Return a message of the user."""
    parts = [text(part) if isinstance(part, str) else part for part in content]
    return {"role": "user", "content": parts}


def agent(*content: Any) -> dict[str, Any]:
    """Return a message of the model."""
    parts = [text(part) if isinstance(part, str) else part for part in content]
    return {"role": "assistant", "content": parts}


@dataclass(slots=True)
class WireClient:
    """A client that sends its messages through a recorder.

    sent: each request, and the id by which the log names it.
    """

    recorder: Any
    session: str | None = "s-1"
    thread: str | None = None
    system: str | None = "You are helpful."
    tools: tuple[Any, ...] = TOOLS
    messages: list[dict[str, Any]] = field(default_factory=list)
    sent: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def exchange(self, **more: Any) -> Exchange:
        """Return the exchange of a request with the current messages."""
        number = next(_NUMBERS)
        body: dict[str, Any] = {
            "model": "claude-opus-4-8",
            "messages": deepcopy(self.messages),
            **more,
        }
        if self.system is not None:
            body["system"] = self.system
        if self.tools:
            body["tools"] = list(self.tools)
        headers = {}
        if self.session is not None:
            headers["x-session"] = self.session
        if self.thread is not None:
            headers["x-thread"] = self.thread
        name = f"exchange-{number}"
        self.sent.append((name, body))
        return exchange_of(name, json.dumps(body).encode(), headers)

    def send(self, *answer: Any, echo: bool = True, **more: Any) -> str:
        """Send the messages; the answer becomes the next message unless ``echo``.

        Returns the id of the exchange.
        """
        exchange = self.exchange(**more)
        self.recorder.begin(exchange)
        self.recorder.finish(exchange, reply(*answer))
        if echo:
            self.messages.append(agent(*answer))
        return exchange.exchange_id

    def say(self, words: Any, *answer: Any) -> str:
        """Send a message of the user, and take the answer."""
        self.messages.append(user(words))
        return self.send(*answer)


def exchange_of(name: str, body: bytes, headers: Mapping[str, str]) -> Exchange:
    """Return the exchange of a request with this body."""
    return Exchange(
        exchange_id=name,
        upstream="anthropic",
        protocol=PROTOCOL,
        method="POST",
        path="/v1/messages",
        headers=headers,
        body=body,
        truncated=False,
        began_at=datetime.now(UTC),
    )


def reply(
    *content: Any,
    status: int | None = 200,
    ending: Any = "complete",
    message_id: str = "",
) -> Answer:
    """Return the end of an exchange, with an answer of these blocks."""
    number = next(_NUMBERS)
    message = {
        "id": message_id or f"msg_{number}",
        "model": "claude-opus-4-8",
        "role": "assistant",
        "content": agent(*content)["content"],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 10, "output_tokens": 5},
    }
    now = datetime.now(UTC)
    return Answer(
        ending=ending,
        status=status,
        headers={},
        body=json.dumps(message).encode(),
        truncated=False,
        error="",
        first_byte_at=now,
        ended_at=now,
    )


def flat(messages: Any) -> list[tuple[str, Any]]:
    """Return the content of messages in their order, in a form that can be compared.

    Each block has its role.  Texts of one role that follow one another are joined, as
    the API joins messages of one role; results come first.
    """
    parts: list[tuple[str, Any]] = []
    for message in messages:
        content = message["content"]
        if isinstance(content, str):
            content = [text(content)]
        for block in content:
            plain = {
                name: value
                for name, value in block.items()
                if name not in ("cache_control", "caller") and value is not None
            }
            parts.append((message["role"], plain))
    return _in_order(parts)


def _in_order(parts: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    runs: list[tuple[str, list[Any]]] = []
    for role, block in parts:
        if not runs or runs[-1][0] != role:
            runs.append((role, []))
        runs[-1][1].append(block)
    ordered: list[tuple[str, Any]] = []
    for role, blocks_of_role in runs:
        results = [b for b in blocks_of_role if b["type"] == "tool_result"]
        others = [b for b in blocks_of_role if b["type"] != "tool_result"]
        words = ""
        for block in (*results, *others):
            if block["type"] == "text":
                words += re.sub(r"\s+", "", block["text"])
                continue
            if words:
                ordered.append((role, words))
                words = ""
            ordered.append((role, block))
        if words:
            ordered.append((role, words))
    return ordered


def redacted(store: SessionStore, user_id: str, messages: Any) -> Any:
    """Return messages as the store redacts them."""
    writer = store.writer
    clean, _ = writer.redactor.value({"messages": messages}, tag=writer.tagger(user_id))
    return clean["messages"]


def check_contexts(store: SessionStore, client: WireClient, user_id: str) -> int:
    """Check that each context of a client's requests equals what it sent.

    Returns the number of requests that the store has.
    """
    bodies = dict(client.sent)
    compared = 0
    for info in store.sessions(user_id):
        session = store.session(user_id=user_id, session_id=info.session_id)
        for envelope in session.events(types=("request",)):
            body = bodies.get(envelope.request_id or "")
            if body is None:
                continue
            compared += 1
            view = session.context(at=envelope.seq)
            messages = redacted(store, user_id, body["messages"])
            assert flat(view.messages) == flat(messages), envelope.request_id
            assert view.system == body.get("system")
            assert list(view.tools) == body.get("tools", [])
            assert view.digest == envelope.payload.digest  # type: ignore[union-attr]  # a request
    return compared


def stored_texts(store: SessionStore, user_id: str) -> Counter[str]:
    """Count the texts of the conversations in the log."""
    counts: Counter[str] = Counter()
    for info in store.sessions(user_id):
        session = store.session(user_id=user_id, session_id=info.session_id)
        for event in session.events():
            if isinstance(event.payload, UserInput | AgentResponse):
                counts[event.payload.text] += 1
    del counts[""]
    return counts
