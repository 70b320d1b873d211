"""The OpenAI Agents SDK keeps its conversations in sessions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from agents import Agent, RunConfig, Runner, Session, function_tool
from agents.models.fake_id import FAKE_RESPONSES_ID
from agents.run_config import CallModelData, ModelInputData
from agents.testing import ScriptedModel
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage

import refold
from refold.adapters.frameworks.openai_agents import RefoldSession
from refold.domain.canonical import canonical
from tests.frameworks.contract import (
    ANSWER,
    CONVERSATION,
    HELP,
    MAIL,
    NUMBERED,
    SECRET,
    FilterContract,
    RedactedContract,
    SampleMessage,
    all_stored_text,
)
from tests.support.nested import blocks_of


def items_of(sample: SampleMessage, number: int) -> list[Any]:
    name = f"msg_{number:08d}"
    if sample.who == "user":
        return [{"id": name, "role": "user", "content": sample.text}]
    if sample.who == "tool":
        kind = "function_call_output"
        back = {"type": kind, "call_id": sample.call, "output": sample.text}
        return [{"id": f"fco_{number}", **back}]
    part = {"type": "output_text", "text": sample.text, "annotations": []}
    answer = {"id": name, "type": "message", "role": "assistant", "content": [part]}
    call = {"id": f"fc_{number:08d}", "type": "function_call", "call_id": sample.call}
    arguments = json.dumps(sample.arguments)
    return [answer, {**call, "name": "send", "arguments": arguments}][
        : 2 if sample.call else 1
    ]


class TestContract(RedactedContract):
    def adapter(self, store: refold.SessionStore) -> Any:
        return lambda thread: RefoldSession(
            store, thread, user_id="ada", erase_on_clear=True
        )

    def item(self, sample: SampleMessage, number: int) -> Any:
        return items_of(sample, number)[0]

    def items(self) -> list[Any]:
        return [
            item
            for n, sample in enumerate(CONVERSATION)
            for item in items_of(sample, n)
        ]

    async def save(
        self, adapter: Any, thread: str, items: list[Any], new: list[Any]
    ) -> None:
        await adapter(thread).add_items(new)

    async def load(self, adapter: Any, thread: str) -> list[Any]:
        return list(await adapter(thread).get_items())

    async def delete(self, adapter: Any, thread: str) -> None:
        await adapter(thread).clear_session()

    def plain(self, item: Any) -> Any:
        return item

    def ids(self, item: Any) -> list[str]:
        return [item["id"], item.get("call_id", "")]


class TestFilter(FilterContract):
    def talk(self, store: refold.SessionStore, texts: Sequence[str]) -> list[str]:
        model = ScriptedModel(
            [[text_message(f"msg_{n}", ANSWER)] for n in range(len(texts))]
        )
        agent = Agent(name="clerk", model=model, instructions=HELP)
        for text in texts:
            session = opened(store)
            config = RunConfig(
                call_model_input_filter=session.call_model_input_filter,
                tracing_disabled=True,
            )
            asyncio.run(Runner.run(agent, text, session=session, run_config=config))
        return [f"{turn.system_instructions} {turn.input}" for turn in model.calls]


def text_message(name: str, text: str) -> ResponseOutputMessage:
    return ResponseOutputMessage.model_validate(
        {
            "id": name,
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": text, "annotations": []}],
        }
    )


def user_item(text: str, **more: Any) -> Any:
    return {"role": "user", "content": text, **more}


def opened(store: refold.SessionStore, **how: Any) -> RefoldSession:
    return RefoldSession(store, "s", user_id="ada", **how)


def test_popped_and_cleared_items_are_hidden_until_added_again(url: str) -> None:
    async def tour(session: RefoldSession) -> None:
        first = user_item("one", id="m-1")
        second = user_item("two", id="m-2")
        await session.add_items([first, second])
        assert await session.pop_item() == second
        await session.add_items([second])
        assert await session.get_items() == [first, second]
        assert await session.get_items(1) == [second]
        assert await session.get_items(0) == []
        await session.clear_session()
        assert await session.get_items() == []
        assert await session.pop_item() is None
        await session.add_items([first])
        assert await session.get_items() == [first]

    with refold.open(url) as store:
        asyncio.run(tour(opened(store)))
        assert "two" in all_stored_text(store)


def texts(store: refold.SessionStore) -> list[str]:
    """The texts of the context of the only session."""
    (info,) = store.sessions("ada")
    session = store.session(user_id="ada", session_id=info.session_id)
    messages = session.context("keep_all").messages
    return [block["text"] for block in blocks_of(messages)]


def test_contexts_leave_out_what_was_popped_or_cleared(url: str) -> None:
    async def tour(store: refold.SessionStore) -> None:
        session = opened(store)
        await session.add_items([user_item("one"), user_item("two")])
        assert texts(store) == ["one", "two"]
        await session.pop_item()
        assert texts(store) == ["one"]
        await session.add_items([user_item("three")])
        assert texts(store) == ["one", "three"]
        await session.clear_session()
        await session.add_items([user_item("four")])
        assert texts(store) == ["four"]

    with refold.open(url) as store:
        asyncio.run(tour(store))


def test_equal_items_without_ids_are_all_kept(url: str) -> None:
    async def tour(session: RefoldSession) -> None:
        twice = [
            user_item("go on"),
            user_item("go on"),
            user_item("yes", id=FAKE_RESPONSES_ID),
        ] * 2
        await session.add_items(twice)
        assert await session.get_items() == twice

    with refold.open(url) as store:
        asyncio.run(tour(opened(store)))


def test_encrypted_reasoning_is_kept_completely_or_removed(url: str) -> None:
    sealed = "ErUBCkYIBRgCIkDDbw4j0k2g6Ff3l8hVtQz0m7qXpN9aYc5RkTzWvUe1sLdHxGiJbKo="

    def thought(text: str, name: str) -> dict[str, Any]:
        summary = [{"type": "summary_text", "text": text}]
        kind = {"id": name, "type": "reasoning"}
        return {**kind, "summary": summary, "encrypted_content": sealed}

    with refold.open(url) as store:
        session = opened(store)
        items = [
            thought("It is so.", "rs_1a2b3c"),
            thought(f"Ask {MAIL}.", "rs_4d5e6f"),
        ]
        asyncio.run(session.add_items(items))
        whole, changed = asyncio.run(session.get_items())
        assert whole == items[0]
        assert "encrypted_content" not in changed
        assert MAIL not in str(changed)


def test_the_model_gets_only_numbers_of_the_session(url: str) -> None:
    with refold.open(url, policy=NUMBERED) as store:
        session = opened(store)
        asyncio.run(session.add_items([user_item(f"Ask {MAIL}.")]))
        (stored,) = asyncio.run(session.get_items())
        data_of_model = ModelInputData(
            input=[stored, user_item("Ask [EMAIL_1]!")], instructions=None
        )
        data: Any = CallModelData(
            model_data=data_of_model, agent=Agent(name="a"), context=None
        )

        sent = asyncio.run(session.call_model_input_filter(data))

        assert sent.input == [user_item("Ask [EMAIL_1]."), user_item("Ask [~EMAIL_1]!")]


def test_a_closed_session_accepts_no_calls(url: str) -> None:
    with refold.open(url) as store:
        session = opened(store)
        session.close()

        for call in (
            session.get_items(),
            session.add_items([]),
            session.pop_item(),
            session.clear_session(),
        ):
            with pytest.raises(RuntimeError, match="closed"):
                asyncio.run(call)


def test_a_strategy_replaces_old_items_with_a_summary(url: str) -> None:
    turns = [user_item(f"Question {n}: " + "how is it done? " * 40) for n in range(12)]
    items = [item for turn in turns for item in (turn, {**turn, "role": "assistant"})]

    async def tour(session: RefoldSession) -> list[Any]:
        await session.add_items(items)
        await session.run_compaction({"response_id": "r"})
        return await session.get_items()

    with refold.open(url) as store:
        strategy = "turn_window:full_turns=2,cached_turns=3"
        summary, *rest = asyncio.run(tour(opened(store, strategy=strategy)))

        assert len(rest) < len(items)
        assert rest == items[-len(rest) :]
        assert "summary" in summary["content"]
        assert asyncio.run(opened(store).get_items()) == items
        assert asyncio.run(opened(store, strategy=strategy).get_items(1)) == rest[-1:]


def test_the_runner_stores_a_run_and_sends_the_stored_text(url: str) -> None:
    @function_tool
    def look_up(who: str) -> str:
        return f"{who}: {SECRET}"

    call = ResponseFunctionToolCall(
        type="function_call",
        call_id="call_1a2b3c",
        id="fc_1a2b3c",
        name="look_up",
        arguments=canonical({"who": MAIL}).decode(),
    )
    answers = [text_message("msg_1a2b3c", "Done."), text_message("msg_4d5e6f", "Done.")]
    model = ScriptedModel([[call], *([answer] for answer in answers)])
    agent = Agent(name="clerk", model=model, tools=[look_up], instructions="Help.")

    async def run(session: RefoldSession, text: str) -> Any:
        config = RunConfig(
            call_model_input_filter=session.call_model_input_filter,
            tracing_disabled=True,
        )
        return await Runner.run(agent, text, session=session, run_config=config)

    with refold.open(url) as store:
        session = opened(store)
        assert isinstance(session, Session)
        asyncio.run(run(session, f"Look {MAIL} up."))
        asyncio.run(run(opened(store), "Thanks."))

        sent = str([turn.input for turn in model.calls])
        assert SECRET not in sent
        assert MAIL not in sent
        assert "[REDACTED:EMAIL" in sent
        kinds = [
            item.get("type", "message") for item in asyncio.run(session.get_items())
        ]
        assert kinds[1:3] == ["function_call", "function_call_output"]
        assert len(kinds) == 6
