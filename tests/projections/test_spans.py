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


@given(one=SEQS, other=SEQS, cut=st.integers(-6, 26))
def test_spans_behave_like_sets_of_seqs(
    one: set[int], other: set[int], cut: int
) -> None:
    spans, taken = spans_of(one), spans_of(other)

    assert seqs_of(spans) == one
    assert seqs_of(joined((*spans, *taken))) == one | other
    assert seqs_of(without(spans, taken)) == one - other
    assert seqs_of(upto(spans, cut)) == {seq for seq in one if seq <= cut}
    assert holds(spans, cut) == (cut in one)


@given(one=SEQS, other=SEQS)
def test_joined_spans_neither_overlap_nor_touch(one: set[int], other: set[int]) -> None:
    for spans in (
        joined((*spans_of(one), *spans_of(other))),
        without(spans_of(one), spans_of(other)),
    ):
        assert all(run[1] + 1 < later[0] for run, later in pairwise(spans))
