"""Erasing, step by step: marked, unreadable, deleted, certified, and looked for."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from refold.domain.canonical import repaired
from refold.domain.certificate import FORMAT, SALT, Signed, subject, timestamp
from refold.domain.erasure import Erasures, Job, Stage, Whose
from refold.domain.errors import (
    Erased,
    InvalidConfiguration,
    SessionNotFound,
    StoreUnavailable,
)
from refold.domain.ids import MAIN, USER_SESSION, StreamId
from refold.domain.retention import LONGEST
from refold.store.rechecking import with_forks
from refold.store.writing import Writer

_TRIES: Final = 3
_NAMES: Final = 20  # of sessions that are looked for in files, beside the user
_TELLING: Final = 6
_HIDDEN: Final = "[REDACTED:USER_ID]"
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
Progress = Callable[[str, int, int], None]


class Erasure(NamedTuple):
    """What came of an erasure.

    certificate: the signed statement; None where nothing was left to sign.
    salt:        in hex: with it the certificate can be shown to be this user's.  It is
                 handed over here, once, and kept nowhere.
    already:     it was erased before; only what a cut off run left was done.
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


class ErasurePlan(NamedTuple):
    """What an erasure would delete, and what forbids it."""

    sessions: list[str]
    counts: dict[str, int]
    holds: list[str]


@dataclass(frozen=True, slots=True)
class Ask:
    """Who asks for what to be erased, and how."""

    whose: Whose
    reason: str
    operator: str
    grace: timedelta | None = None
    key_backups: timedelta | None = None
    vacuum: bool = False

    def __post_init__(self) -> None:
        for name in ("grace", "key_backups"):
            span = getattr(self, name)
            if span is not None and not timedelta(0) <= span <= LONGEST:
                raise InvalidConfiguration(f"{name} must be from 0 to 999999 days")


@dataclass(frozen=True, slots=True)
class Eraser:
    """Erases in the store of a writer."""

    writer: Writer
    progress: Progress | None = None

    @property
    def erasures(self) -> Erasures:
        return self.writer.log.erasures

    def plan(self, whose: Whose) -> ErasurePlan:
        """What would be deleted; nothing is changed."""
        whose = self._with_forks(whose)
        found = self.writer.log.sessions(whose.user_id)
        names = [i.session_id for i in found if i.session_id in (whose.sessions or ())]
        if whose.sessions is None:
            names = [info.session_id for info in found]
        holds = [hold.name for hold in self.erasures.holds(whose.user_id)]
        return ErasurePlan(names, self.erasures.left(whose), holds)

    def erase(self, ask: Ask) -> Erasure:
        """Do all of it, or what is left of it."""
        job = self._under_way(ask.whose)
        if job is None:
            try:
                self._refuse_erased(ask.whose)
            except Erased:
                # A backup of the database may have come back since.
                if not any(self.erasures.left(ask.whose).values()):
                    return self._erased_before(ask)
            job = self._begun(ask)
        elif job.stage == "held" and ask.grace is None:
            job = job.at("held", due_at=None)
        return self.run(job, vacuum=ask.vacuum, at_once=ask.grace is None)

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
            stream = StreamId(whose.user_id, name, MAIN)
            if self.writer.log.head(stream).seq:
                continue
            # What lost its head is not listed any more, and can be erased all the same.
            if not any(self.erasures.left(Whose(whose.user_id, (name,))).values()):
                raise SessionNotFound(whose.user_id, name)

    def _erased_before(self, ask: Ask) -> Erasure:
        """Nothing is left to do but to clean up behind a run that was cut off."""
        signed = self.erasures.certificates(ask.whose.user_id)
        acts = [one for one in signed if one.statement["act"] == "erased"]
        whole = ask.whose.sessions is None
        last = acts[-1] if acts and whole else None
        return self._searched(ask.whose, Erasure(last, already=True), [], ask.vacuum)

    def _begun(self, ask: Ask) -> Job:
        return self.erasures.begin(self.asked(ask, self._with_forks(ask.whose)))

    def asked(self, ask: Ask, whose: Whose) -> Job:
        """The job of erasing ``whose``; nothing is kept of it yet."""
        now = self.writer.clock()
        facts: dict[str, Any] = {
            "reason": self.redacted(ask.reason, whose),
            "operator": self.redacted(ask.operator, whose),
            "requested_at": timestamp(now),
            "key_backups_until": _until(now, ask.key_backups),
            "tree_before": self.erasures.tree_head(),
        }
        due_at = None if ask.grace is None else now + _microseconds(ask.grace)
        return self.erasures.new_job(whose, due_at=due_at, facts=facts)

    def _with_forks(self, whose: Whose) -> Whose:
        """The sessions, and those forked from them, which read their events."""
        if whose.sessions is None:
            return whose
        user_id, names = whose.user_id, whose.sessions
        infos = [i for i in self.writer.log.sessions(user_id) if i.status != "erased"]
        found = with_forks(self.writer, infos, user_id, names)
        return whose._replace(sessions=tuple(sorted(found)))

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
        later = job.due_at is not None and job.due_at > now and not at_once
        if not job.past("shredded"):
            job = self._marked(job)
            self._forgotten(job)
            if later:
                return self._held(job, now)
            keys = self.erasures.destroy_keys(job, now=now)
            moment = timestamp(self.writer.clock())
            job = self._to(job, "shredded", keys=keys, unreadable_at=moment)
        if not job.past("counted"):
            job = self._counted(job)
        names = list(job.facts.get("names", ()))
        self._deleted(job)
        self._forgotten(job)
        erasure = self._certified(self._to(job, "deleted"))
        return self._searched(job.whose, erasure, names, vacuum)

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
            return job
        wider = whose._replace(sessions=tuple(sorted(names)))
        return self._marked(self.erasures.widen(job, wider) or job)

    def _forgotten(self, job: Job) -> None:
        """What was learned from sessions is in what is kept of the user as a whole.

        Dropped once they are marked, and again at the end: who made it of them
        meanwhile looks afterwards whether they are there, and may have been killed.
        """
        if job.whose.sessions is not None:
            self.writer.log.drop_views(job.whose.user_id, USER_SESSION)

    def _held(self, job: Job, now: int) -> Erasure:
        if job.stage == "begun":
            keys = self.erasures.hold_keys(job, now=now)
            self._to(job, "held", keys=keys)
        return Erasure(due_at=job.due_at)

    def _to(self, job: Job, stage: Stage, **facts: Any) -> Job:
        """Keep how far it is, unless others took it further."""
        kept = self.erasures.advance(job.at(stage, **facts), job.stage)
        return job.at(stage, **facts) if kept is None else kept

    def _counted(self, job: Job) -> Job:
        remains = self.erasures.remains(job.whose)
        whole = job.whose.sessions is None
        infos = self.writer.log.sessions(job.whose.user_id) if whole else []
        names = [info.session_id for info in infos] or list(job.whose.sessions or ())
        return self._to(
            job,
            "counted",
            counts=remains.counts,
            leaves={"count": remains.leaves, "root": remains.root.hex()},
            sessions=len(names),
            names=names[:_NAMES],
        )

    def _deleted(self, job: Job) -> None:
        """Delete until a search finds nothing: what was under way may come late."""
        totals = job.facts.get("counts", {})
        for _ in range(_TRIES):
            done: dict[str, int] = {}
            for table, number in self.erasures.delete(job):
                done[table] = done.get(table, 0) + number
                if self.progress is not None:
                    self.progress(table, done[table], int(totals.get(table, 0)))
            if not any(self.erasures.left(job.whose).values()):
                return
        raise StoreUnavailable(
            "rows of what is erased appear again and again",
            remedy="close what writes them, and run `refold erase --due`",
        )

    def _certified(self, job: Job) -> Erasure:
        now, salt = self.writer.clock(), os.urandom(SALT)
        user_id = job.whose.user_id
        statement = {
            **self.statement("erased", job.job_id, job.whose, salt),
            "sessions": job.facts["sessions"],
            "requested_at": job.facts["requested_at"],
            "unreadable_at": job.facts["unreadable_at"],
            "completed_at": timestamp(now),
            "reason": job.facts["reason"],
            "operator": job.facts["operator"],
            "counts": job.facts["counts"],
            "keys": job.facts["keys"],
            "leaves": job.facts["leaves"],
            "tree": {
                "before": job.facts["tree_before"],
                "after": self.erasures.tree_head(),
                "leaves": self.erasures.tree_leaves(job),
            },
            "key_backups_until": job.facts["key_backups_until"],
            "rows_left": self.erasures.left(job.whose),
        }
        signed = self.erasures.certify(job, user_id, statement, now=now)
        if signed is None:
            return Erasure(already=True)
        return Erasure(signed, salt.hex())

    def statement(
        self, act: str, certificate_id: str, whose: Whose, salt: bytes
    ) -> dict[str, Any]:
        """What every certificate says."""
        user_id, sessions = whose
        return {
            "format": FORMAT,
            "certificate_id": certificate_id,
            "act": act,
            "scope": "user" if sessions is None else "session",
            "subject": subject(salt, user_id, sessions),
            "store": self.erasures.facts(),
            "refold": import_module("refold").__version__,
        }

    def _searched(
        self, whose: Whose, erasure: Erasure, names: list[str], vacuum: bool
    ) -> Erasure:
        """Overwrite what was deleted, and look for it in every table and file."""
        names = [whose.user_id, *sorted({*names, *(whose.sessions or ())})]
        cleaned = self.erasures.clean(vacuum=vacuum)
        files = self.erasures.found_in_files(names)
        if any(files["files"].values()) and not cleaned["vacuum"]:
            # Bytes that were freed before cells were overwritten: all is written anew.
            cleaned = self.erasures.clean(vacuum=True)
            files = self.erasures.found_in_files(names)
        left = self.erasures.left(whose)
        return erasure._replace(left=left, cleaned=cleaned, files=files)

    def restored(self, job: Job) -> Signed | None:
        """Undo an erasure that is held back, and say so."""
        kept = job if job.stage == "restoring" else self._to(job, "restoring")
        if kept.stage != "restoring":
            return None
        self.erasures.restore(kept)
        now, user_id = self.writer.clock(), kept.whose.user_id
        statement = {
            **self.statement("restored", kept.job_id, kept.whose, os.urandom(SALT)),
            "requested_at": kept.facts["requested_at"],
            "completed_at": timestamp(now),
            "reason": kept.facts.get("restored_for", ""),
            "operator": kept.facts.get("restored_by", ""),
        }
        return self.erasures.certify(kept, user_id, statement, now=now)


def _same(known: Whose, asked: Whose) -> bool:
    if known.sessions is None or asked.sessions is None:
        return known.sessions is asked.sessions
    return set(asked.sessions) <= set(known.sessions)


def _until(now: int, span: timedelta | None) -> str | None:
    return None if span is None else timestamp(now + _microseconds(span))


def _microseconds(span: timedelta) -> int:
    return span // timedelta(microseconds=1)
