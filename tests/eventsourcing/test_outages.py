"""An insert that may have been written is neither lost nor written twice."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from eventsourcing.persistence import (
    IntegrityError,
    OperationalError,
    ProcessRecorder,
    Tracking,
)

from refold.adapters.eventsourcing import Factory
from refold.adapters.eventsourcing.database import EventsTable
from refold.adapters.sql import files
from tests.support.eventsourcing import factory, stored_event
from tests.support.postgres import Postgres

insert = EventsTable.insert


@pytest.fixture
def application_factory(postgres_url: str) -> Iterator[Factory]:
    application_factory = factory(postgres_url, "App")
    yield application_factory
    application_factory.close()


def break_once(monkeypatch: pytest.MonkeyPatch, *, after_writing: bool) -> None:
    """Let the connection break at the next insert, before it or after its commit."""

    def breaking(table: EventsTable, driver: Any, rows: Any) -> Any:
        monkeypatch.setattr(EventsTable, "insert", insert)
        if after_writing:
            insert(table, driver, rows)
            driver.execute("COMMIT")
        driver.close()
        raise psycopg.OperationalError("the server closed the connection")

    monkeypatch.setattr(EventsTable, "insert", breaking)


@pytest.mark.parametrize("after_writing", [True, False])
def test_an_insert_whose_answer_was_lost_is_found_or_done_again(
    application_factory: Factory, monkeypatch: pytest.MonkeyPatch, after_writing: bool
) -> None:
    recorder = application_factory.application_recorder()
    break_once(monkeypatch, after_writing=after_writing)

    ids = recorder.insert_events([stored_event(), stored_event()])

    assert ids == [1, 2]
    assert recorder.insert_events([stored_event()]) == [3]
    assert [n.id for n in recorder.select_notifications(1, 9)] == [1, 2, 3]


def test_a_rivals_equal_event_is_not_mistaken_for_the_lost_one(
    application_factory: Factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = application_factory.application_recorder()
    event = stored_event()
    recorder.insert_events([event])
    break_once(monkeypatch, after_writing=False)

    with pytest.raises(IntegrityError):
        recorder.insert_events([event])


def test_progress_that_breaks_off_is_written_with_its_events_once(
    application_factory: Factory, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder: ProcessRecorder = application_factory.process_recorder()
    break_once(monkeypatch, after_writing=True)

    ids = recorder.insert_events([stored_event()], tracking=Tracking("up", 5))

    assert ids == [1]
    assert recorder.max_tracking_id("up") == 5
    assert len(recorder.select_notifications(1, 9)) == 1


def test_an_application_outlives_a_restart_of_its_server(
    own_postgres: Postgres,
) -> None:
    application_factory = factory(own_postgres.create_database("app"), "App")
    recorder = application_factory.process_recorder()
    event = stored_event()
    recorder.insert_events([event], tracking=Tracking("up", 1))

    own_postgres.restart()
    recorder.insert_events([stored_event()], tracking=Tracking("up", 2))
    own_postgres.restart()
    recorder.insert_tracking(Tracking("up", 3))
    own_postgres.restart()
    stored_events = recorder.select_events(event.originator_id)

    assert stored_events == [event]
    assert recorder.max_notification_id() == 2
    assert recorder.max_tracking_id("up") == 3
    application_factory.close()


def test_a_file_locked_by_another_process_is_an_error_of_the_library(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BUSY_MS", 10)
    application_factory = factory(sqlite_url, "App")
    recorder = application_factory.application_recorder()
    other = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    with pytest.raises(OperationalError, match="busy with another writer"):
        recorder.insert_events([stored_event()])
    other.execute("ROLLBACK")
    other.close()

    assert recorder.insert_events([stored_event()]) == [1]
    application_factory.close()
