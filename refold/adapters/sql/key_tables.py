"""The tables of a key store, the same for all engines."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import sqlalchemy as sa

from refold.adapters.sql.queries import statements

SCHEMA: Final = "refold_keys"  # the schema of the tables on PostgreSQL
_SQL: Final = statements("keystore")


class KeyTables:
    """The tables of a key store, in their own schema if the engine has schemas.

    users:     the row of an erased user has only the keyed hash and the epoch.
    sessions:  the first key of each session.
    rotated:   the later keys of a session, by version.
    held_keys: keys that an erasure has set aside.  A user's key has the session ``""``
               and the version 0.
    erased:    erased sessions.
    """

    def __init__(self, *, schema: bool) -> None:
        self.metadata = sa.MetaData(schema=SCHEMA if schema else None)
        self.settings = self._settings()
        self.users = self._users()
        self.sessions = self._sessions()
        self.rotated = self._with_version("rotated_session_keys")
        self.held_keys = self._with_version("held_keys")
        self.erased = self._erased()
        self._names = {
            table.name: str(table) for table in self.metadata.tables.values()
        }
        # Lock rows that were read; SQLite has only one writer and needs no locks.
        self._names["shared"] = "FOR SHARE" if schema else ""
        self._names["locked"] = "FOR UPDATE" if schema else ""
        self._names["of_user"] = "user_ref=:user"
        self.statement = cache(self._statement)

    def _settings(self) -> sa.Table:
        return sa.Table(
            "settings",
            self.metadata,
            sa.Column("name", sa.Text, primary_key=True),
            sa.Column("value", sa.LargeBinary, nullable=False),
        )

    def _users(self) -> sa.Table:
        return sa.Table(
            "user_keys",
            self.metadata,
            sa.Column("user_ref", sa.Text, primary_key=True),
            sa.Column("epoch", sa.Integer, nullable=False),
            sa.Column("wrapped", sa.LargeBinary),
            sa.Column("created_at", sa.BigInteger, nullable=False),
        )

    def _sessions(self) -> sa.Table:
        return sa.Table(
            "session_keys", self.metadata, *_session_refs(), *_wrapped_key()
        )

    def _with_version(self, name: str) -> sa.Table:
        """Return a table of session keys, with several versions of a key."""
        return sa.Table(
            name,
            self.metadata,
            *_session_refs(),
            sa.Column("version", sa.Integer, primary_key=True),
            *_wrapped_key(),
        )

    def _erased(self) -> sa.Table:
        return sa.Table(
            "erased_sessions",
            self.metadata,
            *_session_refs(),
            sa.Column("erased_at", sa.BigInteger, nullable=False),
        )

    def _statement(self, name: str, of: str = "") -> sa.TextClause:
        """Return the statement with this name, with ``of`` as its condition."""
        return sa.text(_SQL[name].format(**self._names, of=of))


def _session_refs() -> list[sa.Column[str]]:
    """Return the columns with the keyed hashes of a session and its user."""
    return [
        sa.Column("user_ref", sa.Text, primary_key=True),
        sa.Column("session_ref", sa.Text, primary_key=True),
    ]


def _wrapped_key() -> list[sa.Column[Any]]:
    """Return the columns of a wrapped key and of its time."""
    return [
        sa.Column("wrapped", sa.LargeBinary, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
    ]


@cache
def key_tables(*, schema: bool) -> KeyTables:
    """Return the tables, which are described once in a process."""
    return KeyTables(schema=schema)
