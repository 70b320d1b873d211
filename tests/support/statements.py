"""The traffic between a store and its database: statements and round trips.

A proxy listens to PostgreSQL on the wire and counts the messages of the protocol, so no
driver can hide any.  SQLite has no wire; every connection of the process reports its
statements.
"""

from __future__ import annotations

import socket
import sqlite3
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Thread
from typing import Any, Final
from urllib.parse import quote

import pytest
from psycopg.conninfo import conninfo_to_dict

_CHUNK: Final = 1 << 16


@dataclass(frozen=True)
class Statement:
    """The text of a statement; on PostgreSQL with the types of its parameters."""

    text: str
    types: tuple[int, ...] = ()


@dataclass
class Recording:
    """Recorded statements; a round trip ends when every request is answered."""

    statements: list[Statement] = field(default_factory=list)
    round_trips: int = 0

    @property
    def counts(self) -> tuple[int, int]:
        """Return the number of statements and of round trips."""
        return len(self.statements), self.round_trips


class Listener:
    """Records statements and round trips while ``listen`` is active."""

    def __init__(self) -> None:
        self._recording: Recording | None = None

    @contextmanager
    def listen(self) -> Iterator[Recording]:
        """Record the statements and round trips in the block."""
        self._recording = recording = Recording()
        try:
            yield recording
        finally:
            self._recording = None

    def statement(self, statement: Statement) -> None:
        if self._recording is not None:
            self._recording.statements.append(statement)

    def answered(self) -> None:
        if self._recording is not None:
            self._recording.round_trips += 1


class Wire(Listener):
    """A PostgreSQL server that is reached through a proxy at ``url``."""

    def __init__(self, url: str) -> None:
        super().__init__()
        settings = conninfo_to_dict(url)
        self._host = str(settings.get("host") or "localhost")
        self._port = settings.get("port")
        self._door = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = [self._door]
        user, password = (
            quote(str(settings.get(key) or "")) for key in ("user", "password")
        )
        place = f"127.0.0.1:{self._door.getsockname()[1]}/{settings['dbname']}"
        plain = "sslmode=disable&gssencmode=disable"
        self.url = f"postgresql://{user}:{password}@{place}?{plain}"
        Thread(target=self._admit, daemon=True).start()

    def close(self) -> None:
        """Close all connections."""
        for connection in self._open:
            connection.close()

    def _admit(self) -> None:
        while True:
            try:
                client, _ = self._door.accept()
            except OSError:
                return
            server = self._reach()
            self._open += [client, server]
            for source, sink, heard in (
                (client, server, _FromClient(self)),
                (server, client, _FromServer(self)),
            ):
                Thread(target=_pump, args=(source, sink, heard), daemon=True).start()

    def _reach(self) -> socket.socket:
        if not self._host.startswith("/"):
            return socket.create_connection((self._host, int(self._port or 5432)))
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{self._host}/.s.PGSQL.{self._port or 5432}")
        return server


def _pump(
    source: socket.socket, sink: socket.socket, heard: Callable[[bytes], None]
) -> None:
    """Pass data on, and record it before the receiver can continue."""
    try:
        while data := source.recv(_CHUNK):
            heard(data)
            sink.sendall(data)
    except OSError:
        pass
    for connection in (source, sink):
        with suppress(OSError):
            # This also wakes a thread that still reads from it.
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()


class _FromServer:
    """The server's messages, each with a type, a length and a body."""

    typed = 1

    def __init__(self, ear: Listener) -> None:
        self._ear = ear
        self._rest = b""

    def __call__(self, data: bytes) -> None:
        self._rest += data
        while len(self._rest) >= self.typed + 4:
            (length,) = struct.unpack_from("!i", self._rest, self.typed)
            end = self.typed + length
            if len(self._rest) < end:
                return
            message = self._rest[:end]
            self._rest = self._rest[end:]
            self.message(message[: self.typed], message[self.typed + 4 :])

    def message(self, kind: bytes, _body: bytes) -> None:
        if kind == b"Z":  # ReadyForQuery: every request is answered
            self._ear.answered()


class _FromClient(_FromServer):
    """The client's messages; the first one, the startup, has no type."""

    typed = 0

    def __init__(self, ear: Listener) -> None:
        super().__init__(ear)
        self._prepared: dict[bytes, Statement] = {}
        self._bound: dict[bytes, Statement] = {}

    def message(self, kind: bytes, body: bytes) -> None:
        self.typed = 1
        if kind == b"Q":
            self._ear.statement(Statement(body[:-1].decode()))
        elif kind == b"P":
            name, text, rest = body.split(b"\0", 2)
            (count,) = struct.unpack_from("!h", rest)
            types = struct.unpack_from(f"!{count}I", rest, 2)
            self._prepared[name] = Statement(text.decode(), types)
        elif kind == b"B":
            portal, name, _ = body.split(b"\0", 2)
            self._bound[portal] = self._prepared[name]
        elif kind == b"E":
            self._ear.statement(self._bound[body.split(b"\0", 1)[0]])


class Traced(Listener):
    """SQLite in this process: every connection created from now on is recorded."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        connect = sqlite3.connect

        def traced(*args: Any, **named: Any) -> sqlite3.Connection:
            connection: sqlite3.Connection = connect(*args, **named)
            connection.set_trace_callback(self._ran)
            return connection

        patch.setattr(sqlite3, "connect", traced)
        patch.setattr("sqlite3.dbapi2.connect", traced)

    def _ran(self, text: str) -> None:
        # Statements of a trigger belong to the statement that fired it.
        if not text.startswith("--"):
            self.statement(Statement(text))
