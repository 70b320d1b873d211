"""An agent of Microsoft's Agent Framework that remembers: start it twice.

Its model answers from a file, so that it needs no network.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_framework import (
    Agent,
    AgentSession,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    Content,
    FunctionInvocationLayer,
    Message,
    tool,
)

import refold
from refold.adapters.frameworks.agent_framework import RefoldHistoryProvider

ANSWERS = json.loads((Path(__file__).parent / "sample/answers.json").read_text())
QUESTIONS = ["Is my parcel there? I am ada@example.org.", "Thank you."]


@tool(approval_mode="never_require")
def parcel(owner: str) -> str:
    """Return where a parcel is."""
    return f"parcel of {owner}: desk 2"


class FromFile(FunctionInvocationLayer, ChatMiddlewareLayer, BaseChatClient):
    """Returns the next answer from the file, by the number of answers so far."""

    def _inner_get_response(
        self,
        *,
        messages: Sequence[Message],
        stream: bool,  # noqa: ARG002  # it never streams
        options: Mapping[str, Any],  # noqa: ARG002  # the file has the answers
        **_: Any,
    ) -> Awaitable[ChatResponse]:
        number = sum(message.role == "assistant" for message in messages)
        answer = ANSWERS[number]
        if "call" in answer:
            content = Content.from_function_call(
                f"call_{number:08d}", answer["call"], arguments=answer["arguments"]
            )
        else:
            content = Content.from_text(answer["text"])
        message = Message("assistant", [content], message_id=f"msg_{number:08d}")

        async def response() -> ChatResponse:
            return ChatResponse(messages=[message])

        return response()


async def main(url: str) -> None:
    """Ask the next question, and print the answer and the newest stored messages."""
    with refold.open(url) as store:
        history = RefoldHistoryProvider(store, user_id="ada")
        agent = Agent(
            client=FromFile(),
            tools=[parcel],
            context_providers=[history],
            middleware=[history.filter],
        )
        session = AgentSession(session_id="parcels")
        before = await history.get_messages("parcels")
        asked = sum(message.role == "user" for message in before)
        result = await agent.run(QUESTIONS[asked], session=session)
        print(result.text)
        stored = await history.get_messages("parcels")
        print([message.to_dict() for message in stored[-4:]])


asyncio.run(main(sys.argv[1]))
