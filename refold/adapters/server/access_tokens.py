"""Access tokens: who may ask the server, by JWTs that the operator's keys verify.

What a token says never chooses how it is verified: each key has one algorithm.
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
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from refold.adapters.keys.master import remark_on_mode
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
_MOST_TOKEN, _MOST_JWKS, _MOST_CALLERS = 8 << 10, 256 << 10, 4096
# Seconds: that keys of a URL are good for, between two fetches, that one may take.
_KEPT, _PAUSE, _PATIENCE = 300, 10, 5
_URL = re.compile(
    r"(https://[\w.-]+|http://(localhost|127\.\d+\.\d+\.\d+|\[::1\]))(:\d{1,5})?(/[!-~]*)?",
    re.ASCII,
)
_SOURCES = ("REFOLD_JWKS", "REFOLD_TOKEN_SECRET_FILE", "REFOLD_TOKEN_SECRET")
_FOREIGN = {"jku", "jwk", "x5u", "x5c", "crit", "b64", "zip", "enc"}
_JWS = jwt.PyJWS()
log = logging.getLogger("refold")


class TokenRefused(RefoldError):
    """The token lets nobody in; ``reason`` is one of ``REASONS``, and all that is said.

    too_long is a token over 8 KiB, or one that ends later than the server allows.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"the access token was refused: {reason}")
        self.reason = reason


class Caller(NamedTuple):
    """Who asks, until when (seconds since 1970), by which token (its ``jti``)."""

    user_id: str
    scopes: frozenset[str]
    until: float
    token_id: str = ""

    def may(self, scope: str) -> bool:
        """Whether the token has ``scope``; ``admin`` does not imply the others."""
        return scope in self.scopes


# Algorithm and key by kid, and whom these verified, by the digest of the token.
_Known: TypeAlias = tuple[dict[str | None, tuple[str, Any]], dict[bytes, Caller]]


class _Keys:
    """What verifies: a secret for good, or a JWKS file, read again when it changes."""

    def __init__(self, known: _Known | None, place: str = "") -> None:
        self._place, self._state, self._lock = place, _state(place), threading.Lock()
        self._fetched, self._failed = float("-inf"), False
        self.known = known or _jwks(_read(place), place)

    def renew(self, token: str, now: float) -> Future[None] | None:  # noqa: ARG002
        """Take new keys, if there are; the fetch that ``token`` has to wait for."""
        with self._lock:
            if (state := _state(self._place)) != self._state:
                self._state = state
                self._take(_read, now)
        return None

    def _take(self, read: Callable[[str], bytes], now: float) -> None:
        try:
            self.known = _jwks(read(self._place), self._place.partition("?")[0])
            self._fetched, self._failed = now, False
        except Exception as error:  # whatever a disk or a network does
            self._failed = True
            log.warning("the keys known before stay, new ones are not there: %s", error)


class _KeyUrl(_Keys):
    """A JWKS at a URL, fetched by a thread of its own, at most once in a pause."""

    def __init__(self, url: str) -> None:
        if not _is_key_url(url):
            raise InvalidConfiguration(
                "REFOLD_JWKS is a file, https://HOST/…, or http:// of this machine only"
            )
        super().__init__(({}, {}), url)
        self._tried, self._thread = self._fetched, ThreadPoolExecutor(1)
        self._fetch = self._thread.submit(lambda: None)

    def renew(self, token: str, now: float) -> Future[None] | None:
        keys, callers = self.known
        unknown = _digest(token) not in callers and _kid(token) not in keys
        with self._lock:
            old = now - self._fetched >= _KEPT
            rested = self._fetch.done() and now - self._tried >= _PAUSE
            if rested and (unknown or old):
                self._tried = now
                self._fetch = self._thread.submit(self._take, _get, now)
            return self._fetch if unknown or (old and not self._failed) else None


@dataclass(frozen=True, repr=False)
class Verifier:
    """Says who asks, by the token that they show; all threads may share one.

    ``configured`` is False if what verifies is a secret that ``verifier_of`` made.
    ``clock`` is the wall clock, by which tokens begin and end.  ``elapsed`` is a clock
    that nobody sets, by which keys that were fetched are old.
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
        """Who shows ``token``.  May wait for a URL, at most 5 seconds: see ``averify``.

        Raises TokenRefused.
        """
        if fetch := self.keys.renew(token, self.elapsed()):
            wait([fetch], _PATIENCE)
        return self._verified(token)

    async def averify(self, token: str) -> Caller:
        """As ``verify``; the event loop goes on while a thread fetches keys."""
        if fetch := self.keys.renew(token, self.elapsed()):
            await asyncio.wait([asyncio.wrap_future(fetch)], timeout=_PATIENCE)
        return self._verified(token)

    def mint(self, user_id: str, scopes: Iterable[str], lifetime: float = DAY) -> str:
        """A token that ends in ``lifetime`` seconds, or earlier if it has to.

        Raises InvalidEvent if that is no user, InvalidConfiguration if there is no
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
        } | ({"iss": self.issuer} if self.issuer else {})
        return jwt.encode(claims, self.secret, "HS256")

    def _verified(self, token: str) -> Caller:
        now, digest, (keys, callers) = self.clock(), _digest(token), self.keys.known
        caller = callers.get(digest)
        if caller is None or caller.until <= now:
            if (key := keys.get(_kid(token))) is None:
                raise TokenRefused("unknown_key")
            caller = self._caller(_claims(token, *key), now)
            if len(callers) >= _MOST_CALLERS:
                callers.clear()
            callers[digest] = caller
        return caller

    def _caller(self, claims: dict[str, Any], now: float) -> Caller:
        times = [claims.get("exp"), claims.get("nbf", 0), claims.get("iat", 0)]
        aud, jti = claims.get("aud"), claims.get("jti", "")
        sound = all(type(t) in (int, float) and 0 <= t < 2**53 for t in times)
        if not sound or not isinstance(jti, str):
            raise TokenRefused("malformed")
        until, *begins = times
        match claims.get("scope"), claims.get("scopes"):
            case (str(words), None):
                said = words.split(" ")
            case (None, list(said)):
                pass
            case _:
                said = []
        user_id = ""
        with suppress(InvalidEvent):
            user_id = check_id("sub", claims.get("sub", ""))
        scopes = frozenset(scope for scope in SCOPES if scope in said)
        wrong = {
            "expired": until + self.leeway <= now,
            "too_long": until - now > self.longest + self.leeway,
            "not_yet": max(begins) > now + self.leeway,
            "audience": self.audience not in (aud if isinstance(aud, list) else [aud]),
            "issuer": self.issuer not in (None, claims.get("iss")),
            "subject": not user_id,
            "scope": not scopes,
        }
        for reason in filter(wrong.get, wrong):
            raise TokenRefused(reason)
        return Caller(user_id, scopes, until, jti)


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
    """The name of the key that a token asks for: all that is believed unverified."""
    head = token.partition(".")[0]
    try:
        header = json.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))
        foreign, kid = _FOREIGN & header.keys(), header.get("kid")
    except (ValueError, AttributeError, RecursionError):
        foreign, kid = _FOREIGN, None
    if foreign or "=" in token or not isinstance(kid, str | None):
        raise TokenRefused("malformed")
    return kid


def _claims(token: str, algorithm: str, key: Any) -> dict[str, Any]:
    """What a token says, if ``key`` signed it.  Raises TokenRefused."""
    reason = "malformed"
    try:
        body = _JWS.decode(token, key, algorithms=[algorithm]).decode()
        claims = json.loads(body, object_pairs_hook=_once)
        if isinstance(claims, dict):
            return claims
    except jwt.InvalidAlgorithmError:
        reason = "algorithm"
    except jwt.InvalidSignatureError:
        reason = "signature"
    except (jwt.PyJWTError, ValueError, RecursionError):
        pass
    raise TokenRefused(reason)  # not above: no error in its context quotes the token


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """What says a thing twice says nothing."""
    return found if len(found := dict(pairs)) == len(pairs) else {}


def _jwks(body: bytes, where: str) -> _Known:
    """The keys in a JWKS that may verify.  Raises InvalidConfiguration."""
    found: list[tuple[str | None, str, Any]] = []
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        found = [key for key in map(_key, json.loads(body)["keys"]) if key]
    keys = {kid: (algorithm, key) for kid, algorithm, key in found}
    if len(found) == 1:  # tokens need not name it
        keys[None] = found[0][1:]
    elif not found or len(keys) < len(found) or None in keys:
        raise InvalidConfiguration(
            f"{where} is no JWKS of public keys to verify by, each with "
            "its own kid: RS256 (2048 to 8192 bits), ES256, EdDSA (Ed25519)"
        )
    return keys, {}


def _key(jwk: Any) -> tuple[str | None, str, Any] | None:
    """Name, algorithm and key of a JWK, if it is public, strong and for signatures."""
    try:
        kid, key, use = jwk.get("kid"), jwt.PyJWK(jwk), jwk.get("use", "sig")
        fits = use == "sig" and "verify" in jwk.get("key_ops", "verify")
    except Exception:  # whatever is wrong with it
        return None
    match key.algorithm_name, key.key:
        case ("RS256", rsa.RSAPublicKey(key_size=bits)):
            fits = fits and 2048 <= bits <= 8192
        case ("ES256", ec.EllipticCurvePublicKey(curve=ec.SECP256R1())):
            pass
        case ("EdDSA", ed25519.Ed25519PublicKey()):
            pass
        case _:
            fits = False
    fits = fits and isinstance(kid, str | None)
    return (kid, key.algorithm_name, key.key) if fits else None


def _get(url: str) -> bytes:
    """What stands at ``url``, no redirect followed.  Raises OSError, HTTPException."""
    at = urlsplit(url)
    kind = HTTPSConnection if at.scheme == "https" else HTTPConnection
    connection = kind(at.hostname or "", at.port, timeout=_PATIENCE)
    connection.connect()
    end = threading.Timer(_PATIENCE, connection.sock.shutdown, [socket.SHUT_RDWR])
    end.start()
    try:
        path = at._replace(scheme="", netloc="", fragment="").geturl()
        connection.request("GET", path or "/", headers={"User-Agent": "refold"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise OSError(f"status {answer.status}")
        return answer.read(_MOST_JWKS)
    finally:
        end.cancel()
        connection.close()


def _state(path: str) -> tuple[int, ...]:
    with suppress(OSError):
        found = os.stat(path)
        return found.st_ino, found.st_size, found.st_mtime_ns
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
    """What verifies tokens by these settings; a command lays its options over them.

    One of ``REFOLD_JWKS`` (a file or a URL), ``REFOLD_TOKEN_SECRET_FILE`` and
    ``REFOLD_TOKEN_SECRET`` (32 bytes or more), else a secret is made.
    ``REFOLD_TOKEN_AUDIENCE`` (else ``refold``), ``REFOLD_TOKEN_ISSUER`` (else any),
    ``REFOLD_TOKEN_LEEWAY`` (how many seconds clocks may differ, 0 to 120, else 30) and
    ``REFOLD_TOKEN_LIFETIME`` (how many seconds a token may last, else a day).

    Raises InvalidConfiguration.
    """
    given = [name for name in _SOURCES if environ.get(name)]
    if len(given) > 1:
        raise InvalidConfiguration(f"{' and '.join(given)} are set: keep one of them")
    jwks, file, text = (environ.get(name, "") for name in _SOURCES)
    secret = None
    if jwks:
        keys = _KeyUrl(jwks) if "://" in jwks else _Keys(None, jwks)
    else:
        secret = _secret(file, text) if given else secrets.token_bytes(32)
        keys = _Keys(({None: ("HS256", secret)}, {}))
    return Verifier(
        keys,
        secret,
        configured=bool(given),
        audience=environ.get("REFOLD_TOKEN_AUDIENCE") or "refold",
        issuer=environ.get("REFOLD_TOKEN_ISSUER") or None,
        leeway=_seconds(environ, "REFOLD_TOKEN_LEEWAY", 30, 120),
        longest=_seconds(environ, "REFOLD_TOKEN_LIFETIME", DAY, 366 * DAY),
        clock=clock,
        elapsed=elapsed,
    )


def _secret(file: str, text: str) -> bytes:
    if file:
        remark_on_mode(Path(file))
    secret = _read(file).rstrip(b"\r\n") if file else text.encode()
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
        if 0 <= (seconds := float(environ.get(name) or default)) <= most:
            return seconds
    raise InvalidConfiguration(f"{name} is a number of seconds, 0 to {most:g}")
