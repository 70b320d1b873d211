"""Answers that are errors, and answers that broke off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from refold.adapters.importers import base
from refold.adapters.importers.response import INTERRUPTED
from refold.adapters.proxy.protocols.reading import json_of
from refold.domain.events import AgentError, JsonObject, is_busy, is_unreached

# Headers of answers that name a request or say when to repeat it.
_REQUEST_IDS: Final = (
    "request-id",
    "x-request-id",
    "x-goog-request-id",
    "apim-request-id",
)
_RETRY_AFTER: Final = ("retry-after-ms", "retry-after")
# Of a page or text that is no JSON, an error shows so many characters.
_LONGEST_TEXT: Final = 500
_NOT_SHOWN: Final = ("message", "type")


def is_error(status: int, value: Any = None) -> bool:
    """Whether an answer is an error, by its status or by its JSON."""
    if status < 200 or status >= 300:
        return True
    return isinstance(value, dict) and bool(value.get("error"))


def error_of(
    status: int, headers: Mapping[str, str], body: bytes, where: str
) -> AgentError:
    """Return the event of an answer that is an error.

    status: 0 if the provider sent none.
    where:  the name of the protocol.
    """
    if not status:
        return AgentError(
            code="connection",
            message="the provider sent no answer",
            where=where,
            retryable=True,
        )
    try:
        value, _ = json_of(body)
    except ValueError:
        return _of_text(status, headers, body, where)
    if isinstance(value, list) and value:
        value = value[0]
    return error_in(value, where, status=status, headers=headers)


def error_in(
    value: Any,
    where: str,
    *,
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
) -> AgentError:
    """Return the event for the JSON of an error, which may stand in a stream.

    status: of the answer; None for an error within an answer that began well.
    """
    error = base.at(value, "error") or value
    fields = base.mapping(error)
    number = fields.get("code") or fields.get("status_code")
    if status is None and type(number) is int and 400 <= number < 600:
        status = number
    code = (
        base.text(fields, "code")
        or base.text(fields, "status")
        or base.text(fields, "type")
        or (f"http_{status}" if status else "error")
    )
    message = base.text(error) or base.text(fields, "message")
    message = message or base.text(value, "message") or base.text(value, "detail")
    context: JsonObject = {}
    if status:
        context["status"] = status
    for name, header in _named(headers or {}):
        context[name] = header
    request_id = base.text(value, "request_id")
    if request_id:
        context["request_id"] = request_id
    others = {name: fields[name] for name in fields if name not in _NOT_SHOWN}
    if others:
        context["error"] = others
    retryable = is_unreached(code) or (status is not None and is_busy(status))
    return AgentError(
        code=code,
        message=message or f"HTTP {status}",
        where=where,
        retryable=retryable,
        context=context or None,
    )


def broken(where: str) -> AgentError:
    """Return the event for an answer that ended before its end."""
    return AgentError(
        code=INTERRUPTED, message="the answer broke off before its end", where=where
    )


def unreadable(
    status: int, headers: Mapping[str, str], body: bytes, where: str
) -> AgentError:
    """Return the event for an answer that reports success, and is none of the API's."""
    error = _of_text(status, headers, body, where)
    return error.model_copy(update={"code": "connection", "retryable": True})


def _of_text(
    status: int, headers: Mapping[str, str], body: bytes, where: str
) -> AgentError:
    """Return the event for an error without JSON, such as a page of a gateway."""
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    context: JsonObject = {
        "status": status,
        "bytes": len(body),
        **dict(_named(headers)),
    }
    if media_type:
        context["media_type"] = media_type
    message = f"HTTP {status}"
    is_page = media_type.endswith("html") or body[:200].lstrip()[:1] == b"<"
    if not is_page:
        text = body[: 4 * _LONGEST_TEXT].decode(errors="replace").strip()
        message = text[:_LONGEST_TEXT] or message
    return AgentError(
        code=f"http_{status}",
        message=message,
        where=where,
        retryable=is_busy(status),
        context=context,
    )


def _named(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the id of the request and the time to wait, if the headers have them."""
    named: list[tuple[str, str]] = []
    for name, choices in (("request_id", _REQUEST_IDS), ("retry_after", _RETRY_AFTER)):
        for header in choices:
            if headers.get(header):
                named.append((name, headers[header]))
                break
    return named
