"""Values that were not recognized as secrets when written can be redacted later."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.domain.envelope import Draft, Envelope
from refold.domain.events import RedactionApplied, Request
from refold.domain.ids import USER_SESSION, StreamId
from refold.projections.context.strategies.spec import parse
from refold.redaction.redactor import Redactor
from refold.store import Session, SessionStore
from refold.store.proofs.verification import Rechecker
from refold.store.session.imports import extend
from tests.support.nested import problems_of
from tests.support.payloads import payload
from tests.support.redacting import GONE, MAIL, aware, unaware
from tests.support.stores import prepare
from tests.support.talking import talk

WINDOW = "turn_window:full_turns=1,cached_turns=1"
NESTED = (
    "history_summary:trigger_on_history_size_chars=500,"
    "history_tail_size_chars_to_exclude=300,min_tail_exchanges=1"
)
Opened = Callable[[Redactor], SessionStore]


@pytest.fixture
def opened(store_url: str, tmp_path: Path) -> Iterator[Opened]:
    stores: list[SessionStore] = []

    def open_(redactor: Redactor) -> SessionStore:
        store = refold.open(prepare(store_url, tmp_path), redactor=redactor)
        stores.append(store)
        return store

    yield open_
    for store in stores:
        store.close()


@pytest.fixture
def before(opened: Opened) -> SessionStore:
    return opened(unaware())


@pytest.fixture
def after(opened: Opened, before: SessionStore) -> SessionStore:
    return opened(aware())


def session_of(store: SessionStore, name: str = "s-1") -> Session:
    return store.session(user_id="ada", session_id=name)


def readable_text(session: Session) -> str:
    """Return everything that can be read of a session, as one text."""
    events = [*session.history.pages()]
    for name in session.history.streams()[1:]:
        events += session.history.derived(name)
    return str([event.to_json() for event in events])


def superseded_and_digests(store: SessionStore) -> dict[str, tuple[int, int]]:
    """Verify the store; return superseded events and digests of each session."""
    results = list(store.verify())
    assert problems_of(results) == []
    return {
        info.session_id: (verified.superseded, verified.superseded_digests)
        for info, verified in results
    }


def test_a_recheck_reports_place_and_type_and_changes_nothing(
    before: SessionStore, after: SessionStore
) -> None:
    session_of(before).append([refold.UserInput(text=t) for t in ("a", MAIL, "c")])

    (check,) = after.recheck()

    (exposure,) = check.exposures
    assert (exposure.stream, exposure.seq, exposure.types) == ("main", 2, {"EMAIL": 1})
    assert (check.events, check.applied, check.problem) == (3, None, None)
    assert MAIL not in str(check)
    assert MAIL in readable_text(session_of(after))


def test_findings_are_replaced_and_everything_else_stays(
    before: SessionStore, after: SessionStore
) -> None:
    session_of(before).append(
        [refold.UserInput(text=f"I am {MAIL}"), refold.AgentResponse(text="hello")],
        meta={"own": MAIL, "model": "m"},
        agent="main",
        request_id=MAIL,
    )
    first = session_of(before).events()

    (done,) = after.reredact()

    events = session_of(after).events()
    assert done.applied is not None
    assert done.applied.events == 2
    assert MAIL not in readable_text(session_of(after))
    assert events[0].payload.payload()["text"] == f"I am {GONE}"
    assert (events[0].meta.model, events[0].agent) == ("m", "main")
    assert events[0].token_estimate == first[0].token_estimate
    assert [event.hash for event in events[:2]] == [event.hash for event in first]
    assert events[0].redaction["types"] == {"EMAIL": 3}
    assert events[0].redaction["before"] == first[0].redaction
    assert GONE in str(session_of(after).context().messages)
    assert superseded_and_digests(after) == {"s-1": (2, 0)}


def test_cached_rows_are_released_after_a_new_key(
    before: SessionStore, after: SessionStore
) -> None:
    session_of(before).append(refold.UserInput(text=MAIL))
    assert MAIL in str(session_of(after).context().messages)
    ring = after.log.keys  # type: ignore[attr-defined]  # a store over SQL
    opened = weakref.ref(ring.session("ada", "s-1", now=None).decrypted)
    assert opened().rows  # type: ignore[union-attr]  # it is there

    list(after.reredact())

    assert opened() is None
    assert GONE in str(session_of(after).context().messages)


def test_a_cached_context_does_not_show_what_another_store_has_replaced(
    before: SessionStore, after: SessionStore
) -> None:
    """The stored view and the words of the user in it are cached with the key."""
    session = talk(session_of(before), 1)
    session.append(refold.UserInput(text=f"write to {MAIL}, please"))
    talk(session, 40)
    while session.compact(WINDOW) is not None:
        pass
    for _ in range(3):
        assert MAIL in str(session.context(WINDOW).messages)

    list(after.reredact())

    shown = str(session.context(WINDOW).messages)
    assert MAIL not in shown
    assert GONE in shown


def test_the_log_records_what_was_replaced_and_by_which_rules(
    before: SessionStore, after: SessionStore
) -> None:
    session_of(before).append([refold.UserInput(text=t) for t in ("a", MAIL)])

    list(after.reredact())

    note = session_of(after).events()[-1].payload
    assert isinstance(note, RedactionApplied)
    assert (note.stream, note.seqs, note.first_seq, note.last_seq) == (
        "main",
        (2,),
        1,
        2,
    )
    assert (note.types, note.key_version) == ({"EMAIL": 1}, 2)
    assert note.rules.startswith("aware")
    assert [rules.split("-")[0] for rules in note.rules_before] == ["unaware"]
    assert len(note.hashes) == len(note.first_hashes) == 1


def test_a_second_redaction_has_nothing_to_do(
    before: SessionStore, after: SessionStore
) -> None:
    session_of(before).append(refold.UserInput(text=MAIL))
    list(after.reredact())
    head = session_of(after).head()

    (again,) = after.reredact()

    assert (again.exposures, again.applied) == ([], None)
    assert session_of(after).head() == head


def test_only_the_named_sessions_are_redacted(
    before: SessionStore, after: SessionStore
) -> None:
    for user, name in (("ada", "s-1"), ("ada", "s-2"), ("bob", "s-1")):
        before.session(user_id=user, session_id=name).append(
            refold.UserInput(text=MAIL)
        )

    done = list(after.reredact("ada", session_id="s-1"))

    assert [(result.session.user_id, result.session.session_id) for result in done] == [
        ("ada", "s-1")
    ]
    left = [check.session for check in after.recheck() if check.exposures]
    assert [(info.user_id, info.session_id) for info in left] == [
        ("ada", "s-2"),
        ("bob", "s-1"),
    ]


def test_a_blob_is_replaced_together_with_its_truncated_text(
    before: SessionStore, after: SessionStore
) -> None:
    whole = "line\n" * 20_000 + MAIL + "\n" + "line\n" * 20_000
    session_of(before).append([refold.UserInput(text=whole)] * 2)
    session_of(before).append(refold.UserInput(text=whole.replace(MAIL, "x")))
    digest, *_ = digests(before)
    (check,) = after.recheck()

    (done,) = after.reredact()

    assert [exposure.blobs for exposure in check.exposures] == [1, 1]
    assert done.applied is not None
    assert done.applied.blobs == 1
    new = digests(after)
    assert new[0] == new[1] != digest
    assert session_of(after).history.blob(new[0]) == whole.replace(MAIL, GONE)
    assert session_of(after).history.blob(new[2]) == whole.replace(MAIL, "x")
    with pytest.raises(refold.CorruptEvent, match="no such blob"):
        session_of(after).history.blob(digest)
    assert after.stats()["blobs"] == 2
    assert superseded_and_digests(after) == {"s-1": (2, 0)}


def digests(store: SessionStore) -> list[str]:
    texts = [
        str(event.payload.payload()) for event in session_of(store).history.pages()
    ]
    return [text.split('session.blob("')[1][:64] for text in texts if "blob(" in text]


def test_a_secret_in_signed_thinking_drops_the_block_with_a_note(
    before: SessionStore, after: SessionStore
) -> None:
    thinking = (refold.events.Thinking(thinking=MAIL, signature="x" * 40),)
    session_of(before).append(refold.AgentResponse(text="a", thinking=thinking))

    list(after.reredact())

    event = session_of(after).events()[0]
    assert event.payload.payload()["thinking"] == []
    assert [warning.code for warning in event.meta.warnings] == ["thinking_dropped"]


def test_redacted_summaries_are_marked_as_underivable(
    before: SessionStore, after: SessionStore
) -> None:
    session = session_of(before)
    for number in range(4):
        session.append(
            [
                refold.UserInput(text=f"{MAIL} asks {number} " + "word " * 30),
                refold.AgentResponse(text=f"{MAIL} has {number} " + "word " * 30),
            ]
        )
    while session.compact(WINDOW):
        pass
    session.record_request(session.context(WINDOW))
    session.strategies.catch_up()
    (name,) = session.history.streams()[1:]
    assert MAIL in str([event.to_json() for event in session.history.derived(name)])

    list(after.reredact())

    session = session_of(after)
    assert MAIL not in readable_text(session)
    assert MAIL not in str(session.context(WINDOW).messages)
    ((envelope, view),) = session.proofs.replay()
    assert GONE in str(view.messages)
    assert view.digest != payload(envelope, Request).digest
    superseded, underived = superseded_and_digests(after)["s-1"]
    assert superseded >= 5
    assert underived >= 2
    assert session.verify().compactions == 3


def test_events_next_to_an_earlier_summary_are_part_of_the_next_source(
    before: SessionStore, after: SessionStore
) -> None:
    session = session_of(before)
    nested = parse(NESTED)
    for number in range(4):
        mail = MAIL if number == 2 else "no one"
        session.append(
            [
                refold.UserInput(text=f"question {number} of {mail} " + "word " * 30),
                refold.AgentResponse(text=f"answer {number} " + "word " * 30),
            ]
        )
        session.compact(nested)
    absorbing = [
        event.seq
        for event in session.history.derived(nested.fingerprint)
        if isinstance(event.payload, refold.Summary) and event.payload.absorbs
    ]
    assert absorbing

    list(after.reredact())

    superseded, underived = superseded_and_digests(after)["s-1"]
    assert superseded >= 1
    assert underived >= 1


def test_digests_of_unchanged_events_are_still_proved(
    before: SessionStore, after: SessionStore
) -> None:
    session = session_of(before)
    session.append(refold.UserInput(text="fine"))
    session.record_request(session.context())
    session.append(refold.UserInput(text=MAIL))

    list(after.reredact())

    assert superseded_and_digests(after) == {"s-1": (1, 0)}


def test_values_that_the_caller_added_are_redacted_again(
    before: SessionStore, after: SessionStore
) -> None:
    session = session_of(before)
    session.append(refold.UserInput(text="fine"))
    evidence = [f"ask {MAIL} " + "word " * 400, "a fact"]
    session.record_request(session.context(evidence=evidence, system=f"Mail {MAIL}"))

    (done,) = after.reredact()

    session = session_of(after)
    assert [exposure.seq for exposure in done.exposures] == [2]
    assert MAIL not in readable_text(session)
    ((_, view),) = session.proofs.replay()
    assert MAIL not in str((view.messages, view.system))
    assert GONE in str(view.messages)
    assert "a fact" in str(view.messages)
    assert superseded_and_digests(after) == {"s-1": (1, 1)}


def test_a_closed_session_stays_closed(
    before: SessionStore, after: SessionStore
) -> None:
    session_of(before).append(refold.UserInput(text=MAIL))
    session_of(before).end()

    list(after.reredact())

    assert MAIL not in readable_text(session_of(after))
    assert superseded_and_digests(after) == {"s-1": (1, 0)}
    with pytest.raises(refold.SessionClosed):
        session_of(after).append(refold.UserInput(text="x"))


def test_records_about_a_whole_user_are_redacted_again(
    before: SessionStore, after: SessionStore
) -> None:
    consent = refold.events.Consent(
        scope="memory", granted=True, reason=f"asked {MAIL}"
    )
    session_of(before, USER_SESSION).append(consent)

    list(after.reredact())

    assert MAIL not in readable_text(session_of(after, USER_SESSION))
    assert superseded_and_digests(after) == {USER_SESSION: (1, 0)}


@pytest.mark.parametrize("only", [None, "s-1"])
def test_a_fork_shows_the_redacted_events_of_its_parent(
    before: SessionStore, after: SessionStore, only: str | None
) -> None:
    parent = session_of(before)
    parent.append(
        [
            refold.UserInput(text=f"I am {MAIL}"),
            refold.ToolCall(call_id="c", tool_name=f"mail {MAIL}"),
        ]
    )
    fork = parent.fork(2, session_id="fork")
    fork.append([refold.UserInput(text="go on")] * 70)
    fork.record_request(fork.context())

    list(after.reredact("ada", session_id=only))

    fork = session_of(after, "fork")
    assert GONE in str(fork.context().messages)
    assert MAIL not in str(fork.context().messages)
    assert superseded_and_digests(after)["fork"][1] == 1
    fork.append(refold.ToolResult(call_id="c", content="done"))
    list(after.reredact())
    assert MAIL not in str(fork.head().state.open_calls) + readable_text(fork)
    superseded_and_digests(after)


def test_the_name_of_an_open_call_is_also_redacted_in_the_head(
    before: SessionStore, after: SessionStore
) -> None:
    session_of(before).append(refold.ToolCall(call_id="c", tool_name=f"mail {MAIL}"))

    list(after.reredact())

    (call,) = session_of(after).head().state.open_calls.values()
    assert call.tool_name == f"mail {GONE}"
    session_of(after).append(refold.ToolResult(call_id="c", content="done"))
    assert superseded_and_digests(after) == {"s-1": (1, 0)}


def test_a_retry_finds_its_first_attempt_with_new_and_with_old_rules(
    before: SessionStore, after: SessionStore
) -> None:
    event = refold.UserInput(text=MAIL)
    first = session_of(before).append(event, idempotency_key="k")
    list(after.reredact())

    for store in (after, before):
        again = session_of(store).append(event, idempotency_key="k")

        assert (again.first_seq, again.duplicate) == (first.first_seq, True)
        assert again.hash == first.hash


def test_a_later_import_adds_nothing(before: SessionStore, after: SessionStore) -> None:
    meta = refold.events.Meta(source={"format": "x"})
    ts = datetime(2026, 1, 1, tzinfo=UTC)
    drafts = [
        Draft(refold.UserInput(text=text), ts=ts, meta=meta)
        for text in ("a", f"I am {MAIL}", "c")
    ]
    extend(session_of(before), drafts, where="x")
    list(after.reredact())

    for store in (after, before):
        assert extend(session_of(store), drafts, where="x")[:2] == (0, 3)
    other = [Draft(refold.UserInput(text="b"), meta=meta), *drafts[1:]]
    with pytest.raises(refold.errors.ImportFailed, match="rewritten"):
        extend(session_of(after), other, where="x")


def test_only_a_redaction_can_record_a_replacement(after: SessionStore) -> None:
    with pytest.raises(refold.InvalidEvent, match="alone"):
        session_of(after).append(RedactionApplied(stream="main"))


def test_a_process_with_the_old_key_continues_with_the_new_one(
    before: SessionStore, after: SessionStore
) -> None:
    session = session_of(before)
    session.append([refold.UserInput(text=f"{n} {MAIL}") for n in range(70)])
    session.context()
    assert session.head().seq == 70
    list(after.reredact())

    assert GONE in str(session.context().messages)
    assert session.append(refold.UserInput(text="on")).last_seq == 72
    assert session.append(refold.UserInput(text="on"), expected_seq=72).last_seq == 73
    session.strategies.catch_up()
    assert [event.seq for event in session.events(after=70)] == [71, 72, 73]
    assert (
        superseded_and_digests(after)
        == superseded_and_digests(before)
        == {"s-1": (70, 0)}
    )


def test_a_compactor_with_the_old_key_compacts_with_the_new_one(
    before: SessionStore, after: SessionStore
) -> None:
    session = session_of(before)
    for number in range(6):
        session.append(
            [
                refold.UserInput(text=f"question {number} " + "word " * 30),
                refold.AgentResponse(text=f"answer {MAIL} " + "word " * 30),
            ]
        )
    session.compact(WINDOW)
    list(after.reredact())

    while session.compact(WINDOW):
        pass

    assert session.verify().compactions > 1
    superseded_and_digests(after)


def test_concurrent_appends_lose_nothing(
    before: SessionStore, after: SessionStore
) -> None:
    session_of(before).append(refold.UserInput(text="begin"))
    failed: list[Exception] = []

    def append_all() -> None:
        try:
            for number in range(40):
                session_of(before).append(refold.UserInput(text=f"{number} {MAIL}"))
        except Exception as error:  # the test asserts that there is none
            failed.append(error)

    writer = threading.Thread(target=append_all)
    writer.start()
    while writer.is_alive():
        list(after.reredact())
    writer.join()
    list(after.reredact())

    texts = [e.payload.payload().get("text") for e in session_of(after).history.pages()]
    assert failed == []
    assert [text for text in texts if text] == [
        "begin",
        *(f"{number} {GONE}" for number in range(40)),
    ]
    assert superseded_and_digests(after)["s-1"][0] == 40


def test_two_concurrent_redactions_end_with_one_key(
    opened: Opened, before: SessionStore
) -> None:
    for name in ("s-1", "s-2"):
        session_of(before, name).append(refold.UserInput(text=MAIL))
    stores = [opened(aware()) for _ in range(2)]
    threads = [threading.Thread(target=lambda s=s: list(s.reredact())) for s in stores]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for store in (*stores, before):
        assert [check.unfinished for check in store.recheck()] == [False, False]
        assert superseded_and_digests(store) == {"s-1": (1, 0), "s-2": (1, 0)}


def test_a_concurrent_redaction_is_not_undone(
    opened: Opened, before: SessionStore, after: SessionStore
) -> None:
    phone = "13812345678"
    session_of(before).append(refold.UserInput(text=f"{MAIL} {phone}"))
    writer = session_of(after).writer
    stream = session_of(after).stream
    late = Rechecker(writer, stream)
    late.run()
    list(opened(aware("EMAIL", "PHONE")).reredact())
    assert phone not in readable_text(session_of(after))

    after.log.rewrite(stream, late, now=1)

    assert phone not in readable_text(session_of(after))
    assert superseded_and_digests(after) == {"s-1": (1, 0)}


def test_an_unreadable_session_is_reported_and_does_not_stop_the_others(
    before: SessionStore, after: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("s-1", "s-2"):
        session_of(before, name).append(refold.UserInput(text=MAIL))
    sighted = type(after.log).read

    def read(log: Any, stream: StreamId, **asked: Any) -> list[Envelope]:
        if stream.session_id == "s-1":
            raise refold.CorruptEvent("session 's-1' main", seq=1, reason="for a test")
        return sighted(log, stream, **asked)

    monkeypatch.setattr(type(after.log), "read", read)
    first, second = after.reredact()

    assert first.problem is not None
    assert "for a test" in first.problem
    assert second.applied is not None
