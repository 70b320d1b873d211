"""What an importer is: a file in, transcripts of drafts out, and what was left out."""

from __future__ import annotations

import json
import math
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from refold.adapters.importers.lines import (
    BOM,
    MAX_LINE as MAX_LINE,
    loads as loads,
    parse_line,
    problem,
    raw_lines,
)
from refold.domain.canonical import repaired
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
from refold.domain.ports import Skipped as Skipped, Transcript as Transcript
from refold.domain.session import (
    SessionState,
    decide,
    evolve,
    with_own_id,
    with_recorded_id,
)

Given = TypeVar("Given")

MAX_FILE = 256 << 20
_SNIFFED = 4096
_LOOKED_AT = 1_000  # lines by which a damaged file of lines is recognised
_OF_LINES = frozenset({".jsonl", ".ndjson"})
_FIELD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,39}")
_MOST_NAMES = 20  # of fields that a reason lists
_NUL_RUN = re.compile(rb"\0{4,}")
_MILLISECONDS_FROM = 100_000_000_000  # as seconds: the year 5138
_PACKED = {
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "zip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
}


# How a file's JSON is laid out; a single line is a document and lines at once.
Kind: TypeAlias = Literal["lines", "document", "single"]


class Line(NamedTuple):
    """A value in a line: the line's number from 1, the value, and its bytes.

    A line has several where the newlines between them are missing.
    """

    number: int
    value: Any
    raw: bytes = b""


class Source:
    """A file that can be read.

    strict:  a damaged line refuses the file; else it is left out and reported.
    repairs: by place, how many values were replaced because UTF-8 or 64 bits cannot
             hold them.
    damage:  by line and first byte in it, why bytes are no whole value.
    glued:   by line, how many values it has where one is expected; all are read.

    All are complete once the file has been read.

    Raises ImportFailed here or on reading, with one sentence that says the way out.
    """

    def __init__(self, path: Path, *, strict: bool = False) -> None:
        self.path = path
        self.name = shown(path.name)
        self.strict = strict
        self.repairs: dict[str, int] = {}
        self.damage: dict[tuple[int, int], str] = {}
        self.glued: dict[int, int] = {}
        self._check()
        self._sniff()

    def at(self, *places: str) -> str:
        """The file's name and the places in it, for a person."""
        return " ".join(place for place in (self.name, *places) if place)

    def failed(self, why: str, *, line: int | None = None) -> ImportFailed:
        """The error that refuses this file."""
        where = shown(self.path).replace("\0", "?")
        return ImportFailed(f"{where} line {line}" if line else where, why)

    def note(self, place: str, changes: int) -> None:
        """Remember how many values had to be replaced at ``place``."""
        if changes:
            self.repairs[place] = changes

    @property
    def damaged(self) -> tuple[Skipped, ...]:
        """What was left out because it is damaged, in the order of the file."""
        places = []
        damage = dict(self.damage)
        for line, count in self.glued.items():
            why = f"holds {count} entries without a newline between them: all read"
            damage.setdefault((line, 0), why)
        for (line, start), why in sorted(damage.items()):
            byte = f"byte {start + 1:,}" if start else ""
            places.append(Skipped(self.at(f"line {line}", byte), why, damaged=True))
        return tuple(places)

    @computed_once
    def kind(self) -> Kind:
        """Told by the first lines: a document's first line is no JSON value alone."""
        start = list(islice(self._raw_lines(), 2))
        if not start:
            raise self.failed("is empty: there is nothing to import")
        if _is_json(start[0][1]):
            return "lines" if len(start) > 1 else "single"
        if not self.strict and self._is_damaged_lines():
            return "lines"
        return "document"

    def _is_damaged_lines(self) -> bool:
        """Whether these are lines of which the first is damaged, and no document."""
        with suppress(ValueError, RecursionError):
            loads(self._bytes())
            return False
        sound = 0
        damaged = 0
        for _, raw in islice(self._raw_lines(), _LOOKED_AT):
            content = parse_line(raw)
            if content.damage:
                damaged += 1
            elif all(isinstance(one.value, dict) for one in content.values):
                sound += 1
        if self.path.suffix.lower() in _OF_LINES:
            return sound > 0
        return sound > damaged

    @property
    def is_lines(self) -> bool:
        """Whether the file is to be read as lines, also if it has but one."""
        named = self.path.suffix.lower() in _OF_LINES
        return self.kind == "lines" or (self.kind == "single" and named)

    def lines(self) -> Iterator[Line]:
        """The values of the lines, read as they are asked for; a document is one."""
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

    @computed_once
    def document(self) -> Any:
        """The file as one value; None of a file of lines."""
        if self.kind == "lines":
            return None
        if self.kind == "single":
            return next(self.lines()).value
        return self._value(None, self._bytes())

    def _bytes(self) -> bytes:
        return b"".join(raw for _, raw in self._raw_lines(blank=True))

    def _value(self, line: int | None, raw: bytes) -> Any:
        try:
            value, changes = loads(raw)
        except (ValueError, RecursionError) as error:
            if line is None:
                raise self._refused(raw, error) from None
            raise self.failed(problem(error, raw), line=line) from None
        self.note(f"line {line}" if line else "", changes)
        return value

    def _refused(self, raw: bytes, error: Exception) -> ImportFailed:
        if isinstance(error, json.JSONDecodeError):
            if error.lineno <= 2 and (broken := self._broken_first_line()):
                return broken
            return self.failed(problem(error, raw.rstrip()), line=error.lineno)
        if isinstance(error, UnicodeDecodeError):
            line = raw.count(b"\n", 0, error.start) + 1
            return self.failed(problem(error), line=line)
        return self.failed(problem(error))

    def _broken_first_line(self) -> ImportFailed | None:
        """The refusal of a file of lines of which the first is broken."""
        start = list(islice(self._raw_lines(), 2))
        if len(start) < 2 or len(start[0][1].strip()) < 2 or not _is_json(start[1][1]):
            return None
        try:
            self._value(*start[0])
        except ImportFailed as broken:
            return broken
        return None

    def _check(self) -> None:
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
            raise self.failed(
                "is a directory: name the files in it, such as DIR/*.jsonl"
            )
        if not stat.S_ISREG(info.st_mode):
            raise self.failed("is not a regular file: save it as one first")
        if info.st_size > MAX_FILE:
            raise self.failed(_too_large(info.st_size))

    def _sniff(self) -> None:
        with self._read(lambda: self.path.open("rb")) as file:
            head = self._read(lambda: file.read(_SNIFFED))
        for magic, packing in _PACKED.items():
            if head.startswith(magic):
                if self.path.suffix == ".eval":
                    raise self.failed(
                        "is a binary Inspect log: convert it with "
                        "`inspect log convert --to json`"
                    )
                raise self.failed(f"is compressed ({packing}): unpack it first")
        # A run of them is what a crash or a full disk left; UTF-16 has single ones.
        head = _NUL_RUN.sub(b"", head)
        nuls = head.count(b"\0")
        if head.startswith((b"\xff\xfe", b"\xfe\xff")) or nuls * 3 > len(head):
            raise self.failed(
                "is not UTF-8: if it is UTF-16, convert it with "
                "`iconv -f UTF-16 -t UTF-8`"
            )
        if nuls and head.lstrip()[:1] not in (b"{", b"["):
            raise self.failed("is a binary file; transcripts are JSON text")

    def _unreadable(self, error: Exception) -> ImportFailed:
        if isinstance(error, PermissionError):
            return self.failed("cannot be read: check its permissions")
        reason = error.strerror if isinstance(error, OSError) else None
        why = reason or "not a valid path"
        return self.failed(f"cannot be read ({why}): check the path")

    def _raw_lines(self, *, blank: bool = False) -> Iterator[tuple[int, bytes]]:
        """The lines with their numbers from 1; ``blank`` ones only if asked for."""
        with self._read(lambda: self.path.open("rb")) as file:
            lines = raw_lines(file, limit=MAX_LINE + 2)
            while line := self._read(lambda: next(lines, None)):
                if line.end > MAX_FILE:
                    raise self.failed(_too_large(line.end))
                raw = line.data
                if raw is None or len(raw.rstrip(b"\r\n")) > MAX_LINE:
                    self._refuse_long(line.number)
                    continue
                if line.number == 1:
                    raw = raw.removeprefix(BOM)
                if blank or raw.strip():
                    yield line.number, raw

    def _refuse_long(self, line: int) -> None:
        why = (
            f"is longer than {MAX_LINE:,} bytes: remove it, or split a "
            "single JSON document into lines with `python -m json.tool`"
        )
        if self.strict:
            raise self.failed(why, line=line)
        self.damage[line, 0] = why

    def _read(self, do: Callable[[], Given]) -> Given:
        try:
            return do()
        except OSError as error:
            raise self._unreadable(error) from None


def parsed(data: str) -> tuple[Any, int]:
    """``loads`` of a text that may be no JSON: then it is (None, 0)."""
    try:
        return loads(data)
    except (ValueError, RecursionError):
        return None, 0


def replaced(count: int) -> str:
    """Say that ``count`` values could not be kept as they were."""
    return (
        f"{counted(count, 'value')} replaced: invalid Unicode, or a number that is not "
        "finite or has over 64 bits"
    )


def shown(path: Path | str) -> str:
    """``path`` as a message can hold it: not every file name is valid Unicode."""
    return str(repaired(str(path))[0])


def field_names(names: Iterable[str]) -> str:
    """Names of fields, for a person; a key that is no name may be content."""
    shown_names: list[str] = []
    others = 0
    for name in names:
        if _FIELD_NAME.fullmatch(name) and len(shown_names) < _MOST_NAMES:
            shown_names.append(name)
        else:
            others += 1
    if others:
        shown_names.append(counted(others, "other"))
    return ", ".join(shown_names)


def _is_json(raw: bytes) -> bool:
    try:
        loads(raw)
    except (ValueError, RecursionError):
        return False
    return True


def _too_large(size: int) -> str:
    return f"is {size:,} bytes, the limit is {MAX_FILE:,}: split it into smaller files"


class Piece(NamedTuple):
    """An event as an importer read it: its type and its fields, not checked yet.

    in_context:  False if the event only says what a call and its result say.
    among_messages: whether it is a system or developer message in a list of messages.
                 The first is the system prompt; a later one does not replace it.
    """

    type: str
    fields: dict[str, Any]
    in_context: bool = True
    among_messages: bool = False


Found: TypeAlias = Piece | Skipped


def placed(found: Found, place: str) -> Found:
    """The same, and if it was skipped, said to be at ``place``."""
    return found if isinstance(found, Piece) else Skipped(place, found.why)


@dataclass(frozen=True, slots=True)
class Origin:
    """What the events of one entry share.

    ``place`` is the entry's line or index; ``source`` is what else is to stand in
    ``meta.source``.  ``usage`` is the response's as this entry tells it.  ``key`` is
    the entry's own, by which a session has it once.
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
        """A piece of the entry with this usage: in a response, beside another event."""
        fields = dict(piece.fields)
        if usage and piece.type == "agent_response":
            fields["usage"], usage = usage, None
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


class Importer(Protocol):
    """A module that reads one format.

    ``recognises`` says yes to its own format only.  ``read`` gives the transcripts
    in the order in which they begin; from a file that has grown at its end it gives
    the same drafts and then further ones.  Both raise ImportFailed for a file that
    cannot be read whole.
    """

    NAME: str

    def recognises(self, source: Source) -> bool: ...

    def read(self, source: Source) -> Iterable[Transcript]: ...


def at(value: Any, *path: str) -> Any:
    """What is there in ``value``, behind these names; None if nothing is.

    The functions below take such a path, too.
    """
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def mapping(value: Any, *path: str) -> dict[str, Any]:
    """The JSON object that is there, else an empty one."""
    found = at(value, *path)
    return found if isinstance(found, dict) else {}


def sequence(value: Any, *path: str) -> list[Any]:
    """The JSON array that is there, else an empty one."""
    found = at(value, *path)
    return found if isinstance(found, list) else []


def each(value: Any, *path: str) -> Iterator[dict[str, Any]]:
    """The objects in the array that is there."""
    return map(mapping, sequence(value, *path))


def text(value: Any, *path: str) -> str | None:
    """The text that is there, if it is not empty."""
    found = at(value, *path)
    return found if isinstance(found, str) and found else None


def number(value: Any, *path: str) -> float | None:
    """The finite number that is there, which no truth value is."""
    found = at(value, *path)
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    return found if math.isfinite(found) else None


def milliseconds(value: Any, *path: str, per_unit: float = 1.0) -> float | None:
    """The duration that is there, in milliseconds, if it can be one."""
    amount = number(value, *path)
    return None if amount is None or amount < 0 else round(amount * per_unit, 3)


def moment(value: Any, *path: str) -> datetime | None:
    """The time in UTC that is named there: ISO 8601, or seconds since 1970.

    A time without a zone is taken as UTC, a number beyond any date as milliseconds.
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
    """What is there if it can name a session, else nothing: the caller does then."""
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
    """The event as a session in this state takes it, and the state then.

    Raises InvalidEvent, ValueError, TypeError, RecursionError.
    """
    (event,), state = decide(state, [event])
    # An append repairs what JSON cannot hold; what is no JSON at all stops here.
    repaired([event.payload(), meta.dump()])
    return event, state


def typed(found: Iterable[Found], origin: Origin) -> Iterator[Draft]:
    """The drafts of what was found in an item; its usage is the first one's."""
    usage = origin.usage
    for piece in found:
        if isinstance(piece, Piece):
            yield origin.draft(piece, usage)
            usage = None


class Recording:
    """Takes what was found, keeps what a session accepts, says what it does not.

    Nothing that was taken is changed by what comes later.
    """

    def __init__(self, form: str, name: str) -> None:
        self._form, self._name = form, name
        self._state = SessionState(StreamId("importer", "transcript"))
        self._usage: dict[str, JsonObject] = {}
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
        """Whether there is an event yet."""
        return bool(self._drafts)

    @property
    def waiting(self) -> tuple[str, ...]:
        """The ids of the calls without a result, oldest first."""
        return tuple(self._state.open_calls)

    def waits(self, call_id: str) -> bool:
        """Whether a call to which a provider gave this id has no result yet."""
        result = with_recorded_id(self._state, ToolResult(call_id=call_id))
        return result.call_id in self._state.open_calls

    def take(self, found: Iterable[Found], origin: Origin) -> None:
        """Record what was found in one entry, in its order."""
        for item in found:
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
    ) -> None:
        """Record that the client changed its history.

        mark:   the entries that it changes, by the keys of their origins.
        origin: has a key of its own, by which a session has the mark once.
        """
        whole = Mark(
            left_out=self._all_keys(mark.left_out),
            restored=self._all_keys(mark.restored),
            cleared=self._all_keys(mark.cleared),
            in_place=self._all_keys(mark.in_place),
        )
        edit = ProviderEdit(reason=reason, cleared_text=cleared_text)
        source = {"format": self._form, "place": origin.place, **origin.source}
        draft = Draft(edit, origin.ts, meta=Meta(source=source), mark=whole)
        self._state = evolve(self._state, edit)
        self._drafts.append(self._keyed(draft, origin.key))

    def _all_keys(self, keys: Iterable[str]) -> tuple[str, ...]:
        """The keys of all drafts of these entries."""
        whole: list[str] = []
        for key in keys:
            whole.append(key)
            for place in range(1, self._keys[key]):
                whole.append(f"{key}\0{place}")
        return tuple(whole)

    def skip(self, why: str, *places: str, note: bool = False) -> None:
        """Say that what is at these places is left out."""
        where = " ".join(place for place in (self._name, *places) if place)
        self._skipped.append(Skipped(where, why, note=note))

    def transcript(self, session_id: str, *, parent: str | None = None) -> Transcript:
        """What was taken so far."""
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
            if self._told_again(event, origin):
                self.skip("tool call that is told again", origin.place)
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
            draft = with_id(draft, with_recorded_id(self._state, event))
        try:
            event, state = accepted(self._state, draft.event, draft.meta)
        except (InvalidEvent, ValueError, TypeError, RecursionError):
            self.skip(f"not valid as an event {piece.type}", origin.place)
            return False
        self._state = state
        if origin.response_id and origin.usage:
            self._usage[origin.response_id] = origin.usage
        if isinstance(event, ToolCall):
            self._calls[event.call_id] = origin.place, event
        elif isinstance(event, SystemPrompt) and event.is_prompt:
            self._has_prompt = True
        self._drafts.append(self._keyed(replace(draft, event=event), origin.key))
        return True

    def _told_again(self, call: ToolCall, origin: Origin) -> bool:
        """Whether it is the open call of its id: another entry repeats it."""
        place, before = self._calls[call.call_id]
        return place != origin.place and call == before

    def _keyed(self, draft: Draft, key: str | None) -> Draft:
        """The draft with the key of its entry, which its first one has as it is."""
        if key is None:
            return draft
        place = self._keys[key]
        self._keys[key] += 1
        if place == 0:
            return replace(draft, key=key)
        return replace(draft, key=f"{key}\0{place}", continues=True)

    def _draft(self, piece: Piece, origin: Origin) -> Draft:
        """Put a response's usage on its first event, once.

        A client may write a response in parts, with the usage as it grew: what a
        later part says is kept beside, in ``meta.source``, where no sum counts it.
        """
        source = {"format": self._form, "place": origin.place, **origin.source}
        told = self._usage.get(origin.response_id or "")
        if told is None:
            return origin.draft(piece, origin.usage, source)
        if origin.usage not in (None, told):
            source["usage"] = origin.usage
        return origin.draft(piece, None, source)
