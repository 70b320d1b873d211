"""Row security costs a read one statement, but no round trip and no index."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from refold.store import Session
from refold.testing.event_log import user_inputs
from tests.support.plans import fill_tables, plan_nodes, queries
from tests.support.roles import Walled
from tests.support.statements import Recording, Statement, Wire
from tests.support.stores import open_at
from tests.support.talking import talk

WINDOW: Final = "turn_window:full_turns=2,cached_turns=1"
WARM: Final = 8  # the driver prepares a statement after a few executions
DOES: Final[dict[str, Callable[[Session], Any]]] = {
    "one event": lambda session: session.append(user_inputs("x")),
    "a hundred events": lambda session: session.append(user_inputs("x") * 100),
    "a page of events": lambda session: session.events(after=5, limit=10),
    "a context": lambda session: session.context(WINDOW),
    "names of streams": lambda session: session.history.streams(),
    "a list of sessions": lambda session: session.writer.log.sessions("ada"),
}
# Statements and round trips.  Appends cost the same as the owner's.  A read of one
# statement sets its user in the same round trip; other reads are a transaction.
COSTS: Final = {
    "one event": (1, 1),
    "a hundred events": (1, 1),
    "a page of events": (4, 2),
    "a context": (2, 1),
    "names of streams": (2, 1),
    "a list of sessions": (2, 1),
}

# Parameters, and before PostgreSQL 17 also one-time lookups.
_NUMBERED: Final = re.compile(r"\$[0-9]+|InitPlan [0-9]+")


@pytest.fixture
def wire(walled: Walled) -> Iterator[Wire]:
    """A recorded connection as the app role."""
    wire = Wire(walled.app)
    yield wire
    wire.close()


def recorded(wire: Wire, session: Session, does: Callable[[Session], Any]) -> Recording:
    for _ in range(WARM):
        does(session)
    with wire.listen() as listened:
        does(session)
    return listened


def test_no_operation_has_more_round_trips_than_listed(
    wire: Wire, tmp_path: Path
) -> None:
    with open_at(wire.url, tmp_path) as store:
        session = talk(store.session(user_id="ada", session_id="s-1"), 12)
        assert session.compact(WINDOW) is not None

        counted = {
            name: recorded(wire, session, does).counts for name, does in DOES.items()
        }

    assert counted == COSTS


def test_no_user_is_left_on_a_connection(wire: Wire, tmp_path: Path) -> None:
    with open_at(wire.url, tmp_path) as store:
        session = talk(store.session(user_id="ada", session_id="s-1"), 4)
        for does in DOES.values():
            does(session)
        dialect = session.writer.log.recorder.database  # type: ignore[attr-defined]  # its pool

        pooled = dialect.engine().raw_connection()
        left = pooled.driver_connection.execute(
            "SELECT current_setting('refold.user_id', true), user = session_user"
        )

        assert left.fetchone() in (("", True), (None, True))
        pooled.close()


def test_row_security_prevents_no_index_search(
    wire: Wire, walled: Walled, tmp_path: Path
) -> None:
    with open_at(wire.url, tmp_path) as store:
        session = talk(store.session(user_id="ada", session_id="s-1"), 12)
        assert session.compact(WINDOW) is not None
        session.context(WINDOW)
        with wire.listen() as listened:
            session.events(after=5, limit=10)
            session.context(WINDOW)
            session.context()
    texts = queries(listened.statements)
    with (
        psycopg.connect(walled.owner, autocommit=True) as owner,
        psycopg.connect(walled.app, autocommit=True) as app,
    ):
        fill_tables(owner)

        for statement in texts:
            assert searches(app, statement) == searches(owner, statement), (
                statement.text
            )
    assert len(texts) == 3


def searches(driver: psycopg.Connection[Any], statement: Statement) -> list[str]:
    """Return the search condition of each table, and the later filters."""
    scans = []
    for step in plan_nodes(driver, statement):
        if table := step.get("Relation Name"):
            conditions = f"{step.get('Index Cond', '')} but {step.get('Filter', '')}"
            scans.append(f"{table} {_NUMBERED.sub('?', conditions)}")
    return sorted(scans)
