"""Access tokens: JWTs that the operator's keys verify, and the callers they name.

The content of a token never chooses how it is verified: each key has one algorithm.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import Any, Final, NamedTuple, cast
from urllib.parse import urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from refold.adapters.keys.master import warn_of_mode
from refold.domain.errors import InvalidConfiguration, InvalidEvent, RefoldError
from refold.domain.ids import check_id

SCOPES: Final = ("append", "read", "review", "erase", "admin")
REASONS: Final = (
    "malformed",
    "too_long",
    "algorithm",
    "unknown_key",
    "signature",
    "expired",
    "not_yet",
    "audience",
    "issuer",
    "subject",
    "scope",
)
DAY: Final = 86_400
_MOST_TOKEN = 8 << 10  # characters
_MOST_JWKS = 256 << 10  # bytes
_MOST_CALLERS = 4096  # verified tokens that are remembered
_MAX_AGE = 300  # seconds after which keys of a URL are fetched again
_PAUSE = 10  # seconds between two fetches
_PATIENCE = 5  # seconds that one fetch may take
_URL = re.compile(
    r"(https://[\w.-]+|http://(localhost|127\.\d+\.\d+\.\d+|\[::1\]))(:\d{1,5})?(/[!-~]*)?",
    re.ASCII,
)
_SOURCES = ("REFOLD_JWKS", "REFOLD_TOKEN_SECRET_FILE", "REFOLD_TOKEN_SECRET")
# Headers by which a token would choose its own key or encoding.
_FOREIGN = {"jku", "jwk", "x5u", "x5c", "crit", "b64", "zip", "enc"}
_JWS = jwt.PyJWS()
log = logging.getLogger("refold")


class TokenRefused(RefoldError):
    """The token is not accepted.  ``reason`` is one of ``REASONS``, without details.

    too_long is a token over 8 KiB, or one that ends later than the server allows.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"the access token was refused: {reason}")
        self.reason = reason


class Caller(NamedTuple):
    """The user of an access token.

    until:    when the token expires, in seconds since 1970.
    token_id: its ``jti``.
    """

    user_id: str
    scopes: frozenset[str]
    until: float
    token_id: str = ""

    def may(self, scope: str) -> bool:
        """Whether the token has ``scope``; ``admin`` does not imply the others."""
        return scope in self.scopes


class _Key(NamedTuple):
    """A key that verifies signatures, with its one algorithm."""

    algorithm: str
    key: Any


class _Trusted(NamedTuple):
    """A set of keys, and the callers whose tokens it verified.

    keys:    by kid; None is the key of tokens that name none.
    callers: by the digest of the token.
    """

    keys: dict[str | None, _Key]
    callers: dict[bytes, Caller]


class _Keys:
    """The keys that verify: a fixed secret, or a JWKS file, read again on a change."""

    def __init__(self, trusted: _Trusted | None, place: str = "") -> None:
        self._place = place
        self._state = _state(place)
        self._lock = threading.Lock()
        self._fetched = float("-inf")
        self._failed = False
        self.trusted = trusted or _jwks(_read(place), place)

    def renew(self, token: str, now: float) -> Future[None] | None:  # noqa: ARG002
        """Load changed keys.  Returns the fetch that ``token`` has to wait for."""
        with self._lock:
            state = _state(self._place)
            if state != self._state:
                self._state = state
                self._replace(_read, now)
        return None

    def _replace(self, read: Callable[[str], bytes], now: float) -> None:
        try:
            self.trusted = _jwks(read(self._place), self._place.partition("?")[0])
        except Exception as error:  # whatever a disk or a network does
            self._failed = True
            log.warning(
                "new keys could not be loaded, the previous ones stay in use: %s", error
            )
            return
        self._fetched = now
        self._failed = False


class _KeyUrl(_Keys):
    """A JWKS at a URL, fetched by a thread of its own, at most once in ``_PAUSE``."""

    def __init__(self, url: str) -> None:
        if not _is_key_url(url):
            raise InvalidConfiguration(
                "REFOLD_JWKS is a file, https://HOST/…, or http:// of this machine only"
            )
        super().__init__(_Trusted({}, {}), url)
        self._tried = self._fetched
        self._thread = ThreadPoolExecutor(1)
        self._fetch = self._thread.submit(lambda: None)

    def renew(self, token: str, now: float) -> Future[None] | None:
        keys, callers = self.trusted
        is_unknown = _digest(token) not in callers and _kid(token) not in keys
        with self._lock:
            is_old = now - self._fetched >= _MAX_AGE
            may_fetch = self._fetch.done() and now - self._tried >= _PAUSE
            if may_fetch and (is_unknown or is_old):
                self._tried = now
                self._fetch = self._thread.submit(self._replace, _get, now)
            if is_unknown or (is_old and not self._failed):
                return self._fetch
            return None


@dataclass(frozen=True, repr=False)
class Verifier:
    """Verifies access tokens; threads may share it.

    configured: False if the secret is one that ``verifier_of`` made.
    clock:      the wall clock, for the times in tokens.
    elapsed:    a monotonic clock, for the age of fetched keys.
    """

    keys: _Keys
    secret: bytes | None
    configured: bool
    audience: str
    issuer: str | None
    leeway: float
    longest: float
    clock: Callable[[], float]
    elapsed: Callable[[], float]

    def verify(self, token: str) -> Caller:
        """Return the caller with this token.

        It may wait up to 5 seconds for a URL; see ``averify``.  Raises TokenRefused.
        """
        fetch = self.keys.renew(token, self.elapsed())
        if fetch is not None:
            wait([fetch], _PATIENCE)
        return self._verified(token)

    async def averify(self, token: str) -> Caller:
        """``verify`` for asyncio: the event loop runs while a thread fetches keys."""
        fetch = self.keys.renew(token, self.elapsed())
        if fetch is not None:
            await asyncio.wait([asyncio.wrap_future(fetch)], timeout=_PATIENCE)
        return self._verified(token)

    def mint(self, user_id: str, scopes: Iterable[str], lifetime: float = DAY) -> str:
        """Make a token that expires in ``lifetime`` seconds, or at the longest allowed.

        Raises InvalidEvent for an invalid user id, InvalidConfiguration if there is no
        secret to sign with.
        """
        if self.secret is None:
            raise InvalidConfiguration("REFOLD_JWKS verifies tokens, it makes none")
        now = int(self.clock())
        claims: dict[str, Any] = {
            "sub": check_id("user_id", user_id),
            "scope": " ".join(scopes),
            "aud": self.audience,
            "iat": now,
            "exp": now + int(min(lifetime, self.longest)),
            "jti": secrets.token_hex(8),
        }
        if self.issuer:
            claims["iss"] = self.issuer
        return jwt.encode(claims, self.secret, "HS256")

    def _verified(self, token: str) -> Caller:
        now = self.clock()
        digest = _digest(token)
        keys, callers = self.keys.trusted
        caller = callers.get(digest)
        if caller is not None and caller.until > now:
            return caller
        key = keys.get(_kid(token))
        if key is None:
            raise TokenRefused("unknown_key")
        claims = _claims(token, key.algorithm, key.key)
        caller = self._caller(claims, now)
        if len(callers) >= _MOST_CALLERS:
            callers.clear()
        callers[digest] = caller
        return caller

    def _caller(self, claims: dict[str, Any], now: float) -> Caller:
        """The caller of verified claims.  Raises TokenRefused for the first fault."""
        until: Any = claims.get("exp")
        not_before: Any = claims.get("nbf", 0)
        issued_at: Any = claims.get("iat", 0)
        times = (until, not_before, issued_at)
        token_id = claims.get("jti", "")
        if not all(map(_is_time, times)) or not isinstance(token_id, str):
            raise TokenRefused("malformed")
        if until + self.leeway <= now:
            raise TokenRefused("expired")
        if until - now > self.longest + self.leeway:
            raise TokenRefused("too_long")
        if max(not_before, issued_at) > now + self.leeway:
            raise TokenRefused("not_yet")
        audience = claims.get("aud")
        audiences = audience if isinstance(audience, list) else [audience]
        if self.audience not in audiences:
            raise TokenRefused("audience")
        if self.issuer is not None and claims.get("iss") != self.issuer:
            raise TokenRefused("issuer")
        user_id = ""
        with suppress(InvalidEvent):
            user_id = check_id("sub", claims.get("sub", ""))
        if not user_id:
            raise TokenRefused("subject")
        scopes = _scopes(claims)
        if not scopes:
            raise TokenRefused("scope")
        return Caller(user_id, scopes, until, token_id)


def _is_time(value: object) -> bool:
    """Whether a claim is a number of seconds that a clock can show."""
    return type(value) in (int, float) and 0 <= cast(float, value) < 2**53


def _scopes(claims: Mapping[str, Any]) -> frozenset[str]:
    """The scopes in ``scope`` (a text) or ``scopes`` (a list); none if both are there.

    Names that Refold does not know are ignored.
    """
    names: list[Any] = []
    match claims.get("scope"), claims.get("scopes"):
        case (str(text), None):
            names = text.split(" ")
        case (None, list(entries)):
            names = entries
    return frozenset(scope for scope in SCOPES if scope in names)


def _is_key_url(url: str) -> bool:
    if not _URL.fullmatch(url):
        return False
    try:
        return urlsplit(url).port != 0
    except ValueError:  # a port beyond 65535
        return False


def _digest(token: str) -> bytes:
    if len(token) > _MOST_TOKEN:
        raise TokenRefused("too_long")
    return sha256(token.encode(errors="surrogatepass")).digest()


def _kid(token: str) -> str | None:
    """The id of the key in a token's header: all that is believed unverified."""
    encoded = token.partition(".")[0]
    padding = "=" * (-len(encoded) % 4)
    kid: Any = None
    is_sound = False
    with suppress(ValueError, AttributeError, RecursionError):
        header = json.loads(base64.urlsafe_b64decode(encoded + padding))
        kid = header.get("kid")
        is_sound = _FOREIGN.isdisjoint(header.keys())
    if not is_sound or "=" in token or not isinstance(kid, str | None):
        raise TokenRefused("malformed")
    return kid


def _claims(token: str, algorithm: str, key: Any) -> dict[str, Any]:
    """The claims of a token that ``key`` signed.  Raises TokenRefused."""
    reason = "malformed"
    try:
        body = _JWS.decode(token, key, algorithms=[algorithm]).decode()
        claims = json.loads(body, object_pairs_hook=_without_repeats)
        if isinstance(claims, dict):
            return claims
    except jwt.InvalidAlgorithmError:
        reason = "algorithm"
    except jwt.InvalidSignatureError:
        reason = "signature"
    except (jwt.PyJWTError, ValueError, RecursionError):
        pass
    raise TokenRefused(reason)  # not above: no error in its context quotes the token


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object; an empty one if a name is in it twice."""
    members = dict(pairs)
    if len(members) != len(pairs):
        return {}
    return members


class _NamedKey(NamedTuple):
    """A key with its kid."""

    kid: str | None
    key: _Key


def _jwks(body: bytes, where: str) -> _Trusted:
    """The keys in a JWKS that may verify.  Raises InvalidConfiguration.

    Tokens need not name the key of a JWKS that has only one.
    """
    found: list[_NamedKey] = []
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        for jwk in json.loads(body)["keys"]:
            named = _named_key(jwk)
            if named is not None:
                found.append(named)
    keys = {named.kid: named.key for named in found}
    if len(found) == 1:
        keys[None] = found[0].key
    elif not found or len(keys) < len(found) or None in keys:
        raise InvalidConfiguration(
            f"{where} is no JWKS of public keys to verify by, each with "
            "its own kid: RS256 (2048 to 8192 bits), ES256, EdDSA (Ed25519)"
        )
    return _Trusted(keys, {})


def _named_key(jwk: Any) -> _NamedKey | None:
    """The key in a JWK; None if it is not public, weak, or not for signatures."""
    try:
        kid = jwk.get("kid")
        key = jwt.PyJWK(jwk)
        is_for_signatures = jwk.get("use", "sig") == "sig"
        may_verify = "verify" in jwk.get("key_ops", "verify")
    except Exception:  # whatever is wrong with it
        return None
    if not (is_for_signatures and may_verify and isinstance(kid, str | None)):
        return None
    match key.algorithm_name, key.key:
        case ("RS256", rsa.RSAPublicKey(key_size=bits)):
            is_strong = 2048 <= bits <= 8192
        case ("ES256", ec.EllipticCurvePublicKey(curve=ec.SECP256R1())):
            is_strong = True
        case ("EdDSA", ed25519.Ed25519PublicKey()):
            is_strong = True
        case _:
            is_strong = False
    if not is_strong:
        return None
    return _NamedKey(kid, _Key(key.algorithm_name, key.key))


def _get(url: str) -> bytes:
    """The body at ``url``.  Follows no redirect.  Raises OSError, HTTPException."""
    parts = urlsplit(url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=_PATIENCE)
    connection.connect()
    # The timeout of a socket is for each read; this one is for the whole answer.
    timer = threading.Timer(_PATIENCE, connection.sock.shutdown, [socket.SHUT_RDWR])
    timer.start()
    try:
        path = parts._replace(scheme="", netloc="", fragment="").geturl()
        connection.request("GET", path or "/", headers={"User-Agent": "refold"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise OSError(f"status {answer.status}")
        return answer.read(_MOST_JWKS)
    finally:
        timer.cancel()
        connection.close()


def _state(path: str) -> tuple[int, ...]:
    """What changes when a file is written or replaced; empty if there is none."""
    with suppress(OSError):
        status = os.stat(path)
        return status.st_ino, status.st_size, status.st_mtime_ns
    return ()


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_MOST_JWKS)
    except OSError as error:
        raise InvalidConfiguration(f"{path} cannot be read: {error.strerror}") from None


def verifier_of(
    environ: Mapping[str, str] = os.environ,
    *,
    clock: Callable[[], float] = time.time,
    elapsed: Callable[[], float] = time.monotonic,
) -> Verifier:
    """Return the verifier that these settings describe.

    Exactly one of ``REFOLD_JWKS`` (a file or a URL), ``REFOLD_TOKEN_SECRET_FILE`` and
    ``REFOLD_TOKEN_SECRET`` (32 bytes or more) may be set.  Without any, a new random
    secret verifies.

    REFOLD_TOKEN_AUDIENCE: the audience of tokens; ``refold`` by default.
    REFOLD_TOKEN_ISSUER:   their issuer; any by default.
    REFOLD_TOKEN_LEEWAY:   seconds by which clocks may differ, 0 to 120; 30 by default.
    REFOLD_TOKEN_LIFETIME: the longest life of a token in seconds; a day by default.

    Raises InvalidConfiguration.
    """
    sources = [name for name in _SOURCES if environ.get(name)]
    if len(sources) > 1:
        raise InvalidConfiguration(f"{' and '.join(sources)} are set: keep one of them")
    jwks = environ.get("REFOLD_JWKS", "")
    secret: bytes | None = None
    keys: _Keys
    if "://" in jwks:
        keys = _KeyUrl(jwks)
    elif jwks:
        keys = _Keys(None, jwks)
    else:
        if sources:
            secret = _secret(
                environ.get("REFOLD_TOKEN_SECRET_FILE", ""),
                environ.get("REFOLD_TOKEN_SECRET", ""),
            )
        else:
            secret = secrets.token_bytes(32)
        keys = _Keys(_Trusted({None: _Key("HS256", secret)}, {}))
    return Verifier(
        keys,
        secret,
        configured=bool(sources),
        audience=environ.get("REFOLD_TOKEN_AUDIENCE") or "refold",
        issuer=environ.get("REFOLD_TOKEN_ISSUER") or None,
        leeway=_seconds(environ, "REFOLD_TOKEN_LEEWAY", 30, 120),
        longest=_seconds(environ, "REFOLD_TOKEN_LIFETIME", DAY, 366 * DAY),
        clock=clock,
        elapsed=elapsed,
    )


def _secret(file: str, text: str) -> bytes:
    """The secret in ``file``, or ``text`` itself.  Raises InvalidConfiguration."""
    if file:
        warn_of_mode(Path(file))
        secret = _read(file).rstrip(b"\r\n")
    else:
        secret = text.encode()
    with suppress(jwt.InvalidKeyError):  # a public key
        if len(jwt.get_algorithm_by_name("HS256").prepare_key(secret)) >= 32:
            return secret
    raise InvalidConfiguration(
        f"a token secret has 32 bytes or more, not {len(secret)}, and is no public key"
    )


def _seconds(
    environ: Mapping[str, str], name: str, default: float, most: float
) -> float:
    with suppress(ValueError):
        seconds = float(environ.get(name) or default)
        if 0 <= seconds <= most:
            return seconds
    raise InvalidConfiguration(f"{name} is a number of seconds, 0 to {most:g}")
