"""After any failure, the client gets a clear answer, and the record has the cause."""

import json
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from refold.adapters.proxy.exchange import Answer
from refold.adapters.proxy.recording import Limits
from refold.domain.errors import InvalidConfiguration, StoreUnavailable
from tests.support.proxying import Proxied, proxied
from tests.support.raw_http import CHUNKED, Peer, Request, Server, read_message, reply
from tests.support.waiting import PATIENCE_SEC, until

REQUEST = b'{"model": "a-model", "messages": []}'
FORMS: list[tuple[str, Any]] = [
    ("anthropic-messages", lambda error: error["error"]["message"]),
    ("openai-chat", lambda error: error["error"]["message"]),
    ("openai-responses", lambda error: error["error"]["message"]),
    ("gemini", lambda error: error["error"]["message"]),
    ("ollama", lambda error: error["error"]),
]


@pytest.mark.parametrize(("protocol", "message_of"), FORMS)
def test_an_unreachable_provider_is_an_error_in_its_form(
    protocol: str, message_of: Any
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    proxy = Proxied(f"http://127.0.0.1:{port}", protocol=protocol)
    line, headers, body = proxy.ask(REQUEST)
    (answer,) = proxy.recorder.answers(1)
    proxy.close()

    message = message_of(json.loads(body))
    assert line.startswith(b"HTTP/1.1 502")
    assert (b"content-type", b"application/json") in headers
    assert message == f"127.0.0.1:{port} cannot be reached: connection refused"
    assert answer.ending == "lost"
    assert answer.status is None
    assert answer.error == message


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate for 127.0.0.1 with its key, which nobody trusts yet."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a provider")])
    address = x509.IPAddress(IPv4Address("127.0.0.1"))
    now = datetime.now(UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "certificate.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + built.public_bytes(serialization.Encoding.PEM)
    )
    return path


def ask_with_tls(certificate: Path) -> tuple[bytes, bytes]:
    """Ask a provider with this certificate; return the first line and the body."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    with Server(reply(b"an answer"), tls) as server:
        proxy = Proxied(f"https://127.0.0.1:{server.port}")
        line, _, body = proxy.ask(REQUEST)
        proxy.close()
    return line, body


def test_a_certificate_that_is_not_trusted_is_an_error(certificate: Path) -> None:
    line, body = ask_with_tls(certificate)

    assert line.startswith(b"HTTP/1.1 502")
    message = json.loads(body)["error"]["message"]
    assert "its certificate is not trusted (self-signed certificate)" in message


@pytest.mark.parametrize(
    "variable", ["NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"]
)
def test_a_certificate_that_the_environment_names_is_trusted(
    certificate: Path, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, str(certificate))

    line, body = ask_with_tls(certificate)

    assert line.startswith(b"HTTP/1.1 200")
    assert body == b"an answer"


def test_certificates_that_cannot_be_read_are_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NODE_EXTRA_CA_CERTS", str(tmp_path / "missing.pem"))

    with pytest.raises(InvalidConfiguration, match="NODE_EXTRA_CA_CERTS"):
        Proxied("https://127.0.0.1:1")


def test_a_provider_that_says_nothing_is_an_error() -> None:
    def respond(peer: Peer, _: Request) -> None:
        peer.wait_until_closed()

    with proxied(respond, limits=Limits(read_sec=0.1)) as (proxy, _):
        line, _, body = proxy.ask(REQUEST)
        (answer,) = proxy.recorder.answers(1)

    assert line.startswith(b"HTTP/1.1 502")
    assert "did nothing for 0.1 s" in json.loads(body)["error"]["message"]
    assert answer.ending == "lost"


def test_a_provider_that_closes_without_an_answer_is_an_error() -> None:
    with proxied(lambda peer, _: peer.close()) as (proxy, server):
        line, _, body = proxy.ask(REQUEST)

    assert line.startswith(b"HTTP/1.1 502")
    assert "before the end of its answer" in json.loads(body)["error"]["message"]
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "sent",
    [b"hello\r\n\r\n", b"HTTP/2 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\na b: c\r\n\r\n"],
)
def test_an_answer_that_is_not_http_is_an_error(sent: bytes) -> None:
    with proxied(lambda peer, _: peer.send(sent)) as (proxy, _):
        line, _, body = proxy.ask(REQUEST)

    assert line.startswith(b"HTTP/1.1 502")
    assert "not valid HTTP" in json.loads(body)["error"]["message"]


def test_a_status_that_http_does_not_have_is_an_error() -> None:
    with proxied(reply(b"", status=b"999 Odd")) as (proxy, _):
        line, _, body = proxy.ask(REQUEST)
        (answer,) = proxy.recorder.answers(1)

    assert line.startswith(b"HTTP/1.1 502")
    assert "the status 999" in json.loads(body)["error"]["message"]
    assert answer.ending == "lost"


@pytest.mark.parametrize("framing", [CHUNKED, b"content-length: 100"])
def test_an_answer_that_breaks_off_breaks_off_for_the_client(framing: bytes) -> None:
    def respond(peer: Peer, _: Request) -> None:
        peer.send(b"HTTP/1.1 200 OK\r\n%s\r\n\r\n" % framing)
        if framing == CHUNKED:
            peer.send_chunk(b"the beginning")
        else:
            peer.send(b"the beginning")
        peer.close()

    with proxied(respond) as (proxy, _):
        with pytest.raises(EOFError):
            proxy.ask(REQUEST)
        (answer,) = proxy.recorder.answers(1)

    assert answer.ending == "lost"
    assert answer.status == 200
    assert answer.body == b"the beginning"
    assert not answer.complete


def test_a_client_that_closes_ends_the_request_at_the_provider() -> None:
    is_closed = Event()

    def respond(peer: Peer, _: Request) -> None:
        peer.send(b"HTTP/1.1 200 OK\r\n%s\r\n\r\n" % CHUNKED)
        peer.send_chunk(b"the beginning")
        peer.wait_until_closed()
        is_closed.set()

    with proxied(respond) as (proxy, _):
        peer = proxy.connect()
        peer.send(proxy.head(b"", b"content-length: 2") + b"{}")
        received = b""
        while b"the beginning" not in received:
            received += peer.socket.recv(65_536)
        peer.close()
        assert is_closed.wait(PATIENCE_SEC)
        (answer,) = proxy.recorder.answers(1)

    assert answer.ending == "cancelled"
    assert answer.body == b"the beginning"


@contextmanager
def unanswered_request() -> Iterator[tuple[Peer, Callable[[], Answer]]]:
    """Send a request that the provider leaves open until the proxy closes it.

    Yields the client's connection, and a function that waits for the proxy to close the
    request, and returns the recorded answer.
    """
    is_asked = Event()
    is_closed = Event()

    def respond(peer: Peer, _: Request) -> None:
        is_asked.set()
        peer.wait_until_closed()
        is_closed.set()

    def recorded_answer() -> Answer:
        assert is_closed.wait(PATIENCE_SEC)
        (answer,) = proxy.recorder.answers(1)
        return answer

    with proxied(respond) as (proxy, _):
        peer = proxy.connect()
        peer.send(proxy.head(b"", b"content-length: 2") + b"{}")
        assert is_asked.wait(PATIENCE_SEC)
        yield peer, recorded_answer


def test_a_client_that_closes_before_the_answer_ends_the_request() -> None:
    with unanswered_request() as (peer, recorded_answer):
        peer.close()
        answer = recorded_answer()

    assert answer.ending == "cancelled"
    assert answer.status is None


# Both are the loopback of IPv4; a client reaches the second by a socket of IPv6.
LOOPBACKS = ["127.0.0.1", "::ffff:127.0.0.1"]


@pytest.mark.parametrize("host", LOOPBACKS)
@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_a_client_that_closes_its_sending_half_gets_its_answer(
    version: bytes, host: str
) -> None:
    is_asked = Event()
    may_answer = Event()

    def respond(peer: Peer, request: Request) -> None:
        is_asked.set()
        assert may_answer.wait(60)
        reply(b"an answer")(peer, request)

    with proxied(respond) as (proxy, _):
        peer = proxy.connect(host)
        head = proxy.head(b"", b"content-length: 2")
        peer.send(head.replace(b"HTTP/1.1", b"HTTP/" + version) + b"{}")
        assert is_asked.wait(60)
        peer.socket.shutdown(socket.SHUT_WR)
        may_answer.set()
        (answer,) = proxy.recorder.answers(1)
        received = peer.socket.makefile("rb").read()  # up to the end of the connection
        peer.close()

    assert received.startswith(b"HTTP/1.1 200 OK\r\n")
    assert received.endswith(b"an answer")
    assert answer.ending == "complete"
    assert answer.body == b"an answer"


@pytest.mark.parametrize("host", LOOPBACKS)
def test_a_client_that_closes_its_sending_half_early_still_gets_its_answer(
    host: str,
) -> None:
    with proxied(reply(b"an answer")) as (proxy, _):
        peer = proxy.connect(host)
        peer.send(proxy.head(b"", b"content-length: 2") + b"{}")
        peer.socket.shutdown(socket.SHUT_WR)
        received = peer.socket.makefile("rb").read()
        (answer,) = proxy.recorder.answers(1)
        peer.close()

    assert received.endswith(b"an answer")
    assert answer.ending == "complete"


@pytest.mark.parametrize("host", LOOPBACKS)
def test_a_client_that_closes_its_other_half_later_counts_as_gone(host: str) -> None:
    is_asked = Event()
    is_closed = Event()

    def respond(peer: Peer, _: Request) -> None:
        is_asked.set()
        peer.wait_until_closed()
        is_closed.set()

    with proxied(respond) as (proxy, _):
        peer = proxy.connect(host)
        peer.send(proxy.head(b"", b"content-length: 2") + b"{}")
        assert is_asked.wait(60)
        peer.socket.shutdown(socket.SHUT_WR)
        assert not is_closed.wait(0.3)
        peer.close()
        assert is_closed.wait(60)
        (answer,) = proxy.recorder.answers(1)

    assert answer.ending == "cancelled"


def test_a_client_that_closes_before_the_end_of_its_request_sends_nothing() -> None:
    with proxied(reply(b"")) as (proxy, server):
        peer = proxy.connect()
        peer.send(proxy.head(b"", b"content-length: 100") + b"{}")
        peer.close()
        proxy.ask(REQUEST)

    assert [request.body for request in server.requests] == [REQUEST]
    assert len(proxy.recorder.begun) == 1


def test_the_agent_goes_on_if_nothing_can_be_recorded() -> None:
    with proxied(reply(b"an answer")) as (proxy, _):
        proxy.recorder.error = StoreUnavailable("the disk is full", remedy="free some")
        bodies = [proxy.ask(REQUEST)[2] for _ in range(3)]
        until(lambda: proxy.recording.problems.count >= 6, "six errors")

    assert bodies == [b"an answer"] * 3
    assert len(proxy.warnings) == 1
    assert "the disk is full" in proxy.warnings[0]


def test_the_message_of_an_unexpected_error_is_not_shown() -> None:
    with proxied(reply(b"an answer")) as (proxy, _):
        proxy.recorder.error = ValueError("the text of a request")
        proxy.ask(REQUEST)

    assert "unexpected ValueError in proxying.py" in proxy.warnings[0]
    assert "the text" not in proxy.warnings[0]


def test_a_request_waits_only_for_a_limited_time_until_it_is_recorded() -> None:
    with proxied(reply(b"an answer"), begin_sec=0.1) as (proxy, _):
        proxy.recorder.may_go_on.clear()
        _, _, body = proxy.ask(REQUEST)
        recorded = len(proxy.recorder.begun)
        proxy.recorder.may_go_on.set()
        (answer,) = proxy.recorder.answers(1)

    assert body == b"an answer"
    assert recorded == 0
    assert len(proxy.recorder.begun) == 1
    assert answer.ending == "complete"


def test_strict_refuses_a_request_that_cannot_be_recorded() -> None:
    with proxied(reply(b"an answer"), strict=True) as (proxy, server):
        proxy.recorder.begin_error = StoreUnavailable(
            "the disk is full", remedy="free some"
        )
        line, _, body = proxy.ask(REQUEST)
        proxy.recorder.begin_error = None
        (answer,) = proxy.recorder.answers(1)
        line_later, _, _ = proxy.ask(REQUEST)

    error = json.loads(body)
    assert line.startswith(b"HTTP/1.1 502")
    assert error["type"] == "error"
    assert "was not recorded: the disk is full" in error["error"]["message"]
    assert answer.ending == "refused"
    assert line_later.startswith(b"HTTP/1.1 200")
    assert len(server.requests) == 1


def test_strict_waits_for_the_record() -> None:
    with proxied(reply(b""), strict=True, begin_sec=0.01) as (proxy, server):
        proxy.recorder.may_go_on.clear()
        with proxy.connect() as peer:
            peer.send(proxy.head(b"", b"content-length: 2") + b"{}")
            until(lambda: proxy.recording.requests, "the request")
            sent = len(server.requests)
            proxy.recorder.may_go_on.set()
            read_message(peer.stream)

    assert sent == 0
    assert len(server.requests) == 1


def test_the_end_waits_until_everything_is_recorded() -> None:
    with proxied(reply(b"an answer"), begin_sec=0.01) as (proxy, _):
        proxy.recorder.may_go_on.clear()
        for _ in range(5):
            proxy.ask(REQUEST)

    assert len(proxy.recorder.finished) == 5
    assert proxy.recorder.closed
