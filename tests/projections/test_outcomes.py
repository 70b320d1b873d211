"""The outcomes of calls are read from their results and commands."""

from __future__ import annotations

import pytest

from refold.projections.context.outcomes import (
    failures_despite_success,
    is_commit,
    is_revert,
    same_work,
    without_reminders,
)


@pytest.mark.parametrize(
    ("command", "output", "failures"),
    [
        ("pytest -q | tail -3", "..F\n2 failed, 3 passed in 1 s", "2 failed, 3 passed"),
        ("go test ./... | tail", "--- FAIL: TestA (0.0s)\nFAIL", "--- FAIL: TestA"),
        ("make 2>&1 | tee log", "make: *** [all] Error 1", "make: *** [all] Error 1"),
        ("npx jest | cat", "Tests:       1 failed, 2 total", "1 failed, 2 total"),
        ("pytest -q | tail -3", "5 passed, 0 failed in 1 s", ""),
        ("mise run lint", "0 issues.", ""),
        # These print what others wrote.
        ("grep -rn test notes.txt", "2 failed, 3 passed", ""),
        ("cd src && cat test.log", "2 failed, 3 passed", ""),
        ("git log --grep test", "FAIL: the old test", ""),
        ("./deploy", "2 failed", ""),
    ],
)
def test_failures_in_the_output_of_a_successful_check(
    command: str, output: str, failures: str
) -> None:
    found = failures_despite_success(command, output)

    assert failures in found
    assert bool(found) is bool(failures)


@pytest.mark.parametrize(
    "command",
    [
        "git revert HEAD",
        "git reset --hard origin/main",
        "git reset HEAD~1",
        "git checkout -- src/a.py",
        "git checkout src/a.py",
        "git -C /repo restore src/a.py",
        "cd /repo && git stash",
        "git clean -fd",
    ],
)
def test_commands_that_take_changes_back(command: str) -> None:
    assert is_revert(command)


@pytest.mark.parametrize(
    "command",
    [
        "git checkout main",
        "git checkout -b fix/parser.v2",
        "git restore --staged a.py",
        "git stash list",
        "git stash pop",
        "git reset",
        "git status",
        "echo revert",
    ],
)
def test_commands_that_take_nothing_back(command: str) -> None:
    assert not is_revert(command)


def test_commits() -> None:
    assert is_commit("git add -A && git commit -m 'Fix it'")
    assert is_commit("git -C /repo commit --amend")
    assert not is_commit("git log --grep commit")
    assert not is_commit("git commit --dry-run")


def test_the_same_work_has_the_same_command_whatever_shortens_its_output() -> None:
    assert same_work("make test 2>&1 | tail -15") == same_work("make test | head -3")
    assert same_work("make test") != same_work("make lint")


def test_reminders_are_no_output() -> None:
    output = "line\n<system-reminder>\nDo not read it.\n</system-reminder>\n"

    assert without_reminders(output).strip() == "line"
    assert without_reminders("line <system-reminder>\ncut") == "line"
