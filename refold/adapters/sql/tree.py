"""The tables of leaves, seals and tree heads, in SQL for all engines."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    Connection,
    delete,
    func,
    insert,
    literal,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from refold.adapters.sql.database import NOBODY, Database, octets
from refold.adapters.sql.queries import FIRST, LAST, filled, statements
from refold.adapters.sql.tables import within
from refold.domain.chain import Frontier
from refold.domain.errors import SealBroken
from refold.domain.ids import StreamId
from refold.domain.locks import computed_once
from refold.domain.ports import Scope
from refold.domain.seals import Ending, Leaf, Seal, TreeHead, Use

_logger = logging.getLogger("refold")
_SQL: Final = statements("recorder")
# The number of streams under one tree head.  Writing them holds SQLite's write lock.
STREAMS: Final = 1_000
_PAGE: Final = 10_000
_NAMED: Final = 100  # leaves, streams or rows that are named as problems
_HASH: Final = 32  # bytes


class Grown(NamedTuple):
    """A tree head, and the frontier from which its tree can grow."""

    head: TreeHead
    frontier: Frontier

    @property
    def is_sound(self) -> bool:
        """Whether the head and the frontier belong to the same tree."""
        if not self.frontier.is_sound or self.frontier.size != self.head.size:
            return False
        return self.frontier.root == self.head.root


class TreeMoved(NamedTuple):
    """Streams with new events in the order of these, and the last position read."""

    streams: list[StreamId]
    position: int


class Mark(NamedTuple):
    """Columns of an event that its hash does not cover.

    hash: of the last requested event; empty for the others.
    """

    seq: int
    position: int
    event_id: bytes
    hash: bytes

    @property
    def idempotent(self) -> bool:
        """Whether the event was written with an idempotency key.

        Its id is then a UUID of version 8.
        """
        return self.event_id[6:7].hex()[:1] == "8"


class Ends(NamedTuple):
    """The newest position in the log, and the one up to which it is complete.

    Open transactions may still add events between the two.
    """

    newest: int
    settled: int


class Tree:
    """The rows of leaves, seals and tree heads.

    Reads do not wait for appends, and appends do not wait for these writes.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._t = database.tables

    @computed_once
    def store_id(self) -> str:
        """The id of the store, as the database has it."""
        ((store_id,),) = self._database.fetch(NOBODY, _SQL["setting"], ("store_id",))
        return str(store_id)

    def newest(self) -> Grown | None:
        """Return the newest tree head.  Raises SealBroken if it is not sound."""
        grown = next(self._trees("newest_tree"), None)
        if grown is not None and not grown.is_sound:
            raise SealBroken("the newest tree head does not fit what it was made of")
        return grown

    def heads(self, *, after: int = -1) -> list[TreeHead]:
        """Return the tree heads larger than ``after``, the smallest first."""
        return [grown.head for grown in self._trees("trees", after)]

    def unsound(self) -> list[int]:
        """Return the sizes of tree heads that do not fit their frontiers."""
        sizes = []
        for grown in self._trees("trees", -1):
            if not grown.is_sound:
                sizes.append(grown.head.size)
        return sizes

    def _trees(self, name: str, *values: int) -> Iterator[Grown]:
        """Yield the tree heads that a statement selects."""
        rows = self._database.fetch(NOBODY, _SQL[name], values)
        for size, root, sealed_at, position, key_id, signature, peaks in rows:
            head = TreeHead(
                store_id=self.store_id,
                size=size,
                root=octets(root),
                sealed_at=number(sealed_at),
                position=number(position),
                key_id=str(key_id),
                signature=octets(signature),
            )
            joined = octets(peaks)
            hashes = []
            for begin in range(0, len(joined), _HASH):
                hashes.append(joined[begin : begin + _HASH])
            yield Grown(head, Frontier(size, tuple(hashes)))

    def ends(self) -> Ends:
        """Return the ends of the log; 0 if the database does not order all events."""
        if not self._database.ordered:
            return Ends(0, 0)
        query = filled(_SQL["ends_of_log"], settled=self._database.settled())
        ((newest, settled),) = self._database.fetch(None, query, ())
        return Ends(int(newest or 0), int(settled or 0))

    def moved(self, *, after: int, upto: int) -> TreeMoved:
        """Return streams with events at these positions, a limited number."""
        streams: dict[StreamId, None] = {}
        rows = self._database.fetch(None, _SQL["moved"], (after, upto, _PAGE))
        for position, *stream in rows:
            streams[StreamId(*stream)] = None
            if len(streams) == STREAMS:
                return TreeMoved(list(streams), position)
        if len(rows) == _PAGE:  # there may be further events
            upto, *_ = rows[-1]
        return TreeMoved(list(streams), upto)

    def behind(self, *, after: StreamId | None = None) -> list[StreamId]:
        """Return streams whose head is not sealed, in order, a limited number."""
        values = (*(after or FIRST), STREAMS)
        rows = self._database.fetch(None, _SQL["behind"], values)
        return [StreamId(*row) for row in rows]

    def unsealed(self) -> int:
        """Return the number of streams with events that no leaf covers."""
        ((streams,),) = self._database.fetch(None, _SQL["unsealed"], ())
        return int(streams)

    def add(self, base: int, grown: Grown, endings: Sequence[Ending]) -> bool:
        """Store leaves from ``base`` on, and the tree head over them.

        Stores nothing and returns False if the tree has another size than ``base``, or
        if one of the streams was erased since.
        """

        size = self._t.tree_heads.c.size
        newest = select(func.coalesce(func.max(size), 0)).where(size > 0)

        def attempt(connection: Connection) -> bool:
            is_base = connection.execute(newest).scalar_one() == base
            with suppress(IntegrityError):  # another process has sealed first
                if is_base and self._insert(connection, base, grown, endings):
                    return True
            connection.rollback()
            return False

        return self._database.change(None, attempt)

    def _insert(
        self, connection: Connection, base: int, grown: Grown, endings: Sequence[Ending]
    ) -> bool:
        """Insert leaves, seals and head; False if one of the streams was erased."""
        leaves = []
        seals = []
        for index, ending in enumerate(endings, start=base):
            leaves.append({"leaf": index, "hash": ending.leaf.hashed()})
            seal = {
                **ending.stream._asdict(),
                "seq": ending.seq,
                "leaf": index,
                "positions": ending.leaf.positions,
                "receipts": ending.leaf.receipts,
            }
            seals.append(seal)
        connection.execute(insert(self._t.leaves), leaves)
        # The statement locks the heads, which nobody can delete until the commit;
        # appends continue.  So an erasure that deletes heads finds all of their leaves.
        sealing = self._database.statement(
            _SQL["seal"], locked=self._database.lock_against_deletion
        )
        sealing = sealing.execution_options(preserve_rowcount=True)
        if connection.execute(sealing, seals).rowcount != len(seals):
            return False
        row = grown.head._asdict()
        del row["store_id"]
        row["peaks"] = b"".join(grown.frontier.peaks)
        connection.execute(insert(self._t.tree_heads).values(row))
        return True

    def leaves(self, *, upto: int | None = None) -> Iterator[tuple[int, bytes]]:
        """Yield the index and the hash of each leaf, in order."""
        after = -1
        end = LAST if upto is None else upto
        while rows := self._database.fetch(
            NOBODY, _SQL["leaf_hashes"], (after, end, _PAGE)
        ):
            for leaf, hash_ in rows:
                yield leaf, octets(hash_)
            if len(rows) < _PAGE:
                return
            after, _ = rows[-1]

    def seals(self, stream: StreamId) -> list[Seal]:
        """Return the seals of a stream, with the present hashes."""
        seals = []
        for seq, leaf, *hashes in self._fetch(stream, _SQL["sealed"], *stream):
            seals.append(Seal(number(seq), number(leaf), *map(octets, hashes)))
        return seals

    def marks(
        self, stream: StreamId, *, after: int, upto: int, limit: int
    ) -> list[Mark]:
        """Return the marks of these events, and the hash of the event at ``upto``."""
        values = (upto, *stream, after, upto, limit)
        marks = []
        for seq, position, event_id, hash_ in self._fetch(
            stream, _SQL["marks"], *values
        ):
            marks.append(Mark(seq, number(position), octets(event_id), octets(hash_)))
        return marks

    def uses(self, stream: StreamId, *, after: int, upto: int) -> list[Use]:
        """Return the receipts of the stream that begin at these seqs."""
        uses = []
        for address, *seqs in self._fetch(
            stream, _SQL["first_uses"], *stream, after, upto
        ):
            uses.append(Use(octets(address), *map(number, seqs)))
        return uses

    def ending(self, stream: StreamId) -> Ending | None:
        """Return the stream's end if it is complete and not sealed, else None."""
        rows = self._fetch(stream, _SQL["end"], *stream, *stream)
        if not rows:
            return None
        seq, hash_, sealed = rows[0]
        after = sealed or 0
        if seq <= after:
            return None
        marks = self.marks(stream, after=after, upto=seq, limit=seq - after)
        if len(marks) != seq - after or marks[-1].hash != bytes(hash_):
            _logger.warning(
                "a stream is not sealed: its head is not the end of its events; "
                "`refold verify` names it"
            )
            return None
        uses: list[Use] = []
        if any(mark.idempotent for mark in marks):
            uses = self.uses(stream, after=after, upto=seq)
        positions = (mark.position for mark in marks)
        return Ending(stream, seq, Leaf.of(bytes(hash_), positions, uses))

    def _fetch(self, stream: StreamId, query: str, *values: Any) -> list[Any]:
        """Return the rows of a query about a stream."""
        return self._database.fetch(stream.user_id, query, values)

    def unowned(self) -> list[int]:
        """Return leaves of no stream and no erasure, a limited number."""
        rows = self._database.fetch(None, _SQL["unowned"], (_NAMED,))
        return [leaf for (leaf,) in rows]

    def lost(self) -> list[tuple[StreamId, int]]:
        """Return sealed streams without a head, each with the sealed seq."""
        rows = self._database.fetch(None, _SQL["lost"], (_NAMED,))
        return [(StreamId(*row[:3]), row[3]) for row in rows]

    def marked(self) -> set[StreamId]:
        """Return the main streams of sessions that are marked as erased."""
        rows = self._database.fetch(None, _SQL["marked"], ())
        return {StreamId(*row).main for row in rows}

    def strays(self) -> list[tuple[str, StreamId]]:
        """Return rows of other tables without a session, each with its table."""
        heads = self._t.heads.c
        empty = literal("")
        strays: list[tuple[str, StreamId]] = []
        for name in ("views", "receipts", "leases", "labels", "blobs"):
            table = getattr(self._t, name)
            columns = []
            for column in StreamId._fields:
                columns.append(func.coalesce(table.c.get(column, empty), empty))
            session = select(heads.seq).where(
                heads.user_id == table.c.user_id,
                heads.session_id == table.c.session_id,
            )
            conditions = [~session.exists()]
            if table is self._t.leases:  # those of duties for the whole store
                conditions.append(table.c.user_id != "")
            query = select(*columns).where(*conditions).distinct().limit(_NAMED)
            for row in self._database.read(None, query):
                strays.append((table.name, StreamId(*row)))
        return strays

    def erasures(self) -> list[str]:
        """Return the erasures that leaves belong to."""
        rows = self._database.fetch(NOBODY, _SQL["erasures_of_leaves"], ())
        return sorted(erasure for (erasure,) in rows)

    def erased(self, erasure: str) -> list[bytes]:
        """Return the hashes of the leaves of an erasure, in order."""
        rows = self._database.fetch(NOBODY, _SQL["erased_leaves"], (erasure,))
        return [octets(hash_) for (hash_,) in rows]

    def forget(self, user_id: str, session_id: str | None, erasure: str) -> None:
        """Let the leaves of a user or a session belong to an erasure instead.

        The heads must be marked as erased or deleted before, so that no leaf of theirs
        can be added any more.
        """
        leaves = self._t.leaves
        seals = self._t.seals
        heads = self._t.heads
        scope = Scope(user_id, session_id)
        of_scope = within(seals, scope)
        in_scope = leaves.c.leaf.in_(select(seals.c.leaf).where(*of_scope))
        # This waits for a sealer that read the heads before they were marked.
        lock = select(heads.c.seq).where(*within(heads, scope)).with_for_update()

        def attempt(connection: Connection) -> None:
            connection.execute(lock).all()
            connection.execute(update(leaves).where(in_scope).values(erasure=erasure))
            connection.execute(delete(seals).where(*of_scope))

        self._database.change(user_id, attempt)


def number(value: Any) -> int:
    """Return the number in a column; -1 for other values, which SQLite may store."""
    if isinstance(value, int):
        return value
    return -1
