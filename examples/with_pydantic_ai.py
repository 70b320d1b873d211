"""An agent of pydantic-ai that remembers: start it twice.

Its model answers from a file, so that it needs no network.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

import refold
from refold.adapters.frameworks.pydantic_ai import RefoldConversationStore

ANSWERS = json.loads((Path(__file__).parent / "sample/answers.json").read_text())
QUESTIONS = ["Is my parcel there? I am ada@example.org.", "Thank you."]


def parcel(owner: str) -> str:
    """Return where a parcel is."""
    return f"parcel of {owner}: desk 2"


def answer(messages: list[Any], _: Any) -> ModelResponse:
    """Return the next answer from the file, by the number of answers so far."""
    number = sum(message.kind == "response" for message in messages)
    chosen = ANSWERS[number]
    if "call" in chosen:
        return ModelResponse(parts=[ToolCallPart(chosen["call"], chosen["arguments"])])
    return ModelResponse(parts=[TextPart(chosen["text"])])


async def main(url: str) -> None:
    """Ask the next question, and print the answer and the newest stored messages."""
    with refold.open(url) as store:
        conversations = RefoldConversationStore(store, user_id="ada")
        agent = Agent(
            FunctionModel(answer),
            tools=[parcel],
            capabilities=[conversations.filter],
        )
        conversation = await conversations.load("parcels")
        if conversation is None:
            conversation = Conversation(conversation_id="parcels")
        question = QUESTIONS[1] if conversation.messages else QUESTIONS[0]
        result = await agent.run(question, conversation=conversation)
        await conversations.save(result)
        print(result.output)
        newest = await conversations.load("parcels", limit=4)
        print(newest and newest.messages)


asyncio.run(main(sys.argv[1]))
