"""OpenTelemetry's GenAI spans, out and in: a trace a turn, as OTLP has them in JSON.

The names are those of the semantic conventions for generative AI systems, which are
still in development.  What they have no name for are events of the turn's span, called
``refold.…``: an import of one's own export has them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from hashlib import sha256
from itertools import takewhile
from typing import Any, Final, NamedTuple, TypeAlias

from refold.adapters.importers import base, messages
from refold.domain import events
from refold.domain.canonical import canonical
from refold.domain.envelope import Envelope, from_microseconds, microseconds
from refold.projections.models import Usage

NAME = "otlp"
Json: TypeAlias = dict[str, Any]
_OPERATION: Final = "gen_ai.operation.name"
_CHAT, _TOOL, _TURN = "chat", "execute_tool", "invoke_agent"
_ASKS: Final = frozenset({_CHAT, "generate_content", "text_completion"})
_GIVEN, _SAID = "gen_ai.input.messages", "gen_ai.output.messages"
_WITHOUT_CONTENT: Final = (
    "call of a model without its messages: the trace was recorded without content"
)
_COUNTED: Final = ("input", "output")
_READ: Final = "gen_ai.usage.cache_read.input_tokens"
_WRITTEN: Final = "gen_ai.usage.cache_creation.input_tokens"
_PROVIDERS: Final = {"claude": "anthropic", "gpt": "openai", "gemini": "gcp.gemini"}
_FAILED: Final = (2, "STATUS_CODE_ERROR")


def traces(
    envelopes: Iterable[Envelope], session_id: str, *, content: bool
) -> Iterator[Json]:
    """The turns of a session, each a trace, as one request to ``/v1/traces``.

    Ids are made of the events': a trace that is sent again is the same one.

    content: whether texts, arguments and results are in it, or only what was done.
    """
    turn, waiting, answered = list[Envelope](), set[str](), False
    for one in envelopes:
        match one.payload:
            case events.UserInput() if answered and not waiting:
                yield _Turn(turn, session_id, content=content).request()
                turn, answered = [], False
            case events.ToolCall(call_id=call_id):
                waiting.add(call_id)
                answered = True
            case events.ToolResult(call_id=call_id):
                waiting.discard(call_id)
            case events.AgentResponse():
                answered = True
        turn.append(one)
    if turn:
        yield _Turn(turn, session_id, content=content).request()


class _Turn:
    """The spans of a turn."""

    def __init__(self, turn: list[Envelope], session: str, *, content: bool) -> None:
        self._content, self._session = content, session
        self._trace = _id(turn[0], "trace", 16)
        self._agent = next((one.agent for one in turn if one.agent), None)
        self._spans = list[Json]()
        root = self._span(_TURN, turn[0], turn[0].ts, turn[-1].ts, self._agent)
        self._root, self._before = root, turn[0].ts
        self._given, self._system = list[Json](), list[Json]()
        self._calls = dict[str, Envelope]()
        self._answer = list[Envelope]()
        self._unsent = list[Envelope]()
        for one in turn:
            self._add(one)
        self._asked()
        for one in self._unsent:
            self._note(one)

    def request(self) -> Json:
        about = {"service.name": "refold"}
        scope = {"scope": {"name": "refold"}, "spans": self._spans}
        resource = {"attributes": _attributes(about)}
        return {"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}

    def _add(self, one: Envelope) -> None:
        event = one.payload
        if isinstance(event, events.AgentResponse | events.ToolCall):
            of = self._answer[0] if self._answer else one
            if of.meta.response_id != one.meta.response_id:
                self._asked()
            self._answer.append(one)
            if isinstance(event, events.ToolCall):
                self._calls[event.call_id] = one
            return
        self._asked()
        match event:
            case events.UserInput():
                self._given.append(_message("user", _text(event.text)))
                self._unsent.append(one)
            case events.SystemPrompt(where="conversation", text=str(text)):
                self._given.append(_message("system", _text(text)))
                self._unsent.append(one)
            case events.SystemPrompt():
                self._replaced_prompt()
                self._system.append(_text(event.text or ""))
                self._unsent.append(one)
            case events.ToolResult():
                self._returned(event, one)
            case _:
                self._note(one)
        self._before = one.ts

    def _replaced_prompt(self) -> None:
        """A system prompt that another one replaced before a request was not sent."""
        for one in self._unsent:
            event = one.payload
            if isinstance(event, events.SystemPrompt) and event.where is None:
                self._note(one)
                self._unsent.remove(one)
                self._system = []
                return

    def _note(self, one: Envelope) -> None:
        """What has no name, and what no request sent, is an event of the turn."""
        told: Json = {"refold.seq": one.seq}
        if self._content:
            told["refold.event"] = _json(one.payload.payload())
        event = {"name": f"refold.{one.type}", "timeUnixNano": _nanoseconds(one.ts)}
        noted = self._root.setdefault("events", [])
        noted.append({**event, "attributes": _attributes(told)})

    def _asked(self) -> None:
        """The span of the response whose events have come."""
        if not self._answer:
            return
        first, *_ = group = self._answer
        self._answer = []
        said = [one.payload for one in group]
        parts = [part for event in said for part in _parts(event)]
        called = any(part["type"] == "tool_call" for part in parts)
        reasons = [getattr(event, "stop_reason", None) for event in said]
        reason = next(filter(None, reasons), "tool_call" if called else "stop")
        told = (getattr(one.payload, "usage", None) or one.meta.usage for one in group)
        usage = Usage.of(next(filter(None, told), None)) or Usage()
        read, written = usage.read, usage.written
        model = first.meta.model
        found = (who for name, who in _PROVIDERS.items() if name in (model or ""))
        more: Json = {
            "gen_ai.provider.name": next(found, None),
            "gen_ai.request.model": model,
            "gen_ai.response.model": model,
            "gen_ai.response.id": first.meta.response_id,
            "gen_ai.response.finish_reasons": [reason],
            "gen_ai.usage.input_tokens": usage.input + read + written or None,
            "gen_ai.usage.output_tokens": usage.output or None,
            _READ: read or None,
            _WRITTEN: written or None,
        }
        answer = {**_message("assistant", *parts), "finish_reason": reason}
        if self._content:
            more |= {_GIVEN: _json(self._given), _SAID: _json([answer])}
            if self._system:
                more["gen_ai.system_instructions"] = _json(self._system)
        self._given, self._system, self._unsent = [], [], []
        self._span(_CHAT, first, self._before, group[-1].ts, model, more, kind=3)
        self._before = group[-1].ts

    def _returned(self, result: events.ToolResult, one: Envelope) -> None:
        call = self._calls.get(result.call_id)
        part = {"type": "tool_call_response", "id": result.call_id}
        self._given.append(_message("tool", {**part, "response": result.content}))
        failed = result.status != "ok"
        more: Json = {
            "gen_ai.tool.name": result.tool_name,
            "gen_ai.tool.call.id": result.call_id,
            "error.type": result.status if failed else None,
        }
        if self._content:
            more["gen_ai.tool.call.result"] = _json(result.content)
            if call is not None and isinstance(call.payload, events.ToolCall):
                more["gen_ai.tool.call.arguments"] = _json(call.payload.arguments)
        begun = one.ts if call is None else call.ts
        span = self._span(_TOOL, one, begun, one.ts, result.tool_name, more)
        if failed:
            span["status"] = {"code": 2, "message": result.status}

    def _span(
        self,
        operation: str,
        one: Envelope,
        begun: datetime,
        ended: datetime,
        of: str | None,
        more: Json | None = None,
        *,
        kind: int = 1,
    ) -> Json:
        about: Json = {_OPERATION: operation}
        about["gen_ai.conversation.id"] = self._session
        about |= {"gen_ai.agent.name": self._agent, "refold.seq": one.seq}
        span: Json = {
            "traceId": self._trace,
            "spanId": _id(one, operation, 8),
            "name": f"{operation} {of}" if of else operation,
            "kind": kind,
            "startTimeUnixNano": _nanoseconds(min(begun, ended)),
            "endTimeUnixNano": _nanoseconds(ended),
            "attributes": _attributes({**about, **(more or {})}),
        }
        if self._spans:
            span["parentSpanId"] = self._spans[0]["spanId"]
        self._spans.append(span)
        return span


def _id(one: Envelope, what: str, size: int) -> str:
    named = f"{one.event_id} {one.seq} {what}".encode()
    return sha256(named).digest()[:size].hex()


def _nanoseconds(at: datetime) -> str:
    return f"{microseconds(at)}000"


def _json(value: Any) -> str:
    return canonical(value).decode()


def _text(text: str, kind: str = "text") -> Json:
    return {"type": kind, "content": text}


def _message(role: str, *parts: Json) -> Json:
    return {"role": role, "parts": [*parts]}


def _parts(event: Any) -> list[Json]:
    if isinstance(event, events.ToolCall):
        call = {"type": "tool_call", "id": event.call_id, "name": event.tool_name}
        return [{**call, "arguments": event.arguments}]
    thoughts = [one.thinking for one in event.thinking if one.thinking]
    said = [_text(event.text)] if event.text else []
    return [*(_text(thought, "reasoning") for thought in thoughts), *said]


def _attributes(values: Json) -> list[Json]:
    known = ((key, value) for key, value in values.items() if value is not None)
    return [{"key": key, "value": _valued(value)} for key, value in known]


def _valued(value: Any) -> Json:
    if isinstance(value, list):
        return {"arrayValue": {"values": [*map(_valued, value)]}}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"stringValue": str(value)}


class _Span(NamedTuple):
    """A span, or an event of one, of a conversation."""

    order: tuple[int, int, int]
    trace: str
    span: Json
    about: Json

    def at(self, *, end: bool) -> datetime | None:
        """When it began, or ended."""
        when = self.order[2 if end else 1] // 1000
        return from_microseconds(when) if 0 < when < 1 << 53 else None


def recognises(source: base.Source) -> bool:
    """Whether the first line, or the document, has spans."""
    line = next(source.lines(), None)
    return line is not None and "resourceSpans" in base.mapping(line.value)


def read(source: base.Source) -> Iterator[base.Transcript]:
    """Each conversation, or trace without one, as a transcript."""
    found: dict[str, list[_Span]] = {}
    for line in source.lines():
        for span in _spans(line.value):
            trace, about = str(span.get("traceId")), _about(span)
            name = base.text(about, "gen_ai.conversation.id") or trace
            for part in (span, *base.each(span, "events")):
                some = _Span(_order(part), trace, part, _about(part))
                found.setdefault(name, []).append(some)
    for name, spans in found.items():
        reading = _Conversation(base.Recording(NAME, source.name))
        for one in sorted(spans, key=lambda one: one.order):
            reading.add(one)
        reading.end()
        yield reading.recording.transcript(base.session_name(name))


class _Conversation:
    def __init__(self, recording: base.Recording) -> None:
        self.recording = recording
        self._told: list[Any] = []  # of the newest request, and its answer
        self._ran: dict[str, _Span] = {}  # of calls whose result is not told yet
        self._system: Any = None
        self._edits: list[tuple[base.Piece, _Span]] = []  # of events that come later

    def add(self, one: _Span) -> None:
        if any(one.trace != ran.trace for ran in self._ran.values()):
            self.finish()
        operation, about = str(one.about.get(_OPERATION)), one.about
        own = str(one.span.get("name")).removeprefix("refold.")
        if operation in _ASKS:
            self._asked(one)
        elif operation == _TOOL and (called := base.text(about, "gen_ai.tool.call.id")):
            self._ran[called] = one
            if "refold.seq" in about:
                self.finish()  # where it was, and as it was
        elif fields := base.mapping(base.parsed(about.get("refold.event") or "")[0]):
            if own == "request":
                # Its digest is of seqs and summaries that an export does not have.
                fields = {"format": NAME, "kind": own, "value": fields}
                own = "item"
            piece = base.Piece(own, fields)
            if own == "provider_edit":
                self._edits.append((piece, one))
                self._take_edits()
            else:
                self._take([piece], one)

    def _take_edits(self, *, all_of_them: bool = False) -> None:
        """Take the edits of the history whose events have come.

        An input comes with the request that sent it, after an edit that names it.
        """
        while self._edits:
            piece, one = self._edits[0]
            newest = _newest_seq(piece.fields)
            if newest > self.recording.event_count and not all_of_them:
                return
            self._edits.pop(0)
            self._take([piece], one)

    def end(self) -> None:
        """Take what still waits at the end of the file."""
        self.finish()
        self._take_edits(all_of_them=True)

    def finish(self) -> None:
        """Take the results that no request told, as the spans of their calls do."""
        for called, one in [*self._ran.items()]:
            told = one.about.get("gen_ai.tool.call.result")
            value = base.parsed(told)[0] if isinstance(told, str) else told
            plain = "refold.seq" not in one.about and not isinstance(value, dict | list)
            self._returned(called, told if plain else value, one)

    def _asked(self, one: _Span) -> None:
        about = one.about
        if _GIVEN not in about and _SAID not in about:
            self.recording.skip(_WITHOUT_CONTENT, _place(one))
        system = _structured(about.get("gen_ai.system_instructions"))
        if system and system != self._system:
            self._system = system
            words = [str(base.at(part, "content") or "") for part in system]
            self._take([messages.system("\n\n".join(words))], one)
        given = _structured(about.get(_GIVEN))
        # A request tells all again, or only what is new.
        pairs = zip(given, self._told, strict=False)
        same = len([*takewhile(lambda pair: pair[0] == pair[1], pairs)])
        for message in map(base.mapping, given[same:]):
            for part in base.each(message, "parts"):
                self._given(message.get("role"), part, one)
        self._take_edits()
        said = [*map(base.mapping, _structured(about.get(_SAID)))]
        for message in said:
            self._take(_answered(message), one, answer=True)
        told = [{key: m[key] for key in ("role", "parts") if key in m} for m in said]
        self._told = [*given, *told]

    def _given(self, role: Any, part: Json, one: _Span) -> None:
        called, content = base.text(part, "id"), part.get("content")
        if part.get("type") == "tool_call_response" and called:
            result = part.get("response", part.get("result"))
            self._returned(called, result, self._ran.get(called, one))
        elif part.get("type") == "text" and role == "system":
            message = messages.system_message(content)
            if "refold.seq" in one.about and isinstance(message, base.Piece):
                message.fields["where"] = "conversation"
            self._take([message], one)
        elif role == "user":
            text = content if part.get("type") == "text" else _json(part)
            self._take([messages.said([str(text)])], one)

    def _returned(self, called: str, content: Any, one: _Span) -> None:
        if not self.recording.waits(called):
            return  # told before
        failed = base.at(one.span, "status", "code") in _FAILED
        took = (one.order[2] - one.order[1]) / 1e6 if called in self._ran else None
        self._ran.pop(called, None)
        piece = messages.returned(called, content, failed=failed, took=took)
        self._take([piece], one, end=took is not None)

    def _take(
        self,
        found: Iterable[base.Found],
        one: _Span,
        *,
        answer: bool = False,
        end: bool = False,
    ) -> None:
        about = one.about
        model = about.get("gen_ai.response.model") or about.get("gen_ai.request.model")
        self.recording.take(
            found,
            base.Origin(
                _place(one),
                ts=one.at(end=answer or end),
                agent=base.text(about, "gen_ai.agent.name"),
                model=base.text(model) if answer else None,
                response_id=base.text(about, "gen_ai.response.id") if answer else None,
                usage=_usage(about) if answer else None,
                source={"trace": one.trace},
            ),
        )


def _newest_seq(edit: Json) -> int:
    """The newest seq that an edit of the history names; 0 if it names none."""
    newest = 0
    for name in ("left_out", "restored", "cleared", "in_place"):
        for span in base.sequence(edit, name):
            for seq in base.sequence(span):
                newest = max(newest, int(base.number(seq) or 0))
    return newest


def _place(one: _Span) -> str:
    return f"span {one.span.get('spanId', '')}".strip()


def _spans(request: Any) -> Iterator[Json]:
    for resource in base.each(request, "resourceSpans"):
        for scope in base.each(resource, "scopeSpans"):
            yield from base.each(scope, "spans")


def _about(span: Json) -> Json:
    given = base.each(span, "attributes")
    return {str(one.get("key")): _value(one.get("value")) for one in given}


def _value(given: Any) -> Any:
    for kind, value in base.mapping(given).items():
        match kind:
            case "intValue":
                return _whole(value)
            case "arrayValue":
                return [*map(_value, base.sequence(value, "values"))]
            case "kvlistValue":
                return _about({"attributes": base.at(value, "values")})
        return value
    return None


def _order(span: Json) -> tuple[int, int, int]:
    """What was first: by the seqs of an export of ours, else by the clock."""
    seq = _about(span).get("refold.seq")
    begun = _whole(span.get("startTimeUnixNano", span.get("timeUnixNano")))
    ended = _whole(span.get("endTimeUnixNano")) or begun
    return seq if isinstance(seq, int) else 0, begun, ended


def _whole(value: Any) -> int:
    """A number, which may be written as a text; 0 for what is none of 64 bits."""
    digits = str(value)
    plain = digits.isascii() and digits.removeprefix("-").isdigit()
    return int(digits) if plain and len(digits) < 20 else 0


def _structured(value: Any) -> list[Any]:
    return base.sequence(base.parsed(value)[0] if isinstance(value, str) else value)


def _answered(message: Json) -> Iterator[base.Found]:
    parts = [*base.each(message, "parts")]
    texts = [str(p.get("content") or "") for p in parts if p.get("type") == "text"]
    thoughts = (p.get("content") for p in parts if p.get("type") == "reasoning")
    thinking = [{"type": "thinking", "thinking": one} for one in thoughts]
    reason = base.text(message, "finish_reason")
    yield from messages.answered(texts, thinking, stop_reason=reason)
    for part in parts:
        if part.get("type") == "tool_call":
            yield messages.called(*map(part.get, ("id", "name", "arguments")))


def _usage(about: Json) -> Json | None:
    counts = [base.number(about, f"gen_ai.usage.{x}_tokens") for x in _COUNTED]
    if counts == [None, None]:
        return None
    given, made = (int(count or 0) for count in counts)
    read, written = (int(base.number(about, name) or 0) for name in (_READ, _WRITTEN))
    return {
        "input_tokens": max(given - read - written, 0),
        "output_tokens": made,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": written,
    }
