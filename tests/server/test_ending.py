"""A server ends within seconds of its signal, whatever its clients do."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx2
import psycopg
import pytest
from starlette.testclient import TestClient

import refold
from refold.adapters.server.access_tokens import Verifier
from refold.adapters.server.app import Gate
from refold.store import SessionStore
from tests.server.test_tail import SESSION, ServerProcess, input_body, served
from tests.support.stores import prepare
from tests.support.waiting import PATIENCE_SEC, until

TAIL = f"GET {SESSION}/tail"
# More than the buffers of two sockets hold.
LONG = "word " * 40_000


@contextmanager
def open_request(
    server: ServerProcess, request: str, body: str = ""
) -> Iterator[socket.socket]:
    """Send a request on a connection of its own, and leave the answer unread."""
    address = httpx2.URL(server.url)
    head = (
        f"{request} HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {server.token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body) * 2}\r\n\r\n"
    )
    with closing(socket.socket()) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.connect((address.host, address.port))
        connection.sendall((head + body).encode())
        yield connection


@pytest.fixture
def db(tmp_path: Path) -> Path:
    """A database with a session that is too long for the buffers of a connection."""
    path = tmp_path / "refold.db"
    with refold.open(path) as store:
        session = store.session(user_id="ada", session_id="s")
        session.append([refold.UserInput(text=LONG)] * 10)
    return path


@pytest.mark.parametrize(
    ("request_line", "body"),
    [
        pytest.param(TAIL, "", id="a tail"),
        pytest.param(f"{TAIL}?after=10", "", id="a tail without news"),
        pytest.param(f"GET {SESSION}", "", id="an answer that nobody reads"),
        pytest.param(f"POST {SESSION}", '{"events"', id="half a body"),
    ],
)
def test_open_requests_do_not_delay_the_end_of_a_server(
    db: Path, request_line: str, body: str
) -> None:
    with served(db) as server, open_request(server, request_line, body) as connection:
        if not body:
            assert connection.recv(8) == b"HTTP/1.1"

        server.process.terminate()
        _, complaints = server.process.communicate(timeout=PATIENCE_SEC)

    assert server.process.returncode == 0
    assert "Traceback" not in complaints


def test_many_new_tails_end_with_their_server(db: Path) -> None:
    with served(db) as server:
        connections = [open_request(server, f"{TAIL}?after=10") for _ in range(100)]
        for connection in connections:
            connection.__enter__()

        server.process.terminate()
        _, complaints = server.process.communicate(timeout=PATIENCE_SEC)

        for connection in connections:
            connection.__exit__(None, None, None)
    assert server.process.returncode == 0
    assert "Traceback" not in complaints


@pytest.mark.parametrize("after", [0, 1])
def test_a_tail_that_begins_during_shutdown_ends_at_once(
    store: SessionStore, gate: Gate, verifier: Verifier, after: int
) -> None:
    session = store.session(user_id="ada", session_id="s")
    session.append(refold.UserInput(text="n0"))
    token = verifier.mint("ada", ["read"])
    with TestClient(gate) as client:
        gate.close()

        answer = client.get(
            f"{SESSION}/tail?after={after}",
            headers={"Authorization": f"Bearer {token}"},
        )

    assert answer.text == "retry: 1000\n\n: closing\n\n"


@pytest.mark.load
def test_a_request_that_waits_for_the_database_does_not_delay_the_end(
    postgres_url: str, tmp_path: Path
) -> None:
    url = prepare(postgres_url, tmp_path)
    with (
        served(tmp_path / "refold.db", url=url) as server,
        server.client() as client,
        psycopg.connect(url) as other,
    ):
        assert client.post(SESSION, json=input_body(0)).status_code == 201
        other.execute("SELECT 1 FROM refold.heads FOR UPDATE")
        answers: list[httpx2.Response] = []

        def append() -> None:
            key = {"Idempotency-Key": "k-1"}
            answers.append(client.post(SESSION, json=input_body(1), headers=key))

        waiting = threading.Thread(target=append)
        waiting.start()
        with psycopg.connect(url, autocommit=True) as watching:
            until(
                lambda: watching.execute(
                    "SELECT 1 FROM pg_locks WHERE NOT granted"
                ).fetchall(),
                "the append to wait for a lock",
            )

        server.process.terminate()
        _, complaints = server.process.communicate(timeout=PATIENCE_SEC)
        waiting.join(PATIENCE_SEC)

    assert "waited for the database longer than 8 s" in complaints
    assert server.process.returncode == 1
    assert [answer.status_code for answer in answers] == [503]
    assert answers[0].json()["type"] == "urn:refold:problem:closing"
    # The database may still have recorded it.  A retry with the key records it once.
    with refold.open(url) as store:
        session = store.session(user_id="ada", session_id="s")
        session.append(refold.UserInput(text="n1"), idempotency_key="k-1")
        payloads = [event.payload for event in session.events()]
    assert payloads == [refold.UserInput(text="n0"), refold.UserInput(text="n1")]
