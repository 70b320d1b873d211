"""A killed or raced compaction takes effect once, and appends continue."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

import refold
from refold.domain.events import CompactionNote, Summary
from refold.domain.ports import Problem
from refold.store import Session, SessionStore
from refold.store.compactions import LEASE_SEC
from tests.support import warm
from tests.support.compacting import STEPS, WINDOW
from tests.support.nested import problems_of
from tests.support.stores import (
    open_at,
    prepare,
    release,
    use_the_callers_clock_for_leases,
)
from tests.support.summarizing import Counting, called
from tests.support.talking import talk

pytestmark = pytest.mark.each_engine


@pytest.fixture(autouse=True)
def _leases_end_by_the_tests_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    use_the_callers_clock_for_leases(monkeypatch)


def start(*arguments: object) -> warm.Process:
    return warm.module("tests.support.compacting", *arguments)


def kill_at_step(url: str, calls: Path, step: str) -> None:
    process = start("killed", url, calls, step)
    output = process.communicate()
    assert process.returncode == -signal.SIGKILL, output


def compact_all(session: Session, calls: Path) -> None:
    while session.compact(WINDOW, summarizer=Counting(calls)):
        pass


def later(session: Session, seconds: float) -> Session:
    """The same session with a clock that is ahead."""
    clock = session.writer.clock
    ahead = int(seconds * 1_000_000)
    writer = replace(session.writer, clock=lambda: clock() + ahead)
    return replace(session, writer=writer)


def spans(session: Session) -> list[tuple[int, int]]:
    return [
        (summary.first_seq, summary.last_seq) for summary in payloads(session, Summary)
    ]


def payloads(session: Session, kind: type) -> Sequence[refold.Summary]:
    names = [name for name in session.history.streams() if name != "main"]
    entries = [
        entry.payload for name in names for entry in session.history.derived(name)
    ]
    return [payload for payload in entries if isinstance(payload, kind)]  # type: ignore[misc]  # a kind of summary, or of note


def starts(session: Session) -> int:
    notes: Sequence[object] = payloads(session, CompactionNote)
    return sum(getattr(note, "phase", "") == "started" for note in notes)


def problems(store: SessionStore) -> list[Problem]:
    return problems_of(store.verify())


@pytest.mark.parametrize("step", STEPS)
def test_kill_9_at_any_step_leaves_the_next_context_right(
    store_url: str, tmp_path: Path, step: str
) -> None:
    calls = tmp_path / "calls"
    reached = list(STEPS).index(step)
    recorded = reached >= list(STEPS).index("the summary is recorded")
    with open_at(store_url, tmp_path) as store:
        for name in ("s-1", "control"):
            talk(store.session(user_id="ada", session_id=name), 3)
        control = store.session(user_id="ada", session_id="control")
        before = control.context(WINDOW).digest
        control.compact(WINDOW, summarizer=Counting(tmp_path / "control"))

    kill_at_step(store_url, calls, step)

    with open_at(store_url, tmp_path) as store:
        session, control = (
            store.session(user_id="ada", session_id=name) for name in ("s-1", "control")
        )
        after = control.context(WINDOW).digest
        assert session.context(WINDOW).digest == (after if recorded else before)
        talk(session, 1)
        talk(control, 1)
        compact_all(later(session, LEASE_SEC), calls)
        compact_all(control, tmp_path / "control")

        assert session.context(WINDOW).digest == control.context(WINDOW).digest
        assert spans(session) == spans(control) == [(1, 2), (3, 4), (5, 6)]
        asked = called(calls)
        needed = called(tmp_path / "control")
        assert set(asked) == set(needed)
        wasted = len(asked) - len(needed)
        assert wasted == (1 if step in ANSWERED else 0)
        assert problems(store) == []


ANSWERED = ("the model has answered", "the summary is made")


def test_a_dead_compactor_keeps_its_lease_until_it_ends(
    store_url: str, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    with open_at(store_url, tmp_path) as store:
        talk(store.session(user_id="ada", session_id="s-1"), 3)
    kill_at_step(store_url, calls, "the model has answered")

    with open_at(store_url, tmp_path) as store:
        session = store.session(user_id="ada", session_id="s-1")
        clock = store.clock()
        frozen = replace(session, writer=replace(session.writer, clock=lambda: clock))
        assert frozen.compact(WINDOW, summarizer=Counting(calls)) is None
        assert len(called(calls)) == 1

        assert later(frozen, LEASE_SEC).compact(WINDOW, summarizer=Counting(calls))
        assert len(called(calls)) == 2
        assert starts(session) == 2


def test_compactors_of_four_processes_and_sixteen_threads_take_effect_once(
    store_url: str, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    url = prepare(store_url, tmp_path)
    with refold.open(url) as store:
        talk(store.session(user_id="ada", session_id="s-1"), 2)
    compactors = [start("race", url, calls, 4, 6) for _ in range(4)]
    talkers = [start("talk", url, 10) for _ in range(2)]
    release([*compactors, *talkers])

    printed = [process.communicate() for process in (*compactors, *talkers)]

    assert [out.strip() for out, _ in printed] == ["done"] * 6, printed
    with refold.open(url) as store:
        session = store.session(user_id="ada", session_id="s-1")
        compact_all(session, calls)
        assert session.head().seq == 2 * 2 + 2 * 10 * 2
        summary_spans = spans(session)
        assert summary_spans[0][0] == 1
        assert all(a[1] + 1 == b[0] for a, b in pairwise(summary_spans))
        assert len(called(calls)) == len(set(called(calls))) == len(summary_spans)
        assert starts(session) == len(summary_spans)
        assert problems(store) == []
