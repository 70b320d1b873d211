"""Claude.ai's export becomes sessions: responses, calls and results in their order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import refold
from refold.domain.events import (
    AgentResponse,
    Item,
    ProviderEdit,
    ToolCall,
    ToolResult,
    UserInput,
)
from tests.importers import samples
from tests.importers.export_samples import (
    Entry,
    claude_ai_conversation as conversation,
    claude_ai_message as message,
    claude_ai_text as text,
)
from tests.importers.samples import (
    accepted,
    events,
    kinds,
    read_one,
    reasons,
    texts_shown,
    write_document,
)


def test_an_answer_becomes_responses_calls_and_results(tmp_path: Path) -> None:
    transcript = read_one(write_document(tmp_path, samples.CLAUDE_AI))

    assert transcript.format == "claude-ai"
    assert transcript.session_id == "37f8a88b-17fc-495a-87a0-ca6e0822e8f3"
    assert transcript.title == "Weather in Oslo"
    assert events(transcript) == [
        UserInput(text="How warm?"),
        AgentResponse(thinking=({"type": "thinking", "thinking": "I look it up."},)),
        ToolCall(
            call_id="toolu_1", tool_name="web_search", arguments={"query": "Oslo"}
        ),
        ToolResult(
            call_id="toolu_1",
            tool_name="web_search",
            content=[{"type": "text", "text": "4 degrees", "uuid": "b-1"}],
            duration_ms=1500.0,
        ),
        AgentResponse(text="Four degrees."),
    ]
    drafts = transcript.drafts
    assert [draft.meta.response_id for draft in drafts] == [
        None,
        "m2",
        "m2",
        None,
        "m2:1",
    ]
    times = [draft.ts.second for draft in drafts if draft.ts is not None]
    assert times == [1, 4, 4, 5, 6]
    assert accepted(drafts)


def test_a_model_and_a_project_are_kept_if_the_file_names_them(tmp_path: Path) -> None:
    project = {"uuid": "p-1", "name": "Weather"}
    document = {**samples.CLAUDE_AI[0], "model": "claude-x", "project": project}

    transcript = read_one(write_document(tmp_path, document))

    assert [draft.meta.model for draft in transcript.drafts] == [
        None,
        "claude-x",
        "claude-x",
        None,
        "claude-x",
    ]
    source = transcript.drafts[0].meta.source or {}
    assert source["conversation"] == {"project": project}


def one_answer(*blocks: Any, **more: Any) -> list[Entry]:
    return [
        conversation(
            message("m1", None, "human", text("Go."), at=1),
            message("m2", "m1", "assistant", *blocks, at=2, **more),
        )
    ]


def test_calls_without_ids_are_answered_in_order_by_tool(tmp_path: Path) -> None:
    document = one_answer(
        {"type": "tool_use", "id": None, "name": "a", "input": {"n": 1}},
        {"type": "tool_use", "id": None, "name": "b", "input": {}},
        {"type": "tool_result", "tool_use_id": None, "name": "b", "content": "of b"},
        {
            "type": "tool_result",
            "tool_use_id": None,
            "name": "a",
            "content": "of a",
            "is_error": True,
        },
    )

    transcript = read_one(write_document(tmp_path, document))

    results = [event for event in events(transcript) if isinstance(event, ToolResult)]
    assert [(event.tool_name, event.content, event.status) for event in results] == [
        ("b", "of b", "ok"),
        ("a", "of a", "error"),
    ]


def test_other_blocks_of_an_answer_are_kept_byte_for_byte(tmp_path: Path) -> None:
    block = {"type": "token_budget", "remaining": 7}

    transcript = read_one(write_document(tmp_path, one_answer(block, text("So."))))

    assert events(transcript)[1:] == [
        ProviderEdit(blocks=(block,)),
        AgentResponse(text="So."),
    ]


def test_attached_texts_and_files_belong_to_the_input(tmp_path: Path) -> None:
    attachment = {
        "file_name": "notes.txt",
        "file_size": 5,
        "file_type": "text/plain",
        "extracted_content": "Notes",
    }
    file = {"file_uuid": "f-1", "file_name": "cat.png"}
    document = [
        conversation(
            message("m1", None, "human", at=1, attachments=[attachment], files=[file])
        )
    ]

    transcript = read_one(write_document(tmp_path, document))

    (event,) = events(transcript)
    assert isinstance(event, UserInput)
    note, image = event.attachments
    assert (note.kind, note.name, note.text) == ("document", "notes.txt", "Notes")
    assert (image.kind, image.url) == ("image", "file:f-1")
    assert reasons(transcript) == {
        "file.json [0] chat_messages[0] files": (
            "content of a file, which the export does not have"
        )
    }


def test_an_older_message_without_blocks_has_its_text(tmp_path: Path) -> None:
    document = one_answer()
    document[0]["chat_messages"][1] |= {"text": "Hello.", "content": []}

    assert events(read_one(write_document(tmp_path, document)))[1] == AgentResponse(
        text="Hello."
    )


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"truncated": True}, "truncated"), ({"stop_reason": "stop_sequence"}, None)],
)
def test_the_end_of_an_answer_is_its_stop_reason(
    tmp_path: Path, fields: Entry, reason: str | None
) -> None:
    document = one_answer(text("So."), **fields)

    event = events(read_one(write_document(tmp_path, document)))[1]

    assert isinstance(event, AgentResponse)
    assert event.stop_reason == (reason or "stop_sequence")


def test_a_summary_of_a_compaction_is_an_item(tmp_path: Path) -> None:
    summary = [{"type": "text", "text": "Until now."}]
    document = one_answer(text("So."), compaction_summary=summary)

    assert events(read_one(write_document(tmp_path, document)))[2] == Item(
        format="claude-ai", kind="compaction_summary", value=summary
    )


def branches(*, leaf: str | None) -> list[Entry]:
    more = {} if leaf is None else {"current_leaf_message_uuid": leaf}
    return [
        conversation(
            message("q", None, "human", text("Question"), at=1),
            message("a1", "q", "assistant", text("First answer"), at=2),
            message("a2", "q", "assistant", text("Second answer"), at=3),
            **more,
        )
    ]


@pytest.mark.parametrize(
    ("leaf", "answer"),
    [(None, "Second answer"), ("a2", "Second answer"), ("a1", "First answer")],
)
def test_the_newest_branch_is_in_force_unless_the_file_names_one(
    tmp_path: Path, leaf: str | None, answer: str
) -> None:
    path = write_document(tmp_path, branches(leaf=leaf))
    with refold.open("memory://") as store:
        store.import_transcript(path, user_id="ada")
        (again,) = store.import_transcript(path, user_id="ada")

        assert again.events == 0
        assert texts_shown(store) == ["Question", answer]


def test_a_list_without_parents_is_one_path(tmp_path: Path) -> None:
    document = branches(leaf=None)
    for entry in document[0]["chat_messages"]:
        del entry["parent_message_uuid"]

    transcript = read_one(write_document(tmp_path, document))

    assert kinds(transcript) == ["user_input", "agent_response", "agent_response"]


def test_citations_are_reported(tmp_path: Path) -> None:
    cited = {**text("So."), "citations": [{"uuid": "c-1"}]}

    transcript = read_one(write_document(tmp_path, one_answer(cited)))

    assert list(reasons(transcript).values()) == ["citations; their text was imported"]


def test_unreadable_messages_are_reported_with_their_place(tmp_path: Path) -> None:
    document = one_answer(text("So."))
    document[0]["chat_messages"] += [7, {"sender": "secret", "uuid": "m4"}]

    transcript = read_one(write_document(tmp_path, document))

    assert "file.json [0] chat_messages[2] and 1 more" not in reasons(transcript)
    assert len(transcript.skipped) >= 2
    assert "secret" not in str(transcript.skipped)
