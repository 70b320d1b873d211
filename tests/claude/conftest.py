"""Layers above a store are tested on one engine, and races on both."""

import pytest


@pytest.fixture
def store_url() -> str:
    return "memory://"


@pytest.fixture(params=["_sqlite_store", "_postgres_store"])
def raced_url(request: pytest.FixtureRequest) -> str:
    """A database that several may open, on each engine in turn."""
    url: str = request.getfixturevalue(request.param)
    return url
