"""The points of a log at which a strategy decides: model calls and ends of turns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from refold.domain import events
from refold.domain.envelope import Envelope
from refold.projections.context.edits import Edit
from refold.projections.context.outline import Outline, OutlineBuilder
from refold.projections.context.strategy import Strategy
from refold.projections.context.units import Place, continues_response


class DecisionPoint(NamedTuple):
    """The decision between two neighboring events of a log.

    model_called: whether a model was called.
    turn_ended:   whether the agent had ended its turn.
    """

    model_called: bool
    turn_ended: bool


class DecisionPoints:
    """Finds the decision points of a log that a caller folds event by event.

    Call ``before`` and ``after`` for each event.  Between them, the caller folds it.

    An ``Item``, which is state of a framework, is skipped: only some ways to record a
    session have such events, and a strategy must decide the same in all of them.
    """

    def __init__(self) -> None:
        self._newest: Envelope | None = None
        # Whether a recorded request waits for its answer.
        self._request_open = False
        # Whether the newest event ended a turn, as far as is known before the next one.
        self.turn_ended = False

    def before(self, envelope: Envelope, placed: Place | None) -> DecisionPoint:
        """Return the point between the newest event and this one.

        placed: the event's message and exchange in the context, as ``units.place``
                returns it; None if the event is no message.
        """
        if isinstance(envelope.payload, events.Item):
            return DecisionPoint(model_called=False, turn_ended=False)
        model_called = self._is_model_call(envelope, placed)
        if self._newest is None:
            return DecisionPoint(model_called, turn_ended=False)
        if self.turn_ended and continues_response(self._newest, envelope, placed):
            self.turn_ended = False
        return DecisionPoint(model_called, self.turn_ended)

    def after(self, envelope: Envelope, *, idle: bool) -> None:
        """Note an event that was folded.

        idle: whether the newest turn seems complete now, by ``OutlineBuilder.idle``.
        """
        if isinstance(envelope.payload, events.Item):
            return
        self._newest = envelope
        if isinstance(envelope.payload, events.AgentResponse):
            self.turn_ended = idle
        else:
            # Each end is one point: the event after an end clears it.
            self.turn_ended = isinstance(envelope.payload, events.Final)

    def _is_model_call(self, envelope: Envelope, placed: Place | None) -> bool:
        """Whether a model was called just before this event.

        The call is where its request was recorded, or else where its answer begins.
        """
        if isinstance(envelope.payload, events.Request):
            if envelope.activates_strategy:  # this request is sent to no model
                return False
            self._request_open = True
            return True
        if placed is None:
            return False
        is_answer_of_request = self._request_open
        self._request_open = False
        is_first_of_exchange = placed.exchange == envelope.seq
        begins_answer = placed.kind in ("response", "call") and is_first_of_exchange
        return begins_answer and not is_answer_of_request


def turn_ends(
    strategy: Strategy,
    outline: Outline,
    envelopes: Iterable[Envelope],
    edits: Iterable[Edit] = (),
) -> tuple[list[Envelope], bool]:
    """Return the events that ended turns since the last call of a model.

    The newest event is never among them, since its response may continue.

    outline:   the outline of the events before ``envelopes``.
    envelopes: the events to look at, oldest first.
    edits:     the edits of the history that ``envelopes`` contain.

    Also returns whether a model was called between ``envelopes``.  If not, turns before
    them may have ended since the last call, too.

    Raises HistoryEdited if ``envelopes`` contain an edit that ``edits`` does not.
    """
    builder = OutlineBuilder(outline, tuple(edits))
    points = DecisionPoints()
    ends: list[Envelope] = []
    was_called = False
    newest: Envelope | None = None
    for envelope in envelopes:
        point = points.before(envelope, builder.place(envelope))
        if point.model_called:
            was_called = True
            ends.clear()
        elif point.turn_ended and newest is not None:
            ends.append(newest)
        strategy.add(builder, envelope)
        points.after(envelope, idle=builder.idle)
        if not isinstance(envelope.payload, events.Item):
            newest = envelope
    return ends, was_called
