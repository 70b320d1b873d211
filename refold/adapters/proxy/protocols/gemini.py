"""The Gemini API, and the envelope that Google's Code Assist puts around it."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, Final, NamedTuple

from refold.adapters.importers import base, exit_codes
from refold.adapters.importers.response import events_of
from refold.adapters.proxy.conversation import (
    WireAnswer,
    WireMessage,
    WireRequest,
)
from refold.adapters.proxy.protocols import clients, errors
from refold.adapters.proxy.protocols.answers import answer_of, failed, stop_reason
from refold.adapters.proxy.protocols.beginnings import Beginnings, Frame
from refold.adapters.proxy.protocols.partial_arguments import (
    PartialCall,
    continues,
    is_partial,
)
from refold.adapters.proxy.protocols.reading import (
    EMPTY_MESSAGE,
    NOT_CONVERTED,
    Conversions,
    DerivedIds,
    Notes,
    UserEvents,
    endpoint,
    storable,
    without_secrets,
)
from refold.adapters.proxy.protocols.streams import is_events, json_array, json_events
from refold.domain.canonical import json_text
from refold.domain.events import (
    AgentError,
    Event,
    Item,
    JsonObject,
    ToolResult,
)

NAME: Final = "gemini"
LAST_LINES: Final[tuple[bytes, ...]] = ()
_METHODS: Final = (":generateContent", ":streamGenerateContent")
_MODEL: Final = re.compile(r"(?:models|tunedModels)/([^/:]+):")
_UPPER: Final = re.compile("[A-Z]")
_OF_USER: Final = ("function", "tool", "user", None)
# Fields of a part that belong to its content.
_OF_PART: Final = frozenset(
    {
        "mediaResolution",
        "media_resolution",
        "partMetadata",
        "part_metadata",
        "thought",
        "thoughtSignature",
        "thought_signature",
        "videoMetadata",
        "video_metadata",
    }
)
# Fields of an answer and of its first candidate that events record.
_ANSWER_FIELDS: Final = frozenset(
    {"candidates", "createTime", "modelVersion", "responseId", "usageMetadata"}
)
_CANDIDATE_FIELDS: Final = frozenset({"content", "finishReason", "index"})


def matches(method: str, path: str) -> bool:
    """Whether a request is for content, whole or as a stream."""
    return method == "POST" and endpoint(path).endswith(_METHODS)


def request(body: bytes, headers: Mapping[str, str], path: str) -> WireRequest:
    """Return a request as events.  Raises NotRecordable."""
    content = _BEGINNINGS.read(body, _Reading)
    frame = content.frame
    envelope: dict[str, Any] = frame.fields
    fields = envelope
    if _is_envelope(envelope):
        fields = envelope["request"]
        frame = _frame(fields, frame.notes)
        outer = without_secrets(envelope, "model", "request")
        frame = frame._replace(options={**outer, **frame.options})
        content = _BEGINNINGS.read_messages(frame, _contents(fields), _Reading)
    elif not isinstance(envelope.get("contents"), list):
        content = _BEGINNINGS.read_messages(frame, _contents(envelope), _Reading)
    return WireRequest(
        protocol=NAME,
        model=_model(envelope, path),
        system=frame.system,
        tools=frame.tools,
        messages=content.messages(),
        options=frame.options,
        hint=clients.hint(headers, {**envelope, **fields}),
        stream=endpoint(path).endswith(_METHODS[1]),
        warnings=content.notes().warnings(),
    )


def _is_envelope(fields: Mapping[str, Any]) -> bool:
    """Whether a body is one of Code Assist, with the request in a field."""
    return "contents" not in fields and isinstance(fields.get("request"), dict)


def _contents(fields: JsonObject) -> list[Any]:
    """Return the contents in a body, which may be a single one."""
    contents: Any = fields.get("contents")
    if contents is None:
        return []
    return contents if isinstance(contents, list) else [contents]


def _frame(fields: JsonObject, notes: Notes) -> Frame:
    """Return the fields of a body besides its contents."""
    if _is_envelope(fields):
        # The request in it has the other fields.
        return Frame(fields, system=None, tools=(), options={}, notes=notes)
    return Frame(
        fields=fields,
        system=_system(_field(fields, "systemInstruction"), notes),
        tools=tuple(_tools(base.each(fields, "tools"))),
        options=without_secrets(
            fields,
            "contents",
            "model",
            "systemInstruction",
            "system_instruction",
            "tools",
        ),
        notes=notes,
    )


def _field(value: Any, name: str) -> Any:
    """Return the field of this name, which may be written with underscores."""
    if not isinstance(value, dict):
        return None
    if name in value:
        return value[name]
    return value.get(_underscored(name))


@cache
def _underscored(name: str) -> str:
    """Return a name with underscores, as in ``function_call``."""
    return _UPPER.sub(lambda letter: "_" + letter[0].lower(), name)


def _model(envelope: dict[str, Any], path: str) -> str | None:
    """Return the model in the path, or in the body of Code Assist."""
    in_path = _MODEL.search(endpoint(path))
    if in_path is not None:
        return in_path[1]
    model = base.text(envelope, "model")
    return model.removeprefix("models/") if model else None


def _system(instruction: Any, notes: Notes) -> str | None:
    """Return the text of the system instruction."""
    if isinstance(instruction, str):
        return instruction or None
    texts: list[str] = []
    for part in base.sequence(instruction, "parts"):
        text = part if isinstance(part, str) else base.text(part, "text")
        if text is None:
            notes.add(NOT_CONVERTED, "systemInstruction: part that is no text")
        else:
            texts.append(text)
    return "\n\n".join(texts) or None


def _tools(tools: Iterable[dict[str, Any]]) -> list[JsonObject]:
    """Return functions in the form of the Messages API, and other tools unchanged."""
    converted: list[JsonObject] = []
    for tool in tools:
        others: JsonObject = {}
        for name, value in tool.items():
            if name not in ("functionDeclarations", "function_declarations"):
                others[name] = value
        for function in base.each(_field(tool, "functionDeclarations")):
            fields: JsonObject = {}
            for name, value in function.items():
                if name in ("parameters", "parametersJsonSchema"):
                    fields["input_schema"] = value
                else:
                    fields[name] = value
            converted.append(without_secrets(fields))
        if others:
            converted.append(without_secrets(others))
    return converted


_BEGINNINGS: Final = Beginnings(NAME, field="contents", frame=_frame)
_CONVERSIONS: Final = Conversions()


class _Reading:
    """Reads the contents of a request, in their order.

    Neighboring contents of the model are one message: some clients keep each chunk of
    a stream as a separate content.
    """

    key: Hashable = None
    settles = True
    system: str | None = None
    tools: Sequence[Any] = ()

    def __init__(self, _: Frame | None = None) -> None:
        self._ids = DerivedIds()
        # The contents of the model since the last content of somebody else, and their
        # places.
        self._of_model: tuple[dict[str, Any], ...] = ()
        self._places: tuple[str, ...] = ()

    def copy(self) -> _Reading:
        """Return a reading that continues independently from here."""
        reading = _Reading()
        reading._ids = self._ids.copy()
        reading._of_model = self._of_model
        reading._places = self._places
        return reading

    def take(self, content: Any, place: str, notes: Notes) -> list[WireMessage]:
        """Take the next content; returns the messages that are complete now."""
        if base.text(content, "role") == "model":
            self._of_model = (*self._of_model, content)
            self._places = (*self._places, place)
            return []
        messages = self.end(notes)
        parts = base.sequence(content, "parts")
        if isinstance(content, str):
            parts = [content]
        call_ids: dict[int, str | None] = {}
        if base.text(content, "role") in _OF_USER:
            call_ids = self._ids_of_unnamed(parts)
        own_notes = Notes()
        convert = partial(_converted, content, parts, call_ids, place, own_notes)
        if call_ids:
            # The same content may answer other calls elsewhere.
            key = [[*call_ids.items()], content]
            converted = _CONVERSIONS.message(key, own_notes, convert)
        else:
            converted = _CONVERSIONS.message(content, own_notes, convert)
            self._ids.take(converted)
        notes.add_all(own_notes)
        return [*messages, converted]

    def end(self, notes: Notes) -> list[WireMessage]:
        """Return the contents of the model, up to here, as one message."""
        contents = self._of_model
        if not contents:
            return []
        own_notes = Notes()
        convert = partial(_answer_in, contents, self._places, own_notes)
        key = contents[0] if len(contents) == 1 else contents
        converted = _CONVERSIONS.message(key, own_notes, convert)
        self._ids.take(converted)
        self._of_model = ()
        self._places = ()
        notes.add_all(own_notes)
        return [converted]

    def _ids_of_unnamed(self, parts: Sequence[Any]) -> dict[int, str | None]:
        """Return the ids of the calls that results without an id answer.

        They are by the index of the part.  Results with ids answer their calls first.
        """
        unnamed = [index for index, part in enumerate(parts) if _is_unnamed(part)]
        call_ids: dict[int, str | None] = {}
        if not unnamed:
            return call_ids
        for part in parts:
            call_id = base.text(_field(part, "functionResponse"), "id")
            if call_id is not None:
                self._ids.of_result(None, call_id)
        for index in unnamed:
            tool = base.text(_field(parts[index], "functionResponse"), "name")
            call_ids[index] = self._ids.of_result(tool, None)
        return call_ids


def _converted(
    content: Any,
    parts: list[Any],
    call_ids: Mapping[int, str | None],
    place: str,
    notes: Notes,
) -> WireMessage:
    """Return a content of the user as events.

    call_ids: of the calls that results without an id answer, by the index of the part.
    """
    role = base.text(content, "role")
    if role in _OF_USER and isinstance(content, dict | str):
        events = _user(parts, call_ids, place, notes)
    else:
        notes.add(NOT_CONVERTED, f"{place}: content of an unknown role")
        events = (Item(format=NAME, kind="content", value=content),)
    if not events:
        notes.add(EMPTY_MESSAGE, place)
    return WireMessage("user", events)


def _user(
    parts: list[Any], call_ids: Mapping[int, str | None], place: str, notes: Notes
) -> tuple[Event, ...]:
    """Return the inputs and the results in a content of the user."""
    events = UserEvents()
    for index, part in enumerate(parts):
        text = part if isinstance(part, str) else base.at(part, "text")
        if isinstance(text, str):
            events.text(text)
            continue
        file = _file(part)
        result = base.mapping(_field(part, "functionResponse"))
        if file is not None:
            events.file(file)
        elif result:
            call_id = base.text(result, "id") or call_ids.get(index)
            where = f"{place}.parts[{index}]"
            events.event(_result(result, call_id, where, notes))
        else:
            kind = _kind(part)
            where = f"{place}.parts[{index}]"
            notes.add(NOT_CONVERTED, f"{where}: {base.shown(kind)}")
            events.event(Item(format=NAME, kind=kind, value=part))
    return events.events()


def _result(
    result: dict[str, Any], call_id: str | None, place: str, notes: Notes
) -> Event:
    """Return the result of a call."""
    if call_id is None:
        notes.add(NOT_CONVERTED, f"{place}: result that names no call")
        return Item(format=NAME, kind="tool_result", value=result)
    response = result.get("response")
    content: Any = "" if response is None else response
    files = base.sequence(result, "parts")
    if files:
        content = [{"type": "text", "text": _text(content)}]
        content += [_file_block(part) for part in files]
    failed = bool(base.at(response, "error"))
    output = base.text(response, "output")
    if output is not None and exit_codes.of_gemini(output):
        failed = True
    return ToolResult(
        call_id=call_id,
        tool_name=base.text(result, "name"),
        content=content,
        status="error" if failed else "ok",
    )


def _answer_in(
    contents: Iterable[dict[str, Any]], places: Sequence[str], notes: Notes
) -> WireMessage:
    """Return contents of the model as one message.

    places: those of the contents.
    """
    parts: list[_Part] = []
    for content, place in zip(contents, places, strict=True):
        parts += _parts(base.sequence(content, "parts"), place)
    blocks = _blocks(parts, DerivedIds(), notes)
    events = tuple(events_of({"content": blocks})) if blocks else ()
    if not events:
        notes.add(EMPTY_MESSAGE, places[0])
    return WireMessage("assistant", events)


_EMPTY: Final = {"text": ""}


class _Part(NamedTuple):
    """A part of a content of the model, and its place."""

    value: Any
    place: str


def _parts(values: Iterable[Any], place: str) -> list[_Part]:
    """Return the parts of a content at a place."""
    return [
        _Part(value, f"{place}.parts[{index}]") for index, value in enumerate(values)
    ]


def _is_unnamed(part: Any) -> bool:
    """Whether a part is a result without an id."""
    result = base.mapping(_field(part, "functionResponse"))
    if not result or base.text(result, "id") is not None:
        return False
    return not isinstance(base.at(part, "text"), str) and _file(part) is None


def _text(response: Any) -> str:
    """Return a response of a tool as a text."""
    output = base.text(response, "output")
    if output is not None:
        return output
    return response if isinstance(response, str) else json_text(response)


def _kind(part: Any) -> str:
    """Return the name of a part's content; ``part`` without one."""
    for name in base.mapping(part):
        if name not in _OF_PART:
            return name
    return "part"


def _file(part: Any) -> JsonObject | None:
    """Return the file in a part, as the fields of an attachment, else None."""
    data = base.mapping(_field(part, "inlineData"))
    media_type = _field(data, "mimeType")
    file: JsonObject = {}
    if base.text(data, "data"):
        file["data"] = data["data"]
    else:
        data = base.mapping(_field(part, "fileData"))
        media_type = _field(data, "mimeType")
        url = base.text(_field(data, "fileUri"))
        if url is None:
            return None
        file["url"] = url
    name = base.text(_field(data, "displayName"))
    if name is not None:
        file["name"] = name
    file["kind"] = "file"
    if isinstance(media_type, str):
        file["media_type"] = media_type
        if media_type.startswith("image/"):
            file["kind"] = "image"
        elif media_type == "application/pdf":
            file["kind"] = "document"
    return file


def _file_block(part: Any) -> JsonObject:
    """Return a file in a result as a block of the Messages API."""
    file = _file(part)
    if file is None:
        return {"type": _kind(part), "part": part}
    kind = "image" if file["kind"] == "image" else "document"
    if "url" in file:
        return {"type": kind, "source": {"type": "url", "url": file["url"]}}
    source: JsonObject = {
        "type": "base64",
        "media_type": file.get("media_type"),
        "data": file["data"],
    }
    return {"type": kind, "source": source}


def _blocks(parts: Iterable[_Part], ids: DerivedIds, notes: Notes) -> list[Any]:
    """Return the parts of a model's contents as blocks of the Messages API.

    Neighboring texts are one block, because a stream cuts them anywhere.  A signature
    becomes a block of thinking without text: behind a text, and before a call.
    """
    run = _Run()
    for part, place in _with_whole_calls(parts, notes):
        text = part if isinstance(part, str) else base.at(part, "text")
        signature = base.text(_field(part, "thoughtSignature"))
        if isinstance(text, str):
            run.text(text, signature, is_thought=base.at(part, "thought") is True)
            continue
        run.end()
        call = base.mapping(_field(part, "functionCall"))
        if signature:
            run.blocks.append({"type": "thinking", "data": signature})
        tool = base.text(call, "name")
        if tool is not None:
            arguments = call.get("args")
            block: JsonObject = {
                "type": "tool_use",
                "id": ids.of_call(tool, base.text(call, "id")),
                "name": tool,
                "input": {} if arguments is None else arguments,
            }
            run.blocks.append(block)
        else:
            kind = _kind(part)
            notes.add(NOT_CONVERTED, f"{place}: {base.shown(kind)}")
            run.blocks.append({"type": kind, "part": part})
    run.end()
    return run.blocks


def _with_whole_calls(parts: Iterable[_Part], notes: Notes) -> Iterator[_Part]:
    """Yield parts, of which those of one call with partial arguments are joined."""
    waiting: _Part | None = None  # the first part of the call
    partial_call: PartialCall | None = None

    def whole() -> Iterator[_Part]:
        if waiting is None or partial_call is None:
            return
        for path in partial_call.unread:
            notes.add(NOT_CONVERTED, f"{waiting.place}: {base.shown(path)}")
        value = {**waiting.value, "functionCall": partial_call.whole()}
        value.pop("function_call", None)
        yield waiting._replace(value=value)

    for part in parts:
        call = base.mapping(_field(part.value, "functionCall"))
        has_call = isinstance(_field(part.value, "functionCall"), dict)
        if waiting is not None and partial_call is not None and part.value == _EMPTY:
            continue
        is_rest = partial_call is not None and has_call and not base.text(call, "name")
        if is_rest and waiting is not None and partial_call is not None:
            # The parts share their other fields, such as the signature of a thought.
            waiting = waiting._replace(value={**part.value, **waiting.value})
            partial_call.take(call)
            if not continues(call):
                yield from whole()
                partial_call = None
            continue
        yield from whole()
        partial_call = None
        if is_partial(call):
            waiting = part
            partial_call = PartialCall(call)
            if not continues(call):
                yield from whole()
                partial_call = None
        else:
            yield part
    yield from whole()


class _Run:
    """Collects blocks; neighboring texts of a kind become one block."""

    def __init__(self) -> None:
        self.blocks: list[Any] = []
        self._texts: list[str] = []
        self._is_thought = False

    def text(self, text: str, signature: str | None, *, is_thought: bool) -> None:
        """Add a text, or a thought."""
        if is_thought != self._is_thought:
            self.end()
        self._is_thought = is_thought
        if text:
            self._texts.append(text)
        if signature:
            self._end(signature)

    def end(self) -> None:
        """End the current block."""
        self._end(None)

    def _end(self, signature: str | None) -> None:
        """End the current block, with its signature."""
        text = "".join(self._texts)
        self._texts = []
        if self._is_thought:
            block: JsonObject = {"type": "thinking"}
            if text:
                block["thinking"] = text
            if signature:
                block["data"] = signature
            if len(block) > 1:
                self.blocks.append(block)
            return
        if text:
            self.blocks.append({"type": "text", "text": text})
        if signature:
            self.blocks.append({"type": "thinking", "data": signature})


def answer(
    status: int, headers: Mapping[str, str], body: bytes, *, complete: bool
) -> WireAnswer:
    """Return an answer as events."""
    if errors.is_error(status):
        return failed(errors.error_of(status, headers, body, NAME), complete=complete)
    notes = Notes()
    joined = _Joined()
    if is_events(headers, body):
        for _, chunk in json_events(body, notes):
            joined.take(chunk)
    else:
        chunks = json_array(body, notes)
        if not chunks and complete:
            return failed(errors.unreadable(status, headers, body, NAME))
        for chunk in chunks:
            joined.take(chunk)
        joined.complete = joined.complete or complete
    if joined.error is not None and not joined.begun:
        return failed(joined.error)
    return joined.answer(notes)


class _Joined:
    """The chunks of an answer, joined.

    complete: whether the first candidate has ended, or the prompt was refused.
    """

    def __init__(self) -> None:
        self.begun = False
        self.complete = False
        self.error: AgentError | None = None
        self._fields: JsonObject = {}
        self._candidate: JsonObject = {}
        self._parts: list[Any] = []
        # Further candidates, each with the chunks that came of it.
        self._others: list[Any] = []

    def take(self, chunk: dict[str, Any]) -> None:
        """Take the next chunk."""
        if isinstance(chunk.get("response"), dict):
            chunk = {**chunk, **chunk["response"]}
            del chunk["response"]
        if chunk.get("error"):
            self.error = errors.error_in(chunk, NAME)
            return
        for name, value in chunk.items():
            if name != "candidates" and value is not None:
                self.begun = True
                self._fields[name] = value
        if base.text(chunk, "promptFeedback", "blockReason"):
            self.complete = True
        for candidate in base.each(chunk, "candidates"):
            self.begun = True
            if candidate.get("index") not in (None, 0):
                self._others.append(candidate)
                continue
            self._parts += base.sequence(candidate, "content", "parts")
            for name, value in candidate.items():
                if name != "content" and value is not None:
                    self._candidate[name] = value
            if base.text(candidate, "finishReason"):
                self.complete = True

    def answer(self, notes: Notes) -> WireAnswer:
        """Return the answer, as far as it came."""
        blocks = _blocks(_parts(self._parts, "content"), DerivedIds(), notes)
        reason = base.text(self._candidate, "finishReason")
        reason = reason or base.text(self._fields, "promptFeedback", "blockReason")
        rest: JsonObject = {}
        for name, value in self._fields.items():
            if name not in _ANSWER_FIELDS:
                rest[name] = value
        for name, value in self._candidate.items():
            if name not in _CANDIDATE_FIELDS:
                rest[name] = value
        if self._others:
            rest["candidates"] = self._others
        items = []
        if rest:
            items.append(Item(format=NAME, kind="response", value=storable(rest)))
        message: JsonObject = {
            "id": self._fields.get("responseId"),
            "model": self._fields.get("modelVersion"),
            "content": blocks,
            "stop_reason": stop_reason(reason, blocks),
            "usage": _usage(self._fields.get("usageMetadata")),
        }
        return answer_of(
            message,
            NAME,
            notes,
            complete=self.complete,
            error=self.error,
            items=items,
        )


def _usage(usage: Any) -> JsonObject | None:
    """Return the usage with the counts of the Messages API before Gemini's own.

    Gemini counts cached tokens in those of the prompt, and thoughts apart from the
    answer.
    """
    counts = base.mapping(usage)
    if not counts:
        return None
    cached = _count(counts, "cachedContentTokenCount")
    prompt = _count(counts, "promptTokenCount")
    prompt += _count(counts, "toolUsePromptTokenCount")
    output = _count(counts, "candidatesTokenCount")
    output += _count(counts, "thoughtsTokenCount")
    return {
        "input_tokens": max(prompt - cached, 0),
        "cache_read_input_tokens": cached,
        "output_tokens": output,
        **counts,
    }


def _count(counts: Mapping[str, Any], name: str) -> int:
    """Return the count under this name; 0 if there is none."""
    count = counts.get(name)
    return count if type(count) is int and count >= 0 else 0
