"""Tables of figures, for a terminal and between the marks of a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.table import Table
from rich.text import Text

from benchmarks.checks import Check

_BEGIN, _END = "<!-- results: begin", "<!-- results: end"
_MARKS: dict[bool | None, tuple[str, str]] = {
    True: ("✓", "green"),
    False: ("✗", "bold red"),
    None: ("–", "dim"),
}


def table(title: str, *heads: str) -> Table:
    """An empty table: names to the left, figures to the right."""
    made = Table(title=title, title_justify="left")
    for number, head in enumerate(heads):
        made.add_column(head, justify="right" if number else "left")
    return made


def promises(checks: Iterable[Check]) -> Table:
    """What must hold, what was measured, and whether it holds."""
    made = table("What must hold", "", "", "measured", "must be", "unit")
    for check in checks:
        mark, style = _MARKS[check.holds]
        made.add_row(
            Text(mark, style),
            check.what,
            _value(check.measured),
            _bound(check),
            check.unit,
            style=style if check.holds is False else "",
        )
    return made


def as_markdown(made: Table) -> str:
    """The same for a page of documentation."""
    cells = [[_plain(cell) for cell in column.cells] for column in made.columns]
    heads = [_plain(column.header) for column in made.columns]
    lines = [f"**{made.title}**", "", _line(heads), _line(["---"] * len(heads))]
    lines += [_line(row) for row in zip(*cells, strict=True)]
    return "\n".join((*lines, ""))


def filled(page: str, conditions: Mapping[str, str], results: str) -> str:
    """``page`` with the results and their conditions between its marks.

    Raises ValueError if it has no marks.
    """
    head, begin, rest = page.partition(_BEGIN)
    line, newline, rest = rest.partition("\n")
    _, end, tail = rest.partition(_END)
    if not (begin and end):
        raise ValueError(f"the page has no {_BEGIN} and {_END}")
    told = ", ".join(f"{what} {which}" for what, which in conditions.items())
    body = f"\nMeasured on {told}.\n\n{results}\n"
    return f"{head}{begin}{line}{newline}{body}{end}{tail}"


def _bound(check: Check) -> str:
    least = "" if check.least is None else f"≥ {check.least:g}"
    return least or f"≤ {check.most:g}"


def _value(measured: float | None) -> str:
    if measured is None:
        return "not measured"
    if isinstance(measured, int):
        return str(measured)
    return f"{measured:.3f}" if measured < 10 else f"{measured:.1f}"


def _plain(cell: object) -> str:
    return cell.plain if isinstance(cell, Text) else str(cell)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
