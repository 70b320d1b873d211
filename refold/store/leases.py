"""A lease that is held while work is done that nobody should do twice."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event, Thread
from types import TracebackType
from typing import Final, Self
from uuid import uuid4

from refold.domain.errors import RefoldError
from refold.domain.ids import StreamId
from refold.domain.ports import Leases

LEASE_SEC: Final = 60.0
_RENEWALS: Final = 3  # in the time of one lease, so that one may fail

log = logging.getLogger("refold")


class Hold:
    """A lease that is held from ``take`` to the end of the ``with`` block.

    A thread renews it meanwhile.  If the process dies, it ends by itself after the
    seconds it was taken for.  ``asked`` is set at the end: whether others asked for
    it meanwhile, who were refused.
    """

    @classmethod
    def take(
        cls, leases: Leases, stream: StreamId, *, clock: Callable[[], int], sec: float
    ) -> Self | None:
        """Take the lease of ``stream`` for ``sec`` seconds, or None: it is another's.

        It is not waited for: its holder learns that it was asked for.
        """
        owner, now = uuid4().hex, clock()
        until = now + int(sec * 1_000_000)
        if not leases.take_lease(stream, owner, now=now, until=until):
            return None
        return cls(leases, stream, owner, clock, sec)

    def __init__(
        self,
        leases: Leases,
        stream: StreamId,
        owner: str,
        clock: Callable[[], int],
        sec: float,
    ) -> None:
        self._leases, self._stream, self._owner = leases, stream, owner
        self._clock, self._sec = clock, sec
        self._done, self.asked = Event(), False
        self._renewing = Thread(target=self._renew, name="refold-lease", daemon=True)

    def __enter__(self) -> Self:
        self._renewing.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._renewing.join()
        try:
            self.asked = self._leases.release_lease(self._stream, self._owner)
        except RefoldError as lost:  # it ends by itself
            log.warning("a lease could not be given back: %s", lost)

    def renew(self) -> bool:
        """Have it for all of its time again; False if another may have it by now."""
        until = self._clock() + int(self._sec * 1_000_000)
        return self._leases.renew_lease(self._stream, self._owner, until=until)

    def _renew(self) -> None:
        while not self._done.wait(self._sec / _RENEWALS):
            try:
                held = self.renew()
            except RefoldError as error:
                log.warning("a lease could not be renewed: %s", error)
                continue
            if not held:
                return
