"""pydantic-ai keeps its conversations in sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation, ConversationTypeAdapter
from pydantic_ai.conversation_store import (
    ConversationConflict,
    ConversationStore,
    InMemoryConversationStore,
)
from pydantic_ai.messages import (
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import FunctionModel

import refold
from refold.adapters.frameworks.pydantic_ai import RefoldConversationStore
from refold.domain.errors import OnHold
from tests.frameworks.contract import (
    ANSWER,
    CONVERSATION,
    HELP,
    MAIL,
    SECRET,
    FilterContract,
    RedactedContract,
    SampleMessage,
    all_stored_text,
    seqs,
)
from tests.support.nested import blocks_of

BEGIN = datetime(2026, 5, 1, 10, tzinfo=UTC)


def message(sample: SampleMessage, number: int) -> Any:
    at = BEGIN + timedelta(seconds=number)
    name = f"{number:08d}-8c1b-4f7e-9a51-0d9f6c6f2a10"
    if sample.who == "user":
        part = UserPromptPart(content=sample.text, timestamp=at)
        return ModelRequest(parts=[part], timestamp=at, run_id=name)
    if sample.who == "tool":
        back = ToolReturnPart("send", sample.text, sample.call, timestamp=at)
        return ModelRequest(parts=[back], timestamp=at, run_id=name)
    parts: list[Any] = [TextPart(content=sample.text)]
    if sample.call:
        parts.append(ToolCallPart("send", sample.arguments, sample.call))
    return ModelResponse(parts=parts, timestamp=at, run_id=name, model_name="m-1")


MESSAGES = [message(sample, number) for number, sample in enumerate(CONVERSATION)]


class TestContract(RedactedContract):
    stale = ConversationConflict

    def adapter(self, store: refold.SessionStore) -> Any:
        return RefoldConversationStore(store, user_id="ada")

    def item(self, sample: SampleMessage, number: int) -> Any:
        return message(sample, number)

    async def save(
        self, adapter: Any, thread: str, items: list[Any], new: list[Any]
    ) -> None:
        stored = await adapter.read_record(thread)
        whole = Conversation(
            messages=items,
            conversation_id=thread,
            revision=stored.revision if stored else None,
        )
        await adapter.save(whole)

    async def load(self, adapter: Any, thread: str) -> list[Any]:
        conversation = await adapter.load(thread)
        return conversation.messages if conversation else []

    async def delete(self, adapter: Any, thread: str) -> None:
        await adapter.delete(thread)

    def plain(self, item: Any) -> Any:
        return ModelMessagesTypeAdapter.dump_python([item], mode="json")

    def ids(self, item: Any) -> list[str]:
        calls = [getattr(part, "tool_call_id", "") for part in item.parts]
        return [item.run_id, *calls]


class TestFilter(FilterContract):
    def talk(self, store: refold.SessionStore, texts: Sequence[str]) -> list[str]:
        sent: list[str] = []

        def answer(messages: list[Any], info: Any) -> ModelResponse:
            sent.append(f"{messages} {info.instructions}")
            return ModelResponse(parts=[TextPart(content=ANSWER)])

        async def turn(text: str) -> None:
            history = RefoldConversationStore(store, user_id="ada")
            agent = Agent(
                FunctionModel(answer), instructions=HELP, capabilities=[history.filter]
            )
            before = await history.load("c") or Conversation(conversation_id="c")
            await history.save(await agent.run(text, conversation=before))

        for text in texts:
            asyncio.run(turn(text))
        return sent


def run(url: str, tour: Any) -> None:
    with refold.open(url) as store:
        asyncio.run(tour(store, RefoldConversationStore(store, user_id="ada")))


def conversation(name: str, messages: list[Any], **more: Any) -> Conversation:
    return Conversation(messages=list(messages), conversation_id=name, **more)


def test_a_redacted_history_makes_no_branch(url: str) -> None:
    async def tour(store: refold.SessionStore, history: Any) -> None:
        saved = conversation("c", MESSAGES[:4])
        await history.save(saved)
        before = seqs(store)
        browser = ConversationTypeAdapter.dump_json(saved)  # a client sends it back
        back = ConversationTypeAdapter.validate_json(browser)
        back.messages.append(MESSAGES[4])
        added = await history.save(back)

        assert len(added) == 1
        assert seqs(store) == before + 2  # the message, and the record
        assert (await history.read_record("c")).branches == []

    run(url, tour)


def shown(store: refold.SessionStore, name: str) -> list[str]:
    """The texts of the context of a conversation."""
    label = {"pydantic_ai_conversation": name}
    (info,) = store.sessions("ada", label=label)
    session = store.session(user_id="ada", session_id=info.session_id)
    messages = session.context("keep_all").messages
    return [block["text"] for block in blocks_of(messages)]


def asked(*texts: str) -> list[Any]:
    return [ModelRequest(parts=[UserPromptPart(content=text)]) for text in texts]


def test_contexts_follow_the_branch_of_the_record(url: str) -> None:
    async def tour(store: refold.SessionStore, history: Any) -> None:
        first = conversation("one", asked("a", "b", "c"))
        await history.save(first)
        assert shown(store, "one") == ["a", "b", "c"]
        branched = await history.branch("one", at=1, expected_revision=first.revision)
        branched.messages += asked("d")
        await history.save(branched)
        assert shown(store, "one") == ["a", "d"]

        record = await history.read_record("one")
        (other_branch,) = record.branches
        record.head_id = other_branch
        record.branches = []
        await history.write_record(record, expected_revision=record.revision)
        assert shown(store, "one") == ["a", "b", "c"]

    run(url, tour)


async def story(history: ConversationStore) -> list[Any]:
    """Return what a store answers while conversations are changed."""
    observed: list[Any] = []

    async def tell(name: str, scope: str | None = None) -> None:
        loaded = await history.load(name, scope=scope)
        observed.append(loaded and [message.run_id for message in loaded.messages])

    first = conversation("one", MESSAGES[5:8])
    await history.save(first, scope="team")
    await tell("one")
    await tell("one", scope="other")
    with pytest.raises(ConversationConflict):
        await history.save(conversation("one", MESSAGES[:1]))
    branched = await history.branch("one", at=1, expected_revision=first.revision)
    branched.messages.append(MESSAGES[4])
    await history.save(branched)
    await tell("one")
    (left,) = (await history.read_record("one")).branches
    forked = await history.fork("one", from_entry=left, new_conversation_id="two")
    forked.messages.append(MESSAGES[0])
    await history.save(forked)
    await tell("two")
    observed.append(
        [listed.conversation_id for listed in await history.list_conversations()]
    )
    observed.append(len(await history.list_conversations(scope="team", limit=1)))
    observed.append(len((await history.load("two", limit=2)).messages))
    await history.delete("one", scope="other")
    await tell("one")
    await history.delete("one")
    await tell("one")
    await tell("two")
    await history.save(conversation("one", MESSAGES[6:7]))
    await tell("one")
    await history.delete("one")
    await history.delete("two")
    observed.append(await history.list_conversations())
    return observed


def test_the_store_answers_like_the_one_in_memory(url: str) -> None:
    async def tour(store: refold.SessionStore, history: Any) -> None:
        assert await story(history) == await story(InMemoryConversationStore())
        assert seqs(store) == 0  # no message is left that no history needs

    run(url, tour)


def test_another_process_finds_the_entries_of_a_fork(url: str) -> None:
    async def tour(store: refold.SessionStore, history: Any) -> None:
        await history.save(conversation("one", MESSAGES[5:8]))
        await history.fork("one", new_conversation_id="two")
        other = RefoldConversationStore(store, user_id="ada")
        assert len((await other.load("two")).messages) == 3
        (entry, *_) = await other.load_entries("two")
        assert (await other.read_entry(entry.id)).message == entry.message
        with pytest.raises(KeyError):
            await other.read_entry("no such entry")

    run(url, tour)


def test_a_held_conversation_is_not_deleted(url: str) -> None:
    async def tour(store: refold.SessionStore, history: Any) -> None:
        await history.save(conversation("one", MESSAGES[:1]))
        store.erasures.hold("ada", "case-1", "an enquiry")
        with pytest.raises(OnHold):
            await history.delete("one")
        assert await history.load("one")

    run(url, tour)


def test_a_signed_thought_is_kept_completely_or_removed(url: str) -> None:
    signature = "ErUBCkYIBRgCIkDDbw4j0k2g6Ff3l8hVtQz0m7qXpN9aYc5RkTzWvUe1sLdHxGiJbKo="

    def thought(text: str) -> Any:
        parts = [
            ThinkingPart(content=text, signature=signature),
            TextPart(content="Yes."),
        ]
        return ModelResponse(parts=parts, timestamp=BEGIN)

    async def tour(_: refold.SessionStore, history: Any) -> None:
        await history.save(conversation("one", [thought("Is it so?"), thought(MAIL)]))
        first, second = (await history.load("one")).messages
        assert first == thought("Is it so?")
        assert signature not in str(second)
        assert MAIL not in str(second)

    run(url, tour)


def test_an_agent_stores_a_run_and_the_model_gets_the_stored_text(url: str) -> None:
    sent: list[str] = []

    def answer(messages: list[Any], info: Any) -> ModelResponse:
        sent.append(f"{messages} {info.instructions}")
        if len(sent) == 1:
            return ModelResponse(
                parts=[ToolCallPart("look_up", {"who": MAIL}, "call_1a2b3c")]
            )
        return ModelResponse(parts=[TextPart(content="Done.")])

    def look_up(who: str) -> str:
        return f"{who}: {SECRET}"

    async def turn(store: refold.SessionStore, text: str) -> int:
        history = RefoldConversationStore(store, user_id="ada")
        agent = Agent(
            FunctionModel(answer),
            tools=[look_up],
            capabilities=[history.filter],
        )
        before = await history.load("c") or Conversation(conversation_id="c")
        return len(await history.save(await agent.run(text, conversation=before)))

    with refold.open(url) as store:
        assert asyncio.run(turn(store, f"Look {MAIL} up.")) == 4
        assert asyncio.run(turn(store, "Thanks.")) == 2
        assert SECRET not in str(sent)
        assert MAIL not in str(sent)
        assert "[REDACTED:EMAIL" in sent[0]
        assert SECRET not in all_stored_text(store)
        (info,) = store.sessions()
        session = store.session(user_id="ada", session_id=info.session_id)
        assert session.history.open_calls() == []
        (record,) = [*session.native.read(kind="record", newest=1)]
        assert record.value["branches"] == []
