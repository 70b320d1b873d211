"""What one session's verdicts show of the user: by topic, and its newest mistakes."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from refold.domain.envelope import Envelope
from refold.domain.events import Aggregate, JsonObject, Verdict
from refold.projections.memory.declared.labels import name_of
from refold.projections.memory.items import EVIDENCE

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


@dataclass(frozen=True, slots=True)
class Tally:
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


@dataclass(frozen=True, slots=True)
class Judged:
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

    def dump(self) -> JsonObject:
        """All of it as JSON."""
        tallies: list[Any] = [
            [getattr(one, name) for name in one.__slots__] for one in self.tallies
        ]
        return {
            "session_id": self.session_id,
            "upto_seq": self.upto_seq,
            "tallies": tallies,
            "mistakes": [list(one) for one in self.mistakes],
            "models": list(self.models),
            "taints": list(self.taints),
        }

    @classmethod
    def load(cls, dumped: Mapping[str, Any]) -> Judged:
        """What ``dump`` wrote, also after it was JSON."""
        return cls(
            dumped["session_id"],
            dumped["upto_seq"],
            tuple(_tally(*one) for one in dumped["tallies"]),
            tuple(Mistake(*one) for one in dumped["mistakes"]),
            tuple(dumped["models"]),
            tuple(dumped["taints"]),
        )


def _tally(
    subject: str, topic: str, verdicts: int, missed: int, credit: float, *rest: Any
) -> Tally:
    errors, seqs, first, last = rest
    found = tuple((error, count, tuple(where)) for error, count, where in errors)
    return Tally(
        subject, topic, verdicts, missed, credit, found, tuple(seqs), first, last
    )


class _One(NamedTuple):
    """A verdict, with labels that are names."""

    mistake: Mistake
    verdict: str
    credit: float


class Judging:
    """Folds the events of one session, in order, into what its verdicts show."""

    def __init__(self, session_id: str) -> None:
        self._session_id, self._upto = session_id, 0
        self._odd = False
        self._models: set[str] = set()
        self._last: dict[str, _One] = {}

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
                self._last[verdict.item_id] = self._one(envelope, nr, verdict)

    def _one(self, envelope: Envelope, nr: int, verdict: Verdict) -> _One:
        mistake = Mistake(
            seq=envelope.seq,
            nr=nr,
            item=verdict.item_id if _ID.fullmatch(verdict.item_id) else "",
            error=self._name(verdict.error_type),
            subject=self._name(verdict.subject),
            topic=self._name(verdict.topic),
            at=envelope.at,
        )
        return _One(mistake, verdict.verdict, credit_of(verdict))

    def _name(self, label: str | None) -> str:
        if not label:
            return ""
        name = name_of(label)
        # Whoever writes sentences into labels may have written the verdicts too.
        self._odd = self._odd or name is None
        return name or ""

    def judged(self, taints: Iterable[str] = ()) -> Judged:
        """What the verdicts up to here show.

        taints: other reasons why the session must not speak, by code.
        """
        by_topic: dict[tuple[str, str], list[_One]] = defaultdict(list)
        for one in self._last.values():
            by_topic[one.mistake.subject, one.mistake.topic].append(one)
        wrong = [o.mistake for o in self._last.values() if o.verdict == "incorrect"]
        odd = ("odd_label",) if self._odd else ()
        return Judged(
            session_id=self._session_id,
            upto_seq=self._upto,
            tallies=tuple(_tallied(*item) for item in sorted(by_topic.items())),
            mistakes=tuple(sorted(wrong)[-MISTAKES:]),
            models=tuple(sorted(self._models)),
            taints=tuple(sorted({*taints, *odd})),
        )


def judge(
    session_id: str, events: Iterable[Envelope], taints: Iterable[str] = ()
) -> Judged:
    """What the verdicts in these events of a session show."""
    judging = Judging(session_id)
    for envelope in events:
        judging.take(envelope)
    return judging.judged(taints)


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


def _tallied(key: tuple[str, str], some: list[_One]) -> Tally:
    seqs: dict[str, list[int]] = defaultdict(list)
    for one in some:
        if one.verdict == "incorrect" and one.mistake.error:
            seqs[one.mistake.error].append(one.mistake.seq)
    counts = Counter({error: len(found) for error, found in seqs.items()})
    return Tally(
        *key,
        verdicts=len(some),
        missed=sum(one.verdict != "correct" for one in some),
        credit=round(sum(one.credit for one in some), 6),
        errors=tuple((e, counts[e], newest(seqs[e])) for e in sorted(seqs)),
        seqs=newest(one.mistake.seq for one in some),
        first_at=min(one.mistake.at for one in some),
        last_at=max(one.mistake.at for one in some),
    )
