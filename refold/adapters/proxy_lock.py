"""The lock that each running proxy holds, so that captures on this machine notice it.

A capture then leaves a message to the proxy that is about to record it.  No promise
depends on the lock: without it, a message may be stored in the form of the transcript,
and again in that of the request.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from refold.adapters.config import home

NAME: Final = "proxy.lock"
"""The name of the file in ``REFOLD_HOME``; it is empty."""


@contextmanager
def running_proxy() -> Iterator[None]:
    """Hold the lock while the block runs; the system releases that of a killed process.

    Does nothing if the file cannot be written.
    """
    descriptor = -1
    with suppress(OSError):
        home().mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(home() / NAME, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    try:
        yield
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def is_proxy_running() -> bool:
    """Whether a proxy runs on this machine for this ``REFOLD_HOME``."""
    try:
        descriptor = os.open(home() / NAME, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # the file system has no locks
    finally:
        os.close(descriptor)
    return False
