"""Items of procedural memory: what the sessions of a user show together."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple, TypeAlias

from refold.domain.canonical import canonical
from refold.domain.events import JsonObject
from refold.projections.memory.confidence import lower_bound
from refold.projections.memory.families import families, untainted
from refold.projections.memory.item import (
    EVIDENCE,
    INDEPENDENT,
    LASTS,
    Evidence,
    Item,
    Procedural,
    memory_id,
)
from refold.projections.memory.paths import subpaths
from refold.projections.memory.scenarios import by_scenario
from refold.projections.memory.shown import Shown
from refold.projections.memory.weights import weights

_Key: TypeAlias = tuple[Procedural, bytes]


class _Witness(NamedTuple):
    """One session, and where it shows a thing."""

    shown: Shown
    seqs: tuple[int, ...]


@dataclass(slots=True)
class _Claim:
    """What sessions say of one thing, before it is an item."""

    content: JsonObject
    witnesses: list[_Witness] = field(default_factory=list)
    tainted: list[_Witness] = field(default_factory=list)


class _Means(NamedTuple):
    """What all sessions of a scenario say, which single things are measured by."""

    weights: Mapping[str, float]
    calls: Mapping[str, float]


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
        for key, content, seqs in _claimed(one):
            claim = claims.setdefault(key, _Claim(content))
            into = claim.tainted if one.taints else claim.witnesses
            into.append(_Witness(one, seqs))
        if not one.taints:
            for tool in {tool for _, _, step in one.walked for tool in step}:
                callers[tool].append(one)
    calls = {tool: sum(_shares(some, counted)) for tool, some in callers.items()}
    means = _Means(counted, calls)
    for (kind, _), claim in claims.items():
        yield _item(user_id, kind, scenario, claim, means)


def _claimed(shown: Shown) -> Iterator[tuple[_Key, JsonObject, tuple[int, ...]]]:
    """All that a session claims, each thing once: it is one witness, however often."""
    said: set[_Key] = set()
    for kind, content, seqs in _said(shown):
        key = (kind, canonical(content))
        if key not in said:
            said.add(key)
            yield key, content, tuple(sorted({seq for seq in seqs if seq}))


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
    user_id: str, kind: Procedural, scenario: str, claim: _Claim, means: _Means
) -> Item:
    sessions = [witness.shown for witness in claim.witnesses]
    seen = sessions or [witness.shown for witness in claim.tainted]
    ended = [one for one in sessions if one.success is not None]
    shares = _shares(ended, means.weights)
    counts = sum(shares)
    good = sum(n * (o.success or 0.0) for n, o in zip(shares, ended, strict=True))
    sure, against = lower_bound(good, counts), lower_bound(counts - good, counts)
    if kind == "failure":
        sure, against = _failing(claim, sessions, means), 0.0
    independent = {one.family for one in sessions}
    tainted = {witness.shown.family for witness in claim.tainted} - independent
    updated = max(one.ended_at for one in seen)
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
        tainted=len(independent) < INDEPENDENT <= len(independent | tainted),
        evidence=_evidence(claim.witnesses),
        created_at=min(one.began_at for one in seen),
        updated_at=updated,
        expires_at=updated + LASTS[kind],
        models=tuple(sorted({model for one in seen for model in one.models})),
        cost=_cost(sessions),
    )


def _failing(claim: _Claim, sessions: Sequence[Shown], means: _Means) -> float:
    """How surely a session that calls the tool meets the failure."""
    met = sum(_shares(sessions, means.weights))
    called = means.calls.get(str(claim.content["tool"]), 0.0)
    return lower_bound(met, max(called, met))


def _evidence(witnesses: Sequence[_Witness]) -> tuple[Evidence, ...]:
    """Of the newest sessions, for what is old may be gone soon."""
    newest = sorted(witnesses, key=lambda w: (-w.shown.ended_at, w.shown.session_id))
    return tuple(Evidence(w.shown.session_id, w.seqs) for w in newest[:EVIDENCE])


def _cost(sessions: Sequence[Shown]) -> JsonObject | None:
    if not sessions:
        return None
    return {
        "tokens": median(one.tokens for one in sessions),
        "milliseconds": median(one.milliseconds for one in sessions),
    }


def effort(shown: Iterable[Shown]) -> dict[str, dict[str, float]]:
    """By scenario: medians of tokens, milliseconds and iterations, tainted left out."""
    return {
        scenario: {
            "sessions": float(len(some)),
            "tokens": median(one.tokens for one in some),
            "milliseconds": median(one.milliseconds for one in some),
            "iterations": median(one.iterations for one in some),
        }
        for scenario, some in by_scenario(untainted(shown)).items()
    }
