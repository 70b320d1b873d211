"""Qwen Code's entries form a chain: a rewind or a compression shows in the context."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import refold
from refold.domain.events import AgentResponse, ProviderEdit, ToolResult
from tests.importers.agent_samples import (
    QWEN,
    QWEN_SESSION,
    qwen_call,
    qwen_entry,
    qwen_note,
    qwen_result,
)
from tests.importers.samples import (
    context_texts,
    events,
    kinds,
    read_one,
    reasons,
    write_lines,
)


def test_a_session(tmp_path: Path) -> None:
    transcript = read_one(write_lines(tmp_path, QWEN))

    assert transcript.format == "qwen-code"
    assert (transcript.session_id, transcript.folder) == (QWEN_SESSION, "/work/shop")
    assert kinds(transcript) == [
        "user_input",
        "agent_response",
        "tool_call",
        "tool_call",
        "tool_result",
        "tool_result",
        "agent_response",
    ]
    answer = transcript.drafts[1]
    assert isinstance(answer.event, AgentResponse)
    assert answer.event.usage == {
        "input_tokens": 40,
        "output_tokens": 10,
        "cache_read_input_tokens": 60,
    }
    results = [event for event in events(transcript) if isinstance(event, ToolResult)]
    assert [result.status for result in results] == ["ok", "error"]
    assert results[0].duration_ms == 879
    assert list(reasons(transcript).values()) == [
        "note of the client, not part of the conversation"
    ]


def test_a_rewind_leaves_out_what_its_parent_does_not_follow(tmp_path: Path) -> None:
    lines = [
        *QWEN,
        qwen_note("q7", "q1", "rewind"),
        qwen_entry("q8", "q7", "user", "Rather stop."),
    ]
    path = write_lines(tmp_path, lines)

    edits = [e for e in events(read_one(path)) if isinstance(e, ProviderEdit)]

    assert [edit.reason for edit in edits] == ["rewind"]
    assert context_texts(path) == ["Run both.", "Rather stop."]


def test_a_compression_shows_its_summary_and_the_messages_that_it_keeps(
    tmp_path: Path,
) -> None:
    compressed: list[dict[str, Any]] = [
        {"role": "user", "parts": [{"text": "Summary: both ran."}]},
        {"role": "model", "parts": [{"text": "The second one failed."}]},
    ]
    lines = [
        *QWEN,
        qwen_note("q7", "q6", "chat_compression", compressedHistory=compressed),
        qwen_entry("q8", "q7", "user", "Go on."),
    ]
    path = write_lines(tmp_path, lines)

    edits = [e for e in events(read_one(path)) if isinstance(e, ProviderEdit)]

    assert [edit.reason for edit in edits] == ["compaction"]
    assert context_texts(path) == [
        "Summary: both ran.",
        "The second one failed.",
        "Go on.",
    ]


def test_a_sub_agent_in_a_file_of_its_own_comes_with_its_session(
    tmp_path: Path,
) -> None:
    chats = tmp_path / "chats"
    of_session = tmp_path / "subagents" / QWEN_SESSION
    for folder in (chats, of_session):
        folder.mkdir(parents=True)
    fields = {"isSidechain": True, "agentId": "general-1"}
    write_lines(chats, QWEN, f"{QWEN_SESSION}.jsonl")
    write_lines(
        of_session,
        [
            qwen_entry("a1", None, "user", "Say hi.", **fields),
            qwen_entry("a2", "a1", "assistant", "Hi.", **fields),
        ],
        "agent-general-1.jsonl",
    )

    with refold.open("memory://") as store:
        results = store.import_transcript(
            chats / f"{QWEN_SESSION}.jsonl", user_id="ada"
        )

    assert [(each.session_id, each.events) for each in results] == [
        (QWEN_SESSION, 7),
        (f"{QWEN_SESSION}~general-1", 2),
    ]


def test_a_cancelled_call_is_a_decision(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path,
        [
            qwen_entry("q1", None, "user", "Go."),
            qwen_entry("q2", "q1", "assistant", qwen_call("c1")),
            qwen_entry(
                "q3",
                "q2",
                "tool_result",
                qwen_result("c1", error="User did not allow it."),
                toolCallResult={"callId": "c1", "status": "cancelled"},
            ),
        ],
    )

    assert kinds(read_one(path)) == ["user_input", "tool_call", "tool_result", "hitl"]


def test_messages_that_the_client_wrote_are_marked(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path,
        [
            qwen_entry("q1", None, "user", "Go."),
            qwen_entry("q2", "q1", "user", "Wait.", subtype="mid_turn_user_message"),
            qwen_entry("q3", "q2", "user", "Task ended.", subtype="notification"),
        ],
    )

    sources = [draft.meta.source or {} for draft in read_one(path).drafts]

    assert [source.get("queued") for source in sources] == [None, True, None]
    assert [source.get("meta") for source in sources] == [None, None, True]


def test_unknown_and_repeated_entries_are_reported(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path,
        [*QWEN, QWEN[0], {"uuid": "q9", "type": "unheard", "sessionId": "x"}],
    )

    assert list(reasons(read_one(path)).values())[1:] == [
        "entry that stands before it already",
        "entry of an unknown type",
    ]
