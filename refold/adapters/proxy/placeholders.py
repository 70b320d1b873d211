"""Placeholders in place of values: a provider sees them, and a client sees the values.

A request gets ``[EMAIL_1]`` for an address, and the answer gets the address back.  In a
stream, a placeholder may be cut across pieces: its beginning is held back until its end
has come.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from copy import deepcopy
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

import orjson

from refold.adapters.importers import base
from refold.adapters.proxy.conversation import NotRecordable
from refold.adapters.proxy.protocols.reading import json_of
from refold.domain.placeholders import NUMBERED

# A text in JSON, and the colon behind it if it is a name of a field; or a number.
_STRING_OR_NUMBER: Final = re.compile(
    rb'"(?:[^"\\]|\\.)*"(\s*:)?|-?[0-9][0-9.eE+-]*', re.DOTALL
)
# Fields whose texts a provider signed or encrypted.
SEALED: Final = frozenset(
    {"encrypted_content", "signature", "thoughtSignature", "thought_signature"}
)
# Blocks and pieces with thinking, which a provider signed.
SIGNED: Final = frozenset({"redacted_thinking", "thinking", "thinking_delta"})
# A file in base64.  Short values in it are there by chance.
_BASE64: Final = re.compile(r"(?:data:[\w.+/-]+;base64,)?[A-Za-z0-9+/=_-]{256,}")
_SHORTEST_FILE: Final = 256
_LONG: Final = 16
# Fields with JSON as a text.
_JSON_TEXTS: Final = frozenset({"arguments", "partial_json"})
_JSON_DELTAS: Final = ("function_call_arguments", "mcp_call_arguments")
# The beginning of a placeholder, or a bracket at the end of a text.
_BEGINNING: Final = re.compile(rb'\[[A-Z"]')
_EVENT_END: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")

_NO_PIECES: Final[Mapping[int, str]] = MappingProxyType({})

Channel: TypeAlias = tuple[Any, ...]


class Placeholders:
    """The placeholders of a session, and the values that they stand for.

    values:  by placeholder.
    numbers: the placeholders of numbers of JSON, as requests write them.
    """

    def __init__(
        self, values: Mapping[str, str], numbers: Collection[str] = ()
    ) -> None:
        self._values = {name: value for name, value in values.items() if value}
        self._numbers: dict[bytes, str] = {}
        for name in numbers:
            self._numbers.setdefault(values[name].encode(), name)
        self._names: dict[str, str] = {}
        for name, value in self._values.items():
            self._names.setdefault(value, name)
        # A longer value may contain a shorter one.
        longest_first = sorted(self._names, key=len, reverse=True)
        long = [value for value in longest_first if len(value) >= _LONG]
        self._hiding = re.compile("|".join(map(re.escape, longest_first)))
        self._hiding_in_files = re.compile("|".join(map(re.escape, long)) or "(?!)")
        self._beginnings: set[str] = set()
        for name in self._values:
            for length in range(1, len(name)):
                self._beginnings.add(name[:length])

    def hidden(self, body: bytes) -> bytes:
        """Return the JSON of a request with placeholders in place of values.

        All bytes without a value stay as they are.  Texts that a provider signed stay,
        too, since it refuses them after a change.

        Raises NotRecordable for bytes that are no JSON: they may contain values.
        """
        try:
            json_of(body)
        except ValueError:
            raise NotRecordable("its body is not JSON") from None
        if not self._names:
            return body
        field = ""
        kind = ""  # the newest type of a block
        parts: list[bytes] = []
        end = 0
        for match in _STRING_OR_NUMBER.finditer(body):
            token = match[0]
            if not token.startswith(b'"'):
                name = self._numbers.get(token)
                if name is not None:
                    parts += (body[end : match.start()], json.dumps(name).encode())
                    end = match.end()
                continue
            colon = match[1] or b""
            if colon:
                token = token[: -len(colon)]
            text = _text_of(token)
            is_sealed = field in SEALED or (field == "thinking" and kind in SIGNED)
            if colon:
                field = text
            elif is_sealed:
                continue
            elif field == "type":
                kind = text
            is_file = len(text) >= _SHORTEST_FILE and _BASE64.fullmatch(text)
            hiding = self._hiding_in_files if is_file else self._hiding
            hidden = hiding.sub(self._name_of, text)
            if hidden != text:
                parts += (body[end : match.start()], json.dumps(hidden).encode(), colon)
                end = match.end()
        return b"".join([*parts, body[end:]])

    def _name_of(self, match: re.Match[str]) -> str:
        return self._names[match[0]]

    def revealed(self, text: str, *, in_json: bool = False) -> str:
        """Return a text with values in place of placeholders.

        in_json: whether the text is JSON, so that values are escaped.
        """
        if "[" not in text:
            return text

        def value_of(match: re.Match[str]) -> str:
            value = self._values.get(match[0])
            if value is None:
                return match[0]
            return json.dumps(value, ensure_ascii=False)[1:-1] if in_json else value

        return NUMBERED.sub(value_of, text)

    def revealed_value(
        self, value: Any, field: str = "", pieces: Mapping[int, str] = _NO_PIECES
    ) -> Any:
        """Return JSON with values in place of placeholders.

        Texts that a provider signed stay as they are.

        field:  the name of the field that has the value.
        pieces: by the identity of an object, the field with a piece of a text, which
                stays as it is.
        """
        if isinstance(value, str):
            return self.revealed(value, in_json=field in _JSON_TEXTS)
        if isinstance(value, list):
            return [self.revealed_value(item, field, pieces) for item in value]
        if not isinstance(value, dict):
            return value
        if is_signed(value) or value.get("thought") is True:
            return value
        revealed: dict[str, Any] = {}
        for name, item in value.items():
            if name in SEALED or pieces.get(id(value)) == name:
                revealed[name] = item
            else:
                revealed[self.revealed(name)] = self.revealed_value(item, name, pieces)
        return revealed

    def split(self, text: str) -> tuple[str, str]:
        """Return a text without the beginning of a placeholder at its end, and that."""
        start = text.rfind("[")
        if start >= 0 and text[start:] in self._beginnings:
            return text[:start], text[start:]
        return text, ""


def is_signed(block: Mapping[str, Any]) -> bool:
    """Whether a provider signed a block.  A schema may have any JSON as its type."""
    kind = block.get("type")
    return isinstance(kind, str) and kind in SIGNED


def _text_of(token: bytes) -> str:
    """Return the text of a string of JSON."""
    try:
        text: str = orjson.loads(token)
    except orjson.JSONDecodeError:  # half of a surrogate pair, or invalid UTF-8
        text = json.loads(token.decode(errors="replace"))
    return text


class Delta(NamedTuple):
    """A piece of a text in an event of a stream.

    channel: equal for all pieces of one text.
    place:   the object that has the piece.
    field:   its name there.
    in_json: whether the text is JSON.
    """

    channel: Channel
    place: dict[str, Any]
    field: str
    in_json: bool = False

    @property
    def text(self) -> str:
        """The piece."""
        text: str = self.place[self.field]
        return text


class Reading(NamedTuple):
    """The pieces of an event, and the texts that end with it.

    ends: returns whether the text of a channel has no further piece behind the event.
    """

    deltas: list[Delta]
    ends: Callable[[Channel], bool]


def _deltas_in(
    channel: Channel, place: dict[str, Any], *fields: str
) -> Iterator[Delta]:
    """Yield the texts in these fields of an object."""
    for field in fields:
        if isinstance(place.get(field), str):
            in_json = field in _JSON_TEXTS
            yield Delta((*channel, field), place, field, in_json=in_json)


def _anthropic(event: dict[str, Any]) -> Reading:
    """Read an event of the Messages API."""
    kind = event.get("type")
    index = event.get("index")
    if kind == "content_block_delta":
        place = base.mapping(event, "delta")
        return Reading(
            list(_deltas_in((index,), place, "text", "partial_json")), _never
        )
    if kind == "content_block_stop":
        return Reading([], lambda channel: channel[0] == index)
    if kind in ("message_delta", "message_stop", "error"):
        return Reading([], _always)
    return Reading([], _never)


def _chat(event: dict[str, Any]) -> Reading:
    """Read a chunk of a chat completion."""
    deltas: list[Delta] = []
    ended: list[Any] = []
    for choice in base.each(event, "choices"):
        index = choice.get("index")
        place = base.mapping(choice, "delta")
        texts = ("content", "refusal", "reasoning_content", "reasoning")
        deltas += _deltas_in((index,), place, *texts)
        function = base.mapping(place, "function_call")
        deltas += _deltas_in((index, "function"), function, "arguments")
        for call in base.each(place, "tool_calls"):
            channel = (index, call.get("index"))
            function = base.mapping(call, "function")
            deltas += _deltas_in(channel, function, "arguments")
            deltas += _deltas_in(channel, base.mapping(call, "custom"), "input")
        if choice.get("finish_reason"):
            ended.append(index)
    if event.get("error"):
        return Reading(deltas, _always)
    return Reading(deltas, lambda channel: channel[0] in ended)


def _responses(event: dict[str, Any]) -> Reading:
    """Read an event of the Responses API."""
    kind = base.text(event, "type") or ""
    index = event.get("output_index")
    if kind.endswith(".delta") and isinstance(event.get("delta"), str):
        part = event.get("content_index", event.get("summary_index"))
        channel = (index, kind, part)
        in_json = any(name in kind for name in _JSON_DELTAS)
        return Reading([Delta(channel, event, "delta", in_json=in_json)], _never)
    if index is not None:
        return Reading([], lambda channel: channel[0] == index)
    return Reading([], _always)


def _gemini(event: dict[str, Any]) -> Reading:
    """Read a chunk of Gemini, which may be in an envelope."""
    deltas: list[Delta] = []
    ends = _never
    for candidate in base.each(base.mapping(event, "response") or event, "candidates"):
        index = candidate.get("index", 0)
        for part in base.each(candidate, "content", "parts"):
            if isinstance(part.get("text"), str):
                if part.get("thought") is not True:
                    deltas.append(Delta((index,), part, "text"))
            else:
                ends = _always
        if candidate.get("finishReason"):
            ends = _always
    return Reading(deltas, _always if event.get("error") else ends)


def _ollama(event: dict[str, Any]) -> Reading:
    """Read a line of Ollama."""
    deltas = list(_deltas_in((), event, "response"))
    deltas += _deltas_in((), base.mapping(event, "message"), "content", "thinking")
    ends = event.get("done") is True or bool(event.get("error"))
    return Reading(deltas, _always if ends else _never)


def _always(channel: Channel) -> bool:  # noqa: ARG001  # as all of these are called
    return True


def _never(channel: Channel) -> bool:  # noqa: ARG001  # as all of these are called
    return False


_READERS: Final[Mapping[str, Callable[[dict[str, Any]], Reading]]] = {
    "anthropic-messages": _anthropic,
    "openai-chat": _chat,
    "openai-responses": _responses,
    "gemini": _gemini,
    "ollama": _ollama,
}


class _Held(NamedTuple):
    """The beginning of a placeholder that was held back.

    lines:  the lines of the event before its data.
    event:  the event that it was cut from.
    number: the number of its delta in the event.
    """

    text: str
    lines: list[bytes]
    event: dict[str, Any]
    number: int


class RevealedStream:
    """Gives the values back in an answer, as it arrives.

    protocol: the name of the protocol.
    is_events: whether the answer consists of server-sent events.
    """

    def __init__(
        self, placeholders: Placeholders, protocol: str, *, is_events: bool
    ) -> None:
        self._placeholders = placeholders
        self._read = _READERS[protocol]
        self._is_events = is_events
        self._is_lines = not is_events and protocol == "ollama"
        self._buffer = bytearray()
        self._searched = 0  # bytes of the buffer in which no event ends
        self._held: dict[Channel, _Held] = {}

    @property
    def waiting_bytes(self) -> int:
        """The bytes that arrived, and that the client has not got yet."""
        return len(self._buffer)

    def feed(self, chunk: bytes) -> bytes:
        """Return what the client gets for the next bytes of the answer."""
        self._buffer += chunk
        output: list[bytes] = []
        if self._is_events:
            while (end := _EVENT_END.search(self._buffer, self._searched)) is not None:
                output.append(self._frame(bytes(self._buffer[: end.end()])))
                del self._buffer[: end.end()]
                self._searched = 0
            self._searched = max(0, len(self._buffer) - 3)
        elif self._is_lines and b"\n" in chunk:
            *lines, rest = bytes(self._buffer).split(b"\n")
            self._buffer = bytearray(rest)
            for line in lines:
                output.append(self._line(line) + b"\n")
        return b"".join(output)

    def end(self) -> bytes:
        """Return what the client gets at the end of the answer."""
        rest = bytes(self._buffer)
        self._buffer = bytearray()
        if self._is_events:
            return (self._frame(rest) if rest else b"") + self._flushed(_always)
        if self._is_lines:
            return (self._line(rest) if rest else b"") + self._flushed(_always)
        try:
            value, _ = json_of(rest)
        except ValueError:
            return rest
        revealed = self._placeholders.revealed_value(value)
        return rest if revealed == value else orjson.dumps(revealed)

    def _frame(self, frame: bytes) -> bytes:
        """Return a server-sent event with the values."""
        if not self._held and not _BEGINNING.search(frame):
            return frame
        lines: list[bytes] = []
        data: list[bytes] = []
        for line in frame.splitlines():
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
            elif line:
                lines.append(line)
        if not data:
            return frame
        try:
            event, _ = json_of(b"\n".join(data))
        except ValueError:
            return self._flushed(_always) + frame
        if not isinstance(event, dict):
            return frame
        before, revealed = self._revealed(event, lines)
        if revealed is None:
            return before + frame
        return before + _written(lines, revealed)

    def _line(self, line: bytes) -> bytes:
        """Return a line with the values."""
        if not self._held and not _BEGINNING.search(line):
            return line
        try:
            event, _ = json_of(line)
        except ValueError:
            return line
        if not isinstance(event, dict):
            return line
        before, revealed = self._revealed(event, [])
        return before + (line if revealed is None else orjson.dumps(revealed))

    def _revealed(
        self, event: dict[str, Any], lines: list[bytes]
    ) -> tuple[bytes, dict[str, Any] | None]:
        """Return what precedes an event, and the event with values, if it changes."""
        original = deepcopy(event)
        reading = self._read(event)
        for number, delta in enumerate(reading.deltas):
            held = self._held.pop(delta.channel, None)
            text = (held.text if held else "") + delta.text
            if not reading.ends(delta.channel):
                text, rest = self._placeholders.split(text)
                if rest:
                    kept = _Held(rest, lines, original, number)
                    self._held[delta.channel] = kept
            text = self._placeholders.revealed(text, in_json=delta.in_json)
            delta.place[delta.field] = text
        pieces = {id(delta.place): delta.field for delta in reading.deltas}
        revealed = self._placeholders.revealed_value(event, "", pieces)
        before = self._flushed(reading.ends)
        return before, None if revealed == original else revealed

    def _flushed(self, ends: Callable[[Channel], bool]) -> bytes:
        """Return events with the texts that were held back, and have no further piece.

        They only began like a placeholder.
        """
        output: list[bytes] = []
        for channel in [*self._held]:
            if not ends(channel):
                continue
            held = self._held.pop(channel)
            event = deepcopy(held.event)
            for number, delta in enumerate(self._read(event).deltas):
                delta.place[delta.field] = held.text if number == held.number else ""
            if self._is_lines:
                output.append(orjson.dumps(event) + b"\n")
            else:
                output.append(_written(held.lines, event))
        return b"".join(output)


def _written(lines: list[bytes], event: dict[str, Any]) -> bytes:
    """Return a server-sent event with this data behind its other lines."""
    return b"\n".join([*lines, b"data: " + orjson.dumps(event), b"", b""])
