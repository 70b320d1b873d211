"""Entries of a transcript are recognized among the events of the proxy, one by one.

A text or an id may come again, so each entry belongs to one event: else an input would
be lost, or stored twice.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from refold.adapters.importers.follower import Follower
from refold.adapters.proxy import history
from refold.adapters.proxy.exchange import Exchange
from refold.adapters.proxy.history import Entry, History, Item, Plan, plan
from refold.adapters.proxy.recorder import StoreRecorder
from refold.domain.events import AgentResponse
from refold.store import SessionStore
from tests.proxy.test_beside_capture import SESSION, USER, entry, transcript
from tests.proxy.test_orders_of_capture import OfCodex, content_of
from tests.support.wire import (
    WireClient,
    agent,
    call,
    check_contexts,
    reply,
    result,
    stored_texts,
    user,
)


def client_of(store: SessionStore) -> WireClient:
    """Return a client of a proxy."""
    return WireClient(StoreRecorder(store, user_id=USER), SESSION)


def begun(client: WireClient) -> Exchange:
    """Record a request whose answer has not arrived."""
    exchange = client.exchange()
    client.recorder.begin(exchange)
    return exchange


def fail(client: WireClient) -> None:
    """Record a request that the provider refuses."""
    client.recorder.finish(begun(client), reply(status=529))


def entries_of(*contents: Any) -> list[dict[str, Any]]:
    """Return entries of the user and of the model in turn.

    A text is an entry, and so is a block of a call or of a result.
    """
    entries: list[dict[str, Any]] = []
    for number, content in enumerate(contents, start=1):
        role = "user" if number % 2 else "assistant"
        of_content = entry(number, role, content if isinstance(content, str) else "")
        if not isinstance(content, str):
            of_content["message"]["content"] = [content]
        entries.append(of_content)
    return entries


def capture(store: SessionStore, folder: Path, *contents: Any) -> None:
    """Capture a transcript with these contents, as of ``entries_of``."""
    transcript(folder, *entries_of(*contents))
    Follower(store, "claude-code", user_id=USER, folder=folder).catch_up()


def test_an_input_after_a_compaction_may_be_an_old_one_again(
    store: SessionStore, tmp_path: Path
) -> None:
    client = client_of(store)
    for number in range(3):
        client.say("continue", f"Part {number}.")
    client.messages[:] = [user("Summary of it all.")]
    client.send("I have the summary.")
    client.messages.append(user("continue"))
    exchange = begun(client)

    old = [text for n in range(3) for text in ("continue", f"Part {n}.")]
    summary = ("Summary of it all.", "I have the summary.")
    capture(store, tmp_path, *old, *summary, "continue")
    client.recorder.finish(exchange, reply("Part 4."))

    assert stored_texts(store, USER)["continue"] == 4


def test_an_input_after_a_rewind_may_be_an_old_one_again(
    store: SessionStore, tmp_path: Path
) -> None:
    client = client_of(store)
    client.say("Hello.", "Hi.")
    client.say("Go on.", "Done.")
    del client.messages[2:]
    client.say("Do something else.", "Done, too.")
    client.messages.append(user("Go on."))
    exchange = begun(client)

    branch = ("Hello.", "Hi.", "Go on.", "Done.")
    capture(store, tmp_path, *branch, "Do something else.", "Done, too.", "Go on.")
    client.recorder.finish(exchange, reply("More."))

    assert stored_texts(store, USER)["Go on."] == 2


def test_an_input_that_comes_again_in_front_does_not_hide_a_later_one(
    store: SessionStore, tmp_path: Path
) -> None:
    old = ("Hello.", "Hi.", "yes", "Done.")
    capture(store, tmp_path, *old)
    client = client_of(store)
    client.messages[:] = [
        user("Hello."),
        user("<reminder>1</reminder>"),
        agent("Hi."),
        user("<reminder>2</reminder>"),
        user("yes"),
        user("<reminder>3</reminder>"),
        agent("Done."),
        user("Next."),
    ]
    fail(client)
    recorded = stored_texts(store, USER)["yes"]

    entries = entries_of(*old, "Next.")
    entries.append(entry(6, "user", "yes"))
    transcript(tmp_path, *entries)
    Follower(store, "claude-code", user_id=USER, folder=tmp_path).catch_up()

    assert stored_texts(store, USER)["yes"] == recorded + 1


def test_an_input_behind_a_call_that_is_stored_again_is_recognized(
    store: SessionStore, tmp_path: Path
) -> None:
    client = client_of(store)
    client.say("Hello.", call("t1"))
    client.messages.append(user(result("t1")))
    client.send("Fine.")
    client.say("yes", "Two.")
    client.messages.append(user("Next."))
    fail(client)
    first, *rest = client.messages
    client.messages[:] = [first, user("<reminder>1</reminder>"), *rest]
    client.messages.insert(4, user("<reminder>2</reminder>"))
    begun(client)
    recorded = stored_texts(store, USER)["Next."]

    contents = ("Hello.", call("t1"), result("t1"), "Fine.", "yes", "Two.", "Next.")
    capture(store, tmp_path, *contents)

    assert stored_texts(store, USER)["Next."] == recorded


def test_an_input_before_a_call_whose_id_comes_again_is_recognized(
    store: SessionStore, tmp_path: Path
) -> None:
    client = client_of(store)
    client.say("Go.", call("c", n=1))
    client.messages.append(user(result("c")))
    client.send("One.")
    client.say("Next.", call("c", n=2))
    client.messages.append(user(result("c", "more")))
    begun(client)

    capture(store, tmp_path, "Go.", call("c", n=1), result("c"), "One.", "Next.")

    assert stored_texts(store, USER)["Next."] == 1


def branch_of(number: int, text: str, *, parent: int) -> dict[str, Any]:
    """Return an input behind an earlier entry."""
    of_branch = entry(number, "user", text)
    of_branch["parentUuid"] = entry(parent, "user", "")["uuid"]
    return of_branch


def record(
    store: SessionStore, folder: Path, entries: Sequence[dict[str, Any]], way: str
) -> None:
    """Capture or import a transcript."""
    path = transcript(folder, *entries)
    if way == "import":
        store.import_transcript(path, user_id=USER)
    else:
        Follower(store, "claude-code", user_id=USER, folder=folder).catch_up()


@pytest.mark.parametrize("way", ["capture", "import"])
def test_an_input_that_the_client_took_back_is_recorded_without_the_proxy(
    store: SessionStore, tmp_path: Path, way: str
) -> None:
    client = client_of(store)
    client.say("Hello.", "Hi.")
    client.say("Do something else.", "Done.")
    entries = [
        *entries_of("Hello.", "Hi.", "Delete it."),
        branch_of(4, "Do something else.", parent=2),
        entry(5, "assistant", "Done."),
    ]

    record(store, tmp_path, entries, way)
    session = store.session(user_id=USER, session_id=SESSION)
    shown = json.dumps(session.context().messages)
    record(store, tmp_path, entries, way)

    assert set(stored_texts(store, USER).values()) == {1}
    assert stored_texts(store, USER)["Delete it."] == 1
    assert "Delete it." not in shown


@pytest.mark.parametrize("way", ["capture", "import"])
def test_an_input_of_an_abandoned_branch_is_not_that_of_the_new_one(
    store: SessionStore, tmp_path: Path, way: str
) -> None:
    client = client_of(store)
    client.say("Hello.", "Hi.")
    client.messages.append(user("Go on."))
    fail(client)
    client.messages[-1] = user("Do something else.")
    fail(client)
    entries = [
        *entries_of("Hello.", "Hi.", "Do something else."),
        branch_of(4, "Go on.", parent=3),
    ]

    record(store, tmp_path, entries, way)

    assert stored_texts(store, USER)["Go on."] == 2
    assert stored_texts(store, USER)["Do something else."] == 1


@pytest.mark.parametrize("way", ["capture", "import"])
def test_an_input_that_a_client_sends_again_after_an_error_is_stored_once(
    store: SessionStore, tmp_path: Path, way: str
) -> None:
    client = client_of(store)
    client.say("Hello.", "Hi.")
    client.messages.append(user("Go on."))
    fail(client)
    client.send("Done.")
    entries = [
        *entries_of("Hello.", "Hi.", "Go on."),
        branch_of(4, "Go on.", parent=2),
        entry(5, "assistant", "Done."),
    ]

    record(store, tmp_path, entries, way)

    assert set(stored_texts(store, USER).values()) == {1}


@pytest.mark.parametrize("kept", [1, 3])
def test_a_new_answer_that_equals_a_captured_one_is_stored_with_its_tokens(
    store: SessionStore, tmp_path: Path, kept: int
) -> None:
    contents = ("Hello.", "Hi.", "Go on.", "Done.")
    entries = entries_of(*contents)
    for number, of_content in enumerate(entries):
        of_content["message"]["id"] = f"msg_captured_{number}"
    record(store, tmp_path, entries, "capture")
    client = client_of(store)
    client.messages[:] = [user("Hello."), agent("Hi."), user("Go on.")][:kept]
    again = contents[kept]

    client.send(again)
    client.say("Thanks.", "Gladly.")

    session = store.session(user_id=USER, session_id=SESSION)
    answers = [
        event.payload
        for event in session.events(types=("agent_response",))
        if isinstance(event.payload, AgentResponse) and event.payload.text == again
    ]
    assert [answer.usage is None for answer in answers] == [True, False]
    assert check_contexts(store, client, USER) == 2


def test_an_answer_with_its_captured_id_is_stored_once(
    store: SessionStore, tmp_path: Path
) -> None:
    """On a busy machine, a request may be recorded after its answer arrived."""
    client = client_of(store)
    client.messages.append(user("Hello."))
    entries = entries_of("Hello.", "Hi.")
    entries[1]["message"]["id"] = "msg_1"
    record(store, tmp_path, entries, "capture")
    exchange = begun(client)
    client.recorder.finish(exchange, reply("Hi.", message_id="msg_1"))
    client.messages.append(agent("Hi."))
    client.say("Thanks.", "Gladly.")

    assert set(stored_texts(store, USER).values()) == {1}
    assert check_contexts(store, client, USER) == 2


def test_a_discarded_answer_does_not_hide_an_equal_one(
    store: SessionStore, tmp_path: Path
) -> None:
    client = client_of(store)
    client.messages.append(user("Go on."))
    client.send("Done.", echo=False)
    client.send("All is done.")

    capture(store, tmp_path, "Go on.", "All is done.", "Delete it.", "Done.")

    texts = stored_texts(store, USER)
    assert texts["Delete it."] == 1
    assert texts["Done."] == 2


def test_the_result_of_a_call_before_a_fork_is_stored_alone(
    store: SessionStore,
) -> None:
    origin = client_of(store)
    origin.say("Go.", "I look.", call("t1"))
    session = store.session(user_id=USER, session_id=SESSION)
    fork = session.fork(session.head().seq, session_id="fork")
    client = WireClient(StoreRecorder(store, user_id=USER), "fork")
    client.messages[:] = [*origin.messages, user(result("t1"))]

    client.send("Done.")

    types = [event.type for event in fork.events() if event.seq > 1]
    assert types.count("tool_call") == 0
    assert types.count("tool_result") == 1


def test_what_a_client_writes_before_an_input_is_recognized_by_an_import(
    store: SessionStore, tmp_path: Path
) -> None:
    conversation = OfCodex(SESSION)
    StoreRecorder(store, user_id=USER).begin(conversation.request(1))
    path = conversation.path(tmp_path)
    path.parent.mkdir(parents=True)
    path.write_text(conversation.entries()[0])

    store.import_transcript(path, user_id=USER)

    content = content_of(store.session(user_id=USER, session_id=SESSION))
    assert content == Counter(conversation.CONTENT[:3])


def test_a_rewind_tries_only_the_shared_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A plan for each shorter beginning would take quadratic time."""
    log = History()
    items: list[Item] = []
    for number in range(200):
        kind = "agent_response" if number % 2 else "user_input"
        items.append(Item(kind, f"digest {number}"))
        log.add(Entry.of(number + 1, items[-1]))
    plans: list[Plan] = []
    changed = history._changed

    def counted(*arguments: Any, **options: Any) -> Plan:
        plans.append(changed(*arguments, **options))
        return plans[-1]

    monkeypatch.setattr(history, "_changed", counted)

    best = plan(log, [*items[:-1], Item("user_input", "new")], open_calls=set())

    assert best.left_out == (200,)
    assert len(plans) < 50
