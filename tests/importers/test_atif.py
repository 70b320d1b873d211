"""A trajectory becomes events, and events a trajectory, with nothing lost between."""

from __future__ import annotations

import json
from collections.abc import Iterable
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from jsonschema import Draft202012Validator

import refold
from refold.adapters import importers
from refold.adapters.importers.atif import trajectory
from refold.domain.envelope import Draft, Envelope
from refold.domain.events import (
    AgentError,
    AgentResponse,
    Attachment,
    Event,
    Final,
    HumanReview,
    Item,
    Planner,
    ProviderEdit,
    Reflection,
    SystemPrompt,
    Thinking,
    ToolCall,
    ToolResult,
    UserInput,
)
from refold.domain.ids import StreamId
from tests.importers import samples
from tests.importers.samples import events, kinds, read_one, reasons, write_document
from tests.support.nested import blocks_of

SCHEMA = json.loads(Path(__file__).with_name("atif.schema.json").read_text())
WHEN = datetime(2026, 1, 1, tzinfo=UTC)
AGENT_ONLY = ("model_name", "reasoning_effort", "reasoning_content", "tool_calls")


def check(document: dict[str, Any]) -> None:
    """Asserts the published schema, and the rules that it cannot express."""
    Draft202012Validator(SCHEMA).validate(document)
    for number, step in enumerate(document["steps"], start=1):
        assert step["step_id"] == number
        calls = {call["tool_call_id"] for call in step.get("tool_calls", ())}
        named = {
            result["source_call_id"]
            for result in step.get("observation", {}).get("results", ())
            if "source_call_id" in result
        }
        assert named <= calls
        if step["source"] != "agent":
            assert not step.keys() & {*AGENT_ONLY, "metrics"}
        if step.get("llm_call_count") == 0:
            assert not step.keys() & {"metrics", "reasoning_content"}
    below = document.get("subagent_trajectories", [])
    assert len({child["trajectory_id"] for child in below}) == len(below)


def recorded(drafts: Iterable[Draft], session: str = "s-1") -> list[Envelope]:
    """The drafts as a log would hold them."""
    stream = StreamId("ada", session)
    return [
        Envelope.imagined(
            draft.event, seq, draft.ts or WHEN, stream, agent=draft.agent,
            meta=draft.meta,
        )
        for seq, draft in enumerate(drafts, start=1)
    ]  # fmt: skip


def again(transcripts: list[importers.Transcript]) -> dict[str, Any]:
    """Return the exported trajectory of the transcript read from one file."""
    main, *below = transcripts
    prefix = f"{main.session_id}~"
    runs = {
        transcript.session_id.removeprefix(prefix): recorded(transcript.drafts)
        for transcript in below
    }
    return trajectory(recorded(main.drafts), main.session_id, runs)


def test_steps_become_events_of_the_session(tmp_path: Path) -> None:
    main, below = importers.read(write_document(tmp_path, samples.ATIF))

    assert (main.session_id, main.format) == ("run-1", "atif")
    assert (below.session_id, below.parent_session_id) == ("run-1~sub", "run-1")
    assert events(main) == [
        SystemPrompt(text="You are an agent."),
        UserInput(text="Fix it."),
        UserInput(
            text="Look.",
            attachments=(
                Attachment(kind="image", media_type="image/png", url="img/a.png"),
            ),
        ),
        AgentResponse(
            text="I look.",
            thinking=(Thinking(thinking="Hmm."),),
            usage={
                "input_tokens": 40,
                "cache_read_input_tokens": 60,
                "output_tokens": 10,
                "cost_usd": 0.01,
            },
        ),
        ToolCall(call_id="c1", tool_name="bash", arguments={"cmd": "ls"}),
        ToolCall(call_id="c2", tool_name="agent"),
        ToolResult(call_id="c1", tool_name="bash", content="a.py"),
        ToolResult(
            call_id="c2", tool_name="agent", content=[{"type": "text", "text": "done"}]
        ),
        ToolCall(call_id="steps[4]:0", tool_name="action"),
        ToolResult(call_id="steps[4]:0", tool_name="action", content="output"),
        ProviderEdit(
            reason="compaction",
            edits=(
                {
                    "type": "compaction",
                    "text": "",
                    "boundary": "replace",
                },
            ),
        ),
        UserInput(text="Files were listed."),
        AgentResponse(text="Done."),
    ]


def test_an_export_restores_the_imported_fields(tmp_path: Path) -> None:
    exported = again(importers.read(write_document(tmp_path, samples.ATIF)))

    check(exported)
    (below,) = exported["subagent_trajectories"]
    for added in ("final_metrics", "session_id"):
        del below[added]
    for step in below["steps"]:
        del step["timestamp"]
    assert exported == samples.ATIF


def test_totals_of_a_grown_run_are_counted_again(tmp_path: Path) -> None:
    young = {**samples.ATIF, "steps": samples.ATIF["steps"][:4]}
    young["final_metrics"] = {"total_steps": 4, "total_prompt_tokens": 1}
    path = write_document(tmp_path, young, "run.json")
    with refold.open("memory://") as store:
        store.import_transcript(path, user_id="ada")
        write_document(tmp_path, samples.ATIF, "run.json")
        store.import_transcript(path, user_id="ada")
        events = [*store.session(user_id="ada", session_id="run-1").history.timeline()]

    exported: Any = trajectory(events, "run-1")

    assert len(exported["steps"]) == 8
    assert exported["final_metrics"]["total_steps"] == 8
    assert exported["final_metrics"]["total_prompt_tokens"] == 100


def test_copied_steps_are_recorded_once(tmp_path: Path) -> None:
    first = deepcopy(samples.ATIF)
    then = deepcopy(samples.ATIF)
    first["continued_trajectory_ref"] = "next.json"
    copied = [{**step, "is_copied_context": True} for step in first["steps"][:4]]
    more = {"step_id": 5, "source": "user", "message": "And now?"}
    then |= {"steps": [*copied, more], "subagent_trajectories": []}
    write_document(tmp_path, then, "next.json")

    main = importers.read(write_document(tmp_path, first, "first.json"))[0]

    inputs = [event.text for event in events(main) if isinstance(event, UserInput)]
    assert inputs == ["Fix it.", "Look.", "Files were listed.", "And now?"]
    why = reasons(main)["first.json next.json steps[1]"]
    assert why == "copied context of the run that it continues"
    assert "continued_trajectory_ref" not in again([main])


def step(source: str, message: str, **more: Any) -> dict[str, Any]:
    return {"source": source, "message": message, **more}


def edited(boundary: str, kind: str = "compaction") -> dict[str, Any]:
    return {"extra": {"context_management": {"type": kind, "boundary": boundary}}}


def observed(*contents: str) -> dict[str, Any]:
    return {"observation": {"results": [{"content": text} for text in contents]}}


OLD = (
    step("system", "You are an agent."),
    step("user", "OLD question"),
    step("agent", "OLD answer"),
)


def last_context(tmp_path: Path, *documents: list[dict[str, Any]]) -> list[str]:
    """The last context of a run whose files continue each other."""
    for number, steps in reversed([*enumerate(documents)]):
        document = {"schema_version": "ATIF-v1.7", "session_id": "r", "steps": steps}
        if number + 1 < len(documents):
            document["continued_trajectory_ref"] = f"run{number + 1}.json"
        path = write_document(tmp_path, document, f"run{number}.json")
    with refold.open("memory://") as store:
        store.import_transcript(path, user_id="ada")
        again = store.import_transcript(path, user_id="ada")
        assert [imported.events for imported in again] == [0]
        view = store.session(user_id="ada", session_id="r").context("keep_all")
    assert view.system == "You are an agent."
    return [block["text"] for block in blocks_of(view.messages)]


@pytest.mark.parametrize(
    ("edit", "context"),
    [
        ([step("system", "Compacted.", **edited("replace"))], ["SUMMARY", "Done."]),
        (
            [step("system", "Compacted.", **edited("replace"), **observed("INLINE"))],
            ["INLINE", "SUMMARY", "Done."],
        ),
        (
            [step("system", "NOTICE", **edited("append", "injection"))],
            [
                "OLD question",
                "OLD answer",
                "<system>\nNOTICE\n</system>",
                "SUMMARY",
                "Done.",
            ],
        ),
        (
            [step("system", "Cut.", **edited("truncate", "pruning"))],
            ["OLD question", "OLD answer", "SUMMARY", "Done."],
        ),
    ],
    ids=["by the next message", "by the observation", "append", "truncate"],
)
def test_an_edit_of_the_context_changes_later_contexts(
    tmp_path: Path, edit: list[dict[str, Any]], context: list[str]
) -> None:
    after = [step("user", "SUMMARY"), step("agent", "Done.")]

    assert last_context(tmp_path, [*OLD, *edit, *after]) == context


def test_an_edit_by_a_call_replaces_the_context(tmp_path: Path) -> None:
    call = {"tool_call_id": "c1", "function_name": "compact", "arguments": {}}
    edit = step("agent", "", tool_calls=[call], **edited("replace"))
    edit["observation"] = {"results": [{"source_call_id": "c1", "content": "NEW"}]}

    assert last_context(tmp_path, [*OLD, edit, step("user", "Go on.")]) == [
        "NEW",
        "Go on.",
    ]


def test_a_continuing_file_begins_with_its_copied_context(tmp_path: Path) -> None:
    prompt, asked, _ = OLD
    new = step("user", "SUMMARY of the rest")
    copies = [{**each, "is_copied_context": True} for each in (prompt, asked, new)]

    assert last_context(tmp_path, [*OLD], [*copies, step("agent", "Done.")]) == [
        "OLD question",
        "SUMMARY of the rest",
        "Done.",
    ]


def test_an_export_restores_edits_of_the_context(tmp_path: Path) -> None:
    edit = step("system", "Compacted.", **edited("replace"), **observed("INLINE"))
    injected = step("system", "NOTICE", **edited("append", "injection"))
    steps = [*OLD, edit, step("agent", "Done."), injected]
    document = {"schema_version": "ATIF-v1.7", "session_id": "r", "steps": steps}

    exported = again(importers.read(write_document(tmp_path, document)))

    check(exported)
    fields = ("source", "message", "extra", "observation")
    assert [
        {key: step[key] for key in fields if key in step} for step in exported["steps"]
    ] == steps


def test_a_continuation_that_is_not_there_is_named(tmp_path: Path) -> None:
    document = {**samples.ATIF, "continued_trajectory_ref": "../../gone.json"}

    transcripts = importers.read(write_document(tmp_path, document))

    assert "no such file" in reasons(transcripts[0])["file.json"]
    assert again(transcripts)["continued_trajectory_ref"] == "../../gone.json"


def test_a_trajectory_that_continues_itself_ends(tmp_path: Path) -> None:
    document = {**samples.ATIF, "continued_trajectory_ref": "file.json"}

    assert importers.read(write_document(tmp_path, document))[0].drafts


@pytest.mark.parametrize("version", ["1.0", "1.2", "1.5", "1.6", "1.8"])
def test_other_versions_are_read(version: str, tmp_path: Path) -> None:
    steps = [{"step_id": 1, "source": "user", "message": "hi"}]
    agent = {"name": "a", "version": "1"}
    document = {"schema_version": f"ATIF-v{version}", "agent": agent, "steps": steps}

    transcripts = importers.read(write_document(tmp_path, document))

    assert kinds(transcripts[0]) == ["user_input"]
    check(again(transcripts))


def test_a_file_without_steps_is_refused(tmp_path: Path) -> None:
    path = write_document(tmp_path, {"schema_version": "ATIF-v1.7", "steps": "none"})

    assert "it has no steps" in samples.refusal(path)


WORDS = st.sampled_from(["", "so be it", "done\n", "列表", "ok", "a.py b.py"])
NAMED = WORDS.filter(bool)
EXTRA = st.dictionaries(st.sampled_from(["k", "score"]), st.integers(0, 9), min_size=1)
PARTS = st.lists(
    st.fixed_dictionaries({"type": st.just("text"), "text": WORDS})
    | st.just(
        {"type": "image", "source": {"media_type": "image/png", "path": "b.png"}}
    ),
    min_size=1,
    max_size=3,
)
CONTENT = WORDS | PARTS | st.none()
COUNT = st.integers(0, 1000)


@st.composite
def steps(draw: st.DrawFn) -> dict[str, Any]:
    source = draw(st.sampled_from(["system", "user", "agent"]))
    step: dict[str, Any] = {"source": source, "message": draw(WORDS | PARTS)}
    if source == "system":
        step["message"] = draw(WORDS)
    if draw(st.booleans()):
        step["extra"] = draw(EXTRA)
    names: list[str | None] = [None]
    if source == "agent":
        if draw(st.booleans()):
            step["reasoning_content"] = draw(NAMED)
        names += draw(st.lists(st.sampled_from(["c1", "c2", "c3"]), unique=True))
        calls = [
            {"tool_call_id": name, "function_name": "bash", "arguments": {"cmd": "ls"}}
            for name in names
            if name
        ]
        if calls:
            step["tool_calls"] = calls
        if draw(st.booleans()):
            prompt = draw(COUNT)
            step["metrics"] = {
                "prompt_tokens": prompt,
                "completion_tokens": draw(COUNT),
                "cached_tokens": draw(st.integers(0, prompt)),
            }
    if source != "user":
        # One result a call: a second one is of no open call.
        chosen = draw(st.lists(st.sampled_from(names), unique=True))
        results = [
            {**({"source_call_id": name} if name else {}), "content": draw(CONTENT)}
            for name in chosen
        ]
        open_ = {name for name in names if name} - {*chosen}
        if results and not open_:
            step["observation"] = {"results": results}
        elif open_:
            step.pop("tool_calls")
    return step


@pytest.mark.parametrize(
    "message",
    [
        [{"type": "image", "source": {"media_type": "image/png", "path": "b.png"}}],
        [{"type": "text", "text": ""}],
    ],
)
def test_a_message_without_text_is_written_with_the_calls_of_its_step(
    tmp_path: Path, message: list[dict[str, Any]]
) -> None:
    call = {"tool_call_id": "c", "function_name": "bash", "arguments": {"cmd": "ls"}}
    step = {
        "step_id": 1,
        "timestamp": "2026-01-01T00:00:00Z",
        "source": "agent",
        "message": message,
        "tool_calls": [call],
        "observation": {"results": [{"source_call_id": "c", "content": "b.png"}]},
    }
    document = {
        "schema_version": "ATIF-v1.7",
        "session_id": "run-1",
        "agent": {"name": "a", "version": "1"},
        "steps": [step],
        "final_metrics": {"total_steps": 1},
    }

    exported = again(importers.read(write_document(tmp_path, document)))

    assert exported == document


@given(st.lists(steps(), min_size=1, max_size=6))
def test_any_trajectory_is_written_as_it_was_read(
    tmp_path_factory: pytest.TempPathFactory, drawn_steps: list[dict[str, Any]]
) -> None:
    numbered = [
        {"step_id": number, "timestamp": "2026-01-01T00:00:00Z", **step}
        for number, step in enumerate(drawn_steps, start=1)
    ]
    document = {
        "schema_version": "ATIF-v1.7",
        "session_id": "run-1",
        "agent": {"name": "a", "version": "1"},
        "steps": numbered,
        "final_metrics": {"total_steps": len(drawn_steps)},
    }
    check(document)
    path = write_document(tmp_path_factory.mktemp("a"), document)

    exported = again(importers.read(path))

    check(exported)
    assert exported == document


def made_by_refold() -> list[Event]:
    return [
        SystemPrompt(text="You are an agent."),
        UserInput(text="Fix it."),
        Planner(plan=["look", "mend"], iteration=1),
        AgentResponse(text="I look."),
        ToolCall(call_id="a", tool_name="bash", arguments={"cmd": "ls"}),
        ToolCall(call_id="b", tool_name="bash", arguments='{"cmd": '),
        ToolResult(call_id="a", tool_name="bash", content={"files": 3}, duration_ms=5),
        ToolResult(
            call_id="b", tool_name="bash", content="bad", status="error", untrusted=True
        ),
        ToolCall(call_id="a", tool_name="read", arguments={}),
        ToolResult(call_id="a", tool_name="read", content="x"),
        Reflection(pass_=False, confidence=0.5, issues=("none",)),
        HumanReview(trigger="low", question="Go on?"),
        AgentError(code="timeout", message="slow"),
        Item(format="other", kind="k", value={"a": [1]}),
        AgentResponse(text="Done."),
        Final(text="Done.", outcome="success", reward=1.0),
    ]


def test_events_of_any_type_come_back(tmp_path: Path) -> None:
    written: Any = trajectory(recorded(map(Draft, made_by_refold())), "s-1")
    check(written)

    assert events(read_one(write_document(tmp_path, written))) == made_by_refold()


def test_calls_made_together_are_one_step_and_later_ones_another() -> None:
    written: Any = trajectory(recorded(map(Draft, made_by_refold())), "s-1")

    calling = [step for step in written["steps"] if "tool_calls" in step]
    assert [len(step["tool_calls"]) for step in calling] == [2, 1]
    assert [step["message"] for step in calling] == ["I look.", ""]


def test_a_session_without_events_is_a_valid_trajectory() -> None:
    check(trajectory([], "s-1"))
