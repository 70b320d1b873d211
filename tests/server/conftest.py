"""A server over a store, and clients with tokens of the store's users."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import refold
from refold.adapters.server.access_tokens import SCOPES, Verifier, verifier_of
from refold.adapters.server.app import Gate, Limits, application
from refold.store import SessionStore

ClientFor = Callable[..., TestClient]
QUICK = Limits(per_second=1e6, burst=1e6)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SessionStore]:
    """A store for several users, which records every use."""
    with refold.open(tmp_path / "refold.db", access_log="table") as opened:
        yield opened


@pytest.fixture
def verifier() -> Verifier:
    """A verifier with a secret that it generated."""
    return verifier_of()


@pytest.fixture
def gate(store: SessionStore, verifier: Verifier) -> Gate:
    """The server application with all its routes and limits."""
    return application(store, verifier, QUICK)


@pytest.fixture
def client_for(gate: Gate, verifier: Verifier) -> Iterator[ClientFor]:
    """Creates clients with a user's token and scopes. User None gets no token."""
    clients: list[TestClient] = []
    running = TestClient(gate)

    def create(user: str | None = "ada", *scopes: str) -> TestClient:
        client = TestClient(gate, raise_server_exceptions=False, follow_redirects=False)
        if user is not None:
            token = verifier.mint(user, scopes or SCOPES[:4])
            client.headers["Authorization"] = f"Bearer {token}"
        # In the event loop of the application, as all clients of a real server are.
        client.portal = running.portal
        clients.append(client)
        return client

    with running:
        yield create
    for client in clients:
        client.close()


@pytest.fixture
def ada(client_for: ClientFor) -> TestClient:
    """A client of the user ada, with every scope but admin."""
    return client_for("ada")
