"""The tools of MCP load with the first request to them, and serve until the end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Final

import httpx2
import pytest
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.testclient import TestClient

from refold import UserInput
from refold.adapters.frameworks import mcp
from refold.adapters.server.access_tokens import Verifier
from refold.adapters.server.app import COOKIE, Gate
from refold.store import SessionStore
from tests.server.conftest import ClientFor
from tests.support.waiting import PATIENCE_SEC, until, until_async

LIST: Final = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
ACCEPTS: Final = {"Accept": "application/json, text/event-stream"}

CART: Final = UserInput(text="blue paint on the cart")

STARTED: Final = """
import sys
import refold
from refold.adapters.server.access_tokens import verifier_of
from refold.adapters.server.app import application
from starlette.testclient import TestClient
with refold.open("memory://") as store:
    with TestClient(application(store, verifier_of())) as client:
        assert client.get("/health").status_code == 200
print("mcp" in sys.modules)
"""


def list_tools(client: TestClient) -> str:
    """Return the answer of a client that asks for the list of tools."""
    answered = client.post("/mcp", json=LIST, headers=ACCEPTS)
    assert answered.status_code == 200
    return answered.text


class SlowTools:
    """Tools that load when the test allows it.

    begun: how often they were to be loaded.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = 0
        self.may_load = threading.Event()
        self._load = mcp.server
        monkeypatch.setattr(mcp, "server", self._server)

    def _server(self, *args: object) -> object:
        self.begun += 1
        assert self.may_load.wait(PATIENCE_SEC)
        return self._load(*args)  # type: ignore[arg-type]  # passed on as they came


def test_a_server_without_requests_to_the_tools_does_not_load_mcp() -> None:
    command = [sys.executable, "-c", STARTED]

    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)

    assert ran.stdout == "False\n"


def test_first_requests_at_the_same_time_load_the_tools_once(
    client_for: ClientFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = SlowTools(monkeypatch)
    clients = [client_for("ada", "read") for _ in range(3)]

    with ThreadPoolExecutor(len(clients)) as threads:
        answers = [threads.submit(list_tools, client) for client in clients]
        until(lambda: tools.begun, "the tools to be loaded")
        # Other requests are answered while they load.
        assert client_for("ada", "read").get("/v1/sessions").status_code == 200
        tools.may_load.set()

    assert all("context_at" in answer.result() for answer in answers)
    assert tools.begun == 1


def test_an_application_that_starts_again_serves_the_tools_again(
    gate: Gate, verifier: Verifier
) -> None:
    for _ in range(2):
        with TestClient(gate) as client:
            client.headers["Authorization"] = f"Bearer {verifier.mint('ada', ['read'])}"

            assert "context_at" in list_tools(client)


def test_an_application_ends_while_the_tools_load(
    gate: Gate, verifier: Verifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = SlowTools(monkeypatch)
    headers = {"Authorization": f"Bearer {verifier.mint('ada', ['read'])}", **ACCEPTS}

    async def status_of_a_request_that_outlives_the_application() -> int:
        transport = httpx2.ASGITransport(gate, raise_app_exceptions=False)
        async with httpx2.AsyncClient(
            transport=transport, base_url="http://test", headers=headers
        ) as client:
            async with gate._site.router.lifespan_context(gate._site):
                answer = asyncio.create_task(client.post("/mcp", json=LIST))
                await until_async(lambda: tools.begun, "the tools to be loaded")
                asyncio.get_running_loop().call_soon(tools.may_load.set)
            return (await answer).status_code

    status = asyncio.run(status_of_a_request_that_outlives_the_application())

    assert status == 500  # a server lets its requests end before the application


def test_a_request_without_permission_does_not_use_the_tools(
    client_for: ClientFor,
) -> None:
    refused = client_for("ada", "append").post("/mcp", json=LIST, headers=ACCEPTS)

    assert refused.status_code == 403


def test_a_refused_request_does_not_load_the_tools(
    client_for: ClientFor, verifier: Verifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        pytest.fail("the tools were loaded")

    monkeypatch.setattr(mcp, "server", fail)
    ada = client_for("ada", "read")
    bob = client_for("bob", "append")

    assert ada.get("/mcp", headers=ACCEPTS).status_code == 405
    assert bob.post("/mcp", json=LIST, headers=ACCEPTS).status_code == 403
    del ada.headers["Authorization"]
    ada.cookies.set(COOKIE, verifier.mint("ada", ["read"]))
    assert ada.post("/mcp", json=LIST, headers=ACCEPTS).status_code == 403


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_without_mcp_the_server_has_no_such_path(
    method: str, client_for: ClientFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    ada = client_for("ada", "read")

    for _ in range(2):
        assert ada.request(method, "/mcp", headers=ACCEPTS).status_code == 404


def test_tools_that_fail_to_load_are_an_unexpected_error_for_each_request(
    client_for: ClientFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(mcp, "server", fail)
    ada = client_for("ada", "read")

    for _ in range(2):
        assert ada.post("/mcp", json=LIST, headers=ACCEPTS).status_code == 500
    assert ada.get("/v1/sessions").status_code == 200


def test_tools_that_fail_to_start_are_an_unexpected_error_for_each_request(
    client_for: ClientFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    @asynccontextmanager
    async def fail(_: object) -> AsyncIterator[None]:
        raise RuntimeError
        yield

    monkeypatch.setattr(StreamableHTTPSessionManager, "run", fail)
    ada = client_for("ada", "read")

    for _ in range(2):
        assert ada.post("/mcp", json=LIST, headers=ACCEPTS).status_code == 500
    assert ada.get("/v1/sessions").status_code == 200


def test_a_search_says_that_counts_with_a_phrase_may_be_too_high(
    store: SessionStore,
) -> None:
    session = store.session(user_id="ada", session_id="s")
    session.append([UserInput(text="the blue cart"), *[CART] * 30])
    tools = mcp.Readable(store, lambda: "ada")

    with_phrase = tools.search('"blue cart"', limit=1)
    without = tools.search("cart", limit=1)

    assert with_phrase[-1] == {"more_in_session_may_be_too_high": True}
    assert [hit["session_id"] for hit in without] == ["s"]
