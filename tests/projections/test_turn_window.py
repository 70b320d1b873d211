"""turn_window compacts exactly as its table says."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from refold.domain.envelope import Envelope
from refold.domain.errors import UnknownStrategy
from refold.domain.events import (
    AgentResponse,
    CompactionNote,
    HumanReview,
    Pin,
    Planner,
    UserInput,
)
from refold.projections.context.outline import fold_derived
from refold.projections.context.strategies.spec import parse
from refold.projections.context.strategies.turn_window import TurnWindow, from_settings
from tests.projections.logs import START, Log, call, envelope, log_of, result, turns
from tests.projections.walk import Walk, texts, view_of
from tests.support.nested import blocks_of

NOW = START + timedelta(hours=1)
ONE = TurnWindow(full_turns=1, cached_turns=1)


def checked(strategy: TurnWindow, events: list[Envelope]) -> Walk:
    """The log, with a check at the end of each turn."""
    walk = Walk(strategy)
    for event in events:
        walk.step(event)
        if isinstance(event.payload, AgentResponse):
            walk.check()
    return walk


def imported(strategy: TurnWindow, events: list[Envelope]) -> Walk:
    """The log, read at once and never checked."""
    walk = Walk(strategy)
    walk.events = events
    walk.outline = walk.strategy.read(walk.outline, events)
    return walk


# A = 4, B = 3: complete turns, turns compacted by then, summaries, turns sent raw.
TABLE = [
    (1, 0, [], (1, 1)),
    (2, 0, [], (1, 2)),
    (3, 0, [], (1, 3)),
    (4, 0, [], (1, 4)),
    (5, 0, [], (1, 5)),
    (6, 0, [], (1, 6)),
    (7, 3, [(1, 3)], (4, 7)),
    (8, 3, [(1, 3)], (4, 8)),
    (9, 3, [(1, 3)], (4, 9)),
    (10, 6, [(1, 3), (4, 6)], (7, 10)),
    (11, 6, [(1, 3), (4, 6)], (7, 11)),
    (12, 6, [(1, 3), (4, 6)], (7, 12)),
    (13, 9, [(1, 3), (4, 6), (7, 9)], (10, 13)),
]


@pytest.mark.parametrize(("complete", "compacted", "summaries", "raw"), TABLE)
def test_compactions_follow_the_table(
    complete: int,
    compacted: int,
    summaries: list[tuple[int, int]],
    raw: tuple[int, int],
) -> None:
    walk = checked(TurnWindow(), turns(complete))

    view = walk.view()

    assert walk.outline.complete_turns == complete
    assert walk.outline.compacted_turns == compacted
    spans = [(span.kind, span.first, span.last) for span in view.spans]
    assert spans == [
        *(("summary", 2 * first - 1, 2 * last) for first, last in summaries),
        ("raw", 2 * raw[0] - 1, 2 * raw[1]),
    ]
    answers = [f"answer {number}" for number in range(raw[0], raw[1] + 1)]
    assert [text for text in raw_of(walk) if text.startswith("answer")] == answers


def test_the_unanswered_input_comes_last() -> None:
    walk = checked(TurnWindow(), turns(7))
    again = Log()
    for event in (*(event.payload for event in turns(7)), UserInput(text="question 8")):
        again.add(event)
    walk.step(again.events[-1])

    texts_ = [text for text in raw_of(walk) if not text.startswith("Earlier")]

    assert texts_[0] == "question 4"
    assert texts_[-2:] == ["answer 7", "question 8"]


def raw_of(walk: Walk) -> list[str]:
    """The texts that are sent word for word."""
    return [
        block["text"]
        for block in blocks_of(walk.view().messages)
        if block["type"] == "text"
    ]


def test_one_check_compacts_one_batch() -> None:
    walk = imported(ONE, turns(6))

    walk.check()

    assert [step.compaction.turns for step in walk.compactions] == [1]


def test_repeated_decisions_come_to_an_end() -> None:
    walk = imported(ONE, turns(6))

    while due := ONE.decide(walk.outline, NOW):
        walk.compact(due)

    assert walk.outline.compacted_turns == 5
    decisions = [step.compaction for step in walk.compactions]
    spans = [(decision.first_seq, decision.last_seq) for decision in decisions]
    assert spans == [(1, 2), (3, 4), (5, 6), (7, 8), (9, 10)]


def test_a_batch_describes_its_span() -> None:
    outline = TurnWindow().read(TurnWindow().begin(), turns(7))

    due = TurnWindow().decide(outline, NOW)

    assert due is not None
    assert (due.first_seq, due.last_seq, due.turns, due.level) == (1, 6, 3, 1)
    assert (due.target_tokens, due.decided_at_seq, due.absorbs) == (600, 14, ())
    assert due.tokens_before == sum(turn.tokens for turn in outline.turns[:3])
    assert due.reason == "7 raw turns, 7 are a window"


def test_a_new_input_completes_the_turn_before_it() -> None:
    asked = [UserInput(text="a"), UserInput(text="b"), UserInput(text="c")]

    outline = ONE.read(ONE.begin(), log_of(*asked))

    assert outline.complete_turns == 2
    assert ONE.decide(outline, NOW) is not None


def test_the_oldest_summaries_fold_in_one_check_until_all_fit() -> None:
    strategy = TurnWindow(
        full_turns=1, cached_turns=1, summary_tokens=60, session_memory_tokens=130
    )

    walk = checked(strategy, turns(7, "with some words to say " * 5))

    folds = [step.compaction for step in walk.compactions if step.compaction.absorbs]
    assert folds[0].absorbs == (1, 2)
    assert folds[0].level == 2
    assert (folds[0].first_seq, folds[0].last_seq) == (1, 4)
    assert [fold.level for fold in folds] == list(range(2, 2 + len(folds)))
    assert walk.outline.summary_tokens <= 130
    assert walk.outline.compacted_turns == 6
    assert [s.last for s in walk.outline.summaries][-1] == 12


def test_a_single_summary_is_never_folded() -> None:
    strategy = TurnWindow(full_turns=1, cached_turns=1, session_memory_tokens=1)

    walk = checked(strategy, turns(5))

    assert len(walk.outline.summaries) == 1
    assert walk.outline.summaries[0].first == 1
    assert strategy.decide(walk.outline, NOW) is None


def test_the_next_check_makes_a_missed_fold() -> None:
    strategy = TurnWindow(full_turns=1, cached_turns=1, session_memory_tokens=20)
    walk = imported(strategy, turns(3))
    for _ in range(2):
        due = strategy.decide(walk.outline, NOW)
        assert due is not None
        walk.compact(due)

    fold = strategy.decide(walk.outline, NOW)

    assert fold is not None
    assert fold.absorbs == (1, 2)
    assert strategy.follow_up(walk.outline, NOW) == fold


def test_a_cut_moves_to_older_turns_until_no_call_loses_its_result() -> None:
    strategy = TurnWindow(full_turns=1, cached_turns=2)
    events = log_of(
        UserInput(text="one"),
        AgentResponse(text="done"),
        UserInput(text="two"),
        AgentResponse(text="working"),
        call("c1"),
        UserInput(text="three"),
        result("c1"),
        AgentResponse(text="ready"),
    )

    due = strategy.decide(strategy.read(strategy.begin(), events), NOW)

    assert due is not None
    assert (due.first_seq, due.last_seq, due.turns) == (1, 2, 1)


def test_a_late_result_is_a_note_and_blocks_no_cut() -> None:
    """In version 1 it blocked every cut between its call and itself."""
    events = log_of(
        UserInput(text="one"),
        AgentResponse(text="working"),
        call("c1"),
        UserInput(text="two"),
        AgentResponse(text="meanwhile"),
        result("c1"),
    )
    params = {"full_turns": 1, "cached_turns": 1}
    first = parse({"name": "turn_window", "version": 1, "params": params})

    decision = ONE.decide(ONE.read(ONE.begin(), events), NOW)

    assert decision is not None
    assert (decision.first_seq, decision.last_seq) == (1, 3)
    assert first.decide(first.read(first.begin(), events), NOW) is None


def test_a_cut_between_a_question_and_its_decision_keeps_both_raw() -> None:
    events = log_of(
        UserInput(text="one"),
        HumanReview(trigger="risk", question="go on?"),
        UserInput(text="two"),
        HumanReview(trigger="risk", decision="yes", refers_to=2),
        AgentResponse(text="ready"),
    )

    walk = Walk(ONE).go(events)
    walk.check()

    (decision,) = [step.compaction for step in walk.compactions]
    assert (decision.first_seq, decision.last_seq) == (1, 2)
    assert walk.outline.kept == (((1, 2), (4, 4)),)
    assert texts(walk.view()).count("go on?") == 1


def test_an_open_exchange_stays_raw_behind_its_summary() -> None:
    events = log_of(
        UserInput(text="one"),
        AgentResponse(text="starting the server"),
        call("c1", command="serve"),
        UserInput(text="two"),
        AgentResponse(text="fine"),
        UserInput(text="three"),
    )

    walk = checked(TurnWindow(full_turns=1, cached_turns=1), events)

    assert walk.outline.compacted_through == 3
    assert [(span.kind, span.first, span.last) for span in walk.view().spans] == [
        ("summary", 1, 3),
        ("raw", 2, 3),
        ("raw", 4, 6),
    ]
    assert "starting the server" in raw_of(walk)


def test_a_late_result_changes_no_raw_exchange() -> None:
    events = log_of(
        UserInput(text="one"),
        AgentResponse(text="starting the server"),
        call("c1", command="serve"),
        UserInput(text="two"),
        AgentResponse(text="fine"),
        result("c1", "stopped"),
    )
    walk = checked(ONE, events[:-1])
    before = walk.view()

    walk.step(events[-1])

    assert walk.view().messages[: len(before.messages)] == before.messages
    assert "stopped" in texts(walk.view())


def test_pins_and_unpins_take_effect_at_the_next_compaction() -> None:
    events = log_of(
        UserInput(text="the password policy"),
        AgentResponse(text="noted"),
        UserInput(text="two"),
        AgentResponse(text="second"),
        Pin(seqs=(1,)),
        UserInput(text="three"),
        AgentResponse(text="third"),
        Pin(seqs=(1,), unpin=True),
        UserInput(text="four"),
        AgentResponse(text="fourth"),
    )
    walk = Walk(ONE)
    pinned = []

    for event in events:
        walk.step(event)
        if isinstance(event.payload, AgentResponse):
            walk.check()
        spans = walk.view().spans
        pinned.append([(s.first, s.last) for s in spans if s.kind == "pinned"])

    assert pinned == [[], [], [], [], [], [], [(1, 1)], [(1, 1)], [(1, 1)], []]


def test_a_pin_in_a_raw_exchange_shows_it_once() -> None:
    events = log_of(
        UserInput(text="one"),
        AgentResponse(text="starting the server"),
        call("c1", command="serve"),
        Pin(seqs=(2, 3)),
        UserInput(text="two"),
        AgentResponse(text="fine"),
        UserInput(text="three"),
        AgentResponse(text="ready"),
    )

    walk = checked(ONE, events)

    assert raw_of(walk).count("starting the server") == 1
    assert "pinned" not in [span.kind for span in walk.view().spans]


def test_pins_over_their_budget_become_stubs() -> None:
    strategy = TurnWindow(full_turns=1, cached_turns=1, pin_tokens=20)
    events = log_of(
        UserInput(text="short"),
        UserInput(text="long " * 100),
        Pin(seqs=(1, 2)),
        UserInput(text="three"),
        AgentResponse(text="done"),
    )

    view = Walk(strategy).go(events)
    while due := strategy.decide(view.outline, NOW):
        view.compact(due)

    spans = [(span.kind, span.first) for span in view.view().spans]
    assert ("pinned", 1) in spans
    assert ("stub", 2) in spans
    assert '<pinned tokens="' in texts(view.view())


def test_a_failed_attempt_delays_the_next_one() -> None:
    outline = ONE.read(ONE.begin(), turns(3))
    due_after = []

    for attempt in range(1, 8):
        failed_at = NOW + timedelta(days=attempt)
        note = CompactionNote(phase="failed", why="refused", attempt=attempt)
        outline = fold_derived(
            outline, envelope(attempt, note, stream="derived", ts=failed_at)
        )
        due_after.append(
            next(
                seconds
                for seconds in range(0, 1000, 30)
                if ONE.decide(outline, failed_at + timedelta(seconds=seconds))
            )
        )

    assert due_after == [30, 60, 120, 240, 480, 900, 900]


def test_a_success_ends_the_delay() -> None:
    walk = imported(ONE, turns(4))
    note = envelope(1, CompactionNote(phase="failed"), stream="derived", ts=NOW)
    walk.derived.append(note)
    walk.outline = fold_derived(walk.outline, note)

    assert ONE.decide(walk.outline, NOW) is None
    later = ONE.decide(walk.outline, NOW + timedelta(minutes=1))
    assert later is not None
    walk.compact(later)

    assert ONE.decide(walk.outline, NOW) is not None


def test_events_before_the_first_input_belong_to_the_first_turn() -> None:
    events = log_of(
        Planner(plan="greet"),
        AgentResponse(text="Hello."),
        UserInput(text="one"),
        AgentResponse(text="1"),
        UserInput(text="two"),
        AgentResponse(text="2"),
    )

    due = ONE.decide(ONE.read(ONE.begin(), events), NOW)

    assert due is not None
    assert (due.first_seq, due.last_seq) == (1, 4)


@pytest.mark.parametrize("params", [{"full_turns": 0}, {"cached_turns": 0}])
def test_a_window_of_no_turns_is_refused(params: dict[str, Any]) -> None:
    with pytest.raises(UnknownStrategy, match=r"greater than or equal to 1$"):
        TurnWindow(**params)


def test_an_argument_overrides_environment_settings_and_default() -> None:
    env = {"REFOLD_FULL_CONTEXT_TURNS": "6", "REFOLD_CACHED_CONTEXT_TURNS": ""}
    settings = {"full_turns": 8, "cached_turns": 5, "summary_tokens": 300}

    assert from_settings({}, {}, {}) == TurnWindow()
    assert from_settings({}, {}, settings).full_turns == 8
    assert from_settings({}, env, settings) == TurnWindow(
        full_turns=6, cached_turns=5, summary_tokens=300
    )
    assert from_settings({"full_turns": 2}, env, settings).full_turns == 2


@pytest.mark.parametrize("value", ["0", "-1", "many", "2.5"])
def test_an_invalid_variable_is_named(value: str) -> None:
    with pytest.raises(UnknownStrategy, match="REFOLD_CACHED_CONTEXT_TURNS"):
        from_settings({}, {"REFOLD_CACHED_CONTEXT_TURNS": value}, {})


def test_a_view_does_not_depend_on_how_it_was_reached() -> None:
    events = turns(9)
    walk = checked(TurnWindow(), events)

    again = view_of(TurnWindow(), events)

    assert again.digest == walk.view().digest
