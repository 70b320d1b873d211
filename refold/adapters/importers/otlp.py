"""OpenTelemetry's GenAI spans in JSON: export and import, with a trace for each turn.

The names are those of the semantic conventions for generative AI systems, which are
still in development.  Events without such a name become events of the turn's span,
called ``refold.…``; an import of Refold's own export restores them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from hashlib import sha256
from typing import Any, Final, NamedTuple, TypeAlias

from refold.adapters.importers import base, messages, otlp_names
from refold.domain import events
from refold.domain.canonical import canonical
from refold.domain.envelope import Envelope, from_microseconds, microseconds
from refold.projections.models import Usage

NAME = "otlp"
Json: TypeAlias = dict[str, Any]
_OPERATION: Final = otlp_names.OPERATION
_CHAT: Final = "chat"
_TOOL: Final = "execute_tool"
_TURN: Final = "invoke_agent"
MODEL_CALLS: Final = frozenset(
    {_CHAT, "generate_content", "text_completion", "completion"}
)
_INPUT_MESSAGES: Final = otlp_names.INPUT
_OUTPUT_MESSAGES: Final = otlp_names.OUTPUT
_WITHOUT_CONTENT: Final = (
    "call of a model without its messages: the trace was recorded without content"
)
_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
_CACHE_READ: Final = "gen_ai.usage.cache_read.input_tokens"
_CACHE_WRITTEN: Final = "gen_ai.usage.cache_creation.input_tokens"
# The provider, by a part of the model's name.
_PROVIDERS: Final = {"claude": "anthropic", "gpt": "openai", "gemini": "gcp.gemini"}
# The values of a failed span's status code.
FAILED: Final = (2, "STATUS_CODE_ERROR")


def traces(
    envelopes: Iterable[Envelope], session_id: str, *, content: bool
) -> Iterator[Json]:
    """Yield the turns of a session, each as a trace: a request to ``/v1/traces``.

    Ids of spans derive from ids of events, so sending twice gives one trace.

    content: whether texts, arguments, and results are included.
    """
    turn: list[Envelope] = []
    open_calls: set[str] = set()
    is_answered = False
    for envelope in envelopes:
        match envelope.payload:
            case events.UserInput() if is_answered and not open_calls:
                yield _Turn(turn, session_id, content=content).request()
                turn = []
                is_answered = False
            case events.ToolCall(call_id=call_id):
                open_calls.add(call_id)
                is_answered = True
            case events.ToolResult(call_id=call_id):
                open_calls.discard(call_id)
            case events.AgentResponse():
                is_answered = True
        turn.append(envelope)
    if turn:
        yield _Turn(turn, session_id, content=content).request()


class _Turn:
    """The spans of one turn."""

    def __init__(self, turn: list[Envelope], session: str, *, content: bool) -> None:
        first = turn[0]
        self._content = content
        self._session = session
        self._trace = _id(first, "trace", 16)
        agents = [envelope.agent for envelope in turn if envelope.agent]
        self._agent = agents[0] if agents else None
        self._spans: list[Json] = []
        # The span of the turn, which is the parent of all others.
        self._root = self._span(_TURN, first, first.ts, turn[-1].ts, self._agent)
        # The time of the last event; the next call of the model began after it.
        self._last_at = first.ts
        # The input messages and system texts of the next request.
        self._input: list[Json] = []
        self._system: list[Json] = []
        self._calls: dict[str, Envelope] = {}
        # The events of the response that is being read.
        self._response: list[Envelope] = []
        # Inputs and prompts that no request has sent yet.
        self._unsent: list[Envelope] = []
        for envelope in turn:
            self._add(envelope)
        self._end_response()
        for envelope in self._unsent:
            self._note(envelope)

    def request(self) -> Json:
        """Return the turn as a request to ``/v1/traces``."""
        scope = {"scope": {"name": "refold"}, "spans": self._spans}
        resource = {"attributes": _attributes({"service.name": "refold"})}
        return {"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}

    def _add(self, envelope: Envelope) -> None:
        """Add the next event to the spans of the turn."""
        event = envelope.payload
        if isinstance(event, events.AgentResponse | events.ToolCall):
            first = self._response[0] if self._response else envelope
            if first.meta.response_id != envelope.meta.response_id:
                self._end_response()
            self._response.append(envelope)
            if isinstance(event, events.ToolCall):
                self._calls[event.call_id] = envelope
            return
        self._end_response()
        match event:
            case events.UserInput():
                self._input.append(_message("user", _text(event.text)))
                self._unsent.append(envelope)
            case events.SystemPrompt(where="conversation", text=str(text)):
                self._input.append(_message("system", _text(text)))
                self._unsent.append(envelope)
            case events.SystemPrompt():
                self._note_replaced_prompt()
                self._system.append(_text(event.text or ""))
                self._unsent.append(envelope)
            case events.ToolResult():
                self._add_result(event, envelope)
            case _:
                self._note(envelope)
        self._last_at = envelope.ts

    def _note_replaced_prompt(self) -> None:
        """Note a system prompt that another one replaced before a request sent it."""
        for envelope in self._unsent:
            event = envelope.payload
            if isinstance(event, events.SystemPrompt) and event.where is None:
                self._note(envelope)
                self._unsent.remove(envelope)
                self._system = []
                return

    def _note(self, envelope: Envelope) -> None:
        """Add an event of the turn's span, for an event that no span shows."""
        attributes: Json = {"refold.seq": envelope.seq}
        if self._content:
            attributes["refold.event"] = _json(envelope.payload.payload())
        event = {
            "name": f"refold.{envelope.type}",
            "timeUnixNano": _nanoseconds(envelope.ts),
            "attributes": _attributes(attributes),
        }
        self._root.setdefault("events", []).append(event)

    def _end_response(self) -> None:
        """Add the span of the response whose events were read, if any."""
        if not self._response:
            return
        envelopes = self._response
        first = envelopes[0]
        last = envelopes[-1]
        self._response = []
        parts: list[Json] = []
        reason = ""
        usage = Usage()
        has_usage = False
        for envelope in envelopes:
            event = envelope.payload
            parts += _parts(event)
            reason = reason or getattr(event, "stop_reason", None) or ""
            recorded = getattr(event, "usage", None) or envelope.meta.usage
            if recorded and not has_usage:
                usage = Usage.of(recorded) or Usage()
                has_usage = True
        if not reason:
            has_calls = any(part["type"] == "tool_call" for part in parts)
            reason = "tool_call" if has_calls else "stop"
        model = first.meta.model
        input_tokens = usage.input + usage.read + usage.written
        attributes: Json = {
            "gen_ai.provider.name": _provider(model),
            "gen_ai.request.model": model,
            "gen_ai.response.model": model,
            "gen_ai.response.id": first.meta.response_id,
            "gen_ai.response.finish_reasons": [reason],
            _INPUT_TOKENS: input_tokens or None,
            _OUTPUT_TOKENS: usage.output or None,
            _CACHE_READ: usage.read or None,
            _CACHE_WRITTEN: usage.written or None,
        }
        if self._content:
            answer = {**_message("assistant", *parts), "finish_reason": reason}
            attributes[_INPUT_MESSAGES] = _json(self._input)
            attributes[_OUTPUT_MESSAGES] = _json([answer])
            if self._system:
                attributes["gen_ai.system_instructions"] = _json(self._system)
        self._input = []
        self._system = []
        self._unsent = []
        self._span(_CHAT, first, self._last_at, last.ts, model, attributes, kind=3)
        self._last_at = last.ts

    def _add_result(self, result: events.ToolResult, envelope: Envelope) -> None:
        """Add the span of a tool call, and its result to the next request's input."""
        part = {
            "type": "tool_call_response",
            "id": result.call_id,
            "response": result.content,
        }
        self._input.append(_message("tool", part))
        failed = result.status != "ok"
        attributes: Json = {
            "gen_ai.tool.name": result.tool_name,
            "gen_ai.tool.call.id": result.call_id,
            "error.type": result.status if failed else None,
        }
        call = self._calls.get(result.call_id)
        if self._content:
            attributes["gen_ai.tool.call.result"] = _json(result.content)
            if call is not None and isinstance(call.payload, events.ToolCall):
                arguments = _json(call.payload.arguments)
                attributes["gen_ai.tool.call.arguments"] = arguments
        began = envelope.ts if call is None else call.ts
        span = self._span(
            _TOOL, envelope, began, envelope.ts, result.tool_name, attributes
        )
        if failed:
            span["status"] = {"code": 2, "message": result.status}

    def _span(
        self,
        operation: str,
        envelope: Envelope,
        began_at: datetime,
        ended_at: datetime,
        target: str | None,
        attributes: Json | None = None,
        *,
        kind: int = 1,
    ) -> Json:
        """Add a span and return it.

        envelope: the event that names the span.
        target:   the agent, model, or tool of the operation.
        """
        all_attributes: Json = {
            _OPERATION: operation,
            otlp_names.CONVERSATION: self._session,
            "gen_ai.agent.name": self._agent,
            "refold.seq": envelope.seq,
            **(attributes or {}),
        }
        span: Json = {
            "traceId": self._trace,
            "spanId": _id(envelope, operation, 8),
            "name": f"{operation} {target}" if target else operation,
            "kind": kind,
            "startTimeUnixNano": _nanoseconds(min(began_at, ended_at)),
            "endTimeUnixNano": _nanoseconds(ended_at),
            "attributes": _attributes(all_attributes),
        }
        if self._spans:
            span["parentSpanId"] = self._spans[0]["spanId"]
        self._spans.append(span)
        return span


def _id(envelope: Envelope, role: str, size: int) -> str:
    """Return the id of a span or trace: ``size`` bytes that derive from an event."""
    name = f"{envelope.event_id} {envelope.seq} {role}"
    return sha256(name.encode()).digest()[:size].hex()


def _provider(model: str | None) -> str | None:
    """Return the provider of a model; None if the name does not show it."""
    for part, provider in _PROVIDERS.items():
        if part in (model or ""):
            return provider
    return None


def _nanoseconds(at: datetime) -> str:
    return f"{microseconds(at)}000"


def _json(value: Any) -> str:
    return canonical(value).decode()


def _text(text: str, kind: str = "text") -> Json:
    return {"type": kind, "content": text}


def _message(role: str, *parts: Json) -> Json:
    return {"role": role, "parts": [*parts]}


def _parts(event: Any) -> list[Json]:
    """The parts of an output message: a call, or thinking and a text."""
    if isinstance(event, events.ToolCall):
        call = {
            "type": "tool_call",
            "id": event.call_id,
            "name": event.tool_name,
            "arguments": event.arguments,
        }
        return [call]
    parts = [
        _text(block.thinking, "reasoning") for block in event.thinking if block.thinking
    ]
    if event.text:
        parts.append(_text(event.text))
    return parts


def _attributes(values: Json) -> list[Json]:
    """The attributes of a span in OTLP; those that are None are left out."""
    return [
        {"key": key, "value": _otlp_value(value)}
        for key, value in values.items()
        if value is not None
    ]


def _otlp_value(value: Any) -> Json:
    if isinstance(value, list):
        return {"arrayValue": {"values": [*map(_otlp_value, value)]}}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"stringValue": str(value)}


class _Span(NamedTuple):
    """A span of a conversation, or an event of a span.

    order: its seq in an export of Refold, else 0; its beginning and its end, in
           nanoseconds since 1970.
    """

    order: tuple[int, int, int]
    trace: str
    span: Json
    attributes: Json

    def at(self, *, end: bool) -> datetime | None:
        """The time when it began or ended, if a date can hold it."""
        moment = self.order[2 if end else 1] // 1000
        return from_microseconds(moment) if 0 < moment < 1 << 53 else None


def recognises(source: base.Source) -> bool:
    """Whether the first line, or the document, has spans."""
    line = next(source.lines(), None)
    return line is not None and "resourceSpans" in base.mapping(line.value)


def read(source: base.Source) -> Iterator[base.Transcript]:
    """Yield a transcript for each conversation, or for each trace without one."""
    conversations: dict[str, list[_Span]] = {}
    for line in source.lines():
        for span in _spans(line.value):
            trace = str(span.get("traceId"))
            attributes = current_attributes(span)
            name = base.text(attributes, otlp_names.CONVERSATION) or trace
            spans = conversations.setdefault(name, [])
            spans.append(_Span(_order(span), trace, span, attributes))
            for event in base.each(span, "events"):
                spans.append(_Span(_order(event), trace, event, attributes_of(event)))
    for name, spans in conversations.items():
        reading = _Conversation(base.Recording(NAME, source.name))
        for part_of_trace in sorted(spans, key=lambda part: part.order):
            reading.add(part_of_trace)
        reading.end()
        yield reading.recording.transcript(base.session_name(name))


class _Conversation:
    """Reads the spans of one conversation in their order."""

    def __init__(self, recording: base.Recording) -> None:
        self.recording = recording
        # The messages of the newest request, and its answer.
        self._messages: list[Any] = []
        # The spans of the calls whose results were not recorded yet.
        self._tool_spans: dict[str, _Span] = {}
        self._system: Any = None
        # Edits of the history that name events which come later.
        self._edits: list[tuple[base.Piece, _Span]] = []

    def add(self, span: _Span) -> None:
        """Read the next span."""
        if any(span.trace != other.trace for other in self._tool_spans.values()):
            self.finish()
        attributes = span.attributes
        operation = str(attributes.get(_OPERATION))
        if operation in MODEL_CALLS:
            self._add_model_call(span)
            return
        call_id = base.text(attributes, "gen_ai.tool.call.id")
        if operation == _TOOL and call_id:
            self._tool_spans[call_id] = span
            if "refold.seq" in attributes:
                # In an export of Refold, the result belongs exactly here.
                self.finish()
            return
        event, _ = base.parsed(attributes.get("refold.event") or "")
        fields = base.mapping(event)
        if fields:
            event_type = str(span.span.get("name")).removeprefix("refold.")
            self._add_event(event_type, fields, span)

    def _add_event(self, event_type: str, fields: Json, span: _Span) -> None:
        """Take an event that an export of Refold recorded whole."""
        if event_type == "request":
            # Its digest is of seqs and summaries that an export does not have.
            fields = {"format": NAME, "kind": event_type, "value": fields}
            event_type = "item"
        piece = base.Piece(event_type, fields)
        if event_type == "provider_edit":
            self._edits.append((piece, span))
            self._take_edits()
        else:
            self._take([piece], span)

    def _take_edits(self, *, all_of_them: bool = False) -> None:
        """Take the edits of the history whose events were read.

        An input comes with the request that sent it, after an edit that names it.
        """
        while self._edits:
            piece, span = self._edits[0]
            newest = _newest_seq(piece.fields)
            if newest > self.recording.event_count and not all_of_them:
                return
            self._edits.pop(0)
            self._take([piece], span)

    def end(self) -> None:
        """Take everything that still waits at the end of the file."""
        self.finish()
        self._take_edits(all_of_them=True)

    def finish(self) -> None:
        """Take the results that no request sent, from the spans of their calls."""
        for call_id, span in [*self._tool_spans.items()]:
            result = span.attributes.get("gen_ai.tool.call.result")
            value = result
            if isinstance(result, str):
                value, _ = base.parsed(result)
            is_own = "refold.seq" in span.attributes
            if not is_own and not isinstance(value, dict | list):
                value = result
            self._take_result(call_id, value, span)

    def _add_model_call(self, span: _Span) -> None:
        """Take the new messages of a request, then its answer."""
        attributes = span.attributes
        if _INPUT_MESSAGES not in attributes and _OUTPUT_MESSAGES not in attributes:
            self.recording.skip(_WITHOUT_CONTENT, _place(span))
        system = structured(attributes.get("gen_ai.system_instructions"))
        if system and system != self._system:
            self._system = system
            texts = [str(base.at(part, "content") or "") for part in system]
            self._take([messages.system("\n\n".join(texts))], span)
        sent = structured(attributes.get(_INPUT_MESSAGES))
        for message in sent[self._count_repeated(sent) :]:
            for part in base.each(message, "parts"):
                self._take_part(base.at(message, "role"), part, span)
        self._take_edits()
        self._messages = list(sent)
        for value in structured(attributes.get(_OUTPUT_MESSAGES)):
            answer = base.mapping(value)
            self._take(_answer_pieces(answer), span, is_answer=True)
            # The next request repeats the answer with these fields.
            fields = {key: answer[key] for key in ("role", "parts") if key in answer}
            self._messages.append(fields)

    def _count_repeated(self, sent: list[Any]) -> int:
        """Return how many of these messages repeat the last request and its answer.

        A client sends all messages again, or only the new ones.
        """
        count = 0
        for message, earlier in zip(sent, self._messages, strict=False):
            if message != earlier:
                break
            count += 1
        return count

    def _take_part(self, role: Any, part: Json, span: _Span) -> None:
        """Take a part of an input message."""
        kind = part.get("type")
        call_id = base.text(part, "id")
        content = part.get("content")
        if kind == "tool_call_response" and call_id:
            result = part.get("response", part.get("result"))
            self._take_result(call_id, result, self._tool_spans.get(call_id, span))
        elif kind == "text" and role == "system":
            message = messages.system_message(content)
            if "refold.seq" in span.attributes and isinstance(message, base.Piece):
                message.fields["where"] = "conversation"
            self._take([message], span)
        elif role == "user":
            text = content if kind == "text" else _json(part)
            self._take([messages.user_input([str(text)])], span)

    def _take_result(self, call_id: str, content: Any, span: _Span) -> None:
        """Record the result of a call, unless it is recorded already.

        span: of the call, or without one of the request that sent the result.
        """
        if not self.recording.waits(call_id):
            return
        failed = base.at(span.span, "status", "code") in FAILED
        duration_ms: float | None = None
        if call_id in self._tool_spans:
            _, began_ns, ended_ns = span.order
            duration_ms = (ended_ns - began_ns) / 1e6
            del self._tool_spans[call_id]
        piece = messages.tool_result(call_id, content, failed=failed, took=duration_ms)
        self._take([piece], span, at_end=duration_ms is not None)

    def _take(
        self,
        pieces: Iterable[base.PieceOrSkipped],
        span: _Span,
        *,
        is_answer: bool = False,
        at_end: bool = False,
    ) -> None:
        """Record pieces of a span.

        is_answer: whether they are the model's response, which came at the span's end.
        at_end:    whether they came at the end of the span for another reason.
        """
        attributes = span.attributes
        origin = base.Origin(
            _place(span),
            ts=span.at(end=is_answer or at_end),
            agent=base.text(attributes, "gen_ai.agent.name"),
            source={"trace": span.trace},
        )
        if is_answer:
            model = attributes.get("gen_ai.response.model")
            model = model or attributes.get("gen_ai.request.model")
            origin = base.Origin(
                origin.place,
                ts=origin.ts,
                agent=origin.agent,
                model=base.text(model),
                response_id=base.text(attributes, "gen_ai.response.id"),
                usage=usage_of(attributes),
                source=origin.source,
            )
        self.recording.take(pieces, origin)


def _newest_seq(edit: Json) -> int:
    """Return the newest seq that an edit of the history names; 0 if it names none."""
    newest = 0
    for name in ("left_out", "restored", "cleared", "in_place"):
        for span in base.sequence(edit, name):
            for seq in base.sequence(span):
                newest = max(newest, int(base.number(seq) or 0))
    return newest


def _place(span: _Span) -> str:
    """Return the place of a span, for reports."""
    return f"span {span.span.get('spanId', '')}".strip()


def _spans(request: Any) -> Iterator[Json]:
    """Yield all spans of a request."""
    for resource in base.each(request, "resourceSpans"):
        for scope in base.each(resource, "scopeSpans"):
            yield from base.each(scope, "spans")


def current_attributes(span: Json) -> Json:
    """Return the attributes of a span under their current names."""
    events_of_span = [
        (str(event.get("name")), attributes_of(event))
        for event in base.each(span, "events")
    ]
    return otlp_names.current(attributes_of(span), events_of_span)


def attributes_of(span: Json) -> Json:
    """Return the attributes of a span, an event, or a resource as a plain object."""
    attributes = base.each(span, "attributes")
    return {str(entry.get("key")): _value(entry.get("value")) for entry in attributes}


def _value(otlp_value: Any) -> Any:
    """Return a value of OTLP, such as ``{"intValue": "1"}``, as ordinary JSON."""
    for kind, value in base.mapping(otlp_value).items():
        match kind:
            case "intValue":
                return _whole(value)
            case "arrayValue":
                return [*map(_value, base.sequence(value, "values"))]
            case "kvlistValue":
                return attributes_of({"attributes": base.at(value, "values")})
        return value
    return None


def time_of(span: Json, name: str) -> datetime | None:
    """Return the time in a field with nanoseconds since 1970; None without one."""
    moment = _whole(span.get(name)) // 1000
    return from_microseconds(moment) if 0 < moment < 1 << 53 else None


def _order(span: Json) -> tuple[int, int, int]:
    """The order of a span: by seq in an export of Refold, else by the clock."""
    seq = attributes_of(span).get("refold.seq")
    began_ns = _whole(span.get("startTimeUnixNano", span.get("timeUnixNano")))
    ended_ns = _whole(span.get("endTimeUnixNano")) or began_ns
    return seq if isinstance(seq, int) else 0, began_ns, ended_ns


def _whole(value: Any) -> int:
    """A whole number, or one in a text; 0 for anything else and above 64 bits."""
    digits = str(value)
    is_number = digits.isascii() and digits.removeprefix("-").isdigit()
    return int(digits) if is_number and len(digits) < 20 else 0


def structured(value: Any) -> list[Any]:
    """The array in an attribute, which may be JSON in a text."""
    if isinstance(value, str):
        value, _ = base.parsed(value)
    return base.sequence(value)


def _answer_pieces(message: Json) -> Iterator[base.PieceOrSkipped]:
    """Yield the response of an output message, then its calls."""
    texts: list[str] = []
    thinking: list[Json] = []
    calls: list[Json] = []
    for part in base.each(message, "parts"):
        match part.get("type"):
            case "text":
                texts.append(str(part.get("content") or ""))
            case "reasoning":
                thinking.append({"type": "thinking", "thinking": part.get("content")})
            case "tool_call":
                calls.append(part)
    reason = base.text(message, "finish_reason")
    yield from messages.response(texts, thinking, stop_reason=reason)
    for call in calls:
        yield messages.tool_call(
            call.get("id"), call.get("name"), call.get("arguments")
        )


def usage_of(attributes: Json) -> Json | None:
    """The usage of a model call in the fields of the Messages API."""
    input_tokens = base.number(attributes, _INPUT_TOKENS)
    output_tokens = base.number(attributes, _OUTPUT_TOKENS)
    if input_tokens is None and output_tokens is None:
        return None
    cached = int(base.number(attributes, _CACHE_READ) or 0)
    written = int(base.number(attributes, _CACHE_WRITTEN) or 0)
    return {
        "input_tokens": max(int(input_tokens or 0) - cached - written, 0),
        "output_tokens": int(output_tokens or 0),
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": written,
    }
