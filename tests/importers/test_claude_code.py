"""A Claude Code session becomes events in the order of its lines."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from refold.adapters import importers
from refold.domain.events import (
    AgentError,
    AgentResponse,
    ProviderEdit,
    ToolCall,
    ToolResult,
    UserInput,
)
from tests.importers import samples
from tests.importers.samples import (
    SESSION,
    answered,
    events,
    kinds,
    read_one,
    reasons,
    returned,
    use,
    user_entry,
    words,
    write_lines,
)


def test_each_block_is_an_event_in_the_order_of_the_lines(tmp_path: Path) -> None:
    transcript = read_one(write_lines(tmp_path, samples.CLAUDE_CODE))

    assert transcript.session_id == SESSION
    assert transcript.format == "claude-code"
    assert events(transcript)[:4] == [
        UserInput(text="Why does the build fail?"),
        AgentResponse(
            text="Let me look.", usage={"input_tokens": 7, "output_tokens": 1}
        ),
        ToolCall(call_id="c1", tool_name="Bash", arguments={"command": "make"}),
        ToolResult(
            call_id="c1", tool_name="Bash", content="error: no rule", status="error"
        ),
    ]
    assert kinds(transcript)[4:] == ["agent_response"]


def test_an_event_names_its_origin(tmp_path: Path) -> None:
    draft = read_one(write_lines(tmp_path, samples.CLAUDE_CODE)).drafts[2]

    assert draft.ts == datetime(2026, 2, 3, 4, 5, 6, 789_000, tzinfo=UTC)
    assert draft.request_id == "req-m1"
    assert draft.meta.model == "claude-x"
    assert draft.meta.response_id == "m1"
    assert draft.meta.source == {
        "format": "claude-code",
        "place": "line 4",
        "id": "a2",
        "parent": "a1",
    }


def test_one_response_in_several_entries_keeps_one_id_across_results(
    tmp_path: Path,
) -> None:
    entries = [
        answered("a1", "m1", {"type": "thinking", "thinking": "Hm", "signature": "s"}),
        answered("a2", "m1", use("c1")),
        user_entry("u1", [returned("c1")]),
        answered("a3", "m1", words("And on.")),
        answered("a4", "m1", use("c2")),
    ]

    drafts = read_one(write_lines(tmp_path, entries)).drafts

    of_model = [draft for draft in drafts if draft.meta.response_id == "m1"]
    assert [draft.event.type for draft in of_model] == [
        "agent_response",
        "tool_call",
        "agent_response",
        "tool_call",
    ]
    assert drafts[0].event == AgentResponse(
        thinking=({"type": "thinking", "thinking": "Hm", "signature": "s"},),
        usage={"input_tokens": 7, "output_tokens": 1},
    )


def test_usage_is_recorded_once_per_response_with_its_growth(
    tmp_path: Path,
) -> None:
    entries = [
        answered("a1", "m1", use("c1"), usage={"output_tokens": 1}),
        answered("a2", "m1", use("c2"), usage={"output_tokens": 1}),
        answered("a3", "m1", words("Well."), usage={"output_tokens": 90}),
    ]

    first, second, third = read_one(write_lines(tmp_path, entries)).drafts

    assert first.meta.usage == {"output_tokens": 1}
    assert second.meta.usage is None
    assert third.meta.usage is None
    assert third.event == AgentResponse(text="Well.")
    assert third.meta.source is not None
    assert third.meta.source["usage"] == {"output_tokens": 90}


def test_a_call_without_text_before_it_is_a_call_alone(tmp_path: Path) -> None:
    assert kinds(read_one(write_lines(tmp_path, [answered("a", "m", use("c1"))]))) == [
        "tool_call"
    ]


def test_a_call_without_a_result_stays_open(tmp_path: Path) -> None:
    transcript = read_one(write_lines(tmp_path, samples.CLAUDE_CODE[:4]))

    assert kinds(transcript)[-1] == "tool_call"


@pytest.mark.parametrize(
    ("outcome", "milliseconds"),
    [
        ({"durationMs": 12}, 12),
        ({"totalDurationMs": 4.5}, 4.5),
        ({"durationSeconds": 2}, 2000),
        ({"durationMs": -1}, None),
        ({"durationMs": True}, None),
        ("a text", None),
    ],
)
def test_a_result_has_the_duration_that_its_entry_tells(
    tmp_path: Path, outcome: Any, milliseconds: float | None
) -> None:
    entries = [
        answered("a", "m", use("c1")),
        user_entry("u", [returned("c1")], toolUseResult=outcome),
    ]

    event = events(read_one(write_lines(tmp_path, entries)))[1]

    assert isinstance(event, ToolResult)
    assert event.duration_ms == milliseconds


def test_a_result_of_blocks_is_kept_as_they_are(tmp_path: Path) -> None:
    blocks = [words("seen"), {"type": "image", "source": {"type": "base64"}}]
    entries = [
        answered("a", "m", use("c1")),
        user_entry("u", [returned("c1", blocks)]),
    ]

    event = events(read_one(write_lines(tmp_path, entries)))[1]

    assert isinstance(event, ToolResult)
    assert event.content == blocks


def test_texts_and_files_of_one_message_are_one_input(tmp_path: Path) -> None:
    image = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"},
    }
    entry = user_entry("u", [words("Look."), image, words("What is it?")])

    (event,) = events(read_one(write_lines(tmp_path, [entry])))

    assert event == UserInput(
        text="Look.\n\nWhat is it?",
        attachments=({"kind": "image", "media_type": "image/png", "data": "AAAA"},),
    )


def test_text_of_the_client_in_the_users_name_is_marked(tmp_path: Path) -> None:
    entries = [
        user_entry("u1", "Stop hook feedback: dirty", isMeta=True),
        user_entry("u2", "This session goes on from …", isCompactSummary=True),
        user_entry("u3", [words("[Request interrupted by user]")]),
    ]

    transcript = read_one(write_lines(tmp_path, entries))

    first, second, edit, third = (
        draft.meta.source or {} for draft in transcript.drafts
    )
    assert "meta" not in edit
    assert first["meta"] is True
    assert second["compact_summary"] is True
    assert "meta" not in third
    assert events(transcript)[3] == UserInput(text="[Request interrupted by user]")


def test_text_typed_while_the_agent_works_is_an_input(tmp_path: Path) -> None:
    queued = {"type": "queued_command", "prompt": "And hurry.", "commandMode": "prompt"}
    entries = [
        user_entry("u", "Go."),
        {"type": "attachment", "uuid": "x", "sessionId": SESSION, "attachment": queued},
    ]

    transcript = read_one(write_lines(tmp_path, entries))

    assert events(transcript)[1] == UserInput(text="And hurry.")
    assert (transcript.drafts[1].meta.source or {})["queued"] is True


def test_an_error_of_the_api_is_no_answer(tmp_path: Path) -> None:
    entry = answered("a", "m", words("529"), isApiErrorMessage=True, error="overloaded")

    (event,) = events(read_one(write_lines(tmp_path, [user_entry("u", "Go."), entry])))[
        1:
    ]

    assert event == AgentError(code="overloaded", message="529", retryable=True)


def test_notes_of_the_client_are_skipped_by_line(tmp_path: Path) -> None:
    entries = [
        {"type": "summary", "summary": "secret title", "leafUuid": "x"},
        user_entry("u", "Go."),
        {"type": "system", "subtype": "compact_boundary", "content": "secret"},
        {"type": "file-history-snapshot", "messageId": "m"},
        {"type": "secret-new-thing"},
        [],
    ]

    transcript = read_one(write_lines(tmp_path, entries))

    assert list(reasons(transcript)) == [
        f"file.jsonl line {line}" for line in (1, 3, 4, 5, 6)
    ]
    assert "secret" not in str(transcript.skipped)


def test_a_repeated_entry_is_recorded_once(tmp_path: Path) -> None:
    entries = [*samples.CLAUDE_CODE, *samples.CLAUDE_CODE[1:5]]

    transcript = read_one(write_lines(tmp_path, entries))

    assert len(transcript.drafts) == 5
    why = reasons(transcript)["file.jsonl line 7, first in line 2"]
    assert why == "entry that stands before it already"


def test_a_sub_agents_run_is_a_separate_session(tmp_path: Path) -> None:
    root = "0123456789abcdef"
    side: dict[str, Any] = {"isSidechain": True, "agentId": "agent-7"}
    entries = [
        user_entry("u1", "Go."),
        answered("a1", "m1", use("c1", "Task"), parentUuid="u1"),
        user_entry(root, "Explore.", **side),
        answered("b1", "n1", use("d1"), **{**side, "parentUuid": root}),
        user_entry("b2", [returned("d1")], **{**side, "parentUuid": "b1"}),
        user_entry("u2", [returned("c1", "found")], parentUuid="a1"),
    ]

    main, run = importers.read(write_lines(tmp_path, entries))

    assert kinds(main) == ["user_input", "tool_call", "tool_result"]
    assert kinds(run) == ["user_input", "tool_call", "tool_result"]
    assert run.session_id == f"{SESSION}~agent-7"
    assert run.parent_session_id == SESSION
    assert run.drafts[0].agent == "agent-7"
    assert main.parent_session_id is None


def test_concurrent_runs_are_distinguished_by_their_roots(tmp_path: Path) -> None:
    entries = [
        user_entry("root-one", "One.", isSidechain=True),
        user_entry("root-two", "Two.", isSidechain=True),
        user_entry("x", "More of one.", isSidechain=True, parentUuid="root-one"),
        user_entry("y", "More of two.", isSidechain=True, parentUuid="root-two"),
    ]

    first, second = importers.read(write_lines(tmp_path, entries))

    assert events(first) == [UserInput(text="One."), UserInput(text="More of one.")]
    assert events(second) == [UserInput(text="Two."), UserInput(text="More of two.")]


def test_a_file_of_a_sub_agent_alone_names_its_parent(tmp_path: Path) -> None:
    entries = [
        user_entry("abcdefghij", "Explore.", isSidechain=True, agentId="7"),
        user_entry("later", "Again.", isSidechain=True, agentId="7"),
    ]

    transcript = read_one(write_lines(tmp_path, entries, "agent-7.jsonl"))

    assert transcript.session_id == f"{SESSION}~7"
    assert transcript.parent_session_id == SESSION
    assert len(transcript.drafts) == 2


def test_a_resumed_session_is_named_after_its_file(tmp_path: Path) -> None:
    entries = [
        user_entry("u1", "Before.", sessionId="older"),
        user_entry("u2", "After.", sessionId="newer"),
    ]

    transcript = read_one(write_lines(tmp_path, entries, "newer.jsonl"))

    assert transcript.session_id == "newer"
    assert (transcript.drafts[1].meta.source or {})["session"] == "newer"


def test_results_that_no_call_waits_for_are_skipped(tmp_path: Path) -> None:
    entries = [
        user_entry("u1", [returned("never-made")]),
        answered("a", "m", use("c1")),
        answered("a2", "m", use("c1")),
        user_entry("u2", [returned("c1")]),
        user_entry("u3", [returned("c1")]),
        user_entry("u4", [{"type": "tool_result", "content": "whose?"}]),
    ]

    transcript = read_one(write_lines(tmp_path, entries))

    assert kinds(transcript) == ["tool_call", "tool_result"]
    assert list(reasons(transcript)) == [
        "file.jsonl line 1",
        "file.jsonl line 3",
        "file.jsonl line 5",
        "file.jsonl line 6 content[0]",
    ]


def test_server_tools_are_kept_byte_for_byte(tmp_path: Path) -> None:
    search = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}
    entry = answered("a", "m", words("I search."), search, words("Found."))

    transcript = read_one(write_lines(tmp_path, [entry]))

    assert kinds(transcript) == ["agent_response", "provider_edit", "agent_response"]
    edit = events(transcript)[1]
    assert isinstance(edit, ProviderEdit)
    assert (edit.edits, edit.blocks, edit.spans) == ((), (search,), ())


def queue(operation: str, **more: Any) -> dict[str, Any]:
    about = {"type": "queue-operation", "operation": operation}
    return {**about, "sessionId": SESSION, **more}


def inputs(transcript: Any) -> list[str]:
    return [event.text for event in events(transcript) if isinstance(event, UserInput)]


@pytest.mark.parametrize("removed", [queue("remove"), queue("remove", content="STEER")])
def test_steering_that_has_no_entry_is_an_input_before_the_next_answer(
    tmp_path: Path, removed: dict[str, Any]
) -> None:
    entries = [
        user_entry("u1", "Go."),
        answered("a1", "m1", use("c1")),
        queue("enqueue", content="STEER"),
        user_entry("u2", [returned("c1")]),
        removed,
        answered("a2", "m2", words("I do.")),
    ]

    transcript = read_one(write_lines(tmp_path, entries))

    assert kinds(transcript)[-2:] == ["user_input", "agent_response"]
    assert inputs(transcript) == ["Go.", "STEER"]
    assert (transcript.drafts[-2].meta.source or {})["queued"] is True
    assert reasons(transcript)["file.jsonl line 3"].endswith("imported as an input")


def test_a_queued_message_with_an_entry_is_recorded_once(tmp_path: Path) -> None:
    entries = [
        user_entry("u1", "Go."),
        queue("enqueue", content="STEER"),
        answered("a1", "m1", words("Done.")),
        queue("dequeue"),
        user_entry("u2", [words("STEER")]),
        answered("a2", "m2", words("I do.")),
    ]

    transcript = read_one(write_lines(tmp_path, entries))

    assert inputs(transcript) == ["Go.", "STEER"]
    why = reasons(transcript)["file.jsonl line 2, message in line 5"]
    assert why == "queue record; its message is imported from an entry of its own"


def test_an_earlier_input_of_the_same_words_is_another_one(tmp_path: Path) -> None:
    entries = [
        user_entry("u1", "go on"),
        answered("a1", "m1", use("c1")),
        queue("enqueue", content="go on"),
        queue("remove"),
        answered("a2", "m2", words("I do.")),
    ]

    assert inputs(read_one(write_lines(tmp_path, entries))) == ["go on", "go on"]


def test_a_withdrawn_message_is_no_input(tmp_path: Path) -> None:
    entries = [
        user_entry("u1", "Go."),
        queue("enqueue", content="STOP"),
        queue("popAll", content="STOP"),
        answered("a1", "m1", words("Done.")),
    ]

    transcript = read_one(write_lines(tmp_path, entries))

    assert inputs(transcript) == ["Go."]
    why = reasons(transcript)["file.jsonl line 2"]
    assert why == "queued message that the user took back"


@pytest.mark.parametrize("left", [[], [queue("remove")]])
def test_a_queued_message_without_a_sign_of_sending_is_recorded_outside_the_context(
    tmp_path: Path, left: list[dict[str, Any]]
) -> None:
    entries = [user_entry("u1", "Go."), queue("enqueue", content="LATER"), *left]

    transcript = read_one(write_lines(tmp_path, entries))

    assert kinds(transcript) == ["user_input", "item"]
    assert transcript.drafts[1].event.payload()["value"] == entries[1]


def test_the_reason_for_an_attachment_claims_nothing(tmp_path: Path) -> None:
    attached = {"type": "unheard_of", "filename": "a.py", "data": "secret"}
    about = {"type": "attachment", "uuid": "x", "sessionId": SESSION}
    entries = [user_entry("u1", "Read @a.py"), {**about, "attachment": attached}]

    why = reasons(read_one(write_lines(tmp_path, entries)))["file.jsonl line 2"]

    assert why == (
        "context that the client attached (unheard_of): the model may have seen it, "
        "and contexts do not show it"
    )


def test_an_entry_with_the_id_of_another_is_reported_as_different(
    tmp_path: Path,
) -> None:
    entries = [user_entry("u1", "one"), user_entry("u1", "another")]

    skipped = reasons(read_one(write_lines(tmp_path, entries)))

    assert skipped["file.jsonl line 2, first in line 1"] == (
        "entry with the id of an earlier one and other content"
    )
