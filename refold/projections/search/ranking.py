"""The ranking of events by BM25 over the postings of many indexes."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Final, NamedTuple

from refold.projections.search.index import SEGMENT, Postings, StoredIndex
from refold.projections.search.query import Query

# Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond (2009).
# K1 bounds the weight of a repeated term, B how much a long event is held back.
K1: Final = 0.9
B: Final = 0.4
# Scores of one search.  Beyond it, common terms only rank events that have rare ones.
MOST_SCORED: Final = 200_000
_DIGITS: Final = 9  # of a score: the order of additions does not matter


@dataclass(frozen=True, slots=True)
class SegmentMatches:
    """The events of one segment that a query may show.

    first:    the seq of the segment's first event.
    lengths:  the number of terms of each event.
    times:    the time of each event, in microseconds.
    postings: the events with each term of the query.
    allowed:  the places that pass the filters; None means all.
    """

    first: int
    lengths: array[int]
    times: array[int]
    postings: Mapping[str, Postings]
    allowed: frozenset[int] | None

    @classmethod
    def of(cls, index: StoredIndex, query: Query) -> SegmentMatches:
        """Look up a query in one index."""
        return cls(
            first=index.first,
            lengths=index.lengths,
            times=index.times,
            postings={term: index.find(term) for term in query.terms},
            allowed=_allowed(index, query),
        )

    def matching(self) -> set[int]:
        """Return the places of events with a term that pass the filters."""
        if not self.postings:
            return set(
                range(len(self.lengths)) if self.allowed is None else self.allowed
            )
        places: set[int] = set()
        for postings in self.postings.values():
            places.update(postings.places)
        return places if self.allowed is None else places & self.allowed


def _allowed(index: StoredIndex, query: Query) -> frozenset[int] | None:
    """Return the places of events that pass the filters; None without filters."""
    if not query.has_filters:
        return None
    places = set(range(len(index.lengths)))
    required = index.having(query.required)
    if required is not None:
        places &= required
    for choices in query.any_of:
        chosen: set[int] = set()
        for fact in choices:
            chosen.update(index.find(fact).places)
        places &= chosen
    for fact in query.excluded:
        places.difference_update(index.find(fact).places)
    if query.after is not None:
        places = {place for place in places if index.times[place] >= query.after}
    if query.before is not None:
        places = {place for place in places if index.times[place] < query.before}
    return frozenset(places)


class Ranked(NamedTuple):
    """A place in a ranking: the segment by its number, and the event in it."""

    score: float
    segment: int
    place: int


class Ranking(NamedTuple):
    """The events that match a query.

    best:    the best ones, the best first.
    total:   the number of events that match, by the index.
    weights: the weight of each term: rare ones have more.
    """

    best: list[Ranked]
    total: int
    weights: Mapping[str, float]


def rank(segments: Sequence[SegmentMatches], query: Query, most: int) -> Ranking:
    """Rank the events of all segments; of equal scores, the newest event is first.

    Without words, the newest events come first.

    segments: of equal times, events of an earlier segment in this order come first.
    most:     the number of events to return.
    """
    total = sum(len(segment.matching()) for segment in segments)
    if not query.terms:
        return Ranking(_newest(segments, most), total, {})
    weights = _weights(segments, query)
    scores = _Scores(segments, weights, most)
    for term in sorted(weights, key=lambda term: (-weights[term], term)):
        scores.add(term)
    return Ranking(scores.best(), total, weights)


def _newest(segments: Sequence[SegmentMatches], most: int) -> list[Ranked]:
    def by_time() -> list[tuple[int, int, int]]:
        places: list[tuple[int, int, int]] = []
        for number, segment in enumerate(segments):
            for place in segment.matching():
                places.append((segment.times[place], -number, place))
        return places

    newest = heapq.nlargest(most, by_time())
    return [Ranked(0.0, -number, place) for _, number, place in newest]


def _weights(segments: Sequence[SegmentMatches], query: Query) -> dict[str, float]:
    """Return the inverse document frequency of each term."""
    documents = sum(len(segment.lengths) for segment in segments)
    weights: dict[str, float] = {}
    for term in query.terms:
        count = sum(len(segment.postings[term].places) for segment in segments)
        weights[term] = log(1 + (documents - count + 0.5) / (count + 0.5))
    return weights


class _Scores:
    """The scores of events, added up term by term, the rarest term first.

    An event is its segment's number times ``SEGMENT``, plus its place.
    """

    def __init__(
        self,
        segments: Sequence[SegmentMatches],
        weights: Mapping[str, float],
        most: int,
    ) -> None:
        self._segments = segments
        self._weights = weights
        self._most = most
        self._scores: dict[int, float] = {}
        documents = 0
        length = 0
        for segment in segments:
            documents += len(segment.lengths)
            length += sum(segment.lengths)
        self._average = length / documents if length else 1.0
        self._left = MOST_SCORED
        self._bound = (K1 + 1) * sum(weights.values())

    def add(self, term: str) -> None:
        """Add the weight of a term to the scores of events.

        If enough events score so high that none without a rarer term can pass them,
        only events with a score are looked at.
        """
        accepts_new = self._threshold() <= self._bound
        weight = self._weights[term]
        self._bound -= (K1 + 1) * weight
        scores = self._scores
        per_length = K1 * B / self._average
        constant = K1 * (1 - B)
        for number, segment in enumerate(self._segments):
            base = number * SEGMENT
            lengths = segment.lengths
            allowed = segment.allowed
            postings = segment.postings[term]
            for place, count in zip(postings.places, postings.counts, strict=True):
                if allowed is not None and place not in allowed:
                    continue
                event = base + place
                before = scores.get(event)
                if before is None:
                    if not accepts_new or self._left <= 0:
                        continue
                    self._left -= 1
                    before = 0.0
                norm = constant + per_length * lengths[place]
                scores[event] = before + weight * count * (K1 + 1) / (count + norm)

    def _threshold(self) -> float:
        """Return the score that the last of the best events has so far."""
        if len(self._scores) < self._most or not self._most:
            return 0.0
        return heapq.nlargest(self._most, self._scores.values())[-1]

    def best(self) -> list[Ranked]:
        """Return the events with the highest scores."""
        scored: list[tuple[float, int, int, int]] = []
        for event, score in self._scores.items():
            number, place = divmod(event, SEGMENT)
            time = self._segments[number].times[place]
            scored.append((round(score, _DIGITS), time, -number, place))
        best = heapq.nlargest(self._most, scored)
        return [Ranked(score, -number, place) for score, _, number, place in best]
