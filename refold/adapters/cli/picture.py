"""A comparison as a picture: tokens sent per request, and reference recall beside."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from refold.projections.compare.outcome import Outcome

# Told apart by people who see fewer colours too, with the dashes.
_COLOURS: Final = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000",
    "#8c564b", "#7f7f7f", "#6a3d9a", "#999933", "#882255", "#44aa99",
)  # fmt: skip
_DASHES: Final = ("-", "--", "-.", ":")
_LONGEST: Final = 40


def draw(outcomes: Sequence[Outcome], path: Path) -> None:
    """Write the picture of ``outcomes`` to ``path``, whole or not at all."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    height = max(5.0, 2.5 + 0.34 * len(outcomes))
    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(13, height), width_ratios=(3, 1.15), layout="constrained"
    )
    _tokens(left, outcomes)
    _recall(right, outcomes)
    image = io.BytesIO()
    figure.savefig(image, dpi=120, format="png")
    pyplot.close(figure)
    path.write_bytes(image.getvalue())


def _tokens(axes: Any, outcomes: Sequence[Outcome]) -> None:
    """A line for each strategy, or one for all that sent the same."""
    for group in _alike(outcomes):
        first = outcomes[group[0]]
        tokens = [request.tokens for request in first.sent]
        marked = sorted({done.request for done in first.compactions})
        marked = [place for place in marked if place < len(tokens)]
        colour = _colour(group[0])
        axes.plot(
            range(1, len(tokens) + 1),
            tokens,
            _DASHES[group[0] // len(_COLOURS) % len(_DASHES)],
            color=colour,
            linewidth=2,
            label=_joined([_name(outcomes[index]) for index in group]),
        )
        axes.plot(
            [place + 1 for place in marked],
            [tokens[place] for place in marked],
            "v",
            color=colour,
            markeredgecolor="white",
            markersize=9,
            zorder=3,
        )
    axes.plot([], [], "v", color="#555555", label="compacted before this request")
    axes.set_title("Tokens sent per request", fontsize=12)
    axes.set_xlabel("request")
    axes.set_ylim(bottom=0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    legend = axes.legend(fontsize=9, frameon=False, loc="upper left")
    for text in legend.get_texts():
        text.set_parse_math(False)
    _bare(axes)


def _alike(outcomes: Sequence[Outcome]) -> list[list[int]]:
    """The places of outcomes, those that sent as much each time together."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, outcome in enumerate(outcomes):
        key = tuple(request.tokens for request in outcome.sent)
        groups.setdefault(key, []).append(index)
    return list(groups.values())


def _joined(names: list[str]) -> str:
    """Several names as one label, in lines that are not too long."""
    lines = [""]
    for name in names:
        if lines[-1] and len(lines[-1]) + len(name) > _LONGEST:
            lines.append("")
        lines[-1] += f"{name} = "
    return "\n".join(line.rstrip() for line in lines).removesuffix(" =")


def _recall(axes: Any, outcomes: Sequence[Outcome]) -> None:
    shares = [outcome.reference_recall for outcome in outcomes]
    places = range(len(outcomes))
    bars = axes.barh(
        places,
        [share or 0.0 for share in shares],
        color=[_colour(index) for index in places],
        height=0.7,
    )
    labels = ["no references" if one is None else f"{one:.1%}" for one in shares]
    axes.bar_label(bars, labels, padding=3, fontsize=9)
    axes.set_yticks(places, [_name(outcome) for outcome in outcomes], fontsize=9)
    for text in axes.get_yticklabels():
        text.set_parse_math(False)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.25)
    axes.set_xticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
    axes.set_title("Reference recall", fontsize=12)
    _bare(axes)


def _bare(axes: Any) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _colour(index: int) -> str:
    return _COLOURS[index % len(_COLOURS)]


def _name(outcome: Outcome) -> str:
    """The label in characters that the font has, and not too long for the picture."""
    name = outcome.label.encode("ascii", "backslashreplace").decode()
    return name if len(name) <= _LONGEST else f"{name[:20]}…{name[21 - _LONGEST :]}"
