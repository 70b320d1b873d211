"""Attachments of Claude Code: content that the client adds to the user's words.

The client stores an attachment as fields, and sends it as text between
``<system-reminder>`` tags in a user message.  The texts here have the same content; the
client's wording changes between its versions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from refold.adapters.importers import base

_Attachment: TypeAlias = dict[str, Any]


def text_of(attachment: _Attachment) -> str | None:
    """Return the text that the client sent for an attachment; None if it is unknown."""
    kind = base.text(attachment, "type") or ""
    text: str | None = None
    if kind in _TEXTS:
        text = _TEXTS[kind](attachment)
    elif kind not in _NEVER_SENT:
        text = _own_text(attachment)
    if text is None or not text.strip():
        return None
    if text.lstrip().startswith("<system-reminder>"):
        return text
    return f"<system-reminder>\n{text}\n</system-reminder>"


def image_of(attachment: _Attachment) -> base.Piece | None:
    """Return the input of an image that the user named with ``@``, else None."""
    content = base.mapping(attachment, "content")
    data = base.text(content, "file", "base64")
    if content.get("type") != "image" or data is None:
        return None
    path = base.text(attachment, "filename") or ""
    called = _called("Read", f'{{"file_path":"{path}"}}')
    image = {
        "kind": "image",
        "media_type": base.text(content, "file", "type") or "image/png",
        "data": data,
    }
    text = f"<system-reminder>\n{called}\n</system-reminder>"
    return base.Piece("user_input", {"text": text, "attachments": [image]})


def is_never_sent(attachment: _Attachment) -> bool:
    """Whether the client keeps such an attachment for itself."""
    return base.text(attachment, "type") in _NEVER_SENT


# Notes of the client for itself.
_NEVER_SENT: Final = frozenset(
    {
        "already_read_file",
        "command_permissions",
        "dynamic_skill",
        "edited_image_file",
        "hook_cancelled",
        "hook_error_during_execution",
        "hook_non_blocking_error",
        "hook_permission_decision",
        "hook_system_message",
        "structured_output",
    }
)


def _own_text(attachment: _Attachment) -> str | None:
    """Return the text that the attachment itself contains; None without one."""
    for name in ("content", "text", "message", "prompt"):
        text = _joined(attachment.get(name))
        if text:
            return text
    return None


def _joined(value: Any) -> str:
    """Return a text, or a list of texts as lines; empty for another value."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(text for text in value if isinstance(text, str))
    return ""


def _file(attachment: _Attachment) -> str | None:
    path = base.text(attachment, "filename") or ""
    content = base.mapping(attachment, "content")
    text = base.text(content, "file", "content")
    if text is None:
        text = base.text(attachment, "content")
    if text is None:
        return None
    first = base.number(content, "file", "startLine") or 1
    lines = [
        f"{number:>6}→{line}"
        for number, line in enumerate(text.split("\n"), start=int(first))
    ]
    called = _called("Read", f'{{"file_path":"{path}"}}')
    numbered = "\n".join(lines)
    sent = f"{called}\n\nResult of calling the Read tool:\n{numbered}"
    if attachment.get("truncated") is True:
        sent += f"\n\nNote: The file {path} was too large and has been truncated."
    return sent


def _called(tool: str, arguments: str) -> str:
    """Return the sentence about a call that the client made for the user."""
    return f"Called the {tool} tool with the following input: {arguments}"


def _directory(attachment: _Attachment) -> str:
    path = base.text(attachment, "path") or ""
    called = _called("Bash", f'{{"command":"ls {path}"}}')
    listing = _joined(attachment.get("content"))
    return f"{called}\n\nResult of calling the Bash tool:\n{listing}"


def _file_reference(attachment: _Attachment) -> str:
    path = base.text(attachment, "filename") or ""
    return (
        f"Note: {path} was read before the last conversation was summarized, but the "
        "contents are too large to include. Use Read tool if you need to access it."
    )


def _edited_file(attachment: _Attachment) -> str:
    path = base.text(attachment, "filename") or ""
    snippet = _joined(attachment.get("snippet"))
    return (
        f"Note: {path} was modified, either by the user or by a linter. This change "
        "was intentional, so make sure to take it into account as you proceed. Here "
        f"are the relevant changes (shown with line numbers):\n{snippet}"
    )


def _opened_file(attachment: _Attachment) -> str:
    path = base.text(attachment, "filename") or ""
    return (
        f"The user opened the file {path} in the IDE. This may or may not be related "
        "to the current task."
    )


def _selected_lines(attachment: _Attachment) -> str:
    path = base.text(attachment, "filename") or ""
    first = attachment.get("lineStart")
    last = attachment.get("lineEnd")
    selected = _joined(attachment.get("content"))
    return (
        f"The user selected the lines {first} to {last} from {path}:\n{selected}\n\n"
        "This may or may not be related to the current task."
    )


def _nested_memory(attachment: _Attachment) -> str | None:
    path = base.text(attachment, "path") or base.text(attachment, "content", "path")
    text = base.text(attachment, "content", "content")
    if text is None:
        text = base.text(attachment, "content")
    return None if text is None else f"Contents of {path or ''}:\n\n{text}"


def _memories(attachment: _Attachment) -> str:
    parts: list[str] = []
    for memory in base.each(attachment, "memories"):
        path = base.text(memory, "path") or ""
        parts.append(f"Memory: {path}:\n\n{_joined(memory.get('content'))}")
    return "\n\n".join(parts)


def _added(
    introduction: str, added: str, gone: str = ""
) -> Callable[[_Attachment], str | None]:
    """Return the function for an attachment that describes a change of a list.

    introduction: the words before the added entries.
    added, gone:  the fields with the added and the removed entries.
    """

    def text(attachment: _Attachment) -> str | None:
        parts: list[str] = []
        added_lines = _joined(attachment.get(added))
        if added_lines:
            parts.append(f"{introduction}\n{added_lines}")
        removed_lines = _joined(attachment.get(gone))
        if removed_lines:
            parts.append(f"No longer available:\n{removed_lines}")
        return "\n\n".join(parts)

    return text


def _skills(attachment: _Attachment) -> str | None:
    listing = _joined(attachment.get("content"))
    if not listing:
        return None
    return (
        f"The following skills are available for use with the Skill tool:\n\n{listing}"
    )


def _invoked_skills(attachment: _Attachment) -> str:
    parts = ["The following skills were invoked in this session."]
    for skill in base.each(attachment, "skills"):
        name = base.text(skill, "name") or ""
        path = base.text(skill, "path") or ""
        content = _joined(skill.get("content"))
        parts.append(f"### Skill: {name}\nPath: {path}\n\n{content}")
    return "\n\n".join(parts)


def _plan_file(attachment: _Attachment) -> str:
    path = base.text(attachment, "planFilePath") or ""
    plan = _joined(attachment.get("planContent"))
    return f"A plan file exists from plan mode at: {path}\n\nPlan contents:\n\n{plan}"


def _date(attachment: _Attachment) -> str:
    date = base.text(attachment, "newDate") or ""
    return f"The date has changed. Today's date is now {date}."


def _todos(attachment: _Attachment) -> str:
    lines: list[str] = []
    for number, item in enumerate(base.each(attachment, "content"), start=1):
        status = base.text(item, "status") or ""
        task = base.text(item, "content") or base.text(item, "subject") or ""
        lines.append(f"{number}. [{status}] {task}")
    listing = "\n".join(lines)
    return f"The list of tasks has not been used recently. It is:\n\n{listing}"


def _hook(attachment: _Attachment) -> str | None:
    name = base.text(attachment, "hookName") or base.text(attachment, "hookEvent") or ""
    text = _joined(attachment.get("content"))
    if not text:
        return None
    if attachment.get("type") == "hook_success":
        return f"{name} hook success: {text}"
    return f"{name} hook additional context: {text}"


def _blocking_hook(attachment: _Attachment) -> str:
    name = base.text(attachment, "hookName") or ""
    error = base.text(attachment, "blockingError", "blockingError") or ""
    return f"{name} hook blocking error: {error}"


def _task_status(attachment: _Attachment) -> str:
    status = base.text(attachment, "status") or ""
    task = base.text(attachment, "taskId") or ""
    description = base.text(attachment, "description") or ""
    summary = _joined(attachment.get("deltaSummary"))
    return f'Task "{description}" ({task}) {status}. {summary}'


_TEXTS: Final[Mapping[str, Callable[[_Attachment], str | None]]] = {
    "agent_listing_delta": _added(
        "Available agent types for the Agent tool:", "addedLines", "removedTypes"
    ),
    "compact_file_reference": _file_reference,
    "date_change": _date,
    "deferred_tools_delta": _added(
        "The following deferred tools are now available via ToolSearch:",
        "addedLines",
        "removedNames",
    ),
    "directory": _directory,
    "edited_text_file": _edited_file,
    "file": _file,
    "hook_additional_context": _hook,
    "hook_blocking_error": _blocking_hook,
    "hook_success": _hook,
    "invoked_skills": _invoked_skills,
    "mcp_instructions_delta": _added(
        "# MCP Server Instructions\n", "addedBlocks", "removedNames"
    ),
    "nested_memory": _nested_memory,
    "opened_file_in_ide": _opened_file,
    "plan_file_reference": _plan_file,
    "relevant_memories": _memories,
    "selected_lines_in_ide": _selected_lines,
    "skill_listing": _skills,
    "task_reminder": _todos,
    "task_status": _task_status,
    "todo_reminder": _todos,
}
