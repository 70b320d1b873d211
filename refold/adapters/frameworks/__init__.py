"""Stores of agents' frameworks: each puts its own items into sessions of Refold."""

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


def needed(module: str, extra: str) -> Any:
    """The module, which the extra installs.  Raises InvalidConfiguration."""
    try:
        return import_module(module)
    except ImportError as error:
        if error.name and not module.startswith(error.name):
            raise
        raise InvalidConfiguration(
            f"{module} is not installed: pip install 'refold[{extra}]'"
        ) from None


def erased(session: Session, by: str) -> None:
    """Erase the session, if there is one; it may begin again.  Raises OnHold."""
    with suppress(SessionNotFound):
        session.delete(f"deleted through {by}")


async def settled(work: Callable[[], T]) -> T:
    """What ``work`` returns, done in a thread; who is cancelled waits for its end."""
    doing = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        await asyncio.wait({doing})
        raise


def unstored(session: Session, format: Format, value: Any) -> Any:  # noqa: A002
    """What is not kept as it is, such as a prompt, redacted: it is given no numbers.

    Those that it were given would be another value's, once that is appended.
    """
    writer, native = session.writer, Native(format, value=value)
    item, _ = writer.item(native, writer.tagger(session.user_id), "stub")
    return item.record["value"]


def as_stored(
    session: Session,
    format: Format,  # noqa: A002  # as ``would_store`` names it
    items: Sequence[Any],
    *,
    known: Callable[[], Iterable[Any]] | None = None,
) -> list[Any]:
    """The items as the log may keep them; those of ``known``, else
    all that it has, are as it has them.

    Numbered placeholders in them are the session's own; in others somebody wrote them.
    """
    numbered = session.writer.redactor.numbered
    items = [repaired(one)[0] for one in items]
    known = known or (lambda: (one.value for one in session.native.read()))
    there = {canonical(one) for one in known()} if numbered else set()
    new = [one for one in items if not there or canonical(one) not in there]
    told = iter(session.native.would_store(format, new))
    return [one if there and canonical(one) in there else next(told) for one in items]
