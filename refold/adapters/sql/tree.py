"""Leaves, seals and tree heads in a database, in words that both engines know."""

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

from refold.adapters.sql.database import NOBODY, Database
from refold.adapters.sql.tables import (
    FIRST,
    LAST,
    filled,
    statements,
    within,
)
from refold.domain.chain import Frontier
from refold.domain.errors import SealBroken
from refold.domain.ids import StreamId
from refold.domain.locks import computed_once
from refold.domain.ports import Scope
from refold.domain.seals import Ending, Leaf, Seal, TreeHead, Use

_log = logging.getLogger("refold")
_SQL: Final = statements("recorder")
STREAMS: Final = 1_000  # of one tree head: so long the write lock of SQLite is held
_PAGE: Final = 10_000
_NAMED: Final = 100
_HASH: Final = 32
_THREE: Final = ("user_id", "session_id", "stream")


class Grown(NamedTuple):
    """A tree head, and what is needed to add to its tree."""

    head: TreeHead
    frontier: Frontier

    @property
    def sound(self) -> bool:
        """Whether the one is of the other."""
        made = self.frontier
        return made.sound and (made.size, made.root) == (self.head.size, self.head.root)


class TreeMoved(NamedTuple):
    """Streams with events that are new, in the order in which they are read, and where
    the reading ended.
    """

    streams: list[StreamId]
    position: int


class Mark(NamedTuple):
    """The columns of an event that say where it is and what it is named by.

    ``hash`` is that of the last one asked for; of the others it is empty.
    """

    seq: int
    position: int
    event_id: bytes
    hash: bytes

    @property
    def idempotent(self) -> bool:
        """Whether it was written with an idempotency key, as its id says."""
        return self.event_id[6:7].hex()[:1] == "8"


class Ends(NamedTuple):
    """The newest position in the log, and up to which one it is complete.

    Behind the latter, transactions in flight may still put events between others.
    """

    newest: int
    settled: int


class Tree:
    """The rows of leaves, seals and tree heads.

    Reading waits for no append, and no append waits for what is written.
    """

    def __init__(self, database: Database) -> None:
        self._database, self._t = database, database.tables

    @computed_once
    def store_id(self) -> str:
        """What the database calls its store."""
        found = self._database.fetch(NOBODY, _SQL["setting"], ("store_id",))
        return str(found[0][0])

    def newest(self) -> Grown | None:
        """The newest tree head.  Raises SealBroken if it is not sound."""
        grown = next(self._trees("newest_tree"), None)
        if grown and not grown.sound:
            raise SealBroken("the newest tree head does not fit what it was made of")
        return grown

    def heads(self, *, after: int = -1) -> list[TreeHead]:
        """Tree heads of a size over ``after``, the smallest first."""
        return [grown.head for grown in self._trees("trees", after)]

    def unsound(self) -> list[int]:
        """The sizes of tree heads that do not fit what their trees would grow from."""
        return [
            grown.head.size for grown in self._trees("trees", -1) if not grown.sound
        ]

    def _trees(self, name: str, *values: int) -> Iterator[Grown]:
        found = self._database.fetch(NOBODY, _SQL[name], values)
        for size, root, sealed_at, position, key_id, signature, peaks in found:
            when = number(sealed_at), number(position)
            signed = str(key_id), octets(signature)
            head = TreeHead(self.store_id, size, octets(root), *when, *signed)
            hashes = octets(peaks)
            parts = (hashes[at : at + _HASH] for at in range(0, len(hashes), _HASH))
            yield Grown(head, Frontier(size, tuple(parts)))

    def ends(self) -> Ends:
        """How far the log goes now; nowhere if there is no order of all events."""
        if not self._database.ordered:
            return Ends(0, 0)
        query = filled(_SQL["ends_of_log"], settled=self._database.settled())
        (found,) = self._database.fetch(None, query, ())
        return Ends(*(int(position or 0) for position in found))

    def moved(self, *, after: int, upto: int) -> TreeMoved:
        """Streams that have events at these positions, a bounded number of them."""
        streams: dict[StreamId, None] = {}
        found = self._database.fetch(None, _SQL["moved"], (after, upto, _PAGE))
        for position, *stream in found:
            streams[StreamId(*stream)] = None
            if len(streams) == STREAMS:
                return TreeMoved(list(streams), position)
        return TreeMoved(list(streams), found[-1][0] if len(found) == _PAGE else upto)

    def behind(self, *, after: StreamId | None = None) -> list[StreamId]:
        """Streams whose head is not sealed, in order, a bounded number of them."""
        values = (*(after or FIRST), STREAMS)
        found = self._database.fetch(None, _SQL["behind"], values)
        return [StreamId(*row) for row in found]

    def unsealed(self) -> int:
        """How many streams have events that no leaf covers."""
        return int(self._database.fetch(None, _SQL["unsealed"], ())[0][0])

    def add(self, base: int, grown: Grown, endings: Sequence[Ending]) -> bool:
        """Keep the leaves of ``endings`` from ``base`` on, and the tree head over them.

        All or nothing; False, and nothing is kept, if the tree has another size than
        ``base``, or one of the streams was erased meanwhile.
        """

        size = self._t.tree_heads.c.size
        newest = select(func.coalesce(func.max(size), 0)).where(size > 0)

        def attempt(connection: Connection) -> bool:
            there = connection.execute(newest).scalar_one() == base
            with suppress(IntegrityError):  # another sealer was first
                if there and self._insert(connection, base, grown, endings):
                    return True
            connection.rollback()
            return False

        return self._database.change(None, attempt)

    def _insert(
        self, connection: Connection, base: int, grown: Grown, endings: Sequence[Ending]
    ) -> bool:
        """False if one of the streams was erased."""
        numbered = list(enumerate(endings, start=base))
        leaves = [{"leaf": n, "hash": ending.leaf.hashed()} for n, ending in numbered]
        connection.execute(insert(self._t.leaves), leaves)
        seals = [
            {
                **ending.stream._asdict(),
                "seq": ending.seq,
                "leaf": n,
                "positions": ending.leaf.positions,
                "receipts": ending.leaf.receipts,
            }
            for n, ending in numbered
        ]
        sealing = self._database.statement(_SQL["seal"], kept=self._database.kept)
        # Heads cannot be deleted until this is committed, though appends go on: an
        # erasure that deletes them finds every leaf of theirs afterwards.
        sealing = sealing.execution_options(preserve_rowcount=True)
        if connection.execute(sealing, seals).rowcount != len(seals):
            return False
        said = grown.head._asdict()
        del said["store_id"]
        said["peaks"] = b"".join(grown.frontier.peaks)
        connection.execute(insert(self._t.tree_heads).values(said))
        return True

    def leaves(self, *, upto: int | None = None) -> Iterator[tuple[int, bytes]]:
        """Number and hash of each leaf, in order."""
        after, end = -1, LAST if upto is None else upto
        while found := self._database.fetch(
            NOBODY, _SQL["leaf_hashes"], (after, end, _PAGE)
        ):
            yield from ((leaf, octets(hash_)) for leaf, hash_ in found)
            if len(found) < _PAGE:
                return
            after = found[-1][0]

    def seals(self, stream: StreamId) -> list[Seal]:
        """What was sealed of the stream, with what is there now."""
        return [
            Seal(number(row[0]), number(row[1]), *map(octets, row[2:]))
            for row in self._fetch(stream, _SQL["sealed"], *stream)
        ]

    def marks(
        self, stream: StreamId, *, after: int, upto: int, limit: int
    ) -> list[Mark]:
        """What no hash covers of these events; the hash of the last, ``upto``."""
        values = (upto, *stream, after, upto, limit)
        return [
            Mark(row[0], number(row[1]), octets(row[2]), octets(row[3]))
            for row in self._fetch(stream, _SQL["marks"], *values)
        ]

    def uses(self, stream: StreamId, *, after: int, upto: int) -> list[Use]:
        """The receipts of the stream that begin at these seqs."""
        found = self._fetch(stream, _SQL["first_uses"], *stream, after, upto)
        return [Use(octets(row[0]), *map(number, row[1:])) for row in found]

    def ending(self, stream: StreamId) -> Ending | None:
        """The stream's end, if it is whole and not sealed."""
        found = self._fetch(stream, _SQL["end"], *stream, *stream)
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
        return self._database.fetch(stream.user_id, query, values)

    def unowned(self) -> list[int]:
        """Leaves that are neither of a stream nor of an erasure, a bounded number."""
        found = self._database.fetch(None, _SQL["unowned"], (_NAMED,))
        return [leaf for (leaf,) in found]

    def lost(self) -> list[tuple[StreamId, int]]:
        """Streams that were sealed and have no head, and up to which seq."""
        found = self._database.fetch(None, _SQL["lost"], (_NAMED,))
        return [(StreamId(*row[:3]), row[3]) for row in found]

    def marked(self) -> set[StreamId]:
        """The main streams of sessions that are marked as erased."""
        found = self._database.fetch(None, _SQL["marked"], ())
        return {StreamId(*row).main for row in found}

    def strays(self) -> list[tuple[str, StreamId]]:
        """Rows beside the events that are of no session, each with its table."""
        heads, none = self._t.heads.c, literal("")
        found: list[tuple[str, StreamId]] = []
        names = ("views", "receipts", "leases", "labels", "blobs")
        for table in (getattr(self._t, name) for name in names):
            own = [heads[name] == table.c[name] for name in _THREE[:2]]
            columns = [func.coalesce(table.c.get(name, none), none) for name in _THREE]
            there = [~select(heads.seq).where(*own).exists()]
            if table is self._t.leases:  # duties of the store as a whole are nobody's
                there.append(table.c.user_id != "")
            query = select(*columns).where(*there).distinct().limit(_NAMED)
            found += [
                (table.name, StreamId(*row)) for row in self._database.read(None, query)
            ]
        return found

    def erasures(self) -> list[str]:
        """The erasures that leaves are of."""
        found = self._database.fetch(NOBODY, _SQL["erasures_of_leaves"], ())
        return sorted(erasure for (erasure,) in found)

    def erased(self, erasure: str) -> list[bytes]:
        """The hashes of the leaves of that erasure, in order."""
        found = self._database.fetch(NOBODY, _SQL["erased_leaves"], (erasure,))
        return [octets(hash_) for (hash_,) in found]

    def forget(self, user_id: str, session_id: str | None, erasure: str) -> None:
        """Say of a user's leaves that they are of this erasure, and whose no more.

        Done after the heads are marked as erased, or gone: no leaf of theirs can be
        added then.
        """
        leaves, seals = self._t.leaves, self._t.seals
        scope = Scope(user_id, session_id)
        whose = within(seals, scope)
        theirs = leaves.c.leaf.in_(select(seals.c.leaf).where(*whose))
        # Waits for a sealer that saw them before they were marked as erased.
        heads = self._t.heads
        locked = select(heads.c.seq).where(*within(heads, scope)).with_for_update()

        def attempt(connection: Connection) -> None:
            connection.execute(locked).all()
            connection.execute(update(leaves).where(theirs).values(erasure=erasure))
            connection.execute(delete(seals).where(*whose))

        self._database.change(user_id, attempt)


def octets(value: Any) -> bytes:
    """The bytes of a column, none of them if something else was put there."""
    if value is None or type(value) is bytes:
        return value or b""
    return bytes(value) if isinstance(value, bytes | memoryview) else b""


def number(value: Any) -> int:
    """The number of a column: SQLite keeps a text where a number should be."""
    return value if isinstance(value, int) else -1
