"""A compaction: the decision of a strategy, its source, and its summary.

A strategy selects the oldest turns or exchanges (``oldest_turns``, ``oldest_units``)
and makes a decision from them (``batch``), or folds summaries (``over_budget``,
``side_by_side``).  ``source_of`` collects the source, a ``Summarizer`` writes the
summary, and ``summary_of`` makes the event that records it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import accumulate, groupby
from typing import Any, Final, Protocol, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from refold.domain import events
from refold.domain.canonical import text_digest
from refold.domain.envelope import Envelope, from_microseconds, microseconds
from refold.domain.errors import SummaryRefused
from refold.domain.events import JsonObject, Summary, SummaryKind
from refold.domain.tokens import estimate_text
from refold.projections.context import text as markup
from refold.projections.context.edits import Edit, applied
from refold.projections.context.outline import (
    LayerState,
    Outline,
    compacted,
    was_edited,
)
from refold.projections.context.units import (
    LiveSummary,
    Spans,
    Thread,
    Turn,
    Unit,
    holds,
    is_restated,
    joined,
    place,
    seen_by,
)


@dataclass(frozen=True, slots=True)
class Compaction:
    """The decision to summarize a span.

    target_tokens:  the length that the summary should have.
    decided_at_seq: the head of the main stream at the decision.
    tokens_before:  the cost of the span in the view before the compaction.
    reason:         the rule that caused it, with its numbers.
    turns:          the number of turns that begin in the span; 0 if it folds summaries.
    absorbs:        the summaries that it replaces, as seqs of the derived stream.
                    Their texts are its source instead of the events they stand for.
    ends_inside_turn: whether the span ends inside a turn.
    omitted:        seqs of the span that the summarizer does not see.
    reader:         the agent whose view is compacted, if there are several.
    kind:           the summary's subject: the session, or a memory layer.
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
    ends_inside_turn: bool = False
    omitted: Spans = ()
    reader: str | None = None
    kind: SummaryKind = "session"

    @classmethod
    def of(cls, summary: Summary, *, reader: str | None) -> Self:
        """Return the compaction that a recorded summary carried out.

        The reason, the turns, and whether a turn goes on are not recorded.
        """
        return cls(
            first_seq=summary.first_seq,
            last_seq=summary.last_seq,
            target_tokens=summary.tokens_after,
            decided_at_seq=summary.decided_at_seq,
            tokens_before=summary.tokens_before,
            reason="",
            level=summary.level,
            absorbs=summary.absorbs,
            omitted=summary.omitted,
            reader=reader,
            kind=summary.kind,
        )


def recorded_fields(compaction: Compaction | Summary) -> dict[str, Any]:
    """Return the fields of a compaction that its summary records."""
    return {
        "kind": compaction.kind,
        "first_seq": compaction.first_seq,
        "last_seq": compaction.last_seq,
        "decided_at_seq": compaction.decided_at_seq,
        "tokens_before": compaction.tokens_before,
        "level": compaction.level,
        "absorbs": compaction.absorbs,
        "omitted": compaction.omitted,
    }


def oldest_turns(
    outline: Outline, preferred: int, *, at_most: int = 0
) -> tuple[Turn, ...]:
    """Return the oldest turns that are not compacted, ``preferred`` if possible.

    The cut moves toward older turns until it separates no result from its call and no
    decision from its question.  A call without a result, or a question without a
    decision, does not move it: its whole exchange is covered, and also stays raw after
    the summary.  The newest turn is never included.

    at_most: if no older cut is allowed, the cut moves toward newer turns, and includes
             at most this number.  If none of these is allowed either, ``preferred``
             turns are returned, and the exchange that the cut separates stays raw as a
             whole.
    """
    turns = outline.past
    for count in _counts(outline, preferred, at_most, len(turns)):
        if outline.waiting.allows(turns[count - 1].last):
            return turns[:count]
    if at_most >= preferred and outline.open_calls_after is not None:
        return turns[:preferred]
    return ()


def oldest_units(
    outline: Outline, preferred: int, *, at_most: int = 0
) -> tuple[Unit, ...]:
    """Return the oldest exchanges that are not compacted, ``preferred`` if possible.

    The cut moves as for turns.  The newest exchange is never included.
    """
    units = outline.units
    for count in _counts(outline, preferred, at_most, len(units) - 1):
        cut = units[count].first - 1
        are_whole = all(unit.last <= cut for unit in units[:count])
        if are_whole and outline.waiting.allows(cut):
            return units[:count]
    return ()


def _counts(outline: Outline, preferred: int, at_most: int, most: int) -> Iterator[int]:
    """Yield the numbers of turns or exchanges to try, the best first.

    most: the number that may be included at all.
    """
    preferred = min(preferred, most)
    yield from range(preferred, 0, -1)
    # Strategies without a limit for open calls move a cut only toward older turns.
    if preferred > 0 and outline.open_calls_after is not None:
        yield from range(preferred + 1, min(at_most, most) + 1)


def batch(
    outline: Outline,
    units: Sequence[Unit],
    *,
    target: int,
    reason: str,
    absorbs: Sequence[LiveSummary] = (),
) -> Compaction | None:
    """Decide to summarize exchanges together with the summaries that it absorbs.

    units:   the oldest exchanges of the outline, from ``oldest_units``.
    target:  the length of the summary in tokens.
    absorbs: live summaries, the oldest first.

    Returns None without exchanges.
    """
    if not units:
        return None
    following = outline.units[len(units)]
    if absorbs:
        first_seq = absorbs[0].first
    elif outline.raw_span is not None:
        first_seq = outline.raw_span[0]
    else:
        first_seq = outline.units[0].first
    return Compaction(
        first_seq=first_seq,
        last_seq=following.first - 1,
        target_tokens=target,
        decided_at_seq=outline.through_seq,
        tokens_before=_total_tokens(units) + _total_tokens(absorbs),
        reason=reason,
        turns=sum(1 for unit in units if unit.type == "user_input"),
        level=max((summary.level for summary in absorbs), default=0) + 1,
        absorbs=tuple(summary.seq for summary in absorbs),
        ends_inside_turn=following.type != "user_input",
    )


def _total_tokens(parts: Iterable[Turn | Unit | LiveSummary]) -> int:
    return sum(part.tokens for part in parts)


def over_budget(outline: Outline, *, budget: int, target: int) -> Compaction | None:
    """Fold the two oldest summaries if all summaries cost more than ``budget``."""
    total = outline.summary_tokens
    if total <= budget or len(outline.summaries) < 2:
        return None
    reason = f"{total} tokens of summaries, at most {budget}"
    return _fold(outline, outline.summaries[:2], min(target, budget), reason)


def side_by_side(outline: Outline, *, fan_in: int, target: int) -> Compaction | None:
    """Fold the oldest ``fan_in`` neighboring summaries of one level."""
    for level, run in groupby(outline.summaries, lambda summary: summary.level):
        neighbors = list(run)
        if len(neighbors) >= fan_in:
            reason = f"{len(neighbors)} summaries of level {level}, {fan_in} are folded"
            return _fold(outline, neighbors[:fan_in], target, reason)
    return None


def _fold(
    outline: Outline, summaries: Sequence[LiveSummary], target: int, reason: str
) -> Compaction:
    return Compaction(
        first_seq=summaries[0].first,
        last_seq=summaries[-1].last,
        target_tokens=target,
        decided_at_seq=outline.through_seq,
        tokens_before=_total_tokens(summaries),
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
    """Decide on a compaction that makes room for ``over`` tokens.

    It covers as many of the oldest exchanges as that needs, within ``most`` tokens
    unless a single exchange has more.  If no exchange can be covered, it folds the two
    oldest summaries, or shortens the only one.

    target: the length of the summary in tokens.
    most:   the most tokens of its source.

    Returns None if nothing is left to compact.
    """
    target = max(1, min(target, most // 4))
    # The cost of the first exchange, of the first two, of the first three, and so on.
    totals = list(accumulate(unit.tokens for unit in outline.units))
    needed = bisect_left(totals, over + target) + 1  # the summary takes room, too
    fitting = bisect_right(totals, most)
    reason = f"{over} tokens over the window"
    # The newest exchange is never covered.
    fewest = max(1, min(needed, fitting, len(totals) - 1))
    for count in range(fewest, len(totals)):
        units = oldest_units(outline, count)
        if units:
            return batch(outline, units, target=target, reason=reason, absorbs=absorbs)
    summaries = outline.summaries
    if len(summaries) > 1:
        return _fold(outline, summaries[:2], target, reason)
    if summaries and summaries[0].tokens > 2 * target:
        return _fold(outline, summaries, target, reason)
    return None


def adoptable(
    outline: Outline, decided: Compaction, summary: Summary
) -> Compaction | None:
    """Return the compaction that an existing summary carries out instead.

    decided: the compaction that the strategy decided.  The result may end at another
             seq, if the strategy could cut there.

    Returns None if the summary does not fit.
    """
    last = summary.last_seq
    through = outline.compacted_through
    decided = replace(decided, level=summary.level)
    if summary.first_seq != decided.first_seq or summary.omitted:
        return None
    if was_edited(outline, summary):
        return None
    if last == decided.last_seq and not decided.omitted:
        return decided
    folds_summaries = through is not None and min(last, decided.last_seq) <= through
    if folds_summaries:
        return None
    covered = _covered_up_to(outline, last)
    if not covered:
        return None
    absorbed = [live for live in outline.summaries if live.seq in decided.absorbs]
    tokens = _total_tokens(covered) + _total_tokens(absorbed)
    return replace(decided, last_seq=last, tokens_before=tokens, omitted=())


def _covered_up_to(outline: Outline, last: int) -> Sequence[Turn | Unit]:
    """Return the oldest turns or exchanges up to ``last``; none without a cut there."""
    if outline.detail == "turns":
        count = sum(1 for turn in outline.past if turn.last <= last)
        turns = oldest_turns(outline, count)
        return turns if turns and turns[-1].last == last else ()
    count = sum(1 for unit in outline.units if unit.first <= last)
    units = oldest_units(outline, count)
    if units and outline.units[len(units)].first - 1 == last:
        return units
    return ()


def supposed(outline: Outline, seq: int, decision: Compaction) -> Outline:
    """Return the outline as if the summary of this decision existed.

    seq: of that summary, in the derived stream.
    """
    # The outline depends on no other fields of a summary.
    summary = Summary.model_construct(
        **recorded_fields(decision), tokens_after=decision.target_tokens
    )
    return compacted(outline, seq, summary)


def merged(decisions: Mapping[int, Compaction], seq: int) -> Compaction:
    """Merge a decision with the decisions whose summaries it absorbs.

    The merged decision covers their spans itself, so that no summary is written which
    no view would show.

    decisions: by the seq that the summary of each would get.
    """
    decision = decisions[seq]
    absorbed_decisions = [other for other in decision.absorbs if other in decisions]
    if not absorbed_decisions:
        return decision
    first_seq = decision.first_seq
    tokens_before = decision.tokens_before
    turns = decision.turns
    absorbs: list[int] = []
    omitted = list(decision.omitted)
    for other in absorbed_decisions:
        part = merged(decisions, other)
        first_seq = min(first_seq, part.first_seq)
        tokens_before += part.tokens_before - decisions[other].target_tokens
        turns += part.turns
        absorbs += part.absorbs
        omitted += part.omitted
    absorbs += [other for other in decision.absorbs if other not in decisions]
    return replace(
        decision,
        first_seq=first_seq,
        tokens_before=tokens_before,
        turns=turns,
        absorbs=tuple(dict.fromkeys(absorbs)),
        omitted=joined(omitted),
    )


FIRST_RETRY_SEC: Final = 30
LONGEST_RETRY_SEC: Final = 900


def held_back(
    state: Outline | LayerState, now: datetime, *, at_most: float = LONGEST_RETRY_SEC
) -> bool:
    """Whether it is too early to retry after a failed attempt.

    After n failures in a row, the retry comes 30 s × 2ⁿ⁻¹ after the last one, at most
    ``at_most`` seconds after it.
    """
    if not state.failures or state.failed_at is None:
        return False
    elapsed = microseconds(now) - state.failed_at
    return 0 <= elapsed < _retry_delay(state.failures, at_most)


def retry_at(state: Outline | LayerState) -> datetime | None:
    """Return the earliest time of the retry, or None if the last attempt succeeded."""
    if not state.failures or state.failed_at is None:
        return None
    delay = _retry_delay(state.failures, LONGEST_RETRY_SEC)
    return from_microseconds(state.failed_at + delay)


def _retry_delay(failures: int, at_most: float) -> int:
    """Return the delay in microseconds."""
    seconds = min(at_most, FIRST_RETRY_SEC * 2.0 ** min(failures - 1, 60))
    return int(seconds * 1_000_000)


@dataclass(frozen=True, slots=True)
class Source:
    """The input of a summarizer.

    text:      the absorbed summaries, then the span's events.
    words:     the words of the text, without the markup that Refold adds.  If a
               summary may name the files of ``replaced``, the words of its calls count.
    events:    the number of events that the text represents.
    envelopes: the events of the span that no absorbed summary stands for.
    summaries: the texts of the absorbed summaries.
    ends_inside_turn: whether the source ends inside a turn.
    kind:      the subject of the summary: the session, or a memory layer.
    notes:     for notes, the rules for rewriting them.
    user_stays: whether views show what the user said next to the summary.
    judgments_stay: whether views show reflections and verdicts next to the summary.
    first_turn: the number of the turn of the first envelope, by which a summary names
                turns; None names events by their seqs.
    replaced:  inputs, calls and results that the client replaced by a summary, if that
               summary is among the envelopes.  A ledger names their files, although
               they are not part of the text.
    """

    text: str
    words: int
    events: int
    envelopes: tuple[Envelope, ...] = ()
    summaries: tuple[str, ...] = ()
    ends_inside_turn: bool = False
    kind: SummaryKind = "session"
    notes: Notes | None = None
    user_stays: bool = False
    judgments_stay: bool = False
    first_turn: int | None = None
    replaced: tuple[Envelope, ...] = ()

    @property
    def digest(self) -> str:
        """The SHA-256 of the text."""
        return text_digest(self.text)


def source_of(
    compaction: Compaction,
    *,
    events: Iterable[Envelope] = (),
    summaries: Iterable[Envelope] = (),
    edits: Iterable[Edit] = (),
    replaced: Iterable[Envelope] = (),
) -> Source:
    """Return the source of a compaction: absorbed summaries, then events of its span.

    Events that an absorbed summary stands for, and omitted events, are left out, and so
    are those that the client had left out when the compaction was decided.

    events:    of the main stream, oldest first; those outside the span are ignored.
    summaries: of the derived stream; those that it does not absorb are ignored.
    edits:     of the main stream; later ones are ignored.
    replaced:  the events at ``replaced_spans``, oldest first.

    Raises ValueError if an absorbed summary is missing.
    """
    absorbed = _absorbed(compaction, summaries)
    first_seq = _first_new_seq(compaction, absorbed)
    seen_replaced: list[Envelope] = []
    for envelope in replaced:
        seen = seen_by(compaction.reader, envelope)
        if seen is not None and envelope.type in _WITH_FILES:
            seen_replaced.append(seen)
    edited = applied(edit for edit in edits if edit.at <= compaction.decided_at_seq)
    span: list[Envelope] = []
    for envelope in events:
        is_in_span = first_seq <= envelope.seq <= compaction.last_seq
        if not is_in_span or holds(compaction.omitted, envelope.seq):
            continue
        unedited = seen_by(compaction.reader, envelope)
        visible = unedited and edited.shown(unedited)
        if visible is not None and not is_restated(visible):
            span.append(visible)
    new = of_events(span)
    earlier = [summary_text(summary) for summary in absorbed]
    has_events = bool(span) or not earlier
    return Source(
        text="\n".join([*earlier, new.text] if has_events else earlier),
        words=new.words + sum(markup.own_words(text) for text in earlier),
        events=new.events + sum(summary.source_event_count for summary in absorbed),
        envelopes=new.envelopes,
        summaries=tuple(earlier),
        ends_inside_turn=compaction.ends_inside_turn and has_events,
        kind=compaction.kind,
        replaced=tuple(seen_replaced),
    )


# The types of events that show which files a session used, and in which turns.
_WITH_FILES: Final = ("user_input", "tool_call", "tool_result")


def replaced_spans(
    compaction: Compaction, summaries: Iterable[Envelope], edits: Iterable[Edit]
) -> Spans:
    """Return the seqs of the events that a summary of the client replaced before.

    The compaction covers that summary.

    summaries, edits: as for ``source_of``.

    Raises ValueError if an absorbed summary is missing.
    """
    if compaction.kind != "session":
        return ()
    edited = applied(edit for edit in edits if edit.at <= compaction.decided_at_seq)
    first_seq = _first_new_seq(compaction, _absorbed(compaction, summaries))
    for first, last in edited.summaries:
        if first_seq <= last and first <= compaction.last_seq:
            return edited.replaced
    return ()


def new_spans(compaction: Compaction, summaries: Iterable[Envelope]) -> Spans:
    """Return the seqs of the main stream that no absorbed summary stands for.

    Raises ValueError if an absorbed summary is missing.
    """
    first_seq = _first_new_seq(compaction, _absorbed(compaction, summaries))
    if first_seq > compaction.last_seq:
        return ()
    return ((first_seq, compaction.last_seq),)


def _absorbed(compaction: Compaction, envelopes: Iterable[Envelope]) -> list[Summary]:
    """Return the summaries that a compaction absorbs, in its order."""
    seqs = compaction.absorbs
    by_seq = {
        envelope.seq: envelope.payload
        for envelope in envelopes
        if envelope.seq in seqs and isinstance(envelope.payload, Summary)
    }
    if len(by_seq) < len(set(seqs)):
        raise ValueError(f"of the summaries {seqs} some are missing")
    return [by_seq[seq] for seq in seqs]


def _first_new_seq(compaction: Compaction, absorbed: Iterable[Summary]) -> int:
    """Return the first seq of the span that no absorbed summary stands for."""
    ends = [summary.last_seq + 1 for summary in absorbed]
    return max(ends, default=compaction.first_seq)


def of_events(envelopes: Sequence[Envelope]) -> Source:
    """Return the source that consists of the events which a context shows."""
    thread = Thread()
    questions = markup.questions(envelopes)
    texts: list[str] = []
    words = 0
    for envelope in envelopes:
        thread, placed = place(thread, envelope, _as_it_is)
        entry = markup.entry_of(envelope.payload, questions)
        if placed is not None and entry is not None:
            if isinstance(envelope.payload, events.ToolResult):
                entry = entry._replace(tag="result")
            texts.append(entry.text(seq=envelope.seq))
            words += markup.count_value_words(entry.content)
    return Source("\n".join(texts), words, len(texts), tuple(envelopes))


def _as_it_is(text: str) -> str:
    """Return the key of an id or a text in a thread that is not stored."""
    return text


def summary_text(summary: Summary) -> str:
    """Return the abridged history of a summary, its text, or both."""
    return "\n".join(part for part in (summary.abridged, summary.text) if part)


@dataclass(frozen=True, slots=True)
class Written:
    """The result of a summarizer.

    by:            the summarizer.
    abridged:      an abridged history that accompanies the text, if the strategy uses
                   both.
    usage:         the usage of the model, if one was called.
    prompt_digest: the SHA-256 of its prompt.
    """

    text: str
    by: events.SummarizerRef
    abridged: str = ""
    usage: JsonObject | None = None
    prompt_digest: str | None = None


class Summarizer(Protocol):
    """Writes the summary of a source; it changes nothing else and may be cancelled.

    A summarizer with the attribute ``costs = False`` may run twice for the same
    decision; for others, a lease is taken first and the start is recorded.  A
    summarizer with the method ``wrote(SummarizerRef) -> bool`` recognizes its own
    summaries, so that they are adopted under other parameters of a strategy.
    """

    def summarise(self, source: Source, *, target_tokens: int) -> Written:
        """Write a summary of ``source`` in about ``target_tokens`` tokens or fewer."""


def check_summary(text: str, source: Source) -> None:
    """Refuse a summary that is empty or longer than its source.

    Words are counted without the markup that Refold adds.

    Raises SummaryRefused.
    """
    words = markup.own_words(text)
    if words > source.words:
        reason = "longer than its source"
    elif source.words and not words:
        reason = "empty"
    else:
        return
    raise SummaryRefused(reason, words=words, source_words=source.words)


def summary_of(
    compaction: Compaction,
    source: Source,
    written: Written,
    *,
    strategy: events.StrategyRef,
    appended_at_seq: int,
    duration_ms: float | None = None,
) -> Summary:
    """Return the event that makes a compaction effective in the derived stream.

    appended_at_seq: the head of the main stream when the event is appended.
    """
    return Summary(
        **recorded_fields(compaction),
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
    """The rules for the agent's notes, which it takes by calling ``tool``.

    max_lines:                   over this number of lines, older notes are rewritten.
    compression_target:          the number of lines after rewriting, about.
    num_recent_memories_to_keep: the number of newest lines that stay unchanged.
    compression_prompt:          the model's prompt; without it, nothing is rewritten.
    recent_memories_subprompt:   the part of the prompt about the unchanged lines.
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
            raise ValueError(
                "num_recent_memories_to_keep leaves nothing of compression_target"
            )
        return self

    @property
    def lines(self) -> int:
        """The number of lines that older notes may have after rewriting."""
        return self.compression_target - self.num_recent_memories_to_keep


def note_lines(envelope: Envelope, tool: str | None = None) -> list[str]:
    """Return the lines of a note: the texts in the arguments of a call.

    tool: the tool that takes notes; None accepts any tool.

    Returns an empty list for other events.
    """
    call = envelope.payload
    if not isinstance(call, events.ToolCall) or tool not in (None, call.tool_name):
        return []
    arguments = call.arguments
    values = [arguments] if isinstance(arguments, str) else list(arguments.values())
    lines: list[str] = []
    for value in values:
        items = value if isinstance(value, list) else [value]
        for item in items:
            if isinstance(item, str):
                lines += [line.strip() for line in item.splitlines() if line.strip()]
    return lines


def lines_of_notes(source: Source) -> list[str]:
    """Return the lines of a source of notes: rewritten ones, then newer ones."""
    lines: list[str] = []
    for text in source.summaries:
        lines += text.splitlines()
    for envelope in source.envelopes:
        lines += note_lines(envelope)
    return lines


def shortened(lines: list[str], most: int) -> list[str]:
    """Shorten notes without a model: the newest lines, each only where it is last."""
    last_index = {line.casefold(): index for index, line in enumerate(lines)}
    unique = [
        line for index, line in enumerate(lines) if last_index[line.casefold()] == index
    ]
    return unique[-most:]
