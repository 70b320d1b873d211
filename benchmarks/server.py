"""The cost of HTTP for an append, and the delay of 200 tails behind 16 writers.

``make bench-server``.  Targets: an append over HTTP takes at most 2.5 ms more than one
in this process, at the median of pairs; 95 of 100 events reach each tail within 100 ms
of their acknowledgement, none is missed or repeated, and the server's memory stays.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles

import httpx2
import jwt
import orjson

import refold

TEXT = "The quick fox reads the budget of the third quarter and finds nothing in it. "
SECRET = "not a secret, but long enough for HS256"
PAIRS = 400
TAILS = 200
WRITERS = 16
EACH = 60
PACE_SEC = 0.1
MORE_MS = 2.5
LAG_MS = 100.0
GROWTH_MB = 64.0


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, int]]:
    """``refold serve`` over a database in ``folder``: its address and process."""
    secret = folder / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    environ = {**os.environ, "REFOLD_TOKEN_SECRET_FILE": str(secret)}
    store = f"sqlite:///{folder}/served.db"
    with refold.open(store) as opened:
        for number in range(WRITERS):
            session = opened.session(user_id="ada", session_id=f"s{number}")
            session.append(refold.UserInput(text="begun"))
    command = [sys.executable, "-m", "refold", "--db", store, "serve", "--port", "0"]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=environ
    ) as process:
        try:
            assert process.stderr is not None  # noqa: S101  # it is a pipe
            url = next(line for line in process.stderr if line.startswith("http"))
            yield url.strip(), process.pid
        finally:
            process.terminate()


def token() -> str:
    """A token that the server verifies."""
    claims = {"sub": "ada", "scope": "append read", "aud": "refold"}
    return jwt.encode(claims | {"exp": int(time.time()) + 3600}, SECRET, "HS256")


def more(url: str, folder: Path) -> list[float]:
    """How much longer an append over HTTP took than its pair here, in ms."""
    latencies: list[float] = []
    headers = {"Authorization": f"Bearer {token()}"}
    with (
        refold.open(f"sqlite:///{folder}/here.db") as store,
        httpx2.Client(base_url=url, headers=headers) as client,
    ):
        session = store.session(user_id="ada", session_id="pairs")
        for number in range(PAIRS + 50):
            text = f"{number}: {TEXT * 20}"
            began = time.perf_counter()
            session.append(refold.UserInput(text=text))
            here = time.perf_counter()
            event = {"type": "user_input", "payload": {"text": text}}
            sent = client.post("/v1/sessions/pairs/events", json={"events": [event]})
            there = time.perf_counter()
            sent.raise_for_status()
            if number >= 50:
                latencies.append(((there - here) - (here - began)) * 1000)
    return latencies


async def lags(url: str, pace: float) -> list[float]:
    """How long after its acknowledgement each event reached each tail, in ms."""
    parsed = httpx2.URL(url)
    acknowledged: dict[tuple[int, int], float] = {}
    arrived: list[tuple[tuple[int, int], float]] = []
    ready = asyncio.Semaphore(0)
    head = f"Authorization: Bearer {token()}\r\n"
    marker = "paced" if pace else "hurried"

    async def listen(session: int) -> None:
        reader, writer = await asyncio.open_connection(parsed.host, parsed.port)
        path = f"/v1/sessions/s{session}/events/tail?after={heads[session]}"
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n{head}\r\n".encode())
        await reader.readuntil(b"retry: 1000\n\n")
        ready.release()
        left = EACH
        while left:
            line = await reader.readline()
            if line.startswith(b"data: "):
                now = time.perf_counter()
                event = orjson.loads(line[6:])
                text = event["payload"]["text"].split(" ")
                if text[0] == marker:
                    arrived.append(((session, int(text[1])), now))
                    left -= 1
        writer.close()

    async def write(session: int, client: httpx2.AsyncClient) -> None:
        for number in range(EACH):
            event = {"type": "user_input", "payload": {"text": f"{marker} {number} x"}}
            place = f"/v1/sessions/s{session}/events"
            sent = await client.post(place, json={"events": [event]})
            while sent.status_code == 429:  # a user may not ask faster
                await asyncio.sleep(0.1)
                sent = await client.post(place, json={"events": [event]})
            acknowledged[session, number] = time.perf_counter()
            sent.raise_for_status()
            await asyncio.sleep(pace)

    headers = {"Authorization": f"Bearer {token()}"}
    client = httpx2.AsyncClient(base_url=url, headers=headers, timeout=60)
    heads = [
        (await client.get(f"/v1/sessions/s{number}")).json()["head_seq"]
        for number in range(WRITERS)
    ]
    listeners = [asyncio.create_task(listen(n % WRITERS)) for n in range(TAILS)]
    for _ in listeners:
        await ready.acquire()
    try:
        await asyncio.gather(*(write(number, client) for number in range(WRITERS)))
        await asyncio.wait_for(asyncio.gather(*listeners), 60)
    finally:
        await client.aclose()
    each = TAILS * EACH
    if len(arrived) != each:
        raise SystemExit(f"{len(arrived)} events arrived, not {each}")
    return [max(0.0, (at - acknowledged[key]) * 1000) for key, at in arrived]


def memory(pid: int) -> float:
    """The process's memory in MB."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def main() -> int:
    """Measure, print the figures, and exit with 1 if a target is missed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["REFOLD_HOME"] = f"{folder}/home"
        with served(folder) as (url, pid):
            extra = more(url, folder)
            asyncio.run(lags(url, 0.0))  # as fast as they can: everything arrives
            time.sleep(3)  # until the user may ask that often again
            before = memory(pid)
            late = asyncio.run(lags(url, PACE_SEC))
            grown = memory(pid) - before
    figures = (
        ("ms more than in process, median", median(extra), MORE_MS),
        (f"ms that {TAILS} tails are late, p95", quantiles(late, n=20)[-1], LAG_MS),
        ("MB grown", grown, GROWTH_MB),
    )
    missed = 0
    for title, value, most in figures:
        if value > most:
            missed += 1
        print(f"{title}: {value:.3g} (at most {most:g})")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
