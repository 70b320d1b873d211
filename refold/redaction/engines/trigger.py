"""What engines look for: a literal with its surroundings, or a shape of digits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from refold.redaction.extents import reach


class Trigger(NamedTuple):
    """One thing to look for in a text, in any ASCII case.

    literal: what must be there, in lower case; empty for a shape.
    lead:    a pattern of the character before the literal, or empty.
    then:    a pattern of what follows the literal, or empty.
    shape:   a pattern, where there is no literal.
    run:     of digits, how many there are at least; 0: it is not about digits.
    words:   one of these must stand shortly before the digits; empty: none needs to.
    after:   one of the words may stand right after the digits as well.
    key:     it is of keys, and only asked whether it is there, with such digits.
    """

    literal: str = ""
    lead: str = ""
    then: str = ""
    shape: str = ""
    run: int = 0
    words: tuple[str, ...] = ()
    after: bool = False
    key: bool = False

    @property
    def expression(self) -> str:
        """The whole as a pattern without groups that capture."""
        if self.shape:
            return self.shape
        return f"{self.lead}{re.escape(self.literal)}{_shortest(self.then)}"

    @property
    def beside(self) -> bool:
        """Whether it is looked for only around digits."""
        return self.run > 0 and not self.key and (bool(self.words) or self.run >= MANY)

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


def spoken_runs(triggers: Iterable[Trigger]) -> list[str]:
    """Patterns of a word and the digits that it speaks of, for all that need words."""
    before = {word for trigger in triggers for word in trigger.words}
    after = {w for trigger in triggers if trigger.after for w in trigger.words}
    return [
        *(rf"{re.escape(word)}[0-9]?[^0-9]{{0,60}}{_SIX}" for word in sorted(before)),
        *(rf"[0-9][ \-]{{1,2}}{re.escape(word)}" for word in sorted(after)),
    ]


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
