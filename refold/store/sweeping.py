"""Stored views that fell behind: found by what they have folded, and brought up.

Nothing is wrong where one is behind: a context folds what it lacks.  It is then as slow
as it lacks much, because whoever was to store it died, or never asked.
"""

from __future__ import annotations

from collections.abc import Iterator

from refold.domain.errors import Erased
from refold.domain.ids import StreamId
from refold.domain.ports import PAGE, EventLog
from refold.domain.sizes import Lagging, Place, Scope
from refold.projections.context import spec
from refold.store.history import History
from refold.store.viewing import Viewer


def lagging(log: EventLog, scope: Scope, *, by: int = 1) -> Iterator[Lagging]:
    """The views that are behind by so many events or more, read in pages."""
    after: Place | None = None
    full = True
    while full:
        page = log.lagging(scope, by=by, limit=PAGE, after=after)
        yield from page
        full = len(page) == PAGE
        after = page[-1].place if page else None


def bring_up(log: EventLog, place: Place) -> bool:
    """Store the view as of now; False if another was first, or it cannot be read.

    Raises what reading the session raises, unless it was erased meanwhile.
    """
    try:
        return _brought_up(log, place)
    except Erased:
        return False


def _brought_up(log: EventLog, place: Place) -> bool:
    standing = log.standing(StreamId(place.user_id, place.session_id), place.name)
    if standing.view is None or "strategy" not in standing.view.body:
        return False
    strategy = spec.parse(standing.view.body["strategy"])  # type: ignore[arg-type]  # as written
    viewer = Viewer(log, History.of(log, standing.head.state))
    return viewer.caught_up(strategy, standing)[1]
