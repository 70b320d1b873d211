"""Search for words in the events of a user's sessions.

Each session has its own indexes, one for every 1,024 events.  An index is a stored
view, encrypted with the session's key: it is deleted and erased with the session.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from refold.domain import ports
from refold.domain.errors import Erased, InvalidEvent
from refold.domain.events import JsonObject
from refold.domain.ids import StreamId
from refold.domain.model import repr_without_texts
from refold.projections.search import (
    SEGMENT,
    Index,
    StoredIndex,
    searchable_text,
    snippet,
    words,
)
from refold.store.history import read_pages
from refold.store.memory.views import keep_view

_MOST_WORDS: Final = 50  # in one search
_VERSION: Final = 1  # of the form in which an index is stored
_SEPARATOR: Final = ports.VIEW_NAME_SEPARATOR
_NAME_PREFIX: Final = f"search{_SEPARATOR}{_VERSION}{_SEPARATOR}"
# An index is stored again once an eighth of its events are new, or 64 of them.  Reading
# fewer new events in each search costs less than a write.
_STORE_AT_SHARE: Final = 8
_STORE_AT_EVENTS: Final = 64


@repr_without_texts
class SearchHit(NamedTuple):
    """An event that contains all words of a search, and the line with the words."""

    session_id: str
    seq: int
    type: str
    ts: datetime
    snippet: str

    def to_json(self) -> JsonObject:
        """Return the JSON that ``refold search --json`` prints."""
        ts = self.ts.isoformat().replace("+00:00", "Z")
        return {**self._asdict(), "ts": ts}


def words_of_search(text: str) -> set[str]:
    """Return the words to search for.  Raises InvalidEvent unless they are 1 to 50."""
    wanted_words = words(text)
    count = len(wanted_words)
    if not 0 < count <= _MOST_WORDS:
        raise InvalidEvent(f"search for 1 to {_MOST_WORDS} words, not for {count}")
    return wanted_words


def search(
    log: ports.EventLog, infos: Sequence[ports.SessionInfo], text: str
) -> Iterator[SearchHit]:
    """Yield the events of these sessions that contain all words of ``text``.

    The session with the newest event comes first.  Within a session, newer events come
    first.  Sessions that are erased during the search are left out.

    Raises InvalidEvent for a text without words, or with more than 50.
    """
    wanted_words = words_of_search(text)
    for info in sorted(infos, key=lambda info: info.updated_at, reverse=True):
        stream = StreamId(info.user_id, info.session_id)
        try:
            yield from _SessionIndexes(log, stream).search(info.head_seq, wanted_words)
        except Erased:
            continue


class _SessionIndexes:
    """The indexes of one session."""

    def __init__(self, log: ports.EventLog, stream: StreamId) -> None:
        self._log = log
        self._stream = stream
        self._key = log.session_proof_key(stream)

    def search(self, head: int, wanted_words: set[str]) -> Iterator[SearchHit]:
        """Yield the events up to ``head`` that contain these words, newest first."""
        segments = (head + SEGMENT - 1) // SEGMENT
        for segment in reversed(range(segments)):
            for seq in self._index(segment, head).find(wanted_words):
                for envelope in self._log.read(self._stream, after=seq - 1, upto=seq):
                    text = searchable_text(envelope)
                    # The index contains hashes of words, and two words may share one.
                    if wanted_words <= words(text):
                        yield SearchHit(
                            session_id=envelope.session_id,
                            seq=seq,
                            type=envelope.type,
                            ts=envelope.ts,
                            snippet=snippet(text, sorted(wanted_words)),
                        )

    def _index(self, segment: int, head: int) -> StoredIndex:
        """Return the index of a segment up to ``head``, after adding its new events."""
        first = segment * SEGMENT + 1
        last = min((segment + 1) * SEGMENT, head)
        name = f"{_NAME_PREFIX}{segment}"
        stored = self._log.load_view(self._stream, name)
        through = stored.through_seq if stored else first - 1
        if stored and through >= last:
            return StoredIndex(self._key, first, stored.body)
        index = Index(self._key, first, first - 1)
        if stored:
            index = Index.load(self._key, first, through, stored.body)
        for envelope in read_pages(self._log, self._stream, after=through, upto=last):
            index.take(envelope)
        body = index.dump()
        new_events = index.through - through
        stored_events = through - first + 1
        is_share_new = new_events * _STORE_AT_SHARE >= stored_events
        if is_share_new or new_events >= _STORE_AT_EVENTS:
            view = ports.StoredView(index.through, 0, body)
            replaces = stored.through_seq if stored else 0
            keep_view(self._log, self._stream, name, view, replaces=replaces)
        return StoredIndex(self._key, first, body)
