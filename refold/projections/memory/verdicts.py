"""What the verdicts of sessions show of the user: by topic, and the newest mistakes."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final, NamedTuple, TypeVar

from refold.domain.envelope import Envelope
from refold.domain.events import Aggregate, Verdict
from refold.domain.model import Kept
from refold.projections.memory.items import EVIDENCE
from refold.projections.memory.labels import Taxonomy, merged, name_of

# Raised when what is made of the same events becomes something else.
EXTRACTOR: Final = 1
# Of a session, the newest: a profile lists no more of all.
MISTAKES: Final = 20
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/#-]{0,63}")
_WORTH: Final = {"correct": 1.0, "uncertain": 0.5, "incorrect": 0.0}


class Mistake(NamedTuple):
    """An incorrect verdict, by where it is: the question itself is nowhere here.

    nr:   its place in the results of the event ``seq``, from 1.
    item: the verdict's ``item_id``, if it is an identifier; "" otherwise.
    at:   when it was recorded, in microseconds since 1970.
    """

    seq: int
    nr: int
    item: str
    error: str
    subject: str
    topic: str
    at: int


class Tally(NamedTuple):
    """What a session's verdicts on one topic come to.

    subject, topic: names; "" where the verdicts name none.
    verdicts: how many items were judged; ``missed`` of them were not correct.
    credit:   what they are worth together, 0 to ``verdicts``.
    errors:   (error type, how often, seqs), by name; of incorrect verdicts alone.
    seqs:     of the newest events that hold them, at most ``EVIDENCE``.
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
    def of(cls, where: Mistake, verdict: Verdict) -> Tally:
        """That of a single verdict."""
        wrong = verdict.verdict == "incorrect" and where.error
        missed, seqs = int(verdict.verdict != "correct"), (where.seq,)
        errors = ((where.error, 1, seqs),) if wrong else ()
        numbers = (1, missed, credit_of(verdict), errors, seqs)
        return cls(where.subject, where.topic, *numbers, where.at, where.at)


@dataclass(frozen=True, slots=True)
class Judged(Kept):
    """What the verdicts of a session show by themselves.

    models: that answered in it.
    taints: why it must not speak for anything, by code; empty if it may.
    """

    session_id: str
    upto_seq: int
    tallies: tuple[Tally, ...] = ()
    mistakes: tuple[Mistake, ...] = ()
    models: tuple[str, ...] = ()
    taints: tuple[str, ...] = ()


class Judge:
    """Folds the events of one session, in order, into what its verdicts show."""

    def __init__(self, session_id: str) -> None:
        self._session_id, self._upto = session_id, 0
        self._odd = False
        self._models: set[str] = set()
        self._last: dict[str, tuple[Mistake, Verdict]] = {}

    def take(self, envelope: Envelope) -> None:
        """Look at the next event."""
        self._upto = envelope.seq
        model = envelope.meta.model
        if model is not None and _ID.fullmatch(model):
            self._models.add(model)
        if isinstance(envelope.payload, Aggregate):
            for nr, verdict in enumerate(envelope.payload.results, 1):
                # What is judged again, as after a reflection, counts as judged last.
                self._last.pop(verdict.item_id, None)
                where = Mistake(
                    seq=envelope.seq,
                    nr=nr,
                    item=verdict.item_id if _ID.fullmatch(verdict.item_id) else "",
                    error=self._name(verdict.error_type),
                    subject=self._name(verdict.subject),
                    topic=self._name(verdict.topic),
                    at=envelope.at,
                )
                self._last[verdict.item_id] = where, verdict

    def _name(self, label: str | None) -> str:
        if not label:
            return ""
        name = name_of(label)
        # Whoever writes sentences into labels may have written the verdicts too.
        self._odd = self._odd or name is None
        return name or ""

    def judged(self, taints: Iterable[str] = ()) -> Judged:
        """What the verdicts up to here show; ``taints`` are other reasons, by code."""
        last = self._last.values()
        wrong = [where for where, one in last if one.verdict == "incorrect"]
        odd = ("odd_label",) if self._odd else ()
        return Judged(
            session_id=self._session_id,
            upto_seq=self._upto,
            tallies=_summed(Tally.of(*one) for one in last),
            mistakes=tuple(sorted(wrong)[-MISTAKES:]),
            models=tuple(sorted(self._models)),
            taints=tuple(sorted({*taints, *odd})),
        )


def credit_of(verdict: Verdict) -> float:
    """What a verdict is worth, 0 to 1: its score, where that fits what it says.

    Nobody says of which scale a score is.  One from 0 to 1 on the verdict's side of a
    half is taken; otherwise correct is 1, uncertain a half and incorrect 0.
    """
    worth, score = _WORTH[verdict.verdict], verdict.score
    if score is None or not 0 <= score <= 1 or (score - 0.5) * (worth - 0.5) < 0:
        return worth
    return score


def newest(seqs: Iterable[int]) -> tuple[int, ...]:
    """The newest of them, as many as are kept as evidence."""
    return tuple(sorted(set(seqs))[-EVIDENCE:])


def _summed(tallies: Iterable[Tally]) -> tuple[Tally, ...]:
    """One for each topic, in order."""
    together: dict[tuple[str, str], list[Tally]] = defaultdict(list)
    for tally in tallies:
        together[tally.subject, tally.topic].append(tally)
    return tuple(_sum(place, some) for place, some in sorted(together.items()))


def _sum(place: tuple[str, str], some: Sequence[Tally]) -> Tally:
    counts, seqs = Counter[str](), defaultdict[str, list[int]](list)
    for error, count, found in chain(*(tally.errors for tally in some)):
        counts[error] += count
        seqs[error] += found
    return Tally(
        *place,
        verdicts=sum(one.verdicts for one in some),
        missed=sum(one.missed for one in some),
        credit=round(sum(one.credit for one in some), 6),
        errors=tuple((e, counts[e], newest(seqs[e])) for e in sorted(counts)),
        seqs=newest(seq for one in some for seq in one.seqs),
        first_at=min(one.first_at for one in some),
        last_at=max(one.last_at for one in some),
    )


Placed = TypeVar("Placed", Mistake, Tally)


@dataclass(frozen=True, slots=True)
class Names:
    """What each label goes by, if not by itself; of topics, by (subject, topic)."""

    subjects: Mapping[str, str]
    topics: Mapping[tuple[str, str], str]
    errors: Mapping[str, str]

    def placed(self, one: Placed) -> Placed:
        """The same, under the subject and topic that its labels go by."""
        subject = self.subjects.get(one.subject, one.subject)
        topic = self.topics.get((subject, one.topic), one.topic)
        return one._replace(subject=subject, topic=topic)


def names(judgeds: Iterable[Judged], taxonomy: Taxonomy) -> Names:
    """Merge labels that are almost alike into those with the most verdicts.

    Verdicts of tainted sessions weigh nothing in it.  Error types go by the taxonomy
    first; topics are merged within their subject.
    """
    tallies = [(t, 0 if one.taints else 1) for one in judgeds for t in one.tallies]
    subjects = _merged((t.subject, t.verdicts * counts) for t, counts in tallies)
    topics: dict[str, Counter[str]] = defaultdict(Counter)
    errors: Counter[str] = Counter()
    for tally, counts in tallies:
        subject = subjects.get(tally.subject, tally.subject)
        topics[subject][tally.topic] += tally.verdicts * counts
        for error, count, _ in tally.errors:
            errors[error] += count * counts
    known = {error: taxonomy.error_of(error) for error in errors}
    new = ((e, n) for e, n in errors.items() if known[e] not in taxonomy.category)
    merged_topics = {
        (subject, topic): head
        for subject, found in topics.items()
        for topic, head in _merged(found.items()).items()
    }
    return Names(subjects, merged_topics, {**known, **_merged(new)})


def _merged(samples: Iterable[tuple[str, int]]) -> dict[str, str]:
    found: Counter[str] = Counter()
    for name, count in samples:
        if name:
            found[name] += count
    return merged(found)


def named(judged: Judged, names: Names, *, without: frozenset[str]) -> Judged:
    """What a session shows, under the names that labels go by.

    without: error types that must not be named any more.
    """

    def error_of(label: str) -> str:
        error = names.errors.get(label, label)
        return "" if error in without else error

    mistakes = (one._replace(error=error_of(one.error)) for one in judged.mistakes)
    tallies = []
    for tally in map(names.placed, judged.tallies):
        told = ((error_of(label), count, seqs) for label, count, seqs in tally.errors)
        errors = tuple(one for one in told if one[0])
        tallies.append(tally._replace(errors=errors))

    placed = tuple(map(names.placed, mistakes))
    return replace(judged, tallies=_summed(tallies), mistakes=placed)
