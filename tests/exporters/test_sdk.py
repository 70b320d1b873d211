"""Exports for an API are arguments that the provider's SDK takes unchanged."""

from __future__ import annotations

import json

from refold.domain.events import AgentResponse
from tests.exporters.exporting import failed_build, view_of, written
from tests.projections.logs import SIGNED
from tests.support.messages_api import MessagesApi, message

EVENTS = failed_build(
    AgentResponse(text="I look.", thinking=(SIGNED,)), "claude-opus-4-5"
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
