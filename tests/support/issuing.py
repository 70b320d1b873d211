"""An issuer of access tokens for tests: its keys, its JWKS, and its site."""

import base64
import contextlib
import json
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from refold.adapters.server.access_tokens import Verifier, verifier_of
from tests.support.waiting import PATIENCE_SEC

NOW = 1_800_000_000.0
ALGORITHMS = ("RS256", "ES256", "EdDSA")
ISSUER = "https://issuer.example"


class Clock:
    """A clock that moves only when a test moves it."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


def verifier(
    clock: Clock | None = None, elapsed: Clock | None = None, /, **settings: Any
) -> Verifier:
    """Return a verifier with settings named without ``REFOLD_``.

    Both of its clocks are ``clock`` unless another is given.
    """
    named = {f"REFOLD_{name}": str(value) for name, value in settings.items()}
    wall = clock or Clock()
    return verifier_of(named, clock=wall, elapsed=elapsed or wall)


def private_key(algorithm: str, name: str = "") -> Any:
    """Return a key for that algorithm, always the same for one name."""
    return _generated(algorithm, name)


@cache
def _generated(algorithm: str, _name: str) -> Any:
    if algorithm.startswith("RS"):
        return rsa.generate_private_key(65537, 2048)
    if algorithm.startswith("ES"):
        return ec.generate_private_key(ec.SECP256R1())
    return ed25519.Ed25519PrivateKey.generate()


def jwk(key: Any, kid: str | None = None, **more: Any) -> dict[str, Any]:
    """Return the public half of ``key`` as an entry of a JWKS."""
    public = key.public_key()
    if isinstance(public, rsa.RSAPublicKey):
        fields = RSAAlgorithm.to_jwk(public, as_dict=True)
    elif isinstance(public, ec.EllipticCurvePublicKey):
        fields = ECAlgorithm.to_jwk(public, as_dict=True)
    else:
        fields = OKPAlgorithm.to_jwk(public, as_dict=True)
    return {**fields, **({} if kid is None else {"kid": kid}), **more}


def jwks(*keys: Mapping[str, Any]) -> bytes:
    """Return a JWKS of these keys."""
    return json.dumps({"keys": keys}).encode()


def each_kind(name: str = "") -> bytes:
    """Return a JWKS with a key for each algorithm; its ``kid`` is the algorithm."""
    return jwks(*(jwk(private_key(each, name), each) for each in ALGORITHMS))


def claims(**changed: Any) -> dict[str, Any]:
    """Return the claims of a good token; ``...`` removes a claim."""
    good: dict[str, Any] = {"sub": "ada", "aud": "refold", "scope": "append read"}
    good |= {"iss": ISSUER, "iat": NOW - 10, "exp": NOW + 3600, "jti": "t1"}
    return {k: v for k, v in (good | changed).items() if v is not ...}


def token(
    algorithm: str = "EdDSA",
    *,
    key: Any = None,
    kid: str | None = "",
    header: Mapping[str, Any] | None = None,
    **changed: Any,
) -> str:
    """Return a good token of the issuer with the given changes."""
    named = {} if kid is None else {"kid": kid or algorithm}
    headers = {"alg": algorithm, "typ": "JWT"} | named | dict(header or {})
    return signed(headers, claims(**changed), algorithm, key)


def signed(header: Any, body: Any, algorithm: str, key: Any = None) -> str:
    """Return a token of any header and body, each an object or bytes."""
    text = f"{part(header)}.{part(body)}"
    how = jwt.get_algorithm_by_name(algorithm)
    signature = how.sign(text.encode(), key or private_key(algorithm))
    return f"{text}.{part(signature)}"


def part(content: Any) -> str:
    """Return a part of a token: an object as JSON, or bytes, in base64."""
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


class Site:
    """A site for keys: its answer, its number of requests, and a way to delay it."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.status = 200
        self.asked = 0
        self.headers: dict[str, str] = {}
        self.reached = threading.Event()
        self.go = threading.Event()
        self.go.set()
        self.before: Callable[[BaseHTTPRequestHandler], None] = lambda _: None
        self.url = ""

    def answer(self, asking: BaseHTTPRequestHandler) -> None:
        self.asked += 1
        self.reached.set()
        assert self.go.wait(PATIENCE_SEC)
        self.before(asking)
        asking.send_response(self.status)
        for name, value in self.headers.items():
            asking.send_header(name, value)
        asking.end_headers()
        asking.wfile.write(self.body)


@contextlib.contextmanager
def serving(site: Site, tls: ssl.SSLContext | None = None) -> Iterator[Site]:
    """Serve ``site`` at ``site.url`` on this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with contextlib.suppress(OSError):  # the client may have gone
                site.answer(self)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            pass  # the client does not trust the certificate

    with Server(("127.0.0.1", 0), Handler) as server:
        if tls:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        host = "localhost" if tls else "127.0.0.1"
        site.url = f"http{'s' * bool(tls)}://{host}:{server.server_port}/keys"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield site
        finally:
            site.go.set()
            server.shutdown()
            thread.join()
