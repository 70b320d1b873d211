"""Erasures, legal holds, freezes, retention, and the rotation of keys."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from importlib import import_module
from itertools import groupby
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from uuid import uuid4

from refold.domain import erasure, errors, ids, inventory, ports
from refold.domain.canonical import repaired
from refold.domain.clocks import TOLERANCE
from refold.domain.envelope import Draft, Envelope, Recordable, microseconds
from refold.domain.erasure import (
    FREEZE,
    SALT,
    ErasureJob,
    ErasureScope,
    LegalHold,
    NewCertificate,
    Readmission,
    Signed,
    timestamp,
)
from refold.domain.events import JsonObject, RedactionApplied
from refold.domain.inventory import Place
from refold.domain.model import repr_without_texts
from refold.domain.ports import (
    SHARE_PREFIX,
    Problem,
    Rewritten,
    SessionInfo,
    listed,
)
from refold.domain.session import SessionState
from refold.store.appends import Writer
from refold.store.exports import datasets
from refold.store.memory.extracts import (
    expired_extracts,
    extract_names,
    keep_extracts,
)
from refold.store.proofs.access_log import AccessLog
from refold.store.proofs.verification import Verified, redact_replacement, with_forks
from refold.store.recorded import recorded
from refold.store.vault import unexpired

# The reasons in the certificates of erasures that nobody requested.
_REASON_RETURNED: Final = "erased before; a backup of the database brought rows back"
_REASON_LOST: Final = "erased before; the record of the erasure was lost"
# Rows are deleted, and a batch of retention is tried, at most this often.
_TRIES: Final = 3
# Files are searched for the user's id, and for at most this many session ids.
_MOST_SEARCHED_IDS: Final = 20
# Shorter session ids are not hidden in reasons, because they occur in any text.
_SHORTEST_HIDDEN: Final = 6
_HIDDEN: Final = "[REDACTED:USER_ID]"
# Facts of a job that its certificate repeats.
_CERTIFIED: Final = (
    "sessions",
    "requested_at",
    "unreadable_at",
    "reason",
    "operator",
    "counts",
    "keys",
    "leaves",
    "key_backups_until",
)
_EMPTY: Final[Mapping[str, Any]] = MappingProxyType({})
# Called with a table, its number of deleted rows, and its number of rows in all.
Progress = Callable[[str, int, int], None]
# The reason in the certificates of erasures by retention.
REASON_RETENTION: Final = "retention"
_BATCH: Final = 500  # sessions that one erasure of retention erases
_MICROSECOND: Final = timedelta(microseconds=1)


@repr_without_texts
class ErasureResult(NamedTuple):
    """The result of an erasure.

    certificate: the signed statement; None if there was nothing to sign.
    salt:        the salt of the certificate in hex, with which one can prove that the
                 certificate is about this user.  It is returned only here and only
                 once, and stored nowhere.
    already:     whether an earlier erasure was complete.  Then the certificate is that
                 of the earlier erasure, and this call only finished its cleanup.
    due_at:      the end of the grace period in microseconds since 1970; None without a
                 grace period.
    left:        the rows that a search of every table found afterwards, by table.
    cleaned:     a report of how deleted bytes were overwritten.
    files:       the number of places where a search of the files found names.
    database:    the name of the database in messages.
    unfinished:  why deleted bytes could not be overwritten or searched for; empty if
                 they could.  The erasure is certified, and the next call tries again.
    removed:     the removed files, by their place in the inventory.
    copies:      exports that contain the erased data, which Refold cannot delete: each
                 with ``export``, ``made_at``, ``format``, ``location`` and ``machine``.
                 The locations are returned only here, and stored nowhere.  None if the
                 records of exports could not be read.
    """

    certificate: Signed | None = None
    salt: str = ""
    already: bool = False
    due_at: int | None = None
    left: Mapping[str, int] = _EMPTY
    cleaned: Mapping[str, Any] = _EMPTY
    files: Mapping[str, Any] = _EMPTY
    database: str = ""
    unfinished: str = ""
    removed: Mapping[str, list[str]] = _EMPTY
    copies: Sequence[JsonObject] | None = ()

    @property
    def outside(self) -> list[Place]:
        """The places with copies that Refold cannot reach."""
        return inventory.outside()

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON."""
        due_at: str | int | None = self.due_at
        if self.due_at:
            due_at = timestamp(self.due_at)
        copies = None
        if self.copies is not None:
            copies = list(self.copies)
        result: dict[str, Any] = {
            "salt": self.salt or None,
            "already": self.already,
            "due_at": due_at,
            "left": dict(self.left),
            "cleaned": dict(self.cleaned),
            "files": dict(self.files),
            "database": self.database,
            "unfinished": self.unfinished,
            "removed": dict(self.removed),
            "copies": copies,
            "outside": [place.to_json() for place in self.outside],
        }
        if self.certificate is None:
            return result
        return {**self.certificate.to_json(), **result}


@repr_without_texts
class ErasurePlan(NamedTuple):
    """The effect that an erasure would have, and what stands against it.

    sessions: the ids of the sessions that it would erase.
    counts:   the number of rows that it would delete, by table.
    holds:    the names of the legal holds that forbid it.
    exports:  the datasets that contain the data; None if that cannot be read.
    already:  whether an earlier erasure is complete, so that nothing is left to delete.
    copies:   other exports of the data, as in ``ErasureResult``.
    """

    sessions: list[str]
    counts: dict[str, int]
    holds: list[str]
    exports: list[JsonObject] | None
    already: bool = False
    copies: list[JsonObject] | None = None


@dataclass(frozen=True, slots=True)
class ErasureRequest:
    """A request to erase data: which data, why, and with which options.

    scope:       the user, or some sessions of the user.
    operator:    who requests the erasure.
    grace:       the time for which the erasure can be undone; None erases at once.
    key_backups: how long backups of the key store exist.
    vacuum:      rewrite the whole database file, to remove deleted bytes from it.
    absent_ok:   accept a user without rows or certificates.
    salt:        the salt of the certificate; None means a random one.
    """

    scope: ErasureScope
    reason: str
    operator: str
    grace: timedelta | None = None
    key_backups: timedelta | None = None
    vacuum: bool = False
    absent_ok: bool = False
    salt: bytes | None = None

    def __post_init__(self) -> None:
        if self.salt is not None and len(self.salt) != SALT:
            raise errors.InvalidConfiguration(f"a salt has {SALT} bytes")
        for name in ("grace", "key_backups"):
            span = getattr(self, name)
            if span is not None and not timedelta(0) <= span <= erasure.LONGEST:
                why = f"{name} must be from 0 to 999999 days"
                raise errors.InvalidConfiguration(why)


class RetentionResult(NamedTuple):
    """The result of a retention run, or what a run would do under ``dry_run``.

    sessions:  the user id and session id of each expired session.
    kept:      the number of expired sessions that stay, by reason: ``hold``,
               ``freeze``, ``fork`` (a live fork needs them) or ``in_use`` (they were
               used during the run).  ``unreadable`` is the number of users with data
               that cannot be decrypted.
    completed: the number of interrupted erasures that this run completed.
    erasures:  the erasures of this run, with their certificates.
    blobs:     the number of expired whole texts; None if the policy keeps them.
    audit:     the number of expired records of the access log; None if the policy keeps
               them.
    memory:    the number of expired extracts of erased sessions.
    """

    dry_run: bool
    sessions: list[tuple[str, str]]
    kept: dict[str, int]
    completed: int
    erasures: list[ErasureResult]
    blobs: int | None = None
    audit: int | None = None
    memory: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON."""
        sessions = []
        for user_id, session_id in self.sessions:
            sessions.append({"user_id": user_id, "session_id": session_id})
        certificates = []
        for erased in self.erasures:
            if erased.certificate is not None:
                certificate = erased.certificate.to_json()
                certificates.append({"certificate": certificate, "salt": erased.salt})
        return {
            "dry_run": self.dry_run,
            "sessions": sessions,
            "kept": self.kept,
            "completed": self.completed,
            "blobs": self.blobs,
            "audit": self.audit,
            "memory": self.memory,
            "certificates": certificates,
        }


class Erasures:
    """Erasures, legal holds, freezes and retention of a store."""

    def __init__(self, writer: Writer, access_log: AccessLog) -> None:
        self.writer = writer
        self._access_log = access_log

    @recorded("erasure_plan", named=False)
    def plan(
        self, user_id: str, *, session_id: str | None = None, absent_ok: bool = False
    ) -> ErasurePlan:
        """Return what ``erase`` would delete, and the holds that forbid it.

        Changes nothing.  Raises UserNotFound unless ``absent_ok``, SessionNotFound.
        """
        scope = erasure_scope(user_id, session_id)
        return Eraser(self.writer).plan(scope, absent_ok=absent_ok)

    @recorded("erasure_list", "erasures")
    def pending(self) -> list[ErasureJob]:
        """Return incomplete erasures: interrupted ones, and those in a grace period."""
        return self.writer.log.erasures.jobs()

    @recorded("erasure_list", "erasures", named=False)
    def stranded(self, user_id: str | None = None) -> list[erasure.Stranded]:
        """Return data that is marked as erased, but whose erasure has no record.

        ``erase`` completes such an erasure.  ``restore`` undoes it if the keys still
        exist.
        """
        return self.writer.log.erasures.stranded(ports.scope(user_id).user_id)

    def unfinished(self, user_id: str | None) -> Iterator[tuple[SessionInfo, Verified]]:
        """Yield interrupted erasures as problems of the sessions that they erase."""
        user_id = ports.scope(user_id).user_id
        for job in self.writer.log.erasures.jobs(user_id):
            if job.stage != "held" and user_id in (None, job.scope.user_id):
                yield _erasure_problem(
                    job.scope,
                    "its erasure was cut off: `refold erase --due` completes it",
                )
        # Calling ``self.stranded`` would add a record to the access log.
        for scope, restorable in self.writer.log.erasures.stranded(user_id):
            yield _erasure_problem(scope, _lost_record(restorable))

    @recorded("erasure", "erasures", named=False)
    def complete(
        self, *, vacuum: bool = False, progress: Progress | None = None
    ) -> Iterator[ErasureResult]:
        """Complete interrupted erasures, and erasures whose grace period has ended.

        This also erases rows of erased users that a restored backup of the database
        brought back.  It also completes an erasure whose record is lost, if the keys
        are destroyed.  If the keys exist, the end of the grace period is unknown;
        ``stranded`` returns such data.
        """
        eraser = Eraser(self.writer, progress)
        jobs = self.pending()
        if any(job.stage == "held" for job in jobs):
            self.writer.time.observe()
        for job in jobs:
            if job.stage == "restoring":
                eraser.restore(job)
            elif job.stage != "held" or eraser.is_due(job):
                yield eraser.run(job, vacuum=vacuum)
        for scope, restorable in self.writer.log.erasures.stranded():
            if not restorable:
                yield eraser.erase(
                    ErasureRequest(scope, _REASON_LOST, "", vacuum=vacuum)
                )
        for user_id in self.writer.log.erasures.returned():
            request = ErasureRequest(
                scope=ErasureScope(user_id),
                reason=_REASON_RETURNED,
                operator="",
                vacuum=vacuum,
                absent_ok=True,
            )
            yield eraser.erase(request)

    @recorded("restore", named=False)
    def restore(self, user_id: str, reason: str, *, operator: str = "") -> Signed:
        """Undo the erasures of a user that are in a grace period.

        Returns the certificate of the last one.  Raises NotErased if there is none.
        """
        eraser = Eraser(self.writer)
        texts = eraser.redacted_texts(erasure_scope(user_id, None), reason, operator)
        facts = {"restored_for": texts["reason"], "restored_by": texts["operator"]}
        jobs: list[ErasureJob] = []
        for job in self.writer.log.erasures.jobs(user_id):
            if job.stage in ("held", "restoring"):
                jobs.append(replace(job, facts={**job.facts, **facts}))
        signed: list[Signed | None] = [eraser.restore(job) for job in jobs]
        for scope, restorable in self.writer.log.erasures.stranded(user_id):
            if restorable:
                signed.append(eraser.restore(eraser.record_again(scope, facts)))
        certificates = [
            certificate for certificate in signed if certificate is not None
        ]
        if not certificates:
            raise errors.NotErased("that user has no erasure that can be undone")
        return certificates[-1]

    @recorded("readmit", named=False)
    def readmit(self, user_id: str, reason: str, *, operator: str = "") -> Signed:
        """Accept an erased user again, with a new key and in a new epoch.

        Erased data stays erased.  Raises NotErased.
        """
        ids.check_id("user_id", user_id)
        readmission = self.writer.log.erasures.prepare_readmission(user_id)
        certificate = self._signed(
            "readmitted", user_id, reason, operator, readmission=readmission
        )
        self.writer.log.erasures.readmit(user_id, readmission, certificate)
        return certificate.signed

    @recorded("hold", named=False)
    def hold(
        self,
        user_id: str,
        name: str,
        reason: str,
        *,
        operator: str = "",
        absent_ok: bool = False,
    ) -> Signed | None:
        """Place a legal hold with this name on a user, which forbids their erasure.

        An erasure that has begun is not stopped.  Returns a certificate, or None if the
        user has a hold with this name already.

        absent_ok: accept a user without data, who has no session yet.

        Raises Erased, and UserNotFound unless ``absent_ok``.
        """
        ids.check_id("user_id", user_id)
        self.writer.log.erasures.refuse_erased(user_id)
        Eraser(self.writer).refuse_absent(ErasureScope(user_id), absent_ok=absent_ok)
        hold = self._new_hold(user_id, self._stored_name(user_id, name), reason)
        certificate = self._signed(
            "legal hold", user_id, reason, operator, hold=hold.name
        )
        if not self.writer.log.erasures.hold(user_id, hold, certificate):
            return None
        return certificate.signed

    @recorded("hold_release", named=False)
    def release(
        self, user_id: str, name: str, reason: str, *, operator: str = ""
    ) -> Signed:
        """Release a legal hold.  Raises NotErased if there is none with that name."""
        name = self._stored_name(ids.check_id("user_id", user_id), name)
        absent = errors.NotErased(f"there is no legal hold {name!r} on that user")
        # Signing would create a key for a user who does not exist.
        if not self._has_hold(user_id, name):
            raise absent
        certificate = self._signed(
            "legal hold released", user_id, reason, operator, hold=name
        )
        if not self.writer.log.erasures.release(user_id, name, certificate):
            raise absent
        return certificate.signed

    @recorded("hold_list", "holds", named=False)
    def holds(self, user_id: str) -> list[LegalHold]:
        """Return the legal holds on a user."""
        return self.writer.log.erasures.holds(ids.check_id("user_id", user_id))

    @recorded("certificate_list", "certificates", named=False)
    def certificates(self, user_id: str | None = None) -> list[Signed]:
        """Return the certificates of a user or of all users, the oldest first."""
        return self.writer.log.erasures.certificates(ports.scope(user_id).user_id)

    def public_key(self) -> bytes:
        """Return the key that verifies certificates and tree heads.

        It has 32 bytes, for Ed25519.
        """
        return self.writer.log.erasures.public_key()

    @recorded("freeze", named=False)
    def freeze(
        self,
        user_id: str,
        reason: str,
        *,
        operator: str = "",
        absent_ok: bool = False,
    ) -> Signed | None:
        """Keep all data of a user readable and unchanged.

        After this returns, every append raises Frozen, and neither retention nor
        ``erase`` deletes data of the user.  Returns a certificate, or None if the user
        is frozen already.

        absent_ok: accept a user without data, who then cannot begin a session.

        Raises Erased, and UserNotFound unless ``absent_ok``.
        """
        ids.check_id("user_id", user_id)
        Eraser(self.writer).refuse_absent(ErasureScope(user_id), absent_ok=absent_ok)
        freeze = self._new_hold(user_id, FREEZE, reason)
        certificate = self._signed("frozen", user_id, reason, operator)
        if not self.writer.log.retention.freeze(user_id, freeze, certificate):
            return None
        return certificate.signed

    @recorded("unfreeze", named=False)
    def unfreeze(
        self, user_id: str, reason: str, *, operator: str = ""
    ) -> Signed | None:
        """End a freeze; returns a certificate, or None if the user is not frozen."""
        ids.check_id("user_id", user_id)
        # Signing would create a key for a user who does not exist.
        if not self._has_hold(user_id, FREEZE):
            return None
        certificate = self._signed("unfrozen", user_id, reason, operator)
        if not self.writer.log.retention.unfreeze(user_id, certificate):
            return None
        return certificate.signed

    @recorded("hold_list", named=False)
    def is_frozen(self, user_id: str) -> bool:
        """Whether the user is frozen."""
        return any(hold.name == FREEZE for hold in self.holds(user_id))

    @recorded("retention", named=False)
    def retain(
        self,
        policy: erasure.RetentionPolicy,
        *,
        dry_run: bool = False,
        operator: str = "",
        key_backups: timedelta | None = None,
        progress: Callable[[str, str], None] | None = None,
        erased: Callable[[ErasureResult], None] | None = None,
    ) -> RetentionResult:
        """Erase data that nobody has used for the time that the policy states.

        Each erasure is complete and has a certificate; the next call completes one that
        was interrupted.  Sessions stay if they are used during the run, if the user is
        under a hold or frozen, and if a fork in use continues them.

        dry_run:     return what would be erased, and change nothing.
        operator:    who runs the retention, for the certificates; redacted.
        key_backups: how long backups of the key store exist, for the certificates.
        progress:    called with the user and the session of each erased session.
        erased:      called with each erasure as soon as it is complete.  Each salt is
                     returned only once, and would be lost if a later erasure failed.
        """
        self._access_log.count()
        request = ErasureRequest(
            ErasureScope(""), REASON_RETENTION, operator, key_backups=key_backups
        )
        retainer = Retainer(self.writer, policy, request, dry_run, progress, erased)
        result = retainer.run()
        if policy.audit is None or dry_run or self._access_log.trail is None:
            return result
        return result._replace(audit=self._access_log.purge(policy.audit))

    def _stored_name(self, user_id: str, name: str) -> str:
        """Return the name under which a hold is stored: redacted, if necessary."""
        if name == FREEZE:
            raise errors.InvalidEvent(
                f"{name!r} names a freeze: use store.erasures.freeze and unfreeze"
            )
        return self.writer.recorded_id(user_id, ids.check_id("name", name))

    def _new_hold(self, user_id: str, name: str, reason: str) -> LegalHold:
        redacted = Eraser(self.writer).redacted(reason, ErasureScope(user_id))
        return LegalHold(name, redacted, self.writer.clock())

    def _has_hold(self, user_id: str, name: str) -> bool:
        holds = self.writer.log.erasures.holds(user_id)
        return any(hold.name == name for hold in holds)

    def _signed(
        self,
        act: str,
        user_id: str,
        reason: str,
        operator: str,
        *,
        hold: str | None = None,
        readmission: Readmission | None = None,
    ) -> NewCertificate:
        """Sign the certificate of an act before the act happens.

        Reason and operator are encrypted with the user's key, so an erasure makes them
        unreadable.
        """
        eraser = Eraser(self.writer)
        scope = erasure_scope(user_id, None)
        texts = eraser.redacted_texts(scope, reason, operator)
        if hold is not None:
            texts["hold"] = hold
        now = self.writer.clock()
        statement = eraser.statement(act, scope, os.urandom(SALT), now)
        if readmission is not None:
            statement["epoch"] = readmission.epoch
        return self.writer.log.erasures.sign(
            user_id, statement, now=now, texts=texts, readmission=readmission
        )


def _erasure_problem(scope: ErasureScope, detail: str) -> tuple[SessionInfo, Verified]:
    """Return an incomplete erasure as a problem of the first session that it erases."""
    session_id = ids.USER_SESSION
    if scope.sessions:
        session_id = scope.sessions[0]
    problem = Problem(scope.user_id, session_id, ids.MAIN, None, "erasure", detail)
    info = SessionInfo(scope.user_id, session_id, 0, "erased", 0)
    return info, Verified(0, 0, 0, [problem])


def erasure_scope(user_id: str, session_id: str | None) -> ErasureScope:
    """Return the user, or one session of the user, as the scope of an erasure.

    Raises InvalidEvent for an invalid id.
    """
    ids.check_id("user_id", user_id)
    if session_id is None:
        return ErasureScope(user_id)
    if session_id == ids.USER_SESSION:
        raise errors.InvalidEvent(
            f"{ids.USER_SESSION!r} belongs to the whole user: erase the user"
        )
    return ErasureScope(user_id, (ids.check_session_id(session_id),))


@dataclass(frozen=True, slots=True)
class Eraser:
    """Runs the steps of erasures in the store of a writer.

    progress:  called while rows are deleted.
    retaining: whether retention runs the erasures.  Its sessions have no forks in use,
               and it overwrites deleted bytes once, after the last erasure.
    """

    writer: Writer
    progress: Progress | None = None
    retaining: bool = False

    @property
    def erasures(self) -> erasure.ErasureSteps:
        return self.writer.log.erasures

    def plan(self, scope: ErasureScope, *, absent_ok: bool = False) -> ErasurePlan:
        """Return what would be deleted; changes nothing."""
        already = False
        if not self._has_rows(scope):
            try:
                self._refuse_erased(scope)
                self.refuse_absent(scope, absent_ok=absent_ok)
            except errors.Erased:
                already = True
        scope = self._with_forks(scope)
        names: list[str] = []
        for info in self.writer.log.sessions(scope.user_id):
            is_named = scope.sessions is None or info.session_id in scope.sessions
            if is_named and not info.is_internal:
                names.append(info.session_id)
        holds = [hold.name for hold in self.erasures.holds(scope.user_id)]
        exports = self._exports(scope)
        counts = self.erasures.left(scope)
        copies = self._copies(scope)
        return ErasurePlan(
            sessions=names,
            counts=counts,
            holds=holds,
            exports=exports,
            already=already,
            copies=copies,
        )

    def _exports(self, scope: ErasureScope) -> list[JsonObject] | None:
        """Return the datasets that contain this data; None if that cannot be read."""
        with suppress(errors.RefoldError):
            return datasets(self.writer.log, scope)
        return None

    def _copies(self, scope: ErasureScope) -> list[JsonObject] | None:
        """Return the recorded exports of this data; None if that cannot be read."""
        try:
            exports = self.erasures.exports(scope.user_id)
        except errors.RefoldError:
            return None
        return [export.to_json() for export in exports if export.has(scope)]

    def erase(self, request: ErasureRequest) -> ErasureResult:
        """Erase the data, or complete an erasure that was interrupted."""
        job = self.begin(request)
        if isinstance(job, ErasureResult):
            return job
        return self.run(job, vacuum=request.vacuum, at_once=request.grace is None)

    def begin(self, request: ErasureRequest) -> ErasureJob | ErasureResult:
        """Return the job of the erasure, which is new or was interrupted.

        Returns the result instead if an earlier erasure is complete.
        """
        user_id = request.scope.user_id
        if request.scope.sessions:
            for session_id in request.scope.sessions:
                self.writer.vault.forget(user_id, session_id)
        else:
            self.writer.vault.forget(user_id, None)
        job = self._job_in_progress(request.scope)
        if job is None:
            scope = self._scope_to_erase(request)
            if scope is None:
                return self._erased_before(request)
            scope = self._with_forks(scope)
            job = self.erasures.begin(self.new_job(replace(request, scope=scope)))
            # A dataset that is exported now fails: ``check_dataset`` sees the job.
            job = self._advance(job, job.stage, exports=self._exports(job.scope))
        elif job.stage == "held" and request.grace is None:
            job = job.at("held", due_at=None)
        if request.salt is not None and "salt" not in job.facts:
            job = self._advance(job, job.stage, salt=request.salt.hex())
        return job

    def _scope_to_erase(self, request: ErasureRequest) -> ErasureScope | None:
        """Return the part of the requested data that exists; None if all is erased.

        Raises SessionNotFound, and UserNotFound unless the request accepts that.
        """
        try:
            self._refuse_erased(request.scope)
            self.refuse_absent(request.scope, absent_ok=request.absent_ok)
        except errors.Erased:
            # A restored backup of the database may have brought rows back.
            if self._has_rows(request.scope):
                return request.scope
            extracts = self._extracts(request.scope)
            if not extracts:
                return None
            return request.scope._replace(sessions=extracts)
        return request.scope

    def _has_rows(self, scope: ErasureScope) -> bool:
        """Whether a search of all tables finds rows of this data."""
        return any(self.erasures.left(scope).values())

    def _job_in_progress(self, scope: ErasureScope) -> ErasureJob | None:
        """Return the job that erases this data, or None.

        An interrupted restoration of the data is completed first; its job is not
        returned.
        """
        for job in self.erasures.jobs(scope.user_id):
            if not _covers(job.scope, scope):
                continue
            if job.stage != "restoring":
                return job
            self.restore(job)
        return None

    def _refuse_erased(self, scope: ErasureScope) -> None:
        """Raise Erased for erased data, and SessionNotFound for a missing session."""
        self.erasures.refuse_erased(scope.user_id)
        for name in scope.sessions or ():
            stream = ids.StreamId(scope.user_id, name, ids.MAIN)
            if self.writer.log.head(stream).seq:
                continue
            # A session that lost its head is not listed, but can be erased.
            if not self._has_rows(ErasureScope(scope.user_id, (name,))):
                raise errors.SessionNotFound(scope.user_id, name)

    def refuse_absent(
        self, scope: ErasureScope, *, absent_ok: bool, can_be_accepted: bool = True
    ) -> None:
        """Raise UserNotFound for a user whom this database has never contained.

        The id may be mistyped, or be that of a user in another database.

        can_be_accepted: whether the caller has the option ``absent_ok``.
        """
        if scope.sessions is not None or absent_ok:
            return
        if self.writer.log.sessions(scope.user_id, limit=1):
            return
        # A stream that lost its head is not listed as a session.
        if self._has_rows(scope):
            return
        # Certificates show that a user without rows was here before.
        if not self.erasures.certificates(scope.user_id):
            raise errors.UserNotFound(
                scope.user_id,
                database=self.erasures.database,
                can_be_accepted=can_be_accepted,
            )

    def _erased_before(self, request: ErasureRequest) -> ErasureResult:
        """Finish the cleanup of an erasure that is complete; returns its result."""
        last_certificate = None
        certificates = self.erasures.certificates(request.scope.user_id)
        if request.scope.sessions is None:
            for certificate in certificates:
                if certificate.statement["act"] == "erased":
                    last_certificate = certificate
        removed = self.erasures.forget_files(request.scope)
        result = ErasureResult(last_certificate, already=True, removed=removed)
        return self._clean_and_search(request.scope, result, [], request.vacuum)

    def new_job(self, request: ErasureRequest) -> ErasureJob:
        """Return the job of an erasure, which is not stored yet."""
        now = self.writer.clock()
        facts: dict[str, Any] = {
            **self.redacted_texts(request.scope, request.reason, request.operator),
            "requested_at": timestamp(now),
            "key_backups_until": None,
            "tree_before": self.erasures.tree_head(),
        }
        if request.key_backups is not None:
            until = now + request.key_backups // _MICROSECOND
            facts["key_backups_until"] = timestamp(until)
        if request.salt is not None:
            facts["salt"] = request.salt.hex()
        due_at = None
        if request.grace is not None:
            grace = request.grace // _MICROSECOND
            facts["grace"] = grace
            due_at = self.writer.time.observe().now + grace
        return self.erasures.new_job(request.scope, due_at=due_at, facts=facts)

    def is_due(self, job: ErasureJob) -> bool:
        """Whether the grace period of a job has ended, by the store's time.

        If the end is further away than the whole grace period, a clock was wrong.  Then
        the grace period begins again now.
        """
        if job.due_at is None:
            return True
        grace = job.facts.get("grace")
        time_left = job.due_at - self.writer.time.now()
        if grace is None or job.stage != "held":
            return time_left <= 0
        if time_left > grace + TOLERANCE:
            observed = self.writer.time.observe()
            if not observed.disputed:
                corrected = replace(job, due_at=observed.now + grace)
                self.erasures.advance(corrected, job.stage)
        return time_left <= 0

    def _with_forks(self, scope: ErasureScope) -> ErasureScope:
        """Return the scope with the forks of its sessions, and with memory's extracts.

        Forks show the events of the sessions.
        """
        if scope.sessions is None or self.retaining:
            return scope
        infos: list[SessionInfo] = []
        for info in self.writer.log.sessions(scope.user_id):
            if info.status != "erased":
                infos.append(info)
        names = with_forks(self.writer, infos, scope.user_id, scope.sessions)
        extracts = self._extracts(scope._replace(sessions=tuple(names)))
        return scope._replace(sessions=tuple(sorted({*names, *extracts})))

    def _extracts(self, scope: ErasureScope) -> tuple[str, ...]:
        """Return the sessions that hold memory's extracts of these sessions."""
        log = self.writer.log
        existing = {info.session_id for info in log.sessions(scope.user_id)}
        if not any(name.startswith(ids.KEPT) for name in existing):
            return ()
        names: set[str] = set()
        for session_id in scope.sessions or ():
            names.update(extract_names(log, scope.user_id, session_id).values())
        return tuple(sorted(names & existing))

    def redacted_texts(
        self, scope: ErasureScope, reason: str, operator: str
    ) -> dict[str, Any]:
        """Return reason and operator in the form that a certificate may contain."""
        return {
            "reason": self.redacted(reason, scope),
            "operator": self.redacted(operator, scope),
        }

    def redacted(self, text: str, scope: ErasureScope) -> str:
        """Return the text without ids of the user and of their sessions.

        Short session ids stay, because they occur in any text.
        """
        storable_text, _ = repaired(text)
        value, _ = self.writer.redactor.value({"text": storable_text})
        clean: Any = value
        redacted = str(clean["text"])
        names: list[str] = [scope.user_id, *(scope.sessions or ())]
        if redacted:
            for info in self.writer.log.sessions(scope.user_id):
                if len(info.session_id) >= _SHORTEST_HIDDEN:
                    names.append(info.session_id)
        for name in names:
            if name.lower() in redacted.lower():
                whole_word = rf"(?<!\w){re.escape(name)}(?!\w)"
                redacted = re.sub(whole_word, _HIDDEN, redacted, flags=re.I)
        return redacted

    def run(
        self, job: ErasureJob, *, vacuum: bool = False, at_once: bool = False
    ) -> ErasureResult:
        """Continue a job from its stage.

        During the grace period, the data is only marked, and its keys are set aside.

        at_once: erase the data even if the grace period has not ended.
        """
        now = self.writer.clock()
        is_in_grace = not at_once and not self.is_due(job)
        if not job.past("shredded"):
            job = self._mark(job)
            if is_in_grace:
                job = self._store_copies(job)
                if job.stage == "begun":
                    keys = self.erasures.hold_keys(job, now=now)
                    self._advance(job, "held", keys=keys)
                return ErasureResult(
                    due_at=job.due_at,
                    database=self.erasures.database,
                    copies=job.facts.get("copies"),
                )
            job = self.shred(job, marked=True)
        if not job.past("counted"):
            job = self._count(job)
        names = list(job.facts.get("names", ()))
        self._delete(job)
        self._drop_views(job)
        removed = self.erasures.forget_files(job.scope)
        result = self._certify_erasure(self._advance(job, "deleted"), removed)
        try:
            return self._clean_and_search(job.scope, result, names, vacuum)
        except (errors.RefoldError, OSError) as error:
            # An error would lose the only copy of the salt, so the result is returned.
            why = f"deleted bytes could not be overwritten and searched for: {error}"
            return result._replace(unfinished=why)

    def _store_copies(self, job: ErasureJob) -> ErasureJob:
        """Store the locations of exports in the job.

        The records of exports cannot be read after the key is destroyed.  The heads are
        marked already, so no other export can be recorded.
        """
        if job.stage != "begun" or "copies" in job.facts:
            return job
        return self._advance(job, "begun", copies=self._copies(job.scope))

    def shred(self, job: ErasureJob, *, marked: bool = False) -> ErasureJob:
        """Destroy the keys of the data, so that nobody can read it any more.

        marked: whether the heads are marked already.
        """
        if job.past("shredded"):
            return job
        if not marked:
            job = self._mark(job)
        job = self._store_copies(job)
        keys = self.erasures.destroy_keys(job, now=self.writer.clock())
        unreadable_at = timestamp(self.writer.clock())
        return self._advance(job, "shredded", keys=keys, unreadable_at=unreadable_at)

    def _mark(self, job: ErasureJob) -> ErasureJob:
        """Mark the heads of the sessions and of their forks.

        A marked session cannot be forked.  If a session was forked before it was
        marked, its fork is added to the job, and the heads are marked again.
        """
        self.erasures.mark(job)
        scope = self._with_forks(job.scope)
        # Another process may have added forks to the same job in the meantime.
        for stored in self.erasures.jobs(job.scope.user_id):
            if stored.job_id == job.job_id and stored.stage == job.stage:
                job = stored
        marked = set(job.scope.sessions or ())
        names = {*(scope.sessions or ()), *marked}
        if names == marked:
            self._drop_views(job)
            return job
        wider = scope._replace(sessions=tuple(sorted(names)))
        return self._mark(self.erasures.widen(job, wider) or job)

    def _drop_views(self, job: ErasureJob) -> None:
        """Drop the views that memory built from the sessions.

        This happens once the sessions are marked, and again at the end.  A process that
        concurrently builds memory from them drops it itself, unless it is killed.
        """
        if job.scope.sessions is not None:
            self.writer.log.drop_views(job.scope.user_id, ids.USER_SESSION)

    def _advance(
        self, job: ErasureJob, stage: erasure.Stage, **facts: Any
    ) -> ErasureJob:
        """Store the stage of the job, unless another process has advanced it."""
        advanced = job.at(stage, **facts)
        stored = self.erasures.advance(advanced, job.stage)
        if stored is None:
            return advanced
        return stored

    def _count(self, job: ErasureJob) -> ErasureJob:
        """Count rows and sessions before their deletion, and store the counts."""
        remains = self.erasures.remains(job.scope)
        names: list[str] = []
        if job.scope.sessions is None:
            infos = self.writer.log.sessions(job.scope.user_id)
            names = [info.session_id for info in infos]
        if not names:
            names = list(job.scope.sessions or ())
        return self._advance(
            job,
            "counted",
            counts=remains.counts,
            leaves={"count": remains.leaves, "root": remains.root.hex()},
            shares=self._shares(job.scope),
            sessions=len(names),
            names=names[:_MOST_SEARCHED_IDS],
        )

    def _shares(self, scope: ErasureScope) -> int:
        """Return the number of served shares of these sessions."""
        log = self.writer.log
        if scope.sessions is None:
            return len(log.share_places(scope.user_id))
        shares = 0
        for session_id in scope.sessions:
            for name in log.view_names(scope.user_id, session_id):
                if name.startswith(SHARE_PREFIX):
                    shares += 1
        return shares

    def _delete(self, job: ErasureJob) -> None:
        """Delete rows until a search finds none.

        Writes that began before the heads were marked may still add rows.
        """
        totals = job.facts.get("counts", {})
        for _ in range(_TRIES):
            deleted = Counter[str]()
            for table, number in self.erasures.delete(job):
                deleted[table] += number
                if self.progress is not None:
                    self.progress(table, deleted[table], int(totals.get(table, 0)))
            if not self._has_rows(job.scope):
                return
        raise errors.StoreUnavailable(
            "rows of erased data keep appearing",
            remedy="stop the programs that write them, and run `refold erase --due`",
        )

    def _certify_erasure(
        self, job: ErasureJob, removed: dict[str, list[str]]
    ) -> ErasureResult:
        """Sign and store the certificate of an erasure, which completes the job."""
        requested_salt = job.facts.get("salt")
        if requested_salt is None:
            salt = os.urandom(SALT)
        else:
            salt = bytes.fromhex(requested_salt)
        facts = {name: job.facts[name] for name in _CERTIFIED}
        facts["exports"] = job.facts.get("exports")
        facts["shares"] = job.facts.get("shares")
        facts["tree"] = {
            "before": job.facts["tree_before"],
            "after": self.erasures.tree_head(),
            "leaves": self.erasures.tree_leaves(job),
        }
        facts["rows_left"] = self.erasures.left(job.scope)
        facts["files_removed"] = {place: len(files) for place, files in removed.items()}
        copies = job.facts.get("copies")
        if copies is None:
            facts["copies"] = None
        else:
            facts["copies"] = [erasure.certified_copy(copy, salt) for copy in copies]
        facts["outside"] = [place.name for place in inventory.outside()]
        signed = self.certify("erased", salt, job, **facts)
        if signed is None:
            return ErasureResult(already=True, removed=removed, copies=copies)
        return ErasureResult(signed, salt.hex(), removed=removed, copies=copies)

    def certify(
        self,
        act: str,
        salt: bytes,
        job: ErasureJob,
        *,
        texts: dict[str, Any] | None = None,
        **facts: Any,
    ) -> Signed | None:
        """Sign the end of a job; None if another process ended it.

        texts: texts in the certificate, which are encrypted with the user's key.
        """
        now = self.writer.clock()
        statement = self.statement(act, job.scope, salt, now)
        statement["certificate_id"] = job.job_id
        statement |= facts
        return self.erasures.certify(job, statement, now=now, texts=texts)

    def statement(
        self, act: str, scope: ErasureScope, salt: bytes, now: int
    ) -> dict[str, Any]:
        """Return the facts in the certificate of every act."""
        return {
            "format": erasure.FORMAT,
            "certificate_id": str(uuid4()),
            "act": act,
            "scope": "user" if scope.sessions is None else "session",
            "subject": erasure.subject(salt, scope.user_id, scope.sessions),
            "store": self.erasures.facts(),
            # A plain import would be one from the store to the layers above it.
            "refold": import_module("refold").__version__,
            "completed_at": timestamp(now),
        }

    def _clean_and_search(
        self, scope: ErasureScope, result: ErasureResult, names: list[str], vacuum: bool
    ) -> ErasureResult:
        """Overwrite deleted bytes, and search every table and file for the data.

        names: ids of erased sessions.
        """
        if self.retaining:
            return result._replace(left=self.erasures.left(scope))
        names = [scope.user_id, *sorted({*names, *(scope.sessions or ())})]
        cleaned = self.erasures.clean(vacuum=vacuum)
        files = self.erasures.found_in_files(names)
        if any(files["files"].values()) and not cleaned["vacuum"]:
            # Names are in bytes that older versions freed without overwriting them.
            # Only a rewrite of the whole file removes them.
            cleaned = self.erasures.clean(vacuum=True)
            files = self.erasures.found_in_files(names)
        left = self.erasures.left(scope)
        result = result._replace(left=left, database=self.erasures.database)
        if cleaned.get("statistics_left"):
            places = ", ".join(cleaned["statistics_left"])
            why = f"files of the server may still hold names: {places}"
            result = result._replace(unfinished=why)
        return result._replace(cleaned=cleaned, files=files)

    def record_again(self, scope: ErasureScope, facts: dict[str, Any]) -> ErasureJob:
        """Store the lost record of an erasure again, so that it can be undone."""
        facts = {"requested_at": timestamp(self.writer.clock()), **facts}
        job = self.erasures.new_job(scope, due_at=None, facts=facts).at("restoring")
        self.erasures.keep(job)
        return job

    def restore(self, job: ErasureJob) -> Signed | None:
        """Undo an erasure in its grace period; returns the certificate of that.

        Returns None if another process has advanced or completed the job.
        """
        if job.stage != "restoring":
            job = self._advance(job, "restoring")
        if job.stage != "restoring":
            return None
        self.erasures.restore(job)
        texts = {
            "reason": job.facts.get("restored_for", ""),
            "operator": job.facts.get("restored_by", ""),
        }
        return self.certify(
            "restored",
            os.urandom(SALT),
            job,
            texts=texts,
            requested_at=job.facts["requested_at"],
        )


def _lost_record(restorable: bool) -> str:
    """Describe an erasure without a record."""
    if restorable:
        return (
            "it is marked as erased, and the record of the erasure is gone: "
            "`refold erase` completes it, `refold restore` undoes it"
        )
    return (
        "its keys are destroyed, and the record of the erasure is gone: "
        "`refold erase --due` completes it"
    )


def _covers(existing: ErasureScope, requested: ErasureScope) -> bool:
    """Whether an existing job erases all of the requested data."""
    if existing.sessions is None or requested.sessions is None:
        return existing.sessions is requested.sessions
    return set(requested.sessions) <= set(existing.sessions)


# Sessions that raise these are erased without extracts for memory.
_NO_EXTRACT: Final = (
    errors.CorruptEvent,
    errors.KeyUnavailable,
    errors.Erased,
    errors.EventTooLarge,
    errors.RedactionFailed,
    errors.InvalidEvent,
)


@dataclass(slots=True)
class Retainer:
    """Applies a retention policy to the sessions of a store.

    request:   the reason, operator and options of its erasures.  Each erasure replaces
               its scope.
    dry_run:   change nothing.
    progress:  called with the user and the session of each erased session.
    erased:    called with each erasure when it is complete.
    _kept:     the number of expired sessions that stay, by reason.
    _sessions: user and session id of each expired session.
    _extracts: the number of expired extracts.
    """

    writer: Writer
    policy: erasure.RetentionPolicy
    request: ErasureRequest
    dry_run: bool
    progress: Callable[[str, str], None] | None
    erased: Callable[[ErasureResult], None] | None = None
    _kept: Counter[str] = field(default_factory=Counter)
    _sessions: list[tuple[str, str]] = field(default_factory=list)
    _erasures: list[ErasureResult] = field(default_factory=list)
    _extracts: int = 0

    @property
    def _now(self) -> int:
        """The store's time, from which ages are counted."""
        return self.writer.time.now()

    def run(self) -> RetentionResult:
        """Complete interrupted erasures, then erase expired data."""
        eraser = Eraser(self.writer, retaining=True)
        observed = self.writer.time.observe()
        completed: list[ErasureResult] = []
        if not self.dry_run:
            if not observed.disputed:
                self._correct_times(observed.now)
            completed = self._complete(eraser)
        if self.policy.sessions is not None:
            sessions = listed(self.writer.log.sessions)
            for user_id, infos in groupby(sessions, lambda info: info.user_id):
                self._expire_user(eraser, user_id, list(infos))
        if not self.dry_run:
            self._forget_values()
        blobs = self._expire_blobs()
        erasures = self._erasures
        if not self.dry_run and (completed or erasures or blobs):
            cleaned = eraser.erasures.clean(vacuum=False)
            erasures = [result._replace(cleaned=cleaned) for result in erasures]
        return RetentionResult(
            dry_run=self.dry_run,
            sessions=self._sessions,
            kept={
                reason: number for reason, number in self._kept.items() if number > 0
            },
            completed=len(completed),
            erasures=erasures,
            blobs=blobs,
            memory=self._extracts,
        )

    def _expire_user(
        self, eraser: Eraser, user_id: str, infos: list[SessionInfo]
    ) -> None:
        """Erase the expired sessions and extracts of a user."""
        try:
            self._expire_sessions(eraser, user_id, infos)
        except (errors.CorruptEvent, errors.KeyUnavailable):
            # The origin of a fork cannot be read, so no session of the user is erased.
            self._kept["unreadable"] += 1
        with suppress(errors.CorruptEvent, errors.KeyUnavailable, errors.Erased):
            self._expire_extracts(eraser, user_id)

    def _correct_times(self, now: int) -> None:
        """Replace times that a fast clock wrote by the current time.

        Only times that are further in the future than data is kept are replaced.  They
        would keep data for long; smaller differences do no harm.
        """
        policy = self.policy
        retention = self.writer.log.retention
        if policy.sessions is not None:
            ahead = now + policy.sessions // _MICROSECOND
            retention.correct_uses(later_than=ahead, now=now)
        if policy.blobs is not None:
            ahead = now + policy.blobs // _MICROSECOND
            retention.correct_blobs(later_than=ahead, now=now)

    def _complete(self, eraser: Eraser) -> list[ErasureResult]:
        """Complete the erasures of an earlier retention that was interrupted."""
        completed = []
        for job in eraser.erasures.jobs():
            if job.facts.get("reason") == REASON_RETENTION and job.due_at is None:
                result = eraser.run(job)
                completed.append(result)
                if self.erased is not None:
                    self.erased(result)
        return completed

    def _forget_values(self) -> None:
        """Remove values from sessions that the redaction policy no longer keeps."""
        log = self.writer.log
        plan = self.writer.redactor.plan
        if not plan.kept_sec:
            return
        for info in listed(log.sessions):
            if not info.is_live or log.erasures.holds(info.user_id):
                continue
            with suppress(errors.CorruptEvent, errors.KeyUnavailable, errors.Erased):
                stream = ids.StreamId(info.user_id, info.session_id, ids.MAIN)
                head = log.head(stream)
                values = unexpired(head.state.kept, plan, self._now)
                if values != head.state.kept:
                    state = head.state._replace(kept=values)
                    log.repairs.put_head(state.stream, head._replace(state=state))

    def _expire_blobs(self) -> int | None:
        """Expire old whole texts; returns their number, None if the policy keeps them.

        The whole texts of a forked session stay, because its forks show them.
        """
        if self.policy.blobs is None:
            return None
        retention = self.writer.log.retention
        before = self._now - self.policy.blobs // _MICROSECOND
        expired = 0
        user_id = ""
        is_kept = False
        forked: set[str] = set()
        for blobs in retention.old_blobs(before):
            try:
                if blobs.user_id != user_id:
                    user_id = blobs.user_id
                    # The next lines fail if the user cannot be read.  Then all of the
                    # user's blobs are kept.
                    is_kept = True
                    forked = self._forked_sessions(user_id)
                    is_kept = bool(self.writer.log.erasures.holds(user_id))
                if is_kept or blobs.session_id in forked:
                    continue
                if self.dry_run:
                    expired += len(blobs.addresses)
                else:
                    expired += retention.expire_blobs(blobs)
            except (errors.CorruptEvent, errors.KeyUnavailable):
                self._kept["unreadable"] += 1
        return expired

    def _forked_sessions(self, user_id: str) -> set[str]:
        """Return the sessions of a user that were forked."""
        origins: dict[str, str | None] = {}
        forked: set[str] = set()
        for info in self.writer.log.sessions(user_id):
            if info.is_erased_or_internal:
                continue
            origin = self._origin(user_id, info.session_id, origins)
            if origin is not None:
                forked.add(origin)
        return forked

    def _expire_sessions(
        self, eraser: Eraser, user_id: str, infos: list[SessionInfo]
    ) -> None:
        """Erase the expired sessions of a user, in batches."""
        origins: dict[str, str | None] = {}
        failed = 0  # consecutive batches that were not erased
        while True:
            expired, forked = self._expired(user_id, infos, origins)
            if not expired or self._is_held(user_id, len(expired)):
                break
            batch = expired
            if not self.dry_run:
                batch = expired[:_BATCH]
            result = self._erase(eraser, ErasureScope(user_id, tuple(batch)), infos)
            if result is None:
                failed += 1
                if failed == _TRIES:
                    self._kept["in_use"] += len(expired)
                    break
            else:
                failed = 0
                self._sessions += [(user_id, name) for name in batch]
            if self.dry_run:
                break
            if result is not None:
                self._erasures.append(result)
            infos = self.writer.log.sessions(user_id)
        self._kept["fork"] += len(forked)

    def _expire_extracts(self, eraser: Eraser, user_id: str) -> None:
        """Erase expired extracts that memory kept of erased sessions."""
        now = self._now
        names = expired_extracts(self.writer.log, user_id, self.policy.lasting, now)
        if not names or self._is_held(user_id, len(names)):
            return
        infos = self.writer.log.sessions(user_id)
        scope = ErasureScope(user_id, tuple(sorted(names)))
        result = self._erase(eraser, scope, infos, since=now)
        if result is None:
            return
        self._extracts += len(names)
        if not self.dry_run:
            self._erasures.append(result)

    def _expired(
        self, user_id: str, infos: list[SessionInfo], origins: dict[str, str | None]
    ) -> tuple[list[str], list[str]]:
        """Return the expired sessions to erase, and those kept for a fork in use.

        origins: a cache of the sessions that others were forked from.
        """
        names = [info.session_id for info in infos if not info.is_erased_or_internal]
        last_uses = self._last_uses(user_id, infos)
        since = self._since
        old: set[str] = set()
        in_use: list[str] = []  # and then their origins, which are in use with them
        for name in names:
            if last_uses[name] <= since:
                old.add(name)
            else:
                in_use.append(name)
        if not old:
            return [], []
        needed: set[str] = set()
        while in_use:
            origin = self._origin(user_id, in_use.pop(), origins)
            if origin is not None and origin not in needed:
                needed.add(origin)
                in_use.append(origin)
        return sorted(old - needed), sorted(old & needed)

    def _last_uses(self, user_id: str, infos: list[SessionInfo]) -> dict[str, int]:
        """Return the time of the last use of each session, in microseconds.

        A read is a use only if the policy says so.
        """
        last_uses = {info.session_id: microseconds(info.updated_at) for info in infos}
        if self.policy.since != "append":
            for access in self.writer.log.retention.accesses(user_id):
                last_append = last_uses.get(access.session_id, 0)
                last_uses[access.session_id] = max(last_append, access.last_at)
        return last_uses

    def _origin(
        self, user_id: str, name: str, origins: dict[str, str | None]
    ) -> str | None:
        """Return the session that a session was forked from, or None.

        origins: a cache of the results, which never change.
        """
        if name in origins:
            return origins[name]
        try:
            state = self.writer.log.head(ids.StreamId(user_id, name)).state
        except errors.Erased:
            return None
        origin = None
        if state.forked_from:
            origin = state.forked_from[0]
        origins[name] = origin
        return origin

    @property
    def _since(self) -> int:
        """Sessions used after this time are in use; in microseconds since 1970."""
        span = self.policy.sessions or timedelta(0)
        return self._now - span // _MICROSECOND

    def _is_held(self, user_id: str, number: int) -> bool:
        """Whether a hold or a freeze forbids erasing sessions of the user.

        number: the number of sessions, which are counted as kept if so.
        """
        names = {hold.name for hold in self.writer.log.erasures.holds(user_id)}
        if FREEZE in names:
            self._kept["freeze"] += number
        elif names:
            self._kept["hold"] += number
        return bool(names)

    def _erase(
        self,
        eraser: Eraser,
        scope: ErasureScope,
        infos: list[SessionInfo],
        *,
        since: int | None = None,
    ) -> ErasureResult | None:
        """Erase sessions; returns None if one of them was used, or a session began.

        infos: all sessions of the user at the time at which the sessions were chosen.
        since: sessions used after this time are in use.  None means the time of the
               policy, and lets memory keep extracts of the sessions.
        """
        if self.dry_run:
            return ErasureResult()
        if since is None and self.policy.lasting:
            self._keep_extracts(scope, infos)
            infos = self.writer.log.sessions(scope.user_id)
        job = eraser.new_job(replace(self.request, scope=scope))
        used_after = since
        if used_after is None:
            used_after = self._since
        unused = erasure.Unused(
            since=used_after,
            reads=self.policy.since == "access",
            all_sessions=frozenset(info.session_id for info in infos),
        )
        begun = None
        with suppress(errors.OnHold, errors.Erased):
            begun = self.writer.log.retention.begin_unused(job, unused)
        if begun is None:
            return None
        for name in scope.sessions or ():
            if self.progress is not None:
                self.progress(scope.user_id, name)
        result = eraser.run(begun)
        if self.erased is not None:
            self.erased(result)
        return result

    def _keep_extracts(self, scope: ErasureScope, infos: list[SessionInfo]) -> None:
        """Record the extracts that memory keeps of sessions before their erasure."""
        last_uses = self._last_uses(scope.user_id, infos)
        for info in infos:
            if info.session_id in (scope.sessions or ()):
                last_use = last_uses[info.session_id]
                with suppress(*_NO_EXTRACT):
                    keep_extracts(self.writer, info, self.policy.lasting, last_use)


class Keys:
    """Counts and replaces the keys of a store."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer

    @recorded("key_rotation", "keys")
    def rotate_master(self) -> int:
        """Wrap all keys with the newest master key; returns the number of changed keys.

        There must be two master keys, the new one first.  Other processes may read and
        write concurrently.  Call this again if it was interrupted.
        """
        return self.writer.log.erasures.rotate_master()

    @recorded("key_rotation", "keys")
    def rotate_user(self, user_id: str) -> int:
        """Replace the key of a user; returns the number of session keys under it.

        Session keys do not change.  Idempotency keys and blobs are still found.

        Raises UserNotFound, KeyUnavailable, Erased.
        """
        ids.check_id("user_id", user_id)
        Eraser(self.writer).refuse_absent(
            ErasureScope(user_id), absent_ok=False, can_be_accepted=False
        )
        return self.writer.log.erasures.rotate_user(user_id)

    @recorded("key_rotation")
    def rotate_session(self, user_id: str, *, session_id: str) -> Rewritten:
        """Encrypt a session again with a new key, and destroy the old key.

        The content does not change.  An event at the end binds the new rows to the hash
        chain.

        Raises SessionNotFound, KeyUnavailable, Erased.
        """
        ids.check_id("user_id", user_id)
        stream = ids.StreamId(user_id, ids.check_session_id(session_id), ids.MAIN)
        rewriting = _NewKeyOnly(self.writer, user_id)
        return self.writer.log.rewrite(stream, rewriting, now=self.writer.clock())

    @recorded("key_status", "figures")
    def status(self) -> dict[str, Any]:
        """Return the number of keys by kind, and of those that should be replaced.

        ``stale`` keys are wrapped with an older master key; ``rotate_master`` wraps
        them again.  ``retired`` keys were replaced by a rewriting that was interrupted;
        ``reredact`` destroys them.
        """
        return self.writer.log.erasures.key_status()


@dataclass(frozen=True, slots=True)
class _NewKeyOnly:
    """A Rewriting that replaces only the key."""

    writer: Writer
    user_id: str

    def replacement(self, envelope: Envelope) -> Recordable | None:  # noqa: ARG002  # the port's
        return None

    def state(self, state: SessionState) -> SessionState:
        return state

    def record(self, event: RedactionApplied) -> Recordable:
        rules = self.writer.redactor.rule_set
        event = event.model_copy(update={"rules": rules})
        return redact_replacement(self.writer, Draft(event), self.user_id)
