"""Requests of a walk, one after the other; what only grew is not rendered again."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from refold.domain.envelope import Envelope
from refold.domain.events import Final as Ended, HumanReview, SystemPrompt, ToolResult
from refold.projections.compare.elements import Element, Elements
from refold.projections.context.assemble import OPENING
from refold.projections.context.extras import Extras
from refold.projections.context.keep_all import KeepAll
from refold.projections.context.outline import Outline
from refold.projections.context.render import render
from refold.projections.context.shown import Shown
from refold.projections.context.spans import Spans, joined
from refold.projections.context.strategy import Strategy

_ALL: Final = KeepAll()
# What these show depends on what stands before them.
_DEPENDENT: Final = (Ended, HumanReview, SystemPrompt)


class Request(NamedTuple):
    """What a model is sent: its tokens, and its elements in their order."""

    tokens: int
    elements: list[Element]


class _Before(NamedTuple):
    """The request before, and all of what was shown but the raw end that grows."""

    request: Request
    outline: Outline
    shown: Shown


@dataclass(slots=True)
class Requests:
    """The requests of one walk.

    A context only grows at its end until the strategy changes what stands before, so
    only what is new is rendered as long as that is so.  A whole rendering of each
    request would take time by the square of the log.
    """

    strategy: Strategy
    events: Sequence[Envelope]
    extras: Extras
    elements: Elements
    _seqs: list[int] = field(init=False)
    _results: list[Envelope] = field(init=False)
    _before: _Before | None = None

    def __post_init__(self) -> None:
        self._seqs = [event.seq for event in self.events]
        self._results = [e for e in self.events if isinstance(e.payload, ToolResult)]

    def next(self, outline: Outline, summaries: Sequence[Envelope]) -> Request:
        """The request for ``outline``, which is the one of before or has read more."""
        outline = self.strategy.judged(outline)
        shown = self.strategy.show(outline)
        request = self._grown(outline, shown)
        if request is None:
            request = self._whole(outline, shown, summaries)
        self._before = _Before(request, outline, shown)
        return request

    def within(self, spans: Spans) -> list[Envelope]:
        """The events of ``spans``, found without looking at the others."""
        return [
            event
            for first, last in spans
            for event in self.events[
                bisect_left(self._seqs, first) : bisect_right(self._seqs, last)
            ]
        ]

    def _whole(
        self, outline: Outline, shown: Shown, summaries: Sequence[Envelope]
    ) -> Request:
        view = render(
            self.strategy,
            outline,
            self.within(outline.reads(shown.raw)),
            summaries=summaries,
            extras=self.extras,
        )
        return Request(view.tokens, self.elements.of(view))

    def _grown(self, outline: Outline, shown: Shown) -> Request | None:
        """The request of before with what is new behind it; None if it is no such."""
        if self._before is None:
            return None
        request, earlier, was = self._before
        span = (earlier.through_seq + 1, outline.through_seq)
        if (
            earlier.thread.open
            or _frame(earlier, was) != _frame(outline, shown)
            or joined((*was.raw, span)) != shown.raw
            or self._cleared(was) != self._cleared(shown)
        ):
            return None
        new = self.within((span,))
        if any(isinstance(event.payload, _DEPENDENT) for event in new):
            return None
        view = render(_ALL, _ALL.read(_ALL.begin(), new), new, extras=self.extras)
        elements = self.elements.of(view)
        if elements and elements[0].texts == (OPENING,):
            del elements[0]
        return Request(request.tokens + view.tokens, [*request.elements, *elements])

    def _cleared(self, shown: Shown) -> list[int]:
        """The results that are shown as stubs."""
        return [event.seq for event in self._results if shown.cleared(event)]


def _frame(outline: Outline, shown: Shown) -> tuple[Any, ...]:
    """Whatever a view depends on beside its raw end."""
    return (
        outline.summaries,
        outline.memory.summaries,
        outline.memory.facts_shown,
        outline.memory.notes_shown,
        outline.kept,
        outline.kept_input,
        outline.pinned,
        outline.system_seq,
        shown.inputs,
        shown.left,
    )
