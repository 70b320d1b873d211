"""One file to import: its bytes checked, its lines or its document as JSON values.

A file is read whole or refused: a line that is not valid JSON is an error here, never
an entry that goes missing.
"""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import orjson

from refold.domain.canonical import repaired
from refold.domain.errors import ImportFailed

Given = TypeVar("Given")

MAX_FILE = 256 << 20
MAX_LINE = 64 << 20
_SNIFFED = 4096
_LONGEST_TOKEN = 6  # an escape such as \u00e9; shorter are true, false and null
_BOM = b"\xef\xbb\xbf"
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_MANY_DIGITS = b"0" * 19
_WIDE = re.compile(rb"\d{20}|-\d{19}")
_PACKED = {
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "zip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
}


class Kind(Enum):
    """How a file's JSON is laid out; a single line is a document and lines at once."""

    LINES = "lines"
    DOCUMENT = "document"
    SINGLE = "single"


class Line(NamedTuple):
    """A line that is not blank: its number from 1, and the value in it."""

    number: int
    value: Any


class Source:
    """A file that can be read.

    ``repairs`` says, by place, how many values were replaced because UTF-8 or 64
    bits cannot hold them; it is complete once the file has been read.

    Raises ImportFailed here or on reading, with one sentence that says the way out.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = shown(path.name)
        self.repairs: dict[str, int] = {}
        _check(path)
        _sniff(self._head(), path)

    def at(self, *places: str) -> str:
        """The file's name and the places in it, for a person."""
        return " ".join(place for place in (self.name, *places) if place)

    def failed(self, why: str, *, line: int | None = None) -> ImportFailed:
        """The error that refuses this file."""
        where = shown(self.path)
        return ImportFailed(f"{where} line {line}" if line else where, why)

    def note(self, place: str, changes: int) -> None:
        """Remember how many values had to be replaced at ``place``."""
        if changes:
            self.repairs[place] = changes

    @cached_property
    def kind(self) -> Kind:
        """Told by the first lines: a document's first line is no JSON value alone."""
        start = list(islice(self._raw_lines(), 2))
        if not start:
            raise self.failed("is empty: there is nothing to import")
        if not _is_json(start[0][1]):
            return Kind.DOCUMENT
        return Kind.LINES if len(start) > 1 else Kind.SINGLE

    @property
    def is_lines(self) -> bool:
        """Whether the file is to be read as lines, also if it has but one."""
        named = self.path.suffix.lower() in {".jsonl", ".ndjson"}
        return self.kind is Kind.LINES or (self.kind is Kind.SINGLE and named)

    def lines(self) -> Iterator[Line]:
        """The values of the lines, read as they are asked for; a document is one."""
        if self.kind is Kind.DOCUMENT:
            yield Line(1, self.document)
            return
        for line, raw in self._raw_lines():
            yield Line(line, self._value(line, raw))

    @cached_property
    def document(self) -> Any:
        """The file as one value; None of a file of lines."""
        if self.kind is Kind.LINES:
            return None
        if self.kind is Kind.SINGLE:
            return next(self.lines()).value
        raw = b"".join(raw for _, raw in self._raw_lines(blank=True))
        try:
            value, changes = loads(raw)
        except (ValueError, RecursionError) as error:
            raise self._refused(raw, error) from None
        self.note("", changes)
        return value

    def _value(self, line: int, raw: bytes) -> Any:
        try:
            value, changes = loads(raw)
        except (ValueError, RecursionError) as error:
            why = _cut() if _is_cut(raw, error) else _problem(error)
            raise self.failed(why, line=line) from None
        self.note(f"line {line}", changes)
        return value

    def _refused(self, raw: bytes, error: Exception) -> ImportFailed:
        if isinstance(error, json.JSONDecodeError):
            if error.lineno <= 2 and (broken := self._broken_first_line()):
                return broken
            why = _cut() if _is_cut(raw.rstrip(), error) else _problem(error)
            return self.failed(why, line=error.lineno)
        if isinstance(error, UnicodeDecodeError):
            return self.failed(
                _problem(error), line=raw.count(b"\n", 0, error.start) + 1
            )
        return self.failed(_problem(error))

    def _broken_first_line(self) -> ImportFailed | None:
        """The refusal of a file of lines of which the first is broken."""
        start = list(islice(self._raw_lines(), 2))
        if len(start) < 2 or len(start[0][1].strip()) < 2 or not _is_json(start[1][1]):
            return None
        number, raw = start[0]
        try:
            loads(raw)
        except (ValueError, RecursionError) as error:
            return self.failed(_problem(error), line=number)
        return None

    def _head(self) -> bytes:
        with self._open() as file:
            return self._read(lambda: file.read(_SNIFFED))

    def _raw_lines(self, *, blank: bool = False) -> Iterator[tuple[int, bytes]]:
        total = number = 0
        with self._open() as file:
            while raw := self._read(lambda: file.readline(MAX_LINE + 2)):
                number += 1
                total += len(raw)
                if len(raw.rstrip(b"\r\n")) > MAX_LINE:
                    raise self.failed(_too_long(), line=number)
                if total > MAX_FILE:
                    raise self.failed(_too_large(total))
                if number == 1:
                    raw = raw.removeprefix(_BOM)
                if blank or raw.strip():
                    yield number, raw

    def _open(self) -> BinaryIO:
        return self._read(lambda: self.path.open("rb"))

    def _read(self, do: Callable[[], Given]) -> Given:
        try:
            return do()
        except OSError as error:
            raise _unreadable(self.path, error) from None


def loads(data: bytes | str) -> tuple[Any, int]:
    """The JSON value of ``data`` as UTF-8 can hold it, and how often it was changed.

    Raises ValueError or RecursionError.
    """
    raw = data.encode() if isinstance(data, str) else data
    if not _may_be_wide(raw):
        try:
            return orjson.loads(raw), 0
        except orjson.JSONDecodeError:
            pass  # it may still hold what only the slow reader takes, such as NaN
    return repaired(json.loads(raw.decode()))


def _may_be_wide(raw: bytes) -> bool:
    """Whether an integer may be over 64 bits: orjson would make a float of it.

    The table is there because the expression alone takes most of the time of a read.
    """
    return _MANY_DIGITS in raw.translate(_DIGITS) and bool(_WIDE.search(raw))


def shown(path: Path | str) -> str:
    """``path`` as a message can hold it: not every file name is valid Unicode."""
    return str(repaired(str(path))[0])


def _is_json(raw: bytes) -> bool:
    try:
        loads(raw)
    except (ValueError, RecursionError):
        return False
    return True


def _check(path: Path) -> None:
    try:
        info = path.stat()
    except FileNotFoundError:
        raise ImportFailed(
            shown(path), "there is no such file: check the path and its spelling"
        ) from None
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    if stat.S_ISDIR(info.st_mode):
        raise ImportFailed(shown(path), "is a directory: name the files in it")
    if not stat.S_ISREG(info.st_mode):
        raise ImportFailed(shown(path), "is no regular file: save it as a file first")
    if info.st_size > MAX_FILE:
        raise ImportFailed(shown(path), _too_large(info.st_size))


def _unreadable(path: Path, error: Exception) -> ImportFailed:
    if isinstance(error, PermissionError):
        return ImportFailed(shown(path), "may not be read: check its permissions")
    reason = error.strerror if isinstance(error, OSError) else None
    return ImportFailed(
        shown(path).replace("\0", "?"),
        f"cannot be read ({reason or 'not a valid path'}): check the path",
    )


def _sniff(head: bytes, path: Path) -> None:
    for magic, packing in _PACKED.items():
        if head.startswith(magic):
            raise ImportFailed(shown(path), _packed(packing, path))
    nuls = head.count(b"\0")
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) or nuls * 3 > len(head):
        raise ImportFailed(
            shown(path),
            "is no UTF-8 text: if it is UTF-16, convert it with "
            "`iconv -f UTF-16 -t UTF-8`",
        )
    if nuls and head.lstrip()[:1] not in (b"{", b"["):
        raise ImportFailed(shown(path), "is a binary file: a transcript is JSON text")


def _packed(packing: str, path: Path) -> str:
    if path.suffix == ".eval":
        return (
            "is an Inspect log in its binary form: make JSON of it with "
            "`inspect log convert --to json`"
        )
    return f"is compressed ({packing}): unpack it first"


def _is_cut(raw: bytes, error: Exception) -> bool:
    if raw.endswith(b"\n"):
        return False
    if isinstance(error, json.JSONDecodeError):
        at_end = error.pos >= len(error.doc.rstrip()) - _LONGEST_TOKEN
        return at_end or error.msg.startswith("Unterminated")
    return isinstance(error, UnicodeDecodeError) and error.end >= len(raw)


def _cut() -> str:
    return (
        "is cut off: import the file again when it is written to its end, or remove "
        "what is broken"
    )


def _problem(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        what = error.msg.partition(":")[0]
        return f"is not valid JSON ({what}, column {error.colno}): mend or remove it"
    if isinstance(error, UnicodeDecodeError):
        return (
            "is not UTF-8: convert the file, for instance with "
            "`iconv -f LATIN1 -t UTF-8`"
        )
    if isinstance(error, RecursionError):
        return "is nested too deeply to be read: flatten or remove it"
    return "holds a number with too many digits to be read: shorten or remove it"


def _too_large(size: int) -> str:
    return f"is {size} bytes, the limit is {MAX_FILE}: split it into smaller files"


def _too_long() -> str:
    return (
        f"is longer than {MAX_LINE} bytes: remove it, or, if the file is one JSON "
        "document, lay it out on lines with `python -m json.tool`"
    )
