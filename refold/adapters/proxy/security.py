"""The checks that each request passes, and the removal of credentials from copies.

Web pages can send requests to loopback addresses.  They cannot know the secret in the
path, and browsers add headers that pages cannot remove.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Iterable
from typing import Final, TypeAlias
from urllib.parse import unquote_plus

RawHeaders: TypeAlias = Iterable[tuple[bytes, bytes]]

FOUND_NOTHING: Final = 404
FORBIDDEN: Final = 403
# Node.js sends ``Sec-Fetch-Mode`` with each request, and only browsers these two.
_SENT_BY_BROWSERS: Final = (b"origin", b"sec-fetch-site")
_PARTS_OF_SECRET_NAMES: Final = frozenset(
    {
        "auth",
        "authorization",
        "authentication",
        "bearer",
        "cookie",
        "cookies",
        "credential",
        "credentials",
        "jwt",
        "key",
        "passwd",
        "password",
        "secret",
        "sig",
        "signature",
        "token",
        "apikey",
    }
)
# Names with such a part, without a credential.
_HARMLESS_NAMES: Final = frozenset({"idempotency-key", "prompt_cache_key"})
_PARTS: Final = re.compile(r"[^a-z0-9]+")


def new_secret() -> str:
    """Return a secret of 32 characters that can be part of a path."""
    return secrets.token_urlsafe(24)


class Guard:
    """Decides which requests the proxy serves.

    secret: the first part of the path.
    port:   the port that the proxy listens on.
    """

    def __init__(self, secret: str, port: int) -> None:
        self._secret = secret.encode()
        self._hosts = {f"127.0.0.1:{port}".encode(), f"localhost:{port}".encode()}

    def refusal(self, path: bytes, headers: RawHeaders) -> int | None:
        """Return the status of the answer to a request that is refused, else None.

        The answer gives no reason, which could help somebody to guess the secret.
        """
        hosts: list[bytes] = []
        for name, value in headers:
            if name in _SENT_BY_BROWSERS:
                return FORBIDDEN
            if name == b"host":
                hosts.append(value.lower())
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            return FORBIDDEN
        candidate = path[1:].partition(b"/")[0]
        if not hmac.compare_digest(candidate, self._secret):
            return FOUND_NOTHING
        return None


def without_credentials(headers: RawHeaders) -> dict[str, str]:
    """Return headers by their names in lower case, without credentials.

    Values of a repeated header are joined with commas.
    """
    kept: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name = raw_name.decode("latin-1").lower()
        if _is_secret(name):
            continue
        value = raw_value.decode("latin-1")
        kept[name] = f"{kept[name]}, {value}" if name in kept else value
    return kept


def query_without_credentials(query: str) -> str:
    """Return a query without the parameters that contain credentials."""
    parameters: list[str] = []
    for parameter in query.split("&"):
        name = unquote_plus(parameter.partition("=")[0]).lower()
        if parameter and not _is_secret(name):
            parameters.append(parameter)
    return "&".join(parameters)


def _is_secret(name: str) -> bool:
    """Whether a header or parameter with this name contains a credential."""
    if name in _HARMLESS_NAMES:
        return False
    return not _PARTS_OF_SECRET_NAMES.isdisjoint(_PARTS.split(name))
