"""The CPU that recording costs for each request through the proxy.

``make bench-proxy``.  Two proxies of one kind get the same requests in turn: one
records, the other passes them on.  Each request contains the whole history, which grows
by one turn a request, as an agent's does.  The CPU of a proxy is that of its process,
measured when the exchange is recorded.  Targets, for the median of the differences: at
most 2 ms with a history of 100 kB, and 10 ms with 1 MB.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Final

import httpx2

SECRET: Final = "the-secret-of-the-benchmark-1234"
HISTORIES: Final = {"100 kB": (100_000, 2.0), "1 MB": (1_000_000, 10.0)}
REQUESTS: Final = 40
WARMING: Final = 5  # requests before the measured ones
MESSAGE_BYTES: Final = 2_000
ANSWER: Final = {
    "id": "msg_{number}",
    "type": "message",
    "role": "assistant",
    "model": "claude-opus-4-5",
    "stop_reason": "tool_use",
    "usage": {"input_tokens": 100, "output_tokens": 10},
}
TOOLS: Final = [{"name": "bash", "input_schema": {"type": "object"}}]
TEXT: Final = (
    "the build fails because a file of tests reads an old path and nothing writes it "
    "since the last change so that each run finds other results"
)


class Provider(BaseHTTPRequestHandler):
    """Answers each request with one call of a tool."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answer a request."""
        body = self.rfile.read(int(self.headers["content-length"]))
        answer = json.dumps(answer_to(json.loads(body))).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def answer_to(request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a request."""
    number = len(request["messages"])
    call = {"command": f"make {number}"}
    blocks = [
        {"type": "text", "text": f"Step {number}."},
        {"type": "tool_use", "id": f"toolu_{number}", "name": "bash", "input": call},
    ]
    return {**ANSWER, "id": f"msg_{number}", "content": blocks}


def sentences(random: Random) -> str:
    """Return prose of the size of a message."""
    words = random.choices(TEXT.split(), k=MESSAGE_BYTES // 5)
    return " ".join(words)[:MESSAGE_BYTES]


def turn(random: Random, request: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the messages that follow a request: the answer, and its result."""
    answer = answer_to(request)
    call_id = answer["content"][1]["id"]
    text = sentences(random)
    result = {"type": "tool_result", "tool_use_id": call_id, "content": text}
    return [
        {"role": "assistant", "content": answer["content"]},
        {"role": "user", "content": [result]},
    ]


def serve(upstream: str, store_url: str) -> None:
    """Run a proxy until stdin closes; print its CPU, in seconds, for each line.

    store_url: the store that it records in; empty for a proxy that records nothing.
    """
    import refold
    from refold.adapters.proxy.environment import Upstream
    from refold.adapters.proxy.protocols import of
    from refold.adapters.proxy.recorder import StoreRecorder
    from refold.adapters.proxy.recording import Recording
    from refold.adapters.proxy.server import ProxyServer

    recording = None
    if store_url:
        store = refold.open(store_url)
        store.writer.redactor.scanner.look_for_faster_engine()
        recording = Recording(StoreRecorder(store, user_id="ada"), print)
    upstreams = {"anthropic": Upstream("anthropic", upstream, "/v1")}
    server = ProxyServer(upstreams, of, recording, secret=SECRET)
    print(server.port, flush=True)
    for _ in sys.stdin:
        while recording is not None and not recording.is_idle:
            time.sleep(0.001)
        print(time.process_time(), flush=True)
    server.stop()
    if recording is not None:
        recording.close()
        print(recording.problems.count, len(recording.sessions()), flush=True)


class Proxy:
    """A proxy in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._port = int(self._read())
        self._client = httpx2.Client(timeout=120)

    def cpu_ms(self) -> float:
        """Return the CPU that the process has used, in milliseconds."""
        if self._process.stdin is None:
            raise RuntimeError
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._read()) * 1_000

    def cost_ms(self, body: bytes) -> float:
        """Return the CPU of one request."""
        before = self.cpu_ms()
        url = f"http://127.0.0.1:{self._port}/{SECRET}/anthropic/v1/messages"
        headers = {
            "content-type": "application/json",
            "x-claude-code-session-id": "7d3a5b0e-5f0b-4f0e-9d7c-2b7c7d3a5b0e",
        }
        self._client.post(url, content=body, headers=headers).raise_for_status()
        return self.cpu_ms() - before

    def end(self) -> str:
        """Stop the proxy; return what it reports at its end."""
        if self._process.stdin is None:
            raise RuntimeError
        self._client.close()
        self._process.stdin.close()
        return self._read()

    def _read(self) -> str:
        if self._process.stdout is None:
            raise RuntimeError
        return self._process.stdout.readline().strip()


@contextmanager
def proxy(upstream: str, store_url: str) -> Iterator[Proxy]:
    """Run a proxy in a process."""
    command = [sys.executable, "-m", "benchmarks.proxy", "--serve", upstream, store_url]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Proxy(process)


def measure(history_bytes: int) -> tuple[float, float]:
    """Return the median CPU of passing a request on, and of recording it, in ms."""
    random = Random(1)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        os.environ["REFOLD_HOME"] = str(folder)
        provider = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
        stack.callback(provider.server_close)
        stack.callback(provider.shutdown)
        threading.Thread(target=provider.serve_forever, daemon=True).start()
        upstream = f"http://127.0.0.1:{provider.server_port}"
        passing = stack.enter_context(proxy(upstream, ""))
        recording = stack.enter_context(
            proxy(upstream, f"sqlite:///{folder / 'agent.db'}")
        )
        question = {"role": "user", "content": sentences(random)}
        request: dict[str, Any] = {
            "model": "claude-opus-4-5",
            "max_tokens": 1_000,
            "tools": TOOLS,
            "messages": [question],
        }
        while len(json.dumps(request)) < history_bytes:
            request["messages"] += turn(random, request)
        passed: list[float] = []
        recorded: list[float] = []
        for _ in range(WARMING + REQUESTS):
            body = json.dumps(request).encode()
            passed.append(passing.cost_ms(body))
            recorded.append(recording.cost_ms(body))
            request["messages"] += turn(random, request)
        passing.end()
        problems = recording.end()
        if problems != "0 1":
            raise RuntimeError(f"problems and sessions: {problems}")
    pairs = list(zip(passed, recorded, strict=True))[WARMING:]
    return median(passed[WARMING:]), median(with_ - without for without, with_ in pairs)


def main() -> None:
    """Measure each history, and print the rows of a table."""
    print("| history | CPU of passing on | CPU of recording | target |")
    print("|---|---:|---:|---:|")
    for name, (history_bytes, target) in HISTORIES.items():
        passing, recording = measure(history_bytes)
        verdict = "reached" if recording <= target else "not reached"
        print(
            f"| {name} | {passing:.1f} ms | {recording:.1f} ms "
            f"| {target:g} ms, {verdict} |",
            flush=True,
        )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:])
    else:
        main()
