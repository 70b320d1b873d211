"""Types of error that a user makes, how often, and the newest mistakes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from refold.domain.events import JsonObject
from refold.projections.memory.declared.claiming import (
    Claim,
    Witness,
    about_error,
    clean,
    item,
    numbers,
)
from refold.projections.memory.declared.judged import Judged, Mistake
from refold.projections.memory.declared.taxonomy import Taxonomy
from refold.projections.memory.declared.weighing import weights
from refold.projections.memory.item import Item

# Of all sessions, the newest.
RECENT: Final = 20


def errors(
    user_id: str, judgeds: Sequence[Judged], taxonomy: Taxonomy
) -> Iterator[Item]:
    """Each type of error, sure as far as judged sessions show it.

    ``count`` is how often it was made, ``weight`` the same with no session outvoting
    the others.
    """
    shown: dict[str, list[tuple[Witness, int]]] = defaultdict(list)
    tainted: dict[str, int] = defaultdict(int)
    for one in judgeds:
        for error, (witness, count) in _made(one).items():
            if one.taints:
                tainted[error] += 1
            else:
                shown[error].append((witness, count))
    sessions = sum(bool(one.tallies) for one in clean(judgeds))
    for error, found in sorted(shown.items()):
        counts = [count for _, count in found]
        about, category = about_error(error), taxonomy.category_of(error)
        often = numbers(count=sum(counts), weight=sum(weights(counts)))
        rate = len(found) / sessions
        claim = Claim("error", about, {"category": category, **often}, rate, sessions)
        witnesses = [witness for witness, _ in found]
        yield item(user_id, claim, witnesses, tainted=tainted[error])


def _made(judged: Judged) -> Mapping[str, tuple[Witness, int]]:
    """Each error of a session, and how often it was made in it."""
    counts: dict[str, int] = defaultdict(int)
    seqs: dict[str, list[int]] = defaultdict(list)
    times: dict[str, list[int]] = defaultdict(list)
    for tally in judged.tallies:
        for error, count, found in tally.errors:
            counts[error] += count
            seqs[error] += found
            times[error] += (tally.first_at, tally.last_at)
    return {
        error: (
            Witness(judged, tuple(seqs[error]), min(times[error]), max(times[error])),
            count,
        )
        for error, count in counts.items()
    }


def mistakes(user_id: str, judgeds: Sequence[Judged]) -> Iterator[Item]:
    """The newest mistakes, the newest first; none of a session that may not speak."""
    found = [
        (one.at, judged, one) for judged in clean(judgeds) for one in judged.mistakes
    ]
    found.sort(key=lambda it: (-it[0], it[1].session_id, -it[2].seq, -it[2].nr))
    for at, judged, one in found[:RECENT]:
        yield item(
            user_id,
            _claim(judged.session_id, one),
            [Witness(judged, (one.seq,), at, at)],
        )


def _claim(session_id: str, one: Mistake) -> Claim:
    """Where it is, and of which kind: not what was asked, nor what was answered."""
    place: JsonObject = {"session_id": session_id, "seq": one.seq, "nr": one.nr}
    kind: JsonObject = {
        "item_id": one.item,
        "error": one.error,
        "subject": one.subject,
        "topic": one.topic,
    }
    return Claim("mistake", place, kind, 1.0, 1.0)
