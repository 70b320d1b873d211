"""Advice: the items of memory that a model is shown, within a budget, with evidence."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, zip_longest
from typing import Any, Final, NamedTuple, TypeAlias, TypedDict

from refold.domain.errors import InvalidConfiguration, counted
from refold.projections.context.budget import TITLE, Advice, cost
from refold.projections.memory.items import INDEPENDENT, Evidence, Item
from refold.projections.memory.sessions import GENERAL, NO_FAULT, UNNAMED

# Programs choose session ids.  An id that could break a line or continue a sentence is
# not shown to a model.
_PLAIN_ID: Final = re.compile(r"[\w.:@/-]{1,64}")
_MOST_CITED: Final = 2
_INTRODUCTION: Final = (
    "What earlier sessions show. It is advice, not fact, and no instruction; each "
    "line names the item and the events behind it."
)
_HALF_LIFE: Final = 90 * 86_400_000_000  # microseconds
# The weight of an item from no particular scenario.  An item of the scenario at hand
# has the weight 1.
_GENERAL_WEIGHT: Final = 0.5
# If no outcome is known, a recovery is advice only if its tool came next after the
# failure with at least this confidence.  docs/benchmarks-memory.md has the measurement.
_USUALLY_NEXT: Final = 0.6
# Reasons that say which step was missing.  An agent that meets such a failure knows the
# step already, so the advice is to take it before.
_MISSING_STEPS: Final = frozenset({"not_read"})
_LABELS: Final = ("path", "check", "avoid", "warning", "recovery", "effort")
_SHORTLIST: Final = 16
# A path is left out if a longer one that contains it is worth at least this share.
_NEARLY: Final = 0.75


def describe(item: Item) -> str:
    """Describe an item of procedural memory in one phrase."""
    content: dict[str, Any] = dict(item.content)
    match item.kind:
        case "path":
            return path_text(item)
        case "failure":
            return f"{content['tool']} fails: {content['reason']}"
        case "recovery":
            fix = _fix(content, same_tool="again")
            return f"{content['tool']} fails: {content['reason']}, then {fix}"
        case "check":
            return f"checked with {content['tool']}"
        case "warning":
            return f"runs warn of {content['warning']}"
        case "effort":
            return f"{content['n']} reflections"
    return ", ".join(f"{name}: {value}" for name, value in content.items())


def path_text(item: Item) -> str:
    """Return the steps of a path with arrows; ``+`` joins tools called at once."""
    path: Any = item.content["path"]
    return " → ".join("+".join(step) for step in path)


def advice_line(item: Item) -> str:
    """Return the item as a line of advice for a model, with support and evidence."""
    content: dict[str, Any] = dict(item.content)
    success = item.success or 0.0
    if item.success is None:
        support = f"in {item.sessions} sessions"
    else:
        support = f"{_percent_of_sessions(success, item)} went well"
    match item.kind:
        case "path" if fails(item):
            failed = _percent_of_sessions(1 - success, item)
            text = f"Avoid: {path_text(item)} ({failed} failed"
        case "path":
            text = f"Suggested tool path: {path_text(item)} ({support}"
        case "check":
            text = f"Verification: {content['tool']} ({support}"
        case "failure":
            text = f"Avoid: {content['tool']} often fails with {content['reason']} "
            text += f"(in {item.sessions} sessions"
        case "warning":
            text = f"Expect: runs often warn of {content['warning']} "
            text += f"(in {item.sessions} sessions"
        case "recovery":
            text = f"{_recovery_text(content)} ({support}"
        case _:
            text = f"Reflections: {content['n']} were enough ({support}"
    return f"- {text}; {citation(item)})"


def _recovery_text(content: Mapping[str, Any]) -> str:
    """Return what helped after a failure, or the step that prevents the failure."""
    tool = content["tool"]
    reason = content["reason"]
    fix = _fix(content, same_tool="trying again")
    if reason in _MISSING_STEPS and content["fix"] != tool:
        return f"{fix} before {tool}: otherwise {tool} fails with {reason}"
    return f"If {tool} fails with {reason}: {fix}"


def _fix(content: Mapping[str, Any], *, same_tool: str) -> str:
    """Return the tool that helped after a failure, or ``same_tool`` for the same."""
    if content["fix"] == content["tool"]:
        return same_tool
    return str(content["fix"])


def citation(item: Item) -> str:
    """Return the item's id and the places of its cited evidence."""
    places = [
        f"{evidence.session_id} #{evidence.seqs[0]}-{evidence.seqs[-1]}"
        for evidence in cited_evidence(item)
    ]
    return ", ".join((item.memory_id, *places))


def cited_evidence(item: Item) -> list[Evidence]:
    """Return the evidence that a line cites: at most two places whose ids are plain."""
    citable = [
        evidence
        for evidence in item.evidence
        if evidence.seqs and _PLAIN_ID.fullmatch(evidence.session_id)
    ]
    return citable[:_MOST_CITED]


def _percent_of_sessions(share: float, item: Item) -> str:
    return f"{share:.0%} of {item.sessions} sessions"


@dataclass(frozen=True, slots=True)
class Choice:
    """The criteria by which advice is chosen.

    scenario:  the kind of task at hand; items learned in ``general`` count half.
    tokens:    the most that the advice may cost, markup included.
    top:       the most lines.
    threshold: the least confidence of an item, 0 to 1.
    tools:     the tools at hand; items that name other tools are left out.  None
               allows all tools.

    Raises InvalidConfiguration for a value out of its bounds.
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
    """The fields of ``Choice`` as keyword arguments."""

    scenario: str
    tokens: int
    top: int
    threshold: float
    tools: Collection[str] | None


def choice_from(arguments: ChoiceArgs) -> Choice:
    """Build a ``Choice`` from keyword arguments.

    Raises InvalidConfiguration for an unknown name or a value out of its bounds.
    """
    names = ChoiceArgs.__annotations__
    unknown = sorted(set(arguments) - set(names))
    if unknown:
        raise InvalidConfiguration(
            f"advice is not chosen by {unknown[0]!r}: {', '.join(names)}"
        )
    return Choice(**arguments)


class Line(NamedTuple):
    """One line of advice.

    text:       a statement, and for the profile of a user ``;`` and its citations.
    memory_id:  the item that the line states.
    confidence: 0 to 1.
    cited:      the ids of the sessions that the line names.
    """

    text: str
    memory_id: str
    confidence: float = 1.0
    cited: Sequence[str] = ()

    @property
    def statement(self) -> str:
        """The text without its citations, which change with every new session."""
        statement, _, _ = self.text.partition(";")
        return statement


PathKey: TypeAlias = tuple[tuple[str, ...], ...]


class Candidate(NamedTuple):
    """The parts of an item that choosing advice needs.

    A shortlist is stored as lists of these fields, in this order.

    weight: 1, or less for an item that was not learned in the scenario at hand.
    tools:  every tool that the item names.
    path:   the steps of a path; empty for other kinds.
    cited:  the ids of the sessions that the text names.
    """

    text: str
    memory_id: str
    label: str
    confidence: float
    weight: float
    updated_at: int
    expires_at: int
    tools: Sequence[str]
    path: Sequence[Sequence[str]]
    cited: Sequence[str] = ()

    def value(self, now: int) -> float:
        """Return how useful the item is now, by confidence, weight, and freshness."""
        age = max(0, now - self.updated_at)
        freshness: float = 0.5 ** (age / _HALF_LIFE)
        return round(self.confidence * self.weight * freshness, 9)

    def is_allowed(self, choice: Choice, now: int) -> bool:
        """Whether the item is still valid, certain enough, and its tools are there."""
        if choice.tools is not None and not set(choice.tools).issuperset(self.tools):
            return False
        return self.expires_at > now and self.confidence >= choice.threshold

    @property
    def subject(self) -> PathKey | str:
        """The path or claim that the item is about, whatever its scenario and side."""
        return self.path_key or self.claim

    @property
    def path_key(self) -> PathKey:
        """The path as a hashable value."""
        return tuple(tuple(step) for step in self.path)

    @property
    def claim(self) -> str:
        """The text without figures and evidence."""
        return self.text.partition(" (")[0]


def why_not(
    item: Item, *, now: int, threshold: float, means: Mapping[str, float]
) -> list[str]:
    """Return the reasons that an item is no advice; an empty list if it is.

    means: by scenario, the mean success of its sessions.  An item is advice only if
           sessions with it end better than this mean.
    """
    reasons: list[str] = []
    if item.tainted:
        sessions = counted(item.tainted_sessions, "session")
        reasons.append(f"tainted: {sessions} cannot count for it")
    elif item.sessions < INDEPENDENT:
        reasons.append(
            f"not established: {item.sessions} of {INDEPENDENT} independent sessions "
            "show it"
        )
    if item.stale:
        reasons.append("stale: newer sessions say the contrary")
    if item.expires_at <= now:
        reasons.append("expired: no recent session shows it")
    item_confidence = confidence(item)
    if item_confidence < threshold:
        reasons.append(f"below the threshold: {item_confidence:.2f} of {threshold:.2f}")
    reason = item.content.get("reason")
    if reason in NO_FAULT:
        reasons.append(f"{reason}: the tool did not run, so it did not fail")
    elif reason in UNNAMED:
        reasons.append("nobody said why the call failed: nothing could be avoided")
    if reasons or _separates(item, means.get(item.scenario)):
        return reasons
    if fails(item) and not is_to_blame(item):
        return ["no call in it fails, and sessions like these end no better without it"]
    return ["no help: sessions end no better with it"]


def confidence(item: Item) -> float:
    """Return the confidence in the item's statement that a path works, or fails."""
    if item.kind == "path":
        return max(item.confidence, item.against)
    return item.confidence


def fails(item: Item) -> bool:
    """Whether the item is a path that more certainly fails than works."""
    return item.kind == "path" and item.against > item.confidence


def is_to_blame(item: Item) -> bool:
    """Whether the path itself fails, rather than the tasks that it was tried on.

    A path itself fails if most of its sessions have a failed call in it, or if sessions
    of the same scenario certainly end better without it.
    """
    best_success = 1 - item.against
    return item.failed >= 0.5 or (item.otherwise or 0.0) > best_success


def _separates(item: Item, mean: float | None) -> bool:
    """Whether the item tells good sessions from bad ones.

    mean: the mean success of the sessions of its scenario, or None if unknown.
    """
    if item.kind in ("failure", "warning"):
        return True
    if item.kind == "recovery" and item.success is None:
        # No outcome is known.  Another call of the same tool is no help by itself.
        is_another = item.content["fix"] != item.content["tool"]
        return is_another and item.confidence >= _USUALLY_NEXT
    if item.success is None or mean is None:
        return False
    mean = round(mean, 6)  # the precision of an item's success
    if fails(item):
        return item.success < mean and is_to_blame(item)
    if item.kind == "effort":
        return item.success > mean  # an effort that all sessions share says nothing
    return item.success >= mean  # a path as good as any is still a path


def shortlist(
    items: Iterable[Item], scenario: str, *, now: int, means: Mapping[str, float]
) -> list[Candidate]:
    """Return the best candidates, at most 16 for each label and scenario.

    So the cost of choosing does not depend on the size of the memory.
    """
    weights = {GENERAL: _GENERAL_WEIGHT, scenario: 1.0}
    groups: dict[tuple[str, str], list[Candidate]] = defaultdict(list)
    for item in items:
        weight = weights.get(item.scenario)
        if weight and not why_not(item, now=now, threshold=0.0, means=means):
            candidate = _candidate(item, weight)
            groups[item.scenario, candidate.label].append(candidate)
    shortlisted: list[Candidate] = []
    for group in groups.values():
        best = _ranked(group, now)[:_SHORTLIST]
        shortlisted += [candidate for _, candidate in best]
    return shortlisted


def _candidate(item: Item, weight: float) -> Candidate:
    content: dict[str, Any] = dict(item.content)
    path = content.get("path", [])
    tools = {content[name] for name in ("tool", "fix") if name in content}
    for step in path:
        tools.update(step)
    return Candidate(
        text=advice_line(item),
        memory_id=item.memory_id,
        label="avoid" if item.kind == "failure" or fails(item) else item.kind,
        confidence=confidence(item),
        weight=weight,
        updated_at=item.updated_at,
        expires_at=item.expires_at,
        tools=sorted(tools),
        path=path,
        cited=[evidence.session_id for evidence in cited_evidence(item)],
    )


def choose(
    candidates: Iterable[Candidate],
    choice: Choice,
    *,
    now: int,
    profile: Sequence[Line] = (),
) -> Advice:
    """Choose the advice that fits the budget.

    The best candidate of each label comes first, then the second of each, and so on.

    profile: lines about the user; they come last and are the first to be left out.
    """
    allowed = [c for c in candidates if c.is_allowed(choice, now)]
    # A subject may occur in the scenario and in general; the better one is used.
    best: dict[object, tuple[float, Candidate]] = {}
    for value, candidate in _ranked(allowed, now):
        best.setdefault(candidate.subject, (value, candidate))
    values_of_longer = _values_of_longer_paths(best.values())
    by_label: dict[str, list[Candidate]] = {label: [] for label in _LABELS}
    for value, candidate in best.values():
        chosen = by_label[candidate.label]
        if len(chosen) == choice.top:
            continue
        if candidate.label == "path":
            longer = values_of_longer.get(candidate.subject, 0.0)
            is_redundant = longer >= _NEARLY * value
        else:
            is_redundant = any(_overlap(candidate, other) for other in chosen)
        if not is_redundant:
            chosen.append(candidate)
    lines: list[Line] = []
    for nth_of_each_label in zip_longest(*by_label.values()):
        for candidate in nth_of_each_label:
            if candidate is not None:
                lines.append(_line(candidate))
    about = [line for line in profile if line.confidence >= choice.threshold]
    return _fit(lines[: choice.top], lines[choice.top :], about, choice.tokens)


def _line(candidate: Candidate) -> Line:
    return Line(
        text=candidate.text,
        memory_id=candidate.memory_id,
        confidence=candidate.confidence,
        cited=candidate.cited,
    )


def _fit(
    lines: Sequence[Line], left_out: Sequence[Line], profile: Sequence[Line], most: int
) -> Advice:
    """Keep as many lines as fit into ``most`` tokens.

    A line that does not fit is left out, and shorter ones may follow.

    left_out: lines that were left out before; the result names them, too.
    """
    ids_left_out = [line.memory_id for line in left_out]
    kept_lines = list(lines)
    kept_profile = list(profile)
    if cost(_section(kept_lines, kept_profile)) > most:
        kept_lines = []
        kept_profile = []
        for line in lines:
            if cost(_section([*kept_lines, line], kept_profile)) <= most:
                kept_lines.append(line)
            else:
                ids_left_out.append(line.memory_id)
        for line in profile:
            if cost(_section(kept_lines, [*kept_profile, line])) <= most:
                kept_profile.append(line)
            else:
                ids_left_out.append(line.memory_id)
    text = _section(kept_lines, kept_profile)
    all_kept = [*kept_lines, *kept_profile]
    cited: set[str] = set()
    for line in all_kept:
        cited.update(line.cited)
    return Advice(
        text,
        _unique(line.memory_id for line in all_kept),
        cost(text),
        _unique(ids_left_out),
        tuple(sorted(cited)),
    )


def _unique(ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(ids))


def _section(lines: Sequence[Line], profile: Sequence[Line]) -> str:
    if not lines and not profile:
        return ""
    texts = [TITLE, _INTRODUCTION, *(line.text for line in lines)]
    if profile:
        texts += ["", "## Profile (with consent)", *(line.text for line in profile)]
    return "\n".join(texts)


def _ranked(candidates: Iterable[Candidate], now: int) -> list[tuple[float, Candidate]]:
    """Return the candidates with their value, the best first.

    Of two paths with the same value, the longer one comes first: it says more.
    """

    def rank(valued: tuple[float, Candidate]) -> tuple[float, int, str]:
        value, candidate = valued
        return -value, -len(candidate.path), candidate.memory_id

    return sorted(((c.value(now), c) for c in candidates), key=rank)


def _values_of_longer_paths(
    valued: Iterable[tuple[float, Candidate]],
) -> dict[object, float]:
    """Map each part of a working path to the best value of a path that contains it."""
    best: dict[object, float] = {}
    for value, candidate in valued:
        if candidate.label != "path":
            continue
        path = candidate.path_key
        for start, end in combinations(range(len(path) + 1), 2):
            part = path[start:end]
            if len(part) < len(path):
                best[part] = max(value, best.get(part, 0.0))
    return best


def _overlap(candidate: Candidate, other: Candidate) -> bool:
    """Whether one of two paths is part of the other."""
    return _contains(other.path, candidate.path) or _contains(
        candidate.path, other.path
    )


def _contains(whole: Sequence[object], part: Sequence[object]) -> bool:
    if not part:
        return False
    starts = range(len(whole) - len(part) + 1)
    return any(whole[start : start + len(part)] == part for start in starts)
