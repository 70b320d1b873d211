"""What engines look for: a literal with its surroundings, or a shape of digits."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from refold.redaction.extents import reach


class Trigger(NamedTuple):
    """One thing to look for in a text, in any ASCII case.

    literal: what must be there, in lower case; empty for a shape.
    lead:    a pattern of the character before the literal, or empty.
    then:    a pattern of what follows the literal, or empty.
    shape:   a pattern, where there is no literal.
    run:     of digits, how many there are at least; 0: it is not about digits.
    word:    what stands shortly before the digits, or right after them; the shape is
             of both.
    key:     it is of strings that name something, as keys do, and end there; it is
             only asked whether it is there, with such digits.
    """

    literal: str = ""
    lead: str = ""
    then: str = ""
    shape: str = ""
    run: int = 0
    word: str = ""
    key: bool = False

    @property
    def expression(self) -> str:
        """The whole as a pattern without groups that capture."""
        if self.shape:
            return self.shape
        return f"{self.lead}{re.escape(self.literal)}{_shortest(self.then)}"

    @property
    def beside(self) -> bool:
        """Whether it is looked for only around many digits."""
        return self.run >= MANY and not (self.key or self.word)

    @property
    def reach(self) -> int:
        """How many characters before its end the literal may begin at most."""
        return len(self.literal) + reach(self.then) + 1

    @property
    def rare(self) -> bool:
        """Whether the literal alone hardly ever stands in prose or in code."""
        literal = self.literal
        return bool(literal) and (
            any(character.isdigit() for character in literal)
            or (len(literal) > 5 and not literal.isalpha() and literal[0] != "-")
        )


# What follows a key in JSON, and a string that may name what is beside it; in JSON that
# is a string itself, white space is escaped.
_ENDS_KEY = re.compile(rb"(?: |\\+[nrt])*:")
_ENDS_NAME = re.compile(rb"(?: |\\+[nrt])*[:,}\]]")


def names(data: bytes, end: int, *, beside: bool) -> bool:
    """Whether what ends there in JSON is a key; or, ``beside``, any string."""
    return bool((_ENDS_NAME if beside else _ENDS_KEY).match(data, end))


_TAIL = re.compile(r"(\[(?:\\.|[^\]\\])+\]|\\?[^\\)\]])\{(\d+),\d+\}$")


def _shortest(then: str) -> str:
    """``then`` without what may follow but need not, which would end at many places."""
    tail = _TAIL.search(then)
    if tail is None:
        return then
    atom, least = tail.groups()
    return then[: tail.start()] + (f"{atom}{{{least}}}" if int(least) else "")


# Six or more digits, with separators between them; many of them, and where they end.
_SIX: Final = r"[0-9](?:[ .()\-/]{0,3}[0-9]){5}"
MANY: Final = 10
LONG_RUN: Final = (
    rf"[0-9](?:[ .()\-/]{{0,3}}[0-9]){{{MANY - 1},}}"
    r"(?:[ .()\-/]{0,3}[^0-9 .()\-/]|[ .()\-/]{4})"
)
_IN_RUN = b"0123456789 .()-/"
# How many bytes around a run rules may look at: four for each character.
BEFORE: Final = 4 * 76
AFTER: Final = 4 * 24


def spoken(word: str) -> Trigger:
    """A word and the digits after it that it may speak of."""
    shape = rf"{re.escape(word)}[0-9]?[^0-9]{{0,60}}{_SIX}"
    return Trigger(shape=shape, run=6, word=word)


def spoken_after(word: str) -> Trigger:
    """Digits and a word right after them that may speak of them."""
    return Trigger(shape=rf"[0-9][ \-]{{1,2}}{re.escape(word)}", run=6, word=word)


def windows(data: bytes, ends: Sequence[int]) -> list[tuple[int, int]]:
    """The parts of ``data`` around the runs of digits at ``ends``, merged."""
    found: list[tuple[int, int]] = []
    last = -1
    for end in sorted(ends):
        if end <= last:
            continue
        start, last = _around(data, end)
        start, stop = max(0, start - BEFORE), min(len(data), last + AFTER)
        while start and data[start] & 0xC0 == 0x80:
            start -= 1
        while stop < len(data) and data[stop] & 0xC0 == 0x80:
            stop += 1
        if found and start <= found[-1][1]:
            start = found.pop()[0]
        found.append((start, stop))
    return found


def _around(data: bytes, place: int) -> tuple[int, int]:
    """Where what may be a run begins that ends before ``place`` or goes on after it."""
    start = stop = max(0, place - 16)
    if not data[start:place].strip(_IN_RUN):
        while start > 0:
            chunk = data[max(0, start - 64) : start]
            kept = len(chunk.rstrip(_IN_RUN))
            start -= len(chunk) - kept
            if kept:
                break
    stop = place
    while stop < len(data):
        chunk = data[stop : stop + 64]
        kept = len(chunk.lstrip(_IN_RUN))
        stop += len(chunk) - kept
        if kept:
            break
    return start, stop
