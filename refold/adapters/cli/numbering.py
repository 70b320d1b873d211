"""Numbers the model's responses and the tool calls of a session, each from 1."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from refold.adapters.cli.wording import counted
from refold.domain.errors import RefoldError
from refold.domain.events import (
    AgentError,
    AgentResponse,
    Aggregate,
    Planner,
    Reflection,
    ToolCall,
    ToolResult,
    UserInput,
)

if TYPE_CHECKING:
    from refold.domain.envelope import Envelope


class Numbered(NamedTuple):
    """An event with its number: ``call`` is also that of a result's call.

    ``began`` is the seq at which the model's response that the event is part of
    began: what the model was sent for it is everything before.
    """

    envelope: Envelope
    response: int | None = None
    call: int | None = None
    began: int | None = None


@dataclass(slots=True)
class Numbering:
    """Numbers events as they pass, from a session's first on.

    A response is what the model said at once: events with one ``response_id``, else
    an agent response and the calls that follow it directly.
    """

    responses: int = 0
    calls: int = 0
    _began: int = 0
    _response_id: str | None = None
    _direct: bool = False
    _open: dict[str, int] = field(default_factory=dict)

    def number(self, envelopes: Iterable[Envelope]) -> Iterator[Numbered]:
        """Each event with its number; entries of derived streams have none."""
        for envelope in envelopes:
            yield (
                self._numbered(envelope)
                if envelope.stream == "main"
                else Numbered(envelope)
            )

    def _numbered(self, envelope: Envelope) -> Numbered:
        match envelope.payload:
            case AgentResponse():
                self._respond(envelope, direct=False)
                return Numbered(envelope, response=self.responses, began=self._began)
            case ToolCall(call_id=call_id):
                self._respond(envelope, direct=self._direct)
                self.calls += 1
                self._open[call_id] = self.calls
                return Numbered(envelope, self.responses, self.calls, self._began)
            case ToolResult(call_id=call_id):
                self._direct = False
                return Numbered(envelope, call=self._open.pop(call_id, None))
            case UserInput() | Planner() | Reflection() | Aggregate() | AgentError():
                self._direct = False
        return Numbered(envelope)

    def _respond(self, envelope: Envelope, *, direct: bool) -> None:
        response_id = envelope.meta.response_id
        same = response_id is not None and response_id == self._response_id
        alike = response_id is None or self._response_id is None
        if not (same or (direct and alike)):
            self.responses += 1
            self._began, self._response_id = envelope.seq, response_id
        self._response_id = response_id or self._response_id
        self._direct = True


def before_call(envelopes: Iterable[Envelope], n: int) -> int:
    """The last seq before the response that makes the ``n``-th tool call.

    Raises RefoldError if there are fewer calls.
    """
    numbering = Numbering()
    for item in numbering.number(envelopes):
        if isinstance(item.envelope.payload, ToolCall) and item.call == n:
            return _before(item)
    calls = counted(numbering.calls, "tool call")
    raise RefoldError(
        f"the session has {calls}, so none is number {n}: `refold log` numbers them"
    )


def before_response(envelopes: Iterable[Envelope], n: int) -> int:
    """The last seq before the ``n``-th response of the model.

    Raises RefoldError if there are fewer.
    """
    numbering = Numbering()
    for item in numbering.number(envelopes):
        if item.response == n:
            return _before(item)
    responses = counted(numbering.responses, "response")
    raise RefoldError(
        f"the session has {responses}, so none is number {n}: `refold log` numbers them"
    )


def _before(item: Numbered) -> int:
    before = (item.began or 1) - 1
    if not before:
        raise RefoldError(
            "the session begins with that response: there is nothing it was sent"
        )
    return before
