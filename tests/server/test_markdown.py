"""Markdown becomes HTML that cannot run, load, lead away, or hide a recorded text."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
import time
import zlib
from html import unescape

import pytest
from starlette.testclient import TestClient

import refold
from refold.adapters.server import run_pages
from refold.domain.events import Attachment
from refold.store import Session, SessionStore
from tests.server.conftest import ClientFor
from tests.server.hostile import MARKDOWN, MARKDOWN_PAYLOADS
from tests.server.test_pages import ParsedPage, page_text

TAGS = {
    "blockquote", "br", "code", "em", "hr", "li", "mark", "ol", "p", "pre", "s", "span",
    "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
}  # fmt: skip


def _chunk(kind: bytes, body: bytes) -> bytes:
    checksum = zlib.crc32(kind + body).to_bytes(4, "big")
    return len(body).to_bytes(4, "big") + kind + body + checksum


PNG = (
    b"\x89PNG\r\n\x1a\n"
    + _chunk(b"IHDR", bytes([0, 0, 0, 1, 0, 0, 0, 1, 8, 2, 0, 0, 0]))
    + _chunk(b"IDAT", zlib.compress(b"\0\x10\x20\x30"))
    + _chunk(b"IEND", b"")
)
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>ran()</script></svg>'
PDF = (
    b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n"
    b"2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj\n"
    b"3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]>>endobj\n"
    b"trailer<</Root 1 0 R>>\n%%EOF\n"
)


def html_of(text: str) -> str:
    prose = run_pages.cut_prose(text, whole=True)
    return prose.shown + prose.rest


def test_markdown_becomes_the_elements_that_it_describes() -> None:
    read = ParsedPage(html_of(MARKDOWN))

    assert set(read.tags) == TAGS
    assert read.attributes <= {
        ("mark", "class"),
        ("ol", "start"),
        ("p", "class"),
        ("pre", "class"),
        ("span", "class"),
        ("td", "class"),
        ("th", "class"),
    }


def test_no_payload_adds_a_tag_an_attribute_or_a_link() -> None:
    assert len(MARKDOWN_PAYLOADS) >= 300
    allowed = ParsedPage(html_of(MARKDOWN)).attributes

    for payload in MARKDOWN_PAYLOADS:
        read = ParsedPage(html_of(payload))

        assert set(read.tags) <= TAGS, payload
        assert read.attributes <= allowed, payload
        assert (read.links, read.loads) == ([], []), payload


@pytest.mark.parametrize(
    "text",
    [
        "[words](https://site.example/path?q=1 'a title')",
        "![words](https://site.example/path?q=1 'a title')",
        "[words]\n\n[words]: https://site.example/path?q=1 'a title'",
    ],
)
def test_the_address_and_title_of_a_link_stand_in_the_text(text: str) -> None:
    read = ParsedPage(html_of(text))

    for part in ("words", "https://site.example/path?q=1", "a title"):
        assert part in read.text
    assert read.links == []


@pytest.mark.parametrize(
    "text",
    [
        "[REDACTED:EMAIL]",
        "**[REDACTED:EMAIL]**",
        "`[REDACTED:EMAIL]`",
        "```\n[REDACTED:EMAIL]\n```",
        "| [REDACTED:EMAIL] | x |\n|--|--|\n",
        "[REDACTED:EMAIL](https://site.example)",
        "[REDACTED:EMAIL]: https://site.example",
        "[words](https://site.example/[REDACTED:EMAIL])",
        "# [REDACTED:EMAIL]",
    ],
)
def test_a_placeholder_stays_marked_in_markdown(text: str) -> None:
    assert '<mark class="chip">[REDACTED:EMAIL]</mark>' in html_of(text)


def test_nothing_of_a_text_is_hidden() -> None:
    texts = [
        "<!-- a comment -->",
        "<b>bold</b>",
        "[//]: # (a comment)",
        "&lt;entity",
        "line\x00\x1b[2J",
        "line\nnext line",
    ]

    for text in texts:
        shown = unescape(re.sub(r"<[^>]*>", "", html_of(text)))
        assert "comment" in shown or "comment" not in text
        assert shown.strip(), text
    assert "<br>" in html_of("line\nnext line")
    assert "\x1b" not in html_of("line\x1b[2J")
    assert "&lt;b&gt;bold" in html_of("<b>bold</b>")


def test_a_long_text_is_folded_between_paragraphs() -> None:
    paragraphs = [f"Paragraph {n} of a long answer. " * 4 for n in range(40)]

    prose = run_pages.cut_prose("\n\n".join(paragraphs))

    assert "Paragraph 0 " in prose.shown
    assert 0 < prose.shown.count("<p>") < 12
    assert prose.shown.count("<p>") + prose.rest.count("<p>") == 40
    assert prose.left == 0
    assert run_pages.cut_prose("\n\n".join(paragraphs * 10)).left > 0


@pytest.mark.parametrize(
    "part",
    [
        "[", "![", "*", "_ *", "> ", "- ", "`", "a|b\n-|-\n", "<", "\\", "[a](", "~~",
        "# a\n", "- |a|b|\n  |-|-|\n",
    ],
)  # fmt: skip
def test_a_text_of_signs_is_rendered_in_little_time(part: str) -> None:
    text = (part * 40_000)[:40_000]

    began = time.process_time()
    html_of(text)

    assert time.process_time() - began < 3


@pytest.mark.parametrize("columns", [6_000, 1_000, 200, 50])
def test_a_table_that_lacks_most_cells_stays_text(columns: int) -> None:
    head = f"|{'a|' * columns}\n|{'-|' * columns}\n"
    text = head + "|\n" * ((39_900 - len(head)) // 2)

    shown = html_of(text)
    with_small = html_of(f"{text}\n\n|a|b|\n|-|-|\n|1|\n")

    assert "<table" not in shown
    assert with_small.count("<table") == 1
    assert with_small.count("<td>") == 2


@pytest.mark.parametrize("end", ["# Title\n", "- item\n", "> quote\n", "    code\n"])
def test_what_ends_a_table_is_not_taken_for_its_rows(end: str) -> None:
    text = f"|a|b|\n|-|-|\n|1|2|\n{end}" + "text\n" * 1_000

    assert html_of(text).count("<td>") == 2


def test_a_switch_shows_texts_as_written_and_is_remembered(
    ada: TestClient, store: SessionStore
) -> None:
    session = store.session(user_id="ada", session_id="run")
    session.append(refold.UserInput(text="this is **bold**"))

    assert "<strong>bold</strong>" in page_text(ada, "/run/run")
    plain = page_text(ada, "/run/run?text=plain")
    assert "<strong>" not in plain
    assert "this is **bold**" in plain
    assert "<strong>" not in page_text(ada, "/run/run/event?seq=1")
    assert "<strong>" in page_text(ada, "/run/run?text=formatted")
    assert "<strong>" in page_text(ada, "/run/run")


def test_the_renderer_is_loaded_with_the_first_text() -> None:
    code = (
        "import sys; from refold.adapters.server import run_pages; "
        "print([name for name in ('nh3', 'markdown_it') if name in sys.modules])"
    )

    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert ran.stdout.strip() == "[]"


def with_files(store: SessionStore) -> Session:
    """Create a session with an image, a PDF, and an SVG that claims to be a PNG."""
    session = store.session(user_id="ada", session_id="run")
    data = [base64.b64encode(file).decode() for file in (PNG, PDF, SVG)]
    session.append(
        [
            refold.UserInput(
                text="See",
                attachments=(
                    Attachment(
                        kind="image", media_type="image/png", name="a", data=data[0]
                    ),
                    Attachment(
                        kind="document", media_type="application/pdf", data=data[1]
                    ),
                    Attachment(kind="image", media_type="image/png", data=data[2]),
                    Attachment(kind="image", media_type="image/svg+xml", data=data[2]),
                ),
            ),
            refold.ToolCall(call_id="c", tool_name="Read", arguments={}),
            refold.ToolResult(
                call_id="c",
                content=[
                    {"type": "text", "text": "the picture"},
                    {
                        "type": "image",
                        "source": {
                            "type": "base64",
                            "media_type": "image/jpeg",
                            "data": data[0],
                        },
                    },
                ],
            ),
        ]
    )
    return session


@pytest.mark.parametrize(
    ("query", "media_type", "file"),
    [
        ("seq=1", "image/png", PNG),
        ("seq=1&nth=1", "application/pdf", PDF),
        ("seq=3&nth=1", "image/png", PNG),
    ],
)
def test_a_file_is_served_byte_for_byte_with_the_type_of_its_bytes(
    ada: TestClient, store: SessionStore, query: str, media_type: str, file: bytes
) -> None:
    with_files(store)

    answered = ada.get(f"/run/run/media?{query}")

    assert answered.status_code == 200
    assert answered.content == file
    assert answered.headers["content-type"] == media_type
    assert answered.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in answered.headers["content-security-policy"]
    assert answered.headers["content-disposition"].startswith("inline; filename=")


@pytest.mark.parametrize(
    "query", ["seq=1&nth=2", "seq=1&nth=3", "seq=1&nth=9", "seq=2", "seq=99", "seq=0"]
)
def test_bytes_that_are_no_image_or_pdf_are_not_served(
    ada: TestClient, store: SessionStore, query: str
) -> None:
    with_files(store)

    answered = ada.get(f"/run/run/media?{query}")

    assert answered.status_code == 404
    assert b"<script>ran" not in answered.content


def test_other_users_do_not_get_a_file(
    client_for: ClientFor, store: SessionStore
) -> None:
    with_files(store)

    assert client_for("bob").get("/run/run/media?seq=1").status_code == 404
    unknown = client_for(None).get("/run/run/media?seq=1")
    assert (unknown.status_code, unknown.headers["location"][:6]) == (303, "/login")


def test_the_page_shows_images_and_links_to_documents(
    ada: TestClient, store: SessionStore
) -> None:
    session = with_files(store)

    read = ParsedPage(page_text(ada, "/run/run"))
    file = ParsedPage(run_pages.html_file(session))

    assert "/run/run/media?seq=1" in read.loads
    assert "/run/run/media?seq=3&nth=1" in read.loads
    assert "/run/run/media?seq=1&nth=1" in read.links
    assert file.loads == []
    assert "not in this file" in file.text
