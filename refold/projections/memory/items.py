"""Items of procedural memory: what the sessions of a user show together."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import chain
from math import sqrt
from statistics import fmean, median
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from refold.domain.canonical import canonical
from refold.domain.erasure import LONGEST, timestamp
from refold.domain.errors import InvalidConfiguration
from refold.domain.events import JsonObject
from refold.domain.model import quiet
from refold.projections.memory.sessions import (
    EXTRACTOR,
    Shown,
    by_scenario,
    families,
    subpaths,
    untainted,
)

Procedural: TypeAlias = Literal["path", "failure", "recovery", "check", "effort"]
Declarative: TypeAlias = Literal["error", "topic", "progress", "mistake", "preference"]
Kind: TypeAlias = Procedural | Declarative

# So many independent sessions must show something before it may be said to a model.
INDEPENDENT: Final = 3
EVIDENCE: Final = 5
_DAY: Final = 86_400_000_000
# How long after it was last shown an item holds: what is known of a person, shorter.
LASTS: Final[dict[Kind, int]] = {
    **dict.fromkeys(("path", "failure", "recovery", "check", "effort"), 180 * _DAY),
    **dict.fromkeys(("error", "topic", "progress"), 90 * _DAY),
    "mistake": 30 * _DAY,
    "preference": 365 * _DAY,
}
_set: dict[str, int] = {}


def lasting(kind: Kind) -> int:
    """How long an item of this kind holds after it was last shown, in microseconds."""
    return _set.get(kind, LASTS[kind])


def set_lifetimes(**lifetimes: timedelta) -> None:
    """Have items of these kinds hold so long in this process, all others as shipped.

    Raises InvalidConfiguration for no kind, and for a time that is not above zero.
    """
    global _set  # replaced, not changed: another thread may be reading it
    for kind, time in lifetimes.items():
        if kind not in LASTS:
            known = ", ".join(LASTS)
            raise InvalidConfiguration(f"memory has no kind {kind!r}, only {known}")
        if not timedelta(0) < time <= LONGEST:
            raise InvalidConfiguration(f"memory {kind}: from above 0 to 999999 days")
    _set = {k: time // timedelta(microseconds=1) for k, time in lifetimes.items()}


# What an item is shown as, in this order: what it says, how far it holds, since when.
_SAYS: Final = ("memory_id", "user_id", "kind", "scenario", "content")
_HOLDS: Final = ("tainted_sessions", "success", "confidence", "against")
_STANDS: Final = ("tainted", "stale", "established", "cost")
_TIMES: Final = ("created_at", "updated_at", "expires_at")


class Evidence(NamedTuple):
    """Where it is shown: a session, and the seqs of events of it."""

    session_id: str
    seqs: tuple[int, ...]


@quiet
@dataclass(frozen=True, slots=True)
class Item:
    """One thing that memory holds.

    content:    structured, in a closed vocabulary: names and numbers, no text.
    sessions:   how many sessions show it, those that are tainted left out;
                ``tainted_sessions`` are those.  A session is one witness, and so is
                one with all that was forked from it.
    success:    the mean of how these sessions ended, 0 to 1; None if nothing says it.
    confidence: the lower bound of what the item claims, 0 to 1.
    against:    the lower bound of the contrary: for a path, of how it fails.
    failed:     of a path, the part of its sessions in which a call in it failed;
                ``otherwise`` is how sessions of the same scenarios end without it.
    stale:      something newer says the contrary; kept, and not said to a model.
    cost:       medians over its sessions: ``tokens``, ``milliseconds``.
    evidence:   of at most ``EVIDENCE`` sessions, the newest.
    models:     that took part in what shows it.
    created_at: when it was first shown, ``updated_at`` last, in microseconds since
                1970, by the clock of the events.
    """

    memory_id: str
    user_id: str
    kind: Kind
    scenario: str
    content: JsonObject
    sessions: int
    tainted_sessions: int
    success: float | None
    confidence: float
    against: float
    evidence: tuple[Evidence, ...]
    created_at: int
    updated_at: int
    models: tuple[str, ...] = ()
    cost: JsonObject | None = None
    stale: bool = False
    extractor: int = EXTRACTOR
    failed: float = 0.0
    otherwise: float | None = None

    @property
    def tainted(self) -> bool:
        """Whether too few sessions would show it without the tainted ones."""
        return self.sessions < INDEPENDENT <= self.sessions + self.tainted_sessions

    @property
    def expires_at(self) -> int:
        """After that it is not said any more."""
        return self.updated_at + lasting(self.kind)

    @property
    def version(self) -> int:
        """It grows by one with each session that has to do with it."""
        return self.sessions + self.tainted_sessions

    @property
    def established(self) -> bool:
        """Whether enough independent sessions show it, and nothing newer denies it."""
        return self.sessions >= INDEPENDENT and not self.tainted and not self.stale

    def to_json(self) -> JsonObject:
        """All of it, under the names of the documentation."""
        where = [{**one._asdict(), "seqs": list(one.seqs)} for one in self.evidence]
        made = {"extractor": self.extractor, "models": list(self.models)}
        return {
            **{name: getattr(self, name) for name in _SAYS},
            "provenance": {"sessions": where, **made},
            "sample_count": self.sessions,
            **{name: getattr(self, name) for name in (*_HOLDS, *_STANDS)},
            **{name: timestamp(getattr(self, name)) for name in _TIMES},
            "version": self.version,
        }


def memory_id(kind: Kind, scenario: str, content: JsonObject) -> str:
    """The item's name: 16 letters and digits, of what it says and where it holds."""
    identity = b"\x00".join((kind.encode(), scenario.encode(), canonical(content)))
    return "m" + hashlib.sha256(identity).hexdigest()[:15]


# The agent's own word, where neither the environment nor a human says anything.
OWN_WORD: Final = 0.5
# So many deviations from the median are usual; beyond, weight falls as distance grows.
_USUAL: Final = 3.0
# Of normal data, the standard deviation is so many median absolute deviations.
_NORMAL: Final = 1.4826
_FEWEST: Final = 5


def weights(shown: Sequence[Shown]) -> dict[str, float]:
    """By session, what its word counts among these: 1, or less, above 0.

    A session whose tokens, time, steps or reflections are far from the median counts
    as ``_USUAL`` robust deviations over its distance: the weights of P. J. Huber,
    Robust Estimation of a Location Parameter, Annals of Mathematical Statistics 35
    (1964), 73-101, with the median absolute deviation as the scale.  Fewer than five
    sessions have no usual; where more than half are equal, the scale is a tenth of
    the median, or 1.
    """
    sizes = [(o.tokens, o.milliseconds, len(o.walked), o.iterations) for o in shown]
    parts = [_measured(values) for values in zip(*sizes, strict=True)]
    return {
        one.session_id: min(part[index] for part in parts)
        * (OWN_WORD if one.own_word else 1.0)
        for index, one in enumerate(shown)
    }


def _measured(values: Sequence[float]) -> list[float]:
    if len(values) < _FEWEST:
        return [1.0] * len(values)
    middle = median(values)
    spread = _NORMAL * median(abs(value - middle) for value in values)
    scale = spread or max(1.0, abs(middle) / 10)
    return [
        min(1.0, _USUAL * scale / abs(value - middle)) if value != middle else 1.0
        for value in values
    ]


# One-sided, 90 %: of ten bounds nine are below what they bound.
Z: Final = 1.2816


def lower_bound(successes: float, sessions: float) -> float:
    """The lower end of Wilson's interval for ``successes`` of ``sessions``, 0 to 1.

    E. B. Wilson, Probable Inference, the Law of Succession, and Statistical Inference,
    Journal of the American Statistical Association 22 (1927), 209-212.  Partial
    successes count as their part.  Nothing is sure of nothing: 0 of 0 is 0.
    """
    if sessions <= 0:
        return 0.0
    rate, square = successes / sessions, Z * Z
    middle = rate + square / (2 * sessions)
    spread = Z * sqrt(rate * (1 - rate) / sessions + square / (4 * sessions**2))
    return max(0.0, (middle - spread) / (1 + square / sessions))


_Key: TypeAlias = tuple[Procedural, bytes]
# What sessions count, and how much of that is good.
_Rates: TypeAlias = Mapping[str, tuple[float, float]]
# A session, and where it shows a thing.
_Witness: TypeAlias = tuple[Shown, tuple[int, ...]]


@dataclass(slots=True)
class _Claim:
    """What sessions say of one thing, before it is an item."""

    content: JsonObject
    witnesses: list[_Witness] = field(default_factory=list)
    tainted: list[_Witness] = field(default_factory=list)
    failed: set[str] = field(default_factory=set)  # sessions in which a call in it did


def items(shown: Iterable[Shown], user_id: str = "") -> list[Item]:
    """What these sessions show, by scenario and all together, the surest first.

    It depends on what they show alone: not on their order, nor on what was made of
    them before.
    """
    found = [
        item
        for scenario, sessions in by_scenario(families(shown)).items()
        for item in _of_scenario(user_id, scenario, sessions)
    ]
    return sorted(found, key=lambda item: (-item.confidence, item.memory_id))


def _of_scenario(
    user_id: str, scenario: str, sessions: Sequence[Shown]
) -> Iterator[Item]:
    counted = weights([one for one in sessions if not one.taints])
    claims: dict[_Key, _Claim] = {}
    callers: dict[str, list[Shown]] = defaultdict(list)
    for one in sessions:
        said: set[_Key] = set()  # each thing once: it is one witness, however often
        for kind, content, seqs in _said(one):
            if kind in one.gone:
                continue
            key = (kind, canonical(content))
            claim = claims.setdefault(key, _Claim(content))
            called = (failure.called for failure in one.failures)
            met = kind == "path" and any(seqs[0] <= seq <= seqs[1] for seq in called)
            if met and not one.taints:
                claim.failed.add(one.session_id)
            if key not in said:
                said.add(key)
                into = claim.tainted if one.taints else claim.witnesses
                into.append((one, tuple(sorted({*seqs} - {0}))))
        if not one.taints:
            for tool in {tool for _, _, step in one.walked for tool in step}:
                callers[tool].append(one)
    calls = {tool: sum(_shares(some, counted)) for tool, some in callers.items()}
    ended = [o for o in sessions if not o.taints and o.success is not None]
    pairs = zip(ended, _shares(ended, counted), strict=True)
    rates = {o.session_id: (share, share * (o.success or 0.0)) for o, share in pairs}
    sums = _by_scenario(ended, rates)
    for (kind, _), claim in claims.items():
        item = _item(user_id, kind, scenario, claim, counted, calls)
        if kind == "path":
            failed = round(len(claim.failed) / max(1, len(claim.witnesses)), 6)
            mine = _by_scenario((one for one, _ in claim.witnesses), rates)
            otherwise = _without(mine, sums)
            item = replace(item, failed=failed, otherwise=otherwise)
        yield item


def _by_scenario(some: Iterable[Shown], rates: _Rates) -> _Rates:
    """What these sessions count in each scenario, and how much of it is good."""
    sums: dict[str, tuple[float, float]] = {}
    for one in some:
        whole, good = sums.get(one.scenario, (0.0, 0.0))
        share, right = rates.get(one.session_id, (0.0, 0.0))
        sums[one.scenario] = whole + share, good + right
    return sums


def _without(mine: _Rates, sums: _Rates) -> float | None:
    """How sessions of the same scenarios end that are none of mine.

    Each scenario counts as it does among these, so that a hard one is held against
    itself; None if most of these have nothing to be held against.
    """
    rates, held = 0.0, 0.0
    for name, (whole, good) in mine.items():
        every, right = sums.get(name, (0.0, 0.0))
        if every - whole > _NOTHING:
            rates += whole * (right - good) / (every - whole)
            held += whole
    known = sum(whole for whole, _ in mine.values())
    return round(rates / held, 6) if held and held >= known / 2 else None


_NOTHING: Final = 1e-9  # what is left of a sum of parts


def _said(shown: Shown) -> Iterator[tuple[Procedural, JsonObject, tuple[int, ...]]]:
    """(kind, content, seqs) of what a session shows."""
    decided = shown.decided_seq
    for path, first, last in subpaths(shown.walked, shown.breaks):
        content: dict[str, Any] = {"path": [list(step) for step in path]}
        yield "path", content, (first, last, decided)
    for failure in shown.failures:
        content = {"tool": failure.tool, "reason": failure.reason}
        yield "failure", content, (failure.seq,)
        if failure.fix is not None:
            content = {**content, "fix": failure.fix}
            yield "recovery", content, (failure.seq, failure.fixed_seq, decided)
    for tool, seq in shown.checks.items():
        yield "check", {"tool": tool}, (seq, decided)
    if shown.success is not None:
        content = {"what": "iterations", "n": shown.iterations}
        yield "effort", content, (decided,)


def _shares(sessions: Sequence[Shown], counted: Mapping[str, float]) -> list[float]:
    """What the word of each counts: a session and its forks share one."""
    families = Counter(one.family for one in sessions)
    return [counted[one.session_id] / families[one.family] for one in sessions]


def _item(
    user_id: str,
    kind: Procedural,
    scenario: str,
    claim: _Claim,
    counted: Mapping[str, float],
    calls: Mapping[str, float],
) -> Item:
    """``counted`` is what each session's word counts, ``calls`` those of a tool."""
    sessions = [one for one, _ in claim.witnesses]
    seen = sessions or [one for one, _ in claim.tainted]
    ended = [one for one in sessions if one.success is not None]
    shares = _shares(ended, counted)
    counts = sum(shares)
    good = sum(n * (o.success or 0.0) for n, o in zip(shares, ended, strict=True))
    sure, against = lower_bound(good, counts), lower_bound(counts - good, counts)
    if kind == "failure":  # how surely a session that calls the tool meets it
        met = sum(_shares(sessions, counted))
        called = calls.get(str(claim.content["tool"]), 0.0)
        sure, against = lower_bound(met, max(called, met)), 0.0
    # Of the newest sessions, for what is old may be gone soon.
    newest = sorted(claim.witnesses, key=lambda w: (-w[0].ended_at, w[0].session_id))
    independent = {one.family for one in sessions}
    tainted = {one.family for one, _ in claim.tainted} - independent
    return Item(
        memory_id=memory_id(kind, scenario, claim.content),
        user_id=user_id,
        kind=kind,
        scenario=scenario,
        content=claim.content,
        sessions=len(independent),
        tainted_sessions=len(tainted),
        success=round(good / counts, 6) if counts else None,
        confidence=round(sure, 6),
        against=round(against, 6),
        evidence=tuple(Evidence(o.session_id, seqs) for o, seqs in newest[:EVIDENCE]),
        created_at=min(one.began_at for one in seen),
        updated_at=max(one.ended_at for one in seen),
        models=tuple(sorted({model for one in seen for model in one.models})),
        cost=_medians(sessions, "tokens", "milliseconds") if sessions else None,
    )


def _medians(shown: Sequence[Shown], *names: str) -> dict[str, Any]:
    return {name: median(getattr(one, name) for one in shown) for name in names}


def effort(shown: Iterable[Shown]) -> dict[str, dict[str, float]]:
    """By scenario: medians of tokens, milliseconds and iterations, tainted left out."""
    names = ("tokens", "milliseconds", "iterations")
    return {
        scenario: {"sessions": float(len(some)), **_medians(some, *names)}
        for scenario, some in by_scenario(untainted(shown)).items()
    }


FEWEST: Final = 5
NOBODY: Final = ""


def shared(
    by_user: Mapping[str, Sequence[Shown]],
    k: int = FEWEST,
    forgotten: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> list[Item]:
    """The items that at least ``k`` users and ``k`` sessions show, the surest first.

    A user is one witness, with the mean of their sessions, however many these are, and
    none of what they want ``forgotten``.  ``evidence`` is empty, ``user_id`` too.

    Raises InvalidConfiguration for ``k`` below 5.
    """
    if k < FEWEST:
        raise InvalidConfiguration(f"an item of many users needs {FEWEST} at least")
    found: dict[str, list[Item]] = defaultdict(list)
    callers: Counter[tuple[str, str]] = Counter()
    for user_id in sorted(by_user):
        for item in items(by_user[user_id], user_id):
            if item.sessions and item.memory_id not in forgotten.get(user_id, ()):
                found[item.memory_id].append(item)
        for scenario, some in by_scenario(untainted(by_user[user_id])).items():
            steps = (step for one in some for _, _, step in one.walked)
            callers.update((scenario, tool) for tool in set(chain(*steps)))
    kept = [
        _together(some, callers)
        for some in found.values()
        if len(some) >= k and sum(item.sessions for item in some) >= k
    ]
    return sorted(kept, key=lambda item: (-item.confidence, item.memory_id))


def _together(some: Sequence[Item], callers: Mapping[tuple[str, str], int]) -> Item:
    first = some[0]
    rates = [item.success for item in some if item.success is not None]
    sure = lower_bound(sum(rates), len(rates))
    against = lower_bound(len(rates) - sum(rates), len(rates))
    if first.kind == "failure":
        called = callers.get((first.scenario, str(first.content["tool"])), 0)
        sure, against = lower_bound(len(some), max(called, len(some))), 0.0
    others = [item.otherwise for item in some if item.otherwise is not None]
    return replace(
        first,
        user_id=NOBODY,
        failed=round(fmean(item.failed for item in some), 6),
        otherwise=round(fmean(others), 6) if others else None,
        sessions=sum(item.sessions for item in some),
        tainted_sessions=0,
        success=round(fmean(rates), 6) if rates else None,
        confidence=round(sure, 6),
        against=round(against, 6),
        evidence=(),
        models=(),
        cost=None,
        created_at=min(item.created_at for item in some) // _DAY * _DAY,
        updated_at=max(item.updated_at for item in some) // _DAY * _DAY,
    )


class Lift(NamedTuple):
    """What goes with an item's being shown.  It is no proof that it is the cause.

    shown, without: sessions of the same scenarios that ended, with it and without.
    success:        the mean of how those with it ended, ``otherwise`` of the others.
    low, high:      between them the difference lies, at 80 %.
    iterations:     means of reflections with it; ``iterations_otherwise`` without.
    """

    memory_id: str
    shown: int
    without: int
    success: float | None
    otherwise: float | None
    low: float | None
    high: float | None
    iterations: float | None
    iterations_otherwise: float | None

    @property
    def difference(self) -> float | None:
        if self.success is None or self.otherwise is None:
            return None
        return self.success - self.otherwise

    def to_json(self) -> JsonObject:
        return {**self._asdict(), "difference": self.difference}


def lifts(shown: Iterable[Shown]) -> list[Lift]:
    """Of every item that any of these sessions was shown, those shown most first.

    Sessions that are tainted, or of which nothing says how they ended, say nothing.
    """
    known = [one for one in untainted(shown) if one.success is not None]
    names = sorted({name for one in known for name in one.advised})
    found = [_lift(name, known) for name in names]
    return sorted(found, key=lambda lift: (-lift.shown, lift.memory_id))


def _lift(name: str, known: Sequence[Shown]) -> Lift:
    scenarios = {one.scenario for one in known if name in one.advised}
    same = [one for one in known if one.scenario in scenarios]
    ours = [one for one in same if name in one.advised]
    others = [one for one in same if name not in one.advised]
    low, high = _interval(ours, others)
    well, else_ = (_mean([o.success or 0.0 for o in some]) for some in (ours, others))
    tries, more = (_mean([float(o.iterations) for o in s]) for s in (ours, others))
    counts = len(ours), len(others)
    return Lift(name, *counts, well, else_, low, high, tries, more)


def _interval(
    ours: Sequence[Shown], others: Sequence[Shown]
) -> tuple[float | None, float | None]:
    """R. G. Newcombe, Interval estimation for the difference between independent
    proportions, Statistics in Medicine 17 (1998), 873-890, his method 10.
    """
    if not ours or not others:
        return None, None
    (p, low, high), (q, below, above) = _rate(ours), _rate(others)
    less = sqrt((p - low) ** 2 + (above - q) ** 2)
    more = sqrt((high - p) ** 2 + (q - below) ** 2)
    return round(p - q - less, 6), round(p - q + more, 6)


def _rate(some: Sequence[Shown]) -> tuple[float, float, float]:
    """The mean of how these ended, and the two ends of its interval."""
    good, count = sum(one.success or 0.0 for one in some), len(some)
    below, beyond = lower_bound(good, count), lower_bound(count - good, count)
    return good / count, below, 1.0 - beyond


def _mean(values: Sequence[float]) -> float | None:
    return round(fmean(values), 6) if values else None
