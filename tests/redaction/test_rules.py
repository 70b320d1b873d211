"""Each rule finds its examples, to the character, and none of its counter-examples."""

import re
from collections.abc import Iterator

import pytest
import re2
from hypothesis import given, settings, strategies as st

from refold.redaction.plan import Plan
from refold.redaction.redactor import Redactor
from refold.redaction.rules import DEFAULT_PACKS, DEFAULT_RULES, PACKS
from refold.redaction.rules.rule import Example, Rule

RULES = tuple(rule for pack in PACKS.values() for rule in pack)
DEFAULT = Redactor()
MARKED = [
    (rule, example)
    for rule in RULES
    for example in rule.examples
    if isinstance(example, str)
]


def split(example: Example) -> tuple[str | None, str]:
    return example if isinstance(example, tuple) else (None, example)


def plain(marked: str) -> str:
    return re.sub("[«»]", "", marked)


def expected(marked: str, kind: str) -> str:
    return re.sub("«.*?»", f"[REDACTED:{kind}]", marked, flags=re.DOTALL)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_finds_exactly_what_its_examples_mark(rule: Rule) -> None:
    redactor = Redactor(Plan(rules=(rule,), engine="stdlib"))
    for example in (*rule.examples, *rule.counter_examples):
        key, marked = split(example)

        found, _ = redactor.text(plain(marked), key=key)

        assert found == expected(marked, rule.type)


@pytest.mark.parametrize("rule", DEFAULT_RULES, ids=lambda rule: rule.id)
def test_no_other_default_rule_disturbs_an_example(rule: Rule) -> None:
    for example in (*rule.examples, *rule.counter_examples):
        key, marked = split(example)

        found, _ = DEFAULT.text(plain(marked), key=key)

        for kept in re.split("«.*?»", marked, flags=re.DOTALL):
            assert kept in found, marked
        for value in re.findall("«(.*?)»", marked, flags=re.DOTALL):
            assert value not in found, marked


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_every_rule_proves_itself(rule: Rule) -> None:
    assert any("«" in split(example)[1] for example in rule.examples)
    assert rule.counter_examples
    assert not any("«" in split(example)[1] for example in rule.counter_examples)


def test_ids_are_unique() -> None:
    ids = [rule.id for rule in RULES]

    assert len(ids) == len(set(ids))


def test_the_default_packs_are_the_default_rules() -> None:
    assert [r for pack in DEFAULT_PACKS for r in PACKS[pack]] == list(DEFAULT_RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_every_repeat_of_a_pattern_is_bounded(rule: Rule) -> None:
    for pattern in (rule.pattern, rule.before, rule.context, rule.then, rule.shape):
        bare = re.sub(
            r"\[\^?\]?(?:\\.|[^\]\\])*\]", "C", re.sub(r"\\[^\[\]]", "E", pattern)
        )

        assert "*" not in bare
        assert not re.search(r"(?<!})\+", bare)


def test_a_rule_that_could_never_find_anything_is_refused() -> None:
    with pytest.raises(ValueError, match="gate"):
        Rule(id="x", type="X", pattern="x")
    with pytest.raises(ValueError, match="lower case"):
        Rule(id="x", type="X", pattern="X", gate=("X",))


def accelerators(rule: Rule) -> list[str]:
    if rule.at == "digits":
        return [rule.shape] if rule.shape else []
    return [rf"{rule.lead}{re.escape(gate)}{rule.then}" for gate in rule.gate]


def triggered(rule: Rule, text: str) -> bool:
    """Whether an engine would look at ``text`` for ``rule`` at all."""
    options = re2.Options()
    options.case_sensitive = False
    options.log_errors = False
    data = f"\n{text}\n".encode()
    patterns = accelerators(rule)
    return not patterns or any(
        re2.search(pattern, data, options=options) for pattern in patterns
    )


def unaided(rule: Rule) -> Rule:
    """The same rule, without what only makes it faster."""
    fields = {name: getattr(rule, name) for name in rule.__slots__}
    return Rule(**{**fields, "lead": "", "then": "", "shape": ""})


def escapes(text: str) -> Iterator[str]:
    """``text`` as it stands in JSON, and in JSON in JSON."""
    for _ in range(2):
        yield text
        text = text.replace("\\", "\\\\").replace('"', '\\"')
        text = text.replace("\n", "\\n").replace("\t", "\\t")
    yield text


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_is_triggered_by_its_examples_however_they_are_escaped(
    rule: Rule,
) -> None:
    for example in rule.examples:
        if rule.at != "leaf" and isinstance(example, str):
            for text in escapes(f"a\n{plain(example)}\n"):
                assert triggered(rule, text)


@given(st.sampled_from(MARKED), st.data())
@settings(deadline=None)
def test_what_makes_a_rule_faster_never_hides_what_it_finds(
    marked: tuple[Rule, str], data: st.DataObject
) -> None:
    rule, example = marked
    text = list(plain(example))
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(0, len(text) - 1))
        change = data.draw(st.sampled_from([*"0aZ \t\n\"'\\:=-_.,/码@", ""]))
        text[place] = data.draw(st.sampled_from((change, change + text[place])))
    mutated = "".join(text)

    found, _ = Redactor(Plan(rules=(unaided(rule),), engine="stdlib")).text(mutated)

    assert found == mutated or triggered(rule, mutated)
