"""Applications of the eventsourcing library, and its own test cases."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any
from uuid import uuid4

import pytest
from eventsourcing.dcb import domain
from eventsourcing.persistence import InfrastructureFactory, StoredEvent
from eventsourcing.utils import Environment

from refold.adapters.eventsourcing import Factory

MODULE = "refold.adapters.eventsourcing"


class OnSqlite:
    """Gives a test case of the library a new file for each test."""

    url: str

    @pytest.fixture(autouse=True)
    def _sqlite(self, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._use(sqlite_url, monkeypatch)

    def _use(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.url = url
        monkeypatch.setenv("PERSISTENCE_MODULE", MODULE)
        monkeypatch.setenv("REFOLD_DB", url)


class OnPostgres(OnSqlite):
    """Gives a test case of the library a new database for each test."""

    @pytest.fixture(autouse=True)
    def _sqlite(self, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._use(postgres_url, monkeypatch)


def environment(url: str, name: str = "", **env: str) -> Environment:
    """Return the settings of an application of that name."""
    return Environment(name, {"PERSISTENCE_MODULE": MODULE, "REFOLD_DB": url, **env})


def factory(url: str, name: str = "", **env: str) -> Factory:
    """Return a factory for an application of that name."""
    application_factory: Any = InfrastructureFactory.construct(
        environment(url, name, **env)
    )
    assert type(application_factory) is Factory
    return application_factory


def stored_event(
    version: int = 1, *, state: bytes = b"state", topic: str = "topic", of: Any = None
) -> StoredEvent:
    """Return an event of a new aggregate, or of the given one."""
    return StoredEvent(of or uuid4(), version, topic, state)


def without_msgspec() -> None:
    """Let the library's test cases of projections be imported.

    Their module imports msgspec for another part of the library, which these tests do
    not use.
    """
    name = "eventsourcing.dcb.msgpack"
    stand_in: Any = ModuleType(name)
    stand_in.Decision = type("Decision", (domain.Decision,), {})
    stand_in.InitialDecision = type("InitialDecision", (stand_in.Decision,), {})
    sys.modules.setdefault(name, stand_in)
