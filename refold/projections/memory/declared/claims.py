"""Items of declarative memory, made of the sessions that show them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypeVar

from refold.domain.events import JsonObject
from refold.projections.memory.declared.judged import EXTRACTOR, Judged, Tally, newest
from refold.projections.memory.declared.labels import Taxonomy, merged
from refold.projections.memory.items import (
    EVIDENCE,
    INDEPENDENT,
    LASTS,
    Declarative,
    Evidence,
    Item,
    lower_bound,
    memory_id,
)
from refold.projections.memory.sessions import GENERAL


class Witness(NamedTuple):
    """A session that shows something, with what of it does."""

    judged: Judged
    seqs: tuple[int, ...]
    first_at: int
    last_at: int


@dataclass(frozen=True, slots=True)
class Claim:
    """What an item says, and how surely.

    about:   what it is about, which makes its id: names.
    told:    what is known of that, which may change: numbers.
    rate:    how far it holds, 0 to 1, over ``samples`` sessions' worth.
    """

    kind: Declarative
    about: JsonObject
    told: JsonObject
    rate: float
    samples: float


def item(
    user_id: str,
    claim: Claim,
    shows: Iterable[Witness],
    *,
    tainted: int = 0,
    stale: bool = False,
) -> Item:
    """The item of a claim.  ``shows`` are sessions that may speak, at least one.

    tainted: how many others show it too, and must not speak.
    """
    shows = sorted(shows, key=lambda one: (one.last_at, one.judged.session_id))
    last = shows[-1].last_at
    sure = lower_bound(claim.rate * claim.samples, claim.samples)
    against = lower_bound((1 - claim.rate) * claim.samples, claim.samples)
    return Item(
        memory_id=id_of(claim.kind, claim.about),
        user_id=user_id,
        kind=claim.kind,
        scenario=GENERAL,
        content={**claim.about, **claim.told},
        sessions=len(shows),
        tainted_sessions=tainted,
        success=None,
        confidence=round(sure, 6),
        against=round(against, 6),
        tainted=len(shows) < INDEPENDENT <= len(shows) + tainted,
        evidence=tuple(
            Evidence(one.judged.session_id, newest(one.seqs))
            for one in shows[-EVIDENCE:]
        ),
        created_at=min(one.first_at for one in shows),
        updated_at=last,
        expires_at=last + LASTS[claim.kind],
        models=models(one.judged for one in shows),
        stale=stale,
        extractor=EXTRACTOR,
    )


def id_of(kind: Declarative, about: JsonObject) -> str:
    """The id of the item that is about this, whatever the numbers in it."""
    return memory_id(kind, GENERAL, about)


def models(judgeds: Iterable[Judged]) -> tuple[str, ...]:
    """Those that answered in these sessions."""
    return tuple(sorted({model for one in judgeds for model in one.models}))


def about_error(error: str) -> JsonObject:
    return {"error": error}


def about_topic(subject: str, topic: str, standing: str) -> JsonObject:
    return {"subject": subject, "topic": topic, "standing": standing}


def about_subject(subject: str) -> JsonObject:
    return {"subject": subject}


def clean(judgeds: Iterable[Judged]) -> list[Judged]:
    """Those that may speak."""
    return [one for one in judgeds if not one.taints]


def numbers(**told: float) -> JsonObject:
    """Numbers of an item, short enough to be read and to be the same anywhere."""
    rounded: dict[str, Any] = {
        name: round(value, 4) if isinstance(value, float) else value
        for name, value in told.items()
    }
    return rounded


def in_time(shows: Iterable[Witness]) -> Sequence[Witness]:
    """The oldest first; of one moment, by name."""
    return sorted(shows, key=lambda one: (one.last_at, one.judged.session_id))


# A session weighs at most as much as two others: of three, which are the fewest that
# may say anything, none then has more than half of the weight.
_OTHERS: Final = 2


def weights(counts: Sequence[int]) -> list[float]:
    """What each session weighs, given how many verdicts of each there are.

    As many as it has, but at most twice the median of the other sessions'; one session
    by itself weighs 1.
    """
    if len(counts) == 1:
        return [1.0]
    ordered = sorted(counts)
    places = {count: place for place, count in enumerate(ordered)}
    return [
        min(float(count), _OTHERS * _median_without(ordered, places[count]))
        for count in counts
    ]


def _median_without(ordered: Sequence[int], place: int) -> float:
    """The median of all but the one at ``place``."""

    def rest(index: int) -> int:
        return ordered[index if index < place else index + 1]

    left = len(ordered) - 1
    return (rest((left - 1) // 2) + rest(left // 2)) / 2


def mean(values: Sequence[float], weighed: Sequence[float]) -> float:
    """The weighted mean; 0 of nothing."""
    whole = sum(weighed)
    pairs = zip(values, weighed, strict=True)
    return sum(value * weight for value, weight in pairs) / whole if whole else 0.0


def effective(weighed: Sequence[float]) -> float:
    """How many sessions of equal weight would say it as surely; 0 of nothing.

    L. Kish, Survey Sampling (Wiley, 1965): the square of the sum by the sum of squares.
    """
    squares = sum(weight * weight for weight in weighed)
    return sum(weighed) ** 2 / squares if squares else 0.0


@dataclass(frozen=True, slots=True)
class Names:
    """What each label goes by; of topics, by (subject, topic).

    One that is not here goes by itself.  The labels of a name are all that go by it.
    """

    subjects: Mapping[str, str]
    topics: Mapping[tuple[str, str], str]
    errors: Mapping[str, str]
    labels_of_subject: Mapping[str, Sequence[str]]
    labels_of_topic: Mapping[tuple[str, str], Sequence[str]]
    labels_of_error: Mapping[str, Sequence[str]]

    @classmethod
    def of(
        cls,
        subjects: Mapping[str, str],
        topics: Mapping[tuple[str, str], str],
        errors: Mapping[str, str],
    ) -> Names:
        """Names with the labels of each."""
        of_topic = ((t, (s, head)) for (s, t), head in topics.items())
        return cls(
            subjects,
            topics,
            errors,
            _labels(subjects.items()),
            _labels(of_topic),
            _labels(errors.items()),
        )

    def place(self, subject: str, topic: str) -> tuple[str, str]:
        """The subject and topic that these labels go by."""
        subject = self.subjects.get(subject, subject)
        return subject, self.topics.get((subject, topic), topic)

    def error(self, error: str) -> str:
        """The error type that this label goes by."""
        return self.errors.get(error, error)


H = TypeVar("H")


def _labels(pairs: Iterable[tuple[str, H]]) -> dict[H, list[str]]:
    found: dict[H, list[str]] = defaultdict(list)
    for label, head in pairs:
        found[head].append(label)
    return dict(found)


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
    return Names.of(
        subjects,
        {
            (subject, topic): head
            for subject, found in topics.items()
            for topic, head in _merged(found.items()).items()
        },
        _errors(errors, taxonomy),
    )


def _merged(samples: Iterable[tuple[str, int]]) -> dict[str, str]:
    found: Counter[str] = Counter()
    for name, count in samples:
        if name:
            found[name] += count
    return merged(found)


def _errors(samples: Counter[str], taxonomy: Taxonomy) -> dict[str, str]:
    known = {error: taxonomy.error_of(error) for error in samples}
    new = (
        (e, count) for e, count in samples.items() if known[e] not in taxonomy.category
    )
    return {**known, **_merged(new)}


def named(judged: Judged, names: Names, *, without: frozenset[str]) -> Judged:
    """What a session shows, under the names that labels go by.

    without: error types that must not be named any more.
    """

    def error_of(label: str) -> str:
        error = names.error(label)
        return "" if error in without else error

    together: dict[tuple[str, str], list[Tally]] = defaultdict(list)
    for tally in judged.tallies:
        together[names.place(tally.subject, tally.topic)].append(tally)
    mistakes = []
    for one in judged.mistakes:
        subject, topic = names.place(one.subject, one.topic)
        mistakes.append(
            one._replace(error=error_of(one.error), subject=subject, topic=topic)
        )
    tallies = tuple(_sum(*item, error_of) for item in sorted(together.items()))
    return replace(judged, tallies=tallies, mistakes=tuple(mistakes))


def _sum(
    place: tuple[str, str], some: Sequence[Tally], error_of: Callable[[str], str]
) -> Tally:
    """Of tallies whose topics go by one name, and error types too."""
    counts: Counter[str] = Counter()
    seqs: dict[str, list[int]] = defaultdict(list)
    for tally in some:
        for label, count, found in tally.errors:
            if error := error_of(label):
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
