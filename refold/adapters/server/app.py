"""The HTTP application: a gate that every request passes, and what stands behind it.

Who asks is known before anything is loaded.  No answer, log line or metric holds what
was refused: it may be what had to be redacted.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import re
import time
import traceback
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from contextvars import ContextVar
from functools import partial
from os.path import basename
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import parse_qs, quote
from uuid import uuid4

import orjson
import prometheus_client as prometheus
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response

from refold.adapters.frameworks.mcp import server
from refold.adapters.server import pages, routes
from refold.adapters.server.access_tokens import Caller, TokenRefused, Verifier
from refold.adapters.server.refusals import (
    UNEXPECTED,
    Refusal,
    is_for_people,
    problem,
    refusal_of,
)
from refold.domain import errors
from refold.redaction.redactor import RedactionError
from refold.store import SessionStore
from refold.store.recorded import request_of

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Asgi: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

COOKIE: Final = "refold_session"
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
# Health alone is open; the style sheet of the form for a token knows nothing yet.
_HEALTH: Final = ("/health", "/health/ready")
_STATIC: Final = re.compile(r"/static/[\w./-]+", re.ASCII)
_PROGRAMS: Final = re.compile(r"/(v1|mcp|metrics)(/|$)")
_TAIL: Final = "/events/tail"
_LARGE: Final = re.compile(r"/v1/sessions/[^/]+/events|/mcp")
_SAFE: Final = ("GET", "HEAD", "OPTIONS")
_METHODS: Final = (*_SAFE, "POST", "PUT")
_GIVEN_ID: Final = re.compile(r"[\w.:-]{1,100}", re.ASCII)
_SMALL: Final = 256 << 10  # bytes of a body without events
_KNOWN: Final = 10_000  # callers whose rate is remembered
_CLOSING: Final = Refusal(
    503, "closing", "the server ends, and whether this was done is unknown: try again"
)

log = logging.getLogger("refold.server")
# Who asks now, where no request is at hand: of the tools that MCP offers.
_caller: ContextVar[Caller] = ContextVar("refold_caller")


class Limits(NamedTuple):
    """How much a server takes.

    body_bytes, body_sec: of one request's body, and how long it may take to come.
    send_sec: how long a client may take nothing of its answer.
    per_second, burst:    requests of one user; of who shows no token, by address.
    at_once, tails:       requests that are answered at the same time, and tails.
    own_at_once, own_tails: of those, the ones of one user.
    secure:   whether cookies go over TLS alone.
    origins:  other sites whose pages may call ``/v1``; none is the rule.
    """

    body_bytes: int = 16 << 20
    body_sec: float = 30.0
    send_sec: float = 30.0
    per_second: float = 200.0
    burst: float = 400.0
    at_once: int = 200
    own_at_once: int = 20
    tails: int = 1_000
    own_tails: int = 250
    secure: bool = False
    origins: tuple[str, ...] = ()


class Metrics:
    """What the server counts, in Prometheus' format; no label is what a client says.

    here: how many requests and tails are being answered, by ``(user, is_tail)``.
    """

    def __init__(self, here: Counter[tuple[str, bool]]) -> None:
        self.registry = made = prometheus.CollectorRegistry()
        self.requests = prometheus.Counter(
            "refold_requests", "Answers", ["method", "route", "status"], registry=made
        )
        self.seconds = prometheus.Histogram(
            "refold_request_seconds", "Until the answer began", ["route"], registry=made
        )
        self.refused = prometheus.Counter(
            "refold_tokens_refused", "Refused tokens", ["reason"], registry=made
        )
        for is_tail, name in enumerate(("refold_requests_running", "refold_tails")):
            gauge = prometheus.Gauge(name, "Being answered", registry=made)
            gauge.set_function(partial(here.__getitem__, ("", bool(is_tail))))

    def text(self) -> bytes:
        """All of it, as a scraper reads it."""
        return prometheus.generate_latest(self.registry)


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


def answer_to(request: Request, refusal: Refusal) -> Response:
    """The refusal as a page, where a person asked; as JSON, where a program did."""
    if is_for_people(request.scope["path"]):
        return pages.refused(request, refusal)
    return problem(refusal, request_id=request.state.request_id)


def rate_key(address: str) -> str:
    """What a client without a token is counted by: one site, not one address of it.

    Whoever has an IPv6 network of 64 bits has all addresses of it.
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return "unknown"
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed.packed, 64), strict=False))


class Gate:
    """What every request passes: its id, its size and rate, and who asks.

    ``site`` is the application whose state names the store and the limits; refusals to
    people are its pages.
    """

    def __init__(self, app: Asgi, site: FastAPI) -> None:
        state = site.state
        self._app = app
        self._site = site
        self._feeds: routes.Feeds = state.feeds
        self._store: SessionStore = state.store
        self._verifier: Verifier = state.verifier
        self._limits: Limits = state.limits
        self._rates = Rates(self._limits.per_second, self._limits.burst)
        # What is being answered, of each user and, as that of nobody, of all.
        self._here = Counter[tuple[str, bool]]()
        self.metrics = Metrics(self._here)

    def close(self) -> None:
        """End the tails, because the server ends.

        From now on a request that the server cancels is refused without an error in
        the log.
        """
        self._feeds.close()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it here."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        begun, headers = time.perf_counter(), dict(scope["headers"])
        # As it was sent: an id of a session may hold a slash, which is quoted there.
        path = scope.get("raw_path", scope["path"].encode()).partition(b"?")[0]
        scope["path"] = path.decode("latin-1")
        scope["state"] = state = {**scope.get("state", {}), "metrics": self.metrics}
        state["request_id"] = request_id = self._request_id(headers)
        answer = _Answer(send, scope["path"], request_id, self._limits.send_sec)
        body = _Body(receive, scope["path"], self._limits)
        mine: list[tuple[str, bool]] = []
        token = request_of.set(request_id)
        try:
            refused = await self._refused(scope, headers, mine)
            refused = refused or await self._forged(scope, headers, body)
            if isinstance(refused, Refusal):
                refused = self._answer(scope, refused)
            await (refused or self._app)(scope, body.receive, answer.send)
        except ClientDisconnect:
            pass
        except asyncio.CancelledError:
            if not self._feeds.closing:
                raise
            # The server ends, and has waited for this request long enough.
            if not answer.status:
                ended = self._answer(scope, _CLOSING)
                await ended(scope, receive, answer.send)
        except Exception as error:
            failed = self._failed(scope, error)
            if not answer.status:
                await failed(scope, receive, answer.send)
        finally:
            request_of.reset(token)
            for one in mine:
                self._here[one] -= 1
                if not self._here[one]:
                    del self._here[one]
            route = getattr(scope.get("route"), "path", "other")
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self.metrics.requests.labels(method, route, str(answer.status)).inc()
            took = (answer.begun or time.perf_counter()) - begun
            self.metrics.seconds.labels(route).observe(took)

    def _answer(self, scope: Message, refusal: Refusal) -> Response:
        scope["app"] = self._site
        return answer_to(Request(scope), refusal)

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

    async def _refused(
        self, scope: Message, headers: dict[bytes, bytes], mine: list[tuple[str, bool]]
    ) -> Refusal | Response | None:
        """The answer to who is not let in; None, and the caller is known."""
        limits, state, path = self._limits, scope["state"], scope["path"]
        if path in _HEALTH:
            return None
        is_tail = path.endswith(_TAIL)
        most = limits.tails if is_tail else limits.at_once
        if self._more(mine, "", is_tail) > most:
            return Refusal(503, "busy", "try again soon")
        if _STATIC.fullmatch(path):
            return None
        asks = b"access-control-request-method" in headers and b"origin" in headers
        if limits.origins and scope["method"] == "OPTIONS" and asks:
            return None  # it is answered before anything of ours is asked
        token, by_cookie = _token(scope["headers"])
        caller, reason = None, ""
        try:
            caller = await self._verifier.averify(token) if token else None
        except TokenRefused as refused:
            reason = refused.reason
            self.metrics.refused.labels(reason).inc()
        address = (scope.get("client") or ("",))[0]
        who = f"user {caller.user_id}" if caller else f"at {rate_key(address)}"
        if not self._rates.takes(who, time.monotonic()):
            detail = f"at most {limits.per_second:g} requests a second are taken"
            return Refusal(429, "rate", detail)
        own = limits.own_tails if is_tail else limits.own_at_once
        if self._more(mine, who, is_tail) > own:
            detail = f"at most {own} of yours are answered at once"
            return Refusal(429, "busy", detail)
        if reason:
            self._store.access_log.note("token_refused", denied="TokenRefused")
        state |= {"token": token, "by_cookie": by_cookie, "caller": caller}
        if caller is not None or path == "/login":
            return None
        if _PROGRAMS.match(path):
            detail = "send a valid token: Authorization: Bearer …"
            return Refusal(401, "token", detail)
        if scope["method"] not in _SAFE:
            return Refusal(401, "token", "log in, and send the form again")
        query = scope["query_string"].decode("latin-1")
        there = f"{path}?{query}" if query else path
        return RedirectResponse(f"/login?next={quote(there, safe='/')}", 303)

    def _more(self, mine: list[tuple[str, bool]], who: str, is_tail: bool) -> int:
        """Count a request as theirs, until it is answered; how many they have now."""
        mine.append((who, is_tail))
        self._here[who, is_tail] += 1
        return self._here[who, is_tail]

    async def _forged(
        self, scope: Message, headers: dict[bytes, bytes], body: _Body
    ) -> Refusal | None:
        """The answer to a change by a browser that no page of ours asked for.

        A browser sends its cookie by itself; and whoever makes it send somebody else's
        token to the form for tokens has it write into their sessions.
        """
        state, by_browser = scope["state"], scope["path"] == "/login"
        signed = bool(state.get("by_cookie") and state["caller"])
        if scope["method"] in _SAFE or not (signed or by_browser):
            return None
        good = headers.get(b"sec-fetch-site", b"same-origin") == b"same-origin"
        if signed:
            given = headers.get(b"x-csrf-token", b"")
            kind = headers.get(b"content-type", b"").partition(b";")[0]
            if not given and kind == b"application/x-www-form-urlencoded":
                fields = parse_qs((await body.whole()).decode("latin-1"))
                given = fields.get("csrf", [""])[0].encode()
            wanted = csrf_of_token(state["token"]).encode()
            good = good and hmac.compare_digest(given, wanted)
        if good:
            return None
        self._store.access_log.note("form_refused", denied="Forged")
        return Refusal(403, "csrf", "load the page again: its form is no longer valid")

    def _failed(self, scope: Message, error: Exception) -> Response:
        """Say that something failed; the log names the place, never a value."""
        if isinstance(error, HTTPException):
            return self._answer(scope, refusal_of(error))
        *_, frame = traceback.extract_tb(error.__traceback__)
        place = f"{basename(frame.filename)}:{frame.lineno}"
        log.error("unexpected %s in %s", type(error).__name__, place)
        return self._answer(scope, UNEXPECTED)


class _Answer:
    """Sends an answer with the headers of all, to who takes it."""

    def __init__(self, send: Send, path: str, request_id: str, patience: float) -> None:
        self._send, self._patience = send, patience
        self._headers = [*_HEADERS, (b"x-request-id", request_id.encode())]
        if not path.startswith("/static/"):
            self._headers.append((b"cache-control", b"no-store"))
        self.status, self.begun = 0, 0.0

    async def send(self, message: Message) -> None:
        """The next part.  Raises ClientDisconnect if it is not taken."""
        if message["type"] == "http.response.start":
            self.status, self.begun = message["status"], time.perf_counter()
            own = {name for name, _ in message.get("headers", ())}
            rest = [pair for pair in self._headers if pair[0] not in own]
            message["headers"] = [*message.get("headers", ()), *rest]
        try:
            async with asyncio.timeout(self._patience):
                await self._send(message)
        except TimeoutError:
            raise ClientDisconnect from None


class _Body:
    """A request's body as it comes: not too much of it, and not too slowly."""

    def __init__(self, receive: Receive, path: str, limits: Limits) -> None:
        small = min(_SMALL, limits.body_bytes)
        self._most = limits.body_bytes if _LARGE.fullmatch(path) else small
        self._receive, self._until = receive, time.monotonic() + limits.body_sec
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
        if self._size > self._most:
            raise HTTPException(413, f"a body has at most {self._most:,} bytes here")
        return message

    async def whole(self) -> bytes:
        """All of it, which can be received again.  Raises as ``receive``."""
        body = b""
        while not self._ended:
            body += (await self.receive()).get("body", b"")
        self._again = {"type": "http.request", "body": body, "more_body": False}
        return body


def _token(headers: Iterable[tuple[bytes, bytes]]) -> tuple[str, bool]:
    """The token that came, and whether by cookie; none, where several did."""
    found = [(name, value.decode("latin-1")) for name, value in headers]
    if given := [value for name, value in found if name == b"authorization"]:
        kind, _, token = given[0].partition(" ")
        good = kind.lower() == "bearer" and len(given) == 1
        return (token.strip(), False) if good else ("", False)
    cookies = ";".join(value for name, value in found if name == b"cookie")
    for name, _, value in (one.strip().partition("=") for one in cookies.split(";")):
        if name == COOKIE:
            return value, True
    return "", False


def csrf_of_token(token: str) -> str:
    """What a page's forms carry: nobody without the cookie can make it."""
    return hmac.digest(token.encode(), b"refold csrf", "sha256").hex()


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
        secure=request.app.state.limits.secure or request.url.scheme == "https",
    )
    return answer


def _on_error(request: Request, error: Exception) -> Response:
    kind = request.headers.get("content-type", "")
    return answer_to(request, refusal_of(error, content_type=kind))


def application(
    store: SessionStore, verifier: Verifier, limits: Limits | None = None
) -> Gate:
    """The whole server as an ASGI application; ``store`` is the caller's to close."""
    from refold import __version__

    limits = limits or Limits()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as running:
            with suppress(errors.InvalidConfiguration):  # it is not installed
                # It can be run once, and an application be started again.
                tools = server(store, lambda: _caller.get().user_id)
                app.state.tools = _answering(tools)
                await running.enter_async_context(tools.session_manager.run())
            yield

    app = FastAPI(
        title="Refold",
        version=__version__,
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.store, app.state.verifier, app.state.limits = store, verifier, limits
    app.state.csrf_of, app.state.exchanged = csrf_of_token, exchanged
    app.state.feeds = routes.Feeds()
    for kind in (errors.RefoldError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _on_error)
    # The gate logs what is raised again behind this answer.
    app.add_exception_handler(
        Exception, lambda request, _: answer_to(request, UNEXPECTED)
    )
    app.include_router(routes.router)
    routes.describe(app)
    app.include_router(pages.router, include_in_schema=False)
    pages.mount(app)

    @app.api_route("/health", methods=["GET", "HEAD"], include_in_schema=False)
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    # In a thread of the loop's own: those of operations may all be busy.
    @app.api_route("/health/ready", methods=["GET", "HEAD"], include_in_schema=False)
    async def ready() -> Response:
        try:
            await asyncio.to_thread(store.log.sessions, "_", limit=1)
        except errors.RefoldError:
            return problem(Refusal(503, "not-ready", "the database does not answer"))
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
    return Gate(inner, app)


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
        state, code = scope["state"], 0
        if scope["method"] != "POST":  # a stream of nothing would go on for ever
            code = 405
        elif state["by_cookie"] or not state["caller"].may("read"):
            code = 403
        if code:
            refusal = refusal_of(HTTPException(code))
            refused = problem(refusal, request_id=state["request_id"])
            await refused(scope, receive, send)
            return
        token = _caller.set(state["caller"])
        try:
            await tools(scope, receive, send)
        finally:
            _caller.reset(token)

    return routed
