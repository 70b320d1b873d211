"""A server on this machine that speaks the Messages API, for the real SDK to ask.

It answers ``POST /v1/messages`` (whole, or as a stream if the request says so),
``POST /v1/messages/count_tokens``, and batches, in the shapes of the real one.

    with MessagesApi() as api:
        api.reply(overloaded(), message("Hello."))     # in this order, one a request
        client = api.client()                          # anthropic.Anthropic
        client.messages.create(model="claude-x", max_tokens=9, messages=[...])
        assert api.requests[-1].body["messages"] == [...]

**Replies.** Queue them with ``reply``, or give ``MessagesApi(answer=function)`` a
function from a ``Request`` to a reply, for when the queue is empty.  A reply is one of

- ``message(*blocks, stop_reason=…, usage=…)``; a block is a text, ``thinking(…)``,
  ``tool_use(…)`` or any dict; the stop reason is ``tool_use`` if a tool is used;
- ``refusal()``; ``error(status)``, ``overloaded()``, ``rate_limited()``: with
  ``retry_after=0.01`` the client waits no longer than that before it asks again;
- ``silence()``: nothing comes until the server stops, so that the client times out;
- ``hang_up()``: the connection closes without an answer;
- ``raw(body, status=…)``: any bytes;
- ``message(…).broken(after=n)``: a stream that ends after ``n`` events, without an
  error, or with one (``error=overloaded()``).  It has no effect without a stream.

Without a reply left it refuses the request (400, not to be retried).

**Batches** end at once.  Each of their requests is answered like any other; an error
becomes the result ``errored``.  ``api.outcomes`` maps a custom id to ``canceled`` or
``expired``, and such a request gets no answer.

**Requests.** ``api.requests`` are those to ``/v1/messages``, ``api.counted`` those to
count tokens: ``.body`` (the JSON), ``.headers`` (names in lower case), ``.path``.
Each attempt of a retry is a request of its own.  A stream sends
``events(message)``.  A request without a key, a version, a model, messages or
``max_tokens`` is refused as the real one refuses it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tests.support.messages_shapes import (
    Answer,
    Block,
    Reply,
    Request,
    error,
    estimate,
    events,
    hang_up,
    message,
    new_id,
    overloaded,
    rate_limited,
    raw,
    refusal,
    silence,
    text,
    thinking,
    tool_use,
)
from tests.support.waiting import PATIENCE_SEC

if TYPE_CHECKING:
    from anthropic import Anthropic, AsyncAnthropic

__all__ = [
    "Answer",
    "Block",
    "MessagesApi",
    "Reply",
    "Request",
    "error",
    "estimate",
    "events",
    "hang_up",
    "message",
    "overloaded",
    "rate_limited",
    "raw",
    "refusal",
    "silence",
    "text",
    "thinking",
    "tool_use",
]

# Reading certificates takes a quarter of a second, and a proxy would be used.
_PLAIN: Any = {"verify": False, "trust_env": False}


class MessagesApi:
    """The server; it runs from ``with`` to the end of the block."""

    def __init__(self, answer: Answer | None = None) -> None:
        self.requests: list[Request] = []
        self.counted: list[Request] = []
        self.outcomes: dict[str, str] = {}
        self._batches: dict[str, list[Block]] = {}
        self._answer = answer
        self._queue = deque[Reply]()
        self._stack = contextlib.ExitStack()
        self._server = _Server(self)
        self.stopping = threading.Event()

    @property
    def url(self) -> str:
        """The URL that the SDK calls its base URL."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def reply(self, *replies: Reply) -> None:
        """Queue the answers to the next requests, one each."""
        self._queue.extend(replies)

    def forget_replies(self) -> None:
        """Empty the queue of replies."""
        self._queue.clear()

    def client(self, **options: Any) -> Anthropic:
        """Return the SDK's client; the server closes it; ``options`` are the SDK's."""
        from anthropic import Anthropic, DefaultHttpxClient

        if "http_client" not in options:
            options["http_client"] = DefaultHttpxClient(**_PLAIN)
        return self._stack.enter_context(Anthropic(**self._options(options)))

    def async_client(self, **options: Any) -> AsyncAnthropic:
        """Return the SDK's asynchronous client; the caller closes it."""
        from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient

        if "http_client" not in options:
            options["http_client"] = DefaultAsyncHttpxClient(**_PLAIN)
        return AsyncAnthropic(**self._options(options))

    def _options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        return {"base_url": self.url, "api_key": "a-key-for-tests", **options}

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
        self._stack.close()
        self._server.shutdown()
        self._server.server_close()

    def answer(self, request: Request) -> Reply:
        """Record a request and return its answer."""
        if refused := _refused(request):
            return refused
        if request.path == "/v1/messages/batches":
            return self._batch(request)
        if request.path == "/v1/messages/count_tokens":
            self.counted.append(request)
            return Reply(body={"input_tokens": _input_tokens(request.body)})
        self.requests.append(request)
        try:
            reply = self._queue.popleft()
        except IndexError:
            if self._answer is None:
                return _final(400, "the test has queued no more replies")
            try:
                reply = self._answer(request)
            except Exception as raised:  # otherwise the test would wait for its timeout
                return _final(400, f"the test's function raised {raised!r}")
        return _completed(reply, request)

    def _batch(self, request: Request) -> Reply:
        batch_id = new_id("msgbatch")
        results: list[Block] = []
        for item in request.body["requests"]:
            custom_id = item["custom_id"]
            result: Block = {"type": self.outcomes.get(custom_id, "succeeded")}
            if custom_id not in self.outcomes:
                single = Request("/v1/messages", request.headers, item["params"])
                body = self.answer(single).body
                assert isinstance(body, dict)
                if body["type"] == "error":
                    result = {"type": "errored", "error": body}
                else:
                    result["message"] = body
            results.append({"custom_id": custom_id, "result": result})
        self._batches[batch_id] = results
        return Reply(body=self._described(batch_id))

    def _described(self, batch_id: str) -> Block:
        kinds = [item["result"]["type"] for item in self._batches[batch_id]]
        names = ("canceled", "errored", "expired", "succeeded")
        counts: Block = {name: kinds.count(name) for name in names}
        return {
            "type": "message_batch",
            "id": batch_id,
            "processing_status": "ended",
            "request_counts": {"processing": 0, **counts},
            "created_at": "2026-01-01T00:00:00Z",
            "expires_at": "2026-01-02T00:00:00Z",
            "results_url": f"{self.url}/v1/messages/batches/{batch_id}/results",
        }

    def read(self, path: str) -> Reply:
        """Return the answer to a GET: a batch, or its results as JSON lines."""
        parts = path.partition("?")[0].split("/")
        if len(parts) < 5 or parts[4] not in self._batches:
            return error(404)
        if parts[-1] != "results":
            return Reply(body=self._described(parts[4]))
        lines = [json.dumps(item) for item in self._batches[parts[4]]]
        return raw("\n".join(lines).encode())


def _refused(request: Request) -> Reply | None:
    """Return the API's error for a request that no model sees, if it is one."""
    if not request.path.startswith("/v1/messages"):
        return error(404)
    if not {"x-api-key", "authorization"} & set(request.headers):
        return error(401)
    if "anthropic-version" not in request.headers:
        return error(400, "anthropic-version: header is required")
    if request.path == "/v1/messages/batches":
        return None if "requests" in request.body else error(400, "requests")
    needed = ["model", "messages"]
    if not request.path.endswith("count_tokens"):
        needed.append("max_tokens")
    for name in needed:
        if name not in request.body:
            return error(400, f"{name}: Field required")
    return None


def _final(status: int, words: str) -> Reply:
    return replace(error(status, words), headers={"x-should-retry": "false"})


def _input_tokens(body: Mapping[str, Any]) -> int:
    return estimate([body.get(name) for name in ("system", "tools", "messages")])


def _completed(reply: Reply, request: Request) -> Reply:
    """Return a reply completed with the model of the request and its usage."""
    body = reply.body
    if isinstance(body, bytes) or body.get("type") != "message":
        return reply
    usage = {
        "input_tokens": _input_tokens(request.body),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "cache_creation": {
            "ephemeral_5m_input_tokens": 0,
            "ephemeral_1h_input_tokens": 0,
        },
        "output_tokens": estimate(body["content"]),
        "service_tier": "standard",
    } | body["usage"]
    model = body["model"] or request.body["model"]
    return replace(reply, body={**body, "model": model, "usage": usage})


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, api: MessagesApi) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.api = api

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: some tests are about clients that leave."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise each answer takes 40 ms
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # its name
        """Print nothing: the output belongs to the test."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.path.partition("?")[0], headers, body)
        reply = self.server.api.answer(request)
        if reply.instead:
            self._leave(wait=reply.instead == "silence")
        elif isinstance(reply.body, bytes):
            self._send(reply, reply.body)
        elif reply.body.get("type") == "message" and body.get("stream"):
            self._stream(reply, reply.body)
        else:
            self._send(reply, self._json(reply.body))

    def do_GET(self) -> None:
        reply = self.server.api.read(self.path)
        body = reply.body if isinstance(reply.body, bytes) else self._json(reply.body)
        self._send(reply, body)

    def _json(self, body: Block) -> bytes:
        if body.get("type") == "error":
            body = {**body, "request_id": new_id("req")}
        return json.dumps(body, ensure_ascii=False).encode()

    def _leave(self, *, wait: bool) -> None:
        if wait:
            self.server.api.stopping.wait(PATIENCE_SEC)
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _head(self, reply: Reply, **headers: str) -> None:
        self.send_response(reply.status)
        usual = {"request-id": new_id("req"), "content-type": "text/plain"}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        for name, value in {**usual, **named, **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def _send(self, reply: Reply, body: bytes) -> None:
        length = str(len(body))
        self._head(reply, content_type="application/json", content_length=length)
        self.wfile.write(body)

    def _stream(self, reply: Reply, body: Block) -> None:
        chunked = {"transfer_encoding": "chunked"}
        self._head(reply, content_type="text/event-stream; charset=utf-8", **chunked)
        for event in itertools.islice(events(body), reply.cut):
            self._event(event)
        if isinstance(reply.cut_error, dict):
            self._event(reply.cut_error)
        elif reply.cut is not None:
            self._leave(wait=False)
            return
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, event: Block) -> None:
        sent = b"event: %b\ndata: %b\n\n" % (event["type"].encode(), self._json(event))
        self.wfile.write(b"%x\r\n%b\r\n" % (len(sent), sent))
        self.wfile.flush()
