"""The figures as a picture: how often as long Refold takes, stages, and reading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.store.appends import BATCH, SINGLE
from benchmarks.store.figures import OURS, Figures
from benchmarks.store.load import ASYNCIO, THREADS
from benchmarks.store.reads import CONTEXT, FULL_READ
from benchmarks.store.stages import STAGES

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
        _races(left, figures, engine)
        _stages(middle, figures, engine)
        _reading(right, figures, engine)
    picture.savefig(path, dpi=130)
    pyplot.close(picture)


def _races(axes: Any, figures: Figures, engine: str) -> None:
    """Events a second of everyone, by subject."""
    axes.set_title(f"{engine}: events/s (log scale)", fontsize=10)
    axes.set_yscale("log")
    width = 0.8 / len(_COLOURS)
    for place, (who, colour) in enumerate(_COLOURS.items()):
        found = [figures.find(subject, engine, who) for subject in _RACES]
        rates = {group: each.rate for group, each in enumerate(found) if each}
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


def _stages(axes: Any, figures: Figures, engine: str) -> None:
    """Where one append goes, stacked."""
    axes.set_title("one append, µs", fontsize=10)
    found = [stages for stages in figures.stages if stages.engine == engine]
    below = [0.0] * len(found)
    for stage, colour in zip(STAGES, _STAGE_COLOURS, strict=True):
        heights = [stages.micros[stage] for stages in found]
        axes.bar(range(len(found)), heights, 0.6, below, color=colour, label=stage)
        below = [low + high for low, high in zip(below, heights, strict=True)]
    axes.set_xticks(range(len(found)), [stages.when for stages in found], fontsize=8)
    axes.margins(y=0.45)
    axes.legend(ncols=2, fontsize=7, frameon=False, loc="upper left")
    _plain(axes)


def _reading(axes: Any, figures: Figures, engine: str) -> None:
    """Milliseconds by the length of the session."""
    axes.set_title("reading, ms by events (log scales)", fontsize=10)
    axes.set_xscale("log")
    axes.set_yscale("log")
    for subject, style in ((CONTEXT, "-"), (FULL_READ, "--")):
        for who, colour in _COLOURS.items():
            found = [
                figure
                for figure in figures.figures
                if (figure.subject, figure.engine, figure.who) == (subject, engine, who)
            ]
            if found:
                axes.plot(
                    [figure.size for figure in found],
                    [figure.seconds * 1000 for figure in found],
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
