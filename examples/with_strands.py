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
ASKED = ["Is my parcel there? I am ada@example.org.", "Thank you."]


@tool
def parcel(owner: str) -> str:
    """Say where a parcel is."""
    return f"parcel of {owner}: desk 2"


class FromFile(Model):
    """Returns the next answer from the file, by the number of answers so far."""

    async def stream(self, messages: Any, *_: Any, **__: Any) -> AsyncIterator[Any]:
        """The events of one answer."""
        said = sum(message["role"] == "assistant" for message in messages)
        made = ANSWERS[said]
        yield {"messageStart": {"role": "assistant"}}
        if "call" in made:
            about = {"name": made["call"], "toolUseId": f"call_{said:08d}"}
            yield {"contentBlockStart": {"start": {"toolUse": about}}}
            given = json.dumps(made["arguments"])
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": given}}}}
        else:
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": made["text"]}}}
        yield {"contentBlockStop": {}}
        stopped = "tool_use" if "call" in made else "end_turn"
        yield {"messageStop": {"stopReason": stopped}}

    def structured_output(self, *_: Any, **__: Any) -> Any:
        """It has none."""
        raise NotImplementedError

    def update_config(self, **_: Any) -> None:
        """There is nothing to set."""

    def get_config(self) -> Any:
        """Nothing is set."""
        return {}


def main(url: str) -> None:
    """Ask the next question, and print the answer and the newest stored messages."""
    with refold.open(url) as store:
        kept = RefoldSessionRepository(store, user_id="ada")
        manager = RepositorySessionManager("parcels", session_repository=kept)
        agent = Agent(
            model=FromFile(),
            tools=[parcel],
            agent_id="desk",
            session_manager=manager,
            hooks=[kept.filter("parcels")],
            callback_handler=None,
        )
        before = [one for one in agent.messages if "text" in one["content"][0]]
        asked = sum(one["role"] == "user" for one in before)
        result = agent(ASKED[asked])
        print(str(result).strip())
        print([one.message for one in kept.list_messages("parcels", "desk")[-4:]])


main(sys.argv[1])
