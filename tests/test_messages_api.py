"""The server for tests behaves like the Messages API, for the SDK's own client."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import pytest

from tests.support.messages_api import (
    MessagesApi,
    Request,
    hang_up,
    message,
    overloaded,
    refusal,
    silence,
    thinking,
    tool_use,
)
from tests.support.waiting import PATIENCE_SEC

ASK: Any = {
    "model": "claude-x",
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "hi"}],
}


def test_a_stream_adds_up_to_the_complete_message(api: MessagesApi) -> None:
    call = tool_use("bash", {"command": "ls 文件"})
    reply = message(thinking("Let me see."), "I look into the directory.", call)
    api.reply(reply, reply)
    client = api.client()

    whole = client.messages.create(**ASK)
    with client.messages.stream(**ASK) as stream:
        streamed = stream.get_final_message()

    assert whole.stop_reason == streamed.stop_reason == "tool_use"
    assert whole.usage == streamed.usage
    assert [block.model_dump() for block in whole.content] == [
        block.model_dump(exclude={"parsed_output"}) for block in streamed.content
    ]


def test_a_request_is_retried_as_the_server_says(api: MessagesApi) -> None:
    api.reply(
        overloaded(retry_after=0.01), message("Hello.", usage={"input_tokens": 7})
    )

    answer = api.client(max_retries=1).messages.create(**ASK)

    assert answer.usage.input_tokens == 7
    assert answer.model == "claude-x"
    retries = [r.headers["x-stainless-retry-count"] for r in api.requests]
    assert retries == ["0", "1"]
    assert api.requests[0].body == ASK


def test_a_stream_can_break_off(api: MessagesApi) -> None:
    reply = message("Here is a long answer.")
    api.reply(reply.broken(after=3), reply.broken(after=3, error=overloaded()))

    for error_text in ("incomplete chunked read", "overloaded_error"):
        with (
            pytest.raises(Exception, match=error_text),
            api.client().messages.stream(**ASK) as stream,
        ):
            stream.get_final_message()


@pytest.mark.parametrize(
    ("reply", "raised"),
    [
        (overloaded(), anthropic.OverloadedError),
        (silence(), anthropic.APITimeoutError),
        (hang_up(), anthropic.APIConnectionError),
    ],
)
def test_failures_raise_the_errors_of_the_sdk(
    api: MessagesApi, reply: Any, raised: type[Exception]
) -> None:
    api.reply(reply)
    timeout = 0.1 if reply.instead == "silence" else PATIENCE_SEC

    with pytest.raises(raised):
        api.client(max_retries=0, timeout=timeout).messages.create(**ASK)


def test_a_request_that_no_model_would_see_is_refused(api: MessagesApi) -> None:
    with pytest.raises(anthropic.BadRequestError, match="max_tokens: Field required"):
        api.client().post(
            "/v1/messages", body={"model": "x", "messages": []}, cast_to=object
        )
    with pytest.raises(anthropic.BadRequestError, match="no more replies"):
        api.client().messages.create(**ASK)


def test_a_function_answers_and_tokens_are_counted() -> None:
    def answer(request: Request) -> Any:
        return refusal(f"asked {len(request.body['messages'])}")

    with MessagesApi(answer) as api:
        client = api.client()

        response = client.messages.create(**ASK)
        counted = client.messages.count_tokens(model="x", messages=ASK["messages"])

        assert response.stop_reason == "refusal"
        assert counted.input_tokens == response.usage.input_tokens
        assert len(api.counted) == len(api.requests) == 1


def test_the_asynchronous_client_is_answered_too(api: MessagesApi) -> None:
    async def ask() -> anthropic.types.Message:
        async with api.async_client() as client:
            answer: anthropic.types.Message = await client.messages.create(**ASK)
            return answer

    api.reply(message("Hello."))

    assert asyncio.run(ask()).stop_reason == "end_turn"
