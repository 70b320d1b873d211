"""Items of memory: what sessions of a user show together, each with its evidence."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from refold.domain.canonical import canonical
from refold.domain.events import JsonObject
from refold.projections.memory.confidence import lower_bound
from refold.projections.memory.paths import subpaths
from refold.projections.memory.shown import EXTRACTOR, Shown

Kind: TypeAlias = Literal["path", "failure", "recovery", "check", "effort"]
# So many independent sessions must show something before it may be said to a model.
INDEPENDENT: Final = 3
_EVIDENCE: Final = 5


class Evidence(NamedTuple):
    """Where it is shown: a session, and the seqs of events of it."""

    session_id: str
    seqs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that memory holds.

    content:    structured, in a closed vocabulary: names of tools and reasons.
    sessions:   how many sessions show it, those that are tainted left out;
                ``tainted_sessions`` are those.
    success:    the mean of how these sessions ended, 0 to 1; None if nothing says it.
    confidence: the lower bound of what the item claims: of ``success``; for a failure,
                of how many sessions that call the tool meet it.
    tainted:    too few sessions would show it without the tainted ones.
    """

    memory_id: str
    kind: Kind
    scenario: str
    content: JsonObject
    sessions: int
    tainted_sessions: int
    success: float | None
    confidence: float
    tainted: bool
    evidence: tuple[Evidence, ...]
    extractor: int = EXTRACTOR

    @property
    def established(self) -> bool:
        """Whether enough independent sessions show it, and none that is tainted."""
        return self.sessions >= INDEPENDENT and not self.tainted

    def to_json(self) -> JsonObject:
        """All of it, with evidence."""
        found: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        found["evidence"] = [one._asdict() for one in self.evidence]
        return found


@dataclass(slots=True)
class _Claim:
    """What sessions say of one thing, before it is an item."""

    for_it: list[tuple[float | None, Evidence]] = field(default_factory=list)
    tainted: int = 0

    def add(self, shown: Shown, value: float | None, seqs: Iterable[int]) -> None:
        """``value`` is what this session says of it; None where it says nothing."""
        if shown.taints:
            self.tainted += 1
            return
        evidence = Evidence(shown.session_id, tuple(sorted(set(seqs) - {0})))
        self.for_it.append((value, evidence))


_Key: TypeAlias = tuple[Kind, str, bytes]


def items(shown: Iterable[Shown]) -> list[Item]:
    """What these sessions show together, the surest first.

    It depends on what they show alone: not on their order, nor on what was made of
    them before.
    """
    claims: dict[_Key, _Claim] = defaultdict(_Claim)
    contents: dict[_Key, JsonObject] = {}
    callers: Counter[tuple[str, str]] = Counter()
    for one in sorted(shown, key=lambda one: one.session_id):
        said: set[_Key] = set()
        if not one.taints:
            tools = {tool for _, _, step in one.walked for tool in step}
            callers.update((one.scenario, tool) for tool in tools)
        for kind, content, value, seqs in _claimed(one):
            key = (kind, one.scenario, canonical(content))
            if key in said:  # one session is one witness, however often it says it
                continue
            said.add(key)
            contents[key] = content
            claims[key].add(one, value, seqs)
    found = [_item(key, contents[key], claim, callers) for key, claim in claims.items()]
    return sorted(found, key=lambda item: (-item.confidence, item.memory_id))


def _claimed(
    shown: Shown,
) -> Iterator[tuple[Kind, JsonObject, float | None, tuple[int, ...]]]:
    """(kind, content, what it says of it, seqs) of all that a session claims."""
    decided = shown.decided_seq
    for path, first, last in subpaths(shown.walked):
        content: Mapping[str, Any] = {"path": [list(step) for step in path]}
        yield "path", dict(content), shown.success, (first, last, decided)
    for failure in shown.failures:
        content = {"tool": failure.tool, "reason": failure.reason}
        yield "failure", dict(content), shown.success, (failure.seq,)
        if failure.fix is not None:
            content = {**content, "fix": failure.fix}
            seqs = (failure.seq, failure.fixed_seq)
            yield "recovery", dict(content), shown.success, (*seqs, decided)
    for tool, seq in shown.checks.items():
        yield "check", {"tool": tool}, shown.success, (seq, decided)
    if shown.success is not None:
        content = {"what": "iterations", "n": shown.iterations}
        yield "effort", dict(content), shown.success, (decided,)


def _item(
    key: _Key,
    content: JsonObject,
    claim: _Claim,
    callers: Mapping[tuple[str, str], int],
) -> Item:
    kind, scenario, written = key
    values = [value for value, _ in claim.for_it if value is not None]
    sessions = len(claim.for_it)
    sure = lower_bound(sum(values), len(values))
    if kind == "failure":
        called = callers.get((scenario, str(content["tool"])), sessions)
        sure = lower_bound(sessions, max(called, sessions))
    identity = b"\x00".join((kind.encode(), scenario.encode(), written))
    return Item(
        memory_id=hashlib.sha256(identity).hexdigest()[:16],
        kind=kind,
        scenario=scenario,
        content=content,
        sessions=sessions,
        tainted_sessions=claim.tainted,
        success=sum(values) / len(values) if values else None,
        confidence=round(sure, 6),
        tainted=sessions < INDEPENDENT <= sessions + claim.tainted,
        evidence=tuple(evidence for _, evidence in claim.for_it[:_EVIDENCE]),
    )


def effort(shown: Iterable[Shown]) -> dict[str, dict[str, float]]:
    """By scenario: medians of tokens, milliseconds and iterations, tainted left out."""
    by_scenario: dict[str, list[Shown]] = defaultdict(list)
    for one in shown:
        if not one.taints:
            by_scenario[one.scenario].append(one)
    return {
        scenario: {
            "sessions": float(len(some)),
            "tokens": median(one.tokens for one in some),
            "milliseconds": median(one.milliseconds for one in some),
            "iterations": median(one.iterations for one in some),
        }
        for scenario, some in sorted(by_scenario.items())
    }
