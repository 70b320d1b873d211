"""Data exports of chat programs: conversations in a JSON list, or in a zip archive.

An export has all conversations of a person, which memory may not hold at once.
``Export`` reads them one after the other.
"""

from __future__ import annotations

import json
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, Self

from refold.adapters.importers import base
from refold.adapters.importers.lines import BOM, MAX_LINE, is_cut, loads, problem
from refold.domain.errors import ImportFailed

MAX_EXPORT: Final = 4 << 30  # bytes of all conversations
_MAX_MEMBERS: Final = 200_000
# JSON is rarely compressed to less than a fiftieth.
_MAX_RATIO: Final = 200
_RATIO_FROM: Final = 64 << 20  # bytes from which the ratio counts
_CHUNK: Final = 1 << 20
_CONVERSATIONS: Final = re.compile(r"conversations(?:[-_]\d+)?\.json")
_ASSET: Final = re.compile(r"file[-_][A-Za-z0-9]+")


class Item(NamedTuple):
    """A conversation of an export, and its place."""

    place: str
    value: Any


class Asset(NamedTuple):
    """A file of an export that belongs to a message."""

    name: str
    data: bytes


class Export:
    """The conversations of a file, and the files next to it.

    In an archive, they are the members ``conversations.json``,
    ``conversations-000.json`` and so on.

    damaged: the place where the export is damaged; later conversations are missing.

    It is a context manager, which closes the archive.  All reads raise ImportFailed for
    an archive that cannot be read.
    """

    def __init__(self, source: base.Source) -> None:
        self._source = source
        self._is_archive = source.content == "zip"
        self._skipped: list[base.Skipped] = []
        self.damaged: base.Skipped | None = None
        self._assets: dict[str, str] | None = None
        self._opened: zipfile.ZipFile | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    def items(self) -> Iterator[Item]:
        """Yield the conversations.

        The rest of a damaged file is left out, and ``damaged`` names its place.

        Raises ImportFailed if the file is damaged, and damage refuses it (``strict``).
        """
        if self._is_archive:
            yield from self._archived_items()
        elif self._source.begins_with_list:
            with self._source.path.open("rb") as file:
                yield from self._listed_items(file, "")
        elif self._source.is_lines:
            for line in self._source.lines():
                yield Item(f"line {line.number}", line.value)
        else:
            yield Item("", self._source.document)

    def conversations(self, is_conversation: Callable[[Any], bool]) -> Iterator[Item]:
        """Yield the items that are conversations, and report the others."""
        for item in self.items():
            if is_conversation(item.value):
                yield item
            else:
                where = self._source.at(item.place)
                self._skipped.append(base.Skipped(where, "is no conversation"))

    def first(self) -> Any:
        """Return the first conversation; None without one, or if it is damaged."""
        try:
            if self._is_archive:
                archive = self._archive()
                for member in self._members(archive):
                    with archive.open(member) as file:
                        return _first_of(file)
            elif self._source.begins_with_list:
                with self._source.path.open("rb") as file:
                    return _first_of(file)
            else:
                return next(self.items(), Item("", None)).value
        except (zipfile.BadZipFile, NotImplementedError, zlib.error):
            pass
        except (OSError, EOFError, ValueError, RecursionError):
            pass
        return None

    def asset(self, asset_id: str, most: int) -> Asset | None:
        """Return the file with this id; None without one, or if it is too large.

        most: the largest size, in bytes.
        """
        if self._assets is None:
            self._assets = self._asset_names()
        name = self._assets.get(asset_id)
        if name is None:
            return None
        data = self._data(name, most)
        return None if data is None else Asset(Path(name).name, data)

    def reports(self) -> list[base.Skipped]:
        """Return the reports on items and files that are in no transcript."""
        reports = list(self._skipped)
        others = self._others()
        if others:
            why = f"files without conversations: {base.field_names(others)}"
            reports.append(base.Skipped(self._source.name, why, note=True))
        if self.damaged is not None:
            reports.append(self.damaged)
        return reports

    def _others(self) -> list[str]:
        """Return the names of further files in an archive, without those of assets."""
        if not self._is_archive:
            return []
        names: set[str] = set()
        for path in self._archive().namelist():
            name = path.rpartition("/")[2]
            is_other = not _CONVERSATIONS.fullmatch(name) and not _ASSET.match(name)
            if name and is_other:
                names.add(base.shown(name))
        return sorted(names)

    def _archived_items(self) -> Iterator[Item]:
        """Yield the conversations of an archive."""
        archive = self._archive()
        members = self._members(archive)
        for member in members:
            place = member.filename if len(members) > 1 else ""
            try:
                with archive.open(member) as file:
                    yield from self._listed_items(file, base.shown(place))
            except (zipfile.BadZipFile, NotImplementedError) as error:
                raise self._damaged_archive(error) from None
            if self.damaged is not None:
                return

    def _listed_items(self, file: Any, name: str) -> Iterator[Item]:
        """Yield the items of a list; ``name`` is that of the member of an archive."""
        elements = _Elements(file)
        try:
            for index, raw in enumerate(elements):
                place = f"{name} [{index}]".strip()
                value, changes = loads(raw)
                self._source.note(place, changes)
                yield Item(place, value)
        except (zipfile.BadZipFile, zlib.error, EOFError):
            self._fail(name, elements.place, "is a damaged part of the archive")
        except OSError as error:
            self._fail(name, elements.place, f"cannot be read ({error.strerror})")
        except _Broken as error:
            self._fail(name, elements.place, str(error))
        except (ValueError, RecursionError) as error:
            self._fail(name, elements.place, problem(error))

    def _fail(self, name: str, place: int, why: str) -> None:
        """Remember where the list is damaged; if strict, raise ImportFailed."""
        where = f"{name} byte {place + 1:,}".strip()
        if self._source.strict:
            raise self._source.failed(f"{where} {why}")
        why = f"{why}; everything after it is left out"
        self.damaged = base.Skipped(self._source.at(where), why, damaged=True)

    def _archive(self) -> zipfile.ZipFile:
        """Open the archive.  Raises ImportFailed if it is damaged, or too large."""
        if self._opened is not None:
            return self._opened
        try:
            archive = zipfile.ZipFile(self._source.path)
        except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError) as error:
            raise self._damaged_archive(error) from None
        self._opened = archive
        if len(archive.infolist()) > _MAX_MEMBERS:
            raise self._source.failed(
                f"is an archive of more than {_MAX_MEMBERS:,} files: unpack it and "
                "import the conversations"
            )
        return archive

    def _damaged_archive(self, error: Exception) -> ImportFailed:
        """Return the error for an archive that cannot be read."""
        return self._source.failed(
            "is a damaged zip archive: download it again, or unpack it and import the "
            f"conversations ({type(error).__name__})"
        )

    def _members(self, archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
        """Return the members with conversations, in the order of their names.

        Raises ImportFailed if they are encrypted, or too large.
        """
        members: list[zipfile.ZipInfo] = []
        for info in archive.infolist():
            if _CONVERSATIONS.fullmatch(info.filename.rpartition("/")[2]):
                members.append(info)
        size = sum(member.file_size for member in members)
        packed = sum(member.compress_size for member in members)
        if size > MAX_EXPORT:
            raise self._source.failed(
                f"unpacks to {size:,} bytes, the limit is {MAX_EXPORT:,}: split the "
                "conversations into several files"
            )
        if size > _RATIO_FROM and size > packed * _MAX_RATIO:
            raise self._source.failed(
                f"unpacks from {packed:,} to {size:,} bytes, which no export does: it "
                "may be made to fill memory; if you trust it, unpack it first"
            )
        if any(member.flag_bits & 0x1 for member in members):
            raise self._source.failed("is an encrypted archive: unpack it first")
        return sorted(members, key=lambda member: member.filename)

    def _asset_names(self) -> dict[str, str]:
        """Return the names of the files of messages, by their ids."""
        names: list[str] = []
        if self._is_archive:
            names = self._archive().namelist()
        else:
            with suppress(OSError):
                for path in sorted(self._source.path.parent.iterdir()):
                    if path.is_file() and not path.is_symlink():
                        names.append(path.name)
        assets: dict[str, str] = {}
        for name in names:
            match = _ASSET.match(name.rpartition("/")[2])
            if match is not None:
                assets.setdefault(match.group(), name)
        return assets

    def _data(self, name: str, most: int) -> bytes | None:
        """Return the content of a file next to the conversations.

        Returns None if it is larger than ``most`` bytes, or damaged.
        """
        if not self._is_archive:
            path = self._source.path.with_name(name)
            with suppress(OSError):
                with path.open("rb") as file:
                    data = file.read(most + 1)
                return data if len(data) <= most else None
            return None
        archive = self._archive()
        info = archive.getinfo(name)
        if info.file_size > most or info.flag_bits & 0x1:
            return None
        with suppress(zipfile.BadZipFile, NotImplementedError, zlib.error, EOFError):
            return archive.read(info)
        return None


def image_type(data: bytes) -> str | None:
    """Return the media type of an image that models read; None for other bytes."""
    for magic, media_type in _IMAGES.items():
        if data.startswith(magic):
            return media_type
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return None


_IMAGES: Final = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
}


def _first_of(file: Any) -> Any:
    """Return the first element of a list.  Raises ValueError for another file."""
    for raw in _Elements(file):
        value, _ = loads(raw)
        return value
    return None


class _Broken(ValueError):
    """The list is not valid JSON; the text says how."""


class _Elements:
    """The elements of a JSON list, each as its bytes, read one after the other.

    place: the byte at which the current element begins.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._text = ""  # one character for each byte
        self._start = 0  # the byte at which the text begins
        self._at = 0  # a place in the text
        self._ended = False

    @property
    def place(self) -> int:
        """The byte at which the current element begins."""
        return self._start + self._at

    def __iter__(self) -> Iterator[bytes]:
        self._read(_CHUNK)
        if self._text.startswith(BOM.decode("latin-1")):
            self._at = len(BOM)
        if self._next_sign() != "[":
            raise _Broken("is no list of conversations")
        self._at += 1
        if self._next_sign() == "]":
            return
        while True:
            self._next_sign()
            end = self._end_of_element()
            yield self._text[self._at : end].encode("latin-1")
            self._at = end
            sign = self._next_sign()
            if sign == "]":
                break
            if sign != ",":
                raise _Broken(_CUT if not sign else "is not valid JSON: remove it")
            self._at += 1
        self._at += 1
        if self._next_sign():
            raise _Broken("is text after the list of conversations")

    def _next_sign(self) -> str:
        """Skip whitespace; return the next character, or an empty text at the end."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in " \t\r\n":
                    return self._text[self._at]
                self._at += 1
            if not self._read(_CHUNK):
                return ""

    def _end_of_element(self) -> int:
        """Return the end of the element that begins here, reading as far as needed."""
        more = _CHUNK
        while True:
            try:
                _, end = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if not is_cut(error, b""):
                    raise _Broken(f"is not valid JSON ({error.msg})") from None
            else:
                # A number may go on after the end of the text.
                if end < len(self._text) or self._ended:
                    return end
            if len(self._text) - self._at > MAX_LINE:
                raise _Broken(f"is longer than {MAX_LINE:,} bytes")
            if not self._read(more):
                raise _Broken(_CUT)
            more *= 2

    def _read(self, size: int) -> bool:
        """Read further bytes, and forget those before the current place."""
        data = self._file.read(size)
        if not data:
            self._ended = True
            return False
        self._text = self._text[self._at :] + data.decode("latin-1")
        self._start += self._at
        self._at = 0
        return True


_DECODER: Final = json.JSONDecoder(strict=False)
_CUT: Final = "is cut off: import the file again once it is complete"


class Reports:
    """Collects the reports of one conversation: each reason once, with its places.

    An export has many messages for which the same holds, such as empty ones.
    """

    def __init__(self, recording: base.Recording) -> None:
        self._recording = recording
        # By reason and note: the first place, and the number of places.
        self._places: dict[tuple[str, bool], tuple[str, int]] = {}

    def add(self, why: str, place: str, *, note: bool = False) -> None:
        """Report that the content at a place is left out."""
        first, count = self._places.get((why, note), (place, 0))
        self._places[why, note] = (first, count + 1)

    def record(
        self, pieces: Iterable[base.PieceOrSkipped], origin: base.Origin
    ) -> None:
        """Record the pieces of an entry, and collect the reasons of skipped ones."""
        recorded: list[base.PieceOrSkipped] = []
        for piece in pieces:
            if isinstance(piece, base.Skipped):
                place = f"{origin.place} {piece.where}".strip()
                self.add(piece.why, place, note=piece.note)
            else:
                recorded.append(piece)
        self._recording.take(recorded, origin)

    def add_fields(
        self, owner: str, value: dict[str, Any], imported: frozenset[str], place: str
    ) -> None:
        """Report the fields of an object that are not imported and not empty."""
        unread = sorted(name for name in value.keys() - imported if value[name])
        if unread:
            why = f"fields of the {owner}: {base.field_names(unread)}"
            self.add(why, place, note=True)

    def finish(self) -> None:
        """Add the reports to the recording."""
        for (why, note), (place, count) in self._places.items():
            more = f"and {count - 1:,} more" if count > 1 else ""
            self._recording.skip(why, place, more, note=note)
        self._places.clear()


def with_reports(
    transcripts: Iterator[base.Transcript], export: Export
) -> Iterator[base.Transcript]:
    """Yield the transcripts of an export; the last one reports what is in none."""
    last: base.Transcript | None = None
    for transcript in transcripts:
        if last is not None:
            yield last
        last = transcript
    reports = export.reports()
    if last is None and not reports:
        return
    if last is None:
        last = base.Transcript("", "", (), ())
    yield replace(last, skipped=(*last.skipped, *reports))
