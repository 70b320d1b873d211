"""What a regular expression can match, told from its parse tree without running it.

A policy's patterns are held to what takes linear time: RE2's subset, bounded repeats,
and few ways to match one place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from importlib import import_module
from typing import Any, Final

from refold.redaction.regex_tree import (
    REPEATS,
    DigitRun,
    Item,
    Items,
    codes,
    ends_in_boundary,
    flat,
    inside,
    runs,
    starts,
    unbounded,
    ways,
    width,
)

# The standard library's own parser; typeshed knows nothing of it.
_parser: Final[Any] = import_module("re._parser")

LONGEST_MATCH: Final = 512
MOST_WAYS: Final = 256
_FLAGS = re.compile(r"\(\?([a-z]+)\)")
_NAMED = re.compile(r"\(\?P<value>")
_REFUSED: Final = {
    codes.ASSERT: "it looks ahead or behind",
    codes.ASSERT_NOT: "it looks ahead or behind",
    codes.GROUPREF: "it refers back to a group",
    codes.GROUPREF_EXISTS: "it refers back to a group",
    codes.ATOMIC_GROUP: "it has an atomic group",
    codes.POSSESSIVE_REPEAT: "it has a possessive repeat",
}


class BadPattern(ValueError):
    """A pattern that a policy may not have; the message says why."""


class Pattern:
    """A pattern of a policy: \\w, \\d, \\s and \\b mean ASCII in it, as in RE2.

    Raises BadPattern for one that may take more than linear time.
    """

    def __init__(self, source: str, *, bounded: bool = True) -> None:
        flags = _FLAGS.match(source)
        letters = flags[1] if flags else ""
        if set(letters) - set("ims"):
            raise BadPattern(f"(?{letters}) is a flag that RE2 does not know")
        self.source = source[flags.end() :] if flags else source
        self.flags = "".join(sorted({*letters, "a"}))
        self.items = _parsed(self.source)
        _check(self.items, bounded=bounded)
        _check_linear(self.scoped())

    def scoped(self, source: str | None = None) -> str:
        """``source``, or all of the pattern, under its flags."""
        return f"(?{self.flags}:{self.source if source is None else source})"

    @cached_property
    def longest(self) -> int:
        """How many characters the longest match has."""
        return width(self.items)[1]

    @cached_property
    def shortest(self) -> int:
        """How many characters the shortest match has."""
        return width(self.items)[0]

    @cached_property
    def named(self) -> bool:
        """Whether a group ``value`` says what of a match is redacted."""
        return bool(_NAMED.search(self.source))

    def check_ways(self) -> None:
        """Raise BadPattern if one place may be tried too often."""
        if unbounded(self.items) > 1 or ways(self.items, frozenset()) > MOST_WAYS:
            raise BadPattern(
                "it has too many ways to match one text: let each repeat end at a "
                "character that it does not hold, and put no repeat into a repeat"
            )

    def literals(self) -> Iterator[tuple[int, tuple[str, ...]]]:
        """Where each match has one of some literals: (item, the literals)."""
        for index in self._places:
            found = starts(self.items[index:])
            if found and all(found):
                yield index, tuple(sorted({literal.lower() for literal in found}))

    def split(self, index: int) -> tuple[str, str]:
        """The source before and from the item at ``index``, which ``literals`` gave."""
        place = self._places[index]
        return self.source[:place], self.source[place:]

    @cached_property
    def _places(self) -> dict[int, int]:
        """Where in the source each item begins, if what is before it stands alone.

        An item within a group does not, nor does a boundary: without what follows
        nobody can tell whether it is one.
        """
        found: dict[int, int] = {}
        whole = _shapes(self.items)
        for place in range(len(self.source) + 1):
            try:
                before = _parsed(self.source[:place])
                rest = _parsed(self.source[place:])
            except BadPattern:
                continue
            if _shapes([*before, *rest]) == whole and not ends_in_boundary(before):
                found.setdefault(len(before), place)
        return found

    def holds_value(self, index: int) -> bool:
        """Whether the group ``value`` stands from the item at ``index`` on."""
        return bool(_NAMED.search(self.split(index)[1]))

    def width_before(self, index: int) -> int:
        """The most characters before the item at ``index``."""
        return width(self.items[:index])[1]

    def digit_run(self) -> DigitRun | None:
        """The longest run of digits, perhaps with separators, that each match has."""
        return max(runs(list(flat(self.items))), default=None)


def _parsed(source: str) -> list[Item]:
    try:
        return list(_parser.parse(source, re.ASCII))
    except re.error as error:
        raise BadPattern(f"it is no regular expression ({error})") from None
    except (OverflowError, RecursionError):
        raise BadPattern("a repeat is too large, or groups nest too deep") from None


def _shapes(items: Items) -> list[str]:
    """The items without the numbers of their groups."""
    return [
        re.sub(r"SUBPATTERN, \((?:[0-9]+|None)", "SUBPATTERN, (", repr(item))
        for item in items
    ]


def _check(items: Items, *, bounded: bool) -> None:
    for item in items:
        code, argument = item
        if code in _REFUSED:
            raise BadPattern(f"{_REFUSED[code]}, which no engine does in linear time")
        if code is codes.AT and argument not in (
            codes.AT_BOUNDARY,
            codes.AT_NON_BOUNDARY,
        ):
            raise BadPattern("it has an anchor; a value may stand anywhere in a text")
        if code is codes.LITERAL and "\uff01" <= chr(argument) <= "\uff5e":
            plain, wide = chr(argument - 0xFEE0), chr(argument)
            raise BadPattern(f"{wide} may also be written {plain}: [{plain}{wide}]")
        if bounded and code in REPEATS and argument[1] is codes.MAXREPEAT:
            raise BadPattern(
                "a repeat has no bound: write {1,64} or the like instead of + and *"
            )
        for inner in inside(item):
            _check(inner, bounded=bounded)


def _check_linear(source: str) -> None:
    """Ask RE2, where it is installed: what it compiles takes linear time."""
    try:
        re2 = import_module("re2")
    except ImportError:
        return
    options = re2.Options()
    options.log_errors = False
    try:
        # RE2 knows no flag for ASCII: it knows nothing else.
        re2.compile(re.sub(r"^\(\?a([ims]*):", r"(?\1:", source), options)
    except re2.error as error:
        why = error.args[0] if error.args else ""
        said = why.decode() if isinstance(why, bytes) else str(why)
        raise BadPattern(f"RE2 does not take it ({said})") from None
