"""Strands Agents keeps its sessions in sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from strands import Agent
from strands.models import Model
from strands.multiagent import GraphBuilder
from strands.session.repository_session_manager import RepositorySessionManager
from strands.types.exceptions import SessionException
from strands.types.session import Session, SessionAgent, SessionMessage, SessionType

import refold
from refold.adapters.frameworks.strands import RefoldSessionRepository
from tests.frameworks.contract import (
    ANSWER,
    HELP,
    MAIL,
    FilterContract,
    RedactedContract,
    SampleMessage,
)
from tests.support.nested import blocks_of


def session_message(sample: SampleMessage, number: int) -> SessionMessage:
    content: list[Any] = []
    if sample.who == "tool":
        result = {"toolUseId": sample.call, "status": "success"}
        content = [{"toolResult": {**result, "content": [{"text": sample.text}]}}]
    elif sample.text:
        content = [{"text": sample.text}]
    if sample.who == "assistant" and sample.call:
        use = {"toolUseId": sample.call, "name": "send", "input": sample.arguments}
        content.append({"toolUse": use})
    role: Any = "assistant" if sample.who == "assistant" else "user"
    message: Any = {"role": role, "content": content}
    at = f"2026-05-01T10:00:{number:02d}+00:00"
    return SessionMessage(message, number, created_at=at, updated_at=at)


class TestContract(RedactedContract):
    at_once = 1

    def adapter(self, store: refold.SessionStore) -> Any:
        return RefoldSessionRepository(store, user_id="ada")

    def item(self, sample: SampleMessage, number: int) -> Any:
        return session_message(sample, number)

    async def save(
        self, adapter: Any, thread: str, items: list[Any], new: list[Any]
    ) -> None:
        for message in new:
            await asyncio.to_thread(adapter.create_message, thread, "desk", message)

    async def load(self, adapter: Any, thread: str) -> list[Any]:
        return list(await asyncio.to_thread(adapter.list_messages, thread, "desk"))

    async def delete(self, adapter: Any, thread: str) -> None:
        await asyncio.to_thread(adapter.delete_session, thread)

    def plain(self, item: Any) -> Any:
        return item.to_dict()

    def ids(self, item: Any) -> list[str]:
        parts = item.message["content"]
        calls = [part.get("toolUse") or part.get("toolResult") for part in parts]
        return [str(item.message_id), *(call["toolUseId"] for call in calls if call)]

    def test_sessions_agents_and_messages_are_made_read_and_updated(
        self, store: refold.SessionStore
    ) -> None:
        repository = self.adapter(store)
        with pytest.raises(SessionException):
            repository.create_agent("t", SessionAgent("desk", {}, {}))
        session = Session("t", SessionType.AGENT)
        repository.create_session(session)
        with pytest.raises(SessionException):
            repository.create_session(session)
        assert repository.read_session("t") == session
        assert repository.read_session("none") is None

        agent = SessionAgent("desk", {"mail": MAIL, "n": 1}, {"removed": 0})
        repository.create_agent("t", agent)
        agent.state["n"] = 2
        repository.update_agent("t", agent)
        read = repository.read_agent("t", "desk")
        assert read.state == {"mail": "[REDACTED:EMAIL]", "n": 2}
        assert read.created_at == agent.created_at
        assert repository.read_agent("t", "none") is None
        with pytest.raises(SessionException):
            repository.update_agent("t", SessionAgent("none", {}, {}))

        for number in range(5):
            repository.create_message(
                "t", "desk", session_message(SampleMessage("user", "hi"), number)
            )
        changed = session_message(SampleMessage("user", "hi"), 3)
        changed.redact_message = {"role": "user", "content": [{"text": "[gone]"}]}
        repository.update_message("t", "desk", changed)
        messages = repository.list_messages("t", "desk", limit=2, offset=2)
        assert [message.message_id for message in messages] == [2, 3]
        assert messages[1].to_message()["content"] == [{"text": "[gone]"}]
        assert repository.read_message("t", "desk", 9) is None
        with pytest.raises(SessionException):
            repository.update_message(
                "t", "desk", session_message(SampleMessage("user", "x"), 9)
            )


class Answering(Model):
    """A model that gives one answer, and counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    async def stream(self, *_: Any, **__: Any) -> Any:
        self.asked += 1
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": {}}}
        yield {"contentBlockDelta": {"delta": {"text": f"{ANSWER} {MAIL}"}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}

    def structured_output(self, *_: Any, **__: Any) -> Any: ...
    def update_config(self, **_: Any) -> None: ...
    def get_config(self) -> Any:
        return {}


def test_a_graph_continues_with_the_state_of_another_process(url: str) -> None:
    def run(repository: RefoldSessionRepository, model: Model) -> Any:
        builder = GraphBuilder()
        for name in ("first", "second"):
            agent = Agent(model, agent_id=name, callback_handler=None)
            builder.add_node(agent, name)
        builder.add_edge("first", "second")
        builder.set_entry_point("first")
        builder.set_max_node_executions(10)
        builder.set_graph_id("both")
        builder.set_session_manager(
            RepositorySessionManager("t", session_repository=repository)
        )
        return builder.build()("Go.")

    model = Answering()
    with refold.open(url) as store:
        run(RefoldSessionRepository(store, user_id="ada"), model)
    with refold.open(url) as store:
        repository = RefoldSessionRepository(store, user_id="ada")
        state = repository.read_multi_agent("t", "both")
        assert state is not None
        assert state["status"] == "completed"
        assert sorted(state["completed_nodes"]) == ["first", "second"]
        assert MAIL not in str(state)
        assert repository.read_multi_agent("t", "other") is None
        assert model.asked == 2
        run(repository, model)
        repository.delete_session("t")
        assert repository.read_multi_agent("t", "both") is None


def test_the_state_of_an_unknown_graph_is_not_updated(url: str) -> None:
    builder = GraphBuilder()
    builder.add_node(Agent(Answering(), agent_id="a", callback_handler=None), "a")
    builder.set_max_node_executions(10)
    graph = builder.build()
    with refold.open(url) as store:
        repository = RefoldSessionRepository(store, user_id="ada")
        with pytest.raises(SessionException):
            repository.update_multi_agent("t", graph)


class TestFilter(FilterContract):
    def talk(self, store: refold.SessionStore, texts: Sequence[str]) -> list[str]:
        image = {"format": "png", "source": {"bytes": b"not \x89 text"}}
        sent: list[str] = []

        class Scripted(Model):
            async def stream(
                self, messages: Any, tools: Any, system_prompt: Any, **_: Any
            ) -> Any:
                assert image in [part.get("image") for part in messages[0]["content"]]
                sent.append(f"{messages} {system_prompt}")
                yield {"messageStart": {"role": "assistant"}}
                yield {"contentBlockStart": {"start": {}}}
                yield {"contentBlockDelta": {"delta": {"text": ANSWER}}}
                yield {"contentBlockStop": {}}
                yield {"messageStop": {"stopReason": "end_turn"}}

            def structured_output(self, *_: Any, **__: Any) -> Any: ...
            def update_config(self, **_: Any) -> None: ...
            def get_config(self) -> Any:
                return {}

        repository = RefoldSessionRepository(store, user_id="ada")
        for text in texts:
            agent = Agent(
                Scripted(),
                agent_id="desk",
                system_prompt=HELP,
                session_manager=RepositorySessionManager(
                    "t", session_repository=repository
                ),
                hooks=[repository.filter("t")],
                callback_handler=None,
            )
            agent([{"text": text}, {"image": image}])
        return sent


def texts(store: refold.SessionStore) -> list[str]:
    """The texts of the context of the agent ``desk``."""
    for info in store.sessions("ada", label={"strands_session": "t"}):
        session = store.session(user_id="ada", session_id=info.session_id)
        messages = session.context("keep_all").messages
        if messages and session.native.read(kind="message"):
            return [part["text"] for part in blocks_of(messages)]
    return []


def desk(store: refold.SessionStore) -> tuple[RefoldSessionRepository, SessionAgent]:
    """A session with an agent that has four messages."""
    repository = RefoldSessionRepository(store, user_id="ada")
    repository.create_session(Session("t", SessionType.AGENT))
    agent = SessionAgent("desk", {}, {"removed_message_count": 0})
    repository.create_agent("t", agent)
    for number, text in enumerate(["one", "two", "three", "four"]):
        repository.create_message(
            "t", "desk", session_message(SampleMessage("user", text), number)
        )
    return repository, agent


def test_contexts_show_the_message_of_an_update_in_its_place(url: str) -> None:
    with refold.open(url) as store:
        repository, _ = desk(store)
        repository.update_message(
            "t", "desk", session_message(SampleMessage("user", "2"), 1)
        )
        assert texts(store) == ["one", "2", "three", "four"]
        repository.update_message(
            "t", "desk", session_message(SampleMessage("user", "4"), 3)
        )
        repository.update_message(
            "t", "desk", session_message(SampleMessage("user", "1"), 0)
        )
        assert texts(store) == ["1", "2", "three", "4"]
        read = repository.list_messages("t", "desk")
        assert [message.message["content"][0]["text"] for message in read] == texts(
            store
        )


def test_contexts_leave_out_what_the_conversation_manager_removed(url: str) -> None:
    with refold.open(url) as store:
        repository, agent = desk(store)
        agent.conversation_manager_state = {"removed_message_count": 2}
        repository.update_agent("t", agent)
        assert texts(store) == ["three", "four"]
        repository.update_message(
            "t", "desk", session_message(SampleMessage("user", "2"), 1)
        )
        assert texts(store) == ["three", "four"]

        summary = {"role": "user", "content": [{"text": "so far"}]}
        state = {"removed_message_count": 3, "summary_message": summary}
        agent.conversation_manager_state = state
        repository.update_agent("t", agent)
        assert texts(store) == ["so far", "four"]
        newer = {"role": "user", "content": [{"text": "all so far"}]}
        state = {"removed_message_count": 4, "summary_message": newer}
        agent.conversation_manager_state = state
        repository.update_agent("t", agent)
        assert texts(store) == ["all so far"]
