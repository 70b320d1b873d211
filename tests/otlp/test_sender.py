"""Traces are sent to an OTLP endpoint, as protobuf or JSON."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given, strategies as st

import refold as package
from refold.adapters.importers.otlp import traces
from refold.adapters.otlp.encoding import from_protobuf, rejected_spans, to_protobuf
from refold.adapters.otlp.sender import Sender, headers_of
from refold.domain.errors import ExportFailed, InvalidConfiguration, InvalidEvent
from refold.redaction.guard import Limits
from refold.redaction.redactor import Redactor
from refold.store import SessionStore
from refold.testing import memory_log
from tests.support.otlp_collector import Answer, collector

TRACE = {
    "resourceSpans": [
        {
            "scopeSpans": [
                {
                    "spans": [
                        {
                            "traceId": "0af7651916cd43dd8448eb211c80319c",
                            "spanId": "b7ad6b7169203331",
                            "name": "chat",
                        }
                    ]
                }
            ]
        }
    ]
}


def no_sleep(_: float) -> None:
    pass


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_busy_endpoint_is_asked_again(status: int) -> None:
    delays: list[float] = []
    busy = [Answer(status, (("retry-after", "7"),)), Answer(status)]
    with (
        collector(*busy) as endpoint,
        Sender(endpoint.url, headers={}, sleep=delays.append) as sender,
    ):
        sender.send(TRACE)

    assert len(endpoint.received) == 3
    assert delays == [7.0, 2.0]


def test_an_endpoint_that_stays_busy_is_an_error() -> None:
    with (
        collector(*[Answer(503)] * 9) as endpoint,
        Sender(endpoint.url, headers={}, sleep=no_sleep) as sender,
        pytest.raises(ExportFailed, match="status 503, also after 5 attempts"),
    ):
        sender.send(TRACE)

    assert len(endpoint.received) == 5


def test_an_endpoint_that_does_not_listen_is_an_error() -> None:
    with collector() as endpoint:
        url = endpoint.url
    with (
        Sender(url, headers={}, sleep=no_sleep) as sender,
        pytest.raises(ExportFailed, match="cannot be reached"),
    ):
        sender.send(TRACE)


@pytest.mark.parametrize(
    ("status", "advice"),
    [(401, "--header"), (404, "check the endpoint"), (415, "--encoding json")],
)
def test_a_refusal_is_not_repeated_and_says_what_helps(
    status: int, advice: str
) -> None:
    with (
        collector(Answer(status)) as endpoint,
        Sender(endpoint.url, headers={"x-key": "hidden-key"}) as sender,
        pytest.raises(ExportFailed, match=advice) as raised,
    ):
        sender.send(TRACE)

    assert len(endpoint.received) == 1
    assert "hidden-key" not in str(raised.value)


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://h:6006", "http://h:6006/v1/traces"),
        ("http://h/api/public/otel/", "http://h/api/public/otel/v1/traces"),
        ("https://h/v1/traces", "https://h/v1/traces"),
    ],
)
def test_the_path_is_added_once(endpoint: str, url: str) -> None:
    with Sender(endpoint, headers={}) as sender:
        assert sender.url == url


@pytest.mark.parametrize(
    "endpoint",
    ["", "localhost:4318", "ftp://h", "http://", "http://me:pw@h", "http://h?key=1"],
)
def test_other_endpoints_are_refused(endpoint: str) -> None:
    with pytest.raises(InvalidConfiguration, match="endpoint") as raised:
        Sender(endpoint, headers={})

    assert "pw" not in str(raised.value)


def test_headers_come_from_options_and_the_variable() -> None:
    environment = {"OTEL_EXPORTER_OTLP_HEADERS": "api-key=a%20b, X-Team=one"}

    headers = headers_of(["X-Team=two", "a=b=c"], environment)

    assert headers == {"api-key": "a b", "x-team": "two", "a": "b=c"}


@pytest.mark.parametrize("header", ["secret", "=secret", "a b=secret", "a=sec\nret"])
def test_an_invalid_header_is_refused_without_showing_it(header: str) -> None:
    with pytest.raises(InvalidConfiguration) as raised:
        headers_of([header], {})

    assert "sec" not in str(raised.value)


texts = st.text(st.characters(codec="utf-8"), max_size=20)


@given(
    prompt=texts, call=texts, result=st.recursive(texts | st.integers(-5, 5), st.lists)
)
def test_protobuf_keeps_every_value(prompt: str, call: str, result: Any) -> None:
    store = SessionStore(memory_log(), Redactor(), Limits())
    session = store.session(user_id="ada", session_id="s")
    session.append(
        [
            package.UserInput(text=prompt),
            package.AgentResponse(text=call, usage={"input_tokens": 3}),
            package.ToolCall(call_id="c", tool_name="t", arguments={"a": call}),
            package.ToolResult(call_id="c", content=result),
        ]
    )

    for request in traces(session.history.timeline(), "s", content=True):
        copy = from_protobuf(to_protobuf(request))

        assert spans_of(copy) == spans_of(request)


def spans_of(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the spans, with the kinds as numbers, as our export writes them."""
    kinds = {"SPAN_KIND_INTERNAL": 1, "SPAN_KIND_CLIENT": 3}
    spans = []
    for span in request["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        kind = span["kind"]
        spans.append({**span, "kind": kinds.get(kind, kind)})
    return spans


@pytest.mark.parametrize("data", [b"\xff\xff", b"{}", b"\x0a\xff"])
def test_other_bytes_are_no_request(data: bytes) -> None:
    with pytest.raises(InvalidEvent, match="protobuf"):
        from_protobuf(data)


def test_an_answer_that_is_no_otlp_counts_as_success() -> None:
    assert rejected_spans(b"<html>", "json") == (0, "")
    assert rejected_spans(b"\xff<html>", "protobuf") == (0, "")
    assert rejected_spans(b64encode(b""), "json") == (0, "")
