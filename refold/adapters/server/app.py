"""The HTTP application: a gate that every request passes, and what stands behind it.

Who asks is known before anything is loaded.  No answer, log line or metric holds what
was refused: it may be what had to be redacted.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
import time
import traceback
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from http import HTTPStatus
from os.path import basename
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qs, quote
from uuid import uuid4

import orjson
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from refold.adapters.server.access_tokens import Caller, TokenRefused, Verifier
from refold.domain import errors
from refold.redaction.redactor import RedactionError
from refold.store import SessionStore
from refold.store.proofs.access_log import request_of

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Asgi: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

COOKIE: Final = "refold_session"
PROBLEM: Final = "application/problem+json"
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
# Health alone is open; the form for a token, and its style sheet, know nothing yet.
_OPEN: Final = re.compile(r"/health(/ready)?|/login|/static/[\w./-]+")
_PROGRAMS: Final = re.compile(r"/(v1|mcp|metrics)(/|$)")
_SAFE: Final = ("GET", "HEAD", "OPTIONS")
_GIVEN_ID: Final = re.compile(r"[\w.:-]{1,100}", re.ASCII)
_LONGEST_FORM: Final = 65_536
_KNOWN: Final = 10_000  # callers whose rate is remembered

log = logging.getLogger("refold.server")
# Who asks now, where no request is at hand: of the tools that MCP offers.
_caller: ContextVar[Caller] = ContextVar("refold_caller")

_STATUS: Final[tuple[tuple[type[errors.RefoldError], int], ...]] = (
    (errors.EventTooLarge, 413),
    (errors.ContextTooLarge, 413),
    (errors.StoreUnavailable, 503),
    (errors.KeyUnavailable, 503),
    (errors.Erased, 410),
    (errors.Expired, 410),
    (errors.SessionNotFound, 404),
    (errors.UserNotFound, 404),
    (errors.NotErased, 404),
    (errors.StaleSession, 409),
    (errors.IdempotencyConflict, 409),
    (errors.SessionClosed, 409),
    (errors.AlreadyDecided, 409),
    (errors.OnHold, 409),
    (errors.Frozen, 409),
    (errors.CorruptEvent, 500),
    (errors.SealBroken, 500),
)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a server takes.

    body_bytes, body_sec: of one request's body, and how long it may take to come.
    per_second, burst:    requests of one user; of who shows no token, by address.
    at_once:  requests that are answered at the same time; ``tails`` are counted apart.
    secure:   whether cookies go over TLS alone.
    origins:  other sites whose pages may call ``/v1``; none is the rule.
    """

    body_bytes: int = 16 << 20
    body_sec: float = 30.0
    per_second: float = 200.0
    burst: float = 400.0
    at_once: int = 200
    tails: int = 1_000
    secure: bool = False
    origins: tuple[str, ...] = ()


class Metrics:
    """What the server counts, in Prometheus' format; no label names a user."""

    def __init__(self) -> None:
        self.registry = made = CollectorRegistry()
        self.requests = Counter(
            "refold_requests", "Answers", ["method", "route", "status"], registry=made
        )
        self.seconds = Histogram(
            "refold_request_seconds", "Until the answer began", ["route"], registry=made
        )
        self.running = Gauge("refold_requests_running", "Being answered", registry=made)
        self.tails = Gauge("refold_tails", "Open tails of sessions", registry=made)
        self.refused = Counter(
            "refold_tokens_refused", "Refused tokens", ["reason"], registry=made
        )

    def text(self) -> bytes:
        """All of it, as a scraper reads it."""
        return generate_latest(self.registry)


class Rates:
    """A bucket of requests for each caller: it fills with time, and holds a burst."""

    def __init__(self, per_second: float, burst: float) -> None:
        self._per_second, self._burst = per_second, burst
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def takes(self, who: str, now: float) -> bool:
        """Whether one more of them is taken now."""
        left, at = self._left.pop(who, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._per_second)
        self._left[who] = (max(left - 1, 0.0), now) if left >= 1 else (left, now)
        if len(self._left) > _KNOWN:
            self._left.popitem(last=False)
        return left >= 1


def problem(
    status: int, code: str, detail: str = "", *, request_id: str = "", **numbers: Any
) -> Response:
    """An answer that says what is wrong (RFC 9457), and nothing of what was sent."""
    told = {
        "type": f"urn:refold:problem:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "request_id": request_id,
        **numbers,
    }
    answer = Response(orjson.dumps(told), status, media_type=PROBLEM)
    if status == 401:
        answer.headers["WWW-Authenticate"] = 'Bearer error="invalid_token"'
    if status in (429, 503):
        answer.headers["Retry-After"] = "1"
    return answer


def unexpected(request_id: str) -> Response:
    """The answer where something failed that nobody expected."""
    detail = "this is a bug in Refold: the server's log names the place"
    return problem(500, "unexpected", detail, request_id=request_id)


class Gate:
    """What every request passes: its id, its size and rate, and who asks.

    ``close`` ends the answers that would go on for ever.
    """

    def __init__(
        self,
        app: Asgi,
        *,
        store: SessionStore,
        verifier: Verifier,
        limits: Limits,
        close: Callable[[], None],
    ) -> None:
        self._app, self._store, self._verifier, self.close = app, store, verifier, close
        self._limits, self.metrics = limits, Metrics()
        self._rates = Rates(limits.per_second, limits.burst)
        self._running = self._tails = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it here."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        begun, answer = time.perf_counter(), _Answer(send)
        headers = dict(scope["headers"])
        request_id = self._request_id(headers)
        # As it was sent: an id of a session may hold a slash, which is quoted there.
        path = scope.get("raw_path", scope["path"].encode()).partition(b"?")[0]
        scope["path"] = path.decode("latin-1")
        scope["state"] = {**scope.get("state", {}), "request_id": request_id}
        scope["state"]["metrics"] = self.metrics
        answer.headers = [*_HEADERS, (b"x-request-id", request_id.encode())]
        if not scope["path"].startswith("/static/"):
            answer.headers.append((b"cache-control", b"no-store"))
        is_tail = scope["path"].endswith("/tail")
        self._running += not is_tail
        self._tails += is_tail
        self._count()
        token = request_of.set(request_id)
        try:
            refused = await self._refused(scope, headers)
            body = _Body(receive, self._limits)
            if refused is None and _form_needed(scope, headers):
                refused = await self._forged(scope, headers, body)
            if refused is not None:
                await refused(scope, body.receive, answer.send)
            else:
                await self._app(scope, body.receive, answer.send)
        except Exception as error:
            await self._broken(scope, receive, answer, error)
        finally:
            request_of.reset(token)
            self._running -= not is_tail
            self._tails -= is_tail
            self._count()
            route = getattr(scope.get("route"), "path", "other")
            kind = (scope["method"], route, str(answer.status))
            self.metrics.requests.labels(*kind).inc()
            took = (answer.begun or time.perf_counter()) - begun
            self.metrics.seconds.labels(route).observe(took)

    def _request_id(self, headers: dict[bytes, bytes]) -> str:
        """The id that the request came with, if it could be no secret; else a new one.

        It is repeated in answers and logs.
        """
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        if _GIVEN_ID.fullmatch(given):
            with suppress(RedactionError):
                if self._store.writer.redactor.text(given)[0] == given:
                    return given
        return uuid4().hex

    def _count(self) -> None:
        self.metrics.running.set(self._running)
        self.metrics.tails.set(self._tails)

    async def _refused(
        self, scope: Message, headers: dict[bytes, bytes]
    ) -> Response | None:
        """The answer to who is not let in; None, and the caller is known."""
        limits, request_id = self._limits, scope["state"]["request_id"]
        size = headers.get(b"content-length", b"0")
        if not size.isdigit() or int(size) > limits.body_bytes:
            return _too_large(limits, request_id)
        if self._running > limits.at_once or self._tails > limits.tails:
            return problem(503, "busy", "try again soon", request_id=request_id)
        if _OPEN.fullmatch(scope["path"]) and scope["path"] != "/login":
            return None
        if limits.origins and _is_preflight(scope, headers):
            return None  # it is answered before anything of ours is asked
        address = (scope.get("client") or ("?",))[0]
        token, by_cookie = _token(headers)
        scope["state"] |= {"token": token, "by_cookie": by_cookie, "caller": None}
        try:
            caller = await self._verifier.averify(token) if token else None
        except TokenRefused as refused:
            self.metrics.refused.labels(refused.reason).inc()
            self._store.access_log.note("token_refused", denied="TokenRefused")
            caller = None
        who = f"user {caller.user_id}" if caller else f"at {address}"
        if not self._rates.takes(who, time.monotonic()):
            detail = f"at most {limits.per_second:g} requests a second are taken"
            return problem(429, "rate", detail, request_id=request_id)
        scope["state"]["caller"] = caller
        if caller is not None or scope["path"] == "/login":
            return None
        if _PROGRAMS.match(scope["path"]) or scope["method"] not in _SAFE:
            detail = "send a valid token: Authorization: Bearer …"
            return problem(401, "token", detail, request_id=request_id)
        return RedirectResponse(f"/login?next={quote(scope['path'], safe='/%')}", 303)

    async def _forged(
        self, scope: Message, headers: dict[bytes, bytes], body: _Body
    ) -> Response | None:
        """The answer to a change that did not come from a page of ours."""
        wanted = csrf_of_token(scope["state"]["token"])
        given = headers.get(b"x-csrf-token", b"").decode("latin-1")
        kind = headers.get(b"content-type", b"").partition(b";")[0]
        if not given and kind == b"application/x-www-form-urlencoded":
            fields = parse_qs((await body.whole(_LONGEST_FORM)).decode("latin-1"))
            given = fields.get("csrf", [""])[0]
        site = headers.get(b"sec-fetch-site", b"same-origin")
        if hmac.compare_digest(given, wanted) and site == b"same-origin":
            return None
        self._store.access_log.note("form_refused", denied="Forged")
        detail = "load the page again: its form is no longer valid"
        return problem(403, "csrf", detail, request_id=scope["state"]["request_id"])

    async def _broken(
        self, scope: Message, receive: Receive, answer: _Answer, error: Exception
    ) -> None:
        """Say that something failed; the log names the place, never a value."""
        if isinstance(error, HTTPException):
            code = "too_large" if error.status_code == 413 else "too_slow"
            failed = problem(error.status_code, code, str(error.detail))
        else:
            *_, frame = traceback.extract_tb(error.__traceback__)
            place = f"{basename(frame.filename)}:{frame.lineno}"
            log.error("unexpected %s in %s", type(error).__name__, place)
            failed = unexpected(scope["state"]["request_id"])
        if not answer.status:
            await failed(scope, receive, answer.send)


@dataclass(slots=True)
class _Answer:
    """Sends an answer with the headers of all, and knows whether it has begun."""

    _send: Send
    headers: list[tuple[bytes, bytes]] = None  # type: ignore[assignment]  # set at once
    status: int = 0
    begun: float = 0.0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.begun = message["status"], time.perf_counter()
            own = {name for name, _ in message.get("headers", ())}
            rest = [pair for pair in self.headers if pair[0] not in own]
            message["headers"] = [*message.get("headers", ()), *rest]
        await self._send(message)


class _Body:
    """A request's body as it comes: not too much of it, and not too slowly."""

    def __init__(self, receive: Receive, limits: Limits) -> None:
        self._receive, self._limits = receive, limits
        self._until = time.monotonic() + limits.body_sec
        self._size, self._ended = 0, False
        self._again: Message | None = None

    async def receive(self) -> Message:
        """The next part.  Raises HTTPException for too much, or too slow."""
        if self._again is not None:
            again, self._again = self._again, None
            return again
        if self._ended:
            return await self._receive()  # a tail waits here for its client to go
        try:
            async with asyncio.timeout(self._until - time.monotonic()):
                message = await self._receive()
        except TimeoutError:
            raise HTTPException(408, "the body came too slowly") from None
        self._size += len(message.get("body", b""))
        self._ended = not message.get("more_body", False)
        if self._size > self._limits.body_bytes:
            raise HTTPException(413, f"at most {self._limits.body_bytes:,} bytes fit")
        return message

    async def whole(self, most: int) -> bytes:
        """All of it, which can be received again; nothing if it is over ``most``."""
        body, more = b"", True
        while more and len(body) <= most:
            message = await self.receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self._again = {"type": "http.request", "body": body, "more_body": more}
        return body if len(body) <= most else b""


def _token(headers: dict[bytes, bytes]) -> tuple[str, bool]:
    """The token that came, and whether by cookie."""
    given = headers.get(b"authorization", b"").decode("latin-1")
    if given:
        kind, _, token = given.partition(" ")
        return (token.strip(), False) if kind.lower() == "bearer" else ("", False)
    cookies = headers.get(b"cookie", b"").decode("latin-1").split(";")
    for name, _, value in (cookie.strip().partition("=") for cookie in cookies):
        if name == COOKIE:
            return value, True
    return "", False


def _is_preflight(scope: Message, headers: dict[bytes, bytes]) -> bool:
    asks = b"access-control-request-method" in headers
    return bool(scope["method"] == "OPTIONS" and asks and b"origin" in headers)


def _form_needed(scope: Message, headers: dict[bytes, bytes]) -> bool:
    """Whether a change is asked for by a browser, which sends its cookie by itself."""
    by_cookie = scope["state"].get("by_cookie") and scope["state"].get("caller")
    return bool(by_cookie) and scope["method"] not in _SAFE and b"cookie" in headers


def _too_large(limits: Limits, request_id: str) -> Response:
    detail = f"a body has at most {limits.body_bytes:,} bytes"
    return problem(413, "too_large", detail, request_id=request_id)


def csrf_of_token(token: str) -> str:
    """What a page's forms carry: nobody without the cookie can make it."""
    return hmac.digest(token.encode(), b"refold csrf", "sha256").hex()


def csrf_of(request: Request) -> str:
    """The same, of who asks."""
    return csrf_of_token(request.state.token)


async def exchanged(request: Request, token: str, to: str = "/") -> Response | None:
    """Go on with a cookie in a token's place; None if the token is refused.

    to: a path of this server; any other is the list of sessions.
    """
    try:
        caller = await request.app.state.verifier.averify(token.strip())
    except TokenRefused as refused:
        request.state.metrics.refused.labels(refused.reason).inc()
        request.app.state.store.access_log.note("token_refused", denied="TokenRefused")
        return None
    here = to if to.startswith("/") and not to.startswith(("//", "/\\")) else "/"
    answer = RedirectResponse(here, 303)
    answer.set_cookie(
        COOKIE,
        token.strip(),
        max_age=max(0, int(caller.until - time.time())),
        httponly=True,
        samesite="strict",
        secure=request.app.state.limits.secure,
    )
    return answer


def status_of(error: errors.RefoldError) -> int:
    """The status that an error is answered with."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 422)


def refusal(request: Request, error: Exception) -> Response:
    """The answer to what was refused on purpose."""
    request_id = request.state.request_id
    if isinstance(error, errors.RefoldError):
        code = re.sub(r"(?<!^)(?=[A-Z])", "-", type(error).__name__).lower()
        numbers = {k: v for k, v in vars(error).items() if type(v) is int}
        detail = str(error)
        return problem(status_of(error), code, detail, request_id=request_id, **numbers)
    if isinstance(error, RequestValidationError):
        # The place of our own names alone: keys, too, are what somebody wrote.
        wrong = [
            {"in": one["loc"][0], "name": one["loc"][1], "problem": one["type"]}
            if one["loc"][0] != "body" and len(one["loc"]) > 1
            else {"in": one["loc"][0], "problem": one["type"]}
            for one in error.errors()
        ]
        detail = "the request is not as it is described in /v1/openapi.json"
        return problem(422, "request", detail, request_id=request_id, errors=wrong)
    if isinstance(error, HTTPException):
        code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "-")
        answer = problem(error.status_code, code, request_id=request_id)
        answer.headers.update(error.headers or {})
        return answer
    raise error


def application(
    store: SessionStore, verifier: Verifier, limits: Limits | None = None
) -> Gate:
    """The whole server as an ASGI application; ``store`` is the caller's to close."""
    from refold.adapters.server import pages, routes

    limits = limits or Limits()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as running:
            # It can be run once, and an application be started again.
            if tools := _tools(store):
                app.state.tools = _answering(tools)
                await running.enter_async_context(tools.session_manager.run())
            yield

    app = FastAPI(
        title="Refold",
        version=_version(),
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.store, app.state.verifier, app.state.limits = store, verifier, limits
    app.state.csrf_of, app.state.exchanged = csrf_of, exchanged
    app.state.status_of = status_of
    app.state.feeds = routes.Feeds()
    for kind in (errors.RefoldError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, refusal)
    # The gate logs what is raised again behind this answer.
    app.add_exception_handler(
        Exception, lambda request, _: unexpected(request.state.request_id)
    )
    app.include_router(routes.router)
    routes.describe(app)
    app.include_router(pages.router, include_in_schema=False)
    pages.mount(app)

    @app.get("/health", include_in_schema=False)
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/health/ready", include_in_schema=False)
    def ready() -> Response:
        try:
            store.log.sessions("_", limit=1)
        except errors.RefoldError:
            return problem(503, "not-ready", "the database does not answer")
        return Response(orjson.dumps({"status": "ok"}), media_type="application/json")

    @app.get("/metrics", include_in_schema=False)
    async def metrics(request: Request) -> Response:
        if not request.state.caller.may("admin"):
            raise HTTPException(403)
        return Response(request.state.metrics.text(), media_type="text/plain")

    app.state.tools = None
    inner = _with_tools(app)
    if limits.origins:
        allowed = ("Authorization", "Content-Type", "Idempotency-Key", "Expected-Seq")
        inner = CORSMiddleware(
            inner,
            allow_origins=limits.origins,
            allow_methods=["GET", "POST", "PUT"],
            allow_headers=[*allowed, "Last-Event-ID", "X-Request-ID"],
            expose_headers=["X-Request-ID"],
        )
    ends = app.state.feeds.close
    return Gate(inner, store=store, verifier=verifier, limits=limits, close=ends)


def _tools(store: SessionStore) -> Any:
    """What MCP offers, about who asks; None where ``mcp`` is not installed."""
    from refold.adapters.frameworks.mcp import server

    with suppress(errors.InvalidConfiguration):
        return server(store, lambda: _caller.get().user_id)
    return None


def _answering(tools: Any) -> Asgi:
    from mcp.server.transport_security import TransportSecuritySettings

    # A name that was rebound to this address has no token.
    safe = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    made: Asgi = tools.streamable_http_app(stateless_http=True, transport_security=safe)
    return made


def _with_tools(app: FastAPI) -> Asgi:
    """The application, and at ``/mcp`` the tools: by a token alone, not by a cookie."""

    async def routed(scope: Message, receive: Receive, send: Send) -> None:
        tools: Asgi | None = app.state.tools
        if scope["type"] != "http" or scope["path"] != "/mcp" or tools is None:
            await app(scope, receive, send)
            return
        state = scope["state"]
        if state["by_cookie"] or not state["caller"].may("read"):
            refused = problem(403, "scope", request_id=state["request_id"])
            await refused(scope, receive, send)
            return
        token = _caller.set(state["caller"])
        try:
            await tools(scope, receive, send)
        finally:
            _caller.reset(token)

    return routed


def _version() -> str:
    from refold import __version__

    return __version__
