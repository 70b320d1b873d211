"""A store that need not wait for the disk may lose the newest events, without a gap.

The server keeps its log in memory for as long as it can, and then crashes.
"""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

import refold
from refold.store import Session, SessionStore
from tests.support.nested import problems_of
from tests.support.postgres import Postgres
from tests.support.stores import open_at, prepare

_RELAXED = "options=-csynchronous_commit%3Doff"


@pytest.fixture
def url(own_postgres: Postgres, tmp_path: Path) -> str:
    with psycopg.connect(own_postgres.url, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
        connection.execute("ALTER SYSTEM SET autovacuum = off")
        connection.execute("SELECT pg_reload_conf()")
    return prepare(own_postgres.create_database("relaxed"), tmp_path)


def relaxed_url(url: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{_RELAXED}"


def append_inputs(session: Session, count: int) -> int:
    """Append ``count`` events one by one, and return the last seq."""
    for _ in range(count):
        receipt = session.append(refold.UserInput(text="hello"))
    return receipt.last_seq


def count_without_gaps(store: SessionStore) -> int:
    """Return the number of events, and assert that they have no gap and verify."""
    events = store.session(user_id="ada", session_id="s").events()
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert problems_of(store.verify()) == []
    return len(events)


def test_a_crash_loses_only_the_newest_events_and_the_writer_continues(
    own_postgres: Postgres, url: str, tmp_path: Path
) -> None:
    with open_at(url, tmp_path) as store:
        append_inputs(store.session(user_id="ada", session_id="s"), 3)
    with open_at(relaxed_url(url), tmp_path) as store:
        session = store.session(user_id="ada", session_id="s")
        session.context("turn_window:full_turns=1,cached_turns=1")
        assert append_inputs(session, 20) == 23

        own_postgres.restart()
        left = count_without_gaps(store)
        again = append_inputs(session, 1)

        assert 3 <= left < 23
        assert again == left + 1 == count_without_gaps(store)


def test_a_durable_append_makes_earlier_ones_durable(
    own_postgres: Postgres, url: str, tmp_path: Path
) -> None:
    with (
        open_at(relaxed_url(url), tmp_path) as quick,
        open_at(url, tmp_path) as safe,
    ):
        append_inputs(quick.session(user_id="ada", session_id="s"), 20)
        durable = append_inputs(safe.session(user_id="ada", session_id="s"), 1)
        append_inputs(quick.session(user_id="ada", session_id="s"), 20)

        own_postgres.restart()

        assert durable == 21 <= count_without_gaps(safe) < 41
