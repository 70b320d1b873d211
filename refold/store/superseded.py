"""Which digests were made of what was redacted again since."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from refold.domain.envelope import Envelope
from refold.domain.events import RedactionApplied, Request, Summary
from refold.domain.ids import MAIN
from refold.store.history import History


class Superseded:
    """The superseded events that a session's contexts are made of.

    ``own`` are the session's, by stream; those of the sessions it was forked from are
    read from their logs, and counted as the fork counts them.
    """

    def __init__(self, history: History, own: Mapping[str, Iterable[int]]) -> None:
        self._derived = {name: set(seqs) for name, seqs in own.items() if name != MAIN}
        self._main = {*own.get(MAIN, ()), *_inherited(history)}

    @property
    def main(self) -> frozenset[int]:
        """The seqs of the main stream that hold less than they did."""
        return frozenset(self._main)

    def touches_summary(self, envelope: Envelope) -> bool:
        """Whether what this summary was made of is not there any more."""
        summary = envelope.payload
        if not isinstance(summary, Summary):
            return False
        absorbed = self._derived.get(envelope.stream, set()).intersection(
            summary.absorbs
        )
        # Of what it absorbs, its source is the summaries; of the rest, the events.  How
        # far those reach it does not say, so the whole span counts.
        first, last = summary.first_seq, summary.last_seq
        return bool(absorbed) or any(first <= seq <= last for seq in self._main)

    def touches_request(self, envelope: Envelope) -> bool:
        """Whether what this view was made of is not there any more."""
        request = envelope.payload
        if not isinstance(request, Request):
            return False
        if envelope.seq in self._main:  # what was handed in with it
            return True
        summaries = self._derived.get(request.strategy.fingerprint, set())
        return any(seq <= request.through_seq for seq in self._main) or any(
            seq <= request.derived_seq for seq in summaries
        )


def _inherited(history: History) -> Iterator[int]:
    if history.parent is None:
        return
    parent, at = history.parent, history.at
    found = parent.log.read(parent.stream, types=("redaction_applied",))
    for envelope in found:
        event = envelope.payload
        if isinstance(event, RedactionApplied) and event.stream == MAIN:
            yield from (seq - at for seq in event.seqs if seq <= at)
    yield from (seq - at for seq in _inherited(parent) if seq <= at)
