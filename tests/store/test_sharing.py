"""Workers share pending work: each task is done once, also after a worker died."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.domain.erasure import RetentionPolicy
from refold.domain.errors import InvalidConfiguration
from refold.projections.context.strategies.spec import parse
from refold.store import Session, SessionStore
from refold.store.work.workers import EVERY_SEC, Unit, Worker
from tests.store.test_working import Clock
from tests.support import warm
from tests.support.sharing import WINDOW
from tests.support.stores import open_at, use_the_callers_clock_for_leases
from tests.support.summarizing import Counting, called
from tests.support.talking import count_summaries, talk

pytestmark = pytest.mark.each_engine

SESSIONS = 40


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def stores(
    store_url: str, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[SessionStore]]:
    """Two stores over one database with one clock, as two processes have them."""
    use_the_callers_clock_for_leases(monkeypatch)
    with open_at(store_url, tmp_path) as first, open_at(store_url, tmp_path) as second:
        yield [
            SessionStore(
                opened.log,
                opened.writer.redactor,
                opened.writer.limits,
                clock=clock,
                seals=partial(getattr, opened, "seals"),
            )
            for opened in (first, second)
        ]


def filled(store: SessionStore, count: int = SESSIONS) -> list[Session]:
    return [
        talk(store.session(user_id=f"u-{n % 4}", session_id=f"s-{n}"), 3)
        for n in range(count)
    ]


def round_of_both(workers: list[Worker]) -> Counter[tuple[str, str]]:
    """Let both workers work concurrently; return the counts of their work."""
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(Worker.round, workers))
    return workers[0].counts + workers[1].counts


def test_a_pending_compaction_is_made_once(
    stores: list[SessionStore], calls: Path
) -> None:
    sessions = filled(stores[0])
    workers = [Worker(store, WINDOW, summarizer=Counting(calls)) for store in stores]

    came = round_of_both(workers)

    assert came["compact", "done"] == SESSIONS
    assert len(called(calls)) == sum(map(count_summaries, sessions)) == 2 * SESSIONS


def test_sessions_are_rebuilt_once(
    stores: list[SessionStore], clock: Clock, calls: Path
) -> None:
    sessions = filled(stores[0])
    every = {"rebuild": EVERY_SEC["rebuild"]}
    workers = [
        Worker(store, duties=every, rebuilds=parse(WINDOW), summarizer=Counting(calls))
        for store in stores
    ]

    round_of_both(workers)
    clock.pass_(3600)
    came = round_of_both(workers)

    assert came["rebuild", "done"] == SESSIONS
    assert len(called(calls)) == sum(map(count_summaries, sessions)) == 2 * SESSIONS


def test_each_session_is_verified_once_per_interval(
    stores: list[SessionStore], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(stores[0], 10)
    proved = Counter[str]()
    verify = Session.verify

    def counted_verify(session: Session) -> Any:
        proved[session.session_id] += 1
        return verify(session)

    monkeypatch.setattr(Session, "verify", counted_verify)
    workers = [Worker(store, duties={"verify": 3600}) for store in stores]

    round_of_both(workers)
    clock.pass_(3599)
    round_of_both(workers)
    assert set(proved.values()) == {1}
    clock.pass_(1)
    round_of_both(workers)

    assert proved == Counter({f"s-{n}": 2 for n in range(10)})
    assert not workers[0].failing


def test_one_worker_does_the_duties_of_the_whole_store(
    stores: list[SessionStore], clock: Clock
) -> None:
    session = talk(stores[0].session(user_id="ada", session_id="s"), 1)
    stores[0].erase("ada", "asked", session_id="s", grace=timedelta(minutes=5))
    talk(stores[0].session(user_id="bob", session_id="s"), 1)
    finished: list[Unit] = []
    policy = RetentionPolicy(sessions=timedelta(days=30))
    duties = {"seal": 60.0, "erase": 60.0, "retain": 60.0}
    workers = [
        Worker(
            store,
            duties=duties,
            retains=policy,
            done=lambda unit, _: finished.append(unit),
        )
        for store in stores
    ]

    round_of_both(workers)
    assert Counter(finished) == {Unit("seal"): 1, Unit("retain"): 1}
    clock.pass_(60)
    round_of_both(workers)
    assert finished.count(Unit("retain")) == 2
    assert len(stores[0].seals.heads()) == 1
    clock.pass_(240)
    round_of_both(workers)

    assert finished.count(Unit("erase")) == 1
    with pytest.raises(refold.Erased):
        session.events()
    verified = stores[0].verify_seals()
    assert verified is not None
    assert verified.problems == []


def test_a_long_seal_shows_its_progress(
    stores: list[SessionStore], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(stores[0], 2)
    worker = Worker(stores[0], duties={"seal": 60.0}, lease=60.0)
    seals = stores[0].seals
    seen = list[int]()
    find = seals.endings

    def seal_slowly(streams: Any) -> Any:
        seen.append(worker.progressed_at)
        clock.pass_(5)
        return find(streams)

    monkeypatch.setattr("refold.store.store._STREAMS_AT_ONCE", 1)
    monkeypatch.setattr(type(seals), "endings", lambda _, streams: seal_slowly(streams))

    worker.round()

    assert seen[1] - seen[0] == 5_000_000
    assert worker.counts["seal", "done"] == 1


def test_a_killed_workers_session_is_taken_up_when_its_lease_ends(
    store_url: str, tmp_path: Path
) -> None:
    with open_at(store_url, tmp_path) as store:
        session = talk(store.session(user_id="ada", session_id="s"), 2)
        process = warm.module("tests.support.sharing", store_url, 1.0)
        assert process.stdout.readline() == "begun\n"
        other = Worker(store, WINDOW, lease=1.0)
        other.done = lambda *_: other.stop()
        other.round()
        assert other.counts == {("compact", "held"): 1}

        process.send_signal(signal.SIGKILL)
        process.communicate()
        other.run()

        assert count_summaries(session) == 1
        assert other.counts["compact", "done"] == 1


def test_a_worker_keeps_to_its_rate(stores: list[SessionStore], clock: Clock) -> None:
    filled(stores[0], 3)
    worker = Worker(stores[0], WINDOW, most_per_second=2)

    waits = []
    for _ in range(3):
        waits.append(worker.round())
        clock.pass_(waits[-1])

    assert waits == [0.5, 0.5, 29.0]
    assert worker.counts["compact", "done"] == 3


def test_a_worker_finishes_its_task_before_it_ends(
    stores: list[SessionStore], clock: Clock
) -> None:
    filled(stores[0], 3)
    worker: Worker
    worker = Worker(stores[0], WINDOW, done=lambda *_: worker.stop())

    worker.run()

    assert worker.counts == {("compact", "done"): 1}


@pytest.mark.parametrize(
    "wrong",
    [
        {"duties": {"dance": 1.0}},
        {"duties": {"rebuild": 1.0}},
        {"duties": {"retain": 1.0}},
        {"duties": {"seal": 0.0}},
        {"lease": 0.0},
        {"most_per_second": 0.0},
    ],
)
def test_invalid_options_are_refused(
    stores: list[SessionStore], wrong: dict[str, Any]
) -> None:
    with pytest.raises(InvalidConfiguration):
        Worker(stores[0], **wrong)
