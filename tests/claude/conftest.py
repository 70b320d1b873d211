"""A store on each engine, and a server that speaks the Messages API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from refold.store import Session, SessionStore
from tests.support.messages_api import MessagesApi
from tests.support.stores import open_at


@pytest.fixture
def store(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SessionStore]:
    monkeypatch.setenv("REFOLD_KEYS", "")
    with open_at(store_url, tmp_path) as store:
        yield store


@pytest.fixture
def session(store: SessionStore) -> Session:
    return store.session("ada", "s-1")


@pytest.fixture
def api() -> Iterator[MessagesApi]:
    with MessagesApi() as api:
        yield api
