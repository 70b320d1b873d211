"""The units of a context: spans, exchanges, turns, and where a cut is allowed.

``place`` is the one rule that assigns an event to its message and exchange.
``Waiting`` keeps exchanges that wait for an answer out of every cut.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from math import inf
from typing import Final as TypingFinal, Literal, NamedTuple, assert_never

from refold.domain import events
from refold.domain.envelope import Envelope
from refold.domain.events import Final, Span, UserInput
from refold.domain.tokens import MESSAGE_OVERHEAD
from refold.projections.context.text import entry_of, tagged, value_text

Spans = tuple[Span, ...]


def spans_of(seqs: Iterable[int]) -> Spans:
    """Return the spans that contain exactly these seqs."""
    return joined((seq, seq) for seq in seqs)


def joined(spans: Iterable[Span]) -> Spans:
    """Merge spans, which may overlap and be in any order."""
    ordered = sorted(spans)
    if not ordered:
        return ()
    merged: list[Span] = []
    start, end = ordered[0]
    for first, last in ordered:
        if first > end + 1:
            merged.append((start, end))
            start = first
            end = last
        elif last > end:
            end = last
    merged.append((start, end))
    return tuple(merged)


def behind(spans: Spans, seq: int) -> Spans:
    """Add ``seq``, which is above all seqs of ``spans``."""
    if spans and spans[-1][1] == seq - 1:
        return (*spans[:-1], (spans[-1][0], seq))
    return (*spans, (seq, seq))


def upto(spans: Spans, seq: int) -> Spans:
    """Return the seqs of ``spans`` up to and including ``seq``."""
    return tuple((first, min(last, seq)) for first, last in spans if first <= seq)


def without(spans: Spans, removed: Spans) -> Spans:
    """Return the seqs of ``spans`` that are not in ``removed``."""
    remaining = list(spans)
    for low, high in removed:
        pieces: list[Span] = []
        for first, last in remaining:
            below = (first, min(last, low - 1))
            above = (max(first, high + 1), last)
            pieces += [below, above]
        remaining = [(first, last) for first, last in pieces if first <= last]
    return joined(remaining)


def holds(spans: Spans, seq: int) -> bool:
    """Whether ``seq`` is in one of the spans."""
    for first, last in spans:  # noqa: SIM110  # a generator takes twice the time
        if first <= seq <= last:
            return True
    return False


Kind = Literal["user", "response", "call", "result", "late", "entry"]


def is_among(spans: Spans, seq: int) -> bool:
    """The same as ``holds`` for many spans, which are in order and do not overlap."""
    index = bisect_right(spans, (seq, inf)) - 1
    return index >= 0 and seq <= spans[index][1]


def among(spans: Spans, envelopes: Iterable[Envelope]) -> Iterator[Envelope]:
    """Yield the events whose seqs are in the spans.

    spans:     in order; they do not overlap.
    envelopes: in order.
    """
    remaining = iter(spans)
    behind_all = (inf, inf)
    first, last = next(remaining, behind_all)
    for envelope in envelopes:
        seq = envelope.seq
        while last < seq:
            first, last = next(remaining, behind_all)
        if first <= seq:
            yield envelope


class SpanSet:
    """A set of seqs as spans, which are in order and do not touch.

    A change takes time that hardly depends on the number of spans.
    """

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self.add(spans)

    @property
    def spans(self) -> Spans:
        """Its spans."""
        return tuple(zip(self._firsts, self._lasts, strict=True))

    def holds(self, seq: int) -> bool:
        """Whether it has this seq."""
        index = bisect_right(self._firsts, seq) - 1
        return index >= 0 and seq <= self._lasts[index]

    def add(self, spans: Iterable[Span]) -> None:
        """Add the seqs of these spans."""
        for first, last in spans:
            # The spans that overlap or touch the new one become one with it.
            start = bisect_left(self._lasts, first - 1)
            end = bisect_right(self._firsts, last + 1)
            if start < end:
                first = min(first, self._firsts[start])
                last = max(last, self._lasts[end - 1])
            self._firsts[start:end] = [first]
            self._lasts[start:end] = [last]

    def remove(self, spans: Iterable[Span]) -> None:
        """Remove the seqs of these spans."""
        for first, last in spans:
            start = bisect_left(self._lasts, first)
            end = bisect_right(self._firsts, last)
            if start >= end:
                continue
            rest: list[Span] = []
            if self._firsts[start] < first:
                rest.append((self._firsts[start], first - 1))
            if self._lasts[end - 1] > last:
                rest.append((last + 1, self._lasts[end - 1]))
            self._firsts[start:end] = [piece[0] for piece in rest]
            self._lasts[start:end] = [piece[1] for piece in rest]

    def missing(self, spans: Iterable[Span]) -> Spans:
        """Return the seqs of these spans that it does not have."""
        rest = SpanSet(spans)
        for first, last in rest.spans:
            start = bisect_left(self._lasts, first)
            end = bisect_right(self._firsts, last)
            rest.remove(
                zip(self._firsts[start:end], self._lasts[start:end], strict=True)
            )
        return rest.spans


class OpenCall(NamedTuple):
    """A call without a result.

    key:  the keyed call id.
    turn: the number of the turn in which it was made.
    """

    key: str
    seq: int
    exchange: int
    turn: int = 1


class Thread(NamedTuple):
    """The state of a conversation that the place of the next event depends on.

    It is stored, so it holds keys of ids and texts, never the texts.

    response:     the first seq of the newest response.
    response_key: the key of that response's id.
    direct:       whether a call that comes now would follow it directly.
    open:         the calls that wait for a result, oldest first.
    text_key:     the key of the turn's last text of the agent.
    turn:         the number of the turn.  Events before the first input belong to
                  turn 1.
    open_calls_after: the number of turns after which a call, or a question to a human,
                  waits no longer.  None sets no limit.
    """

    response: int | None = None
    response_key: str | None = None
    direct: bool = False
    open: tuple[OpenCall, ...] = ()
    text_key: str | None = None
    turn: int = 0
    open_calls_after: int | None = None

    def waits(self, turn: int) -> bool:
        """Whether an exchange that opened in this turn still waits for its answer."""
        if self.open_calls_after is None:
            return True
        return self.turn - turn <= self.open_calls_after

    @property
    def begun_turn(self) -> int:
        """The number of the turn that events after this one belong to."""
        return max(self.turn, 1)

    def next_turn(self) -> Thread:
        """Return the thread after a user input, without calls that waited too long."""
        after = self._replace(direct=False, text_key=None, turn=self.turn + 1)
        waiting = tuple([call for call in self.open if after.waits(call.turn)])
        return after._replace(open=waiting)


class Place(NamedTuple):
    """The role of an event in the context.

    A ``late`` result came after another response began, or after its call had waited
    for ``Thread.open_calls_after`` turns.  It is an exchange of its own, and its call
    keeps the placeholder that the model has seen.

    exchange: the first seq of the event's exchange.
    answers:  the call that a result answers; None if the call no longer waited.
    """

    kind: Kind
    exchange: int
    answers: OpenCall | None = None


def key_of(text: str) -> str:
    """Return a digest that stands for an id or a text in stored state."""
    # Twice as fast as SHA-256 on processors without instructions for it.
    return blake2b(text.encode(), digest_size=8).hexdigest()


class Answers:
    """Finds where the answers of models begin, in the order of their events.

    Responses and calls that follow one another with the same ``response_id`` are one
    answer: some clients write thinking, text, and calls one by one.  Without that id,
    an exchange is an answer.
    """

    def __init__(self) -> None:
        # Of the newest answer: its id, its newest exchange, and its first seq.
        self._response_id: str | None = None
        self._exchange: int | None = None
        self._first_seq: int | None = None

    def first_seq(self, envelope: Envelope, placed: Place | None) -> int | None:
        """Return the seq where the event's answer begins.

        None if the event is no part of an answer.
        """
        if placed is None or placed.kind not in ("response", "call"):
            return None
        response_id = envelope.meta.response_id
        has_same_id = bool(response_id) and response_id == self._response_id
        if placed.exchange == self._exchange:
            self._response_id = response_id or self._response_id
        elif has_same_id:
            self._exchange = placed.exchange
        else:
            self._response_id = response_id
            self._exchange = placed.exchange
            self._first_seq = placed.exchange
        return self._first_seq


def continues_response(
    newest: Envelope, envelope: Envelope, placed: Place | None
) -> bool:
    """Whether a response that seemed to end its turn continues with a call."""
    if placed is None or not isinstance(newest.payload, events.AgentResponse):
        return False
    return placed.kind == "call" and placed.exchange != envelope.seq


def place(
    thread: Thread, envelope: Envelope, key_of: Callable[[str], str] = key_of
) -> tuple[Thread, Place | None]:
    """Return the thread after this event, and the event's place.

    The place is None if the event is no message.

    key_of: makes the keys of the thread.  A thread that is not stored may use the texts
            themselves.
    """
    seq = envelope.seq
    match envelope.payload:
        case UserInput():
            return thread.next_turn(), Place("user", seq)
        case events.AgentResponse(text=text):
            text = text.strip()
            text_key = key_of(text) if text else thread.text_key
            return _respond(thread, envelope, text_key), Place("response", seq)
        case events.ToolCall(call_id=call_id):
            return _call(thread, envelope, key_of(call_id))
        case events.ToolResult(call_id=call_id):
            return _result(thread, seq, key_of(call_id))
        case events.Planner() | events.Reflection() | events.Aggregate():
            shown = True
        case events.AgentError() as error:
            shown = not error.is_transport
        case Final(text=text):
            text = text.strip()
            shown = bool(text) and key_of(text) != thread.text_key
        case events.HumanReview(decision=decision):
            shown = decision is not None
        case events.SystemPrompt(where="conversation", text=str(text)):
            shown = bool(text.strip())
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
    if not shown or not envelope.meta.in_context:
        return thread, None
    return thread._replace(direct=False), Place("entry", seq)


# Events that a context shows as an entry of their own, if they are in a context.
_ENTRIES: TypingFinal = frozenset(
    {
        "planner",
        "reflection",
        "aggregate",
        "error",
        "final",
        "hitl",
    }
)


def is_restated(envelope: Envelope) -> bool:
    """Whether the event only says in a typed form what a call and its result say."""
    return not envelope.meta.in_context and envelope.type in _ENTRIES


def weight(envelope: Envelope, placed: Place) -> int:
    """Return the tokens that this event adds to a context that shows it raw."""
    if _is_own_message(envelope, placed):
        return envelope.token_estimate + MESSAGE_OVERHEAD
    return envelope.token_estimate


def _is_own_message(envelope: Envelope, placed: Place) -> bool:
    """Whether the event begins a message: a call joins its response's message."""
    return placed.kind != "call" or placed.exchange == envelope.seq


def _respond(thread: Thread, envelope: Envelope, text_key: str | None) -> Thread:
    """Return the thread after the first event of a response."""
    return Thread(
        response=envelope.seq,
        response_key=_response_key(envelope),
        direct=True,
        open=thread.open,
        text_key=text_key,
        turn=thread.turn,
        open_calls_after=thread.open_calls_after,
    )


def _response_key(envelope: Envelope) -> str | None:
    response_id = envelope.meta.response_id
    return key_of(response_id) if response_id else None


def _call(thread: Thread, envelope: Envelope, key: str) -> tuple[Thread, Place]:
    """Return the thread after a call, and the call's place.

    The call belongs to the newest response if both have the same id, or if it follows
    directly and one of them has no id.  Otherwise it begins a response of its own.
    """
    response_key = _response_key(envelope)
    if response_key is None or thread.response_key is None:
        belongs = thread.direct
    else:
        belongs = response_key == thread.response_key
    if thread.response is None or not belongs:
        thread = _respond(thread, envelope, thread.text_key)
    exchange = envelope.seq if thread.response is None else thread.response
    call = OpenCall(key, envelope.seq, exchange, thread.begun_turn)
    after = Thread(
        response=exchange,
        response_key=response_key or thread.response_key,
        direct=thread.direct,
        open=(*thread.open, call),
        text_key=thread.text_key,
        turn=thread.turn,
        open_calls_after=thread.open_calls_after,
    )
    return after, Place("call", exchange)


def _result(thread: Thread, seq: int, key: str) -> tuple[Thread, Place]:
    call = next((call for call in thread.open if call.key == key), None)
    after = Thread(
        response=thread.response,
        response_key=thread.response_key,
        direct=False,
        open=tuple([other for other in thread.open if other is not call]),
        text_key=thread.text_key,
        turn=thread.turn,
        open_calls_after=thread.open_calls_after,
    )
    if call is None:
        return after, Place("late", seq)
    kind: Kind = "result" if call.exchange == thread.response else "late"
    return after, Place(kind, call.exchange, call)


Exchange = tuple[Envelope, ...]
"""The smallest unit that a context may drop, in the order of its events."""


def arrange(
    envelopes: Iterable[Envelope], *, open_calls_after: int | None = None
) -> tuple[Exchange, ...]:
    """Group events into exchanges, in the order of their first events.

    Events that arrive while a response waits for results therefore come after them.

    open_calls_after: as in ``Thread``.
    """
    thread = Thread(open_calls_after=open_calls_after)
    members: dict[int, list[Envelope]] = {}
    for envelope in envelopes:
        thread, placed = place(thread, envelope, str)
        if placed is not None:
            first = envelope.seq if placed.kind == "late" else placed.exchange
            members.setdefault(first, []).append(envelope)
    return tuple(tuple(exchange) for exchange in members.values())


def seen_by(reader: str | None, envelope: Envelope) -> Envelope | None:
    """Return the event as the agent ``reader`` sees it, or None if it is hidden.

    All agents see events without an agent; an event with an agent is that agent's own.
    Of another agent's run, only the result is visible: its ``final``, in the form of a
    user input.  Without a reader, every event is visible.
    """
    if reader is None or envelope.agent in (None, reader):
        return envelope
    if not isinstance(envelope.payload, Final):
        return None
    text = tagged(
        "agent_result",
        envelope.payload.text,
        agent=envelope.agent,
        outcome=envelope.payload.outcome,
    )
    result = UserInput(text=text)
    return envelope.model_copy(update={"payload": result, "type": result.type})


class Turn(NamedTuple):
    """A user input and everything up to the next one.

    tokens: its cost when shown raw.
    """

    first: int
    last: int
    complete: bool
    tokens: int


class Unit(NamedTuple):
    """An exchange that is not compacted, for strategies that cut between exchanges.

    type:     the type of its first event.
    last:     its newest event; events of other exchanges may lie between the first and
              the last, as ``spans`` says.
    tokens:   its cost when shown raw.
    chars:    its size in characters.
    messages: the number of its messages.
    results:  the number of its tool results.
    at:       the time of its first event, in microseconds since 1970.
    spans:    its seqs; empty if they are all from ``first`` to ``last``.
    later:    its events that arrived after another exchange began, each as a unit of
              its own: a compaction decided before they arrived removes none of them.
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
        """The seqs of its events."""
        return self.spans or ((self.first, self.last),)

    def joined(self, new: Unit, *, newest: bool) -> Unit:
        """Return the exchange with one more of its events.

        newest: whether no later exchange has begun.
        """
        spans = self.spans
        if spans or new.first != self.last + 1:
            spans = joined((*self.seqs, (new.first, new.first)))
        # `_replace` takes twice as long, and this runs for most events.
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
    """Return the event as an exchange of its own."""
    return Unit(
        type=envelope.type,
        first=envelope.seq,
        last=envelope.seq,
        tokens=weight(envelope, placed),
        chars=size_of(envelope.payload),
        messages=1 if _is_own_message(envelope, placed) else 0,
        results=1 if placed.kind == "result" else 0,
        at=envelope.at,
    )


def size_of(event: events.Event) -> int:
    """Return the characters of an event: of its text, and of other values as JSON."""
    match event:
        case UserInput(text=text, attachments=parts):
            return len(text) + sum(_size(part.model_dump()) for part in parts)
        case events.AgentResponse(text=text, thinking=blocks):
            return len(text) + sum(_size(block.model_dump()) for block in blocks)
        case events.ToolCall(tool_name=name, arguments=arguments):
            return len(name) + _size(arguments)
        case events.ToolResult(content=content):
            return _size(content)
    entry = entry_of(event)
    return len(entry.body) if entry else 0


def _size(value: object) -> int:
    return len(value_text(value))


class LiveSummary(NamedTuple):
    """A summary that no other summary has absorbed.

    seq:         in the derived stream.
    first, last: the seqs of the main stream that it stands for.
    """

    seq: int
    first: int
    last: int
    level: int
    tokens: int


class Hold(NamedTuple):
    """An exchange that is open since the seq ``opened``, or was until ``closed``."""

    first: int
    spans: Spans
    opened: int
    closed: int | None = None


class Question(NamedTuple):
    """A review without a decision, and the exchange and turn that it was asked in."""

    seq: int
    exchange: int
    turn: int = 1


class Waiting(NamedTuple):
    """The open exchanges of a session, and the places where no cut is allowed.

    response:  the seqs of the newest response and its results.
    holds:     open exchanges, and those closed in a later turn than their own.
    questions: the reviews without a decision.
    ties:      (first, last): a cut after any seq from ``first`` to ``last - 1`` would
               separate an exchange's parts.
    """

    response: Spans = ()
    holds: tuple[Hold, ...] = ()
    questions: tuple[Question, ...] = ()
    ties: tuple[Span, ...] = ()

    def member(
        self, seq: int, placed: Place, thread: Thread, turn: int | None
    ) -> Waiting:
        """Fold a response, call, or result.

        thread: after this event.
        turn:   the first seq of the turn.
        """
        kind = placed.kind
        exchange = placed.exchange
        if kind == "entry":
            return self
        response = self.response
        if exchange == seq == thread.response:
            response = spans_of([seq])
        elif exchange == thread.response:
            response = behind(response, seq)
        holds = self.holds
        if kind == "call":
            holds = _extended(holds, exchange, seq, opens_as=response)
        elif kind == "result":
            holds = _extended(holds, exchange, seq)
        answered = exchange if placed.answers is None else placed.answers.seq
        ties = self.ties
        if kind != "late" or thread.open_calls_after is None:
            ties = _tied(ties, exchange, answered, seq, turn)
        waiting = Waiting(response, holds, self.questions, ties)
        return waiting._settled(exchange, seq, thread, turn) if holds else waiting

    def asked(self, seq: int, thread: Thread, user: int | None) -> Waiting:
        """Fold a question to a human, which keeps its exchange open.

        user: the seq of the newest user input.
        """
        response = thread.response
        if response is not None and (user is None or response > user):
            exchange = response
            spans = joined((*self.response, (seq, seq)))
        elif user is not None:
            exchange = user
            spans = joined(((user, user), (seq, seq)))
        else:
            exchange = seq
            spans = spans_of([seq])
        question = Question(seq, exchange, thread.begun_turn)
        return self._replace(
            questions=(*self.questions, question),
            holds=_extended(self.holds, exchange, seq, opens_as=spans),
        )

    def decided(
        self, seq: int, question_seq: int, thread: Thread, turn: int | None
    ) -> Waiting:
        """Fold a human's decision on a question.

        question_seq: the event that asked it.
        turn:         the first seq of the turn.
        """
        matching = (q for q in self.questions if q.seq == question_seq)
        question = next(matching, None)
        if question is None:
            return self
        ties = self.ties
        holds = self.holds
        # A decision is an entry of its own.  With a limit, it belongs to its question
        # as long as a result would belong to its call.
        is_late = thread.response is not None and thread.response > question_seq
        if not is_late or thread.open_calls_after is None:
            ties = _tied(ties, question.exchange, question_seq, seq, turn)
        if not is_late and thread.open_calls_after is not None:
            holds = _extended(holds, question.exchange, seq)
        waiting = self._replace(
            questions=tuple(other for other in self.questions if other is not question),
            holds=holds,
            ties=ties,
        )
        return waiting._settled(question.exchange, seq, thread, turn)

    def in_next_turn(self, seq: int, thread: Thread) -> Waiting:
        """Close the exchanges that have waited for too many turns.

        seq:    of the user input that begins the next turn.
        thread: after this input.
        """
        if thread.open_calls_after is None:
            return self
        questions = tuple(
            [question for question in self.questions if thread.waits(question.turn)]
        )
        waiting = self._replace(questions=questions)
        for hold in self.holds:
            if hold.closed is None:
                waiting = waiting._settled(hold.first, seq, thread, seq)
        return waiting

    def forgetting(self, before: int) -> Waiting:
        """Drop what concerns only seqs below ``before``, where no cut will lie.

        Open exchanges stay.
        """
        holds = tuple(
            [hold for hold in self.holds if hold.closed is None or hold.first >= before]
        )
        ties = tuple([tie for tie in self.ties if tie[1] >= before])
        return self._replace(holds=holds, ties=ties)

    def compacted(
        self, through: int, decided_at: int, *, keeps_whole: bool
    ) -> tuple[tuple[Spans, ...], Waiting]:
        """Return the exchanges that stay raw behind a summary, and the state after it.

        through:     the last seq that the compaction covers.
        decided_at:  the seq at which it was decided.
        keeps_whole: whether an exchange that the cut separates stays raw as a whole.
        """
        holds: list[Hold] = []
        raw: list[Hold] = []
        for hold in self.holds:
            was_open = hold.closed is None or hold.closed > decided_at
            is_separated = keeps_whole and hold.spans[-1][1] > through
            if hold.first > through:
                holds.append(hold)
            elif was_open or is_separated:
                holds.append(hold)
                if hold.opened <= decided_at:
                    raw.append(hold)
        waiting = self._replace(holds=tuple(holds)).beyond(through)
        if not keeps_whole:
            return tuple([upto(hold.spans, through) for hold in raw]), waiting
        # An exchange that opened again has two holds; the later one has all of it.
        whole = {hold.first: upto(hold.spans, decided_at) for hold in raw}
        return tuple(whole.values()), waiting

    def beyond(self, through: int | None) -> Waiting:
        """Drop the ties that begin up to ``through``; later cuts lie after them."""
        if through is None or all(first > through for first, _ in self.ties):
            return self
        return self._replace(ties=tuple(tie for tie in self.ties if tie[0] > through))

    def allows(self, cut: int) -> bool:
        """Whether a cut directly after the seq ``cut`` separates no parts."""
        return not any(first <= cut < last for first, last in self.ties)

    def _settled(
        self, exchange: int, seq: int, thread: Thread, turn: int | None
    ) -> Waiting:
        """Close the exchange at ``seq`` if it no longer waits for anything."""
        waiting_exchanges = {call.exchange for call in thread.open}
        waiting_exchanges.update(question.exchange for question in self.questions)
        closing = _open_hold(self.holds, exchange)
        if exchange in waiting_exchanges or closing is None:
            return self
        holds: list[Hold] = []
        for hold in self.holds:
            if hold is not closing:
                holds.append(hold)
            elif turn is not None and exchange < turn:
                # A compaction decided earlier saw it open: remember until when.
                holds.append(hold._replace(closed=seq))
        return Waiting(self.response, tuple(holds), self.questions, self.ties)


def _open_hold(holds: tuple[Hold, ...], exchange: int) -> Hold | None:
    for hold in holds:
        if hold.first == exchange and hold.closed is None:
            return hold
    return None


def _extended(
    holds: tuple[Hold, ...], exchange: int, seq: int, *, opens_as: Spans = ()
) -> tuple[Hold, ...]:
    """Add ``seq`` to the exchange's open hold.

    opens_as: the spans of a new hold if the exchange has none; empty opens none.
    """
    open_hold = _open_hold(holds, exchange)
    if open_hold is None:
        return (*holds, Hold(exchange, opens_as, seq)) if opens_as else holds
    extended = Hold(exchange, behind(open_hold.spans, seq), open_hold.opened)
    return tuple([extended if hold is open_hold else hold for hold in holds])


def _tied(
    ties: Spans, exchange: int, answered: int, seq: int, turn: int | None
) -> Spans:
    """Tie an exchange and the event that is answered to the newest event, ``seq``.

    Only an exchange of an earlier turn needs ties.  The tie of the answered event
    matters after a cut between the exchange's first event and the answer.
    """
    if turn is None or exchange >= turn:
        return ties
    firsts = sorted({exchange, answered})
    others = [tie for tie in ties if tie[0] not in firsts]
    return (*others, *((first, seq) for first in firsts))
