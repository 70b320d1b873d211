"""An index of the terms of events that contains no text."""

from __future__ import annotations

import hashlib
from array import array
from base64 import b64decode, b64encode
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from refold.domain import events
from refold.domain.envelope import Envelope, microseconds
from refold.domain.events import JsonObject
from refold.projections.search.documents import Document, facts, file_facts
from refold.projections.search.terms import terms

# The number of seqs that one index covers.
SEGMENT: Final = 1024
# The bytes of a hash.  If two terms share one, a search reads an event in vain.
_HASH_SIZE: Final = 5
MOST_COUNTED: Final = 255  # of one term in one event
_MOST_OPEN: Final = 256  # calls without a result whose files are remembered


class Postings(NamedTuple):
    """The places of the events with a term, and how often each event has it."""

    places: array[int]
    counts: array[int]


_NONE: Final = Postings(array("H"), array("B"))


class Keyed:
    """Hashes terms with a key: nobody can try words without it."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._hashes: dict[str, bytes] = {}

    def hash(self, term: str) -> bytes:
        """Return the hash of a term."""
        digest = self._hashes.get(term)
        if digest is None:
            data = term.encode("utf-8", "surrogatepass")
            hash_ = hashlib.blake2b(data, key=self._key, digest_size=_HASH_SIZE)
            digest = hash_.digest()
            self._hashes[term] = digest
        return digest


class Index:
    """The keyed hashes of the terms of up to ``SEGMENT`` events, with their seqs.

    first:   the seq of the first event.
    through: the seq of the last event that was taken.
    """

    def __init__(self, keyed: Keyed, first: int, through: int) -> None:
        self._keyed = keyed
        self._first = first
        self.through = through
        self._postings: dict[bytes, Postings] = {}
        self._by_term: dict[str, Postings] = {}  # those of terms that were added
        self._lengths = array("I")  # the number of terms of each event
        self._times = array("q")  # of each event, in microseconds since 1970
        # By the hash of its id, the hashes of the files of each call without a result.
        self._open: dict[bytes, bytes] = {}

    def continue_calls(self, body: Mapping[str, Any]) -> None:
        """Take over the calls without a result from the segment before."""
        self._open = _read_calls(body)

    def take(self, envelope: Envelope) -> None:
        """Add the next event."""
        place = envelope.seq - self._first
        document = Document.of(envelope)
        counts = terms(document.text)
        counts.update(terms(document.call_id))
        by_term = self._by_term
        for term, count in counts.items():
            postings = by_term.get(term)
            if postings is None:
                postings = self._postings_of(self._keyed.hash(term))
                by_term[term] = postings
            postings.places.append(place)
            postings.counts.append(count if count < MOST_COUNTED else MOST_COUNTED)
        hashes = {self._keyed.hash(fact) for fact in facts(envelope)}
        hashes |= self._files(envelope.payload)
        for hash_ in hashes:
            postings = self._postings_of(hash_)
            postings.places.append(place)
            postings.counts.append(1)
        self._lengths.append(counts.total())
        self._times.append(microseconds(envelope.ts))
        self.through = envelope.seq

    def _postings_of(self, hash_: bytes) -> Postings:
        """Return the events with a hash, to which an event can be added."""
        postings = self._postings.get(hash_)
        if postings is None:
            postings = Postings(array("H"), array("B"))
            self._postings[hash_] = postings
        return postings

    def _files(self, event: events.Event) -> set[bytes]:
        """Return the hashes of the files of a call; a result has those of its call."""
        if isinstance(event, events.ToolCall):
            hashes = [self._keyed.hash(fact) for fact in file_facts(event)]
            if hashes:
                self._open[self._keyed.hash(event.call_id)] = b"".join(hashes)
                if len(self._open) > _MOST_OPEN:
                    del self._open[next(iter(self._open))]
            return set(hashes)
        if isinstance(event, events.ToolResult):
            joined = self._open.pop(self._keyed.hash(event.call_id), b"")
            starts = range(0, len(joined), _HASH_SIZE)
            return {joined[start : start + _HASH_SIZE] for start in starts}
        return set()

    def dump(self) -> JsonObject:
        """Return the index as JSON.

        terms:   the sorted hashes.
        ends:    for each hash, the end of its events in ``places`` and ``counts``.
        places:  the events of all hashes, one hash after another.
        counts:  how often each of these events has the term.
        lengths: the number of terms of each event.
        times:   the time of each event.
        calls:   the calls without a result, with the hashes of their files.
        """
        hashes = sorted(self._postings)
        ends = array("I")
        places = array("H")
        counts = array("B")
        for hash_ in hashes:
            places.extend(self._postings[hash_].places)
            counts.extend(self._postings[hash_].counts)
            ends.append(len(places))
        calls: JsonObject = {}
        for call, files in self._open.items():
            calls[_text(call)] = _text(files)
        return {
            "terms": _text(b"".join(hashes)),
            "ends": _text(ends.tobytes()),
            "places": _text(places.tobytes()),
            "counts": _text(counts.tobytes()),
            "lengths": _text(self._lengths.tobytes()),
            "times": _text(self._times.tobytes()),
            "calls": calls,
        }

    @classmethod
    def load(
        cls, keyed: Keyed, first: int, through: int, body: Mapping[str, Any]
    ) -> Index:
        """Read what ``dump`` wrote, so that more events can be taken.

        Raises ValueError or KeyError for other JSON.
        """
        index = cls(keyed, first, through)
        stored = StoredIndex(keyed, first, body)
        index._postings = stored.all()
        index._lengths = stored.lengths
        index._times = stored.times
        index._open = _read_calls(body)
        return index


class StoredIndex:
    """An index as ``Index.dump`` wrote it; a search reads only parts of it.

    first:   the seq of the first event.
    lengths: the number of terms of each event.
    times:   the time of each event, in microseconds since 1970.
    """

    def __init__(self, keyed: Keyed, first: int, body: Mapping[str, Any]) -> None:
        self._keyed = keyed
        self.first = first
        self._hashes = b64decode(body["terms"])
        self._ends = _array("I", body["ends"])
        self._places = _array("H", body["places"])
        self._counts = _array("B", body["counts"])
        self.lengths = _array("I", body["lengths"])
        self.times = _array("q", body["times"])

    def _hash_at(self, index: int) -> bytes:
        start = index * _HASH_SIZE
        return self._hashes[start : start + _HASH_SIZE]

    def _postings_at(self, index: int) -> Postings:
        start = self._ends[index - 1] if index > 0 else 0
        end = self._ends[index]
        return Postings(self._places[start:end], self._counts[start:end])

    def all(self) -> dict[bytes, Postings]:
        """Return the events of each hash."""
        indexes = range(len(self._ends))
        return {self._hash_at(index): self._postings_at(index) for index in indexes}

    def find(self, term: str) -> Postings:
        """Return the events that may contain a term."""
        hash_ = self._keyed.hash(term)
        index = bisect_left(range(len(self._ends)), hash_, key=self._hash_at)
        if index == len(self._ends) or self._hash_at(index) != hash_:
            return _NONE
        return self._postings_at(index)

    def having(self, wanted: Iterable[str]) -> set[int] | None:
        """Return the places of events with all these terms; None if none is wanted."""
        common: set[int] | None = None
        for term in wanted:
            places = set(self.find(term).places)
            common = places if common is None else common & places
        return common


def _text(data: bytes) -> str:
    return b64encode(data).decode()


def _array(code: str, text: str) -> array[int]:
    values: array[int] = array(code)
    values.frombytes(b64decode(text))
    return values


def _read_calls(body: Mapping[str, Any]) -> dict[bytes, bytes]:
    calls = body["calls"].items()
    return {b64decode(call): b64decode(files) for call, files in calls}
