"""The standard library's engine: which rules concern some texts, what they find."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple, TypeAlias

from refold.redaction.fold import fold
from refold.redaction.rule import Candidate, Rule

_DIGITS = re.compile(r"[0-9](?:[ .()\-/]{0,3}[0-9]){5,}+")
# How far a value may reach around its run of digits, and a word around its value.
_LEAD, _TRAIL, _CONTEXT = 12, 24, 64
# What may stand between a word and the value it speaks of.
_LINK = (
    r"[0-9]?(?:[\s:：=＝是为\"'`*#_\-–—.?？()+>~/\\]|(?<![\"'\]}0-9])[,，]"
    r"|(?i:number|num|no|nr|is|was|at|on|to|me|us|home|work|office|value)|号码?|编号){0,24}"
    r"[0-9]?"
)


class Finding(NamedTuple):
    """An extent of a text that must go, and the rule that says so."""

    start: int
    end: int
    rule: Rule


class Compiled(NamedTuple):
    """A rule, ready to run."""

    rule: Rule
    pattern: re.Pattern[str]
    before: re.Pattern[str] | None
    context: re.Pattern[str] | None

    def concerns(self, key: str) -> bool:
        """Whether ``key`` is context for what stands under it."""
        return bool(key) and self.context is not None and bool(self.context.search(key))

    def gated(self, lower: str) -> bool:
        """Whether ``lower`` holds none of the literals of which it needs one."""
        gate = self.rule.gate
        return bool(gate) and not any(literal in lower for literal in gate)


Rules: TypeAlias = Sequence[Compiled]


class Survey(NamedTuple):
    """Which rules may find something in which of some texts: all others find nothing.

    ``by_key`` are those that may find something in any text, if its key says so.
    """

    by_text: Mapping[str, Rules]
    by_key: Rules


class _Text(NamedTuple):
    """A folded text, and the same in lower case with every character in its place."""

    text: str
    lower: str


class _Window(NamedTuple):
    """A part of a text with runs of digits, the longest ``run`` characters long."""

    start: int
    end: int
    run: int


def _lower(text: str) -> str:
    # The one letter whose lower case is longer than itself.
    return text.replace("İ", "i").lower()


class Scanner:
    """Compiled rules.  It holds no text and changes nothing: threads may share it."""

    engine = "stdlib"

    def __init__(self, rules: Sequence[Rule]) -> None:
        compiled = [_compiled(rule) for rule in rules]
        self._gated = _by_literal(c for c in compiled if c.rule.at != "digits")
        self._numeric = _by_literal(c for c in compiled if c.rule.at == "digits")

    def survey(self, texts: Sequence[str]) -> Survey:
        """Look at all ``texts`` at once for what rules need to find anything."""
        joined = _Joined(texts)
        found: dict[str, dict[str, Compiled]] = {}
        by_key: dict[str, Compiled] = {}
        for literal, rules in self._gated.items():
            if literal in joined.lower:
                by_key |= {name: c for name, c in rules.items() if c.rule.at == "leaf"}
                for text in joined.holding(literal):
                    found.setdefault(text, {}).update(rules)
        with_digits = joined.with_digits()
        if with_digits:
            numeric: dict[str, Compiled] = {}
            for literal, rules in self._numeric.items():
                if literal in joined.lower:
                    numeric |= rules
            for text in with_digits:
                found.setdefault(text, {}).update(numeric)
        by_text = {text: tuple(rules.values()) for text, rules in found.items()}
        return Survey(by_text, tuple(by_key.values()))

    def findings(
        self, text: str, rules: Rules, *, key: str, whole: bool
    ) -> list[Finding]:
        """What ``rules`` find in ``text``, which stands under ``key``.

        ``whole``: the text is all there is under the key.
        """
        folded = fold(text)
        prepared = _Text(folded.text, _lower(folded.text))
        windows = _windows(prepared.text, rules)
        found = []
        for compiled in rules:
            concerned = compiled.concerns(key)
            if not concerned and compiled.gated(prepared.lower):
                continue
            candidates = _candidates(compiled, prepared, windows, whole=whole)
            found += [
                Finding(*folded.span(candidate.start, candidate.end), compiled.rule)
                for candidate in candidates
                if (concerned or _in_context(compiled, candidate, prepared))
                and _accepted(compiled, candidate)
            ]
        return found


class _Joined:
    """Some texts as one, folded and in lower case, and which of them stands where."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = list(dict.fromkeys(texts))
        folded = [fold(text).text for text in self._texts]
        self.lower = _lower("\n".join(folded))
        self._ends = list(accumulate(len(text) + 1 for text in folded))

    def holding(self, literal: str) -> Iterator[str]:
        """The texts that hold ``literal``."""
        return self._each(partial(self.lower.find, literal))

    def with_digits(self) -> list[str]:
        """The texts that hold a long run of digits."""

        def find(start: int) -> int:
            match = _DIGITS.search(self.lower, start)
            return match.start() if match else -1

        return list(self._each(find))

    def _each(self, find: Callable[[int], int]) -> Iterator[str]:
        """The texts in which ``find`` finds a place, each once."""
        place = find(0)
        while place >= 0:
            index = bisect_right(self._ends, place)
            yield self._texts[index]
            place = find(self._ends[index])


def _by_literal(rules: Iterable[Compiled]) -> dict[str, dict[str, Compiled]]:
    """The rules by gate literal, then by id; one without a gate stands under "".

    Every text holds the empty literal.
    """
    found: dict[str, dict[str, Compiled]] = {}
    for compiled in rules:
        for literal in compiled.rule.gate or ("",):
            found.setdefault(literal, {})[compiled.rule.id] = compiled
    return found


def _compiled(rule: Rule) -> Compiled:
    return Compiled(
        rule,
        re.compile(rule.pattern),
        re.compile(rf"(?:{rule.before})\Z") if rule.before else None,
        re.compile(rf"(?:{rule.context}){_LINK}\Z") if rule.context else None,
    )


def _in_context(compiled: Compiled, found: Candidate, text: _Text) -> bool:
    """Whether a word of the rule's context, if it has one, stands before the value."""
    if not compiled.context:
        return True
    start = max(0, found.start - _CONTEXT)
    if compiled.gated(text.lower[start : found.start]):
        return False
    return bool(compiled.context.search(text.text, start, found.start))


def _accepted(compiled: Compiled, found: Candidate) -> bool:
    validator = compiled.rule.validator
    return found.start < found.end and (validator is None or validator(found))


def _windows(text: str, rules: Rules) -> list[_Window]:
    """Where numbers may be: the long runs of digits with some room, merged."""
    windows: list[_Window] = []
    if not any(compiled.rule.at == "digits" for compiled in rules):
        return windows
    for match in _DIGITS.finditer(text):
        start, end = max(0, match.start() - _LEAD), min(len(text), match.end() + _TRAIL)
        run = match.end() - match.start()
        if windows and start <= windows[-1].end:
            start, _, longest = windows.pop()
            run = max(run, longest)
        windows.append(_Window(start, end, run))
    return windows


def _candidates(
    compiled: Compiled, text: _Text, windows: Sequence[_Window], *, whole: bool
) -> Iterator[Candidate]:
    match compiled.rule.at:
        case "gate":
            return _at_gate(compiled, text)
        case "digits":
            return _in_windows(compiled, text.text, windows)
        case "leaf":
            return _leaf(compiled, text.text) if whole else iter(())


def _at_gate(compiled: Compiled, text: _Text) -> Iterator[Candidate]:
    for literal in compiled.rule.gate:
        place = text.lower.find(literal)
        while place >= 0:
            found = _at(compiled, text.text, place)
            if found:
                yield found
            place = text.lower.find(literal, place + 1)


def _at(compiled: Compiled, text: str, place: int) -> Candidate | None:
    match = compiled.pattern.match(text, place)
    if not match:
        return None
    start, end = match.span(compiled.rule.group)
    if compiled.before:
        lead = compiled.before.search(text, max(0, place - compiled.rule.reach), place)
        if not lead:
            return None
        start = start if compiled.rule.group else lead.start()
    return Candidate(text, start, end, match)


def _in_windows(
    compiled: Compiled, text: str, windows: Sequence[_Window]
) -> Iterator[Candidate]:
    for start, end, run in windows:
        if run < compiled.rule.digits:
            continue
        for match in compiled.pattern.finditer(text, start, end):
            yield Candidate(text, *match.span(compiled.rule.group), match)


def _leaf(compiled: Compiled, text: str) -> Iterator[Candidate]:
    match = compiled.pattern.fullmatch(text)
    if match:
        yield Candidate(text, *match.span(compiled.rule.group), match)
