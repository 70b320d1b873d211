"""A call that a client sends back with other arguments is one call in the log.

Contexts up to the answer show the model's arguments, and later ones show the client's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from refold.adapters.proxy import protocols
from refold.adapters.proxy.exchange import Answer, Exchange
from refold.adapters.proxy.recorder import StoreRecorder
from refold.domain.events import (
    AgentResponse,
    ProviderEdit,
    Request,
    ToolCall,
    ToolResult,
    UserInput,
)
from refold.store import SessionStore
from refold.store.session.session import Session
from tests.support.wire import WireClient, agent, call, check_contexts, result, user

USER = "ada"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
MODELS = {"path": "a.py", "old": "1", "limit": 1.0}
# The client adds an argument, removes one, and writes a number in another way.
CLIENTS = {"limit": 1, "replace_all": False, "path": "a.py"}


@pytest.fixture
def recorder(store: SessionStore) -> StoreRecorder:
    return StoreRecorder(store, user_id=USER)


def session_of(store: SessionStore) -> Session:
    """The only session of the store."""
    (info,) = store.sessions(USER)
    return store.session(user_id=USER, session_id=info.session_id)


def calls_in(session: Session) -> list[ToolCall]:
    """The calls in the log."""
    calls = []
    for event in session.events(types=("tool_call",)):
        assert isinstance(event.payload, ToolCall)
        calls.append(event.payload)
    return calls


def edits_in(session: Session) -> list[ProviderEdit]:
    """The edits in the log."""
    edits = []
    for event in session.events(types=("provider_edit",)):
        assert isinstance(event.payload, ProviderEdit)
        edits.append(event.payload)
    return edits


def matches_of(session: Session) -> list[bool | None]:
    """Whether each request has exactly what was sent."""
    matches = []
    for event in session.events(types=("request",)):
        assert isinstance(event.payload, Request)
        matches.append(event.payload.matches)
    return matches


def arguments_at(session: Session) -> list[list[Any]]:
    """For each request, the arguments of the calls in its context."""
    shown = []
    for event in session.events(types=("request",)):
        arguments = []
        for message in session.context(at=event.seq).messages:
            for block in message["content"]:
                if block["type"] == "tool_use":
                    arguments.append(block["input"])
        shown.append(arguments)
    return shown


@pytest.mark.parametrize("restarts", [False, True])
def test_a_call_with_an_added_default_is_recorded_once(
    store: SessionStore, recorder: StoreRecorder, *, restarts: bool
) -> None:
    client = WireClient(recorder)
    client.messages.append(user("Change it."))
    client.send("I change it.", call("c1", "edit", **MODELS), echo=False)
    client.messages.append(agent("I change it.", call("c1", "edit", **CLIENTS)))
    if restarts:
        client.recorder = StoreRecorder(store, user_id=USER)
    client.say(result("c1", "done"), "It is done.")
    client.say("Thanks.", "Bye.")

    session = session_of(store)
    assert check_contexts(store, client, USER) == 3
    assert [tool_call.arguments for tool_call in calls_in(session)] == [MODELS]
    (edit,) = edits_in(session)
    assert edit.reason == "rewriting"
    assert edit.arguments == {"limit": 1, "replace_all": False}
    assert edit.without_arguments == ("old",)
    assert matches_of(session) == [True, True, True]
    assert arguments_at(session) == [[], [CLIENTS], [CLIENTS]]
    types = [event.type for event in session.events()]
    assert types.count("tool_result") == 1


def test_parallel_calls_are_rewritten_one_by_one(
    store: SessionStore, recorder: StoreRecorder
) -> None:
    client = WireClient(recorder)
    client.messages.append(user("Change both."))
    first = call("c1", "edit", path="a")
    second = call("c2", "edit", path="b")
    client.send(first, second, echo=False)
    first = call("c1", "edit", path="a", all=False)
    second = call("c2", "edit", path="b", all=True)
    client.messages.append(agent(first, second))
    client.messages.append(user(result("c1"), result("c2")))
    client.send("Done.")
    client.recorder = StoreRecorder(store, user_id=USER)
    client.say("Thanks.", "Bye.")

    assert check_contexts(store, client, USER) == 3
    assert len(calls_in(session_of(store))) == 2
    assert len(edits_in(session_of(store))) == 2


def test_a_client_can_return_to_the_arguments_of_the_model(
    store: SessionStore, recorder: StoreRecorder
) -> None:
    client = WireClient(recorder)
    client.messages.append(user("Change it."))
    client.send(call("c1", "edit", **MODELS), echo=False)
    for number, arguments in enumerate([CLIENTS, MODELS, CLIENTS]):
        client.messages[1:2] = [agent(call("c1", "edit", **arguments))]
        if not number:
            client.messages.append(user(result("c1", "done")))
        client.send(f"Done {number}.")
        client.messages.append(user(f"And {number}?"))
    client.recorder = StoreRecorder(store, user_id=USER)
    client.send("Bye.")

    assert check_contexts(store, client, USER) == 5
    assert len(calls_in(session_of(store))) == 1


def test_a_secret_in_rewritten_arguments_is_redacted(
    store: SessionStore, recorder: StoreRecorder
) -> None:
    client = WireClient(recorder)
    client.messages.append(user("Write."))
    client.send(call("c1", "mail", text="hello"), echo=False)
    rewritten = call("c1", "mail", text="hello", to="grace.hopper@navy-yard.org")
    client.messages.append(agent(rewritten))
    client.say(result("c1", "sent"), "Done.")
    client.say("Thanks.", "Bye.")
    client.recorder = StoreRecorder(store, user_id=USER)
    client.say("Thanks again.", "Bye.")

    session = session_of(store)
    assert check_contexts(store, client, USER) == 4
    assert matches_of(session) == [True, False, False, False]
    assert "navy-yard" not in str([event.payload for event in session.events()])


def test_a_secret_in_a_cleared_result_is_redacted_in_the_next_view(
    store: SessionStore, recorder: StoreRecorder
) -> None:
    client = WireClient(recorder)
    client.say("Look.", call("c1"))
    client.say(result("c1", "a long one"), "Seen.")
    client.messages[2] = user(result("c1", "[cleared for grace.hopper@navy-yard.org]"))
    client.say("Next.", "Yes.")
    client.say("And?", "No.")

    assert check_contexts(store, client, USER) == 4
    assert matches_of(session_of(store)) == [True, True, False, False]


def test_invalid_arguments_become_an_object(
    store: SessionStore, recorder: StoreRecorder
) -> None:
    client = WireClient(recorder)
    client.messages.append(user("Change it."))
    broken = {**call("c1", "edit"), "input": '{"path": '}
    client.send(broken, echo=False)
    client.messages.append(agent(call("c1", "edit", path="")))
    client.say(result("c1", "done"), "Done.")

    assert check_contexts(store, client, USER) == 2
    assert [tool_call.arguments for tool_call in calls_in(session_of(store))] == [
        '{"path": '
    ]


def test_another_call_with_the_same_id_is_not_taken_for_it(
    store: SessionStore, recorder: StoreRecorder
) -> None:
    client = WireClient(recorder)
    client.say("One.", call("c", command="ls"))
    client.say(result("c", "a"), call("c", command="pwd"))
    client.say(result("c", "b"), "Both are done.")
    # The client leaves the first call out.
    del client.messages[1:3]
    client.say("Thanks.", "Bye.")

    assert [tool_call.arguments for tool_call in calls_in(session_of(store))] == [
        {"command": "ls"},
        {"command": "pwd"},
    ]
    assert [edit.reason for edit in edits_in(session_of(store))] == ["removal"]


def test_an_unnamed_client_that_rewrites_a_call_stays_in_its_session(
    store: SessionStore, recorder: StoreRecorder
) -> None:
    client = WireClient(recorder, session=None)
    client.messages.append(user("Change it."))
    client.send(call("c1", "edit", **MODELS), echo=False)
    client.messages.append(agent(call("c1", "edit", **CLIENTS)))
    client.say(result("c1", "done"), "Done.")

    session_of(store)
    assert check_contexts(store, client, USER) == 2


# The five protocols.  Each function returns a request, and an answer with a call.  If
# the call was ``sent`` back, the request contains it, and its result.

Body = dict[str, Any]


def _anthropic(arguments: Any, *, sent: bool) -> tuple[Body, Any]:
    block = {"type": "tool_use", "id": "c1", "name": "edit", "input": arguments}
    answer = {"id": "msg_1", "role": "assistant", "content": [block]}
    returned = {"type": "tool_result", "tool_use_id": "c1", "content": "done"}
    messages: list[Any] = [{"role": "user", "content": "Change it."}]
    if sent:
        messages += [{"role": "assistant", "content": [block]}]
        messages += [{"role": "user", "content": [returned]}]
    return {"model": "m", "messages": messages}, answer


def _openai_chat(arguments: Any, *, sent: bool) -> tuple[Body, Any]:
    function = {"name": "edit", "arguments": json.dumps(arguments, indent=sent or None)}
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": function}],
    }
    answer = {"id": "1", "choices": [{"message": message}]}
    messages: list[Any] = [{"role": "user", "content": "Change it."}]
    if sent:
        messages.append(message)
        messages.append({"role": "tool", "tool_call_id": "c1", "content": "done"})
    return {"model": "m", "messages": messages}, answer


def _openai_responses(arguments: Any, *, sent: bool) -> tuple[Body, Any]:
    item = {
        "type": "function_call",
        "call_id": "c1",
        "name": "edit",
        "arguments": json.dumps(arguments, indent=sent or None),
    }
    answer = {"id": "resp_1", "status": "completed", "output": [item]}
    items: list[Any] = [{"role": "user", "content": "Change it."}]
    if sent:
        items.append(item)
        items.append({"type": "function_call_output", "call_id": "c1", "output": "ok"})
    return {"model": "m", "input": items}, answer


def _gemini(arguments: Any, *, sent: bool) -> tuple[Body, Any]:
    content = {
        "role": "model",
        "parts": [{"functionCall": {"name": "edit", "args": arguments}}],
    }
    answer = {"candidates": [{"content": content, "finishReason": "STOP"}]}
    contents: list[Any] = [{"role": "user", "parts": [{"text": "Change it."}]}]
    if sent:
        response = {"name": "edit", "response": {"output": "done"}}
        contents.append(content)
        contents.append({"role": "user", "parts": [{"functionResponse": response}]})
    return {"contents": contents}, answer


def _ollama(arguments: Any, *, sent: bool) -> tuple[Body, Any]:
    message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "edit", "arguments": arguments}}],
    }
    answer = {"model": "m", "message": message, "done": True}
    messages: list[Any] = [{"role": "user", "content": "Change it."}]
    if sent:
        messages.append(message)
        messages.append({"role": "tool", "tool_name": "edit", "content": "done"})
    return {"model": "m", "stream": False, "messages": messages}, answer


_PATHS = {
    "anthropic-messages": "/v1/messages",
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
    "gemini": "/v1beta/models/m:generateContent",
    "ollama": "/api/chat",
}
# By protocol, the function that builds a request and an answer with a call.
_BUILDERS: dict[str, Callable[..., tuple[Body, Any]]] = {
    "anthropic-messages": _anthropic,
    "openai-chat": _openai_chat,
    "openai-responses": _openai_responses,
    "gemini": _gemini,
    "ollama": _ollama,
}


def _pass(recorder: StoreRecorder, name: str, body: Body, answer: Any) -> None:
    """Let a request and its answer pass through the recorder."""
    exchange = Exchange(
        exchange_id=f"{name}-{len(json.dumps(body))}",
        upstream="any",
        protocol=protocols.named(name),
        method="POST",
        path=_PATHS[name],
        headers={"x-session-id": "s-1"},
        body=json.dumps(body).encode(),
        truncated=False,
        began_at=NOW,
    )
    finished = Answer(
        ending="complete",
        status=200,
        headers={"content-type": "application/json"},
        body=json.dumps(answer).encode(),
        truncated=False,
        error="",
        first_byte_at=NOW,
        ended_at=NOW,
    )
    recorder.begin(exchange)
    recorder.finish(exchange, finished)


@pytest.mark.parametrize("name", _BUILDERS)
@pytest.mark.parametrize("arguments", [CLIENTS, dict(reversed(MODELS.items()))])
def test_every_protocol_recognizes_a_rewritten_call(
    store: SessionStore, recorder: StoreRecorder, name: str, arguments: Any
) -> None:
    body, answer = _BUILDERS[name](MODELS, sent=False)
    _pass(recorder, name, body, answer)
    body, _ = _BUILDERS[name](arguments, sent=True)
    _pass(recorder, name, body, _BUILDERS[name](MODELS, sent=False)[1])

    session = session_of(store)
    first, *others = calls_in(session)
    assert first.arguments == MODELS
    assert len(others) == 1  # of the second answer
    assert arguments_at(session) == [[], [arguments]]
    assert len(edits_in(session)) == (arguments != MODELS)
    assert matches_of(session) == [True, True]


def test_a_call_without_text_can_come_before_old_messages(
    store: SessionStore, recorder: StoreRecorder
) -> None:
    name = "anthropic-messages"
    block = {"type": "tool_use", "id": "c1", "name": "edit", "input": {}}
    returned = {"type": "tool_result", "tool_use_id": "c1", "content": "done"}
    answer = {"id": "msg", "content": [{"type": "text", "text": "A."}]}
    messages: list[Any] = []
    for question in ("One?", "Two?"):
        messages.append({"role": "user", "content": question})
        _pass(recorder, name, {"messages": messages}, answer)
        messages.append({"role": "assistant", "content": "A."})
    messages[1:1] = [
        {"role": "assistant", "content": [block]},
        {"role": "user", "content": [returned]},
    ]
    messages.append({"role": "user", "content": "Three?"})
    _pass(recorder, name, {"messages": messages}, answer)

    session = session_of(store)
    newest = session.events(types=("request",))[-1].seq
    shown = []
    for message in session.context(at=newest).messages:
        shown += [block["type"] for block in message["content"]]
    assert shown[:3] == ["text", "tool_use", "tool_result"]
    assert shown[3:] == ["text"] * 4


def test_a_call_that_a_fork_inherits_is_one_call_with_other_arguments(
    store: SessionStore,
) -> None:
    origin = store.session(user_id=USER, session_id="origin")
    origin.append(UserInput(text="Look."))
    origin.append(ToolCall(call_id="call_1", tool_name="bash", arguments={"a": 1}))
    origin.append(ToolResult(call_id="call_1", content="output"))
    receipt = origin.append(AgentResponse(text="Done."))
    fork = origin.fork(receipt.last_seq, session_id="s-1")
    client = WireClient(StoreRecorder(store, user_id=USER), "s-1")
    client.messages[:] = [
        user("Look."),
        agent(call("call_1", a=1, b=2)),
        user(result("call_1", "output")),
        agent("Done."),
    ]

    client.say("Look again.", "I look.")
    client.messages[1] = agent(call("call_1", a=1, b=3))
    client.recorder = StoreRecorder(store, user_id=USER)
    client.say("And again.", "I look again.")

    assert calls_in(fork) == []
    assert check_contexts(store, client, USER) == 2


@pytest.mark.parametrize("restarted", [False, True])
def test_a_call_that_a_client_replaces_by_another_is_left_out_with_its_end(
    store: SessionStore, restarted: bool
) -> None:
    client = WireClient(StoreRecorder(store, user_id=USER))
    client.say("Look.", "I look.", call("t1"), call("t2"))
    if restarted:
        client.recorder = StoreRecorder(store, user_id=USER)
    client.messages[-1] = agent("I look.", call("t2"), call("t1", name="task"))
    client.messages.append(user(result("t2"), result("t1")))
    client.send("Done.")
    client.say("Thanks.", "Gladly.")

    assert check_contexts(store, client, USER) == 3
