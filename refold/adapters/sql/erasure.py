"""Erasing in a database: marks on heads, and deleting in bounded steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from sqlalchemy import (
    Connection,
    Table,
    case,
    delete,
    false,
    func,
    insert,
    literal_column,
    select,
    text,
    tuple_,
    update,
)

from refold.adapters.recorder import BlobPlace, CertificateRow, StillUsed, Subject, Tree
from refold.adapters.rows import FROZEN, THAWED, BlobRow, HeadRow
from refold.adapters.sql.database import NOBODY, Database
from refold.domain.chain import leaf_hash, root_of
from refold.domain.erasure import (
    FREEZE,
    Accesses,
    Job,
    LegalHold,
    OldBlobs,
    Remains,
    Stage,
    Unused,
    Whose,
)
from refold.domain.errors import Erased, OnHold
from refold.domain.ids import MAIN, StreamId

_GENERATION: Final = "key_generation"
_FIRST: Final = """
INSERT INTO {subjects} (ref, user_ref, status, epoch)
VALUES (:ref, :ref, 'live', 1) ON CONFLICT DO NOTHING
"""
T = TypeVar("T")


class Records:
    """The records in the database of a dialect."""

    def __init__(self, dialect: Database) -> None:
        self._database, self._t = dialect, dialect.tables

    def begin(self, job: Job, subjects: Sequence[Subject]) -> Job:
        return self._database.change(NOBODY, lambda c: self._begin(c, job, subjects))

    def _begin(
        self, connection: Connection, job: Job, subjects: Sequence[Subject]
    ) -> Job:
        table = self._t.subjects
        # Who begins a session of the user has locked this row, and is waited for.
        locked = update(table).where(table.c.ref == job.user_ref)
        connection.execute(locked.values(epoch=table.c.epoch))
        for subject in subjects:
            self._put(connection, subject)
        held = self._holds(connection, job.user_ref)
        if held:
            raise OnHold(held[0].name, held[0].reason)
        known = self._jobs(connection, job.user_ref)
        for other in known:
            if other.whose == job.whose:
                return other
        self._keep(connection, job)
        return job

    def _keep(self, connection: Connection, job: Job) -> None:
        row: dict[str, Any] = {"job_id": job.job_id, "user_ref": job.user_ref}
        row |= {"stage": job.stage, "due_at": job.due_at, "body": job.dump()}
        connection.execute(insert(self._t.erasures).values(row))

    def _put(self, connection: Connection, subject: Subject) -> None:
        """Lock and set the subject: who is beginning a session of it is waited for."""
        table, row = self._t.subjects, subject._asdict()
        changed = update(table).where(table.c.ref == subject.ref).values(row)
        if connection.execute(changed).rowcount:
            return
        # Two that put it at once: the second waits here, and finds it.
        marks = ", ".join(f":{name}" for name in row)
        query = f"INSERT INTO {table.fullname} ({', '.join(row)}) VALUES ({marks})"
        added = connection.execute(text(f"{query} ON CONFLICT DO NOTHING"), row)
        if not added.rowcount:
            connection.execute(changed)

    def jobs(self, user_ref: str | None = None) -> list[Job]:
        query = self._under_way(user_ref)
        return self._all(user_ref, query, lambda row: Job.load(*row))

    def _jobs(self, connection: Connection, user_ref: str) -> list[Job]:
        rows = connection.execute(self._under_way(user_ref))
        return [Job.load(*row) for row in rows]

    def _under_way(self, user_ref: str | None) -> Any:
        table = self._t.erasures
        columns = table.c.job_id, table.c.user_ref, table.c.stage
        query = select(*columns, table.c.due_at, table.c.body)
        if user_ref is not None:
            query = query.where(table.c.user_ref == user_ref)
        return query.order_by(table.c.job_id)

    def advance(self, job: Job, before: Stage) -> Job | None:
        table = self._t.erasures
        here = table.c.job_id == job.job_id
        values = {"stage": job.stage, "due_at": job.due_at, "body": job.dump()}

        def attempt(connection: Connection) -> Job | None:
            changed = update(table).where(here, table.c.stage == before).values(values)
            if connection.execute(changed).rowcount:
                return job
            known = self._jobs(connection, job.user_ref)
            return next((one for one in known if one.job_id == job.job_id), None)

        return self._database.change(NOBODY, attempt)

    def end(
        self,
        job_id: str | None,
        subjects: Sequence[Subject],
        certificate: CertificateRow,
    ) -> bool:
        table = self._t.erasures

        def attempt(connection: Connection) -> bool:
            if job_id is not None:
                gone = delete(table).where(table.c.job_id == job_id)
                if not connection.execute(gone).rowcount:
                    return False
            for subject in subjects:
                self._put(connection, subject)
                if subject.status == "erased":
                    # Who is erased as a whole is named by no other job either.
                    others = delete(table).where(table.c.user_ref == subject.ref)
                    connection.execute(others)
            row = certificate._asdict()
            connection.execute(insert(self._t.certificates).values(row))
            return True

        return self._database.change(NOBODY, attempt)

    def subject(self, ref: str) -> Subject | None:
        table = self._t.subjects
        query = select(*_subject(table)).where(table.c.ref == ref)
        found = self._all(ref, query, lambda row: Subject(*row))
        return found[0] if found else None

    def subjects(self) -> list[Subject]:
        table = self._t.subjects
        changed = (table.c.status != "live") | (table.c.epoch > 1)
        query = select(*_subject(table)).where(changed).order_by(table.c.ref)
        return self._all(None, query, lambda row: Subject(*row))

    def set_subject(self, subject: Subject) -> None:
        self._database.change(NOBODY, lambda connection: self._put(connection, subject))

    def certificates(self, user_ref: str | None = None) -> list[CertificateRow]:
        table = self._t.certificates
        query = select(*(table.c[name] for name in CertificateRow._fields))
        if user_ref is not None:
            query = query.where(table.c.user_ref == user_ref)
        query = query.order_by(table.c.created_at, table.c.certificate_id)
        return self._all(user_ref, query, lambda row: CertificateRow(*row))

    def holds(self, user_ref: str) -> list[LegalHold]:
        query = self._of_user(user_ref)
        return self._all(user_ref, query, lambda row: LegalHold(*row))

    def _holds(self, connection: Connection, user_ref: str) -> list[LegalHold]:
        rows = connection.execute(self._of_user(user_ref))
        return [LegalHold(*row) for row in rows]

    def _of_user(self, user_ref: str) -> Any:
        table = self._t.holds
        query = select(table.c.name, table.c.reason, table.c.created_at)
        return query.where(table.c.user_ref == user_ref).order_by(table.c.name)

    def hold(self, user_ref: str, hold: LegalHold) -> bool:
        def attempt(connection: Connection) -> bool:
            # The subject is locked, so that an erasure begins before or after.
            self._locked(connection, user_ref)
            if any(one.name == hold.name for one in self._holds(connection, user_ref)):
                return False
            row = {"user_ref": user_ref, **hold._asdict()}
            connection.execute(insert(self._t.holds).values(row))
            return True

        return self._database.change(NOBODY, attempt)

    def _locked(self, connection: Connection, ref: str) -> Subject:
        """The user's subject: who begins a session waits, or was waited for.

        Where there is none it is put first: there is nothing to lock before, and who
        puts another at once would be overwritten.
        """
        table = self._t.subjects
        first = text(_FIRST.format(subjects=table.fullname))
        connection.execute(first, {"ref": ref})
        query = select(*_subject(table)).where(table.c.ref == ref).with_for_update()
        return Subject(*connection.execute(query).one())

    def release(self, user_ref: str, name: str) -> bool:
        table = self._t.holds
        gone = delete(table).where(table.c.user_ref == user_ref, table.c.name == name)
        return bool(self._database.change(NOBODY, lambda c: c.execute(gone)).rowcount)

    def facts(self) -> dict[str, Any]:
        settings = self._t.settings.c
        query = select(settings.name, settings.value)
        values = dict(self._all(NOBODY, query, tuple))
        schema = int(values.get("schema_version", 0))
        store_id = values.get("store_id", "")
        return {"store_id": store_id, "engine": self._database.name, "schema": schema}

    def key_generation(self) -> int:
        settings = self._t.settings.c
        query = select(settings.value).where(settings.name == _GENERATION)
        found = self._all(NOBODY, query, lambda row: int(row[0]))
        return found[0] if found else 0

    def saw_generation(self, generation: int) -> None:
        settings = self._t.settings
        here = settings.c.name == _GENERATION

        # Two that write it first: the second waits here, and finds the row.
        first = f"INSERT INTO {settings.fullname} (name, value) VALUES (:name, '0')"
        added = text(f"{first} ON CONFLICT DO NOTHING")

        def attempt(connection: Connection) -> None:
            connection.execute(added, {"name": _GENERATION})
            query = select(settings.c.value).where(here).with_for_update()
            if int(connection.execute(query).scalar_one()) < generation:
                value = {"value": str(generation)}
                connection.execute(update(settings).where(here).values(value))

        if generation > self.key_generation():
            self._database.change(NOBODY, attempt)

    def _all(
        self, user_ref: str | None, query: Any, of_row: Callable[[Any], T]
    ) -> list[T]:
        """What ``of_row`` makes of the rows of a query, all of them that user's."""
        return [of_row(row) for row in self._database.read(user_ref, query)]


def _subject(table: Table) -> tuple[Any, ...]:
    return tuple(table.c[name] for name in Subject._fields)


_AT_ONCE: Final = 2_000  # rows of one transaction
_PAUSE: Final = 0.5  # of the time that a transaction took: others have the disk then
_SESSIONS: Final = 200  # whose hashes are read at once


class SqlErasing(Records):
    """ErasingRows in the database of a dialect."""

    def __init__(self, dialect: Database, tree: Tree) -> None:
        super().__init__(dialect)
        self._tree = tree

    def unowned_blobs(self, user_id: str) -> bool:
        blobs = self._t.blobs.c
        query = select(blobs.size).where(*self._unowned(user_id)).limit(1)
        return bool(self._all(user_id, query, tuple))

    def own_blobs(
        self, user_id: str, session_id: str, addresses: Sequence[bytes]
    ) -> None:
        blobs = self._t.blobs

        def attempt(connection: Connection) -> None:
            for start in range(0, len(addresses), _SESSIONS):
                some = blobs.c.address.in_(addresses[start : start + _SESSIONS])
                owned = update(blobs).where(*self._unowned(user_id), some)
                connection.execute(owned.values(session_id=session_id))

        self._database.change(user_id, attempt)

    def _unowned(self, user_id: str) -> tuple[Any, ...]:
        blobs = self._t.blobs.c
        return blobs.user_id == user_id, blobs.session_id.is_(None)

    def mark(self, whose: Whose) -> None:
        self._database.change(whose.user_id, lambda c: self._mark(c, whose))

    def _mark(self, connection: Connection, whose: Whose) -> None:
        heads = self._t.heads
        mine = _of(heads, whose)
        order = (heads.c.user_id, heads.c.session_id, heads.c.stream)
        locked = (
            select(heads.c.seq)
            .where(*mine)
            .order_by(*order)
            .with_for_update(key_share=True)
        )
        marked = (
            update(heads)
            .where(*mine, heads.c.status != "erased")
            .values(before=heads.c.status, status="erased")
        )
        # Twice: a stream that began while the lock was waited for is seen by the
        # second, and with the main heads marked no other can begin.
        for _ in range(2):
            connection.execute(locked).all()
            connection.execute(marked)

    def unmark(self, whose: Whose, subjects: Sequence[Subject]) -> None:
        heads = self._t.heads
        back = (
            update(heads)
            .where(*_of(heads, whose), heads.c.before.is_not(None))
            .values(status=heads.c.before, before=None)
        )
        table = self._t.subjects

        def attempt(connection: Connection) -> None:
            connection.execute(back)
            for subject in subjects:
                if subject.ref == subject.user_ref:
                    self._put(connection, subject._replace(status="live"))
                else:
                    connection.execute(delete(table).where(table.c.ref == subject.ref))

        self._database.change(whose.user_id, attempt)

    def adopt(self, whose: Whose) -> None:
        events, heads = self._t.events, self._t.heads
        names = ("user_id", "session_id", "stream")
        of_events, of_heads = (
            select(*(table.c[name] for name in names)).where(*_of(table, whose))
            for table in (events, heads)
        )
        lost = of_events.except_(of_heads)
        nothing = {"seq": 0, "hash": b"", "status": "erased", "state": b""}
        nothing |= {"key_check": b"", "tokens": 0, "created_at": 0, "updated_at": 0}
        found = self._all(whose.user_id, lost, tuple)
        rows = [dict(zip(names, row, strict=True)) | nothing for row in found]
        if rows:
            self._database.change(
                whose.user_id, lambda c: c.execute(insert(heads), rows)
            )

    def remains(self, whose: Whose) -> Remains:
        counts = self.left(whose)
        leaves = map(leaf_hash, self._hashes(whose))
        return Remains(counts, counts["events"], root_of(leaves))

    def _hashes(self, whose: Whose) -> Iterator[bytes]:
        """The hashes of all events, in the order of session, stream and seq."""
        events, heads = self._t.events.c, self._t.heads.c
        query = select(heads.session_id).where(*_of(self._t.heads, whose)).distinct()
        names = sorted(self._all(whose.user_id, query, lambda row: str(row[0])))
        for start in range(0, len(names), _SESSIONS):
            some = Whose(whose.user_id, tuple(names[start : start + _SESSIONS]))
            columns = events.session_id, events.stream, events.seq, events.hash
            query = select(*columns).where(*_of(self._t.events, some))
            for row in sorted(self._all(whose.user_id, query, tuple)):
                yield bytes(row[3])

    def left(self, whose: Whose) -> dict[str, int]:
        found = {}
        for table in self._theirs():
            query = select(func.count()).select_from(table).where(*_of(table, whose))
            found[str(table.name)] = int(self._all(whose.user_id, query, tuple)[0][0])
        return found

    def _theirs(self) -> list[Table]:
        """Every table that has rows of users, whoever added it."""
        tables = self._t.metadata.sorted_tables
        return [table for table in tables if "user_id" in table.c]

    def delete(self, whose: Whose, erasure: str) -> Iterator[tuple[str, int]]:
        self._forget_leaves(whose, erasure)
        # As long as a row is there, the head says that it is erased.
        tables = sorted(self._theirs(), key=lambda table: table is self._t.heads)
        for table in tables:
            while True:
                started = time.monotonic()
                number = self._delete_some(table, whose)
                if not number:
                    break
                yield str(table.name), number
                time.sleep((time.monotonic() - started) * _PAUSE)

    def _forget_leaves(self, whose: Whose, erasure: str) -> None:
        """Tell the tree whose leaves are whose no more."""
        if self._tree is not None:
            for session in (None,) if whose.sessions is None else whose.sessions:
                self._tree.forget(whose.user_id, session, erasure)

    def _delete_some(self, table: Table, whose: Whose) -> int:
        place: Any = literal_column(self._database.place)
        some = select(place).select_from(table).where(*_of(table, whose))
        doomed = delete(table).where(self._database.among(some.limit(_AT_ONCE)))
        done = self._database.change(whose.user_id, lambda c: c.execute(doomed))
        return int(done.rowcount)

    def clean(self, *, vacuum: bool) -> dict[str, Any]:
        with self._database.errors:
            return self._database.clean(vacuum=vacuum)

    def found_in_files(self, names: Sequence[str]) -> dict[str, Any]:
        """Look for the names that nobody else's sessions have."""
        if not self._database.searchable:
            return {"files": {}, "names": 0, "too_short": 0}
        heads = self._t.heads.c
        query = select(heads.session_id).where(heads.session_id.in_(list(names)))
        with self._database.reading() as connection:
            others = set(connection.execute(query.distinct()).scalars())
        return self._database.found_in_files([n for n in names if n not in others])

    def tree_head(self) -> dict[str, Any] | None:
        newest = self._tree.newest()
        return newest.head.to_json() if newest else None


def _of(table: Table, whose: Whose) -> list[Any]:
    """The conditions for rows of ``whose``; a table that knows no sessions has none."""
    mine: list[Any] = [table.c.user_id == whose.user_id]
    if whose.sessions is None:
        return mine
    if "session_id" not in table.c:
        return [false()]
    return [*mine, table.c.session_id.in_(list(whose.sessions))]


# Only where the session is, whose erasure waits for this and takes it along.
_ADD: Final = """
INSERT INTO {accesses} AS a (user_id, session_id, reads, last_at)
SELECT :user_id, :session_id, :reads, :last_at FROM {heads}
WHERE user_id=:user_id AND session_id=:session_id AND stream='main'
  AND status<>'erased' {shared}
ON CONFLICT (user_id, session_id) DO UPDATE SET reads = a.reads + excluded.reads,
  last_at = CASE WHEN a.last_at > excluded.last_at THEN a.last_at
    ELSE excluded.last_at END
"""

_KEEPING_AT_ONCE: Final = 500


class SqlKeeping(SqlErasing):
    """KeepingRows in the database of a dialect."""

    def freeze(self, user_id: str, user_ref: str, freeze: LegalHold) -> bool:
        row = {"user_ref": user_ref, **freeze._asdict()}

        def attempt(connection: Connection) -> bool:
            subject = self._locked(connection, user_ref)
            if subject.status in ("erasing", "erased"):
                raise Erased("the user")
            if subject.status == "frozen":
                return False
            self._put(connection, subject._replace(status="frozen"))
            connection.execute(insert(self._t.holds).values(row))
            self._turn(connection, user_id, FROZEN)
            return True

        return self._database.change(user_id, attempt)

    def unfreeze(self, user_id: str, user_ref: str) -> bool:
        holds = self._t.holds
        gone = delete(holds).where(holds.c.user_ref == user_ref, holds.c.name == FREEZE)

        def attempt(connection: Connection) -> bool:
            subject = self._locked(connection, user_ref)
            if subject.status != "frozen":
                return False
            self._put(connection, subject._replace(status="live"))
            connection.execute(gone)
            self._turn(connection, user_id, THAWED)
            return True

        return self._database.change(user_id, attempt)

    def _turn(
        self, connection: Connection, user_id: str, into: Mapping[str, str]
    ) -> None:
        """Give all heads of the user the other status, also those marked as erased."""
        heads = self._t.heads
        mine = heads.c.user_id == user_id
        order = (heads.c.user_id, heads.c.session_id, heads.c.stream)
        locked = select(heads.c.seq).where(mine).order_by(*order).with_for_update()
        turned = update(heads).where(mine)
        # Twice, as when they are marked: a stream may begin while one is waited for.
        for _ in range(2):
            connection.execute(locked).all()
            for column in (heads.c.status, heads.c.before):
                other = case(dict(into), value=column, else_=column)
                some = turned.where(column.in_(list(into)))
                connection.execute(some.values({column: other}))

    def is_frozen(self, user_ref: str) -> bool:
        subject = self.subject(user_ref)
        return subject is not None and subject.status == "frozen"

    def add_accesses(self, user_id: str, accesses: Sequence[Accesses]) -> None:
        names = {
            name: getattr(self._t, name).fullname for name in ("accesses", "heads")
        }
        query = text(_ADD.format(**names, shared=self._database.shared))
        # In one order, so that no two of these wait for each other.
        rows = [one._asdict() for one in sorted(accesses)]
        self._database.change(
            user_id, lambda connection: connection.execute(query, rows)
        )

    def accesses(self, user_id: str | None) -> list[Accesses]:
        table = self._t.accesses
        query = select(*(table.c[name] for name in Accesses._fields))
        if user_id is not None:
            query = query.where(table.c.user_id == user_id)
        query = query.order_by(table.c.user_id, table.c.session_id)
        return self._all(user_id, query, lambda row: Accesses(*row))

    def old_blobs(self, before: int, after: tuple[str, bytes]) -> list[BlobPlace]:
        blobs = self._t.blobs.c
        query = (
            select(blobs.user_id, blobs.address, blobs.session_id)
            .where(blobs.created_at <= before, blobs.size > 0)
            .where(blobs.session_id.is_not(None))
            .where(tuple_(blobs.user_id, blobs.address) > tuple_(*after))
            .order_by(blobs.user_id, blobs.address)
            .limit(_KEEPING_AT_ONCE)
        )
        return self._all(None, query, lambda row: BlobPlace(*row))

    def expire_blobs(
        self, blobs: OldBlobs, rows: Sequence[BlobRow], key_check: bytes
    ) -> int:
        table, heads = self._t.blobs, self._t.heads.c
        mine = heads.user_id == blobs.user_id, heads.session_id == blobs.session_id
        live = select(heads.seq).where(
            *mine, heads.stream == MAIN, heads.status.in_(list(FROZEN))
        )
        live = live.where(heads.key_check == key_check).with_for_update(read=True)

        def attempt(connection: Connection) -> int:
            if connection.execute(live).first() is None:
                return 0
            done = 0
            for row in sorted(rows):
                here = table.c.user_id == blobs.user_id, table.c.address == row.address
                changed = update(table).where(*here, table.c.size > 0)
                values = {"body": row.body, "size": 0}
                done += connection.execute(changed.values(values)).rowcount
            return done

        return self._database.change(blobs.user_id, attempt)

    def begin_unused(
        self, job: Job, subjects: Sequence[Subject], unused: Unused
    ) -> Job | None:
        def attempt(connection: Connection) -> Job:
            self._locked(connection, job.user_ref)
            begun = self._begin(connection, job, subjects)
            if begun is job:
                if self._used(connection, job.whose, unused):
                    raise StillUsed
                self._mark(connection, job.whose)
            return begun

        try:
            return self._database.change(job.whose.user_id, attempt)
        except StillUsed:
            return None

    def _used(self, connection: Connection, whose: Whose, unused: Unused) -> bool:
        """Whether any was used, or another begun; their heads stay locked."""
        heads, accesses = self._t.heads.c, self._t.accesses.c
        of_user = heads.user_id == whose.user_id, heads.stream == MAIN
        every = connection.scalars(select(heads.session_id).where(*of_user))
        if set(every) != set(unused.known):
            return True
        names = list(whose.sessions or unused.known)
        query = select(heads.updated_at).where(*of_user, heads.session_id.in_(names))
        query = query.order_by(heads.session_id).with_for_update()
        if any(at > unused.since for at in connection.scalars(query)):
            return True
        mine = accesses.user_id == whose.user_id, accesses.session_id.in_(names)
        read = select(accesses.last_at).where(*mine, accesses.last_at > unused.since)
        return unused.reads and connection.execute(read).first() is not None


class SqlMending:
    """MendingRows in the database of a dialect."""

    def __init__(self, dialect: Database) -> None:
        self._database, self._t = dialect, dialect.tables

    def put_head(self, stream: StreamId, row: HeadRow, user_ref: str) -> bool:
        heads, events, subjects = self._t.heads, self._t.events, self._t.subjects.c
        # A head that is gone says neither that its user is frozen nor that it was
        # marked as erased; a freeze or an erasure that begins now waits for this.
        user = select(subjects.status).where(subjects.ref == user_ref)
        user = user.with_for_update(read=True)
        known = select(heads.c.status).where(*_stream(heads, stream)).with_for_update()
        last = select(events.c.seq, events.c.hash).where(*_stream(events, stream))
        last = last.order_by(events.c.seq.desc()).limit(1)
        values = row._asdict()

        def attempt(connection: Connection) -> bool:
            if connection.execute(user).scalar() not in (None, "live"):
                return False
            status = connection.execute(known).scalar()
            end = connection.execute(last).one_or_none()
            if status not in (None, *FROZEN) or end is None:  # or it is frozen
                return False
            if (end.seq, bytes(end.hash)) != (row.seq, row.hash):
                return False
            if status is None:
                names = {name: getattr(stream, name) for name in stream._fields}
                connection.execute(insert(heads).values(**names, **values))
            else:
                here = _stream(heads, stream)
                connection.execute(update(heads).where(*here).values(**values))
            return True

        return self._database.change(stream.user_id, attempt)

    def ends(self, stream: StreamId) -> dict[str, int]:
        return self._database.change(stream.user_id, lambda c: self._ends(c, stream))

    def _ends(self, connection: Connection, stream: StreamId) -> dict[str, int]:
        """The heads, locked until the transaction ends."""
        heads = self._t.heads.c
        query = select(heads.stream, heads.seq).where(
            heads.user_id == stream.user_id, heads.session_id == stream.session_id
        )
        found = connection.execute(query.order_by(heads.stream).with_for_update())
        return {row.stream: row.seq for row in found}

    def blob_addresses(self, stream: StreamId) -> list[bytes]:
        blobs = self._t.blobs.c
        query = select(blobs.address).where(
            blobs.user_id == stream.user_id, blobs.session_id == stream.session_id
        )
        found = self._database.read(stream.user_id, query)
        return [bytes(row.address) for row in found]

    def delete_blobs(
        self, stream: StreamId, addresses: tuple[bytes, ...], ends: dict[str, int]
    ) -> bool:
        blobs = self._t.blobs
        theirs = blobs.c.user_id == stream.user_id

        def attempt(connection: Connection) -> bool:
            if self._ends(connection, stream) != ends:
                return False
            for address in addresses:
                here = blobs.c.address == address
                connection.execute(delete(blobs).where(theirs, here))
            return True

        return self._database.change(stream.user_id, attempt)


def _stream(table: Any, stream: StreamId) -> list[Any]:
    return [getattr(table.c, name) == getattr(stream, name) for name in stream._fields]
