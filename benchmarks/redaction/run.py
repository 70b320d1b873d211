"""One run of everything, from the corpora to the tables."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.machine import machine
from benchmarks.redaction import accuracy, laws, ours, plot, speed, tables, targets
from benchmarks.redaction.clock import one_core
from benchmarks.redaction.corpora import Corpora
from benchmarks.redaction.figures import Figures
from benchmarks.redaction.finding import Tool
from benchmarks.redaction.peers import peers
from refold.redaction.redactor import Redactor


@dataclass(frozen=True, slots=True)
class Options:
    """What to run and where to write it.

    quick:    a hundredth of the work, to see that all runs; its times mean nothing.
    data:     a folder with labelled data that is not part of the project.
    markdown: a page of documentation whose results are replaced.
    laws:     how many generated cases; None: 20 000, or 500 if quick.
    misses:   tell also what was missed in the halves that rules may be tuned to.
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
    tables.show(figures, console)
    if options.json:
        told = figures.plain(misses=options.misses)
        options.json.write_text(json.dumps(told, ensure_ascii=False, indent=1) + "\n")
    if options.plot:
        plot.draw(figures, options.plot)
    if options.markdown:
        page = options.markdown.read_text(encoding="utf-8")
        options.markdown.write_text(tables.filled(page, figures), encoding="utf-8")
    return int(any(check.holds is False for check in figures.checks))


def measured(options: Options, console: Console) -> Figures:
    """All figures of one run."""
    corpora = Corpora(scale=0.004 if options.quick else 1.0)
    figures = Figures(machine=machine())
    engines, others = ours.engines(), peers()
    languages = ours.Refold(ours.redactor(packs=ours.LANGUAGES))
    everything = ours.Refold(ours.redactor(packs=ours.PACKS), "refold, all packs")
    default = ours.Refold(next(iter(engines.values())))
    steps: dict[str, Callable[[], None]] = {
        "warming up": lambda: _warm(
            [*map(ours.Refold, engines.values()), languages, *others]
        ),
        "speed": lambda: speed.speed(
            figures, corpora, engines, others, 1 if options.quick else 5
        ),
        "adversarial": lambda: speed.adversarial(figures, corpora.adversarial, engines),
        "accuracy": lambda: accuracy.accuracy(
            figures,
            [languages, everything, *others],
            options.data,
            each=4 if options.quick else 40,
            seed=corpora.seed,
        ),
        "noise": lambda: accuracy.noise(
            figures, corpora.noise, [default, everything, *others]
        ),
        "code": lambda: accuracy.code(figures, corpora.code, default.redactor),
        "laws": lambda: _laws(figures, options, engines, corpora),
    }
    for name, step in steps.items():
        start = time.perf_counter()
        step()
        console.print(f"{name}: {time.perf_counter() - start:.1f} s", style="dim")
    figures.checks = targets.checks(figures, timed=not options.quick)
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
