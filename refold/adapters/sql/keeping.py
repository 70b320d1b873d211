"""Freezes, accesses and unused sessions in a database."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, case, delete, insert, select, text, tuple_, update

from refold.adapters.erasing_rows import Subject
from refold.adapters.keeping_rows import FROZEN, THAWED, BlobPlace, StillUsed
from refold.adapters.recorder import BlobRow
from refold.adapters.sql.erasing import SqlErasing
from refold.domain.erasure import Job, LegalHold, Whose
from refold.domain.errors import Erased
from refold.domain.ids import MAIN
from refold.domain.keeping import FREEZE, Accesses, OldBlobs, Unused

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

_AT_ONCE: Final = 500
T = TypeVar("T")


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

        return self._changing(user_id, attempt)

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

        return self._changing(user_id, attempt)

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
        query = text(_ADD.format(**names, shared=self._dialect.shared))
        # In one order, so that no two of these wait for each other.
        rows = [one._asdict() for one in sorted(accesses)]
        self._changing(user_id, lambda connection: connection.execute(query, rows))

    def accesses(self, user_id: str | None) -> list[Accesses]:
        table = self._t.accesses
        query = select(*(table.c[name] for name in Accesses._fields))
        if user_id is not None:
            query = query.where(table.c.user_id == user_id)
        query = query.order_by(table.c.user_id, table.c.session_id)
        return self._reading(user_id, query, lambda row: Accesses(*row))

    def old_blobs(self, before: int, after: tuple[str, bytes]) -> list[BlobPlace]:
        blobs = self._t.blobs.c
        query = (
            select(blobs.user_id, blobs.address, blobs.session_id)
            .where(blobs.created_at <= before, blobs.size > 0)
            .where(blobs.session_id.is_not(None))
            .where(tuple_(blobs.user_id, blobs.address) > tuple_(*after))
            .order_by(blobs.user_id, blobs.address)
            .limit(_AT_ONCE)
        )
        return self._reading(None, query, lambda row: BlobPlace(*row))

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

        return self._changing(blobs.user_id, attempt)

    def _reading(
        self, user_id: str | None, query: Any, of_row: Callable[[Any], T]
    ) -> list[T]:
        """What ``of_row`` makes of the rows, of that user or of all."""

        def attempt() -> list[T]:
            with self._dialect.reading(user_id) as connection:
                return [of_row(row) for row in connection.execute(query)]

        with self._errors:
            return self._dialect.retrying(attempt)

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
            return self._changing(job.whose.user_id, attempt)
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
