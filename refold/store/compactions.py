"""Compaction of a session: decide, summarise, and record the summary.

A model's summary costs money, so a model is called only under a lease, and after the
log has an event about the start.  The lease prevents paying twice; the compare-and-set
of the derived stream prevents that two compactions take effect.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from threading import Event as Signal, Thread
from typing import Final, Literal, Self, TypeAlias
from uuid import uuid4

from refold.domain import events
from refold.domain.envelope import Draft, Envelope, from_microseconds
from refold.domain.errors import (
    LeaseLost,
    RefoldError,
    StaleSession,
)
from refold.domain.ids import MAIN, StreamId
from refold.domain.model import repr_without_texts
from refold.domain.ports import Leases
from refold.projections.context import compaction
from refold.projections.context.abridged import Abridged
from refold.projections.context.outline import Outline, is_rebuild, since_last_rebuild
from refold.projections.context.strategies import spec
from refold.projections.context.strategy import Strategy
from refold.projections.context.summaries import (
    failure_reason,
    summarizer_for,
    write_summary,
    wrote,
)
from refold.store.appends import Order, Writer
from refold.store.contexts import Viewer, with_derived
from refold.store.history import with_whole_texts

LEASE_SEC: Final = 60.0
# The most summaries that a model writes before one request.
_MOST_CALLS: Final = 12
# Renewals in the time of one lease: one of them may fail.
_RENEWALS: Final = 3

log = logging.getLogger("refold")
# A summary and the event that holds it.
_Written: TypeAlias = tuple[Envelope, events.Summary]


@dataclass
class Hold:
    """A lease that is held from ``take`` to the end of the ``with`` block.

    A thread renews it.  If the process dies, the lease expires after the seconds that
    it was taken for.  In the block, this thread's writes raise LeaseLost if another
    owner has taken the lease.

    asked: after the block: whether others asked for the lease and were refused.
    """

    _leases: Leases
    _stream: StreamId
    _owner: str
    _clock: Callable[[], int]
    _sec: float
    asked: bool = field(default=False, init=False)
    _done_for: float | None = field(default=None, init=False)

    @classmethod
    def take(
        cls, leases: Leases, stream: StreamId, *, clock: Callable[[], int], sec: float
    ) -> Self | None:
        """Take the lease of ``stream`` for ``sec`` seconds; None if another has it.

        Does not wait.  The holder learns that somebody asked.
        """
        owner = uuid4().hex
        period = int(sec * 1_000_000)
        if not leases.take_lease(stream, owner, clock=clock, period=period):
            return None
        return cls(leases, stream, owner, clock, sec)

    def __enter__(self) -> Self:
        self._pid = os.getpid()
        self._fence = self._leases.fenced(self._stream, self._owner)
        self._fence.__enter__()
        self._done = Signal()
        self._renewing = Thread(target=self._renew, name="refold-lease", daemon=True)
        self._renewing.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._done.set()
        self._renewing.join()
        self._fence.__exit__(None, None, None)
        if self._pid != os.getpid():  # after a fork, the parent has the lease
            return
        try:
            if self._done_for is not None:
                period = int(self._done_for * 1_000_000)
                self._leases.mark_done(
                    self._stream, self._owner, clock=self._clock, period=period
                )
                return
            self.asked = self._leases.release_lease(self._stream, self._owner)
        except RefoldError as error:  # the lease expires by itself
            log.warning("a lease could not be given back: %s", error)

    def keep(self, sec: float) -> None:
        """Mark the work as done for ``sec`` seconds when the block ends."""
        self._done_for = sec

    def renew(self) -> bool:
        """Extend the lease by its whole period; False if another has taken it."""
        period = int(self._sec * 1_000_000)
        return self._leases.renew_lease(
            self._stream, self._owner, clock=self._clock, period=period
        )

    def _renew(self) -> None:
        while not self._done.wait(self._sec / _RENEWALS):
            try:
                held = self.renew()
            except RefoldError as error:
                log.warning("a lease could not be renewed: %s", error)
                continue
            if not held:
                return


@repr_without_texts
@dataclass(frozen=True, slots=True)
class Compactor:
    """Compacts one session under one strategy.

    If two compactors decide at the same time, the compare-and-set of the derived stream
    lets one take effect; the other finds nothing to do.

    lease_sec: the time for which others leave a session alone whose compactor died.
    """

    writer: Writer
    viewer: Viewer
    strategy: Strategy
    summarizer: compaction.Summarizer
    lease_sec: float = LEASE_SEC

    @classmethod
    def of(
        cls,
        writer: Writer,
        viewer: Viewer,
        strategy: Strategy,
        summarizer: compaction.Summarizer | None,
    ) -> Compactor:
        """Make a compactor with this summarizer, else with ``abridged``."""
        suitable = summarizer_for(strategy, summarizer or Abridged())
        return cls(writer, viewer, strategy, suitable)

    def step(self) -> Envelope | None:
        """Make one pending compaction, and the folds of older summaries that follow it.

        If another compactor asked for the lease during this, the step is repeated: the
        other one counts on it.

        Returns the first summary.  None if nothing was pending, another compactor is at
        work or was first, or the summarizer failed or was refused (which is recorded).
        """
        if not self._costs:
            return self._compact_once()
        first: Envelope | None = None
        while self.is_due(self.viewer.current(self.strategy)):
            lease = self._lease()
            if lease is None:
                break
            with lease:
                summary = self._compact_once(lease)
            first = first or summary
            if not lease.asked:
                break
        return first

    def _lease(self) -> Hold | None:
        return Hold.take(
            self.writer.log.leases,
            self._derived,
            clock=self.writer.clock,
            sec=self.lease_sec,
        )

    def catch_up(self, outline: Outline) -> Outline:
        """Make all pending compactions in one walk; returns the outline after them.

        Summaries under other parameters of the strategy are adopted first.  A model
        does not write a summary that a later one would absorb, and writes at most 12
        summaries in one call.
        """
        if not self._costs:
            return self._catch_up(outline, None)
        lease = self._lease()
        if lease is None:
            return outline
        with lease:
            return self._catch_up(self.viewer.current(self.strategy), lease)

    def _catch_up(self, outline: Outline, lease: Hold | None) -> Outline:
        """Make the compactions that were pending at the ends of turns, then the others.

        A rebuild decides at the ends of turns, so a live session must do the same.
        """
        derived_seq = outline.derived_seq
        for earlier, ended_at in self._at_turn_ends(outline):
            after = self._catch_up_at(earlier, ended_at, lease)
            if after.derived_seq != earlier.derived_seq:
                derived_seq = after.derived_seq
        if derived_seq != outline.derived_seq:
            outline = self.viewer.current(self.strategy)
        return self._catch_up_at(outline, self._now(), lease)

    def _catch_up_at(
        self, outline: Outline, now: datetime, lease: Hold | None
    ) -> Outline:
        """Make all compactions that are pending at a moment; returns the outline after.

        lease: None for a summarizer that costs nothing.
        """
        outline, _ = self._adopt(outline, now)
        if lease is None:
            decision = self.strategy.decide(outline, now)
            while decision is not None:
                if self._carry_out(outline, decision) is None:
                    break
                outline = self._with_new(outline)
                decision = self.strategy.further(outline, now)
            return outline
        planned, after = self._planned(outline, now)
        # Summaries that a later one absorbs are not in the outline at the end.
        lasting = [live.seq for live in after.summaries if live.seq in planned]
        decisions = [compaction.merged(planned, seq) for seq in lasting[:_MOST_CALLS]]
        if len(decisions) > 1:
            log.info("%d summaries are written to catch up", len(decisions))
        for decision in decisions:
            if not lease.renew():
                break
            summary = self._carry_out(outline, decision)
            if summary is None:
                break
            outline = self._with_new(outline)
            if outline.derived_seq != summary.seq:
                break  # a compactor without a model, and so a lease, made the others
        return outline

    def _at_turn_ends(self, outline: Outline) -> Iterator[tuple[Outline, datetime]]:
        """Yield the outline and the time of each end of a turn that was not judged.

        These are the ends since the last call of a model, and since the last decision.
        Each outline is read after the one before was dealt with.

        outline: of the session's head.
        """
        if (outline.decided_at or 0) >= outline.through_seq:
            return  # To look for ends would fold the log.
        for end in self.viewer.turn_ends(self.strategy):
            earlier = self.viewer.as_of(self.strategy, end.seq)
            if earlier is not None and (earlier.decided_at or 0) < end.seq:
                yield earlier, end.ts

    def press(
        self, over: int, window: int, outline: Outline | None = None
    ) -> Outline | None:
        """Summarise the oldest part of a context that is ``over`` tokens too long.

        This does not wait until the strategy decides to compact.  It works without a
        model if the summarizer fails, failed a short while ago, or works for another
        process: a provider would refuse the long context.

        window:  the window of the model, in tokens.
        outline: the result of the last press.

        Returns the outline after it, with exchanges; None if nothing is left to
        summarise, or another process was first.
        """
        outline = self.viewer.by_unit(self.strategy, outline)
        decision = self.strategy.press(outline, over, window // 2)
        if decision is None:
            return None
        lease = None
        if self._costs and not compaction.held_back(outline, self._now()):
            lease = self._lease()
        if lease is not None:
            with lease:
                if self._carry_out(outline, decision, short=True) is not None:
                    return self._with_new(outline)
            outline = self._with_new(outline)
        without_model = replace(self, summarizer=Abridged())
        summary = without_model._carry_out(outline, decision, short=True)
        return None if summary is None else self._with_new(outline)

    def is_due(self, outline: Outline) -> bool:
        """Whether the strategy decides to compact now."""
        return self.strategy.decide(outline, self._now()) is not None

    def due_at(self) -> datetime | None:
        """The earliest time of the next compaction; None if only new events cause one.

        After a failure, this is the time of the next attempt.
        """
        outline = self.viewer.current(self.strategy)
        now = self._now()
        if self.is_due(outline):
            return now
        times = (
            self.strategy.due_at(outline, now),
            compaction.retry_at(outline),
            compaction.retry_at(outline.layers),
        )
        return min((time for time in times if time is not None), default=None)

    def waits_for(self) -> str:
        """Explain to people why nothing is pending, and when something may be."""
        outline = self.viewer.current(self.strategy)
        at = self.due_at()
        when = f"{at:%Y-%m-%d %H:%M:%S} UTC" if at and at > self._now() else ""
        if compaction.held_back(outline, self._now()):
            return f"the last attempt failed; the next may be made at {when}"
        reason = self.strategy.waits_for(outline)
        return f"{reason}, or at {when}" if when else reason

    def _planned(
        self, outline: Outline, now: datetime
    ) -> tuple[dict[int, compaction.Compaction], Outline]:
        """All pending compactions of the session, and the outline after them.

        Each has the seq as its key that its summary would get.
        """
        planned: dict[int, compaction.Compaction] = {}
        seq = outline.derived_seq
        decision = self.strategy.decide(outline, now)
        while decision is not None and decision.kind == "session":
            seq += 1
            planned[seq] = decision
            outline = compaction.supposed(outline, seq, decision)
            decision = self.strategy.further(outline, now)
        return planned, outline

    def _with_new(self, outline: Outline) -> Outline:
        """The outline with the new events of the derived stream.

        It is the outline of the head if another compactor rebuilt the stream, or
        decided at a later event than the last one in ``outline``.
        """
        new = self.writer.log.read(self._derived, after=outline.derived_seq)
        for envelope in new:
            decided_at_seq = getattr(envelope.payload, "decided_at_seq", 0)
            if is_rebuild(envelope) or decided_at_seq > outline.through_seq:
                return self.viewer.current(self.strategy)
        return with_derived(outline, new)

    def _adopt(
        self, outline: Outline, now: datetime
    ) -> tuple[Outline, Envelope | None]:
        """Adopt every summary that was written already for a pending compaction.

        Returns the outline after that, and the event of the first adopted summary.
        """
        first = None
        decision = self.strategy.decide(outline, now)
        if decision is None or decision.kind != "session":
            return outline, None
        written = self._adoptable()
        if not written:
            return outline, None
        planned, _ = self._planned(outline, now)
        reach = max((pending.last_seq for pending in planned.values()), default=0)
        written = [pair for pair in written if pair[1].last_seq <= reach]
        while written and decision is not None and decision.kind == "session":
            summary = self._fitting(outline, decision, written)
            if summary is None:
                break
            seq = self._append(outline, summary)
            if seq is None:
                break
            first = first or self._entry(seq)
            outline = self._with_new(outline)
            decision = self.strategy.decide(outline, now)
        return outline, first

    def _fitting(
        self,
        outline: Outline,
        decision: compaction.Compaction,
        written: Sequence[_Written],
    ) -> events.Summary | None:
        """The first written summary that fits the decision, as this strategy's own."""
        judged = self.strategy.judged(outline)
        for entry, summary in written:
            fitted = compaction.adoptable(judged, decision, summary)
            if fitted is None or not self.viewer.source_matches(entry, outline.edits):
                continue
            with suppress(RefoldError):
                return with_whole_texts(
                    self.writer.log, entry, events.Summary
                ).model_copy(
                    update={
                        "strategy": self.strategy.ref,
                        "decided_at_seq": fitted.decided_at_seq,
                        "appended_at_seq": self.writer.log.head(self.viewer.stream).seq,
                        "absorbs": fitted.absorbs,
                        "tokens_before": fitted.tokens_before,
                        "usage": None,  # the original summary records the cost
                        "duration_ms": None,
                        "adopted": events.Adopted(stream=entry.stream, seq=entry.seq),
                    }
                )
        return None

    def _adoptable(self) -> list[_Written]:
        """Summaries that may be adopted, those that reach furthest first.

        None if the newest summary of this strategy is its own and not adopted.
        """
        stream = self.viewer.stream
        own = (MAIN, self.strategy.fingerprint)
        names = self.writer.log.streams(stream.user_id, stream.session_id)
        others = [name for name in names if name not in own]
        if not others:
            return []
        newest = self._newest(self._derived)
        if newest is not None and not newest.adopted:
            return []
        written: list[_Written] = []
        for name in others:
            with suppress(RefoldError):
                written += self._written(stream._replace(stream=name))
        return sorted(written, key=lambda pair: pair[1].last_seq, reverse=True)

    def _written(self, stream: StreamId) -> list[_Written]:
        """Summaries in another stream that this summarizer and strategy would write."""
        newest = self._newest(stream)
        written_as = None
        if newest is not None:
            written_as = spec.parse(newest.strategy.model_dump()).written_as
        if written_as != self.strategy.written_as:
            return []
        entries = since_last_rebuild(self.writer.log.read(stream))
        if getattr(entries[-1].payload, "phase", "") == "retired":
            return []
        written: list[_Written] = []
        for entry in entries:
            summary = entry.payload
            if (
                isinstance(summary, events.Summary)
                and summary.kind == "session"
                and summary.adopted is None
                and wrote(self.strategy, self.summarizer, summary.summarizer)
            ):
                written.append((entry, summary))
        return written

    def _newest(self, stream: StreamId) -> events.Summary | None:
        entries = self.writer.log.read(stream, types=("summary",), limit=1, newest=True)
        summary = entries[0].payload if entries else None
        return summary if isinstance(summary, events.Summary) else None

    def _entry(self, seq: int) -> Envelope:
        return self.writer.log.read(self._derived, after=seq - 1, limit=1)[0]

    def _compact_once(self, lease: Hold | None = None) -> Envelope | None:
        """Adopt or make one compaction and its folds; returns the first summary."""
        outline = self.viewer.current(self.strategy)
        now = self._now()
        if not self.is_due(outline):
            return None
        for earlier, ended_at in self._at_turn_ends(outline):
            if self.strategy.decide(earlier, ended_at) is not None:
                outline = earlier
                now = ended_at
                break
        outline, adopted = self._adopt(outline, now)
        if adopted is not None:
            return adopted
        first: Envelope | None = None
        decision = self.strategy.decide(outline, now)
        while decision is not None:
            if lease is not None and not lease.renew():
                break  # another holds the lease: a call would be paid twice
            summary = self._carry_out(outline, decision)
            if summary is None:
                break
            first = first or summary
            outline = self._with_new(outline)
            decision = self.strategy.follow_up(outline, now)
        if first is not None:
            self.viewer.store_current(self.strategy)
        return first

    def _carry_out(
        self, outline: Outline, decision: compaction.Compaction, *, short: bool = False
    ) -> Envelope | None:
        """Write and append the summary of a decision; None if that failed.

        short: limit the summary to four characters a token of its target.
        """
        source = self.viewer.source(self._derived, decision, outline.edits)
        started = self.writer.clock()
        if self._costs:
            note_seq = self._append(outline, note_of("started", outline, decision))
            if note_seq is None:
                return None
            outline = outline._replace(derived_seq=note_seq)
        target = decision.target_tokens
        try:
            written = write_summary(
                self.strategy,
                self.summarizer,
                source,
                outline=outline,
                target_tokens=target,
                most_chars=4 * target if short else None,
            )
        except Exception as error:
            why = failure_reason(error)
            log.warning("a compaction failed, the context stays as it was: %s", why)
            self._append(outline, note_of("failed", outline, decision, why))
            return None
        summary = self.summary(decision, source, written, started)
        seq = self._append(outline, summary)
        return None if seq is None else self._entry(seq)

    def summary(
        self,
        decision: compaction.Compaction,
        source: compaction.Source,
        written: compaction.Written,
        started: int,
    ) -> events.Summary:
        """Make the event of a written summary.

        started: when the work began, in microseconds since 1970.
        """
        return compaction.summary_of(
            decision,
            source,
            written,
            strategy=self.strategy.ref,
            appended_at_seq=self.writer.log.head(self.viewer.stream).seq,
            duration_ms=(self.writer.clock() - started) / 1000,
        )

    def _append(self, outline: Outline, event: events.Event) -> int | None:
        """Append to the derived stream; returns the seq, or None if another was first.

        Another compactor was first if the stream has moved since ``outline``, or if it
        took the lease.
        """
        order = Order(self._derived, (Draft(event),), expected_seq=outline.derived_seq)
        try:
            return self.writer.append(order).last_seq
        except (LeaseLost, StaleSession):
            return None

    @property
    def _costs(self) -> bool:
        """Whether the summarizer costs money or time; one that does not say does."""
        return getattr(self.summarizer, "costs", True)

    @property
    def _derived(self) -> StreamId:
        return self.viewer.stream._replace(stream=self.strategy.fingerprint)

    def _now(self) -> datetime:
        return from_microseconds(self.writer.clock())


def note_of(
    phase: Literal["started", "failed"],
    outline: Outline,
    decision: compaction.Compaction,
    why: str = "",
) -> events.CompactionNote:
    """The event that an attempt started, or that it failed and why.

    It numbers the attempt, counted since the last success.
    """
    before = outline if decision.kind == "session" else outline.layers
    return events.CompactionNote(
        phase=phase,
        why=why,
        attempt=before.failures + 1,
        first_seq=decision.first_seq,
        last_seq=decision.last_seq,
        decided_at_seq=decision.decided_at_seq,
        kind=decision.kind,
    )
