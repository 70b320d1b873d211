"""Codex's rollouts become events, from current lines and those of old versions."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.domain.envelope import Draft
from refold.domain.events import (
    AgentError,
    AgentResponse,
    Item,
    ProviderEdit,
    SystemPrompt,
    Thinking,
    ToolCall,
    ToolResult,
    UserInput,
)
from refold.projections.models import answers
from refold.store.session.imports import extend
from tests.importers.samples import CODEX, events, kinds, read_one, reasons, write_lines
from tests.importers.test_atif import recorded


def framed(kind: str, **payload: Any) -> dict[str, Any]:
    return {"timestamp": "2026-01-01T00:00:00Z", "type": kind, "payload": payload}


META = framed("session_meta", id="run-1", cwd="/w")


def test_a_rollout_is_one_session(tmp_path: Path) -> None:
    transcript = read_one(write_lines(tmp_path, CODEX, "rollout-1.jsonl"))

    assert (transcript.session_id, transcript.format) == ("019a-run", "codex")
    assert events(transcript) == [
        SystemPrompt(text="You are Codex."),
        SystemPrompt(
            text="<permissions>on request</permissions>", where="conversation"
        ),
        UserInput(text="Fix it."),
        AgentResponse(
            thinking=(Thinking(thinking="I look first.", data="b3BhcXVl"),),
            usage={
                "input_tokens": 40,
                "output_tokens": 7,
                "cache_read_input_tokens": 60,
            },
        ),
        ToolCall(call_id="c1", tool_name="shell", arguments={"command": ["ls"]}),
        ToolResult(
            call_id="c1",
            tool_name="shell",
            content='{"output":"no","metadata":{"exit_code":1,"duration_seconds":0.5}}',
            status="error",
            duration_ms=500,
        ),
        Item(
            format="codex",
            kind="token_count",
            value={"input_tokens": 100, "cached_input_tokens": 60, "output_tokens": 7},
        ),
        ToolCall(call_id="c2", tool_name="apply_patch", arguments="*** Begin Patch"),
        ToolResult(call_id="c2", tool_name="apply_patch", content="Done!"),
        ProviderEdit(edits=({"type": "compacted", "message": "So far: fixed."},)),
        UserInput(text="So far: fixed."),
        ProviderEdit(reason="compaction"),
        AgentResponse(text="Fixed."),
        AgentError(code="turn_aborted", message="interrupted", where="codex"),
    ]
    injected = transcript.drafts[1].meta.source
    assert injected is not None
    assert injected["meta"] is True
    assert transcript.drafts[3].meta.model == "gpt-5-codex"


def test_repeated_entries_are_imported_once(tmp_path: Path) -> None:
    transcript = read_one(write_lines(tmp_path, CODEX, "rollout-1.jsonl"))

    assert reasons(transcript) == {}


def test_tokens_of_an_answer_count_once(tmp_path: Path) -> None:
    (answer,) = answers(recorded(read_one(write_lines(tmp_path, CODEX)).drafts))

    assert (answer.usage.input, answer.usage.read, answer.usage.output) == (40, 60, 7)
    assert answer.model == "gpt-5-codex"


def test_an_import_of_an_earlier_version_is_continued_without_late_reasoning(
    tmp_path: Path,
) -> None:
    text = [{"type": "summary_text", "text": "I think."}]
    readable = {"type": "reasoning", "summary": text, "encrypted_content": "b3BhcXVl"}
    encrypted = {"type": "reasoning", "summary": [], "encrypted_content": "c2VhbGVk"}
    question = {"type": "input_text", "text": "Why?"}
    answer = {"type": "output_text", "text": "So."}
    lines = [
        META,
        framed("response_item", type="message", role="user", content=[question]),
        framed("response_item", **readable),
        framed("response_item", **encrypted),
        framed("response_item", type="message", role="assistant", content=[answer]),
    ]
    transcript = read_one(write_lines(tmp_path, lines))
    earlier: list[Draft] = []
    for draft in transcript.drafts:
        event = draft.event
        if isinstance(event, AgentResponse) and event.thinking:
            (block,) = event.thinking
            if block.thinking is None:
                continue
            thinking = (block.model_copy(update={"data": None}),)
            event = event.model_copy(update={"thinking": thinking})
        earlier.append(replace(draft, event=event))

    with refold.open("memory://") as store:
        session = store.session(user_id="ada", session_id="run-1")
        extend(session, earlier, where="rollout", merges=True)
        extended = extend(session, transcript.drafts, where="rollout", merges=True)

        assert len(earlier) == len(transcript.drafts) - 1
        assert extended.events == 0


def test_items_of_one_answer_have_one_id(tmp_path: Path) -> None:
    call = {"type": "function_call", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "output": "done"}
    count = {"total_token_usage": {"total_tokens": 9}, "last_token_usage": {}}
    lines = [
        META,
        framed("response_item", type="reasoning", encrypted_content="b3BhcXVl"),
        framed("response_item", call_id="c1", **call),
        framed("event_msg", type="item_completed", item={"type": "Reasoning"}),
        framed("response_item", call_id="c2", **call),
        framed("response_item", call_id="c1", **output),
        framed("response_item", call_id="c2", **output),
        framed("response_item", call_id="c3", **call),
        framed("event_msg", type="token_count", info=count),
        framed("response_item", type="reasoning", encrypted_content="c2VhbGVk"),
    ]

    transcript = read_one(write_lines(tmp_path, lines))

    ids: list[str | None] = []
    for draft in transcript.drafts:
        if isinstance(draft.event, AgentResponse | ToolCall):
            ids.append(draft.meta.response_id)
    first, second, third, fourth, fifth = ids
    assert first == second == third
    assert len({first, fourth, fifth}) == 3


def test_lines_without_a_frame_are_read(tmp_path: Path) -> None:
    lines = [
        {
            "id": "old-1",
            "timestamp": "2025-05-01T00:00:00Z",
            "instructions": "Be kind.",
        },
        {"record_type": "state"},
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "Hi."}],
        },
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "c",
            "output": {"content": "no", "success": False},
        },
    ]

    transcript = read_one(write_lines(tmp_path, lines))

    assert transcript.session_id == "old-1"
    assert kinds(transcript) == ["system", "user_input", "tool_call", "tool_result"]
    result = events(transcript)[-1]
    assert isinstance(result, ToolResult)
    assert (result.content, result.status) == ("no", "error")


def test_a_sub_agents_rollout_belongs_to_its_session(tmp_path: Path) -> None:
    spawned = {"thread_spawn": {"parent_thread_id": "main", "depth": 1}}
    meta = framed("session_meta", id="child", source={"subagent": spawned})
    user_message = framed(
        "response_item", type="message", role="user", content="Do it."
    )

    transcript = read_one(write_lines(tmp_path, [meta, user_message]))

    assert transcript.session_id == "main~child"
    assert transcript.parent_session_id == "main"


def test_a_sub_agent_with_its_parents_history_has_its_own_title(
    tmp_path: Path,
) -> None:
    spawned = {"thread_spawn": {"parent_thread_id": "main", "depth": 1}}
    meta = framed("session_meta", id="child", source={"subagent": spawned})
    name = {"type": "thread_name_updated", "thread_id": "main", "thread_name": "Tea"}
    task = "Count the cups.\nAll of them."
    call = {
        "type": "function_call",
        "call_id": "c",
        "name": "spawn_agent",
        "arguments": json.dumps({"message": task, "fork_context": True}),
    }
    lines = [
        meta,
        framed("session_meta", id="main"),
        framed("response_item", **user_item("Make some tea.")),
        framed("event_msg", **name),
        framed("response_item", **call),
        framed("response_item", **user_item(task)),
        framed("response_item", **user_item("And the pots.")),
    ]

    transcript = read_one(write_lines(tmp_path, lines))
    parent = read_one(write_lines(tmp_path, lines[1:4], "parent.jsonl"))

    assert transcript.title == "Count the cups. All of them."
    assert parent.title == "Tea"


def user_item(text: str) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "role": "user", "content": content}


def test_provider_blocks_stay_unchanged(tmp_path: Path) -> None:
    search = {
        "type": "web_search_call",
        "action": {"query": "x"},
        "status": "completed",
    }
    opaque = {"type": "compaction", "encrypted_content": "b3BhcXVl"}
    lines = [META, framed("response_item", **search), framed("response_item", **opaque)]

    transcript = read_one(write_lines(tmp_path, lines))

    assert events(transcript) == [
        ProviderEdit(blocks=(search,)),
        ProviderEdit(blocks=(opaque,)),
    ]


def test_other_records_are_reported_as_left_out(tmp_path: Path) -> None:
    lines = [
        META,
        framed("event_msg", type="task_started"),
        framed("response_item", type="ghost_snapshot"),
        framed("world_state", files=3),
        *CODEX[1:],
    ]

    transcript = read_one(write_lines(tmp_path, lines, "r.jsonl"))

    assert dict(list(reasons(transcript).items())[:3]) == {
        "r.jsonl line 2": "record of the client, no message",
        "r.jsonl line 3": "item without a text: ghost_snapshot",
        "r.jsonl line 4": "record of the client, no message",
    }


def call_and_output(call_id: str, output: Any) -> list[dict[str, Any]]:
    about = {"call_id": call_id, "name": "exec_command", "arguments": "{}"}
    return [
        framed("response_item", type="function_call", **about),
        framed(
            "response_item",
            type="function_call_output",
            call_id=call_id,
            output=output,
        ),
    ]


def test_a_command_that_failed_is_an_error(tmp_path: Path) -> None:
    head = (
        "Chunk ID: 5a\nWall time: 0.05 seconds\nProcess exited with code {}\nOutput:\n"
    )
    printed = "Wall time: 1 seconds\nOutput:\nProcess exited with code 3\n"
    lines = [
        META,
        *call_and_output("c1", head.format(3) + "no such file"),
        *call_and_output("c2", head.format(0) + "Process exited with code 3"),
        *call_and_output("c3", printed),
        *call_and_output(
            "c4", "Exit code: 127\nWall time: 0.1 seconds\nOutput:\nnot found"
        ),
        *call_and_output("c5", "Process exited with code 3"),
    ]

    transcript = read_one(write_lines(tmp_path, lines))

    results = [
        result for result in events(transcript) if isinstance(result, ToolResult)
    ]
    statuses = [result.status for result in results]
    assert statuses == ["error", "ok", "ok", "error", "ok"]


def test_a_turn_that_failed_leaves_an_error(tmp_path: Path) -> None:
    failure = {"message": "unexpected status 500 Internal Server Error"}
    lines = [
        META,
        framed("event_msg", type="task_complete", turn_id="t", error=failure),
        framed("event_msg", type="task_complete", turn_id="u", error="no more credit"),
        framed("event_msg", type="task_complete", turn_id="v"),
    ]

    transcript = read_one(write_lines(tmp_path, lines))

    first, second = events(transcript)
    assert isinstance(first, AgentError)
    assert (first.code, first.message) == ("task_failed", failure["message"])
    assert (first.context, first.retryable) == ({"status": 500}, True)
    assert isinstance(second, AgentError)
    assert (second.message, second.retryable) == ("no more credit", False)
    assert len(transcript.skipped) == 1


def test_text_of_the_client_in_the_users_name_is_marked(tmp_path: Path) -> None:
    def user_text(text: str) -> dict[str, Any]:
        content = [{"type": "input_text", "text": text}]
        return framed("response_item", type="message", role="user", content=content)

    lines = [
        META,
        user_text("<environment_context>\n<cwd>/w</cwd>"),
        user_text("Fix it."),
    ]

    transcript = read_one(write_lines(tmp_path, lines))

    context, question = (draft.meta.source or {} for draft in transcript.drafts)
    assert (context["meta"], context["context"]) == (True, "environment_context")
    assert "meta" not in question


def model_said(text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text}]
    return framed("response_item", type="message", role="assistant", content=content)


def client_said(role: str, text: str) -> dict[str, Any]:
    content = [{"type": "input_text", "text": text}]
    return framed("response_item", type="message", role=role, content=content)


def spent(total: int, input_tokens: int, output_tokens: int) -> dict[str, Any]:
    last = {
        "input_tokens": input_tokens,
        "cached_input_tokens": 0,
        "output_tokens": output_tokens,
    }
    info = {"total_token_usage": {"total_tokens": total}, "last_token_usage": last}
    return framed("event_msg", type="token_count", info=info)


def test_tokens_are_on_the_response_that_they_are_of(tmp_path: Path) -> None:
    call = call_and_output("c1", "Exit code: 0\nOutput:\n")
    lines = [
        META,
        client_said("user", "Go."),
        model_said("I look."),
        call[0],
        spent(12, 10, 2),
        call[1],
        model_said("Done."),
        spent(12, 10, 2),
        spent(35, 20, 3),
    ]

    drafts = read_one(write_lines(tmp_path, lines)).drafts

    responses = [
        draft.event for draft in drafts if isinstance(draft.event, AgentResponse)
    ]
    assert [
        response.usage and response.usage["output_tokens"] for response in responses
    ] == [2, 3]
    assert [draft.meta.usage for draft in drafts] == [None] * len(drafts)
    counted = answers(recorded(drafts))
    assert [(answer.usage.input, answer.usage.output) for answer in counted] == [
        (10, 2),
        (20, 3),
    ]


def test_a_response_without_text_has_its_tokens_on_its_first_call(
    tmp_path: Path,
) -> None:
    lines = [META, *call_and_output("c1", "ok"), spent(12, 10, 2)]

    drafts = read_one(write_lines(tmp_path, lines)).drafts

    call = next(draft for draft in drafts if isinstance(draft.event, ToolCall))
    assert call.meta.usage is not None
    assert call.meta.usage["output_tokens"] == 2
    assert len(answers(recorded(drafts))) == 1


@pytest.mark.parametrize("cut", range(1, len(CODEX)))
def test_tokens_count_once_whenever_a_file_was_imported_first(
    tmp_path: Path, cut: int
) -> None:
    young = read_one(write_lines(tmp_path, CODEX[:cut], "young.jsonl")).drafts
    grown = read_one(write_lines(tmp_path, CODEX, "grown.jsonl")).drafts

    with refold.open("memory://") as store:
        session = store.session(user_id="ada", session_id="019a-run")
        for drafts in (young, grown, grown):
            extend(session, drafts, where="a.jsonl")
        (answer,) = answers(session.history.pages())
        (at_once,) = answers(recorded(grown))

    assert answer.usage == at_once.usage


def test_developer_messages_are_shown_where_codex_sent_them(tmp_path: Path) -> None:
    base = {"text": "You are Codex."}
    lines = [
        framed("session_meta", id="run-1", base_instructions=base),
        client_said("developer", "Ask first."),
        client_said("user", "Go."),
        client_said("developer", "Plan."),
        client_said("developer", "Ask first."),
    ]
    path = write_lines(tmp_path, lines, "r.jsonl")

    transcript = read_one(path)

    assert events(transcript) == [
        SystemPrompt(text="You are Codex."),
        SystemPrompt(text="Ask first.", where="conversation"),
        UserInput(text="Go."),
        SystemPrompt(text="Plan.", where="conversation"),
        SystemPrompt(text="Ask first.", where="conversation"),
    ]
    source = transcript.drafts[1].meta.source or {}
    assert (source["meta"], source["role"]) == (True, "developer")
    assert reasons(transcript) == {}
