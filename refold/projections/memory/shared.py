"""What sessions of many users show together, and of nobody in particular.

An item is in it only if so many users, with so many sessions between them, show it
(k-anonymity: L. Sweeney, k-Anonymity: A Model for Protecting Privacy, International
Journal of Uncertainty, Fuzziness and Knowledge-Based Systems 10 (2002), 557-570).  It
names no user, session or event, and its times are whole days.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from types import MappingProxyType
from typing import Final

from refold.domain.errors import InvalidConfiguration
from refold.projections.memory.confidence import lower_bound
from refold.projections.memory.families import untainted
from refold.projections.memory.item import LASTS, Item
from refold.projections.memory.items import items
from refold.projections.memory.scenarios import by_scenario
from refold.projections.memory.shown import Shown

FEWEST: Final = 5
NOBODY: Final = ""
_DAY: Final = 86_400_000_000


def shared(
    by_user: Mapping[str, Sequence[Shown]],
    k: int = FEWEST,
    forgotten: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> list[Item]:
    """The items that at least ``k`` users and ``k`` sessions show, the surest first.

    A user is one witness, with the mean of their sessions, however many these are, and
    none of what they want ``forgotten``.  ``evidence`` is empty, ``user_id`` too.

    Raises InvalidConfiguration for ``k`` below 5.
    """
    if k < FEWEST:
        raise InvalidConfiguration(f"an item of many users needs {FEWEST} at least")
    found: dict[str, list[Item]] = defaultdict(list)
    callers: dict[tuple[str, str], int] = defaultdict(int)
    for user_id in sorted(by_user):
        for item in items(by_user[user_id], user_id):
            if item.sessions and item.memory_id not in forgotten.get(user_id, ()):
                found[item.memory_id].append(item)
        for scenario, tool in _called(by_user[user_id]):
            callers[scenario, tool] += 1
    kept = [
        _together(some, callers)
        for some in found.values()
        if len(some) >= k and sum(item.sessions for item in some) >= k
    ]
    return sorted(kept, key=lambda item: (-item.confidence, item.memory_id))


def _called(shown: Iterable[Shown]) -> set[tuple[str, str]]:
    return {
        (scenario, tool)
        for scenario, some in by_scenario(untainted(shown)).items()
        for one in some
        for _, _, step in one.walked
        for tool in step
    }


def _together(some: Sequence[Item], callers: Mapping[tuple[str, str], int]) -> Item:
    first = some[0]
    rates = [item.success for item in some if item.success is not None]
    sure = lower_bound(sum(rates), len(rates))
    against = lower_bound(len(rates) - sum(rates), len(rates))
    if first.kind == "failure":
        called = callers.get((first.scenario, str(first.content["tool"])), 0)
        sure, against = lower_bound(len(some), max(called, len(some))), 0.0
    updated = max(item.updated_at for item in some) // _DAY * _DAY
    return replace(
        first,
        user_id=NOBODY,
        sessions=sum(item.sessions for item in some),
        tainted_sessions=0,
        success=round(fmean(rates), 6) if rates else None,
        confidence=round(sure, 6),
        against=round(against, 6),
        tainted=False,
        evidence=(),
        models=(),
        cost=None,
        created_at=min(item.created_at for item in some) // _DAY * _DAY,
        updated_at=updated,
        expires_at=updated + LASTS[first.kind],
    )
