"""Calls of models in traces: each has its whole history, of which most is known.

A trace has a call of a model with all messages that were sent, again for each call.
``ModelCalls`` records each message once.  A call whose history does not go on from an
earlier one belongs to another agent and becomes its own session.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from refold.adapters.importers import base, exports, messages, openai
from refold.domain.canonical import canonical, repaired, text_digest
from refold.domain.envelope import Mark
from refold.domain.events import JsonObject

# The roles of LangChain's messages.
_ROLES: Final = {
    "ai": "assistant",
    "aimessage": "assistant",
    "aimessagechunk": "assistant",
    "chat": "user",
    "human": "user",
    "humanmessage": "user",
    "model": "assistant",
    "systemmessage": "system",
    "toolmessage": "tool",
}
_KNOWN: Final = frozenset(
    {"assistant", "developer", "function", "system", "tool", "user", ""}
)
# The fields of the arguments of a call, and of the content of a result.
_ARGUMENTS: Final = ("args", "arguments", "input")
_RESULTS: Final = ("response", "result", "output", "content")
# Blocks of the Messages API.
_BLOCKS: Final = frozenset(
    {"document", "image", "redacted_thinking", "thinking", "tool_result", "tool_use"}
)


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A call of a model.

    id:      of the call in its trace.
    history: the messages that were sent.
    answer:  the messages that came back, usually one.
    source:  further facts, which are stored with the answer.
    error:   why the call failed; empty if it did not.
    """

    id: str
    place: str
    history: Sequence[dict[str, Any]]
    answer: Sequence[dict[str, Any]]
    began_at: datetime | None = None
    ended_at: datetime | None = None
    model: str | None = None
    usage: JsonObject | None = None
    source: JsonObject = field(default_factory=dict)
    error: str = ""


@dataclass(slots=True)
class _Thread:
    """The messages of one agent: their digests and keys, and the recording."""

    recording: base.Recording
    reports: exports.Reports
    name: str
    parent: str | None
    digests: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    calls: openai.UnnamedCalls = field(default_factory=openai.UnnamedCalls)
    tools: dict[str, str] = field(default_factory=dict)  # by the ids of calls
    beginning: list[str] = field(default_factory=list)
    is_begun: bool = False

    def add(self, message: dict[str, Any], digest: str, key: str) -> bool:
        """Add a message; returns whether it is the first that is no system message.

        ``beginning`` has the digests up to that message.
        """
        self.digests.append(digest)
        self.keys.append(key)
        if self.is_begun:
            return False
        self.beginning.append(digest)
        self.is_begun = not _is_system(message)
        return self.is_begun

    def waiting_call(self, tool: str | None) -> str | None:
        """Return the oldest call of a tool, or of any tool, without a result."""
        for call_id in self.recording.waiting:
            if tool is None or self.tools.get(call_id) == tool:
                return call_id
        return None

    def shared(self, digests: Sequence[str]) -> int:
        """Return the number of messages at the front that a history shares."""
        shared = 0
        for old, new in zip(self.digests, digests, strict=False):
            if old != new:
                break
            shared += 1
        return shared


class ModelCalls:
    """Records the calls of one conversation, in their order."""

    def __init__(self, form: str, source: base.Source, name: str) -> None:
        self._form = form
        self._source = source
        self._name = name
        self._threads: list[_Thread] = []
        self._took: dict[str, float] = {}
        self._empty: list[str] = []  # the places of calls without messages
        # The threads by their messages up to the first that is no system message, and
        # by the ids of their calls.
        self._by_beginning: dict[tuple[str, ...], list[_Thread]] = {}
        self._by_call: dict[str, list[_Thread]] = {}

    @property
    def begun(self) -> bool:
        """Whether it has a call."""
        return bool(self._threads or self._empty)

    def took(self, call_id: str, milliseconds: float | None) -> None:
        """Remember the duration of a tool's call, which comes before its result."""
        if milliseconds is not None:
            self._took[call_id] = milliseconds

    def ran(
        self, call_id: str | None, began_at: datetime | None, ended_at: datetime | None
    ) -> None:
        """Remember the duration of a tool's call between two times, if both are known.

        call_id: None for a call that the file does not name.
        """
        if call_id is None or began_at is None or ended_at is None:
            return
        if ended_at >= began_at:
            milliseconds = (ended_at - began_at).total_seconds() * 1000
            self.took(call_id, round(milliseconds, 3))

    def add(self, call: ModelCall) -> None:
        """Record the messages of a call that no call before it had."""
        history = [each for message in call.history for each in normal(message)]
        answers = [each for value in call.answer for each in normal(value)]
        if not history and not answers and not call.error:
            self._empty.append(call.place)
            return
        digests = [_digest(message) for message in history]
        thread, shared = self._thread_of(history, digests)
        is_answered = shared == 0 and bool(thread.digests)
        if shared < len(thread.digests) and not is_answered:
            left_out = tuple(thread.keys[shared:])
            origin = base.Origin(call.place, key=f"{self._form}\0{call.id}\0edit")
            thread.recording.mark(Mark(left_out=left_out), origin, "removal")
            del thread.digests[shared:]
            del thread.keys[shared:]
        for index in range(shared, len(history)):
            key = f"{self._form}\0{call.id}\0{index}"
            origin = base.Origin(
                f"{call.place} messages[{index}]",
                ts=call.began_at,
                response_id=key if history[index]["role"] == "assistant" else None,
                key=key,
            )
            self._take(thread, history[index], digests[index], origin)
        usage = call.usage
        for index, message in enumerate(answers):
            origin = base.Origin(
                f"{call.place} answer[{index}]",
                ts=call.ended_at or call.began_at,
                model=call.model,
                response_id=call.id,
                usage=usage,
                source={"id": call.id, **call.source},
                key=f"{self._form}\0{call.id}\0answer\0{index}",
            )
            self._take(thread, message, _digest(message), origin)
            usage = None
        if call.error:
            fields = {"code": "model_call_failed", "message": call.error}
            origin = base.Origin(
                call.place, ts=call.ended_at, key=f"{self._form}\0{call.id}\0error"
            )
            thread.recording.take([base.Piece("error", fields)], origin)

    def report(self, why: str, place: str, *, note: bool = False) -> None:
        """Report content that no call has, with the first session."""
        if not self._threads:
            self._new_thread()
        self._threads[0].reports.add(why, place, note=note)

    def transcripts(self, title: str = "") -> Iterator[base.Transcript]:
        """Yield the transcripts of all agents, the first one first."""
        for place in self._empty:
            self.report("call of a model without messages", place)
        for thread in self._threads:
            thread.reports.finish()
            transcript = thread.recording.transcript(
                base.session_name(thread.name), parent=thread.parent
            )
            yield replace(transcript, title=title if thread.parent is None else "")

    def _thread_of(
        self, history: Sequence[dict[str, Any]], digests: Sequence[str]
    ) -> tuple[_Thread, int]:
        """Return the thread that a history goes on from, and the shared messages.

        It shares a message that is no system message, or else it has the results of
        the thread's calls without the messages before.  Otherwise the thread is new.
        """
        beginning: list[str] = []
        for message, digest in zip(history, digests, strict=True):
            beginning.append(digest)
            if not _is_system(message):
                break
        best: _Thread | None = None
        most = 0
        for thread in self._by_beginning.get(tuple(beginning), ()):
            shared = thread.shared(digests)
            if shared > most:
                best = thread
                most = shared
        if best is not None:
            return best, most
        for message in history:
            call_id = base.text(message, "tool_call_id") or ""
            for thread in self._by_call.get(call_id, ()):
                if thread.recording.waits(call_id):
                    return thread, 0
        return self._new_thread(), 0

    def _new_thread(self) -> _Thread:
        recording = base.Recording(self._form, self._source.name)
        number = len(self._threads) + 1
        name = self._name if number == 1 else f"{self._name}~{number}"
        parent = None if number == 1 else self._name
        reports = exports.Reports(recording)
        thread = _Thread(recording, reports, name, parent)
        self._threads.append(thread)
        return thread

    def _take(
        self, thread: _Thread, message: dict[str, Any], digest: str, origin: base.Origin
    ) -> None:
        """Record a message in a thread."""
        if thread.add(message, digest, origin.key or ""):
            beginning = tuple(thread.beginning)
            self._by_beginning.setdefault(beginning, []).append(thread)
        if message["role"] == "tool" and not message.get("tool_call_id"):
            call_id = thread.waiting_call(base.text(message, "name"))
            message = {**message, "tool_call_id": call_id}
        taken: list[base.PieceOrSkipped] = []
        for piece in _pieces(message, len(thread.keys), thread.calls):
            if isinstance(piece, base.Skipped):
                place = f"{origin.place} {piece.where}".strip()
                thread.reports.add(piece.why, place, note=piece.note)
                continue
            if piece.type == "tool_call":
                call_id = piece.fields["call_id"]
                if call_id not in thread.tools:
                    self._by_call.setdefault(call_id, []).append(thread)
                thread.tools[call_id] = piece.fields["tool_name"]
            if piece.type == "tool_result":
                took = self._took.pop(piece.fields["call_id"], None)
                if took is not None:
                    piece.fields["duration_ms"] = took
            taken.append(piece)
        thread.recording.take(taken, origin)


def _is_system(message: dict[str, Any]) -> bool:
    return message["role"] in ("system", "developer")


def normal(value: Any) -> list[dict[str, Any]]:
    """Return a message in the form of OpenAI's chat API.

    It may be one of LangChain, of Gemini, of OpenTelemetry's conventions, or an item
    of the Responses API, which stays as it is.  The results in a message become
    messages of their own.
    """
    message = base.mapping(value)
    kind = base.text(message, "type") or ""
    if "role" not in message and kind.endswith(("_call", "_output", "reasoning")):
        return [{"role": kind, "item": message}]
    if isinstance(message.get("id"), list):  # a serialized object of LangChain
        kind = str(message["id"][-1]) if message["id"] else ""
        message = base.mapping(message, "kwargs")
        kind = base.text(message, "type") or kind
    elif isinstance(message.get("data"), dict):
        message = message["data"]
    role = base.text(message, "role") or kind
    role = _ROLES.get(role.lower(), role)
    extra = base.mapping(message, "additional_kwargs")
    content = message.get("content", message.get("text"))
    parts = message.get("parts")
    reading = _Parts()
    reading.take(parts if isinstance(parts, list) else content)
    calls = base.sequence(message, "tool_calls") or base.sequence(extra, "tool_calls")
    calls = calls or base.sequence(message, "toolCalls") or reading.calls
    normalized: dict[str, Any] = {"role": role, "content": reading.content}
    if role not in _KNOWN:  # some frameworks name the tool here
        normalized.update(role="tool", name=role)
    if calls:
        normalized["tool_calls"] = [_call(base.mapping(call)) for call in calls]
    for name in ("tool_call_id", "name", "function_call", "refusal", "stop_reason"):
        if message.get(name):
            normalized[name] = message[name]
    thinking: str | None = reading.reasoning
    for owner in (message, extra):
        thinking = thinking or base.text(owner, "reasoning_content")
    if thinking:
        normalized["reasoning_content"] = thinking
    if base.text(message, "finish_reason"):
        normalized["finish_reason"] = message["finish_reason"]
    if message.get("status") == "error":
        normalized["status"] = "error"
    has_content = bool(reading.content or calls or thinking)
    if reading.results and not has_content:
        return reading.results
    return [*reading.results, normalized]


class _Parts:
    """The parts of a message: the content, with calls and results next to it."""

    def __init__(self) -> None:
        self.content: Any = None
        self.reasoning = ""
        self.calls: list[dict[str, Any]] = []
        self.results: list[dict[str, Any]] = []

    def take(self, content: Any) -> None:
        """Take a content: a text, or parts."""
        if not isinstance(content, list):
            self.content = content
            return
        others: list[Any] = []
        for part in content:
            if not self._take_part(base.mapping(part)):
                others.append(_text_part(part))
        self.content = others

    def _take_part(self, part: dict[str, Any]) -> bool:
        """Take a call, a result, or reasoning; returns whether the part is one."""
        kind = base.text(part, "type") or ""
        called = part.get("functionCall", part.get("function_call"))
        returned = part.get("functionResponse", part.get("function_response"))
        if isinstance(called, dict):
            self.calls.append(called)
        elif isinstance(returned, dict):
            self._add_result(returned, returned.get("response"))
        elif kind in ("tool_call", "tool-call"):
            self.calls.append(part)
        elif kind in ("tool_call_response", "tool-result"):
            results = [part[name] for name in _RESULTS if name in part]
            self._add_result(part, results[0] if results else None)
        elif kind == "reasoning" or part.get("thought") is True:
            texts = (self.reasoning, part.get("content"), part.get("text"))
            self.reasoning = "\n\n".join(text for text in texts if text)
        else:
            return False
        return True

    def _add_result(self, part: dict[str, Any], content: Any) -> None:
        """Add a result, which names its call or at least its tool."""
        self.results.append(
            {
                "role": "tool",
                "tool_call_id": part.get("id", part.get("toolCallId")),
                "name": part.get("name", part.get("toolName")),
                "content": content,
            }
        )


def _text_part(part: Any) -> Any:
    """Return a part; one with a text gets the form of OpenAI's."""
    text = base.at(part, "text")
    if text is None and base.at(part, "type") == "text":
        text = base.at(part, "content")
    is_plain = base.mapping(part).keys() <= {"content", "text", "type"}
    return (
        {"type": "text", "text": text} if isinstance(text, str) and is_plain else part
    )


def _call(call: dict[str, Any]) -> dict[str, Any]:
    """Return a call in the form of OpenAI's chat API."""
    function = base.mapping(call, "function")
    if not function:
        arguments = [call[name] for name in _ARGUMENTS if name in call]
        function = {
            "name": call.get("name", call.get("toolName")),
            "arguments": arguments[0] if arguments else {},
        }
    return {"id": call.get("id", call.get("toolCallId")), "function": function}


def _digest(message: dict[str, Any]) -> str:
    """Return a digest of what the model sees of a message.

    Texts are the same as blocks and as plain text, and so are arguments as JSON.
    """
    content = message.get("content")
    texts = messages.only_texts(content)
    if texts is not None:
        content = "".join(texts)
    calls: list[Any] = []
    for call in base.each(message, "tool_calls"):
        arguments = base.at(call, "function", "arguments")
        if isinstance(arguments, str):
            parsed, _ = base.parsed(arguments)
            arguments = arguments if parsed is None else parsed
        calls.append([call.get("id"), base.at(call, "function", "name"), arguments])
    names = ("role", "tool_call_id", "function_call", "item")
    seen = [content or None, calls, *(message.get(name) or None for name in names)]
    return text_digest(canonical(repaired(seen)[0]).decode())


def _pieces(
    message: dict[str, Any], place: int, calls: openai.UnnamedCalls
) -> Iterable[base.PieceOrSkipped]:
    """Return the events of a message."""
    item = base.mapping(message, "item")
    if item:
        pieces = list(openai.response_item(item))
        return pieces or [base.Skipped("", "item without a text or a call", note=True)]
    content = message["content"]
    has_blocks = any(
        base.at(block, "type") in _BLOCKS for block in base.sequence(content)
    )
    if has_blocks and message["role"] == "user":
        return messages.user(content)
    value = messages.Message("", place, message)
    if has_blocks and message["role"] == "assistant":
        if message.get("tool_calls"):  # LangChain has calls in both places
            content = [b for b in content if base.at(b, "type") != "tool_use"]
        pieces = list(messages.agent(content, stop_reason=message.get("stop_reason")))
        of_calls = list(openai.tool_calls(value, calls))
        if of_calls:
            pieces = [piece for piece in pieces if piece is not messages.EMPTY]
        return [*pieces, *of_calls]
    pieces = list(openai.pieces_of(value, calls))
    has_failed = message.get("status") == "error"
    for piece in pieces:
        if has_failed and isinstance(piece, base.Piece) and piece.type == "tool_result":
            piece.fields["status"] = "error"
    return pieces


def messages_in(value: Any) -> list[dict[str, Any]]:
    """Return the messages in the input of a call; a text is one of a user.

    Texts that are JSON, as some exports have them, are parsed.
    """
    if isinstance(value, str):
        parsed, _ = base.parsed(value)
        if not isinstance(parsed, dict | list):
            return [{"role": "user", "content": value}] if value else []
        value = parsed
    if isinstance(value, list):
        if len(value) == 1 and isinstance(value[0], list):  # LangChain's batches
            value = value[0]
        return [
            item if isinstance(item, dict) else {"role": "user", "content": item}
            for item in value
        ]
    fields = base.mapping(value)
    for name in ("messages", "contents", "input", "prompts", "prompt"):
        if fields.get(name):
            history = messages_in(fields[name])
            system = fields.get("system") or base.at(
                fields, "config", "system_instruction"
            )
            if system:
                history.insert(0, {"role": "system", "content": system})
            return history
    if not fields:
        return []
    if isinstance(fields.get("content"), dict):
        return [fields["content"]]
    if fields.keys() & {"content", "parts", "role", "type"} or _is_serialized(fields):
        return [fields if "role" in fields else {"role": "user", **fields}]
    return [{"role": "user", "content": canonical(repaired(fields)[0]).decode()}]


def answers_in(value: Any) -> list[dict[str, Any]]:
    """Return the messages in the output of a call, which are those of the model."""
    if isinstance(value, str):
        parsed, _ = base.parsed(value)
        value = parsed if isinstance(parsed, dict | list) else value
    choices = [*base.each(value, "choices")]
    if choices:
        return [{"role": "assistant", **base.mapping(choices[0], "message")}]
    if base.at(value, "object") == "response":
        return [*base.each(value, "output")]
    calls = [base.mapping(item) for item in base.sequence(value)]
    if calls and all("toolCallId" in call for call in calls):
        return [{"role": "assistant", "content": None, "tool_calls": calls}]
    answers: list[dict[str, Any]] = []
    for message in messages_in(value):
        is_item = "role" not in message and "type" in message
        if is_item or _is_serialized(message):
            answers.append(message)
        else:
            answers.append({**message, "role": "assistant"})
    return answers


def instructions_in(output: Any) -> list[dict[str, Any]]:
    """Return the system prompt that an output of the Responses API repeats."""
    if isinstance(output, str):
        output, _ = base.parsed(output)
    text = base.text(output, "instructions")
    return [{"role": "system", "content": text}] if text else []


def _is_serialized(value: dict[str, Any]) -> bool:
    """Whether a value is a serialized message of LangChain."""
    return isinstance(value.get("id"), list) and "kwargs" in value
