"""Workers: they do the pending work of a store, and share it through leases."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from heapq import heappop, heappush
from math import inf
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from refold.domain.envelope import Envelope, microseconds
from refold.domain.erasure import RetentionPolicy
from refold.domain.errors import InvalidConfiguration, LeaseLost, RefoldError
from refold.domain.events import Summary
from refold.domain.ids import StreamId
from refold.domain.ports import Scope, SessionInfo, listed
from refold.projections.context.abridged import Abridged
from refold.projections.context.compaction import Summarizer
from refold.projections.context.strategy import Strategy
from refold.projections.context.summaries import summarizer_for
from refold.store.compactions import HeldLease
from refold.store.contexts import WORTH_STORING, lagging, update_view
from refold.store.proofs.verification import Verified
from refold.store.store import now as machine_clock
from refold.store.work.background import attempt
from refold.store.work.indexing import index_session
from refold.store.work.rebuilds import Rebuilt, rebuild_session

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from refold.store.store import SessionStore

_DAY_SEC: Final = 86_400.0
# The duties with their usual intervals in seconds, the most urgent duty first.
EVERY_SEC: Final[Mapping[str, float]] = {
    "seal": 60.0,
    "erase": 60.0,
    "retain": 3_600.0,
    "compact": 30.0,
    "index": 60.0,
    "rebuild": 366 * _DAY_SEC,
    "verify": 7 * _DAY_SEC,
}
# The duties that are done for the whole store, not for each session.
_STORE_WIDE: Final = frozenset({"seal", "erase", "retain"})
# The duties that a session needs again when it has new events.
_FOR_NEW_EVENTS: Final = frozenset({"compact", "index"})
# The duties that write summaries, which an overview counts.
_WRITES_SUMMARIES: Final = frozenset({"compact", "rebuild"})
_LONGEST_SEC: Final = EVERY_SEC["rebuild"]  # the longest interval that is allowed
_LIST_SEC: Final = 3_600.0  # sessions are listed at least this often
_RETRY_SEC: Final = 60.0  # failed work is tried again after at most this time
# A duty is overdue after this number of its intervals, but not before this time.
OVERDUE_INTERVALS: Final = 3
OVERDUE_SEC: Final = 600.0
# A worker without progress for this time is stuck.  No answer of a model and no proof
# should take longer.
STUCK_SEC: Final = 600.0
_SECOND: Final = 1_000_000  # in microseconds
logger = logging.getLogger("refold")
_WILL_RETRY: Final = "the worker goes on, it will try again"


class Unit(NamedTuple):
    """A piece of work: a duty for one session, or for the store as a whole."""

    duty: str
    user_id: str = ""
    session_id: str = ""


class _Timer(NamedTuple):
    """When a piece of work is due.

    at:   microseconds of the worker's clock.
    rank: orders timers with the same time.
    """

    at: int
    rank: int
    unit: Unit


def monotonic() -> int:
    """Return the microseconds of a clock that never jumps."""
    return time.monotonic_ns() // 1_000


@dataclass(eq=False, repr=False)
class Worker:
    """Does the pending work of a store.

    Work becomes pending through new events, or at a certain time: after an interval or
    a cooldown, or when a cache expires.  The worker lists the sessions for new events,
    and has a timer for each such time.  Workers on any number of machines share the
    work through leases.  If a worker dies, others take its work over when its lease
    ends.  Failures are logged and tried again.

    strategy: decides about compactions.  None means, for each session, the strategy of
              its last request, else the strategy of the settings.
    duties:   the intervals of the duties in seconds.  ``compact`` looks for new events
              and for views that are far behind; ``index`` looks for new events;
              ``rebuild`` and ``verify`` work on each session.  Finished work is due
              again for any worker only after the interval, except for ``compact`` and
              ``index``.
    rebuilds: the strategy for the duty ``rebuild``.
    retains:  the policy for the duty ``retain``.
    executor: finds the ends of streams for ``seal``, as in ``SessionStore.seal``.
    lease:    the period of a lease in seconds; a lease is renewed during the work.
    most_per_second: the largest number of pieces of work that begin in a second.
    done:     called with each result of the store's method; for ``compact``, with each
              new summary.
    counts:   the number of pieces of work by duty and outcome: ``done``, ``nothing``,
              ``held`` (by another worker) or ``failed``.
    failing:  the duties for the whole store that failed the last time.
    progressed_at: when the worker last made progress.  Between two rounds, it is when
              the next round begins.

    Timers use the machine's monotonic clock, which does not jump.  If the store was
    opened with another clock, they use that one.  Use a worker from one thread; only
    ``stop``, ``overdue`` and ``silent_sec`` may be called from any thread.

    Raises InvalidConfiguration for an unknown duty, for a number out of range, and for
    ``rebuild`` or ``retain`` without ``rebuilds`` or ``retains``.
    """

    store: SessionStore
    strategy: str | Strategy | None = None
    _: KW_ONLY
    duties: Mapping[str, float] = field(default_factory=lambda: {"compact": 30.0})
    summarizer: Summarizer | None = None
    rebuilds: Strategy | None = None
    retains: RetentionPolicy | None = None
    user_id: str | None = None
    session_id: str | None = None
    executor: Executor | None = None
    lease: float = 6.0
    most_per_second: float = inf
    done: Callable[[Unit, Any], object] | None = None
    counts: Counter[tuple[str, str]] = field(init=False, default_factory=Counter)
    failing: set[str] = field(init=False, default_factory=set)
    progressed_at: int = field(init=False)

    def __post_init__(self) -> None:
        self._now = self.store.clock
        if self.store.clock is machine_clock:
            self._now = monotonic
        self._check_settings()
        self._scope = Scope(self.user_id, self.session_id)
        self._session_duties = {*self.duties} - _STORE_WIDE
        # The heads of the sessions in the last list.
        self._head_seqs: dict[tuple[str, str], int] = {}
        # The timers of each duty, as a heap.  A timer counts only if it is the one that
        # ``_timer_ends`` has for its unit.
        self._timers: dict[str, list[_Timer]] = {}
        for duty in EVERY_SEC:
            if duty in self.duties:
                self._timers[duty] = []
        # When the timer of each unit ends.
        self._timer_ends: dict[Unit, int] = {}
        # When work became due, or will become due.
        self._due_since: dict[Unit, int] = {}
        self._current_unit: Unit | None = None
        self._results: list[tuple[Unit, Any]] = []  # for ``done``
        self._next_list_at = self._now()
        self._next_work_at = self._now()
        self._sealed_size: int | None = None  # of the Merkle tree in the last seal
        self._compact_at: int | None = None  # when the current session is due again
        # The handler of a signal may use this queue; it may not use a condition.
        self._woken: SimpleQueue[None] = SimpleQueue()
        self._stopping = False
        self.progressed_at = self._now()
        for duty in self._timers:
            is_whole_store = self._scope == Scope()
            if duty in _STORE_WIDE or (duty == "verify" and is_whole_store):
                self._set_timer(Unit(duty), self._now())

    def _check_settings(self) -> None:
        """Raise InvalidConfiguration for settings that a worker cannot use."""
        is_valid = self.most_per_second > 0
        for seconds in (*self.duties.values(), self.lease):
            if not 0 < seconds <= _LONGEST_SEC:
                is_valid = False
        for duty in self.duties:
            if duty not in EVERY_SEC:
                is_valid = False
        if "rebuild" in self.duties and self.rebuilds is None:
            is_valid = False
        if "retain" in self.duties and self.retains is None:
            is_valid = False
        if not is_valid:
            raise InvalidConfiguration(
                f"the duties of a worker are {', '.join(EVERY_SEC)}; intervals and the "
                f"lease are above 0 and up to {_LONGEST_SEC:,.0f} seconds; rebuild "
                "needs a strategy, and retain a policy; more than 0 pieces of work may "
                "begin in a second"
            )

    def overdue(self) -> dict[str, float]:
        """Return the duties with overdue work, and for how many seconds it has waited.

        Work is overdue after OVERDUE_INTERVALS intervals of its duty, but not before
        OVERDUE_SEC.  The current work does not count unless it is stuck.  Any thread
        may call this.
        """
        now = self._now()
        is_stuck = (now - self.progressed_at) / _SECOND > STUCK_SEC
        overdue: dict[str, float] = {}
        for unit, since in list(self._due_since.items()):
            if unit == self._current_unit and not is_stuck:
                continue
            waiting = (now - since) / _SECOND
            if waiting > max(OVERDUE_SEC, OVERDUE_INTERVALS * self.duties[unit.duty]):
                overdue[unit.duty] = max(waiting, overdue.get(unit.duty, 0.0))
        return overdue

    def silent_sec(self) -> float:
        """Return the seconds since the last progress.  Any thread may call this."""
        return max(0.0, (self._now() - self.progressed_at) / _SECOND)

    def run(self) -> None:
        """Work until ``stop`` is called, and sleep until the next timer or listing."""
        while not self._stopping:
            wait = self.round()
            with suppress(Empty):
                self._woken.get(timeout=wait)

    def stop(self) -> None:
        """End ``run`` after the current work; the handler of a signal may call this."""
        self._stopping = True
        self._woken.put(None)

    def round(self) -> float:
        """Do all due work; returns the seconds until the next round."""
        is_listing = bool(self._session_duties) and self._now() >= self._next_list_at
        if is_listing:
            self._next_list_at = self._after(min(*self.duties.values(), _LIST_SEC))
            succeeded = attempt(self._list_sessions, otherwise=_WILL_RETRY)
            self._note_outcome("list", succeeded=succeeded)
        while not self._stopping and self._next_work_at <= self._now():
            unit = self._take_due()
            if unit is None:
                break
            self._next_work_at = self._after(1 / self.most_per_second)
            self._current_unit = unit
            succeeded = attempt(partial(self._do, unit), otherwise=_WILL_RETRY)
            self._current_unit = None
            if not succeeded:
                self.counts[unit.duty, "failed"] += 1
                retry_sec = min(self.duties[unit.duty], _RETRY_SEC)
                self._set_timer(unit, self._after(retry_sec))
            if not unit.user_id:
                self._note_outcome(unit.duty, succeeded=succeeded)
            self._report()
        if is_listing and "compact" in self._session_duties:
            attempt(self._bring_up_views, otherwise=_WILL_RETRY)
        now = self._now()
        next_times = [heap[0].at for heap in self._timers.values() if heap]
        if self._session_duties or not next_times:
            next_times.append(self._next_list_at)
        self.progressed_at = max(min(next_times), self._next_work_at, now)
        return (self.progressed_at - now) / _SECOND

    def _report(self) -> None:
        """Call ``done`` with the new results."""
        results = self._results
        self._results = []
        if self.done is None:
            return
        for unit, result in results:
            self.done(unit, result)

    def _list_sessions(self) -> None:
        """List the sessions: set timers for new events, and forget missing sessions."""
        head_seqs: dict[tuple[str, str], int] = {}
        for info in listed(self.store.log.sessions, self._scope):
            session = (info.user_id, info.session_id)
            head_seqs[session] = info.head_seq
            if self._head_seqs.get(session) == info.head_seq:
                continue
            duties = self._session_duties
            if session in self._head_seqs:  # its other duties have timers already
                duties = duties & _FOR_NEW_EVENTS
            is_of_live_agent = info.is_live and not info.is_internal
            for duty in duties:
                # Internal and frozen sessions get no summaries, but are verified.
                is_verified = duty == "verify" and info.status != "erased"
                if is_of_live_agent or is_verified:
                    self._set_timer(Unit(duty, *session), self._now())
        self._head_seqs = head_seqs
        for unit in list(self._due_since):
            if unit.user_id and (unit.user_id, unit.session_id) not in head_seqs:
                del self._due_since[unit]

    def _bring_up_views(self) -> None:
        """Bring stored views up to date that lack many events."""
        for view in lagging(self.store.log, self._scope, by=WORTH_STORING):
            if not self._stopping:
                fold = partial(update_view, self.store.log, view.place)
                attempt(fold, otherwise=_WILL_RETRY)

    def _set_timer(self, unit: Unit, at: int) -> None:
        """Make work due at a time, unless a timer makes it due earlier."""
        self._due_since.setdefault(unit, at)
        end = self._timer_ends.get(unit)
        if end is not None and end <= at:
            return
        self._timer_ends[unit] = at
        # Hashes of strings differ between processes.  So workers rarely begin with the
        # same session.
        heappush(self._timers[unit.duty], _Timer(at, hash(unit), unit))

    def _take_due(self) -> Unit | None:
        """Take the due work of the most urgent duty; None if no work is due."""
        for heap in self._timers.values():
            while heap and heap[0].at <= self._now():
                timer = heappop(heap)
                unit = timer.unit
                if self._timer_ends.get(unit) != timer.at:
                    continue  # an earlier timer took its place
                del self._timer_ends[unit]
                session = (unit.user_id, unit.session_id)
                if not unit.user_id or session in self._head_seqs:
                    return unit
        return None

    def _note_outcome(self, duty: str, *, succeeded: bool) -> None:
        """Remember whether work for the whole store failed."""
        if succeeded:
            self.failing.discard(duty)
        else:
            self.failing.add(duty)

    def _do(self, unit: Unit) -> None:
        """Do a piece of work under a lease, and count the outcome."""
        lease_name = unit.duty
        if unit.duty == "rebuild" and self.rebuilds is not None:
            lease_name += self.rebuilds.fingerprint
        stream = StreamId(unit.user_id, unit.session_id, lease_name)
        held_lease = HeldLease.take(
            self.store.log.leases, stream, clock=self.store.clock, sec=self.lease
        )
        if held_lease is None:
            self._leave_to_holder(unit, stream)
            return
        results_before = len(self._results)
        try:
            with held_lease:
                for result in self._work_on(unit):
                    self._results.append((unit, result))
                    self._note_progress()
                    if self._stopping:
                        break
                if unit.duty not in _FOR_NEW_EVENTS and not self._stopping:
                    held_lease.mark_done(self.duties[unit.duty])
        except LeaseLost as lost:
            logger.warning("%s", lost)
            self._leave_to_holder(unit, stream)
            return
        has_results = len(self._results) > results_before
        if has_results:
            self.counts[unit.duty, "done"] += 1
        else:
            self.counts[unit.duty, "nothing"] += 1
        if self._stopping:
            return
        if has_results and unit.duty in _WRITES_SUMMARIES and "index" in self.duties:
            # A list looks only at the main stream, and a summary adds nothing to it.
            self._set_timer(unit._replace(duty="index"), self._now())
        self._due_since.pop(unit, None)
        if unit.duty not in _FOR_NEW_EVENTS:
            self._set_timer(unit, self._after(self.duties[unit.duty]))
        elif unit.duty == "compact" and self._compact_at is not None:
            self._set_timer(unit, self._compact_at)

    def _leave_to_holder(self, unit: Unit, stream: StreamId) -> None:
        """Try work again when the lease of its holder ends."""
        self.counts[unit.duty, "held"] += 1
        holding = self.store.log.leases.holding(stream, clock=self.store.clock)
        if holding.done:
            self._due_since.pop(unit, None)
        wait = holding.left or int(self.lease * _SECOND)
        self._set_timer(unit, self._now() + wait)

    def _work_on(self, unit: Unit) -> Iterator[Any]:
        """Do a piece of work under its lease, and yield its results."""
        if unit.duty == "compact":
            yield from self._compact(unit)
        elif unit.duty == "index":
            indexed = index_session(
                self.store.log,
                StreamId(unit.user_id, unit.session_id),
                now=self.store.clock(),
                progress=self._note_progress,
            )
            if indexed.events:
                yield indexed
        elif unit.duty == "rebuild" and self.rebuilds is not None:
            yield self._rebuild(unit, self.rebuilds)
        elif unit.user_id:
            session = self.store.session(
                user_id=unit.user_id, session_id=unit.session_id
            )
            yield session.verify()
        elif unit.duty == "verify":
            yield self._verify_store()
        elif unit.duty == "seal":
            head = self.store.seal(
                sweep=self._sealed_size is None,
                executor=self.executor,
                progress=self._note_progress,
            )
            if head is not None and head.size != self._sealed_size:
                yield head
            self._sealed_size = head.size if head is not None else 0
        elif unit.duty == "erase":
            yield from self.store.erasures.complete()
        elif self.retains is not None:
            yield self.store.erasures.retain(self.retains)

    def _rebuild(self, unit: Unit, strategy: Strategy) -> Rebuilt:
        """Rebuild a session under a strategy."""
        info = SessionInfo(unit.user_id, unit.session_id, 0, "open", 0)
        summarizer = self.summarizer or self.store.upkeep.summarizer or Abridged()
        result = rebuild_session(
            self.store,
            info,
            self._note_progress,
            lease_sec=self.lease,
            strategy=strategy,
            summarizer=summarizer_for(strategy, summarizer),
        )
        if result.problem:
            raise RefoldError(result.problem)
        return result

    def _verify_store(self) -> Verified:
        """Verify what belongs to no listed session: seals, orphans and erasures."""
        seals = self.store.verify_seals()
        problems = list(self.store.log.orphans())
        if seals is not None:
            problems += seals.problems
        for _, verified in self.store.erasures.unfinished(None):
            problems += verified.problems
        return Verified(0, 0, 0, problems)

    def _compact(self, unit: Unit) -> Iterator[Envelope]:
        """Compact a session, and yield the new summaries.

        It also sets the time at which the session is due again.
        """
        session = self.store.session(user_id=unit.user_id, session_id=unit.session_id)
        compactor = replace(
            session.strategies.compactor(self.strategy, summarizer=self.summarizer),
            lease_sec=self.lease,
        )
        self._compact_at = None
        strategy = compactor.strategy
        if strategy.needs == "counts":  # it never compacts
            return
        derived_seq = compactor.viewer.current(strategy).derived_seq
        has_compacted = False
        while not self._stopping and compactor.step() is not None:
            has_compacted = True
        if has_compacted:
            for entry in session.history.derived(strategy.fingerprint):
                if entry.seq > derived_seq and isinstance(entry.payload, Summary):
                    yield entry
        compactor.viewer.store_current(strategy)
        due_at = compactor.due_at()
        if due_at is None:
            return
        wait = microseconds(due_at) - self.store.clock()
        if wait <= 0:
            # Another process does the work, or it is impossible now.
            wait = int(self.duties["compact"] * _SECOND)
        self._compact_at = self._now() + wait

    def _note_progress(self, _: int = 0) -> None:
        """Remember that the worker makes progress."""
        self.progressed_at = self._now()

    def _after(self, seconds: float) -> int:
        """Return the time after these seconds."""
        return self._now() + int(seconds * _SECOND)
