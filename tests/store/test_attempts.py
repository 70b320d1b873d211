"""A failed step is recorded with its place and cause, and leaves no call open."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

import refold
from refold.store import Session

CALL = refold.ToolCall(call_id="c1", tool_name="bash", arguments={"command": "make"})


class StepFailed(Exception):
    """The exception of an agent's step."""


def last_payload(session: Session) -> Any:
    return session.events()[-1].payload


def fail_attempt(session: Session, error: Exception, **how: Any) -> Any:
    with pytest.raises(type(error)), session.attempt("parse the plan", **how):
        raise error
    return last_payload(session)


def test_a_failure_is_an_event_with_its_place(empty_session: Session) -> None:
    empty_session.append(refold.UserInput(text="go"))

    event = fail_attempt(empty_session, StepFailed("line 3: no plan"))

    assert isinstance(event, refold.AgentError)
    assert (event.code, event.message) == ("StepFailed", "line 3: no plan")
    assert event.where is not None
    assert event.where.startswith(
        "parse the plan (tests.store.test_attempts.fail_attempt"
    )
    assert event.context == {"after_seq": 1, "upto_seq": 1}


def test_a_failure_can_be_the_first_event_of_a_session(empty_session: Session) -> None:
    assert fail_attempt(empty_session, StepFailed()).context == {
        "after_seq": 0,
        "upto_seq": 0,
    }


class Busy(Exception):
    """The exception of an SDK for an error status."""

    def __init__(self, status: int) -> None:
        self.response = SimpleNamespace(status_code=status)


class RateLimitError(Exception):
    """A client's exception for a refused request, recognized by its name."""


@pytest.mark.parametrize(
    "error", [TimeoutError(), ConnectionResetError(), RateLimitError(), Busy(529)]
)
def test_failed_attempts_are_in_the_log_and_in_no_context(
    empty_session: Session, error: Exception
) -> None:
    empty_session.append(refold.UserInput(text="go"))
    before = empty_session.context().digest

    for _ in range(3):
        event = fail_attempt(empty_session, error)

    assert (event.retryable, event.is_transport) == (True, True)
    assert len(empty_session.events()) == 4
    assert empty_session.context().digest == before


@pytest.mark.parametrize(
    ("code", "answered"),
    [("429", False), ("http_529", False), ("HTTP 503", False), ("400", True)],
)
def test_a_status_code_says_whether_a_model_answered(
    session: Session, code: str, *, answered: bool
) -> None:
    session.append([refold.UserInput(text="go"), refold.AgentError(code=code)])

    assert ("<error" in str(session.context().messages)) == answered


@pytest.mark.parametrize("error", [Busy(400), StepFailed("no plan"), Busy(404)])
def test_the_model_sees_a_failure_that_content_may_have_caused(
    empty_session: Session, error: Exception
) -> None:
    empty_session.append(refold.UserInput(text="go"))

    event = fail_attempt(empty_session, error, retryable=True)

    assert not event.is_transport
    assert event.code in str(empty_session.context().messages)


def test_a_successful_attempt_writes_no_failure(empty_session: Session) -> None:
    with empty_session.attempt("say hello"):
        empty_session.append(refold.UserInput(text="hello"))

    assert len(empty_session.events()) == 1


def test_only_calls_of_the_failed_step_are_closed(empty_session: Session) -> None:
    empty_session.append(CALL.model_copy(update={"call_id": "before"}))

    def build() -> None:
        with empty_session.attempt("build"):
            empty_session.append(CALL)
            raise StepFailed

    with pytest.raises(StepFailed):
        build()

    closed, error = (event.payload for event in empty_session.events()[-2:])
    assert isinstance(closed, refold.ToolResult)
    assert (closed.call_id, closed.status) == ("c1", "unknown")
    assert isinstance(error, refold.AgentError)
    assert error.context == {"after_seq": 1, "upto_seq": 2, "open_calls": ["c1"]}
    assert [*empty_session.head().state.open_calls] == ["before"]


def test_the_text_of_a_failure_is_redacted_and_bounded(empty_session: Session) -> None:
    event = fail_attempt(
        empty_session, StepFailed("no mail to lin.wei@mail.example.org " + "x" * 9999)
    )

    assert "lin.wei" not in event.message
    assert "[REDACTED:EMAIL]" in event.message
    assert len(event.message) < 2_100


@pytest.mark.parametrize("message", ["half \ud800 of a pair", "\x00", ""])
def test_any_error_message_can_be_recorded(
    empty_session: Session, message: str
) -> None:
    assert fail_attempt(empty_session, StepFailed(message)).code == "StepFailed"


@pytest.mark.parametrize(
    ("error", "declared", "expected"),
    [
        (TimeoutError(), None, True),
        (ConnectionResetError(), None, True),
        (StepFailed(), None, False),
        (StepFailed(), True, True),
        (TimeoutError(), False, False),
    ],
)
def test_transient_errors_are_marked_as_retryable(
    empty_session: Session, error: Exception, declared: bool | None, expected: bool
) -> None:
    assert fail_attempt(empty_session, error, retryable=declared).retryable is expected


def test_the_cause_is_recorded(empty_session: Session) -> None:
    with pytest.raises(StepFailed), empty_session.attempt("read"):
        raise StepFailed from KeyError("secret")

    assert last_payload(empty_session).context["cause"] == "KeyError"


def test_an_interrupted_attempt_is_no_failure(empty_session: Session) -> None:
    empty_session.append(refold.UserInput(text="go"))

    with pytest.raises(KeyboardInterrupt), empty_session.attempt("wait"):
        raise KeyboardInterrupt

    assert len(empty_session.events()) == 1


def test_a_failure_that_cannot_be_recorded_is_reported(empty_session: Session) -> None:
    empty_session.append(refold.UserInput(text="go"))
    empty_session.end()

    with pytest.raises(StepFailed) as raised, empty_session.attempt("go on"):
        raise StepFailed

    assert "could not record this failure" in raised.value.__notes__[0]


def test_attempts_work_in_asyncio(empty_session: Session) -> None:
    async def step() -> None:
        async with empty_session.attempt("ask", request_id="r-7", agent="planner"):
            raise StepFailed

    with pytest.raises(StepFailed):
        asyncio.run(step())

    (event,) = empty_session.events()
    assert (event.type, event.request_id, event.agent) == ("error", "r-7", "planner")


def test_other_appends_succeed_during_an_attempt(empty_session: Session) -> None:
    empty_session.append(CALL)

    def work() -> None:
        with empty_session.attempt("work"):
            empty_session.append(CALL.model_copy(update={"call_id": "c2"}))
            empty_session.append(refold.ToolResult(call_id="c2", content="done"))
            raise StepFailed

    with pytest.raises(StepFailed):
        work()

    assert [*empty_session.head().state.open_calls] == ["c1"]
