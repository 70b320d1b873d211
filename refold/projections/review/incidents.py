"""What went wrong in a session, what a human is asked of it, and what they decided.

What is asked depends on the events alone, however often it is looked at: once a human
is to be asked, that stays so, whatever comes later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

from refold.domain import events as log
from refold.domain.envelope import Envelope, Warn
from refold.domain.erasure import timestamp
from refold.domain.model import adapter, quiet
from refold.projections.review.rules import (
    SEVERITIES,
    Counts,
    Found,
    ReviewRules,
    Rule,
    Severity,
    Step,
    ToolRule,
    found_by,
    settles,
)

# What a human can say of what an agent did: it was right, it was wrong, it was wrong
# and is mended, it need not be said any more.
Decision: TypeAlias = Literal["accept", "reject", "corrected", "dismissed"]
DECISIONS: Final[tuple[Decision, ...]] = get_args(Decision)
NOTE: Final = "note"  # the key of ``meta`` that a note to a decision is kept under
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
    figures: log.JsonObject
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

    def to_json(self) -> log.JsonObject:
        """All that there is to do it by."""
        more = {"idempotency_key": self.idempotency_key, "meta": self.meta}
        return {**self._asdict(), **more}


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
    figures: log.JsonObject
    seqs: tuple[int, ...]


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

    def tried(self, seq: int, warnings: Sequence[Warn]) -> None:
        """Note the step that comes next, if this event says that it was done."""
        recovery = self.recovery()
        if recovery is not None and recovery.warning in warnings:
            self._note(recovery.step, seq)

    def _note(self, what: Happened, *seqs: int) -> None:
        if not self.human:
            self.happened.append(what)
            self.seqs.update(seqs)

    def look(self, seq: int) -> Due | None:
        """The question that it becomes, once all that comes before is used up."""
        if self.human or self.step != "human":
            return None
        self.human, seqs = True, tuple(sorted({*self.seqs, seq}))
        at = (self.first_seq, seq, self.turn_seq)
        return Due(self.rule, *at, self.found.figures, seqs)

    def recovery(self) -> Recovery | None:
        """What the agent is to do next; None if nothing."""
        step = self.step
        if step == "wait" or step == "human":
            return None
        number = _used_up(self.rule.steps, self.happened)[0] + 1
        return Recovery(step, *self.name, self.found.figures, number)

    @property
    def step(self) -> Next:
        """What is to be done now."""
        return next_step(self.rule.steps, self.happened, over=self.over)

    @property
    def name(self) -> tuple[str, int]:
        """What its question is named by."""
        return self.rule.name, self.first_seq

    def dump(self) -> dict[str, Any]:
        """All of it as JSON."""
        kept = adapter(Incident).dump_python(self, mode="json", exclude={"rule"})
        return {**kept, "rule": self.rule.name, "seqs": sorted(self.seqs)}

    @classmethod
    def load(cls, rule: Rule, kept: Mapping[str, Any]) -> Incident:
        """What ``dump`` wrote."""
        loaded: Incident = adapter(cls).validate_python({**kept, "rule": rule})
        return loaded


@dataclass(slots=True)
class Watch:
    """Folds the events of one session, in order, into what some rules say of them.

    live:  what is not settled, by rule and subject.
    due:   what is to be asked, asked or not, in the order in which it came up.
    asked: where what was asked for a rule and seq is.
    turn:  where the turn began.
    """

    rules: ReviewRules
    counts: Counts = field(default_factory=Counts)
    live: dict[tuple[str, str], Incident] = field(default_factory=dict)
    due: list[Due] = field(default_factory=list)
    asked: dict[tuple[str, int], int] = field(default_factory=dict)
    turn: int = 1

    def take(
        self, seq: int, event: log.SessionEvent, warnings: Sequence[Warn] = ()
    ) -> None:
        """Look at the next event, and at the warnings that stand with it."""
        if isinstance(event, log.HumanReview):
            self._reviewed(seq, event)
            return
        self.counts.take(seq, event)
        if isinstance(event, log.UserInput):
            self._end(seq)
            self.turn, live = seq, self.live.items()
            # A tool that fails turn after turn is one question, until it is answered.
            self.live = {k: one for k, one in live if isinstance(one.rule, ToolRule)}
        if warnings:
            for incident in self.live.values():
                incident.tried(seq, warnings)
        for rule in self.rules.rules:
            self._apply(rule, seq, event)
        if isinstance(event, log.Final):
            self._end(seq)

    def recoveries(self) -> list[Recovery]:
        """What an agent is to do now, by itself."""
        return [one for incident in self.live.values() if (one := incident.recovery())]

    def unasked(self) -> list[Due]:
        """What is to be asked and was not yet."""
        return [o for o in self.due if (o.rule.name, o.first_seq) not in self.asked]

    def _apply(self, rule: Rule, seq: int, event: log.SessionEvent) -> None:
        found = found_by(rule, self.counts, seq, event)
        if found is None:
            for key, one in list(self.live.items()):
                subject = one.found.subject
                if one.rule is rule and settles(rule, subject, self.counts, event):
                    del self.live[key]
            return
        key = (rule.name, found.subject)
        if key not in self.live:
            self.live[key] = Incident(rule, self.turn, found, seq)
        self.live[key].fired(found)
        self._look(self.live[key], seq)

    def _end(self, seq: int) -> None:
        # Nothing of the turn is tried again: what is not settled is for a human.
        for incident in self.live.values():
            incident.over = True
            self._look(incident, seq)

    def _look(self, incident: Incident, seq: int) -> None:
        if (due := incident.look(seq)) is not None:
            self.due.append(due)

    def _reviewed(self, seq: int, review: log.HumanReview) -> None:
        if review.decision is None:
            if (asked := asked_for(review)) is not None:
                self.asked.setdefault(asked, seq)
            return
        names = [name for name, at in self.asked.items() if at == review.refers_to]
        for key, incident in list(self.live.items()):
            if incident.name in names:
                del self.live[key]
                if isinstance(incident.rule, ToolRule):
                    self.counts.forgive(incident.found.subject)

    def dump(self) -> log.JsonObject:
        """What there is to know of later events; what was asked is left out."""
        names = {one.name for one in self.live.values()}
        kept: dict[str, Any] = {
            **adapter(Counts).dump_python(self.counts, mode="json", exclude={"tool"}),
            "live": [one.dump() for one in self.live.values()],
            "due": [[o.rule.name, *o[1:5], list(o.seqs)] for o in self.unasked()],
            "asked": [[*n, seq] for n, seq in self.asked.items() if n in names],
            "turn": self.turn,
        }
        return kept

    @classmethod
    def load(cls, rules: ReviewRules, kept: Mapping[str, Any]) -> Watch:
        """What ``dump`` wrote under these rules."""
        named = {rule.name: rule for rule in rules.rules}
        live = [Incident.load(named[one["rule"]], one) for one in kept["live"]]
        counts = adapter(Counts).validate_python(kept)
        by_subject = {(one.rule.name, one.found.subject): one for one in live}
        due = [
            Due(named[name], first, at, turn, figures, tuple(seqs))
            for name, first, at, turn, figures, seqs in kept["due"]
        ]
        asked = {(name, first): seq for name, first, seq in kept["asked"]}
        return cls(rules, counts, by_subject, due, asked, kept["turn"])


class Decided(NamedTuple):
    """A decision: the event that it is, and who said what."""

    seq: int
    decision: str
    by: str | None
    note: str
    at: str


@quiet
class Review(NamedTuple):
    """A question to a human, and what was decided on it if anything was.

    closed: the session takes no decision any more.
    """

    user_id: str
    session_id: str
    seq: int
    at: str
    trigger: str
    severity: Severity
    question: str
    bundle: log.JsonObject | None
    decided: Decided | None
    closed: bool = False

    @property
    def is_open(self) -> bool:
        """Whether a decision is waited for, and can be made."""
        return self.decided is None and not self.closed

    def to_json(self) -> log.JsonObject:
        """All of it."""
        found: dict[str, Any] = self._asdict()
        found["decided"] = self.decided and self.decided._asdict()
        return {**found, "open": self.is_open}


def reviews_of(events: Iterable[Envelope], *, closed: bool = False) -> list[Review]:
    """The questions among a session's events, in order; the first decision counts."""
    found: dict[int, Review] = {}
    for envelope in events:
        match envelope.payload:
            case log.HumanReview(decision=None) as asked:
                found[envelope.seq] = Review(
                    *(envelope.user_id, envelope.session_id, envelope.seq),
                    at=timestamp(envelope.at),
                    trigger=asked.trigger,
                    severity=asked.severity,
                    question=asked.question,
                    bundle=asked.bundle,
                    decided=None,
                    closed=closed,
                )
            case log.HumanReview(refers_to=int(seq)) as one if seq in found:
                if found[seq].decided is None:
                    note = (envelope.meta.model_extra or {}).get(NOTE)
                    note = note if isinstance(note, str) else ""
                    at, by = timestamp(envelope.at), one.decided_by
                    decided = Decided(envelope.seq, one.decision or "", by, note, at)
                    found[seq] = found[seq]._replace(decided=decided)
    return list(found.values())


def urgency(review: Review) -> tuple[int, str, str, str, int]:
    """What to sort by so that the gravest comes first, then what waits longest."""
    place = (review.user_id, review.session_id, review.seq)
    return (SEVERITIES.index(review.severity), review.at, *place)


def asked_for(review: log.HumanReview) -> tuple[str, int] | None:
    """The rule and seq that a question was asked for; None if by no rule."""
    where = (review.bundle or {}).get("where")
    seq = where.get("first_seq") if isinstance(where, dict) else None
    return (review.trigger, seq) if isinstance(seq, int) else None


# Of what is folded and kept: a new number wherever one of the two changes.
VERSION: Final = 2


def name_of(rules: ReviewRules) -> str:
    """Under which name it is kept: what other rules know is not it."""
    return f"review-{VERSION}-{rules.digest()[:16]}"
