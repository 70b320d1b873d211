"""Copilot's events: answers with their tokens, results, decisions, and sub-agents."""

from __future__ import annotations

from pathlib import Path

import pytest

import refold
from refold.adapters import importers
from refold.domain.events import (
    AgentError,
    AgentResponse,
    HumanReview,
    ProviderEdit,
    ToolResult,
    UserInput,
)
from tests.importers.agent_samples import (
    COPILOT,
    COPILOT_AGENT,
    COPILOT_SESSION,
    copilot_answer,
    copilot_event,
    copilot_request,
    copilot_result,
    copilot_start,
)
from tests.importers.samples import (
    context_texts,
    events,
    kinds,
    read_one,
    reasons,
    write_lines,
)


def test_a_session_and_its_sub_agent(tmp_path: Path) -> None:
    main, agent = importers.read(write_lines(tmp_path, COPILOT))

    assert (main.session_id, main.title) == (COPILOT_SESSION, "Run two commands")
    assert main.folder == "/work/shop"
    assert kinds(main) == [
        "user_input",
        "system",
        "agent_response",
        "tool_call",
        "tool_call",
        "tool_result",
        "tool_result",
        "agent_response",
        "tool_call",
        "tool_result",
        "agent_response",
    ]
    assert agent.session_id == f"{COPILOT_SESSION}~{COPILOT_AGENT}"
    assert agent.parent_session_id == COPILOT_SESSION
    assert kinds(agent) == ["user_input", "agent_response"]
    assert all(item.note for item in (*main.skipped, *agent.skipped))


def test_an_answer_has_its_tokens_and_a_result_its_duration(tmp_path: Path) -> None:
    main, _ = importers.read(write_lines(tmp_path, COPILOT))

    answer = next(e for e in events(main) if isinstance(e, AgentResponse))
    results = [e for e in events(main) if isinstance(e, ToolResult)]

    assert answer.usage == {
        "input_tokens": 40,
        "output_tokens": 10,
        "cache_read_input_tokens": 60,
        "cache_creation_input_tokens": 0,
    }
    assert [(r.call_id, r.status) for r in results[:2]] == [
        ("c2", "error"),
        ("c1", "ok"),
    ]
    assert results[0].duration_ms == 1000
    assert results[1].content == "one"


def test_the_input_is_what_the_model_got_and_its_title_what_the_user_typed(
    tmp_path: Path,
) -> None:
    path = write_lines(tmp_path, COPILOT[:6])

    first = events(read_one(path))[0]
    with refold.open("memory://") as store:
        store.import_transcript(path, user_id="ada")
        (row,) = store.overviews("ada").sessions

    assert first == UserInput(
        text="<current_datetime>now</current_datetime>\n\nRun both."
    )
    assert row.overview.title == "Run both."


def test_a_sub_agent_without_an_id_is_named_by_its_call(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path,
        [
            copilot_start(),
            copilot_event("p1", "user.message", content="Go."),
            copilot_answer("p2", "", copilot_request("c1", "task")),
            copilot_answer("p3", "Hi.", parentToolCallId="c1"),
            copilot_result("p4", "c1", "Hi."),
        ],
    )

    main, agent = importers.read(path)

    assert kinds(main) == ["user_input", "tool_call", "tool_result"]
    assert agent.session_id == f"{COPILOT_SESSION}~c1"


def test_a_compaction_shows_its_summary_instead_of_the_messages(tmp_path: Path) -> None:
    path = write_lines(
        tmp_path,
        [
            *COPILOT[:10],
            copilot_event(
                "p20",
                "session.compaction_complete",
                success=True,
                summaryContent="Both ran.",
            ),
            copilot_event("p21", "user.message", content="Go on."),
        ],
    )

    assert context_texts(path) == ["Both ran.", "Go on."]


def test_a_rewind_leaves_out_an_event_and_everything_after_it(tmp_path: Path) -> None:
    lines = [
        *COPILOT[:10],
        copilot_event("p20", "user.message", content="Wrong."),
        copilot_answer("p21", "As you wish."),
        copilot_event("p22", "session.snapshot_rewind", upToEventId="p20"),
        copilot_event("p23", "user.message", content="Right."),
    ]
    path = write_lines(tmp_path, lines)

    shown = context_texts(path)

    assert shown[-1] == "Right."
    assert "Wrong." not in shown
    assert "As you wish." not in shown


def test_a_truncation_is_recorded_and_reported(tmp_path: Path) -> None:
    truncation = copilot_event(
        "p20", "session.truncation", messagesRemovedDuringTruncation=4
    )
    transcript = read_one(write_lines(tmp_path, [*COPILOT[:10], truncation]))

    edit = events(transcript)[-1]

    assert isinstance(edit, ProviderEdit)
    assert edit.edits[0]["messagesRemovedDuringTruncation"] == 4
    assert "does not name" in reasons(transcript)["file.jsonl line 11"]


@pytest.mark.parametrize(
    ("outcome", "decision", "by"),
    [
        ("approved", "approved", "user"),
        ("denied-interactively-by-user", "rejected", "user"),
        ("denied-by-rules", "rejected", "settings"),
    ],
)
def test_a_permission_is_a_decision(
    outcome: str, decision: str, by: str, tmp_path: Path
) -> None:
    request = {"kind": "shell", "toolCallId": "c1", "intention": "Run it"}
    path = write_lines(
        tmp_path,
        [
            copilot_start(),
            copilot_event("p1", "user.message", content="Go."),
            copilot_answer("p2", "", copilot_request("c1")),
            copilot_event(
                "p3",
                "permission.requested",
                requestId="q1",
                permissionRequest=request,
            ),
            copilot_event(
                "p4", "permission.completed", requestId="q1", result={"kind": outcome}
            ),
            copilot_result("p5", "c1", "", success=False, error={"message": "no"}),
        ],
    )

    review = next(e for e in events(read_one(path)) if isinstance(e, HumanReview))

    assert (review.decision, review.decided_by) == (decision, by)
    assert review.question == "Run it"
    assert review.bundle == {"call_id": "c1"}


def test_errors_thoughts_and_pictures(tmp_path: Path) -> None:
    picture = {"type": "image", "mimeType": "image/png", "data": "iVBORw0KGgo="}
    result = copilot_result("p5", "c1", "a picture")
    result["data"]["result"]["binaryResultsForLlm"] = [picture]
    path = write_lines(
        tmp_path,
        [
            copilot_start(),
            copilot_event("p1", "user.message", content="Go."),
            copilot_event("p2", "assistant.reasoning", content="Hm."),
            copilot_answer("p3", "", copilot_request("c1"), reasoningOpaque="sig"),
            result,
            copilot_event(
                "p6",
                "session.error",
                errorType="rate_limit",
                message="Slow down.",
                statusCode=429,
            ),
            copilot_event("p7", "abort", reason="user initiated"),
        ],
    )

    answer, returned, error, abort = [
        event
        for event in events(read_one(path))
        if isinstance(event, AgentResponse | ToolResult | AgentError)
    ]

    assert isinstance(answer, AgentResponse)
    assert (answer.thinking[0].thinking, answer.thinking[0].signature) == ("Hm.", "sig")
    assert isinstance(returned, ToolResult)
    assert isinstance(returned.content, list)
    assert isinstance(error, AgentError)
    assert (error.code, error.context) == ("rate_limit", {"status": 429})
    assert isinstance(abort, AgentError)
    assert abort.message == "user initiated"


def test_unknown_and_repeated_events_are_reported(tmp_path: Path) -> None:
    lines = [*COPILOT[:2], COPILOT[1], copilot_event("x", "unheard.of"), {"a": 1}]

    assert list(reasons(read_one(write_lines(tmp_path, lines))).values()) == [
        "note of the client, not part of the conversation",
        "event that stands before it already",
        "event of an unknown type",
        "not an event: no object with a type",
    ]
