"""The recall that strategies keep of long runs, and its cost: the Pareto front."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from itertools import count, cycle
from pathlib import Path
from statistics import fmean
from typing import Final

import orjson
from rich.console import Console
from rich.table import Table

import refold
from benchmarks.compaction import report
from benchmarks.report import Check, as_markdown, filled, machine, promises, show, table
from refold.adapters.importers import read
from refold.domain.envelope import Draft
from refold.domain.errors import ImportFailed
from refold.domain.events import ToolCall, ToolResult
from refold.domain.ports import Transcript
from refold.projections.context.strategies import spec
from refold.store.settings import default_of_prepare

SAMPLE: Final = Path(__file__).parents[2] / "examples" / "sample" / "agent_run.jsonl"
MODEL: Final = "claude-sonnet-5-5"
ANSWERS: Final = 150
_HISTORY: Final = (
    "history_summary:trigger_on_history_size_chars={0},"
    "trigger_on_history_size_chars_when_cache_expiring={0},"
    "history_tail_size_chars_to_exclude={1}"
)
# In addition to all strategies with defaults, those that keep a longer tail.
SPECS: Final = (
    *(name for name in spec.STRATEGIES if name != "token_ratio"),
    "token_ratio:max_context_tokens=60000",
    "tool_clearing:trigger_input_tokens=20000",
    *(
        _HISTORY.format(most, tail)
        for most, tail in ((60_000, 20_000), (80_000, 30_000))
    ),
)


@dataclass(frozen=True, slots=True)
class Options:
    """The settings of a run.

    quick:    shorter runs.  data: a folder of transcripts, measured with the sample.
    sessions: a folder of transcripts with compactions of their client.  Only the
              content that survives these compactions is then measured.
    strategy: the strategies to measure there; by default all that compact.
    with_command: a command that writes a summary, measured with them.
    json, plot, markdown: where figures, the picture, and both in a page are written.
    """

    quick: bool = False
    data: Path | None = None
    sessions: Path | None = None
    strategy: list[str] | None = None
    with_command: str | None = None
    json: Path | None = None
    plot: Path | None = None
    markdown: Path | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    """A strategy on one file, relative to keep_all.

    tokens:  share of the tokens sent; ``dollars`` that of the money, summaries by the
             same model included.
    recall:  share of the references that the model was still shown; ``files`` that of
             files touched before, by name; None if there were none.
    """

    strategy: str
    file: str
    tokens: float
    dollars: float
    recall: float
    files: float | None = None


@dataclass(frozen=True, slots=True)
class Mean:
    """A strategy on all files; ``best``: no other strategy beats it."""

    strategy: str
    tokens: float
    dollars: float
    recall: float
    least: float
    files: float | None
    best: bool


def run(options: Options) -> int:
    """Measure, print, and write the requested files."""
    if options.sessions is not None:
        return report.run(
            options.sessions,
            strategies=options.strategy or report.STRATEGIES,
            command=options.with_command,
            json=options.json,
            markdown=options.markdown,
        )
    figures: list[Figure] = []
    for path in _files(options):
        figures += measured(path, options)
    means = front(figures)
    checks = _checks(means)
    tables = [promises(checks), _means(means), _each(figures)]
    console = Console(width=None if sys.stdout.isatty() else 160)
    for printed in tables:
        show(console, printed)
    if options.json:
        document = {"machine": machine(), "figures": [*map(asdict, figures)]}
        options.json.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    if options.plot:
        draw(means, options.plot)
    if options.markdown:
        page = options.markdown.read_text("utf-8")
        text = "\n".join(map(as_markdown, tables))
        options.markdown.write_text(filled(page, machine(), text), "utf-8")
    return 0


def _files(options: Options) -> list[Path]:
    more = sorted(options.data.iterdir()) if options.data else []
    return [SAMPLE, *(path for path in more if path.is_file())]


def measured(path: Path, options: Options) -> list[Figure]:
    """All strategies on the runs of a file, one after the other in one session."""
    try:
        transcripts = [transcript for transcript in read(path) if transcript.drafts]
    except ImportFailed:
        return []
    name = "the sample" if path == SAMPLE else transcripts[0].format
    with refold.open("memory://") as store:
        session = store.session(user_id="ada", session_id="run")
        for drafts in joined(transcripts, ANSWERS // 5 if options.quick else ANSWERS):
            session.append(drafts)
        compared = session.proofs.compare(SPECS, model=MODEL)
    base = next(outcome for outcome in compared.outcomes if outcome.name == "keep_all")
    return [
        Figure(
            compared_outcome.label,
            name,
            compared_outcome.tokens_total / base.tokens_total,
            (compared_outcome.total_cost or 0.0) / (base.total_cost or 1.0),
            1.0
            if compared_outcome.reference_recall is None
            else compared_outcome.reference_recall,
            compared_outcome.ledger_recall["files"],
        )
        for compared_outcome in compared.outcomes
    ]


def joined(transcripts: Sequence[Transcript], answers: int) -> Iterator[list[Draft]]:
    """Repeat the runs, an hour apart, until there are that many answers."""
    done = 0
    for number, transcript in zip(count(), cycle(transcripts), strict=False):
        later = timedelta(hours=number)
        drafts = [_later(draft, later, f"{number}-") for draft in transcript.drafts]
        if any(draft.event.type == "final" for draft in drafts):
            drafts = [draft for draft in drafts if draft.event.type != "final"]
        yield drafts
        done += max(1, sum(draft.event.type == "agent_response" for draft in drafts))
        if done >= answers:
            return


def _later(draft: Draft, by: timedelta, mark: str) -> Draft:
    event = draft.event
    if isinstance(event, ToolCall | ToolResult):
        event = event.model_copy(update={"call_id": mark + event.call_id})
    # Without its key: an entry with a key is appended only once.
    return replace(
        draft,
        event=event,
        ts=draft.ts + by if draft.ts else None,
        key=None,
        continues=False,
    )


def front(figures: Sequence[Figure]) -> list[Mean]:
    """The strategies that ran on all files, the best recall first."""
    all_files = {figure.file for figure in figures}
    means = []
    for name in dict.fromkeys(figure.strategy for figure in figures):
        own = [figure for figure in figures if figure.strategy == name]
        if {figure.file for figure in own} == all_files:
            tokens, dollars, recall = (fmean(getattr(o, k) for o in own) for k in _AXES)
            least = min(figure.recall for figure in own)
            kept = [figure.files for figure in own if figure.files is not None]
            files = fmean(kept) if kept else None
            means.append(Mean(name, tokens, dollars, recall, least, files, best=False))
    marked = [
        replace(figure, best=not any(_beats(o, figure) for o in means))
        for figure in means
    ]
    return sorted(marked, key=lambda figure: (-figure.recall, figure.dollars))


_AXES: Final = ("tokens", "dollars", "recall")


def _beats(mean: Mean, other: Mean) -> bool:
    """Whether it is better in one figure and no worse in the others."""
    values = (-mean.tokens, -mean.dollars, mean.recall)
    others = (-other.tokens, -other.dollars, other.recall)
    return values != others and all(a >= b for a, b in zip(values, others, strict=True))


def _checks(means: Sequence[Mean]) -> list[Check]:
    own = next(mean for mean in means if mean.strategy == default_of_prepare().name)
    return [
        Check(f"references kept by {own.strategy}", own.recall, least=0.95),
        Check("files kept by name", own.files, least=1.0),
        Check("tokens, relative to keep_all", own.tokens, most=0.5),
        Check("dollars, relative to keep_all", own.dollars, most=0.7),
    ]


def _means(means: Sequence[Mean]) -> Table:
    heads = ("strategy", "tokens", "dollars", "recall", "least", "files", "front")
    rendered = table("All files, relative to keep_all", *heads)
    for mean in means:
        shares = (mean.tokens, mean.dollars, mean.recall, mean.least, mean.files)
        rendered.add_row(
            _short(mean.strategy), *map(_figure, shares), "✓" if mean.best else ""
        )
    return rendered


def _each(figures: Sequence[Figure]) -> Table:
    files = [*dict.fromkeys(figure.file for figure in figures)]
    rendered = table(
        "Each file where less is sent: tokens / dollars / recall", "strategy", *files
    )
    by_strategy_and_file = {
        (figure.strategy, figure.file): figure
        for figure in figures
        if figure.tokens < 1
    }
    for name in dict.fromkeys(name for name, _ in by_strategy_and_file):
        own = (by_strategy_and_file.get((name, file)) for file in files)
        cells = (
            " / ".join(f"{getattr(figure, k):.2f}" for k in _AXES) if figure else "–"
            for figure in own
        )
        rendered.add_row(_short(name), *cells)
    return rendered


def _figure(share: float | None) -> str:
    return "–" if share is None else f"{share:.2f}"


def _short(strategy: str) -> str:
    """Return a strategy with the values of its parameters, without their names."""
    name, _, params = strategy.partition(":")
    values = dict.fromkeys(part.partition("=")[2] for part in params.split(",") if part)
    return f"{name} ({', '.join(values)})" if values else name


def draw(means: Sequence[Mean], path: Path) -> None:
    """The picture: dollars and recall of each strategy, and the front."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5.5), layout="constrained")
    for mean in means:
        colour = "#0072b2" if mean.best else "#999999"
        axes.scatter(mean.dollars, mean.recall, s=30 + 300 * mean.tokens, color=colour)
        axes.annotate(
            _short(mean.strategy), (mean.dollars, mean.recall), fontsize=8,
            xytext=(6, 6), textcoords="offset points",
        )  # fmt: skip
    line = sorted((mean.dollars, mean.recall) for mean in means if mean.best)
    best: list[tuple[float, float]] = []
    for dollars, recall in line:
        if not best or recall > best[-1][1]:
            best.append((dollars, recall))
    axes.plot(*zip(*best, strict=True), color="#0072b2", linewidth=1)
    axes.axhline(0.95, color="#d55e00", linestyle=":")
    axes.axvline(0.7, color="#d55e00", linestyle=":")
    axes.set_xlim(0, 1.25)  # a more expensive one is no choice
    axes.set_xlabel("dollars relative to keep_all (size: tokens)")
    axes.set_ylabel("reference recall")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
