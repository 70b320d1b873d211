"""The tool ``memory_retrieval``: Refold answers its calls, and records each once.

Nothing here needs the SDK: blocks may also be JSON, from any client.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, Unpack

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

_RESULTS_PER_READ: Final = 200
# How often a call is answered before the error of a concurrent writer is raised.
_ATTEMPTS: Final = 4


def _memory_call(block: Any) -> ToolCall | None:
    """Return the call in a block of a response; None unless it is of this tool.

    block: the SDK's object, or its JSON.

    Raises InvalidEvent for a call without an id or a name.
    """
    if not isinstance(block, Mapping):
        block = {
            "type": getattr(block, "type", None),
            "id": getattr(block, "id", None),
            "name": getattr(block, "name", None),
            "input": getattr(block, "input", None),
        }
    if block.get("type") != "tool_use":
        return None
    call_id = block.get("id")
    name = block.get("name")
    if not isinstance(call_id, str) or not isinstance(name, str):
        raise InvalidEvent("a tool_use block needs an id and a name")
    if name != tool.NAME:
        return None
    tool_input = block.get("input")
    arguments = dict(tool_input) if isinstance(tool_input, Mapping) else str(tool_input)
    return ToolCall(call_id=call_id, tool_name=name, arguments=arguments)


def result_of(session: Session, call_id: str) -> Envelope | None:
    """Return the newest recorded result of a call; None if there is none."""
    return next(results_of(session, call_id), None)


def results_of(session: Session, call_id: str) -> Iterator[Envelope]:
    """Return the recorded results of calls with this id, newest first.

    A provider may use an id again.  Refold records such a call under a new id, and
    keeps the provider's id in the metadata.  Results of these calls are yielded first.
    The search ends at the newest result that is recorded under the provider's id.
    """
    log = session.writer.log
    call_id = session.writer.recorded_id(session.user_id, call_id)
    upto: int | None = None
    while True:
        page = log.read(
            session.stream,
            upto=upto,
            limit=_RESULTS_PER_READ,
            types=("tool_result",),
            newest=True,
        )
        if not page:
            return
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
    """Return the events without the results that the session already has."""
    return [event for event in events if not _is_recorded(session, event)]


def _is_recorded(session: Session, event: Event) -> bool:
    """Whether the event is a result that the session has with the same content."""
    if not isinstance(event, ToolResult):
        return False
    # Blocks without an id compare the contents.  The log has repaired JSON.
    block, _ = repaired(result_block("", event))
    for recorded in results_of(session, event.call_id):
        if block == _block(session, "", recorded):
            return True
    return False


def _block(session: Session, call_id: str, recorded: Envelope) -> Block:
    """Return the block of a recorded result, as a context shows it.

    The result is redacted.  A text that was too long to store stays a stub.
    """
    result = with_blobs(session.writer.log, recorded).payload
    if not isinstance(result, ToolResult):
        return result_block(call_id, None)
    return result_block(call_id, result)


class MemoryRetrieval:
    """Answers calls of ``memory_retrieval`` in a session, about its user alone.

    agent:  the agent that makes the calls, if the session has several.
    choice: the options of ``session.memory.advice`` that choose memories; ``tokens``
            limits an answer.

    Raises InvalidConfiguration for an option out of its bounds.
    """

    def __init__(
        self,
        session: Session,
        *,
        agent: str | None = None,
        **choice: Unpack[ChoiceArgs],
    ) -> None:
        self.session = session
        self._agent = agent
        self._choice = choice_from(choice)

    @property
    def definition(self) -> JsonObject:
        """The definition for ``tools``; it contains the id of the session's user."""
        return tool.definition(self.session.user_id)

    def answer(self, tool_use: Any) -> Block | None:
        """Return the ``tool_result`` for a ``tool_use`` block; None for another tool.

        The session records the call, its result, and the ids of the items in the
        result.  If a capture has recorded the call already, only the result is added.
        A repeated call gets the same result.  The result of an invalid call explains
        the problem to the model.

        Raises the errors of ``session.append``.
        """
        call = _memory_call(tool_use)
        if call is None:
            return None
        for attempt in range(1, _ATTEMPTS + 1):
            recorded = self._recorded_result(call)
            if recorded is not None:
                return _block(self.session, call.call_id, recorded)
            try:
                self._append(call)
            except (InvalidEvent, IdempotencyConflict):
                # A concurrent process has recorded the call, or its result.
                if attempt == _ATTEMPTS:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _append(self, call: ToolCall) -> None:
        """Record the call, unless it is recorded, and its result."""
        session = self.session
        query = tool.parse_query(call.arguments, user_id=session.user_id)
        status: Literal["ok", "error"] = "ok"
        if isinstance(query, tool.Refused):
            answer = tool.Answer(query.why)
            status = "error"
        else:
            answer = retrieve(session.writer, session.stream, query, self._choice)
        result = ToolResult(
            call_id=call.call_id,
            tool_name=call.tool_name,
            content=answer.text,
            status=status,
        )
        meta: JsonObject = {}
        if answer.items:
            meta["advised"] = list(answer.items)
        drafts: list[Draft] = []
        if not self._is_open(call):
            drafts.append(Draft(call))
        drafts.append(Draft(result, meta=Meta.of(meta)))
        session.append(
            drafts,
            idempotency_key=_idempotency_key(call),
            agent=self._agent,
            unscanned="stub",
        )

    def _is_open(self, call: ToolCall) -> bool:
        """Whether the call is recorded and has no result yet."""
        writer = self.session.writer
        stream = self.session.stream
        call_id = writer.recorded_id(stream.user_id, call.call_id)
        return call_id in writer.log.head(stream).state.open_calls

    def _recorded_result(self, call: ToolCall) -> Envelope | None:
        """Return the recorded result of the call; None if it has none yet."""
        log = self.session.writer.log
        stream = self.session.stream
        earlier = log.receipt(stream, _idempotency_key(call))
        if earlier is not None:
            return log.read(stream, after=earlier.last_seq - 1, limit=1)[0]
        if self._is_open(call):
            # Older results belong to earlier calls with the same id.
            return None
        return result_of(self.session, call.call_id)


def _idempotency_key(call: ToolCall) -> str:
    """Return the key under which the call and its result are appended."""
    return f"{call.tool_name}:{call.call_id}"
