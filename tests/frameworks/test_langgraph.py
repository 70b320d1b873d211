"""LangGraph keeps its threads in sessions."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict
from uuid import uuid4

import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.graph import END, START, StateGraph, add_messages
from langgraph.prebuilt import create_react_agent
from langgraph.types import Command, interrupt

import refold
from refold.adapters.frameworks.langgraph import RefoldSaver
from refold.domain.errors import InvalidEvent, OnHold
from refold.redaction.chokepoint import RedactedItem
from tests.frameworks.contract import (
    ANSWER,
    MAIL,
    SECRET,
    FilterContract,
    RedactedContract,
    SampleMessage,
    all_stored_text,
)
from tests.support.nested import blocks_of


def message(sample_message: SampleMessage, number: int) -> Any:
    name = f"m-{number:04d}"
    if sample_message.who == "user":
        return HumanMessage(content=sample_message.text, id=name)
    if sample_message.who == "tool":
        return ToolMessage(
            content=sample_message.text, id=name, tool_call_id=sample_message.call
        )
    calls = (
        [{"name": "send", "args": sample_message.arguments, "id": sample_message.call}]
        if sample_message.call
        else []
    )
    return AIMessage(content=sample_message.text, id=name, tool_calls=calls)


def config(thread: str, **more: Any) -> Any:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": "", **more}}


class TestContract(RedactedContract):
    halves = False  # LangGraph's own serializer refuses them

    def adapter(self, store: refold.SessionStore) -> Any:
        return RefoldSaver(store, user_id="ada")

    def item(self, sample_message: SampleMessage, number: int) -> Any:
        return message(sample_message, number)

    async def save(
        self, adapter: Any, thread: str, items: list[Any], new: list[Any]
    ) -> None:
        before = await adapter.aget_tuple(config(thread))
        current = (
            before.checkpoint["channel_versions"].get("messages") if before else None
        )
        version = adapter.get_next_version(current, None)
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"messages": items}
        checkpoint["channel_versions"] = {"messages": version}
        at = before.config if before else config(thread)
        await adapter.aput(at, checkpoint, {"step": 1}, {"messages": version})

    async def load(self, adapter: Any, thread: str) -> list[Any]:
        loaded = await adapter.aget_tuple(config(thread))
        return list(loaded.checkpoint["channel_values"]["messages"]) if loaded else []

    async def delete(self, adapter: Any, thread: str) -> None:
        await adapter.adelete_thread(thread)

    def plain(self, item: Any) -> Any:
        return item.model_dump(mode="json")

    def ids(self, item: Any) -> list[str]:
        calls = [call["id"] for call in getattr(item, "tool_calls", ())]
        return [item.id, *calls, *filter(None, [getattr(item, "tool_call_id", None)])]


def test_the_published_suite_passes(url: str) -> None:
    users = iter(range(10_000))

    with refold.open(url) as store:

        @checkpointer_test(name="refold")
        async def saver() -> AsyncIterator[RefoldSaver]:
            yield RefoldSaver(store, user_id=f"user-{next(users)}", opaque="keep")

        report = asyncio.run(validate(saver))

    assert report.passed_all()
    assert len(report.results) == 8
    for name, result in report.results.items():
        assert result.detected, name
        assert result.passed, (name, result.failures)


@dataclass
class Note:
    text: str
    tags: set[str]


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    notes: Annotated[list[Note], operator.add]
    rate: float


def graph(saver: RefoldSaver) -> Any:
    def think(state: State) -> Any:
        calls = [
            {"name": "mail", "args": {"to": MAIL}, "id": f"c{len(state['notes'])}"}
        ]
        note = Note(f"asked for {MAIL}", {"a", "b"})
        answer = AIMessage(content="I ask.", tool_calls=calls)
        return {"messages": [answer], "notes": [note], "rate": float("inf")}

    def ask(state: State) -> Any:
        answer_of_user = interrupt({"question": f"May I write to {MAIL}?"})
        call = state["messages"][-1].tool_calls[0]["id"]
        return {"messages": [ToolMessage(content=answer_of_user, tool_call_id=call)]}

    builder = StateGraph(State)
    builder.add_node("think", think)
    builder.add_node("ask", ask)
    builder.add_edge(START, "think")
    builder.add_edge("think", "ask")
    builder.add_edge("ask", END)
    return builder.compile(checkpointer=saver)


def test_a_graph_resumes_in_another_process_and_replays_earlier_steps(url: str) -> None:
    with refold.open(url) as store:
        first = graph(RefoldSaver(store, user_id="ada"))
        asked = [HumanMessage(content=f"Write to {MAIL}, the key is {SECRET}.")]
        stopped = first.invoke({"messages": asked, "notes": []}, config("t"))
        assert "__interrupt__" in stopped

    with refold.open(url) as store:
        again = graph(RefoldSaver(store, user_id="ada"))
        done = again.invoke(Command(resume="yes"), config("t"))
        assert [type(item).__name__ for item in done["messages"]] == [
            "HumanMessage",
            "AIMessage",
            "ToolMessage",
        ]
        assert done["notes"] == [Note("asked for [REDACTED:EMAIL]", {"a", "b"})]
        assert done["rate"] == float("inf")
        (session,) = [
            store.session(user_id="ada", session_id=item.session_id)
            for item in store.sessions("ada")
        ]
        types = [event.type for event in session.events() if event.type != "item"]
        assert types[-4:] == [
            "user_input",
            "agent_response",
            "tool_call",
            "tool_result",
        ]
        assert session.verify().problems == []
        assert MAIL not in all_stored_text(store)
        assert SECRET not in all_stored_text(store)

        past = [item for item in again.get_state_history(config("t")) if item.next]
        early = next(item for item in past if item.next == ("think",))
        replayed = again.invoke(None, early.config)
        assert replayed["messages"][0].id == done["messages"][0].id


def test_a_thread_is_stored_once_and_not_again_with_each_step(url: str) -> None:
    with refold.open(url) as store:
        saver = RefoldSaver(store, user_id="ada")
        items = []
        contract = TestContract()
        text = "A message so long that a second copy of it shows in the stored size. "
        for number in range(60):
            items.append(
                message(SampleMessage("user", f"{number}: {text * 4}"), number)
            )
            asyncio.run(contract.save(saver, "t", items, items[-1:]))

        (info,) = store.sessions("ada")
        session = store.session(user_id="ada", session_id=info.session_id)
        size = sum(len(event.model_dump_json()) for event in session.history.pages())
        # Stored completely each time, it would be 30 times as much.
        assert size < 60 * 5_000
        assert len(asyncio.run(contract.load(saver, "t"))) == 60


def test_rules_change_no_ids_or_versions(url: str) -> None:
    checkpoint = empty_checkpoint()
    version = f"{7:032}.0.1234567890123456"
    call = {"name": "look", "args": {}, "id": f"call_{'a1b2' * 6}"}
    answer = AIMessage(content="I look.", id=str(uuid4()), tool_calls=[call])
    checkpoint["channel_values"] = {"messages": [answer]}
    checkpoint["channel_versions"] = {"messages": version}
    checkpoint["versions_seen"] = {"node": {"messages": version}}
    rules = refold.redaction.Registered()
    ids = [checkpoint["id"], version, answer.id, answer.tool_calls[0]["id"]]
    for value in ids:
        rules.register(str(value), "SECRET")
    with refold.open(url, registered=rules) as store:
        saver = RefoldSaver(store, user_id="ada")
        at = saver.put(config("t"), checkpoint, {}, {"messages": version})
        saver.put_writes(at, [("messages", [answer])], "task-1")

        loaded = saver.get_tuple(config("t"))

        assert loaded.checkpoint == checkpoint
        assert loaded.pending_writes[0][2] == [answer]


IMAGE = bytes(range(256)) * (20 << 12)  # 20 MiB


def test_bytes_are_refused_unless_they_may_be_kept(url: str) -> None:
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = {"image": IMAGE}
    with refold.open(url) as store:
        with pytest.raises(InvalidEvent, match="opaque"):
            RefoldSaver(store, user_id="ada").put(
                config("t"), checkpoint, {}, {"image": "1"}
            )
        saver = RefoldSaver(store, user_id="ada", opaque="keep")
        checkpoint["channel_versions"] = {"image": "1"}
        saver.put(config("t"), checkpoint, {}, {"image": "1"})

        loaded = saver.get_tuple(config("t"))
        assert loaded.checkpoint["channel_values"] == {"image": IMAGE}


def test_a_held_thread_is_not_deleted(url: str) -> None:
    with refold.open(url) as store:
        saver = RefoldSaver(store, user_id="ada")
        asyncio.run(
            TestContract().save(saver, "t", [message(SampleMessage("user"), 1)], [])
        )
        store.erasures.hold("ada", "case-1", "an enquiry")

        with pytest.raises(OnHold):
            saver.delete_thread("t")
        assert saver.get_tuple(config("t"))


class Scripted(GenericFakeChatModel):
    sent: list[str]

    def _generate(self, messages: Any, *more: Any, **options: Any) -> Any:
        self.sent.append(str([(message.content, message.id) for message in messages]))
        return super()._generate(messages, *more, **options)


@pytest.mark.filterwarnings("ignore:create_react_agent has been moved")
class TestFilter(FilterContract):
    helps = False  # its prompt comes before the messages from the hook

    def talk(self, store: refold.SessionStore, texts: Sequence[str]) -> list[str]:
        answers = iter([AIMessage(content=ANSWER) for _ in texts])
        model = Scripted(messages=answers, sent=[])
        saver = RefoldSaver(store, user_id="ada")
        agent = create_react_agent(
            model, [], checkpointer=saver, pre_model_hook=saver.pre_model_hook
        )
        for text in texts:
            agent.invoke({"messages": [HumanMessage(content=text)]}, config("t"))
        return model.sent


def test_a_later_redaction_clears_values_in_memory(url: str) -> None:
    asked = message(
        SampleMessage("user", "The word is Quux-Seventeen-cabin, remember it."), 1
    )
    with refold.open(url) as store:
        saver = RefoldSaver(store, user_id="ada")
        asyncio.run(TestContract().save(saver, "t", [asked], [asked]))
        assert "Quux" in str(asyncio.run(TestContract().load(saver, "t")))
        rules = refold.redaction.Registered()
        rules.register("Quux-Seventeen-cabin", "SECRET")
        with refold.open(url, registered=rules) as other:
            assert [*other.reredact("ada")]

        assert "Quux" not in str(asyncio.run(TestContract().load(saver, "t")))


def saved(saver: RefoldSaver, **values: Any) -> Any:
    """Store a checkpoint with these values."""
    before = saver.get_tuple(config("t"))
    current = before.checkpoint["channel_versions"] if before else {}
    versions = {
        name: saver.get_next_version(current.get(name), None) for name in values
    }
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = values
    checkpoint["channel_versions"] = {**current, **versions}
    saver.put(before.config if before else config("t"), checkpoint, {}, versions)


def stored_values(saver: RefoldSaver) -> Any:
    loaded = saver.get_tuple(config("t"))
    return loaded.checkpoint["channel_values"]


def test_changing_a_value_that_was_read_changes_nothing_stored(url: str) -> None:
    call = {"name": "look", "args": {"at": ["a"]}, "id": "c1"}
    with refold.open(url) as store:
        saver = RefoldSaver(store, user_id="ada")
        messages = [
            message(SampleMessage("user", "Look."), 1),
            AIMessage(content="I look.", id="m-2", tool_calls=[call]),
        ]
        saved(saver, messages=messages)

        first, last = stored_values(saver)["messages"]
        first.additional_kwargs["more"] = 1
        last.tool_calls[0]["args"]["at"].append("b")
        last.response_metadata["more"] = [1]
        last.content = "changed"

        assert stored_values(saver)["messages"] == messages
        saved(saver, messages=[first, last])
        assert stored_values(saver)["messages"] == [first, last]
        assert stored_values(RefoldSaver(store, user_id="ada"))["messages"] == [
            first,
            last,
        ]


def test_stored_items_of_a_list_are_not_redacted_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    redacted: list[Any] = []
    original = RedactedItem.__init__

    def counted(self: RedactedItem, *arguments: Any) -> None:
        redacted.append(arguments)
        original(self, *arguments)

    monkeypatch.setattr(RedactedItem, "__init__", counted)
    with refold.open(url) as store:
        saver = RefoldSaver(store, user_id="ada")
        counts = []
        messages: list[Any] = []
        notes: list[Any] = []
        for number in range(45):
            messages.append(message(SampleMessage("user", f"say {number}"), number))
            notes.append({"note": number})
            redacted.clear()
            saved(saver, messages=messages, notes=notes)
            counts.append(len(redacted))

        assert counts[-1] == counts[5] <= 4
        assert stored_values(saver) == {"messages": messages, "notes": notes}


def test_a_list_with_null_is_read_back(url: str) -> None:
    notes = [None, "a", {"k": None}]
    with refold.open(url) as store:
        saver = RefoldSaver(store, user_id="ada")
        saved(saver, notes=notes)

        assert stored_values(saver) == {"notes": notes}
        assert stored_values(RefoldSaver(store, user_id="ada")) == {"notes": notes}


def test_a_message_of_a_failed_write_is_stored_by_the_next(url: str) -> None:
    messages = [message(SampleMessage("user", "Hello."), 1)]
    with refold.open(url) as store:
        saver = RefoldSaver(store, user_id="ada")
        with pytest.raises(InvalidEvent, match="opaque"):
            saved(saver, messages=messages, image=b"\0\xff" * 50)

        saved(saver, messages=messages)

        assert stored_values(saver) == {"messages": messages}
        assert stored_values(RefoldSaver(store, user_id="ada")) == {
            "messages": messages
        }


def test_a_saver_reads_what_another_one_wrote(url: str) -> None:
    messages = [
        message(SampleMessage("user", f"say {number}"), number) for number in range(6)
    ]
    with refold.open(url) as store:
        savers = [RefoldSaver(store, user_id="ada") for _ in range(2)]
        for number in range(len(messages)):
            saved(savers[number % 2], messages=messages[: number + 1])

        assert (
            stored_values(savers[0])
            == stored_values(savers[1])
            == {"messages": messages}
        )

        savers[0].delete_thread("t")
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {"messages": messages[:1]}
        checkpoint["channel_versions"] = {"messages": "1"}
        savers[1].put(config("t"), checkpoint, {}, {"messages": "1"})
        assert (
            stored_values(savers[0])
            == stored_values(savers[1])
            == {"messages": messages[:1]}
        )


def put(saver: RefoldSaver, at: Any, **channels: Any) -> Any:
    """Store a checkpoint with these lists of texts behind the checkpoint ``at``."""
    before = saver.get_tuple(at)
    versions = before.checkpoint["channel_versions"] if before else {}
    new_versions: dict[str, Any] = {}
    for channel in channels:
        new_versions[channel] = saver.get_next_version(versions.get(channel), None)
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = {
        channel: [HumanMessage(content=text, id=f"id-{text}") for text in texts]
        for channel, texts in channels.items()
    }
    checkpoint["channel_versions"] = {**versions, **new_versions}
    place = before.config if before else at
    return saver.put(place, checkpoint, {"step": 1}, new_versions)


def shown(store: refold.SessionStore) -> list[str]:
    """The texts of the context of the only thread."""
    (info,) = store.sessions("ada")
    session = store.session(user_id="ada", session_id=info.session_id)
    messages = session.context("keep_all").messages
    return [block["text"] for block in blocks_of(messages)]


def test_contexts_follow_the_branch_of_a_thread(url: str) -> None:
    with refold.open(url) as store:
        saver = RefoldSaver(store, user_id="ada")
        thread = config("t")
        first = put(saver, thread, messages=["a", "b"])
        second = put(saver, first, messages=["a", "b", "c"])
        assert shown(store) == ["a", "b", "c"]

        put(saver, first, messages=["a", "b", "d"])
        assert shown(store) == ["a", "b", "d"]
        put(RefoldSaver(store, user_id="ada"), second, messages=["a", "b", "c", "e"])
        assert shown(store) == ["a", "b", "c", "e"]
        put(saver, thread, messages=["summary", "c", "e"])
        assert shown(store) == ["summary", "c", "e"]
        put(saver, thread, messages=[])
        assert shown(store) == []
        put(saver, thread, messages=["f"])
        assert shown(store) == ["f"]


def test_a_message_of_another_channel_stays_in_contexts(url: str) -> None:
    with refold.open(url) as store:
        saver = RefoldSaver(store, user_id="ada")
        thread = config("t")
        put(saver, thread, messages=["a", "b"], sent=["a", "b"])
        put(saver, thread, sent=["b"])
        assert shown(store) == ["a", "b"]
        put(saver, thread, messages=["b"])
        assert shown(store) == ["b"]
