"""Every statement that is sent to a database finds its rows by an index.

And it says whose they are, in each of its parts: an engine that spreads users over
machines can send it to one of them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import psycopg
import pytest

from refold.adapters.sql.recorder import Recorder
from tests.support.operations import OPERATIONS, WHOLE, fill
from tests.support.plans import (
    TABLES,
    fill_tables,
    queries,
    scanned_on_postgres,
    scanned_on_sqlite,
)
from tests.support.postgres import Postgres
from tests.support.routing import unrouted
from tests.support.senders import Function, called, senders
from tests.support.statements import Listener, Statement, Traced, Wire
from tests.support.stores import open_at


class Heard(NamedTuple):
    """The statements of each operation, the calling function, and their plans."""

    asked: dict[str, set[Statement]]
    called: set[Function]
    whole: Callable[[Statement], set[str]]


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def heard(
    request: pytest.FixtureRequest,
    postgres: Postgres,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Heard]:
    """All operations, done once on a store of each engine."""
    folder = tmp_path_factory.mktemp("guards")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REFOLD_HOME", str(folder / "home"))
        if request.param == "sqlite":
            path = folder / "refold.db"
            statements, functions = _tour(Traced(patch), f"sqlite:///{path}", folder)
            yield Heard(
                statements,
                functions,
                lambda statement: scanned_on_sqlite(str(path), statement),
            )
            return
        patch.setenv("REFOLD_KEYS", "")  # ``open_at`` sets it: it must not outlast this
        name = f"guards_{uuid.uuid4().hex[:12]}"
        url = postgres.create_database(name)
        wire = Wire(url)
        try:
            statements, functions = _tour(wire, wire.url, folder)
            with psycopg.connect(url, autocommit=True) as connection:
                fill_tables(connection)
                yield Heard(
                    statements,
                    functions,
                    lambda statement: scanned_on_postgres(connection, statement),
                )
        finally:
            wire.close()
            postgres.drop_database(name)


def _tour(
    ear: Listener, url: str, folder: Path
) -> tuple[dict[str, set[Statement]], set[Function]]:
    asked: dict[str, set[Statement]] = {}
    with called() as functions, open_at(url, folder) as store:
        fill(store)
        for name, operation in OPERATIONS.items():
            with ear.listen() as recording:
                operation(store)
            asked[name] = queries(recording.statements)
    return asked, functions


@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_operation_of_a_session_scans_a_table(heard: Heard, operation: str) -> None:
    statements = heard.asked[operation]

    assert statements
    whole = {statement.text: heard.whole(statement) for statement in statements}
    allowed = WHOLE.get(operation, frozenset())
    assert {
        text: tables_read
        for text, tables_read in whole.items()
        if tables_read - allowed
    } == {}


# They are of all users, and nobody waits for them.
OF_ALL: Final = frozenset(
    {
        "follow",
        "seal",
        "proof of the tree",
        "expiry of whole texts",
        "sizes",
        "sweep",
        "correction of times",
        "erasures whose record is lost",
        "all sessions",
        "all views behind",
        "events without a head",
        "whether there is any session",
    }
)


@pytest.mark.parametrize("heard", ["postgresql"], indirect=True, scope="module")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_of_a_user_names_the_user_in_each_part(
    heard: Heard, operation: str
) -> None:
    parts_by_text = {
        statement.text: unrouted(statement.text) for statement in heard.asked[operation]
    }
    missed = {text: parts for text, parts in parts_by_text.items() if parts}

    if operation in OF_ALL:
        assert missed, "it is not of all users any more"
    else:
        assert missed == {}


@pytest.mark.parametrize(
    ("statement", "missed"),
    [
        ("SELECT body FROM events WHERE user_id = $1 AND seq > 3", []),
        ("SELECT body FROM events WHERE seq = 3", ["events events"]),
        ("SELECT body FROM events WHERE user_id = $1 OR seq = 3", ["events events"]),
        ("SELECT body FROM events WHERE user_id > $1", ["events events"]),
        ("DELETE FROM blobs WHERE ctid = ANY($1)", ["blobs blobs"]),
        ("UPDATE heads SET seq = 2 WHERE session_id = $1", ["heads heads"]),
        (
            "SELECT 1 FROM events e WHERE e.user_id = $1 AND EXISTS (SELECT 1 FROM "
            "heads h WHERE h.user_id = $1)",
            [],
        ),
        (
            "SELECT 1 FROM events e WHERE e.user_id = $1 AND EXISTS (SELECT 1 FROM "
            "heads h WHERE h.user_id = e.user_id)",
            ["heads h"],
        ),
        (
            "SELECT 1 FROM unnest($1) AS b(user_id) CROSS JOIN LATERAL (SELECT 1 FROM "
            "heads h WHERE h.user_id = b.user_id) h",
            [],
        ),
        (
            "SELECT 1 FROM events e WHERE e.user_id = $1 AND EXISTS (SELECT 1 FROM "
            "heads h WHERE h.session_id = e.session_id)",
            ["heads h"],
        ),
        (
            "SELECT 1 FROM events e JOIN heads h ON h.user_id = e.user_id",
            ["events e", "heads h"],
        ),
        (
            "SELECT 1 FROM events e JOIN heads h ON h.user_id = e.user_id WHERE "
            "h.user_id = $1",
            [],
        ),
        ("WITH x AS (SELECT seq FROM heads) SELECT * FROM x", ["heads heads"]),
        (
            "INSERT INTO views (user_id) SELECT user_id FROM heads WHERE seq = 1",
            ["heads heads"],
        ),
        ("SELECT value FROM settings WHERE name = $1", []),
    ],
)
def test_the_guard_sees_a_part_that_says_not_whose(
    statement: str, missed: list[str]
) -> None:
    assert unrouted(statement) == missed


# They name a role or a user, and no table.
OF_ROLES: Final = {
    ("refold/adapters/sql/postgres.py", "PostgresDatabase._bind"),
    ("refold/adapters/sql/postgres.py", "PostgresDatabase._fetch_bound"),
    ("refold/adapters/sql/roles.py", "become_writer"),
}
# An owner's, who moves all users at once into tables that nobody else has open.
OF_A_MOVE: Final = {
    ("refold/adapters/sql/move.py", "Move._put.put"),
    ("refold/adapters/sql/move.py", "_count"),
    ("refold/adapters/sql/move.py", "_pages"),
    ("refold/adapters/sql/move.py", "_replace"),
    ("refold/adapters/sql/move.py", "_rows_with_keys_of"),
    ("refold/adapters/sql/move.py", "sync_table"),
    ("refold/adapters/sql/postgres.py", "PostgresDatabase.lock_for_move"),
    ("refold/adapters/sql/postgres.py", "PostgresDatabase.refuse_writes"),
}
# Sent after a COMMIT without an answer: tests/adapters/test_lost_commit.py cuts it off.
OF_LOST_COMMITS: Final = {
    ("refold/adapters/sql/postgres.py", "PostgresDatabase._status"),
}
# Sent for a fork that begins while its origin is erased: tests/erasure/test_races.py.
OF_RACES: Final = {("refold/adapters/sql/recorder.py", "Subjects.set")}
# Missing indexes are created with SQLAlchemy in memory and in an older file.
OF_SQLITE: Final = {
    ("refold/adapters/verification.py", "StoreDataVerification._floor_problems"),
    ("refold/adapters/sql/clocks.py", "ObservedTime._read"),
    ("refold/adapters/sql/clocks.py", "ObservedTime._write_record"),
    ("refold/adapters/sql/compiled.py", "create_missing"),
}


@pytest.mark.parametrize("heard", ["postgresql"], indirect=True, scope="module")
def test_every_function_that_sends_a_statement_was_called(heard: Heard) -> None:
    rare = OF_LOST_COMMITS | OF_RACES
    assert senders() - heard.called == (OF_ROLES | OF_A_MOVE | OF_SQLITE | rare)


def test_every_method_of_a_recorder_was_called(heard: Heard) -> None:
    path = "refold/adapters/sql/recorder.py"
    methods = {(path, f"Recorder.{name}") for name in Recorder.__abstractmethods__}

    assert methods - heard.called == set()


def test_every_table_was_asked_for(heard: Heard) -> None:
    texts = " ".join(
        statement.text for asked in heard.asked.values() for statement in asked
    )

    assert [table for table in TABLES if table not in texts] == []


def test_the_guard_detects_a_table_scan(heard: Heard) -> None:
    (statement,) = heard.asked["all sessions"]
    anywhere = Statement(
        statement.text.partition("SELECT")[0]
        + "SELECT seq FROM "
        + ("refold." if "refold." in statement.text else "")
        + "events WHERE seq = 1 AND stream = 'main'"
    )

    assert heard.whole(statement) == {"heads"}
    assert heard.whole(anywhere) == {"events"}
