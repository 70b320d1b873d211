"""Whether what a pattern makes of a place could change with more text after it."""

from __future__ import annotations

import re
from functools import cache
from re import _compiler, _constants, _parser  # type: ignore[attr-defined]  # not in typeshed
from typing import Any

_WIDE = 65_535


@cache
def unfinished(pattern: str) -> re.Pattern[str]:
    """A pattern that matches where an attempt of ``pattern`` can get to the text's end.

    Where it does not match, nothing that comes after the text changes whether and what
    ``pattern`` matches there.  It may match where it need not.
    """
    parsed = _parser.parse(pattern)
    made = _reaching(list(parsed), parsed.state)
    return _compiler.compile(_parser.SubPattern(parsed.state, made))  # type: ignore[no-any-return]  # a pattern


def _reaching(items: list[Any], state: Any) -> list[Any]:
    """Items that match if an attempt of ``items`` can get to the end of the text.

    An item that was judged before the end is judged for good, so it is taken as it is.
    """
    reaching: list[Any] = [_END]
    for item in reversed(items):
        ways = [[_END], [item, *reaching]]
        inside = _within(item, state)
        if inside is not None:
            ways.insert(1, inside)
        reaching = [_branch(ways, state)]
    return reaching


def _within(item: Any, state: Any) -> list[Any] | None:
    """Items that match if the text ends inside of ``item``; None if it cannot."""
    operation, argument = item
    match str(operation):
        case "BRANCH":
            ways = [_reaching(list(way), state) for way in argument[1]]
            return [_branch(ways, state)]
        case "SUBPATTERN":
            return _reaching(list(argument[3]), state)
        case "ATOMIC_GROUP":
            return _reaching(list(argument), state)
        case "ASSERT" | "ASSERT_NOT":
            return _reaching(list(argument[1]), state) if argument[0] > 0 else None
        case "MAX_REPEAT" | "MIN_REPEAT":
            return _within_repeat(argument[1], argument[2], argument[2], state)
        case "POSSESSIVE_REPEAT":
            once = _sub([(_constants.ATOMIC_GROUP, argument[2])], state)
            return _within_repeat(argument[1], once, argument[2], state)
        case "GROUPREF_EXISTS":
            group, *ways = argument
            ways = [_sub(_reaching(list(way or ()), state), state) for way in ways]
            return [(operation, (group, *ways))]
        case "GROUPREF":
            width = min(state.groupwidths[argument][1], _WIDE)
            return [(_constants.MAX_REPEAT, (0, width, _sub(_ANYTHING, state))), _END]
    return None


def _within_repeat(most: Any, once: Any, repeated: Any, state: Any) -> list[Any]:
    before = (_constants.MAX_REPEAT, (0, most, once))
    return [before, *_reaching(list(repeated), state)]


def _branch(ways: list[list[Any]], state: Any) -> Any:
    return (_constants.BRANCH, (None, [_sub(way, state) for way in ways]))


def _sub(items: list[Any], state: Any) -> Any:
    return _parser.SubPattern(state, items)


_ANYTHING: Any = list(_parser.parse(r"[\s\S]"))
_END: Any = (_constants.AT, _constants.AT_END_STRING)
