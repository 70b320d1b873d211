"""A worker: it does a store's pending work, and shares it with others by leases."""

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
from refold.store.compactions import Hold
from refold.store.contexts import WORTH_STORING, bring_up, lagging
from refold.store.proofs.verification import Verified
from refold.store.store import now as machine_clock
from refold.store.work.background import attempt
from refold.store.work.rebuilds import rebuilt

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from refold.store.store import SessionStore

# What a worker may do, the more urgent first, and how often that is usual.
_DUTIES: Final = ("seal", "erase", "retain", "compact", "rebuild", "verify")
_TIMES: Final = (60.0, 60.0, 3_600.0, 30.0, 366 * 86_400.0, 7 * 86_400.0)
EVERY_SEC: Final[Mapping[str, float]] = dict(zip(_DUTIES, _TIMES, strict=True))
_WIDE: Final = frozenset({"seal", "erase", "retain"})  # of the store as a whole
_LONGEST_SEC, _LOOK_SEC, _AGAIN_SEC = EVERY_SEC["rebuild"], 3_600.0, 60.0
# A duty is overdue after so many of its intervals, but not before so many seconds.
OVERDUE_INTERVALS: Final = 3
OVERDUE_SEC: Final = 600.0
STUCK_SEC: Final = 600.0  # longer than a model's answer, or one proof, should take
_SECOND: Final = 1_000_000
log = logging.getLogger("refold")
_GOES_ON: Final = "the worker goes on, it will try again"


class Unit(NamedTuple):
    """A piece of work: a duty at one session, or at the store as a whole."""

    duty: str
    user_id: str = ""
    session_id: str = ""


def monotonic() -> int:
    """Microseconds of a clock that never jumps."""
    return time.monotonic_ns() // 1_000


@dataclass(eq=False, repr=False)
class Worker:
    """Does what is due in a store, by new events and by the time that passes.

    It lists the sessions and looks at those that have grown.  What becomes due at a
    time of its own (a cooldown, a cache that expires) has a timer until then.  Several
    workers share the work by leases, on any number of machines: if one dies, others
    take up what it was at when its lease ends.  What fails is logged and tried again.

    duties:   what it does, each every so many seconds: ``compact`` looks for new events
              so often, and for views that are far behind; ``rebuild`` and ``verify``
              are of each session.  What one worker did of others than ``compact`` is
              due for none until its time has passed.
    strategy: what decides of compactions; None is, for each session, that of its last
              request, else the settings'.  ``rebuilds`` is for the duty ``rebuild``.
    executor: finds the ends of streams for ``seal``, as in ``SessionStore.seal``.
    lease:    seconds; it is renewed meanwhile.
    most_per_second: so many pieces of work are begun in a second, at most.
    done:     told what the store's method gives; of compactions each new summary.
    counts:   what came of how many pieces of which duty; ``failing`` is what of the
              store as a whole failed last, ``turned_at`` when it went on, or will.

    Timers go by the machine's monotonic clock, which does not jump.  A store that was
    given a clock of its own has its timers from that clock.  Use one worker from one
    thread; only ``stop`` may be called from any.

    Raises InvalidConfiguration for what is no time, no number, or is missing.
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
    turned_at: int = field(init=False)

    def __post_init__(self) -> None:
        self._now = self.store.clock
        if self.store.clock is machine_clock:
            self._now = monotonic
        times = all(0 < n <= _LONGEST_SEC for n in (*self.duties.values(), self.lease))
        lacks = {"rebuild": self.rebuilds is None, "retain": self.retains is None}
        wrong = any(lacks.get(one, one not in EVERY_SEC) for one in self.duties)
        if wrong or not times or not self.most_per_second > 0:
            raise InvalidConfiguration(
                f"a worker does {', '.join(EVERY_SEC)}, each every so many seconds, up "
                f"to {_LONGEST_SEC:,.0f}; it is told by what to rebuild and to retain, "
                "and begins more than 0 pieces of work a second"
            )
        self._scope = Scope(self.user_id, self.session_id)
        self._looks = {*self.duties} - _WIDE
        self._seen: dict[tuple[str, str], int] = {}
        self._due: dict[str, list[tuple[int, int, Unit]]]
        self._due = {duty: [] for duty in EVERY_SEC if duty in self.duties}
        # Since when each piece of work waits; what is not due yet, from when.
        self._waits_since: dict[Unit, int] = {}
        self._at_work: Unit | None = None
        self._untold: list[tuple[Unit, Any]] = []
        self._list_at = self._next_at = self._now()
        self._sealed: int | None = None
        # Unlike a condition, it may be put into by a handler of a signal.
        self._woken: SimpleQueue[None] = SimpleQueue()
        self._stopping, self.turned_at = False, self._now()
        self._compact_at: int | None = None
        for duty in self._due:
            if duty in _WIDE or (duty == "verify" and self._scope == Scope()):
                self._at(Unit(duty), self._now())

    def overdue(self) -> dict[str, float]:
        """Duties with work that waits too long, and since how many seconds.

        Too long is OVERDUE_INTERVALS of the duty's interval, and OVERDUE_SEC at least,
        from when the work was due.  Work that this worker is doing and making progress
        in does not count.  May be called from any thread.
        """
        at = self._now()
        waits: dict[str, float] = {}
        for unit, since in list(self._waits_since.items()):
            progresses = (at - self.turned_at) / _SECOND <= STUCK_SEC
            if unit == self._at_work and progresses:
                continue
            waiting = (at - since) / _SECOND
            if waiting > max(OVERDUE_SEC, OVERDUE_INTERVALS * self.duties[unit.duty]):
                waits[unit.duty] = max(waiting, waits.get(unit.duty, 0.0))
        return waits

    def silent_sec(self) -> float:
        """Seconds since this worker last made progress.  Any thread may call this."""
        return max(0.0, (self._now() - self.turned_at) / _SECOND)

    def run(self) -> None:
        """Work until ``stop``; in between it sleeps until the next timer or list."""
        while not self._stopping:
            wait = self.round()
            with suppress(Empty):
                self._woken.get(timeout=wait)

    def stop(self) -> None:
        """End ``run`` when what it is at has ended; signals may call this."""
        self._stopping = True
        self._woken.put(None)

    def round(self) -> float:
        """Do all that is due by the store's clock; the seconds until more may be."""
        listing = bool(self._looks) and self._now() >= self._list_at
        if listing:
            self._list_at = self._in(min(*self.duties.values(), _LOOK_SEC))
            self._noted("list", well=attempt(self._list, otherwise=_GOES_ON))
        while not self._stopping and self._next_at <= self._now():
            if (unit := self._next()) is None:
                break
            self._next_at = self._in(1 / self.most_per_second)
            self._at_work = unit
            well = attempt(partial(self._do, unit), otherwise=_GOES_ON)
            self._at_work = None
            if not well:
                self.counts[unit.duty, "failed"] += 1
                self._at(unit, self._in(min(self.duties[unit.duty], _AGAIN_SEC)))
            if not unit.user_id:
                self._noted(unit.duty, well=well)
            told, self._untold = self._untold, []
            for one in told:
                if self.done is not None:
                    self.done(*one)
        if listing and "compact" in self._looks:
            attempt(self._sweep, otherwise=_GOES_ON)
        due, now = [heap[0][0] for heap in self._due.values() if heap], self._now()
        due += [self._list_at] if self._looks or not due else []
        self.turned_at = max(min(due), self._next_at, now)
        return (self.turned_at - now) / _SECOND

    def _list(self) -> None:
        """Have those looked at that have grown, and forget those that are gone."""
        found: dict[tuple[str, str], int] = {}
        for info in listed(self.store.log.sessions, self._scope):
            key = info.user_id, info.session_id
            found[key] = info.head_seq
            # A closed session is as long as it will ever be, but is still read.
            live = info.is_live and not info.is_internal
            new = self._looks if key not in self._seen else self._looks & {"compact"}
            for duty in new if self._seen.get(key) != info.head_seq else ():
                if live or (duty == "verify" and info.status != "erased"):
                    self._at(Unit(duty, *key), self._now())
        self._seen = found
        for unit in list(self._waits_since):
            if unit.user_id and unit[1:] not in found:
                del self._waits_since[unit]

    def _sweep(self) -> None:
        for view in lagging(self.store.log, self._scope, by=WORTH_STORING):
            if not self._stopping:
                up = partial(bring_up, self.store.log, view.place)
                attempt(up, otherwise=_GOES_ON)

    def _at(self, unit: Unit, at: int) -> None:
        self._waits_since.setdefault(unit, at)
        # Each process has an order of its own, so that they seldom meet.
        heappush(self._due[unit.duty], (at, hash(unit), unit))

    def _next(self) -> Unit | None:
        for heap in self._due.values():
            while heap and heap[0][0] <= self._now():
                unit = heappop(heap)[-1]
                if not unit.user_id or unit[1:] in self._seen:
                    return unit
        return None

    def _noted(self, what: str, *, well: bool) -> None:
        (self.failing.discard if well else self.failing.add)(what)

    def _do(self, unit: Unit) -> None:
        """Do it under a lease, and count what came of it."""
        leases, clock = self.store.log.leases, self.store.clock
        of = self.rebuilds.fingerprint if self.rebuilds else ""
        name = unit.duty + (of if unit.duty == "rebuild" else "")
        stream = StreamId(unit.user_id, unit.session_id, name)
        hold = Hold.take(leases, stream, clock=clock, sec=self.lease)
        if hold is None:
            self._pass_over(unit, stream)
            return
        done_before = len(self._untold)
        try:
            with hold:
                for result in self._results(unit):
                    self._untold.append((unit, result))
                    self._turn()
                    if self._stopping:
                        break
                if unit.duty != "compact" and not self._stopping:
                    hold.keep(self.duties[unit.duty])
        except LeaseLost as lost:
            log.warning("%s", lost)
            self._pass_over(unit, stream)
            return
        came = "done" if len(self._untold) > done_before else "nothing"
        self.counts[unit.duty, came] += 1
        if not self._stopping:
            self._completed(unit)
            if unit.duty != "compact":
                self._at(unit, self._in(self.duties[unit.duty]))
            elif self._compact_at is not None:
                self._at(unit, self._compact_at)

    def _pass_over(self, unit: Unit, stream: StreamId) -> None:
        """Leave it to the worker that holds it, and look again when its lease ends."""
        self.counts[unit.duty, "held"] += 1
        holding = self.store.log.leases.holding(stream, clock=self.store.clock)
        if holding.done:
            self._completed(unit)
        self._at(unit, self._now() + (holding.left or int(self.lease * _SECOND)))

    def _completed(self, unit: Unit) -> None:
        self._waits_since.pop(unit, None)

    def _results(self, unit: Unit) -> Iterator[Any]:
        store = self.store
        if unit.duty == "compact":
            yield from self._compacted(unit)
        elif unit.duty == "rebuild" and (strategy := self.rebuilds) is not None:
            info = SessionInfo(unit.user_id, unit.session_id, 0, "open", 0)
            writes = self.summarizer or store.upkeep.summarizer or Abridged()
            how = {"strategy": strategy, "summarizer": summarizer_for(strategy, writes)}
            done = rebuilt(store, info, self._turn, lease_sec=self.lease, **how)
            if done.problem:
                raise RefoldError(done.problem)
            yield done
        elif unit.user_id:
            session = store.session(user_id=unit.user_id, session_id=unit.session_id)
            yield session.verify()
        elif unit.duty == "verify":
            seals, unfinished = store.verify_seals(), store.erasures.unfinished(None)
            problems = [*store.log.orphans(), *(seals.problems if seals else ())]
            problems += [problem for _, one in unfinished for problem in one.problems]
            yield Verified(0, 0, 0, problems)
        elif unit.duty == "seal":
            meanwhile: Any = {"executor": self.executor, "progress": self._turn}
            head = store.seal(sweep=self._sealed is None, **meanwhile)
            if head is not None and head.size != self._sealed:
                yield head
            self._sealed = head.size if head else 0
        elif unit.duty == "erase":
            yield from store.erasures.complete()
        elif self.retains is not None:
            yield store.erasures.retain(self.retains)

    def _compacted(self, unit: Unit) -> Iterator[Envelope]:
        session = self.store.session(user_id=unit.user_id, session_id=unit.session_id)
        made_by = session.strategies.compactor(
            self.strategy, summarizer=self.summarizer
        )
        compactor = replace(made_by, lease_sec=self.lease)
        self._compact_at = None
        strategy, made = compactor.strategy, False
        if strategy.needs == "counts":  # it never compacts
            return
        known = compactor.viewer.current(strategy).derived_seq
        while not self._stopping and compactor.step() is not None:
            made = True
        for one in session.history.derived(strategy.fingerprint) if made else ():
            if one.seq > known and isinstance(one.payload, Summary):
                yield one
        compactor.viewer.caught_up(strategy)
        due = compactor.due_at()
        if due is not None:
            wait = microseconds(due) - self.store.clock()
            if wait <= 0:
                # Due and not done: another is at it, or it cannot be done now.
                wait = int(self.duties["compact"] * _SECOND)
            self._compact_at = self._now() + wait

    def _turn(self, _: int = 0) -> None:
        self.turned_at = self._now()

    def _in(self, seconds: float) -> int:
        return self._now() + int(seconds * _SECOND)
