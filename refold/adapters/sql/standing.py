"""One read for a context: head, stored view, what it shows and what is behind it.

One statement: it takes one round trip, and all of it is of one moment.  Which rows a
view shows stands beside it in plain; the view itself, which is sealed, has the say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from refold.adapters.recorder import HeadRow, StandingRows, ViewRow
from refold.adapters.sql.dialect import Dialect
from refold.adapters.sql.reading import BEFORE, COLUMNS, STREAM, Reader, rows_of
from refold.domain.ids import StreamId

_HEAD, _VIEW, _NEW, _DERIVED, _SHOWN, _SUMMARIES = range(6)
_COLUMNS: Final = ", ".join(f"e.{name}" for name in COLUMNS)
_NONE: Final = "CAST(NULL AS bytea)"
# Every part has the columns of an event; in those of head and view are others.
_FIRST: Final = f"""
WITH v AS (SELECT through_seq, derived_seq, body, main_spans, derived_spans
  FROM {{views}} WHERE user_id=? AND session_id=? AND name=?)
SELECT {_HEAD}, seq, status, created_at, key_check, tokens, updated_at, hash, state,
  {_NONE}, {_NONE} FROM {{heads}} WHERE {STREAM}
UNION ALL
SELECT {_VIEW}, through_seq, '', derived_seq, {_NONE}, 0, 0, {_NONE}, body, {_NONE},
  {_NONE} FROM v
"""


def standing(
    reader: Reader,
    dialect: Dialect,
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
        _head(parts[_HEAD]),
        _view(parts[_VIEW]),
        rows_of(stream, sorted(parts[_SHOWN])),
        rows_of(derived, sorted(parts[_SUMMARIES])),
        rows_of(stream, sorted(parts[_NEW])),
        rows_of(derived, sorted(parts[_DERIVED])),
    )


def _query(dialect: Dialect, *, shown: bool) -> str:
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
SELECT * FROM (SELECT {part}, {_COLUMNS}, CASE WHEN e.seq={known}+1 THEN {BEFORE} END
  FROM {{events}} e WHERE {STREAM} AND e.seq>{known} ORDER BY e.seq LIMIT ?) {after}
"""


def _named(dialect: Dialect, part: int, *, spans: str) -> str:
    first, last = dialect.ends_of_span
    columns = f"{part}, {_COLUMNS}, CASE WHEN e.seq={first} THEN {BEFORE} END"
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
