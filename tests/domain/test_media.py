"""A walk of a file finds its end, its size, and everything except pixels."""

from __future__ import annotations

import zlib
from random import Random

import pytest

from refold.domain import media
from tests.support import files

TEXT = "a note"


@pytest.mark.parametrize("media_type", files.MAKERS)
def test_a_file_is_complete_with_its_last_byte(media_type: str) -> None:
    data = files.MAKERS[media_type](Random(1))

    file = media.read(data)

    assert file is not None
    assert (file.media_type, file.is_whole, file.end) == (media_type, True, len(data))
    if media_type == media.PDF:
        assert file.pages == 2
    else:
        assert (file.width, file.height) == (files.WIDTH, files.HEIGHT)


@pytest.mark.parametrize("media_type", files.MAKERS)
def test_a_truncated_file_is_incomplete(media_type: str) -> None:
    data = files.MAKERS[media_type](Random(2))

    for length in (len(data) // 2, len(data) - 7):
        file = media.read(data[:length])
        assert file is not None
        assert not file.is_whole
        assert file.end <= length


@pytest.mark.parametrize("media_type", files.MAKERS)
def test_bytes_behind_the_end_are_a_part(media_type: str) -> None:
    data = files.MAKERS[media_type](Random(3))

    file = media.read(data + TEXT.encode())

    assert file is not None
    part = file.parts[-1]
    assert (part.start, part.end) == (len(data), len(data) + len(TEXT))
    assert part.text == TEXT
    assert media.without(data + TEXT.encode(), [part]) == data


def test_padding_behind_the_end_is_no_part() -> None:
    file = media.read(files.jpeg(Random(4)) + b"\0" * 32)

    assert file is not None
    assert file.is_whole
    assert [part.name for part in file.parts if part.text] == []


def test_a_preview_behind_a_photo_belongs_to_the_file() -> None:
    data = files.jpeg(Random(5)) + files.jpeg(Random(6))

    file = media.read(data)

    assert file is not None
    assert (file.is_whole, file.end) == (True, len(data))


METADATA = {
    "tEXt": ("image/png", files.png_chunk(b"tEXt", b"Comment\0a note")),
    "zTXt": (
        "image/png",
        files.png_chunk(b"zTXt", b"Comment\0\0" + zlib.compress(b"a note")),
    ),
    "iTXt": ("image/png", files.png_chunk(b"iTXt", b"Comment\0\0\0en\0\0a note")),
    "iTXt compressed": (
        "image/png",
        files.png_chunk(b"iTXt", b"C\0\1\0en\0\0" + zlib.compress(b"a note")),
    ),
    "unknown chunk": ("image/png", files.png_chunk(b"prVt", b"a note")),
    "Exif in PNG": (
        "image/png",
        files.png_chunk(b"eXIf", b"MM\0*\x9c\xff" + "a note".encode("utf-16-le")),
    ),
    "Exif": ("image/jpeg", files.jpeg_segment(0xE1, b"Exif\0\0MM\0*\0\0\xffa note")),
    "COM": ("image/jpeg", files.jpeg_segment(0xFE, b"a note")),
    "comment": ("image/gif", b"\x21\xfe" + files.gif_blocks(b"a note")),
    "application": (
        "image/gif",
        b"\x21\xff" + files.gif_blocks(b"XMP DataXMP" + b"a note"),
    ),
    "XMP": ("image/webp", files.webp_chunk(b"XMP ", b"a note")),
    "EXIF": ("image/webp", files.webp_chunk(b"EXIF", b"MM\0*\xff\0a note")),
    "info": ("application/pdf", files.pdf_object(7, b"<</Title (a note)>>")),
    "info in hex": (
        "application/pdf",
        files.pdf_object(
            7, b"<</Title <FEFF%s>>>" % "a note".encode("utf-16-be").hex().encode()
        ),
    ),
    "escaped": ("application/pdf", files.pdf_object(7, rb"<</Title (a \156ote)>>")),
    "XMP in PDF": (
        "application/pdf",
        files.pdf_stream(7, b"/Type /Metadata", b"<x>a note</x>"),
    ),
    "compressed XMP": (
        "application/pdf",
        files.pdf_stream(
            7, b"/Type /Metadata /Filter /FlateDecode", zlib.compress(b"a note")
        ),
    ),
    "compressed objects": (
        "application/pdf",
        files.pdf_stream(
            7,
            b"/Type /ObjStm /Filter /FlateDecode",
            zlib.compress(b"8 0 <</Author (a note)>>"),
        ),
    ),
    "comment in PDF": ("application/pdf", b"% a note\n"),
}


@pytest.mark.parametrize("form", METADATA)
def test_text_in_metadata_is_read(form: str) -> None:
    media_type, metadata = METADATA[form]
    data = files.MAKERS[media_type](Random(7), metadata)

    file = media.read(data)

    assert file is not None
    assert file.is_whole
    assert any(TEXT in part.text for part in file.parts)


@pytest.mark.parametrize("form", METADATA)
def test_removing_a_removable_part_leaves_a_complete_file(form: str) -> None:
    media_type, metadata = METADATA[form]
    data = files.MAKERS[media_type](Random(8), metadata)
    file = media.read(data)
    assert file is not None
    parts = [part for part in file.parts if TEXT in part.text]
    removable = [part for part in parts if part.replacement is not None]

    clean = media.without(data, removable)

    again = media.read(clean)
    assert again is not None
    assert (again.is_whole, again.end) == (True, len(clean))
    still = [part for part in again.parts if TEXT in part.text]
    assert len(still) == len(parts) - len(removable)


def test_metadata_that_inflates_without_end_is_not_read() -> None:
    bomb = zlib.compress(bytes(40_000_000))
    data = files.png(Random(9), files.png_chunk(b"zTXt", b"Comment\0\0" + bomb))

    file = media.read(data)

    assert file is not None
    assert [part.is_read for part in file.parts] == [False]


def test_a_webp_without_its_metadata_does_not_announce_it() -> None:
    canvas = bytes([0x0C, 0, 0, 0]) + (639).to_bytes(3, "little")
    canvas += (479).to_bytes(3, "little")
    body = b"WEBP" + files.webp_chunk(b"VP8X", canvas)
    body += files.webp_chunk(b"EXIF", b"a note") + files.webp_chunk(b"XMP ", b"other")
    data = b"RIFF" + len(body).to_bytes(4, "little") + body
    file = media.read(data)
    assert file is not None

    clean = media.without(data, [part for part in file.parts if part.name == "EXIF"])

    assert clean[20] == 0x04
    assert int.from_bytes(clean[4:8], "little") == len(clean) - 8


@pytest.mark.parametrize("data", [b"", b"plain", b"\x89PNG", b"RIFF1234WAVE", b"GIF"])
def test_other_bytes_are_no_file(data: bytes) -> None:
    assert media.read(data) is None
