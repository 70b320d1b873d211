"""Reading yesterday's shapes: each step turns a payload into the next version."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from refold.domain.errors import InvalidEvent
from refold.domain.events import EVENT_CLASSES, JsonObject, SessionEvent, event_of
from refold.domain.trusted import event_trusted

Upcast = Callable[[JsonObject], JsonObject]
UPCASTS: Mapping[tuple[str, int], Upcast] = {
    ("compaction", 1): dict,  # the fields that were added have defaults
    ("redaction_applied", 1): dict,  # the same
    ("request", 1): dict,  # the same
    ("request", 2): dict,  # the same
}


def upcast(
    event_type: str,
    version: int,
    payload: JsonObject,
    *,
    upcasts: Mapping[tuple[str, int], Upcast] = UPCASTS,
) -> SessionEvent:
    """Make an event of a stored payload, whatever version wrote it.

    Raises InvalidEvent for a type or version this Refold does not know: an audit
    log never forgets silently.
    """
    known = EVENT_CLASSES.get(event_type)
    if known is None:
        raise InvalidEvent(f"unknown event type {event_type!r}: upgrade Refold")
    if not 1 <= version <= known.version:
        raise InvalidEvent(
            f"{event_type} of version {version}, this Refold reads up to "
            f"{known.version}: upgrade Refold"
        )
    for step in range(version, known.version):
        payload = upcasts[event_type, step](payload)
    return event_of(event_type, payload)


def recorded(event_type: str, version: int, payload: JsonObject) -> SessionEvent:
    """``upcast`` for what was validated before it was sealed, and is as it was.

    In today's shape it is not validated again.
    """
    known = EVENT_CLASSES.get(event_type)
    if known is not None and version == known.version:
        return event_trusted(event_type, payload)
    return upcast(event_type, version, payload)
