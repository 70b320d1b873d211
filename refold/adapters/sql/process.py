"""Which process holds a store's connections: a forked child must not share them."""

from __future__ import annotations

import os

from refold.domain.errors import StoreUnavailable


class Process:
    """The process that opened ``what``, and whether it is still open."""

    def __init__(self, what: str) -> None:
        self._what, self._pid, self._closed = what, os.getpid(), False

    def is_another(self) -> bool:
        """Whether this is a forked child that uses ``what`` for the first time.

        Raises StoreUnavailable if ``what`` was closed.
        """
        if self._closed:
            raise StoreUnavailable(f"{self._what} was closed", remedy="open it again")
        if self._pid == os.getpid():
            return False
        self._pid = os.getpid()
        return True

    def close(self) -> None:
        """From here on it cannot be used."""
        self._closed = True
