"""A soak of forks, small: ``make soak-forks`` is the same with hundreds of families."""

from __future__ import annotations

from pathlib import Path

import pytest

from refold.adapters.sql import files, forks
from refold.adapters.sql.sqlite import SqliteDatabase
from tests.soak.forks import history

SEEDS = range(1, 5)


def test_a_family_of_processes_loses_nothing_that_one_acknowledged(
    tmp_path: Path,
) -> None:
    wrong: list[str] = []
    forked = 0
    for seed in SEEDS:
        problems, acts = history(seed, tmp_path / str(seed))
        wrong += problems
        forked += acts["fork"] + acts["fork in C"]

    assert wrong == []
    assert forked > len(SEEDS)


def test_processes_that_use_inherited_files_are_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqliteDatabase, "close_before_fork", lambda _: None)
    monkeypatch.setattr(forks, "check_not_inherited", lambda *_: None)
    monkeypatch.setattr(files.WatchedFile, "check", lambda *_: None)

    wrong = [line for seed in SEEDS for line in history(seed, tmp_path / str(seed))[0]]

    assert [line for line in wrong if "acknowledged" in line]
