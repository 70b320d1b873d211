"""A compaction: the span that a strategy decides on, its source, and its summary.

A strategy takes the oldest turns or exchanges (``oldest_turns``, ``oldest_units``) and
makes the decision of them (``batch``), or folds summaries (``over_budget``,
``side_by_side``).  ``source_of`` collects what is to be summarised, a ``Summarizer``
writes, ``summary_of`` records it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import accumulate, chain, groupby
from typing import Any, Final, Protocol, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from refold.domain import events as log
from refold.domain.canonical import text_digest
from refold.domain.envelope import Envelope, from_microseconds, microseconds
from refold.domain.errors import SummaryRefused
from refold.domain.events import JsonObject, Summary, SummaryKind
from refold.domain.tokens import estimate_text
from refold.projections.context import text as markup
from refold.projections.context.outline import LayerState, Outline, compacted
from refold.projections.context.units import (
    LiveSummary,
    Spans,
    Thread,
    Turn,
    Unit,
    holds,
    joined,
    place,
    seen_by,
)


@dataclass(frozen=True, slots=True)
class Compaction:
    """A span to summarise, decided with the session at ``decided_at_seq``.

    target_tokens: how long the summary may be.
    absorbs:       the summaries (seqs of the derived stream) that it replaces; of
                   what these stand for, their texts are its source, not the events.
    omitted:       seqs of the span that the summarizer is not shown.
    tokens_before: what the span costs in the view as it is.
    turns:         whole turns in the span; 0 if it folds summaries.
    reason:        the rule that made it due, with its numbers.
    goes_on:       whether the span ends inside a turn.
    reader:        the agent that it is for, if it is for one of several.
    kind:          what its summary is: of the session, or of a memory layer.
    """

    first_seq: int
    last_seq: int
    target_tokens: int
    decided_at_seq: int
    tokens_before: int
    reason: str
    turns: int = 0
    level: int = 1
    absorbs: tuple[int, ...] = ()
    goes_on: bool = False
    omitted: Spans = ()
    reader: str | None = None
    kind: SummaryKind = "session"

    @classmethod
    def of(cls, summary: Summary, *, reader: str | None) -> Self:
        """The compaction that a recorded summary carried out, as far as it is known."""
        told = {name: getattr(summary, name) for name in CARRIED}
        return cls(**told, target_tokens=summary.tokens_after, reason="", reader=reader)


# What of a compaction stands in the summary that carries it out.
CARRIED: Final = (
    *("kind", "first_seq", "last_seq", "decided_at_seq", "tokens_before"),
    *("level", "absorbs", "omitted"),
)


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


def batch(
    outline: Outline,
    units: Sequence[Unit],
    *,
    target: int,
    reason: str,
    absorbs: Sequence[LiveSummary] = (),
) -> Compaction | None:
    """The compaction of these oldest exchanges, and of the summaries it absorbs."""
    if not units:
        return None
    rest = outline.units[len(units) :]
    raw = outline.raw_span or (outline.units[0].first,)
    return Compaction(
        first_seq=absorbs[0].first if absorbs else raw[0],
        last_seq=rest[0].first - 1,
        target_tokens=target,
        decided_at_seq=outline.through_seq,
        tokens_before=sum(unit.tokens for unit in units)
        + sum(summary.tokens for summary in absorbs),
        reason=reason,
        turns=sum(unit.type == "user_input" for unit in units),
        level=max((summary.level for summary in absorbs), default=0) + 1,
        absorbs=tuple(summary.seq for summary in absorbs),
        goes_on=rest[0].type != "user_input",
    )


def over_budget(outline: Outline, *, budget: int, target: int) -> Compaction | None:
    """A fold of the two oldest summaries, if all together cost more than ``budget``."""
    total = outline.summary_tokens
    if total <= budget or len(outline.summaries) < 2:
        return None
    reason = f"{total} tokens of summaries, at most {budget}"
    return _fold(outline, outline.summaries[:2], min(target, budget), reason)


def side_by_side(outline: Outline, *, fan_in: int, target: int) -> Compaction | None:
    """A fold of the oldest ``fan_in`` summaries of one level that are neighbours."""
    for level, run in groupby(outline.summaries, lambda summary: summary.level):
        alike = list(run)
        if len(alike) >= fan_in:
            reason = f"{len(alike)} summaries of level {level}, {fan_in} are folded"
            return _fold(outline, alike[:fan_in], target, reason)
    return None


def _fold(
    outline: Outline, summaries: Sequence[LiveSummary], target: int, reason: str
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


def pressed(
    outline: Outline,
    over: int,
    *,
    target: int,
    most: int,
    absorbs: Sequence[LiveSummary] = (),
) -> Compaction | None:
    """A compaction of the oldest exchanges that makes room for ``over`` tokens.

    It takes as many as that needs, of ``most`` tokens together unless one has more;
    with none that may go, the two oldest summaries fold, or one is made shorter.
    None: nothing is left.
    """
    target = max(1, min(target, most // 4))
    sums = list(accumulate(unit.tokens for unit in outline.units))
    needed = sum(total < over + target for total in sums) + 1
    wish = max(1, min(needed, sum(total <= most for total in sums)))
    reason = f"{over} tokens over the window"
    for count in range(wish, len(sums)):
        if units := oldest_units(outline, count):
            return batch(outline, units, target=target, reason=reason, absorbs=absorbs)
    long = [one for one in outline.summaries if one.tokens > 2 * target]
    oldest = outline.summaries[:2] if len(outline.summaries) > 1 else long
    return _fold(outline, oldest, target, reason) if oldest else None


def adoptable(outline: Outline, due: Compaction, summary: Summary) -> Compaction | None:
    """What is due as a summary that is there carries it out; None if it does not fit.

    It may end elsewhere than what is due, where the strategy may cut.
    """
    last, through = summary.last_seq, outline.compacted_through
    due = replace(due, level=summary.level)
    if summary.first_seq != due.first_seq or summary.omitted:
        return None
    if last == due.last_seq and not due.omitted:
        return due
    folds = through is not None and min(last, due.last_seq) <= through
    parts = () if folds else _oldest(outline, last)
    if not parts:
        return None
    gone = [*parts, *(o for o in outline.summaries if o.seq in due.absorbs)]
    tokens = sum(one.tokens for one in gone)
    return replace(due, last_seq=last, tokens_before=tokens, omitted=())


def _oldest(outline: Outline, last: int) -> Sequence[Turn | Unit]:
    """The oldest turns or exchanges up to ``last``; none if no cut is legal there."""
    if outline.detail == "turns":
        turns = oldest_turns(outline, sum(one.last <= last for one in outline.past))
        return turns if turns and turns[-1].last == last else ()
    units = oldest_units(outline, sum(one.first <= last for one in outline.units))
    ends = bool(units) and outline.units[len(units)].first - 1 == last
    return units if ends else ()


def supposed(outline: Outline, seq: int, decision: Compaction) -> Outline:
    """The outline as if the summary that was decided on were there."""
    known: Any = {name: getattr(decision, name) for name in CARRIED}
    after = decision.target_tokens  # all else does not count here
    made = Summary.model_construct(**known, tokens_after=after)
    return compacted(outline, seq, made)


def merged(decisions: Mapping[int, Compaction], seq: int) -> Compaction:
    """A decision with all that it absorbs of ``decisions``, by the seq that they get.

    It takes their spans whole, in place of summaries that nobody would be shown.
    """
    made = decisions[seq]
    new = [one for one in made.absorbs if one in decisions]
    if not new:
        return made
    parts = [merged(decisions, one) for one in new]
    known = [one for one in made.absorbs if one not in decisions]
    folded = sum(decisions[one].target_tokens for one in new)
    unfolded = sum(part.tokens_before for part in parts)
    return replace(
        made,
        first_seq=min(made.first_seq, *(part.first_seq for part in parts)),
        tokens_before=made.tokens_before - folded + unfolded,
        turns=made.turns + sum(part.turns for part in parts),
        absorbs=tuple(dict.fromkeys((*chain(*(p.absorbs for p in parts)), *known))),
        omitted=joined((*made.omitted, *chain(*(part.omitted for part in parts)))),
    )


FIRST_RETRY_SEC: Final = 30
LONGEST_RETRY_SEC: Final = 900


def held_back(
    tried: Outline | LayerState, now: datetime, *, at_most: float = LONGEST_RETRY_SEC
) -> bool:
    """Whether it is too soon after a failed attempt to try again.

    After n failures in a row the next attempt comes 30 s × 2ⁿ⁻¹ after the last, at
    most ``at_most`` seconds after it.
    """
    if not tried.failures or tried.failed_at is None:
        return False
    return 0 <= microseconds(now) - tried.failed_at < _wait(tried.failures, at_most)


def retry_at(tried: Outline | LayerState) -> datetime | None:
    """When the attempt after a failed one may be made, if the last one failed."""
    if not tried.failures or tried.failed_at is None:
        return None
    return from_microseconds(tried.failed_at + _wait(tried.failures, LONGEST_RETRY_SEC))


def _wait(failures: int, at_most: float) -> int:
    wait = min(at_most, FIRST_RETRY_SEC * 2.0 ** min(failures - 1, 60))
    return int(wait * 1_000_000)  # microseconds


@dataclass(frozen=True, slots=True)
class Source:
    """What is to be summarised.

    text:      the absorbed summaries, then the span's events, one after another.
    words:     of what the log says in it; the markup that Refold adds is not counted.
    events:    how many events it tells of.
    envelopes: the events of the span that no absorbed summary stands for.
    summaries: the texts of the absorbed summaries.
    goes_on:   whether it ends inside a turn that goes on behind it.
    kind:      what the summary is to be of: the session, or a memory layer.
    notes:     of notes, how they are to be rewritten.
    """

    text: str
    words: int
    events: int
    envelopes: tuple[Envelope, ...] = ()
    summaries: tuple[str, ...] = ()
    goes_on: bool = False
    kind: SummaryKind = "session"
    notes: Notes | None = None

    @property
    def digest(self) -> str:
        """The SHA-256 of the text."""
        return text_digest(self.text)


def source_of(
    compaction: Compaction,
    *,
    events: Iterable[Envelope] = (),
    summaries: Iterable[Envelope] = (),
) -> Source:
    """The source of a compaction: what it absorbs, then the events of its span.

    An event that an absorbed summary stands for, or that is omitted, is no part of it.

    events:    of the main stream, oldest first; those outside the span are left out.
    summaries: of the derived stream; those it does not absorb are left out.

    Raises ValueError if an absorbed summary is missing.
    """
    absorbed, first = _absorbed(compaction, summaries)
    named = (
        seen_by(compaction.reader, event)
        for event in events
        if first <= event.seq <= compaction.last_seq
        and not holds(compaction.omitted, event.seq)
    )
    span = [event for event in named if event is not None]
    new, earlier = of_events(span), tuple(map(summary_text, absorbed))
    alone = not earlier
    return Source(
        text="\n".join((*earlier, new.text) if span or alone else earlier),
        words=new.words + sum(map(markup.own_words, earlier)),
        events=new.events + sum(one.source_event_count for one in absorbed),
        envelopes=new.envelopes,
        summaries=earlier,
        goes_on=compaction.goes_on and bool(span or alone),
        kind=compaction.kind,
    )


def new_in(compaction: Compaction, summaries: Iterable[Envelope]) -> Spans:
    """The seqs of the main stream that its source is made of, beside what it absorbs.

    Raises ValueError if an absorbed summary is missing.
    """
    _, first = _absorbed(compaction, summaries)
    return ((first, compaction.last_seq),) if first <= compaction.last_seq else ()


def _absorbed(
    compaction: Compaction, envelopes: Iterable[Envelope]
) -> tuple[list[Summary], int]:
    """The summaries it absorbs, and where the span behind them begins."""
    wanted = compaction.absorbs
    found = {one.seq: one.payload for one in envelopes if one.seq in wanted}
    named = (found.get(seq) for seq in wanted)
    absorbed = [summary for summary in named if isinstance(summary, Summary)]
    if len(absorbed) < len(wanted):
        raise ValueError(f"of the summaries {wanted} some are missing")
    ends = (summary.last_seq + 1 for summary in absorbed)
    return absorbed, max(ends, default=compaction.first_seq)


def of_events(events: Sequence[Envelope]) -> Source:
    """The source made of those of ``events`` that a context shows."""
    thread, asked = Thread(), markup.questions(events)
    texts, words = [], 0
    for envelope in events:
        thread, placed = place(thread, envelope)
        entry = markup.entry_of(envelope.payload, asked)
        if placed is not None and entry is not None:
            if isinstance(envelope.payload, log.ToolResult):
                entry = entry._replace(tag="result")
            texts.append(entry.text(seq=envelope.seq))
            words += markup.count_value_words(entry.content)
    return Source("\n".join(texts), words, len(texts), tuple(events))


def summary_text(summary: Summary) -> str:
    """A summary's words: its abridged history, its text, or both."""
    return "\n".join(part for part in (summary.abridged, summary.text) if part)


@dataclass(frozen=True, slots=True)
class Written:
    """What a summarizer wrote, and who it is.

    text:          the words of the summary.
    abridged:      an abridged history beside it, if the strategy wants both.
    prompt_digest: the SHA-256 of the prompt, if a model was asked.
    """

    text: str
    by: log.SummarizerRef
    abridged: str = ""
    usage: JsonObject | None = None
    prompt_digest: str | None = None


class Summarizer(Protocol):
    """Does the work of a decision; cancelling it changes nothing.

    One that has ``costs = False`` may be asked twice for the same: for all others a
    lease is taken first, and the start is recorded.  One that has a method ``wrote``
    says of a recorded ``SummarizerRef`` whether that is itself, as it is set now: what
    it wrote under other parameters of a strategy is adopted.
    """

    def summarise(self, source: Source, *, target_tokens: int) -> Written:
        """Write at most about ``target_tokens`` tokens that stand for ``source``."""


def check_summary(text: str, source: Source) -> None:
    """Let a summary pass that helps.

    Its words are counted without markup that Refold added; so are its source's.

    Raises SummaryRefused if it has more words than its source, or none where the
    source has some.
    """
    words = markup.own_words(text)
    if words > source.words or (source.words and not words):
        why = "longer than its source" if words else "empty"
        raise SummaryRefused(why, words=words, source_words=source.words)


def summary_of(
    compaction: Compaction,
    source: Source,
    written: Written,
    *,
    strategy: log.StrategyRef,
    appended_at_seq: int,
    duration_ms: float | None = None,
) -> Summary:
    """The event that makes a compaction effective, for the strategy's derived stream.

    ``appended_at_seq`` is the head of the main stream when it is appended.
    """
    told = {name: getattr(compaction, name) for name in CARRIED}
    return Summary(
        **told,
        strategy=strategy,
        appended_at_seq=appended_at_seq,
        source_event_count=source.events,
        source_digest=source.digest,
        prompt_digest=written.prompt_digest,
        summarizer=written.by,
        tokens_after=estimate_text(written.text) + estimate_text(written.abridged),
        usage=written.usage,
        duration_ms=duration_ms,
        text=written.text,
        abridged=written.abridged,
    )


class Notes(BaseModel):
    """The agent's notes: a line for each that it took by calling ``tool``.

    max_lines:                   over so many, the older ones are rewritten,
    compression_target:          so that there are about so many in all,
    num_recent_memories_to_keep: of which so many, the newest, stay as they are.
    compression_prompt:          what a model is asked; left out, nothing is rewritten.
    recent_memories_subprompt:   what it is told of those that stay.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    max_lines: int = Field(default=100, ge=1)
    compression_target: int = Field(default=50, ge=1)
    num_recent_memories_to_keep: int = Field(default=10, ge=0)
    compression_prompt: str | None = None
    recent_memories_subprompt: str = ""
    tool: str = Field(default="remember", min_length=1)

    @model_validator(mode="after")
    def _shrinks(self) -> Notes:
        if self.compression_prompt is not None and not self.compression_prompt.strip():
            raise ValueError("compression_prompt is empty: leave it out")
        if self.compression_target > self.max_lines:
            raise ValueError("compression_target is over max_lines")
        if self.num_recent_memories_to_keep >= self.compression_target:
            kept = "num_recent_memories_to_keep"
            raise ValueError(f"{kept} leaves nothing of compression_target")
        return self

    @property
    def lines(self) -> int:
        """How many lines the older notes may have once they are rewritten."""
        return self.compression_target - self.num_recent_memories_to_keep


def note_lines(envelope: Envelope, tool: str | None = None) -> list[str]:
    """The lines of a note: the texts that a call of this tool (or any) was given."""
    call = envelope.payload
    if not isinstance(call, log.ToolCall) or tool not in (None, call.tool_name):
        return []
    given = call.arguments
    values = [given] if isinstance(given, str) else given.values()
    items = chain(*(one if isinstance(one, list) else [one] for one in values))
    texts = (item.splitlines() for item in items if isinstance(item, str))
    return [line.strip() for line in chain(*texts) if line.strip()]


def noted(source: Source) -> list[str]:
    """The lines of a source of notes: those written before, then the newer ones."""
    earlier = [line for text in source.summaries for line in text.splitlines()]
    return earlier + [line for one in source.envelopes for line in note_lines(one)]


def shortened(lines: list[str], most: int) -> list[str]:
    """Without a model: each line once, where it was said last, and the newest."""
    last = {line.casefold(): index for index, line in enumerate(lines)}
    kept = [line for i, line in enumerate(lines) if last[line.casefold()] == i]
    return kept[-most:]
