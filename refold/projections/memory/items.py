"""Items of procedural memory: what the sessions of a user show in common."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from math import sqrt
from statistics import fmean, median
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, TypeAlias

from pydantic import JsonValue

from refold.domain.canonical import canonical
from refold.domain.erasure import LONGEST, timestamp
from refold.domain.errors import InvalidConfiguration
from refold.domain.events import JsonObject
from refold.domain.model import repr_without_texts
from refold.projections.memory.sessions import (
    EXTRACTOR_VERSION,
    SessionFacts,
    by_scenario,
    subpaths,
    untainted,
    with_families,
)

Procedural: TypeAlias = Literal[
    "path",
    "failure",
    "recovery",
    "check",
    "effort",
    "warning",
]
Declarative: TypeAlias = Literal["error", "topic", "progress", "mistake", "preference"]
Kind: TypeAlias = Procedural | Declarative

INDEPENDENT: Final = 3
"""The number of independent sessions that establish an item."""
EVIDENCE: Final = 5
"""The most sessions that an item cites as evidence."""
_DAY: Final = 86_400_000_000  # microseconds
LASTS: Final[dict[Kind, int]] = {
    "path": 180 * _DAY,
    "failure": 180 * _DAY,
    "recovery": 180 * _DAY,
    "check": 180 * _DAY,
    "effort": 180 * _DAY,
    "warning": 180 * _DAY,
    "error": 90 * _DAY,
    "topic": 90 * _DAY,
    "progress": 90 * _DAY,
    "mistake": 30 * _DAY,
    "preference": 365 * _DAY,
}
"""By kind, the default lifetime of an item after the last session that shows it.  Items
about a person have shorter lifetimes."""
_lifetimes: dict[str, int] = {}


def lasting(kind: Kind) -> int:
    """Return the lifetime of an item of this kind, in microseconds."""
    return _lifetimes.get(kind, LASTS[kind])


def set_lifetimes(**lifetimes: timedelta) -> None:
    """Set the lifetimes of these kinds in this process; others keep their default.

    Raises InvalidConfiguration for an unknown kind or a time that is not above zero.
    """
    global _lifetimes  # replaced, not changed: another thread may be reading it
    for kind, time in lifetimes.items():
        if kind not in LASTS:
            kinds = ", ".join(LASTS)
            raise InvalidConfiguration(f"memory has no kind {kind!r}, only {kinds}")
        if not timedelta(0) < time <= LONGEST:
            raise InvalidConfiguration(f"memory {kind}: from above 0 to 999999 days")
    microsecond = timedelta(microseconds=1)
    _lifetimes = {kind: time // microsecond for kind, time in lifetimes.items()}


class Evidence(NamedTuple):
    """A session that shows an item, and the seqs of the events that show it."""

    session_id: str
    seqs: tuple[int, ...]


@repr_without_texts
@dataclass(frozen=True, slots=True)
class Item:
    """One statement of memory with its evidence.

    content:          names and numbers of a closed vocabulary, never a text.
    sessions:         the number of untainted sessions that show it.  A session and its
                      forks count as one.
    tainted_sessions: the number of tainted ones.
    success:          the mean outcome of these sessions, 0 to 1, or None if unknown.
    confidence:       the lower bound of the probability of the statement, 0 to 1.
    against:          the lower bound of the probability of the contrary, such as that a
                      path fails.
    failed:           the share of a path's sessions with a failed call in it.
    otherwise:        the mean outcome of sessions of the same scenarios without it.
    stale:            whether newer sessions show the contrary.  A stale item is stored
                      and not shown to a model.
    cost:             medians over its sessions: ``tokens``, ``milliseconds``.
    evidence:         the newest sessions, at most ``EVIDENCE``.
    models:           the models that answered in the sessions that show it.
    created_at, updated_at: the times of the first and the last session that shows it,
                      in microseconds since 1970, by the clock of the events.
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
    extractor: int = EXTRACTOR_VERSION
    failed: float = 0.0
    otherwise: float | None = None

    @property
    def tainted(self) -> bool:
        """Whether only tainted sessions would make it established."""
        return self.sessions < INDEPENDENT <= self.sessions + self.tainted_sessions

    @property
    def expires_at(self) -> int:
        """The time after which it is no longer shown."""
        return self.updated_at + lasting(self.kind)

    @property
    def version(self) -> int:
        """A number that grows by one with each session that shows the item."""
        return self.sessions + self.tainted_sessions

    @property
    def established(self) -> bool:
        """Whether enough independent sessions show it and no newer ones deny it."""
        return self.sessions >= INDEPENDENT and not self.tainted and not self.stale

    def to_json(self) -> JsonObject:
        """Return the item as JSON, with the names that the documentation uses."""
        sessions: list[JsonValue] = [
            {"session_id": evidence.session_id, "seqs": list(evidence.seqs)}
            for evidence in self.evidence
        ]
        return {
            "memory_id": self.memory_id,
            "user_id": self.user_id,
            "kind": self.kind,
            "scenario": self.scenario,
            "content": self.content,
            "provenance": {
                "sessions": sessions,
                "extractor": self.extractor,
                "models": list(self.models),
            },
            "sample_count": self.sessions,
            "tainted_sessions": self.tainted_sessions,
            "success": self.success,
            "confidence": self.confidence,
            "against": self.against,
            "tainted": self.tainted,
            "stale": self.stale,
            "established": self.established,
            "cost": self.cost,
            "created_at": timestamp(self.created_at),
            "updated_at": timestamp(self.updated_at),
            "expires_at": timestamp(self.expires_at),
            "version": self.version,
        }


def memory_id(kind: Kind, scenario: str, content: JsonObject) -> str:
    """Return the item's id: 16 letters and digits, derived from its statement."""
    identity = b"\x00".join((kind.encode(), scenario.encode(), canonical(content)))
    return "m" + hashlib.sha256(identity).hexdigest()[:15]


OWN_WORD: Final = 0.5
"""The weight of a session whose outcome only the agent itself states."""
# A size within this many deviations of the median is usual; beyond, the weight falls
# with the distance.
_USUAL: Final = 3.0
# The standard deviation of normal data, in median absolute deviations.
_NORMAL: Final = 1.4826
_FEWEST_FOR_SPREAD: Final = 5


def weights(sessions: Sequence[SessionFacts]) -> dict[str, float]:
    """Return the weight of each session among these: 1 or less, above 0.

    A session whose tokens, time, steps, or reflections are far from the median weighs
    ``_USUAL`` robust deviations divided by its distance: the weights of P. J. Huber,
    Robust Estimation of a Location Parameter, Annals of Mathematical Statistics 35
    (1964), 73-101, with the median absolute deviation as the scale.  If more than half
    of the sessions are equal, the scale is a tenth of the median, or 1.  Fewer than
    five sessions all weigh the same.  An outcome that only the agent itself states
    halves the weight.
    """
    lowest = {session.session_id: 1.0 for session in sessions}
    sizes: list[list[float]] = [
        [session.tokens for session in sessions],
        [session.milliseconds for session in sessions],
        [len(session.walked) for session in sessions],
        [session.iterations for session in sessions],
    ]
    for values in sizes:
        for session, weight in zip(sessions, _usual_weights(values), strict=True):
            session_id = session.session_id
            lowest[session_id] = min(lowest[session_id], weight)
    for session in sessions:
        if session.own_word:
            lowest[session.session_id] *= OWN_WORD
    return lowest


def _usual_weights(values: Sequence[float]) -> list[float]:
    """Return a weight for each value: 1 for a usual one, less for an outlier."""
    if len(values) < _FEWEST_FOR_SPREAD:
        return [1.0] * len(values)
    middle = median(values)
    spread = _NORMAL * median(abs(value - middle) for value in values)
    scale = spread or max(1.0, abs(middle) / 10)
    weights: list[float] = []
    for value in values:
        distance = abs(value - middle)
        weights.append(min(1.0, _USUAL * scale / distance) if distance else 1.0)
    return weights


# One-sided, 90 %: nine of ten bounds are below the true value.
Z: Final = 1.2816


def lower_bound(successes: float, sessions: float) -> float:
    """Return the lower end of Wilson's interval for a share of sessions, 0 to 1.

    E. B. Wilson, Probable Inference, the Law of Succession, and Statistical Inference,
    Journal of the American Statistical Association 22 (1927), 209-212.  Partial
    successes count as their part.  The bound for 0 of 0 is 0.
    """
    if sessions <= 0:
        return 0.0
    rate = successes / sessions
    square = Z * Z
    middle = rate + square / (2 * sessions)
    spread = Z * sqrt(rate * (1 - rate) / sessions + square / (4 * sessions**2))
    return max(0.0, (middle - spread) / (1 + square / sessions))


class _Claim:
    """The sessions that show one statement, before it becomes an item.

    failed: the ids of untainted sessions in which a call of the path failed.
    """

    def __init__(self, kind: Procedural, content: JsonObject) -> None:
        self.kind = kind
        self.content = content
        self.witnesses: list[_Witness] = []
        self.tainted: list[SessionFacts] = []
        self.failed: set[str] = set()


class _Witness(NamedTuple):
    """An untainted session and the seqs of the events by which it shows a claim."""

    session: SessionFacts
    seqs: tuple[int, ...]


class _Weighted(NamedTuple):
    """The total weight of sessions, and the part of it that their outcomes earn."""

    weight: float
    success: float


_ByScenario: TypeAlias = Mapping[str, _Weighted]


def items(sessions: Iterable[SessionFacts], user_id: str = "") -> list[Item]:
    """Return the items that these sessions show, the most certain first.

    Each scenario has its own items, and ``general`` has those of all sessions.  The
    result depends only on the facts of the sessions, not on their order or on earlier
    results.
    """
    built: list[Item] = []
    for scenario, members in by_scenario(with_families(sessions)).items():
        built += _items_of_scenario(user_id, scenario, members)
    built.sort(key=lambda item: (-item.confidence, item.memory_id))
    return built


def _items_of_scenario(
    user_id: str, scenario: str, sessions: Sequence[SessionFacts]
) -> Iterator[Item]:
    counting = [session for session in sessions if not session.taints]
    weight_of = weights(counting)
    exposed = _exposed(counting, weight_of)
    with_outcome = [session for session in counting if session.success is not None]
    outcomes = _outcomes(with_outcome, weight_of)
    all_outcomes = _by_scenario(with_outcome, outcomes)
    for claim in _claims(sessions):
        item = _item(user_id, scenario, claim, weight_of, exposed)
        if claim.kind == "path":
            share_failed = len(claim.failed) / max(1, len(claim.witnesses))
            witnesses = [witness.session for witness in claim.witnesses]
            item = replace(
                item,
                failed=round(share_failed, 6),
                otherwise=_success_without(
                    _by_scenario(witnesses, outcomes), all_outcomes
                ),
            )
        yield item


def _claims(sessions: Iterable[SessionFacts]) -> Iterable[_Claim]:
    claims: dict[tuple[Procedural, bytes], _Claim] = {}
    for session in sessions:
        failed_calls = [failure.called for failure in session.failures]
        seen: set[tuple[Procedural, bytes]] = set()
        for kind, content, seqs in _statements(session):
            if kind in session.gone:
                continue
            key = (kind, canonical(content))
            claim = claims.setdefault(key, _Claim(kind, content))
            if kind == "path" and not session.taints:
                first_seq = seqs[0]
                last_seq = seqs[1]
                if any(first_seq <= seq <= last_seq for seq in failed_calls):
                    claim.failed.add(session.session_id)
            # A session is one witness, however often it shows the statement.
            if key in seen:
                continue
            seen.add(key)
            if session.taints:
                claim.tainted.append(session)
            else:
                known_seqs = tuple(sorted(set(seqs) - {0}))
                claim.witnesses.append(_Witness(session, known_seqs))
    return claims.values()


def _statements(
    session: SessionFacts,
) -> Iterator[tuple[Procedural, JsonObject, tuple[int, ...]]]:
    """Yield (kind, content, seqs) of each statement that a session shows.

    A seq of 0 stands for no event.
    """
    decided_seq = session.decided_seq
    for path, first_seq, last_seq in subpaths(session.walked, session.breaks):
        steps: list[JsonValue] = [list(step) for step in path]
        yield "path", {"path": steps}, (first_seq, last_seq, decided_seq)
    for failure in session.failures:
        content: JsonObject = {"tool": failure.tool, "reason": failure.reason}
        yield "failure", content, (failure.seq,)
        if failure.fix is not None:
            seqs = (failure.seq, failure.fixed_seq, decided_seq)
            yield "recovery", {**content, "fix": failure.fix}, seqs
    for tool, seq in session.checks.items():
        yield "check", {"tool": tool}, (seq, decided_seq)
    for code, seq in session.warnings.items():
        yield "warning", {"warning": code}, (seq,)
    # That a run had no reflections says nothing about reflections.
    if session.success is not None and session.iterations:
        iterations: JsonObject = {"what": "iterations", "n": session.iterations}
        yield "effort", iterations, (decided_seq,)


class _Exposed(NamedTuple):
    """The weight of the sessions in which something could have been seen.

    calling: by tool, the weight of the sessions that call it.
    failing: by tool and reason, the weight of the sessions in which it fails for it.
    every:   the weight of all sessions.
    """

    calling: dict[str, float]
    failing: dict[tuple[str, str], float]
    every: float

    def to(self, claim: _Claim) -> float:
        """Return the weight of the sessions that could have shown a claim."""
        if claim.kind == "warning":
            return self.every
        tool = str(claim.content["tool"])
        if claim.kind == "failure":
            return self.calling.get(tool, 0.0)
        return self.failing.get((tool, str(claim.content["reason"])), 0.0)


def _exposed(
    sessions: Sequence[SessionFacts], weight_of: Mapping[str, float]
) -> _Exposed:
    failing: dict[tuple[str, str], list[SessionFacts]] = defaultdict(list)
    for session in sessions:
        kinds = {(failure.tool, failure.reason) for failure in session.failures}
        for kind in kinds:
            failing[kind].append(session)
    return _Exposed(
        calling=_weight_by_tool(sessions, weight_of),
        failing={
            kind: sum(_shares(members, weight_of)) for kind, members in failing.items()
        },
        every=sum(_shares(sessions, weight_of)),
    )


def _weight_by_tool(
    sessions: Iterable[SessionFacts], weight_of: Mapping[str, float]
) -> dict[str, float]:
    """Return the total weight of the sessions that call a tool, by tool."""
    callers: dict[str, list[SessionFacts]] = defaultdict(list)
    for session in sessions:
        tools: set[str] = set()
        for _, _, step in session.walked:
            tools.update(step)
        for tool in tools:
            callers[tool].append(session)
    return {tool: sum(_shares(members, weight_of)) for tool, members in callers.items()}


def _outcomes(
    sessions: Sequence[SessionFacts], weight_of: Mapping[str, float]
) -> dict[str, _Weighted]:
    """Return the outcomes of a scenario's sessions, by session id."""
    outcomes: dict[str, _Weighted] = {}
    for session, share in zip(sessions, _shares(sessions, weight_of), strict=True):
        earned = share * (session.success or 0.0)
        outcomes[session.session_id] = _Weighted(share, earned)
    return outcomes


def _by_scenario(
    sessions: Iterable[SessionFacts], outcomes: Mapping[str, _Weighted]
) -> _ByScenario:
    """Sum the outcomes of these sessions by scenario."""
    sums: dict[str, _Weighted] = {}
    for session in sessions:
        total = sums.get(session.scenario, _Weighted(0.0, 0.0))
        outcome = outcomes.get(session.session_id, _Weighted(0.0, 0.0))
        sums[session.scenario] = _Weighted(
            total.weight + outcome.weight, total.success + outcome.success
        )
    return sums


def _success_without(with_item: _ByScenario, all_sessions: _ByScenario) -> float | None:
    """Return the mean outcome of the other sessions of the same scenarios.

    Each scenario weighs as much as among the sessions with the item, so that a hard
    scenario is compared with itself.  Returns None if most sessions are of scenarios in
    which every session has the item.
    """
    sum_of_rates = 0.0
    compared = 0.0
    for scenario, (weight, success) in with_item.items():
        total = all_sessions.get(scenario, _Weighted(0.0, 0.0))
        other_weight = total.weight - weight
        if other_weight > _NOTHING:
            sum_of_rates += weight * (total.success - success) / other_weight
            compared += weight
    all_weight = sum(weighted.weight for weighted in with_item.values())
    if not compared or compared < all_weight / 2:
        return None
    return round(sum_of_rates / compared, 6)


_NOTHING: Final = 1e-9  # a weight that rounding may leave behind


def _shares(
    sessions: Sequence[SessionFacts], weight_of: Mapping[str, float]
) -> list[float]:
    """Return the weight of each session; those of a family share the weight of one."""
    members = Counter(session.family for session in sessions)
    return [
        weight_of[session.session_id] / members[session.family] for session in sessions
    ]


def _item(
    user_id: str,
    scenario: str,
    claim: _Claim,
    weight_of: Mapping[str, float],
    exposed: _Exposed,
) -> Item:
    """Build the item of a claim.

    weight_of: the weight of each session, by its id.
    exposed:   the weight of the sessions that could have shown the claim.
    """
    kind = claim.kind
    sessions = [witness.session for witness in claim.witnesses]
    seen = sessions or claim.tainted
    with_outcome = [session for session in sessions if session.success is not None]
    shares = _shares(with_outcome, weight_of)
    samples = sum(shares)
    good = sum(
        share * (session.success or 0.0)
        for share, session in zip(shares, with_outcome, strict=True)
    )
    if kind in ("failure", "warning"):
        # The share of sessions that call the tool and meet this failure, or of all
        # sessions that have this warning.
        met = sum(_shares(sessions, weight_of))
        confidence = lower_bound(met, max(exposed.to(claim), met))
        against = 0.0
    elif kind == "recovery" and not samples:
        # No outcome is known, so this is the share of failures after which this tool
        # came next.
        shares_of_failures = _followed(sessions, claim.content)
        met = sum(
            share * followed
            for share, followed in zip(
                _shares(sessions, weight_of), shares_of_failures, strict=True
            )
        )
        confidence = lower_bound(met, max(exposed.to(claim), met))
        against = 0.0
    else:
        confidence = lower_bound(good, samples)
        against = lower_bound(samples - good, samples)
    # The newest sessions are cited, because older ones may be deleted soon.
    newest_first = sorted(
        claim.witnesses,
        key=lambda witness: (-witness.session.ended_at, witness.session.session_id),
    )
    evidence = [
        Evidence(witness.session.session_id, witness.seqs)
        for witness in newest_first[:EVIDENCE]
    ]
    families = {session.family for session in sessions}
    tainted_families = {session.family for session in claim.tainted} - families
    models: set[str] = set()
    for session in seen:
        models.update(session.models)
    return Item(
        memory_id=memory_id(kind, scenario, claim.content),
        user_id=user_id,
        kind=kind,
        scenario=scenario,
        content=claim.content,
        sessions=len(families),
        tainted_sessions=len(tainted_families),
        success=round(good / samples, 6) if samples else None,
        confidence=round(confidence, 6),
        against=round(against, 6),
        evidence=tuple(evidence),
        created_at=min(session.began_at for session in seen),
        updated_at=max(session.ended_at for session in seen),
        models=tuple(sorted(models)),
        cost=_cost(sessions) if sessions else None,
    )


def _followed(sessions: Iterable[SessionFacts], content: JsonObject) -> list[float]:
    """Return the share of failures that the tool of a recovery ended, by session."""
    shares: list[float] = []
    for session in sessions:
        fixes = [
            failure.fix
            for failure in session.failures
            if failure.tool == content["tool"] and failure.reason == content["reason"]
        ]
        shares.append(fixes.count(str(content["fix"])) / len(fixes))
    return shares


def _cost(sessions: Sequence[SessionFacts]) -> JsonObject:
    return {
        "tokens": median(session.tokens for session in sessions),
        "milliseconds": median(session.milliseconds for session in sessions),
    }


def effort(sessions: Iterable[SessionFacts]) -> dict[str, dict[str, float]]:
    """Return, by scenario, the medians of tokens, milliseconds, and iterations.

    Tainted sessions are left out.
    """
    medians: dict[str, dict[str, float]] = {}
    for scenario, members in by_scenario(untainted(sessions)).items():
        medians[scenario] = {
            "sessions": float(len(members)),
            "tokens": median(session.tokens for session in members),
            "milliseconds": median(session.milliseconds for session in members),
            "iterations": median(session.iterations for session in members),
        }
    return medians


FEWEST: Final = 5
"""The fewest users that an item shared between users may come from."""
NOBODY: Final = ""


def shared(
    by_user: Mapping[str, Sequence[SessionFacts]],
    k: int = FEWEST,
    forgotten: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> list[Item]:
    """Return the items that at least ``k`` users show, the most certain first.

    A user is one witness, with the mean of their sessions, however many sessions they
    have.  ``evidence`` and ``user_id`` are empty.

    forgotten: by user, the ids of items that the user has removed.

    Raises InvalidConfiguration for ``k`` below 5.
    """
    if k < FEWEST:
        raise InvalidConfiguration(f"an item of many users needs {FEWEST} at least")
    items_of_users: dict[str, list[Item]] = defaultdict(list)
    callers: Counter[tuple[str, str]] = Counter()
    for user_id in sorted(by_user):
        sessions = by_user[user_id]
        for item in items(sessions, user_id):
            if item.sessions and item.memory_id not in forgotten.get(user_id, ()):
                items_of_users[item.memory_id].append(item)
        for scenario, members in by_scenario(untainted(sessions)).items():
            callers.update((scenario, tool) for tool in _tools_of(members))
    merged: list[Item] = []
    for equal_items in items_of_users.values():
        session_count = sum(item.sessions for item in equal_items)
        if len(equal_items) >= k and session_count >= k:
            merged.append(_merge(equal_items, callers))
    merged.sort(key=lambda item: (-item.confidence, item.memory_id))
    return merged


def _tools_of(sessions: Iterable[SessionFacts]) -> set[str]:
    tools: set[str] = set()
    for session in sessions:
        for _, _, step in session.walked:
            tools.update(step)
    return tools


def _merge(items: Sequence[Item], callers: Mapping[tuple[str, str], int]) -> Item:
    """Merge the same item of several users.

    callers: by (scenario, tool), the number of users that call the tool.
    """
    first = items[0]
    rates = [item.success for item in items if item.success is not None]
    if first.kind == "failure":
        called = callers.get((first.scenario, str(first.content["tool"])), 0)
        confidence = lower_bound(len(items), max(called, len(items)))
        against = 0.0
    elif first.kind == "warning" or (first.kind == "recovery" and not rates):
        confidence = fmean(item.confidence for item in items)
        against = 0.0
    else:
        confidence = lower_bound(sum(rates), len(rates))
        against = lower_bound(len(rates) - sum(rates), len(rates))
    otherwise = [item.otherwise for item in items if item.otherwise is not None]
    return replace(
        first,
        user_id=NOBODY,
        failed=round(fmean(item.failed for item in items), 6),
        otherwise=round(fmean(otherwise), 6) if otherwise else None,
        sessions=sum(item.sessions for item in items),
        tainted_sessions=0,
        success=round(fmean(rates), 6) if rates else None,
        confidence=round(confidence, 6),
        against=round(against, 6),
        evidence=(),
        models=(),
        cost=None,
        # Days, so that no user's times can be recognized.
        created_at=min(item.created_at for item in items) // _DAY * _DAY,
        updated_at=max(item.updated_at for item in items) // _DAY * _DAY,
    )


class Lift(NamedTuple):
    """How sessions that were shown an item ended, compared with the others.

    A difference is a correlation; it does not prove that the item is the cause.

    shown, without: the number of sessions of the same scenarios with a known outcome,
                    with the item and without it.
    success:        the mean outcome with it; ``otherwise`` without it.
    low, high:      the bounds of the difference, at 80 %.
    iterations:     mean reflections with it; ``iterations_otherwise`` without it.
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
        """The mean outcome with the item minus that without it."""
        if self.success is None or self.otherwise is None:
            return None
        return self.success - self.otherwise

    def to_json(self) -> JsonObject:
        """Return all fields and the difference as JSON."""
        return {**self._asdict(), "difference": self.difference}


def lifts(sessions: Iterable[SessionFacts]) -> list[Lift]:
    """Return the lift of every item that these sessions were shown.

    The item shown most often comes first.  Tainted sessions, and those without a known
    outcome, are left out.
    """
    with_outcome = [
        session for session in untainted(sessions) if session.success is not None
    ]
    shown_ids: set[str] = set()
    for session in with_outcome:
        shown_ids.update(session.advised)
    lifts = [_lift(memory_id, with_outcome) for memory_id in sorted(shown_ids)]
    lifts.sort(key=lambda lift: (-lift.shown, lift.memory_id))
    return lifts


def _lift(memory_id: str, sessions: Sequence[SessionFacts]) -> Lift:
    scenarios = {
        session.scenario for session in sessions if memory_id in session.advised
    }
    shown: list[SessionFacts] = []
    without: list[SessionFacts] = []
    for session in sessions:
        if session.scenario in scenarios:
            group = shown if memory_id in session.advised else without
            group.append(session)
    low, high = _difference_interval(shown, without)
    return Lift(
        memory_id=memory_id,
        shown=len(shown),
        without=len(without),
        success=_mean_success(shown),
        otherwise=_mean_success(without),
        low=low,
        high=high,
        iterations=_mean_iterations(shown),
        iterations_otherwise=_mean_iterations(without),
    )


def _difference_interval(
    shown: Sequence[SessionFacts], without: Sequence[SessionFacts]
) -> tuple[float | None, float | None]:
    """Return the interval of the difference between two mean outcomes.

    R. G. Newcombe, Interval estimation for the difference between independent
    proportions, Statistics in Medicine 17 (1998), 873-890, method 10.
    """
    if not shown or not without:
        return None, None
    with_it = _rate_interval(shown)
    without_it = _rate_interval(without)
    difference = with_it.rate - without_it.rate
    below = sqrt(
        (with_it.rate - with_it.low) ** 2 + (without_it.high - without_it.rate) ** 2
    )
    above = sqrt(
        (with_it.high - with_it.rate) ** 2 + (without_it.rate - without_it.low) ** 2
    )
    return round(difference - below, 6), round(difference + above, 6)


class _RateInterval(NamedTuple):
    """A mean outcome and the two ends of its interval."""

    rate: float
    low: float
    high: float


def _rate_interval(sessions: Sequence[SessionFacts]) -> _RateInterval:
    good = sum(session.success or 0.0 for session in sessions)
    count = len(sessions)
    return _RateInterval(
        rate=good / count,
        low=lower_bound(good, count),
        high=1.0 - lower_bound(count - good, count),
    )


def _mean_success(sessions: Sequence[SessionFacts]) -> float | None:
    return _mean([session.success or 0.0 for session in sessions])


def _mean_iterations(sessions: Sequence[SessionFacts]) -> float | None:
    return _mean([float(session.iterations) for session in sessions])


def _mean(values: Sequence[float]) -> float | None:
    return round(fmean(values), 6) if values else None
