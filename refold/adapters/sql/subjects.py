"""Who may begin: users, and sessions that were erased, by keyed hashes."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

from sqlalchemy import Connection, select, update

from refold.adapters.sql.database import NOBODY, Database
from refold.adapters.sql.tables import statements
from refold.domain.errors import KeyUnavailable

SubjectStatus: TypeAlias = Literal["live", "frozen", "erasing", "erased"]
_GENERATION: Final = "key_generation"
_SQL: Final = statements("recorder")


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
        found = self._database.fetch(ref, _SQL["subject_of"], (ref,))
        return Subject(*found[0]) if found else None

    def changed(self) -> list[Subject]:
        """All that are not live, or are not in their first epoch."""
        found = self._database.fetch(None, _SQL["changed_subjects"], ())
        return [Subject(*row) for row in found]

    def set(self, subject: Subject) -> None:
        """Keep it."""
        self._database.change(NOBODY, lambda connection: self.put(connection, subject))

    def put(self, connection: Connection, subject: Subject) -> None:
        """Lock and keep it: who is beginning a session of it is waited for."""
        # Two that put it at once: the second waits where it is added, and finds it.
        for name in ("change_subject", "add_subject", "change_subject"):
            done = self._database.statement(_SQL[name])
            if connection.execute(done, subject._asdict()).rowcount:
                return

    def locked(self, connection: Connection, ref: str) -> Subject:
        """The user's subject: who begins a session waits, or was waited for.

        Where there is none it is put first: there is nothing to lock before, and who
        puts another at once would be overwritten.
        """
        subjects = self._t.subjects
        first = Subject(ref, ref, "live", 1)._asdict()
        connection.execute(self._database.statement(_SQL["add_subject"]), first)
        query = select(subjects).where(subjects.c.ref == ref).with_for_update()
        return Subject(*connection.execute(query).one())

    def key_generation(self) -> int:
        """The key store's generation when it was written down last; 0 if never."""
        found = self._database.fetch(NOBODY, _SQL["setting"], (_GENERATION,))
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
        added = self._database.statement(_SQL["add_setting"])

        def attempt(connection: Connection) -> None:
            connection.execute(added, {"name": _GENERATION})
            query = select(settings.c.value).where(here).with_for_update()
            if int(connection.execute(query).scalar_one()) < generation:
                value = {"value": str(generation)}
                connection.execute(update(settings).where(here).values(value))

        if generation > self.key_generation():
            self._database.change(NOBODY, attempt)
