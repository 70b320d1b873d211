"""Agents with a session each: a task goes down, and a result comes back, as events."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from refold.domain.errors import InvalidEvent, SessionNotFound
from refold.domain.events import (
    AgentResponse,
    Event,
    Final as FinalEvent,
    ToolResult,
    UserInput,
)
from refold.domain.ids import check_session_id
from refold.projections.context.tags import tagged
from refold.store.sessions import Session
from refold.store.writing import Receipt

_ENDS: Final = ("final", "agent_response", "tool_call")


class Parent(NamedTuple):
    """The session that another was delegated from, and its head then."""

    session_id: str
    seq: int


class _Result(NamedTuple):
    seq: int
    text: str
    outcome: str


def delegate(
    session: Session, session_id: str, task: str, *, agent: str | None = None
) -> Session:
    """Begin a session of the same user for a sub-agent, with ``task`` as its input.

    It shares no history: what the sub-agent is to know is in the task.  Its first
    event names the session it came from, and the seq, in ``meta.parent``.

    Raises SessionNotFound, StaleSession if the new session exists already.
    """
    link = {"session_id": session.session_id, "seq": session.head().seq}
    check_session_id(session_id)
    child = replace(session, stream=session.stream._replace(session_id=session_id))
    child.append(
        UserInput(text=task), agent=agent, meta={"parent": link}, expected_seq=0
    )
    return child


def parent_of(session: Session) -> Parent | None:
    """Where the session was delegated from; None if it was not."""
    first = session.events(limit=1)[0]
    link = (first.meta.model_extra or {}).get("parent")
    if not isinstance(link, dict):
        return None
    return Parent(str(link["session_id"]), int(link["seq"]))


def hand_over(
    child: Session,
    *,
    to: Session,
    call_id: str | None = None,
    agent: str | None = None,
) -> Receipt:
    """Give the sub-agent's result to the session it came from, once.

    The result is its ``final``, else its last answer, and becomes the result of the
    call ``call_id``, or an input.  ``meta.source`` says which session and event it is
    of.  Handed over again, nothing is added.

    Raises InvalidEvent if it was not delegated, has no result yet, or no such call is
    open; SessionNotFound for a session of another user.
    """
    if to.user_id != child.user_id:
        raise SessionNotFound(child.user_id, to.session_id)
    if parent_of(child) is None:
        raise InvalidEvent(f"session {child.session_id!r} was not delegated")
    result = _result_of(child)
    source = {"session_id": child.session_id, "seq": result.seq}
    return to.append(
        _given(child, result, call_id),
        agent=agent,
        meta={"source": source},
        idempotency_key=f"handed-over:{child.session_id}:{result.seq}",
    )


def _result_of(child: Session) -> _Result:
    found = child.writer.log.read(child.stream, types=_ENDS, limit=1, newest=True)
    match found[0].payload if found else None:
        case FinalEvent(text=text, outcome=outcome):
            return _Result(found[0].seq, text, outcome)
        case AgentResponse(text=text) if text.strip():
            return _Result(found[0].seq, text, "unknown")
        case _:
            raise InvalidEvent(f"session {child.session_id!r} has no result yet")


def _given(child: Session, result: _Result, call_id: str | None) -> Event:
    if call_id is not None:
        status = "error" if result.outcome == "failure" else "ok"
        return ToolResult(call_id=call_id, content=result.text, status=status)
    about = {"session": child.session_id, "outcome": result.outcome}
    return UserInput(text=tagged("agent_result", result.text, **about))
