"""Seals: the ends of all streams are leaves of a tree with a signed, anchored head.

Leaves and tree head are committed together, and added to the anchor only then.  So the
anchor names only existing tree heads.  The next call completes one that was interrupted
in between.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
from refold.adapters.verification import StatedCertificate, StoreDataVerification
from refold.domain.chain import Frontier, consistency_proof, inclusion_proof, root_of
from refold.domain.erasure import ErasureScope, Signed, timestamp
from refold.domain.errors import (
    RefoldError,
    SealBroken,
    StoreUnavailable,
    remedy_for,
)
from refold.domain.events import JsonObject
from refold.domain.ids import StreamId, bounded
from refold.domain.ports import MALFORMED_DATA, WRONG_TYPE, Problem
from refold.domain.seals import TREE, Anchor, Ending, Seal, SealsVerified, TreeHead

_TRIES: Final = 100
EVENT_PROOF: Final = "refold event proof 1"
GROWTH_PROOF: Final = "refold consistency proof 1"
_EVENTS_PER_PAGE: Final = 500
_BLOCK: Final = 4096  # bytes of one read; a line has about a tenth of that
_UNSIGNED: Final = "the tree head is not signed by this store"
SEALED: Final = "sealed"  # the name of the newest tree head in the key store


@dataclass(slots=True)
class TreeSeals:
    """Seals over the rows of one store.

    signer:    returns the signer, and makes its key on the first call.
    _position: the position up to which this object has sealed the log.
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
        """Seal all streams with new events, as ``Seals.seal`` describes.

        now: the time of the tree heads, in microseconds since 1970.
        """
        with self.anchor.held():
            self._update_anchor(accept_loss=accept_loss)
        log_ends = self.tree.ends()
        newest = self.tree.newest()
        sealed_position = newest.head.position if newest is not None else 0
        is_ordered = self.recorder.database.ordered
        # Positions are lower than before if a backup of another server was restored.
        is_restored = log_ends.settled < sealed_position
        if sweep or is_restored or not is_ordered:
            # A later call must read the log from where both agree.
            position = min(sealed_position, log_ends.settled)
            pages = self._behind(position, log_ends)
        else:
            # This object may have read further than the last tree head says.
            position = max(sealed_position, self._position)
            pages = self._moved(position, log_ends)
        for streams, position in pages:
            self._seal(streams, position, now, endings or self.endings)
        self._position = log_ends.settled
        newest = self.tree.newest()
        if newest is None:
            return None
        return newest.head

    def _moved(
        self, position: int, log_ends: Ends
    ) -> Iterator[tuple[list[StreamId], int]]:
        """Yield streams with events after a position, and the position of each page.

        Open transactions may still add events after ``log_ends.settled``.  So later
        events are sealed now, and read again the next time.
        """
        while position < log_ends.newest:
            streams, position = self.tree.moved(after=position, upto=log_ends.newest)
            yield streams, min(position, log_ends.settled)

    def _behind(
        self, sealed_position: int, log_ends: Ends
    ) -> Iterator[tuple[list[StreamId], int]]:
        """Yield all streams that are not sealed to their heads, in pages.

        Each page has the position up to which the log is sealed after it.  Only the
        last page advances that position.
        """
        streams = self.tree.behind()
        while streams:
            next_streams = self.tree.behind(after=streams[-1])
            if next_streams:
                yield streams, sealed_position
            else:
                yield streams, log_ends.settled
            streams = next_streams

    def endings(self, streams: Sequence[StreamId]) -> list[Ending]:
        endings = []
        for stream in streams:
            ending = self.tree.ending(stream)
            if ending:
                endings.append(ending)
        return endings

    def _seal(
        self,
        streams: list[StreamId],
        position: int,
        now: int,
        find: Callable[[list[StreamId]], list[Ending]],
    ) -> None:
        """Seal the ends of these streams with a new tree head, if they have moved.

        find: returns the ends of streams.
        """
        for _ in range(_TRIES):
            # The base is read before the ends.  If another process seals in between,
            # the tree has another base, and the leaves are not added.
            base = self.tree.newest()
            base_size = base.head.size if base is not None else 0
            endings = find(streams)
            if not endings:
                return
            grown = self._grown(base, endings, position, now)
            with self.anchor.held():
                if self.tree.add(base_size, grown, endings):
                    self._update_anchor()
                    return
        raise StoreUnavailable(
            "other processes keep sealing this store",
            remedy="try again when they are done",
        )

    def _grown(
        self, base: Grown | None, endings: list[Ending], position: int, now: int
    ) -> Grown:
        """Return the tree with further leaves, its head signed."""
        signer = self.signer()
        frontier = Frontier()
        if base is not None:
            frontier = base.frontier
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

    def _update_anchor(self, *, accept_loss: bool = False) -> None:
        """Add all missing tree heads to the anchor.

        Raises SealBroken if the anchor names a tree head that the database has lost.
        """
        anchored = self.anchor.newest()
        after = anchored.size - 1 if anchored is not None else -1
        heads = self.tree.heads(after=after)
        if anchored is not None:
            stored = heads.pop(0) if heads else None
            if stored is None or not _is_same_tree(stored, anchored):
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
            # The anchor must not name tree heads that a power failure can take away.
            self.recorder.flush()
            self.anchor.add(heads)
        newest = heads[-1] if heads else anchored
        if newest is None:
            return
        if self.erasures.recall(SEALED) != _remembered_form(newest):
            self.erasures.remember(SEALED, _remembered_form(newest))

    def _check_remembered(self) -> None:
        """Raise SealBroken if the key store remembers a tree head that was lost."""
        mark = self.erasures.recall(SEALED)
        if mark is not None and not _has_head(self.tree, mark):
            raise SealBroken(
                "the key store remembers a tree head that is not in the database: "
                "restore the database, or run `refold seal --accept-loss`"
            )

    def _check_signature(self, head: TreeHead, signer: Signer) -> None:
        """Raise SealBroken for a tree head that this store did not sign."""
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
        seal = None
        for candidate in self.tree.seals(stream):
            if candidate.seq >= seq:
                seal = candidate
                break
        if seal is None or seal.leaf >= head.size:
            raise LookupError(
                f"seq {seq} is not sealed in a tree of {head.size} leaves: "
                "run `refold seal` to seal newer events"
            )
        first, *links = _chain(self.recorder, stream, seq, seal)
        leaves = _leaves(self.tree, head.size)
        return {
            "proof": EVENT_PROOF,
            "event": first,
            "chain": [[link["header"], link["body"]] for link in links],
            "leaf": {
                "index": seal.leaf,
                "positions": seal.positions.hex(),
                "receipts": seal.receipts.hex(),
            },
            "inclusion": _hex(inclusion_proof(leaves, seal.leaf)),
            "tree_head": head.to_json(),
        }

    def prove_growth(self, old: int, new: int) -> JsonObject:
        old_head = _tree_head(self.tree, old)
        new_head = _tree_head(self.tree, new)
        return {
            "proof": GROWTH_PROOF,
            "old": old_head.to_json(),
            "new": new_head.to_json(),
            "consistency": _hex(consistency_proof(_leaves(self.tree, new), old)),
        }

    def heads(self) -> list[TreeHead]:
        return self.tree.heads()

    def public_key(self) -> bytes:
        return self.signer().public_key


class TreeCheck:
    """Verifies the tree of a store.

    Concurrent seals are no problem: a leaf is stored with its tree head, and the
    process that holds the anchor adds that head before others can read the anchor.
    """

    def __init__(self, seals: TreeSeals) -> None:
        self._tree = seals.tree
        self._anchor = seals.anchor
        self._erasures = seals.erasures
        self._recorder = seals.recorder
        self._public_key = seals.public_key

    def run(self, *, newest: bool) -> SealsVerified:
        """Verify the whole tree, or only its newest tree head."""
        try:
            if newest:
                return self._verify_newest()
            return self._verify_all()
        except RefoldError:
            raise
        except MALFORMED_DATA:
            problem = _problem(None, "unreadable", WRONG_TYPE)
            return SealsVerified(
                tree_heads=0,
                leaves=0,
                erased=0,
                anchored=0,
                unsealed=0,
                problems=[problem],
            )

    def _verify_all(self) -> SealsVerified:
        """Verify the whole tree, its certificates, and its anchor."""
        heads = self._tree.heads()
        store_data = StoreDataVerification(self._recorder, self._erasures)
        problems: list[Problem] = []
        for head in heads:
            if not self._is_signed(head):
                problems.append(_problem(head.size, "signature", _UNSIGNED))
        problems += self._root_problems(heads)
        problems += self._owner_problems()
        problems += self._certificate_problems()
        problems += store_data.run(self._read_certificates)
        problems += self._remembered_problems()
        anchored, unreadable = self._read_anchor()
        erased = 0
        for erasure in self._tree.erasures():
            erased += len(self._tree.erased(erasure))
        return SealsVerified(
            tree_heads=len(heads),
            leaves=max((head.size for head in heads), default=0),
            erased=erased,
            anchored=len(anchored),
            unsealed=self._tree.unsealed(),
            problems=[
                *problems,
                *unreadable,
                *self._anchor_problems(heads, anchored),
            ],
        )

    def _verify_newest(self) -> SealsVerified:
        """Verify the newest tree head, and that the anchor names it."""
        with self._anchor.held():
            newest = self._tree.newest()
            anchored = self._anchor.newest()
        heads = [newest.head] if newest is not None else []
        anchored_heads = [anchored] if anchored is not None else []
        problems = [*self._root_problems(heads), *self._remembered_problems()]
        if heads and not self._is_signed(heads[0]):
            problems.append(_problem(heads[0].size, "signature", _UNSIGNED))
        if not _are_same_trees(anchored_heads, heads):
            detail = "the anchor's newest tree head is not the database's"
            problems.append(_problem(None, "anchor", detail))
        return SealsVerified(
            tree_heads=len(heads),
            leaves=heads[0].size if heads else 0,
            erased=0,
            anchored=len(anchored_heads),
            unsealed=0,
            problems=problems,
        )

    def _remembered_problems(self) -> Iterator[Problem]:
        """Yield a lost tree head that the key store remembers."""
        mark = self._erasures.recall(SEALED)
        if mark is not None and not _has_head(self._tree, mark):
            detail = "the key store remembers a tree head that is not in the database"
            yield _problem(None, "anchor", detail)

    def _is_signed(self, head: TreeHead) -> bool:
        """Whether this store signed a tree head."""
        key = self._public_key()
        if head.key_id != key_id(key):
            return False
        return signed_by(key, head.signature, head.message())

    def _root_problems(self, heads: list[TreeHead]) -> Iterator[Problem]:
        """Compute each tree head from the leaves in their order, and compare it."""
        for size in self._tree.unsound():
            yield _problem(size, "root", "the tree head does not fit its frontier")
        leaves = self._tree.leaves()
        frontier = Frontier()
        leaf = next(leaves, None)  # an index and a hash
        for head in heads:
            while leaf is not None and leaf[0] < head.size:
                index, hash_ = leaf
                if index != frontier.size:
                    yield _problem(frontier.size, "leaf", "the tree lacks this leaf")
                    return
                frontier = frontier.add([hash_])
                leaf = next(leaves, None)
            if (frontier.size, frontier.root) != (head.size, head.root):
                detail = "its leaves give another root than the tree head"
                yield _problem(head.size, "root", detail)
                return
        if leaf is None:
            return
        # A concurrent seal may have added the leaf and its tree head since.
        if not self._tree.heads(after=leaf[0]):
            yield _problem(leaf[0], "leaf", "no tree head covers this leaf")

    def _owner_problems(self) -> Iterator[Problem]:
        """Yield rows whose stream or head is missing, and marks of unknown erasures."""
        for stream, seq in self._tree.lost():
            detail = f"it was sealed up to seq {seq}, but has no head row"
            yield Problem(*stream, seq, "seal", detail)
        for stream in self._marked():
            detail = "it is marked as erased, but no erasure of it is in progress"
            yield Problem(*stream, None, "head", detail)
        for table, stream in self._tree.strays():
            detail = f"a row of {table} belongs to no session"
            yield Problem(*stream, None, "stray", detail)
        for leaf in self._tree.unowned():
            detail = "no stream has this leaf: the stream or its seal was deleted"
            yield _problem(leaf, "leaf", detail)

    def _marked(self) -> list[StreamId]:
        """Return sessions that are marked as erased without an erasure.

        Heads are read before and after the jobs: an erasure that ends in between has
        deleted its heads.
        """
        before = self._tree.marked()
        if not before:
            return []
        scopes = [job.scope for job in self._erasures.jobs()]
        after = self._tree.marked()
        marked = []
        for stream in sorted(before & after):
            if not any(_covers(scope, stream) for scope in scopes):
                marked.append(stream)
        return marked

    def _certificate_problems(self) -> Iterator[Problem]:
        """Check that this store signed the certificates, and that their leaves exist.

        An erasure in progress has no certificate yet.
        """
        erasures = self._tree.erasures()
        in_progress = {job.job_id for job in self._erasures.jobs()}
        certified_leaves: dict[str, Any] = {}
        for row, statement in self._read_certificates():
            if statement is None:
                detail = f"this store did not sign certificate {row.certificate_id}"
                yield _problem(None, "certificate", detail)
            else:
                leaves = statement.get("tree", {}).get("leaves")
                certified_leaves[row.certificate_id] = leaves
        for erasure in erasures:
            leaves = self._tree.erased(erasure)
            stored = {"count": len(leaves), "root": root_of(leaves).hex()}
            if erasure in in_progress:
                continue
            if certified_leaves.get(erasure) != stored:
                detail = f"its {len(leaves)} leaves differ from its certificate"
                yield _problem(None, "erasure", f"{erasure}: {detail}")

    def _read_certificates(self) -> list[StatedCertificate]:
        """Return the certificates with their statements and decrypted texts."""
        certificates: list[StatedCertificate] = []
        for row in self._erasures.certificate_rows():
            statement = self._statement(row)
            if statement:
                statement = {**statement, **self._erasures.decrypted_texts(row)}
            certificates.append((row, statement))
        return certificates

    def _statement(self, row: Any) -> Any:
        """Return the statement of a certificate; None if this store did not sign it."""
        try:
            signed = Signed.read(row.body)
            if not _fits_columns(signed, row):
                return None
        except MALFORMED_DATA:
            return None
        if not signed_by(self._public_key(), signed.signature, signed.message()):
            return None
        return signed.statement

    def _read_anchor(self) -> tuple[list[TreeHead], list[Problem]]:
        """Return the tree heads in the anchor, or the problem of reading it."""
        try:
            if not self._tree.heads() and self._anchor.newest() is None:
                return [], []  # never sealed; ``held`` would create a file
            with self._anchor.held():
                return list(self._anchor.read()), []
        except SealBroken as error:
            return [], [_problem(None, "anchor", error.reason)]

    def _anchor_problems(
        self, heads: list[TreeHead], anchored: list[TreeHead]
    ) -> Iterator[Problem]:
        """Yield the differences between the anchor and the database.

        heads: the tree heads that the anchor must name.
        """
        stored = {head.size: head for head in self._tree.heads()}
        for head in anchored:
            same_size = stored.get(head.size)
            if not self._is_signed(head):
                detail = "the anchor has a tree head that this store did not sign"
                yield _problem(head.size, "anchor", detail)
            elif same_size is None:
                detail = "the anchor has a tree head that is not in the database"
                yield _problem(head.size, "anchor", detail)
            elif same_size.root != head.root:
                yield _problem(head.size, "anchor", "the anchor has another root")
        anchored_sizes = {head.size for head in anchored}
        missing = sorted({head.size for head in heads} - anchored_sizes)
        if missing:
            detail = (
                f"the anchor lacks {len(missing)} tree heads from here on: "
                "run `refold seal` to add them"
            )
            yield _problem(missing[0], "anchor", detail)


def _covers(scope: ErasureScope, stream: StreamId) -> bool:
    """Whether a stream is in the scope of an erasure."""
    if scope.user_id != stream.user_id:
        return False
    return scope.sessions is None or stream.session_id in scope.sessions


def _fits_columns(signed: Signed, row: Any) -> bool:
    """Whether the statement of a certificate fits its plain columns."""
    created_at = timestamp(row.created_at)
    if signed.statement.get("certificate_id") != row.certificate_id:
        return False
    completed_at = signed.statement.get("completed_at", created_at)
    return bool(completed_at == created_at)


def _is_same_tree(head: TreeHead, other: TreeHead) -> bool:
    """Whether two tree heads are of the same store and have the same leaves."""
    return head[:3] == other[:3]  # the store's id, the size, and the root


def _are_same_trees(heads: list[TreeHead], others: list[TreeHead]) -> bool:
    """Whether two lists of tree heads agree in order."""
    if len(heads) != len(others):
        return False
    return all(map(_is_same_tree, heads, others))


def _remembered_form(head: TreeHead) -> bytes:
    """Return the form in which the key store remembers a tree head."""
    return b"%d %s" % (head.size, head.root.hex().encode())


def _has_head(tree: Tree, mark: bytes) -> bool:
    """Whether the database has the tree head that the key store remembers."""
    size, _, _ = mark.partition(b" ")
    if not size.isdigit():
        return False
    heads = tree.heads(after=int(size) - 1)
    return bool(heads) and _remembered_form(heads[0]) == mark


def _problem(place: int | None, code: str, detail: str) -> Problem:
    """Return a problem of the tree, at a leaf or at the size of a tree head."""
    return Problem(*TREE, place, code, detail)


def _tree_head(tree: Tree, size: int | None) -> TreeHead:
    """Return the tree head of this size, or the newest.  Raises LookupError."""
    if size is None:
        heads = tree.heads(after=-1)
        if not heads:
            raise LookupError("there is no tree head yet: run `refold seal` first")
        return heads[-1]
    heads = tree.heads(after=bounded("a tree's size", size) - 1)
    if not heads or heads[0].size != size:
        raise LookupError(
            f"there is no tree head of size {size}: `refold seal --list` lists all"
        )
    return heads[0]


def _leaves(tree: Tree, size: int) -> list[bytes]:
    """Return the leaves of a tree of this size.  Raises LookupError."""
    leaves = [hash_ for _, hash_ in tree.leaves(upto=size)]
    if len(leaves) != size:
        missing = size - len(leaves)
        raise LookupError(f"{missing} leaves are missing: run `refold verify`")
    return leaves


def _chain(
    recorder: Recorder, stream: StreamId, seq: int, seal: Seal
) -> list[JsonObject]:
    """Return an event with its columns, then the links up to the sealed event."""
    chain: list[JsonObject] = []
    after = seq - 1
    while page := recorder.select_events(
        stream, gt=after, lte=seal.seq, limit=_EVENTS_PER_PAGE
    ):
        for row in page:
            if row.seq == seq:
                chain.append(_event(row))
            else:
                header = sha256(row.context).hexdigest()
                chain.append({"header": header, "body": _body(row)})
        after = page[-1].seq
    if len(chain) != seal.seq - seq + 1:
        raise LookupError(f"there is no event {seq}, or a later one is missing")
    return chain


def _event(row: EncryptedEvent) -> JsonObject:
    """Return the columns of an event as JSON, with the digest of its ciphertext."""
    header = row.header
    return {
        **header._asdict(),
        **header.stream._asdict(),
        "event_id": str(UUID(bytes=header.event_id)),
        "prev_hash": row.prev_hash.hex(),
        "body": _body(row),
    }


def _body(row: EncryptedEvent) -> str:
    """Return the digest of the first ciphertext, which the chain contains."""
    return (row.first_digest or sha256(row.state).digest()).hex()


def _hex(hashes: tuple[bytes, ...]) -> list[JsonValue]:
    """Return hashes in hex."""
    return [hash_.hex() for hash_ in hashes]


# The open files with which threads of this process hold the locks of anchors.
_locked_files: Final[set[BinaryIO]] = set()


def _leave_locks_to_parent() -> None:
    """Close the files in a forked child, which would otherwise hold the locks, too."""
    for file in list(_locked_files):
        file.close()
    _locked_files.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_locks_to_parent)


class FileAnchor:
    """An Anchor in the file ``path``, which the first addition creates.

    Lines in it never change.  The lock is on a second file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock_path = path.with_name(f"{path.name}.lock")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock: other processes and threads cannot read or add."""
        try:
            create_private(self._lock_path)
            file = self._lock_path.open("rb")
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise self._unusable(error) from None
            yield  # without write permission, reading needs no lock
            return
        if sys.platform == "win32":  # which has no flock
            with file:
                yield
            return
        import fcntl

        pid = os.getpid()
        _locked_files.add(file)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            # Unlock before the file is closed: a forked child may have it open, too.
            # The child itself must not release its parent's lock.
            if pid == os.getpid():
                fcntl.flock(file, fcntl.LOCK_UN)
            _locked_files.discard(file)
            file.close()

    def read(self) -> Iterator[TreeHead]:
        """Yield all tree heads in the file; an incomplete last line is ignored."""
        try:
            lines = self.path.read_bytes().split(b"\n")[:-1]
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._unusable(error) from None
        for number, line in enumerate(lines, start=1):
            yield self._head(line, f"line {number}")

    def newest(self) -> TreeHead | None:
        """Return the tree head in the last complete line; None without one."""
        try:
            with self.path.open("rb") as file:
                return self._last(file)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unusable(error) from None

    def add(self, heads: Sequence[TreeHead]) -> None:
        """Append the heads that are larger than the last one, durably."""
        if not heads:
            return
        try:
            create_private(self.path)
            with self.path.open("r+b") as file:
                last = self._last(file)
                # The writer of an incomplete line has not returned.  So nobody relies
                # on that line.
                end = _end_of_lines(file)
                file.truncate(end)
                file.seek(end)
                for head in heads:
                    if last is None or head.size > last.size:
                        file.write(json.dumps(head.to_json()).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise self._unusable(error) from None

    def _last(self, file: BinaryIO) -> TreeHead | None:
        """Return the tree head in the last complete line; None if there is none."""
        end = _end_of_lines(file)
        if not end:
            return None
        start = max(0, end - _BLOCK)
        file.seek(start)
        block = file.read(end - start).removesuffix(b"\n")
        _, _, line = block.rpartition(b"\n")
        return self._head(line, "the last line")

    def _head(self, line: bytes, where: str) -> TreeHead:
        """Read the tree head in a line.  Raises SealBroken."""
        try:
            return TreeHead.from_json(json.loads(line))
        except ValueError:
            raise SealBroken(
                f"{where} of the anchor {self.path} is not a tree head"
            ) from None

    def _unusable(self, error: OSError) -> StoreUnavailable:
        """Return the error for an anchor that the file system refuses to use."""
        return StoreUnavailable(
            f"the anchor {self.path} cannot be used ({error.strerror})",
            remedy=remedy_for(error),
        )


def _end_of_lines(file: BinaryIO) -> int:
    """Return the end of the last complete line."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - _BLOCK)
        file.seek(start)
        index = file.read(end - start).rfind(b"\n")
        if index >= 0:
            return start + index + 1
        end = start
    return 0
