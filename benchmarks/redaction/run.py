"""One complete run, from the corpora to the tables."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Generic, TypeVar

import orjson
from rich.console import Console

from benchmarks.redaction import (
    adversarial as placed,
    clean,
    events,
    labelled,
    laws,
    prose,
    report,
    tools,
)
from benchmarks.redaction.corpora import Corpora
from benchmarks.redaction.events import Json
from benchmarks.redaction.labelled import Item, score, wrong
from benchmarks.redaction.report import Accuracy, Figures, Half
from benchmarks.redaction.tools import Tool, peers
from benchmarks.report import machine
from refold.redaction.redactor import Redactor
from refold.redaction.rules import PACKS

_Item = TypeVar("_Item")


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Pin this process to one core, if the system allows it."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass
class Race(Generic[_Item]):
    """Time several tools for the same work in turn: a busy machine slows all.

    Each has its own items: a slow tool gets a sample.  The best round counts.
    """

    size: Callable[[_Item], int]
    _runners: dict[str, tuple[Callable[[_Item], object], Sequence[_Item]]] = field(
        default_factory=dict
    )

    def enter(
        self, name: str, work: Callable[[_Item], object], items: Sequence[_Item]
    ) -> None:
        """Let ``name`` run ``work`` over ``items`` in each round."""
        self._runners[name] = (work, items)

    def run(self, rounds: int) -> Mapping[str, float]:
        """Bytes a second of each, best of ``rounds``."""
        best = dict.fromkeys(self._runners, 0.0)
        for _ in range(rounds):
            for name, (work, items) in self._runners.items():
                spent = seconds(work, items)
                best[name] = max(best[name], sum(map(self.size, items)) / spent)
        return best


def seconds(work: Callable[[_Item], object], items: Sequence[_Item]) -> float:
    """Return the processor time in seconds that ``work`` takes over all ``items``."""
    start = time.process_time()
    for item in items:
        work(item)
    return max(time.process_time() - start, 1e-9)


def sample(
    items: Sequence[_Item], size: Callable[[_Item], int], most: int
) -> list[_Item]:
    """Items from all over, about ``most`` bytes in all."""
    step = max(1, sum(map(size, items)) // most)
    return [*items[step // 2 :: step]] or [*items[:1]]


# The bytes of a corpus that a slow tool gets.
_PEER_SAMPLE = 60_000
_SLOW_SAMPLE = 1_000_000


def speed(
    figures: Figures,
    corpora: Corpora,
    engines: Mapping[str, Redactor],
    tools: Sequence[Tool],
    rounds: int,
) -> None:
    """Race all over each corpus, in turn, best of ``rounds``."""
    for name in ("clean", "mixed", "clean_long", "mixed_long"):
        texts: list[str] = getattr(corpora, name)
        figures.speed[name] = _texts(texts, engines, tools, rounds)
    for name in ("events", "small_leaves"):
        values: list[Json] = getattr(corpora, name)
        figures.speed[name] = _values(values, engines, tools, rounds)
    small = _values(corpora.small_events, engines, (), rounds)
    per_event = events.size(corpora.small_events[0])
    figures.small_event_us = {
        name: per_event / rate for name, rate in small.items() if name in engines
    }


def adversarial(
    figures: Figures, texts: Mapping[str, str], engines: Mapping[str, Redactor]
) -> None:
    """Return the milliseconds that each text takes each engine, best of two."""
    for name, redactor in engines.items():
        figures.adversarial_ms[name] = {
            kind: min(seconds(redactor.text, [text]) for _ in range(2)) * 1000
            for kind, text in texts.items()
        }


def _texts(
    texts: list[str],
    engines: Mapping[str, Redactor],
    tools: Sequence[Tool],
    rounds: int,
) -> dict[str, float]:
    race = Race[str](_bytes)
    race.enter("bytes.lower", lambda text: text.encode().lower(), texts)
    for name, redactor in engines.items():
        most = _SLOW_SAMPLE if name == "stdlib" else len(texts) * 10**9
        race.enter(name, redactor.text, sample(texts, _bytes, most))
    few = sample(prose.chunks("".join(texts)), _bytes, _PEER_SAMPLE)
    if _bytes(texts[0]) > _PEER_SAMPLE:
        few = ["".join(few)]
    for tool in tools:
        race.enter(tool.name, tool.spans, few)
    return _megabytes(race.run(rounds))


def _values(
    values: list[Json],
    engines: Mapping[str, Redactor],
    tools: Sequence[Tool],
    rounds: int,
) -> dict[str, float]:
    race = Race[Json](events.size)
    race.enter("orjson.dumps", orjson.dumps, values)
    for name, redactor in engines.items():
        most = _SLOW_SAMPLE if name == "stdlib" else len(values) * 10**9
        race.enter(name, redactor.value, sample(values, events.size, most))
    for tool in tools:
        few = sample(values, events.size, _PEER_SAMPLE)
        race.enter(tool.name, _dumped(tool), few)
    return _megabytes(race.run(rounds))


def _dumped(tool: Tool) -> Callable[[Json], object]:
    """The tool on the value's JSON: the others know texts only."""
    return lambda value: tool.spans(orjson.dumps(value).decode())


def _bytes(text: str) -> int:
    return len(text.encode())


def _megabytes(rates: Mapping[str, float]) -> dict[str, float]:
    return {name: rate / 1e6 for name, rate in rates.items()}


_PEER_NOISE = 40_000


def accuracy(
    figures: Figures, tools: Sequence[Tool], data: Path | None, *, each: int, seed: int
) -> None:
    """Score each tool on each half of our own texts and, if given, of ``data``."""
    _halves(figures, report.OWN, labelled.items(Random(f"{seed}:own"), each), tools)
    keys = labelled.vendor_items(Random(f"{seed}:keys"))[:: max(1, 40 // each)]
    _halves(figures, report.KEYS, keys, tools)
    if data is None:
        return
    if (data / labelled.SENTENCES).exists():
        _halves(figures, report.SENTENCES, labelled.sentences(data), tools)
    if (data / labelled.CASES).exists():
        cases = labelled.cases(data)
        figures.case_count = len(cases)
        figures.cases = {tool.name: wrong(tool, cases) for tool in tools}


def _halves(
    figures: Figures, data: str, items: Sequence[Item], tools: Sequence[Tool]
) -> None:
    halves: tuple[tuple[Half, bool], ...] = (("development", False), ("held out", True))
    for tool in tools:
        for half, held_out in halves:
            half_items = [item for item in items if item.held_out is held_out]
            entry = Accuracy(data, half, tool.name, score(tool, half_items))
            figures.accuracy.append(entry)


def noise(figures: Figures, texts: Mapping[str, str], tools: Sequence[Tool]) -> None:
    """False positives by kind; other tools get the start of each kind."""
    for tool in tools:
        most = None if tool.name.startswith("refold") else _PEER_NOISE
        given = {kind: text[:most] for kind, text in texts.items()}
        figures.noise_bytes[tool.name] = sum(len(t.encode()) for t in given.values())
        figures.noise[tool.name] = {
            kind: _found(tool, text) for kind, text in given.items()
        }


def _found(tool: Tool, text: str) -> int:
    return sum(len(tool.spans(chunk)) for chunk in prose.chunks(text))


# The sampling of cases, and the bytes of clean text, for a slow tool.
_PEER_EVERY = 7
_PEER_CLEAN = 200_000


def attacks(figures: Figures, given: Sequence[Tool]) -> None:
    """Of the secrets that attackers placed, how many each tool finds, by kind."""
    for tool in given:
        every = 1 if tool.name == "refold" else _PEER_EVERY
        figures.placed[tool.name] = {
            half: {kind: (hits[kind], of) for kind, of in sorted(counts.items())}
            for half in ("dev", "held_out")
            for counts, hits, _ in [_placed(tool, half, every)]
        }


def _placed(
    tool: Tool, half: placed.Half, every: int
) -> tuple[Counter[str], Counter[str], list[placed.Case]]:
    return placed.recall(half, lambda text: tools.without(tool, text), every=every)


def unflagged(
    figures: Figures, corpus: Sequence[clean.Text], given: Sequence[Tool]
) -> None:
    """Return each tool's findings in clean text, per MB, by type."""
    parts = {
        "refold, sources": [text for text in corpus if text.part != "logs"],
        "refold, logs with traps": [text for text in corpus if text.part == "logs"],
    }
    chunks = [
        text._replace(text=chunk)
        for text in corpus
        for chunk in prose.chunks(text.text)
    ]
    few = sample(chunks, lambda text: len(text.text.encode()), _PEER_CLEAN)
    for tool in given:
        texts_by_tool = parts if tool.name == "refold" else {tool.name: few}
        for name, chosen_texts in texts_by_tool.items():
            flagged = clean.found(tool.spans, chosen_texts)
            figures.clean[name] = flagged.per_megabyte()
            figures.clean_bytes[name] = flagged.sizes.total()


def code(figures: Figures, files: Mapping[str, str], redactor: Redactor) -> None:
    """Which files of clean code change, and by how many bytes."""
    changed = {}
    for name, text in files.items():
        after, _ = redactor.text(text)
        if after != text:
            lines = zip(text.splitlines(), after.splitlines(), strict=False)
            changed[name] = [old.strip()[:160] for old, new in lines if old != new]
    figures.code = {
        "files": len(files),
        "bytes": sum(len(text.encode()) for text in files.values()),
        "changed_files": len(changed),
        "changed_bytes": sum(len(s.encode()) for ls in changed.values() for s in ls),
        "changed": dict(list(changed.items())[:50]),
    }


@dataclass(frozen=True, slots=True)
class Options:
    """The parts to run and the files to write.

    quick:    a hundredth of the work, to see that everything runs; times mean nothing.
    data:     a folder with labelled data that is not part of the project.
    markdown: a page of documentation whose results are replaced.
    laws:     the number of generated cases; None: 20 000, or 500 if quick.
    misses:   also print what was missed in the halves to which rules may be tuned.
    """

    quick: bool = False
    data: Path | None = None
    json: Path | None = None
    plot: Path | None = None
    markdown: Path | None = None
    laws: int | None = None
    misses: bool = False


def run(options: Options) -> int:
    """Measure, print, write; returns 1 if something that must hold does not."""
    console = Console(width=None if sys.stdout.isatty() else 140)
    with one_core():
        figures = measured(options, console)
    report.show(figures, console)
    if options.json:
        plain_figures = figures.plain(misses=options.misses)
        options.json.write_text(
            json.dumps(plain_figures, ensure_ascii=False, indent=1) + "\n"
        )
    if options.plot:
        report.draw(figures, options.plot)
    if options.markdown:
        page = options.markdown.read_text(encoding="utf-8")
        options.markdown.write_text(report.filled(page, figures), encoding="utf-8")
    return int(any(check.gate and check.holds is False for check in figures.checks))


def measured(options: Options, console: Console) -> Figures:
    """All figures of one run."""
    corpora = Corpora(scale=0.004 if options.quick else 1.0)
    figures = Figures(machine=machine())
    engines = tools.engines()
    others = peers()
    languages = tools.Refold(tools.redactor(packs=tools.LANGUAGES))
    everything = tools.Refold(tools.redactor(packs=PACKS), "refold, all packs")
    default = tools.Refold(next(iter(engines.values())))
    steps: dict[str, Callable[[], None]] = {
        "warming up": lambda: _warm(
            [*map(tools.Refold, engines.values()), languages, *others]
        ),
        "speed": lambda: speed(
            figures, corpora, engines, others, 1 if options.quick else 5
        ),
        "adversarial": lambda: adversarial(figures, corpora.adversarial, engines),
        "accuracy": lambda: accuracy(
            figures,
            [languages, everything, *others],
            options.data,
            each=4 if options.quick else 40,
            seed=corpora.seed,
        ),
        "noise": lambda: noise(figures, corpora.noise, [default, everything, *others]),
        "attacks": lambda: attacks(figures, [default, *others]),
        "clean": lambda: unflagged(
            figures, [*clean.texts(0.02 if options.quick else 1)], [default, *others]
        ),
        "code": lambda: code(figures, corpora.code, default.redactor),
        "laws": lambda: _laws(figures, options, engines, corpora),
    }
    for name, step in steps.items():
        start = time.perf_counter()
        step()
        console.print(f"{name}: {time.perf_counter() - start:.1f} s", style="dim")
    figures.checks = report.checks(figures, timed=not options.quick)
    return figures


def _warm(tools: Iterable[Tool]) -> None:
    """Let everything be loaded and compiled before the clock runs."""
    for tool in tools:
        tool.spans("Call (415) 555-0132 or write to ada@example.org")


def _laws(
    figures: Figures,
    options: Options,
    engines: dict[str, Redactor],
    corpora: Corpora,
) -> None:
    cases = (
        options.laws if options.laws is not None else 500 if options.quick else 20_000
    )
    also = [*corpora.mixed[::9], *corpora.events[::9], *corpora.small_leaves[:3]]
    verdict = laws.laws(engines, cases, corpora.seed, also=also)
    figures.laws = {
        "cases": verdict.cases,
        "broken": dict(verdict.broken),
        "examples": verdict.examples,
    }
