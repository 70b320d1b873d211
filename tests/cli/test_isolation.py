"""No command reaches a session of another user, or reveals that it exists."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from refold.adapters.cli.commands import COMMANDS
from refold.adapters.cli.run import command
from tests.cli.conftest import SAMPLE, Refold

HERS = "run"
NOWHERE = "ran"
WINDOW: Final = "turn_window:full_turns=2,cached_turns=2"
# Every command that takes --user and --session, with its other arguments.
ASKS: Final[dict[str, list[str]]] = {
    "audit": [],
    "blame": ["a.py"],
    "compact": ["--strategy", WINDOW],
    "compare": ["--strategy", WINDOW, "--strategy", "keep_all"],
    "context": ["--strategy", WINDOW],
    "erase": ["--reason", "asked for", "--yes"],
    "export": [],
    "keys": ["rotate"],
    "label": ["team=x"],
    "log": [],
    "prove": ["--seq", "1"],
    "rebuild": ["--strategy", WINDOW],
    "redact": ["--recheck"],
    "repair": [],
    "rerun": [],
    "review": ["scan"],
    "search": ["the"],
    "share": ["--out", "run.html", "--yes"],
    "stats": [],
    "verify": [],
    "view": ["--html", "run.html"],
    "why": ["--strategy", WINDOW],
}
WRITES: Final = {"import", "run", "proxy"}


def test_every_command_that_takes_a_session_is_listed_here() -> None:
    taking = {
        name
        for name in COMMANDS
        if any("--session" in param.opts for param in command(name).params)
    }

    assert taking == set(ASKS) | WRITES


@pytest.mark.parametrize("command", ASKS)
def test_a_session_of_another_user_looks_like_a_missing_one(
    refold: Refold, sample: Path, command: str
) -> None:
    refold("import", SAMPLE, "--user", "bob", "--session", "own")
    before = refold("export", "--user", "lin", "--session", HERS).out

    answers = []
    for name in (HERS, NOWHERE):
        ran = refold(command, *ASKS[command], "--user", "bob", "--session", name)
        answers.append(
            (ran.code, ran.out.replace(name, "…"), ran.err.replace(name, "…"))
        )

    assert answers[0] == answers[1]
    assert refold("export", "--user", "lin", "--session", HERS).out == before
    assert before
    assert sample.exists()


def test_an_import_under_another_user_is_another_session(
    refold: Refold, sample: Path
) -> None:
    before = refold("export", "--user", "lin", "--session", HERS).out

    ran = refold("import", SAMPLE, "--user", "bob", "--session", HERS, "--json")

    assert ran.json()["duplicates"] == 0
    assert refold("export", "--user", "lin", "--session", HERS).out == before
    assert sample.exists()
