"""What simulated processes share: the rows, the keys, the faults, and what was seen.

A process sees the shared recorder through a ``Stepping``: every call is a step, before
which others run; it may fail before it takes effect, or after (the acknowledgement is
lost), and the process may die on either side of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Literal, NoReturn, TypeAlias, cast

from refold.adapters.keys import KeyRing, KeyStore, LocalMasterKey
from refold.adapters.log import SealedLog
from refold.adapters.memory import MemoryKeyStore, MemoryRecorder
from refold.adapters.recorder import (
    Batch,
    HeadRow,
    Recorder,
    Rewrite,
    ViewRow,
    WriteOutcome,
    Wrote,
)
from refold.domain.errors import KeyUnavailable, RefoldError, StoreUnavailable
from refold.domain.ids import StreamId
from refold.redaction.engine import Redactor
from refold.redaction.guard import Limits
from refold.store import SessionStore
from tests.simulation.scheduler import Killed, Process, Scheduler, Task
from tests.support.redacting import unaware

Fate: TypeAlias = Literal["", "refused", "lost", "dies before", "dies after"]
_FAULTS: Final[tuple[Fate, ...]] = ("refused", "lost", "dies before", "dies after")
_MASTER: Final = LocalMasterKey(bytes(32), origin="a simulation")
_UNAWARE: Final = unaware()


class Violated(AssertionError):
    """A promise was broken; the message says which, and where."""


@dataclass(slots=True)
class Term:
    """The time for which one owner has a lease, and what came of it.

    ``clean``: given back while it was held, with no fault in between.
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
        self, seed: int, recorder: MemoryRecorder, keys: MemoryKeyStore | None = None
    ) -> None:
        self.random = Random(seed)
        self.scheduler = Scheduler(
            self.random,
            sticky=self.random.choice((0.0, 0.5, 0.9)),
            leaps=self.random.choice((0.0, 0.01, 0.05)),
        )
        self.faults = self.random.choice((0.0, 0.01, 0.04))
        self.recorder, self.keys = recorder, keys or MemoryKeyStore()
        # One thread runs at a time, and one that stands still must not lock others out.
        recorder._lock = cast("Any", nullcontext())
        self.trace: list[tuple[Any, ...]] = []
        self.terms: list[Term] = []
        self.rewritten: list[dict[StreamId, int]] = []
        self.on_death: Callable[[Process], None] = lambda _: None
        self.progress: Callable[[], int] = lambda: 0
        self._holding: dict[Task, Term] = {}
        self._locked: dict[tuple[str, str], Task | None] = {}
        self._stores: dict[tuple[Process, Redactor], SessionStore] = {}
        self._processes = 0

    def process(self) -> Process:
        """A new process, with a name of its own."""
        self._processes += 1
        return Process(f"p{self._processes}")

    def store(self, process: Process, redactor: Redactor = _UNAWARE) -> SessionStore:
        """The store as this process opened it, when its caches were empty."""
        known = self._stores.get((process, redactor))
        if known is not None:
            return known
        recorder = cast("Recorder", SteppingRecorder(self, process, self.recorder))
        keys = cast("KeyStore", Stepping(self, process, self.keys, KeyUnavailable))
        log = SealedLog(recorder, _opened(keys))
        store = SessionStore(log, redactor, Limits(), clock=self.scheduler.clock)
        return self._stores.setdefault((process, redactor), store)

    def say(self, *what: Any) -> None:
        """Put it into the trace."""
        task = self.scheduler.current
        self.trace.append((self.scheduler.now, task.name if task else "-", *what))

    def fate(self) -> Fate:
        """What is to become of the next call; always well outside of a run."""
        if self.scheduler.current is None or self.random.random() >= self.faults:
            return ""
        return self.random.choice(_FAULTS)

    def die(self, process: Process) -> NoReturn:
        """Kill the process, which is the caller's: its locks are free again."""
        for place, task in self._locked.items():
            if task is not None and task.process is process:
                self._locked[place] = None
        self.hurt()
        process.dead = True
        self.on_death(process)
        raise Killed

    @contextmanager
    def locked(self, stream: StreamId) -> Iterator[None]:
        """Keep others from changing the session, as the lock on its heads does."""
        place, task = stream[:2], self.scheduler.current
        self.unlocked(stream)
        self._locked[place] = task
        try:
            yield
        finally:
            if self._locked[place] is task:
                self._locked[place] = None

    def unlocked(self, stream: StreamId) -> None:
        """Wait until nobody keeps others from changing the session."""
        place = stream[:2]
        if self._locked.get(place) not in (None, self.scheduler.current):
            self.scheduler.pause(lambda: self._locked.get(place) is None)

    def hurt(self) -> None:
        """A fault in what the present task does: its lease is no clean one."""
        term = self._term()
        if term is not None:
            term.hurt = True

    def took(self, stream: StreamId) -> None:
        """The present task has the lease of ``stream``."""
        task = self.scheduler.current
        if task is not None:
            self._holding[task] = Term(stream)
            self.terms.append(self._holding[task])

    def gave_back(self) -> None:
        """The present task held a lease until now."""
        task = self.scheduler.current
        if task is not None and task in self._holding:
            self._holding.pop(task).released = True

    def answered(self) -> None:
        """A model wrote a summary for the present task."""
        term = self._term()
        if term is None:
            self.violated("a model was asked without a lease")
        else:
            term.answers += 1

    def recorded(self, batch: Batch) -> None:
        """The present task wrote this; a summary is what a model was asked for."""
        term = self._term()
        if term is not None and batch.stream == term.stream:
            term.summaries += sum(e.header.type == "summary" for e in batch.events)

    def _term(self) -> Term | None:
        task = self.scheduler.current
        return self._holding.get(task) if task else None

    def violated(self, promise: str) -> None:
        """End the history: nobody may catch this on the way."""
        self.scheduler.errors.append(Violated(promise))


class Stepping:
    """Anything that processes share, each call of which is a step."""

    def __init__(
        self,
        world: World,
        process: Process,
        inner: object,
        error: Callable[..., RefoldError] = StoreUnavailable,
    ) -> None:
        self._world, self._process = world, process
        self._inner, self._error = inner, error

    def __getattr__(self, name: str) -> Any:
        call: Any = getattr(self._inner, name)
        return lambda *given, **named: self._do(name, call, *given, **named)

    def _do(self, name: str, call: Any, *given: Any, **named: Any) -> Any:
        world = self._world
        world.scheduler.pause()
        fate = world.fate()
        if fate in ("refused", "dies before"):
            self._fail(name, fate)
        done = call(*given, **named)
        world.say(name, _shown(given), fate, _shown((done,)))
        if fate:
            self._fail(name, fate)
        return done

    def _fail(self, name: str, fate: Fate) -> None:
        self._world.say(name, fate)
        if fate.startswith("dies"):
            self._world.die(self._process)
        self._world.hurt()
        raise self._error("the simulation broke the connection", remedy="try again")


class SteppingRecorder(Stepping):
    """A recorder; what changes a session waits for who has locked it."""

    _inner: MemoryRecorder

    def write(self, batch: Batch) -> WriteOutcome:
        def write() -> WriteOutcome:
            self._world.unlocked(batch.stream)
            return self._seen(batch, self._inner.write(batch))

        outcome: WriteOutcome = self._do("write", write)
        return outcome

    def _seen(self, batch: Batch, outcome: WriteOutcome) -> WriteOutcome:
        if isinstance(outcome, Wrote):
            self._world.recorded(batch)
            events = [event.header.type for event in batch.events]
            self._world.say("wrote", str(batch.stream)[:12], batch.head.seq, events)
        return outcome

    def write_exclusive(
        self, stream: StreamId, build: Callable[[HeadRow | None], Batch]
    ) -> WriteOutcome:
        def write() -> WriteOutcome:
            with self._world.locked(stream):
                batch = build(self._inner.head_row(stream))
                return self._seen(batch, self._inner.write(batch))

        outcome: WriteOutcome = self._do("write_exclusive", write)
        return outcome

    def rewrite(
        self, stream: StreamId, build: Callable[[Mapping[str, HeadRow]], Rewrite | None]
    ) -> bool:
        """The recorder finds a lost acknowledgement out by asking ``build`` again."""

        def rewrite() -> bool:
            with self._world.locked(stream):
                done = self._inner.rewrite(stream, build)
                if done:
                    self._world.rewritten.append(self._heads(stream))
            return done and not (
                self._world.fate() and not self._inner.rewrite(stream, build)
            )

        done: bool = self._do("rewrite", rewrite)
        return done

    def _heads(self, stream: StreamId) -> dict[StreamId, int]:
        names = self._inner.streams(stream.user_id, stream.session_id)
        places = [stream._replace(stream=name) for name in names]
        heads = {place: self._inner.head_row(place) for place in places}
        return {place: head.seq for place, head in heads.items() if head}

    def save_view_row(
        self, stream: StreamId, name: str, row: ViewRow, **how: Any
    ) -> bool:
        def save() -> bool:
            self._world.unlocked(stream)
            before = self._inner.view_row(stream, name)
            saved = self._inner.save_view_row(stream, name, row, **how)
            if saved and before and before.through_seq > row.through_seq:
                self._world.violated(f"a view went back to seq {row.through_seq}")
            head = self._inner.head_row(stream)
            if saved and head and head.key_check != how["key_check"]:
                self._world.violated("a view was kept under a key of before")
            return saved

        saved: bool = self._do("save_view_row", save)
        return saved

    def take_lease(self, stream: StreamId, owner: str, *, now: int, until: int) -> bool:
        def take() -> bool:
            self._world.unlocked(stream)
            held = self._inner._leases.get(stream)
            taken = self._inner.take_lease(stream, owner, now=now, until=until)
            if taken:
                self._world.took(stream)
            if taken and held and held.owner != owner and held.until > now:
                self._world.violated("a lease was taken that another holds")
            return taken

        taken: bool = self._do("take_lease", take)
        return taken

    def release_lease(self, stream: StreamId, owner: str) -> bool:
        def release() -> bool:
            held = self._inner._leases.get(stream)
            if held is not None and held.owner == owner:
                self._world.gave_back()
            return self._inner.release_lease(stream, owner)

        asked: bool = self._do("release_lease", release)
        return asked


def _opened(keys: KeyStore) -> KeyRing:
    while True:
        try:
            return KeyRing(keys, _MASTER)
        except KeyUnavailable:
            continue


def _shown(values: tuple[Any, ...]) -> str:
    """Names, numbers and answers, but nothing that is random."""
    shown = []
    for value in values:
        if isinstance(value, StreamId):
            shown.append(f"{value.session_id}/{value.stream[:4]}")
        elif value is None or isinstance(value, bool | int):
            shown.append(str(value))
        elif isinstance(value, list):
            shown.append(f"{len(value)} of them")
        elif isinstance(value, HeadRow):
            shown.append(f"head {value.seq}")
        elif isinstance(value, tuple) and type(value) is not tuple:
            shown.append(type(value).__name__)
    return " ".join(shown)
