"""Records are read from a given time on, and expire by age."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest

import refold
from refold.store import SessionStore
from tests.support.auditing import APPENDED, Table, records, session_of, talk


def test_old_records_expire(memory_clock: Callable[[int], SessionStore]) -> None:
    store = memory_clock(0)
    talk(session_of(store), 1)
    memory_clock(10 * 86_400)
    talk(session_of(store), 1)

    assert store.access_log.purge(timedelta(days=9)) == 1
    assert store.access_log.purge(timedelta(days=9)) == 0
    assert [record.event for record in records(store)] == [
        APPENDED,
        "audit_purge",
        "audit_purge",
    ]
    with pytest.raises(refold.InvalidConfiguration):
        store.access_log.purge(timedelta(days=-1))


@pytest.fixture
def memory_clock() -> Iterator[Callable[[int], SessionStore]]:
    """A function that sets the clock of a store in memory and returns the store."""
    from refold.adapters.sql.access_log import open_trail
    from refold.testing import memory_log

    at = [0]

    def clock() -> int:
        return 1_700_000_000_000_000 + at[0] * 1_000_000

    log = memory_log()
    rows = Table()
    trail = open_trail("table", rows, log.keys, clock=clock)
    with refold.open("memory://") as other:
        limits = other.writer.limits
        redactor = other.writer.redactor
    store = SessionStore(log, redactor, limits, clock=clock, audit=trail)

    def store_at(seconds: int) -> SessionStore:
        at[0] = seconds
        return store

    yield store_at
    store.close()


def test_records_are_read_from_a_given_time_on(
    memory_clock: Callable[[int], SessionStore],
) -> None:
    store = memory_clock(0)
    talk(session_of(store), 1)
    memory_clock(60)
    talk(session_of(store), 2)
    since = datetime.fromtimestamp(1_700_000_030, UTC)

    assert len(list(store.access_log.records("ada", since=since))) == 2
    with pytest.raises(refold.InvalidConfiguration, match="time zone"):
        store.access_log.records(since=datetime(2026, 1, 1))  # noqa: DTZ001  # wrong on purpose
    with pytest.raises(refold.InvalidConfiguration, match="the user"):
        store.access_log.records(session_id="s-1")
