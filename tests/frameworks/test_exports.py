"""An export for OpenAI's API is what the SDK takes and sends unchanged."""

from __future__ import annotations

from openai import OpenAI

from refold.domain.events import AgentResponse
from tests.exporters.exporting import failed_build, view_of, written
from tests.support.provider import Provider, answer

EVENTS = failed_build(AgentResponse(text="I look."), "gpt-5")


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
