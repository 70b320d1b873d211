"""A compactor records its start and end, works alone, and blocks no append."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from refold.adapters.sql.recorder import Recorder
from refold.domain.envelope import Envelope
from refold.domain.events import CompactionNote, SummarizerRef, Summary, UserInput
from refold.domain.ids import StreamId
from refold.projections.context.compaction import Source, Written
from refold.projections.context.outline import Outline
from refold.projections.context.strategy import Strategy
from refold.store import Session, SessionStore
from refold.store.compactions import LEASE_SEC, Compactor, HeldLease
from refold.store.contexts import Viewer
from refold.testing import memory_log
from tests.support.summarizing import Counting, Slow, called
from tests.support.talking import talk
from tests.support.waiting import PATIENCE_SEC

WINDOW = "turn_window:full_turns=1,cached_turns=1"


def outcomes(session: Session) -> list[str]:
    """Return the outcomes in the derived stream, in order."""
    names = [name for name in session.history.streams() if name != "main"]
    return [
        getattr(entry.payload, "phase", entry.type)
        for name in names
        for entry in session.history.derived(name)
    ]


@contextmanager
def slow_compaction(session: Session, slow: Slow) -> Iterator[Future[Envelope | None]]:
    """A compaction of ``session`` whose model writes until the block ends."""
    with ThreadPoolExecutor(1) as pool:
        compacting = pool.submit(session.compact, WINDOW, summarizer=slow)
        assert slow.begun.wait(PATIENCE_SEC)
        try:
            yield compacting
        finally:
            slow.may_end.set()


def with_clock(session: Session, clock: Callable[[], int]) -> Session:
    return replace(session, writer=replace(session.writer, clock=clock))


class FailingSummarizer(Counting):
    def summarise(self, source: Source, *, target_tokens: int) -> Written:
        super().summarise(source, target_tokens=target_tokens)
        raise TimeoutError


def test_start_and_success_are_in_the_log(session: Session, calls: Path) -> None:
    talk(session, 2)

    summary = session.compact(WINDOW, summarizer=Counting(calls))

    assert summary is not None
    assert outcomes(session) == ["started", "summary"]
    started, done = session.history.derived(summary.stream)
    assert isinstance(started.payload, CompactionNote)
    assert isinstance(done.payload, Summary)
    same = ("first_seq", "last_seq", "decided_at_seq")
    assert [getattr(started.payload, name) for name in same] == [
        getattr(done.payload, name) for name in same
    ]
    assert session.verify().problems == []


def test_start_and_failure_are_in_the_log_and_the_next_waits(
    session: Session, calls: Path
) -> None:
    talk(session, 2)
    before = session.context(WINDOW).digest

    assert session.compact(WINDOW, summarizer=FailingSummarizer(calls)) is None
    assert session.compact(WINDOW, summarizer=FailingSummarizer(calls)) is None

    assert outcomes(session) == ["started", "failed"]
    assert len(called(calls)) == 1
    assert session.context(WINDOW).digest == before
    assert session.verify().problems == []


def test_a_compaction_without_a_model_takes_no_lease(
    session: Session, calls: Path
) -> None:
    talk(session, 2)

    session.compact(WINDOW)

    assert outcomes(session) == ["summary"]


def test_a_check_without_a_compaction_takes_no_lease(
    session: Session, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk(session, 1)
    monkeypatch.setattr(HeldLease, "take", pytest.fail)

    assert session.compact(WINDOW, summarizer=Counting(calls)) is None

    assert outcomes(session) == []


def test_a_start_without_an_end_changes_nothing(session: Session, calls: Path) -> None:
    class DyingSummarizer(Counting):
        def summarise(self, source: Source, *, target_tokens: int) -> Written:
            raise KeyboardInterrupt

    talk(session, 2)
    before = session.context(WINDOW).digest
    with pytest.raises(KeyboardInterrupt):
        session.compact(WINDOW, summarizer=DyingSummarizer(calls))
    assert session.context(WINDOW).digest == before

    assert session.compact(WINDOW, summarizer=Counting(calls)) is not None

    assert outcomes(session) == ["started", "started", "summary"]


def test_a_slow_summarizer_blocks_no_append(session: Session, calls: Path) -> None:
    talk(session, 2)
    slow = Slow(calls)

    with slow_compaction(session, slow) as compacting:
        talk(session, 2)
        assert outcomes(session) == ["started"]
    summary = compacting.result()

    assert summary is not None
    assert isinstance(summary.payload, Summary)
    assert summary.payload.decided_at_seq == 4
    assert summary.payload.appended_at_seq == 8
    assert session.verify().problems == []


def test_a_concurrent_request_is_recorded_without_waiting(
    session: Session, calls: Path
) -> None:
    talk(session, 2)
    slow = Slow(calls)

    with slow_compaction(session, slow):
        talk(session, 1)
        assert session.compact(WINDOW, summarizer=Counting(calls)) is None

    assert outcomes(session) == ["started", "summary"] * 2
    assert len(set(called(calls))) == len(called(calls)) == 2


def test_a_finished_compaction_checks_once_without_requests(
    session: Session, calls: Path
) -> None:
    talk(session, 4)

    session.compact(WINDOW, summarizer=Counting(calls))

    assert outcomes(session) == ["started", "summary"]


def test_a_lease_is_renewed_while_the_model_writes(
    session: Session, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk(session, 2)
    renewed = Event()
    recorder: Recorder = session.writer.log.recorder  # type: ignore[attr-defined]  # a EncryptedLog
    renew = recorder.renew_lease

    def counted_renewal(*arguments: Any, **options: Any) -> bool:
        renewed_lease = renew(*arguments, **options)
        renewed.set()
        return renewed_lease

    class PatientSummarizer(Counting):
        def summarise(self, source: Source, *, target_tokens: int) -> Written:
            assert renewed.wait(PATIENCE_SEC)
            return super().summarise(source, target_tokens=target_tokens)

    monkeypatch.setattr(recorder, "renew_lease", counted_renewal)
    compactor = session.strategies.compactor(
        WINDOW, summarizer=PatientSummarizer(calls)
    )

    assert replace(compactor, lease_sec=0.03).step() is not None


def test_losing_the_lease_discards_only_the_own_summary(
    session: Session, calls: Path
) -> None:
    talk(session, 2)
    slow = Slow(calls)
    now = session.writer.clock()
    early = with_clock(session, lambda: now)
    late = with_clock(session, lambda: now + int(LEASE_SEC * 1_000_000))

    with slow_compaction(early, slow) as losing:
        won = late.compact(WINDOW, summarizer=Counting(calls))
    lost = losing.result()

    assert won is not None
    assert lost is None
    assert outcomes(session) == ["started", "started", "summary"]
    assert session.verify().problems == []


def test_compactors_of_two_strategies_do_not_wait_for_each_other(
    session: Session, calls: Path
) -> None:
    talk(session, 3)
    slow = Slow(calls)

    with slow_compaction(session, slow) as compacting:
        other = "turn_window:full_turns=1,cached_turns=2"
        assert session.compact(other, summarizer=Counting(calls)) is not None
    assert compacting.result() is not None


def test_an_erased_or_unknown_session_leaves_no_lease(store: SessionStore) -> None:
    nobody = StreamId("nobody", "s-1", "f" * 64)

    assert not store.log.leases.take_lease(nobody, "me", clock=lambda: 1, period=1)


def test_a_due_compaction_is_reported(session: Session, calls: Path) -> None:
    talk(session, 1)
    now = session.writer.clock()
    frozen = with_clock(session, lambda: now)
    compactor = frozen.strategies.compactor(WINDOW, summarizer=FailingSummarizer(calls))
    assert compactor.due_at() is None

    talk(session, 1)
    moment = datetime.fromtimestamp(now // 1_000_000, UTC)
    due = compactor.due_at()
    assert due is not None
    assert due.replace(microsecond=0) == moment

    compactor.step()
    retry = compactor.due_at()
    assert retry == due + timedelta(seconds=30)


@dataclass(frozen=True)
class Scripted:
    """A summarizer that writes, fails, or writes too much, according to its script."""

    script: list[str]

    def summarise(self, source: Source, *, target_tokens: int) -> Written:
        match self.script.pop(0) if self.script else "write":
            case "fail":
                raise TimeoutError
            case "much":
                return Written(source.text * 2, SummarizerRef(kind="scripted"))
            case _:
                return Written("so it was", SummarizerRef(kind="scripted"))


@given(
    script=st.lists(st.sampled_from(["write", "fail", "much"]), max_size=6),
    turns=st.lists(st.integers(0, 3), min_size=1, max_size=6),
)
@settings(max_examples=8)
def test_every_summarizer_outcome_is_logged_with_adjacent_spans(
    script: list[str], turns: list[int]
) -> None:
    from refold.redaction.guard import Limits
    from refold.redaction.redactor import Redactor

    now = [1_700_000_000_000_000]
    store = SessionStore(memory_log(), Redactor(), Limits(), clock=lambda: now[0])
    session = store.session(user_id="ada", session_id="s-1")
    summarizer = Scripted(list(script))
    talk(session, 1)
    for more in turns:
        talk(session, more)
        session.compact(WINDOW, summarizer=summarizer)
        now[0] += 1_000_000_000

    logged = outcomes(session)
    assert logged[::2] == ["started"] * (len(logged) // 2)
    assert set(logged[1::2]) <= {"summary", "failed"}
    assert session.verify().problems == []
    names = [name for name in session.history.streams() if name != "main"]
    payloads = [
        entry.payload for name in names for entry in session.history.derived(name)
    ]
    spans = [(s.first_seq, s.last_seq) for s in payloads if isinstance(s, Summary)]
    assert spans == [(2 * n + 1, 2 * n + 2) for n in range(len(spans))]


def test_a_compactor_continues_after_a_rivals_decision(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk(session, 6)
    append = Compactor._append
    appended: list[int | None] = []

    def append_before_another(
        compactor: Compactor, outline: Outline, event: Any
    ) -> int | None:
        seq = append(compactor, outline, event)
        appended.append(seq)
        if len(appended) == 1:
            # Another compactor works before this one reads what it appended.
            talk(session, 3)
            while session.compact(WINDOW):
                pass
        return seq

    monkeypatch.setattr(Compactor, "_append", append_before_another)

    assert session.compact(WINDOW) is not None

    assert session.compact(WINDOW) is None
    assert session.context(WINDOW).tokens > 0


def test_a_turns_end_is_searched_only_up_to_the_judged_head(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    turn_ends = Viewer.turn_ends

    def counted_read(viewer: Viewer, strategy: Strategy) -> list[Envelope]:
        looks.append(viewer.stream.session_id)
        return turn_ends(viewer, strategy)

    monkeypatch.setattr(Viewer, "turn_ends", counted_read)
    talk(session, 8)
    session.append(UserInput(text="last"))

    steps = 0
    while session.compact(WINDOW):
        steps += 1

    assert steps >= 5
    assert len(looks) <= 2


def test_a_model_does_not_repeat_another_compactors_summary(
    session: Session, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk(session, 6)
    append = Compactor._append
    models_summaries: list[int | None] = []

    def append_before_another(
        compactor: Compactor, outline: Outline, event: Any
    ) -> int | None:
        seq = append(compactor, outline, event)
        if isinstance(event, Summary) and compactor._costs:
            models_summaries.append(seq)
            # A summarizer without cost takes no lease.
            while session.compact(WINDOW):
                pass
        return seq

    monkeypatch.setattr(Compactor, "_append", append_before_another)

    session.prepare(WINDOW, summarizer=Counting(calls))

    assert len(models_summaries) == 1
    (name,) = (name for name in session.history.streams() if name != "main")
    summaries = [
        entry.payload
        for entry in session.history.derived(name)
        if isinstance(entry.payload, Summary)
    ]
    parts = [(summary.first_seq, summary.last_seq) for summary in summaries]
    assert len(parts) == len(set(parts))
