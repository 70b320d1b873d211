"""``blame`` shows what happened to a file, and which event wrote a line."""

from __future__ import annotations

from pathlib import Path

import pytest

import refold as package
from refold import events
from tests.cli.conftest import Refold

PATH = "/repo/src/app.py"


@pytest.fixture
def db(tmp_path: Path) -> Path:
    """The file of the store that commands use by default."""
    return tmp_path / "refold.db"


def recorded_run(
    db: Path, name: str = "run", user: str = "ada", path: str = PATH
) -> int:
    """Record a run that writes a file and edits it; return the seq of the edit."""
    session = package.open(f"sqlite:///{db}").session(user_id=user, session_id=name)
    write = {"file_path": path, "content": "import os\n\ndef total(n):\n    return n\n"}
    edit = {"file_path": path, "old_string": "return n", "new_string": "return n + 1"}
    session.append(events.UserInput(text="Fix the total, which is off by one."))
    session.append(events.AgentResponse(text="I write it."))
    session.append(events.ToolCall(call_id="w", tool_name="Write", arguments=write))
    session.append(events.ToolResult(call_id="w", content="written"))
    receipt = session.append(
        events.ToolCall(call_id="e", tool_name="Edit", arguments=edit)
    )
    session.append(events.ToolResult(call_id="e", content="edited"))
    return receipt.last_seq


def test_a_line_is_attributed_to_the_event_that_wrote_it(
    refold: Refold, db: Path
) -> None:
    edited = recorded_run(db)

    ran = refold("blame", "app.py:4", "--session", "run")

    assert ran.out.splitlines()[0] == f"{PATH}:4"
    assert f"written by Edit, seq {edited} of run" in ran.out
    assert "requested by seq 1: Fix the total, which is off by one." in ran.out
    assert "the model's answer is seq 2" in ran.out
    assert ran.out.splitlines()[-3:] == ["@@ -4 +4 @@", "-return n", "+return n + 1"]


def test_the_history_of_a_file_is_a_table_of_80_columns(
    refold: Refold, db: Path
) -> None:
    recorded_run(db)

    lines = refold("blame", "src/app.py", "--user", "ada").out.splitlines()

    assert lines[0] == PATH
    assert lines[1] == "0 reads, 2 changes, +5 -1 lines"
    assert lines[4].split()[:3] == ["seq", "time", "(UTC)"]
    assert [line.split()[3] for line in lines[5:]] == ["write", "edit"]
    assert max(map(len, lines)) <= 80


def test_json_has_the_diffs_and_the_origin(refold: Refold, db: Path) -> None:
    edited = recorded_run(db)

    history = refold("blame", "app.py", "--json").json()
    line = refold("blame", "app.py:4", "--json").json()

    assert [entry["kind"] for entry in history["entries"]] == ["write", "edit"]
    assert history["entries"][1]["changes"] == [
        {"old": "return n", "new": "return n + 1", "every": False}
    ]
    assert line["text"] == "    return n + 1"
    assert (line["origin"], line["seq"]) == ("written", edited)
    assert line["entry"]["asked_by"]["user"] == 1
    assert line["unknown_since"] is None


def test_an_ambiguous_path_lists_the_candidates(refold: Refold, db: Path) -> None:
    recorded_run(db)
    recorded_run(db, "other", path="/repo/lib/app.py")

    ran = refold("blame", "app.py")

    assert ran.code == 1
    assert "2 paths end with that, give more of the path" in ran.err
    assert "/repo/lib/app.py, /repo/src/app.py" in ran.err


REJECTED = (
    "The user doesn't want to proceed with this tool use. The tool use was rejected "
    "(eg. if it was a file edit, the new_string was NOT written to the file). STOP "
    "what you are doing and wait for the user to tell you how to proceed."
)


def reject_an_edit(db: Path) -> None:
    """Add an edit that the user rejects to the recorded run."""
    session = package.open(f"sqlite:///{db}").session(user_id="ada", session_id="run")
    edit = {"file_path": PATH, "old_string": "import os", "new_string": "import re\n"}
    session.append(events.ToolCall(call_id="r", tool_name="Edit", arguments=edit))
    session.append(events.ToolResult(call_id="r", content=REJECTED, status="error"))


def test_a_session_without_a_file_lists_the_changed_files(
    refold: Refold, db: Path
) -> None:
    edited = recorded_run(db)
    reject_an_edit(db)

    lines = refold("blame", "--session", "run").out.splitlines()
    (listed,) = refold("blame", "--session", "run", "--json").json()
    without = refold("blame")

    assert lines[0].split() == ["edits", "added", "removed", "last", "seq", "file"]
    assert lines[1].split() == ["2", "+5", "-1", str(edited), PATH]
    assert len(lines) == 2
    assert (listed["edits"], listed["rejected"], listed["last_seq"]) == (2, 1, edited)
    assert without.code == 2
    assert "name a FILE, or a session with --session" in without.err


def test_an_edit_that_the_user_rejected_is_no_change_and_no_failure(
    refold: Refold, db: Path
) -> None:
    recorded_run(db)
    reject_an_edit(db)

    lines = refold("blame", "app.py").out.splitlines()
    first_line = refold("blame", "app.py:1", "--json").json()
    log = refold("log", "--user", "ada", "--session", "run")
    failed = refold("log", "--user", "ada", "--session", "run", "--failed")
    (session,) = refold("sessions", "--json").json()
    hits = refold("search", "--user", "ada", "failed:", "--json")

    assert lines[1] == "0 reads, 2 changes, +5 -1 lines, 1 rejected"
    assert lines[-1].split()[3:6] == ["rejected", "2", "1"]
    assert first_line["text"] == "import os"
    assert "Edit · rejected" in log.out
    assert failed.out == ""
    assert session["failures"] == 0
    assert hits.json() == []


def test_mistakes_are_reported(refold: Refold, db: Path) -> None:
    recorded_run(db)

    unknown = refold("blame", "nothing.py")
    behind = refold("blame", "app.py:99")
    nobody = refold("blame", "app.py", "--session", "none")

    assert (unknown.code, behind.code, nobody.code) == (1, 1, 1)
    assert "no recorded event reads or changes such a file" in unknown.err
    assert "line 99 of the file is unknown" in behind.err
    assert "none" in nobody.err


def test_a_session_of_several_users_needs_the_user(refold: Refold, db: Path) -> None:
    recorded_run(db)
    recorded_run(db, user="bob")

    ran = refold("blame", "app.py", "--session", "run")

    assert "2 users have such sessions: name one with --user" in ran.err
    assert refold("blame", "app.py", "--session", "run", "--user", "bob").out


def test_a_line_that_a_command_may_have_changed_is_marked(
    refold: Refold, db: Path
) -> None:
    recorded_run(db)
    session = package.open(f"sqlite:///{db}").session(user_id="ada", session_id="run")
    command = {"command": "make fmt"}
    session.append(events.ToolCall(call_id="b", tool_name="Bash", arguments=command))
    session.append(events.ToolResult(call_id="b", content="done"))

    ran = refold("blame", "app.py:4")

    assert "unknown since seq 7 of run: a command may have changed" in ran.out
    assert "make fmt" in ran.out
