"""The types that the parts of the proxy share: an exchange, and its conversation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

from refold.domain.envelope import Warn
from refold.domain.errors import RefoldError
from refold.domain.events import Event, JsonObject

Role: TypeAlias = Literal["system", "user", "assistant"]
Ended: TypeAlias = Literal["complete", "cancelled", "lost", "refused"]

# Headers and parameters of a query with credentials.  An exchange never has them.
SECRET_HEADERS: Final = frozenset(
    {
        "api-key",
        "authorization",
        "cookie",
        "proxy-authorization",
        "x-amz-security-token",
        "x-api-key",
        "x-goog-api-key",
    }
)
SECRET_PARAMETERS: Final = frozenset({"access_token", "api_key", "key"})


class NotRecordable(RefoldError):
    """A request is passed through without a record; ``reason`` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the request cannot be recorded: {reason}")
        self.reason = reason


class SessionHint(NamedTuple):
    """The session that a client names in a request.

    session_id:           the client's own id of the session.
    agent:                the name of the client, such as ``claude-code``.
    parent:               the client's id of the session that began this one.
    previous_response_id: the provider's id of the answer that the request continues.
    thread:               the client's id of a thread in the session, such as that of a
                          sub-agent.
    """

    session_id: str | None = None
    agent: str | None = None
    parent: str | None = None
    previous_response_id: str | None = None
    thread: str | None = None


class WireMessage(NamedTuple):
    """A message of a request, as events.

    role:   results of tools belong to ``user``.
    events: of the types ``user_input``, ``agent_response``, ``tool_call``,
            ``tool_result``, ``provider_edit``, ``item``, and ``system`` with ``where``
            set to ``conversation``.  None has a usage, because a request repeats
            answers without it.
    """

    role: Role
    events: tuple[Event, ...]


class WireRequest(NamedTuple):
    """A request of any protocol.

    protocol: the ``NAME`` of its protocol.
    system:   the system prompt; None if the request has none.
    tools:    in the form of the Messages API.  Tools of the provider are unchanged.
    options:  the other fields of the body, without credentials.
    stream:   whether the answer comes as a stream.
    warnings: the content that could not be converted.
    """

    protocol: str
    model: str | None
    system: str | None
    tools: tuple[JsonObject, ...]
    messages: tuple[WireMessage, ...]
    options: JsonObject
    hint: SessionHint
    stream: bool
    warnings: tuple[Warn, ...] = ()


class WireAnswer(NamedTuple):
    """An answer of any protocol.

    events:   an ``agent_response`` with its usage, then the calls, then a
              ``provider_edit`` for other content.  Instead, or after the part of an
              answer that came, an ``error``.
    complete: whether the whole answer came.
    warnings: the content that could not be converted.
    """

    events: tuple[Event, ...]
    response_id: str | None
    model: str | None
    complete: bool
    warnings: tuple[Warn, ...] = ()


class WireProtocol(Protocol):
    """A module that reads the requests and answers of one protocol.

    path: behind the prefix of the upstream, with its query and without credentials.

    ``request`` raises NotRecordable, and nothing else.  ``answer`` raises nothing: it
    takes any bytes, whole or cut anywhere, without their content encoding.

    headers:  their names are in lower case.
    complete: whether the connection transferred all of the answer.
    """

    NAME: str

    def matches(self, method: str, path: str) -> bool: ...

    def request(
        self, body: bytes, headers: Mapping[str, str], path: str
    ) -> WireRequest: ...

    def answer(
        self, status: int, headers: Mapping[str, str], body: bytes, *, complete: bool
    ) -> WireAnswer: ...


@dataclass(slots=True, eq=False)
class Exchange:
    """A request and its answer, while they pass through the proxy.

    The transport fills in the answer as it arrives, so an exchange is mutable.  The
    recorder recognizes an exchange by its identity.

    upstream:  the name in the path: ``anthropic``, ``openai``, ``gemini``, ``ollama``.
    protocol:  None for a path that is passed through without a record.
    path:      behind the prefix of the upstream, with its query, without credentials.
    headers:   of the request, names in lower case, without credentials.
    body:      of the request, without its content encoding.
    status, answer_headers: of the answer; 0 and none if no answer came.
    answer:    the body of the answer, without its content encoding, up to a limit.
    truncated: whether the answer was longer than that limit.
    ended:     ``complete``, ``cancelled`` by the client, ``lost`` if the connection to
               the provider broke, or ``refused`` if it could not be opened.
    """

    upstream: str
    protocol: WireProtocol | None
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    began_at: datetime
    status: int = 0
    answer_headers: Mapping[str, str] = field(default_factory=dict)
    answer: bytes = b""
    truncated: bool = False
    ended: Ended | None = None
    ended_at: datetime | None = None


class Recorder(Protocol):
    """Records exchanges; both methods block, and are called in a thread.

    ``begin`` records a request before it leaves the machine.  It raises only if the
    proxy must not go on without a record (``--strict``).  ``finish`` records the
    answer of an exchange, however it ended, and never raises.
    """

    def begin(self, exchange: Exchange) -> None: ...

    def finish(self, exchange: Exchange) -> None: ...
