"""Every answer of a provider can be appended, and a retry is the same append."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import refold
from refold.domain.canonical import DEEPEST, repaired
from refold.domain.events import LONGEST_ID, Event
from refold.projections.context.text import violations
from refold.store import Session


def nested(levels: int) -> Any:
    value: Any = "deep"
    for _ in range(levels):
        value = [value]
    return value


HALVES = [chr(0xD800), chr(0xDFFF)]
ODD: dict[str, Any] = {
    "integer over 64 bits": 25 * 10**18 * 10,
    "negative integer over 64 bits": -(2**64),
    "integer of 5,000 digits": 10**5_000,
    "half of a surrogate pair": "a\ud800b",
    "half of a pair in a key": {f"k{half}": half for half in HALVES},
    "not a number": float("nan"),
    "infinity": [float("inf"), float("-inf")],
    "more nesting than an encoder takes": nested(400),
    "more nesting than redaction takes": nested(127),
}


def result_of(value: Any) -> list[Event]:
    return [
        refold.AgentResponse(text="Let me see.", usage={"odd": value}),
        refold.ToolCall(call_id="c1", tool_name="pay", arguments={"odd": value}),
        refold.ToolResult(call_id="c1", content={"odd": value}),
    ]


def codes(event: Any) -> list[str]:
    return [warning.code for warning in event.meta.warnings]


@pytest.mark.parametrize("value", ODD.values(), ids=ODD.keys())
def test_a_value_that_json_cannot_hold_is_repaired_and_reported(
    session: Session, value: Any
) -> None:
    session.append(refold.UserInput(text="Pay."))

    session.append(result_of(value), meta={"more": value})

    clean, changes = repaired(value)
    _, response, call, result = session.events()
    payloads: Any = [event.payload for event in (response, call, result)]
    assert changes
    assert [codes(event) for event in (response, call, result)] == [["repaired"]] * 3
    assert payloads[1].arguments == payloads[2].content
    # Deeper down, the position decides what counts as a text.
    if "deep" not in str(clean):
        assert payloads[0].usage == payloads[2].content == {"odd": clean}
        assert call.meta.dump()["more"] == clean
    assert violations(session.context().messages) == []
    assert session.verify().problems == []


@pytest.mark.parametrize("value", ODD.values(), ids=ODD.keys())
def test_a_retry_repairs_in_the_same_way(session: Session, value: Any) -> None:
    first = session.append(result_of(value), idempotency_key="k")

    again = session.append(result_of(value), idempotency_key="k")

    assert again == first._replace(duplicate=True)
    assert len(session.events()) == 3


def test_the_asynchronous_append_repairs_in_the_same_way(session: Session) -> None:
    async def append_all() -> None:
        await session.append_async(refold.UserInput(text="Pay."))
        for value in ODD.values():
            await session.append_async(refold.StateUpdate(set={"odd": value}))

    asyncio.run(append_all())

    assert {tuple(codes(event)) for event in session.events(after=1)} == {("repaired",)}


def test_values_that_every_encoder_accepts_are_unchanged() -> None:
    value = {"n": [2**64 - 1, -(2**63), 0.1, True, None], "t": "😀", "d": nested(110)}

    assert repaired(value) == (value, 0)


def test_a_deep_value_keeps_its_upper_levels_and_all_content() -> None:
    clean, changes = repaired(nested(500))

    for _ in range(DEEPEST):
        (clean,) = clean
    assert changes == 1
    assert clean.count("[") == 500 - DEEPEST
    assert "deep" in clean


@pytest.mark.parametrize("bad", [object(), {3: "a"}, {1, 2}, b"bytes"])
def test_an_object_that_is_not_json_is_refused(session: Session, bad: Any) -> None:
    with pytest.raises(refold.InvalidEvent):
        session.append(refold.ToolResult(call_id="c", content={"odd": bad}))
    with pytest.raises(refold.InvalidEvent):
        session.append(refold.UserInput(text="a"), meta={"odd": bad})


def call(name: str, call_id: str = "call_0") -> refold.ToolCall:
    return refold.ToolCall(call_id=call_id, tool_name=name)


def result(content: str, call_id: str = "call_0", **more: Any) -> refold.ToolResult:
    return refold.ToolResult(call_id=call_id, content=content, **more)


ANSWER = [refold.AgentResponse(text="Both."), call("weather"), call("delete_file")]


def pairs(session: Session) -> dict[str, Any]:
    """Return the content of each call's result, by the name of the called tool."""
    events: Any = [event.payload for event in session.events()]
    calls = [e for e in events if isinstance(e, refold.ToolCall)]
    names = {call.call_id: call.tool_name for call in calls}
    results = [e for e in events if isinstance(e, refold.ToolResult)]
    assert all(names[e.call_id] == e.tool_name for e in results)
    return {str(e.tool_name): e.content for e in results}


def test_calls_with_one_id_and_their_results_are_all_recorded(session: Session) -> None:
    session.append(refold.UserInput(text="Weather, and delete it."))

    session.append(ANSWER)
    session.append([result("sun"), result("deleted")])

    events = session.events()
    ids = {event.payload.call_id for event in events if event.type == "tool_call"}  # type: ignore[union-attr]  # a call
    assert pairs(session) == {"weather": "sun", "delete_file": "deleted"}
    assert len(ids) == 2
    assert [event.meta.call_id for event in events[2:]] == [None, "call_0"] * 2
    assert codes(events[3]) == ["call_id_repeated"]
    assert violations(session.context().messages) == []
    assert session.history.open_calls() == []
    assert session.verify().problems == []


def test_a_result_with_a_tool_name_goes_to_the_call_of_that_tool(
    session: Session,
) -> None:
    session.append(ANSWER)

    session.append(result("deleted", tool_name="delete_file"))
    session.append(result("sun", tool_name="weather"))

    assert pairs(session) == {"weather": "sun", "delete_file": "deleted"}


def test_a_result_answers_the_newest_answer_in_its_append(session: Session) -> None:
    session.append(
        [
            call("sleep"),
            refold.UserInput(text="Stop. Weather, and delete it."),
            *ANSWER,
            result("sun"),
            result("deleted"),
        ]
    )

    assert pairs(session) == {"weather": "sun", "delete_file": "deleted"}


def test_an_answer_may_use_the_id_of_an_earlier_call_that_is_open(
    session: Session,
) -> None:
    session.append([refold.AgentResponse(text="Wait."), call("sleep")])

    session.append(ANSWER)
    session.append([result("slept"), result("sun"), result("deleted")])

    assert pairs(session) == {
        "sleep": "slept", "weather": "sun", "delete_file": "deleted"
    }  # fmt: skip


def test_a_retry_of_calls_with_one_id_is_the_same_append(session: Session) -> None:
    first = session.append(ANSWER, idempotency_key="answer")
    results = [result("sun"), result("deleted")]
    done = session.append(results, idempotency_key="results")
    session.append(refold.UserInput(text="Thanks."))

    assert session.append(ANSWER, idempotency_key="answer").first_seq == first.first_seq
    again = session.append(results, idempotency_key="results")

    assert again == done._replace(duplicate=True)
    assert len(session.events()) == 6


def test_a_repeated_call_by_itself_is_refused(session: Session) -> None:
    session.append(call("weather"))

    with pytest.raises(refold.InvalidEvent, match="one call, one call_id"):
        session.append(call("weather"))


def test_a_third_result_of_two_calls_is_refused(session: Session) -> None:
    session.append(ANSWER)

    with pytest.raises(refold.InvalidEvent, match="no open call"):
        session.append([result("1"), result("2"), result("3")])


def test_a_fork_answers_the_calls_that_were_open(session: Session) -> None:
    session.append(ANSWER)
    fork = session.fork(3, session_id="fork")

    fork.append([result("sun"), result("deleted")])

    assert violations(fork.context().messages) == []
    assert not fork.head().state.open_calls


def test_a_call_id_of_any_length_finds_its_result(session: Session) -> None:
    name = "toolu_" + "x" * 5_000

    session.append([call("t", name), call("u", name), result("1", name)])
    session.append(result("2", name))

    events: Any = [event.payload for event in session.events()]
    assert pairs(session) == {"t": "1", "u": "2"}
    assert all(len(event.call_id) == LONGEST_ID for event in events)


@pytest.mark.parametrize("half", HALVES, ids=["leading", "trailing"])
def test_a_call_id_that_is_invalid_unicode_finds_its_result(
    session: Session, half: str
) -> None:
    session.append(call("t", f"call{half}"))

    session.append(result("done", f"call{half}"))

    assert pairs(session) == {"t": "done"}


@pytest.mark.parametrize(
    ("arguments", "recorded"),
    [
        ([1, {"a": 2}], '[1,{"a":2}]'),
        ([10**30], "[1000000000000000000000000000000]"),
        (7, "7"),
        (False, "false"),
        (None, {}),
        ("not { json", "not { json"),
    ],
)
def test_arguments_may_be_any_json(
    session: Session, arguments: Any, recorded: Any
) -> None:
    session.append(refold.UserInput(text="Go."))
    session.append(refold.ToolCall(call_id="c", tool_name="t", arguments=arguments))

    call: Any = session.events()[1].payload
    assert call.arguments == recorded
    assert violations(session.context().messages) == []
