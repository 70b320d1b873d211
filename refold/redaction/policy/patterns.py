"""What a regular expression can match, told from its parse tree without running it.

A policy's patterns are held to what takes linear time: RE2's subset, bounded repeats,
and few ways to match one place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from importlib import import_module
from itertools import product
from typing import Any, Final, NamedTuple, TypeAlias

# Of the standard library's own parser; typeshed knows nothing of it.
codes: Final[Any] = import_module("re._constants")

# More ways than this are not told apart.
MANY: Final = 2**20
_ENDLESS: Final = int(codes.MAXREPEAT)
_MOST_LITERALS: Final = 32
_LONGEST_LITERAL: Final = 16
# All characters that are not ASCII count as one.
_OTHER: Final = 128
_ALL: Final = frozenset(range(_OTHER + 1))
_DIGITS: Final = frozenset(map(ord, "0123456789"))
_WORD: Final = frozenset(c for c in range(_OTHER) if chr(c).isalnum() or c == 95)
_SPACE: Final = frozenset(map(ord, " \t\n\r\f\v"))
_SEPARATORS: Final = frozenset(map(ord, " .()-/"))
_CATEGORIES: Final = {
    codes.CATEGORY_DIGIT: _DIGITS,
    codes.CATEGORY_NOT_DIGIT: _ALL - _DIGITS,
    codes.CATEGORY_WORD: _WORD,
    codes.CATEGORY_NOT_WORD: _ALL - _WORD,
    codes.CATEGORY_SPACE: _SPACE,
    codes.CATEGORY_NOT_SPACE: _ALL - _SPACE,
}
REPEATS: Final = (codes.MAX_REPEAT, codes.MIN_REPEAT)

Item: TypeAlias = tuple[Any, Any]
Items: TypeAlias = Sequence[Item]


class DigitRun(NamedTuple):
    """A run of digits in every match: how many, and the most around it."""

    digits: int
    before: int
    after: int


def inside(item: Item) -> Iterator[list[Item]]:
    """The sequences that an item is made of."""
    code, argument = item
    if code in REPEATS:
        yield list(argument[2])
    elif code is codes.SUBPATTERN:
        yield list(argument[3])
    elif code is codes.BRANCH:
        yield from map(list, argument[1])


def width(items: Items) -> tuple[int, int]:
    """The fewest and the most characters that the items match."""
    least = most = 0
    for item in items:
        low, high = _item_width(item)
        least, most = least + low, most + high
    return least, most


def _item_width(item: Item) -> tuple[int, int]:
    code, argument = item
    if code is codes.AT:
        return 0, 0
    inner = [width(items) for items in inside(item)]
    if code in REPEATS:
        return inner[0][0] * int(argument[0]), inner[0][1] * int(argument[1])
    if inner:
        return min(low for low, _ in inner), max(high for _, high in inner)
    return 1, 1


def _characters(item: Item) -> frozenset[int] | None:
    """The characters that an item of one character matches; None for other items."""
    code, argument = item
    if code is codes.LITERAL:
        return frozenset({min(argument, _OTHER)})
    if code is codes.NOT_LITERAL:
        return _ALL - ({argument} if argument < _OTHER else set())
    if code is codes.ANY:
        return _ALL
    return _class(argument) if code is codes.IN else None


def _class(members: Items) -> frozenset[int]:
    found: set[int] = set()
    for code, argument in members:
        if code is codes.LITERAL:
            found.add(min(argument, _OTHER))
        elif code is codes.RANGE:
            low, high = argument
            found.update(range(low, min(high, _OTHER) + 1))
            found.update({_OTHER} if high >= _OTHER else ())
        elif code is codes.CATEGORY:
            found |= _CATEGORIES[argument]
    negated = bool(members) and members[0][0] is codes.NEGATE
    # What is not one character outside of ASCII may be another.
    return (_ALL - found) | {_OTHER} if negated else frozenset(found)


def _firsts(items: Items, then: frozenset[int]) -> frozenset[int]:
    """What the first character may be, of the items or else of what follows them."""
    for index, item in enumerate(items):
        single = _characters(item)
        if single is not None:
            return single
        inner = [_firsts(part, frozenset()) for part in inside(item)]
        found = frozenset().union(*inner)
        if _item_width(item)[0]:
            return found
        return found | _firsts(items[index + 1 :], then)
    return then


def _cased(characters: frozenset[int]) -> frozenset[int]:
    """With the other case: whether a pattern ignores it does not matter then."""
    letters = {ord(chr(c).swapcase()) for c in characters if chr(c).isalpha()}
    return characters | {c for c in letters if c < _OTHER}


def ways(items: Items, then: frozenset[int]) -> int:
    """How many ways there are to match the items, or to give them up, at one place.

    A repeat that ends where what follows cannot begin has one way.
    """
    ways = 1
    for index, item in enumerate(items):
        following = _firsts(items[index + 1 :], then)
        ways = min(ways * _item_ways(item, following), MANY)
    return ways


def _item_ways(item: Item, then: frozenset[int]) -> int:
    code, argument = item
    if code not in REPEATS:
        inner = list(inside(item))
        return sum(ways(part, then) for part in inner) if inner else 1
    least, most, body = int(argument[0]), int(argument[1]), list(argument[2])
    first = _firsts(body, frozenset())
    each = ways(body, first | then)
    open_ended = bool(_cased(first) & _cased(then)) or not width(body)[0]
    choices = most - least + 1 if open_ended and most < _ENDLESS else 1
    return int(min(choices * each ** min(most, 16), MANY))


def ends_in_boundary(items: Items) -> bool:
    """Whether a word boundary may be the last that the items look at."""
    for item in reversed(items):
        if item[0] is codes.AT or any(map(ends_in_boundary, inside(item))):
            return True
        if _item_width(item)[0]:
            return False
    return False


def unbounded(items: Items) -> int:
    """How many repeats have no bound."""
    return sum(
        (item[0] in REPEATS and item[1][1] is codes.MAXREPEAT)
        + sum(map(unbounded, inside(item)))
        for item in items
    )


def starts(items: Items) -> list[str]:
    """Strings with one of which each match of the items begins, as long as told.

    An empty string among them says that nothing is known.
    """
    found, open_ = [""], True
    for item in items:
        if not open_:
            break
        options, open_ = _item_starts(item)
        if options == [""] and open_:
            continue
        if not options or len(found) * len(options) > _MOST_LITERALS:
            break
        found = [a + b for a, b in product(found, options)]
        if min(map(len, found)) >= _LONGEST_LITERAL:
            break
    return found


def _item_starts(item: Item) -> tuple[list[str], bool]:
    """What an item begins with, and whether that is all of it."""
    code, argument = item
    if code is codes.LITERAL:
        letter = chr(argument)
        # Engines ignore the case of ASCII only.
        known = letter.isascii() or letter.lower() == letter.upper()
        return ([letter], True) if known else ([], False)
    if code is codes.AT:
        return [""], True
    if code is codes.SUBPATTERN:
        inner = list(argument[3])
        return starts(inner), _is_literal(inner)
    if code in REPEATS and argument[0]:
        return _repeat_starts(int(argument[0]), int(argument[1]), list(argument[2]))
    if code is codes.BRANCH:
        parts = [list(part) for part in argument[1]]
        found = [start for part in parts for start in starts(part)]
        return found, all(map(_is_literal, parts))
    if code is codes.IN and all(kind is codes.LITERAL for kind, _ in argument):
        members = [_item_starts(member) for member in argument]
        return [start for found, _ in members for start in found], all(
            known for _, known in members
        )
    return [], False


def _repeat_starts(least: int, most: int, body: Items) -> tuple[list[str], bool]:
    found = starts(body)
    if len(found) != 1 or not _is_literal(body) or least > _LONGEST_LITERAL:
        return found, False
    return [found[0] * least], least == most


def _is_literal(items: Items) -> bool:
    """Whether ``_starts`` says all of what the items match."""
    return len(items) <= _LONGEST_LITERAL and all(
        _item_starts(item)[1] for item in items
    )


def flat(items: Items) -> Iterator[tuple[str, int, int]]:
    """Digits, separators and other parts in order: (kind, fewest, most characters)."""
    for item in items:
        code, argument = item
        single = _characters(item)
        if single is not None:
            yield _kind(single), 1, 1
        elif code is codes.SUBPATTERN:
            yield from flat(list(argument[3]))
        elif code in REPEATS:
            yield from _flat_repeat(int(argument[0]), int(argument[1]), argument[2])
        elif code is codes.BRANCH:
            yield "other", *_item_width(item)


def _flat_repeat(least: int, most: int, body: Items) -> Iterator[tuple[str, int, int]]:
    inner = list(flat(list(body)))
    if len(inner) == 1:
        kind, low, high = inner[0]
        yield kind, low * least, high * most
        return
    for _ in range(min(least, 32)):
        yield from inner
    rest = (most - min(least, 32)) * sum(high for _, _, high in inner)
    gaps = sum(high for kind, _, high in inner if kind == "separator")
    if any(kind == "other" for kind, _, _ in inner) or gaps > 3:
        yield "other", 0, rest
    elif gaps == 0 or any(kind == "digit" and low for kind, low, _ in inner):
        yield "separator", 0, min(gaps, rest)
        yield "digit", 0, max(rest - gaps, 0)
    else:
        yield "other", 0, rest


def _kind(characters: frozenset[int]) -> str:
    if characters <= _DIGITS:
        return "digit"
    return "separator" if characters <= _SEPARATORS else "other"


def runs(parts: Sequence[tuple[str, int, int]]) -> Iterator[DigitRun]:
    """Each run of digits with at most three separators between two of them."""
    total = sum(high for _, _, high in parts)
    digits = gap = start = end = place = 0
    for kind, low, high in (*parts, ("other", 0, 0)):
        if kind == "digit" and low:
            start, digits = (start if digits else place), digits + low
            end, gap = place + high, 0
        elif kind == "separator" and digits and gap + high <= 3:
            gap += high
        elif kind != "digit" and digits:
            yield DigitRun(digits, start, total - end)
            digits = gap = 0
        place += high


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
