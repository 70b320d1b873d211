"""The base of importers: reading files, and turning entries into transcripts."""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
    TypeVar,
)

from refold.adapters.importers.lines import (
    BOM,
    MAX_LINE as MAX_LINE,
    loads as loads,
    parse_line,
    problem,
    raw_lines,
)
from refold.domain.canonical import canonical, repaired
from refold.domain.envelope import Draft, Mark, Meta, with_id
from refold.domain.errors import ImportFailed, InvalidEvent, counted
from refold.domain.events import (
    EditReason,
    Event,
    JsonObject,
    ProviderEdit,
    SystemPrompt,
    ToolCall,
    ToolResult,
    event_of,
)
from refold.domain.ids import RESERVED, StreamId, check_session_id
from refold.domain.locks import computed_once
from refold.domain.ports import (
    Exported,
    Skipped as Skipped,
    Transcript as Transcript,
)
from refold.domain.session import (
    AnswersOfCalls,
    SessionState,
    decide,
    evolve,
    with_own_id,
    with_recorded_id,
)

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")

MAX_FILE = 256 << 20
_SNIFFED = 4096  # bytes
_SAMPLED_LINES = 1_000  # lines by which a damaged file of lines is recognised
_LINES_SUFFIXES = frozenset({".jsonl", ".ndjson"})
_FIELD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,39}")
_MOST_NAMES = 20  # fields that a reason lists
_NUL_RUN = re.compile(rb"\0{4,}")
_MILLISECONDS_FROM = 100_000_000_000  # as seconds: the year 5138
_SQLITE = b"SQLite format 3\0"
_REPLACEMENT = "\ufffd"
_PACKED = {
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "zip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
}


# The kind of a file, by its first bytes.
# A list is JSON that is too large to be read at once, and that begins with "[".
Content: TypeAlias = Literal["json", "list", "sqlite", "text", "zip"]
# The layout of a file's JSON; a single line is a document and lines at once.
Kind: TypeAlias = Literal["lines", "document", "single"]


class Line(NamedTuple):
    """A value in a line: the line's number from 1, the value, and its bytes.

    A line has several values if the newlines between them are missing.
    """

    number: int
    value: Any
    raw: bytes = b""


class Source:
    """A file to import.

    strict:  a damaged line refuses the file; else it is left out and reported.
    content: the kind of the file.  ``database`` reads SQLite, and
             ``importers.exports`` archives and lists; all else reads JSON.
    begins_with_list: whether the file is JSON that begins with a list.
    repairs: by place, the number of values that were replaced because UTF-8 or 64 bits
             cannot hold them.
    damage:  by line and first byte in it, the reason why bytes are no whole value.
    glued:   by line, the number of values in it, if it has more than one; all are read.

    ``repairs``, ``damage``, and ``glued`` are complete once the file has been read.

    The constructor and all reads raise ImportFailed, which says how to fix the file.
    """

    def __init__(self, path: Path, *, strict: bool = False) -> None:
        self.path = path
        self.name = shown(path.name)
        self.strict = strict
        self.repairs: dict[str, int] = {}
        self.damage: dict[tuple[int, int], str] = {}
        self.glued: dict[int, int] = {}
        self.content: Content = "json"
        self.begins_with_list = False
        self._check()
        self._sniff()

    def at(self, *places: str) -> str:
        """Return the file's name and a place in it, for a message."""
        return " ".join(place for place in (self.name, *places) if place)

    def failed(self, why: str, *, line: int | None = None) -> ImportFailed:
        """Return the error that refuses this file."""
        where = shown(self.path).replace("\0", "?")
        return ImportFailed(f"{where} line {line}" if line else where, why)

    def note(self, place: str, changes: int) -> None:
        """Remember the number of values that were replaced at ``place``."""
        if changes:
            self.repairs[place] = changes

    @property
    def damaged(self) -> tuple[Skipped, ...]:
        """The damaged places that were left out, in the order of the file."""
        places = []
        damage = dict(self.damage)
        lines_with_loss = {line for line, _ in damage}
        for line, count in self.glued.items():
            why = f"holds {count} entries without a newline between them: all read"
            damage.setdefault((line, 0), why)
        for (line, start), why in sorted(damage.items()):
            byte = f"byte {start + 1:,}" if start else ""
            where = self.at(f"line {line}", byte)
            is_read = line not in lines_with_loss
            places.append(Skipped(where, why, damaged=True, is_read=is_read))
        return tuple(places)

    @computed_once
    def kind(self) -> Kind:
        """The layout of the file.

        It is judged by the first lines: that of a document is no whole value.
        """
        start = list(islice(self._raw_lines(), 2))
        if not start:
            raise self.failed("is empty: there is nothing to import")
        if _is_json(start[0][1]):
            return "lines" if len(start) > 1 else "single"
        if not self.strict and self._is_damaged_lines():
            return "lines"
        return "document"

    def _is_damaged_lines(self) -> bool:
        """Whether this is a file of lines with a damaged first line."""
        with suppress(ValueError, RecursionError):
            loads(self._bytes())
            return False
        whole_lines = 0
        damaged_lines = 0
        for _, raw in islice(self._raw_lines(), _SAMPLED_LINES):
            content = parse_line(raw)
            if content.damage:
                damaged_lines += 1
            elif all(isinstance(value.value, dict) for value in content.values):
                whole_lines += 1
        if self.path.suffix.lower() in _LINES_SUFFIXES:
            return whole_lines > 0
        return whole_lines > damaged_lines

    @property
    def is_lines(self) -> bool:
        """Whether the file is read as lines, even if it has only one."""
        has_suffix = self.path.suffix.lower() in _LINES_SUFFIXES
        return self.kind == "lines" or (self.kind == "single" and has_suffix)

    def values(self) -> Iterator[tuple[str, Any]]:
        """Yield the values of the file with their places.

        They are those of its lines, the items of its list, or the document itself.
        """
        if self.is_lines:
            for line in self.lines():
                yield f"line {line.number}", line.value
        elif isinstance(self.document, list):
            for index, value in enumerate(self.document):
                yield f"[{index}]", value
        else:
            yield "", self.document

    def lines(self) -> Iterator[Line]:
        """Read the values of the lines one by one; a document is one value."""
        if self.kind == "document":
            yield Line(1, self.document)
            return
        for number, raw in self._raw_lines():
            if self.strict:
                yield Line(number, self._value(number, raw), raw.strip())
                continue
            content = parse_line(raw)
            for damage in content.damage:
                self.damage[number, damage.start] = damage.why
            if content.glued:
                self.glued[number] = len(content.values)
            for value in content.values:
                self.note(f"line {number}", value.changes)
                yield Line(number, value.value, raw[value.start : value.end])

    def text_lines(self) -> Iterator[tuple[int, str]]:
        """Yield the lines of a text with their numbers, also blank ones.

        Bytes that are not UTF-8 are replaced, and reported.
        """
        for number, raw in self._raw_lines(blank=True):
            text = raw.decode("utf-8", "replace").rstrip("\r\n")
            if _REPLACEMENT in text:
                self.note(f"line {number}", text.count(_REPLACEMENT))
            yield number, text

    @computed_once
    def document(self) -> Any:
        """The file as one value; None for a file of lines."""
        if self.kind == "lines":
            return None
        if self.kind == "single":
            return next(self.lines()).value
        return self._value(None, self._bytes())

    def _bytes(self) -> bytes:
        """Return the whole file."""
        return b"".join(raw for _, raw in self._raw_lines(blank=True))

    def _value(self, line: int | None, raw: bytes) -> Any:
        """Return the JSON value of a line, or without a number of the file.

        Raises ImportFailed.
        """
        try:
            value, changes = loads(raw)
        except (ValueError, RecursionError) as error:
            if line is None:
                raise self._refused(raw, error) from None
            raise self.failed(problem(error, raw), line=line) from None
        self.note(f"line {line}" if line else "", changes)
        return value

    def _refused(self, raw: bytes, error: Exception) -> ImportFailed:
        """Return the error that refuses a document, with the line of its fault."""
        if isinstance(error, json.JSONDecodeError):
            if error.lineno <= 2:
                refusal = self._broken_first_line()
                if refusal is not None:
                    return refusal
            return self.failed(problem(error, raw.rstrip()), line=error.lineno)
        if isinstance(error, UnicodeDecodeError):
            line = raw.count(b"\n", 0, error.start) + 1
            return self.failed(problem(error), line=line)
        return self.failed(problem(error))

    def _broken_first_line(self) -> ImportFailed | None:
        """Return the refusal of a file of lines whose first line is broken.

        Returns None if the second line is no whole value: then it is no file of lines.
        """
        start = list(islice(self._raw_lines(), 2))
        if len(start) < 2 or len(start[0][1].strip()) < 2 or not _is_json(start[1][1]):
            return None
        try:
            self._value(*start[0])
        except ImportFailed as refusal:
            return refusal
        return None

    def _check(self) -> None:
        """Raise ImportFailed for a path that is no readable file of allowed size."""
        try:
            info = self.path.stat()
        except FileNotFoundError:
            why = "there is no such file: check the path and its spelling"
            if str(self.path) == "-":
                why = (
                    "stdin cannot be imported, for files are read twice: save it first"
                )
            raise self.failed(why) from None
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from None
        if stat.S_ISDIR(info.st_mode):
            raise self.failed("is a directory without *.jsonl: name the files in it")
        if not stat.S_ISREG(info.st_mode):
            raise self.failed("is not a regular file: save it as one first")

    def _sniff(self) -> None:
        """Set the kind of the file by its first bytes.

        Raises ImportFailed for a file that is no database and no text in UTF-8, or that
        is too large to be read.
        """
        with self._read(lambda: self.path.open("rb")) as file:
            head = self._read(lambda: file.read(_SNIFFED))
            size = self._read(lambda: os.fstat(file.fileno()).st_size)
        if head.startswith(_SQLITE):  # of any size, since it is read row by row
            self.content = "sqlite"
            return
        for magic, packing in _PACKED.items():
            if not head.startswith(magic):
                continue
            if self.path.suffix == ".eval":
                raise self.failed(
                    "is a binary Inspect log: convert it with "
                    "`inspect log convert --to json`"
                )
            if packing != "zip":
                raise self.failed(f"is compressed ({packing}): unpack it first")
            self.content = "zip"  # of any size, since it is read in parts
            return
        # A crash or a full disk leaves a run of NULs; UTF-16 has single ones.
        head = _NUL_RUN.sub(b"", head)
        nuls = head.count(b"\0")
        if head.startswith((b"\xff\xfe", b"\xfe\xff")) or nuls * 3 > len(head):
            raise self.failed(
                "is not UTF-8: if it is UTF-16, convert it with "
                "`iconv -f UTF-16 -t UTF-8`"
            )
        is_json = head.removeprefix(BOM).lstrip()[:1] in (b"{", b"[")
        if nuls and not is_json:
            raise self.failed("is a binary file; transcripts are JSON text")
        self.begins_with_list = head.removeprefix(BOM).lstrip()[:1] == b"["
        self.content = "json" if is_json else "text"
        if size > MAX_FILE:
            if not self.begins_with_list:
                raise self.failed(too_large(size))
            self.content = "list"

    @contextmanager
    def database(self) -> Iterator[sqlite3.Connection]:
        """Open the file as a SQLite database, and read one state of it.

        The rows have names.  Nothing can be written, and no program waits.

        Raises ImportFailed for a file that is no database, and for any error of SQLite.
        """
        import sqlite3

        if self.content != "sqlite":
            raise self.failed("is no SQLite database: use --format auto, or another")
        url = f"{self.path.absolute().as_uri()}?mode=ro"
        try:
            connection = sqlite3.connect(url, uri=True, isolation_level=None)
            with closing(connection) as database:
                database.row_factory = sqlite3.Row
                database.execute("BEGIN")
                yield database
        except sqlite3.Error as error:
            why = f"is a database that SQLite cannot read: {error}"
            raise self.failed(why) from None

    def _unreadable(self, error: Exception) -> ImportFailed:
        """Return the error for a file that cannot be opened or read."""
        if isinstance(error, PermissionError):
            return self.failed("cannot be read: check its permissions")
        reason = error.strerror if isinstance(error, OSError) else None
        why = reason or "not a valid path"
        return self.failed(f"cannot be read ({why}): check the path")

    def _raw_lines(self, *, blank: bool = False) -> Iterator[tuple[int, bytes]]:
        """Yield the lines with their numbers from 1; blank ones only if ``blank``."""
        if self.content == "sqlite":
            raise self.failed("is a SQLite database: use --format auto, or another")
        if self.content == "zip":
            raise self.failed("is compressed (zip): unpack it first")
        if self.content == "list":
            raise self.failed(too_large(self.path.stat().st_size))
        with self._read(lambda: self.path.open("rb")) as file:
            lines = raw_lines(file, limit=MAX_LINE + 2)
            while line := self._read(lambda: next(lines, None)):
                if line.end > MAX_FILE:
                    raise self.failed(too_large(line.end))
                raw = line.data
                if raw is None or len(raw.rstrip(b"\r\n")) > MAX_LINE:
                    self._refuse_long(line.number)
                    continue
                if line.number == 1:
                    raw = raw.removeprefix(BOM)
                if blank or raw.strip():
                    yield line.number, raw

    def _refuse_long(self, line: int) -> None:
        """Leave out a line that is too long, and report it; if strict, raise."""
        why = (
            f"is longer than {MAX_LINE:,} bytes: remove it, or split a "
            "single JSON document into lines with `python -m json.tool`"
        )
        if self.strict:
            raise self.failed(why, line=line)
        self.damage[line, 0] = why

    def _read(self, read: Callable[[], T]) -> T:
        """Call a function that reads the file.  Raises ImportFailed for its OSError."""
        try:
            return read()
        except OSError as error:
            raise self._unreadable(error) from None


def parsed(data: str) -> tuple[Any, int]:
    """Parse a text; the result for a text that is no JSON is (None, 0)."""
    try:
        return loads(data)
    except (ValueError, RecursionError):
        return None, 0


def replaced(count: int) -> str:
    """Return the report of ``count`` values that were replaced."""
    return (
        f"{counted(count, 'value')} replaced: invalid Unicode, or a number that is not "
        "finite or has over 64 bits"
    )


def shown(path: Path | str) -> str:
    """Return ``path`` for a message; not every file name is valid Unicode."""
    return str(repaired(str(path))[0])


def field_names(names: Iterable[str]) -> str:
    """List names of fields for a message.

    Keys that are no plain names are only counted, because they may be content.
    """
    shown_names: list[str] = []
    other_names = 0
    for name in names:
        if _FIELD_NAME.fullmatch(name) and len(shown_names) < _MOST_NAMES:
            shown_names.append(name)
        else:
            other_names += 1
    if other_names:
        shown_names.append(counted(other_names, "other"))
    return ", ".join(shown_names)


def _is_json(raw: bytes) -> bool:
    try:
        loads(raw)
    except (ValueError, RecursionError):
        return False
    return True


def too_large(size: int) -> str:
    """Return the reason why a file of this size is refused."""
    return f"is {size:,} bytes, the limit is {MAX_FILE:,}: split it into smaller files"


class Piece(NamedTuple):
    """An event that an importer read: its type and its fields, not checked yet.

    in_context:  False if the event only repeats a call and its result.
    among_messages: whether it is a system or developer message in a list of messages.
                 The first is the system prompt; a later one does not replace it.
    """

    type: str
    fields: dict[str, Any]
    in_context: bool = True
    among_messages: bool = False


PieceOrSkipped: TypeAlias = Piece | Skipped


def placed(piece: PieceOrSkipped, place: str) -> PieceOrSkipped:
    """Return the piece; a skipped one is reported at ``place``."""
    return piece if isinstance(piece, Piece) else Skipped(place, piece.why)


@dataclass(frozen=True, slots=True)
class Origin:
    """The fields that the events of one entry share.

    place:  the line or index of the entry.
    usage:  the usage of the response, as this entry records it.
    source: further fields of ``meta.source``.
    key:    identifies the entry, so that a session has it once.
    """

    place: str
    ts: datetime | None = None
    request_id: str | None = None
    agent: str | None = None
    model: str | None = None
    scenario: str | None = None
    response_id: str | None = None
    usage: JsonObject | None = None
    source: JsonObject = field(default_factory=dict)
    key: str | None = None

    def draft(
        self, piece: Piece, usage: JsonObject | None, source: JsonObject | None = None
    ) -> Draft:
        """Return the draft of a piece of the entry.

        usage: stands in a response, and in the meta of any other event.
        """
        fields = dict(piece.fields)
        if usage and piece.type == "agent_response":
            fields["usage"] = usage
            usage = None
        event = event_of(piece.type, fields)
        meta = Meta(
            model=self.model,
            usage=usage,
            scenario=self.scenario,
            response_id=self.response_id,
            source=source,
            in_context=piece.in_context,
        )
        return Draft(event, self.ts, self.request_id, self.agent, meta)


def exported_in(entry: dict[str, Any]) -> Exported | None:
    """Return the event after which Refold exported this entry; None for others."""
    mark = mapping(entry, "refold")
    session = session_name(mark, "session")
    event_id = text(mark, "event")
    seq = number(mark, "seq")
    if not session or event_id is None or seq is None or seq < 1:
        return None
    return Exported(session, int(seq), event_id)


class ExportedEntries:
    """Collects the entries of a file that Refold wrote."""

    def __init__(self) -> None:
        self._first: Exported | None = None
        self._keys: list[str] = []

    def take(self, entry: dict[str, Any], key: str | None) -> None:
        """Take the next entry of the file, with its key."""
        exported = exported_in(entry)
        if exported is None or key is None:
            return
        self._first = self._first or exported
        if exported == self._first:
            self._keys.append(key)

    def exported(self) -> Exported | None:
        """Return the exported event; None if Refold wrote no entry."""
        if self._first is None:
            return None
        return self._first._replace(keys=frozenset(self._keys))


class Importer(Protocol):
    """A module that reads one format.

    ``recognises`` returns True for its own format only.  ``read`` returns the
    transcripts in the order in which they begin.  If the file has grown at its end, it
    returns the same drafts and then further ones.  Both raise ImportFailed for a file
    that cannot be read whole.
    """

    NAME: str

    def recognises(self, source: Source) -> bool: ...

    def read(self, source: Source) -> Iterable[Transcript]: ...


def at(value: Any, *path: str) -> Any:
    """Return the value at this path in ``value``, or None.

    The functions below take such a path, too.
    """
    if len(path) == 1:  # the most frequent case
        return value.get(path[0]) if isinstance(value, dict) else None
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def mapping(value: Any, *path: str) -> dict[str, Any]:
    """Return the JSON object at this path, or an empty one."""
    if len(path) == 1:  # without a further call, for it is the most frequent
        value = value.get(path[0]) if isinstance(value, dict) else None
    elif path:
        value = at(value, *path)
    return value if isinstance(value, dict) else {}


def sequence(value: Any, *path: str) -> list[Any]:
    """Return the JSON array at this path, or an empty one."""
    if len(path) == 1:  # without a further call, for it is the most frequent
        value = value.get(path[0]) if isinstance(value, dict) else None
    elif path:
        value = at(value, *path)
    return value if isinstance(value, list) else []


def each(value: Any, *path: str) -> Iterator[dict[str, Any]]:
    """Yield the items of the array at this path; other items than objects are {}."""
    return map(mapping, sequence(value, *path))


def text(value: Any, *path: str) -> str | None:
    """Return the text at this path, or None if there is none or it is empty."""
    if len(path) == 1:  # without a further call, for it is the most frequent
        value = value.get(path[0]) if isinstance(value, dict) else None
    elif path:
        value = at(value, *path)
    return value if isinstance(value, str) and value else None


def number(value: Any, *path: str) -> float | None:
    """Return the finite number at this path, or None; true and false are no numbers."""
    value = at(value, *path)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if math.isfinite(value) else None


def milliseconds(value: Any, *path: str, per_unit: float = 1.0) -> float | None:
    """Return the duration at this path in milliseconds; None if it is negative.

    per_unit: the milliseconds in the unit of the file.
    """
    amount = number(value, *path)
    return None if amount is None or amount < 0 else round(amount * per_unit, 3)


def moment(value: Any, *path: str) -> datetime | None:
    """Return the time at this path, in UTC: ISO 8601, or seconds since 1970.

    A time without a zone is UTC.  A number too large for seconds is milliseconds.
    """
    value = at(value, *path)
    try:
        if isinstance(value, str):
            when = datetime.fromisoformat(value.strip())
            return when.astimezone(UTC) if when.tzinfo else when.replace(tzinfo=UTC)
        seconds = number(value)
        if seconds is None:
            return None
        scale = 1000 if seconds >= _MILLISECONDS_FROM else 1
        return datetime.fromtimestamp(seconds / scale, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def session_name(value: Any, *path: str) -> str:
    """Return the name at this path if a session can have it, else an empty text."""
    value = at(value, *path)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    try:
        name = check_session_id(value)
        return "" if name in RESERVED else name
    except InvalidEvent:
        return ""


def accepted(
    state: SessionState, event: Event, meta: Meta
) -> tuple[Event, SessionState]:
    """Return the event as a session in this state accepts it, and the next state.

    Raises InvalidEvent, ValueError, TypeError, RecursionError.
    """
    (event,), state = decide(state, [event])
    fields = event.fields()
    if fields is None:
        fields = event.payload()
    try:
        canonical([fields, meta.dump()])
    except TypeError:
        # Raises for values that are no JSON; an append repairs the others.
        repaired([event.payload(), meta.dump()])
    return event, state


def drafts_of(pieces: Iterable[PieceOrSkipped], origin: Origin) -> Iterator[Draft]:
    """Yield the drafts of an item's pieces; only the first one has its usage."""
    usage = origin.usage
    for piece in pieces:
        if isinstance(piece, Piece):
            yield origin.draft(piece, usage)
            usage = None


class Recording:
    """Collects the events of a transcript that a session accepts; reports the others.

    Later pieces never change earlier ones.

    form: the name of the format.
    name: the name of the file, for reports.
    """

    def __init__(self, form: str, name: str) -> None:
        self._form = form
        self._name = name
        self._state = SessionState(StreamId("importer", "transcript"))
        self._answers = AnswersOfCalls()
        self._usage: dict[str, JsonObject] = {}
        # The calls by id, each with the place of its entry.
        self._calls: dict[str, tuple[str, ToolCall]] = {}
        self._drafts: list[Draft] = []
        self._keys = Counter[str]()
        self._skipped: list[Skipped] = []
        self._has_prompt = False

    @property
    def event_count(self) -> int:
        """The number of events so far."""
        return len(self._drafts)

    @property
    def begun(self) -> bool:
        """Whether it has an event."""
        return bool(self._drafts)

    @property
    def waiting(self) -> tuple[str, ...]:
        """The ids of the calls without a result, oldest first."""
        return tuple(self._state.open_calls)

    def waits(self, call_id: str) -> bool:
        """Whether the call with this id of a provider has no result yet."""
        result = ToolResult(call_id=call_id)
        result = with_recorded_id(self._state, result, self._answers)
        return result.call_id in self._state.open_calls

    def take(self, pieces: Iterable[PieceOrSkipped], origin: Origin) -> None:
        """Record the pieces of one entry, in its order."""
        for item in pieces:
            if isinstance(item, Skipped):
                self.skip(item.why, origin.place, item.where, note=item.note)
            elif self._add(item, origin) and origin.usage:
                origin = replace(origin, usage=None)

    def mark(
        self,
        mark: Mark,
        origin: Origin,
        reason: EditReason,
        *,
        cleared_text: str = "",
        edits: tuple[JsonObject, ...] = (),
    ) -> None:
        """Record that the client changed its history.

        mark:   the entries that it changes, by the keys of their origins.
        origin: has a key of its own, by which a session has the mark once.
        edits:  the edits as the client wrote them.
        """
        whole = Mark(
            left_out=self._all_keys(mark.left_out),
            restored=self._all_keys(mark.restored),
            cleared=self._all_keys(mark.cleared),
            in_place=self._all_keys(mark.in_place),
        )
        edit = ProviderEdit(reason=reason, cleared_text=cleared_text, edits=edits)
        source = {"format": self._form, "place": origin.place, **origin.source}
        draft = Draft(edit, origin.ts, meta=Meta(source=source), mark=whole)
        self._state = evolve(self._state, edit)
        self._drafts.append(self._keyed(draft, origin.key))

    def _all_keys(self, keys: Iterable[str]) -> tuple[str, ...]:
        """Return the keys of all drafts of these entries."""
        whole: list[str] = []
        for key in keys:
            whole.append(key)
            for place in range(1, self._keys[key]):
                whole.append(f"{key}\0{place}")
        return tuple(whole)

    def skip(self, why: str, *places: str, note: bool = False) -> None:
        """Report that the content at a place is left out."""
        where = " ".join(place for place in (self._name, *places) if place)
        self._skipped.append(Skipped(where, why, note=note))

    def transcript(self, session_id: str, *, parent: str | None = None) -> Transcript:
        """Return the transcript of everything recorded so far."""
        return Transcript(
            session_id, self._form, tuple(self._drafts), tuple(self._skipped), parent
        )

    def _add(self, piece: Piece, origin: Origin) -> bool:
        if piece.among_messages and self._has_prompt:
            fields = {**piece.fields, "where": "conversation"}
            piece = piece._replace(fields=fields)
        try:
            draft = self._draft(piece, origin)
        except (InvalidEvent, ValueError, TypeError, RecursionError):
            self.skip(f"not valid as an event {piece.type}", origin.place)
            return False
        event = draft.event
        if isinstance(event, ToolCall) and event.call_id in self._state.open_calls:
            if self._is_repeated(event, origin):
                self.skip("repeated tool call", origin.place)
                return False
            draft = with_id(draft, with_own_id(self._state, event))
        elif isinstance(event, ToolResult):
            if not self.waits(event.call_id):
                why = (
                    "tool result without an open call: no call stands before it, or "
                    "the call has a result already"
                )
                self.skip(why, origin.place)
                return False
            recorded = with_recorded_id(self._state, event, self._answers)
            draft = with_id(draft, recorded)
        try:
            event, state = accepted(self._state, draft.event, draft.meta)
        except (InvalidEvent, ValueError, TypeError, RecursionError):
            self.skip(f"not valid as an event {piece.type}", origin.place)
            return False
        self._state = state
        self._answers.add(state.head_seq, event)
        if origin.response_id and origin.usage:
            self._usage[origin.response_id] = origin.usage
        if isinstance(event, ToolCall):
            self._calls[event.call_id] = origin.place, event
        elif isinstance(event, SystemPrompt) and event.is_prompt:
            self._has_prompt = True
        if event is not draft.event:
            draft = replace(draft, event=event)
        self._drafts.append(self._keyed(draft, origin.key))
        return True

    def _is_repeated(self, call: ToolCall, origin: Origin) -> bool:
        """Whether another entry repeats the open call with this id."""
        place, before = self._calls[call.call_id]
        return place != origin.place and call == before

    def _keyed(self, draft: Draft, key: str | None) -> Draft:
        """Return the draft with its entry's key, numbered from the second draft on."""
        if key is None:
            return draft
        place = self._keys[key]
        self._keys[key] += 1
        if place == 0:
            return replace(draft, key=key)
        return replace(draft, key=f"{key}\0{place}", continues=True)

    def _draft(self, piece: Piece, origin: Origin) -> Draft:
        """Return the draft of a piece; a response's usage stands on its first event.

        A client may write a response in parts, each with the usage up to then.  The
        usage of a later part is kept in ``meta.source``, where no sum counts it.
        """
        source = {"format": self._form, "place": origin.place, **origin.source}
        recorded_usage = self._usage.get(origin.response_id or "")
        if recorded_usage is None:
            return origin.draft(piece, origin.usage, source)
        if origin.usage not in (None, recorded_usage):
            source["usage"] = origin.usage
        return origin.draft(piece, None, source)
