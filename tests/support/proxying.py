"""A proxy with a recorder in memory, for tests of the transport."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Event
from typing import Any, Final

from refold.adapters.proxy.environment import Upstream
from refold.adapters.proxy.exchange import Answer, Exchange, RecordedSession
from refold.adapters.proxy.protocols import anthropic
from refold.adapters.proxy.recording import Limits, Recording
from refold.adapters.proxy.server import ProxyServer
from tests.support import raw_http
from tests.support.waiting import until

SECRET: Final = "the-secret-of-the-tests-12345678"


class AnyProtocol:
    """A protocol that matches every POST.  The recorder in memory reads no bodies."""

    LAST_LINES = anthropic.LAST_LINES

    def __init__(self, name: str) -> None:
        self.NAME = name

    def matches(self, method: str, path: str) -> bool:
        return method == "POST"

    def request(self, *_: object) -> Any:
        raise AssertionError

    def answer(self, *_: object, **__: object) -> Any:
        raise AssertionError


class MemoryRecorder:
    """Keeps exchanges.  A test can make it fail or wait.

    calls: ``begin`` or ``finish``, and the body of the request.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, bytes]] = []
        self.begun: list[Exchange] = []
        self.finished: list[tuple[Exchange, Answer]] = []
        self.closed = False
        self.error: Exception | None = None
        self.begin_error: Exception | None = None
        self.may_go_on = Event()
        self.may_go_on.set()

    def begin(self, exchange: Exchange) -> None:
        self._work()
        if self.begin_error is not None:
            raise self.begin_error
        self.begun.append(exchange)
        self.calls.append(("begin", exchange.body))

    def finish(self, exchange: Exchange, answer: Answer) -> None:
        self._work()
        self.finished.append((exchange, answer))
        self.calls.append(("finish", exchange.body))

    def sessions(self) -> Sequence[RecordedSession]:
        return []

    def close(self) -> None:
        self._work()
        self.closed = True

    def answers(self, count: int) -> list[Answer]:
        """Wait for this number of answers, and return them."""
        until(lambda: len(self.finished) >= count, f"{count} recorded answers")
        return [answer for _, answer in self.finished]

    def _work(self) -> None:
        self.may_go_on.wait()
        if self.error is not None:
            raise self.error


class Proxied:
    """A running proxy, its recorder, and the warnings that it printed."""

    def __init__(
        self, upstream_url: str, *, protocol: str = "anthropic-messages", **options: Any
    ) -> None:
        limits = options.pop("limits", Limits())
        self.recorder = MemoryRecorder()
        self.warnings: list[str] = []
        self.recording = Recording(
            self.recorder,
            self.warnings.append,
            begin_sec=options.pop("begin_sec", 60.0),  # a loaded machine is slow
            **options,
        )
        any_protocol = AnyProtocol(protocol)

        def protocol_of(method: str, path: str) -> AnyProtocol | None:
            return any_protocol if any_protocol.matches(method, path) else None

        upstreams = {"anthropic": Upstream("anthropic", upstream_url, "/v1")}
        self.server = ProxyServer(
            upstreams, protocol_of, self.recording, secret=SECRET, limits=limits
        )
        self.port = self.server.port

    def connect(self, host: str = "127.0.0.1") -> raw_http.Peer:
        """Connect to it."""
        return raw_http.connect(self.port, host)

    def head(self, line: bytes = b"", *headers: bytes) -> bytes:
        """Return the beginning of a request that the proxy serves."""
        line = line or b"POST /%s/anthropic/v1/messages HTTP/1.1" % SECRET.encode()
        host = b"host: 127.0.0.1:%d" % self.port
        return b"\r\n".join([line, host, *headers, b"", b""])

    def ask(
        self, body: bytes, *headers: bytes, line: bytes = b""
    ) -> tuple[bytes, list[tuple[bytes, bytes]], bytes]:
        """Send a request on a new connection, and return the answer."""
        length = b"content-length: %d" % len(body)
        with self.connect() as peer:
            peer.send(self.head(line, length, *headers) + body)
            return raw_http.read_message(peer.stream)

    def close(self) -> None:
        """Stop the server, and wait for the recorder."""
        self.recorder.may_go_on.set()
        self.server.stop()
        self.recording.close()


@contextmanager
def proxied(
    respond: raw_http.Respond, **options: Any
) -> Iterator[tuple[Proxied, raw_http.Server]]:
    """Run a proxy before a server that answers with ``respond``."""
    with raw_http.Server(respond) as server:
        proxy = Proxied(server.url, **options)
        try:
            yield proxy, server
        finally:
            proxy.close()
