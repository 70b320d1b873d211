"""Images and documents in messages of any API, as blocks of the Messages API."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import ceil, sqrt
from typing import Any, Final

from refold.domain import media
from refold.domain.stubs import Read, no_blobs, whole
from refold.domain.tokens import estimate

Block = dict[str, Any]
# The types of blocks for images and documents.
MEDIA: Final = frozenset({"image", "document"})
TEXTS: Final = frozenset({"text", "input_text", "output_text"})
# The types of further blocks that a result may contain.
OTHER_PARTS: Final = frozenset({"search_result", "tool_reference"})

# The provider's rule for images: it scales an image down to both limits, and then
# counts one token for this number of pixels.
_PIXELS_PER_TOKEN: Final = 750
_LONGEST_EDGE: Final = 1_568
_MOST_IMAGE_TOKENS: Final = 1_568
# A page costs its text and its picture.  The provider's page "PDF support"
# (docs.claude.com/en/docs/build-with-claude/pdf-support) says 7,000 tokens for 3 pages.
_PAGE_TOKENS: Final = 2_333
# An image or document of which the log has only an address or a name.
UNKNOWN_TOKENS: Final = 1_600

_URI: Final = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,", re.ASCII)
# The provider's ids of files, as attachments name them.
_FILE: Final = re.compile(r"file:(file_[\w-]+)", re.ASCII)
_FIELDS: Final = {
    "image": ("type", "source"),
    "document": ("type", "source", "title", "context", "citations"),
}


def as_block(part: Any, read: Read = no_blobs) -> Block | None:
    """Return the block for an image, a document, or a recording; None for other parts.

    It knows the forms of the Messages API, of MCP, and of OpenAI's two APIs.  The type
    of the block may be one that the Messages API does not take, such as ``audio``.

    read: returns the blob of a ``data:`` URI that the size guard moved.
    """
    match part:
        case {"type": "image" | "document" as kind, "source": dict()}:
            return {name: part[name] for name in _FIELDS[kind] if name in part}
        case {"type": "image" | "audio" as kind, "data": str(data)}:
            return _base64_block(kind, part.get("mimeType"), data)
        case {"type": "resource", "resource": {"blob": str(data)} as resource}:
            return _base64_block("document", resource.get("mimeType"), data)
        case {"type": "input_image" | "image_url", "image_url": {"url": str(url)}}:
            return _url_block("image", whole(url, read))
        case {"type": "input_image" | "image_url", "image_url": str(url)}:
            return _url_block("image", whole(url, read))
        case {"type": "input_file" | "file", "file_data": str(url)}:
            return _url_block("document", whole(url, read), part.get("filename"))
        case {"type": "file", "file": {"file_data": str(url)} as file}:
            return _url_block("document", whole(url, read), file.get("filename"))
        case {"type": "input_audio", "input_audio": {"data": str(data)} as audio}:
            return _base64_block("audio", f"audio/{audio.get('format')}", data)
    return None


def parts_of(content: Any) -> Sequence[Any] | None:
    """Return the parts of a result that consists of parts; None for any other one."""
    if isinstance(content, Mapping):
        if as_block(content) is not None:
            return [content]
        # A result of MCP has its parts in "content", and may have further fields.
        inside = content.get("content")
        if isinstance(inside, list) and any(map(as_block, inside)):
            others = {
                name: value
                for name, value in content.items()
                if name not in ("content", "isError") and value
            }
            return [*inside, others] if others else inside
        return None
    if isinstance(content, list) and any(map(_is_part, content)):
        return content
    return None


def _is_part(part: Any) -> bool:
    """Whether this is a text, an image, a document, or another part of a result."""
    if not isinstance(part, dict):
        return False
    kind = part.get("type")
    if kind in TEXTS:
        return isinstance(part.get("text"), str)
    return kind in OTHER_PARTS or as_block(part) is not None


def _base64_block(kind: str, media_type: Any, data: str, title: Any = None) -> Block:
    """Return the block for a file in base64.  A known media type overrides ``kind``."""
    readable_type = media.media_type_of(media_type)
    if readable_type is not None:
        kind = "document" if readable_type == media.PDF else "image"
        media_type = readable_type
    source = {"type": "base64", "media_type": media_type, "data": data}
    return _titled({"type": kind, "source": source}, title)


def _url_block(kind: str, url: str, title: Any = None) -> Block:
    """Return the block for a file at an address, which may be a ``data:`` URI."""
    uri = _URI.match(url)
    if uri is not None:
        return _base64_block(kind, uri[1], url[uri.end() :], title)
    return _titled({"type": kind, "source": {"type": "url", "url": url}}, title)


def _file_id_of(url: str) -> str | None:
    """Return the provider's id of a file in an attachment's URL; None without one."""
    match = _FILE.fullmatch(url)
    return match[1] if match else None


def attachment_block(
    attachment: Mapping[str, Any], read: Read = no_blobs
) -> Block | None:
    """Return the block for an attachment of a user's input.

    Returns None for an attachment with text, which contexts show as text, for files
    that are no image or document, and for JSON that only resembles an attachment.

    read: returns the blob of a ``data:`` URI that the size guard moved.
    """
    if not _fields_are_strings(attachment):
        return None
    kind = attachment.get("kind") or "file"
    title = attachment.get("name") if kind == "document" else None
    data = attachment.get("data")
    url = attachment.get("url") or ""
    text = attachment.get("text") or ""
    if text.strip():
        return None
    if data:
        return _base64_block(kind, attachment.get("media_type"), data, title)
    file_id = _file_id_of(url)
    if file_id is not None:
        if kind == "file":
            return {"type": "container_upload", "file_id": file_id}
        source = {"type": "file", "file_id": file_id}
        return _titled({"type": kind, "source": source}, title)
    if url.startswith("data:") or (kind in MEDIA and url.startswith("http")):
        return _url_block(kind, whole(url, read), title)
    return None


def _fields_are_strings(attachment: Mapping[str, Any]) -> bool:
    """Whether each field of an attachment is a string or missing."""
    fields = ("kind", "media_type", "data", "url", "text")
    return all(isinstance(attachment.get(name), str | None) for name in fields)


def _titled(block: Block, title: Any) -> Block:
    """Return the block, with the title if it is a document."""
    if block["type"] == "document" and isinstance(title, str) and title.strip():
        block["title"] = title
    return block


def image_tokens(width: int, height: int) -> int:
    """Return the tokens of an image with this size in pixels."""
    if not width or not height:
        return UNKNOWN_TOKENS
    edge = _LONGEST_EDGE / max(width, height)
    area = sqrt(_MOST_IMAGE_TOKENS * _PIXELS_PER_TOKEN / (width * height))
    scale = min(1.0, edge, area)
    return max(1, ceil(width * scale * height * scale / _PIXELS_PER_TOKEN))


def media_tokens(block: Mapping[str, Any], read: Read = no_blobs) -> int:
    """Return the tokens of an image or document, from the header of its file.

    read: returns the blob of a file that the size guard moved.
    """
    match block.get("source"):
        case {"type": "base64", "data": str(data)}:
            decoded = media.decoded(whole(data, read))
            file = media.read(decoded) if decoded is not None else None
            if file is None:
                return UNKNOWN_TOKENS
            if file.media_type == media.PDF:
                return file.pages * _PAGE_TOKENS
            return image_tokens(file.width, file.height)
        case {"type": "text" | "content"} as source:
            return estimate(source)
    return UNKNOWN_TOKENS


def _may_have_media(value: Any) -> bool:
    """Whether an object in this JSON may be an image or a document."""
    parts: list[Any] = [value]
    for part in parts:  # the loop adds the parts of each part to the end
        if isinstance(part, dict):
            # Blocks have a type; attachments have their data or an address.
            if "type" in part or part.get("data") or part.get("url"):
                return True
            parts += part.values()
        elif isinstance(part, list | tuple):
            parts += part
    return False


def estimate_with_media(value: Any, read: Read = no_blobs) -> int:
    """Estimate the tokens of JSON, with images and documents by the provider's rule.

    read: returns the blob of a file that the size guard moved.
    """
    if _may_have_media(value):
        return _estimate_each(value, read)
    return estimate(value)  # the same number, without a call for each part


def _estimate_each(value: Any, read: Read) -> int:
    """Return the estimate of a value as the sum of the estimates of its parts."""
    if isinstance(value, dict):
        find = as_block if "type" in value else attachment_block
        block = find(value, read)
        if block is not None and block["type"] in MEDIA:
            return media_tokens(block, read)
        items = [_estimate_each(item, read) for item in value.values()]
        return estimate(list(value)) + sum(items)
    if isinstance(value, list | tuple):
        separators = len(value)  # a token for each comma
        return separators + sum(_estimate_each(item, read) for item in value)
    return estimate(value)
