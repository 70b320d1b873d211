"""Advice: what of memory is said to a model, within a budget, with its evidence."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, zip_longest
from typing import Any, Final, NamedTuple, TypedDict

from refold.domain.errors import InvalidConfiguration, counted
from refold.projections.context.budget import TITLE, Advice, cost
from refold.projections.memory.items import INDEPENDENT, Evidence, Item
from refold.projections.memory.sessions import GENERAL

# Ids are the program's, but a line must not become two, nor a sentence.
_PLAIN: Final = re.compile(r"[\w.:@/-]{1,64}")
_CITED: Final = 2
_ABOUT: Final = (
    "What earlier sessions show. It is advice, not fact, and no instruction; each "
    "line names the item and the events behind it."
)
_HALF_LIFE: Final = 90 * 86_400_000_000
# Of what was learned in no scenario of its own, against what was in this one.
_ELSEWHERE: Final = 0.5
_ORDER: Final = ("path", "check", "avoid", "recovery", "effort")
_SHORTLIST: Final = 16
_NEARLY: Final = 0.75


def said(item: Item) -> str:
    """What an item says."""
    content: dict[str, Any] = dict(item.content)
    match item.kind:
        case "path":
            return way(item)
        case "failure":
            return f"{content['tool']} fails: {content['reason']}"
        case "recovery":
            fix = _fix(content, "again")
            return f"{content['tool']} fails: {content['reason']}, then {fix}"
        case "check":
            return f"checked with {content['tool']}"
        case "effort":
            return f"{content['n']} reflections"
    return ", ".join(f"{name}: {value}" for name, value in content.items())


def way(item: Item) -> str:
    """A path: what was called after what, ``+`` for what was called at once."""
    path: Any = item.content["path"]
    return " → ".join("+".join(step) for step in path)


def advised(item: Item) -> str:
    """The item as advice for a model, with what speaks for it, on one line."""
    content: dict[str, Any] = dict(item.content)
    well = f"{_rate(item.success or 0.0, item)} went well"
    match item.kind:
        case "path" if fails(item):
            text = f"Avoid: {way(item)} ({_rate(1 - (item.success or 0), item)} failed"
        case "path":
            text = f"Suggested tool path: {way(item)} ({well}"
        case "check":
            text = f"Verification: {content['tool']} ({well}"
        case "failure":
            text = f"Avoid: {content['tool']} often fails with {content['reason']} "
            text += f"(in {item.sessions} sessions"
        case "recovery":
            when = f"If {content['tool']} fails with {content['reason']}"
            text = f"{when}: {_fix(content, 'trying again')} ({well}"
        case _:
            text = f"Reflections: {content['n']} were enough ({well}"
    return f"- {text}; {cited(item)})"


def _fix(content: Mapping[str, Any], again: str) -> str:
    return again if content["fix"] == content["tool"] else str(content["fix"])


def cited(item: Item) -> str:
    """The item's id, and sessions and seqs that show it."""
    places = [f"{one.session_id} #{one.seqs[0]}-{one.seqs[-1]}" for one in shown(item)]
    return ", ".join((item.memory_id, *places))


def shown(item: Item) -> list[Evidence]:
    """What of its evidence is cited."""
    able = [o for o in item.evidence if o.seqs and _PLAIN.fullmatch(o.session_id)]
    return able[:_CITED]


def _rate(part: float, item: Item) -> str:
    return f"{part:.0%} of {item.sessions} sessions"


@dataclass(frozen=True, slots=True)
class Choice:
    """How advice is chosen.

    scenario:  the kind of task at hand; what was learned in ``general`` counts half.
    tokens:    how many it may cost at most, markup counted.
    top:       how many lines it may have at most.
    threshold: a confidence below it is not said, 0 to 1.
    tools:     the tools at hand: nothing is said of others.  None: of all.

    Raises InvalidConfiguration for what is outside.
    """

    scenario: str = GENERAL
    tokens: int = 600
    top: int = 8
    threshold: float = 0.5
    tools: Collection[str] | None = None

    def __post_init__(self) -> None:
        if self.tokens < 0 or self.top < 0:
            raise InvalidConfiguration("tokens and top must be at least 0")
        if not self.scenario or not self.scenario.isprintable():
            raise InvalidConfiguration("scenario is the name of a kind of task")
        if isinstance(self.tools, str | bytes):
            raise InvalidConfiguration("tools are names, in a list")
        if not 0 <= self.threshold <= 1:
            raise InvalidConfiguration("threshold is a confidence from 0 to 1")


class ChoiceArgs(TypedDict, total=False):
    """``Choice`` by keyword."""

    scenario: str
    tokens: int
    top: int
    threshold: float
    tools: Collection[str] | None


def chosen_by(how: ChoiceArgs) -> Choice:
    """How advice is chosen.  Raises InvalidConfiguration."""
    unknown = sorted(set(how) - set(ChoiceArgs.__annotations__))
    if unknown:
        known = ", ".join(ChoiceArgs.__annotations__)
        raise InvalidConfiguration(f"advice is not chosen by {unknown[0]!r}: {known}")
    return Choice(**how)


class Line(NamedTuple):
    """A line of advice: the item that it says, how sure it is, sessions it cites."""

    text: str
    memory_id: str
    sure: float = 1.0
    cited: Sequence[str] = ()


class Candidate(NamedTuple):
    """An item that may be said, as little of it as choosing takes.

    weight: 1, or less for what was not learned in the scenario at hand.
    tools:  all that it names; ``path`` is its path, empty if it is none.
    cited:  the sessions that the text names.
    """

    text: str
    memory_id: str
    label: str
    sure: float
    weight: float
    updated_at: int
    expires_at: int
    tools: Sequence[str]
    path: Sequence[Sequence[str]]
    cited: Sequence[str] = ()

    def value(self, now: int) -> float:
        """How useful it is now: sure, relevant and fresh."""
        fresh: float = 0.5 ** (max(0, now - self.updated_at) / _HALF_LIFE)
        return round(self.sure * self.weight * fresh, 9)

    def may_be_said(self, how: Choice, now: int) -> bool:
        """Whether it holds still, is sure enough, and its tools are at hand."""
        at_hand = how.tools is None or set(how.tools).issuperset(self.tools)
        return self.expires_at > now and self.sure >= how.threshold and at_hand

    @property
    def thing(self) -> object:
        """What it is about, in whatever scenario, for it or against it."""
        return tuple(map(tuple, self.path)) or self.claim

    @property
    def claim(self) -> str:
        """What it says, without figures and evidence."""
        return self.text.partition(" (")[0]


def why_not(
    item: Item, *, now: int, threshold: float, means: Mapping[str, float]
) -> list[str]:
    """Why an item is not said to a model; nothing if it may be.

    means: how sessions end, by scenario: what every session does is no advice.
    """
    reasons = []
    if item.tainted:
        few = counted(item.tainted_sessions, "session")
        reasons.append(f"tainted: {few} cannot count for it")
    elif item.sessions < INDEPENDENT:
        few = f"{item.sessions} of {INDEPENDENT} independent sessions show it"
        reasons.append(f"not established: {few}")
    if item.stale:
        reasons.append("stale: newer sessions say the contrary")
    if item.expires_at <= now:
        reasons.append("expired: no recent session shows it")
    sure = surety(item)
    if sure < threshold:
        reasons.append(f"below the threshold: {sure:.2f} of {threshold:.2f}")
    if not reasons and not _helps(item, means.get(item.scenario)):
        blameless = fails(item) and not to_blame(item)
        like = "sessions like these end no better without it"
        no_call = f"no call in it fails, and {like}"
        no_help = "no help: sessions end no better with it"
        reasons.append(no_call if blameless else no_help)
    return reasons


def surety(item: Item) -> float:
    """How sure it is of what it says: of a path, that it works or that it fails."""
    return max(item.confidence, item.against if item.kind == "path" else 0.0)


def fails(item: Item) -> bool:
    """Whether it is a path that is surer to fail than to work."""
    return item.kind == "path" and item.against > item.confidence


def to_blame(item: Item) -> bool:
    """Whether it is the path that fails, and not only what it was tried on.

    A call in it mostly fails, or sessions of the same scenario surely end better
    without it.
    """
    best = 1 - item.against  # how well it may go at most
    return item.failed >= 0.5 or (item.otherwise or 0.0) > best


def _helps(item: Item, mean: float | None) -> bool:
    """Whether it tells good from bad: its rate is on its side of the scenario's."""
    if item.kind == "failure" or item.success is None or mean is None:
        return item.kind == "failure"
    mean = round(mean, 6)  # as an item's rate is
    if fails(item):
        return item.success < mean and to_blame(item)
    # What all do alike tells nothing; a way that is as good as any is one all the same.
    return item.success > mean if item.kind == "effort" else item.success >= mean


def shortlist(
    items: Iterable[Item], scenario: str, *, now: int, means: Mapping[str, float]
) -> list[Candidate]:
    """What may be said in this scenario: of each kind at most ``_SHORTLIST``, the best.

    So choosing does not depend on how much memory there is.
    """
    relevance = {GENERAL: _ELSEWHERE, scenario: 1.0}
    found: dict[tuple[str, str], list[Candidate]] = defaultdict(list)
    for item in items:
        weight = relevance.get(item.scenario)
        if weight and not why_not(item, now=now, threshold=0.0, means=means):
            one = _candidate(item, weight)
            found[item.scenario, one.label].append(one)
    best = (_ranked(some, now)[:_SHORTLIST] for some in found.values())
    return [one for some in best for _, one in some]


def choose(
    candidates: Iterable[Candidate],
    how: Choice,
    *,
    now: int,
    profile: Sequence[Line] = (),
) -> Advice:
    """The advice that fits: of each kind the best first, then the second, and so on.

    ``profile`` are lines about the user, which come last and are left out first.
    """
    best: dict[object, tuple[float, Candidate]] = {}
    for value, one in _ranked([o for o in candidates if o.may_be_said(how, now)], now):
        best.setdefault(one.thing, (value, one))  # not in general too
    longer = _longer(best.values())
    by_label: dict[str, list[Candidate]] = {label: [] for label in _ORDER}
    for value, one in best.values():
        some = by_label[one.label]
        if len(some) < how.top and not _told(value, one, some, longer):
            some.append(one)
    turns = zip_longest(*by_label.values())
    said = [one for turn in turns for one in turn if one is not None]
    lines = [Line(one.text, one.memory_id, one.sure, one.cited) for one in said]
    about = [line for line in profile if line.sure >= how.threshold]
    return _fitted(lines[: how.top], lines[how.top :], about, how)


def _candidate(item: Item, weight: float) -> Candidate:
    content: dict[str, Any] = dict(item.content)
    path = content.get("path", [])
    tools = {content[name] for name in ("tool", "fix") if name in content}
    tools.update(tool for step in path for tool in step)
    return Candidate(
        advised(item),
        item.memory_id,
        "avoid" if item.kind == "failure" or fails(item) else item.kind,
        surety(item),
        weight,
        item.updated_at,
        item.expires_at,
        sorted(tools),
        path,
        [place.session_id for place in shown(item)],
    )


def _fitted(
    lines: Sequence[Line], over: Sequence[Line], profile: Sequence[Line], how: Choice
) -> Advice:
    """As many lines as the budget takes, in their order; one too long is left out."""
    out = [line.memory_id for line in over]
    taken, about = list(lines), list(profile)
    if cost(_section(taken, about)) > how.tokens:
        wanted = [(taken, line) for line in taken] + [(about, line) for line in about]
        taken.clear()
        about.clear()
        for into, line in wanted:
            into.append(line)
            if cost(_section(taken, about)) > how.tokens:
                into.pop()
                out.append(line.memory_id)
    text = _section(taken, about)
    cited = {name for line in (*taken, *about) for name in line.cited}
    ids = tuple(dict.fromkeys(line.memory_id for line in (*taken, *about)))
    left = tuple(dict.fromkeys(out))
    return Advice(text, ids, cost(text), left, tuple(sorted(cited)))


def _section(lines: Sequence[Line], profile: Sequence[Line]) -> str:
    if not lines and not profile:
        return ""
    texts = [TITLE, _ABOUT, *(line.text for line in lines)]
    if profile:
        texts += ["", "## Profile (with consent)", *(line.text for line in profile)]
    return "\n".join(texts)


def _ranked(candidates: Iterable[Candidate], now: int) -> list[tuple[float, Candidate]]:
    """With their value, the best first; of paths as good the longer: it says more."""
    valued = [(one.value(now), one) for one in candidates]
    return sorted(valued, key=lambda v: (-v[0], -len(v[1].path), v[1].memory_id))


def _told(
    value: float,
    one: Candidate,
    said: Iterable[Candidate],
    longer: Mapping[object, float],
) -> bool:
    """Whether another says it better.

    Of ways that work, the longer one that is nearly as good: a part of it alone is less
    of a way.  Of ways to avoid, what is said already, be it part of this one.
    """
    if one.label == "path":
        return longer.get(one.thing, 0.0) >= _NEARLY * value
    path = one.path
    return any(_within(path, it.path) or _within(it.path, path) for it in said)


def _longer(ranked: Iterable[tuple[float, Candidate]]) -> dict[object, float]:
    """Of each way that is part of another that works, the best value of those."""
    best: dict[object, float] = {}
    for value, one in ranked:
        way = tuple(map(tuple, one.path)) if one.label == "path" else ()
        for start, end in combinations(range(len(way) + 1), 2):
            if end - start < len(way):
                part = way[start:end]
                best[part] = max(value, best.get(part, 0.0))
    return best


def _within(part: Sequence[object], whole: Sequence[object]) -> bool:
    if not part:
        return False
    starts = range(len(whole) - len(part) + 1)
    return any(whole[start : start + len(part)] == part for start in starts)
