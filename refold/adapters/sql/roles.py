"""Who may do what on PostgreSQL: roles, the rows each of them sees, and their grants.

A role has no right that `rights.toml` does not give, and sees no row of other tables.
Rights are grants (which verbs, which columns) and row-level security (which rows); the
owner of the tables is held by neither, so a store with one role works as it did.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import psycopg
from sqlalchemy import MetaData, Table

from refold.adapters.sql import tables
from refold.adapters.sql.tables import SCHEMA
from refold.domain.canonical import shipped
from refold.domain.errors import StoreUnavailable

APP: Final = "refold_app"
WRITER: Final = "refold_writer"
ERASER: Final = "refold_eraser"
SEALER: Final = "refold_sealer"
AUDITOR: Final = "refold_auditor"
ROLES: Final = (APP, WRITER, ERASER, SEALER, AUDITOR)
SETTING: Final = "refold.user_id"

_ALL: Final = "true"
_NONE: Final = "false"
# In a query of its own: it is then asked once a statement, not once a row.
_NAMED: Final = f"(SELECT current_setting('{SETTING}', true))"
OWN: Final = f"user_id = {_NAMED}"
# Records of erasing know a user by a keyed hash, which is what is named to see them.
_OWN_RECORD: Final = f"user_ref = {_NAMED}"


class Right(NamedTuple):
    """One verb on a table: on which rows, which they may become, which columns."""

    verb: str
    rows: str = _ALL
    becoming: str = ""
    columns: tuple[str, ...] = ()


_LIVE: Final = "status IN ('open', 'closed')"  # neither frozen nor erased
_ROWS: Final = {"": _ALL, "own": OWN, "own_record": _OWN_RECORD, "live": _LIVE}
_ROWS["nobodys"] = "user_id = ''"
_RIGHT: Final = re.compile(
    r"([A-Z]+)(?: ([a-z_]+))?(?: -> ([^()]+?))?(?: \(([a-z_, ]+)\))?"
)
_CHANGE: Final = ("SELECT", "INSERT", "UPDATE", "DELETE")


def _rights(told: str) -> Iterator[Right]:
    """The rights that a text in ``rights.toml`` gives."""
    found = _RIGHT.fullmatch(told)
    if found is None:
        raise ValueError(f"rights.toml: {told!r} is no right")
    verb, rows, becoming, columns = found.groups("")
    names = tuple(columns.split(", ")) if columns else ()
    if verb == "LOCK":
        verb, becoming = "UPDATE", _NONE
    for one in _CHANGE if verb == "ALL" else (verb,):
        yield Right(one, _ROWS[rows], becoming, names)


def _read() -> Mapping[str, Mapping[str, Sequence[Right]]]:
    return {
        role: {
            table: [right for one in texts for right in _rights(one)]
            for table, texts in of.items()
        }
        for role, of in shipped("refold.adapters.sql", "data", "rights.toml").items()
    }


# What each role may, by table.
RIGHTS: Final = _read()
_SQL: Final = tables.statements("roles")


def statements(metadata: MetaData) -> Iterator[str]:
    """What makes the roles and gives them their rights; can be run again.

    To be run by the owner of the tables, who may create roles, in one transaction.
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
    said = f"CREATE POLICY {name} ON {table.fullname} FOR {right.verb} TO {role}"
    if right.verb != "INSERT":
        said += f" USING ({right.rows})"
    if right.verb in ("INSERT", "UPDATE"):
        said += f" WITH CHECK ({right.becoming or right.rows})"
    return said


FORGET: Final = _SQL["forget"]  # drops all policies of ours
# What a role sees: no policy holds it, all rows by a policy, or one user's at a time.
Sight: TypeAlias = Literal["owner", "all", "one"]

BIND: Final = f"SELECT set_config('{SETTING}', %s, true)"
_WRITE: Final = f"SET ROLE {WRITER}"
_WRITE_ONCE: Final = f"SET LOCAL ROLE {WRITER}"


def sight(driver: psycopg.Connection[Any]) -> Sight:
    """What the role of this connection sees."""
    found = driver.execute(_SQL["sight"]).fetchone()
    walled, everyone = found or (True, False)
    if not walled:
        return "owner"
    return "all" if everyone else "one"


def any_session(seen: Sight) -> str:
    """What asks whether there is any session: a role that sees one user's cannot."""
    if seen == "owner":
        return f"SELECT EXISTS (SELECT 1 FROM {SCHEMA}.heads)"
    return f"SELECT {SCHEMA}.has_sessions()"


def become_writer(driver: psycopg.Connection[Any], *, once: bool = False) -> None:
    """Write as the role that inserts for any user; ``once``: in this transaction."""
    driver.execute(_WRITE_ONCE if once else _WRITE)


def refuse(shown: str) -> StoreUnavailable:
    """What to raise for a read of all users: an empty answer would pass for one."""
    return StoreUnavailable(
        f"{shown} shows this role one user at a time",
        remedy="name the user, or connect as a member of refold_auditor",
    )
