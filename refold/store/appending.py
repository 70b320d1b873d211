"""Appends from asyncio: prepared in the loop, written by another thread."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakValueDictionary

from refold.domain.errors import InvalidEvent, SessionClosed, StaleSession
from refold.domain.ids import StreamId
from refold.domain.ports import Append, Appended, EventLog, Outcome
from refold.store.audited_appends import audited_append_async
from refold.store.writing import Order, Receipt, Writer

# So many characters are redacted and sealed in the loop; it takes well under 1 ms.
_LIGHT: Final = 16_384
_Locks = WeakValueDictionary[tuple[int, StreamId], asyncio.Lock]
_locks: WeakKeyDictionary[asyncio.AbstractEventLoop, _Locks] = WeakKeyDictionary()


@audited_append_async
async def append(writer: Writer, order: Order) -> Receipt:
    """``writer.append`` without blocking the loop; it raises the same.

    The appends of one loop to one stream take turns, for each builds on the one before.
    Where an append cannot be prepared from what this process knows, or is large, all of
    it is done in a thread.
    """
    async with _turn(writer, order.stream):
        request = _prepared(writer, order)
        if request is not None:
            outcome = await _written(writer.log, request)
            if isinstance(outcome, Appended):
                return writer.acknowledged(request, outcome)
        return await asyncio.to_thread(writer.append, order)


def _turn(writer: Writer, stream: StreamId) -> asyncio.Lock:
    locks = _locks.setdefault(asyncio.get_running_loop(), WeakValueDictionary())
    return locks.setdefault((id(writer.heads), stream), asyncio.Lock())


def _prepared(writer: Writer, order: Order) -> Append | None:
    """The append on the head that was seen last, or None if a thread must see to it."""
    head = writer.heads.get(order.stream)
    if head is None or writer.redactor.recognizer is not None or not _light(order):
        return None
    try:
        return writer.request(head, order)
    except (InvalidEvent, SessionClosed, StaleSession):
        return None  # it may be allowed on the head that is stored


async def _written(log: EventLog, request: Append) -> Outcome | None:
    """What became of it; None if it is not written in another thread."""
    loop = asyncio.get_running_loop()
    written: asyncio.Future[Outcome] = loop.create_future()

    def settle(outcome: Outcome | Exception) -> None:
        if written.done():
            return
        if isinstance(outcome, Exception):
            written.set_exception(outcome)
        else:
            written.set_result(outcome)

    def done(outcome: Outcome | Exception) -> None:
        with suppress(RuntimeError):  # the loop was closed: nobody waits any more
            loop.call_soon_threadsafe(settle, outcome)

    return await written if log.append_soon(request, done) else None


def _light(order: Order) -> bool:
    left = _LIGHT
    for draft in order.drafts:
        beside = (draft.meta.__dict__, draft.meta.__pydantic_extra__)
        left -= _characters((draft.event.__dict__, *beside), left)
    return left > 0


def _characters(value: Any, most: int) -> int:
    """About how many there are in ``value``, counted no further than ``most``."""
    if isinstance(value, str):
        return len(value)
    parts: Iterable[Any] = ()
    if isinstance(value, dict):
        parts = value.values()
    elif isinstance(value, list | tuple):
        parts = value
    elif hasattr(value, "__dict__"):
        parts = value.__dict__.values()
    total = 1
    for part in parts:
        if total > most:
            break
        total += _characters(part, most - total)
    return total
