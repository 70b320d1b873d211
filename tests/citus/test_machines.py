"""A machine that is killed takes nothing with it, and holds up no user of another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import psycopg
import pytest

import refold
from refold.adapters.keys.master import MasterKeyFile
from refold.adapters.sql.citus import CitusDatabase
from refold.domain.errors import StoreUnavailable
from refold.store import SessionStore
from refold.testing.event_log import user_inputs
from tests.citus.conftest import FOLDER
from tests.support.citus import Cluster
from tests.support.operations import log_of
from tests.support.stores import open_at
from tests.support.waiting import until

USERS = [f"u-{number}" for number in range(12)]


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    """A cluster of this test's own, whose machines it may kill."""
    MasterKeyFile().create()
    assert FOLDER is not None
    with Cluster(FOLDER) as cluster:
        yield cluster


@pytest.fixture
def store(own_cluster: Cluster, tmp_path: Path) -> Iterator[SessionStore]:
    """A store on it, with a session of each user."""
    with open_at(own_cluster.create_database("own"), tmp_path) as store:
        for user in USERS:
            append(store, user, "first")
        yield store


def append(store: SessionStore, user: str, text: str) -> int:
    return (
        store.session(user_id=user, session_id="s").append(user_inputs(text)).last_seq
    )


def database(store: SessionStore) -> CitusDatabase:
    database = log_of(store).recorder.database
    assert isinstance(database, CitusDatabase)
    return database


def of_machine(store: SessionStore, number: int) -> tuple[list[str], list[str]]:
    """Return the users of a machine, and those of the others."""
    machine = database(store).machine
    first = min(map(machine, USERS))
    users = [user for user in USERS if machine(user) == first + number - 1]
    other_users = [user for user in USERS if user not in users]
    return users, other_users


def check_acknowledged(store: SessionStore, acknowledged: dict[str, int]) -> None:
    """Check that no acknowledged event is lost or stored twice, without a gap."""
    for user in USERS:
        seqs = [
            e.seq for e in store.session(user_id=user, session_id="s").history.pages()
        ]
        assert seqs == list(range(1, len(seqs) + 1))
        assert len(seqs) >= acknowledged.get(user, 1)
    assert not any(verified.problems for _, verified in store.verify())


def pour(
    store: SessionStore, user: str, stop: Event, done: Callable[[str, int], None]
) -> None:
    """Append until ``stop`` is set; repeat a refused append with its key."""
    number = 0
    while not stop.is_set():
        session = store.session(user_id=user, session_id="s")
        try:
            receipt = session.append(
                refold.UserInput(text=f"{number}"), idempotency_key=f"{number}"
            )
        except StoreUnavailable:
            continue
        done(user, receipt.last_seq)
        number += 1


def test_users_of_other_machines_continue_while_one_is_down(
    own_cluster: Cluster, store: SessionStore
) -> None:
    down, up = of_machine(store, 1)
    assert down
    assert up
    stop = Event()
    acknowledged: dict[str, int] = {}

    with ThreadPoolExecutor(len(down)) as pool:
        for user in down:
            pool.submit(pour, store, user, stop, acknowledged.__setitem__)
        try:
            until(lambda: acknowledged, "the first acknowledged append")
            own_cluster.kill(1)
            for number in range(20):
                for user in up:
                    acknowledged[user] = append(store, user, f"{number}")
            own_cluster.start_again(1)
            before = dict(acknowledged)
            for user in down:
                until(
                    lambda name=user: acknowledged.get(name, 0) > before.get(name, 0),  # type: ignore[misc]  # mypy infers no type from a default
                    f"an append of {user} on the machine that came back",
                )
        finally:
            stop.set()

    check_acknowledged(store, acknowledged)
    for user in down:  # each key was used once
        texts = [
            event.payload.payload()["text"]
            for event in store.session(user_id=user, session_id="s").history.pages()
        ]
        assert texts[1:] == [f"{number}" for number in range(len(texts) - 1)]


@pytest.mark.parametrize("restarted", [False, True], ids=["first", "restarted"])
def test_a_head_that_is_held_holds_up_no_user_of_another_machine(
    own_cluster: Cluster, store: SessionStore, restarted: bool
) -> None:
    (blocked, *_), up = of_machine(store, 1)
    if restarted:
        own_cluster.kill(1)
        with pytest.raises(StoreUnavailable):
            append(store, blocked, "lost")
        own_cluster.start_again(1)
    lock = "SELECT 1 FROM refold.heads WHERE user_id = %s FOR UPDATE"

    with (
        psycopg.connect(own_cluster.url_of("own")) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        other.execute(lock, (blocked,))
        waits = pool.submit(append, store, blocked, "second")
        done = [append(store, user, "second") for user in up]
        assert not waits.done()
        other.rollback()

        assert waits.result() == 2
    assert done == [2] * len(up)


def test_a_request_for_a_machine_that_is_down_fails_with_one_sentence(
    own_cluster: Cluster, store: SessionStore
) -> None:
    (user, *_), _ = of_machine(store, 1)
    own_cluster.kill(1)

    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        append(store, user, "lost")
    own_cluster.start_again(1)

    assert append(store, user, "on") == 2


def test_a_coordinator_that_restarts_in_mid_append_costs_nothing(
    own_cluster: Cluster, store: SessionStore
) -> None:
    acknowledged = dict[str, int]()
    for number in range(30):
        if number in (10, 20):
            own_cluster.kill(0)
            own_cluster.start_again(0)
        for user in USERS:
            acknowledged[user] = append(store, user, f"{number}")

    assert set(acknowledged.values()) == {31}
    check_acknowledged(store, acknowledged)


def test_a_machine_that_restarts_between_the_steps_of_an_erasure_leaves_nothing(
    own_cluster: Cluster, store: SessionStore
) -> None:
    (user, *_), _ = of_machine(store, 1)
    own_cluster.kill(1)
    with pytest.raises(StoreUnavailable):
        store.erase(user, "asked")
    own_cluster.start_again(1)

    erased = store.erase(user, "asked")

    assert not any(erased.left.values())
    others = {one for one in USERS if one != user}
    assert {one.user_id for one in store.sessions(internal=True)} == others
