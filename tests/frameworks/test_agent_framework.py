"""Microsoft's Agent Framework keeps its conversations in sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

import pytest
from agent_framework import (
    Agent,
    AgentSession,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    Content,
    FunctionInvocationLayer,
    Message,
)

import refold
from refold.adapters.frameworks.agent_framework import RefoldHistoryProvider
from refold.domain.errors import OnHold
from tests.frameworks.contract import (
    ANSWER,
    HELP,
    FilterContract,
    RedactedContract,
    Said,
)


class TestContract(RedactedContract):
    def adapter(self, store: refold.SessionStore) -> Any:
        return RefoldHistoryProvider(store, user_id="ada")

    def item(self, said: Said, number: int) -> Any:
        contents: list[Any] = []
        if said.who == "tool":
            contents = [Content.from_function_result(said.call, result=said.text)]
        elif said.text:
            contents = [Content.from_text(said.text)]
        if said.who == "assistant" and said.call:
            call = Content.from_function_call(said.call, "send", arguments=said.given)
            contents.append(call)
        return Message(said.who, contents, message_id=f"m-{number:04d}")

    async def save(
        self, adapter: Any, thread: str, items: list[Any], new: list[Any]
    ) -> None:
        await adapter.save_messages(thread, new)

    async def load(self, adapter: Any, thread: str) -> list[Any]:
        return list(await adapter.get_messages(thread))

    async def delete(self, adapter: Any, thread: str) -> None:
        await adapter.delete(thread)

    def plain(self, item: Any) -> Any:
        return item.to_dict()

    def ids(self, item: Any) -> list[str]:
        calls = [getattr(content, "call_id", None) for content in item.contents]
        return [item.message_id, *filter(None, calls)]

    def test_a_message_without_an_id_is_kept_once_and_equal_ones_each(
        self, store: refold.SessionStore
    ) -> None:
        provider = self.adapter(store)
        said = [Message("user", [Content.from_text("go on")]) for _ in range(3)]
        self.run(provider.save_messages("t", said[:2]))

        self.run(provider.save_messages("t", said))

        loaded = self.run(self.load(provider, "t"))
        assert [one.text for one in loaded] == ["go on"] * 3
        assert [one.message_id for one in loaded] == [one.message_id for one in said]
        self.run(provider.save_messages("t", loaded))
        assert len(self.run(self.load(provider, "t"))) == 3

    def test_a_held_conversation_is_not_deleted(
        self, store: refold.SessionStore
    ) -> None:
        provider = self.adapter(store)
        self.run(self.save(provider, "t", [], [self.item(Said("user", "hi"), 1)]))
        store.erasures.hold("ada", "case-1", "an enquiry")

        with pytest.raises(OnHold):
            self.run(provider.delete("t"))


class TestFilter(FilterContract):
    def talk(self, store: refold.SessionStore, texts: Sequence[str]) -> list[str]:
        sent: list[str] = []

        class Client(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):
            def _inner_get_response(
                self, *, messages: Any, options: Any, **_: Any
            ) -> Awaitable[ChatResponse]:
                said = [one.text for one in messages]
                sent.append(f"{said} {options.get('instructions')}")
                answer = Message("assistant", [Content.from_text(ANSWER)])

                async def response() -> ChatResponse:
                    return ChatResponse(messages=[answer])

                return response()

        provider = RefoldHistoryProvider(store, user_id="ada")
        agent = Agent(
            client=Client(),
            instructions=HELP,
            context_providers=[provider],
            middleware=[provider.filter],
        )
        session = AgentSession(session_id="t")
        for text in texts:
            asyncio.run(agent.run(text, session=session))
        return sent
