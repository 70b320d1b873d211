"""Sealing: the heads of all streams as leaves of a tree, its head signed and anchored.

The order keeps what the anchor says true: leaves and tree head are committed together,
and only then does the anchor name them.  A call that was cut off between the two is
completed by the next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from refold.adapters.keys.signatures import Signer, key_id, signed_by
from refold.adapters.recorder import (
    CertificateRow,
    Ending,
    Ends,
    ErasingRows,
    Grown,
    Mark,
    Tree,
)
from refold.adapters.seals.proofs import event_proof, growth_proof
from refold.adapters.sql.recorder import Recorder
from refold.domain.chain import Frontier, root_of
from refold.domain.erasure import Signed, Whose, timestamp
from refold.domain.errors import RefoldError, SealBroken, StoreUnavailable
from refold.domain.events import JsonObject, Span
from refold.domain.ids import StreamId
from refold.domain.ports import JUNK, WRONG_TYPE, Problem
from refold.domain.seals import (
    TREE,
    Anchor,
    Leaf,
    Seal,
    SealsVerified,
    TreeHead,
    Use,
    positions_digest,
    receipts_digest,
)


class TreeCheck:
    """Proves the tree of a store.

    Read in this order, a seal that is made meanwhile raises no alarm: a leaf is there
    with its tree head, and who holds the anchor adds that before letting go.
    """

    def __init__(
        self,
        tree: Tree,
        anchor: Anchor,
        public_key: Callable[[], bytes],
        erasing: ErasingRows,
    ) -> None:
        self._tree, self._anchor, self._erasing = tree, anchor, erasing
        self._public_key = public_key

    def run(self) -> SealsVerified:
        """Prove it."""
        try:
            return self._run()
        except RefoldError:
            raise
        except JUNK:
            problem = _problem(None, "unreadable", WRONG_TYPE)
            return SealsVerified(0, 0, 0, 0, 0, [problem])

    def _run(self) -> SealsVerified:
        heads = self._tree.heads()
        problems = [
            *self._signatures(heads),
            *self._roots(heads),
            *self._owners(),
            *self._certified(),
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

    def _signatures(self, heads: Iterable[TreeHead]) -> Iterator[Problem]:
        for head in heads:
            if not self._signed(head):
                yield _problem(
                    head.size, "signature", "the tree head is not signed by this store"
                )

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
        jobs = [job.whose for job in self._erasing.jobs()] if marked else []
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
        under_way = {job.job_id for job in self._erasing.jobs()}
        said: dict[str, Any] = {}
        for row in self._erasing.certificates():
            statement = self._stated(row)
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

    def _stated(self, row: CertificateRow) -> Any:
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
    user_id, sessions = whose
    return user_id == stream.user_id and (
        sessions is None or stream.session_id in sessions
    )


def _says(signed: Signed, row: CertificateRow) -> bool:
    """Whether the plain columns of a certificate are what its statement says."""
    statement = signed.statement
    moment = statement.get("completed_at", timestamp(row.created_at))
    names = (statement.get("certificate_id"), moment)
    return names == (row.certificate_id, timestamp(row.created_at))


def _problem(place: int | None, code: str, detail: str) -> Problem:
    """A problem of the tree; ``place`` is a leaf, or the size of a tree head."""
    return Problem(*TREE, place, code, detail)


_TRIES: Final = 100
_NOTHING: Final = Frontier()


@dataclass(slots=True)
class TreeSeals:
    """Seals over the rows of one store.

    ``signer`` is asked for when something is to be signed or checked: the first time,
    it makes a key.
    """

    tree: Tree
    recorder: Recorder
    anchor: Anchor
    signer: Callable[[], Signer]
    _position: int = field(default=0, init=False)

    def seal(self, *, now: int, sweep: bool = False) -> TreeHead | None:
        """Seal what has moved since the newest tree head."""
        with self.anchor.held():
            self._anchor()
        ends, newest = self.tree.ends(), self.tree.newest()
        known = newest.head.position if newest else 0
        # Positions fall where another server's backup was put in place.
        if sweep or ends.settled < known:
            self._sweep(now, ends)
        else:
            self._follow(now, max(known, self._position), ends)
        newest = self.tree.newest()
        return newest.head if newest else None

    def _follow(self, now: int, position: int, ends: Ends) -> None:
        """Seal the streams that have events behind this position.

        What is not settled is sealed too, and read again the next time.
        """
        while position < ends.newest:
            moved = self.tree.moved(after=position, upto=ends.newest)
            position = moved.position
            self._seal(moved.streams, min(position, ends.settled), now)
        self._position = ends.settled

    def _sweep(self, now: int, ends: Ends) -> None:
        """Seal all streams that are not sealed to their heads."""
        after: StreamId | None = None
        while streams := self.tree.behind(after=after):
            self._seal(streams, ends.settled, now)
            after = streams[-1]
        self._position = ends.settled

    def _seal(self, streams: list[StreamId], position: int, now: int) -> None:
        """Put the ends of these streams under a tree head, those that have moved."""
        for _ in range(_TRIES):
            base = self.tree.newest()
            endings = [end for stream in streams if (end := self.tree.ending(stream))]
            if not endings:
                return
            grown = self._grown(base, endings, position, now)
            with self.anchor.held():
                if self.tree.add(base.head.size if base else 0, grown, endings):
                    self._anchor()
                    return
        raise StoreUnavailable(
            "others seal this store all the time", remedy="try again when they are done"
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

    def _anchor(self) -> None:
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
        for head in heads:
            self._check_signature(head, self.signer())
        if heads:
            self.recorder.flush()  # a power cut must not take what the anchor names
            self.anchor.add(heads)

    def _check_signature(self, head: TreeHead, signer: Signer) -> None:
        if not signed_by(signer.public_key, head.signature, head.message()):
            raise SealBroken(
                f"the tree head of {head.size} leaves is not signed by this store's key"
            )

    def verify(self) -> SealsVerified:
        """Prove leaves, tree heads, signatures, certificates and anchor."""
        erasing = self.recorder.erasing()
        return TreeCheck(self.tree, self.anchor, self.public_key, erasing).run()

    def prove(self, stream: StreamId, seq: int, *, size: int | None) -> JsonObject:
        """The proof that this event is in the tree of that size, or the newest."""
        return event_proof(self.tree, self.recorder, stream, seq, size=size)

    def prove_growth(self, old: int, new: int) -> JsonObject:
        """The proof that one tree begins with the other."""
        return growth_proof(self.tree, old, new)

    def heads(self) -> list[TreeHead]:
        """All tree heads, the smallest first."""
        return self.tree.heads()

    def public_key(self) -> bytes:
        """The key that tree heads are checked with."""
        return self.signer().public_key


_PAGE: Final = 10_000
_END: Final = 2**63 - 1
_NOWHERE: Final = (2**64, 2**64)


def sealed_problems(tree: Tree, stream: StreamId) -> Iterator[Problem]:
    """What of the stream is not as it was sealed, or has no receipt.

    Nothing is decrypted.  Read in this order, an append raises no alarm: seals, then
    events, then the receipts of these.
    """
    seals, marks = tree.seals(stream), Marks(tree, stream)
    positions = [positions_digest(marks.upto(seal.seq)) for seal in seals]
    marks.read_on()
    uses = sorted(tree.uses(stream, after=0, upto=marks.last), key=lambda u: u[1:])
    rest = deque(uses)
    for seal, digest in zip(seals, positions, strict=True):
        receipts = receipts_digest(_taken(rest, seal.seq))
        same = (digest == seal.positions, receipts == seal.receipts)
        for detail in _differs(seal, *same):
            yield Problem(*stream, seal.seq, "seal", detail)
    for seq, detail in _unpaired(marks.named, uses):
        yield Problem(*stream, seq, "receipt", detail)


def _taken(rest: deque[Use], seq: int) -> Iterator[Use]:
    """The receipts that begin up to ``seq``, taken off ``rest``."""
    while rest and rest[0].first_seq <= seq:
        yield rest.popleft()


def _differs(seal: Seal, positions: bool, receipts: bool) -> Iterator[str]:
    """In which ways a stream is not what was sealed of it."""
    if not seal.now:
        yield "it was sealed up to here, and its events end before, or have a gap"
        return
    leaf = Leaf(seal.now, seal.positions, seal.receipts)
    if not seal.kept:
        yield f"its leaf {seal.leaf} is not in the tree, or is of something erased"
    elif leaf.hashed() != seal.kept:
        yield f"leaf {seal.leaf} of the tree was made of another event"
    if not positions:
        yield "positions up to here are not those that were sealed"
    if not receipts:
        yield "receipts up to here are not those that were sealed"


class Marks:
    """The marks of a stream's events, read once and in order, a page at a time.

    ``last`` is how far it was read, ``named`` are the spans of the events with an
    idempotency key up to there.
    """

    def __init__(self, tree: Tree, stream: StreamId) -> None:
        self._tree, self._stream = tree, stream
        self._page: deque[Mark] = deque()
        self._ended = False
        self.last = 0
        self.named: list[Span] = []

    def upto(self, seq: int) -> Iterator[int]:
        """The positions of the events up to ``seq``, from where it was read before."""
        while self._filled() and self._page[0].seq <= seq:
            mark = self._page.popleft()
            self.last = mark.seq
            if mark.idempotent:
                self._note(mark.seq)
            yield mark.position

    def read_on(self) -> None:
        """Read to the end."""
        for _ in self.upto(_END):
            pass

    def _filled(self) -> bool:
        """Whether there is another event; the next page is read where one is needed."""
        if not self._page and not self._ended:
            found = self._tree.marks(
                self._stream, after=self.last, upto=_END, limit=_PAGE
            )
            self._ended = len(found) < _PAGE
            self._page.extend(found)
        return bool(self._page)

    def _note(self, seq: int) -> None:
        first, last = self.named[-1] if self.named else (0, 0)
        if last and last + 1 == seq:
            self.named[-1] = (first, seq)
        else:
            self.named.append((seq, seq))


def _unpaired(named: Sequence[Span], uses: Sequence[Use]) -> Iterator[tuple[int, str]]:
    """Events with an idempotency key and no receipt, and receipts of no such events."""
    covered: list[Span] = []
    for _, first, last in uses:
        if last < first or (covered and first <= covered[-1][1]):
            yield first, "a receipt says seqs that are not its own"
        else:
            covered.append((first, last))
    for first, last in minus(named, covered):
        yield first, f"seq {first} to {last} have an idempotency key and no receipt"
    for first, last in minus(covered, named):
        yield first, f"a receipt is of seq {first} to {last}, which have no such key"


def minus(these: Sequence[Span], those: Sequence[Span]) -> Iterator[Span]:
    """What of ``these`` spans is in none of ``those``; both in order."""
    others = iter([*those, _NOWHERE])
    first_other, last_other = next(others)
    for first, last in these:
        while last_other < first:
            first_other, last_other = next(others)
        while first_other <= last and first <= last:
            if first < first_other:
                yield first, first_other - 1
            first = last_other + 1
            if last_other <= last:
                first_other, last_other = next(others)
        if first <= last:
            yield first, last
