"""One step of compaction: decide, summarise, record; start and failure are recorded.

What a model writes costs: it is asked for only under a lease, after the start is in
the log.  Neither lock keeps two compactions from taking effect; the compare-and-set of
the derived stream does.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from refold.domain.envelope import Envelope, from_microseconds
from refold.domain.errors import StaleSession
from refold.domain.events import CompactionNote, Event, Summary
from refold.domain.ids import StreamId
from refold.domain.ports import Standing
from refold.domain.record import Draft
from refold.projections.context.compaction import Compaction, summary_of
from refold.projections.context.outline import Outline
from refold.projections.context.retries import retry_at
from refold.projections.context.source import Source
from refold.projections.context.strategy import Strategy
from refold.projections.context.summarizer import (
    Summarizer,
    Written,
)
from refold.projections.context.writing import why_failed, write
from refold.store.leases import LEASE_SEC, Hold
from refold.store.viewing import Viewer
from refold.store.writing import Order, Writer

log = logging.getLogger("refold")


@dataclass(frozen=True, slots=True)
class Compactor:
    """Compacts one session under one strategy.

    Two compactors that decide at once meet at the derived stream's compare-and-set:
    one takes effect, the other finds nothing due.  ``lease_sec`` is how long others
    keep away from a session whose compactor died.
    """

    writer: Writer
    viewer: Viewer
    strategy: Strategy
    summarizer: Summarizer
    lease_sec: float = LEASE_SEC

    def step(self) -> Envelope | None:
        """Do what is due in one check: a compaction, and the folds that follow it.

        If others asked while it was done, it is checked once more in their place.

        Returns the first summary; None if nothing was due, another compactor is at
        it or was first, or the summarizer failed or was refused (which is recorded).
        """
        if not self._costs:
            return self._check()
        first, again = None, True
        while again:
            done, again = self._leased()
            first = first or done
        return first

    def is_due(self, standing: Standing) -> bool:
        """Whether a step has something to do, as the session stands."""
        outline = self.viewer.current(self.strategy, standing)
        return self.strategy.decide(outline, self._now()) is not None

    def due_at(self) -> datetime | None:
        """When there may be something to do; None if only new events can bring it.

        After a failure that is when the next attempt may be made.
        """
        outline, now = self.viewer.current(self.strategy), self._now()
        if self.strategy.decide(outline, now) is not None:
            return now
        memory = outline.memory
        times = (
            self.strategy.due_at(outline, now),
            retry_at(outline.failures, outline.failed_at),
            retry_at(memory.failures, memory.failed_at),
        )
        return min((time for time in times if time is not None), default=None)

    def _leased(self) -> tuple[Envelope | None, bool]:
        """A check under the lease, if any is due; and whether others asked for it."""
        outline = self.viewer.current(self.strategy)
        if self.strategy.decide(outline, self._now()) is None:
            return None, False
        log_, clock = self.writer.log, self.writer.clock
        lease = Hold.take(log_.leases, self._derived, clock=clock, sec=self.lease_sec)
        if lease is None:
            return None, False
        with lease:
            done = self._check(lease)
        return done, lease.asked

    def _check(self, lease: Hold | None = None) -> Envelope | None:
        first: Envelope | None = None
        outline = self.viewer.current(self.strategy)
        decision = self.strategy.decide(outline, self._now())
        while decision is not None:
            if lease is not None and not lease.renew():
                return first  # another is at it by now: a call would be wasted
            done = self._carry_out(outline, decision)
            if done is None:
                return first
            first = first or done
            outline, _ = self.viewer.caught_up(self.strategy)
            decision = self.strategy.follow_up(outline, self._now())
        return first

    def _carry_out(self, outline: Outline, decision: Compaction) -> Envelope | None:
        source, started = self._source(decision), self.writer.clock()
        if self._costs:
            begun = self._append(outline, note_of("started", outline, decision))
            if begun is None:
                return None
            outline = outline._replace(derived_seq=begun)
        try:
            target = decision.target_tokens
            written = write(
                self.strategy, self.summarizer, source, target_tokens=target
            )
        except Exception as error:
            why = why_failed(error)
            log.warning("a compaction failed, the context stays as it was: %s", why)
            self._append(outline, note_of("failed", outline, decision, why))
            return None
        summary = self._summary(decision, source, written, started)
        seq = self._append(outline, summary)
        if seq is None:
            return None
        return self.writer.log.read(self._derived, after=seq - 1, limit=1)[0]

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
        return self.viewer.source(self._derived, decision)

    def _append(self, outline: Outline, event: Event) -> int | None:
        """Its seq in the derived stream; None if that has moved since ``outline``."""
        order = Order(self._derived, (Draft(event),), expected_seq=outline.derived_seq)
        try:
            return self.writer.append(order).last_seq
        except StaleSession:
            return None

    @property
    def _costs(self) -> bool:
        """Whether the summarizer costs money or time: yes, if it does not say."""
        return getattr(self.summarizer, "costs", True)

    @property
    def _derived(self) -> StreamId:
        return self.viewer.stream._replace(stream=self.strategy.fingerprint)

    def _now(self) -> datetime:
        return from_microseconds(self.writer.clock())


def attempt_of(outline: Outline, decision: Compaction) -> int:
    """Which attempt this is, counted from the last success of its kind."""
    ours = decision.kind == "session"
    return (outline.failures if ours else outline.memory.failures) + 1


def note_of(
    phase: Literal["started", "failed"],
    outline: Outline,
    decision: Compaction,
    why: str = "",
) -> CompactionNote:
    """The note that an attempt began, or how it failed."""
    return CompactionNote(
        phase=phase,
        why=why,
        first_seq=decision.first_seq,
        last_seq=decision.last_seq,
        decided_at_seq=decision.decided_at_seq,
        attempt=attempt_of(outline, decision),
        kind=decision.kind,
    )
