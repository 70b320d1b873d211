"""The one way from a draft to something a log takes: redact, guard, estimate."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from refold.domain.canonical import canonical
from refold.domain.envelope import microseconds
from refold.domain.errors import EventTooLarge, InvalidEvent, RedactionFailed
from refold.domain.events import EVENT_CLASSES, JsonObject, SessionEvent, event_of
from refold.domain.ports import Blob
from refold.domain.record import Draft
from refold.domain.tokens import estimate
from refold.redaction.engine import RedactionError, Redactor
from refold.redaction.guard import (
    Guarded,
    Limits,
    TooLarge,
    apart,
    filled,
    guard,
)
from refold.redaction.payload import kept_apart, redact_payload, skipped
from refold.redaction.plan import Tagger
from refold.redaction.values import Tally

_PASS: Final = object()


@dataclass(frozen=True, slots=True)
class RedactedEvent:
    """An event that passed redaction and the size guard.

    Only ``redact`` makes one: a log takes these and nothing else, so there is no
    way around redaction.  ``event`` is the event as it will read once recorded.
    """

    event: SessionEvent
    ts: int
    token_estimate: int
    content: JsonObject
    blobs: tuple[Blob, ...]
    passed: object

    def __post_init__(self) -> None:
        if self.passed is not _PASS:
            raise TypeError("only redaction makes a RedactedEvent")

    @property
    def type(self) -> str:
        return self.event.type

    @property
    def schema_version(self) -> int:
        return self.event.version

    def __repr__(self) -> str:
        return f"RedactedEvent({self.type}, {self.token_estimate} tokens)"


def redact(
    draft: Draft,
    *,
    now: int,
    redactor: Redactor,
    limits: Limits,
    tag: Tagger | None = None,
) -> RedactedEvent:
    """Make of ``draft`` what may be written; ``now`` stands in for a missing ``ts``.

    Payload, request_id, agent and meta pass the redactor, each string and key of
    them; leaves over the limit and long base64 go to blobs, redacted.  Redaction never
    edits a signed block: it drops it, and ``meta.warnings`` says so.  ``tag`` makes
    pseudonyms of the user's, if the redactor's plan wants any.

    Raises InvalidEvent for text that is not Unicode, RedactionFailed, EventTooLarge.
    """
    event = draft.event
    if EVENT_CLASSES.get(event.type) is not type(event):
        raise InvalidEvent("only the event classes of refold can be recorded")
    payload = _storable(event.type, event.payload())
    beside = _storable(
        event.type,
        {
            "request_id": draft.request_id,
            "agent": draft.agent,
            "meta": draft.meta.dump(),
        },
    )
    try:
        clean, tally, warnings = redact_payload(redactor, event.type, payload, tag=tag)
        clean_beside, more = beside, Tally()
        if any(beside.values()):
            clean_beside, more = redactor.value(beside, tag=tag)
        moved = apart(clean, kept_apart(event.type))
        guarded = guard(moved.payload, limits, skip=skipped(event.type))
        guarded_beside = guard(clean_beside, limits)
    except RedactionError as error:
        raise RedactionFailed(event.type, reason=str(error)) from None
    except TooLarge as error:
        raise EventTooLarge(event.type, size=error.size, limit=error.limit) from None
    except Exception as error:
        raise RedactionFailed(event.type, reason=type(error).__name__) from None
    blobs = _blobs(moved, guarded, guarded_beside)
    content = _content(
        guarded.payload,
        guarded_beside.payload,
        redactor.receipt(tally + more),
        warnings,
    )
    if blobs:
        content["blobs"] = [blob.sha256 for blob in blobs]
    return RedactedEvent(
        event=event_of(event.type, guarded.payload),
        ts=_microseconds(draft.ts) if draft.ts else now,
        token_estimate=estimate(_sent(guarded)),
        content=content,
        blobs=blobs,
        passed=_PASS,
    )


def _microseconds(ts: datetime) -> int:
    try:
        return microseconds(ts.astimezone(UTC))
    except OverflowError:
        raise InvalidEvent("ts must be in the years 1 to 9999 in UTC") from None


def _storable(event_type: str, value: dict[str, Any]) -> dict[str, Any]:
    """``value`` as JSON gives it back, so that what is read is what was judged."""
    try:
        stored: dict[str, Any] = orjson.loads(canonical(value))
    except orjson.JSONEncodeError:
        raise InvalidEvent(
            f"the {event_type} event is no JSON that can be stored: it holds half of a "
            "surrogate pair, an integer over 64 bits or another kind of object, or is "
            "nested too deeply; refold.domain.canonical.repaired mends the first two"
        ) from None
    return stored


def _content(
    payload: JsonObject, beside: JsonObject, receipt: JsonObject, warnings: list[str]
) -> JsonObject:
    meta: dict[str, Any] = beside["meta"]  # type: ignore[assignment]  # an object
    if warnings:
        added = [{"code": code} for code in warnings]
        meta = {**meta, "warnings": [*meta.get("warnings", []), *added]}
    content = {**beside, "meta": meta, "payload": payload, "redaction": receipt}
    return {
        key: value
        for key, value in content.items()
        if key == "payload" or value not in (None, {})
    }


def _sent(guarded: Guarded) -> JsonObject:
    """The payload as a model will be sent it, with the base64 that blobs hold."""
    if not guarded.blobs:
        return guarded.payload
    return filled(guarded.payload, {b.sha256: b.data for b in guarded.blobs}.get)


def _blobs(*parts: Guarded) -> tuple[Blob, ...]:
    return tuple(Blob(blob.sha256, blob.data) for part in parts for blob in part.blobs)
