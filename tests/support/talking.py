"""Sessions with something to compact, and the number of their compactions."""

from __future__ import annotations

import refold
from refold.store import Session


def talk(session: Session, turns: int) -> Session:
    """Append that many turns, each longer than its summary."""
    for turn in range(turns):
        session.append(
            [
                refold.UserInput(text=f"question {turn} " + "why " * 30),
                refold.AgentResponse(text=f"answer {turn} " + "because " * 30),
            ]
        )
    return session


def count_summaries(session: Session) -> int:
    """Return the number of summaries under all strategies."""
    names = [name for name in session.history.streams() if name != "main"]
    entries = [entry for name in names for entry in session.history.derived(name)]
    return sum(entry.type == "summary" for entry in entries)
