"""What the key store keeps: wrapped keys of users and sessions, by keyed hashes."""

from __future__ import annotations

from typing import Final, NamedTuple

PEPPER: Final = "pepper"


class UserEntry(NamedTuple):
    """What is kept of a user: the wrapped key, or None once it was taken away.

    ``epoch`` counts the keys that a user had who was readmitted, from 1.
    """

    epoch: int
    wrapped: bytes | None


class KeyPlace(NamedTuple):
    """Which key of a user: ``version`` of a session's."""

    session_ref: str
    version: int


class Refs(NamedTuple):
    """What the database knows a user and a session by: keyed hashes, and the epoch.

    origin: the name of the session that it was forked from, if it was.
    """

    user: str
    session: str
    epoch: int
    origin: str = ""


NO_REFS: Final = Refs("", "", 1)
