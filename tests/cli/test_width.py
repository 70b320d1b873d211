"""No line is wider than the terminal, whatever the log contains."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.cells import cell_len

import refold as package
from refold import events
from tests.cli.conftest import Refold
from tests.cli.test_terminal import on_terminal, plain

FOLDER = "/repo/" + "a-rather-long-name-of-a-folder/" * 4
PATH = f"{FOLDER}报告.py"
SESSION = "5f0c2a7e-3b41-4d8e-9a56-1c7e8b9d0f21-and-more"
OF = ("--user", "ada", "--session", SESSION)
LONG_WORD = "long" * 40
CHINESE = "请修复合计，它总是少一。" * 12
LINE = f"    return {LONG_WORD}  # {CHINESE}"
SPEC = "turn_window:full_turns=1,cached_turns=1"
COMMANDS = {
    "sessions": ("sessions",),
    "log": ("log", *OF),
    "log, compact": ("log", *OF, "--verbosity", "compact"),
    "log, failed": ("log", *OF, "--failed"),
    "why": ("why", *OF, "--strategy", SPEC),
    "why, at": ("why", *OF, "--strategy", SPEC, "--at", "6", "-v"),
    "context": ("context", *OF, "--strategy", SPEC),
    "compare": ("compare", *OF, "--strategy", SPEC, "--strategy", "keep_all"),
    "blame": ("blame", "--session", SESSION),
    "blame, file": ("blame", "报告.py"),
    "blame, line": ("blame", "报告.py:2"),
    "search": ("search", "--user", "ada", "合计", LONG_WORD),
    "stats": ("stats", "--cost"),
    "compact": ("compact", *OF, "--strategy", SPEC),
}


@pytest.fixture(autouse=True)
def long_texts(refold: Refold, tmp_path: Path) -> None:
    """Record a run with long words, wide characters, tabs, and long paths."""
    with package.open("sqlite:///refold.db") as store:
        session = store.session(user_id="ada", session_id=SESSION)
        for turn in range(3):
            session.append(events.UserInput(text=f"{CHINESE} {LONG_WORD} {turn}"))
            session.append(
                events.AgentResponse(
                    text=f"{LONG_WORD}\t\t{CHINESE}",
                    usage={"input_tokens": 10, "output_tokens": 1},
                ),
                meta={"model": "claude-haiku-4-5"},
            )
            write = {"file_path": PATH, "content": f"import os\n{LINE}\n"}
            call = events.ToolCall(
                call_id=f"w{turn}", tool_name="Write", arguments=write
            )
            session.append(call)
            session.append(events.ToolResult(call_id=f"w{turn}", content="written"))
            command = {"command": f"make\t{LONG_WORD} && {CHINESE} {PATH}"}
            call = events.ToolCall(
                call_id=f"b{turn}", tool_name="Bash", arguments=command
            )
            session.append(call)
            output = "\n".join(f"{n}\t\t{LINE}" for n in range(20))
            session.append(
                events.ToolResult(call_id=f"b{turn}", content=output, status="error")
            )


@pytest.mark.parametrize("name", COMMANDS)
def test_each_line_fits_80_columns(name: str) -> None:
    shown = plain(on_terminal(*COMMANDS[name], columns=80))

    lines = shown.split("\n")
    assert len(lines) > 1
    wide = [line for line in lines if cell_len(line.expandtabs(8)) > 80]
    assert wide == []


def test_a_long_path_is_cut_at_its_beginning() -> None:
    listed = plain(on_terminal("blame", "--session", SESSION, columns=80))
    of_file = plain(on_terminal("blame", "报告.py", columns=80))

    assert listed.splitlines()[1].rstrip().endswith("报告.py")
    assert "…" in listed
    assert of_file.splitlines()[0].startswith("…")
    assert of_file.splitlines()[0].endswith("报告.py")


def test_hits_of_a_search_have_the_title_of_their_session() -> None:
    with package.open("sqlite:///refold.db") as store:
        session = store.session(user_id="ada", session_id=SESSION)
        session.label(title="Sums")

    hits = plain(on_terminal("search", "--user", "ada", "合计", columns=80))

    assert hits.splitlines()[0].split()[-1] == "Sums"
    assert hits.splitlines()[0].startswith("5f0c2a7e…")


def test_a_program_gets_whole_lines(refold: Refold) -> None:
    lines = refold("blame", "--session", SESSION).out.splitlines()

    assert lines[1].endswith(PATH)
