"""What a strategy knows of a session: a small fold of its events, without their text.

The main stream and the strategy's derived stream may be folded in pages of any size
and in any order, as long as the main one is read at least as far as a summary was
decided; the outline is the same.  What a compaction changes is therefore computed
from ``decided_at_seq``, never from what happens to be folded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Final, Literal, NamedTuple

from pydantic import TypeAdapter

from refold.domain.canonical import canonical
from refold.domain.envelope import ACTIVATED, Envelope
from refold.domain.events import (
    AgentResponse,
    CompactionNote,
    Event,
    Final as Ending,
    Final as Finished,
    HumanReview,
    JsonObject,
    Pin,
    Request,
    Span,
    Summary,
    SystemPrompt,
    ToolCall,
    ToolResult,
    UserInput,
)
from refold.projections.context.parts import (
    Joined,
    LiveSummary,
    PinChange,
    Turn,
    Unit,
    pack_summaries,
    pack_turns,
    pack_units,
    unpack_summaries,
    unpack_turns,
    unpack_units,
)
from refold.projections.context.text import entry_of
from refold.projections.context.units import (
    Place,
    Spans,
    Thread,
    behind,
    joined,
    place,
    spans_of,
    upto,
    weight,
    without,
)


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

    def member(
        self, seq: int, placed: Place, thread: Thread, turn: int | None
    ) -> Waiting:
        """Take in a response, call or result; ``turn`` is where the turn began."""
        kind, exchange = placed.kind, placed.exchange
        if kind == "entry":
            return self
        response, holds = self.response, self.holds
        if exchange == thread.response:
            response = behind(() if exchange == seq else response, seq)
        if kind == "call":
            holds = _opened(holds, exchange, response, seq)
        elif kind == "result":
            holds = _extended(holds, exchange, seq)
        answered = exchange if placed.answers is None else placed.answers.seq
        ties = _tied(self.ties, exchange, answered, seq, turn)
        waiting = Waiting(response, holds, self.questions, ties)
        return waiting._settled(exchange, seq, thread, turn) if holds else waiting

    def asked(self, seq: int, thread: Thread, user: int | None) -> Waiting:
        """Take in a question to a human: it holds the exchange it was asked in."""
        anchor, spans = seq, joined([(seq, seq)])
        response = thread.response
        if response is not None and (user is None or response > user):
            anchor, spans = response, joined((*self.response, *spans))
        elif user is not None:
            anchor, spans = user, joined(((user, user), *spans))
        questions = (*self.questions, Question(seq, anchor))
        holds = _opened(self.holds, anchor, spans, seq)
        return self._replace(questions=questions, holds=holds)

    def decided(
        self, seq: int, question: int, thread: Thread, turn: int | None
    ) -> Waiting:
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
        kept = tuple(
            upto(hold.spans, through)
            for hold in self.holds
            if hold.first <= through and _open_at(hold, decided_at)
        )
        holds = tuple(
            hold
            for hold in self.holds
            if hold.first > through or hold.closed is None or hold.closed > decided_at
        )
        return kept, self._replace(holds=holds).beyond(through)

    def beyond(self, through: int | None) -> Waiting:
        """Without the ties that no later cut can part."""
        if through is None or all(first > through for first, _ in self.ties):
            return self
        return self._replace(ties=tuple(tie for tie in self.ties if tie[0] > through))

    def allows(self, cut: int) -> bool:
        """Whether a cut right behind the seq ``cut`` parts nothing."""
        return not any(first <= cut < last for first, last in self.ties)

    def _settled(
        self, exchange: int, seq: int, thread: Thread, turn: int | None
    ) -> Waiting:
        """Close the exchange if nothing in it waits any more."""
        if exchange in [call.exchange for call in thread.open]:
            return self
        if exchange not in [hold.first for hold in self.holds]:
            return self
        if exchange in [asked.exchange for asked in self.questions]:
            return self
        later = turn is not None and exchange < turn
        holds = [
            hold._replace(closed=seq)
            if hold.first == exchange and hold.closed is None
            else hold
            for hold in self.holds
            if later or hold.first != exchange or hold.closed is not None
        ]
        return Waiting(self.response, tuple(holds), self.questions, self.ties)


def _opened(
    holds: tuple[Hold, ...], exchange: int, spans: Spans, seq: int
) -> tuple[Hold, ...]:
    """With the exchange open, which these seqs are so far."""
    for hold in holds:
        if hold.first == exchange and hold.closed is None:
            return _extended(holds, exchange, seq)
    return (*holds, Hold(exchange, spans, seq))


def _extended(holds: tuple[Hold, ...], exchange: int, seq: int) -> tuple[Hold, ...]:
    """With one more event of the exchange, where it is open."""
    return tuple(
        [
            Hold(hold.first, behind(hold.spans, seq), hold.opened)
            if hold.first == exchange and hold.closed is None
            else hold
            for hold in holds
        ]
    )


def _tied(
    ties: tuple[Span, ...], exchange: int, answered: int, seq: int, turn: int | None
) -> tuple[Span, ...]:
    """An exchange to its newest event, and what is ``answered`` to its answer.

    The second counts where a cut has taken the exchange in between.
    """
    if turn is None or exchange >= turn:
        return ties
    firsts = sorted({exchange, answered})
    others = (tie for tie in ties if tie[0] not in firsts)
    return (*others, *((first, seq) for first in firsts))


def _open_at(hold: Hold, seq: int) -> bool:
    return hold.opened <= seq and (hold.closed is None or hold.closed > seq)


class Fact(NamedTuple):
    """An event that says something of the user; ``keys`` are digests of the names."""

    seq: int
    keys: tuple[str, ...]


class Note(NamedTuple):
    """A call in which the agent noted something, of so many lines."""

    seq: int
    lines: int


class Memory(NamedTuple):
    """The layers of a session, as they are and as views show them.

    shown_at:      up to which seq of the main stream views show them; None before the
                   first request, which shows all there is.
    facts, notes:  of the main stream, oldest first: those that views need still.
    scope:         the newest digest, ``scope_shown`` the one that views show.
    written:       the newest rewriting of notes, of ``written_lines`` lines;
                   ``written_shown`` the one that views show.
    failures:      attempts at a layer that failed since its last success, the last at
                   ``failed_at`` (microseconds since 1970).
    """

    shown_at: int | None = None
    facts: tuple[Fact, ...] = ()
    notes: tuple[Note, ...] = ()
    scope: LiveSummary | None = None
    scope_shown: LiveSummary | None = None
    written: LiveSummary | None = None
    written_lines: int = 0
    written_shown: LiveSummary | None = None
    failures: int = 0
    failed_at: int | None = None

    @property
    def newest(self) -> int:
        """The newest summary of a layer, as a seq of the derived stream; 0: none."""
        return max((one.seq for one in (self.scope, self.written) if one), default=0)

    @property
    def unwritten(self) -> tuple[Note, ...]:
        """The notes that no rewriting tells of."""
        return _after(self.notes, self.written)

    @property
    def lines(self) -> int:
        """How many lines of notes there are, the rewritten ones included."""
        return self.written_lines + sum(note.lines for note in self.unwritten)

    @property
    def summaries(self) -> tuple[LiveSummary, ...]:
        """The summaries that views show of layers."""
        return tuple(one for one in (self.scope_shown, self.written_shown) if one)

    @property
    def facts_shown(self) -> Spans:
        """The events of which views show what they say of the user."""
        return _seqs(_standing(fact for fact in self.facts if self._shown(fact.seq)))

    @property
    def notes_shown(self) -> Spans:
        """The notes that views show word for word."""
        notes = _after(self.notes, self.written_shown)
        return _seqs(note for note in notes if self._shown(note.seq))

    def first_called(self, through: int) -> Memory:
        """The memory after a request that read the main stream up to there."""
        return self if self.shown_at is not None else self._replace(shown_at=through)

    def with_fact(self, fact: Fact) -> Memory:
        """The memory with one more event that says something of the user."""
        return self._replace(facts=(*self.facts, fact))

    def with_note(self, note: Note) -> Memory:
        """The memory with one more note."""
        return self._replace(notes=(*self.notes, note))

    def taken(self, seq: int, summary: Summary) -> Memory:
        """The memory after a summary of a layer, of that seq in the derived stream."""
        first, last = summary.first_seq, summary.last_seq
        live = LiveSummary(seq, first, last, summary.level, summary.tokens_after)
        done = self._replace(failures=0, failed_at=None)
        if summary.kind == "scope":
            return done._replace(scope=live)
        return done._replace(written=live, written_lines=len(summary.text.splitlines()))

    def failed(self, at: int) -> Memory:
        """The memory after an attempt at a layer that failed then."""
        return self._replace(failures=self.failures + 1, failed_at=at)

    def compacted(self, decided_at: int) -> Memory:
        """The memory after a compaction of the session: views show it as of then."""
        past = [fact for fact in self.facts if fact.seq <= decided_at]
        later = [fact for fact in self.facts if fact.seq > decided_at]
        return self._replace(
            shown_at=decided_at,
            facts=(*_standing(past), *later),
            notes=_after(self.notes, self.written),
            scope_shown=self.scope,
            written_shown=self.written,
        )

    def _shown(self, seq: int) -> bool:
        return self.shown_at is None or seq <= self.shown_at


def _after(notes: tuple[Note, ...], written: LiveSummary | None) -> tuple[Note, ...]:
    if written is None:
        return notes
    return tuple(note for note in notes if note.seq > written.last)


def _standing(facts: Iterable[Fact]) -> list[Fact]:
    """Those of which no later one says all that they say, oldest first."""
    said: set[str] = set()
    standing: list[Fact] = []
    for fact in reversed(list(facts)):
        if not said.issuperset(fact.keys):
            standing.append(fact)
        said.update(fact.keys)
    return standing[::-1]


def _seqs(found: Iterable[Fact | Note]) -> Spans:
    return joined((one.seq, one.seq) for one in found)


def size_of(event: Event) -> int:
    """The characters of its text, and of the compact JSON of what is no text in it."""
    match event:
        case UserInput(text=text, attachments=attachments):
            return len(text) + sum(_json(one.model_dump()) for one in attachments)
        case AgentResponse(text=text, thinking=thinking):
            return len(text) + sum(_json(one.model_dump()) for one in thinking)
        case ToolCall(tool_name=name, arguments=arguments):
            return len(name) + _value(arguments)
        case ToolResult(content=content):
            return _value(content)
        case Ending(text=text):
            return len(text)
    entry = entry_of(event)
    return len(entry.body) if entry else 0


def _value(value: object) -> int:
    return len(value) if isinstance(value, str) else _json(value)


def _json(value: object) -> int:
    return len(canonical(value).decode())


def join(units: list[Unit], envelope: Envelope, placed: Place) -> bool:
    """Put the event in its exchange, or begin one; returns if it is a new message."""
    tokens, chars = weight(envelope, placed), size_of(envelope.payload)
    at, seq = envelope.at, envelope.seq
    result = placed.kind == "result"
    message = result or placed.kind != "call" or placed.exchange == seq
    sizes = tokens, chars, int(message), int(result), at
    index = _index(units, placed.exchange) if placed.exchange != seq else None
    if placed.kind == "late" or index is None:
        units.append(Unit(envelope.type, seq, seq, *sizes))
    else:
        new = Joined(seq, envelope.type, *sizes)
        units[index] = units[index].joined(new, newest=index == len(units) - 1)
    return message


def without_units(outline: Outline, through: int, decided_at: int) -> Outline:
    """Count what the exchanges up to ``through`` were; they are still in it.

    What joined one of them after ``decided_at`` is not gone: it is one of its own.
    """
    gone = [
        unit.without([one for one in unit.later if one.seq > decided_at])
        for unit in outline.units
        if unit.first <= through
    ]
    begun = [unit.at for unit in outline.units if unit.first <= decided_at]
    inputs = [
        unit.first
        for unit in outline.units
        if unit.type == "user_input" and unit.first <= decided_at
    ]
    newest = inputs[-1] if inputs else outline.kept_input
    return outline._replace(
        kept_input=newest if newest is not None and newest <= through else None,
        raw_tokens=outline.raw_tokens - sum(unit.tokens for unit in gone),
        compacted_turns=outline.compacted_turns
        + sum(unit.type == "user_input" for unit in gone),
        compacted_messages=outline.compacted_messages
        + sum(unit.messages for unit in gone),
        compacted_at=begun[-1] if begun else outline.compacted_at,
    )


def units_behind(outline: Outline, through: int, decided_at: int) -> tuple[Unit, ...]:
    """The exchanges that such a compaction leaves, oldest first."""
    left = [unit for unit in outline.units if unit.first > through]
    alone = [
        one.alone
        for unit in outline.units
        if unit.first <= through
        for one in unit.later
        if one.seq > decided_at
    ]
    return tuple(sorted((*left, *alone), key=lambda unit: unit.first))


def _index(units: Sequence[Unit], first: int) -> int | None:
    """The place of the exchange that begins there; it is near the end."""
    for index in range(len(units) - 1, -1, -1):
        if units[index].first <= first:
            return index if units[index].first == first else None
    return None


# Of most events there is nothing more to note.
_COMMON: Final = frozenset({ToolCall, ToolResult, UserInput})


class OutlineBuilder:
    """Takes in events of the main stream; its fields are those of the outline."""

    # Those that events change, or that decide what is changed.
    detail: Detail
    through_seq: int
    events: int
    first_seq: int | None
    system_seq: int | None
    system_tokens: int
    user_seq: int | None
    turn_count: int
    compacted_through: int | None
    turn_first: int | None
    turn_tokens: int
    done: bool
    idle: bool
    raw_tokens: int
    thread: Thread
    waiting: Waiting
    pin_changes: tuple[PinChange, ...]
    pinned: Spans
    summaries: tuple[LiveSummary, ...]
    messages: int
    began_at: int | None
    called_at: int | None
    cleared: int
    notes: tuple[int, ...]
    memory: Memory
    failed_at: int | None

    def __init__(self, outline: Outline) -> None:
        self.begin(outline)

    def begin(self, outline: Outline) -> None:
        """Go on from this outline, whatever was taken in before."""
        fields: dict[str, Any] = vars(self)
        fields.update(zip(outline._fields, outline, strict=True))
        self._begun = outline
        self._ended: list[Turn] = []
        self._units: list[Unit] | None = None
        self._next: tuple[Envelope, Thread, Place | None] | None = None

    def outline(self) -> Outline:
        """The outline of what was taken in."""
        begun, fields = self._begun, vars(self)
        past = (*begun.past, *self._ended) if self._ended else begun.past
        units = begun.units if self._units is None else tuple(self._units)
        taken = {**fields, "past": past, "units": units}
        return type(begun)._make([taken[name] for name in begun._fields])

    @property
    def tokens(self) -> int:
        """What ``Outline.tokens`` is."""
        summaries = sum(summary.tokens for summary in self.summaries)
        return self.system_tokens + summaries + self.raw_tokens

    @property
    def units(self) -> list[Unit]:
        """The exchanges that are not compacted, oldest first; they may be replaced."""
        if self._units is None:
            self._units = list(self._begun.units)
        return self._units

    def place(self, envelope: Envelope) -> Place | None:
        """Where the next event will be, once it is taken in; None: it is no message."""
        if self._next is None or self._next[0] is not envelope:
            self._next = (envelope, *place(self.thread, envelope))
        return self._next[2]

    def take(self, envelope: Envelope) -> None:
        """Take in the next event.

        Raises ValueError if it is not behind the last one.
        """
        seq = envelope.seq
        if self.events and seq <= self.through_seq:
            raise ValueError(
                f"seq {seq} was folded: the outline is at {self.through_seq}"
            )
        known, self._next = self._next, None
        if known is not None and known[0] is envelope:
            _, self.thread, placed = known
        else:
            self.thread, placed = place(self.thread, envelope)
        self.through_seq = seq
        self.events += 1
        if self.first_seq is None:
            self.first_seq = seq
        if placed is not None:
            self._count(envelope, placed)
            if self.detail in ("units", "both"):
                self._join(envelope, placed)
        if self.detail != "counts":
            self._wait(envelope, placed)
        self._note(envelope)

    def _count(self, envelope: Envelope, placed: Place) -> None:
        tokens = weight(envelope, placed)
        if placed.kind == "user":
            self._open_turn(placed.exchange)
        elif self.turn_first is None:
            self.turn_first = envelope.seq
        self._progress(envelope, placed)
        self.turn_tokens += tokens
        self.raw_tokens += tokens

    def _open_turn(self, seq: int) -> None:
        if self.turn_first is None:
            self.turn_first = seq
        if self.turn_count:
            if self.detail in ("turns", "both"):
                ended = Turn(self.turn_first, seq - 1, True, self.turn_tokens)
                self._ended.append(ended)
            self.turn_first, self.turn_tokens = seq, 0
        self.turn_count += 1
        self.user_seq = seq
        self.done = self.idle = False

    def _progress(self, envelope: Envelope, placed: Place) -> None:
        """Follow whether the turn is complete: a response without calls, or a final."""
        payload = envelope.payload
        if isinstance(payload, AgentResponse):
            self.done = self.done or self.idle
            self.idle = payload.stop_reason != "tool_use"
        elif placed.kind == "call":
            own = placed.exchange == envelope.seq
            self.done = self.done or (self.idle and own)
            self.idle = False

    def _join(self, envelope: Envelope, placed: Place) -> None:
        self.messages += join(self.units, envelope, placed)
        if self.began_at is None:
            self.began_at = envelope.at

    def _wait(self, envelope: Envelope, placed: Place | None) -> None:
        waiting, seq, review = self.waiting, envelope.seq, envelope.payload
        if placed is not None and placed.kind != "user":
            waiting = waiting.member(seq, placed, self.thread, self._begins())
        if isinstance(review, HumanReview):
            if review.decision is None:
                waiting = waiting.asked(seq, self.thread, self.user_seq)
            elif review.refers_to is not None:
                asked, begins = review.refers_to, self._begins()
                waiting = waiting.decided(seq, asked, self.thread, begins)
        if waiting is not self.waiting:
            self.waiting = waiting.beyond(self.compacted_through)

    def _begins(self) -> int | None:
        """Where that begins whose exchanges no cut parts from the newest event yet."""
        if self.detail in ("units", "both"):
            # What ends while it is the newest exchange was open at no cut behind it.
            units = self._begun.units if self._units is None else self._units
            return units[-1].first if units else None
        return self.turn_first if self.turn_count else None

    def _note(self, envelope: Envelope) -> None:
        payload: Event = envelope.payload
        if type(payload) in _COMMON:
            return
        if isinstance(payload, AgentResponse):
            self.called_at = envelope.at
        elif isinstance(payload, Request):
            if envelope.meta.status != ACTIVATED:
                self.called_at = envelope.at
        elif isinstance(payload, Finished):
            self.done = True
        elif isinstance(payload, SystemPrompt):
            if payload.text is not None:
                self.system_seq = envelope.seq
                self.system_tokens = envelope.token_estimate
        elif isinstance(payload, Pin) and self.detail != "counts":
            change = PinChange(envelope.seq, spans_of(payload.seqs), payload.unpin)
            self.pin_changes = (*self.pin_changes, change)


# Stored outlines of another shape are dropped, and the log is folded again.
SHAPE = 5
Detail = Literal["counts", "turns", "units", "both"]


class Outline(NamedTuple):
    """A session as far as decisions depend on it.

    detail:            how much is known of what is not compacted: ``counts`` alone,
                       for strategies that never compact, ``turns``, ``units``, or both.
    through_seq:       the last event folded; ``derived_seq`` the derived stream's.
    system_seq:        the newest system prompt, of ``system_tokens``.
    user_seq:          the newest user input.
    turn_count:        turns begun, the newest included.
    compacted_turns:   turns that summaries stand for, up to ``compacted_through``.
    decided_at:        the seq at which the newest compaction was decided.
    past:              turns that ended and are not compacted, oldest first.
    turn_first:        where the newest turn begins: what precedes the first input is
                       the first turn's.
    turn_tokens:       its tokens; ``done`` and ``idle`` say whether it is complete.
    raw_tokens:        of everything that is not compacted.
    pinned, kept:      what stays raw behind the summaries: pinned seqs, and exchanges
                       that were open when the compaction was decided; ``kept_input``
                       is the newest user input, if the newest compaction took it.
    units:             exchanges that are not compacted, oldest first.
    messages:          how many there were in all, ``compacted_messages`` of them
                       before the first of ``units``.
    began_at:          when the first message came, ``called_at`` when a model was last
                       called, ``compacted_at`` the time at which the newest
                       compaction was decided: of the newest exchange then begun.
    cleared, notes:    what else the strategy has to remember, such as up to which seq
                       nothing is shown again.
    memory:             what is known of memory layers.
    failures:          attempts that failed since the last success, the last at
                       ``failed_at`` (microseconds since 1970).
    """

    detail: Detail = "turns"
    through_seq: int = 0
    derived_seq: int = 0
    events: int = 0
    first_seq: int | None = None
    system_seq: int | None = None
    system_tokens: int = 0
    user_seq: int | None = None
    turn_count: int = 0
    compacted_turns: int = 0
    compacted_through: int | None = None
    decided_at: int | None = None
    past: tuple[Turn, ...] = ()
    turn_first: int | None = None
    turn_tokens: int = 0
    done: bool = False
    idle: bool = False
    raw_tokens: int = 0
    thread: Thread = Thread()
    waiting: Waiting = Waiting()
    pin_changes: tuple[PinChange, ...] = ()
    pinned: Spans = ()
    kept: tuple[Spans, ...] = ()
    kept_input: int | None = None
    summaries: tuple[LiveSummary, ...] = ()
    units: tuple[Unit, ...] = ()
    messages: int = 0
    compacted_messages: int = 0
    began_at: int | None = None
    called_at: int | None = None
    compacted_at: int | None = None
    cleared: int = 0
    notes: tuple[int, ...] = ()
    memory: Memory = Memory()
    failures: int = 0
    failed_at: int | None = None

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The turns not compacted, oldest first, the newest included."""
        if not self.turn_count or self.turn_first is None:
            return ()
        complete = self.done or self.idle
        newest = Turn(self.turn_first, self.through_seq, complete, self.turn_tokens)
        return (*self.past, newest)

    @property
    def complete_turns(self) -> int:
        """How many turns are complete, those compacted included."""
        begun = self.turn_count > 0
        return self.turn_count - (1 if begun and not (self.done or self.idle) else 0)

    @property
    def summary_tokens(self) -> int:
        """What the live summaries cost together."""
        return sum(summary.tokens for summary in self.summaries)

    @property
    def tokens(self) -> int:
        """What system prompt, summaries and what is not compacted cost together."""
        return self.system_tokens + self.summary_tokens + self.raw_tokens

    @property
    def raw_span(self) -> Span | None:
        """The seqs that no summary stands for, or None if there are none."""
        if self.first_seq is None:
            return None
        compacted = self.compacted_through
        first = self.first_seq if compacted is None else compacted + 1
        return (first, self.through_seq) if first <= self.through_seq else None

    def reads(self, raw: Spans) -> Spans:
        """The seqs of the main stream whose events a view of this is rendered from.

        ``raw`` are those that the strategy shows of what is not compacted.
        """
        system = () if self.system_seq is None else ((self.system_seq,) * 2,)
        kept = (span for spans in self.kept for span in spans)
        user = () if self.kept_input is None else ((self.kept_input,) * 2,)
        layers = (*self.memory.facts_shown, *self.memory.notes_shown)
        return joined((*system, *raw, *kept, *user, *self.pinned, *layers))

    @property
    def shown_summaries(self) -> tuple[int, ...]:
        """The seqs, in the derived stream, of the summaries that a view shows."""
        return tuple(one.seq for one in (*self.summaries, *self.memory.summaries))

    def dump(self) -> JsonObject:
        """The outline as JSON: small, and without any text of the session."""
        dumped = {
            name: _plain(value)
            for name, value in self._asdict().items()
            if value != self._field_defaults[name]
        }
        packed = {
            "past": pack_turns(self.past),
            "summaries": pack_summaries(self.summaries),
            "units": pack_units(self.units),
        }
        return {**dumped, **packed, "shape": SHAPE}

    @classmethod
    def load(cls, dumped: JsonObject) -> Outline:
        """The outline that ``dump`` wrote.

        Raises ValueError if another shape of outline was stored: fold the log again.
        """
        if dumped.get("shape") != SHAPE:
            raise ValueError(f"the stored outline is not of shape {SHAPE}")
        fields = {key: value for key, value in dumped.items() if key != "shape"}
        unpacked = {
            "past": unpack_turns(fields["past"]),
            "summaries": unpack_summaries(fields["summaries"]),
            "units": unpack_units(fields["units"]),
        }
        return _adapter().validate_python({**fields, **unpacked})


@cache
def _adapter() -> TypeAdapter[Outline]:
    return TypeAdapter(Outline)


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


_BY_UNIT = ("units", "both")


def fold(outline: Outline, envelope: Envelope) -> Outline:
    """The outline after this event of the main stream.

    Raises ValueError if the event is not behind the last one folded.
    """
    builder = OutlineBuilder(outline)
    builder.take(envelope)
    return builder.outline()


def fold_all(outline: Outline, envelopes: Iterable[Envelope]) -> Outline:
    """The outline after these events of the main stream, oldest first."""
    builder = OutlineBuilder(outline)
    for envelope in envelopes:
        builder.take(envelope)
    return builder.outline()


def fold_derived(outline: Outline, envelope: Envelope) -> Outline:
    """The outline after this event of the strategy's derived stream.

    Raises ValueError if the main stream was not folded as far as it was decided.
    """
    outline = outline._replace(derived_seq=envelope.seq)
    match envelope.payload:
        case Summary(kind="session") as summary:
            if summary.decided_at_seq > outline.through_seq:
                raise ValueError(
                    f"a summary was decided at seq {summary.decided_at_seq}, the "
                    f"outline is at {outline.through_seq}: fold the main stream first"
                )
            return _compacted(outline, envelope.seq, summary)
        case Summary() as summary:
            return outline._replace(memory=outline.memory.taken(envelope.seq, summary))
        case CompactionNote(phase="failed", kind=kind):
            at = envelope.at
            if kind != "session":
                return outline._replace(memory=outline.memory.failed(at))
            return outline._replace(failures=outline.failures + 1, failed_at=at)
        case _:
            return outline


def _compacted(outline: Outline, seq: int, summary: Summary) -> Outline:
    through = summary.last_seq
    if outline.compacted_through is not None:
        through = max(through, outline.compacted_through)
    past = tuple(turn for turn in outline.past if turn.last > through)
    freed = sum(turn.tokens for turn in outline.past if turn.last <= through)
    kept, waiting = outline.waiting.compacted(through, summary.decided_at_seq)
    if outline.detail in _BY_UNIT:
        # What the turns were is counted by their exchanges.
        freed, outline = 0, outline._replace(past=past)
        outline = without_units(outline, through, summary.decided_at_seq)
        units = units_behind(outline, through, summary.decided_at_seq)
        outline = outline._replace(units=units)
    return outline._replace(
        past=past,
        compacted_turns=outline.compacted_turns + len(outline.past) - len(past),
        compacted_through=through,
        decided_at=summary.decided_at_seq,
        raw_tokens=outline.raw_tokens - freed,
        summaries=_live(outline.summaries, seq, summary),
        waiting=waiting,
        kept=kept,
        memory=outline.memory.compacted(summary.decided_at_seq),
        failures=0,
        failed_at=None,
        pinned=pinned_at(outline, summary.decided_at_seq),
        pin_changes=tuple(
            change
            for change in outline.pin_changes
            if change.at > summary.decided_at_seq
        ),
    )


def pinned_at(outline: Outline | OutlineBuilder, decided_at: int) -> Spans:
    """What is pinned, with the changes up to there."""
    pinned = outline.pinned
    for change in outline.pin_changes:
        if change.at <= decided_at and change.unpin:
            pinned = without(pinned, change.spans)
        elif change.at <= decided_at:
            pinned = joined((*pinned, *change.spans))
    return pinned


def _live(
    summaries: tuple[LiveSummary, ...], seq: int, summary: Summary
) -> tuple[LiveSummary, ...]:
    rest = (live for live in summaries if live.seq not in summary.absorbs)
    new = LiveSummary(
        seq, summary.first_seq, summary.last_seq, summary.level, summary.tokens_after
    )
    return tuple(sorted((*rest, new), key=lambda live: live.first))
