"""The figures of a run as data, against targets, as tables, and as a picture."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from benchmarks import report
from benchmarks.redaction.labelled import STRUCTURED, Count, Score
from benchmarks.report import Check, as_markdown, promises, table as _table

Half = Literal["development", "held out"]


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How one tool did on one half of one set of labelled data."""

    data: str
    half: Half
    tool: str
    score: Score

    def plain(self, *, misses: bool) -> dict[str, Any]:
        """Return JSON; it lists misses only of cases to which rules may be tuned."""
        values: dict[str, Any] = {
            "data": self.data,
            "half": self.half,
            "tool": self.tool,
            "total": _counted(self.score.total),
            "types": {k: _counted(c) for k, c in sorted(self.score.types.items())},
        }
        if misses and self.half == "development":
            values |= {"missed": self.score.missed, "false": self.score.false}
        return values


@dataclass(slots=True)
class Figures:
    """All figures of one run.

    speed: by corpus, then by tool: megabytes per second of processor time.
    noise: by tool, then by kind of noise: false positives.
    placed: by tool, half, kind: found secrets of attackers, and all.
    clean: by tool and part, then by type: findings per MB of clean text.
    """

    machine: dict[str, str] = field(default_factory=dict)
    speed: dict[str, dict[str, float]] = field(default_factory=dict)
    small_event_us: dict[str, float] = field(default_factory=dict)
    adversarial_ms: dict[str, dict[str, float]] = field(default_factory=dict)
    accuracy: list[Accuracy] = field(default_factory=list)
    cases: dict[str, dict[str, str]] = field(default_factory=dict)
    case_count: int = 0
    noise: dict[str, dict[str, int]] = field(default_factory=dict)
    noise_bytes: dict[str, int] = field(default_factory=dict)
    placed: dict[str, dict[str, dict[str, tuple[int, int]]]] = field(
        default_factory=dict
    )
    clean: dict[str, dict[str, float]] = field(default_factory=dict)
    clean_bytes: dict[str, int] = field(default_factory=dict)
    code: dict[str, Any] = field(default_factory=dict)
    laws: dict[str, Any] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)

    def per_megabyte(self, tool: str) -> float:
        """False positives of ``tool`` in a megabyte of noise."""
        return sum(self.noise[tool].values()) / self.noise_bytes[tool] * 1e6

    def find(self, data: str, half: Half, tool: str) -> Score | None:
        """The score of ``tool``, or None if it was not measured."""
        for entry in self.accuracy:
            if (entry.data, entry.half, entry.tool) == (data, half, tool):
                return entry.score
        return None

    def plain(self, *, misses: bool) -> dict[str, Any]:
        """As JSON."""
        names = (
            "machine",
            "speed",
            "small_event_us",
            "adversarial_ms",
            "cases",
            "case_count",
            "noise",
            "noise_bytes",
            "code",
            "laws",
            "placed",
            "clean",
            "clean_bytes",
        )
        values: dict[str, Any] = {name: getattr(self, name) for name in names}
        values["accuracy"] = [entry.plain(misses=misses) for entry in self.accuracy]
        values["checks"] = [asdict(c) | {"holds": c.holds} for c in self.checks]
        return values


def _counted(count: Count) -> dict[str, float]:
    return asdict(count) | {
        "missed": count.missed,
        "recall": round(count.recall, 4),
        "precision": round(count.precision, 4),
    }


PEERS = ("presidio", "scrubadub", "detect-secrets")
SENTENCES = "sentences (synth_v2)"
OWN = "own texts"
KEYS = "keys of vendors"
_LEAST_BY_TYPE = {
    "EMAIL": 0.99,
    "BANK_CARD": 0.99,
    "SSN": 0.99,
    "IP": 0.99,
    "IBAN": 0.97,
    "PHONE": 0.75,
}


def checks(figures: Figures, *, timed: bool) -> list[Check]:
    """Return each target with its measurement; times only if they mean something.

    Recall is a gate, speed is not.
    """
    speed = _speeds(figures)
    own_checks = [
        *_sentences(figures, "development"),
        *_sentences(figures, "held out"),
        *_own(figures),
        *_clean(figures),
    ]
    return [
        *(speed if timed else (replace(check, measured=None) for check in speed)),
        *(replace(check, gate=True) for check in own_checks),
    ]


def _speeds(figures: Figures) -> list[Check]:
    clean = figures.speed.get("clean", {})
    best = _best(clean)
    peer = clean.get("presidio")
    ratio = best / peer if best and peer else None
    mixed = figures.speed.get("mixed", {})
    worst = [max(times.values()) for times in figures.adversarial_ms.values()]
    slow = figures.speed.get("clean", {}).get("stdlib")
    small = figures.small_event_us.values()
    return [
        Check("clean text, best engine", best, least=85, unit="MB/s", goal=120),
        Check("clean text, times Presidio", ratio, least=500, unit="×"),
        Check("1 % values", mixed.get("vectorscan"), 40, unit="MB/s", goal=60),
        Check(
            "JSON tool events",
            _best(figures.speed.get("events")),
            least=80,
            unit="MB/s",
            goal=120,
        ),
        Check("an event of 174 bytes", min(small, default=None), most=6, unit="µs"),
        Check("standard library engine, clean", slow, least=8, unit="MB/s"),
        Check("worst of 30 adversarial", min(worst, default=None), most=150, unit="ms"),
    ]


def _best(speeds: dict[str, float] | None) -> float | None:
    ours = ("vectorscan", "stdlib")
    return max((v for k, v in (speeds or {}).items() if k in ours), default=None)


def _sentences(figures: Figures, half: Half) -> list[Check]:
    score = figures.find(SENTENCES, half, "refold")
    sentences = [
        Check(
            f"recall {kind}, {half}", score.types[kind].recall if score else None, least
        )
        for kind, least in _LEAST_BY_TYPE.items()
    ]
    together = _structured(score) if score else None
    precision = score.total.precision if score else None
    return [
        *sentences,
        Check(f"recall of structured types, {half}", together, least=0.92),
        Check(f"precision, {half}", precision, least=0.99),
    ]


def _structured(score: Score) -> float:
    counts = [score.types[kind] for kind in STRUCTURED.values()]
    return sum(c.whole for c in counts) / max(1, sum(c.spans for c in counts))


def _own(figures: Figures) -> list[Check]:
    wrong = figures.cases.get("refold")
    share = 1 - len(wrong) / figures.case_count if wrong is not None else None
    halves: tuple[Half, ...] = ("development", "held out")
    keys = {half: figures.find(KEYS, half, "refold") for half in halves}
    return [
        Check("labelled cases", share, least=0.95),
        *(
            Check(
                f"recall, keys of vendors, {half}",
                s.total.recall if s else None,
                least=0.9,
            )
            for half, s in keys.items()
        ),
    ]


def _clean(figures: Figures) -> list[Check]:
    false = figures.per_megabyte("refold") if "refold" in figures.noise else None
    halves = figures.placed.get("refold")
    placed = _share(halves["held_out"].values()) if halves else None
    sources = figures.clean.get("refold, sources")
    flagged = _false(sources) if sources is not None else None
    changed = figures.code.get("changed_files")
    broken = figures.laws.get("broken")
    violations = sum(broken.values()) if broken is not None else None
    return [
        Check("secrets as attackers place them, held out", placed, least=0.93),
        Check("findings in clean sources", flagged, most=0.5, unit="per MB"),
        Check("false positives on noise", false, most=1, unit="per MB"),
        Check("code without secrets: files changed", changed, most=0),
        Check("violations of the laws", violations, most=0),
    ]


def _share(counts: Iterable[tuple[int, int]]) -> float:
    hits, of = map(sum, zip(*counts, strict=True))
    return float(hits / of)


def _false(by_type: dict[str, float]) -> float:
    """Return the findings except e-mail addresses, which really occur."""
    return sum(rate for kind, rate in by_type.items() if kind != "EMAIL")


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
        speed(figures),
        tails(figures),
        *accuracy(figures),
        attacks(figures),
        clean(figures),
        noise(figures),
        promises(figures.checks),
    ):
        if table.row_count:
            console.print(table)
            console.print()


def markdown(figures: Figures) -> str:
    """Return the same for a page of documentation, which shows held-out cases."""
    parts = [f"{sentence}\n" for sentence in _in_short(figures)]
    shown_checks = [
        check for check in figures.checks if "development" not in check.what
    ]
    for table in (
        speed(figures),
        tails(figures),
        promises(shown_checks),
        *accuracy(figures),
        attacks(figures),
        clean(figures),
    ):
        if table.row_count:
            parts.append(as_markdown(table))
    return "\n".join(parts)


def _in_short(figures: Figures) -> Iterator[str]:
    """The comparison in two sentences, for the head of the page."""
    clean = figures.speed.get("clean", {})
    best = _best(clean)
    if best and (rates := {name: clean[name] for name in PEERS if name in clean}):
        times = (f"{best / rate:,.0f} times {name}'s" for name, rate in rates.items())
        yield f"Refold's speed on clean text is {', '.join(times)}."
    recalls = {
        name: score.total.recall
        for name in ("refold", *PEERS)
        if (score := figures.find(OWN, "held out", name))
    }
    if recalls:
        shown_recalls = (f"{name} {recall:.2f}" for name, recall in recalls.items())
        yield f"Recall on held-out texts of our own: {', '.join(shown_recalls)}."


def filled(page: str, figures: Figures) -> str:
    """``page`` with the tables between its marks.

    Raises ValueError if it has no marks.
    """
    return report.filled(page, figures.machine, markdown(figures))


def speed(figures: Figures) -> Table:
    """Return megabytes per second by tool and corpus."""
    table = _table("MB/s of processor time, one core", "", *map(_head, figures.speed))
    runners = dict.fromkeys(name for by in figures.speed.values() for name in by)
    for name in runners:
        rates = (by.get(name) for by in figures.speed.values())
        table.add_row(name, *map(_rate, rates))
    return table


def tails(figures: Figures) -> Table:
    """Return the time of one small event, and of the worst text."""
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


def attacks(figures: Figures) -> Table:
    """Recall of secrets as attackers place them, by kind."""
    peers = [name for name in figures.placed if name != "refold"]
    heads = ("held out", "tuned to", *peers) if figures.placed else ()
    table = _table("Recall: secrets as attackers place them", "", *heads)
    ours = figures.placed.get("refold", {})
    columns = [
        *(ours[half] for half in ("held_out", "dev") if half in ours),
        *(figures.placed[name]["held_out"] for name in peers),
    ]
    for kind in columns[0] if columns else ():
        cells = (_share([by[kind]]) if kind in by else None for by in columns)
        table.add_row(kind, *map(_two, cells))
    if columns:
        table.add_section()
        table.add_row("all", *(_two(_share(by.values())) for by in columns))
        table.add_row("cases", *(str(sum(n for _, n in by.values())) for by in columns))
    return table


def clean(figures: Figures) -> Table:
    """Findings in a MB of clean text, by type."""
    table = _table("Findings in a MB of clean text", "", *figures.clean)
    for kind in dict.fromkeys(kind for by in figures.clean.values() for kind in by):
        rates = (f"{by.get(kind, 0.0):.1f}" for by in figures.clean.values())
        table.add_row(kind, *rates)
    if figures.clean:
        table.add_section()
        sizes = (f"{size / 1e6:.1f}" for size in figures.clean_bytes.values())
        table.add_row("MB", *sizes)
    return table


def _two(share: float | None) -> str:
    return "" if share is None else f"{share:.2f}"


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
    _draw_speed(left, figures)
    _draw_recall(middle, figures)
    _draw_noise(right, figures)
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


def _draw_speed(axes: Any, figures: Figures) -> None:
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


def _draw_recall(axes: Any, figures: Figures) -> None:
    names = (SENTENCES, OWN, KEYS)
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


def _draw_noise(axes: Any, figures: Figures) -> None:
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
