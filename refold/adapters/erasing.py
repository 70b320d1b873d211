"""Erasing over a recorder and a key ring: each step, and the certificate of all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import uuid4

from refold.adapters import rotating
from refold.adapters.audit.names import forget, to_forget
from refold.adapters.auditing import PAGE
from refold.adapters.blobs import Blobs
from refold.adapters.erasing_rows import CertificateRow, ErasingRows, Subject
from refold.adapters.keys import KeyRing, user_context
from refold.adapters.master import SIZE
from refold.adapters.recorder import Recorder
from refold.adapters.sealing import SealingMapper, cut_from
from refold.domain.canonical import canonical
from refold.domain.certificate import Signed, message
from refold.domain.erasure import Job, LegalHold, Remains, Stage, Whose
from refold.domain.errors import (
    CorruptEvent,
    Erased,
    KeyUnavailable,
    NotErased,
    RefoldError,
)
from refold.domain.events import JsonObject
from refold.domain.ids import StreamId
from refold.domain.merkle import root_of

_THERE: Final = ("live", "frozen")


@dataclass(frozen=True, slots=True)
class SealedErasures:
    """The Erasures of a store."""

    recorder: Recorder
    keys: KeyRing

    @property
    def _rows(self) -> ErasingRows:
        return self.recorder.erasing()

    def begin(self, job: Job) -> Job:
        """Keep the record; the erased subjects of sessions are there from now on."""
        self._own_blobs(job.whose)
        return self._rows.begin(job, self._subjects(job, ended=False))

    def _own_blobs(self, whose: Whose) -> None:
        """Find out whose the blobs of before schema 5 are, while there are keys to."""
        if whose.sessions is None or not self._rows.unowned_blobs(whose.user_id):
            return
        for name in whose.sessions:
            main = StreamId(whose.user_id, name)
            blobs = Blobs(self.recorder, self.keys, main)
            cut = set(self._cut(main))
            addresses = sorted(blobs.address(sha256) for sha256 in cut)
            self._rows.own_blobs(whose.user_id, name, addresses)

    def _cut(self, main: StreamId) -> Iterator[str]:
        """The digests of the blobs of a session, as far as it can be read."""
        mapper = SealingMapper(self.keys)
        for name in self.recorder.streams(main.user_id, main.session_id):
            stream, after = main._replace(stream=name), 0
            while rows := self.recorder.rows(stream, after=after, limit=PAGE):
                for row in rows:
                    with suppress(CorruptEvent, KeyUnavailable):
                        yield from cut_from(mapper.open(row))
                after = rows[-1].seq

    def jobs(self, user_id: str | None = None) -> list[Job]:
        """Erasures that are not done."""
        return self._rows.jobs(None if user_id is None else self.keys.user_ref(user_id))

    def new_job(self, whose: Whose, *, due_at: int | None, facts: JsonObject) -> Job:
        """A job that nothing was done of yet."""
        user_ref = self.keys.user_ref(whose.user_id)
        facts = {**facts, "audit": to_forget(self.keys, whose)}
        return Job(str(uuid4()), user_ref, whose, "begun", due_at, facts)

    def mark(self, job: Job) -> None:
        """Mark all heads, durably: keys are destroyed on the strength of that."""
        self._rows.mark(job.whose)
        self.recorder.flush()
        self._forget(job.whose)

    def hold_keys(self, job: Job, *, now: int) -> int:
        """Put the keys aside."""
        held = self.keys.store.hold(job.user_ref, self._refs(job.whose), now)
        self._seen(job.whose)
        return held

    def destroy_keys(self, job: Job, *, now: int) -> int:
        """Destroy the keys for good."""
        gone = self.keys.store.destroy(job.user_ref, self._refs(job.whose), now)
        self._seen(job.whose)
        return gone

    def _seen(self, whose: Whose) -> None:
        """Write down how new the key store is: an older one is not taken any more."""
        self._forget(whose)
        self._rows.saw_generation(self.keys.store.generation())

    def _forget(self, whose: Whose) -> None:
        self.keys.forget(whose.user_id)

    def advance(self, job: Job, before: Stage) -> Job | None:
        """Keep how far it is, or learn how far others took it; None if they ended."""
        return self._rows.advance(job, before)

    def widen(self, job: Job, whose: Whose) -> Job | None:
        """Take more sessions into the job, known by their hashes from now on."""
        facts = {**job.facts, "audit": to_forget(self.keys, whose)}
        wider = replace(job, whose=whose, facts=facts)
        for subject in self._subjects(wider, ended=False):
            self._rows.set_subject(subject)
        return self._rows.advance(wider, job.stage)

    def remains(self, whose: Whose) -> Remains:
        """What there is to delete; streams that lost their heads are counted too."""
        self._rows.adopt(whose)
        return self._rows.remains(whose)

    def delete(self, job: Job) -> Iterator[tuple[str, int]]:
        """Delete all rows."""
        forget(self.recorder.audit_rows, job.facts.get("audit"))
        return self._rows.delete(job.whose, job.job_id)

    def certify(
        self, job: Job | None, user_id: str, statement: JsonObject, *, now: int
    ) -> Signed | None:
        """Sign and keep the statement, and end the job."""
        if job is not None and job.past("shredded"):  # what others noted meanwhile
            forget(self.recorder.audit_rows, job.facts.get("audit"))
        signer = self.keys.signer()
        signature = signer.sign(message(statement))
        signed = Signed(dict(statement), signer.key_id, signer.public_key, signature)
        row = CertificateRow(
            str(statement["certificate_id"]),
            self.keys.user_ref(user_id),
            now,
            canonical(signed.to_json()).decode(),
        )
        erased = job is not None and job.past("shredded")
        subjects = self._subjects(job, ended=True) if job and erased else []
        ended = self._rows.end(job.job_id if job else None, subjects, row)
        self.recorder.flush()
        return signed if ended else None

    def restore(self, job: Job) -> None:
        """Undo what a job that is held back did, all but its record."""
        self.keys.store.release(job.user_ref, self._refs(job.whose))
        self._seen(job.whose)
        self._rows.unmark(job.whose, self._subjects(job, ended=False))

    def readmit(self, user_id: str, *, now: int) -> int:
        """Give an erased user a new key, under the next epoch."""
        ref = self.keys.user_ref(user_id)
        entry = self.keys.store.get_user(ref)
        known = self._rows.subject(ref)
        if entry is None or self._rows.jobs(ref):
            raise NotErased("there is no erasure of that user, or none that is done")
        epoch = entry.epoch
        if entry.wrapped is None:
            epoch += 1
            context = user_context(ref, epoch)
            wrapped = self.keys.master.wrap(os.urandom(SIZE), context)
            self.keys.store.readmit(ref, wrapped, now, epoch=epoch)
        elif known is None or (known.epoch == epoch and known.status in _THERE):
            raise NotErased("that user was not erased")
        self._seen(Whose(user_id))
        self._rows.set_subject(Subject(ref, ref, "live", epoch))
        return epoch

    def left(self, whose: Whose) -> dict[str, int]:
        """How many rows of every table are still there."""
        return self._rows.left(whose)

    def clean(self, *, vacuum: bool) -> dict[str, Any]:
        """Overwrite what was deleted."""
        return self._rows.clean(vacuum=vacuum)

    def found_in_files(self, names: Sequence[str]) -> dict[str, Any]:
        """Search the files of the database."""
        return self._rows.found_in_files(names)

    def facts(self) -> JsonObject:
        """What a certificate says of the store."""
        return self._rows.facts()

    def tree_head(self) -> JsonObject | None:
        """The newest signed tree head."""
        return self._rows.tree_head()

    def tree_leaves(self, job: Job) -> JsonObject:
        """Count and root of the leaves that were the job's."""
        tree = self.recorder.tree
        leaves = [] if tree is None else tree.erased(job.job_id)
        return {"count": len(leaves), "root": root_of(leaves).hex()}

    def certificates(self, user_id: str | None = None) -> list[Signed]:
        """What was signed, the oldest first."""
        ref = None if user_id is None else self.keys.user_ref(user_id)
        rows = self._rows.certificates(ref)
        try:
            return [Signed.read(row.body) for row in rows]
        except ValueError:
            raise RefoldError(
                "a certificate is not what was signed: `refold verify` names it"
            ) from None

    def holds(self, user_id: str) -> list[LegalHold]:
        """The legal holds on a user."""
        return self._rows.holds(self.keys.user_ref(user_id))

    def hold(self, user_id: str, hold: LegalHold) -> bool:
        """Keep a legal hold."""
        return self._rows.hold(self.keys.user_ref(user_id), hold)

    def release(self, user_id: str, name: str) -> bool:
        """End a legal hold."""
        return self._rows.release(self.keys.user_ref(user_id), name)

    def refuse_erased(self, user_id: str) -> None:
        """Raises Erased if the user was erased, or is being erased."""
        entry = self.keys.store.get_user(self.keys.user_ref(user_id))
        if entry is not None and entry.wrapped is None:
            raise Erased("the user")

    def returned(self) -> list[str]:
        """Users who were erased and have sessions again."""
        store = self.keys.store
        known = {job.user_ref for job in self.jobs()}
        known |= {ref for ref, _ in store.held_users()}
        gone = {ref for ref, entry in rotating.users_of(store) if not entry.wrapped}
        users = {info.user_id for info in self.recorder.sessions(None, None)}
        return sorted(
            user for user in users if self.keys.user_ref(user) in gone - known
        )

    def public_key(self) -> bytes:
        """What certificates are checked with."""
        return self.keys.signer().public_key

    def rotate_master(self) -> int:
        """Wrap all that the newest master key did not wrap."""
        done = rotating.rotate_master(self.keys)
        self._rows.saw_generation(self.keys.store.generation())
        return done

    def rotate_user(self, user_id: str) -> int:
        """Give a user another key."""
        done = rotating.rotate_user(self.keys, user_id)
        self._rows.saw_generation(self.keys.store.generation())
        return done

    def key_status(self) -> dict[str, Any]:
        """How many keys there are."""
        return rotating.status(self.keys)

    def _refs(self, whose: Whose) -> list[str] | None:
        if whose.sessions is None:
            return None
        return [self.keys.session_ref(whose.user_id, name) for name in whose.sessions]

    def _subjects(self, job: Job, *, ended: bool) -> list[Subject]:
        """What the job is of, as the database knows it: nothing of it begins again."""
        user, refs = job.user_ref, self._refs(job.whose)
        entry = self.keys.store.get_user(user)
        epoch = entry.epoch if entry else 1
        status: Any = "erased" if ended else "erasing"
        if refs is None:
            return [Subject(user, user, status, epoch)]
        return [Subject(ref, user, status, epoch) for ref in refs]
