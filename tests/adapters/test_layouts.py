"""A layout shows each kind of content in its own form, and loses none of it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

import refold
from refold.adapters.display.layouts import Diff, Layout, changed_lines, layout
from refold.adapters.server import run_pages
from refold.domain.events import Attachment, Thinking

PATCH = """*** Begin Patch
*** Update File: a.py
@@ def f():
 x = 1
-y = 2
+y = 3
*** Add File: b.py
+new
*** Delete File: c.py
*** End Patch"""


def of_call(name: str, arguments: Any) -> Layout:
    return layout(refold.ToolCall(call_id="c", tool_name=name, arguments=arguments))


def of_result(content: Any) -> Layout:
    return layout(refold.ToolResult(call_id="c", content=content))


def signed(diff: Diff) -> list[str]:
    signs = {"added": "+", "removed": "-", "same": " ", "place": "@"}
    return [signs[line.kind] + line.text for line in diff.lines]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("Edit", {"file_path": "a.py", "old_string": "a\nb\n", "new_string": "a\nc\n"}),
        ("MultiEdit", {
            "file_path": "a.py",
            "edits": [{"old_string": "a\nb", "new_string": "a\nc"}],
        }),
        ("str_replace_editor", {
            "command": "str_replace", "path": "a.py",
            "old_str": "a\nb", "new_str": "a\nc",
        }),
        ("edit_file", {
            "path": "a.py", "edits": [{"oldText": "a\nb", "newText": "a\nc"}]
        }),
    ],
)  # fmt: skip
def test_an_edit_is_a_diff_with_old_lines_before_new_ones(
    name: str, arguments: dict[str, Any]
) -> None:
    (diff,) = of_call(name, arguments).diffs

    assert diff.path == "a.py"
    assert signed(diff) == [" a", "-b", "+c"]
    assert (diff.added, diff.removed) == (1, 1)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("Write", {"file_path": "a.py", "content": "x\ny\n"}),
        ("str_replace_editor", {
            "command": "create", "path": "a.py", "file_text": "x\ny\n"
        }),
        ("str_replace_based_edit_tool", {
            "command": "insert", "path": "a.py", "insert_line": 3, "insert_text": "x\ny"
        }),
    ],
)  # fmt: skip
def test_a_written_file_consists_of_new_lines(
    name: str, arguments: dict[str, Any]
) -> None:
    (diff,) = of_call(name, arguments).diffs

    assert signed(diff) == ["+x", "+y"]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("apply_patch", PATCH),
        ("apply_patch", {"input": PATCH}),
    ],
)
def test_a_patch_has_a_diff_for_each_file(name: str, arguments: Any) -> None:
    diffs = of_call(name, arguments).diffs

    assert [diff.path for diff in diffs] == ["a.py", "b.py", "c.py"]
    assert signed(diffs[0]) == ["@def f():", " x = 1", "-y = 2", "+y = 3"]
    assert signed(diffs[1]) == ["+new"]


def test_other_arguments_of_an_edit_stay_visible() -> None:
    shown = of_call(
        "Edit",
        {
            "file_path": "a.py",
            "old_string": "a",
            "new_string": "b",
            "replace_all": True,
            "why": "to fix it",
        },
    )

    assert "replace_all: true" in shown.text
    assert "why: to fix it" in shown.text


def test_a_unified_diff_in_a_result_is_shown_by_file() -> None:
    text = (
        "diff --git a/x.py b/x.py\nindex 1..2 100644\n--- a/x.py\n+++ b/x.py\n"
        "@@ -1,2 +1,2 @@\n same\n--- old\n+new\n"
        "diff --git a/y.py b/y.py\n--- a/y.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-gone\n"
    )

    diffs = of_result(text).diffs

    assert [diff.path for diff in diffs] == ["x.py", "y.py"]
    assert signed(diffs[0]) == ["@@@ -1,2 +1,2 @@", " same", "--- old", "+new"]


@pytest.mark.parametrize(
    ("arguments", "command", "folder"),
    [
        ({"command": "ls -l", "description": "List"}, "ls -l", ""),
        ({"command": ["bash", "-lc", "ls -l"], "workdir": "/w"}, "ls -l", "/w"),
        ({"cmd": ["git", "commit", "-m", "a b"]}, "git commit -m 'a b'", ""),
    ],
)
def test_a_command_is_shown_as_one_would_type_it(
    arguments: dict[str, Any], command: str, folder: str
) -> None:
    shown = of_call("shell", {**arguments, "timeout": 5}).command

    assert shown is not None
    assert (shown.text, shown.folder) == (command, folder)
    assert shown.about == arguments.get("description", "")
    assert of_call("shell", {**arguments, "timeout": 5}).text == "timeout: 5"


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ("Exit code 2\nno such file", 2),
        ("Exit code: 0\nWall time: 1 s\nOutput:\nok", 0),
        ({"stdout": "x", "exit_code": 1}, 1),
        ({"output": "x", "metadata": {"exit_code": 3}}, 3),
        (json.dumps({"output": "x", "metadata": {"exit_code": 4}}), 4),
        ("the Exit code 7 is a quotation", None),
        ({"exit_code": True}, None),
        ("all good", None),
    ],
)
def test_the_exit_code_is_the_one_that_the_result_states(
    content: Any, code: int | None
) -> None:
    assert of_result(content).exit_code == code


@pytest.mark.parametrize(
    "arguments",
    [
        {"todos": [{"content": "a", "status": "completed", "activeForm": "A"},
                   {"content": "b", "status": "in_progress"}]},
        {"plan": [{"step": "a", "status": "completed"},
                  {"step": "b", "status": "in_progress"}]},
    ],
)  # fmt: skip
def test_tasks_are_a_list_with_the_state_of_each(arguments: dict[str, Any]) -> None:
    tasks = of_call("TodoWrite", arguments).tasks

    assert [(task.text, task.state) for task in tasks] == [
        ("a", "completed"),
        ("b", "in_progress"),
    ]


def test_objects_with_the_same_fields_are_a_table() -> None:
    rows = [{"id": 1, "name": "x", "ok": True}, {"id": 2, "name": None, "ok": False}]

    for content in (rows, json.dumps(rows), {"rows": rows, "total": 2}):
        table = of_result(content).table

        assert table is not None
        assert table.columns == ["id", "name", "ok"]
        assert table.rows == [["1", "x", "true"], ["2", "", "false"]]
    assert of_result({"rows": rows, "total": 2}).text == "total: 2"


@pytest.mark.parametrize(
    "content",
    [
        "[1, 2]",
        "[not json",
        [{"id": 1}],
        [{"id": 1, "deep": {"a": 1}}, {"id": 2, "deep": {}}],
        [{"text": "x" * 400}, {"text": "y"}],
        [{str(n): n for n in range(20)}] * 2,
    ],
)
def test_other_content_stays_text(content: Any) -> None:
    shown = of_result(content)

    assert shown.table is None
    assert shown.text


def test_thinking_and_attachments_stand_apart_from_the_words() -> None:
    response = layout(
        refold.AgentResponse(text="Yes.", thinking=(Thinking(thinking="Hm."),))
    )
    asked = layout(
        refold.UserInput(
            text="See this.",
            attachments=(
                Attachment(kind="image", media_type="image/png", data="iVBORw0KGgo="),
                Attachment(kind="file", name="notes.txt", text="hello"),
            ),
        )
    )

    assert (response.prose, list(response.thoughts)) == ("Yes.", ["Hm."])
    assert asked.prose == "See this."
    assert [file.media_type for file in asked.files] == ["image/png"]
    assert asked.text == "[file: notes.txt]"


def test_an_image_in_a_result_stands_apart_from_its_text() -> None:
    image = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
    }

    shown = of_result([{"type": "text", "text": "a picture"}, image])

    assert shown.text == "a picture"
    assert [(file.nth, file.is_image) for file in shown.files] == [(1, True)]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x\n" * 740, "y\n" * 740),
        ("x\n" * 740, "x\ny\n" * 370),
        ("\n".join(map(str, range(740))), "\n".join(map(str, range(740, 0, -1)))),
        ("x\ny\nz\n" * 240, "z\ny\nx\n" * 240),
        ("x\n" * 100_000, "y\n" * 100_000),
    ],
)
def test_long_texts_are_compared_in_little_time(old: str, new: str) -> None:
    began = time.process_time()
    lines = changed_lines(old, new)

    assert time.process_time() - began < 1.5
    after = [line.text for line in lines if line.kind != "removed"]
    assert "added" in {line.kind for line in lines}
    assert len(after) <= len(new.split("\n"))


def test_a_long_diff_is_folded_and_cut() -> None:
    diff = Diff("a", changed_lines("", "\n".join(f"line {n}" for n in range(1_000))))

    cut = run_pages.cut_diff(diff)
    whole = run_pages.cut_diff(diff, whole=True)

    assert (len(cut.shown), len(cut.rest), cut.left) == (24, 400, 576)
    assert len(whole.shown) == 1_000


def test_a_long_line_of_a_diff_is_never_cut_inside_a_placeholder() -> None:
    text = "x" * 595 + "[REDACTED:EMAIL]" + "y" * 5_000

    (line,) = run_pages.cut_diff(Diff("a", changed_lines("", text))).shown

    assert "[REDACTED:EMAIL]</mark>" in line[1]
    assert len(line[1]) < 800
