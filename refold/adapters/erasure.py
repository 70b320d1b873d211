"""Erasing, retention and repairs: rows and keys of each step, in one place."""

from __future__ import annotations

import os
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any, Final, Literal
from uuid import uuid4

import orjson
import sqlalchemy as sa
from cryptography.exceptions import InvalidTag

from refold.adapters.inventory import forget_files
from refold.adapters.keys import rotation
from refold.adapters.keys.master import SIZE
from refold.adapters.keys.ring import KeyRing, UserKey, seal, unseal, user_context
from refold.adapters.keys.store import UserEntry
from refold.adapters.rows import FROZEN, THAWED, HeadRow
from refold.adapters.sql.access_log import AccessTable, to_forget
from refold.adapters.sql.database import NOBODY
from refold.adapters.sql.recorder import Recorder, Subject, Subjects, SubjectStatus
from refold.adapters.sql.tables import FLOOR, of_stream, stream_of, within
from refold.adapters.sql.tree import Tree
from refold.adapters.streams import Blobs, EncryptedStreams, encrypted_head, user_key
from refold.domain import erasure, inventory
from refold.domain.canonical import canonical
from refold.domain.chain import leaf_hash, root_of
from refold.domain.erasure import (
    FREEZE,
    Accesses,
    ErasureJob,
    LegalHold,
    NewCertificate,
    Readmission,
    Signed,
    StoredExport,
    Stranded,
    Whose,
)
from refold.domain.errors import Erased, KeyUnavailable, NotErased, OnHold, RefoldError
from refold.domain.events import JsonObject
from refold.domain.ids import MAIN, StreamId
from refold.domain.inventory import Place
from refold.domain.ports import JUNK, PAGE, Head, Scanned, Scope, listed

_AT_ONCE: Final = 2_000  # rows of one transaction
_PAUSE: Final = 0.5  # of the time that a transaction took: others have the disk then
_SESSIONS: Final = 200  # whose hashes are read at once
_BLOBS: Final = 500
_SAID: Final = b"refold certificate"
_TRIES: Final = 3


class StoredErasureSteps:
    """The ErasureSteps of a store; each is a transaction, but for ``delete``."""

    def __init__(self, recorder: Recorder, keys: KeyRing) -> None:
        self._database, self._t = recorder.database, recorder.database.tables
        self._recorder, self._keys = recorder, keys
        self._subjects = Subjects(recorder.database)
        self._tree = Tree(recorder.database)
        self._accesses = AccessTable(recorder.database)

    @property
    def database(self) -> str:
        return self._database.what

    def new_job(
        self, whose: Whose, *, due_at: int | None, facts: JsonObject
    ) -> ErasureJob:
        user_ref = self._keys.user_ref(whose.user_id)
        facts = {**facts, "audit": to_forget(self._keys, whose)}
        return ErasureJob(str(uuid4()), user_ref, whose, "begun", due_at, facts)

    def begin(self, job: ErasureJob) -> ErasureJob:
        """Keep the record; the erased subjects of sessions are there from now on."""
        subjects = self.subjects(job, "erasing")
        return self._database.change(NOBODY, lambda c: self.begun(c, job, subjects))

    def begun(
        self, connection: sa.Connection, job: ErasureJob, subjects: Sequence[Subject]
    ) -> ErasureJob:
        """The job, kept with its subjects, or the one that is there for the same."""
        table = self._t.subjects
        # Who begins a session of the user has locked this row, and is waited for.
        locked = sa.update(table).where(table.c.ref == job.user_ref)
        connection.execute(locked.values(epoch=table.c.epoch))
        for subject in subjects:
            self._subjects.put(connection, subject)
        held = self._holds(connection, job.user_ref)
        if held:
            raise OnHold(held[0].name, held[0].reason)
        for other in self._jobs(connection, job.user_ref):
            if other.whose == job.whose:
                return other
        connection.execute(sa.insert(self._t.erasures).values(_row_of(job)))
        return job

    def subjects(
        self, job: ErasureJob, status: Literal["erasing", "erased"]
    ) -> list[Subject]:
        """What the job is of, as the database knows it: nothing of it begins again."""
        user, refs = job.user_ref, self._refs(job.whose)
        entry = self._keys.store.get_user(user)
        epoch = entry.epoch if entry else 1
        refs = [user] if refs is None else refs
        return [Subject(ref, user, status, epoch) for ref in refs]

    def _refs(self, whose: Whose) -> list[str] | None:
        if whose.sessions is None:
            return None
        return [self._keys.session_ref(whose.user_id, name) for name in whose.sessions]

    def jobs(self, user_id: str | None = None) -> list[ErasureJob]:
        ref = None if user_id is None else self._keys.user_ref(user_id)
        found = self._database.read(ref, self._under_way(ref))
        return [ErasureJob.load(*row) for row in found]

    def _jobs(self, connection: sa.Connection, user_ref: str) -> list[ErasureJob]:
        rows = connection.execute(self._under_way(user_ref))
        return [ErasureJob.load(*row) for row in rows]

    def _under_way(self, user_ref: str | None) -> Any:
        table = self._t.erasures
        columns = table.c.job_id, table.c.user_ref, table.c.stage
        query = sa.select(*columns, table.c.due_at, table.c.body)
        if user_ref is not None:
            query = query.where(table.c.user_ref == user_ref)
        return query.order_by(table.c.job_id)

    def stranded(self, user_id: str | None = None) -> list[Stranded]:
        jobs = self.jobs(user_id)
        if user_id is None and not self._has_lost_record(jobs):
            return []
        heads = self._t.heads.c
        query = sa.select(heads.user_id, heads.session_id).distinct()
        query = query.where(heads.status == "erased")
        query = query.order_by(heads.user_id, heads.session_id)
        if user_id is not None:
            query = query.where(heads.user_id == user_id)
        marked: dict[str, set[str]] = {}
        if user_id is not None:
            marked[user_id] = set()  # a user may have keys and no session
        for user, session in self._database.read(user_id, query):
            marked.setdefault(str(user), set()).add(str(session))
        stranded = []
        for user, names in marked.items():
            whose = self._not_covered(user, names, jobs)
            if whose is not None:
                stranded.append(Stranded(whose, self._has_keys(whose)))
        return stranded

    def _has_lost_record(self, jobs: Sequence[ErasureJob]) -> bool:
        """Whether a subject is being erased by none of these jobs."""
        covered = {
            subject.ref for job in jobs for subject in self.subjects(job, "erasing")
        }
        return any(
            subject.status == "erasing" and subject.ref not in covered
            for subject in self._subjects.changed()
        )

    def _not_covered(
        self, user_id: str, names: set[str], jobs: Sequence[ErasureJob]
    ) -> Whose | None:
        """What is marked of a user and is in none of these jobs."""
        for job in jobs:
            if job.whose.user_id != user_id:
                continue
            if job.whose.sessions is None:
                return None
            names = names - set(job.whose.sessions)
        subject = self._subjects.of(self._keys.user_ref(user_id))
        if subject is not None and subject.status == "erasing":
            return Whose(user_id)
        return Whose(user_id, tuple(sorted(names))) if names else None

    def _has_keys(self, whose: Whose) -> bool:
        """Whether keys of these are still there, in use or put aside."""
        store = self._keys.store
        user_ref = self._keys.user_ref(whose.user_id)
        refs = self._refs(whose)
        if store.aside(user_ref, refs):
            return True
        if refs is None:
            user = store.get_user(user_ref)
            return user is not None and user.wrapped is not None
        in_use = {place.session_ref for place in store.keys_of(user_ref)}
        return not in_use.isdisjoint(refs)

    def keep(self, job: ErasureJob) -> None:
        self._database.run(NOBODY, sa.insert(self._t.erasures).values(_row_of(job)))

    def advance(self, job: ErasureJob, before: erasure.Stage) -> ErasureJob | None:
        table = self._t.erasures
        here = table.c.job_id == job.job_id
        values = {"stage": job.stage, "due_at": job.due_at, "body": job.dump()}
        changed = sa.update(table).where(here, table.c.stage == before).values(values)

        def attempt(connection: sa.Connection) -> ErasureJob | None:
            if connection.execute(changed).rowcount:
                return job
            known = self._jobs(connection, job.user_ref)
            return next((one for one in known if one.job_id == job.job_id), None)

        return self._database.change(NOBODY, attempt)

    def widen(self, job: ErasureJob, whose: Whose) -> ErasureJob | None:
        """Take more sessions into the job, known by their hashes from now on."""
        facts = {**job.facts, "audit": to_forget(self._keys, whose)}
        wider = replace(job, whose=whose, facts=facts)
        for subject in self.subjects(wider, "erasing"):
            self._subjects.set(subject)
        return self.advance(wider, job.stage)

    def mark(self, job: ErasureJob) -> None:
        """Mark all heads, durably: keys are destroyed on the strength of that."""
        whose = job.whose
        self._database.change(whose.user_id, lambda c: self.marked(c, whose))
        self._recorder.flush()
        self._keys.forget(whose.user_id)

    def marked(self, connection: sa.Connection, whose: Whose) -> None:
        """Mark heads as erased, and remember what they were."""
        heads = self._t.heads
        mine = _of(heads, whose)
        marked = sa.update(heads).where(*mine, heads.c.status != "erased")
        marked = marked.values(before=heads.c.status, status="erased")
        _turn(connection, heads, mine, [marked], key_share=True)

    def hold_keys(self, job: ErasureJob, *, now: int) -> int:
        """Put the keys aside."""
        refs = self._refs(job.whose)
        with self._changing_keys() as allowed:
            held = self._keys.store.hold(job.user_ref, refs, now, allowed=allowed)
        self._seen(job.whose.user_id)
        return held

    def destroy_keys(self, job: ErasureJob, *, now: int) -> int:
        refs = self._refs(job.whose)
        with self._changing_keys() as allowed:
            gone = self._keys.store.destroy(job.user_ref, refs, now, allowed=allowed)
        self._seen(job.whose.user_id)
        return gone

    @contextmanager
    def _changing_keys(self) -> Iterator[Callable[[], None]]:
        """Change keys only while this thread has the leases that its writes need.

        Gives what is asked inside the transaction of the key store.  Raises LeaseLost.
        """
        file = self._keys.store.file
        if file is not None and file == getattr(self._database, "file", None):
            # One file has one writer: the key store keeps others from the leases.
            yield self._database.check_leases
            return
        with self._database.keeping_leases():
            yield lambda: None

    def _seen(self, user_id: str) -> None:
        """Write down how new the key store is: an older one is not taken any more."""
        self._keys.forget(user_id)
        self._saw_generation()

    def _saw_generation(self) -> None:
        generation = self._keys.store.generation()
        self._subjects.saw_generation(generation)
        self.remember("generation", b"%d" % generation)

    def ref_of(self, user_id: str) -> str:
        """The keyed hash that stands for the user."""
        return self._keys.user_ref(user_id)

    def remember(self, what: str, value: bytes) -> None:
        """Have the key store remember this of the database."""
        self._keys.store.remember(f"{self._tree.store_id} {what}", value)

    def _remember_certificate(self, certificate_id: str, user_ref: str) -> None:
        self.remember(f"certificate {certificate_id}", user_ref.encode())

    def recall(self, what: str) -> bytes | None:
        """What the key store remembers of that."""
        return self._keys.store.get_setting(f"{self._tree.store_id} {what}")

    def remembered(self) -> dict[str, bytes]:
        """What the key store remembers of this database."""
        return self._keys.store.remembered(f"{self._tree.store_id} ")

    def forget_remembered(self) -> None:
        """Accept the database as it is: the key store remembers what is there now."""
        self._keys.store.forget_names(f"{self._tree.store_id} ")
        for row in self.certificate_rows():
            self._remember_certificate(row.certificate_id, row.user_ref)
        self.remember("generation", b"%d" % self._subjects.key_generation())
        settings = self._t.settings.c
        query = sa.select(settings.value).where(settings.name == FLOOR)
        for (floor,) in self._database.read(NOBODY, query):
            if str(floor).isdecimal():
                self.remember(FLOOR, str(floor).encode())

    def restore(self, job: ErasureJob) -> None:
        with self._changing_keys() as allowed:
            self._keys.store.release(
                job.user_ref, self._refs(job.whose), allowed=allowed
            )
        self._seen(job.whose.user_id)
        heads, table = self._t.heads, self._t.subjects
        mine = _of(heads, job.whose)
        back = sa.update(heads).where(*mine, heads.c.before.is_not(None))
        subjects = self.subjects(job, "erasing")

        def attempt(connection: sa.Connection) -> None:
            connection.execute(back.values(status=heads.c.before, before=None))
            for subject in subjects:
                if subject.ref == subject.user_ref:
                    self._subjects.put(connection, subject._replace(status="live"))
                else:
                    connection.execute(
                        sa.delete(table).where(table.c.ref == subject.ref)
                    )

        self._database.change(job.whose.user_id, attempt)

    def remains(self, whose: Whose) -> erasure.Remains:
        """What there is to delete; streams that lost their heads are counted too."""
        self._adopt(whose)
        counts = self.left(whose)
        leaves = map(leaf_hash, self._hashes(whose))
        return erasure.Remains(counts, counts["events"], root_of(leaves))

    def _adopt(self, whose: Whose) -> None:
        """Give a marked head to streams that have none, so that they can be deleted."""
        events, heads = self._t.events, self._t.heads
        of_events, of_heads = (
            sa.select(*stream_of(table)).where(*_of(table, whose))
            for table in (events, heads)
        )
        lost = of_events.except_(of_heads)
        nothing = {"seq": 0, "hash": b"", "status": "erased", "state": b""}
        nothing |= {"key_check": b"", "tokens": 0, "created_at": 0, "updated_at": 0}
        found = self._database.read(whose.user_id, lost)
        rows = [StreamId(*row)._asdict() | nothing for row in found]
        if rows:
            self._database.run(whose.user_id, sa.insert(heads), rows)

    def _hashes(self, whose: Whose) -> Iterator[bytes]:
        """The hashes of all events, in the order of session, stream and seq."""
        events, heads = self._t.events.c, self._t.heads.c
        query = sa.select(heads.session_id).where(*_of(self._t.heads, whose)).distinct()
        found = self._database.read(whose.user_id, query)
        names = sorted(str(row[0]) for row in found)
        for start in range(0, len(names), _SESSIONS):
            some = Whose(whose.user_id, tuple(names[start : start + _SESSIONS]))
            columns = events.session_id, events.stream, events.seq, events.hash
            query = sa.select(*columns).where(*_of(self._t.events, some))
            for row in sorted(self._database.read(whose.user_id, query)):
                yield bytes(row[3])

    def left(self, whose: Whose) -> dict[str, int]:
        counts = {}
        for place in inventory.places("table", "delete rows"):
            table = self._table(place)
            query = sa.select(sa.func.count()).select_from(table)
            query = query.where(*_of(table, whose))
            ((number,),) = self._database.read(whose.user_id, query)
            counts[place.name] = int(number)
        return dict(sorted(counts.items()))

    def _table(self, place: Place) -> sa.Table:
        """The table that the inventory registers as this place."""
        table: sa.Table = getattr(self._t, place.name)
        return table

    def delete(self, job: ErasureJob) -> Iterator[tuple[str, int]]:
        """Walk the tables of the inventory in order, and do in each what it says there.

        Rows are deleted in bounded transactions.
        """
        self._remember_floor(job)
        for place in inventory.places("table"):
            match place.removal:
                case "delete rows":
                    table = self._table(place)
                    for number in self._delete_rows(table, job.whose):
                        yield place.name, number
                case "take names out":
                    self._take_names_out()[place.name](job)
                case "mark leaves":
                    self._mark_leaves(job)
                case "end with the erasure" | "leave":
                    pass  # ``_end`` does the former
                case _:
                    raise NotImplementedError(f"{place.removal} in a table")

    def _mark_leaves(self, job: ErasureJob) -> None:
        """Have the tree's leaves name the certificate, and no stream any more."""
        user_id, sessions = job.whose
        for session in (None,) if sessions is None else sessions:
            self._tree.forget(user_id, session, job.job_id)

    def _delete_rows(self, table: sa.Table, whose: Whose) -> Iterator[int]:
        """Delete the rows, some at a time, and leave the disk to others in between."""
        place: Any = sa.literal_column(self._database.place)
        mine = sa.and_(*_of(table, whose))
        some = sa.select(place).select_from(table).where(mine).limit(_AT_ONCE)
        doomed = sa.delete(table).where(self._database.among(some, mine))
        started = time.monotonic()
        while number := self._database.run_among(whose.user_id, doomed):
            yield number
            time.sleep((time.monotonic() - started) * _PAUSE)
            started = time.monotonic()

    def _remember_floor(self, job: ErasureJob) -> None:
        """Have the key store remember the highest position that this job deletes.

        It does so before the first row is deleted, and once: when a job is resumed, the
        highest row may be gone.  `refold verify` compares the setting `floor` with it.
        """
        what = f"{FLOOR} {job.job_id}"
        if not self.has_floor or self.recall(what) is not None:
            return
        events = self._t.events
        query = sa.select(sa.func.max(events.c.position)).where(*_of(events, job.whose))
        ((highest,),) = self._database.read(job.whose.user_id, query)
        if highest is not None:
            self.remember(what, b"%d" % highest)

    @property
    def has_floor(self) -> bool:
        """Whether the database has the setting ``floor``: PostgreSQL has a sequence."""
        return self._database.name == "sqlite"

    def _take_names_out(self) -> Mapping[str, Callable[[ErasureJob], None]]:
        """By the name of a table, what takes the names out of its rows."""
        return {"audit": self._unname_accesses}

    def _unname_accesses(self, job: ErasureJob) -> None:
        """Take out of the access log what names who is erased."""
        named = job.facts.get("audit")
        if named:
            self._accesses.forget(named["user"], named["sessions"])

    def certify(
        self,
        job: ErasureJob,
        statement: JsonObject,
        *,
        now: int,
        said: JsonObject | None = None,
    ) -> Signed | None:
        subjects: list[Subject] = []
        if job.past("shredded"):
            # Others may have recorded accesses since ``delete``.
            for place in inventory.places("table", "take names out"):
                self._take_names_out()[place.name](job)
            subjects = self.subjects(job, "erased")
        user_id = job.whose.user_id
        certificate = self.sign(user_id, statement, now=now, said=said)
        end = partial(self._end, job=job, subjects=subjects)
        if not self.change_certified(NOBODY, end, certificate):
            return None
        return certificate.signed

    def sign(
        self,
        user_id: str,
        statement: JsonObject,
        *,
        now: int,
        said: JsonObject | None = None,
        readmission: Readmission | None = None,
    ) -> NewCertificate:
        user_ref = self._keys.user_ref(user_id)
        if said is not None:
            if readmission is None:
                key = user_key(self._recorder, self._keys, user_id, now=now)
            else:
                entry = UserEntry(readmission.epoch, readmission.wrapped)
                key = self._keys.unwrapped(user_ref, entry)
            # Readable as long as the user has this key.
            words = seal(key.cipher, canonical(said), _SAID)
            statement = {**statement, "sealed": b64encode(words).decode()}
        signer = self._keys.signer()
        signature = signer.sign(erasure.message(statement))
        signed = Signed(
            dict(statement), signer.key_id, signer.public_key, signature, said
        )
        return NewCertificate(signed, user_ref, now)

    def change_certified(
        self,
        user_id: str,
        act: Callable[[sa.Connection], bool],
        certificate: NewCertificate,
    ) -> bool:
        """Do ``act`` and store its certificate, both in one transaction.

        Returns False, and stores nothing, if ``act`` does.
        """
        # The words are stored only as the statement has them: encrypted.
        stored = certificate.signed._replace(said=None)
        row = {
            "certificate_id": certificate.certificate_id,
            "user_ref": certificate.user_ref,
            "created_at": certificate.created_at,
            "body": canonical(stored.to_json()).decode(),
        }

        def attempt(connection: sa.Connection) -> bool:
            if not act(connection):
                return False
            connection.execute(sa.insert(self._t.certificates).values(row))
            return True

        acted = self._database.change(user_id, attempt)
        self._recorder.flush()
        if acted:
            self._remember_certificate(certificate.certificate_id, certificate.user_ref)
        return acted

    def said(self, row: Any) -> JsonObject:
        """The words of a certificate; none of them if they cannot be read any more."""
        try:
            return self._opened(row).said or {}
        except (KeyUnavailable, *JUNK):
            return {}

    def _opened(self, row: Any) -> Signed:
        signed = Signed.read(row.body)
        key = self._keys.user_of(row.user_ref) if "sealed" in signed.statement else None
        if key is None:
            return signed
        try:
            said = unseal(key.cipher, b64decode(signed.statement["sealed"]), _SAID)
        except InvalidTag:
            return signed  # of an epoch before
        return signed._replace(said=orjson.loads(said))

    def _end(
        self, connection: sa.Connection, job: ErasureJob, subjects: list[Subject]
    ) -> bool:
        """Set the subjects and drop the job; False if the job is gone."""
        table = self._t.erasures
        gone = sa.delete(table).where(table.c.job_id == job.job_id)
        if not connection.execute(gone).rowcount:
            return False
        for subject in subjects:
            self._subjects.put(connection, subject)
            # A user who is erased as a whole is named by no other job either, and by no
            # hold that others set while the erasure was under way.
            for place in inventory.places("table", "end with the erasure"):
                others = self._table(place)
                of_subject = others.c.user_ref == subject.ref
                connection.execute(sa.delete(others).where(of_subject))
        return True

    def certificates(self, user_id: str | None = None) -> list[Signed]:
        try:
            return [self._opened(row) for row in self.certificate_rows(user_id)]
        except ValueError:
            raise RefoldError(
                "a certificate is not what was signed: `refold verify` names it"
            ) from None

    def certificate_rows(self, user_id: str | None = None) -> Sequence[Any]:
        """The rows of certificates as they are, whatever is in them."""
        table, ref = self._t.certificates, None
        query = sa.select(table).order_by(table.c.created_at, table.c.certificate_id)
        if user_id is not None:
            ref = self._keys.user_ref(user_id)
            query = query.where(table.c.user_ref == ref)
        return self._database.read(ref, query)

    def prepare_readmission(self, user_id: str) -> Readmission:
        ref = self._keys.user_ref(user_id)
        entry, subject = self._keys.store.get_user(ref), self._subjects.of(ref)
        if entry is None or self.jobs(user_id):
            raise NotErased("that user has no completed erasure")
        if entry.wrapped is None:
            epoch = entry.epoch + 1
            context = user_context(ref, epoch)
            wrapped = self._keys.master.wrap(os.urandom(SIZE), context)
            return Readmission(ref, epoch, wrapped, added=False)
        if _is_readmitted(subject, entry.epoch):
            raise NotErased("that user was not erased")
        return Readmission(ref, entry.epoch, entry.wrapped, added=True)

    def readmit(
        self, user_id: str, readmission: Readmission, certificate: NewCertificate
    ) -> None:
        ref, epoch, wrapped, added = readmission
        now = certificate.created_at
        if not added and not self._keys.store.readmit(ref, wrapped, now, epoch=epoch):
            raise NotErased("that user was readmitted by another process")
        self._seen(user_id)

        def attempt(connection: sa.Connection) -> bool:
            if _is_readmitted(self._subjects.locked(connection, ref), epoch):
                return False
            self._subjects.put(connection, Subject(ref, ref, "live", epoch))
            return True

        if not self.change_certified(NOBODY, attempt, certificate):
            raise NotErased("that user was readmitted by another process")

    def refuse_erased(self, user_id: str) -> None:
        """Raises Erased if the user was erased, or is being erased."""
        entry = self._keys.store.get_user(self._keys.user_ref(user_id))
        if entry is not None and entry.wrapped is None:
            raise Erased("the user")

    def returned(self) -> list[str]:
        store = self._keys.store
        known = {job.user_ref for job in self.jobs()}
        known |= {ref for ref, _ in store.held_users()}
        gone = {ref for ref, entry in rotation.users_of(store) if not entry.wrapped}
        back, every = gone - known, listed(self._recorder.sessions)
        users = groupby(every if back else (), lambda info: info.user_id)
        return [user for user, _ in users if self._keys.user_ref(user) in back]

    def holds(self, user_id: str) -> list[LegalHold]:
        """The legal holds on a user."""
        ref = self._keys.user_ref(user_id)
        return [LegalHold(*row) for row in self._database.read(ref, self._held(ref))]

    def _holds(self, connection: sa.Connection, user_ref: str) -> list[LegalHold]:
        return [LegalHold(*row) for row in connection.execute(self._held(user_ref))]

    def _held(self, user_ref: str) -> Any:
        table = self._t.holds
        query = sa.select(table.c.name, table.c.reason, table.c.created_at)
        return query.where(table.c.user_ref == user_ref).order_by(table.c.name)

    def hold(self, user_id: str, hold: LegalHold, certificate: NewCertificate) -> bool:
        ref = self._keys.user_ref(user_id)

        def attempt(connection: sa.Connection) -> bool:
            # The subject is locked, so that an erasure begins before or after.
            self._subjects.locked(connection, ref)
            if any(one.name == hold.name for one in self._holds(connection, ref)):
                return False
            row = {"user_ref": ref, **hold._asdict()}
            connection.execute(sa.insert(self._t.holds).values(row))
            return True

        return self.change_certified(NOBODY, attempt, certificate)

    def release(self, user_id: str, name: str, certificate: NewCertificate) -> bool:
        """End a legal hold."""
        table, ref = self._t.holds, self._keys.user_ref(user_id)
        gone = sa.delete(table).where(table.c.user_ref == ref, table.c.name == name)

        def attempt(connection: sa.Connection) -> bool:
            return bool(connection.execute(gone).rowcount)

        return self.change_certified(NOBODY, attempt, certificate)

    def record_export(self, user_id: str, export: StoredExport) -> None:
        key = self._keys.user(user_id, now=None)
        sessions: Any = None
        if export.sessions is not None:
            sessions = list(export.sessions)
        facts: JsonObject = {
            "format": export.form,
            "location": export.location,
            "machine": export.machine,
            "sessions": sessions,
        }
        context = _export_context(export.export_id)
        row = {
            "user_id": user_id,
            "export_id": export.export_id,
            "created_at": export.made_at,
            "body": seal(key.cipher, canonical(facts), context),
        }
        insert = partial(self._insert_export, row)
        # The session that one try waits for may be erased then, and another one not.
        for _ in range(_TRIES):
            if self._database.change(user_id, insert):
                self._recorder.flush()
                return
        raise Erased("the user")

    def _insert_export(self, row: Mapping[str, Any], connection: sa.Connection) -> bool:
        """Insert the row, unless the sessions of the user are erased."""
        heads = self._t.heads.c
        # An erasure that marks the locked session waits, and then finds the row.
        alive = sa.select(heads.session_id).where(
            heads.user_id == row["user_id"],
            heads.stream == MAIN,
            heads.status != "erased",
        )
        alive = alive.order_by(heads.session_id).limit(1).with_for_update(read=True)
        if connection.execute(alive).first() is None:
            return False
        connection.execute(sa.insert(self._t.exports).values(row))
        return True

    def drop_export(self, user_id: str, export_id: str) -> None:
        table = self._t.exports
        mine = table.c.user_id == user_id, table.c.export_id == export_id
        self._database.run(user_id, sa.delete(table).where(*mine))

    def exports(self, user_id: str) -> list[StoredExport]:
        table = self._t.exports
        query = sa.select(table).where(table.c.user_id == user_id)
        query = query.order_by(table.c.created_at, table.c.export_id)
        rows = self._database.read(user_id, query)
        if not rows:
            return []
        key = self._keys.user(user_id, now=None)
        return [_opened_export(row, key) for row in rows]

    def forget_files(self, whose: Whose) -> dict[str, list[str]]:
        return {} if whose.sessions is not None else forget_files(whose.user_id)

    def clean(self, *, vacuum: bool) -> dict[str, Any]:
        with self._database.errors:
            cleaned = self._database.clean(vacuum=vacuum)
        if vacuum and cleaned["vacuum"]:
            left = [*cleaned.get("statistics_left", ()), *self._keys.store.clean()]
            if left:
                cleaned["statistics_left"] = left
        return cleaned

    def found_in_files(self, names: Sequence[str]) -> dict[str, Any]:
        """Look in the files for the names that nobody else's sessions have."""
        if not self._database.searchable:
            return {"files": {}, "names": 0, "too_short": 0}
        heads = self._t.heads.c
        query = sa.select(heads.session_id).where(heads.session_id.in_(list(names)))
        others = {row[0] for row in self._database.read(None, query.distinct())}
        unique = [name for name in names if name not in others]
        # Rows and indexes contain user, session, and stream one after the other.  By
        # these, names are found that are too short to be searched for alone.
        user_id, *sessions = names
        pair = heads.user_id + heads.session_id
        pairs = {f"{user_id}{session_id}" for session_id in sessions}
        query = sa.select(pair).where(pair.in_(sorted(pairs))).distinct()
        # Pairs that the rows of another user form as well prove nothing.
        pairs -= {str(row[0]) for row in self._database.read(None, query)}
        in_rows = [f"{pair}{MAIN}" for pair in sorted(pairs)]
        return self._database.found_in_files([*unique, *in_rows])

    def facts(self) -> JsonObject:
        settings = self._t.settings.c
        query = sa.select(settings.name, settings.value)
        values = {row.name: row.value for row in self._database.read(NOBODY, query)}
        schema, store_id = values.get("schema_version", 0), values.get("store_id", "")
        engine = self._database.name
        return {"store_id": store_id, "engine": engine, "schema": int(schema)}

    def tree_head(self) -> JsonObject | None:
        newest = self._tree.newest()
        return newest.head.to_json() if newest else None

    def tree_leaves(self, job: ErasureJob) -> JsonObject:
        leaves = self._tree.erased(job.job_id)
        return {"count": len(leaves), "root": root_of(leaves).hex()}

    def public_key(self) -> bytes:
        """What certificates are checked with."""
        return self._keys.signer().public_key

    def rotate_master(self) -> int:
        done = rotation.rotate_master(self._keys)
        self._saw_generation()
        return done

    def rotate_user(self, user_id: str) -> int:
        done = rotation.rotate_user(self._keys, user_id)
        self._saw_generation()
        return done

    def key_status(self) -> dict[str, Any]:
        return rotation.status(self._keys)


def _is_readmitted(subject: Subject | None, epoch: int) -> bool:
    """Whether the database accepts data of the user under the key of this epoch."""
    if subject is None:
        return False
    return subject.epoch == epoch and subject.status in ("live", "frozen")


def _export_context(export_id: str) -> bytes:
    """What the record of an export is bound to."""
    return b"refold export " + export_id.encode()


def _opened_export(row: Any, key: UserKey) -> StoredExport:
    """The export that a row records; without a form if it does not open."""
    name, at = str(row.export_id), int(row.created_at)
    try:
        facts = orjson.loads(unseal(key.cipher, bytes(row.body), _export_context(name)))
    except InvalidTag:
        return StoredExport(name, at, "", "", "")
    sessions = facts["sessions"]
    return StoredExport(
        name,
        at,
        facts["format"],
        facts["location"],
        facts["machine"],
        None if sessions is None else tuple(sessions),
    )


def _row_of(job: ErasureJob) -> dict[str, Any]:
    return {
        "job_id": job.job_id,
        "user_ref": job.user_ref,
        "stage": job.stage,
        "due_at": job.due_at,
        "body": job.dump(),
    }


def _of(table: sa.Table, whose: Whose) -> list[Any]:
    """The conditions for rows of ``whose``; a table that knows no sessions has none."""
    mine: list[Any] = [table.c.user_id == whose.user_id]
    if whose.sessions is None:
        return mine
    if "session_id" not in table.c:
        return [sa.false()]
    return [*mine, table.c.session_id.in_(list(whose.sessions))]


def _turn(
    connection: sa.Connection,
    heads: sa.Table,
    mine: Sequence[Any],
    changes: Sequence[Any],
    *,
    key_share: bool = False,
) -> None:
    """Change the heads of ``mine`` while nobody else does.

    Twice: a stream that began while the lock was waited for is seen by the second,
    and with the main heads marked no other can begin.
    """
    locked = sa.select(heads.c.seq).where(*mine).order_by(*stream_of(heads))
    locked = locked.with_for_update(key_share=key_share)
    for _ in range(2):
        connection.execute(locked).all()
        for change in changes:
            connection.execute(change)


# Only where the session is, whose erasure waits for this and takes it along.
_ADD: Final = """
INSERT INTO {accesses} AS a (user_id, session_id, reads, last_at)
SELECT h.user_id, h.session_id, :reads, :last_at FROM {heads} h
WHERE user_id=:user_id AND session_id=:session_id AND stream='main'
  AND status<>'erased' {shared}
ON CONFLICT (user_id, session_id) DO UPDATE SET reads = a.reads + excluded.reads,
  last_at = CASE WHEN a.last_at > excluded.last_at THEN a.last_at
    ELSE excluded.last_at END
"""


class _StillUsed(Exception):
    """Undoes the transaction that was to begin an erasure."""


class StoredRetention:
    """The Retention of a store: freezes, and what is known of the use of sessions."""

    def __init__(
        self, recorder: Recorder, keys: KeyRing, erasures: StoredErasureSteps
    ) -> None:
        self._database, self._t = recorder.database, recorder.database.tables
        self._recorder, self._keys, self._erasures = recorder, keys, erasures
        self._subjects = Subjects(recorder.database)

    def freeze(
        self, user_id: str, freeze: LegalHold, certificate: NewCertificate
    ) -> bool:
        row = {"user_ref": self._keys.user_ref(user_id), **freeze._asdict()}
        insert = sa.insert(self._t.holds).values(row)
        return self._change(user_id, "frozen", insert, certificate)

    def unfreeze(self, user_id: str, certificate: NewCertificate) -> bool:
        holds, ref = self._t.holds, self._keys.user_ref(user_id)
        gone = sa.delete(holds).where(holds.c.user_ref == ref, holds.c.name == FREEZE)
        return self._change(user_id, "live", gone, certificate)

    def _change(
        self,
        user_id: str,
        status: SubjectStatus,
        hold: Any,
        certificate: NewCertificate,
    ) -> bool:
        """Give the user, and all heads, the other status; False if they have it.

        Heads that are marked as erased too: by what they were before.
        """
        heads, ref = self._t.heads, self._keys.user_ref(user_id)
        mine, turned = [heads.c.user_id == user_id], []
        into = FROZEN if status == "frozen" else THAWED
        for column in (heads.c.status, heads.c.before):
            turns = ((column == old, new) for old, new in into.items())
            other = sa.case(*turns, else_=column)
            some = sa.update(heads).where(*mine, column.in_(list(into)))
            turned.append(some.values({column: other}))

        def attempt(connection: sa.Connection) -> bool:
            subject = self._subjects.locked(connection, ref)
            if status == "frozen" and subject.status in ("erasing", "erased"):
                raise Erased("the user")
            if (subject.status == "frozen") == (status == "frozen"):
                return False
            self._subjects.put(connection, subject._replace(status=status))
            connection.execute(hold)
            _turn(connection, heads, mine, turned)
            return True

        return self._erasures.change_certified(user_id, attempt, certificate)

    def add_accesses(self, user_id: str, accesses: Sequence[Accesses]) -> None:
        tables = {
            "accesses": self._t.accesses.fullname,
            "heads": self._t.heads.fullname,
        }
        query = sa.text(_ADD.format(**tables, shared=self._database.shared))
        # In one order, so that no two of these wait for each other.
        rows = [one._asdict() for one in sorted(accesses)]
        self._database.run(user_id, query, rows)

    def accesses(self, user_id: str | None = None) -> list[Accesses]:
        table = self._t.accesses
        query = sa.select(*(table.c[name] for name in Accesses._fields))
        if user_id is not None:
            query = query.where(table.c.user_id == user_id)
        query = query.order_by(table.c.user_id, table.c.session_id)
        return [Accesses(*row) for row in self._database.read(user_id, query)]

    def correct_uses(self, *, later_than: int, now: int) -> None:
        heads, accesses = self._t.heads, self._t.accesses
        self._correct(heads, heads.c.updated_at, later_than, now)
        self._correct(accesses, accesses.c.last_at, later_than, now)

    def correct_blobs(self, *, later_than: int, now: int) -> None:
        blobs = self._t.blobs
        self._correct(blobs, blobs.c.created_at, later_than, now)

    def _correct(
        self, table: sa.Table, column: sa.Column[int], later_than: int, now: int
    ) -> None:
        """Let rows have the time ``now`` in that column, instead of a later one."""
        found = self._database.read(
            None, sa.select(table.c.user_id).where(column > later_than).distinct()
        )
        for (user_id,) in found:
            if self._erasures.holds(user_id):  # stays as it is
                continue
            mine = table.c.user_id == user_id
            corrected = sa.update(table).where(mine, column > later_than)
            self._database.run(user_id, corrected.values({column.name: now}))

    def old_blobs(self, before: int) -> Iterator[erasure.OldBlobs]:
        blobs = self._t.blobs.c
        place = blobs.user_id, blobs.address
        query = sa.select(*place, blobs.session_id).order_by(*place).limit(_BLOBS)
        query = query.where(blobs.created_at <= before, blobs.size > 0)
        behind = sa.tuple_(*place) > sa.tuple_("", b"")
        while page := self._database.read(None, query.where(behind)):
            sessions: dict[tuple[str, str], list[bytes]] = {}
            for user_id, address, session_id in page:
                sessions.setdefault((user_id, session_id), []).append(bytes(address))
            for session, addresses in sessions.items():
                yield erasure.OldBlobs(*session, tuple(addresses))
            last = page[-1]
            behind = sa.tuple_(*place) > sa.tuple_(last.user_id, bytes(last.address))

    def expire_blobs(self, blobs: erasure.OldBlobs) -> int:
        """Let go of the texts; an encrypted mark says so in their place.

        Nothing is done if the session is erased, frozen or under another key by now.
        """
        stream = StreamId(blobs.user_id, blobs.session_id)
        head = self._recorder.head_row(stream)
        if head is None or head.status not in FROZEN:
            return 0
        key = self._keys.session(*stream[:2], now=None, check=head.key_check)
        marks = Blobs(self._recorder, self._keys, stream)
        rows = sorted(marks.expired(address, key) for address in blobs.addresses)
        table, heads = self._t.blobs, self._t.heads
        live = sa.select(heads.c.seq).where(
            of_stream(heads, stream),
            heads.c.status.in_(list(FROZEN)),
            heads.c.key_check == key.check,
        )

        def attempt(connection: sa.Connection) -> int:
            if connection.execute(live.with_for_update(read=True)).first() is None:
                return 0
            done = 0
            for row in rows:
                here = table.c.user_id == blobs.user_id, table.c.address == row.address
                changed = sa.update(table).where(*here, table.c.size > 0)
                values = {"body": row.body, "size": 0}
                done += connection.execute(changed.values(values)).rowcount
            return done

        return self._database.change(blobs.user_id, attempt)

    def begin_unused(
        self, job: ErasureJob, unused: erasure.Unused
    ) -> ErasureJob | None:
        subjects = self._erasures.subjects(job, "erasing")

        def attempt(connection: sa.Connection) -> ErasureJob:
            self._subjects.locked(connection, job.user_ref)
            begun = self._erasures.begun(connection, job, subjects)
            if begun is job:
                if self._used(connection, job.whose, unused):
                    raise _StillUsed
                self._erasures.marked(connection, job.whose)
            return begun

        try:
            begun = self._database.change(job.whose.user_id, attempt)
        except _StillUsed:
            return None
        self._recorder.flush()
        return begun

    def _used(
        self, connection: sa.Connection, whose: Whose, unused: erasure.Unused
    ) -> bool:
        """Whether any was used, or another begun; their heads stay locked."""
        heads, accesses = self._t.heads.c, self._t.accesses.c
        of_user = heads.user_id == whose.user_id, heads.stream == MAIN
        every = connection.scalars(sa.select(heads.session_id).where(*of_user))
        if set(every) != set(unused.known):
            return True
        names = list(whose.sessions or unused.known)
        query = sa.select(heads.updated_at).where(*of_user, heads.session_id.in_(names))
        query = query.order_by(heads.session_id).with_for_update()
        if any(at > unused.since for at in connection.scalars(query)):
            return True
        mine = accesses.user_id == whose.user_id, accesses.session_id.in_(names)
        read = sa.select(accesses.last_at).where(*mine, accesses.last_at > unused.since)
        return unused.reads and connection.execute(read).first() is not None


class StoredRepairs:
    """The Repairs of a log, each in a transaction of its own."""

    def __init__(self, streams: EncryptedStreams) -> None:
        database = streams.recorder.database
        self._database, self._t = database, database.tables
        self._streams = streams

    def put_head(self, stream: StreamId, head: Head) -> bool:
        """Let the stream's head row say this, if its last event is the one it names.

        Nothing is written of a user who is frozen, or is being erased.
        """
        keys = self._streams.keys
        keys.refuse_erased(*stream[:2])
        key = keys.session(*stream[:2], now=None)
        numbers = head.tokens, head.created_at, head.updated_at
        plain = HeadRow(head.seq, head.hash, head.status, b"", key.check, *numbers)
        row = encrypted_head(plain, head.state, key)
        heads, events, subjects = self._t.heads, self._t.events, self._t.subjects.c
        # A head that is gone says neither that its user is frozen nor that it was
        # marked as erased; a freeze or an erasure that begins now waits for this.
        user = sa.select(subjects.status)
        user = user.where(subjects.ref == keys.user_ref(stream.user_id))
        known = (
            sa.select(heads.c.status).where(of_stream(heads, stream)).with_for_update()
        )
        last = sa.select(events.c.seq, events.c.hash).where(of_stream(events, stream))
        last = last.order_by(events.c.seq.desc()).limit(1)

        def attempt(connection: sa.Connection) -> bool:
            there = connection.execute(user.with_for_update(read=True)).scalar()
            if there not in (None, "live"):
                return False
            status = connection.execute(known).scalar()
            end = connection.execute(last).one_or_none()
            if status not in (None, *FROZEN) or end is None:  # or it is frozen
                return False
            if (end.seq, bytes(end.hash)) != (row.seq, row.hash):
                return False
            if status is None:
                put: Any = sa.insert(heads).values(**stream._asdict(), **row._asdict())
            else:
                here = of_stream(heads, stream)
                put = sa.update(heads).where(here).values(**row._asdict())
            connection.execute(put)
            return True

        return self._database.change(stream.user_id, attempt)

    def unnamed_blobs(self, stream: StreamId) -> Scanned:
        ends = self._database.change(stream.user_id, lambda c: self._ends(c, stream))
        blobs = self._t.blobs
        query = sa.select(blobs.c.address).where(*within(blobs, Scope(*stream[:2])))
        found = self._database.read(stream.user_id, query)
        addresses = [bytes(row[0]) for row in found]
        if not addresses:
            return Scanned(ends, ())
        recorder, named = self._streams.recorder, set[bytes]()
        theirs = Blobs(recorder, self._streams.keys, stream.main)
        for name in ends:
            one, after = stream._replace(stream=name), 0
            while rows := recorder.select_events(one, gt=after, limit=PAGE):
                after = rows[-1].seq
                for row in rows:
                    named.update(map(theirs.address, self._streams.envelope(row).blobs))
        return Scanned(ends, tuple(a for a in addresses if a not in named))

    def drop_blobs(self, stream: StreamId, scanned: Scanned) -> bool:
        blobs = self._t.blobs
        theirs = blobs.c.user_id == stream.user_id

        def attempt(connection: sa.Connection) -> bool:
            if self._ends(connection, stream) != scanned.ends:
                return False
            for address in scanned.addresses:
                here = blobs.c.address == address
                connection.execute(sa.delete(blobs).where(theirs, here))
            return True

        return self._database.change(stream.user_id, attempt)

    def _ends(self, connection: sa.Connection, stream: StreamId) -> dict[str, int]:
        """The heads of the session, locked until the transaction ends."""
        heads = self._t.heads
        query = sa.select(heads.c.stream, heads.c.seq)
        query = query.where(*within(heads, Scope(*stream[:2]))).order_by(heads.c.stream)
        found = connection.execute(query.with_for_update())
        return {row.stream: row.seq for row in found}
