"""Objects of the Responses and Conversations APIs, and batches, become sessions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import refold
from refold.adapters import importers
from refold.domain.events import (
    AgentError,
    AgentResponse,
    ProviderEdit,
    SystemPrompt,
    ToolCall,
    ToolResult,
    UserInput,
)
from tests.importers import samples
from tests.importers.export_samples import openai_response, responses_item
from tests.importers.samples import (
    accepted,
    events,
    kinds,
    read_one,
    reasons,
    write_document,
    write_lines,
)

USAGE = {"input_tokens": 36, "output_tokens": 87, "total_tokens": 123}


def test_a_chain_of_responses_becomes_a_session(tmp_path: Path) -> None:
    transcript = read_one(write_document(tmp_path, samples.OPENAI_RESPONSES))

    assert (transcript.format, transcript.session_id) == ("openai-responses", "resp_1")
    assert events(transcript) == [
        SystemPrompt(text="Be brief."),
        UserInput(text="Weather in Oslo?"),
        AgentResponse(
            thinking=({"type": "thinking", "thinking": "I look it up."},), usage=USAGE
        ),
        ToolCall(call_id="c1", tool_name="weather", arguments={"city": "Oslo"}),
        ToolResult(call_id="c1", tool_name="weather", content="4 degrees"),
        AgentResponse(text="Four degrees.", usage=USAGE),
    ]
    drafts = transcript.drafts
    assert [draft.meta.response_id for draft in drafts[2:]] == [
        "resp_1",
        "resp_1",
        None,
        "resp_2",
    ]
    assert drafts[2].meta.model == "gpt-4.1-2025-04-14"
    assert (drafts[2].meta.source or {})["temperature"] == 1.0
    assert accepted(drafts)


def test_an_item_that_two_requests_have_is_recorded_once(tmp_path: Path) -> None:
    first, second = json.loads(json.dumps(samples.OPENAI_RESPONSES))
    second["input"] = [*first["input"], *first["output"], *second["input"]]

    transcript = read_one(write_document(tmp_path, [first, second]))

    assert events(transcript) == events(
        read_one(write_document(tmp_path, samples.OPENAI_RESPONSES))
    )


def test_a_conversation_of_its_own_is_a_session(tmp_path: Path) -> None:
    first = openai_response("resp_1", conversation={"id": "conv_1"})
    two = openai_response("resp_2", conversation={"id": "conv_1"})
    for number, response in enumerate((first, two)):
        response["output"] = [responses_item("Hi.", "assistant", f"msg_{number}")]

    (transcript,) = importers.read(write_lines(tmp_path, [first, two]))

    assert transcript.session_id == "conv_1"


def test_blocks_of_the_providers_tools_are_kept(tmp_path: Path) -> None:
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    response = openai_response(
        "resp_1", search, responses_item("So.", "assistant", "msg_1")
    )

    transcript = read_one(write_document(tmp_path, response))

    assert events(transcript)[1] == ProviderEdit(blocks=(search,))


def test_encrypted_reasoning_is_kept(tmp_path: Path) -> None:
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}

    event = events(read_one(write_document(tmp_path, openai_response("resp_1", item))))[
        1
    ]

    assert isinstance(event, AgentResponse)
    assert event.thinking[0].data == "x"


def test_an_error_and_an_incomplete_answer_are_recorded(tmp_path: Path) -> None:
    response = openai_response(
        "resp_1",
        responses_item("So", "assistant", "msg_1"),
        status="incomplete",
        incomplete_details={"reason": "max_output_tokens"},
        error={"code": "server_error", "message": "Failed."},
    )

    _, answer, error = events(read_one(write_document(tmp_path, response)))

    assert isinstance(answer, AgentResponse)
    assert answer.stop_reason == "max_output_tokens"
    assert isinstance(error, AgentError)
    assert (error.code, error.message) == ("server_error", "Failed.")


def listed(*items: Any, **more: Any) -> dict[str, Any]:
    return {"object": "list", "data": list(items), "has_more": False, **more}


def test_a_list_with_the_newest_item_first_is_turned_round(tmp_path: Path) -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c1", "output": "1"}
    asked = responses_item("Go.", "user", "msg_1")
    forwards = write_document(tmp_path, listed(asked, call, output), "a.json")
    backwards = write_document(tmp_path, listed(output, call, asked), "b.json")

    expected = ["user_input", "tool_call", "tool_result"]
    assert kinds(read_one(forwards)) == expected
    assert kinds(read_one(backwards)) == expected


def test_a_page_of_a_longer_list_is_reported(tmp_path: Path) -> None:
    item = responses_item("Go.", "user", "msg_1")

    transcript = read_one(write_document(tmp_path, listed(item, has_more=True)))

    assert list(reasons(transcript).values()) == [
        "further items, which are on the next page"
    ]


def test_a_conversation_with_its_items_is_read(tmp_path: Path) -> None:
    items = listed(responses_item("Go.", "user", "msg_1"))
    document = {"object": "conversation", "id": "conv_1", "items": items}

    assert read_one(write_document(tmp_path, document)).session_id == "conv_1"


def batch(tmp_path: Path) -> tuple[Path, Path]:
    """The input and the output of a batch with a request to each API, and a failure."""
    chat = [{"role": "user", "content": "One?"}]
    asked = [
        {
            "custom_id": "q-1",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": "gpt-4o", "messages": chat},
        },
        {
            "custom_id": "q-2",
            "method": "POST",
            "url": "/v1/responses",
            "body": {"model": "gpt-4o", "input": "Two?"},
        },
    ]
    completion = {
        "object": "chat.completion",
        "id": "chatcmpl-1",
        "created": 1741476542,
        "model": "gpt-4o",
        "choices": [
            {"message": {"role": "assistant", "content": "1."}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2},
    }
    answered = [
        {
            "id": "b-1",
            "custom_id": "q-1",
            "response": {"status_code": 200, "body": completion},
            "error": None,
        },
        {
            "id": "b-2",
            "custom_id": "q-2",
            "response": None,
            "error": {"code": "batch_expired", "message": "Too late."},
        },
    ]
    return (
        write_lines(tmp_path, asked, "input.jsonl"),
        write_lines(tmp_path, answered, "output.jsonl"),
    )


def test_the_files_of_a_batch_are_the_same_sessions(tmp_path: Path) -> None:
    asked, answered = batch(tmp_path)
    with refold.open("memory://") as store:
        for path in (asked, answered, answered):
            imported = store.import_transcript(path, user_id="ada")

        assert [each.events for each in imported] == [0, 0]
        first, second = (
            [e.payload for e in store.session(user_id="ada", session_id=name).events()]
            for name in ("q-1", "q-2")
        )
    assert [event.type for event in first] == ["item", "user_input", "agent_response"]
    answer = first[2]
    assert isinstance(answer, AgentResponse)
    assert (answer.text, answer.stop_reason) == ("1.", "stop")
    assert [event.type for event in second] == ["item", "user_input", "error"]
