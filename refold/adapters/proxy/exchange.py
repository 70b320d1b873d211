"""A request to a provider, its answer, and the port that records them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, NamedTuple, Protocol, TypeAlias

from refold.adapters.proxy import encodings
from refold.adapters.proxy.conversation import WireProtocol
from refold.adapters.proxy.placeholders import Placeholders, RevealedStream

Ending: TypeAlias = Literal["complete", "cancelled", "lost", "refused"]
"""How an exchange ended.

complete:  the client got the whole answer, which may be an error of the provider.
cancelled: the client closed the connection before the end of the answer.
lost:      the provider's connection broke, or the provider could not be reached.
refused:   the proxy did not send the request, because it could not be recorded.
"""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Exchange:
    """One request of a client.  It is compared by identity.

    exchange_id: an id that no other request has.
    upstream:    the provider that it goes to: anthropic, openai, gemini, or ollama.
    protocol:    the protocol that matches ``method`` and ``path``.
    path:        as the provider documents it, such as ``/v1/messages?beta=true``, with
                 its query, without credentials.
    headers:     names in lower case, without credentials.
    body:        the exact bytes that the client sent.  They may be compressed.
    truncated:   whether ``body`` is only the beginning, because of a limit on memory.
    began_at:    when the request was read, in UTC.
    """

    exchange_id: str
    upstream: str
    protocol: WireProtocol
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    truncated: bool
    began_at: datetime

    def content(self) -> bytes:
        """Return the decompressed body.

        Raises NotDecodable for an unknown encoding, bytes that are not in it, or
        content that is larger than the limit.
        """
        return encodings.decoded(self.body, self.headers.get("content-encoding", ""))


class RedactedRequest(NamedTuple):
    """The body that a provider gets in place of the client's.

    protocol:     the name of its protocol.
    body:         JSON with placeholders in place of values, without an encoding.
    placeholders: give the values back in the answer.
    """

    protocol: str
    body: bytes
    placeholders: Placeholders

    def revealing(self, content_type: str) -> RevealedStream:
        """Return the stream that gives the values back in an answer of this type."""
        is_events = content_type.lower().startswith("text/event-stream")
        return RevealedStream(self.placeholders, self.protocol, is_events=is_events)

    def __repr__(self) -> str:
        return f"RedactedRequest({len(self.body)} bytes)"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Answer:
    """The end of an exchange, with the answer as far as it arrived.

    ending:    how the exchange ended.
    status:    the HTTP status of the provider; None if none arrived.
    headers:   the provider's headers, names in lower case, without credentials.
    body:      the exact bytes that the provider sent.  They may be compressed, except
               for a redacted request.
    truncated: whether ``body`` is only the beginning, because of the limits on memory.
    error:     why no answer arrived, such as ``connection refused``; else empty.
    first_byte_at: when the first byte of the body arrived, in UTC; None without one.
    ended_at:  when the exchange ended, in UTC.
    """

    ending: Ending
    status: int | None
    headers: Mapping[str, str]
    body: bytes
    truncated: bool
    error: str
    first_byte_at: datetime | None
    ended_at: datetime

    @property
    def complete(self) -> bool:
        """Whether ``body`` is the whole answer of the provider."""
        return self.ending == "complete" and not self.truncated

    def content(self) -> bytes:
        """Return the decompressed body, as far as it arrived.

        Raises NotDecodable as ``Exchange.content`` does.
        """
        return encodings.decoded(
            self.body,
            self.headers.get("content-encoding", ""),
            partial=not self.complete,
        )


class RecordedSession(NamedTuple):
    """A session that a recorder has written to, and the number of requests in it."""

    user_id: str
    session_id: str
    requests: int


class Recorder(Protocol):
    """Records exchanges in a store.

    The proxy calls all methods from one thread, one after the other.  It calls
    ``begin`` once for each exchange, before the request leaves the machine, and
    ``finish`` once, later.  Between them, other exchanges begin and finish.  It calls
    both only for requests that a protocol matches.
    """

    def begin(self, exchange: Exchange) -> RedactedRequest | None:
        """Record the request.

        Returns what the provider gets in its place; None for the client's bytes.

        Raises RefoldError if that fails.  Then the proxy prints a warning once and
        sends the request; with ``--strict``, it refuses the request instead.  In both
        cases it calls ``finish``.
        """
        ...

    def finish(self, exchange: Exchange, answer: Answer) -> None:
        """Record the answer.

        Raises RefoldError if that fails.  The proxy then prints a warning once.
        """
        ...

    def sessions(self) -> Sequence[RecordedSession]:
        """Return the sessions that were written to, in order of their first request."""
        ...

    def close(self) -> None:
        """Write everything that is left.  Nothing is called after it."""
        ...
