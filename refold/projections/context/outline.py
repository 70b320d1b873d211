"""What a strategy knows of a session: a small fold of its events, without their text.

The main stream and the strategy's derived stream may be folded in pages of any size
and in any order, as long as the main one is read at least as far as a summary was
decided; the outline is the same.  What a compaction changes is therefore computed
from ``decided_at_seq``, never from what happens to be folded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import accumulate, chain, pairwise
from typing import Any, Final, Literal, NamedTuple

from pydantic import TypeAdapter

from refold.domain import events
from refold.domain.envelope import ACTIVATED, Envelope
from refold.domain.events import JsonObject, Span, Summary
from refold.projections.context.units import (
    LiveSummary,
    Place,
    Spans,
    Thread,
    Turn,
    Unit,
    Waiting,
    joined,
    place,
    spans_of,
    unit_of,
    weight,
    without,
)

# Stored outlines of another shape are dropped, and the log is folded again.
SHAPE: Final = 8
Detail = Literal["counts", "turns", "units", "both"]
_BY_UNIT: Final = ("units", "both")
# Of most events there is nothing more to note.
_COMMON: Final = frozenset({events.ToolCall, events.ToolResult, events.UserInput})


class PinChange(NamedTuple):
    """A pin or unpin, recorded at ``at``, that no compaction has made effective yet."""

    at: int
    spans: Spans
    unpin: bool


class Fact(NamedTuple):
    """An event that says something of the user; ``keys`` are digests of the names."""

    seq: int
    keys: tuple[str, ...]


class Note(NamedTuple):
    """A call in which the agent noted something, of so many lines."""

    seq: int
    lines: int


class LayerState(NamedTuple):
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
        shown = [fact for fact in self.facts if self._shown(fact.seq)]
        return spans_of(fact.seq for fact in _standing(shown))

    @property
    def notes_shown(self) -> Spans:
        """The notes that views show word for word."""
        notes = _after(self.notes, self.written_shown)
        return spans_of(note.seq for note in notes if self._shown(note.seq))

    def taken(self, seq: int, summary: Summary) -> LayerState:
        """The state after a summary of a layer, of that seq in the derived stream."""
        live, done = _live(seq, summary), self._replace(failures=0, failed_at=None)
        if summary.kind == "scope":
            return done._replace(scope=live)
        return done._replace(written=live, written_lines=len(summary.text.splitlines()))

    def compacted(self, decided_at: int) -> LayerState:
        """The state after a compaction of the session: views show it as of then."""
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


def _standing(facts: Sequence[Fact]) -> list[Fact]:
    """Those of which no later one says all that they say, oldest first."""
    said: set[str] = set()
    standing: list[Fact] = []
    for fact in reversed(facts):
        if not said.issuperset(fact.keys):
            standing.append(fact)
        said.update(fact.keys)
    return standing[::-1]


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
    layers:            what is known of memory layers.
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
    layers: LayerState = LayerState()
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
        return max(0, self.turn_count - (not (self.done or self.idle)))

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
        """The seqs that a view is rendered from; ``raw`` are those it shows raw."""
        single = (self.system_seq, self.kept_input)
        alone = spans_of(seq for seq in single if seq is not None)
        layers = (self.layers.facts_shown, self.layers.notes_shown)
        return joined(chain(alone, raw, *self.kept, self.pinned, *layers))

    @property
    def shown_summaries(self) -> tuple[int, ...]:
        """The seqs, in the derived stream, of the summaries that a view shows."""
        return tuple(one.seq for one in (*self.summaries, *self.layers.summaries))

    def dump(self) -> JsonObject:
        """The outline as JSON: small, and without any text of the session."""
        dumped: JsonObject = {"shape": SHAPE}
        for name, value in self._asdict().items():
            if value != self._field_defaults[name]:
                dumped[name] = _columns(value) if name in _ROWS else _plain(value)
        return dumped

    @classmethod
    def load(cls, dumped: JsonObject) -> Outline:
        """The outline that ``dump`` wrote.

        Raises ValueError if another shape of outline was stored: fold the log again.
        """
        if dumped.get("shape") != SHAPE:
            raise ValueError(f"the stored outline is not of shape {SHAPE}")
        fields: dict[str, Any] = {k: v for k, v in dumped.items() if k != "shape"}
        fields |= {name: _rows(fields[name]) for name in _ROWS if name in fields}
        return _adapter().validate_python(fields)


_adapter: Final = cache(lambda: TypeAdapter(Outline))  # it takes a while


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


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
    layers: LayerState
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
        """Take in the next event.  Raises ValueError if it was folded."""
        seq = envelope.seq
        if self.events and seq <= self.through_seq:
            at = self.through_seq
            raise ValueError(f"seq {seq} was folded: the outline is at {at}")
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
            if self.detail in _BY_UNIT:
                self._join(envelope, placed)
        if self.detail != "counts":
            self._wait(envelope, placed)
        self._note(envelope)

    def _count(self, envelope: Envelope, placed: Place) -> None:
        tokens = weight(envelope, placed)
        if self.turn_first is None:
            self.turn_first = envelope.seq
        if placed.kind == "user":
            seq, first, tokens_of = envelope.seq, self.turn_first, self.turn_tokens
            if self.turn_count:
                if self.detail in ("turns", "both"):
                    self._ended.append(Turn(first, seq - 1, True, tokens_of))
                self.turn_first, self.turn_tokens = seq, 0
            self.turn_count += 1
            self.user_seq = seq
            self.done = self.idle = False
        # The turn is complete with a response without calls, or a final.
        if isinstance(payload := envelope.payload, events.AgentResponse):
            self.done = self.done or self.idle
            self.idle = payload.stop_reason != "tool_use"
        elif placed.kind == "call":
            own = placed.exchange == envelope.seq
            self.done = self.done or (self.idle and own)
            self.idle = False
        self.turn_tokens += tokens
        self.raw_tokens += tokens

    def _join(self, envelope: Envelope, placed: Place) -> None:
        new, units = unit_of(envelope, placed), self.units
        self.messages += new.messages
        if self.began_at is None:
            self.began_at = envelope.at
        alone = placed.kind == "late" or placed.exchange == envelope.seq
        index = None if alone else _index(units, placed.exchange)
        if index is None:
            units.append(new)
        else:
            units[index] = units[index].joined(new, newest=index == len(units) - 1)

    def _wait(self, envelope: Envelope, placed: Place | None) -> None:
        waiting, seq, review = self.waiting, envelope.seq, envelope.payload
        if placed is not None and placed.kind != "user":
            waiting = waiting.member(seq, placed, self.thread, self._begins())
        if isinstance(review, events.HumanReview):
            if review.decision is None:
                waiting = waiting.asked(seq, self.thread, self.user_seq)
            elif (asked := review.refers_to) is not None:
                waiting = waiting.decided(seq, asked, self.thread, self._begins())
        if waiting is not self.waiting:
            self.waiting = waiting.beyond(self.compacted_through)

    def _begins(self) -> int | None:
        """Where that begins whose exchanges no cut parts from the newest event yet."""
        if self.detail in _BY_UNIT:
            # What ends while it is the newest exchange was open at no cut behind it.
            units = self._begun.units if self._units is None else self._units
            return units[-1].first if units else None
        return self.turn_first if self.turn_count else None

    def _note(self, envelope: Envelope) -> None:
        payload = envelope.payload
        if type(payload) in _COMMON:
            return
        match payload:
            case events.AgentResponse():
                self.called_at = envelope.at
            case events.Request() if envelope.meta.status != ACTIVATED:
                self.called_at = envelope.at
            case events.Final():
                self.done = True
            case events.SystemPrompt(text=str()):
                self.system_seq = envelope.seq
                self.system_tokens = envelope.token_estimate
            case events.Pin(seqs=seqs, unpin=unpin) if self.detail != "counts":
                change = PinChange(envelope.seq, spans_of(seqs), unpin)
                self.pin_changes = (*self.pin_changes, change)


def _index(units: Sequence[Unit], first: int) -> int | None:
    """The place of the exchange that begins there; it is near the end."""
    for index in range(len(units) - 1, -1, -1):
        if units[index].first <= first:
            return index if units[index].first == first else None
    return None


def begins_anew(entry: Envelope) -> bool:
    """Whether what came before it in the derived stream counts no more."""
    return getattr(entry.payload, "phase", "") == "rebuilt"


def standing(derived: Iterable[Envelope]) -> list[Envelope]:
    """What counts of a derived stream that is read from its beginning."""
    entries = list(derived)
    anew = [index for index, entry in enumerate(entries) if begins_anew(entry)]
    return entries[anew[-1] :] if anew else entries


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
            return compacted(outline, envelope.seq, summary)
        case Summary() as summary:
            return outline._replace(layers=outline.layers.taken(envelope.seq, summary))
        case events.CompactionNote(phase="failed", kind="session"):
            failures = outline.failures + 1
            return outline._replace(failures=failures, failed_at=envelope.at)
        case events.CompactionNote(phase="failed"):
            failures = outline.layers.failures + 1
            layers = outline.layers._replace(failures=failures, failed_at=envelope.at)
            return outline._replace(layers=layers)
    return outline


def compacted(outline: Outline, seq: int, summary: Summary) -> Outline:
    """The outline with a summary of the session, ``seq`` in the derived stream."""
    decided_at, known = summary.decided_at_seq, outline.compacted_through
    through = summary.last_seq if known is None else max(summary.last_seq, known)
    kept, waiting = outline.waiting.compacted(through, decided_at)
    rest = [live for live in outline.summaries if live.seq not in summary.absorbs]
    summaries = sorted((*rest, _live(seq, summary)), key=lambda live: live.first)
    if outline.detail in _BY_UNIT:
        outline = _without_units(outline, through, decided_at)
    else:
        outline = _without_turns(outline, through, summary)
    return outline._replace(
        past=tuple(
            turn._replace(first=max(turn.first, through + 1))
            for turn in outline.past
            if turn.last > through
        ),
        compacted_through=through,
        decided_at=decided_at,
        summaries=tuple(summaries),
        waiting=waiting,
        kept=kept,
        layers=outline.layers.compacted(decided_at),
        failures=0,
        failed_at=None,
        pinned=pinned_at(outline, decided_at),
        pin_changes=tuple(one for one in outline.pin_changes if one.at > decided_at),
    )


def _without_turns(outline: Outline, through: int, summary: Summary) -> Outline:
    """Without the turns up to ``through``; of one that goes on behind it, its rest."""
    gone = [turn.tokens for turn in outline.past if turn.last <= through]
    absorbed = [live for live in outline.summaries if live.seq in summary.absorbs]
    own = summary.tokens_before - sum(live.tokens for live in absorbed) - sum(gone)
    past, first, part = outline.past, outline.turn_first, 0
    if cut := [turn for turn in past if turn.first <= through < turn.last]:
        part = max(0, min(own, cut[0].tokens))
        rest = cut[0]._replace(tokens=cut[0].tokens - part)
        past = tuple(rest if turn == cut[0] else turn for turn in past)
    elif first is not None and first <= through:
        part = max(0, min(own, outline.turn_tokens))
        left = outline.turn_tokens - part
        outline = outline._replace(turn_first=through + 1, turn_tokens=left)
    return outline._replace(
        past=past,
        compacted_turns=outline.compacted_turns + len(gone),
        raw_tokens=outline.raw_tokens - sum(gone) - part,
    )


def _without_units(outline: Outline, through: int, decided_at: int) -> Outline:
    """Without the exchanges up to ``through``; what joined one later stays, alone."""
    gone = [unit for unit in outline.units if unit.first <= through]
    left = [unit for unit in outline.units if unit.first > through]
    late = [one for unit in gone for one in unit.later if one.first > decided_at]
    begun = [unit for unit in outline.units if unit.first <= decided_at]
    inputs = [unit.first for unit in begun if unit.type == "user_input"]
    newest = inputs[-1] if inputs else outline.kept_input
    tokens = sum(unit.tokens for unit in gone) - sum(one.tokens for one in late)
    messages = sum(unit.messages for unit in gone) - sum(one.messages for one in late)
    turns = sum(unit.type == "user_input" for unit in gone)
    return outline._replace(
        units=tuple(sorted((*left, *late), key=lambda unit: unit.first)),
        kept_input=newest if newest is not None and newest <= through else None,
        raw_tokens=outline.raw_tokens - tokens,
        compacted_turns=outline.compacted_turns + turns,
        compacted_messages=outline.compacted_messages + messages,
        compacted_at=begun[-1].at if begun else outline.compacted_at,
    )


def _live(seq: int, summary: Summary) -> LiveSummary:
    first, last = summary.first_seq, summary.last_seq
    return LiveSummary(seq, first, last, summary.level, summary.tokens_after)


def pinned_at(outline: Outline | OutlineBuilder, decided_at: int) -> Spans:
    """What is pinned, with the changes up to there."""
    pinned = outline.pinned
    for change in outline.pin_changes:
        if change.at <= decided_at and change.unpin:
            pinned = without(pinned, change.spans)
        elif change.at <= decided_at:
            pinned = joined((*pinned, *change.spans))
    return pinned


# Outlines have many rows of these, with numbers that grow by little.
_ROWS: Final = ("past", "summaries", "units")


def _columns(rows: Iterable[Iterable[Any]]) -> list[Any]:
    """Rows by column: numbers as far from the one above, anything else as it is."""
    return [
        [b - a for a, b in pairwise((0, *column))]
        if isinstance(column[0], int)
        else [_plain(value) for value in column]
        for column in zip(*rows, strict=True)
    ]


def _rows(columns: Iterable[list[Any]]) -> list[tuple[Any, ...]]:
    """The rows that ``_columns`` wrote."""
    sums = (accumulate(c) if isinstance(c[0], int) else c for c in columns)
    return list(zip(*sums, strict=True))
