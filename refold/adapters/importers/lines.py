"""Reads the lines of a transcript: whole values, and the damage between them.

Programs that die, race or fill a disk leave lines that are not one JSON value: two
objects without a newline between them, the start of an object that was never finished
with another object after it, or a run of NUL bytes.  ``parse_line`` returns every whole
object of such a line, and the places of the other bytes with the reasons.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO, Final, NamedTuple

import orjson

from refold.domain.canonical import repaired

MAX_LINE: Final = 64 << 20
BOM: Final = b"\xef\xbb\xbf"
UNFINISHED: Final = "is the start of an entry that was never finished"
_BLANK: Final = b" \t\r\n"
_FILLER: Final = re.compile(rb"[ \t\r\n\0]*")
_OBJECT_START: Final = re.compile(r'\{[ \t\r\n]*"')
_LONGEST_TOKEN: Final = 6  # an escape such as \u00e9; true, false and null are shorter
# The search for objects after a torn start ends when it has read this many times the
# bytes of the line.
_MOST_READS: Final = 32
_DIGITS: Final = bytes.maketrans(b"123456789", b"000000000")
_MANY_DIGITS: Final = b"0" * 19
_WIDE_INTEGER: Final = re.compile(rb"\d{20}|-\d{19}")
# The keys that an entry of a transcript has, one set for each program.  An object after
# a torn start counts only if it has all keys of a set: it may also be a part of the
# object that was torn.
_FRAMES: Final = (
    frozenset({"type", "sessionId"}),
    frozenset({"type", "uuid", "timestamp"}),
    frozenset({"type", "timestamp", "payload"}),
    frozenset({"event_id", "seq", "type", "session_id"}),
)


class Value(NamedTuple):
    """A JSON value, and the bytes of the line that it is read from.

    changes: the number of values in it that were replaced because UTF-8 or 64 bits
             cannot hold them.
    """

    start: int
    end: int
    value: Any
    changes: int


class Damage(NamedTuple):
    """Bytes of a line that are no whole value, and the reason."""

    start: int
    end: int
    why: str


class Line(NamedTuple):
    """The values and the damage of a line, each in the order of its bytes."""

    values: tuple[Value, ...]
    damage: tuple[Damage, ...]

    @property
    def glued(self) -> bool:
        """Whether it has several values, because newlines between them are missing."""
        return len(self.values) > 1


class RawLine(NamedTuple):
    """The bytes of a line of a file, with its newline.

    number:      from 1 for the first line that was read.
    offset:      the place of its first byte in the file.
    end:         the place after its last byte.
    data:        None if the line is longer than the limit.
    is_complete: whether it ends with a newline; else the client may still write it.
    """

    number: int
    offset: int
    end: int
    data: bytes | None
    is_complete: bool


def raw_lines(
    file: BinaryIO, offset: int = 0, *, limit: int = MAX_LINE
) -> Iterator[RawLine]:
    """Yield the lines from ``offset`` on, the last one also without a newline.

    Of a line with more than ``limit`` bytes, no data is returned.
    """
    file.seek(offset)
    number = 0
    while True:
        data: bytes | None = file.readline(limit + 1)
        if not data:
            return
        number += 1
        end = offset + len(data)
        is_complete = data.endswith(b"\n")
        if not is_complete and len(data) > limit:
            data = None
            while not is_complete:
                piece = file.readline(limit + 1)
                if not piece:
                    break
                end += len(piece)
                is_complete = piece.endswith(b"\n")
        yield RawLine(number, offset, end, data, is_complete)
        offset = end


def parse_line(raw: bytes) -> Line:
    """Return the whole values of a line, and its damage.  A blank line has neither.

    An undamaged line has one value of any kind.  In a damaged line, objects are found
    at any place, and a list only at the start.
    """
    if not raw.strip(_BLANK):
        return Line((), ())
    start = len(BOM) if raw.startswith(BOM) else 0
    body = raw[start:] if start else raw
    try:
        value, changes = loads(body)
    except (ValueError, RecursionError):
        return _Search(raw, start).line()
    return Line((Value(start, start + len(body.rstrip(_BLANK)), value, changes),), ())


def is_document(file: BinaryIO) -> bool:
    """Whether a file is one JSON value over several lines, or the start of an object.

    A transcript is no such file: its first line is an entry, or is damaged.  Nor is a
    list of entries with one entry in each line.
    """
    first = b""
    for line in raw_lines(file):
        if line.data is None or not line.is_complete:
            return False
        first = line.data.removeprefix(BOM).strip(_BLANK)
        if first:
            break
    if first[:1] not in (b"{", b"[") or not parse_line(first).damage:
        return False
    file.seek(0)
    raw = file.read(MAX_LINE + 1)
    if len(raw) > MAX_LINE:
        return False
    body = raw.removeprefix(BOM).strip(_BLANK)
    try:
        value = json.loads(body)
    except json.JSONDecodeError as error:
        return first[:1] == b"{" and is_cut(error, body)
    except (ValueError, RecursionError):
        return False
    if isinstance(value, dict):
        return True
    return not any(isinstance(item, dict) and _has_frame(item) for item in value)


class _Search:
    """Looks for whole values in a line that is not one JSON value."""

    def __init__(self, raw: bytes, start: int) -> None:
        self._raw = raw
        self._start = start
        self._end = len(raw.rstrip(_BLANK))
        # One character for each byte, so that places in the text are places in the
        # line.  JSON's own characters are ASCII; strings are decoded afterwards.
        self._text = raw.decode("latin-1")
        self._budget = _MOST_READS * len(raw)
        self._values: list[Value] = []
        self._damage: list[Damage] = []

    def line(self) -> Line:
        """Return the values and the damage of the line."""
        at = self._start
        while at < self._end:
            at = self._skip_filler(at)
            if at >= self._end:
                break
            end = self._end_of_object(at)
            if end is None:
                at = self._skip_damage(at)
            else:
                self._take(at, end)
                at = end
        return Line(tuple(self._values), tuple(self._damage))

    def _skip_filler(self, at: int) -> int:
        """Return the place after blanks and NUL bytes; NUL bytes are damage."""
        filler = _FILLER.match(self._raw, at, self._end)
        end = filler.end() if filler else at
        count = self._raw.count(b"\0", at, end)
        if count:
            plural = "" if count == 1 else "s"
            why = f"holds {count:,} NUL byte{plural} in place of text"
            self._damage.append(Damage(at, end, why))
        return end

    def _end_of_object(self, at: int) -> int | None:
        """Return the end of the object or list that starts here; None if it is torn.

        A list counts only before any other value.
        """
        if self._text[at] not in "{[":
            return None
        if self._text[at] == "[" and self._values:
            return None
        try:
            _, end = _DECODER.raw_decode(self._text, at)
        except json.JSONDecodeError as error:
            self._budget -= error.pos - at
            return None
        except (ValueError, RecursionError):
            self._budget -= self._end - at
            return None
        self._budget -= end - at
        return end

    def _take(self, start: int, end: int) -> None:
        """Add the value at these bytes, or the reason why it cannot be read."""
        piece = self._raw[start:end]
        try:
            value, changes = loads(piece)
        except (ValueError, RecursionError) as error:
            self._damage.append(Damage(start, end, problem(error, piece)))
        else:
            self._values.append(Value(start, end, value, changes))

    def _skip_damage(self, start: int) -> int:
        """Skip bytes that are no value; return the place of the next entry."""
        end = self._next_entry(start + 1)
        if self._text[start] not in "{[":
            why = "is text that is no JSON object"
        elif end < self._end:
            why = UNFINISHED
        else:
            why = self._problem_of_rest(start)
        self._damage.append(Damage(start, end, why))
        return end

    def _problem_of_rest(self, start: int) -> str:
        """Return the reason why the rest of the line is no value."""
        piece = self._raw[start : self._end].rstrip(b"\0")
        try:
            loads(piece)
        except (ValueError, RecursionError) as error:
            if self._raw.endswith(b"\n") and is_cut(error, piece):
                return UNFINISHED
            return problem(error, piece)
        return UNFINISHED

    def _next_entry(self, start: int) -> int:
        """Return the place of the next whole entry of a transcript.

        Returns the end of the line if there is none, or after too many reads.
        """
        for match in _OBJECT_START.finditer(self._text, start, self._end):
            if self._budget <= 0:
                break
            at = match.start()
            end = self._end_of_object(at)
            if end is not None and self._is_outermost(end) and self._is_entry(at, end):
                return at
        return self._end

    def _is_outermost(self, end: int) -> bool:
        """Whether an object that ends here is not in another object or list."""
        filler = _FILLER.match(self._raw, end, self._end)
        next_sign = filler.end() if filler else end
        return next_sign >= self._end or self._text[next_sign] not in ",]}:"

    def _is_entry(self, start: int, end: int) -> bool:
        """Whether the object at these bytes is an entry of a transcript."""
        try:
            value, _ = loads(self._raw[start:end])
        except (ValueError, RecursionError):
            return False
        return isinstance(value, dict) and _has_frame(value)


def _has_frame(value: dict[str, Any]) -> bool:
    """Whether an object has the keys that an entry of a transcript has."""
    return any(frame <= value.keys() for frame in _FRAMES)


_DECODER: Final = json.JSONDecoder(strict=False)


def loads(data: bytes | str) -> tuple[Any, int]:
    """Return the JSON value in ``data``, and the number of replaced values in it.

    Values that UTF-8 or 64 bits cannot hold are replaced.

    Raises ValueError or RecursionError.
    """
    raw = data.encode() if isinstance(data, str) else data
    # orjson would read an integer over 64 bits as a float.  The search for many digits
    # comes first, because the expression alone would take most of the time of a read.
    has_many_digits = _MANY_DIGITS in raw.translate(_DIGITS)
    if not (has_many_digits and _WIDE_INTEGER.search(raw)):
        try:
            return orjson.loads(raw), 0
        except orjson.JSONDecodeError:
            pass  # the slow reader accepts more, such as NaN
    return repaired(json.loads(raw.decode()))


def problem(error: Exception, raw: bytes = b"\n") -> str:
    """Return the reason why ``raw`` cannot be read, and the remedy."""
    if is_cut(error, raw) and not raw.endswith(b"\n"):
        return (
            "is cut off: import the file again once it is complete, or remove this line"
        )
    if isinstance(error, json.JSONDecodeError):
        reason = error.msg.partition(":")[0]
        return (
            f"is not valid JSON ({reason}, column {error.colno}): correct or remove it"
        )
    if isinstance(error, UnicodeDecodeError):
        return (
            "is not UTF-8: convert the file, for instance with "
            "`iconv -f LATIN1 -t UTF-8`"
        )
    if isinstance(error, RecursionError):
        return "is nested too deeply: flatten or remove it"
    return "holds a number with too many digits: shorten or remove it"


def is_cut(error: Exception, raw: bytes) -> bool:
    """Whether the error is that the value ends before it is whole."""
    if isinstance(error, UnicodeDecodeError):
        return error.end >= len(raw)
    if isinstance(error, json.JSONDecodeError):
        at_end = error.pos >= len(error.doc.rstrip()) - _LONGEST_TOKEN
        return at_end or error.msg.startswith("Unterminated")
    return False
