"""Paths of tools: what was called after what, without repetitions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

# Tools that were called at once, by name: their order says nothing.
Step: TypeAlias = tuple[str, ...]
Path: TypeAlias = tuple[Step, ...]
LONGEST: Final = 4


def steps(calls: Sequence[tuple[int, str, int]]) -> list[tuple[int, int, Step]]:
    """(first seq, last seq, tools) of each step; equal ones after each other are one.

    calls: seq, tool and group of each; those of one group were made at once.
    """
    found: list[tuple[int, int, Step]] = []
    groups: dict[int, list[tuple[int, str]]] = {}
    for seq, tool, group in calls:
        groups.setdefault(group, []).append((seq, tool))
    for members in groups.values():
        first, last = members[0][0], members[-1][0]
        step = tuple(sorted({tool for _, tool in members}))
        if found and found[-1][2] == step:
            found[-1] = (found[-1][0], last, step)
        else:
            found.append((first, last, step))
    return found


def subpaths(
    walked: Sequence[tuple[int, int, Step]], breaks: Sequence[int] = ()
) -> Iterator[tuple[Path, int, int]]:
    """Each path of 1 to ``LONGEST`` steps within it: (path, first seq, last seq).

    None goes over a place in ``breaks``, which are in order.
    """
    ends = iter((*breaks, len(walked)))
    limit = next(ends)
    for start in range(len(walked)):
        while start >= limit:
            limit = next(ends)
        for end in range(start + 1, min(limit, start + LONGEST) + 1):
            part = walked[start:end]
            yield tuple(step for _, _, step in part), part[0][0], part[-1][1]
