"""Whose rows a PostgreSQL role sees, and how each statement says for whom it is.

Row-level security is a second wall: every statement names its user already.  A role
that sees one user at a time has the user set in the transaction of the statement, in
the same round trip, so that nothing is left on a connection for the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias

import psycopg

from refold.adapters.sql.postgres_append import SCHEMA
from refold.adapters.sql.postgres_roles import SETTING, WRITER
from refold.domain.errors import StoreUnavailable

# What a role sees: no policy holds it, all rows by a policy, or one user's at a time.
Sight: TypeAlias = Literal["owner", "all", "one"]

BIND: Final = f"SELECT set_config('{SETTING}', %s, true)"
_WRITE: Final = f"SET ROLE {WRITER}"
_WRITE_ONCE: Final = f"SET LOCAL ROLE {WRITER}"
_SIGHT: Final = f"""
SELECT row_security_active('{SCHEMA}.heads'), EXISTS (
  SELECT FROM pg_policy p, unnest(p.polroles) r
  WHERE p.polrelid = '{SCHEMA}.heads'::regclass AND p.polcmd IN ('r', '*')
    AND pg_get_expr(p.polqual, p.polrelid) = 'true' AND pg_has_role(r, 'USAGE'))
"""


def sight(driver: psycopg.Connection[Any]) -> Sight:
    """What the role of this connection sees."""
    found = driver.execute(_SIGHT).fetchone()
    walled, everyone = found or (True, False)
    if not walled:
        return "owner"
    return "all" if everyone else "one"


def fetch(
    driver: psycopg.Connection[Any], user_id: str, query: str, values: Sequence[Any]
) -> list[tuple[Any, ...]]:
    """The rows of a query for that user, in one round trip.

    Both statements are of one transaction, which the end of the pipeline commits: the
    setting is gone with it.
    """
    with driver.pipeline():
        driver.execute(BIND, (user_id,), prepare=True)
        found = driver.execute(query, values, binary=True)
    return found.fetchall()


def bind(driver: psycopg.Connection[Any], user_id: str) -> None:
    """Say for whom the transaction is."""
    driver.execute(BIND, (user_id,))


def any_session(seen: Sight) -> str:
    """What asks whether there is any session: a role that sees one user's cannot."""
    if seen == "owner":
        return f"SELECT EXISTS (SELECT FROM {SCHEMA}.heads)"
    return f"SELECT {SCHEMA}.has_sessions()"


def become_writer(driver: psycopg.Connection[Any], *, once: bool = False) -> None:
    """Write as the role that inserts for any user; ``once``: in this transaction."""
    try:
        driver.execute(_WRITE_ONCE if once else _WRITE)
    except psycopg.Error:
        if not once:
            driver.close()  # it is nobody's yet
        raise


def refuse(shown: str) -> StoreUnavailable:
    """What to raise for a read of all users: an empty answer would pass for one."""
    return StoreUnavailable(
        f"{shown} shows this role one user at a time",
        remedy="name the user, or connect as a member of refold_auditor",
    )
