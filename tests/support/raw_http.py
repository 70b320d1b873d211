"""A server and a client of HTTP/1.1 on plain sockets, for tests that compare bytes.

Each connection of the server has a thread.  A test decides what it sends and when.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from ssl import SSLContext
from threading import Thread
from typing import Any, BinaryIO, Final, Self, TypeAlias

CHUNKED: Final = b"transfer-encoding: chunked"


@dataclass
class Request:
    """A request as it arrived."""

    line: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes

    def header(self, name: bytes) -> bytes | None:
        """Return the value of a header; None without it."""
        values = [value for present, value in self.headers if present.lower() == name]
        return b", ".join(values) if values else None


@dataclass
class Peer:
    """A connection to the other side.  As a context, it is closed at the end."""

    socket: socket.socket
    stream: BinaryIO

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, data: bytes) -> None:
        """Send all the bytes."""
        self.socket.sendall(data)

    def send_chunk(self, data: bytes) -> None:
        """Send a chunk of a chunked body; the empty one ends it."""
        self.send(b"%x\r\n%s\r\n" % (len(data), data))

    def wait_until_closed(self) -> None:
        """Wait until the other side closes the connection."""
        with suppress(OSError):
            while self.stream.read(65_536):
                pass

    def close(self) -> None:
        """Close the connection."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.stream.close()
        self.socket.close()


Respond: TypeAlias = Callable[[Peer, Request], None]


def reply(body: bytes, *headers: bytes, status: bytes = b"200 OK") -> Respond:
    """Return a responder that sends this answer with its length."""

    def respond(peer: Peer, _request: Request) -> None:
        lines = [b"HTTP/1.1 " + status, b"content-length: %d" % len(body), *headers]
        peer.send(b"\r\n".join([*lines, b"", b""]) + body)

    return respond


@dataclass
class Server:
    """A server on a free port of loopback.  ``respond`` is called in a thread.

    tls: the context of connections with TLS.
    """

    respond: Respond
    tls: SSLContext | None = None
    requests: list[Request] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._socket.getsockname()[1]
        self._peers: list[Peer] = []
        Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        for peer in self._peers:
            peer.close()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def _accept(self) -> None:
        with suppress(OSError):  # the socket was closed
            while True:
                accepted, _ = self._socket.accept()
                thread = Thread(target=self._serve, args=(accepted,), daemon=True)
                thread.start()

    def _serve(self, accepted: socket.socket) -> None:
        # ValueError: the test closed the connection.
        with suppress(OSError, EOFError, ValueError):
            if self.tls is not None:
                accepted = self.tls.wrap_socket(accepted, server_side=True)
            peer = Peer(accepted, accepted.makefile("rb"))
            self._peers.append(peer)
            while True:
                request = Request(*read_message(peer.stream))
                self.requests.append(request)
                self.respond(peer, request)


def read_message(stream: Any) -> tuple[bytes, list[tuple[bytes, bytes]], bytes]:
    """Read the first line, the headers and the body of a message.

    A chunked body is returned without its framing.

    Raises EOFError if the connection closes before the end of the message.
    """
    line = _line(stream)
    headers: list[tuple[bytes, bytes]] = []
    while header := _line(stream):
        name, _, value = header.partition(b":")
        headers.append((name, value.strip()))
    by_name = {name.lower(): value for name, value in headers}
    body = b""
    if by_name.get(b"transfer-encoding") == b"chunked":
        while size := int(_line(stream), 16):
            body += _exactly(stream, size)
            _line(stream)
        _line(stream)
    else:
        body = _exactly(stream, int(by_name.get(b"content-length", 0)))
    return line, headers, body


def _line(stream: Any) -> bytes:
    line: bytes = stream.readline()
    if not line.endswith(b"\r\n"):
        raise EOFError
    return line[:-2]


def _exactly(stream: Any, count: int) -> bytes:
    data: bytes = stream.read(count)
    if len(data) < count:
        raise EOFError
    return data


def connect(port: int, host: str = "127.0.0.1") -> Peer:
    """Connect to a port of loopback."""
    connected = socket.create_connection((host, port))
    return Peer(connected, connected.makefile("rb"))
