"""A transcript that the Claude Agent SDK mirrors is one session with its imports."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from claude_agent_sdk import import_session_to_store

import refold
from refold.adapters.frameworks.claude_sdk import LinesMissing, RefoldSessionStore
from refold.adapters.importers.follower import Follower

SESSION = "7d1e0000-0000-4000-8000-000000000001"
PROJECT = "-srv-app"
AGENT = "a684a997ade4fcdac"
KEY: Any = {"project_key": PROJECT, "session_id": SESSION}
SUB_KEY: Any = {**KEY, "subpath": f"subagents/agent-{AGENT}"}
Entry = dict[str, Any]
MODE: Entry = {"type": "mode", "mode": "normal", "sessionId": SESSION}


def entry(kind: str, uuid: str, content: Any, **more: Any) -> Entry:
    message: Entry = {"role": kind, "content": content}
    if kind == "assistant":
        message |= {"id": f"m-{uuid}", "model": "claude-x"}
    return {
        "type": kind,
        "uuid": uuid,
        "sessionId": SESSION,
        "isSidechain": False,
        "timestamp": "2026-07-01T10:00:00Z",
        "message": message,
        **more,
    }


def queued(operation: str, **more: Any) -> Entry:
    about = {"type": "queue-operation", "operation": operation}
    return {**about, "sessionId": SESSION, "timestamp": "2026-07-01T10:30:00Z", **more}


def conversation(prefix: str = "", **more: Any) -> list[Entry]:
    call = {"type": "tool_use", "id": f"{prefix}c1", "name": "Bash", "input": {}}
    result = {"type": "tool_result", "tool_use_id": f"{prefix}c1", "content": "ok"}
    text = {"type": "text", "text": f"{prefix}answer"}
    return [
        MODE,
        entry("user", f"{prefix}u1", f"{prefix}question", **more),
        entry("assistant", f"{prefix}a1", [call], **more),
        MODE,
        queued("enqueue", content=f"{prefix}steer"),
        queued("remove"),
        entry("user", f"{prefix}u2", [result], **more),
        MODE,
        entry("assistant", f"{prefix}a2", [text], **more),
    ]


def sub_conversation() -> list[Entry]:
    entries = conversation("s", isSidechain=True, agentId=AGENT)
    return [entry for entry in entries if "uuid" in entry]


@pytest.fixture
def store(url: str) -> Iterator[refold.SessionStore]:
    with refold.open(url) as opened:
        yield opened


@pytest.fixture
def projects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path / "home"))
    client = tmp_path / "client"
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(client))
    folder = client / "projects"
    (folder / PROJECT).mkdir(parents=True)
    return folder


def transcript(projects: Path, key: Any = KEY) -> Path:
    part = key.get("subpath")
    folder = projects / PROJECT
    return folder / f"{SESSION}/{part}.jsonl" if part else folder / f"{SESSION}.jsonl"


def write(projects: Path, entries: list[Entry], key: Any = KEY) -> Path:
    path = transcript(projects, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(entry, separators=(",", ":")) for entry in entries]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def mirror(store: refold.SessionStore) -> RefoldSessionStore:
    return RefoldSessionStore(store, user_id="ada")


def append(mirrored: RefoldSessionStore, entries: list[Entry], key: Any = KEY) -> None:
    asyncio.run(mirrored.append(key, entries))


def load(store: refold.SessionStore, key: Any = KEY) -> list[Entry] | None:
    return asyncio.run(mirror(store).load(key))


def by_mirror(store: refold.SessionStore, projects: Path) -> None:
    """Send the complete transcript, like a client whose mirror was behind."""
    importing = import_session_to_store(SESSION, mirror(store), batch_size=4)
    asyncio.run(importing)


def by_import(store: refold.SessionStore, projects: Path) -> None:
    store.import_transcript(transcript(projects), user_id="ada")


def by_capture(store: refold.SessionStore, projects: Path) -> None:
    follower = Follower(store, "claude-code", user_id="ada", folder=projects)
    with follower.alone():
        follower.look()


Way = Callable[[refold.SessionStore, Path], None]


def typed(store: refold.SessionStore, session_id: str = SESSION) -> list[Any]:
    """Return the events of a session that contexts use."""
    session = store.session(user_id="ada", session_id=session_id)
    return [
        event.payload.payload() | {"type": event.type}
        for event in session.events()
        if event.type not in ("item", "state")
    ]


def inputs(store: refold.SessionStore) -> list[str]:
    return [event["text"] for event in typed(store) if event["type"] == "user_input"]


def names(store: refold.SessionStore) -> list[str]:
    return [info.session_id for info in store.sessions()]


@pytest.mark.parametrize("ways", list(permutations((by_mirror, by_import, by_capture))))
def test_a_transcript_is_one_session_whatever_ways_it_comes_in(
    store: refold.SessionStore, projects: Path, ways: tuple[Way, ...]
) -> None:
    write(projects, conversation())
    write(projects, sub_conversation(), SUB_KEY)

    ways[0](store, projects)
    first = typed(store)
    for way in ways[1:]:
        way(store, projects)

    assert names(store) == [SESSION, f"{SESSION}~{AGENT}"]
    kinds = [event["type"] for event in first]
    assert kinds == [
        "user_input",
        "tool_call",
        "tool_result",
        "user_input",
        "agent_response",
    ]
    assert typed(store) == first
    assert inputs(store) == ["question", "steer"]
    assert len(typed(store, f"{SESSION}~{AGENT}")) == 4
    for info, verified in store.verify("ada"):
        assert not verified.problems, info


@pytest.mark.parametrize("ways", list(permutations((by_mirror, by_import, by_capture))))
def test_ways_in_may_alternate_while_the_transcript_grows(
    store: refold.SessionStore, projects: Path, ways: tuple[Way, ...]
) -> None:
    entries = [*conversation(), *conversation("x"), *conversation("y")]
    for end in range(1, len(entries) + 1):
        write(projects, entries[:end])
        ways[end % 3](store, projects)

    for way in ways:
        way(store, projects)

    assert names(store) == [SESSION]
    assert sorted(inputs(store)) == [
        "question",
        "steer",
        "xquestion",
        "xsteer",
        "yquestion",
        "ysteer",
    ]
    assert len(typed(store)) == 15


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("size", [1, 2, 5, 100])
def test_equal_lines_without_an_id_are_all_there_in_their_order(
    store: refold.SessionStore, size: int, restarts: bool
) -> None:
    entries = [*conversation(), MODE, MODE, *conversation("x"), MODE]
    mirrored = mirror(store)
    for start in range(0, len(entries), size):
        if restarts:
            mirrored = mirror(store)
        append(mirrored, entries[start : start + size])

    assert load(store) == entries


def test_a_restarted_client_continues_behind_a_capture(
    store: refold.SessionStore, projects: Path
) -> None:
    """The capture has read what the client will mirror next."""
    before = [*conversation(), MODE]
    after = [MODE, *conversation("x"), MODE]
    append(mirror(store), before)
    write(projects, [*before, *after])
    by_capture(store, projects)

    append(mirror(store), after)

    assert load(store) == [*before, *after]


def test_a_repeated_transcript_adds_nothing(
    store: refold.SessionStore, projects: Path
) -> None:
    entries = [*conversation(), MODE, *conversation("x")]
    write(projects, entries)
    mirrored = mirror(store)
    append(mirrored, entries)

    append(mirrored, entries)
    by_mirror(store, projects)

    assert load(store) == entries


def test_a_captured_session_is_listed_and_loaded_with_all_of_its_lines(
    store: refold.SessionStore, projects: Path
) -> None:
    write(projects, conversation())
    write(projects, sub_conversation(), SUB_KEY)
    by_capture(store, projects)
    mirrored = mirror(store)

    assert load(store) == conversation()
    assert load(store, SUB_KEY) == sub_conversation()
    assert asyncio.run(mirrored.list_subkeys(KEY)) == [SUB_KEY["subpath"]]
    listed = asyncio.run(mirrored.list_sessions(PROJECT))
    assert [info["session_id"] for info in listed] == [SESSION]
    assert asyncio.run(mirrored.list_sessions("-srv-other")) == []
    summaries = asyncio.run(mirrored.list_session_summaries(PROJECT))
    assert summaries[0]["data"]["first_prompt"] == "question"


def test_an_imported_session_goes_on_and_is_not_loaded_in_part(
    store: refold.SessionStore, projects: Path
) -> None:
    write(projects, conversation())
    by_import(store, projects)

    append(mirror(store), [*conversation(), *conversation("x")])

    assert len(typed(store)) == 10
    with pytest.raises(LinesMissing, match="seq 1 was imported"):
        load(store)


def test_an_import_of_a_mirrored_session_does_not_stop_its_load(
    store: refold.SessionStore, projects: Path
) -> None:
    append(mirror(store), conversation())
    write(projects, conversation())

    by_import(store, projects)

    assert load(store) == conversation()


def test_another_project_has_its_own_session(
    store: refold.SessionStore, projects: Path
) -> None:
    other: Any = {**KEY, "project_key": "-srv-other"}
    write(projects, conversation())
    by_capture(store, projects)

    append(mirror(store), conversation("x"), other)

    assert load(store) == conversation()
    assert load(store, other) == conversation("x")
    assert len(typed(store)) == 5


def test_a_deleted_session_may_begin_again(
    store: refold.SessionStore, projects: Path
) -> None:
    write(projects, conversation())
    write(projects, sub_conversation(), SUB_KEY)
    by_import(store, projects)
    mirrored = mirror(store)

    asyncio.run(mirrored.delete(KEY))

    assert names(store) == []
    assert load(store) is None
    append(mirrored, conversation("x"))
    assert load(store) == conversation("x")
    asyncio.run(mirrored.delete(KEY))
    assert load(store) is None


def test_a_session_is_deleted_while_the_rows_of_an_earlier_one_remain(
    store: refold.SessionStore, projects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def delete_no_rows(name: object, work: object) -> bool:
        return True

    monkeypatch.setattr(store.upkeep.background, "ask", delete_no_rows)
    write(projects, conversation())
    by_import(store, projects)
    mirrored = mirror(store)
    asyncio.run(mirrored.delete(KEY))
    append(mirrored, conversation("x"))

    asyncio.run(mirrored.delete(KEY))

    assert asyncio.run(mirrored.list_sessions(KEY["project_key"])) == []
    assert load(store) is None


def test_an_entry_that_is_nested_too_deeply_is_refused_alone(
    store: refold.SessionStore,
) -> None:
    value: object = "x"
    for _ in range(3_000):
        value = [value]
    mirrored = mirror(store)
    append(mirrored, conversation())

    with pytest.raises(refold.InvalidEvent, match="nested too deeply"):
        append(mirrored, [{**MODE, "deep": value}])

    append(mirrored, [MODE])
    assert load(store) == [*conversation(), MODE]
