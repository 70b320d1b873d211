"""Who may begin: users, and sessions that were erased, by keyed hashes."""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple, TypeAlias

from sqlalchemy import Connection, select, text, update

from refold.adapters.sql.database import NOBODY, Database
from refold.domain.errors import KeyUnavailable

SubjectStatus: TypeAlias = Literal["live", "frozen", "erasing", "erased"]
_GENERATION: Final = "key_generation"
_FIRST: Final = """
INSERT INTO {subjects} (ref, user_ref, status, epoch)
VALUES (:ref, :ref, 'live', 1) ON CONFLICT DO NOTHING
"""


class Subject(NamedTuple):
    """A user, or a session that was erased."""

    ref: str
    user_ref: str
    status: SubjectStatus
    epoch: int


class Subjects:
    """The subjects of a database, and the newest key store that it has seen."""

    def __init__(self, database: Database) -> None:
        self._database, self._t = database, database.tables

    def of(self, ref: str) -> Subject | None:
        """The subject, if anything is known of it."""
        query = select(*self._columns()).where(self._t.subjects.c.ref == ref)
        found = [Subject(*row) for row in self._database.read(ref, query)]
        return found[0] if found else None

    def changed(self) -> list[Subject]:
        """All that are not live, or are not in their first epoch."""
        subjects = self._t.subjects.c
        query = select(*self._columns()).order_by(subjects.ref)
        query = query.where((subjects.status != "live") | (subjects.epoch > 1))
        return [Subject(*row) for row in self._database.read(None, query)]

    def set(self, subject: Subject) -> None:
        """Keep it."""
        self._database.change(NOBODY, lambda connection: self.put(connection, subject))

    def put(self, connection: Connection, subject: Subject) -> None:
        """Lock and keep it: who is beginning a session of it is waited for."""
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

    def locked(self, connection: Connection, ref: str) -> Subject:
        """The user's subject: who begins a session waits, or was waited for.

        Where there is none it is put first: there is nothing to lock before, and who
        puts another at once would be overwritten.
        """
        table = self._t.subjects
        first = text(_FIRST.format(subjects=table.fullname))
        connection.execute(first, {"ref": ref})
        query = select(*self._columns()).where(table.c.ref == ref).with_for_update()
        return Subject(*connection.execute(query).one())

    def _columns(self) -> tuple[Any, ...]:
        return tuple(self._t.subjects.c[name] for name in Subject._fields)

    def key_generation(self) -> int:
        """The key store's generation when it was written down last; 0 if never."""
        settings = self._t.settings.c
        query = select(settings.value).where(settings.name == _GENERATION)
        found = self._database.read(NOBODY, query)
        try:
            return int(found[0][0]) if found else 0
        except ValueError:
            raise KeyUnavailable(
                "the database does not say how new its key store is",
                remedy="restore a backup of the database",
            ) from None

    def saw_generation(self, generation: int) -> None:
        """Write down the key store's generation, if it is higher than before."""
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
