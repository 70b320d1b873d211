"""What fails in a step is in the log: where, why, and no call is left open."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

import refold
from refold.store import Session

CALL = refold.ToolCall(call_id="c1", tool_name="bash", arguments={"command": "make"})


class Broken(Exception):
    """What a step of an agent raises."""


def last(session: Session) -> Any:
    return session.events()[-1].payload


def failing(session: Session, error: Exception, **how: Any) -> Any:
    with pytest.raises(type(error)), session.attempt("parse the plan", **how):
        raise error
    return last(session)


def test_a_failure_is_an_event_with_its_place(anywhere: Session) -> None:
    anywhere.append(refold.UserInput(text="go"))

    event = failing(anywhere, Broken("line 3: no plan"))

    assert isinstance(event, refold.AgentError)
    assert (event.code, event.message) == ("Broken", "line 3: no plan")
    assert event.where is not None
    assert event.where.startswith("parse the plan (tests.store.test_attempts.failing")
    assert event.context == {"after_seq": 1, "upto_seq": 1}


def test_a_failure_begins_a_session_if_it_must(anywhere: Session) -> None:
    assert failing(anywhere, Broken()).context == {"after_seq": 0, "upto_seq": 0}


class Busy(Exception):
    """What an SDK raises for an answer that is none."""

    def __init__(self, status: int) -> None:
        self.response = SimpleNamespace(status_code=status)


class RateLimitError(Exception):
    """As a client names what it raises if it is not let in."""


@pytest.mark.parametrize(
    "error", [TimeoutError(), ConnectionResetError(), RateLimitError(), Busy(529)]
)
def test_failed_attempts_are_in_the_log_and_in_no_context(
    anywhere: Session, error: Exception
) -> None:
    anywhere.append(refold.UserInput(text="go"))
    before = anywhere.context().digest

    for _ in range(3):
        event = failing(anywhere, error)

    assert (event.retryable, event.is_transport) == (True, True)
    assert len(anywhere.events()) == 4
    assert anywhere.context().digest == before


@pytest.mark.parametrize(
    ("code", "answered"),
    [("429", False), ("http_529", False), ("HTTP 503", False), ("400", True)],
)
def test_a_code_that_is_a_status_says_whether_a_model_answered(
    session: Session, code: str, *, answered: bool
) -> None:
    session.append([refold.UserInput(text="go"), refold.AgentError(code=code)])

    assert ("<error" in str(session.context().messages)) == answered


@pytest.mark.parametrize("error", [Busy(400), Broken("no plan"), Busy(404)])
def test_a_failure_that_content_may_have_caused_is_shown_to_the_model(
    anywhere: Session, error: Exception
) -> None:
    anywhere.append(refold.UserInput(text="go"))

    event = failing(anywhere, error, retryable=True)

    assert not event.is_transport
    assert event.code in str(anywhere.context().messages)


def test_a_successful_attempt_writes_no_failure(anywhere: Session) -> None:
    with anywhere.attempt("say hello"):
        anywhere.append(refold.UserInput(text="hello"))

    assert len(anywhere.events()) == 1


def test_calls_of_the_step_are_closed_and_no_others(anywhere: Session) -> None:
    anywhere.append(CALL.model_copy(update={"call_id": "before"}))

    def build() -> None:
        with anywhere.attempt("build"):
            anywhere.append(CALL)
            raise Broken

    with pytest.raises(Broken):
        build()

    closed, error = (event.payload for event in anywhere.events()[-2:])
    assert isinstance(closed, refold.ToolResult)
    assert (closed.call_id, closed.status) == ("c1", "unknown")
    assert isinstance(error, refold.AgentError)
    assert error.context == {"after_seq": 1, "upto_seq": 2, "open_calls": ["c1"]}
    assert [*anywhere.head().state.open_calls] == ["before"]


def test_the_text_of_a_failure_is_redacted_and_bounded(anywhere: Session) -> None:
    event = failing(
        anywhere, Broken("no mail to lin.wei@mail.example.org " + "x" * 9999)
    )

    assert "lin.wei" not in event.message
    assert "[REDACTED:EMAIL]" in event.message
    assert len(event.message) < 2_100


@pytest.mark.parametrize("message", ["half \ud800 of a pair", "\x00", ""])
def test_any_message_can_be_recorded(anywhere: Session, message: str) -> None:
    assert failing(anywhere, Broken(message)).code == "Broken"


@pytest.mark.parametrize(
    ("error", "declared", "expected"),
    [
        (TimeoutError(), None, True),
        (ConnectionResetError(), None, True),
        (Broken(), None, False),
        (Broken(), True, True),
        (TimeoutError(), False, False),
    ],
)
def test_whether_it_may_pass(
    anywhere: Session, error: Exception, declared: bool | None, expected: bool
) -> None:
    assert failing(anywhere, error, retryable=declared).retryable is expected


def test_the_cause_is_named(anywhere: Session) -> None:
    with pytest.raises(Broken), anywhere.attempt("read"):
        raise Broken from KeyError("secret")

    assert last(anywhere).context["cause"] == "KeyError"


def test_an_interrupted_attempt_is_no_failure(anywhere: Session) -> None:
    anywhere.append(refold.UserInput(text="go"))

    with pytest.raises(KeyboardInterrupt), anywhere.attempt("wait"):
        raise KeyboardInterrupt

    assert len(anywhere.events()) == 1


def test_a_failure_that_cannot_be_recorded_says_so(anywhere: Session) -> None:
    anywhere.append(refold.UserInput(text="go"))
    anywhere.end()

    with pytest.raises(Broken) as raised, anywhere.attempt("go on"):
        raise Broken

    assert "could not record this failure" in raised.value.__notes__[0]


def test_it_works_in_asyncio(anywhere: Session) -> None:
    async def step() -> None:
        async with anywhere.attempt("ask", request_id="r-7", agent="planner"):
            raise Broken

    with pytest.raises(Broken):
        asyncio.run(step())

    (event,) = anywhere.events()
    assert (event.type, event.request_id, event.agent) == ("error", "r-7", "planner")


def test_others_may_append_during_an_attempt(anywhere: Session) -> None:
    anywhere.append(CALL)

    def work() -> None:
        with anywhere.attempt("work"):
            anywhere.append(CALL.model_copy(update={"call_id": "c2"}))
            anywhere.append(refold.ToolResult(call_id="c2", content="done"))
            raise Broken

    with pytest.raises(Broken):
        work()

    assert [*anywhere.head().state.open_calls] == ["c1"]
