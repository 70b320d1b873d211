"""The ranking of events by BM25 over the postings of many indexes."""

from __future__ import annotations

import heapq
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Final, NamedTuple, TypeAlias

from refold.projections.search.index import SEGMENT, Postings, StoredIndex
from refold.projections.search.query import Query

# Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond (2009).
# K1 bounds the weight of a repeated term, B how much a long event is held back.
K1: Final = 0.9
B: Final = 0.4
# Scores of one search.  Beyond it, common terms only rank events that have rare ones.
MOST_SCORED: Final = 200_000
_DIGITS: Final = 9  # of a score: the order of additions does not matter
# So many times the wanted number of events are looked at first; usually they suffice.
_WIDER: Final = 8


@dataclass(frozen=True, slots=True)
class SegmentMatches:
    """The events of one segment that a query may show.

    session:  the number of the segment's session in the search.
    first:    the seq of the segment's first event.
    lengths:  the number of terms of each event.
    times:    the time of each event, in microseconds.
    postings: the events with each term of the query.
    allowed:  the places that pass the filters; None means all.
    """

    session: int
    first: int
    lengths: array[int]
    times: array[int]
    postings: Mapping[str, Postings]
    allowed: frozenset[int] | None

    @classmethod
    def of(cls, index: StoredIndex, query: Query, *, session: int) -> SegmentMatches:
        """Look up a query in one index."""
        return cls(
            session=session,
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
    matches: the number of events that match, by the index, of each session.
    weights: the weight of each term: rare ones have more.
    """

    best: list[Ranked]
    matches: Mapping[int, int]
    weights: Mapping[str, float]

    @property
    def total(self) -> int:
        """The number of events that match, by the index."""
        return sum(self.matches.values())


def rank(
    segments: Sequence[SegmentMatches],
    query: Query,
    most: int,
    *,
    per_session: int | None = None,
) -> Ranking:
    """Rank the events of all segments; of equal scores, the newest event is first.

    Without words, the newest events come first.

    segments:    of equal times, events of an earlier segment in this order come first.
    most:        the number of events to return.
    per_session: further events of a session are returned only if other sessions have
                 too few.  None means that sessions do not matter.
    """
    matches: Counter[int] = Counter()
    for segment in segments:
        matches[segment.session] += len(segment.matching())
    choice = _Choice(segments, most, per_session)
    if not query.terms:
        return Ranking(_newest(segments, choice), matches, {})
    weights = _weights(segments, query)
    scores = _Scores(segments, weights, choice)
    for term in sorted(weights, key=lambda term: (-weights[term], term)):
        scores.add(term)
    return Ranking(scores.best(), matches, weights)


# A score and a time, the negative number of a segment, and a place in it.  The greatest
# is the best.
_Entry: TypeAlias = tuple[float, int, int, int]


class _Choice:
    """The choice of the best events of a search: how many, and how many of a session.

    most, per_session: as in ``rank``.
    """

    def __init__(
        self,
        segments: Sequence[SegmentMatches],
        most: int,
        per_session: int | None,
    ) -> None:
        self.most = most
        self.per_session = per_session
        self._session_of = [segment.session for segment in segments]

    def best_of(self, entries: Sequence[_Entry]) -> list[Ranked]:
        """Return the best entries, in their order."""
        within, beyond = self._best_and_others(entries)
        if len(within) < self.most:
            within += beyond[: self.most - len(within)]
            within.sort(reverse=True)
        return [Ranked(score, -number, place) for score, _, number, place in within]

    def is_full(self, entries: Sequence[_Entry]) -> bool:
        """Whether sessions have enough entries without those beyond their bound."""
        within, _ = self._best_and_others(entries)
        return len(within) == self.most

    def _best_and_others(
        self, entries: Sequence[_Entry]
    ) -> tuple[list[_Entry], list[_Entry]]:
        """Return the best entries within the bound of sessions, and better ones beyond.

        Both are in their order.
        """
        if self.per_session is None:
            return heapq.nlargest(self.most, entries), []
        best = heapq.nlargest(self.most * _WIDER, entries)
        within, beyond = self._divided(best)
        if len(within) < self.most and len(best) < len(entries):
            within, beyond = self._divided(sorted(entries, reverse=True))
        return within, beyond

    def _divided(self, entries: Iterable[_Entry]) -> tuple[list[_Entry], list[_Entry]]:
        """Divide entries in their order, until enough are within the bound."""
        within: list[_Entry] = []
        beyond: list[_Entry] = []
        of_session: Counter[int] = Counter()
        for entry in entries:
            if len(within) == self.most:
                break
            session = self._session_of[-entry[2]]
            if of_session[session] == self.per_session:
                beyond.append(entry)
            else:
                of_session[session] += 1
                within.append(entry)
        return within, beyond


def _newest(segments: Sequence[SegmentMatches], choice: _Choice) -> list[Ranked]:
    entries: list[_Entry] = []
    for number, segment in enumerate(segments):
        for place in segment.matching():
            entries.append((0.0, segment.times[place], -number, place))
    return choice.best_of(entries)


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
        choice: _Choice,
    ) -> None:
        self._segments = segments
        self._weights = weights
        self._choice = choice
        self._accepts_new = True
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
        if self._accepts_new and self._are_decided():
            self._accepts_new = False
        accepts_new = self._accepts_new
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

    def _are_decided(self) -> bool:
        """Whether no event without a score can become one of the best."""
        most = self._choice.most
        if len(self._scores) < most or not most:
            return False
        # The best events of few sessions pass this test first.
        if heapq.nlargest(most, self._scores.values())[-1] <= self._bound:
            return False
        if self._choice.per_session is None:
            return True
        entries: list[_Entry] = []
        for event, score in self._scores.items():
            if score > self._bound:
                number, place = divmod(event, SEGMENT)
                entries.append((score, 0, -number, place))
        return self._choice.is_full(entries)

    def best(self) -> list[Ranked]:
        """Return the events with the highest scores."""
        entries: list[_Entry] = []
        for event, score in self._scores.items():
            number, place = divmod(event, SEGMENT)
            time = self._segments[number].times[place]
            entries.append((round(score, _DIGITS), time, -number, place))
        return self._choice.best_of(entries)
