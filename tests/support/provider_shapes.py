"""The answers of five providers' protocols, from one neutral form."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from tests.support import messages_shapes

Json: TypeAlias = dict[str, Any]
Protocol: TypeAlias = Literal[
    "anthropic-messages", "openai-chat", "openai-responses", "gemini", "ollama"
]
_CHUNK = 12
_COMPACTION = "compaction_trigger"
_ids = itertools.count(1)


def _new_id(prefix: str) -> str:
    return f"{prefix}{next(_ids):024d}"


def _pieces(whole: str) -> list[str]:
    return [whole[at : at + _CHUNK] for at in range(0, len(whole), _CHUNK)]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool.  A text as arguments is the input of a custom tool.

    ``namespace`` is that of a tool of Codex.
    """

    name: str
    arguments: Mapping[str, Any] | str
    call_id: str
    namespace: str = ""

    @property
    def written(self) -> str:
        """The arguments as JSON."""
        return json.dumps(self.arguments, ensure_ascii=False)


def call(
    name: str,
    arguments: Mapping[str, Any] | str,
    *,
    call_id: str | None = None,
    namespace: str = "",
) -> Call:
    """Return a call with a new id, except if one is given."""
    return Call(name, arguments, call_id or _new_id("call_"), namespace)


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of the model.

    ``cut`` ends a stream after that many events by closing the connection.
    ``held_after`` stops after that many events until the client leaves or the server
    ends.  ``pause`` is in seconds, between two events.  ``encoding`` compresses the
    body, if the client accepts it.
    """

    text: str = ""
    thinking: str = ""
    calls: tuple[Call, ...] = ()
    input_tokens: int = 100
    output_tokens: int = 10
    cut: int | None = None
    held_after: int | None = None
    pause: float = 0.0
    encoding: Literal["gzip", "deflate", "zstd"] | None = None

    def broken(self, *, after: int) -> Answer:
        """Return this answer as a stream that breaks off after that many events."""
        return replace(self, cut=after)

    def holding(self, *, after: int) -> Answer:
        """Return this answer as a stream that stops after that many events."""
        return replace(self, held_after=after)


@dataclass(frozen=True, slots=True)
class Failure:
    """An error in place of an answer; ``retry_after`` is in seconds."""

    status: int
    words: str = "Overloaded"
    retry_after: float | None = None


Reply: TypeAlias = Answer | Failure


def answer(text: str = "", *calls: Call, thinking: str = "", **fields: Any) -> Answer:
    """Return an answer with a text, and calls of tools after it."""
    return Answer(text, thinking, calls, **fields)


@dataclass(frozen=True, slots=True)
class Shape:
    """An answer in the form of one protocol: the whole body, and its stream.

    ``separator`` says how a stream is written: as server-sent events, one JSON value a
    line, or one JSON array.
    """

    body: Json
    events: tuple[Json, ...]
    framing: Literal["sse", "named-sse", "ndjson", "array"]
    ending: bytes = b""

    @property
    def content_type(self) -> str:
        """The content type of the stream."""
        if self.framing == "ndjson":
            return "application/x-ndjson"
        if self.framing == "array":
            return "application/json"
        return "text/event-stream; charset=utf-8"

    def frames(self) -> Iterator[bytes]:
        """Yield the stream's pieces, one an event."""
        for number, event in enumerate(self.events):
            data = json.dumps(event, ensure_ascii=False).encode()
            match self.framing:
                case "sse":
                    yield b"data: %b\n\n" % data
                case "named-sse":
                    yield b"event: %b\ndata: %b\n\n" % (event["type"].encode(), data)
                case "ndjson":
                    yield data + b"\n"
                case "array":
                    yield (b",\r\n" if number else b"[") + data
        if self.framing == "array":
            yield b"]"
        if self.ending:
            yield self.ending


def shape(protocol: Protocol, reply: Answer, request: Json, path: str) -> Shape:
    """Return the answer to ``request`` in the form of its protocol."""
    match protocol:
        case "anthropic-messages":
            return _anthropic(reply, request)
        case "openai-chat":
            return _chat(reply, request)
        case "openai-responses":
            return _responses(reply, request)
        case "gemini":
            return _gemini(reply, path)
        case "ollama":
            return _ollama(reply, request)


def failure(protocol: Protocol, reply: Failure) -> Json:
    """Return the body of an error in the form of a protocol."""
    match protocol:
        case "anthropic-messages":
            body = messages_shapes.error(reply.status, reply.words).body
            assert isinstance(body, dict)
            return body
        case "openai-chat" | "openai-responses":
            kind = "rate_limit_exceeded" if reply.status == 429 else "server_error"
            error = {"message": reply.words, "type": kind, "param": None, "code": kind}
            return {"error": error}
        case "gemini":
            status = "RESOURCE_EXHAUSTED" if reply.status == 429 else "UNAVAILABLE"
            return {
                "error": {
                    "code": reply.status,
                    "message": reply.words,
                    "status": status,
                }
            }
        case "ollama":
            return {"error": reply.words}


def _anthropic(reply: Answer, request: Json) -> Shape:
    blocks: list[Json] = []
    if reply.thinking:
        blocks.append(messages_shapes.thinking(reply.thinking))
    if reply.text:
        blocks.append(messages_shapes.text(reply.text))
    for call in reply.calls:
        assert not isinstance(call.arguments, str)
        blocks.append(
            messages_shapes.tool_use(call.name, call.arguments, call_id=call.call_id)
        )
    usage = {
        "input_tokens": reply.input_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": reply.output_tokens,
    }
    message = messages_shapes.message(*blocks, usage=usage, model=request.get("model"))
    assert isinstance(message.body, dict)
    events = tuple(messages_shapes.events(message.body))
    return Shape(message.body, events, "named-sse")


def _chat(reply: Answer, request: Json) -> Shape:
    calls: list[Json] = []
    for call in reply.calls:
        function = {"name": call.name, "arguments": call.written}
        calls.append({"id": call.call_id, "type": "function", "function": function})
    message: Json = {"role": "assistant", "content": reply.text or None}
    if reply.thinking:
        message["reasoning_content"] = reply.thinking
    if calls:
        message["tool_calls"] = calls
    reason = "tool_calls" if calls else "stop"
    usage = {
        "prompt_tokens": reply.input_tokens,
        "completion_tokens": reply.output_tokens,
        "total_tokens": reply.input_tokens + reply.output_tokens,
    }
    head: Json = {
        "id": _new_id("chatcmpl-"),
        "created": 1_767_225_600,
        "model": request.get("model"),
    }
    choice = {"index": 0, "message": message, "finish_reason": reason}
    body = {**head, "object": "chat.completion", "choices": [choice], "usage": usage}

    deltas: list[Json] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": piece} for piece in _pieces(reply.thinking)]
    deltas += [{"content": piece} for piece in _pieces(reply.text)]
    for index, call in enumerate(reply.calls):
        function = {"name": call.name, "arguments": ""}
        begun = {"index": index, "id": call.call_id, "type": "function"}
        deltas.append({"tool_calls": [{**begun, "function": function}]})
        for piece in _pieces(call.written):
            part = {"index": index, "function": {"arguments": piece}}
            deltas.append({"tool_calls": [part]})
    chunk = {**head, "object": "chat.completion.chunk"}
    events: list[Json] = []
    for delta in deltas:
        one_choice = {"index": 0, "delta": delta, "finish_reason": None}
        events.append({**chunk, "choices": [one_choice]})
    last_choice = {"index": 0, "delta": {}, "finish_reason": reason}
    events.append({**chunk, "choices": [last_choice]})
    if (request.get("stream_options") or {}).get("include_usage"):
        events.append({**chunk, "choices": [], "usage": usage})
    return Shape(body, tuple(events), "sse", b"data: [DONE]\n\n")


def _responses(reply: Answer, request: Json) -> Shape:
    """Return a response; to a request for a compaction, one with its item."""
    items: list[Json] = []
    asked = request.get("input")
    if isinstance(asked, list) and asked and asked[-1].get("type") == _COMPACTION:
        sealed = "gAAAAAB" + "Y29tcGFjdGVk" * 4
        items.append(
            {
                "type": "compaction",
                "id": _new_id("cmp_"),
                "encrypted_content": sealed,
            }
        )
        reply = replace(reply, text="", thinking="", calls=())
    if reply.thinking:
        summary = [{"type": "summary_text", "text": reply.thinking}]
        sealed = "gAAAAAB" + "c2VhbGVk" * 4
        items.append(
            {
                "type": "reasoning",
                "id": _new_id("rs_"),
                "summary": summary,
                "encrypted_content": sealed,
            }
        )
    if reply.text:
        part = {"type": "output_text", "text": reply.text, "annotations": []}
        items.append(
            {
                "type": "message",
                "id": _new_id("msg_"),
                "status": "completed",
                "role": "assistant",
                "content": [part],
            }
        )
    for call in reply.calls:
        item: Json = {"call_id": call.call_id, "name": call.name, "status": "completed"}
        if call.namespace:
            item["namespace"] = call.namespace
        if isinstance(call.arguments, str):
            typed = {"type": "custom_tool_call", "input": call.arguments}
            items.append({**typed, "id": _new_id("ctc_"), **item})
        else:
            typed = {"type": "function_call", "arguments": call.written}
            items.append({**typed, "id": _new_id("fc_"), **item})
    usage = {
        "input_tokens": reply.input_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": reply.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": reply.input_tokens + reply.output_tokens,
    }
    body: Json = {
        "id": _new_id("resp_"),
        "object": "response",
        "created_at": 1_767_225_600,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "instructions": request.get("instructions"),
        "model": request.get("model"),
        "output": items,
        "parallel_tool_calls": True,
        "previous_response_id": request.get("previous_response_id"),
        "store": request.get("store", True),
        "tool_choice": "auto",
        "tools": [],
        "usage": usage,
    }
    begun = {**body, "status": "in_progress", "output": [], "usage": None}
    events: list[Json] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
    ]
    for index, item in enumerate(items):
        events += _item_events(index, item)
    events.append({"type": "response.completed", "response": body})
    numbered = tuple(
        {**event, "sequence_number": number} for number, event in enumerate(events)
    )
    return Shape(body, numbered, "named-sse")


def _item_events(index: int, item: Json) -> list[Json]:
    """Return the events that stream one item of a response."""
    place: Json = {"output_index": index, "item_id": item["id"]}
    empty: Json = {**item, "status": "in_progress"}
    events: list[Json] = []
    match item["type"]:
        case "reasoning":
            del empty["status"]
            empty["summary"] = []
            part_place = {**place, "summary_index": 0}
            text = item["summary"][0]["text"]
            part: Json = {"type": "summary_text", "text": ""}
            kind = "response.reasoning_summary"
            events.append({"type": f"{kind}_part.added", **part_place, "part": part})
            for piece in _pieces(text):
                events.append(
                    {"type": f"{kind}_text.delta", **part_place, "delta": piece}
                )
            events.append({"type": f"{kind}_text.done", **part_place, "text": text})
            whole = {**part, "text": text}
            events.append({"type": f"{kind}_part.done", **part_place, "part": whole})
        case "message":
            empty["content"] = []
            part_place = {**place, "content_index": 0}
            whole = item["content"][0]
            part = {**whole, "text": ""}
            text = whole["text"]
            kind = "response.output_text"
            added = "response.content_part.added"
            events.append({"type": added, **part_place, "part": part})
            for piece in _pieces(text):
                events.append({"type": f"{kind}.delta", **part_place, "delta": piece})
            events.append({"type": f"{kind}.done", **part_place, "text": text})
            done = "response.content_part.done"
            events.append({"type": done, **part_place, "part": whole})
        case "function_call":
            empty["arguments"] = ""
            kind = "response.function_call_arguments"
            for piece in _pieces(item["arguments"]):
                events.append({"type": f"{kind}.delta", **place, "delta": piece})
            written = item["arguments"]
            events.append({"type": f"{kind}.done", **place, "arguments": written})
        case "custom_tool_call":
            empty["input"] = ""
            kind = "response.custom_tool_call_input"
            for piece in _pieces(item["input"]):
                events.append({"type": f"{kind}.delta", **place, "delta": piece})
            events.append({"type": f"{kind}.done", **place, "input": item["input"]})
    first = {"type": "response.output_item.added", "output_index": index}
    last = {"type": "response.output_item.done", "output_index": index}
    return [{**first, "item": empty}, *events, {**last, "item": item}]


def _gemini(reply: Answer, path: str) -> Shape:
    thoughts: list[Json] = []
    for piece in _pieces(reply.thinking):
        thoughts.append({"text": piece, "thought": True})
    words: list[Json] = [{"text": piece} for piece in _pieces(reply.text)]
    calls: list[Json] = []
    for call in reply.calls:
        function = {"id": call.call_id, "name": call.name, "args": call.arguments}
        signature = "c2lnbmF0dXJl"
        calls.append({"functionCall": function, "thoughtSignature": signature})
    usage = {
        "promptTokenCount": reply.input_tokens,
        "candidatesTokenCount": reply.output_tokens,
        "totalTokenCount": reply.input_tokens + reply.output_tokens,
    }
    model = path.rpartition("/")[2].partition(":")[0]
    head = {"modelVersion": model, "responseId": _new_id("gemini-")}
    whole: list[Json] = []
    if reply.thinking:
        whole.append({"text": reply.thinking, "thought": True})
    if reply.text:
        whole.append({"text": reply.text})
    body = _candidate([*whole, *calls], head, usage)
    parts: list[Json] = [*thoughts, *words, *calls]
    streamed = [_candidate([part], head, None) for part in parts]
    last = _candidate([{"text": ""}], head, usage)
    return Shape(body, (*streamed, last), "sse")


def _candidate(parts: list[Json], head: Json, usage: Json | None) -> Json:
    content = {"role": "model", "parts": parts}
    candidate: Json = {"content": content, "index": 0}
    if usage is None:
        return {"candidates": [candidate], **head}
    candidate["finishReason"] = "STOP"
    return {"candidates": [candidate], "usageMetadata": usage, **head}


def _ollama(reply: Answer, request: Json) -> Shape:
    calls: list[Json] = []
    for call in reply.calls:
        calls.append({"function": {"name": call.name, "arguments": call.arguments}})
    head = {"model": request.get("model"), "created_at": "2026-01-01T00:00:00Z"}
    message: Json = {"role": "assistant", "content": reply.text}
    if reply.thinking:
        message["thinking"] = reply.thinking
    if calls:
        message["tool_calls"] = calls
    last_fields = {
        "done": True,
        "done_reason": "stop",
        "total_duration": 1,
        "prompt_eval_count": reply.input_tokens,
        "eval_count": reply.output_tokens,
    }
    deltas: list[Json] = []
    for piece in _pieces(reply.thinking):
        deltas.append({"content": "", "thinking": piece})
    deltas += [{"content": piece} for piece in _pieces(reply.text)]
    deltas += [{"content": "", "tool_calls": [call]} for call in calls]
    events: list[Json] = []
    for delta in deltas:
        events.append(
            {**head, "message": {"role": "assistant", **delta}, "done": False}
        )
    events.append(
        {**head, "message": {"role": "assistant", "content": ""}, **last_fields}
    )
    return Shape({**head, "message": message, **last_fields}, tuple(events), "ndjson")
