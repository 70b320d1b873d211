"""Spans are sets of seqs, written in one way only."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, strategies as st

from refold.projections.context.units import (
    Spans,
    holds,
    joined,
    spans_of,
    upto,
    without,
)

SEQS = st.sets(st.integers(-5, 25))


def seqs_of(spans: Spans) -> set[int]:
    return {seq for first, last in spans for seq in range(first, last + 1)}


@given(left=SEQS, right=SEQS, cut=st.integers(-6, 26))
def test_spans_behave_like_sets_of_seqs(
    left: set[int], right: set[int], cut: int
) -> None:
    spans, taken = spans_of(left), spans_of(right)

    assert seqs_of(spans) == left
    assert seqs_of(joined((*spans, *taken))) == left | right
    assert seqs_of(without(spans, taken)) == left - right
    assert seqs_of(upto(spans, cut)) == {seq for seq in left if seq <= cut}
    assert holds(spans, cut) == (cut in left)


@given(left=SEQS, right=SEQS)
def test_joined_spans_neither_overlap_nor_touch(
    left: set[int], right: set[int]
) -> None:
    for spans in (
        joined((*spans_of(left), *spans_of(right))),
        without(spans_of(left), spans_of(right)),
    ):
        assert all(run[1] + 1 < later[0] for run, later in pairwise(spans))
