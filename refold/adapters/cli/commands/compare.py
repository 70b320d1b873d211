"""``refold compare`` and ``rerun``: the requests under other strategies or prompts."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from refold.adapters.cli.files import Destination
from refold.adapters.cli.options import Call, ReaderOption, SessionOption
from refold.adapters.cli.output import WIDE, Part, Result, Screen, complain
from refold.adapters.display.values import number, visible
from refold.domain.canonical import canonical
from refold.domain.errors import InvalidConfiguration, counted

if TYPE_CHECKING:
    from refold.domain.events import JsonObject
    from refold.projections.compare import Outcome
    from refold.store.proofs.explanations import Compared
    from refold.store.proofs.rerun import Excerpt, Model, Rerun


def compare(
    call: Call,
    session: SessionOption,
    user: ReaderOption = None,
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SPEC",
            help="Strategy to compare: name, name:key=value or @file.toml; repeat for "
            "more.  Default: all strategies with their defaults.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="M",
            help="Model whose prices, cache rules and window apply.  Default: the "
            "model of the last answer.",
        ),
    ] = None,
    prices: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with your own prices: TOML with a table [models].",
        ),
    ] = None,
    recorded: Annotated[
        bool, typer.Option("--recorded", help="Use only summaries from the log.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="Draw tokens per request, and recall."),
    ] = None,
) -> Result:
    """Compare what strategies would have sent.

    Replays the session in memory under each strategy and writes nothing.  The
    summarizer abridged makes the summaries, without a model.
    """
    picture = None
    if plot is not None:
        _check_plot(plot)
        picture = call.with_resource(Destination(plot))
    opened = call.session(user, session)
    compared = opened.proofs.compare(
        strategy or None, model=model, prices=prices, recorded=recorded
    )
    if picture is not None:
        picture.write(drawn(compared.outcomes))
        picture.commit()
    for name, why in compared.skipped:
        complain(f"skipped {name}: {why}")
    values = [outcome.to_json() for outcome in compared.outcomes]
    return Result(values, lambda screen: _show(screen, compared))


def rerun(
    call: Call,
    session: SessionOption,
    user: ReaderOption = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            metavar="SPEC",
            help="Strategy for all requests: name, name:key=value or @file.toml.  "
            "Default: the recorded one.",
        ),
    ] = None,
    prompt: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Text file with a system prompt that replaces the recorded ones.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="M",
            help="Anthropic model that answers from the first difference on, until a "
            "call has no recorded result.  Default: none, and no network access.",
        ),
    ] = None,
) -> Result:
    """Repeat the requests of a run, and report what differs.

    Takes responses and results from the log, and writes nothing.  Under another
    strategy, prompt or redaction policy, it shows the first request that differs
    and exits with 1.
    """
    opened = call.session(user, session)
    ran = opened.proofs.rerun(
        strategy,
        prompt=None if prompt is None else _read_prompt(prompt),
        model=None if model is None else _live_model(call, model),
    )
    return Result(
        ran.to_json, lambda screen: _show_rerun(screen, ran), int(ran.differs)
    )


def _read_prompt(path: Path) -> str:
    """Return the text in a file.  Raises InvalidConfiguration if it is none."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise InvalidConfiguration(
            f"--prompt: {path} is not a text that can be read: check its path, and "
            "that it is UTF-8"
        ) from None


def _live_model(call: Call, name: str) -> Model:
    """Return a model that answers, until the command ends.

    Raises InvalidConfiguration if a package is missing.
    """
    try:
        from refold.adapters.claude.capture import LiveModel
    except ModuleNotFoundError as missing:
        raise InvalidConfiguration(
            f"--model needs the package {missing.name}: `pip install anthropic` "
            "installs what is missing"
        ) from None
    return call.with_resource(closing(LiveModel(name)))


def _show_rerun(screen: Screen, ran: Rerun) -> None:
    """Print how many requests are the same, or the first that differs."""
    derived = ran.requests - ran.recorded_requests
    if not ran.recorded_requests:
        word = "reconstructed" if ran.recorded else "assumed"
        screen.line(f"no request was recorded: {derived:,} {word} from the log")
    elif derived:
        recorded = counted(ran.recorded_requests, "recorded request")
        screen.line(f"{recorded}, {derived:,} reconstructed from the log")
    difference = ran.first_difference
    if difference is None:
        screen.line((f"{counted(ran.requests, 'request')} made again", "bold"))
        if ran.same_recorded:
            screen.line((f"{ran.same_recorded:,} as sent", "green"))
        if ran.same > ran.same_recorded:
            again = counted(ran.same - ran.same_recorded, "reconstructed request")
            unknown = "the log does not show what the model received"
            screen.line(f"{again} the same as the log gives; {unknown}")
    else:
        screen.line(
            (f"request {difference.request} of {ran.requests} differs", "bold red"),
            f" (seq {difference.seq}): {difference.where}",
        )
        _show_side(screen, "then", difference.then)
        _show_side(screen, "now", difference.now)
        if difference.call is not None:
            for name, calls in difference.call._asdict().items():
                screen.line((f"calls {name}: ", "bold"), visible(_calls(calls)))
    if ran.superseded:
        later = "made of events that were redacted later: not proved"
        screen.line(f"{ran.superseded:,} {later}")
    live = ran.live
    if live is not None:
        answers = counted(live.answers, "answer")
        results = counted(live.results, "recorded result")
        screen.line(f"live from request {live.request}: {answers}, {results}")
        if live.call is not None:
            call = visible(_calls([live.call]))
            screen.line(("no recorded result: ", "yellow"), call)


def _show_side(screen: Screen, name: str, side: Excerpt) -> None:
    """Show a request as it was then, or as it is now."""
    tokens = "" if side.tokens is None else f", {counted(side.tokens, 'token')}"
    screen.line((f"{name:<5}", "bold"), f"{side.digest[:12]}{tokens}")
    if side.text is not None:
        screen.line("     ", visible(side.text))


def _calls(calls: Sequence[JsonObject]) -> str:
    """Return calls as text, with their arguments."""
    texts = []
    for call in calls:
        arguments = canonical(call["arguments"]).decode()
        texts.append(f"{call['name']}{arguments}")
    return ", ".join(texts) or "none"


def _check_plot(path: Path) -> None:
    """Raise InvalidConfiguration, before any work, if no plot can be written."""
    from importlib.util import find_spec

    if path.suffix.lower() != ".png":
        raise InvalidConfiguration(f"--plot writes a PNG: {path} does not end in .png")
    if not path.absolute().parent.is_dir():
        raise InvalidConfiguration(f"--plot: there is no directory {path.parent}")
    if find_spec("matplotlib") is None:
        raise InvalidConfiguration(
            "--plot needs matplotlib: `pip install 'refold[plot]'` installs it"
        )


_COLUMNS: Final = (
    "strategy",
    "#tokens",
    "#peak",
    "#cached",
    "#written",
    "#rest",
    "#compactions",
    "#cost $",
    "#recall",
    "#files",
)
# The columns of a terminal that has no room for all.
_NARROW_COLUMNS: Final = (
    "strategy",
    "#tokens",
    "#peak",
    "#cached",
    "#compactions",
    "#cost $",
    "#recall",
    "#files",
)
_DASH: Final = "–"


def _show(screen: Screen, compared: Compared) -> None:
    """Print a row for each strategy, and notes."""
    outcomes = compared.outcomes
    requests = 0  # the same number for all strategies
    references = 0
    if outcomes:
        requests = len(outcomes[0].sent)
        references = outcomes[0].references
    screen.line(
        (counted(requests, "request"), "bold"),
        f" in {counted(compared.events, 'event')}, ",
        f"{counted(references, 'reference')} to earlier results",
    )
    screen.line(f"prices and cache of {compared.model.name}")
    screen.line("")
    columns = _COLUMNS if screen.width >= WIDE else _NARROW_COLUMNS
    rows: dict[tuple[Part, ...], list[str]] = {}  # the labels of each row of figures
    for outcome in outcomes:
        figures = _figures(outcome, outcomes)
        row = tuple(figures[name] for name in columns if name in figures)
        rows.setdefault(row, []).append(visible(outcome.label))
    screen.table(columns, [[labels[0], *row] for row, labels in rows.items()])
    for first, *others in rows.values():
        if others:
            text = f"the same as {first}: {', '.join(others)}"
            for line in wrap(text, screen.width, subsequent_indent="  "):
                screen.line((line, "dim"))
    screen.line("")
    for line in _notes(compared, columns):
        screen.line((line, "dim"))


def _figures(outcome: Outcome, outcomes: Sequence[Outcome]) -> dict[str, Part]:
    """Return the figures of a strategy by column; ``outcomes`` are those of all."""
    recall = outcome.reference_recall
    files = outcome.ledger_recall["files"]
    costs = [other.cost for other in outcomes]
    return {
        "#tokens": number(outcome.tokens_total),
        "#peak": number(outcome.tokens_peak),
        "#cached": _share(outcome.cached, outcome.tokens_total),
        "#written": _share(outcome.cache_writes, outcome.tokens_total),
        "#rest": _share(outcome.uncached, outcome.tokens_total),
        "#compactions": (
            number(len(outcome.compactions)) if outcome.compactions else _DASH
        ),
        "#cost $": _cost(outcome.cost, costs),
        "#recall": _DASH if recall is None else f"{recall:.1%}",
        "#files": _DASH if files is None else f"{files:.0%}",
    }


def _share(part: int, whole: int) -> str:
    """Return a part of a total in percent."""
    return f"{part / whole:.0%}" if whole else _DASH


def _cost(cost: float | None, costs: Sequence[float | None]) -> Part:
    """Return a cost as text; the lowest of all is bold."""
    if cost is None:
        return _DASH
    lowest = min(other for other in costs if other is not None)
    return _dollars(cost), "bold" if cost == lowest else ""


def _dollars(cost: float) -> str:
    """Return a cost as text, with more digits for a small one."""
    return f"{cost:,.2f}" if cost >= 100 else f"{cost:.4f}"


def _notes(compared: Compared, columns: Sequence[str]) -> list[str]:
    """Return the lines below the table, which explain its columns."""
    notes = ["tokens: all that were sent; peak: of the largest request"]
    if "#written" in columns:
        notes.append("cached: read from the cache; written: to it; rest: neither")
    else:
        notes.append("cached: share of the tokens that the cache could serve")
    notes += [
        "cost: of the prompts; recall: share of the references that were still visible",
        "files: share of the files read, written and deleted whose names were visible",
    ]
    with_summaries = [outcome for outcome in compared.outcomes if outcome.done]
    if with_summaries:
        notes.append(
            "Summaries here are free (no model).  With a model they would add:"
        )
        notes += map(_added, with_summaries)
    for outcome in compared.outcomes:
        if outcome.over_budget:
            over = f"up to {counted(outcome.over_budget, 'token')} over the window"
            notes.append(f"{visible(outcome.label)} is {over}")
    return notes


def _added(outcome: Outcome) -> str:
    """Return the cost of a strategy's summaries if a model wrote them."""
    parts = [
        counted(len(outcome.done), "call"),
        counted(outcome.summarizer_tokens, "token"),
    ]
    if outcome.summarizer_cost is not None:
        parts.insert(0, f"${_dollars(outcome.summarizer_cost)}")
    failed = len(outcome.done) - len(outcome.compactions)
    end = f"; {failed} of them failed" if failed else ""
    return f"  {visible(outcome.label)}: {', '.join(parts)}{end}"


_LONGEST: Final = 40  # characters of a label in the plot


def drawn(outcomes: Sequence[Outcome]) -> bytes:
    """Return the plot of outcomes as PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    with mpl.rc_context(fname=Path(__file__).parents[1] / "plot.mplstyle"):
        figure, (left, right) = pyplot.subplots(1, 2, width_ratios=(3, 1.15))
        figure.set_size_inches(13, max(5.0, 2.5 + 0.34 * len(outcomes)))
        _plot_tokens(left, outcomes, list(mpl.rcParams["axes.prop_cycle"]))
        _plot_recall(right, outcomes)
        image = io.BytesIO()
        figure.savefig(image, format="png")
        pyplot.close(figure)
    return image.getvalue()


def _plot_tokens(axes: Any, outcomes: Sequence[Outcome], styles: Sequence[Any]) -> None:
    """Draw a line for each strategy; those that sent the same share a line."""
    for group in _alike(outcomes):
        first_index = group[0]
        first = outcomes[first_index]
        style = styles[first_index % len(styles)]
        tokens = [request.tokens for request in first.sent]
        label = _joined([_name(outcomes[index]) for index in group])
        axes.plot(range(1, len(tokens) + 1), tokens, label=label, **style)
        # A mark for each request that follows a compaction.
        request_numbers: list[int] = []
        heights: list[int] = []
        for index in sorted({compaction.request for compaction in first.compactions}):
            if index < len(tokens):
                request_numbers.append(index + 1)
                heights.append(tokens[index])
        axes.plot(request_numbers, heights, "v", color=style["color"], zorder=3)
    axes.plot([], [], "v", color="#555555", label="compacted before this request")
    axes.set_title("Tokens sent per request")
    axes.set_xlabel("request")
    axes.set_ylim(bottom=0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.grid(axis="y")
    axes.legend()


def _alike(outcomes: Sequence[Outcome]) -> list[list[int]]:
    """Return groups of outcomes that sent the same numbers of tokens, by index."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, outcome in enumerate(outcomes):
        key = tuple(request.tokens for request in outcome.sent)
        groups.setdefault(key, []).append(index)
    return list(groups.values())


def _joined(names: list[str]) -> str:
    """Return several names as one label, in lines that are not too long."""
    lines = [""]
    for name in names:
        if lines[-1] and len(lines[-1]) + len(name) > _LONGEST:
            lines.append("")
        lines[-1] += f"{name} = "
    return "\n".join(line.rstrip() for line in lines).removesuffix(" =")


def _plot_recall(axes: Any, outcomes: Sequence[Outcome]) -> None:
    """Draw a bar for the recall of each strategy."""
    shares: list[float] = []
    labels: list[str] = []
    for outcome in outcomes:
        recall = outcome.reference_recall
        shares.append(recall or 0.0)
        labels.append("no references" if recall is None else f"{recall:.1%}")
    places = range(len(outcomes))
    colours = [f"C{place}" for place in places]
    bars = axes.barh(places, shares, color=colours, height=0.7)
    axes.bar_label(bars, labels, padding=3, fontsize=9)
    axes.set_yticks(places, list(map(_name, outcomes)), fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.25)
    axes.set_xticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
    axes.set_title("Reference recall")


def _name(outcome: Outcome) -> str:
    """Return the label in characters that the font has, shortened for the plot."""
    name = outcome.label.encode("ascii", "backslashreplace").decode()
    if len(name) <= _LONGEST:
        return name
    return f"{name[:20]}…{name[21 - _LONGEST :]}"
