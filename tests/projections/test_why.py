"""Every event of a log is shown by one part of a context, or left out with a reason."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from functools import partial

from refold.domain.envelope import Envelope
from refold.domain.events import (
    AgentResponse,
    Event,
    Final,
    HumanReview,
    Pin,
    StateUpdate,
    SummarizerRef,
    SystemPrompt,
    UserInput,
)
from refold.projections.context.compaction import Source, Written
from refold.projections.context.strategies import spec
from refold.projections.context.strategy import Strategy
from refold.projections.context.why import (
    Part,
    Unshown,
    ask_again,
    nodes_of,
    parts_of,
    source_events,
    unshown,
    with_absorbed,
)
from tests.projections.laws import under
from tests.projections.logs import START, call, log_of, logs, result, turns
from tests.projections.walk import Walk

SPECS = (
    "keep_all",
    "turn_window:full_turns=1,cached_turns=1,summary_tokens=40",
    "turn_window:full_turns=2,cached_turns=2,summary_tokens=60,"
    "session_memory_tokens=90,pin_tokens=30",
    "last_turns:n=2",
    "token_budget:max_tokens=120",
    "recursive_summary:every=2,keep_last=2",
    "message_window:context_size=8,tail_keep_size=4,compression_window_size=3",
    "hybrid:threshold_low=60,threshold_high=160,last_n_events=3,keep_last=2,every=2",
    "tool_clearing:trigger_tool_uses=2,keep=1",
    "token_ratio:max_context_tokens=300,keep_recent_turns=1,trigger_threshold=0.5",
    "tool_clearing:trigger_tool_uses=2,keep=1+turn_window:full_turns=1,cached_turns=1",
    "history_summary:trigger_on_history_size_chars=900,"
    "history_tail_size_chars_to_exclude=300",
    'for_agent:agent="main",strategy="turn_window:full_turns=1,cached_turns=1"',
)
STRATEGIES = {text: spec.parse(text) for text in SPECS}
COMPACTING = {
    text: STRATEGIES[text] for text in (SPECS[1], SPECS[2], SPECS[5], *SPECS[9:])
}
every = partial(under, STRATEGIES, examples=8)
compacting = partial(under, COMPACTING, examples=10)
NOW = START + timedelta(days=1)


class Silent:
    """Writes one word, so that no summary contains a text of the session."""

    def summarise(self, source: Source, *, target_tokens: int) -> Written:
        return Written("told" if source.words else "", SummarizerRef(kind="silent"))


def explanation_of(walk: Walk) -> tuple[tuple[Part, ...], list[Unshown]]:
    view = walk.view()
    nodes = nodes_of(walk.derived)
    by_seq = {event.seq: event for event in walk.events}
    parts = parts_of(walk.strategy, walk.outline, view, by_seq)
    out = unshown(walk.strategy, walk.outline, parts, nodes, walk.events)
    return parts, list(out)


@every(events=logs())
def test_parts_cover_all_blocks_and_every_event_is_explained_once(
    strategy: Strategy, events: list[Envelope]
) -> None:
    walk = Walk(strategy).go(events)
    view = walk.view()
    parts, out = explanation_of(walk)

    count = Counter(seq for part in parts for seq in part.seqs)
    count.update(unshown.seq for unshown in out)

    assert count == Counter(event.seq for event in events)
    for number, message in enumerate(view.messages, 1):
        own = [part for part in parts if part.message == number]
        ends = [part.first + part.blocks for part in own]

        assert [part.first for part in own] == [0, *ends[:-1]]
        assert ends[-1] == len(message["content"])
        assert {part.role for part in own} == {message["role"]}


@every(events=logs())
def test_exactly_the_shown_events_are_in_the_view(
    strategy: Strategy, events: list[Envelope]
) -> None:
    events = [_with_marker(event) for event in events]
    walk = Walk(strategy).go(events)
    parts, out = explanation_of(walk)
    sent = _text_outside_of_summaries(walk, parts)

    shown = {seq for part in parts for seq in part.seqs}
    for event in events:
        if isinstance(event.payload, UserInput | AgentResponse):
            assert (f"§{event.seq}§" in sent) == (event.seq in shown)
    assert not shown & {unshown.seq for unshown in out}


def _text_outside_of_summaries(walk: Walk, parts: tuple[Part, ...]) -> str:
    """The text of all blocks except summaries, which quote events."""
    blocks = []
    messages = walk.view().messages
    for part in parts:
        if part.message and part.cause != "summary":
            content = messages[part.message - 1]["content"]
            blocks += content[part.first : part.first + part.blocks]
    return str(blocks)


def _with_marker(event: Envelope) -> Envelope:
    """The event with a unique marker in its text, and the same estimate of tokens."""
    payload = event.payload
    if not isinstance(payload, UserInput | AgentResponse):
        return event
    marked = payload.model_copy(update={"text": f"{payload.text} §{event.seq}§"})
    return event.model_copy(update={"payload": marked})


@compacting(events=logs(max_size=60))
def test_source_events_are_those_of_the_summary(
    strategy: Strategy, events: list[Envelope]
) -> None:
    walk = Walk(strategy).go(events)
    nodes = nodes_of(walk.derived)
    seen = [seen_event for event in events if (seen_event := walk.strategy.sees(event))]

    for step in walk.compactions:
        behind = [node for _, node in with_absorbed(nodes, step.recorded.seq)]
        seqs = [event.seq for node in behind for event in source_events(node, seen)]
        own = source_events(behind[0], seen)

        assert len(seqs) == len(set(seqs)) == step.source.events
        assert {event.seq for event in own} <= {
            event.seq for event in step.source.envelopes
        }


@compacting(events=logs(max_size=60))
def test_each_decision_can_be_repeated(
    strategy: Strategy, events: list[Envelope]
) -> None:
    for step in Walk(strategy).go(events).compactions:
        asked = ask_again(strategy, step.before, step.recorded.payload, [NOW])  # type: ignore[arg-type]  # a summary

        assert (asked.same, asked.reason) == (True, step.compaction.reason)
        assert not asked.clock_mattered


def test_a_decision_of_another_strategy_is_not_the_same() -> None:
    step = Walk(spec.parse(SPECS[1])).go(turns(6)).compactions[0]
    other = spec.parse("turn_window:full_turns=1,cached_turns=2")

    asked = ask_again(other, step.before, step.recorded.payload, [NOW])  # type: ignore[arg-type]  # a summary

    assert not asked.same
    assert asked.decided is None


def test_a_decision_that_depends_on_time_is_reported() -> None:
    """Four messages are before the tail: too few for a batch until the cooldown."""
    strategy = spec.parse(
        "message_window:context_size=20,tail_keep_size=4,compression_window_size=9"
    )
    step = Walk(strategy).go(turns(5)).compactions[0]
    soon = START + timedelta(seconds=10)
    later = START + timedelta(hours=1)

    def ask(*clocks: datetime) -> tuple[bool, bool]:
        asked = ask_again(strategy, step.before, step.recorded.payload, clocks)  # type: ignore[arg-type]  # a summary
        return asked.same, asked.clock_mattered

    assert ask(soon) == (False, False)
    assert ask(later) == (True, True)
    assert ask(soon, later) == (True, True)


def reasons_by_seq(text: str, *events: object) -> dict[int, str]:
    walk = Walk(spec.parse(text)).go(log_of(*events))  # type: ignore[arg-type]  # events
    return {unshown.seq: unshown.why for unshown in explanation_of(walk)[1]}


def test_each_unshown_event_has_its_reason() -> None:
    reasons = reasons_by_seq(
        "keep_all",
        SystemPrompt(text="Old."),
        SystemPrompt(text="New."),
        StateUpdate(set={"a": 1}),
        UserInput(text="hello"),
        AgentResponse(text="done"),
        Final(text="done"),
        HumanReview(trigger="risk", question="may I?"),
        AgentResponse(text=" "),
    )

    assert reasons == {
        1: "replaced",
        3: "type",
        6: "said",
        7: "question",
        8: "empty",
    }


def test_events_outside_of_the_window_have_that_reason() -> None:
    walk = Walk(spec.parse("last_turns:n=1")).go(turns(3))
    parts, out = explanation_of(walk)

    assert {unshown.seq: unshown.why for unshown in out} == dict.fromkeys(
        (1, 2, 3, 4), "window"
    )
    assert [part.seqs for part in parts] == [(5,), (6,)]


def test_a_cleared_result_is_unshown_but_its_call_is_shown() -> None:
    events: list[Event] = [UserInput(text="go")]
    for number in ("a", "b", "c"):
        events += [AgentResponse(text="so"), call(number), result(number, "long " * 90)]
    walk = Walk(spec.parse(SPECS[8])).go(log_of(*events))

    parts, out = explanation_of(walk)

    assert {unshown.seq: unshown.why for unshown in out} == {4: "cleared", 7: "cleared"}
    assert [part.cause for part in parts].count("cleared") == 2


def test_pins_over_their_budget_are_left_out() -> None:
    events = [
        AgentResponse(text="remember this: " + "word " * 90),
        AgentResponse(text="yes"),
        Pin(seqs=(1, 2)),
        *[event.payload for event in turns(5)],
    ]
    walk = Walk(spec.parse(SPECS[2])).go(log_of(*events))

    parts, out = explanation_of(walk)

    assert {unshown.seq: unshown.why for unshown in out}[1] == "pins_budget"
    (stub,) = (part for part in parts if part.cause == "pins_budget")
    assert stub.seqs == ()
    pinned = [part.seqs for part in parts if part.cause == "pinned"]
    assert pinned == [(2,)]


def test_an_open_call_has_a_part_without_a_result() -> None:
    walk = Walk(spec.parse("keep_all"))
    walk.go(log_of(UserInput(text="go"), AgentResponse(text="so"), call("a")))

    parts, _ = explanation_of(walk)

    assert [part.cause for part in parts] == ["raw", "raw", "no_result"]
    assert [part.seqs for part in parts] == [(1,), (2, 3), ()]


def test_a_summary_of_hundreds_of_summaries_is_traversed() -> None:
    strategy: Strategy = spec.parse(
        "turn_window:full_turns=1,cached_turns=1,session_memory_tokens=1"
    )
    walk = Walk(strategy, summarizer=Silent()).go(turns(400))
    nodes = nodes_of(walk.derived)
    (live,) = walk.outline.summaries

    traversed = list(with_absorbed(nodes, live.seq))

    assert len(traversed) == len(walk.derived)
    assert max(depth for depth, _ in traversed) > 300
