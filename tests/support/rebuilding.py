"""Sessions for tests of rebuilds, and the data that these tests compare."""

from __future__ import annotations

from datetime import timedelta

import refold
from refold.domain.envelope import microseconds
from refold.domain.events import JsonObject
from refold.projections.context.compaction import Summarizer
from refold.projections.context.strategies.turn_window import TurnWindow
from refold.projections.context.strategy import Strategy
from refold.store import Session, SessionStore
from tests.projections.logs import START

WINDOW = TurnWindow(full_turns=2, cached_turns=2)
OTHER = TurnWindow(full_turns=1, cached_turns=1, summary_tokens=50)
FOLDING = TurnWindow(
    full_turns=2, cached_turns=2, summary_tokens=60, session_memory_tokens=90
)


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.time = START + timedelta(days=400)

    def __call__(self) -> int:
        return microseconds(self.time)


def clocked(store: SessionStore, clock: Clock) -> SessionStore:
    """Return the same store with a clock that a test sets."""
    writer = store.session(user_id="ada", session_id="s").writer
    return SessionStore(store.log, writer.redactor, writer.limits, clock=clock)


def append_turns(session: Session, count: int, first: int = 1) -> None:
    """Append ``count`` complete turns, a minute apart."""
    for number in range(first, first + count):
        at = START + timedelta(minutes=number)
        question = f"question {number}: " + "why " * 40
        answer = f"answer {number}: " + "because " * 40
        session.append(refold.UserInput(text=question), ts=at)
        session.append(refold.AgentResponse(text=answer), ts=at + timedelta(seconds=5))


def derived_events(session: Session, strategy: Strategy) -> list[JsonObject]:
    """Return the events of a strategy, without ids and times that depend on the run."""
    return [
        {**entry.payload.payload(), "duration_ms": None, "appended_at_seq": None}
        for entry in session.history.derived(strategy.fingerprint)
        if getattr(entry.payload, "phase", None) != "started"
    ]


def view_digests(session: Session, strategy: Strategy, *, step: int = 1) -> list[str]:
    """Return the view's digest at every event of the log, or at every ``step``-th."""
    head = session.head().seq
    return [
        session.context(strategy, at=seq, as_="rebuilt").digest
        for seq in reversed(range(head, 0, -step))
    ]


def digests(session: Session, *strategies: Strategy) -> list[str]:
    return [session.context(strategy).digest for strategy in strategies]


def rebuild(
    store: SessionStore,
    strategy: Strategy,
    session_id: str | None = None,
    *,
    summarizer: Summarizer | None = None,
) -> int:
    done = store.rebuild(
        strategy, user_id=None, session_id=session_id, summarizer=summarizer
    )
    return sum([result.compactions for result in done])
