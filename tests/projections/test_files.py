"""Replaying a run's edits yields its later reads, and never guesses a line."""

from __future__ import annotations

from time import process_time
from typing import Any

import pytest

from refold.domain.events import (
    AgentResponse,
    SystemPrompt,
    ToolCall,
    ToolResult,
    UserInput,
)
from refold.projections.files.history import BlamedLine, FileHistories, FileHistory
from refold.projections.files.shell import touched_by
from tests.projections.logs import Log

PATH = "/work/app.py"
TEXT = "import os\n\ndef total(n):\n    return n + 1\n"


class Run(Log):
    """A run whose agent reads and changes files."""

    def call(
        self,
        tool: str,
        arguments: dict[str, Any] | str,
        result: Any = "ok",
        **more: Any,
    ) -> int:
        """Add a call with its result; return the seq of the call."""
        call_id = f"c{self.state.head_seq}"
        added = self.add(ToolCall(call_id=call_id, tool_name=tool, arguments=arguments))
        self.add(ToolResult(call_id=call_id, content=result, **more))
        return added.seq

    def write(self, text: str = TEXT, path: str = PATH) -> int:
        return self.call("Write", {"file_path": path, "content": text})

    def edit(self, old: str, new: str, path: str = PATH, **more: Any) -> int:
        arguments = {"file_path": path, "old_string": old, "new_string": new}
        return self.call("Edit", arguments | more)

    def read(self, text: str, first: int = 1, path: str = PATH, **more: Any) -> int:
        return self.call("Read", {"file_path": path, **more}, numbered(text, first))

    def histories(self) -> FileHistories:
        return FileHistories.of(self.events)

    def file(self, path: str = PATH) -> FileHistory:
        return self.histories().files[path]

    def line(self, number: int, path: str = PATH) -> BlamedLine:
        lines = {line.number: line for line in self.file(path).blame()}
        return lines[number]

    def outcomes(self) -> list[tuple[str, str | None]]:
        compared = self.histories().compared
        return [(read.outcome, read.reason) for read in compared]


def numbered(text: str, first: int = 1) -> str:
    """Return a text as Claude Code shows it."""
    lines = enumerate(text.split("\n"), start=first)
    shown = "\n".join(f"{number:>6}→{line}" for number, line in lines)
    return f"{shown}\n\n<system-reminder>\nBe careful.\n</system-reminder>\n"


def places(file: FileHistory) -> list[str]:
    """Return the places in the diffs of a file's changes."""
    rows: list[str] = []
    for entry in file.entries:
        for diff in entry.diffs:
            rows += [row for row in diff.split("\n") if row.startswith("@@")]
    return rows


def texts(file: FileHistory) -> list[str | None]:
    return [line.text for line in file.blame()]


def test_a_read_after_edits_shows_what_the_replay_yields() -> None:
    run = Run()
    run.read(TEXT)
    run.edit("n + 1", "n + 2")
    run.read(TEXT.replace("n + 1", "n + 2"))

    assert run.outcomes() == [("unknown", "not_read"), ("equal", None)]


def test_line_blame_follows_a_line_through_later_edits() -> None:
    run = Run()
    written = run.write()
    edited = run.edit("    return n + 1", "    return n + 2")
    moved = run.edit("import os\n", "import os\nimport re\nimport sys\n")

    line = run.line(6)

    assert line.text == "    return n + 2"
    assert line.entry is not None
    assert line.entry.place.seq == edited
    assert [run.line(number).entry for number in (1, 2)] != [None, None]
    first = run.line(1).entry
    second = run.line(2).entry
    assert first is not None
    assert second is not None
    assert (first.place.seq, second.place.seq) == (written, moved)


def test_an_entry_names_what_asked_for_it() -> None:
    run = Run()
    asked = run.add(UserInput(text="Fix the total,\nplease.")).seq
    run.add(UserInput(text="<note>"), source={"meta": True})
    answered = run.add(AgentResponse(text="I fix it.")).seq
    run.write()

    (entry,) = run.file().entries

    assert entry.asked.user == asked
    assert entry.asked.text == "Fix the total, please."
    assert entry.asked.response == answered


def test_a_write_keeps_the_origin_of_unchanged_lines() -> None:
    run = Run()
    first = run.write()
    second = run.write(TEXT + "\nprint(total(1))\n")

    entries = {line.text: line.entry for line in run.file().blame()}

    unchanged = entries["    return n + 1"]
    added = entries["print(total(1))"]
    assert unchanged is not None
    assert added is not None
    assert (unchanged.place.seq, added.place.seq) == (first, second)


@pytest.mark.parametrize(
    ("status", "result"),
    [
        ("error", "String to replace not found in file."),
        ("ok", "<tool_use_error>File has not been read yet.</tool_use_error>"),
        ("ok", "No replacement was performed, old_str `n` is in several lines."),
    ],
)
def test_an_edit_that_failed_changes_nothing(status: Any, result: str) -> None:
    run = Run()
    run.write()
    arguments = {"file_path": PATH, "old_string": "n + 1", "new_string": "n + 9"}
    run.call("Edit", {**arguments}, result, status=status)

    assert texts(run.file()) == TEXT.split("\n")
    assert [entry.kind for entry in run.file().entries] == ["write"]


def test_several_edits_of_one_call_are_applied_in_order() -> None:
    run = Run()
    run.write("a\nb\n")
    edits = [
        {"old_string": "a", "new_string": "b"},
        {"old_string": "b", "new_string": "c", "replace_all": True},
    ]
    run.call("MultiEdit", {"file_path": PATH, "edits": edits})

    assert texts(run.file()) == ["c", "c", ""]
    assert len(run.file().entries[-1].diffs) == 2


def test_an_edit_that_removes_whole_lines_takes_the_end_of_the_line_too() -> None:
    run = Run()
    run.write("a\nb\nc\n")
    run.edit("b", "")

    assert texts(run.file()) == ["a", "c", ""]


def test_a_partial_read_leaves_the_other_lines_unknown() -> None:
    run = Run()
    run.read("l5\nl6\nl7", first=5, offset=5, limit=3)
    run.edit("l6", "l6a\nl6b")
    run.read("l6b\nl7\nl8", first=7, offset=7, limit=3)

    assert run.outcomes() == [("unknown", "not_read"), ("equal", None)]
    assert [line.number for line in run.file().blame()] == [5, 6, 7, 8, 9]


def test_a_read_with_an_offset_of_0_begins_with_the_first_line() -> None:
    run = Run()
    run.write("a\nb\n")
    run.read("a\nb\n", first=0, offset=0)

    assert run.outcomes() == [("equal", None)]


def test_an_edit_at_a_place_that_was_not_read_moves_the_lines_behind_the_gap() -> None:
    run = Run()
    run.read("l5\nl6\nl7", first=5, offset=5, limit=3)
    run.edit("somewhere", "some\nwhere")
    run.read("l5\nl6", first=6, offset=6, limit=2)

    assert run.histories().compared[-1].outcome == "unknown"
    assert run.file().entries[1].reason == "not_read"


@pytest.mark.parametrize(
    "command",
    [
        "sed -i s/1/2/ app.py",
        "echo x >> app.py",
        "cat <<'EOF' > app.py\nx\nEOF",
        "mv app.py other.py",
        "git mv app.py other.py",
        "git checkout main",
        "git checkout -- app.py",
        "python fix.py",
        "make fmt",
        "npx prettier --write .",
        'echo "$(rm app.py)"',
        "echo `sed -i s/1/2/ app.py`",
        "cd /work && unknown-program",
        "find . -name '*.py' -exec sed -i s/1/2/ {} +",
        "gofmt -w ./...",
        "bash -c 'unfinished",
        "cd /work && sed -i s/1/2/ app.py",
        "cd /work/lib && sed -i s/1/2/ ../app.py",
        "cd /work/lib; cd .. && sed -i s/1/2/ app.py",
        "test -d x || cd /other && sed -i s/1/2/ app.py",
        "(cd /other && ls) && sed -i s/1/2/ app.py",
        "ls | cd /other && sed -i s/1/2/ app.py",
        "cd /other; sed -i s/1/2/ app.py",
        "cd $FOLDER && sed -i s/1/2/ app.py",
        "cd /other && cd - && sed -i s/1/2/ app.py",
    ],
)
def test_a_command_that_may_change_a_file_puts_it_in_doubt(command: str) -> None:
    run = Run()
    run.write()
    called = run.call("Bash", {"command": command}, "done")
    run.read(TEXT.replace("n + 1", "n + 2"))
    file = run.file()

    assert run.outcomes() == [("unknown", "command")]
    assert file.entries[1].kind == "unknown"
    assert file.entries[1].place.seq == called
    assert texts(file)[3] == "    return n + 2"


@pytest.mark.parametrize(
    "command",
    [
        "ls -la && cat app.py | head -3 2>&1",
        "git status; git diff; git add . && git commit -m 'sed -i'",
        "grep -rn 'sed -i' . > /dev/null",
        "go test ./... 2>&1 | tail -20",
        "go build ./... 2>/dev/null",
        "go vet ./... > /tmp/vet-$$.log",
        "sed -n 1,20p app.py",
        "echo 'a > app.py'",
        "sed -i s/1/2/ other.py",
        "git checkout -- other.py",
        "git checkout -b topic",
        "make test",
        "git commit -m \"$(cat <<'EOF'\nFix > all\nEOF\n)\"",
        "gh pr view 1 --json title",
        "cd /other && sed -i s/1/2/ app.py",
        "cd /other && cat x | tee app.py > y && rm -r .",
        "cd /other && cd lib && mv app.py ../app.py",
        "cd lib && sed -i s/1/2/ app.py",
        "(cd /other && rm app.py)",
    ],
)
def test_a_command_that_leaves_a_file_alone_does_not(command: str) -> None:
    run = Run()
    run.write()
    run.call("Bash", {"command": command}, "done")
    run.read(TEXT)

    assert run.outcomes() == [("equal", None)]


def test_a_command_without_a_result_puts_files_in_doubt_too() -> None:
    run = Run()
    run.write()
    call = ToolCall(call_id="late", tool_name="Bash", arguments={"command": "make fmt"})
    run.add(call)
    run.read("other\n")

    assert run.outcomes() == [("unknown", "command")]


def edit_call(call_id: str) -> ToolCall:
    arguments = {"file_path": PATH, "old_string": "n + 1", "new_string": "n + 2"}
    return ToolCall(call_id=call_id, tool_name="Edit", arguments=arguments)


def test_an_edit_without_a_result_puts_its_file_in_doubt() -> None:
    run = Run()
    run.write()
    run.write("x", path="/work/other.py")
    called = run.add(edit_call("late")).seq
    at_end = run.file()
    run.add(UserInput(text="Go on."))
    run.read("other\n")

    for file in (at_end, run.file()):
        assert file.entries[1].reason == "no_result"
        assert file.entries[1].place.seq == called
    assert [line.doubt is not None for line in at_end.blame()] == [True] * 5
    assert run.outcomes() == [("unknown", "no_result")]
    assert run.line(1, "/work/other.py").doubt is None


def test_an_interrupted_edit_puts_its_file_in_doubt() -> None:
    run = Run()
    run.write()
    run.add(edit_call("cut"))
    run.add(ToolResult(call_id="cut", content="interrupted", status="unknown"))

    file = run.file()

    assert texts(file) == TEXT.split("\n")
    assert {line.doubt.reason for line in file.blame() if line.doubt} == {"no_result"}


def test_a_result_in_time_leaves_no_doubt() -> None:
    run = Run()
    run.write()
    run.add(edit_call("c"))
    run.add(AgentResponse(text="And one more."))
    run.add(edit_call("d"))
    run.add(ToolResult(call_id="c", content="ok"))
    run.add(ToolResult(call_id="d", content="not found", status="error"))
    run.read(TEXT.replace("n + 1", "n + 2"))

    assert run.outcomes() == [("equal", None)]


def test_a_full_read_ends_the_doubt() -> None:
    run = Run()
    run.write()
    run.call("Bash", {"command": "make fmt"})
    run.read(TEXT)
    run.read(TEXT)

    assert run.outcomes() == [("unknown", "command"), ("equal", None)]
    assert all(line.doubt is None for line in run.file().blame())


def test_lines_that_a_partial_read_does_not_show_stay_in_doubt() -> None:
    run = Run()
    run.write("a\nb\nc\n")
    run.call("Bash", {"command": "make fmt"})
    run.read("b", first=2, offset=2, limit=1)

    doubts = [line.doubt is not None for line in run.file().blame()]

    assert doubts == [True, False, True, True]


def test_a_change_from_outside_is_found_by_the_next_read() -> None:
    run = Run()
    run.write("a\nb\nc\n")
    read = run.read("a\nnew\nb\nc\n")
    run.read("a\nnew\nb\nc\n")

    lines = run.file().blame()

    assert run.outcomes() == [("unequal", None), ("equal", None)]
    assert [line.origin for line in lines] == [
        "written",
        "outside",
        "written",
        "written",
        "written",
    ]
    assert lines[1].entry is not None
    assert lines[1].entry.place.seq == read


def test_a_note_of_the_client_about_a_changed_file_puts_it_in_doubt() -> None:
    note = f"Note: {PATH} was modified, either by the user or by a linter. This change"
    run = Run()
    run.write()
    run.add(SystemPrompt(text=note, where="conversation"))
    run.read("other\n")

    assert run.outcomes() == [("unknown", "reported")]


def test_a_sub_agent_without_a_recorded_session_puts_all_files_in_doubt() -> None:
    run = Run()
    run.write()
    run.call("Task", {"prompt": "Fix it."}, "Fixed.")
    run.read("other\n")

    assert run.outcomes() == [("unknown", "agent")]


def test_edits_of_a_sub_agent_count_with_its_session() -> None:
    run = Run()
    run.write()
    call = run.add(ToolCall(call_id="t", tool_name="Task", arguments={"prompt": "p"}))
    agent = Run()
    agent.edit("n + 1", "n + 3")
    events = [
        event.model_copy(update={"session_id": "s-1~a"}) for event in agent.events
    ]
    run.add(ToolResult(call_id="t", content="Fixed."))
    run.read(TEXT.replace("n + 1", "n + 3"))
    order = [event for event in run.events if event.seq <= call.seq]
    order += events
    order += [event for event in run.events if event.seq > call.seq]

    histories = FileHistories.of(order)
    line = histories.files[PATH].blame()[3]

    assert [read.outcome for read in histories.compared] == ["equal"]
    assert line.entry is not None
    assert line.entry.place.session_id == "s-1~a"


def test_redacted_text_stays_redacted_and_is_not_compared() -> None:
    run = Run()
    run.write("key = [REDACTED:API_KEY]\nmode = 1\n")
    run.read("key = [REDACTED:TOKEN]\nmode = 1\n")
    run.edit("key = [REDACTED:SECRET]", "key = 2")

    file = run.file()

    assert run.histories().compared[0].outcome == "equal"  # the other line
    assert file.entries[-1].reason == "redacted"
    assert texts(file)[0] == "key = [REDACTED:TOKEN]"


def test_a_patch_adds_updates_moves_and_deletes_files() -> None:
    patch = """*** Begin Patch
*** Add File: a.txt
+one
+two
*** End Patch"""
    update = """*** Begin Patch
*** Update File: a.txt
*** Move to: b.txt
@@
 one
-two
+2
*** End Patch"""
    run = Run()
    run.call("apply_patch", patch)
    updated = run.call(
        "shell", {"command": ["bash", "-lc", f"apply_patch <<'EOF'\n{update}\nEOF"]}
    )

    assert texts(run.file("b.txt")) == ["one", "2", ""]
    line = run.line(2, "b.txt")
    assert line.entry is not None
    assert line.entry.place.seq == updated
    assert run.file("a.txt").entries[-1].kind == "move"
    run.call("apply_patch", "*** Begin Patch\n*** Delete File: b.txt\n*** End Patch")
    assert run.file("b.txt").entries[-1].kind == "delete"
    assert texts(run.file("b.txt")) == []


def test_an_editor_creates_replaces_inserts_and_views() -> None:
    run = Run()
    tool = "str_replace_editor"
    run.call(tool, {"command": "create", "path": PATH, "file_text": "a\nb\n"})
    run.call(
        tool,
        {"command": "str_replace", "path": PATH, "old_str": "b", "new_str": "B"},
        "The file has been edited. Here's the result of running `cat -n` on a snippet "
        f"of {PATH}:\n     1\ta\n     2\tB\n     3\t\nReview the changes.",
    )
    insert = {"command": "insert", "path": PATH, "insert_line": 1, "new_str": "new"}
    run.call(tool, insert)
    view = "Here's the result of running `cat -n` on the file:\n"
    view += "     1\ta\n     2\tnew\n     3\tB\n     4\t\n"
    run.call(tool, {"command": "view", "path": PATH}, view)

    assert run.outcomes() == [("equal", None)]
    assert texts(run.file()) == ["a", "new", "B", ""]


def test_the_actions_of_swe_agent_edit_lines_of_the_open_file() -> None:
    run = Run()
    run.call(
        "action",
        {"command": "open a.py"},
        "[File: /repo/a.py (3 lines total)]\n1:a\n2:b\n3:c\n(Open file: /repo/a.py)",
    )
    run.call(
        "action",
        {"command": "edit 2:2\nB1\nB2\nend_of_edit"},
        "[File: /repo/a.py (4 lines total)]\n1:a\n2:B1\n3:B2\n4:c\n",
    )
    run.call(
        "action",
        {"command": "edit 1:1\n(\nend_of_edit"},
        "Your proposed edit has introduced new syntax error(s).",
    )

    assert texts(run.file("/repo/a.py")) == ["a", "B1", "B2", "c"]


def test_a_path_is_matched_by_its_end_at_a_folder() -> None:
    run = Run()
    run.write(path="/work/src/app.py")
    run.write(path="/work/src/my_app.py")
    run.write(path="/work/lib/app.py")
    histories = run.histories()

    assert histories.matching("src/app.py") == ["/work/src/app.py"]
    assert histories.matching("app.py") == ["/work/lib/app.py", "/work/src/app.py"]
    assert histories.matching("/work/lib/app.py") == ["/work/lib/app.py"]
    assert histories.matching("pp.py") == []


def test_another_run_puts_a_file_in_doubt() -> None:
    first = Run()
    first.write()
    second = Run()
    second.read("other\n")
    events = [event.model_copy(update={"session_id": "s-2"}) for event in second.events]

    histories = FileHistories.of([*first.events, *events])

    (compared,) = histories.compared
    assert (compared.outcome, compared.reason) == ("unknown", "other_run")


def test_a_long_command_is_read_in_linear_time() -> None:
    assert touched_by("echo " + "$(" * 9_000).everything


@pytest.mark.parametrize(
    "command",
    ["rm ../shop/cart.py", "cd ../shop && rm cart.py", "cd ../shop && rm -r ."],
)
def test_a_command_can_come_back_to_its_folder(command: str) -> None:
    assert touched_by(command).may_be("cart.py")
    assert touched_by("echo " + "$(" * 6_000 + ")" * 6_000).everything
    assert touched_by("cat <<A\n" * 2_000).paths == ()
    assert touched_by("ls " + "a " * 50_000).everything


@pytest.mark.parametrize(
    "command",
    [
        "sed -i s#a#b# app.py",
        "echo issue#3 > app.py",
        "ls # list\nrm app.py",
        "# don't\nrm app.py",
        "uv run fix.py",
        "cargo run",
        "sort -o app.py app.py",
        "uniq a.txt app.py",
        "awk '{ print > \"app.py\" }' a.txt",
        "xxd -r a.hex app.py",
        "source ./build.sh",
        "git diff --output=app.py",
        "echo <(rm app.py)",
    ],
)
def test_a_command_that_writes_in_a_rare_way_is_noticed(command: str) -> None:
    assert touched_by(command).may_be("/work/app.py")


@pytest.mark.parametrize(
    "command",
    [
        "ls # > app.py",
        "source .venv/bin/activate && ls",
        "sort a.txt | uniq -c",
        "awk '$1 > 3 { print $2 }' app.py",
        "uv run pytest tests/test_a.py",
        "npm run test",
        "diff <(sort a.txt) <(sort b.txt)",
    ],
)
def test_a_command_that_only_looks_like_a_write_is_harmless(command: str) -> None:
    assert not touched_by(command).may_be("/work/app.py")


def test_a_here_document_is_no_part_of_its_command() -> None:
    assert touched_by("cat <<'END' > a.txt\nrm b.txt\nEND\nls").paths == ("a.txt",)
    assert touched_by("cat <<A > a.txt\ntext\nA\ncat <<B > b.txt\ntext\n\tB").paths == (
        "a.txt",
        "b.txt",
    )
    assert touched_by("cat <<<'END' > a.txt\ntouch b.txt\nEND").everything


def test_a_line_that_begins_with_thousands_of_digits_has_no_number() -> None:
    run = Run()
    run.write()

    run.call("Read", {"file_path": PATH}, "1" * 5_000 + "→text")

    assert run.outcomes() != [("equal", None)]


def patched(*lines: str, path: str = PATH) -> dict[str, str]:
    """Return the arguments of a patch of one file."""
    rows = ("*** Begin Patch", f"*** Update File: {path}", *lines, "*** End Patch")
    return {"input": "\n".join(rows)}


def test_a_replacement_at_all_places_leaves_overlapping_ones() -> None:
    run = Run()
    run.write("x\nx\nx\n")
    run.edit("x\nx", "y", replace_all=True)

    assert texts(run.file()) == ["y", "x", ""]


def test_only_claude_codes_edits_remove_the_end_of_a_line() -> None:
    run = Run()
    run.write("a\nb\nc")
    run.call("str_replace", {"path": PATH, "old_str": "b", "new_str": ""})

    assert texts(run.file()) == ["a", "", "c"]


def test_a_patch_that_only_adds_lines_keeps_the_others() -> None:
    run = Run()
    run.write("a\nb\n")
    run.call("apply_patch", patched("@@", "+c"))

    assert texts(run.file()) == ["a", "b", "c", ""]
    unread = Run()
    unread.call("apply_patch", patched("@@", "+c"))
    assert texts(unread.file()) == []


def test_a_patch_can_empty_a_line_or_remove_it() -> None:
    run = Run()
    run.write("a\nb\nc\n")
    run.call("apply_patch", patched("@@", "-a", "@@", "-b", "+"))

    assert texts(run.file()) == ["", "c", ""]


def test_a_line_of_a_patch_that_moves_the_file_has_its_diff() -> None:
    run = Run()
    run.write("a\nb\n")
    run.call("apply_patch", patched("*** Move to: /work/new.py", "@@", "-b", "+B"))

    entry = run.line(2, "/work/new.py").entry
    assert entry is not None
    assert (entry.kind, len(entry.diffs)) == ("edit", 1)


def test_a_file_changed_under_another_path_is_in_doubt() -> None:
    run = Run()
    run.write("a\n")
    run.edit("a", "b", path="app.py")
    absolute = run.file()
    relative = run.file("app.py")

    assert absolute.doubt is not None
    assert absolute.doubt.reason == "other_path"
    run.call("Bash", {"command": "rm /work/app.py"})
    assert run.file("app.py").doubt != relative.doubt


def test_line_ends_of_windows_are_like_others() -> None:
    run = Run()
    run.write("a\r\nb\r\n")
    run.read("a\nb\n")
    run.edit("a\nb", "a\nc")

    assert run.outcomes() == [("equal", None)]
    assert texts(run.file()) == ["a", "c", ""]


def test_a_read_may_leave_out_the_empty_line_at_the_end() -> None:
    run = Run()
    run.write("a\nb\n")
    run.read("a\nb")

    assert run.outcomes() == [("equal", None)]
    assert run.file().doubt is None


def test_the_end_of_the_last_line_is_no_added_line() -> None:
    run = Run()
    run.write("a\nb\n")
    run.write("a\n")

    assert (run.file().added, run.file().removed) == (2, 1)


def test_a_path_of_windows_is_found_by_its_end() -> None:
    run = Run()
    run.write(path="C:\\work\\src\\app.py")
    histories = run.histories()

    assert histories.matching("app.py") == ["C:\\work\\src\\app.py"]
    assert histories.matching("src\\app.py") == ["C:\\work\\src\\app.py"]


def test_texts_of_many_equal_lines_are_replayed_in_linear_time() -> None:
    many = "x\n" * 20_000
    run = Run()
    run.write("\n" * 40_000)
    run.edit("\n" * 20_000 + "q", "z")
    run.write(f"a\n{many}b\n")
    run.write(f"c\n{many}x\nd\n")
    run.read(many, path="/work/b.py", limit=20_000)
    run.edit(many + "y", "z", path="/work/b.py")

    began = process_time()
    run.histories()
    assert process_time() - began < 5


def test_the_places_of_a_diff_count_the_lines_of_the_file() -> None:
    run = Run()
    run.write()
    run.edit("    return n + 1", "    n += 1\n    return n")

    assert places(run.file())[1:] == ["@@ -4 +4,2 @@"]


def test_a_diff_at_an_unknown_place_has_no_numbers() -> None:
    run = Run()
    run.edit("    return n + 1", "    n += 1\n    return n")

    assert places(run.file()) == ["@@"]


def test_a_rejected_edit_changes_no_line() -> None:
    run = Run()
    run.write()
    refused = "The user doesn't want to proceed with this tool use. The tool use was"
    arguments = {"file_path": PATH, "old_string": "import os", "new_string": "x"}
    run.call("Edit", arguments, [{"type": "text", "text": refused}], status="error")
    new = {"file_path": "/work/new.py", "content": "x"}
    run.call("Write", new, refused, status="error")
    patch = "*** Begin Patch\n*** Delete File: /work/app.py\n*** End Patch"
    run.call("apply_patch", {"input": patch}, "patch rejected by user", status="error")

    kinds = [entry.kind for entry in run.file().entries]
    assert kinds == ["write", "rejected", "rejected"]
    assert texts(run.file()) == TEXT.split("\n")
    assert (run.file().added, run.file().removed, run.file().rejected) == (4, 0, 2)
    assert run.file("/work/new.py").changes == []
