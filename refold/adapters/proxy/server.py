"""The server of the proxy, which runs in a thread and listens on loopback alone."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Mapping
from threading import Thread
from typing import Final

import uvicorn

from refold.adapters.proxy.app import ProtocolOf, Proxy
from refold.adapters.proxy.environment import Upstream
from refold.adapters.proxy.forwarding import Client
from refold.adapters.proxy.half_closed import HalfClosedProtocol
from refold.adapters.proxy.recording import Limits, Recording
from refold.adapters.proxy.security import Guard
from refold.domain.errors import InvalidConfiguration

HOST: Final = "127.0.0.1"
# Clients keep idle connections for up to four minutes, and fail if the server closes
# one just when they use it.
_KEEP_ALIVE_SEC: Final = 300
_GRACE_SEC: Final = 3
_MOST_HEADER_BYTES: Final = 256 << 10


class ProxyServer:
    """A proxy that listens from its construction until ``stop``.

    secret: the first part of its paths.
    port:   0 chooses a free one.

    Raises InvalidConfiguration if it cannot listen on the port.
    """

    def __init__(
        self,
        upstreams: Mapping[str, Upstream],
        protocol_of: ProtocolOf,
        recording: Recording | None,
        *,
        secret: str,
        port: int = 0,
        limits: Limits = Limits(),  # noqa: B008  # it is frozen
    ) -> None:
        # The uncaught errors in its messages could contain text of a request.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL + 1)
        client = Client(limits)
        self._socket = _listening(port)
        self.port: int = self._socket.getsockname()[1]
        self.address = f"http://{HOST}:{self.port}/{secret}"
        self.proxy = Proxy(
            Guard(secret, self.port),
            upstreams,
            client,
            protocol_of,
            recording,
            limits,
        )
        self._server = uvicorn.Server(
            uvicorn.Config(
                self.proxy,
                http=HalfClosedProtocol,
                lifespan="off",
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                timeout_keep_alive=_KEEP_ALIVE_SEC,
                timeout_graceful_shutdown=_GRACE_SEC,
                h11_max_incomplete_event_size=_MOST_HEADER_BYTES,
            )
        )
        self._thread = Thread(target=self._run, name="refold-proxy", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop listening.  Requests in progress have a few seconds to end."""
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()

    def wait(self) -> None:
        """Wait until the server ends.  A signal can interrupt the wait."""
        self._thread.join()

    def _run(self) -> None:
        """Serve until ``stop``."""
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        """Serve until ``stop``, then close the connections to providers."""
        try:
            await self._server.serve(sockets=[self._socket])
        finally:
            await self.proxy.client.close()


def _listening(port: int) -> socket.socket:
    """Return a socket that listens on loopback.  Raises InvalidConfiguration."""
    if not 0 <= port < 65_536:
        raise InvalidConfiguration(f"a port is 0 to 65535, not {port}")
    try:
        return socket.create_server((HOST, port), backlog=512)
    except OSError as error:
        reason = str(error.strerror or error).lower()
        if error.errno == errno.EADDRINUSE:
            reason = "another program uses it"
        raise InvalidConfiguration(
            f"the proxy cannot listen on port {port} ({reason}): name another with "
            "--port"
        ) from None
