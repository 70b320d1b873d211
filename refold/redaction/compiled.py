"""Rules made ready to run: patterns compiled, and what triggers each of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from refold.redaction.engines.trigger import MANY, Trigger, spoken, spoken_after
from refold.redaction.extents import reach
from refold.redaction.fold import TELLING
from refold.redaction.rule import Rule

# How far before its value a word of its context may begin, in characters.
CONTEXT: Final = 64
# How far before a literal of the gate a pattern of context may begin.
WORD: Final = 16
# How far a value may reach around its run of digits.
LEAD, TRAIL = 12, 24
# What may stand between a word and the value it speaks of.
_LINK = (
    r"[0-9]?(?:[\s:：=＝是为\"'`*#_\-–—.?？()+>~/\\|]|(?<![\"'\]}0-9])[,，]"
    r"|(?i:number|num|no|nr|is|was|at|on|to|me|us|home|work|office|value)|号码?|编号){0,24}"
    r"[0-9]?"
)
# A word that ends a key, or a text that names what stands beside it, as JSON has it.
_NEAR = 24
_NEAR_QUOTE = rf'[^"]{{0,{_NEAR}}}"'
# Of letters, only these and not their other case.
TELLING_TRIGGERS: Final = tuple(Trigger(shape=f"(?-i:{one})") for one in TELLING)


class Compiled(NamedTuple):
    """A rule, ready to run; ``number`` is its place among the rules of a scanner.

    ``extent`` is how many characters from its anchor on it looks at, at most.
    """

    number: int
    rule: Rule
    pattern: re.Pattern[str]
    before: re.Pattern[str] | None
    context: re.Pattern[str] | None

    @property
    def extent(self) -> int:
        return reach(self.rule.pattern) + TRAIL

    def spoken_of(self, near: str) -> bool:
        """Whether what is near a number, in lower case, has a literal of the gate."""
        gate = self.rule.gate
        for word in gate:
            if word in near:
                return True
        return not gate

    def speaks(self, key: str, lower: str) -> bool:
        """Whether ``key``, in lower case too, is context for what is under it."""
        near = self.rule.at == "gate" or any(
            lower.rfind(word) >= max(0, len(lower) - _NEAR - len(word))
            for word in self.rule.gate
        )
        return near and self.context is not None and bool(self.context.search(key))


def compiled(number: int, rule: Rule) -> Compiled:
    return Compiled(
        number,
        rule,
        re.compile(rule.pattern),
        re.compile(rf"(?:{rule.before})\Z") if rule.before else None,
        re.compile(rf"(?:{rule.context}){_LINK}\Z") if rule.context else None,
    )


def triggers(rules: Sequence[Compiled]) -> dict[Trigger, list[Compiled]]:
    """What to look for, and the rules that each of it may make find something.

    A text in which there is nothing of it is clean under any key.
    """
    found: dict[Trigger, list[Compiled]] = {trigger: [] for trigger in TELLING_TRIGGERS}
    # Words of keys; those in ASCII apart, as engines look for them faster.
    keys: dict[tuple[bool, int], dict[str, None]] = {}
    shapes: dict[tuple[str, int], list[Compiled]] = {}
    for ready in rules:
        rule = ready.rule
        if rule.at == "digits" and rule.gate:
            for word in rule.gate:
                found.setdefault(spoken(word), []).append(ready)
                if not rule.context:
                    found.setdefault(spoken_after(word), []).append(ready)
        elif rule.at == "digits":
            shapes.setdefault(_shape(rule), []).append(ready)
        elif rule.at == "gate":
            for literal in rule.gate:
                trigger = Trigger(literal, rule.lead, rule.then)
                found.setdefault(trigger, []).append(ready)
        if rule.at == "leaf" or (rule.context and rule.in_keys):
            run = MANY if rule.at == "digits" and rule.digits >= MANY else 0
            for word in rule.gate:
                keys.setdefault((word.isascii(), run), {})[re.escape(word)] = None
    for (shape, least), alike in shapes.items():
        found[Trigger(shape=shape, run=least)] = alike
    for (_, run), words in keys.items():
        near = rf"(?:{'|'.join(words)}){_NEAR_QUOTE}"
        found[Trigger(shape=near, run=run, key=True)] = []
    return found


def _shape(rule: Rule) -> tuple[str, int]:
    """How digits look that may be a value, and how many there are at least."""
    least = max(rule.digits, 6)
    return rule.shape or rf"[0-9](?:[ .()\-/]{{0,3}}[0-9]){{{least - 1}}}", least
