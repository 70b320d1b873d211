"""Exact secrets that a program hands over: found however they are written."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias, TypeVar
from urllib.parse import quote, quote_plus, unquote

from refold.domain.canonical import encodable
from refold.domain.envelope import PLACEHOLDER
from refold.domain.locks import computed_once, forkable_lock
from refold.redaction.engines import EngineName, Literals, best, literals
from refold.redaction.engines.fold import fold
from refold.redaction.types import well_formed

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
    found: list[Spelling] = []
    for plain in {value: None, fold(value).text: None}:
        once = _escaped(plain)
        twice = [spelt for text in once for spelt in _escaped(text)]
        found += map(Spelling, (plain, *once, *twice, *_encoded(plain)))
        found += _in_base64(plain.encode())
    return [*dict.fromkeys(found)]


def _escaped(text: str) -> list[str]:
    """Between quotes of JSON, of JavaScript and of Python."""
    double = json.dumps(text, ensure_ascii=False)[1:-1]
    ascii_only = json.dumps(text)[1:-1]
    single = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return [double, ascii_only, double.replace("/", "\\/"), single]


def _encoded(text: str) -> list[str]:
    """For URLs and for HTML, and in hex."""
    upper = [quote(text, safe=safe) for safe in _UNQUOTED] + [quote_plus(text)]
    lower = [_PERCENT.sub(_lower, spelt) for spelt in upper]
    hexadecimal = text.encode().hex()
    return [*upper, *lower, hexadecimal, hexadecimal.upper(), html.escape(text)]


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


SHORTEST: Final = 8
Extent: TypeAlias = tuple[int, int, str]
# Whatever begins with where it starts and ends.
_Extent = TypeVar("_Extent", bound=tuple[Any, ...])

# Names of environment variables that hold a secret.
SECRET_NAMES: Final = re.compile(
    r"(?i)(?:key|token|secret|passw(?:or)?d|passphrase|credential"
    r"|(?<![a-z])(?:pass|pwd|auth|pat))s?(?![a-z])"
)
_WORD = "(?:[a-z]+|[A-Z]+|[A-Z][a-z]+)"
_PLAIN = re.compile(
    rf"{_WORD}(?:[-_. ,:]{_WORD})*|[0-9.,:+\-]*|(?:\.{{0,2}}|~|[A-Za-z]:|file:)[/\\].*"
    r"|[a-z][a-z0-9+.\-]*://[^@]*|\$.*",
    re.DOTALL,
)
# So much of a long spelling is looked for before the rest of it: vectorscan compiles
# short ones much faster, the standard library finds long ones faster.
_PIECE: Final[Mapping[EngineName, int]] = {"vectorscan": 8, "stdlib": 32}


class Registered:
    """Values to be redacted wherever they stand; they win over every rule.

    A value is found as it is, escaped for JSON once and twice, URL-encoded, in hex, in
    base64 of itself or of a text that holds it, and in any of these with full-width or
    invisible characters.  Values are kept in memory only: never shown, never pickled.

    Threads may share it: a search sees all values of one moment.
    """

    __slots__ = ("_engine", "_known", "_lock", "_values")

    def __init__(self, *, engine: EngineName = "auto") -> None:
        self._engine: EngineName = engine
        self._lock = forkable_lock()
        self._values: dict[str, str] = {}
        self._known: _Known | None = None

    @classmethod
    def from_environ(
        cls,
        environ: Mapping[str, str],
        *,
        names: re.Pattern[str] = SECRET_NAMES,
        engine: EngineName = "auto",
    ) -> Registered:
        """Register the values of the variables whose names ``names`` finds.

        Values that are too short, or look like words, numbers, paths or addresses, are
        left out: they would be redacted where they are no secret.
        """
        registered = cls(engine=engine)
        registered._change(
            {
                value.strip(): "SECRET"
                for name, value in environ.items()
                if names.search(name) and _telling(value.strip())
            }
        )
        return registered

    def register(self, value: str, type: str = "SECRET") -> None:  # noqa: A002 - its name
        """Redact ``value`` from now on, as a value of ``type``.

        White space around it is no part of it.  Raises ValueError if it is shorter than
        8 characters, is no Unicode, or if ``type`` cannot stand in a placeholder.
        """
        value = value.strip()
        if len(value) < SHORTEST:
            raise ValueError(
                f"a registered value needs at least {SHORTEST} characters: a shorter "
                "one would be found in what has nothing to do with it"
            )
        if not encodable(value):
            raise ValueError("a registered value cannot hold half of a surrogate pair")
        if not well_formed(type):
            raise ValueError(
                f"a type is 2 to 40 of A-Z, 0-9 and _, with a letter first: {type!r}"
            )
        self._change({value: type})

    def forget(self, value: str) -> None:
        """Redact ``value`` no longer; one that is not registered changes nothing."""
        self._change({}, without=value.strip())

    def find(self, text: str) -> list[Extent]:
        """(start, end, type) of all that must go from ``text``, in order and apart.

        What overlaps is one extent, with the type of the longest part.  What is within
        a placeholder is none.
        """
        known = self._known
        return known.find(text) if known is not None else []

    def clean(self, texts: Iterable[str]) -> bool:
        """Whether nothing is found in any of ``texts``: faster than to search each.

        False may also be said of texts in which nothing is.
        """
        known = self._known
        if known is None:
            return True
        pieces, telling = known.pieces_in("\n".join(texts))
        return not (pieces or telling)

    def longest(self) -> int:
        """How many characters a spelling has at most, but for invisible ones; or 0."""
        known = self._known
        return known.lengths[-1] if known is not None else 0

    def _change(self, values: Mapping[str, str], without: str = "") -> None:
        with self._lock:
            kept = {**self._values, **values}
            kept.pop(without, None)
            self._values = kept
            self._known = _Known(kept, self._engine) if kept else None

    def __len__(self) -> int:
        return len(self._values)

    def __bool__(self) -> bool:
        return self._known is not None

    def __repr__(self) -> str:
        return f"Registered({len(self)} values)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("registered values stay in this process")


class _Known:
    """The values of one moment, made ready by the first search."""

    def __init__(self, values: Mapping[str, str], engine: EngineName) -> None:
        self._values = values
        self._engine: EngineName = best() if engine == "auto" else engine

    @computed_once
    def _by_piece(self) -> dict[str, list[tuple[Spelling, str]]]:
        """The spellings that hold each piece that is looked for."""
        found: dict[str, list[tuple[Spelling, str]]] = {}
        for value, kind in self._values.items():
            for spelling in spellings(value):
                piece = _middle(spelling.text, _PIECE[self._engine])
                found.setdefault(piece, []).append((spelling, kind))
        return found

    @computed_once
    def pieces_in(self) -> Literals:
        """Says which pieces are in a text."""
        return literals(self._engine, tuple(self._by_piece))

    @computed_once
    def lengths(self) -> range:
        """From the shortest spelling to the longest, but for invisible characters."""
        found = [len(one.text) for held in self._by_piece.values() for one, _ in held]
        return range(min(found), max(found) + 7)

    def find(self, text: str) -> list[Extent]:
        """What is known in ``text``, in order and apart."""
        if len(text) < self.lengths.start:
            return []
        extents = self._extents(text)
        if extents and PLACEHOLDER.search(text):
            extents = self._between_placeholders(text)
        return _joined(extents) if extents else extents

    def _extents(self, text: str) -> list[Extent]:
        """Where a spelling stands in ``text``, or in what it looks like."""
        pieces, telling = self.pieces_in(text)
        extents = list(self._spelt(text, pieces))
        if telling:
            folded = fold(text)
            found = self._spelt(folded.text, self.pieces_in(folded.text)[0])
            extents += [(*folded.span(start, end), kind) for start, end, kind in found]
        return extents

    def _spelt(self, text: str, pieces: Iterable[str]) -> Iterator[Extent]:
        for piece in pieces:
            for spelling, kind in self._by_piece[piece]:
                for start, end in spelling.extents(text):
                    yield start, end, kind

    def _between_placeholders(self, text: str) -> list[Extent]:
        extents, begin = [], 0
        barriers = [match.span() for match in PLACEHOLDER.finditer(text)]
        for stop, after in (*barriers, (len(text), len(text))):
            found = self._extents(text[begin:stop])
            extents += [(begin + s, begin + e, kind) for s, e, kind in found]
            begin = after
        return extents


def _middle(text: str, length: int) -> str:
    """The middle of ``text``: the ends of long secrets are often the same."""
    start = max(0, (len(text) - length) // 2)
    return text[start : start + length]


def overlapping(
    extents: Iterable[_Extent],
) -> Iterator[tuple[int, int, list[_Extent]]]:
    """(start, end, the extents) of all that overlap, in order and apart."""
    group: list[_Extent] = []
    end = 0
    for extent in sorted(extents, key=itemgetter(0, 1)):
        if group and extent[0] >= end:
            yield group[0][0], end, group
            group = []
        group.append(extent)
        end = max(end, extent[1])
    if group:
        yield group[0][0], end, group


def _joined(extents: Iterable[Extent]) -> list[Extent]:
    """Extents that overlap as one, of the type of the longest."""
    joined = []
    for start, end, group in overlapping(extents):
        _, _, kind = max(group, key=lambda extent: extent[1] - extent[0])
        joined.append((start, end, kind))
    return joined


def _telling(value: str) -> bool:
    """Whether a value is long and odd enough to be looked for everywhere."""
    long = len(value) >= SHORTEST and encodable(value)
    return long and not _PLAIN.fullmatch(value)
