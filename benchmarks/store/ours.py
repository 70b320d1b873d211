"""Refold as a contestant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import refold
from benchmarks.redaction.ours import EngineName, redactor
from benchmarks.store import payloads
from benchmarks.store.contestant import Contestant
from benchmarks.store.engines import Engine
from benchmarks.store.figures import OURS
from refold.store import Session

USER = "ada"


def warm_redactor(*, quick: bool) -> refold.redaction.Redactor:
    """The default policy on the fastest engine that is installed, ready to run.

    A store that was opened without one would change to it in the midst of a race.
    quick: on one that does not take seconds to compile.
    """
    names: tuple[EngineName, ...] = ("vectorscan", "stdlib")
    for name in names[quick:]:
        try:
            return redactor(name)
        except ModuleNotFoundError:
            continue
    raise AssertionError("the standard library is always there")


class Refold(Contestant):
    """Its public calls, with the policy that is the default."""

    name = OURS

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.keys = engine.keys()
        if engine.server is None:
            self.url = f"{self.url}?synchronous={engine.level.lower()}"
        self.store = refold.open(self.url, keys=self.keys, redactor=engine.redactor)

    def session(self, name: str) -> Session:
        """The session of that name."""
        return self.store.session(USER, name)

    def append(self, session: str, number: int) -> Any:
        return self.session(session).append(payloads.event(number))

    def append_async(self, session: str, number: int) -> Any:
        """The same for asyncio."""
        return self.session(session).append_async(payloads.event(number))

    def batch(self, session: str, numbers: Sequence[int]) -> Any:
        events = [payloads.event(number) for number in numbers]
        return self.session(session).append(events)

    def read(self, session: str) -> Any:
        return list(self.session(session).pages())

    async def close(self) -> None:
        self.store.close()
