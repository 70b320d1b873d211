"""Rules of a policy, made into rules that an engine compiles."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from refold.redaction.patterns import LONGEST_MATCH, BadPattern, Pattern
from refold.redaction.policy_parts import OwnRule, Wrong
from refold.redaction.rule import Rule
from refold.redaction.types import canonical, well_formed
from refold.redaction.validators import VALIDATORS

# Above those of the packs: what an organisation calls its own is called so.
_PRIORITY: Final = 100
_LEAST_DIGITS: Final = 6
# Less than what an engine looks at around a run of digits.
_MOST_BEFORE, _MOST_AFTER = 12, 20
_SHAPE: Final = r"[0-9](?:[ .()\-/]{0,3}[0-9]){%d}"
_ID = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z0-9_]+)*")


class _Anchor(NamedTuple):
    """Where an engine may try a pattern: at literals, its item and source divided."""

    literals: tuple[str, ...]
    before: str
    rest: str
    reach: int


def rule_of(own: OwnRule, *, min_score: float) -> Rule:
    """The rule that ``own`` describes, in a policy that finds from ``min_score`` on.

    Raises Wrong; its place starts within the rule.
    """
    _check_names(own)
    pattern = _pattern(own)
    score, boost = _scores(own, min_score)
    rule = Rule(
        id=own.id,
        type=canonical(own.type),
        at="leaf",
        pattern=pattern.scoped(),
        group="value" if pattern.named else 0,
        validator=VALIDATORS[own.validator] if own.validator else None,
        score=score,
        context=_context(own),
        boost=boost,
        priority=_PRIORITY,
        examples=own.examples,
        counter_examples=own.counter_examples,
    )
    anchor = _anchor(own, pattern)
    if anchor is None:
        return _by_digits(rule, own, pattern)
    before = pattern.scoped(anchor.before) if anchor.before else ""
    return replace(
        rule,
        at="gate",
        gate=anchor.literals,
        before=before,
        reach=anchor.reach if before else 0,
        pattern=pattern.scoped(anchor.rest),
    )


def _check_names(own: OwnRule) -> None:
    if not _ID.fullmatch(own.id):
        raise Wrong(("id",), "an id is made of a-z, 0-9, _ and dots, like org.badge")
    if not well_formed(canonical(own.type)):
        raise Wrong(("type",), "a type is 2 to 40 of A-Z, 0-9 and _, a letter first")
    if own.validator and own.validator not in VALIDATORS:
        known = ", ".join(VALIDATORS)
        raise Wrong(("validator",), f"there is no validator of that name: {known}")


def _pattern(own: OwnRule) -> Pattern:
    place = ("pattern",)
    try:
        pattern = Pattern(own.pattern)
        pattern.check_ways()
    except BadPattern as error:
        raise Wrong(place, str(error)) from None
    if not pattern.shortest:
        raise Wrong(place, "it matches the empty text")
    if pattern.longest > LONGEST_MATCH:
        raise Wrong(
            place,
            f"a match may have {pattern.longest} characters, at most {LONGEST_MATCH} "
            "are allowed: bound its repeats",
        )
    return pattern


def _scores(own: OwnRule, min_score: float) -> tuple[float, float]:
    """Score and boost; where context is required, nothing is found without it."""
    best = min(1.0, own.score + (own.context_boost if own.context else 0))
    if own.context_required and not own.context:
        raise Wrong(("context_required",), "it needs words in context")
    if best < min_score:
        raise Wrong(
            ("score",),
            f"it finds nothing: its best score is {best:g}, the policy's min_score "
            f"is {min_score:g}",
        )
    if own.context_required:
        return 0.0, best
    return own.score, own.context_boost


def _anchor(own: OwnRule, pattern: Pattern) -> _Anchor | None:
    """The literals that each match has, the most telling there are."""
    found = list(_anchors(own, pattern))
    if own.trigger and not found:
        raise Wrong(
            ("trigger",),
            "no text of the trigger stands in every match, before or at the start of "
            "the group `value` if there is one",
        )
    return max(
        found, key=lambda anchor: min(map(_weight, anchor.literals)), default=None
    )


def _anchors(own: OwnRule, pattern: Pattern) -> Iterator[_Anchor]:
    chosen = tuple(dict.fromkeys(text.lower() for text in own.trigger))
    for index, literals in pattern.literals():
        if chosen:
            if not all(literal.startswith(chosen) for literal in literals):
                continue
            literals = chosen
        if any(_weight(literal) < 3 for literal in literals):
            continue
        before, rest = pattern.split(index)
        if not pattern.named or pattern.holds_value(index):
            yield _Anchor(literals, before, rest, max(1, pattern.width_before(index)))


def _weight(literal: str) -> int:
    """How telling a literal is: its characters but spaces, outside of ASCII double."""
    shown = "".join(literal.split())
    return sum(1 if character.isascii() else 2 for character in shown)


def _by_digits(rule: Rule, own: OwnRule, pattern: Pattern) -> Rule:
    """The rule, tried around runs of digits; with required context, near its words."""
    digits = _run(pattern)
    words = (word.split()[0].lower() for word in own.context)
    return replace(
        rule,
        at="digits",
        digits=digits,
        gate=tuple(dict.fromkeys(words)),
        shape="" if own.context_required else _SHAPE % (digits - 1),
    )


def _run(pattern: Pattern) -> int:
    run = pattern.digit_run()
    if run is None or run.digits < _LEAST_DIGITS:
        raise Wrong(
            ("pattern",),
            "it can be tried nowhere: every match must hold the same 3 characters or "
            f"more in a row (see trigger), or {_LEAST_DIGITS} digits",
        )
    if run.before > _MOST_BEFORE or run.after > _MOST_AFTER:
        raise Wrong(
            ("pattern",),
            f"it reaches too far from its digits: at most {_MOST_BEFORE} characters "
            f"before and {_MOST_AFTER} after",
        )
    return run.digits


def _context(own: OwnRule) -> str:
    """A pattern of the words, the last at most ``window`` characters before a value."""
    if not own.context:
        return ""
    if not all(word.strip() for word in own.context):
        raise Wrong(("context",), "a word is empty")
    words = "|".join(_word(word) for word in own.context)
    return rf"(?:{words})(?=[^\[\]]{{0,{own.window}}}\Z)[^\[\]]{{0,{own.window}}}"


def _word(word: str) -> str:
    """The word in any case, not within another; spaces may be _ or - in a key."""
    parts = r"[\s_\-]?".join(map(re.escape, word.split()))
    starts = r"(?<![A-Za-z])" if word[:1].isascii() and word[:1].isalpha() else ""
    return f"{starts}(?i:{parts})"
