"""A store compacts by itself, in the background or before appends return."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from threading import Barrier, Event
from typing import Any

import pytest

import refold
from refold.projections.context.compaction import Source, Written
from refold.store import SessionStore
from refold.store.contexts import WORTH_STORING
from refold.store.upkeep import Automatic
from refold.store.work.background import Background
from tests.support.stores import prepare
from tests.support.summarizing import Counting, Slow, called
from tests.support.talking import count_summaries
from tests.support.waiting import PATIENCE_SEC

WINDOW = "turn_window:full_turns=1,cached_turns=1"
QUESTION = refold.UserInput(text="why " * 40)
ANSWER = refold.AgentResponse(text="because " * 40)


@pytest.fixture(autouse=True)
def _settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tmp_path / "refold.toml"
    settings.write_text(f'[context]\nstrategy = "{WINDOW}"\n')
    monkeypatch.setenv("REFOLD_CONFIG", str(settings))


@pytest.fixture
def slow(calls: Path) -> Iterator[Slow]:
    slow = Slow(calls)
    yield slow
    slow.may_end.set()


def opened(url: str, folder: Path, compact: Automatic, writes: Any) -> SessionStore:
    return refold.open(prepare(url, folder), compact=compact, summarizer=writes)


def test_no_append_waits_for_background_compaction(
    store_url: str, tmp_path: Path, slow: Slow
) -> None:
    with opened(store_url, tmp_path, "background", slow) as store:
        session = store.session(user_id="ada", session_id="s-1")
        for _ in range(2):
            session.append([QUESTION, ANSWER])
        assert slow.begun.wait(PATIENCE_SEC)
        for _ in range(3):
            session.append([QUESTION, ANSWER])
        assert count_summaries(session) == 0

        slow.may_end.set()
        store.upkeep.background.wait_idle()

        assert count_summaries(session) > 1
        assert session.verify().problems == []


def test_an_append_waits_if_configured(
    store_url: str, tmp_path: Path, calls: Path
) -> None:
    with opened(store_url, tmp_path, "wait", Counting(calls)) as store:
        session = store.session(user_id="ada", session_id="s-1")
        session.append([QUESTION, ANSWER])
        assert count_summaries(session) == 0
        session.append([QUESTION, ANSWER])
        assert count_summaries(session) == 1


@pytest.mark.parametrize(
    ("events", "checked"),
    [
        ([QUESTION], False),
        ([ANSWER], True),
        ([ANSWER, refold.ToolCall(call_id="c", tool_name="t", arguments={})], False),
        ([refold.Final(text="done", outcome="success")], True),
    ],
)
def test_compaction_is_checked_where_a_turn_may_end(
    sqlite_url: str, tmp_path: Path, calls: Path, events: Any, checked: bool
) -> None:
    with opened(sqlite_url, tmp_path, "off", None) as store:
        for _ in range(2):
            store.session(user_id="ada", session_id="s-1").append([QUESTION, ANSWER])
    with opened(sqlite_url, tmp_path, "wait", Counting(calls)) as store:
        store.session(user_id="ada", session_id="s-1").append(events)

    assert bool(called(calls)) == checked


def test_automatic_compaction_can_be_disabled(
    sqlite_url: str, tmp_path: Path, calls: Path
) -> None:
    with opened(sqlite_url, tmp_path, "off", Counting(calls)) as store:
        for _ in range(4):
            store.session(user_id="ada", session_id="s-1").append([QUESTION, ANSWER])

    assert called(calls) == []


@pytest.mark.parametrize("how", ["background", "wait"])
def test_an_impossible_compaction_does_not_fail_the_append(
    sqlite_url: str, tmp_path: Path, how: Automatic, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "refold.toml").write_text('[context]\nstrategy = "no_such"\n')

    with opened(sqlite_url, tmp_path, how, None) as store:
        receipt = store.session(user_id="ada", session_id="s-1").append(
            [QUESTION, ANSWER]
        )
        store.upkeep.background.wait_idle()

    assert receipt.last_seq == 2
    assert "strategy" in caplog.text


def test_an_unknown_mode_is_refused_and_creates_nothing(
    sqlite_url: str, tmp_path: Path
) -> None:
    with pytest.raises(refold.InvalidConfiguration, match="off, background, wait"):
        opened(sqlite_url, tmp_path, "sometimes", None)  # type: ignore[arg-type]  # what is tested
    assert not (tmp_path / "refold.db").exists()


def test_prepare_can_skip_waiting(store_url: str, tmp_path: Path, slow: Slow) -> None:
    with opened(store_url, tmp_path, "off", slow) as store:
        session = store.session(user_id="ada", session_id="s-1")
        for _ in range(2):
            session.append([QUESTION, ANSWER])
        raw = session.context(WINDOW).digest

        assert session.prepare(WINDOW, wait=False).digest == raw
        assert slow.begun.wait(PATIENCE_SEC)
        assert session.prepare(WINDOW, wait=False).digest == raw
        slow.may_end.set()
        store.upkeep.background.wait_idle()

        assert session.prepare(WINDOW, wait=False).digest != raw
        assert len(called(slow.calls)) == 1


def test_closing_a_store_waits_for_its_background_work(
    store_url: str, tmp_path: Path, calls: Path
) -> None:
    begun = Event()

    class ClosingSummarizer(Counting):
        def summarise(self, source: Source, *, target_tokens: int) -> Written:
            begun.set()
            return super().summarise(source, target_tokens=target_tokens)

    with opened(store_url, tmp_path, "background", ClosingSummarizer(calls)) as store:
        for _ in range(2):
            store.session(user_id="ada", session_id="s-1").append([QUESTION, ANSWER])
        assert begun.wait(PATIENCE_SEC)

    with opened(store_url, tmp_path, "off", None) as store:
        assert count_summaries(store.session(user_id="ada", session_id="s-1")) == 1


def test_work_runs_one_at_a_time_and_again_if_requested_during_it() -> None:
    background = Background()
    entered = Barrier(2)
    go = Event()
    count = [0]

    def work() -> None:
        count[0] += 1
        if count[0] == 1:
            entered.wait(PATIENCE_SEC)
            assert go.wait(PATIENCE_SEC)

    background.ask("a", work)
    entered.wait(PATIENCE_SEC)
    for _ in range(5):
        assert background.ask("a", work)
    go.set()
    background.wait_idle()

    assert count == [2]
    background.close()


def test_waiting_work_is_bounded_and_dropped_at_the_end() -> None:
    background = Background(threads=1, queue=2)
    entered = Barrier(2)
    go = Event()
    done: list[str] = []

    def first_task() -> None:
        entered.wait(PATIENCE_SEC)
        assert go.wait(PATIENCE_SEC)

    background.ask("first", first_task)
    entered.wait(PATIENCE_SEC)
    assert background.ask("b", lambda: done.append("b"))
    assert background.ask("b", lambda: done.append("b again"))
    assert background.ask("c", lambda: done.append("c"))
    assert not background.ask("d", lambda: done.append("d"))
    go.set()
    background.wait_idle()
    background.close()

    assert done == ["b", "c"]
    assert not background.ask("e", lambda: done.append("e"))
    background.wait_idle()


def test_a_failed_background_task_stops_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    background = Background(threads=1)
    done = list[int]()

    def fail() -> None:
        raise ValueError("what a user said")

    background.ask("a", fail)
    background.ask("b", lambda: done.append(1))
    background.wait_idle()
    background.close()

    assert done == [1]
    assert "ValueError" in caplog.text
    assert "what a user said" not in caplog.text


def test_a_forked_process_has_its_own_background_thread() -> None:
    background = Background()
    done = Event()
    background.ask("a", done.set)
    background.wait_idle()
    background._pid = os.getpid() + 1  # as if this were the child

    again = Event()
    assert background.ask("a", again.set)
    assert again.wait(PATIENCE_SEC)
    background.close()


@pytest.mark.parametrize("automatic", ["background", "wait"])
def test_appends_of_a_store_that_compacts_leave_a_recent_outline(
    store_url: str, tmp_path: Path, automatic: Automatic
) -> None:
    (tmp_path / "refold.toml").write_text(
        '[context]\nstrategy = "turn_window:full_turns=500,cached_turns=1"\n'
    )
    with opened(store_url, tmp_path, automatic, None) as store:
        session = store.session(user_id="ada", session_id="s-1")
        for _ in range(100):
            session.append([QUESTION, ANSWER])
            store.upkeep.background.wait_idle()
        fingerprint = session.settings.strategy(None).fingerprint

        view = store.log.load_view(session.stream, fingerprint)

        assert view is not None
        assert session.head().seq - view.through_seq < WORTH_STORING
