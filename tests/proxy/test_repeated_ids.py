"""A result follows its own call, also if ids repeat, and no call is stored twice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from refold.adapters.proxy.exchange import Answer, Exchange
from refold.adapters.proxy.protocols import named
from refold.adapters.proxy.recorder import StoreRecorder
from refold.adapters.proxy.views import Views
from refold.domain.envelope import Envelope
from refold.domain.events import AgentResponse, Request, ToolCall, ToolResult
from refold.store import SessionStore

USER = "ada"
JSON = {"content-type": "application/json"}
PATHS = {
    "anthropic-messages": "/v1/messages",
    "gemini": "/v1beta/models/gemini-3:generateContent",
    "ollama": "/api/chat",
    "openai-chat": "/v1/chat/completions",
    "openai-responses": "/v1/responses",
}
PROTOCOLS = sorted(PATHS)


class Agent:
    """A client of one protocol, whose calls have the same id in each answer."""

    def __init__(self, store: SessionStore, protocol: str) -> None:
        self.store = store
        self.protocol = protocol
        self.recorder = StoreRecorder(store, user_id=USER)
        self.messages: list[Any] = []
        self.count = 0

    def restart(self) -> None:
        """Forget what the recorder has in memory."""
        self.recorder = StoreRecorder(self.store, user_id=USER)

    def ask(self, text: str) -> None:
        """Add a message of the user."""
        if self.protocol == "gemini":
            self.messages.append({"role": "user", "parts": [{"text": text}]})
        else:
            self.messages.append({"role": "user", "content": text})

    def say(self, text: str) -> None:
        """Add a text of the model as a message."""
        match self.protocol:
            case "gemini":
                self.messages.append({"role": "model", "parts": [{"text": text}]})
            case "openai-responses":
                part = {"type": "output_text", "text": text}
                message = {"type": "message", "role": "assistant", "content": [part]}
                self.messages.append(message)
            case _:
                self.messages.append({"role": "assistant", "content": text})

    def call(self, *numbers: int) -> None:
        """Send the messages; the answer has a call for each number."""
        self.exchange(self._message(numbers))
        self.remember(*numbers)

    def remember(self, *numbers: int) -> None:
        """Add an answer with a call for each number."""
        message = self._message(numbers)
        if self.protocol == "openai-responses":
            self.messages += message["output"]
        else:
            self.messages.append(message)

    def results(self, *texts: str) -> None:
        """Add the results of the last calls."""
        match self.protocol:
            case "gemini":
                parts = [
                    {"functionResponse": {"name": "run", "response": {"output": text}}}
                    for text in texts
                ]
                self.messages.append({"role": "user", "parts": parts})
            case "anthropic-messages":
                blocks = [
                    {"type": "tool_result", "tool_use_id": "c", "content": text}
                    for text in texts
                ]
                self.messages.append({"role": "user", "content": blocks})
            case "ollama":
                for text in texts:
                    result = {"role": "tool", "tool_name": "run", "content": text}
                    self.messages.append(result)
            case "openai-responses":
                for text in texts:
                    result = {"type": "function_call_output", "call_id": "c"}
                    self.messages.append({**result, "output": text})
            case _:
                for text in texts:
                    result = {"role": "tool", "tool_call_id": "c", "content": text}
                    self.messages.append(result)

    def _message(self, numbers: Sequence[int]) -> dict[str, Any]:
        """Return an answer; of Responses, its output."""
        arguments = [{"number": number} for number in numbers]
        match self.protocol:
            case "gemini":
                parts = [
                    {"functionCall": {"name": "run", "args": fields}}
                    for fields in arguments
                ]
                return {"role": "model", "parts": parts}
            case "anthropic-messages":
                blocks = [
                    {"type": "tool_use", "id": "c", "name": "run", "input": fields}
                    for fields in arguments
                ]
                return {"role": "assistant", "content": blocks}
            case "ollama":
                functions = [
                    {"function": {"name": "run", "arguments": fields}}
                    for fields in arguments
                ]
                return {"role": "assistant", "content": "", "tool_calls": functions}
            case "openai-responses":
                items = [
                    {
                        "type": "function_call",
                        "call_id": "c",
                        "name": "run",
                        "arguments": json.dumps(fields),
                    }
                    for fields in arguments
                ]
                return {"output": items}
        calls = [
            {
                "id": "c",
                "type": "function",
                "function": {"name": "run", "arguments": json.dumps(fields)},
            }
            for fields in arguments
        ]
        return {"role": "assistant", "content": None, "tool_calls": calls}

    def exchange(self, message: dict[str, Any]) -> None:
        """Send the messages, and record an answer with this message."""
        self.count += 1
        names = {"gemini": "contents", "openai-responses": "input"}
        name = names.get(self.protocol, "messages")
        request = {"model": "m", "stream": False, name: self.messages}
        now = datetime.now(UTC)
        exchange = Exchange(
            exchange_id=f"exchange-{self.count}",
            upstream="any",
            protocol=named(self.protocol),
            method="POST",
            path=PATHS[self.protocol],
            headers={},
            body=json.dumps(request).encode(),
            truncated=False,
            began_at=now,
        )
        response_id = f"response-{self.count}"
        answer: dict[str, Any] = {"id": response_id, "model": "m"}
        match self.protocol:
            case "gemini":
                answer["responseId"] = response_id
                answer["candidates"] = [{"content": message, "finishReason": "STOP"}]
            case "anthropic-messages":
                answer["content"] = message["content"]
            case "ollama":
                answer = {"model": "m", "done": True, "message": message}
            case "openai-responses":
                answer["object"] = "response"
                answer["status"] = "completed"
                answer["output"] = message["output"]
            case _:
                choice = {"message": message, "finish_reason": "tool_calls"}
                answer["choices"] = [choice]
        self.recorder.begin(exchange)
        finished = Answer(
            ending="complete",
            status=200,
            headers=JSON,
            body=json.dumps(answer).encode(),
            truncated=False,
            error="",
            first_byte_at=now,
            ended_at=now,
        )
        self.recorder.finish(exchange, finished)

    def events(self) -> list[Envelope]:
        """Return the events of the only session."""
        (info,) = self.store.sessions(USER)
        session = self.store.session(user_id=USER, session_id=info.session_id)
        return list(session.events())


def answered(events: list[Envelope]) -> dict[int, str]:
    """Return the text of the result of each call, by the number in the call."""
    numbers: dict[str, int] = {}
    texts: dict[int, str] = {}
    for event in events:
        payload = event.payload
        if isinstance(payload, ToolCall):
            assert isinstance(payload.arguments, dict)
            numbers[payload.call_id] = int(str(payload.arguments["number"]))
        elif isinstance(payload, ToolResult):
            content: Any = payload.content
            text = content["output"] if isinstance(content, dict) else content
            texts[numbers[payload.call_id]] = str(text)
    return texts


def matches(events: list[Envelope]) -> list[bool | None]:
    """Return ``matches`` of each request."""
    return [
        event.payload.matches for event in events if isinstance(event.payload, Request)
    ]


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_result_follows_its_call_after_an_interrupted_one_with_its_id(
    store: SessionStore, protocol: str, restarted: bool
) -> None:
    agent = Agent(store, protocol)
    agent.ask("Go.")
    agent.call(1)
    agent.ask("Stop, do something else.")
    for number in (2, 3):
        agent.call(number)
        agent.results(f"result {number}")
        if restarted:
            agent.restart()
    agent.call(4)

    assert answered(agent.events()) == {2: "result 2", 3: "result 3"}


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_first_request_has_results_of_the_newest_calls_with_their_id(
    store: SessionStore, protocol: str, restarted: bool
) -> None:
    agent = Agent(store, protocol)
    agent.ask("Go.")
    agent.remember(1)
    agent.ask("Stop, do something else.")
    agent.remember(2, 3)
    agent.results("result 2", "result 3")
    agent.remember(4)
    agent.ask("Stop again.")
    agent.remember(5)
    agent.results("result 5")
    agent.call(6)
    agent.results("result 6")
    if restarted:
        agent.restart()
    agent.call(7)

    assert answered(agent.events()) == {
        number: f"result {number}" for number in (2, 3, 5, 6)
    }


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(
    "protocol", ["anthropic-messages", "openai-chat", "openai-responses"]
)
def test_request_with_a_renamed_call_does_not_match(
    store: SessionStore, protocol: str, restarted: bool
) -> None:
    agent = Agent(store, protocol)
    agent.ask("Go.")
    agent.call(1, 2)
    agent.results("result 1", "result 2")
    if restarted:
        agent.restart()
    agent.call(3)

    assert answered(agent.events()) == {1: "result 1", 2: "result 2"}
    assert matches(agent.events()) == [True, False]


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("protocol", ["gemini", "ollama"])
def test_parallel_calls_of_which_a_client_keeps_each_as_a_message_are_stored_once(
    store: SessionStore, protocol: str, restarted: bool
) -> None:
    agent = Agent(store, protocol)
    agent.ask("Go.")
    for number in (1, 3):
        agent.exchange(agent._message([number, number + 1]))
        agent.remember(number)
        agent.remember(number + 1)
        agent.results(f"result {number}", f"result {number + 1}")
        if restarted:
            agent.restart()
    agent.call(5)

    events = agent.events()
    types = [event.type for event in events]
    assert types.count("tool_call") == 5
    assert "provider_edit" not in types
    assert answered(events) == {number: f"result {number}" for number in range(1, 5)}
    assert matches(events) == [True] * 3


def test_text_of_which_a_client_keeps_each_chunk_as_a_content_is_stored_once(
    store: SessionStore,
) -> None:
    agent = Agent(store, "gemini")
    agent.ask("Go.")
    parts: list[dict[str, Any]] = [{"text": "I "}, {"text": "look."}]
    agent.exchange({"role": "model", "parts": parts})
    agent.messages += [{"role": "model", "parts": [part]} for part in parts]
    agent.ask("Thanks.")
    agent.call(1)

    texts = [
        event.payload.text
        for event in agent.events()
        if isinstance(event.payload, AgentResponse) and event.payload.text
    ]
    assert texts == ["I look."]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_repeated_ids_do_not_make_the_proxy_read_its_session_again(
    store: SessionStore, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = 0
    read = Views.read

    def counted(*arguments: Any, **options: Any) -> Views:
        nonlocal reads
        reads += 1
        return read(*arguments, **options)

    monkeypatch.setattr(Views, "read", counted)
    agent = Agent(store, protocol)
    agent.ask("Go.")
    for number in range(12):
        agent.call(number)
        agent.results(f"result {number}")

    assert reads == 1
    (info,) = store.sessions(USER)
    session = store.session(user_id=USER, session_id=info.session_id)
    requests = session.events(types=("request",))
    assert len(requests) == 12
    for event in requests:
        request = event.payload
        assert isinstance(request, Request)
        assert session.context(at=event.seq).digest == request.digest


@pytest.mark.parametrize("text", ["", "I look."])
@pytest.mark.parametrize("signed", [(0,), (0, 1)])
def test_parallel_calls_are_stored_once_if_their_signatures_are_dropped(
    store: SessionStore, text: str, signed: tuple[int, ...]
) -> None:
    agent = Agent(store, "gemini")
    agent.ask("Go.")
    for turn in range(2):
        parts: list[dict[str, Any]] = [{"text": text}] if text else []
        for number in range(2):
            call = {"name": "run", "args": {"number": 2 * turn + number}}
            part: dict[str, Any] = {"functionCall": call}
            if number in signed:
                part["thoughtSignature"] = f"signature {turn} {number}"
            parts.append(part)
        agent.exchange({"role": "model", "parts": parts})
        unsigned = [
            {name: value for name, value in part.items() if name != "thoughtSignature"}
            for part in parts
        ]
        agent.messages.append({"role": "model", "parts": unsigned})
        agent.results(f"result {2 * turn}", f"result {2 * turn + 1}")
    agent.call(4)

    events = agent.events()
    types = [event.type for event in events]
    assert types.count("tool_call") == 5
    assert answered(events) == {number: f"result {number}" for number in range(4)}


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_results_follow_calls_of_messages_with_a_text_between(
    store: SessionStore, protocol: str, restarted: bool
) -> None:
    agent = Agent(store, protocol)
    agent.ask("Go.")
    agent.remember(1)
    agent.say("Once more.")
    agent.remember(2)
    agent.results("result 1", "result 2")
    agent.call(3)
    if restarted:
        agent.restart()
    agent.results("result 3")
    agent.call(4)

    assert answered(agent.events()) == {
        number: f"result {number}" for number in (1, 2, 3)
    }


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("protocol", ["anthropic-messages", "openai-chat"])
def test_result_follows_a_recorded_call_whose_id_comes_again_before_it(
    store: SessionStore, protocol: str, restarted: bool
) -> None:
    agent = Agent(store, protocol)
    agent.ask("Go.")
    agent.call(1)
    agent.say("Once more.")
    agent.remember(2)
    agent.results("result 1", "result 2")
    agent.call(3)
    if restarted:
        agent.restart()
    agent.results("result 3")
    agent.call(4)

    assert answered(agent.events()) == {
        number: f"result {number}" for number in (1, 2, 3)
    }
    assert matches(agent.events())[:2] == [True, False]
