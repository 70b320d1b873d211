"""Threads of which exactly one runs, chosen by a seeded generator; and their clock.

Nothing here waits for real time.  A task yields where it calls ``pause``, which is
before every call of a recorder, a key store or a model.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from threading import Lock, Thread
from typing import Any, Final

START: Final = 1_700_000_000_000_000
SECOND: Final = 1_000_000
MOST_STEPS: Final = 20_000
_STEP: Final = 500  # microseconds that pass between two steps, at most
_LEAP: Final = 200 * SECOND


class Killed(BaseException):
    """The process is dead: its ``finally`` blocks have no more effect."""


class Stuck(Exception):
    """No task can continue, or the tasks never end."""


class Process:
    """A name, and whether it was killed; its tasks share nothing else here."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False


class Task:
    """One thread of a process; it runs only while it has the baton."""

    def __init__(
        self, name: str, process: Process, work: Callable[[], object], *, helper: bool
    ) -> None:
        self.name = name
        self.process = process
        self.work = work
        self.helper = helper
        self.ready: Callable[[], bool] | None = None
        self.wakes_at: int | None = None
        self.done = False
        self.gate = Lock()
        self.gate.acquire()

    def can_run(self, now: int) -> bool:
        """Whether it waits for nothing any more."""
        if self.process.dead or (self.ready is None and self.wakes_at is None):
            return True
        if self.wakes_at is not None and self.wakes_at <= now:
            return True
        return self.ready is not None and self.ready()


class Scheduler:
    """Runs tasks step by step, in an order that follows from ``random`` alone.

    sticky: how likely the same task continues; near 1, others stall for long.
    leaps:  how likely the clock jumps beyond a lease between two steps.
    """

    def __init__(self, random: Random, *, sticky: float, leaps: float) -> None:
        self.random = random
        self._sticky = sticky
        self._leaps = leaps
        self.now = START
        self.steps = 0
        self.errors: list[BaseException] = []
        self._tasks: list[Task] = []
        self._threads: list[Thread] = []
        self._end = Lock()
        self._current: Task | None = None

    def clock(self) -> int:
        """The time in microseconds since 1970; no two readings are the same."""
        self.now += 1
        return self.now

    @property
    def current(self) -> Task | None:
        """The task that has the baton; None before and after a run."""
        return self._current

    def spawn(
        self,
        name: str,
        process: Process,
        work: Callable[[], object],
        *,
        helper: bool = False,
    ) -> Task:
        """Add a task.  The run does not wait for a ``helper``."""
        task = Task(name, process, work, helper=helper)
        self._tasks.append(task)
        thread = Thread(target=self._body, args=(task,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()
        return task

    def run(self) -> None:
        """Run until every task that is not a helper has ended.

        Raises the unexpected error of a task, or Stuck.
        """
        self._end.acquire()
        self._hand_on(self._next())
        self._end.acquire()
        self._end.release()
        self._current = None
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        self._tasks.clear()
        if self.errors:
            raise self.errors[0]

    def pause(
        self, ready: Callable[[], bool] | None = None, *, until: int | None = None
    ) -> None:
        """Let others run; return when ``ready``, or at ``until`` by the clock.

        Outside of a run it returns at once.  Raises Killed if the process died.
        """
        task = self._current
        if task is None:
            return
        if task.process.dead:
            raise Killed
        task.ready = ready
        task.wakes_at = until
        chosen = self._next()
        if chosen is not task:
            self._hand_on(chosen)
            task.gate.acquire()
        task.ready = task.wakes_at = None
        if task.process.dead:
            raise Killed

    def _body(self, task: Task) -> None:
        task.gate.acquire()
        try:
            if not task.process.dead:
                task.work()
        except Killed:
            pass
        except BaseException as error:
            self.errors.append(error)
        task.done = True
        self._hand_on(self._next())

    def _hand_on(self, task: Task | None) -> None:
        self._current = task
        (self._end if task is None else task.gate).release()

    def _next(self) -> Task | None:
        """Return the task that continues; None at the end."""
        if self._over():
            for task in self._tasks:
                task.process.dead = True
        left = [task for task in self._tasks if not task.done]
        if not left:
            return None
        self._let_time_pass(left)
        able = [task for task in left if task.can_run(self.now)]
        if not able:
            self.errors.append(Stuck(f"all wait: {[task.name for task in left]}"))
            return self._next()
        if self._current in able and self.random.random() < self._sticky:
            return self._current
        return self.random.choice(able)

    def _over(self) -> bool:
        self.steps += 1
        if self.steps == MOST_STEPS:
            self.errors.append(Stuck(f"no end after {MOST_STEPS} steps"))
        return bool(self.errors) or all(
            task.done or task.helper for task in self._tasks
        )

    def _let_time_pass(self, left: list[Task]) -> None:
        self.now += self.random.randrange(_STEP)
        if self.random.random() < self._leaps:
            self.now += self.random.randrange(_LEAP)
        times = [task.wakes_at for task in left if task.wakes_at is not None]
        if times and not any(task.can_run(self.now) for task in left):
            self.now = max(self.now, min(times))


class SimulatedEvent:
    """``threading.Event`` on the clock of a scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True

    def wait(self, timeout: float | None = None) -> bool:
        until = None
        if timeout is not None:
            until = self._scheduler.now + int(timeout * SECOND)
        self._scheduler.pause(self.is_set, until=until)
        return self._set


class SimulatedThread:
    """``threading.Thread`` as a task of the process that starts it."""

    def __init__(
        self, scheduler: Scheduler, target: Callable[[], object], name: str, **_: Any
    ) -> None:
        self._scheduler = scheduler
        self._target = target
        self._name = name
        self._task: Task | None = None

    def start(self) -> None:
        owner = self._scheduler.current
        if owner is not None:
            name = f"{owner.name}'s {self._name}"
            self._task = self._scheduler.spawn(
                name, owner.process, self._target, helper=True
            )

    def join(self) -> None:
        task = self._task
        if task is not None:
            self._scheduler.pause(lambda: task.done)
