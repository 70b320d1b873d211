"""Messages of the Messages API, as callers write them, as events of a session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, Final, NamedTuple

import anthropic

from refold.adapters.importers import messages as blocks
from refold.adapters.importers.base import Found, Piece, sequence
from refold.domain import events as kinds
from refold.domain.envelope import Draft
from refold.domain.errors import InvalidEvent
from refold.domain.events import Event, JsonObject
from refold.projections.context.text import Block, result_block, user_blocks
from refold.store.appends import given
from refold.store.session.session import Session

INTERRUPTED: Final = "interrupted"
_failed: Final = partial(kinds.AgentError, where="anthropic.messages")
_THINKING: Final = ("thinking", "redacted_thinking")
# The model called the tool itself, which is the usual case.
_DIRECT: Final = {"caller": {"type": "direct"}}
_OF_CALL: Final = frozenset({"type", "id", "name", "input"})


def plain(value: Any) -> Any:
    """Return a response or block of the SDK as JSON, byte for byte as it came."""
    if isinstance(value, anthropic.BaseModel):
        return value.to_dict(mode="json", warnings=False)
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def parsed(response: Any) -> Any:
    """Return the message of a raw response (``with_raw_response``).

    Another response is returned unchanged.

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

    Together with the text of the system prompt, this says how it was sent.
    """
    found: list[Any] = []
    for block in plain([*system]):
        others = {}
        if isinstance(block, dict):
            others = {k: v for k, v in block.items() if k not in ("type", "text")}
        found.append({"characters": len(blocks.text_of(block) or ""), **others})
    return found


def events_of(message: JsonObject) -> list[Event]:
    """The events of a whole response: what was said, its calls, what the API did.

    Blocks that only the provider can read are kept byte for byte.
    """
    content = _blocks(message)
    calls = [block for block in content if _is_call(block)]
    others = [block for block in content if not _is_call(block) and not _is_said(block)]
    edits = sequence(message, "context_management", "applied_edits")
    events: list[Event] = [_response(message, message.get("stop_reason"))]
    events += [
        kinds.ToolCall(
            call_id=call["id"], tool_name=call["name"], arguments=call.get("input", {})
        )
        for call in calls
    ]
    container = message.get("container")
    if not isinstance(container, dict):
        container = None
    order = _order(content) if _needs_order(content) else None
    if edits or others or order or container:
        events.append(
            kinds.ProviderEdit(
                edits=tuple(edits),
                blocks=tuple(others),
                content=order,
                container=container,
            )
        )
    return events


def _needs_order(content: Sequence[JsonObject]) -> bool:
    """Whether the response and its calls do not tell how the content came."""
    ranks: list[int] = []
    for block in content:
        beside = _fields_beside_call(block)
        if block.get("citations") or beside not in ({}, _DIRECT):
            return True
        if block.get("type") in _THINKING:
            ranks.append(0)
        elif blocks.text_of(block) is not None:
            ranks.append(1)
        elif _is_call(block):
            ranks.append(2)
        else:
            return True
    return ranks != sorted(ranks)


def _order(content: Sequence[JsonObject]) -> tuple[JsonObject, ...]:
    """The content with the numbers of its blocks, its calls and its thinking."""
    numbers: Counter[str] = Counter()
    order: list[JsonObject] = []
    for block in content:
        if block.get("type") in _THINKING:
            kind = "thinking"
        elif blocks.text_of(block) is not None:
            order.append(block)
            continue
        elif _is_call(block):
            kind = "call"
        else:
            kind = "block"
        entry: JsonObject = {kind: numbers[kind], **_fields_beside_call(block)}
        order.append(entry)
        numbers[kind] += 1
    return tuple(order)


def _fields_beside_call(block: JsonObject) -> JsonObject:
    """The fields of a call besides its id, its tool, and its arguments."""
    if not _is_call(block):
        return {}
    return {
        name: value
        for name, value in block.items()
        if name not in _OF_CALL and value is not None
    }


def broken_off(message: JsonObject | None, error: kinds.AgentError) -> list[Event]:
    """Return the events of a response that broke off: its part, and the error.

    Its calls must not be carried out, and the last may be incomplete.  So the error
    contains them, and no ``tool_call`` does.
    """
    if message is None or not message.get("content"):
        return [error]
    calls: Any = [one for one in _blocks(message) if one.get("type") == "tool_use"]
    context = {**(error.context or {}), "partial": True}
    if calls:
        context["calls"] = calls
    error = error.model_copy(update={"context": context})
    return [_response(message, INTERRUPTED), error]


def with_user_events(
    messages: Sequence[Mapping[str, Any]], events: Iterable[Event]
) -> list[dict[str, Any]]:
    """Return messages with what a user adds, for a call that is not made.

    A result takes the place of the placeholder that its call has in the messages.
    """
    results: dict[str, Block] = {}
    added: list[Block] = []
    for event in events:
        if isinstance(event, kinds.ToolResult):
            results[event.call_id] = result_block(event.call_id, event)
        elif isinstance(event, kinds.UserInput):
            added += user_blocks(event)
    whole: list[dict[str, Any]] = []
    for message in messages:
        content: list[Block] = []
        for block in message["content"]:
            call_id = str(block.get("tool_use_id"))
            content.append(results.pop(call_id, block))
        whole.append({"role": message["role"], "content": content})
    added = [*results.values(), *added]
    if added and whole and whole[-1]["role"] == "user":
        whole[-1]["content"] += added
    elif added:
        whole.append({"role": "user", "content": added})
    return whole


def batch_result(response: Any) -> JsonObject | kinds.AgentError:
    """Return the message in the result of a batch, or the error.

    response: the SDK's, or its JSON.

    Raises InvalidEvent for another value.
    """
    result = plain(response)
    if isinstance(result, dict):
        result = result.get("result")
    kind = result.get("type") if isinstance(result, dict) else None
    if kind == "succeeded" and isinstance(result.get("message"), dict):
        message: JsonObject = result["message"]
        return message
    if kind in ("canceled", "expired"):
        code = f"batch_{kind}"
        why = f"the request was {kind} with its batch"
        return _failed(code=code, message=why, retryable=True)
    if kind == "errored":
        error = result.get("error") or {}
        # The error of an error response is nested.
        error = error.get("error") or error
        code = str(error.get("type") or "batch_errored")
        why = "the API refused the request of a batch"
        return _failed(code=code, message=why, retryable=kinds.is_unreached(code))
    raise InvalidEvent(
        "a result of a batch has a custom_id and a result of the type succeeded, "
        "errored, canceled or expired"
    )


class NotAMessage(anthropic.AnthropicError):
    """The API's answer is not a message, but the page of a proxy, for example."""

    def __init__(self) -> None:
        super().__init__(
            "the API's answer is not a message: check the base URL and the proxies "
            "before it"
        )


def check_message(answer: object) -> None:
    """Refuse an answer that is not a message.

    The SDK does not check answers: it returns the page of a proxy as a text.

    Raises NotAMessage.
    """
    if not isinstance(getattr(answer, "content", None), list):
        raise NotAMessage()


def error_of(error: BaseException | None) -> kinds.AgentError:
    """Return the event for the reason why there is no complete answer.

    It never contains the words of the API, which may quote the request.

    error: None if the caller left the stream.
    """
    if error is None:
        return _failed(code=INTERRUPTED, message="the stream was left before its end")
    if isinstance(error, anthropic.APIStatusError):
        status = error.status_code
        code = error.type or f"http_{status}"
        context: JsonObject = {"status": status, "request_id": error.request_id}
        retryable = kinds.is_busy(status) or kinds.is_unreached(code)
        return _failed(
            code=code, message=f"HTTP {status}", retryable=retryable, context=context
        )
    if isinstance(error, anthropic.APITimeoutError):
        return _failed(code="timeout", message="no answer in time", retryable=True)
    if isinstance(error, anthropic.APIConnectionError):
        why = "the API could not be reached"
        return _failed(code="connection", message=why, retryable=True)
    if isinstance(error, NotAMessage):
        why = "the API's answer is not a message"
        return _failed(code="connection", message=why, retryable=True)
    why = f"{type(error).__name__} while the model answered"
    return _failed(code=INTERRUPTED, message=why)


def _response(message: JsonObject, stop_reason: Any) -> kinds.AgentResponse:
    content, usage = _blocks(message), message.get("usage")
    return kinds.AgentResponse(
        text="".join(blocks.text_of(block) or "" for block in content),
        thinking=tuple(
            kinds.Thinking.model_validate(blocks.thinking_of(one))
            for one in content
            if one.get("type") in _THINKING
        ),
        stop_reason=stop_reason if isinstance(stop_reason, str) else None,
        usage=usage if isinstance(usage, dict) else None,
    )


def _is_call(block: Mapping[str, Any]) -> bool:
    """Whether the block is a call that a result can refer to."""
    named = isinstance(block.get("id"), str) and isinstance(block.get("name"), str)
    return block.get("type") == "tool_use" and named and bool(block["id"])


def _is_said(block: Mapping[str, Any]) -> bool:
    """Whether the block is text or thinking, which the response itself contains."""
    return block.get("type") in _THINKING or blocks.text_of(block) is not None


def _blocks(message: JsonObject) -> list[dict[str, Any]]:
    content: Any = message.get("content") or []
    return [block for block in content if isinstance(block, dict)]


_SAID: Final = ("user_input", "agent_response", "tool_call", "tool_result")
_NEWEST: Final = 50
_ADDED: Final = frozenset({"cache_control", "caller", "parsed_output"})
Key = tuple[str, ...]


class News(NamedTuple):
    """The events of some messages that a session does not have yet.

    differs: whether the messages lack the end of the session.
    """

    events: list[Event]
    differs: bool = False


def events_of_user(content: Any) -> list[Event]:
    """Return the events of a text, of blocks of a user's message, or of events.

    Raises InvalidEvent for a block that cannot be recorded.
    """
    if content is None:
        return []
    given = [content] if isinstance(content, Event) else content
    if not isinstance(given, str) and all(isinstance(one, Event) for one in given):
        return list(given)
    return _events(blocks.user(plain(given)))


def news(session: Session, messages: Sequence[Mapping[str, Any]]) -> News:
    """Return the part of a whole conversation that follows the session's end.

    The newest piece of the session is searched in the messages, from their end.  If
    they do not contain it, the part after their last answer counts as new.

    Raises InvalidEvent for a message that cannot be recorded.
    """
    # The key of the newest event that messages would hold too.
    found = session.writer.log.read(
        session.stream, types=_SAID, limit=_NEWEST, newest=True
    )
    last = next(filter(None, (_key(given(one)) for one in reversed(found))), None)
    if last is None:
        return News([event for message in messages for event in _of(message)])
    state = session.head().state
    tag = session.writer.numbering(session.stream, state.numbers)
    learned = session.writer.learned(state)
    new: list[Event] = []
    since_answer: list[Event] | None = None
    for message in reversed(messages):
        events = _of(message)
        if message.get("role") == "assistant" and since_answer is None:
            since_answer = list(new)
        for index in range(len(events) - 1, -1, -1):
            draft, now = Draft(events[index]), session.writer.clock()
            recorded = [events[index]]
            # The log may have it from before or after it learned a secret in it.
            for secrets in (learned, None) if learned else (None,):
                clean = session.writer.redacted(
                    draft,
                    user_id=session.user_id,
                    now=now,
                    tag=tag,
                    learned=secrets,
                )
                recorded.append(clean.event)
            if last in map(_key, recorded):
                return News([*events[index + 1 :], *new])
        new = [*events, *new]
    return News(new if since_answer is None else since_answer, differs=True)


def normal(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages in the form of a view.

    Contents are blocks, without the fields that the SDK and a cache add.
    """
    found = []
    for message in plain(list(messages)):
        content = message["content"]
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        blocks = [
            {k: v for k, v in block.items() if k not in _ADDED and v is not None}
            for block in content
        ]
        found.append({"role": message["role"], "content": blocks})
    return found


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
        if isinstance(piece, Piece):
            events.append(kinds.event_of(piece.type, piece.fields))
        elif piece.why != blocks.CITATIONS:  # then the text itself is a piece
            raise InvalidEvent(f"a message cannot be recorded: {piece.why}")
    return events


def _key(event: Event) -> Key | None:
    """The key of a piece of a conversation; None for a response without text."""
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
