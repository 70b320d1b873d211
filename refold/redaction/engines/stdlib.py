"""The standard library: literals by searching bytes, digits by a table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from refold.redaction.engines import AFTER, BEFORE, Hit, Trigger, holds_value, names
from refold.redaction.engines.fold import telling

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
# So many literals that share something are looked for only where that is.
_FEW = 4
# What few texts have, the rarest first.
_RARE = b"$%+~=/:_-"
# How far from digits what belongs to their shape may be.
_NEAR = 48


class _Root(NamedTuple):
    literal: bytes
    holding: list[tuple[bytes, list[_Near]]]


class _Digits(NamedTuple):
    number: int
    least: int
    shape: re.Pattern[bytes]


class Triggers:
    """Each literal is searched for by itself; each long run of digits is a hit."""

    name = "stdlib"
    gates = False

    def __init__(self, triggers: Sequence[Trigger]) -> None:
        keys = [trigger.shape.encode() for trigger in triggers if trigger.key]
        self._keys = [re.compile(shape, re.IGNORECASE) for shape in keys]
        literals: dict[bytes, list[_Near]] = {}
        prefixes: dict[bytes, list[_Near]] = {}
        self._shapes: list[_Digits] = []
        self._words: dict[bytes, list[int]] = {}
        for number, trigger in enumerate(triggers):
            if trigger.word:
                self._words.setdefault(trigger.word.encode(), []).append(number)
            elif trigger.run and not trigger.key:
                shape = re.compile(trigger.shape.encode(), re.IGNORECASE)
                self._shapes.append(_Digits(number, trigger.run, shape))
            elif trigger.literal:
                near = (number, _near(trigger))
                kind = prefixes if _of_token(trigger) else literals
                kind.setdefault(trigger.literal.encode(), []).append(near)

        # Literals and words, by the first character of them that is not ASCII.
        self._wide: dict[str, list[bytes]] = {}
        self._literals = literals
        for word in dict.fromkeys([*literals, *self._words]):
            if not word.isascii():
                first = next(one for one in word.decode() if not one.isascii())
                self._wide.setdefault(first, []).append(word)
        members = "".join(map(re.escape, self._wide)) or r"^\s\S"
        self._wide_ones = re.compile(f"[{members}]")
        self._plain_words = [word for word in self._words if word.isascii()]
        self._roots = _nested({w: near for w, near in literals.items() if w.isascii()})
        # Most texts in Latin letters have none of the bytes that those begin with.
        begin = {character.encode()[0] for character in self._wide}
        self._not_wide = bytes(set(range(256)) - begin)
        self._prefix_roots = _nested(prefixes)

    def in_json(self, data: bytes) -> list[Hit] | None:
        beside = holds_value(data)
        for key in self._keys:
            for match in key.finditer(data):
                if names(data, match.end(), beside=beside):
                    return None
        return self.scan(data)

    def scan(self, data: bytes) -> list[Hit]:
        lower = data.lower()
        hits: list[Hit] = []
        wide = not data.isascii()
        _look(self._roots, lower, lower, hits)
        there = self._wide_there(lower) if wide else []
        for word in there:
            hits += _near_places(lower, word, self._literals.get(word, ()))
        tokens = _tokens(lower)
        if tokens:
            _look(self._prefix_roots, tokens, lower, hits)
        if wide or b"\\u" in data or b"\x1b" in data:
            hits += self._telling(data)
        if b"000000" in data.translate(_ZEROS, _BETWEEN):
            runs = [match.span() for match in _RUN.finditer(data)]
            hits += self._spoken(lower, runs, there)
            for start, end, many in _together(data, runs):
                hits += _shaped(self._shapes, data[start:end], start, many)
        return hits

    def _wide_there(self, lower: bytes) -> list[bytes]:
        """What may be there of all that is not ASCII."""
        if not lower.translate(None, self._not_wide):
            return []
        seen = dict.fromkeys(self._wide_ones.findall(lower.decode()))
        return [word for character in seen for word in self._wide[character]]

    def _spoken(
        self, lower: bytes, runs: Sequence[Hit], wide: Sequence[bytes]
    ) -> Iterator[Hit]:
        """The words near the digits at these places."""
        near = [lower[max(0, start - BEFORE) : end + AFTER] for start, end in runs]
        around = b"\n".join(near)
        around = around if len(around) < len(lower) else lower
        there = [word for word in self._plain_words if word in around]
        there += [word for word in wide if word in self._words and word in around]
        for (_, end), text in zip(runs, near, strict=True):
            for word in there:
                if word in text:
                    for number in self._words[word]:
                        yield number, end

    def _telling(self, data: bytes) -> Iterator[Hit]:
        """What says that a text must be folded, which is of characters."""
        text = data.decode()
        before = byte = 0
        for end in sorted(set(telling(text))):
            byte += len(text[before:end].encode())
            before = end
            yield 0, byte


def _together(
    data: bytes, runs: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int, int]]:
    """The parts of ``data`` around runs, each byte once, and their most digits."""
    first = last = most = 0
    for start, end in runs:
        many = len(data[start:end].translate(None, _BETWEEN))
        if start - _NEAR > last:
            if most:
                yield first, last, most
            first, most = max(0, start - _NEAR), 0
        last, most = min(len(data), end + _NEAR), max(most, many)
    if most:
        yield first, last, most


def _shaped(
    shapes: Sequence[_Digits], data: bytes, first: int, many: int
) -> Iterator[Hit]:
    """The shapes in ``data``, which begins at ``first`` and has so many digits."""
    for number, least, shape in shapes:
        if many < least:
            continue
        # Each end counts, as one of them may be of other digits.
        match = shape.search(data)
        while match:
            yield number, first + match.end()
            match = shape.search(data, max(match.end() - 1, match.start() + 1))


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
    """The literals, those that hold another, or what many do, under the shortest."""
    many = Counter(shared for literal in literals for shared in _shared(literal))
    roots = [_Root(shared, []) for shared, times in many.items() if times >= _FEW]
    for literal in sorted(literals, key=len):
        root = next((one for one in roots if one.literal in literal), None)
        if root is None:
            roots.append(_Root(literal, [(literal, literals[literal])]))
        else:
            root.holding.append((literal, literals[literal]))
    return roots


def _shared(literal: bytes) -> Iterator[bytes]:
    """What other literals may have too, and few texts."""
    rare = [byte for byte in _RARE if byte in literal]
    if rare:
        yield bytes(rare[:1])
    elif len(literal) > 2 and literal[:2].isalpha():
        yield literal[:2]


def _look(roots: Sequence[_Root], within: bytes, lower: bytes, hits: list[Hit]) -> None:
    """Add the places in ``lower`` of all literals that are ``within``."""
    for root, holding in roots:
        if root in within:
            for literal, numbers in holding:
                if literal in within:
                    hits += _near_places(lower, literal, numbers)


def _near_places(
    lower: bytes, literal: bytes, numbers: Sequence[_Near]
) -> Iterator[Hit]:
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


def literals(texts: Sequence[str]) -> Callable[[str], tuple[list[str], bool]]:
    """Each literal is searched for by itself."""

    def found(text: str) -> tuple[list[str], bool]:
        return [literal for literal in texts if literal in text], bool(telling(text))

    return found
