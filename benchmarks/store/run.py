"""One complete run, from the databases to the tables."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias
from unittest import mock

from rich.console import Console

from benchmarks.report import commit, cores, machine
from benchmarks.store import report
from benchmarks.store.contestants import ENGINES, Engine, engines, warm_redactor
from benchmarks.store.parts import appends, folds, imports, load, reads, transcripts
from benchmarks.store.racing import Field, Figures, Scale, taking_part
from refold.domain.errors import InvalidConfiguration

Part: TypeAlias = Callable[[Field, Figures, Scale], Awaitable[None]]
PARTS: dict[str, Part] = {
    "append": appends,
    "load": load,
    "import": imports,
    "read": reads,
    "fold": folds,
}
_PACKAGES = (
    "refold",
    "psycopg",
    "eventsourcing",
    "openai-agents",
    "google-adk",
    "langgraph-checkpoint-postgres",
    "langgraph-checkpoint-sqlite",
)


@dataclass(frozen=True, slots=True)
class Options:
    """The parts to run and the files to write.

    quick:    the same with fewer rounds and shorter sessions, in a few minutes.
    data:     a folder with transcripts that are not part of the project.
    markdown: a page of documentation whose results are replaced.
    events:   of an import, of the longest session, of a rebuild; None: 100 000, or
              8 000 if quick.
    only:     parts to run; empty: all.
    engines:  engines to run on, as the keys of ENGINES; empty: all.
    """

    quick: bool = False
    data: Path | None = None
    json: Path | None = None
    plot: Path | None = None
    markdown: Path | None = None
    events: int | None = None
    only: Sequence[str] = ()
    engines: Sequence[str] = ()


def run(options: Options) -> int:
    """Measure, print, write; return 1 if a gate is missed.

    Raises InvalidConfiguration, before anything is measured, for files that cannot be
    read or written in the end.
    """
    _check(options)
    console = Console(width=None if sys.stdout.isatty() else 140)
    with _folder() as folder:
        figures = asyncio.run(measured(options, folder, console))
    checks = report.checks(figures)
    figures.checks = [c for c in checks if c.measured is not None]
    report.show(figures, console)
    if options.json:
        document = json.dumps(figures.plain(), ensure_ascii=False, indent=1)
        options.json.write_text(document + "\n", encoding="utf-8")
    if options.plot:
        report.draw(figures, options.plot)
    if options.markdown:
        page = options.markdown.read_text(encoding="utf-8")
        options.markdown.write_text(report.filled(page, figures), encoding="utf-8")
    return int(any(c.gate and c.holds is False for c in figures.checks))


def _check(options: Options) -> None:
    for file in (options.json, options.plot, options.markdown):
        if file and not file.absolute().parent.is_dir():
            raise InvalidConfiguration(f"the folder of {file} is not there: make it")
    if options.data and not options.data.is_dir():
        raise InvalidConfiguration(f"{options.data} is no folder: give one for --data")
    if options.plot and find_spec("matplotlib") is None:
        raise InvalidConfiguration(
            "a plot needs matplotlib: pip install 'refold[plot]', or leave --plot out"
        )
    if options.markdown:
        try:
            report.filled(options.markdown.read_text(encoding="utf-8"), Figures())
        except (OSError, ValueError) as error:
            raise InvalidConfiguration(
                f"{options.markdown} cannot be filled with results: {error}"
            ) from None


async def measured(options: Options, folder: Path, console: Console) -> Figures:
    """All figures of one run."""
    scale = Scale.quick(options.events) if options.quick else _scale(options.events)
    figures = Figures(conditions=_conditions(scale))
    redactor = warm_redactor()
    figures.conditions["redaction"] = redactor.engine
    with engines(options.engines or ENGINES, folder, redactor) as opened:
        for engine in opened:
            figures.conditions |= engine.conditions()
            for name in options.only or PARTS:
                start = time.perf_counter()
                async with taking_part(engine, figures) as who:
                    await PARTS[name](who, figures, scale)
                took = time.perf_counter() - start
                console.print(f"{engine.name}, {name}: {took:.1f} s", style="dim")
            _transcripts(engine, figures, options)
    return figures


def _transcripts(engine: Engine, figures: Figures, options: Options) -> None:
    if options.data and (not options.only or "read" in options.only):
        transcripts(engine, figures, options.data, quick=options.quick)


def _scale(events: int | None) -> Scale:
    return Scale(events) if events else Scale()


@contextmanager
def _folder() -> Iterator[Path]:
    """Create a folder for the databases, with its own settings and keys."""
    with tempfile.TemporaryDirectory() as name:
        home = {"REFOLD_HOME": str(Path(name, "home"))}
        others = ("REFOLD_KEYS", "REFOLD_POLICY", "REFOLD_MASTER_KEY", "REFOLD_CONFIG")
        level = logging.getLogger("refold").level
        logging.getLogger("refold").setLevel(logging.ERROR)  # of new master keys
        try:
            with mock.patch.dict(os.environ, home):
                for other in others:
                    os.environ.pop(other, None)
                yield Path(name)
        finally:
            logging.getLogger("refold").setLevel(level)


def _conditions(scale: Scale) -> dict[str, str]:
    """Run all measurements, contestant by contestant and engine by engine."""
    versions = {}
    for package in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return {
        "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
        **machine(),
        "cores": str(cores()),
        "events": f"{scale.events:,}",
        **versions,
    }
