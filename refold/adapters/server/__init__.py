"""The HTTP server: operations under ``/v1``, a page for people, and MCP."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ipaddress import IPv6Address, ip_address, ip_network
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from refold.adapters.frameworks import import_extra
from refold.domain.errors import InvalidConfiguration, StoreUnavailable

if TYPE_CHECKING:
    from refold.store import SessionStore


class ServerOptions(NamedTuple):
    """The address of a server, its certificate, and the clients that it trusts.

    user:        the user of the token that a server without configured keys issues.
    certificate, key: files for TLS; both or neither.
    origins:     other sites whose pages may call ``/v1``.
    proxies:     addresses or networks of proxies; X-Forwarded-For and X-Forwarded-Proto
                 are accepted from these alone.
    """

    host: str
    port: int
    user: str
    certificate: Path | None = None
    key: Path | None = None
    origins: tuple[str, ...] = ()
    proxies: tuple[str, ...] = ()

    @property
    def is_loopback(self) -> bool:
        """Whether only programs of this machine can reach it."""
        with suppress(ValueError):
            return self.host == "localhost" or ip_address(self.host).is_loopback
        return False


# The packages of the extra ``server`` that pages need, and those that it adds to them.
_OF_PAGES: Final = ("jinja2", "markdown_it", "nh3")
_OF_SERVER: Final = ("fastapi", "jwt", "uvicorn")

_FIRST_SESSIONS: Final = 20  # some of them are internal, or erased

GRACE_SEC: Final = 3
"""The time that requests in progress have to end when the server stops."""

END_SEC: Final = 8.0
"""The longest time from a signal until the server has stopped.

It is longer than a store on SQLite waits for another writer, and shorter than the ten
seconds after which container runtimes kill a process.
"""

_GIVEN_UP: Final = (
    f"refold: gave up requests that waited for the database longer than {END_SEC:g} s\n"
)
_ORIGIN: Final = re.compile(
    r"(https?)://([a-z0-9](?:[a-z0-9._-]*[a-z0-9])?|\[[0-9a-f:.]+\])(?::(\d{1,5}))?",
    re.ASCII,
)
_PORTS: Final = {"http": 80, "https": 443}


def checked_origin(text: str) -> str:
    """Return an origin as browsers send it: scheme, host, and a port if it is unusual.

    Raises InvalidConfiguration for anything else, which no browser would send.
    """
    refusal = InvalidConfiguration(
        "an origin is http:// or https:// with a host and no path, such as "
        f"https://app.example.com:8443, not {text!r}"
    )
    match = _ORIGIN.fullmatch(text.lower())
    if match is None:
        raise refusal
    scheme, host, digits = match.groups()
    if host.startswith("["):
        try:
            IPv6Address(host[1:-1])
        except ValueError:
            raise refusal from None
    port = int(digits) if digits else _PORTS[scheme]
    if not 0 < port < 65_536:
        raise refusal
    if port == _PORTS[scheme]:
        return f"{scheme}://{host}"
    return f"{scheme}://{host}:{port}"


def checked_proxy(text: str) -> str:
    """Return an address or network of proxies.

    Raises InvalidConfiguration, also for the network of all addresses: any client could
    then choose the address under which its requests are counted.
    """
    try:
        network = ip_network(text)
    except ValueError:
        raise InvalidConfiguration(
            "a trusted proxy is an address or a network, such as 10.0.0.7 or "
            f"10.0.0.0/24, not {text!r}"
        ) from None
    if network.prefixlen == 0:
        raise InvalidConfiguration(
            f"{text} trusts every client: name the addresses of your proxies"
        )
    return str(network)


def uvicorn_config(gate: Any, options: ServerOptions) -> Any:
    """Return the configuration with which uvicorn serves the gate.

    Headers about the client are accepted from ``options.proxies`` alone.  Without any
    proxies, the address of the connection is the client's.
    """
    uvicorn = import_extra("uvicorn", "server")
    return uvicorn.Config(
        gate,
        host=options.host,
        port=options.port,
        ssl_certfile=options.certificate,
        ssl_keyfile=options.key,
        log_config=None,
        access_log=False,  # the store has its own
        server_header=False,
        proxy_headers=bool(options.proxies),
        forwarded_allow_ips=[checked_proxy(proxy) for proxy in options.proxies],
        timeout_keep_alive=15,
        timeout_graceful_shutdown=GRACE_SEC,
        h11_max_incomplete_event_size=65_536,
    )


def _check_address(options: ServerOptions) -> None:
    """Raise InvalidConfiguration for an address on which the server cannot listen.

    Otherwise uvicorn would print the system's error and end the process.
    """
    if not 0 <= options.port < 65_536:
        raise InvalidConfiguration(f"a port is 0 to 65535, not {options.port}")
    try:
        addresses = socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (socket.gaierror, UnicodeError):
        raise InvalidConfiguration(
            f"there is no address of {options.host!r}: name one of this machine with "
            "--host"
        ) from None
    for family, kind, protocol, _, address in addresses:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(address)
                probe.listen()
        except OSError as error:
            raise InvalidConfiguration(
                f"{options.host} port {options.port} cannot be listened on "
                f"({_reason(error)}): name another with --host or --port"
            ) from None


def _reason(error: OSError) -> str:
    """Return the system's reason for an error, in small letters."""
    return str(error.strerror or error).lower()


def _check_tls(options: ServerOptions) -> None:
    """Raise InvalidConfiguration for a certificate or key that TLS cannot use."""
    if options.certificate is None or options.key is None:
        return
    for option, path in (
        ("--tls-certificate", options.certificate),
        ("--tls-key", options.key),
    ):
        try:
            path.read_bytes()
        except OSError as error:
            reason = error.strerror
            raise InvalidConfiguration(f"{option} {path}: {reason}") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Without a password, an encrypted key would prompt for one on the terminal.
        context.load_cert_chain(options.certificate, options.key, password="")
    except ssl.SSLError:
        raise InvalidConfiguration(
            f"{options.certificate} and {options.key} are not a certificate and key in "
            "PEM that belong together"
        ) from None


_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class _Stopped(BaseException):
    """Raised in the main thread by a signal that arrives while uvicorn handles none."""


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """End the block, without an error, at the first SIGINT or SIGTERM.

    uvicorn handles signals only while it runs, which begins seconds after the start.
    When it has shut down, it raises each signal again.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread can handle signals
        return

    def stop(_number: int, _frame: object) -> None:
        raise _Stopped

    previous = {number: signal.signal(number, stop) for number in _STOP_SIGNALS}
    try:
        with suppress(_Stopped):
            yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _end_process_in(seconds: float) -> None:
    """End this process ``seconds`` from now, if it still runs then.

    A request can wait for a lock of the database without limit, and its thread cannot
    be stopped.  The effect is that of a crash: acknowledged events are stored, and the
    database may or may not complete a request in progress.
    """

    def end() -> None:
        stderr = sys.__stderr__
        if stderr is not None:
            # Never wait for a reader of stderr, which may be gone.
            _, writable, _ = select.select([], [stderr.fileno()], [], 0)
            if writable:
                os.write(stderr.fileno(), _GIVEN_UP.encode())
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def check_page_extra() -> None:
    """Raise InvalidConfiguration if a package that pages need is not installed."""
    for module in _OF_PAGES:
        import_extra(module, "server")


def check(options: ServerOptions) -> None:
    """Raise InvalidConfiguration if a server cannot start with these options.

    The check needs no store, so a program can make it before it creates one.
    """
    check_page_extra()
    for module in _OF_SERVER:
        import_extra(module, "server")
    from refold.adapters.server.access_tokens import verifier_of

    if (options.certificate is None) != (options.key is None):
        raise InvalidConfiguration("TLS needs both --tls-certificate and --tls-key")
    _check_tls(options)
    if not (verifier_of().configured or options.is_loopback):
        raise InvalidConfiguration(
            "a server that others reach needs keys that verify their tokens: set "
            "REFOLD_JWKS or REFOLD_TOKEN_SECRET_FILE, or listen on 127.0.0.1"
        )
    for origin in options.origins:
        checked_origin(origin)
    for proxy in options.proxies:
        checked_proxy(proxy)
    _check_address(options)


def serve(
    store: SessionStore, options: ServerOptions, print_line: Callable[[str], object]
) -> None:
    """Serve the store until SIGINT or SIGTERM, which may also arrive during the start.

    print_line: called with the address, and with a token if the server issues one.

    A server without configured keys listens on loopback alone, and prints a token that
    is valid for one day.

    Requests in progress have GRACE_SEC to end.  If the process still runs END_SEC after
    the signal, it exits with 1.

    Raises InvalidConfiguration.
    """
    with _stopped_by_signals():
        _serve(store, options, print_line)


def _other_user(store: SessionStore, user_id: str) -> str | None:
    """Return a user with sessions, if this user has none."""
    with suppress(StoreUnavailable):  # the role may read one user at a time
        for owner in (user_id, None):
            for info in store.log.sessions(owner, limit=_FIRST_SESSIONS):
                if not info.is_erased_or_internal:
                    return None if owner == user_id else info.user_id
    return None


def _serve(
    store: SessionStore, options: ServerOptions, print_line: Callable[[str], object]
) -> None:
    """Serve the store until uvicorn ends."""
    check(options)
    uvicorn = import_extra("uvicorn", "server")
    from refold.adapters.server.access_tokens import SCOPES, verifier_of
    from refold.adapters.server.app import Limits, application
    from refold.adapters.server.run_pages import warm_up

    verifier = verifier_of()
    origins = tuple(checked_origin(origin) for origin in options.origins)
    limits = Limits(secure=options.certificate is not None, origins=origins)

    class Server(uvicorn.Server):  # type: ignore[misc,name-defined]  # it is loaded late
        """Prints its address when it has started to listen."""

        async def startup(self, sockets: object = None) -> None:
            await super().startup(sockets=sockets)
            if not self.started:
                return
            port = self.servers[0].sockets[0].getsockname()[1]
            scheme = "https" if options.certificate else "http"
            host = f"[{options.host}]" if ":" in options.host else options.host
            print_line(f"{scheme}://{host}:{port}")
            if not verifier.configured:
                token = verifier.mint(options.user, SCOPES)
                print_line(
                    f"token of {options.user} for one day, shown only once: {token}"
                )
                other = _other_user(store, options.user)
                if other is not None:
                    print_line(
                        f"user {options.user!r} has no sessions in this store: "
                        f"--user {quote(other)} prints a token of {other}"
                    )
            # The thread delays neither the start nor the end of the process.
            threading.Thread(target=warm_up, name="refold-pages", daemon=True).start()

        async def shutdown(self, sockets: object = None) -> None:
            _end_process_in(END_SEC)
            gate.close()
            await super().shutdown(sockets=sockets)

    gate = application(store, verifier, limits)
    Server(uvicorn_config(gate, options)).run()
