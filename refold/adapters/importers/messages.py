"""Messages with blocks, of whichever API: those of a file, and the events of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import Any, Literal, TypeAlias, TypeVar

from refold.adapters.importers import base
from refold.domain.canonical import canonical
from refold.domain.events import JsonObject

Kind = TypeVar("Kind")

_RESPONSE = frozenset({"text", "thinking", "redacted_thinking", "tool_use"})
_THINKING = ("type", "thinking", "signature", "data")
# How a file is given: where an attachment holds it, and where its block does.
_SOURCES = {
    "base64": ("data", "data"),
    "text": ("text", "data"),
    "url": ("url", "url"),
    "file": ("url", "file_id"),
    "content": ("text", "content"),
}
CANNOT_READ = "content that is neither text nor blocks"
EMPTY = base.Skipped("", "empty message")
NO_CALL = base.Skipped("", "tool result that does not name its call")
CITATIONS = "citations; their text was imported"


def said(
    texts: Sequence[str], attachments: Sequence[JsonObject] = ()
) -> base.Piece | base.Skipped:
    """What a user said in one message, part after part."""
    joined = "\n\n".join(part for part in texts if part)
    if not joined and not attachments:
        return EMPTY
    return base.Piece("user_input", {"text": joined, "attachments": list(attachments)})


def answered(
    texts: Sequence[str],
    thinking: Sequence[JsonObject] = (),
    *,
    stop_reason: str | None = None,
) -> Iterator[base.Piece]:
    """What a model said in one response: nothing if it only called tools."""
    joined = "".join(texts)
    if joined or thinking:
        fields: JsonObject = {"text": joined, "thinking": list(thinking)}
        if stop_reason:
            fields["stop_reason"] = stop_reason
        yield base.Piece("agent_response", fields)


def called(call_id: Any, name: Any, arguments: Any) -> base.Piece | base.Skipped:
    """A call of a tool, if it can be told which."""
    if not base.text(call_id):
        return base.Skipped("", "tool call without an id: no result could belong to it")
    if not base.text(name):
        return base.Skipped("", "tool call that does not name its tool")
    if not isinstance(arguments, dict | str | None):
        arguments = canonical(arguments).decode()
    made = {} if arguments is None else arguments
    fields = {"call_id": call_id, "tool_name": name, "arguments": made}
    return base.Piece("tool_call", fields)


def returned(
    call_id: str, content: Any, *, failed: bool = False, took: float | None = None
) -> base.Piece:
    """What a call gave, after ``took`` milliseconds."""
    told = "" if content is None else content
    status = "error" if failed else "ok"
    fields = {"call_id": call_id, "content": told, "status": status}
    timed = {} if took is None else {"duration_ms": took}
    return base.Piece("tool_result", fields | timed)


def heard(
    parts: Sequence[tuple[int, Any]],
    words: Callable[[Any], str | None],
    file: Callable[[dict[str, Any]], JsonObject | None],
    why: str,
) -> Iterator[base.Found]:
    """What a user said in these parts; ``why`` one that is neither is left out."""
    texts, files = [], []
    for index, part in parts:
        told, held = words(part), file(base.mapping(part))
        if told is not None:
            texts.append(told)
        elif held is not None:
            files.append(held)
        else:
            yield base.Skipped(f"content[{index}]", why)
    if texts or files or not parts:
        yield said(texts, files)


def of_no_role(role: Any) -> base.Skipped:
    """Why a message of this role is left out."""
    if isinstance(role, str):
        return base.Skipped("", "message of an unknown role")
    return base.Skipped("", "not a message: no object with a role")


def system(content: Any) -> base.Piece | base.Skipped:
    """A system prompt that is a text, or text blocks."""
    texts = plain(content)
    if texts is None:
        return base.Skipped("", CANNOT_READ)
    return base.Piece("system", {"text": "\n\n".join(texts)})


def system_message(content: Any) -> base.Piece | base.Skipped:
    """A system or developer message that stands in a list of messages."""
    piece = system(content)
    if isinstance(piece, base.Skipped):
        return piece
    return piece._replace(among_messages=True)


def unreadable(content: Any) -> Iterator[base.Skipped]:
    """Say so if a model's content is there, but neither a text nor a list."""
    if not isinstance(content, str | list | None):
        yield base.Skipped("", CANNOT_READ)


def parts(content: Any) -> list[Any]:
    """The parts of a content; a text is the only one, if it is not empty."""
    return [content] if base.text(content) else base.sequence(content)


def plain(content: Any) -> list[str] | None:
    """The texts of a content that has nothing else in it, or None."""
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        return None
    texts = [told for part in content if (told := words(part)) is not None]
    return texts if len(texts) == len(content) else None


def joined_text(content: Any) -> str:
    """The texts of a content, each on lines of its own, without its other parts."""
    texts = [words(part) for part in parts(content)]
    return "\n".join(text for text in texts if text)


def words(part: Any) -> str | None:
    """The text that a part is, or the text block."""
    told = base.at(part, "text") if base.at(part, "type") == "text" else part
    return told if isinstance(told, str) else None


def user(content: Any) -> Iterator[base.Found]:
    """The events of a user's message: texts and files in runs, results in between."""
    if isinstance(content, str):
        yield said([content])
    elif not isinstance(content, list):
        yield base.Skipped("", CANNOT_READ)
    elif not content:
        yield EMPTY
    else:
        for is_result, run in runs(content, lambda b: _type_of(b) == "tool_result"):
            if is_result:
                yield from map(_result, run)
            else:
                why = "block of an unknown type"
                yield from heard(run, words, attachment, why)


def agent(content: Any, *, stop_reason: Any = None) -> Iterator[base.Found]:
    """The events of a model's message.

    A response's text and thinking come first, its calls after them.  What only the
    provider can read stands between two responses, byte for byte.
    """
    yield from unreadable(content)
    if not isinstance(content, str | list | None):
        return
    reason, made = base.text(stop_reason), list[base.Found]()
    for kind, run in runs(parts(content), _kind):
        if kind == "response":
            made += _responses(run, reason)
        elif kind == "provider":
            made += provider(run)
        else:
            why = "not a block: no object with a type"
            made += (base.Skipped(f"content[{index}]", why) for index, _ in run)
    yield from made or [EMPTY]


def provider(run: Iterable[tuple[int, Any]]) -> list[base.Found]:
    """What a provider did by itself: nothing of it is read here."""
    return [base.Piece("provider_edit", {"blocks": [block for _, block in run]})]


def runs(
    parts: Sequence[Any], kind: Callable[[Any], Kind]
) -> Iterator[tuple[Kind, list[tuple[int, Any]]]]:
    """The parts with their indices, put together as long as they are of one kind."""
    for told, run in groupby(enumerate(parts), key=lambda item: kind(item[1])):
        yield told, list(run)


def thought(text: str | None) -> list[JsonObject]:
    """What a model thought, as the only block; none where it is not told."""
    return [{"type": "thinking", "thinking": text}] if text else []


def thinking_of(block: dict[str, Any]) -> JsonObject:
    """A thinking block, as the provider gave it."""
    return {key: block[key] for key in _THINKING if isinstance(block.get(key), str)}


def attachment(block: dict[str, Any]) -> JsonObject | None:
    """The file of a block, or None if it holds none: an image, a document, a search
    result, or a file for the container of a tool.
    """
    if block.get("type") == "search_result":
        return _search_result(block)
    if block.get("type") == "container_upload":
        name = base.text(block, "file_id")
        return {"kind": "file", "url": f"file:{name}"} if name else None
    kind, source = block.get("type"), base.mapping(block, "source")
    where = _SOURCES.get(base.text(source, "type") or "")
    if kind not in ("image", "document") or where is None:
        return None
    key, field = where
    held = source.get(field)
    if field == "content":
        held = "\n\n".join(plain(held) or [])
    if not base.text(held):
        return None
    found = {"kind": kind, key: f"file:{held}" if field == "file_id" else held}
    found |= {"name": name} if (name := base.text(block, "title")) else {}
    media = base.text(source, "media_type")
    return found | ({"media_type": media} if media else {})


def _search_result(block: dict[str, Any]) -> JsonObject | None:
    """What was found, as a document with the texts, title and source of the block."""
    texts = plain(block.get("content"))
    if texts is None:
        return None
    found: JsonObject = {"kind": "document", "text": "\n\n".join(texts)}
    if title := base.text(block, "title"):
        found["name"] = title
    if source := base.text(block, "source"):
        found["url"] = source
    return found


def _result(item: tuple[int, Any]) -> base.Found:
    index, block = item
    call_id = base.text(block, "tool_use_id")
    if call_id is None:
        return base.placed(NO_CALL, f"content[{index}]")
    failed = block.get("is_error") is True
    return returned(call_id, block.get("content"), failed=failed)


def _responses(
    run: list[tuple[int, Any]], stop_reason: str | None
) -> Iterator[base.Found]:
    texts = [said for _, block in run if (said := words(block)) is not None]
    thinking = [thinking_of(one) for _, one in run if "thinking" in _type_of(one)]
    yield from answered(texts, thinking, stop_reason=stop_reason)
    for index, block in run:
        place = f"content[{index}]"
        if _type_of(block) == "text" and words(block) is None:
            yield base.Skipped(place, "text block without a text")
        if base.sequence(block, "citations"):
            yield base.Skipped(place, CITATIONS)
        if _type_of(block) == "tool_use":
            call = called(block.get("id"), block.get("name"), block.get("input"))
            yield base.placed(call, place)


def _type_of(block: Any) -> str:
    return base.text(block, "type") or ""


def _kind(block: Any) -> str:
    if isinstance(block, str):
        return "response"
    if not isinstance(base.at(block, "type"), str):
        return "unknown"
    return "response" if block["type"] in _RESPONSE else "provider"


Dialect: TypeAlias = Literal["openai", "anthropic"]

_SESSION_KEYS = ("session_id", "conversation_id", "thread_id", "id")
_READ_KEYS = frozenset({*_SESSION_KEYS, "messages", "system", "model"})
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_OPENAI_ROLES = frozenset({"tool", "function"})
_OPENAI_KEYS = ("tool_calls", "function_call", "tool_call_id", "refusal")
_OPENAI_PARTS = frozenset({"image_url", "input_audio", "file", "refusal"})
_OF_MODEL = {"compaction", "mcp_tool_use", "redacted_thinking", "server_tool_use"}
_OF_EITHER = {"container_upload", "document", "image", "search_result"}
_ANTHROPIC_BLOCKS = frozenset(_OF_MODEL | _OF_EITHER | {"thinking", "tool_use"})


@dataclass(frozen=True, slots=True)
class Message:
    """A message as the file has it; ``index`` is its place in its conversation."""

    place: str
    index: int
    value: dict[str, Any]

    @property
    def of_model(self) -> bool:
        """Whether a model wrote it."""
        return self.value.get("role") == "assistant"

    @property
    def response_id(self) -> str:
        """Which response of a model it is: its id, else its place."""
        return base.text(self.value, "id") or f"msg:{self.index}"

    @property
    def source(self) -> JsonObject:
        """Its id, if it has one."""
        return {"id": self.value["id"]} if base.text(self.value, "id") else {}


@dataclass(frozen=True, slots=True)
class Conversation:
    """The messages of one session; ``header`` is the object around them."""

    place: str
    messages: Iterable[Message]
    header: dict[str, Any] = field(default_factory=dict)

    @property
    def session(self) -> Any:
        """What the file calls the session, if it says."""
        return next((self.header[k] for k in _SESSION_KEYS if k in self.header), "")

    @property
    def unread(self) -> list[str]:
        """The fields around the messages that have no place in a transcript."""
        return sorted(self.header.keys() - _READ_KEYS)


def conversations(source: base.Source) -> Iterator[Conversation]:
    """The conversations of a file, in its order; none if it holds no chat."""
    if source.is_lines:
        yield from _of_lines(source.lines())
        return
    document = source.document
    if isinstance(document, dict) and "role" in document and "messages" not in document:
        yield from _of_lines(iter([base.Line(1, document)]))
    elif isinstance(document, dict) or _is_chat(document):
        yield from _of_value("", document)
    else:
        for index, item in enumerate(base.sequence(document)):
            yield from _of_value(f"[{index}]", item)


def dialect(source: base.Source) -> Dialect | None:
    """Whose messages these are, or None if that cannot be told.

    Tool calls, their results and files tell; failing those, a ``system`` beside the
    messages tells the Messages API.  What fits both, text alone, is read as OpenAI's.
    """
    found: set[Dialect] = set()
    aside = chatting = False
    for conversation in conversations(source):
        if "core_memory" in conversation.header:  # with more: a format of its own
            return None
        aside |= "system" in conversation.header
        for message in conversation.messages:
            if base.text(message.value, "role") not in _ROLES:
                return None
            chatting = True
            aside &= message.value["role"] not in ("system", "developer")
            found |= _evidence(message.value)
    if not chatting or len(found) > 1:
        return None
    return next(iter(found), "anthropic" if aside else "openai")


def _of_lines(lines: Iterator[base.Line]) -> Iterator[Conversation]:
    if (first := next(lines, None)) is None:
        return
    everything = chain([first], lines)
    if isinstance(first.value, list) or "messages" in base.mapping(first.value):
        for line in everything:
            yield from _of_value(f"line {line.number}", line.value)
    else:
        messages = (
            Message(f"line {line.number}", index, base.mapping(line.value))
            for index, line in enumerate(everything)
        )
        yield Conversation("", messages)


def _of_value(place: str, value: Any) -> Iterator[Conversation]:
    """One conversation; of what is none, one whose only message cannot be read."""
    prefix = f"{place} " if place else ""
    header = base.mapping(value)
    if isinstance(header.get("messages"), list):
        yield Conversation(place, numbered(header["messages"], prefix), header)
    elif _is_chat(value):
        yield Conversation(place, numbered(value, prefix))
    elif place:
        yield Conversation(place, [Message(place, 0, {})])


def _is_chat(value: Any) -> bool:
    items = base.sequence(value)
    return bool(items) and all("role" in base.mapping(item) for item in items)


def numbered(
    messages: Iterable[Any], prefix: str = "", name: str = "messages"
) -> list[Message]:
    """These values as messages, with their places in the list of that name."""
    return [
        Message(f"{prefix}{name}[{index}]", index, base.mapping(value))
        for index, value in enumerate(messages)
    ]


def _evidence(message: dict[str, Any]) -> set[Dialect]:
    found: set[Dialect] = set()
    by_key = any(message.get(key) for key in _OPENAI_KEYS)
    if message["role"] in _OPENAI_ROLES or by_key:
        found.add("openai")
    for part in base.sequence(message, "content"):
        kind = base.text(part, "type") or ""
        if kind in _OPENAI_PARTS:
            found.add("openai")
        elif kind in _ANTHROPIC_BLOCKS or kind.endswith("tool_result"):
            found.add("anthropic")
    return found
