"""Numbers in JSON that stands in a text: the quotes that a placeholder needs there."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

# How far before a number its key, its array or the item before it may begin.
_BEFORE: Final = 128
# The most characters of the numbers that stand before a number in its array.
_MOST_NUMBERS: Final = 4096
_NUMBER: Final = re.compile(
    r"-?(?:0|[1-9][0-9]{0,18})(?:\.[0-9]{1,18})?(?:[eE][+\-]?[0-9]{1,3})?"
)
_WHITE: Final = r"(?:[ \t\r\n]|\\{1,7}[nrt])"
# A line end and the indentation of a value that is nested deeply.
_INDENT: Final = rf"{_WHITE}{{0,64}}"
# Numbers, brackets and commas from the last to the first, each written backwards.
_NUMBERS_BACKWARDS: Final = re.compile(r"(?:[ \t\r\n0-9.,eE+\-\[\]]|[nrt]\\{1,7})*+")
# The bracket or the comma with which they begin, behind a key or a value.
_BEFORE_NUMBERS: Final = re.compile(rf"{_WHITE}*+\[|(?:{_WHITE}|\])*+,")
_WORD: Final = "(?:[Tt]rue|[Ff]alse|null|None)"
# A quote in a text, with the backslashes of up to five levels of JSON around it.
ESCAPED_QUOTE: Final = r"\\{0,31}[\"']"
_QUOTE: Final = rf"(?P<quote>(?<!\\){ESCAPED_QUOTE})"
# The owner of a number: its key, the key of its array, or an array without a key; in an
# array, also the string, object, array or word before the number.
_OWNER: Final = re.compile(
    rf"(?:{_QUOTE}{_WHITE}{{0,8}}:{_INDENT}(?P<array>\[(?:{_WHITE}|[0-9.,eE+\-\[\]])*)?"
    rf"|(?:\A|\n)[ \t]{{0,64}}\[(?:{_WHITE}|[0-9.,eE+\-\[\]])*"
    rf"|(?P<item>(?<!\\){ESCAPED_QUOTE}){_INDENT},{_INDENT}"
    rf"|(?P<value>[}}\]]|(?<![\w.]){_WORD}){_INDENT},{_INDENT})-?\Z"
)
_BETWEEN: Final = re.compile(r"[\s\[\]]*,[\s0-9.,eE+\-\[\]]{0,120}")
_AFTER: Final = re.compile(rf"{_INDENT}(?:[,}}\]]|\Z)")
# Behind a value without quotes, prose may continue; JSON continues with a value.
_VALUE_AFTER: Final = re.compile(
    rf"{_INDENT}(?:[}}\]]|,{_INDENT}"
    rf"(?:\\{{0,7}}[\"']|[\[{{\-0-9]|{_WORD}(?!\w)|\Z))"
)
_LAST_QUOTE: Final = re.compile(r".*(?<!\\)(\\{0,31}\")", re.DOTALL)


class Quoted(NamedTuple):
    """A number that a placeholder in quotes replaces.

    start: its place, with its sign.
    end:   the end of it.
    quote: the quote, with the backslashes that it needs there.
    array: whether it is an item of an array.
    """

    start: int
    end: int
    quote: str
    array: bool


def quoted(text: str, start: int, end: int, last: Quoted | None) -> Quoted | None:
    """Return the quotes for the number at ``start`` to ``end``; None if it needs none.

    A text outside of JSON needs none, and neither does a part of a string.

    last: the quoted number before this one in the same text.
    """
    if not _NUMBER.fullmatch(text, start, end) or not _AFTER.match(text, end):
        return None
    if last is not None and last.array:
        between = text[last.end : start]
        if len(between) <= _BEFORE and _BETWEEN.fullmatch(between):
            if between.endswith("-"):
                start -= 1
            return Quoted(start, end, last.quote, True)
    owner = _OWNER.search(text, max(0, start - _BEFORE), start)
    if owner is None:
        owner = _owner_before_numbers(text, start)
    if owner is None:
        return None
    if owner["value"] is not None and not _VALUE_AFTER.match(text, end):
        return None
    if text[start - 1] == "-":
        start -= 1
    quote = _without_content(
        owner["quote"] or owner["item"] or _quote_before(text, start)
    )
    is_item = owner["quote"] is None or owner["array"] is not None
    return Quoted(start, end, quote, is_item)


def _without_content(quote: str) -> str:
    """Return a quote without the backslashes before it that end its string.

    A quote that is escaped n times has 2**n - 1 backslashes, and each backslash of its
    string is 2**(n + 1) of them.
    """
    length = len(quote)  # the number of backslashes, and 1 for the quote
    largest_power_of_two = length & -length  # that divides the length
    return "\\" * (largest_power_of_two - 1) + quote[-1]


def _owner_before_numbers(text: str, start: int) -> re.Match[str] | None:
    """Return the owner of a number that follows many others in an array."""
    first = max(0, start - _MOST_NUMBERS)
    numbers = _NUMBERS_BACKWARDS.match(text[first:start][::-1])
    place = start - numbers.end() if numbers else start
    if text[place] in "eE":
        place += 1  # it ends a word: true, false
    before = _BEFORE_NUMBERS.match(text, place, start)
    if before is None:
        return None
    stop = before.end()
    return _OWNER.search(text, max(0, stop - _BEFORE), stop)


def _quote_before(text: str, start: int) -> str:
    """The quote that strings have before a place, with its backslashes."""
    first = max(0, start - _MOST_NUMBERS)
    last_quote = _LAST_QUOTE.match(text, first, start)
    return last_quote[1] if last_quote else '"'
