"""Answers in the form of the Messages API, to which all protocols are converted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from refold.adapters.importers import base
from refold.adapters.importers.response import INTERRUPTED, broken_off, events_of
from refold.adapters.proxy.conversation import WireAnswer
from refold.adapters.proxy.protocols import errors
from refold.adapters.proxy.protocols.reading import Notes, json_of
from refold.adapters.proxy.protocols.streams import is_events, json_events
from refold.domain.events import AgentError, AgentResponse, Event, JsonObject

# The words of providers for an answer that ends with calls, or that just ends.
_ENDS: Final = frozenset(
    {"completed", "end_turn", "function_call", "stop", "tool_calls", "tool_use"}
)


def answer_of(
    message: JsonObject,
    where: str,
    notes: Notes,
    *,
    complete: bool,
    error: AgentError | None = None,
    items: Sequence[Event] = (),
) -> WireAnswer:
    """Return the answer for a message in the form of the Messages API.

    complete: whether the whole message came.
    error:    the error that the provider sent in place of the rest.
    items:    events for content that the message does not have.
    """
    if complete and error is None:
        events = [*events_of(message), *items]
    else:
        error = error or errors.broken(where)
        if message.get("usage") and not message.get("content"):
            # The provider counts the tokens of the prompt all the same.
            events = [_empty(message), error]
        else:
            events = broken_off(message, error)
        # The error stays the last event.
        events = [*events[:-1], *items, events[-1]]
    return WireAnswer(
        events=tuple(events),
        response_id=base.text(message, "id"),
        model=base.text(message, "model"),
        complete=complete and error is None,
        warnings=notes.warnings(),
    )


def _empty(message: JsonObject) -> AgentResponse:
    """Return the event of an answer that broke off before its first content."""
    return AgentResponse(stop_reason=INTERRUPTED, usage=base.mapping(message, "usage"))


def failed(error: AgentError, *, complete: bool = True) -> WireAnswer:
    """Return the answer that consists of an error alone.

    complete: whether the whole error came.
    """
    return WireAnswer((error,), None, None, complete)


class Stream(Protocol):
    """Joins the events of a stream to the object that an answer without one has.

    complete: whether the end of the object came.
    error:    the error that the provider sent in place of the rest.
    """

    complete: bool
    error: AgentError | None

    def take(self, name: str, event: dict[str, Any]) -> None:
        """Take the next event."""
        ...

    def joined(self) -> JsonObject:
        """Return the object, as far as it came."""
        ...


class Received(NamedTuple):
    """The JSON object of an answer.

    complete: whether the whole object came.
    error:    the error that the provider sent in place of the rest.
    """

    value: JsonObject
    complete: bool
    error: AgentError | None


def received(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    where: str,
    notes: Notes,
    *,
    complete: bool,
    content: str,
    stream: Stream,
) -> Received | WireAnswer:
    """Return the JSON object of an answer, or the answer for an error.

    complete: whether the whole body came.
    content:  the field with a list that each answer of the API has.
    stream:   joins the answer if it came as a stream of events.
    """
    if errors.is_error(status):
        return failed(errors.error_of(status, headers, body, where), complete=complete)
    if is_events(headers, body):
        for name, event in json_events(body, notes):
            stream.take(name, event)
        return Received(stream.joined(), stream.complete, stream.error)
    try:
        value, changes = json_of(body)
    except ValueError:
        if complete:
            return failed(errors.unreadable(status, headers, body, where))
        return failed(errors.broken(where), complete=False)
    notes.repaired(changes)
    if isinstance(value, dict) and isinstance(value.get(content), list):
        return Received(value, complete=True, error=None)
    if errors.is_error(status, value):
        return failed(errors.error_in(value, where))
    return failed(errors.unreadable(status, headers, body, where))


def stop_reason(reason: Any, blocks: Sequence[Mapping[str, Any]]) -> str | None:
    """Return why an answer ended: ``tool_use`` if its calls wait for results.

    reason: the provider's own word, which stays for other ends, such as a limit.
    """
    word = reason if isinstance(reason, str) else None
    has_calls = any(block.get("type") == "tool_use" for block in blocks)
    if has_calls and (word is None or word.lower() in _ENDS):
        return "tool_use"
    return word


def call_input(arguments: Any, notes: Notes) -> Any:
    """Return the arguments of a call: an object, or the text of a model as it is."""
    if not isinstance(arguments, str):
        return {} if arguments is None else arguments
    if not arguments.strip():
        return {}
    try:
        value, changes = json_of(arguments)
    except ValueError:
        return arguments
    if not isinstance(value, dict):
        return arguments
    notes.repaired(changes)
    return value
