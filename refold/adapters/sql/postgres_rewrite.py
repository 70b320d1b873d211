"""Sealing a session anew on PostgreSQL: what replaces rows, and its door."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import psycopg

from refold.adapters.recorder import HeadRow, Rewrite, Wrote
from refold.adapters.sealing import SealedEvent
from refold.adapters.sql.postgres_append import SCHEMA, write
from refold.domain.errors import StoreUnavailable
from refold.domain.ids import MAIN, StreamId

_PAGE: Final = 500
# Local to its transaction: no other connection ever finds the door open.
_OPEN: Final = "SET LOCAL refold.rewriting = 'on'"
_CLOSE: Final = "SET LOCAL refold.rewriting = 'off'"
# Keys are destroyed on the strength of a commit, whatever appends are content with.
_DURABLE: Final = """
SELECT set_config('synchronous_commit', 'on', true)
WHERE current_setting('synchronous_commit') IN ('off', 'local')
"""
_KEPT: Final = (
    *("position", "user_id", "session_id", "stream", "seq", "type", "ts", "event_id"),
    *("token_estimate", "schema_version", "hash"),
)
_REFUSE: Final = f"""
CREATE OR REPLACE FUNCTION {SCHEMA}.refuse_change() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN
  IF TG_OP = 'UPDATE' AND current_setting('refold.rewriting', true) = 'on' THEN
    IF ROW({", ".join(f"NEW.{name}" for name in _KEPT)}) IS NOT DISTINCT FROM
       ROW({", ".join(f"OLD.{name}" for name in _KEPT)})
       AND NEW.first_digest = coalesce(OLD.first_digest, sha256(OLD.body))
    THEN RETURN NEW; END IF;
  END IF;
  IF TG_OP = 'DELETE' THEN
    IF EXISTS (SELECT 1 FROM {SCHEMA}.heads h WHERE h.user_id = OLD.user_id
      AND h.session_id = OLD.session_id AND h.stream = OLD.stream
      AND h.status = 'erased')
    THEN RETURN OLD; END IF;
  END IF;
  RAISE EXCEPTION 'refold: events are immutable, % is refused', TG_OP;
END $$
"""
GUARDS: Final = (
    _REFUSE,
    f"""
CREATE OR REPLACE TRIGGER events_refuse_change BEFORE UPDATE OR DELETE
ON {SCHEMA}.events FOR EACH ROW EXECUTE FUNCTION {SCHEMA}.refuse_change()
""",
    f"""
CREATE OR REPLACE TRIGGER events_refuse_truncate BEFORE TRUNCATE
ON {SCHEMA}.events FOR EACH STATEMENT EXECUTE FUNCTION {SCHEMA}.refuse_change()
""",
    # What is encrypted cannot be compressed.
    f"ALTER TABLE {SCHEMA}.events ALTER COLUMN body SET STORAGE EXTERNAL",
    f"ALTER TABLE {SCHEMA}.blobs ALTER COLUMN body SET STORAGE EXTERNAL",
)
_HEADS = f"""
SELECT stream, {", ".join(HeadRow._fields)} FROM {SCHEMA}.heads
WHERE user_id=%s AND session_id=%s ORDER BY stream COLLATE "C" FOR UPDATE
"""
_ROWS = f"""
UPDATE {SCHEMA}.events e SET body=n.body, first_digest=n.first_digest
FROM unnest(%(streams)s::text[], %(seqs)s::int8[], %(bodies)s::bytea[],
  %(firsts)s::bytea[]) AS n(stream, seq, body, first_digest)
WHERE e.user_id=%(user)s AND e.session_id=%(session)s AND e.stream=n.stream
  AND e.seq=n.seq
"""
_STATE = f"""
UPDATE {SCHEMA}.heads SET state=%b, key_check=%b
WHERE user_id=%s AND session_id=%s AND stream=%s
"""
_REOPEN = f"""
UPDATE {SCHEMA}.heads SET status='open', key_check=%b
WHERE user_id=%s AND session_id=%s AND stream=%s
"""
_DROP_BLOBS = f"DELETE FROM {SCHEMA}.blobs WHERE user_id=%s AND address=ANY(%s)"
_DROP_VIEWS = f"DELETE FROM {SCHEMA}.views WHERE user_id=%s AND session_id=%s"


def heads(driver: psycopg.Connection[Any], stream: StreamId) -> dict[str, HeadRow]:
    """The heads of the session by the name of their stream, all of them locked.

    Asked for twice: a stream that began while the lock was waited for is seen by
    the second, and with the main head locked no other can begin.
    """
    for _ in range(2):
        found = driver.execute(_HEADS, stream[:2]).fetchall()
    return {name: HeadRow(*columns) for name, *columns in found}


def wait_for_disk(driver: psycopg.Connection[Any]) -> None:
    """Make the commit of this transaction one that waits for the disk."""
    driver.execute(_DURABLE)
    driver.execute("SELECT pg_current_xact_id()")


def rewrite(driver: psycopg.Connection[Any], what: Rewrite) -> None:
    """Replace the session's rows, inside a transaction that holds its heads."""
    user_id, session_id, _ = what.batch.stream
    check = what.batch.head.key_check
    driver.execute(_OPEN)
    for start in range(0, len(what.rows), _PAGE):
        page = what.rows[start : start + _PAGE]
        driver.execute(_ROWS, _values(user_id, session_id, page))
    driver.execute(_CLOSE)
    for name, state in what.states.items():
        driver.execute(_STATE, (state, check, user_id, session_id, name))
    driver.execute(_DROP_BLOBS, (user_id, sorted(what.blobs)))
    driver.execute(_DROP_VIEWS, (user_id, session_id))
    driver.execute(_REOPEN, (check, user_id, session_id, MAIN))
    if not isinstance(write(driver, what.batch, base=0), Wrote):
        raise StoreUnavailable(
            "the head moved while its session was sealed anew", remedy="try again"
        )


def _values(
    user_id: str, session_id: str, rows: Sequence[SealedEvent]
) -> dict[str, Any]:
    return {
        "user": user_id,
        "session": session_id,
        "streams": [row.header.stream.stream for row in rows],
        "seqs": [row.header.seq for row in rows],
        "bodies": [row.state for row in rows],
        "firsts": [row.first_digest for row in rows],
    }
