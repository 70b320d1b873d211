"""A client of the Claude Agent SDK whose transcripts are mirrored: start it twice.

A program that answers from a file replaces Anthropic's program, so that this needs
neither that nor a network.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, Transport
from claude_agent_sdk.types import AssistantMessage

import refold
from refold.adapters.frameworks.claude_sdk import RefoldSessionStore

ANSWERS = json.loads((Path(__file__).parent / "sample/answers.json").read_text())
ASKED = ["Is my parcel there? I am ada@example.org.", "Thank you."]
SESSION = "5f0c1c2e-8c1b-4f7e-9a51-0d9f6c6f2a10"
KEY: Any = {"project_key": "-srv-parcels", "session_id": SESSION}
HOME = "/srv/claude"


def parcel(owner: str) -> str:
    """Return where a parcel is."""
    return f"parcel of {owner}: desk 2"


class FromFile(Transport):
    """The program that the SDK drives: it answers, and reports its entries."""

    def __init__(self, known: int) -> None:
        self._written = known
        self._said = 0
        self._frames: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    async def connect(self) -> None:
        """It runs already."""

    async def write(self, data: str) -> None:
        """A request of the SDK, or a user's message."""
        frame = json.loads(data)
        if frame["type"] == "control_request":
            knows = {"hook_on_failure_supported": True}
            response = {"request_id": frame["request_id"], "response": knows}
            response["subtype"] = "success"
            self._frames.put_nowait({"type": "control_response", "response": response})
        elif frame["type"] == "user":
            self._turn(frame["message"]["content"])

    def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        """Yield its frames as they arrive."""
        return self._read()

    async def _read(self) -> AsyncIterator[dict[str, Any]]:
        while (frame := await self._frames.get()) is not None:
            yield frame

    async def close(self) -> None:
        """It ends."""
        self._frames.put_nowait(None)

    def is_ready(self) -> bool:
        """It always is."""
        return True

    async def end_input(self) -> None:
        """No more requests follow."""

    def _turn(self, text: str) -> None:
        self._entry("user", [{"type": "text", "text": text}])
        for made in ANSWERS[:2] if not self._before else ANSWERS[2:]:
            if "call" not in made:
                self._entry("assistant", [{"type": "text", "text": made["text"]}])
                continue
            given = made["arguments"]
            name = "toolu_00001"
            call = {"name": made["call"], "input": given, "id": name}
            self._entry("assistant", [{"type": "tool_use", **call}])
            result = {"tool_use_id": name, "content": parcel(**given)}
            self._entry("user", [{"type": "tool_result", **result}])
        about = {"duration_ms": 1, "duration_api_ms": 1, "num_turns": 1}
        ended = {"type": "result", "subtype": "success", "is_error": False, **about}
        self._frames.put_nowait({**ended, "session_id": SESSION})

    @property
    def _before(self) -> int:
        return self._written - self._said

    def _entry(self, role: str, content: list[dict[str, Any]]) -> None:
        name = f"{self._written:08d}-8c1b-4f7e-9a51-0d9f6c6f2a10"
        message: dict[str, Any] = {"role": role, "content": content}
        if role == "assistant":
            message |= {"id": f"msg_{self._written:08d}", "model": "from-a-file"}
        self._written += 1
        self._said += 1
        entry = {"type": role, "uuid": name, "sessionId": SESSION, "message": message}
        path = f"{HOME}/projects/{KEY['project_key']}/{SESSION}.jsonl"
        mirror = {"type": "transcript_mirror", "filePath": path, "entries": [entry]}
        self._frames.put_nowait(mirror)
        if role == "assistant":
            about = {"parent_tool_use_id": None, "session_id": SESSION}
            self._frames.put_nowait({"type": role, "message": message, **about})


async def main(url: str) -> None:
    """Ask the next question, and print the answer and the newest stored messages."""
    with refold.open(url) as store:
        mirror = RefoldSessionStore(store, user_id="ada")
        known = await mirror.load(KEY) or []
        options = ClaudeAgentOptions(
            session_store=mirror, hooks=mirror.hooks, env={"CLAUDE_CONFIG_DIR": HOME}
        )
        program = FromFile(len(known))
        async with ClaudeSDKClient(options, transport=program) as client:
            await client.query(await mirror.redacted(ASKED[1 if known else 0]))
            said = [
                block.text
                async for message in client.receive_response()
                if isinstance(message, AssistantMessage)
                for block in message.content
                if hasattr(block, "text")
            ]
        print(said[-1])
        print((await mirror.load(KEY) or [])[-4:])


asyncio.run(main(sys.argv[1]))
