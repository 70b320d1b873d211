"""Connections of clients that close their sending half and still read."""

from __future__ import annotations

import asyncio
from ipaddress import IPv4Address
from itertools import chain, repeat
from pathlib import Path
from sys import byteorder
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol

# Linux lists all TCP connections here, each with the inode of its socket.
_CONNECTIONS: Final = Path("/proc/net/tcp")
# A client may connect to an IPv4 address with a socket of IPv6, as Java does.
_CONNECTIONS_OF_IPV6: Final = Path("/proc/net/tcp6")
# The bytes before those of an IPv4 address, which make it one of IPv6.
_MAPPED: Final = b"\0" * 10 + b"\xff\xff"
# The inode of a connection whose socket was closed.
_NO_INODE: Final = "0"
# A client that closes its connection may close its sending half just before.
_FIRST_PAUSE_SEC: Final = 0.1
_PAUSE_SEC: Final = 1.0


class HalfClosedProtocol(H11Protocol):
    """Answers a client that has closed its sending half, if its socket is still open.

    A client that closes its whole connection sends the same.  Only the system knows
    whether the socket is open.  Where it does not tell, the client counts as gone.
    """

    _is_half_closed = False
    _next_check: asyncio.TimerHandle | None = None

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio reads the value
        """Return whether the connection stays open, until its answer is complete."""
        if not self._awaits_answer() or not self._client_is_there():
            return False
        if not self._is_half_closed:
            self._is_half_closed = True
            pauses = chain([_FIRST_PAUSE_SEC], repeat(_PAUSE_SEC))
            self._check_after(pauses)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the checks."""
        if self._next_check is not None:
            self._next_check.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Close the connection after the last answer."""
        super().on_response_complete()
        if self._is_half_closed and not self._awaits_answer():
            self.transport.close()

    def _awaits_answer(self) -> bool:
        """Whether a whole request waits for the rest of its answer."""
        cycle = self.cycle
        if cycle is None or self.transport.is_closing():
            return False
        return not cycle.more_body and not cycle.response_complete

    def _client_is_there(self) -> bool:
        """Whether the client's socket is open."""
        if self.client is None or self.server is None or self.server[1] is None:
            return False
        return _has_open_socket(self.client, (self.server[0], self.server[1]))

    def _check_after(self, pauses: chain[float]) -> None:
        """Close the connection as soon as the client has closed its socket."""

        def check() -> None:
            if self._client_is_there():
                self._check_after(pauses)
            else:
                self.transport.abort()

        self._next_check = self.loop.call_later(next(pauses), check)


def _has_open_socket(local: tuple[str, int], remote: tuple[str, int]) -> bool:
    """Whether a program has the socket of a connection of this machine open.

    Both addresses are of IPv4, each with a port.  False if the system does not say.
    """
    try:
        local_address = IPv4Address(local[0])
        remote_address = IPv4Address(remote[0])
    except ValueError:
        return False
    inode = _inode(
        _CONNECTIONS,
        _listed(local_address.packed, local[1]),
        _listed(remote_address.packed, remote[1]),
    )
    if inode is None:
        inode = _inode(
            _CONNECTIONS_OF_IPV6,
            _listed(_MAPPED + local_address.packed, local[1]),
            _listed(_MAPPED + remote_address.packed, remote[1]),
        )
    return inode is not None and inode != _NO_INODE


def _inode(connections: Path, local: str, remote: str) -> str | None:
    """Return the inode of a listed connection; None if the list does not have it."""
    try:
        lines = connections.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        fields = line.split()
        if fields[1:3] == [local, remote] and len(fields) > 9:
            return fields[9]
    return None


def _listed(address: bytes, port: int) -> str:
    """Return an address and a port as a list of connections has them."""
    listed = ""
    # The lists have each four bytes as a number of this machine.
    for start in range(0, len(address), 4):
        number = int.from_bytes(address[start : start + 4], byteorder)
        listed += f"{number:08X}"
    return f"{listed}:{port:04X}"
