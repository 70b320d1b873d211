"""Laws of every session under every strategy."""

from __future__ import annotations

from functools import partial
from itertools import chain, pairwise
from typing import NamedTuple

import orjson
import pytest
from hypothesis import strategies as st

from refold.domain.envelope import Envelope
from refold.domain.events import HumanReview, ToolCall, ToolResult, UserInput
from refold.projections.context.outline import Outline, fold_derived
from refold.projections.context.render import render
from refold.projections.context.strategies.keep_all import KeepAll
from refold.projections.context.strategies.spec import parse
from refold.projections.context.strategies.turn_window import TurnWindow
from refold.projections.context.strategy import Strategy
from refold.projections.context.text import own_words, violations
from refold.projections.context.units import holds, joined, place
from tests.projections.laws import under
from tests.projections.logs import log_of, logs, pages
from tests.projections.walk import Walk, grows, texts

SMALL = TurnWindow(full_turns=1, cached_turns=1, summary_tokens=40)
FOLDING = TurnWindow(
    full_turns=2, cached_turns=2, summary_tokens=60, session_memory_tokens=90
)
_NOTES = (
    "{0}.max_lines=3,{0}.compression_target=2,{0}.num_recent_memories_to_keep=1,"
    "{0}.compression_prompt='Shorten.',{0}.tool='bash'"
)
COMPACTING = {
    "small": SMALL,
    "folding": FOLDING,
    "layers": parse(
        "turn_window:full_turns=1,cached_turns=2,summary_tokens=40,layers.user=true,"
        "layers.scope=true,layers.scope_tokens=60," + _NOTES.format("layers.notes")
    ),
    "memories": parse(
        "history_summary:trigger_on_history_size_chars=300,"
        "history_tail_size_chars_to_exclude=80," + _NOTES.format("memories")
    ),
    **{
        spec.partition(",")[0]: parse(spec)
        for spec in (
            "message_window:context_size=8,tail_keep_size=4,compression_window_size=3",
            "hybrid:threshold_low=60,threshold_high=120,last_n_events=4,every=2",
            "recursive_summary:every=2,keep_last=2,summary_tokens=40,folded_tokens=60",
            "history_summary:trigger_on_history_size_chars=200,"
            "history_tail_size_chars_to_exclude=80",
            "token_ratio:max_context_tokens=200,keep_recent_turns=1",
            "tool_clearing:trigger_tool_uses=2,keep=1+turn_window:"
            "full_turns=1,cached_turns=1",
            "tool_clearing:trigger_input_tokens=80,keep=1+message_window:"
            "context_size=8,tail_keep_size=4,compression_window_size=3",
        )
    },
}
NAMES = {
    "keep_all": KeepAll(),
    **COMPACTING,
    "last_turns": parse("last_turns:n=2"),
    "token_budget": parse("token_budget:max_tokens=120"),
    "clearing": parse("tool_clearing:trigger_tool_uses=2,keep=1"),
    "native": parse("native"),
}
every = partial(under, NAMES, examples=5)
compacting = partial(under, COMPACTING, examples=5)


@every(events=logs())
def test_messages_are_valid_after_every_event(
    strategy: Strategy, events: list[Envelope]
) -> None:
    walk = Walk(strategy)

    for event in events:
        walk.step(event)
        view = walk.view()

        assert not view.messages or violations(view.messages, view.system) == []


@every(events=logs())
def test_a_view_always_has_the_newest_user_input(
    strategy: Strategy, events: list[Envelope]
) -> None:
    walk = Walk(strategy)

    for event in events:
        walk.step(event)
        newest = [e.payload for e in walk.events if isinstance(e.payload, UserInput)]

        if newest and newest[-1].text.strip():
            assert newest[-1].text in texts(walk.view())


@every(events=logs())
def test_between_compactions_views_only_grow_at_their_end(
    strategy: Strategy, events: list[Envelope]
) -> None:
    if not strategy.stable_prefix:
        return
    sent = Walk(strategy, sends=True).go(events).sent

    for (before, earlier), (after, later) in pairwise(sent):
        assert before != after or grows(earlier, later)


@every(events=logs(), size=st.integers(1, 50))
def test_folding_in_pages_equals_folding_at_once(
    strategy: Strategy, events: list[Envelope], size: int
) -> None:
    walk = Walk(strategy).go(events)
    at_once = strategy.read(strategy.begin(), events)
    paged = strategy.begin()

    for recorded in walk.derived:
        at_once = fold_derived(at_once, recorded)
    for page in pages(events, size):
        paged = Outline.load(strategy.read(paged, page).dump())
    for recorded in walk.derived:
        paged = Outline.load(fold_derived(paged, recorded).dump())

    assert walk.outline == at_once == paged


@compacting(events=logs())
def test_summaries_may_be_folded_late(
    strategy: Strategy, events: list[Envelope]
) -> None:
    walk = Walk(strategy)
    whole = strategy.begin()

    for event in events:
        walk.step(event)
        whole = strategy.fold(whole, event)
        late = whole
        for recorded in walk.derived:
            late = fold_derived(late, recorded)

        assert late == walk.outline


@every(events=logs(max_size=60))
def test_the_outline_survives_storing_and_stays_small(
    strategy: Strategy, events: list[Envelope]
) -> None:
    walk = Walk(strategy)

    for event in events:
        walk.step(event)
        stored = orjson.dumps(walk.outline.dump())

        assert len(stored) <= 4096
        assert Outline.load(orjson.loads(stored)) == walk.outline


@every(events=logs())
def test_the_outline_names_all_events_of_the_view(
    strategy: Strategy, events: list[Envelope]
) -> None:
    walk = Walk(strategy).go(events)
    outline = strategy.as_shown(walk.outline)
    reads = outline.reads(strategy.show(outline).raw)
    live = outline.shown_summaries
    named = [e for e in events if any(a <= e.seq <= b for a, b in reads)]
    summaries = [e for e in walk.derived if e.seq in live]

    view = render(strategy, walk.outline, named, summaries=summaries)

    assert view == walk.view()


@compacting(events=logs(max_size=60))
def test_a_cut_separates_no_call_from_its_result_unless_both_stay_raw(
    strategy: Strategy, events: list[Envelope]
) -> None:
    for step in Walk(strategy).go(events).compactions:
        cut = step.compaction
        if cut.absorbs or cut.kind != "session":
            continue
        stays_raw = joined(chain(*fold_derived(step.before, step.recorded).kept))
        for seq, partner in _pairs(strategy, events[: cut.decided_at_seq]):
            if seq >= cut.first_seq:
                is_separated = (seq <= cut.last_seq) != (partner <= cut.last_seq)
                is_raw = holds(stays_raw, seq) and holds(stays_raw, partner)
                assert not is_separated or is_raw


def _pairs(strategy: Strategy, events: list[Envelope]) -> list[tuple[int, int]]:
    """Calls with their results, and questions with their decisions, that are not late.

    An answer is late if another response began before it, or after too many turns.
    """
    thread = strategy.begin().thread
    asked: dict[object, Asked] = {}
    pairs = []
    for event in events:
        answered: object = None
        match event.payload:
            case ToolResult(call_id=call_id):
                answered = call_id
            case HumanReview(refers_to=int(seq)):
                answered = seq
        opened = asked.pop(answered, None)
        thread, _ = place(thread, event)
        match event.payload:
            case ToolCall(call_id=call_id):
                asked[call_id] = Asked(event.seq, thread.response, thread.begun_turn)
            case HumanReview(decision=None):
                asked[event.seq] = Asked(event.seq, thread.response, thread.begun_turn)
        if opened and opened.response == thread.response and thread.waits(opened.turn):
            pairs.append((opened.seq, event.seq))
    return pairs


class Asked(NamedTuple):
    """A call or a question, with its response and its turn."""

    seq: int
    response: int | None
    turn: int


@compacting(events=logs(max_size=60))
def test_open_exchanges_stay_raw_at_a_compaction(
    strategy: Strategy, events: list[Envelope]
) -> None:
    for step in Walk(strategy).go(events).compactions:
        waiting = _open(strategy, events[: step.compaction.decided_at_seq])
        outline = fold_derived(step.before, step.recorded)

        for seq in waiting:
            assert any(
                first <= seq <= last
                for first, last in outline.reads(strategy.show(outline).raw)
            )


def _open(strategy: Strategy, events: list[Envelope]) -> list[int]:
    """Calls and questions that nothing has answered, and that still wait."""
    turn = 0
    open_: dict[object, tuple[int, int]] = {}
    for event in events:
        match event.payload:
            case UserInput():
                turn += 1
            case ToolCall(call_id=call_id):
                open_[call_id] = (event.seq, max(turn, 1))
            case ToolResult(call_id=call_id):
                del open_[call_id]
            case HumanReview(decision=None):
                open_[event.seq] = (event.seq, max(turn, 1))
            case HumanReview(refers_to=int(seq)):
                open_.pop(seq, None)
    most = _limit(strategy)
    return [seq for seq, asked in open_.values() if turn - asked <= most]


def _limit(strategy: Strategy) -> int:
    """The turns for which calls and questions wait under this strategy."""
    limit = strategy.begin().open_calls_after
    assert limit is not None
    return limit


@compacting(events=logs(max_size=60))
def test_no_summary_has_more_words_than_its_source(
    strategy: Strategy, events: list[Envelope]
) -> None:
    for step in Walk(strategy).go(events).compactions:
        assert own_words(step.written.text) <= step.source.words


@compacting(events=logs(max_size=60))
def test_summaries_and_the_raw_part_leave_no_gap(
    strategy: Strategy, events: list[Envelope]
) -> None:
    outline = Walk(strategy).go(events).outline

    parts = [(summary.first, summary.last) for summary in outline.summaries]
    parts += [outline.raw_span] if outline.raw_span else []

    assert all(span[1] + 1 == following[0] for span, following in pairwise(parts))
    assert not parts or parts[-1][1] == len(events)


@every(events=logs())
def test_the_same_log_gives_the_same_bytes(
    strategy: Strategy, events: list[Envelope]
) -> None:
    first = Walk(strategy).go(events)
    second = Walk(strategy).go(events)

    assert first.outline.dump() == second.outline.dump()
    assert first.view().to_json() == second.view().to_json()
    assert [entry.payload for entry in first.derived] == [
        entry.payload for entry in second.derived
    ]


def test_an_event_cannot_be_folded_twice() -> None:
    (event,) = log_of(UserInput(text="hi"))
    outline = KeepAll().fold(Outline(), event)

    with pytest.raises(ValueError, match="seq 1 was folded"):
        KeepAll().fold(outline, event)
