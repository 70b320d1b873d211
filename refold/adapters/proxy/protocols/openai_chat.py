"""The Chat Completions API of OpenAI, which many other providers have, too."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from refold.adapters.importers import base, openai
from refold.adapters.proxy.conversation import WireAnswer, WireRequest
from refold.adapters.proxy.protocols import chat, clients, errors, openai_shared
from refold.adapters.proxy.protocols.answers import received
from refold.adapters.proxy.protocols.beginnings import Beginnings, Frame
from refold.adapters.proxy.protocols.reading import (
    Notes,
    endpoint,
    without_secrets,
)
from refold.adapters.proxy.protocols.streams import DONE
from refold.domain.events import AgentError, JsonObject

NAME: Final = "openai-chat"
LAST_LINES: Final[tuple[bytes, ...]] = (b"data: [DONE]",)
_DEPLOYMENT: Final = re.compile("/deployments/([^/]+)/")
# Texts of a message that come in pieces.
_PIECES: Final = ("content", "reasoning", "reasoning_content", "refusal")


def matches(method: str, path: str) -> bool:
    """Whether a request is for a chat completion, also of Azure's deployments."""
    return method == "POST" and endpoint(path).endswith("/chat/completions")


def request(body: bytes, headers: Mapping[str, str], path: str) -> WireRequest:
    """Return a request as events.  Raises NotRecordable."""
    content = _BEGINNINGS.read(body, _begin)
    frame = content.frame
    return WireRequest(
        protocol=NAME,
        model=base.text(frame.fields, "model") or _deployment(path),
        system=content.reading.system,
        tools=frame.tools,
        messages=content.messages(),
        options=frame.options,
        hint=clients.hint(headers, frame.fields),
        stream=frame.fields.get("stream") is True,
        warnings=content.notes().warnings(),
    )


def _begin(_: Frame) -> chat.Reading:
    """Return a new reading."""
    return chat.Reading(NAME, _as_message)


def _as_message(message: Any) -> Any:
    """Return a message whose fields can be read by name, if it has any."""
    return base.mapping(message) or message


def _frame(fields: JsonObject, notes: Notes) -> Frame:
    """Return the fields of a body besides its messages."""
    tools = [*base.each(fields, "tools"), *base.each(fields, "functions")]
    return Frame(
        fields=fields,
        system=None,
        tools=tuple(openai_shared.tool_of(tool) for tool in tools),
        options=without_secrets(
            fields, "functions", "messages", "model", "stream", "tools"
        ),
        notes=notes,
    )


_BEGINNINGS: Final = Beginnings(NAME, frame=_frame)


def _deployment(path: str) -> str | None:
    """Return the deployment that a path of Azure names, else None."""
    deployment = _DEPLOYMENT.search(endpoint(path))
    return deployment[1] if deployment else None


def answer(
    status: int, headers: Mapping[str, str], body: bytes, *, complete: bool
) -> WireAnswer:
    """Return an answer as events."""
    notes = Notes()
    completion = received(
        status,
        headers,
        body,
        NAME,
        notes,
        complete=complete,
        content="choices",
        stream=_Stream(),
    )
    if isinstance(completion, WireAnswer):
        return completion
    return chat.answer(
        completion.value,
        NAME,
        notes,
        complete=completion.complete,
        error=completion.error,
    )


class _Stream:
    """Joins the chunks of a stream to a completion.

    complete: whether the first choice has ended, or the stream.
    """

    def __init__(self) -> None:
        self.complete = False
        self.error: AgentError | None = None
        self._fields: JsonObject = {}
        self._choices: dict[int, _Choice] = {}

    def take(self, name: str, chunk: dict[str, Any]) -> None:
        """Take the next chunk."""
        if name == DONE.decode():
            self.complete = True
            return
        if chunk.get("error"):
            self.error = errors.error_in(chunk, NAME)
            return
        for field, value in chunk.items():
            if field != "choices" and value not in (None, ""):
                self._fields[field] = value
        for choice in base.each(chunk, "choices"):
            index = choice.get("index")
            if not isinstance(index, int):
                index = 0
            self._choices.setdefault(index, _Choice()).take(choice)
            if index == 0 and base.text(choice, "finish_reason"):
                self.complete = True

    def joined(self) -> JsonObject:
        """Return the completion, as far as it came."""
        choices: list[Any] = []
        for index in sorted(self._choices):
            choices.append(self._choices[index].value(index))
        return {**self._fields, "choices": choices}


class _Choice:
    """A choice of a stream."""

    def __init__(self) -> None:
        self._fields: JsonObject = {}
        self._texts: dict[str, list[str]] = {}
        self._message: JsonObject = {}
        self._audio: dict[str, list[str]] = {}
        # By the name of a field, the items of its lists.
        self._lists: dict[str, list[Any]] = {}
        self._logprobs: dict[str, list[Any]] = {}
        self._calls: list[_Call] = []
        # By the index of a call in the stream, its place in the list.
        self._places: dict[int, int] = {}

    def take(self, choice: dict[str, Any]) -> None:
        """Take the next part of the choice; some servers send a whole message last."""
        for name, value in choice.items():
            if name == "logprobs":
                for kind in base.mapping(value):
                    tokens = base.sequence(value, kind)
                    self._logprobs.setdefault(kind, []).extend(tokens)
            elif name not in ("delta", "index", "message") and value is not None:
                self._fields[name] = value
        delta = base.mapping(choice, "delta") or base.mapping(choice, "message")
        for name, value in delta.items():
            if value is None:
                continue
            if name in _PIECES and isinstance(value, str):
                self._texts.setdefault(name, []).append(value)
            elif name == "audio" and isinstance(value, dict):
                self._take_audio(value)
            elif name == "tool_calls":
                for call in base.each(value):
                    self._take_call(call)
            elif name == "function_call" and isinstance(value, dict):
                self._take_function(value)
            elif isinstance(value, list):
                self._lists.setdefault(name, []).extend(value)
            else:
                self._message[name] = value

    def _take_audio(self, audio: dict[str, Any]) -> None:
        """Join the transcript and the data; the other fields come once."""
        known = base.mapping(self._message, "audio")
        for name, value in audio.items():
            if name in ("data", "transcript") and isinstance(value, str):
                self._audio.setdefault(name, []).append(value)
            else:
                known[name] = value
        self._message["audio"] = known

    def _take_call(self, call: dict[str, Any]) -> None:
        """Add a delta of a call to the call with its index.

        Without an index, a new id begins a call.  An index with another id does so,
        too, since some servers give all calls the index 0.
        """
        index = call.get("index")
        call_id = base.text(call, "id")
        place = len(self._calls) - 1
        if isinstance(index, int):
            place = self._places.get(index, -1)
        if place < 0 or (call_id and self._calls[place].is_other(call_id)):
            self._calls.append(_Call())
            place = len(self._calls) - 1
        if isinstance(index, int):
            self._places[index] = place
        self._calls[place].take(call)

    def _take_function(self, function: dict[str, Any]) -> None:
        """Add a delta of a call of the older kind, of which there is one."""
        if not self._calls:
            self._calls.append(_Call())
        self._calls[0].take({"function": function})

    def value(self, index: int) -> JsonObject:
        """Return the choice, as far as it came."""
        message = {**self._message, **self._lists}
        for name, texts in self._texts.items():
            message[name] = "".join(texts)
        if self._audio:
            audio = dict(base.mapping(message, "audio"))
            for name, texts in self._audio.items():
                audio[name] = "".join(texts)
            message["audio"] = audio
        if self._calls:
            message["tool_calls"] = [call.value() for call in self._calls]
        fields = dict(self._fields)
        if any(self._logprobs.values()):
            fields["logprobs"] = dict(self._logprobs)
        return {**fields, "index": index, "message": message}


class _Call:
    """A call of a stream: its fields, and the pieces of its arguments."""

    def __init__(self) -> None:
        self._fields: JsonObject = {}
        self._tool = ""
        self._pieces: list[str] = []
        self._arguments: Any = None
        self._kind = "function"

    def is_other(self, call_id: str) -> bool:
        """Whether the id is that of another call."""
        return self._fields.get("id") not in (None, call_id)

    def take(self, call: dict[str, Any]) -> None:
        """Take a delta."""
        for name, value in call.items():
            if name not in ("custom", "function", "index") and value is not None:
                self._fields[name] = value
        if call.get("custom"):
            self._kind = "custom"
        function = base.mapping(call, "custom") or base.mapping(call, "function")
        tool = base.text(function, "name")
        if tool and not self._pieces and tool != self._tool:
            self._tool += tool
        arguments = openai.arguments_in(function)
        if isinstance(arguments, str):
            self._pieces.append(arguments)
        elif arguments is not None:
            self._arguments = arguments

    def value(self) -> JsonObject:
        """Return the call, as far as it came."""
        arguments = self._arguments
        if arguments is None:
            arguments = "".join(self._pieces)
        name = "input" if self._kind == "custom" else "arguments"
        function: JsonObject = {"name": self._tool, name: arguments}
        return {**self._fields, self._kind: function}
