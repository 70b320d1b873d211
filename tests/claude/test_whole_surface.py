"""A capture records everything that the SDK's types allow in an answer or a request."""

from __future__ import annotations

from typing import Any

import pytest

import refold
from refold.adapters.claude import options
from refold.adapters.claude.capture import Capture
from refold.projections.context.text import violations
from refold.store import Session
from tests.support.messages_api import MessagesApi, message
from tests.support.sdk_shapes import ANSWERS, BETA, STABLE

USER_BLOCKS: dict[str, Any] = {
    "search_result": {
        "type": "search_result",
        "source": "https://example.org/paris",
        "title": "Paris",
        "content": [{"type": "text", "text": "Paris is in France."}],
        "citations": {"enabled": True},
        "cache_control": {"type": "ephemeral"},
    },
    "container_upload": {"type": "container_upload", "file_id": "file_123"},
    "document": {
        "type": "document",
        "source": {"type": "url", "url": "https://example.org/a.pdf"},
    },
    "image": {"type": "image", "source": {"type": "file", "file_id": "file_124"}},
}


def capture(session: Session, api: MessagesApi, **more: Any) -> Capture:
    client = api.client(max_retries=0)
    return Capture(client, session, model="claude-x", max_tokens=99, **more)


def recorded(session: Session, kind: str) -> list[Any]:
    return [event.payload for event in session.events() if event.type == kind]


def test_the_sdk_has_blocks_and_options_to_try() -> None:
    assert len(ANSWERS) >= 25
    assert {"tool_choice", "metadata", "output_config"} <= STABLE.keys()
    assert {"mcp_servers", "context_management"} <= BETA.keys() - STABLE.keys()


@pytest.mark.parametrize("block", ANSWERS.values(), ids=ANSWERS.keys())
def test_every_block_of_an_answer_is_recorded(
    session: Session, api: MessagesApi, block: Any
) -> None:
    api.reply(message("Here: ", block), message("Done."))
    ask = capture(session, api)

    ask.create("Go.")

    kind = block["type"]
    if kind == "tool_use":
        (call,) = recorded(session, "tool_call")
        assert call.arguments == block["input"]
        ask.create([{"type": "tool_result", "tool_use_id": call.call_id}])
    elif kind == "text":
        assert recorded(session, "agent_response")[0].text == "Here: " + block["text"]
        ask.create("And?")
    elif "thinking" in kind:
        (thinking,) = recorded(session, "agent_response")[0].thinking
        assert thinking.type == kind
        ask.create("And?")
    else:
        (edit,) = recorded(session, "provider_edit")
        assert [recorded_block["type"] for recorded_block in edit.blocks] == [kind]
        ask.create("And?")
    assert violations(session.context().messages) == []
    assert session.verify().problems == []


@pytest.mark.parametrize("block", USER_BLOCKS.values(), ids=USER_BLOCKS.keys())
def test_every_file_block_of_a_user_is_recorded(
    session: Session, api: MessagesApi, block: Any
) -> None:
    api.reply(message("Fine."))

    capture(session, api).create([{"type": "text", "text": "Look."}, block])

    (user_input,) = recorded(session, "user_input")
    (attachment,) = user_input.attachments
    stored = str(attachment.model_dump())
    for part in ("Paris is in France.", "https://example.org", "file_12"):
        assert (part in str(block)) == (part in stored)
    assert session.verify().problems == []


@pytest.mark.parametrize("name", sorted((STABLE.keys() | BETA.keys()) - {"thread"}))
def test_every_option_is_sent_and_recorded(
    session: Session, api: MessagesApi, name: str
) -> None:
    value = STABLE.get(name, BETA.get(name))
    api.reply(message("Fine."))

    capture(session, api).create("Go.", options={name: value})

    (sent,) = api.requests
    request = session.events()[1]
    assert value in (sent.body.get(name), *sent.headers.values())
    assert request.type == "request"
    secret = {"fallback_credit_token"}
    assert (name in request.meta.dump().get("options", {})) == (name not in secret)  # type: ignore[operator]  # an object
    assert recorded(session, "agent_response")[0].text == "Fine."


def test_the_token_of_an_mcp_server_is_not_recorded(
    session: Session, api: MessagesApi
) -> None:
    api.reply(message("Fine."))
    server = {"type": "url", "name": "a", "url": "https://example.org"}
    secret = {**server, "authorization_token": "correct-horse"}

    capture(session, api).create("Go.", options={"mcp_servers": [secret]})

    assert api.requests[0].body["mcp_servers"] == [secret]
    assert session.events()[1].meta.dump()["options"] == {"mcp_servers": [server]}


def test_secrets_in_extra_body_are_sent_and_not_recorded(
    session: Session, api: MessagesApi
) -> None:
    server = {"type": "url", "name": "a", "url": "https://example.org"}
    secret = {
        "mcp_servers": [{**server, "authorization_token": "correct-horse"}],
        "fallback_credit_token": "correct-horse",
        "top_p": 0.5,
    }
    api.reply(message("Fine."))

    capture(session, api).create("Go.", options={"extra_body": secret})

    assert api.requests[0].body["mcp_servers"] == secret["mcp_servers"]
    assert api.requests[0].body["fallback_credit_token"] == "correct-horse"
    assert session.events()[1].meta.dump()["options"] == {
        "extra_body": {"mcp_servers": [server], "top_p": 0.5}
    }
    assert "correct-horse" not in str(session.events())


@pytest.mark.parametrize("servers", [None, {"authorization_token": "correct-horse"}])
def test_mcp_servers_that_are_no_list_are_recorded_without_tokens(
    servers: object,
) -> None:
    recorded = options.recorded({"mcp_servers": servers})

    assert recorded == {"mcp_servers": {} if servers else None}


def test_an_unknown_option_is_refused_before_anything_is_recorded(
    session: Session, api: MessagesApi
) -> None:
    with pytest.raises(refold.errors.InvalidConfiguration, match="tool_choise"):
        capture(session, api).create("Go.", options={"tool_choise": {"type": "any"}})

    with pytest.raises(refold.SessionNotFound):
        session.head()
    assert api.requests == []


def test_a_system_prompt_of_blocks_is_sent_as_it_is(
    session: Session, api: MessagesApi
) -> None:
    cached = {
        "type": "text",
        "text": "Be kind.",
        "cache_control": {"type": "ephemeral"},
    }
    system: Any = [{"type": "text", "text": "Be brief."}, cached]
    api.reply(message("Yes."))

    capture(session, api, system=system).create("Go.")

    assert api.requests[0].body["system"] == system
    assert session.events()[1].meta.dump()["options"] == {
        "system_blocks": [
            {"characters": 9},
            {"characters": 8, "cache_control": {"type": "ephemeral"}},
        ]
    }
    assert session.verify().problems == []


def test_a_raw_response_is_recorded(session: Session, api: MessagesApi) -> None:
    api.reply(message("Because."))
    ask = capture(session, api)
    messages: Any = [{"role": "user", "content": "Why?"}]
    raw = ask.client.messages.with_raw_response.create(
        model="claude-x", max_tokens=9, messages=messages
    )

    ask.record(messages=messages, response=raw)  # type: ignore[arg-type]  # a raw one

    assert recorded(session, "agent_response")[0].text == "Because."


def test_an_odd_answer_is_recorded_and_its_results_find_their_calls(
    session: Session, api: MessagesApi
) -> None:
    def use(name: str, arguments: Any) -> Any:
        return {"type": "tool_use", "id": "t1", "name": name, "input": arguments}

    odd = {"wei": 25 * 10**18}
    api.reply(message(use("pay", odd), use("ping", [1, 2]), stop_reason="tool_use"))
    api.reply(message("Paid."), message("Again."))
    ask = capture(session, api)
    results: Any = [
        {"type": "tool_result", "tool_use_id": "t1", "content": "paid \udc80"},
        {"type": "tool_result", "tool_use_id": "t1", "content": "pong"},
    ]

    answer = ask.create("Pay.")
    ask.record(response=answer)
    ask.create(results)
    ask.create(results)

    calls = recorded(session, "tool_call")
    results = recorded(session, "tool_result")
    assert [call.tool_name for call in calls] == ["pay", "ping"]
    assert calls[0].arguments == {"wei": str(25 * 10**18)}
    assert [result.content for result in results] == ["paid \ufffd", "pong"]
    assert [result.call_id for result in results] == [call.call_id for call in calls]
    assert violations(session.context().messages) == []
    assert session.verify().problems == []
