"""What went wrong in a session and what is to be done about it, folded from its events.

What is asked depends on the events alone, however often it is looked at: once a human
is to be asked, that stays so, whatever comes later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from refold.domain.envelope import Envelope, Warn
from refold.domain.events import (
    Final as Ending,
    HumanReview,
    JsonObject,
    SessionEvent,
    UserInput,
)
from refold.projections.review.decisions import asked_for
from refold.projections.review.rules import (
    Counts,
    Failed,
    Found,
    ReviewRules,
    Rule,
    Step,
    ToolRule,
    found_by,
    settles,
)

Happened: TypeAlias = Literal["failed", "degrade", "retry"]
Next: TypeAlias = Literal["degrade", "retry", "wait", "human"]
WARNINGS: Final[Mapping[Step, str]] = {"degrade": "degraded", "retry": "retried"}


def next_step(
    steps: Sequence[Step], happened: Sequence[Happened], *, over: bool = False
) -> Next:
    """What is to be done now.

    A step is used up when it was recorded, or when it failed once more without: what
    was done instead did not help either.  ``wait``: a step was recorded, and nothing
    is known of how it went.

    steps:    what the rule has the agent try, in turn.
    happened: in order: ``failed`` each time the rule fired, else a recorded step.
    over:     the turn is over, so that nothing of it can be tried again.
    """
    used, tried = _used_up(steps, happened)
    if over or (used >= len(steps) and not tried):
        return "human"
    return "wait" if tried else steps[used]


def number_of(steps: Sequence[Step], happened: Sequence[Happened]) -> int:
    """Which step it is that comes next, counted from 1."""
    return _used_up(steps, happened)[0] + 1


def _used_up(steps: Sequence[Step], happened: Sequence[Happened]) -> tuple[int, bool]:
    """How many steps are used up, and whether the last one is still being tried."""
    used, tried, begun = 0, False, False
    for what in happened:
        if what == "failed":
            used += begun and not tried
            tried, begun = False, True
        elif what in steps[used:]:
            used, tried = steps.index(what, used) + 1, True
    return used, tried


class Recovery(NamedTuple):
    """A step that an agent is to do now, and how it records it.

    rule, seq: which rule fired, and at which event first.
    figures:   what the rule counted, as of the newest time.
    number:    which step it is of those that the rule has, from 1.
    """

    step: Step
    rule: str
    seq: int
    figures: JsonObject
    number: int

    @property
    def idempotency_key(self) -> str:
        """The same for everybody who does this step: it is written once."""
        return f"refold.recovery/{self.rule}/{self.seq}/{self.number}"

    @property
    def warning(self) -> Warn:
        """What stands with the events of this step."""
        detail = f"step {self.number} of {self.rule} at seq {self.seq}"
        return Warn(code=WARNINGS[self.step], detail=detail)

    @property
    def meta(self) -> dict[str, Any]:
        """What says, beside the events of the step, that they are one."""
        return {"warnings": [self.warning.model_dump()]}

    def to_json(self) -> JsonObject:
        """All that there is to do it by."""
        more = {"idempotency_key": self.idempotency_key, "meta": self.meta}
        return {**self._asdict(), **more}


class Seen(NamedTuple):
    """An event, as far as rules look at it."""

    seq: int
    event: SessionEvent
    warnings: tuple[Warn, ...] = ()

    @classmethod
    def of(cls, envelope: Envelope) -> Seen:
        """What rules look at of this event."""
        return cls(envelope.seq, envelope.payload, envelope.meta.warnings)


class Due(NamedTuple):
    """A question that a human is to be asked.

    first_seq: the event at which the rule fired first; with the rule it names the
               question.
    at_seq:    the event that made it a question for a human.
    turn_seq:  where the turn began.
    seqs:      the events that show it, in order.
    """

    rule: Rule
    first_seq: int
    at_seq: int
    turn_seq: int
    figures: JsonObject
    seqs: tuple[int, ...]

    @property
    def name(self) -> tuple[str, int]:
        """What the question is named by."""
        return self.rule.name, self.first_seq


@dataclass(slots=True)
class Incident:
    """What a rule fired for, until it is settled or its turn is over.

    happened: each time that it fired, and each step that was recorded, in order.
    human:    whether it became a question for a human.
    """

    rule: Rule
    turn_seq: int
    found: Found
    first_seq: int
    happened: list[Happened] = field(default_factory=list)
    seqs: set[int] = field(default_factory=set)
    over: bool = False
    human: bool = False

    def fired(self, found: Found) -> None:
        """The rule found it once more."""
        self.found = found
        self._note("failed", *found.seqs)

    def tried(self, seen: Seen) -> None:
        """Note the step that comes next, if this event says that it was done."""
        recovery = self.recovery()
        if recovery is not None and recovery.warning in seen.warnings:
            self._note(recovery.step, seen.seq)

    def _note(self, what: Happened, *seqs: int) -> None:
        if not self.human:
            self.happened.append(what)
            self.seqs.update(seqs)

    def look(self, seq: int) -> Due | None:
        """The question that it becomes, once all that comes before is used up."""
        if self.human or self.step != "human":
            return None
        self.human, seqs = True, tuple(sorted({*self.seqs, seq}))
        figures = self.found.figures
        return Due(self.rule, self.first_seq, seq, self.turn_seq, figures, seqs)

    def recovery(self) -> Recovery | None:
        """What the agent is to do next; None if nothing."""
        step = self.step
        if step == "wait" or step == "human":
            return None
        number = number_of(self.rule.steps, self.happened)
        figures = self.found.figures
        return Recovery(step, self.rule.name, self.first_seq, figures, number)

    @property
    def step(self) -> Next:
        return next_step(self.rule.steps, self.happened, over=self.over)


@dataclass(slots=True)
class State:
    """What is known of a session, up to an event of it.

    live:  what is not settled, by rule and subject.
    due:   what is to be asked, asked or not, in the order in which it came up.
    asked: where what was asked for a rule and seq is.
    turn:  where the turn began.
    """

    counts: Counts = field(default_factory=Counts)
    live: dict[tuple[str, str], Incident] = field(default_factory=dict)
    due: list[Due] = field(default_factory=list)
    asked: dict[tuple[str, int], int] = field(default_factory=dict)
    turn: int = 1

    def unasked(self) -> list[Due]:
        """What is to be asked and was not yet."""
        return [due for due in self.due if due.name not in self.asked]


class Watching:
    """Folds the events of one session, in order, under some rules."""

    def __init__(self, rules: ReviewRules, state: State | None = None) -> None:
        self._rules, self.state = rules.rules, state or State()

    def take(self, seen: Seen) -> None:
        """Look at the next event."""
        if isinstance(seen.event, HumanReview):
            self._reviewed(seen.seq, seen.event)
            return
        self.state.counts.take(seen.seq, seen.event)
        if isinstance(seen.event, UserInput):
            self._next_turn(seen.seq)
        if seen.warnings:
            for incident in self.state.live.values():
                incident.tried(seen)
        for rule in self._rules:
            self._apply(rule, seen)
        if isinstance(seen.event, Ending):
            self._end(seen.seq)

    def recoveries(self) -> list[Recovery]:
        """What an agent is to do now, by itself."""
        every = (incident.recovery() for incident in self.state.live.values())
        return [recovery for recovery in every if recovery is not None]

    def _apply(self, rule: Rule, seen: Seen) -> None:
        found = found_by(rule, self.state.counts, seen.seq, seen.event)
        if found is not None:
            self._fired(rule, found, seen.seq)
            return
        for key, incident in list(self.state.live.items()):
            if incident.rule is rule and settles(
                rule, incident.found.subject, self.state.counts, seen.event
            ):
                del self.state.live[key]

    def _fired(self, rule: Rule, found: Found, seq: int) -> None:
        key = (rule.name, found.subject)
        incident = self.state.live.get(key)
        if incident is None:
            incident = Incident(rule, self.state.turn, found, seq)
            self.state.live[key] = incident
        incident.fired(found)
        self._look(incident, seq)

    def _end(self, seq: int) -> None:
        """Nothing of the turn is tried again: what is not settled is for a human."""
        for incident in self.state.live.values():
            incident.over = True
            self._look(incident, seq)

    def _next_turn(self, seq: int) -> None:
        self._end(seq)
        self.state.turn = seq
        # A tool that fails turn after turn is one question, until it is answered.
        self.state.live = {
            key: incident
            for key, incident in self.state.live.items()
            if isinstance(incident.rule, ToolRule)
        }

    def _look(self, incident: Incident, seq: int) -> None:
        due = incident.look(seq)
        if due is not None:
            self.state.due.append(due)

    def _reviewed(self, seq: int, review: HumanReview) -> None:
        if review.decision is None:
            asked = asked_for(review)
            if asked is not None:
                self.state.asked.setdefault(asked, seq)
            return
        names = [
            name for name, at in self.state.asked.items() if at == review.refers_to
        ]
        for key, incident in list(self.state.live.items()):
            if (incident.rule.name, incident.first_seq) in names:
                del self.state.live[key]
                if isinstance(incident.rule, ToolRule):
                    self.state.counts.forgive(incident.found.subject)


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
