"""After ``erase --vacuum`` the planner's statistics name nobody who was erased."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

import refold
from tests.support.stores import open_at


@pytest.mark.parametrize("others", [0, 1])
def test_statistics_name_nobody_who_was_erased(
    postgres_url: str, tmp_path: Path, others: int
) -> None:
    query = "SELECT count(*) FROM pg_stats WHERE pg_stats::text LIKE '%zelda%'"
    with open_at(postgres_url, tmp_path) as store:
        for number in range(4):
            session = store.session(user_id="zelda", session_id=f"zelda-{number % 2}")
            session.append(refold.UserInput(text="hello"))
        for number in range(others):
            session = store.session(user_id=f"bob-{number}", session_id="s")
            session.append(refold.UserInput(text="hello"))
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("ANALYZE")
            before = connection.execute(query).fetchone()
            store.erase("zelda", "asked for it", vacuum=True)
            after = connection.execute(query).fetchone()
            left = connection.execute(
                "SELECT version(), tablename, attname FROM pg_stats "
                "WHERE pg_stats::text LIKE '%zelda%'"
            ).fetchall()

    assert before is not None
    assert before[0] > 0
    assert after == (0,), left
