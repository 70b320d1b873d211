"""What a tool found in a text, told in one way for all tools."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, Protocol

_PLACEHOLDER = re.compile(r"\[REDACTED:([A-Z][A-Z0-9_]{1,39})(?:#[a-z2-7]{8})?\]")


class Span(NamedTuple):
    """A piece of a text, in characters, and the type it is said to be."""

    start: int
    end: int
    type: str


class Tool(Protocol):
    """Something that finds personal data in texts."""

    @property
    def name(self) -> str:
        """What the table calls it."""
        ...

    def spans(self, text: str) -> Sequence[Span]:
        """What it finds, its types in the words of this benchmark."""
        ...


def replaced(before: str, after: str) -> list[Span]:
    """Which pieces of ``before`` the placeholders of ``after`` stand for.

    Told from the outside alone: what stands between placeholders must be there as it
    was, but for white space, which JSON in a string may lose.  If it is not, nothing
    counts as covered, and the change itself as found.
    """
    kept, types = _split(after)
    if not types:
        return []
    found = _aligned(before, kept, types)
    if found is None:
        places = [at for at, sign in enumerate(before) if not sign.isspace()]
        dense = "".join(before[at] for at in places)
        found = _aligned(dense, ["".join(piece.split()) for piece in kept], types)
        if found is None:
            return [Span(0, 0, "ALTERED")]
        found = [Span(places[s], places[e - 1] + 1, kind) for s, e, kind in found]
    return found


def _aligned(before: str, kept: list[str], types: list[str]) -> list[Span] | None:
    match = re.fullmatch("(.+?)".join(map(re.escape, kept)), before, re.DOTALL)
    if match is None:
        return None
    return [
        Span(match.start(number), match.end(number), kind)
        for number, kind in enumerate(types, start=1)
    ]


def _split(after: str) -> tuple[list[str], list[str]]:
    pieces = _PLACEHOLDER.split(after)
    return pieces[::2], pieces[1::2]
