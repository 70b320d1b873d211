"""The plan of a soak: its writes and its disturbances, all derived from the seed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Final, Literal, NamedTuple, Self, TypeAlias

import refold
from refold.domain.events import Event

USER: Final = "ada"
_MOST: Final = 100  # events in a batch
_ALONE: Final = 0.5  # how many of all appends are of one event
Harm: TypeAlias = Literal["kill", "cut", "restart", "crash"]

_OFTEN: Final[tuple[Harm, ...]] = ("kill", "cut")


class Batch(NamedTuple):
    """Events that one writer appends at once; ``number`` counts from 1."""

    writer: int
    number: int
    session_id: str
    size: int

    @property
    def key(self) -> str:
        """Its idempotency key: a retry returns the receipt of the first attempt."""
        return f"{self.writer}.{self.number}"

    def events(self) -> list[Event]:
        """Questions and answers in turn; each begins with the key and its place."""
        texts = (f"{self.key}.{place} " + "word " * 24 for place in range(self.size))
        return [
            refold.AgentResponse(text=text)
            if place % 2
            else refold.UserInput(text=text)
            for place, text in enumerate(texts)
        ]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much, by how many.  About three fifths of the processes write."""

    seed: int = 1
    events: int = 2_000_000
    sessions: int = 500
    processes: int = 8

    def __post_init__(self) -> None:
        if min(self.events // 100, self.sessions, self.processes - 3) < 1:
            raise ValueError("a soak needs 100 events, a session and 4 processes")

    @property
    def writers(self) -> int:
        return max(2, self.processes * 3 // 5)

    @property
    def projectors(self) -> int:
        return self.processes - self.writers

    @property
    def spec(self) -> str:
        """The strategy that is compacted by: some forty compactions a session."""
        turns = max(12, min(100, self.events // self.sessions // 80))
        window = f"full_turns=4,cached_turns={turns}"
        return f"turn_window:{window},session_memory_tokens=1500"

    def batches(self, writer: int) -> Iterator[Batch]:
        """Yield the batches of this writer, in order."""
        random = Random(f"{self.seed} {writer}")
        left = self.events // self.writers
        left += writer < self.events % self.writers
        most = max(2, min(_MOST, left // 20))
        number = 0
        while left:
            number += 1
            size = min(left, 2 * random.randint(1, most // 2))
            if random.random() < _ALONE:
                size = 1
            session_id = f"s-{random.randrange(self.sessions):04}"
            yield Batch(writer, number, session_id, size)
            left -= size

    def harms(self) -> list[tuple[int, Harm]]:
        """After how many acknowledged events what is done, in order.

        The server is restarted twice, the first time without a warning.
        """
        random = Random(f"{self.seed} harms")
        often = max(4, min(80, self.events // 25_000))
        soon = self.events * 95 // 100
        harms = [
            (random.randrange(soon), kind) for kind in _OFTEN for _ in range(often)
        ]
        third = self.events // 3
        return sorted([*harms, (third, "crash"), (2 * third, "restart")])

    def save(self, path: Path) -> None:
        """Write it where processes read it."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> Self:
        """The plan that was saved there."""
        return cls(**json.loads(path.read_text()))


class Acknowledged(NamedTuple):
    """A line of a writer's journal: the receipt of one batch."""

    number: int
    session_id: str
    first_seq: int
    last_seq: int
    hash: str
    duplicate: bool


def journal(path: Path) -> list[Acknowledged]:
    """The whole lines of a journal; its writer may have died in the last one."""
    if not path.exists():
        return []
    lines = path.read_text().split("\n")[:-1]
    return [Acknowledged(*json.loads(line)) for line in lines]
