"""What a strategy decides, and the summary event that records that it was done."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from refold.domain.events import StrategyRef, Summary, SummaryKind
from refold.domain.tokens import estimate_text
from refold.projections.context.source import Source
from refold.projections.context.spans import Spans
from refold.projections.context.summarizer import Written


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

    def read_by(self, reader: str) -> Compaction:
        """The same of what that agent sees."""
        return replace(self, reader=reader)


def summary_of(
    compaction: Compaction,
    source: Source,
    written: Written,
    *,
    strategy: StrategyRef,
    appended_at_seq: int,
    duration_ms: float | None = None,
) -> Summary:
    """The event that makes a compaction effective, for the strategy's derived stream.

    ``appended_at_seq`` is the head of the main stream when it is appended.
    """
    return Summary(
        kind=compaction.kind,
        strategy=strategy,
        first_seq=compaction.first_seq,
        last_seq=compaction.last_seq,
        decided_at_seq=compaction.decided_at_seq,
        appended_at_seq=appended_at_seq,
        source_event_count=source.events,
        absorbs=compaction.absorbs,
        level=compaction.level,
        omitted=compaction.omitted,
        source_digest=source.digest,
        prompt_digest=written.prompt_digest,
        summarizer=written.by,
        tokens_before=compaction.tokens_before,
        tokens_after=estimate_text(written.text) + estimate_text(written.abridged),
        usage=written.usage,
        duration_ms=duration_ms,
        text=written.text,
        abridged=written.abridged,
    )
