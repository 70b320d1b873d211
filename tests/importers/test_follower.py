"""Live capture: each complete entry is in the log once, redacted."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.adapters.capture_state import forget_user, states_of
from refold.adapters.importers import follower as follower_module
from refold.adapters.importers.follower import (
    AlreadyCaptured,
    Follower,
    Unreadable,
    status,
)
from refold.domain.errors import Erased, Frozen, InvalidConfiguration
from refold.domain.events import AgentResponse, ToolCall, ToolResult, UserInput
from refold.domain.session import AnswersOfCalls
from refold.redaction.policy import Policy
from refold.store import Session, SessionStore
from refold.store.appends import _OpenCalls
from tests.importers.samples import CLAUDE_CODE, CODEX, SESSION, write_lines
from tests.support import capturing
from tests.support.capturing import USER


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path / "home"))
    projects = tmp_path / "projects" / "-work"
    projects.mkdir(parents=True)
    return projects


@pytest.fixture
def store() -> SessionStore:
    return refold.open("memory://")


def captured(store: SessionStore, folder: Path, client: str = "claude-code") -> int:
    follower = Follower(store, client, user_id=USER, folder=folder.parent)
    with follower.alone():
        return follower.look()


def entry(number: int, **more: Any) -> dict[str, Any]:
    message = {"role": "user", "content": f"text {number}"}
    about = {"type": "user", "uuid": f"u-{number}", "sessionId": "s", **more}
    return {**about, "timestamp": "2026-03-01T10:00:00Z", "message": message}


def line(number: int, **more: Any) -> bytes:
    return json.dumps(entry(number, **more)).encode() + b"\n"


def session(store: SessionStore, name: str = "s") -> Session:
    return store.session(user_id=USER, session_id=name)


def ids(store: SessionStore, name: str = "s") -> list[str]:
    return [item.value["uuid"] for item in session(store, name).native.read()]


def test_entries_survive_kills_sweeps_rotations_and_rewrites(
    folder: Path, tmp_path: Path
) -> None:
    client = capturing.Client(tmp_path / "soaked", seed=1)
    client.home.joinpath("home").symlink_to(os.environ["REFOLD_HOME"])

    done = client.run(200)

    assert len(done) == 10, "each kind of disturbance was there"
    assert [*capturing.differences(client)] == []


def test_a_line_is_captured_once_it_is_complete(
    store: SessionStore, folder: Path
) -> None:
    path = folder / "s.jsonl"
    path.write_bytes(line(1) + line(2)[:40])

    assert captured(store, folder) == 1
    path.write_bytes(line(1) + line(2)[:-1])  # no end of line, and nothing is missing
    assert captured(store, folder) == 1
    path.write_bytes(line(1) + line(2) + line(3))
    assert captured(store, folder) == 1

    assert ids(store) == ["u-1", "u-2", "u-3"]


def test_an_entry_behind_a_line_that_was_never_finished_is_found(
    store: SessionStore, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torn = line(1)[:-20]
    (folder / "s.jsonl").write_bytes(torn + line(2) + b"not JSON\n[1]\n" + line(3))

    with caplog.at_level(logging.WARNING):
        assert captured(store, folder) == 2

    assert ids(store) == ["u-2", "u-3"]
    reports = [report.split(" line ")[1] for report in caplog.messages]
    assert reports == [
        "1 is the start of an entry that was never finished",
        "2 is text that is no JSON object",
        "3 is no JSON object",
    ]
    (capture,) = status()
    assert capture["refused"] == 3
    assert [refusal["line"] for refusal in capture["refusals"]] == [1, 2, 3]


def test_every_entry_of_a_line_with_several_is_captured(
    store: SessionStore, folder: Path
) -> None:
    glued = line(2).rstrip() + line(3).rstrip() + line(4)
    (folder / "s.jsonl").write_bytes(line(1) + glued + line(5))

    assert captured(store, folder) == 5

    assert ids(store) == ["u-1", "u-2", "u-3", "u-4", "u-5"]
    assert [capture["refused"] for capture in status()] == [0]


def test_nul_bytes_are_reported_and_the_entries_around_them_captured(
    store: SessionStore, folder: Path
) -> None:
    path = folder / "s.jsonl"
    path.write_bytes(line(1) + b"\0" * 5000)
    assert captured(store, folder) == 1

    with path.open("ab") as file:
        file.write(line(2) + line(3))
    assert captured(store, folder) == 2

    assert ids(store) == ["u-1", "u-2", "u-3"]
    (refusal,) = status()[0]["refusals"]
    assert (refusal["line"], refusal["why"]) == (
        2,
        "holds 5,000 NUL bytes in place of text",
    )


def test_lines_are_numbered_from_the_start_of_the_file(
    store: SessionStore, folder: Path
) -> None:
    path = folder / "s.jsonl"
    path.write_bytes(line(1) + line(2))
    captured(store, folder)
    with path.open("ab") as file:
        file.write(line(3) + b"not JSON\n")
    captured(store, folder)

    assert [refusal["line"] for refusal in status()[0]["refusals"]] == [4]


def test_equal_lines_without_an_id_are_each_captured_once(
    store: SessionStore, folder: Path
) -> None:
    note = b'{"type":"queue-operation","operation":"dequeue","sessionId":"s"}\n'
    path = folder / "s.jsonl"

    def notes() -> int:
        return sum("uuid" not in item.value for item in session(store).native.read())

    path.write_bytes(note + line(1) + note + note)
    assert captured(store, folder) == 4
    assert notes() == 3

    with path.open("ab") as file:  # the file grows
        file.write(note + line(2))
    assert captured(store, folder) == 2
    assert notes() == 4

    forget_user(USER)  # all is read again
    captured(store, folder)
    assert notes() == 4

    copied = path.with_suffix(".copy")  # moved to another file system, say
    copied.write_bytes(path.read_bytes())
    copied.replace(path)
    captured(store, folder)
    assert notes() == 4

    path.write_bytes(line(2) + note + line(1) + note)  # rewritten, and shorter
    captured(store, folder)
    assert notes() == 4
    assert sorted(ids_with_uuid(store)) == ["u-1", "u-2"]


def ids_with_uuid(store: SessionStore) -> list[str]:
    values = [item.value for item in session(store).native.read()]
    return [value["uuid"] for value in values if "uuid" in value]


def test_a_store_that_refuses_for_a_while_does_not_double_equal_lines(
    store: SessionStore, folder: Path
) -> None:
    note = b'{"type":"queue-operation","operation":"dequeue","sessionId":"s"}\n'
    path = folder / "s.jsonl"
    path.write_bytes(note)
    follower = Follower(store, "claude-code", user_id=USER, folder=folder.parent)

    with follower.alone():
        follower.look()
        path.write_bytes(note * 2 + b"not JSON\n")
        store.erasures.freeze(USER, "an inquiry")
        for _ in range(3):
            with pytest.raises(Frozen):
                follower.look()
        store.erasures.unfreeze(USER, "it is over")
        follower.look()

    assert len([*session(store).native.read()]) == 2
    assert [capture["refused"] for capture in status()] == [1]


def test_a_captured_session_equals_an_import(store: SessionStore, folder: Path) -> None:
    path = write_lines(folder, CLAUDE_CODE, "s.jsonl")
    captured(store, folder)
    store.import_transcript(path, user_id="bob", session_id="s")

    ours, theirs = (
        [
            event.payload
            for event in store.session(user_id=user, session_id=name).events()
        ]
        for user, name in ((USER, SESSION), ("bob", "s"))
    )
    assert [event for event in ours if event.type not in ("state", "item")] == theirs
    labels = session(store, SESSION).labels()
    assert labels == {"client": "claude-code", "folder": "-work"}


def test_agents_below_have_sessions_of_their_own(
    store: SessionStore, folder: Path
) -> None:
    below = entry(2, isSidechain=True, agentId="abc")
    write_lines(folder, [entry(1), below, entry(3)], "s.jsonl")
    write_lines(folder, [entry(4, isSidechain=True, agentId="abc")], "agent-abc.jsonl")

    assert captured(store, folder) == 4

    assert ids(store) == ["u-1", "u-3"]
    assert sorted(ids(store, "s~abc")) == ["u-2", "u-4"]


def test_a_rollout_of_codex_is_captured_with_its_cost(
    store: SessionStore, folder: Path
) -> None:
    path = write_lines(folder, CODEX[:4], "rollout-2026-01-01-019a.jsonl")
    captured(store, folder, "codex")
    with path.open("ab") as file:
        file.write(b"".join(json.dumps(entry).encode() + b"\n" for entry in CODEX[4:]))
    captured(store, folder, "codex")

    captured_session = session(store, "019a-run")
    assert [item.value for item in captured_session.native.read()][:3] == CODEX[:3]
    spent = [event.meta for event in captured_session.events() if event.meta.usage]
    assert [event.model for event in spent] == ["gpt-5-codex"]
    kinds = [event.type for event in captured_session.events()]
    assert kinds.count("user_input") == 2
    assert kinds.count("system") == 2
    assert kinds.count("tool_call") == kinds.count("tool_result") == 2


def test_reports_entries_that_cannot_be_appended_and_continues(
    store: SessionStore, folder: Path
) -> None:
    text = json.dumps(entry(2)).replace('"text 2"', "[" * 900 + "]" * 900)
    (folder / "s.jsonl").write_bytes(line(1) + text.encode() + b"\n" + line(3))

    assert captured(store, folder) == 2

    assert ids(store) == ["u-1", "u-3"]
    assert [capture["refused"] for capture in status()] == [1]


def test_a_file_rotated_during_a_listing_is_read_completely(
    store: SessionStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "s.jsonl"
    path.write_bytes(line(1) + line(2))
    follower = Follower(store, "claude-code", user_id=USER, folder=folder.parent)
    listed = follower_module._listed

    def listed_and_rotated(
        below: Path, unreadable: list[Unreadable]
    ) -> list[tuple[str, os.stat_result]]:
        files = [*listed(below, unreadable)]
        path.rename(folder / "s.jsonl.1")
        path.write_bytes(line(3))
        return files

    with follower.alone():
        with monkeypatch.context() as patched:
            patched.setattr(follower_module, "_listed", listed_and_rotated)
            follower.look()
        follower.look()
        follower.look(whole=False)

    assert sorted(ids(store)) == ["u-1", "u-2", "u-3"]


def test_an_erased_user_is_not_captured_again(
    store: SessionStore, folder: Path
) -> None:
    (folder / "s.jsonl").write_bytes(line(1))
    captured(store, folder)
    store.erase(USER, "asked")
    (folder / "s.jsonl").write_bytes(line(1) + line(2))

    with pytest.raises(Erased):
        captured(store, folder)
    assert [*capture_files(folder)] == []


def test_an_erased_session_does_not_block_others(
    store: SessionStore, folder: Path
) -> None:
    for name in ("s", "t"):
        (folder / f"{name}.jsonl").write_bytes(line(1, sessionId=name))
    captured(store, folder)
    store.erase(USER, "asked", session_id="s")
    for name in ("s", "t"):
        with (folder / f"{name}.jsonl").open("ab") as file:
            file.write(line(2, sessionId=name))

    assert captured(store, folder) == 1

    assert ids(store, "t") == ["u-1", "u-2"]
    (refusal,) = status()[0]["refusals"]
    assert "was refused: the session was erased" in refusal["why"]


def capture_files(folder: Path) -> Iterator[Path]:
    """Return what captures have written below the home of Refold."""
    yield from (folder.parents[1] / "home" / "capture").iterdir()


def test_the_state_of_a_user_is_found_and_removed(
    store: SessionStore, folder: Path
) -> None:
    (folder / "s.jsonl").write_bytes(line(1))
    captured(store, folder)
    other = Follower(store, "claude-code", user_id="bob", folder=folder.parent)
    with other.alone():
        other.look()
    before = {*capture_files(folder)}

    removed = forget_user(USER)

    assert {*capture_files(folder)} == before - {*removed}
    assert states_of(USER) == []
    assert [capture["user"] for capture in status()] == ["bob"]
    left = b"".join(path.read_bytes() for path in capture_files(folder))
    assert json.dumps(USER).encode() not in left


def test_a_follower_whose_state_was_removed_does_not_write_it_again(
    store: SessionStore, folder: Path
) -> None:
    path = folder / "s.jsonl"
    path.write_bytes(line(1))
    follower = Follower(store, "claude-code", user_id=USER, folder=folder.parent)

    with follower.alone():
        follower.look()
        forget_user(USER)
        path.write_bytes(line(1) + line(2))
        with pytest.raises(InvalidConfiguration, match="was removed"):
            follower.look()

    assert [*capture_files(folder)] == []
    assert ids(store) == ["u-1"]


def test_a_folder_is_followed_by_one_process(store: SessionStore, folder: Path) -> None:
    first = Follower(store, "codex", user_id=USER, folder=folder)
    second = Follower(store, "codex", user_id=USER, folder=folder)

    with (
        first.alone(),
        pytest.raises(AlreadyCaptured, match=f"process {os.getpid()} already"),
        second.alone(),
    ):
        pass
    with second.alone():
        pass


def test_a_look_that_was_asked_for_while_another_ended_is_made(
    store: SessionStore, folder: Path
) -> None:
    path = folder / "s.jsonl"
    path.write_bytes(line(1))
    first = Follower(store, "claude-code", user_id=USER, folder=folder.parent)
    second = Follower(store, "claude-code", user_id=USER, folder=folder.parent)

    with first.alone():
        first.look()
        path.write_bytes(line(1) + line(2))  # behind the place that it has passed
        assert second.catch_up() is None
    assert first.answer_requests() == (1, 0)

    assert ids(store) == ["u-1", "u-2"]
    assert first.answer_requests() is None


@pytest.mark.parametrize("stored", [b"", b"{}", b'{"appended": 1}', b"\xff"])
def test_a_broken_position_file_costs_only_repeated_work(
    store: SessionStore, folder: Path, stored: bytes
) -> None:
    (folder / "s.jsonl").write_bytes(line(1))
    captured(store, folder)
    places = states_of(USER)[0].places
    places.write_bytes(stored)
    (folder / "s.jsonl").write_bytes(line(1) + line(2))

    captured(store, folder)

    assert ids(store) == ["u-1", "u-2"]


def rollout(name: str, text: str) -> bytes:
    stamp = "2026-03-01T10:00:00Z"
    about = {"type": "session_meta", "timestamp": stamp, "payload": {"id": name}}
    content = [{"type": "input_text", "text": text}]
    message = {"type": "message", "role": "user", "content": content}
    spoken_entry = {"type": "response_item", "timestamp": stamp, "payload": message}
    return b"".join(
        json.dumps(entry).encode() + b"\n" for entry in (about, spoken_entry)
    )


def test_a_new_file_with_the_inode_of_an_old_one_is_a_new_session(
    store: SessionStore, folder: Path
) -> None:
    names = [f"{digit * 8}-1111-4111-8111-111111111111" for digit in "12"]
    first, second = (folder / f"rollout-{name}.jsonl" for name in names)
    first.write_bytes(rollout(names[0], "one"))
    captured(store, folder, "codex")

    first.rename(second)  # as if the inode of a removed file were used again
    second.write_bytes(rollout(names[1], "two"))
    captured(store, folder, "codex")

    assert [info.session_id for info in store.sessions(USER)] == names
    counts = [len([*session(store, name).native.read()]) for name in names]
    assert counts == [2, 2]


def test_a_file_whose_name_is_not_unicode_is_captured(
    store: SessionStore, folder: Path
) -> None:
    path = os.fsencode(folder) + b"\xff"
    os.mkdir(path)
    with open(path + b"/s\xfe.jsonl", "wb") as file:
        file.write(line(1))
        file.flush()
        assert captured(store, folder) == 1
        file.write(line(2))
    assert captured(store, folder) == 1

    assert ids(store) == ["u-1", "u-2"]
    assert [capture["bytes"] for capture in status()] == [0]


DOCUMENTS = [
    json.dumps({"name": "x", "list": [{"a": 1}, {}], "deep": {"b": None}}, indent=2),
    json.dumps([{"a": 1}, 2, ["x"]], indent="\t"),
    "\n{\n}\n",
    "\ufeff" + json.dumps({"a": 1}, indent=1),
    '[\n{"a": 1},\n{"a": 2}\n]\n',
]


@pytest.mark.parametrize("text", DOCUMENTS)
def test_a_json_document_of_many_lines_is_reported_once(
    store: SessionStore,
    folder: Path,
    text: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (folder / "settings.jsonl.json").write_text(text)
    (folder / "s.jsonl").write_bytes(line(1))
    follower = Follower(store, "claude-code", user_id=USER, folder=folder.parent)

    with follower.alone(), caplog.at_level(logging.WARNING):
        follower.look()
        follower.look()

    (refusal,) = follower.refusals
    assert refusal.line == 1
    assert "JSON document of several lines" in refusal.why
    assert len(caplog.records) == 1
    assert [info.session_id for info in store.sessions(USER)] == ["s"]


def test_a_json_document_is_reported_once_while_it_is_written_and_rewritten(
    store: SessionStore, folder: Path
) -> None:
    path = folder / "notes.jsonl"
    text = json.dumps({"name": "x", "list": [1, 2, {"a": "b"}]}, indent=2)
    follower = Follower(store, "claude-code", user_id=USER, folder=folder.parent)

    with follower.alone():
        for end in (4, 20, len(text)):
            path.write_text(text[:end])
            follower.look()
    path.write_text(text.replace("x", "y"))
    again = Follower(store, "claude-code", user_id=USER, folder=folder.parent)
    with again.alone():
        again.look()

    assert len(again.refusals) == 1
    assert not store.sessions(USER)


def test_entries_after_the_beginning_of_a_document_are_captured(
    store: SessionStore, folder: Path
) -> None:
    path = folder / "s.jsonl"
    path.write_bytes(b'{"message":\n')
    captured(store, folder)

    with path.open("ab") as file:
        file.write(line(1) + line(2))
    captured(store, folder)

    assert ids(store) == ["u-1", "u-2"]


def test_a_list_with_an_entry_a_line_is_captured_but_for_its_brackets(
    store: SessionStore, folder: Path
) -> None:
    entries = b",".join([line(1), line(2)])
    (folder / "s.jsonl").write_bytes(b"[\n" + entries + b"]\n")

    captured(store, folder)

    assert ids(store) == ["u-1", "u-2"]


def test_links_to_folders_are_followed_once(
    store: SessionStore, folder: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "s.jsonl").write_bytes(line(1))
    (folder / "link").symlink_to(elsewhere)
    (elsewhere / "back").symlink_to(folder)

    assert captured(store, folder) == 1

    assert ids(store) == ["u-1"]


def test_known_entries_are_not_counted_as_appended(
    store: SessionStore, folder: Path
) -> None:
    path = folder / "s.jsonl"
    path.write_bytes(line(1) + line(2))
    assert captured(store, folder) == 2

    path.write_bytes(line(3) + line(1) + line(2) + line(3))
    assert captured(store, folder) == 1

    assert [capture["appended"] for capture in status()] == [3]


def test_a_file_that_cannot_be_read_is_reported_until_it_can(
    store: SessionStore,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    closed = folder / "s.jsonl"
    closed.write_bytes(line(1))
    (folder / "t.jsonl").write_bytes(line(2, sessionId="t"))
    is_closed = True

    def opened(path: str, mode: str) -> object:
        if is_closed and path == str(closed):
            raise PermissionError(13, "Permission denied", path)
        return open(path, mode)

    # The tests may run as root, who may read everything.
    monkeypatch.setattr(follower_module, "open", opened, raising=False)
    follower = Follower(store, "claude-code", user_id=USER, folder=folder.parent)
    with follower.alone():
        assert follower.look() == 1
        assert follower.look() == 0
        unreadable = [*follower.unreadable]
        reported = status()[0]["unreadable"]
        is_closed = False
        assert follower.look() == 1

    why = "cannot be read: check its permissions"
    assert unreadable == [(str(closed), why)]
    assert reported == [{"path": str(closed), "why": why}]
    assert caplog.messages == [f"{closed} {why}"]
    assert follower.unreadable == []


def test_capture_continues_if_it_cannot_save_its_position(
    store: SessionStore, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "s.jsonl").write_bytes(line(1))
    follower = Follower(store, "claude-code", user_id=USER, folder=folder.parent)
    with follower.alone():
        follower.state.places.with_suffix(".new").mkdir()
        assert follower.look() == 1
        with (folder / "s.jsonl").open("ab") as file:
            file.write(line(2))
        assert follower.look() == 1

    (warning,) = caplog.messages
    assert "cannot be written (is a directory): capture goes on" in warning


# The calls of one answer, those with a text between them, and a call of an interrupted
# answer: each entry's blocks, and the number of the call that each result answers.
REPEATED_IDS: dict[str, tuple[list[Any], dict[str, int]]] = {
    "one answer": ([1, 2, "result 1", "result 2"], {"result 1": 1, "result 2": 2}),
    "a text between": (
        [1, "More.", 2, "result 1", "result 2"],
        {"result 1": 1, "result 2": 2},
    ),
    "an interrupted answer": ([1, "Stop.", 2, "result 2"], {"result 2": 2}),
}


@pytest.mark.parametrize("step_by_step", [False, True])
@pytest.mark.parametrize("name", REPEATED_IDS)
def test_a_second_open_call_with_an_id_is_recorded_with_its_result(
    store: SessionStore, folder: Path, name: str, *, step_by_step: bool
) -> None:
    contents, expected = REPEATED_IDS[name]
    path = folder / "s.jsonl"
    lines = [line(0)]
    for number, content in enumerate(contents, start=1):
        role = "user" if content == "Stop." or "result" in str(content) else "assistant"
        block: dict[str, Any] = {"type": "text", "text": content}
        if isinstance(content, int):
            block = {"type": "tool_use", "id": "c", "name": "run"}
            block["input"] = {"number": content}
        elif "result" in content:
            block = {"type": "tool_result", "tool_use_id": "c", "content": content}
        message = {"role": role, "content": [block]}
        parent = f"u-{number - 1}"
        value = {**entry(number), "type": role, "parentUuid": parent}
        lines.append(json.dumps({**value, "message": message}).encode() + b"\n")

    counts = range(1, len(lines) + 1) if step_by_step else [len(lines)]
    for count in counts:
        path.write_bytes(b"".join(lines[:count]))
        captured(store, folder)
    answered: dict[str, Any] = {}
    numbers: dict[str, Any] = {}
    for event in session(store).events(types=("tool_call", "tool_result")):
        payload = event.payload
        if isinstance(payload, ToolCall) and isinstance(payload.arguments, dict):
            numbers[payload.call_id] = payload.arguments["number"]
        elif isinstance(payload, ToolResult):
            answered[str(payload.content)] = numbers[payload.call_id]

    assert answered == expected
    assert sorted(numbers.values()) == [1, 2]


def test_a_call_that_an_entry_repeats_is_recorded_once(
    store: SessionStore, folder: Path
) -> None:
    block = {"type": "tool_use", "id": "c", "name": "run", "input": {"number": 1}}
    message = {"role": "assistant", "content": [block]}
    lines = [line(0)]
    for number in (1, 2):
        value = {**entry(number), "type": "assistant", "message": message}
        value["parentUuid"] = f"u-{number - 1}"
        lines.append(json.dumps(value).encode() + b"\n")
    (folder / "s.jsonl").write_bytes(b"".join(lines))

    captured(store, folder)

    assert len(session(store).events(types=("tool_call",))) == 1


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("write to ada@example.org", "version = 1"),
        ("write to ada@example.org", "version = 1\nnumbered = true"),
        ("word " * 60_000, "version = 1"),
    ],
    ids=["redacted", "numbered", "in a blob"],
)
def test_a_later_entry_that_repeats_a_stored_call_is_no_second_call(
    folder: Path, tmp_path: Path, text: str, policy: str
) -> None:
    block = {"type": "tool_use", "id": "c", "name": "run", "input": {"text": text}}
    message = {"role": "assistant", "content": [block]}
    path = folder / "s.jsonl"
    path.write_bytes(line(0))
    database = tmp_path / "other.db"
    with refold.open(database, policy=Policy.parse(f"{policy}\n")) as store:
        for number in (1, 2):
            value = {**entry(number), "type": "assistant", "message": message}
            value["parentUuid"] = f"u-{number - 1}"
            with path.open("ab") as file:
                file.write(json.dumps(value).encode() + b"\n")
            captured(store, folder)

        assert len(session(store).events(types=("tool_call",))) == 1


def test_an_append_reads_no_events_while_two_open_calls_have_one_id(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_user = session(store)
    calls = [ToolCall(call_id="c", tool_name=name) for name in ("run", "walk")]
    of_user.append([UserInput(text="Go."), AgentResponse(), *calls])
    log = of_user.writer.log
    read: list[Any] = []

    def recorded_read(self: Any, *arguments: Any, **options: Any) -> Any:
        envelopes = original(self, *arguments, **options)
        read.extend(envelopes)
        return envelopes

    original = type(log).read
    monkeypatch.setattr(type(log), "read", recorded_read)
    of_user.append(UserInput(text="And now?"))
    assert read == []

    answers = of_user.writer._answers_of_open_calls(of_user.head().state)
    for _ in range(2):
        assert answers.copy().in_newest([3, 4]) == [3, 4]
    assert len(read) == 3  # copies share what was read

    of_user.append(ToolResult(call_id="c", content="of the first"))
    assert len(read) == 6


def test_an_inherited_call_may_equal_any_call_with_its_id(store: SessionStore) -> None:
    of_user = session(store)
    call = ToolCall(call_id="c", tool_name="run", arguments={"number": 1})
    of_user.append([UserInput(text="Go."), AgentResponse(), call])
    fork = of_user.fork(3, session_id="fork")
    fork.append([UserInput(text="Go on."), UserInput(text="Now.")])

    open_calls = _OpenCalls(fork.writer.log, AnswersOfCalls())
    other = ToolCall(call_id="c", tool_name="run", arguments={"number": 2})

    assert open_calls.repeats(fork.head().state, other)
    open_calls = _OpenCalls(of_user.writer.log, AnswersOfCalls())
    assert not open_calls.repeats(of_user.head().state, other)


def test_a_result_belongs_to_the_newest_answer_with_its_call_id(
    store: SessionStore,
) -> None:
    of_user = session(store)
    of_user.append(UserInput(text="Go."))
    of_user.append([AgentResponse(), ToolCall(call_id="c", tool_name="run")])
    of_user.append(UserInput(text="Stop."))
    of_user.append([AgentResponse(), ToolCall(call_id="c", tool_name="run")])
    of_user.append(ToolResult(call_id="c", content="of the second"))

    *_, call, result = of_user.events(types=("tool_call", "tool_result"))
    assert isinstance(call.payload, ToolCall)
    assert isinstance(result.payload, ToolResult)
    assert call.payload.call_id == result.payload.call_id
