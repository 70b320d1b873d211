"""Rollouts of Codex, which ``codex resume`` continues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from refold.adapters.exporters import base
from refold.adapters.exporters.base import Entry
from refold.projections.context.text import Block

NAME = "codex"
IS_LINES = True
# The version of the client with which exports are tested.
VERSION: Final = "0.171.0"
_LONGEST_TOOL: Final = 64  # characters that the Responses API accepts


def write(conversation: base.Conversation, target: base.Target) -> base.Written:
    """Return the lines of a rollout: a record of the session, then its items.

    The system prompt is written only if it is one of Codex: it describes the client's
    tools.
    """
    left_out: Counter[str] = Counter()
    mark = conversation.origin.mark()
    start = base.timestamp(target.at)
    about: Entry = {
        "id": str(target.session_id),
        "timestamp": start,
        "cwd": str(target.folder),
        "originator": "refold",
        "cli_version": VERSION,
        "source": "cli",
    }
    if conversation.system and conversation.prompt_from == NAME:
        about["base_instructions"] = {"text": conversation.system}
    elif conversation.system:
        left_out["system prompts"] += 1
    lines: list[Entry] = [
        {
            "timestamp": start,
            "type": "session_meta",
            "payload": about,
            base.MARK: mark,
        }
    ]
    items = _Items(left_out)
    for message in conversation.messages:
        for part in message.parts:
            for kind, payload in items.of(message, part):
                line: Entry = {
                    "timestamp": base.timestamp(part.at),
                    "type": kind,
                    "payload": payload,
                    base.MARK: mark,
                }
                lines.append(line)
    return base.Written(lines, left_out)


class _Items:
    """Turns the parts of messages into items of the Responses API.

    left_out: counts what items cannot hold.
    """

    def __init__(self, left_out: Counter[str]) -> None:
        self._left_out = left_out
        # The calls whose input is a text, as those of custom tools are.
        self._custom: set[str] = set()

    def of(self, message: base.Message, part: base.Part) -> Iterator[tuple[str, Entry]]:
        """Yield the items of a part, and the notes of the client that repeat texts.

        The client shows the notes to its user, and sends the items to the model.
        """
        content: list[Entry] = []
        texts: list[str] = []
        for block in base.without_thinking(part.blocks, self._left_out):
            match block["type"]:
                case "tool_use":
                    yield from _messages(message.role, content, texts)
                    content = []
                    texts = []
                    yield "response_item", self._call(block)
                case "tool_result":
                    yield from _messages(message.role, content, texts)
                    content = []
                    texts = []
                    yield "response_item", self._result(block)
                case "text" | "image" | "document" | "search_result":
                    content.append(_content(block, message.role))
                    if block["type"] == "text":
                        texts.append(block["text"])
                case kind if _is_item(block):
                    yield "response_item", block
                case kind:
                    self._left_out[f"blocks of the kind {kind}"] += 1
        yield from _messages(message.role, content, texts)

    def _call(self, block: Block) -> Entry:
        """Return the item of a call; a call with a text is one of a custom tool."""
        arguments = block["input"]
        call: Entry = {
            "name": base.cut_name(block["name"], _LONGEST_TOOL),
            "call_id": block["id"],
        }
        text = arguments.get("arguments")
        if arguments.keys() == {"arguments"} and isinstance(text, str):
            self._custom.add(block["id"])
            return {"type": "custom_tool_call", "input": text, **call}
        arguments_text = base.json_text(arguments)
        return {"type": "function_call", "arguments": arguments_text, **call}

    def _result(self, block: Block) -> Entry:
        """Return the item of a result; no item says whether the call failed."""
        call_id = block["tool_use_id"]
        if block.get("is_error"):
            self._left_out["marks of failed calls"] += 1
        kind = "function_call_output"
        if call_id in self._custom:
            kind = "custom_tool_call_output"
        output: Any = block["content"]
        if not isinstance(output, str):
            output = [_content(part, "user") for part in output]
        return {"type": kind, "call_id": call_id, "output": output}


def _is_item(block: Block) -> bool:
    """Whether a block is an item of the Responses API that a session has unchanged."""
    return block["type"].endswith("_call") and "tool_use_id" not in block


def _content(block: Block, role: str) -> Entry:
    """Return a block as a part of a message, or of a result."""
    if block["type"] == "image":
        url = base.data_url(block)
        if url is not None:
            return {"type": "input_image", "image_url": url}
    if block["type"] != "text":
        block = base.in_words(block)
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": kind, "text": block["text"]}


def _messages(
    role: str, content: list[Entry], texts: list[str]
) -> Iterator[tuple[str, Entry]]:
    """Yield a message with this content, and the note that repeats its texts."""
    if not content:
        return
    yield "response_item", {"type": "message", "role": role, "content": content}
    if texts:
        kind = "agent_message" if role == "assistant" else "user_message"
        yield "event_msg", {"type": kind, "message": "\n\n".join(texts)}


def place(home: Path, target: base.Target) -> Path:
    """Return the file in which the client looks for a session.

    home: the folder with the client's settings.
    """
    local = target.at.astimezone()
    folder = home / "sessions" / f"{local:%Y}" / f"{local:%m}" / f"{local:%d}"
    return folder / f"rollout-{local:%Y-%m-%dT%H-%M-%S}-{target.session_id}.jsonl"


def command(session_id: UUID) -> list[str]:
    """Return the command that continues a session."""
    return ["codex", "resume", str(session_id)]
