"""What every strategy is: a frozen value that decides and asks the world nothing."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import groupby
from typing import Any, ClassVar, Final, Literal, NamedTuple, final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from refold.domain.canonical import canonical, digest, text_digest
from refold.domain.envelope import ACTIVATED, Envelope
from refold.domain.errors import (
    InvalidConfiguration,
    SummarizerFailed,
    SummaryRefused,
    UnknownStrategy,
)
from refold.domain.events import (
    AgentResponse,
    JsonObject,
    Request,
    StateUpdate,
    StrategyRef,
    ToolCall,
)
from refold.projections.context.abridged import Abridged, Limits, made_by
from refold.projections.context.compaction import (
    LONGEST_RETRY_SEC,
    Compaction,
    Notes,
    Source,
    Summarizer,
    Written,
    check_summary,
    note_lines,
    noted,
    too_soon,
)
from refold.projections.context.outline import (
    Detail,
    Fact,
    Memory,
    Note,
    Outline,
    OutlineBuilder,
)
from refold.projections.context.parts import LiveSummary, Turn, Unit
from refold.projections.context.text import own_words
from refold.projections.context.units import Spans, joined, seen_by, without

# How summaries are told: as user text, the same with an answer of the agent behind
# it, or as the result of a tool that the agent called.
SummaryForm = Literal["text", "acknowledged", "tool"]


def _nothing(_: Envelope) -> bool:
    return False


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
    cleared: Callable[[Envelope], bool] = _nothing
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
    waiting = [
        span
        for hold in outline.waiting.holds
        if hold.closed is None
        for span in hold.spans
    ]
    spans = joined((*raw, *((seq, seq) for seq in seqs), *waiting))
    through = outline.compacted_through
    if through is None:
        return spans
    return tuple((max(a, through + 1), b) for a, b in spans if b > through)


def everything(outline: Outline) -> Shown:
    """All that no summary stands for."""
    span = outline.raw_span
    return Shown(() if span is None else (span,))


class Strategy(BaseModel):
    """A rule for contexts: its name, its version, and its parameters as fields.

    ``needs`` says how much its outlines know; ``summaries_as`` how its summaries are
    told.  ``stable_prefix`` is whether its views only grow at their end
    between two compactions.  Whatever changes a byte of a view is another version.

    Raises UnknownStrategy for a parameter it does not have or that is out of bounds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: ClassVar[str]
    version: ClassVar[int] = 1
    needs: ClassVar[Detail] = "turns"
    summaries_as: ClassVar[SummaryForm] = "text"
    stable_prefix: ClassVar[bool] = True
    # Parameters that came later: where they are at their default they are left out of
    # the fingerprint, so that it stays what it was before there were any.
    came_later: ClassVar[tuple[str, ...]] = ()

    def __init__(self, **params: Any) -> None:
        try:
            super().__init__(**params)
        except ValidationError as error:
            raise UnknownStrategy(_explain(type(self), error)) from None
        try:
            canonical(self.params)
        except TypeError:
            raise UnknownStrategy(
                f"strategy {self.name}: a number has more than 64 bits"
            ) from None

    @property
    def params(self) -> JsonObject:
        """The parameters as JSON, defaults included (but for those that came later)."""
        fields = type(self).model_fields
        off = {
            name
            for name in self.came_later
            if getattr(self, name) == fields[name].default
        }
        return self.model_dump(mode="json", exclude=off)

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the canonical JSON of name, version and parameters."""
        return digest(
            {"name": self.name, "version": self.version, "params": self.params}
        )

    @property
    def ref(self) -> StrategyRef:
        """The strategy as summaries and requests record it."""
        return StrategyRef(
            name=self.name,
            version=self.version,
            params=self.params,
            fingerprint=self.fingerprint,
        )

    @property
    def told_as(self) -> SummaryForm:
        """How its summaries are told."""
        return self.summaries_as

    @property
    def acknowledgement(self) -> str:
        """What the agent answers to its summaries, where they are acknowledged."""
        return "I have read what happened before and go on from there."

    @property
    def prompt_for_model(self) -> str | None:
        """What a model is asked for summaries; None: the summarizer's own prompt."""
        return None

    @property
    def model_for_summaries(self) -> str | None:
        """The model to ask; None: the summarizer's own."""
        return None

    @property
    def history_beside(self) -> Limits | None:
        """Limits of an abridged history that each summary has beside its text."""
        return None

    @property
    def pins_budget(self) -> int:
        """How many tokens pinned exchanges may take behind the summaries."""
        return 4_000

    @property
    def memory_layers(self) -> Layers | None:
        """What it shows before the summaries of the session, if anything."""
        return None

    @property
    def sends_back(self) -> frozenset[str]:
        """The types of the provider's own blocks that a request gives back to it."""
        return frozenset()

    @property
    def reader(self) -> str | None:
        """Whose view it is, if it is one agent's of several."""
        return None

    @property
    def api_parameters(self) -> JsonObject:
        """What a request carries beside its messages, for the API to act on."""
        return {}

    def sees(self, envelope: Envelope) -> Envelope | None:
        """The event as its views show it, or None if they do not."""
        return seen_by(self.reader, envelope)

    def begin(self) -> Outline:
        """The outline of a session of which nothing is read yet."""
        return Outline(detail=self.needs)

    @abstractmethod
    def decide(self, outline: Outline, now: datetime) -> Compaction | None:
        """The next compaction that is due, or None.

        Asked again after each compaction, it ends with None once nothing is due.
        """

    def take(self, builder: OutlineBuilder, envelope: Envelope) -> None:
        """Take the next event of the main stream into an outline under way.

        A strategy that remembers more, or need not remember all, does it here.
        """
        builder.take(envelope)
        self.remember(builder, envelope)

    def remember(self, builder: OutlineBuilder, envelope: Envelope) -> None:
        """Keep what its layers keep of an event that was taken in."""
        layers = self.memory_layers
        if layers is not None:
            builder.memory = layers.kept(builder.memory, envelope)

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


class Pinning(Strategy):
    """A strategy that says how much pinned exchanges may take.

    pin_tokens: so many tokens, behind the summaries.
    """

    pin_tokens: int = Field(default=4_000, ge=0)

    @property
    def pins_budget(self) -> int:
        """How many tokens pinned exchanges may take behind the summaries."""
        return self.pin_tokens


def held_back(
    outline: Outline, now: datetime, *, at_most: float = LONGEST_RETRY_SEC
) -> bool:
    """Whether it is too soon after a failed attempt to try again.

    After n failures in a row the next attempt comes 30 s × 2ⁿ⁻¹ after the last, at
    most ``at_most`` seconds after it.
    """
    return too_soon(outline.failures, outline.failed_at, now, at_most=at_most)


def _explain(kind: type[Strategy], error: ValidationError) -> str:
    problems = []
    for detail in error.errors(include_url=False):
        where = ".".join(str(part) for part in detail["loc"])
        if detail["type"] == "extra_forbidden":
            own = sorted(kind.model_fields, key=lambda n: n not in kind.__annotations__)
            known = ", ".join(own) or "none"
            problems.append(f"there is no parameter {where!r} (there is: {known})")
        elif detail["type"] == "value_error":
            problems.append(str(detail["ctx"]["error"]))
        else:
            problems.append(f"{where}: {detail['msg']}, got {detail['input']!r}")
    return f"strategy {kind.name}: " + "; ".join(problems)


USER: Final = "user:"
_LINE_TOKENS: Final = 40
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

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    user: bool = False
    scope: bool = False
    scope_tokens: int = Field(default=1_000, ge=1)
    notes: Notes | None = None

    def kept(self, memory: Memory, envelope: Envelope) -> Memory:
        """What layers keep after this event."""
        if memory.shown_at is not None and not self.user and self.notes is None:
            return memory
        seq = envelope.seq
        match envelope.payload:
            case Request(through_seq=through) if envelope.meta.status != ACTIVATED:
                memory = memory.first_called(through)
            case AgentResponse() | ToolCall():
                memory = memory.first_called(seq - 1)
            case StateUpdate() as update if self.user and (names := _names(update)):
                keys = tuple(text_digest(name)[:8] for name in names)
                memory = memory.with_fact(Fact(seq, keys))
        if self.notes and (lines := note_lines(envelope, self.notes.tool)):
            memory = memory.with_note(Note(seq, len(lines)))
        return memory

    def due(self, outline: Outline, now: datetime) -> Compaction | None:
        """The next thing that is due of a layer, or None.

        What fails here waits by itself: it holds back no compaction of the session.
        """
        memory = outline.memory
        if too_soon(memory.failures, memory.failed_at, now):
            return None
        return self._notes_due(outline) or self._scope_due(outline)

    def behind(self, outline: Outline) -> bool:
        """Whether the newest summary is a layer's, so that a batch may be due still."""
        newest = max((one.seq for one in outline.summaries), default=0)
        return outline.memory.newest > newest

    def _scope_due(self, outline: Outline) -> Compaction | None:
        if not self.scope:
            return None
        before = outline.memory.scope
        new = [
            turn
            for turn in outline.turns
            if turn.complete and (before is None or turn.first > before.last)
        ]
        if not new or outline.first_seq is None:
            return None
        new = _first(new, _SCOPE_STEP)
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
        wanted, memory = self.notes, outline.memory
        if wanted is None or wanted.compression_prompt is None:
            return None
        lines = memory.lines
        keep = wanted.num_recent_memories_to_keep
        old = _older(memory.unwritten, keep)
        older = memory.written_lines + sum(note.lines for note in old)
        if lines <= wanted.max_lines or not old or older <= wanted.lines:
            return None
        before = memory.written
        first, last = before.first if before else old[0].seq, old[-1].seq
        seqs: Spans = tuple((note.seq, note.seq) for note in old)
        new = before.last + 1 if before else first
        return Compaction(
            first_seq=first,
            last_seq=last,
            target_tokens=wanted.lines * _LINE_TOKENS,
            decided_at_seq=outline.through_seq,
            tokens_before=lines * _LINE_TOKENS,
            reason=f"{lines} lines of notes, {wanted.max_lines} are kept",
            absorbs=(before.seq,) if before else (),
            omitted=without(((new, last),), joined(seqs)),
            kind="notes",
        )


NO_LAYERS: Final = Layers()


def profile(envelopes: Iterable[Envelope]) -> JsonObject:
    """What the working memory says of the user after these events, oldest first."""
    known: JsonObject = {}
    for envelope in envelopes:
        update = envelope.payload
        if isinstance(update, StateUpdate):
            for name in _names(update):
                known.pop(name, None)
                if name in update.set:
                    known[name] = update.set[name]
    return {name.removeprefix(USER): value for name, value in known.items()}


def _first(turns: list[Turn], tokens: int) -> list[Turn]:
    """The oldest turns that have so many tokens together, one at least."""
    count = 1
    while count < len(turns) and sum(t.tokens for t in turns[: count + 1]) <= tokens:
        count += 1
    return turns[:count]


def _names(update: StateUpdate) -> list[str]:
    return [name for name in (*update.set, *update.unset) if name.startswith(USER)]


def _older(notes: tuple[Note, ...], keep: int) -> tuple[Note, ...]:
    """The notes without the newest that have so many lines between them."""
    count, lines = len(notes), 0
    while count and lines < keep:
        count -= 1
        lines += notes[count].lines
    return notes[:count]


def fitting(strategy: Strategy, summarizer: Summarizer) -> Summarizer:
    """The summarizer, to be asked as the strategy wants it.

    Raises InvalidConfiguration if a model is to be asked and the prompt is empty.
    """
    for_strategy = getattr(summarizer, "for_strategy", None)
    if for_strategy is None:
        return summarizer
    prompt = strategy.prompt_for_model
    if prompt is not None and not prompt.strip():
        raise InvalidConfiguration(
            f"{strategy.name} has an empty prompt: give it one if a model is to be "
            "asked, or take the summarizer abridged"
        )
    fitted: Summarizer = for_strategy(prompt=prompt, model=strategy.model_for_summaries)
    return fitted


def write(
    strategy: Strategy, summarizer: Summarizer, source: Source, *, target_tokens: int
) -> Written:
    """What ``summarizer`` makes of the source, as the strategy wants it.

    Where the strategy wants an abridged history beside the text, that is made without
    a model; with a summarizer that needs none there is no text beside it.

    Raises SummaryRefused, and what the summarizer raises.
    """
    limits = strategy.history_beside if source.kind == "session" else None
    if source.kind == "notes":
        return _notes(strategy, summarizer, source, target_tokens)
    if limits is None or not isinstance(summarizer, Abridged):
        written = summarizer.summarise(source, target_tokens=target_tokens)
        check_summary("\n".join((written.abridged, written.text)), source)
    else:
        written = Written("", made_by(limits))
    if limits is not None:
        written = replace(written, abridged=_beside(source, limits, written.text))
        check_summary("\n".join((written.abridged, written.text)), source)
    return written


def _notes(
    strategy: Strategy, summarizer: Summarizer, source: Source, target_tokens: int
) -> Written:
    """Notes that were rewritten: to fewer lines, or it is no use."""
    layers = strategy.memory_layers
    if layers is None or layers.notes is None:
        raise ValueError(f"{strategy.name} keeps no notes")
    asked = replace(source, notes=layers.notes)
    written = summarizer.summarise(asked, target_tokens=target_tokens)
    lines = [line.strip() for line in written.text.splitlines() if line.strip()]
    written = replace(written, text="\n".join(lines))
    check_summary(written.text, source)
    wanted, before = layers.notes.lines, len(noted(source))
    if len(lines) > wanted + wanted // 4:
        raise SummarizerFailed(
            f"{before} lines of notes would become {len(lines)}, not about {wanted}"
        )
    return written


def _beside(source: Source, limits: Limits, text: str) -> str:
    """The history of all turns that the source tells of, newest first kept.

    Half as long, and again, until with ``text`` it has no more words than the source.
    """
    room = source.words - own_words(text)
    while True:
        most = limits.total_chars
        history = Abridged(limits).summarise(source, target_tokens=most).text
        if most == 1 or own_words(history) <= room:
            return history
        limits = replace(limits, total_chars=most // 2)


def why_failed(error: Exception) -> str:
    """What is said of an error: of one not ours, the message may hold what was sent."""
    match error:
        case SummaryRefused():
            return str(error)
        case SummarizerFailed(reason=reason):
            return reason
        case _:
            return f"the summarizer raised {type(error).__name__}"


def oldest_turns(outline: Outline, wish: int) -> tuple[Turn, ...]:
    """The oldest turns that are not compacted, ``wish`` of them or as many as may go.

    The cut behind them moves to the older side until it parts no result from its call
    and no decision from its question.  A call without a result, or a question without
    a decision, does not move it: its exchange goes whole, and stays raw behind the
    summary.  The newest turn never goes.
    """
    for count in range(min(wish, len(outline.past)), 0, -1):
        if outline.waiting.allows(outline.past[count - 1].last):
            return outline.past[:count]
    return ()


def batch(
    outline: Outline,
    units: Sequence[Unit],
    *,
    target: int,
    reason: str,
    absorbs: Sequence[LiveSummary] = (),
    level: int = 1,
) -> Compaction | None:
    """The compaction of these oldest exchanges, and of the summaries it absorbs."""
    if not units:
        return None
    rest = outline.units[len(units) :]
    first = absorbs[0].first if absorbs else _begin(outline)
    return Compaction(
        first_seq=first,
        last_seq=rest[0].first - 1,
        target_tokens=target,
        decided_at_seq=outline.through_seq,
        tokens_before=sum(unit.tokens for unit in units)
        + sum(summary.tokens for summary in absorbs),
        reason=reason,
        turns=sum(unit.type == "user_input" for unit in units),
        level=level,
        absorbs=tuple(summary.seq for summary in absorbs),
        goes_on=rest[0].type != "user_input",
    )


def _begin(outline: Outline) -> int:
    span = outline.raw_span
    return outline.units[0].first if span is None else span[0]


def oldest_units(outline: Outline, wish: int) -> tuple[Unit, ...]:
    """The oldest exchanges that are not compacted, ``wish`` or as many as may go.

    The cut is moved as it is for turns.  The newest exchange never goes.
    """
    units = outline.units
    for count in range(min(wish, len(units) - 1), 0, -1):
        cut = units[count].first - 1
        whole = all(unit.last <= cut for unit in units[:count])
        if whole and outline.waiting.allows(cut):
            return units[:count]
    return ()


def over_budget(outline: Outline, *, budget: int, target: int) -> Compaction | None:
    """A fold of the two oldest summaries, if all together cost more than ``budget``."""
    total = outline.summary_tokens
    if total <= budget or len(outline.summaries) < 2:
        return None
    return _fold(
        outline,
        outline.summaries[:2],
        min(target, budget),
        f"{total} tokens of summaries, at most {budget}",
    )


def side_by_side(outline: Outline, *, fan_in: int, target: int) -> Compaction | None:
    """A fold of the oldest ``fan_in`` summaries of one level that are neighbours."""
    for level, run in groupby(outline.summaries, lambda summary: summary.level):
        alike = list(run)
        if len(alike) >= fan_in:
            reason = f"{len(alike)} summaries of level {level}, {fan_in} are folded"
            return _fold(outline, alike[:fan_in], target, reason)
    return None


def _fold(
    outline: Outline,
    summaries: list[LiveSummary] | tuple[LiveSummary, ...],
    target: int,
    reason: str,
) -> Compaction:
    return Compaction(
        first_seq=summaries[0].first,
        last_seq=summaries[-1].last,
        target_tokens=target,
        decided_at_seq=outline.through_seq,
        tokens_before=sum(summary.tokens for summary in summaries),
        reason=reason,
        level=max(summary.level for summary in summaries) + 1,
        absorbs=tuple(summary.seq for summary in summaries),
    )
