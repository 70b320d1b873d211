"""A worker: it finds sessions with something due, and compacts them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final

from refold.domain.envelope import microseconds
from refold.domain.errors import InvalidConfiguration
from refold.domain.ports import Scope, listed
from refold.domain.seals import TreeHead
from refold.projections.context.compaction import Summarizer
from refold.projections.context.strategy import Strategy
from refold.store.compactions import attempt
from refold.store.contexts import WORTH_STORING, bring_up, lagging
from refold.store.sessions import Session

if TYPE_CHECKING:
    from refold.store.store import SessionStore

EVERY_SEC: Final = 30.0
_LONGEST_SEC: Final = 86_400
_SECOND: Final = 1_000_000
_GOES_ON: Final = "the worker goes on, it will try again"
SEALING_EVERY_SEC: Final = 60.0


def _check(what: str, every: float) -> None:
    if not 0 < every <= _LONGEST_SEC:
        most = f"every so many seconds, up to {_LONGEST_SEC:,}"
        raise InvalidConfiguration(f"{what} {most}: {every} is none")


class Worker:
    """Compacts what is due in a store, by new events and by the time that passes.

    It lists the sessions every ``every`` seconds and looks at those that have grown.
    What becomes due at a time of its own (a cooldown, a cache that expires) has a timer
    until then; nothing else is looked at.  An error of one session is logged, and the
    session is looked at again with the next list.  Several workers share the work: what
    one is at, the others pass over.

    With each list it also brings up what views of any strategy are far behind, whoever
    was to do that.

    strategy: what decides; None is, for each session, that of its last request, else
              the settings'.
    done:     told of each session that was compacted: under which strategy, and up to
              which seq its derived stream was known before.

    The clock is the store's.  Use one from one thread, but for ``stop`` and ``wake``.

    Raises InvalidConfiguration if ``every`` is not a time.
    """

    def __init__(
        self,
        store: SessionStore,
        strategy: str | Strategy | None = None,
        *,
        summarizer: Summarizer | None = None,
        user_id: str | None = None,
        session_id: str | None = None,
        every: float = EVERY_SEC,
        done: Callable[[Session, Strategy, int], object] | None = None,
    ) -> None:
        _check("a worker lists sessions", every)
        self._store, self._strategy, self._summarizer = store, strategy, summarizer
        self._user_id, self._session_id = user_id, session_id
        self._every, self._done = int(every * _SECOND), done
        self._seen: dict[tuple[str, str], int] = {}
        self._timers: dict[tuple[str, str], int] = {}
        self._untold: list[tuple[Session, Strategy, int]] = []
        self._list_at = 0
        # Unlike a condition, it may be put into by a handler of a signal.
        self._woken: SimpleQueue[None] = SimpleQueue()
        self._stopping = False

    def run(self) -> None:
        """Work until ``stop``; in between it sleeps until the next timer or list."""
        while not self._stopping:
            wait = self.round()
            with suppress(Empty):
                self._woken.get(timeout=min(wait, self._every / _SECOND))

    def stop(self) -> None:
        """End ``run`` when the compaction it is at has ended; signals may call this."""
        self._stopping = True
        self._woken.put(None)

    def wake(self) -> None:
        """List the sessions now: there is something new."""
        self._list_at = 0
        self._woken.put(None)

    def round(self) -> float:
        """Do all that is due by the store's clock; the seconds until more may be."""
        listing = self._now() >= self._list_at
        if listing:
            self._list_at = self._now() + self._every
            attempt(self._list, otherwise=_GOES_ON)
        now = self._now()
        for key in [key for key, at in self._timers.items() if at <= now]:
            if self._stopping:
                break
            if not attempt(partial(self._visit, key), otherwise=_GOES_ON):
                self._timers[key] = self._list_at
            while self._untold and self._done is not None:
                self._done(*self._untold.pop())
        if listing:
            attempt(self._sweep, otherwise=_GOES_ON)
        next_at = min([self._list_at, *self._timers.values()])
        return max(0, next_at - self._now()) / _SECOND

    def _list(self) -> None:
        """Have those looked at that have grown, and forget those that are gone."""
        scope = Scope(self._user_id, self._session_id)
        found = {
            (info.user_id, info.session_id): info.head_seq
            for info in listed(self._store.log.sessions, scope)
            # A closed session is as long as it will ever be, but is still read.
            if info.is_live and not info.session_id.startswith("_")
        }
        grown = [key for key, seq in found.items() if self._seen.get(key) != seq]
        kept = {key: at for key, at in self._timers.items() if key in found}
        self._timers = {**kept, **dict.fromkeys(grown, self._now())}
        self._seen = found

    def _sweep(self) -> None:
        log = self._store.log
        scope = Scope(self._user_id, self._session_id)
        for view in lagging(log, scope, by=WORTH_STORING):
            if self._stopping:
                break
            attempt(partial(bring_up, log, view.place), otherwise=_GOES_ON)

    def _visit(self, key: tuple[str, str]) -> None:
        session = self._store.session(user_id=key[0], session_id=key[1])
        compactor = session.compactor(self._strategy, summarizer=self._summarizer)
        strategy = compactor.strategy
        self._timers.pop(key, None)
        if strategy.needs == "counts":  # it never compacts
            return
        known = compactor.viewer.current(strategy).derived_seq
        made = False
        while not self._stopping and compactor.step() is not None:
            made = True
        if made and self._done is not None:
            self._untold.append((session, strategy, known))
        compactor.viewer.caught_up(strategy)
        if (due := compactor.due_at()) is not None:
            at = microseconds(due)
            # Due and not done: another is at it, or it cannot be done now.
            self._timers[key] = at if at > self._now() else self._list_at

    def _now(self) -> int:
        return self._store.clock()


class Sealer:
    """Seals a store every ``every`` seconds, at first all streams, then what is new.

    An error is logged, and it tries again.  Several of them share the work: each head
    is sealed by one.

    done: told of each new tree head.

    Raises InvalidConfiguration if ``every`` is not a time.
    """

    def __init__(
        self,
        store: SessionStore,
        *,
        every: float = SEALING_EVERY_SEC,
        done: Callable[[TreeHead], object] | None = None,
    ) -> None:
        _check("a sealer seals", every)
        self._store, self._every, self._done = store, every, done
        self._known: int | None = None
        self._woken: SimpleQueue[None] = SimpleQueue()
        self._stopping = False

    def run(self) -> None:
        """Seal until ``stop``."""
        while not self._stopping:
            attempt(self.round, otherwise="the sealer goes on, it will try again")
            with suppress(Empty):
                self._woken.get(timeout=self._every)

    def stop(self) -> None:
        """End ``run`` when what it is at is sealed; signals may call this."""
        self._stopping = True
        self._woken.put(None)

    def round(self) -> None:
        """Seal once."""
        head = self._store.seal(sweep=self._known is None)
        if head is not None and head.size != self._known and self._done is not None:
            self._done(head)
        self._known = head.size if head else 0
