"""Incidents of a session: recovery by the agent, questions to a human, decisions.

Which questions arise depends on the events alone.  Folding the same events again, in
batches of any size, gives the same questions, and later events never withdraw one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

from refold.domain import events
from refold.domain.envelope import Envelope, Warn
from refold.domain.erasure import timestamp
from refold.domain.events import HumanReview, JsonObject, SessionEvent
from refold.domain.model import adapter, repr_without_texts
from refold.projections.review.rules import (
    SEVERITIES,
    Counts,
    Finding,
    ReviewRules,
    Rule,
    Severity,
    Step,
    ToolRule,
    evaluate,
    settles,
)

Decision: TypeAlias = Literal["accept", "reject", "corrected", "dismissed"]
"""A human's decision: the agent was right; it was wrong; it was wrong and the result
has been corrected; the question needs no answer."""
DECISIONS: Final[tuple[Decision, ...]] = get_args(Decision)
Happened: TypeAlias = Literal["failed", "degrade", "retry"]
Next: TypeAlias = Literal["degrade", "retry", "wait", "human"]
WARNINGS: Final[Mapping[Step, str]] = {"degrade": "degraded", "retry": "retried"}
"""By step, the code of the warning that marks the step's events."""


def next_step(
    steps: Sequence[Step], happened: Sequence[Happened], *, over: bool = False
) -> Next:
    """Return the next step of a recovery.

    ``wait`` means that a step was recorded and its outcome is not known yet.

    steps:    the steps that the rule allows, in order.
    happened: in order, ``failed`` for each time the rule fired, and each recorded
              step.
    over:     whether the turn has ended, so that the agent can no longer recover.
    """
    progress = _progress(steps, happened)
    if over:
        return "human"
    if progress.running:
        return "wait"
    if progress.used >= len(steps):
        return "human"
    return steps[progress.used]


class _Progress(NamedTuple):
    """How far a recovery is.

    used:    the number of steps that were tried or skipped.
    running: whether the newest of them was recorded and has not failed since.
    """

    used: int
    running: bool


def _progress(steps: Sequence[Step], happened: Sequence[Happened]) -> _Progress:
    used = 0
    running = False
    has_failed = False
    for entry in happened:
        if entry == "failed":
            # A second failure without a recorded step uses up the next step: whatever
            # the agent did instead did not help.
            if has_failed and not running:
                used += 1
            has_failed = True
            running = False
        elif entry in steps[used:]:
            used = steps.index(entry, used) + 1
            running = True
    return _Progress(used, running)


class Recovery(NamedTuple):
    """A recovery step for the agent to do now, and the way to record it.

    rule:    the rule that fired.
    seq:     the event at which it fired first.
    figures: the figures of its newest finding.
    number:  the place of this step among the rule's steps, from 1.
    """

    step: Step
    rule: str
    seq: int
    figures: JsonObject
    number: int

    @property
    def idempotency_key(self) -> str:
        """The key that every process uses for this step, so that it is stored once."""
        return f"refold.recovery/{self.rule}/{self.seq}/{self.number}"

    @property
    def warning(self) -> Warn:
        """The warning that marks the events of this step."""
        detail = f"step {self.number} of {self.rule} at seq {self.seq}"
        return Warn(code=WARNINGS[self.step], detail=detail)

    @property
    def meta(self) -> dict[str, Any]:
        """The ``meta`` to append the step's events with."""
        return {"warnings": [self.warning.model_dump()]}

    def to_json(self) -> JsonObject:
        """Return the step as JSON, with the key and ``meta`` to append it with."""
        return {
            **self._asdict(),
            "idempotency_key": self.idempotency_key,
            "meta": self.meta,
        }


class Question(NamedTuple):
    """A question that a rule raises for a human.

    first_seq: the event at which the rule fired first.  The rule and this seq identify
               the question.
    at_seq:    the event at which recovery ended without success.
    turn_seq:  the first event of the turn.
    seqs:      the events that show what happened, in order.
    """

    rule: Rule
    first_seq: int
    at_seq: int
    turn_seq: int
    figures: JsonObject
    seqs: tuple[int, ...]

    @property
    def name(self) -> tuple[str, int]:
        """The identity of the question within its session."""
        return self.rule.name, self.first_seq


@dataclass(slots=True)
class Incident:
    """A rule that fired and is not settled yet.

    finding:  the newest finding of the rule.
    happened: each time that the rule fired, and each recorded step, in order.
    seqs:     the events that ``happened`` refers to.
    over:     whether its turn has ended.
    human:    whether it has become a question for a human.
    """

    rule: Rule
    turn_seq: int
    finding: Finding
    first_seq: int
    happened: list[Happened] = field(default_factory=list)
    seqs: set[int] = field(default_factory=set)
    over: bool = False
    human: bool = False

    def fired(self, finding: Finding) -> None:
        """Note that the rule fired again."""
        self.finding = finding
        self._note("failed", finding.seqs)

    def tried(self, seq: int, warnings: Sequence[Warn]) -> None:
        """Note the next recovery step if the warnings of this event mark it."""
        recovery = self.recovery()
        if recovery is not None and recovery.warning in warnings:
            self._note(recovery.step, (seq,))

    def _note(self, entry: Happened, seqs: Iterable[int]) -> None:
        if not self.human:
            self.happened.append(entry)
            self.seqs.update(seqs)

    def escalate(self, seq: int) -> Question | None:
        """Return the question for a human once no recovery step is left.

        Returns each incident's question only once.
        """
        if self.human or self.next_step != "human":
            return None
        self.human = True
        return Question(
            rule=self.rule,
            first_seq=self.first_seq,
            at_seq=seq,
            turn_seq=self.turn_seq,
            figures=self.finding.figures,
            seqs=tuple(sorted({*self.seqs, seq})),
        )

    def recovery(self) -> Recovery | None:
        """Return the step that the agent does next, or None if there is none."""
        step = self.next_step
        if step == "wait" or step == "human":
            return None
        return Recovery(
            step=step,
            rule=self.rule.name,
            seq=self.first_seq,
            figures=self.finding.figures,
            number=_progress(self.rule.steps, self.happened).used + 1,
        )

    @property
    def next_step(self) -> Next:
        """The next step of the recovery."""
        return next_step(self.rule.steps, self.happened, over=self.over)

    @property
    def name(self) -> tuple[str, int]:
        """The identity of the incident's question within its session."""
        return self.rule.name, self.first_seq

    def dump(self) -> dict[str, Any]:
        """Return the incident as JSON; ``load`` reads it."""
        finding = self.finding
        return {
            "turn_seq": self.turn_seq,
            "found": [finding.subject, finding.figures, list(finding.seqs)],
            "first_seq": self.first_seq,
            "happened": list(self.happened),
            "seqs": sorted(self.seqs),
            "over": self.over,
            "human": self.human,
            "rule": self.rule.name,
        }

    @classmethod
    def load(cls, rule: Rule, stored: Mapping[str, Any]) -> Incident:
        """Read the JSON that ``dump`` wrote."""
        subject, figures, seqs = stored["found"]
        return cls(
            rule=rule,
            turn_seq=stored["turn_seq"],
            finding=Finding(subject, figures, tuple(seqs)),
            first_seq=stored["first_seq"],
            happened=list(stored["happened"]),
            seqs=set(stored["seqs"]),
            over=stored["over"],
            human=stored["human"],
        )


@dataclass(slots=True)
class Watch:
    """Folds the events of one session, in order, into incidents and questions.

    incidents: the incidents that are not settled, by rule name and subject.
    questions: all questions raised, asked or not, in the order in which they arose.
    asked:     by question name, the seq of the event that asked it.
    turn:      the first event of the turn.
    """

    rules: ReviewRules
    counts: Counts = field(default_factory=Counts)
    incidents: dict[tuple[str, str], Incident] = field(default_factory=dict)
    questions: list[Question] = field(default_factory=list)
    asked: dict[tuple[str, int], int] = field(default_factory=dict)
    turn: int = 1

    def take(
        self, seq: int, event: SessionEvent, warnings: Sequence[Warn] = ()
    ) -> None:
        """Fold the next event and the warnings in its ``meta``."""
        if isinstance(event, HumanReview):
            self._take_review(seq, event)
            return
        self.counts.take(seq, event)
        if isinstance(event, events.UserInput):
            self._end_turn(seq)
            self._begin_turn(seq)
        if warnings:
            for incident in self.incidents.values():
                incident.tried(seq, warnings)
        for rule in self.rules.rules:
            self._apply(rule, seq, event)
        if isinstance(event, events.Final):
            self._end_turn(seq)

    def recoveries(self) -> list[Recovery]:
        """Return the recovery steps for the agent to do now."""
        steps = [incident.recovery() for incident in self.incidents.values()]
        return [step for step in steps if step is not None]

    def unasked(self) -> list[Question]:
        """Return the questions that no event has asked yet."""
        return [q for q in self.questions if q.name not in self.asked]

    def _apply(self, rule: Rule, seq: int, event: SessionEvent) -> None:
        finding = evaluate(rule, self.counts, seq, event)
        if finding is None:
            self._settle(rule, event)
            return
        key = (rule.name, finding.subject)
        if key not in self.incidents:
            self.incidents[key] = Incident(rule, self.turn, finding, seq)
        self.incidents[key].fired(finding)
        self._escalate(self.incidents[key], seq)

    def _settle(self, rule: Rule, event: SessionEvent) -> None:
        for key, incident in list(self.incidents.items()):
            if incident.rule is not rule:
                continue
            if settles(rule, incident.finding.subject, self.counts, event):
                del self.incidents[key]

    def _begin_turn(self, seq: int) -> None:
        self.turn = seq
        # A tool that fails turn after turn is one question, until it is answered.
        self.incidents = {
            key: incident
            for key, incident in self.incidents.items()
            if isinstance(incident.rule, ToolRule)
        }

    def _end_turn(self, seq: int) -> None:
        # The agent can no longer recover: every open incident goes to a human.
        for incident in self.incidents.values():
            incident.over = True
            self._escalate(incident, seq)

    def _escalate(self, incident: Incident, seq: int) -> None:
        question = incident.escalate(seq)
        if question is not None:
            self.questions.append(question)

    def _take_review(self, seq: int, review: HumanReview) -> None:
        if review.decision is None:
            name = question_name(review)
            if name is not None:
                self.asked.setdefault(name, seq)
            return
        decided = [n for n, at_seq in self.asked.items() if at_seq == review.refers_to]
        for key, incident in list(self.incidents.items()):
            if incident.name in decided:
                del self.incidents[key]
                if isinstance(incident.rule, ToolRule):
                    self.counts.forgive(incident.finding.subject)

    def dump(self) -> JsonObject:
        """Return the state that later events need, as JSON; ``load`` reads it.

        Questions that were asked are left out.
        """
        counts = adapter(Counts).dump_python(self.counts, mode="json", exclude={"tool"})
        incidents = list(self.incidents.values())
        names = {incident.name for incident in incidents}
        asked = [
            [rule, first_seq, seq]
            for (rule, first_seq), seq in self.asked.items()
            if (rule, first_seq) in names
        ]
        return {
            **counts,
            "live": [incident.dump() for incident in incidents],
            "due": [_dump_question(question) for question in self.unasked()],
            "asked": asked,
            "turn": self.turn,
        }

    @classmethod
    def load(cls, rules: ReviewRules, stored: Mapping[str, Any]) -> Watch:
        """Read the JSON that ``dump`` wrote under the same rules."""
        rule_by_name = {rule.name: rule for rule in rules.rules}
        incidents: dict[tuple[str, str], Incident] = {}
        for entry in stored["live"]:
            incident = Incident.load(rule_by_name[entry["rule"]], entry)
            incidents[incident.rule.name, incident.finding.subject] = incident
        questions: list[Question] = []
        for name, first_seq, at_seq, turn_seq, figures, seqs in stored["due"]:
            question = Question(
                rule=rule_by_name[name],
                first_seq=first_seq,
                at_seq=at_seq,
                turn_seq=turn_seq,
                figures=figures,
                seqs=tuple(seqs),
            )
            questions.append(question)
        asked = {(name, first_seq): seq for name, first_seq, seq in stored["asked"]}
        return cls(
            rules=rules,
            counts=adapter(Counts).validate_python(stored),
            incidents=incidents,
            questions=questions,
            asked=asked,
            turn=stored["turn"],
        )


def _dump_question(question: Question) -> list[Any]:
    return [
        question.rule.name,
        question.first_seq,
        question.at_seq,
        question.turn_seq,
        question.figures,
        list(question.seqs),
    ]


class Decided(NamedTuple):
    """A decision on a question.

    seq:  the event that records it.
    by:   the name or role of the person who decided.
    at:   the time of the event.
    """

    seq: int
    decision: str
    by: str | None
    note: str
    at: str


@repr_without_texts
class Review(NamedTuple):
    """A question to a human, and its decision if there is one.

    seq:    the event that asked the question.
    closed: whether the session accepts no more events.
    """

    user_id: str
    session_id: str
    seq: int
    at: str
    trigger: str
    severity: Severity
    question: str
    bundle: JsonObject | None
    decided: Decided | None
    closed: bool = False

    @property
    def is_open(self) -> bool:
        """Whether a decision is missing and can still be recorded."""
        return self.decided is None and not self.closed

    def to_json(self) -> JsonObject:
        """Return the question and its decision as JSON."""
        fields: dict[str, Any] = self._asdict()
        if self.decided is not None:
            fields["decided"] = self.decided._asdict()
        return {**fields, "open": self.is_open}


def reviews_of(envelopes: Iterable[Envelope], *, closed: bool = False) -> list[Review]:
    """Return the questions among a session's events, in order.

    The first decision on a question counts; later ones are ignored.

    closed: whether the session accepts no more events.
    """
    reviews: dict[int, Review] = {}
    for envelope in envelopes:
        match envelope.payload:
            case HumanReview(decision=None) as asked:
                reviews[envelope.seq] = Review(
                    user_id=envelope.user_id,
                    session_id=envelope.session_id,
                    seq=envelope.seq,
                    at=timestamp(envelope.at),
                    trigger=asked.trigger,
                    severity=asked.severity,
                    question=asked.question,
                    bundle=asked.bundle,
                    decided=None,
                    closed=closed,
                )
            case HumanReview(refers_to=int(seq)) as answer if seq in reviews:
                if reviews[seq].decided is None:
                    decided = _decided(envelope, answer)
                    reviews[seq] = reviews[seq]._replace(decided=decided)
    return list(reviews.values())


def _decided(envelope: Envelope, answer: HumanReview) -> Decided:
    return Decided(
        seq=envelope.seq,
        decision=answer.decision or "",
        by=answer.decided_by,
        note=envelope.note,
        at=timestamp(envelope.at),
    )


def urgency(review: Review) -> tuple[int, str, str, str, int]:
    """Return the sort key that puts the gravest question first, then the oldest."""
    return (
        SEVERITIES.index(review.severity),
        review.at,
        review.user_id,
        review.session_id,
        review.seq,
    )


def question_name(review: HumanReview) -> tuple[str, int] | None:
    """Return the rule and first seq of a question, or None if no rule asked it."""
    where = (review.bundle or {}).get("where")
    first_seq = where.get("first_seq") if isinstance(where, dict) else None
    if not isinstance(first_seq, int):
        return None
    return review.trigger, first_seq


VERSION: Final = 2
"""The version of the fold and of its stored form; a change of either raises it."""


def name_of(rules: ReviewRules) -> str:
    """Return the name of the stored view: each set of rules has a view of its own."""
    return f"review-{VERSION}-{rules.digest()[:16]}"
