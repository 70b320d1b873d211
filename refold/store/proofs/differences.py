"""The reasons why a provider got other bytes than a recorded request shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from refold.domain.envelope import Envelope
from refold.domain.errors import counted
from refold.domain.events import JsonObject, Request, ToolCall, ToolResult
from refold.domain.placeholders import PLACEHOLDER
from refold.projections.context.why import Part

# Warnings that say how an event differs from what was sent.  A code that is missing
# here describes an event that a context shows as it was sent.
_WARNINGS: Final[Mapping[str, str]] = {
    "repaired": "a value that JSON in UTF-8 cannot represent was replaced",
    "thinking_dropped": "thinking with a redacted value was left out",
    "kept_as_text": "the content was stored as one text",
    "not_recorded": "the content could not be recorded",
    "history_differs": "the messages lack the end of the session",
    "not_converted": "the request has content that no message of a context can hold",
    "fields_left_out": "the request has fields that are not recorded",
    "result_without_call": "the request has results that answer no open call",
    "empty_message": "the request has a message without content",
}


class Difference(NamedTuple):
    """A difference between the sent bytes and the context that the log gives.

    message: the message that differs, counted from 1; 0 is the system prompt.  None if
             it is not known, or if it is the request itself.
    seq:     the event that explains it.
    reason:  a sentence without the content.
    """

    message: int | None
    seq: int
    reason: str

    def to_json(self) -> JsonObject:
        """Return the difference as JSON."""
        return self._asdict()


def differences(
    request: Envelope, events: Iterable[Envelope], parts: Iterable[Part]
) -> Iterator[Difference]:
    """Yield the known differences of a request, those of its messages in order.

    request: the event of a request that did not send exactly the bytes of its view.
    events:  the events up to the request, in order.
    parts:   the parts of its view; none if they are not known.
    """
    message_of: dict[int, int] = {}
    for part in parts:
        for seq in part.seqs:
            message_of.setdefault(seq, part.message)
    shown = [event for event in events if not message_of or event.seq in message_of]
    for event in shown:
        for reason in _reasons(event):
            yield Difference(message_of.get(event.seq), event.seq, reason)
    for event in _out_of_order(shown):
        reason = "the request has this result in another order than the calls"
        yield Difference(message_of.get(event.seq), event.seq, reason)
    for reason in _reasons(request):
        yield Difference(None, request.seq, reason)


def _reasons(event: Envelope) -> Iterator[str]:
    """Yield the reasons for which an event differs from what was sent."""
    types = event.redaction.get("types")
    if isinstance(types, Mapping) and types:
        number = sum(int(str(count)) for count in types.values())
        names = ", ".join(sorted(types))
        yield f"redaction replaced {counted(number, 'value')} ({names})"
    if isinstance(event.payload, Request):
        # They were redacted before the request was recorded.
        handed = "\n".join(event.payload.handed.values())
        number = sum(1 for _ in PLACEHOLDER.finditer(handed))
        if number:
            yield (
                f"redaction replaced {counted(number, 'value')} of the system prompt, "
                "the tools, or another section that the caller passed"
            )
    for warning in event.meta.warnings:
        reason = _WARNINGS.get(warning.code)
        if reason is None:
            continue
        if warning.detail:
            reason = f"{reason} ({warning.detail})"
        yield reason


def _out_of_order(events: Iterable[Envelope]) -> Iterator[Envelope]:
    """Yield results that follow the result of a later call.

    A context shows results in the order of their calls.
    """
    place_of: dict[str, int] = {}
    newest = -1
    for place, event in enumerate(events):
        match event.payload:
            case ToolCall(call_id=call_id):
                place_of[call_id] = place
                newest = -1
            case ToolResult(call_id=call_id):
                answered = place_of.get(call_id, newest)
                if answered < newest:
                    yield event
                newest = max(newest, answered)
            case _:
                newest = -1
