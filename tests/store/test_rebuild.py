"""A rebuild does not affect other strategies, resumes, and handles failures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import refold
from refold.domain.envelope import Envelope
from refold.domain.events import CompactionNote, Summary
from refold.projections.context.abridged import Abridged
from refold.projections.context.compaction import Source, Written
from refold.projections.context.strategies.keep_all import KeepAll
from refold.projections.context.strategies.spec import parse
from refold.projections.context.strategy import Strategy
from refold.store import Session, SessionStore
from refold.store.work.rebuilds import Rebuilt
from tests.projections.logs import START
from tests.support import warm
from tests.support.nested import problems_of
from tests.support.rebuilding import (
    OTHER,
    WINDOW,
    append_turns,
    derived_events,
    digests,
    rebuild,
    view_digests,
)
from tests.support.stores import open_at


@pytest.fixture
def threads() -> Iterator[Executor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


def test_other_strategies_show_the_same_bytes_before_and_after(
    store: SessionStore, session: Session
) -> None:
    append_turns(session, 8)
    session.record_request(session.prepare(OTHER))
    before = digests(session, OTHER, KeepAll()), view_digests(session, OTHER)
    head = session.head()
    requests = list(session.proofs.replay())

    assert rebuild(store, WINDOW) > 0

    assert (digests(session, OTHER, KeepAll()), view_digests(session, OTHER)) == before
    assert session.head() == head
    assert list(session.proofs.replay()) == requests
    assert session.context().fingerprint == OTHER.fingerprint
    assert session.verify().problems == []


def test_a_rebuild_does_not_change_contexts_that_were_sent(
    store: SessionStore, session: Session
) -> None:
    append_turns(session, 8)

    rebuild(store, WINDOW)

    append_turns(session, 1, first=9)
    assert session.context(WINDOW, at=8, as_="rebuilt").derived_seq > 0
    assert session.context(WINDOW, at=8, as_="sent").derived_seq == 0


def test_a_second_rebuild_does_nothing_until_the_log_has_grown(
    store: SessionStore, session: Session
) -> None:
    append_turns(session, 6)
    (first,) = store.rebuild(WINDOW)
    (second,) = store.rebuild(WINDOW)
    append_turns(session, 4, first=7)
    (third,) = store.rebuild(WINDOW)

    assert (first.compactions, first.there_before, first.events) == (2, 0, 12)
    assert (second.compactions, second.there_before) == (0, 2)
    assert (third.compactions, third.there_before) == (2, 2)
    grown = derived_events(session, WINDOW)
    whole = store.session(user_id="ada", session_id="whole")
    append_turns(whole, 10)
    rebuild(store, WINDOW, session_id="whole")
    assert derived_events(whole, WINDOW) == grown


@pytest.mark.timeout(600)
@pytest.mark.each_engine
def test_a_rebuild_killed_at_any_statement_loses_and_repeats_nothing(
    store_url: str, tmp_path: Path
) -> None:
    spec = "turn_window:full_turns=1,cached_turns=1,session_memory_tokens=150"
    with open_at(store_url, tmp_path) as store:
        append_turns(store.session(user_id="ada", session_id="s"), 5)
        append_turns(store.session(user_id="ada", session_id="whole"), 5)
        rebuild(store, _parsed(spec), session_id="whole")
        expected = derived_events(
            store.session(user_id="ada", session_id="whole"), _parsed(spec)
        )
        assert any(record["absorbs"] for record in expected)

    lines = 150
    deaths = 0
    while _rebuild_is_killed(store_url, spec, lines):
        deaths += 1
        lines = 150 + 260 * deaths
        with open_at(store_url, tmp_path) as store:
            summaries = derived_events(
                store.session(user_id="ada", session_id="s"), _parsed(spec)
            )
            assert summaries == expected[: len(summaries)]

    assert deaths >= 4
    with open_at(store_url, tmp_path) as store:
        session = store.session(user_id="ada", session_id="s")
        assert derived_events(session, _parsed(spec)) == expected
        assert problems_of(store.verify()) == []


def _parsed(spec: str) -> Strategy:
    from refold.projections.context.strategies import spec as specs

    return specs.parse(spec)


def _rebuild_is_killed(url: str, spec: str, lines: int) -> bool:
    """Rebuild in a process that dies after that many lines; return whether it died."""
    process = warm.module("tests.support.rebuilder", url, spec, lines)
    output = process.communicate()
    assert process.returncode in (0, -9), output
    return process.returncode == -9


class Rival:
    """A summarizer so slow that another rebuild finishes first, once."""

    def __init__(self, other: Callable[[], object]) -> None:
        self.other: Callable[[], object] | None = other
        self.costs = False

    def summarise(self, source: Source, *, target_tokens: int) -> Written:
        if other := self.other:
            self.other = None
            other()
        return Abridged().summarise(source, target_tokens=target_tokens)


def test_two_concurrent_rebuilds_write_each_summary_once(
    store: SessionStore, session: Session
) -> None:
    append_turns(session, 9)
    rival = Rival(lambda: rebuild(store, WINDOW))

    rebuild(store, WINDOW, summarizer=rival)

    spans = [
        (summary["first_seq"], summary["last_seq"])
        for summary in derived_events(session, WINDOW)
    ]
    assert spans == sorted(set(spans))
    assert session.verify().problems == []


class Fails:
    """A summarizer that fails a number of times, then works."""

    costs = False

    def __init__(self, times: int) -> None:
        self.times = times
        self.asked = 0

    def summarise(self, source: Source, *, target_tokens: int) -> Written:
        self.asked += 1
        if self.asked <= self.times:
            raise RuntimeError("secret words of the session")
        return Abridged().summarise(source, target_tokens=target_tokens)


def test_failures_and_cooldowns_use_the_time_of_the_events(
    store: SessionStore, session: Session
) -> None:
    append_turns(session, 8)

    (done,) = store.rebuild(WINDOW, summarizer=Fails(2))

    entries = session.history.derived(WINDOW.fingerprint)
    decisions = [
        (entry.type, (entry.ts - START).total_seconds(), _decision_of(entry))
        for entry in entries
    ]
    # Turn 4 ends at 245 s.  After a failure nothing is tried for 30 s, then for 60 s.
    assert decisions[:3] == [
        ("compaction", 245.0, 8),
        ("compaction", 300.0, 9),
        ("summary", 360.0, 11),
    ]
    assert done.failures == 2
    assert "secret" not in str([entry.payload for entry in entries])


def _decision_of(entry: Envelope) -> object:
    assert isinstance(entry.payload, Summary | CompactionNote)
    return entry.payload.decided_at_seq


def test_strict_stops_and_the_next_run_retries_the_same_step(
    store: SessionStore, session: Session
) -> None:
    append_turns(session, 8)

    with pytest.raises(
        refold.errors.SummarizerFailed, match="session 's-1' at seq 8"
    ) as no:
        list(store.rebuild(WINDOW, summarizer=Fails(1), strict=True))

    assert "secret" not in str(no.value)
    assert derived_events(session, WINDOW) == []
    rebuild(store, WINDOW)
    other = store.session(user_id="ada", session_id="other")
    append_turns(other, 8)
    rebuild(store, WINDOW, session_id="other")
    assert derived_events(session, WINDOW) == derived_events(other, WINDOW)


def test_only_one_process_at_a_time_calls_a_paid_summarizer(
    store: SessionStore, session: Session
) -> None:
    append_turns(session, 8)
    concurrent: list[Rebuilt] = []

    class PaidSummarizer(Fails):
        costs = True

        def summarise(self, source: Source, *, target_tokens: int) -> Written:
            if not concurrent:
                concurrent.extend(store.rebuild(WINDOW, summarizer=PaidSummarizer(0)))
            return super().summarise(source, target_tokens=target_tokens)

    (done,) = store.rebuild(WINDOW, summarizer=PaidSummarizer(0))

    assert done.compactions > 0
    assert (concurrent[0].compactions, "another process" in concurrent[0].problem) == (
        0,
        True,
    )


def test_concurrent_rebuilds_equal_sequential_ones(
    store: SessionStore, threads: Executor
) -> None:
    for name in ("a", "b", "c", "d"):
        append_turns(store.session(user_id="ada", session_id=name), 7)
        append_turns(store.session(user_id="bob", session_id=name), 7)
    progress: dict[tuple[str, str], int] = {}

    done = list(
        store.rebuild(
            WINDOW,
            executor=threads,
            progress=lambda info, n: progress.update(
                {(info.user_id, info.session_id): n}
            ),
        )
    )

    assert sorted((result.user_id, result.session_id) for result in done) == sorted(
        progress
    )
    assert set(progress.values()) == {14}
    outputs = {
        str(derived_events(store.session(user_id=key[0], session_id=key[1]), WINDOW))
        for key in progress
    }
    assert len(outputs) == 1
    assert all(result.compactions == 2 for result in done)


def test_only_the_named_sessions_are_rebuilt(store: SessionStore) -> None:
    for user in ("ada", "bob"):
        for name in ("a", "b"):
            append_turns(store.session(user_id=user, session_id=name), 6)

    done = [
        [
            (result.user_id, result.session_id)
            for result in store.rebuild(WINDOW, user_id=user, session_id=name)
        ]
        for user, name in [("ada", None), (None, "b"), ("bob", "a")]
    ]

    assert done == [
        [("ada", "a"), ("ada", "b")],
        [("ada", "b"), ("bob", "b")],
        [("bob", "a")],
    ]


def test_a_failure_ends_concurrent_rebuilds(
    store: SessionStore, threads: Executor
) -> None:
    for name in "abcdef":
        append_turns(store.session(user_id="ada", session_id=name), 8)

    fails = Fails(99)
    with pytest.raises(refold.errors.SummarizerFailed):
        list(store.rebuild(WINDOW, summarizer=fails, strict=True, executor=threads))

    assert all(
        not derived_events(store.session(user_id="ada", session_id=name), WINDOW)
        for name in "abcdef"
    )


def test_the_rebuild_of_a_fork_begins_at_its_origin(
    store: SessionStore, session: Session
) -> None:
    append_turns(session, 8)
    child = session.fork(10, session_id="child")
    append_turns(child, 3, first=20)

    (done,) = store.rebuild(WINDOW, user_id="ada", session_id="child")

    records = derived_events(child, WINDOW)
    assert done.events == 7
    assert records[0]["first_seq"] == -9
    assert all(record["decided_at_seq"] >= 1 for record in records)  # type: ignore[operator]  # a seq
    assert child.verify().problems == []


def test_a_closed_session_can_be_rebuilt(store: SessionStore, session: Session) -> None:
    append_turns(session, 8)
    session.end()

    assert rebuild(store, WINDOW) == 3


def test_a_dry_run_counts_pending_work_and_writes_nothing(
    store: SessionStore, session: Session
) -> None:
    append_turns(session, 8)

    (would,) = store.rebuild(WINDOW, dry_run=True)

    assert session.history.streams() == ["main"]
    assert store.log.view_names("ada", "s-1") == []
    (done,) = store.rebuild(WINDOW)
    assert (would.compactions, would.tokens_in) == (done.compactions, done.tokens_in)
    assert would.tokens_out >= done.tokens_out > 0


def test_the_outline_is_stored_so_that_the_next_context_reads_little(
    store: SessionStore, session: Session
) -> None:
    append_turns(session, 8)

    rebuild(store, WINDOW)

    stored = store.log.load_view(session.stream, WINDOW.fingerprint)
    assert stored is not None
    assert (stored.through_seq, stored.derived_seq) == (16, 3)
    view = session.context(WINDOW)
    store.log.drop_views("ada", "s-1")
    assert session.context(WINDOW) == view


def test_a_summary_names_its_decision_and_its_time(
    store: SessionStore, session: Session
) -> None:
    append_turns(session, 6)

    rebuild(store, WINDOW)

    first = session.history.derived(WINDOW.fingerprint)[0]
    assert first.ts == START + timedelta(minutes=4, seconds=5)
    rebuilt_at = first.meta.model_dump()["rebuilt_at"]
    assert datetime.fromisoformat(rebuilt_at) > datetime(2026, 1, 2, tzinfo=UTC)


def test_a_model_gets_the_prompt_of_the_strategy(store: SessionStore) -> None:
    requested: list[object] = []

    class RecordingSummarizers(Abridged):
        def for_strategy(self, *, prompt: str | None, model: str | None) -> Abridged:
            requested.append((prompt, model))
            return Abridged()

    list(
        store.rebuild(
            parse("history_summary:prompt='In short?'"),
            summarizer=RecordingSummarizers(),
        )
    )

    assert requested == [("In short?", None)]
    with pytest.raises(refold.InvalidConfiguration, match="empty prompt"):
        list(
            store.rebuild(
                parse("history_summary:prompt=''"), summarizer=RecordingSummarizers()
            )
        )
