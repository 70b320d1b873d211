"""Kills of a proxied client, small: ``make soak-proxy`` is the same with a hundred."""

from __future__ import annotations

from pathlib import Path

from tests.soak.proxy import history
from tests.support.postgres import Postgres


def test_kills_with_sqlite_lose_and_double_nothing(tmp_path: Path) -> None:
    problems, acts = history(2, tmp_path / "trial", kills=4)

    assert problems == []
    assert acts["requests compared"] >= acts["answers"] - 4


def test_kills_with_postgresql_lose_and_double_nothing(
    tmp_path: Path, own_postgres: Postgres
) -> None:
    problems, acts = history(1, tmp_path / "trial", kills=4, server=own_postgres)

    assert problems == []
    assert acts["kills of the store"] >= 1
