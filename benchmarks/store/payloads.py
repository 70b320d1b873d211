"""The stored payloads: prose of 2 KB, the same in each run, and turns of an agent."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator

from pydantic import JsonValue

import refold
from benchmarks.redaction import prose
from refold.domain.events import Event, JsonObject

SIZE = 2_000
TURN = 20
TALK = 4
_TALKS = 40
_POOL = 200
_SEED = 20_260_101
_CALLS = 6


@functools.cache
def _pool() -> tuple[str, ...]:
    rng = random.Random(_SEED)
    return tuple(prose.english(rng, SIZE)[:SIZE] for _ in range(_POOL))


def text(number: int) -> str:
    """Return about 2 KB of prose that no other number gives."""
    return f"{number}: {_pool()[number % _POOL]}"


def event(number: int) -> refold.UserInput:
    """Return the text as a user's input."""
    return refold.UserInput(text=text(number))


def with_mail(number: int) -> refold.UserInput:
    """Prose of 2 KB with an address in it."""
    words = text(number)
    mail = f"ada{number}@mail{number % 7}.example.com"
    return refold.UserInput(text=f"{words[:900]} write to {mail} {words[900:]}")


def result(number: int) -> JsonObject:
    """Return a typical tool result: 1.5 KB of JSON, nine objects of seven keys."""
    rng = random.Random(number)
    offers: list[JsonValue] = [
        {
            "id": f"FL{rng.randrange(100, 999)}",
            "origin": rng.choice(("SFO", "JFK", "LHR", "PEK")),
            "stops": rng.randrange(3),
            "price": round(rng.uniform(80, 900), 2),
            "available": rng.random() < 0.5,
            "class": rng.choice(("economy", "business")),
            "note": _pool()[rng.randrange(_POOL)][:70],
        }
        for _ in range(9)
    ]
    return {"query": f"flights {number}", "total": len(offers), "results": offers}


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
    """Return a turn of four events of 2 KB: question, call, result, answer."""
    words = text(number)
    id_ = f"t{number}"
    return [
        refold.UserInput(text=words),
        refold.ToolCall(call_id=id_, tool_name="ask", arguments={"query": words}),
        refold.ToolResult(call_id=id_, content=words),
        refold.AgentResponse(text=words),
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
