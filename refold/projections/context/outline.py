"""The outline of a session: the small, textless fold that strategies decide on.

The main stream and the strategy's derived stream may be folded in pages of any size and
in any order, as long as the main stream is folded at least as far as a summary's
``decided_at_seq``; the outline is the same.  The effect of a compaction is therefore
computed from ``decided_at_seq``, never from the current progress of the fold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import accumulate, chain, groupby, pairwise
from math import inf
from typing import Any, Final, Literal, NamedTuple, cast

from pydantic import TypeAdapter

from refold.domain import events
from refold.domain.envelope import Envelope
from refold.domain.events import Event, JsonObject, Span, Summary
from refold.domain.parts import (
    MEDIA,
    Block,
    as_block,
    attachment_block,
    media_tokens,
    parts_of,
)
from refold.domain.tokens import MESSAGE_OVERHEAD
from refold.projections.context.edits import (
    Edit,
    Edited,
    HistoryEdited,
    applied,
    changed_after,
    edit_of,
)
from refold.projections.context.limits import LONGEST_ANSWER, LONGEST_CHOICE
from refold.projections.context.text import task_change, tasks_of
from refold.projections.context.units import (
    LiveSummary,
    Place,
    Spans,
    Thread,
    Turn,
    Unit,
    Waiting,
    holds,
    joined,
    key_of,
    place,
    spans_of,
    unit_of,
    weight,
    without,
)

# The version of the stored form.  Outlines of another shape are dropped, and the log is
# folded again.
SHAPE: Final = 17
Detail = Literal["counts", "turns", "units", "both"]
_BY_UNIT: Final = ("units", "both")
# The most frequent types of events.  ``_note`` has nothing to do for them.
_UNNOTED: Final = frozenset({events.ToolCall, events.ToolResult, events.UserInput})
# The events whose words views show next to the summaries of these events.
_PROTECTED: Final = frozenset(
    {
        events.UserInput,
        events.HumanReview,
        events.Planner,
        events.Reflection,
        events.Aggregate,
    }
)
# The events that may have images and documents.
_WITH_MEDIA: Final = frozenset({events.UserInput, events.ToolResult})
# The tokens of a subject: the text that a short answer refers to, or the call that a
# decision is about.
_SUBJECT_TOKENS: Final = 50


class ProtectedEvent(NamedTuple):
    """A user input, a decision, a plan, or a judgment of the agent, with its cost.

    turn:    the number of its turn.
    subject: the seq of the event that explains it; 0 for none.  It is the agent's text
             before a short input, or the call that a decision is about.
    """

    seq: int
    tokens: int
    turn: int
    subject: int = 0


class ClientSummary(NamedTuple):
    """A summary with which a client replaced earlier history, and its cost.

    turn: the number of the turn that it begins or belongs to.
    """

    seq: int
    tokens: int
    turn: int


class PlanEvent(NamedTuple):
    """An event of the current plan, and its cost.

    turn: the number of its turn.
    task: the id of a task, if the event only sets the status of that task; else empty.
    """

    seq: int
    tokens: int
    turn: int
    task: str = ""


class MediaEvent(NamedTuple):
    """An event with an image or a document, and the cost of all of them in it."""

    seq: int
    kind: str
    tokens: int


class CoveredEvent(NamedTuple):
    """A protected event that a summary covers; see ``ProtectedEvent``."""

    seq: int
    turn: int
    subject: int = 0


class AnsweredCall(NamedTuple):
    """The newest call that got its result.

    key: the keyed call id.
    """

    key: str
    seq: int


class PinChange(NamedTuple):
    """A pin or unpin at the seq ``at`` that no compaction has applied yet."""

    at: int
    spans: Spans
    unpin: bool


class Fact(NamedTuple):
    """An event that states facts about the user.

    keys: digests of the names of the facts.
    """

    seq: int
    keys: tuple[str, ...]


class Note(NamedTuple):
    """A call in which the agent wrote notes, and the number of their lines."""

    seq: int
    lines: int


class LayerState(NamedTuple):
    """The memory layers of a session: their newest state, and the state in views.

    Views show the layers as they were at the last compaction, so that the prefix of
    the context stays unchanged between compactions.

    shown_at:      the last seq of the main stream that views take into account; None
                   before the first compaction, when they show everything.
    facts, notes:  the facts and notes that views may still need, oldest first.
    scope:         the newest digest of the session's scope.
    scope_shown:   the digest that views show.
    written:       the newest rewrite of the notes, with ``written_lines`` lines.
    written_shown: the rewrite that views show.
    failures:      the failed attempts to write a layer since the last success.
    failed_at:     the time of the last failure, in microseconds since 1970.
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
        """The seq in the derived stream of the newest layer summary; 0 if none."""
        layers = (self.scope, self.written)
        return max((layer.seq for layer in layers if layer is not None), default=0)

    @property
    def unwritten(self) -> tuple[Note, ...]:
        """The notes that no rewrite includes."""
        return _after(self.notes, self.written)

    @property
    def lines(self) -> int:
        """The number of lines of notes, rewritten ones included."""
        return self.written_lines + sum(note.lines for note in self.unwritten)

    @property
    def summaries(self) -> tuple[LiveSummary, ...]:
        """The layer summaries that views show."""
        layers = (self.scope_shown, self.written_shown)
        return tuple(layer for layer in layers if layer is not None)

    @property
    def facts_shown(self) -> Spans:
        """The seqs of the events whose facts views show."""
        shown = [fact for fact in self.facts if self._is_shown(fact.seq)]
        return spans_of(fact.seq for fact in _current_facts(shown))

    @property
    def notes_shown(self) -> Spans:
        """The seqs of the notes that views show verbatim."""
        notes = _after(self.notes, self.written_shown)
        return spans_of(note.seq for note in notes if self._is_shown(note.seq))

    def taken(self, seq: int, summary: Summary) -> LayerState:
        """Return the state after a layer summary with this seq in its stream."""
        live = _live(seq, summary)
        succeeded = self._replace(failures=0, failed_at=None)
        if summary.kind == "scope":
            return succeeded._replace(scope=live)
        lines = len(summary.text.splitlines())
        return succeeded._replace(written=live, written_lines=lines)

    def compacted(self, decided_at: int) -> LayerState:
        """Return the state after a compaction, which updates what views show."""
        earlier = [fact for fact in self.facts if fact.seq <= decided_at]
        later = [fact for fact in self.facts if fact.seq > decided_at]
        return self._replace(
            shown_at=decided_at,
            facts=(*_current_facts(earlier), *later),
            notes=_after(self.notes, self.written),
            scope_shown=self.scope,
            written_shown=self.written,
        )

    def _is_shown(self, seq: int) -> bool:
        return self.shown_at is None or seq <= self.shown_at


def _after(notes: tuple[Note, ...], written: LiveSummary | None) -> tuple[Note, ...]:
    if written is None:
        return notes
    return tuple(note for note in notes if note.seq > written.last)


def _current_facts(facts: Sequence[Fact]) -> list[Fact]:
    """Return the facts that later facts have not replaced completely, oldest first."""
    replaced: set[str] = set()
    current: list[Fact] = []
    for fact in reversed(facts):
        if not replaced.issuperset(fact.keys):
            current.append(fact)
        replaced.update(fact.keys)
    current.reverse()
    return current


class Outline(NamedTuple):
    """The state of a session that compaction decisions depend on.

    Seqs are of the main stream, times are microseconds since 1970.

    detail:             the detail about events that are not compacted: only ``counts``,
                        for strategies that never compact, ``turns``, ``units``, or
                        both.
    through_seq:        the last event folded.
    derived_seq:        the last event folded of the derived stream.
    system_seq:         the newest system prompt; ``system_tokens`` is its cost.
    user_seq:           the newest user input.
    turn_count:         the number of turns that have begun.
    compacted_turns:    the number of turns that summaries cover.
    compacted_through:  the last seq that summaries cover.
    decided_at:         the seq at which the newest compaction was decided.
    past:               the finished turns that are not compacted, oldest first.
    turn_first:         the first seq of the newest turn.  Events before the first input
                        belong to the first turn.
    turn_tokens:        the cost of the newest turn.
    done, idle:         whether the newest turn is complete: by a final, or by a
                        response without calls, which a later call may still continue.
    raw_tokens:         the cost of all events that are not compacted.
    pinned:             the pinned seqs, which stay raw.
    kept:               the exchanges that stay raw because they were open when the
                        compaction was decided, or because its cut separates them.
    kept_input:         the newest user input, if the newest compaction covers it.
    units:              the exchanges that are not compacted, oldest first.
    messages:           the number of messages.
    compacted_messages: the number of messages before the first of ``units``.
    began_at:           the time of the first message.
    called_at:          the time of the last call of a model.
    compacted_at:       the time of the newest compaction, which is the time of the
                        newest exchange that had begun when it was decided.
    cleared:            the seq up to which a strategy has cleared content.
    notes:              further seqs that a strategy has to remember.
    layers:             the memory layers.
    failures:           the failed attempts since the last success.
    failed_at:          the time of the last failure.
    edits:              the changes that the client made to its history so far.
    protected_budget:   the most tokens of protected content; 0 protects nothing.
    protected:          the user inputs, decisions, reflections, and verdicts that no
                        summary covers, oldest first.
    protected_before:   those that summaries cover, oldest first.
    protected_cost:     the cost of those that summaries cover.
    plan:               the newest event of a plan.
    joins_plans:        whether views join the events of the current plan; otherwise
                        they show the newest one alone.
    keeps_judgments:    whether reflections and verdicts are protected.
    names_subjects:     whether short answers and decisions have their subjects.
    answers_once:       whether a text of the agent explains only the first input after
                        it.
    names_long_answers: whether long messages have their subjects, too.
    keeps_client_summaries: whether summaries of the client are protected, with the
                        user inputs, decisions, and plans that they replaced.
    client_summaries:   the summaries of the client, oldest first.
    replaced_turns:     the number of turns that the client replaced by summaries.
    replaced_calls:     the calls of the newest response that it replaced.
    spoken:             the seq of the newest text of the agent; 0 for none.
    answered:           the newest call with a result.
    plan_text:          the newest plan in prose.
    tasks:              the newest list of tasks, and later changes of single tasks.
    excluded:           whether the newest response is of an agent that the strategy
                        makes no summaries for.
    media:              the events with images or documents, oldest first.
    dropped_tokens:     the cost of the exchanges that the strategy forgot without a
                        summary.
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
    edits: tuple[Edit, ...] = ()
    protected_budget: int = 0
    protected: tuple[ProtectedEvent, ...] = ()
    protected_before: tuple[CoveredEvent, ...] = ()
    protected_cost: int = 0
    plan: ProtectedEvent | None = None
    joins_plans: bool = False
    keeps_judgments: bool = False
    names_subjects: bool = False
    answers_once: bool = False
    keeps_client_summaries: bool = False
    client_summaries: tuple[ClientSummary, ...] = ()
    replaced_turns: int = 0
    replaced_calls: tuple[AnsweredCall, ...] = ()
    spoken: int = 0
    answered: AnsweredCall | None = None
    plan_text: ProtectedEvent | None = None
    tasks: tuple[PlanEvent, ...] = ()
    excluded: bool = False
    media: tuple[MediaEvent, ...] = ()
    dropped_tokens: int = 0
    names_long_answers: bool = False

    @property
    def edited(self) -> Edited:
        """The result of all edits so far."""
        return applied(self.edits)

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The turns that are not compacted, oldest first, with the newest turn."""
        if not self.turn_count or self.turn_first is None:
            return ()
        complete = self.done or self.idle
        newest = Turn(self.turn_first, self.through_seq, complete, self.turn_tokens)
        return (*self.past, newest)

    @property
    def complete_turns(self) -> int:
        """The number of complete turns, with the compacted ones."""
        if self.done or self.idle:
            return self.turn_count
        return max(0, self.turn_count - 1)

    @property
    def summary_tokens(self) -> int:
        """The cost of the live summaries."""
        return sum(summary.tokens for summary in self.summaries)

    @property
    def tokens(self) -> int:
        """The cost of the system prompt, the summaries, and all raw events.

        Protected content is not counted, because no compaction can reduce it.  A
        session could never get below a threshold again.
        """
        return self.system_tokens + self.summary_tokens + self.raw_tokens

    @property
    def covered_plans(self) -> tuple[ProtectedEvent | PlanEvent, ...]:
        """The events of the current plan that summaries cover."""
        through = self.compacted_through
        if through is None:
            return ()
        if self.joins_plans:
            events_of_plan = (self.plan_text, *self.tasks)
        else:
            events_of_plan = (self.plan,)
        return tuple(
            event
            for event in events_of_plan
            if event is not None and event.seq <= through
        )

    @property
    def covered_client_summaries(self) -> tuple[ClientSummary, ...]:
        """The summaries of the client that summaries of Refold cover."""
        through = self.compacted_through
        if through is None:
            return ()
        return tuple(
            summary for summary in self.client_summaries if summary.seq <= through
        )

    @property
    def protected_seqs(self) -> tuple[int, ...]:
        """The protected events that summaries cover, oldest first."""
        seqs = [event.seq for event in self.protected_before]
        seqs += [event.seq for event in self.covered_plans]
        return tuple(sorted(seqs))

    @property
    def protected_subjects(self) -> dict[int, int]:
        """By the seq of a protected event, the seq of the event that explains it."""
        return {
            event.seq: event.subject for event in self.protected_before if event.subject
        }

    @property
    def protected_turns(self) -> dict[int, int]:
        """The number of the turn of each protected event, by its seq."""
        turns = {event.seq: event.turn for event in self.protected_before}
        for event in self.protected:
            turns[event.seq] = event.turn
        for plan in (self.plan, self.plan_text, *self.tasks):
            if plan is not None:
                turns[plan.seq] = plan.turn
        for summary in self.client_summaries:
            turns[summary.seq] = summary.turn
        return turns

    def turn_at(self, seq: int) -> int:
        """Return the number of the turn of an event that is not compacted."""
        number = max(self.replaced_turns + self.turn_count, 1)
        firsts = [turn.first for turn in self.turns]
        if self.detail in _BY_UNIT:
            firsts = [unit.first for unit in self.units if unit.type == "user_input"]
        return number - sum(1 for first in firsts if first > seq)

    @property
    def protected_tokens(self) -> int:
        """The cost of the protected content that views show beside summaries."""
        total = self.protected_cost
        total += sum(event.tokens for event in self.covered_plans)
        return min(total, self.protected_budget)

    @property
    def open_calls_after(self) -> int | None:
        """The number of turns after which a call stops waiting for its result."""
        return self.thread.open_calls_after

    @property
    def raw_span(self) -> Span | None:
        """The seqs that no summary covers, or None."""
        if self.first_seq is None:
            return None
        compacted = self.compacted_through
        first = self.first_seq if compacted is None else compacted + 1
        return (first, self.through_seq) if first <= self.through_seq else None

    def reads(self, raw: Spans) -> Spans:
        """Return the seqs that a view is rendered from.

        raw: the seqs that the strategy shows raw.
        """
        spans = [*raw, *self.pinned]
        for seq in (self.system_seq, self.kept_input):
            if seq is not None:
                spans.append((seq, seq))
        for exchange in self.kept:
            spans += exchange
        spans += self.layers.facts_shown
        spans += self.layers.notes_shown
        reads = joined(spans)
        if self.edits:
            reads = without(reads, self.edited.left_out)
        # Events that the client replaced by a summary are among the protected ones.
        return joined((*reads, *self.protected_reads))

    @property
    def protected_reads(self) -> Spans:
        """The seqs that protected content is rendered from."""
        seqs = [*self.protected_seqs, *self.protected_subjects.values()]
        seqs += [summary.seq for summary in self.covered_client_summaries]
        return spans_of(seqs)

    @property
    def shown_summaries(self) -> tuple[int, ...]:
        """The seqs, in the derived stream, of the summaries that a view shows."""
        summaries = (*self.summaries, *self.layers.summaries)
        return tuple(summary.seq for summary in summaries)

    def dump(self) -> JsonObject:
        """Return the outline as JSON: small, and without any text of the session.

        Fields with their default value are left out.
        """
        dumped: JsonObject = {"shape": SHAPE}
        for name, value in self._asdict().items():
            if value == self._field_defaults[name]:
                continue
            dumped[name] = _columns(value) if name in _TABLES else _lists(value)
        return dumped

    @classmethod
    def load(cls, dumped: JsonObject) -> Outline:
        """Read the JSON that ``dump`` wrote.

        Raises ValueError if it has another shape; the log has to be folded again.
        """
        if dumped.get("shape") != SHAPE:
            raise ValueError(f"the stored outline is not of shape {SHAPE}")
        fields: dict[str, Any] = {}
        for name, value in dumped.items():
            if name in _TABLES:
                fields[name] = _rows(cast("list[list[Any]]", value))
            elif name != "shape":
                fields[name] = value
        return _adapter().validate_python(fields)


@cache
def _adapter() -> TypeAdapter[Outline]:
    """Return the validator of stored outlines, which the first use builds."""
    return TypeAdapter(Outline)


def _lists(value: Any) -> Any:
    """Return a value with its tuples as lists, at every level."""
    if isinstance(value, tuple):
        return [_lists(item) for item in value]
    return value


class OutlineBuilder:
    """Folds events of the main stream into an outline.

    Its attributes are the fields of ``Outline``.

    is_edited: whether the client changed its history, so that events must pass
               ``visible``.
    """

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
    edits: tuple[Edit, ...]
    protected_budget: int
    plan: ProtectedEvent | None
    joins_plans: bool
    keeps_judgments: bool
    names_subjects: bool
    answers_once: bool
    names_long_answers: bool
    keeps_client_summaries: bool
    client_summaries: tuple[ClientSummary, ...]
    replaced_turns: int
    replaced_calls: tuple[AnsweredCall, ...]
    spoken: int
    answered: AnsweredCall | None
    plan_text: ProtectedEvent | None
    tasks: tuple[PlanEvent, ...]
    excluded: bool
    is_edited: bool

    def __init__(self, outline: Outline, edits: Sequence[Edit] = ()) -> None:
        """Begin with an outline.

        edits: the edits in the events that follow.  The builder applies them from the
               start, so the outline must not contain events that they change.
        """
        self._expected = tuple(edits)
        self.begin(outline)

    def begin(self, outline: Outline) -> None:
        """Start again from this outline."""
        attributes = vars(self)
        attributes.update(zip(outline._fields, outline, strict=True))
        self._start = outline
        self._ended: list[Turn] = []
        self._protected: list[ProtectedEvent] = []
        self._media: list[MediaEvent] = []
        self._units: list[Unit] | None = None
        self._next: tuple[Envelope, Thread, Place | None] | None = None
        # Events of a parent have seqs below those of an outline without events.
        through_seq = outline.through_seq if outline.events else -inf
        later = [edit for edit in self._expected if edit.at > through_seq]
        self._edited = applied((*outline.edits, *later))
        self.is_edited = bool(outline.edits or later)

    def visible(self, envelope: Envelope) -> Envelope | None:
        """Return the next event as contexts show it, or None if they leave it out.

        An event that is left out is counted and not folded.  If the client replaced it
        by a summary, ``take_replaced`` remembers its protected content.

        Raises HistoryEdited if the event changes events that were folded unchanged.
        """
        edit = edit_of(envelope)
        if edit is not None:
            if edit not in self._expected:
                raise HistoryEdited
            self.edits = (*self.edits, edit)
        visible = self._edited.shown(envelope)
        if visible is None:
            self.through_seq = envelope.seq
            self.events += 1
        return visible

    def outline(self) -> Outline:
        """Return the outline of the events folded so far."""
        start = self._start
        fields = {
            **vars(self),
            "past": (*start.past, *self._ended) if self._ended else start.past,
            "units": start.units if self._units is None else tuple(self._units),
            "protected": (*start.protected, *self._protected),
            "media": (*start.media, *self._media) if self._media else start.media,
        }
        return type(start)._make([fields[name] for name in start._fields])

    @property
    def tokens(self) -> int:
        """The same as ``Outline.tokens``."""
        summaries = sum(summary.tokens for summary in self.summaries)
        return self.system_tokens + summaries + self.raw_tokens

    @property
    def units(self) -> list[Unit]:
        """The exchanges that are not compacted, oldest first; callers may change it."""
        if self._units is None:
            self._units = list(self._start.units)
        return self._units

    def place(self, envelope: Envelope) -> Place | None:
        """Return the place of the next event, or None if it is no message."""
        if self._next is None or self._next[0] is not envelope:
            self._next = (envelope, *place(self.thread, envelope))
        return self._next[2]

    def take(self, envelope: Envelope) -> None:
        """Fold the next event.  Raises ValueError if it was folded already."""
        seq = envelope.seq
        if self.events and seq <= self.through_seq:
            raise ValueError(
                f"seq {seq} was folded: the outline is at {self.through_seq}"
            )
        looked_up = self._next
        self._next = None
        if looked_up is not None and looked_up[0] is envelope:
            _, self.thread, placed = looked_up
        else:
            self.thread, placed = place(self.thread, envelope)
        self.through_seq = seq
        self.events += 1
        if self.first_seq is None:
            self.first_seq = seq
        if placed is not None:
            self._count(envelope, placed)
            if self.detail in _BY_UNIT:
                self._add_to_units(envelope, placed)
        if self.detail != "counts":
            self._update_waiting(envelope, placed)
        if self.protected_budget and type(envelope.payload) in _PROTECTED:
            self._protect(envelope)
        if self._protects_client_summaries and self._is_client_summary(envelope):
            self._keep_client_summary(envelope)
        if self.names_subjects:
            self._remember_subject(envelope, placed)
        if type(envelope.payload) in _WITH_MEDIA:
            self._media += media_in(envelope)
        self._note(envelope)

    def take_replaced(self, envelope: Envelope) -> None:
        """Remember the protected content of an event that contexts leave out.

        Only events that the client replaced by a summary have any, because that summary
        lacks words of the user.
        """
        if not self._protects_client_summaries:
            return
        if not holds(self._edited.replaced, envelope.seq):
            return
        payload = envelope.payload
        match payload:
            case events.UserInput():
                self.replaced_turns += 1
                self._protect(envelope)
                if not is_injected(envelope):
                    self.spoken = 0
            case events.HumanReview() | events.Planner():
                self._protect(envelope)
            case events.AgentResponse(text=text) | events.Final(text=text):
                self.replaced_calls = ()
                if text.strip():
                    self.spoken = envelope.seq
            case events.ToolCall(call_id=call_id):
                call = AnsweredCall(key_of(call_id), envelope.seq)
                self.replaced_calls = (*self.replaced_calls, call)

    @property
    def _protects_client_summaries(self) -> bool:
        """Whether summaries of the client are protected."""
        return bool(self.protected_budget) and self.keeps_client_summaries

    def _is_client_summary(self, envelope: Envelope) -> bool:
        """Whether the client replaced earlier history by this event."""
        if not self.keeps_client_summaries:
            return False
        is_named = holds(self._edited.summaries, envelope.seq)
        match envelope.payload:
            case events.UserInput():
                return is_named or is_client_summary(envelope)
            case events.AgentResponse():
                return is_named and holds(self._edited.in_place, envelope.seq)
        return False

    def _keep_client_summary(self, envelope: Envelope) -> None:
        """Remember a summary with which the client replaced earlier history."""
        tokens = envelope.token_estimate + MESSAGE_OVERHEAD
        summary = ClientSummary(envelope.seq, tokens, self._turn_number)
        self.client_summaries = (*self.client_summaries, summary)

    @property
    def _turn_number(self) -> int:
        """The number of the turn that is being folded."""
        return max(self.replaced_turns + self.turn_count, 1)

    def _protect(self, envelope: Envelope) -> None:
        """Remember an event whose words views show next to summaries."""
        subject = self._subject_of(envelope.payload) if self.names_subjects else 0
        event = ProtectedEvent(
            seq=envelope.seq,
            tokens=envelope.token_estimate + MESSAGE_OVERHEAD,
            turn=self._turn_number,
            subject=subject,
        )
        if subject:
            event = event._replace(tokens=event.tokens + _SUBJECT_TOKENS)
        match envelope.payload:
            case events.Planner(plan=plan):
                self.plan = event
                if self.joins_plans:
                    self._add_plan(event, plan)
            case events.HumanReview(decision=None):
                pass
            case events.Reflection() | events.Aggregate():
                if self.keeps_judgments:
                    self._protected.append(event)
            case _ if not (is_injected(envelope) or self._is_client_summary(envelope)):
                self._protected.append(event)

    def _subject_of(self, event: Event) -> int:
        """Return the seq of the event that explains this one; 0 for none."""
        match event:
            case events.UserInput(text=text):
                return self.spoken if self._may_answer(text) else 0
            case events.HumanReview(bundle={"call_id": str(call_id)}):
                key = key_of(call_id)
                for call in self.thread.open:
                    if call.key == key:
                        return call.seq
                if self.answered is not None and self.answered.key == key:
                    return self.answered.seq
                for answered in self.replaced_calls:
                    if answered.key == key:
                        return answered.seq
        return 0

    def _may_answer(self, text: str) -> bool:
        """Whether a message may be an answer to the newest text of the agent."""
        length = len(text.strip())
        if length <= LONGEST_ANSWER:
            return True
        if not (self.names_long_answers and self.spoken) or length > LONGEST_CHOICE:
            return False
        # A late import, because only long messages need these patterns.
        from refold.projections.context.choices import may_answer

        return may_answer(text)

    def _remember_subject(self, envelope: Envelope, placed: Place | None) -> None:
        """Remember an event that the next input or decision may be about."""
        payload = envelope.payload
        if isinstance(payload, events.AgentResponse | events.Final):
            if payload.text.strip():
                self.spoken = envelope.seq
        elif isinstance(payload, events.UserInput):
            if self.answers_once and not is_injected(envelope):
                self.spoken = 0
        elif placed is not None and placed.answers is not None:
            self.answered = AnsweredCall(placed.answers.key, placed.answers.seq)

    def _add_plan(self, event: ProtectedEvent, plan: Any) -> None:
        """Update the current plan: its text, its tasks, or one of them."""
        if isinstance(plan, str):
            if plan.strip():
                self.plan_text = event
            return
        if tasks_of(plan) is not None:
            self.tasks = (PlanEvent(event.seq, event.tokens, event.turn),)
            return
        change = task_change(plan)
        if change is None:
            return
        sets_status = change.keys() <= {"taskId", "status"}
        task = str(change["taskId"]) if sets_status and "taskId" in change else ""
        # The newest status of a task replaces an earlier one.
        others = [other for other in self.tasks if not task or other.task != task]
        self.tasks = (*others, PlanEvent(event.seq, event.tokens, event.turn, task))

    def _count(self, envelope: Envelope, placed: Place) -> None:
        tokens = weight(envelope, placed)
        if self.turn_first is None:
            self.turn_first = envelope.seq
        if placed.kind == "user":
            self._begin_turn(envelope.seq, self.turn_first)
        # A response without calls makes the turn idle; the next response proves that it
        # was done.  A call of the same response takes the idleness back.
        payload = envelope.payload
        if isinstance(payload, events.AgentResponse):
            self.done = self.done or self.idle
            self.idle = payload.stop_reason != "tool_use"
        elif placed.kind == "call":
            begins_response = placed.exchange == envelope.seq
            self.done = self.done or (self.idle and begins_response)
            self.idle = False
        self.turn_tokens += tokens
        self.raw_tokens += tokens

    def _begin_turn(self, seq: int, first: int) -> None:
        """Begin a turn with a user input.

        first: the first seq of the turn so far.
        """
        if self.turn_count:
            if self.detail in ("turns", "both"):
                self._ended.append(Turn(first, seq - 1, True, self.turn_tokens))
            self.turn_first = seq
            self.turn_tokens = 0
        self.turn_count += 1
        self.user_seq = seq
        self.done = False
        self.idle = False

    def _add_to_units(self, envelope: Envelope, placed: Place) -> None:
        unit = unit_of(envelope, placed)
        self.messages += unit.messages
        if self.began_at is None:
            self.began_at = envelope.at
        units = self.units
        index = None
        if placed.kind != "late" and placed.exchange != envelope.seq:
            index = _index(units, placed.exchange)
        if index is None:
            units.append(unit)
        else:
            units[index] = units[index].joined(unit, newest=index == len(units) - 1)

    def _update_waiting(self, envelope: Envelope, placed: Place | None) -> None:
        waiting = self.waiting
        seq = envelope.seq
        if placed is not None and placed.kind == "user":
            waiting = waiting.in_next_turn(seq, self.thread)
        elif placed is not None:
            waiting = waiting.member(seq, placed, self.thread, self._uncut_from())
        review = envelope.payload
        if isinstance(review, events.HumanReview) and envelope.meta.in_context:
            if review.decision is None:
                waiting = waiting.asked(seq, self.thread, self.user_seq)
            elif review.refers_to is not None:
                waiting = waiting.decided(
                    seq, review.refers_to, self.thread, self._uncut_from()
                )
        if waiting is not self.waiting:
            self.waiting = waiting.beyond(self.compacted_through)

    def _uncut_from(self) -> int | None:
        """Return the first seq after which no cut can lie yet.

        Exchanges from here on need no ties: one that ends while it is the newest was
        never open at a cut.
        """
        if self.detail in _BY_UNIT:
            units = self._start.units if self._units is None else self._units
            return units[-1].first if units else None
        return self.turn_first if self.turn_count else None

    def _note(self, envelope: Envelope) -> None:
        payload = envelope.payload
        if type(payload) in _UNNOTED:
            return
        match payload:
            case events.AgentResponse():
                self.called_at = envelope.at
            case events.Request() if not envelope.activates_strategy:
                self.called_at = envelope.at
            case events.Final():
                self.done = True
            case events.SystemPrompt(is_prompt=True):
                self.system_seq = envelope.seq
                self.system_tokens = envelope.token_estimate
            case events.Pin(seqs=seqs, unpin=unpin) if self.detail != "counts":
                change = PinChange(envelope.seq, spans_of(seqs), unpin)
                self.pin_changes = (*self.pin_changes, change)


def media_in(envelope: Envelope) -> Iterator[MediaEvent]:
    """Yield an event once for each kind of media in it."""
    event = envelope.payload
    blocks: list[Block] = []
    if isinstance(event, events.UserInput):
        for attachment in event.attachments:
            block = attachment_block(attachment.__dict__)
            if block is not None:
                blocks.append(block)
    elif isinstance(event, events.ToolResult) and type(event.content) in (list, dict):
        for part in parts_of(event.content) or ():
            block = as_block(part)
            if block is not None:
                blocks.append(block)
    tokens: dict[str, int] = {}
    for block in blocks:
        kind = block["type"]
        if kind in MEDIA:
            tokens[kind] = tokens.get(kind, 0) + media_tokens(block)
    for kind, cost in tokens.items():
        yield MediaEvent(envelope.seq, kind, cost)


def is_injected(envelope: Envelope) -> bool:
    """Whether a client put a user input into the context that no person wrote."""
    source = envelope.meta.source or {}
    return bool(source.get("meta")) or is_client_summary(envelope)


def is_client_summary(envelope: Envelope) -> bool:
    """Whether a user input is the summary with which a client replaced its history."""
    source = envelope.meta.source or {}
    return bool(source.get("compact_summary"))


def _index(units: Sequence[Unit], first: int) -> int | None:
    """Search from the end for the exchange that begins at ``first``."""
    for index in range(len(units) - 1, -1, -1):
        if units[index].first <= first:
            return index if units[index].first == first else None
    return None


def is_rebuild(entry: Envelope) -> bool:
    """Whether a rebuild replaced all earlier entries of the derived stream."""
    return getattr(entry.payload, "phase", "") == "rebuilt"


def since_last_rebuild(derived: Iterable[Envelope]) -> list[Envelope]:
    """Return the entries of a derived stream since its last rebuild.

    derived: the stream from its first entry.
    """
    entries: list[Envelope] = []
    for entry in derived:
        if is_rebuild(entry):
            entries.clear()
        entries.append(entry)
    return entries


def fold_derived(outline: Outline, envelope: Envelope) -> Outline:
    """Fold an event of the strategy's derived stream.

    Raises ValueError if the main stream is not folded up to ``decided_at_seq``.
    """
    outline = outline._replace(derived_seq=envelope.seq)
    match envelope.payload:
        case Summary() as summary if was_edited(outline, summary):
            return outline
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


def was_edited(outline: Outline, summary: Summary) -> bool:
    """Whether the client changed events of a summary after it was decided.

    Such a summary describes events that contexts leave out, so no context shows it.
    """
    return changed_after(
        outline.edits, summary.decided_at_seq, summary.first_seq, summary.last_seq
    )


def compacted(outline: Outline, seq: int, summary: Summary) -> Outline:
    """Return the outline after a compaction.

    seq: the seq of the summary in the derived stream.
    """
    decided_at = summary.decided_at_seq
    through = summary.last_seq  # 0 or less in a fork, for events of its parent
    if outline.compacted_through is not None:
        through = max(through, outline.compacted_through)
    stay_raw, waiting = outline.waiting.compacted(
        through, decided_at, keeps_whole=outline.open_calls_after is not None
    )
    summaries = [live for live in outline.summaries if live.seq not in summary.absorbs]
    summaries.append(_live(seq, summary))
    summaries.sort(key=lambda live: live.first)
    if outline.detail in _BY_UNIT:
        outline = _without_units(outline, through, decided_at)
    else:
        outline = _without_turns(outline, through, summary)
    past = tuple(
        turn._replace(first=max(turn.first, through + 1))
        for turn in outline.past
        if turn.last > through
    )
    pending = [change for change in outline.pin_changes if change.at > decided_at]
    covered = [event for event in outline.protected if event.seq <= through]
    covered_events = [
        CoveredEvent(event.seq, event.turn, event.subject) for event in covered
    ]
    covered_tokens = sum(event.tokens for event in covered)
    return outline._replace(
        protected=outline.protected[len(covered) :],
        protected_before=(*outline.protected_before, *covered_events),
        protected_cost=outline.protected_cost + covered_tokens,
        past=past,
        compacted_through=through,
        decided_at=decided_at,
        summaries=tuple(summaries),
        waiting=waiting,
        kept=stay_raw,
        layers=outline.layers.compacted(decided_at),
        failures=0,
        failed_at=None,
        pinned=pinned_at(outline, decided_at),
        pin_changes=tuple(pending),
    )


def _without_turns(outline: Outline, through: int, summary: Summary) -> Outline:
    """Remove the turns up to ``through``, and the first part of a turn that it cuts."""
    removed = [turn.tokens for turn in outline.past if turn.last <= through]
    absorbed = [live for live in outline.summaries if live.seq in summary.absorbs]
    absorbed_tokens = sum(live.tokens for live in absorbed)
    # The tokens that the compaction took from the turn that it cuts.
    from_cut_turn = summary.tokens_before - absorbed_tokens - sum(removed)
    removed_part = 0
    past = list(outline.past)
    turn_first = outline.turn_first
    cut = next((turn for turn in past if turn.first <= through < turn.last), None)
    if cut is not None:
        removed_part = max(0, min(from_cut_turn, cut.tokens))
        past[past.index(cut)] = cut._replace(tokens=cut.tokens - removed_part)
    elif turn_first is not None and turn_first <= through:
        removed_part = max(0, min(from_cut_turn, outline.turn_tokens))
        outline = outline._replace(
            turn_first=through + 1, turn_tokens=outline.turn_tokens - removed_part
        )
    return outline._replace(
        past=tuple(past),
        compacted_turns=outline.compacted_turns + len(removed),
        raw_tokens=outline.raw_tokens - sum(removed) - removed_part,
    )


def _without_units(outline: Outline, through: int, decided_at: int) -> Outline:
    """Remove the exchanges that begin up to ``through``.

    Events of these exchanges that arrived after the decision stay as separate units.
    """
    removed = [unit for unit in outline.units if unit.first <= through]
    stay = [unit for unit in outline.units if unit.first > through]
    arrived_later: list[Unit] = []
    for unit in removed:
        arrived_later += [part for part in unit.later if part.first > decided_at]
    begun = [unit for unit in outline.units if unit.first <= decided_at]
    inputs = [unit.first for unit in begun if unit.type == "user_input"]
    newest_input = inputs[-1] if inputs else outline.kept_input
    is_covered = newest_input is not None and newest_input <= through
    tokens = _sum_tokens(removed) - _sum_tokens(arrived_later)
    messages = _sum_messages(removed) - _sum_messages(arrived_later)
    turns = [unit for unit in removed if unit.type == "user_input"]
    return outline._replace(
        units=tuple(sorted((*stay, *arrived_later), key=lambda unit: unit.first)),
        kept_input=newest_input if is_covered else None,
        raw_tokens=outline.raw_tokens - tokens,
        compacted_turns=outline.compacted_turns + len(turns),
        compacted_messages=outline.compacted_messages + messages,
        compacted_at=begun[-1].at if begun else outline.compacted_at,
    )


def _sum_tokens(units: Iterable[Unit]) -> int:
    return sum(unit.tokens for unit in units)


def _sum_messages(units: Iterable[Unit]) -> int:
    return sum(unit.messages for unit in units)


def _live(seq: int, summary: Summary) -> LiveSummary:
    return LiveSummary(
        seq=seq,
        first=summary.first_seq,
        last=summary.last_seq,
        level=summary.level,
        tokens=summary.tokens_after,
    )


def pinned_at(outline: Outline | OutlineBuilder, decided_at: int) -> Spans:
    """Return the pinned seqs after the changes up to ``decided_at``."""
    pinned = outline.pinned
    for change in outline.pin_changes:
        if change.at <= decided_at and change.unpin:
            pinned = without(pinned, change.spans)
        elif change.at <= decided_at:
            pinned = joined((*pinned, *change.spans))
    return pinned


# Fields with many rows.  Their numbers differ little from row to row, so they are
# stored by column, as differences, which compress well.
_TABLES: Final = (
    "past",
    "summaries",
    "units",
    "protected",
    "protected_before",
    "media",
)


def _columns(rows: Iterable[Iterable[Any]]) -> list[Any]:
    """Return rows by column, with numbers as differences to the row above.

    Other values are unchanged.  ``_rows`` reads the result.
    """
    columns: list[Any] = []
    for column in zip(*rows, strict=True):
        if isinstance(column[0], int):
            steps = [after - before for before, after in pairwise((0, *column))]
            columns.append({"runs": _runs(steps)})
        else:
            columns.append([_lists(value) for value in column])
    return columns


def _runs(steps: Sequence[int]) -> list[Any]:
    """Return the steps; a long run of equal steps becomes a pair of step and count."""
    runs: list[Any] = []
    for step, run in groupby(steps):
        count = len(list(run))
        if count > _LONGEST_PLAIN_RUN:
            runs.append([step, count])
        else:
            runs += [step] * count
    return runs


_LONGEST_PLAIN_RUN: Final = 3


def _rows(columns: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Read the columns that ``_columns`` wrote."""
    values: list[Iterable[Any]] = []
    for column in columns:
        if isinstance(column, dict):
            steps = chain.from_iterable(
                [step] if isinstance(step, int) else [step[0]] * step[1]
                for step in column["runs"]
            )
            values.append(accumulate(steps))
        else:
            values.append(column)
    return list(zip(*values, strict=True))
