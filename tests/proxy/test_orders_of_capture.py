"""The proxy and a capture record one conversation, in every order of their steps.

On a busy machine, a capture may read an entry before the proxy records its request, or
long after the next one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import refold
from refold.adapters.importers.follower import Follower
from refold.adapters.proxy.exchange import Exchange
from refold.adapters.proxy.recorder import StoreRecorder
from refold.domain.events import AgentResponse, ToolCall, ToolResult, UserInput
from refold.store import Session, SessionStore
from tests.support.wire import (
    WireClient,
    agent,
    call,
    check_contexts,
    reply,
    result,
    text,
    user,
)

USER = "ada"
# The content of each entry of the transcript, with its role.
ENTRIES = (
    ("user", text("Look around.")),
    ("assistant", text("First, I look.")),
    ("assistant", call("t1")),
    ("user", result("t1")),
    ("assistant", text("All is done.")),
)
# A capture runs before and behind each of the four steps of the proxy.
CAPTURES = 5


def lines_of(session_id: str) -> list[str]:
    """Return the lines of the transcript."""
    lines: list[str] = []
    parent: str | None = None
    for number, (role, block) in enumerate(ENTRIES, start=1):
        uuid = str(UUID(int=UUID(session_id).int + number))
        entry: dict[str, Any] = {
            "type": role,
            "uuid": uuid,
            "parentUuid": parent,
            "sessionId": session_id,
            "timestamp": f"2026-01-01T00:00:{number:02}.000Z",
            "message": {"role": role, "content": [block]},
        }
        lines.append(json.dumps(entry) + "\n")
        parent = uuid
    return lines


def steps_of_proxy(client: WireClient) -> Iterator[None]:
    """Record two requests and their answers, step by step."""

    def begun() -> Exchange:
        exchange = client.exchange()
        client.recorder.begin(exchange)
        return exchange

    yield
    client.messages.append(user("Look around."))
    first = begun()
    yield
    client.recorder.finish(first, reply("First, I look.", call("t1")))
    yield
    client.messages += [agent("First, I look.", call("t1")), user(result("t1"))]
    second = begun()
    yield
    client.recorder.finish(second, reply("All is done."))
    yield


def record(
    store: SessionStore, folder: Path, session_id: str, order: Sequence[int]
) -> WireClient:
    """Record the conversation; returns the client behind its next request.

    order: how many entries the transcript has at each capture.
    """
    client = WireClient(StoreRecorder(store, user_id=USER), session_id)
    path = folder / "project" / f"{session_id}.jsonl"
    path.parent.mkdir(parents=True)
    lines = lines_of(session_id)
    follower = Follower(store, "claude-code", user_id=USER, folder=folder)
    with follower.alone(), path.open("a") as file:
        written = 0
        for count, _ in zip(order, steps_of_proxy(client), strict=True):
            file.writelines(lines[written:count])
            file.flush()
            written = count
            follower.look()
    client.messages.append(agent("All is done."))
    client.say("Thanks.", "Gladly.")
    return client


def content_of(session: Session) -> Counter[str]:
    """Count the texts, calls, and results of a session."""
    content = Counter[str]()
    for envelope in session.events():
        event = envelope.payload
        if isinstance(event, UserInput | AgentResponse):
            content[event.text] += 1
        elif isinstance(event, ToolCall | ToolResult):
            content[event.type] += 1
    del content[""]  # of the beginning of an answer without text
    return content


@pytest.fixture(name="store")
def _store(tmp_path: Path) -> Iterator[SessionStore]:
    """A store on SQLite: the order of the steps is the same on PostgreSQL."""
    with refold.open(f"sqlite:///{tmp_path / 'refold.db'}") as store:
        yield store


def test_every_order_stores_each_event_once(
    store: SessionStore, tmp_path: Path
) -> None:
    counts = range(len(ENTRIES) + 1)
    expected = [
        "Look around.",
        "First, I look.",
        "tool_call",
        "tool_result",
        "All is done.",
        "Thanks.",
        "Gladly.",
    ]
    problems: dict[Sequence[int], Any] = {}
    clients: list[WireClient] = []
    orders = list(combinations_with_replacement(counts, CAPTURES))
    for number, order in enumerate(orders):
        session_id = str(UUID(int=number << 32))
        clients.append(record(store, tmp_path / str(number), session_id, order))
        session = store.session(user_id=USER, session_id=session_id)
        content = content_of(session)
        if content != Counter(expected):
            problems[order] = content
        elif session.verify().problems:
            problems[order] = session.verify().problems
    sent = WireClient(None, sent=[pair for client in clients for pair in client.sent])

    assert len(orders) == 252
    assert not problems
    assert check_contexts(store, sent, USER) == 3 * len(orders)
