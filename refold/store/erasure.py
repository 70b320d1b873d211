"""Erasures, holds, freezes and retention: what a store forgets, and with which keys."""

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

from refold.domain import erasure, errors, ids, inventory
from refold.domain.canonical import repaired
from refold.domain.clocks import TOLERANCE
from refold.domain.envelope import Draft, Envelope, Recordable, microseconds
from refold.domain.erasure import (
    FREEZE,
    SALT,
    Job,
    LegalHold,
    NewCertificate,
    Readmission,
    Signed,
    Whose,
    timestamp,
)
from refold.domain.events import JsonObject, RedactionApplied
from refold.domain.inventory import Place
from refold.domain.model import quiet
from refold.domain.ports import Problem, Rewritten, SessionInfo, listed, scope
from refold.domain.session import SessionState
from refold.store.appends import Writer
from refold.store.exports import datasets
from refold.store.memory.extracts import (
    expired_extracts,
    extract_names,
    keep_extracts,
)
from refold.store.proofs.access_log import AccessLog
from refold.store.proofs.verification import Verified, with_forks, with_room
from refold.store.recorded import recorded
from refold.store.vault import unexpired

_RETURNED: Final = "erased before; a backup of the database brought rows back"
_LOST: Final = "erased before; the record of the erasure was lost"
_TRIES: Final = 3
_NAMES: Final = 20  # of sessions that are looked for in files, beside the user
_TELLING: Final = 6
_HIDDEN: Final = "[REDACTED:USER_ID]"
# What the certificate of an erasure says as its job has it.
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
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
Progress = Callable[[str, int, int], None]
REASON: Final = "retention"
_AT_ONCE: Final = 500  # sessions of one erasure
_MICROSECOND: Final = timedelta(microseconds=1)


@quiet
class Erasure(NamedTuple):
    """What came of an erasure.

    certificate: the signed statement; None where nothing was left to sign.
    salt:        in hex: with it the certificate can be shown to be this user's.  It is
                 handed over here, once, and kept nowhere.
    database:    which one, as messages name it.
    already:     it was erased before, and the certificate is of then; only what a cut
                 off run left was done.
    unfinished:  why deleted bytes could not be overwritten or searched for, if so: the
                 erasure is certified, and the next call does that again.
    removed:     files that were removed, by the place of the inventory they were in.
    copies:      exports that have a copy of it, which Refold cannot delete: each with
                 ``export``, ``made_at``, ``format``, ``location`` and ``machine``.  The
                 locations are handed over here, and kept nowhere.  None if they could
                 not be read.
    due_at:      when it will be destroyed, if it is held back; microseconds since 1970.
    left:        rows that a search of every table found afterwards.
    cleaned:     what was done to overwrite deleted bytes.
    files:       in how many places a search of the files found names.
    """

    certificate: Signed | None = None
    salt: str = ""
    already: bool = False
    due_at: int | None = None
    left: Mapping[str, int] = _NOTHING
    cleaned: Mapping[str, Any] = _NOTHING
    files: Mapping[str, Any] = _NOTHING
    database: str = ""
    unfinished: str = ""
    removed: Mapping[str, list[str]] = _NOTHING
    copies: Sequence[JsonObject] | None = ()

    @property
    def outside(self) -> list[Place]:
        """The places with copies that Refold cannot reach."""
        return inventory.outside()

    def to_json(self) -> dict[str, Any]:
        """The same for programs."""
        told, due = self._asdict(), self.due_at
        signed = told.pop("certificate")
        told |= {
            name: dict(told[name]) for name in ("left", "cleaned", "files", "removed")
        }
        told |= {"salt": self.salt or None, "due_at": due and timestamp(due)}
        told["copies"] = None if self.copies is None else list(self.copies)
        told["outside"] = [place.to_json() for place in self.outside]
        return told if signed is None else {**signed.to_json(), **told}


@quiet
class ErasurePlan(NamedTuple):
    """What an erasure would delete, what forbids it, and which exports hold copies.

    exports: datasets with rows of it; None if that cannot be read.
    already: it was erased before, and nothing is left to delete.
    copies:  other exports of it, as in ``Erasure``.
    """

    sessions: list[str]
    counts: dict[str, int]
    holds: list[str]
    exports: list[JsonObject] | None
    already: bool = False
    copies: list[JsonObject] | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """Who asks for what to be erased, and how."""

    whose: Whose
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


class Retained(NamedTuple):
    """What a retention did, or with ``dry_run`` would do.

    sessions:  user and session of those that expired.
    kept:      how many did and are there still, by what keeps them: ``hold``,
               ``freeze``, ``fork`` (a living one needs it), ``in_use`` (by now), or
               ``unreadable``: users of whom something does not open.
    completed: erasures of before that were cut off, and are done now.
    erasures:  with their certificates.
    blobs, audit: how many of these expired; None where that was not asked.
    memory:    how many extracts of sessions that are gone expired.
    """

    dry_run: bool
    sessions: list[tuple[str, str]]
    kept: dict[str, int]
    completed: int
    erasures: list[Erasure]
    blobs: int | None = None
    audit: int | None = None
    memory: int = 0

    def to_json(self) -> dict[str, Any]:
        """The same for programs."""
        told = self._asdict()
        told["sessions"] = [{"user_id": u, "session_id": s} for u, s in self.sessions]
        told["certificates"] = [
            {"certificate": one.certificate.to_json(), "salt": one.salt}
            for one in told.pop("erasures")
            if one.certificate is not None
        ]
        return told


class Erasures:
    """Erasures, legal holds, freezes and retention of a store."""

    def __init__(self, writer: Writer, access_log: AccessLog) -> None:
        self.writer, self._access_log = writer, access_log

    @recorded("erasure_plan", named=False)
    def plan(
        self, user_id: str, *, session_id: str | None = None, absent_ok: bool = False
    ) -> ErasurePlan:
        """What ``erase`` would delete, and which holds forbid it; changes nothing.

        Raises UserNotFound unless ``absent_ok``, SessionNotFound.
        """
        whose = whose_of(user_id, session_id)
        return Eraser(self.writer).plan(whose, absent_ok=absent_ok)

    @recorded("erasure_list", "erasures")
    def pending(self) -> list[Job]:
        """Erasures that are not done: cut off, or held back until their date."""
        return self.writer.log.erasures.jobs()

    @recorded("erasure_list", "erasures", named=False)
    def stranded(self, user_id: str | None = None) -> list[erasure.Stranded]:
        """Data marked as erased by an erasure whose record is gone.

        ``erase`` completes such an erasure, and ``restore`` undoes it where the keys
        are still there.
        """
        return self.writer.log.erasures.stranded(scope(user_id).user_id)

    def unfinished(self, user_id: str | None) -> Iterator[tuple[SessionInfo, Verified]]:
        """Erasures that were cut off, as problems of what they are of."""
        user_id = scope(user_id).user_id
        for job in self.writer.log.erasures.jobs(user_id):
            owner, names = job.whose
            if job.stage != "held" and user_id in (None, owner):
                name = names[0] if names else "_user"
                detail = "its erasure was cut off: `refold erase --due` completes it"
                problem = Problem(owner, name, "main", None, "erasure", detail)
                info = SessionInfo(owner, name, 0, "erased", 0)
                yield info, Verified(0, 0, 0, [problem])
        # Not by the method that people call, which the access log records.
        for whose, restorable in self.writer.log.erasures.stranded(user_id):
            owner, names = whose
            name = names[0] if names else "_user"
            problem = Problem(
                owner, name, "main", None, "erasure", _lost_record(restorable)
            )
            info = SessionInfo(owner, name, 0, "erased", 0)
            yield info, Verified(0, 0, 0, [problem])

    @recorded("erasure", "erasures", named=False)
    def complete(
        self, *, vacuum: bool = False, progress: Progress | None = None
    ) -> Iterator[Erasure]:
        """Complete every erasure that was cut off, or whose time has come.

        Erased users whose rows came back with a backup of the database are erased
        again, and so is data whose keys are destroyed, where the record of the erasure
        is gone.  Where the keys are still there, nobody knows whether a grace is over:
        ``stranded`` names such data.
        """
        eraser = Eraser(self.writer, progress)
        jobs = self.pending()
        if any(job.stage == "held" for job in jobs):
            self.writer.time.observe()
        for job in jobs:
            if job.stage == "restoring":
                eraser.restored(job)
            elif job.stage != "held" or eraser.is_due(job):
                yield eraser.run(job, vacuum=vacuum)
        for whose, restorable in self.writer.log.erasures.stranded():
            if not restorable:
                yield eraser.erase(Ask(whose, _LOST, "", vacuum=vacuum))
        for user_id in self.writer.log.erasures.returned():
            ask = Ask(Whose(user_id), _RETURNED, "", vacuum=vacuum, absent_ok=True)
            yield eraser.erase(ask)

    @recorded("restore", named=False)
    def restore(self, user_id: str, reason: str, *, operator: str = "") -> Signed:
        """Undo the erasures of a user that are held back; a certificate says so.

        Raises NotErased if there is none.
        """
        eraser, signed = Eraser(self.writer), None
        said = eraser.said(whose_of(user_id, None), reason, operator)
        told = {"restored_for": said["reason"], "restored_by": said["operator"]}
        for job in self.writer.log.erasures.jobs(user_id):
            if job.stage in ("held", "restoring"):
                job = replace(job, facts={**job.facts, **told})
                signed = eraser.restored(job) or signed
        for whose, restorable in self.writer.log.erasures.stranded(user_id):
            if restorable:
                signed = eraser.restored(eraser.reinstated(whose, told)) or signed
        if signed is None:
            raise errors.NotErased("that user has no erasure that can be undone")
        return signed

    @recorded("readmit", named=False)
    def readmit(self, user_id: str, reason: str, *, operator: str = "") -> Signed:
        """Let an erased user come back, with a new key and in a new epoch.

        Earlier data does not come back.  Raises NotErased.
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
        self, user_id: str, name: str, reason: str, *, operator: str = ""
    ) -> Signed | None:
        """Forbid to erase a user, by a legal hold of this name; None if it was there.

        It keeps an erasure from beginning, not one that is under way.
        """
        ids.check_id("user_id", user_id)
        self.writer.log.erasures.refuse_erased(user_id)
        hold = self._hold(user_id, self._name(user_id, name), reason)
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
        """End a legal hold.  Raises NotErased if there is none of that name."""
        name = self._name(ids.check_id("user_id", user_id), name)
        absent = errors.NotErased(f"there is no legal hold {name!r} on that user")
        # Without a hold nothing is signed, which would make a key for a new user.
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
        """The legal holds on a user."""
        return self.writer.log.erasures.holds(ids.check_id("user_id", user_id))

    @recorded("certificate_list", "certificates", named=False)
    def certificates(self, user_id: str | None = None) -> list[Signed]:
        """What was signed, of a user or all, the oldest first."""
        return self.writer.log.erasures.certificates(scope(user_id).user_id)

    def public_key(self) -> bytes:
        """What certificates and tree heads are checked with: 32 bytes of Ed25519."""
        return self.writer.log.erasures.public_key()

    @recorded("freeze", named=False)
    def freeze(self, user_id: str, reason: str, *, operator: str = "") -> Signed | None:
        """Keep all data of a user as it is: readable, but nothing is added or erased.

        From when this returns, the database refuses every append: it raises Frozen.
        Retention and ``erase`` leave the user alone.  Returns a
        certificate, None if the user is frozen already.

        Raises Erased.
        """
        freeze = self._hold(ids.check_id("user_id", user_id), FREEZE, reason)
        certificate = self._signed("frozen", user_id, reason, operator)
        if not self.writer.log.retention.freeze(user_id, freeze, certificate):
            return None
        return certificate.signed

    @recorded("unfreeze", named=False)
    def unfreeze(
        self, user_id: str, reason: str, *, operator: str = ""
    ) -> Signed | None:
        """Let a user go on; returns a certificate, None if they were not frozen."""
        ids.check_id("user_id", user_id)
        # Without a freeze nothing is signed, which would make a key for a new user.
        if not self._has_hold(user_id, FREEZE):
            return None
        certificate = self._signed("unfrozen", user_id, reason, operator)
        if not self.writer.log.retention.unfreeze(user_id, certificate):
            return None
        return certificate.signed

    @recorded("hold_list", named=False)
    def is_frozen(self, user_id: str) -> bool:
        """Whether the user is frozen at present."""
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
        erased: Callable[[Erasure], None] | None = None,
    ) -> Retained:
        """Erase what nobody used for as long as the policy says.

        Each erasure is complete, with its certificate; cut off, it is completed by the
        next call.  A session that is used meanwhile stays, and so do those of a user
        who is held or frozen, and those that a fork in use goes on from.

        dry_run:     say what would go, and change nothing.
        operator:    for the certificates; redacted.
        key_backups: how long backups of the key store survive, for them too.
        erased:      called with each erasure at once: a salt is handed over only once,
                     and a later failure loses what is returned.
        """
        self._access_log.count()
        asked = Ask(Whose(""), REASON, operator, key_backups=key_backups)
        retainer = Retainer(self.writer, policy, asked, dry_run, progress, erased)
        done = retainer.run()
        if policy.audit is None or dry_run or self._access_log.trail is None:
            return done
        return done._replace(audit=self._access_log.purge(policy.audit))

    def _name(self, user_id: str, given: str) -> str:
        """The name of a hold as it is kept: another, if something is found in it."""
        if given == FREEZE:
            raise errors.InvalidEvent(
                f"{given!r} names no legal hold: store.erasures.freeze and unfreeze"
            )
        return self.writer.recorded_id(user_id, ids.check_id("name", given))

    def _hold(self, user_id: str, name: str, reason: str) -> LegalHold:
        said = Eraser(self.writer).redacted(reason, Whose(user_id))
        return LegalHold(name, said, self.writer.clock())

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
        """Sign an act before it is done; reason and operator go with the user's key."""
        eraser, whose = Eraser(self.writer), whose_of(user_id, None)
        said = eraser.said(whose, reason, operator)
        if hold is not None:
            said["hold"] = hold
        now = self.writer.clock()
        statement = eraser.statement(act, whose, os.urandom(SALT), now)
        if readmission is not None:
            statement["epoch"] = readmission.epoch
        return self.writer.log.erasures.sign(
            user_id, statement, now=now, said=said, readmission=readmission
        )


def whose_of(user_id: str, session_id: str | None) -> Whose:
    """The user, or a session of theirs.  Raises InvalidEvent for no such name."""
    ids.check_id("user_id", user_id)
    if session_id is None:
        return Whose(user_id)
    if session_id == ids.USER_SESSION:
        raise errors.InvalidEvent(
            f"{ids.USER_SESSION!r} is of the whole user: erase the user"
        )
    return Whose(user_id, (ids.check_session_id(session_id),))


@dataclass(frozen=True, slots=True)
class Eraser:
    """Erases in the store of a writer.

    retaining: sessions that began to be erased because nobody used them: no fork of
               theirs is left, and deleted bytes are overwritten once, after all.
    """

    writer: Writer
    progress: Progress | None = None
    retaining: bool = False

    @property
    def erasures(self) -> erasure.ErasureSteps:
        return self.writer.log.erasures

    def plan(self, whose: Whose, *, absent_ok: bool = False) -> ErasurePlan:
        """What would be deleted; nothing is changed."""
        already = False
        if not any(self.erasures.left(whose).values()):
            try:
                self._refuse_erased(whose)
                self._refuse_absent(whose, absent_ok=absent_ok)
            except errors.Erased:
                already = True
        whose = self._with_forks(whose)
        names: list[str] = []
        for info in self.writer.log.sessions(whose.user_id):
            is_named = whose.sessions is None or info.session_id in whose.sessions
            if is_named and not info.is_internal:
                names.append(info.session_id)
        holds = [hold.name for hold in self.erasures.holds(whose.user_id)]
        exports = self._exports(whose)
        counts = self.erasures.left(whose)
        copies = self._copies(whose)
        return ErasurePlan(names, counts, holds, exports, already, copies)

    def _exports(self, whose: Whose) -> list[JsonObject] | None:
        """The datasets with rows of these; None if that cannot be read."""
        with suppress(errors.RefoldError):
            return datasets(self.writer.log, whose)
        return None

    def _copies(self, whose: Whose) -> list[JsonObject] | None:
        """The recorded exports of these; None if that cannot be read."""
        try:
            exports = self.erasures.exports(whose.user_id)
        except errors.RefoldError:
            return None
        return [export.to_json() for export in exports if export.has(whose)]

    def erase(self, ask: Ask) -> Erasure:
        """Do all of it, or what is left of it."""
        job = self.begun(ask)
        if isinstance(job, Erasure):
            return job
        return self.run(job, vacuum=ask.vacuum, at_once=ask.grace is None)

    def begun(self, ask: Ask) -> Job | Erasure:
        """The job of it, begun now or before; what came of it, if it is done."""
        for name in ask.whose.sessions or (None,):
            self.writer.vault.forget(ask.whose.user_id, name)
        job = self._under_way(ask.whose)
        if job is None:
            try:
                self._refuse_erased(ask.whose)
                self._refuse_absent(ask.whose, absent_ok=ask.absent_ok)
            except errors.Erased:
                # A backup of the database may have come back since.
                if not any(self.erasures.left(ask.whose).values()):
                    kept = self._extracts(ask.whose)
                    if not kept:
                        return self._erased_before(ask)
                    ask = replace(ask, whose=ask.whose._replace(sessions=kept))
            whose = self._with_forks(ask.whose)
            job = self.erasures.begin(self.asked(replace(ask, whose=whose)))
            # From now on a dataset in the making is refused: see check_dataset.
            job = self._to(job, job.stage, exports=self._exports(job.whose))
        elif job.stage == "held" and ask.grace is None:
            job = job.at("held", due_at=None)
        if ask.salt is not None and "salt" not in job.facts:
            job = self._to(job, job.stage, salt=ask.salt.hex())
        return job

    def _under_way(self, whose: Whose) -> Job | None:
        """The job that is of the same, once a restoration that was cut off is done."""
        for job in self.erasures.jobs(whose.user_id):
            if _same(job.whose, whose):
                if job.stage != "restoring":
                    return job
                self.restored(job)
        return None

    def _refuse_erased(self, whose: Whose) -> None:
        self.erasures.refuse_erased(whose.user_id)
        for name in whose.sessions or ():
            stream = ids.StreamId(whose.user_id, name, ids.MAIN)
            if self.writer.log.head(stream).seq:
                continue
            # What lost its head is not listed any more, and can be erased all the same.
            if not any(self.erasures.left(Whose(whose.user_id, (name,))).values()):
                raise errors.SessionNotFound(whose.user_id, name)

    def _refuse_absent(self, whose: Whose, *, absent_ok: bool) -> None:
        """Sign nothing for a name that was mistyped, or is in another database."""
        user_id, sessions = whose
        if sessions is not None or absent_ok:
            return
        # A user without rows may have been here before: certificates show that.
        known = any(self.erasures.left(whose).values())
        if not (known or self.erasures.certificates(user_id)):
            raise errors.UserNotFound(user_id, database=self.erasures.database)

    def _erased_before(self, ask: Ask) -> Erasure:
        """Nothing is left to do but to clean up behind a run that was cut off."""
        signed = self.erasures.certificates(ask.whose.user_id)
        acts = [one for one in signed if one.statement["act"] == "erased"]
        last = acts[-1] if acts and ask.whose.sessions is None else None
        removed = self.erasures.forget_files(ask.whose)
        done = Erasure(last, already=True, removed=removed)
        return self._searched(ask.whose, done, [], ask.vacuum)

    def asked(self, ask: Ask) -> Job:
        """The job of it; nothing is kept of it yet."""
        now, whose = self.writer.clock(), ask.whose
        facts: dict[str, Any] = {
            **self.said(whose, ask.reason, ask.operator),
            "requested_at": timestamp(now),
            "key_backups_until": None,
            "tree_before": self.erasures.tree_head(),
        }
        if ask.key_backups is not None:
            until = now + ask.key_backups // _MICROSECOND
            facts["key_backups_until"] = timestamp(until)
        if ask.salt is not None:
            facts["salt"] = ask.salt.hex()
        due_at = None
        if ask.grace is not None:
            grace = ask.grace // _MICROSECOND
            facts["grace"] = grace
            due_at = self.writer.time.observe().now + grace
        return self.erasures.new_job(whose, due_at=due_at, facts=facts)

    def is_due(self, job: Job) -> bool:
        """Whether the grace of a job is over, by the time of the store.

        A date that is further ahead than the grace is that of a wrong clock: the grace
        begins again now.
        """
        if job.due_at is None:
            return True
        time, grace = self.writer.time, job.facts.get("grace")
        left = job.due_at - time.now()
        if grace is not None and left > grace + TOLERANCE and job.stage == "held":
            judged = time.observe()
            if not judged.disputed:
                later = replace(job, due_at=judged.now + grace)
                self.erasures.advance(later, job.stage)
        return left <= 0

    def _with_forks(self, whose: Whose) -> Whose:
        """The sessions, and those forked from them, which read their events."""
        if whose.sessions is None or self.retaining:
            return whose
        user_id, names = whose.user_id, whose.sessions
        infos = [i for i in self.writer.log.sessions(user_id) if i.status != "erased"]
        found = with_forks(self.writer, infos, user_id, names)
        kept = self._extracts(whose._replace(sessions=tuple(found)))
        return whose._replace(sessions=tuple(sorted({*found, *kept})))

    def _extracts(self, whose: Whose) -> tuple[str, ...]:
        """What memory keeps of these sessions, as sessions of their own."""
        log, user_id = self.writer.log, whose.user_id
        there = {info.session_id for info in log.sessions(user_id)}
        if not any(name.startswith(ids.KEPT) for name in there):
            return ()
        names = {
            kept
            for name in whose.sessions or ()
            for kept in extract_names(log, user_id, name).values()
        }
        return tuple(sorted(names & there))

    def said(self, whose: Whose, reason: str, operator: str) -> dict[str, Any]:
        """Why and by whom, as a certificate may say it."""
        told = {"reason": reason, "operator": operator}
        return {name: self.redacted(text, whose) for name, text in told.items()}

    def redacted(self, text: str, whose: Whose) -> str:
        """The text as a certificate may say it: it names nobody.

        Short names of sessions are left: they would stand in any text.
        """
        clean: Any = self.writer.redactor.value({"text": repaired(text)[0]})[0]
        said = str(clean["text"])
        infos = self.writer.log.sessions(whose.user_id) if said else []
        names = {info.session_id for info in infos if len(info.session_id) >= _TELLING}
        for name in (whose.user_id, *(whose.sessions or ()), *names):
            if name.lower() not in said.lower():
                continue
            said = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", _HIDDEN, said, flags=re.I)
        return said

    def run(self, job: Job, *, vacuum: bool = False, at_once: bool = False) -> Erasure:
        """Go on with a job from where it is; one that is not due is held back."""
        now = self.writer.clock()
        later = not at_once and not self.is_due(job)
        if not job.past("shredded"):
            job = self._marked(job)
            if later:
                job = self._with_copies(job)
                if job.stage == "begun":
                    self._to(job, "held", keys=self.erasures.hold_keys(job, now=now))
                return Erasure(
                    due_at=job.due_at,
                    database=self.erasures.database,
                    copies=job.facts.get("copies"),
                )
            job = self.shredded(job, marked=True)
        if not job.past("counted"):
            job = self._counted(job)
        names = list(job.facts.get("names", ()))
        self._deleted(job)
        self._forgotten(job)
        removed = self.erasures.forget_files(job.whose)
        done = self._certified(self._to(job, "deleted"), removed)
        try:
            return self._searched(job.whose, done, names, vacuum)
        except (errors.RefoldError, OSError) as error:
            # The salt is handed over once, whatever fails after the certificate.
            why = f"deleted bytes could not be overwritten and searched for: {error}"
            return done._replace(unfinished=why)

    def _with_copies(self, job: Job) -> Job:
        """Keep where the exports are, before the key to their records goes.

        The heads are marked: no export is recorded any more.
        """
        if job.stage != "begun" or "copies" in job.facts:
            return job
        return self._to(job, "begun", copies=self._copies(job.whose))

    def shredded(self, job: Job, *, marked: bool = False) -> Job:
        """Unreadable for good: the keys of what is marked are destroyed."""
        if job.past("shredded"):
            return job
        job = self._with_copies(job if marked else self._marked(job))
        keys = self.erasures.destroy_keys(job, now=self.writer.clock())
        moment = timestamp(self.writer.clock())
        return self._to(job, "shredded", keys=keys, unreadable_at=moment)

    def _marked(self, job: Job) -> Job:
        """Mark it, with forks that began until then: from an erased one none begins."""
        self.erasures.mark(job)
        whose = self._with_forks(job.whose)
        # Looked up after: who else runs this may have marked them, and kept that.
        for known in self.erasures.jobs(job.whose.user_id):
            if (known.job_id, known.stage) == (job.job_id, job.stage):
                job = known
        names = {*(whose.sessions or ()), *(job.whose.sessions or ())}
        if names == set(job.whose.sessions or ()):
            self._forgotten(job)
            return job
        wider = whose._replace(sessions=tuple(sorted(names)))
        return self._marked(self.erasures.widen(job, wider) or job)

    def _forgotten(self, job: Job) -> None:
        """Drop what was learned from sessions: once they are marked, and at the end.

        Who made it meanwhile looks whether they are there, but may be killed before.
        """
        if job.whose.sessions is not None:
            self.writer.log.drop_views(job.whose.user_id, ids.USER_SESSION)

    def _to(self, job: Job, stage: erasure.Stage, **facts: Any) -> Job:
        """Keep how far it is, unless others took it further."""
        kept = self.erasures.advance(job.at(stage, **facts), job.stage)
        return job.at(stage, **facts) if kept is None else kept

    def _counted(self, job: Job) -> Job:
        remains = self.erasures.remains(job.whose)
        whole = job.whose.sessions is None
        infos = self.writer.log.sessions(job.whose.user_id) if whole else []
        names = [info.session_id for info in infos] or list(job.whose.sessions or ())
        leaves = {"count": remains.leaves, "root": remains.root.hex()}
        found = {"counts": remains.counts, "leaves": leaves, "sessions": len(names)}
        return self._to(job, "counted", **found, names=names[:_NAMES])

    def _deleted(self, job: Job) -> None:
        """Delete until a search finds nothing: what was under way may come late."""
        totals = job.facts.get("counts", {})
        for _ in range(_TRIES):
            done = Counter[str]()
            for table, number in self.erasures.delete(job):
                done[table] += number
                if self.progress is not None:
                    self.progress(table, done[table], int(totals.get(table, 0)))
            if not any(self.erasures.left(job.whose).values()):
                return
        raise errors.StoreUnavailable(
            "rows of what was erased keep appearing",
            remedy="close what writes them, and run `refold erase --due`",
        )

    def _certified(self, job: Job, removed: dict[str, list[str]]) -> Erasure:
        given = job.facts.get("salt")
        salt = os.urandom(SALT) if given is None else bytes.fromhex(given)
        facts = {name: job.facts[name] for name in _CERTIFIED}
        facts["exports"] = job.facts.get("exports")
        facts["tree"] = {
            "before": job.facts["tree_before"],
            "after": self.erasures.tree_head(),
            "leaves": self.erasures.tree_leaves(job),
        }
        facts["rows_left"] = self.erasures.left(job.whose)
        facts["files_removed"] = {place: len(files) for place, files in removed.items()}
        copies = job.facts.get("copies")
        if copies is None:
            facts["copies"] = None
        else:
            facts["copies"] = [erasure.certified_copy(copy, salt) for copy in copies]
        facts["outside"] = [place.name for place in inventory.outside()]
        signed = self.certify("erased", salt, job, **facts)
        if signed is None:
            return Erasure(already=True, removed=removed, copies=copies)
        return Erasure(signed, salt.hex(), removed=removed, copies=copies)

    def certify(
        self,
        act: str,
        salt: bytes,
        job: Job,
        *,
        said: dict[str, Any] | None = None,
        **facts: Any,
    ) -> Signed | None:
        """Sign the end of a job, ``said`` encrypted; None if others ended it."""
        now = self.writer.clock()
        statement = self.statement(act, job.whose, salt, now)
        statement["certificate_id"] = job.job_id
        statement |= facts
        return self.erasures.certify(job, statement, now=now, said=said)

    def statement(
        self, act: str, whose: Whose, salt: bytes, now: int
    ) -> dict[str, Any]:
        """What every certificate states of an act."""
        user_id, sessions = whose
        return {
            "format": erasure.FORMAT,
            "certificate_id": str(uuid4()),
            "act": act,
            "scope": "user" if sessions is None else "session",
            "subject": erasure.subject(salt, user_id, sessions),
            "store": self.erasures.facts(),
            "refold": import_module("refold").__version__,
            "completed_at": timestamp(now),
        }

    def _searched(
        self, whose: Whose, done: Erasure, names: list[str], vacuum: bool
    ) -> Erasure:
        """Overwrite what was deleted, and look for it in every table and file."""
        if self.retaining:
            return done._replace(left=self.erasures.left(whose))
        names = [whose.user_id, *sorted({*names, *(whose.sessions or ())})]
        cleaned = self.erasures.clean(vacuum=vacuum)
        files = self.erasures.found_in_files(names)
        if any(files["files"].values()) and not cleaned["vacuum"]:
            # Bytes that were freed before cells were overwritten: all is written anew.
            cleaned = self.erasures.clean(vacuum=True)
            files = self.erasures.found_in_files(names)
        left = self.erasures.left(whose)
        done = done._replace(left=left, database=self.erasures.database)
        if cleaned.get("statistics_left"):
            places = ", ".join(cleaned["statistics_left"])
            why = f"files of the server may still hold names: {places}"
            done = done._replace(unfinished=why)
        return done._replace(cleaned=cleaned, files=files)

    def reinstated(self, whose: Whose, facts: dict[str, Any]) -> Job:
        """The record of an erasure that was lost, kept again in order to undo it."""
        facts = {"requested_at": timestamp(self.writer.clock()), **facts}
        job = self.erasures.new_job(whose, due_at=None, facts=facts).at("restoring")
        self.erasures.keep(job)
        return job

    def restored(self, job: Job) -> Signed | None:
        """Undo an erasure that is held back, and say so."""
        kept = job if job.stage == "restoring" else self._to(job, "restoring")
        if kept.stage != "restoring":
            return None
        self.erasures.restore(kept)
        told = {"reason": "restored_for", "operator": "restored_by"}
        said = {name: kept.facts.get(place, "") for name, place in told.items()}
        asked, salt = {"requested_at": kept.facts["requested_at"]}, os.urandom(SALT)
        return self.certify("restored", salt, kept, said=said, **asked)


def _lost_record(restorable: bool) -> str:
    if restorable:
        return (
            "it is marked as erased, and the record of the erasure is gone: "
            "`refold erase` completes it, `refold restore` undoes it"
        )
    return (
        "its keys are destroyed, and the record of the erasure is gone: "
        "`refold erase --due` completes it"
    )


def _same(known: Whose, asked: Whose) -> bool:
    if known.sessions is None or asked.sessions is None:
        return known.sessions is asked.sessions
    return set(asked.sessions) <= set(known.sessions)


# What cannot be read, or is too much to be kept, goes with its session.
_NOT_KEPT: Final = (
    errors.CorruptEvent,
    errors.KeyUnavailable,
    errors.Erased,
    errors.EventTooLarge,
    errors.RedactionFailed,
    errors.InvalidEvent,
)


@dataclass(slots=True)
class Retainer:
    """Applies a policy to the sessions of a store.

    asked:    what its erasures say of why and who; ``whose`` is put in.
    progress: called with each user and session that is erased.
    erased:   called with each erasure once it is done.
    """

    writer: Writer
    policy: erasure.RetentionPolicy
    asked: Ask
    dry_run: bool
    progress: Callable[[str, str], None] | None
    erased: Callable[[Erasure], None] | None = None
    _kept: Counter[str] = field(default_factory=Counter)
    _sessions: list[tuple[str, str]] = field(default_factory=list)
    _erasures: list[Erasure] = field(default_factory=list)
    _forgotten: int = 0

    @property
    def _now(self) -> int:
        """The time by which what is kept has aged."""
        return self.writer.time.now()

    def run(self) -> Retained:
        """Complete what was cut off, then erase what is unused."""
        eraser = Eraser(self.writer, retaining=True)
        judged = self.writer.time.observe()
        if not (self.dry_run or judged.disputed):
            self._correct_times(judged.now)
        completed = [] if self.dry_run else self._completed(eraser)
        found = () if self.policy.sessions is None else listed(self.writer.log.sessions)
        for user_id, infos in groupby(found, lambda info: info.user_id):
            try:
                self._of_user(eraser, user_id, list(infos))
            except (errors.CorruptEvent, errors.KeyUnavailable):
                # What it was forked from cannot be told, so nothing of the user goes.
                self._kept["unreadable"] += 1
            with suppress(errors.CorruptEvent, errors.KeyUnavailable, errors.Erased):
                self._of_memory(eraser, user_id)
        if not self.dry_run:
            self._forget_values()
        blobs, erasures = self._blobs(), self._erasures
        if not self.dry_run and (completed or erasures or blobs):
            cleaned = eraser.erasures.clean(vacuum=False)
            erasures = [one._replace(cleaned=cleaned) for one in erasures]
        kept = dict(+self._kept)
        done = self.dry_run, self._sessions, kept, len(completed), erasures
        return Retained(*done, blobs, memory=self._forgotten)

    def _correct_times(self, now: int) -> None:
        """Let what has the time of a clock that was ahead age from now on.

        Only where it is further ahead than what it belongs to is kept: else it would
        be kept for long, and less does no harm.
        """
        policy = self.policy
        retention = self.writer.log.retention
        if policy.sessions is not None:
            ahead = now + policy.sessions // _MICROSECOND
            retention.correct_uses(later_than=ahead, now=now)
        if policy.blobs is not None:
            ahead = now + policy.blobs // _MICROSECOND
            retention.correct_blobs(later_than=ahead, now=now)

    def _completed(self, eraser: Eraser) -> list[Erasure]:
        """Complete the erasures of an earlier retention that was cut off."""
        completed = []
        for job in eraser.erasures.jobs():
            if job.facts.get("reason") == REASON and job.due_at is None:
                done = eraser.run(job)
                completed.append(done)
                if self.erased is not None:
                    self.erased(done)
        return completed

    def _forget_values(self) -> None:
        """Have sessions forget values that the policy of redaction keeps no longer."""
        log, plan = self.writer.log, self.writer.redactor.plan
        for info in listed(log.sessions) if plan.kept_sec else ():
            if not info.is_live or log.erasures.holds(info.user_id):
                continue
            with suppress(errors.CorruptEvent, errors.KeyUnavailable, errors.Erased):
                stream = ids.StreamId(info.user_id, info.session_id, ids.MAIN)
                head = log.head(stream)
                kept = unexpired(head.state.kept, plan, self._now)
                if kept != head.state.kept:
                    state = head.state._replace(kept=kept)
                    log.repairs.put_head(state.stream, head._replace(state=state))

    def _blobs(self) -> int | None:
        """How many whole texts expired; what is behind a fork stays for the fork."""
        if self.policy.blobs is None:
            return None
        retention, done = self.writer.log.retention, 0
        before = self._now - self.policy.blobs // _MICROSECOND
        whose, kept, forked = "", False, set[str | None]()
        for blobs in retention.old_blobs(before):
            try:
                if blobs.user_id != whose:
                    whose, kept = blobs.user_id, True
                    infos = self.writer.log.sessions(whose)
                    origins = dict[str, str | None]()
                    names = [info.session_id for info in infos if not info.is_apart]
                    forked = {self._origin(whose, name, origins) for name in names}
                    kept = bool(self.writer.log.erasures.holds(whose))
                if not kept and blobs.session_id not in forked:
                    some = len(blobs.addresses)
                    done += some if self.dry_run else retention.expire_blobs(blobs)
            except (errors.CorruptEvent, errors.KeyUnavailable):
                self._kept["unreadable"] += 1
        return done

    def _of_user(self, eraser: Eraser, user_id: str, infos: list[SessionInfo]) -> None:
        origins, lost = dict[str, str | None](), 0
        while True:
            names, forked = self._due(user_id, infos, origins)
            if not names or self._is_held(user_id, len(names)):
                break
            some = names if self.dry_run else names[:_AT_ONCE]
            done = self._erased(eraser, Whose(user_id, tuple(some)), infos)
            if done is not None:
                self._sessions += [(user_id, name) for name in some]
                lost = 0
            elif (lost := lost + 1) == _TRIES:
                self._kept["in_use"] += len(names)
                break
            if self.dry_run:
                break
            self._erasures += [done] if done else []
            infos = self.writer.log.sessions(user_id)
        self._kept["fork"] += len(forked)

    def _of_memory(self, eraser: Eraser, user_id: str) -> None:
        """Erase what memory kept of sessions, once it has lasted."""
        now = self._now
        lasting = self.policy.lasting
        names = expired_extracts(self.writer.log, user_id, lasting, now)
        if names and not self._is_held(user_id, len(names)):
            infos = self.writer.log.sessions(user_id)
            whose = Whose(user_id, tuple(sorted(names)))
            done = self._erased(eraser, whose, infos, since=now)
            self._forgotten += len(names) if done else 0
            self._erasures += [done] if done and not self.dry_run else []

    def _due(
        self, user_id: str, infos: list[SessionInfo], origins: dict[str, str | None]
    ) -> tuple[list[str], list[str]]:
        """Which are unused, and which of those a fork needs; it fills ``origins``."""
        mine = [info.session_id for info in infos if not info.is_apart]
        used, since = self._used(user_id, infos), self._since
        old = {name for name in mine if used[name] <= since}
        waiting = [name for name in mine if name not in old] if old else []
        needed: set[str] = set()
        while waiting:
            origin = self._origin(user_id, waiting.pop(), origins)
            if origin is not None and origin not in needed:
                needed.add(origin)
                waiting.append(origin)
        return sorted(old - needed), sorted(old & needed)

    def _used(self, user_id: str, infos: list[SessionInfo]) -> dict[str, int]:
        """When each session was used last: read too, if that counts."""
        used = {info.session_id: microseconds(info.updated_at) for info in infos}
        if self.policy.since != "append":
            for one in self.writer.log.retention.accesses(user_id):
                used[one.session_id] = max(used.get(one.session_id, 0), one.last_at)
        return used

    def _origin(
        self, user_id: str, name: str, known: dict[str, str | None]
    ) -> str | None:
        """What a session was forked from; nothing ever changes that."""
        if name not in known:
            try:
                state = self.writer.log.head(ids.StreamId(user_id, name)).state
            except errors.Erased:
                return None
            known[name] = state.forked_from[0] if state.forked_from else None
        return known[name]

    @property
    def _since(self) -> int:
        """What was used later is in use; microseconds since 1970."""
        span = self.policy.sessions or timedelta(0)
        return self._now - span // _MICROSECOND

    def _is_held(self, user_id: str, number: int) -> bool:
        """Whether something forbids to erase so many sessions of the user's."""
        names = {hold.name for hold in self.writer.log.erasures.holds(user_id)}
        if names:
            self._kept["freeze" if FREEZE in names else "hold"] += number
        return bool(names)

    def _erased(
        self,
        eraser: Eraser,
        whose: Whose,
        infos: list[SessionInfo],
        *,
        since: int | None = None,
    ) -> Erasure | None:
        """Keep what memory may; erase them, unless one was used or began meanwhile."""
        if self.dry_run:
            return Erasure()
        if since is None and self.policy.lasting:
            used = self._used(whose.user_id, infos)
            for info in infos:
                if info.session_id in (whose.sessions or ()):
                    at, lasting = used[info.session_id], self.policy.lasting
                    with suppress(*_NOT_KEPT):
                        keep_extracts(self.writer, info, lasting, at)
            infos = self.writer.log.sessions(whose.user_id)
        job = eraser.asked(replace(self.asked, whose=whose))
        known = frozenset(info.session_id for info in infos)
        at = self._since if since is None else since
        unused = erasure.Unused(at, self.policy.since == "access", known)
        begun = None
        with suppress(errors.OnHold, errors.Erased):
            begun = self.writer.log.retention.begin_unused(job, unused)
        if begun is None:
            return None
        for name in whose.sessions or ():
            if self.progress is not None:
                self.progress(whose.user_id, name)
        done = eraser.run(begun)
        if self.erased is not None:
            self.erased(done)
        return done


class Keys:
    """The keys of a store: replaced, and counted."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer

    @recorded("key_rotation", "keys")
    def rotate_master(self) -> int:
        """Wrap everything under the newest master key; returns how much was not.

        There must be two, the new one first. Others may read and write meanwhile. If it
        is interrupted, call it again.
        """
        return self.writer.log.erasures.rotate_master()

    @recorded("key_rotation", "keys")
    def rotate_user(self, user_id: str) -> int:
        """Give a user another key; returns how many sessions' keys are under it.

        Sessions keep theirs, and idempotency keys and blobs are found as before.

        Raises KeyUnavailable, Erased.
        """
        return self.writer.log.erasures.rotate_user(ids.check_id("user_id", user_id))

    @recorded("key_rotation")
    def rotate_session(self, user_id: str, *, session_id: str) -> Rewritten:
        """Encrypt a session again under a new key, and destroy the old key.

        Nothing in it changes; an event at its end binds the new rows to the chain.

        Raises SessionNotFound, KeyUnavailable, Erased.
        """
        ids.check_id("user_id", user_id)
        stream = ids.StreamId(user_id, ids.check_session_id(session_id), ids.MAIN)
        log, now = self.writer.log, self.writer.clock()
        return log.rewrite(stream, _Unchanged(self.writer, user_id), now=now)

    @recorded("key_status", "figures")
    def status(self) -> dict[str, Any]:
        """How many keys there are, of which kind, and how many should be replaced.

        stale: under an older master key; ``rotate_master`` wraps them anew.
        retired: of before a rewriting that was cut off; ``reredact`` destroys them.
        """
        return self.writer.log.erasures.key_status()


@dataclass(frozen=True, slots=True)
class _Unchanged:
    """A Rewriting that replaces nothing but the key."""

    writer: Writer
    user_id: str

    def again(self, envelope: Envelope) -> Recordable | None:  # noqa: ARG002  # the port's
        return None

    def state(self, state: SessionState) -> SessionState:
        return state

    def record(self, event: RedactionApplied) -> Recordable:
        rules = self.writer.redactor.rule_set
        event = event.model_copy(update={"rules": rules})
        return with_room(self.writer, Draft(event), self.user_id)
