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
ASKED = ["Is my parcel there? I am ada@example.org.", "Thank you."]


def parcel(owner: str) -> str:
    """Say where a parcel is."""
    return f"parcel of {owner}: desk 2"


def answer(messages: list[Any], _: Any) -> ModelResponse:
    """Return the next answer from the file, by the number of answers so far."""
    made = ANSWERS[sum(one.kind == "response" for one in messages)]
    if "call" in made:
        return ModelResponse(parts=[ToolCallPart(made["call"], made["arguments"])])
    return ModelResponse(parts=[TextPart(made["text"])])


async def main(url: str) -> None:
    """Ask the next question, and print the answer and the newest stored messages."""
    with refold.open(url) as store:
        kept = RefoldConversationStore(store, user_id="ada")
        agent = Agent(FunctionModel(answer), tools=[parcel], capabilities=[kept.filter])
        told = await kept.load("parcels") or Conversation(conversation_id="parcels")
        text = ASKED[1 if told.messages else 0]
        result = await agent.run(text, conversation=told)
        await kept.save(result)
        print(result.output)
        again = await kept.load("parcels", limit=4)
        print(again and again.messages)


asyncio.run(main(sys.argv[1]))
