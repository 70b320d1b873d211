"""Of images and PDF files, metadata is searched and pixels are never changed."""

from __future__ import annotations

import json
import zlib
from random import Random
from typing import Any

import pytest

from refold.domain import media
from refold.redaction.plan import Plan
from refold.redaction.policy import Policy
from refold.redaction.redactor import Redactor
from tests.support import files
from tests.support.files import encoded

redactor = Redactor()
KEY = "sk-ant-api03-" + "Zq3xW9vB2nM5kL8pR1tY6uI4oA7sD0fG" * 2 + "AA"
# Letters of base64 that a rule takes for a key.
LETTERS = "AKIAQ3EGRIVD5LZ2XW7K"
IMAGES = 2_000


def source(media_type: str, data: str) -> Any:
    kind = "document" if media_type == media.PDF else "image"
    return {
        "type": kind,
        "source": {"type": "base64", "media_type": media_type, "data": data},
    }


@pytest.mark.parametrize("media_type", files.MAKERS)
def test_random_files_survive_unchanged(media_type: str) -> None:
    random = Random(9)
    make = files.MAKERS[media_type]

    changed = 0
    for _ in range(IMAGES):
        block = source(media_type, encoded(make(random)))
        clean, tally = redactor.value(block)
        if clean is not block or tally:
            changed += 1

    assert changed == 0


@pytest.mark.parametrize("media_type", files.MAKERS)
def test_letters_like_a_key_in_pixels_are_no_key(media_type: str) -> None:
    random = Random(3)
    planted = random.randbytes(9_000) + bytes_of(f"+{LETTERS}/++") * 3
    data = ""
    for shift in range(3):  # letters stand for three bytes, so one shift has them
        pixels = Pixels(bytes(shift) + planted)
        data = encoded(files.MAKERS[media_type](pixels, size=len(planted) + shift))
        if f"+{LETTERS}/" in data:
            break
    assert f"+{LETTERS}/" in data

    for value in places(media_type, data):
        clean, tally = redactor.value(value)
        assert clean is value
        assert not tally


def bytes_of(letters: str) -> bytes:
    data = media.decoded(letters)
    assert data is not None
    return data


class Pixels(Random):
    """Gives chosen bytes as pixels."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.data = data

    def randbytes(self, n: int) -> bytes:
        return self.data[:n]


def places(media_type: str, data: str) -> list[Any]:
    uri = f"data:{media_type};base64,{data}"
    return [
        source(media_type, data),
        {"kind": "image", "media_type": media_type, "data": data},
        {"type": "image", "mimeType": media_type, "data": data},
        {"type": "resource", "resource": {"mimeType": media_type, "blob": data}},
        {"inline_data": {"mime_type": media_type, "data": data}},
        {"type": "image_url", "image_url": {"url": uri}},
        {"type": "input_image", "image_url": uri},
        {"output": json.dumps([source(media_type, data)])},
        data,
        uri,
    ]


PLANTED = {
    "png text": ("image/png", files.png_chunk(b"tEXt", b"Comment\0" + KEY.encode())),
    "png compressed text": (
        "image/png",
        files.png_chunk(b"zTXt", b"Comment\0\0" + zlib.compress(KEY.encode())),
    ),
    "png international text": (
        "image/png",
        files.png_chunk(b"iTXt", b"C\0\1\0en\0\0" + zlib.compress(KEY.encode())),
    ),
    "png named value": ("image/png", files.png_chunk(b"tEXt", b"password\0tr0ub4dor3")),
    "jpeg comment": ("image/jpeg", files.jpeg_segment(0xFE, KEY.encode())),
    "jpeg exif": (
        "image/jpeg",
        files.jpeg_segment(0xE1, b"Exif\0\0MM\0*\xff" + KEY.encode("utf-16-le")),
    ),
    "gif comment": ("image/gif", b"\x21\xfe" + files.gif_blocks(KEY.encode())),
    "webp exif": ("image/webp", files.webp_chunk(b"EXIF", b"MM\0*\xff" + KEY.encode())),
    "pdf info": (
        "application/pdf",
        files.pdf_object(7, b"<</Subject (%s)>>" % KEY.encode()),
    ),
}


@pytest.mark.parametrize("form", PLANTED)
def test_a_key_in_metadata_is_removed_and_the_rest_stays(form: str) -> None:
    media_type, metadata = PLANTED[form]
    data = files.MAKERS[media_type](Random(4), metadata)

    for value in places(media_type, encoded(data)):
        clean, tally = redactor.value(value)
        assert tally.n == 1
        assert redactor.value(clean)[0] is clean
    clean, _ = redactor.value(source(media_type, encoded(data)))
    kept = media.decoded(str(clean["source"]["data"]))
    assert kept is not None
    file = media.read(kept)
    assert file is not None
    assert file.is_whole
    assert KEY not in "".join(part.text for part in file.parts)
    assert files.MAKERS[media_type](Random(4))[-2_000:-200] in kept


@pytest.mark.parametrize("media_type", files.MAKERS)
def test_a_key_behind_the_end_is_removed(media_type: str) -> None:
    data = files.MAKERS[media_type](Random(5))

    clean, tally = redactor.value(source(media_type, encoded(data + KEY.encode())))

    assert tally.types == {"API_KEY": 1}
    assert media.decoded(str(clean["source"]["data"])) == data


def test_letters_of_a_key_behind_the_end_are_removed() -> None:
    data = files.png(Random(6), size=35_998)
    padded = data + b"\0" * (-len(data) % 3)

    clean, tally = redactor.value(source("image/png", encoded(padded) + LETTERS))

    assert tally.types == {"API_KEY": 1}
    assert LETTERS not in str(clean)


@pytest.mark.parametrize(
    "data",
    [
        KEY,
        encoded(files.png(Random(7))) + KEY,
        LETTERS,
        f"iVBORw0KGgo/{LETTERS}/AAA",
        encoded(files.jpeg(Random(7)) + KEY.encode()),
        encoded(b"\x89PNG\r\n\x1a\n" + Random(7).randbytes(9_000) + KEY.encode()),
    ],
    ids=[
        "a key",
        "an image and a key",
        "letters",
        "a beginning and letters",
        "another container",
        "a broken file",
    ],
)
def test_a_key_in_data_that_is_no_declared_image_is_found(data: str) -> None:
    clean, tally = redactor.value(source("image/png", data))

    assert tally.types == {"API_KEY": 1}
    assert KEY not in str(clean)
    assert LETTERS not in str(clean)


def test_a_broken_image_is_searched_by_its_bytes() -> None:
    # The structure breaks at once, and letters like a key stand there by chance.
    start = encoded(b"\x89PNG\r\n\x1a\n" + b"\x00\x10\x83" * 3_000)[:4_000]
    block = source("image/png", f"{start}+{LETTERS}/++{start}")

    assert redactor.value(block)[0] is block


def test_a_file_that_cannot_be_cleaned_is_refused() -> None:
    compressed = zlib.compress(b"8 0 <</Author (%s)>>" % KEY.encode())
    metadata = files.pdf_stream(7, b"/Type /ObjStm /Filter /FlateDecode", compressed)
    data = files.pdf(Random(8), metadata)

    clean, tally = redactor.value(source("application/pdf", encoded(data)))

    assert tally.types == {"API_KEY": 1}
    assert clean["source"]["data"] == "[REDACTED:API_KEY]"


def test_a_policy_refuses_files_with_findings() -> None:
    policy = Policy.parse('version = 1\n[scan]\nfiles = "refuse"\n')
    strict = Redactor(policy.plan())
    data = files.png(Random(9), files.png_chunk(b"tEXt", b"C\0" + KEY.encode()))

    clean, _ = strict.value(source("image/png", encoded(data)))

    assert clean["source"]["data"] == "[REDACTED:API_KEY]"
    assert strict.rule_set != redactor.rule_set
    assert Redactor(Plan(files="clean")).rule_set == redactor.rule_set


def test_metadata_that_is_too_large_to_read_is_removed() -> None:
    bomb = zlib.compress(bytes(40_000_000))
    metadata = files.png_chunk(b"zTXt", b"Comment\0\0" + bomb)
    data = files.png(Random(9), metadata)

    clean, tally = redactor.value(source("image/png", encoded(data)))

    assert tally.types == {"UNSCANNED": 1}
    assert clean["source"]["data"] == encoded(files.png(Random(9)))


def test_a_large_file_is_no_text_over_the_limit() -> None:
    strict = Redactor(Plan(max_leaf_bytes=20_000))
    block = source("image/png", encoded(files.png(Random(9))))

    assert strict.value(block)[0] is block
