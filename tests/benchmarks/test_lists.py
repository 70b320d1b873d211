"""The benchmark of lists makes up sessions once, and measures each list."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from benchmarks import lists
from refold.store.overviews import SORTS


def test_it_fills_a_store_once_and_lists_its_sessions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lists.run(tmp_path, None, sessions=20, runs=1)
    first = capsys.readouterr().out
    lists.run(tmp_path, None, sessions=20, runs=1)
    second = capsys.readouterr().out

    assert "append the sessions" in first
    assert "append the sessions" not in second
    assert second.count("20 of 20 sessions") >= len(SORTS)
    assert "3 of 3 sessions" in second  # each seventh failed


def test_its_sessions_are_in_another_order_than_their_names() -> None:
    names = list(islice(lists.session_names(), 20))

    assert len(set(names)) == 20
    assert names != sorted(names)
