"""Each rule finds its examples, to the character, and none of its counter-examples."""

import re

import pytest

from refold.redaction.engine import Redactor
from refold.redaction.rule import Example, Rule
from refold.redaction.rules import DEFAULT_RULES

ALL_RULES = Redactor()


EXAMPLES = [
    (rule, example)
    for rule in DEFAULT_RULES
    for example in (*rule.examples, *rule.counter_examples)
]


def split(example: Example) -> tuple[str | None, str]:
    return example if isinstance(example, tuple) else (None, example)


def plain(marked: str) -> str:
    return re.sub("[«»]", "", marked)


def expected(marked: str, kind: str) -> str:
    return re.sub("«.*?»", f"[REDACTED:{kind}]", marked, flags=re.DOTALL)


@pytest.mark.parametrize(("rule", "example"), EXAMPLES)
def test_a_rule_finds_exactly_what_its_example_marks(
    rule: Rule, example: Example
) -> None:
    key, marked = split(example)

    found, _ = Redactor((rule,)).text(plain(marked), key=key)

    assert found == expected(marked, rule.type)


@pytest.mark.parametrize(("rule", "example"), EXAMPLES)
def test_no_other_rule_disturbs_an_example(rule: Rule, example: Example) -> None:
    key, marked = split(example)

    found, _ = ALL_RULES.text(plain(marked), key=key)

    assert found == expected(marked, rule.type)


@pytest.mark.parametrize("rule", DEFAULT_RULES, ids=lambda rule: rule.id)
def test_every_rule_proves_itself(rule: Rule) -> None:
    assert any("«" in split(example)[1] for example in rule.examples)
    assert rule.counter_examples or rule.id == "phone.signature"
    assert not any("«" in split(example)[1] for example in rule.counter_examples)


def test_ids_are_unique() -> None:
    ids = [rule.id for rule in DEFAULT_RULES]

    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("rule", DEFAULT_RULES, ids=lambda rule: rule.id)
def test_every_repeat_of_a_pattern_is_bounded(rule: Rule) -> None:
    for pattern in (rule.pattern, rule.before, rule.context):
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
