"""Registered secrets: exact values that are found in every usual spelling."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Final, NamedTuple, NoReturn, TypeAlias
from urllib.parse import quote, quote_plus, unquote

from refold.domain.canonical import encodable
from refold.domain.locks import computed_once, forkable_lock
from refold.domain.placeholders import PLACEHOLDER
from refold.redaction.engines import EngineName, Literals, best, literals
from refold.redaction.engines.fold import fold
from refold.redaction.learned import SHORTEST, is_plain
from refold.redaction.scanner import overlapping
from refold.redaction.types import well_formed

_LETTERS = ascii_uppercase + ascii_lowercase + digits
# The alphabets of standard and of URL-safe base64.
_ALPHABETS = (_LETTERS + "+/", _LETTERS + "-_")
# The characters that `quote`, encodeURIComponent and encodeURI leave unescaped.
_UNQUOTED = ("", "/", "!'()*", "!'()*;,/?:@&=+$#")
_PERCENT = re.compile("%[0-9A-F]{2}")


class Spelling(NamedTuple):
    """One spelling of a value.

    before, after: characters of base64 next to ``text`` that carry the value's first
    and last bits together with bits of its neighbors.
    """

    text: str
    before: frozenset[str] = frozenset()
    after: frozenset[str] = frozenset()

    def extents(self, text: str) -> Iterator[tuple[int, int]]:
        """The extents of this spelling in ``text``, in order; overlaps are joined."""
        length = len(self.text)
        place = text.find(self.text)
        while place >= 0:
            last = place
            further = place
            while further >= 0:
                last = further
                further = text.rfind(self.text, last + 1, last + 2 * length - 1)
            yield self._start(text, place), self._end(text, last + length)
            place = text.find(self.text, last + length)

    def _start(self, text: str, start: int) -> int:
        """``start``, or before it if the character there carries bits of the value."""
        if self.before:
            for width in (1, 3):  # the character may be escaped for a URL
                if unquote(text[max(0, start - width) : start]) in self.before:
                    return start - width
        return start

    def _end(self, text: str, end: int) -> int:
        """``end``, or after it if the character there carries bits of the value."""
        if self.after:
            for width in (1, 3):
                if unquote(text[end : end + width]) in self.after:
                    return end + width
        return end


def spellings(value: str) -> list[Spelling]:
    """All spellings of ``value`` that a search looks for, each once."""
    # The keys of a dictionary, which keep their order.
    unique: dict[Spelling, None] = {}
    for plain in {value: None, fold(value).text: None}:
        texts = [plain]
        escaped = _escaped(plain)
        texts += escaped
        for text in escaped:
            texts += _escaped(text)
        texts += _encoded(plain)
        for text in texts:
            unique[Spelling(text)] = None
        for spelling in _in_base64(plain.encode()):
            unique[spelling] = None
    return list(unique)


def _escaped(text: str) -> list[str]:
    """The text as it stands between the quotes of JSON, JavaScript and Python."""
    double = json.dumps(text, ensure_ascii=False)[1:-1]
    ascii_only = json.dumps(text)[1:-1]
    single = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return [double, ascii_only, double.replace("/", "\\/"), single]


def _encoded(text: str) -> list[str]:
    """The text escaped for URLs and for HTML, and in hex."""
    upper = [quote(text, safe=safe) for safe in _UNQUOTED]
    upper.append(quote_plus(text))
    lower = [_PERCENT.sub(_lower, spelling) for spelling in upper]
    hexadecimal = text.encode().hex()
    return [*upper, *lower, hexadecimal, hexadecimal.upper(), html.escape(text)]


def _lower(match: re.Match[str]) -> str:
    return match[0].lower()


def _in_base64(data: bytes) -> Iterator[Spelling]:
    """The spellings of ``data`` inside longer base64, for each place where it begins.

    A character that also holds bits of a neighbor is no part of a spelling's text.
    """
    for skipped in range(3):
        first_bit = 8 * skipped
        end_bit = 8 * (skipped + len(data))
        encoded = base64.b64encode(bytes(skipped) + data + bytes(2)).decode()
        first = -(-first_bit // 6)
        last = end_bit // 6
        for alphabet in _ALPHABETS:
            text = encoded.translate(str.maketrans(_ALPHABETS[0], alphabet))
            before = _alike(alphabet, text[first - 1], first_bit % 6, low=True)
            after = _alike(alphabet, text[last], end_bit % 6, low=False)
            inner = text[first:last]
            for safe in ("+/", "/", ""):
                quoted = quote(inner, safe=safe)
                yield Spelling(quoted, before, after)
                yield Spelling(_PERCENT.sub(_lower, quoted), before, after)


def _alike(alphabet: str, character: str, bits: int, *, low: bool) -> frozenset[str]:
    """The characters that carry the same bits of the value as ``character`` does.

    Of the six bits of a character, the first ``bits`` belong to one side and the others
    to the other side.  If ``low``, the value's bits are the last ones, otherwise the
    first.  With 0 bits, the value has none in the character.
    """
    if not bits:
        return frozenset()
    last_bits = (1 << (6 - bits)) - 1
    mask = last_bits if low else 63 ^ last_bits
    own_bits = alphabet.index(character) & mask
    return frozenset(
        letter for code, letter in enumerate(alphabet) if code & mask == own_bits
    )


Extent: TypeAlias = tuple[int, int, str]

# Names of environment variables that hold a secret.
SECRET_NAMES: Final = re.compile(
    r"(?i)(?:key|token|secret|passw(?:or)?d|passphrase|credential"
    r"|(?<![a-z])(?:pass|pwd|auth|pat))s?(?![a-z])"
)
# A search looks for a piece of a long spelling, then compares the whole.  Vectorscan
# compiles short pieces much faster; the standard library finds long ones faster.
_PIECE: Final[Mapping[EngineName, int]] = {"vectorscan": 8, "stdlib": 32}


class Registered:
    """Values that are redacted everywhere; they win over every rule.

    A search finds a value as it is, escaped for JSON once and twice, URL-encoded, in
    hex, in base64 of itself or of a text that holds it, and in any of these with
    full-width or invisible characters.  Values are kept in memory only: they are never
    shown and never pickled.

    Threads may share it: a search sees all values of one moment.
    """

    __slots__ = ("_engine", "_lock", "_search", "_values")

    def __init__(self, *, engine: EngineName = "auto") -> None:
        self._engine: EngineName = engine
        self._lock = forkable_lock()
        self._values: dict[str, str] = {}
        self._search: _Search | None = None

    @classmethod
    def from_environ(
        cls,
        environ: Mapping[str, str],
        *,
        names: re.Pattern[str] = SECRET_NAMES,
        engine: EngineName = "auto",
    ) -> Registered:
        """Register the values of all variables whose names match ``names``.

        Values that are too short, or look like words, numbers, paths or addresses, are
        left out: they would also be redacted where they are no secret.
        """
        secrets: dict[str, str] = {}
        for name, value in environ.items():
            if names.search(name) and _is_distinctive(value.strip()):
                secrets[value.strip()] = "SECRET"
        registered = cls(engine=engine)
        registered._change(secrets)
        return registered

    def register(self, value: str, type: str = "SECRET") -> None:  # noqa: A002 - its name
        """Redact ``value`` from now on, as a value of ``type``.

        White space around it is removed.  Raises ValueError if it is shorter than 8
        characters, is no Unicode, or if ``type`` cannot stand in a placeholder.
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
        """Stop redacting ``value``; one that is not registered changes nothing."""
        self._change({}, without=value.strip())

    def find(self, text: str) -> list[Extent]:
        """(start, end, type) of all values in ``text``, in order and disjoint.

        Values that overlap are one extent, with the type of the longest.  Nothing is
        found in placeholders.
        """
        search = self._search
        return search.find(text) if search is not None else []

    def clean(self, texts: Iterable[str]) -> bool:
        """Whether none of ``texts`` holds a value: faster than to search each.

        The answer may be False for texts without any.
        """
        search = self._search
        if search is None:
            return True
        pieces, telling = search.pieces_in("\n".join(texts))
        return not (pieces or telling)

    def longest(self) -> int:
        """The most characters of a spelling, invisible ones left out; 0 if none."""
        search = self._search
        return search.lengths[-1] if search is not None else 0

    def _change(self, values: Mapping[str, str], without: str = "") -> None:
        with self._lock:
            remaining = {**self._values, **values}
            remaining.pop(without, None)
            self._values = remaining
            self._search = _Search(remaining, self._engine) if remaining else None

    def __len__(self) -> int:
        return len(self._values)

    def __bool__(self) -> bool:
        return self._search is not None

    def __repr__(self) -> str:
        return f"Registered({len(self)} values)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("registered values stay in this process")


class _Search:
    """A search for the values of one moment; the first use compiles it."""

    def __init__(self, values: Mapping[str, str], engine: EngineName) -> None:
        self._values = values
        self._engine: EngineName = best() if engine == "auto" else engine

    @computed_once
    def _by_piece(self) -> dict[str, list[tuple[Spelling, str]]]:
        """By piece: the spellings that hold it, each with its type."""
        by_piece: dict[str, list[tuple[Spelling, str]]] = {}
        for value, kind in self._values.items():
            for spelling in spellings(value):
                piece = _middle(spelling.text, _PIECE[self._engine])
                by_piece.setdefault(piece, []).append((spelling, kind))
        return by_piece

    @computed_once
    def pieces_in(self) -> Literals:
        """A function that returns the pieces in a text."""
        return literals(self._engine, tuple(self._by_piece))

    @computed_once
    def lengths(self) -> range:
        """From the shortest spelling to the longest, invisible characters left out."""
        lengths: list[int] = []
        for entries in self._by_piece.values():
            lengths += [len(spelling.text) for spelling, _ in entries]
        # An escaped character of base64 may stand at each end.
        return range(min(lengths), max(lengths) + 7)

    def find(self, text: str) -> list[Extent]:
        """The extents of values in ``text``, in order and disjoint."""
        if len(text) < self.lengths.start:
            return []
        extents = self._extents(text)
        if extents and PLACEHOLDER.search(text):
            extents = self._between_placeholders(text)
        return _joined(extents) if extents else extents

    def _extents(self, text: str) -> list[Extent]:
        """The extents of spellings in ``text``, and in its folded form."""
        pieces, telling = self.pieces_in(text)
        extents = list(self._spelled(text, pieces))
        if telling:
            folded = fold(text)
            pieces, _ = self.pieces_in(folded.text)
            for start, end, kind in self._spelled(folded.text, pieces):
                extents.append((*folded.span(start, end), kind))
        return extents

    def _spelled(self, text: str, pieces: Iterable[str]) -> Iterator[Extent]:
        """The extents in ``text`` of all spellings that hold one of ``pieces``."""
        for piece in pieces:
            for spelling, kind in self._by_piece[piece]:
                for start, end in spelling.extents(text):
                    yield start, end, kind

    def _between_placeholders(self, text: str) -> list[Extent]:
        extents: list[Extent] = []
        begin = 0
        placeholders = [match.span() for match in PLACEHOLDER.finditer(text)]
        for stop, after in (*placeholders, (len(text), len(text))):
            for start, end, kind in self._extents(text[begin:stop]):
                extents.append((begin + start, begin + end, kind))
            begin = after
        return extents


def _middle(text: str, length: int) -> str:
    """The middle of ``text``: the ends of long secrets are often the same."""
    start = max(0, (len(text) - length) // 2)
    return text[start : start + length]


def _joined(extents: Iterable[Extent]) -> list[Extent]:
    """The extents, with those that overlap joined; the longest gives the type."""
    joined = []
    for start, end, group in overlapping(extents):
        _, _, kind = max(group, key=lambda extent: extent[1] - extent[0])
        joined.append((start, end, kind))
    return joined


def _is_distinctive(value: str) -> bool:
    """Whether a value is long and unusual enough to be searched everywhere."""
    if len(value) < SHORTEST or not encodable(value):
        return False
    return not is_plain(value)
