"""Sessions of sub-agents: begin one, find its parent, hand its result over."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Generic, Literal, NamedTuple, TypeVar

from refold.domain import errors
from refold.domain.events import (
    AgentResponse,
    Event,
    Final as FinalEvent,
    ToolResult,
    UserInput,
)
from refold.domain.ids import check_session_id
from refold.projections.context.text import tagged
from refold.store.appends import Receipt
from refold.store.session.core import SessionCore
from refold.store.session.forking import pass_labels
from refold.store.session.part import SessionPart

# The newest of these events decides whether there is a result.  After a tool call, the
# agent has not answered yet.
_RESULT_TYPES = ("final", "agent_response", "tool_call")


S = TypeVar("S", bound=SessionCore)


class Parent(NamedTuple):
    """The session that delegated a task, and its head seq at that time."""

    session_id: str
    seq: int


@dataclass(frozen=True, slots=True)
class Delegation(SessionPart, Generic[S]):
    """Delegate a task to a sub-agent's session, and return its result."""

    session: S

    def begin(self, task: str, *, session_id: str, agent: str | None = None) -> S:
        """Begin a session of the same user for a sub-agent, with ``task`` as its input.

        The new session has the labels of this one, but not its history.  So the task
        must say what the sub-agent has to know.  ``meta.parent`` of its first event
        names this session and its head.

        Raises SessionNotFound, StaleSession if the new session exists already.
        """
        head = self.session.head()
        meta = {"parent": {"session_id": self.session_id, "seq": head.seq}}
        check_session_id(session_id)
        stream = self.stream._replace(session_id=session_id)
        child = replace(self.session, stream=stream)
        child.append(UserInput(text=task), agent=agent, meta=meta, expected_seq=0)
        return pass_labels(self.session, child)

    def parent(self) -> Parent | None:
        """Return the session that delegated this one; None if none did."""
        first = self.session.events(limit=1)[0]
        link = (first.meta.model_extra or {}).get("parent")
        if not isinstance(link, dict):
            return None
        return Parent(str(link["session_id"]), int(link["seq"]))

    def hand_over(
        self, *, to: SessionCore, call_id: str | None = None, agent: str | None = None
    ) -> Receipt:
        """Append the sub-agent's result to the session that delegated it, once.

        The result is the session's ``final``, else its last answer.  It is appended as
        the result of the call ``call_id``, else as a user input.  ``meta.source`` names
        this session and the event.  Calling this again appends nothing.

        Raises InvalidEvent if this session was not delegated, if it has no result yet,
        or if the call is not open; SessionNotFound for a session of another user.
        """
        if to.user_id != self.user_id:
            raise errors.SessionNotFound(self.user_id, to.session_id)
        if self.parent() is None:
            raise errors.InvalidEvent(f"session {self.session_id!r} was not delegated")
        seq, result = self._result(call_id)
        return to.append(
            result,
            agent=agent,
            meta={"source": {"session_id": self.session_id, "seq": seq}},
            idempotency_key=f"handed-over:{self.session_id}:{seq}",
        )

    def _result(self, call_id: str | None) -> tuple[int, Event]:
        """Return the seq of the result, and the event for the other session."""
        log = self.writer.log
        newest = log.read(self.stream, types=_RESULT_TYPES, limit=1, newest=True)
        last_event = newest[0].payload if newest else None
        if isinstance(last_event, FinalEvent):
            text = last_event.text
            outcome = last_event.outcome
        elif isinstance(last_event, AgentResponse) and last_event.text.strip():
            text = last_event.text
            outcome = "unknown"
        else:
            why = f"session {self.session_id!r} has no result yet"
            raise errors.InvalidEvent(why)
        seq = newest[0].seq
        if call_id is None:
            text = tagged(
                "agent_result", text, session=self.session_id, outcome=outcome
            )
            return seq, UserInput(text=text)
        status: Literal["ok", "error"] = "error" if outcome == "failure" else "ok"
        return seq, ToolResult(call_id=call_id, content=text, status=status)
