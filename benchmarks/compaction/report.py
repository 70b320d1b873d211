"""The report on what survives a client's real compactions."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Final

import orjson
from rich.console import Console
from rich.table import Table

from benchmarks.compaction.boundaries import (
    Boundary,
    Compacted,
    Survival,
    boundaries,
    by_command,
    compacted,
    interval,
    middle,
    survival,
)
from benchmarks.report import Check, as_markdown, filled, machine, promises, show, table
from refold.store.settings import default_of_prepare

CLIENT: Final = "the client's own summary"
COMMAND: Final = "the command"
STRATEGIES: Final = (
    "history_summary",
    "turn_window",
    "message_window",
    "recursive_summary",
    "hybrid",
    "token_ratio:max_context_tokens=60000",
    "last_turns",
    "token_budget",
)
# The measures of a boundary, with the heads of their columns.
_MEASURES: Final = {
    "words": "user's messages, whole",
    "again": "the same after three compactions or more",
    "later_words": "after the client's own compaction: messages, whole",
    "later_constraint": "injected constraints",
    "later_lines": "lines of the client's summary",
    "later_edited": "files edited in the whole log",
    "later_used": "files used after the next one",
    "pasted": "instructions of pastes",
    "constraint": "injected constraints",
    "edited": "files edited",
    "used_later": "files used later",
    "identifiers": "identifiers used later",
}


def run(
    folder: Path,
    *,
    strategies: Sequence[str],
    command: str | None,
    json: Path | None,
    markdown: Path | None,
) -> int:
    """Measure, print, and write the files; return 1 without any compaction."""
    console = Console(width=None if sys.stdout.isatty() else 160)
    begin = time.process_time()
    found_boundaries = list(boundaries(folder))
    if not found_boundaries:
        console.print(f"there is no compaction of a client in {folder}")
        return 1
    gc.freeze()  # the many drafts stay to the end: no collection looks at them
    results = {
        CLIENT: _each(found_boundaries, lambda boundary: Compacted(boundary.summary))
    }
    if command is not None:
        results[COMMAND] = _each(
            found_boundaries, lambda boundary: by_command(boundary, command)
        )
    for strategy in strategies:
        results[strategy] = _each(found_boundaries, _compactor(strategy))
    gc.unfreeze()
    seconds = time.process_time() - begin
    tables = [promises(_checks(results)), _survivals(results, len(found_boundaries))]
    for printed in tables:
        show(console, printed)
    console.print(f"{len(found_boundaries)} compactions, {seconds:.0f} s of CPU")
    if json is not None:
        figures = {
            name: [asdict(survival) for survival in survivals]
            for name, survivals in results.items()
        }
        document = {"machine": machine(), "figures": figures}
        json.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    if markdown is not None:
        page = markdown.read_text("utf-8")
        text = "\n".join(map(as_markdown, tables))
        markdown.write_text(filled(page, machine(), text), "utf-8")
    return 0


def _compactor(strategy: str) -> Callable[[Boundary], Compacted]:
    return lambda boundary: compacted(boundary, strategy)


def _each(
    client_compactions: Iterable[Boundary], compact: Callable[[Boundary], Compacted]
) -> list[Survival]:
    return [survival(boundary, compact(boundary)) for boundary in client_compactions]


def _checks(results: dict[str, list[Survival]]) -> list[Check]:
    name = default_of_prepare().name
    survivals = results.get(name)
    if survivals is None:
        return []
    words = _values(survivals, "words")
    again = _values(survivals, "again")
    later = _values(survivals, "later_words")
    summaries = [survival.summary for survival in survivals]
    return [
        Check(f"user's messages kept by {name}", _mean(words), least=0.99),
        Check("the lowest share in a session", min(words, default=None), least=0.9),
        Check(
            f"the same after three compactions ({len(again)})", _mean(again), least=0.98
        ),
        Check("injected constraints", _mean(_values(survivals, "constraint")), least=1),
        Check(
            f"messages after the client's own compaction ({len(later)})",
            _mean(later),
            least=0.99,
        ),
        Check(
            "injected constraints after it",
            _mean(_values(survivals, "later_constraint")),
            least=1,
        ),
        Check(
            "lines of the client's summary after it",
            _mean(_values(survivals, "later_lines")),
            least=0.75,
        ),
        Check(
            "files edited before and after it",
            _mean(_values(survivals, "later_edited")),
            least=1,
        ),
        Check(
            "files used after the next one",
            _mean(_values(survivals, "later_used")),
            least=0.98,
        ),
        Check("files edited", _mean(_values(survivals, "edited")), least=1),
        Check("files used later", _mean(_values(survivals, "used_later")), least=0.98),
        Check("median characters of a context", middle(survivals), most=15_400),
        Check("median characters of its summaries", median(summaries), most=10_905),
    ]


def _survivals(results: dict[str, list[Survival]], count: int) -> Table:
    rendered = table(
        f"{count} compactions: the share that survives, with its 95 % interval",
        "",
        *_MEASURES.values(),
        "characters, median",
        "of them summaries",
        "drops named in cuts",
    )
    for name, survivals in results.items():
        cells = [_cell(_values(survivals, measure)) for measure in _MEASURES]
        summaries = median(survival.summary for survival in survivals)
        rendered.add_row(
            name,
            *cells,
            f"{middle(survivals):,.0f}",
            f"{summaries:,.0f}" if summaries else "–",
            _cell(_values(survivals, "named")),
        )
    return rendered


def _values(survivals: Iterable[Survival], measure: str) -> list[float]:
    values = (getattr(survival, measure) for survival in survivals)
    return [float(value) for value in values if value is not None]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _cell(values: Sequence[float]) -> str:
    bounds = interval(values)
    if bounds is None:
        return "–"
    return f"{bounds.mean:.3f} ({bounds.low:.2f}-{bounds.high:.2f})"
