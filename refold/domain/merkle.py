"""A Merkle tree over leaves that are only added: roots and proofs as in RFC 6962.

A leaf and a node are hashed apart (0x00 and 0x01 in front), so that neither passes
for the other.  All hashes are SHA-256; a proof is the hashes that its reader cannot
compute.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

EMPTY = hashlib.sha256().digest()


def leaf_hash(data: bytes) -> bytes:
    """The hash of a leaf that holds ``data``."""
    return hashlib.sha256(b"\0" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash of the node above two."""
    return hashlib.sha256(b"\1" + left + right).digest()


class Frontier(NamedTuple):
    """All that has to be kept of a tree to add to it: its perfect parts, from the left.

    There is one for each bit that is set in ``size``, the largest first.
    """

    size: int = 0
    peaks: tuple[bytes, ...] = ()

    def add(self, leaves: Iterable[bytes]) -> Self:
        """The tree with these leaf hashes at its end."""
        size, peaks = self.size, list(self.peaks)
        for leaf in leaves:
            peaks.append(leaf)
            level = size
            while level & 1:
                right = peaks.pop()
                peaks.append(node_hash(peaks.pop(), right))
                level >>= 1
            size += 1
        return self._replace(size=size, peaks=tuple(peaks))

    @property
    def root(self) -> bytes:
        """The hash that stands for the whole tree."""
        if not self.peaks:
            return EMPTY
        *rest, root = self.peaks
        for peak in reversed(rest):
            root = node_hash(peak, root)
        return root

    @property
    def sound(self) -> bool:
        """Whether it has as many parts as a tree of its size."""
        return self.size >= 0 and len(self.peaks) == self.size.bit_count()


def root_of(leaves: Iterable[bytes]) -> bytes:
    """The root over these leaf hashes, in this order; they are read once."""
    return Frontier().add(leaves).root


def inclusion_proof(leaves: Sequence[bytes], index: int) -> tuple[bytes, ...]:
    """What proves that the leaf at ``index`` (from 0) is in the tree of ``leaves``.

    Raises ValueError if there is no such leaf.
    """
    if not 0 <= index < len(leaves):
        raise ValueError(f"a tree of {len(leaves)} leaves has no leaf {index}")
    first, last = 0, len(leaves)
    proof = []
    while last - first > 1:
        middle = first + _split(last - first)
        if index < middle:
            proof.append(root_of(leaves[middle:last]))
            last = middle
        else:
            proof.append(root_of(leaves[first:middle]))
            first = middle
    return tuple(reversed(proof))


def consistency_proof(leaves: Sequence[bytes], size: int) -> tuple[bytes, ...]:
    """What proves that the tree of ``leaves`` begins with that of its first ``size``.

    Empty if that one is empty or is the same tree.  Raises ValueError if it is larger.
    """
    if not 0 <= size <= len(leaves):
        raise ValueError(f"a tree of {len(leaves)} leaves has no first {size}")
    if size in (0, len(leaves)):
        return ()
    first, last, whole = 0, len(leaves), True
    proof = []
    while size != last:
        middle = first + _split(last - first)
        if size <= middle:
            proof.append(root_of(leaves[middle:last]))
            last = middle
        else:
            proof.append(root_of(leaves[first:middle]))
            first, whole = middle, False
    if not whole:  # the reader has the root of the older tree, if that is all of it
        proof.append(root_of(leaves[first:last]))
    return tuple(reversed(proof))


def included(
    leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes
) -> bool:
    """Whether ``proof`` shows that leaf at ``index`` of the tree of this root."""
    if not 0 <= index < size:
        return False
    found, place, last = leaf, index, size - 1
    for sibling in proof:
        if last == 0:
            return False
        if place & 1 or place == last:
            found = node_hash(sibling, found)
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            found = node_hash(found, sibling)
        place, last = place >> 1, last >> 1
    return last == 0 and found == root


def consistent(
    old_size: int, old_root: bytes, size: int, root: bytes, proof: Sequence[bytes]
) -> bool:
    """Whether ``proof`` shows that the one tree is the beginning of the other."""
    if not 0 <= old_size <= size:
        return False
    if old_size == size:
        return not proof and old_root == root
    if old_size == 0:
        return not proof and old_root == EMPTY
    hashes = list(proof)
    if old_size.bit_count() == 1:
        hashes.insert(0, old_root)
    if not hashes:
        return False
    place, last = old_size - 1, size - 1
    while place & 1:
        place, last = place >> 1, last >> 1
    old = new = hashes[0]
    for part in hashes[1:]:
        if last == 0:
            return False
        if place & 1 or place == last:
            old, new = node_hash(part, old), node_hash(part, new)
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            new = node_hash(new, part)
        place, last = place >> 1, last >> 1
    return last == 0 and (old, new) == (old_root, root)


def _split(count: int) -> int:
    """The largest power of two below ``count``: where the tree parts in two."""
    return 1 << (count - 1).bit_length() - 1
