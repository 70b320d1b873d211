"""How one value may be written: as it is, escaped, URL-encoded, in base64, in hex."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterator
from string import ascii_lowercase, ascii_uppercase, digits
from typing import NamedTuple
from urllib.parse import quote, quote_plus, unquote

from refold.redaction.fold import fold

_LETTERS = ascii_uppercase + ascii_lowercase + digits
_ALPHABETS = (_LETTERS + "+/", _LETTERS + "-_")
# What encodeURIComponent and encodeURI of JavaScript leave as it is, and `quote`.
_UNQUOTED = ("", "/", "!'()*", "!'()*;,/?:@&=+$#")
_PERCENT = re.compile("%[0-9A-F]{2}")


class Spelling(NamedTuple):
    """A way to write a value.

    before, after: characters of base64 that carry its first and its last bits too, if
    they stand next to ``text``.
    """

    text: str
    before: frozenset[str] = frozenset()
    after: frozenset[str] = frozenset()

    def extents(self, text: str) -> Iterator[tuple[int, int]]:
        """Where it stands in ``text``, in order; what overlaps is one extent."""
        length = len(self.text)
        place = text.find(self.text)
        while place >= 0:
            last = further = place
            while further >= 0:
                last = further
                further = text.rfind(self.text, last + 1, last + 2 * length - 1)
            yield self._first(text, place), self._last(text, last + length)
            place = text.find(self.text, last + length)

    def _first(self, text: str, start: int) -> int:
        for width in (1, 3) if self.before else ():
            if unquote(text[max(0, start - width) : start]) in self.before:
                return start - width
        return start

    def _last(self, text: str, end: int) -> int:
        for width in (1, 3) if self.after else ():
            if unquote(text[end : end + width]) in self.after:
                return end + width
        return end


def spellings(value: str) -> list[Spelling]:
    """All ways to write ``value`` that are looked for, each once."""
    texts: dict[str, None] = {}
    encoded: list[Spelling] = []
    for plain in {value: None, fold(value).text: None}:
        once = _escaped(plain)
        twice = [spelt for text in once for spelt in _escaped(text)]
        for text in (plain, *once, *twice, *_url_encoded(plain), *_others(plain)):
            texts[text] = None
        encoded += _in_base64(plain.encode())
    return [*map(Spelling, texts), *dict.fromkeys(encoded)]


def _escaped(text: str) -> list[str]:
    """Between quotes of JSON, of JavaScript and of Python."""
    double = json.dumps(text, ensure_ascii=False)[1:-1]
    ascii_only = json.dumps(text)[1:-1]
    single = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return [double, ascii_only, double.replace("/", "\\/"), single]


def _url_encoded(text: str) -> list[str]:
    upper = [quote(text, safe=safe) for safe in _UNQUOTED] + [quote_plus(text)]
    return [*upper, *(_PERCENT.sub(_lower, spelt) for spelt in upper)]


def _others(text: str) -> list[str]:
    hexadecimal = text.encode().hex()
    return [hexadecimal, hexadecimal.upper(), html.escape(text)]


def _lower(match: re.Match[str]) -> str:
    return match[0].lower()


def _in_base64(data: bytes) -> Iterator[Spelling]:
    """What ``data`` becomes inside of longer base64, wherever in it it begins.

    Characters that it shares with its neighbours there are no part of the text.
    """
    for skipped in range(3):
        bits = 8 * (skipped + len(data))
        whole = base64.b64encode(bytes(skipped) + data + bytes(2)).decode()
        first, last = -(-8 * skipped // 6), bits // 6
        for alphabet in _ALPHABETS:
            text = whole.translate(str.maketrans(_ALPHABETS[0], alphabet))
            before = _alike(alphabet, text[first - 1], 8 * skipped % 6, low=True)
            after = _alike(alphabet, text[last], bits % 6, low=False)
            inner = text[first:last]
            for safe in ("+/", "/", ""):
                spelt = quote(inner, safe=safe)
                yield Spelling(spelt, before, after)
                yield Spelling(_PERCENT.sub(_lower, spelt), before, after)


def _alike(alphabet: str, character: str, bits: int, *, low: bool) -> frozenset[str]:
    """The characters that equal ``character`` but for bits of a neighbour.

    bits: how many of its six come first: they are the neighbour's if ``low``, and all
    others are if not; 0 means that it is the neighbour's alone.
    """
    if not bits:
        return frozenset()
    mask = (1 << (6 - bits)) - 1
    mask = mask if low else 63 ^ mask
    known = alphabet.index(character) & mask
    return frozenset(c for n, c in enumerate(alphabet) if n & mask == known)
