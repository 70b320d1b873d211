"""The structure of images and PDF files: their end, their size, and their metadata.

A walk reads headers and lengths.  It decompresses only metadata, up to a bound.
"""

from __future__ import annotations

import re
import zlib
from binascii import Error as NotBase64, a2b_base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

PNG: Final = "image/png"
JPEG: Final = "image/jpeg"
GIF: Final = "image/gif"
WEBP: Final = "image/webp"
PDF: Final = "application/pdf"
IMAGES: Final = frozenset({PNG, JPEG, GIF, WEBP})
_ALIASES: Final = {"image/jpg": JPEG, "image/pjpeg": JPEG, "application/x-pdf": PDF}

# The most bytes into which the metadata of one file is decompressed.
_MOST_METADATA: Final = 32 * 1024 * 1024
# The shortest run of printable characters that counts as text in binary metadata, and
# in a file whose structure is broken.  Shorter runs are frequent in random bytes.
_RUN_IN_METADATA: Final = 6
_RUN_IN_BROKEN_FILE: Final = 12


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a file that is neither pixels nor the content of pages.

    name:        its name in the format, such as ``tEXt``.
    start, end:  its place in the file.
    text:        the readable text in it.
    replacement: the bytes that replace it when it is removed, so that the file stays
                 valid; None if it cannot be removed.
    is_read:     whether ``text`` is complete.  It is not if the part decompresses to
                 too many bytes, or not at all.
    """

    name: str
    start: int
    end: int
    text: str
    replacement: bytes | None = b""
    is_read: bool = True


@dataclass(frozen=True, slots=True)
class File:
    """The structure of a file.

    width, height: the size of an image in pixels; 0 if the walk did not find it.
    pages:         the number of pages of a document.
    parts:         its metadata, and everything after its end.
    is_whole:      whether the structure is valid from the first byte to an end.
    end:           the place where the structure ends, or where the walk failed.
    """

    media_type: str
    width: int = 0
    height: int = 0
    pages: int = 0
    parts: tuple[Part, ...] = ()
    is_whole: bool = False
    end: int = 0


def media_type_of(name: object) -> str | None:
    """Return the type of a file that ``read`` knows under this name, or None."""
    if not isinstance(name, str):
        return None
    name = name.strip().lower()
    name = _ALIASES.get(name, name)
    return name if name in _WALKS else None


def decoded(text: str) -> bytes | None:
    """Return the bytes of strict base64 with padding; None for anything else."""
    try:
        return a2b_base64(text, strict_mode=True)
    except (NotBase64, ValueError):
        return None


def read(data: bytes) -> File | None:
    """Return the structure of an image or PDF file; None for other bytes."""
    for media_type, begins in _BEGINNINGS.items():
        if begins(data):
            file = _WALKS[media_type](data)
            return replace(file, parts=(*file.parts, *_after_end(data, file)))
    return None


def without(data: bytes, parts: Iterable[Part]) -> bytes:
    """Return the file without these parts, each of which has a replacement."""
    pieces: list[bytes] = []
    at = 0
    for part in sorted(parts, key=lambda part: part.start):
        if part.start < at:
            continue  # it is in a part that is removed already
        pieces += [data[at : part.start], part.replacement or b""]
        at = part.end
    pieces.append(data[at:])
    clean = b"".join(pieces)
    return _with_riff_size(clean) if _is_webp(clean) else clean


def _after_end(data: bytes, file: File) -> list[Part]:
    """Return the data after the end of a file, or after a break of its structure.

    Returns no part for blanks alone.
    """
    rest = data[file.end :]
    if not rest.strip(b"\0\r\n\t "):
        return []
    if file.is_whole:
        text = readable(rest)
        return [Part("behind the end", file.end, len(data), text)]
    text = _runs(rest, _RUN_IN_BROKEN_FILE)
    return [Part("broken structure", file.end, len(data), text, replacement=None)]


def readable(data: bytes) -> str:
    """Return the text in bytes: all of it if they are text, else its printable runs."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", "ignore")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return _runs(data, _RUN_IN_METADATA)
    if _CONTROL.search(text):
        return _runs(data, _RUN_IN_METADATA)
    return text


_CONTROL: Final = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")


def _runs(data: bytes, shortest: int) -> str:
    """Return the printable runs in binary data as lines, also those in UTF-16.

    shortest: the number of characters that a run must have.
    """
    one_byte = re.compile(rb"[\t\x20-\x7e]{%d,}" % shortest)
    two_bytes = re.compile(rb"(?:[\t\x20-\x7e]\0){%d,}" % shortest)
    runs = [run.decode("ascii") for run in one_byte.findall(data)]
    runs += [run[::2].decode("ascii") for run in two_bytes.findall(data)]
    return "\n".join(runs)


def _inflated(data: bytes) -> bytes | None:
    """Decompress metadata; None if that fails or gives too many bytes."""
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(data, _MOST_METADATA)
    except zlib.error:
        return None
    return None if inflater.unconsumed_tail else plain


def _inflated_part(name: str, start: int, end: int, key: str, data: bytes) -> Part:
    """Return a part with compressed text under ``key``."""
    plain = _inflated(data)
    if plain is None:
        return Part(name, start, end, key, is_read=False)
    return Part(name, start, end, f"{key}: {readable(plain)}")


# PNG: https://www.w3.org/TR/png-3/

_PNG_BEGINNING: Final = b"\x89PNG\r\n\x1a\n"
_PNG_PIXELS: Final = frozenset({b"IHDR", b"PLTE", b"IDAT", b"fdAT"})


def _png(data: bytes) -> File:
    """Walk the chunks of a PNG file."""
    file = File(PNG, end=len(_PNG_BEGINNING))
    parts: list[Part] = []
    at = len(_PNG_BEGINNING)
    while at + 12 <= len(data):
        length = int.from_bytes(data[at : at + 4])
        kind = data[at + 4 : at + 8]
        end = at + 12 + length
        if end > len(data) or not kind.isalpha():
            break
        checksum = int.from_bytes(data[end - 4 : end])
        if zlib.crc32(data[at + 4 : end - 4]) != checksum:
            break
        body = data[at + 8 : end - 4]
        is_first = at == len(_PNG_BEGINNING)
        if is_first != (kind == b"IHDR") or (is_first and length != 13):
            break
        if kind == b"IHDR":
            file = replace(
                file,
                width=int.from_bytes(body[:4]),
                height=int.from_bytes(body[4:8]),
            )
        elif kind == b"IEND":
            return replace(file, parts=tuple(parts), is_whole=True, end=end)
        elif kind not in _PNG_PIXELS:
            parts.append(_png_part(kind, at, end, body))
        at = end
    return replace(file, parts=tuple(parts), end=at)


def _png_part(kind: bytes, start: int, end: int, body: bytes) -> Part:
    """Return a chunk with metadata as a part."""
    name = kind.decode("ascii")
    key, _, rest = body.partition(b"\0")
    keyword = key.decode("latin-1")
    match name:
        case "tEXt":
            return Part(name, start, end, f"{keyword}: {readable(rest)}")
        case "zTXt" | "iCCP":
            return _inflated_part(name, start, end, keyword, rest[1:])
        case "iTXt":
            is_compressed = rest[:1] == b"\1"
            language, _, rest = rest[2:].partition(b"\0")
            translated, _, text = rest.partition(b"\0")
            words = [keyword, readable(language), readable(translated)]
            keyword = " ".join(word for word in words if word)
            if is_compressed:
                return _inflated_part(name, start, end, keyword, text)
            return Part(name, start, end, f"{keyword}: {readable(text)}")
    return Part(name, start, end, readable(body))


# JPEG: ITU-T T.81

_JPEG_BEGINNING: Final = b"\xff\xd8\xff"
# Markers that hold the size of the image.
_JPEG_SIZES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_APPLICATIONS: Final = range(0xE0, 0xF0)
_JPEG_COMMENT: Final = 0xFE
_JPEG_SCAN: Final = 0xDA
_JPEG_END: Final = 0xD9
# A marker in the data of a scan, but no stuffed byte, restart marker, or filler.
_JPEG_NEXT: Final = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")


def _jpeg(data: bytes) -> File:
    """Walk all images in a JPEG file; its size is that of the first one."""
    file = File(JPEG)
    while data[file.end : file.end + 3] == _JPEG_BEGINNING:
        # Cameras store further images, such as a preview, after the first one.
        walked = _one_jpeg(data, file.end + 2)
        parts = (*file.parts, *walked.parts)
        if not file.is_whole:
            file = replace(walked, parts=parts)
        elif walked.is_whole:
            file = replace(file, parts=parts, end=walked.end)
        else:
            break
        if not file.is_whole:
            break
    return file


def _one_jpeg(data: bytes, at: int) -> File:
    """Walk one image, whose first marker after the beginning is at ``at``."""
    file = File(JPEG)
    parts: list[Part] = []
    while at + 2 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # a filler
            at += 1
            continue
        if marker == _JPEG_END:
            return replace(file, parts=tuple(parts), is_whole=True, end=at + 2)
        length = int.from_bytes(data[at + 2 : at + 4])
        end = at + 2 + length
        if length < 2 or end > len(data):
            break
        body = data[at + 4 : end]
        if marker in _JPEG_SIZES:
            file = replace(
                file,
                height=int.from_bytes(body[1:3]),
                width=int.from_bytes(body[3:5]),
            )
        elif marker in _JPEG_APPLICATIONS:
            name = f"APP{marker - 0xE0}"
            parts.append(Part(name, at, end, readable(body)))
        elif marker == _JPEG_COMMENT:
            parts.append(Part("COM", at, end, readable(body)))
        elif marker == _JPEG_SCAN:
            following = _JPEG_NEXT.search(data, end)
            if following is None:
                break
            end = following.start()
        at = end
    return replace(file, parts=tuple(parts), end=at)


# GIF: https://www.w3.org/Graphics/GIF/spec-gif89a.txt

_GIF_IMAGE: Final = 0x2C
_GIF_EXTENSION: Final = 0x21
_GIF_END: Final = 0x3B
_GIF_GRAPHIC_CONTROL: Final = 0xF9
_GIF_XMP: Final = b"XMP DataXMP"


def _gif(data: bytes) -> File:
    """Walk the blocks of a GIF file."""
    file = File(GIF, end=6)
    if len(data) < 13:
        return file
    file = replace(
        file,
        width=int.from_bytes(data[6:8], "little"),
        height=int.from_bytes(data[8:10], "little"),
    )
    parts: list[Part] = []
    at = 13 + _size_of_colors(data[10])
    while at < len(data):
        kind = data[at]
        if kind == _GIF_END:
            return replace(file, parts=tuple(parts), is_whole=True, end=at + 1)
        if kind == _GIF_IMAGE and at + 10 < len(data):
            first = at + 10 + _size_of_colors(data[at + 9]) + 1
        elif kind == _GIF_EXTENSION:
            first = at + 2
        else:
            break
        blocks, end = _gif_blocks(data, first)
        if end is None:
            break
        if kind == _GIF_EXTENSION and data[at + 1] != _GIF_GRAPHIC_CONTROL:
            content = b"".join(blocks)
            if content.startswith(_GIF_XMP):
                content = data[first:end]  # XMP is not divided into blocks
            parts.append(Part("extension", at, end, readable(content)))
        at = end
    return replace(file, parts=tuple(parts), end=min(at, len(data)))


def _size_of_colors(flags: int) -> int:
    """Return the number of bytes of the color table that these flags announce."""
    return 3 * 2 ** ((flags & 7) + 1) if flags & 0x80 else 0


def _gif_blocks(data: bytes, at: int) -> tuple[list[bytes], int | None]:
    """Return the data blocks from ``at`` on, and their end; None without an end."""
    blocks: list[bytes] = []
    while at < len(data):
        length = data[at]
        if length == 0:
            return blocks, at + 1
        blocks.append(data[at + 1 : at + 1 + length])
        at += 1 + length
    return blocks, None


# WebP: RFC 9649

_WEBP_PIXELS: Final = frozenset({b"VP8 ", b"VP8L", b"VP8X", b"ALPH", b"ANIM", b"ANMF"})


def _is_webp(data: bytes) -> bool:
    return data[:4] == b"RIFF" and data[8:12] == b"WEBP"


def _webp(data: bytes) -> File:
    """Walk the chunks of a WebP file."""
    size = int.from_bytes(data[4:8], "little")
    size += size % 2
    last = 8 + size
    file = File(WEBP, end=12)
    if last > len(data):
        return file
    parts: list[Part] = []
    end = 12
    for kind, start, end, body in _webp_chunks(data, last):
        if kind in _WEBP_PIXELS:
            width, height = _webp_size(kind, body)
            if width and not file.width:
                file = replace(file, width=width, height=height)
        else:
            parts.append(Part(kind.decode("ascii"), start, end, readable(body)))
    is_whole = end == last and file.width > 0
    return replace(file, parts=tuple(parts), is_whole=is_whole, end=end)


def _webp_chunks(data: bytes, last: int) -> Iterator[tuple[bytes, int, int, bytes]]:
    """Yield the kind, start, end, and body of each valid chunk up to ``last``."""
    at = 12
    while at + 8 <= last:
        kind = data[at : at + 4]
        length = int.from_bytes(data[at + 4 : at + 8], "little")
        end = at + 8 + length + length % 2
        if end > last or not kind.isascii():
            return
        yield kind, at, end, data[at + 8 : at + 8 + length]
        at = end


def _webp_size(kind: bytes, body: bytes) -> tuple[int, int]:
    """Return the width and height in a chunk; zeros if it has none."""
    if kind == b"VP8X" and len(body) >= 10:
        width = int.from_bytes(body[4:7], "little") + 1
        height = int.from_bytes(body[7:10], "little") + 1
        return width, height
    if kind == b"VP8L" and len(body) >= 5:
        bits = int.from_bytes(body[1:5], "little")
        return (bits & 0x3FFF) + 1, ((bits >> 14) & 0x3FFF) + 1
    if kind == b"VP8 " and len(body) >= 10:
        width = int.from_bytes(body[6:8], "little") & 0x3FFF
        height = int.from_bytes(body[8:10], "little") & 0x3FFF
        return width, height
    return 0, 0


def _with_riff_size(data: bytes) -> bytes:
    """Return a WebP file with the right length and flags in its header."""
    clean = bytearray(data)
    clean[4:8] = (len(data) - 8).to_bytes(4, "little")
    if data[12:16] == b"VP8X":
        kinds = {kind for kind, *_ in _webp_chunks(data, len(data))}
        flags = {b"ICCP": 0x20, b"EXIF": 0x08, b"XMP ": 0x04}
        for kind, flag in flags.items():
            if kind not in kinds:
                clean[20] &= ~flag
    return bytes(clean)


# PDF: ISO 32000

_PDF_END: Final = re.compile(rb"startxref\s+\d+\s+%%EOF[\r\n]*")
_PDF_STREAM: Final = re.compile(rb"(?<!end)stream\r?\n")
_PDF_PAGE: Final = re.compile(rb"/Type\s*/Page(?![A-Za-z])")
_PDF_OBJECTS: Final = re.compile(rb"/Type\s*/ObjStm")
_PDF_METADATA: Final = re.compile(rb"/Type\s*/Metadata")
_PDF_COMPRESSED: Final = re.compile(rb"/FlateDecode|/Fl\b")
# A string in parentheses, or in hex, and the name before it.
_PDF_STRING: Final = re.compile(
    rb"(?:/([^\s()<>\[\]{}/%]{1,80})\s*)?"
    rb"(?:\(((?:[^()\\]|\\.|\([^()]*\))*+)\)|(?<!<)<([0-9A-Fa-f\s]{2,})>)",
    re.DOTALL,
)
_PDF_ESCAPE: Final = re.compile(rb"\\([0-7]{1,3}|\r\n|.)", re.DOTALL)
_PDF_ESCAPES: Final = {
    b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"", b"f": b"",
    b"\n": b"", b"\r": b"", b"\r\n": b"",
}  # fmt: skip
# Rows of the table of objects, and arrays of numbers, look like telephone numbers.
_PDF_NUMBERS: Final = re.compile(rb"[0-9]{10} [0-9]{5} [nf]|\[[0-9\s.+-]*\]")


def _pdf(data: bytes) -> File:
    """Find the pages of a PDF file, and its texts outside of the pages' content."""
    ends = list(_PDF_END.finditer(data))
    end = ends[-1].end() if ends else len(b"%PDF-")
    segments, streams = _pdf_segments(data, end)
    pages = 0
    parts: list[Part] = []
    others: list[bytes] = []
    for offset, segment in segments:
        pages += len(_PDF_PAGE.findall(segment))
        parts += _pdf_strings(segment, offset)
        others.append(_PDF_NUMBERS.sub(b" ", _PDF_STRING.sub(b" ", segment)))
    for start, stop, header in streams:
        is_metadata = bool(_PDF_METADATA.search(header))
        if not is_metadata and not _PDF_OBJECTS.search(header):
            continue
        name = "metadata" if is_metadata else "objects"
        body = data[start:stop]
        if not _PDF_COMPRESSED.search(header):
            blank = b" " * len(body) if is_metadata else None
            parts.append(Part(name, start, stop, readable(body), blank))
            continue
        plain = _inflated(body)
        if plain is None:
            part = Part(name, start, stop, "", replacement=None, is_read=False)
            parts.append(part)
            continue
        pages += len(_PDF_PAGE.findall(plain))
        text = readable(plain)
        if not is_metadata:
            strings = [string.text for string in _pdf_strings(plain)]
            text = "\n".join(strings)
        parts.append(Part(name, start, stop, text, replacement=None))
    text = readable(b"\n".join(others))
    parts.append(Part("objects", 0, 0, text, replacement=None))
    return File(
        PDF,
        pages=max(1, pages),
        parts=tuple(part for part in parts if part.text or not part.is_read),
        is_whole=bool(ends),
        end=end,
    )


def _pdf_segments(
    data: bytes, end: int
) -> tuple[list[tuple[int, bytes]], list[tuple[int, int, bytes]]]:
    """Divide the file up to ``end`` into segments outside of streams, and streams.

    A segment is its offset and its bytes.  A stream is its start, its end, and the
    dictionary before it.
    """
    segments: list[tuple[int, bytes]] = []
    streams: list[tuple[int, int, bytes]] = []
    at = 0
    begin = _PDF_STREAM.search(data, at, end)
    while begin is not None:
        stop = data.find(b"endstream", begin.end(), end)
        if stop < 0:
            break
        segments.append((at, data[at : begin.end()]))
        header = max(data.rfind(b"obj", at, begin.start()), at)
        streams.append((begin.end(), stop, data[header : begin.start()]))
        at = stop
        begin = _PDF_STREAM.search(data, at, end)
    segments.append((at, data[at:end]))
    return segments, streams


def _pdf_strings(data: bytes, offset: int = 0) -> Iterator[Part]:
    """Yield the strings of a segment of a PDF file, each with the name before it.

    offset: the place of the segment in the file.
    """
    for string in _PDF_STRING.finditer(data):
        name, literal, digits = string.groups()
        group = 2 if literal is not None else 3
        if literal is not None:
            content = _PDF_ESCAPE.sub(_unescaped, literal)
            blank = b" " * len(literal)
        else:
            without_blanks = re.sub(rb"\s", b"", digits)
            missing_digit = b"0" * (len(without_blanks) % 2)
            content = bytes.fromhex((without_blanks + missing_digit).decode())
            blank = b"0" * len(digits)
        text = readable(content)
        if name is not None:
            text = f"{name.decode('latin-1')}: {text}"
        start = offset + string.start(group)
        end = offset + string.end(group)
        yield Part("string", start, end, text, blank)


def _unescaped(escape: re.Match[bytes]) -> bytes:
    """Return the bytes that an escape in a string stands for."""
    code = escape[1]
    if code[:1].isdigit():
        return bytes([int(code, 8) & 0xFF])
    return _PDF_ESCAPES.get(code, code)


_BEGINNINGS: Final[Mapping[str, Callable[[bytes], bool]]] = {
    PNG: lambda data: data.startswith(_PNG_BEGINNING),
    JPEG: lambda data: data.startswith(_JPEG_BEGINNING),
    GIF: lambda data: data.startswith((b"GIF87a", b"GIF89a")),
    WEBP: _is_webp,
    PDF: lambda data: data.startswith(b"%PDF-"),
}
_WALKS: Final[Mapping[str, Callable[[bytes], File]]] = {
    PNG: _png,
    JPEG: _jpeg,
    GIF: _gif,
    WEBP: _webp,
    PDF: _pdf,
}
