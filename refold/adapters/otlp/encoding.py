"""Encodings of OTLP requests: JSON as the specification defines it, and protobuf.

A request is a JSON object with ``resourceSpans``.  In JSON, OTLP writes ids of traces
and spans in hexadecimal; protobuf's own JSON format writes bytes in Base64.
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias

import orjson

from refold.adapters.frameworks import import_extra
from refold.adapters.importers import base
from refold.domain.errors import InvalidEvent

Encoding: TypeAlias = Literal["protobuf", "json"]
Json: TypeAlias = dict[str, Any]
MEDIA_TYPES: Final[dict[Encoding, str]] = {
    "protobuf": "application/x-protobuf",
    "json": "application/json",
}
_IDS: Final = ("traceId", "spanId", "parentSpanId")
_WINDOW_BITS_OF_GZIP: Final = 31


def to_protobuf(request: Json) -> bytes:
    """Return a request as protobuf.  ``request`` is left unchanged.

    Raises InvalidConfiguration if the extra ``otel`` is not installed.
    """
    json_format = import_extra("google.protobuf.json_format", "otel")
    converted = _with_ids(request, _hexadecimal_to_base64)
    message = json_format.ParseDict(converted, _request_message())
    data: bytes = message.SerializeToString(deterministic=True)
    return data


def from_protobuf(data: bytes) -> Json:
    """Return a request from protobuf.

    Raises InvalidEvent for other bytes, InvalidConfiguration if the extra ``otel`` is
    not installed.
    """
    json_format = import_extra("google.protobuf.json_format", "otel")
    decode_error = import_extra("google.protobuf.message", "otel").DecodeError
    message = _request_message()
    try:
        message.ParseFromString(data)
    except decode_error:
        raise InvalidEvent("the request is not an OTLP request in protobuf") from None
    request: Json = json_format.MessageToDict(message)
    return _with_ids(request, _base64_to_hexadecimal)


def request_of(data: bytes, encoding: Encoding) -> Json:
    """Return the request in a body.  Raises InvalidEvent for other bytes."""
    if encoding == "protobuf":
        return from_protobuf(data)
    try:
        request, _ = base.loads(data)
    except (ValueError, RecursionError):
        request = None
    if not isinstance(request, dict):
        raise InvalidEvent("the request is not an OTLP request in JSON")
    return request


def rejected_spans(answer: bytes, encoding: Encoding) -> tuple[int, str]:
    """Return how many spans a server rejected, and its reason.

    answer: the body of a response with status 200.  A body that is no OTLP response
            counts as one without rejections, as the specification asks.
    """
    if encoding == "json":
        value, _ = base.parsed(answer.decode(errors="replace"))
        partial = base.mapping(value, "partialSuccess")
        count = base.number(partial, "rejectedSpans")
        if count is None:  # a 64-bit number is a text in JSON
            digits = base.text(partial, "rejectedSpans") or "0"
            count = int(digits) if digits.isascii() and digits.isdigit() else 0
        return int(count), base.text(partial, "errorMessage") or ""
    decode_error = import_extra("google.protobuf.message", "otel").DecodeError
    response = _service().ExportTraceServiceResponse()
    try:
        response.ParseFromString(answer)
    except decode_error:
        return 0, ""
    partial_success = response.partial_success
    return partial_success.rejected_spans, partial_success.error_message


def response(encoding: Encoding, *, rejected: int = 0, reason: str = "") -> bytes:
    """Return the body of the response to a request.

    rejected: the number of spans that were not taken.
    """
    if encoding == "json":
        partial: Json = {}
        if rejected or reason:
            partial = {"rejectedSpans": str(rejected), "errorMessage": reason}
        return orjson.dumps({"partialSuccess": partial} if partial else {})
    message = _service().ExportTraceServiceResponse()
    if rejected or reason:
        message.partial_success.rejected_spans = rejected
        message.partial_success.error_message = reason
    data: bytes = message.SerializeToString()
    return data


def unzipped(data: bytes, *, most: int) -> bytes:
    """Return the content of a gzip stream.

    most: the most bytes of the content.

    Raises InvalidEvent for a damaged stream, and for a longer content.
    """
    decompressor = zlib.decompressobj(_WINDOW_BITS_OF_GZIP)
    try:
        content = decompressor.decompress(data, most + 1)
    except zlib.error:
        raise InvalidEvent("the request is not a gzip stream") from None
    if len(content) > most:
        raise InvalidEvent(f"the request has more than {most} bytes: send fewer spans")
    if not decompressor.eof:
        raise InvalidEvent("the gzip stream of the request is incomplete")
    return content


def _service() -> Any:
    """Return the module with the messages of the trace service."""
    name = "opentelemetry.proto.collector.trace.v1.trace_service_pb2"
    return import_extra(name, "otel")


def _request_message() -> Any:
    return _service().ExportTraceServiceRequest()


def _with_ids(request: Json, converted: Callable[[str], str]) -> Json:
    """Return a copy of a request with the ids of its spans converted."""
    resources: list[Any] = []
    for resource in base.each(request, "resourceSpans"):
        scopes: list[Any] = []
        for scope in base.each(resource, "scopeSpans"):
            spans = [
                _with_converted_ids(span, converted)
                for span in base.each(scope, "spans")
            ]
            scopes.append({**scope, "spans": spans})
        resources.append({**resource, "scopeSpans": scopes})
    return {"resourceSpans": resources}


def _with_converted_ids(span: Json, converted: Callable[[str], str]) -> Json:
    """Return a copy of a span, or of a link, with its ids converted."""
    copy = {**span}
    for name in _IDS:
        if isinstance(span.get(name), str):
            copy[name] = converted(span[name])
    if span.get("links"):
        links = base.each(span, "links")
        copy["links"] = [_with_converted_ids(link, converted) for link in links]
    return copy


def _hexadecimal_to_base64(text: str) -> str:
    return b64encode(bytes.fromhex(text)).decode()


def _base64_to_hexadecimal(text: str) -> str:
    return b64decode(text).hex()
