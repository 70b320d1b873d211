"""A human is asked by rules that are data: what fires, settles and is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from refold.domain.errors import InvalidConfiguration
from refold.domain.events import (
    AgentError,
    Aggregate,
    Event,
    Final,
    HumanReview,
    Reflection,
    UserInput,
)
from refold.projections.review.rules import MOST, ReviewRules
from tests.projections.reviewing import (
    ASK,
    SHIPPED,
    call_and_result,
    fails,
    questions,
    rules_of,
)

AT_ONCE = "steps = []\n"
ERRORS = rules_of(f'[r]\nwhen = "error"\ncodes = ["*_parse_failed", "lost"]\n{AT_ONCE}')
REJECTED = rules_of(f'[r]\nwhen = "reflection_failed"\nreflections = 2\n{AT_ONCE}')
UNSURE = rules_of(f'[r]\nwhen = "low_confidence"\nbelow = 0.5\n{AT_ONCE}')
RISKY = rules_of(f'[r]\nwhen = "issue"\nissues = ["data_loss", "privacy"]\n{AT_ONCE}')
TOOLS = rules_of(f'[r]\nwhen = "tool_fails"\nfailures = 2\n{AT_ONCE}')
LOST = [AgentError(code="lost"), ASK]
NO = Reflection(pass_=False)
YES = Reflection(pass_=True)


@pytest.mark.parametrize(
    ("rules", "events", "at", "figures"),
    [
        (
            ERRORS,
            [AgentError(code="planner_parse_failed")],
            1,
            {"code": "planner_parse_failed"},
        ),
        (ERRORS, [AgentError(code="lost")], 1, {"code": "lost"}),
        (REJECTED, [ASK, NO, NO], 3, {"reflections": 2, "limit": 2}),
        (
            UNSURE,
            [Reflection(confidence=0.4)],
            1,
            {"confidence": 0.4, "below": 0.5},
        ),
        (RISKY, [Reflection(issues=("Data loss",))], 1, {"issues": ["data_loss"]}),
        (
            RISKY,
            [Reflection(issues=({"code": "privacy"}, "data-loss"))],
            1,
            {"issues": ["data_loss", "privacy"]},
        ),
        (TOOLS, fails(2), 4, {"tool": "book", "failures": 2, "limit": 2}),
        (
            TOOLS,
            [
                *call_and_result("a"),
                *call_and_result("b", "pay"),
                *call_and_result("c"),
            ],
            6,
            {"tool": "book", "failures": 2, "limit": 2},
        ),
        (
            TOOLS,
            [*call_and_result("a"), UserInput(text="again"), *call_and_result("b")],
            5,
            {"tool": "book", "failures": 2, "limit": 2},
        ),
    ],
)
def test_a_rule_fires(
    rules: ReviewRules, events: list[Event], at: int, figures: dict[str, Any]
) -> None:
    (question,) = questions(rules, *events)

    assert (question.first_seq, question.at_seq, question.figures) == (at, at, figures)


@pytest.mark.parametrize(
    ("rules", "events"),
    [
        (ERRORS, [AgentError(code="parse_failed_twice")]),
        (rules_of('[r]\nwhen = "error"\ncodes = ["l?st", "[l]ost"]'), LOST),
        (REJECTED, [NO, YES, NO]),
        (REJECTED, [ASK, NO, UserInput(text="something else"), NO]),
        (REJECTED, [NO, Reflection(confidence=0.1)]),
        (UNSURE, [Reflection(confidence=0.5), Reflection()]),
        (RISKY, [Reflection(issues=("data", {"text": "data_loss"}, 7, None))]),
        (
            TOOLS,
            [
                *call_and_result("a"),
                *call_and_result("b", fails=False),
                *call_and_result("c"),
            ],
        ),
        (TOOLS, [*call_and_result("a"), *call_and_result("b", "pay")]),
    ],
)
def test_a_rule_does_not_fire(rules: ReviewRules, events: list[Event]) -> None:
    assert questions(rules, *events) == []


def test_a_finding_about_a_tool_names_its_calls() -> None:
    (question,) = questions(TOOLS, ASK, *fails(2))

    assert question.seqs == (2, 3, 4, 5)
    assert question.turn_seq == 1


def test_a_repeated_finding_raises_one_question() -> None:
    assert len(questions(TOOLS, *fails(5))) == 1
    assert len(questions(RISKY, *[Reflection(issues=("privacy",))] * 3)) == 1


def test_another_tool_is_another_question() -> None:
    raised = questions(TOOLS, *fails(3), *fails(2, "pay"))

    assert [question.figures["tool"] for question in raised] == ["book", "pay"]


def test_a_tool_that_recovers_and_fails_again_raises_a_new_question() -> None:
    events = [
        *fails(2),
        *call_and_result("ok", fails=False),
        *call_and_result("x"),
        *call_and_result("y"),
    ]

    assert [question.first_seq for question in questions(TOOLS, *events)] == [4, 10]


def test_a_tool_that_fails_in_many_turns_is_one_question_until_answered() -> None:
    turns = [*fails(2), ASK, *call_and_result("x"), ASK, *call_and_result("y")]
    asked = HumanReview(trigger="r", bundle={"where": {"first_seq": 4}})
    answered = HumanReview(trigger="r", decision="accept", refers_to=5)

    assert [question.first_seq for question in questions(TOOLS, *turns)] == [4]
    later = questions(
        TOOLS, *fails(2), asked, answered, *call_and_result("x"), *call_and_result("y")
    )
    assert [question.first_seq for question in later] == [4, 10]


def test_rejected_reflections_of_another_turn_are_another_question() -> None:
    raised = questions(REJECTED, ASK, NO, NO, ASK, NO, NO)

    assert [question.turn_seq for question in raised] == [1, 4]


@pytest.mark.parametrize(
    "settled",
    [
        Reflection(pass_=True, confidence=0.9),
        Aggregate(),
        Final(outcome="success"),
    ],
)
def test_a_recovery_before_escalation_raises_no_question(settled: Event) -> None:
    code = "aggregator_parse_failed"
    if isinstance(settled, Reflection):
        code = "reflector_parse_failed"
    rules = rules_of('[r]\nwhen = "error"\ncodes = ["*"]')

    assert questions(rules, AgentError(code=code), settled, ASK) == []
    assert len(questions(rules, AgentError(code=code), Final(), ASK)) == 1


def test_the_shipped_rules_are_valid() -> None:
    names = [rule.name for rule in SHIPPED.rules]

    assert names == [
        "parse_failed",
        "reflection_failed",
        "low_confidence",
        "high_risk",
        "tool_failing",
    ]
    tables = {rule.name: rule.to_json() for rule in SHIPPED.rules}
    again = ReviewRules.of(
        {n: {k: v for k, v in t.items() if k != "name"} for n, t in tables.items()}
    )
    assert (again, again.digest()) == (SHIPPED, SHIPPED.digest())


def test_the_rules_of_the_how_to_are_valid() -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "human-review.md"
    (text,) = re.findall(r"^```toml\n(.*?)^```$", page.read_text(), re.M | re.S)

    shown = ReviewRules.read(text)

    assert [rule.name for rule in shown.rules] == [r.name for r in SHIPPED.rules]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the file has no rule"),
        ("x = [", "review rules are TOML"),
        (b"\xff", "review rules are TOML"),
        ("x = 1", "'x': it must be a table"),
        ("[Tool]\n", "lower-case letters"),
        ("[a1]\n", "lower-case letters"),
        ("[x]\n", "when is one of"),
        ('[x]\nwhen = "moon"', "when is one of"),
        ('[x]\nwhen = "error"', "codes"),
        ('[x]\nwhen = "error"\ncodes = []', "codes"),
        ('[x]\nwhen = "tool_fails"\nfailures = 0', "failures"),
        (f'[x]\nwhen = "tool_fails"\nfailures = {MOST + 1}', "failures"),
        ('[x]\nwhen = "tool_fails"\nfailures = "3"', "failures"),
        ('[x]\nwhen = "tool_fails"\nfailures = true', "failures"),
        ('[x]\nwhen = "tool_fails"\nfailures = 2\nbelow = 1.0', "not have"),
        ('[x]\nwhen = "low_confidence"\nbelow = nan', "below"),
        ('[x]\nwhen = "low_confidence"\nbelow = 2026-01-01', "below"),
        ('[x]\nwhen = "low_confidence"\nbelow = 0.5\nname = "y"', "table of keys"),
        (
            '[x]\nwhen = "low_confidence"\nbelow = 0.5\nseverity = "dire"',
            "severity",
        ),
        (
            '[x]\nwhen = "low_confidence"\nbelow = 0.5\nsteps = ["retry", "degrade"]',
            "degrade must come before",
        ),
        (
            '[x]\nwhen = "low_confidence"\nbelow = 0.5\nsteps = ["human"]',
            "steps",
        ),
    ],
)
def test_an_invalid_rule_is_refused_by_name(text: str | bytes, says: str) -> None:
    with pytest.raises(InvalidConfiguration, match=says):
        ReviewRules.read(text)
