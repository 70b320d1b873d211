"""Limits per user and per client leave the server free for everybody else."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import anyio.to_thread
import pytest
from starlette.testclient import TestClient

import refold
from refold.adapters.server import routes
from refold.adapters.server.access_tokens import Verifier
from refold.adapters.server.app import Gate, Limits, application
from refold.store import SessionStore
from tests.server.conftest import ClientFor
from tests.support.waiting import PATIENCE_SEC, until_async

Message = dict[str, Any]
ASKS = {"events": [{"type": "user_input", "payload": {"text": "hello"}}]}
EVENTS = "/v1/sessions/s/events"


class Answer(NamedTuple):
    """The parts of an answer that the server sent."""

    status: int
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


async def never() -> None:
    await asyncio.Event().wait()


async def send_request(
    gate: Gate,
    path: str,
    token: str = "",
    *,
    method: str = "GET",
    body: tuple[bytes, ...] = (b"",),
    after: Callable[[], Awaitable[Message]] | None = None,
    taken: Callable[[], Awaitable[None]] | None = None,
) -> Answer:
    """Send a request as an ASGI server does.

    after: returns the message that follows the body.
    taken: returns when the client has read a part of the answer.
    """
    sent: list[Message] = []
    parts: list[Message] = []
    for number, part in enumerate(body, start=1):
        has_more = number < len(body) or after is not None
        parts.append({"type": "http.request", "body": part, "more_body": has_more})

    async def receive() -> Message:
        if parts:
            return parts.pop(0)
        if after is not None:
            return await after()
        await never()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)
        if taken is not None:
            await taken()

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"authorization", f"Bearer {token}".encode())] if token else [],
        "client": ("127.0.0.1", 1),
    }
    await gate(scope, receive, send)  # type: ignore[arg-type]  # as a server calls it
    status = sent[0]["status"] if sent else 0
    return Answer(status, b"".join(message.get("body", b"") for message in sent[1:]))


class WaitingStore:
    """A store whose session lists wait until the test releases them."""

    def __init__(self, store: SessionStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self._go = threading.Event()
        self._begun = threading.Semaphore(0)
        list_ = store.overviews

        def wait(*args: Any, **kwargs: Any) -> Any:
            self._begun.release()
            assert self._go.wait(PATIENCE_SEC)
            return list_(*args, **kwargs)

        monkeypatch.setattr(store, "overviews", wait)

    @asynccontextmanager
    async def open_lists(
        self, gate: Gate, token: str, number: int
    ) -> AsyncIterator[list[asyncio.Task[Answer]]]:
        """Keep ``number`` list requests open until the block ends."""
        ask = send_request(gate, "/v1/sessions", token)
        tasks = [asyncio.create_task(ask)]
        tasks += [
            asyncio.create_task(send_request(gate, "/v1/sessions", token))
            for _ in range(number - 1)
        ]
        try:
            for _ in range(number):
                await until_async(
                    lambda: self._begun.acquire(blocking=False), "a request to begin"
                )
            yield tasks
        finally:
            self._go.set()
            await asyncio.gather(*tasks)


@pytest.fixture
def waiting_store(store: SessionStore, monkeypatch: pytest.MonkeyPatch) -> WaitingStore:
    return WaitingStore(store, monkeypatch)


def test_one_user_cannot_take_every_place(
    store: SessionStore, verifier: Verifier, waiting_store: WaitingStore
) -> None:
    gate = application(store, verifier, Limits(own_at_once=2))
    ada, bob = (verifier.mint(user, ["read"]) for user in ("ada", "bob"))

    async def run() -> tuple[Answer, Answer, Answer]:
        async with waiting_store.open_lists(gate, ada, 2) as lists:
            more = await send_request(gate, "/v1/costs", ada)
            other = await send_request(gate, "/v1/costs", bob)
        assert [(await task).status for task in lists] == [200, 200]
        return more, other, await send_request(gate, "/v1/costs", ada)

    more, other, later = asyncio.run(run())

    assert (more.status, other.status, later.status) == (429, 200, 200)
    assert more.json()["type"] == "urn:refold:problem:busy"


def test_health_answers_while_a_server_is_busy(
    store: SessionStore, verifier: Verifier, waiting_store: WaitingStore
) -> None:
    gate = application(store, verifier, Limits(at_once=1))
    ada = verifier.mint("ada", ["read"])

    async def run() -> list[int]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = 1
        async with waiting_store.open_lists(gate, ada, 1):
            paths = ("/v1/costs", "/health", "/health/ready")
            return [(await send_request(gate, path, ada)).status for path in paths]

    assert asyncio.run(run()) == [503, 200, 200]


def test_a_client_that_does_not_read_its_answer_is_disconnected(
    store: SessionStore, verifier: Verifier, caplog: pytest.LogCaptureFixture
) -> None:
    gate = application(store, verifier, Limits(send_sec=0.05, own_at_once=1))
    ada = verifier.mint("ada", ["read"])
    session = store.session(user_id="ada", session_id="s")
    session.append(refold.UserInput(text="hello"))

    async def run() -> int:
        for path in ("/v1/sessions", "/v1/export", f"{EVENTS}/tail"):
            await asyncio.wait_for(send_request(gate, path, ada, taken=never), 30)
        return (await send_request(gate, "/v1/sessions", ada)).status

    assert asyncio.run(run()) == 200
    assert "unexpected" not in caplog.text


def test_a_client_that_leaves_during_its_body_causes_no_error(
    store: SessionStore, verifier: Verifier, caplog: pytest.LogCaptureFixture
) -> None:
    gate = application(store, verifier)
    ada = verifier.mint("ada", ["append"])

    async def disconnect() -> Message:
        return {"type": "http.disconnect"}

    asyncio.run(
        send_request(
            gate, EVENTS, ada, method="POST", body=(b'{"ev',), after=disconnect
        )
    )

    assert "unexpected" not in caplog.text
    assert store.sessions("ada") == []


def test_only_events_may_be_large(ada: TestClient) -> None:
    ada.post(EVENTS, json=ASKS)
    long = {"events": [ASKS["events"][0] | {"agent": "x" * 1_000}] * 400}

    events = ada.post(EVENTS, json=long)
    labels = ada.put(
        "/v1/sessions/s/labels", json={f"k{n}": "v" for n in range(40_000)}
    )

    assert events.status_code == 201
    assert labels.status_code == 413
    problem = labels.json()
    assert problem["type"] == "urn:refold:problem:too_large"
    assert problem["title"] != ""
    assert "262,144 bytes" in problem["detail"]
    assert problem["request_id"] == labels.headers["x-request-id"]


def test_large_bodies_are_not_parsed_on_the_event_loop(
    ada: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_drafts = routes._drafts
    ran_on_loop: list[bool] = []

    def drafts(*args: Any) -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            ran_on_loop.append(False)
        else:
            ran_on_loop.append(True)
        return read_drafts(*args)

    monkeypatch.setattr(routes, "_drafts", drafts)
    long = {"events": [{"type": "user_input", "payload": {"text": "word " * 20_000}}]}

    for body in (ASKS, long):
        assert ada.post(EVENTS, json=body).status_code == 201

    assert ran_on_loop == [True, False]


def test_refused_tokens_fill_the_access_log_no_faster_than_the_rate(
    store: SessionStore, verifier: Verifier
) -> None:
    gate = application(store, verifier, Limits(per_second=0.001, burst=5))

    with TestClient(gate) as client:
        headers = {"Authorization": "Bearer a.b.c"}
        statuses = [
            client.get("/v1/sessions", headers=headers).status_code for _ in range(20)
        ]

    assert statuses == [401] * 5 + [429] * 15
    store.access_log.flush()
    noted = [
        record
        for record in store.access_log.records()
        if record.event == "token_refused"
    ]
    assert len(noted) == 5


def test_the_endpoint_for_agents_opens_no_empty_stream(client_for: ClientFor) -> None:
    accepts = {"Accept": "text/event-stream"}

    answered = client_for("ada", "read").get("/mcp", headers=accepts)

    assert answered.status_code == 405
    assert answered.headers["content-type"] == "application/problem+json"


def test_metrics_do_not_grow_with_what_a_client_sends(client_for: ClientFor) -> None:
    ada = client_for("ada")
    for number in range(20):
        ada.request(f"SK-ANT-{number}", "/v1/sessions")
        ada.get(f"/v1/nothing-{number}")

    text = client_for("root", "admin").get("/metrics").text

    counted = [
        line for line in text.splitlines() if line.startswith("refold_requests_t")
    ]
    assert len(counted) == 2
    assert "SK-ANT" not in text
    assert "refold_requests_running 1.0" in text
