"""The outcomes of calls are read from their results and commands."""

from __future__ import annotations

import pytest

from refold.projections.context.outcomes import (
    failures_despite_success,
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
    reported = failures_despite_success(command, output)

    assert failures in reported
    assert bool(reported) is bool(failures)


def test_the_same_work_has_the_same_command_whatever_shortens_its_output() -> None:
    assert same_work("make test 2>&1 | tail -15") == same_work("make test | head -3")
    assert same_work("make test") != same_work("make lint")


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        ("line\n<system-reminder>\nDo not.\n</system-reminder>\n", "line"),
        ("line <system-reminder>Do not.</system-reminder>\nnext", "line\nnext"),
        ("a\n<system-reminder>b</system-reminder>\n\n<system-reminder>c", "a"),
        ("line\n  <system-reminder>\ncut", "line"),
        ("<system-reminder>A <system-reminder> in it.</system-reminder>", ""),
        (
            "grep: <system-reminder> appears in a.py:3\nERROR important",
            "grep: <system-reminder> appears in a.py:3\nERROR important",
        ),
        (
            "a.py: <system-reminder>\nERROR\n<system-reminder>b</system-reminder>",
            "a.py: <system-reminder>\nERROR",
        ),
        ("a.py: </system-reminder>\nERROR", "a.py: </system-reminder>\nERROR"),
    ],
)
def test_results_lose_only_reminders(output: str, shown: str) -> None:
    assert without_reminders(output).strip() == shown
