"""Content blocks of the Messages API, made of what the log holds."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as NotBase64
from typing import Any, Final

from refold.domain.events import (
    AgentResponse,
    Attachment,
    JsonObject,
    Thinking,
    ToolResult,
    UserInput,
)
from refold.projections.context.entries import attachment_text, result_text

Block = dict[str, Any]
# Each with the seq of the event it is of; None: it stands in no log.
Numbered = list[tuple[int | None, Block]]

IMAGE_TYPES: Final = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
NO_RESULT: Final = "(No result of this call has been recorded yet.)"
NO_OUTPUT: Final = "(The call returned nothing.)"
NO_INPUT: Final = "(The user sent an empty message.)"
CUT_OFF: Final = (
    "(The call was cut off: its outcome is unknown, it may have had effect.)"
)
NOT_AN_IMAGE: Final = "(An image stood here that cannot be shown.)"


def text_block(text: str) -> Block:
    """A text block."""
    return {"type": "text", "text": text}


def user_blocks(event: UserInput) -> list[Block]:
    """The user's text and attachments; never empty."""
    text = [text_block(event.text)] if event.text.strip() else []
    blocks = [*text, *map(_attached, event.attachments)]
    return blocks or [text_block(NO_INPUT)]


def thinking_blocks(event: AgentResponse) -> list[Block]:
    """The response's thinking, byte for byte; what no provider signed is left out."""
    return [block for block in map(_thought, event.thinking) if block]


def call_input(arguments: JsonObject | str) -> JsonObject:
    """Arguments as the object that a call's input must be."""
    return {"arguments": arguments} if isinstance(arguments, str) else arguments


def result_block(tool_use_id: str, event: ToolResult | None) -> Block:
    """The result of a call; None: there is none yet."""
    block: Block = {"type": "tool_result", "tool_use_id": tool_use_id}
    if event is None:
        return {**block, "content": NO_RESULT}
    content = _result_content(event.content)
    if event.status == "unknown":
        content = _after(CUT_OFF, content)
    block["content"] = content
    return {**block, "is_error": True} if event.status == "error" else block


def _attached(attachment: Attachment) -> Block:
    image = _image(attachment.media_type, attachment.data)
    return image or text_block(attachment_text(attachment))


def _image(media_type: object, data: object) -> Block | None:
    if media_type not in IMAGE_TYPES or not is_base64(data):
        return None
    source = {"type": "base64", "media_type": media_type, "data": data}
    return {"type": "image", "source": source}


def is_base64(data: object) -> bool:
    """Whether ``data`` is something, in base64."""
    try:
        return isinstance(data, str) and bool(b64decode(data, validate=True))
    except (NotBase64, ValueError):
        return False


def _thought(thinking: Thinking) -> Block | None:
    if thinking.type == "redacted_thinking":
        return {"type": thinking.type, "data": thinking.data} if thinking.data else None
    if not thinking.signature:
        return None
    text = thinking.thinking or ""
    return {"type": "thinking", "thinking": text, "signature": thinking.signature}


def _result_content(content: Any) -> str | list[Block]:
    if isinstance(content, list) and content:
        blocks = [_result_part(part) for part in content]
        if all(block is not None for block in blocks):
            return [block for block in blocks if block] or NO_OUTPUT
    text = result_text(content)
    return text if text.strip() else NO_OUTPUT


def _result_part(part: Any) -> Block | None:
    """A block of a result's list, {} for one without content, None for no block."""
    if not isinstance(part, dict):
        return None
    text, source = part.get("text"), part.get("source")
    if part.get("type") == "text" and isinstance(text, str):
        return text_block(text) if text.strip() else {}
    if part.get("type") == "image" and isinstance(source, dict):
        image = _image(source.get("media_type"), source.get("data"))
        return image or text_block(NOT_AN_IMAGE)
    return None


def _after(note: str, content: str | list[Block]) -> str | list[Block]:
    if isinstance(content, str):
        return f"{note}\n{content}"
    return [text_block(note), *content]
