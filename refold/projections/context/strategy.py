"""What every strategy is: a frozen value that decides and asks the world nothing.

Beside that stands what strategies have in common: what of a session they show raw
(``Shown``), their memory layers (``Layers``), and how the summary that one of them
decided on is written (``write``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from difflib import get_close_matches
from functools import cached_property
from itertools import accumulate, chain
from typing import Any, ClassVar, Final, Literal, NamedTuple, final

import pydantic
from pydantic import BaseModel, Field, JsonValue, model_validator

from refold.domain import errors, events
from refold.domain.canonical import canonical, digest, text_digest
from refold.domain.envelope import ACTIVATED, Envelope
from refold.domain.events import JsonObject, StateUpdate, StrategyRef, SummarizerRef
from refold.projections.context import compaction, outline as folded
from refold.projections.context.abridged import Abridged, Limits, ledger_beside, made_by
from refold.projections.context.compaction import Compaction, Source, Summarizer
from refold.projections.context.outline import Detail, Outline, OutlineBuilder
from refold.projections.context.text import own_words, value_text
from refold.projections.context.units import Spans, joined, seen_by, spans_of, without
from refold.projections.tokens import weight_of


class Left(NamedTuple):
    """What is neither shown nor summarised: so many messages of these seqs."""

    first: int
    last: int
    messages: int


class Shown(NamedTuple):
    """Which events are shown raw.

    raw:     their seqs; none that a summary stands for.
    cleared: whether a result among them is shown as a stub, and with ``inputs`` its
             call without arguments.
    left:    what is left out, to be counted in the view.
    """

    raw: Spans
    cleared: Callable[[Envelope], bool] = lambda _: False
    inputs: bool = False
    left: Left | None = None


def since(outline: Outline, index: int) -> Shown:
    """The exchanges from that place on; those before it are left out."""
    gone, units = outline.units[:index], outline.units[index:]
    first = units[0].first if units else outline.through_seq
    left = Left(gone[0].first, first - 1, sum(unit.messages for unit in gone))
    return Shown(with_input(outline, ((first, outline.through_seq),)), left=left)


def with_input(outline: Outline, raw: Spans) -> Spans:
    """With what is always sent: newest input and event, and exchanges that wait."""
    seqs = {outline.through_seq, outline.user_seq or outline.through_seq}
    open_ = (hold.spans for hold in outline.waiting.holds if hold.closed is None)
    spans = joined(chain(raw, ((seq, seq) for seq in seqs), *open_))
    through = outline.compacted_through
    if through is None:
        return spans
    return tuple((max(a, through + 1), b) for a, b in spans if b > through)


def everything(outline: Outline) -> Shown:
    """All that no summary stands for."""
    span = outline.raw_span
    return Shown(() if span is None else (span,))


_USER: Final = "user:"
_LINE_TOKENS: Final = 40
_SUMMARY_TOKENS: Final = 600
# So much of the log at most is digested at once, where a layer comes to a long one.
_SCOPE_STEP: Final = 8_000


class Layers(BaseModel):
    """Which layers there are; all are off until asked for.

    user:         the user's profile and preferences, which the program keeps in the
                  working memory under names that begin with ``user:``.
    scope:        a running digest of the project or workspace, of ``scope_tokens``:
                  after every turn the digest before it and the turn become the next.
    notes:        the agent's own notes.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)

    user: bool = False
    scope: bool = False
    scope_tokens: int = Field(default=1_000, ge=1)
    notes: compaction.Notes | None = None

    def kept(self, state: folded.LayerState, envelope: Envelope) -> folded.LayerState:
        """What layers keep after this event."""
        called = state.shown_at is not None
        if called and not self.user and self.notes is None:
            return state
        seq, active = envelope.seq, envelope.meta.status == ACTIVATED
        match envelope.payload:
            case events.Request(through_seq=through) if not called and not active:
                state = state._replace(shown_at=through)
            case events.AgentResponse() | events.ToolCall() if not called:
                state = state._replace(shown_at=seq - 1)
            case StateUpdate() if self.user and (names := user_names(envelope)):
                fact = folded.Fact(seq, tuple(text_digest(name)[:8] for name in names))
                state = state._replace(facts=(*state.facts, fact))
        if self.notes and (lines := compaction.note_lines(envelope, self.notes.tool)):
            note = folded.Note(seq, len(lines))
            state = state._replace(notes=(*state.notes, note))
        return state

    def due(self, outline: Outline, now: datetime) -> Compaction | None:
        """The next thing that is due of a layer, or None.

        What fails here waits by itself: it holds back no compaction of the session.
        """
        if compaction.held_back(outline.layers, now):
            return None
        return self._notes_due(outline) or self._scope_due(outline)

    def behind(self, outline: Outline) -> bool:
        """Whether the newest summary is a layer's, so that a batch may be due still."""
        newest = max((one.seq for one in outline.summaries), default=0)
        return outline.layers.newest > newest

    def _scope_due(self, outline: Outline) -> Compaction | None:
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
        sums = accumulate(turn.tokens for turn in new)
        new = new[: max(1, sum(total <= _SCOPE_STEP for total in sums))]
        tokens = sum(turn.tokens for turn in new)
        return Compaction(
            first_seq=before.first if before else outline.first_seq,
            last_seq=new[-1].last,
            target_tokens=self.scope_tokens,
            decided_at_seq=outline.through_seq,
            tokens_before=tokens + (before.tokens if before else 0),
            reason=f"{len(new)} turns that the digest of the scope does not tell of",
            absorbs=(before.seq,) if before else (),
            kind="scope",
        )

    def _notes_due(self, outline: Outline) -> Compaction | None:
        wanted, state = self.notes, outline.layers
        if wanted is None or wanted.compression_prompt is None:
            return None
        lines = state.lines
        old = _older(state.unwritten, wanted.num_recent_memories_to_keep)
        older = state.written_lines + sum(note.lines for note in old)
        if lines <= wanted.max_lines or not old or older <= wanted.lines:
            return None
        before = state.written
        first, last = before.first if before else old[0].seq, old[-1].seq
        new = before.last + 1 if before else first
        return Compaction(
            first_seq=first,
            last_seq=last,
            target_tokens=wanted.lines * _LINE_TOKENS,
            decided_at_seq=outline.through_seq,
            tokens_before=lines * _LINE_TOKENS,
            reason=f"{lines} lines of notes, {wanted.max_lines} are kept",
            absorbs=(before.seq,) if before else (),
            omitted=without(((new, last),), spans_of(note.seq for note in old)),
            kind="notes",
        )


def profile(envelopes: Iterable[Envelope]) -> JsonObject:
    """What the working memory says of the user after these events, oldest first."""
    known: JsonObject = {}
    for envelope in envelopes:
        update = envelope.payload
        if isinstance(update, StateUpdate):
            for name in user_names(envelope):
                known.pop(name, None)
                if name in update.set:
                    known[name] = update.set[name]
    return {name.removeprefix(_USER): value for name, value in known.items()}


def user_names(envelope: Envelope) -> list[str]:
    """What of the user it sets or unsets."""
    update = envelope.payload
    names = (*update.set, *update.unset) if isinstance(update, StateUpdate) else ()
    return [name for name in names if name.startswith(_USER)]


def told_of_user(envelopes: Iterable[Envelope]) -> str:
    """The same as text, each on one line, so that no value can look like two."""
    return "\n".join(f"{name}: {_line(v)}" for name, v in profile(envelopes).items())


def _line(value: JsonValue) -> str:
    text = value_text(value)
    return text if len(text.splitlines()) <= 1 else canonical(value).decode()


def _older(notes: tuple[folded.Note, ...], keep: int) -> tuple[folded.Note, ...]:
    """The notes without the newest that have so many lines between them."""
    count, lines = len(notes), 0
    while count and lines < keep:
        count -= 1
        lines += notes[count].lines
    return notes[:count]


class Manner(NamedTuple):
    """How a strategy's views are told and its summaries asked for.

    form:            how summaries are told: as user text, ``acknowledged`` by what the
                     agent answers to it, or as the result of a tool it called.
    pin_tokens:      how many tokens pinned exchanges may take behind the summaries.
    layers:          what is shown before the summaries of the session, if anything.
    sends_back:      the types of the provider's own blocks that it is given back.
    api_parameters:  what a request carries beside its messages, for the API to act on.
    prompt:          what a model is asked for summaries; None: the summarizer's own.
    model:           the model to ask; None: the summarizer's own.
    history:         limits of an abridged history that each summary has beside its
                     text.
    template:        how a summary is told, with ``{summary}`` and perhaps
                     ``{abridged_history}`` in it; empty: as Refold does.
    window:          the window that it knows of, in tokens: by it too a message is
                     shortened.
    """

    form: Literal["text", "acknowledged", "tool"] = "text"
    acknowledgement: str = "I have read what happened before and go on from there."
    pin_tokens: int = 4_000
    layers: Layers | None = None
    sends_back: frozenset[str] = frozenset()
    api_parameters: JsonObject | None = None
    prompt: str | None = None
    model: str | None = None
    history: Limits | None = None
    template: str = ""
    window: int | None = None


class Strategy(BaseModel):
    """A rule for contexts: its name, its version, and its parameters as fields.

    ``needs`` says how much its outlines know.  ``stable_prefix`` is whether its views
    only grow at their end between two compactions.  Whatever changes a byte of a view
    is another version.

    Raises UnknownStrategy for a parameter it does not have or that is out of bounds.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)

    name: ClassVar[str]
    version: ClassVar[int] = 1
    needs: ClassVar[Detail] = "turns"
    stable_prefix: ClassVar[bool] = True
    # Parameters that came later: where they are at their default they are left out of
    # the fingerprint, so that it stays what it was before there were any.
    came_later: ClassVar[tuple[str, ...]] = ()

    def __init__(self, **params: Any) -> None:
        try:
            super().__init__(**params)
        except pydantic.ValidationError as error:
            raise errors.UnknownStrategy(_explain(type(self), error)) from None
        try:
            canonical(self.params)
        except TypeError:
            why = f"strategy {self.name}: a number has more than 64 bits"
            raise errors.UnknownStrategy(why) from None

    @property
    def params(self) -> JsonObject:
        """The parameters as JSON, defaults included (but for those that came later)."""
        own = type(self).model_fields
        off = {one for one in self.came_later if getattr(self, one) == own[one].default}
        return self.model_dump(mode="json", exclude=off)

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of the canonical JSON of name, version and parameters."""
        return digest(self.definition)

    @property
    def definition(self) -> JsonObject:
        """Name, version and parameters, of which ``spec.parse`` makes it again."""
        return {"name": self.name, "version": self.version, "params": self.params}

    @property
    def ref(self) -> StrategyRef:
        """The strategy as summaries and requests record it."""
        return StrategyRef(**self.definition, fingerprint=self.fingerprint)

    @cached_property
    def manner(self) -> Manner:
        """How its views are told and its summaries asked for."""
        return Manner()

    @property
    def written_as(self) -> tuple[object, ...]:
        """What the words of its summaries depend on, beside summarizer and span.

        Strategies in which that is the same adopt each other's.
        """
        own, version = self.manner, getattr(self, "summary_version", self.version)
        fields = [getattr(self, name) for name in type(self).model_fields]
        inner = [one.written_as for one in fields if isinstance(one, Strategy)]
        wanted = (own.prompt, own.model, own.history, *inner)
        return (self.name, self.version, version, self.reader, *wanted)

    @property
    def reader(self) -> str | None:
        """Whose view it is, if it is one agent's of several."""
        return None

    def sees(self, envelope: Envelope) -> Envelope | None:
        """The event as its views show it, or None if they do not."""
        return seen_by(self.reader, envelope)

    def begin(self) -> Outline:
        """The outline of a session of which nothing is read yet."""
        return Outline(detail=self.needs)

    def decide(self, outline: Outline, now: datetime) -> Compaction | None:  # noqa: ARG002  # some never compact
        """The next compaction that is due, or None.

        Asked again after each compaction, it ends with None once nothing is due.
        """
        return None

    def press(self, outline: Outline, over: int, most: int) -> Compaction | None:
        """What makes room for ``over`` tokens where nothing is due, or None.

        Asked where a view is over the window, with an outline that knows exchanges.

        most: how many tokens the source of one summary may have.
        """
        if not self.compacts:
            return None
        target = getattr(self, "summary_tokens", _SUMMARY_TOKENS)
        # Told otherwise than as text, one summary stands for all.
        absorbs = outline.summaries if self.manner.form != "text" else ()
        sizes = {"target": target, "most": most}
        return compaction.pressed(outline, over, **sizes, absorbs=absorbs)

    @property
    def compacts(self) -> bool:
        """Whether it ever asks for a summary."""
        return type(self).decide is not Strategy.decide

    def waits_for(self, outline: Outline) -> str:  # noqa: ARG002  # some never compact
        """How far the session is from the next compaction, for people."""
        asks = "asks for none now" if self.compacts else "makes no summaries"
        return f"{self.name} {asks}"

    def take(self, builder: OutlineBuilder, envelope: Envelope) -> None:
        """Take in the next event; a strategy that keeps more, or less, does it here."""
        builder.take(envelope)
        self.remember(builder, envelope)

    def remember(self, builder: OutlineBuilder, envelope: Envelope) -> None:
        """Keep what its layers keep of an event that was taken in."""
        layers = self.manner.layers
        if layers is not None:
            builder.layers = layers.kept(builder.layers, envelope)

    @final
    def fold(self, outline: Outline, envelope: Envelope) -> Outline:
        """The outline after this event of the main stream."""
        return self.read(outline, (envelope,))

    @final
    def read(self, outline: Outline, envelopes: Iterable[Envelope]) -> Outline:
        """The outline after these events of the main stream, oldest first."""
        builder = OutlineBuilder(outline)
        for envelope in envelopes:
            self.take(builder, envelope)
        return builder.outline()

    def judged(self, outline: Outline) -> Outline:
        """The outline as a view that is made of it now shows it.

        A strategy that takes something out of views, and records nothing of it, judges
        here what is due.
        """
        return outline

    def show(self, outline: Outline) -> Shown:
        """What is sent raw: all that no summary stands for, if it says no other."""
        return everything(outline)

    def due_at(self, outline: Outline, now: datetime) -> datetime | None:  # noqa: ARG002  # most have none
        """When a compaction may become due because time passes, or None."""
        return None

    def follow_up(self, outline: Outline, now: datetime) -> Compaction | None:  # noqa: ARG002  # most have none
        """What else is due in the same check, after a compaction took effect."""
        return None


def distance(
    name: str, count: int, what: str, limit: float, *, last: int = 0, of: int = 0
) -> str:
    """What ``waits_for`` says: how many there are, and the limit, a share ``of`` it."""
    behind, whole = f" before the last {last:,}", f" of {of:,}"
    reached = errors.counted(count, what) + (behind if last else "")
    most = f"{limit:,.0f}" + (whole if of else "")
    if count >= limit:  # and yet no cut is legal
        most += ", but a call or a question there still waits for its answer"
    return f"{reached}; {name} compacts at {most}"


class Pinning(Strategy):
    """A strategy that says how much pinned exchanges may take.

    pin_tokens: so many tokens, behind the summaries.
    """

    pin_tokens: int = Field(default=4_000, ge=0)

    @cached_property
    def manner(self) -> Manner:
        """How its views are told; with its own budget for pins."""
        return Manner(pin_tokens=self.pin_tokens)


class Weighed(Strategy):
    """A strategy that counts tokens as a model does.

    model:  whose tokens they are; left out, the estimates that are stored.
    weight: how many tokens of the model an estimated one is; left out, what was
            measured for ``model``, else 1.

    Raises UnknownModel.
    """

    came_later: ClassVar[tuple[str, ...]] = ("model", "weight")

    model: str | None = None
    weight: float = Field(default=1.0, ge=1, le=10, strict=False)

    @model_validator(mode="before")
    @classmethod
    def _of_model(cls, given: Any) -> Any:
        # What was measured may change; what this decides by may not.
        if isinstance(given, dict) and given.get("model") and "weight" not in given:
            return {**given, "weight": weight_of(str(given["model"]))}
        return given

    def weighed(self, tokens: int) -> int:
        """So many estimated tokens, as the model counts them."""
        return round(tokens * self.weight)


def known(given: str, names: Iterable[str]) -> str:
    """What there is; what was given may be a secret in a wrong place."""
    there = list(names)
    near = get_close_matches(given, there, n=1)
    said = f"there is: {', '.join(there) or 'none'}"
    return f"{said}; did you mean {near[0]}?" if near else said


def _explain(kind: type[Strategy], error: pydantic.ValidationError) -> str:
    problems = []
    for detail in error.errors(include_url=False):
        where = ".".join(str(part) for part in detail["loc"])
        if detail["type"] == "extra_forbidden":
            own = sorted(kind.model_fields, key=lambda n: n not in kind.__annotations__)
            problems.append(f"there is no such parameter ({known(where, own)})")
        elif detail["type"] == "value_error":
            problems.append(str(detail["ctx"]["error"]))
        else:
            problems.append(f"{where}: {detail['msg']}")
    return f"strategy {kind.name}: " + "; ".join(problems)


def fitting(strategy: Strategy, summarizer: Summarizer) -> Summarizer:
    """The summarizer, to be asked as the strategy wants it.

    Raises InvalidConfiguration if a model is to be asked and the prompt is empty.
    """
    for_strategy = getattr(summarizer, "for_strategy", None)
    if for_strategy is None:
        return summarizer
    prompt, model = strategy.manner.prompt, strategy.manner.model
    if prompt is not None and not prompt.strip():
        raise errors.InvalidConfiguration(
            f"{strategy.name} has an empty prompt: give it one if a model is to be "
            "asked, or use the summarizer abridged"
        )
    fitted: Summarizer = for_strategy(prompt=prompt, model=model)
    return fitted


def write(
    strategy: Strategy,
    summarizer: Summarizer,
    source: Source,
    *,
    target_tokens: int,
    most_chars: int | None = None,
) -> compaction.Written:
    """What ``summarizer`` makes of the source, as the strategy wants it.

    most_chars: what an abridged history may have, if that is less than it wants.

    Where the strategy wants an abridged history beside the text, that is made without
    a model; with a summarizer that needs none there is no text beside it.

    Raises SummaryRefused, and what the summarizer raises.
    """
    limits = strategy.manner.history if source.kind == "session" else None
    if limits is not None and most_chars is not None:
        few = min(limits.total_chars, most_chars)
        limits = limits.model_copy(update={"total_chars": few})
    if source.kind == "notes":
        return _notes(strategy, summarizer, source, target_tokens)
    of_turns = isinstance(summarizer, Abridged)
    if limits is None or not of_turns:
        written = summarizer.summarise(source, target_tokens=target_tokens)
        compaction.check_summary("\n".join((written.abridged, written.text)), source)
        if source.kind == "session" and limits is None and not of_turns:
            most = max(target_tokens // 3, 1)
            beside = ledger_beside(source, written.text, most_tokens=most)
            written = replace(written, abridged=beside)
    else:
        written = compaction.Written("", made_by(limits))
    if limits is not None:
        tools = {"tools": summarizer.tools} if isinstance(summarizer, Abridged) else {}
        beside = _beside(source, Abridged(limits, **tools), written.text)
        written = replace(written, abridged=beside)
        compaction.check_summary("\n".join((written.abridged, written.text)), source)
    return written


def _notes(
    strategy: Strategy, summarizer: Summarizer, source: Source, target_tokens: int
) -> compaction.Written:
    """Notes that were rewritten: to fewer lines, or it is no use."""
    layers = strategy.manner.layers
    if layers is None or layers.notes is None:
        raise ValueError(f"{strategy.name} keeps no notes")
    asked = replace(source, notes=layers.notes)
    written = summarizer.summarise(asked, target_tokens=target_tokens)
    lines = [line.strip() for line in written.text.splitlines() if line.strip()]
    written = replace(written, text="\n".join(lines))
    compaction.check_summary(written.text, source)
    wanted, before = layers.notes.lines, len(compaction.noted(source))
    if len(lines) > wanted + wanted // 4:
        raise errors.SummarizerFailed(
            f"{before} lines of notes would become {len(lines)}, not about {wanted}"
        )
    return written


def _beside(source: Source, told: Abridged, text: str) -> str:
    """The history of all turns that the source tells of, newest first kept.

    Half as long, and again, until with ``text`` it has no more words than the source.
    """
    room, limits = source.words - own_words(text), told.limits
    while True:
        most = limits.total_chars
        history = replace(told, limits=limits).summarise(source, target_tokens=most)
        if most == 1 or own_words(history.text) <= room:
            return history.text
        limits = limits.model_copy(update={"total_chars": most // 2})


def wrote(strategy: Strategy, summarizer: Summarizer, by: SummarizerRef) -> bool:
    """Whether this summarizer is known to have written what ``by`` is recorded of."""
    if isinstance(summarizer, Abridged):
        return by == made_by(strategy.manner.history or summarizer.limits)
    knows = getattr(summarizer, "wrote", None)
    return knows is not None and bool(knows(by))


def why_failed(error: Exception) -> str:
    """What is said of an error: of one not ours, the message may hold what was sent."""
    match error:
        case errors.SummaryRefused():
            return str(error)
        case errors.SummarizerFailed(reason=reason):
            return reason
        case _:
            return f"the summarizer raised {type(error).__name__}"
