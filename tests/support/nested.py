"""Items inside of other items, in their order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from refold.domain.ports import Problem


def problems_of(verified: Iterable[tuple[Any, Any]]) -> list[Problem]:
    """Return the problems in the results of ``store.verify``, for all sessions."""
    problems: list[Problem] = []
    for _, result in verified:
        problems += result.problems
    return problems


def blocks_of(messages: Iterable[Mapping[str, Any]]) -> Iterator[Any]:
    """Yield the content blocks of messages."""
    for message in messages:
        yield from message["content"]
