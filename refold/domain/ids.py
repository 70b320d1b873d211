"""The names of users, sessions and streams, and what they may look like."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from refold.domain.errors import InvalidEvent

MAIN: Final = "main"
# The session of Refold's own: what concerns a user as a whole.
USER_SESSION: Final = "_user"
# Of what memory keeps of a session that retention erased.
KEPT: Final = "_kept."
# What items of memory are named by.
MEMORY_ID: Final = re.compile(r"m[0-9a-f]{15}")
RESERVED: Final = frozenset({USER_SESSION})
_MAX_NUMBER: Final = 2**63 - 1
MAX_ID: Final = 200


class StreamId(NamedTuple):
    """One stream of one session of one user: the unit of order and of the chain."""

    user_id: str
    session_id: str
    stream: str = MAIN

    def __str__(self) -> str:
        return written(self)

    @classmethod
    def parse(cls, text: str) -> StreamId:
        """The stream that ``str`` wrote as ``text``."""
        return cls(*(unquote(part) for part in text.split("/")))

    @property
    def main(self) -> StreamId:
        """The main stream of the same session."""
        return self._replace(stream=MAIN)


@lru_cache(maxsize=1024)
def written(stream: StreamId) -> str:
    """The stream as text, which is asked for with every event, of few streams."""
    return "/".join(quote(part, safe="") for part in stream)


def check_id(kind: str, value: str) -> str:
    """Return ``value`` if it can name a user or a session.

    Ids stand in plain on disk and are never redacted, so they must be text that
    both engines store alike: 1 to 200 printable characters.

    Raises InvalidEvent otherwise; the message does not repeat the value.
    """
    if not isinstance(value, str) or not value:
        raise InvalidEvent(f"{kind} must be a text of 1 to {MAX_ID} characters")
    if len(value) > MAX_ID:
        raise InvalidEvent(f"{kind} has {len(value)} characters, at most {MAX_ID} fit")
    if not value.isprintable():
        raise InvalidEvent(f"{kind} holds a character that is not printable")
    return value


def check_session_id(value: str) -> str:
    """Return ``value`` if a caller may use it as a session's name.

    Names with a leading underscore are reserved (``_user`` holds what concerns a
    user as a whole, what begins with ``_kept.`` what memory keeps of sessions).

    Raises InvalidEvent.
    """
    check_id("session_id", value)
    if value.startswith("_") and not (value in RESERVED or value.startswith(KEPT)):
        raise InvalidEvent("a session_id with a leading underscore is reserved")
    return value


def is_internal(session_id: str) -> bool:
    """Whether a session is Refold's own and no conversation: no listing shows it.

    It is verified, erased, and exported with its user all the same.
    """
    return session_id.startswith("_")


def bounded(kind: str, value: int) -> int:
    """Return ``value`` if it can be a seq or a number of events, cut to 64 bits.

    Raises InvalidEvent if it is below 0.
    """
    if value < 0:
        raise InvalidEvent(f"{kind} is {value}: it is counted from 0")
    return min(value, _MAX_NUMBER)
