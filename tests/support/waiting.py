"""The one way in which tests wait for another thread, task or process.

Wait for exactly the condition that is asserted next, never for a related one: two
things that change one after the other are seen half changed on a busy machine.
"""

from __future__ import annotations

import asyncio
import os
import select
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

T = TypeVar("T")

PATIENCE_SEC: Final = 300
"""How long a test waits: far longer than a loaded machine takes, and shorter than the
timeout of a test, which cannot say what was missing."""

_LOOK_EVERY_SEC: Final = 0.01


class NotInTimeError(AssertionError):
    """The condition that a test waited for did not occur."""

    def __init__(self, what: str, state: object, seconds: float) -> None:
        super().__init__(f"after {seconds:g} s still waiting for {what}: {state}")


def until(
    condition: Callable[[], T],
    what: str,
    *,
    state: Callable[[], object] | None = None,
    seconds: float = PATIENCE_SEC,
) -> T:
    """Wait until ``condition`` returns something true, and return that.

    what:  names it in the failure.
    state: describes the situation then; by default, the last result of ``condition``.

    Raises NotInTimeError.
    """
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise NotInTimeError(what, state() if state else repr(value), seconds)
        time.sleep(_LOOK_EVERY_SEC)
    return value


async def until_async(
    condition: Callable[[], T],
    what: str,
    *,
    state: Callable[[], object] | None = None,
    pause: Callable[[], Awaitable[object]] | None = None,
    seconds: float = PATIENCE_SEC,
) -> T:
    """Wait as ``until`` does, while other tasks of the event loop run.

    ``pause`` is awaited between two checks.
    """
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise NotInTimeError(what, state() if state else repr(value), seconds)
        await (pause() if pause else asyncio.sleep(_LOOK_EVERY_SEC))
    return value


def read_until(
    descriptor: int, wanted: bytes, *, seconds: float = PATIENCE_SEC
) -> bytes:
    """Read from a terminal or pipe until these bytes arrive; return all bytes read.

    Raises NotInTimeError, also when the other side closes first.
    """
    end = time.monotonic() + seconds
    received = b""
    while wanted not in received:
        chunk = _read(descriptor, end)
        if not chunk:
            raise NotInTimeError(f"{wanted!r} in the output", received, seconds)
        received += chunk
    return received


def read_to_end(descriptor: int, *, seconds: float = PATIENCE_SEC) -> bytes:
    """Read from a terminal or pipe until the other side closes.

    Raises NotInTimeError.
    """
    end = time.monotonic() + seconds
    received = b""
    while chunk := _read(descriptor, end):
        received += chunk
    if time.monotonic() > end:
        raise NotInTimeError("the end of the output", received, seconds)
    return received


def _read(descriptor: int, end: float) -> bytes:
    """Return what can be read before ``end``; nothing if the other side is closed."""
    left = max(0, end - time.monotonic())
    readable, _, _ = select.select([descriptor], [], [], left)
    try:
        return os.read(descriptor, 65_536) if readable else b""
    except OSError:  # a terminal whose process has ended
        return b""
