"""Chat messages in OpenAI's form become events, however a file stores them."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from refold.adapters import importers
from refold.domain.events import (
    AgentResponse,
    SystemPrompt,
    ToolCall,
    ToolResult,
    UserInput,
)
from refold.domain.session import AnswersOfCalls
from refold.projections.context.text import violations
from refold.store.session.imports import extend
from refold.store.session.session import Session
from tests.importers import samples
from tests.importers.samples import (
    events,
    kinds,
    read_one,
    reasons,
    write_document,
    write_lines,
)

WHOLE = [
    SystemPrompt(text="Be brief."),
    UserInput(text="Weather in Oslo?"),
    ToolCall(call_id="c1", tool_name="weather", arguments={"city": "Oslo"}),
    ToolResult(call_id="c1", tool_name="weather", content="4 degrees"),
    AgentResponse(text="Four degrees."),
]


def call(call_id: str | None, name: str, arguments: Any = "{}") -> dict[str, Any]:
    entry = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return entry if call_id is None else {"id": call_id, **entry}


def calling(*calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **more}


def test_a_list_of_messages_is_one_session(tmp_path: Path) -> None:
    transcript = read_one(write_document(tmp_path, samples.OPENAI))

    assert transcript.format == "openai"
    assert transcript.session_id == ""
    assert events(transcript) == WHOLE
    assert transcript.drafts[3].meta.source == {
        "format": "openai",
        "place": "messages[3]",
    }


def test_an_object_with_messages_may_name_its_session(tmp_path: Path) -> None:
    document = {"session_id": "s-9", "model": "gpt", "messages": samples.OPENAI}

    transcript = read_one(write_document(tmp_path, {**document, "tools": [], "n": 1}))

    assert transcript.session_id == "s-9"
    assert events(transcript) == WHOLE
    assert transcript.drafts[2].meta.model == "gpt"
    assert transcript.drafts[1].meta.model is None
    why = reasons(transcript)["file.json"]
    assert why == "fields around the messages: n, tools"


def test_lines_of_messages_are_one_session(tmp_path: Path) -> None:
    transcript = read_one(write_lines(tmp_path, samples.OPENAI))

    assert events(transcript) == WHOLE
    assert (transcript.drafts[3].meta.source or {})["place"] == "line 4"


@pytest.mark.parametrize(
    "wrap", [lambda messages: messages, lambda messages: {"messages": messages}]
)
def test_lines_of_conversations_are_a_session_each(tmp_path: Path, wrap: Any) -> None:
    path = write_lines(tmp_path, [wrap(samples.OPENAI), wrap(samples.OPENAI[:2])])

    first, second = importers.read(path)

    assert events(first) == WHOLE
    assert events(second) == WHOLE[:2]
    assert (second.drafts[1].meta.source or {})["place"] == "line 2 messages[1]"


def test_a_list_of_conversations_is_a_session_each(tmp_path: Path) -> None:
    path = write_document(tmp_path, [{"messages": samples.OPENAI}] * 2)

    assert [events(transcript) for transcript in importers.read(path)] == [WHOLE, WHOLE]


def test_a_file_of_one_line_reads_as_it_will_when_it_has_grown(tmp_path: Path) -> None:
    grown = importers.read(write_lines(tmp_path, [{"messages": samples.OPENAI}] * 2))

    young = importers.read(write_lines(tmp_path, [{"messages": samples.OPENAI}]))

    assert young[0].drafts == grown[0].drafts


@pytest.mark.parametrize(
    ("arguments", "parsed"),
    [
        ('{"a": 1}', {"a": 1}),
        ("[1]", "[1]"),
        ("{oops", "{oops"),
        ("", ""),
        ({"a": 1}, {"a": 1}),
        ([1], "[1]"),
        (None, {}),
    ],
)
def test_arguments_are_parsed_if_they_are_an_object(
    tmp_path: Path, arguments: Any, parsed: Any
) -> None:
    path = write_document(tmp_path, [calling(call("c1", "f", arguments))])

    (event,) = events(read_one(path))

    assert isinstance(event, ToolCall)
    assert event.arguments == parsed


def test_replaces_and_reports_values_that_json_cannot_hold(tmp_path: Path) -> None:
    arguments = '{"n": 123456789012345678901234567890, "x": NaN}'
    path = write_document(tmp_path, [calling(call("c1", "f", arguments))])

    transcript = read_one(path)

    (event,) = events(transcript)
    assert isinstance(event, ToolCall)
    assert event.arguments == {"n": "123456789012345678901234567890", "x": "nan"}
    assert reasons(transcript)["file.json messages[0] tool_calls[0]"].startswith(
        "2 values"
    )


def test_text_and_its_calls_share_a_response(tmp_path: Path) -> None:
    message = calling(call("c1", "f"), call("c2", "g"), content="I look.", name="bot")

    drafts = read_one(write_document(tmp_path, [message])).drafts

    assert [draft.event.type for draft in drafts] == [
        "agent_response",
        "tool_call",
        "tool_call",
    ]
    assert {draft.meta.response_id for draft in drafts} == {"msg:0"}
    assert {draft.agent for draft in drafts} == {"bot"}


def test_functions_without_ids_meet_their_results(tmp_path: Path) -> None:
    messages = [
        {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "one"},
        calling(call(None, "f"), call(None, "g")),
        {"role": "tool", "name": "g", "content": "two"},
        {"role": "tool", "name": "f", "content": "three"},
        {"role": "tool", "name": "f", "content": "whose?"},
    ]

    transcript = read_one(write_document(tmp_path, messages))

    results = [event for event in events(transcript) if isinstance(event, ToolResult)]
    assert [(event.tool_name, event.content) for event in results] == [
        ("f", "one"),
        ("g", "two"),
        ("f", "three"),
    ]
    assert list(reasons(transcript)) == ["file.json messages[5]"]


def test_files_of_a_user_are_attachments(tmp_path: Path) -> None:
    parts = [
        {"type": "text", "text": "See."},
        {"type": "image_url", "image_url": {"url": "https://a.org/x.png"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "input_audio", "input_audio": {"data": "BBBB", "format": "wav"}},
        {"type": "file", "file": {"file_id": "f-1", "filename": "a.pdf"}},
        {"type": "hologram"},
    ]
    path = write_document(tmp_path, [{"role": "user", "content": parts}])

    transcript = read_one(path)

    assert events(transcript) == [
        UserInput(
            text="See.",
            attachments=(
                {"kind": "image", "url": "https://a.org/x.png"},
                {"kind": "image", "media_type": "image/png", "data": "AAAA"},
                {"kind": "file", "media_type": "audio/wav", "data": "BBBB"},
                {"kind": "file", "url": "file:f-1", "name": "a.pdf"},
            ),
        )
    ]
    assert list(reasons(transcript)) == ["file.json messages[0] content[5]"]


def test_a_refusal_and_a_spoken_answer_are_responses(tmp_path: Path) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "assistant", "content": None, "refusal": "No."},
        {"role": "assistant", "content": None, "audio": {"transcript": "Yes."}},
        {"role": "assistant", "content": "So.", "reasoning_content": "Hm."},
    ]

    assert events(read_one(write_document(tmp_path, messages))) == [
        AgentResponse(text="No.", stop_reason="refusal"),
        AgentResponse(text="Yes."),
        AgentResponse(text="So.", thinking=({"type": "thinking", "thinking": "Hm."},)),
    ]


def answer(call_id: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


SAME_ID = [
    {"role": "user", "content": "Weather, and delete it."},
    calling(call("call_0", "weather"), call("call_0", "delete_file")),
    answer("call_0", "sun"),
    answer("call_0", "deleted"),
    {"role": "assistant", "content": "Done."},
    calling(call("call_0", "weather")),
    answer("call_0", "rain"),
]


def test_calls_of_one_id_are_all_imported_with_their_results(tmp_path: Path) -> None:
    transcript = read_one(write_document(tmp_path, SAME_ID))

    calls = [e for e in events(transcript) if isinstance(e, ToolCall)]
    results = [e for e in events(transcript) if isinstance(e, ToolResult)]
    assert [e.tool_name for e in calls] == ["weather", "delete_file", "weather"]
    assert [e.content for e in results] == ["sun", "deleted", "rain"]
    assert [e.call_id for e in results] == [e.call_id for e in calls]
    assert calls[0].call_id != calls[1].call_id
    assert [draft.meta.call_id for draft in transcript.drafts[1:5]] == [
        None, "call_0", None, "call_0"
    ]  # fmt: skip
    assert transcript.skipped == ()


def test_result_is_imported_behind_the_newest_call_with_its_id(tmp_path: Path) -> None:
    messages = [
        SAME_ID[0],
        calling(call("call_0", "sleep")),
        {"role": "user", "content": "Stop."},
        *SAME_ID[1:],
    ]

    transcript = read_one(write_document(tmp_path, messages))

    tools = {e.call_id: e.tool_name for e in events(transcript) if type(e) is ToolCall}
    results = [e for e in events(transcript) if isinstance(e, ToolResult)]
    assert [(tools[e.call_id], e.content) for e in results] == [
        ("weather", "sun"),
        ("delete_file", "deleted"),
        ("weather", "rain"),
    ]
    assert transcript.skipped == ()


def test_calls_of_one_id_are_imported_once(session: Session, tmp_path: Path) -> None:
    done = []
    for upto in (2, 3, 7, 7):
        transcript = read_one(write_document(tmp_path, SAME_ID[:upto]), "openai")
        done.append(extend(session, transcript.drafts, where="x").events)

    assert done == [3, 1, 4, 0]
    assert violations(session.context().messages) == []
    assert session.verify().problems == []


@pytest.mark.parametrize("imported", [2, 4, 5, 6])
def test_file_continues_that_was_imported_when_results_went_to_the_oldest_calls(
    imported: int, session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = [
        calling(call("call_0", "sleep")),
        {"role": "user", "content": "Stop."},
        calling(call("call_0", "weather")),
        answer("call_0", "sun"),
        calling(call("call_0", "date")),
        answer("call_0", "Monday"),
    ]
    with monkeypatch.context() as earlier:
        earlier.setattr(AnswersOfCalls, "in_newest", lambda _, seqs: list(seqs))
        earlier_messages = messages[:imported]
        transcript = read_one(write_document(tmp_path, earlier_messages), "openai")
    extend(session, transcript.drafts, where="x")

    grown = read_one(write_document(tmp_path, messages), "openai")
    extended = extend(session, grown.drafts, where="x")
    repeated = extend(session, grown.drafts, where="x")

    assert (extended.events, extended.skipped) == (len(messages) - imported, ())
    assert (repeated.events, repeated.skipped) == (0, ())
    stored = [envelope.payload for envelope in session.events()]
    assert [e.content for e in stored if isinstance(e, ToolResult)] == ["sun", "Monday"]
    assert violations(session.context().messages) == []


def test_a_call_that_another_message_repeats_is_one_call(tmp_path: Path) -> None:
    messages = [SAME_ID[0], calling(call("c", "f")), calling(call("c", "f"))]

    transcript = read_one(write_document(tmp_path, messages))

    assert kinds(transcript) == ["user_input", "tool_call"]
    assert list(reasons(transcript).values()) == ["repeated tool call"]


def test_skips_values_that_are_no_messages_with_their_place(tmp_path: Path) -> None:
    messages: list[Any] = [
        {"role": "user", "content": "Hello"},
        {"role": "oracle", "content": "secret"},
        {"role": "user", "content": 7},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": ""},
        {"role": "system", "content": {"secret": 1}},
        {"role": "tool", "content": "secret"},
        calling(call("c1", "f"), call("c3", "")),
        {"role": "assistant", "content": {"secret": 1}, "tool_calls": {"secret": 1}},
        "secret",
    ]

    transcript = read_one(write_document(tmp_path, {"messages": messages}), "openai")

    assert kinds(transcript) == ["user_input", "tool_call"]
    assert list(reasons(transcript)) == [
        *(f"file.json messages[{index}]" for index in range(1, 7)),
        "file.json messages[7] tool_calls[1]",
        "file.json messages[8]",
        "file.json messages[8] tool_calls",
        "file.json messages[9]",
    ]
    assert "secret" not in str(transcript.skipped)


@pytest.mark.parametrize(
    ("written", "when"),
    [
        ("2026-01-02T03:04:05+02:00", datetime(2026, 1, 2, 1, 4, 5, tzinfo=UTC)),
        ("2026-01-02 03:04:05", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        (1_767_323_045, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        (1_767_323_045_000, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("yesterday", None),
        ("0001-01-01T00:00:00+23:00", None),
        (10**18, None),
        (True, None),
        (None, None),
    ],
)
def test_a_time_in_any_zone_becomes_utc(
    tmp_path: Path, written: Any, when: datetime | None
) -> None:
    message = {"role": "user", "content": "Hello", "timestamp": written}

    (draft,) = read_one(write_document(tmp_path, [message])).drafts

    assert draft.ts == when
