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
ASKED = ["Is my parcel there? I am ada@example.org.", "Thank you."]


@function_tool
def parcel(owner: str) -> str:
    """Say where a parcel is."""
    return f"parcel of {owner}: desk 2"


def answer(call: Any) -> list[Any]:
    """Return the next answer from the file, by the number of answers so far."""
    told = ("function_call", "assistant")
    said = [one for one in call.input if one.get("role", one.get("type")) in told]
    made = ANSWERS[len(said)]
    name = f"{len(said):08d}"
    if "call" in made:
        given = json.dumps(made["arguments"])
        about = {"name": made["call"], "arguments": given, "call_id": f"call_{name}"}
        return [
            ResponseFunctionToolCall(type="function_call", id=f"fc_{name}", **about)
        ]
    text = {"type": "output_text", "text": made["text"], "annotations": []}
    about = {"role": "assistant", "status": "completed", "content": [text]}
    return [ResponseOutputMessage(type="message", id=f"msg_{name}", **about)]


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
        before = [one for one in await session.get_items() if one.get("role") == "user"]
        text = ASKED[len(before)]
        result = await Runner.run(agent, text, session=session, run_config=config)
        print(result.final_output)
        print(await session.get_items(4))


asyncio.run(main(sys.argv[1]))
