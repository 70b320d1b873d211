"""A follower sees each event once and in order, wakes when there is one, and ends."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread
from typing import Any

import pytest
from eventsourcing.persistence import StoredEvent

from refold.adapters.eventsourcing import Factory, SqlApplicationRecorder
from refold.adapters.sql import recorder as subscription
from tests.support import warm
from tests.support.eventsourcing import factory, stored_event
from tests.support.postgres import Postgres
from tests.support.stores import release

Make = Callable[..., Factory]


def test_a_follower_sees_all_that_other_processes_write(
    make: Make, empty_url: str
) -> None:
    recorder = make().application_recorder()
    writers = [
        warm.module("tests.support.es_writer", "pour", empty_url, "App", 20)
        for _ in range(3)
    ]

    with recorder.subscribe() as following:
        release(writers)
        seen = [next(following).id for _ in range(3 * 20 * 3)]

    assert seen == list(range(1, 181))
    for writer in writers:
        assert writer.communicate() == ("done\n", "")


@pytest.fixture
def no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a subscriber wait until it is stopped, or the test's time is over."""
    monkeypatch.setattr(subscription, "_SHORTEST_PAUSE", 1000)


def test_stop_ends_one_that_waits_in_another_thread(make: Make, no_clock: None) -> None:
    recorder = make().application_recorder()
    recorder.insert_events([stored_event()])
    following = recorder.subscribe(gt=0)
    begun = Event()
    seen: list[int] = []

    def follow() -> None:
        for notification in following:
            seen.append(notification.id)
            begun.set()

    follower = Thread(target=follow)
    with following:
        follower.start()
        begun.wait()
    follower.join()

    assert seen == [1]
    with pytest.raises(StopIteration):
        next(following)


def others() -> list[StoredEvent]:
    return [stored_event() for _ in range(20)]


def test_events_of_other_topics_are_skipped_once(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = make().application_recorder()
    starts: list[int | None] = []
    select = SqlApplicationRecorder.select_notifications

    def looked_up(self: Any, start: int | None, *rest: Any, **more: Any) -> Any:
        starts.append(start)
        return select(self, start, *rest, **more)

    monkeypatch.setattr(SqlApplicationRecorder, "select_notifications", looked_up)
    with recorder.subscribe(topics=["rare"]) as following:
        for _ in range(3):
            recorder.insert_events([stored_event(topic="rare"), *others()])
            assert next(following).topic == "rare"

    assert starts == [0, 21, 42]


def test_a_page_that_is_full_of_matches_is_followed_by_the_next(make: Make) -> None:
    recorder = make().application_recorder()
    recorder.insert_events([stored_event(topic="a") for _ in range(1100)])

    with recorder.subscribe(topics=["a"]) as following:
        seen = [next(following).id for _ in range(1100)]

    assert seen == list(range(1, 1101))


def test_a_follower_continues_after_a_restart_of_the_server(
    own_postgres: Postgres,
) -> None:
    with factory(own_postgres.create_database("app"), "App") as application:
        recorder = application.application_recorder()
        with recorder.subscribe() as following:
            recorder.insert_events([stored_event()])
            seen = [next(following).id]

            own_postgres.restart()
            recorder.insert_events([stored_event()])
            seen.append(next(following).id)

        assert seen == [1, 2]
        application.close()
