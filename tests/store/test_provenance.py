"""Only a request that was recorded when it was sent counts as recorded."""

from __future__ import annotations

from pydantic import JsonValue

import refold
from refold.domain.envelope import ACTIVATED
from refold.domain.events import Request
from refold.store import Session, SessionStore
from refold.store.proofs.provenance import Provenance, provenance
from refold.store.session.imports import extend
from tests.store.test_rerun import WINDOW, transcript, with_redactor, work
from tests.support.redacting import MAIL, unaware


def provenance_at(
    session: Session, seq: int, strategy: str | None = None
) -> Provenance:
    view = session.context(strategy, at=seq)
    result = provenance(session.writer.log, session.stream, view)
    assert session.why(strategy, at=seq).provenance == result
    return result


def test_a_request_is_recorded_at_its_seq_and_at_the_event_before_it(
    session: Session,
) -> None:
    work(session, 2, WINDOW)
    requests = [
        (event.seq, event.payload.digest)
        for event in session.events()
        if isinstance(event.payload, Request)
    ]

    assert len(requests) == 4
    for seq, digest in requests:
        expected = Provenance("recorded", seq, digest, same=True)
        assert provenance_at(session, seq) == expected
        assert provenance_at(session, seq - 1, WINDOW) == expected


def test_events_after_the_last_request_are_assumed(session: Session) -> None:
    work(session, 2, WINDOW)

    assert provenance_at(session, session.head().seq) == Provenance("assumed")


def test_another_strategy_than_the_requests_is_assumed(session: Session) -> None:
    work(session, 3, "keep_all")
    last = [event.seq for event in session.events() if event.type == "request"][-1]

    assert provenance_at(session, last, "last_turns:n=1").kind == "assumed"


def test_a_context_of_an_import_is_reconstructed(session: Session) -> None:
    extend(session, transcript(3), where="a.jsonl")
    answers = {
        event.seq: str(source["request"])
        for event in session.history.pages()
        if (source := event.meta.source) and "request" in source
    }

    assert len(answers) == 6
    for seq, digest in answers.items():
        expected = Provenance("reconstructed", seq, digest, same=True)
        assert provenance_at(session, seq - 1) == expected
    assert provenance_at(session, max(answers) - 1, "last_turns:n=1").kind == "assumed"


def test_every_context_of_a_session_without_requests_is_assumed(
    session: Session,
) -> None:
    session.append(refold.UserInput(text="Hello"))
    session.append(refold.AgentResponse(text="Hello, too."))

    assert [provenance_at(session, seq).kind for seq in (1, 2)] == [
        "assumed",
        "assumed",
    ]


def test_the_request_that_activates_a_strategy_was_not_sent(session: Session) -> None:
    session.append(refold.UserInput(text="Hello"))
    assert session.strategies.activate("last_turns:n=1")
    activated = session.head().seq

    assert [event.meta.status for event in session.events()][-1] == ACTIVATED
    assert provenance_at(session, activated).kind == "assumed"
    assert session.proofs.rerun().recorded_requests == 0


def test_a_request_whose_events_were_redacted_later_has_another_digest(
    memory: SessionStore,
) -> None:
    before = with_redactor(memory.session(user_id="ada", session_id="run"), unaware())
    before.append(refold.UserInput(text=MAIL))
    sent = before.context()
    seq = before.record_request(sent, matches=True).last_seq
    list(memory.reredact())

    result = provenance_at(memory.session(user_id="ada", session_id="run"), seq)

    assert result == Provenance("recorded", seq, sent.digest, same=False)
    assert result.to_json()["request"] == {
        "seq": seq, "digest": sent.digest, "same": False,
    }  # fmt: skip


def test_a_bill_is_compared_with_our_count(session: Session) -> None:
    usage: dict[str, JsonValue] = {
        "input_tokens": 3,
        "cache_read_input_tokens": 20,
        "cache_creation_input_tokens": 7,
        "output_tokens": 1,
    }
    session.append(refold.UserInput(text="How far is it to the harbour?"))
    session.append(refold.AgentResponse(text="A mile.", usage=usage))

    bill = session.why(at=1).bill

    assert bill is not None
    assert (bill.seq, bill.billed) == (2, 30)
    assert (bill.input, bill.cache_read, bill.cache_write) == (3, 20, 7)
    assert 0 < bill.counted < 30
    assert session.why(at=1).to_json()["bill"]["billed"] == 30
    assert bill.expected == bill.billed, "the first answer gives the offset"


def test_a_context_without_a_following_answer_has_no_bill(
    session: Session,
) -> None:
    session.append(refold.UserInput(text="One"))
    session.append(refold.UserInput(text="Two"))
    session.append(refold.AgentResponse(text="Three", usage={"input_tokens": 9}))

    assert session.why(at=1).bill is None
    assert session.why(at=2).bill is not None
    assert session.why(at=3).bill is None
    assert session.why("last_turns:n=1", at=2).bill is None
