"""``--session`` takes the beginning of a name, as a list in a terminal prints it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from refold import UserInput, open as open_store
from refold.store import SessionStore
from tests.cli.conftest import Refold
from tests.cli.test_isolation import ASKS

# An erasure is irreversible, and the access log has records of sessions that are gone.
EXACT = {"audit", "erase"}
REST = sorted(set(ASKS) - EXACT)


def add(*names: str, user: str = "lin") -> None:
    with open_store("sqlite:///refold.db") as store:
        for name in names:
            store.session(user_id=user, session_id=name).append(UserInput(text="hi"))


@pytest.mark.parametrize("command", REST)
def test_every_command_takes_the_beginning_of_a_name(
    refold: Refold, sample: Path, command: str
) -> None:
    user = ("--user", "lin", "--json")
    whole = refold(command, *ASKS[command], *user, "--session", "run")
    Path("run.html").unlink(missing_ok=True)
    short = refold(command, *ASKS[command], *user, "--session", "ru…")

    assert (short.code, short.err) == (whole.code, whole.err)
    assert "ru…" not in short.out


@pytest.mark.parametrize("command", REST)
def test_the_beginning_of_a_name_finds_no_session_of_another_user(
    refold: Refold, sample: Path, command: str
) -> None:
    add("own", user="bob")
    user = ("--user", "bob", "--json")

    hers = refold(command, *ASKS[command], *user, "--session", "ru")
    nowhere = refold(command, *ASKS[command], *user, "--session", "xy")

    assert hers.code == nowhere.code == 1
    assert hers.err.replace("'ru'", "'xy'") == nowhere.err
    assert "`refold sessions --ids`" in hers.err


def test_an_erasure_needs_the_whole_name(refold: Refold, sample: Path) -> None:
    ran = refold(
        "erase", "--user", "lin", "--session", "ru", "--reason", "asked", "--yes"
    )

    assert ran.code == 1
    assert refold("log", "--user", "lin", "--session", "run").code == 0


def test_a_question_is_found_by_the_beginning_of_its_session(
    refold: Refold, sample: Path
) -> None:
    whole = refold("review", "show", "run", "1", "--user", "lin")
    short = refold("review", "show", "ru", "1", "--user", "lin")
    missing = refold("review", "show", "xy", "1", "--user", "lin")

    assert short == whole
    assert "has no session 'xy'" in missing.err


def test_an_ambiguous_beginning_lists_the_sessions(
    refold: Refold, sample: Path
) -> None:
    add(*(f"run-{number}" for number in range(7)))
    add("run-of-bob", user="bob")

    add("3de15637-0", "3de15637-1")

    ran = refold("log", "--user", "lin", "--session", "run-")
    uuid = refold("log", "--user", "lin", "--session", "3de15637…")
    exact = refold("log", "--user", "lin", "--session", "run", "--json")

    assert ran.code == 2
    assert "7 sessions begin with 'run-'" in ran.err
    assert "run-0, run-1, run-2, run-3, run-4 and 2 more" in ran.err
    assert "bob" not in ran.err
    assert uuid.code == 2
    assert "2 sessions begin with '3de15637'" in uuid.err
    assert "3de15637-0, 3de15637-1" in uuid.err
    assert exact.lines()[0]["session_id"] == "run"


def test_the_sessions_of_sub_agents_do_not_make_a_name_ambiguous(
    refold: Refold, sample: Path
) -> None:
    add("3de15637-1", "3de15637-1~agent-a", "3de15637-1~agent-b")

    main = refold("log", "--user", "lin", "--session", "3de15637…", "--json")
    agent = refold("log", "--user", "lin", "--session", "3de15637-1~agent-b")

    assert main.lines()[0]["session_id"] == "3de15637-1"
    assert agent.code == 0


def test_a_name_that_ends_with_an_ellipsis_is_exact(
    refold: Refold, sample: Path
) -> None:
    add("a…", "a…b")

    ran = refold("log", "--user", "lin", "--session", "a…", "--json")

    assert ran.lines()[0]["session_id"] == "a…"


def test_without_a_user_the_sessions_of_all_users_count(
    refold: Refold, sample: Path
) -> None:
    add("run-of-bob", user="bob")

    exact = refold("verify", "--session", "run", "--json")
    short = refold("verify", "--session", "run-", "--json")
    missing = refold("verify", "--session", "xy")
    stats = refold("stats", "--session", "run-", "--json").json()

    assert (exact.code, short.code) == (0, 0)
    assert stats["events"] == 1
    assert missing.code == 1
    assert "`refold sessions --ids`" in missing.err


def test_internal_sessions_have_no_short_name(refold: Refold, sample: Path) -> None:
    refold("label", "--user", "lin", "--session", "run", "a=b")

    assert refold("log", "--user", "lin", "--session", "_us").code in (1, 2)


def test_an_exact_name_reads_no_list(
    refold: Refold, sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists: list[str | None] = []
    listed = SessionStore.sessions

    def counted(self: SessionStore, user_id: str | None = None, **rest: Any) -> Any:
        lists.append(user_id)
        return listed(self, user_id, **rest)

    monkeypatch.setattr(SessionStore, "sessions", counted)

    refold("log", "--user", "lin", "--session", "run")
    assert lists == []

    refold("log", "--user", "lin", "--session", "ru")
    assert lists[0] == "lin"
