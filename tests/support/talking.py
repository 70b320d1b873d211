"""Sessions with something to compact, and the number of their compactions."""

from __future__ import annotations

import refold
from refold.store import Session

TURNS_SPEC = "turn_window:full_turns=1,cached_turns=1,session_memory_tokens=400"
"""The strategy of the requests in ``session_with_turns``."""


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


def session_with_turns(
    store: refold.SessionStore,
    name: str = "run",
    turns: int = 4,
    *,
    agent: str | None = "worker",
) -> Session:
    """Create a session of ada with turns, parallel calls, requests and summaries."""
    session = store.session(user_id="ada", session_id=name)
    session.append(refold.SystemPrompt(text="Answer briefly."))
    for n in range(turns):
        session.append(refold.UserInput(text=f"Question {n}: what is in file {n}?"))
        session.record_request(session.prepare(TURNS_SPEC), model="claude-sonnet-5-5")
        usage = {"input_tokens": 1000, "output_tokens": 100}
        session.append(
            [
                refold.AgentResponse(text="I look.", usage=usage),
                refold.ToolCall(call_id=f"a{n}", tool_name="read", arguments={"n": n}),
                refold.ToolCall(call_id=f"b{n}", tool_name="list", arguments={}),
            ],
            agent=agent,
            meta={"model": "claude-sonnet-5-5"},
        )
        session.append(
            [
                refold.ToolResult(call_id=f"a{n}", content=f"content of file {n}"),
                refold.ToolResult(call_id=f"b{n}", content="no", status="error"),
            ]
        )
        session.append(refold.AgentResponse(text=f"Answer {n}: mail a{n}@b.example."))
    return session


def count_summaries(session: Session) -> int:
    """Return the number of summaries under all strategies."""
    names = [name for name in session.history.streams() if name != "main"]
    entries = [entry for name in names for entry in session.history.derived(name)]
    return sum(entry.type == "summary" for entry in entries)
