"""Items of declarative memory, made of the sessions that show them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from refold.domain.events import JsonObject
from refold.projections.memory.confidence import lower_bound
from refold.projections.memory.declared.judged import EXTRACTOR, Judged, newest
from refold.projections.memory.item import (
    EVIDENCE,
    INDEPENDENT,
    LASTS,
    Declarative,
    Evidence,
    Item,
    memory_id,
)
from refold.projections.memory.scenarios import GENERAL


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
