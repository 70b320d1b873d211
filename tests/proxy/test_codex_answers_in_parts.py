"""Answers of Codex with several items are stored once, in whatever way they come.

Codex writes each item of an answer as a line of its own, without an id of the answer.
The proxy records all items as one answer.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import refold
from refold.adapters.importers.follower import Follower
from refold.adapters.proxy.recorder import StoreRecorder
from refold.domain.events import (
    AgentResponse,
    Request,
    SystemPrompt,
    ToolCall,
    ToolResult,
    UserInput,
)
from refold.store import Session, SessionStore
from tests.proxy.test_orders_of_capture import (
    SECOND_ANSWER,
    USER,
    OfCodex,
    changed_views,
    codex_call,
    codex_message,
)

# A capture runs before and behind the two steps of the first answer.
CAPTURES = 3
MAIL = "I write to ada@example.org now."
PLACEHOLDER = "[REDACTED:EMAIL]"


def reasoning(name: str, summary: str = "") -> dict[str, Any]:
    """Return an item with encrypted reasoning."""
    texts = [{"type": "summary_text", "text": summary}] if summary else []
    return {
        "type": "reasoning",
        "id": f"rs_{name}",
        "summary": texts,
        "content": None,
        "encrypted_content": f"gAAAAABc2Vh{name}bGVkc2VhbGVk",
    }


ANSWERS = {
    "reasoning and a text": [reasoning("a"), codex_message("First.")],
    "reasoning and a call": [reasoning("a", "I think."), codex_call("c1")],
    "reasoning, a text, and two calls": [
        reasoning("a", "I think."),
        codex_message("First."),
        codex_call("c1"),
        codex_call("c2"),
    ],
    "two messages": [codex_message("First."), codex_message("Then.")],
    "two messages and a call": [
        codex_message("First."),
        codex_message("Then."),
        codex_call("c1"),
    ],
    "two calls": [codex_call("c1"), codex_call("c2")],
    "reasoning between messages": [
        codex_message("First."),
        reasoning("a", "I think."),
        reasoning("b"),
        codex_message("Then."),
    ],
    "redacted texts": [
        reasoning("a"),
        codex_message(MAIL),
        codex_message("Then."),
        codex_call("c1"),
    ],
}
# Contexts show the output of the first call late if the lines were captured.
REASONING_BEHIND_A_CALL = [
    reasoning("a", "I think."),
    codex_call("c1"),
    reasoning("b"),
    codex_call("c2"),
]


def follow(
    store: SessionStore, folder: Path, conversation: OfCodex
) -> Callable[[int], None]:
    """Return the function that captures the first entries of the transcript."""
    path = conversation.path(folder)
    path.parent.mkdir(parents=True)
    lines = conversation.entries()
    follower = Follower(store, "codex", user_id=USER, folder=folder)

    def capture(count: int) -> None:
        path.write_text("".join(lines[:count]))
        with follower.alone():
            follower.look()

    return capture


def record(
    store: SessionStore, folder: Path, conversation: OfCodex, order: Sequence[int]
) -> None:
    """Record a conversation with the proxy and a capture.

    order: how many entries the transcript has at each capture of the first answer.
    """
    capture = follow(store, folder, conversation)
    recorder = StoreRecorder(store, user_id=USER)
    before, between, behind = order
    capture(before)
    exchange = conversation.request(1)
    recorder.begin(exchange)
    capture(between)
    recorder.finish(exchange, conversation.answer(1))
    capture(behind)
    if sum(order) % 2:
        recorder = StoreRecorder(store, user_id=USER)
    for number in (2, 3):
        exchange = conversation.request(number)
        recorder.begin(exchange)
        recorder.finish(exchange, conversation.answer(number))
    capture(len(conversation.entries()))


def content_of(session: Session) -> Counter[str]:
    """Count the texts, reasoning, calls, and results of a session."""
    content = Counter[str]()
    for envelope in session.events():
        event = envelope.payload
        match event:
            case UserInput(text=words):
                content[words] += 1
            case SystemPrompt(text=str(words)):
                content[words] += 1
            case AgentResponse():
                text = event.text.replace(PLACEHOLDER, "ada@example org")
                for words in text.split(".")[:-1]:
                    content[f"{words}."] += 1
                for block in event.thinking:
                    content[str(block.data)] += 1
            case ToolCall() | ToolResult():
                content[f"{event.type} {event.call_id}"] += 1
    return content


def expected_of(answer: Sequence[dict[str, Any]]) -> Counter[str]:
    """Return the content of a session with an answer."""
    content = Counter(
        [
            "<permissions>on request</permissions>",
            "<environment_context>/w</environment_context>",
            "Look around.",
            SECOND_ANSWER,
            "Thanks.",
            "Gladly.",
        ]
    )
    for item in answer:
        match item["type"]:
            case "message":
                words = item["content"][0]["text"]
                content[words.replace("example.org", "example org")] += 1
            case "reasoning":
                content[item["encrypted_content"]] += 1
            case _:
                content[f"tool_call {item['call_id']}"] += 1
                content[f"tool_result {item['call_id']}"] += 1
    if not any(item["type"] == "function_call" for item in answer):
        content["Go on."] += 1
    return content


def contexts_of(session: Session) -> list[str]:
    """Return the context of each request."""
    requests = session.events(types=("request",))
    return [flat(session.context(at=request.seq).messages) for request in requests]


def flat(messages: Sequence[Any]) -> str:
    """Return messages as text, with neighboring texts of a role as one."""
    parts: list[tuple[str, Any]] = []
    for message in messages:
        for block in message["content"]:
            role = message["role"]
            is_text = block["type"] == "text"
            if is_text and parts and parts[-1][0] == f"{role} text":
                parts[-1] = (f"{role} text", parts[-1][1] + block["text"])
            elif is_text:
                parts.append((f"{role} text", block["text"]))
            else:
                parts.append((role, block))
    return json.dumps(parts, sort_keys=True)


@pytest.fixture(name="store")
def _store(tmp_path: Path) -> Iterator[SessionStore]:
    """A store on SQLite: the order of the steps is the same on PostgreSQL."""
    with refold.open(f"sqlite:///{tmp_path / 'refold.db'}") as store:
        yield store


def sessions_in_all_orders(
    store: SessionStore, folder: Path, answer: Sequence[dict[str, Any]]
) -> Iterator[tuple[Sequence[int], Session]]:
    """Record an answer in every order; yield the orders and their sessions.

    In the first one, the proxy has recorded all before the capture begins.
    """
    entry_count = len(OfCodex("", answer).entries())
    orders = list(combinations_with_replacement(range(entry_count + 1), CAPTURES))
    assert len(orders) > 30
    for number, order in enumerate(orders):
        session_id = str(UUID(int=number << 32))
        record(store, folder / str(number), OfCodex(session_id, answer), order)
        yield order, store.session(user_id=USER, session_id=session_id)


@pytest.mark.parametrize("name", ANSWERS)
def test_each_item_of_an_answer_is_stored_once_in_every_order(
    store: SessionStore, tmp_path: Path, name: str
) -> None:
    answer = ANSWERS[name]
    expected = expected_of(answer)
    contexts: list[str] = []
    problems: dict[Sequence[int], Any] = {}
    for order, session in sessions_in_all_orders(store, tmp_path, answer):
        content = content_of(session)
        contexts = contexts or contexts_of(session)
        if content != expected or changed_views(session):
            problems[order] = content - expected, expected - content
        elif contexts_of(session) != contexts:
            problems[order] = contexts_of(session), contexts

    assert not problems


def test_requests_behind_a_late_output_do_not_claim_to_show_what_was_sent(
    store: SessionStore, tmp_path: Path
) -> None:
    answer = REASONING_BEHIND_A_CALL
    expected = expected_of(answer)
    contexts: list[str] = []
    problems: dict[Sequence[int], Any] = {}
    for order, session in sessions_in_all_orders(store, tmp_path, answer):
        contexts = contexts or contexts_of(session)
        claims: list[bool] = []
        for envelope in session.events(types=("request",)):
            assert isinstance(envelope.payload, Request)
            claims.append(bool(envelope.payload.matches))
        shown = contexts_of(session)
        for claim, context, sent in zip(claims, shown, contexts, strict=True):
            if claim and context != sent:
                problems[order] = context, sent
        if content_of(session) != expected or changed_views(session):
            problems[order] = content_of(session) - expected, changed_views(session)

    assert not problems


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("way", ["capture", "import"])
def test_a_transcript_alone_shows_an_answer_as_the_client_sends_it_back(
    store: SessionStore, tmp_path: Path, name: str, way: str
) -> None:
    answer = ANSWERS[name]
    proxied = OfCodex(str(UUID(int=1)), answer)
    record(store, tmp_path / "proxied", proxied, (0, 0, 0))
    recorded = store.session(user_id=USER, session_id=str(UUID(int=1)))
    alone = OfCodex(str(UUID(int=2)), answer)
    session = take_transcript(store, tmp_path / "alone", alone, way)

    _, sent_with_answer, _ = contexts_of(recorded)
    shown = flat(session.context(at=session.head().seq - 1).messages)
    assert shown == sent_with_answer


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("way", ["capture", "import"])
@pytest.mark.parametrize("is_late", [False, True])
def test_the_proxy_and_another_way_one_after_the_other_store_each_item_once(
    store: SessionStore, tmp_path: Path, name: str, way: str, *, is_late: bool
) -> None:
    session_id = str(UUID(int=3))
    conversation = OfCodex(session_id, ANSWERS[name])
    if not is_late:
        take_transcript(store, tmp_path / "way", conversation, way)
    recorder = StoreRecorder(store, user_id=USER)
    for number in (1, 2, 3) if is_late else (3,):
        exchange = conversation.request(number)
        recorder.begin(exchange)
        recorder.finish(exchange, conversation.answer(number))
    if is_late:
        take_transcript(store, tmp_path / "way", conversation, way)

    session = store.session(user_id=USER, session_id=session_id)
    assert content_of(session) == expected_of(ANSWERS[name])
    assert not changed_views(session)


def take_transcript(
    store: SessionStore, folder: Path, conversation: OfCodex, way: str
) -> Session:
    """Capture or import the whole transcript; return its session."""
    if way == "capture":
        follow(store, folder, conversation)(len(conversation.entries()))
    else:
        path = conversation.path(folder)
        path.parent.mkdir(parents=True)
        path.write_text("".join(conversation.entries()))
        store.import_transcript(path, user_id=USER)
    session_id = conversation.path(folder).stem[-36:]
    return store.session(user_id=USER, session_id=session_id)
