"""The outline knows turns, open exchanges and pins, and never grows with the log."""

from __future__ import annotations

import orjson
import pytest

from refold.adapters.rows import pack, unpack
from refold.domain.canonical import canonical
from refold.domain.envelope import Envelope
from refold.domain.events import (
    AgentResponse,
    CompactionNote,
    Event,
    Final,
    Fork,
    HumanReview,
    Pin,
    Planner,
    SystemPrompt,
    UserInput,
)
from refold.projections.context.outline import Outline, fold_derived
from refold.projections.context.render import render
from refold.projections.context.strategies.keep_all import KeepAll
from refold.projections.context.strategies.turn_window import TurnWindow
from refold.projections.context.units import LiveSummary
from refold.store.history import renumbered_for_fork
from tests.projections.logs import call, envelope, log_of, result, turns
from tests.projections.walk import Walk, texts

WINDOW = TurnWindow()
ASK = UserInput(text="Why?")
ANSWER = AgentResponse(text="Because.")
LOOK = AgentResponse(text="Let me look.")


def outline_of(*events: Event) -> Outline:
    return WINDOW.read(WINDOW.begin(), log_of(*events))


@pytest.mark.parametrize(
    ("events", "complete"),
    [
        ([ASK], 0),
        ([ASK, Planner(plan="look")], 0),
        ([ASK, ANSWER], 1),
        ([ASK, LOOK, call()], 0),
        ([ASK, LOOK, call(), result()], 0),
        ([ASK, LOOK, call(), result(), ANSWER], 1),
        ([ASK, AgentResponse(text="x", stop_reason="tool_use")], 0),
        ([ASK, LOOK, call(), Final()], 1),
        ([ASK, ANSWER, AgentResponse(text="More."), call()], 1),
        ([ASK, ASK], 1),
        ([ASK, LOOK, call(), ASK, ANSWER], 2),
        ([ANSWER], 0),
        ([ANSWER, ASK], 0),
    ],
)
def test_an_answer_or_a_new_input_completes_a_turn(
    events: list[Event], complete: int
) -> None:
    assert outline_of(*events).complete_turns == complete


def test_turns_are_spans_with_their_tokens() -> None:
    events = log_of(SystemPrompt(text="Be kind."), ASK, LOOK, call(), result(), ASK)

    outline = WINDOW.read(WINDOW.begin(), events)

    first, newest = outline.turns
    assert (first.first, first.last, first.complete) == (2, 5, True)
    assert (newest.first, newest.last, newest.complete) == (6, 6, False)
    assert first.tokens == sum(e.token_estimate for e in events[1:5]) + 3 * 4
    assert outline.raw_tokens == first.tokens + newest.tokens


def test_an_open_call_is_stored_without_its_id() -> None:
    outline = outline_of(ASK, LOOK, call("a secret id"))

    (waiting,) = outline.thread.open
    assert (waiting.seq, waiting.exchange) == (3, 2)
    assert "secret" not in orjson.dumps(outline.dump()).decode()


def test_a_question_waits_until_it_is_decided() -> None:
    asked = log_of(ASK, HumanReview(trigger="risk", question="Go on?"))
    decided = HumanReview(trigger="risk", decision="yes", refers_to=2)
    outline = WINDOW.read(WINDOW.begin(), asked)

    after = WINDOW.fold(outline, envelope(3, decided))

    assert [question.seq for question in outline.waiting.questions] == [2]
    assert after.waiting.questions == ()
    assert after.waiting.holds == ()


def test_an_outline_has_no_text_of_the_session() -> None:
    events = log_of(
        UserInput(text="zebra"), AgentResponse(text="zebra"), Final(text="zebra"),
        Pin(seqs=(1,), reason="zebra"),
    )  # fmt: skip

    assert b"zebra" not in orjson.dumps(WINDOW.read(WINDOW.begin(), events).dump())


def test_a_long_session_has_a_small_outline() -> None:
    walk = Walk(TurnWindow())

    for event in turns(400):
        walk.events.append(event)
        walk.outline = walk.strategy.fold(walk.outline, event)
        walk.check()

    assert walk.outline.compacted_turns >= 390
    assert len(orjson.dumps(walk.outline.dump())) < 2_048


def test_many_small_summaries_fit_in_the_outline() -> None:
    summaries = tuple(
        LiveSummary(900 + number, 2_000 + 2 * number, 2_001 + 2 * number, 1, 18)
        for number in range(440)
    )
    folded = LiveSummary(1_340, 1, 1_999, 9, 600)
    outline = Outline(through_seq=3_000, summaries=(folded, *summaries))

    stored = pack(canonical(outline.dump()))

    assert len(stored) < 1_024
    assert Outline.load(orjson.loads(unpack(stored))) == outline


def test_summaries_with_a_gap_survive_storing() -> None:
    summaries = (LiveSummary(1, 1, 4, 2, 10), LiveSummary(2, 9, 12, 1, 10))
    outline = Outline(summaries=summaries)

    assert Outline.load(outline.dump()) == outline


def test_the_outline_of_keep_all_does_not_grow() -> None:
    sizes = [
        len(orjson.dumps(KeepAll().read(KeepAll().begin(), turns(count)).dump()))
        for count in (10, 1_000)
    ]

    assert sizes[1] < sizes[0] + 20


def test_a_turn_costs_a_few_bytes() -> None:
    outline = WINDOW.read(WINDOW.begin(), turns(300))

    assert len(orjson.dumps(outline.dump())) < 4_096


def test_an_outline_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="not of shape"):
        Outline.load({**Outline().dump(), "shape": 0})


def test_a_summary_ahead_of_the_main_stream_is_refused() -> None:
    walk = Walk(TurnWindow(full_turns=1, cached_turns=1)).go(turns(3))
    behind = walk.strategy.read(walk.strategy.begin(), turns(1)[:1])

    with pytest.raises(ValueError, match="fold the main stream first"):
        fold_derived(behind, walk.derived[0])


def test_failures_count_until_a_success() -> None:
    walk = Walk(TurnWindow(full_turns=1, cached_turns=1)).go(turns(3))
    failed = envelope(1, CompactionNote(phase="failed"), stream="derived")
    started = envelope(2, CompactionNote(phase="started"), stream="derived")

    outline = fold_derived(fold_derived(walk.outline, failed), started)

    assert (outline.failures, outline.derived_seq) == (1, 2)
    assert fold_derived(outline, walk.derived[0]).failures == 0


@pytest.mark.parametrize("unpin", [True, False])
def test_a_pin_after_the_decision_waits_for_the_next_compaction(unpin: bool) -> None:
    first = turns(4)[:4]
    second = turns(4)[4:6]
    pinned = [envelope(5, Pin(seqs=(1,)))] if unpin else []
    walk = Walk(TurnWindow(full_turns=1, cached_turns=1))
    for event in (*first, *pinned):
        walk.events.append(event)
        walk.outline = walk.strategy.fold(walk.outline, event)
    walk.check()
    late = envelope(6, Pin(seqs=(1, 2), unpin=unpin))
    once_more = turn_after(second, 6)

    in_order = walk.strategy.read(walk.outline, [late, *once_more])
    main = [*first, *pinned, late, *once_more]
    main_first = walk.strategy.read(walk.strategy.begin(), main)
    main_first = fold_derived(main_first, walk.derived[0])

    assert in_order == main_first
    assert in_order.pinned == (((1, 1),) if unpin else ())
    assert [change.at for change in in_order.pin_changes] == [6]


def turn_after(events: list[Envelope], seq: int) -> list[Envelope]:
    """The same events, recorded behind ``seq``."""
    return [
        envelope(seq + index, event.payload) for index, event in enumerate(events, 1)
    ]


def parent_and_child() -> tuple[list[Envelope], list[Envelope]]:
    parent = [
        *log_of(SystemPrompt(text="Be kind."), ASK, ANSWER, ASK, LOOK, call()),
        envelope(7, Pin(seqs=(2,))),
        envelope(8, HumanReview(trigger="risk", question="Go on?")),
    ]
    child = [
        envelope(1, Fork(session_id="s-0", at_seq=8)),
        envelope(2, result()),
        envelope(3, AgentResponse(text="Go on.")),
        envelope(4, UserInput(text="And?")),
        envelope(5, AgentResponse(text="So.")),
    ]
    return [renumbered_for_fork(event, at_seq=8) for event in parent], child


def test_a_fork_continues_with_its_parents_events() -> None:
    parent, child = parent_and_child()
    events = [*parent, *child]

    outline = KeepAll().read(KeepAll().begin(), events)
    view = render(KeepAll(), outline, events)

    assert [event.seq for event in parent] == list(range(-7, 1))
    assert (outline.first_seq, outline.through_seq) == (-7, 5)
    assert outline.complete_turns == 3
    assert view.system == "Be kind."
    assert texts(view).count("Why?") == 2
    assert "No result" not in texts(view)


def test_references_in_inherited_events_are_shifted() -> None:
    parent, child = parent_and_child()
    decided = HumanReview(trigger="risk", decision="yes", refers_to=8)

    outline = WINDOW.read(WINDOW.begin(), [*parent, *child])

    assert outline.pin_changes[0].spans == ((-6, -6),)
    assert [question.seq for question in outline.waiting.questions] == [0]
    shifted = renumbered_for_fork(envelope(9, decided), at_seq=9).payload
    assert isinstance(shifted, HumanReview)
    assert shifted.refers_to == -1
