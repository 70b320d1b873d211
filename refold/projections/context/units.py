"""Where an event belongs: its message and its exchange, by one rule for all readers."""

from __future__ import annotations

from collections.abc import Iterable
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
    Span,
    StateUpdate,
    Summary,
    SystemPrompt,
    ToolCall,
    ToolResult,
    UserInput,
)
from refold.domain.tokens import MESSAGE_OVERHEAD
from refold.projections.context.text import tagged

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


Spans = tuple[Span, ...]


def spans_of(seqs: Iterable[int]) -> Spans:
    """The runs that hold exactly these seqs."""
    return joined((seq, seq) for seq in seqs)


def joined(spans: Iterable[Span]) -> Spans:
    """All seqs of ``spans``, which may overlap and stand in any order."""
    runs: list[Span] = []
    for first, last in sorted(spans):
        if runs and first <= runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], max(last, runs[-1][1]))
        else:
            runs.append((first, last))
    return tuple(runs)


def behind(spans: Spans, seq: int) -> Spans:
    """The seqs of ``spans`` and ``seq``, which is behind them all."""
    if spans and spans[-1][1] == seq - 1:
        return (*spans[:-1], (spans[-1][0], seq))
    return (*spans, (seq, seq))


def upto(spans: Spans, seq: int) -> Spans:
    """The seqs of ``spans`` that are not above ``seq``."""
    return tuple((first, min(last, seq)) for first, last in spans if first <= seq)


def without(spans: Spans, taken: Spans) -> Spans:
    """The seqs of ``spans`` that are not in ``taken``."""
    rest = list(spans)
    for low, high in taken:
        cut: list[Span] = []
        for first, last in rest:
            cut += [(first, min(last, low - 1)), (max(first, high + 1), last)]
        rest = [(first, last) for first, last in cut if first <= last]
    return joined(rest)


def holds(spans: Spans, seq: int) -> bool:
    """Whether ``seq`` is one of them."""
    for first, last in spans:  # noqa: SIM110  # a generator takes twice the time
        if first <= seq <= last:
            return True
    return False


ExchangeKind = Literal["user", "response", "entry", "late"]


class Exchange(NamedTuple):
    """The smallest piece that a context may drop, in the order of its events."""

    kind: ExchangeKind
    events: tuple[Envelope, ...]


def arrange(events: Iterable[Envelope]) -> tuple[Exchange, ...]:
    """The exchanges of ``events``, in the order of their first events.

    So whatever comes while a response waits for results is shown behind them.
    """
    thread = Thread()
    kinds: dict[int, ExchangeKind] = {}
    members: dict[int, list[Envelope]] = {}
    for envelope in events:
        thread, placed = place(thread, envelope)
        if placed is None:
            continue
        first = envelope.seq if placed.kind == "late" else placed.exchange
        kinds.setdefault(first, _KINDS[placed.kind])
        members.setdefault(first, []).append(envelope)
    return tuple(Exchange(kinds[first], tuple(members[first])) for first in members)


_KINDS: dict[Kind, ExchangeKind] = {
    "user": "user",
    "response": "response",
    "call": "response",
    "result": "response",
    "entry": "entry",
    "late": "late",
}


def seen_by(reader: str | None, envelope: Envelope) -> Envelope | None:
    """The event as the agent ``reader`` sees it, or None if it does not.

    An event without an agent is everybody's, one with an agent that agent's own.  Of
    another's run only the result is seen: its ``final``, which comes in as a user's
    input does.  No reader sees everything.
    """
    if reader is None or envelope.agent in (None, reader):
        return envelope
    if not isinstance(envelope.payload, Final):
        return None
    result = envelope.payload
    text = tagged(
        "agent_result", result.text, agent=envelope.agent, outcome=result.outcome
    )
    given = UserInput(text=text)
    return envelope.model_copy(update={"payload": given, "type": given.type})
