"""A client of the Claude Agent SDK whose transcripts are mirrored: start it twice.

A program that answers from a file takes the place of Claude Code, so that the example
needs neither Claude Code nor a network.
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
QUESTIONS = ["Is my parcel there? I am ada@example.org.", "Thank you."]
SESSION = "5f0c1c2e-8c1b-4f7e-9a51-0d9f6c6f2a10"
KEY: Any = {"project_key": "-srv-parcels", "session_id": SESSION}
HOME = "/srv/claude"


def parcel(owner: str) -> str:
    """Return where a parcel is."""
    return f"parcel of {owner}: desk 2"


class FromFile(Transport):
    """The program that the SDK drives: it answers, and reports the entries it writes.

    stored_entries: the number of entries in the transcript when the program starts.
    """

    def __init__(self, stored_entries: int) -> None:
        self._stored_entries = stored_entries
        self._new_entries = 0
        self._frames: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    async def connect(self) -> None:
        """Do nothing: the program runs already."""

    async def write(self, data: str) -> None:
        """Take a request of the SDK, or a message of the user."""
        frame = json.loads(data)
        if frame["type"] == "control_request":
            response = {
                "subtype": "success",
                "request_id": frame["request_id"],
                "response": {"hook_on_failure_supported": True},
            }
            self._frames.put_nowait({"type": "control_response", "response": response})
        elif frame["type"] == "user":
            self._answer(frame["message"]["content"])

    def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the frames that the program writes, as they arrive."""
        return self._frames_until_end()

    async def _frames_until_end(self) -> AsyncIterator[dict[str, Any]]:
        while (frame := await self._frames.get()) is not None:
            yield frame

    async def close(self) -> None:
        """End the program."""
        self._frames.put_nowait(None)

    def is_ready(self) -> bool:
        """Whether the program accepts input, which it always does."""
        return True

    async def end_input(self) -> None:
        """Do nothing when no more requests follow."""

    def _answer(self, text: str) -> None:
        """Write the entries of one turn: the first turn calls a tool."""
        self._add_entry("user", {"type": "text", "text": text})
        answers = ANSWERS[2:] if self._stored_entries else ANSWERS[:2]
        for answer in answers:
            if "call" not in answer:
                self._add_entry("assistant", {"type": "text", "text": answer["text"]})
                continue
            arguments = answer["arguments"]
            call_id = "toolu_00001"
            call = {
                "type": "tool_use",
                "id": call_id,
                "name": answer["call"],
                "input": arguments,
            }
            self._add_entry("assistant", call)
            result = {
                "type": "tool_result",
                "tool_use_id": call_id,
                "content": parcel(**arguments),
            }
            self._add_entry("user", result)
        end_of_turn = {
            "type": "result",
            "subtype": "success",
            "is_error": False,
            "duration_ms": 1,
            "duration_api_ms": 1,
            "num_turns": 1,
            "session_id": SESSION,
        }
        self._frames.put_nowait(end_of_turn)

    def _add_entry(self, role: str, block: dict[str, Any]) -> None:
        """Add a message to the transcript, and report it to the SDK."""
        number = self._stored_entries + self._new_entries
        self._new_entries += 1
        message: dict[str, Any] = {"role": role, "content": [block]}
        if role == "assistant":
            message |= {"id": f"msg_{number:08d}", "model": "from-a-file"}
        entry = {
            "type": role,
            "uuid": f"{number:08d}-8c1b-4f7e-9a51-0d9f6c6f2a10",
            "sessionId": SESSION,
            "message": message,
        }
        path = f"{HOME}/projects/{KEY['project_key']}/{SESSION}.jsonl"
        mirror = {"type": "transcript_mirror", "filePath": path, "entries": [entry]}
        self._frames.put_nowait(mirror)
        if role == "assistant":
            frame = {
                "type": role,
                "message": message,
                "parent_tool_use_id": None,
                "session_id": SESSION,
            }
            self._frames.put_nowait(frame)


async def main(url: str) -> None:
    """Ask the next question, and print the answer and the newest stored messages."""
    with refold.open(url) as store:
        mirror = RefoldSessionStore(store, user_id="ada")
        stored = await mirror.load(KEY) or []
        options = ClaudeAgentOptions(
            session_store=mirror, hooks=mirror.hooks, env={"CLAUDE_CONFIG_DIR": HOME}
        )
        program = FromFile(len(stored))
        async with ClaudeSDKClient(options, transport=program) as client:
            question = QUESTIONS[1] if stored else QUESTIONS[0]
            await client.query(await mirror.redacted(question))
            texts = []
            async for message in client.receive_response():
                if isinstance(message, AssistantMessage):
                    for block in message.content:
                        if hasattr(block, "text"):
                            texts.append(block.text)
        print(texts[-1])
        print((await mirror.load(KEY) or [])[-4:])


asyncio.run(main(sys.argv[1]))
