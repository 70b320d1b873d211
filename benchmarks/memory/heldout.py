"""What memory of some runs foretells of others, beside base rates.

The runs are split by task or by trial.  By task, memory knows nothing of the tasks it
is asked about; by trial, it has seen other runs of the same ones.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Final

from refold.projections.memory.items import Item, items
from refold.projections.memory.sessions import GENERAL, LONGEST, Shown, Step

_TOP: Final = 3
# How many sessions a prior is worth, where few show a thing.
_PRIOR: Final = 2.0


@dataclass(frozen=True, slots=True)
class Foretold:
    """One thing that was foretold, beside what is right without memory.

    ``base`` is what is reached without; of ``count`` of ``unit``.
    """

    what: str
    measured: float
    base: float
    base_is: str
    unit: str
    count: int


@dataclass(frozen=True, slots=True)
class Known:
    """Memory of some runs, looked up by what is at hand."""

    shown: Sequence[Shown]
    items: Sequence[Item]

    @classmethod
    def of(cls, shown: Sequence[Shown]) -> Known:
        return cls(shown, items(shown))

    def paths(self, scenario: str) -> dict[tuple[Step, ...], Item]:
        """The established paths of a scenario, by their steps."""
        return {
            tuple(tuple(step) for step in _path(item)): item
            for item in self.items
            if item.kind == "path" and item.scenario == scenario and item.established
        }

    @property
    def mean(self) -> float:
        return fmean(one.success or 0.0 for one in self.shown)


def foretold(known: Known, others: Sequence[Shown]) -> list[Foretold]:
    """All that memory foretells of the other runs."""
    return [
        *_success(known, others),
        *_next_tool(known, others),
        *_errors(known, others),
        *_length(known, others),
    ]


def _success(known: Known, others: Sequence[Shown]) -> list[Foretold]:
    """How a run ends, told from its first half: of the items it matches, the mean."""
    chances = [(_chance(known, one), one.success or 0.0) for one in others]
    right = [(chance >= 0.5) == (real >= 0.5) for chance, real in chances]
    usual = known.mean >= 0.5
    base = [usual == (real >= 0.5) for _, real in chances]
    loss = fmean((chance - real) ** 2 for chance, real in chances)
    plain = fmean((known.mean - real) ** 2 for _, real in chances)
    count = len(others)
    return [
        Foretold(
            "success, at half the run: right",
            fmean(right),
            fmean(base),
            "the usual end",
            "runs",
            count,
        ),
        Foretold(
            "success, at half the run: Brier score (less is better)",
            loss,
            plain,
            "the mean",
            "runs",
            count,
        ),
    ]


def _chance(known: Known, one: Shown) -> float:
    walked = [step for _, _, step in one.walked]
    half = walked[: (len(walked) + 1) // 2]
    found = [
        paths[tuple(half[start:end])]
        for paths in (known.paths(one.scenario), known.paths(GENERAL))
        for start in range(len(half))
        for end in range(start + 1, min(len(half), start + LONGEST) + 1)
        if tuple(half[start:end]) in paths
    ]
    rated = [
        (item.success, item.sessions) for item in found if item.success is not None
    ]
    weight = sum(count for _, count in rated) + _PRIOR
    return (sum(rate * n for rate, n in rated) + known.mean * _PRIOR) / weight


def _next_tool(known: Known, others: Sequence[Shown]) -> list[Foretold]:
    """The next step, of those before it: what most sessions did that came this way."""
    counts: Counter[Step] = Counter(s for o in known.shown for _, _, s in o.walked)
    usual = [step for step, _ in counts.most_common(_TOP)]
    first = top = base = base_top = total = 0
    for one in others:
        walked = [step for _, _, step in one.walked]
        tables = [known.paths(one.scenario), known.paths(GENERAL)]
        for place in range(1, len(walked)):
            guesses = _guessed(tables, walked[:place]) or usual
            total += 1
            first += guesses[0] == walked[place]
            top += walked[place] in guesses[:_TOP]
            base += usual[0] == walked[place]
            base_top += walked[place] in usual
    return [
        Foretold(
            "next tool: right",
            first / total,
            base / total,
            "the most used",
            "calls",
            total,
        ),
        Foretold(
            "next tool: among three",
            top / total,
            base_top / total,
            "the three most used",
            "calls",
            total,
        ),
    ]


def _guessed(
    tables: Iterable[Mapping[tuple[Step, ...], Item]], before: Sequence[Step]
) -> list[Step]:
    """Likely next steps, the likeliest first: from the longest past that is known."""
    found: dict[Step, None] = {}
    for past in range(min(LONGEST - 1, len(before)), 0, -1):
        tail = tuple(before[len(before) - past :])
        for paths in tables:
            ways = [
                (path[-1], item)
                for path, item in paths.items()
                if len(path) == past + 1 and path[:-1] == tail
            ]
            for step, _ in sorted(ways, key=lambda way: (-way[1].sessions, way[0])):
                found.setdefault(step)
    return list(found)


def _errors(known: Known, others: Sequence[Shown]) -> list[Foretold]:
    """Which failures come: those that memory knows of the tools that are called."""
    expected = {
        (str(item.content["tool"]), str(item.content["reason"]))
        for item in known.items
        if item.kind == "failure" and item.scenario == GENERAL and item.established
    }
    tools = {tool for tool, _ in expected}
    met = [(failure.tool, failure.reason) for one in others for failure in one.failures]
    called = [{tool for _, _, step in one.walked for tool in step} for one in others]
    warned = [
        (index, tool) for index, some in enumerate(called) for tool in some & tools
    ]
    came = {(i, f.tool) for i, one in enumerate(others) for f in one.failures}
    every = [(index, tool) for index, some in enumerate(called) for tool in some]
    return [
        Foretold(
            "errors: known before, with their reason",
            _part(sum(one in expected for one in met), len(met)),
            0.0,
            "nothing",
            "errors",
            len(met),
        ),
        Foretold(
            "errors: warned of a tool, and it failed",
            _part(sum(one in came for one in warned), len(warned)),
            _part(sum(one in came for one in every), len(every)),
            "any tool called",
            "warnings",
            len(warned),
        ),
    ]


def _length(known: Known, others: Sequence[Shown]) -> list[Foretold]:
    """How many steps a run takes: the median of its scenario's, else of all."""
    by_scenario: dict[str, list[int]] = defaultdict(list)
    for one in known.shown:
        for name in {GENERAL, one.scenario}:
            by_scenario[name].append(len(one.walked))
    whole = median(by_scenario[GENERAL])
    told = [
        abs(median(by_scenario.get(o.scenario, by_scenario[GENERAL])) - len(o.walked))
        for o in others
    ]
    plain = [abs(whole - len(one.walked)) for one in others]
    return [
        Foretold(
            "steps of a run: mean error (less is better)",
            fmean(told),
            fmean(plain),
            "the median of all",
            "runs",
            len(others),
        )
    ]


def _part(some: int, of: int) -> float:
    return some / of if of else 0.0


def _path(item: Item) -> Any:
    return item.content["path"]


def halves(
    shown: Sequence[Shown], key: Callable[[Shown], int]
) -> tuple[list[Shown], list[Shown]]:
    """Those whose key is even, and the others."""
    return (
        [one for one in shown if key(one) % 2 == 0],
        [one for one in shown if key(one) % 2],
    )
