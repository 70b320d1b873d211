"""A capture covers what the SDK's client can do, and refuses the rest immediately."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pydantic
import pytest
from anthropic import beta_async_tool, beta_tool
from anthropic.lib.tools import BetaAbstractMemoryTool, ToolError

import refold
from refold.adapters.claude.capture import AsyncCapture, Capture
from refold.projections.context.text import violations
from refold.store import Session
from tests.support.messages_api import MessagesApi, error, message, tool_use
from tests.support.surface_page import PAGE, page

RESULTS_OF_TOOLS = {"7": "nine", "broken": "no such key"}


class City(pydantic.BaseModel):
    name: str
    country: str


@beta_tool
def look_up(key: str) -> str:
    """Look up a key."""
    if key == "broken":
        raise ToolError("no such key")
    if key == "worse":
        raise KeyError(key)
    return RESULTS_OF_TOOLS.get(key, "nothing")


class Notes(BetaAbstractMemoryTool):
    """A memory that answers every command with its name."""

    def view(self, command: Any) -> str:
        return f"view {command.path}"

    def create(self, command: Any) -> str:
        return "created"

    def str_replace(self, command: Any) -> str:
        return "replaced"

    def insert(self, command: Any) -> str:
        return "inserted"

    def delete(self, command: Any) -> str:
        return "deleted"

    def rename(self, command: Any) -> str:
        return "renamed"


class Toolset:
    """Several tools under one definition, as the SDK's toolsets."""

    def to_dict(self) -> dict[str, str]:
        return {"type": "several_tools"}

    def call(self, context: Any, name: str, input: Any) -> str:  # noqa: A002  # its name
        raise AssertionError


def capture(session: Session, api: MessagesApi, **more: Any) -> Capture:
    client = api.client(max_retries=0)
    more.setdefault("max_tokens", 99)
    return Capture(client, session, model="claude-x", **more)


def asynchronous(session: Session, api: MessagesApi, **more: Any) -> AsyncCapture:
    client = api.async_client(max_retries=0)
    return AsyncCapture(client, session, model="claude-x", max_tokens=99, **more)


def types(session: Session) -> list[str]:
    return [event.type for event in session.events()]


def payloads(session: Session, kind: str) -> list[Any]:
    return [event.payload for event in session.events() if event.type == kind]


REFUSED: dict[str, Callable[[Capture], Any]] = {
    "output_format in create": lambda ask: ask.create(
        "Go.", options={"output_format": City}
    ),
    "an option of stream in create": lambda ask: ask.create(
        "Go.", options={"event_handler": print}
    ),
    "no JSON": lambda ask: ask.create("Go.", options={"metadata": object()}),
    "no JSON in a header": lambda ask: ask.create(
        "Go.", options={"extra_headers": {"a": object()}}
    ),
    "no type": lambda ask: ask.parse("Go.", object()),  # type: ignore[arg-type]  # the wrong type on purpose
    "two formats": lambda ask: ask.parse(
        "Go.", City, options={"output_config": {"format": {}}}
    ),
    "no custom id": lambda ask: ask.batch_request("Go.", custom_id="a b"),
    "a time in a batch": lambda ask: ask.batch_request(
        "Go.", custom_id="a", options={"timeout": 3}
    ),
    "no tool": lambda ask: ask.tool_runner("Go.", tools=[print]).until_done(),
    "a toolset": lambda ask: ask.tool_runner("Go.", tools=[Toolset()]).until_done(),
    "a streaming runner": lambda ask: ask.tool_runner(
        "Go.", tools=[look_up], stream=True
    ),
    "a streaming runner by option": lambda ask: ask.tool_runner(
        "Go.", tools=[look_up], options={"stream": True}
    ),
    "a thread": lambda ask: ask.thread(max_tokens=9),
    "a thread by option": lambda ask: ask.create(
        "Go.", options={"thread": {"type": "continue", "id": "t"}}
    ),
    "a thread in the body": lambda ask: ask.create(
        "Go.", options={"extra_body": {"thread": {"id": "t"}}}
    ),
    "a coroutine": lambda ask: ask.tool_runner(
        "Go.", tools=[beta_async_tool(_waits)]
    ).until_done(),
    "no message": lambda ask: ask.tool_runner(
        "Go.", tools=[look_up], max_iterations=0
    ).until_done(),
}


async def _waits(key: str) -> str:
    """Wait for a key."""
    return key


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_an_invalid_call_is_refused_before_anything_is_recorded(
    session: Session, api: MessagesApi, call: Callable[[Capture], Any]
) -> None:
    with pytest.raises(refold.errors.InvalidConfiguration):
        call(capture(session, api))

    with pytest.raises(refold.SessionNotFound):
        session.head()
    assert api.requests == []


def test_a_call_that_needs_a_stream_is_refused_before_anything_is_recorded(
    session: Session, api: MessagesApi
) -> None:
    """The SDK refuses it only when it sends the request."""
    ask = capture(session, api, max_tokens=100_000)

    with pytest.raises(refold.errors.InvalidConfiguration, match="refuses") as refused:
        ask.create("Go.")

    assert "Streaming is required" in str(refused.value.__cause__)
    with pytest.raises(refold.SessionNotFound):
        session.head()
    api.reply(message("Yes."), message("Yes."))
    with ask.stream("Go.") as stream:
        assert stream.get_final_text() == "Yes."
    ask.create("Again.", options={"timeout": 3_600})
    assert len(api.requests) == 2


def test_a_structured_answer_is_recorded_and_parsed(
    session: Session, api: MessagesApi
) -> None:
    api.reply(message('{"name": "Paris", "country": "France"}'))

    answer = capture(session, api).parse("Where?", City)

    assert answer.parsed_output == City(name="Paris", country="France")
    (sent,) = api.requests
    assert sent.body["output_config"]["format"]["type"] == "json_schema"
    (response,) = payloads(session, "agent_response")
    assert response.text == '{"name": "Paris", "country": "France"}'
    recorded = session.events()[1].meta.dump()["options"]
    assert recorded == {"output_config": sent.body["output_config"]}


def test_an_answer_that_cannot_be_parsed_is_recorded(
    session: Session, api: MessagesApi
) -> None:
    api.reply(message('{"name": "Par', stop_reason="max_tokens"))

    with pytest.raises(pydantic.ValidationError):
        capture(session, api).parse("Where?", City)

    assert payloads(session, "agent_response")[0].text == '{"name": "Par'


def test_a_stream_parses_an_answer_as_the_sdk_does(
    session: Session, api: MessagesApi
) -> None:
    api.reply(message('{"name": "Paris", "country": "France"}'))

    with capture(session, api).stream(
        "Where?", options={"output_format": City}
    ) as stream:
        whole: Any = stream.get_final_message()

    assert whole.parsed_output == City(name="Paris", country="France")
    recorded = session.events()[1].meta.dump()["options"]
    assert recorded["output_format"]["required"] == ["name", "country"]  # type: ignore[index, call-overload]  # JSON


def test_a_tool_runner_runs_tools_and_records_their_results(
    session: Session, api: MessagesApi
) -> None:
    api.reply(
        message(
            tool_use("look_up", {"key": "7"}),
            tool_use("look_up", {"key": "broken"}),
            tool_use("look_up", {"key": "worse"}),
            tool_use("other", {}),
        ),
        message("Paused.", stop_reason="pause_turn"),
        message("Done."),
    )

    runner = capture(session, api).tool_runner("Go.", tools=[look_up])
    answers = list(runner)

    assert [answer.stop_reason for answer in answers] == [
        "tool_use",
        "pause_turn",
        "end_turn",
    ]
    results = payloads(session, "tool_result")
    assert [result.content for result in results] == [
        "nine",
        "no such key",
        "KeyError('worse')",
        "There is no tool 'other'.",
    ]
    assert [result.status for result in results] == ["ok", "error", "error", "error"]
    (definition,) = api.requests[0].body["tools"]
    assert definition["name"] == "look_up"
    assert violations(session.context().messages) == []
    assert session.verify().problems == []


def test_a_tool_runner_runs_the_memory_tool_of_the_sdk(
    session: Session, api: MessagesApi
) -> None:
    view = tool_use("memory", {"command": "view", "path": "/memories"})
    api.reply(message(view), message("Done."))

    last = (
        capture(session, api)
        .tool_runner(
            "Go.",
            tools=[Notes()],
            options={"betas": ["context-management-2025-06-27"]},
        )
        .until_done()
    )

    assert last.stop_reason == "end_turn"
    assert payloads(session, "tool_result")[0].content == "view /memories"
    assert api.requests[0].body["tools"][0]["type"] == "memory_20250818"
    assert "context-management" in api.requests[0].headers["anthropic-beta"]


def test_a_tool_runner_ends_after_its_iterations(
    session: Session, api: MessagesApi
) -> None:
    api.reply(message(tool_use("look_up", {"key": "7"})))
    runner = capture(session, api).tool_runner("Go.", tools=[look_up], max_iterations=1)

    assert runner.until_done().stop_reason == "tool_use"
    assert types(session)[-1] == "tool_call"


def test_an_asynchronous_client_has_the_same_surface(
    session: Session, api: MessagesApi
) -> None:
    @beta_async_tool
    async def wait_for(key: str) -> str:
        """Wait for a key."""
        return key.upper()

    async def run() -> list[Any]:
        ask = asynchronous(session, api)
        async with ask.client:
            counted = await ask.count_tokens("Where?")
            parsed = await ask.parse("Where?", City)
            calls = (
                tool_use("wait_for", {"key": "a"}),
                tool_use("look_up", {"key": "7"}),
            )
            api.reply(message(*calls), message("Done."))
            runner = ask.tool_runner("Go.", tools=[wait_for, look_up])
            last = await runner.until_done()
            request = await ask.batch_request("Later.", custom_id="s-1")
            with pytest.raises(refold.errors.InvalidConfiguration):
                await ask.create("Go.", options={"output_format": City})
            return [counted, parsed.parsed_output, last, request]

    api.reply(message('{"name": "Paris", "country": "France"}'))
    counted, city, last, request = asyncio.run(run())

    assert counted.input_tokens > 0
    assert city == City(name="Paris", country="France")
    assert last.content[0].text == "Done."
    assert [result.content for result in payloads(session, "tool_result")] == [
        "A",
        "nine",
    ]
    assert request.request["params"]["messages"][-1]["role"] == "user"


def test_counting_tokens_sends_the_call_and_records_nothing(
    session: Session, api: MessagesApi
) -> None:
    ask = capture(session, api, system="Be brief.", tools=[look_up.to_dict()])

    ask.count_tokens("Why?")
    with pytest.raises(refold.SessionNotFound):
        session.head()
    api.reply(message(tool_use("look_up", {"key": "7"}, call_id="t1")))
    ask.create("Why?", options={"metadata": {"user_id": "u"}})
    before = session.head().seq
    result: Any = [{"type": "tool_result", "tool_use_id": "t1", "content": "nine"}]
    ask.count_tokens(result, options={"metadata": {"user_id": "u"}})

    assert session.head().seq == before
    first, second = api.counted
    assert first.body["messages"][0]["content"][0]["text"] == "Why?"
    assert first.body["system"] == "Be brief."
    assert [tool["name"] for tool in second.body["tools"]] == ["look_up"]
    blocks = second.body["messages"][-1]["content"]
    assert [block["content"] for block in blocks] == ["nine"]
    assert "metadata" not in second.body


def test_requests_of_several_sessions_are_sent_in_one_batch(
    store: refold.SessionStore, api: MessagesApi
) -> None:
    sessions = [store.session(user_id="ada", session_id=f"s-{n}") for n in range(4)]
    captures = [capture(session, api) for session in sessions]
    api.outcomes.update({"s-2": "expired"})
    api.reply(message("Yes."), error(400, "no", kind="invalid_request_error"))
    api.reply(message("Later."))

    requests: Any = [
        ask.batch_request(f"Question {number}.", custom_id=f"s-{number}").request
        for number, ask in enumerate(captures)
    ]
    batches = captures[0].client.messages.batches
    batch = batches.create(requests=requests)
    for result in [*batches.results(batch.id), *batches.results(batch.id)]:
        captures[int(result.custom_id[-1])].record_batch(result)

    kinds = [[event.type for event in session.events()][2:] for session in sessions]
    assert kinds == [["agent_response"], ["error"], ["error"], ["agent_response"]]
    codes = [payloads(session, "error")[0].code for session in sessions[1:3]]
    assert codes == ["invalid_request_error", "batch_expired"]
    assert all(session.verify().problems == [] for session in sessions)


def test_a_batch_request_names_the_betas_that_it_needs(
    session: Session, api: MessagesApi
) -> None:
    ask = capture(session, api, strategy="native")

    request, betas = ask.batch_request("Go.", custom_id="s-1")

    assert betas == ["context-management-2025-06-27"]
    assert "betas" not in request["params"]


def test_a_conversation_with_citations_is_recorded(
    session: Session, api: MessagesApi
) -> None:
    """Its text is; the citations are the API's, of an answer that it knows."""
    cited: Any = {"type": "text", "text": "So.", "citations": [{"cited_text": "x"}]}
    messages: Any = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": [cited]},
    ]

    capture(session, api).record(messages=messages)

    assert payloads(session, "agent_response")[0].text == "So."


def test_the_page_about_the_sdk_says_what_a_capture_does() -> None:
    assert PAGE.read_text() == page(), (
        "write it again: .venv/bin/python -m tests.support.surface_page"
    )


def test_a_value_that_is_no_result_of_a_batch_is_refused(
    session: Session, api: MessagesApi
) -> None:
    with pytest.raises(refold.InvalidEvent, match="custom_id"):
        capture(session, api).record_batch({"result": {"type": "odd"}})
