"""A proxy recognizes an answer whose parts a transcript has as separate entries.

Claude Code writes thinking, texts, and calls of an answer one by one, each with the
provider's id of the answer.  A capture may read any number of them before the proxy
records the answer, or the next request.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import refold
from refold.adapters.importers.follower import Follower
from refold.adapters.proxy.exchange import Exchange
from refold.adapters.proxy.protocols import anthropic
from refold.adapters.proxy.recorder import StoreRecorder
from refold.domain.events import AgentResponse, ToolCall, ToolResult, UserInput
from refold.store import Session, SessionStore
from tests.proxy.test_orders_of_capture import changed_views
from tests.support.wire import (
    WireClient,
    agent,
    call,
    flat,
    reply,
    result,
    text,
    user,
)

USER = "ada"
# A capture runs before and behind the two steps of the proxy.
CAPTURES = 3


def thinking(words: str) -> dict[str, Any]:
    """Return a block of thinking with a signature."""
    return {"type": "thinking", "thinking": words, "signature": f"Sig{words}=="}


REDACTED = {"type": "redacted_thinking", "data": "EncryptedData=="}
UNSIGNED = {"type": "thinking", "thinking": "Without a signature."}
MAIL = "I write to ada@example.org."
ANSWERS = {
    "thinking and a text": [thinking("A"), text("First.")],
    "thinking, a text, a call": [thinking("A"), text("First."), call("t1")],
    "thinking and a call": [thinking("A"), call("t1")],
    "thinking between texts": [
        text("First."),
        thinking("A"),
        text("Then."),
        call("t1"),
    ],
    "redacted thinking": [text("First."), REDACTED, call("t1")],
    "thinking without a signature": [UNSIGNED, text("First."), call("t1")],
    "thinking without a signature, and a call": [UNSIGNED, call("t1")],
    "thinking without a signature and with one": [
        UNSIGNED,
        thinking("A"),
        text("First."),
    ],
    "a redacted text": [thinking("A"), text(MAIL), call("t1", mail="ada@example.org")],
}


class Transcript:
    """The file of Claude Code with one answer, each block of which is an entry."""

    def __init__(self, folder: Path, session_id: str, answer: Sequence[Any]) -> None:
        self._path = folder / "project" / f"{session_id}.jsonl"
        self._path.parent.mkdir(parents=True)
        self._session_id = session_id
        self._written = 0
        self._lines: list[str] = []
        self._add("user", text("Look around."))
        for block in answer:
            self._add("assistant", block)
        for block in results_of(answer):
            self._add("user", block)

    def _add(self, role: str, block: Any) -> None:
        number = len(self._lines) + 1
        message: dict[str, Any] = {"role": role, "content": [block]}
        if role == "assistant":
            message["id"] = f"msg_{self._session_id}"
        first = UUID(self._session_id).int
        entry = {
            "type": role,
            "uuid": str(UUID(int=first + number)),
            "parentUuid": str(UUID(int=first + number - 1)) if number > 1 else None,
            "sessionId": self._session_id,
            "timestamp": f"2026-01-01T00:00:{number:02}.000Z",
            "message": message,
        }
        self._lines.append(json.dumps(entry) + "\n")

    def __len__(self) -> int:
        return len(self._lines)

    def write(self, count: int) -> None:
        """Let the file have this number of entries."""
        with self._path.open("a") as file:
            file.writelines(self._lines[self._written : count])
        self._written = max(self._written, count)


def exchange_of_claude_code(client: WireClient) -> Exchange:
    """Return the exchange of a client's next request, as Claude Code sends it."""
    headers = {"x-claude-code-session-id": str(client.session)}
    return replace(client.exchange(), protocol=anthropic, headers=headers)


def results_of(answer: Sequence[Any]) -> list[Any]:
    """Return the results of the calls in an answer."""
    return [result(block["id"]) for block in answer if block["type"] == "tool_use"]


def record(
    store: SessionStore,
    folder: Path,
    session_id: str,
    answer: Sequence[Any],
    order: Sequence[int],
    *,
    later: Sequence[Any],
) -> WireClient:
    """Record an answer with the proxy and a capture, and the next request.

    order: how many entries the transcript has at each capture.
    later: the answer as later requests have it.

    Returns the client of the proxy.
    """
    transcript = Transcript(folder, session_id, answer)
    client = WireClient(StoreRecorder(store, user_id=USER), session_id)
    client.messages.append(user("Look around."))
    follower = Follower(store, "claude-code", user_id=USER, folder=folder)
    with follower.alone():
        counts = iter([*order, len(transcript)])

        def capture() -> None:
            transcript.write(next(counts))
            follower.look()

        capture()
        exchange = exchange_of_claude_code(client)
        client.recorder.begin(exchange)
        capture()
        client.recorder.finish(exchange, reply(*answer, message_id=f"msg_{session_id}"))
        capture()
        client.messages.append(agent(*later))
        client.messages.append(user(*results_of(answer), "Thanks."))
        if sum(order) % 2:
            client.recorder = StoreRecorder(store, user_id=USER)
        exchange = exchange_of_claude_code(client)
        client.recorder.begin(exchange)
        client.recorder.finish(exchange, reply("Gladly."))
        capture()
    return client


def content_of(session: Session) -> Counter[str]:
    """Count the texts, thinking, calls, and results of a session."""
    content = Counter[str]()
    for envelope in session.events():
        event = envelope.payload
        match event:
            case UserInput(text=words):
                content[words] += 1
            case AgentResponse():
                # A text between thinking may stand with another one.
                for words in event.text.split(".")[:-1]:
                    content[f"{words}."] += 1
                for block in event.thinking:
                    content[str(block.signature or block.data or block.thinking)] += 1
            case ToolCall() | ToolResult():
                content[f"{event.type} {event.call_id}"] += 1
    return content


def expected_of(answer: Sequence[Any]) -> Counter[str]:
    """Return the content of a session with an answer."""
    content = Counter(["Look around.", "Thanks.", "Gladly."])
    for block in answer:
        match block["type"]:
            case "text":
                words = block["text"].replace("ada@example.org", "[REDACTED:EMAIL]")
                content[words] += 1
            case "tool_use":
                content[f"tool_call {block['id']}"] += 1
                content[f"tool_result {block['id']}"] += 1
            case _:
                name = block.get("signature") or block.get("data") or block["thinking"]
                content[name] += 1
    return content


def differing_contexts(session: Session, client: WireClient) -> list[int]:
    """Return the seqs of the requests whose context is not what the client sent."""
    bodies = dict(client.sent)
    differing: list[int] = []
    for envelope in session.events(types=("request",)):
        sent = bodies[envelope.request_id or ""]["messages"]
        for message in sent:
            # Contexts show no thinking that a provider did not sign.
            message["content"] = [
                block for block in message["content"] if block != UNSIGNED
            ]
        shown = session.context(at=envelope.seq).messages
        expected = str(flat(sent)).replace("ada@example.org", "[REDACTED:EMAIL]")
        if str(flat(shown)) != expected:
            differing.append(envelope.seq)
    return differing


@pytest.fixture(name="store")
def _store(tmp_path: Path) -> Iterator[SessionStore]:
    """A store on SQLite: the order of the steps is the same on PostgreSQL."""
    with refold.open(f"sqlite:///{tmp_path / 'refold.db'}") as store:
        yield store


@pytest.mark.parametrize("name", ANSWERS)
def test_each_part_of_an_answer_is_stored_once_in_every_order(
    store: SessionStore, tmp_path: Path, name: str
) -> None:
    answer = ANSWERS[name]
    problems = problems_in_all_orders(store, tmp_path, answer, later=answer)

    assert not problems


@pytest.mark.parametrize("name", ["thinking, a text, a call", "thinking between texts"])
def test_a_client_may_drop_thinking_that_was_captured(
    store: SessionStore, tmp_path: Path, name: str
) -> None:
    answer = ANSWERS[name]
    later = [block for block in answer if block["type"] != "thinking"]
    problems = problems_in_all_orders(store, tmp_path, answer, later=later)

    assert not problems


def problems_in_all_orders(
    store: SessionStore,
    folder: Path,
    answer: Sequence[Any],
    *,
    later: Sequence[Any],
) -> dict[Sequence[int], Any]:
    """Record an answer in every order; return the orders with wrong content.

    later: the answer as later requests have it.
    """
    entry_count = 1 + len(answer) + len(results_of(answer))
    orders = list(combinations_with_replacement(range(entry_count + 1), CAPTURES))
    assert len(orders) > 10
    problems: dict[Sequence[int], Any] = {}
    for number, order in enumerate(orders):
        session_id = str(UUID(int=number << 32))
        client = record(
            store, folder / str(number), session_id, answer, order, later=later
        )
        session = store.session(user_id=USER, session_id=session_id)
        content = content_of(session)
        expected = expected_of(answer)
        changed = [*changed_views(session), *differing_contexts(session, client)]
        if content != expected or changed:
            problems[order] = content - expected, expected - content, changed
    return problems
