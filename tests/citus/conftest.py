"""Fixtures of the tests on Citus: a cluster, its databases, and stores on them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url

from refold.adapters.keys.master import MasterKeyFile
from refold.adapters.sql.citus import CitusDatabase
from refold.adapters.sql.schema import migrate
from refold.store import SessionStore
from tests.support.citus import Cluster, binaries
from tests.support.stores import open_at

FOLDER = binaries()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The cluster shared by all tests of a run: make databases, but do not break it."""
    assert FOLDER is not None
    with Cluster(FOLDER) as cluster:
        yield cluster


@pytest.fixture
def citus_url(cluster: Cluster) -> Iterator[str]:
    """An empty database of the cluster, dropped after the test."""
    MasterKeyFile().create()
    name = f"test_{uuid.uuid4().hex[:12]}"
    yield cluster.create_database(name)
    cluster.drop_database(name)


@pytest.fixture
def store_url(citus_url: str) -> str:
    """A database with the tables of a store, empty."""
    database = CitusDatabase(make_url(citus_url))
    migrate(database)
    database.close()
    return citus_url


@pytest.fixture
def store(citus_url: str, tmp_path: Path) -> Iterator[SessionStore]:
    """An empty store on the cluster."""
    with open_at(citus_url, tmp_path) as store:
        yield store
