"""Indexing: it stores what lists and searches of a session need, before they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from refold.domain import errors, ports
from refold.domain.events import JsonObject
from refold.domain.ids import StreamId
from refold.store.overviews import Overviews
from refold.store.search import index_events


class Indexed(NamedTuple):
    """The new events of a session that were indexed.

    events: the number of events that the search index or the overview lacked.
    """

    user_id: str
    session_id: str
    events: int

    def to_json(self) -> JsonObject:
        """Return the JSON that ``refold worker --json`` prints."""
        return {"events": self.events}


def index_session(
    log: ports.EventLog,
    stream: StreamId,
    *,
    now: int,
    progress: Callable[[], object] | None = None,
) -> Indexed:
    """Bring the search index and the overview of a session up to date.

    Both are stored views.  A list and a search compute those that are missing, such as
    the overview after a summary that another process wrote.  A session that was erased,
    or that is only being read, is left alone.

    progress: called after each page of events that was read.

    Raises KeyUnavailable, CorruptEvent.
    """
    try:
        head_seq = log.head(stream).seq
        overviews = Overviews(log, now=now)
        new_in_overview = overviews.refresh(stream, head_seq, progress=progress)
        new_in_index = index_events(log, stream, head_seq, progress=progress)
    except (errors.Erased, errors.SessionNotFound):
        return Indexed(stream.user_id, stream.session_id, 0)
    return Indexed(
        stream.user_id, stream.session_id, max(new_in_overview, new_in_index)
    )
