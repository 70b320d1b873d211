"""Leases are rows: a store of before gets their table, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import text

import refold
from tests.support.rewritten import prefix, raw
from tests.support.stores import open_at
from tests.support.summarizing import Counting

WINDOW = "turn_window:full_turns=1,cached_turns=1"


def test_a_store_of_schema_2_is_brought_up_to_date(
    store_url: str, tmp_path: Path
) -> None:
    with open_at(store_url, tmp_path) as store:
        session = store.session("ada", "s-1")
        for _ in range(2):
            session.append(refold.UserInput(text="why " * 40))
            session.append(refold.AgentResponse(text="because " * 40))
    with raw(store_url).begin() as connection:
        for statement in (
            "DROP TABLE @leases",
            "UPDATE @settings SET value='2' WHERE name='schema_version'",
        ):
            connection.execute(text(statement.replace("@", prefix(store_url))))

    with open_at(store_url, tmp_path) as store:
        session = store.session("ada", "s-1")
        assert session.compact(WINDOW, summarizer=Counting(tmp_path / "calls"))

    with raw(store_url).connect() as connection:
        found = connection.execute(
            text(f"SELECT count(*) FROM {prefix(store_url)}leases")
        )
        assert found.scalar_one() == 0
        version = connection.execute(
            text(
                f"SELECT value FROM {prefix(store_url)}settings "
                "WHERE name='schema_version'"
            )
        )
        assert int(version.scalar_one()) >= 3
