"""Reverts, and the files that no commit contains, are read from shell commands."""

from __future__ import annotations

import pytest

from refold.projections.context.git import Uncommitted, git_commands, is_revert

FILES = {"/repo/src/a.py", "/repo/v2.b", "/repo/src/main/App.java", "notes.md"}


@pytest.mark.parametrize(
    "command",
    [
        "git revert HEAD",
        "git reset --hard origin/main",
        "git reset HEAD~1",
        "git checkout -- src/b.py",
        "git checkout main -- src/b.py",
        "git checkout src/a.py",
        "git checkout HEAD~1 a.py",
        "git checkout src",
        "git checkout notes.md",
        "cd /repo && git checkout v2.b",
        "git checkout .",
        "git -C /repo restore src/a.py",
        "cd /repo && git stash",
        "git clean -fd",
        "git checkout unknown.py",
        "git checkout HEAD~2 other.py",
        "git checkout -f",
        "git switch --discard-changes main",
        "git switch -f main",
        "out=`git reset --hard`",
        "cd src && git checkout a.py",
        "git stash 2>&1",
        "git --no-pager  reset --hard",
        "/usr/bin/git reset --hard",
        'bash -c "git reset --hard"',
        "ssh host 'git reset --hard'",
        "if true; then git reset --hard; fi",
    ],
)
def test_commands_that_take_changes_back(command: str) -> None:
    assert is_revert(command, FILES)


@pytest.mark.parametrize(
    "command",
    [
        "git checkout main",
        "git switch main",
        "git switch -c force",
        "echo `git status`",
        "git checkout release-1.x",
        "git checkout v1.b",
        "cd /other && git checkout v2.b",
        "git checkout -b fix/parser.v2",
        "git checkout -b notes.md",
        "git restore --staged a.py",
        "git stash list",
        "git stash pop",
        "git stash ''",
        "git reset",
        "git status",
        "git log --grep 'git revert'",
        "git clean -nd",
        "git revert --abort",
        "echo revert",
        "echo 'now run git reset --hard'",
        'rg "run git revert"',
        "# git reset --hard would lose it",
    ],
)
def test_commands_that_take_nothing_back(command: str) -> None:
    assert not is_revert(command, FILES)


def test_commands_have_their_folders_and_words() -> None:
    commands = git_commands(
        "cd /repo; git add 'a b.py' c.py && git -C /other commit -m \"x; y\" | tail"
    )

    assert [tuple(command) for command in commands] == [
        ("/repo", "add", ("a b.py", "c.py")),
        ("/other", "commit", ("-m", "x; y")),
    ]


def uncommitted(*steps: str) -> list[str]:
    """The files that are not committed after these changes ("+ FILE") and commands."""
    changes = Uncommitted()
    for place, step in enumerate(steps):
        if step.startswith("+ "):
            changes.change(step.removeprefix("+ "), place)
        else:
            changes.run(step)
    return list(changes.files())


@pytest.mark.parametrize(
    "commit",
    [
        "git commit -am 'Fix it'",
        "git commit -a",
        "git commit --all -m x",
        "git add -A && git commit -m x",
        "git add . && git commit -m x",
        "git add ./ && git commit -m x",
        "git add -u; git commit --amend",
        "git add a.py src/b.py && git commit -m x",
        "git add /repo/a.py /repo/src && git commit -m x",
        "git add *.py && git commit -m x",
        "cd /repo && git add a.py src && git commit -m x",
        "git -C /repo commit -m x -- a.py src/b.py",
        "git add a.py; cd src && git add b.py && git commit -m x",
        "cd /repo && git add a.py && cd src && git add b.py && git commit -m x",
        'cd "/repo" && git add a.py src && git commit -m x',
        "git add a.py src; out=`git commit -m x`",
    ],
)
def test_a_commit_of_every_file(commit: str) -> None:
    assert uncommitted("+ /repo/a.py", "+ /repo/src/b.py", commit) == []


@pytest.mark.parametrize(
    "command",
    [
        "git commit -m x",
        "git commit-tree -m x",
        "git commit -ma",
        "git commit -a --dry-run",
        "git commit -m a.py",
        "git commit -F a.py",
        "git commit --fixup a.py",
        "git commit -m x # a.py",
        "git commit -m '- all tests' b.py",
        "git add a.py && git commit -m x b.py",
        'gh pr comment --body "then git commit -am x"',
        "git add b.py && git commit -m 'add -A'",
        "echo 'git commit -a'",
        "git log --grep commit",
    ],
)
def test_a_commit_of_no_known_file(command: str) -> None:
    assert uncommitted("+ /repo/a.py", command) == ["/repo/a.py"]


def test_a_commit_takes_the_files_that_were_added_before_it() -> None:
    steps = ["+ a.py", "+ b.py", "git add a.py && git commit -m x"]
    assert uncommitted(*steps) == ["b.py"]
    assert uncommitted("+ a.py", "git add a.py", "+ a.py", "git commit") == ["a.py"]
    assert uncommitted("+ a.py", "git add -A", "+ b.py", "git commit") == ["b.py"]
    # The shortest path is the likely one if nothing says where the command runs.
    nested = ["+ /repo/src/a.py", "+ /repo/a.py", "git add a.py; git commit"]
    assert uncommitted(*nested) == ["/repo/src/a.py"]


def test_only_commits_count_as_commits() -> None:
    changes = Uncommitted()
    changes.run("git commit-tree HEAD^{tree} && git commit --dry-run")
    assert not changes.has_commit

    changes.run("git commit -m x")
    assert changes.has_commit


def test_files_outside_of_the_repository_are_not_listed() -> None:
    edited = [
        "+ /var/folders/x.py",
        "+ /home/ada/.claude/plan.md",
        "+ /repo/a.py",
        "+ b.py",
    ]

    assert uncommitted(*edited, "git commit -m x") == ["/repo/a.py", "b.py"]
    assert uncommitted(*edited, "cd /repo && git add c.py") == ["/repo/a.py", "b.py"]


def test_a_repository_may_be_in_any_folder() -> None:
    steps = ["+ /var/folders/x.py", "cd /var/folders && git commit -m x"]

    assert uncommitted(*steps) == ["/var/folders/x.py"]


def test_a_commit_leaves_the_files_of_another_repository() -> None:
    edited = ["+ /one/a.py", "+ /two/a.py", "cd /one && git add c.py"]

    assert uncommitted(*edited, "cd /two; git commit -am x") == ["/one/a.py"]
