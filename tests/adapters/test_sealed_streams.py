"""Receipts and events with idempotency keys match, seq by seq."""

from __future__ import annotations

from hypothesis import given, strategies as st

from refold.adapters.verification import minus
from refold.domain.events import Span
from refold.domain.seals import Leaf, Use, positions_digest, receipts_digest
from refold.store import SessionStore
from refold.testing.event_log import user_inputs


def spans(seqs: set[int]) -> list[Span]:
    """Return the runs of these seqs, in order."""
    runs: list[Span] = []
    for seq in sorted(seqs):
        first = seq
        if runs and runs[-1][-1] == seq - 1:
            first, _ = runs.pop()
        runs.append((first, seq))
    return runs


def seqs(runs: list[Span]) -> set[int]:
    """Return the seqs in these runs."""
    seqs: set[int] = set()
    for first, last in runs:
        seqs.update(range(first, last + 1))
    return seqs


seq_sets = st.sets(st.integers(1, 40))


@given(seq_sets, seq_sets)
def test_minus_keeps_only_positions_missing_from_the_other(
    positions: set[int], other_positions: set[int]
) -> None:
    remaining = list(minus(spans(positions), spans(other_positions)))

    assert seqs(remaining) == positions - other_positions
    assert remaining == sorted(remaining)


@given(st.lists(st.integers(-5, 9), max_size=4), st.lists(st.integers(-5, 9)))
def test_positions_have_one_digest_only_if_they_are_equal(
    first: list[int], second: list[int]
) -> None:
    assert (positions_digest(first) == positions_digest(second)) == (first == second)


uses = st.builds(Use, st.binary(max_size=3), st.integers(1, 9), st.integers(1, 9))


@given(st.lists(uses, max_size=4), st.lists(uses, max_size=4))
def test_receipts_have_one_digest_only_if_they_are_equal(
    first: list[Use], second: list[Use]
) -> None:
    same = sorted(first) == sorted(second)

    assert (receipts_digest(first) == receipts_digest(second)) == same


def test_a_leaf_depends_on_all_of_its_parts() -> None:
    leaf = Leaf.of(b"h" * 32, [1, 2], [Use(b"a", 1, 1)])

    others = {
        Leaf.of(b"i" * 32, [1, 2], [Use(b"a", 1, 1)]).hashed(),
        Leaf.of(b"h" * 32, [1, 3], [Use(b"a", 1, 1)]).hashed(),
        Leaf.of(b"h" * 32, [1, 2], [Use(b"a", 1, 2)]).hashed(),
    }
    assert len(others | {leaf.hashed()}) == 4


def test_keys_on_some_events_verify(store: SessionStore) -> None:
    session = store.session(user_id="ada", session_id="s")
    for number in range(30):
        key = f"k-{number}" if number % 3 else None
        session.append(user_inputs(*"ab"[: 1 + number % 2]), idempotency_key=key)
        if number % 7 == 0:
            store.seal()

    assert session.verify().problems == []
    assert session.verify(chain_only=True).problems == []
