"""An engine without an order of all events is followed and sealed by its streams."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from eventsourcing.persistence import Notification
from sqlalchemy import update

import refold
from refold import SessionStore
from refold.domain.ids import StreamId
from refold.testing.event_log import user_inputs
from tests.support.engines import BOTH
from tests.support.operations import log_of
from tests.support.stores import open_at

pytestmark = BOTH
_OFF, _ON = (
    f"ALTER TABLE refold.events {how} TRIGGER USER" for how in ("DISABLE", "ENABLE")
)
USERS = [f"u-{number}" for number in range(4)]


@pytest.fixture
def store(store_url: str, tmp_path: Path) -> Iterator[SessionStore]:
    """A store without usable positions: on PostgreSQL all of them are equal."""
    with open_at(store_url, tmp_path) as store:
        log_of(store).recorder.database.ordered = False
        yield store


def write(store: SessionStore, user: str, *, events: int) -> None:
    session = store.session(user_id=user, session_id="s")
    for number in range(events):
        session.append(user_inputs(f"{number}"))


def user_of(notification: Notification) -> str:
    return StreamId.parse(str(notification.originator_id)).user_id


def test_a_follower_misses_no_concurrent_write(
    store: SessionStore,
) -> None:
    seen = Counter[tuple[str, int]]()
    recorder = log_of(store).recorder

    with ThreadPoolExecutor(len(USERS)) as pool, recorder.subscribe() as followed:
        for user in USERS:
            pool.submit(write, store, user, events=25)
        for _ in range(25 * len(USERS)):
            notification = next(followed)
            seen[user_of(notification), notification.originator_version] += 1

    assert seen == Counter((user, seq) for user in USERS for seq in range(1, 26))


def test_each_stream_is_followed_in_its_own_order(store: SessionStore) -> None:
    for user in USERS:
        write(store, user, events=3)

    with log_of(store).recorder.subscribe() as followed:
        notifications = [next(followed) for _ in range(3 * len(USERS))]

    assert [notification.id for notification in notifications] == list(
        range(1, len(notifications) + 1)
    )
    for user in USERS:
        own = [
            notification
            for notification in notifications
            if user_of(notification) == user
        ]
        assert [notification.originator_version for notification in own] == [1, 2, 3]


def test_other_topics_are_skipped(store: SessionStore) -> None:
    session = store.session(user_id="ada", session_id="s")
    session.append([refold.UserInput(text="a"), refold.AgentResponse(text="b")])
    topic = "agent_response/1"

    with log_of(store).recorder.subscribe(topics=[topic]) as followed:
        notification = next(followed)

    assert (notification.topic, notification.originator_version) == (topic, 2)


def test_followers_skip_erased_events(store: SessionStore) -> None:
    for user in USERS[:2]:
        write(store, user, events=2)
    store.erase(USERS[0], "asked")

    with log_of(store).recorder.subscribe() as followed:
        users = [user_of(next(followed)) for _ in range(2)]

    assert users == [USERS[1]] * 2


def test_a_seal_covers_every_stream_without_usable_positions(
    store: SessionStore,
) -> None:
    database = log_of(store).recorder.database
    events = database.tables.events
    for user in USERS:
        write(store, user, events=2)
        if database.name != "sqlite":  # there it is the row's number
            with database.writing() as connection:
                connection.exec_driver_sql(_OFF)
                connection.execute(update(events).values(position=7))
                connection.exec_driver_sql(_ON)
        store.seal()

    checked = store.seals.verify()

    assert checked.unsealed == 0
    assert checked.leaves == len(USERS)
    assert not checked.problems
