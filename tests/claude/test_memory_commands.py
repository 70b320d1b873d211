"""The memory tool's commands: what they say, what they refuse, and no way out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from refold.projections.memory.tool import ROOT, BadPath, Done, checked, run

NOTES = "/memories/notes.md"
FILES = {NOTES: "one\ntwo\n", "/memories/a/b/deep.md": "x", "/memories/.hidden": "h"}
PIECES = st.sampled_from(
    ["/memories", "/", "..", ".", "a", "%2e", "\\", "//", "~", "\n", "\x00", " ", "é"]
)
PATHS = st.one_of(st.text(), st.lists(PIECES).map("".join))
NAMES = st.sampled_from(
    [ROOT, NOTES, "/memories/a", "/memories/a/b", "/memories/n", "/etc/x", "x", 7]
)
KEPT = st.sampled_from([NOTES, "/memories/a/b", "/memories/a/c", "/memories/n"])
WORDS = st.sampled_from(["", "one", "two\n", "x", "a\n\nb", None])
COMMANDS = st.fixed_dictionaries(
    {
        "command": st.sampled_from(
            ["view", "create", "str_replace", "insert", "delete", "rename", "rm", 1]
        )
    },
    optional={
        **dict.fromkeys(("path", "old_path", "new_path"), NAMES),
        **dict.fromkeys(("file_text", "old_str", "new_str", "insert_text"), WORDS),
        "insert_line": st.one_of(st.integers(-1, 4), st.just(True), st.none()),
        "view_range": st.one_of(st.none(), st.lists(st.integers(-2, 5), max_size=3)),
    },
)


def told(files: dict[str, str], **command: Any) -> str:
    return run(files, command).text


def after(files: dict[str, str], done: Done) -> dict[str, str]:
    kept = {path: text for path, text in files.items() if path not in done.unset}
    return {**kept, **done.set}


@given(PATHS)
def test_a_path_stays_below_memories_or_is_refused(path: str) -> None:
    try:
        taken = checked(path)
    except BadPath:
        return

    assert taken == ROOT or taken.startswith(f"{ROOT}/")
    assert checked(taken) == taken
    assert not {"", ".", ".."} & set(taken.split("/")[1:])
    assert "\\" not in taken


@pytest.mark.parametrize(
    "path",
    [
        "/memories/../etc/passwd",
        "/memories/a/../../x",
        "/memories/./x",
        "/memories\\..\\x",
        "/memories/%2e%2e/x",
        "/memories/%252e",
        "/memories_of_bob/x",
        "/etc/passwd",
        "memories/x",
        "/memories/a\nb",
        "/memories/a\x00",
        "/memories/" + "a" * 300,
        "",
        None,
        ["/memories"],
    ],
)
@pytest.mark.parametrize("command", ["view", "create", "delete"])
def test_traversal_is_refused(command: str, path: Any) -> None:
    done = run(FILES, {"command": command, "path": path, "file_text": "x"})

    assert done.is_error
    assert not done.changes


@given(st.dictionaries(KEPT, st.text()), COMMANDS)
def test_any_command_is_answered_and_changes_only_what_lies_below(
    files: dict[str, str], command: Any
) -> None:
    before = dict(files)

    done = run(files, command)

    assert files == before
    assert done.text
    assert not (done.is_error and done.changes)
    assert not set(done.set) & set(done.unset)
    assert set(done.unset) <= set(files)
    for path in after(files, done):
        assert checked(path) == path
        assert not any(other.startswith(f"{path}/") for other in after(files, done))


@given(st.one_of(st.none(), st.text(), st.lists(st.integers()), st.integers()))
def test_what_is_no_command_is_told_so(command: object) -> None:
    assert run(FILES, command).is_error


def test_a_folder_is_listed_two_levels_deep_without_what_is_hidden() -> None:
    files = {
        **FILES,
        "/memories/a/b/c/deeper.md": "yy",
        "/memories/node_modules/x": "z",
        "/memories/big.md": "x" * 1536,
    }

    head, *lines = told(files, command="view", path="/memories/").split("\n")

    assert head == (
        "Here're the files and directories up to 2 levels deep in /memories, excluding "
        "hidden items and node_modules:"
    )
    assert lines == [
        "1.5K\t/memories",
        "3B\t/memories/a/",
        "3B\t/memories/a/b/",
        "1.5K\t/memories/big.md",
        "8B\t/memories/notes.md",
    ]


def test_a_file_is_shown_with_numbers_and_in_part() -> None:
    whole = told(FILES, command="view", path=NOTES)
    part = told(FILES, command="view", path=NOTES, view_range=[2, -1])
    wrong = run(FILES, {"command": "view", "path": NOTES, "view_range": [3, 2]})
    gone = told(FILES, command="view", path="/memories/x")

    head = "Here's the content of /memories/notes.md with line numbers:\n"
    assert whole == f"{head}     1\tone\n     2\ttwo\n     3\t"
    assert part == f"{head}     2\ttwo\n     3\t"
    assert wrong.is_error
    assert gone == "The path /memories/x does not exist. Please provide a valid path."


def test_a_file_is_created_where_none_is() -> None:
    done = run(FILES, {"command": "create", "path": "/memories/n", "file_text": "hi"})
    again = told(FILES, command="create", path=NOTES, file_text="hi")
    folder = told(FILES, command="create", path="/memories/a", file_text="hi")
    within = told(FILES, command="create", path=f"{NOTES}/x", file_text="hi")

    assert done.set == {"/memories/n": "hi"}
    assert done.text == "File created successfully at: /memories/n"
    assert again == f"Error: File {NOTES} already exists"
    assert folder == "Error: File /memories/a already exists"
    assert within == f"Error: {NOTES} is a file, not a directory"


def test_text_is_replaced_where_it_stands_once() -> None:
    def replaced(old: str, **new: Any) -> Done:
        command = {"command": "str_replace", "path": NOTES, "old_str": old, **new}
        return run({NOTES: "a\nb\na b\nc\nd\ne\n"}, command)

    done = replaced("b\nc", new_str="B\nC")

    assert done.set == {NOTES: "a\nb\na B\nC\nd\ne\n"}
    assert done.text == (
        "The memory file has been edited. Here is the snippet showing the change (with "
        "line numbers):\n     1\ta\n     2\tb\n     3\ta B\n     4\tC\n     5\td\n"
        "     6\te"
    )
    assert replaced("e\n", new_str="").set == {NOTES: "a\nb\na b\nc\nd\n"}
    assert replaced("zz", new_str="y").text == (
        "No replacement was performed, old_str `zz` did not appear verbatim in "
        f"{NOTES}."
    )
    assert replaced("a", new_str="y").text == (
        "No replacement was performed. Multiple occurrences of old_str `a` in lines: "
        "1, 3. Please ensure it is unique"
    )
    assert replaced("", new_str="y").is_error
    assert told(
        FILES, command="str_replace", path="/memories/a", old_str="x", new_str="y"
    ) == ("Error: The path /memories/a does not exist. Please provide a valid path.")


@pytest.mark.parametrize(
    ("count", "more"), [(100, ""), (101, ", and more"), (400_000, ", and more")]
)
def test_of_many_places_the_first_hundred_are_named(count: int, more: str) -> None:
    files = {NOTES: "one\n" * count}

    said = told(files, command="str_replace", path=NOTES, old_str="one", new_str="1")

    lines = ", ".join(map(str, range(1, 101)))
    assert said == (
        "No replacement was performed. Multiple occurrences of old_str `one` in lines: "
        f"{lines}{more}. Please ensure it is unique"
    )


def test_places_that_overlap_are_several() -> None:
    files = {NOTES: "\nbanana\n"}

    said = told(files, command="str_replace", path=NOTES, old_str="ana", new_str="x")

    assert "in lines: 2, 2. Please" in said


@pytest.mark.parametrize(
    ("line", "text"),
    [(0, "new\none\ntwo\n"), (1, "one\nnew\ntwo\n"), (2, "one\ntwo\nnew\n")],
)
def test_text_is_inserted_after_a_line(line: int, text: str) -> None:
    command = {"command": "insert", "path": NOTES, "insert_line": line}

    done = run(FILES, {**command, "insert_text": "new\n"})

    assert done.set == {NOTES: text}
    assert done.text == f"The file {NOTES} has been edited."


def test_a_line_that_is_not_there_takes_no_text() -> None:
    command = {"command": "insert", "path": NOTES, "insert_text": "x"}

    assert run(FILES, {**command, "insert_line": 3}).text == (
        "Error: Invalid `insert_line` parameter: 3. It should be within the range of "
        "lines of the file: [0, 2]"
    )
    assert run(FILES, {**command, "insert_line": "1"}).is_error
    assert run(FILES, {**command, "insert_line": True}).is_error
    assert told(
        FILES, command="insert", path="/memories/x", insert_line=0, insert_text="x"
    ) == ("Error: The path /memories/x does not exist")


def test_files_and_folders_are_deleted_and_renamed_whole() -> None:
    deleted = run(FILES, {"command": "delete", "path": "/memories/a"})
    moved = run(
        FILES,
        {"command": "rename", "old_path": "/memories/a", "new_path": "/memories/c/d"},
    )

    assert deleted.unset == ("/memories/a/b/deep.md",)
    assert deleted.text == "Successfully deleted /memories/a"
    assert moved.set == {"/memories/c/d/b/deep.md": "x"}
    assert moved.unset == ("/memories/a/b/deep.md",)
    assert moved.text == "Successfully renamed /memories/a to /memories/c/d"


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("/memories/x", "/memories/y", "The path /memories/x does not exist"),
        (NOTES, "/memories/a", "The destination /memories/a already exists"),
        ("/memories/a", "/memories/a/c", "/memories/a cannot be moved into itself"),
        ("/memories/a", f"{NOTES}/c", f"{NOTES} is a file, not a directory"),
        (ROOT, "/memories/y", "Cannot rename the /memories directory itself"),
        (NOTES, "/etc/x", "new_path must start with /memories"),
    ],
)
def test_what_cannot_be_renamed_stays(old: str, new: str, why: str) -> None:
    done = run(FILES, {"command": "rename", "old_path": old, "new_path": new})

    assert done == Done(f"Error: {why}", is_error=True)


def test_memories_itself_is_not_deleted() -> None:
    for path in (ROOT, "/memories/", "/memories/x"):
        assert run(FILES, {"command": "delete", "path": path}).is_error


def test_a_file_of_too_many_lines_is_not_shown() -> None:
    files = {NOTES: "\n" * 999_999}

    assert told(files, command="view", path=NOTES) == (
        f"File {NOTES} exceeds maximum line limit of 999,999 lines."
    )
