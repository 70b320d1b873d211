"""Every context of a recorded request equals what the client sent; nothing doubles."""

from __future__ import annotations

import json

import pytest

from refold.adapters.proxy.conversation import WireMessage
from refold.adapters.proxy.history import Items, digest_with
from refold.adapters.proxy.recorder import StoreRecorder
from refold.domain.events import AgentResponse, ProviderEdit, UserInput
from refold.projections.context.strategies.keep_all import KeepAll
from refold.store import SessionStore
from refold.store.session.core import viewer_of
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

USER = "ada"


@pytest.fixture
def recorder(store: SessionStore) -> StoreRecorder:
    return StoreRecorder(store, user_id=USER)


def types(store: SessionStore, session_id: str = "s-1") -> list[str]:
    """The types of the events of a session."""
    session = store.session(user_id=USER, session_id=session_id)
    return [event.type for event in session.events()]


def test_stores_each_message_once(store: SessionStore, recorder: StoreRecorder) -> None:
    client = WireClient(recorder)
    client.say("List the files.", "I look.", call("c1", command="ls"))
    client.say(result("c1", "a.txt"), "There is one file.")
    client.say("Thanks.", "You are welcome.")

    assert types(store) == [
        "state",
        "user_input",
        "request",
        "agent_response",
        "tool_call",
        "tool_result",
        "request",
        "agent_response",
        "user_input",
        "request",
        "agent_response",
    ]
    assert check_contexts(store, client, USER) == 3


def test_a_restarted_recorder_goes_on(
    store: SessionStore, recorder: StoreRecorder
) -> None:
    client = WireClient(recorder)
    client.say("My mail is ada@example.org.", "Noted.")
    client.recorder = StoreRecorder(store, user_id=USER)
    client.say("Which one?", "ada@example.org")
    client.recorder = StoreRecorder(store, user_id=USER)
    client.say("Good.", "Bye.")

    assert types(store).count("user_input") == 3
    assert types(store).count("agent_response") == 3


def test_records_a_rewind(store: SessionStore, recorder: StoreRecorder) -> None:
    client = WireClient(recorder)
    client.say("One.", "1")
    client.say("Two.", "2")
    client.say("Three.", "3")
    del client.messages[3:]
    client.messages[-1] = user("Two, again.")
    client.send("2b")

    assert types(store).count("user_input") == 4
    assert check_contexts(store, client, USER) == 4


def test_restores_a_branch(store: SessionStore, recorder: StoreRecorder) -> None:
    client = WireClient(recorder)
    client.say("One.", "1")
    client.say("Two.", "2")
    branch = list(client.messages)
    client.messages[2:] = [user("Other.")]
    client.send("o")
    client.messages[:] = branch
    client.say("Three.", "3")

    assert types(store).count("user_input") == 4
    assert types(store).count("agent_response") == 4
    assert check_contexts(store, client, USER) == 4


def test_records_a_compaction_with_a_tail(
    store: SessionStore, recorder: StoreRecorder
) -> None:
    client = WireClient(recorder)
    for number in range(5):
        client.say(f"Question {number}.", f"Answer {number}.")
    client.messages[:] = [user("Summary of it all."), *client.messages[-4:]]
    client.messages[0]["role"] = "user"
    client.messages.insert(1, agent("Understood."))
    client.say("Go on.", "Gladly.")

    assert types(store).count("user_input") == 7
    assert check_contexts(store, client, USER) == 6


def test_records_a_compaction_of_everything(
    store: SessionStore, recorder: StoreRecorder
) -> None:
    client = WireClient(recorder)
    for number in range(5):
        client.say(f"Question {number}.", f"Answer {number}.")
    client.messages[:] = [user("Summary of it all.")]
    client.send("I go on.")
    client.say("More.", "Yes.")

    session = store.session(user_id=USER, session_id="s-1")
    (event,) = session.events(types=("provider_edit",))
    edit = event.payload
    assert isinstance(edit, ProviderEdit)
    assert edit.reason == "compaction"
    assert edit.left_out
    outline = viewer_of(session).current(KeepAll())
    assert outline.edited.summaries == ((event.seq - 1, event.seq - 1),)
    assert check_contexts(store, client, USER) == 7


def test_records_cleared_results(store: SessionStore, recorder: StoreRecorder) -> None:
    client = WireClient(recorder)
    client.say("Look.", call("c1"), call("c2"))
    client.messages.append(user(result("c1", "long one"), result("c2", "long two")))
    client.send("Seen.")
    client.messages[2] = user(result("c1", "[cleared]"), result("c2", "[cleared]"))
    client.say("Next.", "Yes.")
    client.recorder = StoreRecorder(store, user_id=USER)
    client.say("And?", "No.")

    assert types(store).count("tool_result") == 2
    assert types(store).count("provider_edit") == 1
    assert check_contexts(store, client, USER) == 4


def test_records_dropped_thinking_without_doubling_the_answer(
    store: SessionStore, recorder: StoreRecorder
) -> None:
    client = WireClient(recorder)
    thinking = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
    client.messages.append(user("Think."))
    client.send(thinking, "Thought.", echo=False)
    client.messages.append(agent("Thought."))
    client.say("Good.", "Yes.")

    assert types(store).count("agent_response") == 2
    assert check_contexts(store, client, USER) == 2


def test_records_a_retry_as_a_request_of_its_own(
    store: SessionStore, recorder: StoreRecorder
) -> None:
    client = WireClient(recorder)
    client.messages.append(user("Hello."))
    exchange = client.exchange()
    recorder.begin(exchange)
    recorder.finish(exchange, reply(status=529))
    client.send("Hi.")

    assert types(store) == [
        "state",
        "user_input",
        "request",
        "error",
        "request",
        "agent_response",
    ]
    assert check_contexts(store, client, USER) == 2


def test_a_changed_call_replaces_the_old_one(
    store: SessionStore, recorder: StoreRecorder
) -> None:
    client = WireClient(recorder)
    client.say("Look.", call("c1", command="ls"))
    client.messages[-1] = agent(call("c1", command="ls -l"))
    client.say(result("c1", "a.txt"), "One.")

    assert check_contexts(store, client, USER) == 2


def test_records_sub_agents_in_linked_sessions(
    store: SessionStore, recorder: StoreRecorder
) -> None:
    client = WireClient(recorder)
    prompt = "Find all the tests of the parser."
    client.say("Work.", call("t1", "task", prompt=prompt))
    sub = WireClient(recorder, tools=TOOLS_OF_SUB)
    sub.say(f"<reminder>Be short.</reminder>\n{prompt}", call("x1"))
    sub.say(result("x1"), "Three tests.")
    client.say(result("t1", "Three tests."), "Done.")
    title = WireClient(recorder, tools=(), system="Write a title.")
    title.say("Work.", "Working")

    assert check_contexts(store, client, USER) == 2
    assert check_contexts(store, sub, USER) == 2
    assert check_contexts(store, title, USER) == 1
    names = [info.session_id for info in store.sessions(USER)]
    assert len(names) == 3
    call_seq = types(store).index("tool_call") + 1
    parents = [
        store.session(user_id=USER, session_id=name).delegation.parent()
        for name in names
        if name != "s-1"
    ]
    assert {parent.session_id for parent in parents if parent} == {"s-1"}
    assert call_seq in {parent.seq for parent in parents if parent}


TOOLS_OF_SUB = (
    {
        "name": "read",
        "description": "Reads.",
        "input_schema": {"type": "object", "properties": {}},
    },
)


def test_links_a_sub_agent_that_repeats_the_history_to_its_call(
    store: SessionStore, recorder: StoreRecorder
) -> None:
    client = WireClient(recorder)
    client.say("Delegate it.", "I do.", call("t1", "task", prompt="Say hi to Ada."))
    history = list(client.messages)
    # The call has its result before the sub-agent begins.
    client.say(result("t1", "It runs."), "I wait.")
    sub = WireClient(recorder, thread="sub", messages=history)
    sub.messages.append(user(result("t1", "aborted")))
    sub.say("Say hi to Ada.", "Hi, Ada.")

    linked = store.session(user_id=USER, session_id="s-1~sub")
    parent = linked.delegation.parent()
    assert parent is not None
    assert parent.session_id == "s-1"
    assert parent.seq == types(store).index("tool_call") + 1
    assert check_contexts(store, sub, USER) == 1


def test_finds_an_unnamed_session_by_its_history(
    store: SessionStore, recorder: StoreRecorder
) -> None:
    client = WireClient(recorder, session=None)
    client.say("Hello.", "Hi.")
    client.say("How are you?", "Well.")
    client.recorder = StoreRecorder(store, user_id=USER)
    client.say("Fine.", "Good.")
    other = WireClient(client.recorder, session=None)
    other.say("Hello.", "Hey.")

    assert len(store.sessions(USER)) == 2
    assert check_contexts(store, client, USER) == 3
    assert check_contexts(store, other, USER) == 1


@pytest.mark.parametrize("restarts", [False, True])
def test_an_unnamed_client_that_leaves_out_a_reminder_continues_its_session(
    store: SessionStore, recorder: StoreRecorder, *, restarts: bool
) -> None:
    client = WireClient(recorder, session=None)
    client.messages += [user("Use tools."), user("It is Friday."), user("Hello.")]
    client.send("I look.", call("c1"))
    client.say(result("c1"), "Hi.")
    del client.messages[1]
    if restarts:
        client.recorder = StoreRecorder(store, user_id=USER)
    client.say("Go on.", "Gladly.")

    (info,) = store.sessions(USER)
    assert types(store, info.session_id).count("user_input") == 4
    assert check_contexts(store, client, USER) == 3


def test_an_unnamed_agent_with_the_history_of_another_gets_a_linked_session(
    store: SessionStore, recorder: StoreRecorder
) -> None:
    client = WireClient(recorder, session=None)
    client.say("Hello.", "Hi.")
    client.say("My name is Ada.", "Noted.")
    memory = WireClient(
        recorder,
        session=None,
        system="You extract memories.",
        tools=TOOLS_OF_SUB,
        messages=list(client.messages),
    )
    memory.say("Extract the memories.", call("m1"))
    client.say("How are you?", "Well.")
    memory.say(result("m1"), "There is one.")
    client.recorder = memory.recorder = StoreRecorder(store, user_id=USER)
    client.say("Bye.", "See you.")
    memory.say("Thanks.", "Done.")

    first, second = store.sessions(USER)
    parents = {}
    for info in (first, second):
        session = store.session(user_id=USER, session_id=info.session_id)
        parents[info.session_id] = session.delegation.parent()
    (main,) = [name for name, parent in parents.items() if parent is None]
    (parent,) = [parent for parent in parents.values() if parent is not None]
    assert parent.session_id == main
    assert check_contexts(store, client, USER) == 4
    assert check_contexts(store, memory, USER) == 3
    assert types(store, main).count("user_input") == 4


def test_conversations_that_begin_alike_at_once_become_two_sessions(
    store: SessionStore, recorder: StoreRecorder
) -> None:
    clients = [WireClient(recorder, session=None) for _ in range(2)]
    exchanges = []
    for client in clients:
        client.messages.append(user("Hello."))
        exchanges.append(client.exchange())
    for exchange in exchanges:
        recorder.begin(exchange)
    for client, exchange, answer in zip(
        clients, exchanges, ("Hi.", "Hey."), strict=True
    ):
        recorder.finish(exchange, reply(answer))
        client.messages.append(agent(answer))
    for client in clients:
        client.say("How are you?", "Well.")

    assert len(store.sessions(USER)) == 2
    counts = stored_texts(store, USER)
    assert counts["Hi."] == counts["Hey."] == 1
    for client in clients:
        assert check_contexts(store, client, USER) == 2


@pytest.mark.parametrize("order", [("c1", "c2"), ("c2", "c1")])
def test_a_request_with_results_in_another_order_does_not_match(
    store: SessionStore, recorder: StoreRecorder, order: tuple[str, str]
) -> None:
    client = WireClient(recorder)
    client.say("Look.", call("c1"), call("c2"))
    client.messages.append(user(*[result(call_id, call_id) for call_id in order]))
    client.send("Done.")
    client.recorder = StoreRecorder(store, user_id=USER)
    client.say("Next.", "Yes.")

    session = store.session(user_id=USER, session_id="s-1")
    matches = [event.payload.matches for event in session.events(types=("request",))]  # type: ignore[union-attr]  # requests
    assert matches == [True, order == ("c1", "c2"), order == ("c1", "c2")]


def test_a_name_with_an_address_becomes_a_digest(
    store: SessionStore, recorder: StoreRecorder
) -> None:
    names = ("ada@example.com", "8e9cf4a6-0b6b-4ac5-9f26-4bd5a7f6d2d1", "ses_2f41b8")
    for name in names:
        client = WireClient(recorder, session=name)
        client.say("Hello.", "Hi.")
        client.recorder = StoreRecorder(store, user_id=USER)
        client.thread = "bob@example.com"
        client.say("How are you?", "Well.")

    stored = {info.session_id for info in store.sessions(USER)}
    assert len(stored) == 6
    assert stored > set(names[1:])
    assert not any("@" in name for name in stored)


def test_messages_in_memory_stay_within_a_limit() -> None:
    items = Items(digest_with(b"a key"), most_bytes=10_000)
    messages = [
        WireMessage("user", (UserInput(text=f"{number} " + "x" * 3_000),))
        for number in range(10)
    ]

    first = items.of(messages)

    assert [item.digest for item in items.of(messages)] == [
        item.digest for item in first
    ]
    assert 0 < items.remembered_bytes <= 10_000
    items.of([WireMessage("user", (UserInput(text="x" * 20_000),))])
    assert items.remembered_bytes == 0


def test_continues_a_response_by_its_id(
    store: SessionStore, recorder: StoreRecorder
) -> None:
    client = WireClient(recorder, session=None)
    client.messages.append(user("Hello."))
    exchange = client.exchange()
    recorder.begin(exchange)
    answer = reply("Hi.")
    recorder.finish(exchange, answer)
    response_id = json.loads(answer.body)["id"]
    for used in (recorder, StoreRecorder(store, user_id=USER)):
        client.recorder = used
        client.messages[:] = [user("More.")]
        client.send("Yes.", echo=False, previous_response_id=response_id)

    (info,) = store.sessions(USER)
    assert types(store, info.session_id).count("user_input") == 2


def test_each_value_has_its_own_number(store: SessionStore) -> None:
    object.__setattr__(store.writer, "redactor", store.writer.redactor.numbering)
    client = WireClient(StoreRecorder(store, user_id=USER))
    client.say("My mail is ada@example.org.", "Noted.")
    client.recorder = StoreRecorder(store, user_id=USER)
    client.say("Now grace@example.org.", "Noted: grace@example.org.")
    client.say("And ada@example.org again.", "Yes.")

    session = store.session(user_id=USER, session_id="s-1")
    texts = [
        event.payload.text
        for event in session.events(types=("user_input", "agent_response"))
        if isinstance(event.payload, UserInput | AgentResponse)
    ]
    assert texts == [
        "My mail is [EMAIL_1].",
        "Noted.",
        "Now [EMAIL_2].",
        "Noted: [EMAIL_2].",
        "And [EMAIL_1] again.",
        "Yes.",
    ]
