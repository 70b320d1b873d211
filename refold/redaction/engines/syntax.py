"""Reads the syntax of regular expressions into a tree, and writes a tree as source.

Only the public module ``re`` compiles and matches.  A tree shows what an expression is
made of: its literals, classes, repeats, groups, and looks around.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias


class Op(Enum):
    """The kinds of items of an expression, with the argument of each.

    A repeat's argument is (least, most, items); that of a look is (1 ahead or -1
    behind, items); of a group, (its number or None, flags set, flags cleared, items);
    of a conditional, (number, items, items).
    """

    LITERAL = auto()  # the code of the character
    NOT_LITERAL = auto()  # the code of the one character that does not match
    ANY = auto()  # None
    IN = auto()  # the members of a class: NEGATE, LITERAL, RANGE, CATEGORY
    NEGATE = auto()  # None; the first member of a negated class
    RANGE = auto()  # (first code, last code)
    CATEGORY = auto()  # one of the letters d, D, s, S, w, W
    AT = auto()  # the source of an anchor or a boundary
    BRANCH = auto()  # the alternatives, each a list of items
    GROUP = auto()
    ATOMIC = auto()  # the items of (?>...)
    GREEDY = auto()
    LAZY = auto()
    POSSESSIVE = auto()
    LOOK = auto()
    LOOK_NOT = auto()
    REFERENCE = auto()  # the number of the group
    CONDITIONAL = auto()


# An item: what it is, and its argument.
Item: TypeAlias = tuple[Op, Any]
Items: TypeAlias = list[Item]

REPEATS: Final = (Op.GREEDY, Op.LAZY, Op.POSSESSIVE)
LOOKS: Final = (Op.LOOK, Op.LOOK_NOT)
# The most repetitions of a repeat without a bound.
UNBOUNDED: Final = 2**32 - 1
BOUNDARIES: Final = (r"\b", r"\B")

_SIGNS_OF_REPEATS: Final = {"*": (0, UNBOUNDED), "+": (1, UNBOUNDED), "?": (0, 1)}
_ESCAPED: Final = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a"}
_FLAGS: Final = frozenset("aimsuxL")
# Flags of an alphabet: an expression has one, and nothing turns it off.
_ALPHABETS: Final = frozenset("auL")
# With this flag, white space and comments have no meaning.  A tree has none of them.
_VERBOSE: Final = "x"
_DIGITS: Final = frozenset("0123456789")
_OCTAL: Final = frozenset("01234567")
_LAST_OCTAL: Final = 0o377
_SPECIAL: Final = frozenset(("", *"\\.^$*+?{[|()"))
_HEX_DIGITS: Final = frozenset("0123456789abcdefABCDEF")
# How many digits follow each letter.
_HEX: Final = {"x": 2, "u": 4, "U": 8}


class BadSyntax(ValueError):
    """A source that is no regular expression."""


@dataclass
class Parsed:
    """An expression: its items, its leading flags, and its groups.

    names: the numbers of named groups.
    """

    items: Items
    flags: str = ""
    names: dict[str, int] = field(default_factory=dict)


def parse(source: str) -> Parsed:
    """Read a whole expression.

    Raises BadSyntax.
    """
    return _Reader(source).whole()


def parts(item: Item) -> Iterator[Items]:
    """The sequences of items of which a match of an item consists; none for a look."""
    op, argument = item
    if op in REPEATS:
        yield argument[2]
    elif op is Op.GROUP:
        yield argument[3]
    elif op is Op.BRANCH:
        yield from argument
    elif op is Op.ATOMIC:
        yield argument
    elif op is Op.CONDITIONAL:
        yield argument[1]
        yield argument[2]


class _Reader:
    """Reads one source from left to right."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._place = 0
        self._parsed = Parsed([])
        self._groups = 0
        # The numbers of groups that are not closed yet.
        self._open: set[int] = set()
        # By number of a closed group: the fewest and the most characters of a match.
        self._widths: dict[int, Width] = {}
        # The place behind the leading flags.
        self._after_flags = 0
        self._is_verbose = False

    def whole(self) -> Parsed:
        parsed = self._parsed
        parsed.items = self._alternatives()
        if self._place < len(self._source):
            raise BadSyntax("a parenthesis is closed that was not opened")
        return parsed

    def _next(self) -> str:
        """The character at the place; empty at the end."""
        return self._source[self._place : self._place + 1]

    def _take(self) -> str:
        """The character at the place, which is passed over."""
        character = self._next()
        if not character:
            raise BadSyntax("it ends too early")
        self._place += 1
        return character

    def _takes(self, text: str) -> bool:
        """Whether ``text`` is at the place; it is then passed over."""
        if self._source.startswith(text, self._place):
            self._place += len(text)
            return True
        return False

    def _until(self, end: str) -> str:
        """The text up to ``end``, which is passed over, too."""
        stop = self._source.find(end, self._place)
        if stop < 0:
            raise BadSyntax(f"{end} is missing")
        text = self._source[self._place : stop]
        self._place = stop + len(end)
        return text

    def _alternatives(self) -> Items:
        ways = [self._sequence()]
        while self._takes("|"):
            ways.append(self._sequence())
        return ways[0] if len(ways) == 1 else _branch(ways)

    def _sequence(self) -> Items:
        items: Items = []
        while True:
            if self._is_verbose:
                self._skip_comments()
            character = self._next()
            if character not in _SPECIAL:
                # Most characters stand for themselves.
                self._place += 1
                items.append((Op.LITERAL, ord(character)))
                continue
            if character in ("", "|", ")"):
                break
            repeat = self._repeat()
            if repeat is None:
                items += self._item()
            elif not items or items[-1][0] is Op.AT:
                raise BadSyntax("there is nothing to repeat")
            elif items[-1][0] in REPEATS:
                raise BadSyntax("a repeat follows a repeat")
            else:
                op, least, most = repeat
                body = _without_group([items.pop()])
                items.append((op, (least, most, body)))
        sequence: Items = []
        for item in items:
            sequence += _without_group([item])
        return sequence

    def _skip_comments(self) -> None:
        """Pass over white space, and over comments to the ends of their lines."""
        while character := self._next():
            if character == "#":
                stop = self._source.find("\n", self._place)
                self._place = len(self._source) if stop < 0 else stop
            elif character not in " \t\n\r\v\f":
                break
            else:
                self._place += 1

    def _repeat(self) -> tuple[Op, int, int] | None:
        """A repeat at the place; None if there is none."""
        bounds = _SIGNS_OF_REPEATS.get(self._next())
        if bounds is not None:
            self._place += 1
        else:
            bounds = self._braces()
        if bounds is None:
            return None
        if self._takes("?"):
            return Op.LAZY, *bounds
        if self._takes("+"):
            return Op.POSSESSIVE, *bounds
        return Op.GREEDY, *bounds

    def _braces(self) -> tuple[int, int] | None:
        """The bounds in braces; None if these are literals."""
        stop = self._source.find("}", self._place)
        if self._next() != "{" or stop < 0:
            return None
        least, comma, most = self._source[self._place + 1 : stop].partition(",")
        if not (least or comma) or not _DIGITS.issuperset(least + most):
            return None
        self._place = stop + 1
        if max(int(least or 0), int(most or 0)) >= UNBOUNDED:
            raise BadSyntax("a number of repetitions is too large")
        if not comma:
            return int(least), int(least)
        bounds = int(least or 0), int(most) if most else UNBOUNDED
        if bounds[1] < bounds[0]:
            raise BadSyntax("the least number of repetitions is more than the most")
        return bounds

    def _item(self) -> Items:
        character = self._take()
        if character == "(":
            return self._group()
        if character == "[":
            return [self._class()]
        if character == "\\":
            return [self._escape()]
        if character == ".":
            return [(Op.ANY, None)]
        if character in "^$":
            return [(Op.AT, character)]
        return [(Op.LITERAL, ord(character))]

    def _group(self) -> Items:
        """A group, of which the parenthesis was read."""
        if not self._takes("?"):
            return [self._capturing()]
        if self._takes("P<"):
            name = self._until(">")
            if not name.isidentifier() or name in self._parsed.names:
                raise BadSyntax("the name of a group is wrong")
            return [self._capturing(name)]
        if self._takes("P="):
            return [(Op.REFERENCE, self._number(self._until(")")))]
        if self._takes("#"):
            is_leading = self._place - len("(?#") == self._after_flags
            self._until(")")
            if is_leading:
                self._after_flags = self._place
            return []
        if self._takes("("):
            return [self._conditional()]
        for sign, op, direction in (
            ("=", Op.LOOK, 1),
            ("!", Op.LOOK_NOT, 1),
            ("<=", Op.LOOK, -1),
            ("<!", Op.LOOK_NOT, -1),
        ):
            if self._takes(sign):
                items = self._closed()
                if direction < 0 and not self._has_fixed_width(items):
                    raise BadSyntax("a look behind has no fixed width")
                return [(op, (direction, items))]
        if self._takes(">"):
            return [(Op.ATOMIC, self._closed())]
        return self._with_flags()

    def _capturing(self, name: str = "") -> Item:
        self._groups += 1
        number = self._groups
        if name:
            self._parsed.names[name] = number
        self._open.add(number)
        items = self._closed()
        self._open.remove(number)
        self._widths[number] = width_of(items, self._widths)
        return (Op.GROUP, (number, "", "", items))

    def _has_fixed_width(self, items: Items) -> bool:
        width = width_of(items, self._widths)
        return width.fewest == width.most

    def _closed(self) -> Items:
        """The rest of a group, with the parenthesis that closes it."""
        items = self._alternatives()
        if not self._takes(")"):
            raise BadSyntax("a parenthesis is not closed")
        return items

    def _with_flags(self) -> Items:
        """A group without a number, or the leading flags of the expression."""
        start = self._place
        flags = self._letters()
        cleared = ""
        if self._takes("-"):
            cleared = self._letters()
            if not cleared or _ALPHABETS.intersection(cleared):
                raise BadSyntax("a group turns off a flag that it cannot turn off")
        has_two = len(_ALPHABETS.intersection(flags)) > 1
        if has_two or "L" in flags or set(flags).intersection(cleared):
            raise BadSyntax("flags of a group exclude one another")
        if self._takes(":"):
            outside = self._is_verbose
            self._is_verbose = (outside or _VERBOSE in flags) and (
                _VERBOSE not in cleared
            )
            items = self._closed()
            self._is_verbose = outside
            return [(Op.GROUP, (None, flags, cleared, items))]
        is_leading = start - len("(?") == self._after_flags
        if not (flags and not cleared and is_leading and self._takes(")")):
            raise BadSyntax("a group begins with an unknown sign")
        self._after_flags = self._place
        self._parsed.flags += flags
        self._is_verbose = self._is_verbose or _VERBOSE in flags
        return []

    def _letters(self) -> str:
        letters = ""
        while self._next() and self._next() in _FLAGS:
            letters += self._take()
        return letters

    def _conditional(self) -> Item:
        number = self._number(self._until(")"))
        ways = [self._sequence()]
        while self._takes("|"):
            ways.append(self._sequence())
        if len(ways) > 2 or not self._takes(")"):
            raise BadSyntax("a conditional group has two ways at most")
        return (Op.CONDITIONAL, (number, ways[0], ways[1] if len(ways) > 1 else []))

    def _number(self, name: str) -> int:
        """The number of a group, of which the name or the number is given."""
        number = self._parsed.names.get(name, 0)
        if name.isdecimal():
            number = int(name)
        if not 0 < number <= self._groups or number in self._open:
            raise BadSyntax("a reference names no group before it")
        return number

    def _escape(self) -> Item:
        """An escape outside of classes, of which the backslash was read."""
        character = self._take()
        if character in "AZbB":
            return (Op.AT, f"\\{character}")
        if character in "dDsSwW":
            return (Op.IN, [(Op.CATEGORY, character)])
        if character in _DIGITS and character != "0":
            if self._next() in _DIGITS and self._next():
                character += self._take()
                third = self._next()
                if _OCTAL.issuperset(character + third) and third:
                    return (Op.LITERAL, _octal(character + self._take()))
            return (Op.REFERENCE, self._number(character))
        return (Op.LITERAL, self._code(character))

    def _code(self, character: str) -> int:
        """The code of a character that is written as an escape."""
        if character in _HEX:
            digits = self._source[self._place : self._place + _HEX[character]]
            self._place += len(digits)
            code = -1
            if len(digits) == _HEX[character] and _HEX_DIGITS.issuperset(digits):
                code = int(digits, 16)
            if not 0 <= code <= sys.maxunicode:
                raise BadSyntax("an escape is incomplete")
            return code
        if character == "N" and self._takes("{"):
            try:
                return ord(unicodedata.lookup(self._until("}")))
            except (KeyError, TypeError):
                raise BadSyntax("an escape names no character") from None
        if character in _OCTAL:
            digits = character
            while len(digits) < 3 and self._next() and self._next() in _OCTAL:
                digits += self._take()
            return _octal(digits)
        if character in _ESCAPED:
            return ord(_ESCAPED[character])
        if character.isascii() and character.isalnum():
            raise BadSyntax(f"\\{character} is an unknown escape")
        return ord(character)

    def _class(self) -> Item:
        """A class, of which the bracket was read."""
        is_negated = self._takes("^")
        members: Items = []
        while not (members and self._takes("]")):
            first = self._member()
            if self._source.startswith("-]", self._place) or not self._takes("-"):
                members.append(first)
                continue
            last = self._member()
            if (first[0], last[0]) != (Op.LITERAL, Op.LITERAL) or last[1] < first[1]:
                raise BadSyntax("a range of a class is wrong")
            members.append((Op.RANGE, (first[1], last[1])))
        members = _once_each(members)
        if len(members) == 1 and members[0][0] is Op.LITERAL:
            op = Op.NOT_LITERAL if is_negated else Op.LITERAL
            return (op, members[0][1])
        return (Op.IN, [(Op.NEGATE, None), *members] if is_negated else members)

    def _member(self) -> Item:
        character = self._take()
        if character != "\\":
            return (Op.LITERAL, ord(character))
        character = self._take()
        if character in "dDsSwW":
            return (Op.CATEGORY, character)
        if character == "b":
            return (Op.LITERAL, ord("\b"))
        return (Op.LITERAL, self._code(character))


def _octal(digits: str) -> int:
    code = int(digits, 8)
    if code > _LAST_OCTAL:
        raise BadSyntax(f"\\{digits} is more than one byte")
    return code


class Width(NamedTuple):
    """The fewest and the most characters that items match."""

    fewest: int
    most: int


_NOTHING: Final = Width(0, 0)
_ONE_CHARACTER: Final = Width(1, 1)
_ANY_WIDTH: Final = Width(0, UNBOUNDED)
NO_GROUPS: Final[Mapping[int, Width]] = MappingProxyType({})


def width_of(
    items: Sequence[Item],
    groups: Mapping[int, Width] = NO_GROUPS,
    *,
    with_lookahead: bool = False,
) -> Width:
    """The width of items in a row.

    groups:         the width of each closed group, by its number.
    with_lookahead: the most characters include those that a look ahead reads.
    """
    fewest = 0
    most = 0
    for item in items:
        width = width_of_item(item, groups, with_lookahead=with_lookahead)
        fewest += width.fewest
        most += width.most
    return Width(fewest, min(most, UNBOUNDED))


def width_of_item(
    item: Item,
    groups: Mapping[int, Width] = NO_GROUPS,
    *,
    with_lookahead: bool = False,
) -> Width:
    """The width of one item, as ``width_of`` computes it for several."""
    op, argument = item
    if op is Op.AT:
        return _NOTHING
    if op is Op.REFERENCE:
        return groups.get(argument, _ANY_WIDTH)
    if op in LOOKS:
        direction, assertion = argument
        if not with_lookahead or direction < 0:
            return _NOTHING
        return Width(0, width_of(assertion, groups, with_lookahead=True).most)
    widths: list[Width] = []
    for part in parts(item):
        widths.append(width_of(part, groups, with_lookahead=with_lookahead))
    if op in REPEATS:
        least, most, _ = argument
        [body] = widths
        return Width(body.fewest * least, body.most * most)
    if not widths:
        return _ONE_CHARACTER
    return Width(
        min(width.fewest for width in widths), max(width.most for width in widths)
    )


def _without_group(items: Items) -> Items:
    """The items of a group without number and flags, instead of the group."""
    op, argument = items[0]
    if op is Op.GROUP and argument[:3] == (None, "", ""):
        inside: Items = argument[3]
        return inside
    return items


def _once_each(items: Items) -> Items:
    unique: Items = []
    for item in items:
        if item not in unique:
            unique.append(item)
    return unique


def _branch(ways: list[Items]) -> Items:
    """Alternatives, with what all begin with before them, or as one class."""
    ways = [[*way] for way in ways]
    common: Items = []
    while all(ways) and _is_simple(ways[0][0]):
        if any(way[0] != ways[0][0] for way in ways):
            break
        common.append(ways[0][0])
        for way in ways:
            del way[0]
    members: Items = []
    for way in ways:
        if len(way) != 1:
            return [*common, (Op.BRANCH, ways)]
        op, argument = way[0]
        if op is Op.LITERAL:
            members.append(way[0])
        elif op is Op.IN and argument[0][0] is not Op.NEGATE:
            members += argument
        else:
            return [*common, (Op.BRANCH, ways)]
    return [*common, (Op.IN, _once_each(members))]


def _is_simple(item: Item) -> bool:
    """Whether an item has no items in it."""
    return item[0] not in LOOKS and not any(True for _ in parts(item))


_REPEAT_SIGN: Final = {Op.GREEDY: "", Op.LAZY: "?", Op.POSSESSIVE: "+"}
_LOOK_SIGN: Final = {
    (Op.LOOK, 1): "=",
    (Op.LOOK_NOT, 1): "!",
    (Op.LOOK, -1): "<=",
    (Op.LOOK_NOT, -1): "<!",
}
_NEVER: Final = "(?!)"


def source_of(items: Sequence[Item], flags: str = "") -> str:
    """The source of an expression of these items.

    The items may hold a group several times, on ways that exclude one another.  Each
    gets a number of its own, and a reference refers to the last one before it.
    """
    flags = flags.replace(_VERBOSE, "")
    leading = f"(?{flags})" if flags else ""
    return leading + _Writer().sequence(items, {})


class _Writer:
    """Writes items as source, and counts the groups."""

    def __init__(self) -> None:
        self._groups = 0

    def sequence(self, items: Sequence[Item], numbers: dict[int, int]) -> str:
        """The source of items in a row.

        numbers: by number of a group in the items, its number in the source; updated.
        """
        return "".join([self._item(item, numbers) for item in items])

    def _item(self, item: Item, numbers: dict[int, int]) -> str:
        op, argument = item
        match op:
            case Op.LITERAL:
                return _escaped(argument)
            case Op.NOT_LITERAL:
                return f"[^{_escaped(argument)}]"
            case Op.ANY:
                return "."
            case Op.AT:
                return str(argument)
            case Op.IN:
                return f"[{''.join(map(_written_member, argument))}]"
            case Op.BRANCH:
                # A way sees the groups before it, and what follows sees those of all.
                before = {**numbers}
                ways: list[str] = []
                for way in argument:
                    seen = {**before}
                    ways.append(self.sequence(way, seen))
                    numbers.update(seen)
                return f"(?:{'|'.join(ways)})"
            case Op.ATOMIC:
                return f"(?>{self.sequence(argument, numbers)})"
            case Op.LOOK | Op.LOOK_NOT:
                sign = _LOOK_SIGN[op, argument[0]]
                return f"(?{sign}{self.sequence(argument[1], numbers)})"
            case Op.GREEDY | Op.LAZY | Op.POSSESSIVE:
                least, most, body = argument
                bounds = f"{least}," if most == UNBOUNDED else f"{least},{most}"
                inside = self.sequence(body, numbers)
                return f"(?:{inside}){{{bounds}}}{_REPEAT_SIGN[op]}"
            case Op.GROUP:
                return self._group(argument, numbers)
            case Op.REFERENCE:
                # A group that is on no way to here has no match.
                number = numbers.get(argument, 0)
                return f"(?:\\{number})" if number else _NEVER
            case _:
                return self._conditional(argument, numbers)

    def _group(self, argument: Any, numbers: dict[int, int]) -> str:
        number, flags, cleared, items = argument
        if number is None:
            changed = f"{flags}-{cleared}" if cleared else flags
            changed = changed.replace(_VERBOSE, "").removesuffix("-")
            return f"(?{changed}:{self.sequence(items, numbers)})"
        self._groups += 1
        own = self._groups
        inside = self.sequence(items, numbers)
        numbers[number] = own
        return f"({inside})"

    def _conditional(self, argument: Any, numbers: dict[int, int]) -> str:
        group, first, second = argument
        number = numbers.get(group, 0)
        if not number:
            return f"(?:{self.sequence(second, numbers)})"
        yes = self.sequence(first, numbers)
        return f"(?({number}){yes}|{self.sequence(second, numbers)})"


def _escaped(code: int) -> str:
    """A character, as a letter or a digit itself, else as an escape."""
    character = chr(code)
    if character.isascii() and character.isalnum():
        return character
    return f"\\U{code:08x}"


def _written_member(member: Item) -> str:
    op, argument = member
    if op is Op.NEGATE:
        return "^"
    if op is Op.CATEGORY:
        return f"\\{argument}"
    if op is Op.RANGE:
        return f"{_escaped(argument[0])}-{_escaped(argument[1])}"
    return _escaped(argument)


def widths_of_groups(
    items: Sequence[Item], widths: dict[int, Width] | None = None
) -> Mapping[int, Width]:
    """By number of a group: its width, which includes characters of a look ahead."""
    widths = {} if widths is None else widths
    for item in items:
        op, argument = item
        for part in [argument[1]] if op in LOOKS else parts(item):
            widths_of_groups(part, widths)
        if op is Op.GROUP and argument[0] is not None:
            widths[argument[0]] = width_of(argument[3], widths, with_lookahead=True)
    return widths
