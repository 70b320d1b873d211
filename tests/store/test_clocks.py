"""A machine with a wrong clock blocks no other worker, and takes no live lease."""

from __future__ import annotations

import json
import signal
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import refold
from refold.adapters.sql.keystore import SqlKeyStore
from refold.domain.erasure import ErasureJob, ErasureScope
from refold.domain.errors import LeaseLost
from refold.domain.ids import StreamId
from refold.store import SessionStore
from refold.store.erasure import Eraser, ErasureRequest, Erasures
from refold.store.work.workers import Worker
from tests.store.test_working import Clock
from tests.support import warm
from tests.support.stores import open_at, prepare
from tests.support.talking import talk
from tests.support.waiting import PATIENCE_SEC

TEN_YEARS = 315_360_000
SEAL = StreamId("", "", "seal")
ERASE = StreamId("", "", "erase")
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

    def fail(*_: object, **__: object) -> None:
        raise refold.StoreUnavailable("the disk is full", remedy="free some space")

    monkeypatch.setattr(Erasures, "complete", fail)
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


def test_timers_ignore_changes_of_the_machines_clock(
    memory: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker(memory, duties={"erase": 60.0})
    worker.round()
    monkeypatch.setattr("time.time_ns", lambda: 0)

    assert 0 < worker.round() <= 60
    assert worker.overdue() == {}


def unfinished_erasure(store: SessionStore) -> ErasureJob:
    """An erasure job whose user is marked as erased while the keys still exist."""
    eraser = Eraser(store.writer)
    job = store.log.erasures.begin(
        eraser.new_job(ErasureRequest(ErasureScope("ada"), "asked", ""))
    )
    store.log.erasures.mark(job)
    return job


@pytest.mark.each_engine
@pytest.mark.parametrize("step", ["destroy_keys", "hold_keys", "restore"])
@pytest.mark.parametrize("keys", ["apart", "in the same database"])
def test_the_former_owner_of_an_erasure_changes_no_keys(
    store_url: str,
    tmp_path: Path,
    step: str,
    keys: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = prepare(store_url, tmp_path)
    if keys == "in the same database":
        monkeypatch.setenv("REFOLD_KEYS", url)
    with refold.open(url) as store:
        talk(store.session(user_id="ada", session_id="s"), 2)
        leases = store.log.leases
        steps = store.log.erasures
        job = unfinished_erasure(store)
        before = store.keys.status()
        how = {} if step == "restore" else {"now": store.clock()}
        assert leases.take_lease(ERASE, "first", clock=store.clock, period=HOUR)
        with leases.fenced(ERASE, "first"):
            leases.release_lease(ERASE, "first")
            assert leases.take_lease(ERASE, "second", clock=store.clock, period=HOUR)

            with pytest.raises(LeaseLost):
                getattr(steps, step)(job, **how)

        assert store.keys.status() == before
        with leases.fenced(ERASE, "second"):
            assert steps.destroy_keys(job, now=store.clock()) == 2


@pytest.mark.each_engine
def test_a_lease_cannot_be_taken_while_keys_are_destroyed(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    destroying = Event()
    go_on = Event()
    destroy = SqlKeyStore.destroy
    order = list[str]()

    def destroy_slowly(*args: Any, **named: Any) -> int:
        destroying.set()
        assert go_on.wait(PATIENCE_SEC)
        number = destroy(*args, **named)
        order.append("destroyed")
        return number

    monkeypatch.setattr(SqlKeyStore, "destroy", destroy_slowly)
    url = prepare(store_url, tmp_path)
    with refold.open(url) as store, ThreadPoolExecutor(2) as pool:
        talk(store.session(user_id="ada", session_id="s"), 2)
        leases = store.log.leases
        job = unfinished_erasure(store)
        assert leases.take_lease(ERASE, "first", clock=store.clock, period=1)

        def first_worker() -> None:
            # The second worker may have forbidden everything that it writes after that.
            with leases.fenced(ERASE, "first"), suppress(LeaseLost):
                store.log.erasures.destroy_keys(job, now=store.clock())

        def second_worker() -> bool:
            done = leases.take_lease(ERASE, "second", clock=store.clock, period=HOUR)
            order.append("taken")
            return done

        destroyed = pool.submit(first_worker)
        assert destroying.wait(PATIENCE_SEC)
        taken = pool.submit(second_worker)
        wait([taken], timeout=0.5)
        assert not taken.done()
        go_on.set()

        destroyed.result(PATIENCE_SEC)
        assert taken.result(PATIENCE_SEC)
        assert order == ["destroyed", "taken"]
