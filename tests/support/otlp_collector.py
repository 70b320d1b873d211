"""A real OTLP endpoint over HTTP, for tests: it decodes what it receives."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, NamedTuple

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)


class Answer(NamedTuple):
    """An answer of the endpoint."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


class Received(NamedTuple):
    """A request, with its body as JSON: protobuf's own form for protobuf."""

    path: str
    headers: dict[str, str]
    request: dict[str, Any]


class Collector:
    """An endpoint that gives ``answers`` in their order, then 200 without a body."""

    def __init__(self, url: str, answers: list[Answer]) -> None:
        self.url = url
        self.answers = answers
        self.received: list[Received] = []

    @property
    def spans(self) -> list[dict[str, Any]]:
        return [
            span
            for received in self.received
            for resource in received.request["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]


@contextmanager
def collector(*answers: Answer) -> Iterator[Collector]:
    running: Collector

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers["content-encoding"] == "gzip":
                body = gzip.decompress(body)
            if self.headers["content-type"] == "application/json":
                request = json.loads(body)
            else:
                request = MessageToDict(ExportTraceServiceRequest.FromString(body))
            headers = {name.lower(): value for name, value in self.headers.items()}
            running.received.append(Received(self.path, headers, request))
            answer = running.answers.pop(0) if running.answers else Answer()
            self.send_response(answer.status)
            for name, value in answer.headers:
                self.send_header(name, value)
            self.send_header("content-length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        running = Collector(f"http://127.0.0.1:{server.server_port}", list(answers))
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield running
        finally:
            server.shutdown()
            thread.join()
