"""Spans of model calls, in the form in which the proxy records requests and answers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

import orjson

from refold.adapters.importers import base, otlp_names as names
from refold.adapters.importers.otlp import (
    FAILED,
    MODEL_CALLS,
    Json,
    current_attributes,
    structured,
    time_of,
    usage_of,
)
from refold.adapters.importers.response import events_of
from refold.adapters.proxy.conversation import (
    NotRecordable,
    Role,
    SessionHint,
    WireAnswer,
    WireMessage,
    WireRequest,
)
from refold.adapters.proxy.protocols.answers import answer_of, failed
from refold.adapters.proxy.protocols.reading import (
    NOT_CONVERTED,
    Notes,
    UserEvents,
    body_of,
    settled,
    storable,
    without_secrets,
)
from refold.domain.events import (
    AgentError,
    AgentResponse,
    Event,
    Item,
    SystemPrompt,
    ToolResult,
    is_unreached,
)

NAME: Final = "otlp"
LAST_LINES: Final[tuple[bytes, ...]] = ()  # a span holds a whole answer
_OPTIONS: Final = "gen_ai.request."


class ModelCall(NamedTuple):
    """A span of a call of a model.

    call_id:      of trace and span: two deliveries of a span have the same.
    conversation: the program's id of the conversation, else that of the trace.
    content:      JSON of the attributes, under their current names.
    has_history:  whether its messages begin with the first one of the conversation.
                  Programs that send only new messages show it by a result whose call is
                  missing; Refold's own export is one of them.
    """

    call_id: str
    conversation: str
    content: Json
    has_history: bool
    began_at: datetime | None
    ended_at: datetime | None


def model_call(span: Json, service: str | None) -> ModelCall | None:
    """Return the model call of a span; None if the span is of something else.

    service: the name of the program that sent it.
    """
    attributes = current_attributes(span)
    if attributes.get(names.OPERATION) not in MODEL_CALLS:
        return None
    trace = base.text(span, "traceId") or ""
    conversation = base.text(attributes, names.CONVERSATION) or trace
    content: Json = {
        "attributes": attributes,
        "conversation": conversation,
        "service": service,
    }
    status = base.mapping(span, "status")
    if status.get("code") in FAILED:
        content["failed"] = base.text(status, "message") or ""
    call_id = f"{trace}:{base.text(span, 'spanId') or ''}"
    content["call_id"] = call_id
    sent = structured(attributes.get(names.INPUT))
    return ModelCall(
        call_id=call_id,
        conversation=conversation,
        content=content,
        has_history="refold.seq" not in attributes and not _has_orphan(sent),
        began_at=time_of(span, "startTimeUnixNano"),
        ended_at=time_of(span, "endTimeUnixNano"),
    )


def body_of_call(call: ModelCall, previous_response_id: str | None) -> bytes:
    """Return the body of the exchange that a model call is recorded as.

    previous_response_id: of the answer that it continues; None if it has its history.
    """
    content = {**call.content, "previous_response_id": previous_response_id}
    return orjson.dumps(storable(content))


def _has_orphan(sent: list[Any]) -> bool:
    """Whether a result in these messages answers a call that is not among them."""
    calls: set[Any] = set()
    for message in sent:
        for part in base.each(message, "parts"):
            call_id = base.text(part, "id")
            if part.get("type") == "tool_call":
                calls.add(call_id)
            elif part.get("type") == "tool_call_response" and call_id not in calls:
                return True
    return False


def matches(method: str, path: str) -> bool:
    """Whether this protocol reads a request of the proxy: never, it reads spans."""
    return not method and not path


def request(body: bytes, headers: Mapping[str, str], path: str) -> WireRequest:  # noqa: ARG001  # as all protocols
    """Return the request of a model call as events.

    body: from ``body_of_call``.

    Raises NotRecordable for a call that was traced without its messages.
    """
    notes = Notes()
    fields = body_of(body, notes)
    attributes = base.mapping(fields, "attributes")
    sent = structured(attributes.get(names.INPUT))
    if not sent:
        raise NotRecordable("the span has no messages: let the program record content")
    messages = tuple(
        _message(base.mapping(message), f"messages[{index}]", notes)
        for index, message in enumerate(sent)
    )
    system = [
        base.text(part, "content") or ""
        for part in base.each(structured(attributes.get(names.SYSTEM)))
    ]
    options = {
        name.removeprefix(_OPTIONS): value
        for name, value in attributes.items()
        if name.startswith(_OPTIONS)
    }
    hint = SessionHint(
        session_id=base.text(fields, "conversation"),
        agent=base.text(fields, "service"),
        previous_response_id=base.text(fields, "previous_response_id"),
        is_conversation=True,
    )
    return WireRequest(
        protocol=NAME,
        model=base.text(attributes, "gen_ai.request.model"),
        system="\n\n".join(filter(None, system)) or None,
        tools=_tools(structured(attributes.get(names.TOOLS))),
        messages=settled(messages, NAME, notes),
        options=without_secrets(options, "model"),
        hint=hint,
        stream=False,
        warnings=notes.warnings(),
    )


def answer(
    status: int,  # noqa: ARG001  # as all protocols
    headers: Mapping[str, str],  # noqa: ARG001  # the same
    body: bytes,
    *,
    complete: bool,
) -> WireAnswer:
    """Return the answer of a model call as events.

    body: from ``body_of_call``.
    """
    notes = Notes()
    fields = body_of(body, notes)
    attributes = base.mapping(fields, "attributes")
    model = base.text(attributes, "gen_ai.response.model")
    content: list[Any] = []
    reason: str | None = None
    for message in structured(attributes.get(names.OUTPUT)):
        content += _blocks(base.mapping(message), notes)
        reason = reason or base.text(message, "finish_reason")
    error = None
    if "failed" in fields:
        code = base.text(attributes, "error.type") or "error"
        error = AgentError(
            code=code,
            message=str(fields["failed"]),
            where=NAME,
            retryable=is_unreached(code),
        )
        if not content:
            return failed(error)
    response: Json = {
        "id": base.text(attributes, "gen_ai.response.id") or fields["call_id"],
        "model": model or base.text(attributes, "gen_ai.request.model"),
        "content": content,
        "stop_reason": reason,
    }
    usage = usage_of(attributes)
    if usage is not None:
        response["usage"] = usage
    return answer_of(response, NAME, notes, complete=complete, error=error)


def _message(message: Json, place: str, notes: Notes) -> WireMessage:
    """Return a message of a request as events."""
    role = base.text(message, "role")
    if role == "assistant":
        return WireMessage("assistant", _repeated_answer(message, notes))
    user_events = UserEvents()
    for part in base.each(message, "parts"):
        text = base.text(part, "content")
        call_id = base.text(part, "id")
        kind = part.get("type")
        if kind == "tool_call_response" and call_id:
            result = part.get("response", part.get("result"))
            content = "" if result is None else result
            user_events.event(ToolResult(call_id=call_id, content=content))
        elif kind == "text" and role in ("system", "developer"):
            prompt = SystemPrompt(text=text or "", where="conversation")
            user_events.event(prompt)
        elif kind == "text":
            user_events.text(text or "")
        else:
            notes.add(NOT_CONVERTED, f"{place}: part {kind}")
            user_events.event(Item(format=NAME, kind=str(kind), value=part))
    wire_role: Role = "system" if role in ("system", "developer") else "user"
    return WireMessage(wire_role, user_events.events())


def _repeated_answer(message: Json, notes: Notes) -> tuple[Event, ...]:
    """Return the events of an answer that a request repeats."""
    events = events_of({"content": _blocks(message, notes)})
    return tuple(
        event
        for event in events
        if not isinstance(event, AgentResponse) or event.text or event.thinking
    )


def _blocks(message: Json, notes: Notes) -> list[Any]:
    """Return the parts of an answer as blocks of the Messages API."""
    blocks: list[Json] = []
    for part in base.each(message, "parts"):
        kind = part.get("type")
        text = base.text(part, "content") or ""
        if kind == "text":
            blocks.append({"type": "text", "text": text})
        elif kind == "reasoning":
            blocks.append({"type": "thinking", "thinking": text})
        elif kind == "tool_call" and base.text(part, "id") and base.text(part, "name"):
            arguments = part.get("arguments")
            block = {
                "type": "tool_use",
                "id": part["id"],
                "name": part["name"],
                "input": {} if arguments is None else arguments,
            }
            blocks.append(block)
        else:
            notes.add(NOT_CONVERTED, f"answer: part {kind}")
    return blocks


def _tools(definitions: list[Any]) -> tuple[Json, ...]:
    """Return definitions of tools in the form of the Messages API."""
    tools: list[Json] = []
    for definition in map(base.mapping, definitions):
        if definition.get("type") != "function" or not base.text(definition, "name"):
            tools.append(storable(definition))
            continue
        tool: Json = {"name": definition["name"]}
        if base.text(definition, "description"):
            tool["description"] = definition["description"]
        schema = base.mapping(definition, "parameters")
        tool["input_schema"] = storable(schema) or {"type": "object"}
        tools.append(tool)
    return tuple(tools)
