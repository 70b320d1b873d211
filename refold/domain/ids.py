"""Ids of users, sessions, and streams, and the rules for them."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from refold.domain.errors import InvalidEvent

MAIN: Final = "main"
# The internal session with the events that concern a user as a whole.
USER_SESSION: Final = "_user"
# The prefix of internal sessions with the memory of expired sessions.
KEPT: Final = "_kept."
# The ids of items of memory.
MEMORY_ID: Final = re.compile(r"m[0-9a-f]{15}")
RESERVED: Final = frozenset({USER_SESSION})
# The prefix of the ids that importers give to responses whose id is not known.
_UNKNOWN_RESPONSE: Final = "msg:"
# An id that has no percent escapes in the text of a stream.
_UNQUOTED: Final = re.compile(r"[A-Za-z0-9_.~-]*")
_MAX_NUMBER: Final = 2**63 - 1
MAX_ID: Final = 200


class StreamId(NamedTuple):
    """A stream of a session: the unit of order and of the hash chain."""

    user_id: str
    session_id: str
    stream: str = MAIN

    def __str__(self) -> str:
        return written(self)

    @classmethod
    def parse(cls, text: str) -> StreamId:
        """Return the stream that ``str`` formatted as ``text``."""
        return cls(*(unquote(part) for part in text.split("/")))

    @property
    def main(self) -> StreamId:
        """The main stream of its session."""
        return self._replace(stream=MAIN)


@lru_cache(maxsize=1024)
def written(stream: StreamId) -> str:
    """Return a stream as text: its ids with percent escapes, joined by slashes."""
    # Every event asks for it, but a process has few streams.
    return "/".join(quoted_id(part) for part in stream)


def quoted_id(part: str) -> str:
    """Return an id with percent escapes, as it stands in the text of a stream."""
    if _UNQUOTED.fullmatch(part):
        return part
    return quote(part, safe="")


def check_id(kind: str, value: str) -> str:
    """Return ``value`` if it can be the id of a user or a session.

    An id has 1 to 200 printable characters, which all engines store alike.  Ids are
    stored without encryption and are never redacted.

    kind: the name of the id in the message.

    Raises InvalidEvent for other values; the message does not repeat the value.
    """
    if not isinstance(value, str) or not value:
        raise InvalidEvent(f"{kind} must be a text of 1 to {MAX_ID} characters")
    if len(value) > MAX_ID:
        raise InvalidEvent(f"{kind} has {len(value)} characters, at most {MAX_ID} fit")
    if not value.isprintable():
        raise InvalidEvent(f"{kind} holds a character that is not printable")
    return value


def check_session_id(value: str) -> str:
    """Return ``value`` if it can be the id of a session.

    Ids with a leading underscore are reserved for internal sessions: ``_user`` has the
    events that concern a user as a whole, and ``_kept.…`` the memory of an expired
    session.

    Raises InvalidEvent for other values.
    """
    check_id("session_id", value)
    if value.startswith("_") and not (value in RESERVED or value.startswith(KEPT)):
        raise InvalidEvent("a session_id with a leading underscore is reserved")
    return value


def is_internal(session_id: str) -> bool:
    """Whether a session is internal: no listing shows it.

    It is still verified, erased, and exported with its user.
    """
    return session_id.startswith("_")


def begins_with(session_id: str, beginning: str) -> bool:
    """Whether a session's id starts with the parts of ``beginning``, each cut anywhere.

    For example, ``5f~a`` fits ``5f0c~a12``.  A ``~`` separates the parts: the session,
    then the sub-agent, and so on.
    """
    parts = session_id.split("~")
    begun = beginning.split("~")
    return len(parts) >= len(begun) and all(map(str.startswith, parts, begun))


def bounded(kind: str, value: int) -> int:
    """Return a seq or a number of events, limited to 64 bits.

    kind: the name of the value in the message.

    Raises InvalidEvent if it is below 0.
    """
    if value < 0:
        raise InvalidEvent(f"{kind} is {value}: it is counted from 0")
    return min(value, _MAX_NUMBER)


def unknown_response_id(name: object) -> str:
    """Return the id of a response whose id a transcript does not contain.

    name: distinguishes the responses of a transcript, such as the index of a message.
    """
    return f"{_UNKNOWN_RESPONSE}{name}"


def provider_response_id(response_id: str | None) -> str:
    """Return the id that a provider gave to a response; empty if it is not known."""
    if response_id is None or response_id.startswith(_UNKNOWN_RESPONSE):
        return ""
    return response_id
