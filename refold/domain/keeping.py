"""Keeping users' data as it is, and no longer than it is used: freezes, accesses.

A freeze is of a user.  Until it is lifted, the database itself takes no event of
theirs, whoever writes; what is there can be read, and is neither erased nor expires.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from refold.domain.erasure import Job, LegalHold

# A freeze stands among the legal holds, under a name that no other has.
FREEZE: Final = "freeze"


class Accesses(NamedTuple):
    """How often a session was read by its name, and when last; microseconds."""

    user_id: str
    session_id: str
    reads: int
    last_at: int


class Unused(NamedTuple):
    """On which terms sessions are erased: nobody used them, and nothing was begun.

    since:   a session that was appended to later is in use.
    reads:   one that was read later is, too.
    known:   the names of all the user's sessions; another one may be a fork.
    """

    since: int
    reads: bool
    known: Collection[str]


class OldBlobs(NamedTuple):
    """Blobs of one session that were written before a time, by their addresses."""

    user_id: str
    session_id: str
    addresses: tuple[bytes, ...]


class Keeping(Protocol):
    """Freezes, and what is known of the use of sessions."""

    def freeze(self, user_id: str, freeze: LegalHold) -> bool:
        """Take nothing of the user from now on; False if it is so already.

        Returns when nothing that was under way can be written any more.
        Raises Erased if the user was erased, or is being erased.
        """
        ...

    def unfreeze(self, user_id: str) -> bool:
        """Take events again; False if there is no freeze."""
        ...

    def add_accesses(self, user_id: str, accesses: Sequence[Accesses]) -> None:
        """Add to what is known of these sessions; those not there are left out."""
        ...

    def accesses(self, user_id: str | None = None) -> list[Accesses]:
        """Of the sessions of a user, or of all, that were ever read by name."""
        ...

    def old_blobs(self, before: int) -> Iterator[OldBlobs]:
        """The blobs written before that time, a few sessions' at a time.

        Those are left out that stores of schema 1 kept for several sessions.
        """
        ...

    def expire_blobs(self, blobs: OldBlobs) -> int:
        """Let go of the texts; a sealed mark says so in their place.

        Returns how many: 0 if the session is erased or frozen by now.
        """
        ...

    def begin_unused(self, job: Job, unused: Unused) -> Job | None:
        """Begin an erasure and mark its heads, if they are unused; else None.

        One transaction: what is appended comes before it and keeps the session, or
        is refused.  Returns the job that is under way already, if there is one.

        Raises OnHold, Erased.
        """
        ...
