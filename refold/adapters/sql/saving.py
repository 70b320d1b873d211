"""One write for a stored view: a compare-and-set on what it has folded, and the key."""

from __future__ import annotations

from typing import Final

from refold.adapters.recorder import ViewRow
from refold.adapters.sql.dialect import Dialect
from refold.adapters.sql.reading import STREAM, Reader
from refold.domain.ids import StreamId

_COLUMNS: Final = ", ".join(ViewRow._fields)
_SET: Final = ", ".join(f"{name}=excluded.{name}" for name in ViewRow._fields)
# Only under the key that its session has, of nobody who is frozen; and in the place of
# the one it replaces.
_SAVE: Final = f"""
INSERT INTO {{views}} AS v (user_id, session_id, name, {_COLUMNS})
SELECT ?, ?, ?, {", ".join("?" * len(ViewRow._fields))} FROM {{heads}}
WHERE {STREAM} AND key_check=? AND status IN ('open', 'closed')
  AND (?=0 OR EXISTS (SELECT 1 FROM {{views}}
    WHERE user_id=? AND session_id=? AND name=?))
"""
_REPLACE: Final = f"""
ON CONFLICT (user_id, session_id, name) DO UPDATE SET {_SET} WHERE v.through_seq=?
RETURNING 1
"""


def save_view(
    reader: Reader,
    dialect: Dialect,
    stream: StreamId,
    name: str,
    row: ViewRow,
    *,
    replaces: int,
    key_check: bytes,
) -> bool:
    """Store it if the stored one stands at ``replaces`` and the key is this."""
    place = (stream.user_id, stream.session_id, name)
    of_session = (*stream, key_check, replaces)
    query = f"{_SAVE}{dialect.shared}{_REPLACE}"
    values = (*place, *row, *of_session, *place, replaces)
    return bool(reader.fetch(stream.user_id, query, values))
