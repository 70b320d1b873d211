"""Erasure, retention and repairs: the rows and keys that each step changes."""

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
from refold.adapters.keys.ring import KeyRing, UserKey, decrypt, encrypt, user_context
from refold.adapters.keys.store import UserEntry
from refold.adapters.rows import ORDINARY_STATUSES, WHEN_FROZEN, WHEN_UNFROZEN, HeadRow
from refold.adapters.sql.access_log import AccessTable, to_forget
from refold.adapters.sql.database import NOBODY
from refold.adapters.sql.queries import FLOOR
from refold.adapters.sql.recorder import Recorder, Subject, Subjects, SubjectStatus
from refold.adapters.sql.tables import of_stream, stream_of, within
from refold.adapters.sql.tree import Tree
from refold.adapters.streams import Blobs, EncryptedStreams, encrypted_head, user_key
from refold.domain import erasure, inventory
from refold.domain.canonical import canonical
from refold.domain.chain import leaf_hash, root_of
from refold.domain.erasure import (
    FREEZE,
    Accesses,
    ErasureJob,
    ErasureScope,
    LegalHold,
    NewCertificate,
    Readmission,
    Signed,
    StoredExport,
    Stranded,
)
from refold.domain.errors import Erased, KeyUnavailable, NotErased, OnHold, RefoldError
from refold.domain.events import JsonObject
from refold.domain.ids import MAIN, StreamId
from refold.domain.inventory import Place
from refold.domain.ports import MALFORMED_DATA, PAGE, Head, Scanned, Scope, listed

_ROWS: Final = 2_000  # rows that one transaction deletes
# The pause after a transaction, as a part of its duration.  Others use the disk then.
_PAUSE: Final = 0.5
_SESSIONS: Final = 200  # sessions whose hashes are read at once
_BLOBS: Final = 500  # blobs that are read at once
_WORDS_CONTEXT: Final = b"refold certificate"
_TRIES: Final = 3


class StoredErasureSteps:
    """The ErasureSteps of a store; each is one transaction, except ``delete``."""

    def __init__(self, recorder: Recorder, keys: KeyRing) -> None:
        self._database = recorder.database
        self._t = recorder.database.tables
        self._recorder = recorder
        self._keys = keys
        self._subjects = Subjects(recorder.database)
        self._tree = Tree(recorder.database)
        self._accesses = AccessTable(recorder.database)

    @property
    def database(self) -> str:
        return self._database.shown_name

    def new_job(
        self, scope: ErasureScope, *, due_at: int | None, facts: JsonObject
    ) -> ErasureJob:
        user_ref = self._keys.user_ref(scope.user_id)
        facts = {**facts, "audit": to_forget(self._keys, scope)}
        return ErasureJob(str(uuid4()), user_ref, scope, "begun", due_at, facts)

    def begin(self, job: ErasureJob) -> ErasureJob:
        """Store the record of the job, and its subjects."""
        subjects = self.subjects(job, "erasing")
        return self._database.change(
            NOBODY, lambda connection: self.begin_in(connection, job, subjects)
        )

    def begin_in(
        self, connection: sa.Connection, job: ErasureJob, subjects: Sequence[Subject]
    ) -> ErasureJob:
        """Store the job and its subjects in this transaction.

        Returns the job that is in progress already, if there is one for the same scope.
        """
        table = self._t.subjects
        # A transaction that begins a session of the user locks this row.  Wait for it.
        touch = sa.update(table).where(table.c.ref == job.user_ref)
        connection.execute(touch.values(epoch=table.c.epoch))
        for subject in subjects:
            self._subjects.put(connection, subject)
        holds = self._holds_in(connection, job.user_ref)
        if holds:
            raise OnHold(holds[0].name, holds[0].reason)
        for other in self._jobs_in(connection, job.user_ref):
            if other.scope == job.scope:
                return other
        connection.execute(sa.insert(self._t.erasures).values(_row_of(job)))
        return job

    def subjects(
        self, job: ErasureJob, status: Literal["erasing", "erased"]
    ) -> list[Subject]:
        """Return the subjects of the job: the user, or the sessions that it erases."""
        entry = self._keys.store.get_user(job.user_ref)
        epoch = 1
        if entry is not None:
            epoch = entry.epoch
        refs = self._session_refs(job.scope)
        if refs is None:
            refs = [job.user_ref]
        return [Subject(ref, job.user_ref, status, epoch) for ref in refs]

    def _session_refs(self, scope: ErasureScope) -> list[str] | None:
        """Return the keyed hashes of the sessions; None means the whole user."""
        if scope.sessions is None:
            return None
        return [self._keys.session_ref(scope.user_id, name) for name in scope.sessions]

    def jobs(self, user_id: str | None = None) -> list[ErasureJob]:
        ref = None
        if user_id is not None:
            ref = self._keys.user_ref(user_id)
        rows = self._database.read(ref, self._jobs_query(ref))
        return [ErasureJob.load(*row) for row in rows]

    def _jobs_in(self, connection: sa.Connection, user_ref: str) -> list[ErasureJob]:
        """Return the jobs of a user, read in this transaction."""
        rows = connection.execute(self._jobs_query(user_ref))
        return [ErasureJob.load(*row) for row in rows]

    def _jobs_query(self, user_ref: str | None) -> Any:
        """Return the query for the jobs of a user or of all."""
        table = self._t.erasures
        query = sa.select(
            table.c.job_id,
            table.c.user_ref,
            table.c.stage,
            table.c.due_at,
            table.c.body,
        )
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
            marked[user_id] = set()  # a user may have keys without a session
        for user, session in self._database.read(user_id, query):
            marked.setdefault(str(user), set()).add(str(session))
        stranded = []
        for user, names in marked.items():
            scope = self._not_covered(user, names, jobs)
            if scope is not None:
                stranded.append(Stranded(scope, self._has_keys(scope)))
        return stranded

    def _has_lost_record(self, jobs: Sequence[ErasureJob]) -> bool:
        """Whether a subject is being erased by none of these jobs."""
        covered: set[str] = set()
        for job in jobs:
            covered.update(subject.ref for subject in self.subjects(job, "erasing"))
        return any(
            subject.status == "erasing" and subject.ref not in covered
            for subject in self._subjects.changed()
        )

    def _not_covered(
        self, user_id: str, names: set[str], jobs: Sequence[ErasureJob]
    ) -> ErasureScope | None:
        """Return the marked data of a user that none of these jobs erases.

        names: the marked sessions of the user.
        """
        for job in jobs:
            if job.scope.user_id != user_id:
                continue
            if job.scope.sessions is None:
                return None
            names = names - set(job.scope.sessions)
        subject = self._subjects.of(self._keys.user_ref(user_id))
        if subject is not None and subject.status == "erasing":
            return ErasureScope(user_id)
        if not names:
            return None
        return ErasureScope(user_id, tuple(sorted(names)))

    def _has_keys(self, scope: ErasureScope) -> bool:
        """Whether keys of this data still exist, in use or set aside."""
        store = self._keys.store
        user_ref = self._keys.user_ref(scope.user_id)
        refs = self._session_refs(scope)
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
        update = (
            sa.update(table)
            .where(table.c.job_id == job.job_id, table.c.stage == before)
            .values({"stage": job.stage, "due_at": job.due_at, "body": job.dump()})
        )

        def attempt(connection: sa.Connection) -> ErasureJob | None:
            if connection.execute(update).rowcount:
                return job
            for stored in self._jobs_in(connection, job.user_ref):
                if stored.job_id == job.job_id:
                    return stored
            return None

        return self._database.change(NOBODY, attempt)

    def widen(self, job: ErasureJob, scope: ErasureScope) -> ErasureJob | None:
        """Add sessions to the job, and their subjects to the database."""
        facts = {**job.facts, "audit": to_forget(self._keys, scope)}
        wider = replace(job, scope=scope, facts=facts)
        for subject in self.subjects(wider, "erasing"):
            self._subjects.set(subject)
        return self.advance(wider, job.stage)

    def mark(self, job: ErasureJob) -> None:
        """Mark all heads durably, which must precede the destruction of keys."""
        scope = job.scope
        self._database.change(
            scope.user_id, lambda connection: self.mark_in(connection, scope)
        )
        self._recorder.flush()
        self._keys.forget(scope.user_id)

    def mark_in(self, connection: sa.Connection, scope: ErasureScope) -> None:
        """Mark heads as erased in this transaction, and store their status before."""
        heads = self._t.heads
        of_scope = _conditions(heads, scope)
        update = sa.update(heads).where(*of_scope, heads.c.status != "erased")
        update = update.values(before=heads.c.status, status="erased")
        _change_heads(connection, heads, of_scope, [update], key_share=True)

    def hold_keys(self, job: ErasureJob, *, now: int) -> int:
        """Set the keys aside."""
        refs = self._session_refs(job.scope)
        with self._changing_keys() as check:
            number = self._keys.store.hold(job.user_ref, refs, now, allowed=check)
        self._keys_changed(job.scope.user_id)
        return number

    def destroy_keys(self, job: ErasureJob, *, now: int) -> int:
        refs = self._session_refs(job.scope)
        with self._changing_keys() as check:
            number = self._keys.store.destroy(job.user_ref, refs, now, allowed=check)
        self._keys_changed(job.scope.user_id)
        return number

    @contextmanager
    def _changing_keys(self) -> Iterator[Callable[[], None]]:
        """Let keys change only while this thread has the leases that its writes need.

        Yields a check for the transaction of the key store to run.  Raises LeaseLost.
        """
        file = self._keys.store.file
        if file is not None and file == getattr(self._database, "file", None):
            # A file has one writer.  So the leases cannot change during the transaction
            # of the key store.
            yield self._database.check_leases
            return
        with self._database.keeping_leases():
            yield lambda: None

    def _keys_changed(self, user_id: str) -> None:
        """Forget cached keys, and store the generation of the key store.

        An older generation, from a backup, is refused from now on.
        """
        self._keys.forget(user_id)
        self._store_generation()

    def _store_generation(self) -> None:
        """Store the generation of the key store in the database, and in both."""
        generation = self._keys.store.generation()
        self._subjects.saw_generation(generation)
        self.remember("generation", b"%d" % generation)

    def ref_of(self, user_id: str) -> str:
        """Return the keyed hash of the user."""
        return self._keys.user_ref(user_id)

    def remember(self, name: str, value: bytes) -> None:
        """Let the key store remember a value of this database."""
        self._keys.store.set_setting(f"{self._tree.store_id} {name}", value)

    def _remember_certificate(self, certificate_id: str, user_ref: str) -> None:
        """Let the key store remember that a certificate exists."""
        self.remember(f"certificate {certificate_id}", user_ref.encode())

    def recall(self, name: str) -> bytes | None:
        """Return a value that the key store remembers of this database."""
        return self._keys.store.get_setting(f"{self._tree.store_id} {name}")

    def remembered(self) -> dict[str, bytes]:
        """Return all values that the key store remembers of this database."""
        return self._keys.store.settings_with(f"{self._tree.store_id} ")

    def forget_remembered(self) -> None:
        """Accept the database as it is, for example after a backup was restored.

        The key store forgets what it remembers, and remembers the present values.
        """
        self._keys.store.delete_settings(f"{self._tree.store_id} ")
        for row in self.certificate_rows():
            self._remember_certificate(row.certificate_id, row.user_ref)
        self.remember("generation", b"%d" % self._subjects.key_generation())
        settings = self._t.settings.c
        query = sa.select(settings.value).where(settings.name == FLOOR)
        for (floor,) in self._database.read(NOBODY, query):
            if str(floor).isdecimal():
                self.remember(FLOOR, str(floor).encode())

    def restore(self, job: ErasureJob) -> None:
        refs = self._session_refs(job.scope)
        with self._changing_keys() as check:
            self._keys.store.release(job.user_ref, refs, allowed=check)
        self._keys_changed(job.scope.user_id)
        heads = self._t.heads
        table = self._t.subjects
        marked = sa.update(heads).where(
            *_conditions(heads, job.scope), heads.c.before.is_not(None)
        )
        subjects = self.subjects(job, "erasing")

        def attempt(connection: sa.Connection) -> None:
            connection.execute(marked.values(status=heads.c.before, before=None))
            for subject in subjects:
                if subject.ref == subject.user_ref:
                    self._subjects.put(connection, subject._replace(status="live"))
                else:
                    connection.execute(
                        sa.delete(table).where(table.c.ref == subject.ref)
                    )

        self._database.change(job.scope.user_id, attempt)

    def remains(self, scope: ErasureScope) -> erasure.Remains:
        """Count the rows to delete, including those of streams that lost their head."""
        self._add_lost_heads(scope)
        counts = self.left(scope)
        leaves = map(leaf_hash, self._hashes(scope))
        return erasure.Remains(counts, counts["events"], root_of(leaves))

    def _add_lost_heads(self, scope: ErasureScope) -> None:
        """Give a marked head to streams that have none, so that they can be deleted."""
        events = self._t.events
        heads = self._t.heads
        of_events = sa.select(*stream_of(events)).where(*_conditions(events, scope))
        of_heads = sa.select(*stream_of(heads)).where(*_conditions(heads, scope))
        headless = of_events.except_(of_heads)
        rows = []
        for stream in self._database.read(scope.user_id, headless):
            row = {
                **StreamId(*stream)._asdict(),
                "seq": 0,
                "hash": b"",
                "status": "erased",
                "state": b"",
                "key_check": b"",
                "tokens": 0,
                "created_at": 0,
                "updated_at": 0,
            }
            rows.append(row)
        if rows:
            self._database.run(scope.user_id, sa.insert(heads), rows)

    def _hashes(self, scope: ErasureScope) -> Iterator[bytes]:
        """Yield the hashes of all events, in the order of session, stream and seq."""
        events = self._t.events
        heads = self._t.heads
        query = sa.select(heads.c.session_id).where(*_conditions(heads, scope))
        rows = self._database.read(scope.user_id, query.distinct())
        names = sorted(str(session_id) for (session_id,) in rows)
        for start in range(0, len(names), _SESSIONS):
            batch = ErasureScope(scope.user_id, tuple(names[start : start + _SESSIONS]))
            query = sa.select(
                events.c.session_id, events.c.stream, events.c.seq, events.c.hash
            ).where(*_conditions(events, batch))
            for row in sorted(self._database.read(scope.user_id, query)):
                yield bytes(row[3])

    def left(self, scope: ErasureScope) -> dict[str, int]:
        counts = {}
        for place in inventory.places("table", "delete rows"):
            table = self._table(place)
            query = sa.select(sa.func.count()).select_from(table)
            query = query.where(*_conditions(table, scope))
            ((number,),) = self._database.read(scope.user_id, query)
            counts[place.name] = int(number)
        return dict(sorted(counts.items()))

    def _table(self, place: Place) -> sa.Table:
        """Return the table that the inventory registers as this place."""
        table: sa.Table = getattr(self._t, place.name)
        return table

    def delete(self, job: ErasureJob) -> Iterator[tuple[str, int]]:
        """Walk the tables of the inventory in order, and remove what it says of each.

        Rows are deleted in transactions of bounded size.
        """
        self._remember_floor(job)
        for place in inventory.places("table"):
            match place.removal:
                case "delete rows":
                    table = self._table(place)
                    for number in self._delete_rows(table, job.scope):
                        yield place.name, number
                case "take names out":
                    self._name_removers()[place.name](job)
                case "mark leaves":
                    self._mark_leaves(job)
                case "end with the erasure" | "leave":
                    pass  # ``_end`` does the former
                case _:
                    raise NotImplementedError(f"{place.removal} in a table")

    def _mark_leaves(self, job: ErasureJob) -> None:
        """Let the tree's leaves name the certificate instead of a stream."""
        user_id, sessions = job.scope
        if sessions is None:
            self._tree.forget(user_id, None, job.job_id)
            return
        for session_id in sessions:
            self._tree.forget(user_id, session_id, job.job_id)

    def _delete_rows(self, table: sa.Table, scope: ErasureScope) -> Iterator[int]:
        """Delete the rows in batches, with pauses in which others use the disk."""
        place: Any = sa.literal_column(self._database.place_column)
        of_scope = sa.and_(*_conditions(table, scope))
        batch = sa.select(place).select_from(table).where(of_scope).limit(_ROWS)
        deletion = sa.delete(table).where(self._database.among(batch, of_scope))
        started = time.monotonic()
        while number := self._database.run_among(scope.user_id, deletion):
            yield number
            time.sleep((time.monotonic() - started) * _PAUSE)
            started = time.monotonic()

    def _remember_floor(self, job: ErasureJob) -> None:
        """Let the key store remember the highest position that this job deletes.

        It does so before the first row is deleted, and once: when a job is resumed, the
        highest row may be gone.  `refold verify` compares the setting `floor` with it.
        """
        name = f"{FLOOR} {job.job_id}"
        if not self.has_floor or self.recall(name) is not None:
            return
        events = self._t.events
        query = sa.select(sa.func.max(events.c.position))
        query = query.where(*_conditions(events, job.scope))
        ((highest,),) = self._database.read(job.scope.user_id, query)
        if highest is not None:
            self.remember(name, b"%d" % highest)

    @property
    def has_floor(self) -> bool:
        """Whether the database has the setting ``floor``.

        PostgreSQL has a sequence instead.
        """
        return self._database.name == "sqlite"

    def _name_removers(self) -> Mapping[str, Callable[[ErasureJob], None]]:
        """Return the functions that remove names from rows, by the table's name."""
        return {"audit": self._remove_accesses_names}

    def _remove_accesses_names(self, job: ErasureJob) -> None:
        """Remove the hashes of the user or the sessions from the access log."""
        hashes = job.facts.get("audit")
        if hashes:
            self._accesses.forget(hashes["user"], hashes["sessions"])

    def certify(
        self,
        job: ErasureJob,
        statement: JsonObject,
        *,
        now: int,
        texts: JsonObject | None = None,
    ) -> Signed | None:
        subjects: list[Subject] = []
        if job.past("shredded"):
            # Other processes may have recorded accesses since ``delete``.
            for place in inventory.places("table", "take names out"):
                self._name_removers()[place.name](job)
            subjects = self.subjects(job, "erased")
        user_id = job.scope.user_id
        certificate = self.sign(user_id, statement, now=now, texts=texts)
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
        texts: JsonObject | None = None,
        readmission: Readmission | None = None,
    ) -> NewCertificate:
        user_ref = self._keys.user_ref(user_id)
        if texts is not None:
            if readmission is None:
                key = user_key(self._recorder, self._keys, user_id, now=now)
            else:
                entry = UserEntry(readmission.epoch, readmission.wrapped)
                key = self._keys.unwrapped(user_ref, entry)
            # The texts can be read as long as the user has this key.
            words = encrypt(key.cipher, canonical(texts), _WORDS_CONTEXT)
            statement = {**statement, "sealed": b64encode(words).decode()}
        signer = self._keys.signer()
        signed = Signed(
            statement=dict(statement),
            key_id=signer.key_id,
            public_key=signer.public_key,
            signature=signer.sign(erasure.message(statement)),
            texts=texts,
        )
        return NewCertificate(signed, user_ref, now)

    def change_certified(
        self,
        user_id: str,
        act: Callable[[sa.Connection], bool],
        certificate: NewCertificate,
    ) -> bool:
        """Do ``act`` and store its certificate in one transaction.

        If ``act`` returns False, so does this, and stores nothing.
        """
        # The texts are stored only in the statement, where they are encrypted.
        stored = certificate.signed._replace(texts=None)
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

    def decrypted_texts(self, row: Any) -> JsonObject:
        """Return the decrypted texts of a certificate; empty if they cannot be read."""
        try:
            return self._decrypted(row).texts or {}
        except (KeyUnavailable, *MALFORMED_DATA):
            return {}

    def _decrypted(self, row: Any) -> Signed:
        """Return the certificate in a row, with its texts if the user has their key."""
        signed = Signed.read(row.body)
        if "sealed" not in signed.statement:
            return signed
        key = self._keys.user_of(row.user_ref)
        if key is None:
            return signed
        ciphertext = b64decode(signed.statement["sealed"])
        try:
            words = decrypt(key.cipher, ciphertext, _WORDS_CONTEXT)
        except InvalidTag:
            return signed  # from an earlier epoch
        return signed._replace(texts=orjson.loads(words))

    def _end(
        self, connection: sa.Connection, job: ErasureJob, subjects: list[Subject]
    ) -> bool:
        """Store the subjects and delete the job; False if the job does not exist."""
        table = self._t.erasures
        deletion = sa.delete(table).where(table.c.job_id == job.job_id)
        if not connection.execute(deletion).rowcount:
            return False
        for subject in subjects:
            self._subjects.put(connection, subject)
            # Other jobs for an erased user end, too, and so do holds that were placed
            # during the erasure.
            for place in inventory.places("table", "end with the erasure"):
                others = self._table(place)
                of_subject = others.c.user_ref == subject.ref
                connection.execute(sa.delete(others).where(of_subject))
        return True

    def certificates(self, user_id: str | None = None) -> list[Signed]:
        try:
            return [self._decrypted(row) for row in self.certificate_rows(user_id)]
        except ValueError:
            raise RefoldError(
                "a certificate is not what was signed: `refold verify` names it"
            ) from None

    def certificate_rows(self, user_id: str | None = None) -> Sequence[Any]:
        """Return the rows of certificates, without checking their content."""
        table = self._t.certificates
        query = sa.select(table).order_by(table.c.created_at, table.c.certificate_id)
        ref = None
        if user_id is not None:
            ref = self._keys.user_ref(user_id)
            query = query.where(table.c.user_ref == ref)
        return self._database.read(ref, query)

    def prepare_readmission(self, user_id: str) -> Readmission:
        ref = self._keys.user_ref(user_id)
        entry = self._keys.store.get_user(ref)
        subject = self._subjects.of(ref)
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
        ref = readmission.user_ref
        epoch = readmission.epoch
        if not readmission.added:
            added = self._keys.store.readmit(
                ref, readmission.wrapped, certificate.created_at, epoch=epoch
            )
            if not added:
                raise NotErased("that user was readmitted by another process")
        self._keys_changed(user_id)

        def attempt(connection: sa.Connection) -> bool:
            if _is_readmitted(self._subjects.locked(connection, ref), epoch):
                return False
            self._subjects.put(connection, Subject(ref, ref, "live", epoch))
            return True

        if not self.change_certified(NOBODY, attempt, certificate):
            raise NotErased("that user was readmitted by another process")

    def refuse_erased(self, user_id: str) -> None:
        """Raise Erased if the user was erased, or an erasure is in progress."""
        entry = self._keys.store.get_user(self._keys.user_ref(user_id))
        if entry is not None and entry.wrapped is None:
            raise Erased("the user")

    def returned(self) -> list[str]:
        store = self._keys.store
        in_progress = {job.user_ref for job in self.jobs()}
        in_grace = {ref for ref, _ in store.held_users()}
        erased: set[str] = set()
        for ref, entry in rotation.users_of(store):
            if not entry.wrapped:
                erased.add(ref)
        erased -= in_progress | in_grace
        if not erased:
            return []
        returned = []
        sessions = listed(self._recorder.sessions)
        for user_id, _ in groupby(sessions, lambda info: info.user_id):
            if self._keys.user_ref(user_id) in erased:
                returned.append(user_id)
        return returned

    def holds(self, user_id: str) -> list[LegalHold]:
        """Return the legal holds on a user."""
        ref = self._keys.user_ref(user_id)
        rows = self._database.read(ref, self._holds_query(ref))
        return [LegalHold(*row) for row in rows]

    def _holds_in(self, connection: sa.Connection, user_ref: str) -> list[LegalHold]:
        """Return the legal holds on a user, read in this transaction."""
        rows = connection.execute(self._holds_query(user_ref))
        return [LegalHold(*row) for row in rows]

    def _holds_query(self, user_ref: str) -> Any:
        """Return the query for the legal holds on a user."""
        table = self._t.holds
        query = sa.select(table.c.name, table.c.reason, table.c.created_at)
        return query.where(table.c.user_ref == user_ref).order_by(table.c.name)

    def hold(self, user_id: str, hold: LegalHold, certificate: NewCertificate) -> bool:
        ref = self._keys.user_ref(user_id)

        def attempt(connection: sa.Connection) -> bool:
            # With the subject locked, an erasure begins before or after this.
            self._subjects.locked(connection, ref)
            existing = self._holds_in(connection, ref)
            if any(other.name == hold.name for other in existing):
                return False
            row = {"user_ref": ref, **hold._asdict()}
            connection.execute(sa.insert(self._t.holds).values(row))
            return True

        return self.change_certified(NOBODY, attempt, certificate)

    def release(self, user_id: str, name: str, certificate: NewCertificate) -> bool:
        """Release a legal hold."""
        table = self._t.holds
        ref = self._keys.user_ref(user_id)
        deletion = sa.delete(table)
        deletion = deletion.where(table.c.user_ref == ref, table.c.name == name)

        def attempt(connection: sa.Connection) -> bool:
            return bool(connection.execute(deletion).rowcount)

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
            "body": encrypt(key.cipher, canonical(facts), context),
        }
        insert = partial(self._insert_export, row)
        # A try may wait for a session that is then erased, although another one is not.
        for _ in range(_TRIES):
            if self._database.change(user_id, insert):
                self._recorder.flush()
                return
        raise Erased("the user")

    def _insert_export(self, row: Mapping[str, Any], connection: sa.Connection) -> bool:
        """Insert the row, unless the sessions of the user are erased."""
        heads = self._t.heads.c
        # An erasure that marks the locked session waits, and then finds the row.
        live = sa.select(heads.session_id).where(
            heads.user_id == row["user_id"],
            heads.stream == MAIN,
            heads.status != "erased",
        )
        live = live.order_by(heads.session_id).limit(1).with_for_update(read=True)
        if connection.execute(live).first() is None:
            return False
        connection.execute(sa.insert(self._t.exports).values(row))
        return True

    def drop_export(self, user_id: str, export_id: str) -> None:
        table = self._t.exports
        deletion = sa.delete(table).where(
            table.c.user_id == user_id, table.c.export_id == export_id
        )
        self._database.run(user_id, deletion)

    def exports(self, user_id: str) -> list[StoredExport]:
        table = self._t.exports
        query = sa.select(table).where(table.c.user_id == user_id)
        query = query.order_by(table.c.created_at, table.c.export_id)
        rows = self._database.read(user_id, query)
        if not rows:
            return []
        key = self._keys.user(user_id, now=None)
        return [_export_in(row, key) for row in rows]

    def forget_files(self, scope: ErasureScope) -> dict[str, list[str]]:
        if scope.sessions is not None:
            return {}
        return forget_files(scope.user_id)

    def clean(self, *, vacuum: bool) -> dict[str, Any]:
        with self._database.errors:
            cleaned = self._database.clean(vacuum=vacuum)
        if vacuum and cleaned["vacuum"]:
            left = [*cleaned.get("statistics_left", ()), *self._keys.store.clean()]
            if left:
                cleaned["statistics_left"] = left
        return cleaned

    def found_in_files(self, names: Sequence[str]) -> dict[str, Any]:
        """Search the files for the user's id and session ids that nobody else has."""
        if not self._database.searchable:
            return {"files": {}, "names": 0, "too_short": 0}
        heads = self._t.heads.c
        query = sa.select(heads.session_id).where(heads.session_id.in_(list(names)))
        rows = self._database.read(None, query.distinct())
        still_used = {session_id for (session_id,) in rows}
        unique = [name for name in names if name not in still_used]
        # Rows and indexes contain user, session, and stream one after the other.  Ids
        # that are too short for a search alone are found in that form.
        user_id, *sessions = names
        pair = heads.user_id + heads.session_id
        pairs = {f"{user_id}{session_id}" for session_id in sessions}
        query = sa.select(pair).where(pair.in_(sorted(pairs))).distinct()
        # A pair that another user's rows form as well proves nothing.
        pairs -= {str(other) for (other,) in self._database.read(None, query)}
        in_rows = [f"{unique_pair}{MAIN}" for unique_pair in sorted(pairs)]
        return self._database.found_in_files([*unique, *in_rows])

    def facts(self) -> JsonObject:
        settings = self._t.settings.c
        query = sa.select(settings.name, settings.value)
        values = {row.name: row.value for row in self._database.read(NOBODY, query)}
        return {
            "store_id": values.get("store_id", ""),
            "engine": self._database.name,
            "schema": int(values.get("schema_version", 0)),
        }

    def tree_head(self) -> JsonObject | None:
        newest = self._tree.newest()
        if newest is None:
            return None
        return newest.head.to_json()

    def tree_leaves(self, job: ErasureJob) -> JsonObject:
        leaves = self._tree.erased(job.job_id)
        return {"count": len(leaves), "root": root_of(leaves).hex()}

    def public_key(self) -> bytes:
        """Return the key that verifies certificates."""
        return self._keys.signer().public_key

    def rotate_master(self) -> int:
        number = rotation.rotate_master(self._keys)
        self._store_generation()
        return number

    def rotate_user(self, user_id: str) -> int:
        number = rotation.rotate_user(self._keys, user_id)
        self._store_generation()
        return number

    def key_status(self) -> dict[str, Any]:
        return rotation.status(self._keys)


def _is_readmitted(subject: Subject | None, epoch: int) -> bool:
    """Whether the database accepts data of the user under the key of this epoch."""
    if subject is None:
        return False
    return subject.epoch == epoch and subject.status in ("live", "frozen")


def _export_context(export_id: str) -> bytes:
    """Return the context that the record of an export is encrypted for."""
    return b"refold export " + export_id.encode()


def _export_in(row: Any, key: UserKey) -> StoredExport:
    """Return the export that a row records.

    If the row cannot be decrypted, the form and the location are empty.
    """
    export_id = str(row.export_id)
    made_at = int(row.created_at)
    try:
        body = decrypt(key.cipher, bytes(row.body), _export_context(export_id))
    except InvalidTag:
        return StoredExport(export_id, made_at, "", "", "")
    facts = orjson.loads(body)
    sessions = facts["sessions"]
    if sessions is not None:
        sessions = tuple(sessions)
    return StoredExport(
        export_id=export_id,
        made_at=made_at,
        form=facts["format"],
        location=facts["location"],
        machine=facts["machine"],
        sessions=sessions,
    )


def _row_of(job: ErasureJob) -> dict[str, Any]:
    """Return the row of a job."""
    return {
        "job_id": job.job_id,
        "user_ref": job.user_ref,
        "stage": job.stage,
        "due_at": job.due_at,
        "body": job.dump(),
    }


def _conditions(table: sa.Table, scope: ErasureScope) -> list[Any]:
    """Return the conditions for the rows of a scope.

    A table without sessions has no rows of single sessions.
    """
    of_user = table.c.user_id == scope.user_id
    if scope.sessions is None:
        return [of_user]
    if "session_id" not in table.c:
        return [sa.false()]
    return [of_user, table.c.session_id.in_(list(scope.sessions))]


def _change_heads(
    connection: sa.Connection,
    heads: sa.Table,
    conditions: Sequence[Any],
    changes: Sequence[Any],
    *,
    key_share: bool = False,
) -> None:
    """Lock the heads that meet the conditions, and change them.

    It does so twice.  A stream may begin while the first pass waits for locks; the
    second pass sees it.  After the main heads are marked, no other stream can begin.
    """
    lock = sa.select(heads.c.seq).where(*conditions).order_by(*stream_of(heads))
    lock = lock.with_for_update(key_share=key_share)
    for _ in range(2):
        connection.execute(lock).all()
        for change in changes:
            connection.execute(change)


# It adds reads only for sessions that exist.  Their erasure waits for this statement,
# and then deletes its row, too.
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
    """Rolls back the transaction that would have begun an erasure."""


class StoredRetention:
    """The Retention of a store: freezes, and the use of sessions."""

    def __init__(
        self, recorder: Recorder, keys: KeyRing, erasures: StoredErasureSteps
    ) -> None:
        self._database = recorder.database
        self._t = recorder.database.tables
        self._recorder = recorder
        self._keys = keys
        self._erasures = erasures
        self._subjects = Subjects(recorder.database)

    def freeze(
        self, user_id: str, freeze: LegalHold, certificate: NewCertificate
    ) -> bool:
        row = {"user_ref": self._keys.user_ref(user_id), **freeze._asdict()}
        insert = sa.insert(self._t.holds).values(row)
        return self._change(user_id, "frozen", insert, certificate)

    def unfreeze(self, user_id: str, certificate: NewCertificate) -> bool:
        holds = self._t.holds
        ref = self._keys.user_ref(user_id)
        deletion = sa.delete(holds)
        deletion = deletion.where(holds.c.user_ref == ref, holds.c.name == FREEZE)
        return self._change(user_id, "live", deletion, certificate)

    def _change(
        self,
        user_id: str,
        status: SubjectStatus,
        change_hold: Any,
        certificate: NewCertificate,
    ) -> bool:
        """Freeze or unfreeze the user and all heads; False if that is done already.

        For heads that are marked as erased, it changes their status before.
        """
        heads = self._t.heads
        ref = self._keys.user_ref(user_id)
        of_user = heads.c.user_id == user_id
        new_status = WHEN_FROZEN if status == "frozen" else WHEN_UNFROZEN
        changes = []
        for column in (heads.c.status, heads.c.before):
            cases = [(column == old, new) for old, new in new_status.items()]
            update = sa.update(heads).where(of_user, column.in_(list(new_status)))
            changes.append(update.values({column: sa.case(*cases, else_=column)}))

        def attempt(connection: sa.Connection) -> bool:
            subject = self._subjects.locked(connection, ref)
            if status == "frozen" and subject.status in ("erasing", "erased"):
                raise Erased("the user")
            if (subject.status == "frozen") == (status == "frozen"):
                return False
            self._subjects.put(connection, subject._replace(status=status))
            connection.execute(change_hold)
            _change_heads(connection, heads, [of_user], changes)
            return True

        return self._erasures.change_certified(user_id, attempt, certificate)

    def add_accesses(self, user_id: str, accesses: Sequence[Accesses]) -> None:
        tables = {
            "accesses": self._t.accesses.fullname,
            "heads": self._t.heads.fullname,
        }
        query = sa.text(
            _ADD.format(**tables, shared=self._database.lock_against_changes)
        )
        # All processes use the same order, so that two never wait for each other.
        rows = [access._asdict() for access in sorted(accesses)]
        self._database.run(user_id, query, rows)

    def accesses(self, user_id: str | None = None) -> list[Accesses]:
        table = self._t.accesses
        query = sa.select(*(table.c[name] for name in Accesses._fields))
        if user_id is not None:
            query = query.where(table.c.user_id == user_id)
        query = query.order_by(table.c.user_id, table.c.session_id)
        return [Accesses(*row) for row in self._database.read(user_id, query)]

    def correct_uses(self, *, later_than: int, now: int) -> None:
        heads = self._t.heads
        accesses = self._t.accesses
        self._correct(heads, heads.c.updated_at, later_than, now)
        self._correct(accesses, accesses.c.last_at, later_than, now)

    def correct_blobs(self, *, later_than: int, now: int) -> None:
        blobs = self._t.blobs
        self._correct(blobs, blobs.c.created_at, later_than, now)

    def _correct(
        self, table: sa.Table, column: sa.Column[int], later_than: int, now: int
    ) -> None:
        """Replace times in this column that are later than ``later_than`` by ``now``.

        Rows of users under a hold stay as they are.
        """
        query = sa.select(table.c.user_id).where(column > later_than).distinct()
        for (user_id,) in self._database.read(None, query):
            if self._erasures.holds(user_id):
                continue
            of_user = table.c.user_id == user_id
            update = sa.update(table).where(of_user, column > later_than)
            self._database.run(user_id, update.values({column.name: now}))

    def old_blobs(self, before: int) -> Iterator[erasure.OldBlobs]:
        blobs = self._t.blobs.c
        order = (blobs.user_id, blobs.address)
        query = sa.select(*order, blobs.session_id).order_by(*order).limit(_BLOBS)
        query = query.where(blobs.created_at <= before, blobs.size > 0)
        after = sa.tuple_(*order) > sa.tuple_("", b"")
        while page := self._database.read(None, query.where(after)):
            sessions: dict[tuple[str, str], list[bytes]] = {}
            for user_id, address, session_id in page:
                sessions.setdefault((user_id, session_id), []).append(bytes(address))
            for (user_id, session_id), addresses in sessions.items():
                yield erasure.OldBlobs(user_id, session_id, tuple(addresses))
            last = page[-1]
            after = sa.tuple_(*order) > sa.tuple_(last.user_id, bytes(last.address))

    def expire_blobs(self, blobs: erasure.OldBlobs) -> int:
        """Replace the texts by encrypted marks that say that the text has expired.

        Does nothing if the session was erased, frozen, or encrypted again since.
        """
        stream = StreamId(blobs.user_id, blobs.session_id)
        head = self._recorder.head_row(stream)
        if head is None or head.status not in ORDINARY_STATUSES:
            return 0
        key = self._keys.session(
            stream.user_id, stream.session_id, now=None, check=head.key_check
        )
        marks = Blobs(self._recorder, self._keys, stream)
        rows = sorted(marks.expired(address, key) for address in blobs.addresses)
        table = self._t.blobs
        heads = self._t.heads
        live = sa.select(heads.c.seq).where(
            of_stream(heads, stream),
            heads.c.status.in_(ORDINARY_STATUSES),
            heads.c.key_check == key.check,
        )

        def attempt(connection: sa.Connection) -> int:
            if connection.execute(live.with_for_update(read=True)).first() is None:
                return 0
            expired = 0
            for row in rows:
                update = sa.update(table).where(
                    table.c.user_id == blobs.user_id,
                    table.c.address == row.address,
                    table.c.size > 0,
                )
                values = {"body": row.body, "size": 0}
                expired += connection.execute(update.values(values)).rowcount
            return expired

        return self._database.change(blobs.user_id, attempt)

    def begin_unused(
        self, job: ErasureJob, unused: erasure.Unused
    ) -> ErasureJob | None:
        subjects = self._erasures.subjects(job, "erasing")

        def attempt(connection: sa.Connection) -> ErasureJob:
            self._subjects.locked(connection, job.user_ref)
            begun = self._erasures.begin_in(connection, job, subjects)
            if begun is job:
                if self._are_used(connection, job.scope, unused):
                    raise _StillUsed
                self._erasures.mark_in(connection, job.scope)
            return begun

        try:
            begun = self._database.change(job.scope.user_id, attempt)
        except _StillUsed:
            return None
        self._recorder.flush()
        return begun

    def _are_used(
        self, connection: sa.Connection, scope: ErasureScope, unused: erasure.Unused
    ) -> bool:
        """Whether a session was used, or another one has begun.

        The heads of the sessions stay locked until the transaction ends.
        """
        heads = self._t.heads.c
        accesses = self._t.accesses.c
        is_main = (heads.user_id == scope.user_id, heads.stream == MAIN)
        every = connection.scalars(sa.select(heads.session_id).where(*is_main))
        if set(every) != set(unused.all_sessions):
            return True
        names = list(scope.sessions or unused.all_sessions)
        query = sa.select(heads.updated_at).where(*is_main, heads.session_id.in_(names))
        query = query.order_by(heads.session_id).with_for_update()
        if any(updated_at > unused.since for updated_at in connection.scalars(query)):
            return True
        if not unused.reads:
            return False
        later_reads = sa.select(accesses.last_at).where(
            accesses.user_id == scope.user_id,
            accesses.session_id.in_(names),
            accesses.last_at > unused.since,
        )
        return connection.execute(later_reads).first() is not None


class StoredRepairs:
    """The Repairs of a log; each is one transaction."""

    def __init__(self, streams: EncryptedStreams) -> None:
        self._database = streams.recorder.database
        self._t = self._database.tables
        self._streams = streams

    def put_head(self, stream: StreamId, head: Head) -> bool:
        """Store the stream's head, if its last event is the one that the head names.

        Nothing is stored for a user who is frozen or is being erased.
        """
        keys = self._streams.keys
        keys.refuse_erased(stream.user_id, stream.session_id)
        key = keys.session(stream.user_id, stream.session_id, now=None)
        plain = HeadRow(
            head.seq,
            head.hash,
            head.status,
            b"",
            key.check,
            head.tokens,
            head.created_at,
            head.updated_at,
        )
        row = encrypted_head(plain, head.state, key)
        heads = self._t.heads
        events = self._t.events
        subjects = self._t.subjects.c
        # A lost head does not show that its user is frozen, or that it was marked as
        # erased; the subject does.  With its row locked, a freeze or an erasure that
        # begins now waits for this transaction.
        user_status = sa.select(subjects.status)
        user_status = user_status.where(subjects.ref == keys.user_ref(stream.user_id))
        user_status = user_status.with_for_update(read=True)
        head_status = sa.select(heads.c.status).where(of_stream(heads, stream))
        head_status = head_status.with_for_update()
        last = sa.select(events.c.seq, events.c.hash).where(of_stream(events, stream))
        last = last.order_by(events.c.seq.desc()).limit(1)

        def attempt(connection: sa.Connection) -> bool:
            status_of_user = connection.execute(user_status).scalar()
            if status_of_user not in (None, "live"):
                return False
            status = connection.execute(head_status).scalar()
            end = connection.execute(last).one_or_none()
            if status not in (None, *ORDINARY_STATUSES) or end is None:
                return False
            if (end.seq, bytes(end.hash)) != (row.seq, row.hash):
                return False
            change: Any
            if status is None:
                change = sa.insert(heads).values(**stream._asdict(), **row._asdict())
            else:
                change = sa.update(heads).where(of_stream(heads, stream))
                change = change.values(**row._asdict())
            connection.execute(change)
            return True

        return self._database.change(stream.user_id, attempt)

    def unnamed_blobs(self, stream: StreamId) -> Scanned:
        ends = self._database.change(
            stream.user_id, lambda connection: self._ends(connection, stream)
        )
        blobs = self._t.blobs
        session = Scope(stream.user_id, stream.session_id)
        query = sa.select(blobs.c.address).where(*within(blobs, session))
        addresses = [
            bytes(address) for (address,) in self._database.read(stream.user_id, query)
        ]
        if not addresses:
            return Scanned(ends, ())
        named: set[bytes] = set()
        for name in ends:
            named.update(self._named_blobs(stream._replace(stream=name)))
        unnamed = [address for address in addresses if address not in named]
        return Scanned(ends, tuple(unnamed))

    def _named_blobs(self, stream: StreamId) -> Iterator[bytes]:
        """Yield the addresses of the blobs that the events of a stream name."""
        recorder = self._streams.recorder
        blobs = Blobs(recorder, self._streams.keys, stream.main)
        after = 0
        while rows := recorder.select_events(stream, gt=after, limit=PAGE):
            after = rows[-1].seq
            for row in rows:
                for sha256 in self._streams.envelope(row).blobs:
                    yield blobs.address(sha256)

    def drop_blobs(self, stream: StreamId, scanned: Scanned) -> bool:
        blobs = self._t.blobs

        def attempt(connection: sa.Connection) -> bool:
            if self._ends(connection, stream) != scanned.ends:
                return False
            for address in scanned.addresses:
                deletion = sa.delete(blobs).where(
                    blobs.c.user_id == stream.user_id, blobs.c.address == address
                )
                connection.execute(deletion)
            return True

        return self._database.change(stream.user_id, attempt)

    def _ends(self, connection: sa.Connection, stream: StreamId) -> dict[str, int]:
        """Return the head seqs of a session, and lock its heads in the transaction."""
        heads = self._t.heads
        session = Scope(stream.user_id, stream.session_id)
        query = sa.select(heads.c.stream, heads.c.seq)
        query = query.where(*within(heads, session)).order_by(heads.c.stream)
        rows = connection.execute(query.with_for_update())
        return {row.stream: row.seq for row in rows}
