"""Notification ids rise by one in the order of commits, and none is used twice."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from threading import Thread
from typing import Any

import psycopg
import pytest
from eventsourcing.persistence import IntegrityError
from sqlalchemy import delete, text

from refold.adapters.eventsourcing import Factory, SqlApplicationRecorder
from tests.support import warm
from tests.support.eventsourcing import factory, stored_event
from tests.support.stores import release
from tests.support.waiting import until

Make = Callable[..., Factory]


def ids(recorder: SqlApplicationRecorder, after: int = 0) -> list[int]:
    notifications = recorder.select_notifications(
        after, 100_000, inclusive_of_start=False
    )
    return [notification.id for notification in notifications]


def test_a_tail_misses_nothing_that_processes_write(make: Make, empty_url: str) -> None:
    recorder = make().application_recorder()
    writers = [
        warm.module("tests.support.es_writer", "pour", empty_url, "App", 20)
        for _ in range(3)
    ]
    release(writers)
    total = 3 * 20 * 3
    seen = ids(recorder)

    def all_seen() -> bool:
        seen.extend(ids(recorder, after=seen[-1] if seen else 0))
        return len(seen) >= total

    until(all_seen, f"{total} events", state=lambda: seen)

    assert [process.communicate() for process in writers] == [("done\n", "")] * 3
    assert seen == list(range(1, total + 1))


def test_a_later_id_is_committed_later(postgres_url: str) -> None:
    application = factory(postgres_url, "App")
    recorder = application.application_recorder()
    rival = Thread(target=recorder.insert_events, args=([stored_event()],))

    with recorder.database.transaction() as slow:
        driver = slow.connection.driver_connection
        recorder._rows.insert(driver, [recorder._sealed(stored_event())])
        rival.start()
        with psycopg.connect(postgres_url, autocommit=True) as looker:
            until(lambda: waits(looker), "the rival to wait for the first")
        assert recorder.max_notification_id() is None
    rival.join()

    assert recorder.max_notification_id() == 2
    application.close()


def waits(looker: psycopg.Connection[Any]) -> bool:
    query = "SELECT 1 FROM pg_locks WHERE NOT granted"
    return looker.execute(query).fetchone() is not None


@pytest.mark.parametrize("upto", [1, 3], ids=["the newest", "all"])
def test_the_ids_of_deleted_events_are_not_used_again(make: Make, upto: int) -> None:
    first = make()
    recorder = first.application_recorder()
    recorder.insert_events([stored_event(), stored_event(), stored_event()])

    with recorder.database.transaction() as connection:
        newest = recorder.events.c.notification_id > 3 - upto
        connection.execute(delete(recorder.events).where(newest))
    first.close()
    recorder = make().application_recorder()

    assert recorder.insert_events([stored_event()]) == [4]
    assert ids(recorder, after=3) == [4]


def test_refused_events_leave_no_gap_in_ids(make: Make) -> None:
    recorder = make().application_recorder()
    event = stored_event()
    recorder.insert_events([event])

    with pytest.raises(IntegrityError, match="read the aggregate again"):
        recorder.insert_events([stored_event(), event])

    assert recorder.insert_events([stored_event()]) == [2]
    assert ids(recorder) == [1, 2]


def test_concurrent_processes_create_the_tables_once(empty_url: str) -> None:
    names = ["One", "Two"] * 2
    processes = [
        warm.module("tests.support.es_writer", "begin", empty_url, name)
        for name in names
    ]

    release(processes)
    outputs = [process.communicate() for process in processes]

    assert [errors for _, errors in outputs if "Traceback" in errors] == []
    for name in set(names):
        numbers = [
            int(out)
            for (out, _), own in zip(outputs, names, strict=True)
            if own == name
        ]
        assert sorted(numbers) == [1, 2]


def test_a_count_that_was_lost_begins_after_the_events(make: Make) -> None:
    recorder = make().application_recorder()
    recorder.insert_events([stored_event(), stored_event()])
    prefix = "refold_es." if recorder.database.schema else ""
    with recorder.database.transaction() as connection:
        connection.execute(text(f"DELETE FROM {prefix}es_positions"))

    recorder = make().application_recorder()

    assert recorder.insert_events([stored_event()]) == [3]


OLD_TABLE = """CREATE TABLE es_app_events (
    originator_id CHAR(32) NOT NULL,
    originator_version BIGINT NOT NULL,
    notification_id BIGINT NOT NULL,
    topic TEXT NOT NULL,
    state BLOB NOT NULL,
    PRIMARY KEY (originator_id, originator_version),
    UNIQUE (notification_id)
)"""


def test_a_table_with_reversed_keys_continues(sqlite_url: str) -> None:
    path = sqlite_url.removeprefix("sqlite:///")
    factory(sqlite_url, "Other").application_recorder().database.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(OLD_TABLE)
    application = factory(sqlite_url, "App")
    recorder = application.application_recorder()
    event = stored_event()

    assert recorder.insert_events([event, stored_event(2, of=event.originator_id)]) == [
        1,
        2,
    ]
    with pytest.raises(IntegrityError, match="read the aggregate again"):
        recorder.insert_events([stored_event(2, of=event.originator_id)])
    assert recorder.insert_events([stored_event()]) == [3]
    assert recorder.select_events(event.originator_id, lte=1) == [event]
    assert ids(recorder) == [1, 2, 3]
    application.close()


def test_sqlite_finds_events_by_their_ids_without_an_index(sqlite_url: str) -> None:
    application = factory(sqlite_url, "App")
    recorder = application.application_recorder()
    path = sqlite_url.removeprefix("sqlite:///")

    with closing(sqlite3.connect(path)) as connection:
        query = "SELECT count(*) FROM sqlite_master WHERE type='index' AND tbl_name=?"
        ((indexes,),) = connection.execute(query, (recorder.events.name,))

    assert indexes == 1  # that of the originators and their versions
    application.close()
