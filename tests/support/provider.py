"""A server on this machine that speaks the protocols of five model providers.

It answers Anthropic Messages, OpenAI Chat Completions and Responses, Gemini
``generateContent``, and Ollama ``chat``, whole or as a stream, so that real clients can
run without a model.

    with Provider() as provider:
        provider.reply(
            answer("Let me look.", call("bash", {"command": "ls"})),
            Failure(529, retry_after=0.1),
            answer("Done."),
        )
        environment = {"ANTHROPIC_BASE_URL": provider.url}
        subprocess.run(["claude", "-p", "Look"], env=environment)
        assert provider.requests[0].json["messages"]

**Replies.** ``reply`` queues one reply for each *scripted* request: one with tools,
except if ``Provider(scripted=function)`` decides.  Clients also ask for titles and
summaries at moments of their choice; such requests get ``default``.  A function
``Provider(answer=function)`` chooses the replies when the queue is empty.

**Requests.** ``provider.seen`` are all requests in the order of arrival, with every
byte and header; ``provider.requests`` are those that ask a model.  Each attempt of a
retry is a request.  ``seen.sent`` are the bytes of the answer that the client got, as
far as the server wrote them.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import re
import socket
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import zstandard

from tests.support.provider_shapes import (
    Answer,
    Call,
    Failure,
    Json,
    Protocol as ProtocolName,
    Reply,
    Shape,
    answer,
    call,
    failure,
    shape,
)

__all__ = ["Answer", "Call", "Failure", "Provider", "Reply", "Seen", "answer", "call"]

_GEMINI = re.compile(r"/models/[^/:]+:(?P<method>\w+)$")
_PATHS: tuple[tuple[str, ProtocolName], ...] = (
    ("/messages", "anthropic-messages"),
    ("/chat/completions", "openai-chat"),
    ("/responses", "openai-responses"),
    ("/api/chat", "ollama"),
)


@dataclass(slots=False)
class Seen:
    """One request as it arrived, and the answer as it left."""

    number: int
    method: str
    path: str
    query: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    at: float
    sent: bytearray = field(default_factory=bytearray)
    status: int | None = None
    is_finished: bool = False

    def header(self, name: str) -> str | None:
        """Return the first header of that name, in any case."""
        for given, value in self.headers:
            if given.lower() == name.lower():
                return value
        return None

    @cached_property
    def decoded(self) -> bytes:
        """The body without its compression."""
        match self.header("content-encoding"):
            case "gzip":
                return gzip.decompress(self.body)
            case "deflate":
                return zlib.decompress(self.body)
            case "zstd":
                with zstandard.ZstdDecompressor().stream_reader(self.body) as reader:
                    return reader.read()
            case _:
                return self.body

    @cached_property
    def json(self) -> Json:
        """The body as JSON; an empty object if it is none."""
        try:
            value = json.loads(self.decoded)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    @cached_property
    def protocol(self) -> ProtocolName | None:
        """The protocol of a request that asks a model, else ``None``."""
        if self.method != "POST":
            return None
        for ending, name in _PATHS:
            if self.path.endswith(ending):
                return name
        method = _GEMINI.search(self.path)
        if method and method["method"] in ("generateContent", "streamGenerateContent"):
            return "gemini"
        return None

    @property
    def streamed(self) -> bool:
        """Whether the client asks for a stream."""
        if self.protocol == "gemini":
            return self.path.endswith(":streamGenerateContent")
        return bool(self.json.get("stream", self.protocol == "ollama"))

    @property
    def has_tools(self) -> bool:
        """Whether the client offers tools to the model.

        Codex sends them as an item of the input.
        """
        items = self.json.get("input")
        if isinstance(items, list):
            for item in items:
                if item.get("type") == "additional_tools":
                    return True
        return bool(self.json.get("tools"))

    def as_json(self) -> Json:
        """Return everything that arrived, for a file."""
        return {
            "number": self.number,
            "method": self.method,
            "path": self.path + (f"?{self.query}" if self.query else ""),
            "headers": [list(pair) for pair in self.headers],
            "bytes": len(self.body),
            "body": self.json or self.decoded.decode(errors="backslashreplace"),
            "status": self.status,
        }


class Chooser(Protocol):
    """A function that answers a request when the queue is empty."""

    def __call__(self, request: Seen, /) -> Reply: ...


class Provider:
    """The server; it runs from ``with`` to the end of the block."""

    def __init__(
        self,
        answer: Chooser | None = None,
        *,
        scripted: Callable[[Seen], bool] | None = None,
        default: Reply | None = None,
        record: Path | None = None,
    ) -> None:
        self.seen: list[Seen] = []
        self.stopping = threading.Event()
        self.default: Reply = default or Answer("Nothing to add.")
        self._answer = answer
        self._scripted = scripted or (lambda request: request.has_tools)
        self._record = record
        self._queue = deque[Reply]()
        self._lock = threading.Lock()
        self._server = _Server(self)

    @property
    def url(self) -> str:
        """The address without a path."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def requests(self) -> list[Seen]:
        """The requests that ask a model, in the order of arrival."""
        with self._lock:
            return [request for request in self.seen if request.protocol]

    @property
    def waiting(self) -> int:
        """How many queued replies no request has taken."""
        return len(self._queue)

    def reply(self, *replies: Reply) -> None:
        """Queue the answers to the next scripted requests, one each."""
        self._queue.extend(replies)

    def forget_replies(self) -> None:
        """Empty the queue of replies."""
        self._queue.clear()

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,)).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        raised: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()

    def receive(
        self, method: str, target: str, headers: list[tuple[str, str]], body: bytes
    ) -> Seen:
        """Record a request."""
        path, _, query = target.partition("?")
        with self._lock:
            number = len(self.seen) + 1
            request = Seen(
                number, method, path, query, tuple(headers), body, time.time()
            )
            self.seen.append(request)
        return request

    def finish(self, request: Seen) -> None:
        """Mark the answer to a request as complete, and write the request's file."""
        request.is_finished = True
        if self._record is not None:
            self._record.mkdir(parents=True, exist_ok=True)
            file = self._record / f"{request.number:03d}.json"
            file.write_text(json.dumps(request.as_json(), indent=1, ensure_ascii=False))

    def choose(self, request: Seen) -> Reply:
        """Return the reply to a request that asks a model."""
        with self._lock:
            if self._queue and self._scripted(request):
                return self._queue.popleft()
        if self._answer is None:
            return self.default
        return self._answer(request)


def _other(request: Seen) -> tuple[int, Json]:
    """Return the answer to a request that asks no model."""
    path = request.path
    if "websocket" in (request.header("upgrade") or "").lower():
        return 426, {"error": {"message": "Use HTTP.", "code": "upgrade_required"}}
    if path.endswith(("/count_tokens", ":countTokens", "/input_tokens")):
        count = len(request.body) // 4 + 1
        return 200, {"input_tokens": count, "totalTokens": count}
    if path.endswith("/models"):
        return 200, {"object": "list", "data": [], "models": [], "has_more": False}
    if path.endswith("/api/version"):
        return 200, {"version": "0.14.0"}
    if path.endswith("/api/tags"):
        return 200, {"models": [{"name": "qwen3", "model": "qwen3", "details": {}}]}
    if path.endswith("/api/show"):
        return 200, {"capabilities": ["completion", "tools"], "details": {}}
    if path in ("", "/"):
        return 200, {}
    return 404, {"type": "error", "error": {"type": "not_found_error"}}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, provider: Provider) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.provider = provider

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: some clients leave in the middle of an answer."""


class _Gone(Exception):
    """The client has left, or the server ends."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise each answer takes 40 ms
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # its name
        """Print nothing: the output belongs to the test."""

    def do_GET(self) -> None:
        self._handle()

    def do_HEAD(self) -> None:
        self._handle()

    def do_POST(self) -> None:
        self._handle()

    def do_PUT(self) -> None:
        self._handle()

    def do_DELETE(self) -> None:
        self._handle()

    def _handle(self) -> None:
        provider = self.server.provider
        body = self._body()
        request = provider.receive(
            self.command, self.path, list(self.headers.items()), body
        )
        try:
            self._answer(request)
        except OSError:
            self.close_connection = True
        finally:
            provider.finish(request)

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("transfer-encoding", ""):
            pieces = []
            while size := int(self.rfile.readline().partition(b";")[0], 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(pieces)
        return self.rfile.read(int(self.headers.get("content-length") or 0))

    def _answer(self, request: Seen) -> None:
        if request.protocol is None:
            status, body = _other(request)
            self._send(request, status, json.dumps(body).encode(), {})
            return
        reply = self.server.provider.choose(request)
        if isinstance(reply, Failure):
            headers = {}
            if reply.retry_after is not None:
                headers["retry-after"] = f"{reply.retry_after:g}"
            body = failure(request.protocol, reply)
            self._send(request, reply.status, json.dumps(body).encode(), headers)
            return
        shaped = shape(request.protocol, reply, request.json, request.path)
        if request.protocol == "gemini" and "alt=sse" not in request.query:
            shaped = Shape(shaped.body, shaped.events, "array")
        if request.streamed:
            self._stream(request, reply, shaped)
            return
        if reply.cut is not None:
            self._leave()
            return
        if reply.held_after is not None:
            self._hold()
            return
        whole = json.dumps(shaped.body, ensure_ascii=False).encode()
        encoding = self._encoding(reply)
        headers = {"content-encoding": encoding} if encoding else {}
        compressor = _Compressor(encoding)
        whole = compressor.add(whole) + compressor.end()
        self._send(request, 200, whole, headers)

    def _encoding(self, reply: Answer) -> str | None:
        accepted = self.headers.get("accept-encoding", "")
        if reply.encoding and reply.encoding in accepted:
            return reply.encoding
        return None

    def _head(self, request: Seen, status: int, headers: dict[str, str]) -> None:
        request.status = status
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _send(
        self, request: Seen, status: int, body: bytes, headers: dict[str, str]
    ) -> None:
        length = str(len(body))
        usual = {"content-type": "application/json", "content-length": length}
        self._head(request, status, {**usual, **headers})
        if self.command != "HEAD":
            request.sent += body
            self.wfile.write(body)

    def _stream(self, request: Seen, reply: Answer, shaped: Shape) -> None:
        headers = {
            "content-type": shaped.content_type,
            "transfer-encoding": "chunked",
            "cache-control": "no-cache",
        }
        encoding = self._encoding(reply)
        if encoding:
            headers["content-encoding"] = encoding
        compressor = _Compressor(encoding)
        self._head(request, 200, headers)
        for frame in itertools.islice(shaped.frames(), _events(reply)):
            self._chunk(request, compressor.add(frame))
            if reply.pause and self.server.provider.stopping.wait(reply.pause):
                self._leave()
                return
        if reply.cut is not None:
            self._leave()
            return
        if reply.held_after is not None:
            self._hold()
            return
        self._chunk(request, compressor.end())
        self.wfile.write(b"0\r\n\r\n")

    def _chunk(self, request: Seen, data: bytes) -> None:
        if not data:
            return
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()
        request.sent += data

    def _hold(self) -> None:
        """Wait until the client leaves or the server ends."""
        self.connection.settimeout(0.05)
        while not self.server.provider.stopping.is_set():
            try:
                if not self.connection.recv(1):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        self._leave()

    def _leave(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


def _events(reply: Answer) -> int | None:
    """Return how many events of a stream are sent; all of them if ``None``."""
    return reply.cut if reply.cut is not None else reply.held_after


class _Compressor:
    """Compresses a stream so that each piece can be read at once."""

    def __init__(self, encoding: str | None) -> None:
        self._encoding = encoding
        self._zlib: Any = None
        self._zstd: Any = None
        if encoding == "gzip":
            self._zlib = zlib.compressobj(wbits=31)
        elif encoding == "deflate":
            self._zlib = zlib.compressobj()
        elif encoding == "zstd":
            self._zstd = zstandard.ZstdCompressor().compressobj()

    def add(self, data: bytes) -> bytes:
        """Return what the client needs to read ``data``."""
        if self._zlib is not None:
            compressed: bytes = self._zlib.compress(data)
            return compressed + bytes(self._zlib.flush(zlib.Z_SYNC_FLUSH))
        if self._zstd is not None:
            compressed = self._zstd.compress(data)
            flush = zstandard.COMPRESSOBJ_FLUSH_BLOCK
            return compressed + bytes(self._zstd.flush(flush))
        return data

    def end(self) -> bytes:
        """Return the end of the stream."""
        if self._zlib is not None:
            return bytes(self._zlib.flush())
        if self._zstd is not None:
            return bytes(self._zstd.flush())
        return b""
