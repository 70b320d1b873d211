"""The figures as tables, for a terminal and for the documentation."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from benchmarks import tabular
from benchmarks.store.figures import Figure, Figures
from benchmarks.store.stages import STAGES
from benchmarks.tabular import as_markdown, promises, table


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
    subjects = dict.fromkeys(
        (figure.subject, figure.size) for figure in figures.figures
    )
    for subject, size in subjects:
        yield _subject(figures, subject, size)
    yield _rows(figures)
    yield _stages(figures)
    yield _bytes(figures)
    yield _memory(figures)
    yield _summaries(figures)


def _subject(figures: Figures, subject: str, size: int) -> Table:
    """A row for each contestant, two columns for each engine."""
    found = [f for f in figures.figures if (f.subject, f.size) == (subject, size)]
    engines = list(dict.fromkeys(figure.engine for figure in found))
    title = f"{subject}, {size:,} events" if size else subject
    heads = [
        head for engine in engines for head in (engine, "a second", "refold takes")
    ]
    made = table(title[:1].upper() + title[1:], "", *heads)
    for who in dict.fromkeys(figure.who for figure in found):
        by = {figure.engine: figure for figure in found if figure.who == who}
        cells = [cell for engine in engines for cell in _cells(by.get(engine))]
        made.add_row(who, *cells)
    return made


def _cells(figure: Figure | None) -> tuple[str, str, str]:
    if figure is None:
        return ("", "", "")
    ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}×"
    return (_time(figure.seconds), f"{figure.rate:,.0f}", ratio)


def _time(seconds: float) -> str:
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.2f} ms"
    return f"{seconds:.2f} s"


def _rows(figures: Figures) -> Table:
    made = table("Rows that a context is made of", "", "rows")
    for where, count in figures.rows.items():
        made.add_row(where, str(count))
    return made


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
