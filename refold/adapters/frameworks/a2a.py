"""A2A: tasks between agents of other stores and processes, each delivered once.

A task is a session of the agent that is asked, and an open call of the one that asks.
What is taken and given is A2A 1.0 as JSON, whoever carries it.  What becomes of a task
is folded from its session's events.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, Final, TypeAlias

from refold.adapters.importers import base
from refold.domain import events as kinds
from refold.domain.canonical import canonical
from refold.domain.envelope import Envelope
from refold.domain.errors import InvalidEvent, SessionNotFound
from refold.store.history import uncut
from refold.store.session.session import Session
from refold.store.store import SessionStore

Json: TypeAlias = dict[str, Any]
_ABOUT: Final = "a2a"
_STATE: Final = "TASK_STATE_"
_ENDED: Final = {_STATE + x for x in ("COMPLETED", "FAILED", "CANCELED", "REJECTED")}


def receive(
    store: SessionStore,
    request: Mapping[str, Any],
    *,
    user_id: str,
    agent: str | None = None,
) -> Json:
    """Take a request of ``SendMessage``: begin a task, or go on with one; its ``Task``.

    The same message again changes nothing.  ``GetTask`` is ``task`` of the session of
    the task's name.

    Raises InvalidEvent for what is no message, or for a task that has ended,
    SessionNotFound for one that is not there.
    """
    message = base.mapping(request.get("message"))
    message_id, known = (base.text(message.get(f"{x}Id")) for x in ("message", "task"))
    if message_id is None:
        raise InvalidEvent("a message has a messageId, by which it is taken once")
    name = known or f"task-{sha256(message_id.encode()).hexdigest()[:32]}"
    session = store.session(user_id=user_id, session_id=name)
    context = message.get("contextId") or name
    if known:
        there = task(session)
        context = there["contextId"]
        if message_id in {one["messageId"] for one in there["history"]}:
            return there
        if there["status"]["state"] in _ENDED:
            raise InvalidEvent(f"the task {name!r} has ended: begin another")
    session.append(
        kinds.UserInput(text="\n\n".join(map(_said, base.each(message, "parts")))),
        agent=agent,
        meta={_ABOUT: {"messageId": message_id, "contextId": context}},
        idempotency_key=f"{_ABOUT}:{message_id}",
    )
    return task(session)


def task(session: Session) -> Json:
    """What the session of a task is in A2A: its state, history and artifact.

    It is done when it has a ``final``, and waits for an answer while a question to a
    human is not decided.  Raises SessionNotFound for a session that is no task.
    """
    events = session.events()
    about = _about(events[0])
    if not about:
        raise SessionNotFound(session.user_id, session.session_id)
    state, history, artifacts = "SUBMITTED", list[Json](), list[Json]()
    for one in events:
        match one.payload:
            case kinds.UserInput(text=text):
                state = "SUBMITTED" if one is events[0] else "WORKING"
                name = _about(one).get("messageId", str(one.event_id))
                history.append(_message(name, "USER", text))
            case kinds.HumanReview(decision=None, question=question):
                state = "INPUT_REQUIRED"
                history.append(_message(str(one.event_id), "AGENT", question))
            case kinds.AgentResponse(text=text):
                state = "WORKING"
                history.append(_message(str(one.event_id), "AGENT", text))
            case kinds.Final(outcome=outcome, result=result):
                state = "FAILED" if outcome == "failure" else "COMPLETED"
                text = uncut(session.writer.log, one, kinds.Final).text
                parts = [{"text": text}] + [{"data": result}] * (result is not None)
                artifacts = [{"artifactId": str(one.event_id), "parts": parts}]
            case kinds.HumanReview() | kinds.ToolCall() | kinds.ToolResult():
                state = "WORKING"
    status: Json = {"state": _STATE + state, "timestamp": events[-1].ts.isoformat()}
    if state == "INPUT_REQUIRED":
        status["message"] = history[-1]
    made = {"id": session.session_id, "contextId": about["contextId"], "status": status}
    return {**made, "history": history, "artifacts": artifacts}


def deliver(
    session: Session,
    call_id: str,
    send: Callable[[Json], Mapping[str, Any]],
    *,
    answer: str | None = None,
) -> Json:
    """Have another agent do an open call; append its result once the task is done.

    Call it again, after a kill too, until the ``Task`` has ended: the other side takes
    the message once, and the result is appended once.

    send:   carries a request of ``SendMessage`` there, and gives the response, or Task.
    answer: what the agent asked for, if the task's state is INPUT_REQUIRED.

    Raises InvalidEvent without such a call, or for an answer that is no Task, and what
    ``send`` raises.
    """
    log, name = session.writer.log, session.writer.recorded_id(session.user_id, call_id)
    calls = log.read(session.stream, types=("tool_call",))
    found = (one for one in calls if one.payload.payload()["call_id"] == name)
    if (call := next(found, None)) is None:
        raise InvalidEvent(f"session {session.session_id!r} has no call {call_id!r}")
    whole, key = uncut(log, call, kinds.ToolCall), str(call.event_id)
    arguments: Any = whole.arguments
    if isinstance(arguments, dict):
        arguments = session.vault.reveal(arguments, tool=whole.tool_name)
    text = base.text(base.mapping(arguments).get("task"))
    text = text or canonical(arguments).decode()
    context = {"contextId": str(session.events(limit=1)[0].event_id)}
    done = _sent(send, {**_message(key, "USER", text), **context})
    if answer is not None and _state(done) == f"{_STATE}INPUT_REQUIRED":
        asked = sha256(canonical([done["status"], answer])).hexdigest()[:32]
        message = _message(f"{key}-{asked}", "USER", answer)
        done = _sent(send, {**message, **context, "taskId": done["id"]})
    if (state := _state(done)) in _ENDED:
        artifacts = base.each(done, "artifacts")
        parts = (part for one in artifacts for part in base.each(one, "parts"))
        content = "\n\n".join(map(_said, parts)) or state.removeprefix(_STATE).lower()
        session.append(
            kinds.ToolResult(
                call_id=call_id,
                content=content,
                status="ok" if state == f"{_STATE}COMPLETED" else "error",
                untrusted=True,
            ),
            agent=call.agent,
            meta={_ABOUT: {"taskId": done["id"], **context}},
            idempotency_key=f"{_ABOUT}:{key}",
        )
    return done


def tool_definition(card: Mapping[str, Any]) -> Json:
    """An agent, as its card describes it, as a tool of the Messages API."""
    skills = base.each(card, "skills")
    told = [f"{one.get('name')}: {one.get('description', '')}" for one in skills]
    about = "All that the agent must know: it sees nothing else."
    task = {"type": "string", "description": about}
    return {
        "name": re.sub("[^a-zA-Z0-9_-]+", "_", str(card.get("name")))[:64],
        "description": "\n".join([str(card.get("description") or ""), *told]),
        "input_schema": {
            "type": "object",
            "properties": {"task": task},
            "required": ["task"],
        },
    }


def _sent(send: Callable[[Json], Mapping[str, Any]], message: Json) -> Json:
    told = base.mapping(send({"message": message}))
    done = base.mapping(told.get("task")) or told
    if base.text(done.get("id")) is None:
        raise InvalidEvent("the other agent's answer is no Task")
    return done


def _state(done: Json) -> str:
    return str(base.mapping(done.get("status")).get("state"))


def _about(one: Envelope) -> Json:
    return base.mapping((one.meta.model_extra or {}).get(_ABOUT))


def _message(name: str, role: str, text: str) -> Json:
    return {"messageId": name, "role": f"ROLE_{role}", "parts": [{"text": text}]}


def _said(part: Mapping[str, Any]) -> str:
    """A part as a text: data, and files by their address, as JSON."""
    return str(part["text"]) if "text" in part else canonical(dict(part)).decode()
