"""Stores of agents' frameworks: each puts its own items into sessions of Refold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

from refold.domain.errors import InvalidConfiguration

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


async def settled(work: Callable[[], T]) -> T:
    """What ``work`` returns, done in a thread; who is cancelled waits for its end."""
    doing = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        await asyncio.wait({doing})
        raise
