"""One name for each subject, topic and error type, over all sessions of a user."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from refold.projections.memory.declared.judged import Judged, Tally, newest
from refold.projections.memory.declared.labels import merged
from refold.projections.memory.declared.taxonomy import Taxonomy


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
