"""Gemini CLI writes a message again when it changes; each part is imported once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import refold
from refold.domain.events import AgentResponse, ProviderEdit, ToolResult, UserInput
from tests.guards.test_calls import calls
from tests.importers.agent_samples import (
    GEMINI,
    GEMINI_CONTEXT,
    GEMINI_SESSION,
    gemini_answer,
    gemini_call,
    gemini_header,
    gemini_response,
    gemini_user,
)
from tests.importers.samples import (
    context_texts,
    events,
    kinds,
    read_one,
    reasons,
    refusal,
    write_document,
    write_lines,
)


def test_a_session_in_lines(tmp_path: Path) -> None:
    transcript = read_one(write_lines(tmp_path, GEMINI))

    assert transcript.format == "gemini-cli"
    assert transcript.session_id == GEMINI_SESSION
    assert transcript.title == "Run two commands"
    assert transcript.skipped == ()
    assert kinds(transcript) == [
        "user_input",
        "user_input",
        "agent_response",
        "tool_call",
        "tool_call",
        "tool_result",
        "tool_result",
        "agent_response",
    ]
    context, _, answer, *_, succeeded, failed, _ = transcript.drafts
    assert (context.meta.source or {})["context"] == "session_context"
    assert isinstance(answer.event, AgentResponse)
    assert answer.event.usage == {
        "input_tokens": 40,
        "output_tokens": 10,
        "cache_read_input_tokens": 60,
    }
    assert answer.meta.model == "gemini-2.5-flash"
    assert isinstance(succeeded.event, ToolResult)
    assert isinstance(failed.event, ToolResult)
    assert [succeeded.event.status, failed.event.status] == ["ok", "error"]


def test_a_document_gives_the_same_events(tmp_path: Path) -> None:
    messages = [GEMINI_CONTEXT, GEMINI[2], GEMINI[5], GEMINI[6], GEMINI[7]]
    path = write_document(tmp_path, gemini_header(messages=messages))

    lines = read_one(write_lines(tmp_path, GEMINI))
    assert events(read_one(path)) == events(lines)


def test_thoughts_are_thinking(tmp_path: Path) -> None:
    thought = {"subject": "Plan", "description": "Look first."}
    signed = {"text": "Hm", "thought": True, "thoughtSignature": "sig"}
    path = write_lines(
        tmp_path,
        [
            gemini_header(),
            gemini_user("g1", "Go."),
            gemini_answer("g2", "Yes.", thoughts=[thought]),
            gemini_answer("g3", [signed, {"text": "Done."}]),
        ],
    )

    answers = [
        event for event in events(read_one(path)) if isinstance(event, AgentResponse)
    ]

    assert answers[0].thinking[0].thinking == "**Plan** Look first."
    assert answers[1].thinking[0].signature == "sig"
    assert [answer.text for answer in answers] == ["Yes.", "Done."]


def test_a_rewind_leaves_out_the_messages_from_its_target_on(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path,
        [
            *GEMINI[:-1],
            {"$rewindTo": "g4"},
            gemini_user("g5", "Go on.", second=9),
        ],
    )

    transcript = read_one(path)

    edits = [event for event in events(transcript) if isinstance(event, ProviderEdit)]
    assert [edit.reason for edit in edits] == ["rewind"]
    shown = context_texts(path)
    assert "The second one failed." not in shown
    assert shown[-1] == "Go on."


def test_a_result_that_two_messages_have_stays_after_a_rewind_to_the_second(
    tmp_path: Path,
) -> None:
    responses = gemini_user("g2_response", gemini_response("c1", "Output: one"))
    path = write_lines(
        tmp_path, [*GEMINI[:-1], responses, {"$rewindTo": "g2_response"}]
    )

    shown = context_texts(path)

    assert "Output: one" in shown


def test_rewinds_cost_what_they_remove(tmp_path: Path) -> None:
    def calls_with(count: int) -> int:
        lines = [gemini_header()]
        for number in range(count):
            lines.append(gemini_user(f"kept-{number}", "Go on."))
        for number in range(count):
            lines.append(gemini_user(f"tried-{number}", "Try."))
            lines.append({"$rewindTo": f"tried-{number}"})
        path = write_lines(tmp_path, lines)
        return calls(lambda: read_one(path))

    calls_with(10)  # loads modules
    few, more, most = (calls_with(count) for count in (20, 60, 100))
    assert most - more < 1.1 * (more - few)


def history(*messages: dict[str, Any]) -> dict[str, Any]:
    return {"$set": {"messages": list(messages), "lastUpdated": "2026-02-03T04:06:00Z"}}


def test_a_compressed_history_takes_the_place_of_the_messages(tmp_path: Path) -> None:
    summary = gemini_user("g9", "<state_snapshot>Both ran.</state_snapshot>")
    path = write_lines(
        tmp_path,
        [
            *GEMINI[:-1],
            history(summary, GEMINI[7]),
            gemini_user("g10", "Go on.", second=9),
        ],
    )

    transcript = read_one(path)

    edits = [event for event in events(transcript) if isinstance(event, ProviderEdit)]
    assert [edit.reason for edit in edits] == ["compaction"]
    assert context_texts(path) == [
        "<state_snapshot>Both ran.</state_snapshot>",
        "The second one failed.",
        "Go on.",
    ]


def test_a_masked_result_shows_its_new_content(tmp_path: Path) -> None:
    masked = gemini_answer(
        "g2",
        "I run them.",
        toolCalls=[gemini_call("c1", "<masked>"), GEMINI[5]["toolCalls"][1]],
    )
    path = write_lines(
        tmp_path,
        [
            *GEMINI[:-1],
            history(GEMINI_CONTEXT, GEMINI[2], masked, GEMINI[7]),
            gemini_user("g10", "Go on.", second=9),
        ],
    )

    shown = context_texts(path)

    assert "<masked>" in shown
    assert "Output: one" not in shown


def test_a_resumed_session_changes_nothing(tmp_path: Path) -> None:
    calls = [
        {"text": "I run them."},
        {"functionCall": {"id": "c1", "name": "shell", "args": {}}},
        {"functionCall": {"id": "c2", "name": "shell", "args": {}}},
    ]
    responses = gemini_user(
        "g2_response",
        gemini_response("c1", "Output: one"),
        gemini_response("c2", "Output: (empty)\nExit Code: 3"),
    )
    loaded = history(
        GEMINI_CONTEXT, GEMINI[2], gemini_answer("g2", calls), responses, GEMINI[7]
    )
    resumed = [gemini_header(), history(GEMINI_CONTEXT), loaded]
    before = read_one(write_lines(tmp_path, GEMINI))

    loading = read_one(write_lines(tmp_path, [*GEMINI, *resumed]))
    asked = [*GEMINI, *resumed, gemini_user("g5", "Go on.")]
    after = read_one(write_lines(tmp_path, asked))

    assert events(loading) == events(before)
    assert "is loading" in " ".join(reasons(loading).values())
    assert events(after)[:-1] == events(before)
    assert events(after)[-1] == UserInput(text="Go on.")


def test_a_resumed_client_lists_all_results_at_each_parallel_call(
    tmp_path: Path,
) -> None:
    calls = [dict(call) for call in GEMINI[5]["toolCalls"]]
    both = [part for call in calls for part in call["result"]]
    for call in calls:
        call["result"] = both
    listed = gemini_answer("g2", "I run them.", toolCalls=calls)
    resumed = history(GEMINI_CONTEXT, GEMINI[2], listed, GEMINI[7])
    before = read_one(write_lines(tmp_path, GEMINI))

    after = read_one(write_lines(tmp_path, [*GEMINI, resumed, gemini_user("g5", "?")]))

    assert events(after)[:-1] == events(before)


def test_a_refused_call_is_a_decision(tmp_path: Path) -> None:
    refused = "[Operation Cancelled] Reason: User did not allow tool call"
    path = write_lines(
        tmp_path,
        [
            gemini_header(),
            gemini_user("g1", "Go."),
            gemini_answer(
                "g2", "", toolCalls=[gemini_call("c1", refused, "cancelled")]
            ),
        ],
    )

    assert kinds(read_one(path)) == ["user_input", "tool_call", "tool_result", "hitl"]


def test_a_sub_agent_belongs_to_the_session_in_whose_folder_it_is(
    tmp_path: Path,
) -> None:
    folder = tmp_path / GEMINI_SESSION
    folder.mkdir()
    lines = [gemini_header(sessionId="sub", kind="subagent"), gemini_user("g1", "Go.")]

    transcript = read_one(write_lines(folder, lines))

    assert transcript.session_id == f"{GEMINI_SESSION}~sub"
    assert transcript.parent_session_id == GEMINI_SESSION


def test_the_folder_of_the_project_is_shown_as_the_project(tmp_path: Path) -> None:
    chats = tmp_path / "shop" / "chats"
    chats.mkdir(parents=True)
    (tmp_path / "shop" / ".project_root").write_text("/work/shop")
    path = write_lines(chats, GEMINI)

    with refold.open("memory://") as store:
        (result,) = store.import_transcript(path, user_id="ada")
        (again,) = store.import_transcript(path, user_id="ada")
        (row,) = store.overviews("ada").sessions

    assert row.overview.project == "/work/shop"
    assert row.overview.title == "Run two commands"
    assert [result.events, again.events] == [9, 0]


def test_notes_errors_and_unknown_records_are_reported(tmp_path: Path) -> None:
    note = {"id": "n1", "type": "info", "content": "Updated."}
    path = write_lines(
        tmp_path,
        [
            gemini_header(memoryScratchpad={"version": 1}),
            gemini_user("g1", "Go."),
            note,
            {"id": "e1", "type": "error", "content": "Quota exceeded."},
            {"id": "x1", "type": "unheard", "content": "?"},
            {"unheard": True},
        ],
    )

    transcript = read_one(path)

    assert kinds(transcript) == ["user_input", "error"]
    assert list(reasons(transcript).values()) == [
        "note of the client, not part of the conversation",
        "message of an unknown type",
        "record of an unknown kind",
        "fields around the messages: memoryScratchpad",
    ]


def test_an_empty_chat_is_refused(tmp_path: Path) -> None:
    path = write_lines(tmp_path, [gemini_header()])

    assert "holds no messages" in refusal(path)
