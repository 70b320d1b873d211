"""What an agent did, read off its tool calls by a mapping that can be extended."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from refold.domain.events import JsonObject, ToolCall

Deed = Literal["created", "modified", "deleted", "viewed", "command"]


class Action(NamedTuple):
    """``what`` is a path or a command; None is the file that the agent has open."""

    deed: Deed
    what: str | None


Reader = Callable[[JsonObject], Action | None]
_PATHS: Final = ("file_path", "path", "notebook_path", "filename", "file", "file_name")
_COMMANDS: Final = ("command", "cmd", "script")
_MAIN: Final = (
    *_PATHS,
    *_COMMANDS,
    *("query", "pattern", "url", "prompt", "description", "name", "text", "id"),
)
_PLAIN_RM: Final = re.compile(
    r"rm(?: -[rf]+)* ([^\s;&|<>*?$`'\"()-][^\s;&|<>*?$`'\"()]*)"
)


def on_file(deed: Deed) -> Reader:
    """A reader for tools that do this to the file they are given, or have open."""
    return lambda arguments: Action(deed, _first(arguments, _PATHS))


def shell(arguments: JsonObject) -> Action | None:
    """Read a shell command; only a plain ``rm FILE`` is taken for what it does."""
    command = _first(arguments, _COMMANDS)
    if command is None:
        return None
    removed = _PLAIN_RM.fullmatch(command.strip())
    return Action("deleted", removed[1]) if removed else Action("command", command)


def editor(arguments: JsonObject) -> Action | None:
    """Read a call of a text editor tool, whose ``command`` says what it does."""
    deed = _EDITS.get(str(arguments.get("command")))
    path = _first(arguments, _PATHS)
    return Action(deed, path) if deed and path else None


_EDITS: Final[dict[str, Deed]] = {
    "view": "viewed",
    "create": "created",
    "str_replace": "modified",
    "insert": "modified",
    "undo_edit": "modified",
}
_EDITORS: Final = (
    "str_replace_based_edit_tool",
    "str_replace_based_edit",
    "str_replace_editor",
    "text_editor",
)
_SHELLS: Final = (
    "Bash",
    "bash",
    "execute",
    "execute_bash",
    "execute_command",
    "run",
    "run_command",
    "shell",
    "terminal",
)
TOOLS: Final[Mapping[str, Reader]] = MappingProxyType(
    {
        "Write": on_file("created"),
        "Edit": on_file("modified"),
        "MultiEdit": on_file("modified"),
        "NotebookEdit": on_file("modified"),
        "Read": on_file("viewed"),
        "open": on_file("viewed"),
        "create": on_file("created"),
        "edit": on_file("modified"),
        "insert": on_file("modified"),
        **dict.fromkeys(_EDITORS, editor),
        **dict.fromkeys(_SHELLS, shell),
    }
)


def action_of(call: ToolCall, tools: Mapping[str, Reader]) -> Action | None:
    """What the call did, or None if the mapping cannot tell."""
    reader = tools.get(call.tool_name)
    if reader is None or isinstance(call.arguments, str):
        return None
    return reader(call.arguments)


def main_argument(arguments: JsonObject | str) -> str:
    """The one argument that says most about a call."""
    if isinstance(arguments, str):
        return arguments
    return _first(arguments, _MAIN) or next(_texts(arguments), "")


def _first(arguments: JsonObject, keys: tuple[str, ...]) -> str | None:
    values = (arguments.get(key) for key in keys)
    return next((value for value in values if isinstance(value, str) and value), None)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str) and value.strip():
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)
