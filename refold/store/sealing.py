"""A worker that seals: what is new every so many seconds, and all streams at times."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final

from refold.domain.errors import InvalidConfiguration
from refold.domain.seals import TreeHead
from refold.store.background import attempt

if TYPE_CHECKING:
    from refold.store.store import SessionStore

EVERY_SEC: Final = 60.0
_LONGEST_SEC: Final = 86_400
_GOES_ON: Final = "the sealer goes on, it will try again"


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
        every: float = EVERY_SEC,
        done: Callable[[TreeHead], object] | None = None,
    ) -> None:
        if not 0 < every <= _LONGEST_SEC:
            raise InvalidConfiguration(
                f"a sealer seals every so many seconds, up to {_LONGEST_SEC:,}: "
                f"{every} is none"
            )
        self._store, self._every, self._done = store, every, done
        self._known: int | None = None
        self._woken: SimpleQueue[None] = SimpleQueue()
        self._stopping = False

    def run(self) -> None:
        """Seal until ``stop``."""
        while not self._stopping:
            attempt(partial(self.round), otherwise=_GOES_ON)
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
