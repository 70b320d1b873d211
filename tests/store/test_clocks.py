"""A machine whose clock is wrong stops no other worker, and takes no live lease."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

import refold
from refold.domain.errors import LeaseLost
from refold.domain.ids import StreamId
from refold.store import SessionStore
from refold.store.erasure import Erasures
from refold.store.work.workers import Worker
from tests.store.test_working import Clock
from tests.support import warm
from tests.support.stores import open_at, prepare
from tests.support.talking import talk

TEN_YEARS = 315_360_000
SEAL = StreamId("", "", "seal")
HOUR = 3_600_000_000


@pytest.mark.each_engine
@pytest.mark.parametrize("seconds", [TEN_YEARS, -TEN_YEARS])
def test_a_worker_with_a_wrong_clock_blocks_no_other(
    store_url: str, tmp_path: Path, seconds: int
) -> None:
    url = prepare(store_url, tmp_path)
    with refold.open(url) as store:
        talk(store.session(user_id="ada", session_id="s"), 2)
    duties = ("--do", "seal=1s,verify=1s", "--json")
    command = (seconds, "--db", url, "worker", *duties)
    wrong = warm.module("tests.support.shifted", *command)
    assert json.loads(wrong.stdout.readline())["duty"] == "seal"
    wrong.send_signal(signal.SIGKILL)
    wrong.communicate()

    with refold.open(url) as store:
        talk(store.session(user_id="ada", session_id="s"), 1)
        worker = Worker(store, duties={"seal": 0.05, "verify": 0.05}, lease=0.05)
        worker.done = lambda unit, _: worker.stop() if unit.duty == "seal" else None
        worker.run()

        assert worker.counts["seal", "done"] == 1


@pytest.mark.each_engine
def test_the_former_owner_of_a_duty_seals_nothing(
    store_url: str, tmp_path: Path
) -> None:
    with open_at(store_url, tmp_path) as store:
        talk(store.session(user_id="ada", session_id="s"), 2)
        leases = store.log.leases
        now = store.clock
        assert leases.take_lease(SEAL, "first", clock=now, period=HOUR)
        with leases.fenced(SEAL, "first"):
            leases.release_lease(SEAL, "first")
            assert leases.take_lease(SEAL, "second", clock=now, period=HOUR)

            with pytest.raises(LeaseLost):
                store.seal()

        assert store.seal() is not None


@pytest.mark.each_engine
@pytest.mark.parametrize("seconds", [TEN_YEARS, -TEN_YEARS])
def test_a_wrong_clock_takes_no_live_lease_from_a_server(
    store_url: str, tmp_path: Path, seconds: int
) -> None:
    with open_at(store_url, tmp_path) as store:
        leases = store.log.leases
        assert leases.take_lease(SEAL, "first", clock=store.clock, period=HOUR)
        wrong = store.clock() + seconds * 1_000_000

        taken = leases.take_lease(SEAL, "second", clock=lambda: wrong, period=HOUR)

        assert taken == store_url.startswith("sqlite")
        owns = leases.renew_lease(SEAL, "first", clock=store.clock, period=HOUR)
        assert owns != taken


def test_a_duty_is_overdue_after_three_intervals(
    memory: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    writer = memory.writer
    store = SessionStore(memory.log, writer.redactor, writer.limits, clock=clock)

    def failing(*_: object, **__: object) -> None:
        raise refold.StoreUnavailable("the disk is full", remedy="free some space")

    monkeypatch.setattr(Erasures, "complete", failing)
    worker = Worker(store, duties={"erase": 600.0})

    for _ in range(30):
        worker.round()
        assert worker.overdue() == {}
        clock.pass_(60)
    clock.pass_(1)

    assert worker.overdue() == {"erase": 1801.0}
    monkeypatch.undo()
    worker.round()
    assert worker.overdue() == {}


def test_timers_do_not_follow_the_machines_clock(
    memory: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(memory, duties={"erase": 60.0})
    worker.round()
    monkeypatch.setattr("time.time_ns", lambda: 0)

    assert 0 < worker.round() <= 60
    assert worker.overdue() == {}
