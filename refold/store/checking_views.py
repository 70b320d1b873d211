"""Proving stored views: each is what its strategy makes of what it has read."""

from __future__ import annotations

from collections.abc import Iterator

from refold.domain.errors import UnknownStrategy
from refold.domain.ids import StreamId
from refold.domain.ports import EventLog, Problem, StoredView
from refold.projections.context import spec
from refold.projections.context.outline import Outline, fold_derived
from refold.projections.context.strategy import Strategy
from refold.store.history import History
from refold.store.viewing import Viewer, named_in


def wrong_views(log: EventLog, stream: StreamId) -> Iterator[Problem]:
    """The stored views of the session that are not what the log makes.

    One of a strategy that is not known here, or of an older form, is left out: nothing
    is shown of it either.  Each is folded anew.
    """
    names = log.view_names(stream.user_id, stream.session_id)
    if not names:
        return
    viewer = Viewer(log, History.of(log, log.head(stream).state))
    for name in names:
        stored = log.load_view(stream, name)
        detail = stored and _wrong(viewer, name, stored)
        if stored and detail:
            place = stream._replace(stream=name)
            yield Problem(*place, stored.through_seq, "view", detail)


def _wrong(viewer: Viewer, name: str, stored: StoredView) -> str | None:
    if not stored.body:
        return "the stored view does not open: it is folded anew when it is needed"
    try:
        strategy = spec.parse(stored.body["strategy"])  # type: ignore[arg-type]  # as written
        known = Outline.load(stored.body["outline"])  # type: ignore[arg-type]  # the same
    except (KeyError, TypeError, ValueError, UnknownStrategy):
        return None
    if strategy.fingerprint != name:
        return "the stored view is of another strategy"
    if known != _folded(viewer, strategy, stored):
        return "the stored view is not what the log makes of it: drop it"
    if named_in(strategy, known) != (stored.shows, stored.shows_derived):
        return "the stored view is read with events that it does not show"
    return None


def _folded(viewer: Viewer, strategy: Strategy, stored: StoredView) -> Outline:
    """The outline of what the view has read, from the beginning."""
    events = viewer.history.events(upto=stored.through_seq)
    outline = strategy.read(strategy.begin(), events)
    derived = viewer.stream._replace(stream=strategy.fingerprint)
    if stored.derived_seq:
        for envelope in viewer.log.read(derived, upto=stored.derived_seq):
            outline = fold_derived(outline, envelope)
    return Outline.load(outline.dump())
