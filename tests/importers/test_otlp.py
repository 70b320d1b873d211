"""OpenTelemetry's GenAI spans, exported and imported: their contents survive."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.adapters.importers.otlp import traces
from refold.domain.errors import ImportFailed
from refold.domain.events import (
    AgentResponse,
    Event,
    SystemPrompt,
    Thinking,
    ToolCall,
    ToolResult,
    UserInput,
)
from refold.store import Session, SessionStore
from tests.cli.conftest import SAMPLE as RUN
from tests.importers import samples
from tests.importers.samples import OTLP, events, read_one, span, spans, write_document

# Fields that the conventions lack: they name only a few reasons, and the span of a call
# is as long as its caller measured.
LOST = {"stop_reason", "duration_ms", "usage"}
# The same for a block of thinking, which only its provider can decrypt.
LOST_OF_THINKING = {"data"}


@pytest.fixture
def store() -> SessionStore:
    return refold.open("memory://")


def session(store: SessionStore, user: str = "ada", name: str = "s") -> Session:
    return store.session(user_id=user, session_id=name)


def exported(recorded: Session, *, content: bool = True) -> list[Any]:
    return [*traces(recorded.history.timeline(), recorded.session_id, content=content)]


def payloads(recorded: Session) -> list[tuple[str, Any]]:
    found = []
    for envelope in recorded.events():
        payload: dict[str, Any] = envelope.payload.payload()
        if "thinking" in payload:
            payload["thinking"] = [
                without(block, LOST_OF_THINKING) for block in payload["thinking"]
            ]
        found.append((envelope.type, without(payload, LOST)))
    return found


def without(fields: dict[str, Any], lost: set[str]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in lost}


def spans_of(requests: list[Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    for request in requests:
        for span_ in request["resourceSpans"][0]["scopeSpans"][0]["spans"]:
            pairs = {a["key"]: a["value"] for a in span_["attributes"]}
            yield (
                span_,
                {key: next(iter(value.values())) for key, value in pairs.items()},
            )


@pytest.mark.parametrize(
    "form", ["claude-code", "codex", "openai", "tau-bench", "letta", "refold", "run"]
)
def test_an_export_read_back_gives_the_same_events(
    store: SessionStore, tmp_path: Path, form: str
) -> None:
    path = RUN if form == "run" else samples.write_sample(tmp_path, form)
    for imported in store.import_transcript(path, user_id="ada"):
        ours = session(store, name=imported.session_id)
        lines = tmp_path / "traces.jsonl"
        lines.write_text("".join(f"{json.dumps(trace)}\n" for trace in exported(ours)))

        store.import_transcript(lines, user_id="eve", format="otlp")

        theirs = session(store, "eve", imported.session_id)
        assert payloads(theirs) == payloads(ours)


def test_a_session_with_requests_is_read_back_and_verifies(
    store: SessionStore, tmp_path: Path
) -> None:
    ours = session(store)
    for number in range(3):
        ours.append(UserInput(text=f"Question {number}"))
        ours.record_request(ours.prepare("turn_window:full_turns=1,cached_turns=1"))
        ours.append(
            [AgentResponse(text="I look."), ToolCall(call_id="c", tool_name="t")]
        )
        ours.append(ToolResult(call_id="c", content="found"))
        ours.record_request(ours.prepare("turn_window:full_turns=1,cached_turns=1"))
        ours.append(AgentResponse(text=f"Answer {number}"))
    lines = tmp_path / "traces.jsonl"
    lines.write_text("".join(f"{json.dumps(trace)}\n" for trace in exported(ours)))

    store.import_transcript(lines, user_id="eve", format="otlp")

    theirs = session(store, "eve")
    types = [event.type for event in theirs.events()]
    assert types.count("item") == 6
    assert types.count("user_input") == 3
    assert "request" not in types
    assert ours.verify().problems == theirs.verify().problems == []
    assert theirs.proofs.rerun().recorded_requests == 0


def test_a_turn_is_a_trace_and_a_second_export_is_the_same(store: SessionStore) -> None:
    recorded = session(store)
    recorded.append([UserInput(text="a"), AgentResponse(text="b"), UserInput(text="c")])
    call = ToolCall(call_id="c1", tool_name="ls", arguments={"path": "/"})
    recorded.append([call, UserInput(text="d")])  # while the tool works
    before = exported(recorded)

    recorded.append(
        [ToolResult(call_id="c1", content={"n": 1}), AgentResponse(text="e")]
    )
    recorded.append(UserInput(text="f"))
    after = exported(recorded)

    assert (len(before), len(after)) == (2, 3)
    assert after[0] == before[0]
    ids = [{(s["traceId"], s["spanId"]) for s, _ in spans_of([r])} for r in after]
    assert len({trace for part in ids for trace, _ in part}) == 3
    assert {(s["traceId"], s["spanId"]) for s, _ in spans_of([before[1]])} <= ids[1]
    names = [[s["name"] for s, _ in spans_of([request])] for request in after]
    assert names[1] == ["invoke_agent", "chat", "execute_tool ls", "chat"]
    (root, *others) = [s for s, _ in spans_of([after[1]])]
    assert {s["parentSpanId"] for s in others} == {root["spanId"]}
    assert "parentSpanId" not in root


REQUIRED = {
    "text": {"content"},
    "reasoning": {"content"},
    "tool_call": {"name"},
    "tool_call_response": {"response"},
}


def test_messages_follow_the_conventions(store: SessionStore) -> None:
    (imported,) = store.import_transcript(RUN, user_id="ada")
    count = 0
    for _, about in spans_of(exported(session(store, name=imported.session_id))):
        for name in ("input", "output"):
            for message in json.loads(about.get(f"gen_ai.{name}.messages", "[]")):
                count += 1
                assert message["role"] in ("system", "user", "assistant", "tool")
                assert name == "input" or isinstance(message["finish_reason"], str)
                for part in message["parts"]:
                    assert part.keys() > REQUIRED[part["type"]]
    assert count > 20


def test_an_export_without_content_has_names_and_status_only(
    store: SessionStore,
) -> None:
    recorded = session(store)
    recorded.append([SystemPrompt(text="word-1"), UserInput(text="word-2")])
    recorded.append(ToolCall(call_id="c1", tool_name="ls", arguments={"x": "word-3"}))
    recorded.append(ToolResult(call_id="c1", content="word-4", status="error"))
    recorded.append(refold.Pin(seqs=(1,), reason="word-5"))

    exported_traces = exported(recorded, content=False)

    assert "word-" not in json.dumps(exported_traces)
    failed = [
        failed_span
        for failed_span, about in spans_of(exported_traces)
        if "error.type" in about
    ]
    assert [failed_span["status"]["code"] for failed_span in failed] == [2]


def test_cached_tokens_are_in_the_input_tokens(store: SessionStore) -> None:
    recorded = session(store)
    usage = {"input_tokens": 3, "cache_read_input_tokens": 60, "output_tokens": 7}
    recorded.append([UserInput(text="a"), AgentResponse(text="b", usage=usage)])

    (about,) = [
        about for s, about in spans_of(exported(recorded)) if s["name"] == "chat"
    ]

    assert about["gen_ai.usage.input_tokens"] == "63"
    assert about["gen_ai.usage.cache_read.input_tokens"] == "60"


def test_spans_of_other_programs_become_a_session(tmp_path: Path) -> None:
    transcript = read_one(write_document(tmp_path, OTLP))

    assert (transcript.session_id, transcript.format) == ("conv-1", "otlp")
    imported: list[Event] = events(transcript)
    assert imported == [
        SystemPrompt(text="You help."),
        UserInput(text="Go."),
        AgentResponse(
            thinking=(Thinking(thinking="I look."),),
            stop_reason="stop",
            usage={
                "input_tokens": 40,
                "output_tokens": 7,
                "cache_read_input_tokens": 60,
                "cache_creation_input_tokens": 0,
            },
        ),
        ToolCall(call_id="c1", tool_name="ls", arguments={"path": "/"}),
        ToolResult(
            call_id="c1", tool_name="ls", content={"files": [1]}, duration_ms=2000.0
        ),
        AgentResponse(text="Done.", stop_reason="stop"),
    ]
    assert not transcript.skipped


def test_a_result_missing_from_requests_comes_from_its_span(tmp_path: Path) -> None:
    asked = json.loads(json.dumps(OTLP))
    spans = asked["resourceSpans"][0]["scopeSpans"][0]["spans"]
    del spans[-1]
    spans.append(span("chat", 9, 9, trace="u" * 32, gen_ai__conversation__id="conv-1"))

    transcript = read_one(write_document(tmp_path, asked))

    (result,) = [event for event in events(transcript) if isinstance(event, ToolResult)]
    assert result.content == "files: 1"


@pytest.mark.parametrize(
    ("recorded", "content"),
    [("42", "42"), ('{"n": 42}', {"n": 42}), ({"n": 42}, {"n": 42}), ("", "")],
)
def test_results_keep_their_type(tmp_path: Path, recorded: Any, content: Any) -> None:
    asked = json.loads(json.dumps(OTLP))
    spans = asked["resourceSpans"][0]["scopeSpans"][0]["spans"]
    values = {"gen_ai.tool.call.id": "c1", "gen_ai.tool.call.result": recorded}
    spans[2:] = [
        span("execute_tool", 2, 4, gen_ai__conversation__id="conv-1", **values)
    ]

    transcript = read_one(write_document(tmp_path, asked))

    (result,) = [event for event in events(transcript) if isinstance(event, ToolResult)]
    assert result.content == content


def test_a_request_without_spans_is_refused(tmp_path: Path) -> None:
    path = write_document(tmp_path, spans())

    with pytest.raises(ImportFailed, match="holds no messages"):
        refold.open("memory://").import_transcript(path, user_id="ada")
