"""Real clients continue an exported session with the messages of its context."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.desk import (
    CLIENTS,
    PROMPT,
    Desk,
    answers_of,
    check_history,
    origin_of,
    record,
)
from tests.support.provider import Provider, answer


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with Provider() as provider:
        yield Desk(tmp_path, provider)


def exported(desk: Desk, client: str) -> tuple[list[Any], str]:
    """Record a session and export it; returns its context, and the new session's id.

    The provider then has the next answer.
    """
    record(desk)
    messages = desk.messages("s")
    session_id = desk.export("s", client)
    desk.provider.reply(answer("The tests pass."))
    return messages, session_id


@pytest.mark.parametrize("client", CLIENTS)
def test_a_resumed_client_sends_the_context_and_its_session_is_a_fork(
    desk: Desk, client: str
) -> None:
    messages, session_id = exported(desk, client)

    desk.resume(client, session_id, PROMPT)
    desk.capture(client)

    check_history(desk, client, messages)
    sessions = desk.sessions()
    fork = sessions[session_id]
    assert sorted(sessions) == sorted(["s", session_id])
    assert fork.head().state.forked_from == ("s", sessions["s"].head().seq)
    assert answers_of(fork) == ["The tests pass."]
    assert desk.messages(session_id)[: len(messages)] == messages


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_that_is_resumed_under_the_proxy_records_a_fork(
    desk: Desk, client: str
) -> None:
    messages, session_id = exported(desk, client)

    desk.resume_proxied(client, session_id, PROMPT)

    check_history(desk, client, messages)
    sessions = desk.sessions()
    fork = sessions[session_id]
    assert origin_of(fork) == "s"
    # Codex sends results in another form than the session has, so they are new.
    new_answers = answers_of(fork)[-1:] if client == "codex" else answers_of(fork)
    assert new_answers == ["The tests pass."]
    assert len(fork.events(types=("request",))) == 1


@pytest.mark.parametrize("client", CLIENTS)
def test_an_earlier_event_and_a_strategy_are_continued(desk: Desk, client: str) -> None:
    record(desk)
    strategy = ("--strategy", "last_turns:n=1")
    messages = desk.messages("s", *strategy)
    session_id = desk.export("s", client, *strategy)
    desk.provider.reply(answer("The tests pass."))

    desk.resume(client, session_id, PROMPT)

    assert len(messages) < len(desk.messages("s"))
    check_history(desk, client, messages)


def test_claude_code_continues_the_newest_session_of_the_folder(desk: Desk) -> None:
    record(desk)
    desk.export("s", "claude-code")
    desk.provider.reply(answer("The tests pass."))

    desk.client("claude-code", "--continue", prompt=PROMPT)

    check_history(desk, "claude-code", desk.messages("s"))


@pytest.mark.parametrize(
    ("first", "second"), [("claude-code", "codex"), ("codex", "claude-code")]
)
def test_a_session_goes_from_one_client_to_the_other_and_back(
    desk: Desk, first: str, second: str
) -> None:
    desk.provider.reply(answer("I look.", CLIENTS[first].run), answer("It says one."))
    desk.client(first, prompt="Look around.")
    desk.capture(first)
    (origin,) = desk.sessions()

    there = desk.export(origin, second)
    desk.provider.reply(answer("I look, too.", CLIENTS[second].run), answer("Yes."))
    desk.resume(second, there, PROMPT)
    first_request = desk.provider.requests[-2].json
    desk.capture(second)
    messages = desk.messages(there)
    back = desk.export(there, first)
    desk.provider.reply(answer("The tests pass."))
    desk.resume(first, back, PROMPT)
    desk.capture(first)

    assert "It says one." in json.dumps(first_request)
    check_history(desk, first, messages)
    sessions = desk.sessions()
    assert sorted(sessions) == sorted([origin, there, back])
    assert origin_of(sessions[there]) == origin
    assert origin_of(sessions[back]) == there
    calls = [event for event in sessions[there].events() if event.type == "tool_call"]
    assert len(calls) == 1
    assert answers_of(sessions[back]) == ["The tests pass."]
