"""The figures as tables, for a terminal and for the documentation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from benchmarks import tabular
from benchmarks.store.figures import Figure, Figures
from benchmarks.store.stages import STAGES
from benchmarks.tabular import as_markdown, promises, table

_OFTEN = 3
"""Who is compared in so many subjects has a column."""


def show(figures: Figures, console: Console) -> None:
    """Print all tables."""
    for made in _all(figures):
        if made.row_count:
            console.print(made)
            console.print()
    for said in figures.notes:
        console.print(said, style="dim")


def markdown(figures: Figures) -> str:
    """The same for a page of documentation."""
    parts = [as_markdown(made) for made in _all(figures) if made.row_count]
    return "\n".join([*parts, *(f"{said}\n" for said in figures.notes)])


def filled(page: str, figures: Figures) -> str:
    """``page`` with the tables between its marks.

    Raises ValueError if it has no marks.
    """
    return tabular.filled(page, figures.conditions, markdown(figures))


def _all(figures: Figures) -> Iterable[Table]:
    yield promises(figures.checks)
    for engine in dict.fromkeys(figure.engine for figure in figures.figures):
        yield _against(engine, [f for f in figures.figures if f.engine == engine])
    yield _stages(figures)
    yield _bytes(figures)
    yield _memory(figures)
    yield _summaries(figures)


def _against(engine: str, figures: Sequence[Figure]) -> Table:
    """A row for each subject: what Refold takes, and how many times that of each other.

    Who is in few subjects stands in the last column, by name.
    """
    seen = Counter(figure.who for figure in figures if figure.ratio is not None)
    often = [who for who, times in seen.items() if times >= _OFTEN]
    made = table(f"{engine}: what Refold takes, and how many times that of …", "")
    for head in ("refold", "a second", *often, "others"):
        made.add_column(head, justify="right")
    for subject, size in dict.fromkeys((f.subject, f.size) for f in figures):
        by = {f.who: f for f in figures if (f.subject, f.size) == (subject, size)}
        ours = by.pop("refold", None)
        made.add_row(
            f"{subject}, {size:,} events" if size else subject,
            _time(ours.seconds) if ours else "",
            f"{ours.rate:,.0f}" if ours else "",
            *(_ratio(by.pop(who, None)) for who in often),
            ", ".join(f"{who} {_ratio(figure)}" for who, figure in by.items()),
        )
    return made


def _ratio(figure: Figure | None) -> str:
    return "" if figure is None or figure.ratio is None else f"{figure.ratio:.2f}"


def _time(seconds: float) -> str:
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.2f} ms"
    return f"{seconds:.2f} s"


def _stages(figures: Figures) -> Table:
    made = table("One append by stage, µs", "", *STAGES, "all")
    for stages in figures.stages:
        micros = [stages.micros[stage] for stage in STAGES]
        cells = [f"{each:.0f}" for each in (*micros, sum(micros))]
        made.add_row(f"{stages.engine}, {stages.when}", *cells)
    return made


def _bytes(figures: Figures) -> Table:
    who = dict.fromkeys(name for by in figures.sizes.values() for name in by)
    made = table("Bytes of one event on the disk, with all indexes", "", *figures.sizes)
    for name in who:
        cells = [_whole(by.get(name)) for by in figures.sizes.values()]
        made.add_row(name, *cells)
    return made


def _memory(figures: Figures) -> Table:
    done = dict.fromkeys(name for by in figures.memory.values() for name in by)
    made = table("Memory at the peak, MB", "", *figures.memory)
    for name in done:
        cells = [_whole(by.get(name)) for by in figures.memory.values()]
        made.add_row(name, *cells)
    return made


def _summaries(figures: Figures) -> Table:
    kinds = dict.fromkeys(name for by in figures.summaries.values() for name in by)
    made = table("Summaries, in % of the log", "", *figures.summaries)
    for name in kinds:
        shares = (by.get(name) for by in figures.summaries.values())
        made.add_row(name, *("" if s is None else f"{s:.1%}" for s in shares))
    return made


def _whole(figure: float | None) -> str:
    return "" if figure is None else f"{figure:,.0f}"
