"""OpenHands' events: those of the SDK in lists, lines and folders, and older ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import refold
from refold.adapters import importers
from refold.domain.events import (
    AgentResponse,
    HumanReview,
    ProviderEdit,
    ToolCall,
    ToolResult,
)
from tests.importers.agent_samples import OPENHANDS, openhands_event
from tests.importers.samples import (
    Entry,
    context_texts,
    events,
    kinds,
    read_one,
    reasons,
    write_document,
    write_lines,
)

STATE: Final = {
    "id": "c-1",
    "agent": {"llm": {"model": "openai/gpt-4o-mini"}},
    "workspace": {"working_dir": "/work/shop"},
    "stats": {
        "usage_to_metrics": {
            "agent": {
                "token_usages": [
                    {
                        "model": "openai/gpt-4o-mini",
                        "prompt_tokens": 100,
                        "completion_tokens": 10,
                        "cache_read_tokens": 60,
                        "cache_write_tokens": 0,
                        "response_id": "r1",
                    }
                ]
            }
        }
    },
}


def write_conversation(folder: Path, events_in_folder: list[Entry]) -> Path:
    conversation = folder / "c1"
    (conversation / "events").mkdir(parents=True)
    (conversation / "base_state.json").write_text(json.dumps(STATE))
    for index, event in enumerate(events_in_folder):
        name = f"event-{index:05}-{event['id']}.json"
        (conversation / "events" / name).write_text(json.dumps(event))
    return conversation


def test_a_folder_of_a_conversation(tmp_path: Path) -> None:
    conversation = write_conversation(tmp_path, OPENHANDS)

    with refold.open("memory://") as store:
        (result,) = store.import_transcript(conversation, user_id="ada")
        (again,) = store.import_transcript(tmp_path, user_id="ada")
        (row,) = store.overviews("ada").sessions
    transcript = read_one(conversation / "base_state.json")

    assert (result.session_id, result.events, again.events) == ("c-1", 8, 0)
    assert row.overview.project == "/work/shop"
    answer = next(e for e in events(transcript) if isinstance(e, AgentResponse))
    assert answer.usage == {
        "input_tokens": 40,
        "output_tokens": 10,
        "cache_read_input_tokens": 60,
        "cache_creation_input_tokens": 0,
    }


def test_lines_and_lists_give_the_same_events(tmp_path: Path) -> None:
    from_lines = read_one(write_lines(tmp_path, OPENHANDS))
    from_list = read_one(write_document(tmp_path, OPENHANDS))

    assert events(from_lines) == events(from_list)
    assert kinds(from_lines) == [
        "system",
        "user_input",
        "agent_response",
        "tool_call",
        "tool_call",
        "tool_result",
        "tool_result",
        "agent_response",
    ]
    results = [e for e in events(from_lines) if isinstance(e, ToolResult)]
    assert [result.status for result in results] == ["ok", "error"]
    call = next(e for e in events(from_lines) if isinstance(e, ToolCall))
    assert call.arguments == {"command": "echo one"}


def test_a_condensation_shows_its_summary_in_its_place(tmp_path: Path) -> None:
    forgotten = [event["id"] for event in OPENHANDS[2:6]]
    path = write_lines(
        tmp_path,
        [
            *OPENHANDS,
            openhands_event(
                "h9",
                "Condensation",
                forgotten_event_ids=forgotten,
                summary="Both ran.",
                summary_offset=2,
            ),
        ],
    )

    assert context_texts(path, "c-1") == [
        "Run both.",
        "Both ran.",
        "The second one failed.",
    ]


def test_a_rejected_call_is_a_decision(tmp_path: Path) -> None:
    rejected = openhands_event(
        "h9",
        "UserRejectObservation",
        tool_call_id="c1",
        rejection_reason="too risky",
    )
    path = write_lines(tmp_path, [*OPENHANDS[:3], rejected])

    *_, result, review = events(read_one(path))

    assert isinstance(result, ToolResult)
    assert result.status == "error"
    assert isinstance(review, HumanReview)
    assert (review.decision, review.bundle) == (
        "rejected",
        {"call_id": "c1", "reason": "too risky"},
    )


def old_call(event_id: int, call_id: str, command: str) -> Entry:
    function = {"name": "execute_bash", "arguments": json.dumps({"command": command})}
    message: dict[str, Any] = {
        "content": "I run it.",
        "tool_calls": [{"id": call_id, "function": function}],
    }
    return {
        "id": event_id,
        "timestamp": "2025-02-03T04:05:06",
        "source": "agent",
        "action": "run",
        "args": {"command": command, "thought": "I run it."},
        "tool_call_metadata": {
            "function_name": "execute_bash",
            "tool_call_id": call_id,
            "model_response": {
                "id": f"r-{call_id}",
                "model": "claude-x",
                "choices": [{"message": message}],
                "usage": {"prompt_tokens": 100, "completion_tokens": 10},
            },
        },
    }


def old(event_id: int, source: str, **fields: Any) -> Entry:
    return {
        "id": event_id,
        "timestamp": "2025-02-03T04:05:06",
        "source": source,
        **fields,
    }


def test_an_older_trajectory(tmp_path: Path) -> None:
    path = write_document(
        tmp_path,
        [
            old(0, "agent", action="system", args={"content": "You are OpenHands."}),
            old(1, "user", action="message", args={"content": "Run it."}),
            old(2, "environment", observation="recall", content="Added context"),
            old_call(3, "c1", "exit 3"),
            old(
                4,
                "agent",
                observation="run",
                cause=3,
                content="failed",
                extras={"metadata": {"exit_code": 3}},
                tool_call_metadata={"tool_call_id": "c1"},
            ),
            old(5, "environment", observation="agent_state_changed", content=""),
            old(6, "agent", action="read", args={"path": "/a", "thought": "I look."}),
            old(7, "agent", observation="read", cause=6, content="text", extras={}),
            old(8, "agent", action="message", args={"content": "It failed."}),
            old(9, "environment", observation="error", content="Stuck.", extras={}),
        ],
    )

    transcript = read_one(path)

    assert transcript.format == "openhands"
    assert kinds(transcript) == [
        "system",
        "user_input",
        "agent_response",
        "tool_call",
        "tool_result",
        "agent_response",
        "tool_call",
        "tool_result",
        "agent_response",
        "error",
    ]
    results = [e for e in events(transcript) if isinstance(e, ToolResult)]
    assert [(r.call_id, r.status) for r in results] == [
        ("c1", "error"),
        ("action:6", "ok"),
    ]
    assert transcript.drafts[2].meta.model == "claude-x"
    assert [item.note for item in transcript.skipped] == [False, True]


def test_an_older_condensation_leaves_out_a_range(tmp_path: Path) -> None:
    condensation = old(
        9,
        "agent",
        action="condensation",
        args={
            "forgotten_events_start_id": 1,
            "forgotten_events_end_id": 2,
            "summary": "Said hello.",
            "summary_offset": 1,
        },
    )
    path = write_document(
        tmp_path,
        [
            old(0, "agent", action="system", args={"content": "You are OpenHands."}),
            old(1, "user", action="message", args={"content": "Hello."}),
            old(2, "agent", action="message", args={"content": "Hi."}),
            old(3, "user", action="message", args={"content": "Go on."}),
            condensation,
        ],
    )

    edit = next(e for e in events(read_one(path)) if isinstance(e, ProviderEdit))

    assert edit.reason == "compaction"
    shown = context_texts(path, "c-1")
    assert "Hello." not in shown
    assert {"Said hello.", "Go on."} <= set(shown)


def test_damaged_and_unknown_events_are_reported(tmp_path: Path) -> None:
    conversation = write_conversation(
        tmp_path, [*OPENHANDS[:2], openhands_event("h9", "UnheardEvent")]
    )
    (conversation / "events" / "event-00001-h1.json").write_text("{")

    (transcript,) = importers.read(conversation / "base_state.json")

    assert reasons(transcript) == {
        "base_state.json events/event-00001-h1.json": "is not a readable event",
        "base_state.json events/event-00002-h9.json": "event of an unknown kind",
    }
