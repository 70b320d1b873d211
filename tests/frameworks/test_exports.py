"""An export for OpenAI's API is what the SDK takes and sends unchanged."""

from __future__ import annotations

from openai import OpenAI

from refold.domain.events import (
    AgentResponse,
    Attachment,
    SystemPrompt,
    ToolCall,
    ToolResult,
    UserInput,
)
from tests.exporters.exporting import view_of, written
from tests.projections.logs import PIXEL, log_of
from tests.support.provider import Provider, answer

EVENTS = log_of(
    SystemPrompt(text="You are an agent."),
    UserInput(
        text="Why does the build fail?",
        attachments=(Attachment(kind="image", media_type="image/png", data=PIXEL),),
    ),
    (AgentResponse(text="I look."), {"model": "gpt-5"}),
    ToolCall(call_id="c1", tool_name="bash", arguments={"command": "make"}),
    ToolResult(call_id="c1", content="no such file", status="error"),
    AgentResponse(text="A file is missing."),
    UserInput(text="Create it."),
)


def test_the_sdk_of_openai_sends_the_context() -> None:
    (request,) = written(view_of(EVENTS), EVENTS, "openai").values
    with Provider(scripted=lambda _: True) as provider:
        provider.reply(answer("Done."))
        client = OpenAI(base_url=f"{provider.url}/v1", api_key="sk-test")

        response = client.chat.completions.create(**request)

        body = provider.requests[-1].json
    assert response.choices[0].message.content == "Done."
    assert body["messages"] == request["messages"]
    roles = [message["role"] for message in body["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user"]
