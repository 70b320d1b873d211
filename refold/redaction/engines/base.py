"""What an engine is."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from functools import cache
from re import _parser  # type: ignore[attr-defined]  # it knows how a pattern is made
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

# Half of a surrogate pair has no UTF-8: engines see a character in its place that no
# pattern means, not a question mark.
UNPAIRED: Final = "refold.unpaired"


def _replaced(error: UnicodeError) -> tuple[bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "\ufffd".encode() * (error.end - error.start), error.end


codecs.register_error(UNPAIRED, _replaced)

EngineName: TypeAlias = Literal["auto", "vectorscan", "re2", "stdlib"]
# The number of a trigger, and where it ends.
Hit: TypeAlias = tuple[int, int]


class Engine(Protocol):
    """Triggers, ready to run over any bytes of UTF-8; threads may share it."""

    @property
    def name(self) -> str:
        """Which engine, and its version."""
        ...

    @property
    def gates(self) -> bool:
        """Whether ``clean`` is so fast that it pays to ask it first."""
        ...

    def clean(self, data: bytes, *, beside: bool) -> bool:
        """Whether no trigger is in ``data``, which may be JSON of the texts.

        beside: strings that are no keys may name what is beside them.
        """
        ...

    def scan(self, data: bytes) -> list[Hit]:
        """(number of a trigger, where it ends) for each place that has one.

        A place may be named more than once, and one may be named that has none.
        """
        ...


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


class Trigger(NamedTuple):
    """One thing to look for in a text, in any ASCII case.

    literal: what must be there, in lower case; empty for a shape.
    lead:    a pattern of the character before the literal, or empty.
    then:    a pattern of what follows the literal, or empty.
    shape:   a pattern, where there is no literal.
    run:     of digits, how many there are at least; 0: it is not about digits.
    word:    what stands shortly before the digits, or right after them; the shape is
             of both.
    key:     it is of strings that name something, as keys do, and end there; it is
             only asked whether it is there, with such digits.
    """

    literal: str = ""
    lead: str = ""
    then: str = ""
    shape: str = ""
    run: int = 0
    word: str = ""
    key: bool = False

    @property
    def expression(self) -> str:
        """The whole as a pattern without groups that capture."""
        if self.shape:
            return self.shape
        return f"{self.lead}{re.escape(self.literal)}{_shortest(self.then)}"

    @property
    def beside(self) -> bool:
        """Whether it is looked for only around many digits."""
        return self.run >= MANY and not (self.key or self.word)

    @property
    def reach(self) -> int:
        """How many characters before its end the literal may begin at most."""
        return len(self.literal) + reach(self.then) + 1

    @property
    def rare(self) -> bool:
        """Whether the literal alone hardly ever stands in prose or in code."""
        literal = self.literal
        return bool(literal) and (
            any(character.isdigit() for character in literal)
            or (len(literal) > 5 and not literal.isalpha() and literal[0] != "-")
        )


# What follows a key in JSON, and a string that may name what is beside it; in JSON that
# is a string itself, white space is escaped.
_ENDS_KEY = re.compile(rb"(?: |\\+[nrt])*:")
_ENDS_NAME = re.compile(rb"(?: |\\+[nrt])*[:,}\]]")


def names(data: bytes, end: int, *, beside: bool) -> bool:
    """Whether what ends there in JSON is a key; or, ``beside``, any string."""
    return bool((_ENDS_NAME if beside else _ENDS_KEY).match(data, end))


_TAIL = re.compile(r"(\[(?:\\.|[^\]\\])+\]|\\?[^\\)\]])\{(\d+),\d+\}$")


def _shortest(then: str) -> str:
    """``then`` without what may follow but need not, which would end at many places."""
    tail = _TAIL.search(then)
    if tail is None:
        return then
    atom, least = tail.groups()
    return then[: tail.start()] + (f"{atom}{{{least}}}" if int(least) else "")


# Six or more digits, with separators between them; many of them, and where they end.
_SIX: Final = r"[0-9](?:[ .()\-/]{0,3}[0-9]){5}"
MANY: Final = 10
LONG_RUN: Final = (
    rf"[0-9](?:[ .()\-/]{{0,3}}[0-9]){{{MANY - 1},}}"
    r"(?:[ .()\-/]{0,3}[^0-9 .()\-/]|[ .()\-/]{4})"
)
_IN_RUN = b"0123456789 .()-/"
# How many bytes around a run rules may look at: four for each character.
BEFORE: Final = 4 * 76
AFTER: Final = 4 * 24


def spoken(word: str) -> Trigger:
    """A word and the digits after it that it may speak of."""
    shape = rf"{re.escape(word)}[0-9]?[^0-9]{{0,60}}{_SIX}"
    return Trigger(shape=shape, run=6, word=word)


def spoken_after(word: str) -> Trigger:
    """Digits and a word right after them that may speak of them."""
    return Trigger(shape=rf"[0-9][ \-]{{1,2}}{re.escape(word)}", run=6, word=word)


def windows(data: bytes, ends: Sequence[int]) -> list[tuple[int, int]]:
    """The parts of ``data`` around the runs of digits at ``ends``, merged."""
    found: list[tuple[int, int]] = []
    last = -1
    for end in sorted(ends):
        if end <= last:
            continue
        start, last = _around(data, end)
        start, stop = max(0, start - BEFORE), min(len(data), last + AFTER)
        while start and data[start] & 0xC0 == 0x80:
            start -= 1
        while stop < len(data) and data[stop] & 0xC0 == 0x80:
            stop += 1
        if found and start <= found[-1][1]:
            start = found.pop()[0]
        found.append((start, stop))
    return found


def _around(data: bytes, place: int) -> tuple[int, int]:
    """Where what may be a run begins that ends before ``place`` or goes on after it."""
    start = stop = max(0, place - 16)
    if not data[start:place].strip(_IN_RUN):
        while start > 0:
            chunk = data[max(0, start - 64) : start]
            kept = len(chunk.rstrip(_IN_RUN))
            start -= len(chunk) - kept
            if kept:
                break
    stop = place
    while stop < len(data):
        chunk = data[stop : stop + 64]
        kept = len(chunk.lstrip(_IN_RUN))
        stop += len(chunk) - kept
        if kept:
            break
    return start, stop


# A class with what is said of how often, an escape, or any other character.
_TOKEN = re.compile(
    r"(?P<set>\[\^?(?:\\.|[^\]\\])+\])(?:(?P<maybe>\?)|\{(?P<least>\d+),(?P<most>\d+)\})?"
    r"|(?P<other>\\.|.)",
    re.DOTALL,
)
_MEMBER = re.compile(r"(\\.|[^\\])(?:-(\\.|[^\\]))?", re.DOTALL)
# Any character that is not ASCII; for a range of many, that is near enough.
_ANY = r"[\xc2-\xf4][\x80-\xbf]{1,3}"
_MANY = 512


def in_bytes(pattern: str) -> str:
    """``pattern`` over bytes: it matches wherever that does, perhaps more often."""
    out = []
    for token in _TOKEN.finditer(pattern):
        if token["set"] is None:
            out.append(_hex(token["other"]))
        elif token["set"].startswith("[^"):
            out.append(_negated(token, pattern))
        else:
            often = token[0][len(token["set"]) :]
            out.append(_members(token["set"]) + often)
    return "".join(out)


def narrow(pattern: str) -> str:
    """What of ``pattern`` can match in ASCII; empty: nothing."""
    only = _CLASS_OR_WAY.sub(_of_ascii, pattern)
    return only if only.isascii() and "[]" not in only else ""


# A class, or one way of a group that cannot match in ASCII.
_CLASS_OR_WAY = re.compile(
    r"\[(?:\\.|[^\]\\])+\]|\|[^\x00-\x7f]+(?=[|)])|(?<=\(\?:)[^\x00-\x7f]+\|"
)
_WIDE = re.compile(r"[^\x00-\x7f](?:-[^\x00-\x7f])?")


def _of_ascii(match: re.Match[str]) -> str:
    return _WIDE.sub("", match[0]) if match[0][0] == "[" else ""


def _hex(text: str) -> str:
    if text.isascii():
        return text
    escaped = "".join(rf"\x{byte:02x}" for byte in text.encode())
    return f"(?:{escaped})"


def _negated(token: re.Match[str], pattern: str) -> str:
    """A character that is none of some ASCII ones may take four bytes.

    At either end of a pattern one of them is enough.
    """
    negated, most = token["set"], token["most"]
    if most:
        return f"{negated}{{{token['least']},{4 * int(most)}}}"
    if token["maybe"]:
        return f"{negated}{{0,4}}"
    first = pattern[: token.start()] in ("", "(?:", "(?:^|")
    return negated if first or token.end() == len(pattern) else f"{negated}{{1,4}}"


def _members(text: str) -> str:
    """A class, as ways of a group if some of its members take several bytes."""
    if text.isascii():
        return text
    plain, ways = "", []
    for first, last in _MEMBER.findall(text[1:-1]):
        if first.isascii():
            plain += f"{first}-{last}" if last else first
        elif last and ord(last) - ord(first) > _MANY:
            ways.append(_ANY)
        else:
            codes = range(ord(first), ord(last or first) + 1)
            ways += [_hex(chr(code))[3:-1] for code in codes]
    return f"(?:{'|'.join([f'[{plain}]'] * bool(plain) + ways)})"
