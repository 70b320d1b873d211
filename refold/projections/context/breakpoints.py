"""Where a provider may cache what it reads again: the ends of what stays the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from refold.projections.context.view import View

MOST: Final = 4
_CACHED: Final = {"type": "ephemeral"}
_NEVER: Final = frozenset({"thinking", "redacted_thinking"})
_HEAD: Final = frozenset({"examples", "memory"})
_PASSING: Final = frozenset({"evidence", "state"})

Block = dict[str, Any]


class Marked(NamedTuple):
    """The parts of a request, some of whose blocks end what may be cached."""

    system: list[Block]
    tools: list[Block]
    messages: list[dict[str, Any]]


def marked(view: View, *, stable: bool) -> Marked:
    """The view's parts with ``cache_control`` at the ends of what stays the same.

    These are, each if it is there: system and tools; examples and memory; the
    summaries; and, if the view is ``stable``, everything before evidence and state.
    What the caller marked counts too; there are at most ``MOST`` marks.
    """
    system = [{"type": "text", "text": view.system}] if view.system else []
    tools, messages = [*view.tools], [*view.messages]
    room = MOST - _marks(tools, messages)
    for last in (system, tools):
        if last:
            room -= _mark(last, len(last) - 1) if room > 0 else 0
            break
    places = dict.fromkeys(_ends(view, stable=stable))
    for message, block in list(places)[: max(room, 0)]:
        blocks = [*messages[message]["content"]]
        _mark(blocks, block)
        messages[message] = {**messages[message], "content": blocks}
    return Marked(system, tools, messages)


def _ends(view: View, *, stable: bool) -> Iterator[tuple[int, int]]:
    """The blocks after which something else begins, the newest last."""
    kinds = [
        (origin.span.kind if origin.span else None, (message, block))
        for message, origins in enumerate(view.origins)
        for block, origin in enumerate(origins)
    ]
    first_passing = next(
        (i for i, (kind, _) in enumerate(kinds) if kind in _PASSING), len(kinds)
    )
    for section in (_HEAD, {"summary"}):
        own = [index for index, (kind, _) in enumerate(kinds) if kind in section]
        yield from _cacheable(view, (kinds[i][1] for i in reversed(own)))
    if stable:
        before = (kinds[i][1] for i in range(first_passing - 1, -1, -1))
        yield from _cacheable(view, before)


def _cacheable(
    view: View, places: Iterable[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """The first of ``places`` that may be marked."""
    for message, block in places:
        held = view.messages[message]["content"][block]
        if held["type"] not in _NEVER:
            if "cache_control" not in held:
                yield message, block
            return


def _mark(blocks: list[Block], index: int) -> int:
    """Mark that block, and say how many marks that made."""
    if "cache_control" in blocks[index]:
        return 0
    blocks[index] = {**blocks[index], "cache_control": dict(_CACHED)}
    return 1


def _marks(tools: Sequence[Block], messages: Sequence[dict[str, Any]]) -> int:
    blocks = chain(tools, *(message["content"] for message in messages))
    return sum("cache_control" in block for block in blocks)
