"""A SWE-agent trajectory becomes events, with tool calls or actions in the text."""

from pathlib import Path
from typing import Any

import pytest

from refold.domain.events import AgentResponse, Final, ToolCall, ToolResult, UserInput
from tests.importers import samples
from tests.importers.samples import events, kinds, read_one, reasons, write_document


def run(*history: Any, **more: Any) -> dict[str, Any]:
    return {"trajectory": [], "history": list(history), "info": {}, **more}


def acting(action: str, **more: Any) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": f"I think.\n```\n{action}\n```",
        "thought": "I think.",
        "action": action,
        **more,
    }


def test_a_run_with_tool_calls_is_one_session(tmp_path: Path) -> None:
    transcript = read_one(write_document(tmp_path, samples.SWE_AGENT, "a.traj"))

    assert transcript.format == "swe-agent"
    assert events(transcript)[1:] == [
        UserInput(text="Fix it."),
        AgentResponse(text="I list the files."),
        ToolCall(call_id="c1", tool_name="bash", arguments={"cmd": "ls"}),
        ToolResult(call_id="c1", tool_name="bash", content="a.py", duration_ms=250),
        Final(
            outcome="unknown",
            result={"exit_status": "submitted", "submission": "diff --git"},
        ),
    ]
    assert reasons(transcript)["a.traj history[1]"] == "demonstration from another run"


def test_an_action_in_the_text_is_a_call_and_the_next_observation_its_result(
    tmp_path: Path,
) -> None:
    document = run(
        {"role": "user", "content": "Fix it."},
        acting("ls"),
        {"role": "user", "content": "a.py"},
        acting("rm a.py"),
        {"role": "user", "content": "", "message_type": "observation"},
    )

    transcript = read_one(write_document(tmp_path, document))

    assert events(transcript) == [
        UserInput(text="Fix it."),
        AgentResponse(text="I think."),
        ToolCall(call_id="action:1", tool_name="action", arguments={"command": "ls"}),
        ToolResult(call_id="action:1", tool_name="action", content="a.py"),
        AgentResponse(text="I think."),
        ToolCall(
            call_id="action:3", tool_name="action", arguments={"command": "rm a.py"}
        ),
        ToolResult(call_id="action:3", tool_name="action", content=""),
    ]
    assert transcript.drafts[1].meta.response_id == "msg:1"


def test_an_answer_without_an_action_is_followed_by_an_input(tmp_path: Path) -> None:
    document = run(acting(""), {"role": "user", "content": "Give me an action."})

    assert kinds(read_one(write_document(tmp_path, document))) == [
        "agent_response",
        "user_input",
    ]


def test_durations_end_where_steps_and_history_part(tmp_path: Path) -> None:
    steps = [
        {"action": action, "execution_time": 1.0} for action in ("ls", "cat", "rm")
    ]
    observed = {"role": "user", "content": "…"}
    document = run(
        acting("ls"), observed, acting("find"), observed, acting("rm"), observed
    )

    transcript = read_one(write_document(tmp_path, {**document, "trajectory": steps}))

    results = [event for event in events(transcript) if isinstance(event, ToolResult)]
    assert [event.duration_ms for event in results] == [1000, None, None]


def test_one_observation_ends_all_the_calls_it_names(tmp_path: Path) -> None:
    calls = [
        {"id": call_id, "function": {"name": "bash", "arguments": "{}"}}
        for call_id in ("c1", "c2")
    ]
    document = run(
        {"role": "assistant", "content": "Both.", "action": "x", "tool_calls": calls},
        {"role": "tool", "content": "seen", "tool_call_ids": ["c1", "c2"]},
    )

    assert events(read_one(write_document(tmp_path, document)))[3:] == [
        ToolResult(call_id="c1", tool_name="bash", content="seen"),
        ToolResult(call_id="c2", tool_name="bash", content=""),
    ]


@pytest.mark.parametrize(
    ("info", "outcome"),
    [
        ({"exit_status": "submitted"}, "unknown"),
        ({"exit_status": "exit_cost", "submission": "diff"}, "unknown"),
        ({"exit_status": "exit_error", "submission": ""}, "failure"),
        ({"exit_status": None, "submission": None}, None),
        ({}, None),
    ],
)
def test_a_finished_run_says_how_it_ended(
    tmp_path: Path, info: Any, outcome: str | None
) -> None:
    document = run({"role": "user", "content": "Fix it."}, info=info)

    imported = events(read_one(write_document(tmp_path, document)))[1:]

    assert [event.outcome for event in imported if isinstance(event, Final)] == (
        [outcome] if outcome else []
    )


def test_results_of_no_call_are_skipped(tmp_path: Path) -> None:
    document = run(
        {"role": "tool", "content": "secret", "tool_call_ids": ["c9"]},
        {"role": "tool", "content": "secret"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "Go."},
    )

    transcript = read_one(write_document(tmp_path, document))

    assert kinds(transcript) == ["user_input"]
    assert list(reasons(transcript))[:3] == [
        f"file.json history[{index}]" for index in range(3)
    ]
