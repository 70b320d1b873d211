"""One step of compaction: decide, summarise, record; start and failure are recorded.

What a model writes costs: it is asked for only under a lease, after the start is in
the log.  Neither lock keeps two compactions from taking effect; the compare-and-set of
the derived stream does.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
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
from refold.domain.model import quiet
from refold.domain.ports import Leases
from refold.projections.context import compaction
from refold.projections.context.abridged import Abridged
from refold.projections.context.outline import Outline, begins_anew, standing
from refold.projections.context.strategies import spec
from refold.projections.context.strategy import (
    Strategy,
    failure_reason,
    summarizer_for,
    write_summary,
    wrote,
)
from refold.store.appends import Order, Writer
from refold.store.contexts import Viewer, with_derived
from refold.store.history import uncut

LEASE_SEC: Final = 60.0
# So many summaries at most are asked of a model before one request.
_MOST_CALLS: Final = 12
_RENEWALS: Final = 3  # in the time of one lease, so that one may fail

log = logging.getLogger("refold")
_Written: TypeAlias = tuple[Envelope, events.Summary]
Automatic: TypeAlias = Literal["off", "background", "wait"]


@dataclass
class Hold:
    """A lease that is held from ``take`` to the end of the ``with`` block.

    A thread renews it.  If the process dies, the lease ends by itself after the seconds
    it was taken for.  Within the block, this thread's writes raise LeaseLost once
    another owner took the lease.  ``asked`` is set at the end: whether others asked for
    the lease and were refused.  ``keep`` leaves the mark that the work is done.
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
        """Take the lease of ``stream`` for ``sec`` seconds, or None: it is another's.

        It is not waited for: its holder learns that it was asked for.
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
        if self._pid != os.getpid():  # the lease is that of the parent of this process
            return
        try:
            if self._done_for is not None:
                period = int(self._done_for * 1_000_000)
                place = self._stream, self._owner
                self._leases.mark_done(*place, clock=self._clock, period=period)
                return
            self.asked = self._leases.release_lease(self._stream, self._owner)
        except RefoldError as lost:  # it ends by itself
            log.warning("a lease could not be given back: %s", lost)

    def keep(self, sec: float) -> None:
        """At the end, mark the work as done: it is due for nobody for ``sec``."""
        self._done_for = sec

    def renew(self) -> bool:
        """Hold it for its whole period again; False if another holds it by now."""
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


@quiet
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
        """The compactor with this summarizer, else with ``abridged``."""
        fits = summarizer_for(strategy, summarizer or Abridged())
        return cls(writer, viewer, strategy, fits)

    def step(self) -> Envelope | None:
        """Do what is due in one check: a compaction, and the folds that follow it.

        If others asked while it was done, it is checked once more in their place.

        Returns the first summary; None if nothing was due, another compactor is at
        it or was first, or the summarizer failed or was refused (which is recorded).
        """
        if not self._costs:
            return self._check()
        first: Envelope | None = None
        while self.is_due(self.viewer.current(self.strategy)):
            lease = self._lease()
            if lease is None:
                break
            with lease:
                done = self._check(lease)
            first = first or done
            if not lease.asked:
                break
        return first

    def _lease(self) -> Hold | None:
        leases, clock = self.writer.log.leases, self.writer.clock
        return Hold.take(leases, self._derived, clock=clock, sec=self.lease_sec)

    def catch_up(self, outline: Outline) -> Outline:
        """Do all that is due, in one walk; the outline after it.

        What is there under other parameters of the strategy is adopted.  A model is
        asked for no summary that a later one would absorb: of those, and of at most so
        many in one call, it writes the ones that stay.
        """
        if not self._costs:
            outline, _ = self._adopt(outline)
            while (due := self.strategy.decide(outline, self._now())) is not None:
                if self._carry_out(outline, due) is None:
                    break
                outline = self._and_new(outline)
            return outline
        if (lease := self._lease()) is None:
            return outline
        with lease:
            outline, _ = self._adopt(self.viewer.current(self.strategy))
            found, planned = self._planned(outline)
            # Without what would be absorbed of it.
            stay = [live.seq for live in planned.summaries if live.seq in found]
            decisions = [compaction.merged(found, one) for one in stay][:_MOST_CALLS]
            if len(decisions) > 1:
                log.info("%d summaries are written to catch up", len(decisions))
            for decision in decisions:
                if not lease.renew() or self._carry_out(outline, decision) is None:
                    break
                outline = self._and_new(outline)
        return outline

    def press(
        self, over: int, window: int, outline: Outline | None = None
    ) -> Outline | None:
        """Summarise the oldest of what is ``over`` tokens too many, due or not.

        Where the summarizer fails, failed a short while ago, or is at it for another,
        that is done without a model: what is too long would not be answered at all.

        outline: as the press before gave it.

        Returns the outline after it, by exchanges; None if nothing is left to
        summarise, or others were first.
        """
        outline = self.viewer.by_unit(self.strategy, outline)
        decision = self.strategy.press(outline, over, window // 2)
        if decision is None:
            return None
        asks = self._costs and not compaction.held_back(outline, self._now())
        if asks and (lease := self._lease()) is not None:
            with lease:
                if self._carry_out(outline, decision, short=True) is not None:
                    return self._and_new(outline)
            outline = self._and_new(outline)
        alone = replace(self, summarizer=Abridged())
        done = alone._carry_out(outline, decision, short=True)
        return None if done is None else self._and_new(outline)

    def is_due(self, outline: Outline) -> bool:
        """Whether a step has something to do, as the session stands."""
        return self.strategy.decide(outline, self._now()) is not None

    def due_at(self) -> datetime | None:
        """When there may be something to do; None if only new events can bring it.

        After a failure that is when the next attempt may be made.
        """
        outline, now = self.viewer.current(self.strategy), self._now()
        if self.is_due(outline):
            return now
        again = compaction.retry_at(outline), compaction.retry_at(outline.layers)
        times = (self.strategy.due_at(outline, now), *again)
        return min((time for time in times if time is not None), default=None)

    def waits_for(self) -> str:
        """Why nothing is due, and when something may be, for people."""
        outline, at = self.viewer.current(self.strategy), self.due_at()
        when = f"{at:%Y-%m-%d %H:%M:%S} UTC" if at and at > self._now() else ""
        if compaction.held_back(outline, self._now()):
            return f"the last attempt failed; the next may be made at {when}"
        waits = self.strategy.waits_for(outline)
        return f"{waits}, or at {when}" if when else waits

    def _planned(
        self, outline: Outline
    ) -> tuple[dict[int, compaction.Compaction], Outline]:
        """All that is due, by the seq that it would get, and the outline after it."""
        found: dict[int, compaction.Compaction] = {}
        now, seq = self._now(), outline.derived_seq
        while (due := self.strategy.decide(outline, now)) and due.kind == "session":
            seq += 1
            found[seq] = due
            outline = compaction.supposed(outline, seq, due)
        return found, outline

    def _and_new(self, outline: Outline) -> Outline:
        """The outline with what is new in the derived stream."""
        new = self.writer.log.read(self._derived, after=outline.derived_seq)
        if any(map(begins_anew, new)):
            return self.viewer.current(self.strategy)
        return with_derived(outline, new)

    def _adopt(self, outline: Outline) -> tuple[Outline, Envelope | None]:
        """The outline after all that is due and there already, and the first of it."""
        first = None
        due = self.strategy.decide(outline, self._now())
        there = self._there() if due is not None and due.kind == "session" else []
        planned = self._planned(outline)[0].values() if there else ()
        reach = max((one.last_seq for one in planned), default=0)
        there = [(entry, one) for entry, one in there if one.last_seq <= reach]
        while there and due is not None and due.kind == "session":
            summary = self._fitting(outline, due, there)
            seq = None if summary is None else self._append(outline, summary)
            if seq is None:
                break
            first = first or self._entry(seq)
            outline = self._and_new(outline)
            due = self.strategy.decide(outline, self._now())
        return outline, first

    def _fitting(
        self, outline: Outline, due: compaction.Compaction, there: Sequence[_Written]
    ) -> events.Summary | None:
        """The summary that stands for most of what is due, as this strategy's own."""
        judged = self.strategy.judged(outline)
        for entry, summary in there:
            fits = compaction.adoptable(judged, due, summary)
            if fits is None or not self.viewer.source_matches(entry):
                continue
            with suppress(RefoldError):
                return uncut(self.writer.log, entry, events.Summary).model_copy(
                    update={
                        "strategy": self.strategy.ref,
                        "decided_at_seq": fits.decided_at_seq,
                        "appended_at_seq": self.writer.log.head(self.viewer.stream).seq,
                        "absorbs": fits.absorbs,
                        "tokens_before": fits.tokens_before,
                        "usage": None,  # it was paid once
                        "duration_ms": None,
                        "adopted": events.Adopted(stream=entry.stream, seq=entry.seq),
                    }
                )
        return None

    def _there(self) -> list[_Written]:
        """What may be adopted, the furthest first; none beside summaries of its own."""
        stream, own = self.viewer.stream, (MAIN, self.strategy.fingerprint)
        names = self.writer.log.streams(stream.user_id, stream.session_id)
        others = [name for name in names if name not in own]
        newest = self._newest(self._derived) if others else None
        found: list[_Written] = []
        for name in others if newest is None or newest.adopted else ():
            with suppress(RefoldError):
                found += self._written(stream._replace(stream=name))
        return sorted(found, key=lambda pair: pair[1].last_seq, reverse=True)

    def _written(self, stream: StreamId) -> list[_Written]:
        """Of another stream, what this summarizer wrote as this strategy wants it."""
        newest, mine = self._newest(stream), self.strategy
        known = newest and spec.parse(newest.strategy.model_dump()).written_as
        if known != mine.written_as:
            return []
        entries = standing(self.writer.log.read(stream))
        retired = getattr(entries[-1].payload, "phase", "") == "retired"
        return [
            (entry, one)
            for entry in ([] if retired else entries)
            if isinstance(one := entry.payload, events.Summary)
            and (one.kind, one.adopted) == ("session", None)
            and wrote(mine, self.summarizer, one.summarizer)
        ]

    def _newest(self, stream: StreamId) -> events.Summary | None:
        found = self.writer.log.read(stream, types=("summary",), limit=1, newest=True)
        summary = found[0].payload if found else None
        return summary if isinstance(summary, events.Summary) else None

    def _entry(self, seq: int) -> Envelope:
        return self.writer.log.read(self._derived, after=seq - 1, limit=1)[0]

    def _check(self, lease: Hold | None = None) -> Envelope | None:
        first: Envelope | None = None
        outline, adopted = self._adopt(self.viewer.current(self.strategy))
        if adopted is not None:
            return adopted
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

    def _carry_out(
        self, outline: Outline, decision: compaction.Compaction, *, short: bool = False
    ) -> Envelope | None:
        source = self.viewer.source(self._derived, decision)
        started = self.writer.clock()
        if self._costs:
            begun = self._append(outline, note_of("started", outline, decision))
            if begun is None:
                return None
            outline = outline._replace(derived_seq=begun)
        target = decision.target_tokens
        try:
            made = self.strategy, self.summarizer, source
            most = 4 * target if short else None
            written = write_summary(*made, target_tokens=target, most_chars=most)
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
        """The event of what was written; ``started`` is when the work began."""
        return compaction.summary_of(
            decision,
            source,
            written,
            strategy=self.strategy.ref,
            appended_at_seq=self.writer.log.head(self.viewer.stream).seq,
            duration_ms=(self.writer.clock() - started) / 1000,
        )

    def _append(self, outline: Outline, event: events.Event) -> int | None:
        """Its seq in the derived stream; None if another compactor was first.

        Then the stream has moved since ``outline``, or the lease was taken away.
        """
        order = Order(self._derived, (Draft(event),), expected_seq=outline.derived_seq)
        try:
            return self.writer.append(order).last_seq
        except (LeaseLost, StaleSession):
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


def note_of(
    phase: Literal["started", "failed"],
    outline: Outline,
    decision: compaction.Compaction,
    why: str = "",
) -> events.CompactionNote:
    """The note that an attempt began, or how it failed; those since a success count."""
    before = outline if decision.kind == "session" else outline.layers
    same = ("first_seq", "last_seq", "decided_at_seq", "kind")
    told = {name: getattr(decision, name) for name in same}
    attempt = before.failures + 1
    return events.CompactionNote(phase=phase, why=why, attempt=attempt, **told)
