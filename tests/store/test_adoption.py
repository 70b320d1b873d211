"""A strategy that is new to a session adopts summaries; a rebuild writes its own."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import assume, given, settings, strategies as st

import refold
from refold.domain.envelope import Draft, Envelope
from refold.domain.errors import SummarizerFailed
from refold.domain.events import Adopted, SummarizerRef, Summary
from refold.projections.context.compaction import Source, Written
from refold.projections.context.outline import is_rebuild
from refold.projections.context.strategies.spec import parse
from refold.projections.context.strategy import Strategy
from refold.projections.context.text import violations
from refold.projections.context.units import Thread, place
from refold.redaction.guard import Limits
from refold.redaction.redactor import Redactor
from refold.store import Session, SessionStore
from refold.store.appends import Order
from refold.testing import memory_log
from tests.projections.logs import START, logs
from tests.projections.walk import STARTS, grows
from tests.support.rebuilding import (
    Clock,
    append_turns,
    clocked,
    derived_events,
    rebuild,
    view_digests,
)
from tests.support.redacting import MAIL, aware, unaware
from tests.support.stores import prepare
from tests.support.summarizing import Counting, called

# The strategy that runs, and the one of a single request: they never cut at the same
# event.
PAIRS: dict[str, tuple[str, str]] = {
    "turn_window": (
        "turn_window:full_turns=1,cached_turns=1,session_memory_tokens=300",
        "turn_window:full_turns=4,cached_turns=3",
    ),
    "history_summary": (
        "history_summary:trigger_on_history_size_chars=1000,"
        "history_tail_size_chars_to_exclude=300",
        "history_summary:trigger_on_history_size_chars=2000,"
        "history_tail_size_chars_to_exclude=500",
    ),
    "hybrid": (
        "hybrid:threshold_low=100,threshold_high=200",
        "hybrid:threshold_low=150,threshold_high=300",
    ),
    "recursive_summary": ("recursive_summary:every=2", "recursive_summary:every=3"),
    "message_window": (
        "message_window:context_size=8,tail_keep_size=3,compression_window_size=4,"
        "compression_hard_limit=6,compression_cooldown_sec=1000000000",
        "message_window:context_size=10,tail_keep_size=4,compression_window_size=4,"
        "compression_hard_limit=6,compression_cooldown_sec=1000000000",
    ),
    "pipeline": (
        "tool_clearing+turn_window:full_turns=1,cached_turns=1",
        "tool_clearing+turn_window:full_turns=3,cached_turns=2",
    ),
    "for_agent": (
        'for_agent:agent="main",strategy="turn_window:full_turns=1,cached_turns=1"',
        'for_agent:agent="main",strategy="turn_window:full_turns=3,cached_turns=2"',
    ),
}
USUAL, ONCE = (parse(spec) for spec in PAIRS["turn_window"])
every = pytest.mark.parametrize(("usual", "once"), PAIRS.values(), ids=PAIRS)


class Known(Counting):
    """A summarizer that recognizes its own summaries."""

    def wrote(self, by: SummarizerRef) -> bool:
        return by == SummarizerRef(kind="counting")


def run_loop(session: Session, strategy: str | Strategy, turns: int = 12) -> None:
    """Record turns, and prepare a request after each, which compacts."""
    for number in range(turns):
        append_turns(session, 1, first=number)
        session.prepare(strategy)


def summaries(session: Session, strategy: Strategy) -> list[Summary]:
    entries = [event.payload for event in session.history.derived(strategy.fingerprint)]
    return [entry for entry in entries if isinstance(entry, Summary)]


@every
def test_one_request_under_other_parameters_calls_no_model(
    empty_session: Session, calls: Path, usual: str, once: str
) -> None:
    session = empty_session
    model = Known(calls)
    other = parse(once)
    for number in range(60):
        append_turns(session, 1, first=number)
        session.prepare(usual, summarizer=model)
    paid = len(called(calls))
    raw = len(session.context(other).messages)

    view = session.prepare(other, summarizer=model)

    assert len(called(calls)) == paid
    assert len(view.messages) <= raw
    assert summaries(session, other)
    assert all(summary.adopted for summary in summaries(session, other))
    assert violations(view.messages) == []
    assert session.verify().problems == []


def test_a_request_with_other_parameters_adopts_most_of_120_messages(
    empty_session: Session,
) -> None:
    run_loop(empty_session, USUAL, turns=60)
    assert len(empty_session.context(ONCE).messages) == 120

    view = empty_session.prepare(ONCE)

    assert len(view.messages) <= 14
    written = empty_session.history.derived(USUAL.fingerprint)
    for summary in summaries(empty_session, ONCE):
        assert summary.adopted is not None
        assert summary.adopted.stream == USUAL.fingerprint
        origin = written[summary.adopted.seq - 1].payload
        assert isinstance(origin, Summary)
        assert (summary.text, summary.source_digest) == (
            origin.text,
            origin.source_digest,
        )
        assert (summary.usage, summary.duration_ms) == (None, None)


def test_a_context_adopts_nothing(empty_session: Session) -> None:
    run_loop(empty_session, USUAL)

    empty_session.context(ONCE)

    assert empty_session.history.derived(ONCE.fingerprint) == []


@pytest.mark.parametrize(
    "other",
    [
        "history_summary:trigger_on_history_size_chars=1000,summary_version=4",
        "history_summary:trigger_on_history_size_chars=1000,abridged.total_chars=900",
        'for_agent:agent="main",strategy="history_summary:'
        'trigger_on_history_size_chars=1000"',
        "turn_window:full_turns=1,cached_turns=1",
    ],
)
def test_summaries_written_under_other_settings_are_not_adopted(
    empty_session: Session, other: str
) -> None:
    run_loop(empty_session, "history_summary:trigger_on_history_size_chars=1500")

    empty_session.prepare(other)

    assert [
        summary.adopted
        for summary in summaries(empty_session, parse(other))
        if summary.adopted
    ] == []


def test_a_model_does_not_adopt_a_summary_of_another_summarizer(
    empty_session: Session, calls: Path
) -> None:
    run_loop(empty_session, USUAL)

    empty_session.prepare(ONCE, summarizer=Known(calls))

    assert called(calls)
    assert not any(summary.adopted for summary in summaries(empty_session, ONCE))


def test_retired_summaries_are_not_adopted(empty_session: Session) -> None:
    run_loop(empty_session, USUAL)
    empty_session.strategies.retire(USUAL.fingerprint)

    empty_session.prepare(ONCE)

    assert not any(summary.adopted for summary in summaries(empty_session, ONCE))


def test_a_stream_with_its_own_summaries_adopts_none(
    empty_session: Session,
) -> None:
    run_loop(empty_session, ONCE)
    first = summaries(empty_session, ONCE)
    empty_session.prepare(USUAL)
    append_turns(empty_session, 12, first=12)

    empty_session.prepare(USUAL)
    empty_session.prepare(ONCE)

    assert first
    assert not any(summary.adopted for summary in summaries(empty_session, ONCE))


@given(
    events=logs(max_size=60),
    pair=st.sampled_from(list(PAIRS.values())),
    request_seqs=st.sets(st.integers(2, 60), min_size=8),
)
@settings(max_examples=40)
def test_requests_at_any_event_are_valid_and_only_grow(
    events: list[Envelope], pair: tuple[str, str], request_seqs: set[int]
) -> None:
    usual, once = (parse(spec) for spec in pair)
    store = SessionStore(memory_log(), Redactor(), Limits())
    session = store.session(user_id="ada", session_id="s")
    views = []
    thread = Thread()
    for event in events:
        thread, placed = place(thread, event)
        calls = placed and placed.exchange == event.seq and placed.kind in STARTS
        if calls and event.seq > 1 and event.seq in request_seqs:
            views.append(session.prepare(once))
        session.append([Draft(event.payload, agent=event.agent)])
        session.prepare(usual)

    shown = [view.messages for view in views if view.messages]
    assert [violations(messages) for messages in shown] == [[] for _ in shown]
    pairs = pairwise(views) if once.stable_prefix else ()
    for earlier, later in pairs:
        cut = any(span.kind == "stub" for span in (*earlier.spans, *later.spans))
        assert cut or earlier.derived_seq != later.derived_seq or grows(earlier, later)
    assert {problem.code for problem in session.verify().problems} <= {"request"}


@given(events=logs(max_size=60), pair=st.sampled_from(list(PAIRS.values())))
@settings(max_examples=15)
def test_a_rebuild_is_the_same_as_without_adoption(
    events: list[Envelope], pair: tuple[str, str]
) -> None:
    usual, once = (parse(spec) for spec in pair)
    assume(events)
    with refold.open("memory://") as opened:
        store = clocked(opened, Clock())
        session = store.session(user_id="ada", session_id="s")
        alone = store.session(user_id="ada", session_id="alone")
        for event in events:
            draft = Draft(event.payload, ts=event.ts, agent=event.agent)
            session.append([draft])
            alone.append([draft])
            session.prepare(usual)
        session.prepare(once)
        assume(any(summary.adopted for summary in summaries(session, once)))

        rebuild(store, once)

        shown = session.context(once).digest
        assert shown == alone.context(once).digest
        seen = [view_digests(each, once, step=4) for each in (session, alone)]
        assert seen[0] == seen[1]
        assert rebuild(store, once) == 0
        # The generated requests name views that never existed.
        assert {problem.code for problem in session.verify().problems} <= {"request"}


def test_a_rebuild_starts_over_and_completes_all_compactions(
    store: SessionStore, session: Session
) -> None:
    run_loop(session, USUAL, turns=30)
    adopted = session.prepare(ONCE)
    sent = session.record_request(adopted).last_seq
    (planned,) = store.rebuild(ONCE, dry_run=True)
    before = session.history.derived(ONCE.fingerprint)

    (done,) = store.rebuild(ONCE)

    (note, *new) = session.history.derived(ONCE.fingerprint)[len(before) :]
    assert is_rebuild(note)
    assert planned.compactions == done.compactions == len(new) > 0
    assert done.there_before == len(before)
    assert not any(entry.payload.payload().get("adopted") for entry in new)
    assert session.compact(ONCE) is None
    rebuilt = session.prepare(ONCE)
    session.record_request(rebuilt)
    assert rebuilt.derived_seq == note.seq + len(new)
    assert len(rebuilt.messages) < 20
    assert session.context(ONCE, at=sent).digest == adopted.digest
    assert [view for _, view in session.proofs.replay()] == [adopted, rebuilt]
    assert (session.proofs.rerun().requests, session.proofs.rerun().same) == (2, 2)
    assert session.verify().problems == []


@pytest.mark.parametrize("usual", [None, USUAL], ids=["nothing", "adopted"])
def test_a_request_and_then_a_rebuild_complete_all_compactions(
    memory: SessionStore, empty_session: Session, usual: Strategy | None
) -> None:
    run_loop(empty_session, usual or "keep_all", turns=60)
    empty_session.prepare(ONCE)

    rebuild(memory, ONCE)

    assert empty_session.compact(ONCE) is None
    assert len(empty_session.context(ONCE).messages) < 20


def test_a_rebuild_interrupted_at_its_start_resumes(
    store: SessionStore, session: Session
) -> None:
    class FailingSummarizer:
        costs = False

        def summarise(self, source: Source, *, target_tokens: int) -> Written:
            raise SummarizerFailed("not today")

    run_loop(session, USUAL, turns=20)
    session.prepare(ONCE)
    with pytest.raises(SummarizerFailed):
        list(store.rebuild(ONCE, summarizer=FailingSummarizer(), strict=True))
    assert len(session.context(ONCE).messages) == 40
    assert session.verify().problems == []

    assert rebuild(store, ONCE) > 0

    alone = store.session(user_id="ada", session_id="alone")
    append_turns(alone, 20, first=0)
    rebuild(store, ONCE, session_id="alone")
    assert session.context(ONCE).digest == alone.context(ONCE).digest
    assert len(summaries(session, ONCE)) > len(derived_events(alone, ONCE)) > 0


@pytest.mark.parametrize(
    "change",
    [
        {"last_seq": 4},
        {"source_digest": "0" * 64},
        {"summarizer": SummarizerRef(kind="another")},
        {"strategy": {"version": 99}},
        {"adopted": Adopted(stream="f" * 64, seq=1)},
        {"adopted": {"seq": 99}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_verify_reports_an_adoption_with_wrong_sources(
    empty_session: Session, change: dict[str, object]
) -> None:
    run_loop(empty_session, USUAL)
    empty_session.prepare(ONCE)
    good = summaries(empty_session, ONCE)[-1]
    update = {
        name: getattr(good, name).model_copy(update=value)
        if isinstance(value, dict)
        else value
        for name, value in change.items()
    }
    forged = good.model_copy(update={"absorbs": (), **update})
    stream = empty_session.stream._replace(stream="e" * 64)
    assert empty_session.verify().problems == []

    empty_session.writer.append(Order(stream, (Draft(forged),), expected_seq=0))

    (problem,) = empty_session.verify().problems
    assert (problem.stream, problem.code) == (stream.stream, "source")


def test_adopted_summaries_are_redacted_again(store_url: str, tmp_path: Path) -> None:
    url = prepare(store_url, tmp_path)
    with refold.open(url, redactor=unaware()) as before:
        session = before.session(user_id="ada", session_id="s-1")
        for text in (f"write to {MAIL}", "now"):
            session.append(refold.UserInput(text=text), ts=START)
            session.append(refold.AgentResponse(text=f"I wrote to {MAIL}"), ts=START)
        run_loop(session, "turn_window:full_turns=1,cached_turns=1")
        session.record_request(session.prepare(ONCE))
        assert MAIL in summaries(session, ONCE)[0].text

    with refold.open(url, redactor=aware()) as after:
        list(after.reredact())
        session = after.session(user_id="ada", session_id="s-1")
        entries = [
            entry
            for name in session.history.streams()[1:]
            for entry in session.history.derived(name)
        ]
        explained = session.why(ONCE)

        assert MAIL not in str([entry.to_json() for entry in entries])
        assert session.verify().problems == []
        sources = [record.source for record in explained.records]
        assert set(sources) == {"holds", "superseded"}
        append_turns(session, 6, first=20)
        fresh = "turn_window:full_turns=2,cached_turns=3"
        session.prepare(fresh)
        # A summary that no longer follows from its source is not adopted.
        firsts = [
            summary.first_seq
            for summary in summaries(session, parse(fresh))
            if summary.adopted
        ]
        assert 1 not in firsts


def test_a_truncated_text_is_adopted_in_full() -> None:
    store = SessionStore(memory_log(), Redactor(), Limits(1_024, 65_536))
    session = store.session(user_id="ada", session_id="s")
    wide = "history_summary:trigger_on_history_size_chars="
    usual = parse(f"{wide}9000")
    once = parse(f"{wide}12000")
    run_loop(session, usual, turns=40)

    session.prepare(once)

    (own,) = summaries(session, once)
    assert own.adopted is not None
    origin = summaries(session, usual)[own.adopted.seq - 1]
    assert "bytes left out here" in origin.abridged
    assert own.abridged == origin.abridged
    assert session.verify().problems == []
