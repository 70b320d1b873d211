"""Requests to providers: their address and headers, and errors of connections."""

from __future__ import annotations

import logging
import os
import re
import socket
import ssl
from collections.abc import AsyncIterator, Iterable, Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import httpx2

from refold.adapters.proxy import encodings
from refold.adapters.proxy.environment import CHATGPT, Upstream
from refold.adapters.proxy.recording import Limits
from refold.domain.errors import InvalidConfiguration

Headers: TypeAlias = list[tuple[bytes, bytes]]

# Headers about the exact bytes of a body, which a body with other texts does not have.
_OF_BYTES: Final = frozenset(
    {
        b"accept-ranges",
        b"content-digest",
        b"content-encoding",
        b"content-length",
        b"content-md5",
        b"digest",
        b"etag",
        b"repr-digest",
    }
)
# Headers of one connection, which are not passed on.
_OF_CONNECTION: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_HAS_VERSION: Final = re.compile(r"/v\d[\w.]*(?::|/|$)")
_AZURE_PREFIX: Final = re.compile(r"/openai(/deployments/[^/]+)?(?=/)")
_ACCOUNT: Final = b"chatgpt-account-id"
_LOOPBACK: Final = ("all://127.0.0.1", "all://localhost", "all://[::1]")
_HIGHEST_STATUS: Final = 599
_IDLE_SEC: Final = 5.0  # shorter than providers keep an idle connection


class Target(NamedTuple):
    """Where a request goes.

    path:       on the upstream's host, without the query.
    documented: as the provider documents it, such as ``/v1/messages``.
    """

    upstream: Upstream
    path: str
    documented: str


def target_of(
    upstreams: Mapping[str, Upstream], path: str, headers: Headers
) -> Target | None:
    """Return where a request goes; None if no upstream has its name.

    path: on the proxy, behind the secret, such as ``anthropic/v1/messages``.
    """
    name, slash, rest = path.partition("/")
    rest = f"{slash}{rest}"
    has_account = any(header == _ACCOUNT for header, _ in headers)
    if name == "openai" and has_account and CHATGPT in upstreams:
        name = CHATGPT
        rest = rest.removeprefix("/v1")
    upstream = upstreams.get(name)
    if upstream is None:
        return None
    if upstream.version and not _HAS_VERSION.match(rest):
        rest = f"{upstream.version}{rest}"
    documented = rest
    if name == "azure":
        documented = _AZURE_PREFIX.sub("", rest)
    if name in (CHATGPT, "azure", "openai") and not _HAS_VERSION.match(documented):
        documented = f"/v1{documented}"
    return Target(upstream, f"{urlsplit(upstream.url).path}{rest}", documented)


def request_headers(headers: Headers, *, is_recorded: bool) -> Headers:
    """Return the headers of a client that the provider gets.

    is_recorded: whether the answer must be in an encoding that the proxy can decode.
    """
    passed: Headers = []
    for name, value in _of_message(headers):
        if name in (b"host", b"expect"):
            continue
        if name == b"accept-encoding" and is_recorded:
            passed.append((name, _decodable(value)))
        else:
            passed.append((name, value))
    return passed


def answer_headers(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return the headers of a provider that the client gets."""
    return _of_message(list(headers))


def without_byte_facts(headers: Headers) -> Headers:
    """Return headers for a body whose texts the proxy changes."""
    return [(name, value) for name, value in headers if name.lower() not in _OF_BYTES]


def redacted_headers(headers: Headers) -> Headers:
    """Return the headers of a client for a body with placeholders.

    The answer must have no encoding, so that the proxy can change its texts.
    """
    passed = [
        (name, value)
        for name, value in request_headers(headers, is_recorded=True)
        if name != b"accept-encoding"
    ]
    return [*without_byte_facts(passed), (b"accept-encoding", b"identity")]


def _of_message(headers: Headers) -> Headers:
    """Return the headers that do not concern one connection alone.

    A length beside Transfer-Encoding means nothing, and may differ from the body's.
    """
    dropped = set(_OF_CONNECTION)
    for name, value in headers:
        if name.lower() == b"connection":
            dropped |= {token.strip().lower() for token in value.split(b",")}
        elif name.lower() == b"transfer-encoding":
            dropped.add(b"content-length")
    return [(name, value) for name, value in headers if name.lower() not in dropped]


def _decodable(accepted: bytes) -> bytes:
    """Return an Accept-Encoding without the encodings that the proxy cannot decode."""
    kept: list[bytes] = []
    for item in accepted.split(b","):
        name = item.partition(b";")[0].strip().lower().decode("latin-1")
        if name in encodings.DECODABLE:
            kept.append(item.strip())
    return b", ".join(kept) or b"identity"


class UpstreamLost(Exception):
    """The provider could not be reached, or its connection broke.

    The message says what happened, for the client and for the record.
    """


class Client:
    """Sends requests to providers, over connections that it keeps.

    It uses the HTTP proxies and the certificates that the environment names.

    Raises InvalidConfiguration if it cannot use them.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        # Messages of these libraries contain URLs, and a URL can contain a key.
        for library in ("httpx2", "httpcore2"):
            logging.getLogger(library).setLevel(logging.WARNING)
        try:
            self._client = httpx2.AsyncClient(
                verify=_tls_context(),
                mounts=dict.fromkeys(_LOOPBACK),  # without an HTTP proxy
                timeout=httpx2.Timeout(
                    connect=limits.connect_sec,
                    read=limits.read_sec,
                    write=limits.read_sec,
                    pool=None,
                ),
                limits=httpx2.Limits(keepalive_expiry=_IDLE_SEC),
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            )
        except (ImportError, ValueError, httpx2.InvalidURL) as error:
            raise InvalidConfiguration(
                f"an HTTP proxy of the environment cannot be used: {error}"
            ) from None

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def send(
        self,
        method: str,
        target: Target,
        query: bytes,
        headers: Headers,
        content: bytes | AsyncIterator[bytes],
    ) -> httpx2.Response:
        """Send a request; return when the headers of the answer have arrived.

        Raises UpstreamLost.
        """
        raw_target = target.path.encode("latin-1")
        if query:
            raw_target += b"?" + query
        request = httpx2.Request(
            method,
            target.upstream.url,
            headers=headers,
            content=content,
            extensions={"target": raw_target},
        )
        try:
            response = await self._client.send(request, stream=True)
        except httpx2.HTTPError as error:
            raise self._lost(target, error) from error
        if response.status_code > _HIGHEST_STATUS:
            await response.aclose()
            host = urlsplit(target.upstream.url).netloc
            raise UpstreamLost(
                f"{host} answered with the status {response.status_code}, which HTTP "
                "does not have"
            )
        return response

    def check_not_encoded(self, target: Target, response: httpx2.Response) -> None:
        """Raise UpstreamLost for an answer in an encoding, if none was accepted."""
        encoding = response.headers.get("content-encoding", "")
        if encodings.names(encoding):
            host = urlsplit(target.upstream.url).hostname
            raise UpstreamLost(
                f"{host} compressed its answer with {encoding}, although the proxy "
                "asked for no compression: values cannot be given back in it"
            )

    async def chunks(
        self, target: Target, response: httpx2.Response
    ) -> AsyncIterator[bytes]:
        """Return the body of an answer in pieces, as they arrive, with its encoding.

        Raises UpstreamLost.
        """
        try:
            async for chunk in response.aiter_raw():
                yield chunk
        except httpx2.HTTPError as error:
            raise self._lost(target, error) from error

    def _lost(self, target: Target, error: httpx2.HTTPError) -> UpstreamLost:
        """Return the error of a connection, in words."""
        host = urlsplit(target.upstream.url).netloc
        match error:
            case httpx2.ConnectTimeout():
                seconds = self._limits.connect_sec
                reason = f"{host} accepted no connection within {seconds:g} s"
            case httpx2.TimeoutException():
                reason = f"{host} did nothing for {self._limits.read_sec:g} s"
            case httpx2.ConnectError() | httpx2.ProxyError():
                reason = f"{host} cannot be reached: {_system_reason(error)}"
            case httpx2.NetworkError():
                reason = f"the connection to {host} broke: {_system_reason(error)}"
            case httpx2.RemoteProtocolError() if _is_early_end(error):
                reason = f"{host} closed the connection before the end of its answer"
            case httpx2.RemoteProtocolError():
                reason = f"{host} sent an answer that is not valid HTTP"
            case _:
                reason = f"the request to {host} failed: {type(error).__name__}"
        return UpstreamLost(reason)


def _is_early_end(error: httpx2.RemoteProtocolError) -> bool:
    """Whether the other side closed the connection, and did not send invalid HTTP.

    Only the message of the library tells the two apart.
    """
    message = str(error).lower()
    return "disconnected" in message or "closed connection" in message


def _tls_context() -> ssl.SSLContext:
    """Return the context for connections to providers.

    Clients in Node.js and Python also trust the certificates in these files, which
    companies set for their own authorities.

    Raises InvalidConfiguration if a file cannot be used.
    """
    context = httpx2.create_ssl_context()
    for name in ("NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE"):
        path = os.environ.get(name)
        if not path:
            continue
        try:
            context.load_verify_locations(path)
        except OSError as error:  # SSLError is one
            raise InvalidConfiguration(
                f"the certificates in {name} cannot be used: {error.strerror or error}"
            ) from None
    return context


def _system_reason(error: BaseException) -> str:
    """Return the reason of the operating system or of TLS for an error."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted ({cause.verify_message})"
        if isinstance(cause, ssl.SSLError):
            return f"TLS failed ({cause.reason})"
        if isinstance(cause, socket.gaierror):
            return "there is no address of this name"
        if isinstance(cause, OSError) and cause.errno:
            return os.strerror(cause.errno).lower()
        cause = cause.__cause__ or cause.__context__
    return str(error).lower() or type(error).__name__
