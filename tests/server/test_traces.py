"""OTLP exporters send spans to `POST /v1/traces`, and they become sessions."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceResponse,
)
from starlette.testclient import TestClient

import refold
from refold.adapters.importers.otlp import traces
from refold.adapters.otlp.encoding import to_protobuf
from refold.domain.events import AgentResponse, UserInput
from refold.store import SessionStore
from tests.importers.samples import span, spans
from tests.server.conftest import ClientFor

PROTOBUF = "application/x-protobuf"
JSON = "application/json"
ASKED = {"role": "user", "parts": [{"type": "text", "content": "Go."}]}
DONE = {"role": "assistant", "parts": [{"type": "text", "content": "Done."}]}


def traced(**more: Any) -> dict[str, Any]:
    """Return a request with the span of one model call."""
    attributes = {
        "gen_ai.conversation.id": "conv-1",
        "gen_ai.input.messages": [ASKED],
        "gen_ai.output.messages": [DONE],
        **more,
    }
    request = spans(span("chat", 1, 2, **attributes))
    for traced_span in request["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        traced_span["traceId"] = "a" * 32  # protobuf has bytes
    return request


def texts(store: SessionStore, user: str = "ada") -> list[str]:
    session = store.session(user_id=user, session_id="conv-1")
    return [
        event.payload.text
        for event in session.events()
        if isinstance(event.payload, UserInput | AgentResponse)
    ]


def test_spans_in_protobuf_become_a_session(
    ada: TestClient, store: SessionStore
) -> None:
    body = gzip.compress(to_protobuf(traced()))
    headers = {"Content-Type": PROTOBUF, "Content-Encoding": "gzip"}

    answered = ada.post("/v1/traces", content=body, headers=headers)

    assert (answered.status_code, answered.headers["content-type"]) == (200, PROTOBUF)
    response = ExportTraceServiceResponse.FromString(answered.content)
    assert response.partial_success.rejected_spans == 0
    assert texts(store) == ["Go.", "Done."]


def test_spans_in_json_become_a_session(ada: TestClient, store: SessionStore) -> None:
    answered = ada.post("/v1/traces", json=traced())

    assert (answered.status_code, answered.json()) == (200, {})
    assert texts(store) == ["Go.", "Done."]
    assert ada.post("/v1/traces", json=traced()).json() == {}
    assert texts(store) == ["Go.", "Done."]


def test_rejected_spans_are_counted(ada: TestClient) -> None:
    bare = spans(span("chat", 1, 2))

    answered = ada.post("/v1/traces", json=bare).json()

    assert answered["partialSuccess"]["rejectedSpans"] == "1"
    assert "no messages" in answered["partialSuccess"]["errorMessage"]


def test_a_token_must_allow_appends(client_for: ClientFor, store: SessionStore) -> None:
    assert client_for(None).post("/v1/traces", json=traced()).status_code == 401
    assert (
        client_for("ada", "read").post("/v1/traces", json=traced()).status_code == 403
    )
    assert client_for("bob", "append").post("/v1/traces", json=traced()).is_success
    assert not list(store.sessions("ada"))
    assert texts(store, "bob") == ["Go.", "Done."]


@pytest.mark.parametrize(
    ("body", "content_type", "encoding", "status"),
    [
        (b"x", "text/plain", "", 415),
        (b"{", JSON, "", 422),
        (b"[]", JSON, "", 422),
        (b"\xff\xff\xff", PROTOBUF, "", 422),
        (b"no gzip", PROTOBUF, "gzip", 422),
        (gzip.compress(b"{}", mtime=0)[:-4], JSON, "gzip", 422),
        (gzip.compress(b" " * (17 << 20), mtime=0), JSON, "gzip", 422),
    ],
    ids=["text", "half", "list", "bytes", "no gzip", "cut", "huge"],
)
def test_other_bodies_are_refused(
    ada: TestClient,
    store: SessionStore,
    body: bytes,
    content_type: str,
    encoding: str,
    status: int,
) -> None:
    headers = {"Content-Type": content_type, "Content-Encoding": encoding}

    answered = ada.post("/v1/traces", content=body, headers=headers)

    assert answered.status_code == status
    assert answered.headers["content-type"] == "application/problem+json"
    assert not list(store.sessions("ada"))


def test_an_export_of_another_store_is_recorded(
    ada: TestClient, store: SessionStore
) -> None:
    origin = refold.open("memory://").session(user_id="kim", session_id="conv-1")
    origin.append([UserInput(text="Go."), AgentResponse(text="Where?")])
    origin.append([UserInput(text="There."), AgentResponse(text="Done.")])

    for request in traces(origin.history.timeline(), "conv-1", content=True):
        body = to_protobuf(json.loads(json.dumps(request)))
        answered = ada.post(
            "/v1/traces", content=body, headers={"Content-Type": PROTOBUF}
        )
        assert answered.status_code == 200

    assert texts(store) == ["Go.", "Where?", "There.", "Done."]
