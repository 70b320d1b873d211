"""Converts messages and responses of the Anthropic API to events of a session."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, Final, NamedTuple

import anthropic

from refold.adapters.importers import messages as blocks
from refold.adapters.importers.base import Piece, PieceOrSkipped
from refold.adapters.importers.response import (
    INTERRUPTED,
    broken_off as broken_off,
    events_of as events_of,
)
from refold.domain import events as kinds
from refold.domain.envelope import Draft
from refold.domain.errors import InvalidEvent
from refold.domain.events import Event, JsonObject
from refold.projections.context.text import Block, result_block, user_blocks
from refold.store.appends import as_given
from refold.store.session.session import Session

_api_error: Final = partial(kinds.AgentError, where="anthropic.messages")


def plain(value: Any) -> Any:
    """Return a response or block of the SDK as JSON, byte for byte as it came."""
    if isinstance(value, anthropic.BaseModel):
        return value.to_dict(mode="json", warnings=False)
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def parsed(response: Any) -> Any:
    """Return the message of a raw response (``with_raw_response``).

    A response that is a message already is returned unchanged.

    Raises InvalidEvent for a raw response whose message must be awaited.
    """
    if isinstance(response, anthropic.BaseModel | Mapping | None):
        return response
    parse = getattr(response, "parse", None)
    if parse is None or iscoroutinefunction(parse):
        raise InvalidEvent(
            "a response is the SDK's message, its JSON, or a raw response: give "
            "`await response.parse()` of an asynchronous one"
        )
    return parse()


def system_text(system: str | Sequence[Mapping[str, Any]] | None) -> str | None:
    """Return the text of a system prompt, which is a text or text blocks.

    Raises InvalidEvent for anything else.
    """
    if isinstance(system, str | None):
        return system
    texts = blocks.only_texts(plain([*system]))
    if texts is None:
        raise InvalidEvent("system: must be a text, or text blocks")
    return "\n\n".join(texts)


def layout(system: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return the length and the other fields of each text block of a system prompt.

    With this and the text of ``system_text``, the blocks can be restored.
    """
    lengths_and_fields: list[Any] = []
    for block in plain([*system]):
        entry: JsonObject = {"characters": len(blocks.text_of(block) or "")}
        if isinstance(block, dict):
            for name, value in block.items():
                if name not in ("type", "text"):
                    entry[name] = value
        lengths_and_fields.append(entry)
    return lengths_and_fields


def with_user_events(
    messages: Sequence[Mapping[str, Any]], events: Iterable[Event]
) -> list[dict[str, Any]]:
    """Return messages with a user's new events, as the next request would have them.

    A tool result replaces the placeholder that its call has in the messages.  The rest
    joins the last message of the user, or becomes a new one.
    """
    results: dict[str, Block] = {}
    added: list[Block] = []
    for event in events:
        if isinstance(event, kinds.ToolResult):
            results[event.call_id] = result_block(event.call_id, event)
        elif isinstance(event, kinds.UserInput):
            added += user_blocks(event)
    extended: list[dict[str, Any]] = []
    for message in messages:
        content: list[Block] = []
        for block in message["content"]:
            call_id = str(block.get("tool_use_id"))
            content.append(results.pop(call_id, block))
        extended.append({"role": message["role"], "content": content})
    added = [*results.values(), *added]
    if added and extended and extended[-1]["role"] == "user":
        extended[-1]["content"] += added
    elif added:
        extended.append({"role": "user", "content": added})
    return extended


def batch_result(response: Any) -> JsonObject | kinds.AgentError:
    """Return the message in the result of a batch, or the error.

    response: an object of the SDK, or its JSON.

    Raises InvalidEvent for another value.
    """
    result = plain(response)
    kind: Any = None
    if isinstance(result, dict):
        result = result.get("result")
    if isinstance(result, dict):
        kind = result.get("type")
    if kind == "succeeded" and isinstance(result.get("message"), dict):
        message: JsonObject = result["message"]
        return message
    if kind in ("canceled", "expired"):
        code = f"batch_{kind}"
        why = f"the request was {kind} with its batch"
        return _api_error(code=code, message=why, retryable=True)
    if kind == "errored":
        error = result.get("error") or {}
        # The error of an error response is nested.
        error = error.get("error") or error
        code = str(error.get("type") or "batch_errored")
        why = "the API refused the request of a batch"
        return _api_error(code=code, message=why, retryable=kinds.is_unreached(code))
    raise InvalidEvent(
        "a result of a batch has a custom_id and a result of the type succeeded, "
        "errored, canceled or expired"
    )


class NotAMessage(anthropic.AnthropicError):
    """The API's answer is something else than a message, such as a proxy's page."""

    def __init__(self) -> None:
        super().__init__(
            "the API's answer is not a message: check the base URL and the proxies "
            "before it"
        )


def check_message(answer: object) -> None:
    """Raise NotAMessage if the SDK returned something else than a message.

    The SDK does not check answers: it returns the page of a proxy as a text.
    """
    if not isinstance(getattr(answer, "content", None), list):
        raise NotAMessage()


def error_of(error: BaseException | None) -> kinds.AgentError:
    """Return the event that says why there is no complete answer.

    It never contains the API's own message, which may quote the request.

    error: None if the caller left the stream.
    """
    if error is None:
        return _api_error(
            code=INTERRUPTED, message="the stream was left before its end"
        )
    if isinstance(error, anthropic.APIStatusError):
        status = error.status_code
        code = error.type or f"http_{status}"
        context: JsonObject = {"status": status, "request_id": error.request_id}
        retryable = kinds.is_busy(status) or kinds.is_unreached(code)
        return _api_error(
            code=code, message=f"HTTP {status}", retryable=retryable, context=context
        )
    if isinstance(error, anthropic.APITimeoutError):
        return _api_error(code="timeout", message="no answer in time", retryable=True)
    if isinstance(error, anthropic.APIConnectionError):
        why = "the API could not be reached"
        return _api_error(code="connection", message=why, retryable=True)
    if isinstance(error, NotAMessage):
        why = "the API's answer is not a message"
        return _api_error(code="connection", message=why, retryable=True)
    why = f"{type(error).__name__} while the model answered"
    return _api_error(code=INTERRUPTED, message=why)


# The types of events that messages contain.
_MESSAGE_TYPES: Final = ("user_input", "agent_response", "tool_call", "tool_result")
# The most events of the session in which ``new_events`` looks for one with a key.
_NEWEST: Final = 50
# Fields that the SDK and a cache add to blocks.
_ADDED: Final = frozenset({"cache_control", "caller", "parsed_output"})
Key = tuple[str, ...]


class NewEvents(NamedTuple):
    """The events of some messages that a session does not have yet.

    differs: whether the messages do not contain the end of the session.
    """

    events: list[Event]
    differs: bool = False


def events_of_user(content: Any) -> list[Event]:
    """Return the events of a text, of blocks of a user's message, or of events.

    Raises InvalidEvent for a block that cannot be recorded.
    """
    if content is None:
        return []
    if isinstance(content, Event):
        return [content]
    if not isinstance(content, str) and all(
        isinstance(item, Event) for item in content
    ):
        return list(content)
    return _events_of_blocks(blocks.user(plain(content)))


def new_events(session: Session, messages: Sequence[Mapping[str, Any]]) -> NewEvents:
    """Return the part of a whole conversation that follows the session's end.

    The newest message event of the session is looked for in the messages, from their
    end.  If they do not contain it, the part after their last answer counts as new.

    Raises InvalidEvent for a message that cannot be recorded.
    """
    last = _newest_key(session)
    if last is None:
        conversation: list[Event] = []
        for message in messages:
            conversation += _events_of_message(message)
        return NewEvents(conversation)
    state = session.head().state
    tag = session.writer.numbering(session.stream, state.numbers)
    learned = session.writer.learned(state)
    # The log may have redacted an event before or after it learned a secret in it.
    secrets_then: list[Any] = [learned, None] if learned else [None]
    new: list[Event] = []
    since_answer: list[Event] | None = None
    for message in reversed(messages):
        events = _events_of_message(message)
        if message.get("role") == "assistant" and since_answer is None:
            since_answer = list(new)
        for index in range(len(events) - 1, -1, -1):
            now = session.writer.clock()
            forms = [events[index]]
            for secrets in secrets_then:
                redacted = session.writer.redacted(
                    Draft(events[index]),
                    user_id=session.user_id,
                    now=now,
                    tag=tag,
                    learned=secrets,
                )
                forms.append(redacted.event)
            if last in map(_key, forms):
                return NewEvents([*events[index + 1 :], *new])
        new = [*events, *new]
    if since_answer is not None:
        new = since_answer
    return NewEvents(new, differs=True)


def _newest_key(session: Session) -> Key | None:
    """Return the key of the session's newest event that messages can contain."""
    newest = session.writer.log.read(
        session.stream, types=_MESSAGE_TYPES, limit=_NEWEST, newest=True
    )
    for envelope in reversed(newest):
        key = _key(as_given(envelope))
        if key is not None:
            return key
    return None


def normal(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages in the form of a view.

    Contents are blocks, without the fields that the SDK and a cache add.
    """
    normalized: list[dict[str, Any]] = []
    for message in plain(list(messages)):
        content = message["content"]
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        blocks = [_without_added_fields(block) for block in content]
        normalized.append({"role": message["role"], "content": blocks})
    return normalized


def _without_added_fields(block: JsonObject) -> JsonObject:
    """Return a block without empty fields and those that the SDK and a cache add."""
    return {
        name: value
        for name, value in block.items()
        if name not in _ADDED and value is not None
    }


def _events_of_message(message: Mapping[str, Any]) -> list[Event]:
    """Return the events of a message.  Raises InvalidEvent."""
    content = plain(message.get("content"))
    if message.get("role") == "assistant":
        return _events_of_blocks(blocks.agent(content))
    if message.get("role") == "user":
        return _events_of_blocks(blocks.user(content))
    raise InvalidEvent("a message must be of the user or of the assistant")


def _events_of_blocks(pieces: Iterable[PieceOrSkipped]) -> list[Event]:
    """Return the events that an importer made of blocks.

    Raises InvalidEvent for a block that it could not convert.
    """
    events: list[Event] = []
    for piece in pieces:
        if isinstance(piece, Piece):
            events.append(kinds.event_of(piece.type, piece.fields))
        elif piece.why != blocks.CITATIONS:  # then the text itself is a piece
            raise InvalidEvent(f"a message cannot be recorded: {piece.why}")
    return events


def _key(event: Event) -> Key | None:
    """Return a key that is equal for an event in messages and in the log.

    Returns None for a response without text, and for events that messages lack.
    """
    match event:
        case kinds.UserInput(text=text, attachments=attachments):
            files = (attachment.model_dump_json() for attachment in attachments)
            return ("user", text.strip(), *files)
        case kinds.AgentResponse(text=text) if text.strip():
            return ("agent", text.strip())
        case kinds.ToolCall(call_id=call_id):
            return ("call", call_id)
        case kinds.ToolResult(call_id=call_id):
            return ("result", call_id)
    return None
