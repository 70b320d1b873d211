"""What a caller hands to an append, as drafts; what cannot be one is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

from refold.domain.envelope import Meta
from refold.domain.errors import InvalidEvent
from refold.domain.events import Event
from refold.domain.record import Draft

Appendable: TypeAlias = Event | Draft


class Beside(NamedTuple):
    """What all events of one append have beside them, as in ``Draft``."""

    ts: datetime | None
    request_id: str | None
    agent: str | None
    meta: Meta


def drafts_of(
    events: Appendable | Sequence[Appendable], beside: Beside
) -> tuple[Draft, ...]:
    """A draft for each event, with what ``beside`` has beside it unless it has its own.

    Raises InvalidEvent for what is no event, or has a ts without a time zone.
    """
    given = [events] if isinstance(events, Event | Draft) else _listed(events)
    return tuple(_draft(event, beside) for event in given)


def _listed(events: object) -> list[Any]:
    if isinstance(events, str | bytes | Mapping) or not isinstance(events, Iterable):
        raise _no_event(events)
    return list(events)


def _no_event(given: object) -> InvalidEvent:
    return InvalidEvent(
        f"append takes events, not {type(given).__name__}: refold.UserInput(text=…)"
    )


def _draft(given: Appendable, beside: Beside) -> Draft:
    if isinstance(given, Draft) and isinstance(given.event, Event):
        draft = replace(given, meta=Meta.of(given.meta))
    elif isinstance(given, Event):
        draft = Draft(given, *beside)
    else:
        raise _no_event(given)
    if draft.ts is not None and not (
        isinstance(draft.ts, datetime) and draft.ts.tzinfo
    ):
        raise InvalidEvent("ts needs a time zone: datetime.now(UTC)")
    for name in ("request_id", "agent"):
        if not isinstance(getattr(draft, name), str | None):
            raise InvalidEvent(f"{name} must be a text")
    return draft
