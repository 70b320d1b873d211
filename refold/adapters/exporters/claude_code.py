"""Session files of Claude Code, which ``claude --resume`` continues."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final
from uuid import UUID

from refold.adapters.exporters import base
from refold.adapters.exporters.base import Entry
from refold.projections.context.text import THINKING, Block

NAME = "claude-code"
IS_LINES = True
# The version of the client with which exports are tested.  Rules for old versions read
# it when such a file is imported.
VERSION: Final = "2.1.332"
_NO_MODEL: Final = "<synthetic>"
_LONGEST_NAME: Final = 200  # characters of a folder's name
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


def write(conversation: base.Conversation, target: base.Target) -> base.Written:
    """Return the entries of a session.

    A message of the user is one entry, since the client changes texts when it joins
    entries.  An answer has an entry for each of its events; the client joins them by
    the id of the message.  The client has a system prompt of its own, so that of the
    session is left out.
    """
    left_out: Counter[str] = Counter()
    if conversation.system:
        left_out["system prompts"] += 1
    session = str(target.session_id)
    mark = conversation.origin.mark()
    entries: list[Entry] = []
    parent: str | None = None
    for number, message in enumerate(conversation.messages):
        for part in _entries_of(message):
            uuid = target.entry_id(len(entries))
            entries.append(
                {
                    "parentUuid": parent,
                    "isSidechain": False,
                    "userType": "external",
                    "cwd": str(target.folder),
                    "sessionId": session,
                    "version": VERSION,
                    "type": message.role,
                    "message": _message(message, part, f"msg_refold_{number}"),
                    "uuid": uuid,
                    "timestamp": base.timestamp(part.at),
                    base.MARK: mark,
                }
            )
            parent = uuid
    if conversation.title:
        title = {"type": "ai-title", "aiTitle": conversation.title}
        entries.append({**title, "sessionId": session, base.MARK: mark})
    return base.Written(entries, left_out)


def _entries_of(message: base.Message) -> list[base.Part]:
    """Return the parts of a message that get an entry each.

    Thinking is in the entry of the text or call that follows it.
    """
    if message.role == "user":
        return [message.parts[-1]._replace(blocks=tuple(message.blocks))]
    entries: list[base.Part] = []
    thinking: tuple[Block, ...] = ()
    for part in message.parts:
        blocks = (*thinking, *part.blocks)
        thinking = ()
        if all(block["type"] in THINKING for block in blocks):
            thinking = blocks
        else:
            entries.append(part._replace(blocks=blocks))
    return entries


def _message(message: base.Message, part: base.Part, message_id: str) -> Entry:
    """Return a part of a message as an entry has it.

    message_id: of the whole message; the client joins the entries of an answer by it.
    """
    content = list(part.blocks)
    if message.role == "user":
        return {"role": "user", "content": content}
    models = [other.model for other in message.parts if other.model]
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": part.model or (models[0] if models else _NO_MODEL),
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    }


def place(home: Path, target: base.Target) -> Path:
    """Return the file in which the client looks for a session.

    home: the folder with the client's settings.
    """
    folder = home / "projects" / folder_name(str(target.folder))
    return folder / f"{target.session_id}.jsonl"


def folder_name(path: str) -> str:
    """Return the name of the client's folder for sessions that work in ``path``.

    The client replaces each UTF-16 code unit that is no ASCII letter or digit.  It cuts
    a long name, and appends a hash of the path.
    """
    encoded = path.encode("utf-16-le", "surrogatepass")
    name = ""
    hashed = 0
    for index in range(0, len(encoded), 2):
        unit = int.from_bytes(encoded[index : index + 2], "little")
        character = chr(unit)
        is_kept = character.isascii() and character.isalnum()
        name += character if is_kept else "-"
        hashed = (hashed * 31 + unit) % (1 << 32)
    if len(name) <= _LONGEST_NAME:
        return name
    if hashed >= 1 << 31:  # the client counts in signed numbers
        hashed -= 1 << 32
    return f"{name[:_LONGEST_NAME]}-{_base36(abs(hashed))}"


def _base36(number: int) -> str:
    """Return a number in base 36."""
    text = ""
    while number:
        number, digit = divmod(number, len(_DIGITS))
        text = _DIGITS[digit] + text
    return text or "0"


def command(session_id: UUID) -> list[str]:
    """Return the command that continues a session."""
    return ["claude", "--resume", str(session_id)]
