"""A2A: tasks for agents of other stores and processes, each delivered once.

A task is a session of the agent that does it, and an open call of the agent that
delegates it.  Requests and tasks are A2A 1.0 as JSON; any transport may carry them.
The state of a task is folded from the events of its session.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from typing import Any, Final, TypeAlias

from refold.adapters.importers import base
from refold.domain import events as kinds
from refold.domain.canonical import canonical
from refold.domain.envelope import Envelope
from refold.domain.errors import InvalidEvent, SessionNotFound
from refold.store.history import with_whole_texts
from refold.store.session.session import Session
from refold.store.store import SessionStore

Json: TypeAlias = dict[str, Any]
_META: Final = "a2a"  # the key in an event's meta
_STATE: Final = "TASK_STATE_"
_INPUT_REQUIRED: Final = "TASK_STATE_INPUT_REQUIRED"
_COMPLETED: Final = "TASK_STATE_COMPLETED"
_ENDED: Final = frozenset(
    {
        _COMPLETED,
        "TASK_STATE_FAILED",
        "TASK_STATE_CANCELED",
        "TASK_STATE_REJECTED",
    }
)


def receive(
    store: SessionStore,
    request: Mapping[str, Any],
    *,
    user_id: str,
    agent: str | None = None,
) -> Json:
    """Handle a ``SendMessage`` request: begin or continue a task, and return it.

    The same message again changes nothing.  For ``GetTask``, call ``task`` with the
    session that has the task's id.

    Raises InvalidEvent if the request has no valid message or its task has ended, and
    SessionNotFound if its task does not exist.
    """
    message = base.mapping(request.get("message"))
    message_id = base.text(message.get("messageId"))
    task_id = base.text(message.get("taskId"))
    if message_id is None:
        raise InvalidEvent("a message needs a messageId, so that it is taken once")

    session_id = task_id or f"task-{sha256(message_id.encode()).hexdigest()[:32]}"
    session = store.session(user_id=user_id, session_id=session_id)
    context_id = message.get("contextId") or session_id
    if task_id:
        current = task(session)
        context_id = current["contextId"]
        received = {earlier["messageId"] for earlier in current["history"]}
        if message_id in received:
            return current
        if current["status"]["state"] in _ENDED:
            raise InvalidEvent(f"the task {session_id!r} has ended: begin another")
    session.append(
        kinds.UserInput(text=_joined(base.each(message, "parts"))),
        agent=agent,
        meta={_META: {"messageId": message_id, "contextId": context_id}},
        idempotency_key=f"{_META}:{message_id}",
    )
    return task(session)


def task(session: Session) -> Json:
    """Return a task's session as an A2A ``Task``: its state, history and artifact.

    The task has ended when the session has a ``final``.  It requires input while a
    question to a human is undecided.

    Raises SessionNotFound for a session that is no task.
    """
    events = session.events()
    meta = _meta(events[0])
    if not meta:
        raise SessionNotFound(session.user_id, session.session_id)
    state = "SUBMITTED"
    history: list[Json] = []
    artifacts: list[Json] = []
    for event in events:
        event_id = str(event.event_id)
        match event.payload:
            case kinds.UserInput(text=text):
                state = "SUBMITTED" if event is events[0] else "WORKING"
                message_id = _meta(event).get("messageId", event_id)
                history.append(_message(message_id, "USER", text))
            case kinds.HumanReview(decision=None, question=question):
                state = "INPUT_REQUIRED"
                history.append(_message(event_id, "AGENT", question))
            case kinds.AgentResponse(text=text):
                state = "WORKING"
                history.append(_message(event_id, "AGENT", text))
            case kinds.Final(outcome=outcome, result=result):
                state = "FAILED" if outcome == "failure" else "COMPLETED"
                whole = with_whole_texts(session.writer.log, event, kinds.Final)
                parts: list[Json] = [{"text": whole.text}]
                if result is not None:
                    parts.append({"data": result})
                artifacts = [{"artifactId": event_id, "parts": parts}]
            case kinds.HumanReview() | kinds.ToolCall() | kinds.ToolResult():
                state = "WORKING"
    status: Json = {"state": _STATE + state, "timestamp": events[-1].ts.isoformat()}
    if status["state"] == _INPUT_REQUIRED:
        status["message"] = history[-1]
    return {
        "id": session.session_id,
        "contextId": meta["contextId"],
        "status": status,
        "history": history,
        "artifacts": artifacts,
    }


def deliver(
    session: Session,
    call_id: str,
    send: Callable[[Json], Mapping[str, Any]],
    *,
    answer: str | None = None,
) -> Json:
    """Delegate an open call to another agent; append the result of the ended task.

    Call it again, also after a crash, until the returned ``Task`` has ended.  The other
    agent takes the message once, and the result is appended once.

    send:   sends a ``SendMessage`` request, and returns the response or its Task.
    answer: the reply for a task whose state is INPUT_REQUIRED.

    Raises InvalidEvent if the session has no such call or the response has no Task.
    Errors of ``send`` are passed on.
    """
    call = _recorded_call(session, call_id)
    message_id = str(call.event_id)
    context = {"contextId": str(session.events(limit=1)[0].event_id)}
    request = {**_message(message_id, "USER", _instructions(session, call)), **context}
    remote_task = _send(send, request)

    if answer is not None and _state(remote_task) == _INPUT_REQUIRED:
        question_and_answer = canonical([remote_task["status"], answer])
        digest = sha256(question_and_answer).hexdigest()[:32]
        reply = _message(f"{message_id}-{digest}", "USER", answer)
        remote_task = _send(send, {**reply, **context, "taskId": remote_task["id"]})

    state = _state(remote_task)
    if state in _ENDED:
        session.append(
            kinds.ToolResult(
                call_id=call_id,
                content=_result(remote_task) or state.removeprefix(_STATE).lower(),
                status="ok" if state == _COMPLETED else "error",
                untrusted=True,
            ),
            agent=call.agent,
            meta={_META: {"taskId": remote_task["id"], **context}},
            idempotency_key=f"{_META}:{message_id}",
        )
    return remote_task


def tool_definition(card: Mapping[str, Any]) -> Json:
    """Return the tool of the Messages API for an agent that an agent card describes."""
    lines = [str(card.get("description") or "")]
    for skill in base.each(card, "skills"):
        lines.append(f"{skill.get('name')}: {skill.get('description', '')}")
    task_description = "Everything that the agent must know: it sees nothing else."
    return {
        "name": re.sub("[^a-zA-Z0-9_-]+", "_", str(card.get("name")))[:64],
        "description": "\n".join(lines),
        "input_schema": {
            "type": "object",
            "properties": {"task": {"type": "string", "description": task_description}},
            "required": ["task"],
        },
    }


def _recorded_call(session: Session, call_id: str) -> Envelope:
    """The event of a call.  Raises InvalidEvent if there is none."""
    recorded_id = session.writer.recorded_id(session.user_id, call_id)
    for event in session.writer.log.read(session.stream, types=("tool_call",)):
        if event.payload.payload()["call_id"] == recorded_id:
            return event
    raise InvalidEvent(f"session {session.session_id!r} has no call {call_id!r}")


def _instructions(session: Session, call: Envelope) -> str:
    """The text for the other agent: the argument ``task``, or all arguments as JSON.

    Redacted values in them are revealed if the vault allows it for the tool.
    """
    whole = with_whole_texts(session.writer.log, call, kinds.ToolCall)
    arguments: Any = whole.arguments
    if isinstance(arguments, dict):
        arguments = session.vault.reveal(arguments, tool=whole.tool_name)
    text = base.text(base.mapping(arguments).get("task"))
    return text or canonical(arguments).decode()


def _send(send: Callable[[Json], Mapping[str, Any]], message: Json) -> Json:
    """Send a message and return the Task in the response.

    Raises InvalidEvent if it has none.
    """
    response = base.mapping(send({"message": message}))
    received = base.mapping(response.get("task")) or response
    if base.text(received.get("id")) is None:
        raise InvalidEvent("the other agent's answer is no Task")
    return received


def _result(task: Json) -> str:
    """The texts of all artifacts of a task."""
    parts: list[Mapping[str, Any]] = []
    for artifact in base.each(task, "artifacts"):
        parts += base.each(artifact, "parts")
    return _joined(parts)


def _joined(parts: Iterable[Mapping[str, Any]]) -> str:
    return "\n\n".join(_text_of(part) for part in parts)


def _text_of(part: Mapping[str, Any]) -> str:
    """A part as a text; data and the address of a file are written as JSON."""
    if "text" in part:
        return str(part["text"])
    return canonical(dict(part)).decode()


def _state(received: Json) -> str:
    return str(base.mapping(received.get("status")).get("state"))


def _meta(event: Envelope) -> Json:
    """Return the part of an event's meta that describes its task; else empty."""
    return base.mapping((event.meta.model_extra or {}).get(_META))


def _message(message_id: str, role: str, text: str) -> Json:
    return {"messageId": message_id, "role": f"ROLE_{role}", "parts": [{"text": text}]}
