"""The measured parts: appends, load, imports, reads, folds and bytes on the disk."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from inspect import isawaitable
from itertools import islice
from pathlib import Path
from threading import Barrier
from typing import Any
from unittest import mock

import orjson

import refold
from benchmarks.cold import starts
from benchmarks.store import payloads
from benchmarks.store.contestants import (
    OURS,
    USER,
    Contestant,
    Engine,
    File,
    RawAsyncio,
    RawPostgres,
    Refold,
)
from benchmarks.store.peers import saving_application
from benchmarks.store.racing import Field, Figures, Scale, Stages, Subject, Way, race
from refold.adapters.importers import read
from refold.adapters.importers.base import Transcript
from refold.domain.envelope import Draft, Envelope, Meta
from refold.domain.events import Event, ToolCall, ToolResult
from refold.projections.context.view import View
from refold.store import Session, SessionStore
from refold.store.appends import Writer
from refold.store.session.imports import extend
from refold.store.work.jobs import process_pool

STAGES = ("validate", "redact", "encrypt", "driver", "server")
COLD = "after a commit"
HOT = "hot"
_ROUNDS_WARM = 3


def stages(engine: Engine, ours: Refold, rounds: int) -> list[Stages]:
    """Return medians right after a commit, and hot.

    Hot means: the same event was appended to a store in memory just before, so that
    Python's code is in the caches, as it is not right after waiting for a disk.
    """
    with refold.open("memory://", redactor=engine.redactor) as warm:
        return [
            Stages(engine.name, COLD, _medians(ours.store, None, rounds)),
            Stages(engine.name, HOT, _medians(ours.store, warm, rounds)),
        ]


def _medians(
    store: SessionStore, warm: SessionStore | None, rounds: int
) -> dict[str, float]:
    session = store.session(user_id=USER, session_id="stages")
    taken = []
    session.append(payloads.event(0))
    with _watched(store) as tape:
        for number in range(rounds):
            if warm:
                _warm(warm, number)
            tape.clear()
            start = time.perf_counter()
            session.append(payloads.event(number))
            taken.append(_split(time.perf_counter() - start, tape))
    return {
        stage: statistics.median(each[stage] for each in taken) * 1e6
        for stage in STAGES
    }


def _warm(store: SessionStore, number: int) -> None:
    for _ in range(_ROUNDS_WARM):
        store.session(user_id=USER, session_id="stages").append(payloads.event(number))


def _split(whole: float, tape: dict[str, tuple[float, float]]) -> dict[str, float]:
    """Return seconds by stage; the remainder is validation and its surroundings.

    Of the writing, the driver has what the thread computed, and the server the rest:
    the thread slept until the server, or the disk, had answered.
    """
    redact, _ = tape.get("redact", (0.0, 0.0))
    log, _ = tape.get("log", (0.0, 0.0))
    write, computed = tape.get("write", (0.0, 0.0))
    driver = min(write, computed)
    return {
        "validate": whole - redact - log,
        "redact": redact,
        "encrypt": log - write,
        "driver": driver,
        "server": write - driver,
    }


@contextmanager
def _watched(store: SessionStore) -> Iterator[dict[str, tuple[float, float]]]:
    """The seams wrapped; the tape has wall and processor time of the last calls."""
    tape: dict[str, tuple[float, float]] = {}
    log: Any = store.log
    seams = (
        ("redact", Writer, "redacted"),
        ("log", type(log), "append"),
        ("write", type(log.recorder), "write"),
    )
    with ExitStack() as wrapped:
        for name, owner, attribute in seams:
            timed = _timed(getattr(owner, attribute), name, tape)
            wrapped.enter_context(mock.patch.object(owner, attribute, timed))
        yield tape


def _timed(
    function: Callable[..., Any], name: str, tape: dict[str, tuple[float, float]]
) -> Callable[..., Any]:
    def timed(*arguments: Any, **named: Any) -> Any:
        computed = time.thread_time()
        start = time.perf_counter()
        result = function(*arguments, **named)
        wall = time.perf_counter() - start
        before, spent = tape.get(name, (0.0, 0.0))
        tape[name] = (before + wall, spent + time.thread_time() - computed)
        return result

    return timed


SINGLE = "one append"
BATCH = "batch of 100"
FIRST = "one append, the first 300"
SAVE = "save of 3 events by an application"
JSON = "one append of a JSON result"
MAIL = "one append with an e-mail"
_HUNDRED = 100
_SESSIONS = ("single", "batch")


async def appends(field: Field, figures: Figures, scale: Scale) -> None:
    """Measure both, and where the time of one append goes."""
    await field.begin(*_SESSIONS)
    await _first(field, figures, scale)
    await _single(field, figures, scale)
    await _others(field, figures, scale)
    await _saves(field, figures, scale)
    await _batch(field, figures, scale)
    figures.stages += stages(field.engine, field.ours, scale.rounds)


async def _first(field: Field, figures: Figures, scale: Scale) -> None:
    """The first appends of a store, in which a process still fills its caches."""
    subject = Subject(FIRST, field.engine.name)
    ours = Way(field.ours.name, partial(field.ours.append, "single"))
    driver = Way(field.raw.name, partial(field.raw.append, "single"))
    figures.figures += await race(subject, ours, [driver], scale.first, warm=0)


async def _saves(field: Field, figures: Figures, scale: Scale) -> None:
    """Applications of the eventsourcing library, on its module and on Refold's."""
    if not any(peer.name == "eventsourcing" for peer in field.peers):
        return
    with (
        saving_application(field.engine, ours=True) as ours,
        saving_application(field.engine, ours=False) as theirs,
    ):
        subject = Subject(SAVE, field.engine.name, events=3)
        own = Way(field.ours.name, ours)
        others = [Way("eventsourcing", theirs)]
        figures.figures += await race(subject, own, others, scale.rounds)


async def _single(field: Field, figures: Figures, scale: Scale) -> None:
    file = File(field.engine.folder)
    others = [
        Way(other.name, partial(other.append, "single")) for other in field.others
    ]
    subject = Subject(SINGLE, field.engine.name)
    ways = [*others, Way(file.name, file.append)]
    ours = Way(field.ours.name, partial(field.ours.append, "single"))
    try:
        figures.figures += await race(subject, ours, ways, scale.rounds)
    finally:
        file.close()


async def _others(field: Field, figures: Figures, scale: Scale) -> None:
    """Appends other than plain prose, against the driver that writes the same bytes."""
    session = field.ours.session("other")
    engine = field.engine.name
    numbers = range(scale.rounds + 2 * _ROUNDS_WARM)
    calls: list[Event] = [
        ToolCall(call_id=f"c{number}", tool_name="search") for number in numbers
    ]
    session.append(calls)
    for name, events in (
        (JSON, [_answer(number) for number in numbers]),
        (MAIL, [payloads.with_mail(number) for number in numbers]),
    ):
        bodies = [orjson.dumps(event.payload()) for event in events]
        ours = Way(field.ours.name, partial(_next, session.append, iter(events)))
        each = iter([[body] for body in bodies])
        raw = Way(field.raw.name, partial(_next, partial(field.raw.put, "other"), each))
        subject = Subject(name, engine)
        figures.figures += await race(subject, ours, [raw], scale.rounds)


def _next(write: Callable[[Any], Any], values: Iterator[Any], _: int) -> Any:
    return write(next(values))


def _answer(number: int) -> ToolResult:
    return ToolResult(call_id=f"c{number}", content=payloads.result(number))


async def _batch(field: Field, figures: Figures, scale: Scale) -> None:
    subject = Subject(BATCH, field.engine.name, events=_HUNDRED)
    ways = [_hundred(other) for other in field.others]
    figures.figures += await race(subject, _hundred(field.ours), ways, scale.batches)


def _hundred(contestant: Contestant) -> Way:
    def work(number: int) -> object:
        first = number * _HUNDRED
        return contestant.batch("batch", range(first, first + _HUNDRED))

    return Way(contestant.name, work)


THREADS = "16 sessions, threads"
ASYNCIO = "16 sessions, asyncio"
SESSIONS = tuple(f"s{number:02}" for number in range(16))
Append = Callable[[str, int], Any]


async def load(field: Field, figures: Figures, scale: Scale) -> None:
    """Race ours in both ways against every other in its own way."""
    await field.begin(*SESSIONS)
    engine = field.engine.name
    each = scale.each
    with ExitStack() as opened:
        others = [
            Way(other.name, opened.enter_context(_work(other, each)))
            for other in field.others
        ]
        raw_asyncio = (
            RawAsyncio(field.raw) if isinstance(field.raw, RawPostgres) else None
        )
        if raw_asyncio:
            for session in SESSIONS:
                await raw_asyncio.begin(session)
            others.append(Way(raw_asyncio.name, _in_tasks(raw_asyncio.append, each)))
        threads = opened.enter_context(_in_threads(field.ours.append, each))
        for name, work in (
            (THREADS, threads),
            (ASYNCIO, _in_tasks(field.ours.append_async, each)),
        ):
            subject = Subject(name, engine, events=len(SESSIONS) * each)
            ours = Way(field.ours.name, work)
            figures.figures += await race(subject, ours, others, scale.loads)
        if raw_asyncio:
            await raw_asyncio.close()


@contextmanager
def _work(contestant: Contestant, each: int) -> Iterator[Callable[[int], Any]]:
    if contestant.style == "asyncio":
        yield _in_tasks(contestant.append, each)
        return
    with _in_threads(contestant.append, each) as work:
        yield work


@contextmanager
def _in_threads(append: Append, each: int) -> Iterator[Callable[[int], Any]]:
    """Run a thread for each session; all exist before the first round."""

    def run(session: str, number: int) -> None:
        together.wait()
        for index in range(each):
            append(session, number * each + index)

    together = Barrier(len(SESSIONS))
    with ThreadPoolExecutor(len(SESSIONS)) as pool:
        yield lambda number: list(pool.map(run, SESSIONS, [number] * len(SESSIONS)))


def _in_tasks(
    append: Callable[[str, int], Awaitable[Any]], each: int
) -> Callable[[int], Any]:
    """A task for each session."""

    async def run(session: str, number: int) -> None:
        for index in range(each):
            await append(session, number * each + index)

    async def work(number: int) -> None:
        await asyncio.gather(*(run(session, number) for session in SESSIONS))

    return work


IMPORT = "import"
BULK = "COPY or executemany"
_SESSION = 1_000
_BATCH = 100


async def imports(field: Field, figures: Figures, scale: Scale) -> None:
    """Append session after session of a thousand events, generating them included."""
    size = min(_SESSION, scale.events)
    rounds = max(1, scale.events // size)
    ways = [Way(BULK, _sessions(field.raw.copy, size))]
    for peer in field.peers:
        if peer.batches and peer.name != "langgraph":  # a checkpoint is no import
            await peer.begin("import")
            ways.append(Way(peer.name, _one_session(peer.batch, size)))
    subject = Subject(IMPORT, field.engine.name, events=size)
    ours = Way(field.ours.name, _extended(field.ours, size))
    share = max(1, rounds // len(ways))
    figures.figures += await race(subject, ours, ways, share)


def _extended(ours: Refold, size: int) -> Callable[[int], Any]:
    done = _Counter()

    def work(_: int) -> object:
        number = done.next()
        drafts = [
            Draft(payloads.event(index), meta=Meta(source={"place": f"line {index}"}))
            for index in range(number * size, (number + 1) * size)
        ]
        return extend(ours.session(f"i-{number}"), drafts, where="the benchmark")

    return work


def _sessions(
    copy: Callable[[str, Sequence[int]], object], size: int
) -> Callable[[int], Any]:
    done = _Counter()

    def work(_: int) -> object:
        number = done.next()
        return copy(f"i-{number}", range(number * size, (number + 1) * size))

    return work


def _one_session(
    batch: Callable[[str, Sequence[int]], Any], size: int
) -> Callable[[int], Any]:
    done = _Counter()

    async def work(_: int) -> None:
        number = done.next()
        for first in range(number * size, (number + 1) * size, _BATCH):
            # A pipeline of a thousand inserts hangs in one of them.
            stored = batch("import", range(first, first + _BATCH))
            if isawaitable(stored):
                await stored

    return work


class _Counter:
    def __init__(self) -> None:
        self._next = -1

    def next(self) -> int:
        self._next += 1
        return self._next


FULL_READ = "full read"
CONTEXT = "context"
LENGTH = "context, by length"
STRATEGY = "turn_window"
# Its memory is full in a short session already, unlike that of the others: it shows the
# same amount at either length.
STEADY = "turn_window:session_memory_tokens=1500"
STRATEGIES = (
    STRATEGY,
    STEADY,
    "message_window",
    "hybrid",
    "history_summary",
    "recursive_summary",
)
_OF_MAIN = ("raw", "stub", "pinned")
# A longer session is compacted under the first two strategies only.
_MOST = 10_000
_LONG = 2
_TURNS = 5


async def reads(field: Field, figures: Figures, scale: Scale) -> None:
    """Sizes on the disk too, as soon as everyone holds the same."""
    await _full(field, figures, scale)
    await _contexts(field, figures, scale)


async def _full(field: Field, figures: Figures, scale: Scale) -> None:
    everyone = (field.ours, *field.others)
    empty = {contestant.name: contestant.stored() for contestant in everyone}
    for size in scale.sizes:
        for contestant in everyone:
            if size <= contestant.most:
                await contestant.fill(f"r-{size}", size)
    for contestant in everyone:
        if (
            contestant.name != "langgraph"
        ):  # filled with one checkpoint: not how it is used
            events = sum(size for size in scale.sizes if size <= contestant.most)
            grown = contestant.stored() - empty[contestant.name]
            figures.sizes.setdefault(field.engine.name, {})[contestant.name] = (
                grown / events
            )
    for size in scale.sizes:
        session = f"r-{size}"
        ways = [
            Way(other.name, partial(_read, other.read, session))
            for other in field.others
            if size <= other.most
        ]
        subject = Subject(FULL_READ, field.engine.name, events=size, size=size)
        ours = Way(field.ours.name, partial(_read, field.ours.read, session))
        rounds = max(1, min(scale.reads, 500_000 // size))
        figures.figures += await race(subject, ours, ways, rounds)


def _read(read: Callable[[str], Any], session: str, _: int) -> Any:
    return read(session)


async def _contexts(field: Field, figures: Figures, scale: Scale) -> None:
    small, *_, long_ = scale.sizes
    engine = field.engine.name
    all_ = STRATEGIES[: scale.strategies]
    for size in scale.sizes:
        strategies = all_ if size <= _MOST else all_[:_LONG]
        session = _grown(field, f"c-{size}", size, strategies)
        view = session.context(STRATEGY)
        count = figures.rows[f"{engine}, {size:,} events"] = _rows(view)
        rows = partial(_newest, field.raw.newest, f"c-{size}", count)
        subject = Subject(CONTEXT, engine, size=size)
        ours = _context(field, f"c-{size}", STRATEGY)
        raw = Way(field.raw.name, rows)
        figures.figures += await race(subject, ours, [raw], scale.contexts)
    for place, strategy in enumerate(all_):
        reached = long_ if place < _LONG else _longest(scale)
        ways = [_context(field, f"c-{size}", strategy) for size in (reached, small)]
        subject = Subject(f"{LENGTH}: {strategy}", engine, size=reached)
        figures.figures += await race(subject, ways[0], ways[1:], scale.contexts)


def _newest(newest: Callable[[str, int], Any], session: str, count: int, _: int) -> Any:
    return newest(session, count)


def _longest(scale: Scale) -> int:
    return max(size for size in scale.sizes if size <= max(_MOST, scale.sizes[0]))


def _context(field: Field, session: str, strategy: str) -> Way:
    opened = field.ours.session(session)
    return Way(session, lambda _: opened.context(strategy))


def _grown(field: Field, name: str, size: int, strategies: tuple[str, ...]) -> Session:
    """A session as if these strategies always ran; the driver has its payloads."""
    session = field.ours.session(name)
    turns = payloads.conversation(size)
    while events := [event for turn in islice(turns, _TURNS) for event in turn]:
        session.append(events)
        field.raw.put(name, [orjson.dumps(event.payload()) for event in events])
    for strategy in strategies:
        list(
            field.ours.store.rebuild(strategy, user_id=session.user_id, session_id=name)
        )
        session.context(strategy)
    session.strategies.catch_up()
    return session


def _rows(view: View) -> int:
    """Return the number of rows behind a view: shown events and summaries."""
    shown = sum(
        span.last - span.first + 1
        for span in view.spans
        if span.kind in _OF_MAIN and span.first and span.last
    )
    return shown + sum(span.summary is not None for span in view.spans)


FOLD = "rebuild"
VERIFY = "verify"
CHAIN = "verify, chain only"
CATCH_UP = "prepare, 10,000 events behind"
_SHARES = 8
# It imports nothing but the store.  VmHWM: ``getrusage`` counts the parent's peak, too.
_ALONE = """
import refold, resource, sys
from pathlib import Path
url, keys, what, strategy = sys.argv[1:]
with refold.open(url, keys=keys) as store:
    if what == "rebuild":
        for _ in store.rebuild(strategy, dry_run=True): pass
    elif what == "verify":
        for _ in store.verify(): pass
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
status = Path("/proc/self/status")
for line in status.read_text().splitlines() if status.exists() else ():
    if line.startswith("VmHWM:"):
        peak = int(line.split()[1])
print(peak / 1024)
"""


async def folds(field: Field, figures: Figures, scale: Scale) -> None:
    """On sessions of equal length, so that two processes can have as much to do."""
    engine = field.engine.name
    count = _filled(field, scale.events)
    rounds = max(1, min(3, scale.reads))
    # A store with a redactor of its own works alone: other processes cannot open it.
    with (
        refold.open(field.ours.url, keys=field.ours.keys) as store,
        process_pool(2) as executor,
    ):
        rows = Way(
            field.raw.name, lambda _: [field.raw.read(each) for each in _names()]
        )
        rebuild = partial(store.rebuild, STRATEGY, dry_run=True)
        for name, work in ((FOLD, rebuild), (VERIFY, store.verify)):
            alone = Way(OURS, _running(work))
            two = Way(f"{name}, 2 jobs", _running(work, executor))
            subject = Subject(name, engine, events=count)
            figures.figures += await race(subject, alone, [rows, two], rounds)
            share = _share_of_busiest(work, executor, rounds)
            if share is not None:
                figures.spread.setdefault(engine, {})[name] = share
        subject = Subject(CHAIN, engine, events=count)
        chain = Way(OURS, _running(partial(store.verify, chain_only=True)))
        figures.figures += await race(subject, chain, [rows], rounds)
    figures.memory[engine] = {
        footprint: peak(field.ours.url, field.ours.keys, footprint)
        for footprint in scale.footprints
    }
    if not field.engine.server:
        figures.commands[CATCH_UP] = _caught_up(field.ours)
    if not figures.cold:
        figures.cold = {
            row.name: (seconds, row.limit) for row, (seconds,) in starts(scale.starts)
        }


def _running(
    work: Callable[..., Iterable[Any]], executor: Executor | None = None
) -> Callable[[int], None]:
    """All of the work, here or by an executor."""

    def run(_: int) -> None:
        _all(work(executor=executor))

    return run


def _share_of_busiest(
    work: Callable[..., Iterable[Any]], executor: Executor, rounds: int
) -> float | None:
    """The CPU of the work here, by that of the busiest process that shares it.

    None where the system does not say what a process has computed.
    """
    shares: list[float] = []
    for _ in range(rounds):
        before = time.thread_time()
        _all(work())
        alone = time.thread_time() - before
        earlier = _computed_by_children()
        _all(work(executor=executor))
        spent = [
            seconds - earlier.get(process, 0.0)
            for process, seconds in _computed_by_children().items()
        ]
        if not spent:
            return None
        shares.append(alone / max(spent))
    return statistics.median(shares)


def _computed_by_children() -> dict[int, float]:
    """The seconds of CPU of each process that this one has started."""
    computed: dict[int, float] = {}
    for process in multiprocessing.active_children():
        file = Path(f"/proc/{process.pid}/schedstat")
        if file.exists():
            computed[process.pid or 0] = int(file.read_text().split()[0]) / 1e9
    return computed


def _caught_up(ours: Refold) -> float:
    """Seconds of CPU of the first ``prepare`` of a session that was never compacted."""
    session = ours.session("behind")
    for events in payloads.conversation(10_000):
        session.append(events)
    before = time.process_time()
    session.prepare(STRATEGY)
    return time.process_time() - before


def _filled(field: Field, events: int) -> int:
    """Write the sessions, the driver too; returns how many events they have."""
    turns = max(1, events // payloads.TURN // _SHARES)
    for name in _names():
        session = field.ours.session(name)
        for numbers in payloads.chunks(turns, 5):
            batch = [event for n in numbers for event in payloads.turn(n)]
            session.append(batch)
            field.raw.put(name, [orjson.dumps(event.payload()) for event in batch])
    return turns * _SHARES * payloads.TURN


def _names() -> list[str]:
    return [f"fold-{number}" for number in range(_SHARES)]


def _all(results: Iterable[Any]) -> None:
    """Verify them; a problem would mean that other work was measured."""
    for result in results:
        value = result[1] if isinstance(result, tuple) and len(result) == 2 else result
        if problems := getattr(value, "problems", None) or getattr(
            value, "problem", None
        ):
            raise AssertionError(f"the benchmark's own log has problems: {problems}")


def peak(url: str, keys: str, work: str) -> float:
    """Return the peak megabytes of a process that does only ``what`` to the store."""
    command = [sys.executable, "-c", _ALONE, url, keys, work, STRATEGY]
    return float(subprocess.check_output(command, text=True))


TAU = "tau-bench"


def transcripts(engine: Engine, figures: Figures, folder: Path, *, quick: bool) -> None:
    """Import ``tau_bench*.json`` of the folder, weigh it, and compact it again."""
    files = sorted(folder.glob("tau_bench*.json"))
    if not files:
        figures.note(f"{TAU}: not measured, there is no tau_bench*.json in {folder}")
        return
    read_transcripts = [transcript for file in files for transcript in read(file)]
    figures.sizes.setdefault(engine.name, {}).update(_sizes(engine, read_transcripts))
    wanted = 20 if quick else 1_000
    figures.summaries[engine.name] = _summaries(engine, read_transcripts, wanted)


def _sizes(engine: Engine, read_transcripts: Sequence[Transcript]) -> dict[str, float]:
    """Bytes of one event, stored and as ``refold log --json`` prints it."""
    ours = Refold(engine)
    with ours.store as store:
        empty = ours.stored()
        events = text = 0
        for transcript in read_transcripts:
            session = store.session(user_id=USER, session_id=transcript.session_id)
            extend(session, transcript.drafts, where=transcript.session_id)
            for envelope in session.history.pages():
                events += 1
                text += len(orjson.dumps(envelope.to_json())) + 1
        taken = ours.stored() - empty
    return {TAU: taken / events, f"{TAU}, JSON": text / events}


def _summaries(
    engine: Engine, read_transcripts: Sequence[Transcript], wanted: int
) -> dict[str, float]:
    """Return the share of summaries in a session that was compacted that often.

    The session consists of the transcripts, one after another and repeatedly.
    """
    with Refold(engine).store as store:
        session = store.session(user_id=USER, session_id="talk")
        compactions = 0
        for number in itertools.count():
            drafts = read_transcripts[number % len(read_transcripts)].drafts
            session.append([_renamed(draft.event, number) for draft in drafts])
            while session.compact(STRATEGY) is not None:
                compactions += 1
            if compactions >= wanted:
                break
        (derived,) = (name for name in session.history.streams() if name != "main")
        text = _text(session.history.derived(derived)) / _text(session.history.pages())
        rows = _state(session, derived) / _state(session, "main")
    return {
        f"{compactions} compactions, on the disk": rows,
        f"{compactions} compactions, as JSON": text,
    }


def _renamed(event: Event, number: int) -> Event:
    """Return the event with a call id that is new to the session."""
    if not isinstance(event, ToolCall | ToolResult):
        return event
    return event.model_copy(update={"call_id": f"{number}-{event.call_id}"})


def _text(events: Iterable[Envelope]) -> int:
    return sum(len(orjson.dumps(event.to_json())) for event in events)


def _state(session: Session, name: str) -> int:
    log: Any = session.writer.log
    rows = log.recorder.select_events(session.stream._replace(stream=name))
    return sum(len(row.state) for row in rows)
