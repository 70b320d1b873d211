"""Permissions on PostgreSQL: the roles, their grants, and the rows that each sees.

A role has the rights in ``RIGHTS`` and no others.  Grants limit the verbs and the
columns, row-level security limits the rows.  Neither applies to the owner of the
tables, so a store with a single role works without them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import psycopg
from sqlalchemy import MetaData, Table

from refold.adapters.sql import queries
from refold.adapters.sql.queries import SCHEMA
from refold.domain.errors import StoreUnavailable

APP: Final = "refold_app"
WRITER: Final = "refold_writer"
ERASER: Final = "refold_eraser"
SEALER: Final = "refold_sealer"
AUDITOR: Final = "refold_auditor"
ROLES: Final = (APP, WRITER, ERASER, SEALER, AUDITOR)
SETTING: Final = "refold.user_id"

# Conditions on the rows that a right is for.
_ALL: Final = "true"
_NONE: Final = "false"
# As a subquery, the setting is read once per statement and not once per row.
_NAMED: Final = f"(SELECT current_setting('{SETTING}', true))"
OWN: Final = f"user_id = {_NAMED}"  # rows of the user that the connection names
# Records of erasures know a user by a keyed hash: the connection names that instead.
_OWN_RECORD: Final = f"user_ref = {_NAMED}"
_OF_NO_USER: Final = "user_id = ''"  # rows of the store as a whole
_LIVE: Final = "status IN ('open', 'closed')"  # neither frozen nor erased


class Right(NamedTuple):
    """The right to use one verb on a table.

    rows:     the condition on rows that the verb may see or change.
    becoming: the condition on rows after the change; empty if it is that of ``rows``.
    columns:  the columns that it is limited to; empty for all.
    """

    verb: str
    rows: str = _ALL
    becoming: str = ""
    columns: tuple[str, ...] = ()


_TableRights: TypeAlias = Mapping[str, Sequence[Right]]


def _select(rows: str = _ALL, *, columns: tuple[str, ...] = ()) -> Right:
    return Right("SELECT", rows, columns=columns)


def _insert(*, becoming: str = "") -> Right:
    return Right("INSERT", becoming=becoming)


def _update(rows: str = _ALL, *, columns: tuple[str, ...] = ()) -> Right:
    return Right("UPDATE", rows, columns=columns)


def _delete() -> Right:
    return Right("DELETE")


def _lock(rows: str = _ALL, *, columns: tuple[str, ...]) -> Right:
    """Return the right to lock rows.

    PostgreSQL requires the right to update them; the check refuses every change.
    """
    return Right("UPDATE", rows, _NONE, columns)


def _all(rows: str = _ALL) -> tuple[Right, ...]:
    return (
        Right("SELECT", rows),
        Right("INSERT", rows),
        Right("UPDATE", rows),
        Right("DELETE", rows),
    )


# The agents' processes: they see one user at a time, and write events as the writer.
_APP_RIGHTS: Final[_TableRights] = {
    "heads": (
        _select(OWN),
        _lock(OWN, columns=("updated_at",)),
    ),
    "events": (_select(OWN),),
    "blobs": (_select(OWN),),
    "receipts": (_select(OWN),),
    "seals": (_select(OWN),),
    "views": _all(OWN),
    "leases": _all(OWN),
    "accesses": _all(OWN),
    "labels": _all(OWN),
    "exports": _all(OWN),
    "audit": (_insert(),),
    "subjects": (_select(_OWN_RECORD),),
    "erasures": (_select(_OWN_RECORD),),
    "certificates": (_select(_OWN_RECORD),),
    "holds": (_select(_OWN_RECORD),),
    "settings": (_select(),),
    "leaves": (_select(),),
    "tree_heads": (_select(),),
}
# Inserts events of any user, and reads none of their content.
_WRITER_RIGHTS: Final[_TableRights] = {
    "events": (
        _select(
            columns=(
                "user_id",
                "session_id",
                "stream",
                "seq",
                "hash",
            )
        ),
        _insert(),
    ),
    "heads": (
        _select(),
        _insert(becoming="status <> 'erased'"),
        _update(
            _LIVE,
            columns=(
                "seq",
                "hash",
                "status",
                "state",
                "key_check",
                "tokens",
                "created_at",
                "updated_at",
            ),
        ),
    ),
    "blobs": (_insert(),),
    "receipts": (
        _select(),
        _insert(),
    ),
    "subjects": (
        _select(),
        _insert(becoming="status = 'live' AND ref = user_ref"),
        _lock(columns=("epoch",)),
    ),
}
# Seals the log: it reads hashes, and no content.
_SEALER_RIGHTS: Final[_TableRights] = {
    "events": (
        _select(
            columns=(
                "user_id",
                "session_id",
                "stream",
                "seq",
                "position",
                "event_id",
                "hash",
            )
        ),
    ),
    "heads": (
        _select(
            columns=(
                "user_id",
                "session_id",
                "stream",
                "seq",
                "hash",
                "status",
            )
        ),
        _lock(columns=("updated_at",)),
    ),
    "audit": (_insert(),),
    "receipts": (_select(),),
    "leases": _all(_OF_NO_USER),
    "settings": (_select(),),
    "leaves": (
        _select(),
        _insert(),
    ),
    "seals": (
        _select(),
        _insert(),
    ),
    "tree_heads": (
        _select(),
        _insert(),
    ),
}
# Erases users: it changes all user data, and adds certificates.
_ERASER_RIGHTS: Final[_TableRights] = {
    "events": (
        _select(),
        _insert(),
        _delete(),
        _update(
            columns=(
                "body",
                "first_digest",
            )
        ),
    ),
    "heads": _all(),
    "blobs": _all(),
    "receipts": _all(),
    "views": _all(),
    "leases": _all(),
    "accesses": _all(),
    "labels": _all(),
    "exports": _all(),
    "audit": _all(),
    "seals": _all(),
    "subjects": _all(),
    "erasures": _all(),
    "certificates": (
        _select(),
        _insert(),
    ),
    "holds": _all(),
    "leaves": (
        _select(),
        _update(columns=("erasure",)),
    ),
    "tree_heads": (_select(),),
    "settings": (
        _select(),
        _insert(),
        _update(),
    ),
}
# Reads everything.
_AUDITOR_RIGHTS: Final[_TableRights] = {
    "events": (_select(),),
    "heads": (_select(),),
    "blobs": (_select(),),
    "receipts": (_select(),),
    "views": (_select(),),
    "leases": (_select(),),
    "settings": (_select(),),
    "subjects": (_select(),),
    "erasures": (_select(),),
    "certificates": (_select(),),
    "holds": (_select(),),
    "leaves": (_select(),),
    "seals": (_select(),),
    "tree_heads": (_select(),),
    "accesses": (_select(),),
    "labels": (_select(),),
    "exports": (_select(),),
    "audit": (
        _select(),
        _insert(),
    ),
}
# The rights of each role, by table.
RIGHTS: Final[Mapping[str, _TableRights]] = {
    APP: _APP_RIGHTS,
    WRITER: _WRITER_RIGHTS,
    SEALER: _SEALER_RIGHTS,
    ERASER: _ERASER_RIGHTS,
    AUDITOR: _AUDITOR_RIGHTS,
}
_SQL: Final = queries.statements("roles")


def statements(metadata: MetaData) -> Iterator[str]:
    """Yield the statements that create the roles and grant their rights.

    Run them in one transaction, as the owner of the tables with the right to create
    roles.  Running them again changes nothing.
    """
    roles = ", ".join(ROLES)
    yield from (_SQL["create"].format(role=role) for role in ROLES)
    yield from (_SQL["become"].format(role=role) for role in (APP, ERASER))
    yield _SQL["forget"]
    yield f"REVOKE ALL ON ALL TABLES IN SCHEMA {SCHEMA} FROM PUBLIC, {roles}"
    yield f"GRANT USAGE ON SCHEMA {SCHEMA} TO {roles}"
    yield _SQL["has_sessions"]
    yield f"REVOKE ALL ON FUNCTION {SCHEMA}.has_sessions() FROM PUBLIC"
    yield f"GRANT EXECUTE ON FUNCTION {SCHEMA}.has_sessions() TO {roles}"
    for table in sorted(metadata.tables.values(), key=lambda table: table.name):
        yield f"ALTER TABLE {table.fullname} ENABLE ROW LEVEL SECURITY"
        for role in ROLES:
            for right in RIGHTS[role].get(table.name, ()):
                yield _grant(table, role, right)
                yield _policy(table, role, right)


def _grant(table: Table, role: str, right: Right) -> str:
    columns = f" ({', '.join(right.columns)})" if right.columns else ""
    return f"GRANT {right.verb}{columns} ON {table.fullname} TO {role}"


def _policy(table: Table, role: str, right: Right) -> str:
    name = f"{role}_{right.verb.lower()}"
    policy = f"CREATE POLICY {name} ON {table.fullname} FOR {right.verb} TO {role}"
    if right.verb != "INSERT":
        policy += f" USING ({right.rows})"
    if right.verb in ("INSERT", "UPDATE"):
        policy += f" WITH CHECK ({right.becoming or right.rows})"
    return policy


FORGET: Final = _SQL["forget"]  # drops all policies of Refold
# The rows that a role sees: as owner all of them without policies, all by a policy, or
# one user's at a time.
Sight: TypeAlias = Literal["owner", "all", "one"]

BIND: Final = f"SELECT set_config('{SETTING}', %s, true)"
_WRITE: Final = f"SET ROLE {WRITER}"
_WRITE_ONCE: Final = f"SET LOCAL ROLE {WRITER}"


def sight(driver: psycopg.Connection[Any]) -> Sight:
    """Return which rows the role of this connection sees."""
    row = driver.execute(_SQL["sight"]).fetchone()
    has_policies, sees_all = row or (True, False)
    if not has_policies:
        return "owner"
    return "all" if sees_all else "one"


def any_session(seen: Sight) -> str:
    """Return the query for whether any session exists.

    Only the owner queries the table, because other roles may see one user's rows.
    """
    if seen == "owner":
        return f"SELECT EXISTS (SELECT 1 FROM {SCHEMA}.heads)"
    return f"SELECT {SCHEMA}.has_sessions()"


def become_writer(driver: psycopg.Connection[Any], *, once: bool = False) -> None:
    """Switch to the role that inserts for any user.

    once: whether to switch for the current transaction alone.
    """
    driver.execute(_WRITE_ONCE if once else _WRITE)


def refuse(shown: str) -> StoreUnavailable:
    """Return the error for a read of all users by a role that sees one at a time.

    Without the error, the read would return nothing, as from an empty store.
    """
    return StoreUnavailable(
        f"{shown} shows this role one user at a time",
        remedy="name the user, or connect as a member of refold_auditor",
    )
