"""The moments of a log at which a strategy decides: calls of a model, ends of turns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from refold.domain import events
from refold.domain.envelope import Envelope
from refold.projections.context.edits import Edit
from refold.projections.context.outline import Outline, OutlineBuilder
from refold.projections.context.strategy import Strategy
from refold.projections.context.units import Place, goes_on


class Moment(NamedTuple):
    """What lies between two events of a log.

    called:     whether a model was called.
    turn_ended: whether the agent had ended its turn.
    """

    called: bool
    turn_ended: bool


class Moments:
    """Finds the moments while a log is folded: ``before`` and ``after`` each event.

    Items of frameworks are skipped: only some of the ways in which a history comes in
    record them.
    """

    def __init__(self) -> None:
        # Whether a request was recorded, whose answer has not been read yet.
        self._request_open = False
        self._newest: Envelope | None = None
        self.turn_ended = False

    def before(self, envelope: Envelope, placed: Place | None) -> Moment:
        """Return the moment between the last event and this one."""
        if isinstance(envelope.payload, events.Item):
            return Moment(called=False, turn_ended=False)
        called = self._is_model_call(envelope, placed)
        if self._newest is None:
            return Moment(called, turn_ended=False)
        if self.turn_ended:
            self.turn_ended = not goes_on(self._newest, envelope, placed)
        return Moment(called, self.turn_ended)

    def after(self, envelope: Envelope, *, idle: bool) -> None:
        """Take an event that was folded.

        idle: whether the newest turn seems complete now.
        """
        if isinstance(envelope.payload, events.Item):
            return
        self._newest = envelope
        if isinstance(envelope.payload, events.AgentResponse):
            self.turn_ended = idle
        else:
            self.turn_ended = isinstance(envelope.payload, events.Final)

    def _is_model_call(self, envelope: Envelope, placed: Place | None) -> bool:
        """Whether a model was called just before this event.

        If the request was recorded, its event is the call, else the begin of an answer.
        """
        if isinstance(envelope.payload, events.Request):
            was_sent = not envelope.activates
            if was_sent:
                self._request_open = True
            return was_sent
        if placed is None:
            return False
        has_request = self._request_open
        self._request_open = False
        begins = placed.kind in ("response", "call") and placed.exchange == envelope.seq
        return begins and not has_request


def turn_ends(
    strategy: Strategy,
    outline: Outline,
    envelopes: Iterable[Envelope],
    edits: Iterable[Edit] = (),
) -> tuple[list[Envelope], bool]:
    """Return the events that ended turns since the last call of a model.

    An end is left out if it is the newest event.

    outline:   of the events before ``envelopes``.
    edits:     as for ``Strategy.read``.

    Also returns whether a model was called between ``envelopes``: if not, there may be
    further ends before them.

    Raises HistoryEdited.
    """
    builder = OutlineBuilder(outline, tuple(edits))
    moments = Moments()
    ends: list[Envelope] = []
    was_called = False
    newest: Envelope | None = None
    for envelope in envelopes:
        moment = moments.before(envelope, builder.place(envelope))
        if moment.called:
            was_called = True
            ends.clear()
        elif moment.turn_ended and newest is not None:
            ends.append(newest)
        strategy.add(builder, envelope)
        moments.after(envelope, idle=builder.idle)
        if not isinstance(envelope.payload, events.Item):
            newest = envelope
    return ends, was_called
