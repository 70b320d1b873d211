"""What several tests of the store ask for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import refold
from refold.store import Session, SessionStore
from tests.support.stores import prepare


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """SQLite, where the engine makes no difference; both for races and crashes."""
    if "store_url" in metafunc.fixturenames:
        each = metafunc.definition.get_closest_marker("each_engine")
        engines = ["sqlite", "postgresql"] if each else ["sqlite"]
        metafunc.parametrize("store_url", engines, indirect=True)


@pytest.fixture
def store_url(request: pytest.FixtureRequest) -> str:
    """A database with the tables of a store, empty."""
    kind = {"sqlite": "_sqlite_store", "postgresql": "_postgres_store"}[request.param]
    url: str = request.getfixturevalue(kind)
    return url


@pytest.fixture
def memory() -> Iterator[SessionStore]:
    """A store that keeps nothing, where the engine makes no difference."""
    with refold.open("memory://") as store:
        yield store


@pytest.fixture
def anywhere(memory: SessionStore) -> Session:
    """A session without events, for what is decided before an engine is asked."""
    return memory.session(user_id="ada", session_id="s-1")


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    """The file in which a ``Counting`` keeps its calls."""
    return tmp_path / "calls"


@pytest.fixture
def audited(store_url: str, tmp_path: Path) -> Iterator[SessionStore]:
    """A store of each engine that keeps its audit log in the table."""
    with refold.open(prepare(store_url, tmp_path), access_log="table") as store:
        yield store
