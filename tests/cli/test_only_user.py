"""A command that only reads needs no --user in a store with one user."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from refold import UserInput, open as open_store
from refold.adapters.cli.commands import GROUPS
from refold.adapters.cli.run import command
from tests.cli.conftest import Refold

# Commands that only read, with the arguments after which --user is optional.
READS: Final[dict[str, list[str]]] = {
    "audit": ["--session", "run"],
    "blame": ["--session", "run"],
    "compare": ["--session", "run", "--strategy", "keep_all"],
    "consent": [],
    "context": ["--session", "run"],
    "export": ["--session", "run", "--format", "openai"],
    "log": ["--session", "run"],
    "memory": [],
    "prove": ["--session", "run", "--seq", "1"],
    "rerun": ["--session", "run"],
    "search": ["the"],
    "sessions": ["--label", "team=x"],
    "share": ["--list"],
    "stats": ["--session", "run"],
    "verify": ["--session", "run"],
    "view": ["--session", "run", "--html", "run.html"],
    "why": ["--session", "run"],
}
# Changes, with the arguments after which --user is missing.
CHANGES: Final[dict[str, list[str]]] = {
    "consent": ["--opt-out"],
    "compact": ["--session", "run"],
    "erase": ["--reason", "asked", "--yes"],
    "freeze": ["--reason", "asked"],
    "hold": ["--name", "case", "--reason", "asked"],
    "label": ["--session", "run", "team=x"],
    "memory": ["--forget", "m000000000000000"],
    "readmit": ["--reason", "asked"],
    "restore": ["--reason", "asked"],
    "review": ["decide", "run", "1", "--decision", "accept"],
    "share": ["--session", "run", "--expires", "1h", "--yes"],
}


def test_every_command_that_looks_is_listed_here() -> None:
    looking = {
        name
        for name in GROUPS["Look"]
        if any("--user" in param.opts for param in command(name).params)
    }

    assert looking <= set(READS)


@pytest.mark.parametrize("command", READS)
def test_the_only_user_is_the_default(
    refold: Refold, sample: Path, command: str
) -> None:
    refold("seal")
    named = refold(command, *READS[command], "--user", "lin", "--json")
    Path("run.html").unlink(missing_ok=True)

    assert refold(command, *READS[command], "--json") == named
    assert "--user" not in named.err


@pytest.mark.parametrize("command", ["search", "memory", "consent", "share"])
def test_several_users_make_a_command_ask_for_one(
    refold: Refold, sample: Path, command: str
) -> None:
    with open_store("sqlite:///refold.db") as store:
        store.session(user_id="bob", session_id="own").append(UserInput(text="hi"))

    ran = refold(command, *READS[command])

    assert ran.code == 1
    assert "several users: name one with --user" in ran.err


def test_a_user_without_a_run_is_named_among_several(
    refold: Refold, sample: Path
) -> None:
    refold("consent", "--user", "zoe", "--opt-out")

    ran = refold("search", "the")

    assert ran.code == 1
    assert "name one with --user, such as lin or zoe" in ran.err


def test_a_session_of_one_user_needs_no_user_in_a_store_of_several(
    refold: Refold, sample: Path
) -> None:
    with open_store("sqlite:///refold.db") as store:
        store.session(user_id="bob", session_id="own").append(UserInput(text="hi"))

    only = refold("log", "--session", "own", "--json")
    with open_store("sqlite:///refold.db") as store:
        store.session(user_id="bob", session_id="run").append(UserInput(text="hi"))
    both = refold("log", "--session", "run", "--json")

    assert [event["user_id"] for event in only.lines()] == ["bob"]
    assert both.code == 1
    assert "2 users have such sessions: name one with --user" in both.err


@pytest.mark.parametrize("command", CHANGES)
def test_a_change_names_its_user(refold: Refold, sample: Path, command: str) -> None:
    ran = refold(command, *CHANGES[command])

    assert ran.code == 2
    assert "--user" in ran.err
    assert refold("sessions", "--ids", "--json").json()[0]["session_id"] == "run"


def test_an_empty_store_says_how_to_fill_it(refold: Refold, sample: Path) -> None:
    with open_store("sqlite:///empty.db"):
        pass

    ran = refold("search", "word", "--db", "sqlite:///empty.db")

    assert ran.code == 1
    assert "no sessions yet: `refold run` and `refold import` add them" in ran.err
