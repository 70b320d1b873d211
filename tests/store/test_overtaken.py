"""A process that lost its lease notices before its next model call, and makes none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from refold.domain.events import SummarizerRef
from refold.projections.context.compaction import Source, Written
from refold.store import Session, SessionStore
from refold.store.compactions import LEASE_SEC
from tests.support.rebuilding import FOLDING, WINDOW, append_turns


@dataclass
class Overtaken:
    """A summarizer that loses the lease to another process while it writes."""

    overtake: Callable[[], object]
    sources: list[str] = field(default_factory=list)

    def summarise(self, source: Source, *, target_tokens: int) -> Written:
        self.sources.append(source.digest)
        self.overtake()
        return Written("so it was " * 9, SummarizerRef(kind="overtaken"))


def takes_lease_of(session: Session, fingerprint: str) -> bool:
    """Whether another process takes the lease, which has ended."""
    stream = session.stream._replace(stream=fingerprint)
    later = session.writer.clock() + int(LEASE_SEC * 1_000_000) + 1
    leases = session.writer.log.leases
    return leases.take_lease(
        stream, "another", clock=lambda: later, period=1_000_000_000
    )


def test_an_overtaken_rebuild_makes_no_more_model_calls(memory: SessionStore) -> None:
    session = memory.session(user_id="ada", session_id="s-1")
    append_turns(session, 12)
    model = Overtaken(lambda: takes_lease_of(session, WINDOW.fingerprint))

    (rebuilt,) = memory.rebuild(WINDOW, summarizer=model)

    assert len(model.sources) == 1
    assert "another process compacts it" in rebuilt.problem
    assert rebuilt.compactions == 0  # the former owner's summary is refused
    assert session.verify().problems == []


def calls_at_each_turn(session: Session) -> list[int]:
    """Return the number of model calls after each of 16 turns."""
    model = Overtaken(lambda: None)
    counts = []
    for turn in range(1, 17):
        append_turns(session, 1, first=turn)
        before = len(model.sources)
        session.compact(FOLDING, summarizer=model)
        counts.append(len(model.sources) - before)
    return counts


def test_an_overtaken_compaction_folds_no_further(
    memory: SessionStore,
) -> None:
    counts = calls_at_each_turn(memory.session(user_id="ada", session_id="s-1"))
    folds = next(turn for turn, count in enumerate(counts, start=1) if count > 1)
    session = memory.session(user_id="ada", session_id="s-2")
    for turn in range(1, folds):
        append_turns(session, 1, first=turn)
        session.compact(FOLDING, summarizer=Overtaken(lambda: None))
    append_turns(session, 1, first=folds)
    model = Overtaken(lambda: takes_lease_of(session, FOLDING.fingerprint))

    session.compact(FOLDING, summarizer=model)

    assert len(model.sources) == 1
    assert session.verify().problems == []
