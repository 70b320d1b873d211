"""Calls of tools: what each one read and changed in files, as its client records it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from refold.domain.canonical import load_packaged_toml
from refold.domain.events import JsonObject, ToolCall, ToolResult
from refold.projections.files.patches import FilePatch, files_of, patch_in
from refold.projections.files.shell import Touched, touched_by

_DATA: Final = load_packaged_toml("refold.projections", "data", "files.toml")
_ARGUMENTS: Final[Mapping[str, list[str]]] = _DATA["arguments"]


def _kinds() -> dict[str, str]:
    """Return the kind of each tool; a name of two kinds is decided by arguments."""
    kinds: dict[str, str] = {}
    for kind, names in _DATA["tools"].items():
        for name in names:
            kinds[name] = kind
    return kinds


_KINDS: Final = _kinds()
# Beginnings of results of failed edits, in formats that mark no failure.
_FAILED: Final = re.compile(
    r"\s*(?:<tool_use_error>|ERROR\b|Error\b|error:|No replacement|No match|Invalid\b"
    r"|apply_patch verification failed|Failed\b|The user doesn't want"
    r"|Your proposed edit has introduced)"
)
# A line with its number, as editors and ``cat -n`` print it.
_NUMBERED: Final = re.compile(r" *(\d{1,9})(?:→|\t)(.*)", re.DOTALL)
_NUMBERED_WINDOW: Final = re.compile(r"(\d{1,9}):(.*)", re.DOTALL)
# A path ends where the next title begins, so that a search takes linear time.
_WINDOW: Final = re.compile(
    r"\[File: (?P<path>(?:(?!\[File: ).)+?) \((?P<total>\d{1,9}) lines total\)\]"
)
_CUT_LINE: Final = re.compile(r"\.\.\. ?\[(?:line )?truncated\]$")
_SNIPPET: Final = re.compile(r"`?cat -n`? on a snippet")
_EMPTY: Final = re.compile(r"the file exists but (?:the contents are|is) empty", re.I)
_MOST_LINES: Final = 2_000  # lines that clients show at once
_TAKE_LINE_ENDS: Final = ("Edit", "MultiEdit")  # tools of Claude Code
_WINDOW_COMMANDS: Final = ("open", "goto", "scroll_down", "scroll_up")
_LINES_EDIT: Final = re.compile(r"(\d{1,9}):(\d{1,9})\s*\n(.*)", re.DOTALL)
_END_OF_EDIT: Final = re.compile(r"\n?end_of_edit\s*\Z")
_CHANGED: Final = re.compile(
    r"Note: (?P<path>/(?:(?!Note: /)[^\n])+?) was modified, "
    r"either by the user or by a linter"
)


class Shown(NamedTuple):
    """An event shows lines of a file.

    first:     the number of the first line.
    lines:     None for a line that is cut.  Empty if the form of the result is not
               known.
    to_end:    whether they go to the end of the file.
    requested: whether the agent asked for them; otherwise a result of an edit shows
               them.
    """

    path: str
    first: int
    lines: tuple[str | None, ...]
    to_end: bool = False
    requested: bool = True


class Written(NamedTuple):
    """A call wrote the whole file."""

    path: str
    text: str


class Change(NamedTuple):
    """A text and the text that takes its place; ``every`` means at all its places."""

    old: str
    new: str
    every: bool = False


class Replaced(NamedTuple):
    """A call replaced texts in a file, one after the other.

    takes_line_ends: whether an edit that removes whole lines also removes the end of
                     the last one.
    """

    path: str
    changes: tuple[Change, ...]
    takes_line_ends: bool = False


class LinesReplaced(NamedTuple):
    """A call replaced lines by their numbers; ``last`` before ``first`` inserts."""

    path: str
    first: int
    last: int
    text: str


class Patched(NamedTuple):
    """A call applied a patch to a file."""

    path: str
    patch: FilePatch


class Deleted(NamedTuple):
    """A call deleted a file."""

    path: str


class Unread(NamedTuple):
    """A call changed a file in a way that cannot be replayed."""

    path: str


class Commanded(NamedTuple):
    """A command may have changed files; ``command`` is its beginning."""

    command: str
    touched: Touched


class Delegated(NamedTuple):
    """A sub-agent worked, which may have changed any file."""


class Reported(NamedTuple):
    """The client reports that something else changed a file."""

    path: str


FileUse: TypeAlias = (
    Shown | Written | Replaced | LinesReplaced | Patched | Deleted | Unread
)
Use: TypeAlias = FileUse | Commanded | Delegated


def reported_in(text: str) -> Iterator[Reported]:
    """Yield the files that a client's note names as changed by something else."""
    for match in _CHANGED.finditer(text):
        yield Reported(match["path"])


def text_of(content: Any) -> str:
    """Return the texts in the content of a result."""
    if isinstance(content, str):
        return content
    if isinstance(content, dict):
        content = content.get("content", content.get("text"))
        return text_of(content) if isinstance(content, str | list) else ""
    texts: list[str] = []
    if isinstance(content, list):
        for block in content:
            if isinstance(block, dict) and isinstance(block.get("text"), str):
                texts.append(block["text"])
    return "\n".join(texts)


def uses_of(call: ToolCall, result: ToolResult) -> Sequence[Use]:
    """Return what a call and its result say about files, in order."""
    kind = _KINDS.get(call.tool_name, "")
    text = text_of(result.content)
    failed = result.status != "ok" or _FAILED.match(text) is not None
    arguments = call.arguments
    patch = _patch_of(kind, arguments)
    if patch is not None:
        return [] if failed else list(_patched(patch))
    if kind == "action":
        return _by_action(_command_of(arguments), result)
    if kind == "shell":
        return _by_shell(_command_of(arguments))
    if kind == "agent":
        return [Delegated()]
    if not isinstance(arguments, dict):
        return []
    path = _argument(arguments, "path")
    if path is None:
        return []
    if kind == "editor":
        kind = _kind_of_editor(arguments)
    if kind == "read":
        return [] if failed else [_shown(path, arguments, text)]
    if failed:
        return []
    change = _change_of(kind, path, arguments)
    if change is None:
        return []
    if isinstance(change, Replaced) and call.tool_name in _TAKE_LINE_ENDS:
        change = change._replace(takes_line_ends=True)
    return [change, *_snippet(path, text)]


def commands_of(call: ToolCall) -> list[Commanded]:
    """Return the commands of a call whose result is not there yet."""
    kind = _KINDS.get(call.tool_name, "")
    if kind != "shell" or _patch_of(kind, call.arguments) is not None:
        return []
    return _by_shell(_command_of(call.arguments))


def _patch_of(kind: str, arguments: JsonObject | str) -> str | None:
    """Return the patch in a call; None if it has none."""
    if kind == "patch" and isinstance(arguments, str):
        return patch_in(arguments)
    if kind == "patch" and isinstance(arguments, dict):
        return patch_in(_argument(arguments, "patch") or "")
    if kind == "shell":
        command = _command_of(arguments)
        is_patch = re.match(r"\s*(?:cd [^;&|\n]+(?:&&|;)\s*)?apply_?patch\b", command)
        return patch_in(command) if is_patch else None
    return None


def _command_of(arguments: JsonObject | str) -> str:
    """Return the command of a shell; that of ``bash -c`` is its script."""
    if isinstance(arguments, str):
        return arguments
    for name in _ARGUMENTS["command"]:
        command = arguments.get(name)
        if isinstance(command, str):
            return command
        if isinstance(command, list):
            words = [word for word in command if isinstance(word, str)]
            if len(words) == 3 and words[1] in ("-c", "-lc"):
                return words[2]
            if words and re.fullmatch("apply_?patch", words[0]):
                return " ".join(words)
            return shlex.join(words)
    return ""


def _by_action(command: str, result: ToolResult) -> Sequence[Use]:
    """Read an action of SWE-agent: a command of its editor, or of a shell."""
    text = text_of(result.content)
    failed = result.status != "ok" or _FAILED.match(text) is not None
    window = _WINDOW.search(text)
    head, _, rest = command.strip().partition(" ")
    if head in _KINDS and _KINDS[head] == "editor":
        call = _editor_call(head, command)
        return [] if call is None else uses_of(call, result)
    edit = _LINES_EDIT.match(rest) if head == "edit" else None
    if failed or (window is None and head in ("open", "create", "edit")):
        return [] if head in ("open", "create", "edit") else _by_shell(command)
    if edit is not None and window is not None:
        new = _END_OF_EDIT.sub("", edit[3])
        path = window["path"]
        change = LinesReplaced(path, int(edit[1]), int(edit[2]), new)
        return [change, *_snippet(path, text)]
    if window is not None and head == "create":
        return [Written(window["path"], "")]
    if window is not None and head in _WINDOW_COMMANDS:
        return [_shown(window["path"], {}, text[window.start() :])]
    return _by_shell(command)


def _editor_call(tool: str, command: str) -> ToolCall | None:
    """Return the call of an editor that an action writes as a command."""
    try:
        _, verb, path, *options = shlex.split(command)
    except ValueError:
        return None
    arguments: JsonObject = {"command": verb, "path": path}
    for name, value in zip(options[::2], options[1::2], strict=False):
        key = name.removeprefix("--")
        arguments[key] = int(value) if key == "insert_line" else value
    return ToolCall(call_id="action", tool_name=tool, arguments=arguments)


def _by_shell(command: str) -> list[Commanded]:
    touched = touched_by(command)
    if not touched.everything and not touched.paths:
        return []
    return [Commanded(" ".join(command.split())[:200], touched)]


def _patched(patch: str) -> Iterator[FileUse]:
    for file in files_of(patch):
        if file.deleted:
            yield Deleted(file.path)
        elif file.text is not None:
            yield Written(file.path, file.text)
        else:
            yield Patched(file.path, file)


def _argument(arguments: JsonObject, kind: str) -> str | None:
    """Return the first argument of this kind that is a text."""
    for name in _ARGUMENTS[kind]:
        value = arguments.get(name)
        if isinstance(value, str):
            return value
    return None


def _kind_of_editor(arguments: JsonObject) -> str:
    """Return the kind of an editor's call, which its argument ``command`` names."""
    kinds = {
        "view": "read",
        "create": "write",
        "str_replace": "edit",
        "insert": "insert",
        "undo_edit": "undo",
    }
    return kinds.get(str(arguments.get("command")), "")


def _change_of(kind: str, path: str, arguments: JsonObject) -> Use | None:
    """Return the change that a successful call made; None if it makes none."""
    match kind:
        case "write":
            content = _argument(arguments, "content")
            return Unread(path) if content is None else Written(path, content)
        case "edit":
            change = _replacement(arguments)
            return Unread(path) if change is None else Replaced(path, (change,))
        case "multi_edit":
            return _several(path, arguments.get("edits"))
        case "edit_lines":
            return _lines_edit(path, arguments)
        case "insert":
            after = arguments.get("insert_line")
            new = arguments.get("new_str", arguments.get("insert_text"))
            if not isinstance(after, int) or not isinstance(new, str):
                return Unread(path)
            return LinesReplaced(path, after + 1, after, new)
        case "delete":
            return Deleted(path)
        case "notebook" | "undo":
            return Unread(path)
    return None


def _replacement(arguments: JsonObject) -> Change | None:
    old = _argument(arguments, "old")
    new = _argument(arguments, "new")
    if old is None:
        return None
    every = any(arguments.get(name) is True for name in _ARGUMENTS["all"])
    return Change(old, new or "", every)


def _several(path: str, edits: Any) -> Use:
    """Return the edits of a call that makes several; all of them succeeded."""
    changes: list[Change] = []
    for edit in edits if isinstance(edits, list) else []:
        change = _replacement(edit) if isinstance(edit, dict) else None
        if change is None:
            return Unread(path)
        changes.append(change)
    return Replaced(path, tuple(changes)) if changes else Unread(path)


def _lines_edit(path: str, arguments: JsonObject) -> Use:
    """Return an edit of lines by their numbers, or of a text."""
    first = arguments.get("start_line")
    last = arguments.get("end_line")
    new = _argument(arguments, "new") or _argument(arguments, "content")
    if isinstance(first, int) and isinstance(last, int) and new is not None:
        return LinesReplaced(path, first, last, new)
    change = _replacement(arguments)
    return Unread(path) if change is None else Replaced(path, (change,))


def _shown(path: str, arguments: JsonObject, text: str) -> Shown:
    """Return the lines that the result of a read shows."""
    window = _WINDOW.match(text.lstrip())
    if window is not None:
        rows = _rows(text.split("\n"), _NUMBERED_WINDOW)
        total = int(window["total"])
    else:
        if _EMPTY.search(text[:200]) and not _NUMBERED.match(text):
            return Shown(path, 1, ("",), to_end=True)
        rows = _rows(text.split("\n"), _NUMBERED)
        total = 0
    if not rows:
        return Shown(path, 1, ())
    # With an offset of 0, Claude Code counts the lines from 0.
    first = max(1, rows[0][0])
    lines = tuple(line for _, line in rows)
    last = first + len(lines) - 1
    to_end = last == total if total else _goes_to_end(arguments, lines)
    return Shown(path, first, lines, to_end)


def _goes_to_end(arguments: JsonObject, lines: tuple[str | None, ...]) -> bool:
    """Whether a result has fewer lines than the call asked for."""
    limit = arguments.get("limit")
    view_range = arguments.get("view_range")
    if isinstance(view_range, list):
        return len(view_range) == 2 and view_range[1] == -1
    most = limit if isinstance(limit, int) else _MOST_LINES
    return len(lines) < most and None not in lines[-1:]


def _rows(lines: list[str], form: re.Pattern[str]) -> list[tuple[int, str | None]]:
    """Return the lines with successive numbers, from the first such line on."""
    rows: list[tuple[int, str | None]] = []
    for line in lines:
        match = form.fullmatch(line)
        if match is None:
            if rows:
                break
            continue
        number = int(match[1])
        if rows and number != rows[-1][0] + 1:
            break
        cut = _CUT_LINE.search(match[2])
        rows.append((number, None if cut else match[2].removesuffix("\r")))
    return rows


def _snippet(path: str, text: str) -> list[Use]:
    """Return the lines that the result of an edit shows, if it shows any."""
    window = _WINDOW.search(text)
    if window is not None:
        rows = _rows(text[window.end() :].split("\n"), _NUMBERED_WINDOW)
    elif _SNIPPET.search(text):
        rows = _rows(text.split("\n"), _NUMBERED)
    else:
        return []
    if not rows:
        return []
    lines = tuple(line for _, line in rows)
    return [Shown(path, rows[0][0], lines, requested=False)]
