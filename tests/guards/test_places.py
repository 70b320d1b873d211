"""Deletions in parts find their rows by place, without a scan of all rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import Connection, delete, event, literal_column, select

from tests.support.engines import BOTH
from tests.support.operations import log_of
from tests.support.stores import open_at
from tests.support.talking import talk

PLAN = {"sqlite": "EXPLAIN QUERY PLAN", "postgresql": "EXPLAIN"}
AT_ONCE = {"sqlite": "USING INTEGER PRIMARY KEY (rowid=?)", "postgresql": "Tid Scan"}


@BOTH
def test_deleting_most_rows_of_a_table_finds_them_by_place(
    store_url: str, tmp_path: Path
) -> None:
    with open_at(store_url, tmp_path) as store:
        talk(store.session(user_id="ada", session_id="s"), 400)
        database = log_of(store).recorder.database
        events = database.tables.events
        of_ada = events.c.user_id == "ada"
        place: Any = literal_column(database.place_column)
        batch = select(place).select_from(events).where(of_ada).limit(100)
        plans: list[str] = []

        @event.listens_for(database.engine(), "before_cursor_execute", retval=True)
        def explained(
            _1: Connection, _2: Any, statement: str, values: Any, *_: Any
        ) -> tuple[str, Any]:
            if statement.startswith("DELETE"):
                plans.append(statement)
                statement = f"{PLAN[database.name]} {statement}"
            return statement, values

        @event.listens_for(database.engine(), "after_cursor_execute")
        def note_plan(_: Connection, cursor: Any, statement: str, *__: Any) -> None:
            if statement.startswith("EXPLAIN"):
                plans.append(str(cursor.fetchall()))

        database.run_among("ada", delete(events).where(database.among(batch, of_ada)))

    _, plan = plans
    assert AT_ONCE[database.name] in plan
