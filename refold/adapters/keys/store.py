"""The entries of the key store: wrapped keys of users and sessions, by keyed hashes."""

from __future__ import annotations

from typing import Final, NamedTuple

PEPPER: Final = "pepper"


class UserEntry(NamedTuple):
    """The entry of a user.

    epoch:   the number of the key: 1, and one more for each readmission.
    wrapped: the wrapped key; None if it was destroyed or set aside.
    """

    epoch: int
    wrapped: bytes | None


class KeyPlace(NamedTuple):
    """The place of a session's key: the keyed hash of the session, and a version."""

    session_ref: str
    version: int


class WrappedKeys(NamedTuple):
    """The wrapped keys of many sessions, by the keyed hash of the session.

    first:   the keys of version 1.
    rotated: the keys of later versions with their versions, the newest first.
    """

    first: dict[str, bytes]
    rotated: dict[str, list[tuple[int, bytes]]]


class Refs(NamedTuple):
    """The keyed hashes of a user and a session, and the epoch of the user's key.

    origin: the id of the session that the session was forked from, if it was.
    """

    user: str
    session: str
    epoch: int
    origin: str = ""


NO_REFS: Final = Refs("", "", 1)
