"""The fold of a session's events: an outline under way, changed in place.

To copy an outline for each event costs several times what the event changes, and grows
with the outline.  Nobody sees one under way: ``outline`` gives a value, as ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from refold.domain.envelope import ACTIVATED, Envelope
from refold.domain.events import (
    AgentResponse,
    Event,
    Final as Finished,
    HumanReview,
    Pin,
    Request,
    SystemPrompt,
    ToolCall,
    ToolResult,
    UserInput,
)
from refold.projections.context.by_unit import join
from refold.projections.context.memory import Memory
from refold.projections.context.open_exchanges import Waiting
from refold.projections.context.outline_parts import (
    LiveSummary,
    PinChange,
    Turn,
    Unit,
)
from refold.projections.context.spans import Spans, spans_of
from refold.projections.context.units import Place, Thread, place, weight

if TYPE_CHECKING:
    from refold.projections.context.outline import Detail, Outline

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
