"""The machine of a run, its targets, and tables of figures."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True, slots=True)
class Check:
    """A target and its measurement.

    goal: a better value to aim at.
    gate: a run fails if it is missed; load does not change such a figure.
    """

    what: str
    measured: float | None
    least: float | None = None
    most: float | None = None
    unit: str = ""
    goal: float | None = None
    gate: bool = False

    @property
    def holds(self) -> bool | None:
        """None: not measured in this run."""
        if self.measured is None:
            return None
        over = self.least is None or self.measured >= self.least
        return over and (self.most is None or self.measured <= self.most)


def machine() -> dict[str, str]:
    """Interpreter, system and processor, in words."""
    return {
        "python": sys.version.split()[0],
        "system": platform.system(),
        "processor": _processor(),
    }


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def commit() -> str:
    """The commit that is measured; it says so if files were changed since."""
    shown = ("describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=-changed")
    git = subprocess.run(
        ["git", *shown],  # noqa: S607 - the developer's own
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return git.stdout.strip() or "unknown"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor()
    lines = info.read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.machine()


_BEGIN = "<!-- results: begin"
_END = "<!-- results: end"
_MARKS: dict[bool | None, tuple[str, str]] = {
    True: ("✓", "green"),
    False: ("✗", "bold red"),
    None: ("–", "dim"),
}


def table(title: str, *heads: str) -> Table:
    """Return an empty table: names on the left, figures on the right."""
    rendered = Table(title=title, title_justify="left")
    for number, head in enumerate(heads):
        rendered.add_column(head, justify="right" if number else "left")
    return rendered


def show(console: Console, shown: Table) -> None:
    """Print a table; where it does not fit, a table of two columns for each row."""
    unlimited = console.options.update(max_width=1_000)
    if Measurement.get(console, unlimited, shown).minimum <= console.width:
        console.print(shown)
        return
    columns = [list(column.cells) for column in shown.columns]
    heads = [_plain(column.header) for column in shown.columns]
    console.print(shown.title)
    for name, *figures in zip(*columns, strict=True):
        narrow = Table(title=_plain(name), title_justify="left", show_header=False)
        narrow.add_column(overflow="fold")
        narrow.add_column(justify="right", overflow="fold")
        for head, figure in zip(heads[1:], figures, strict=True):
            narrow.add_row(head, figure)
        console.print(narrow)


def promises(checks: Iterable[Check]) -> Table:
    """Return the targets, their measurements, and whether each is reached."""
    rendered = table("Targets", "", "", "measured", "target", "goal", "unit")
    for check in checks:
        mark, style = _MARKS[check.holds]
        rendered.add_row(
            Text(mark, style),
            f"{check.what} (gate)" if check.gate else check.what,
            _value(check.measured),
            _bound(check),
            "" if check.goal is None else f"{check.goal:g}",
            check.unit,
            style=style if check.holds is False else "",
        )
    return rendered


def as_markdown(shown: Table) -> str:
    """The same for a page of documentation."""
    cells = [[_plain(cell) for cell in column.cells] for column in shown.columns]
    heads = [_plain(column.header) for column in shown.columns]
    lines = [f"**{shown.title}**", "", _line(heads), _line(["---"] * len(heads))]
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
    described = ", ".join(
        f"{condition} {which}" for condition, which in conditions.items()
    )
    body = f"\nMeasured on {described}.\n\n{results}\n"
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
