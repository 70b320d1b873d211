"""Calls of tools that Refold answers itself: recorded once, with what they gave.

Nothing here needs the SDK: blocks may be JSON, from whichever client.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Unpack

from refold.domain.canonical import repaired
from refold.domain.envelope import Draft, Envelope, Meta
from refold.domain.errors import IdempotencyConflict, InvalidEvent
from refold.domain.events import Event, JsonObject, ToolCall, ToolResult
from refold.projections.context.text import Block, result_block
from refold.projections.memory import tool
from refold.projections.memory.advice import ChoiceArgs, choice_from
from refold.store.history import with_blobs
from refold.store.memory.advice import retrieve
from refold.store.session.session import Session

_PAGE: Final = 200
_TRIES: Final = 4


def _call_of(tool_use: Any) -> ToolCall | None:
    """The call of memory that a block of a response is: the SDK's, or its JSON.

    Raises InvalidEvent for a call without id or name.
    """
    if not isinstance(tool_use, Mapping):
        names = ("type", "id", "name", "input")
        tool_use = {name: getattr(tool_use, name, None) for name in names}
    if tool_use.get("type") != "tool_use":
        return None
    call_id, name, given = (tool_use.get(key) for key in ("id", "name", "input"))
    if not isinstance(call_id, str) or not isinstance(name, str):
        raise InvalidEvent("a tool_use block has an id and a name")
    if name != tool.NAME:
        return None
    arguments = dict(given) if isinstance(given, Mapping) else str(given)
    return ToolCall(call_id=call_id, tool_name=name, arguments=arguments)


def result_of(session: Session, call_id: str) -> Envelope | None:
    """The newest recorded result of a call."""
    return next(results_of(session, call_id), None)


def results_of(session: Session, call_id: str) -> Iterator[Envelope]:
    """The recorded results of the calls that a provider gave this id, newest first.

    The last one is that of the newest call which is recorded under the id itself.
    """
    log, upto = session.writer.log, None
    call_id = session.writer.recorded_id(session.user_id, call_id)
    while page := log.read(
        session.stream, upto=upto, limit=_PAGE, types=("tool_result",), newest=True
    ):
        for envelope in reversed(page):
            payload = envelope.payload
            if not isinstance(payload, ToolResult):
                continue
            if payload.call_id == call_id:
                yield envelope
                return
            if envelope.meta.call_id == call_id:
                yield envelope
        upto = page[0].seq - 1


def not_recorded(session: Session, events: Sequence[Event]) -> list[Event]:
    """The events without results that the session has already, word for word."""
    return [event for event in events if not _is_recorded(session, event)]


def _is_recorded(session: Session, event: Event) -> bool:
    if not isinstance(event, ToolResult):
        return False
    block, _ = repaired(result_block("", event))
    results = results_of(session, event.call_id)
    return any(block == _block(session, "", found) for found in results)


def _block(session: Session, call_id: str, recorded: Envelope) -> Block:
    """As a context has it: redacted, and cut where it was too long."""
    whole = with_blobs(session.writer.log, recorded).payload
    return result_block(call_id, whole if isinstance(whole, ToolResult) else None)


class MemoryRetrieval:
    """Answers calls of ``memory_retrieval`` in one session, about its user alone.

    how:   how memories are chosen, as for ``session.memory.advice``; ``tokens`` is how
           many an answer may cost.
    agent: whose calls these are, if there are several agents in the session.

    Raises InvalidConfiguration.
    """

    def __init__(
        self, session: Session, *, agent: str | None = None, **how: Unpack[ChoiceArgs]
    ) -> None:
        self.session, self._agent, self._how = session, agent, choice_from(how)

    @property
    def definition(self) -> JsonObject:
        """The tool for ``tools``; it names the session's user as who is asked about."""
        return tool.definition(self.session.user_id)

    def answer(self, tool_use: Any) -> Block | None:
        """The ``tool_result`` of a ``tool_use`` block; None for another tool's.

        Call and result are recorded, and the items shown with them; where a capture
        has recorded the call, its result alone.  The same call again has the same
        result.  What is wrong with a call is told to the model.

        Raises what ``session.append`` raises.
        """
        if (call := _call_of(tool_use)) is None:
            return None
        for left in reversed(range(_TRIES)):
            recorded = self._recorded(call)
            if recorded is not None:
                return _block(self.session, call.call_id, recorded)
            try:
                self._append(call)
            except (InvalidEvent, IdempotencyConflict):
                # Somebody else recorded the call, or its result, in between.
                if not left:
                    raise
        raise AssertionError("the last try returns or raises")

    def _append(self, call: ToolCall) -> None:
        session = self.session
        query = tool.parse_query(call.arguments, user_id=session.user_id)
        if refused := isinstance(query, tool.Refused):
            found = tool.Answer(query.why)
        else:
            found = retrieve(session.writer, session.stream, query, self._how)
        result = ToolResult(
            call_id=call.call_id,
            tool_name=call.tool_name,
            content=found.text,
            status="error" if refused else "ok",
        )
        advised = {"advised": [*found.items]} if found.items else {}
        events = [] if self._is_open(call) else [Draft(call)]
        session.append(
            [*events, Draft(result, meta=Meta.of(advised))],
            idempotency_key=_key(call),
            agent=self._agent,
            unscanned="stub",
        )

    def _is_open(self, call: ToolCall) -> bool:
        writer, stream = self.session.writer, self.session.stream
        name = writer.recorded_id(stream.user_id, call.call_id)
        return name in writer.log.head(stream).state.open_calls

    def _recorded(self, call: ToolCall) -> Envelope | None:
        log, stream = self.session.writer.log, self.session.stream
        earlier = log.receipt(stream, _key(call))
        if earlier is not None:
            return log.read(stream, after=earlier.last_seq - 1, limit=1)[0]
        if self._is_open(call):
            return None
        return result_of(self.session, call.call_id)


def _key(call: ToolCall) -> str:
    return f"{call.tool_name}:{call.call_id}"
