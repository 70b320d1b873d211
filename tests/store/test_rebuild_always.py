"""A rebuild gives the summaries of a strategy that had always been in use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st

import refold
from refold.domain.envelope import Draft, Envelope
from refold.domain.events import AgentResponse, Event, Final, ToolCall
from refold.projections.context.abridged import Abridged
from refold.projections.context.compaction import Source, Written
from refold.projections.context.strategies.history_summary import HistorySummary
from refold.projections.context.strategies.hybrid import Hybrid
from refold.projections.context.strategies.message_window import MessageWindow
from refold.projections.context.strategies.spec import parse
from refold.projections.context.strategies.turn_window import TurnWindow
from refold.projections.context.strategy import Strategy
from refold.projections.context.units import arrange
from refold.store import Session, SessionStore
from refold.store.compactions import Compactor
from refold.store.contexts import Viewer
from refold.store.history import History
from tests.projections.logs import START, log_of, logs
from tests.projections.walk import Walk
from tests.support.rebuilding import (
    FOLDING,
    Clock,
    clocked,
    derived_events,
    rebuild,
    view_digests,
)

STRATEGIES: dict[str, Strategy] = {
    "turn_window": TurnWindow(full_turns=1, cached_turns=1, summary_tokens=40),
    "folding": FOLDING,
    "layers": parse(
        "turn_window:full_turns=1,cached_turns=1,summary_tokens=40,layers.user=true,"
        "layers.scope=true,layers.scope_tokens=40,layers.notes={max_lines=2,"
        "compression_target=2,num_recent_memories_to_keep=1,"
        "compression_prompt='Shorten.',tool='bash'}"
    ),
    "message_window": MessageWindow(
        context_size=8,
        tail_keep_size=3,
        compression_window_size=4,
        compression_hard_limit=6,
        compression_cooldown_sec=20,
        summary_tokens=60,
        session_memory_tokens=150,
    ),
    "history_summary": HistorySummary(
        trigger_on_history_size_chars=3_000,
        trigger_on_history_size_chars_when_cache_expiring=400,
        history_tail_size_chars_to_exclude=200,
        cache_ttl_ms=20_000,
        buffer_time_before_cache_expiration_ms=5_000,
    ),
    "hybrid": Hybrid(
        threshold_low=100, threshold_high=200, trigger="idle", trigger_idle_sec=15
    ),
}
every = pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
examples = settings(max_examples=5, deadline=None)
Timed = tuple[Envelope, datetime]


@st.composite
def timed_events(draw: st.DrawFn) -> list[Timed]:
    """Generate a log with seconds, minutes or no time between its events."""
    events = draw(logs(max_size=30))
    steps = st.sampled_from([0, 1, 1, 4, 16, 90])
    at = START
    events_with_times = []
    for event in events:
        at += timedelta(seconds=draw(steps))
        events_with_times.append((event, at))
    return events_with_times


def write(session: Session, events: Sequence[Timed]) -> None:
    session.append([draft(event, at) for event, at in events])


def draft(event: Envelope, at: datetime) -> Draft:
    return Draft(event.payload, ts=at, agent=event.agent, meta=event.meta)


@dataclass
class AlwaysInUse(Walk):
    """A log under a strategy that decides at every documented moment."""

    def walk(self, events: Sequence[Envelope], until: datetime) -> list[str]:
        """Walk the whole log; return the digest of the view at every event."""
        calls = calls_before(events)
        ends = turn_ends(events)
        digests = []
        for event, following in pairwise([*events, None]):
            assert event is not None
            self.events.append(event)
            self.outline = self.strategy.fold(self.outline, event)
            is_decision_point = event.seq in ends or (
                following is not None and following.seq in calls
            )
            next_at = following.ts if following else until
            self.wait(event.ts, next_at, is_decision_point=is_decision_point)
            digests.append(self.view().digest)
        return digests

    def wait(self, now: datetime, until: datetime, *, is_decision_point: bool) -> None:
        if is_decision_point:
            self.judge(now)
        while due := self.strategy.due_at(self.outline, now):
            due = max(due, now)
            if due >= until or (is_decision_point and due == now):
                return
            self.judge(due)
            now = due
            is_decision_point = True

    def judge(self, now: datetime) -> None:
        due = self.strategy.decide(self.outline, now)
        while due:
            self.compact(due)
            due = self.strategy.further(self.outline, now)


def calls_before(events: Sequence[Envelope]) -> set[int]:
    """Return the seqs of requests, and of first events of responses without one."""
    starts = {
        exchange[0].seq
        for exchange in arrange(events)
        if isinstance(exchange[0].payload, AgentResponse | ToolCall)
    }
    shown = {event.seq for exchange in arrange(events) for event in exchange}
    requested = False
    seqs = set()
    for event in events:
        if event.type == "request":
            seqs.add(event.seq)
            requested = True
        elif event.seq in shown:
            if event.seq in starts and not requested:
                seqs.add(event.seq)
            requested = False
    return seqs


def turn_ends(events: Sequence[Envelope]) -> set[int]:
    """Return the seqs of finals, and of responses without tool calls."""
    one_call = {
        (before.seq, event.seq)
        for exchange in arrange(events)
        for before, event in pairwise(exchange)
        if event.type == "tool_call"
    }
    seqs = set()
    for event, after in pairwise([*events, None]):
        assert event is not None
        payload = event.payload
        if isinstance(payload, Final):
            seqs.add(event.seq)
        is_last_of_answer = after is None or (event.seq, after.seq) not in one_call
        if (
            isinstance(payload, AgentResponse)
            and payload.stop_reason != "tool_use"
            and is_last_of_answer
        ):
            seqs.add(event.seq)
    return seqs


@every
@given(events=timed_events())
@examples
def test_a_rebuild_equals_continuous_compaction(
    strategy: Strategy, events: list[Timed]
) -> None:
    clock = Clock()
    with refold.open("memory://") as opened:
        store = clocked(opened, clock)
        session = store.session(user_id="ada", session_id="s")
        if not events:
            return
        write(session, events)

        rebuild(store, strategy)

        always = AlwaysInUse(strategy)
        shown = always.walk(list(session.history.pages()), clock.time)
        expected = [
            {**entry.payload.payload(), "duration_ms": None, "appended_at_seq": None}
            for entry in always.derived
        ]
        assert derived_events(session, strategy) == expected
        assert view_digests(session, strategy) == shown
        # The generated requests name views that never existed.
        assert {problem.code for problem in session.verify().problems} <= {"request"}


@pytest.mark.parametrize("name", ["folding", "message_window"])
def test_a_rebuild_equals_a_live_loop(memory: SessionStore, name: str) -> None:
    strategy = STRATEGIES[name]
    clock = Clock()
    store = clocked(memory, clock)
    live = store.session(user_id="ada", session_id="live")
    later = store.session(user_id="ada", session_id="later")
    for event, at in _conversation():
        _run_timers(live, strategy, clock, at)
        if isinstance(event, AgentResponse):
            live.record_request(live.prepare(strategy))
        clock.time = at
        live.append(event)
        if isinstance(event, AgentResponse) and event.stop_reason != "tool_use":
            live.compact(strategy)
    write(later, [(event, event.ts) for event in live.history.pages()])

    rebuild(store, strategy, session_id="later")

    assert len(derived_events(live, strategy)) > 3
    assert derived_events(later, strategy) == derived_events(live, strategy)
    assert view_digests(later, strategy) == view_digests(live, strategy)


LOOPED = (
    "hybrid:threshold_low=1000,threshold_high=2000,last_n_events=12,every=4",
    "hybrid:trigger='count',trigger_count=20",
    "hybrid:trigger='event'",
    "recursive_summary:every=5,keep_last=2",
    "turn_window:full_turns=2,cached_turns=2,session_memory_tokens=300",
    "message_window:context_size=30,tail_keep_size=10,compression_window_size=6",
    "token_ratio:max_context_tokens=3000,keep_recent_turns=2",
    "history_summary:trigger_on_history_size_chars=6000,"
    "trigger_on_history_size_chars_when_cache_expiring=0,"
    "history_tail_size_chars_to_exclude=1000",
)


@pytest.mark.parametrize("after_turns", [False, True], ids=["calls", "calls and turns"])
@pytest.mark.parametrize("spec", LOOPED)
def test_a_rebuild_decides_as_a_loop_that_prepares_each_call(
    memory: SessionStore, spec: str, *, after_turns: bool
) -> None:
    clock = Clock()
    store = clocked(memory, clock)
    live = store.session(user_id="ada", session_id="live")
    for event in _turns_of_many_kinds():
        if isinstance(event, AgentResponse):
            live.record_request(live.prepare(spec))
        clock.time += timedelta(seconds=1)
        live.append(event)
        is_answer = isinstance(event, AgentResponse) and not event.stop_reason
        if after_turns and (is_answer or isinstance(event, Final)):
            live.compact(spec)

    (checked,) = store.rebuild(spec, user_id="ada", checks=True)

    assert checked.there_before > 1
    assert checked.compactions >= checked.there_before
    assert checked.problem == ""
    if after_turns:
        assert checked.compactions == checked.there_before


def test_a_check_names_the_first_decision_that_differs(memory: SessionStore) -> None:
    spec = LOOPED[3]
    session = memory.session(user_id="ada", session_id="late")
    session.append(list(_turns_of_many_kinds()))
    session.compact(spec)
    before = derived_events(session, parse(spec))

    (checked,) = memory.rebuild(spec, user_id="ada", checks=True)

    assert "a rebuild a summary of 1 to " in checked.problem
    assert derived_events(session, parse(spec)) == before


def _turns_of_many_kinds() -> Iterator[Event]:
    """Turns that end in an answer, a final, both, or neither."""
    for number in range(24):
        yield refold.UserInput(text=f"question {number} " + "why " * 30)
        if number % 4 == 0:
            yield refold.Planner(plan=f"plan {number} " + "step " * 40)
        for step in range(number % 3):
            call_id = f"c{number}.{step}"
            yield AgentResponse(stop_reason="tool_use")
            yield refold.ToolCall(call_id=call_id, tool_name="bash")
            yield refold.ToolResult(call_id=call_id, content="output " * 40)
        if number % 5:
            yield AgentResponse(text=f"answer {number} " + "because " * 30)
        if number % 2:
            yield refold.Reflection(suggestion="check it " * 10)
        if number % 3:
            yield Final(text=f"final {number} " + "done " * 20)


def _conversation() -> Iterator[tuple[Event, datetime]]:
    at = START
    for number in range(1, 13):
        at += timedelta(seconds=40 if number % 3 == 0 else 3)
        yield refold.UserInput(text=f"question {number} " + "why " * 30), at
        yield AgentResponse(stop_reason="tool_use"), at + timedelta(seconds=1)
        name = f"c{number}"
        yield refold.ToolCall(call_id=name, tool_name="bash"), at + timedelta(seconds=1)
        at += timedelta(seconds=2)
        yield refold.ToolResult(call_id=name, content="output " * 30), at
        at += timedelta(seconds=1)
        yield AgentResponse(text=f"answer {number} " + "because " * 30), at


def _run_timers(
    session: Session, strategy: Strategy, clock: Clock, until: datetime
) -> None:
    """Do a worker's work from the last event to the next."""
    log = session.writer.log
    if not log.head(session.stream).seq:
        return
    while True:
        viewer = Viewer(log, History.of(log, session.head().state))
        compactor = Compactor(session.writer, viewer, strategy, Abridged())
        due = strategy.due_at(viewer.current(strategy), clock.time)
        if due is None or max(due, clock.time) >= until:
            return
        clock.time = max(due, clock.time)
        if compactor.step() is None:
            return


@dataclass(frozen=True)
class Stops(Abridged):
    """The summarizer ``abridged``, interrupted at a summary as by Ctrl-C."""

    left: list[None] = field(default_factory=list)

    def summarise(self, source: Source, *, target_tokens: int) -> Written:
        if not self.left:
            raise KeyboardInterrupt
        self.left.pop()
        return Abridged.summarise(self, source, target_tokens=target_tokens)


@every
@given(events=timed_events(), stops=st.lists(st.integers(0, 3), max_size=4))
@examples
def test_an_interrupted_rebuild_resumes_where_it_stopped(
    strategy: Strategy, events: list[Timed], stops: list[int]
) -> None:
    with refold.open("memory://") as opened:
        store = clocked(opened, Clock())
        whole = store.session(user_id="ada", session_id="whole")
        parts = store.session(user_id="ada", session_id="parts")
        if not events:
            return
        write(whole, events)
        write(parts, events)
        for at in stops:
            try:
                stops_there = Stops(left=[None] * at)
                rebuild(store, strategy, "parts", summarizer=stops_there)
            except KeyboardInterrupt:
                continue
        rebuild(store, strategy)

        assert derived_events(parts, strategy) == derived_events(whole, strategy)
        shown, expected = (view_digests(s, strategy, step=7) for s in (parts, whole))
        assert shown == expected


def test_the_log_of_these_tests_covers_every_decision() -> None:
    events = log_of(
        refold.UserInput(text="go"),
        refold.AgentResponse(text="let me see"),
        refold.ToolCall(call_id="c", tool_name="bash"),
        refold.ToolResult(call_id="c", content="done"),
        refold.AgentResponse(text="it is done"),
        refold.Final(text="it is done"),
    )

    assert calls_before(events) == {2, 5}
    assert turn_ends(events) == {5, 6}
