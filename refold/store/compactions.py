"""Compaction of a session: decide, summarise, and record the summary.

A summary of a model costs money.  So a model is called only under a lease, and after an
event in the log says that the attempt started.  The lease prevents that two processes
pay for the same summary.  Each append states the expected end of the derived stream, so
only one of two concurrent compactions takes effect.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from threading import Event as Signal, Thread
from typing import Final, Literal, NamedTuple, Self
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
# A lease is renewed this often in its period, so that one renewal may fail.
_RENEWALS: Final = 3
_MICROSECONDS: Final = 1_000_000  # in a second

logger = logging.getLogger("refold")


class _RecordedSummary(NamedTuple):
    """A summary, and the entry of a derived stream that contains it."""

    entry: Envelope
    summary: events.Summary


@dataclass
class HeldLease:
    """A lease that is held from ``take`` to the end of the ``with`` block.

    Another thread renews the lease in the block.  If the process dies, the lease
    expires at the end of its period.  In the block, this thread's writes raise
    LeaseLost if another owner has taken the lease.

    was_requested: after the block, whether others requested the lease during it.
    """

    _leases: Leases
    _stream: StreamId
    _owner: str
    _clock: Callable[[], int]
    _sec: float
    was_requested: bool = field(default=False, init=False)
    _done_sec: float | None = field(default=None, init=False)

    @classmethod
    def take(
        cls, leases: Leases, stream: StreamId, *, clock: Callable[[], int], sec: float
    ) -> Self | None:
        """Take the lease of ``stream`` for a period of ``sec`` seconds.

        Returns None without waiting if another owner has the lease.  That owner then
        sees ``was_requested``.
        """
        owner = uuid4().hex
        period = int(sec * _MICROSECONDS)
        if not leases.take_lease(stream, owner, clock=clock, period=period):
            return None
        return cls(leases, stream, owner, clock, sec)

    def __enter__(self) -> Self:
        self._pid = os.getpid()
        self._fence = self._leases.fenced(self._stream, self._owner)
        self._fence.__enter__()
        self._ended = Signal()
        self._renewer = Thread(
            target=self._renew_until_end, name="refold-lease", daemon=True
        )
        self._renewer.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._ended.set()
        self._renewer.join()
        self._fence.__exit__(None, None, None)
        if self._pid != os.getpid():  # the process was forked: its parent has the lease
            return
        try:
            if self._done_sec is not None:
                period = int(self._done_sec * _MICROSECONDS)
                self._leases.mark_done(
                    self._stream, self._owner, clock=self._clock, period=period
                )
                return
            self.was_requested = self._leases.release_lease(self._stream, self._owner)
        except RefoldError as error:  # the lease expires by itself
            logger.warning("a lease could not be given back: %s", error)

    def mark_done(self, sec: float) -> None:
        """When the block ends, mark the work as done instead of releasing the lease.

        For ``sec`` seconds, nobody can take the lease to do the work again.
        """
        self._done_sec = sec

    def renew(self) -> bool:
        """Begin a new period; returns False if another owner has taken the lease."""
        period = int(self._sec * _MICROSECONDS)
        return self._leases.renew_lease(
            self._stream, self._owner, clock=self._clock, period=period
        )

    def _renew_until_end(self) -> None:
        while not self._ended.wait(self._sec / _RENEWALS):
            try:
                is_held = self.renew()
            except RefoldError as error:
                logger.warning("a lease could not be renewed: %s", error)
                continue
            if not is_held:
                return


@repr_without_texts
@dataclass(frozen=True, slots=True)
class Compactor:
    """Compacts one session under one strategy.

    If two compactors decide at the same time, one of them appends its summary.  The
    append of the other one fails, and it finds nothing left to do.

    lease_sec: the period of the lease.  After a compactor died, others leave the
               session alone for at most this time.
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
        """Return a compactor with this summarizer; None means ``abridged``."""
        suitable = summarizer_for(strategy, summarizer or Abridged())
        return cls(writer, viewer, strategy, suitable)

    def step(self) -> Envelope | None:
        """Make one pending compaction, and the folds of older summaries that follow it.

        If another compactor requested the lease in the meantime, the step is repeated,
        because the other one leaves its step to this compactor.

        Returns the first summary.  Returns None if nothing was pending, if another
        compactor is at work or was first, or if the summarizer failed or its summary
        was refused; such a failure is recorded.
        """
        if not self._costs:
            return self._compact_once()
        first: Envelope | None = None
        while self.is_due(self.viewer.fold(self.strategy)):
            lease = self._take_lease()
            if lease is None:
                break
            with lease:
                summary = self._compact_once(lease)
            first = first or summary
            if not lease.was_requested:
                break
        return first

    def _take_lease(self) -> HeldLease | None:
        return HeldLease.take(
            self.writer.log.leases,
            self._derived,
            clock=self.writer.clock,
            sec=self.lease_sec,
        )

    def catch_up(self, outline: Outline) -> Outline:
        """Make all pending compactions; returns the outline after them.

        Summaries that were written under other parameters of the strategy are adopted
        first.  A model writes no summary that a later one would absorb, and at most 12
        summaries in one call.
        """
        if not self._costs:
            return self._catch_up(outline, None)
        lease = self._take_lease()
        if lease is None:
            return outline
        with lease:
            return self._catch_up(self.viewer.current(self.strategy), lease)

    def _catch_up(self, outline: Outline, lease: HeldLease | None) -> Outline:
        """Make the compactions that were pending at ends of turns, then those of now.

        A rebuild decides at the ends of turns, so a live session must do the same.

        lease: None for a summarizer that costs nothing.
        """
        derived_seq = outline.derived_seq
        for earlier, ended_at in self._undecided_turn_ends(outline):
            after = self._catch_up_at(earlier, ended_at, lease)
            if after.derived_seq != earlier.derived_seq:
                derived_seq = after.derived_seq
        if derived_seq != outline.derived_seq:
            outline = self.viewer.current(self.strategy)
        return self._catch_up_at(outline, self._now(), lease)

    def _catch_up_at(
        self, outline: Outline, now: datetime, lease: HeldLease | None
    ) -> Outline:
        """Make all compactions that are pending at a time; returns the outline after.

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
        # The outline after the plan lacks the summaries that a later one absorbs.
        remaining = [live.seq for live in after.summaries if live.seq in planned]
        decisions = [compaction.merged(planned, seq) for seq in remaining[:_MOST_CALLS]]
        if len(decisions) > 1:
            logger.info("%d summaries are written to catch up", len(decisions))
        for decision in decisions:
            if not lease.renew():
                break
            summary = self._carry_out(outline, decision)
            if summary is None:
                break
            outline = self._with_new(outline)
            if outline.derived_seq != summary.seq:
                break  # a compactor without a model, which needs no lease, was faster
        return outline

    def _undecided_turn_ends(
        self, outline: Outline
    ) -> Iterator[tuple[Outline, datetime]]:
        """Yield the outline and the time of each end of a turn without a decision.

        These are the ends after the last call of a model and after the last decision.
        Each outline includes the compactions that the caller made at earlier ends.

        outline: the outline at the session's head.
        """
        if (outline.decided_at or 0) >= outline.through_seq:
            return  # No end is left, and a search for ends would fold the log.
        for end in self.viewer.turn_ends(self.strategy):
            earlier = self.viewer.with_all_summaries_at(self.strategy, end.seq)
            if earlier is not None and (earlier.decided_at or 0) < end.seq:
                yield earlier, end.ts

    def press(
        self, over: int, window: int, outline: Outline | None = None
    ) -> Outline | None:
        """Summarise the oldest part of a context that is ``over`` tokens too long.

        This does not wait until the strategy decides to compact, because a provider
        would refuse the context.  The summary is written without a model if the
        summarizer fails or failed shortly before, or if another process has the lease.

        window:  the window of the model, in tokens.
        outline: the outline that the previous call returned.

        Returns the outline with the summary, and with exchanges.  Returns None if
        nothing is left to summarise, or if another process was first.
        """
        outline = self.viewer.with_exchanges(self.strategy, outline)
        decision = self.strategy.press(outline, over, window // 2)
        if decision is None:
            return None
        lease = None
        if self._costs and not compaction.held_back(outline, self._now()):
            lease = self._take_lease()
        if lease is not None:
            with lease:
                if self._carry_out(outline, decision, short=True) is not None:
                    return self._with_new(outline)
            outline = self._with_new(outline)
        without_model = replace(self, summarizer=Abridged())
        summary = without_model._carry_out(outline, decision, short=True)
        if summary is None:
            return None
        return self._with_new(outline)

    def is_due(self, outline: Outline) -> bool:
        """Whether a compaction is pending: the strategy decides to compact now."""
        return self.strategy.decide(outline, self._now()) is not None

    def due_at(self) -> datetime | None:
        """Return the earliest time of the next compaction, or of the next attempt.

        Returns None if only new events can cause a compaction.
        """
        outline = self.viewer.current(self.strategy)
        now = self._now()
        if self.is_due(outline):
            return now
        times: list[datetime] = []
        for time in (
            self.strategy.due_at(outline, now),
            compaction.retry_at(outline),
            compaction.retry_at(outline.layers),
        ):
            if time is not None:
                times.append(time)
        return min(times, default=None)

    def waits_for(self) -> str:
        """Explain to people why no compaction is pending, and when one may be."""
        outline = self.viewer.current(self.strategy)
        due_at = self.due_at()
        when = ""
        if due_at and due_at > self._now():
            when = f"{due_at:%Y-%m-%d %H:%M:%S} UTC"
        if compaction.held_back(outline, self._now()):
            return f"the last attempt failed; the next may be made at {when}"
        reason = self.strategy.waits_for(outline)
        if when:
            return f"{reason}, or at {when}"
        return reason

    def _planned(
        self, outline: Outline, now: datetime
    ) -> tuple[dict[int, compaction.Compaction], Outline]:
        """Return all pending compactions of the session, and the outline after them.

        The key of each is the seq that its summary would get.
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
        """Return the outline with the new entries of the derived stream.

        If another process rebuilt the stream, or decided at an event that ``outline``
        lacks, this returns the outline at the session's head instead.
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
        """Adopt the summaries of other streams that fit pending compactions.

        Returns the outline after that, and the entry of the first adopted summary.
        """
        first = None
        decision = self.strategy.decide(outline, now)
        if decision is None or decision.kind != "session":
            return outline, None
        adoptable = self._adoptable()
        if not adoptable:
            return outline, None
        planned, _ = self._planned(outline, now)
        planned_end = max((pending.last_seq for pending in planned.values()), default=0)
        adoptable = [
            recorded
            for recorded in adoptable
            if recorded.summary.last_seq <= planned_end
        ]
        while adoptable and decision is not None and decision.kind == "session":
            summary = self._adopted(outline, decision, adoptable)
            if summary is None:
                break
            seq = self._append(outline, summary)
            if seq is None:
                break
            first = first or self._entry(seq)
            outline = self._with_new(outline)
            decision = self.strategy.decide(outline, now)
        return outline, first

    def _adopted(
        self,
        outline: Outline,
        decision: compaction.Compaction,
        adoptable: Sequence[_RecordedSummary],
    ) -> events.Summary | None:
        """Return the first summary that fits the decision, as one of this strategy."""
        shown = self.strategy.as_shown(outline)
        log = self.writer.log
        for entry, summary in adoptable:
            carried_out = compaction.adoptable(shown, decision, summary)
            if carried_out is None:
                continue
            if not self.viewer.source_matches(entry, outline.edits):
                continue
            # A summary that cannot be read is not adopted.
            with suppress(RefoldError):
                original = with_whole_texts(log, entry, events.Summary)
                changes = {
                    "strategy": self.strategy.ref,
                    "decided_at_seq": carried_out.decided_at_seq,
                    "appended_at_seq": log.head(self.viewer.stream).seq,
                    "absorbs": carried_out.absorbs,
                    "tokens_before": carried_out.tokens_before,
                    "usage": None,  # the original summary records the cost
                    "duration_ms": None,
                    "adopted": events.Adopted(stream=entry.stream, seq=entry.seq),
                }
                return original.model_copy(update=changes)
        return None

    def _adoptable(self) -> list[_RecordedSummary]:
        """Return the summaries of other streams that may be adopted.

        Those with the highest ``last_seq`` come first.  The list is empty if the newest
        summary of this strategy was written for it and not adopted.
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
        adoptable: list[_RecordedSummary] = []
        for name in others:
            with suppress(RefoldError):
                adoptable += self._adoptable_in(stream._replace(stream=name))

        def last_seq(recorded: _RecordedSummary) -> int:
            return recorded.summary.last_seq

        return sorted(adoptable, key=last_seq, reverse=True)

    def _adoptable_in(self, stream: StreamId) -> list[_RecordedSummary]:
        """Return the summaries of a stream that this compactor would write equally."""
        newest = self._newest(stream)
        if newest is None:
            return []
        other_strategy = spec.parse(newest.strategy.model_dump())
        if other_strategy.written_as != self.strategy.written_as:
            return []
        entries = since_last_rebuild(self.writer.log.read(stream))
        if getattr(entries[-1].payload, "phase", "") == "retired":
            return []
        adoptable: list[_RecordedSummary] = []
        for entry in entries:
            summary = entry.payload
            if not isinstance(summary, events.Summary):
                continue
            is_original = summary.kind == "session" and summary.adopted is None
            if is_original and wrote(
                self.strategy, self.summarizer, summary.summarizer
            ):
                adoptable.append(_RecordedSummary(entry, summary))
        return adoptable

    def _newest(self, stream: StreamId) -> events.Summary | None:
        """Return the newest summary of a stream, or None."""
        entries = self.writer.log.read(stream, types=("summary",), limit=1, newest=True)
        summary = entries[0].payload if entries else None
        return summary if isinstance(summary, events.Summary) else None

    def _entry(self, seq: int) -> Envelope:
        """Return the entry of the derived stream with this seq."""
        return self.writer.log.read(self._derived, after=seq - 1, limit=1)[0]

    def _compact_once(self, lease: HeldLease | None = None) -> Envelope | None:
        """Adopt or make one compaction and its folds; returns the first summary."""
        outline = self.viewer.fold(self.strategy)
        now = self._now()
        if not self.is_due(outline):
            return None
        for earlier, ended_at in self._undecided_turn_ends(outline):
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
                break  # another owner has the lease, and would pay for the same call
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
        """Write and append the summary of a decision; returns None if that failed.

        short: limit the summary to four characters for each token of its target.
        """
        source = self.viewer.source(self._derived, decision, outline.edits)
        started = self.writer.clock()
        if self._costs:
            note_seq = self._append(outline, attempt_note("started", outline, decision))
            if note_seq is None:
                return None
            outline = outline._replace(derived_seq=note_seq)
        target = decision.target_tokens
        most_chars = 4 * target if short else None
        try:
            written = write_summary(
                self.strategy,
                self.summarizer,
                source,
                outline=outline,
                target_tokens=target,
                most_chars=most_chars,
            )
        except Exception as error:
            why = failure_reason(error)
            logger.warning("a compaction failed, the context stays as it was: %s", why)
            self._append(outline, attempt_note("failed", outline, decision, why))
            return None
        summary = self.summary(decision, source, written, started)
        seq = self._append(outline, summary)
        if seq is None:
            return None
        return self._entry(seq)

    def summary(
        self,
        decision: compaction.Compaction,
        source: compaction.Source,
        written: compaction.Written,
        started: int,
        *,
        head_seq: int | None = None,
    ) -> events.Summary:
        """Return the event of a written summary.

        started:  when the work began, in microseconds since 1970.
        head_seq: the head of the main stream; None reads it.
        """
        if head_seq is None:
            head_seq = self.writer.log.head(self.viewer.stream).seq
        return compaction.summary_of(
            decision,
            source,
            written,
            strategy=self.strategy.ref,
            appended_at_seq=head_seq,
            duration_ms=(self.writer.clock() - started) / 1000,
        )

    def _append(self, outline: Outline, event: events.Event) -> int | None:
        """Append an entry to the derived stream; returns its seq.

        Returns None if another compactor was first: the stream has entries that
        ``outline`` lacks, or another owner took the lease.
        """
        order = Order(self._derived, (Draft(event),), expected_seq=outline.derived_seq)
        try:
            return self.writer.append(order).last_seq
        except (LeaseLost, StaleSession):
            return None

    @property
    def _costs(self) -> bool:
        """Whether the summarizer costs money or time, as it does by default."""
        return getattr(self.summarizer, "costs", True)

    @property
    def _derived(self) -> StreamId:
        return self.viewer.stream._replace(stream=self.strategy.fingerprint)

    def _now(self) -> datetime:
        return from_microseconds(self.writer.clock())


def attempt_note(
    phase: Literal["started", "failed"],
    outline: Outline,
    decision: compaction.Compaction,
    why: str = "",
) -> events.CompactionNote:
    """Return the event that records the start of an attempt, or why it failed.

    ``attempt`` counts the attempts since the last success.
    """
    failures = outline.layers.failures
    if decision.kind == "session":
        failures = outline.failures
    return events.CompactionNote(
        phase=phase,
        why=why,
        attempt=failures + 1,
        first_seq=decision.first_seq,
        last_seq=decision.last_seq,
        decided_at_seq=decision.decided_at_seq,
        kind=decision.kind,
    )
