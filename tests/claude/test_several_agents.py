"""Several agents: each has its own view in a session, or a linked session."""

from __future__ import annotations

from typing import Any

import pytest

import refold
from refold.projections.context.text import violations
from refold.store import Session, SessionStore
from refold.strategies import for_agent
from tests.claude.test_capture import TOOLS, capture, proved
from tests.support.messages_api import MessagesApi, message, tool_use

WINDOW = "turn_window:full_turns=1,cached_turns=1"


def context_text(session: Session, agent: str, strategy: str = "keep_all") -> str:
    return str(session.context(for_agent(agent, strategy)).messages)


def test_a_sub_agents_run_is_the_result_of_its_call(
    session: Session, api: MessagesApi
) -> None:
    call = tool_use("research", {"topic": "tea"}, call_id="toolu_1")
    api.reply(
        message("I ask the researcher.", call),
        message("Reading …", tool_use("bash", {"command": "ls"}, call_id="toolu_2")),
        message("Tea is a drink."),
        message("It is a drink."),
    )
    lead = capture(session, api, agent="lead", tools=TOOLS)
    helper = capture(session, api, agent="helper", system="You research.")

    session.append(refold.UserInput(text="What is tea?"), agent="lead")
    lead.create()
    helper.create("Find out about tea.")
    helper.create([result("toolu_2", "tea.txt")])
    lead.create([result("toolu_1", "Tea is a drink.")])

    asked = [str(request.body["messages"]) for request in api.requests]
    assert "What is tea" not in asked[1]
    assert "tea.txt" in asked[2]
    assert "Find out" not in asked[3]
    assert "tea.txt" not in asked[3]
    assert "Tea is a drink." in asked[3]
    assert "Reading" in str(session.context("keep_all").messages)
    proved(session)


def test_a_final_of_another_comes_in_as_a_users_input(session: Session) -> None:
    session.append(refold.UserInput(text="What is tea?"))
    session.append(refold.UserInput(text="Look it up."), agent="helper")
    session.append(refold.AgentResponse(text="Secret thoughts."), agent="helper")
    session.append(refold.Final(text="A drink.", outcome="success"), agent="helper")

    messages = session.context(for_agent("lead")).messages

    assert violations(messages) == []
    assert [message["role"] for message in messages] == ["user"]
    assert "thoughts" not in str(messages)
    assert messages[0]["content"][1]["text"] == (
        '<agent_result agent="helper" outcome="success">\nA drink.\n</agent_result>'
    )
    assert "Secret" in context_text(session, "helper")


def test_each_agent_has_its_own_summaries(session: Session) -> None:
    for number in range(6):
        for agent in ("lead", "helper"):
            session.append(
                [
                    refold.UserInput(text=f"{agent} asks {number} " + "why " * 40),
                    refold.AgentResponse(text=f"{agent} says {number} " + "so " * 40),
                ],
                agent=agent,
            )
    for agent in ("lead", "helper"):
        while session.compact(for_agent(agent, WINDOW)):
            pass
        session.record_request(session.context(for_agent(agent, WINDOW)))

    assert len(session.history.streams()) == 3
    for agent, other in (("lead", "helper"), ("helper", "lead")):
        text = context_text(session, agent, WINDOW)
        assert "<summary" in text
        assert f"{agent} asks 0" in text
        assert other not in text
    proved(session)
    assert session.verify().compactions == 10


def test_a_spec_can_name_the_agent(session: Session) -> None:
    session.append(refold.UserInput(text="Hi"), agent="lead")
    spec = 'for_agent:agent="lead",strategy="turn_window:full_turns=1,cached_turns=1"'

    view = session.context(spec)

    assert view.fingerprint == for_agent("lead", WINDOW).fingerprint
    assert "Hi" in str(view.messages)
    for wrong in ("for_agent", 'for_agent:agent="x",strategy="dream"'):
        with pytest.raises(refold.UnknownStrategy):
            session.context(wrong)


def result(call_id: str, content: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content}


def test_a_session_each_is_linked_and_hands_its_result_over(
    store: SessionStore, session: Session
) -> None:
    session.append(
        [
            refold.UserInput(text="What is tea?"),
            refold.AgentResponse(text="I ask."),
            refold.ToolCall(call_id="c1", tool_name="research", arguments={}),
        ]
    )

    child = session.delegation.begin("Find out about tea.", session_id="s-1.helper")
    child.append(refold.AgentResponse(text="Reading …"))
    child.append(refold.Final(text="A drink.", outcome="success"))
    for _ in range(2):
        receipt = child.delegation.hand_over(to=session, call_id="c1")

    assert child.delegation.parent() == ("s-1", 3)
    assert session.delegation.parent() is None
    assert store.session(
        user_id="ada", session_id="s-1.helper"
    ).delegation.parent() == ("s-1", 3)
    result = session.events()[-1]
    assert result.seq == receipt.first_seq == 4
    assert isinstance(result.payload, refold.ToolResult)
    assert (result.payload.content, result.payload.status) == ("A drink.", "ok")
    assert result.meta.source == {"session_id": "s-1.helper", "seq": 3}
    assert "Reading" not in str(session.context().messages)
    assert "What is tea" not in str(child.context().messages)
    assert [each.verify().problems for each in (session, child)] == [[], []]


def test_links_keep_ids_of_sessions_that_look_like_tokens(
    store: SessionStore,
) -> None:
    name = "ses_de518b6b0ffeSedzbFs6bpIVgZ"
    session = store.session(user_id="ada", session_id=name)
    session.append(refold.UserInput(text="What is tea?"))
    child = session.delegation.begin("Find out.", session_id=f"{name}~helper")
    child.append(refold.AgentResponse(text="A drink."))
    child.delegation.hand_over(to=session)

    assert child.delegation.parent() == (name, 1)
    source = {"session_id": f"{name}~helper", "seq": 2}
    assert session.events()[-1].meta.source == source
    assert [each.verify().problems for each in (session, child)] == [[], []]


def test_a_link_without_a_seq_is_redacted(session: Session) -> None:
    secret = {"session_id": "ses_de518b6b0ffeSedzbFs6bpIVgZ"}
    session.append(refold.UserInput(text="Hi"), meta={"parent": secret})

    assert "de518b6b" not in str(session.events()[-1].meta)


def test_a_result_that_no_call_waits_for_comes_in_as_an_input(
    session: Session,
) -> None:
    session.append(refold.UserInput(text="What is tea?"))
    child = session.delegation.begin("Find out about tea.", session_id="s-1.helper")
    child.append(refold.AgentResponse(text="A drink."))

    child.delegation.hand_over(to=session)

    user_input = session.events()[-1].payload
    assert isinstance(user_input, refold.UserInput)
    assert "<agent_result" in user_input.text
    assert "A drink." in user_input.text


def test_handing_over_needs_a_parent_and_a_result(
    session: Session,
) -> None:
    session.append(refold.UserInput(text="What is tea?"))
    child = session.delegation.begin("Find out about tea.", session_id="s-1.helper")

    with pytest.raises(refold.InvalidEvent, match="has no result yet"):
        child.delegation.hand_over(to=session)
    with pytest.raises(refold.InvalidEvent, match="was not delegated"):
        session.delegation.hand_over(to=child)
    with pytest.raises(refold.StaleSession):
        session.delegation.begin("Again.", session_id="s-1.helper")
