"""The files of the memory tool are in the log: one way in, no text lost, all erased."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from anthropic.lib.tools import ToolError
from hypothesis import given, strategies as st

import refold
from refold.adapters.claude.capture import AsyncMemoryTool, MemoryTool
from refold.adapters.claude.tools import MemoryFiles, UserFiles
from refold.domain.erasure import RetentionPolicy
from refold.domain.events import StateUpdate
from refold.domain.ids import USER_SESSION
from refold.projections.memory.tool import run
from refold.redaction.guard import Limits
from refold.store import Session, SessionStore
from tests.claude.test_memory_commands import COMMANDS, after
from tests.support.messages_api import MessagesApi, message, tool_use
from tests.support.stores import open_at

NOTES = "/memories/notes.md"
Doing = Callable[..., str]


@pytest.fixture
def files(session: Session) -> MemoryFiles:
    return MemoryFiles(session)


def told(files: MemoryFiles, **command: Any) -> str:
    return files.run(command).text


def create(files: MemoryFiles, text: str, path: str = NOTES) -> str:
    return told(files, command="create", path=path, file_text=text)


def call(number: int, **command: Any) -> dict[str, Any]:
    return tool_use("memory", command, call_id=f"toolu_{number}")


def test_files_are_the_same_in_all_sessions_of_a_user_and_in_no_others(
    store: SessionStore, files: MemoryFiles
) -> None:
    create(files, "one\n")

    other = MemoryFiles(store.session(user_id="ada", session_id="s-2"))
    of_bob = MemoryFiles(store.session(user_id="bob", session_id="s-1"))

    assert other.texts() == {NOTES: "one\n"}
    assert of_bob.texts() == {}
    assert of_bob.run({"command": "view", "path": NOTES}).is_error


def test_what_must_not_be_kept_is_replaced_and_no_path_holds_it(
    store: SessionStore, files: MemoryFiles
) -> None:
    create(files, "mail bob@build.test")

    refused = files.run(
        {
            "command": "rename",
            "old_path": NOTES,
            "new_path": "/memories/bob@build.test.md",
        }
    )

    assert files.texts() == {NOTES: "mail [REDACTED:EMAIL]"}
    assert refused.is_error
    assert "bob@" not in refused.text
    assert store.session(user_id="ada", session_id=USER_SESSION).verify().problems == []


def test_every_version_is_there_at_its_seq(files: MemoryFiles) -> None:
    create(files, "one\n")
    told(files, command="str_replace", path=NOTES, old_str="one", new_str="two")
    told(files, command="delete", path=NOTES)

    assert [files.texts(at) for at in range(4)] == [
        {},
        {NOTES: "one\n"},
        {NOTES: "two\n"},
        {},
    ]
    with pytest.raises(refold.InvalidEvent):
        files.texts(-1)


@given(st.lists(COMMANDS, max_size=12))
def test_the_log_holds_what_the_commands_make(commands: list[Any]) -> None:
    with refold.open("memory://") as store:
        files, made = (
            MemoryFiles(store.session(user_id="ada", session_id="s")),
            dict[str, str](),
        )
        for command in commands:
            expected = run(made, command)
            made = after(made, expected)

            done = files.run(command)

            assert done == expected
            assert files.texts() == made


def test_a_large_file_is_read_and_changed_whole(files: MemoryFiles) -> None:
    text = "".join(f"line {number}\n" for number in range(20_000))
    create(files, text)

    edited = files.run(
        {"command": "insert", "path": NOTES, "insert_line": 10_000, "insert_text": "x"}
    )
    view = told(files, command="view", path=NOTES, view_range=[10_000, 10_002])

    assert not edited.is_error
    lines = [f"line {number}\n" for number in range(20_000)]
    assert files.texts()[NOTES] == "".join([*lines[:10_000], "x\n", *lines[10_000:]])
    assert view.splitlines()[1:] == [
        " 10000\tline 9999",
        " 10001\tx",
        " 10002\tline 10000",
    ]


def test_what_is_too_large_is_refused_and_nothing_is_written(
    store: SessionStore, session: Session
) -> None:
    small = SessionStore(store.log, session.writer.redactor, Limits(1024, 4096))
    files = MemoryFiles(small.session(user_id="ada", session_id="s-1"))
    for number in range(8):
        create(files, "words " * 200, path=f"/memories/a/{number}.md")
    before = files.texts()

    moved = files.run(
        {"command": "rename", "old_path": "/memories/a", "new_path": "/memories/b"}
    )

    assert moved.is_error
    assert "the limit is 4096" in moved.text
    assert files.texts() == before


def test_of_agents_that_change_one_file_at_once_none_loses_anything(
    raced_url: str, tmp_path: Path
) -> None:
    with open_at(raced_url, tmp_path) as one, open_at(raced_url, tmp_path) as two:
        create(MemoryFiles(one.session(user_id="ada", session_id="s-0")), "")

        def write(number: int) -> str:
            session = (one, two)[number % 2].session(
                user_id="ada", session_id=f"s-{number % 4}"
            )
            command = {"command": "insert", "path": NOTES, "insert_line": 0}
            done = MemoryFiles(session).run({**command, "insert_text": f"{number}"})
            return done.text

        with ThreadPoolExecutor(4) as pool:
            said = set(pool.map(write, range(24)))
        text = MemoryFiles(one.session(user_id="ada", session_id="s-0")).texts()[NOTES]

    assert said == {f"The file {NOTES} has been edited."}
    assert sorted(map(int, text.split())) == list(range(24))


def test_only_one_of_rivals_creates_a_file(raced_url: str, tmp_path: Path) -> None:
    with open_at(raced_url, tmp_path) as store:

        def write(number: int) -> bool:
            files = UserFiles(
                store.session(user_id="ada", session_id="s").writer, "ada"
            )
            command = {"command": "create", "path": NOTES, "file_text": f"{number}"}
            return files.do(command).is_error

        with ThreadPoolExecutor(4) as pool:
            failed = list(pool.map(write, range(4)))
        kept = MemoryFiles(store.session(user_id="ada", session_id="s")).texts()[NOTES]

    assert failed.count(False) == 1
    assert kept == str(failed.index(False))


def test_who_always_loses_is_told_so_in_the_end(
    files: MemoryFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loses(*_: object) -> None:
        raise refold.StaleSession("_files", expected=1, actual=2)

    monkeypatch.setattr(UserFiles, "_append", loses)

    assert create(files, "x") == "Error: others are changing these files: try again"


def test_a_call_is_recorded_once_with_its_result(
    session: Session, files: MemoryFiles
) -> None:
    session.append(refold.UserInput(text="Remember it."))
    made = call(1, command="create", path=NOTES, file_text="one\n")

    first, again = files.answer(made), files.answer(made)

    assert first == again
    assert first == {
        "type": "tool_result",
        "tool_use_id": "toolu_1",
        "content": f"File created successfully at: {NOTES}",
    }
    assert [event.type for event in session.events()] == [
        *("user_input", "tool_call", "tool_result"),
    ]
    assert session.context().messages[-1]["content"] == [first]


def test_a_call_that_was_cut_off_after_its_change_is_completed(
    session: Session, files: MemoryFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(files, "one\ntwo\n")
    made = call(
        1, command="str_replace", path=NOTES, old_str="two", new_str="two and two"
    )

    def dies(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Session, "append", dies)
        with pytest.raises(KeyboardInterrupt):
            files.answer(made)
    told(files, command="insert", path=NOTES, insert_line=0, insert_text="zero")
    block = files.answer(made)

    assert files.texts() == {NOTES: "zero\none\ntwo and two\n"}
    assert block is not None
    assert block["content"].endswith("     1\tone\n     2\ttwo and two\n     3\t")


def test_errors_are_results_and_change_nothing(
    session: Session, files: MemoryFiles
) -> None:
    for number, wrong in enumerate([{}, {"command": "view"}, "view", None, [1]]):
        made = {"type": "tool_use", "id": f"c{number}", "name": "memory"}
        block = files.answer({**made, "input": wrong})

        assert block is not None
        assert block["is_error"] is True

    statuses = {e.payload.status for e in session.events() if e.type == "tool_result"}  # type: ignore[union-attr]  # of that type
    assert statuses == {"error"}
    assert files.texts() == {}
    assert files.answer(tool_use("bash", {}, call_id="x")) is None
    assert files.answer({"type": "text", "text": "hi"}) is None


def test_who_opted_out_has_no_files_written_or_shown_and_may_delete_them(
    store: SessionStore, files: MemoryFiles
) -> None:
    create(files, "one\n")
    store.user("ada").opt_out()

    written = create(files, "two\n", path="/memories/two.md")
    seen = files.run({"command": "view", "path": NOTES})
    deleted = told(files, command="delete", path=NOTES)

    assert written == seen.text
    assert "the user wants no memory" in written
    assert seen.is_error
    assert deleted == f"Successfully deleted {NOTES}"
    assert files.texts() == {}


def test_a_frozen_user_s_files_are_seen_and_not_changed(
    store: SessionStore, files: MemoryFiles
) -> None:
    create(files, "one\n")
    store.erasures.freeze("ada", "disputed")

    refused = files.run({"command": "delete", "path": NOTES})

    assert refused.is_error
    assert "frozen" in refused.text
    assert files.texts() == {NOTES: "one\n"}


def test_an_erased_user_has_no_files(store: SessionStore, files: MemoryFiles) -> None:
    create(files, "one\n")

    store.erase("ada", "asked for")

    with pytest.raises(refold.Erased):
        files.texts()
    with pytest.raises(refold.Erased):
        files.run({"command": "create", "path": NOTES, "file_text": "x"})


def test_a_file_of_which_the_whole_expired_is_not_changed(
    store: SessionStore, files: MemoryFiles
) -> None:
    create(files, "words " * 20_000)
    create(files, "one\n", path="/memories/short.md")
    later = store.clock() + 31 * 86_400_000_000
    aged = SessionStore(
        store.log, files.session.writer.redactor, Limits(), clock=lambda: later
    )
    assert aged.erasures.retain(RetentionPolicy(blobs=timedelta(days=30))).blobs == 1

    edited = files.run(
        {"command": "insert", "path": NOTES, "insert_line": 0, "insert_text": "x"}
    )
    other = create(files, "two\n", path="/memories/two.md")
    deleted = told(files, command="delete", path=NOTES)

    assert edited.text == "Error: the file is not whole any more, and cannot be changed"
    assert other == "File created successfully at: /memories/two.md"
    assert deleted == f"Successfully deleted {NOTES}"


def test_memory_and_contexts_know_nothing_of_files(
    store: SessionStore, session: Session, files: MemoryFiles
) -> None:
    session.append(refold.UserInput(text="Hi."))
    memory, user = store.memory, store.user("ada")
    before = memory.of("ada"), memory.advice("ada"), user.status()
    create(files, "The user always wants the dearest seat.")

    after = memory.of("ada"), memory.advice("ada"), user.status()

    assert after == before
    assert "dearest" not in str(session.context().messages)
    assert session.state() == {}


def test_other_state_of_the_user_is_no_file(
    store: SessionStore, files: MemoryFiles
) -> None:
    create(files, "one\n")
    store.session(user_id="ada", session_id=USER_SESSION).append(
        StateUpdate(set={"memories:/memories/n": 7, "preference.seat": "aisle"})
    )

    assert files.texts() == {NOTES: "one\n"}


def test_what_files_say_can_be_marked_as_others_words(session: Session) -> None:
    files = MemoryFiles(session, untrusted=True)
    files.answer(call(1, command="create", path=NOTES, file_text="one\n"))
    files.answer(call(2, command="view", path=NOTES))

    marked = [e.payload.untrusted for e in session.events() if e.type == "tool_result"]  # type: ignore[union-attr]  # of that type

    assert marked == [False, True]


def test_the_tool_runner_of_the_sdk_keeps_its_files_in_the_log(
    files: MemoryFiles, api: MessagesApi
) -> None:
    api.reply(
        message(call(1, command="create", path=NOTES, file_text="one\n")),
        message(call(2, command="create", path=NOTES, file_text="two\n")),
        message("Done."),
    )

    final = (
        api.client()
        .beta.messages.tool_runner(
            model="claude-x",
            max_tokens=99,
            messages=[{"role": "user", "content": "Remember it."}],
            tools=[MemoryTool(files)],
        )
        .until_done()
    )

    assert final.content[0].text == "Done."
    assert files.texts() == {NOTES: "one\n"}
    assert api.requests[0].body["tools"] == [files.definition]
    (result,) = api.requests[2].body["messages"][-1]["content"]
    assert result["is_error"] is True
    assert result["content"] == f"Error: File {NOTES} already exists"


def test_the_tool_of_the_sdk_does_every_command(files: MemoryFiles) -> None:
    tool, slow = MemoryTool(files), AsyncMemoryTool(files)

    created = tool.call({"command": "create", "path": NOTES, "file_text": "a\n"})
    viewed = asyncio.run(slow.call({"command": "view", "path": NOTES}))

    assert created == f"File created successfully at: {NOTES}"
    assert viewed.endswith("     1\ta\n     2\t")
    assert tool.name == "memory"
    for wrong in ({"command": "rm"}, {}, None):
        with pytest.raises(ToolError, match="Error: "):
            tool.call(wrong)
