"""The application of the proxy: passes on requests and answers, and copies both.

A request is recorded before it is sent.  The client gets the bytes of the answer as
they arrive.  A client that reads slowly slows down its own answer alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias
from uuid import uuid4

from refold.adapters.proxy.answer_end import AnswerEnd
from refold.adapters.proxy.conversation import NotRecordable, WireProtocol
from refold.adapters.proxy.environment import Upstream
from refold.adapters.proxy.exchange import Answer, Ending, Exchange, RedactedRequest
from refold.adapters.proxy.forwarding import (
    Client,
    Headers,
    Target,
    UpstreamLost,
    answer_headers,
    redacted_headers,
    request_headers,
    target_of,
    without_byte_facts,
)
from refold.adapters.proxy.placeholders import RevealedStream
from refold.adapters.proxy.recording import (
    Copy,
    Limits,
    Memory,
    NotRecorded,
    Recording,
    reason_of,
)
from refold.adapters.proxy.refusals import BAD_GATEWAY, UPGRADE_REQUIRED, error_body
from refold.adapters.proxy.security import (
    Guard,
    query_without_credentials,
    without_credentials,
)

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
ProtocolOf: TypeAlias = Callable[[str, str], WireProtocol | None]

NOT_FOUND: Final = 404
_JSON: Final = (b"content-type", b"application/json")


class ClientGone(Exception):
    """The client closed the connection."""


class Proxy:
    """The ASGI application.

    guard:       decides which requests are served.
    upstreams:   by the name in the path.
    client:      sends requests to them.
    protocol_of: returns the protocol of a method and path; None if it is not recorded.
    recording:   None passes requests on without a record.
    """

    def __init__(
        self,
        guard: Guard,
        upstreams: Mapping[str, Upstream],
        client: Client,
        protocol_of: ProtocolOf,
        recording: Recording | None,
        limits: Limits,
    ) -> None:
        self._guard = guard
        self._upstreams = upstreams
        self.client = client
        self.protocol_of = protocol_of
        self.recording = recording
        self.limits = limits
        self.memory = Memory(limits.total_bytes)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        headers: Headers = scope["headers"]
        raw_path: bytes = scope["raw_path"]
        refusal = self._guard.refusal(raw_path, headers)
        if refusal is not None:
            await answer(send, refusal)
            return
        path = raw_path.decode("latin-1")[1:].partition("/")[2]
        if _asks_for_websocket(headers):
            # After this status, Codex sends its requests over HTTP at once.
            body = error_body(path.partition("/")[0], "this proxy has no WebSocket")
            await answer(send, UPGRADE_REQUIRED, body)
            return
        target = target_of(self._upstreams, path, headers)
        if target is None:
            known = ", ".join(self._upstreams)
            message = f"the proxy has no such provider; it has {known}"
            await answer(send, NOT_FOUND, error_body("", message))
            return
        transfer = Transfer(self, scope, target, receive, send)
        await transfer.run()


def _asks_for_websocket(headers: Headers) -> bool:
    """Whether a request asks to upgrade its connection.

    Other upgrades, such as to HTTP/2, are ignored, as servers may do.
    """
    return any(
        name == b"upgrade" and value.lower() == b"websocket" for name, value in headers
    )


async def answer(send: Send, status: int, body: bytes = b"") -> None:
    """Send an answer of the proxy itself."""
    headers: Headers = [(b"content-length", str(len(body)).encode())]
    if body:
        headers.append(_JSON)
    if status == UPGRADE_REQUIRED:
        headers.append((b"upgrade", b"HTTP/1.1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Transfer:
    """One request on its way to a provider, and its answer on the way back."""

    def __init__(
        self, proxy: Proxy, scope: Message, target: Target, receive: Receive, send: Send
    ) -> None:
        self._proxy = proxy
        self._target = target
        self._receive = receive
        self._send = send
        self._method: str = scope["method"]
        self._query: bytes = scope["query_string"]
        self._headers: Headers = scope["headers"]
        self._protocol: WireProtocol | None = None
        if proxy.recording is not None:
            path = target.documented
            self._protocol = proxy.protocol_of(self._method, path)
        self._began_at = datetime.now(UTC)
        self._request = Copy(proxy.memory, proxy.limits.body_bytes)
        # Of the body: whether all of it was read, and a chunk that is not in the copy.
        self._has_body = asyncio.Event()
        self._rest: bytes | None = None

        self._exchange: Exchange | None = None
        self._redacted: RedactedRequest | None = None
        self._response = Copy(proxy.memory, proxy.limits.answer_bytes)
        self._status: int | None = None
        self._answer_headers: Headers = []
        self._first_byte_at: datetime | None = None
        self._ending: Ending = "cancelled"
        self._error = ""
        self._has_ended = False

    async def run(self) -> None:
        """Pass the request on, and the answer back, until either side closes."""
        try:
            await self._read_body()
        except ClientGone:
            self._request.release()
            return
        forwarding = asyncio.ensure_future(self._forward())
        watching = asyncio.ensure_future(self._wait_for_disconnect())
        tasks = {forwarding, watching}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._end()

    async def _read_body(self) -> None:
        """Read the body until its end, or until a limit on copies.

        Raises ClientGone.
        """
        while True:
            chunk, is_last = await self._next_chunk()
            if not self._request.add(chunk):
                self._rest = chunk
            if is_last:
                self._has_body.set()
            if is_last or self._rest is not None:
                return

    async def _next_chunk(self) -> tuple[bytes, bool]:
        """Return the next chunk of the body, and whether it is the last.

        Raises ClientGone.
        """
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        return message.get("body", b""), not message.get("more_body", False)

    async def _wait_for_disconnect(self) -> None:
        """Wait until the client closes the connection."""
        await self._has_body.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _forward(self) -> None:
        """Record the request, send it, and pass the answer back."""
        try:
            await self._begin()
            await self._pass_on()
        except ClientGone:
            return
        except NotRecorded as error:
            self._ending = "refused"
            self._error = str(error)
        except UpstreamLost as error:
            self._ending = "lost"
            self._error = str(error)
        except Exception as error:
            self._ending = "lost"
            self._error = f"the proxy failed: {reason_of(error)}"
        if self._ending in ("refused", "lost") and self._status is None:
            await self._answer_error()

    async def _answer_error(self) -> None:
        """Tell the client why there is no answer of the provider."""
        name = self._target.upstream.name
        if self._protocol is not None:
            name = self._protocol.NAME
        await answer(self._send, BAD_GATEWAY, error_body(name, self._error))

    async def _begin(self) -> None:
        """Record the request.  Raises NotRecorded."""
        recording = self._proxy.recording
        if recording is None:
            return
        if self._protocol is None:
            if recording.redacts_upstream and self._has_content():
                raise NotRecorded(NotRecordable("no protocol reads its values"))
            return
        path = self._target.documented
        query = query_without_credentials(self._query.decode("latin-1"))
        if query:
            path = f"{path}?{query}"
        self._exchange = Exchange(
            exchange_id=str(uuid4()),
            upstream=self._target.upstream.name,
            protocol=self._protocol,
            method=self._method,
            path=path,
            headers=without_credentials(self._headers),
            body=self._request.content(),
            truncated=self._request.truncated,
            began_at=self._began_at,
        )
        self._redacted = await recording.begin(self._exchange)

    def _has_content(self) -> bool:
        """Whether the request has a body."""
        return self._request.length > 0 or self._rest is not None

    async def _pass_on(self) -> None:
        """Send the request, and pass the answer back.  Raises UpstreamLost."""
        is_recorded = self._exchange is not None
        client = self._proxy.client
        body: bytes | AsyncIterator[bytes]
        if self._redacted is None:
            headers = request_headers(self._headers, is_recorded=is_recorded)
            body = self._body()
        else:
            headers = redacted_headers(self._headers)
            body = self._redacted.body
        response = await client.send(
            self._method, self._target, self._query, headers, body
        )
        try:
            self._answer_headers = answer_headers(response.headers.raw)
            revealed: RevealedStream | None = None
            if self._redacted is not None:
                client.check_not_encoded(self._target, response)
                revealed = self._revealing(self._redacted)
                self._answer_headers = without_byte_facts(self._answer_headers)
            self._status = response.status_code
            await self._send(
                {
                    "type": "http.response.start",
                    "status": self._status,
                    "headers": self._answer_headers,
                }
            )
            end = self._answer_end()
            async for chunk in client.chunks(self._target, response):
                if self._first_byte_at is None:
                    self._first_byte_at = datetime.now(UTC)
                if is_recorded and not self._has_ended:
                    self._response.add(chunk)
                    if end.is_in(chunk):
                        self._complete()
                if revealed is not None:
                    chunk = revealed.feed(chunk)
                    self._check_waiting(revealed)
                    if not chunk:
                        continue
                await self._send(
                    {"type": "http.response.body", "body": chunk, "more_body": True}
                )
            rest = b"" if revealed is None else revealed.end()
            self._complete()
            await self._send({"type": "http.response.body", "body": rest})
        finally:
            await response.aclose()

    def _answer_end(self) -> AnswerEnd:
        """Return what finds the end of the answer in its chunks."""
        headers = without_credentials(self._answer_headers)
        last_lines = () if self._protocol is None else self._protocol.LAST_LINES
        return AnswerEnd(headers, last_lines)

    def _complete(self) -> None:
        """Record the whole answer, before the client gets its last chunk."""
        self._ending = "complete"
        self._end()

    def _revealing(self, redacted: RedactedRequest) -> RevealedStream:
        """Return the stream that gives the values back in the answer."""
        content_type = b""
        for name, value in self._answer_headers:
            if name.lower() == b"content-type":
                content_type = value
        return redacted.revealing(content_type.decode("latin-1"))

    def _check_waiting(self, revealed: RevealedStream) -> None:
        """Raise UpstreamLost if too much of an answer waits for its end."""
        most_bytes = self._proxy.limits.answer_bytes
        if revealed.waiting_bytes > most_bytes:
            raise UpstreamLost(
                f"the answer has more than {most_bytes:,} bytes: values cannot be "
                "given back in it"
            )

    def _body(self) -> bytes | AsyncIterator[bytes]:
        """Return the body of the request: the copy, and what follows it."""
        if self._rest is None:
            return self._request.content()
        return self._body_beyond_copy()

    async def _body_beyond_copy(self) -> AsyncIterator[bytes]:
        """Return a body that is larger than its copy.  Raises ClientGone."""
        yield self._request.content()
        if self._rest is not None:
            yield self._rest
        while not self._has_body.is_set():
            chunk, is_last = await self._next_chunk()
            yield chunk
            if is_last:
                self._has_body.set()

    def _end(self) -> None:
        """Record the end of the exchange, and release its copies.

        Later calls do nothing.
        """
        if self._has_ended:
            return
        self._has_ended = True
        if self._exchange is None or self._proxy.recording is None:
            self._release()
            return
        finished = Answer(
            ending=self._ending,
            status=self._status,
            headers=without_credentials(self._answer_headers),
            body=self._response.content(),
            truncated=self._response.truncated,
            error=self._error,
            first_byte_at=self._first_byte_at,
            ended_at=datetime.now(UTC),
        )
        self._proxy.recording.finish(self._exchange, finished, self._release)

    def _release(self) -> None:
        """Release the copies of the request and of the answer."""
        self._request.release()
        self._response.release()
