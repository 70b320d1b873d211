"""A Letta agent file becomes the agent's complete history, in order."""

import json
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.adapters import importers
from refold.domain.events import (
    AgentResponse,
    HumanReview,
    SystemPrompt,
    ToolCall,
    ToolResult,
    UserInput,
)
from tests.importers import samples
from tests.importers.samples import (
    events,
    kinds,
    read_one,
    reasons,
    texts_shown,
    words,
    write_document,
)


def agent(*messages: Any) -> dict[str, Any]:
    return {"block_ids": ["b-1"], "messages": list(messages)}


def calling(*call_ids: str, role: str = "assistant") -> dict[str, Any]:
    function = {"name": "send", "arguments": "{}"}
    calls = [{"id": call_id, "function": function} for call_id in call_ids]
    return {"role": role, "content": [], "tool_calls": calls, "id": "message-1"}


def test_a_result_after_a_new_system_prompt_stays_there(tmp_path: Path) -> None:
    transcript = read_one(write_document(tmp_path, samples.LETTA, "a.af"))

    assert transcript.format == "letta"
    assert events(transcript) == [
        SystemPrompt(text="You remember."),
        UserInput(text='{"type": "user_message", "message": "I am Ida"}'),
        AgentResponse(text="I write it down."),
        ToolCall(call_id="c1", tool_name="core_memory_append", arguments={}),
        SystemPrompt(text="You remember: Ida."),
        ToolResult(
            call_id="c1",
            tool_name="core_memory_append",
            content='{"status": "Failed", "message": "full"}',
            status="error",
        ),
    ]
    assert transcript.drafts[2].agent == "sam"
    assert str(transcript.drafts[1].ts) == "2025-04-01 03:47:27.493017+00:00"


def test_fields_that_change_with_the_agent_are_skipped_once(tmp_path: Path) -> None:
    transcript = read_one(write_document(tmp_path, samples.LETTA))

    assert list(reasons(transcript)) == [
        "file.json core_memory",
        "file.json",
    ]
    assert "Ida" not in str(transcript.skipped)


@pytest.mark.parametrize(
    ("content", "status"),
    [
        ('{"status": "OK"}', "ok"),
        ('{"status": "Failed"}', "error"),
        ("no envelope", "ok"),
        ('["status"]', "ok"),
    ],
)
def test_the_envelope_of_a_result_tells_its_status(
    tmp_path: Path, content: str, status: str
) -> None:
    result = {"role": "tool", "tool_call_id": "c1", "content": [words(content)]}
    document = {**samples.LETTA, "messages": [calling("c1"), result]}

    event = events(read_one(write_document(tmp_path, document)))[1]

    assert isinstance(event, ToolResult)
    assert (event.content, event.status) == (content, status)


def test_a_file_of_several_agents_is_a_session_each(tmp_path: Path) -> None:
    hello = {"role": "user", "content": [words("Hello")]}

    transcripts = importers.read(
        write_document(tmp_path, {"agents": [agent(hello)] * 2})
    )

    assert [events(transcript) for transcript in transcripts] == [
        [UserInput(text="Hello")]
    ] * 2
    assert (transcripts[1].drafts[0].meta.source or {})[
        "place"
    ] == "agents[1] messages[0]"


def test_an_agent_file_in_a_json_text_is_read(tmp_path: Path) -> None:
    transcript = read_one(write_document(tmp_path, json.dumps(samples.LETTA)))

    assert transcript.format == "letta"
    assert len(transcript.drafts) == 6


def test_returns_of_several_calls_in_one_message_are_a_result_each(
    tmp_path: Path,
) -> None:
    returns = [
        {"tool_call_id": "c1", "status": "success", "func_response": "one"},
        {"tool_call_id": "c2", "status": "error", "func_response": None},
    ]
    document = agent(calling("c1", "c2"), {"role": "tool", "tool_returns": returns})

    transcript = read_one(write_document(tmp_path, {"agents": [document]}))

    assert events(transcript)[2:] == [
        ToolResult(call_id="c1", tool_name="send", content="one"),
        ToolResult(call_id="c2", tool_name="send", content="", status="error"),
    ]


def test_a_call_that_waits_for_approval_is_a_call_and_the_answer_a_review(
    tmp_path: Path,
) -> None:
    document = agent(
        calling("c1", role="approval"), {"role": "approval", "approve": False}
    )

    transcript = read_one(write_document(tmp_path, {"agents": [document]}))

    assert kinds(transcript)[0] == "tool_call"
    assert events(transcript)[1] == HumanReview(
        trigger="tool_approval", decision="denied"
    )


def test_reasoning_is_thinking(tmp_path: Path) -> None:
    message = {
        "role": "assistant",
        "content": [
            {"type": "reasoning", "reasoning": "Hm.", "signature": "s"},
            {"type": "redacted_reasoning", "data": "xyz"},
            words("So."),
            {"type": "omitted_reasoning"},
        ],
    }

    transcript = read_one(write_document(tmp_path, {"agents": [agent(message)]}))

    assert events(transcript) == [
        AgentResponse(
            text="So.",
            thinking=(
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "redacted_thinking", "data": "xyz"},
            ),
        )
    ]
    assert "file.json agents[0] messages[0] content[3]" in reasons(transcript)


def test_unreadable_content_is_skipped_with_its_place(tmp_path: Path) -> None:
    messages = ({"role": "tool", "content": "secret"}, {"role": "secret"}, 7, calling())
    good = {"role": "user", "content": [{"type": "text", "text": "Go."}]}
    document = {"agents": [agent(*messages, good)]}

    transcript = read_one(write_document(tmp_path, document))

    assert kinds(transcript) == ["user_input"]
    assert list(reasons(transcript))[:4] == [
        f"file.json agents[0] messages[{index}]" for index in range(4)
    ]
    assert "secret" not in str(transcript.skipped)


def message_entry(number: int, **more: Any) -> dict[str, Any]:
    content = [words(f"Word {number}")]
    return {"role": "user", "id": f"message-{number}", "content": content, **more}


def test_messages_that_left_the_context_are_in_no_later_one(tmp_path: Path) -> None:
    young = {**agent(*map(message_entry, range(4)))}
    young["in_context_message_ids"] = ["message-2", "message-3"]
    grown = {**agent(*map(message_entry, range(6)))}
    grown["in_context_message_ids"] = ["message-4", "message-5"]
    with refold.open("memory://") as store:
        path = write_document(tmp_path, {"agents": [young]}, "a.af")
        (first,) = store.import_transcript(path, user_id="ada")
        of_young = texts_shown(store)
        (again,) = store.import_transcript(path, user_id="ada")
        write_document(tmp_path, {"agents": [grown]}, "a.af")
        (second,) = store.import_transcript(path, user_id="ada")

        assert of_young == ["Word 2", "Word 3"]
        assert (first.events, again.events, second.events) == (5, 0, 3)
        assert texts_shown(store) == ["Word 4", "Word 5"]


def unnamed(number: int, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": [words(f"Word {number}")]}


def without_ids(*messages: Any, in_context: list[Any]) -> dict[str, Any]:
    """An agent file of the earlier form, whose messages have no ids."""
    memory = {"core_memory": [], "in_context_message_indices": in_context}
    return {**memory, "messages": list(messages)}


def test_places_of_messages_name_the_context_as_ids_do(tmp_path: Path) -> None:
    young = without_ids(*map(unnamed, range(4)), in_context=[2, 3])
    grown = without_ids(*map(unnamed, range(6)), in_context=[4, 5])
    with refold.open("memory://") as store:
        path = write_document(tmp_path, young, "a.af")
        (first,) = store.import_transcript(path, user_id="ada")
        of_young = texts_shown(store)
        (again,) = store.import_transcript(path, user_id="ada")
        write_document(tmp_path, grown, "a.af")
        (second,) = store.import_transcript(path, user_id="ada")

        assert of_young == ["Word 2", "Word 3"]
        assert (first.events, again.events, second.events) == (5, 0, 3)
        assert texts_shown(store) == ["Word 4", "Word 5"]


@pytest.mark.parametrize("by_id", [True, False])
def test_a_summary_comes_before_the_messages_older_than_it(
    tmp_path: Path, by_id: bool
) -> None:
    """A compaction adds the summary at the end, and keeps newer messages after it."""
    roles = ("system", "user", "user", "summary", "system")
    saved = [unnamed(place, role) for place, role in enumerate(roles)]
    document = without_ids(*saved, in_context=[4, 3, 2])
    if by_id:
        for place, message in enumerate(saved):
            message["id"] = f"message-{place}"
        named = ["message-4", "message-3", "message-2"]
        document = {"agents": [{**agent(*saved), "in_context_message_ids": named}]}
    with refold.open("memory://") as store:
        path = write_document(tmp_path, document, "a.af")
        store.import_transcript(path, user_id="ada")

        assert texts_shown(store) == ["Word 3", "Word 2"]
        (about,) = store.sessions()
        session = store.session(user_id="ada", session_id=about.session_id)
        assert session.context("keep_all").system == "Word 4"


@pytest.mark.parametrize("in_context", [[0, 0], [2], [-1], [True], ["0"], []])
def test_unclear_places_of_the_context_change_nothing(
    tmp_path: Path, in_context: list[Any]
) -> None:
    document = without_ids(unnamed(0), unnamed(1), in_context=in_context)

    transcript = read_one(write_document(tmp_path, document))

    assert kinds(transcript) == ["user_input", "user_input"]


@pytest.mark.parametrize(
    ("messages", "in_context"),
    [
        ([message_entry(1), message_entry(1)], ["message-1"]),
        ([message_entry(1), {"role": "user", "content": "Hi"}], ["message-1"]),
        ([message_entry(1), message_entry(2)], ["message-3"]),
        ([message_entry(1), message_entry(2)], []),
    ],
    ids=["two of an id", "no id", "an unknown id", "no list"],
)
def test_an_unclear_list_of_the_context_changes_nothing(
    tmp_path: Path, messages: list[Any], in_context: list[str]
) -> None:
    document = {**agent(*messages), "in_context_message_ids": in_context}

    transcript = read_one(write_document(tmp_path, {"agents": [document]}))

    assert kinds(transcript) == ["user_input", "user_input"]
