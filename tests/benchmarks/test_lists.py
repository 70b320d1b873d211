"""The benchmark of lists makes up sessions once, and measures each list."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import lists


def test_it_fills_a_store_once_and_lists_its_sessions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lists.run(tmp_path, 20)
    first = capsys.readouterr().out
    lists.run(tmp_path, 20)
    second = capsys.readouterr().out

    assert "append the sessions" in first
    assert "append the sessions" not in second
    assert "20 of 20 sessions" in second
    assert "3 of 3 sessions" in second  # each seventh failed
