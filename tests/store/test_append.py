"""Append validates, redacts, limits, seals and writes: completely, once, or not."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import refold
from refold.domain.canonical import repaired
from refold.domain.envelope import Draft
from refold.domain.events import Event
from refold.domain.ports import Conflict
from refold.store import Session, SessionStore
from refold.store.appends import hash_at
from tests.support.payloads import ENVELOPE_FIELDS, payload

SECRET = "sk-ant-api03-Zk3vQ9xLmN7pRt2wYb5uCe8dHf4jGa6s"
MAIL = "ada.lovelace@analytical.org"


def texts(session: Session) -> list[Any]:
    return [event.payload.payload().get("text") for event in session.events()]


def test_the_example_of_the_documentation_works(session: Session) -> None:
    session.append(refold.UserInput(text="Why does the build fail?"), request_id="r-1")
    session.append(
        [
            refold.AgentResponse(text="Let me look."),
            refold.ToolCall(
                call_id="c1", tool_name="bash", arguments={"command": "make"}
            ),
        ]
    )
    receipt = session.append(
        refold.ToolResult(call_id="c1", content="error: …", status="error")
    )

    events = session.events()

    assert (receipt.first_seq, receipt.last_seq, receipt.duplicate) == (4, 4, False)
    assert receipt.hash == events[-1].hash
    assert [event.type for event in events] == [
        "user_input",
        "agent_response",
        "tool_call",
        "tool_result",
    ]
    assert events[0].request_id == "r-1"
    assert payload(events[3], refold.ToolResult).tool_name == "bash"


def test_the_envelope_has_the_documented_keys(session: Session) -> None:
    session.append(
        refold.UserInput(text="hi"), agent="main", meta={"model": "m", "own": [1]}
    )

    envelope = session.events()[0].to_json()

    assert list(envelope) == ENVELOPE_FIELDS
    assert envelope["redacted"] is True
    assert isinstance(envelope["redaction"], dict)
    assert envelope["redaction"]["n"] == 0
    assert envelope["meta"] == {"model": "m", "own": [1]}
    assert envelope["stream"] == "main"


def test_secrets_never_reach_the_store(session: Session) -> None:
    session.append(
        refold.ToolCall(
            call_id="c",
            tool_name="http",
            arguments={MAIL: 1, "headers": {"x-api-key": SECRET}, "to": [MAIL]},
        ),
        request_id=f"r {MAIL}",
        agent=SECRET,
        meta={"note": SECRET, "source": {"file": MAIL}},
    )

    envelope = session.events()[0]
    shown = str(envelope.to_json())

    assert MAIL not in shown
    assert SECRET not in shown
    findings = envelope.redaction["n"]
    types = envelope.redaction["types"]
    assert isinstance(findings, int)
    assert findings >= 6
    assert isinstance(types, dict)
    assert set(types) == {"EMAIL", "API_KEY"}


def test_a_providers_signature_is_stored_byte_for_byte(session: Session) -> None:
    signature = "Eo8BCkYI/+k4138123456781381234567813812345678" + "Zk3vQ9xL" * 8
    session.append(
        refold.AgentResponse(
            text="x",
            thinking=(
                refold.events.Thinking(thinking="clean", signature=signature),
                refold.events.Thinking(thinking=f"write to {MAIL}", signature="sig"),
                refold.events.Thinking(type="redacted_thinking", data=MAIL),
                refold.events.Thinking(type="redacted_thinking", data=signature),
            ),
        )
    )

    (event,) = session.events()
    first, second = payload(event, refold.AgentResponse).thinking

    assert (first.thinking, first.signature) == ("clean", signature)
    assert (second.thinking, second.data) == (None, signature)
    assert MAIL not in str(event.to_json())
    assert [warning.code for warning in event.meta.warnings] == ["thinking_dropped"]


def test_text_that_a_provider_encrypted_is_stored_unchanged(session: Session) -> None:
    opaque = "Zk3vQ9xL" * 12_000
    block = refold.events.Thinking(type="redacted_thinking", data=opaque)
    session.append(refold.AgentResponse(text="x", thinking=(block,)))

    (event,) = session.events()
    assert payload(event, refold.AgentResponse).thinking == (block,)


def test_a_truncated_text_can_be_read_in_full(session: Session) -> None:
    whole = "".join(f"line {number} by {MAIL}\n" for number in range(5000))
    session.append(
        [
            refold.ToolCall(call_id="c", tool_name="cat"),
            refold.ToolResult(call_id="c", content={"stdout": whole, "code": 0}),
        ]
    )

    content = payload(session.events()[1], refold.ToolResult).content
    assert isinstance(content, dict)
    stored = content["stdout"]
    sha256 = str(stored).split('blob("')[1].split('"')[0]
    blob = session.history.blob(sha256)

    assert len(str(stored).encode()) <= 65_536
    assert blob == whole.replace(MAIL, "[REDACTED:EMAIL]")
    assert str(stored).startswith(blob[:1000])
    assert str(stored).endswith(blob[-1000:])
    left_out = len(blob.encode()) - len(str(stored).split("\n[refold:")[0].encode())
    assert str(len(blob.encode())) in str(stored)
    assert left_out > 0


def test_an_event_over_the_hard_limit_is_refused_with_its_size(
    session: Session,
) -> None:
    many = {f"k{number}": "x" * 1000 for number in range(2000)}
    call = refold.ToolCall(call_id="c", tool_name="t", arguments=many)

    with pytest.raises(refold.EventTooLarge) as caught:
        session.append([refold.UserInput(text="before"), call])

    assert caught.value.size > caught.value.limit == 1_048_576
    with pytest.raises(refold.SessionNotFound):
        session.events()


def test_a_batch_is_written_completely_or_not_at_all(session: Session) -> None:
    session.append(refold.UserInput(text="a"))

    with pytest.raises(refold.InvalidEvent):
        session.append([refold.UserInput(text="b"), refold.ToolResult(call_id="none")])

    assert texts(session) == ["a"]


def test_expected_seq_has_one_winner_and_the_error_names_both_numbers(
    session: Session,
) -> None:
    session.append(refold.UserInput(text="a"), expected_seq=0)

    with pytest.raises(refold.StaleSession) as caught:
        session.append(refold.UserInput(text="b"), expected_seq=0)

    assert (caught.value.expected, caught.value.actual) == (0, 1)
    assert session.append(refold.UserInput(text="b"), expected_seq=1).last_seq == 2


def test_expected_seq_is_compared_with_the_stored_head(
    store: SessionStore, session: Session, store_url: str
) -> None:
    session.append(refold.UserInput(text="a"))
    with refold.open(store_url) as other:
        other.session(user_id="ada", session_id="s-1").append(
            refold.UserInput(text="b")
        )

    assert session.append(refold.UserInput(text="c"), expected_seq=2).last_seq == 3


def test_another_processs_call_can_be_answered(
    session: Session, store_url: str
) -> None:
    session.append(refold.UserInput(text="a"))
    with refold.open(store_url) as other:
        call = refold.ToolCall(call_id="c", tool_name="t")
        other.session(user_id="ada", session_id="s-1").append(call)

    assert session.append(refold.ToolResult(call_id="c")).last_seq == 3


def test_a_retry_returns_the_first_receipt(session: Session) -> None:
    call = refold.ToolCall(call_id="c", tool_name="t")
    first = session.append([refold.UserInput(text=f"to {MAIL}"), call])
    answer = refold.ToolResult(call_id="c", content=SECRET)
    done = session.append(answer, idempotency_key="k")

    again = session.append(answer, idempotency_key="k")

    assert again == done._replace(duplicate=True)
    assert session.append(
        answer, idempotency_key="k", expected_seq=first.last_seq
    ).duplicate
    assert session.head().seq == 3


def test_a_key_used_for_other_content_is_a_conflict(session: Session) -> None:
    session.append(refold.UserInput(text="a"), idempotency_key="k")

    with pytest.raises(refold.IdempotencyConflict) as caught:
        session.append(refold.UserInput(text="b"), idempotency_key="k")
    with pytest.raises(refold.IdempotencyConflict):
        session.append([refold.UserInput(text="a")] * 2, idempotency_key="k")
    assert (caught.value.first_seq, caught.value.last_seq) == (1, 1)


def test_an_empty_key_of_a_draft_counts_as_no_key(session: Session) -> None:
    texts = [("a", None), ("b", ""), ("c", ""), ("d", "k")]
    drafts = [Draft(refold.UserInput(text=text), key=key) for text, key in texts]

    receipt = session.append(drafts)

    assert (receipt.first_seq, receipt.last_seq) == (1, 4)


def test_closing_a_session_object_does_not_end_the_session(session: Session) -> None:
    with session:
        session.append(refold.UserInput(text="a"))
    session.close()
    session.close()

    assert session.append(refold.UserInput(text="b")).last_seq == 2
    assert session.end().last_seq == 3
    with pytest.raises(refold.SessionClosed, match="ended at seq 3"):
        session.append(refold.UserInput(text="c"))


def test_the_repr_of_a_session_is_its_name_alone(session: Session) -> None:
    assert len(repr(session)) < 120


def test_a_retry_after_the_end_still_succeeds(session: Session) -> None:
    session.append(refold.UserInput(text="a"), idempotency_key="k")
    session.end()

    assert session.append(refold.UserInput(text="a"), idempotency_key="k").duplicate
    with pytest.raises(refold.SessionClosed):
        session.append(refold.UserInput(text="b"), idempotency_key="l")


def test_times_come_from_the_writer_or_the_source(session: Session) -> None:
    east = datetime(2026, 1, 2, 3, 4, 5, 678901, timezone(timedelta(hours=8)))
    before = datetime.now(UTC)
    session.append(refold.UserInput(text="a"))
    session.append(refold.UserInput(text="b"), ts=east)

    first, second = session.events()

    assert before <= first.ts <= datetime.now(UTC)
    assert second.ts == east
    assert second.ts.tzinfo == UTC
    with pytest.raises(refold.InvalidEvent, match="time zone"):
        session.append(refold.UserInput(text="c"), ts=datetime(2026, 1, 1))  # noqa: DTZ001  # that is the point


@pytest.mark.parametrize(
    "wrong",
    [[], "text", b"x", {"type": "user_input"}, [None], None, 3, refold.UserInput],
)
def test_values_that_are_no_events_are_refused(
    empty_session: Session, wrong: Any
) -> None:
    with pytest.raises(refold.InvalidEvent):
        empty_session.append(wrong)


@pytest.mark.parametrize(
    "event",
    [
        refold.Planner(plan=None),
        refold.Planner(plan={"a": None, "b": [None]}),
        refold.ToolCall(call_id="c", tool_name="t", arguments={"x": None}),
        refold.Final(),
        refold.StateUpdate(set={"a": None}),
        refold.Reflection(issues=(None, {})),
    ],
    ids=lambda event: event.type,
)
def test_an_empty_content_counts_as_content(
    session: Session, event: refold.Planner
) -> None:
    session.append(event)

    assert session.events()[0].payload == event
    assert session.verify().problems == []


def test_a_result_without_content_has_none(session: Session) -> None:
    session.append(refold.ToolCall(call_id="c", tool_name="t"))
    session.append(refold.ToolResult(call_id="c", content=None))

    assert payload(session.events()[1], refold.ToolResult).content is None


UNVALIDATED: dict[str, Any] = {"text": 3}


class CustomEvent(refold.UserInput):
    """An event class that a user defined."""


@pytest.mark.parametrize(
    "event",
    [
        CustomEvent(text="x"),
        Event(type="user_input"),
        Event(type="dream"),
        refold.UserInput.model_construct(**UNVALIDATED),
        refold.Fork(session_id="s-0", at_seq=1),
        refold.Fork(session_id="s-1", at_seq=1),
    ],
    ids=["subclass", "base", "unknown", "unvalidated", "fork", "fork of itself"],
)
def test_an_event_that_could_not_be_read_back_is_not_written(
    empty_session: Session, event: Event
) -> None:
    with pytest.raises(refold.InvalidEvent):
        empty_session.append(event)
    with pytest.raises(refold.SessionNotFound):
        empty_session.head()


@pytest.mark.parametrize("hours", [14, -14])
def test_a_time_outside_the_calendar_is_refused(session: Session, hours: int) -> None:
    day = (1, 1, 1) if hours > 0 else (9999, 12, 31)
    ts = datetime(*day, 12, tzinfo=timezone(timedelta(hours=hours)))

    with pytest.raises(refold.InvalidEvent, match="years 1 to 9999"):
        session.append(refold.UserInput(text="a"), ts=ts)
    session.append(refold.UserInput(text="b"), ts=datetime(1, 1, 1, tzinfo=UTC))
    assert session.events()[0].ts == datetime(1, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "fields",
    [
        {"meta": {SECRET: object()}},
        {"meta": {"usage": SECRET}},
        {"meta": SECRET},
        {"request_id": 7},
        {"agent": [SECRET]},
    ],
)
def test_fields_of_the_envelope_are_checked(
    empty_session: Session, fields: dict[str, Any]
) -> None:
    with pytest.raises(refold.InvalidEvent) as caught:
        empty_session.append(refold.UserInput(text="a"), **fields)
    assert SECRET not in str(caught.value)


def test_a_redacted_tool_name_verifies(session: Session) -> None:
    session.append(refold.ToolCall(call_id="c", tool_name=MAIL))

    assert MAIL not in repr(session.head())
    assert session.verify().problems == []
    session.append(refold.ToolResult(call_id="c"))
    result = payload(session.events()[1], refold.ToolResult)
    assert result.tool_name == "[REDACTED:EMAIL]"


def test_an_event_that_was_erased_after_it_was_found_raises_erased(
    session: Session,
) -> None:
    session.append(refold.UserInput(text="a"))

    assert hash_at(session.writer.log, session.stream, 1) == session.head().hash.hex()
    with pytest.raises(refold.Erased):
        hash_at(session.writer.log, session.stream, 2)


def test_many_concurrent_retries_of_one_key_write_once(store: SessionStore) -> None:
    def work(number: int) -> tuple[int, bool]:
        session = store.session(user_id="ada", session_id=f"s-{number % 2}")
        session.append(refold.UserInput(text="noise"))
        receipt = session.append(refold.UserInput(text="a"), idempotency_key="k")
        return receipt.last_seq, receipt.duplicate

    with ThreadPoolExecutor(12) as pool:
        receipts = list(pool.map(work, range(24)))

    assert sum(not duplicate for _, duplicate in receipts) == 2
    assert len({seq for seq, _ in receipts[0::2]}) == 1
    assert len({seq for seq, _ in receipts[1::2]}) == 1


def test_a_closed_store_reports_that_it_is_closed(
    store: SessionStore, session: Session
) -> None:
    session.append(refold.UserInput(text="a"))
    store.close()

    for use in (lambda: session.append(refold.UserInput(text="b")), session.events):
        with pytest.raises(refold.StoreUnavailable, match="was closed"):
            use()


def test_a_forked_process_opens_its_own_connections(session: Session) -> None:
    session.append(refold.UserInput(text="a"))
    child = os.fork()
    if child == 0:
        try:
            for _ in range(20):
                session.append(refold.UserInput(text="child"))
        except BaseException:
            os._exit(1)
        os._exit(0)
    for _ in range(20):
        session.append(refold.UserInput(text="parent"))

    assert os.waitpid(child, 0)[1] == 0
    assert texts(session).count("child") == 20
    assert [event.seq for event in session.events()] == list(range(1, 42))
    assert session.verify().problems == []


def test_another_working_directory_opens_the_same_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    with refold.open("sqlite:///a b%20#c.db") as store:
        monkeypatch.chdir(tmp_path / "other")
        session = store.session(user_id="ada", session_id="s")
        session.append(refold.UserInput(text="a"))
        assert texts(session) == ["a"]
    assert list((tmp_path / "other").iterdir()) == []


ODD = [
    "a\0b",
    "😀🏳️‍🌈",
    "שלום عربى",
    "𝒳𐍈",
    "\u202eabc",
    "\ufeffx",
    "e\u0301",
    " ",
    "\x7f",
]


@pytest.mark.parametrize("text", ODD)
def test_unusual_text_survives(session: Session, text: str) -> None:
    session.append(refold.UserInput(text=text))

    assert texts(session) == [text]


def test_no_error_or_log_line_repeats_refused_input(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    attempts: list[Callable[[], object]] = [
        lambda: session.append(refold.ToolResult(call_id="c", content=SECRET)),
        lambda: session.append(refold.ToolResult(call_id="c", content={3: SECRET})),
        lambda: session.append(
            refold.ToolCall(
                call_id="c",
                tool_name="t",
                arguments={SECRET + str(n): "x" * 99 for n in range(20_000)},
            )
        ),
        lambda: session.append(SECRET),  # type: ignore[arg-type]  # is no event
    ]
    for attempt in attempts:
        with pytest.raises((refold.RefoldError, TypeError)) as caught:
            attempt()
        shown = f"{caught.value} {caught.value!r} {caught.value.__cause__!r}"
        assert SECRET not in shown
    assert SECRET not in caplog.text


def test_an_event_is_refused_if_the_redactor_fails(
    store: SessionStore, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.append(refold.UserInput(text="a"))

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError(SECRET)

    monkeypatch.setattr("refold.redaction.chokepoint.redact_payload", fail)
    with pytest.raises(refold.RedactionFailed) as caught:
        session.append(refold.UserInput(text=SECRET))
    monkeypatch.undo()

    assert SECRET not in str(caught.value)
    assert texts(session) == ["a"]


def test_asyncio_appends_do_not_block_the_event_loop(session: Session) -> None:
    async def work() -> int:
        ticks = 0
        done = asyncio.Event()

        async def tick() -> None:
            nonlocal ticks
            while not done.is_set():
                ticks += 1
                await asyncio.sleep(0)

        ticker = asyncio.create_task(tick())
        await asyncio.gather(
            *(session.append_async(refold.UserInput(text=f"{n}")) for n in range(24))
        )
        done.set()
        await ticker
        return ticks

    ticks = asyncio.run(work())

    assert ticks > 24
    assert sorted(texts(session), key=int) == [f"{n}" for n in range(24)]


def test_threads_that_share_a_store_leave_no_gap(store: SessionStore) -> None:
    def work(number: int) -> None:
        session = store.session(user_id="ada", session_id=f"s-{number % 3}")
        for index in range(20):
            session.append(refold.UserInput(text=f"{number} {index}"))

    with ThreadPoolExecutor(9) as pool:
        list(pool.map(work, range(9)))

    for info in store.sessions("ada"):
        seqs = [
            e.seq
            for e in store.session(user_id="ada", session_id=info.session_id).events()
        ]
        assert seqs == list(range(1, 61))


def test_a_repeatedly_refused_fork_retries_under_the_lock(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.append(refold.UserInput(text="a"))
    log: Any = session.writer.log
    monkeypatch.setattr(log, "append", lambda request: Conflict(request.base))

    fork = session.fork(1, session_id="s-2")

    assert [event.type for event in fork.events()] == ["fork"]


def test_a_fork_continues_from_its_seq(session: Session) -> None:
    session.append(
        [refold.UserInput(text="a"), refold.ToolCall(call_id="c", tool_name="t")]
    )
    fork = session.fork(2, session_id="s-2")
    fork.append(refold.ToolResult(call_id="c", content="in the fork"))
    session.append(refold.ToolResult(call_id="c", content="in the parent"))

    assert [event.type for event in fork.events()] == ["fork", "tool_result"]
    assert fork.events()[0].seq == 1
    with pytest.raises(refold.StaleSession):
        session.fork(2, session_id="s-2")
    with pytest.raises(refold.InvalidEvent, match="not in the session"):
        session.fork(9, session_id="s-3")
    with pytest.raises(refold.SessionNotFound):
        session.writer and refold.store.Session(
            session.stream._replace(session_id="none"), session.writer
        ).fork(1, session_id="s-4")


def test_working_memory_has_the_latest_state_events(session: Session) -> None:
    session.append(refold.StateUpdate(set={"branch": "main", "n": 1}))
    session.append(refold.UserInput(text="a"))
    session.append(refold.StateUpdate(set={"n": 2}, unset=("branch",)))

    assert session.state() == {"n": 2}
    assert session.state(at=2) == {"branch": "main", "n": 1}
    assert session.at(1).state() == {"branch": "main", "n": 1}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.dictionaries(st.text(max_size=8), json_values, max_size=5))
def test_any_json_is_stored_unchanged_or_repaired(
    session: Session, value: dict[str, object]
) -> None:
    name = f"c{session.writer.clock()}"
    call = refold.ToolCall(call_id=name, tool_name="t", arguments=value)

    receipt = session.append(call)

    (event,) = session.events(after=receipt.last_seq - 1)
    clean, changes = repaired(value)
    codes = [warning.code for warning in event.meta.warnings]
    assert codes == (["repaired"] if changes else [])
    if event.redaction["n"] == 0:
        assert payload(event, refold.ToolCall).arguments == clean


@pytest.mark.parametrize("types", [("nonsense",), "nonsense", ("user_input", "")])
def test_reading_an_unknown_event_type_is_refused(session: Session, types: Any) -> None:
    session.append(refold.UserInput(text="hello"))

    with pytest.raises(refold.InvalidEvent, match=r"the types are .*user_input"):
        session.events(types=types)


def test_one_event_type_can_be_given_without_a_list(session: Session) -> None:
    session.append(refold.UserInput(text="hello"))

    assert len(session.events(types="user_input")) == 1
