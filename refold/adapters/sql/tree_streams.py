"""What the tree asks of one stream: read for each of them, so in statements by hand."""

from __future__ import annotations

import logging
from typing import Any, Final

from refold.adapters.sql.reading import STREAM, Reader
from refold.adapters.tree import Ending, Mark
from refold.domain.ids import StreamId
from refold.domain.seals import Leaf, Seal, Use

_log = logging.getLogger("refold")
_SEALS: Final = """
SELECT s.seq, s.leaf, s.positions, s.receipts, l.hash, e.hash FROM {seals} s
LEFT JOIN {leaves} l ON l.leaf=s.leaf AND l.erasure IS NULL
LEFT JOIN {events} e ON e.user_id=s.user_id AND e.session_id=s.session_id
  AND e.stream=s.stream AND e.seq=s.seq
WHERE s.user_id=? AND s.session_id=? AND s.stream=? ORDER BY s.seq
"""
_END: Final = f"""
SELECT seq, hash, (SELECT max(seq) FROM {{seals}} WHERE {STREAM}) FROM {{heads}}
WHERE {STREAM} AND status<>'erased'
"""
_MARKS: Final = f"""
SELECT seq, position, event_id, CASE WHEN seq=? THEN hash END FROM {{events}}
WHERE {STREAM} AND seq>? AND seq<=? ORDER BY seq LIMIT ?
"""
_USES: Final = f"""
SELECT address, first_seq, last_seq FROM {{receipts}}
WHERE {STREAM} AND first_seq>? AND first_seq<=?
"""


class TreeStreams:
    """Reads streams for the tree."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def seals(self, stream: StreamId) -> list[Seal]:
        """What was sealed of the stream, with what is there now."""
        return [
            Seal(number(row[0]), number(row[1]), *map(octets, row[2:]))
            for row in self._fetch(stream, _SEALS, *stream)
        ]

    def marks(
        self, stream: StreamId, *, after: int, upto: int, limit: int
    ) -> list[Mark]:
        """What no hash covers of these events; the hash of the last, ``upto``."""
        values = (upto, *stream, after, upto, limit)
        return [
            Mark(row[0], number(row[1]), octets(row[2]), octets(row[3]))
            for row in self._fetch(stream, _MARKS, *values)
        ]

    def uses(self, stream: StreamId, *, after: int, upto: int) -> list[Use]:
        """The receipts of the stream that begin at these seqs."""
        found = self._fetch(stream, _USES, *stream, after, upto)
        return [Use(octets(row[0]), *map(number, row[1:])) for row in found]

    def ending(self, stream: StreamId) -> Ending | None:
        """The stream's end, if it is whole and not sealed."""
        found = self._fetch(stream, _END, *stream, *stream)
        if not found:
            return None
        seq, hash_, sealed = found[0]
        after = sealed or 0
        if seq <= after:
            return None
        marks = self.marks(stream, after=after, upto=seq, limit=seq - after)
        if len(marks) != seq - after or marks[-1].hash != bytes(hash_):
            _log.warning(
                "a stream is not sealed, for its head is not the end of its events: "
                "`refold verify` names it"
            )
            return None
        named = any(mark.idempotent for mark in marks)
        uses = self.uses(stream, after=after, upto=seq) if named else []
        positions = (mark.position for mark in marks)
        return Ending(stream, seq, Leaf.of(bytes(hash_), positions, uses))

    def _fetch(self, stream: StreamId, query: str, *values: Any) -> list[Any]:
        return self._reader.fetch(stream.user_id, query, values)


def octets(value: Any) -> bytes:
    """The bytes of a column, none of them if something else was put there."""
    return bytes(value) if isinstance(value, bytes | memoryview) else b""


def number(value: Any) -> int:
    """The number of a column: SQLite keeps a text where a number should be."""
    return value if isinstance(value, int) else -1
