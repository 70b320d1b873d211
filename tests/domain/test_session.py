"""A session accepts only events that are valid after those before."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from refold import InvalidEvent, SessionClosed
from refold.domain.events import (
    AgentResponse,
    CompactionNote,
    Consent,
    Event,
    Fork,
    HumanReview,
    Pin,
    SystemPrompt,
    ToolCall,
    ToolResult,
    UserInput,
)
from refold.domain.ids import StreamId, check_id, check_session_id
from refold.domain.session import SessionState, decide, unrestricted_types

NEW = SessionState(StreamId("ada", "s-1"))
HELLO = UserInput(text="hello")
CALL = ToolCall(call_id="c1", tool_name="bash")
RESULT = ToolResult(call_id="c1", content="ok")


def state_after(*events: Event) -> SessionState:
    return decide(NEW, events)[1]


def test_each_event_gets_the_next_seq() -> None:
    assert state_after(HELLO, HELLO).head_seq == 2


def test_a_result_closes_its_call_and_gets_its_tool_name() -> None:
    (result,), _ = decide(state_after(HELLO, CALL), [RESULT])

    assert result == RESULT.model_copy(update={"tool_name": "bash"})
    assert state_after(HELLO, CALL, RESULT).open_calls == {}
    assert state_after(HELLO, CALL, RESULT).answered == 1


def test_a_call_and_its_result_can_come_in_one_append() -> None:
    assert len(decide(NEW, [HELLO, CALL, RESULT])[0]) == 3


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([RESULT], "no open call of this call_id"),
        ([CALL, RESULT, RESULT], "has its result already"),
        ([CALL, CALL], "waits for its result since seq 1"),
        ([Fork(session_id="s-0", at_seq=1)], r"by session\.fork"),
        ([Pin(seqs=(1,))], "cannot be pinned"),
        ([HumanReview(trigger="x", refers_to=4)], "which does not exist yet"),
        ([SystemPrompt()], "needs a text"),
        ([CompactionNote(phase="failed")], "belongs in a derived stream"),
        ([Consent(scope="memory", granted=True)], "_user"),
    ],
)
def test_an_event_that_breaks_a_rule_is_refused_with_the_reason(
    events: list[Event], why: str
) -> None:
    with pytest.raises(InvalidEvent, match=why):
        decide(NEW, events)


def test_a_call_id_can_be_reused_after_its_result() -> None:
    assert state_after(CALL, RESULT, CALL).open_calls["c1"].seq == 3


def test_no_event_follows_the_end() -> None:
    closed = state_after(HELLO, SystemPrompt(closed=True))

    with pytest.raises(SessionClosed) as caught:
        decide(closed, [HELLO])
    assert caught.value.head_seq == 2


def test_a_derived_stream_accepts_only_derived_events() -> None:
    derived = SessionState(StreamId("ada", "s-1", "f" * 64))

    assert decide(derived, [CompactionNote(phase="retired")])[0]
    with pytest.raises(InvalidEvent, match="belongs in the main stream"):
        decide(derived, [HELLO])


def test_events_about_a_user_belong_in_the_user_session() -> None:
    own = SessionState(StreamId("ada", "_user"))

    assert decide(own, [Consent(scope="memory", granted=True)])[0]
    with pytest.raises(InvalidEvent):
        decide(own, [HELLO])


def test_a_fork_starts_with_the_calls_that_were_open() -> None:
    calls = state_after(HELLO, CALL).open_calls
    stream = StreamId("ada", "s-2")
    born = SessionState(stream, 0, calls, forked_from=("s-1", 2))

    assert decide(born, [Fork(session_id="s-1", at_seq=2), RESULT])[0]
    with pytest.raises(InvalidEvent):
        decide(born, [Fork(session_id="s-1", at_seq=1)])
    with pytest.raises(InvalidEvent):
        decide(born, [Fork(session_id="s-1", at_seq=2)] * 2)


ids = st.sampled_from(["c1", "c2", "c3"])
steps = st.one_of(
    st.just(HELLO),
    st.just(AgentResponse(text="x")),
    ids.map(lambda name: ToolCall(call_id=name, tool_name="t")),
    ids.map(lambda name: ToolResult(call_id=name)),
)


def accepted_events(events: list[Event]) -> list[Event]:
    state = NEW
    taken = []
    for event in events:
        try:
            (accepted,), state = decide(state, [event])
        except InvalidEvent:
            continue
        taken.append(accepted)
    return taken


@given(st.lists(steps, max_size=40))
def test_each_result_answers_one_call(events: list[Event]) -> None:
    taken = accepted_events(events)
    open_now: set[str] = set()

    for event in taken:
        if isinstance(event, ToolCall):
            assert event.call_id not in open_now
            open_now.add(event.call_id)
        if isinstance(event, ToolResult):
            assert event.call_id in open_now
            open_now.remove(event.call_id)
    assert set(state_after(*taken).open_calls) == open_now


@given(st.lists(steps, max_size=30))
def test_a_state_survives_being_stored(events: list[Event]) -> None:
    state = state_after(*accepted_events(events))

    again = SessionState.load(
        state.stream, state.head_seq, closed=state.closed, dumped=state.dump()
    )

    assert again == state


@given(st.lists(steps, max_size=30))
def test_unrestricted_events_change_only_the_head_seq(
    events: list[Event],
) -> None:
    state = state_after(*accepted_events(events))

    for kind in unrestricted_types(state):
        event = kind.model_construct(type="")
        assert decide(state, [event]) == (
            [event],
            state._replace(head_seq=state.head_seq + 1),
        )


@pytest.mark.parametrize(
    "stream", [StreamId("ada", "s", "derived"), StreamId("ada", "_user")]
)
def test_special_streams_have_no_unrestricted_types(stream: StreamId) -> None:
    assert UserInput in unrestricted_types(SessionState(StreamId("ada", "s")))
    assert not unrestricted_types(SessionState(StreamId("ada", "s"), closed=True))
    assert not unrestricted_types(SessionState(stream))


def test_the_state_does_not_grow_with_the_session() -> None:
    many = [event for _ in range(500) for event in (HELLO, CALL, RESULT)]

    assert len(str(state_after(*many).dump())) < 80


@pytest.mark.parametrize("bad", ["", "a\nb", "a\0b", "\ud800", "x" * 201, None, 3])
def test_an_id_that_engines_store_differently_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidEvent) as caught:
        check_id("user_id", bad)
    assert "user_id" in str(caught.value)


def test_ids_with_an_underscore_are_reserved() -> None:
    with pytest.raises(InvalidEvent, match="reserved"):
        check_session_id("_mine")
    assert check_session_id("_user") == "_user"


names = st.text(st.characters(exclude_categories=["Cs"]))


@given(st.builds(StreamId, names, names, names))
def test_a_stream_id_survives_as_text(stream: StreamId) -> None:
    assert StreamId.parse(str(stream)) == stream
    assert str(stream).count("/") == 2
