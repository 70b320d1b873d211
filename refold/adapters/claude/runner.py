"""Runners: ask a model through a capture until it calls no more tools, and run them."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from inspect import isawaitable, iscoroutinefunction
from typing import TYPE_CHECKING, Any

from anthropic.lib.tools import ToolError

from refold.domain.errors import InvalidConfiguration
from refold.domain.events import JsonObject

if TYPE_CHECKING:
    from anthropic.types import Message


class _Runner:
    """The tools of a runner, and the number of messages that it may ask for.

    content:   the user's message in the first request.
    arguments: the other arguments of ``create``.
    """

    def __init__(
        self,
        content: Any,
        tools: Sequence[Any],
        max_iterations: int | None,
        arguments: Mapping[str, Any],
    ) -> None:
        if max_iterations is not None and max_iterations < 1:
            raise InvalidConfiguration("max_iterations must be at least 1")
        if arguments.get("stream") or (arguments.get("options") or {}).get("stream"):
            raise InvalidConfiguration(
                "stream: a runner gives whole messages; call stream for each of them, "
                "with the results of the calls in its content"
            )
        self._content = content
        self._max_iterations = max_iterations
        self._runnable: dict[str, Any] = {}
        definitions: list[JsonObject] = []
        for tool in tools:
            if isinstance(tool, Mapping):
                definitions.append(dict(tool))
                continue
            definition = _definition_of(tool)
            definitions.append(definition)
            self._runnable[str(definition["name"])] = tool
        self._arguments: dict[str, Any] = {**arguments, "tools": definitions}

    def _continues(self, message: Any, count: int) -> bool:
        """Whether another request follows this message."""
        if self._max_iterations is not None and count >= self._max_iterations:
            return False
        if message.stop_reason == "pause_turn":
            return True
        return message.stop_reason == "tool_use" and bool(_calls(message))


def _definition_of(tool: Any) -> JsonObject:
    """Return the definition of a tool that can be run.

    Raises InvalidConfiguration for a tool that cannot be run, or has no name.
    """
    to_dict = getattr(tool, "to_dict", None)
    if to_dict is None or not callable(getattr(tool, "call", None)):
        raise InvalidConfiguration(
            f"tools: {type(tool).__name__} is not a definition and has no to_dict and "
            "call: decorate a function with beta_tool"
        )
    definition: JsonObject = dict(to_dict())
    if not isinstance(definition.get("name"), str):
        raise InvalidConfiguration("tools: a tool that is run needs a name")
    return definition


def _calls(message: Any) -> list[Any]:
    """Return the blocks of a message that call tools."""
    return [block for block in message.content if block.type == "tool_use"]


def _result(block: Any, content: Any, *, is_error: bool = False) -> JsonObject:
    """Return the result of a call as a block of a user's message."""
    if not isinstance(content, str):
        content = list(content)
    result: JsonObject = {
        "type": "tool_result",
        "tool_use_id": block.id,
        "content": content,
    }
    if is_error:
        result["is_error"] = True
    return result


def _failure(block: Any, error: Exception) -> JsonObject:
    """Return the result of a call whose tool raised an error."""
    content: Any = repr(error)
    if isinstance(error, ToolError):
        content = error.content
    return _result(block, content, is_error=True)


def _missing(block: Any) -> JsonObject:
    """Return the result of a call of a tool that the runner does not have."""
    return _result(block, f"There is no tool {block.name!r}.", is_error=True)


class ToolRunner(_Runner):
    """The messages of a model that calls tools; each is one step of an iteration.

    create: the method of a capture.
    """

    def __init__(
        self,
        create: Callable[..., Message],
        content: Any,
        tools: Sequence[Any],
        max_iterations: int | None,
        arguments: Mapping[str, Any],
    ) -> None:
        super().__init__(content, tools, max_iterations, arguments)
        for name, tool in self._runnable.items():
            if iscoroutinefunction(tool.call):
                raise InvalidConfiguration(
                    f"tools: {name} is a coroutine, which an AsyncCapture runs"
                )
        self._create = create

    def __iter__(self) -> Iterator[Message]:
        content = self._content
        count = 0
        while True:
            message = self._create(content, **self._arguments)
            count += 1
            yield message
            if not self._continues(message, count):
                return
            content = [self._run(block) for block in _calls(message)] or None

    def until_done(self) -> Message:
        """Run to the end, and return the last message."""
        *_, last = self
        return last

    def _run(self, block: Any) -> JsonObject:
        tool = self._runnable.get(block.name)
        if tool is None:
            return _missing(block)
        try:
            return _result(block, tool.call(block.input))
        except Exception as error:
            return _failure(block, error)


class AsyncToolRunner(_Runner):
    """``ToolRunner`` for asyncio."""

    def __init__(
        self,
        create: Callable[..., Awaitable[Message]],
        content: Any,
        tools: Sequence[Any],
        max_iterations: int | None,
        arguments: Mapping[str, Any],
    ) -> None:
        super().__init__(content, tools, max_iterations, arguments)
        self._create = create

    async def __aiter__(self) -> AsyncIterator[Message]:
        content = self._content
        count = 0
        while True:
            message = await self._create(content, **self._arguments)
            count += 1
            yield message
            if not self._continues(message, count):
                return
            content = [await self._run(block) for block in _calls(message)] or None

    async def until_done(self) -> Message:
        """Run to the end, and return the last message."""
        async for message in self:
            last = message
        return last

    async def _run(self, block: Any) -> JsonObject:
        tool = self._runnable.get(block.name)
        if tool is None:
            return _missing(block)
        try:
            if iscoroutinefunction(tool.call):
                content = await tool.call(block.input)
            else:
                content = await asyncio.to_thread(tool.call, block.input)
                if isawaitable(content):
                    content = await content
            return _result(block, content)
        except Exception as error:
            return _failure(block, error)
