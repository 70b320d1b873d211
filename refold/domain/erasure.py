"""Erasure: what it is of, how far it is, and the port that does each of its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias

import orjson

from refold.domain.certificate import Signed
from refold.domain.events import JsonObject

# In this order; each is durable before the next begins, and can be done again.
Stage: TypeAlias = Literal[
    "begun", "held", "restoring", "shredded", "counted", "deleted"
]
STAGES: Final[tuple[Stage, ...]] = (
    *("begun", "held", "restoring"),
    *("shredded", "counted", "deleted"),
)


class Whose(NamedTuple):
    """All of a user, or only these sessions of theirs."""

    user_id: str
    sessions: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """An erasure under way, as it is kept until it is done.

    due_at: when what is held back is destroyed, in microseconds since 1970; None is at
            once.
    facts:  what the certificate will say, as far as it is known.
    """

    job_id: str
    user_ref: str
    whose: Whose
    stage: Stage
    due_at: int | None
    facts: Mapping[str, Any]

    def at(self, stage: Stage, **facts: Any) -> Job:
        """The same, further on."""
        return replace(self, stage=stage, facts={**self.facts, **facts})

    def past(self, stage: Stage) -> bool:
        """Whether that stage is behind it."""
        return STAGES.index(self.stage) >= STAGES.index(stage)

    def dump(self) -> str:
        """What is kept of it beside its columns."""
        user_id, sessions = self.whose
        body = {"user_id": user_id, "sessions": sessions, "facts": self.facts}
        return orjson.dumps(body).decode()

    @classmethod
    def load(
        cls, job_id: str, user_ref: str, stage: Stage, due_at: int | None, body: str
    ) -> Job:
        """The job that ``dump`` wrote."""
        found = orjson.loads(body)
        sessions = found["sessions"]
        whose = Whose(found["user_id"], None if sessions is None else tuple(sessions))
        return cls(job_id, user_ref, whose, stage, due_at, found["facts"])


class Remains(NamedTuple):
    """What there is to delete: rows by table, and the root over the events' hashes."""

    counts: dict[str, int]
    leaves: int
    root: bytes


class LegalHold(NamedTuple):
    """What keeps a user from being erased, until it is released."""

    name: str
    reason: str
    created_at: int


class Erasures(Protocol):
    """The steps of erasing, each durable when it returns, each safe to do again."""

    def begin(self, job: Job) -> Job:
        """Keep the record of the job; from here on no session of the user begins.

        Returns the job that is under way already, if there is one for the same.
        Raises OnHold, Erased if that user was erased before.
        """
        ...

    def new_job(self, whose: Whose, *, due_at: int | None, facts: JsonObject) -> Job:
        """A job that nothing was done of yet, and nothing is kept of."""
        ...

    def jobs(self, user_id: str | None = None) -> list[Job]:
        """Erasures that are not done, of a user or all."""
        ...

    def mark(self, job: Job) -> None:
        """Mark all heads as erased: from here on nothing is read or written."""
        ...

    def hold_keys(self, job: Job, *, now: int) -> int: ...
    def destroy_keys(self, job: Job, *, now: int) -> int:
        """Destroy the keys for good; returns how many there were."""
        ...

    def advance(self, job: Job, before: Stage) -> Job | None:
        """Keep how far it is, if it was at ``before``; else how far others took it.

        None if they ended it.
        """
        ...

    def widen(self, job: Job, whose: Whose) -> Job | None:
        """Keep that it is of these now; else what others made of it, None if ended."""
        ...

    def remains(self, whose: Whose) -> Remains: ...
    def delete(self, job: Job) -> Iterator[tuple[str, int]]:
        """Delete all rows, some at a time, the heads last; yields table and number."""
        ...

    def certify(
        self, job: Job | None, user_id: str, statement: JsonObject, *, now: int
    ) -> Signed | None:
        """Sign and keep the statement, and end the job; None if others ended it.

        Who was erased by the job is known as erased from then on, by keyed hashes.
        """
        ...

    def restore(self, job: Job) -> None:
        """Undo what a job that is held back did: keys and heads, not its record."""
        ...

    def readmit(self, user_id: str, *, now: int) -> int:
        """Give an erased user a new key; returns the epoch.

        Raises NotErased if the user was not erased.
        """
        ...

    def left(self, whose: Whose) -> dict[str, int]:
        """How many rows of every table are still there: a search of all of them."""
        ...

    def clean(self, *, vacuum: bool) -> dict[str, Any]:
        """Overwrite what was deleted, as far as the engine can; says what it did."""
        ...

    def found_in_files(self, names: Sequence[str]) -> dict[str, Any]:
        """Search the files of the database for names, where they can be reached."""
        ...

    def facts(self) -> JsonObject:
        """What a certificate says of the store: id, engine, schema."""
        ...

    def tree_head(self) -> JsonObject | None:
        """The newest signed tree head, if the store was sealed."""
        ...

    def tree_leaves(self, job: Job) -> JsonObject:
        """Count and root of the leaves of the tree that were the job's, and stay."""
        ...

    def certificates(self, user_id: str | None = None) -> list[Signed]:
        """What was signed, the oldest first."""
        ...

    def holds(self, user_id: str) -> list[LegalHold]: ...
    def hold(self, user_id: str, hold: LegalHold) -> bool:
        """Keep it; False if there is one of that name."""
        ...

    def release(self, user_id: str, name: str) -> bool: ...
    def refuse_erased(self, user_id: str) -> None:
        """Raises Erased if the user was erased, as the key store knows it."""
        ...

    def returned(self) -> list[str]:
        """Users who were erased and have sessions again: a backup was put back."""
        ...

    def public_key(self) -> bytes: ...
    def rotate_master(self) -> int:
        """Wrap all that the newest master key did not wrap; returns how much.

        Others may read and write meanwhile.  Cut off, it goes on when called again.
        """
        ...

    def rotate_user(self, user_id: str) -> int:
        """Give a user another key; returns how many sessions' keys are under it.

        Raises KeyUnavailable, Erased.
        """
        ...

    def key_status(self) -> dict[str, Any]:
        """How many keys there are, of which kind, and how many should be replaced."""
        ...


Progress: TypeAlias = Callable[[str, int, int], None]
