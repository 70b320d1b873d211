"""Sets of seqs as sorted runs that neither overlap nor touch."""

from __future__ import annotations

from collections.abc import Iterable

from refold.domain.events import Span

Spans = tuple[Span, ...]


def spans_of(seqs: Iterable[int]) -> Spans:
    """The runs that hold exactly these seqs."""
    return joined((seq, seq) for seq in seqs)


def joined(spans: Iterable[Span]) -> Spans:
    """All seqs of ``spans``, which may overlap and stand in any order."""
    runs: list[Span] = []
    for first, last in sorted(spans):
        if runs and first <= runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], max(last, runs[-1][1]))
        else:
            runs.append((first, last))
    return tuple(runs)


def behind(spans: Spans, seq: int) -> Spans:
    """The seqs of ``spans`` and ``seq``, which is behind them all."""
    if spans and spans[-1][1] == seq - 1:
        return (*spans[:-1], (spans[-1][0], seq))
    return (*spans, (seq, seq))


def upto(spans: Spans, seq: int) -> Spans:
    """The seqs of ``spans`` that are not above ``seq``."""
    return tuple((first, min(last, seq)) for first, last in spans if first <= seq)


def without(spans: Spans, taken: Spans) -> Spans:
    """The seqs of ``spans`` that are not in ``taken``."""
    rest = list(spans)
    for low, high in taken:
        cut: list[Span] = []
        for first, last in rest:
            cut += [(first, min(last, low - 1)), (max(first, high + 1), last)]
        rest = [(first, last) for first, last in cut if first <= last]
    return joined(rest)


def holds(spans: Spans, seq: int) -> bool:
    """Whether ``seq`` is one of them."""
    for first, last in spans:  # noqa: SIM110  # a generator takes twice the time
        if first <= seq <= last:
            return True
    return False
