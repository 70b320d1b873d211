"""Messages with blocks, of any API: the messages of a file, and their events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import Any, Literal, TypeAlias, TypeVar

from refold.adapters.importers import base, exit_codes
from refold.domain.canonical import canonical
from refold.domain.events import JsonObject
from refold.domain.ids import unknown_response_id

Kind = TypeVar("Kind")

_RESPONSE = frozenset({"text", "thinking", "redacted_thinking", "tool_use"})
_THINKING = ("type", "thinking", "signature", "data")
# By the type of a source: the field of the attachment, and the field of the source.
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


def user_input(
    texts: Sequence[str], attachments: Sequence[JsonObject] = ()
) -> base.Piece | base.Skipped:
    """Return the user input of one message, with its texts joined."""
    joined = "\n\n".join(text for text in texts if text)
    if not joined and not attachments:
        return EMPTY
    return base.Piece("user_input", {"text": joined, "attachments": list(attachments)})


def response(
    texts: Sequence[str],
    thinking: Sequence[JsonObject] = (),
    *,
    stop_reason: str | None = None,
) -> Iterator[base.Piece]:
    """Yield a model's response, unless it consists of tool calls alone."""
    joined = "".join(texts)
    if joined or thinking:
        fields: JsonObject = {"text": joined, "thinking": list(thinking)}
        if stop_reason:
            fields["stop_reason"] = stop_reason
        yield base.Piece("agent_response", fields)


def tool_call(call_id: Any, name: Any, arguments: Any) -> base.Piece | base.Skipped:
    """Return a tool call, or the report of a call that lacks its id or its tool."""
    if not base.text(call_id):
        return base.Skipped("", "tool call without an id: no result could belong to it")
    if not base.text(name):
        return base.Skipped("", "tool call that does not name its tool")
    if arguments is None:
        arguments = {}
    elif not isinstance(arguments, dict | str):
        arguments = canonical(arguments).decode()
    fields = {"call_id": call_id, "tool_name": name, "arguments": arguments}
    return base.Piece("tool_call", fields)


def tool_result(
    call_id: str, content: Any, *, failed: bool = False, took: float | None = None
) -> base.Piece:
    """Return the result of a call.

    took: the duration of the call in milliseconds.
    """
    fields = {
        "call_id": call_id,
        "content": "" if content is None else content,
        "status": "error" if failed else "ok",
    }
    if took is not None:
        fields["duration_ms"] = took
    return base.Piece("tool_result", fields)


def result_of_command(call_id: str, content: Any) -> base.Piece:
    """Return the result of a call in a form that does not say whether it failed."""
    failed = exit_codes.states_failure(content)
    return tool_result(call_id, content, failed=failed)


def user_parts(
    parts: Sequence[tuple[int, Any]],
    text: Callable[[Any], str | None],
    file: Callable[[dict[str, Any]], JsonObject | None],
    why: str,
) -> Iterator[base.PieceOrSkipped]:
    """Yield the user input in these parts, after the parts that are skipped.

    text, file: return the text or the file of a part, or None if it has none.
    why:        the reason for skipping a part with neither.
    """
    texts: list[str] = []
    files: list[JsonObject] = []
    for index, part in parts:
        part_text = text(part)
        part_file = file(base.mapping(part))
        if part_text is not None:
            texts.append(part_text)
        elif part_file is not None:
            files.append(part_file)
        else:
            yield base.Skipped(f"content[{index}]", why)
    if texts or files or not parts:
        yield user_input(texts, files)


def unknown_role(role: Any) -> base.Skipped:
    """Return the report of a message whose role is none of the format's."""
    if isinstance(role, str):
        return base.Skipped("", "message of an unknown role")
    return base.Skipped("", "not a message: no object with a role")


def system(content: Any) -> base.Piece | base.Skipped:
    """Return a system prompt, which is a text or text blocks."""
    texts = only_texts(content)
    if texts is None:
        return base.Skipped("", CANNOT_READ)
    return base.Piece("system", {"text": "\n\n".join(texts)})


def system_message(content: Any) -> base.Piece | base.Skipped:
    """Return a system or developer message from a list of messages."""
    piece = system(content)
    if isinstance(piece, base.Skipped):
        return piece
    return piece._replace(among_messages=True)


def unreadable(content: Any) -> Iterator[base.Skipped]:
    """Report the content of a model's message that is neither a text nor a list."""
    if not isinstance(content, str | list | None):
        yield base.Skipped("", CANNOT_READ)


def parts(content: Any) -> list[Any]:
    """Return the parts of a content; a text that is not empty is its only part."""
    return [content] if base.text(content) else base.sequence(content)


def only_texts(content: Any) -> list[str] | None:
    """Return the texts of a content; None if it has a part that is no text."""
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        return None
    texts: list[str] = []
    for part in content:
        text = text_of(part)
        if text is None:
            return None
        texts.append(text)
    return texts


def joined_text(content: Any) -> str:
    """Return the texts of a content joined by line breaks, without its other parts."""
    texts = [text_of(part) for part in parts(content)]
    return "\n".join(text for text in texts if text)


def text_of(part: Any) -> str | None:
    """Return the text of a part that is a text or a text block, else None."""
    text = part
    if isinstance(part, dict) and part.get("type") == "text":
        text = part.get("text")
    return text if isinstance(text, str) else None


def user(content: Any) -> Iterator[base.PieceOrSkipped]:
    """Yield the events of a user's message: tool results, and inputs between them."""
    if isinstance(content, str):
        yield user_input([content])
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
                yield from user_parts(run, text_of, attachment, why)


def agent(content: Any, *, stop_reason: Any = None) -> Iterator[base.PieceOrSkipped]:
    """Yield the events of a model's message.

    Text and thinking of a response come before its calls.  Blocks that only the
    provider can read stand between two responses, byte for byte.
    """
    yield from unreadable(content)
    if not isinstance(content, str | list | None):
        return
    reason = base.text(stop_reason)
    pieces: list[base.PieceOrSkipped] = []
    for kind, run in runs(parts(content), _kind):
        if kind == "response":
            pieces += _responses(run, reason)
        elif kind == "provider":
            pieces += provider_blocks(run)
        else:
            why = "not a block: no object with a type"
            pieces += (base.Skipped(f"content[{index}]", why) for index, _ in run)
    yield from pieces or [EMPTY]


def provider_blocks(run: Iterable[tuple[int, Any]]) -> list[base.PieceOrSkipped]:
    """Return the event with the provider's own blocks, which no context interprets."""
    return [base.Piece("provider_edit", {"blocks": [block for _, block in run]})]


def runs(
    parts: Sequence[Any], kind: Callable[[Any], Kind]
) -> Iterator[tuple[Kind, list[tuple[int, Any]]]]:
    """Yield runs of neighboring parts of one kind, each part with its index."""
    for shared_kind, run in groupby(enumerate(parts), key=lambda item: kind(item[1])):
        yield shared_kind, list(run)


def thinking_blocks(text: str | None) -> list[JsonObject]:
    """Return a model's thinking as a single block; no block without a text."""
    return [{"type": "thinking", "thinking": text}] if text else []


def thinking_of(block: dict[str, Any]) -> JsonObject:
    """Return the fields of a thinking block of the provider."""
    return {key: block[key] for key in _THINKING if isinstance(block.get(key), str)}


def attachment(block: dict[str, Any]) -> JsonObject | None:
    """Return the file in a block, or None.

    It is an image, a document, a search result, or a file for the container of a tool.
    """
    kind = block.get("type")
    if kind == "search_result":
        return _search_result(block)
    if kind == "container_upload":
        file_id = base.text(block, "file_id")
        return {"kind": "file", "url": f"file:{file_id}"} if file_id else None
    source = base.mapping(block, "source")
    fields = _SOURCES.get(base.text(source, "type") or "")
    if kind not in ("image", "document") or fields is None:
        return None
    attachment_field, source_field = fields
    content = source.get(source_field)
    if source_field == "content":
        content = "\n\n".join(only_texts(content) or [])
    if not base.text(content):
        return None
    if source_field == "file_id":
        content = f"file:{content}"
    file = {"kind": kind, attachment_field: content}
    name = base.text(block, "title")
    if name:
        file["name"] = name
    media_type = base.text(source, "media_type")
    if media_type:
        file["media_type"] = media_type
    return file


def _search_result(block: dict[str, Any]) -> JsonObject | None:
    """Return a search result as a document.

    The document has the texts, the title, and the source of the block.
    """
    texts = only_texts(block.get("content"))
    if texts is None:
        return None
    document: JsonObject = {"kind": "document", "text": "\n\n".join(texts)}
    title = base.text(block, "title")
    if title:
        document["name"] = title
    source = base.text(block, "source")
    if source:
        document["url"] = source
    return document


def _result(item: tuple[int, Any]) -> base.PieceOrSkipped:
    """Return the result in a block, which comes with its index in the content."""
    index, block = item
    call_id = base.text(block, "tool_use_id")
    if call_id is None:
        return base.placed(NO_CALL, f"content[{index}]")
    failed = block.get("is_error") is True
    return tool_result(call_id, block.get("content"), failed=failed)


def _responses(
    run: list[tuple[int, Any]], stop_reason: str | None
) -> Iterator[base.PieceOrSkipped]:
    texts: list[str] = []
    thinking: list[JsonObject] = []
    for _, block in run:
        text = text_of(block)
        if text is not None:
            texts.append(text)
        if "thinking" in _type_of(block):
            thinking.append(thinking_of(block))
    yield from response(texts, thinking, stop_reason=stop_reason)
    for index, block in run:
        place = f"content[{index}]"
        if _type_of(block) == "text" and text_of(block) is None:
            yield base.Skipped(place, "text block without a text")
        if base.sequence(block, "citations"):
            yield base.Skipped(place, CITATIONS)
        if _type_of(block) == "tool_use":
            call = tool_call(block.get("id"), block.get("name"), block.get("input"))
            yield base.placed(call, place)


def _type_of(block: Any) -> str:
    return base.text(block, "type") or ""


def _kind(block: Any) -> str:
    """Return the part of an answer to which a block belongs.

    It is "response", "provider" for a block of the provider's own, or "unknown" for a
    value without a type.
    """
    if isinstance(block, str):
        return "response"
    block_type = base.at(block, "type")
    if not isinstance(block_type, str):
        return "unknown"
    if block_type in _RESPONSE:
        return "response"
    return "provider"


Dialect: TypeAlias = Literal["openai", "anthropic"]

# The file of a task of Cline, whose messages are those of the API and more.
CLINE_FILE = "api_conversation_history.json"
_SESSION_KEYS = ("session_id", "conversation_id", "thread_id", "id")
_READ_KEYS = frozenset({*_SESSION_KEYS, "messages", "system", "model"})
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_OPENAI_ROLES = frozenset({"tool", "function"})
_SYSTEM_ROLES = frozenset({"system", "developer"})
_OPENAI_KEYS = ("tool_calls", "function_call", "tool_call_id", "refusal")
_OPENAI_PARTS = frozenset({"image_url", "input_audio", "file", "refusal"})
_ANTHROPIC_BLOCKS = frozenset(
    {
        "compaction",
        "container_upload",
        "document",
        "image",
        "mcp_tool_use",
        "redacted_thinking",
        "search_result",
        "server_tool_use",
        "thinking",
        "tool_use",
    }
)


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a file.

    index: its place in its conversation.
    """

    place: str
    index: int
    value: dict[str, Any]

    @property
    def of_model(self) -> bool:
        """Whether a model wrote it."""
        return self.value.get("role") == "assistant"

    @property
    def response_id(self) -> str:
        """Return the id of the response that the message belongs to, or its index."""
        return base.text(self.value, "id") or unknown_response_id(self.index)

    @property
    def source(self) -> JsonObject:
        """Return the id of the message, if it has one."""
        return {"id": self.value["id"]} if base.text(self.value, "id") else {}


@dataclass(frozen=True, slots=True)
class Conversation:
    """The messages of one session; ``header`` is the object around them."""

    place: str
    messages: Iterable[Message]
    header: dict[str, Any] = field(default_factory=dict)

    @property
    def session(self) -> Any:
        """Return the name of the session in the file, or an empty text."""
        for key in _SESSION_KEYS:
            if key in self.header:
                return self.header[key]
        return ""

    @property
    def unread(self) -> list[str]:
        """Return the fields around the messages that are not imported."""
        return sorted(self.header.keys() - _READ_KEYS)


def conversations(source: base.Source) -> Iterator[Conversation]:
    """Yield the conversations of a file in its order; none if it holds no chat."""
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
    """The API of these messages, or None if they fit neither API.

    Tool calls, their results, and files decide.  Without them, a ``system`` field next
    to the messages means the Messages API; messages that fit both APIs are OpenAI's.
    """
    if is_of_cline(source):
        return None
    evidence: set[Dialect] = set()
    has_system_field = False
    is_chat = False
    for conversation in conversations(source):
        if "core_memory" in conversation.header:  # an agent file of Letta
            return None
        if "system" in conversation.header:
            has_system_field = True
        for message in conversation.messages:
            if base.text(message.value, "role") not in _ROLES:
                return None
            is_chat = True
            if message.value["role"] in _SYSTEM_ROLES:
                has_system_field = False
            evidence |= _evidence(message.value)
    if not is_chat or len(evidence) > 1:
        return None
    if evidence:
        return next(iter(evidence))
    return "anthropic" if has_system_field else "openai"


def is_of_cline(source: base.Source) -> bool:
    """Whether the file has the name of a task of Cline, and its messages.

    Cline writes messages in the form of the Messages API.  So a file of this name with
    calls or roles of OpenAI's API is an export of another program.
    """
    if source.path.name != CLINE_FILE or source.is_lines:
        return False
    messages = base.sequence(source.document)
    first = base.mapping(messages[0] if messages else None)
    if "role" not in first or "content" not in first:
        return False
    for message in map(base.mapping, messages):
        role = base.text(message, "role")
        if role in _SYSTEM_ROLES or "openai" in _evidence(message):
            return False
    return True


def _of_lines(lines: Iterator[base.Line]) -> Iterator[Conversation]:
    first = next(lines, None)
    if first is None:
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
    """Yield the conversation in a value.

    A value without one gives a conversation whose only message cannot be read.
    """
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
    """These values as messages, each with its place in the list of that name."""
    return [
        Message(f"{prefix}{name}[{index}]", index, base.mapping(value))
        for index, value in enumerate(messages)
    ]


def _evidence(message: dict[str, Any]) -> set[Dialect]:
    """The APIs that only this message's fields and parts can belong to."""
    evidence: set[Dialect] = set()
    has_openai_key = any(message.get(key) for key in _OPENAI_KEYS)
    if base.text(message, "role") in _OPENAI_ROLES or has_openai_key:
        evidence.add("openai")
    for part in base.sequence(message, "content"):
        kind = base.text(part, "type") or ""
        if kind in _OPENAI_PARTS:
            evidence.add("openai")
        elif kind in _ANTHROPIC_BLOCKS or kind.endswith("tool_result"):
            evidence.add("anthropic")
    return evidence
