"""The stub of model providers gives the same answer whole and as a stream."""

import contextlib
import gzip
import http.client
import json
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
import zstandard

from tests.support.provider import Failure, Provider, Reply, answer, call
from tests.support.waiting import PATIENCE_SEC, until

_GEMINI = "/v1beta/models/gemini-x"
PATHS = {
    "anthropic-messages": "/v1/messages",
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
    "gemini": f"{_GEMINI}:generateContent",
    "ollama": "/api/chat",
}
TOOLS = [{"name": "bash"}]


@pytest.fixture
def provider() -> Iterator[Provider]:
    with Provider() as running:
        yield running


class Received(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes


@contextlib.contextmanager
def _sent(
    provider: Provider, path: str, body: bytes, **headers: str
) -> Iterator[http.client.HTTPConnection]:
    address = urlsplit(provider.url).netloc
    connection = http.client.HTTPConnection(address, timeout=PATIENCE_SEC)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    with contextlib.closing(connection):
        connection.request("POST", path, body, named)
        yield connection


def _send(provider: Provider, path: str, body: bytes, **headers: str) -> Received:
    with (
        _sent(provider, path, body, **headers) as connection,
        connection.getresponse() as response,
    ):
        received = response.read()
        return Received(response.status, response.headers, received)


def _ask(provider: Provider, protocol: str, *, stream: bool) -> bytes:
    path = PATHS[protocol]
    request: dict[str, Any] = {"model": "m", "tools": TOOLS, "stream": stream}
    if stream and protocol == "gemini":
        path = f"{_GEMINI}:streamGenerateContent?alt=sse"
    return _send(provider, path, json.dumps(request).encode()).body


def _texts(value: object, names: tuple[str, ...]) -> str:
    """Join all texts under these names, in order."""
    if isinstance(value, list):
        return "".join(_texts(item, names) for item in value)
    if not isinstance(value, dict):
        return ""
    joined = ""
    for name, item in value.items():
        if name in names and isinstance(item, str):
            joined += item
        else:
            joined += _texts(item, names)
    return joined


def _events(body: bytes) -> list[Any]:
    lines = body.decode().splitlines()
    values = [
        line.removeprefix("data: ")
        for line in lines
        if line.startswith(("data: ", "{"))
    ]
    return [json.loads(value) for value in values if value != "[DONE]"]


@pytest.mark.parametrize("protocol", PATHS)
def test_a_stream_has_the_text_and_the_arguments_of_the_whole_answer(
    provider: Provider, protocol: str
) -> None:
    words = "A text that needs more than one piece, with an ä."
    reply = answer(words, call("bash", {"command": "echo of several pieces"}))
    provider.reply(reply, reply)

    whole = json.loads(_ask(provider, protocol, stream=False))
    events = _events(_ask(provider, protocol, stream=True))

    deltas = [event for event in events if "response" not in event]
    if protocol == "openai-responses":
        deltas = [event for event in deltas if event["type"].endswith(".delta")]
    names = ("text", "content", "delta")
    assert words in _texts(whole, names)
    assert _texts(deltas, names).startswith(words)
    written = ("arguments", "partial_json", "command", "delta")
    assert "echo of several pieces" in _texts(deltas, written)
    assert all(request.protocol == protocol for request in provider.requests)


@pytest.mark.parametrize("protocol", PATHS)
def test_failures_come_in_the_order_of_the_script(
    provider: Provider, protocol: str
) -> None:
    provider.reply(Failure(429, retry_after=0.5), Failure(500), answer("Hello."))
    body = json.dumps({"model": "m", "tools": TOOLS, "stream": False}).encode()

    limited = _send(provider, PATHS[protocol], body)
    failed = _send(provider, PATHS[protocol], body)
    answered = _send(provider, PATHS[protocol], body)

    assert limited.status == 429
    assert limited.headers["retry-after"] == "0.5"
    assert "error" in json.loads(limited.body)
    assert failed.status == 500
    assert b"Hello." in answered.body


@pytest.mark.parametrize("protocol", PATHS)
def test_a_broken_stream_ends_without_its_end(
    provider: Provider, protocol: str
) -> None:
    provider.reply(answer("A text of several pieces.").broken(after=2))

    with pytest.raises(http.client.IncompleteRead) as raised:
        _ask(provider, protocol, stream=True)

    assert raised.value.partial == bytes(provider.requests[0].sent)


def test_a_held_stream_ends_when_the_client_leaves(provider: Provider) -> None:
    provider.reply(answer("A text of several pieces.").holding(after=2))
    body = json.dumps({"tools": TOOLS, "stream": True}).encode()
    with (
        _sent(provider, "/v1/chat/completions", body) as connection,
        connection.getresponse() as response,
    ):
        response.readline()
        assert not provider.requests[0].is_finished

    until(lambda: provider.requests[0].is_finished, "the end of the answer")


def test_requests_without_tools_take_no_reply_of_the_script(provider: Provider) -> None:
    provider.reply(answer("For the agent."))

    title = _send(provider, "/v1/messages", b'{"model": "m"}').body
    scripted = _send(provider, "/v1/messages", json.dumps({"tools": TOOLS}).encode())

    assert b"Nothing to add." in title
    assert b"For the agent." in scripted.body


def test_compressed_requests_are_recorded_as_they_came(provider: Provider) -> None:
    body = b'{"model": "m"}'
    zstd = zstandard.compress(body)

    _send(provider, "/v1/responses", gzip.compress(body), content_encoding="gzip")
    _send(provider, "/v1/responses", zstd, content_encoding="zstd")

    first, second = provider.requests
    assert first.json == second.json == {"model": "m"}
    assert second.body == zstd


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd"])
def test_answers_are_compressed_only_for_clients_that_accept_it(
    provider: Provider, encoding: Any
) -> None:
    reply: Reply = answer("A text of several pieces.", encoding=encoding)
    provider.reply(reply, reply)
    body = json.dumps({"tools": TOOLS, "stream": True}).encode()

    compressed = _send(provider, "/v1/messages", body, accept_encoding=encoding)
    plain = _send(provider, "/v1/messages", body)

    assert compressed.headers["content-encoding"] == encoding
    assert b"message_stop" not in compressed.body
    assert "content-encoding" not in plain.headers
    assert b"message_stop" in plain.body


def test_the_server_answers_many_streams_at_once(provider: Provider) -> None:
    reply = answer("A text of several pieces.").holding(after=3)
    provider.reply(*[reply] * 64)
    body = json.dumps({"tools": TOOLS, "stream": True}).encode()

    with contextlib.ExitStack() as connections:
        for _ in range(64):
            connections.enter_context(_sent(provider, "/v1/messages", body))
        until(
            lambda: (
                [len(request.sent) > 0 for request in provider.requests] == [True] * 64
            ),
            "the beginning of each stream",
        )
        assert not any(request.is_finished for request in provider.requests)
