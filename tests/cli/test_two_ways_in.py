"""Import and capture record an entry once, also if both read the same transcript."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Refold

USER = ("--user", "ada")
SESSION = "7d1e0000-0000-4000-8000-000000000001"
OTHER = "7d1e0000-0000-4000-8000-000000000002"
AGENT = "a684a997ade4fcdac"
Entry = dict[str, Any]


@pytest.fixture
def projects(tmp_path: Path) -> Path:
    folder = tmp_path / "client" / "projects"
    (folder / "-work").mkdir(parents=True)
    return folder


@pytest.fixture
def work(projects: Path) -> Path:
    return projects / "-work"


def entry(kind: str, uuid: str, content: Any, **more: Any) -> Entry:
    message: Entry = {"role": kind, "content": content}
    if kind == "assistant":
        usage = {"input_tokens": 5, "output_tokens": 2}
        message |= {"id": f"m-{uuid}", "model": "claude-x", "usage": usage}
    return {
        "type": kind,
        "uuid": uuid,
        "sessionId": SESSION,
        "isSidechain": False,
        "timestamp": "2026-07-01T10:00:00Z",
        "message": message,
        **more,
    }


def conversation(prefix: str = "", **more: Any) -> list[Entry]:
    call = {"type": "tool_use", "id": f"{prefix}c1", "name": "Bash", "input": {}}
    result = {"type": "tool_result", "tool_use_id": f"{prefix}c1", "content": "ok"}
    text = {"type": "text", "text": f"{prefix}answer"}
    return [
        {"type": "mode", "mode": "normal", "sessionId": SESSION},
        entry("user", f"{prefix}u1", f"{prefix}question", **more),
        entry("assistant", f"{prefix}a1", [call], **more),
        entry("user", f"{prefix}u2", [result], **more),
        {"type": "mode", "mode": "normal", "sessionId": SESSION},
        entry("assistant", f"{prefix}a2", [text], **more),
    ]


def codex(*items: Entry) -> list[Entry]:
    about = {"id": SESSION, "timestamp": "2026-07-01T10:00:00Z", "cwd": "/w"}
    entries = [("session_meta", about), *(("response_item", item) for item in items)]
    return [
        {"timestamp": f"2026-07-01T10:00:{n:02}.000Z", "type": kind, "payload": payload}
        for n, (kind, payload) in enumerate(entries)
    ]


def codex_message(role: str, text: str) -> Entry:
    kind = "input_text" if role == "user" else "output_text"
    return {
        "type": "message",
        "role": role,
        "content": [{"type": kind, "text": text}],
    }


def command(call_id: str) -> list[Entry]:
    return [
        {"type": "function_call", "name": "sh", "arguments": "{}", "call_id": call_id},
        {"type": "function_call_output", "call_id": call_id, "output": "ok"},
    ]


def write(path: Path, entries: list[Entry]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def capture_all(refold: Refold, projects: Path, client: str = "claude-code") -> int:
    ran = refold("capture", client, *USER, "--folder", projects, "--once", "--json")
    assert ran.code == 0, ran.err
    return int(ran.json()["appended"])


def import_files(refold: Refold, *paths: Path) -> Any:
    ran = refold("import", *paths, *USER, "--json")
    assert ran.code == 0, ran.err
    return ran.json()


def context_events(refold: Refold, session: str = SESSION) -> list[tuple[str, Any]]:
    """Return type and content of the events of a session that contexts use."""
    ran = refold("log", *USER, "--session", session, "--json")
    assert ran.code == 0, ran.err
    return [
        (event["type"], event["payload"])
        for event in ran.lines()
        if event["type"] not in ("item", "state")
    ]


def session_ids(refold: Refold) -> list[str]:
    listed = refold("sessions", "--sort", "session", "--json").json()
    return [info["session_id"] for info in listed]


def verify_store(refold: Refold) -> None:
    ran = refold("verify")
    assert ran.code == 0, ran.err


Way = Callable[[Refold, Path, Path], object]


def by_import(refold: Refold, projects: Path, path: Path) -> object:
    return import_files(refold, path)


def by_capture(refold: Refold, projects: Path, path: Path) -> object:
    client = "codex" if "rollout" in path.name else "claude-code"
    return capture_all(refold, projects, client)


BOTH_WAYS = pytest.mark.parametrize(
    ("first", "second"),
    [
        (by_import, by_capture),
        (by_capture, by_import),
        (by_import, by_import),
        (by_capture, by_capture),
    ],
)


@BOTH_WAYS
def test_a_session_of_claude_code_is_recorded_once(
    refold: Refold, projects: Path, work: Path, first: Way, second: Way
) -> None:
    path = write(work / f"{SESSION}.jsonl", conversation())

    first(refold, projects, path)
    before = context_events(refold)
    second(refold, projects, path)

    assert [kind for kind, _ in before] == [
        "user_input",
        "tool_call",
        "tool_result",
        "agent_response",
    ]
    assert context_events(refold) == before
    assert session_ids(refold) == [SESSION]
    verify_store(refold)


@BOTH_WAYS
def test_a_rollout_of_codex_is_recorded_once(
    refold: Refold, projects: Path, work: Path, first: Way, second: Way
) -> None:
    entries = codex(
        codex_message("user", "go"), *command("c1"), codex_message("assistant", "done")
    )
    name = f"rollout-2026-07-01T10-00-00-{SESSION}.jsonl"
    path = write(work / name, entries)

    first(refold, projects, path)
    before = context_events(refold)
    second(refold, projects, path)

    assert [kind for kind, _ in before] == [
        "user_input",
        "tool_call",
        "tool_result",
        "agent_response",
    ]
    assert context_events(refold) == before
    assert session_ids(refold) == [SESSION]
    verify_store(refold)


@BOTH_WAYS
def test_messages_and_tokens_of_the_client_are_recorded_once(
    refold: Refold, projects: Path, work: Path, first: Way, second: Way
) -> None:
    entries = codex(
        codex_message("developer", "Ask first."),
        codex_message("user", "go"),
        *command("c1"),
        codex_message("assistant", "done"),
    )
    last = {"input_tokens": 10, "cached_input_tokens": 0, "output_tokens": 2}
    info = {"total_token_usage": {"total_tokens": 12}, "last_token_usage": last}
    spent = {"type": "token_count", "info": info}
    entries.append({**entries[-1], "type": "event_msg", "payload": spent})
    name = f"rollout-2026-07-01T10-00-00-{SESSION}.jsonl"
    path = write(work / name, entries)

    first(refold, projects, path)
    before = context_events(refold)
    second(refold, projects, path)

    assert [kind for kind, _ in before][:2] == ["system", "user_input"]
    assert context_events(refold) == before
    verify_store(refold)


@BOTH_WAYS
def test_only_the_new_entries_of_a_grown_file_are_added(
    refold: Refold, projects: Path, work: Path, first: Way, second: Way
) -> None:
    path = write(work / f"{SESSION}.jsonl", conversation())
    first(refold, projects, path)
    before = context_events(refold)

    write(path, [*conversation(), *conversation("x")])
    second(refold, projects, path)
    grown = context_events(refold)
    first(refold, projects, path)

    assert len(grown) == 2 * len(before)
    assert grown[: len(before)] == before
    assert context_events(refold) == grown
    verify_store(refold)


@BOTH_WAYS
@pytest.mark.parametrize("name", ["copy.jsonl", f"{OTHER}.jsonl"])
def test_a_renamed_file_is_the_same_session(
    refold: Refold, projects: Path, work: Path, name: str, first: Way, second: Way
) -> None:
    path = write(work / f"{SESSION}.jsonl", conversation())
    first(refold, projects, path)
    before = context_events(refold)

    second(refold, projects, path.rename(work / name))

    assert context_events(refold) == before
    assert session_ids(refold) == [SESSION]


@BOTH_WAYS
def test_a_resumed_session_has_the_history_that_its_file_repeats(
    refold: Refold, projects: Path, work: Path, first: Way, second: Way
) -> None:
    """The new file begins with the entries of the old session, under its id."""
    old = write(work / f"{SESSION}.jsonl", conversation())
    new = conversation("x", sessionId=OTHER)
    resumed = write(work / f"{OTHER}.jsonl", [*conversation(), *new])

    for way in (first, second):
        way(refold, projects, old)
        way(refold, projects, resumed)

    assert len(context_events(refold, SESSION)) == 4
    assert len(context_events(refold, OTHER)) == 8
    assert session_ids(refold) == [SESSION, OTHER]
    verify_store(refold)


@BOTH_WAYS
def test_a_forked_session_has_its_own_copy_of_the_entries(
    refold: Refold, projects: Path, work: Path, first: Way, second: Way
) -> None:
    """The entries are copied with their ids, and name the new session."""
    old = write(work / f"{SESSION}.jsonl", conversation())
    copied = [{**entry, "sessionId": OTHER} for entry in conversation()]
    new = conversation("x", sessionId=OTHER)
    forked = write(work / f"{OTHER}.jsonl", [*copied, *new])

    for way in (first, second):
        way(refold, projects, old)
        way(refold, projects, forked)

    assert len(context_events(refold, SESSION)) == 4
    assert len(context_events(refold, OTHER)) == 8
    verify_store(refold)


def test_a_resumed_session_gets_its_name_once_the_file_shows_it(
    refold: Refold, projects: Path, work: Path
) -> None:
    """Capture reads the repeated entries before the first entry of the new session."""
    resumed = write(work / f"{OTHER}.jsonl", conversation())
    capture_all(refold, projects)
    new = conversation("x", sessionId=OTHER)
    write(resumed, [*conversation(), *new])

    capture_all(refold, projects)
    import_files(refold, resumed)

    assert len(context_events(refold, OTHER)) == 8
    assert len(context_events(refold, SESSION)) == 4


def sub_agent(work: Path) -> Path:
    side = {"isSidechain": True, "agentId": AGENT}
    path = work / SESSION / "subagents" / f"agent-{AGENT}.jsonl"
    return write(path, conversation("s", **side)[1:4])


@BOTH_WAYS
def test_a_sub_agent_has_one_name_and_is_recorded_with_its_parent(
    refold: Refold, projects: Path, work: Path, first: Way, second: Way
) -> None:
    path = write(work / f"{SESSION}.jsonl", conversation())
    sub_agent(work)

    first(refold, projects, path)
    second(refold, projects, path)

    assert session_ids(refold) == [SESSION, f"{SESSION}~{AGENT}"]
    assert len(context_events(refold, f"{SESSION}~{AGENT}")) == 3
    assert len(context_events(refold)) == 4


@pytest.mark.parametrize("place", [f"{SESSION}.jsonl", SESSION, "."])
def test_importing_a_session_by_file_or_folder_includes_its_sub_agents(
    refold: Refold, work: Path, place: str
) -> None:
    write(work / f"{SESSION}.jsonl", conversation())
    sub_agent(work)

    report = import_files(refold, work / place)

    assert report["sessions"] == [SESSION, f"{SESSION}~{AGENT}"]
    assert import_files(refold, work / place)["events"] == 0


def test_sub_agents_use_the_name_given_to_their_session(
    refold: Refold, work: Path
) -> None:
    path = write(work / f"{SESSION}.jsonl", conversation())
    sub_agent(work)

    report = refold("import", path, *USER, "--session", "mine", "--json").json()

    assert report["sessions"] == ["mine", f"mine~{AGENT}"]


@BOTH_WAYS
def test_runs_of_old_versions_are_named_by_the_id_of_their_first_entry(
    refold: Refold, projects: Path, work: Path, first: Way, second: Way
) -> None:
    side = [
        entry("user", "11112222-aaaa", "look", isSidechain=True),
        entry("assistant", "b2", "found", isSidechain=True, parentUuid="11112222-aaaa"),
    ]
    path = write(work / f"{SESSION}.jsonl", [*conversation(), *side[:1]])

    first(refold, projects, path)
    write(path, [*conversation(), *side])
    second(refold, projects, path)

    assert session_ids(refold) == [SESSION, f"{SESSION}~11112222"]
    assert len(context_events(refold, f"{SESSION}~11112222")) == 2


def queued(operation: str, **more: Any) -> Entry:
    about = {"type": "queue-operation", "operation": operation}
    return {**about, "sessionId": SESSION, "timestamp": "2026-07-01T10:30:00Z", **more}


@BOTH_WAYS
def test_steering_found_only_in_the_queue_is_recorded_once(
    refold: Refold, projects: Path, work: Path, first: Way, second: Way
) -> None:
    first_half = [
        *conversation()[:3],
        queued("enqueue", content="STEER"),
        queued("remove"),
    ]
    path = write(work / f"{SESSION}.jsonl", first_half)

    first(refold, projects, path)
    write(path, [*first_half, *conversation()[3:]])
    second(refold, projects, path)
    first(refold, projects, path)

    texts = [
        payload.get("text")
        for kind, payload in context_events(refold)
        if "text" in payload
    ]
    assert texts == ["question", "STEER", "answer"]


@BOTH_WAYS
def test_a_queued_message_with_an_entry_is_recorded_once(
    refold: Refold, projects: Path, work: Path, first: Way, second: Way
) -> None:
    attached = {"type": "queued_command", "prompt": "STEER", "commandMode": "prompt"}
    shown = {"type": "attachment", "uuid": "q", "sessionId": SESSION}
    entries = [
        *conversation()[:3],
        queued("enqueue", content="STEER"),
        queued("remove"),
        {**shown, "attachment": attached},
        *conversation()[3:],
    ]
    path = write(work / f"{SESSION}.jsonl", entries)

    first(refold, projects, path)
    second(refold, projects, path)

    texts = [payload.get("text") for kind, payload in context_events(refold)]
    assert texts.count("STEER") == 1


def test_concurrent_import_and_capture_record_each_entry_once(
    refold: Refold, projects: Path, work: Path, tmp_path: Path
) -> None:
    entries = [entry for number in range(150) for entry in conversation(f"{number}-")]
    path = write(work / f"{SESSION}.jsonl", entries)
    refold("import", write(tmp_path / "x.jsonl", conversation("x")), "--user", "bob")
    run = [sys.executable, "-m", "refold"]
    commands = [
        [*run, "import", str(path), *USER],
        [*run, "capture", "claude-code", *USER, "--folder", str(projects), "--once"],
    ]

    processes = [
        subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        for command in commands
    ]
    errors = [process.communicate()[1] for process in processes]

    assert [process.returncode for process in processes] == [0, 0], errors
    questions = [
        payload for kind, payload in context_events(refold) if kind == "user_input"
    ]
    assert len(questions) == 150
    assert len({question["text"] for question in questions}) == 150
    assert len(context_events(refold)) == 600
    verify_store(refold)


KILLED_IMPORT = """
import os, signal
from refold.adapters.cli import main, output
reach, left = output.Progress.reach, [3]
def counted(self, *place):
    reach(self, *place)
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
output.Progress.reach = counted
main(["import", {path!r}, "--user", "ada"])
"""


def test_capture_completes_a_killed_import(
    refold: Refold, projects: Path, work: Path, tmp_path: Path
) -> None:
    entries = [entry for number in range(150) for entry in conversation(f"{number}-")]
    path = write(work / f"{SESSION}.jsonl", entries)
    script = KILLED_IMPORT.format(path=str(path))

    killed = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=False)
    before = len(context_events(refold))
    capture_all(refold, projects)

    assert killed.returncode == -signal.SIGKILL
    assert 0 < before < 600
    assert len(context_events(refold)) == 600
    assert import_files(refold, path)["events"] == 0
    verify_store(refold)


KILLED_CAPTURE = """
import os, signal
from refold.adapters.cli import main
from refold.adapters.importers import follower
append, left = follower.Follower._append, [2]
def counted(self, *given):
    append(self, *given)
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
follower.Follower._append = counted
main(["capture", "claude-code", "--user", "ada", "--folder", {folder!r}, "--once"])
"""


def test_import_completes_a_killed_capture(
    refold: Refold, projects: Path, work: Path, tmp_path: Path
) -> None:
    entries = [entry for number in range(150) for entry in conversation(f"{number}-")]
    path = write(work / f"{SESSION}.jsonl", entries)
    script = KILLED_CAPTURE.format(folder=str(projects))

    killed = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, check=False, env=os.environ
    )
    before = len(context_events(refold))
    import_files(refold, path)

    assert killed.returncode == -signal.SIGKILL
    assert 0 < before < 600
    assert len(context_events(refold)) == 600
    capture_all(refold, projects)
    assert len(context_events(refold)) == 600
    verify_store(refold)


@BOTH_WAYS
def test_sub_agents_of_a_workflow_are_recorded_with_its_session(
    refold: Refold, projects: Path, work: Path, first: Way, second: Way
) -> None:
    path = write(work / f"{SESSION}.jsonl", conversation())
    nested = sub_agent(work)
    run = nested.parent / "workflows" / "run-1"
    run.mkdir(parents=True)
    nested.rename(run / nested.name)

    first(refold, projects, path)
    second(refold, projects, path)

    assert session_ids(refold) == [SESSION, f"{SESSION}~{AGENT}"]
    assert len(context_events(refold, f"{SESSION}~{AGENT}")) == 3


@BOTH_WAYS
def test_import_and_capture_record_the_same_when_thinking_is_dropped(
    refold: Refold, projects: Path, work: Path, first: Way, second: Way
) -> None:
    """Redaction drops a thinking block in which it finds something."""
    signature = "EsoFCkYICxgCKkBk2IAClPo4EZR" * 10
    thought = {"type": "thinking", "thinking": "Ask bob@example.org."}
    thought["signature"] = signature
    entries = [*conversation()[:2], entry("assistant", "a0", [thought])]
    path = write(work / f"{SESSION}.jsonl", [*entries, *conversation()[2:]])

    first(refold, projects, path)
    before = context_events(refold)
    second(refold, projects, path)

    usage = {"input_tokens": 5, "output_tokens": 2}
    assert before[1] == (
        "agent_response",
        {"text": "", "thinking": [], "usage": usage},
    )
    assert context_events(refold) == before
