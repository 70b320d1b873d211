"""Fixtures for tests of retention: a store in which time has passed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

import refold
from refold.store import SessionStore
from refold.store.store import now
from tests.support.engines import one_engine


@pytest.fixture
def store_url(request: pytest.FixtureRequest) -> str:
    """An empty store on SQLite, or on each engine where a test says so."""
    return one_engine(request)


@pytest.fixture
def memory() -> Iterator[SessionStore]:
    """A store in memory, for tests in which the engine makes no difference."""
    with refold.open("memory://") as store:
        yield store


Later = Callable[[SessionStore, timedelta], SessionStore]


@pytest.fixture
def later() -> Later:
    """Opens a store's database again, that much later."""

    def opened(store: SessionStore, passed: timedelta) -> SessionStore:
        writer = store.writer
        micros = passed // timedelta(microseconds=1)
        return SessionStore(
            store.log,
            writer.redactor,
            writer.limits,
            clock=lambda: now() + micros,
            audit=store.access_log.trail,
        )

    return opened
