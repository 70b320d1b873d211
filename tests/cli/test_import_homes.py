"""A home: the agents in it are found, asked for, and imported; a watch follows them."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import refold as library
from tests.cli.conftest import Refold
from tests.importers.agent_samples import (
    COPILOT,
    COPILOT_SESSION,
    GEMINI,
    GEMINI_SESSION,
)
from tests.importers.samples import CLAUDE_CODE, CODEX, SESSION, write_lines
from tests.support import warm
from tests.support.waiting import until

# The time for which an idle watch is measured.
_IDLE_SEC: Final = 4


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with sessions of four agents."""
    folders: dict[str, tuple[list[Any], str]] = {
        ".claude/projects/-work-shop": (CLAUDE_CODE, f"{SESSION}.jsonl"),
        ".codex/sessions/2026/02/03": (CODEX, "rollout-2026.jsonl"),
        ".gemini/tmp/shop/chats": (GEMINI, "session-2026.jsonl"),
        f".copilot/session-state/{COPILOT_SESSION}": (COPILOT, "events.jsonl"),
    }
    folder = tmp_path / "of-ada"
    for name, (lines, file) in folders.items():
        (folder / name).mkdir(parents=True)
        write_lines(folder / name, lines, file)
    return folder


def test_without_a_terminal_the_agents_are_listed(refold: Refold, home: Path) -> None:
    refused = refold("import", home, "--user", "ada")

    assert refused.code == 2
    assert refused.out == ""
    words = " ".join(refused.err.split())
    for description in (
        "Claude Code: 1 file, ",
        "(--format claude-code)",
        "Codex: 1 file, ",
        "Gemini CLI: 1 file, ",
        "GitHub Copilot CLI: 1 file, ",
        "add --yes to import all of them",
    ):
        assert description in words
    assert "OpenHands" not in words


def test_with_yes_all_agents_are_imported_once(refold: Refold, home: Path) -> None:
    first = refold("import", home, "--user", "ada", "--yes", "--json").json()
    again = refold("import", home, "--user", "ada", "--yes", "--json").json()

    assert SESSION in first["sessions"]
    assert COPILOT_SESSION in first["sessions"]
    assert len(first["sessions"]) == 5  # four, and a sub-agent
    assert first["failed"] == []
    assert again["events"] == 0


def test_a_format_chooses_one_agent(refold: Refold, home: Path) -> None:
    options = ("--user", "ada", "--yes", "--format", "gemini-cli", "--json")

    assert len(refold("import", home, *options).json()["sessions"]) == 1


def test_on_a_terminal_each_agent_is_asked_for(refold: Refold, home: Path) -> None:
    chosen = refold("import", home, "--user", "ada", stdin=b"n\nn\ny\nn\n", asked=True)
    none = refold("import", home, "--user", "ada", stdin=b"n\n" * 4, asked=True)

    assert chosen.code == 0
    assert "format: gemini-cli" in chosen.out
    assert chosen.err.count("Import ") == 4
    assert none.code == 2
    assert "no agent was chosen" in none.err


def test_a_folder_without_agents_is_read_as_before(
    refold: Refold, tmp_path: Path
) -> None:
    (tmp_path / "runs").mkdir()
    write_lines(tmp_path / "runs", CLAUDE_CODE)

    imported = refold("import", tmp_path / "runs", "--user", "ada", "--json")

    assert imported.json()["sessions"] == [SESSION]


def test_files_that_cannot_be_imported_leave_the_others_alone(
    refold: Refold, home: Path
) -> None:
    chats = home / ".gemini" / "tmp" / "shop" / "chats"
    write_lines(chats, GEMINI[:1], "session-empty.jsonl")
    (chats / "session-damaged.json").write_text("{")

    imported = refold("import", home, "--user", "ada", "--yes", "--json")

    value = imported.json()
    assert imported.code == 1
    assert len(value["sessions"]) == 5
    assert [failure["where"] for failure in value["failed"]] == [
        f"{chats / 'session-damaged.json'} line 1"
    ]
    assert "holds no messages" in str(value["skipped"])


def test_a_home_takes_no_name_of_a_session(refold: Refold, home: Path) -> None:
    refused = refold("import", home, "--user", "ada", "--yes", "--session", "s")

    assert refused.code == 2
    assert "a home has those of many" in " ".join(refused.err.split())


def test_a_folder_of_an_agent_can_be_named_itself(refold: Refold, home: Path) -> None:
    chats = home / ".gemini" / "tmp" / "shop" / "chats"
    document = {**GEMINI[0], "sessionId": "s-2", "messages": [GEMINI[2]]}
    (chats / "session-old.json").write_text(json.dumps(document))

    imported = refold("import", chats, "--user", "ada", "--json").json()

    assert sorted(imported["sessions"]) == [GEMINI_SESSION, "s-2"]


def test_a_watch_takes_no_name_for_later_sessions(refold: Refold, home: Path) -> None:
    refused = refold("import", home, "--user", "ada", "--session", "s", "--watch")

    assert refused.code == 2
    assert "--watch imports later ones" in " ".join(refused.err.split())


class Watching:
    """Processes that watch a home, one after the other."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'watched.db'}"
        self._command = ["refold", "--db", self.url, "import", str(home), "--yes"]
        self._command += ["--user", "ada", "--watch"]
        self._process: warm.Process | None = None

    def start(self, *more: str) -> None:
        command = [*self._command, *more]
        self._process = warm.Process(command, environment=os.environ)

    def stop(self, number: signal.Signals) -> tuple[str, str]:
        assert self._process is not None
        self._process.send_signal(number)
        out, err = self._process.communicate()
        self._process = None
        return out, err

    def processor_sec(self) -> float:
        """Return the time of the processor that the process has used."""
        assert self._process is not None
        status = Path(f"/proc/{self._process.pid}/stat").read_text()
        user, system = status.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        if self._process is not None:
            self.stop(signal.SIGKILL)

    def events(self, session_id: str) -> int:
        """Return the number of events of a session; 0 if there is none."""
        try:
            with library.open(self.url) as store:
                return len(store.session(user_id="ada", session_id=session_id).events())
        except library.RefoldError:
            return 0


@pytest.fixture
def watching(home: Path, tmp_path: Path) -> Iterator[Watching]:
    processes = Watching(home, tmp_path)
    yield processes
    processes.close()


def append(path: Path, *entries: Any) -> None:
    with path.open("a") as file:
        for entry in entries:
            file.write(json.dumps(entry) + "\n")


def test_a_watch_imports_new_and_grown_files_and_survives_a_kill(
    watching: Watching, home: Path
) -> None:
    claude = home / ".claude" / "projects" / "-work-shop" / f"{SESSION}.jsonl"
    added = {**CLAUDE_CODE[1], "uuid": "u9", "parentUuid": "a3"}

    watching.start()
    first = until(lambda: watching.events(SESSION), "the first import")
    append(claude, added)
    until(lambda: watching.events(SESSION) == first + 1, "the grown file")
    watching.stop(signal.SIGKILL)
    append(claude, {**added, "uuid": "u10", "parentUuid": "u9"})
    new = home / ".claude" / "projects" / "-work-other"
    new.mkdir()
    write_lines(new, [{**added, "sessionId": "s-new"}], "s-new.jsonl")
    watching.start()
    until(lambda: watching.events(SESSION) == first + 2, "the file after the kill")
    until(lambda: watching.events("s-new") == 1, "the new file")
    with claude.open("a") as file:
        file.write('{"type": "user", "uu')
    append(new / "s-new.jsonl", {**added, "sessionId": "s-new", "uuid": "u12"})
    until(lambda: watching.events("s-new") == 2, "the file after a torn line")
    out, err = watching.stop(signal.SIGINT)

    assert watching.events(SESSION) == first + 2
    assert "written to" in out
    assert "files, then new files and new entries; stop with Ctrl-C" in err
    assert "; waiting for changes" in err


def test_a_watch_shows_its_progress_if_asked(watching: Watching) -> None:
    watching.start("--progress")
    until(lambda: watching.events(SESSION) > 0, "the first import")
    _, err = watching.stop(signal.SIGINT)

    assert "of 4 files" in err


def test_an_idle_watch_needs_little_time_of_the_processor(watching: Watching) -> None:
    watching.start()
    until(lambda: watching.events(SESSION) > 0, "the first import")
    until(lambda: watching.events(COPILOT_SESSION) > 0, "the last file")
    begun = time.monotonic()
    used_before = watching.processor_sec()

    until(lambda: time.monotonic() > begun + _IDLE_SEC, "some looks")

    assert watching.processor_sec() - used_before < _IDLE_SEC * 0.05
