"""Proof of rules: each finds its examples, twice the same, and no counter-example."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import cache

from refold.redaction.engine import Redactor
from refold.redaction.engines import quickest
from refold.redaction.plan import Plan
from refold.redaction.policy_parts import Wrong
from refold.redaction.rule import Example, Rule

_MARKED = re.compile("«.*?»", re.DOTALL)


def prove(rule: Rule, *, min_score: float = 0.6) -> None:
    """Redact the rule's examples with it alone.

    An example with «marks» must be redacted there and nowhere else, one without must
    be redacted somewhere.

    Raises Wrong; its place starts within the rule.
    """
    plan = Plan(name="proof", rules=(rule,), engine="stdlib", min_score=min_score)
    _prove(Redactor(plan), rule)


def prove_stable(rules: Iterable[Rule], plan: Plan) -> None:
    """Redact the examples of ``rules`` twice, as ``plan`` says and in all its rules.

    Raises Wrong; its place begins with the place of the rule among ``rules``.
    """
    redactor = Redactor(replace(plan, engine=quickest()))
    for number, rule in enumerate(rules):
        for index, example in enumerate(rule.examples):
            key, text = _parted(example)
            once, _ = redactor.text(_plain(text), key=key)
            if redactor.text(once, key=key)[0] != once:
                place = (number, "examples", index)
                raise Wrong(place, "redacting it twice changes it again")


@cache
def proved(rules: tuple[Rule, ...]) -> bool:
    """Prove a pack that comes with Refold, all of it together, once in a process.

    Raises Wrong, which names the rule.
    """
    redactor = Redactor(Plan(name="proof", rules=rules, engine=quickest()))
    for rule in rules:
        try:
            _prove(redactor, rule)
        except Wrong as wrong:
            which = " ".join(str(step) for step in wrong.place)
            raise Wrong(
                ("packs",), f"rule {rule.id} fails its own {which}: {wrong.reason}"
            ) from None
    return True


def _prove(redactor: Redactor, rule: Rule) -> None:
    for index, example in enumerate(rule.examples):
        _prove_example(redactor, rule, example, index)
    for index, example in enumerate(rule.counter_examples):
        key, text = _parted(example)
        if redactor.text(text, key=key)[1].rules.get(rule.id):
            raise Wrong(("counter_examples", index), "the rule finds a value in it")


def _prove_example(
    redactor: Redactor, rule: Rule, example: Example, index: int
) -> None:
    key, marked = _parted(example)
    place = ("examples", index)
    text = _plain(marked)
    found, _ = redactor.text(text, key=key)
    if found == text:
        raise Wrong(place, "the rule finds nothing in it")
    if text != marked and found != _MARKED.sub(f"[REDACTED:{rule.type}]", marked):
        raise Wrong(place, "the rule finds something else than what is «marked» in it")
    if redactor.text(found, key=key)[0] != found:
        raise Wrong(place, "redacting it twice changes it again")


def _parted(example: Example) -> tuple[str | None, str]:
    return example if isinstance(example, tuple) else (None, example)


def _plain(marked: str) -> str:
    return _MARKED.sub(lambda match: match[0][1:-1], marked)
