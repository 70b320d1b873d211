"""Tasks of Cline and Roo Code: texts of the user's messages are results of calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import refold
from refold.domain.events import AgentResponse, HumanReview, ToolResult
from tests.importers.agent_samples import CLINE, write_cline
from tests.importers.samples import events, kinds, read_one, refusal, write_document


def test_a_task(tmp_path: Path) -> None:
    path = write_cline(tmp_path, CLINE)

    transcript = read_one(path)

    assert (transcript.format, transcript.session_id) == ("cline", "1769053680585")
    assert kinds(transcript) == [
        "user_input",
        "agent_response",
        "tool_call",
        "tool_call",
        "tool_result",
        "tool_result",
        "user_input",
        "agent_response",
    ]
    results = [e for e in events(transcript) if isinstance(e, ToolResult)]
    assert [(r.call_id, r.content, r.status) for r in results] == [
        ("c1", "using System;", "ok"),
        (
            "c2",
            "Tool [read_file] was not executed: a tool has been used.",
            "error",
        ),
    ]
    assert (transcript.drafts[6].meta.source or {})["meta"] is True
    assert transcript.drafts[1].meta.model == "claude-opus-4-5"


def test_the_tokens_of_the_cache_are_those_of_the_request(tmp_path: Path) -> None:
    path = write_cline(tmp_path, CLINE)
    request = {"tokensIn": 10, "tokensOut": 814, "cacheWrites": 8000, "cacheReads": 972}
    started = {"type": "say", "say": "api_req_started", "text": json.dumps(request)}
    without = events(read_one(path))[1]
    (path.parent / "ui_messages.json").write_text(json.dumps([started]))

    answer = events(read_one(path))[1]

    assert isinstance(without, AgentResponse)
    assert without.usage == {
        "input_tokens": 10,
        "output_tokens": 814,
        "cache_read_input_tokens": 8972,
        "cache_creation_input_tokens": 0,
    }
    assert isinstance(answer, AgentResponse)
    assert answer.usage == {
        "input_tokens": 10,
        "output_tokens": 814,
        "cache_read_input_tokens": 972,
        "cache_creation_input_tokens": 8000,
    }


def test_a_heading_and_its_content_may_be_two_texts(tmp_path: Path) -> None:
    content = [
        {"type": "text", "text": "[read_file for 'a.cs'] Result:"},
        {"type": "text", "text": "using System;"},
    ]
    lines: list[dict[str, Any]] = [*CLINE[:2], {"role": "user", "content": content}]
    path = write_cline(tmp_path, lines)

    result = events(read_one(path))[-1]

    assert isinstance(result, ToolResult)
    assert result.content == "using System;"


def test_a_tool_with_another_name_answers_the_only_call(tmp_path: Path) -> None:
    call = {"type": "tool_use", "id": "c9", "name": "use_subagents", "input": {}}
    text = {"type": "text", "text": "[subagents] Result:\nAll done."}
    path = write_cline(
        tmp_path,
        [
            CLINE[0],
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [text]},
        ],
    )

    result = events(read_one(path))[-1]

    assert isinstance(result, ToolResult)
    assert (result.call_id, result.content) == ("c9", "All done.")


def test_answers_and_refusals_of_the_user_are_decisions(tmp_path: Path) -> None:
    def asked(call_id: str, name: str, text: str) -> list[dict[str, Any]]:
        call = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
        return [
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [{"type": "text", "text": text}]},
        ]

    heading = "[ask_followup_question for 'Which?\n\n[a] or [b]?'] Result:\n"
    path = write_cline(
        tmp_path,
        [
            CLINE[0],
            *asked(
                "c1",
                "ask_followup_question",
                f"{heading}<answer>\nThe first\n</answer>",
            ),
            *asked(
                "c2",
                "execute_command",
                "[execute_command for 'rm a'] Result:\nThe user denied this operation.",
            ),
        ],
    )

    transcript = read_one(path)

    reviews = [e for e in events(transcript) if isinstance(e, HumanReview)]
    assert [(r.trigger, r.decision, r.bundle) for r in reviews] == [
        ("question", "The first", {"call_id": "c1"}),
        ("tool_approval", "rejected", {"call_id": "c2"}),
    ]
    assert kinds(transcript).count("tool_result") == 2


def test_a_task_is_imported_once_and_grows(tmp_path: Path) -> None:
    with refold.open("memory://") as store:
        (first,) = store.import_transcript(
            write_cline(tmp_path, CLINE[:3]), user_id="a"
        )
        (second,) = store.import_transcript(write_cline(tmp_path, CLINE), user_id="a")
        (again,) = store.import_transcript(write_cline(tmp_path, CLINE), user_id="a")

    assert [first.events, second.events, again.events] == [7, 1, 0]


def test_a_file_of_another_name_needs_the_format(tmp_path: Path) -> None:
    path = write_document(tmp_path, CLINE)

    assert read_one(path).format == "anthropic"
    assert read_one(path, "cline").format == "cline"
    assert "is no list of messages" in refusal(
        write_document(tmp_path, {"a": 1}), "cline"
    )
