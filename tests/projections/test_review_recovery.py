"""Recovery degrades, then retries, then asks a human, and only as far as needed."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings, strategies as st

import refold
from refold.domain.events import (
    AgentResponse,
    Event,
    Final,
    HumanReview,
    Reflection,
    UserInput,
)
from refold.projections.review.incidents import Happened, Watch, next_step
from refold.projections.review.rules import Step
from tests.projections.logs import Log
from tests.projections.reviewing import (
    ASK,
    EAGER,
    call_and_result,
    fails,
    go_on,
    log_of,
    questions,
    recoveries,
    rules_of,
    sessions,
    watched,
)

LADDER: tuple[Step, ...] = ("degrade", "retry")
TOOLS = rules_of('[r]\nwhen = "tool_fails"\nfailures = 1\nsteps = ["degrade", "retry"]')


@pytest.mark.parametrize(
    ("happened", "expected"),
    [
        (["failed"], "degrade"),
        (["failed", "degrade"], "wait"),
        (["failed", "degrade", "failed"], "retry"),
        (["failed", "degrade", "failed", "retry"], "wait"),
        (["failed", "degrade", "failed", "retry", "failed"], "human"),
        (["failed", "failed"], "retry"),
        (["failed", "failed", "failed"], "human"),
        (["failed", "failed", "retry", "failed"], "human"),
        (["failed", "retry", "failed"], "human"),
        (["failed", "degrade", "degrade", "failed"], "retry"),
    ],
)
def test_the_steps_come_in_order(happened: list[Happened], expected: str) -> None:
    assert next_step(LADDER, happened) == expected


def test_a_step_listed_twice_is_done_twice() -> None:
    twice: tuple[Step, ...] = ("retry", "retry")
    once: list[Happened] = ["failed", "retry", "failed"]

    assert next_step(twice, once) == "retry"
    assert next_step(twice, [*once, "retry"]) == "wait"
    assert next_step(twice, [*once, "retry", "failed"]) == "human"


def test_a_rule_without_steps_asks_a_human_immediately() -> None:
    assert next_step((), ["failed"]) == "human"


@given(st.lists(st.sampled_from(["failed", "degrade", "retry"]), max_size=8))
def test_the_end_of_the_turn_escalates_to_a_human(happened: list[Happened]) -> None:
    assert next_step(LADDER, ["failed", *happened], over=True) == "human"


@given(st.lists(st.sampled_from(["failed", "degrade", "retry"]), max_size=8))
def test_an_escalated_incident_stays_with_the_human(happened: list[Happened]) -> None:
    steps = [next_step(LADDER, ["failed", *happened[:n]]) for n in range(9)]

    humans = [step == "human" for step in steps]

    assert humans == sorted(humans)


def test_a_step_is_recorded_in_the_meta_of_its_events() -> None:
    log = Log()
    for event in call_and_result("a"):
        log.add(event)
    (first,) = watched(TOOLS, log.events).recoveries()
    log.add(AgentResponse(text="with less"), **first.meta)
    log.add(AgentResponse(text="still with less"), **first.meta)

    assert (first.step, first.seq, first.number) == ("degrade", 2, 1)
    assert watched(TOOLS, log.events).recoveries() == []
    for event in call_and_result("b"):
        log.add(event)
    (second,) = watched(TOOLS, log.events).recoveries()
    assert (second.step, second.seq, second.number) == ("retry", 2, 2)
    assert second.idempotency_key != first.idempotency_key


def test_a_step_counts_only_for_its_own_question() -> None:
    log = Log()
    for event in [*call_and_result("a"), *call_and_result("b", "pay")]:
        log.add(event)
    book, pay = watched(TOOLS, log.events).recoveries()
    log.add(AgentResponse(text="with less"), **pay.meta)

    assert watched(TOOLS, log.events).recoveries() == [book]


def test_two_steps_of_one_kind_run_in_sequence() -> None:
    rules = rules_of(
        '[r]\nwhen = "tool_fails"\nfailures = 1\nsteps = ["retry", "retry"]'
    )
    log = Log()
    for event in call_and_result("a"):
        log.add(event)
    (first,) = watched(rules, log.events).recoveries()
    log.add(AgentResponse(text="again"), **first.meta)
    log.add(AgentResponse(text="again"), **first.meta)
    for event in call_and_result("b"):
        log.add(event)

    (second,) = watched(rules, log.events).recoveries()

    assert (first.number, second.number) == (1, 2)


@pytest.mark.parametrize("end", [Final(), UserInput(text="something else")])
def test_an_incident_open_at_the_end_of_its_turn_is_escalated(end: Event) -> None:
    (question,) = questions(TOOLS, ASK, *fails(1), end)

    assert (question.first_seq, question.at_seq, question.turn_seq) == (3, 4, 1)


def test_a_settled_incident_raises_no_question() -> None:
    events = [ASK, *call_and_result("a"), *call_and_result("b", fails=False), Final()]

    assert questions(TOOLS, *events) == []
    assert recoveries(TOOLS, *events) == []


@settings(max_examples=8)  # each opens two stores
@given(sessions())
def test_repeated_folds_raise_the_same_questions(events: list[Event]) -> None:
    assert questions_asked(events, every=True) == questions_asked(events, every=False)


@given(sessions(), st.integers(0, 25))
def test_a_stored_fold_resumes_without_a_difference(
    events: list[Event], at: int
) -> None:
    log = log_of(events)
    rules = EAGER
    whole = watched(rules, log)

    stored = orjson.loads(orjson.dumps(watched(rules, log[:at]).dump()))
    resumed = go_on(Watch.load(rules, stored), log[at:])

    assert resumed.questions == whole.questions
    assert resumed.recoveries() == whole.recoveries()
    assert resumed.dump() == whole.dump()


def test_a_fold_can_be_stored_after_any_event() -> None:
    no = Reflection(pass_=False, confidence=0.1)
    events = [ASK, *fails(2), no, no, ASK, *fails(2, "pay"), no, Final(), no, no]
    log = log_of(events)
    whole = watched(EAGER, log)

    for at in range(len(log)):
        stored = orjson.loads(orjson.dumps(watched(EAGER, log[:at]).dump()))
        resumed = go_on(Watch.load(EAGER, stored), log[at:])
        assert resumed.questions == whole.questions, at

    assert len(whole.questions) > 4


def test_a_stored_fold_stays_small_however_often_a_tool_fails() -> None:
    sizes = [
        len(orjson.dumps(watched(EAGER, log_of(fails(count))).dump()))
        for count in (100, 1_000)
    ]

    assert sizes[1] < sizes[0] + 1_000


def test_an_asked_question_is_stored_until_it_is_answered() -> None:
    asked_ = HumanReview(trigger="r", bundle={"where": {"first_seq": 2}})
    answered = HumanReview(trigger="r", decision="accept", refers_to=3)
    rules = rules_of('[r]\nwhen = "tool_fails"\nfailures = 1\nsteps = []')
    log = log_of([*call_and_result("a"), asked_, answered, *call_and_result("b")])

    for at in range(len(log)):
        resumed = go_on(Watch.load(rules, watched(rules, log[:at]).dump()), log[at:])
        assert [question.first_seq for question in resumed.unasked()] == [6], at


def questions_asked(events: list[Event], *, every: bool) -> list[tuple[str, int, Any]]:
    """Return rule, position without reviews, and figures of each question.

    every: check after every event, not only at the end.
    """
    with refold.open("memory://") as store:
        session = store.session(user_id="ada", session_id="s-1")
        for event in events:
            session.append(event)
            if every:
                session.reviews.ask(EAGER)
        session.reviews.ask(EAGER)
        log = session.events()
    reviews = [e.payload for e in log if isinstance(e.payload, HumanReview)]
    plain = [e.seq for e in log if not isinstance(e.payload, HumanReview)]
    asked = []
    for review in reviews:
        bundle: Any = review.bundle
        place = plain.index(bundle["where"]["first_seq"])
        asked.append((review.trigger, place, bundle["figures"]))
    return sorted(asked, key=repr)
