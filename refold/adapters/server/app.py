"""The HTTP application: a gate that every request passes, and the routes behind it.

The gate identifies the caller before anything is loaded.  No answer, log line or metric
repeats refused input: it may be text that should have been redacted.
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
from contextlib import asynccontextmanager, suppress
from contextvars import Context, ContextVar
from importlib.util import find_spec
from os.path import basename
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias
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
from refold.domain.plugins import package_behind
from refold.redaction.redactor import RedactionError
from refold.store import SessionStore
from refold.store.recorded import request_of

if TYPE_CHECKING:
    from refold.adapters.otlp.receiver import TraceReceiver

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
# Paths without a token: health, and the style sheet of the form that takes a token.
_HEALTH: Final = ("/health", "/health/ready")
_STATIC: Final = re.compile(r"/static/[\w./-]+", re.ASCII)
# Links to shared runs, whose tokens are in the path.
_SHARED: Final = "/shared/"
_PROGRAMS: Final = re.compile(r"/(v1|mcp|metrics)(/|$)")
_TAIL: Final = "/events/tail"
_LARGE: Final = re.compile(r"/v1/sessions/[^/]+/events|/v1/traces|/mcp")
_SAFE: Final = ("GET", "HEAD", "OPTIONS")
_METHODS: Final = (*_SAFE, "POST", "PUT")
_REQUEST_ID: Final = re.compile(r"[\w.:-]{1,100}", re.ASCII)
_SMALL: Final = 256 << 10  # bytes of a body without events
_MOST_BUCKETS: Final = 10_000  # clients whose rate is remembered
_CLOSING: Final = Refusal(
    503,
    "closing",
    "the server is stopping, and this request may or may not be done: try again",
)

log = logging.getLogger("refold.server")
# The caller of the current request, for the tools of MCP, which get no request.
_caller: ContextVar[Caller] = ContextVar("refold_caller")


class Limits(NamedTuple):
    """The limits of a server.

    body_bytes: the most bytes in the body of a request.
    body_sec:   the longest time in which a body may arrive.
    send_sec:   the longest time in which a client may read nothing of its answer.
    per_second, burst: the rate of requests of one user, or of one address without a
                token.
    at_once:    the most requests that are answered at the same time.
    tails:      the most tails at the same time.
    own_at_once, own_tails: the same for one user.
    secure:     whether cookies are sent over TLS only.
    origins:    other sites whose pages may call ``/v1``.
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


class Slot(NamedTuple):
    """A limit that a running request counts against.

    client: the user or address, or ``EVERYBODY``.
    """

    client: str
    is_tail: bool


EVERYBODY: Final = ""


class Metrics:
    """The server's metrics for Prometheus.  No label is text that a client chose.

    running: the requests and tails that are being answered, by their slots.
    """

    def __init__(self, running: Counter[Slot]) -> None:
        self.registry = prometheus.CollectorRegistry()
        self.requests = prometheus.Counter(
            "refold_requests",
            "Answers",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self.seconds = prometheus.Histogram(
            "refold_request_seconds",
            "Until the answer began",
            ["route"],
            registry=self.registry,
        )
        self.refused = prometheus.Counter(
            "refold_tokens_refused",
            "Refused tokens",
            ["reason"],
            registry=self.registry,
        )
        requests_running = prometheus.Gauge(
            "refold_requests_running", "Being answered", registry=self.registry
        )
        requests_running.set_function(lambda: running[Slot(EVERYBODY, is_tail=False)])
        tails = prometheus.Gauge(
            "refold_tails", "Being answered", registry=self.registry
        )
        tails.set_function(lambda: running[Slot(EVERYBODY, is_tail=True)])

    def text(self) -> bytes:
        """Return all metrics in the format of Prometheus."""
        return prometheus.generate_latest(self.registry)


class Rates:
    """Token buckets, one for each client; a bucket refills up to the burst."""

    def __init__(self, per_second: float, burst: float) -> None:
        self._per_second = per_second
        self._burst = burst
        # For each client the number of requests left after its last one, and the time
        # of that; the client whose last request is oldest comes first.
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def takes(self, client: str, now: float) -> bool:
        """Take one request from the client's bucket; False if it is empty."""
        left, last_time = self._buckets.pop(client, (self._burst, now))
        left = min(self._burst, left + (now - last_time) * self._per_second)
        is_taken = left >= 1
        if is_taken:
            left -= 1
        self._buckets[client] = (left, now)
        if len(self._buckets) > _MOST_BUCKETS:
            self._buckets.popitem(last=False)
        return is_taken


def answer_to(request: Request, refusal: Refusal) -> Response:
    """Return a refusal: a page for people or JSON for programs, by the path."""
    if is_for_people(request.scope["path"]):
        return pages.refusal_page(request, refusal)
    return problem(refusal, request_id=request.state.request_id)


def rate_key(address: str) -> str:
    """Return the key that counts the requests of a client without a token.

    For IPv6 it is the network of 64 bits, because its client can use all addresses in
    it.
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
    """Checks every request: its id, size, rate, and token.

    site: the application whose state has the store and the limits, and whose pages
          show refusals to people.
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
        # The running requests of each caller, and those of everybody.
        self._running: Counter[Slot] = Counter()
        self.metrics = Metrics(self._running)

    def close(self) -> None:
        """End the tails, because the server stops.

        From now on a request that the server cancels gets a refusal, and the log no
        error.
        """
        self._feeds.close()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it here."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        started_at = time.perf_counter()
        headers = dict(scope["headers"])
        # The quoted path, because a session id may contain a slash.
        path = scope.get("raw_path", scope["path"].encode()).partition(b"?")[0]
        scope["path"] = path.decode("latin-1")
        request_id = self._request_id(headers)
        scope["state"] = {
            **scope.get("state", {}),
            "metrics": self.metrics,
            "request_id": request_id,
        }
        answer = _Answer(send, scope["path"], request_id, self._limits.send_sec)
        body = _Body(receive, scope["path"], self._limits)
        slots: list[Slot] = []
        token = request_of.set(request_id)
        try:
            handler: Asgi = self._app
            refused = await self._refused(scope, headers, slots)
            if refused is None:
                refused = await self._forged(scope, headers, body)
            if isinstance(refused, Refusal):
                handler = self._answer(scope, refused)
            elif refused is not None:
                handler = refused
            await handler(scope, body.receive, answer.send)
        except ClientDisconnect:
            pass
        except asyncio.CancelledError:
            if not self._feeds.closing:
                raise
            # The server stops, and has waited for this request long enough.
            if not answer.status:
                closing = self._answer(scope, _CLOSING)
                await closing(scope, receive, answer.send)
        except Exception as error:
            failure = self._failed(scope, error)
            if not answer.status:
                await failure(scope, receive, answer.send)
        finally:
            request_of.reset(token)
            self._leave(slots)
            self._measure(scope, answer, started_at)

    def _measure(self, scope: Message, answer: _Answer, started_at: float) -> None:
        """Count an answer, and the time until it began."""
        route = getattr(scope.get("route"), "path", "other")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self.metrics.requests.labels(method, route, str(answer.status)).inc()
        began_at = answer.began_at or time.perf_counter()
        self.metrics.seconds.labels(route).observe(began_at - started_at)

    def _answer(self, scope: Message, refusal: Refusal) -> Response:
        """Return the answer that refuses a request."""
        scope["app"] = self._site
        return answer_to(Request(scope), refusal)

    def _request_id(self, headers: dict[bytes, bytes]) -> str:
        """Return the id of a request, which answers and logs repeat.

        It is the id that the client sent, or a new one if that looks like a secret.
        """
        sent = headers.get(b"x-request-id", b"").decode("latin-1")
        if _REQUEST_ID.fullmatch(sent):
            with suppress(RedactionError):
                redacted = self._store.writer.redactor.text(sent)[0]
                if redacted == sent:
                    return sent
        return uuid4().hex

    async def _refused(
        self, scope: Message, headers: dict[bytes, bytes], slots: list[Slot]
    ) -> Refusal | Response | None:
        """Return the answer to a request that may not pass; None if it may.

        Stores the token and the caller in the state, and adds the request's slots to
        ``slots``.
        """
        limits = self._limits
        path = scope["path"]
        if path in _HEALTH:
            return None
        is_tail = path.endswith(_TAIL)
        most = limits.tails if is_tail else limits.at_once
        if self._enter(slots, Slot(EVERYBODY, is_tail)) > most:
            return Refusal(503, "busy", "try again soon")
        if _STATIC.fullmatch(path):
            return None
        if limits.origins and _is_preflight(scope, headers):
            return None  # the middleware for other origins answers it
        # A link shows the same to everybody, so a reader's own token is not used.
        is_shared = path.startswith(_SHARED) and scope["method"] in _SAFE
        token, by_cookie = ("", False) if is_shared else _token(scope["headers"])
        caller: Caller | None = None
        reason = ""
        if token:
            try:
                caller = await self._verifier.averify(token)
            except TokenRefused as refused:
                reason = refused.reason
                self.metrics.refused.labels(reason).inc()
        if caller is not None:
            client = f"user {caller.user_id}"
        else:
            address = (scope.get("client") or ("",))[0]
            client = f"at {rate_key(address)}"
        if not self._rates.takes(client, time.monotonic()):
            detail = f"the limit is {limits.per_second:g} requests a second"
            return Refusal(429, "rate", detail)
        most = limits.own_tails if is_tail else limits.own_at_once
        if self._enter(slots, Slot(client, is_tail)) > most:
            detail = f"the limit is {most} concurrent requests of one client"
            return Refusal(429, "busy", detail)
        if reason:
            self._store.access_log.note("token_refused", denied="TokenRefused")
        scope["state"] |= {"token": token, "by_cookie": by_cookie, "caller": caller}
        if caller is not None or path == "/login" or is_shared:
            return None
        if _PROGRAMS.match(path):
            detail = "send a valid token: Authorization: Bearer …"
            return Refusal(401, "token", detail)
        if scope["method"] not in _SAFE:
            return Refusal(401, "token", "log in, and send the form again")
        query = scope["query_string"].decode("latin-1")
        target = f"{path}?{query}" if query else path
        return RedirectResponse(f"/login?next={quote(target, safe='/')}", 303)

    def _enter(self, slots: list[Slot], slot: Slot) -> int:
        """Count a running request; returns how many run in the slot now."""
        slots.append(slot)
        self._running[slot] += 1
        return self._running[slot]

    def _leave(self, slots: list[Slot]) -> None:
        """Stop counting a request that was answered."""
        for slot in slots:
            self._running[slot] -= 1
            if not self._running[slot]:
                del self._running[slot]

    async def _forged(
        self, scope: Message, headers: dict[bytes, bytes], body: _Body
    ) -> Refusal | None:
        """Return the refusal of a form from another site; None for other requests.

        A browser adds the cookie to such forms by itself.  The form for tokens is
        checked too: another site could log a user in with its own token, and the user
        would then write into the sessions of a stranger.
        """
        state = scope["state"]
        is_login = scope["path"] == "/login"
        has_cookie = bool(state.get("by_cookie") and state["caller"])
        if scope["method"] in _SAFE or not (has_cookie or is_login):
            return None
        site = headers.get(b"sec-fetch-site", b"same-origin")
        is_genuine = site == b"same-origin"
        if has_cookie:
            sent = headers.get(b"x-csrf-token", b"")
            kind = headers.get(b"content-type", b"").partition(b";")[0]
            if not sent and kind == b"application/x-www-form-urlencoded":
                fields = parse_qs((await body.whole()).decode("latin-1"))
                sent = fields.get("csrf", [""])[0].encode()
            expected = csrf_of_token(state["token"]).encode()
            is_genuine = is_genuine and hmac.compare_digest(sent, expected)
        if is_genuine:
            return None
        self._store.access_log.note("form_refused", denied="Forged")
        return Refusal(403, "csrf", "load the page again: its form is no longer valid")

    def _failed(self, scope: Message, error: Exception) -> Response:
        """Return the answer to an unexpected error, and log the error's place.

        The log never contains a value.
        """
        if isinstance(error, HTTPException):
            return self._answer(scope, refusal_of(error))
        *_, frame = traceback.extract_tb(error.__traceback__)
        place = f"{basename(frame.filename)}:{frame.lineno}"
        package = package_behind(error)
        if package is not None:
            place += f" of the package {package}"
        log.error("unexpected %s in %s", type(error).__name__, place)
        return self._answer(scope, UNEXPECTED)


class _Answer:
    """Sends an answer with the headers that all answers have.

    patience: the seconds in which the client must read each part.
    """

    def __init__(self, send: Send, path: str, request_id: str, patience: float) -> None:
        self._send = send
        self._patience = patience
        self._headers = [*_HEADERS, (b"x-request-id", request_id.encode())]
        if not path.startswith("/static/"):
            self._headers.append((b"cache-control", b"no-store"))
        self.status = 0
        self.began_at = 0.0

    async def send(self, message: Message) -> None:
        """Send the next part.  Raises ClientDisconnect if the client does not read."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.began_at = time.perf_counter()
            own_headers = list(message.get("headers", ()))
            own_names = {name for name, _ in own_headers}
            defaults = [pair for pair in self._headers if pair[0] not in own_names]
            message["headers"] = [*own_headers, *defaults]
        try:
            async with asyncio.timeout(self._patience):
                await self._send(message)
        except TimeoutError:
            raise ClientDisconnect from None


class _Body:
    """The body of a request, with limits on its size and duration."""

    def __init__(self, receive: Receive, path: str, limits: Limits) -> None:
        self._most = limits.body_bytes
        if not _LARGE.fullmatch(path):
            self._most = min(_SMALL, limits.body_bytes)
        self._receive = receive
        self._until = time.monotonic() + limits.body_sec
        self._size = 0
        self._ended = False
        self._repeat: Message | None = None  # a body that was read, for the next reader

    async def receive(self) -> Message:
        """Receive the next part.

        Raises HTTPException if the body is too large or arrives too slowly.
        """
        if self._repeat is not None:
            message = self._repeat
            self._repeat = None
            return message
        if self._ended:
            return await self._receive()  # a tail waits here until its client leaves
        try:
            async with asyncio.timeout(self._until - time.monotonic()):
                message = await self._receive()
        except TimeoutError:
            raise HTTPException(408, "the body arrived too slowly") from None
        self._size += len(message.get("body", b""))
        self._ended = not message.get("more_body", False)
        if self._size > self._most:
            raise HTTPException(413, f"a body has at most {self._most:,} bytes here")
        return message

    async def whole(self) -> bytes:
        """Read the whole body; ``receive`` returns it again.  Raises HTTPException."""
        body = b""
        while not self._ended:
            body += (await self.receive()).get("body", b"")
        self._repeat = {"type": "http.request", "body": body, "more_body": False}
        return body


def _token(headers: Iterable[tuple[bytes, bytes]]) -> tuple[str, bool]:
    """Return the token of a request, and whether a cookie carried it.

    The header wins over the cookie.  Several such headers count as no token.
    """
    credentials: list[str] = []
    cookies: list[str] = []
    for name, value in headers:
        if name == b"authorization":
            credentials.append(value.decode("latin-1"))
        if name == b"cookie":
            cookies.extend(value.decode("latin-1").split(";"))
    if credentials:
        kind, _, token = credentials[0].partition(" ")
        if kind.lower() != "bearer" or len(credentials) > 1:
            return "", False
        return token.strip(), False
    for cookie in cookies:
        cookie_name, _, token = cookie.strip().partition("=")
        if cookie_name == COOKIE:
            return token, True
    return "", False


def _is_preflight(scope: Message, headers: dict[bytes, bytes]) -> bool:
    """Whether it is the preflight of a request from a page of another site."""
    return (
        scope["method"] == "OPTIONS"
        and b"access-control-request-method" in headers
        and b"origin" in headers
    )


def csrf_of_token(token: str) -> str:
    """Return the secret of a page's forms, which only the cookie's owner can know."""
    return hmac.digest(token.encode(), b"refold csrf", "sha256").hex()


async def exchanged(request: Request, token: str, to: str = "/") -> Response | None:
    """Return a redirect with the token in a cookie; None if the token is refused.

    to: a path of this server; any other target becomes the list of sessions.
    """
    try:
        caller = await request.app.state.verifier.averify(token.strip())
    except TokenRefused as refused:
        request.state.metrics.refused.labels(refused.reason).inc()
        request.app.state.store.access_log.note("token_refused", denied="TokenRefused")
        return None
    is_path = to.startswith("/") and not to.startswith(("//", "/\\"))
    answer = RedirectResponse(to if is_path else "/", 303)
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
    """Return the answer to a request that an operation refused with an error."""
    content_type = request.headers.get("content-type", "")
    return answer_to(request, refusal_of(error, content_type=content_type))


def application(
    store: SessionStore, verifier: Verifier, limits: Limits | None = None
) -> Gate:
    """Return the server as an ASGI application.  The caller closes ``store``."""
    from refold import __version__

    limits = limits or Limits()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # New ones for each start: a manager of MCP's sessions runs only once.
        tools = _Tools(store)
        app.state.tools = tools
        try:
            yield
        finally:
            app.state.tools = None
            await tools.close()

    app = FastAPI(
        title="Refold",
        version=__version__,
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.store = store
    app.state.verifier = verifier
    app.state.limits = limits
    app.state.csrf_of = csrf_of_token
    app.state.exchange_token = exchanged
    app.state.feeds = routes.Feeds()
    app.state.trace_receiver = _trace_receiver(store)
    for error_class in (errors.RefoldError, RequestValidationError, HTTPException):
        app.add_exception_handler(error_class, _on_error)
    # After this answer, Starlette raises the error again, and the gate logs it.
    app.add_exception_handler(
        Exception, lambda request, _: answer_to(request, UNEXPECTED)
    )
    # Not by include_router, with which the first request builds each route again.
    app.routes.extend(routes.router.routes)
    routes.describe(app)
    app.routes.extend(pages.router.routes)
    pages.mount(app)

    @app.api_route("/health", methods=["GET", "HEAD"], include_in_schema=False)
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    # In a thread of the loop: the threads of operations may all be busy.
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
        inner = CORSMiddleware(
            inner,
            allow_origins=limits.origins,
            allow_methods=["GET", "POST", "PUT"],
            allow_headers=[
                "Authorization",
                "Content-Type",
                "Idempotency-Key",
                "Expected-Seq",
                "Last-Event-ID",
                "X-Request-ID",
            ],
            expose_headers=["X-Request-ID"],
        )
    return Gate(inner, app)


def _trace_receiver(store: SessionStore) -> Callable[[], TraceReceiver]:
    """Return a function that returns the one receiver of spans.

    Its modules load with the first request.
    """
    lock = Lock()
    receivers: list[TraceReceiver] = []

    def receiver() -> TraceReceiver:
        from refold.adapters.otlp.receiver import TraceReceiver

        with lock:
            if not receivers:
                receivers.append(TraceReceiver(store))
            return receivers[0]

    return receiver


class _Tools:
    """The application with the tools of MCP, which loads when it is first needed.

    One task runs it until ``close``, because a manager of MCP's sessions must be
    entered and left by the same task.
    """

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._loaded: asyncio.Future[Asgi | None] = asyncio.Future()
        self._closing = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    async def application(self) -> Asgi | None:
        """Return the application; None if MCP is not installed.

        Raises the error of tools that cannot be loaded or started.
        """
        if self._running is None:
            # In an empty context: the task outlives the request and its caller.
            self._running = asyncio.create_task(self._run(), context=Context())
        # Shielded, because other requests wait for the same application.
        return await asyncio.shield(self._loaded)

    async def _run(self) -> None:
        try:
            tools = await asyncio.to_thread(_load_tools, self._store)
        except errors.InvalidConfiguration:
            self._loaded.set_result(None)
            return
        except Exception as error:
            self._loaded.set_exception(error)
            return
        try:
            async with tools.manager.run():
                self._loaded.set_result(tools.app)
                await self._closing.wait()
        except Exception as error:
            if self._loaded.done():
                raise
            self._loaded.set_exception(error)

    async def close(self) -> None:
        """End the application; waits for tools that are being loaded."""
        self._closing.set()
        if self._running is not None:
            await self._running


class _LoadedTools(NamedTuple):
    """The application with the tools of MCP, and the manager that must run with it.

    manager: MCP's ``StreamableHTTPSessionManager``.
    """

    app: Asgi
    manager: Any


def _load_tools(store: SessionStore) -> _LoadedTools:
    """Load the tools of MCP.  Raises InvalidConfiguration if it is not installed."""
    from refold.adapters.frameworks.mcp import server

    tools = server(store, lambda: _caller.get().user_id)
    from mcp.server.transport_security import TransportSecuritySettings

    # DNS rebinding gains nothing here, because the other site has no token.
    security = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    app = tools.streamable_http_app(stateless_http=True, transport_security=security)
    return _LoadedTools(app, tools.session_manager)


def _with_tools(app: FastAPI) -> Asgi:
    """Return the application with the tools of MCP at ``/mcp``.

    The first request that may use them loads them.  They accept a token in the header
    only, never a cookie.
    """

    async def routed(scope: Message, receive: Receive, send: Send) -> None:
        is_for_tools = scope["type"] == "http" and scope["path"] == "/mcp"
        if not is_for_tools or app.state.tools is None or not find_spec("mcp"):
            await app(scope, receive, send)
            return
        state = scope["state"]
        status = 0
        if scope["method"] != "POST":  # a GET would open a stream without messages
            status = 405
        elif state["by_cookie"] or not state["caller"].may("read"):
            status = 403
        if status:
            refusal = refusal_of(HTTPException(status))
            refused = problem(refusal, request_id=state["request_id"])
            await refused(scope, receive, send)
            return
        tools = await app.state.tools.application()
        if tools is None:
            await app(scope, receive, send)
            return
        token = _caller.set(state["caller"])
        try:
            await tools(scope, receive, send)
        finally:
            _caller.reset(token)

    return routed
