"""Spans are sets of seqs, written in one way only."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, strategies as st

from refold.projections.context.units import (
    Spans,
    SpanSet,
    holds,
    is_among,
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
    spans = spans_of(left)
    taken = spans_of(right)

    assert seqs_of(spans) == left
    assert seqs_of(joined((*spans, *taken))) == left | right
    assert seqs_of(without(spans, taken)) == left - right
    assert seqs_of(upto(spans, cut)) == {seq for seq in left if seq <= cut}
    assert holds(spans, cut) == is_among(spans, cut) == (cut in left)


@given(steps=st.lists(st.tuples(st.booleans(), SEQS), max_size=8), cut=SEQS)
def test_a_span_set_behaves_like_a_set_of_seqs(
    steps: list[tuple[bool, set[int]]], cut: set[int]
) -> None:
    spans = SpanSet()
    seqs: set[int] = set()
    for is_added, changed in steps:
        if is_added:
            spans.add(spans_of(changed))
            seqs |= changed
        else:
            spans.remove(spans_of(changed))
            seqs -= changed

    assert spans.spans == spans_of(seqs)
    assert spans.missing(spans_of(cut)) == spans_of(cut - seqs)
    assert all(spans.holds(seq) == (seq in seqs) for seq in range(-7, 28))


@given(left=SEQS, right=SEQS)
def test_joined_spans_neither_overlap_nor_touch(
    left: set[int], right: set[int]
) -> None:
    for spans in (
        joined((*spans_of(left), *spans_of(right))),
        without(spans_of(left), spans_of(right)),
    ):
        assert all(run[1] + 1 < later[0] for run, later in pairwise(spans))
