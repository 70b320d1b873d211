"""Images and documents of events in the form in which the Messages API takes them.

A projection does no I/O: the caller hands in the blobs of files that the size guard
moved.  A file that cannot be shown becomes a text, and the view names it in its cuts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from refold.domain import events
from refold.domain.media import IMAGES, PDF
from refold.domain.parts import (
    MEDIA,
    OTHER_PARTS,
    TEXTS,
    Block,
    as_block,
    attachment_block,
    media_tokens,
    parts_of,
)
from refold.domain.stubs import Read, no_blobs, whole
from refold.projections.context import text as markup
from refold.projections.context.budget import Cut
from refold.projections.context.text import text_block

SECTION: Final = "media"
# The sources of which the API reads the content by itself, or which are texts.
_SOURCES: Final = {
    "image": frozenset({"base64", "url", "file"}),
    "document": frozenset({"base64", "url", "file", "text", "content"}),
}
# Base64 of this length in a part of an unknown kind is no text for a model.
_LONG_BASE64: Final = 1_024
_GONE: Final = "its blob is gone"
_NOT_BASE64: Final = "its data is no base64"


@dataclass(frozen=True, slots=True)
class Media:
    """Shows images and documents of one view.

    read: returns the blob of a file that the size guard moved, or None.
    cuts: names each image or document that the view leaves out.
    """

    read: Read = no_blobs
    cuts: list[Cut] = field(default_factory=list)

    def input_blocks(self, seq: int, event: events.UserInput) -> list[Block]:
        """Return the blocks of the user's text and attachments: at least one block.

        seq: of the event.
        """
        blocks: list[Block] = []
        if event.text.strip():
            blocks.append(text_block(event.text))
        for attachment in event.attachments:
            block = attachment_block(attachment.__dict__, self.read)
            shown = self._shown(seq, block) if block is not None else None
            blocks.append(shown or text_block(markup.attachment_text(attachment)))
        return blocks or [text_block(markup.NO_INPUT)]

    def result_content(self, seq: int, content: Any) -> str | list[Block]:
        """Return the content of a result, never empty.

        A content with at least one part that a model reads as such becomes blocks, and
        its other parts texts.  Any other content becomes one text.

        seq: of the event.
        """
        parts = parts_of(content)
        if parts is None:
            return markup.result_content(content)
        blocks: list[Block] = []
        for part in parts:
            blocks += self._part(seq, part)
        return blocks or markup.NO_OUTPUT

    def _part(self, seq: int, part: Any) -> Iterator[Block]:
        block = as_block(part, self.read)
        if block is not None:
            shown = self._shown(seq, block)
            yield shown or text_block(_in_place_of(block["type"]))
        elif isinstance(part, dict) and part.get("type") in OTHER_PARTS:
            yield part
        else:
            text = _words(part)
            if text is None:
                text = markup.value_text(self._readable(seq, part))
            if text.strip():
                yield text_block(text)

    def _shown(self, seq: int, block: Block) -> Block | None:
        """Return the block with its whole file; None, with a cut, if not shown."""
        if block["type"] == "container_upload":
            return block
        problem = self._problem(block)
        if isinstance(problem, str):
            self.leave_out(seq, block, problem)
            return None
        return problem

    def _problem(self, block: Block) -> Block | str:
        """Return the block with its whole file, or why the API would refuse it."""
        kind = block["type"]
        source = block["source"]
        if source.get("type") not in _SOURCES.get(kind, ()):
            return "the Messages API does not take it"
        if source["type"] != "base64":
            return block
        media_type = source.get("media_type")
        is_taken = media_type in IMAGES if kind == "image" else media_type == PDF
        if not is_taken:
            return f"the Messages API does not take {media_type or 'its type'}"
        stored = source.get("data")
        if not isinstance(stored, str):
            return _NOT_BASE64
        data = whole(stored, self.read)
        if not markup.is_base64(data):
            return _GONE if "\n[refold: " in data else _NOT_BASE64
        return {**block, "source": {**source, "data": data}}

    def _readable(self, seq: int, part: Any) -> Any:
        """Return a part of unknown kind without long base64, which no model reads."""
        if isinstance(part, dict):
            return {key: self._readable(seq, item) for key, item in part.items()}
        if isinstance(part, list):
            return [self._readable(seq, item) for item in part]
        is_long = isinstance(part, str) and len(part) >= _LONG_BASE64
        if is_long and markup.is_base64(part):
            self.leave_out(seq, {"type": "base64"}, "a part of an unknown kind")
            return f"({len(part)} characters of base64 left out)"
        return part

    def leave_out(self, seq: int, block: Block, reason: str) -> None:
        """Name an image or document that the view leaves out."""
        kind = block["type"]
        tokens = media_tokens(block, self.read) if kind in MEDIA else 0
        self.cuts.append(Cut(SECTION, tokens, 0, f"{kind} of seq {seq}: {reason}"))

    def leave_out_all(self, seq: int, content: Any, reason: str) -> None:
        """Name the images and documents in a result that the view leaves out."""
        for part in parts_of(content) or ():
            block = as_block(part, self.read)
            if block is not None:
                self.leave_out(seq, block, reason)


def _words(part: Any) -> str | None:
    """Return the text that a part is, or that it holds; None for other parts."""
    if isinstance(part, dict) and part.get("type") in TEXTS:
        part = part.get("text")
    return part if isinstance(part, str) else None


def _in_place_of(kind: str) -> str:
    if kind == "image":
        return markup.NOT_AN_IMAGE
    return f"(A file of the kind {kind} stood here that cannot be shown.)"
