"""An export has the fields by which the client finds, orders and sends its entries."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest

from refold.adapters import exporters
from refold.adapters.exporters import base, claude_code, codex
from refold.domain.events import (
    AgentResponse,
    SystemPrompt,
    ToolCall,
    ToolResult,
    UserInput,
)
from tests.exporters.exporting import TARGET, view_of, written
from tests.projections.logs import PIXEL, SIGNED, log_of

ID = UUID("5c0f3f6e-7a0b-4a53-9a58-0d5f8d1f2a11")
FOLDERS = ("tmp", "resume")
RUN = log_of(
    SystemPrompt(text="You are an agent."),
    UserInput(text="Fix it."),
    (
        AgentResponse(text="I look.", thinking=(SIGNED,)),
        {"model": "claude-opus-4-5", "response_id": "r1"},
    ),
    (
        ToolCall(call_id="c1", tool_name="mcp__" + "x" * 80, arguments={"a": 1}),
        {"response_id": "r1"},
    ),
    (
        ToolCall(call_id="c2", tool_name="apply_patch", arguments="*** Begin"),
        {"response_id": "r1"},
    ),
    ToolResult(call_id="c1", content="no such file", status="error"),
)


def test_entries_of_claude_code_are_one_chain_with_the_origin_in_each() -> None:
    entries = written(view_of(RUN), RUN, "claude-code").values

    uuids = [entry["uuid"] for entry in entries]
    assert [entry["parentUuid"] for entry in entries] == [None, *uuids[:-1]]
    assert {entry["sessionId"] for entry in entries} == {str(TARGET.session_id)}
    assert {entry["cwd"] for entry in entries} == {"/app/project"}
    origin = {"session": "s-1", "seq": 6, "event": str(UUID(int=6))}
    assert all(entry["refold"] == origin for entry in entries)
    answers = [entry["message"] for entry in entries if entry["type"] == "assistant"]
    assert {answer["model"] for answer in answers} == {"claude-opus-4-5"}
    assert len({answer["id"] for answer in answers}) == 1


def test_thinking_stays_signed_in_claude_code_and_is_counted_elsewhere() -> None:
    view = view_of(RUN)

    claude = written(view, RUN, "claude-code")
    others = {form: written(view, RUN, form) for form in ("codex", "openai", "gemini")}

    assert "c2lnbmVk" in json.dumps(claude.values)
    assert "blocks of thinking" not in claude.left_out
    for form, export in others.items():
        assert "c2lnbmVk" not in json.dumps(export.values), form
        assert export.left_out["blocks of thinking"] == 1, form


@pytest.mark.parametrize("form", exporters.FORMS)
def test_a_call_without_a_result_is_closed(form: str) -> None:
    view = view_of(RUN)

    text = json.dumps(written(view, RUN, form).values)

    assert "No result of this call has been recorded yet." in text


def test_calls_of_other_clients_are_calls_that_the_api_of_codex_takes() -> None:
    lines = written(view_of(RUN), RUN, "codex").values

    items = [line["payload"] for line in lines if line["type"] == "response_item"]
    calls = {item["call_id"]: item for item in items if item["type"].endswith("call")}
    assert len(calls["c1"]["name"]) == 64
    assert json.loads(calls["c1"]["arguments"]) == {"a": 1}
    assert calls["c2"]["type"] == "custom_tool_call"
    assert calls["c2"]["input"] == "*** Begin"
    results = [item["type"] for item in items if item["type"].endswith("output")]
    assert results == ["function_call_output", "custom_tool_call_output"]


def test_codex_gets_a_system_prompt_only_if_it_is_its_own() -> None:
    own = log_of(
        (SystemPrompt(text="You are Codex."), {"source": {"format": "codex"}}),
        UserInput(text="Fix it."),
    )

    of_codex = written(view_of(own), own, "codex")
    of_others = written(view_of(RUN), RUN, "codex")

    about = of_codex.values[0]["payload"]
    assert about["base_instructions"] == {"text": "You are Codex."}
    assert "base_instructions" not in of_others.values[0]["payload"]
    assert of_others.left_out["system prompts"] == 1


def test_a_session_of_gemini_has_the_results_in_its_answers() -> None:
    record, question, answer = written(view_of(RUN), RUN, "gemini").values

    assert record["sessionId"] == str(TARGET.session_id)
    assert question["content"] == [{"text": "Fix it."}]
    first, second = answer["toolCalls"]
    (result,) = first["result"]
    assert first["status"] == "error"
    assert result["functionResponse"]["response"] == {"error": "no such file"}
    assert second["args"] == {"arguments": "*** Begin"}


def test_a_message_that_gemini_would_drop_gets_words_before_it() -> None:
    events = log_of(UserInput(text="/home/ada/a.py fails"))

    _, question = written(view_of(events), events, "gemini").values

    assert question["content"] == [{"text": "(The user:)\n/home/ada/a.py fails"}]


def test_images_of_results_follow_them_in_chat_messages_of_openai() -> None:
    image = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": PIXEL},
    }
    events = log_of(
        UserInput(text="Look."),
        ToolCall(call_id="c1", tool_name="look", arguments={}),
        ToolResult(call_id="c1", content=[image]),
    )

    (request,) = written(view_of(events), events, "openai").values

    roles = [message["role"] for message in request["messages"]]
    assert roles == ["user", "assistant", "tool", "user"]
    (shown,) = request["messages"][-1]["content"]
    assert shown["image_url"]["url"] == f"data:image/png;base64,{PIXEL}"


def test_claude_code_finds_the_folder_of_a_project() -> None:
    target = base.Target(ID, Path("/app/my.project_é😀"))

    path = claude_code.place(Path("/home/ada/.claude"), target)

    folder = "-app-my-project----"
    assert path == Path(f"/home/ada/.claude/projects/{folder}/{ID}.jsonl")


def test_a_long_folder_has_the_hash_that_claude_code_appends() -> None:
    parts = [f"long folder é name 😀 {number:02}" for number in range(12)]

    name = claude_code.folder_name("/".join(["", *FOLDERS, *parts]))

    assert len(name) == 207
    assert name.endswith("-hbpneu")  # as version 2.1.332 named it


def test_codex_finds_a_rollout_by_the_day_of_its_time() -> None:
    at = datetime(2026, 3, 4, 12, 30, 5, tzinfo=UTC).astimezone()
    target = base.Target(ID, Path("/app"), at)

    path = codex.place(Path("/home/ada/.codex"), target)

    day = f"{at:%Y/%m/%d}"
    name = f"rollout-{at:%Y-%m-%dT%H-%M-%S}-{ID}.jsonl"
    assert path == Path("/home/ada/.codex/sessions") / day / name
