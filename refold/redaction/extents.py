"""How far a pattern can look: what it matches, and what it looks ahead at."""

from __future__ import annotations

from functools import cache
from re import _parser  # type: ignore[attr-defined]  # it knows how a pattern is made
from typing import Any, Final

UNBOUNDED: Final = 1 << 30


@cache
def reach(pattern: str) -> int:
    """How many characters ``pattern`` can match or look ahead at, at most."""
    parsed = _parser.parse(pattern)
    return _sequence(parsed, parsed.state)


def _sequence(items: Any, state: Any) -> int:
    return min(UNBOUNDED, sum(_item(str(name), it, state) for name, it in items))


def _item(operation: str, argument: Any, state: Any) -> int:
    match operation:
        case "LITERAL" | "NOT_LITERAL" | "IN" | "ANY":
            return 1
        case "AT":
            return 0
        case "BRANCH":
            return max(_sequence(way, state) for way in argument[1])
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            return min(UNBOUNDED, _sequence(argument[2], state) * int(argument[1]))
        case "SUBPATTERN":
            return _sequence(argument[3], state)
        case "ATOMIC_GROUP":
            return _sequence(argument, state)
        case "ASSERT" | "ASSERT_NOT":
            direction, inner = argument
            return _sequence(inner, state) if direction > 0 else 0
        case "GROUPREF":
            return int(state.groupwidths[argument][1])
        case "GROUPREF_EXISTS":
            return max(_sequence(way or (), state) for way in argument[1:])
    return UNBOUNDED
