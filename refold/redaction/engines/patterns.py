"""Properties of a regular expression's matches, by its parse tree, without a match."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from refold.redaction.engines import syntax
from refold.redaction.engines.syntax import (
    BOUNDARIES,
    REPEATS,
    UNBOUNDED,
    BadSyntax,
    Item,
    Items,
    Op,
    Width,
    parts,
    width_of,
    width_of_item,
)

_LAST_ASCII: Final = 0x7F
# How many patterns are remembered: policies of a server may bring ever more.
REMEMBERED: Final = 4096


@lru_cache(maxsize=REMEMBERED)
def reach(pattern: str) -> int:
    """Return the most characters that ``pattern`` can match or look ahead at."""
    items = syntax.parse(pattern).items
    widths = syntax.widths_of_groups(items)
    return width_of(items, widths, with_lookahead=True).most


@lru_cache(maxsize=REMEMBERED)
def fixed_width(pattern: str) -> int:
    """Return how many characters each match of ``pattern`` has; -1 if they differ."""
    width = width_of(syntax.parse(pattern).items, with_lookahead=True)
    return width.fewest if width.fewest == width.most else -1


@lru_cache(maxsize=REMEMBERED)
def is_ascii(pattern: str) -> bool:
    """Whether ``pattern`` matches only characters of ASCII."""
    return pattern.isascii() and _is_ascii(syntax.parse(pattern).items)


def _is_ascii(items: Items) -> bool:
    for item in items:
        op, argument = item
        if op in (Op.ANY, Op.NOT_LITERAL, Op.REFERENCE):
            return False
        if op is Op.LITERAL and argument > _LAST_ASCII:
            return False
        if op is Op.IN and not all(map(_is_ascii_member, argument)):
            return False
        if not all(map(_is_ascii, parts(item))):
            return False
    return True


def _is_ascii_member(member: Item) -> bool:
    """Whether a member of a class is of ASCII, as engines over bytes see it."""
    op, argument = member
    if op is Op.NEGATE:
        return False
    if op is Op.CATEGORY:
        return bool(argument.islower())
    last: int = argument[1] if op is Op.RANGE else argument
    return last <= _LAST_ASCII


@lru_cache(maxsize=REMEMBERED)
def holds_space(pattern: str) -> bool:
    """Whether a match of ``pattern`` may contain a space."""
    return _may_hold_space(syntax.parse(pattern).items)


def _may_hold_space(items: Items) -> bool:
    for item in items:
        if item[0] is Op.REFERENCE:
            return True
        if _SPACE in (_characters(item) or ()):
            return True
        if any(map(_may_hold_space, parts(item))):
            return True
    return False


@lru_cache(maxsize=REMEMBERED)
def needed(pattern: str) -> tuple[str, ...]:
    """Return lower-case strings.  Each match, in lower case, contains at least one.

    Empty if none are known.
    """
    return tuple(sorted(_needed(syntax.parse(pattern).items)))


def _needed(items: Items) -> frozenset[str]:
    """The best candidate: the strings of one item, or a run of adjacent literals.

    Sets whose shortest string is longer are better; then, smaller sets.
    """
    choices: list[frozenset[str]] = []
    row = ""
    for item in items:
        if item[0] is Op.LITERAL:
            row += chr(item[1]).lower()
        elif item[0] is not Op.AT:
            choices.append(frozenset({row}))
            choices.append(_needed_of(item))
            row = ""
    choices.append(frozenset({row}))
    choices.append(frozenset())

    def quality(strings: frozenset[str]) -> tuple[int, int]:
        return min(map(len, strings), default=0), -len(strings)

    return max(choices, key=quality)


def _needed_of(item: Item) -> frozenset[str]:
    """The strings of which each match of one item contains one; empty if unknown."""
    code, argument = item
    is_optional = code in REPEATS and not argument[0]
    if is_optional or code is Op.CONDITIONAL:
        return frozenset()
    union: frozenset[str] = frozenset()
    for part in parts(item):
        strings = _needed(part)
        if not strings:
            return frozenset()
        union |= strings
    return union


_ANYTHING: Final = syntax.parse(r"[\s\S]").items
_END: Final[Item] = (Op.AT, r"\Z")
# A back reference counts as at most this many characters.
_LONGEST_BACK_REFERENCE: Final = 65_535


@lru_cache(maxsize=REMEMBERED)
def unfinished(pattern: str) -> re.Pattern[str]:
    """Return a pattern for the matches of ``pattern`` that more text may change.

    It is for text that arrives in pieces.  It matches at each position at which more
    text may change whether and what ``pattern`` matches.  It may also match at others.
    """
    parsed = syntax.parse(pattern)
    widths = syntax.widths_of_groups(parsed.items)
    reaching = _Reaching(widths).of(parsed.items)
    return re.compile(syntax.source_of(reaching, parsed.flags))


class _Reaching:
    """Makes items that match if others can run into the end of the text.

    widths: the widths of groups, by number.
    """

    def __init__(self, widths: Mapping[int, Width]) -> None:
        self._widths = widths

    def of(self, items: Sequence[Item]) -> Items:
        """Items that match if matching ``items`` can run into the end of the text.

        An item that ends earlier cannot change, so it is kept.
        """
        reaching: Items = [_END]
        for item in reversed(items):
            ways: list[Items] = [[_END]]
            inside = self._inside(item)
            if inside is not None:
                ways.append(inside)
            ways.append([item, *reaching])
            reaching = [(Op.BRANCH, ways)]
        return reaching

    def _inside(self, item: Item) -> Items | None:
        """Items that match if the text ends inside of ``item``; None if it cannot."""
        op, argument = item
        match op:
            case Op.BRANCH | Op.ATOMIC:
                return [(Op.BRANCH, [self.of(part) for part in parts(item)])]
            case Op.GROUP:
                # The group has no number here, because its content may be cut off.
                _, flags, cleared, content = argument
                return [(Op.GROUP, (None, flags, cleared, self.of(content)))]
            case Op.LOOK | Op.LOOK_NOT:
                direction, assertion = argument
                return self.of(assertion) if direction > 0 else None
            case Op.GREEDY | Op.LAZY:
                _, most, repeated = argument
                return self._repeat(most, repeated, repeated)
            case Op.POSSESSIVE:
                _, most, repeated = argument
                return self._repeat(most, [(Op.ATOMIC, repeated)], repeated)
            case Op.AT if argument == "$":
                # It matches before a line feed only as long as nothing follows that.
                return [(Op.LITERAL, ord("\n")), _END]
            case Op.CONDITIONAL:
                group, first, second = argument
                ways = (group, self.of(first), self.of(second))
                return [(Op.CONDITIONAL, ways)]
            case Op.REFERENCE:
                most = min(self._widths[argument].most, _LONGEST_BACK_REFERENCE)
                return [(Op.GREEDY, (0, most, _ANYTHING)), _END]
        return None

    def _repeat(self, most: int, once: Items, repeated: Items) -> Items:
        """Items that match if the text ends inside of a repeat.

        These are whole repetitions, then one that the end of the text cuts off.

        once: the form of a whole repetition, which is atomic in a possessive repeat.
        """
        return [(Op.GREEDY, (0, most, once)), *self.of(repeated)]


# The most characters that a pattern of a policy may match.
LONGEST_MATCH: Final = 512
# The most ways to match at one position of a text that a policy's pattern may have.
_MOST_WAYS: Final = 256
_LEADING_FLAGS = re.compile(r"\(\?([a-z]+)\)")
_ALLOWED_FLAGS: Final = frozenset("ims")
_REFUSED: Final = {
    Op.LOOK: "it looks ahead or behind",
    Op.LOOK_NOT: "it looks ahead or behind",
    Op.REFERENCE: "it refers back to a group",
    Op.CONDITIONAL: "it refers back to a group",
    Op.ATOMIC: "it has an atomic group",
    Op.POSSESSIVE: "it has a possessive repeat",
}


class LiteralAnchor(NamedTuple):
    """A place in a pattern's source after which each match has a known literal.

    Engines find the literal, and then match around it.

    literals: the beginnings of every match of ``rest``, in lower case.
    before:   the source of the pattern before the place.
    rest:     the source from the place on.
    reach:    the most characters that ``before`` matches, and at least 1.
    """

    literals: tuple[str, ...]
    before: str
    rest: str
    reach: int


class DigitRun(NamedTuple):
    """A run of digits in every match.

    digits: the fewest digits of the run.
    before: the most characters of a match before the run.
    after:  the most characters after it.
    """

    digits: int
    before: int
    after: int


class BadPattern(ValueError):
    """A pattern that a policy may not have; the message says why."""


class Pattern:
    """A pattern of a policy: \\w, \\d, \\s and \\b mean ASCII in it.

    source:   the pattern without leading flags.
    flags:    its flags, in order.
    shortest: the fewest characters of a match.
    longest:  the most.
    named:    whether it has a group ``value``, the part of a match that is redacted.

    bounded: whether each repeat must have a bound.

    Raises BadPattern for what a policy's pattern may not have: wrong syntax, other
    flags, anchors, and constructs that no engine matches in linear time.
    """

    def __init__(self, source: str, *, bounded: bool = True) -> None:
        letters = ""
        while (leading := _LEADING_FLAGS.match(source)) is not None:
            letters += leading[1]
            source = source[leading.end() :]
        if set(letters) - set("ims"):
            raise BadPattern(f"(?{letters}) is a flag other than i, m and s")
        self.source = source
        self.flags = "".join(sorted({*letters, "a"}))
        self._items = _parsed(source)
        _check(self._items, bounded=bounded)
        width = width_of(self._items, with_lookahead=True)
        self.shortest = width.fewest
        self.longest = width.most
        self.named = _has_value_group(source)

    def scoped(self, source: str | None = None) -> str:
        """Return ``source``, or the whole pattern, as a group with its flags."""
        if source is None:
            source = self.source
        return f"(?{self.flags}:{source})"

    def check_ways(self) -> None:
        """Raise BadPattern if there may be too many ways to match at one position."""
        ways = _ways(self._items, frozenset())
        if _count_unbounded(self._items) > 1 or ways > _MOST_WAYS:
            raise BadPattern(
                "it has too many ways to match one text: let each repeat end at a "
                "character that it does not hold, and put no repeat into a repeat"
            )

    def anchors(self) -> Iterator[LiteralAnchor]:
        """Yield the places after which each match has one of a known set of literals.

        The value never begins before such a place.
        """
        for index, place in self._places().items():
            literals = _beginnings(self._items[index:]).literals
            before = self.source[:place]
            rest = self.source[place:]
            is_known = bool(literals) and all(literals)
            holds_value = not self.named or _has_value_group(rest)
            if is_known and holds_value:
                lower = {literal.lower() for literal in literals}
                most_before = width_of(self._items[:index], with_lookahead=True).most
                yield LiteralAnchor(
                    tuple(sorted(lower)), before, rest, max(1, most_before)
                )

    def _places(self) -> dict[int, int]:
        """The place in the source where each item begins, by the item's index.

        Only places at which the source can be cut: not within a group, and not behind
        a boundary, which depends on the text after it.
        """
        places: dict[int, int] = {}
        whole = _shapes(self._items)
        for place in range(len(self.source) + 1):
            try:
                before = _parsed(self.source[:place])
                rest = _parsed(self.source[place:])
            except BadPattern:
                continue
            if _shapes([*before, *rest]) == whole and not _ends_in_boundary(before):
                places.setdefault(len(before), place)
        return places

    def digit_run(self) -> DigitRun | None:
        """Return the longest run of digits that every match has, or None.

        The digits may have separators between them.
        """
        return max(_digit_runs(list(_stretches(self._items))), default=None)


def _parsed(source: str) -> Items:
    """The items of a pattern.

    Raises BadPattern.
    """
    try:
        re.compile(source, re.ASCII)
        return syntax.parse(source).items
    except (re.error, BadSyntax) as error:
        raise BadPattern(f"it is not a regular expression ({error})") from None
    except (OverflowError, RecursionError):
        raise BadPattern("a repeat is too large, or groups nest too deep") from None


def _has_value_group(source: str) -> bool:
    """Whether a pattern has a group with the name ``value``."""
    return "value" in syntax.parse(source).names


def _shapes(items: Items) -> list[str]:
    """The items as text, without the numbers of their groups."""
    shapes: list[str] = []
    for item in items:
        shape = re.sub(r"GROUP: \d+>, \((?:[0-9]+|None)", "GROUP, (", repr(item))
        shapes.append(shape)
    return shapes


def _check(items: Items, *, bounded: bool) -> None:
    """Raise BadPattern for an item that a policy's pattern may not have."""
    for item in items:
        code, argument = item
        if code in _REFUSED:
            raise BadPattern(f"{_REFUSED[code]}, which no engine does in linear time")
        if code is Op.AT and argument not in BOUNDARIES:
            raise BadPattern("it has an anchor; a value may stand anywhere in a text")
        if code is Op.LITERAL and "\uff01" <= chr(argument) <= "\uff5e":
            wide = chr(argument)
            plain = chr(argument - 0xFEE0)
            raise BadPattern(f"{wide} may also be written {plain}: [{plain}{wide}]")
        if code is Op.GROUP and not _ALLOWED_FLAGS.issuperset(argument[1]):
            raise BadPattern("a group has a flag other than i, m and s")
        if bounded and _is_unbounded(item):
            raise BadPattern(
                "a repeat has no bound: write {1,64} or the like instead of + and *"
            )
        for part in parts(item):
            _check(part, bounded=bounded)


def _is_unbounded(item: Item) -> bool:
    code, argument = item
    return code in REPEATS and argument[1] == UNBOUNDED


def _count_unbounded(items: Items) -> int:
    """The number of repeats without a bound, each as often as repeats repeat it."""
    count = 0
    for item in items:
        if _is_unbounded(item):
            count += 1
        code, argument = item
        times = int(argument[1]) if code in REPEATS else 1
        for part in parts(item):
            count += times * _count_unbounded(part)
    return count


# All characters that are not ASCII count as this one.
_OTHER: Final = 128
_ALL: Final = frozenset(range(_OTHER + 1))
_SPACE: Final = ord(" ")
_DIGITS: Final = frozenset(map(ord, "0123456789"))
_WORD: Final = frozenset(c for c in range(_OTHER) if chr(c).isalnum() or c == ord("_"))
_WHITESPACE: Final = frozenset(map(ord, " \t\n\r\f\v"))
_SEPARATORS: Final = frozenset(map(ord, " .()-/"))
_CATEGORIES: Final = {
    "d": _DIGITS,
    "D": _ALL - _DIGITS,
    "w": _WORD,
    "W": _ALL - _WORD,
    "s": _WHITESPACE,
    "S": _ALL - _WHITESPACE,
}


def _characters(item: Item) -> frozenset[int] | None:
    """The characters that an item of one character matches; None for other items."""
    code, argument = item
    if code is Op.LITERAL:
        return frozenset({min(argument, _OTHER)})
    if code is Op.NOT_LITERAL:
        # Another character outside of ASCII may follow instead of the excluded one.
        return _ALL - {argument} if argument < _OTHER else _ALL
    if code is Op.ANY:
        return _ALL
    if code is Op.IN:
        return _characters_of_class(argument)
    return None


def _characters_of_class(members: Items) -> frozenset[int]:
    characters: set[int] = set()
    is_negated = False
    for index, (code, argument) in enumerate(members):
        if code is Op.NEGATE and index == 0:
            is_negated = True
        elif code is Op.LITERAL:
            characters.add(min(argument, _OTHER))
        elif code is Op.RANGE:
            low, high = argument
            characters.update(range(min(low, _OTHER), min(high, _OTHER) + 1))
        elif code is Op.CATEGORY:
            characters |= _CATEGORIES[argument]
    if is_negated:
        # A class that excludes one character outside of ASCII matches another.
        return (_ALL - characters) | {_OTHER}
    return frozenset(characters)


def _first_characters(items: Items, following: frozenset[int]) -> frozenset[int]:
    """The possible first characters of the items, or else of what follows them."""
    for index, item in enumerate(items):
        characters = _characters(item)
        if characters is not None:
            return characters
        first: frozenset[int] = frozenset()
        for part in parts(item):
            first |= _first_characters(part, frozenset())
        if width_of_item(item, with_lookahead=True).fewest:
            return first
        return first | _first_characters(items[index + 1 :], following)
    return following


def _in_both_cases(characters: frozenset[int]) -> frozenset[int]:
    """The characters with those of the other case, whatever the flags say."""
    both = set(characters)
    for character in characters:
        if chr(character).isalpha():
            swapped = ord(chr(character).swapcase())
            if swapped < _OTHER:
                both.add(swapped)
    return frozenset(both)


# Greater numbers of ways count as this one.
_MANY_WAYS: Final = 2**20


def _ways(items: Items, following: frozenset[int]) -> int:
    """How many paths an engine may try, matching or failing, at one position.

    following: the characters that may follow the items.
    """
    ways = 1
    for index, item in enumerate(items):
        first = _first_characters(items[index + 1 :], following)
        ways = min(ways * _item_ways(item, first), _MANY_WAYS)
    return ways


def _item_ways(item: Item, following: frozenset[int]) -> int:
    code, argument = item
    if code in REPEATS:
        least, most, body = argument
        return _repeat_ways(least, most, body, following)
    ways = [_ways(part, following) for part in parts(item)]
    return sum(ways) if ways else 1


def _repeat_ways(least: int, most: int, items: Items, following: frozenset[int]) -> int:
    """The ways of a repeat.

    It can stop at one place only if no character that may follow could continue it.
    With 16 repetitions, two ways of one are already more than ``_MOST_WAYS``.
    """
    first = _first_characters(items, frozenset())
    ways_of_one = _ways(items, first | following)
    overlaps = bool(_in_both_cases(first) & _in_both_cases(following))
    may_be_empty = not width_of(items, with_lookahead=True).fewest
    ends = 1
    if (overlaps or may_be_empty) and most < UNBOUNDED:
        ends = most - least + 1
    return int(min(ends * ways_of_one ** min(most, 16), _MANY_WAYS))


def _ends_in_boundary(items: Items) -> bool:
    """Whether a word boundary may be the last thing that the items look at."""
    for item in reversed(items):
        if item[0] is Op.AT or any(map(_ends_in_boundary, parts(item))):
            return True
        if width_of_item(item, with_lookahead=True).fewest:
            return False
    return False


_MOST_LITERALS: Final = 32
_LONGEST_LITERAL: Final = 16


class _Beginnings(NamedTuple):
    """The strings with one of which each match of items begins.

    literals: an empty string, or an empty list, says that nothing is known.
    is_whole: whether a match has nothing after them.
    """

    literals: list[str]
    is_whole: bool


_UNKNOWN: Final = _Beginnings([], is_whole=False)


def _beginnings(items: Items) -> _Beginnings:
    literals = [""]
    for item in items:
        item_literals, is_whole = _item_beginnings(item)
        if not item_literals:
            return _Beginnings(literals, is_whole=False)
        if len(literals) * len(item_literals) > _MOST_LITERALS:
            return _Beginnings(literals, is_whole=False)
        if min(map(len, literals)) >= _LONGEST_LITERAL:
            return _Beginnings(literals, is_whole=False)
        longer: list[str] = []
        for literal in literals:
            longer.extend(literal + addition for addition in item_literals)
        literals = longer
        if not is_whole:
            return _Beginnings(literals, is_whole=False)
    return _Beginnings(literals, is_whole=True)


def _item_beginnings(item: Item) -> _Beginnings:
    """The beginnings of one item; no literals if they are unknown."""
    code, argument = item
    if code is Op.LITERAL:
        letter = chr(argument)
        # Engines ignore the case of ASCII only.
        if letter.isascii() or letter.lower() == letter.upper():
            return _Beginnings([letter], is_whole=True)
        return _UNKNOWN
    if code is Op.AT:
        return _Beginnings([""], is_whole=True)
    if code is Op.GROUP:
        return _beginnings(argument[3])
    if code in REPEATS and argument[0]:
        least, most, body = argument
        literals, is_whole = _beginnings(body)
        if is_whole and len(literals) == 1 and least <= _LONGEST_LITERAL:
            return _Beginnings([literals[0] * least], is_whole=least == most)
        return _Beginnings(literals, is_whole=False)
    if code is Op.BRANCH:
        return _union([_beginnings(part) for part in argument])
    if code is Op.IN and all(kind is Op.LITERAL for kind, _ in argument):
        return _union([_item_beginnings(member) for member in argument])
    return _UNKNOWN


def _union(parts: list[_Beginnings]) -> _Beginnings:
    """The beginnings of an item that matches as one of its parts does."""
    literals: list[str] = []
    for part in parts:
        if not part.literals:
            return _UNKNOWN
        literals.extend(part.literals)
    return _Beginnings(literals, is_whole=all(part.is_whole for part in parts))


# The most separators between two digits of one run.
_WIDEST_GAP: Final = 3
# A repeat of several parts is unrolled at most this many times.
_UNROLLED: Final = 32


class _Stretch(NamedTuple):
    """Characters of one kind in a row: ``digit``, ``separator`` or ``other``."""

    kind: str
    fewest: int
    most: int


def _stretches(items: Items) -> Iterator[_Stretch]:
    """The stretches that each match consists of, in order."""
    for item in items:
        code, argument = item
        characters = _characters(item)
        if characters is not None:
            yield _Stretch(_kind(characters), 1, 1)
        elif code is Op.GROUP:
            yield from _stretches(argument[3])
        elif code in REPEATS:
            least, most, body = argument
            yield from _stretches_of_repeat(least, most, body)
        elif code is Op.BRANCH:
            width = width_of_item(item, with_lookahead=True)
            yield _Stretch("other", width.fewest, width.most)


def _stretches_of_repeat(least: int, most: int, body: Items) -> Iterator[_Stretch]:
    inner = list(_stretches(body))
    if len(inner) == 1:
        kind, fewest, longest = inner[0]
        yield _Stretch(kind, fewest * least, longest * most)
        return
    unrolled = min(least, _UNROLLED)
    for _ in range(unrolled):
        yield from inner
    rest = (most - unrolled) * sum(stretch.most for stretch in inner)
    has_other = any(stretch.kind == "other" for stretch in inner)
    has_digits = any(stretch.kind == "digit" and stretch.fewest for stretch in inner)
    gap = sum(stretch.most for stretch in inner if stretch.kind == "separator")
    is_run = not has_other and gap <= _WIDEST_GAP and (gap == 0 or has_digits)
    if is_run:
        yield _Stretch("separator", 0, min(gap, rest))
        yield _Stretch("digit", 0, max(rest - gap, 0))
    else:
        yield _Stretch("other", 0, rest)


def _kind(characters: frozenset[int]) -> str:
    if characters <= _DIGITS:
        return "digit"
    if characters <= _SEPARATORS:
        return "separator"
    return "other"


def _digit_runs(stretches: Sequence[_Stretch]) -> Iterator[DigitRun]:
    """The runs of digits with at most three separators between two of them."""
    total = sum(stretch.most for stretch in stretches)
    digits = 0  # of the current run
    gap = 0  # separators since its last digit
    start = 0  # the most characters before it
    end = 0  # the most characters up to its last digit
    place = 0
    for kind, fewest, most in (*stretches, _Stretch("other", 0, 0)):
        if kind == "digit" and fewest:
            if not digits:
                start = place
            digits += fewest
            end = place + most
            gap = 0
        elif kind == "separator" and digits and gap + most <= _WIDEST_GAP:
            gap += most
        elif kind != "digit" and digits:
            yield DigitRun(digits, start, total - end)
            digits = 0
            gap = 0
        place += most
