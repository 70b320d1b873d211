"""A server over a store, and clients with tokens of its users."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import refold
from refold.adapters.server.access_tokens import SCOPES, Verifier, verifier_of
from refold.adapters.server.app import Gate, Limits, application
from refold.store import SessionStore

Speaks = Callable[..., TestClient]
QUICK = Limits(per_second=1e6, burst=1e6)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SessionStore]:
    """A store that many may use, and that records who did."""
    with refold.open(tmp_path / "refold.db", access_log="table") as opened:
        yield opened


@pytest.fixture
def verifier() -> Verifier:
    """What verifies by a secret that it made."""
    return verifier_of()


@pytest.fixture
def gate(store: SessionStore, verifier: Verifier) -> Gate:
    """The whole server."""
    return application(store, verifier, QUICK)


@pytest.fixture
def speaks(gate: Gate, verifier: Verifier) -> Iterator[Speaks]:
    """Makes clients of a user with scopes. A client of None sends no token."""
    clients: list[TestClient] = []

    def speak(user: str | None = "ada", *scopes: str) -> TestClient:
        client = TestClient(gate, raise_server_exceptions=False, follow_redirects=False)
        if user is not None:
            token = verifier.mint(user, scopes or SCOPES[:4])
            client.headers["Authorization"] = f"Bearer {token}"
        clients.append(client)
        return client

    with TestClient(gate):
        yield speak
    for client in clients:
        client.close()


@pytest.fixture
def ada(speaks: Speaks) -> TestClient:
    """A client of the user ada, with every scope but admin."""
    return speaks("ada")
