"""Traces of Langfuse and LangSmith: each message of their calls is recorded once."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.adapters import importers
from refold.domain.events import (
    AgentError,
    AgentResponse,
    SystemPrompt,
    ToolCall,
    ToolResult,
    UserInput,
)
from tests.importers import samples
from tests.importers.export_samples import (
    generated,
    observation,
    run,
    serialized,
)
from tests.importers.samples import (
    accepted,
    events,
    kinds,
    read_one,
    reasons,
    texts_shown,
    write_document,
    write_lines,
)

TALK = [
    UserInput(text="Weather in Oslo?"),
    ToolCall(call_id="c1", tool_name="weather", arguments={"city": "Oslo"}),
    ToolResult(call_id="c1", tool_name="weather", content="4 degrees"),
]


def test_a_trace_of_langfuse_becomes_a_session(tmp_path: Path) -> None:
    transcript = read_one(write_document(tmp_path, samples.LANGFUSE))

    assert (transcript.format, transcript.session_id) == ("langfuse", "t-1")
    assert transcript.title == "Weather"
    assert events(transcript) == [
        SystemPrompt(text="Be brief."),
        *TALK,
        AgentResponse(
            text="Four degrees.",
            usage={"input_tokens": 11, "output_tokens": 7, "cost_usd": 0.002},
        ),
    ]
    drafts = transcript.drafts
    assert drafts[2].meta.usage == {
        "input_tokens": 11,
        "output_tokens": 7,
        "cost_usd": 0.002,
    }
    assert [draft.meta.model for draft in drafts] == [
        None,
        None,
        "gpt-4o",
        None,
        "gpt-4o",
    ]
    assert list(reasons(transcript).values()) == [
        "tool observation; only calls of models have messages"
    ]
    assert accepted(drafts)


def test_runs_of_langsmith_become_a_session_by_their_thread(tmp_path: Path) -> None:
    transcript = read_one(write_lines(tmp_path, samples.LANGSMITH))

    assert (transcript.format, transcript.session_id) == ("langsmith", "t-77")
    assert events(transcript)[:2] == TALK[:2]
    result = events(transcript)[2]
    assert isinstance(result, ToolResult)
    assert (result.content, result.duration_ms) == ("4 degrees", 1000.0)
    assert transcript.drafts[1].meta.usage == {"input_tokens": 11, "output_tokens": 7}
    assert transcript.drafts[1].meta.model == "gpt-4o"


def test_a_tree_of_runs_gives_the_same_as_its_runs(tmp_path: Path) -> None:
    root, *children = samples.LANGSMITH
    tree = write_document(tmp_path, {**root, "child_runs": children})

    assert events(read_one(tree)) == events(
        read_one(write_lines(tmp_path, samples.LANGSMITH))
    )


@pytest.mark.parametrize("name", ["langfuse", "langsmith"])
def test_an_import_again_adds_nothing(tmp_path: Path, name: str) -> None:
    path = samples.write_sample(tmp_path, name)
    with refold.open("memory://") as store:
        store.import_transcript(path, user_id="ada")
        (again,) = store.import_transcript(path, user_id="ada")

        assert again.events == 0


def trace(*observations: Any) -> dict[str, Any]:
    return {"id": "t-1", "name": "Test", "observations": list(observations)}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answer(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def test_a_changed_history_leaves_the_old_messages_out(tmp_path: Path) -> None:
    document = trace(
        observation(1, "GENERATION", [user("One"), user("Two")], answer("First")),
        observation(2, "GENERATION", [user("One"), user("Three")], answer("Second")),
    )
    with refold.open("memory://") as store:
        store.import_transcript(write_document(tmp_path, document), user_id="ada")

        assert texts_shown(store) == ["One", "Three", "Second"]


def test_a_call_of_another_agent_is_a_session_of_its_own(tmp_path: Path) -> None:
    document = trace(
        observation(1, "GENERATION", [user("Plan it")], answer("Planned")),
        observation(2, "GENERATION", [user("Do it")], answer("Done")),
    )

    main, other = importers.read(write_document(tmp_path, document))

    assert (main.session_id, main.parent_session_id) == ("t-1", None)
    assert (other.session_id, other.parent_session_id) == ("t-1~2", "t-1")


def test_a_call_without_messages_is_reported_and_begins_no_session(
    tmp_path: Path,
) -> None:
    empty = observation(1, "GENERATION", None, None)
    full = observation(2, "GENERATION", [user("One")], answer("First"))

    transcript = read_one(write_document(tmp_path, trace(empty, full)))

    assert transcript.session_id == "t-1"
    assert kinds(transcript) == ["user_input", "agent_response"]
    assert reasons(transcript) == {
        "file.json observations[0]": "call of a model without messages"
    }


def test_a_failed_call_is_an_error(tmp_path: Path) -> None:
    failed = observation(1, "GENERATION", [user("One")], None)
    failed |= {"level": "ERROR", "statusMessage": "Rate limit"}
    of_runs = run(1, "llm", {"messages": [user("One")]}, None, error="Rate limit")

    for document in (trace(failed), [of_runs]):
        _, error = events(read_one(write_document(tmp_path, document)))

        assert isinstance(error, AgentError)
        assert error.message == "Rate limit"


@pytest.mark.parametrize(
    ("asked", "replied"),
    [
        (
            [{"role": "user", "parts": [{"type": "text", "content": "Hi"}]}],
            [{"role": "assistant", "parts": [{"type": "text", "content": "Hello"}]}],
        ),
        (
            {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]},
            {"content": {"role": "model", "parts": [{"text": "Hello"}]}},
        ),
        ({"messages": [user("Hi")]}, {"choices": [{"message": answer("Hello")}]}),
        (
            '[{"role": "user", "content": "Hi"}]',
            '{"role": "model", "content": "Hello"}',
        ),
        ("Hi", "Hello"),
        (
            [serialized("HumanMessage", "Hi")],
            serialized("AIMessage", [{"type": "text", "text": "Hello"}]),
        ),
        (
            [{"type": "human", "data": {"content": "Hi"}}],
            {"object": "response", "output": [{"type": "message", **answer("Hello")}]},
        ),
    ],
)
def test_messages_of_many_frameworks_are_read(
    tmp_path: Path, asked: Any, replied: Any
) -> None:
    document = trace(observation(1, "GENERATION", asked, replied, usageDetails={}))
    document["observations"][0]["costDetails"] = {}

    assert events(read_one(write_document(tmp_path, document))) == [
        UserInput(text="Hi"),
        AgentResponse(text="Hello"),
    ]


def test_parts_of_gemini_without_ids_are_calls_and_results(tmp_path: Path) -> None:
    call = {"role": "model", "parts": [{"functionCall": {"name": "f", "args": {}}}]}
    result = {"functionResponse": {"name": "f", "response": {"n": 1}}}
    asked = {"role": "user", "parts": [{"text": "Go"}]}
    first = observation(1, "GENERATION", {"contents": [asked]}, {"content": call})
    again = {"contents": [asked, call, {"role": "user", "parts": [result]}]}
    second = observation(2, "GENERATION", again, answer("Done"))

    transcript = read_one(write_document(tmp_path, trace(first, second)))

    assert kinds(transcript) == [
        "user_input",
        "tool_call",
        "tool_result",
        "agent_response",
    ]


def test_a_history_of_results_alone_goes_on_from_their_calls(tmp_path: Path) -> None:
    document = copy.deepcopy(samples.LANGFUSE)
    document["observations"][2]["input"] = [
        {"role": "tool", "tool_call_id": "c1", "content": "4 degrees"}
    ]

    assert events(read_one(write_document(tmp_path, document))) == events(
        read_one(write_document(tmp_path, samples.LANGFUSE))
    )


def test_observations_alone_are_traces(tmp_path: Path) -> None:
    path = write_lines(tmp_path, samples.LANGFUSE["observations"])

    assert events(read_one(path)) == events(
        read_one(write_document(tmp_path, samples.LANGFUSE))
    )


def test_the_traces_of_a_session_are_one_session(tmp_path: Path) -> None:
    first = trace(observation(1, "GENERATION", [user("One")], answer("First")))
    two = trace(
        observation(
            2, "GENERATION", [user("One"), answer("First"), user("Two")], answer("2")
        )
    )
    document = [{**first, "sessionId": "s-1"}, {**two, "id": "t-2", "sessionId": "s-1"}]

    transcript = read_one(write_document(tmp_path, document))

    assert transcript.session_id == "s-1"
    assert kinds(transcript) == ["user_input", "agent_response"] * 2


def test_prompts_without_messages_are_inputs(tmp_path: Path) -> None:
    completed = run(1, "llm", {"prompts": ["Say hi"]}, generated({}))
    completed["outputs"]["generations"][0][0] = {"text": "Hi"}

    assert events(read_one(write_document(tmp_path, [completed]))) == [
        UserInput(text="Say hi"),
        AgentResponse(text="Hi"),
    ]
