"""Only programs that know the secret use the proxy, and no page in a browser."""

import socket

import pytest

from refold.adapters.proxy.security import new_secret
from tests.support.proxying import SECRET, Proxied, proxied
from tests.support.raw_http import read_message, reply

KNOWN = SECRET.encode()
PATH = b"/%s/anthropic/v1/messages" % KNOWN
NO_HINT = [(b"content-length", b"0")]


def ask(proxy: Proxied, line: bytes, *headers: bytes) -> tuple[bytes, object, bytes]:
    """Send a request with exactly these headers, and return the answer."""
    with proxy.connect() as peer:
        peer.send(b"\r\n".join([line, *headers, b"content-length: 0", b"", b""]))
        return read_message(peer.stream)


@pytest.mark.parametrize(
    "path",
    [
        b"/",
        b"/anthropic/v1/messages",
        b"/%s/anthropic/v1/messages" % KNOWN[:-1],
        b"/%sx/anthropic/v1/messages" % KNOWN,
        b"/%s/anthropic/v1/messages" % KNOWN.upper(),
        b"//%s/anthropic/v1/messages" % KNOWN,
        b"/x/../%s/anthropic/v1/messages" % KNOWN,
        b"/%%74%s/anthropic/v1/messages" % KNOWN[1:],
        b"*",
    ],
)
def test_a_wrong_secret_finds_nothing(path: bytes) -> None:
    with proxied(reply(b"")) as (proxy, server):
        host = b"host: 127.0.0.1:%d" % proxy.port
        line, headers, body = ask(proxy, b"POST %s HTTP/1.1" % path, host)

    assert line.startswith(b"HTTP/1.1 404")
    assert headers == NO_HINT
    assert body == b""
    assert not server.requests


@pytest.mark.parametrize(
    "header",
    [
        b"Origin: http://127.0.0.1",
        b"Origin: null",
        b"Sec-Fetch-Site: same-origin",
        b"Sec-Fetch-Site: none",
    ],
)
@pytest.mark.parametrize("method", [b"GET", b"POST", b"OPTIONS"])
def test_a_page_in_a_browser_is_refused(method: bytes, header: bytes) -> None:
    with proxied(reply(b"")) as (proxy, server):
        host = b"host: 127.0.0.1:%d" % proxy.port
        line, headers, _ = ask(proxy, b"%s %s HTTP/1.1" % (method, PATH), host, header)

    assert line.startswith(b"HTTP/1.1 403")
    assert headers == NO_HINT
    assert not server.requests


@pytest.mark.parametrize(
    "hosts",
    [
        [b"host: rebound.example.com"],
        [b"host: rebound.example.com:%d"],
        [b"host: 127.0.0.1"],
        [b"host: 127.0.0.1:1"],
        [b"host: 127.0.0.1.example.com:%d"],
        [b"host: 0.0.0.0:%d"],
        [b"host: [::1]:%d"],
    ],
)
def test_a_host_of_somebody_else_is_refused(hosts: list[bytes]) -> None:
    with proxied(reply(b"")) as (proxy, server):
        sent = [host.replace(b"%d", b"%d" % proxy.port) for host in hosts]
        line, headers, _ = ask(proxy, b"POST %s HTTP/1.1" % PATH, *sent)

    assert line.startswith(b"HTTP/1.1 403")
    assert headers == NO_HINT
    assert not server.requests


def test_node_and_localhost_are_served() -> None:
    with proxied(reply(b"")) as (proxy, _):
        host = b"host: LOCALHOST:%d" % proxy.port
        mode = b"sec-fetch-mode: cors"
        line, _, _ = ask(proxy, b"POST %s HTTP/1.1" % PATH, host, mode)

    assert line.startswith(b"HTTP/1.1 200")


def test_a_websocket_is_refused_so_that_clients_use_http() -> None:
    with proxied(reply(b"")) as (proxy, server):
        line, headers, _ = ask(
            proxy,
            b"GET %s HTTP/1.1" % PATH,
            b"host: 127.0.0.1:%d" % proxy.port,
            b"connection: Upgrade",
            b"upgrade: websocket",
            b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
            b"sec-websocket-version: 13",
        )

    assert line.startswith(b"HTTP/1.1 426")
    assert isinstance(headers, list)
    assert (b"upgrade", b"HTTP/1.1") in headers
    assert not server.requests


def test_another_upgrade_is_ignored() -> None:
    with proxied(reply(b"")) as (proxy, server):
        line, _, _ = ask(
            proxy,
            b"POST %s HTTP/1.1" % PATH,
            b"host: 127.0.0.1:%d" % proxy.port,
            b"connection: Upgrade, HTTP2-Settings",
            b"upgrade: h2c",
            b"http2-settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
        )

    assert line.startswith(b"HTTP/1.1 200")
    assert server.requests[0].header(b"http2-settings") is None


def test_an_unknown_provider_is_named_as_such() -> None:
    with proxied(reply(b"")) as (proxy, _):
        host = b"host: 127.0.0.1:%d" % proxy.port
        line, _, body = ask(proxy, b"POST /%s/other/v1 HTTP/1.1" % KNOWN, host)

    assert line.startswith(b"HTTP/1.1 404")
    assert b"anthropic" in body


def test_only_programs_of_this_machine_can_connect() -> None:
    with proxied(reply(b"")) as (proxy, _):
        address = proxy.server._socket.getsockname()

    assert address[0] == "127.0.0.1"
    assert proxy.server._socket.family == socket.AF_INET


def test_each_run_has_another_secret() -> None:
    secrets = {new_secret() for _ in range(100)}

    assert len(secrets) == 100
    assert {len(secret) for secret in secrets} == {32}


def test_nothing_with_the_content_of_a_request_is_in_a_repr() -> None:
    with proxied(reply(b"the answer")) as (proxy, _):
        proxy.ask(b"the request")
        proxy.recorder.answers(1)

    shown = repr(proxy.recorder.finished)
    assert "the answer" not in shown
    assert "the request" not in shown
