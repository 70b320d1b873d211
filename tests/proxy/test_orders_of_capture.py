"""The proxy and a capture record one conversation, in every order of their steps.

On a busy machine, a capture may read an entry before the proxy records its request, or
long after the next one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any, ClassVar, Protocol
from uuid import UUID

import pytest

import refold
from refold.adapters.importers.follower import Follower
from refold.adapters.proxy.exchange import Answer, Exchange
from refold.adapters.proxy.protocols import openai_responses
from refold.adapters.proxy.recorder import StoreRecorder
from refold.domain.events import (
    AgentResponse,
    Event,
    Request,
    SystemPrompt,
    ToolCall,
    ToolResult,
    UserInput,
)
from refold.store import Session, SessionStore
from tests.support.wire import agent, call, exchange_of, reply, result, text, user

USER = "ada"
FIRST_ANSWER = "First, I look."
SECOND_ANSWER = "All is done."
# A capture runs before and behind each of the four steps of the proxy.
CAPTURES = 5


class Conversation(Protocol):
    """A conversation of a client: its requests, and its transcript.

    NAME:    the name of the client for a capture.
    CONTENT: each event of the conversation.
    """

    NAME: ClassVar[str]
    CONTENT: ClassVar[Sequence[str]]

    def path(self, folder: Path) -> Path:
        """Return the path of the transcript."""

    def entries(self) -> list[str]:
        """Return the lines of the transcript, in the order of the conversation."""

    def request(self, number: int) -> Exchange:
        """Return the request with this number, of three."""

    def answer(self, number: int) -> Answer:
        """Return the answer to the request with this number."""


class OfClaudeCode:
    """A conversation of Claude Code with the Messages API."""

    NAME: ClassVar[str] = "claude-code"
    CONTENT: ClassVar[Sequence[str]] = (
        "Look around.",
        FIRST_ANSWER,
        "tool_call",
        "tool_result",
        SECOND_ANSWER,
        "Thanks.",
        "Gladly.",
    )

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id

    def path(self, folder: Path) -> Path:
        return folder / "project" / f"{self._session_id}.jsonl"

    def entries(self) -> list[str]:
        lines: list[str] = []
        parent: str | None = None
        contents = (
            ("user", text("Look around.")),
            ("assistant", text(FIRST_ANSWER)),
            ("assistant", call("t1")),
            ("user", result("t1")),
            ("assistant", text(SECOND_ANSWER)),
        )
        for number, (role, block) in enumerate(contents, start=1):
            uuid = str(UUID(int=UUID(self._session_id).int + number))
            entry: dict[str, Any] = {
                "type": role,
                "uuid": uuid,
                "parentUuid": parent,
                "sessionId": self._session_id,
                "timestamp": f"2026-01-01T00:00:{number:02}.000Z",
                "message": {"role": role, "content": [block]},
            }
            lines.append(json.dumps(entry) + "\n")
            parent = uuid
        return lines

    def request(self, number: int) -> Exchange:
        messages = [
            user("Look around."),
            agent(FIRST_ANSWER, call("t1")),
            user(result("t1")),
            agent(SECOND_ANSWER),
            user("Thanks."),
        ]
        body = {"model": "claude-opus-4-8", "messages": messages[: 2 * number - 1]}
        body["tools"] = [{"name": "bash", "input_schema": {"type": "object"}}]
        name = f"{self._session_id}-{number}"
        headers = {"x-session": self._session_id}
        return exchange_of(name, json.dumps(body).encode(), headers)

    def answer(self, number: int) -> Answer:
        answers = [(FIRST_ANSWER, call("t1")), (SECOND_ANSWER,), ("Gladly.",)]
        return reply(*answers[number - 1])


class OfCodex:
    """A conversation of Codex with the Responses API.

    first_answer: the items of the first answer.
    """

    NAME: ClassVar[str] = "codex"
    CONTENT: ClassVar[Sequence[str]] = (
        "<permissions>on request</permissions>",
        "<environment_context>/w</environment_context>",
        *OfClaudeCode.CONTENT,
    )

    def __init__(
        self, session_id: str, first_answer: Sequence[dict[str, Any]] = ()
    ) -> None:
        self._session_id = session_id
        first = first_answer or [codex_message(FIRST_ANSWER), codex_call("c1")]
        self._conversation = [
            codex_message("<permissions>on request</permissions>", "developer"),
            codex_message("<environment_context>/w</environment_context>", "user"),
            codex_message("Look around.", "user"),
            *first,
            *self._inputs_behind(first),
        ]
        self._first_end = 3 + len(first)
        self._items = [
            *self._conversation,
            codex_message(SECOND_ANSWER),
            codex_message("Thanks.", "user"),
            codex_message("Gladly."),
        ]

    def _inputs_behind(self, answer: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the outputs of the calls in an answer, or else an input."""
        outputs: list[dict[str, Any]] = []
        for item in answer:
            if item["type"] == "function_call":
                call_id = item["call_id"]
                output = {"type": "function_call_output", "call_id": call_id}
                outputs.append({**output, "output": f"a file of {call_id}"})
        return outputs or [codex_message("Go on.", "user")]

    def path(self, folder: Path) -> Path:
        day = "2026-01-01T00-00-00"
        return folder / "2026" / f"rollout-{day}-{self._session_id}.jsonl"

    def entries(self) -> list[str]:
        def line(kind: str, **payload: Any) -> str:
            framed = {
                "timestamp": "2026-01-01T00:00:00Z",
                "type": kind,
                "payload": payload,
            }
            return json.dumps(framed) + "\n"

        beginning = line("session_meta", id=self._session_id)
        beginning += line("turn_context", model="gpt-5")
        for item in self._items[:3]:
            beginning += line("response_item", **item)
        captured = self._items[3 : len(self._conversation) + 1]
        return [beginning, *[line("response_item", **item) for item in captured]]

    def request(self, number: int) -> Exchange:
        second = len(self._conversation)
        body = {
            "model": "gpt-5",
            "instructions": "You are Codex.",
            "input": self._items[: (3, second, second + 2)[number - 1]],
            "tools": [{"type": "function", "name": "shell", "parameters": {}}],
        }
        name = f"{self._session_id}-{number}"
        headers = {"session_id": self._session_id, "user-agent": "codex_cli_rs/1"}
        exchange = exchange_of(name, json.dumps(body).encode(), headers)
        return replace(
            exchange,
            upstream="openai",
            protocol=openai_responses,
            path="/v1/responses",
        )

    def answer(self, number: int) -> Answer:
        second = len(self._conversation)
        outputs = (
            self._items[3 : self._first_end],
            self._items[second : second + 1],
            self._items[second + 2 :],
        )
        body = {
            "id": f"{self._session_id}-{number}",
            "object": "response",
            "model": "gpt-5",
            "status": "completed",
            "output": outputs[number - 1],
        }
        answer = reply()
        headers = {"content-type": "application/json"}
        return replace(answer, headers=headers, body=json.dumps(body).encode())


def codex_message(words: str, role: str = "assistant") -> dict[str, Any]:
    """Return an item of Codex with a message."""
    kind = "output_text" if role == "assistant" else "input_text"
    content = [{"type": kind, "text": words}]
    return {"type": "message", "role": role, "content": content}


def codex_call(call_id: str) -> dict[str, Any]:
    """Return an item of Codex with a call."""
    call = {"type": "function_call", "call_id": call_id, "name": "shell"}
    return {**call, "arguments": "{}"}


def steps_of_proxy(
    recorder: StoreRecorder, conversation: Conversation
) -> Iterator[None]:
    """Record two requests and their answers, step by step."""
    yield
    for number in (1, 2):
        exchange = conversation.request(number)
        recorder.begin(exchange)
        yield
        recorder.finish(exchange, conversation.answer(number))
        yield


def record(
    store: SessionStore, folder: Path, conversation: Conversation, order: Sequence[int]
) -> None:
    """Record a conversation, with its next request and answer.

    order: how many entries the transcript has at each capture.
    """
    recorder = StoreRecorder(store, user_id=USER)
    path = conversation.path(folder)
    path.parent.mkdir(parents=True)
    entries = conversation.entries()
    follower = Follower(store, conversation.NAME, user_id=USER, folder=folder)
    with follower.alone(), path.open("a") as file:
        written = 0
        steps = steps_of_proxy(recorder, conversation)
        for count, _ in zip(order, steps, strict=True):
            file.writelines(entries[written:count])
            file.flush()
            written = count
            follower.look()
    exchange = conversation.request(3)
    recorder.begin(exchange)
    recorder.finish(exchange, conversation.answer(3))


def content_of(session: Session) -> Counter[str]:
    """Count the texts, calls, and results of a session."""
    content = Counter(_name_of(event.payload) for event in session.events())
    del content[""]
    return content


def _name_of(event: Event) -> str:
    match event:
        case UserInput(text=words) | AgentResponse(text=words):
            return words
        case SystemPrompt(text=str(words)):
            return words
        case ToolCall() | ToolResult():
            return event.type
    return ""


def changed_views(session: Session) -> list[int]:
    """Return the seqs of the requests whose context differs from what was sent."""
    changed: list[int] = []
    for envelope in session.events(types=("request",)):
        request = envelope.payload
        assert isinstance(request, Request)
        if session.context(at=envelope.seq).digest != request.digest:
            changed.append(envelope.seq)
    return changed


@pytest.fixture(name="store")
def _store(tmp_path: Path) -> Iterator[SessionStore]:
    """A store on SQLite: the order of the steps is the same on PostgreSQL."""
    with refold.open(f"sqlite:///{tmp_path / 'refold.db'}") as store:
        yield store


@pytest.mark.parametrize("kind", [OfClaudeCode, OfCodex])
def test_every_order_stores_each_event_once(
    store: SessionStore, tmp_path: Path, kind: type[OfClaudeCode | OfCodex]
) -> None:
    entry_count = len(kind(str(UUID(int=0))).entries())
    orders = list(combinations_with_replacement(range(entry_count + 1), CAPTURES))
    problems: dict[Sequence[int], Any] = {}
    for number, order in enumerate(orders):
        session_id = str(UUID(int=number << 32))
        record(store, tmp_path / str(number), kind(session_id), order)
        session = store.session(user_id=USER, session_id=session_id)
        content = content_of(session)
        changed = changed_views(session)
        if content != Counter(kind.CONTENT) or changed:
            problems[order] = content, changed

    assert len(orders) == 252
    assert not problems
