"""Sessions of Gemini CLI, which ``gemini --resume`` continues."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping
from datetime import UTC
from itertools import count
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from refold.adapters.exporters import base
from refold.adapters.exporters.base import Entry
from refold.projections.context.text import Block

NAME = "gemini"
IS_LINES = True
# The client drops a message of the user that begins so, since it takes it for a command
# or for a context of its own.
_DROPPED: Final = ("/", "?", "<session_context>", "<hook_context>")
_BEFORE_DROPPED: Final = "(The user:)\n"
# The client's list of folders with their names, and the file that names the folder of a
# name.
_PROJECTS: Final = "projects.json"
_PROJECT_FILE: Final = ".project_root"
_ID_IN_NAME: Final = 8  # characters of a session's id in the name of its file


def write(conversation: base.Conversation, target: base.Target) -> base.Written:
    """Return the lines of a session: a record of it, then a line for each message.

    The line of an answer has the results of its calls.  The client has a system prompt
    of its own, so that of the session is left out.
    """
    left_out: Counter[str] = Counter()
    if conversation.system:
        left_out["system prompts"] += 1
    mark = conversation.origin.mark()
    start = base.timestamp(target.at)
    folder = str(target.folder)
    lines: list[Entry] = [
        {
            "sessionId": str(target.session_id),
            "projectHash": hashlib.sha256(folder.encode()).hexdigest(),
            "startTime": start,
            "lastUpdated": start,
            "kind": "main",
            base.MARK: mark,
        }
    ]
    results: dict[str, Block] = {}
    for message in conversation.messages:
        for block in message.blocks:
            if block["type"] == "tool_result":
                results[block["tool_use_id"]] = block
    for message in conversation.messages:
        if message.role == "assistant":
            entries = [_answer(message, results, left_out)]
        else:
            entries = _inputs(message)
        for entry in entries:
            line: Entry = {
                "id": target.entry_id(len(lines)),
                "timestamp": base.timestamp(message.parts[0].at),
            }
            line.update(entry)
            line[base.MARK] = mark
            lines.append(line)
    return base.Written(lines, left_out)


def _inputs(message: base.Message) -> list[Entry]:
    """Return the messages of the user, without results."""
    inputs: list[Entry] = []
    for part in message.parts:
        parts = [
            _part(block) for block in part.blocks if block["type"] != "tool_result"
        ]
        if not parts:
            continue
        text = str(parts[0].get("text", ""))
        if text.lstrip().startswith(_DROPPED):
            parts[0] = {"text": _BEFORE_DROPPED + text}
        inputs.append({"type": "user", "content": parts})
    return inputs


def _answer(
    message: base.Message, results: Mapping[str, Block], left_out: Counter[str]
) -> Entry:
    """Return the message of an answer, with its calls and their results."""
    at = base.timestamp(message.parts[0].at)
    parts: list[Entry] = []
    calls: list[Entry] = []
    for block in base.without_thinking(message.blocks, left_out):
        if block["type"] == "text":
            parts.append(_part(block))
        elif block["type"] == "tool_use":
            calls.append(_call(block, results.get(block["id"]), at))
        else:
            left_out[f"blocks of the kind {block['type']}"] += 1
    answer: Entry = {"type": "gemini", "content": parts}
    if calls:
        answer["toolCalls"] = calls
    models = [part.model for part in message.parts if part.model]
    if models:
        answer["model"] = models[0]
    return answer


def _call(block: Block, result: Block | None, at: str) -> Entry:
    """Return a call with its result."""
    call: Entry = {
        "id": block["id"],
        "name": block["name"],
        "args": block["input"],
        "status": "success",
        "timestamp": at,
    }
    if result is None:
        return call
    content = result["content"]
    files: list[Entry] = []
    if not isinstance(content, str):
        texts: list[str] = []
        for part in content:
            shown = _part(part)
            if "text" in shown:
                texts.append(shown["text"])
            else:
                files.append(shown)
        content = "\n\n".join(texts)
    key = "output"
    if result.get("is_error"):
        call["status"] = "error"
        key = "error"
    response: dict[str, Any] = {
        "id": block["id"],
        "name": block["name"],
        "response": {key: content},
    }
    call["result"] = [{"functionResponse": response}, *files]
    return call


def _part(block: Block) -> Entry:
    """Return a block as a part of a message."""
    source = block.get("source") or {}
    if block["type"] in ("image", "document"):
        if source.get("type") == "base64":
            media_type = source["media_type"]
            return {"inlineData": {"mimeType": media_type, "data": source["data"]}}
        if source.get("type") == "url":
            return {"fileData": {"fileUri": source["url"]}}
    if block["type"] != "text":
        block = base.in_words(block)
    return {"text": block["text"]}


def place(home: Path, target: base.Target) -> Path:
    """Return the file in which the client looks for a session.

    home: the folder with the client's settings.
    """
    chats = home / "tmp" / _project(home, target.folder) / "chats"
    started = target.at.astimezone(UTC)
    session_id = str(target.session_id)[:_ID_IN_NAME]
    return chats / f"session-{started:%Y-%m-%dT%H-%M}-{session_id}.jsonl"


def claim_folder(path: Path, target: base.Target) -> None:
    """Note the folder of the project, by which the client finds the session's file.

    path: the file of the session, whose folder exists.
    """
    marker = path.parent.parent / _PROJECT_FILE
    if not marker.exists():
        marker.write_text(str(target.folder))


def _project(home: Path, folder: Path) -> str:
    """Return the client's name for a folder: the one that it has, or a new one."""
    names = _projects(home)
    name = names.get(str(folder))
    if name is not None and _owner(home, name) in (None, str(folder)):
        return name
    for marker in sorted((home / "tmp").glob(f"*/{_PROJECT_FILE}")):
        if _owner(home, marker.parent.name) == str(folder):
            return marker.parent.name
    words = re.sub("[^a-z0-9]+", "-", folder.name.lower()).strip("-") or "project"
    for number in count():
        name = f"{words}-{number}" if number else words
        if name not in names.values() and _owner(home, name) is None:
            return name
    raise AssertionError


def _projects(home: Path) -> dict[str, str]:
    """Return the client's names of folders, by their paths."""
    try:
        projects = json.loads((home / _PROJECTS).read_bytes())["projects"]
    except (OSError, ValueError, TypeError, KeyError):
        return {}
    if not isinstance(projects, dict):
        return {}
    names: dict[str, str] = {}
    for path, name in projects.items():
        if isinstance(name, str) and re.fullmatch("[a-z0-9-]+", name):
            names[path] = name
    return names


def _owner(home: Path, name: str) -> str | None:
    """Return the folder that has this name; None if none has it."""
    try:
        return (home / "tmp" / name / _PROJECT_FILE).read_text(errors="replace").strip()
    except OSError:
        return None


def command(session_id: UUID) -> list[str]:
    """Return the command that continues a session."""
    return ["gemini", "--resume", str(session_id)]
