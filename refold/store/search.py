"""Search: where words stand in what a user's sessions hold.

Each session has indexes of its own, a stored view for so many events, encrypted under
its key: what deletes, re-redacts or erases a session takes them along.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from refold.domain import ports
from refold.domain.errors import Erased, InvalidEvent
from refold.domain.events import JsonObject
from refold.domain.ids import StreamId
from refold.domain.model import quiet
from refold.projections.search import (
    SEGMENT,
    Index,
    StoredIndex,
    searchable_text,
    snippet,
    words,
)
from refold.store.history import read_on
from refold.store.memory.views import keep_view

MOST: Final = 50  # words that are searched for at once
_VERSION: Final = 1
_NAME: Final = f"search{ports.BESIDE}{_VERSION}{ports.BESIDE}"
# An index is written anew once what is behind it is this share of it, or so much.
_SHARE, _BEHIND = 8, 64


@quiet
class Found(NamedTuple):
    """An event that has all the words, and a line of it."""

    session_id: str
    seq: int
    type: str
    ts: datetime
    snippet: str

    def to_json(self) -> JsonObject:
        """As ``refold search --json`` prints it."""
        at = self.ts.isoformat().replace("+00:00", "Z")
        return {**self._asdict(), "ts": at}


def wanted(text: str) -> set[str]:
    """The words of what somebody searches for.  Raises InvalidEvent for none."""
    found = words(text)
    if not 0 < len(found) <= MOST:
        raise InvalidEvent(f"search for 1 to {MOST} words, not for {len(found)}")
    return found


def search(
    log: ports.EventLog, infos: Sequence[ports.SessionInfo], text: str
) -> Iterator[Found]:
    """The events of these sessions that have all words of ``text``, newest first.

    Those of the session that was written last come first.
    """
    asked = wanted(text)
    for info in sorted(infos, key=lambda one: one.updated_at, reverse=True):
        stream = StreamId(info.user_id, info.session_id)
        try:
            yield from _Session(log, stream).search(info.head_seq, asked)
        except Erased:
            continue  # meanwhile


class _Session:
    """The indexes of one session."""

    def __init__(self, log: ports.EventLog, stream: StreamId) -> None:
        self._log, self._stream = log, stream
        self._key = log.session_proof_key(stream)

    def search(self, head: int, asked: set[str]) -> Iterator[Found]:
        for part in reversed(range((head + SEGMENT - 1) // SEGMENT)):
            for seq in self._index(part, head).find(asked):
                for one in self._log.read(self._stream, after=seq - 1, upto=seq):
                    if asked <= words(text := searchable_text(one)):
                        line, name = snippet(text, sorted(asked)), one.session_id
                        yield Found(name, seq, one.type, one.ts, line)

    def _index(self, part: int, head: int) -> StoredIndex:
        """The words of a part up to the head; what is new in it is read."""
        first, last = part * SEGMENT + 1, min((part + 1) * SEGMENT, head)
        name = f"{_NAME}{part}"
        stored = self._log.load_view(self._stream, name)
        through = stored.through_seq if stored else first - 1
        if stored and through >= last:
            return StoredIndex(self._key, first, stored.body)
        index = Index(self._key, first, first - 1)
        if stored:
            index = Index.load(self._key, first, through, stored.body)
        for envelope in read_on(self._log, self._stream, after=through, upto=last):
            index.take(envelope)
        new, body = index.through - through, index.dump()
        if new * _SHARE >= through - first + 1 or new >= _BEHIND:
            view = ports.StoredView(index.through, 0, body)
            replaces = stored.through_seq if stored else 0
            keep_view(self._log, self._stream, name, view, replaces=replaces)
        return StoredIndex(self._key, first, body)
