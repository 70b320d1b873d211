"""The frame of all strategies: a strategy is a frozen value that decides without I/O.

Strategies also share the description of what they show raw (``Shown``), the memory
layers (``Layers``), and the way in which a summary is written (``write_summary``).
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from datetime import datetime
from difflib import get_close_matches
from functools import cache
from itertools import chain
from math import ceil
from typing import Any, ClassVar, Final, Literal, NamedTuple, final

import pydantic
from pydantic import BaseModel, Field, JsonValue, model_validator

from refold.domain import errors, events
from refold.domain.canonical import canonical, digest, text_digest
from refold.domain.envelope import Envelope
from refold.domain.events import JsonObject, StateUpdate, StrategyRef
from refold.domain.locks import computed_once
from refold.projections.context import compaction, outline as folded
from refold.projections.context.budget import WINDOW_TOKENS
from refold.projections.context.compaction import Compaction
from refold.projections.context.edits import Edit, edits_in
from refold.projections.context.limits import Limits, protected_tokens
from refold.projections.context.outline import Detail, Outline, OutlineBuilder
from refold.projections.context.text import value_text
from refold.projections.context.units import (
    Spans,
    Thread,
    Turn,
    joined,
    seen_by,
    spans_of,
    without,
)


class LeftOut(NamedTuple):
    """Messages from ``first`` to ``last`` that are neither shown nor summarized."""

    first: int
    last: int
    messages: int


def _never_cleared(_: Envelope) -> bool:
    return False


class Shown(NamedTuple):
    """The events that a view shows raw.

    raw:           their seqs; no summary stands for any of them.
    is_cleared:    whether a result among them is shown as a stub.
    clears_inputs: whether the calls of such results are shown without arguments.
    left_out:      what the view leaves out, with a note that counts it.
    """

    raw: Spans
    is_cleared: Callable[[Envelope], bool] = _never_cleared
    clears_inputs: bool = False
    left_out: LeftOut | None = None


def since(outline: Outline, index: int) -> Shown:
    """Show the exchanges from this index on, and leave out those before it.

    index: into ``outline.units``, at least 1.
    """
    left_out = outline.units[:index]
    first = outline.through_seq
    if index < len(outline.units):
        first = outline.units[index].first
    return Shown(
        with_input(outline, ((first, outline.through_seq),)),
        left_out=LeftOut(
            first=left_out[0].first,
            last=first - 1,
            messages=sum(unit.messages for unit in left_out),
        ),
    )


def with_input(outline: Outline, raw: Spans) -> Spans:
    """Add the events that every view shows, unless a summary stands for them.

    These are the newest user input, the newest event, and the open exchanges.
    """
    always: list[events.Span] = [(outline.through_seq, outline.through_seq)]
    if outline.user_seq:
        always.append((outline.user_seq, outline.user_seq))
    for hold in outline.waiting.holds:
        if hold.closed is None:
            always += hold.spans
    spans = joined(chain(raw, always))
    through = outline.compacted_through
    if through is None:
        return spans
    return tuple(
        (max(first, through + 1), last) for first, last in spans if last > through
    )


def everything(outline: Outline) -> Shown:
    """Show all events that no summary stands for."""
    span = outline.raw_span
    return Shown(() if span is None else (span,))


_USER_PREFIX: Final = "user:"
# The estimated tokens of a line of notes.
_LINE_TOKENS: Final = 40
# The length of a summary for a strategy that has no parameter for it.
_SUMMARY_TOKENS: Final = 600
# The most tokens of turns that one digest of the scope takes in.
_SCOPE_STEP: Final = 8_000


class Layers(BaseModel):
    """The memory layers of a strategy; by default it has none.

    user:         the user's profile and preferences: values of the working memory whose
                  names begin with ``user:``.
    scope:        a digest of the project or workspace.  After each turn, a new digest
                  is made from the last one and the turn.
    scope_tokens: the length of that digest.
    notes:        the agent's own notes.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)

    user: bool = False
    scope: bool = False
    scope_tokens: int = Field(default=1_000, ge=1)
    notes: compaction.Notes | None = None

    def updated(
        self, state: folded.LayerState, envelope: Envelope
    ) -> folded.LayerState:
        """Return the state of the layers after this event."""
        was_shown = state.shown_at is not None
        if was_shown and not self.user and self.notes is None:
            return state
        seq = envelope.seq
        match envelope.payload:
            case events.Request(through_seq=through) if not was_shown:
                if not envelope.activates_strategy:
                    state = state._replace(shown_at=through)
            case events.AgentResponse() | events.ToolCall() if not was_shown:
                # An imported session has no requests, but an answer implies one.
                state = state._replace(shown_at=seq - 1)
            case StateUpdate() if self.user:
                names = user_names(envelope)
                if names:
                    digests = tuple(text_digest(name)[:8] for name in names)
                    fact = folded.Fact(seq, digests)
                    state = state._replace(facts=(*state.facts, fact))
        if self.notes is not None:
            lines = compaction.note_lines(envelope, self.notes.tool)
            if lines:
                note = folded.Note(seq, len(lines))
                state = state._replace(notes=(*state.notes, note))
        return state

    def decide(self, outline: Outline, now: datetime) -> Compaction | None:
        """Return the next compaction of a layer, or None.

        Failures of layers delay only layers, not the compactions of the session.
        """
        if compaction.held_back(outline.layers, now):
            return None
        return self._decide_on_notes(outline) or self._decide_on_scope(outline)

    def wrote_newest_summary(self, outline: Outline) -> bool:
        """Whether the newest summary is a layer's.

        A compaction of the session may then still be pending.
        """
        newest = max((summary.seq for summary in outline.summaries), default=0)
        return outline.layers.newest > newest

    def _decide_on_scope(self, outline: Outline) -> Compaction | None:
        """Return the next digest of the scope, which adds the turns since the last."""
        if not self.scope:
            return None
        before = outline.layers.scope
        new = [
            turn
            for turn in outline.turns
            if turn.complete and (before is None or turn.first > before.last)
        ]
        if not new or outline.first_seq is None:
            return None
        new = _first_turns(new, _SCOPE_STEP)
        new_tokens = sum(turn.tokens for turn in new)
        return Compaction(
            first_seq=before.first if before else outline.first_seq,
            last_seq=new[-1].last,
            target_tokens=self.scope_tokens,
            decided_at_seq=outline.through_seq,
            tokens_before=new_tokens + (before.tokens if before else 0),
            reason=f"{len(new)} turns that the digest of the scope does not tell of",
            absorbs=(before.seq,) if before else (),
            kind="scope",
        )

    def _decide_on_notes(self, outline: Outline) -> Compaction | None:
        """Return the next rewriting of older notes, if there are too many lines."""
        rules = self.notes
        if rules is None or rules.compression_prompt is None:
            return None
        state = outline.layers
        older = _older(state.unwritten, rules.num_recent_memories_to_keep)
        older_lines = state.written_lines + sum(note.lines for note in older)
        is_too_much = state.lines > rules.max_lines
        if not is_too_much or not older or older_lines <= rules.lines:
            return None
        before = state.written
        first = before.first if before else older[0].seq
        first_new = before.last + 1 if before else first
        last = older[-1].seq
        older_seqs = spans_of(note.seq for note in older)
        return Compaction(
            first_seq=first,
            last_seq=last,
            target_tokens=rules.lines * _LINE_TOKENS,
            decided_at_seq=outline.through_seq,
            tokens_before=state.lines * _LINE_TOKENS,
            reason=f"{state.lines} lines of notes, {rules.max_lines} are kept",
            absorbs=(before.seq,) if before else (),
            omitted=without(((first_new, last),), older_seqs),
            kind="notes",
        )


def _first_turns(turns: list[Turn], most: int) -> list[Turn]:
    """Return the first turns within ``most`` tokens, at least one."""
    tokens = 0
    for count, turn in enumerate(turns):
        tokens += turn.tokens
        if tokens > most:
            return turns[: max(1, count)]
    return turns


def _older(notes: tuple[folded.Note, ...], keep: int) -> tuple[folded.Note, ...]:
    """Return the notes before the newest ones, which have ``keep`` lines in all."""
    count = len(notes)
    lines = 0
    while count and lines < keep:
        count -= 1
        lines += notes[count].lines
    return notes[:count]


def profile(envelopes: Iterable[Envelope]) -> JsonObject:
    """Return the values of the working memory about the user after these events.

    envelopes: oldest first.
    """
    values: JsonObject = {}
    for envelope in envelopes:
        update = envelope.payload
        if isinstance(update, StateUpdate):
            for name in user_names(envelope):
                values.pop(name, None)
                if name in update.set:
                    values[name] = update.set[name]
    return {name.removeprefix(_USER_PREFIX): value for name, value in values.items()}


def user_names(envelope: Envelope) -> list[str]:
    """Return the names of values about the user that an event sets or unsets."""
    update = envelope.payload
    if not isinstance(update, StateUpdate):
        return []
    names = [*update.set, *update.unset]
    return [name for name in names if name.startswith(_USER_PREFIX)]


def user_text(envelopes: Iterable[Envelope]) -> str:
    """Return the user's profile as text.

    Each value takes exactly one line, so that no value can pretend to be two.
    """
    values = profile(envelopes)
    return "\n".join(f"{name}: {_line(value)}" for name, value in values.items())


def _line(value: JsonValue) -> str:
    text = value_text(value)
    if len(text.splitlines()) > 1:
        return canonical(value).decode()
    return text


class Manner(NamedTuple):
    """How a strategy presents its views and asks for its summaries.

    form:            the presentation of summaries: as a user's text, as such a text
                     that the agent acknowledges, or as the result of a tool.
    acknowledgement: the agent's answer to its summary.
    pin_tokens:      the most tokens of pinned exchanges after the summaries.
    layers:          the memory layers before the summaries of the session.
    sends_back:      the types of the provider's blocks that requests return to it.
    api_parameters:  parameters that a request carries besides its messages.
    prompt:          the model's prompt for summaries; None uses the summarizer's.
    model:           the model for summaries; None uses the summarizer's.
    history:         the limits of the abridged history that comes with each summary.
    template:        the text of a summary, with the placeholder ``{summary}`` and
                     optionally ``{abridged_history}``; empty uses Refold's form.
    window:          the window that the strategy assumes, in tokens; it also limits the
                     length of a message.
    """

    form: Literal["text", "acknowledged", "tool"] = "text"
    acknowledgement: str = "I have read what happened before and continue from there."
    pin_tokens: int = 4_000
    layers: Layers | None = None
    sends_back: frozenset[str] = frozenset()
    api_parameters: JsonObject | None = None
    prompt: str | None = None
    model: str | None = None
    history: Limits | None = None
    template: str = ""
    window: int | None = None


# The newest version of the rules that all strategies share.
RULES: Final = 9
# Under earlier rules, views name events by their seqs.
_RULES_WITHOUT_SEQS: Final = 4
# From these rules on, a view shows the current plan with the state of its tasks.
RULES_WITH_JOINED_PLANS: Final = 4
# From these rules on, reflections and verdicts are protected, and decisions have the
# notes of the people who made them.
RULES_WITH_JUDGMENTS: Final = 5
# From these rules on, summaries do not repeat the judgments that views show next to
# them, and the newest judgments that fit stay.
RULES_WITH_JUDGMENTS_ONCE: Final = 6
# From these rules on, a short answer has what it chose, and a decision its call.
RULES_WITH_SUBJECTS: Final = 6
# From these rules on, a text of the agent explains only the first answer after it.
RULES_WITH_ONE_ANSWER: Final = 7
# From these rules on, summaries of the client are protected, with the words of the user
# that they replaced.
RULES_WITH_CLIENT_SUMMARIES: Final = 7
# From these rules on, a long message has the options that it names.
RULES_WITH_LONG_ANSWERS: Final = 9
# From these rules on, summaries name the files of events that the client replaced.
RULES_WITH_REPLACED_FILES: Final = 9


class Strategy(BaseModel):
    """A rule for contexts: a name, a version, and parameters as fields.

    name:          the name under which it is registered.
    version:       changes with every change of a byte in a view.
    rules:         the version of the rules that all strategies share.  Under rules 1, a
                   call waits for its result without a limit; views have only small
                   images and few blocks of the provider, and do not protect what the
                   user said.  Under rules 1 to 3, views name events by their seqs,
                   which differ between two records of the same history, show only the
                   newest change of a plan, give no reasons of decisions, and may cut a
                   long message inside a placeholder.  Under rules 1 to 4, they protect
                   no reflections and verdicts, and show no notes to decisions.
                   Under rules 5, summaries repeat these judgments, and a long one
                   takes the room of shorter ones.  Under rules 1 to 5, short answers
                   and decisions do not say what they are about, and headings do not
                   explain the notation.  Under rules 1 to 6, they protect no summary
                   of the client, and no words from before it, and a later short answer
                   has the subject of an earlier one.  Under rules 1 to 7, words of the
                   user give way before long results, and headings do not say that a
                   summary of the client is old.  Under rules 1 to 8, long messages
                   do not have the options that they name, no judgment stays if words
                   of the user fill the budget, and summaries do not name the files of
                   events that the client replaced.  A strategy that sets no rules has
                   rules 2.
    names_repetitions: whether a message of the user is only named where a later one
                   repeats it, under rules 3 and later.
    earlier:       the classes of its earlier versions, so that recorded requests can be
                   shown again.  ``spec`` adds those of the built-in strategies.
    needs:         the detail of its outlines.
    stable_prefix: whether its views only grow at their end between compactions.

    open_calls_after: the turns after which a call waits no longer for its result, or a
                   question for its decision.  The call keeps its placeholder, its
                   exchange may be dropped or summarized, and a late result is shown as
                   a note where it arrived.
    protected_tokens: the most tokens of what the user said in the spans that summaries
                   stand for; by default 8 % of the window, and at least 4,000.

    Raises UnknownStrategy for an unknown parameter or an invalid value.
    """

    model_config = pydantic.ConfigDict(
        frozen=True, extra="forbid", strict=True, ignored_types=(computed_once,)
    )

    name: ClassVar[str]
    version: ClassVar[int] = 1
    rules: ClassVar[int] = 2
    names_repetitions: ClassVar[bool] = False
    earlier: ClassVar[tuple[type[Strategy], ...]] = ()
    needs: ClassVar[Detail] = "turns"
    stable_prefix: ClassVar[bool] = True
    # Parameters that were added after the first release of the strategy.  With their
    # default they are not part of the fingerprint, which therefore stays the same.
    came_later: ClassVar[tuple[str, ...]] = ()
    # Parameters whose default changed: the last rules with the earlier default, and
    # that default.
    earlier_defaults: ClassVar[Mapping[str, tuple[int, JsonValue]]] = {}

    open_calls_after: int = Field(default=3, ge=1)
    protected_tokens: int | None = Field(default=None, ge=0)

    def __init__(self, **params: Any) -> None:
        try:
            super().__init__(**params)
        except pydantic.ValidationError as error:
            raise errors.UnknownStrategy(_explain(type(self), error)) from None
        try:
            canonical(self.params)
        except TypeError:
            reason = f"strategy {self.name}: a number has more than 64 bits"
            raise errors.UnknownStrategy(reason) from None

    @property
    def params(self) -> JsonObject:
        """The parameters as JSON, without those of ``came_later`` at their default."""
        fields = type(self).model_fields
        unchanged = {
            name
            for name in self.came_later
            if getattr(self, name) == fields[name].default
        }
        if self.protected_tokens is None:
            unchanged.add("protected_tokens")
        return self.model_dump(mode="json", exclude=unchanged)

    @computed_once
    def fingerprint(self) -> str:
        """The SHA-256 of the canonical JSON of name, version, and parameters."""
        return digest(self.definition)

    @property
    def definition(self) -> JsonObject:
        """Name, version, and parameters; ``spec.parse`` reads it."""
        return {"name": self.name, "version": self.version, "params": self.params}

    @property
    def ref(self) -> StrategyRef:
        """The strategy as summaries and requests record it."""
        return StrategyRef(**self.definition, fingerprint=self.fingerprint)

    @computed_once
    def manner(self) -> Manner:
        """The presentation of its views and the request for its summaries."""
        return Manner()

    @property
    def names_seqs(self) -> bool:
        """Whether its views name events by their seqs."""
        return self.rules < _RULES_WITHOUT_SEQS

    @property
    def keeps_judgments(self) -> bool:
        """Whether reflections and verdicts are protected, and decisions have notes."""
        return self.rules >= RULES_WITH_JUDGMENTS

    @property
    def shows_judgments_once(self) -> bool:
        """Whether its summaries leave out the judgments that views show anyway."""
        return self.rules >= RULES_WITH_JUDGMENTS_ONCE

    @property
    def written_as(self) -> tuple[object, ...]:
        """The values that the text of a summary depends on.

        The summarizer and the span come in addition.  Strategies with equal values
        adopt each other's summaries.
        """
        manner = self.manner
        summary_version = getattr(self, "summary_version", self.version)
        values: list[object] = [self.name, self.version, summary_version, self.reader]
        values += [manner.prompt, manner.model, manner.history]
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, Strategy):
                values.append(value.written_as)
        return tuple(values)

    @property
    def reader(self) -> str | None:
        """The agent whose view it is, or None if it is not one agent's view."""
        return None

    def sees(self, envelope: Envelope) -> Envelope | None:
        """Return the event as its views show it, or None if they hide it."""
        return seen_by(self.reader, envelope)

    def begin(self) -> Outline:
        """Return the outline of a session before its first event."""
        return self.outline(self.needs)

    @final
    def outline(self, detail: Detail) -> Outline:
        """Return the outline of an empty session in this detail."""
        thread = Thread(open_calls_after=self.open_calls_after)
        return Outline(
            detail=detail,
            thread=thread,
            protected_budget=self.protected_budget,
            joins_plans=self.rules >= RULES_WITH_JOINED_PLANS,
            keeps_judgments=self.keeps_judgments,
            names_subjects=self.rules >= RULES_WITH_SUBJECTS,
            answers_once=self.rules >= RULES_WITH_ONE_ANSWER,
            names_long_answers=self.rules >= RULES_WITH_LONG_ANSWERS,
            keeps_client_summaries=self.rules >= RULES_WITH_CLIENT_SUMMARIES,
        )

    @property
    def protected_budget(self) -> int:
        """The most tokens of what the user said beside summaries."""
        if self.rules < 2 or not self.compacts:
            return 0
        if self.protected_tokens is not None:
            return self.protected_tokens
        return protected_tokens(self.manner.window or WINDOW_TOKENS)

    def decide(self, outline: Outline, now: datetime) -> Compaction | None:  # noqa: ARG002  # some never compact
        """Return the next compaction that the session needs, or None.

        It is called again after each compaction until it returns None.
        """
        return None

    def press(self, outline: Outline, over: int, most: int) -> Compaction | None:
        """Return a compaction that makes room for ``over`` tokens, or None.

        It is called if a view is over the window although ``decide`` returned None.

        outline: of detail "units" or "both".
        most:    the most tokens of the source of one summary.
        """
        if not self.compacts:
            return None
        return compaction.pressed(
            outline,
            over,
            target=getattr(self, "summary_tokens", _SUMMARY_TOKENS),
            most=most,
            # In the other forms, a view has a single summary.
            absorbs=() if self.manner.form == "text" else outline.summaries,
        )

    @property
    def compacts(self) -> bool:
        """Whether it ever decides on a compaction."""
        return type(self).decide is not Strategy.decide

    def waits_for(self, outline: Outline) -> str:  # noqa: ARG002  # some never compact
        """Return a sentence for people: how far the next compaction is away."""
        if self.compacts:
            return f"{self.name} asks for none now"
        return f"{self.name} makes no summaries"

    def take(self, builder: OutlineBuilder, envelope: Envelope) -> None:
        """Add the next event to the outline that ``builder`` makes.

        A strategy that keeps more or less of an event overrides it.
        """
        builder.take(envelope)
        self.remember(builder, envelope)

    def remember(self, builder: OutlineBuilder, envelope: Envelope) -> None:
        """Update the memory layers for an event that the builder has taken."""
        layers = self.manner.layers
        if layers is not None:
            builder.layers = layers.updated(builder.layers, envelope)

    @final
    def add(self, builder: OutlineBuilder, envelope: Envelope) -> None:
        """Add the next event of the log, unless the client left it out.

        Raises HistoryEdited if the event changes events that were added before.
        """
        if not builder.is_edited and envelope.type != "provider_edit":
            self.take(builder, envelope)
            return
        visible = builder.visible(envelope)
        if visible is not None:
            self.take(builder, visible)
            return
        seen = self.sees(envelope)
        if seen is not None:
            builder.take_replaced(seen)

    @final
    def fold(self, outline: Outline, envelope: Envelope) -> Outline:
        """Return the outline after this event of the main stream.

        Raises HistoryEdited if the event changes earlier ones.
        """
        builder = OutlineBuilder(outline)
        self.add(builder, envelope)
        return builder.outline()

    @final
    def read(
        self,
        outline: Outline,
        envelopes: Iterable[Envelope],
        edits: Sequence[Edit] = (),
    ) -> Outline:
        """Return the outline after these events of the main stream, oldest first.

        edits: those that ``envelopes`` contain, which are applied from the start.

        Raises HistoryEdited if ``envelopes`` contain another edit: ``read_whole`` then
        reads all events again.
        """
        builder = OutlineBuilder(outline, edits)
        for envelope in envelopes:
            if builder.is_edited or envelope.type == "provider_edit":
                self.add(builder, envelope)
            else:  # the same as ``add``, for most events
                self.take(builder, envelope)
        return builder.outline()

    @final
    def read_whole(self, envelopes: Sequence[Envelope]) -> Outline:
        """Return the outline of a log that ends with these events.

        envelopes: all events, oldest first.
        """
        return self.read(self.begin(), envelopes, edits_in(envelopes))

    def as_shown(self, outline: Outline) -> Outline:
        """Return the outline as a view that is made of it now shows it.

        A strategy that removes parts of views without recording it overrides this.
        """
        return outline

    def show(self, outline: Outline) -> Shown:
        """Return the events that views show raw; by default all without a summary."""
        return everything(outline)

    def over_window(self, tokens: int) -> int:
        """Return by how many estimated tokens a view exceeds the strategy's window.

        It is 0 for a strategy that assumes no window of its own.
        """
        window = self.manner.window
        return 0 if window is None else max(0, tokens - window)

    def over_limits(self, tokens: int, raw_tokens: int) -> int:  # noqa: ARG002  # few limit the raw part
        """Return by how many estimated tokens a view exceeds the strategy's limits.

        tokens:     of the whole view.
        raw_tokens: of the part that is shown raw.
        """
        return self.over_window(tokens)

    def due_at(self, outline: Outline, now: datetime) -> datetime | None:  # noqa: ARG002  # most have none
        """Return the time at which a compaction may be needed without a new event."""
        return None

    def follow_up(self, outline: Outline, now: datetime) -> Compaction | None:  # noqa: ARG002  # most have none
        """Return a further compaction of the same check, after one took effect."""
        return None

    @final
    def further(self, outline: Outline, now: datetime) -> Compaction | None:
        """Return the next compaction of the same moment, after one took effect.

        When it returns None, nothing is pending at that moment.
        """
        return self.follow_up(outline, now) or self.decide(outline, now)


@cache
def under_rules(kind: type[Strategy], version: int, rules: int) -> type[Strategy]:
    """Return an earlier version of a strategy, which differs only in ``rules``."""
    namespace: dict[str, Any] = {
        "__module__": kind.__module__,
        "__doc__": kind.__doc__,
        "version": version,
        "rules": rules,
    }
    if rules < 2:
        # These parameters did not exist, so the fingerprint does not include them.
        names = ("open_calls_after", "protected_tokens")
        namespace["__annotations__"] = dict.fromkeys(names)
        namespace.update(dict.fromkeys(names))
        namespace["came_later"] = (*kind.came_later, *names)
    for name, (last_rules, default) in kind.earlier_defaults.items():
        if rules <= last_rules:
            field = copy(kind.model_fields[name])
            annotations = namespace.setdefault("__annotations__", {})
            annotations[name] = field.annotation
            field.default = default
            namespace[name] = field
    version_class: type[Strategy] = types.new_class(
        kind.__name__, (kind,), exec_body=lambda body: body.update(namespace)
    )
    return version_class


def distance(
    name: str, count: int, what: str, limit: float, *, last: int = 0, of: int = 0
) -> str:
    """Return a sentence for ``waits_for``: the current number, and the limit.

    name: of the strategy.
    what: the things that it counts, in the singular.
    last: the number of the newest things that do not count.
    of:   the number that the limit is a share of.
    """
    current = errors.counted(count, what)
    if last:
        current += f" before the last {last:,}"
    most = f"{limit:,.0f}"
    if of:
        most += f" of {of:,}"
    if count >= limit:  # only an open exchange prevents the compaction
        most += ", but a call or a question there still waits for its answer"
    return f"{current}; {name} compacts at {most}"


class Pinning(Strategy):
    """A strategy with a budget for pinned exchanges.

    pin_tokens: the most tokens of pinned exchanges after the summaries.
    """

    pin_tokens: int = Field(default=4_000, ge=0)

    @computed_once
    def manner(self) -> Manner:
        """The manner of its views, with its budget for pinned exchanges."""
        return Manner(pin_tokens=self.pin_tokens)


class Weighed(Strategy):
    """A strategy that counts tokens as a model does.

    model:  the model; by default, the stored estimates count.
    weight: the tokens of the model for each estimated token; by default the ratio that
            was measured for ``model``, or 1.

    Raises UnknownModel.
    """

    came_later: ClassVar[tuple[str, ...]] = ("model", "weight")

    model: str | None = None
    weight: float = Field(default=1.0, ge=1, le=10, strict=False)

    @model_validator(mode="before")
    @classmethod
    def _of_model(cls, given: Any) -> Any:
        # The weight becomes a recorded parameter, so that a later measurement changes
        # no decision.
        if isinstance(given, dict) and given.get("model") and "weight" not in given:
            from refold.projections.tokens import weight_of

            return {**given, "weight": weight_of(str(given["model"]))}
        return given

    def weighed(self, tokens: int) -> int:
        """Return the model's count for a number of estimated tokens."""
        return round(tokens * self.weight)

    def over(self, tokens: int, limit: int) -> int:
        """Return the estimated tokens over a limit, which counts the model's tokens."""
        return max(0, ceil(tokens - limit / self.weight))

    @property
    def known_window(self) -> int | None:
        """The window of the model in its tokens, or None if none is known."""
        from refold.projections.models import window_of

        if self.model is None:
            return None
        try:
            return window_of(self.model)
        except errors.UnknownModel:
            return None

    def over_window(self, tokens: int) -> int:
        """Return by how many estimated tokens a view exceeds the model's window."""
        window = self.known_window
        return 0 if window is None else self.over(tokens, window)


def valid_names(name: str, names: Iterable[str]) -> str:
    """Return the valid names, and the one that is most similar to ``name``.

    The text does not repeat ``name``, which may be a secret in a wrong place.
    """
    valid = list(names)
    text = f"there is: {', '.join(valid) or 'none'}"
    for similar in get_close_matches(name, valid, n=1):
        text += f"; did you mean {similar}?"
    return text


def _explain(kind: type[Strategy], error: pydantic.ValidationError) -> str:
    """Return the problems of the parameters of a strategy, in one sentence."""
    problems: list[str] = []
    for detail in error.errors(include_url=False):
        place = ".".join(str(part) for part in detail["loc"])
        if detail["type"] == "extra_forbidden":
            # The strategy's own parameters come before inherited ones.
            own = [name for name in kind.model_fields if name in kind.__annotations__]
            inherited = [name for name in kind.model_fields if name not in own]
            valid = valid_names(place, [*own, *inherited])
            problems.append(f"there is no such parameter ({valid})")
        elif detail["type"] == "value_error":
            problems.append(str(detail["ctx"]["error"]))
        else:
            problems.append(f"{place}: {detail['msg']}")
    return f"strategy {kind.name}: " + "; ".join(problems)
