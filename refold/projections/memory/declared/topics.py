"""Topics in which a user is weak or strong, by a window that slides over sessions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from refold.projections.memory.declared.claiming import (
    Claim,
    Witness,
    about_topic,
    in_time,
    item,
    numbers,
)
from refold.projections.memory.declared.judged import Judged, Tally
from refold.projections.memory.declared.weighing import effective, mean, weights
from refold.projections.memory.item import INDEPENDENT, LASTS, Item

Standing: TypeAlias = Literal["weak", "strong"]

# The newest sessions with the topic, none older than an item of a topic lasts.
WINDOW: Final = 10
# A usual pass mark, and the least that learning for mastery asks for (B. S. Bloom,
# Learning for Mastery, Evaluation Comment 1 (2), 1968: 80 to 90 %).
WEAK_BELOW: Final = 0.6
STRONG_FROM: Final = 0.8


class _Seen(NamedTuple):
    """A session in a window: what it says of the topic."""

    witness: Witness
    verdicts: int
    rate: float


class _Window(NamedTuple):
    """What the sessions of a window say together."""

    standing: Standing | None
    rate: float
    samples: float
    verdicts: int
    shows: tuple[Witness, ...]


def topics(user_id: str, judgeds: Sequence[Judged]) -> Iterator[Item]:
    """Weak and strong topics, and what was said of them before and is not so now."""
    seen: dict[tuple[str, str], list[_Seen]] = defaultdict(list)
    tainted: dict[tuple[str, str], int] = defaultdict(int)
    for one in judgeds:
        for tally in one.tallies:
            place = tally.subject, tally.topic
            if tally.topic and one.taints:
                tainted[place] += 1
            elif tally.topic:
                seen[place].append(_seen(one, tally))
    for place, some in sorted(seen.items()):
        for standing, window, stale in _claimed(_ordered(some)):
            beside = tainted[place]
            yield _item(user_id, place, standing, window, tainted=beside, stale=stale)


def _seen(judged: Judged, tally: Tally) -> _Seen:
    witness = Witness(judged, tally.seqs, tally.first_at, tally.last_at)
    return _Seen(witness, tally.verdicts, tally.credit / tally.verdicts)


def _ordered(some: Sequence[_Seen]) -> list[_Seen]:
    by_session = {one.witness.judged.session_id: one for one in some}
    ordered = in_time(one.witness for one in some)
    return [by_session[witness.judged.session_id] for witness in ordered]


def _claimed(seen: Sequence[_Seen]) -> Iterator[tuple[Standing, _Window, bool]]:
    """What the newest window says, and the last that said otherwise: that is stale.

    Of what was said before only what enough sessions showed is kept.
    """
    now = _window(seen)
    if now.standing is not None:
        yield now.standing, now, False
    said: set[Standing | None] = {now.standing}
    oldest = seen[-1].witness.last_at - LASTS["topic"]
    for end in range(len(seen) - 1, 0, -1):
        if seen[end - 1].witness.last_at <= oldest:
            return  # what was said then has expired
        before = _window(seen[max(0, end - WINDOW) : end])
        standing = before.standing
        if standing is None or standing in said or len(before.shows) < INDEPENDENT:
            continue
        said.add(standing)
        yield standing, before, True


def _window(seen: Sequence[_Seen]) -> _Window:
    """The window that ends with the last of these sessions."""
    oldest = seen[-1].witness.last_at - LASTS["topic"]
    some = [one for one in seen[-WINDOW:] if one.witness.last_at > oldest]
    weighed = weights([one.verdicts for one in some])
    rate = mean([one.rate for one in some], weighed)
    standing = _standing(rate)
    shows = tuple(one.witness for one in some if _standing(one.rate) == standing)
    verdicts = sum(one.verdicts for one in some)
    return _Window(standing, rate, effective(weighed), verdicts, shows)


def _standing(rate: float) -> Standing | None:
    rate = round(rate, 6)
    if rate < WEAK_BELOW:
        return "weak"
    return "strong" if rate >= STRONG_FROM else None


def _item(
    user_id: str,
    place: tuple[str, str],
    standing: Standing,
    window: _Window,
    *,
    tainted: int,
    stale: bool,
) -> Item:
    claim = Claim(
        "topic",
        about_topic(*place, standing),
        numbers(rate=window.rate, verdicts=window.verdicts),
        window.rate if standing == "strong" else 1 - window.rate,
        window.samples,
    )
    return item(user_id, claim, window.shows, tainted=tainted, stale=stale)
