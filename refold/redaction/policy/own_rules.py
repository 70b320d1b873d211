"""Rules of a policy, made into rules that an engine compiles."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from refold.redaction.checks import (
    numbers,
    numbers as iban,
    numbers as national,
    secrets as keys,
    secrets as secret,
)
from refold.redaction.engines.patterns import LONGEST_MATCH, BadPattern, Pattern
from refold.redaction.rules.rule import Candidate, Rule, Validator
from refold.redaction.types import canonical, well_formed

Place: TypeAlias = tuple[str | int, ...]

_AT_LINE = re.compile(r"\(at line ([0-9]+), column [0-9]+\)")
_AT_END = re.compile(r"\(at end of document\)")
_HEADER = re.compile(r"\s*\[")
_ARRAY_HEADER = re.compile(r"\s*\[\[")


class Lines(Mapping[Place, int]):
    """The line of each table, key and element, by its place: ``("rules", 0, "id")``."""

    def __init__(self, text: str) -> None:
        self._found: dict[Place, int] = {(): 1}
        self._counts: dict[Place, int] = {}
        self._table: Place = ()
        for number, statement in _statements(text):
            self._read(number, statement)

    def __getitem__(self, place: Place) -> int:
        return self._found[place]

    def __iter__(self) -> Iterator[Place]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def nearest(self, place: Place) -> int:
        """The line of ``place``, or of the closest thing around it that is written."""
        while place not in self._found:
            place = place[:-1]
        return self._found[place]

    def _read(self, number: int, statement: str) -> None:
        value = tomllib.loads(statement)
        if _HEADER.match(statement):
            self._open(number, value, array=bool(_ARRAY_HEADER.match(statement)))
        else:
            self._add(self._table, value, number, statement)

    def _open(self, number: int, header: Any, *, array: bool) -> None:
        place: Place = ()
        while isinstance(header, dict) and header:
            ((name, header),) = header.items()
            # A table within an array of tables is one of the last element's.
            inner = isinstance(header, dict) and header
            place = self._last((*place, name)) if inner else (*place, name)
        if array:
            self._counts[place] = self._counts.get(place, -1) + 1
            self._found.setdefault(place, number)
            place = (*place, self._counts[place])
        self._found[place] = number
        self._table = place

    def _last(self, place: Place) -> Place:
        return (*place, self._counts[place]) if place in self._counts else place

    def _add(self, place: Place, value: Any, number: int, statement: str) -> None:
        self._found.setdefault(place, number)
        if isinstance(value, dict):
            for name, item in value.items():
                self._add((*place, name), item, number, statement)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                line = number + _offset(statement, item)
                self._add((*place, index), item, line, statement)


def line_of_syntax(error: tomllib.TOMLDecodeError, text: str) -> tuple[int, str]:
    """The line of a mistake in the writing of TOML, and what it is."""
    message = str(error)
    found = _AT_LINE.search(message)
    line = int(found[1]) if found else max(1, len(text.splitlines()))
    reason = _AT_END.sub("", _AT_LINE.sub("", message)).strip()
    return line, f"{reason[:1].lower()}{reason[1:]}"


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Each header and assignment of a valid TOML text with its first line."""
    held: list[str] = []
    start = 1
    for number, line in enumerate(text.split("\n"), start=1):
        if not held:
            start = number
        held.append(line)
        statement = "\n".join(held)
        try:
            value = tomllib.loads(statement)
        except tomllib.TOMLDecodeError:
            continue
        held = []
        if value:
            yield start, statement


def _offset(statement: str, item: Any) -> int:
    """How many lines into its array an element stands, as far as a text tells."""
    place = statement.find(item) if isinstance(item, str) and item else -1
    return statement.count("\n", 0, place) if place > 0 else 0


Score: TypeAlias = Annotated[float, Field(ge=0, le=1)]
Count: TypeAlias = Annotated[int, Field(ge=0)]
Action: TypeAlias = Literal["redact", "keep", "drop_leaf"]


class Wrong(ValueError):
    """What is wrong with a policy, and the place in it where that stands."""

    def __init__(self, place: Place, reason: str) -> None:
        super().__init__(reason)
        self.place, self.reason = place, reason


class Part(BaseModel):
    """A table of the file: it has the keys that are listed here, and no other."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid", frozen=True, strict=True, hide_input_in_errors=True
    )


class Scan(Part):
    """``[scan]``: what is looked at, and how long."""

    keys: bool = True
    numbers: Literal["contextual", "never", "always"] = "contextual"
    nested_json: bool = True
    max_leaf_bytes: Annotated[int, Field(ge=1024)] = 16_777_216
    budget_ms: Count = 0


class SkipPart(Part):
    """``[skip]``: what is left alone, by JSON pointer or by key."""

    pointers: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


class Allow(Part):
    """``[allow]``: values that are no finding, whatever a rule says."""

    values: tuple[str, ...] = ()
    regex: tuple[str, ...] = ()


class TypePart(Part):
    """``[types.X]``: what is done with findings of a type."""

    action: Action = "redact"


class LimitsPart(Part):
    """``[limits]``: of the size guard, in bytes."""

    leaf_bytes: int = 65_536
    event_bytes: int = 1_048_576


class RecognizerPart(Part):
    """``[recognizer]``: how far a recognizer that the program gives is trusted."""

    budget_ms: Annotated[int, Field(ge=1, le=600_000)] = 200
    max_bytes: Annotated[int, Field(ge=1)] = 65_536
    on_failure: Literal["closed", "open"] = "closed"
    language: str = "auto"


class OwnRule(Part):
    """``[[rules]]``: a rule of one's own."""

    id: str
    type: str
    pattern: Annotated[str, Field(min_length=1, max_length=1000)]
    trigger: tuple[str, ...] = ()
    context: tuple[str, ...] = ()
    context_required: bool = False
    window: Annotated[int, Field(ge=1, le=64)] = 24
    score: Score = 0.9
    context_boost: Score = 0.45
    validator: str = ""
    examples: Annotated[tuple[str, ...], Field(min_length=1)]
    counter_examples: tuple[str, ...] = ()


_SHAPES: Final = {
    "gb11643": re.compile(r"[0-9]{17}[0-9X]"),
    "gb32100": re.compile(r"[0-9A-Z]{18}"),
    "hkid": re.compile(r"[A-Z]{1,2}[0-9]{6}[0-9A]"),
    "ssn": re.compile(r"[0-9]{9}"),
    "twid": re.compile(r"[A-Z][0-9]{9}"),
}


def _shaped(name: str, found: Candidate) -> bool:
    """Whether the value, whatever pattern matched it, can be checked at all."""
    return bool(_SHAPES[name].fullmatch(national.bare(found.value)))


def _luhn(found: Candidate) -> bool:
    digits = re.sub("[^0-9]", "", found.value)
    return len(digits) > 1 and len(set(digits)) > 1 and numbers.luhn(digits)


def _iban(found: Candidate) -> bool:
    return national.bare(found.value).isascii() and iban.iban(found)


def _gb11643(found: Candidate) -> bool:
    return _shaped("gb11643", found) and national.id_card(found)


def _gb32100(found: Candidate) -> bool:
    return _shaped("gb32100", found) and national.uscc(found)


def _hkid(found: Candidate) -> bool:
    return _shaped("hkid", found) and national.hkid(found)


def _twid(found: Candidate) -> bool:
    return _shaped("twid", found) and national.taiwan_id(found)


def _ssn(found: Candidate) -> bool:
    return _shaped("ssn", found) and national.ssn(found)


def _entropy(found: Candidate) -> bool:
    return secret.entropy(found.value) >= 3


VALIDATORS: Final[Mapping[str, Validator]] = {
    "luhn": _luhn,
    "iban": _iban,
    "gb11643": _gb11643,
    "gb32100": _gb32100,
    "hkid": _hkid,
    "twid": _twid,
    "ssn": _ssn,
    "jwt": keys.jwt,
    "entropy": _entropy,
}


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
