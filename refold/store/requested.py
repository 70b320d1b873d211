"""Views of recorded requests, derived again one after another.

Requests follow one another as the log does, so each goes on from where the one before
it stood: a session is read once for all of them, not once for each.
"""

from __future__ import annotations

from refold.domain.events import Request
from refold.projections.context import spec
from refold.projections.context.outline import Outline, fold_derived
from refold.projections.context.strategy import Strategy
from refold.projections.context.view import View
from refold.store.filling import handed_in
from refold.store.handing import Handed
from refold.store.viewing import Viewer


class RequestedViews:
    """Derives views of one session; requests are best asked for in their order."""

    def __init__(self, viewer: Viewer) -> None:
        self._viewer = viewer
        self._outlines: dict[str, Outline] = {}

    def view(self, request: Request) -> View:
        """The view that a recorded request was made of.

        Raises UnknownStrategy, CorruptEvent, KeyUnavailable.
        """
        strategy = spec.parse(request.strategy.model_dump())
        outline = self._outlines.get(strategy.fingerprint)
        if outline is None or not _before(outline, request):
            outline = strategy.begin()
        outline = self._read(strategy, outline, request)
        self._outlines[strategy.fingerprint] = outline
        extras = handed_in(self._viewer.log, self._viewer.stream, request)
        handed = Handed(extras, extras.tools)
        return self._viewer.render(strategy, outline, handed)

    def _read(self, strategy: Strategy, outline: Outline, request: Request) -> Outline:
        viewer = self._viewer
        after = outline.through_seq if outline.events else None
        events = viewer.history.events(after=after, upto=request.through_seq)
        outline = strategy.read(outline, events)
        if request.derived_seq <= outline.derived_seq:
            return outline
        derived = viewer.stream._replace(stream=strategy.fingerprint)
        for envelope in viewer.log.read(
            derived, after=outline.derived_seq, upto=request.derived_seq
        ):
            outline = fold_derived(outline, envelope)
        return outline


def _before(outline: Outline, request: Request) -> bool:
    """Whether the outline holds nothing that the request did not read."""
    main = outline.through_seq <= request.through_seq
    return main and outline.derived_seq <= request.derived_seq
