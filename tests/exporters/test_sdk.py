"""Exports for an API are arguments that the provider's SDK takes unchanged."""

from __future__ import annotations

import json

from refold.domain.events import (
    AgentResponse,
    Attachment,
    SystemPrompt,
    ToolCall,
    ToolResult,
    UserInput,
)
from tests.exporters.exporting import view_of, written
from tests.projections.logs import PIXEL, SIGNED, log_of
from tests.support.messages_api import MessagesApi, message

EVENTS = log_of(
    SystemPrompt(text="You are an agent."),
    UserInput(
        text="Why does the build fail?",
        attachments=(Attachment(kind="image", media_type="image/png", data=PIXEL),),
    ),
    (AgentResponse(text="I look.", thinking=(SIGNED,)), {"model": "claude-opus-4-5"}),
    ToolCall(call_id="c1", tool_name="bash", arguments={"command": "make"}),
    ToolResult(call_id="c1", content="no such file", status="error"),
    AgentResponse(text="A file is missing."),
    UserInput(text="Create it."),
)


def test_the_sdk_of_the_messages_api_sends_the_context(api: MessagesApi) -> None:
    view = view_of(EVENTS)
    (request,) = written(view, EVENTS, "anthropic").values
    api.reply(message("Done."))

    answer = api.client().messages.create(max_tokens=64, **request)

    body = api.requests[-1].body
    assert answer.content[0].type == "text"
    assert body["messages"] == view.messages
    assert body["system"] == "You are an agent."
    assert body["model"] == "claude-opus-4-5"
    assert json.loads(json.dumps(request)) == request
