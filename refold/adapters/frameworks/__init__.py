"""Stores for agent frameworks: each keeps a framework's own items in Refold sessions.

This module has the helpers that these stores share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, TypeVar

from refold.domain.canonical import canonical, repaired
from refold.domain.envelope import Format, Native
from refold.domain.errors import InvalidConfiguration, SessionNotFound
from refold.store.session.session import Session

T = TypeVar("T")


def import_extra(module: str, extra: str) -> Any:
    """Import a module that the extra ``extra`` installs.

    Raises InvalidConfiguration with the command that installs it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        # The package is installed, but one of its own imports fails.
        if error.name and not module.startswith(error.name):
            raise
        raise InvalidConfiguration(
            f"{module} is not installed: pip install 'refold[{extra}]'"
        ) from None


def erase_session(session: Session, by: str) -> None:
    """Erase a session if it exists; its id can be used again.

    by: the framework through which the user deletes it.

    Raises OnHold under a legal hold.
    """
    with suppress(SessionNotFound):
        session.delete(f"deleted through {by}")


async def in_thread(work: Callable[[], T]) -> T:
    """Run ``work`` in a thread and return its result.

    A caller that is cancelled waits until ``work`` ends.
    """
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


def redact_unstored(session: Session, format: Format, value: Any) -> Any:  # noqa: A002  # the field of items
    """Redact a value that is never appended, such as a prompt.

    Its placeholders get no numbers: another value could get the same numbers when it
    is appended.
    """
    writer = session.writer
    native = Native(format, value=value)
    item, _ = writer.item(native, writer.tagger(session.user_id), "stub")
    return item.record["value"]


def as_stored(
    session: Session,
    format: Format,  # noqa: A002  # as ``would_store`` names it
    items: Sequence[Any],
    *,
    read_stored: Callable[[], Iterable[Any]] | None = None,
) -> list[Any]:
    """Return the items in the form in which the log would store them.

    Items that are stored already are returned unchanged, because the numbered
    placeholders in them are the session's own.  Placeholders in other items are text
    that somebody wrote.

    read_stored: reads the stored items; without it, all items of the session are read.
    """
    repaired_items = [repaired(item)[0] for item in items]
    if not session.writer.redactor.numbered:
        return session.native.would_store(format, repaired_items)

    if read_stored is not None:
        stored_values = read_stored()
    else:
        stored_values = (item.value for item in session.native.read())
    stored = {canonical(value) for value in stored_values}
    if not stored:
        return session.native.would_store(format, repaired_items)

    new_places = [
        place
        for place, item in enumerate(repaired_items)
        if canonical(item) not in stored
    ]
    new_items = [repaired_items[place] for place in new_places]
    redacted_items = session.native.would_store(format, new_items)
    result = list(repaired_items)
    for place, item in zip(new_places, redacted_items, strict=True):
        result[place] = item
    return result
