"""The conversation in a request and its answer, in a form that all protocols share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, Protocol, TypeAlias

from refold.domain.envelope import Warn
from refold.domain.errors import RefoldError
from refold.domain.events import Event, JsonObject

Role: TypeAlias = Literal["system", "user", "assistant"]


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
    is_conversation:      whether ``session_id`` names one conversation.  Without it, a
                          client may send other requests under it, such as one for a
                          title, and a request without tools does not begin the session.
    """

    session_id: str | None = None
    agent: str | None = None
    parent: str | None = None
    previous_response_id: str | None = None
    thread: str | None = None
    is_conversation: bool = False


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

    LAST_LINES: the lines of server-sent events with which its streams end.  Other
                streams end with their connection.

    path: behind the prefix of the upstream, with its query and without credentials.

    ``request`` raises NotRecordable, and nothing else.  ``answer`` raises nothing: it
    takes any bytes, whole or cut anywhere, without their content encoding.

    headers:  their names are in lower case.
    complete: whether the connection transferred all of the answer.
    """

    NAME: str
    LAST_LINES: tuple[bytes, ...]

    def matches(self, method: str, path: str) -> bool: ...

    def request(
        self, body: bytes, headers: Mapping[str, str], path: str
    ) -> WireRequest: ...

    def answer(
        self, status: int, headers: Mapping[str, str], body: bytes, *, complete: bool
    ) -> WireAnswer: ...
