"""The shared state of simulated processes: rows, keys, faults, and observations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Literal, NoReturn, TypeAlias, TypeVar, cast

from refold.adapters.keys.master import LocalMasterKey
from refold.adapters.keys.ring import KeyRing
from refold.adapters.log import EncryptedLog
from refold.adapters.rows import Batch, Wrote
from refold.adapters.sql.keystore import SqlKeyStore
from refold.adapters.sql.recorder import Recorder
from refold.domain.errors import (
    Erased,
    KeyUnavailable,
    SessionNotFound,
    StoreUnavailable,
)
from refold.domain.ids import StreamId
from refold.redaction.guard import Limits
from refold.redaction.redactor import Redactor
from refold.store import SessionStore
from tests.simulation.committing import Committing
from tests.simulation.erasing import Erasures
from tests.simulation.rows import Keys, Rows
from tests.simulation.scheduler import Killed, Process, Scheduler, Task
from tests.simulation.stepping import Stepping, SteppingRecorder
from tests.support.redacting import unaware

Fate: TypeAlias = Literal["", "refused", "lost", "dies before", "dies after"]
_FAULTS: Final[tuple[Fate, ...]] = ("refused", "lost", "dies before", "dies after")
T = TypeVar("T")
_MASTER: Final = LocalMasterKey(bytes(32), origin="a simulation")
_UNAWARE: Final = unaware()
_SMALL: Final = Limits(leaf_bytes=1024)  # so that a short text is enough for a blob


class Violated(AssertionError):
    """A broken promise; the message says which, and where."""


@dataclass(slots=True)
class Term:
    """The time for which one owner has a lease, and its result.

    ``clean``: given back while it was held, without a fault in between.
    """

    stream: StreamId
    answers: int = 0
    summaries: int = 0
    released: bool = False
    hurt: bool = False

    @property
    def clean(self) -> bool:
        return self.released and not self.hurt


class World:
    """The shared state of one history."""

    def __init__(
        self,
        seed: int,
        recorder: Rows,
        keys: Keys | None = None,
        committing: type[Committing] = Committing,
        erasures: type[Erasures] = Erasures,
    ) -> None:
        self.random = Random(seed)
        self.scheduler = Scheduler(
            self.random,
            sticky=self.random.choice((0.0, 0.5, 0.9)),
            leaps=self.random.choice((0.0, 0.01, 0.05)),
        )
        self.faults = self.random.choice((0.0, 0.01, 0.04))
        self.recorder = recorder
        self.keys = keys or Keys()
        self.committing = committing
        self.erasures = erasures(recorder, self.keys, _MASTER)
        self.trace: list[tuple[Any, ...]] = []
        self.terms: list[Term] = []
        self.rewritten: list[dict[StreamId, int]] = []
        self.on_death: Callable[[Process], None] = lambda _: None
        self.progress: Callable[[], int] = lambda: 0
        self._holding: dict[Task, Term] = {}
        self._asking: dict[int, tuple[Batch, Task | None]] = {}
        self._locked: dict[tuple[str, str], Task | None] = {}
        self._stores: dict[tuple[Process, Redactor], SessionStore] = {}
        self._processes = 0

    def process(self) -> Process:
        """Create a new process with its own name."""
        self._processes += 1
        return Process(f"p{self._processes}")

    def store(self, process: Process, redactor: Redactor = _UNAWARE) -> SessionStore:
        """Open the store as this process does, with empty caches."""
        opened = self._stores.get((process, redactor))
        if opened is not None:
            return opened
        recorder = cast("Recorder", SteppingRecorder(self, process, self.recorder))
        keys = cast("SqlKeyStore", Stepping(self, process, self.keys, KeyUnavailable))
        log = EncryptedLog(recorder, _opened(keys))
        store = SessionStore(log, redactor, _SMALL, clock=self.scheduler.clock)
        return self._stores.setdefault((process, redactor), store)

    def ring(self) -> KeyRing:
        """Return the keys as a process has them that opens the store at the end."""
        return KeyRing(self.keys, _MASTER)

    def say(self, *words: Any) -> None:
        """Add words to the trace."""
        task = self.scheduler.current
        self.trace.append((self.scheduler.now, task.name if task else "-", *words))

    def fate(self) -> Fate:
        """Choose the outcome of the next call; always success outside of a run."""
        if self.scheduler.current is None or self.random.random() >= self.faults:
            return ""
        return self.random.choice(_FAULTS)

    def die(self, process: Process) -> NoReturn:
        """Kill the caller's process and free its locks."""
        for place, task in self._locked.items():
            if task is not None and task.process is process:
                self._locked[place] = None
        self.hurt()
        process.dead = True
        self.on_death(process)
        raise Killed

    @contextmanager
    def locked(self, stream: StreamId) -> Iterator[None]:
        """Keep others from changing the session, like the lock on its heads."""
        place = stream[:2]
        task = self.scheduler.current
        self.unlocked(stream)
        self._locked[place] = task
        try:
            yield
        finally:
            if self._locked[place] is task:
                self._locked[place] = None

    def unlocked(self, stream: StreamId) -> None:
        """Wait until no lock keeps others from changing the session."""
        place = stream[:2]
        if self._locked.get(place) not in (None, self.scheduler.current):
            self.scheduler.pause(lambda: self._locked.get(place) is None)

    def hurt(self) -> None:
        """Record a fault in the current task: its lease does not count as clean."""
        term = self._term()
        if term is not None:
            term.hurt = True

    def took(self, stream: StreamId) -> None:
        """Record that the current task has the lease of ``stream``."""
        task = self.scheduler.current
        if task is not None:
            self._holding[task] = Term(stream)
            self.terms.append(self._holding[task])

    def gave_back(self) -> None:
        """Record that the current task gave back a lease."""
        task = self.scheduler.current
        if task is not None and task in self._holding:
            self._holding.pop(task).released = True

    def answered(self) -> None:
        """Record that a model wrote a summary for the current task."""
        term = self._term()
        if term is None:
            self.violated("a model was asked without a lease")
        else:
            term.answers += 1

    def asks(self, batch: Batch) -> None:
        """Record that the current task wants this batch written, by any thread."""
        self._asking[id(batch)] = batch, self.scheduler.current

    def wrote(self, batch: Batch, outcome: T) -> T:
        """Record a written batch; a summary in it was requested from a model."""
        _, task = self._asking.pop(id(batch), (batch, self.scheduler.current))
        if not isinstance(outcome, Wrote):
            return outcome
        if self.erasures.refuses(batch.stream.user_id):
            self.violated(f"{batch.stream} was written though its user is erased")
        term = self._holding.get(task) if task else None
        if term is not None and batch.stream == term.stream:
            term.summaries += sum(e.header.type == "summary" for e in batch.events)
        events = [event.header.type for event in batch.events]
        self.say("wrote", str(batch.stream)[:12], batch.head.seq, events)
        return outcome

    def _term(self) -> Term | None:
        task = self.scheduler.current
        return self._holding.get(task) if task else None

    def tried(self, work: Callable[[], object]) -> bool:
        """Run the work, and return whether it finished without an expected error."""
        try:
            work()
        except (StoreUnavailable, KeyUnavailable, SessionNotFound, Erased):
            return False
        return True

    def violated(self, promise: str) -> None:
        """End the history with an error that nothing catches on the way."""
        self.scheduler.errors.append(Violated(promise))


def _opened(keys: SqlKeyStore) -> KeyRing:
    while True:
        try:
            return KeyRing(keys, _MASTER)
        except KeyUnavailable:
            continue
