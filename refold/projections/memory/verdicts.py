"""The verdicts of sessions: what they show about the user, by topic, and mistakes."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeVar

from refold.domain.envelope import Envelope
from refold.domain.events import Aggregate, Verdict
from refold.domain.model import JsonDataclass
from refold.projections.memory.items import EVIDENCE
from refold.projections.memory.labels import Taxonomy, merged, name_of

# The version of the fold: it is raised when the same events give another result.
EXTRACTOR_VERSION: Final = 1
# The newest mistakes that are stored for one session; a profile lists no more of all.
MISTAKES: Final = 20
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/#-]{0,63}")
_CREDIT: Final = {"correct": 1.0, "uncertain": 0.5, "incorrect": 0.0}


class Mistake(NamedTuple):
    """An incorrect verdict, by its place: the question itself is not stored.

    nr:   the place among the results of the event ``seq``, from 1.
    item: the verdict's ``item_id`` if it is an identifier, else "".
    at:   the time of the event, in microseconds since 1970.
    """

    seq: int
    nr: int
    item: str
    error: str
    subject: str
    topic: str
    at: int


class Tally(NamedTuple):
    """The verdicts of one session on one topic, summed.

    subject, topic: names; "" if the verdicts name none.
    verdicts: the number of verdicts, one for each item.
    missed:   the number of them that were not correct.
    credit:   the sum of their credit, 0 to ``verdicts``.
    errors:   (error type, count, seqs) of incorrect verdicts, sorted by error type.
    seqs:     the newest events with such verdicts, at most ``EVIDENCE``.
    """

    subject: str
    topic: str
    verdicts: int
    missed: int
    credit: float
    errors: tuple[tuple[str, int, tuple[int, ...]], ...]
    seqs: tuple[int, ...]
    first_at: int
    last_at: int

    @classmethod
    def of(cls, place: Mistake, verdict: Verdict) -> Tally:
        """Return the tally of a single verdict.

        place: the place and names of the verdict, whether it is a mistake or not.
        """
        errors: tuple[tuple[str, int, tuple[int, ...]], ...] = ()
        if verdict.verdict == "incorrect" and place.error:
            errors = ((place.error, 1, (place.seq,)),)
        return cls(
            subject=place.subject,
            topic=place.topic,
            verdicts=1,
            missed=0 if verdict.verdict == "correct" else 1,
            credit=credit_of(verdict),
            errors=errors,
            seqs=(place.seq,),
            first_at=place.at,
            last_at=place.at,
        )


@dataclass(frozen=True, slots=True)
class SessionVerdicts(JsonDataclass):
    """The verdicts of one session.

    models: the models that answered in it.
    taints: by code, the reasons that the session must not count as evidence.
    """

    session_id: str
    upto_seq: int
    tallies: tuple[Tally, ...] = ()
    mistakes: tuple[Mistake, ...] = ()
    models: tuple[str, ...] = ()
    taints: tuple[str, ...] = ()


class Judge:
    """Folds the events of one session, in order, into its verdicts."""

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._upto = 0
        self._has_odd_label = False
        self._models: set[str] = set()
        self._newest: dict[str, tuple[Mistake, Verdict]] = {}

    def take(self, envelope: Envelope) -> None:
        """Fold the next event."""
        self._upto = envelope.seq
        model = envelope.meta.model
        if model is not None and _ID.fullmatch(model):
            self._models.add(model)
        if isinstance(envelope.payload, Aggregate):
            for nr, verdict in enumerate(envelope.payload.results, 1):
                self._take_verdict(envelope, nr, verdict)

    def _take_verdict(self, envelope: Envelope, nr: int, verdict: Verdict) -> None:
        item_id = verdict.item_id
        place = Mistake(
            seq=envelope.seq,
            nr=nr,
            item=item_id if _ID.fullmatch(item_id) else "",
            error=self._name(verdict.error_type),
            subject=self._name(verdict.subject),
            topic=self._name(verdict.topic),
            at=envelope.at,
        )
        # An item may get several verdicts, as after a reflection.  The last one counts.
        self._newest.pop(item_id, None)
        self._newest[item_id] = place, verdict

    def _name(self, label: str | None) -> str:
        if not label:
            return ""
        name = name_of(label)
        if name is None:
            # An author who puts sentences into labels may have written the verdicts.
            self._has_odd_label = True
            return ""
        return name

    def verdicts(self, taints: Iterable[str] = ()) -> SessionVerdicts:
        """Return the verdicts so far.

        taints: further reasons, by code, that the session must not count as evidence.
        """
        newest = self._newest.values()
        mistakes = [
            place for place, verdict in newest if verdict.verdict == "incorrect"
        ]
        all_taints = {*taints}
        if self._has_odd_label:
            all_taints.add("odd_label")
        return SessionVerdicts(
            session_id=self._session_id,
            upto_seq=self._upto,
            tallies=_by_topic(Tally.of(place, verdict) for place, verdict in newest),
            mistakes=tuple(sorted(mistakes)[-MISTAKES:]),
            models=tuple(sorted(self._models)),
            taints=tuple(sorted(all_taints)),
        )


def credit_of(verdict: Verdict) -> float:
    """Return the credit of a verdict, 0 to 1: its score, if the score agrees with it.

    The scale of a score is not known.  A score from 0 to 1 on the verdict's side of one
    half is used; otherwise correct is 1, uncertain one half, and incorrect 0.
    """
    credit = _CREDIT[verdict.verdict]
    score = verdict.score
    if score is None or not 0 <= score <= 1:
        return credit
    is_on_the_other_side = (score - 0.5) * (credit - 0.5) < 0
    return credit if is_on_the_other_side else score


def newest(seqs: Iterable[int]) -> tuple[int, ...]:
    """Return the newest seqs, at most ``EVIDENCE``, in order and without duplicates."""
    return tuple(sorted(set(seqs))[-EVIDENCE:])


def _by_topic(tallies: Iterable[Tally]) -> tuple[Tally, ...]:
    """Sum tallies to one per subject and topic, in order of their names."""
    groups: dict[tuple[str, str], list[Tally]] = defaultdict(list)
    for tally in tallies:
        groups[tally.subject, tally.topic].append(tally)
    return tuple(_sum(groups[topic]) for topic in sorted(groups))


def _sum(tallies: Sequence[Tally]) -> Tally:
    counts: Counter[str] = Counter()
    error_seqs: dict[str, list[int]] = defaultdict(list)
    seqs: list[int] = []
    for tally in tallies:
        seqs += tally.seqs
        for error, count, seqs_of_error in tally.errors:
            counts[error] += count
            error_seqs[error] += seqs_of_error
    return Tally(
        subject=tallies[0].subject,
        topic=tallies[0].topic,
        verdicts=sum(tally.verdicts for tally in tallies),
        missed=sum(tally.missed for tally in tallies),
        credit=round(sum(tally.credit for tally in tallies), 6),
        errors=tuple(
            (error, counts[error], newest(error_seqs[error]))
            for error in sorted(counts)
        ),
        seqs=newest(seqs),
        first_at=min(tally.first_at for tally in tallies),
        last_at=max(tally.last_at for tally in tallies),
    )


Placed = TypeVar("Placed", Mistake, Tally)


@dataclass(frozen=True, slots=True)
class Names:
    """The name that each label is merged into; other labels stand for themselves.

    topics: by (subject, topic).
    """

    subjects: Mapping[str, str]
    topics: Mapping[tuple[str, str], str]
    errors: Mapping[str, str]

    def placed(self, value: Placed) -> Placed:
        """Return the same mistake or tally under merged names of subject and topic."""
        subject = self.subjects.get(value.subject, value.subject)
        topic = self.topics.get((subject, value.topic), value.topic)
        return value._replace(subject=subject, topic=topic)


def names(sessions: Iterable[SessionVerdicts], taxonomy: Taxonomy) -> Names:
    """Merge labels that are almost alike into the one with the most verdicts.

    Verdicts of tainted sessions add no weight.  Error types follow the taxonomy first;
    topics are merged within their subject.
    """
    weighted: list[tuple[Tally, int]] = []
    for session in sessions:
        weight = 0 if session.taints else 1
        weighted += [(tally, weight) for tally in session.tallies]
    subjects = _merged(
        (tally.subject, tally.verdicts * weight) for tally, weight in weighted
    )
    topics: dict[str, Counter[str]] = defaultdict(Counter)
    errors: Counter[str] = Counter()
    for tally, weight in weighted:
        subject = subjects.get(tally.subject, tally.subject)
        topics[subject][tally.topic] += tally.verdicts * weight
        for error, count, _ in tally.errors:
            errors[error] += count * weight
    merged_topics: dict[tuple[str, str], str] = {}
    for subject, samples in topics.items():
        for topic, name in _merged(samples.items()).items():
            merged_topics[subject, topic] = name
    by_taxonomy = {error: taxonomy.error_of(error) for error in errors}
    unknown = [
        (error, count)
        for error, count in errors.items()
        if by_taxonomy[error] not in taxonomy.category
    ]
    return Names(subjects, merged_topics, {**by_taxonomy, **_merged(unknown)})


def _merged(samples: Iterable[tuple[str, int]]) -> dict[str, str]:
    counts: Counter[str] = Counter()
    for name, count in samples:
        if name:
            counts[name] += count
    return merged(counts)


def named(
    session: SessionVerdicts, names: Names, *, without: frozenset[str]
) -> SessionVerdicts:
    """Return the session's verdicts under merged names.

    without: error types to leave out.
    """

    def error_of(label: str) -> str:
        error = names.errors.get(label, label)
        return "" if error in without else error

    tallies: list[Tally] = []
    for tally in session.tallies:
        errors = [(error_of(label), count, seqs) for label, count, seqs in tally.errors]
        shown = tuple(entry for entry in errors if entry[0])
        tallies.append(names.placed(tally)._replace(errors=shown))
    mistakes = [
        names.placed(mistake)._replace(error=error_of(mistake.error))
        for mistake in session.mistakes
    ]
    return replace(session, tallies=_by_topic(tallies), mistakes=tuple(mistakes))
