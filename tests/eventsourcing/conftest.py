"""Factories that are closed after the test, and the library's test cases."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from refold.adapters.eventsourcing import Factory
from tests.support.eventsourcing import factory, without_msgspec

without_msgspec()


@pytest.fixture
def make(empty_url: str) -> Iterator[Callable[..., Factory]]:
    """Makes factories for applications, by name and settings, on each engine."""
    factories: list[Factory] = []

    def make(name: str = "App", **env: str) -> Factory:
        factories.append(factory(empty_url, name, **env))
        return factories[-1]

    yield make
    for each in factories:
        each.close()
