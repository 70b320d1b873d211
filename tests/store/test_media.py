"""Images and documents reach the model byte for byte, or the view names them."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

import refold
from refold.domain.envelope import Meta
from refold.domain.parts import image_tokens
from refold.projections.context.strategies import spec
from refold.projections.context.strategy import Strategy
from refold.projections.context.text import NOT_AN_IMAGE, violations
from refold.projections.context.view import View
from refold.store import Session
from tests.support import files
from tests.support.nested import blocks_of

LARGE = files.encoded(files.png(Random(1), size=200_000))
SMALL = files.encoded(files.gif(Random(2), size=6_000))
PAPER = files.encoded(files.pdf(Random(3), size=200_000))


def base64_attachment(media_type: str, data: str) -> Any:
    return {"type": "base64", "media_type": media_type, "data": data}


LARGE_IMAGE = {"type": "image", "source": base64_attachment("image/png", LARGE)}
SMALL_IMAGE = {"type": "image", "source": base64_attachment("image/gif", SMALL)}
DOCUMENT = {"type": "document", "source": base64_attachment("application/pdf", PAPER)}


def ask_with(session: Session, *attachments: Any) -> None:
    attached = tuple(refold.events.Attachment(**fields) for fields in attachments)
    session.append(refold.UserInput(text="What is it?", attachments=attached))


def append_call_and_result(session: Session, content: Any) -> None:
    session.append(
        [
            refold.ToolCall(call_id="c", tool_name="see"),
            refold.ToolResult(call_id="c", content=content),
        ]
    )


def blocks(view: View) -> list[Any]:
    assert violations(view.messages) == []
    return list(blocks_of(view.messages))


def result_in(view: View) -> Any:
    (result,) = [block for block in blocks(view) if block["type"] == "tool_result"]
    return result["content"]


EVERY = {name: name for name in spec.STRATEGIES}
EVERY["token_ratio"] = "token_ratio:max_context_tokens=100000"


@pytest.mark.parametrize("strategy", EVERY.values())
def test_large_images_and_documents_are_sent_whole(
    session: Session, strategy: str
) -> None:
    ask_with(
        session,
        {"kind": "image", "media_type": "image/png", "data": LARGE},
        {"kind": "document", "media_type": "application/pdf", "data": PAPER},
    )
    append_call_and_result(
        session, [{"type": "text", "text": "here"}, LARGE_IMAGE, DOCUMENT]
    )

    view = session.context(strategy)

    assert blocks(view)[1:3] == [LARGE_IMAGE, DOCUMENT]
    assert result_in(view)[1:] == [LARGE_IMAGE, DOCUMENT]
    assert view.cuts == ()


def test_urls_and_provider_files_are_sent(session: Session) -> None:
    ask_with(
        session,
        {"kind": "image", "url": "https://a.example/b.png"},
        {"kind": "document", "url": "file:file_01", "name": "Plan"},
        {"kind": "file", "url": "file:file_02"},
    )

    assert blocks(session.context())[1:] == [
        {"type": "image", "source": {"type": "url", "url": "https://a.example/b.png"}},
        {
            "type": "document",
            "source": {"type": "file", "file_id": "file_01"},
            "title": "Plan",
        },
        {"type": "container_upload", "file_id": "file_02"},
    ]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "mimeType": "image/png", "data": LARGE},
        {"type": "input_image", "image_url": f"data:image/png;base64,{LARGE}"},
        {
            "type": "image_url",
            "image_url": {"url": f"data:image/png;base64,{LARGE}"},
        },
        {
            "type": "resource",
            "resource": {"uri": "x", "mimeType": "image/png", "blob": LARGE},
        },
    ],
    ids=lambda part: part["type"],
)
def test_images_of_other_apis_become_images(session: Session, part: Any) -> None:
    append_call_and_result(
        session, [{"type": "input_text", "text": "see"}, part, {"unknown": 1}, "x"]
    )

    view = session.context()

    assert result_in(view) == [
        {"type": "text", "text": "see"},
        LARGE_IMAGE,
        {"type": "text", "text": '{"unknown":1}'},
        {"type": "text", "text": "x"},
    ]


def test_a_result_of_mcp_is_read_part_by_part(session: Session) -> None:
    part = {"type": "image", "mimeType": "image/gif", "data": SMALL}
    append_call_and_result(session, {"content": [part], "structuredContent": {"a": 1}})

    assert result_in(session.context()) == [
        SMALL_IMAGE,
        {"type": "text", "text": '{"structuredContent":{"a":1}}'},
    ]


def test_a_file_that_the_api_does_not_accept_is_named_in_the_cuts(
    session: Session,
) -> None:
    sound = {"type": "audio", "mimeType": "audio/wav", "data": "UklGRg=="}
    ask_with(session, {"kind": "image", "media_type": "image/tiff", "data": "SUkqAA=="})
    append_call_and_result(
        session, [{"type": "text", "text": "a"}, sound, {"odd": SMALL}]
    )

    view = session.context()

    assert SMALL not in str(view.messages)
    assert [(cut.section, cut.reason) for cut in view.cuts] == [
        ("media", "image of seq 1: the Messages API does not take image/tiff"),
        ("media", "audio of seq 3: the Messages API does not take it"),
        ("media", "base64 of seq 3: a part of an unknown kind"),
    ]


def test_a_missing_blob_is_named_in_the_cuts(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_call_and_result(session, [LARGE_IMAGE])
    monkeypatch.setattr(type(session.writer.log), "blobs", lambda *_: {})

    view = session.context()

    assert result_in(view) == [{"type": "text", "text": NOT_AN_IMAGE}]
    (cut,) = view.cuts
    assert cut.reason == "image of seq 2: its blob is gone"


def test_a_cleared_result_names_its_images_in_the_cuts(session: Session) -> None:
    append_call_and_result(session, [LARGE_IMAGE])
    session.append(refold.AgentResponse(text="A cat."))
    session.append(refold.UserInput(text="And?"))

    view = session.context("tool_clearing:trigger_input_tokens=1,keep=0")

    (cut,) = view.cuts
    assert cut.reason == "image of seq 2: its result was cleared"
    assert cut.tokens == image_tokens(files.WIDTH, files.HEIGHT)


def test_tokens_are_computed_from_pixels(session: Session) -> None:
    append_call_and_result(session, [LARGE_IMAGE])

    result = session.events()[1]

    pixels = image_tokens(files.WIDTH, files.HEIGHT)
    assert pixels <= result.token_estimate <= pixels + 30


def test_a_fork_shows_large_images_of_its_parent(session: Session) -> None:
    append_call_and_result(session, [LARGE_IMAGE])

    fork = session.fork(2, session_id="s-2")

    assert result_in(fork.context()) == [LARGE_IMAGE]


def test_a_recorded_request_with_media_is_proved(session: Session) -> None:
    ask_with(session, {"kind": "image", "media_type": "image/png", "data": LARGE})
    append_call_and_result(session, [DOCUMENT])
    view = session.context()

    session.record_request(view)

    ((_, again),) = session.proofs.replay()
    assert again.messages == view.messages
    assert session.verify().problems == []
    assert session.proofs.rerun().same == 1


def first_version() -> Strategy:
    return spec.parse({"name": "keep_all", "version": 1})


def test_version_1_shows_media_as_before(session: Session) -> None:
    ask_with(
        session,
        {"kind": "image", "media_type": "image/png", "data": LARGE},
        {"kind": "image", "media_type": "image/gif", "data": SMALL},
        {"kind": "image", "url": "https://a.example/b.png"},
    )
    append_call_and_result(session, [{"type": "text", "text": "a"}, {"odd": 1}])

    view = session.context(first_version())

    question, large, small, address = blocks(view)[:4]
    assert question["text"] == "What is it?"
    assert large["text"] == '<attachment kind="image" type="image/png" shown="false"/>'
    assert small == SMALL_IMAGE
    assert 'shown="false"' in address["text"]
    assert result_in(view) == '[{"text":"a","type":"text"},{"odd":1}]'
    assert view.cuts == ()


@pytest.mark.parametrize("version", [1, 2])
def test_a_reconstructed_request_uses_its_recorded_version(
    session: Session, version: int
) -> None:
    ask_with(
        session, {"kind": "document", "media_type": "application/pdf", "data": PAPER}
    )
    strategy = spec.parse({"name": "keep_all", "version": version})
    source: dict[str, Any] = {"request": session.context(strategy).digest}
    if version > 1:
        source["request_version"] = version
    session.append(refold.AgentResponse(text="A plan."), meta=Meta(source=source))

    rerun = session.proofs.rerun()

    assert (rerun.requests, rerun.same) == (1, 1)
