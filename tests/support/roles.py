"""Databases with the roles of the how-to, and a user in each role."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

import psycopg

from refold.adapters.sql.roles import ROLES
from refold.adapters.sql.schema import roles as script
from refold.adapters.sql.urls import EngineName
from tests.support.postgres import Postgres

_ONE_AT_A_TIME: Final = 0x726F6C6573


class Walled(NamedTuple):
    """URLs of one database: of the owner of its tables, and of a user in each role."""

    owner: str
    app: str
    writer: str
    eraser: str
    sealer: str
    auditor: str


@contextmanager
def users(server: Postgres, url: str | None = None) -> Iterator[Mapping[str, str]]:
    """Create a login in each role; the roles must exist.

    The roles belong to the whole server, and stay: other tests use them concurrently.
    ``url`` is a database in which they can be created.
    """
    url = url or server.url
    mark = uuid.uuid4().hex[:12]
    names = {role: f"{role}_{mark}" for role in ROLES}
    with psycopg.connect(url, autocommit=True) as owner:
        # Both sides hash a password for every connection.
        if owner.info.server_version >= 160000:
            owner.execute("SET scram_iterations = 1")
        for role, user in names.items():
            owner.execute(f"CREATE ROLE {user} LOGIN PASSWORD 'x' IN ROLE {role}")
    try:
        yield names
    finally:
        with psycopg.connect(url, autocommit=True) as owner:
            for user in names.values():
                owner.execute(f"DROP ROLE {user}")


def walled(url: str, users: Mapping[str, str]) -> Walled:
    """Return the URLs of a database whose roles are set up."""
    return Walled(url, *(as_user(url, users[role]) for role in ROLES))


def set_up(server: Postgres, url: str, engine: EngineName = "postgresql") -> None:
    """Run the SQL that ``refold schema --roles`` prints."""
    with alone(server), psycopg.connect(url, autocommit=True) as owner:
        for statement in script(engine):
            owner.execute(statement)


@contextmanager
def alone(server: Postgres) -> Iterator[None]:
    """Keep other tests from creating roles, which belong to the whole server."""
    with psycopg.connect(server.url, autocommit=True) as guard:
        guard.execute("SELECT pg_advisory_lock(%s)", (_ONE_AT_A_TIME,))
        yield


def as_user(url: str, user: str) -> str:
    """Return the URL of the same database for another user."""
    return f"postgresql://{user}:x@{url.split('@', 1)[1]}"
