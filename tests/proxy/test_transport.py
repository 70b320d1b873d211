"""The proxy passes requests and answers on byte for byte, and records both."""

import gzip
import os
from collections.abc import Callable
from threading import Event

import pytest

from refold.adapters.proxy.app import Message, Proxy, Receive, Send
from refold.adapters.proxy.recording import Limits
from tests.support.proxying import SECRET, Proxied, proxied
from tests.support.raw_http import CHUNKED, Peer, Request, read_message, reply
from tests.support.waiting import PATIENCE_SEC, until, until_async

REQUEST = b'{"model": "a-model", "messages": []}'
ANSWER = gzip.compress(b'{"type": "message"}' * 100)


def test_an_answer_arrives_byte_for_byte() -> None:
    headers = (
        b"Content-Encoding: gzip",
        b"Content-Type: application/json; charset=utf-8",
        b"Set-Cookie: a=1; Path=/",
        b"Set-Cookie: b=2",
        b"request-id: req_1",
        b"X-Odd: \xe9 ,  spaced",
    )
    with proxied(reply(ANSWER, *headers, status=b"418 No")) as (proxy, _):
        line, received, body = proxy.ask(REQUEST)

    assert line.startswith(b"HTTP/1.1 418")
    assert body == ANSWER
    assert received == [
        (b"content-length", b"%d" % len(ANSWER)),
        (b"Content-Encoding", b"gzip"),
        (b"Content-Type", b"application/json; charset=utf-8"),
        (b"Set-Cookie", b"a=1; Path=/"),
        (b"Set-Cookie", b"b=2"),
        (b"request-id", b"req_1"),
        (b"X-Odd", b"\xe9 ,  spaced"),
    ]


def test_a_request_arrives_byte_for_byte() -> None:
    line = b"POST /%s/anthropic/v1/a%%2Fb?beta=true&q=%%7e;[x]| HTTP/1.1"
    body = os.urandom(100_000)
    with proxied(reply(b"")) as (proxy, server):
        proxy.ask(
            body,
            b"Authorization: Bearer sk-1",
            b"X-Api-Key: sk-2",
            b"content-encoding: zstd",
            b"x-twice: 1",
            b"x-twice: 2",
            b"connection: keep-alive, x-of-connection",
            b"x-of-connection: 1",
            b"keep-alive: timeout=5",
            b"te: trailers",
            line=line % SECRET.encode(),
        )

    (request,) = server.requests
    assert request.line == b"POST /v1/a%2Fb?beta=true&q=%7e;[x]| HTTP/1.1"
    assert request.body == body
    assert sorted(request.headers) == sorted(
        [
            (b"Host", b"127.0.0.1:%d" % server.port),
            (b"content-length", b"100000"),
            (b"authorization", b"Bearer sk-1"),
            (b"x-api-key", b"sk-2"),
            (b"content-encoding", b"zstd"),
            (b"x-twice", b"1"),
            (b"x-twice", b"2"),
        ]
    )


def test_a_request_is_recorded_before_it_is_sent() -> None:
    recorded_when_sent: list[int] = []

    def respond(peer: Peer, request: Request) -> None:
        recorded_when_sent.append(len(proxy.recorder.begun))
        reply(ANSWER, b"content-encoding: gzip")(peer, request)

    with proxied(respond) as (proxy, _):
        proxy.ask(REQUEST, b"x-session: s-1")
        (answer,) = proxy.recorder.answers(1)

    (exchange,) = proxy.recorder.begun
    assert recorded_when_sent == [1]
    assert exchange.upstream == "anthropic"
    assert exchange.method == "POST"
    assert exchange.path == "/v1/messages"
    assert exchange.body == REQUEST
    assert exchange.headers["x-session"] == "s-1"
    assert answer.ending == "complete"
    assert answer.status == 200
    assert answer.body == ANSWER
    assert answer.content() == gzip.decompress(ANSWER)
    assert proxy.recorder.closed
    assert not proxy.warnings


def test_each_piece_of_an_answer_arrives_before_the_next_is_sent() -> None:
    arrived = Event()

    def respond(peer: Peer, _: Request) -> None:
        peer.send(b"HTTP/1.1 200 OK\r\n%s\r\n\r\n" % CHUNKED)
        for number in range(5):
            peer.send_chunk(b"data: %d\n\n" % number)
            assert arrived.wait(PATIENCE_SEC)
            arrived.clear()
        peer.send_chunk(b"")

    with proxied(respond) as (proxy, _):
        with proxy.connect() as peer:
            peer.send(proxy.head(b"", b"content-length: 2") + b"{}")
            received = b""
            for number in range(5):
                while b"data: %d\n\n" % number not in received:
                    received += peer.socket.recv(65_536)
                arrived.set()
            while not received.endswith(b"0\r\n\r\n"):
                received += peer.socket.recv(65_536)
        (answer,) = proxy.recorder.answers(1)

    assert answer.body == b"".join(b"data: %d\n\n" % number for number in range(5))
    assert answer.complete


def _send_with_length(peer: Peer, _: Proxied) -> None:
    reply(ANSWER)(peer, Request(b"", [], b""))


def _send_an_open_stream(peer: Peer, proxy: Proxied) -> None:
    peer.send(b"HTTP/1.1 200 OK\r\n%s\r\n\r\n" % CHUNKED)
    for piece in (b"data: {}\n\nevent: mess", b"age_stop\ndata: {}\n", b"\n"):
        peer.send_chunk(piece)
    until(lambda: len(proxy.recorder.begun) == 2, "the next request")
    peer.send_chunk(b"")


def _read_message(peer: Peer) -> None:
    read_message(peer.stream)


def _read_until_last_event(peer: Peer) -> None:
    received = b""
    while not received.endswith(b"data: {}\n\r\n1\r\n\n\r\n"):
        received += peer.socket.recv(65_536)


@pytest.mark.parametrize(
    ("send", "read", "last_body"),
    [
        (_send_with_length, _read_message, ANSWER),
        (_send_an_open_stream, _read_until_last_event, b"\n"),
    ],
    ids=["of known length", "stream"],
)
def test_an_answer_is_recorded_before_the_next_request(
    monkeypatch: pytest.MonkeyPatch,
    send: Callable[[Peer, Proxied], None],
    read: Callable[[Peer], None],
    last_body: bytes,
) -> None:
    """A client goes on when it has the answer, before the provider closes it."""

    def respond(peer: Peer, request: Request) -> None:
        if request.body == b"1":
            send(peer, proxy)
        else:
            reply(ANSWER)(peer, request)

    serve = Proxy.__call__

    async def serve_slowly(
        app: Proxy, scope: Message, receive: Receive, send: Send
    ) -> None:
        async def send_and_wait(message: Message) -> None:
            await send(message)
            if message.get("body") == last_body:
                begun = proxy.recorder.begun
                await until_async(lambda: len(begun) == 2, "the next request")

        await serve(app, scope, receive, send_and_wait)

    monkeypatch.setattr(Proxy, "__call__", serve_slowly)
    with proxied(respond) as (proxy, _), proxy.connect() as peer:
        peer.send(proxy.head(b"", b"content-length: 1") + b"1")
        read(peer)
        proxy.ask(b"2")
        answers = proxy.recorder.answers(2)

    assert proxy.recorder.calls == [
        ("begin", b"1"),
        ("finish", b"1"),
        ("begin", b"2"),
        ("finish", b"2"),
    ]
    assert all(answer.complete for answer in answers)


def test_a_chunked_request_is_passed_on() -> None:
    with proxied(reply(b"")) as (proxy, server), proxy.connect() as peer:
        peer.send(proxy.head(b"", CHUNKED))
        for piece in (b"one", b"two", b""):
            peer.send_chunk(piece)
        read_message(peer.stream)

    assert server.requests[0].body == b"onetwo"
    assert proxy.recorder.begun[0].body == b"onetwo"


def test_a_length_beside_chunks_is_not_passed_on() -> None:
    """Of the two, the length means nothing: a request cannot hide another one."""

    def respond(peer: Peer, _: Request) -> None:
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n%s\r\n\r\n" % CHUNKED)
        peer.send_chunk(b"an answer")
        peer.send_chunk(b"")

    with proxied(respond) as (proxy, server), proxy.connect() as peer:
        peer.send(proxy.head(b"", b"content-length: 2", CHUNKED))
        peer.send_chunk(b"a request")
        peer.send_chunk(b"")
        _, headers, body = read_message(peer.stream)

    assert body == b"an answer"
    assert b"content-length" not in dict(headers)
    assert server.requests[0].body == b"a request"
    assert server.requests[0].header(b"content-length") == b"9"


def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    def respond(peer: Peer, _: Request) -> None:
        peer.send(b"HTTP/1.1 200 OK\r\n\r\nall of it")
        peer.close()

    with proxied(respond) as (proxy, _):
        _, _, body = proxy.ask(REQUEST)
        (answer,) = proxy.recorder.answers(1)

    assert body == answer.body == b"all of it"
    assert answer.complete


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
def test_an_answer_without_a_body_is_passed_on(status: bytes) -> None:
    def respond(peer: Peer, _: Request) -> None:
        peer.send(b"HTTP/1.1 %s\r\n\r\n" % status)

    with proxied(respond) as (proxy, _):
        line, _, body = proxy.ask(REQUEST)

    assert line.startswith(b"HTTP/1.1 " + status[:3])
    assert body == b""


def test_a_connection_serves_several_requests() -> None:
    def respond(peer: Peer, request: Request) -> None:
        reply(b"<%s>" % request.body)(peer, request)

    with proxied(respond) as (proxy, _), proxy.connect() as peer:
        bodies = []
        for number in range(3):
            peer.send(proxy.head(b"", b"content-length: 1") + b"%d" % number)
            bodies.append(read_message(peer.stream)[2])

    assert bodies == [b"<0>", b"<1>", b"<2>"]


def test_other_paths_are_passed_on_without_a_record() -> None:
    line = b"GET /%s/anthropic/v1/models?limit=1 HTTP/1.1" % SECRET.encode()
    with proxied(reply(b"the models")) as (proxy, server):
        _, _, body = proxy.ask(b"", b"accept-encoding: br", line=line)

    assert body == b"the models"
    assert server.requests[0].header(b"accept-encoding") == b"br"
    assert not proxy.recorder.begun


@pytest.mark.parametrize(
    ("accepted", "passed"),
    [
        (b"gzip, deflate, br, zstd", b"gzip, deflate, zstd"),
        (b"br;q=1.0, gzip;q=0.8, *;q=0.1", b"gzip;q=0.8"),
        (b"br", b"identity"),
        (b"zstd,gzip", b"zstd, gzip"),
    ],
)
def test_only_encodings_that_can_be_decoded_are_accepted(
    accepted: bytes, passed: bytes
) -> None:
    with proxied(reply(b"")) as (proxy, server):
        proxy.ask(REQUEST, b"accept-encoding: " + accepted)

    assert server.requests[0].header(b"accept-encoding") == passed


def test_no_credential_reaches_the_recorder() -> None:
    line = b"POST /%s/anthropic/v1/messages?key=SECRET&beta=1&%%6bey=SECRET HTTP/1.1"
    headers = (
        b"Authorization: Bearer SECRET",
        b"X-Api-Key: SECRET",
        b"x-goog-api-key: SECRET",
        b"api-key: SECRET",
        b"Cookie: a=SECRET",
        b"Proxy-Authorization: SECRET",
        b"X-Amz-Security-Token: SECRET",
        b"X-Custom-Secret: SECRET",
        b"Idempotency-Key: retry-1",
    )
    answer_headers = (b"Set-Cookie: SECRET", b"X-Refreshed-Token: SECRET", b"x-id: 1")
    with proxied(reply(b"", *answer_headers)) as (proxy, server):
        proxy.ask(REQUEST, *headers, line=line % SECRET.encode())
        (answer,) = proxy.recorder.answers(1)

    (exchange,) = proxy.recorder.begun
    assert exchange.path == "/v1/messages?beta=1"
    assert set(exchange.headers) == {"host", "content-length", "idempotency-key"}
    assert set(answer.headers) == {"content-length", "x-id"}
    assert b"SECRET" in server.requests[0].line


def test_a_body_beyond_a_limit_is_passed_on_and_truncated_in_the_record() -> None:
    body = os.urandom(1_000_000)
    limits = Limits(body_bytes=300_000, answer_bytes=200_000)

    def respond(peer: Peer, request: Request) -> None:
        reply(request.body)(peer, request)

    with proxied(respond, limits=limits) as (proxy, _):
        _, _, returned = proxy.ask(body)
        (answer,) = proxy.recorder.answers(1)
        until(lambda: not proxy.server.proxy.memory.used_bytes, "the copies to go")

    (exchange,) = proxy.recorder.begun
    assert returned == body
    assert exchange.truncated
    assert answer.truncated
    assert not answer.complete
    assert 0 < len(exchange.body) <= 300_000
    assert body.startswith(exchange.body)
    assert 0 < len(answer.body) <= 200_000
    assert body.startswith(answer.body)


def test_copies_together_stay_within_a_limit() -> None:
    body = os.urandom(400_000)
    with proxied(reply(body), limits=Limits(total_bytes=500_000)) as (proxy, server):
        proxy.recorder.may_go_on.clear()  # so the first copies stay in memory
        peers = [proxy.connect() for _ in range(3)]
        for peer in peers:
            peer.send(proxy.head(b"", b"content-length: 400000") + body)
        memory = proxy.server.proxy.memory
        until(lambda: memory.used_bytes >= 400_000, "the first copy")
        proxy.recorder.may_go_on.set()
        bodies = [read_message(peer.stream)[2] for peer in peers]
        for peer in peers:
            peer.close()
        answers = proxy.recorder.answers(3)
        until(lambda: not memory.used_bytes, "the copies to go")

    assert [request.body == body for request in server.requests] == [True] * 3
    assert bodies == [body] * 3
    assert any(exchange.truncated for exchange in proxy.recorder.begun)
    assert any(answer.truncated for answer in answers)
