"""What rules know of a session, as JSON: the next look goes on from there."""

from __future__ import annotations

from typing import Any, Final

from refold.domain.events import JsonObject
from refold.projections.review.incidents import Due, Incident, State
from refold.projections.review.rules import ReviewRules, Rule
from refold.projections.review.triggers import Counts, Failed, Found

# Of what is folded and kept: a new number wherever one of the two changes.
VERSION: Final = 1


def name_of(rules: ReviewRules) -> str:
    """Under which name it is kept: what other rules know is not it."""
    return f"review-{VERSION}-{rules.digest()[:16]}"


def dump(state: State) -> JsonObject:
    """What there is to know of later events; what was asked is left out."""
    due = state.unasked()
    names = {(one.rule.name, one.first_seq) for one in state.live.values()}
    asked = [[*name, seq] for name, seq in state.asked.items() if name in names]
    counts = state.counts
    kept: dict[str, Any] = {
        "failures": {tool: list(map(list, f)) for tool, f in counts.failures.items()},
        "lengths": dict(counts.lengths),
        "rejected": list(counts.rejected),
        "calls": {name: list(call) for name, call in counts.calls.items()},
        "live": [_incident(one) for one in state.live.values()],
        "due": [[one.rule.name, *one[1:5], list(one.seqs)] for one in due],
        "asked": asked,
        "turn": state.turn,
    }
    return kept


def load(rules: ReviewRules, kept: JsonObject) -> State:
    """The state that ``dump`` wrote under these rules."""
    found: dict[str, Any] = kept
    named = {rule.name: rule for rule in rules.rules}
    live = [_loaded(named[one["rule"]], one) for one in found["live"]]
    failures = found["failures"].items()
    return State(
        counts=Counts(
            failures={tool: [Failed(*one) for one in some] for tool, some in failures},
            lengths=found["lengths"],
            rejected=found["rejected"],
            calls={name: (seq, tool) for name, (seq, tool) in found["calls"].items()},
        ),
        live={(one.rule.name, one.found.subject): one for one in live},
        due=[
            Due(named[name], first, at, turn, figures, tuple(seqs))
            for name, first, at, turn, figures, seqs in found["due"]
        ],
        asked={(name, first): seq for name, first, seq in found["asked"]},
        turn=found["turn"],
    )


def _incident(one: Incident) -> dict[str, Any]:
    return {
        "rule": one.rule.name,
        "turn": one.turn_seq,
        "subject": one.found.subject,
        "figures": one.found.figures,
        "found": list(one.found.seqs),
        "first": one.first_seq,
        "happened": list(one.happened),
        "seqs": sorted(one.seqs),
        "over": one.over,
        "human": one.human,
    }


def _loaded(rule: Rule, one: dict[str, Any]) -> Incident:
    return Incident(
        rule=rule,
        turn_seq=one["turn"],
        found=Found(one["subject"], one["figures"], tuple(one["found"])),
        first_seq=one["first"],
        happened=one["happened"],
        seqs=set(one["seqs"]),
        over=one["over"],
        human=one["human"],
    )
