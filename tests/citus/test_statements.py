"""Every operation runs on Citus, and what it asks of a user goes to one machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from refold.domain.errors import StoreUnavailable
from refold.store import SessionStore
from refold.testing.event_log import user_inputs
from tests.guards.test_indexes import OF_ALL
from tests.support.operations import OPERATIONS, fill, log_of, session_of
from tests.support.plans import queries
from tests.support.routing import unrouted
from tests.support.statements import Statement, Wire
from tests.support.stores import open_at

# A literal for each type of a value.
_VALUES: Final = {
    "text": "'ada'",
    "character varying": "'ada'",
    "bytea": "'\\x00'",
    "smallint": "1",
    "integer": "1",
    "bigint": "1",
}
# By positions, which say nothing here.
_NOT_HERE: Final = "follow"


def statements_by_operation(url: str, folder: Path) -> dict[str, set[Statement]]:
    """Return the statements of each operation, normally from its second time on."""
    wire = Wire(url)
    statements: dict[str, set[Statement]] = {}
    with open_at(wire.url, folder) as store:
        fill(store, rounds=6)
        for name, operation in OPERATIONS.items():
            if name != _NOT_HERE:
                with wire.listen() as recording:
                    operation(store)
                statements[name] = queries(recording.statements)
        assert store.stats()["engine"] == "citus"
    wire.close()
    return statements


def plan(server: psycopg.Connection[Any], statement: Statement) -> str:
    """How Citus would run it, for some user."""
    server.execute("DEALLOCATE ALL")
    server.pgconn.prepare(b"asked", statement.text.encode(), statement.types)
    row = server.execute(
        "SELECT parameter_types::text[] FROM pg_prepared_statements "
        "WHERE name = 'asked'"
    ).fetchone()
    assert row is not None
    values = ", ".join(_VALUES.get(kind, "'{}'") for kind in row[0])  # else arrays
    given = f"({values})" if values else ""
    lines = server.execute(f"EXPLAIN EXECUTE asked{given}")  # type: ignore[arg-type, unused-ignore]  # no user's text
    return "\n".join(line for (line,) in lines)


def test_statements_of_a_user_are_tasks_of_one_machine(
    citus_url: str, tmp_path: Path
) -> None:
    operations = statements_by_operation(citus_url, tmp_path)

    of_a_user = {
        statement.text: statement
        for name, statements in operations.items()
        if name not in OF_ALL
        for statement in statements
    }
    assert {text: unrouted(text) for text in of_a_user if unrouted(text)} == {}
    with psycopg.connect(citus_url, autocommit=True) as server:
        server.prepare_threshold = None
        for statement in of_a_user.values():
            shown = plan(server, statement)
            # Leaves belong to no user, so a second task reads them.
            most = 2 if "leaves" in statement.text else 1
            tasks = re.findall(r"Task Count: (\d+)", shown)
            assert len(tasks) <= most, shown
            assert set(tasks) <= {"1"}, shown


def test_no_position_is_judged(store: SessionStore) -> None:
    session_of(store).append(user_inputs("a", "b"))
    recorder = log_of(store).recorder

    for judge in (
        recorder.max_notification_id,
        lambda: recorder.select_notifications(1, 9),
        lambda: next(recorder.subscribe(gt=1)),
    ):
        with pytest.raises(StoreUnavailable, match="no order of all events"):
            judge()
    assert [
        next(subscription).originator_version
        for subscription in [recorder.subscribe()] * 2
    ] == [
        1,
        2,
    ]


def test_a_context_is_one_statement(citus_url: str, tmp_path: Path) -> None:
    window = "turn_window:full_turns=2,cached_turns=1"
    wire = Wire(citus_url)

    def contexts(store: SessionStore) -> int:
        with wire.listen() as recording:
            session_of(store).context(window)
        return len(queries(recording.statements))

    with open_at(wire.url, tmp_path) as store:
        fill(store, rounds=6)
        session_of(store).strategies.catch_up()

        assert [contexts(store) for _ in range(3)] == [1, 1, 1]
    wire.close()
