"""Many streams share the proxy: none slows another down, and memory stays bounded."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.support import raw_http
from tests.support.proxying import SECRET
from tests.support.raw_http import CHUNKED, Peer, Request, Server
from tests.support.waiting import until

STREAMS: Final = 64
CHUNK: Final = bytes(range(256)) * 256
CHUNKS: Final = 128  # 8 MiB, more than the buffers of the system hold for a connection
COPY_BYTES: Final = 256 << 10
MOST_BYTES: Final = 96 << 20


def respond(peer: Peer, request: Request) -> None:
    """Send a large stream, or a short answer."""
    if request.body == b"short":
        raw_http.reply(b"a short answer")(peer, request)
        return
    peer.send(b"HTTP/1.1 200 OK\r\n%s\r\n\r\n" % CHUNKED)
    for _ in range(CHUNKS):
        peer.send_chunk(CHUNK)
    peer.send_chunk(b"")


@contextmanager
def proxy_process(upstream: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run a proxy in a process; returns the process and the port."""
    command = [sys.executable, "-m", "tests.support.proxy_process"]
    with subprocess.Popen(
        [*command, upstream, str(COPY_BYTES)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())


def ask(port: int, body: bytes) -> Peer:
    """Send a request; the answer is not read."""
    peer = raw_http.connect(port)
    peer.send(
        b"POST /%s/anthropic/v1/messages HTTP/1.1\r\n" % SECRET.encode()
        + b"host: 127.0.0.1:%d\r\n" % port
        + b"content-length: %d\r\n\r\n" % len(body)
        + body
    )
    return peer


def peak_bytes(process: subprocess.Popen[str]) -> int:
    """Return the most memory that the process has used."""
    status = Path(f"/proc/{process.pid}/status").read_text("utf-8")
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10


def read_stream(peer: Peer) -> bool:
    """Read an answer to its end; whether it is the whole stream."""
    _, _, body = raw_http.read_message(peer.stream)
    return body == CHUNK * CHUNKS


@pytest.mark.load
@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc/PID/status")
def test_slow_clients_slow_nobody_down_and_memory_is_bounded() -> None:
    with ExitStack() as stack:
        server = stack.enter_context(Server(respond))
        process, port = stack.enter_context(proxy_process(server.url))
        with ask(port, b"short") as peer:
            raw_http.read_message(peer.stream)
        peak_before = peak_bytes(process)

        streams = [stack.enter_context(ask(port, b"long")) for _ in range(STREAMS)]
        until(lambda: len(server.requests) == STREAMS + 1, "all requests")
        with ask(port, b"short") as peer:
            _, _, short_answer = raw_http.read_message(peer.stream)
        with ThreadPoolExecutor(STREAMS) as threads:
            are_whole = list(threads.map(read_stream, streams))
        growth = peak_bytes(process) - peak_before

    assert short_answer == b"a short answer"
    assert are_whole == [True] * STREAMS
    assert growth < MOST_BYTES
