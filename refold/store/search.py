"""Search in the events of a user's sessions, ranked by BM25.

Each session has its own indexes, one for every 1,024 events.  An index is a stored
view, encrypted with the session's key: it is deleted and erased with the session.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, NamedTuple

from refold.domain import ports
from refold.domain.envelope import Envelope
from refold.domain.errors import (
    CorruptEvent,
    Erased,
    KeyUnavailable,
    StoreUnavailable,
)
from refold.domain.events import JsonObject
from refold.domain.ids import StreamId, begins_with
from refold.domain.model import repr_without_texts
from refold.projections.search.documents import Document
from refold.projections.search.index import SEGMENT, Index, Keyed, StoredIndex
from refold.projections.search.query import Query
from refold.projections.search.ranking import Ranked, Ranking, SegmentMatches, rank
from refold.projections.search.snippets import snippet
from refold.projections.search.terms import folded, terms
from refold.store.history import read_pages
from refold.store.memory.views import keep_view

_VERSION: Final = 3  # of the form in which an index is stored
_SEPARATOR: Final = ports.VIEW_NAME_SEPARATOR
_NAME_PREFIX: Final = f"search{_SEPARATOR}{_VERSION}{_SEPARATOR}"
# Indexes of earlier versions are dropped when the segment is indexed again.
_OLD_PREFIX: Final = f"search{_SEPARATOR}1{_SEPARATOR}"
# An index is stored again once an eighth of its events are new, or 64 of them.  Reading
# fewer new events in each search costs less than a write.
_STORE_AT_SHARE: Final = 8
_STORE_AT_EVENTS: Final = 64
# Events with the words of a phrase that are read to find those with the phrase.
_MOST_CHECKED: Final = 2_000
# Of these, events of one session, if those of other sessions have the words, too.
_CHECKED_OF_SESSION: Final = 100
# Hits of one session, if events of other sessions match, too.
PER_SESSION: Final = 5
_SCORE_DIGITS: Final = 3
# New events that a search of a server indexes: about ten seconds of CPU.
SERVED_AT_MOST: Final = 30_000


@repr_without_texts
class SearchHit(NamedTuple):
    """An event that matches a search, and the part of its text that matches best.

    score: the rank by BM25; higher is better.
    marks: the start and the end of each match in the snippet, in characters.
    more_in_session: the number of events of the session that match and are no hits.
                     With a phrase, it may count events that only have its words.
    """

    session_id: str
    seq: int
    type: str
    ts: datetime
    snippet: str
    score: float = 0.0
    marks: tuple[tuple[int, int], ...] = ()
    more_in_session: int = 0

    def pieces(self) -> Iterator[tuple[str, bool]]:
        """Yield the snippet in pieces, and whether each is a match."""
        place = 0
        for start, end in self.marks:
            if start > place:
                yield self.snippet[place:start], False
            yield self.snippet[start:end], True
            place = end
        if place < len(self.snippet):
            yield self.snippet[place:], False

    def to_json(self) -> JsonObject:
        """Return the JSON that ``refold search --json`` prints."""
        ts = self.ts.isoformat().replace("+00:00", "Z")
        marks = [list(mark) for mark in self.marks]
        return {**self._asdict(), "ts": ts, "marks": marks}


class SearchResult(NamedTuple):
    """The best events of a search.

    total:          the number of events that match.
    total_is_exact: False if some of these events may lack a phrase of the search, and
                    only have its words.  Then ``more_in_session`` may count such
                    events, too.
    not_searched:   the number of events that have no index yet, because the search was
                    to index only so many.  The next search indexes them.
    unreadable:     the ids of the sessions that were left out, because a key of theirs
                    is missing or an event is damaged.
    """

    hits: list[SearchHit]
    total: int
    total_is_exact: bool = True
    not_searched: int = 0
    unreadable: tuple[str, ...] = ()

    def by_session(self) -> list[list[SearchHit]]:
        """Return the hits of each session, that with the best hit first."""
        groups: dict[str, list[SearchHit]] = {}
        for hit in self.hits:
            groups.setdefault(hit.session_id, []).append(hit)
        return list(groups.values())


def search(
    log: ports.EventLog,
    infos: Sequence[ports.SessionInfo],
    query: Query,
    limit: int,
    *,
    per_session: int | None = PER_SESSION,
    index_at_most: int | None = None,
) -> SearchResult:
    """Return the best events of these sessions for a query, the best first.

    Of events with the same score, the newest comes first.  Sessions that are erased
    during the search are left out.

    per_session:   the number of events of one session.  Further ones are returned only
                   if other sessions have too few that match.  None means that sessions
                   do not matter.
    index_at_most: the number of new events to index, in steps of up to 1,024; those of
                   the newest sessions come first.  None indexes all.

    Raises KeyUnavailable or CorruptEvent if no session can be read.
    """
    wanted = _in_scope(infos, query.session)
    indexer = _Indexer(log, index_at_most)
    unreadable = _Unreadable(of=len(wanted))
    segments: list[_Segment] = []
    newest_first = sorted(wanted, key=lambda info: info.updated_at, reverse=True)
    for number, info in enumerate(newest_first):
        stream = StreamId(info.user_id, info.session_id)
        try:
            indexes = indexer.indexes(stream, info.head_seq)
        except Erased:
            continue
        except (KeyUnavailable, CorruptEvent) as error:
            unreadable.add(info.session_id, error)
            continue
        for index in reversed(indexes):
            matches = SegmentMatches.of(index, query, session=number)
            segments.append(_Segment(stream, matches))
    if len(wanted) == 1:
        per_session = None
    most = limit
    ranked_of_session = per_session
    if query.phrases:
        most = max(limit, _MOST_CHECKED)
        if per_session is not None:
            ranked_of_session = max(per_session, _CHECKED_OF_SESSION)
    ranking = rank(
        [segment.matches for segment in segments],
        query,
        most,
        per_session=ranked_of_session,
    )
    reader = _HitReader(log, segments, ranking, query, unreadable)
    hits = _chosen(reader, limit, per_session)
    all_were_read = len(ranking.best) == ranking.total and len(hits) < limit
    if not all_were_read:
        hits = _with_counts(hits, newest_first, ranking)
    return SearchResult(
        hits,
        total=len(hits) if all_were_read else ranking.total,
        total_is_exact=all_were_read or not query.phrases,
        not_searched=indexer.skipped,
        unreadable=tuple(sorted(unreadable.session_ids)),
    )


def _in_scope(
    infos: Sequence[ports.SessionInfo], name: str | None
) -> Sequence[ports.SessionInfo]:
    """Return the session of this name, or all sessions whose names begin with it.

    A list in a terminal shortens each part of a name, and ends it with an ellipsis.
    """
    if name is None:
        return infos
    same = [info for info in infos if info.session_id == name]
    if same:
        return same
    beginning = name.removesuffix("…").removesuffix("...")
    if not beginning:
        return []
    return [info for info in infos if begins_with(info.session_id, beginning)]


class _Segment(NamedTuple):
    stream: StreamId
    matches: SegmentMatches


class _Unreadable:
    """The sessions that a search cannot read.

    of: the number of sessions that it searches.
    """

    def __init__(self, *, of: int) -> None:
        self.session_ids: set[str] = set()
        self._of = of

    def add(self, session_id: str, error: Exception) -> None:
        """Add a session; raises its error if the search can read no session at all."""
        self.session_ids.add(session_id)
        if len(self.session_ids) == self._of:
            raise error


class _HitReader:
    """Reads the events of a ranking.

    A session whose event cannot be read is added to ``unreadable``.
    """

    def __init__(
        self,
        log: ports.EventLog,
        segments: Sequence[_Segment],
        ranking: Ranking,
        query: Query,
        unreadable: _Unreadable,
    ) -> None:
        self.ranking = ranking
        self._log = log
        self._segments = segments
        self._query = query
        self._unreadable = unreadable

    def session_of(self, ranked: Ranked) -> str:
        """Return the session of an event."""
        return self._segments[ranked.segment].stream.session_id

    def read(self, ranked: Ranked) -> SearchHit | None:
        """Return an event as a hit; None if its text does not match the query."""
        segment = self._segments[ranked.segment]
        seq = segment.matches.first + ranked.place
        try:
            envelopes = self._log.read(segment.stream, after=seq - 1, upto=seq)
        except Erased:
            return None
        except (KeyUnavailable, CorruptEvent) as error:
            self._unreadable.add(segment.stream.session_id, error)
            return None
        for envelope in envelopes:
            document = Document.of(envelope)
            if _matches(document, self._query):
                return _hit(envelope, document, ranked, self.ranking.weights)
        return None


def _chosen(reader: _HitReader, limit: int, per_session: int | None) -> list[SearchHit]:
    """Return the best events of a ranking that match by their texts, in its order.

    per_session: as in ``search``.
    """
    best = reader.ranking.best
    hits: dict[int, SearchHit] = {}  # by their places in the ranking
    passed_over: list[int] = []
    of_session: Counter[str] = Counter()
    for place, ranked in enumerate(best):
        if len(hits) == limit:
            break
        session_id = reader.session_of(ranked)
        if per_session is not None and of_session[session_id] >= per_session:
            passed_over.append(place)
            continue
        hit = reader.read(ranked)
        if hit is not None:
            hits[place] = hit
            of_session[session_id] += 1
    for place in passed_over:
        if len(hits) == limit:
            break
        hit = reader.read(best[place])
        if hit is not None:
            hits[place] = hit
    return [hits[place] for place in sorted(hits)]


def _with_counts(
    hits: Sequence[SearchHit], infos: Sequence[ports.SessionInfo], ranking: Ranking
) -> list[SearchHit]:
    """Return the hits with the number of further matches in their sessions.

    infos: the sessions by their numbers in the ranking.
    """
    shown = Counter(hit.session_id for hit in hits)
    more: dict[str, int] = {}
    for number, matches in ranking.matches.items():
        session_id = infos[number].session_id
        more[session_id] = max(0, matches - shown[session_id])
    return [hit._replace(more_in_session=more[hit.session_id]) for hit in hits]


def _matches(document: Document, query: Query) -> bool:
    """Whether a text has a term of the query, and all of its phrases.

    The index has hashes of terms, and two terms may share one.
    """
    if query.terms:
        has_term = not query.terms.isdisjoint(terms(document.text))
        if not has_term and query.terms.isdisjoint(terms(document.call_id)):
            return False
    text = folded(document.text)
    return all(phrase.search(text) for phrase in query.phrases)


def _hit(
    envelope: Envelope,
    document: Document,
    ranked: Ranked,
    weights: Mapping[str, float],
) -> SearchHit:
    """Return the event as a hit, with a part of its text."""
    shown = snippet(document.values, weights)
    if not shown.marks:  # the match is the name of a field
        with_keys = snippet(document.text, weights)
        if with_keys.marks:
            shown = with_keys
    return SearchHit(
        session_id=envelope.session_id,
        seq=envelope.seq,
        type=envelope.type,
        ts=envelope.ts,
        snippet=shown.text,
        score=round(ranked.score, _SCORE_DIGITS),
        marks=shown.marks,
    )


def index_events(
    log: ports.EventLog,
    stream: StreamId,
    head_seq: int,
    *,
    progress: Callable[[], object] | None = None,
) -> int:
    """Store the indexes of a session up to a seq; returns the number of new events.

    progress: called after each page of events that was read.

    Raises Erased, KeyUnavailable, CorruptEvent.
    """
    indexer = _Indexer(log, None, stores_all=True, progress=progress)
    indexer.indexes(stream, head_seq)
    return indexer.added


class _Indexer:
    """Reads the indexes of sessions, and adds new events to them.

    stores_all: whether to store an index also if few of its events are new.
    progress:   called after each page of events that was read.
    skipped:    the number of events that were not added.
    added:      the number of events that were added.
    """

    def __init__(
        self,
        log: ports.EventLog,
        most: int | None,
        *,
        stores_all: bool = False,
        progress: Callable[[], object] | None = None,
    ) -> None:
        self._log = log
        self._progress = progress
        self._left = most
        self._stores_all = stores_all
        self.skipped = 0
        self.added = 0

    def indexes(self, stream: StreamId, head: int) -> list[StoredIndex]:
        """Return the indexes of a session up to ``head``."""
        keyed = Keyed(self._log.session_proof_key(stream))
        indexes: list[StoredIndex] = []
        body: Mapping[str, Any] | None = None
        for segment in range((head + SEGMENT - 1) // SEGMENT):
            body = self._body(stream, keyed, segment, head, body)
            if body is not None:
                indexes.append(StoredIndex(keyed, segment * SEGMENT + 1, body))
        return indexes

    def _body(
        self,
        stream: StreamId,
        keyed: Keyed,
        segment: int,
        head: int,
        body_before: Mapping[str, Any] | None,
    ) -> Mapping[str, Any] | None:
        """Return the index of a segment up to ``head`` in its stored form.

        New events are added first, and the index is stored if they are many.  If no
        more events may be added, the index is the stored one, or None.

        body_before: the index of the segment before.
        """
        log = self._log
        first = segment * SEGMENT + 1
        last = min((segment + 1) * SEGMENT, head)
        name = f"{_NAME_PREFIX}{segment}"
        stored = log.load_view(stream, name)
        replaces = stored.through_seq if stored else 0
        if stored and not stored.body:  # it was changed, and does not decrypt
            stored = None
        through = stored.through_seq if stored else first - 1
        if through >= last:
            return stored.body if stored else None
        if not self._may_add(last - through):
            return stored.body if stored else None
        if stored:
            index = Index.load(keyed, first, through, stored.body)
        else:
            index = Index(keyed, first, first - 1)
            if body_before is not None:
                index.continue_calls(body_before)
        for envelope in read_pages(
            log, stream, after=through, upto=last, progress=self._progress
        ):
            index.take(envelope)
        body = index.dump()
        new_events = index.through - through
        stored_events = through - first + 1
        is_share_new = new_events * _STORE_AT_SHARE >= stored_events
        is_worth_storing = is_share_new or new_events >= _STORE_AT_EVENTS
        self.added += new_events
        if is_worth_storing or self._stores_all:
            view = ports.StoredView(index.through, 0, body)
            keep_view(log, stream, name, view, replaces=replaces)
            if stored is None:
                with suppress(StoreUnavailable):  # a program that may only read
                    log.drop_view(stream, f"{_OLD_PREFIX}{segment}")
        return body

    def _may_add(self, events: int) -> bool:
        """Whether these events may be added; counts them."""
        if self._left is None:
            return True
        if self._left <= 0:
            self.skipped += events
            return False
        self._left -= events
        return True
