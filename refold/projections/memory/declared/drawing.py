"""What a profile says, drawn from its items: topics, what to improve, three levels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from refold.projections.memory.declared.claiming import clean
from refold.projections.memory.declared.judged import Judged
from refold.projections.memory.declared.taxonomy import Taxonomy
from refold.projections.memory.item import LASTS, Declarative, Item


class Area(NamedTuple):
    """Something to improve, and the items because of which."""

    name: str
    because: tuple[str, ...]


def of_kind(items: Iterable[Item], kind: Declarative, **content: Any) -> Iterator[Item]:
    """Those of a kind, in whose content these stand."""
    for one in items:
        if one.kind == kind and content.items() <= one.content.items():
            yield one


def standing(items: Sequence[Item], which: str) -> list[Item]:
    """Topics that are weak, or strong, by enough sessions."""
    some = of_kind(items, "topic", standing=which)
    return [one for one in some if one.established]


def topics_of(items: Sequence[Item], which: str) -> tuple[str, ...]:
    """Their names, each once."""
    some = standing(items, which)
    return tuple(dict.fromkeys(str(one.content["topic"]) for one in some))


def areas(
    items: Sequence[Item], sessions: Sequence[Judged], taxonomy: Taxonomy
) -> Iterator[Area]:
    """What to improve: each weak topic, by what helps against the surest error in it.

    Then the common errors that are not in any of them.
    """
    common = [one for one in of_kind(items, "error") if one.established]
    made, done = _errors_in(sessions), set[str]()
    for weak in standing(items, "weak"):
        here = made[str(weak.content["subject"]), str(weak.content["topic"])]
        found = [one for one in common if one.content["error"] in here]
        done |= {one.memory_id for one in found}
        surest = sorted(found, key=lambda one: (-one.confidence, one.memory_id))[:1]
        advice = taxonomy.advice_on(str(surest[0].content["error"]) if surest else "")
        because = (weak.memory_id, *(one.memory_id for one in surest))
        yield Area(f"{advice}_{weak.content['topic']}", because)
    for one in common:
        if one.memory_id not in done:
            error = str(one.content["error"])
            yield Area(f"{taxonomy.advice_on(error)}_{error}", (one.memory_id,))


def _errors_in(sessions: Sequence[Judged]) -> dict[tuple[str, str], set[str]]:
    """By subject and topic, the types of error made in it."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for one in clean(sessions):
        for tally in one.tallies:
            found[tally.subject, tally.topic].update(e for e, _, _ in tally.errors)
    return found


def levels(
    items: Sequence[Item], sessions: Sequence[Judged], now: int
) -> dict[str, dict[str, dict[str, int]]]:
    """Subject, topic, error type: how often, in what has not expired."""
    known = {one.content["error"] for one in of_kind(items, "error")}
    found: dict[str, dict[str, dict[str, int]]] = {}
    for judged in clean(sessions):
        for tally in judged.tallies:
            if tally.last_at + LASTS["topic"] <= now:
                continue
            topic = found.setdefault(tally.subject, {}).setdefault(tally.topic, {})
            for error, count, _ in tally.errors:
                if error in known:
                    topic[error] = topic.get(error, 0) + count
    return found
