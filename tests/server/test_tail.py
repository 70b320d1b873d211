"""A tail delivers every event once, also after reconnects, kills and races."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import httpx2
import jwt
import orjson
import pytest

import refold
from refold.adapters.server import routes
from refold.adapters.server.access_tokens import Verifier
from refold.adapters.server.app import Gate
from refold.adapters.server.routes import Feed
from refold.domain import errors
from refold.store import SessionStore
from refold.store.session.history import SessionHistory
from tests.support.waiting import PATIENCE_SEC

SESSION = "/v1/sessions/s/events"


class ServerProcess(NamedTuple):
    """A process that serves, and a token for it."""

    process: subprocess.Popen[str]
    url: str
    token: str

    def client(self) -> httpx2.Client:
        """Return a client of the token's user."""
        headers = {"Authorization": f"Bearer {self.token}"}
        return httpx2.Client(base_url=self.url, headers=headers, timeout=PATIENCE_SEC)


@contextmanager
def served(
    db: Path, port: int = 0, *, url: str | None = None
) -> Iterator[ServerProcess]:
    """``refold serve`` over a SQLite file, or over the database at ``url``."""
    database = url or f"sqlite:///{db}"
    command = [sys.executable, "-m", "refold", "--db", database, "serve"]
    secret = db.with_suffix(".secret")
    secret.write_text("k" * 40)
    secret.chmod(0o600)
    environ = {**os.environ, "REFOLD_TOKEN_SECRET_FILE": str(secret)}
    with subprocess.Popen(
        [*command, "--port", str(port)], stderr=subprocess.PIPE, text=True, env=environ
    ) as process:
        try:
            assert process.stderr is not None
            address = process.stderr.readline().strip()
            while address and not address.startswith("http"):
                address = process.stderr.readline().strip()
            assert address, "it did not start"
            yield ServerProcess(process, address, mint_token("ada"))
        finally:
            process.kill()


def mint_token(user: str) -> str:
    """Mint a token that the secret of ``served`` verifies."""
    claims = {"sub": user, "scope": "append read", "aud": "refold"}
    return jwt.encode(claims | {"exp": int(time.time()) + 3600}, "k" * 40, "HS256")


def frames(lines: Iterator[str]) -> Iterator[dict[str, str]]:
    """Yield the events of a stream, each with its fields."""
    fields: dict[str, str] = {}
    for line in lines:
        if not line:
            if "event" in fields:
                yield fields
            fields = {}
            continue
        name, _, value = line.partition(": ")
        fields[name] = value


def input_body(number: int) -> dict[str, Any]:
    return {"events": [{"type": "user_input", "payload": {"text": f"n{number}"}}]}


@pytest.fixture
def db(tmp_path: Path) -> Path:
    """A database with a session of one event."""
    path = tmp_path / "refold.db"
    with refold.open(path) as store:
        store.session(user_id="ada", session_id="s").append(refold.UserInput(text="n0"))
    return path


def test_each_listener_gets_each_event_once_during_concurrent_writes(db: Path) -> None:
    with served(db) as server:

        def seqs_heard(after: int) -> list[int]:
            with (
                server.client() as client,
                client.stream("GET", f"{SESSION}/tail?after={after}") as stream,
            ):
                assert stream.headers["content-type"].startswith("text/event-stream")
                seqs = list[int]()
                for frame in frames(stream.iter_lines()):
                    if frame["event"] == "end":
                        return seqs
                    seqs.append(int(frame["id"]))
                    assert orjson.loads(frame["data"])["seq"] == seqs[-1]
            return seqs

        def write(writer: int) -> None:
            with server.client() as client:
                for number in range(40):
                    sent = client.post(SESSION, json=input_body(100 * writer + number))
                    assert sent.status_code == 201, sent.text

        with ThreadPoolExecutor(16) as pool:
            listeners = [pool.submit(seqs_heard, after) for after in (0, 0, 1, 1, 100)]
            list(pool.map(write, range(8)))
            closing = {"type": "system", "payload": {"text": "", "closed": True}}
            with server.client() as client:
                ended = client.post(SESSION, json={"events": [closing]})
            last = ended.json()["last_seq"]
            received = [listener.result() for listener in listeners]

    assert last == 322
    for after, seqs in zip((0, 0, 1, 1, 100), received, strict=True):
        assert seqs == list(range(after + 1, last + 1))


def test_a_client_that_reconnects_continues_after_its_last_event(db: Path) -> None:
    with served(db) as server, server.client() as client:
        for number in range(5):
            client.post(SESSION, json=input_body(number))
        with client.stream("GET", f"{SESSION}/tail") as stream:
            heard = frames(stream.iter_lines())
            first = [next(heard)["id"] for _ in range(3)]
        client.post(SESSION, json=input_body(5))
        back = {"Last-Event-ID": first[-1]}

        with client.stream("GET", f"{SESSION}/tail", headers=back) as stream:
            heard = frames(stream.iter_lines())
            rest = [next(heard)["id"] for _ in range(4)]

    assert [*map(int, first), *map(int, rest)] == [1, 2, 3, 4, 5, 6, 7]


def test_a_tail_has_events_of_other_processes(db: Path) -> None:
    with (
        served(db) as server,
        server.client() as client,
        client.stream("GET", f"{SESSION}/tail?after=1") as stream,
        refold.open(db) as store,
    ):
        session = store.session(user_id="ada", session_id="s")
        session.append(refold.UserInput(text="from elsewhere"))
        frame = next(frames(stream.iter_lines()))

    assert orjson.loads(frame["data"])["payload"]["text"] == "from elsewhere"


def test_a_killed_server_loses_no_acknowledged_event(db: Path) -> None:
    acknowledged: list[str] = []
    for round_ in range(3):
        with served(db) as server:
            enough = len(acknowledged) + 10 * (round_ + 1)

            def write(
                writer: int,
                number: int = round_,
                of: ServerProcess = server,
                most: int = enough,
            ) -> None:
                with of.client() as client:
                    for count in range(10_000):
                        words = f"{number}-{writer}-{count}"
                        event = {"type": "user_input", "payload": {"text": words}}
                        try:
                            sent = client.post(SESSION, json={"events": [event]})
                        except httpx2.TransportError:
                            return
                        if sent.status_code == 201:
                            acknowledged.append(words)
                        if len(acknowledged) >= most:
                            of.process.send_signal(signal.SIGKILL)

            with ThreadPoolExecutor(4) as pool:
                list(pool.map(write, range(4)))

    with refold.open(db) as store:
        session = store.session(user_id="ada", session_id="s")
        stored = [str(event.payload.payload()["text"]) for event in session.events()]
        assert session.verify().problems == []
    assert len(acknowledged) >= 60
    assert set(acknowledged) <= set(stored)
    assert len(stored) == len(set(stored))


def test_a_server_starts_before_its_store_exists(tmp_path: Path) -> None:
    with served(tmp_path / "new.db") as server, server.client() as client:
        assert client.post(SESSION, json=input_body(1)).status_code == 201


def test_a_tail_is_refused_before_it_begins(gate: Gate, db: Path) -> None:
    with served(db) as server, server.client() as client:
        missing = client.get("/v1/sessions/none/events/tail")
        foreign = client.get(f"{SESSION}/tail?user_id=bob")

    for answered in (missing, foreign):
        assert answered.status_code == 404
        assert answered.headers["content-type"] == "application/problem+json"


def test_a_tail_ends_with_its_token(
    store: SessionStore,
    gate: Gate,
    verifier: Verifier,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from starlette.testclient import TestClient

    store.session(user_id="ada", session_id="s").append(refold.UserInput(text="n0"))

    with TestClient(gate) as client:
        token = verifier.mint("ada", ["read"])
        end = verifier.verify(token).until
        # The first look at the clock finds the token valid, however long the request
        # took.
        looks = chain([end - 60, end - 0.1], repeat(end))
        monkeypatch.setattr(routes, "time", SimpleNamespace(time=looks.__next__))
        headers = {"Authorization": f"Bearer {token}"}
        answered = client.get(f"{SESSION}/tail", headers=headers)

    assert [frame["event"] for frame in frames(iter(answered.text.splitlines()))] == [
        "event"
    ]


def test_the_number_of_frames_for_a_slow_listener_is_bounded(
    store: SessionStore,
) -> None:
    session = store.session(user_id="ada", session_id="s")
    session.append(refold.UserInput(text="n0"))

    async def run() -> list[int]:
        feed = Feed(session, start_seq=1)
        seqs: list[int] = []
        place = 0
        task = asyncio.create_task(feed.run())
        await session.append_async([refold.UserInput(text=f"n{n}") for n in range(700)])
        await session.append_async(refold.SystemPrompt(closed=True))
        await task
        assert len(feed.frames) == 256
        while place < 702:
            place, data = await feed.after(place, 1.0)
            lines = iter(data.decode().splitlines())
            seqs += [int(frame["id"]) for frame in frames(lines)]
        return seqs

    assert asyncio.run(run()) == list(range(1, 703))


def test_the_bytes_of_frames_for_a_slow_listener_are_bounded(
    store: SessionStore,
) -> None:
    session = store.session(user_id="ada", session_id="s")
    session.append(refold.UserInput(text="n0"))

    async def run() -> tuple[int, list[int]]:
        feed = Feed(session, start_seq=1)
        seqs: list[int] = []
        place = 0
        task = asyncio.create_task(feed.run())
        for number in range(20):
            call = refold.ToolCall(
                call_id=f"c{number}", tool_name="sum", arguments={"of": [1] * 100_000}
            )
            await session.append_async(call)
        await session.append_async(refold.SystemPrompt(closed=True))
        await task
        buffered = sum(len(text) for _, text in feed.frames)
        while place < 22:
            place, data = await feed.after(place, 1.0)
            assert len(data) < 2 << 20
            seqs += [
                int(frame["id"]) for frame in frames(iter(data.decode().splitlines()))
            ]
        return buffered, seqs

    buffered, seqs = asyncio.run(run())

    assert buffered <= 1 << 20
    assert seqs == list(range(1, 23))


def tail_event_types(gate: Gate, token: str, *, place: int = 0) -> list[str]:
    """Return the types of a tail's events, and the code of its error if any."""
    from starlette.testclient import TestClient

    with TestClient(gate) as client:
        headers = {"Authorization": f"Bearer {token}"}
        answered = client.get(f"{SESSION}/tail?after={place}", headers=headers)
    events = [*frames(iter(answered.text.splitlines()))]
    codes = [orjson.loads(event["data"]).get("code") for event in events]
    return [event["event"] for event in events] + codes[-1:]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.Erased("the session"), "Erased"),
        (KeyError("sk-ant-secret"), "Unexpected"),
    ],
)
@pytest.mark.parametrize("place", [0, 1])
def test_a_tail_that_fails_ends_with_the_error(
    store: SessionStore,
    gate: Gate,
    verifier: Verifier,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    code: str,
    place: int,
) -> None:
    session = store.session(user_id="ada", session_id="s")
    session.append(refold.UserInput(text="n0"))

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(SessionHistory, "pages", fail)
    types = tail_event_types(gate, verifier.mint("ada", ["read"]), place=place)

    assert types == ["error", code]
    assert "sk-ant-secret" not in caplog.text
