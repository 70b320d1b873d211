"""The long runs of digits in a text: they are what they are, wherever one looks."""

from __future__ import annotations

import re
from collections.abc import Iterator

_RUN = re.compile(r"[0-9](?:[ .()\-/]{0,3}[0-9]){5,}+")
_IN_RUN = "0123456789 .()-/"
_DIGITS = "0123456789"
_CHUNK = 64
# How far from the end of its shape the digits of a value with letters may be.
_SEEN = 48


def _length(span: tuple[int, int]) -> int:
    return span[1] - span[0]


class Runs:
    """Runs of six or more digits, with up to three separators between two."""

    __slots__ = ("_last", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        # So that a long run with many hits is looked for once.
        self._last = (0, 0)

    def at(self, end: int) -> tuple[tuple[int, int], ...]:
        """The run around the last digit before ``end``, if that is one."""
        start, stop = self._last
        if start < end <= stop:
            return (self._last,)
        text = self._text
        if end > len(text):
            end = len(text)
        before = text[max(0, end - 16) : end]
        last = end - len(before)
        for index in range(len(before) - 1, -1, -1):
            if before[index] in _DIGITS:
                last += index + 1
                break
        if start < last <= stop:
            return (self._last,)
        for match in _RUN.finditer(text, self._back(last - 1), self._ahead(last)):
            if match.end() >= last:
                self._last = match.span()
                return (self._last,)
        return ()

    def near(self, end: int) -> Iterator[tuple[int, int]]:
        """The runs that a value with letters may have which is seen to end there."""
        start, stop = self._last
        if start < end - _SEEN and end + _SEEN < stop:
            # Far inside a run that is known: there is no other near.
            return iter((self._last,))
        text = self._text
        first = self._back(max(0, end - _SEEN))
        final = self._ahead(min(len(text), end + _SEEN))
        spans = [match.span() for match in _RUN.finditer(text, first, final)]
        if spans:
            self._last = max(spans, key=_length)
        return iter(spans)

    def all(self) -> Iterator[tuple[int, int]]:
        """Every run."""
        return (match.span() for match in _RUN.finditer(self._text))

    def _back(self, place: int) -> int:
        """Where what may be a run around ``place`` begins."""
        text = self._text
        place = max(0, place)
        while place > 0:
            chunk = text[max(0, place - _CHUNK) : place]
            kept = len(chunk.rstrip(_IN_RUN))
            place -= len(chunk) - kept
            if kept:
                break
        return place

    def _ahead(self, place: int) -> int:
        """Where what may be a run around ``place`` ends."""
        text = self._text
        while place < len(text):
            chunk = text[place : place + _CHUNK]
            kept = len(chunk.lstrip(_IN_RUN))
            place += len(chunk) - kept
            if kept:
                break
        return place
