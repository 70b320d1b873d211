"""Fixtures for tests of erasure: a store with a user who has data of every kind."""

from __future__ import annotations

import pytest

import refold
from refold.store import SessionStore
from refold.testing.event_log import user_inputs
from tests.support.engines import one_engine
from tests.support.talking import talk

WINDOW = "turn_window:full_turns=2,cached_turns=1"


def fill(store: SessionStore, user_id: str, session_id: str) -> None:
    """Create a session with a summary, a stored view, a blob, a receipt and a fork."""
    session = talk(store.session(user_id=user_id, session_id=session_id), 8)
    session.append(user_inputs("a line of text. " * 5_000), idempotency_key="once")
    session.compact(WINDOW)
    session.append(refold.StateUpdate(set={"a": 1}))
    session.strategies.catch_up()
    session.fork(3, session_id=f"{session_id}-fork")


@pytest.fixture
def store_url(request: pytest.FixtureRequest) -> str:
    """An empty store on SQLite, or on each engine where a test says so."""
    return one_engine(request)


@pytest.fixture
def filled(store: SessionStore) -> SessionStore:
    """A store in which ada and bob have sessions with data of every kind."""
    fill(store, "ada", "one")
    fill(store, "bob", "bobs")
    return store
