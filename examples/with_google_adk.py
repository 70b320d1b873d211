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
ASKED = ["Is my parcel there? I am ada@example.org.", "Thank you."]
PLACE: dict[str, str] = {"user_id": "ada", "session_id": "parcels"}


def parcel(owner: str) -> dict[str, str]:
    """Say where a parcel is."""
    return {"found": f"parcel of {owner}: desk 2"}


class FromFile(BaseLlm):
    """Returns the next answer from the file, by the number of answers so far."""

    async def generate_content_async(
        self,
        llm_request: Any,
        stream: bool = False,  # noqa: ARG002  # as it is called
    ) -> AsyncIterator[LlmResponse]:
        said = [one for one in llm_request.contents if one.role == "model"]
        made = ANSWERS[len(said)]
        part = Part(text=made.get("text"))
        if "call" in made:
            call = FunctionCall(name=made["call"], args=made["arguments"])
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
        before = [one for one in session.events if one.author == "user"]
        said = Content(role="user", parts=[Part(text=ASKED[len(before)])])
        async for event in runner.run_async(**PLACE, new_message=said):
            if event.is_final_response():
                print(event.content.parts[0].text)
        session = await service.get_session(app_name="post", **PLACE)
        print([event.content.parts for event in session.events[-4:]])


asyncio.run(main(sys.argv[1]))
