"""Where an event belongs: its message and its exchange, by one rule for all readers."""

from __future__ import annotations

from hashlib import blake2b
from typing import Literal, NamedTuple, assert_never

from refold.domain.envelope import Envelope
from refold.domain.events import (
    AgentError,
    AgentResponse,
    Aggregate,
    CompactionNote,
    Consent,
    Final,
    Forget,
    Fork,
    HumanReview,
    Pin,
    Planner,
    ProviderEdit,
    RedactionApplied,
    Reflection,
    Request,
    StateUpdate,
    Summary,
    SystemPrompt,
    ToolCall,
    ToolResult,
    UserInput,
)
from refold.domain.tokens import MESSAGE_OVERHEAD

Kind = Literal["user", "response", "call", "result", "late", "entry"]


class OpenCall(NamedTuple):
    """A call without a result; ``key`` stands for its call_id."""

    key: str
    seq: int
    exchange: int


class Thread(NamedTuple):
    """As much of the conversation as the place of the next event depends on.

    ``response`` is the first seq of the newest response, ``response_key`` its id.
    ``direct`` is whether a call that came now would follow it directly.  ``said``
    stands for the turn's last text of the agent.  No text is kept, only keys.
    """

    response: int | None = None
    response_key: str | None = None
    direct: bool = False
    open: tuple[OpenCall, ...] = ()
    said: str | None = None


class Place(NamedTuple):
    """What an event is to the context; ``exchange`` is its exchange's first seq.

    A ``late`` result came after another response began: it is an exchange of its
    own, and its call keeps the placeholder that the model has seen.
    """

    kind: Kind
    exchange: int
    answers: OpenCall | None = None


def place(thread: Thread, envelope: Envelope) -> tuple[Thread, Place | None]:
    """The thread after this event, and its place; None if it is no message."""
    seq = envelope.seq
    match envelope.payload:
        case UserInput():
            return Thread(*thread[:2], False, thread.open), Place("user", seq)
        case AgentResponse(text=text):
            said = key_of(text) if (text := text.strip()) else thread.said
            return _respond(thread, envelope, said), Place("response", seq)
        case ToolCall(call_id=call_id):
            return _call(thread, envelope, key_of(call_id))
        case ToolResult(call_id=call_id):
            return _result(thread, seq, key_of(call_id))
        case Planner() | Reflection() | Aggregate() | AgentError():
            return thread._replace(direct=False), Place("entry", seq)
        case Final(text=text):
            shown = bool(text.strip()) and key_of(text.strip()) != thread.said
        case HumanReview(decision=decision):
            shown = decision is not None
        case (
            SystemPrompt()
            | StateUpdate()
            | Request()
            | Pin()
            | Fork()
            | Summary()
            | CompactionNote()
            | ProviderEdit()
            | RedactionApplied()
            | Consent()
            | Forget()
        ):
            return thread, None
        case unknown:
            assert_never(unknown)
    if not shown:
        return thread, None
    return thread._replace(direct=False), Place("entry", seq)


def weight(envelope: Envelope, placed: Place) -> int:
    """The tokens that this event adds to a context in which it is shown raw."""
    part = placed.kind == "call" and placed.exchange != envelope.seq
    return envelope.token_estimate + (0 if part else MESSAGE_OVERHEAD)


def key_of(text: str) -> str:
    """What stands for an id or a text where no text may be kept."""
    # Twice as fast as SHA-256 where that is not in the processor: all answers are.
    return blake2b(text.encode(), digest_size=8).hexdigest()


def _respond(thread: Thread, envelope: Envelope, said: str | None) -> Thread:
    response_id = envelope.meta.response_id
    key = key_of(response_id) if response_id else None
    return Thread(envelope.seq, key, True, thread.open, said)


def _call(thread: Thread, envelope: Envelope, key: str) -> tuple[Thread, Place]:
    response_id = envelope.meta.response_id
    response_key = key_of(response_id) if response_id else None
    if not _belongs(thread, response_key):
        thread = _respond(thread, envelope, thread.said)
    elif response_key:
        thread = thread._replace(response_key=response_key)
    exchange = envelope.seq if thread.response is None else thread.response
    call = OpenCall(key, envelope.seq, exchange)
    waiting = (*thread.open, call)
    thread = Thread(*thread[:3], waiting, thread.said)
    return thread, Place("call", exchange)


def _belongs(thread: Thread, response_key: str | None) -> bool:
    """Whether a call is part of the newest response, not the start of another."""
    if thread.response is None:
        return False
    if response_key and response_key == thread.response_key:
        return True
    return thread.direct and (response_key is None or thread.response_key is None)


def _result(thread: Thread, seq: int, key: str) -> tuple[Thread, Place]:
    call = next((call for call in thread.open if call.key == key), None)
    rest = tuple([other for other in thread.open if other is not call])
    thread = Thread(*thread[:2], False, rest, thread.said)
    if call is None:
        return thread, Place("late", seq)
    kind: Kind = "result" if call.exchange == thread.response else "late"
    return thread, Place(kind, call.exchange, call)
