"""How well memory predicts runs it has not seen, and its cost."""

from __future__ import annotations

import gc
import json
import os
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any, Final

import orjson
from rich.console import Console
from rich.table import Table

import refold
from benchmarks.report import Check, as_markdown, filled, machine, promises, table
from refold.adapters.importers import read
from refold.domain.events import Event
from refold.domain.ids import USER_SESSION, StreamId
from refold.projections.memory.items import Item, items
from refold.projections.memory.sessions import (
    GENERAL,
    LONGEST_PATH,
    SessionFacts,
    Step,
    facts_of,
)
from refold.store import SessionStore
from refold.store.session.imports import extend

_TOP: Final = 3
# The weight of a prior, in sessions, for observations of few sessions.
_PRIOR: Final = 2.0


@dataclass(frozen=True, slots=True)
class Prediction:
    """A prediction with memory, and the same prediction without it.

    ``base`` is the share without memory, by the method that ``base_is`` names.
    """

    what: str
    measured: float
    base: float
    base_is: str
    unit: str
    count: int


@dataclass(frozen=True, slots=True)
class Known:
    """Memory of some runs, indexed by what a run already shows."""

    shown: Sequence[SessionFacts]
    items: Sequence[Item]

    @classmethod
    def of(cls, shown: Sequence[SessionFacts]) -> Known:
        return cls(shown, items(shown))

    def paths(self, scenario: str) -> dict[tuple[Step, ...], Item]:
        """The established paths of a scenario, by their steps."""
        return {
            tuple(tuple(step) for step in _path(item)): item
            for item in self.items
            if item.kind == "path" and item.scenario == scenario and item.established
        }

    @property
    def mean(self) -> float:
        return fmean(run.success or 0.0 for run in self.shown)


def predictions(memory: Known, others: Sequence[SessionFacts]) -> list[Prediction]:
    """Returns all predictions of memory about the other runs."""
    return [
        *_success(memory, others),
        *_next_tool(memory, others),
        *_errors(memory, others),
        *_length(memory, others),
    ]


def _success(memory: Known, others: Sequence[SessionFacts]) -> list[Prediction]:
    """Predict how a run ends from its first half: the mean of the items it matches."""
    chances = [(_chance(memory, run), run.success or 0.0) for run in others]
    right = [(chance >= 0.5) == (real >= 0.5) for chance, real in chances]
    usual = memory.mean >= 0.5
    base = [usual == (real >= 0.5) for _, real in chances]
    loss = fmean((chance - real) ** 2 for chance, real in chances)
    plain = fmean((memory.mean - real) ** 2 for _, real in chances)
    count = len(others)
    return [
        Prediction(
            "success, at half the run: right",
            fmean(right),
            fmean(base),
            "the usual end",
            "runs",
            count,
        ),
        Prediction(
            "success, at half the run: Brier score (less is better)",
            loss,
            plain,
            "the mean",
            "runs",
            count,
        ),
    ]


def _chance(memory: Known, run: SessionFacts) -> float:
    walked = [step for _, _, step in run.walked]
    half = walked[: (len(walked) + 1) // 2]
    matching = [
        paths[tuple(half[start:end])]
        for paths in (memory.paths(run.scenario), memory.paths(GENERAL))
        for start in range(len(half))
        for end in range(start + 1, min(len(half), start + LONGEST_PATH) + 1)
        if tuple(half[start:end]) in paths
    ]
    rated = [
        (item.success, item.sessions) for item in matching if item.success is not None
    ]
    weight = sum(count for _, count in rated) + _PRIOR
    return (sum(rate * n for rate, n in rated) + memory.mean * _PRIOR) / weight


def _next_tool(memory: Known, others: Sequence[SessionFacts]) -> list[Prediction]:
    """Predict the next step: the most frequent one after the same earlier steps."""
    counts: Counter[Step] = Counter(s for o in memory.shown for _, _, s in o.walked)
    usual = [step for step, _ in counts.most_common(_TOP)]
    first = top = base = base_top = total = 0
    for run in others:
        walked = [step for _, _, step in run.walked]
        tables = [memory.paths(run.scenario), memory.paths(GENERAL)]
        for place in range(1, len(walked)):
            guesses = _guessed(tables, walked[:place]) or usual
            total += 1
            first += guesses[0] == walked[place]
            top += walked[place] in guesses[:_TOP]
            base += usual[0] == walked[place]
            base_top += walked[place] in usual
    return [
        Prediction(
            "next tool: right",
            first / total,
            base / total,
            "the most used",
            "calls",
            total,
        ),
        Prediction(
            "next tool: among three",
            top / total,
            base_top / total,
            "the three most used",
            "calls",
            total,
        ),
    ]


def _guessed(
    tables: Iterable[Mapping[tuple[Step, ...], Item]], before: Sequence[Step]
) -> list[Step]:
    """Return likely next steps, the likeliest first: from the longest known past."""
    guesses: dict[Step, None] = {}
    for past in range(min(LONGEST_PATH - 1, len(before)), 0, -1):
        tail = tuple(before[len(before) - past :])
        for paths in tables:
            ways = [
                (path[-1], item)
                for path, item in paths.items()
                if len(path) == past + 1 and path[:-1] == tail
            ]
            for step, _ in sorted(ways, key=lambda way: (-way[1].sessions, way[0])):
                guesses.setdefault(step)
    return list(guesses)


def _errors(memory: Known, others: Sequence[SessionFacts]) -> list[Prediction]:
    """Predict failures: those that memory knows of the called tools."""
    expected = {
        (str(item.content["tool"]), str(item.content["reason"]))
        for item in memory.items
        if item.kind == "failure" and item.scenario == GENERAL and item.established
    }
    tools = {tool for tool, _ in expected}
    met = [(failure.tool, failure.reason) for run in others for failure in run.failures]
    called = [{tool for _, _, step in run.walked for tool in step} for run in others]
    warned = [
        (index, tool)
        for index, called_tools in enumerate(called)
        for tool in called_tools & tools
    ]
    came = {(i, f.tool) for i, run in enumerate(others) for f in run.failures}
    every = [
        (index, tool)
        for index, called_tools in enumerate(called)
        for tool in called_tools
    ]
    return [
        Prediction(
            "errors: known before, with their reason",
            _part(sum(failure in expected for failure in met), len(met)),
            0.0,
            "nothing",
            "errors",
            len(met),
        ),
        Prediction(
            "errors: warned of a tool, and it failed",
            _part(sum(warning in came for warning in warned), len(warned)),
            _part(sum(pair in came for pair in every), len(every)),
            "any tool called",
            "warnings",
            len(warned),
        ),
    ]


def _length(memory: Known, others: Sequence[SessionFacts]) -> list[Prediction]:
    """Predict the number of steps of a run: the median of its scenario, or of all."""
    by_scenario: dict[str, list[int]] = defaultdict(list)
    for run in memory.shown:
        for name in {GENERAL, run.scenario}:
            by_scenario[name].append(len(run.walked))
    whole = median(by_scenario[GENERAL])
    estimates = [
        abs(median(by_scenario.get(o.scenario, by_scenario[GENERAL])) - len(o.walked))
        for o in others
    ]
    plain = [abs(whole - len(run.walked)) for run in others]
    return [
        Prediction(
            "steps of a run: mean error (less is better)",
            fmean(estimates),
            fmean(plain),
            "the median of all",
            "runs",
            len(others),
        )
    ]


def _part(count: int, total: int) -> float:
    return count / total if total else 0.0


def _path(item: Item) -> Any:
    return item.content["path"]


def halves(
    shown: Sequence[SessionFacts], key: Callable[[SessionFacts], int]
) -> tuple[list[SessionFacts], list[SessionFacts]]:
    """Those whose key is even, and the others."""
    return (
        [run for run in shown if key(run) % 2 == 0],
        [run for run in shown if key(run) % 2],
    )


USER: Final = "ada"
_TURNS = 20
_TOOLS = 60
_CALLS: Final = 6
_READS: Final = 41


@dataclass(frozen=True, slots=True)
class Speed:
    """The measured figures; events and items are counts.

    extract:  seconds of CPU to compute memory from all events, with decryption;
              ``again`` to compute it when no session has changed.
    advice:   milliseconds of CPU to read and choose advice for one context.
    raw:      milliseconds of CPU to read one head, the cheapest read of a store.
    """

    events: int
    items: int
    extract: float
    again: float
    advice: float
    raw: float


def speed(events: int) -> Speed:
    """Measure on SQLite, in a temporary directory, with that many events."""
    with TemporaryDirectory() as folder, _store(Path(folder)) as store:
        sessions = max(1, events // (_TURNS * (2 * _CALLS + 2)))
        event_count = sum(_session(store, number) for number in range(sessions))
        extract = _cpu(lambda: store.memory.of(USER))
        again = _cpu(lambda: store.memory.of(USER))
        store.memory.advice(USER, fresh=timedelta(0))
        advice = median(_cpu(lambda: store.memory.advice(USER)) for _ in range(_READS))
        stream = StreamId(USER, USER_SESSION)
        raw = median(_cpu(lambda: store.log.head(stream)) for _ in range(_READS))
        items = len(store.memory.of(USER).items)
    return Speed(event_count, items, extract, again, 1e3 * advice, 1e3 * raw)


def _store(folder: Path) -> SessionStore:
    os.environ["REFOLD_HOME"] = str(folder)
    return refold.open(f"sqlite:///{folder / 'refold.db'}")


def _session(store: SessionStore, number: int) -> int:
    """A session whose paths are its own as well as others': memory grows with each."""
    session = store.session(user_id=USER, session_id=f"s-{number}")
    tools = number * 7
    events: list[Event] = []
    for turn in range(_TURNS):
        events.append(refold.UserInput(text=f"look at {turn}"))
        for call in range(_CALLS):
            call_id = f"c{turn}-{call}"
            name = f"tool_{(tools + turn * call + call * call) % _TOOLS}"
            failed = (number + turn + call) % 9 == 0
            events += [
                refold.ToolCall(call_id=call_id, tool_name=name),
                refold.ToolResult(
                    call_id=call_id, content="Error: not found" if failed else "done"
                ),
            ]
        events.append(refold.AgentResponse(text="done"))
    outcome = "success" if number % 3 else "failure"
    events[-1] = refold.Final(outcome=outcome)
    session.append(events)
    return len(events)


def _cpu(work: Callable[[], object]) -> float:
    gc.collect()
    begun = time.process_time()
    work()
    return time.process_time() - begun


_EVENTS = 100_000
_QUICK = 2_000
_SPLITS = {"by task": 0, "by trial": 1}


@dataclass(frozen=True, slots=True)
class Options:
    """The parts to run and the files to write.

    quick:    a fiftieth of the events; its times mean nothing.
    data:     a folder with transcripts of tau-bench (``tau_bench*.json``).
    markdown: a page of documentation whose results are replaced.
    """

    quick: bool = False
    data: Path | None = None
    json: Path | None = None
    markdown: Path | None = None


@dataclass(slots=True)
class Figures:
    """All that a run measured; ``predictions`` is by split, then half."""

    speed: Speed
    predictions: dict[str, list[list[Prediction]]] = field(default_factory=dict)
    evidence: tuple[int, int] | None = None

    @property
    def checks(self) -> list[Check]:
        """The targets."""
        at = self.speed
        per = 100_000 / at.events
        shown = self.evidence
        opened = None if shown is None else shown[0] / max(1, shown[1])
        return [
            Check(
                "extracting 100 000 events", at.extract * per, most=10.0, unit="s CPU"
            ),
            Check(f"advice, of {at.items} items", at.advice, most=1.0, unit="ms CPU"),
            Check("evidence that opens to its events", opened, least=1.0),
        ]


def run(options: Options) -> int:
    """Measure, print, write; returns 1 if something that must hold does not."""
    console = Console(width=None if sys.stdout.isatty() else 140)
    figures = Figures(speed(_QUICK if options.quick else _EVENTS))
    if options.data:
        _predict(figures, options.data)
    for part in tables(figures):
        console.print(part)
        console.print()
    if options.json:
        options.json.write_text(json.dumps(_plain(figures), indent=1) + "\n")
    if options.markdown:
        page = options.markdown.read_text(encoding="utf-8")
        results = "\n".join(as_markdown(part) for part in tables(figures))
        options.markdown.write_text(filled(page, machine(), results), encoding="utf-8")
    wrong = [check for check in figures.checks if check.holds is False]
    return int(bool(wrong) and not options.quick)


def _predict(figures: Figures, folder: Path) -> None:
    shown, opened = _shown(folder)
    figures.evidence = opened
    for name, place in _SPLITS.items():
        even, odd = halves(shown, partial(_number, place))
        both = ((even, odd), (odd, even))
        figures.predictions[name] = [predictions(Known.of(a), b) for a, b in both]


def _number(place: int, shown: SessionFacts) -> int:
    """The number of the task, halved as all of them are even, or of the trial."""
    number = int(re.findall(r"\d+", shown.session_id)[place])
    return number // 2 if place == 0 else number


def _shown(folder: Path) -> tuple[list[SessionFacts], tuple[int, int]]:
    """Return what each run shows, and how many cited events support their item."""
    files = sorted(folder.glob("tau_bench*.json"))
    transcripts = [transcript for path in files for transcript in read(path)]
    shown: list[SessionFacts] = []
    with refold.open("memory://") as store:
        for transcript in transcripts:
            session = store.session(user_id="ada", session_id=transcript.session_id)
            extend(session, transcript.drafts, where=transcript.session_id)
            shown.append(facts_of(transcript.session_id, session.history.pages()))
        cited = right = 0
        for item in store.memory.of("ada").items:
            for session_id, seqs in item.evidence:
                session = store.session(user_id="ada", session_id=session_id)
                for seq in seqs:
                    (event,) = session.events(after=seq - 1, limit=1)
                    cited += 1
                    right += event.type in ("tool_call", "tool_result", "final")
    return shown, (right, cited)


def tables(figures: Figures) -> list[Table]:
    """All figures."""
    parts = [promises(figures.checks), _costs(figures.speed)]
    for name, both in figures.predictions.items():
        title = f"Predictions for held-out tau-bench runs, split {name} (both halves)"
        part = table(title, "", "measured", "without", "which is", "of")
        for rows in zip(*both, strict=True):
            part.add_row(
                rows[0].what,
                " / ".join(f"{row.measured:.2f}" for row in rows),
                " / ".join(f"{row.base:.2f}" for row in rows),
                rows[0].base_is,
                " / ".join(str(row.count) for row in rows) + f" {rows[0].unit}",
            )
        parts.append(part)
    return parts


def _costs(at: Speed) -> Table:
    rendered = table("What memory costs (CPU of one core)", "", "")
    rendered.add_row(f"extracting {at.events} events, s", f"{at.extract:.2f}")
    rendered.add_row("the same when no session moved on, s", f"{at.again:.2f}")
    rendered.add_row(f"advice of {at.items} items, ms", f"{at.advice:.2f}")
    rendered.add_row("reading one head, ms", f"{at.raw:.2f}")
    return rendered


def _plain(figures: Figures) -> dict[str, Any]:
    values: dict[str, Any] = orjson.loads(orjson.dumps(asdict(figures)))
    return {"machine": machine(), **values}
