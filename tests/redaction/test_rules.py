"""Each rule finds its examples, to the character, and none of its counter-examples."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from itertools import chain

import pytest
from hypothesis import given, settings, strategies as st

from refold.redaction.engines import EngineName, engine_of
from refold.redaction.plan import Plan
from refold.redaction.redactor import Redactor
from refold.redaction.rules import DEFAULT_PACKS, PACKS
from refold.redaction.rules.default import DEFAULT_RULES
from refold.redaction.rules.rule import Example, Rule
from refold.redaction.rules.secrets import carriers
from refold.redaction.scanner import Compiled, triggers

PROVEN = PACKS
RULES = tuple(chain.from_iterable(PROVEN.values()))
DEFAULT = Redactor()
MARKED = [
    (rule, example)
    for rule in RULES
    for example in rule.examples
    if isinstance(example, str)
]
ENGINES: tuple[EngineName, ...] = ("vectorscan", "stdlib")
packs = pytest.mark.parametrize("pack", PACKS)
engines = pytest.mark.parametrize("engine", ENGINES)


def split(example: Example) -> tuple[str | None, str]:
    return example if isinstance(example, tuple) else (None, example)


def without_marks(marked: str) -> str:
    return re.sub("[«»]", "", marked)


def expected(marked: str, kind: str) -> str:
    return re.sub("«.*?»", f"[REDACTED:{kind}]", marked, flags=re.DOTALL)


def examples_of(rules: Iterable[Rule]) -> Iterator[tuple[Rule, str | None, str]]:
    """Return each rule with each of its examples: the key, and the text."""
    for rule in rules:
        for example in (*rule.examples, *rule.counter_examples):
            yield rule, *split(example)


@packs
def test_each_rule_alone_finds_exactly_its_marked_examples(pack: str) -> None:
    for rule, key, marked in examples_of(PROVEN[pack]):
        redacted_text, _ = alone(rule).text(without_marks(marked), key=key)

        assert redacted_text == expected(marked, rule.type), rule.id


@cache
def alone(rule: Rule) -> Redactor:
    return Redactor(Plan(rules=(rule,), engine="stdlib"))


@engines
@packs
def test_each_rule_finds_its_marked_examples_among_its_pack(
    pack: str, engine: EngineName
) -> None:
    redactor = Redactor(Plan(rules=PACKS[pack], engine=engine))
    for rule, key, marked in examples_of(PROVEN[pack]):
        redacted_text, tally = redactor.text(without_marks(marked), key=key)

        assert "«" not in marked or redacted_text == expected(marked, rule.type), (
            rule.id
        )
        assert "«" in marked or rule.id not in tally.rules, rule.id


@pytest.mark.parametrize("pack", DEFAULT_PACKS)
def test_no_other_default_rule_disturbs_an_example(pack: str) -> None:
    for rule, key, marked in examples_of(PROVEN[pack]):
        redacted_text, _ = DEFAULT.text(without_marks(marked), key=key)

        for kept in re.split("«.*?»", marked, flags=re.DOTALL):
            assert kept in redacted_text, (rule.id, marked)
        for value in re.findall("«(.*?)»", marked, flags=re.DOTALL):
            assert value not in redacted_text, (rule.id, marked)


@packs
def test_every_rule_proves_itself(pack: str) -> None:
    for rule in PROVEN[pack]:
        assert any("«" in split(example)[1] for example in rule.examples), rule.id
        assert rule.counter_examples, rule.id
        assert not any(
            "«" in split(counter_example)[1]
            for counter_example in rule.counter_examples
        ), rule.id


def test_every_carrier_shows_three_findings_and_three_near_misses() -> None:
    for rule in carriers():
        assert len(rule.examples) >= 3, rule.id
        assert len(rule.counter_examples) >= 3, rule.id


def test_ids_are_unique() -> None:
    ids = [rule.id for rule in RULES]

    assert len(ids) == len(set(ids))


def test_the_default_packs_are_the_default_rules() -> None:
    assert [r for pack in DEFAULT_PACKS for r in PACKS[pack]] == list(DEFAULT_RULES)


@packs
def test_every_repeat_of_a_pattern_is_bounded(pack: str) -> None:
    for rule in PACKS[pack]:
        for pattern in (rule.pattern, rule.before, rule.context, rule.then, rule.shape):
            bare = re.sub(
                r"\[\^?\]?(?:\\.|[^\]\\])*\]", "C", re.sub(r"\\[^\[\]]", "E", pattern)
            )

            assert "*" not in bare, rule.id
            assert not re.search(r"(?<!})\+", bare), rule.id


def test_a_rule_that_could_never_find_anything_is_refused() -> None:
    with pytest.raises(ValueError, match="gate"):
        Rule(id="x", type="X", pattern="x")
    with pytest.raises(ValueError, match="lower case"):
        Rule(id="x", type="X", pattern="X", gate=("X",))


class Triggered:
    """Return the rules for which an engine would scan a text."""

    def __init__(self, engine: EngineName) -> None:
        rules_by_trigger = triggers([Compiled(n, rule) for n, rule in enumerate(RULES)])
        self._rules = [
            {compiled.rule.id for compiled in concerned}
            for concerned in rules_by_trigger.values()
        ]
        self._engine = engine_of(engine, tuple(rules_by_trigger))

    def __call__(self, text: str) -> set[str]:
        hits = self._engine.scan(f"\n{text}\n".encode())
        return set().union(*(self._rules[number] for number, _ in hits))


@cache
def triggered(engine: EngineName) -> Triggered:
    """All rules, compiled once, by the worker that needs them."""
    return Triggered(engine)


def unaided(rule: Rule) -> Rule:
    """Return the rule without the parts that only make it faster."""
    return replace(rule, lead="", then="", shape="")


def escapes(text: str) -> Iterator[str]:
    """Return ``text`` as it appears in JSON, and in JSON in JSON."""
    for _ in range(2):
        yield text
        text = text.replace("\\", "\\\\").replace('"', '\\"')
        text = text.replace("\n", "\\n").replace("\t", "\\t")
    yield text


@engines
@packs
def test_rules_are_triggered_by_their_examples_however_they_are_escaped(
    pack: str, engine: EngineName
) -> None:
    for rule, key, marked in examples_of(PROVEN[pack]):
        if rule.at != "leaf" and key is None and "«" in marked:
            for text in escapes(f"a\n{without_marks(marked)}\n"):
                assert rule.id in triggered(engine)(text), rule.id


@given(st.sampled_from(MARKED), st.data())
@settings(deadline=None)
def test_triggers_of_a_rule_hide_no_finding(
    marked: tuple[Rule, str], data: st.DataObject
) -> None:
    rule, example = marked
    text = list(without_marks(example))
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(0, len(text) - 1))
        change = data.draw(st.sampled_from([*"0aZ \t\n\"'\\:=-_.,/码@", ""]))
        text[place] = data.draw(st.sampled_from((change, change + text[place])))
    mutated = "".join(text)

    redacted_text, _ = Redactor(Plan(rules=(unaided(rule),), engine="stdlib")).text(
        mutated
    )

    for engine in ENGINES:
        assert redacted_text == mutated or rule.id in triggered(engine)(mutated)


@packs
def test_every_check_that_a_rule_names_exists(pack: str) -> None:
    for rule in PROVEN[pack]:
        for check in filter(None, (rule.check, rule.divider)):
            assert check.function.__qualname__ == check.name, rule.id
