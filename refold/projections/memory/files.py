"""The memory tool of the Messages API: its commands on files that are values.

What it says is what the documentation of the tool says, so that a model knows it.
Nothing here is read by procedural memory: what stands in a file is a model's own words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, TypeAlias, TypeGuard

from refold.projections.memory.folders import (
    ROOT,
    BadPath,
    checked,
    inside,
    is_folder,
    listing,
    parents,
)
from refold.projections.memory.own_tools import FILES

NAME: Final = FILES
DEFINITION: Final[dict[str, Any]] = {"type": "memory_20250818", "name": NAME}
# Commands whose results quote a file.
SHOWING: Final = frozenset({"view", "str_replace"})
Files: TypeAlias = Mapping[str, str]

_MOST_LINES: Final = 999_999
_AROUND: Final = 2
# Looking for more would take as long as a file has of them times what is looked for.
_MOST_PLACES: Final = 100


@dataclass(frozen=True, slots=True)
class Done:
    """What a command came to: what the model is told, and what it changes.

    set: the whole text of each file that is new or another; ``unset`` are those gone.
    """

    text: str
    is_error: bool = False
    set: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()

    @property
    def changes(self) -> bool:
        return bool(self.set or self.unset)


class _Refused(Exception):
    """The command cannot be done; the message is what the model is told."""


def run(files: Files, command: object) -> Done:
    """Do a command, as a model gave it, on the files of a user.

    files: the text of each by its path.  What is wrong with a command is told, never
           raised.
    """
    if not isinstance(command, Mapping):
        return Done("Error: a command must be an object", is_error=True)
    name = command.get("command")
    known = _COMMANDS.get(name) if isinstance(name, str) else None
    if known is None:
        known_names = ", ".join(_COMMANDS)
        return Done(f"Error: command must be one of {known_names}", is_error=True)
    try:
        return known(files, command)
    except (_Refused, BadPath) as refusal:
        return Done(str(refusal), is_error=True)


def _view(files: Files, command: Mapping[str, Any]) -> Done:
    path = _path(command)
    if path in files:
        return Done(_content(path, files[path], command.get("view_range")))
    if not is_folder(files, path):
        raise _Refused(f"The path {path} does not exist. Please provide a valid path.")
    head = (
        f"Here're the files and directories up to 2 levels deep in {path}, excluding "
        "hidden items and node_modules:"
    )
    return Done("\n".join([head, *listing(files, path)]))


def _content(path: str, text: str, view_range: object) -> str:
    lines = text.split("\n")
    if len(lines) > _MOST_LINES:
        raise _Refused(f"File {path} exceeds maximum line limit of 999,999 lines.")
    first, last = _range(view_range, len(lines))
    shown = _numbered(lines, first, last)
    return f"Here's the content of {path} with line numbers:\n{shown}"


def _range(given: object, count: int) -> tuple[int, int]:
    if given is None:
        return 1, count
    if isinstance(given, list | tuple) and len(given) == 2 and all(map(_is_int, given)):
        first, last = given
        last = count if last == -1 else last
        if 1 <= first <= last and first <= count:
            return first, min(last, count)
    raise _Refused(
        "Error: Invalid `view_range` parameter: it should be [first, last], within "
        f"[1, {count}], or [first, -1]"
    )


def _create(files: Files, command: Mapping[str, Any]) -> Done:
    path, text = _path(command), _text(command, "file_text")
    if path in files or is_folder(files, path):
        raise _Refused(f"Error: File {path} already exists")
    _check_place(files, path)
    return Done(f"File created successfully at: {path}", set={path: text})


def _str_replace(files: Files, command: Mapping[str, Any]) -> Done:
    path = _path(command)
    old, new = _text(command, "old_str"), _text(command, "new_str", default="")
    if path not in files:
        raise _Refused(
            f"Error: The path {path} does not exist. Please provide a valid path."
        )
    text = files[path]
    if not old or old not in text:
        raise _Refused(
            f"No replacement was performed, old_str `{old}` did not appear verbatim "
            f"in {path}."
        )
    at, *others = islice(_lines_with(old, text), _MOST_PLACES + 1)
    if others:
        more = ", and more" if len(others) == _MOST_PLACES else ""
        lines = ", ".join(map(str, (at, *others[: _MOST_PLACES - 1])))
        raise _Refused(
            f"No replacement was performed. Multiple occurrences of old_str `{old}` in "
            f"lines: {lines}{more}. Please ensure it is unique"
        )
    changed = text.replace(old, new)
    after = changed.split("\n")
    last = at + new.count("\n") + _AROUND
    snippet = _numbered(after, max(1, at - _AROUND), min(len(after), last))
    said = "The memory file has been edited. Here is the snippet showing the change"
    return Done(f"{said} (with line numbers):\n{snippet}", set={path: changed})


def _lines_with(part: str, text: str) -> Iterator[int]:
    """The line of each place where it begins, from 1; places may overlap."""
    line, seen, place = 1, 0, text.find(part)
    while place >= 0:
        line, seen = line + text.count("\n", seen, place), place
        yield line
        place = text.find(part, place + 1)


def _insert(files: Files, command: Mapping[str, Any]) -> Done:
    path, added = _path(command), _text(command, "insert_text")
    if path not in files:
        raise _Refused(f"Error: The path {path} does not exist")
    lines = files[path].split("\n")
    if lines[-1] == "":
        lines.pop()
    at = command.get("insert_line")
    if not _is_int(at) or not 0 <= at <= len(lines):
        told = at if _is_int(at) else "no number"
        raise _Refused(
            f"Error: Invalid `insert_line` parameter: {told}. It should be within the "
            f"range of lines of the file: [0, {len(lines)}]"
        )
    lines[at:at] = added.removesuffix("\n").split("\n")
    text = "\n".join(lines) + "\n"
    return Done(f"The file {path} has been edited.", set={path: text})


def _delete(files: Files, command: Mapping[str, Any]) -> Done:
    path = _path(command)
    if path == ROOT:
        raise _Refused("Error: Cannot delete the /memories directory itself")
    gone = tuple(inside(files, path))
    if not gone:
        raise _Refused(f"Error: The path {path} does not exist")
    return Done(f"Successfully deleted {path}", unset=gone)


def _rename(files: Files, command: Mapping[str, Any]) -> Done:
    old, new = _path(command, "old_path"), _path(command, "new_path")
    if old == ROOT:
        raise _Refused("Error: Cannot rename the /memories directory itself")
    moved = inside(files, old)
    if not moved:
        raise _Refused(f"Error: The path {old} does not exist")
    if new in files or is_folder(files, new):
        raise _Refused(f"Error: The destination {new} already exists")
    if new.startswith(f"{old}/"):
        raise _Refused(f"Error: {old} cannot be moved into itself")
    _check_place(files, new)
    texts = {new + path[len(old) :]: files[path] for path in moved}
    said = f"Successfully renamed {old} to {new}"
    return Done(said, set=texts, unset=tuple(moved))


_COMMANDS: Final[Mapping[str, Callable[[Files, Mapping[str, Any]], Done]]] = {
    "view": _view,
    "create": _create,
    "str_replace": _str_replace,
    "insert": _insert,
    "delete": _delete,
    "rename": _rename,
}


def _path(command: Mapping[str, Any], name: str = "path") -> str:
    return checked(command.get(name), name)


def _text(command: Mapping[str, Any], name: str, default: str | None = None) -> str:
    text = command.get(name, default)
    if not isinstance(text, str):
        raise _Refused(f"Error: {name} must be a text")
    return text


def _check_place(files: Files, path: str) -> None:
    """A file lies in folders: nothing can lie in a file."""
    for parent in parents(path):
        if parent in files:
            raise _Refused(f"Error: {parent} is a file, and no directory")


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _numbered(lines: list[str], first: int, last: int) -> str:
    shown = enumerate(lines[first - 1 : last], first)
    return "\n".join(f"{number:>6}\t{line}" for number, line in shown)
