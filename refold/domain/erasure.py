"""Erasure and retention: jobs, certificates, policies, and the ports of their steps."""

from __future__ import annotations

import hashlib
import re
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, NamedTuple, Protocol, Self, TypeAlias, get_args

import orjson

from refold.domain.canonical import canonical, parse_toml
from refold.domain.chain import length_prefixed
from refold.domain.errors import InvalidConfiguration
from refold.domain.events import JsonObject
from refold.domain.model import repr_without_texts

FORMAT: Final = "refold-certificate/1"
SALT: Final = 32  # bytes
_DOMAIN: Final = b"refold certificate 1\n"
_SUBJECT: Final = b"refold:subject:1"
_PARTS: Final = {"certificate", "key_id", "public_key", "signature"}


@repr_without_texts
class Signed(NamedTuple):
    """A statement with a signature.

    public_key: the key that the statement names.  A verifier must know the key from
                another source, because a forger would name their own.
    texts:      the texts that the statement contains encrypted, such as the reason;
                None if the user has no key.
    """

    statement: dict[str, Any]
    key_id: str
    public_key: bytes
    signature: bytes
    texts: JsonObject | None = None

    def message(self) -> bytes:
        """Return the signed bytes."""
        return message(self.statement)

    def to_json(self) -> JsonObject:
        """Return the certificate as JSON."""
        certificate: JsonObject = {}
        if self.texts is not None:
            certificate["said"] = self.texts
        certificate["certificate"] = self.statement
        certificate["key_id"] = self.key_id
        certificate["public_key"] = b64encode(self.public_key).decode()
        certificate["signature"] = b64encode(self.signature).decode()
        return certificate

    @classmethod
    def read(cls, text: str | bytes) -> Signed:
        """Read the JSON that ``to_json`` returned, with or without further keys.

        Raises ValueError for other text.
        """
        certificate: Any = orjson.loads(text)
        if not isinstance(certificate, dict) or not set(certificate) >= _PARTS:
            raise ValueError("this is not a certificate of Refold")
        statement = certificate["certificate"]
        if not isinstance(statement, dict) or statement.get("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        texts = [certificate[name] for name in _PARTS if name != "certificate"]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("a part of it is not text")
        public = b64decode(certificate["public_key"], validate=True)
        signature = b64decode(certificate["signature"], validate=True)
        return cls(statement, certificate["key_id"], public, signature)


class NewCertificate(NamedTuple):
    """A signed certificate that the store does not have yet.

    It is stored in the transaction of the act that it certifies, so that neither exists
    without the other.

    user_ref:   the keyed hash of the user.
    created_at: in microseconds since 1970.
    """

    signed: Signed
    user_ref: str
    created_at: int

    @property
    def certificate_id(self) -> str:
        """Return the id that the statement contains."""
        return str(self.signed.statement["certificate_id"])


class Readmission(NamedTuple):
    """The key under which an erased user returns.

    user_ref: the keyed hash of the user.
    epoch:    the number of the user's key.
    wrapped:  the key, encrypted with the master key.
    added:    whether the key store has it; an interrupted readmission added it.
    """

    user_ref: str
    epoch: int
    wrapped: bytes
    added: bool


def message(statement: JsonObject) -> bytes:
    """Return the signed bytes of a statement."""
    return _DOMAIN + canonical(statement)


def subject(salt: bytes, user_id: str, sessions: Sequence[str] | None = None) -> str:
    """Return the hash that represents a user, or these sessions of a user."""
    names = [user_id, *sorted(sessions or ())]
    parts = (_SUBJECT, salt, *(name.encode() for name in names))
    return hashlib.sha256(length_prefixed(parts)).hexdigest()


def timestamp(microseconds: int) -> str:
    """Return a time as certificates write it: RFC 3339, in UTC."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    return moment.isoformat().replace("+00:00", "Z")


# The stages of an erasure in order.  Each is durable before the next one begins, and
# can be repeated.
Stage: TypeAlias = Literal[
    "begun", "held", "restoring", "shredded", "counted", "deleted"
]
STAGES: Final[tuple[Stage, ...]] = get_args(Stage)


class ErasureScope(NamedTuple):
    """The scope of an erasure: a whole user, or only these sessions of the user."""

    user_id: str
    sessions: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class ErasureJob:
    """An erasure in progress, which is stored until it is complete.

    user_ref: the keyed hash of the user.
    due_at:   the end of a grace period, after which the keys are destroyed, in
              microseconds since 1970; None destroys them at once.
    facts:    the facts for the certificate that are known so far.
    """

    job_id: str
    user_ref: str
    scope: ErasureScope
    stage: Stage
    due_at: int | None
    facts: Mapping[str, Any]

    def at(self, stage: Stage, **facts: Any) -> ErasureJob:
        """Return the job at a later stage, with further facts."""
        return replace(self, stage=stage, facts={**self.facts, **facts})

    def past(self, stage: Stage) -> bool:
        """Whether the job has reached a stage."""
        return STAGES.index(self.stage) >= STAGES.index(stage)

    def dump(self) -> str:
        """Return the part of the job without columns of its own, as JSON text."""
        body = {
            "user_id": self.scope.user_id,
            "sessions": self.scope.sessions,
            "facts": self.facts,
        }
        return orjson.dumps(body).decode()

    @classmethod
    def load(
        cls, job_id: str, user_ref: str, stage: Stage, due_at: int | None, body: str
    ) -> ErasureJob:
        """Return the job that ``dump`` wrote."""
        stored = orjson.loads(body)
        sessions = stored["sessions"]
        if sessions is not None:
            sessions = tuple(sessions)
        return cls(
            job_id=job_id,
            user_ref=user_ref,
            scope=ErasureScope(stored["user_id"], sessions),
            stage=stage,
            due_at=due_at,
            facts=stored["facts"],
        )


@repr_without_texts
class StoredExport(NamedTuple):
    """The store's record of an export, which has a copy of a user's data.

    made_at:  the time of its beginning, in microseconds since 1970.
    form:     the format, such as ``folder`` or ``dataset``; empty for a record that
              cannot be read any more.
    location: the path on ``machine``, or the output, such as ``stdout``.
    machine:  the name of the machine that exported.
    sessions: the exported sessions; None means all.
    """

    export_id: str
    made_at: int
    form: str
    location: str
    machine: str
    sessions: tuple[str, ...] | None = None

    def has(self, scope: ErasureScope) -> bool:
        """Whether the copy may contain data of this scope."""
        if scope.sessions is None or self.sessions is None:
            return True
        return not set(scope.sessions).isdisjoint(self.sessions)

    def to_json(self) -> JsonObject:
        """Return the copy as reports describe it."""
        return {
            "export": self.export_id,
            "made_at": timestamp(self.made_at),
            "format": self.form,
            "location": self.location,
            "machine": self.machine,
        }


_LOCATION: Final = b"refold:location:1"


def certified_copy(copy: JsonObject, salt: bytes) -> JsonObject:
    """Return a copy as a certificate describes it, with a hash of its location.

    A path often contains the name of the user, and the certificate stays.  With the
    salt, anybody who knows a location can check that the certificate names it.

    copy: the result of ``StoredExport.to_json``.
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
    """The rows that an erasure will delete.

    counts: rows by table.
    leaves: the number of events.
    root:   the root over the hashes of these events.
    """

    counts: dict[str, int]
    leaves: int
    root: bytes


class Stranded(NamedTuple):
    """Data that is marked as erased, although no record of the erasure exists.

    restorable: whether the keys still exist, so that the data can be made readable.
    """

    scope: ErasureScope
    restorable: bool


@repr_without_texts
class LegalHold(NamedTuple):
    """A ban on erasing a user, until it is released."""

    name: str
    reason: str
    created_at: int


class ErasureSteps(Protocol):
    """The steps of an erasure.  Each is durable when it returns and can be repeated."""

    @property
    def database(self) -> str:
        """The name of the database in messages."""

    def begin(self, job: ErasureJob) -> ErasureJob:
        """Store the job; from now on, no session of the user can begin.

        Returns the job that is in progress already, if there is one for the same scope.

        Raises OnHold, and Erased if the user was erased before.
        """

    def new_job(
        self, scope: ErasureScope, *, due_at: int | None, facts: JsonObject
    ) -> ErasureJob:
        """Return a new job, which is not stored yet."""

    def jobs(self, user_id: str | None = None) -> list[ErasureJob]:
        """Return the erasures in progress, of a user or all."""

    def stranded(self, user_id: str | None = None) -> list[Stranded]:
        """Return data that is marked as erased although its erasure has no record."""

    def keep(self, job: ErasureJob) -> None:
        """Store the record of a job again."""

    def mark(self, job: ErasureJob) -> None:
        """Mark all heads as erased: from now on, reads and writes fail."""

    def hold_keys(self, job: ErasureJob, *, now: int) -> int:
        """Set the keys aside for the grace period; returns their number."""

    def destroy_keys(self, job: ErasureJob, *, now: int) -> int:
        """Destroy the keys for good; returns their number."""

    def advance(self, job: ErasureJob, before: Stage) -> ErasureJob | None:
        """Store the stage of the job, if the stored stage is ``before``.

        Returns the stored job, which another process may have advanced, or None if
        another process completed it.
        """

    def widen(self, job: ErasureJob, scope: ErasureScope) -> ErasureJob | None:
        """Store a wider scope of the job.

        Returns the stored job, which another process may have changed, or None if
        another process completed it.
        """

    def remains(self, scope: ErasureScope) -> Remains:
        """Count the rows that an erasure will delete."""

    def delete(self, job: ErasureJob) -> Iterator[tuple[str, int]]:
        """Delete all rows in batches, heads last; yield the table and size of each."""

    def certify(
        self,
        job: ErasureJob,
        statement: JsonObject,
        *,
        now: int,
        texts: JsonObject | None = None,
    ) -> Signed | None:
        """Sign and store a statement, and complete the job.

        Keyed hashes of the erased user or sessions are stored, so that their ids cannot
        be used again.

        texts: texts that the statement contains encrypted with the user's key, so that
               they disappear with the key.

        Returns None if another process completed the job.
        """

    def sign(
        self,
        user_id: str,
        statement: JsonObject,
        *,
        now: int,
        texts: JsonObject | None = None,
        readmission: Readmission | None = None,
    ) -> NewCertificate:
        """Sign a statement about an act that follows; stores only a new user's key.

        texts:       texts that the statement contains encrypted with the user's key, so
                     that they disappear with the key.
        readmission: has the key to encrypt them with.

        Raises Erased, KeyUnavailable.
        """

    def restore(self, job: ErasureJob) -> None:
        """Restore keys and heads during the grace period; the job's record stays."""

    def prepare_readmission(self, user_id: str) -> Readmission:
        """Return a new key for an erased user, which is not stored yet.

        Raises NotErased if the user was not erased.
        """

    def readmit(
        self, user_id: str, readmission: Readmission, certificate: NewCertificate
    ) -> None:
        """Store the key, then let the user return and store the certificate.

        A call that is interrupted between the two has no effect, except that the next
        readmission uses the stored key.

        Raises NotErased if another process readmitted the user.
        """

    def left(self, scope: ErasureScope) -> dict[str, int]:
        """Search all tables for rows of the scope; returns their number by table."""

    def record_export(self, user_id: str, export: StoredExport) -> None:
        """Remember that an export is about to copy data of the user.

        Raises Erased for a user whose sessions are erased, StoreUnavailable for a
        database that can only be read.
        """

    def drop_export(self, user_id: str, export_id: str) -> None:
        """Forget an export that left no copy."""

    def exports(self, user_id: str) -> list[StoredExport]:
        """Return the exports that copied data of the user, the oldest first.

        Raises KeyUnavailable, Erased.
        """

    def forget_files(self, scope: ErasureScope) -> dict[str, list[str]]:
        """Remove the user's files on this machine; returns them by their place.

        It removes nothing for single sessions, because files concern the whole user.
        """

    def clean(self, *, vacuum: bool) -> dict[str, Any]:
        """Overwrite deleted data as far as the engine can; returns a report."""

    def found_in_files(self, names: Sequence[str]) -> dict[str, Any]:
        """Search the files of the database for names, if they are accessible."""

    def facts(self) -> JsonObject:
        """Return the facts about the store for certificates: id, engine, schema."""

    def tree_head(self) -> JsonObject | None:
        """Return the newest signed tree head, if the store was sealed."""

    def tree_leaves(self, job: ErasureJob) -> JsonObject:
        """Return the count and the root of the job's leaves, which stay in the tree."""

    def certificates(self, user_id: str | None = None) -> list[Signed]:
        """Return the certificates, the oldest first."""

    def holds(self, user_id: str) -> list[LegalHold]:
        """Return the legal holds and the freeze of a user."""

    def hold(self, user_id: str, hold: LegalHold, certificate: NewCertificate) -> bool:
        """Add a legal hold and its certificate; False if there is one of that name."""

    def release(self, user_id: str, name: str, certificate: NewCertificate) -> bool:
        """Remove a legal hold and store the certificate of that.

        Returns False, and stores nothing, if there is no hold of that name.
        """

    def refuse_erased(self, user_id: str) -> None:
        """Raise Erased if the user was erased according to the key store."""

    def returned(self) -> list[str]:
        """Return erased users with sessions, which come from a restored backup."""

    def public_key(self) -> bytes:
        """Return the key that verifies certificates; 32 bytes."""

    def rotate_master(self) -> int:
        """Wrap all keys with the newest master key; returns how many were not.

        Other processes may read and write concurrently.  The next call completes one
        that was interrupted.
        """

    def rotate_user(self, user_id: str) -> int:
        """Replace the key of a user; returns the number of session keys under it.

        Raises KeyUnavailable, Erased.
        """

    def key_status(self) -> dict[str, Any]:
        """Return the number of keys by kind, and how many should be replaced."""


# A freeze is stored as a legal hold with this reserved name.
FREEZE: Final = "freeze"


class Accesses(NamedTuple):
    """The number of reads of a session by name, and the last one in microseconds."""

    user_id: str
    session_id: str
    reads: int
    last_at: int


class Unused(NamedTuple):
    """The conditions under which unused sessions are erased.

    since:        a session with a later append is in use; microseconds since 1970.
    reads:        whether a later read by name counts as use, too.
    all_sessions: the ids of all sessions of the user.  The erasure does not begin if
                  there is another one, because that may be a fork.
    """

    since: int
    reads: bool
    all_sessions: Collection[str]


class OldBlobs(NamedTuple):
    """The addresses of a session's blobs that were written before a time."""

    user_id: str
    session_id: str
    addresses: tuple[bytes, ...]


class Retention(Protocol):
    """Freezes, and the use of sessions."""

    def freeze(
        self, user_id: str, freeze: LegalHold, certificate: NewCertificate
    ) -> bool:
        """Refuse all events of the user from now on, and store the certificate of that.

        When it returns, no write that had begun before can take effect.

        Returns False, and stores nothing, if the user is frozen already.

        Raises Erased if the user was erased or an erasure is in progress.
        """

    def unfreeze(self, user_id: str, certificate: NewCertificate) -> bool:
        """Accept events again, and store the certificate of that.

        Returns False, and stores nothing, if the user is not frozen.
        """

    def add_accesses(self, user_id: str, accesses: Sequence[Accesses]) -> None:
        """Add reads of sessions; sessions that do not exist are ignored."""

    def accesses(self, user_id: str | None = None) -> list[Accesses]:
        """Return the reads of sessions by name, of a user or of all."""

    def correct_uses(self, *, later_than: int, now: int) -> None:
        """Set the last use of sessions to ``now``, if it is later than ``later_than``.

        Such a time comes from a clock that was wrong.
        """

    def correct_blobs(self, *, later_than: int, now: int) -> None:
        """Set the times of blobs to ``now``, if they are later than ``later_than``."""

    def old_blobs(self, before: int) -> Iterator[OldBlobs]:
        """Yield the blobs that were written before a time, by session."""

    def expire_blobs(self, blobs: OldBlobs) -> int:
        """Replace blobs by encrypted marks that say that the text has expired.

        Returns their number, which is 0 if the session was erased or frozen since.
        """

    def begin_unused(self, job: ErasureJob, unused: Unused) -> ErasureJob | None:
        """Begin an erasure and mark its heads, if the sessions are unused.

        This is one transaction: a concurrent append either comes before it, and then
        the session stays, or is refused.

        Returns the job, or the one that is in progress already; None if a session is in
        use.

        Raises OnHold, Erased.
        """


Since: TypeAlias = Literal["append", "access"]
# The kinds of memory about tools, and those about a user who consented.
OF_TOOLS: Final = ("path", "failure", "recovery", "check", "effort", "warning")
OF_USER: Final = ("error", "topic", "progress", "mistake")
KINDS: Final = (*OF_TOOLS, *OF_USER)
_UNITS: Final = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_TIME: Final = re.compile(r"([0-9]{1,6})([dhms])")
# Longer times do not fit into the notation or into dates.
LONGEST: Final = timedelta(days=999_999)


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """The times after which data expires; None means never.

    sessions: after the last use of a session.
    since:    the uses that count: ``append``, or ``access``, which includes reading the
              session by name.
    blobs:    after a blob was written.
    memory:   after the last use of the session that an item was learned from: a time
              for all items, or times by kind.  Kinds without a time expire with the
              session.  Sessions must expire no later than memory.
    audit:    after a record of the access log was written.

    Raises InvalidConfiguration for a time outside of 0 and 999999 days, for an unknown
    kind, and for a time that contradicts another.
    """

    sessions: timedelta | None = None
    since: Since = "append"
    blobs: timedelta | None = None
    memory: timedelta | Mapping[str, timedelta] | None = None
    audit: timedelta | None = None

    @property
    def lasting(self) -> dict[str, timedelta]:
        """The times by kind of memory, without kinds that expire with their session."""
        if isinstance(self.memory, timedelta):
            return dict.fromkeys(KINDS, self.memory)
        return dict(self.memory or {})

    def __post_init__(self) -> None:
        if self.since not in get_args(Since):
            raise InvalidConfiguration(
                f"since is one of append, access, not {self.since!r}"
            )
        unknown = self.lasting.keys() - set(KINDS)
        if unknown:
            raise InvalidConfiguration(
                f"memory has no kind {min(unknown)!r}, only {', '.join(KINDS)}"
            )
        times: dict[str, timedelta | None] = {
            "sessions": self.sessions,
            "blobs": self.blobs,
            "audit": self.audit,
        }
        for kind, time in self.lasting.items():
            times[f"memory {kind}"] = time
        for name, time_or_none in times.items():
            if time_or_none is None:
                continue
            if time_or_none <= timedelta(0):
                raise InvalidConfiguration(f"{name} must expire after more than 0s")
            if time_or_none > LONGEST:
                raise InvalidConfiguration(f"{name} must expire within 999999 days")
        for time in self.lasting.values():
            if not self.sessions or self.sessions > time:
                raise InvalidConfiguration(
                    "memory is derived from sessions, so sessions must expire no later "
                    "than memory"
                )

    @classmethod
    def preset(cls, name: str) -> Self:
        """Return a preset policy.  Raises InvalidConfiguration for an unknown name."""
        if name not in _PRESETS:
            names = ", ".join(_PRESETS)
            raise InvalidConfiguration(f"there is no preset {name!r}; there is {names}")
        return cls.of(_PRESETS[name])

    @classmethod
    def read(cls, text: str | bytes) -> Self:
        """Read a policy from TOML with lines such as ``sessions = "30d"``.

        Raises InvalidConfiguration for invalid TOML, or an unknown key or time.
        """
        expected = 'a retention policy is TOML with lines such as sessions = "30d"'
        return cls.of(parse_toml(text, otherwise=expected))

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Return the policy of these settings, with times as text.

        Raises InvalidConfiguration for an unknown key or an invalid time.
        """
        names = {field.name for field in fields(cls)}
        for name in settings:
            if name not in names:
                raise InvalidConfiguration(
                    f"a retention policy has no {name!r}, only {', '.join(names)}"
                )
        times: dict[str, Any] = {}
        for name, value in settings.items():
            if name == "memory" and isinstance(value, Mapping):
                times[name] = {
                    kind: span(f"memory {kind}", text) for kind, text in value.items()
                }
            elif name != "since":
                times[name] = span(name, value)
        return cls(**times, since=settings.get("since", "append"))


_PRESETS: Final[Mapping[str, Mapping[str, str]]] = {
    "seed": {"sessions": "30d", "memory": "90d", "audit": "14d"}
}


def span(name: str, text: object) -> timedelta:
    """Return the duration in a setting such as ``30d``.

    name: of the setting.

    Raises InvalidConfiguration for other text.
    """
    match = _TIME.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise InvalidConfiguration(
            f'{name} is a number and d, h, m or s in quotes, such as "30d"'
        )
    return timedelta(**{_UNITS[match[2]]: int(match[1])})
