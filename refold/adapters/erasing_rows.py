"""What erasing asks of a database: its records, and the rows of whom it is about.

The database knows users, and sessions that were erased, as subjects: by keyed hashes.
A session begins only where its user's subject is live, in the statement that begins it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from refold.domain.erasure import Job, LegalHold, Remains, Stage, Whose

SubjectStatus: TypeAlias = Literal["live", "frozen", "erasing", "erased"]


class Subject(NamedTuple):
    """A user, or a session that was erased, by keyed hashes."""

    ref: str
    user_ref: str
    status: SubjectStatus
    epoch: int


class CertificateRow(NamedTuple):
    """A signed statement as it is kept."""

    certificate_id: str
    user_ref: str
    created_at: int
    body: str


class ErasingRows(Protocol):
    """The rows; every method is one transaction, but for ``delete``."""

    def begin(self, job: Job, subjects: Sequence[Subject]) -> Job:
        """Keep the job and its subjects; returns the one that is there for the same.

        Waits for sessions that are just beginning.  Raises OnHold.
        """
        ...

    def jobs(self, user_ref: str | None = None) -> list[Job]: ...
    def unowned_blobs(self, user_id: str) -> bool:
        """Whether the user has blobs that do not say whose session's they are."""
        ...

    def own_blobs(
        self, user_id: str, session_id: str, addresses: Sequence[bytes]
    ) -> None:
        """Say of these blobs, where nothing is said, whose they are."""
        ...

    def mark(self, whose: Whose) -> None:
        """Mark heads as erased, and remember what they were."""
        ...

    def unmark(self, whose: Whose, subjects: Sequence[Subject]) -> None:
        """Give heads back what they were, and let the subjects be live again."""
        ...

    def adopt(self, whose: Whose) -> None:
        """Give a marked head to streams that have none, so that they can be deleted."""
        ...

    def advance(self, job: Job, before: Stage) -> Job | None:
        """Keep how far it is if it was at ``before``; gives what is kept, if any."""
        ...

    def remains(self, whose: Whose) -> Remains: ...
    def delete(self, whose: Whose, erasure: str) -> Iterator[tuple[str, int]]:
        """Delete in bounded transactions; ``erasure`` has their leaves from then on."""
        ...

    def end(
        self,
        job_id: str | None,
        subjects: Sequence[Subject],
        certificate: CertificateRow,
    ) -> bool:
        """Keep the certificate, set the subjects, drop the job; False if it is gone."""
        ...

    def subject(self, ref: str) -> Subject | None: ...
    def subjects(self) -> list[Subject]:
        """All that are not live, or are not in their first epoch."""
        ...

    def set_subject(self, subject: Subject) -> None: ...
    def certificates(self, user_ref: str | None = None) -> list[CertificateRow]: ...
    def holds(self, user_ref: str) -> list[LegalHold]: ...
    def hold(self, user_ref: str, hold: LegalHold) -> bool: ...
    def release(self, user_ref: str, name: str) -> bool: ...
    def left(self, whose: Whose) -> dict[str, int]: ...
    def clean(self, *, vacuum: bool) -> dict[str, Any]: ...
    def found_in_files(self, names: Sequence[str]) -> dict[str, Any]: ...
    def facts(self) -> dict[str, Any]: ...
    def tree_head(self) -> dict[str, Any] | None: ...
    def key_generation(self) -> int:
        """The key store's generation when it was written down last; 0 if never."""
        ...

    def saw_generation(self, generation: int) -> None:
        """Write down the key store's generation, if it is higher than before."""
        ...
