"""Memory as a tool: how a model asks for what sessions showed, and what it is told."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from itertools import islice
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeGuard, get_args

import orjson

from refold.domain.canonical import canonical
from refold.domain.events import JsonObject
from refold.domain.model import quiet
from refold.domain.tokens import estimate_text
from refold.projections.memory import advice
from refold.projections.memory.items import Evidence, Item, Kind, Procedural
from refold.projections.memory.labels import name_of
from refold.projections.memory.sessions import FILES, GENERAL, RETRIEVAL

NAME: Final = RETRIEVAL
QueryType: TypeAlias = Literal["errors", "topics", "tool_paths", "all"]

_QUERIES: Final[tuple[str, ...]] = get_args(QueryType)
_KINDS: Final[Mapping[str, frozenset[Kind]]] = {
    "errors": frozenset({"failure", "recovery", "error", "mistake"}),
    "topics": frozenset({"topic", "progress"}),
    "tool_paths": frozenset({"path", "check", "effort"}),
}
_FIELDS: Final = {"user_id", "query_type", "subject_filter"}
_NO_LIMIT: Final = 1 << 60
_ABOUT: Final = (
    "What earlier sessions of this user show: tool paths that worked or failed, errors "
    "and what then helped, and, if the user consented, the user's weak and strong "
    "topics. Use it before you choose tools or judge work. It is advice, not fact; "
    "each memory names the events behind it."
)

# What the text of a result holds.
OUTPUT_SCHEMA: Final[JsonObject] = orjson.loads(
    (files("refold.projections.memory") / "answer.schema.json").read_bytes()
)


def definition(user_id: str | None = None) -> JsonObject:
    """The tool as the Messages API takes it among ``tools``.

    user_id: named as the only one that is taken, so that a model knows what to say.
             Left out, the definition is the same for all users, and the user's id has
             to be told to the model elsewhere.
    """
    whose: JsonObject = {"type": "string", "description": "The user of this session."}
    if user_id is not None:
        whose["enum"] = [user_id]
    return {
        "name": NAME,
        "description": _ABOUT,
        "input_schema": {
            "type": "object",
            "properties": {
                "user_id": whose,
                "query_type": {
                    "type": "string",
                    "enum": list(_QUERIES),
                    "description": "What about; all if left out.",
                },
                "subject_filter": {
                    "type": "string",
                    "description": "Of this subject or kind of task only, e.g. math.",
                },
            },
            "required": ["user_id"],
            "additionalProperties": False,
        },
    }


class Query(NamedTuple):
    """What a model asks for; ``subject`` is a name in its one spelling, "" for any."""

    query_type: str = "all"
    subject: str = ""

    def takes(self, kind: Kind) -> bool:
        return self.query_type == "all" or kind in _KINDS[self.query_type]


class Refused(NamedTuple):
    """Why a query has no answer, as the model is told."""

    why: str


def asked(given: object, *, user_id: str) -> Query | Refused:
    """The query that a call's input is, if it asks about ``user_id``.

    Of any other user nothing is said, not even whether there is one.
    """
    if not isinstance(given, Mapping):
        return Refused("the input must be an object with user_id")
    if not set(given) <= _FIELDS:
        return Refused("only user_id, query_type and subject_filter can be given")
    if given.get("user_id") != user_id:
        return Refused("user_id must be the id of the user of this session")
    query_type, subject = given.get("query_type"), given.get("subject_filter")
    query_type = "all" if query_type is None else query_type
    if query_type not in _QUERIES:
        return Refused(f"query_type must be one of {', '.join(_QUERIES)}")
    if subject is None:
        return Query(query_type)
    name = name_of(subject) if isinstance(subject, str) else None
    if name is None:
        return Refused("subject_filter must be a name of at most six words")
    return Query(query_type, name)


class Known(NamedTuple):
    """What may be said of a user.

    items:   of procedural memory; of these, what may be said is told.
    means:   how sessions end, by scenario.
    profile: lines about the user, with the item that each is of.
    """

    items: Sequence[Item] = ()
    means: Mapping[str, float] = {}
    profile: Sequence[tuple[advice.Line, Item]] = ()


@quiet
@dataclass(frozen=True, slots=True)
class Answer:
    """The text of a result, as ``OUTPUT_SCHEMA`` says, and the items that it shows."""

    text: str
    items: tuple[str, ...] = ()


def answer(query: Query, known: Known, how: advice.Choice, *, now: int) -> Answer:
    """The memories that fit, chosen as advice is; what is about the user comes last.

    The text costs at most ``how.tokens``, or is an empty list.
    """
    found = [*_procedural(query, known, how, now), *_declared(query, known, how)]
    taken: list[JsonObject] = []
    for memory in found:
        text = _written([*taken, memory], len(found))
        if len(taken) < how.top and estimate_text(text) <= how.tokens:
            taken.append(memory)
    text = _written(taken, len(found) - len(taken))
    ids = dict.fromkeys(str(memory["memory_id"]) for memory in taken)
    return Answer(text, tuple(ids))


def _procedural(
    query: Query, known: Known, how: advice.Choice, now: int
) -> Iterable[JsonObject]:
    items = [one for one in known.items if query.takes(one.kind)]
    scenario = how.scenario
    if query.subject:  # what was learned in no scenario of its own holds always
        names = sorted({one.scenario for one in items})
        named = (name for name in names if name_of(name) == query.subject)
        scenario = next(named, GENERAL)
    listed = advice.shortlist(items, scenario, now=now, means=known.means)
    wide = replace(how, scenario=scenario, tokens=_NO_LIMIT)
    chosen = advice.choose(listed, wide, now=now)
    by_id = {one.memory_id: one for one in items}
    for name in (*chosen.items, *chosen.left_out):
        item = by_id[name]
        line = advice.advised(item).replace(f"; {advice.cited(item)}", "", 1)
        yield _memory(item, line, advice.surety(item))


def _declared(query: Query, known: Known, how: advice.Choice) -> Iterable[JsonObject]:
    for line, item in known.profile:
        about = {item.content.get("subject"), item.content.get("topic")}
        wanted = not query.subject or query.subject in about
        if wanted and query.takes(item.kind) and line.sure >= how.threshold:
            # What a line cites has fields of its own here.
            yield _memory(item, line.text.partition(";")[0], line.sure)


def _memory(item: Item, line: str, sure: float) -> JsonObject:
    procedural = item.kind in get_args(Procedural)
    return {
        "type": "procedural" if procedural else "declarative",
        "content": line.removeprefix("- "),
        "confidence": round(sure, 2),
        "memory_id": item.memory_id,
        "evidence": [f"{one.session_id} #{_seqs(one)}" for one in advice.shown(item)],
    }


def _seqs(place: Evidence) -> str:
    first, last = place.seqs[0], place.seqs[-1]
    return str(first) if first == last else f"{first}-{last}"


def _written(memories: Sequence[JsonObject], left_out: int) -> str:
    found: dict[str, Any] = {"memories": list(memories)}
    if left_out:
        found["left_out"] = left_out
    return canonical(found).decode()


ROOT: Final = "/memories"
_LONGEST: Final = 256
_DEEPEST: Final = 2
# Nothing is ever decoded here; but who reads such a path elsewhere might.
_ENCODED: Final = re.compile(r"%[0-9A-Fa-f]{2}")
_HIDDEN: Final = "node_modules"


class BadPath(Exception):
    """A path that is not taken; the message is what the model is told."""


def checked(given: object, name: str = "path") -> str:
    """The one spelling of a path at or below ``/memories``.

    Raises BadPath for one that leads out of it or might, and for one that is no name
    in plain text of at most 256 characters.
    """
    if not isinstance(given, str) or not given:
        raise BadPath(f"Error: {name} must be a path that starts with {ROOT}")
    path = unicodedata.normalize("NFC", given)
    if len(path) > _LONGEST or not path.isprintable():
        raise BadPath(f"Error: {name} must be printable, of {_LONGEST} characters")
    if "\\" in path or _ENCODED.search(path):
        raise BadPath(f"Error: {name} must hold no backslash and no %XX")
    if path != ROOT and not path.startswith(f"{ROOT}/"):
        raise BadPath(f"Error: {name} must start with {ROOT}")
    parts = [part for part in path.split("/") if part]
    if any(part.strip(" .") == "" for part in parts):
        raise BadPath(f"Error: {name} would escape the {ROOT} directory")
    return "/" + "/".join(parts)


def inside(files: Mapping[str, str], path: str) -> list[str]:
    """The file of that path, or all files below it; in order."""
    return sorted(one for one in files if one == path or one.startswith(f"{path}/"))


def is_folder(files: Mapping[str, str], path: str) -> bool:
    """Whether something lies in it; ``/memories`` is always there."""
    return path == ROOT or any(one.startswith(f"{path}/") for one in files)


def parents(path: str) -> Iterator[str]:
    """The folders that a path lies in, from the outermost below ``/memories``."""
    parts = path.split("/")
    for end in range(3, len(parts)):
        yield "/".join(parts[:end])


def listing(files: Mapping[str, str], folder: str) -> Iterator[str]:
    """A folder and what lies in it, two levels deep, each with its size in bytes."""
    sizes: dict[str, int] = {folder: 0}
    for path in inside(files, folder):
        size = len(files[path].encode("utf-8", "surrogatepass"))
        sizes[folder] += size
        below = path[len(folder) + 1 :].split("/")
        if any(part.startswith(".") or part == _HIDDEN for part in below):
            continue
        for depth in range(1, min(len(below), _DEEPEST) + 1):
            name = "/".join((folder, *below[:depth]))
            shown = name if depth == len(below) else f"{name}/"
            sizes[shown] = sizes.get(shown, 0) + size
    yield from (f"{_size(sizes[name])}\t{name}" for name in sorted(sizes))


def _size(count: float) -> str:
    if count < 1024:
        return f"{count:.0f}B"
    for unit in "KM":
        count /= 1024
        if count < 1024:
            return f"{count:.1f}{unit}"
    return f"{count / 1024:.1f}G"


FILES_NAME: Final = FILES
DEFINITION: Final[dict[str, Any]] = {"type": "memory_20250818", "name": FILES_NAME}
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
        """Whether there is anything to record."""
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
        names = ", ".join(_COMMANDS)
        return Done(f"Error: command must be one of {names}", is_error=True)
    try:
        return known(files, command)
    except (_Refused, BadPath) as refusal:
        return Done(str(refusal), is_error=True)


def _view(files: Files, command: Mapping[str, Any]) -> Done:
    path = _path(command)
    if path in files:
        lines = files[path].split("\n")
        if len(lines) > _MOST_LINES:
            raise _Refused(f"File {path} exceeds maximum line limit of 999,999 lines.")
        shown = _numbered(lines, *_range(command.get("view_range"), len(lines)))
        return Done(f"Here's the content of {path} with line numbers:\n{shown}")
    if not is_folder(files, path):
        raise _Refused(f"The path {path} does not exist. Please provide a valid path.")
    head = (
        f"Here're the files and directories up to 2 levels deep in {path}, excluding "
        "hidden items and node_modules:"
    )
    return Done("\n".join([head, *listing(files, path)]))


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
            raise _Refused(f"Error: {parent} is a file, not a directory")


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _numbered(lines: list[str], first: int, last: int) -> str:
    shown = enumerate(lines[first - 1 : last], first)
    return "\n".join(f"{number:>6}\t{line}" for number, line in shown)
