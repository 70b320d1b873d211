"""Sealing: the heads of all streams as leaves of a tree, its head signed and anchored.

The order keeps what the anchor says true: leaves and tree head are committed together,
and only then does the anchor name them.  A call that was cut off between the two is
completed by the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from refold.adapters.proofs import event_proof, growth_proof
from refold.adapters.recorder import Recorder
from refold.adapters.signing import Signer, signed_by
from refold.adapters.tree import Ending, Ends, Grown, Tree
from refold.adapters.tree_check import TreeCheck
from refold.domain.errors import SealBroken, StoreUnavailable
from refold.domain.events import JsonObject
from refold.domain.ids import StreamId
from refold.domain.merkle import Frontier
from refold.domain.seals import Anchor, SealsVerified, TreeHead

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
