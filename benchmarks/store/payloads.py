"""What is stored: prose of 2 KB, the same in each run, and turns of an agent."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator

import refold
from benchmarks.redaction import prose
from refold.domain.events import Event

SIZE = 2_000
TURN, TALK = 20, 4
_TALKS = 40
_POOL = 200
_SEED = 20_260_101
_CALLS = 6


@functools.cache
def _pool() -> tuple[str, ...]:
    rng = random.Random(_SEED)
    return tuple(prose.english(rng, SIZE)[:SIZE] for _ in range(_POOL))


def text(number: int) -> str:
    """About 2 KB of prose that no other number gives."""
    return f"{number}: {_pool()[number % _POOL]}"


def event(number: int) -> refold.UserInput:
    """The text as what a user said."""
    return refold.UserInput(text=text(number))


def turn(number: int, *, size: int = SIZE) -> list[Event]:
    """A turn of twenty events: six calls with results of ``size``, and an answer."""
    events: list[Event] = [refold.UserInput(text=f"look at module {number}, fix it")]
    for call in range(_CALLS):
        id_ = f"c{number}-{call}"
        result = text(number * _CALLS + call)[:size]
        events += [
            refold.AgentResponse(text="I look.", stop_reason="tool_use"),
            refold.ToolCall(
                call_id=id_, tool_name="bash", arguments={"command": f"cat {id_}"}
            ),
            refold.ToolResult(call_id=id_, content=result),
        ]
    return [*events, refold.AgentResponse(text=f"Fixed {number}; the tests pass.")]


def talk(number: int) -> list[Event]:
    """A turn of four events of 2 KB: asked, looked up, answered."""
    said, id_ = text(number), f"t{number}"
    return [
        refold.UserInput(text=said),
        refold.ToolCall(call_id=id_, tool_name="ask", arguments={"query": said}),
        refold.ToolResult(call_id=id_, content=said),
        refold.AgentResponse(text=said),
    ]


def conversation(count: int) -> Iterator[list[Event]]:
    """The turns of about ``count`` events: long ones, and at the end forty short."""
    talks = min(count // 2 // TALK, _TALKS)
    for number in range((count - talks * TALK) // TURN):
        yield turn(number)
    for number in range(talks):
        yield talk(number)


def chunks(count: int, size: int) -> Iterator[range]:
    """The numbers under ``count`` in runs of ``size``."""
    for start in range(0, count, size):
        yield range(start, min(count, start + size))
