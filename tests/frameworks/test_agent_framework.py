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
    SampleMessage,
)


class TestContract(RedactedContract):
    def adapter(self, store: refold.SessionStore) -> Any:
        return RefoldHistoryProvider(store, user_id="ada")

    def item(self, sample: SampleMessage, number: int) -> Any:
        contents: list[Any] = []
        if sample.who == "tool":
            contents = [Content.from_function_result(sample.call, result=sample.text)]
        elif sample.text:
            contents = [Content.from_text(sample.text)]
        if sample.who == "assistant" and sample.call:
            call = Content.from_function_call(
                sample.call, "send", arguments=sample.arguments
            )
            contents.append(call)
        return Message(sample.who, contents, message_id=f"m-{number:04d}")

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
        messages = [Message("user", [Content.from_text("go on")]) for _ in range(3)]
        self.run(provider.save_messages("t", messages[:2]))

        self.run(provider.save_messages("t", messages))

        loaded = self.run(self.load(provider, "t"))
        assert [message.text for message in loaded] == ["go on"] * 3
        assert [message.message_id for message in loaded] == [
            message.message_id for message in messages
        ]
        self.run(provider.save_messages("t", loaded))
        assert len(self.run(self.load(provider, "t"))) == 3

    def test_a_held_conversation_is_not_deleted(
        self, store: refold.SessionStore
    ) -> None:
        provider = self.adapter(store)
        self.run(
            self.save(provider, "t", [], [self.item(SampleMessage("user", "hi"), 1)])
        )
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
                contents = [message.text for message in messages]
                sent.append(f"{contents} {options.get('instructions')}")
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
