"""The database of ``llm`` becomes sessions, in the layouts of all its versions."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.adapters import importers
from refold.adapters.importers import llm
from refold.domain.events import (
    AgentResponse,
    SystemPrompt,
    ToolCall,
    ToolResult,
    UserInput,
)
from tests.importers.export_samples import LLM, Rows, llm_thread, write_llm
from tests.importers.samples import (
    accepted,
    events,
    kinds,
    read_one,
    refusal,
    texts_shown,
)


def response(number: int, **more: Any) -> dict[str, Any]:
    return {
        "id": f"r{number}",
        "model": "gpt-4o",
        "prompt": f"Prompt {number}",
        "response": f"Answer {number}",
        "conversation_id": "c-1",
        "duration_ms": 500,
        "datetime_utc": f"2026-02-03T04:05:{number:02}+00:00",
        "input_tokens": 11,
        "output_tokens": 7,
        **more,
    }


def of_responses(*rows: dict[str, Any], **more: Any) -> Rows:
    named = {"id": "c-1", "name": "Prompt 1", "model": "gpt-4o"}
    return {"conversations": [named], "responses": list(rows), **more}


def test_a_thread_becomes_a_session(tmp_path: Path) -> None:
    transcript = read_one(write_llm(tmp_path / "logs.db", LLM))

    assert (transcript.format, transcript.session_id) == ("llm", "thread-1")
    assert transcript.title == "Doubling"
    assert events(transcript) == [
        SystemPrompt(text="Be brief."),
        UserInput(text="Double 4."),
        AgentResponse(
            thinking=({"type": "thinking", "thinking": "A tool can."},),
            usage={"input_tokens": 11, "output_tokens": 7},
        ),
        ToolCall(call_id="tc1", tool_name="double", arguments={"n": 4}),
        ToolResult(call_id="tc1", tool_name="double", content="8"),
        AgentResponse(text="Eight.", usage={"input_tokens": 11, "output_tokens": 7}),
    ]
    answer = transcript.drafts[-1]
    assert answer.meta.model == "gpt-5"
    assert str(answer.ts) == "2026-11-27 01:56:05.500000+00:00"
    assert accepted(transcript.drafts)


def test_rows_of_responses_become_a_session(tmp_path: Path) -> None:
    rows = of_responses(
        response(1, system="Be brief.", options_json='{"temperature": 0}'),
        response(2, system="Be brief.", schema_id="s-1"),
        schemas=[{"id": "s-1", "content": '{"type": "object"}'}],
    )

    transcript = read_one(write_llm(tmp_path / "logs.db", rows, threads=False))

    assert transcript.session_id == "c-1"
    assert kinds(transcript) == [
        "system",
        "user_input",
        "agent_response",
        "user_input",
        "agent_response",
    ]
    first = transcript.drafts[2]
    second = transcript.drafts[4]
    assert (first.meta.source or {})["options_json"] == {"temperature": 0}
    assert (second.meta.source or {})["schema"] == {"type": "object"}
    assert first.meta.response_id == "r1"


def test_fragments_and_files_belong_to_the_input(tmp_path: Path) -> None:
    rows = of_responses(
        response(1),
        fragments=[{"id": 1, "content": "Piece"}, {"id": 2, "content": "System"}],
        prompt_fragments=[{"response_id": "r1", "fragment_id": 1, "order": 0}],
        system_fragments=[{"response_id": "r1", "fragment_id": 2, "order": 0}],
        attachments=[
            {"id": "a1", "type": "image/png", "content": b"\x89PNG"},
            {"id": "a2", "type": "image/png", "path": "/home/ada/cat.png"},
        ],
        prompt_attachments=[
            {"response_id": "r1", "attachment_id": "a2", "order": 1},
            {"response_id": "r1", "attachment_id": "a1", "order": 0},
        ],
    )

    system, asked, _ = events(read_one(write_llm(tmp_path / "logs.db", rows)))

    assert system == SystemPrompt(text="System")
    assert isinstance(asked, UserInput)
    assert asked.text == "Piece\nPrompt 1"
    first, second = asked.attachments
    assert first.data == "iVBORw=="
    assert (second.name, second.url) == ("cat.png", "file:/home/ada/cat.png")


def test_parallel_calls_and_their_results_are_in_order(tmp_path: Path) -> None:
    call = {"response_id": "r1", "name": "double"}
    result = {"response_id": "r2", "name": "double"}
    rows = of_responses(
        response(1, response=""),
        response(2, prompt=""),
        tool_calls=[
            {**call, "id": 1, "arguments": '{"n": 2}', "tool_call_id": "t1"},
            {**call, "id": 2, "arguments": '{"n": 3}', "tool_call_id": None},
        ],
        tool_results=[
            {**result, "id": 1, "output": "4", "tool_call_id": "t1"},
            {**result, "id": 2, "output": "", "exception": "ValueError: no"},
        ],
    )

    transcript = read_one(write_llm(tmp_path / "logs.db", rows))

    assert kinds(transcript) == [
        "user_input",
        "tool_call",
        "tool_call",
        "tool_result",
        "tool_result",
        "agent_response",
    ]
    failed = events(transcript)[4]
    assert isinstance(failed, ToolResult)
    assert (failed.status, failed.content) == ("error", "ValueError: no")
    assert transcript.drafts[1].meta.usage == {"input_tokens": 11, "output_tokens": 7}


def test_a_migrated_conversation_goes_on_as_a_thread(tmp_path: Path) -> None:
    """The first turn of the thread is given the messages of the older tables."""
    text = {"type": "text"}
    thread = llm_thread(
        ("user", [{**text, "text": "Prompt 1"}]),
        ("assistant", [{**text, "text": "Answer 1"}]),
        ("user", [{**text, "text": "Prompt 2"}]),
        ("assistant", [{**text, "text": "Answer 2"}]),
    )
    thread["turns"] = thread["turns"][1:]
    rows = of_responses(response(1, conversation_id="thread-1")) | thread

    transcript = read_one(write_llm(tmp_path / "logs.db", rows))

    texts = [event.text for event in events(transcript) if hasattr(event, "text")]
    assert texts == ["Prompt 1", "Answer 1", "Prompt 2", "Answer 2"]


def test_a_text_of_fragments_is_put_together(tmp_path: Path) -> None:
    reference = {"type": "text", "text_ref": [{"fragment": 1}, {"literal": "!"}]}
    rows = llm_thread(("user", [reference]), ("assistant", [{"type": "text"}]))
    rows["fragments"] = [{"id": 1, "content": "Long"}]

    transcript = read_one(write_llm(tmp_path / "logs.db", rows))

    assert events(transcript)[0] == UserInput(text="Long!")


def test_the_branch_of_the_tip_is_in_force(tmp_path: Path) -> None:
    text = {"type": "text"}
    rows = llm_thread(
        ("user", [{**text, "text": "Question"}]),
        ("assistant", [{**text, "text": "First"}]),
        ("assistant", [{**text, "text": "Second"}]),
    )
    rows["messages"][2]["parent_hash"] = "b2:0001"
    rows["threads"][0]["tip_message_hash"] = "b2:0002"
    path = write_llm(tmp_path / "logs.db", rows)
    with refold.open("memory://") as store:
        store.import_transcript(path, user_id="ada")
        (again,) = store.import_transcript(path, user_id="ada")

        assert again.events == 0
        assert texts_shown(store) == ["Question", "First"]


def test_a_grown_database_adds_only_what_is_new(tmp_path: Path) -> None:
    path = write_llm(tmp_path / "logs.db", of_responses(response(1)))
    with refold.open("memory://") as store:
        store.import_transcript(path, user_id="ada")
        write_llm(path, of_responses(response(1), response(2)))
        (grown,) = store.import_transcript(path, user_id="ada")

        assert grown.events == 2


def test_a_response_without_a_conversation_is_a_session(tmp_path: Path) -> None:
    rows = of_responses(response(1), response(2, conversation_id=None))

    names = [
        transcript.session_id
        for transcript in importers.read(write_llm(tmp_path / "logs.db", rows))
    ]

    assert names == ["c-1", "r2"]


def test_the_last_session_reports_what_is_left_out(tmp_path: Path) -> None:
    rows = of_responses(
        response(1, prompt_json="{}"),
        tools=[{"id": 1, "name": "double", "description": "Doubles."}],
    )

    transcript = read_one(write_llm(tmp_path / "logs.db", rows))

    assert [skipped.why for skipped in transcript.skipped] == [
        "raw requests and responses of the providers",
        "descriptions of the tools that were offered",
    ]


COLUMNS = [(table, name) for table, names in llm._COLUMNS.items() for name in names]


@pytest.mark.parametrize(("table", "column"), COLUMNS, ids=lambda name: name)
def test_a_database_without_a_column_is_refused(
    tmp_path: Path, table: str, column: str
) -> None:
    path = write_llm(tmp_path / "logs.db", LLM)
    with closing(sqlite3.connect(path)) as database:
        database.execute(f'ALTER TABLE {table} RENAME COLUMN "{column}" TO other')

    assert f"unknown version of llm: {table}.{column} is missing" in refusal(path)
