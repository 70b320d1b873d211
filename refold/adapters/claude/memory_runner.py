"""The memory tool for the tool runner of the Anthropic SDK."""

from __future__ import annotations

import asyncio

from anthropic import BaseModel
from anthropic.lib.tools import ToolError
from anthropic.tools.memory import (
    BetaAbstractMemoryTool,
    BetaAsyncAbstractMemoryTool,
)

from refold.adapters.claude.answers import plain
from refold.adapters.claude.memory_files import MemoryFiles


class MemoryTool(BetaAbstractMemoryTool):
    """``client.beta.messages.run_tools(tools=[MemoryTool(files)], …)``.

    The runner makes the calls: they are recorded by who records its messages.
    """

    def __init__(self, files: MemoryFiles) -> None:
        super().__init__()
        self._files = files

    def call(self, input: object) -> str:  # noqa: A002  # the SDK's name
        return _said(self._files, input)

    def _command(self, command: BaseModel) -> str:
        return self.call(command)

    view = create = str_replace = insert = delete = rename = _command


class AsyncMemoryTool(BetaAsyncAbstractMemoryTool):
    """The same for ``anthropic.AsyncAnthropic``; the loop is never blocked."""

    def __init__(self, files: MemoryFiles) -> None:
        super().__init__()
        self._files = files

    async def call(self, input: object) -> str:  # noqa: A002  # the SDK's name
        return await asyncio.to_thread(_said, self._files, input)

    async def _command(self, command: BaseModel) -> str:
        return await self.call(command)

    view = create = str_replace = insert = delete = rename = _command


def _said(files: MemoryFiles, command: object) -> str:
    """What the model is told.  Raises ToolError, which the runner tells it too."""
    done = files.run(plain(command))
    if done.is_error:
        raise ToolError(done.text)
    return done.text
