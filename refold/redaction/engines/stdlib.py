"""The standard library: literals by searching bytes, digits by a table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from refold.redaction.engines.trigger import AFTER, BEFORE, Trigger
from refold.redaction.fold import telling

_RUN = re.compile(rb"[0-9](?:[ .()\-/]{0,3}[0-9]){5,}+")
_BETWEEN = b" .()-/"
_ZEROS = bytes.maketrans(b"123456789", b"000000000")
# Tokens are long runs of these: that they are there is soon known, and few are.
_THEN = re.compile(r"\[((?:\\.|[^\]\\])+)\]\{(\d+)\}")
_OF_TOKENS = frozenset(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.=+/%~"
)
_LEAST = 14
_TABLE = bytes(120 if code in _OF_TOKENS else 32 for code in range(256))
_TOKENS = re.compile(rb"x{14,}+")
# The number of a trigger, and what must follow its literal.
_Near: TypeAlias = tuple[int, re.Pattern[bytes] | None]
# How far from digits what belongs to their shape may be.
_NEAR = 48


class _Root(NamedTuple):
    literal: bytes
    holding: list[tuple[bytes, list[_Near]]]


class _Digits(NamedTuple):
    number: int
    least: int
    words: tuple[bytes, ...]
    shape: re.Pattern[bytes]


class Stdlib:
    """Each literal is searched for by itself; each long run of digits is a hit."""

    name = "stdlib"
    gates = False

    def __init__(self, triggers: Sequence[Trigger]) -> None:
        keys = [trigger.shape.encode() for trigger in triggers if trigger.key]
        self._keys = [re.compile(shape, re.IGNORECASE) for shape in keys]
        self._literals: dict[bytes, list[_Near]] = {}
        self._prefixes: dict[bytes, list[_Near]] = {}
        self._runs: list[_Digits] = []
        for number, trigger in enumerate(triggers):
            if trigger.run and not trigger.key:
                words = tuple(word.encode() for word in trigger.words)
                shape = re.compile(trigger.shape.encode(), re.IGNORECASE)
                self._runs.append(_Digits(number, trigger.run, words, shape))
            elif trigger.literal:
                near = (number, _near(trigger))
                literals = self._prefixes if _of_token(trigger) else self._literals
                literals.setdefault(trigger.literal.encode(), []).append(near)

        self._words = {word for one in self._runs for word in one.words}
        self._roots = _nested(self._literals)
        self._prefix_roots = _nested(self._prefixes)

    def clean(self, data: bytes) -> bool:
        return not (any(key.search(data) for key in self._keys) or self.scan(data))

    def scan(self, data: bytes) -> list[tuple[int, int]]:
        lower = data.lower()
        hits: list[tuple[int, int]] = []
        _look(self._roots, lower, lower, hits)
        tokens = _tokens(lower)
        if tokens:
            _look(self._prefix_roots, tokens, lower, hits)
        if not data.isascii() or b"\\u" in data or b"\x1b" in data:
            hits += self._telling(data)
        if b"000000" in data.translate(_ZEROS, _BETWEEN):
            wanted = self._wanted(lower)
            for match in _RUN.finditer(data):
                hits += _near_digits(wanted, data, lower, *match.span())
        return hits

    def _wanted(self, lower: bytes) -> list[_Digits]:
        """The shapes that need no words, or of whose words there are some."""
        there = {word for word in self._words if word in lower}
        wanted = []
        for one in self._runs:
            words = tuple(word for word in one.words if word in there)
            if words or not one.words:
                wanted.append(one._replace(words=words))
        return wanted

    def _telling(self, data: bytes) -> Iterator[tuple[int, int]]:
        """What says that a text must be folded, which is of characters."""
        text = data.decode()
        for end in telling(text):
            yield 0, len(text[:end].encode())


def _near_digits(
    wanted: Sequence[_Digits], data: bytes, lower: bytes, start: int, end: int
) -> Iterator[tuple[int, int]]:
    """The shapes that the digits at a place, with what is around them, may have."""
    many = len(data[start:end].translate(None, _BETWEEN))
    first, last = max(0, start - _NEAR), min(len(data), end + _NEAR)
    near = b""
    for number, least, words, shape in wanted:
        if many < least:
            continue
        if words:
            near = near or lower[max(0, start - BEFORE) : end + AFTER]
            if not any(word in near for word in words):
                continue
        # Each end counts, as one of them may be of other digits.
        match = shape.search(data, first, last)
        while match:
            yield number, match.end()
            match = shape.search(data, max(match.end() - 1, match.start() + 1), last)


def _of_token(trigger: Trigger) -> bool:
    """Whether the literal, with what must follow, is a token."""
    then = _THEN.fullmatch(trigger.then)
    if then is None or not _OF_TOKENS.issuperset(trigger.literal.encode()):
        return False
    members = re.sub(r".-.", "", then[1].replace("\\", ""))
    follows = not then[1].startswith("^") and _OF_TOKENS.issuperset(members.encode())
    return follows and len(trigger.literal) + int(then[2]) >= _LEAST


def _tokens(lower: bytes) -> bytes:
    """All that may be a token."""
    found = _TOKENS.finditer(lower.translate(_TABLE))
    return b" ".join([lower[match.start() : match.end()] for match in found])


def _nested(literals: Mapping[bytes, list[_Near]]) -> list[_Root]:
    """The literals, those that hold another under the shortest of these."""
    roots: list[_Root] = []
    for literal in sorted(literals, key=len):
        root = next((one for one in roots if one.literal in literal), None)
        if root is None:
            roots.append(_Root(literal, [(literal, literals[literal])]))
        else:
            root.holding.append((literal, literals[literal]))
    return roots


def _look(
    roots: Sequence[_Root], within: bytes, lower: bytes, hits: list[tuple[int, int]]
) -> None:
    """Add the places in ``lower`` of all literals that are ``within``."""
    for root, holding in roots:
        if root in within:
            for literal, numbers in holding:
                if literal in within:
                    hits += _near_places(lower, literal, numbers)


def _near_places(
    lower: bytes, literal: bytes, numbers: Sequence[_Near]
) -> Iterator[tuple[int, int]]:
    place = lower.find(literal)
    while place >= 0:
        end = place + len(literal)
        for number, near in numbers:
            if near is None or near.match(lower, end):
                yield number, end
        place = lower.find(literal, place + 1)


def _near(trigger: Trigger) -> re.Pattern[bytes] | None:
    """What must follow, unless it needs characters rather than bytes."""
    if not trigger.then or not trigger.then.isascii() or "[^" in trigger.then:
        return None
    return re.compile(trigger.then.encode(), re.IGNORECASE)


@lru_cache(maxsize=8)
def engine(triggers: tuple[Trigger, ...]) -> Stdlib:
    """The engine over ``triggers``, compiled once."""
    return Stdlib(triggers)
