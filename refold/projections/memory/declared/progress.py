"""How far a user has come in each subject: long-run, the newest counting most."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from refold.projections.memory.declared.claiming import (
    Claim,
    Witness,
    about_subject,
    item,
    numbers,
)
from refold.projections.memory.declared.judged import Judged, Tally, newest
from refold.projections.memory.declared.weighing import effective, mean, weights
from refold.projections.memory.item import Item

# What is so much older counts half: of a term's work the last month counts most, and
# no single day decides.
HALF_LIFE: Final = 30 * 86_400_000_000


class _Done(NamedTuple):
    """What a session says of a subject."""

    witness: Witness
    verdicts: int
    rate: float


def progress(user_id: str, judgeds: Sequence[Judged]) -> Iterator[Item]:
    """The level in each subject, 0 to 1: the mean of sessions, exponentially weighed.

    A session's weight is that of its verdicts (``weights``), halved with each 30 days
    that it is older than the newest: exponential smoothing for times that are not
    regular, as in D. J. Wright, Forecasting Data Published at Irregular Time Intervals
    Using an Extension of Holt's Method, Management Science 32 (1986), 499-510.
    """
    done: dict[str, list[_Done]] = defaultdict(list)
    tainted: dict[str, int] = defaultdict(int)
    for one in judgeds:
        by_subject: dict[str, list[Tally]] = defaultdict(list)
        for tally in one.tallies:
            by_subject[tally.subject].append(tally)
        by_subject.pop("", None)
        for subject, tallies in by_subject.items():
            if one.taints:
                tainted[subject] += 1
            else:
                done[subject].append(_done(one, tallies))
    for subject, some in sorted(done.items()):
        yield _item(user_id, subject, some, tainted[subject])


def _done(judged: Judged, tallies: Sequence[Tally]) -> _Done:
    verdicts = sum(one.verdicts for one in tallies)
    witness = Witness(
        judged,
        newest(seq for one in tallies for seq in one.seqs),
        min(one.first_at for one in tallies),
        max(one.last_at for one in tallies),
    )
    return _Done(witness, verdicts, sum(one.credit for one in tallies) / verdicts)


def _item(user_id: str, subject: str, some: Sequence[_Done], tainted: int) -> Item:
    last = max(one.witness.last_at for one in some)
    ages = [(last - one.witness.last_at) / HALF_LIFE for one in some]
    capped = weights([one.verdicts for one in some])
    weighed = [weight * 0.5**age for weight, age in zip(capped, ages, strict=True)]
    level = mean([one.rate for one in some], weighed)
    told = numbers(level=level, verdicts=sum(one.verdicts for one in some))
    claim = Claim("progress", about_subject(subject), told, level, effective(weighed))
    witnesses = [one.witness for one in some]
    return item(user_id, claim, witnesses, tainted=tainted)
