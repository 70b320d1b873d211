"""An agent of Google's ADK that remembers: start it twice.

Its model answers from a file, so that it needs no network.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from google.adk.agents import Agent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.genai.types import Content, FunctionCall, Part

import refold
from refold.adapters.frameworks.google_adk import RefoldSessionService

ANSWERS = json.loads((Path(__file__).parent / "sample/answers.json").read_text())
QUESTIONS = ["Is my parcel there? I am ada@example.org.", "Thank you."]
PLACE: dict[str, str] = {"user_id": "ada", "session_id": "parcels"}


def parcel(owner: str) -> dict[str, str]:
    """Return where a parcel is."""
    return {"found": f"parcel of {owner}: desk 2"}


class FromFile(BaseLlm):
    """Returns the next answer from the file, by the number of answers so far."""

    async def generate_content_async(
        self,
        llm_request: Any,
        stream: bool = False,  # noqa: ARG002  # ADK passes it
    ) -> AsyncIterator[LlmResponse]:
        answered = [
            content for content in llm_request.contents if content.role == "model"
        ]
        answer = ANSWERS[len(answered)]
        part = Part(text=answer.get("text"))
        if "call" in answer:
            call = FunctionCall(name=answer["call"], args=answer["arguments"])
            part = Part(function_call=call)
        yield LlmResponse(content=Content(role="model", parts=[part]))


async def main(url: str) -> None:
    """Ask the next question, and print the answer and the newest stored messages."""
    with refold.open(url) as store:
        service = RefoldSessionService(store)
        agent = Agent(
            name="desk",
            model=FromFile(model="file"),
            tools=[parcel],
            before_model_callback=service.before_model_callback,
        )
        runner = Runner(app_name="post", agent=agent, session_service=service)
        session = await service.get_session(app_name="post", **PLACE)
        if session is None:
            session = await service.create_session(app_name="post", **PLACE)
        asked = [event for event in session.events if event.author == "user"]
        question = Content(role="user", parts=[Part(text=QUESTIONS[len(asked)])])
        async for event in runner.run_async(**PLACE, new_message=question):
            if event.is_final_response():
                print(event.content.parts[0].text)
        session = await service.get_session(app_name="post", **PLACE)
        print([event.content.parts for event in session.events[-4:]])


asyncio.run(main(sys.argv[1]))
