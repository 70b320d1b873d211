"""The figures as a picture: speed on a log scale, recall, false positives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.redaction import targets
from benchmarks.redaction.figures import Figures

_COLOURS = {
    "vectorscan": "#1b7f79",
    "stdlib": "#9ad5cb",
    "refold": "#1b7f79",
    "refold, all packs": "#3fae9f",
    "presidio": "#c8553d",
    "scrubadub": "#e09f3e",
    "detect-secrets": "#8d6a9f",
}
_CORPORA = {
    "clean": "clean text",
    "mixed": "1 % values",
    "events": "tool events",
    "mixed_long": "1 % values,\n100 KB",
}


def draw(figures: Figures, path: Path) -> None:
    """Write the picture to ``path``."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, (left, middle, right) = pyplot.subplots(
        1, 3, figsize=(15, 5), width_ratios=(3, 2.4, 1.2), layout="constrained"
    )
    _speed(left, figures)
    _recall(middle, figures)
    _noise(right, figures)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _bars(axes: Any, groups: dict[str, dict[str, float]], form: str) -> None:
    """Bars of each group side by side, the same colour for the same runner."""
    runners = list(dict.fromkeys(name for by in groups.values() for name in by))
    runners.sort(key=list(_COLOURS).index)
    width = 0.8 / max(1, len(runners))
    for number, name in enumerate(runners):
        places = [g + (number + 0.5) * width - 0.4 for g in range(len(groups))]
        heights = [by.get(name, 0.0) for by in groups.values()]
        bars = axes.bar(places, heights, width, label=name, color=_COLOURS[name])
        labels = [form.format(by[name]) if name in by else "" for by in groups.values()]
        axes.bar_label(bars, labels, fontsize=7, padding=1, rotation=90)
    axes.set_xticks(range(len(groups)), list(groups), fontsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _speed(axes: Any, figures: Figures) -> None:
    groups = {
        title: {k: v for k, v in figures.speed[name].items() if k in _COLOURS}
        for name, title in _CORPORA.items()
        if name in figures.speed
    }
    axes.set_yscale("log")
    _bars(axes, groups, "{:.3g}")
    axes.set_ylim(0.008, 3000)
    axes.set_title("MB/s on one core (log scale)")
    axes.legend(ncols=3, fontsize=8, frameon=False, loc="upper right")


def _recall(axes: Any, figures: Figures) -> None:
    names = (targets.SENTENCES, targets.OWN, targets.KEYS)
    groups: dict[str, dict[str, float]] = {}
    for name in names:
        entries = [
            e for e in figures.accuracy if (e.data, e.half) == (name, "held out")
        ]
        if entries:
            by = {entry.tool: entry.score.total.recall for entry in entries}
            groups[name.replace(" ", "\n", 1)] = by
    _bars(axes, groups, "{:.2f}")
    axes.set_ylim(0, 1.15)
    axes.set_title("Recall, held-out halves")


def _noise(axes: Any, figures: Figures) -> None:
    rates = {tool: figures.per_megabyte(tool) for tool in figures.noise}
    shown = {tool: max(rate, 0.1) for tool, rate in rates.items()}
    axes.set_yscale("log")
    bars = axes.bar(range(len(shown)), list(shown.values()), color=_colours(shown))
    axes.bar_label(bars, [f"{rate:.1f}" for rate in rates.values()], fontsize=8)
    axes.set_xticks(range(len(shown)), list(shown), fontsize=8, rotation=30)
    axes.axhline(1, color="grey", linewidth=0.8, linestyle="--")
    axes.set_title("False positives\nper MB of noise (log)")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _colours(tools: dict[str, float]) -> list[str]:
    return [_COLOURS[tool] for tool in tools]
