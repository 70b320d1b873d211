"""Erasing over a recorder and a key ring: each step, and the certificate of all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol
from uuid import uuid4

from refold.adapters.access_log import forget, to_forget
from refold.adapters.keys import rotation as rotating
from refold.adapters.keys.master import SIZE
from refold.adapters.keys.ring import KeyRing, user_context
from refold.adapters.keys.store import KeyStore
from refold.adapters.recorder import CertificateRow, ErasingRows, KeepingRows, Subject
from refold.adapters.rows import FROZEN, EncryptingMapper, HeadRow
from refold.adapters.sql.recorder import Recorder
from refold.adapters.streams import Blobs, EncryptedStreams, encrypted_head
from refold.adapters.verification import PAGE
from refold.domain.canonical import canonical
from refold.domain.chain import root_of
from refold.domain.erasure import (
    Accesses,
    Job,
    LegalHold,
    OldBlobs,
    Remains,
    Signed,
    Stage,
    Unused,
    Whose,
    message,
)
from refold.domain.errors import (
    CorruptEvent,
    Erased,
    KeyUnavailable,
    NotErased,
    RefoldError,
)
from refold.domain.events import JsonObject
from refold.domain.ids import StreamId
from refold.domain.ports import PAGE as MENDING_PAGE, Head, Scanned

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
        mapper = EncryptingMapper(self.keys)
        for name in self.recorder.streams(main.user_id, main.session_id):
            stream, after = main._replace(stream=name), 0
            while rows := self.recorder.select_events(stream, gt=after, limit=PAGE):
                for row in rows:
                    with suppress(CorruptEvent, KeyUnavailable):
                        yield from mapper.to_domain_event(row).blobs
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
        leaves = tree.erased(job.job_id)
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


_BOUND: Final = "bound"
_YES: Final = b"1"
_GONE: Final = ("erasing", "erased")


def check_belongs(
    keys: KeyStore, rows: ErasingRows, *, store_id: str, filled: bool
) -> None:
    """Refuse a key store of another database, or one that is older than this database.

    A key store may serve several databases; a database that is ``filled`` knows which
    it was.  Key stores of before this was written down are taken as they are.

    Raises KeyUnavailable.
    """
    mine = f"store {store_id}"
    if keys.get_setting(mine) is None:
        if filled and keys.get_setting(_BOUND) is not None:
            raise KeyUnavailable(
                "the key store belongs to another database",
                remedy="point REFOLD_KEYS or REFOLD_HOME at the one it was made with",
            )
        keys.add_setting(_BOUND, _YES)
        keys.add_setting(mine, _YES)
    seen, generation = rows.key_generation(), keys.generation()
    if generation < seen:
        raise KeyUnavailable(
            f"the key store is older than the database (generation {generation}, the "
            f"database has seen {seen}): keys that were destroyed are back in it",
            remedy="restore its newest backup, or have `refold keys reconcile` destroy "
            "them again",
        )


def reconcile(keys: KeyStore, rows: ErasingRows, *, now: int) -> int:
    """Destroy again what an older key store brought back; returns how many keys.

    The database remembers, by keyed hashes, who was erased.  A user who was readmitted
    since has lost the new key with the key store, and is erased again.
    """
    gone = 0
    for subject in rows.subjects():
        entry = keys.get_user(subject.user_ref)
        if subject.ref != subject.user_ref:
            gone += keys.destroy(subject.user_ref, [subject.ref], now)
        elif subject.status in _GONE or entry is None or entry.epoch < subject.epoch:
            gone += keys.destroy(subject.ref, None, now)
    keys.reach(rows.key_generation())
    return gone


@dataclass(frozen=True, slots=True)
class SealedKeeping(SealedErasures):
    """The Keeping of a store."""

    @property
    def _kept(self) -> KeepingRows:
        return self.recorder.keeping()

    def freeze(self, user_id: str, freeze: LegalHold) -> bool:
        """Take nothing of the user from now on."""
        done = self._kept.freeze(user_id, self.keys.user_ref(user_id), freeze)
        self.recorder.flush()
        return done

    def unfreeze(self, user_id: str) -> bool:
        """Take events again."""
        return self._kept.unfreeze(user_id, self.keys.user_ref(user_id))

    def add_accesses(self, user_id: str, accesses: Sequence[Accesses]) -> None:
        """Add to what is known of these sessions."""
        self._kept.add_accesses(user_id, accesses)

    def accesses(self, user_id: str | None = None) -> list[Accesses]:
        """Of the sessions of a user, or of all."""
        return self._kept.accesses(user_id)

    def old_blobs(self, before: int) -> Iterator[OldBlobs]:
        """The blobs written before that time."""
        after = ("", b"")
        while page := self._kept.old_blobs(before, after):
            sessions: dict[tuple[str, str], list[bytes]] = {}
            for one in page:
                place = one.user_id, one.session_id
                sessions.setdefault(place, []).append(one.address)
            for place, addresses in sessions.items():
                yield OldBlobs(*place, tuple(addresses))
            after = page[-1][:2]

    def expire_blobs(self, blobs: OldBlobs) -> int:
        """Let go of the texts; a sealed mark says so in their place."""
        stream = StreamId(blobs.user_id, blobs.session_id)
        head = self.recorder.head_row(stream)
        if head is None or head.status not in FROZEN:
            return 0
        check = head.key_check
        key = self.keys.session(*stream[:2], now=None, check=check)
        marks = Blobs(self.recorder, self.keys, stream)
        rows = [marks.expired(address, key) for address in blobs.addresses]
        return self._kept.expire_blobs(blobs, rows, key.check)

    def begin_unused(self, job: Job, unused: Unused) -> Job | None:
        """Begin an erasure and mark its heads, if they are unused."""
        subjects = self._subjects(job, ended=False)
        begun = self._kept.begin_unused(job, subjects, unused)
        self.recorder.flush()
        return begun


class MendingRows(Protocol):
    """What a database does for a repair, each in a transaction of its own."""

    def put_head(self, stream: StreamId, row: HeadRow, user_ref: str) -> bool:
        """Write the row if the stream's last event is the one that it names.

        Nothing is written of a user who is frozen, or is being erased.
        """
        ...

    def ends(self, stream: StreamId) -> dict[str, int]:
        """The seq of the head of each stream of the session."""
        ...

    def blob_addresses(self, stream: StreamId) -> list[bytes]:
        """Where the blobs of the session alone are."""
        ...

    def delete_blobs(
        self, stream: StreamId, addresses: tuple[bytes, ...], ends: dict[str, int]
    ) -> bool:
        """Delete them if the heads still are where ``ends`` says."""
        ...


@dataclass(frozen=True, slots=True)
class SealedMends:
    """Mends of a log of sealed rows."""

    log: EncryptedStreams
    rows: MendingRows

    def put_head(self, stream: StreamId, head: Head) -> bool:
        """Let the stream's head row say this."""
        user_id, session_id, _ = stream
        self.log.keys.refuse_erased(user_id, session_id)
        key = self.log.keys.session(user_id, session_id, now=None)
        row = HeadRow(
            seq=head.seq,
            hash=head.hash,
            status=head.status,
            state=b"",
            key_check=key.check,
            tokens=head.tokens,
            created_at=head.created_at,
            updated_at=head.updated_at,
        )
        sealed = encrypted_head(row, head.state, key)
        return self.rows.put_head(stream, sealed, self.log.keys.user_ref(user_id))

    def unnamed_blobs(self, stream: StreamId) -> Scanned:
        """The blobs of the session that none of its events names."""
        ends = self.rows.ends(stream)
        addresses = self.rows.blob_addresses(stream)
        if not addresses:
            return Scanned(ends, ())
        named = {address for name in ends for address in self._named(stream, name)}
        return Scanned(ends, tuple(a for a in addresses if a not in named))

    def _named(self, stream: StreamId, name: str) -> set[bytes]:
        blobs = Blobs(self.log.recorder, self.log.keys, stream.main)
        one, after, named = stream._replace(stream=name), 0, set[bytes]()
        while rows := self.log.recorder.select_events(
            one, gt=after, limit=MENDING_PAGE
        ):
            after = rows[-1].seq
            for row in rows:
                named.update(map(blobs.address, self.log.envelope(row).blobs))
        return named

    def drop_blobs(self, stream: StreamId, scanned: Scanned) -> bool:
        """Delete these, if the session stands as it stood."""
        return self.rows.delete_blobs(stream, scanned.addresses, scanned.ends)
