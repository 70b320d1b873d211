"""Short names of sessions: lists print them, and commands accept them.

The name of a sub-agent's session is the name of its parent's, ``~``, and a suffix.  A
short name has the beginning of each of these parts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

from refold.domain.ids import begins_with

_SEPARATOR: Final = "~"
_ELLIPSIS: Final = "…"
_SHORTEST_MAIN: Final = 8  # characters of a name
_SHORTEST_SUFFIX: Final = 4  # characters of a sub-agent's own part


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Return a short name for each name; each means only its own session.

    A name that is cut at its end gets an ellipsis.

    names: those of all sessions that a short name could mean.
    """
    parts_of = {name: tuple(name.split(_SEPARATOR)) for name in names}
    # A part must be unlike the others that stand at the same place of a tree.
    children: defaultdict[tuple[str, ...], set[str]] = defaultdict(set)
    for parts in parts_of.values():
        for depth, part in enumerate(parts):
            children[parts[:depth]].add(part)
    short_parts: dict[tuple[str, ...], str] = {}
    for place, siblings in children.items():
        shortest = _SHORTEST_SUFFIX if place else _SHORTEST_MAIN
        for part, length in _unique_lengths(siblings, shortest).items():
            short_parts[*place, part] = part[:length]
    shortened: dict[str, str] = {}
    for name, parts in parts_of.items():
        short = [short_parts[parts[: depth + 1]] for depth in range(len(parts))]
        text = _SEPARATOR.join(short)
        if short[-1] != parts[-1]:
            text += _ELLIPSIS
        # An ellipsis takes the place of one character.
        shortened[name] = text if len(text) < len(name) else name
    return shortened


def _unique_lengths(parts: Iterable[str], shortest: int) -> dict[str, int]:
    """Return for each part the length of a beginning that no other part has."""
    ordered = sorted(parts)
    lengths: dict[str, int] = {}
    for index, part in enumerate(ordered):
        needed = shortest
        # Of all others, the neighbours in the order have the longest common beginning.
        if index > 0:
            needed = max(needed, _common(part, ordered[index - 1]) + 1)
        if index + 1 < len(ordered):
            needed = max(needed, _common(part, ordered[index + 1]) + 1)
        lengths[part] = min(needed, len(part))
    return lengths


def _common(left_name: str, right_name: str) -> int:
    """Return the number of first characters that two names share."""
    length = 0
    for left, right in zip(left_name, right_name, strict=False):
        if left != right:
            break
        length += 1
    return length


def _parents(name: str) -> Iterator[str]:
    """Yield the names of the sessions that a name continues, the nearest first."""
    parent = name.rpartition(_SEPARATOR)[0]
    while parent:
        yield parent
        parent = parent.rpartition(_SEPARATOR)[0]


class Beginning:
    """The beginning of a session's name, as a person types it or a list prints it."""

    def __init__(self, text: str) -> None:
        self.text = text.removesuffix(_ELLIPSIS).removesuffix("...")
        self._parts = self.text.split(_SEPARATOR)

    def fits(self, name: str) -> bool:
        """Whether each of its parts begins the part of the name at its place."""
        return begins_with(name, self.text)

    def chosen(self, names: Iterable[str]) -> list[str]:
        """Return the names that it can mean, in order, of those that it fits.

        A session is meant rather than its sub-agents and theirs, and a name with
        exactly its parts rather than longer ones.
        """
        fitting = set(names)
        candidates = [name for name in fitting if fitting.isdisjoint(_parents(name))]
        for depth, part in enumerate(self._parts):
            exact = [
                name for name in candidates if name.split(_SEPARATOR)[depth] == part
            ]
            candidates = exact or candidates
        return sorted(candidates)
