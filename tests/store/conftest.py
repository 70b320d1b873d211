"""Fixtures that several tests of the store share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import refold
from refold.store import Session, SessionStore
from tests.support.stores import prepare


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize by engine: SQLite alone, or both engines for races and crashes."""
    if "store_url" in metafunc.fixturenames:
        each = metafunc.definition.get_closest_marker("each_engine")
        engines = ["sqlite", "postgresql"] if each else ["sqlite"]
        metafunc.parametrize("store_url", engines, indirect=True)


@pytest.fixture
def store_url(request: pytest.FixtureRequest) -> str:
    """An empty database with the tables of a store."""
    kind = {"sqlite": "_sqlite_store", "postgresql": "_postgres_store"}[request.param]
    url: str = request.getfixturevalue(kind)
    return url


@pytest.fixture
def memory() -> Iterator[SessionStore]:
    """A store in memory, for tests in which the engine makes no difference."""
    with refold.open("memory://") as store:
        yield store


@pytest.fixture
def empty_session(memory: SessionStore) -> Session:
    """A session without events, for checks that come before any engine."""
    return memory.session(user_id="ada", session_id="s-1")


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    """The file in which a ``Counting`` summarizer records its calls."""
    return tmp_path / "calls"


@pytest.fixture
def audited(store_url: str, tmp_path: Path) -> Iterator[SessionStore]:
    """A store of each engine whose access log is in its table."""
    with refold.open(prepare(store_url, tmp_path), access_log="table") as store:
        yield store
