"""Erasure: what it is of, how far it is, and the port that does each of its steps."""

from __future__ import annotations

import hashlib
import re
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, NamedTuple, Protocol, Self, TypeAlias, get_args

import orjson

from refold.domain.canonical import canonical, parsed
from refold.domain.chain import length_prefixed
from refold.domain.errors import InvalidConfiguration
from refold.domain.events import JsonObject
from refold.domain.model import quiet

FORMAT: Final = "refold-certificate/1"
SALT: Final = 32
_DOMAIN: Final = b"refold certificate 1\n"
_SUBJECT: Final = b"refold:subject:1"
_PARTS: Final = {"certificate", "key_id", "public_key", "signature"}


@quiet
class Signed(NamedTuple):
    """A statement with the signature over it, and the key that made it, for its name.

    Who checks it must know the key from elsewhere: a forger would name another.
    ``said`` is what is encrypted in the statement, as long as the user has a key.
    """

    statement: dict[str, Any]
    key_id: str
    public_key: bytes
    signature: bytes
    said: JsonObject | None = None

    def message(self) -> bytes:
        """The bytes that are signed."""
        return message(self.statement)

    def to_json(self) -> JsonObject:
        """The certificate as it is kept and handed out."""
        said: JsonObject = {} if self.said is None else {"said": self.said}
        return said | {
            "certificate": self.statement,
            "key_id": self.key_id,
            "public_key": b64encode(self.public_key).decode(),
            "signature": b64encode(self.signature).decode(),
        }

    @classmethod
    def read(cls, text: str | bytes) -> Signed:
        """What ``to_json`` gave, whatever stands beside it; raises ValueError."""
        found: Any = orjson.loads(text)
        if not isinstance(found, dict) or not set(found) >= _PARTS:
            raise ValueError("this is not a certificate of Refold")
        statement = found["certificate"]
        if not isinstance(statement, dict) or statement.get("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        if not all(isinstance(found[name], str) for name in _PARTS - {"certificate"}):
            raise ValueError("a part of it is not text")
        public = b64decode(found["public_key"], validate=True)
        signature = b64decode(found["signature"], validate=True)
        return cls(statement, found["key_id"], public, signature)


def message(statement: JsonObject) -> bytes:
    """The bytes of a statement that are signed."""
    return _DOMAIN + canonical(statement)


def subject(salt: bytes, user_id: str, sessions: Sequence[str] | None = None) -> str:
    """The hash that stands for a user, or for these sessions of one."""
    names = [user_id, *sorted(sessions or ())]
    parts = (_SUBJECT, salt, *(name.encode() for name in names))
    return hashlib.sha256(length_prefixed(parts)).hexdigest()


def timestamp(microseconds: int) -> str:
    """A moment as certificates write it: RFC 3339, in UTC."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    return moment.isoformat().replace("+00:00", "Z")


# In this order; each is durable before the next begins, and can be done again.
Stage: TypeAlias = Literal[
    "begun", "held", "restoring", "shredded", "counted", "deleted"
]
STAGES: Final[tuple[Stage, ...]] = get_args(Stage)


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


@quiet
class StoredExport(NamedTuple):
    """An export that has a copy of a user's data, as the store remembers it.

    made_at:  when it began, in microseconds since 1970.
    form:     the format, such as ``folder`` or ``dataset``; empty for a record that
              cannot be read any more.
    location: the path on ``machine``, or how the copy left, such as ``stdout``.
    machine:  the name of the machine that exported.
    sessions: of which sessions it is; None is all.
    """

    export_id: str
    made_at: int
    form: str
    location: str
    machine: str
    sessions: tuple[str, ...] | None = None

    def has(self, whose: Whose) -> bool:
        """Whether there may be something of these in the copy."""
        if whose.sessions is None or self.sessions is None:
            return True
        return not set(whose.sessions).isdisjoint(self.sessions)

    def to_json(self) -> JsonObject:
        """Say of the copy what a report says."""
        return {
            "export": self.export_id,
            "made_at": timestamp(self.made_at),
            "format": self.form,
            "location": self.location,
            "machine": self.machine,
        }


_LOCATION: Final = b"refold:location:1"


def certified_copy(copy: JsonObject, salt: bytes) -> JsonObject:
    """Say of a copy what a certificate says: a salted hash in place of its location.

    A path often contains the name of the user, and the certificate stays.  With the
    salt, the hash of a location shows that the certificate means it.
    """
    place = (str(copy["machine"]), str(copy["location"]))
    parts = (_LOCATION, salt, *(part.encode() for part in place))
    return {
        "export": copy["export"],
        "made_at": copy["made_at"],
        "format": copy["format"],
        "location_hash": hashlib.sha256(length_prefixed(parts)).hexdigest(),
    }


class Remains(NamedTuple):
    """What there is to delete: rows by table, and the root over the events' hashes."""

    counts: dict[str, int]
    leaves: int
    root: bytes


class Stranded(NamedTuple):
    """Data that is marked as erased, although no record says by which erasure.

    restorable: whether the keys are still there, so that the data can be read again.
    """

    whose: Whose
    restorable: bool


@quiet
class LegalHold(NamedTuple):
    """What keeps a user from being erased, until it is released."""

    name: str
    reason: str
    created_at: int


class ErasureSteps(Protocol):
    """The steps of erasing, each durable when it returns, each safe to do again."""

    @property
    def database(self) -> str:
        """What names the database in messages."""

    def begin(self, job: Job) -> Job:
        """Keep the record of the job; from here on no session of the user begins.

        Returns the job that is under way already, if there is one for the same.
        Raises OnHold, Erased if that user was erased before.
        """

    def new_job(self, whose: Whose, *, due_at: int | None, facts: JsonObject) -> Job:
        """A job that nothing was done of yet, and nothing is kept of."""

    def jobs(self, user_id: str | None = None) -> list[Job]:
        """Erasures that are not done, of a user or all."""

    def stranded(self, user_id: str | None = None) -> list[Stranded]:
        """Data marked as erased by an erasure whose record is gone."""

    def keep(self, job: Job) -> None:
        """Keep the record of a job again, as it is."""

    def mark(self, job: Job) -> None:
        """Mark all heads as erased: from here on nothing is read or written."""

    def hold_keys(self, job: Job, *, now: int) -> int: ...
    def destroy_keys(self, job: Job, *, now: int) -> int:
        """Destroy the keys for good; returns how many there were."""

    def advance(self, job: Job, before: Stage) -> Job | None:
        """Keep how far it is, if it was at ``before``; else how far others took it.

        None if they ended it.
        """

    def widen(self, job: Job, whose: Whose) -> Job | None:
        """Keep that it is of these now; else what others made of it, None if ended."""

    def remains(self, whose: Whose) -> Remains: ...
    def delete(self, job: Job) -> Iterator[tuple[str, int]]:
        """Delete all rows, some at a time, the heads last; yields table and number."""

    def certify(
        self,
        job: Job | None,
        user_id: str,
        statement: JsonObject,
        *,
        now: int,
        said: JsonObject | None = None,
    ) -> Signed | None:
        """Sign and keep the statement, and end the job; None if others ended it.

        What is ``said`` is encrypted in it with the user's key, and goes with that.

        Who was erased by the job is known as erased from then on, by keyed hashes.
        """

    def restore(self, job: Job) -> None:
        """Undo what a job that is held back did: keys and heads, not its record."""

    def readmit(self, user_id: str, *, now: int) -> int:
        """Give an erased user a new key; returns the epoch.

        Raises NotErased if the user was not erased.
        """

    def left(self, whose: Whose) -> dict[str, int]:
        """How many rows of every table are still there: a search of all of them."""

    def record_export(self, user_id: str, export: StoredExport) -> None:
        """Remember that an export is about to copy data of the user.

        Raises Erased for a user whose sessions are erased, StoreUnavailable for a
        database that can only be read.
        """

    def drop_export(self, user_id: str, export_id: str) -> None:
        """Forget an export that left no copy."""

    def exports(self, user_id: str) -> list[StoredExport]:
        """The exports that copied data of the user, the oldest first.

        Raises KeyUnavailable, Erased.
        """

    def forget_files(self, whose: Whose) -> dict[str, list[str]]:
        """Remove a user's files on this machine; gives them by their place.

        Nothing is removed for single sessions: the files are of the whole user.
        """

    def clean(self, *, vacuum: bool) -> dict[str, Any]:
        """Overwrite what was deleted, as far as the engine can; says what it did."""

    def found_in_files(self, names: Sequence[str]) -> dict[str, Any]:
        """Search the files of the database for names, where they can be reached."""

    def facts(self) -> JsonObject:
        """What a certificate says of the store: id, engine, schema."""

    def tree_head(self) -> JsonObject | None:
        """The newest signed tree head, if the store was sealed."""

    def tree_leaves(self, job: Job) -> JsonObject:
        """Count and root of the leaves of the tree that were the job's, and stay."""

    def certificates(self, user_id: str | None = None) -> list[Signed]:
        """What was signed, the oldest first."""

    def holds(self, user_id: str) -> list[LegalHold]: ...
    def hold(self, user_id: str, hold: LegalHold) -> bool:
        """Keep it; False if there is one of that name."""

    def release(self, user_id: str, name: str) -> bool: ...
    def refuse_erased(self, user_id: str) -> None:
        """Raises Erased if the user was erased, as the key store knows it."""

    def returned(self) -> list[str]:
        """Users who were erased and have sessions again: a backup was put back."""

    def public_key(self) -> bytes: ...
    def rotate_master(self) -> int:
        """Wrap all that the newest master key did not wrap; returns how much.

        Others may read and write meanwhile.  Cut off, it goes on when called again.
        """

    def rotate_user(self, user_id: str) -> int:
        """Give a user another key; returns how many sessions' keys are under it.

        Raises KeyUnavailable, Erased.
        """

    def key_status(self) -> dict[str, Any]:
        """How many keys there are, of which kind, and how many should be replaced."""


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


class Retention(Protocol):
    """Freezes, and what is known of the use of sessions."""

    def freeze(self, user_id: str, freeze: LegalHold) -> bool:
        """Take nothing of the user from now on; False if it is so already.

        Returns when nothing that was under way can be written any more.
        Raises Erased if the user was erased, or is being erased.
        """

    def unfreeze(self, user_id: str) -> bool:
        """Take events again; False if there is no freeze."""

    def add_accesses(self, user_id: str, accesses: Sequence[Accesses]) -> None:
        """Add to what is known of these sessions; those not there are left out."""

    def accesses(self, user_id: str | None = None) -> list[Accesses]:
        """Of the sessions of a user, or of all, that were ever read by name."""

    def old_blobs(self, before: int) -> Iterator[OldBlobs]:
        """The blobs written before that time, a few sessions' at a time."""

    def expire_blobs(self, blobs: OldBlobs) -> int:
        """Let go of the texts; a sealed mark says so in their place.

        Returns how many: 0 if the session is erased or frozen by now.
        """

    def begin_unused(self, job: Job, unused: Unused) -> Job | None:
        """Begin an erasure and mark its heads, if they are unused; else None.

        One transaction: what is appended comes before it and keeps the session, or
        is refused.  Returns the job that is under way already, if there is one.

        Raises OnHold, Erased.
        """


Since: TypeAlias = Literal["append", "access"]
# What memory holds of how tools do, and of a user who consented.
OF_TOOLS: Final = ("path", "failure", "recovery", "check", "effort")
OF_USER: Final = ("error", "topic", "progress", "mistake")
KINDS: Final = (*OF_TOOLS, *OF_USER)
_UNITS: Final = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_TIME: Final = re.compile(r"([0-9]{1,6})([dhms])")
LONGEST: Final = timedelta(days=999_999)  # what can be written; and dates can be told


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """When what expires; None is never, and so is what is left out.

    sessions: a session that nobody used for so long.
    since:    what uses one: ``append`` alone, or ``access``: reading it by name too.
    blobs:    the whole texts behind cut ones, that long after they were written.
    memory:   what was learned from a session, so long after that was used: it outlives
              the session, which must expire as soon or sooner.  A time for all of it,
              or for each kind: those that are left out go with the session.
    audit:    records of who did what.

    Raises InvalidConfiguration for a time that is not above zero, and for one that
    could not be kept.
    """

    sessions: timedelta | None = None
    since: Since = "append"
    blobs: timedelta | None = None
    memory: timedelta | Mapping[str, timedelta] | None = None
    audit: timedelta | None = None

    @property
    def lasting(self) -> dict[str, timedelta]:
        """How long each kind of memory lasts; none that goes with its session."""
        if isinstance(self.memory, timedelta):
            return dict.fromkeys(KINDS, self.memory)
        return dict(self.memory or {})

    def __post_init__(self) -> None:
        if self.since not in get_args(Since):
            raise InvalidConfiguration(
                f"since is one of append, access, not {self.since!r}"
            )
        memory = {f"memory {name}": time for name, time in self.lasting.items()}
        times = {name: getattr(self, name) for name in ("sessions", "blobs", "audit")}
        if unknown := self.lasting.keys() - set(KINDS):
            raise InvalidConfiguration(
                f"memory has no kind {min(unknown)!r}, only {', '.join(KINDS)}"
            )
        for name, time in {**times, **memory}.items():
            if time is not None and time <= timedelta(0):
                raise InvalidConfiguration(f"{name} must expire after more than 0s")
            if time is not None and time > LONGEST:
                raise InvalidConfiguration(f"{name} must expire within 999999 days")
        for time in memory.values():
            if not (self.sessions and self.sessions <= time):
                raise InvalidConfiguration(
                    "memory is made of sessions: they must expire after no longer than "
                    "memory"
                )

    @classmethod
    def preset(cls, name: str) -> Self:
        """The policy of that name.  Raises InvalidConfiguration if there is none."""
        if name not in _PRESETS:
            known = ", ".join(_PRESETS)
            raise InvalidConfiguration(f"there is no preset {name!r}; there is {known}")
        return cls.of(_PRESETS[name])

    @classmethod
    def read(cls, text: str | bytes) -> Self:
        """The policy that TOML says: ``sessions = "30d"``, and so on.

        Raises InvalidConfiguration for what is not TOML, key or time.
        """
        how = 'a retention policy is TOML with lines such as sessions = "30d"'
        return cls.of(parsed(text, otherwise=how))

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Self:
        """The policy of these keys.  Raises InvalidConfiguration."""
        known = {field.name for field in fields(cls)}
        for name in found:
            if name not in known:
                raise InvalidConfiguration(
                    f"a retention policy has no {name!r}, only {', '.join(known)}"
                )
        times: dict[str, Any] = {}
        for name, value in found.items():
            if name == "memory" and isinstance(value, Mapping):
                times[name] = {k: span(f"memory {k}", v) for k, v in value.items()}
            elif name != "since":
                times[name] = span(name, value)
        return cls(**times, since=found.get("since", "append"))


_PRESETS: Final[Mapping[str, Mapping[str, str]]] = {
    "seed": {"sessions": "30d", "memory": "90d", "audit": "14d"}
}


def span(name: str, text: object) -> timedelta:
    """The time that a setting says, such as ``30d``.  Raises InvalidConfiguration."""
    found = _TIME.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise InvalidConfiguration(
            f'{name} is a number and d, h, m or s in quotes, such as "30d"'
        )
    return timedelta(**{_UNITS[found[2]]: int(found[1])})
