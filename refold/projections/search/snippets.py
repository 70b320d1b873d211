"""The part of an event's text that a search shows, with the matches marked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from refold.projections.search.terms import places

SIZE: Final = 160  # characters of a snippet
_MOST_SCANNED: Final = 200_000  # characters of a text in which matches are sought
_BEFORE: Final = 40  # characters that a snippet has before its first match, at most


class Snippet(NamedTuple):
    """A part of a text on one line.

    marks: the start and the end of each match.
    """

    text: str
    marks: tuple[tuple[int, int], ...]


class _Match(NamedTuple):
    term: str
    start: int
    end: int


def snippet(text: str, weights: Mapping[str, float], size: int = SIZE) -> Snippet:
    """Return the part of the text with the terms of the most weight.

    It begins with the text if that has none of the terms.

    weights: the terms of the search, with their weights.
    """
    text = text[:_MOST_SCANNED]
    matches = _matches(text, weights)
    start = 0
    if matches:
        first, last = _densest(matches, weights, size)
        free = size - (matches[last].end - matches[first].start)
        start = _word_start(
            text, matches[first].start - max(0, min(free // 2, _BEFORE))
        )
    end = _word_end(text, start + size)
    line = " ".join(text[start:end].split())
    if start > 0:
        line = "…" + line
    if end < len(text):
        line += "…"
    return Snippet(line, _marks(_matches(line, weights)))


def _matches(text: str, weights: Mapping[str, float]) -> list[_Match]:
    return [_Match(*place) for place in places(text) if place[0] in weights]


def _densest(
    matches: list[_Match], weights: Mapping[str, float], size: int
) -> tuple[int, int]:
    """Return the first and the last of the neighboring matches with the most weight.

    They fit into ``size`` characters.  Each term counts once.
    """
    best = (0, 0)
    best_weight = 0.0
    inside: dict[str, int] = {}
    weight = 0.0
    first = 0
    for last, match in enumerate(matches):
        if match.term not in inside:
            inside[match.term] = 0
            weight += weights[match.term]
        inside[match.term] += 1
        while first < last and match.end - matches[first].start > size:
            leaving = matches[first].term
            inside[leaving] -= 1
            if not inside[leaving]:
                del inside[leaving]
                weight -= weights[leaving]
            first += 1
        if weight > best_weight + 1e-9:
            best_weight = weight
            best = (first, last)
    return best


def _word_start(text: str, place: int) -> int:
    """Return the start of the next word, unless none begins nearby."""
    if place <= 0:
        return 0
    for start in range(place, min(place + _BEFORE // 2, len(text))):
        if text[start - 1].isspace():
            return start
    return place


def _word_end(text: str, place: int) -> int:
    """Return the end of the word before a place, unless none ends nearby."""
    if place >= len(text):
        return len(text)
    for end in range(place, place - _BEFORE // 2, -1):
        if text[end].isspace():
            return end
    return place


def _marks(matches: list[_Match]) -> tuple[tuple[int, int], ...]:
    """Return the places of matches; those that overlap or touch are one."""
    marks: list[tuple[int, int]] = []
    for _, start, end in sorted(matches, key=lambda match: match.start):
        if marks and start <= marks[-1][1]:
            marks[-1] = (marks[-1][0], max(end, marks[-1][1]))
        else:
            marks.append((start, end))
    return tuple(marks)
