"""What tests of retention ask for: a store in which time has passed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import refold
from refold.store import SessionStore
from refold.store.store import now
from tests.support.stores import open_at


@pytest.fixture(params=["sqlite", "postgresql", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SessionStore]:
    """An empty store on each engine in turn, and in memory."""
    url = "memory://"
    if request.param != "memory":
        kinds = {"sqlite": "_sqlite_store", "postgresql": "_postgres_store"}
        url = request.getfixturevalue(kinds[request.param])
    with open_at(url, tmp_path) as store:
        yield store


@pytest.fixture
def memory() -> Iterator[SessionStore]:
    """A store that keeps nothing, where the engine makes no difference."""
    with refold.open("memory://") as store:
        yield store


Later = Callable[[SessionStore, timedelta], SessionStore]


@pytest.fixture
def later() -> Later:
    """Opens what a store is over once more, so much later."""

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
