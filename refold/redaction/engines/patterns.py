"""What a regular expression can match, told from its parse tree without running it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from itertools import product
from typing import Any, Final, NamedTuple, TypeAlias

# The standard library's own parser; typeshed knows nothing of it.
_parser: Final[Any] = import_module("re._parser")
_compiler: Final[Any] = import_module("re._compiler")
_codes: Final[Any] = import_module("re._constants")


@cache
def reach(pattern: str) -> int:
    """How many characters ``pattern`` can match or look ahead at, at most."""
    parsed = _parser.parse(pattern)
    return _width(parsed, parsed.state.groupwidths)[1]


@cache
def holds_space(pattern: str) -> bool:
    """Whether a match of ``pattern`` may have a space in it."""
    return _may_hold_space(_parser.parse(pattern))


@cache
def needed(pattern: str) -> tuple[str, ...]:
    """Strings in lower case of which each match in lower case holds one, if known."""
    return tuple(sorted(_needed(_parser.parse(pattern))))


def _needed(items: _Items) -> frozenset[str]:
    """The best that is known of any one item, or of letters in a row."""
    known, row = [], ""
    for item in [*items, (_codes.ANY, None)]:
        if item[0] is _codes.LITERAL:
            row += chr(item[1]).lower()
        elif item[0] is not _codes.AT:
            ways = [_needed(inner) for inner in _always(item)]
            known += [
                frozenset({row}),
                frozenset().union(*ways) if all(ways) else _NONE,
            ]
            row = ""
    return max(known, key=lambda words: (min(map(len, words), default=0), -len(words)))


_NONE: Final[frozenset[str]] = frozenset()


def _always(item: _Item) -> Sequence[_Items]:
    """The ways of an item of which each match takes one."""
    code, argument = item
    skips = code is _codes.GROUPREF_EXISTS or (code in _REPEATS and not argument[0])
    return [] if skips else list(_inside(item))


def _may_hold_space(items: _Items) -> bool:
    return any(
        item[0] is _codes.GROUPREF
        or _SPACE_ITSELF in (_characters(item) or ())
        or any(map(_may_hold_space, _inside(item)))
        for item in items
    )


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
        case "BRANCH" | "SUBPATTERN" | "ATOMIC_GROUP":
            ways = [_reaching(way, state) for way in _inside(item)]
            return [_branch(ways, state)]
        case "ASSERT" | "ASSERT_NOT":
            return _reaching(list(argument[1]), state) if argument[0] > 0 else None
        case "MAX_REPEAT" | "MIN_REPEAT":
            return _within_repeat(argument[1], argument[2], argument[2], state)
        case "POSSESSIVE_REPEAT":
            once = _sub([(_codes.ATOMIC_GROUP, argument[2])], state)
            return _within_repeat(argument[1], once, argument[2], state)
        case "GROUPREF_EXISTS":
            group, *ways = argument
            ways = [_sub(_reaching(list(way or ()), state), state) for way in ways]
            return [(operation, (group, *ways))]
        case "GROUPREF":
            width = min(state.groupwidths[argument][1], _WIDEST)
            return [(_codes.MAX_REPEAT, (0, width, _sub(_ANYTHING, state))), _END]
    return None


def _within_repeat(most: Any, once: Any, repeated: Any, state: Any) -> list[Any]:
    before = (_codes.MAX_REPEAT, (0, most, once))
    return [before, *_reaching(list(repeated), state)]


def _branch(ways: list[list[Any]], state: Any) -> Any:
    return (_codes.BRANCH, (None, [_sub(way, state) for way in ways]))


def _sub(items: list[Any], state: Any) -> Any:
    return _parser.SubPattern(state, items)


_ANYTHING: Any = list(_parser.parse(r"[\s\S]"))
_END: Any = (_codes.AT, _codes.AT_END_STRING)
# What a group may repeat is not told apart beyond this.
_WIDEST: Final = 65_535


LONGEST_MATCH: Final = 512
_MOST_WAYS: Final = 256
_FLAGS = re.compile(r"\(\?([a-z]+)\)")
_NAMED = re.compile(r"\(\?P<value>")
_KNOWN_FLAGS: Final = re.IGNORECASE | re.MULTILINE | re.DOTALL
_BOUNDARIES: Final = (_codes.AT_BOUNDARY, _codes.AT_NON_BOUNDARY)
_REFUSED: Final = {
    _codes.ASSERT: "it looks ahead or behind",
    _codes.ASSERT_NOT: "it looks ahead or behind",
    _codes.GROUPREF: "it refers back to a group",
    _codes.GROUPREF_EXISTS: "it refers back to a group",
    _codes.ATOMIC_GROUP: "it has an atomic group",
    _codes.POSSESSIVE_REPEAT: "it has a possessive repeat",
}


class Anchor(NamedTuple):
    """Where an engine may try a pattern: at literals, its item and source divided.

    reach: the most characters that ``before`` matches, and at least 1.
    """

    literals: tuple[str, ...]
    before: str
    rest: str
    reach: int


class DigitRun(NamedTuple):
    """A run of digits in every match: how many, and the most around it."""

    digits: int
    before: int
    after: int


class BadPattern(ValueError):
    """A pattern that a policy may not have; the message says why."""


class Pattern:
    """A pattern of a policy: \\w, \\d, \\s and \\b mean ASCII in it.

    Raises BadPattern for one that may take more than linear time.
    """

    def __init__(self, source: str, *, bounded: bool = True) -> None:
        flags = _FLAGS.match(source)
        letters = flags[1] if flags else ""
        if set(letters) - set("ims"):
            raise BadPattern(f"(?{letters}) is a flag other than i, m and s")
        self.source = source[flags.end() :] if flags else source
        self.flags = "".join(sorted({*letters, "a"}))
        self._items = _parsed(self.source)
        _check(self._items, bounded=bounded)
        # How many characters a match has.
        self.shortest, self.longest = _width(self._items)
        # Whether a group ``value`` says what of a match is redacted.
        self.named = bool(_NAMED.search(self.source))

    def scoped(self, source: str | None = None) -> str:
        """``source``, or all of the pattern, under its flags."""
        return f"(?{self.flags}:{self.source if source is None else source})"

    def check_ways(self) -> None:
        """Raise BadPattern if one place may be tried too often."""
        if _unbounded(self._items) > 1 or _ways(self._items, frozenset()) > _MOST_WAYS:
            raise BadPattern(
                "it has too many ways to match one text: let each repeat end at a "
                "character that it does not hold, and put no repeat into a repeat"
            )

    def anchors(self) -> Iterator[Anchor]:
        """Where each match has one of some literals, and no value begins before it."""
        for index, place in self._places.items():
            found, _ = _starts(self._items[index:])
            before, rest = self.source[:place], self.source[place:]
            if found and all(found) and (not self.named or _NAMED.search(rest)):
                literals = tuple(sorted({literal.lower() for literal in found}))
                reach = _width(self._items[:index])[1]
                yield Anchor(literals, before, rest, max(1, reach))

    @property
    def _places(self) -> dict[int, int]:
        """Where in the source each item begins, if what is before it stands alone.

        An item within a group does not, nor does a boundary: without what follows
        nobody can tell whether it is one.
        """
        found: dict[int, int] = {}
        whole = _shapes(self._items)
        for place in range(len(self.source) + 1):
            try:
                before = _parsed(self.source[:place])
                rest = _parsed(self.source[place:])
            except BadPattern:
                continue
            if _shapes([*before, *rest]) == whole and not _ends_in_boundary(before):
                found.setdefault(len(before), place)
        return found

    def digit_run(self) -> DigitRun | None:
        """The longest run of digits, perhaps with separators, that each match has."""
        return max(_runs(list(_flat(self._items))), default=None)


def _parsed(source: str) -> list[_Item]:
    try:
        return list(_parser.parse(source, re.ASCII))
    except re.error as error:
        raise BadPattern(f"it is not a regular expression ({error})") from None
    except (OverflowError, RecursionError):
        raise BadPattern("a repeat is too large, or groups nest too deep") from None


def _shapes(items: _Items) -> list[str]:
    """The items without the numbers of their groups."""
    return [
        re.sub(r"SUBPATTERN, \((?:[0-9]+|None)", "SUBPATTERN, (", repr(item))
        for item in items
    ]


def _check(items: _Items, *, bounded: bool) -> None:
    for item in items:
        code, argument = item
        if code in _REFUSED:
            raise BadPattern(f"{_REFUSED[code]}, which no engine does in linear time")
        if code is _codes.AT and argument not in _BOUNDARIES:
            raise BadPattern("it has an anchor; a value may stand anywhere in a text")
        if code is _codes.LITERAL and "\uff01" <= chr(argument) <= "\uff5e":
            plain, wide = chr(argument - 0xFEE0), chr(argument)
            raise BadPattern(f"{wide} may also be written {plain}: [{plain}{wide}]")
        if code is _codes.SUBPATTERN and argument[1] & ~_KNOWN_FLAGS:
            raise BadPattern("a group has a flag other than i, m and s")
        if bounded and code in _REPEATS and argument[1] is _codes.MAXREPEAT:
            raise BadPattern(
                "a repeat has no bound: write {1,64} or the like instead of + and *"
            )
        for inner in _inside(item):
            _check(inner, bounded=bounded)


# More ways than this are not told apart.
_MANY_WAYS: Final = 2**20
UNBOUNDED: Final = int(_codes.MAXREPEAT)
_MOST_LITERALS: Final = 32
_LONGEST_LITERAL: Final = 16
# All characters that are not ASCII count as one.
_OTHER: Final = 128
_ALL: Final = frozenset(range(_OTHER + 1))
_DIGITS: Final = frozenset(map(ord, "0123456789"))
_WORD: Final = frozenset(c for c in range(_OTHER) if chr(c).isalnum() or c == 95)
_SPACE: Final = frozenset(map(ord, " \t\n\r\f\v"))
_SPACE_ITSELF: Final = ord(" ")
_SEPARATORS: Final = frozenset(map(ord, " .()-/"))
_CATEGORIES: Final = {
    _codes.CATEGORY_DIGIT: _DIGITS,
    _codes.CATEGORY_NOT_DIGIT: _ALL - _DIGITS,
    _codes.CATEGORY_WORD: _WORD,
    _codes.CATEGORY_NOT_WORD: _ALL - _WORD,
    _codes.CATEGORY_SPACE: _SPACE,
    _codes.CATEGORY_NOT_SPACE: _ALL - _SPACE,
}
_REPEATS: Final = (_codes.MAX_REPEAT, _codes.MIN_REPEAT, _codes.POSSESSIVE_REPEAT)
_LOOKS: Final = (_codes.ASSERT, _codes.ASSERT_NOT)

_Item: TypeAlias = tuple[Any, Any]
_Items: TypeAlias = Sequence[_Item]
_Groups: TypeAlias = Sequence[tuple[int, int]]


def _inside(item: _Item) -> Iterator[list[_Item]]:
    """The sequences that an item is made of."""
    code, argument = item
    if code in _REPEATS:
        yield list(argument[2])
    elif code is _codes.SUBPATTERN:
        yield list(argument[3])
    elif code is _codes.BRANCH:
        yield from map(list, argument[1])
    elif code is _codes.ATOMIC_GROUP:
        yield list(argument)
    elif code is _codes.GROUPREF_EXISTS:
        yield from (list(way or ()) for way in argument[1:])


def _width(items: _Items, groups: _Groups = ()) -> tuple[int, int]:
    """The fewest and most characters, looked at ahead too; ``groups``: their widths."""
    widths = [_item_width(item, groups) for item in items]
    return sum(low for low, _ in widths), sum(high for _, high in widths)


def _item_width(item: _Item, groups: _Groups = ()) -> tuple[int, int]:
    code, argument = item
    if code is _codes.AT:
        return 0, 0
    if code is _codes.GROUPREF:
        return groups[argument]
    if code in _LOOKS:
        direction, ahead = argument
        return 0, _width(list(ahead), groups)[1] if direction > 0 else 0
    inner = [_width(items, groups) for items in _inside(item)]
    if code in _REPEATS:
        return inner[0][0] * int(argument[0]), inner[0][1] * int(argument[1])
    if inner:
        return min(low for low, _ in inner), max(high for _, high in inner)
    return 1, 1


def _characters(item: _Item) -> frozenset[int] | None:
    """The characters that an item of one character matches; None for other items."""
    code, argument = item
    if code is _codes.LITERAL:
        return frozenset({min(argument, _OTHER)})
    if code is _codes.NOT_LITERAL:
        return _ALL - ({argument} if argument < _OTHER else set())
    if code is _codes.ANY:
        return _ALL
    return _class(argument) if code is _codes.IN else None


def _class(members: _Items) -> frozenset[int]:
    found: set[int] = set()
    for code, argument in members:
        if code is _codes.LITERAL:
            found.add(min(argument, _OTHER))
        elif code is _codes.RANGE:
            low, high = argument
            found.update(range(min(low, _OTHER), min(high, _OTHER) + 1))
        elif code is _codes.CATEGORY:
            found |= _CATEGORIES[argument]
    negated = bool(members) and members[0][0] is _codes.NEGATE
    # What is not one character outside of ASCII may be another.
    return (_ALL - found) | {_OTHER} if negated else frozenset(found)


def _firsts(items: _Items, then: frozenset[int]) -> frozenset[int]:
    """What the first character may be, of the items or else of what follows them."""
    for index, item in enumerate(items):
        single = _characters(item)
        if single is not None:
            return single
        inner = [_firsts(part, frozenset()) for part in _inside(item)]
        found = frozenset().union(*inner)
        if _item_width(item)[0]:
            return found
        return found | _firsts(items[index + 1 :], then)
    return then


def _cased(characters: frozenset[int]) -> frozenset[int]:
    """With the other case: whether a pattern ignores it does not matter then."""
    letters = {ord(chr(c).swapcase()) for c in characters if chr(c).isalpha()}
    return characters | {c for c in letters if c < _OTHER}


def _ways(items: _Items, then: frozenset[int]) -> int:
    """How many ways there are to match the items, or to give them up, at one place.

    A repeat that ends where what follows cannot begin has one way.
    """
    ways = 1
    for index, item in enumerate(items):
        following = _firsts(items[index + 1 :], then)
        ways = min(ways * _item_ways(item, following), _MANY_WAYS)
    return ways


def _item_ways(item: _Item, then: frozenset[int]) -> int:
    code, argument = item
    if code not in _REPEATS:
        inner = list(_inside(item))
        return sum(_ways(part, then) for part in inner) if inner else 1
    least, most, body = int(argument[0]), int(argument[1]), list(argument[2])
    first = _firsts(body, frozenset())
    each = _ways(body, first | then)
    open_ended = bool(_cased(first) & _cased(then)) or not _width(body)[0]
    choices = most - least + 1 if open_ended and most < UNBOUNDED else 1
    return int(min(choices * each ** min(most, 16), _MANY_WAYS))


def _ends_in_boundary(items: _Items) -> bool:
    """Whether a word boundary may be the last that the items look at."""
    for item in reversed(items):
        if item[0] is _codes.AT or any(map(_ends_in_boundary, _inside(item))):
            return True
        if _item_width(item)[0]:
            return False
    return False


def _unbounded(items: _Items) -> int:
    """How many repeats have no bound."""
    return sum(
        (item[0] in _REPEATS and item[1][1] is _codes.MAXREPEAT)
        + sum(map(_unbounded, _inside(item)))
        for item in items
    )


def _starts(items: _Items) -> tuple[list[str], bool]:
    """Strings with one of which each match of the items begins, and whether it ends.

    An empty string among them says that nothing is known.
    """
    found = [""]
    for item in items:
        options, whole = _item_starts(item)
        if (
            not options
            or len(found) * len(options) > _MOST_LITERALS
            or min(map(len, found)) >= _LONGEST_LITERAL
        ):
            return found, False
        found = [a + b for a, b in product(found, options)]
        if not whole:
            return found, False
    return found, True


def _item_starts(item: _Item) -> tuple[list[str], bool]:
    """What an item begins with, if that is known, and whether that is all of it."""
    code, argument = item
    if code is _codes.LITERAL:
        letter = chr(argument)
        # Engines ignore the case of ASCII only.
        known = letter.isascii() or letter.lower() == letter.upper()
        return [letter] * known, known
    if code is _codes.AT:
        return [""], True
    if code is _codes.SUBPATTERN:
        return _starts(list(argument[3]))
    if code in _REPEATS and argument[0]:
        least, most, body = argument
        found, whole = _starts(list(body))
        if whole and len(found) == 1 and least <= _LONGEST_LITERAL:
            return [found[0] * least], least == most
        return found, False
    if code is _codes.BRANCH:
        parts = [_starts(list(part)) for part in argument[1]]
    elif code is _codes.IN and all(kind is _codes.LITERAL for kind, _ in argument):
        parts = [_item_starts(member) for member in argument]
    else:
        return [], False
    if not all(found for found, _ in parts):
        return [], False
    return [start for found, _ in parts for start in found], all(w for _, w in parts)


def _flat(items: _Items) -> Iterator[tuple[str, int, int]]:
    """Digits, separators and other parts in order: (kind, fewest, most characters)."""
    for item in items:
        code, argument = item
        single = _characters(item)
        if single is not None:
            yield _kind(single), 1, 1
        elif code is _codes.SUBPATTERN:
            yield from _flat(list(argument[3]))
        elif code in _REPEATS:
            yield from _flat_repeat(int(argument[0]), int(argument[1]), argument[2])
        elif code is _codes.BRANCH:
            yield "other", *_item_width(item)


def _flat_repeat(least: int, most: int, body: _Items) -> Iterator[tuple[str, int, int]]:
    inner = list(_flat(list(body)))
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


def _runs(parts: Sequence[tuple[str, int, int]]) -> Iterator[DigitRun]:
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
