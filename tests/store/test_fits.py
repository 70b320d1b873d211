"""A prepared request fits the model's window, or the error says why it cannot."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import refold
from refold.domain.events import Event, Summary
from refold.errors import ContextTooLarge
from refold.projections.context.text import violations
from refold.projections.tokens import tokens_of
from refold.redaction.guard import Limits
from refold.redaction.redactor import Redactor
from refold.store import Session, SessionStore
from refold.store.compactions import HeldLease
from refold.store.history import History
from refold.testing import memory_log
from tests.support.summarizing import Counting, called

COMPACTING = [
    "turn_window",
    "turn_window:full_turns=1,cached_turns=1",
    "message_window",
    "hybrid",
    "recursive_summary",
    "history_summary",
    "token_ratio:max_context_tokens=100000",
    "tool_clearing+turn_window",
]
LINE = "the quick brown fox jumps over the lazy dog and is gone. "


def new_session() -> Session:
    store = SessionStore(memory_log(), Redactor(), Limits())
    return store.session(user_id="ada", session_id="s-1")


def turn(number: int, calls: list[int], lines_of_text: int) -> Iterator[Event]:
    """An input, calls with results of as many lines, and an answer."""
    yield refold.UserInput(text=f"do {number}: {LINE * lines_of_text}")
    for place, lines in enumerate(calls):
        call = f"c{number}-{place}"
        yield refold.ToolCall(call_id=call, tool_name="bash", arguments={"n": place})
        yield refold.ToolResult(call_id=call, content=LINE * lines)
    yield refold.AgentResponse(text=f"done {number}: {LINE * lines_of_text}")


def summaries(session: Session) -> list[Summary]:
    names = [name for name in session.history.streams() if name != "main"]
    payloads = [
        entry.payload for name in names for entry in session.history.derived(name)
    ]
    return [payload for payload in payloads if isinstance(payload, Summary)]


turns = st.lists(
    st.tuples(st.lists(st.integers(0, 60), max_size=12), st.integers(0, 30)),
    min_size=1,
    max_size=8,
)


@given(turns=turns, strategy=st.sampled_from(COMPACTING), open_=st.booleans())
@settings(max_examples=40)
def test_the_next_request_always_fits_and_is_valid(
    turns: list[tuple[list[int], int]], strategy: str, open_: bool
) -> None:
    session = new_session()
    for number, (calls, lines_of_text) in enumerate(turns):
        session.append([*turn(number, calls, lines_of_text)])
        view = session.prepare(strategy, window=4_000)
        assert view.over_budget == 0
        assert view.tokens <= 4_000
        assert violations(view.messages) == []
    if open_:
        call = refold.ToolCall(call_id="late", tool_name="bash", arguments={})
        session.append([refold.UserInput(text="and now"), call])
        assert session.prepare(strategy, window=4_000).over_budget == 0
    assert session.verify().problems == []


@pytest.mark.parametrize("strategy", COMPACTING)
def test_an_unfinished_turn_is_summarized_in_parts(strategy: str) -> None:
    session = new_session()
    session.append([*turn(0, [40] * 30, 1)][:-1])

    view = session.prepare(strategy, window=6_000)

    assert view.over_budget == 0
    assert violations(view.messages) == []
    assert "do 0" in str(view.messages)
    session.append([*turn(1, [40] * 30, 1)])
    assert session.prepare(strategy, window=6_000).over_budget == 0
    assert session.prepare(strategy, window=6_000).over_budget == 0


@pytest.mark.parametrize(
    "spec",
    [
        "token_ratio:model='gpt-4',keep_recent_turns=1",
        "hybrid:model='gpt-4'",
        "tool_clearing:trigger_tool_uses=99+token_ratio:max_context_tokens=8192",
    ],
)
def test_the_window_that_a_strategy_names_applies_without_an_argument(
    spec: str,
) -> None:
    """One long turn, which the strategy itself would not summarize."""
    session = new_session()
    session.append([*turn(0, [200] * 15, 1)])
    whole = session.context("keep_all").tokens

    view = session.prepare(spec)

    assert whole > 2 * 8_192
    assert view.over_budget == 0
    assert view.tokens <= 8_192
    assert violations(view.messages) == []


def test_the_models_own_token_count_decides_whether_a_context_fits() -> None:
    session = new_session()
    for _ in range(30):
        code = refold.UserInput(text='{"k":[[1,2],{"n":{}}],"m":()}; ' * 20)
        session.append([code, refold.AgentResponse(text="done")])
    estimated = session.context("turn_window:full_turns=40").tokens
    window = int(estimated * 1.05)
    model = "claude-opus-4-7"

    view = session.prepare("turn_window:full_turns=40", window=window)
    assert tokens_of(view, model=model) > window
    view = session.prepare("turn_window:full_turns=40", window=window, model=model)

    assert tokens_of(view, model=model) <= window
    assert summaries(session)


def test_a_context_that_cannot_fit_is_refused_with_its_numbers() -> None:
    session = new_session()
    session.append([*turn(0, [60] * 30, 1)])

    with pytest.raises(ContextTooLarge, match="keep_all makes no summaries") as raised:
        session.prepare("keep_all", window=2_000)

    error = raised.value
    assert error.window == 2_000
    assert error.over == error.tokens - 2_000 > 0
    assert session.context("keep_all", window=2_000).over_budget == error.over


def test_values_from_the_caller_can_be_too_large_alone() -> None:
    session = new_session()
    session.append([*turn(0, [1], 1)])

    with pytest.raises(ContextTooLarge, match=r"prompt has about 4,0.. tokens"):
        session.prepare("turn_window", window=2_000, system="law " * 4_000)


def test_the_refusal_of_a_context_names_an_excluded_agent_as_the_reason() -> None:
    session = new_session()
    session.append([*turn(0, [60] * 30, 1)], agent="critic")
    strategy = "history_summary:exclude_agents=['critic']"

    with pytest.raises(ContextTooLarge, match="exclude_agents names the agent"):
        session.prepare(strategy, window=2_000)


def test_without_waiting_a_too_large_context_is_refused() -> None:
    session = new_session()
    session.append([*turn(0, [60] * 30, 1)])

    with pytest.raises(ContextTooLarge, match="wait=True"):
        session.prepare("turn_window", window=2_000, wait=False)
    session.upkeep.background.wait_idle()


def test_the_native_strategy_leaves_shortening_to_the_api() -> None:
    session = new_session()
    session.append([*turn(0, [60] * 30, 1)])

    assert session.prepare("native", window=2_000).over_budget > 0


class Failing:
    def summarise(self, source: Any, *, target_tokens: int) -> Any:
        raise TimeoutError


def test_a_context_fits_although_the_model_fails() -> None:
    session = new_session()
    session.append([*turn(0, [60] * 30, 1)])

    view = session.prepare("turn_window", window=4_000, summarizer=Failing())

    assert view.over_budget == 0
    assert {summary.summarizer.kind for summary in summaries(session)} == {"abridged"}


def test_catching_up_reads_the_session_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    events = History.events

    def counted_read(self: History, **options: Any) -> Any:
        for event in events(self, **options):
            read.append(event.seq)
            yield event

    monkeypatch.setattr(History, "events", counted_read)
    session = new_session()
    for number in range(40):
        session.append([*turn(number, [2], 1)])
    session.prepare("turn_window:full_turns=1,cached_turns=1")

    assert len(summaries(session)) >= 38
    assert len(read) <= 2 * session.head().seq


def test_summarizing_the_oldest_repeatedly_reads_the_session_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[int] = []
    events = History.events

    def counted_read(self: History, **options: Any) -> Any:
        for event in events(self, **options):
            read.append(event.seq)
            yield event

    session = new_session()
    session.append([*turn(0, [60] * 60, 1)])
    monkeypatch.setattr(History, "events", counted_read)
    view = session.prepare("turn_window", window=4_000)

    assert view.over_budget == 0
    assert len(summaries(session)) >= 3
    assert len(read) <= 3 * session.head().seq


def test_a_refusing_model_is_called_a_few_times_at_the_hard_limit() -> None:
    now = [1_790_000_000_000_000]
    times: list[int] = []

    class Refusing(Failing):
        def summarise(self, source: Any, *, target_tokens: int) -> Any:
            times.append(now[0])
            return super().summarise(source, target_tokens=target_tokens)

    store = SessionStore(memory_log(), Redactor(), Limits(), clock=lambda: now[0])
    session = store.session(user_id="ada", session_id="s-1")
    for number in range(160):
        now[0] += 30_000_000
        session.append(refold.UserInput(text=f"message {number}"))
        session.prepare("message_window", summarizer=Refusing())

    cooldown = 900_000_000
    assert (now[0] - times[0]) / cooldown - 1 < len(times) <= 12
    late = [time for time in times if time > times[0] + 2 * cooldown]
    assert all(b - a >= cooldown for a, b in itertools.pairwise(late))


def test_no_model_writes_a_summary_that_another_absorbs(tmp_path: Path) -> None:
    session = new_session()
    model = Counting(tmp_path / "calls")
    for number in range(60):
        session.append([*turn(number, [4], 2)])
    spec = "turn_window:full_turns=2,cached_turns=2,session_memory_tokens=1300"

    view = session.prepare(spec, summarizer=model)

    written = summaries(session)
    assert len(called(tmp_path / "calls")) == len(written) <= 12
    assert not any(summary.absorbs for summary in written)
    assert view.over_budget == 0
    assert session.verify().problems == []


def test_line_breaks_that_cost_a_model_more_than_estimated_are_counted() -> None:
    session = new_session()
    for _ in range(30):
        broken = refold.UserInput(text="a\n\n\n\n" * 60)
        session.append([broken, refold.AgentResponse(text="done")])
    spec = "turn_window:full_turns=40"
    model = "claude-opus-4-7"
    window = session.context(spec).tokens * 3

    view = session.prepare(spec, window=window, model=model)

    assert tokens_of(view, model=model) <= window
    assert summaries(session)


def test_a_context_fits_while_another_process_calls_the_model(tmp_path: Path) -> None:
    session = new_session()
    model = Counting(tmp_path / "calls")
    session.append([*turn(0, [60] * 30, 1)])
    compactor = session.strategies.compactor("turn_window")
    stream = session.stream._replace(stream=compactor.strategy.fingerprint)
    log = session.writer.log
    clock = session.writer.clock
    lease = HeldLease.take(log.leases, stream, clock=clock, sec=60)
    assert lease is not None

    with lease:
        view = session.prepare("turn_window", window=4_000, summarizer=model)

    assert view.over_budget == 0
    assert called(tmp_path / "calls") == []
