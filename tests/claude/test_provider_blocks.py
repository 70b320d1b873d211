"""The provider's blocks are sent back unchanged, under every strategy."""

from __future__ import annotations

from typing import Any

import pytest
from anthropic.types import ContentBlock
from anthropic.types.beta import BetaContentBlock

import refold
from refold.adapters.claude.capture import Capture
from refold.projections.context.strategies import spec
from refold.projections.context.text import violations
from refold.store import Session
from tests.support.messages_api import MessagesApi, message, thinking, tool_use
from tests.support.sdk_shapes import members, sample

SIGNATURE = "c2lnbmF0dXJl/+="
# Blocks that the log stores as other events, or that a request must ask for.
OTHERS = {"text", "thinking", "redacted_thinking", "tool_use", "compaction"}
BLOCKS = {
    block.__name__: sample(block)
    for block in members(ContentBlock) + members(BetaContentBlock)
    if sample(block)["type"] not in OTHERS
}
SEARCH: Any = {
    "type": "server_tool_use",
    "id": "srvtoolu_1",
    "name": "web_search",
    "input": {"query": "Paris"},
}
FOUND: Any = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [
        {
            "type": "web_search_result",
            "title": "Paris",
            "url": "https://a.example/paris",
            "encrypted_content": "/+" + "8J+YgPCfmIDwn5iA" * 400,
            "page_age": None,
        }
    ],
}
CITED: Any = {
    "type": "text",
    "text": "Paris is large. ",
    "citations": [
        {
            "type": "web_search_result_location",
            "cited_text": "Paris is large",
            "encrypted_index": "8J+YgPCfmIDwn5iA",
            "title": "Paris",
            "url": "https://a.example/paris",
        }
    ],
}
STRATEGIES = {name: name for name in spec.STRATEGIES}
STRATEGIES["token_ratio"] = "token_ratio:max_context_tokens=100000"


def capture(session: Session, api: MessagesApi, **more: Any) -> Capture:
    client = api.client(max_retries=0)
    return Capture(client, session, model="claude-x", max_tokens=99, **more)


def answers(api: MessagesApi, request: int = -1) -> list[Any]:
    """The blocks of the agent in a request, without cache marks and empty citations."""
    blocks = []
    for sent in api.requests[request].body["messages"]:
        if sent["role"] == "assistant":
            for block in sent["content"]:
                fields = dict(block)
                fields.pop("cache_control", None)
                if block["type"] == "text" and fields.get("citations") is None:
                    fields.pop("citations", None)
                blocks.append(fields)
    return blocks


def pair(block: Any) -> list[Any]:
    """A block with its other half, if it is one of a pair."""
    kind = block["type"]
    if kind.endswith("_tool_use"):
        result = kind.removesuffix("_use").replace("server_", "web_search_") + "_result"
        return [block, {"type": result, "tool_use_id": block["id"], "content": []}]
    if kind.endswith("_tool_result"):
        use = "mcp_tool_use" if kind.startswith("mcp_") else "server_tool_use"
        name = block["tool_use_id"]
        return [{"type": use, "id": name, "name": "x", "input": {}}, block]
    return [block]


def test_the_sdk_has_blocks_to_try() -> None:
    kinds = {block["type"] for block in BLOCKS.values()}

    assert len(kinds) >= 12
    assert {"server_tool_use", "mcp_tool_use", "web_search_tool_result"} <= kinds


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS.keys())
def test_every_block_of_an_answer_is_sent_back(
    session: Session, api: MessagesApi, block: Any
) -> None:
    came = [{"type": "text", "text": "Let me see."}, *pair(block), CITED]
    api.reply(message(*came), message("Done."))
    ask = capture(session, api)

    ask.create("Go.")
    ask.create("And?")

    # The API refuses a last text that ends in white space.
    assert answers(api) == [*came[:-1], {**CITED, "text": "Paris is large."}]
    assert violations(session.context().messages) == []
    assert session.verify().problems == []
    for envelope, view in session.proofs.replay():
        assert view.digest == envelope.payload.digest  # type: ignore[union-attr]  # a request


@pytest.mark.parametrize("strategy", STRATEGIES.values())
def test_every_strategy_that_keeps_a_turn_sends_its_blocks_back(
    session: Session, api: MessagesApi, strategy: str
) -> None:
    thought = thinking("Let me see.", signature=SIGNATURE)
    call = tool_use("bash", {"command": "ls"}, call_id="toolu_1")
    came = [thought, SEARCH, FOUND, CITED, {"type": "text", "text": "So:"}, call]
    api.reply(message(*came), message("Done."))
    ask = capture(session, api, strategy=strategy)

    ask.create("Go.")
    ask.create([{"type": "tool_result", "tool_use_id": "toolu_1", "content": "a b"}])

    assert answers(api) == came


def test_a_strategy_that_drops_a_turn_drops_its_blocks(
    session: Session, api: MessagesApi
) -> None:
    api.reply(*(message(SEARCH, FOUND, CITED, "Done.") for _ in range(3)))
    ask = capture(session, api, strategy="last_turns:n=1")

    for _ in range(3):
        ask.create("Go.")

    assert len(api.requests[-1].body["messages"]) == 1


def test_a_paused_turn_continues_where_it_stopped(
    session: Session, api: MessagesApi
) -> None:
    first = [{"type": "text", "text": "Searching."}, SEARCH]
    thought = thinking("Hm.", signature=SIGNATURE)
    second = [thought, FOUND, CITED, {"type": "text", "text": "Done."}]
    api.reply(
        message(*first, stop_reason="pause_turn"), message(*second), message("Fine.")
    )
    ask = capture(session, api)

    ask.create("Search.")
    ask.create()
    resumed = answers(api)
    ask.create("Thanks.")

    assert resumed == first
    assert api.requests[1].body["messages"][-1]["role"] == "assistant"
    assert answers(api) == [*first, *second]
    assert len(api.requests[2].body["messages"]) == 3


def test_a_call_that_the_provider_never_answered_is_not_sent(
    session: Session, api: MessagesApi
) -> None:
    api.reply(message("Searching.", SEARCH, stop_reason="pause_turn"), message("No."))
    ask = capture(session, api)

    ask.create("Search.")
    ask.create("Do something else.")

    assert answers(api) == [{"type": "text", "text": "Searching."}]


def test_a_redacted_block_with_encrypted_parts_is_left_out_with_its_call(
    session: Session, api: MessagesApi
) -> None:
    (page,) = FOUND["content"]
    results = {**FOUND, "content": [{**page, "title": "write to ada@example.org"}]}
    api.reply(message("Searching.", SEARCH, results, "Done."), message("Fine."))
    ask = capture(session, api)

    ask.create("Search.")
    ask.create("And?")

    assert [block["text"] for block in answers(api)] == ["Searching.", "Done."]
    (cut,) = session.context().cuts
    assert (cut.section, cut.reason) == (
        "provider",
        "web_search_tool_result of seq 4: it was redacted",
    )


def test_large_blocks_come_back_from_their_blobs(
    session: Session, api: MessagesApi
) -> None:
    page = {"type": "text", "media_type": "text/plain", "data": "a word " * 20_000}
    fetch = {**SEARCH, "name": "web_fetch"}
    fetched = {
        "type": "web_fetch_tool_result",
        "tool_use_id": "srvtoolu_1",
        "content": {
            "type": "web_fetch_result",
            "url": "https://a.example",
            "content": {"type": "document", "source": page},
        },
    }
    api.reply(message(fetch, fetched, "Done."), message("Fine."))
    ask = capture(session, api)

    ask.create("Fetch.")
    ask.create("And?")

    assert answers(api)[:2] == [fetch, fetched]


def test_a_container_is_used_again_until_it_expires(
    session: Session, api: MessagesApi
) -> None:
    live = {"id": "container_1", "expires_at": "2999-01-01T00:00:00Z"}
    gone = {"id": "container_2", "expires_at": "2001-01-01T00:00:00Z"}
    api.reply(
        message("One.", container=live),
        message("Two.", container=gone),
        message("Three."),
    )
    ask = capture(session, api)

    for text in ("a", "b", "c"):
        ask.create(text)

    assert "container" not in api.requests[0].body
    assert api.requests[1].body["container"] == "container_1"
    assert "container" not in api.requests[2].body


def test_blocks_between_imported_responses_stay_in_their_place(
    session: Session,
) -> None:
    session.append(
        [
            refold.UserInput(text="Search."),
            refold.AgentResponse(text="Searching."),
            refold.events.ProviderEdit(blocks=(SEARCH, FOUND)),
            refold.AgentResponse(text="Done."),
            refold.UserInput(text="Again."),
            refold.events.ProviderEdit(blocks=(SEARCH, FOUND)),
            refold.AgentResponse(text="Done again."),
        ]
    )

    _, first, _, second = session.context().messages

    kinds = ["text", "server_tool_use", "web_search_tool_result", "text"]
    assert [block["type"] for block in first["content"]] == kinds
    assert [block["type"] for block in second["content"]] == kinds[1:]
