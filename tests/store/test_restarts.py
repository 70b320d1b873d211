"""Wherever an agent's loop dies, the next process continues with a valid request."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

import refold
from refold.projections.context.text import violations
from refold.redaction.policy import Policy
from refold.store import Session
from tests.support.stores import open_at

STRATEGIES = [
    "turn_window:full_turns=1,cached_turns=1",
    "message_window:context_size=12,tail_keep_size=4,compression_window_size=4",
    "hybrid:threshold_low=500,threshold_high=900",
    "history_summary:trigger_on_history_size_chars=3000,"
    "history_tail_size_chars_to_exclude=800",
    "token_ratio:max_context_tokens=3000",
    "tool_clearing:trigger_tool_uses=3,keep=1+turn_window:full_turns=1,cached_turns=1",
]
NUMBERED = Policy.parse("version = 1\nnumbered = true\n")
SAID = ("user_input", "agent_response", "tool_result")


class Died(BaseException):
    """The process is gone: nothing catches this, and nothing more is written."""


def run(
    session: Session, strategy: str, step: Callable[[], None], chance: Random
) -> None:
    """Run an agent's loop from the end of the log until a step kills it."""
    if session.writer.log.head(session.stream).seq:
        for left in session.history.open_calls():
            answer(session, left, chance)
            step()
    while True:
        if agent_is_done(session):
            mail = f"bob{chance.randrange(4)}@analytical.org"
            text = f"ask {mail} " + "please " * chance.randrange(100)
            session.append(refold.UserInput(text=text))
            step()
        view = session.prepare(strategy, window=3_000)
        assert violations(view.messages, view.system) == []
        assert view.over_budget == 0
        session.record_request(view, model="claude-x")
        step()
        calls = [
            refold.ToolCall(
                call_id=f"c{session.head().seq}-{place}",
                tool_name="mail",
                arguments={"to": f"bob{place}@analytical.org"},
            )
            for place in range(chance.randrange(4))
        ]
        answer_text = "fine " * chance.randrange(40)
        session.append([refold.AgentResponse(text=answer_text), *calls])
        step()
        for call in calls:
            with session.attempt("send a mail"):
                answer(session, call, chance)
                step()


def agent_is_done(session: Session) -> bool:
    """Whether the last event is the agent's answer, or the session is empty."""
    if not session.writer.log.head(session.stream).seq:
        return True
    spoken = [event.type for event in session.events() if event.type in SAID]
    return not spoken or spoken[-1] == "agent_response"


def answer(session: Session, call: refold.ToolCall, chance: Random) -> None:
    content = "line of text " * chance.randrange(90)
    bad = chance.random() < 0.2
    status = "error" if bad else "ok"
    session.append(
        refold.ToolResult(call_id=call.call_id, content=content, status=status)
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_after_every_death_the_next_request_is_valid(
    strategy: str, sqlite_url: str, tmp_path: Path
) -> None:
    chance = Random(strategy)
    deaths = 0

    def step() -> None:
        if chance.random() < 0.2:
            raise Died

    while deaths < 20:
        with open_at(sqlite_url, tmp_path, policy=NUMBERED) as store:
            session = store.session(user_id="ada", session_id="s-1")
            try:
                run(session, strategy, step, chance)
            except Died:
                deaths += 1

    with open_at(sqlite_url, tmp_path, policy=NUMBERED) as store:
        session = store.session(user_id="ada", session_id="s-1")
        assert session.verify().problems == []
        ran = session.proofs.rerun()
        assert (ran.same, ran.first_difference) == (ran.requests, None)
        assert ran.requests > 20
