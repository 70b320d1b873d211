"""The words of events, and an index of them that contains no text."""

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

# The number of seqs that one index covers.
SEGMENT: Final = 1024
_LONGEST_WORD: Final = 64  # characters that count
# The bytes of a word's hash.  Two words with one hash only cost a look at the event.
_HASH_SIZE: Final = 5
_WORD: Final = re.compile(r"[^\W_]+")
# Scripts without spaces between words: each pair of neighboring characters is a word.
_CJK: Final = re.compile(
    "[\u2e80-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+"
)


def folded(text: str) -> str:
    """Return the text for comparison, without the case and the width of letters."""
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFKC", text).casefold()


def words(text: str) -> set[str]:
    """Return the words of a text.

    In Chinese, Japanese, and Korean, each pair of neighboring characters is a word.
    """
    text = folded(text)
    found: set[str] = set()
    if not text.isascii():
        for run in _CJK.findall(text):
            if len(run) == 1:
                found.add(run)
            found.update(run[start : start + 2] for start in range(len(run) - 1))
        text = _CJK.sub(" ", text)
    found.update(word[:_LONGEST_WORD] for word in _WORD.findall(text))
    return found


def searchable_text(envelope: Envelope) -> str:
    """Return the agent of an event and the values of its fields, one on each line."""
    lines = [envelope.agent or ""]
    for value in envelope.payload.payload().values():
        lines += leaves(value)
    return "\n".join(lines)


def snippet(text: str, wanted: Iterable[str], size: int = 80) -> str:
    """Return the text around the first of these words, or its beginning without one.

    size: half of the characters of the snippet.
    """
    comparable = folded(text)
    at = 0
    # Folding may change the length, and then places in the two texts differ.
    if len(comparable) == len(text):
        places = [comparable.find(word) for word in wanted]
        at = min((place for place in places if place >= 0), default=0)
    start = max(0, at - size // 2)
    end = start + 2 * size
    line = " ".join(text[start:end].split())
    if start > 0:
        line = "…" + line
    if end < len(text):
        line += "…"
    return line


def _hash(key: bytes, word: str) -> bytes:
    data = word.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, key=key, digest_size=_HASH_SIZE).digest()


class Index:
    """The keyed hashes of the words of up to ``SEGMENT`` events, with their seqs.

    key:     the key of the hashes; without it, nobody can try words.
    first:   the seq of the first event.
    through: the seq of the last event that was taken.
    """

    def __init__(self, key: bytes, first: int, through: int) -> None:
        self._key = key
        self._first = first
        self.through = through
        # By hash, the events with the word, counted from the first.
        self._places: dict[bytes, array[int]] = {}

    def take(self, envelope: Envelope) -> None:
        """Add the next event."""
        place = envelope.seq - self._first
        for word in words(searchable_text(envelope)):
            hash_ = _hash(self._key, word)
            self._places.setdefault(hash_, array("H")).append(place)
        self.through = envelope.seq

    def dump(self) -> JsonObject:
        """Return the index as JSON.

        words: the sorted hashes.
        ends:  for each hash, the end of its places in ``seqs``.
        seqs:  the places of all hashes, one after another.
        """
        hashes = sorted(self._places)
        places = array("H")
        ends = array("I")
        for hash_ in hashes:
            places.extend(self._places[hash_])
            ends.append(len(places))
        return {
            "words": b64encode(b"".join(hashes)).decode(),
            "ends": b64encode(ends.tobytes()).decode(),
            "seqs": b64encode(places.tobytes()).decode(),
        }

    @classmethod
    def load(cls, key: bytes, first: int, through: int, body: JsonObject) -> Index:
        """Read what ``dump`` wrote, so that more events can be taken.

        Raises ValueError or KeyError for other JSON.
        """
        index = cls(key, first, through)
        index._places = dict(StoredIndex(key, first, body).all())
        return index


class StoredIndex:
    """An index as ``Index.dump`` wrote it; a search reads only parts of it."""

    def __init__(self, key: bytes, first: int, body: Mapping[str, Any]) -> None:
        self._key = key
        self._first = first
        self._hashes = b64decode(body["words"])
        self._ends = array("I")
        self._ends.frombytes(b64decode(body["ends"]))
        self._places = array("H")
        self._places.frombytes(b64decode(body["seqs"]))

    def _hash_at(self, index: int) -> bytes:
        start = index * _HASH_SIZE
        return self._hashes[start : start + _HASH_SIZE]

    def _places_at(self, index: int) -> array[int]:
        start = self._ends[index - 1] if index > 0 else 0
        return self._places[start : self._ends[index]]

    def all(self) -> Iterator[tuple[bytes, array[int]]]:
        """Yield each hash with its places."""
        for index in range(len(self._ends)):
            yield self._hash_at(index), self._places_at(index)

    def find(self, wanted: Iterable[str]) -> list[int]:
        """Return the seqs of events that may contain all these words, newest first."""
        common: set[int] | None = None
        for word in wanted:
            places = self._places_of(word)
            common = places if common is None else common & places
        return sorted((self._first + place for place in common or ()), reverse=True)

    def _places_of(self, word: str) -> set[int]:
        hash_ = _hash(self._key, word)
        index = bisect_left(range(len(self._ends)), hash_, key=self._hash_at)
        if index == len(self._ends) or self._hash_at(index) != hash_:
            return set()
        return set(self._places_at(index))
