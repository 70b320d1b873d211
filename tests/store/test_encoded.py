"""Base64 data lies in blobs; models, working memory and proofs get the original."""

from __future__ import annotations

from base64 import b64encode
from random import Random
from typing import Any

import pytest

import refold
from refold.domain.envelope import Draft
from refold.domain.tokens import estimate
from refold.projections.context.text import violations
from refold.redaction.chokepoint import redact
from refold.redaction.redactor import Redactor
from refold.store import Session
from tests.support.nested import blocks_of

IMAGE = b64encode(Random(3).randbytes(6000)).decode()
SOURCE = {"type": "base64", "media_type": "image/png", "data": IMAGE}
SHOWN = {"type": "image", "source": SOURCE}
STUB = 'session.blob("'


def append_images(session: Session) -> None:
    """Append a user's image, and a tool result with one."""
    picture = refold.events.Attachment(kind="image", media_type="image/png", data=IMAGE)
    session.append(
        [
            refold.UserInput(text="what is this?", attachments=(picture,)),
            refold.ToolCall(call_id="c", tool_name="see", arguments={"raw": IMAGE}),
            refold.ToolResult(
                call_id="c", content=[{"type": "text", "text": "here"}, SHOWN]
            ),
        ]
    )


def blocks(session: Session) -> list[dict[str, Any]]:
    messages = session.context().messages
    assert violations(messages) == []
    return list(blocks_of(messages))


def test_an_event_holds_a_stub_and_its_blob_the_image(session: Session) -> None:
    append_images(session)

    events = session.events()

    assert all(IMAGE not in str(event.to_json()) for event in events)
    (sha256,) = {
        part.split('"')[0]
        for event in events
        for part in str(event.payload.payload()).split(STUB)[1:]
    }
    assert session.history.blob(sha256) == IMAGE


def test_a_context_contains_its_images_and_arguments(session: Session) -> None:
    append_images(session)

    question, image, call, result = blocks(session)

    assert question["text"] == "what is this?"
    assert image == SHOWN
    assert call["input"] == {"raw": IMAGE}
    assert result["content"] == [{"type": "text", "text": "here"}, SHOWN]


def test_a_fork_shows_the_images_of_its_parent(session: Session) -> None:
    append_images(session)

    fork = session.fork(3, session_id="s-2")

    assert blocks(fork)[1] == SHOWN


def test_tokens_are_counted_for_the_sent_content(session: Session) -> None:
    event = refold.UserInput(text=IMAGE)
    session.append(event)

    (envelope,) = session.events()

    assert STUB in str(envelope.payload.payload())
    assert envelope.token_estimate == estimate(event.payload())


def test_working_memory_has_the_complete_values(session: Session) -> None:
    session.append(refold.StateUpdate(set={"icon": IMAGE}))

    assert STUB in str(session.events()[0].payload.payload())
    assert session.state() == {"icon": IMAGE}


def test_a_recorded_request_with_images_is_proved_and_reproduced(
    session: Session,
) -> None:
    append_images(session)
    view = session.context()

    session.record_request(view)

    ((_, again),) = session.proofs.replay()
    assert again.messages == view.messages
    assert session.verify().problems == []


def test_a_secret_in_a_payload_is_not_in_its_blob() -> None:
    registered = refold.redaction.Registered()
    registered.register("tr0ub4dor-and-3", "PASSWORD")
    text = b64encode(b"the password is tr0ub4dor-and-3 for now\n" * 150).decode()

    redacted = redact(
        Draft(refold.UserInput(text=text)),
        now=0,
        redactor=Redactor(registered=registered),
        limits=refold.redaction.Limits(),
    )

    receipt = redacted.content["redaction"]
    assert isinstance(receipt, dict)
    assert receipt["n"]
    assert redacted.blobs == ()


def test_text_that_a_provider_signed_stays_in_its_event(session: Session) -> None:
    thought = refold.events.Thinking(thinking="so", signature=IMAGE)

    session.append(refold.AgentResponse(text="yes", thinking=(thought,)))

    payload = session.events()[0].payload
    assert isinstance(payload, refold.AgentResponse)
    assert payload.thinking == (thought,)


def test_a_changed_blob_is_not_shown(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_images(session)
    log = type(session.writer.log)
    monkeypatch.setattr(
        log, "blobs", lambda *of: dict.fromkeys(of[2], IMAGE[4:].encode())
    )

    assert IMAGE[4:] not in str(session.context().messages)
