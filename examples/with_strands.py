"""An agent of Strands that remembers: start it twice.

Its model answers from a file, so that it needs no network.
"""

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from strands import Agent, tool
from strands.models import Model
from strands.session.repository_session_manager import RepositorySessionManager

import refold
from refold.adapters.frameworks.strands import RefoldSessionRepository

ANSWERS = json.loads((Path(__file__).parent / "sample/answers.json").read_text())
QUESTIONS = ["Is my parcel there? I am ada@example.org.", "Thank you."]


@tool
def parcel(owner: str) -> str:
    """Return where a parcel is."""
    return f"parcel of {owner}: desk 2"


class FromFile(Model):
    """Returns the next answer from the file, by the number of answers so far."""

    async def stream(self, messages: Any, *_: Any, **__: Any) -> AsyncIterator[Any]:
        """Yield the events of one answer."""
        number = sum(message["role"] == "assistant" for message in messages)
        answer = ANSWERS[number]
        yield {"messageStart": {"role": "assistant"}}
        if "call" in answer:
            call = {"name": answer["call"], "toolUseId": f"call_{number:08d}"}
            yield {"contentBlockStart": {"start": {"toolUse": call}}}
            arguments = json.dumps(answer["arguments"])
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": arguments}}}}
        else:
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": answer["text"]}}}
        yield {"contentBlockStop": {}}
        stop_reason = "tool_use" if "call" in answer else "end_turn"
        yield {"messageStop": {"stopReason": stop_reason}}

    def structured_output(self, *_: Any, **__: Any) -> Any:
        """Refuse: the file has no structured output."""
        raise NotImplementedError

    def update_config(self, **_: Any) -> None:
        """Do nothing: there is nothing to set."""

    def get_config(self) -> Any:
        """Return the settings, of which there are none."""
        return {}


def main(url: str) -> None:
    """Ask the next question, and print the answer and the newest stored messages."""
    with refold.open(url) as store:
        repository = RefoldSessionRepository(store, user_id="ada")
        manager = RepositorySessionManager("parcels", session_repository=repository)
        agent = Agent(
            model=FromFile(),
            tools=[parcel],
            agent_id="desk",
            session_manager=manager,
            hooks=[repository.filter("parcels")],
            callback_handler=None,
        )
        asked = 0
        for message in agent.messages:
            if message["role"] == "user" and "text" in message["content"][0]:
                asked += 1
        result = agent(QUESTIONS[asked])
        print(str(result).strip())
        stored = repository.list_messages("parcels", "desk")
        print([message.message for message in stored[-4:]])


main(sys.argv[1])
