"""JSON as text: parsed without loss, and changed without touching other bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from math import isfinite
from typing import Final

from refold.domain.canonical import encodable
from refold.redaction.json_numbers import ESCAPED_QUOTE
from refold.redaction.plan import Spellings
from refold.redaction.types import Placeholders
from refold.redaction.values import JsonObject, JsonValue

_OPENS: Final = re.compile(r"\s*[\[{]")


def parsed(text: str) -> list[tuple[str, JsonValue]] | None:
    """The JSON documents in ``text``: the whole, or one a line.

    Each comes with its source.  An empty line has the value None.  The result is None
    if ``text`` is no JSON.
    """
    try:
        return [(text, _JSON.decode(text))]
    except (ValueError, RecursionError):
        lines = text.split("\n")
    if len(lines) == 1:
        return None
    for line in lines:
        if line.strip() and not _OPENS.match(line):
            return None
    try:
        return [(line, _JSON.decode(line) if line.strip() else None) for line in lines]
    except (ValueError, RecursionError):
        return None


def _unique(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    """Refuse an object that has a key twice: its first value would not be scanned."""
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a key stands twice")
    return value


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise ValueError(f"{text} is not JSON, or is too large")
    return number


_JSON: Final = json.JSONDecoder(
    strict=False,
    object_pairs_hook=_unique,
    parse_constant=_finite,
    parse_float=_finite,
)

# The strings, numbers and words of a JSON text, in order.
_TOKENS: Final = re.compile(
    r'"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+\-]*|true|false|null', re.DOTALL
)
# The characters of a string as written: an escape, or two that make one character.
_CHARACTERS: Final = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.|.",
    re.DOTALL,
)


def patched(
    source: str,
    old: JsonValue,
    new: JsonValue,
    placeholders: Placeholders,
    spellings: Spellings | None = None,
) -> str:
    """The JSON text ``source`` of ``old`` with the changes that make it ``new``.

    All other bytes stay: white space, spellings of numbers, escapes.

    spellings: the tagger of the placeholders, if their tags tell how values are
               written.
    """
    tokens = _TOKENS.finditer(source)
    out: list[str] = []
    end = 0
    # A stack of old and new values, the next in the text on top.
    pending: list[tuple[JsonValue, JsonValue]] = [(old, new)]
    while pending:
        before, after = pending.pop()
        if isinstance(before, dict) and isinstance(after, dict):
            items = list(zip(before.items(), after.items(), strict=True))
            for (key, value), (new_key, new_value) in reversed(items):
                pending.append((value, new_value))
                pending.append((key, new_key))
        elif isinstance(before, list) and isinstance(after, list):
            pending += reversed(list(zip(before, after, strict=True)))
        else:
            token = next(tokens)
            if before is not after and before != after:
                out.append(source[end : token.start()])
                out.append(
                    _written_anew(token[0], before, after, placeholders, spellings)
                )
                end = token.end()
    out.append(source[end:])
    return "".join(out)


def _written_anew(
    token: str,
    old: JsonValue,
    new: JsonValue,
    placeholders: Placeholders,
    spellings: Spellings | None,
) -> str:
    """The JSON of ``new``.  Characters of a string that ``old`` had keep their form.

    token: the JSON of ``old``.
    """
    if not (isinstance(old, str) and isinstance(new, str)):
        if spellings is not None and isinstance(new, str):
            new = respelled_number(new, token, spellings)
        return compact_json(new)
    written = _CHARACTERS.findall(token, 1, len(token) - 1)
    if len(written) != len(old):
        return compact_json(new)  # it has half of a surrogate pair
    pieces = placeholders.pieces(new)
    return f'"{"".join(_kept_form(pieces, old, written, spellings))}"'


def _kept_form(
    pieces: list[tuple[str, bool]],
    old: str,
    written: list[str],
    spellings: Spellings | None,
) -> Iterator[str]:
    """The pieces of a redacted string as JSON, in the form that they had in ``old``.

    pieces:  the text and the placeholders, which stand in ``old`` in this order.
    written: the characters of ``old`` as JSON writes them.
    """
    place = 0
    is_exact = True  # the next piece begins right at ``place``
    # The quotes around the last placeholder, if it stands for a number of JSON.
    quote = ""
    last = len(pieces) - 1
    for index, (piece, is_placeholder) in enumerate(pieces):
        if is_placeholder:
            value = _value_of(piece, spellings)
            if value is None:
                is_exact = old.startswith(piece, place)
                if is_exact:
                    place += len(piece)  # it stood there before
            elif old.startswith(value, place):
                as_written = "".join(written[place : place + len(value)])
                if as_written != value:
                    piece = _respelled(piece, as_written, spellings)
                place += len(value)
                is_exact = True
            else:
                is_exact = False
            yield compact_json(piece)[1:-1]
            continue
        if quote:
            yield compact_json(quote)[1:-1]
            piece = piece.removeprefix(quote)
        after = pieces[index + 2][0] if index + 2 <= last else ""
        start, quote = _place_in(old, piece, after, place, is_exact=is_exact)
        if start < 0:
            yield compact_json(piece)[1:-1]
            is_exact = False
            continue
        text = piece.removesuffix(quote)
        if index and index == last:
            start = max(start, len(old) - len(text))
        place = start + len(text)
        yield from written[start:place]
        if quote:
            yield compact_json(quote)[1:-1]


# The quotes that a placeholder of a number gets, as ``json_numbers`` finds them.
_QUOTE_AT_END: Final = re.compile(rf"{ESCAPED_QUOTE}\Z")
_NUMBER_BEGINS: Final = tuple("-0123456789")


def _place_in(
    old: str, piece: str, after: str, place: int, *, is_exact: bool
) -> tuple[int, str]:
    """Where a piece begins in ``old``, and the quotes at its end that ``old`` lacks.

    A number of JSON is replaced by a placeholder in quotes, which are in the pieces
    before and after it.

    after:    the piece behind the next placeholder; empty if there is none.
    is_exact: the piece begins right at ``place``, or is not found at all.

    The place is -1 if the piece is not found.
    """
    start = old.find(piece, place)
    if is_exact and not old.startswith(piece, place):
        start = -1
    quote_at_end = _QUOTE_AT_END.search(piece)
    if quote_at_end and after.startswith(quote_at_end[0]):
        without_quote = piece[: quote_at_end.start()]
        start_without = old.find(without_quote, place)
        is_before = start_without >= 0 and not 0 <= start <= start_without
        if is_before and old.startswith(
            _NUMBER_BEGINS, start_without + len(without_quote)
        ):
            return start_without, quote_at_end[0]
    if start < 0:
        start = old.find(piece, place)
    return start, ""


def _value_of(placeholder: str, spellings: Spellings | None) -> str | None:
    """The value that a placeholder replaced, if its tag is known."""
    tag = tag_of(placeholder)
    return spellings.value_of(tag) if spellings is not None and tag else None


def _respelled(placeholder: str, written: str, spellings: Spellings | None) -> str:
    """The placeholder with the tag of its value as it is written around it."""
    if spellings is None:
        return placeholder
    tag = tag_of(placeholder)
    return placeholder.replace(f"#{tag}]", f"#{spellings.respelled(tag, written)}]")


_TAG: Final = re.compile(r"#([a-z2-7]{8})\]\Z")


def tag_of(placeholder: str) -> str:
    """The tag in a placeholder; empty if it has none."""
    match = _TAG.search(placeholder)
    return match[1] if match else ""


def respelled_number(placeholder: str, number: str, spellings: Spellings) -> str:
    """The placeholder for a number of JSON, with the tag of the number as written.

    placeholder: the redacted number.  A sign before the placeholder is a part of what
                 the new one stands for.
    """
    tag = tag_of(placeholder)
    if not tag or spellings.value_of(tag) is None:
        return placeholder
    unsigned = placeholder.removeprefix("-")
    if not unsigned.startswith("["):
        return placeholder  # some of the number's digits stay
    new_tag = spellings.respelled(tag, number, is_number=True)
    return unsigned.replace(f"#{tag}]", f"#{new_tag}]")


def compact_json(value: JsonValue) -> str:
    """``value`` as compact JSON."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if encodable(text):
        return text
    # Half of a surrogate pair can only be written as its escape.
    return json.dumps(value, separators=(",", ":"))
