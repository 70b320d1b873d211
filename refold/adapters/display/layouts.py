"""The layout of an event on a page: diffs, commands, tasks, tables, files, and texts.

A layout is read from the arguments and the content themselves, since each client names
its tools differently.  A part that matches no form stays text.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, Final, Literal, NamedTuple, cast

import orjson

from refold.adapters.display.events import preview, readable, result_text
from refold.domain import events, media, parts
from refold.domain.envelope import Envelope
from refold.projections.context.abridged import TOOLS, editor

LineKind = Literal["added", "removed", "same", "place"]
TaskState = Literal["pending", "in_progress", "completed", "cancelled"]

# Texts with more lines in all are not compared: the old text precedes the new one.
_MOST_COMPARED: Final = 1_500
_AROUND: Final = 3  # unchanged lines around a change
_MOST_COLUMNS: Final = 8
_MOST_ROWS: Final = 100
_LONGEST_CELL: Final = 300
_MOST_JSON: Final = 200_000  # characters of a text that is parsed as JSON

_PATHS: Final = ("file_path", "path", "notebook_path", "filename", "file", "file_name")
_COMMANDS: Final = ("command", "cmd", "script")
# The arguments of an edit: the text before it, and the text after it.
_EDITS: Final = (
    ("old_string", "new_string"),
    ("old_str", "new_str"),
    ("old_text", "new_text"),
    ("oldText", "newText"),
)
# The arguments that contain a whole new text of a file.
_NEW_TEXTS: Final = ("content", "file_text", "contents", "new_source")
_INSERTED: Final = ("insert_text", "new_str")
_PATCHES: Final = ("input", "patch", "diff")
_FOLDERS: Final = ("workdir", "cwd")
# The fields of a task that may contain its words.
_TASK_WORDS: Final = ("content", "step", "subject", "title", "task", "text")
_TASK_STATES: Final[Mapping[str, TaskState]] = {
    "pending": "pending",
    "todo": "pending",
    "not_started": "pending",
    "in_progress": "in_progress",
    "in-progress": "in_progress",
    "doing": "in_progress",
    "completed": "completed",
    "complete": "completed",
    "done": "completed",
    "cancelled": "cancelled",
    "canceled": "cancelled",
    "deleted": "cancelled",
}
_EXIT_CODES: Final = ("exit_code", "exitCode", "returncode", "return_code")
_EXIT: Final = re.compile(
    r"^(?:Exit code:? |Process exited with code )(-?\d{1,10})\b", re.MULTILINE
)
_EXIT_WITHIN: Final = 300  # characters in which a client states the exit code
_PATCH: Final = re.compile(
    r"^\*\*\* Begin Patch[ \t]*\n(.*?)(?:^\*\*\* End Patch|\Z)",
    re.DOTALL | re.MULTILINE,
)
_PATCHED_FILE: Final = re.compile(r"\*\*\* (?:Add|Update|Delete) File: (.+)")
_UNIFIED: Final = re.compile(r"\A(?:diff --git |--- \S[^\n]*\n\+\+\+ )")


class Line(NamedTuple):
    """A line of a diff; ``place`` stands between two parts of a file."""

    kind: LineKind
    text: str


class Diff(NamedTuple):
    """The changes to one file, each old line before the line that replaces it."""

    path: str
    lines: Sequence[Line]

    @property
    def added(self) -> int:
        """How many lines are new."""
        return sum(line.kind == "added" for line in self.lines)

    @property
    def removed(self) -> int:
        """How many lines are gone."""
        return sum(line.kind == "removed" for line in self.lines)


class Command(NamedTuple):
    """A command of a shell.

    about:  the agent's description of it.
    folder: the folder in which it ran.
    """

    text: str
    about: str = ""
    folder: str = ""


class Task(NamedTuple):
    """An entry of a list of tasks."""

    text: str
    state: TaskState


class Table(NamedTuple):
    """JSON objects with the same fields, as rows."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


class MediaFile(NamedTuple):
    """An image or PDF in an event.

    nth:        its place among the files of the event, from 0.
    media_type: the type that the event states; a reader must check the bytes.
    block:      the file as a block of the Messages API.
    """

    nth: int
    media_type: str
    name: str
    block: parts.Block

    @property
    def is_image(self) -> bool:
        """Whether it is an image."""
        return self.media_type in media.IMAGES


class Layout(NamedTuple):
    """The parts of an event in the order in which a page shows them.

    thoughts:    the model's thinking.
    prose:       what a person or a model wrote, which may be Markdown.
    text:        everything else, as lines.
    exit_code:   of a command, as far as its result states it.
    """

    thoughts: Sequence[str] = ()
    prose: str = ""
    tasks: Sequence[Task] = ()
    diffs: Sequence[Diff] = ()
    command: Command | None = None
    table: Table | None = None
    text: str = ""
    files: Sequence[MediaFile] = ()
    exit_code: int | None = None


def layout(event: events.SessionEvent) -> Layout:
    """Return the layout of an event."""
    match event:
        case events.UserInput(text=text, attachments=attachments):
            files = _files(attachment.model_dump() for attachment in attachments)
            shown = {file.nth for file in files}
            others = preview(
                events.UserInput(
                    attachments=tuple(
                        attachment
                        for nth, attachment in enumerate(attachments)
                        if nth not in shown
                    )
                )
            )
            return Layout(prose=text, text=others.body, files=files)
        case events.AgentResponse(text=text, thinking=blocks):
            thoughts = [block.thinking or "(encrypted)" for block in blocks]
            return Layout(thoughts=thoughts, prose=text)
        case events.Final(text=text, result=result):
            result_layout = _of_json(result) if result is not None else Layout()
            return result_layout._replace(prose=text)
        case events.Planner(plan=plan):
            if isinstance(plan, str):
                return Layout(prose=plan)
            return _of_json(plan)
        case events.ToolCall(tool_name=name, arguments=arguments):
            return _of_call(name, arguments)
        case events.ToolResult(content=content):
            return _of_result(content)
        case events.HumanReview(question=question, decision=None):
            return Layout(prose=question)
    return Layout(text=preview(event).body)


def layout_of(envelope: Envelope) -> Layout:
    """Return the layout of an event, with the reviewer's note in its meta."""
    parts_of_event = layout(envelope.payload)
    if isinstance(envelope.payload, events.HumanReview) and envelope.note:
        text = "\n".join(filter(None, (parts_of_event.text, envelope.note)))
        return parts_of_event._replace(text=text)
    return parts_of_event


def _of_call(name: str, arguments: Mapping[str, Any] | str) -> Layout:
    """Return the layout of a call."""
    if isinstance(arguments, str):
        diffs = _patch(arguments)
        return Layout(diffs=diffs) if diffs else Layout(text=arguments)
    shown: set[str] = set()  # the arguments that have a form
    diffs = _diffs(name, arguments, shown)
    command = None
    if not diffs:
        command = _command(name, arguments, shown)
    tasks: Sequence[Task] = ()
    table = None
    prose = ""
    for key, value in arguments.items():
        if key in shown:
            continue
        if not tasks:
            tasks = _tasks(value)
            if tasks:
                shown.add(key)
                continue
        if table is None:
            table = _table(value)
            if table is not None:
                shown.add(key)
        if key == "plan" and isinstance(value, str):
            prose = value
            shown.add(key)
    others = {key: value for key, value in arguments.items() if key not in shown}
    return Layout(
        prose=prose,
        tasks=tasks,
        diffs=diffs,
        command=command,
        table=table,
        text=readable(others) if others else "",
    )


def _of_result(content: Any) -> Layout:
    """Return the layout of a result."""
    exit_code = _exit_code(content)
    value = content
    if isinstance(content, str):
        parsed = _parsed(content)
        if isinstance(parsed, dict) and isinstance(parsed.get("output"), str):
            # A client of shells wraps the output and the exit code in JSON.
            inner = parsed["output"]
            code = _exit_code(parsed) if exit_code is None else exit_code
            return Layout(text=inner, exit_code=code)
        if _UNIFIED.match(content):
            return Layout(diffs=_unified(content), exit_code=exit_code)
        if not isinstance(parsed, list):
            return Layout(text=content, exit_code=exit_code)
        value = parsed
    blocks = parts.parts_of(value)
    if blocks is not None:
        files = _files(blocks)
        shown = {file.nth for file in files}
        other_blocks = [block for nth, block in enumerate(blocks) if nth not in shown]
        text = result_text(other_blocks) if other_blocks else ""
        return Layout(text=text, files=files, exit_code=exit_code)
    table = _table(value)
    if table is not None:
        return Layout(table=table, exit_code=exit_code)
    if isinstance(content, str):
        return Layout(text=content, exit_code=exit_code)
    if isinstance(value, dict):
        return _of_json(value)._replace(exit_code=exit_code)
    return Layout(text=result_text(value), exit_code=exit_code)


def _of_json(value: Any) -> Layout:
    """Return the layout of a JSON value."""
    tasks = _tasks(value)
    if tasks:
        return Layout(tasks=tasks)
    table = _table(value)
    if table is not None:
        return Layout(table=table)
    if isinstance(value, dict):
        for key, item in value.items():
            table = _table(item)
            if table is not None:
                others = {name: field for name, field in value.items() if name != key}
                return Layout(table=table, text=readable(others) if others else "")
    return Layout(text=readable(value))


# Edits of files


def _diffs(
    name: str, arguments: Mapping[str, Any], shown: set[str]
) -> tuple[Diff, ...]:
    """Return the edits that a call makes; add its arguments with them to ``shown``."""
    for key in _PATCHES:
        value = arguments.get(key)
        if isinstance(value, str):
            diffs = _patch(value) or (_unified(value) if _UNIFIED.match(value) else ())
            if diffs:
                shown.add(key)
                return diffs
    path_key = _path_key(arguments)
    if path_key is None:
        return ()
    path = arguments[path_key]
    lines = _edit(arguments, shown)
    edits = arguments.get("edits")
    if not lines and isinstance(edits, list):
        for edit in edits:
            if not isinstance(edit, dict):
                return ()
            hunk = _edit(edit, set())
            if not hunk:
                return ()
            lines += [Line("place", ""), *hunk] if lines else hunk
        if lines:
            shown.add("edits")
    if not lines:
        lines = _whole_or_inserted(name, arguments, shown)
    if not lines:
        return ()
    shown.add(path_key)
    return (Diff(path, lines),)


def _edit(arguments: Mapping[str, Any], shown: set[str]) -> list[Line]:
    """Return the lines of an edit that names its old and its new text."""
    for old_key, new_key in _EDITS:
        old = arguments.get(old_key)
        new = arguments.get(new_key, "")
        if isinstance(old, str) and isinstance(new, str):
            shown |= {old_key, new_key}
            return changed_lines(old, new)
    return []


def _whole_or_inserted(
    name: str, arguments: Mapping[str, Any], shown: set[str]
) -> list[Line]:
    """Return the lines of a call that writes a whole file or inserts a text."""
    reader = TOOLS.get(name)
    action = reader(dict(arguments)) if reader is not None else None
    keys: tuple[str, ...] = ()
    if action is not None and action.effect == "created":
        keys = _NEW_TEXTS
    elif reader is editor and arguments.get("command") == "insert":
        keys = _INSERTED
    elif name == "NotebookEdit":
        keys = _NEW_TEXTS
    for key in keys:
        text = arguments.get(key)
        if isinstance(text, str):
            shown.add(key)
            return [Line("added", line) for line in _split(text)]
    return []


def changed_lines(old: str, new: str) -> list[Line]:
    """Return the lines of a diff from one text to another.

    Each removed line precedes the lines that replace it.
    """
    old_lines = _split(old)
    new_lines = _split(new)
    if len(old_lines) + len(new_lines) > _MOST_COMPARED or old_lines == new_lines:
        removed = [Line("removed", line) for line in old_lines]
        return removed + [Line("added", line) for line in new_lines]
    lines: list[Line] = []
    matcher = SequenceMatcher(None, old_lines, new_lines)
    for group in matcher.get_grouped_opcodes(_AROUND):
        if lines:
            lines.append(Line("place", ""))
        for kind, old_start, old_end, new_start, new_end in group:
            if kind == "equal":
                lines += [Line("same", line) for line in old_lines[old_start:old_end]]
                continue
            lines += [Line("removed", line) for line in old_lines[old_start:old_end]]
            lines += [Line("added", line) for line in new_lines[new_start:new_end]]
    return lines


def _split(text: str) -> list[str]:
    """Return the lines of a text."""
    if not text:
        return []
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n")


def _patch(text: str) -> tuple[Diff, ...]:
    """Return the edits of an ``apply_patch``, which may be inside a command."""
    match = _PATCH.search(text)
    if match is None:
        return ()
    diffs: list[Diff] = []
    lines: list[Line] = []
    for line in match[1].split("\n"):
        begins = _PATCHED_FILE.match(line)
        if begins:
            lines = []
            diffs.append(Diff(begins[1].strip(), lines))
        elif line.startswith(("@@", "*** ")):
            lines.append(Line("place", line.removeprefix("@@").strip()))
        elif line:
            lines.append(_signed(line))
    return tuple(diffs)


def _unified(text: str) -> tuple[Diff, ...]:
    """Return the edits of a unified diff, such as ``git diff`` prints."""
    diffs: list[Diff] = []
    lines: list[Line] = []
    in_head = True
    for line in _split(text):
        if line.startswith("diff --git ") or (in_head and line.startswith("--- ")):
            if not in_head or not diffs:
                lines = []
                diffs.append(Diff(line.rpartition(" ")[2].removeprefix("b/"), lines))
            in_head = True
        elif line.startswith("@@"):
            in_head = False
            lines.append(Line("place", line))
        elif in_head:
            if line.startswith("+++ "):
                path = line.removeprefix("+++ ").removeprefix("b/").strip()
                if path != "/dev/null":
                    diffs[-1] = diffs[-1]._replace(path=path)
        else:
            lines.append(_signed(line))
    return tuple(diffs)


def _signed(line: str) -> Line:
    """Return a line of a patch, whose first character says what it is."""
    kinds: dict[str, LineKind] = {"+": "added", "-": "removed", " ": "same"}
    kind = kinds.get(line[:1])
    if kind is None:
        return Line("same", line)
    return Line(kind, line[1:])


def _path_key(arguments: Mapping[str, Any]) -> str | None:
    """Return the argument that contains the path of a file."""
    for key in _PATHS:
        value = arguments.get(key)
        if isinstance(value, str) and value:
            return key
    return None


# Commands


def _command(
    name: str, arguments: Mapping[str, Any], shown: set[str]
) -> Command | None:
    """Return the command that a call runs."""
    if TOOLS.get(name) is editor:
        return None
    for key in _COMMANDS:
        text = _command_text(arguments.get(key))
        if text:
            shown.add(key)
            about = _taken(arguments, ("description",), shown)
            folder = _taken(arguments, _FOLDERS, shown)
            return Command(text, about, folder)
    return None


def _command_text(value: Any) -> str:
    """Return a command that is a text, or a list of its words."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        if len(value) == 3 and value[1] in ("-c", "-lc"):
            return str(value[2])  # the words are a shell, an option, and a script
        return shlex.join(value)
    return ""


def _taken(arguments: Mapping[str, Any], keys: Sequence[str], shown: set[str]) -> str:
    """Return the first of these arguments that is a text; add it to ``shown``."""
    for key in keys:
        value = arguments.get(key)
        if isinstance(value, str) and value:
            shown.add(key)
            return value
    return ""


def _exit_code(content: Any) -> int | None:
    """Return the exit code that a result states."""
    if isinstance(content, dict):
        for place in (content, content.get("metadata")):
            if not isinstance(place, dict):
                continue
            for key in _EXIT_CODES:
                code = place.get(key)
                if isinstance(code, int) and not isinstance(code, bool):
                    return code
    if isinstance(content, str):
        match = _EXIT.search(content, 0, _EXIT_WITHIN)
        if match:
            return int(match[1])
    return None


# Lists and tables


def _tasks(value: Any) -> Sequence[Task]:
    """Return the tasks in a list; empty if an entry is no task."""
    if not isinstance(value, list) or not value:
        return ()
    tasks: list[Task] = []
    for entry in value:
        if not isinstance(entry, dict):
            return ()
        state = _TASK_STATES.get(str(entry.get("status")).lower())
        words = [entry[key] for key in _TASK_WORDS if isinstance(entry.get(key), str)]
        if state is None or not words:
            return ()
        tasks.append(Task(words[0], state))
    return tasks


def _table(value: Any) -> Table | None:
    """Return a list of objects with short plain fields as a table."""
    if not isinstance(value, list) or not 1 < len(value) <= _MOST_ROWS:
        return None
    columns: dict[str, None] = {}
    for entry in value:
        if not isinstance(entry, dict) or not entry or "type" in entry:
            return None
        columns.update(dict.fromkeys(entry))
        if len(columns) > _MOST_COLUMNS:
            return None
        if not all(map(_is_cell, entry.values())):
            return None
    if not all(len(entry) * 2 > len(columns) for entry in value):
        return None
    rows = [[_cell(entry.get(name)) for name in columns] for entry in value]
    return Table(list(columns), rows)


def _is_cell(value: Any) -> bool:
    """Whether a value fits into a cell."""
    if isinstance(value, str):
        return len(value) <= _LONGEST_CELL
    return value is None or isinstance(value, bool | int | float)


def _cell(value: Any) -> str:
    """Return the text of a cell."""
    if value is None:
        return ""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _parsed(text: str) -> Any:
    """Return the JSON value of a text that may be an object or list; else None."""
    if len(text) > _MOST_JSON or text[:1] not in ("{", "["):
        return None
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


# Images and documents


def _files(values: Iterable[Mapping[str, Any] | Any]) -> Sequence[MediaFile]:
    """Return the images and PDFs among attachments or parts of a result."""
    return list(_each_file(values))


def _each_file(values: Iterable[Any]) -> Iterator[MediaFile]:
    for nth, value in enumerate(values):
        if not isinstance(value, Mapping):
            continue
        block = (
            parts.as_block(value) if "type" in value else parts.attachment_block(value)
        )
        if block is None:
            continue
        source = cast(Mapping[str, Any], block.get("source") or {})
        media_type = media.media_type_of(source.get("media_type"))
        if source.get("type") == "base64" and media_type is not None:
            name = value.get("name") or value.get("title") or ""
            yield MediaFile(nth, media_type, str(name), block)
