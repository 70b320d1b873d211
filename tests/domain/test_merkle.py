"""Trees and proofs follow RFC 6962, and the auditor's program checks them that way.

The definitions of the RFC are written out here.
"""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given, strategies as st

from refold.auditor import _is_consistent as consistent, _is_included as included
from refold.domain.chain import (
    EMPTY_ROOT,
    Frontier,
    consistency_proof,
    inclusion_proof,
    leaf_hash,
    node_hash,
    root_of,
)

sizes = st.integers(min_value=1, max_value=70)


def leaves_of(size: int) -> list[bytes]:
    return [leaf_hash(b"%d" % number) for number in range(size)]


def split(size: int) -> int:
    return max(1 << power for power in range(size) if 1 << power < size)


def tree(leaves: list[bytes]) -> bytes:
    """MTH of section 2.1."""
    if not leaves:
        return sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    k = split(len(leaves))
    return sha256(b"\x01" + tree(leaves[:k]) + tree(leaves[k:])).digest()


def path(m: int, leaves: list[bytes]) -> list[bytes]:
    """PATH of section 2.1.1."""
    if len(leaves) == 1:
        return []
    k = split(len(leaves))
    if m < k:
        return [*path(m, leaves[:k]), tree(leaves[k:])]
    return [*path(m - k, leaves[k:]), tree(leaves[:k])]


def proof(m: int, leaves: list[bytes]) -> list[bytes]:
    """PROOF of section 2.1.2."""
    return subproof(m, leaves, whole=True) if m else []


def subproof(m: int, leaves: list[bytes], *, whole: bool) -> list[bytes]:
    if m == len(leaves):
        return [] if whole else [tree(leaves)]
    k = split(len(leaves))
    if m <= k:
        return [*subproof(m, leaves[:k], whole=whole), tree(leaves[k:])]
    return [*subproof(m - k, leaves[k:], whole=False), tree(leaves[:k])]


def with_flipped_bits(hash_: bytes) -> bytes:
    return bytes([hash_[0] ^ 1]) + hash_[1:]


def test_roots_equal_those_of_other_implementations() -> None:
    # From the test vectors of the Certificate Transparency log server.
    data = ["", "00", "10", "2021", "3031", "40414243"]
    data += ["5051525354555657", "606162636465666768696a6b6c6d6e6f"]
    leaves = [leaf_hash(bytes.fromhex(text)) for text in data]

    assert root_of([]) == EMPTY_ROOT == sha256().digest()
    assert root_of(leaves[:1]).hex() == (
        "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"
    )
    assert root_of(leaves).hex() == (
        "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"
    )


@given(sizes, st.data())
def test_the_root_of_a_frontier_does_not_depend_on_batches(
    size: int, data: st.DataObject
) -> None:
    leaves = leaves_of(size)
    cut = data.draw(st.integers(0, size))

    grown = Frontier().add(leaves[:cut]).add(leaves[cut:])

    assert grown.root == root_of(leaves) == tree(leaves)
    assert grown.size == size
    assert grown.is_sound


@given(sizes, st.data())
def test_a_proof_holds_only_for_its_own_leaf(size: int, data: st.DataObject) -> None:
    leaves = leaves_of(size)
    index = data.draw(st.integers(0, size - 1))
    other = data.draw(st.integers(0, size + 1))

    inclusion = [*inclusion_proof(leaves, index)]

    assert inclusion == path(index, leaves)
    assert included(leaves[index], index, size, inclusion, tree(leaves))
    assert not included(
        with_flipped_bits(leaves[index]), index, size, inclusion, tree(leaves)
    )
    assert not included(
        leaves[index], index, size, inclusion, with_flipped_bits(tree(leaves))
    )
    if other != index:
        assert not included(leaves[index], other, size, inclusion, tree(leaves))
    for place, part in enumerate(inclusion):
        changed = [*inclusion[:place], with_flipped_bits(part), *inclusion[place + 1 :]]
        assert not included(leaves[index], index, size, changed, tree(leaves))
        without = [*inclusion[:place], *inclusion[place + 1 :]]
        assert not included(leaves[index], index, size, without, tree(leaves))
    longer = [*inclusion, EMPTY_ROOT]
    assert not included(leaves[index], index, size, longer, tree(leaves))


@given(sizes, st.data())
def test_a_consistency_proof_holds_only_for_its_older_tree(
    size: int, data: st.DataObject
) -> None:
    leaves = leaves_of(size)
    old = data.draw(st.integers(1, size))
    roots = tree(leaves[:old]), tree(leaves)

    consistency = [*consistency_proof(leaves, old)]

    assert consistency == proof(old, leaves)
    assert consistent(old, roots[0], size, roots[1], consistency)
    assert not consistent(old, with_flipped_bits(roots[0]), size, roots[1], consistency)
    assert not consistent(old, roots[0], size, with_flipped_bits(roots[1]), consistency)
    for place, part in enumerate(consistency):
        changed = [
            *consistency[:place],
            with_flipped_bits(part),
            *consistency[place + 1 :],
        ]
        assert not consistent(old, roots[0], size, roots[1], changed)
        without = [*consistency[:place], *consistency[place + 1 :]]
        assert not consistent(old, roots[0], size, roots[1], without)
    assert not consistent(old, roots[0], size, roots[1], [*consistency, EMPTY_ROOT])


@given(st.integers(2, 40), st.data())
def test_no_valid_proof_hides_a_changed_leaf(size: int, data: st.DataObject) -> None:
    leaves = leaves_of(size)
    old = data.draw(st.integers(1, size - 1))
    index = data.draw(st.integers(0, old - 1))
    forged = [*leaves[:index], with_flipped_bits(leaves[index]), *leaves[index + 1 :]]

    forged_proof = [*consistency_proof(forged, old)]

    assert not consistent(old, tree(leaves[:old]), size, tree(forged), forged_proof)


@pytest.mark.parametrize(("index", "size"), [(0, 0), (-1, 3), (3, 3)])
def test_a_missing_leaf_has_no_proof(index: int, size: int) -> None:
    with pytest.raises(ValueError, match="has no leaf"):
        inclusion_proof(leaves_of(size), index)


@pytest.mark.parametrize("size", [-1, 4])
def test_a_larger_tree_is_no_older_tree(size: int) -> None:
    with pytest.raises(ValueError, match="does not extend"):
        consistency_proof(leaves_of(3), size)


def test_impossible_sizes_prove_nothing() -> None:
    leaf = leaf_hash(b"")

    assert consistency_proof([leaf], 0) == ()
    assert not included(leaf, 0, 0, [], EMPTY_ROOT)
    assert not included(leaf, -1, 1, [], leaf)
    assert not consistent(-1, EMPTY_ROOT, 1, leaf, [])
    assert not consistent(0, EMPTY_ROOT, 1, leaf, [])
    assert not consistent(2, leaf, 1, leaf, [])
    assert not consistent(3, leaf, 5, node_hash(leaf, leaf), [])
