"""The units of a context: spans, exchanges, turns, and what no cut may part.

Where an event belongs, its message and its exchange, is found by one rule for all
readers (``place``).  ``Waiting`` keeps what waits for an answer out of every cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Literal, NamedTuple, assert_never

from refold.domain import events
from refold.domain.envelope import Envelope
from refold.domain.events import Final, Span, UserInput
from refold.domain.tokens import MESSAGE_OVERHEAD
from refold.projections.context.text import entry_of, tagged, value_text

Spans = tuple[Span, ...]
_Seq = int | None


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


def key_of(text: str) -> str:
    """What stands for an id or a text where no text may be kept."""
    # Twice as fast as SHA-256 where that is not in the processor: all answers are.
    return blake2b(text.encode(), digest_size=8).hexdigest()


def goes_on(newest: Envelope, envelope: Envelope, placed: Place | None) -> bool:
    """Whether an answer that seemed to end its turn has a call in it."""
    if placed is None or not isinstance(newest.payload, events.AgentResponse):
        return False
    return placed.kind == "call" and placed.exchange != envelope.seq


def place(
    thread: Thread, envelope: Envelope, key_of: Callable[[str], str] = key_of
) -> tuple[Thread, Place | None]:
    """The thread after this event, and its place; None if it is no message.

    ``key_of`` makes its keys; they may be the texts themselves in a thread that is not
    kept.
    """
    seq = envelope.seq
    match envelope.payload:
        case UserInput():
            thread = Thread(thread[0], thread[1], False, thread[3])
            return thread, Place("user", seq)
        case events.AgentResponse(text=text):
            said = key_of(text) if (text := text.strip()) else thread.said
            return _respond(thread, envelope, said), Place("response", seq)
        case events.ToolCall(call_id=call_id):
            return _call(thread, envelope, key_of(call_id))
        case events.ToolResult(call_id=call_id):
            return _result(thread, seq, key_of(call_id))
        case events.Planner() | events.Reflection() | events.Aggregate():
            shown = True
        case events.AgentError() as error:
            shown = not error.is_transport
        case Final(text=text):
            shown = bool(text.strip()) and key_of(text.strip()) != thread.said
        case events.HumanReview(decision=decision):
            shown = decision is not None
        case events.SystemPrompt() | events.StateUpdate() | events.Request():
            shown = False
        case events.Pin() | events.Fork() | events.Summary() | events.CompactionNote():
            shown = False
        case events.ProviderEdit() | events.RedactionApplied() | events.Consent():
            shown = False
        case events.Forget() | events.Item():
            shown = False
        case unknown:
            assert_never(unknown)
    if not shown:
        return thread, None
    return thread._replace(direct=False), Place("entry", seq)


def weight(envelope: Envelope, placed: Place) -> int:
    """The tokens that this event adds to a context in which it is shown raw."""
    part = placed.kind == "call" and placed.exchange != envelope.seq
    return envelope.token_estimate + (0 if part else MESSAGE_OVERHEAD)


def _respond(thread: Thread, envelope: Envelope, said: str | None) -> Thread:
    response_id = envelope.meta.response_id
    key = key_of(response_id) if response_id else None
    return Thread(envelope.seq, key, True, thread.open, said)


def _call(thread: Thread, envelope: Envelope, key: str) -> tuple[Thread, Place]:
    response_id = envelope.meta.response_id
    response_key = key_of(response_id) if response_id else None
    known = thread.response_key
    same = response_key is not None and response_key == known
    unsaid = thread.direct and (response_key is None or known is None)
    if thread.response is None or not (same or unsaid):  # of another response
        thread = _respond(thread, envelope, thread.said)
    elif response_key:
        thread = thread._replace(response_key=response_key)
    exchange = envelope.seq if thread.response is None else thread.response
    waiting = (*thread.open, OpenCall(key, envelope.seq, exchange))
    response, known, direct, _, said = thread
    return Thread(response, known, direct, waiting, said), Place("call", exchange)


def _result(thread: Thread, seq: int, key: str) -> tuple[Thread, Place]:
    response, response_key, _, waiting, said = thread
    call = next((call for call in waiting if call.key == key), None)
    rest = tuple([other for other in waiting if other is not call])
    thread = Thread(response, response_key, False, rest, said)
    if call is None:
        return thread, Place("late", seq)
    kind: Kind = "result" if call.exchange == thread.response else "late"
    return thread, Place(kind, call.exchange, call)


# The smallest piece that a context may drop, in the order of its events.
Exchange = tuple[Envelope, ...]


def arrange(envelopes: Iterable[Envelope]) -> tuple[Exchange, ...]:
    """The exchanges of these events, in the order of their first ones.

    So whatever comes while a response waits for results is shown behind them.
    """
    thread = Thread()
    members: dict[int, list[Envelope]] = {}
    for envelope in envelopes:
        thread, placed = place(thread, envelope, str)
        if placed is not None:
            first = envelope.seq if placed.kind == "late" else placed.exchange
            members.setdefault(first, []).append(envelope)
    return tuple(map(tuple, members.values()))


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
    about = {"agent": envelope.agent, "outcome": envelope.payload.outcome}
    given = UserInput(text=tagged("agent_result", envelope.payload.text, **about))
    return envelope.model_copy(update={"payload": given, "type": given.type})


class Turn(NamedTuple):
    """A user input and everything up to the next; ``tokens`` is its size when raw."""

    first: int
    last: int
    complete: bool
    tokens: int


class Unit(NamedTuple):
    """An exchange that is not compacted, for strategies that cut between any two.

    type:     of its first event.
    last:     its newest event; between the two others may stand, if ``spans`` says so.
    tokens:   what it costs when raw; ``chars`` is its size in characters.
    messages: how many messages it makes; ``results`` how many results it has.
    at:       when it began, in microseconds since 1970.
    later:    those of its events that came when another exchange had begun, each as an
              exchange alone: a compaction decided before they came takes none of them.
    """

    type: str
    first: int
    last: int
    tokens: int
    chars: int
    messages: int
    results: int
    at: int
    spans: Spans = ()
    later: tuple[Unit, ...] = ()

    @property
    def seqs(self) -> Spans:
        """The seqs of exactly its events."""
        return self.spans or ((self.first, self.last),)

    def joined(self, new: Unit, *, newest: bool) -> Unit:
        """The exchange with one more of its events; whether it is the newest one."""
        spans = self.spans
        if spans or new.first != self.last + 1:
            spans = joined((*self.seqs, (new.first, new.first)))
        # Not by `_replace`, which takes twice as long: it is done for most events.
        return Unit(
            self.type,
            self.first,
            new.first,
            self.tokens + new.tokens,
            self.chars + new.chars,
            self.messages + new.messages,
            self.results + new.results,
            self.at,
            spans,
            self.later if newest else (*self.later, new),
        )


def unit_of(envelope: Envelope, placed: Place) -> Unit:
    """The event as an exchange alone."""
    message = placed.kind != "call" or placed.exchange == envelope.seq
    kind, seq, size = envelope.type, envelope.seq, size_of(envelope.payload)
    counts = (int(message), int(placed.kind == "result"))
    return Unit(kind, seq, seq, weight(envelope, placed), size, *counts, envelope.at)


def size_of(event: events.Event) -> int:
    """The characters of its text, and of the compact JSON of what is no text in it."""
    match event:
        case UserInput(text=text, attachments=parts):
            return len(text) + sum(_size(part.model_dump()) for part in parts)
        case events.AgentResponse(text=text, thinking=thoughts):
            return len(text) + sum(_size(part.model_dump()) for part in thoughts)
        case events.ToolCall(tool_name=name, arguments=arguments):
            return len(name) + _size(arguments)
        case events.ToolResult(content=content):
            return _size(content)
    entry = entry_of(event)
    return len(entry.body) if entry else 0


def _size(value: object) -> int:
    return len(value_text(value))


class LiveSummary(NamedTuple):
    """A summary that no other has absorbed; ``seq`` is that of the derived stream."""

    seq: int
    first: int
    last: int
    level: int
    tokens: int


class Hold(NamedTuple):
    """An exchange that is open since ``opened``, or was until ``closed``."""

    first: int
    spans: Spans
    opened: int
    closed: int | None = None


class Question(NamedTuple):
    """A review that waits for its decision, and the exchange it was asked in."""

    seq: int
    exchange: int


class Waiting(NamedTuple):
    """The open exchanges of a session.

    response: the seqs of the newest response and its results.
    holds:    open exchanges, and those closed in a later turn than their own.
    ties:     (first, last): a cut behind any seq from first up to last - 1 parts them.
    """

    response: Spans = ()
    holds: tuple[Hold, ...] = ()
    questions: tuple[Question, ...] = ()
    ties: tuple[Span, ...] = ()

    def member(self, seq: int, placed: Place, thread: Thread, turn: _Seq) -> Waiting:
        """Take in a response, call or result; ``turn`` is where the turn began."""
        kind, exchange = placed.kind, placed.exchange
        if kind == "entry":
            return self
        response, holds = self.response, self.holds
        if exchange == thread.response:
            response = behind(() if exchange == seq else response, seq)
        if kind == "call":
            holds = _held(holds, exchange, seq, response)
        elif kind == "result":
            holds = _held(holds, exchange, seq)
        answered = exchange if placed.answers is None else placed.answers.seq
        ties = _tied(self.ties, exchange, answered, seq, turn)
        waiting = Waiting(response, holds, self.questions, ties)
        return waiting._settled(exchange, seq, thread, turn) if holds else waiting

    def asked(self, seq: int, thread: Thread, user: int | None) -> Waiting:
        """Take in a question to a human: it holds the exchange it was asked in."""
        anchor, spans, response = seq, spans_of([seq]), thread.response
        if response is not None and (user is None or response > user):
            anchor, spans = response, joined((*self.response, *spans))
        elif user is not None:
            anchor, spans = user, joined(((user, user), *spans))
        questions = (*self.questions, Question(seq, anchor))
        holds = _held(self.holds, anchor, seq, spans)
        return self._replace(questions=questions, holds=holds)

    def decided(self, seq: int, question: int, thread: Thread, turn: _Seq) -> Waiting:
        """Take in a human's decision on the question recorded at ``question``."""
        asked = next((asked for asked in self.questions if asked.seq == question), None)
        if asked is None:
            return self
        questions = tuple(other for other in self.questions if other is not asked)
        ties = _tied(self.ties, asked.exchange, question, seq, turn)
        waiting = self._replace(questions=questions, ties=ties)
        return waiting._settled(asked.exchange, seq, thread, turn)

    def compacted(
        self, through: int, decided_at: int
    ) -> tuple[tuple[Spans, ...], Waiting]:
        """What stays raw behind a compaction, and what is left to watch."""
        holds = tuple(
            hold
            for hold in self.holds
            if hold.first > through or hold.closed is None or hold.closed > decided_at
        )
        kept = (o for o in holds if o.first <= through and o.opened <= decided_at)
        spans = tuple(upto(hold.spans, through) for hold in kept)
        return spans, self._replace(holds=holds).beyond(through)

    def beyond(self, through: int | None) -> Waiting:
        """Without the ties that no later cut can part."""
        if through is None or all(first > through for first, _ in self.ties):
            return self
        return self._replace(ties=tuple(tie for tie in self.ties if tie[0] > through))

    def allows(self, cut: int) -> bool:
        """Whether a cut right behind the seq ``cut`` parts nothing."""
        return not any(first <= cut < last for first, last in self.ties)

    def _settled(self, exchange: int, seq: int, thread: Thread, turn: _Seq) -> Waiting:
        """Close the exchange if nothing in it waits any more."""
        waits = {call.exchange for call in thread.open}
        waits.update(asked.exchange for asked in self.questions)
        held = _open(self.holds, exchange)
        if exchange in waits or held is None:
            return self
        later = turn is not None and exchange < turn
        closed = held._replace(closed=seq) if later else None
        holds = [closed if hold is held else hold for hold in self.holds]
        left = tuple([hold for hold in holds if hold])
        return Waiting(self.response, left, self.questions, self.ties)


def _open(holds: tuple[Hold, ...], exchange: int) -> Hold | None:
    own = (hold for hold in holds if hold.first == exchange and hold.closed is None)
    return next(own, None)


def _held(
    holds: tuple[Hold, ...], exchange: int, seq: int, spans: Spans = ()
) -> tuple[Hold, ...]:
    """With ``seq`` in the exchange that is open; else it opens as ``spans``, if any."""
    held = _open(holds, exchange)
    if held is None:
        return (*holds, Hold(exchange, spans, seq)) if spans else holds
    grown = Hold(exchange, behind(held.spans, seq), held.opened)
    return tuple([grown if hold is held else hold for hold in holds])


def _tied(ties: Spans, exchange: int, answered: int, seq: int, turn: _Seq) -> Spans:
    """An exchange to its newest event, and what is ``answered`` to its answer.

    The second counts where a cut has taken the exchange in between.
    """
    if turn is None or exchange >= turn:
        return ties
    firsts = sorted({exchange, answered})
    others = (tie for tie in ties if tie[0] not in firsts)
    return (*others, *((first, seq) for first in firsts))
