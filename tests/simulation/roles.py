"""What simulated processes do: append, compact, rebuild, read, redact again.

A role keeps what a program would keep on its own disk: which request it is at, and
what was answered.  Its process may die under it; it goes on in another one.  Those that
do not write do a round each time so many requests are done (``rounds``).

Erasure is one more role here, and one more promise in ``promises.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypeAlias

import refold
from refold.domain.errors import KeyUnavailable, StoreUnavailable
from refold.domain.events import Event, SummarizerRef
from refold.domain.ids import StreamId
from refold.projections.context.source import Source
from refold.projections.context.spec import parse
from refold.projections.context.summarizer import Written
from refold.store import Session, SessionStore
from refold.store.rebuilding import Rebuilder
from refold.store.writing import Receipt
from tests.simulation.scheduler import SECOND, Process
from tests.simulation.world import World
from tests.support.redacting import MAIL, aware

USER: Final = "ada"
SPECS: Final = (
    "turn_window:full_turns=1,cached_turns=1",
    "turn_window:full_turns=1,cached_turns=1,summary_tokens=20,session_memory_tokens=30",
)
_TRIES: Final = 6
_AWARE: Final = aware()
_BROKEN = (StoreUnavailable, KeyUnavailable)
State: TypeAlias = Literal["not sent", "sent", "acknowledged", "refused"]


@dataclass(slots=True)
class Request:
    """Events that a client wants appended, and what it knows of them.

    ``token`` is in each of their texts.  Without a ``key`` it is sent once; with one,
    until it is answered, and once more if ``again``.
    """

    token: str
    session_id: str
    kind: str
    key: str | None = None
    call_id: str = ""
    checked: bool = False
    again: bool = False
    expected_seq: int | None = None
    state: State = "not sent"
    receipts: list[Receipt] = field(default_factory=list)

    def events(self) -> list[Event]:
        """The same each time they are asked for."""
        asked = refold.UserInput(text=f"{self.token} asks " + "why " * 9)
        said = refold.AgentResponse(text=f"{self.token} says " + "so " * 9)
        call = refold.ToolCall(call_id=self.call_id, tool_name="t", arguments={})
        answer = refold.ToolResult(call_id=self.call_id, content=f"{self.token} done")
        kinds: dict[str, list[Event]] = {
            "turn": [asked, said],
            "question": [asked],
            "secret": [refold.UserInput(text=f"{self.token} is {MAIL}"), said],
            "call": [asked, call],
            "answer": [answer, said],
            "close": [refold.SystemPrompt(text=self.token, closed=True)],
        }
        return kinds[self.kind]


class Role(Protocol):
    """Something a process does; ``run`` goes on where it was cut off."""

    name: str

    def run(self, world: World, process: Process) -> None: ...


@dataclass(slots=True)
class Writing:
    """A client that appends one request after another."""

    name: str
    requests: list[Request]
    done: int = 0

    def run(self, world: World, process: Process) -> None:
        store = world.store(process)
        while self.done < len(self.requests):
            self._send(store, self.requests[self.done])
            self.done += 1

    def _send(self, store: SessionStore, request: Request) -> None:
        if request.state == "sent" and request.key is None:
            return  # its process died: nobody knows, and nobody may ask again
        session = store.session(USER, request.session_id)
        for _ in range(_TRIES):
            try:
                request.receipts.append(self._append(session, request))
            except _BROKEN:
                if request.state == "sent" and request.key is None:
                    return
                continue
            except (refold.StaleSession, refold.SessionClosed, refold.InvalidEvent):
                assert request.state != "acknowledged", f"{request.token}: refused now"
                request.state = "refused"
                return
            request.state = "acknowledged"
            if not request.again or len(request.receipts) > 1:
                return

    def _append(self, session: Session, request: Request) -> Receipt:
        if request.checked and request.expected_seq is None:
            head = session.writer.log.head(session.stream)
            request.expected_seq = head.seq
        if request.state == "not sent":
            request.state = "sent"
        return session.append(
            request.events(),
            idempotency_key=request.key,
            expected_seq=request.expected_seq,
        )


@dataclass(slots=True)
class Model:
    """A summarizer that costs, or not; it takes time, fails, and dies."""

    world: World
    process: Process
    costs: bool

    def summarise(self, source: Source, *, target_tokens: int) -> Written:
        world, fails = self.world, self.world.random.random() < 0.1
        until = world.scheduler.now + world.random.randrange(40 * SECOND)
        world.scheduler.pause(until=until)
        if world.fate().startswith("dies"):
            world.die(self.process)
        if fails:
            raise TimeoutError
        if self.costs:
            world.answered()
        world.say("the model wrote", source.digest[:6])
        words = min(12, source.words)  # one longer than its source is refused
        return Written("so " * words, SummarizerRef(kind="simulated"))


@dataclass(slots=True)
class Compacting:
    """An agent's loop, or a worker, that compacts a session now and then."""

    name: str
    session_id: str
    spec: str
    costs: bool
    rounds: list[int]

    def run(self, world: World, process: Process) -> None:
        store = world.store(process)
        while _next(world, self.rounds):
            _try(lambda: self._step(world, process, store))

    def _step(self, world: World, process: Process, store: SessionStore) -> None:
        session = store.session(USER, self.session_id)
        session.compact(self.spec, summarizer=Model(world, process, self.costs))


@dataclass(slots=True)
class Rebuilding:
    """Rebuilds of a session."""

    name: str
    session_id: str
    spec: str
    costs: bool
    rounds: list[int]

    def run(self, world: World, process: Process) -> None:
        store = world.store(process)
        stream = StreamId(USER, self.session_id)
        model = Model(world, process, self.costs)
        writer = store.session(USER, self.session_id).writer
        rebuilder = Rebuilder(writer, parse(self.spec), model)
        while _next(world, self.rounds):
            _try(lambda: rebuilder.run(stream))


@dataclass(slots=True)
class Reading:
    """Reads a session, and keeps its views: it sees what was acknowledged before."""

    name: str
    session_id: str
    spec: str
    rounds: list[int]
    acknowledged: Callable[[str], int]

    def run(self, world: World, process: Process) -> None:
        store = world.store(process)
        while _next(world, self.rounds):
            _try(lambda: self._read(world, store))

    def _read(self, world: World, store: SessionStore) -> None:
        known = self.acknowledged(self.session_id)
        session = store.session(USER, self.session_id)
        seqs = [envelope.seq for envelope in session.events()]
        if seqs != list(range(1, len(seqs) + 1)):
            world.violated(f"{self.session_id} was read with gaps: {seqs}")
        if len(seqs) < known:
            world.violated(f"{self.session_id}: {known} was acknowledged, read {seqs}")
        compactor = session.compactor(self.spec)
        compactor.viewer.catch_up(compactor.strategy)
        session.context(self.spec)


@dataclass(slots=True)
class Redacting:
    """Takes out of all sessions what its rules know and the writers' did not."""

    name: str
    rounds: list[int]

    def run(self, world: World, process: Process) -> None:
        store = world.store(process, _AWARE)
        while _next(world, self.rounds):
            _try(lambda: list(store.reredact(USER)))


def _next(world: World, rounds: list[int]) -> bool:
    """Wait until so many requests are done as the next round says; False at the end."""
    if not rounds:
        return False
    world.scheduler.pause(lambda: world.progress() >= rounds[0])
    del rounds[0]
    return True


def _try(work: Callable[[], object]) -> bool:
    """Whether it came to its end; a connection may break, a session not be there."""
    try:
        work()
    except (*_BROKEN, refold.SessionNotFound):
        return False
    return True
