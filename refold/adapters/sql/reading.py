"""The reads that sessions wait for: on the driver's connection, in one statement each.

They are written out, as the appends are: to build a query anew costs more than to run
it.  A ``?`` is a parameter; each engine has its own mark for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from refold.adapters.recorder import HeadRow, StandingRows, ViewRow
from refold.adapters.rows import EncryptedEvent, stored
from refold.adapters.sql.database import Database, ErrorsTranslated
from refold.domain.chain import GENESIS, encoded
from refold.domain.errors import CorruptEvent
from refold.domain.events import Span
from refold.domain.ids import StreamId
from refold.domain.ports import JUNK

_RANGES: Final = 100  # in one statement: SQLite takes at most 500
_LAST: Final = 2**63 - 1
STREAM: Final = "user_id=? AND session_id=? AND stream=?"
COLUMNS: Final = (
    *("seq", "type", "ts", "event_id", "token_estimate", "schema_version"),
    *("hash", "body", "first_digest"),
)
_COLUMNS: Final = ", ".join(COLUMNS)
BEFORE: Final = (
    "(SELECT b.hash FROM {events} b WHERE b.user_id=e.user_id AND "
    "b.session_id=e.session_id AND b.stream=e.stream AND b.seq=e.seq-1)"
)
# In the statement itself: what is read is of a moment before its session was erased.
_LIVE: Final = (
    "NOT EXISTS (SELECT 1 FROM {heads} h WHERE h.user_id=? AND h.session_id=? AND "
    "h.stream='main' AND h.status='erased')"
)
_HEAD: Final = f"SELECT {', '.join(HeadRow._fields)} FROM {{heads}} WHERE {STREAM}"
_VIEW: Final = (
    f"SELECT {', '.join(ViewRow._fields)} FROM {{views}} "
    f"WHERE user_id=? AND session_id=? AND name=? AND {_LIVE}"
)
# The hash of the row before is asked for where that is not in the page itself.
_PAGE: Final = (
    f"SELECT {_COLUMNS}, CASE WHEN seq=? THEN {BEFORE} END FROM {{events}} e "
    f"WHERE {STREAM} AND {_LIVE} AND seq>?"
)
_SCATTERED: Final = (
    f"SELECT {_COLUMNS}, {BEFORE} FROM {{events}} e "
    f"WHERE {STREAM} AND {_LIVE} AND seq>?"
)
_RANGE: Final = (
    f"SELECT {_COLUMNS}, CASE WHEN seq=? THEN {BEFORE} END FROM {{events}} e "
    f"WHERE {STREAM} AND {_LIVE} AND seq BETWEEN ? AND ?"
)


class Reader:
    """Reads rows of events, heads and views."""

    def __init__(self, dialect: Database) -> None:
        self._database = dialect
        self._errors = ErrorsTranslated(dialect)
        tables = dialect.tables.metadata.tables.values()
        self._names = {table.name: str(table) for table in tables}
        self._written: dict[str, str] = {}

    def head(self, stream: StreamId) -> HeadRow | None:
        """The row of the stream's head."""
        found = self.fetch(stream.user_id, _HEAD, stream)
        return HeadRow(*found[0]) if found else None

    def view(self, stream: StreamId, name: str) -> ViewRow | None:
        """The row of a stored view of the session."""
        found = self.fetch(stream.user_id, _VIEW, (*stream[:2], name, *stream[:2]))
        return ViewRow(*found[0]) if found else None

    def page(
        self,
        stream: StreamId,
        *,
        after: int,
        upto: int | None,
        limit: int | None,
        types: Sequence[str],
        newest: bool,
    ) -> list[EncryptedEvent]:
        """The rows with ``after < seq <= upto``, in order; ``newest``: the last."""
        if after >= _LAST:
            return []
        scattered = bool(types) or newest
        query = _SCATTERED if scattered else _PAGE
        values: list[Any] = [*stream, *stream[:2], after]
        if not scattered:
            values.insert(0, after + 1)
        if upto is not None:
            query, values = f"{query} AND seq<=?", [*values, upto]
        if types:
            marks = ", ".join("?" * len(types))
            query, values = f"{query} AND type IN ({marks})", [*values, *types]
        query = f"{query} ORDER BY seq{' DESC' if newest else ''}"
        if limit is not None:
            query, values = f"{query} LIMIT ?", [*values, limit]
        found = self.fetch(stream.user_id, query, values)
        return rows_of(stream, found[::-1] if newest else found, apart=scattered)

    def spans(self, stream: StreamId, spans: Sequence[Span]) -> list[EncryptedEvent]:
        """The rows of these spans, in order.

        A range for each: of alternatives SQLite would look at every row.
        """
        found: list[Any] = []
        for start in range(0, len(spans), _RANGES):
            chunk = spans[start : start + _RANGES]
            values = [
                value
                for first, last in chunk
                for value in (first, *stream, *stream[:2], first, last)
            ]
            query = " UNION ALL ".join([_RANGE] * len(chunk))
            found += self.fetch(stream.user_id, f"{query} ORDER BY seq", values)
        return rows_of(stream, found)

    def fetch(
        self, user_id: str, query: str, values: Sequence[Any]
    ) -> list[tuple[Any, ...]]:
        """The rows of a query of that user, each value where its ``?`` is."""
        written = self._written.get(query)
        if written is None:
            written = query.format(**self._names).replace("?", self._database.mark)
            if len(self._written) < 1000:
                self._written[query] = written
        with self._errors:
            return self._database.retrying(
                lambda: self._database.fetch(user_id, written, values)
            )


def rows_of(
    stream: StreamId, found: Sequence[Any], *, apart: bool = False
) -> list[EncryptedEvent]:
    """The rows of a stream, in order; ``apart``: each has the hash before it."""
    rows: list[EncryptedEvent] = []
    last = GENESIS
    for row in found:
        own = row[9]
        prev = own if own is not None else GENESIS if apart else last
        rows.append(sealed(stream, row, prev))
        last = rows[-1].hash
    return rows


def sealed(stream: StreamId, row: Sequence[Any], prev_hash: bytes) -> EncryptedEvent:
    """The row of an event, its columns in the order of ``Columns`` and on.

    Raises CorruptEvent if one does not hold what was written.
    """
    seq, type_, ts, event_id, tokens, version, hash_, body, first, *_ = row
    try:
        columns = (
            stream,
            int(seq),
            type_,
            int(ts),
            bytes(event_id),
            int(tokens),
            int(version),
        )
        digest = None if first is None else bytes(first)
        context = encoded(columns)
        hashes = bytes(hash_), bytes(prev_hash)
        return stored(columns, context, bytes(body), *hashes, digest)
    except JUNK:
        raise CorruptEvent(
            f"session {stream.session_id!r} {stream.stream}",
            seq=seq,
            reason="a column does not hold what was written",
        ) from None


_VIEW_COLUMNS: Final = ", ".join(ViewRow._fields)
_SET: Final = ", ".join(f"{name}=excluded.{name}" for name in ViewRow._fields)
# Only under the key that its session has, of nobody who is frozen; and in the place of
# the one it replaces.
_SAVE: Final = f"""
INSERT INTO {{views}} AS v (user_id, session_id, name, {_VIEW_COLUMNS})
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
    dialect: Database,
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


_HEAD_ROW, _VIEW_ROW, _NEW, _DERIVED, _SHOWN, _SUMMARIES = range(6)
_EVENT_ROW: Final = ", ".join(f"e.{name}" for name in COLUMNS)
_NONE: Final = "CAST(NULL AS bytea)"
# Every part has the columns of an event; in those of head and view are others.
_FIRST: Final = f"""
WITH v AS (SELECT through_seq, derived_seq, body, main_spans, derived_spans
  FROM {{views}} WHERE user_id=? AND session_id=? AND name=?)
SELECT {_HEAD_ROW}, seq, status, created_at, key_check, tokens, updated_at, hash, state,
  {_NONE}, {_NONE} FROM {{heads}} WHERE {STREAM}
UNION ALL
SELECT {_VIEW_ROW}, through_seq, '', derived_seq, {_NONE}, 0, 0, {_NONE}, body, {_NONE},
  {_NONE} FROM v
"""


def standing(
    reader: Reader,
    dialect: Database,
    stream: StreamId,
    name: str,
    *,
    shown: bool,
    limit: int,
) -> StandingRows:
    """Head, view and rows; ``shown`` asks for those too that the view names."""
    derived = stream._replace(stream=name)
    values: list[Any] = [*derived, *stream, *stream, limit, *derived, limit]
    if shown:
        values += [*stream, *derived]
    parts: list[list[Sequence[Any]]] = [[] for _ in range(6)]
    query = _query(dialect, shown=shown)
    for part, *row in reader.fetch(stream.user_id, query, values):
        parts[part].append(row)
    return StandingRows(
        _head(parts[_HEAD_ROW]),
        _view(parts[_VIEW_ROW]),
        rows_of(stream, sorted(parts[_SHOWN])),
        rows_of(derived, sorted(parts[_SUMMARIES])),
        rows_of(stream, sorted(parts[_NEW])),
        rows_of(derived, sorted(parts[_DERIVED])),
    )


def _query(dialect: Database, *, shown: bool) -> str:
    parts = [
        _FIRST,
        _behind(_NEW, after="through_seq"),
        _behind(_DERIVED, after="derived_seq"),
    ]
    if shown:
        parts += [
            _named(dialect, _SHOWN, spans="main_spans"),
            _named(dialect, _SUMMARIES, spans="derived_spans"),
        ]
    return "UNION ALL".join(parts)


def _behind(part: int, *, after: str) -> str:
    # Inside: a COALESCE around it would keep row-level security from the index.
    known = f"(SELECT coalesce(max({after}), 0) FROM v)"
    return f"""
SELECT * FROM (SELECT {part}, {_EVENT_ROW}, CASE WHEN e.seq={known}+1 THEN {BEFORE} END
  FROM {{events}} e WHERE {STREAM} AND e.seq>{known} ORDER BY e.seq LIMIT ?) {after}
"""


def _named(dialect: Database, part: int, *, spans: str) -> str:
    first, last = dialect.ends_of_span
    columns = f"{part}, {_EVENT_ROW}, CASE WHEN e.seq={first} THEN {BEFORE} END"
    where = f"{STREAM} AND e.seq BETWEEN {first} AND {last}"
    return dialect.for_each_span(spans, columns, where)


def _head(found: Sequence[Sequence[Any]]) -> HeadRow | None:
    if not found:
        return None
    seq, status, created, check, tokens, updated, hash_, state, *_ = found[0]
    return HeadRow(seq, hash_, status, state, check, tokens, created, updated)


def _view(found: Sequence[Sequence[Any]]) -> ViewRow | None:
    if not found:
        return None
    through, _, derived, _, _, _, _, body, *_ = found[0]
    known = isinstance(body, bytes | memoryview)
    return ViewRow(through, derived, bytes(body) if known else b"")
