"""Calls of tools that Refold answers itself: recorded once, with what they gave."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from refold.domain.envelope import Envelope, Meta
from refold.domain.errors import IdempotencyConflict, InvalidEvent
from refold.domain.events import Event, ToolCall, ToolResult
from refold.domain.record import Draft
from refold.projections.context.blocks import Block, result_block
from refold.store.filling import with_blobs
from refold.store.sessions import Session

_PAGE: Final = 200
_TRIES: Final = 4


class Call(NamedTuple):
    """A ``tool_use`` block, by its parts."""

    call_id: str
    name: str
    given: Any


class Told(NamedTuple):
    """What a model is told.

    advised: the items of memory in it, by id.
    """

    text: str
    is_error: bool = False
    untrusted: bool = False
    advised: tuple[str, ...] = ()


def call_of(tool_use: Any) -> Call | None:
    """The call of a block of a response: the SDK's, or its JSON.

    None for another kind of block.  Raises InvalidEvent for one without id or name.
    """
    if not isinstance(tool_use, Mapping):
        names = ("type", "id", "name", "input")
        tool_use = {name: getattr(tool_use, name, None) for name in names}
    if tool_use.get("type") != "tool_use":
        return None
    call_id, name = tool_use.get("id"), tool_use.get("name")
    if not isinstance(call_id, str) or not isinstance(name, str):
        raise InvalidEvent("a tool_use block has an id and a name")
    return Call(call_id, name, tool_use.get("input"))


@dataclass(frozen=True, slots=True)
class Answering:
    """Records calls and results in a session; the same call again is the same record.

    agent: whose calls these are, if there are several agents in the session.
    """

    session: Session
    agent: str | None = None

    def answer(self, call: Call, tell: Callable[[], Told]) -> Block:
        """The result of a call as a block, made and recorded if it was not yet.

        Where a recorder has recorded the call, only its result is added.

        Raises what ``session.append`` raises.
        """
        for left in reversed(range(_TRIES)):
            recorded = self._recorded(call)
            if recorded is not None:
                return _block(self.session, call.call_id, recorded)
            try:
                self._append(call, tell())
            except (InvalidEvent, IdempotencyConflict):
                # Somebody else recorded the call, or its result, in between.
                if not left:
                    raise
        raise AssertionError("the last try returns or raises")

    def _append(self, call: Call, told: Told) -> None:
        result = ToolResult(
            call_id=call.call_id,
            tool_name=call.name,
            content=told.text,
            status="error" if told.is_error else "ok",
            untrusted=told.untrusted,
        )
        advised = {"advised": list(told.advised)} if told.advised else {}
        events: list[Event | Draft] = [Draft(result, meta=Meta.of(advised))]
        if not self._is_open(call):
            given = call.given if isinstance(call.given, dict) else str(call.given)
            made = ToolCall(call_id=call.call_id, tool_name=call.name, arguments=given)
            events.insert(0, made)
        self.session.append(events, idempotency_key=_key(call), agent=self.agent)

    def _is_open(self, call: Call) -> bool:
        head = self.session.writer.log.head(self.session.stream)
        return call.call_id in head.state.open_calls

    def _recorded(self, call: Call) -> Envelope | None:
        log, stream = self.session.writer.log, self.session.stream
        earlier = log.receipt(stream, _key(call))
        if earlier is not None:
            return log.read(stream, after=earlier.last_seq - 1, limit=1)[0]
        if self._is_open(call):
            return None
        return result_of(self.session, call.call_id)


def result_of(session: Session, call_id: str) -> Envelope | None:
    """The newest recorded result of a call."""
    log, upto = session.writer.log, None
    while page := log.read(
        session.stream, upto=upto, limit=_PAGE, types=("tool_result",), newest=True
    ):
        for envelope in reversed(page):
            payload = envelope.payload
            if isinstance(payload, ToolResult) and payload.call_id == call_id:
                return envelope
        upto = page[0].seq - 1
    return None


def not_recorded(session: Session, events: Sequence[Event]) -> list[Event]:
    """The events without results that the session has already, word for word."""
    return [event for event in events if not _is_recorded(session, event)]


def _is_recorded(session: Session, event: Event) -> bool:
    if not isinstance(event, ToolResult):
        return False
    found = result_of(session, event.call_id)
    if found is None:
        return False
    return result_block("", event) == _block(session, "", found)


def _block(session: Session, call_id: str, recorded: Envelope) -> Block:
    """As a context has it: redacted, and cut where it was too long."""
    whole = with_blobs(session.writer.log, recorded).payload
    return result_block(call_id, whole if isinstance(whole, ToolResult) else None)


def _key(call: Call) -> str:
    return f"{call.name}:{call.call_id}"
