"""One step of compaction: decide, summarise, record; a failure is recorded too."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from refold.domain.envelope import Envelope, from_microseconds
from refold.domain.errors import StaleSession, SummaryRefused
from refold.domain.events import CompactionNote, Event, Summary
from refold.domain.ids import StreamId
from refold.domain.record import Draft
from refold.projections.context.compaction import Compaction, summary_of
from refold.projections.context.outline import Outline
from refold.projections.context.source import Source, source_of
from refold.projections.context.strategy import Strategy
from refold.projections.context.summarizer import (
    Summarizer,
    Written,
    check_summary,
)
from refold.store.viewing import Viewer
from refold.store.writing import Order, Writer

log = logging.getLogger("refold")


@dataclass(frozen=True, slots=True)
class Compactor:
    """Compacts one session under one strategy.

    Two compactors that decide at once meet at the derived stream's compare-and-set:
    one takes effect, the other finds nothing due.
    """

    writer: Writer
    viewer: Viewer
    strategy: Strategy
    summarizer: Summarizer

    def step(self) -> Envelope | None:
        """Do what is due in one check: a compaction, and the folds that follow it.

        Returns the first summary; None if nothing was due, another compactor was
        first, or the summarizer failed or was refused (which is recorded).
        """
        first: Envelope | None = None
        for outline, decision in self._due():
            done = self._carry_out(outline, decision)
            if done is None:
                return first
            first = first or done
        return first

    def _due(self) -> Iterator[tuple[Outline, Compaction]]:
        outline = self.viewer.current(self.strategy)
        decision = self.strategy.decide(outline, self._now())
        while decision is not None:
            yield outline, decision
            outline = self.viewer.current(self.strategy)
            decision = self.strategy.follow_up(outline, self._now())

    def _carry_out(self, outline: Outline, decision: Compaction) -> Envelope | None:
        source, started = self._source(decision), self.writer.clock()
        try:
            target = decision.target_tokens
            written = self.summarizer.summarise(source, target_tokens=target)
            check_summary("\n".join((written.abridged, written.text)), source)
        except Exception as error:
            why = str(error) if isinstance(error, SummaryRefused) else _kind(error)
            log.warning("a compaction failed, the context stays as it was: %s", why)
            return self._record(outline, _failure(outline, decision, why))
        summary = self._summary(decision, source, written, started)
        return self._record(outline, summary)

    def _summary(
        self, decision: Compaction, source: Source, written: Written, started: int
    ) -> Summary:
        return summary_of(
            decision,
            source,
            written,
            strategy=self.strategy.ref,
            appended_at_seq=self.writer.log.head(self.viewer.stream).seq,
            duration_ms=(self.writer.clock() - started) / 1000,
        )

    def _source(self, decision: Compaction) -> Source:
        history, stream = self.viewer.history, self._derived
        events = history.events(after=decision.first_seq - 1, upto=decision.last_seq)
        absorbed = self.writer.log.read(stream) if decision.absorbs else ()
        return source_of(decision, events=events, summaries=absorbed)

    def _record(self, outline: Outline, event: Event) -> Envelope | None:
        order = Order(self._derived, (Draft(event),), expected_seq=outline.derived_seq)
        try:
            seq = self.writer.append(order).last_seq
        except StaleSession:
            return None
        if not isinstance(event, Summary):
            return None
        self.viewer.catch_up(self.strategy)
        return self.writer.log.read(self._derived, after=seq - 1, limit=1)[0]

    @property
    def _derived(self) -> StreamId:
        return self.viewer.stream._replace(stream=self.strategy.fingerprint)

    def _now(self) -> datetime:
        return from_microseconds(self.writer.clock())


def _failure(outline: Outline, decision: Compaction, why: str) -> CompactionNote:
    return CompactionNote(
        phase="failed",
        why=why,
        first_seq=decision.first_seq,
        last_seq=decision.last_seq,
        decided_at_seq=decision.decided_at_seq,
        attempt=outline.failures + 1,
    )


def _kind(error: Exception) -> str:
    """What is said of an error whose message may hold what a model was sent."""
    return f"the summarizer raised {type(error).__name__}"
