"""A context can be explained: each part has its events, its decision and its proof."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import orjson
import pytest

import refold
from refold.domain.envelope import Draft
from refold.domain.events import SummarizerRef, Summary
from refold.store import Session, SessionStore
from refold.store.appends import Order
from refold.store.proofs.explanations import Explanation
from tests.support.payloads import payload
from tests.support.redacting import MAIL, aware, unaware
from tests.support.stores import prepare

WINDOW = (
    "turn_window:full_turns=2,cached_turns=2,summary_tokens=60,"
    "session_memory_tokens=90,pin_tokens=120,open_calls_after=20"
)


def append_exchanges(session: Session, first: int, last: int) -> None:
    for number in range(first, last + 1):
        session.append(
            [
                refold.UserInput(text=f"question {number}: " + "why " * 30),
                refold.AgentResponse(text=f"answer {number}: " + "because " * 30),
            ]
        )
        compact_all(session)


def compact_all(session: Session) -> None:
    while session.compact(WINDOW):
        pass


def compacted_fork(session: Session) -> Session:
    """Compact in several levels, with pins, one over its budget, and an open call.

    Returns a fork of that session, with more events.
    """
    session.append(refold.SystemPrompt(text="You help."))
    append_exchanges(session, 1, 1)
    session.append(refold.Pin(seqs=(2,), reason="the requirement"))
    session.append(refold.AgentResponse(text="a long thing " * 200))
    session.append(refold.AgentResponse(text="noted"))
    session.append(refold.Pin(seqs=(5,), reason="too long"))
    session.append(refold.UserInput(text="run it"))
    session.append(refold.AgentResponse(text="I do", stop_reason="tool_use"))
    session.append(refold.ToolCall(call_id="c1", tool_name="bash"))
    session.append(refold.StateUpdate(set={"a": 1}))
    append_exchanges(session, 2, 7)
    fork = session.fork(session.head().seq, session_id="s-2")
    append_exchanges(fork, 8, 12)
    return fork


def check(explained: Explanation) -> None:
    """Assert that each event is shown or left out once, and is proved."""
    count = Counter(seq for part in explained.parts for seq in part.seqs)
    count.update(unshown_event.seq for unshown_event in explained.unshown)
    assert count == Counter(list(explained.events))
    assert {record.source for record in explained.records} <= {"holds"}
    assert all(record.asked_again.same for record in explained.records)
    assert all(record.asked_again.reason for record in explained.records)
    assert [problem for chain in explained.chains for problem in chain.problems] == []


def test_a_complex_session_and_its_fork_are_explained_at_every_event(
    session: Session,
) -> None:
    fork = compacted_fork(session)

    for each in (session, fork):
        for at in range(1, each.head().seq + 1, 3):
            explained = each.why(WINDOW, at=at)

            check(explained)
            assert explained.view == each.context(WINDOW, at=at)


def test_parts_name_their_cause(session: Session) -> None:
    explained = compacted_fork(session).why(WINDOW)

    causes = {part.cause for part in explained.parts}
    left = {event.why for event in explained.unshown}
    assert causes == {
        "system",
        "summary",
        "raw",
        "open",
        "no_result",
        "pinned",
        "pins_budget",
        "protected",
    }
    assert left == {"type", "compacted", "pins_budget"}
    (pin,) = explained.pins.values()
    assert payload(pin, refold.Pin).reason == "the requirement"


def test_a_fork_is_proved_together_with_its_parent(session: Session) -> None:
    explained = compacted_fork(session).why(WINDOW)

    assert [chain.stream.session_id for chain in explained.chains] == [
        "s-2",
        "s-1",
        "s-2",
    ]
    printed = explained.to_json()
    inherited = [
        event
        for part in printed["parts"]
        for event in part["events"]
        if event["seq"] < 1
    ]
    assert {event["session_id"] for event in inherited} == {"s-1"}


def test_a_decision_is_shown_with_its_rule_and_its_event(
    session: Session,
) -> None:
    append_exchanges(session, 1, 4)

    (record,) = session.why(WINDOW).records

    assert record.asked_again.reason == "4 raw turns, 4 are a window"
    assert (record.asked_again.same, record.asked_again.clock_mattered) == (True, False)
    assert record.decided_on is not None
    assert record.decided_on.seq == record.node.summary.decided_at_seq == 8


def test_a_summary_of_summaries_opens_down_to_its_events(
    session: Session,
) -> None:
    compacted_fork(session)
    explained = session.why(WINDOW)
    live = [record for record in explained.records if record.live]

    deepest = max(live, key=lambda record: record.node.summary.level)
    opened = explained.with_absorbed(deepest.node.seq)

    summary = deepest.node.summary
    seqs = [event.seq for record in opened for event in explained.source_events(record)]
    assert summary.level >= 2
    assert [record.depth for record in opened][:2] == [0, 1]
    assert len(seqs) == len(set(seqs)) == summary.source_event_count
    assert (min(seqs), max(seqs)) >= (summary.first_seq, summary.first_seq)
    assert max(seqs) <= summary.last_seq


def test_a_message_is_explained_with_its_events(session: Session) -> None:
    compacted_fork(session)
    whole = session.why(WINDOW)

    first = session.why(WINDOW, message=1)
    last = session.why(WINDOW, message=len(whole.view.messages))

    assert first.parts == tuple(part for part in whole.parts if part.message == 1)
    assert first.records == whole.records
    assert {event.why for event in first.unshown} == {"compacted", "pins_budget"}
    assert {part.message for part in last.parts} == {len(whole.view.messages)}
    assert (last.records, last.unshown) == ((), ())


def test_a_recorded_request_is_explained_as_it_was_sent(session: Session) -> None:
    append_exchanges(session, 1, 4)
    view = session.context(WINDOW, system="Be brief.", evidence=["A document."])
    at = session.record_request(view, model="m", matches=True).last_seq
    append_exchanges(session, 5, 9)

    explained = session.why(at=at)

    sent = explained.sent
    assert sent is not None
    assert (sent.proof, sent.shown, sent.digest) == ("holds", True, view.digest)
    assert explained.view.digest == view.digest
    causes = [part.cause for part in explained.parts]
    assert causes[0] == "handed_in"
    assert causes.count("handed_in") == 2
    assert explained.unshown[-1][:2] == (at, "later")
    later = session.why(WINDOW)
    assert later.sent == sent._replace(shown=False)
    assert later.view.digest == session.context(WINDOW).digest


def test_a_context_that_was_not_recorded_says_so(session: Session) -> None:
    append_exchanges(session, 1, 2)

    explained = session.why(WINDOW)

    assert explained.sent is None
    assert explained.to_json()["request"] is None


def test_a_forged_summary_is_reported_as_broken_and_as_another_decision(
    session: Session,
) -> None:
    append_exchanges(session, 1, 3)
    strategy = session.context(WINDOW).ref
    forged = Summary(
        strategy=strategy,
        first_seq=1,
        last_seq=2,
        decided_at_seq=6,
        appended_at_seq=6,
        source_event_count=2,
        source_digest="0" * 64,
        summarizer=SummarizerRef(kind="forged"),
        tokens_before=10,
        tokens_after=1,
        text="nothing happened",
    )
    stream = session.stream._replace(stream=strategy.fingerprint)
    session.writer.append(Order(stream, (Draft(forged),), expected_seq=0))

    (record,) = session.why(WINDOW).records

    assert record.source == "broken"
    assert (record.asked_again.same, record.asked_again.decided) == (False, None)


def test_parts_redacted_since_are_superseded_and_not_broken(
    store_url: str, tmp_path: Path
) -> None:
    url = prepare(store_url, tmp_path)
    with refold.open(url, redactor=unaware()) as before:
        session = before.session(user_id="ada", session_id="s-1")
        session.append(refold.UserInput(text=f"write to {MAIL}"))
        session.record_request(session.context(WINDOW))
        append_exchanges(session, 1, 4)

    with refold.open(url, redactor=aware()) as after:
        list(after.reredact())
        explained = after.session(user_id="ada", session_id="s-1").why(WINDOW)

    assert explained.superseded == {1}
    assert "superseded" in {record.source for record in explained.records}
    assert "broken" not in {record.source for record in explained.records}
    assert explained.sent is not None
    assert explained.sent.proof == "superseded"
    assert all(not chain.problems for chain in explained.chains)
    assert explained.to_json()["superseded"] == [1]


def test_places_that_do_not_exist_are_refused(
    store: SessionStore, session: Session
) -> None:
    append_exchanges(session, 1, 4)

    for at in (0, 9, -1):
        with pytest.raises(refold.InvalidEvent, match=f"seq {at} is not in session"):
            session.why(WINDOW, at=at)
    for message in (0, 6, -1):
        with pytest.raises(refold.InvalidEvent, match="counted from 1"):
            session.why(WINDOW, message=message)
    with pytest.raises(refold.InvalidEvent, match=r"summary 7 .*there is: 1\)"):
        session.why(WINDOW).with_absorbed(7)
    with pytest.raises(refold.UnknownStrategy):
        session.why("dream")
    with pytest.raises(refold.SessionNotFound):
        store.session(user_id="ada", session_id="none").why()


def test_the_json_is_complete_and_contains_no_text_of_events(session: Session) -> None:
    explained = compacted_fork(session).why(WINDOW)

    printed = orjson.loads(orjson.dumps(explained.to_json()))

    left = sum(run["events"] for run in printed["left_out"])
    shown = sum(len(part["events"]) for part in printed["parts"])
    assert left + shown == len(explained.events)
    live = [summary for summary in printed["summaries"] if summary["live"]]
    own = [
        event["seq"] for summary in printed["summaries"] for event in summary["events"]
    ]
    assert len(own) == sum(summary["source_event_count"] for summary in live)
    assert {summary["source"] for summary in printed["summaries"]} == {"holds"}
    assert "question 12" not in str(printed["parts"])
