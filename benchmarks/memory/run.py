"""One run: what memory foretells, and what it costs."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

import refold
from benchmarks.checks import Check
from benchmarks.machine import machine
from benchmarks.memory.heldout import Foretold, Known, foretold, halves
from benchmarks.memory.speed import Speed, speed
from benchmarks.tabular import as_markdown, filled, promises, table
from refold.adapters.importers import read
from refold.projections.memory.sessions import Shown, watch
from refold.store.sessions import extend

_EVENTS, _QUICK = 100_000, 2_000
_SPLITS = {"by task": 0, "by trial": 1}


@dataclass(frozen=True, slots=True)
class Options:
    """What to run and where to write it.

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
    """All that a run measured; ``foretold`` is by split, then half."""

    speed: Speed
    foretold: dict[str, list[list[Foretold]]] = field(default_factory=dict)
    evidence: tuple[int, int] | None = None

    @property
    def checks(self) -> list[Check]:
        """What must hold."""
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
        _foretell(figures, options.data)
    for made in tables(figures):
        console.print(made)
        console.print()
    if options.json:
        options.json.write_text(json.dumps(_plain(figures), indent=1) + "\n")
    if options.markdown:
        page = options.markdown.read_text(encoding="utf-8")
        results = "\n".join(as_markdown(made) for made in tables(figures))
        options.markdown.write_text(filled(page, machine(), results), encoding="utf-8")
    wrong = [check for check in figures.checks if check.holds is False]
    return int(bool(wrong) and not options.quick)


def _foretell(figures: Figures, folder: Path) -> None:
    shown, opened = _shown(folder)
    figures.evidence = opened
    for name, place in _SPLITS.items():
        one, other = halves(shown, partial(_number, place))
        both = ((one, other), (other, one))
        figures.foretold[name] = [foretold(Known.of(a), b) for a, b in both]


def _number(place: int, shown: Shown) -> int:
    """The number of the task, halved as all of them are even, or of the trial."""
    number = int(re.findall(r"\d+", shown.session_id)[place])
    return number // 2 if place == 0 else number


def _shown(folder: Path) -> tuple[list[Shown], tuple[int, int]]:
    """What each run shows, and how many of the cited events show what they are for."""
    files = sorted(folder.glob("tau_bench*.json"))
    found = [one for path in files for one in read(path)]
    shown: list[Shown] = []
    with refold.open("memory://") as store:
        for one in found:
            session = store.session("ada", one.session_id)
            extend(session, one.drafts, where=one.session_id)
            shown.append(watch(one.session_id, session.pages()))
        cited = right = 0
        for item in store.memory.of("ada").items:
            for session_id, seqs in item.evidence:
                session = store.session("ada", session_id)
                for seq in seqs:
                    (event,) = session.events(after=seq - 1, limit=1)
                    cited += 1
                    right += event.type in ("tool_call", "tool_result", "final")
    return shown, (right, cited)


def tables(figures: Figures) -> list[Table]:
    """All figures."""
    made = [promises(figures.checks), _costs(figures.speed)]
    for name, both in figures.foretold.items():
        title = f"Foretold of held-out runs of tau-bench, split {name} (both halves)"
        part = table(title, "", "measured", "without", "which is", "of")
        for rows in zip(*both, strict=True):
            part.add_row(
                rows[0].what,
                " / ".join(f"{row.measured:.2f}" for row in rows),
                " / ".join(f"{row.base:.2f}" for row in rows),
                rows[0].base_is,
                " / ".join(str(row.count) for row in rows) + f" {rows[0].unit}",
            )
        made.append(part)
    return made


def _costs(at: Speed) -> Table:
    made = table("What memory costs (CPU of one core)", "", "")
    made.add_row(f"extracting {at.events} events, s", f"{at.extract:.2f}")
    made.add_row("the same when no session moved on, s", f"{at.again:.2f}")
    made.add_row(f"advice of {at.items} items, ms", f"{at.advice:.2f}")
    made.add_row("reading one head, ms", f"{at.raw:.2f}")
    return made


def _plain(figures: Figures) -> dict[str, Any]:
    told: dict[str, Any] = orjson.loads(orjson.dumps(asdict(figures)))
    return {"machine": machine(), **told}
