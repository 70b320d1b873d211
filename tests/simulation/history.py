"""One history, determined by its seed alone: who does what, and the outcome."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from random import Random
from typing import Literal, TypeAlias
from unittest.mock import patch

from refold.adapters.sql import database as grouping
from refold.store import compactions as leases
from tests.simulation import promises
from tests.simulation.committing import Committing, SimulatedExecutor
from tests.simulation.erasing import Erasing, Erasures
from tests.simulation.roles import (
    SPECS,
    USER,
    Compacting,
    Forking,
    Reading,
    Rebuilding,
    Redacting,
    Request,
    Role,
    Writing,
)
from tests.simulation.rows import Keys, Rows
from tests.simulation.scheduler import (
    Process,
    Scheduler,
    SimulatedEvent,
    SimulatedThread,
)
from tests.simulation.world import World

Matter: TypeAlias = Literal["", "groups", "erasure", "rewriting"]


class History:
    """A history: some sessions, and roles in two to four processes.

    ``full_of`` ensures something that is otherwise rare, for a rule that only that
    tests.
    """

    def __init__(
        self,
        seed: int,
        recorder: Callable[[], Rows] = Rows,
        keys: Callable[[], Keys] = Keys,
        committing: type[Committing] = Committing,
        erasures: type[Erasures] = Erasures,
        *,
        full_of: Matter = "",
    ) -> None:
        self.world = World(seed, recorder(), keys(), committing, erasures)
        random = self.world.random
        more = Random(f"{seed} more")
        several = random.choice((1, 1, 2)) > 1 or full_of == "groups"
        self.sessions = ["s-1", "s-2"] if several else ["s-1"]
        self._crowds = full_of == "groups"
        self.spec = random.choice(SPECS)
        self.costs = random.random() < 0.7
        self.writers = list(self._writers(random))
        self.requests = [request for by in self.writers for request in by.requests]
        self._left: dict[Process, list[Role]] = {}
        roles: list[Role] = [*self.writers, *self._others(random)]
        self.forks = list(self._forks(more))
        roles += self.forks
        if more.random() < 0.2 or full_of == "erasure":
            roles += self._erased(more)
        if full_of == "rewriting":
            roles += self._rewritten(more)
        processes = [self.world.process() for _ in range(random.randint(2, 4))]
        if more.random() < 0.5 or self._crowds:
            self._crowd(processes, more)
        if self._crowds:
            self.world.faults = 0.1
        for role in roles:
            self._left.setdefault(random.choice(processes), []).append(role)
        self.world.on_death = self._restart
        self.world.progress = lambda: sum(writer.done for writer in self.writers)

    def _forks(self, random: Random) -> Iterator[Forking]:
        """One role forks a session, or two race for the name of the fork."""
        parent = random.choice(self.sessions)
        total = len(self.requests)
        for number in range(random.choice((0, 0, 0, 1, 2))):
            token = f"f{number}r"
            wanted = [self._request(random, f"{token}{n}.", "f-1") for n in (0, 1)]
            wanted = [request for request in wanted if request.kind != "call"]
            if wanted:
                self.requests += wanted
                writing = Writing(f"writer of fork {number}", wanted)
                rounds = sorted(random.randint(1, total) for _ in range(3))
                yield Forking(f"forker {number}", parent, writing, rounds)

    def _erased(self, random: Random) -> Iterator[Role]:
        """One user is erased while that user and another one write."""
        total = sum(len(writer.requests) for writer in self.writers)
        wanted = [self._request(random, f"b{n}.", "b-1") for n in range(3)]
        others = Writing(
            "writer of another",
            [request for request in wanted if request.kind != "call"],
        )
        self.requests += others.requests
        self.writers.append(others)
        yield others
        after = random.randint(1, total)
        yield Erasing("eraser", USER, after)
        for number in range(2):  # in progress when the heads are marked
            name = f"late compactor {number}"
            at = random.choice(self.sessions)
            rounds = [max(1, after - number)] * 3
            yield Compacting(name, at, self.spec, self.costs, rounds)

    def _rewritten(self, random: Random) -> Iterator[Role]:
        """Sessions are redacted again and again while others write and read them."""
        total = sum(len(writer.requests) for writer in self.writers)
        moments = range(1, total + 1)
        for number in range(2):
            yield Redacting(f"another redactor {number}", random.choices(moments, k=4))
        for number in range(3):
            name = f"another reader {number}"
            at = random.choice(self.sessions)
            rounds = sorted(random.choices(moments, k=4))
            yield Reading(name, at, self.spec, rounds, self.acknowledged)
            yield Compacting(name, at, self.spec, self.costs, list(rounds))

    def _crowd(self, processes: list[Process], random: Random) -> None:
        """Few processes with much work: their appends share commits."""
        del processes[random.choice((1, 2, 2)) :]
        for writer in self.writers:
            writer.soon = random.random() < 0.3

    def _writers(self, random: Random) -> Iterator[Writing]:
        count = random.choice((1, 2, 2, 3, 3, 3, 7)) + 6 * self._crowds
        for number in range(count):
            session_id = random.choice(self.sessions)
            requests: list[Request] = []
            for place in range(random.randint(2, 5) if count < 7 else 2):
                requests.append(
                    self._request(random, f"w{number}r{place}.", session_id)
                )
                if requests[-1].kind == "call":
                    requests.append(self._answer(requests[-1]))
            yield Writing(f"writer {number}", requests)

    @staticmethod
    def _answer(call: Request) -> Request:
        token = f"{call.token}a."
        key = call.key and token
        return replace(call, token=token, kind="answer", key=key, receipts=[])

    @staticmethod
    def _request(random: Random, token: str, session_id: str) -> Request:
        kinds = ("turn",) * 6 + ("question", "secret", "secret", "call")
        kind = random.choice(kinds) if random.random() > 0.01 else "close"
        if random.random() < 0.08:
            kind = "long"
        keyed = random.random() < 0.7
        return Request(
            token,
            session_id,
            kind,
            key=token if keyed else None,
            call_id=token,
            checked=random.random() < 0.3,
            again=keyed and random.random() < 0.2,
        )

    def _others(self, random: Random) -> Iterator[Role]:
        at = partial(random.choice, self.sessions)
        spec = self.spec
        costs = self.costs

        total = len(self.requests)
        # Few moments, so that roles that do not write often coincide.
        moments = [random.randint(1, total) for _ in range(random.choice((1, 2, 4)))]

        def rounds(most: int) -> list[int]:
            return sorted(random.choices(moments, k=random.randint(1, most)))

        for number in range(random.choice((0, 1, 1, 2))):
            yield Compacting(f"compactor {number}", at(), spec, costs, rounds(3))
        for number in range(random.choice((0, 0, 1, 2))):
            yield Rebuilding(f"rebuilder {number}", at(), spec, costs, rounds(2))
        for number in range(random.choice((0, 1, 1, 2))):
            name = f"reader {number}"
            acknowledged = self.acknowledged
            yield Reading(name, at(), spec, rounds(3), acknowledged)
        if random.random() < 0.4:
            yield Redacting("redactor", rounds(2))

    def acknowledged(self, session_id: str) -> int:
        """The highest seq of the session that any client received."""
        receipts = [
            receipt
            for request in self.requests
            if request.session_id == session_id
            for receipt in request.receipts
        ]
        return max((receipt.last_seq for receipt in receipts), default=0)

    def run(self) -> None:
        """Run the history, and check its result.

        Raises Violated, or an unexpected error.
        """
        with _simulated(self.world.scheduler):
            for process, roles in list(self._left.items()):
                self._start(process, roles)
            self.world.scheduler.run()
        promises.check(self)

    def _restart(self, died: Process) -> None:
        """Continue the work of a dead process in another one."""
        process = self.world.process()
        self._left[process] = self._left.pop(died)
        self._start(process, self._left[process])

    def _start(self, process: Process, roles: list[Role]) -> None:
        for role in roles:
            work = partial(role.run, self.world, process)
            self.world.scheduler.spawn(f"{process.name} {role.name}", process, work)


@contextmanager
def _simulated(scheduler: Scheduler) -> Iterator[None]:
    """Make waiting threads and clocks use the scheduler, and log no refusals."""
    with (
        patch.object(leases, "Signal", partial(SimulatedEvent, scheduler)),
        patch.object(grouping, "Event", partial(SimulatedEvent, scheduler)),
        patch.object(
            grouping, "ThreadPoolExecutor", partial(SimulatedExecutor, scheduler)
        ),
        patch.object(leases, "Thread", partial(SimulatedThread, scheduler)),
        patch.object(logging.getLogger("refold"), "disabled", new=True),
    ):
        yield
