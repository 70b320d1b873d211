"""Refusals of requests: sentences for people, and JSON for programs (RFC 9457).

No refusal repeats the client's input, which may be a secret in the wrong field.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import orjson
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from refold.adapters.server.routes import BODY_FIELDS
from refold.domain import errors

PROBLEM: Final = "application/problem+json"
# Paths for programs; every other path shows a page.
_FOR_PROGRAMS: Final = re.compile(r"/(v1|mcp|metrics|health|static)(/|$)")
_STATUS: Final[Mapping[type[errors.RefoldError], int]] = {
    errors.SessionNotFound: 404,
    errors.UserNotFound: 404,
    errors.NotErased: 404,
    errors.ShareNotFound: 404,
    errors.StaleSession: 409,
    errors.LeaseLost: 409,
    errors.IdempotencyConflict: 409,
    errors.SessionClosed: 409,
    errors.AlreadyDecided: 409,
    errors.OnHold: 409,
    errors.Frozen: 409,
    errors.Erased: 410,
    errors.Expired: 410,
    errors.EventTooLarge: 413,
    errors.ContextTooLarge: 413,
    errors.CorruptEvent: 500,
    errors.SealBroken: 500,
    errors.StoreUnavailable: 503,
    errors.KeyUnavailable: 503,
}
# The codes of some statuses; the code of any other status is its phrase.
_CODES: Final = {408: "too_slow", 413: "too_large"}
_NO_ITEMS: Final[Mapping[str, Any]] = MappingProxyType({})


class Refusal(NamedTuple):
    """The refusal of a request.

    detail:  a sentence that says how to fix the request.
    headers: further headers of the answer.
    members: further members of the JSON, such as the numbers of an error.
    """

    status: int
    code: str
    detail: str = ""
    headers: Mapping[str, str] = _NO_ITEMS
    members: Mapping[str, Any] = _NO_ITEMS


UNEXPECTED: Final = Refusal(
    500, "unexpected", "this is a bug: the server's log names the place"
)


def is_for_people(path: str) -> bool:
    """Whether a refusal at this path is shown as a page."""
    return _FOR_PROGRAMS.match(path) is None


def headers_of(refusal: Refusal) -> dict[str, str]:
    """Return the headers of the answer."""
    headers = dict(refusal.headers)
    if refusal.status == 401:
        headers["WWW-Authenticate"] = 'Bearer error="invalid_token"'
    if refusal.status in (429, 503):
        headers["Retry-After"] = "1"
    return headers


def problem(refusal: Refusal, *, request_id: str = "") -> Response:
    """Return the refusal as JSON."""
    members = {
        "type": f"urn:refold:problem:{refusal.code}",
        "title": HTTPStatus(refusal.status).phrase,
        "status": refusal.status,
        "detail": refusal.detail,
        "request_id": request_id,
        **refusal.members,
    }
    return Response(
        orjson.dumps(members),
        refusal.status,
        media_type=PROBLEM,
        headers=headers_of(refusal),
    )


def refusal_of(error: Exception, *, content_type: str = "") -> Refusal:
    """Return the refusal for an expected error; raise any other error."""
    if isinstance(error, errors.RefoldError):
        return _of_refold(error)
    if isinstance(error, RequestValidationError):
        return _of_validation(error.errors(), content_type)
    if isinstance(error, HTTPException):
        return _of_http(error)
    raise error


def _of_refold(error: errors.RefoldError) -> Refusal:
    """Return the refusal for an error of Refold.

    The code is the name of the error's class, such as "stale-session".  The members are
    the numbers of the error.
    """
    code = re.sub(r"(?<!^)(?=[A-Z])", "-", type(error).__name__).lower()
    numbers = {name: value for name, value in vars(error).items() if type(value) is int}
    status = 422
    for error_class in type(error).__mro__:
        if error_class in _STATUS:
            status = _STATUS[error_class]
            break
    detail = str(error)
    if status == 404:  # the error's own text repeats the client's input
        detail = "there is none of that name: GET /v1/sessions lists sessions"
    return Refusal(status, code, detail, members=numbers)


def _of_http(error: HTTPException) -> Refusal:
    """Return the refusal with the status and the detail of an HTTP error."""
    status = error.status_code
    phrase = HTTPStatus(status).phrase
    detail = "" if error.detail == phrase else str(error.detail)
    code = _CODES.get(status, phrase.lower().replace(" ", "-"))
    return Refusal(status, code, detail, headers=error.headers or {})


def _of_validation(problems: Sequence[Any], content_type: str) -> Refusal:
    """Return the refusal for values that an operation does not accept.

    problems: pydantic's errors.
    """
    entries: list[dict[str, str]] = []
    sentences: list[str] = []
    for problem in problems:
        place, *names = problem["loc"]
        entry = {"in": str(place), "problem": str(problem["type"])}
        name = _declared_name(place, names)
        if name:
            entry["name"] = name
        entries.append(entry)
        subject = name or _PLACES.get(place, place)
        sentence = f"{subject} {_requirement(problem)}"
        if sentence not in sentences:
            sentences.append(sentence)
    detail = f"{'; '.join(sentences)}: /v1/openapi.json describes the request"
    is_json = content_type.startswith("application/json")
    if entries[0]["in"] == "body" and not is_json:
        detail = "a body is sent with Content-Type: application/json"
    return Refusal(422, "request", detail, members={"errors": entries})


_PLACES: Final = {"query": "a parameter", "body": "the body", "path": "the path"}


def _declared_name(place: str, names: Sequence[Any]) -> str:
    """Return the name of a declared parameter or field; empty for a client's key."""
    if not names:
        return ""
    if place == "body" and names[0] not in BODY_FIELDS:
        return ""
    return str(names[0])


# The requirement that a value fails, by pydantic's type of error, with its bounds in
# braces.
_REQUIREMENTS: Final = {
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a whole number of at most 19 digits",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
    "string_type": "must be a text",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must have at least {min_length} entries",
    "too_long": "must have at most {max_length} entries",
    "missing": "is missing",
    "unknown": "is not known here; the parameters are {known}",
    "repeated": "may be given only once",
    "extra_forbidden": "has a field that this operation does not know",
    "json_invalid": "must be JSON",
    "model_attributes_type": "must be a JSON object",
    "dict_type": "must be a JSON object",
}


def _requirement(error: Mapping[str, Any]) -> str:
    """Return the requirement that a value fails, such as "must be a text"."""
    if error["type"] == "string_too_short" and error["ctx"]["min_length"] == 1:
        return "must not be empty"
    requirement = _REQUIREMENTS.get(error["type"], "is not valid")
    return requirement.format(**error.get("ctx", {}))
