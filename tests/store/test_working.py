"""A worker compacts when new events or the time require it, and sleeps in between."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import pytest

import refold
from refold.domain.envelope import from_microseconds
from refold.domain.errors import CorruptEvent
from refold.domain.ids import StreamId
from refold.projections.context.compaction import Compaction, Source, Written
from refold.projections.context.outline import Outline
from refold.projections.context.strategies.turn_window import TurnWindow
from refold.projections.context.strategy import Strategy
from refold.store import SessionStore
from refold.store.session.strategies import SessionStrategies
from refold.store.work import workers
from refold.store.work.indexing import Indexed
from refold.store.work.workers import Unit, Worker
from tests.support.summarizing import Counting, Slow, called
from tests.support.talking import count_summaries, talk
from tests.support.waiting import PATIENCE_SEC

WINDOW = "turn_window:full_turns=1,cached_turns=1"
EVERY = 30.0
NAMES = ("s-1", "s-2")


class Clock:
    """The store's clock, moved by the test."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000_000

    def __call__(self) -> int:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += int(seconds * 1_000_000)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(store: SessionStore, clock: Clock) -> SessionStore:
    """The store on each engine, with this clock."""
    writer = store.session(user_id="ada", session_id="s-1").writer
    return SessionStore(store.log, writer.redactor, writer.limits, clock=clock)


class CompactsWhenIdle(TurnWindow):
    """A strategy that compacts the oldest turn after ten minutes without events."""

    name: ClassVar[str] = "idle_for_tests"

    def decide(self, outline: Outline, now: datetime) -> Compaction | None:
        due = self.due_at(outline, now)
        return None if due is None or now < due else super().decide(outline, now)

    def due_at(self, outline: Outline, now: datetime) -> datetime | None:
        raw = outline.complete_turns - outline.compacted_turns
        if outline.called_at is None or raw < self.full_turns + self.cached_turns:
            return None
        return from_microseconds(outline.called_at) + timedelta(minutes=10)


IDLE: Strategy = CompactsWhenIdle(full_turns=1, cached_turns=1)


def test_a_worker_compacts_all_pending_sessions(
    store: SessionStore, clock: Clock, calls: Path
) -> None:
    long = talk(store.session(user_id="ada", session_id="long"), 4)
    short = talk(store.session(user_id="bob", session_id="short"), 1)

    Worker(store, WINDOW, summarizer=Counting(calls)).round()

    assert (count_summaries(long), count_summaries(short)) == (3, 0)
    assert len(called(calls)) == 3


def test_a_worker_reads_only_sessions_that_grew(
    store: SessionStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (
        talk(store.session(user_id="ada", session_id=name), 2) for name in ("a", "b")
    )
    worker = Worker(store, WINDOW, duties={"compact": EVERY})
    looked = list[str]()
    assert worker.round() == EVERY
    compactor = SessionStrategies.compactor

    def recorded_check(
        part: SessionStrategies, *arguments: object, **options: object
    ) -> object:
        looked.append(part.session_id)
        return compactor(part, *arguments, **options)  # type: ignore[arg-type]  # as given

    monkeypatch.setattr(SessionStrategies, "compactor", recorded_check)
    talk(second, 1)
    assert worker.round() == EVERY
    assert looked == []

    clock.pass_(EVERY)
    worker.round()

    assert looked == ["b"]
    assert (count_summaries(first), count_summaries(second)) == (1, 2)


def test_work_that_becomes_pending_later_has_a_timer(
    store: SessionStore, clock: Clock
) -> None:
    session = talk(store.session(user_id="ada", session_id="s-1"), 2)
    worker = Worker(store, IDLE, duties={"compact": 3600})

    assert worker.round() == 600
    clock.pass_(599)
    assert worker.round() == 1
    assert count_summaries(session) == 0
    clock.pass_(1)
    assert worker.round() == 3000

    assert count_summaries(session) == 1


@pytest.mark.each_engine
def test_after_a_compaction_a_worker_indexes_the_summaries(
    store: SessionStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = talk(store.session(user_id="ada", session_id="s-1"), 2)
    worker = Worker(store, IDLE, duties={"compact": 3600, "index": 3600})
    worker.round()
    assert (count_summaries(session), worker.counts["index", "done"]) == (0, 1)

    clock.pass_(600)
    worker.round()

    assert (count_summaries(session), worker.counts["index", "done"]) == (1, 2)
    reads: list[object] = []
    read = store.log.read

    def counted(stream: StreamId, **options: Any) -> object:
        reads.append(stream)
        return read(stream, **options)

    monkeypatch.setattr(store.log, "read", counted)
    store.overviews("ada", sort="title", limit=9)
    assert reads == []


def test_after_a_rebuild_a_worker_indexes_the_summaries(
    store: SessionStore, clock: Clock
) -> None:
    talk(store.session(user_id="ada", session_id="s-1"), 4)
    strategy = TurnWindow(full_turns=1, cached_turns=1)
    duties = {"index": 3600.0, "rebuild": 3600.0}
    worker = Worker(store, duties=duties, rebuilds=strategy)

    worker.round()

    assert worker.counts == {("index", "done"): 2, ("rebuild", "done"): 1}


def test_new_events_move_the_timer(store: SessionStore, clock: Clock) -> None:
    session = talk(store.session(user_id="ada", session_id="s-1"), 2)
    worker = Worker(store, IDLE, duties={"compact": 100})
    worker.round()

    clock.pass_(500)
    talk(session, 1)
    worker.round()
    clock.pass_(100)
    worker.round()
    assert count_summaries(session) == 0

    clock.pass_(500)
    worker.round()
    assert count_summaries(session) == 2


def test_a_failed_compaction_is_retried_after_its_cooldown(
    store: SessionStore, clock: Clock, calls: Path
) -> None:
    class FailingOnce(Counting):
        def summarise(self, source: Source, *, target_tokens: int) -> Written:
            written = super().summarise(source, target_tokens=target_tokens)
            if len(called(self.calls)) == 1:
                raise TimeoutError
            return written

    session = talk(store.session(user_id="ada", session_id="s-1"), 2)
    worker = Worker(
        store, WINDOW, summarizer=FailingOnce(calls), duties={"compact": 3600}
    )

    assert worker.round() == 30
    clock.pass_(30)
    worker.round()

    assert count_summaries(session) == 1


def test_a_failing_session_stops_no_other(
    store: SessionStore,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    sessions = [
        talk(store.session(user_id="ada", session_id=name), 2)
        for name in ("a", "b", "c")
    ]
    compactor = SessionStrategies.compactor
    broken = ["b"]

    def fail_for_one(
        part: SessionStrategies, *arguments: object, **options: object
    ) -> object:
        if part.session_id in broken:
            raise refold.CorruptEvent("session 'b'", seq=1, reason="its row is gone")
        return compactor(part, *arguments, **options)  # type: ignore[arg-type]  # as given

    monkeypatch.setattr(SessionStrategies, "compactor", fail_for_one)
    worker = Worker(store, WINDOW, duties={"compact": EVERY})
    assert worker.round() == EVERY
    assert [count_summaries(session) for session in sessions] == [1, 0, 1]
    assert "its row is gone" in caplog.text

    broken.clear()
    clock.pass_(EVERY)
    worker.round()
    assert [count_summaries(session) for session in sessions] == [1, 1, 1]


@pytest.mark.parametrize("duty", ["compact", "index"])
def test_work_that_keeps_failing_has_one_timer(
    store: SessionStore,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    duty: str,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise CorruptEvent("ada/s-1", seq=1, reason="damaged")

    monkeypatch.setattr(workers, "index_session", fail)
    monkeypatch.setattr(Worker, "_compact", fail)
    session = talk(store.session(user_id="ada", session_id="s-1"), 1)
    worker = Worker(store, WINDOW, duties={duty: 60.0})
    failures: list[int] = []
    for _ in range(4):
        session.append(refold.UserInput(text="more"))
        before = worker.counts[duty, "failed"]
        for _ in range(2):
            worker.round()
            clock.pass_(40)
        failures.append(worker.counts[duty, "failed"] - before)
        assert len(worker._timers[duty]) == 1

    assert max(failures) <= 2


def test_new_events_bring_failed_work_forward_and_its_old_timer_does_not_count(
    store: SessionStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = [True]

    def index(log: object, stream: StreamId, **_: object) -> Indexed:
        if fails[0]:
            raise CorruptEvent("ada/s-1", seq=1, reason="damaged")
        return Indexed(stream.user_id, stream.session_id, 1)

    monkeypatch.setattr(workers, "index_session", index)
    session = talk(store.session(user_id="ada", session_id="s-1"), 1)
    # The store is listed every 10 seconds, and failed work is tried again after 60.
    worker = Worker(store, WINDOW, duties={"compact": 10.0, "index": 3600.0})
    worker.round()
    clock.pass_(10)
    fails[0] = False
    session.append(refold.UserInput(text="more"))
    worker.round()
    assert worker.counts["index", "done"] == 1
    for _ in range(12):
        clock.pass_(10)
        worker.round()

    assert worker.counts["index", "failed"] == 1
    assert worker.counts["index", "done"] == 1
    assert worker._timers["index"] == []


def test_a_store_that_does_not_answer_is_retried(
    store: SessionStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = talk(store.session(user_id="ada", session_id="s-1"), 2)
    worker = Worker(store, WINDOW, duties={"compact": EVERY})

    def fail(*_: object, **__: object) -> None:
        raise refold.StoreUnavailable("the database is away", remedy="wait")

    with monkeypatch.context() as patch:
        patch.setattr(type(store.log), "sessions", fail)
        assert worker.round() == EVERY
    clock.pass_(EVERY)
    worker.round()

    assert count_summaries(session) == 1


def test_a_session_that_another_worker_compacts_is_skipped(
    store: SessionStore, clock: Clock, calls: Path
) -> None:
    session = talk(store.session(user_id="ada", session_id="s-1"), 2)
    slow = Slow(calls)
    other = Thread(target=session.compact, args=(WINDOW,), kwargs={"summarizer": slow})
    other.start()
    assert slow.begun.wait(PATIENCE_SEC)
    worker = Worker(
        store, WINDOW, summarizer=Counting(calls), duties={"compact": EVERY}
    )

    assert worker.round() == EVERY
    assert len(called(calls)) == 1
    slow.may_end.set()
    other.join()
    clock.pass_(EVERY)
    worker.round()

    assert count_summaries(session) == len(called(calls)) == 1


def test_without_a_strategy_each_session_has_its_own(
    store: SessionStore, clock: Clock
) -> None:
    chose, raw = (
        talk(store.session(user_id="ada", session_id=name), 2)
        for name in ("chose", "raw")
    )
    chose.record_request(chose.context(WINDOW))

    Worker(store).round()

    assert (count_summaries(chose), count_summaries(raw)) == (1, 0)


def test_a_worker_can_be_limited_to_one_user(store: SessionStore, clock: Clock) -> None:
    adas, bobs = (
        talk(store.session(user_id=user, session_id="s"), 2) for user in ("ada", "bob")
    )

    Worker(store, WINDOW, user_id="ada").round()

    assert (count_summaries(adas), count_summaries(bobs)) == (1, 0)


def test_a_worker_reports_its_results(store: SessionStore, clock: Clock) -> None:
    session = talk(store.session(user_id="ada", session_id="s-1"), 2)
    reported: list[tuple[Unit, str, int]] = []

    Worker(
        store,
        WINDOW,
        done=lambda unit, event: reported.append((unit, event.type, event.seq)),
    ).round()

    assert reported == [(Unit("compact", "ada", "s-1"), "summary", 1)]
    assert count_summaries(session) == 1


def test_a_worker_runs_until_it_is_stopped(store: SessionStore, clock: Clock) -> None:
    session = talk(store.session(user_id="ada", session_id="s-1"), 2)
    worker: Worker

    def stop(*_: object) -> None:
        if count_summaries(session) == 2:
            worker.stop()
        else:
            talk(session, 1)
            clock.pass_(EVERY)

    worker = Worker(store, WINDOW, duties={"compact": EVERY}, done=stop)
    worker.run()

    assert count_summaries(session) == 2


@pytest.mark.parametrize("every", [0, -1, float("nan"), 1e9])
def test_an_interval_must_be_positive(store: SessionStore, every: float) -> None:
    with pytest.raises(
        refold.InvalidConfiguration, match="intervals and the lease are above 0"
    ):
        Worker(store, duties={"compact": every})


def test_views_that_are_behind_are_caught_up(store: SessionStore, clock: Clock) -> None:
    other = "turn_window:full_turns=3,cached_turns=3"
    for name in ("s-1", "s-2"):
        session = store.session(user_id="ada", session_id=name)
        talk(session, 4)
        session.strategies.compactor(other).viewer.store_current(
            session.strategies.compactor(other).strategy
        )
        talk(session, 32 if name == "s-1" else 31)
    worker = Worker(store, "keep_all", duties={"compact": EVERY})

    worker.round()

    fingerprint = (
        store.session(user_id="ada", session_id="s-1")
        .strategies.compactor(other)
        .strategy.fingerprint
    )
    far, near = (store.log.load_view(StreamId("ada", n), fingerprint) for n in NAMES)
    assert far is not None
    assert near is not None
    assert (far.through_seq, near.through_seq) == (72, 8)
