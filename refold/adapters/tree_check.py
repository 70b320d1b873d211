"""Proving the tree: its leaves, its heads, whose leaves they are, and the anchor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from refold.adapters.erasing_rows import CertificateRow, ErasingRows
from refold.adapters.signing import key_id, signed_by
from refold.adapters.tree import Tree
from refold.domain.certificate import Signed, timestamp
from refold.domain.erasure import Whose
from refold.domain.errors import RefoldError, SealBroken
from refold.domain.ids import StreamId
from refold.domain.merkle import Frontier, root_of
from refold.domain.ports import JUNK, WRONG_TYPE, Problem
from refold.domain.seals import TREE, Anchor, SealsVerified, TreeHead


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
