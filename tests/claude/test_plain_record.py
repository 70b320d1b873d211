"""New messages are recorded for callers that use the client themselves."""

from __future__ import annotations

from typing import Any

import pytest

import refold
from refold.store import Session
from tests.claude.test_capture import TOOLS, capture, payloads, proved, types
from tests.support.messages_api import MessagesApi, message, tool_use


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def agent(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def test_a_custom_loop_is_recorded(session: Session, api: MessagesApi) -> None:
    call = tool_use("bash", {"command": "ls"}, call_id="toolu_1")
    api.reply(message("I look.", call), message("Two files."), message("Bye."))
    client = api.client()
    record = capture(session, api).record
    messages: list[Any] = [user("What is there?")]
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "a b"}

    for more in ([user([result])], [user("Thanks.")], []):
        response = client.messages.create(
            model="claude-x", max_tokens=9, messages=messages, tools=TOOLS
        )
        record(messages=messages, response=response, tools=TOOLS)
        messages += [agent(response.content), *more]

    assert types(session) == [
        "user_input",
        "request",
        "agent_response",
        "tool_call",
        "tool_result",
        "request",
        "agent_response",
        "user_input",
        "request",
        "agent_response",
    ]
    assert [request.matches for request in payloads(session, "request")] == [True] * 3
    proved(session)


def test_text_that_had_to_be_redacted_does_not_match(
    session: Session, api: MessagesApi
) -> None:
    record = capture(session, api).record
    messages = [user("Mail ann.lee@corp.example.org")]

    record(messages=messages, response={"content": [{"type": "text", "text": "Ok."}]})
    messages += [agent("Ok."), user("Thanks.")]
    record(messages=messages)

    assert types(session) == [
        "user_input",
        "request",
        "agent_response",
        "user_input",
        "request",
    ]
    assert [request.matches for request in payloads(session, "request")] == [False] * 2
    proved(session)


def test_a_custom_system_prompt_is_kept(session: Session, api: MessagesApi) -> None:
    capture(session, api).record(messages=[user("Why?")], system="Be brief.")

    ((_, view),) = session.proofs.replay()
    assert view.system == "Be brief."
    assert payloads(session, "request")[0].matches is True


def test_a_truncated_history_still_gives_its_new_messages(
    session: Session, api: MessagesApi
) -> None:
    record = capture(session, api).record
    record(messages=[user("One?")], response={"content": [text("First.")]})

    record(messages=[user("Summary."), agent("Fine."), user("Two?")])

    assert [event.text for event in payloads(session, "user_input")] == ["One?", "Two?"]
    added = session.events()[-2]
    assert added.meta.warnings[0].code == "history_differs"
    assert payloads(session, "request")[-1].matches is False
    proved(session)


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def test_equal_texts_are_distinguished_by_their_position(
    session: Session, api: MessagesApi
) -> None:
    record = capture(session, api).record
    messages: list[Any] = []
    for _ in range(3):
        messages.append(user("Go on."))
        record(messages=messages, response={"content": [text("Done.")]})
        messages.append(agent([text("Done.")]))

    assert types(session) == ["user_input", "request", "agent_response"] * 3
    proved(session)


def test_an_unrecordable_message_writes_nothing(
    session: Session, api: MessagesApi
) -> None:
    with pytest.raises(refold.InvalidEvent, match="of the user or of the assistant"):
        capture(session, api).record(messages=[{"role": "wizard", "content": "x"}])

    with pytest.raises(refold.SessionNotFound):
        session.events()
