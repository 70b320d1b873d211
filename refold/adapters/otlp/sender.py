"""Sends traces to an OTLP endpoint, as the specification of OTLP over HTTP asks."""

from __future__ import annotations

import gzip
import os
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, Self
from urllib.parse import unquote

import orjson

from refold.adapters.frameworks import import_extra
from refold.adapters.otlp.encoding import (
    MEDIA_TYPES,
    Encoding,
    Json,
    rejected_spans,
    to_protobuf,
)
from refold.domain.errors import ExportFailed, InvalidConfiguration

_PATH: Final = "/v1/traces"
# The statuses that the specification calls retryable.
_RETRYABLE: Final = frozenset({429, 502, 503, 504})
_ATTEMPTS: Final = 5
_FIRST_DELAY: Final = 1.0  # seconds; it doubles with each attempt
_LONGEST_DELAY: Final = 30.0
_TIMEOUT: Final = 30.0
_HEADERS_VARIABLE: Final = "OTEL_EXPORTER_OTLP_HEADERS"


class Sender:
    """Sends requests to one endpoint; ``with`` closes its connections.

    endpoint: a URL of http or https.  ``/v1/traces`` is added if it is missing.
    headers:  sent with each request, such as a key; they are never printed.
    encoding: of the requests.
    sleep:    waits before a retry, given the seconds.
    rejected: the number of spans that the endpoint did not take; ``reason`` is the
              endpoint's last explanation.

    Raises InvalidConfiguration for another URL, and without the extra ``otel``.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        headers: Mapping[str, str],
        encoding: Encoding = "protobuf",
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._http = import_extra("httpx2", "otel")
        self.url = _traces_url(endpoint, self._http)
        self.rejected = 0
        self.reason = ""
        self._encoding = encoding
        self._sleep = sleep
        self._client = self._http.Client(
            headers={
                **headers,
                "content-type": MEDIA_TYPES[encoding],
                "content-encoding": "gzip",
            },
            timeout=_TIMEOUT,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._client.close()

    def send(self, request: Json) -> None:
        """Send a request; retries what the endpoint asks to retry.

        A second sending of the same trace shows it once, because its ids derive from
        the events.

        Raises ExportFailed if the endpoint cannot be reached or refuses the request.
        """
        if self._encoding == "json":
            data = orjson.dumps(request)
        else:
            data = to_protobuf(request)
        body = gzip.compress(data, mtime=0)
        delay = _FIRST_DELAY
        for attempt in range(1, _ATTEMPTS + 1):
            answer = self._post(body)
            if answer is not None and answer.status_code not in _RETRYABLE:
                self._take(answer)
                return
            if attempt < _ATTEMPTS:
                wait = delay
                if answer is not None:
                    wait = _retry_after(answer, otherwise=delay)
                self._sleep(min(wait, _LONGEST_DELAY))
                delay *= 2
        problem = "cannot be reached"
        if answer is not None:
            problem = f"answers with status {answer.status_code}"
        raise ExportFailed(
            f"{self.url} {problem}, also after {_ATTEMPTS} attempts: try again later; "
            "traces that were sent before are not shown twice"
        )

    def _post(self, body: bytes) -> Any:
        """Return the response of the endpoint; None if there is none."""
        try:
            return self._client.post(self.url, content=body)
        except self._http.TransportError:
            return None

    def _take(self, answer: Any) -> None:
        """Read the response to a request that is not to be retried.

        Raises ExportFailed for a status that is no success.
        """
        status = answer.status_code
        if 200 <= status < 300:
            count, reason = rejected_spans(answer.content, self._encoding)
            self.rejected += count
            self.reason = reason or self.reason
            return
        advice = "check the endpoint"
        if status in (401, 403):
            advice = f"give the key with --header or {_HEADERS_VARIABLE}"
        elif status == 415:
            other = "json" if self._encoding == "protobuf" else "protobuf"
            advice = f"try --encoding {other}"
        raise ExportFailed(f"{self.url} answers with status {status}: {advice}")


def headers_of(
    options: list[str], environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the headers of options ``NAME=VALUE`` and of OpenTelemetry's variable.

    An option overrides the variable.  The variable separates headers by commas, and
    its values are percent-encoded.

    Raises InvalidConfiguration for a header without a name or ``=``.  The error does
    not contain the header, which may be a key.
    """
    headers: dict[str, str] = {}
    variable = environment.get(_HEADERS_VARIABLE, "")
    for entry in filter(str.strip, variable.split(",")):
        name, value = _header(entry, _HEADERS_VARIABLE)
        headers[name] = unquote(value)
    for entry in options:
        name, value = _header(entry, "--header")
        headers[name] = value
    return headers


def _header(entry: str, origin: str) -> tuple[str, str]:
    """Return the name, in lower case, and the value of ``NAME=VALUE``."""
    name, equals, value = entry.partition("=")
    name = name.strip().lower()
    value = value.strip()
    is_name = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
    if not equals or not is_name or not value.isascii() or not value.isprintable():
        raise InvalidConfiguration(f"{origin}: a header is written as NAME=VALUE")
    return name, value


def _traces_url(endpoint: str, http: Any) -> str:
    """Return the URL for traces below an endpoint."""
    try:
        url = http.URL(endpoint)
    except http.InvalidURL:
        url = http.URL("")
    if url.scheme not in ("http", "https") or not url.host:
        raise InvalidConfiguration(
            "an endpoint is a URL, such as http://localhost:6006 for Phoenix"
        )
    if url.userinfo or url.query or url.fragment:
        raise InvalidConfiguration(
            "the endpoint must have no password and no query: give keys with --header"
        )
    path = url.path.rstrip("/")
    if not path.endswith(_PATH):
        path += _PATH
    return str(url.copy_with(path=path))


def _retry_after(answer: Any, *, otherwise: float) -> float:
    """Return the seconds that a response asks to wait, or ``otherwise`` if none."""
    value = answer.headers.get("retry-after", "")
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return otherwise
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max((moment - datetime.now(UTC)).total_seconds(), 0.0)
