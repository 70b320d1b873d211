"""Access tokens: JWTs that the operator's keys verify, and the callers that they name.

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
_LONGEST_TOKEN = 8 << 10  # characters
_LARGEST_JWKS = 256 << 10  # bytes
_MOST_CALLERS = 4096  # verified tokens that are cached
_MAX_AGE = 300  # seconds after which keys of a URL are fetched again
_FETCH_INTERVAL = 10  # seconds between two fetches, at least
_FETCH_TIMEOUT = 5  # seconds
_URL = re.compile(
    r"(https://[\w.-]+|http://(localhost|127\.\d+\.\d+\.\d+|\[::1\]))(:\d{1,5})?(/[!-~]*)?",
    re.ASCII,
)
_SOURCES = ("REFOLD_JWKS", "REFOLD_TOKEN_SECRET_FILE", "REFOLD_TOKEN_SECRET")
# Header fields by which a token would choose its own key or encoding.
_REFUSED_FIELDS = {"jku", "jwk", "x5u", "x5c", "crit", "b64", "zip", "enc"}
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


class _KeySet(NamedTuple):
    """A set of keys, and the callers whose tokens they verified.

    The callers are cached with the keys, so that they are forgotten when keys change.

    keys:    by kid; None is the key of tokens that name none.
    callers: by the digest of the token.
    """

    keys: dict[str | None, _Key]
    callers: dict[bytes, Caller]


class _Keys:
    """The keys that verify tokens; they never change.

    current: the keys in use, which subclasses replace when they change.
    """

    def __init__(self, current: _KeySet) -> None:
        self.current = current

    def renew(self, token: str, now: float) -> Future[None] | None:  # noqa: ARG002  # of a URL
        """Load keys that have changed, or start a fetch that loads them.

        Returns the fetch that has to end before ``token`` is verified; None if there is
        nothing to wait for.

        now: the time by a monotonic clock, in seconds.
        """
        return None

    def _load(self, read: Callable[[str], bytes], place: str) -> bool:
        """Replace the keys by those at ``place``; False if that is not possible."""
        # The query of a URL may be a secret, and is not logged.
        name = place.partition("?")[0]
        try:
            self.current = _parse_jwks(read(place), name)
        except Exception as error:  # of any disk or network
            log.warning(
                "new keys could not be loaded, the previous ones stay in use: %s", error
            )
            return False
        return True


class _KeyFile(_Keys):
    """A JWKS in a file, which is read again when the file changes."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._version = _file_version(path)
        self._lock = threading.Lock()
        super().__init__(_parse_jwks(_read(path), path))

    def renew(self, token: str, now: float) -> Future[None] | None:  # noqa: ARG002  # of a URL
        with self._lock:
            version = _file_version(self._path)
            if version != self._version:
                self._version = version
                self._load(_read, self._path)
        return None


class _KeyUrl(_Keys):
    """A JWKS at a URL.

    A thread fetches it for the first token, for tokens with an unknown key, and when it
    is old, but at most once in ``_FETCH_INTERVAL``.
    """

    def __init__(self, url: str) -> None:
        if not _is_key_url(url):
            raise InvalidConfiguration(
                "REFOLD_JWKS is a file, https://HOST/…, or http:// of this machine only"
            )
        super().__init__(_KeySet({}, {}))
        self._url = url
        self._lock = threading.Lock()
        # When the last fetch began, and when the last successful one did.
        self._tried_at = float("-inf")
        self._fetched_at = float("-inf")
        self._failed = False
        self._thread = ThreadPoolExecutor(1)
        self._fetch: Future[None] | None = None

    def renew(self, token: str, now: float) -> Future[None] | None:
        keys, callers = self.current
        is_unknown = _digest(token) not in callers and _kid(token) not in keys
        with self._lock:
            is_old = now - self._fetched_at >= _MAX_AGE
            is_fetching = self._fetch is not None and not self._fetch.done()
            may_fetch = not is_fetching and now - self._tried_at >= _FETCH_INTERVAL
            if may_fetch and (is_unknown or is_old):
                self._tried_at = now
                self._fetch = self._thread.submit(self._fetch_keys, now)
            if is_unknown:
                return self._fetch
            # If the URL cannot be reached, old keys stay in use without waiting.
            if is_old and not self._failed:
                return self._fetch
            return None

    def _fetch_keys(self, now: float) -> None:
        """Fetch the keys.  It runs in the thread; ``now`` is when it was started."""
        is_loaded = self._load(_get, self._url)
        if is_loaded:
            self._fetched_at = now
        self._failed = not is_loaded


@dataclass(frozen=True, repr=False)
class Verifier:
    """Verifies access tokens; threads may share it.

    secret:     the secret that signs tokens; None if the keys are public ones.
    configured: False if the secret is one that ``verifier_of`` made.
    issuer:     the issuer that tokens must name; None accepts any.
    leeway:     the seconds by which the clocks of issuer and server may differ.
    longest:    the longest lifetime of a token, in seconds.
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

        It may wait up to 5 seconds for keys from a URL.  Raises TokenRefused.
        """
        fetch = self.keys.renew(token, self.elapsed())
        if fetch is not None:
            wait([fetch], _FETCH_TIMEOUT)
        return self._verified(token)

    async def averify(self, token: str) -> Caller:
        """Do the same as ``verify`` in asyncio, without blocking the event loop."""
        fetch = self.keys.renew(token, self.elapsed())
        if fetch is not None:
            await asyncio.wait([asyncio.wrap_future(fetch)], timeout=_FETCH_TIMEOUT)
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
        """Return the caller with this token, by the current keys or from the cache.

        Raises TokenRefused.
        """
        now = self.clock()
        digest = _digest(token)
        keys, callers = self.keys.current
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
        """Return the caller that claims with a valid signature name.

        Raises TokenRefused for the first fault.
        """
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
    """Return the scopes in ``scope`` (a text) or ``scopes`` (a list); none for both.

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
    """Whether keys may be fetched from this URL: by https, or from this machine."""
    if not _URL.fullmatch(url):
        return False
    try:
        return urlsplit(url).port != 0
    except ValueError:  # a port beyond 65535
        return False


def _digest(token: str) -> bytes:
    """Return the SHA-256 of a token.  Raises TokenRefused for one that is too long."""
    if len(token) > _LONGEST_TOKEN:
        raise TokenRefused("too_long")
    return sha256(token.encode(errors="surrogatepass")).digest()


def _kid(token: str) -> str | None:
    """Return the id of the key that a token's header names; None if it names none.

    Nothing else of a token is used before its signature is verified.

    Raises TokenRefused for a header that is no JSON object or has a refused field.
    """
    encoded = token.partition(".")[0]
    padding = "=" * (-len(encoded) % 4)
    kid: Any = None
    is_sound = False
    with suppress(ValueError, AttributeError, RecursionError):
        header = json.loads(base64.urlsafe_b64decode(encoded + padding))
        kid = header.get("kid")
        is_sound = _REFUSED_FIELDS.isdisjoint(header.keys())
    if not is_sound or "=" in token or not isinstance(kid, str | None):
        raise TokenRefused("malformed")
    return kid


def _claims(token: str, algorithm: str, key: Any) -> dict[str, Any]:
    """Return the claims of a token that ``key`` signed.  Raises TokenRefused."""
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
    # It is raised outside of the handlers, so that its traceback does not contain the
    # other error, which may quote the token.
    raise TokenRefused(reason)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the members of a JSON object; none if a name occurs twice.

    Other readers of the token might use another one of the two.
    """
    members = dict(pairs)
    if len(members) != len(pairs):
        return {}
    return members


class _NamedKey(NamedTuple):
    """A key with its kid."""

    kid: str | None
    key: _Key


def _parse_jwks(body: bytes, where: str) -> _KeySet:
    """Return the keys in a JWKS that may verify tokens.

    Tokens need not name the key of a JWKS that has only one.

    Raises InvalidConfiguration if there is no such key, or if several keys do not have
    different ids.
    """
    usable: list[_NamedKey] = []
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        for jwk in json.loads(body)["keys"]:
            named = _named_key(jwk)
            if named is not None:
                usable.append(named)
    keys = {named.kid: named.key for named in usable}
    have_different_ids = len(keys) == len(usable) and None not in keys
    if len(usable) == 1:
        keys[None] = usable[0].key
    elif not usable or not have_different_ids:
        raise InvalidConfiguration(
            f"{where} is no JWKS of public keys to verify by, each with "
            "its own kid: RS256 (2048 to 8192 bits), ES256, EdDSA (Ed25519)"
        )
    return _KeySet(keys, {})


def _named_key(jwk: Any) -> _NamedKey | None:
    """Return the key in a JWK.

    Returns None if it is not valid, private, too short, of another algorithm, or not
    meant for signatures.
    """
    try:
        kid = jwk.get("kid")
        key = jwt.PyJWK(jwk)
        is_for_signatures = jwk.get("use", "sig") == "sig"
        may_verify = "verify" in jwk.get("key_ops", ["verify"])
    except Exception:  # a JWK may be wrong in any way
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
    """Return the body at ``url``.

    Redirects are errors.  Raises OSError, HTTPException.
    """
    parts = urlsplit(url)
    connection_class = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    host = parts.hostname or ""
    connection = connection_class(host, parts.port, timeout=_FETCH_TIMEOUT)
    connection.connect()
    # The timeout of a socket is for each read; this one is for the whole response.
    timer = threading.Timer(
        _FETCH_TIMEOUT, connection.sock.shutdown, [socket.SHUT_RDWR]
    )
    timer.start()
    try:
        path = parts._replace(scheme="", netloc="", fragment="").geturl()
        connection.request("GET", path or "/", headers={"User-Agent": "refold"})
        response = connection.getresponse()
        if response.status != 200:
            raise OSError(f"status {response.status}")
        return response.read(_LARGEST_JWKS)
    finally:
        timer.cancel()
        connection.close()


def _file_version(path: str) -> tuple[int, ...]:
    """Return values that change when a file is written or replaced.

    Returns an empty tuple without a file.
    """
    with suppress(OSError):
        status = os.stat(path)
        return status.st_ino, status.st_size, status.st_mtime_ns
    return ()


def _read(path: str) -> bytes:
    """Return the content of a file.  Raises InvalidConfiguration."""
    try:
        with open(path, "rb") as file:
            return file.read(_LARGEST_JWKS)
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
        keys = _KeyFile(jwks)
    else:
        if sources:
            secret = _secret(
                environ.get("REFOLD_TOKEN_SECRET_FILE", ""),
                environ.get("REFOLD_TOKEN_SECRET", ""),
            )
        else:
            secret = secrets.token_bytes(32)
        keys = _Keys(_KeySet({None: _Key("HS256", secret)}, {}))
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
    """Return the secret in ``file``, or without a file ``text`` itself.

    Raises InvalidConfiguration for a short secret, or a public key.
    """
    if file:
        warn_of_mode(Path(file))
        secret = _read(file).rstrip(b"\r\n")
    else:
        secret = text.encode()
    hmac = jwt.get_algorithm_by_name("HS256")
    # A public key as the secret would let everybody sign: the library refuses it.
    with suppress(jwt.InvalidKeyError):
        if len(hmac.prepare_key(secret)) >= 32:
            return secret
    raise InvalidConfiguration(
        f"a token secret has 32 bytes or more, not {len(secret)}, and is not a public "
        "key"
    )


def _seconds(
    environ: Mapping[str, str], name: str, default: float, most: float
) -> float:
    """Return the seconds in a variable, 0 to ``most``.  Raises InvalidConfiguration."""
    with suppress(ValueError):
        seconds = float(environ.get(name) or default)
        if 0 <= seconds <= most:
            return seconds
    raise InvalidConfiguration(f"{name} is a number of seconds, 0 to {most:g}")
