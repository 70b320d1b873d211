"""Roles of simulated processes: append, compact, rebuild, read, redact again.

A role stores what a program would store on its own disk: the current request, and the
answers.  Its process may die; the role continues in another one.  Roles that do not
write do a round after certain numbers of requests (``rounds``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypeAlias

import refold
from refold.domain.envelope import Draft
from refold.domain.errors import KeyUnavailable, StoreUnavailable
from refold.domain.events import Event, SummarizerRef
from refold.domain.ids import StreamId
from refold.domain.ports import Appended, Outcome
from refold.projections.context.compaction import Source, Written
from refold.projections.context.strategies.spec import parse
from refold.store import Session, SessionStore
from refold.store.appends import Order, Receipt, Writer
from refold.store.work.rebuilds import Rebuilder
from tests.simulation.scheduler import SECOND, Process
from tests.simulation.world import World
from tests.support.redacting import MAIL, aware

USER: Final = "ada"
OTHER: Final = "bob"  # whose sessions begin with a b
SPECS: Final = (
    "turn_window:full_turns=1,cached_turns=1",
    "turn_window:full_turns=1,cached_turns=1,summary_tokens=20,session_memory_tokens=30",
)
_TRIES: Final = 6
# Truncated where events hold 1 KiB, and stored in a blob.
_LONG: Final = f"line {MAIL}\n" * 60
_AWARE: Final = aware()
_BROKEN = (StoreUnavailable, KeyUnavailable)
State: TypeAlias = Literal["not sent", "sent", "acknowledged", "refused"]


@dataclass(slots=True)
class Request:
    """Events that a client wants to append, and the client's knowledge of them.

    ``token`` is in each of their texts.  Without a ``key`` they are sent once; with
    one, until an answer arrives, and once more if ``again``.
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
        """Return the events of this request, equal at every call."""
        question = refold.UserInput(text=f"{self.token} asks " + "why " * 9)
        reply = refold.AgentResponse(text=f"{self.token} says " + "so " * 9)
        call = refold.ToolCall(call_id=self.call_id, tool_name="t", arguments={})
        answer = refold.ToolResult(call_id=self.call_id, content=f"{self.token} done")
        kinds: dict[str, list[Event]] = {
            "turn": [question, reply],
            "question": [question],
            "secret": [refold.UserInput(text=f"{self.token} is {MAIL}"), reply],
            "long": [refold.UserInput(text=f"{self.token} reads " + _LONG), reply],
            "call": [question, call],
            "answer": [answer, reply],
            "close": [refold.SystemPrompt(text=self.token, closed=True)],
        }
        return kinds[self.kind]


def owner(session_id: str) -> str:
    """Return the user of a session."""
    return OTHER if session_id.startswith("b") else USER


class Role(Protocol):
    """Something that a process does; ``run`` continues where it was killed."""

    name: str

    def run(self, world: World, process: Process) -> None: ...


@dataclass(slots=True)
class Writing:
    """A client that appends one request after another.

    soon: it leaves them to be written, as callers from asyncio do.
    """

    name: str
    requests: list[Request]
    done: int = 0
    soon: bool = False

    def run(self, world: World, process: Process) -> None:
        store = world.store(process)
        while self.done < len(self.requests):
            self._send(world, store, self.requests[self.done])
            self.done += 1

    def _send(self, world: World, store: SessionStore, request: Request) -> None:
        if request.state == "sent" and request.key is None:
            # Its process died: the outcome is unknown, and a retry is not
            # allowed.
            return
        session = store.session(
            user_id=owner(request.session_id), session_id=request.session_id
        )
        for _ in range(_TRIES):
            try:
                request.receipts.append(self._append(world, session, request))
            except _BROKEN:
                if request.state == "sent" and request.key is None:
                    return
                continue
            except (refold.StaleSession, refold.SessionClosed, refold.InvalidEvent):
                assert request.state != "acknowledged", f"{request.token}: refused now"
                request.state = "refused"
                return
            except refold.Erased:
                return
            request.state = "acknowledged"
            if not request.again or len(request.receipts) > 1:
                return

    def _append(self, world: World, session: Session, request: Request) -> Receipt:
        if request.checked and request.expected_seq is None:
            head = session.writer.log.head(session.stream)
            request.expected_seq = head.seq
        if request.state == "not sent":
            request.state = "sent"
        drafts = tuple(Draft(event) for event in request.events())
        order = Order(session.stream, drafts, request.key, request.expected_seq)
        left = _leave(world, session.writer, order) if self.soon else None
        return left or session.writer.append(order)


def _leave(world: World, writer: Writer, order: Order) -> Receipt | None:
    """Leave an append on the last seen head to other threads; None if it failed."""
    head = writer.heads.get(order.stream)
    if head is None:
        return None
    try:
        request = writer.request(head, order)
    except (refold.StaleSession, refold.SessionClosed, refold.InvalidEvent):
        return None
    outcomes: list[Outcome | Exception] = []
    if not writer.log.append_soon(request, outcomes.append):
        return None
    world.scheduler.pause(lambda: bool(outcomes))
    world.say("was left to be written")
    (outcome,) = outcomes
    if isinstance(outcome, Exception):
        raise outcome
    return (
        writer.acknowledged(request, outcome) if isinstance(outcome, Appended) else None
    )


@dataclass(slots=True)
class Model:
    """A summarizer that may cost, takes time, fails, and dies."""

    world: World
    process: Process
    costs: bool

    def summarise(self, source: Source, *, target_tokens: int) -> Written:
        world = self.world
        fails = self.world.random.random() < 0.1
        until = world.scheduler.now + world.random.randrange(40 * SECOND)
        world.scheduler.pause(until=until)
        if world.fate().startswith("dies"):
            world.die(self.process)
        if fails:
            raise TimeoutError
        if self.costs:
            world.answered()
        world.say("the model wrote", source.digest[:6])
        words = min(12, source.words)  # a summary longer than its source is refused
        return Written("so " * words, SummarizerRef(kind="simulated"))


@dataclass(slots=True)
class Compacting:
    """An agent's loop, or a worker, that compacts a session from time to time."""

    name: str
    session_id: str
    spec: str
    costs: bool
    rounds: list[int]

    def run(self, world: World, process: Process) -> None:
        store = world.store(process)
        while _next(world, self.rounds):
            world.tried(lambda: self._step(world, process, store))

    def _step(self, world: World, process: Process, store: SessionStore) -> None:
        session = store.session(
            user_id=owner(self.session_id), session_id=self.session_id
        )
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
        stream = StreamId(owner(self.session_id), self.session_id)
        model = Model(world, process, self.costs)
        writer = store.session(
            user_id=owner(self.session_id), session_id=self.session_id
        ).writer
        rebuilder = Rebuilder(writer, parse(self.spec), model)
        while _next(world, self.rounds):
            world.tried(lambda: rebuilder.run(stream))


@dataclass(slots=True)
class Reading:
    """Reads a session and stores its views; it must see acknowledged events."""

    name: str
    session_id: str
    spec: str
    rounds: list[int]
    acknowledged: Callable[[str], int]

    def run(self, world: World, process: Process) -> None:
        store = world.store(process)
        while _next(world, self.rounds):
            world.tried(lambda: self._read(world, store))

    def _read(self, world: World, store: SessionStore) -> None:
        acknowledged = self.acknowledged(self.session_id)
        session = store.session(
            user_id=owner(self.session_id), session_id=self.session_id
        )
        seqs = [envelope.seq for envelope in session.events()]
        if seqs != list(range(1, len(seqs) + 1)):
            world.violated(f"{self.session_id} was read with gaps: {seqs}")
        if len(seqs) < acknowledged:
            world.violated(
                f"{self.session_id}: {acknowledged} was acknowledged, read {seqs}"
            )
        compactor = session.strategies.compactor(self.spec)
        compactor.viewer.store_current(compactor.strategy)
        session.context(self.spec)


@dataclass(slots=True)
class Forking:
    """Forks another session, and writes to the fork.

    at: where it forked; 0 until it tries.
    """

    name: str
    parent: str
    writing: Writing
    rounds: list[int]
    at: int = 0
    forked: bool = False
    there: bool = False

    def run(self, world: World, process: Process) -> None:
        store = world.store(process)
        while not self.there and _next(world, self.rounds):
            world.tried(lambda: self._fork(world, store))
        if self.there:
            self.writing.run(world, process)

    @property
    def origin(self) -> tuple[str, int]:
        """Return the origin that it used last."""
        return self.parent, self.at

    def _fork(self, world: World, store: SessionStore) -> None:
        session = store.session(user_id=owner(self.parent), session_id=self.parent)
        self.at = world.random.randint(1, session.head().seq)
        try:
            session.fork(self.at, session_id=self.writing.requests[0].session_id)
            self.forked = True
        except refold.StaleSession:  # another's fork, or its own with a lost answer
            pass
        self.there = True


@dataclass(slots=True)
class Redacting:
    """Redacts in all sessions what its rules know and the writers' rules did not."""

    name: str
    rounds: list[int]

    def run(self, world: World, process: Process) -> None:
        store = world.store(process, _AWARE)
        while _next(world, self.rounds):
            world.tried(lambda: list(store.reredact()))


def _next(world: World, rounds: list[int]) -> bool:
    """Wait for the number of requests of the next round; return False at the end."""
    if not rounds:
        return False
    world.scheduler.pause(lambda: world.progress() >= rounds[0])
    del rounds[0]
    return True
