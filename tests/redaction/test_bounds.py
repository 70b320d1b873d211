"""What redaction costs is bounded: counted in steps, which are the same everywhere."""

from typing import Any

import pytest

from refold.domain.envelope import Draft
from refold.domain.errors import EventTooLarge
from refold.domain.events import ToolResult
from refold.redaction.checks import Candidate
from refold.redaction.chokepoint import redact
from refold.redaction.engines import EngineName, engine_of
from refold.redaction.guard import Limits
from refold.redaction.plan import Plan
from refold.redaction.redactor import Redactor
from refold.redaction.rules import DEFAULT_RULES
from refold.redaction.rules.rule import Rule
from refold.redaction.scanner import Compiled, Runs, Scanner

ENGINES: tuple[EngineName, ...] = ("stdlib", "vectorscan")
scanner = Scanner(DEFAULT_RULES, "stdlib")


def counting(judged: list[str]) -> Redactor:
    def judge(found: Candidate) -> bool:
        judged.append(found.value)
        return True

    rule = Rule(id="x", type="X", pattern="x-[a-z]{4}", gate=("x-",), validator=judge)
    return Redactor(Plan(rules=(rule,), engine="stdlib"))


@pytest.mark.parametrize(
    "content",
    [
        {f"x-aaaa{number}": number for number in range(200)},
        ["x-aaaa"] * 500,
        {"a" * 1500: "x-aaaa"},
    ],
)
def test_what_is_too_large_is_refused_before_it_is_redacted(content: Any) -> None:
    judged: list[str] = []
    draft = Draft(ToolResult(call_id="c", content=content))
    limits = Limits(leaf_bytes=1024, event_bytes=1400)

    with pytest.raises(EventTooLarge):
        redact(draft, now=1, redactor=counting(judged), limits=limits)
    assert judged == []


def test_a_long_text_of_a_small_event_is_redacted_and_kept() -> None:
    draft = Draft(ToolResult(call_id="c", content="x-aaaa " * 1000))
    limits = Limits(leaf_bytes=1024, event_bytes=1400)

    done = redact(draft, now=1, redactor=counting([]), limits=limits)

    assert done.found == {"X": 1000}


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("unit", [".E12345678", "-E2345678sk", "学号：2021001234 "])
def test_digits_that_stand_close_are_named_once(name: EngineName, unit: str) -> None:
    hits = engine_of(name, scanner._triggers).scan(unit.encode() * 300)

    assert len(hits) < 12 * 300


def test_runs_are_looked_for_once_where_there_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[int] = []
    look = Runs._look

    def counted(runs: Runs, first: int, final: int) -> None:
        looks.append(first)
        look(runs, first, final)

    monkeypatch.setattr(Runs, "_look", counted)
    runs, unit = Runs(".E12345678" * 3000), len(".E12345678")

    found = [len([*runs.near(end)]) for end in range(unit, 3000 * unit, unit)]

    assert min(found) >= 5
    assert len(looks) < 20


def test_a_key_without_a_word_is_shown_to_few_rules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[str] = []
    speaks = Compiled.speaks

    def counted(rule: Compiled, key: str, lower: str) -> bool:
        shown.append(key)
        return speaks(rule, key, lower)

    monkeypatch.setattr(Compiled, "speaks", counted)

    for number in range(1000):
        scanner.concern(f"k{number}")
    assert scanner.concern("phone").rules

    assert len(shown) <= 1000 * len(scanner._of_any_key) + len(scanner._with_context)
    assert 4 * len(scanner._of_any_key) < len(scanner._with_context)


@pytest.mark.parametrize("name", ENGINES)
def test_one_letter_again_and_again_is_looked_at_once(name: EngineName) -> None:
    engine = engine_of(name, scanner._triggers)

    assert len(engine.scan(b"\n" + b"A" * 100_000 + b"\n")) < 10
