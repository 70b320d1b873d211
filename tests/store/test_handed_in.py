"""Values from the caller are stored with their request and reproduced byte for byte."""

from __future__ import annotations

from typing import Any

import pytest

import refold
from refold.domain.canonical import digest
from refold.domain.events import Request
from refold.domain.stubs import STUB_MARK
from refold.store import Session, SessionStore
from tests.store.test_verify import problems, tamper

TOOLS: Any = [
    {
        "name": "bash",
        "description": "Run a command. " * 100,
        "input_schema": {
            "type": "object",
            "properties": {"password": {"type": "string"}},
        },
    }
]
EXAMPLES: Any = [
    {"role": "user", "content": "2+2?"},
    {"role": "assistant", "content": [{"type": "text", "text": "4"}]},
]
GIVEN: Any = {
    "system": "You help ann.lee@corp.example.org. " * 60,
    "tools": TOOLS,
    "examples": EXAMPLES,
    "memory": ["likes tea", "phone 13800138000"],
    "evidence": ['a fact with "quotes" and 中文\n' * 50],
    "state": {"step": 2, "password": "hunter2hunter2"},
}


def begin(session: Session) -> None:
    session.append(
        [
            refold.UserInput(text="Why?"),
            refold.AgentResponse(text="Because."),
            refold.UserInput(text="And now?"),
        ]
    )


def test_a_request_shows_all_values_from_the_caller(session: Session) -> None:
    begin(session)
    view = session.context(**GIVEN)

    receipt = session.record_request(view, model="m", matches=True)

    ((envelope, again),) = session.proofs.replay()
    assert isinstance(envelope.payload, Request)
    assert again.digest == envelope.payload.digest == view.digest
    assert (again.messages, again.system, again.tools) == (
        view.messages,
        view.system,
        tuple(TOOLS),
    )
    assert envelope.payload.matches is True
    assert envelope.payload.tools_digest == digest(TOOLS)
    at = session.context(at=receipt.last_seq)
    assert (at.digest, at.tokens) == (view.digest, view.tokens)
    assert session.verify().problems == []


def test_values_from_the_caller_are_redacted_before_they_are_shown_or_stored(
    session: Session,
) -> None:
    begin(session)
    view = session.context(**GIVEN)
    session.record_request(view)

    shown = f"{view.system} {view.messages}"

    assert "[REDACTED:EMAIL]" in shown
    assert "13800138000" not in shown
    assert "hunter2" not in shown
    stored = "".join(event.payload.model_dump_json() for event in session.events())
    assert "corp.example" not in stored
    assert view.tools == tuple(TOOLS)


def test_tools_that_redaction_changes_are_sent_but_do_not_match(
    session: Session,
) -> None:
    begin(session)
    tools: Any = [{"name": "mail", "description": "As to ann.lee@corp.example.org."}]
    view = session.context(tools=tools)

    session.record_request(view, matches=True)

    assert view.to_request(model="m", max_tokens=9)["tools"][0]["name"] == "mail"
    assert "corp.example" in str(view.to_request(model="m", max_tokens=9)["tools"])
    ((envelope, again),) = session.proofs.replay()
    assert isinstance(envelope.payload, Request)
    assert envelope.payload.matches is False
    assert "[REDACTED:EMAIL]" in str(again.tools)
    assert session.verify().problems == []


def test_long_sections_are_stored_once(store: SessionStore, session: Session) -> None:
    begin(session)

    for _ in range(5):
        session.record_request(session.context(**GIVEN))

    assert store.stats()["blobs"] == 3
    handed = [
        event.payload.handed
        for event in session.events()
        if isinstance(event.payload, Request)
    ]
    assert all(sections == handed[0] for sections in handed)
    for name in ("system", "tools", "evidence"):
        assert STUB_MARK in handed[0][name]
        assert len(handed[0][name]) < 200
    assert handed[0]["state"].startswith('{"')


def test_a_later_context_lacks_the_evidence_and_state_of_the_request(
    session: Session,
) -> None:
    begin(session)
    before = session.head().seq
    session.record_request(session.context(**GIVEN))
    session.append(refold.AgentResponse(text="Done."))

    late = session.context(at=session.head().seq)

    kinds = {span.kind for span in late.spans}
    assert {"system", "examples", "memory"} <= kinds
    assert not {"evidence", "state"} & kinds
    assert {span.kind for span in session.context(at=before).spans} == {"raw"}
    assert {span.kind for span in session.context().spans} == {"raw"}
    with_memory = session.context(at=before, memory=["tea"])
    assert {span.kind for span in with_memory.spans} == {"memory", "raw"}


def test_prepare_accepts_the_same_values(session: Session) -> None:
    begin(session)

    view = session.prepare("turn_window", **GIVEN)

    assert view.digest == session.context("turn_window", **GIVEN).digest


def test_values_that_did_not_fit_are_not_recorded(session: Session) -> None:
    begin(session)
    view = session.context(evidence=["one fact", "two facts"], budgets={"evidence": 2})

    session.record_request(view)

    ((envelope, again),) = session.proofs.replay()
    assert isinstance(envelope.payload, Request)
    assert envelope.payload.handed["evidence"] == '["one fact"]'
    assert again.digest == view.digest
    assert [cut.section for cut in view.cuts] == ["evidence"]


def test_the_window_is_stored_because_it_shortens_messages(session: Session) -> None:
    session.append(refold.UserInput(text="word " * 3000))
    view = session.context(window=4000)

    session.record_request(view)

    assert [again.digest for _, again in session.proofs.replay()] == [view.digest]
    assert view.digest != session.context().digest


def test_an_invalid_section_writes_nothing(session: Session) -> None:
    begin(session)
    head = session.head()

    with pytest.raises(refold.InvalidEvent, match="evidence: must be a list"):
        session.context(evidence="a text")

    assert session.head() == head


def test_values_that_the_caller_added_are_proved(
    store: SessionStore, session: Session, store_url: str
) -> None:
    begin(session)
    session.record_request(session.context(**GIVEN))
    session.record_request(session.context(**GIVEN))
    assert problems(store) == []

    tamper(store_url, "DELETE FROM @blobs")

    assert {seq for _, seq, _ in problems(store)} == {4, 5}


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"system_digest": "0" * 64}, "the system prompt"),
        ({"tools_digest": "0" * 64}, "the list of tools"),
        ({"digest": "0" * 64}, "the view"),
    ],
)
def test_the_first_section_that_differs_is_named(
    session: Session, changed: Any, part: str
) -> None:
    begin(session)
    session.record_request(session.context(**GIVEN))
    request = session.context(**GIVEN).request()
    session.append(request.model_copy(update=changed))

    (problem,) = session.verify().problems

    assert (problem.seq, problem.code) == (5, "request")
    assert problem.detail == f"{part} has another digest now"
