"""Capture: every request and answer is in the session, and can be verified."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import pytest
from anthropic.types import Message, TextBlock

import refold
from refold.adapters.claude.capture import AsyncCapture, Capture
from refold.domain.events import Request
from refold.projections.context.text import violations
from refold.store import Session
from refold.store.appends import Order
from tests.support.messages_api import (
    MessagesApi,
    error,
    hang_up,
    message,
    overloaded,
    raw,
    refusal,
    thinking,
    tool_use,
)
from tests.support.waiting import until_async

TOOLS: Any = [{"name": "bash", "input_schema": {"type": "object"}}]
SIGNATURE = "c2lnbmF0dXJl/+="


def capture(session: Session, api: MessagesApi, **more: Any) -> Capture:
    client = api.client(max_retries=0)
    return Capture(client, session, model="claude-x", max_tokens=99, **more)


def types(session: Session) -> list[str]:
    return [event.type for event in session.events()]


def payloads(session: Session, kind: str) -> list[Any]:
    return [event.payload for event in session.events() if event.type == kind]


def unmarked(messages: Any) -> Any:
    return [
        {
            **message,
            "content": [
                {k: v for k, v in block.items() if k != "cache_control"}
                for block in message["content"]
            ],
        }
        for message in messages
    ]


def proved(session: Session) -> None:
    """The log verifies, and each recorded request can be reproduced from its digest."""
    assert session.verify().problems == []
    for envelope, view in session.proofs.replay():
        assert isinstance(envelope.payload, Request)
        assert view.digest == envelope.payload.digest


def test_a_call_is_in_the_session_with_its_request_and_answer(
    session: Session, api: MessagesApi
) -> None:
    api.reply(message("Because.", usage={"input_tokens": 7, "output_tokens": 3}))
    ask = capture(session, api, system="Be brief.", tools=TOOLS)

    answer = ask.create("Why?", request_id="r-1", options={"stop_sequences": ["END"]})

    (block,) = answer.content
    assert isinstance(block, TextBlock)
    assert block.text == "Because."
    assert types(session) == ["user_input", "request", "agent_response"]
    assert {event.request_id for event in session.events()} == {"r-1"}
    request = api.requests[0].body
    (response,) = payloads(session, "agent_response")
    assert (response.text, response.stop_reason) == ("Because.", "end_turn")
    assert (response.usage["input_tokens"], response.usage["output_tokens"]) == (7, 3)
    assert (request["model"], request["max_tokens"]) == ("claude-x", 99)
    assert request["stop_sequences"] == ["END"]
    ((envelope, view),) = session.proofs.replay()
    assert unmarked(request["messages"]) == view.messages
    assert request["system"][0]["text"] == view.system == "Be brief."
    assert request["tools"] == TOOLS == [*view.tools]
    assert isinstance(envelope.payload, Request)
    assert (envelope.payload.matches, envelope.payload.model) == (True, "claude-x")
    assert envelope.meta.dump()["options"] == {"stop_sequences": ["END"]}
    response = session.events()[-1]
    assert response.meta.response_id == answer.id
    assert response.meta.duration_ms is not None
    proved(session)


def test_tools_are_called_and_answered_from_the_log(
    session: Session, api: MessagesApi
) -> None:
    thought = thinking("Let me see.", signature=SIGNATURE)
    call = tool_use("bash", {"command": "ls 文件"}, call_id="toolu_1")
    api.reply(message(thought, "I look.", call), message("Two files."))
    ask = capture(session, api, tools=TOOLS)

    ask.create("What is there?")
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "a b"}
    ask.create([result, {"type": "text", "text": "Go on."}])

    assert types(session) == [
        "user_input",
        "request",
        "agent_response",
        "tool_call",
        "tool_result",
        "user_input",
        "request",
        "agent_response",
    ]
    sent = unmarked(api.requests[1].body["messages"])
    assert sent[1]["content"][0] == thought
    assert sent[1]["content"][2] == {
        "type": "tool_use",
        "id": "toolu_1",
        "name": "bash",
        "input": {"command": "ls 文件"},
    }
    assert sent[2]["content"] == [result, {"type": "text", "text": "Go on."}]
    assert violations(sent) == []
    proved(session)


def test_a_call_whose_id_holds_an_address_is_answered_from_the_log(
    session: Session, api: MessagesApi
) -> None:
    call_id = "ada@lovelace.test"
    api.reply(message(tool_use("bash", {}, call_id=call_id)), message("Two files."))
    ask = capture(session, api, tools=TOOLS)

    ask.create("What is there?")
    ask.create([{"type": "tool_result", "tool_use_id": call_id, "content": "a b"}])

    sent = unmarked(api.requests[1].body["messages"])
    assert sent[1]["content"][-1]["id"] == sent[2]["content"][0]["tool_use_id"]
    assert sent[1]["content"][-1]["id"].startswith("redacted_")
    assert violations(sent) == []
    proved(session)


def test_evidence_is_redacted_before_it_is_sent(
    session: Session, api: MessagesApi
) -> None:
    api.reply(message("I wrote to ann.lee@corp.example.org."))
    ask = capture(session, api)

    ask.create("Mail ann.lee@corp.example.org", evidence=["phone 13800138000"])

    sent = str(api.requests[0].body)
    assert "ann.lee@corp.example.org" in sent  # the caller may show it to the model
    assert "13800138000" not in sent
    assert "corp.example" not in str(session.context().messages)
    assert payloads(session, "request")[0].matches is True
    proved(session)


def test_a_text_that_needs_too_much_work_affects_no_other(
    session: Session, api: MessagesApi
) -> None:
    dear = "CLIENT_SECRET=a8f5f167f44f4964" * 400
    api.reply(message(dear), message("Bye."))
    ask = capture(session, api)

    ask.create(dear)
    ask.create("Thanks.")

    stub = f"[REDACTED:UNSCANNED {len(dear)} bytes]"
    assert stub in str(api.requests[0].body)
    assert "a8f5" not in str(api.requests[1].body)
    assert payloads(session, "agent_response")[0].text == stub
    assert payloads(session, "user_input")[1].text == "Thanks."
    responses = [event for event in session.events() if event.type == "agent_response"]
    assert responses[0].redaction["types"] == {"UNSCANNED": 1}
    proved(session)


def test_compaction_is_automatic(session: Session, api: MessagesApi) -> None:
    window = "turn_window:full_turns=1,cached_turns=1"
    ask = capture(session, api, strategy=window)
    for number in range(5):
        api.reply(message(f"answer {number} " + "because " * 40))
        ask.create(f"question {number} " + "why " * 40)

    sent = str(api.requests[-1].body["messages"])
    assert "<summary" in sent
    assert "answer 3" in sent
    assert session.verify().compactions > 0
    proved(session)


def test_only_what_is_still_open_is_sent_again(
    session: Session, api: MessagesApi
) -> None:
    session.append([refold.SystemPrompt(text="You help."), refold.UserInput(text="Hi")])
    api.reply(message("Hello."))

    capture(session, api).create()

    assert api.requests[0].body["system"][0]["text"] == "You help."
    assert types(session)[-2:] == ["request", "agent_response"]


@pytest.mark.parametrize(
    ("reply", "raised", "code", "retryable"),
    [
        (overloaded(), anthropic.InternalServerError, "overloaded_error", True),
        (hang_up(), anthropic.APIConnectionError, "connection", True),
    ],
)
def test_a_call_that_fails_is_an_error_in_the_log(
    session: Session,
    api: MessagesApi,
    reply: Any,
    raised: type[Exception],
    code: str,
    retryable: bool,
) -> None:
    api.reply(reply, message("Because."))
    ask = capture(session, api)

    with pytest.raises(raised):
        ask.create("Why?")
    ask.create()

    assert types(session) == [
        "user_input",
        "request",
        "error",
        "request",
        "agent_response",
    ]
    (failed,) = payloads(session, "error")
    assert (failed.code, failed.retryable) == (code, retryable)
    proved(session)


def test_an_outage_is_not_in_the_next_request(
    session: Session, api: MessagesApi
) -> None:
    api.reply(overloaded(), hang_up(), overloaded(), message("Because."))
    ask = capture(session, api)

    with pytest.raises(anthropic.InternalServerError):
        ask.create("Why?")
    for raised in (anthropic.APIConnectionError, anthropic.InternalServerError):
        with pytest.raises(raised):
            ask.create()
    ask.create()

    first, *others = [request.body["messages"] for request in api.requests]
    assert others == [first] * 3
    assert [sent["role"] for sent in session.context().messages] == [
        "user",
        "assistant",
    ]
    proved(session)


def test_a_refused_content_is_left_by_a_fork(
    session: Session, api: MessagesApi
) -> None:
    api.reply(error(400), message("Yes."))
    session.append(refold.UserInput(text="Fine."))
    good = session.head().seq

    with pytest.raises(anthropic.BadRequestError):
        capture(session, api).create("Refused.")
    again = session.fork(good, session_id="again")
    capture(again, api).create()

    assert "HTTP 400" in str(session.context().messages)
    assert "Refused" not in str(api.requests[-1].body)
    assert "HTTP 400" not in str(again.context().messages)


def test_the_window_is_the_models_without_the_answer(
    session: Session, api: MessagesApi
) -> None:
    api.reply(message("Because."), message("Because."))
    capturing = Capture(api.client(), session, model="claude-haiku-5-5", max_tokens=99)

    capturing.create("Why?")
    capturing.create("Why?", window=5_000)

    whole = refold.strategies.window_of("claude-haiku-5-5")
    windows = [request.window_tokens for request in payloads(session, "request")]
    assert windows == [whole - 99, 5_000]


def test_a_refusal_is_an_answer(session: Session, api: MessagesApi) -> None:
    api.reply(refusal())

    capture(session, api).create("Why?")

    (response,) = payloads(session, "agent_response")
    assert (response.text, response.stop_reason) == ("", "refusal")
    proved(session)


def test_a_stream_is_recorded_completely(session: Session, api: MessagesApi) -> None:
    thought = thinking("Let me see.", signature=SIGNATURE)
    api.reply(message(thought, "I look.", tool_use("bash", {"command": "ls"})))

    with capture(session, api, tools=TOOLS).stream("Look!") as stream:
        text = "".join(stream.text_stream)

    assert text == "I look."
    (response,) = payloads(session, "agent_response")
    assert (response.text, response.stop_reason) == ("I look.", "tool_use")
    assert response.thinking[0].signature == SIGNATURE
    assert payloads(session, "tool_call")[0].arguments == {"command": "ls"}
    assert response.usage["output_tokens"] > 1
    proved(session)


@pytest.mark.parametrize("how", ["hangs up", "errs"])
def test_a_broken_stream_is_recorded_up_to_its_end(
    session: Session, api: MessagesApi, how: str
) -> None:
    whole = message("Here is a long answer to your question.")
    api.reply(whole.broken(after=5, error=overloaded() if how == "errs" else None))

    with (
        pytest.raises(Exception, match=r"incomplete|overloaded"),
        capture(session, api).stream("Why?") as stream,
    ):
        stream.until_done()

    (response,) = payloads(session, "agent_response")
    (error,) = payloads(session, "error")
    assert response.text == "Here is a long answer to"[: len(response.text)] != ""
    assert response.stop_reason == "interrupted"
    assert error.retryable or error.code == "interrupted"
    assert violations(session.context().messages) == []
    proved(session)


def test_a_call_that_came_in_half_is_no_call(
    session: Session, api: MessagesApi
) -> None:
    call = tool_use("bash", {"command": "rm -r everything that is in here"})
    api.reply(message("I clean.", call).broken(after=9))

    with (
        pytest.raises(Exception, match="incomplete"),
        capture(session, api, tools=TOOLS).stream("Clean!") as stream,
    ):
        stream.until_done()

    assert "tool_call" not in types(session)
    (error,) = payloads(session, "error")
    assert error.context["calls"][0]["name"] == "bash"
    proved(session)


def test_a_stream_that_is_left_is_interrupted(
    session: Session, api: MessagesApi
) -> None:
    api.reply(message("Here is a long answer to your question."))

    with capture(session, api).stream("Why?") as stream:
        next(iter(stream.text_stream))

    (response,) = payloads(session, "agent_response")
    assert response.stop_reason == "interrupted"
    assert response.text
    assert payloads(session, "error")[0].code == "interrupted"
    proved(session)


def test_an_error_after_the_complete_answer_leaves_it_recorded(
    session: Session, api: MessagesApi
) -> None:
    api.reply(message("Because."))

    def fail(stream: Any) -> None:
        stream.until_done()
        raise ZeroDivisionError

    with (
        pytest.raises(ZeroDivisionError),
        capture(session, api).stream("Why?") as stream,
    ):
        fail(stream)

    assert types(session) == ["user_input", "request", "agent_response"]
    assert payloads(session, "agent_response")[0].stop_reason == "end_turn"


def test_an_answer_that_cannot_be_recorded_is_not_lost(
    session: Session, api: MessagesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.reply(message("Because."))
    ask = capture(session, api)
    real = type(session.writer).append

    def full(writer: Any, order: Order, **more: Any) -> Any:
        if order.drafts[0].event.type == "agent_response":
            raise refold.StoreUnavailable("the disk is full", remedy="make room")
        return real(writer, order, **more)

    monkeypatch.setattr(type(session.writer), "append", full)
    with pytest.raises(
        refold.errors.RecordingFailed, match="the disk is full"
    ) as caught:
        ask.create("Why?")
    monkeypatch.undo()

    response = caught.value.response
    assert isinstance(response, Message)
    for _ in range(2):
        ask.record(response=response)

    assert types(session) == ["user_input", "request", "agent_response"]
    assert payloads(session, "agent_response")[0].text == "Because."
    proved(session)


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"<html>Sign in</html>", "text/html"),
        (b"[1]", "application/json"),
        (b"null", "application/json"),
        (b"{}", "application/json"),
        (b'{"type": "message", "id": "m", "content": "Hello"}', "application/json"),
    ],
)
def test_an_answer_that_is_no_message_is_a_failure_that_can_be_retried(
    session: Session, api: MessagesApi, body: bytes, content_type: str
) -> None:
    ask = capture(session, api)
    api.reply(raw(body, content_type=content_type), message("Because."))

    with pytest.raises(anthropic.AnthropicError, match="is not a message"):
        ask.create("Why?")
    (failure,) = payloads(session, "error")
    ask.create()

    assert (failure.code, failure.retryable) == ("connection", True)
    assert api.requests[0].body["messages"] == api.requests[1].body["messages"]
    proved(session)


def test_an_answer_that_is_no_message_is_a_failure_under_asyncio(
    session: Session, api: MessagesApi
) -> None:
    async def run() -> None:
        async with api.async_client(max_retries=0) as client:
            ask = AsyncCapture(client, session, model="claude-x", max_tokens=99)
            await ask.create("Why?")

    api.reply(raw(b"<html>Sign in</html>", content_type="text/html"))
    with pytest.raises(anthropic.AnthropicError, match="is not a message"):
        asyncio.run(run())

    assert types(session) == ["user_input", "request", "error"]


def test_a_call_that_is_recorded_again_adds_nothing(
    session: Session, api: MessagesApi
) -> None:
    ask = capture(session, api)
    messages: Any = [{"role": "user", "content": "Why?"}]
    api.reply(message("Because."))
    client = api.client(max_retries=0)
    response = client.messages.create(
        model="claude-x", max_tokens=99, messages=messages
    )

    for _ in range(2):
        ask.record(messages=messages, response=response)

    assert types(session) == ["user_input", "request", "agent_response"]


def test_nothing_is_sent_that_could_not_be_recorded(
    session: Session, api: MessagesApi
) -> None:
    ask = capture(session, api)

    with pytest.raises(refold.InvalidConfiguration, match="system is set"):
        ask.create("Why?", options={"system": "Be long."})
    with pytest.raises(refold.InvalidConfiguration, match="messages is set"):
        ask.create("Why?", options={"extra_body": {"messages": []}})
    with pytest.raises(refold.InvalidConfiguration, match="must be JSON"):
        ask.create("Why?", options={"metadata": object()})
    with pytest.raises(refold.InvalidEvent, match="no open call"):
        ask.create([{"type": "tool_result", "tool_use_id": "x", "content": "a"}])
    with pytest.raises(refold.InvalidEvent, match="cannot be recorded"):
        ask.create([{"type": "hologram"}])
    with pytest.raises(refold.SessionNotFound):
        ask.create()

    assert api.requests == []


def test_edits_of_the_api_are_recorded(session: Session, api: MessagesApi) -> None:
    edits = [{"type": "clear_tool_uses_20250919", "cleared_tool_uses": 2}]
    block = {"type": "compaction", "content": "What was said."}
    api.reply(
        message(block, "Done.", context_management={"applied_edits": edits}),
    )
    strategy = "native:compact=true"

    capture(session, api, strategy=strategy).create("Why?")

    (edit,) = payloads(session, "provider_edit")
    assert edit.edits == tuple(edits)
    assert edit.blocks == (block,)
    sent = api.requests[0]
    assert len(sent.body["context_management"]["edits"]) == 2
    assert "compact-2026-01-12" in sent.headers["anthropic-beta"]
    proved(session)


def test_compaction_blocks_are_sent_back_as_they_came(
    session: Session, api: MessagesApi
) -> None:
    block = {"type": "compaction", "content": "What was said.", "signature": "c2ln"}
    searched = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    api.reply(message(block, searched, "Done."), message("Fine."))
    ask = capture(session, api, strategy="native:compact=true")

    ask.create("Why?")
    ask.create("And now?")

    answer = api.requests[1].body["messages"][1]
    assert [part["type"] for part in answer["content"]] == ["compaction", "text"]
    assert answer["content"][0] == block
    proved(session)
    assert "compaction" not in str(session.context("keep_all").messages)


def test_a_compaction_block_that_was_redacted_is_not_sent_back(
    session: Session, api: MessagesApi
) -> None:
    block = {"type": "compaction", "content": "Write to ada@lin.example."}
    api.reply(message(block, "Done."), message("Fine."))
    ask = capture(session, api, strategy="native:compact=true")

    ask.create("Why?")
    ask.create("And now?")

    assert "compaction" not in str(api.requests[1].body["messages"])
    proved(session)


def test_the_same_for_asyncio(session: Session, api: MessagesApi) -> None:
    api.reply(message("Because."), message("Long answer."), overloaded())

    async def run() -> None:
        async with api.async_client(max_retries=0) as client:
            ask = AsyncCapture(client, session, model="claude-x", max_tokens=99)
            await ask.create("Why?")
            async with ask.stream("And?") as stream:
                await stream.until_done()
            with pytest.raises(anthropic.InternalServerError):
                await ask.create("Again?")

    asyncio.run(run())

    assert types(session) == [
        "user_input",
        "request",
        "agent_response",
        "user_input",
        "request",
        "agent_response",
        "user_input",
        "request",
        "error",
    ]
    proved(session)


def test_a_task_that_is_cancelled_leaves_an_error(
    session: Session, api: MessagesApi
) -> None:
    from tests.support.messages_api import silence

    api.reply(silence())

    async def run() -> None:
        async with api.async_client(max_retries=0) as client:
            ask = AsyncCapture(client, session, model="claude-x", max_tokens=99)
            task = asyncio.create_task(ask.create("Why?"))
            await until_async(lambda: api.requests, "the request")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(run())

    assert types(session) == ["user_input", "request", "error"]
    assert payloads(session, "error")[0].code == "interrupted"


@pytest.mark.parametrize("agent", [None, "lead"])
def test_a_capture_without_a_strategy_uses_that_of_prepare(
    session: Session, api: MessagesApi, agent: str | None
) -> None:
    api.reply(message("Hello."))

    capture(session, api, agent=agent).create("Hello?")

    (request,) = payloads(session, "request")
    assert "history_summary" in str(request.strategy.model_dump())
