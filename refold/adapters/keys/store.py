"""The port of the key store: wrapped keys of users and sessions, and who was erased."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol


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


class KeyStore(Protocol):
    """Where wrapped keys are kept, apart from the events they open.

    Users and sessions are named by keyed hashes.  What adds, takes away or replaces
    keys is durable before it returns; of two that add the same key at once one wins,
    and both are given the winner's.  A session has one key, or several by version
    while it is sealed anew.  What was erased leaves its keyed hash, and its key cannot
    be added again.

    ``generation`` counts what was taken away or replaced: an older key store, put in
    the place of this one, is known by it.
    """

    def get_setting(self, name: str) -> bytes | None: ...
    def add_setting(self, name: str, value: bytes) -> bytes: ...
    def swap_setting(self, name: str, old: bytes, new: bytes) -> bool:
        """Replace the value if it is ``old``."""
        ...

    def generation(self) -> int: ...
    def reach(self, generation: int) -> None:
        """Raise the generation to this, if it is lower."""
        ...

    def get_user(self, user_ref: str) -> UserEntry | None: ...
    def add_user(
        self, user_ref: str, wrapped: bytes, now: int, *, pepper: bytes
    ) -> UserEntry | None:
        """Keep a user's first key; None if ``pepper`` is not the wrapped one any more.

        It is wrapped anew first when the master key is replaced, so nothing is added
        under a master key that goes.
        """
        ...

    def session_keys(self, user_ref: str, session_ref: str) -> dict[int, bytes]:
        """The session's keys by version.  Raises Erased if it was erased."""
        ...

    def add_session(
        self,
        user_ref: str,
        session_ref: str,
        wrapped: bytes,
        now: int,
        *,
        under: bytes,
        version: int = 1,
    ) -> bytes | None:
        """Keep a session's key; None if the user's wrapped key is not ``under``."""
        ...

    def surplus(
        self, user_ref: str | None = None, session_ref: str | None = None
    ) -> int:
        """How many keys there are beyond one for each session of these."""
        ...

    def destroy_sessions(
        self, user_ref: str, session_ref: str, *, before: int
    ) -> int: ...

    def hold(self, user_ref: str, sessions: Sequence[str] | None, now: int) -> int:
        """Put keys aside, of a user or of sessions; returns how many.

        They are not found any more, until ``release`` puts them back.
        """
        ...

    def release(self, user_ref: str, sessions: Sequence[str] | None) -> int:
        """Put back what was put aside; returns how many."""
        ...

    def destroy(self, user_ref: str, sessions: Sequence[str] | None, now: int) -> int:
        """Destroy for good the keys of a user, or of these sessions; returns how many.

        Those put aside go too, and a user who has no key yet is known as erased.
        """
        ...

    def readmit(self, user_ref: str, wrapped: bytes, now: int, *, epoch: int) -> bool:
        """Give an erased user a new key; False unless ``epoch`` is the next one."""
        ...

    def users(self, after: str = "", limit: int = 500) -> list[tuple[str, UserEntry]]:
        """Users by their keyed hashes, from behind ``after`` on."""
        ...

    def keys_of(self, user_ref: str) -> dict[KeyPlace, bytes]:
        """The wrapped keys of all sessions of the user."""
        ...

    def swap_user(
        self,
        user_ref: str,
        old: bytes,
        new: bytes,
        keys: Mapping[KeyPlace, bytes] | None = None,
    ) -> bool:
        """Replace a user's key and, if given, those of all sessions, or nothing.

        False if the user's is not ``old``, or there are other keys than these.
        """
        ...

    def held_users(self) -> list[tuple[str, UserEntry]]:
        """Users whose keys are put aside, with these keys."""
        ...

    def swap_held(self, user_ref: str, old: bytes, new: bytes) -> bool:
        """Replace a user's key that is put aside, if it is ``old``."""
        ...

    def counts(self) -> dict[str, int]:
        """How many users, sessions, erased users and sessions, and held keys."""
        ...

    def close(self) -> None: ...
