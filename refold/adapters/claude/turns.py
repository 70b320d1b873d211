"""Messages of the Messages API, as callers write them, as events of a session."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from refold.adapters.claude.answers import plain
from refold.adapters.importers import blocks
from refold.adapters.importers.base import Found, Piece
from refold.domain.errors import InvalidEvent
from refold.domain.events import (
    AgentResponse,
    Event,
    ToolCall,
    ToolResult,
    UserInput,
    event_of,
)
from refold.domain.record import Draft
from refold.store.sessions import Session

_SAID: Final = ("user_input", "agent_response", "tool_call", "tool_result")
_NEWEST: Final = 50
_ADDED: Final = frozenset({"cache_control", "caller", "parsed_output"})
Key = tuple[str, ...]


class News(NamedTuple):
    """What of some messages a session does not hold yet.

    ``differs``: they do not hold what the session ends with.
    """

    events: list[Event]
    differs: bool = False


def events_of_user(content: Any) -> list[Event]:
    """What a user brings: a text, blocks of a user's message, or events.

    Raises InvalidEvent for a block that cannot be told.
    """
    if content is None:
        return []
    given = [content] if isinstance(content, Event) else content
    if not isinstance(given, str) and all(isinstance(one, Event) for one in given):
        return list(given)
    return _events(blocks.user(plain(given)))


def news(session: Session, messages: Sequence[Mapping[str, Any]]) -> News:
    """What of ``messages``, a whole conversation, comes after the session's end.

    The newest piece of the session is looked for in them, from their end.  If it is
    not there, what comes after the last answer in them is taken for new.

    Raises InvalidEvent for a message that cannot be told.
    """
    last = _newest(session)
    if last is None:
        return News([event for message in messages for event in _of(message)])
    new: list[Event] = []
    since_answer: list[Event] | None = None
    for message in reversed(messages):
        events = _of(message)
        if message.get("role") == "assistant" and since_answer is None:
            since_answer = list(new)
        for index in range(len(events) - 1, -1, -1):
            if _key(_as_recorded(session, events[index])) == last:
                return News([*events[index + 1 :], *new])
        new = [*events, *new]
    return News(new if since_answer is None else since_answer, differs=True)


def normal(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages as a view has them: in blocks, without what the SDK and a cache add."""
    return [
        {"role": message["role"], "content": _in_blocks(message["content"])}
        for message in plain(list(messages))
    ]


def _in_blocks(content: Any) -> list[Any]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [
        {
            key: value
            for key, value in block.items()
            if key not in _ADDED and value is not None
        }
        for block in content
    ]


def _of(message: Mapping[str, Any]) -> list[Event]:
    content = plain(message.get("content"))
    if message.get("role") == "assistant":
        return _events(blocks.agent(content))
    if message.get("role") == "user":
        return _events(blocks.user(content))
    raise InvalidEvent("a message must be of the user or of the assistant")


def _events(found: Iterable[Found]) -> list[Event]:
    events: list[Event] = []
    for piece in found:
        if not isinstance(piece, Piece):
            raise InvalidEvent(f"a message cannot be recorded: {piece.why}")
        events.append(event_of(piece.type, piece.fields))
    return events


def _newest(session: Session) -> Key | None:
    """The key of the newest event that messages would hold too."""
    found = session.writer.log.read(
        session.stream, types=_SAID, limit=_NEWEST, newest=True
    )
    keys = (_key(envelope.payload) for envelope in reversed(found))
    return next((key for key in keys if key is not None), None)


def _as_recorded(session: Session, event: Event) -> Event:
    """The event as it would be in the log: redacted."""
    writer = session.writer
    now = writer.clock()
    return writer.redacted(Draft(event), user_id=session.user_id, now=now).event


def _key(event: Event) -> Key | None:
    """What tells a piece of a conversation; None of a response that says nothing."""
    match event:
        case UserInput(text=text, attachments=attachments):
            files = (attachment.model_dump_json() for attachment in attachments)
            return ("user", text.strip(), *files)
        case AgentResponse(text=text) if text.strip():
            return ("agent", text.strip())
        case ToolCall(call_id=call_id):
            return ("call", call_id)
        case ToolResult(call_id=call_id):
            return ("result", call_id)
        case _:
            return None
