"""The records of erasing: who is known, what is under way, certificates, legal holds.

They name nobody but by keyed hashes; a job under way alone has the user's id in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Table, delete, insert, select, text, update

from refold.adapters.erasing_rows import CertificateRow, Subject
from refold.adapters.sql.dialect import NOBODY, Dialect, ErrorsTranslated
from refold.domain.erasure import Job, LegalHold, Stage
from refold.domain.errors import OnHold

_GENERATION: Final = "key_generation"
_FIRST: Final = """
INSERT INTO {subjects} (ref, user_ref, status, epoch)
VALUES (:ref, :ref, 'live', 1) ON CONFLICT DO NOTHING
"""
T = TypeVar("T")


class Records:
    """The records in the database of a dialect."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect, self._t = dialect, dialect.tables
        self._errors = ErrorsTranslated(dialect)

    def begin(self, job: Job, subjects: Sequence[Subject]) -> Job:
        return self._changing(NOBODY, lambda c: self._begin(c, job, subjects))

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

        return self._changing(NOBODY, attempt)

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

        return self._changing(NOBODY, attempt)

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
        self._changing(NOBODY, lambda connection: self._put(connection, subject))

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

        return self._changing(NOBODY, attempt)

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
        return bool(self._changing(NOBODY, lambda c: c.execute(gone)).rowcount)

    def facts(self) -> dict[str, Any]:
        settings = self._t.settings.c
        query = select(settings.name, settings.value)
        values = dict(self._all(NOBODY, query, tuple))
        schema = int(values.get("schema_version", 0))
        store_id = values.get("store_id", "")
        return {"store_id": store_id, "engine": self._dialect.name, "schema": schema}

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
            self._changing(NOBODY, attempt)

    def _all(
        self, user_ref: str | None, query: Any, of_row: Callable[[Any], T]
    ) -> list[T]:
        """What ``of_row`` makes of the rows of a query, all of them that user's."""

        def attempt() -> list[T]:
            with self._dialect.reading(user_ref) as connection:
                return [of_row(row) for row in connection.execute(query)]

        with self._errors:
            return self._dialect.retrying(attempt)

    def _changing(self, user_id: str, change: Callable[[Connection], T]) -> T:
        """One transaction that can write that user's rows."""

        def attempt() -> T:
            with self._dialect.writing(user_id) as connection:
                return change(connection)

        with self._errors:
            return self._dialect.retrying(attempt)


def _subject(table: Table) -> tuple[Any, ...]:
    return tuple(table.c[name] for name in Subject._fields)
