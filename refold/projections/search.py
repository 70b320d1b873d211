"""Words of events: what is searched for, and an index of them that holds no text."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from array import array
from base64 import b64decode, b64encode
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from refold.domain.envelope import Envelope
from refold.domain.events import JsonObject
from refold.projections.context.text import leaves

# So many seqs have an index together.
SEGMENT: Final = 1024
_LONGEST: Final = 64
_HASH: Final = 5  # bytes; that two words have one costs a look at the event
_WORD: Final = re.compile(r"[^\W_]+")
# Scripts without blanks between words: each two characters that follow are a word.
_CJK: Final = re.compile(
    "[\u2e80-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+"
)


def folded(text: str) -> str:
    """The text as it is compared: neither case nor width of a letter counts."""
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFKC", text).casefold()


def words(text: str) -> set[str]:
    """The words of a text; of Chinese, Japanese and Korean each two characters."""
    text, found = folded(text), set[str]()
    if not text.isascii():
        for run in _CJK.findall(text):
            found.update(run[at : at + 2] for at in range(max(1, len(run) - 1)))
        text = _CJK.sub(" ", text)
    found.update(word[:_LONGEST] for word in _WORD.findall(text))
    return found


def said(envelope: Envelope) -> str:
    """What an event says, its agent and the values of its fields, line by line."""
    payload = envelope.payload.payload()
    told = [text for item in payload.values() for text in leaves(item)]
    return "\n".join([envelope.agent or "", *told])


def snippet(text: str, wanted: Iterable[str], size: int = 80) -> str:
    """The line around the first of these words; its beginning if none stands in it."""
    low = folded(text)
    at = min((place for word in wanted if (place := low.find(word)) >= 0), default=0)
    at = at if len(low) == len(text) else 0
    first = max(0, at - size // 2)
    line = " ".join(text[first : first + 2 * size].split())
    return ("…" if first else "") + line + ("…" if first + 2 * size < len(text) else "")


def _hashed(key: bytes, word: str) -> bytes:
    data = word.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, key=key, digest_size=_HASH).digest()


class Index:
    """The words of up to ``SEGMENT`` events, as keyed hashes, with their seqs.

    key:     what the words are hashed with; without it none can be tried.
    through: how far it goes.
    """

    def __init__(self, key: bytes, first: int, through: int) -> None:
        self._key, self._first, self.through = key, first, through
        self._seqs: dict[bytes, array[int]] = {}

    def take(self, envelope: Envelope) -> None:
        """Take in the next event."""
        place = envelope.seq - self._first
        for word in words(said(envelope)):
            self._seqs.setdefault(_hashed(self._key, word), array("H")).append(place)
        self.through = envelope.seq

    def dump(self) -> JsonObject:
        """The index as JSON: sorted hashes, where the places of each end, and these."""
        hashes = sorted(self._seqs)
        places, ends = array("H"), array("I")
        for one in hashes:
            places.extend(self._seqs[one])
            ends.append(len(places))
        parts = b"".join(hashes), ends.tobytes(), places.tobytes()
        named = zip(("words", "ends", "seqs"), parts, strict=True)
        return {name: b64encode(data).decode() for name, data in named}

    @classmethod
    def load(cls, key: bytes, first: int, through: int, body: JsonObject) -> Index:
        """The index that was dumped, to take in more.  Raises ValueError, KeyError."""
        index, stored = cls(key, first, through), Stored(key, first, body)
        index._seqs = dict(stored.all())
        return index


class Stored:
    """An index as it was dumped, to be searched without reading all of it."""

    def __init__(self, key: bytes, first: int, body: Mapping[str, Any]) -> None:
        self._key, self._first = key, first
        self._words = b64decode(body["words"])
        self._ends, self._places = array("I"), array("H")
        self._ends.frombytes(b64decode(body["ends"]))
        self._places.frombytes(b64decode(body["seqs"]))

    def _at(self, index: int) -> bytes:
        return self._words[index * _HASH : index * _HASH + _HASH]

    def _of(self, index: int) -> array[int]:
        return self._places[self._ends[index - 1] if index else 0 : self._ends[index]]

    def all(self) -> Iterator[tuple[bytes, array[int]]]:
        """Each hash with its places."""
        return ((self._at(index), self._of(index)) for index in range(len(self._ends)))

    def find(self, wanted: Iterable[str]) -> list[int]:
        """The seqs of events that may have all these words, newest first."""
        both: set[int] | None = None
        for word in wanted:
            hashed = _hashed(self._key, word)
            index = bisect_left(range(len(self._ends)), hashed, key=self._at)
            there = index < len(self._ends) and self._at(index) == hashed
            places = set(self._of(index)) if there else set[int]()
            both = places if both is None else both & places
        return sorted((self._first + place for place in both or ()), reverse=True)
