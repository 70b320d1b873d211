"""A release has results of its benchmark that were measured on its own code."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools.check_benchmarks import PAGE, problem


def git(root: Path, *arguments: str) -> str:
    ran = subprocess.run(
        ["git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org", *arguments],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with a measured file, and a page that names its commit."""
    (tmp_path / "refold").mkdir()
    (tmp_path / "refold" / "store.py").write_text("measured = True\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "Measure")
    commit = git(tmp_path, "rev-parse", "--short=12", "HEAD")
    page = tmp_path / PAGE
    page.parent.mkdir()
    page.write_text(f"# Results\n\nMeasured on commit {commit}, date 2026-11-26.\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "Show the results")
    return tmp_path


def test_results_of_this_code_are_accepted(checkout: Path) -> None:
    assert problem(checkout) == ""


def test_results_of_earlier_code_are_refused(checkout: Path) -> None:
    (checkout / "refold" / "store.py").write_text("measured = False\n")
    git(checkout, "commit", "-q", "-a", "-m", "Change the code")

    assert "1 measured files have changed since" in problem(checkout)


@pytest.mark.parametrize(
    ("commit", "reason"),
    [
        ("0123456789ab", "no commit here"),
        ("579c4281a3bb-changed", "names no commit"),
    ],
)
def test_results_of_no_commit_are_refused(
    checkout: Path, commit: str, reason: str
) -> None:
    (checkout / PAGE).write_text(f"Measured on commit {commit}, date 2026-11-26.\n")

    assert reason in problem(checkout)
