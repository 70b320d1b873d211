"""When a session has become worth looking at: rules over its events, and no more.

They say when memory is made, never what goes into it: whatever ran late, or twice,
comes out the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal, TypeAlias

from refold.domain.envelope import Envelope
from refold.domain.events import (
    AgentError,
    Aggregate,
    Event,
    Final as Ending,
    HumanReview,
    Reflection,
)

Trigger: TypeAlias = Literal["incorrect", "unsure", "again", "warned", "decided", "end"]
# Below this an agent is not sure of its own work.
UNSURE: Final = 0.6
AGAIN: Final = 2


def triggers(envelope: Envelope, reflections: int) -> Iterator[Trigger]:
    """What about this event makes its session worth looking at.

    incorrect: an item of an aggregate was judged wrong.
    unsure:    a reflection did not pass, or its confidence is under ``UNSURE``.
    again:     it is the second of the reflections, or a later one.
    warned:    something was degraded, or failed.
    decided:   a human decided.
    end:       the run ended.

    reflections: how many there were up to here.
    """
    payload = envelope.payload
    if isinstance(payload, Reflection) and reflections >= AGAIN:
        yield "again"
    if envelope.meta.warnings:
        yield "warned"
    found = _of(payload)
    if found is not None:
        yield found


def may_trigger(events: Sequence[Event]) -> bool:
    """Whether memory may have to be made again after these."""
    return any(isinstance(e, Reflection) or _of(e) is not None for e in events)


def _of(event: Event) -> Trigger | None:
    match event:
        case Aggregate(results=results):
            wrong = any(one.verdict == "incorrect" for one in results)
            return "incorrect" if wrong else None
        case Reflection(pass_=passed, confidence=confidence):
            low = confidence is not None and confidence < UNSURE
            return "unsure" if passed is False or low else None
        case AgentError():
            return "warned"
        case HumanReview(decision=str()):
            return "decided"
        case Ending():
            return "end"
    return None
