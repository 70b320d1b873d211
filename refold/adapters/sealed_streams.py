"""Proving a stream against the tree: its end, and what no hash of the chain covers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from refold.adapters.tree import Mark, Tree
from refold.domain.events import Span
from refold.domain.ids import StreamId
from refold.domain.ports import Problem
from refold.domain.seals import Leaf, Seal, Use, positions_digest, receipts_digest

_PAGE: Final = 10_000
_END: Final = 2**63 - 1
_NOWHERE: Final = (2**64, 2**64)


def sealed_problems(tree: Tree | None, stream: StreamId) -> Iterator[Problem]:
    """What of the stream is not as it was sealed, or has no receipt.

    Nothing is decrypted.  Read in this order, an append raises no alarm: seals, then
    events, then the receipts of these.
    """
    if tree is None:
        return
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
