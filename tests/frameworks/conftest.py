"""A store on each engine, with the keys that it needs."""

from pathlib import Path

import pytest

from tests.support.stores import prepare


@pytest.fixture
def url(store_url: str, tmp_path: Path) -> str:
    """An empty store on each engine in turn."""
    return prepare(store_url, tmp_path)
