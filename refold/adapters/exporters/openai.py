"""Requests of OpenAI's Chat Completions API, as its SDK takes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from refold.adapters.exporters import base
from refold.adapters.exporters.base import Entry
from refold.projections.context.text import Block

NAME = "openai"
IS_LINES = False
_LONGEST_TOOL = 64  # characters that the API accepts
IN_IMAGES = "(The image of this result follows the results.)"


def write(conversation: base.Conversation, _: base.Target) -> base.Written:
    """Return the messages of the context, the system prompt first.

    A message with results becomes a message for each, then one with the other blocks.
    """
    left_out: Counter[str] = Counter()
    messages: list[Entry] = []
    if conversation.system:
        messages.append({"role": "system", "content": conversation.system})
    for message in conversation.messages:
        if message.role == "assistant":
            messages += _answers(message, left_out)
        else:
            messages += _inputs(message, left_out)
    request: Entry = {"messages": list(messages)}
    if conversation.model:
        request = {"model": conversation.model, **request}
    return base.Written([request], left_out)


def _answers(message: base.Message, left_out: Counter[str]) -> Iterator[Entry]:
    """Yield the message of an answer: its texts, then its calls."""
    texts: list[str] = []
    calls: list[Entry] = []
    for block in base.without_thinking(message.blocks, left_out):
        if block["type"] == "text":
            texts.append(block["text"])
        elif block["type"] == "tool_use":
            calls.append(_call(block))
        else:
            left_out[f"blocks of the kind {block['type']}"] += 1
    if not texts and not calls:
        return
    answer: Entry = {"role": "assistant", "content": None}
    if len(texts) == 1:
        answer["content"] = texts[0]
    elif texts:
        answer["content"] = [{"type": "text", "text": text} for text in texts]
    if calls:
        answer["tool_calls"] = list(calls)
    yield answer


def _call(block: Block) -> Entry:
    """Return a call with its arguments as a text."""
    name = base.cut_name(block["name"], _LONGEST_TOOL)
    function: Entry = {"name": name, "arguments": base.json_text(block["input"])}
    return {"id": block["id"], "type": "function", "function": function}


def _inputs(message: base.Message, left_out: Counter[str]) -> Iterator[Entry]:
    """Yield the messages of results, then those of the user.

    The API takes no image in a result: it follows in a message of the user.
    """
    shown: list[Entry] = []
    for block in message.blocks:
        if block["type"] != "tool_result":
            continue
        if block.get("is_error"):
            left_out["marks of failed calls"] += 1
        result: Entry = {"role": "tool", "tool_call_id": block["tool_use_id"]}
        if isinstance(block["content"], str):
            yield {**result, "content": block["content"]}
            continue
        texts: list[Entry] = []
        for part in block["content"]:
            text = IN_IMAGES
            if part["type"] == "image":
                shown.append(_content(part))
            else:
                text = _words(part)
            texts.append({"type": "text", "text": text})
        yield {**result, "content": list(texts)}
    if shown:
        yield {"role": "user", "content": list(shown)}
    for part in message.parts:
        content_parts = [
            _content(block) for block in part.blocks if block["type"] != "tool_result"
        ]
        if content_parts:
            yield {"role": "user", "content": list(content_parts)}


def _content(block: Block) -> Entry:
    """Return a block as a part of a message."""
    url = base.data_url(block)
    if block["type"] == "image" and url is not None:
        return {"type": "image_url", "image_url": {"url": url}}
    source = block.get("source") or {}
    if block["type"] == "document" and source.get("type") == "base64":
        name = block.get("title") or "document.pdf"
        return {"type": "file", "file": {"filename": name, "file_data": url}}
    return {"type": "text", "text": _words(block)}


def _words(block: Block) -> str:
    """Return a block as a text."""
    if block["type"] != "text":
        block = base.in_words(block)
    return str(block["text"])
