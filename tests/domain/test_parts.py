"""Images and documents of any API become one form, and cost what the provider says."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, strategies as st

from refold.domain import parts
from refold.domain.parts import (
    UNKNOWN_TOKENS,
    as_block,
    attachment_block,
    estimate_with_media,
    image_tokens,
    media_tokens,
)
from refold.domain.stubs import no_blobs
from refold.domain.tokens import estimate
from tests.support import files

DATA = "iVBORw0KGgo="
IMAGE = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": DATA},
}
PAPER = {
    "type": "document",
    "source": {"type": "base64", "media_type": "application/pdf", "data": DATA},
}
URI = f"data:image/png;base64,{DATA}"
LINK = {"type": "image", "source": {"type": "url", "url": "https://a.example/b.png"}}


@pytest.mark.parametrize(
    ("part", "block"),
    [
        (IMAGE, IMAGE),
        ({**IMAGE, "annotations": {}}, IMAGE),
        ({**PAPER, "title": "A"}, {**PAPER, "title": "A"}),
        ({"type": "image", "data": DATA, "mimeType": "image/png"}, IMAGE),
        ({"type": "image", "data": DATA, "mimeType": "application/pdf"}, PAPER),
        (
            {
                "type": "resource",
                "resource": {"uri": "a", "mimeType": "image/png", "blob": DATA},
            },
            IMAGE,
        ),
        ({"type": "input_image", "image_url": URI}, IMAGE),
        ({"type": "image_url", "image_url": {"url": URI}}, IMAGE),
        ({"type": "image_url", "image_url": {"url": LINK["source"]["url"]}}, LINK),  # type: ignore[index]  # an object
        (
            {
                "type": "input_file",
                "filename": "a.pdf",
                "file_data": f"data:application/pdf;base64,{DATA}",
            },
            {**PAPER, "title": "a.pdf"},
        ),
        (
            {
                "type": "file",
                "file": {"file_data": f"data:application/pdf;base64,{DATA}"},
            },
            PAPER,
        ),
        (
            {"type": "audio", "data": DATA, "mimeType": "audio/wav"},
            {
                "type": "audio",
                "source": {"type": "base64", "media_type": "audio/wav", "data": DATA},
            },
        ),
        ({"type": "text", "text": "a"}, None),
        ({"type": "image"}, None),
        ({"data": DATA, "media_type": "image/png"}, None),
        ("image", None),
        (7, None),
    ],
)
def test_a_part_of_any_api_becomes_a_block(part: Any, block: Any) -> None:
    assert as_block(part) == block


@pytest.mark.parametrize(
    ("attachment", "block"),
    [
        ({"kind": "image", "media_type": "image/png", "data": DATA}, IMAGE),
        ({"kind": "file", "media_type": "application/pdf", "data": DATA}, PAPER),
        (
            {"kind": "document", "name": "A", "url": "https://a.example/b.pdf"},
            {
                "type": "document",
                "source": {"type": "url", "url": "https://a.example/b.pdf"},
                "title": "A",
            },
        ),
        (
            {"kind": "image", "url": "file:file_01"},
            {"type": "image", "source": {"type": "file", "file_id": "file_01"}},
        ),
        (
            {"kind": "file", "url": "file:file_01"},
            {"type": "container_upload", "file_id": "file_01"},
        ),
        ({"kind": "image", "url": URI}, IMAGE),
        ({"kind": "file", "url": "https://a.example/b.zip"}, None),
        ({"kind": "file", "url": "file:file-openai"}, None),
        ({"kind": "document", "text": "words", "url": "https://a.example"}, None),
        ({"kind": "image", "name": "a.png"}, None),
        # JSON of a tool may have the names of an attachment.
        ({"url": {"href": "x"}}, None),
        ({"url": 5}, None),
        ({"text": ["a"], "url": "https://a.example"}, None),
        ({"kind": ["a"], "url": "https://a.example"}, None),
        ({"data": 1.5, "media_type": {}}, None),
    ],
)
def test_an_attachment_becomes_a_block(attachment: Any, block: Any) -> None:
    assert attachment_block(attachment) == block


@pytest.mark.parametrize(
    ("width", "height", "tokens"),
    [
        (200, 200, 54),
        (1_000, 1_000, 1_334),
        (1_092, 1_092, 1_568),
        (4_000, 4_000, 1_568),
        (8_000, 100, 41),
        (1, 1, 1),
        (0, 0, UNKNOWN_TOKENS),
    ],
)
def test_an_image_costs_its_pixels_after_scaling(
    width: int, height: int, tokens: int
) -> None:
    assert abs(image_tokens(width, height) - tokens) <= 1


@pytest.mark.parametrize("media_type", files.MAKERS)
def test_a_file_costs_what_its_header_says(media_type: str) -> None:
    data = files.encoded(files.MAKERS[media_type](Random(1)))
    kind = "document" if media_type == "application/pdf" else "image"
    source = {"type": "base64", "media_type": media_type, "data": data}

    tokens = media_tokens({"type": kind, "source": source})

    if kind == "document":
        assert tokens == 2 * 2_333
    else:
        assert tokens == image_tokens(files.WIDTH, files.HEIGHT)


def test_an_estimate_counts_text_as_before_and_media_by_its_rule() -> None:
    texts: Any = {"a": ["b", 1, {"c": "d" * 90}], "e": None, "f": True}

    assert estimate_with_media(texts) == estimate(texts)
    assert estimate_with_media([texts, LINK]) == estimate([texts]) + 1 + UNKNOWN_TOKENS


_SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-9, 9), st.floats(0, 9), st.text(max_size=9)
)
_MEDIA = st.sampled_from(
    [
        LINK,
        {"kind": "image", "url": "https://build.test/a.png"},
        {"kind": "image", "media_type": "image/png", "data": "AAAA"},
        {"kind": "image", "data": "", "url": None},
    ]
)
# Some are those of attachments and blocks.
_NAMES = ("a", "key", "note", "url", "data", "text", "kind", "name", "media_type")
_JSON = st.recursive(
    st.one_of(_SCALARS, _MEDIA),
    lambda inside: st.one_of(
        st.lists(inside, max_size=4),
        st.lists(inside, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from(_NAMES), inside, max_size=5),
    ),
    max_leaves=12,
)


@given(_JSON)
def test_an_estimate_at_once_is_the_sum_of_the_parts(value: Any) -> None:
    assert estimate_with_media(value) == parts._estimate_each(value, no_blobs)


def test_json_without_media_is_estimated_in_one_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unexpected(*_: object) -> int:
        raise AssertionError("each part is estimated on its own")

    rows = [{"id": f"FL{n}", "price": n, "note": "a window seat"} for n in range(9)]
    expected = parts._estimate_each(rows, no_blobs)
    monkeypatch.setattr(parts, "_estimate_each", unexpected)

    assert estimate_with_media({"results": rows}) == expected + 1 + 2
