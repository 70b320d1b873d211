"""Seals: the ends of all streams as leaves of a tree, its head signed and anchored.

The order keeps what the anchor says true: leaves and tree head are committed together,
and only then does the anchor name them.  A call that was cut off between the two is
completed by the next one.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, Final
from uuid import UUID

from pydantic import JsonValue

from refold.adapters.erasure import StoredErasureSteps
from refold.adapters.keys.master import create_private
from refold.adapters.keys.signatures import Signer, key_id, signed_by
from refold.adapters.rows import EncryptedEvent
from refold.adapters.sql.recorder import Recorder
from refold.adapters.sql.tree import Ends, Grown, Tree
from refold.adapters.verification import Standing, Stated
from refold.domain.chain import Frontier, consistency_proof, inclusion_proof, root_of
from refold.domain.erasure import Signed, Whose, timestamp
from refold.domain.errors import (
    RefoldError,
    SealBroken,
    StoreUnavailable,
    remedy_for,
)
from refold.domain.events import JsonObject
from refold.domain.ids import StreamId, bounded
from refold.domain.ports import JUNK, WRONG_TYPE, Problem
from refold.domain.seals import TREE, Anchor, Ending, Seal, SealsVerified, TreeHead

_TRIES: Final = 100
_NOTHING: Final = Frontier()
EVENT: Final = "refold event proof 1"
GROWTH: Final = "refold consistency proof 1"
_EVENTS: Final = 500
_LONGEST: Final = 4096  # a line is a tenth of it
_UNSIGNED: Final = "the tree head is not signed by this store"
SEALED: Final = "sealed"  # under which the key store remembers the newest tree head


@dataclass(slots=True)
class TreeSeals:
    """Seals over the rows of one store.

    ``signer`` is asked for when something is to be signed or checked: the first time,
    it makes a key.
    """

    tree: Tree
    recorder: Recorder
    erasures: StoredErasureSteps
    anchor: Anchor
    signer: Callable[[], Signer]
    _position: int = field(default=0, init=False)

    def seal(
        self,
        *,
        now: int,
        sweep: bool = False,
        accept_loss: bool = False,
        endings: Callable[[list[StreamId]], list[Ending]] | None = None,
    ) -> TreeHead | None:
        with self.anchor.held():
            self._anchor(accept_loss=accept_loss)
        ends, newest = self.tree.ends(), self.tree.newest()
        known = newest.head.position if newest else 0
        ordered = self.recorder.database.ordered
        # Positions fall where another server's backup was put in place.
        if sweep or not ordered or ends.settled < known:
            pages = self._behind(min(known, ends.settled), ends)
        else:
            pages = self._moved(max(known, self._position), ends)
        for streams, position in pages:
            self._seal(streams, position, now, endings or self.endings)
        self._position = ends.settled
        newest = self.tree.newest()
        return newest.head if newest else None

    def _moved(self, position: int, ends: Ends) -> Iterator[tuple[list[StreamId], int]]:
        """Streams that have events behind this position, up to which one.

        What is not settled is sealed too, and read again the next time.
        """
        while position < ends.newest:
            streams, position = self.tree.moved(after=position, upto=ends.newest)
            yield streams, min(position, ends.settled)

    def _behind(self, known: int, ends: Ends) -> Iterator[tuple[list[StreamId], int]]:
        """All streams not sealed to their heads; with the last of them, the log is."""
        streams = self.tree.behind()
        while streams:
            more = self.tree.behind(after=streams[-1])
            yield streams, known if more else ends.settled
            streams = more

    def endings(self, streams: Sequence[StreamId]) -> list[Ending]:
        return [end for stream in streams if (end := self.tree.ending(stream))]

    def _seal(
        self,
        streams: list[StreamId],
        position: int,
        now: int,
        find: Callable[[list[StreamId]], list[Ending]],
    ) -> None:
        """Put the ends of these streams under a tree head, those that have moved."""
        for _ in range(_TRIES):
            base = self.tree.newest()  # first: whoever sealed since has moved it
            if not (endings := find(streams)):
                return
            grown = self._grown(base, endings, position, now)
            with self.anchor.held():
                if self.tree.add(base.head.size if base else 0, grown, endings):
                    self._anchor()
                    return
        raise StoreUnavailable(
            "other processes keep sealing this store",
            remedy="try again when they are done",
        )

    def _grown(
        self, base: Grown | None, endings: list[Ending], position: int, now: int
    ) -> Grown:
        frontier, signer = base.frontier if base else _NOTHING, self.signer()
        if base is not None:
            self._check_signature(base.head, signer)
        frontier = frontier.add(ending.leaf.hashed() for ending in endings)
        head = TreeHead(
            store_id=self.tree.store_id,
            size=frontier.size,
            root=frontier.root,
            sealed_at=now,
            position=position,
            key_id=signer.key_id,
        )
        return Grown(head._replace(signature=signer.sign(head.message())), frontier)

    def _anchor(self, *, accept_loss: bool = False) -> None:
        """Let the anchor name every tree head; but never beside a tree it knows."""
        anchored = self.anchor.newest()
        heads = self.tree.heads(after=anchored.size - 1 if anchored else -1)
        if anchored is not None:
            found = heads.pop(0) if heads else None
            if found is None or found[:3] != anchored[:3]:
                raise SealBroken(
                    f"the anchor names a tree of {anchored.size} leaves that is not in "
                    "the database"
                )
        if accept_loss:
            self.erasures.forget_remembered()
        self._check_remembered()
        for head in heads:
            self._check_signature(head, self.signer())
        if heads:
            self.recorder.flush()  # a power cut must not take what the anchor names
            self.anchor.add(heads)
        newest = heads[-1] if heads else anchored
        if newest is not None and self.erasures.recall(SEALED) != _mark(newest):
            self.erasures.remember(SEALED, _mark(newest))

    def _check_remembered(self) -> None:
        """Never seal beside a tree that the key store remembers."""
        known = self.erasures.recall(SEALED)
        if known is not None and not _there(self.tree, known):
            raise SealBroken(
                "the key store remembers a tree head that is not in the database: "
                "restore the database, or `refold seal --accept-loss`"
            )

    def _check_signature(self, head: TreeHead, signer: Signer) -> None:
        if not signed_by(signer.public_key, head.signature, head.message()):
            raise SealBroken(
                f"the tree head of {head.size} leaves is not signed by this store's key"
            )

    def verify(self, *, newest: bool = False) -> SealsVerified:
        return TreeCheck(self).run(newest=newest)

    def unsealed(self) -> Iterator[StreamId]:
        after: StreamId | None = None
        while streams := self.tree.behind(after=after):
            yield from streams
            after = streams[-1]

    def prove(self, stream: StreamId, seq: int, *, size: int | None) -> JsonObject:
        head = _tree_head(self.tree, size)
        seal = next((s for s in self.tree.seals(stream) if s.seq >= seq), None)
        if seal is None or seal.leaf >= head.size:
            raise LookupError(
                f"seq {seq} is not sealed in a tree of {head.size} leaves: "
                "`refold seal` seals what is new"
            )
        first, *links = _chain(self.recorder, stream, seq, seal)
        leaves = _leaves(self.tree, head.size)
        leaf = {name: getattr(seal, name).hex() for name in ("positions", "receipts")}
        return {
            "proof": EVENT,
            "event": first,
            "chain": [[link["header"], link["body"]] for link in links],
            "leaf": {"index": seal.leaf, **leaf},
            "inclusion": _hex(inclusion_proof(leaves, seal.leaf)),
            "tree_head": head.to_json(),
        }

    def prove_growth(self, old: int, new: int) -> JsonObject:
        first, second = _tree_head(self.tree, old), _tree_head(self.tree, new)
        return {
            "proof": GROWTH,
            "old": first.to_json(),
            "new": second.to_json(),
            "consistency": _hex(consistency_proof(_leaves(self.tree, new), old)),
        }

    def heads(self) -> list[TreeHead]:
        return self.tree.heads()

    def public_key(self) -> bytes:
        return self.signer().public_key


class TreeCheck:
    """Proves the tree of a store.

    Read in this order, a seal that is made meanwhile raises no alarm: a leaf is there
    with its tree head, and who holds the anchor adds that before letting go.
    """

    def __init__(self, seals: TreeSeals) -> None:
        self._tree, self._anchor = seals.tree, seals.anchor
        self._erasures, self._recorder = seals.erasures, seals.recorder
        self._public_key = seals.public_key

    def run(self, *, newest: bool) -> SealsVerified:
        """Prove it, or its ``newest`` tree head alone."""
        try:
            return self._proved_newest() if newest else self._proved()
        except RefoldError:
            raise
        except JUNK:
            problem = _problem(None, "unreadable", WRONG_TYPE)
            return SealsVerified(0, 0, 0, 0, 0, [problem])

    def _proved(self) -> SealsVerified:
        heads = self._tree.heads()
        standing = Standing(self._recorder, self._erasures)
        wrong = [head.size for head in heads if not self._signed(head)]
        problems = [
            *(_problem(size, "signature", _UNSIGNED) for size in wrong),
            *self._roots(heads),
            *self._owners(),
            *self._certified(),
            *standing.run(self._read_certificates),
            *self._unremembered(),
        ]
        anchored, broken = self._anchored()
        return SealsVerified(
            tree_heads=len(heads),
            leaves=max((head.size for head in heads), default=0),
            erased=sum(len(self._tree.erased(e)) for e in self._tree.erasures()),
            anchored=len(anchored),
            unsealed=self._tree.unsealed(),
            problems=[*problems, *broken, *self._compared(heads, anchored)],
        )

    def _proved_newest(self) -> SealsVerified:
        with self._anchor.held():
            newest, anchored = self._tree.newest(), self._anchor.newest()
        heads = [newest.head] if newest else []
        problems = [*self._roots(heads), *self._unremembered()]
        if heads and not self._signed(heads[0]):
            problems.append(_problem(heads[0].size, "signature", _UNSIGNED))
        named = [anchored] if anchored else []
        if [head[:3] for head in named] != [head[:3] for head in heads]:
            detail = "the anchor's newest tree head is not the database's"
            problems.append(_problem(None, "anchor", detail))
        size = heads[0].size if heads else 0
        return SealsVerified(len(heads), size, 0, len(named), 0, problems)

    def _unremembered(self) -> Iterator[Problem]:
        remembered = self._erasures.recall(SEALED)
        if remembered is not None and not _there(self._tree, remembered):
            detail = "the key store remembers a tree head that is not in the database"
            yield _problem(None, "anchor", detail)

    def _signed(self, head: TreeHead) -> bool:
        key = self._public_key()
        named = head.key_id == key_id(key)
        return named and signed_by(key, head.signature, head.message())

    def _roots(self, heads: list[TreeHead]) -> Iterator[Problem]:
        """Whether the leaves, in their order, make each tree head."""
        for size in self._tree.unsound():
            yield _problem(size, "root", "the tree head cannot be grown from")
        leaves, frontier = self._tree.leaves(), Frontier()
        found = next(leaves, None)
        for head in heads:
            while found is not None and found[0] < head.size:
                if found[0] != frontier.size:
                    yield _problem(frontier.size, "leaf", "the tree lacks this leaf")
                    return
                frontier = frontier.add([found[1]])
                found = next(leaves, None)
            if (frontier.size, frontier.root) != (head.size, head.root):
                detail = "its leaves do not make the tree head"
                yield _problem(head.size, "root", detail)
                return
        if found is not None and not self._tree.heads(after=found[0]):
            yield _problem(found[0], "leaf", "no tree head covers this leaf")

    def _owners(self) -> Iterator[Problem]:
        for stream, seq in self._tree.lost():
            detail = f"it was sealed up to seq {seq}, and has no head row"
            yield Problem(*stream, seq, "seal", detail)
        for stream in self._marked():
            detail = "it is marked as erased, and no erasure of it is under way"
            yield Problem(*stream, None, "head", detail)
        for table, stream in self._tree.strays():
            yield Problem(*stream, None, "stray", f"a row of {table} is of no session")
        for leaf in self._tree.unowned():
            detail = "of no stream: it, or its end, was taken away"
            yield _problem(leaf, "leaf", detail)

    def _marked(self) -> list[StreamId]:
        """Sessions that are marked as erased without an erasure.

        Looked for twice: one that ended in between has deleted its heads.
        """
        marked = self._tree.marked()
        jobs = [job.whose for job in self._erasures.jobs()] if marked else []
        return [
            stream
            for stream in sorted(marked & self._tree.marked() if marked else ())
            if not any(_covers(whose, stream) for whose in jobs)
        ]

    def _certified(self) -> Iterator[Problem]:
        """Certificates must be this store's, and the leaves of each what it says.

        Of what is being erased there is no certificate yet.
        """
        erasures = self._tree.erasures()
        under_way = {job.job_id for job in self._erasures.jobs()}
        said: dict[str, Any] = {}
        for row, statement in self._read_certificates():
            if statement is None:
                detail = f"certificate {row.certificate_id} is not what was signed here"
                yield _problem(None, "certificate", detail)
            else:
                said[row.certificate_id] = statement.get("tree", {}).get("leaves")
        for erasure in erasures:
            leaves = self._tree.erased(erasure)
            kept = {"count": len(leaves), "root": root_of(leaves).hex()}
            if said.get(erasure) != kept and erasure not in under_way:
                detail = f"its {len(leaves)} leaves are not what a certificate says"
                yield _problem(None, "erasure", f"{erasure}: {detail}")

    def _read_certificates(self) -> list[Stated]:
        stated = ((row, self._stated(row)) for row in self._erasures.certificate_rows())
        said = self._erasures.said
        return [(row, told and {**told, **said(row)}) for row, told in stated]

    def _stated(self, row: Any) -> Any:
        """What a certificate states; None if this store did not sign that."""
        try:
            signed = Signed.read(row.body)
            own = _says(signed, row)
        except JUNK:
            return None
        good = own and signed_by(self._public_key(), signed.signature, signed.message())
        return signed.statement if good else None

    def _anchored(self) -> tuple[list[TreeHead], list[Problem]]:
        try:
            if not self._tree.heads() and self._anchor.newest() is None:
                return [], []  # never sealed: nothing is made to look at it
            with self._anchor.held():
                return list(self._anchor.read()), []
        except SealBroken as error:
            return [], [_problem(None, "anchor", error.reason)]

    def _compared(
        self, heads: list[TreeHead], anchored: list[TreeHead]
    ) -> Iterator[Problem]:
        """The anchor must name these tree heads, and none that are not there."""
        known = {head.size: head for head in self._tree.heads()}
        for head in anchored:
            here = known.get(head.size)
            if not self._signed(head):
                detail = "the anchor has a tree head that this store did not sign"
                yield _problem(head.size, "anchor", detail)
            elif here is None:
                detail = "the anchor has a tree head that is not in the database"
                yield _problem(head.size, "anchor", detail)
            elif here.root != head.root:
                yield _problem(head.size, "anchor", "the anchor has another root")
        said = {head.size for head in anchored}
        missing = sorted({head.size for head in heads} - said)
        if missing:
            detail = (
                f"the anchor lacks {len(missing)} tree heads from here on: "
                "`refold seal` adds those behind its last"
            )
            yield _problem(missing[0], "anchor", detail)


def _covers(whose: Whose, stream: StreamId) -> bool:
    named = whose.sessions is None or stream.session_id in whose.sessions
    return named and whose.user_id == stream.user_id


def _says(signed: Signed, row: Any) -> bool:
    """Whether the plain columns of a certificate are what its statement says."""
    statement = signed.statement
    moment = statement.get("completed_at", timestamp(row.created_at))
    names = (statement.get("certificate_id"), moment)
    return names == (row.certificate_id, timestamp(row.created_at))


def _mark(head: TreeHead) -> bytes:
    """What the key store remembers of a tree head."""
    return b"%d %s" % (head.size, head.root.hex().encode())


def _there(tree: Tree, mark: bytes) -> bool:
    """Whether the tree head that was remembered so is in the database."""
    size = mark.partition(b" ")[0]
    if not size.isdigit():
        return False
    return mark in map(_mark, tree.heads(after=int(size) - 1)[:1])


def _problem(place: int | None, code: str, detail: str) -> Problem:
    """A problem of the tree; ``place`` is a leaf, or the size of a tree head."""
    return Problem(*TREE, place, code, detail)


def _tree_head(tree: Tree, size: int | None) -> TreeHead:
    before = -1 if size is None else bounded("a tree's size", size) - 1
    heads = tree.heads(after=before)
    wanted = heads[-1:] if size is None else [h for h in heads[:1] if h.size == size]
    if not wanted:
        which = "no tree head yet" if size is None else f"no tree head of size {size}"
        raise LookupError(f"there is {which}: `refold seal --list` lists all")
    return wanted[0]


def _leaves(tree: Tree, size: int) -> list[bytes]:
    leaves = [hash_ for _, hash_ in tree.leaves(upto=size)]
    if len(leaves) != size:
        raise LookupError(f"{size - len(leaves)} leaves are missing: `refold verify`")
    return leaves


def _chain(
    recorder: Recorder, stream: StreamId, seq: int, seal: Seal
) -> list[JsonObject]:
    """The event with its columns, then the links up to the event that was sealed."""
    found: list[JsonObject] = []
    after = seq - 1
    while page := recorder.select_events(stream, gt=after, lte=seal.seq, limit=_EVENTS):
        found += [
            _event(row)
            if row.seq == seq
            else {"header": sha256(row.context).hexdigest(), "body": _body(row)}
            for row in page
        ]
        after = page[-1].seq
    if len(found) != seal.seq - seq + 1:
        raise LookupError(f"there is no event {seq}, or one behind it is missing")
    return found


def _event(row: EncryptedEvent) -> JsonObject:
    header = row.header
    columns = header._asdict() | header.stream._asdict()
    event_id = str(UUID(bytes=header.event_id))
    columns |= {"event_id": event_id, "prev_hash": row.prev_hash.hex()}
    return {**columns, "body": _body(row)}


def _body(row: EncryptedEvent) -> str:
    """The digest of the first ciphertext, which is what the chain was made of."""
    return (row.first_digest or sha256(row.state).digest()).hex()


def _hex(hashes: tuple[bytes, ...]) -> list[JsonValue]:
    return [hash_.hex() for hash_ in hashes]


# Files by which a thread of this process holds the lock of an anchor.
_held: Final[set[BinaryIO]] = set()


def _leave_locks_to_parent() -> None:
    """Close them in a forked child, which would hold the locks as long as it lives."""
    for file in list(_held):
        file.close()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_locks_to_parent)


class FileAnchor:
    """An Anchor in the file ``path``, which is made when it is first added to.

    What stands there is never written again.  A second file is what is locked.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._locked = path.with_name(f"{path.name}.lock")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes and threads from reading and adding."""
        try:
            create_private(self._locked)
            file = self._locked.open("rb")
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise self._unusable(error) from None
            yield  # who may not write here cannot seal, but may look
            return
        if sys.platform == "win32":
            with file:
                yield
            return
        import fcntl

        pid = os.getpid()
        _held.add(file)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            # Closing is not enough: a child that was forked may have the file open too.
            if pid == os.getpid():
                fcntl.flock(file, fcntl.LOCK_UN)
            _held.discard(file)
            file.close()

    @contextmanager
    def _using(self) -> Iterator[None]:
        """Look into the file, if there is one."""
        try:
            with suppress(FileNotFoundError):
                yield
        except OSError as error:
            raise self._unusable(error) from None

    def read(self) -> Iterator[TreeHead]:
        """All tree heads in it; a last line that was not finished is none."""
        lines: list[bytes] = []
        with self._using():
            lines = self.path.read_bytes().split(b"\n")[:-1]
        for number, line in enumerate(lines, start=1):
            yield self._head(line, f"line {number}")

    def newest(self) -> TreeHead | None:
        """The tree head of the last line that was finished."""
        with self._using(), self.path.open("rb") as file:
            return self._last(file)
        return None

    def add(self, heads: Sequence[TreeHead]) -> None:
        """Append the heads that are larger than the last, and wait for the disk."""
        if not heads:
            return
        try:
            create_private(self.path)
            with self.path.open("r+b") as file:
                last = self._last(file)
                # A line that was cut off was never answered for.
                file.truncate(file.seek(_end_of_lines(file)))
                for head in heads:
                    if last is None or head.size > last.size:
                        file.write(json.dumps(head.to_json()).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise self._unusable(error) from None

    def _last(self, file: BinaryIO) -> TreeHead | None:
        end = _end_of_lines(file)
        if not end:
            return None
        start = max(0, end - _LONGEST)
        file.seek(start)
        line = file.read(end - start)[:-1].rpartition(b"\n")[2]
        return self._head(line, "the last line")

    def _head(self, line: bytes, where: str) -> TreeHead:
        try:
            return TreeHead.from_json(json.loads(line))
        except ValueError:
            raise SealBroken(
                f"{where} of the anchor {self.path} is not a tree head"
            ) from None

    def _unusable(self, error: OSError) -> StoreUnavailable:
        return StoreUnavailable(
            f"the anchor {self.path} cannot be used ({error.strerror})",
            remedy=remedy_for(error),
        )


def _end_of_lines(file: BinaryIO) -> int:
    """Where the last whole line ends."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - _LONGEST)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0
