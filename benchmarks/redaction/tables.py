"""The figures as tables, for a terminal and for the documentation."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from benchmarks import tabular
from benchmarks.redaction.figures import Accuracy, Figures
from benchmarks.tabular import as_markdown, promises, table as _table

_HEADS = {
    "clean": "clean, 1.8 KB",
    "mixed": "1 % values, 1.8 KB",
    "clean_long": "clean, 100 KB",
    "mixed_long": "1 % values, 100 KB",
    "events": "tool events, JSON",
    "small_leaves": "100 short rows, JSON",
}


def show(figures: Figures, console: Console) -> None:
    """Print all tables."""
    for table in (
        *(speed(figures), tails(figures), *accuracy(figures)),
        *(noise(figures), promises(figures.checks)),
    ):
        if table.row_count:
            console.print(table)
            console.print()


def markdown(figures: Figures) -> str:
    """The same for a page of documentation."""
    parts = []
    for table in (
        *(promises(figures.checks), speed(figures), tails(figures)),
        *(*accuracy(figures), noise(figures)),
    ):
        if table.row_count:
            parts.append(as_markdown(table))
    return "\n".join(parts)


def filled(page: str, figures: Figures) -> str:
    """``page`` with the tables between its marks.

    Raises ValueError if it has no marks.
    """
    return tabular.filled(page, figures.machine, markdown(figures))


def speed(figures: Figures) -> Table:
    """Megabytes a second by who ran and on what."""
    table = _table("MB/s of processor time, one core", "", *map(_head, figures.speed))
    runners = dict.fromkeys(name for by in figures.speed.values() for name in by)
    for name in runners:
        rates = (by.get(name) for by in figures.speed.values())
        table.add_row(name, *map(_rate, rates))
    return table


def tails(figures: Figures) -> Table:
    """What one small event takes, and the worst text."""
    table = _table(
        "Small and hard", "", "174-byte event, µs", "worst of 30, ms", "which"
    )
    for name, times in figures.adversarial_ms.items():
        small = figures.small_event_us.get(name)
        worst = max(times, key=lambda kind: times[kind])
        table.add_row(name, _rate(small), _rate(times[worst]), worst)
    return table


def accuracy(figures: Figures) -> list[Table]:
    """A table for each set of labelled data: recall on its held-out half, by type."""
    held_out = [entry for entry in figures.accuracy if entry.half == "held out"]
    return [
        _recall([entry for entry in held_out if entry.data == name])
        for name in dict.fromkeys(entry.data for entry in held_out)
    ]


def _recall(entries: list[Accuracy]) -> Table:
    table = _table(
        f"Recall: {entries[0].data}, held out", "", "values", *(e.tool for e in entries)
    )
    for kind, count in sorted(entries[0].score.types.items()):
        if count.spans:
            cells = (f"{e.score.types[kind].recall:.3f}" for e in entries)
            table.add_row(kind, str(count.spans), *cells)
    table.add_section()
    table.add_row("all", "", *(f"{e.score.total.recall:.3f}" for e in entries))
    precisions = (f"{e.score.total.precision:.3f}" for e in entries)
    table.add_row("precision", "", *precisions)
    return table


def noise(figures: Figures) -> Table:
    """False positives by kind of noise, and in a megabyte."""
    table = _table("False positives on noise", "", *figures.noise)
    kinds = dict.fromkeys(kind for by in figures.noise.values() for kind in by)
    for kind in kinds:
        table.add_row(kind, *(str(by.get(kind, "")) for by in figures.noise.values()))
    table.add_section()
    rates = [f"{figures.per_megabyte(tool):.1f}" for tool in figures.noise]
    if rates:
        table.add_row("per MB", *rates)
    return table


def _rate(rate: float | None) -> str:
    return "" if rate is None else f"{rate:.2f}" if rate < 10 else f"{rate:.0f}"


def _head(corpus: str) -> str:
    return _HEADS[corpus]
