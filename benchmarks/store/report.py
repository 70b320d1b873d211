"""The figures with their targets, as tables and as a picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import report
from benchmarks.report import Check, as_markdown, promises, table
from benchmarks.store.contestants import FULL, NORMAL, OURS, POSTGRES, RAW
from benchmarks.store.parts import (
    ASYNCIO,
    BATCH,
    BULK,
    CHAIN,
    CONTEXT,
    FOLD,
    FULL_READ,
    IMPORT,
    JSON,
    LENGTH,
    MAIL,
    SAVE,
    SINGLE,
    STAGES,
    STEADY,
    TAU,
    THREADS,
    VERIFY,
)
from benchmarks.store.racing import Figure, Figures

_MEGABYTES = 150
# By engine: how many times the driver's, must and goal; and of CPU, which is a gate.
_SINGLES: dict[str, dict[str, tuple[float, float, float]]] = {
    SINGLE: {POSTGRES: (2.0, 1.7, 6), FULL: (1.8, 1.5, 4.5), NORMAL: (6.5, 5, 9.5)},
    JSON: {POSTGRES: (2.0, 1.7, 6.5), NORMAL: (6.5, 5, 10)},
    MAIL: {POSTGRES: (2.6, 2.2, 8), NORMAL: (10, 8, 12)},
    BATCH: {POSTGRES: (2.2, 1.8, 14), FULL: (8, 6, 18), NORMAL: (11, 9, 18)},
}
# By subject, who else does it, and by engine how many times that one's time: must and
# goal.
_RATIOS: dict[tuple[str, str], dict[str, tuple[float, float]]] = {
    (SAVE, "eventsourcing"): {POSTGRES: (1.2, 0.8), FULL: (1.2, 1.0)},
    (THREADS, RAW): {POSTGRES: (3.2, 2.0)},
    (ASYNCIO, RAW): {POSTGRES: (2.4, 1.6)},
    (IMPORT, BULK): {POSTGRES: (4.0, 2.0), NORMAL: (11, 6)},
    (FOLD, RAW): {POSTGRES: (10, 8), NORMAL: (24, 18)},
    (VERIFY, RAW): {POSTGRES: (5, 4), NORMAL: (10, 8)},
    (CHAIN, RAW): {POSTGRES: (2.2, 1.8), NORMAL: (4.2, 3.5)},
}
# Times the SELECT of the rows that a context needs.
_CONTEXTS = {POSTGRES: (3.0, 2.0), NORMAL: (12.0, 9.0)}
_JOBS = 1.8
_PEERS = {"openai-agents": (4.0, 5.0), "google-adk": (7.0, 9.0)}


def checks(figures: Figures) -> list[Check]:
    """Each target with its measurement; None where a run did not measure it."""
    engines = dict.fromkeys(figure.engine for figure in figures.figures)
    by_engine = [
        check
        for engine in (*engines, *(e for e in figures.sizes if e not in engines))
        for part in (_appends, _ratios, _reads, _folds, _sizes)
        for check in part(figures, engine)
    ]
    return [*by_engine, *_starts(figures)]


def _appends(figures: Figures, engine: str) -> Iterator[Check]:
    for subject, bounds in _SINGLES.items():
        if engine not in bounds:
            continue
        must, goal, cpu = bounds[engine]
        figure = figures.find(subject, engine, RAW)
        title = f"{engine}: {subject}, to the driver's"
        ratio = figure.ratio if figure else None
        yield Check(title, ratio, most=must, unit="×", goal=goal)
        computed = figure.cpu if figure else None
        yield Check(f"{title}, CPU", computed, most=cpu, unit="×", gate=True)
    for peer, (must, goal) in _PEERS.items() if engine == POSTGRES else ():
        faster = _faster(figures, SINGLE, engine, peer)
        title = f"{engine}: {SINGLE}, faster than {peer}"
        yield Check(title, faster, least=must, unit="×", goal=goal)


def _ratios(figures: Figures, engine: str) -> Iterator[Check]:
    for (subject, who), bounds in _RATIOS.items():
        if engine in bounds:
            must, goal = bounds[engine]
            figure = figures.find(subject, engine, who)
            title = f"{engine}: {subject}, to {who}"
            ratio = figure.ratio if figure else None
            yield Check(title, ratio, most=must, unit="×", goal=goal)


def _reads(figures: Figures, engine: str) -> Iterator[Check]:
    for figure in figures.figures:
        if figure.engine != engine or engine == FULL:
            continue
        if (figure.subject, figure.who) == (CONTEXT, RAW):
            must, goal = _CONTEXTS[engine]
            title = f"{engine}: context at {figure.size:,}, to its SELECT"
            yield Check(title, figure.ratio, most=must, unit="×", goal=goal)
        if figure.subject == f"{LENGTH}: {STEADY}" and figure.ratio:
            title = f"{engine}: context at {figure.size:,}, to that of a short session"
            yield Check(title, figure.ratio, most=1.3, unit="×")


def _folds(figures: Figures, engine: str) -> Iterator[Check]:
    if engine == FULL:  # it reads as NORMAL does
        return
    for work, share in figures.spread.get(engine, {}).items():
        title = f"{engine}: {work}, 1 job to the busiest of 2, CPU"
        yield Check(title, share, least=_JOBS, unit="×", goal=1.95)
    for title, peak in figures.memory.get(engine, {}).items():
        if title != "idle":
            memory_title = f"{engine}: memory of {title}"
            yield Check(memory_title, peak, most=_MEGABYTES, unit="MB", gate=True)
    for call, seconds in figures.commands.items() if engine == NORMAL else ():
        yield Check(f"{call}, CPU", seconds, most=3.0, unit="s", goal=2.0, gate=True)


def _starts(figures: Figures) -> Iterator[Check]:
    for name, (seconds, limit) in figures.cold.items():
        yield Check(f"{name}, CPU above a bare Python", seconds, most=limit, unit="s")


def _sizes(figures: Figures, engine: str) -> Iterator[Check]:
    if engine == FULL:  # its file is that of NORMAL
        return
    sizes = figures.sizes.get(engine, {})
    json = sizes.get(f"{TAU}, JSON")
    share = sizes[TAU] / json if json else None
    must, goal = (0.55, 0.45) if engine == POSTGRES else (0.42, 0.35)
    title = f"{engine}: storage of {TAU}, of its JSON"
    yield Check(title, share, most=must, unit="×", goal=goal, gate=True)


def _faster(figures: Figures, subject: str, engine: str, who: str) -> float | None:
    figure = figures.find(subject, engine, who)
    return 1 / figure.ratio if figure and figure.ratio else None


_OFTEN = 3
"""Who is compared in so many subjects has a column."""


def show(figures: Figures, console: Console) -> None:
    """Print all tables."""
    for rendered in _all(figures):
        if rendered.row_count:
            console.print(rendered)
            console.print()
    for note in figures.notes:
        console.print(note, style="dim")


def markdown(figures: Figures) -> str:
    """The same for a page of documentation."""
    parts = [f"{sentence}\n" for sentence in _in_short(figures)]
    parts += [as_markdown(rendered) for rendered in _all(figures) if rendered.row_count]
    return "\n".join([*parts, *(f"{sentence}\n" for sentence in figures.notes)])


def filled(page: str, figures: Figures) -> str:
    """``page`` with the tables between its marks.

    Raises ValueError if it has no marks.
    """
    return report.filled(page, figures.conditions, markdown(figures))


def _in_short(figures: Figures) -> Iterator[str]:
    """The comparison in a sentence for each engine, for the head of the page."""
    for engine in dict.fromkeys(figure.engine for figure in figures.figures):
        ratios = [
            f"{figure.ratio:.2f} × {figure.who}"
            for figure in figures.figures
            if (figure.subject, figure.engine) == (SINGLE, engine) and figure.ratio
        ]
        if ratios:
            yield f"{engine}, one append: Refold takes {', '.join(ratios)}."


def _all(figures: Figures) -> Iterable[Table]:
    for engine in dict.fromkeys(figure.engine for figure in figures.figures):
        yield _against(engine, [f for f in figures.figures if f.engine == engine])
    yield promises(figures.checks)
    yield _stages(figures)
    yield _bytes(figures)
    yield _memory(figures)
    yield _summaries(figures)


def _against(engine: str, figures: Sequence[Figure]) -> Table:
    """Return a row for each subject: Refold's time, and its ratio to each other.

    Contestants of few subjects are in the last column, by name.
    """
    seen = Counter(figure.who for figure in figures if figure.ratio is not None)
    often = [who for who, times in seen.items() if times >= _OFTEN]
    rendered = table(f"{engine}: Refold's time, and its ratio to that of …", "")
    for head in ("refold", "per second", *often, "others"):
        rendered.add_column(head, justify="right")
    for subject, size in dict.fromkeys((f.subject, f.size) for f in figures):
        by = {f.who: f for f in figures if (f.subject, f.size) == (subject, size)}
        ours = by.pop("refold", None)
        rendered.add_row(
            f"{subject}, {size:,} events" if size else subject,
            _time(ours.seconds) if ours else "",
            f"{ours.rate:,.0f}" if ours else "",
            *(_ratio(by.pop(who, None)) for who in often),
            ", ".join(f"{who} {_ratio(figure)}" for who, figure in by.items()),
        )
    return rendered


def _ratio(figure: Figure | None) -> str:
    return "" if figure is None or figure.ratio is None else f"{figure.ratio:.2f}"


def _time(seconds: float) -> str:
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.2f} ms"
    return f"{seconds:.2f} s"


def _stages(figures: Figures) -> Table:
    rendered = table("One append by stage, µs", "", *STAGES, "all")
    for stages in figures.stages:
        micros = [stages.micros[stage] for stage in STAGES]
        cells = [f"{each:.0f}" for each in (*micros, sum(micros))]
        rendered.add_row(f"{stages.engine}, {stages.when}", *cells)
    return rendered


def _bytes(figures: Figures) -> Table:
    who = dict.fromkeys(name for by in figures.sizes.values() for name in by)
    rendered = table(
        "Bytes of one event on the disk, with all indexes", "", *figures.sizes
    )
    for name in who:
        cells = [_whole(by.get(name)) for by in figures.sizes.values()]
        rendered.add_row(name, *cells)
    return rendered


def _memory(figures: Figures) -> Table:
    done = dict.fromkeys(name for by in figures.memory.values() for name in by)
    rendered = table("Memory at the peak, MB", "", *figures.memory)
    for name in done:
        cells = [_whole(by.get(name)) for by in figures.memory.values()]
        rendered.add_row(name, *cells)
    return rendered


def _summaries(figures: Figures) -> Table:
    kinds = dict.fromkeys(name for by in figures.summaries.values() for name in by)
    rendered = table("Summaries, in % of the log", "", *figures.summaries)
    for name in kinds:
        shares = (by.get(name) for by in figures.summaries.values())
        rendered.add_row(name, *("" if s is None else f"{s:.1%}" for s in shares))
    return rendered


def _whole(figure: float | None) -> str:
    return "" if figure is None else f"{figure:,.0f}"


_COLOURS = {
    OURS: "#1b7f79",
    "raw driver": "#5b6770",
    "raw driver, asyncio": "#8d979e",
    "file, fdatasync": "#c9ced1",
    "eventsourcing": "#8d6a9f",
    "openai-agents": "#e09f3e",
    "google-adk": "#c8553d",
    "langgraph": "#3d6fb4",
}
_STAGE_COLOURS = ("#1b7f79", "#3fae9f", "#9ad5cb", "#e09f3e", "#c9ced1")
_RACES = {
    SINGLE: "one\nappend",
    BATCH: "batch\nof 100",
    THREADS: "16 in\nthreads",
    ASYNCIO: "16 in\nasyncio",
}


def draw(figures: Figures, path: Path) -> None:
    """Write the picture to ``path``."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    engines = list(dict.fromkeys(figure.engine for figure in figures.figures))
    picture, rows = pyplot.subplots(
        max(1, len(engines)),
        3,
        figsize=(15, 3.6 * max(1, len(engines))),
        width_ratios=(3, 1.6, 2),
        layout="constrained",
        squeeze=False,
    )
    for (left, middle, right), engine in zip(rows, engines, strict=False):
        _draw_races(left, figures, engine)
        _draw_stages(middle, figures, engine)
        _draw_reading(right, figures, engine)
    picture.savefig(path, dpi=130)
    pyplot.close(picture)


def _draw_races(axes: Any, figures: Figures, engine: str) -> None:
    """Events a second of everyone, by subject."""
    axes.set_title(f"{engine}: events/s (log scale)", fontsize=10)
    axes.set_yscale("log")
    width = 0.8 / len(_COLOURS)
    for place, (who, colour) in enumerate(_COLOURS.items()):
        by_race = [figures.find(subject, engine, who) for subject in _RACES]
        rates = {group: each.rate for group, each in enumerate(by_race) if each}
        if not rates:
            continue
        at = [group - 0.4 + (place + 0.5) * width for group in rates]
        bars = axes.bar(at, list(rates.values()), width, color=colour, label=who)
        labels = [f"{rate:,.0f}" for rate in rates.values()]
        axes.bar_label(bars, labels, fontsize=6, rotation=90, padding=1)
    axes.set_xticks(range(len(_RACES)), list(_RACES.values()), fontsize=8)
    axes.margins(y=0.4)
    axes.legend(ncols=4, fontsize=7, frameon=False, loc="upper left")
    _plain(axes)


def _draw_stages(axes: Any, figures: Figures, engine: str) -> None:
    """Draw where the time of one append goes, stacked."""
    axes.set_title("one append, µs", fontsize=10)
    of_engine = [stages for stages in figures.stages if stages.engine == engine]
    below = [0.0] * len(of_engine)
    for stage, colour in zip(STAGES, _STAGE_COLOURS, strict=True):
        heights = [stages.micros[stage] for stages in of_engine]
        axes.bar(range(len(of_engine)), heights, 0.6, below, color=colour, label=stage)
        below = [low + high for low, high in zip(below, heights, strict=True)]
    axes.set_xticks(
        range(len(of_engine)), [stages.when for stages in of_engine], fontsize=8
    )
    axes.set_ylim(0, 1.45 * max(below, default=1.0) or 1.0)
    axes.legend(ncols=2, fontsize=7, frameon=False, loc="upper left")
    _plain(axes)


def _draw_reading(axes: Any, figures: Figures, engine: str) -> None:
    """Milliseconds by the length of the session."""
    axes.set_title("reading, ms by events (log scales)", fontsize=10)
    axes.set_xscale("log")
    axes.set_yscale("log")
    for subject, style in ((CONTEXT, "-"), (FULL_READ, "--")):
        for who, colour in _COLOURS.items():
            contexts = [
                figure
                for figure in figures.figures
                if (figure.subject, figure.engine, figure.who) == (subject, engine, who)
            ]
            if contexts:
                axes.plot(
                    [figure.size for figure in contexts],
                    [figure.seconds * 1000 for figure in contexts],
                    style,
                    marker="o",
                    color=colour,
                    label=f"{who}: {subject}",
                )
    sizes = sorted({figure.size for figure in figures.figures if figure.size})
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes], fontsize=8)
    axes.minorticks_off()
    axes.legend(fontsize=6, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    _plain(axes)


def _plain(axes: Any) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
