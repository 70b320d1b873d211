"""How a database commits batches that writers of one process share.

The queue and its lead are the real ones.  The transaction is a model: heads are locked
one after another, the process may die in between, then everything appears at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from refold.adapters.rows import Batch, Moved, Wrote
from refold.adapters.sql.database import GroupCommit, Result
from refold.domain.errors import Erased, StoreUnavailable
from tests.simulation.rows import Rows
from tests.simulation.scheduler import Process, Scheduler

if TYPE_CHECKING:
    from tests.simulation.world import World


class Committing:
    """The writes of one process; ``step`` runs one as a step at which faults occur."""

    queue: type[GroupCommit] = GroupCommit

    def __init__(
        self,
        world: World,
        process: Process,
        inner: Rows,
        step: Callable[..., Any],
    ) -> None:
        self.world = world
        self.process = process
        self.inner = inner
        self._step = step
        self.group = self.queue(self.write_group)

    def write_group(self, batches: Sequence[Batch]) -> list[Result]:
        """Write as the engines do: together, or each batch alone if that failed."""
        if len(batches) == 1:
            return [self._alone(batches[0])]
        try:
            outcomes: list[Result] = self._step(
                "write_group", lambda group: self._together(group), list(batches)
            )
        except StoreUnavailable:
            return [self._alone(batch) for batch in batches]
        return outcomes

    def _alone(self, batch: Batch) -> Result:
        def write() -> Result:
            self.world.unlocked(batch.stream)
            return self.world.wrote(batch, self.written(batch))

        try:
            outcome: Result = self._step("write", write)
        except StoreUnavailable as error:
            return error
        return outcome

    def _together(self, batches: Sequence[Batch]) -> list[Result]:
        with ExitStack() as locks:
            for place in self.order(batches):
                locks.enter_context(self.world.locked(place))
                self.world.scheduler.pause()
                if self.world.fate().startswith("dies"):
                    self.world.say("dies between two statements of a group")
                    self.world.die(self.process)
            outcomes = self.commit(batches)
        for batch, outcome in zip(batches, outcomes, strict=True):
            self._check(batch, outcome)
            self.world.wrote(batch, outcome)
        return outcomes

    def order(self, batches: Sequence[Batch]) -> list[Any]:
        """Return the sessions in the order in which their heads are locked."""
        return sorted({batch.stream.main for batch in batches})

    def commit(self, batches: Sequence[Batch]) -> list[Result]:
        """Commit everything at once; a batch that fails has its own outcome."""
        return [self.written(batch) for batch in batches]

    def written(self, batch: Batch) -> Result:
        """Write a batch, unless an attempt with a lost answer already did.

        If no head exists that could be marked, the record of the erasure refuses.
        """
        if self.is_there(batch):
            return Wrote(batch.head)
        if self.inner.head_row(batch.stream) is None:
            user_id = batch.stream.user_id
            if self.world.erasures.refuses_new(user_id):
                return Erased(f"user {user_id!r}")
        return self.inner.write(batch)

    def is_there(self, batch: Batch) -> bool:
        """Whether exactly these rows exist: they are found by their hash."""
        rows = self.inner.select_events(batch.stream, gt=batch.expected_seq)
        last = len(batch.events) - 1
        return len(rows) > last and rows[last].hash == batch.events[-1].hash

    def _check(self, batch: Batch, outcome: Result) -> None:
        """Check that every refused batch had a reason for its refusal."""
        head = self.inner.head_row(batch.stream)
        if isinstance(outcome, Moved) and head is not None and head.status == "open":
            expected = (batch.expected_seq, batch.expected_hash, batch.head.key_check)
            if (head.seq, head.hash, head.key_check) == expected:
                self.world.violated("one was refused for the conflict of another")


class SimulatedExecutor:
    """``ThreadPoolExecutor`` with tasks of the process that creates it."""

    def __init__(self, scheduler: Scheduler, _size: int, name: str) -> None:
        self._scheduler = scheduler
        self._name = name

    def submit(self, work: Callable[[], object]) -> None:
        owner = self._scheduler.current
        if owner is not None:
            name = f"{owner.process.name} {self._name}"
            self._scheduler.spawn(name, owner.process, work, helper=True)
