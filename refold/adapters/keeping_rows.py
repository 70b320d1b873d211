"""What freezes and retention ask of a database; each method is one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from refold.adapters.erasing_rows import Subject
from refold.domain.erasure import Job, LegalHold
from refold.domain.keeping import Accesses, OldBlobs, Unused

if TYPE_CHECKING:
    from refold.adapters.recorder import BlobRow

# What a head's status is while its user is frozen; nothing is appended to either.
FROZEN: Final = {"open": "frozen", "closed": "frozen-closed"}
THAWED: Final = {frozen: status for status, frozen in FROZEN.items()}


class BlobPlace(NamedTuple):
    """Where a blob is, and whose."""

    user_id: str
    address: bytes
    session_id: str


class StillUsed(Exception):
    """Undoes the transaction that was to begin an erasure."""


class KeepingRows(Protocol):
    """The rows; a user is named by id where heads are, by keyed hash elsewhere."""

    def freeze(self, user_id: str, user_ref: str, freeze: LegalHold) -> bool:
        """Freeze subject and heads, and keep why; False if it is so already."""
        ...

    def unfreeze(self, user_id: str, user_ref: str) -> bool: ...
    def add_accesses(self, user_id: str, accesses: Sequence[Accesses]) -> None: ...
    def accesses(self, user_id: str | None) -> list[Accesses]: ...
    def is_frozen(self, user_ref: str) -> bool: ...
    def old_blobs(self, before: int, after: tuple[str, bytes]) -> list[BlobPlace]:
        """The next of those written before, behind user and address, in their order."""
        ...

    def expire_blobs(
        self, blobs: OldBlobs, rows: Sequence[BlobRow], key_check: bytes
    ) -> int:
        """Put the rows in their places, if the session is open or closed, and so keyed.

        Those that are without text already stay as they are.
        """
        ...

    def begin_unused(
        self, job: Job, subjects: Sequence[Subject], unused: Unused
    ) -> Job | None:
        """Begin the job and mark its heads, or do nothing."""
        ...
