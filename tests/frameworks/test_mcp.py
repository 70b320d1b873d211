"""An agent reads one user's sessions by MCP, and nothing else."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import string
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import mcp
import pytest
from mcp.client.stdio import stdio_client

import refold
from refold.adapters.frameworks.mcp import TOOLS, server
from tests.frameworks.contract import MAIL, SECRET
from tests.support.waiting import PATIENCE_SEC

HERS = "the bluebird-cipher is under the stairs"


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path / "home"))
    db = f"sqlite:///{tmp_path / 'r.db'}"
    with refold.open(db) as store:
        own = store.session(user_id="ada", session_id="own")
        call = refold.ToolCall(call_id="c", tool_name="find", arguments={"to": MAIL})
        own.append([refold.UserInput(text=f"the zebra of {MAIL}, {SECRET}"), call])
        hers = store.session(user_id="bob", session_id="hers")
        hers.append(refold.UserInput(text=HERS))
    return db


@pytest.fixture
def store(db: str) -> Iterator[refold.SessionStore]:
    with refold.open(db) as store:
        yield store


async def asked(client: Any, tool: str, arguments: dict[str, Any]) -> tuple[bool, str]:
    result = await client.call_tool(tool, arguments)
    return bool(result.is_error), "".join(part.text for part in result.content)


async def tool_results(client: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {tool: {"session_id": "own"} for tool in TOOLS}
    arguments |= {"sessions": {}, "memory": {}, "search": {"words": "zebra"}}
    answers = {}
    for tool in TOOLS:
        failed, text = await asked(client, tool, arguments[tool])
        assert not failed, text
        answers[tool] = json.loads(text)
    return answers


def check(answers: dict[str, Any]) -> None:
    assert all("not instructions" in each["untrusted"] for each in answers.values())
    assert answers["context_at"]["result"]["provenance"] == "assumed"
    assert answers["why"]["result"]["provenance"] == "assumed"
    assert [s["session_id"] for s in answers["sessions"]["result"]] == ["own"]
    assert answers["sessions"]["result"][0]["title"]
    assert [hit["seq"] for hit in answers["search"]["result"]] == [1]
    assert [e["type"] for e in answers["events"]["result"]] == [
        "user_input",
        "tool_call",
    ]
    assert "zebra" in str(answers["context_at"]["result"]["messages"])
    assert answers["verify"]["result"]["ok"] is True
    as_text = json.dumps(answers)
    assert MAIL not in as_text
    assert SECRET not in as_text
    assert "bluebird" not in as_text


def test_in_a_program(store: refold.SessionStore) -> None:
    async def run() -> None:
        async with mcp.Client(server(store, lambda: "ada")) as client:
            tools = (await client.list_tools()).tools
            assert [tool.name for tool in tools] == list(TOOLS)
            hints = [tool.annotations for tool in tools]
            assert all(hint and hint.read_only_hint for hint in hints)
            assert not any("user" in str(tool.input_schema) for tool in tools)
            check(await tool_results(client))

    asyncio.run(run())


# "legacy" is the handshake of the revisions before 2026-07-28.
@pytest.mark.parametrize("revision", ["legacy", "2026-07-28"])
def test_over_stdio(db: str, revision: Any) -> None:
    command = [sys.executable, "-m", "refold", "--db", db, "mcp", "--user", "ada"]
    parameters = mcp.StdioServerParameters(
        command=command[0], args=command[1:], env=dict(os.environ)
    )

    async def run() -> None:
        async with mcp.Client(stdio_client(parameters), mode=revision) as client:
            assert (client.protocol_version == "2026-07-28") is (revision != "legacy")
            check(await tool_results(client))

    asyncio.run(run())


@pytest.mark.timeout(600)  # a server starts and two clients import their library
def test_over_http_with_a_token(db: str) -> None:
    command = [sys.executable, "-m", "refold", "--db", db, "serve", "--user", "ada"]
    with subprocess.Popen(
        [*command, "--port", "0"], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            printed = [process.stderr.readline(), process.stderr.readline()]
            token = printed[1].rpartition(" ")[2].strip()
            asyncio.run(_over_http(process, f"{printed[0].strip()}/mcp", token))
        finally:
            process.kill()
    assert process.returncode == 0


async def _over_http(process: subprocess.Popen[str], url: str, token: str) -> None:
    from mcp.client.streamable_http import streamable_http_client

    async with httpx.AsyncClient(timeout=PATIENCE_SEC) as client:
        refused = await client.post(url, json={})
        assert refused.status_code == 401
        wrong = await client.post(
            url, json={}, headers={"Authorization": f"Bearer {token}x"}
        )
        assert wrong.status_code == 401
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        httpx.AsyncClient(headers=headers, timeout=PATIENCE_SEC) as http_client,
        mcp.Client(
            streamable_http_client(url, http_client=http_client), mode="legacy"
        ) as client,
    ):
        check(await tool_results(client))
    async with (
        httpx.AsyncClient(headers=headers, timeout=PATIENCE_SEC) as http_client,
        mcp.Client(
            streamable_http_client(url, http_client=http_client), mode="2026-07-28"
        ) as client,
    ):
        check(await tool_results(client))
        # An open client does not keep the server from ending.
        process.terminate()
        _, complaints = await asyncio.to_thread(process.communicate)
    assert "Traceback" not in complaints


def test_a_client_may_keep_the_list_of_tools_for_an_hour(
    store: refold.SessionStore,
) -> None:
    async def run() -> None:
        async with mcp.Client(server(store, lambda: "ada"), mode="auto") as client:
            discovered = client.session.discover_result
            listed = await client.list_tools()
            for result in (discovered, listed):
                assert result is not None
                assert (result.ttl_ms, result.cache_scope) == (3_600_000, "public")
            assert client.server_info is not None
            assert client.server_info.version == refold.__version__

    asyncio.run(run())


def test_a_server_leaves_the_logging_of_its_program_alone(
    store: refold.SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])

    server(store, lambda: "ada")

    assert root.handlers == []


def test_no_request_reads_another_users_data(
    store: refold.SessionStore,
) -> None:
    dice = random.Random(5)  # no secret
    names = [
        "hers",
        "bob/hers",
        "../bob/hers",
        "bob",
        "_user",
        "",
        "own\x00",
        "hers' --",
    ]
    odd: list[Any] = [
        *names,
        "'; DROP TABLE heads; --",
        "%",
        "*",
        0,
        -1,
        2**70,
        None,
        [],
        {},
        True,
    ]

    def value() -> Any:
        letters = "".join(dice.choices(string.printable, k=dice.randrange(1, 12)))
        return dice.choice([*odd, letters])

    async def run() -> int:
        answered = 0
        async with mcp.Client(server(store, lambda: "ada")) as client:
            for _ in range(200):
                tool = dice.choice(TOOLS)
                arguments = {"session_id": value(), "user_id": "bob", "user": "bob"}
                extra = ("words", "after", "limit", "seq", "label")
                arguments |= {name: value() for name in extra if dice.random() < 0.4}
                arguments["words"] = dice.choice(["bluebird", "cipher stairs", value()])
                _, text = await asked(client, tool, arguments)
                answered += "under the stairs" in text or "head_seq" in text
        return answered

    assert asyncio.run(run()) == 0
    assert [info.session_id for info in store.sessions("bob")] == ["hers"]
