"""An agent of the OpenAI Agents SDK that remembers: start it twice.

Its model answers from a file, so that it needs no network.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from agents import Agent, RunConfig, Runner, function_tool
from agents.testing import ScriptedModel
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage

import refold
from refold.adapters.frameworks.openai_agents import RefoldSession

ANSWERS = json.loads((Path(__file__).parent / "sample/answers.json").read_text())
QUESTIONS = ["Is my parcel there? I am ada@example.org.", "Thank you."]


@function_tool
def parcel(owner: str) -> str:
    """Return where a parcel is."""
    return f"parcel of {owner}: desk 2"


def answer(call: Any) -> list[Any]:
    """Return the next answer from the file, by the number of answers so far."""
    number = 0  # answers so far
    for item in call.input:
        if item.get("role", item.get("type")) in ("function_call", "assistant"):
            number += 1
    chosen = ANSWERS[number]
    if "call" in chosen:
        tool_call = ResponseFunctionToolCall(
            type="function_call",
            id=f"fc_{number:08d}",
            call_id=f"call_{number:08d}",
            name=chosen["call"],
            arguments=json.dumps(chosen["arguments"]),
        )
        return [tool_call]
    text = {"type": "output_text", "text": chosen["text"], "annotations": []}
    message = ResponseOutputMessage.model_validate(
        {
            "type": "message",
            "id": f"msg_{number:08d}",
            "role": "assistant",
            "status": "completed",
            "content": [text],
        }
    )
    return [message]


async def main(url: str) -> None:
    """Ask the next question, and print the answer and the newest stored messages."""
    with refold.open(url) as store:
        session = RefoldSession(store, "parcels", user_id="ada")
        config = RunConfig(
            call_model_input_filter=session.call_model_input_filter,
            tracing_disabled=True,
        )
        model = ScriptedModel([{"responder": answer}] * 2)
        agent = Agent(name="desk", model=model, tools=[parcel])
        asked = 0
        for item in await session.get_items():
            if item.get("role") == "user":
                asked += 1
        question = QUESTIONS[asked]
        result = await Runner.run(agent, question, session=session, run_config=config)
        print(result.final_output)
        print(await session.get_items(4))


asyncio.run(main(sys.argv[1]))
