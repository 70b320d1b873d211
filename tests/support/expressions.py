"""Texts that make a regular expression work hard, made from the expression itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Final

# The characters that texts are made of.
ALPHABET: Final = (
    "a0 -._/\\\"'=:,;@#$%&*+|()[]{}<>!?~^`\t\nAzZ9密１\u200bé" + "bcnrtux1"
)
# A repeat with fewer rounds cannot make much work.
_MANY: Final = 8
_END: Final = "\x01"
_FLAGS: Final = re.IGNORECASE | re.DOTALL | re.MULTILINE | re.ASCII


@dataclass
class Node:
    """A part of an expression, with its repeat.

    characters: the members of a class; empty for a group.
    ways:       the alternatives of a group.
    least:      the fewest rounds.
    most:       the most rounds, or None.
    """

    characters: str = ""
    ways: list[list[Node]] = field(default_factory=list)
    least: int = 1
    most: int | None = 1

    def sample(self) -> str:
        """A text that the part matches, apart from its looks around."""
        one = self.characters[:1]
        if self.ways:
            one = "".join(node.sample() for node in self.ways[0])
        return one * min(self.least, 64)


class _Reader:
    """Reads an expression.  What it does not know, it reads as nothing."""

    def __init__(self, source: str, flags: int) -> None:
        self._source = source
        self._flags = flags & _FLAGS
        self._place = 0

    def ways(self) -> list[list[Node]]:
        ways: list[list[Node]] = [[]]
        while self._place < len(self._source):
            character = self._source[self._place]
            if character == ")":
                break
            if character == "|":
                self._place += 1
                ways.append([])
                continue
            node = self._node()
            if node is not None:
                self._repeat(node)
                ways[-1].append(node)
        return ways

    def _node(self) -> Node | None:
        source = self._source
        start = self._place
        character = source[start]
        if character == "(":
            return self._group()
        if character == "[":
            end = start + 1
            if source[end] == "^":
                end += 1
            if source[end] == "]":
                end += 1
            while source[end] != "]":
                end += 2 if source[end] == "\\" else 1
            self._place = end + 1
            return Node(self._members(source[start : end + 1]))
        if character == "\\":
            length = 2
            following = source[start + 1]
            widths = {"x": 4, "u": 6, "U": 10}
            length = widths.get(following, 2)
            self._place += length
            if following in "AbBZ" or following.isdigit():
                return None
            return Node(self._members(source[start : start + length]))
        self._place += 1
        if character in "^$":
            return None
        if character == ".":
            return Node(self._members("."))
        return Node(character)

    def _group(self) -> Node | None:
        source = self._source
        start = self._place
        opening = re.compile(
            r"\((?:\?(?::|>|=|!|<=|<!|P<\w+>|P=\w+|\(\w+\)|#[^)]*|-?[a-z\-]+[:)]))?"
        ).match(source, start)
        assert opening is not None
        self._place = opening.end()
        kind = opening[0]
        if kind.endswith(")") and not kind.startswith("(?("):
            return None  # flags
        ways = self.ways()
        self._place += 1
        is_look = kind in ("(?=", "(?!", "(?<=", "(?<!")
        if is_look or kind.startswith("(?P="):
            self._skip_repeat()
            return None
        return Node("", ways)

    def _repeat(self, node: Node) -> None:
        quantifier = self._quantifier()
        if quantifier is None:
            return
        node.least, node.most = quantifier

    def _skip_repeat(self) -> None:
        self._quantifier()

    def _quantifier(self) -> tuple[int, int | None] | None:
        match = re.compile(r"(?:[*+?]|\{(\d*),?(\d*)\})[?+]?").match(
            self._source, self._place
        )
        if match is None:
            return None
        self._place = match.end()
        sign = match[0][0]
        if sign == "*":
            return 0, None
        if sign == "+":
            return 1, None
        if sign == "?":
            return 0, 1
        least = int(match[1] or 0)
        if "," not in match[0]:
            return least, least
        return least, int(match[2]) if match[2] else None

    def _members(self, class_: str) -> str:
        return _members_of(class_, self._flags)


@cache
def _members_of(class_: str, flags: int) -> str:
    pattern = re.compile(class_, flags)
    return "".join(letter for letter in ALPHABET if pattern.fullmatch(letter))


def read(pattern: re.Pattern[str]) -> list[list[Node]]:
    """The alternatives of an expression."""
    return _Reader(pattern.pattern, pattern.flags).ways()


def pumped(pattern: re.Pattern[str], size: int) -> Iterator[str]:
    """Texts of about ``size`` characters that repeat what the expression repeats."""
    seen: set[str] = set()
    for before, unit in _pumps(read(pattern), ""):
        if not unit:
            continue
        body = unit * (size // len(unit) + 1)
        for text in (before + body, before + body + _END):
            if text not in seen:
                seen.add(text)
                yield text


def _pumps(ways: list[list[Node]], before: str) -> Iterator[tuple[str, str]]:
    """(text before, repeated text) of each repeat, and of the whole."""
    for way in ways:
        prefix = before
        for node in way:
            is_long = node.most is None or node.most >= _MANY
            if is_long and node.characters:
                for letter in node.characters[:3] + node.characters[-1:]:
                    yield prefix, letter
            if node.ways:
                if is_long:
                    for inner in node.ways:
                        yield prefix, "".join(part.sample() for part in inner)
                yield from _pumps(node.ways, prefix)
            prefix += node.sample()
        whole = "".join(node.sample() for node in way)
        yield before, whole
