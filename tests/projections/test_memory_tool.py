"""The memory tool gives a model certain facts, and evidence separately."""

from __future__ import annotations

import json
from typing import Any

from refold.projections.memory.advice import Choice
from refold.projections.memory.profile import lines
from refold.projections.memory.tool import Memories, Query, answer
from tests.projections.declared import (
    DAY,
    RIGHT,
    START,
    WRONG,
    judged_session,
    profile_of,
)

NOW = START + 10 * DAY


def memories_at(threshold: float) -> list[dict[str, Any]]:
    """Create memory of a user who is mostly wrong, with the same error each time."""
    sessions = [
        judged_session(RIGHT, WRONG, WRONG, day=day, error_type="sign error")
        for day in range(3)
    ]
    profile = profile_of(*sessions)
    items = {item.memory_id: item for item in profile.items}
    about = [(line, items[line.memory_id]) for line in lines(profile, NOW)]
    how = Choice(tokens=10_000, top=50, threshold=threshold)
    answered = answer(Query(), Memories(profile=about), how, now=NOW)
    memories: list[dict[str, Any]] = json.loads(answered.text)["memories"]
    return memories


def sections(memories: list[dict[str, Any]]) -> set[str]:
    return {memory["content"].partition(":")[0] for memory in memories}


def test_items_below_the_threshold_are_left_out() -> None:
    everything = memories_at(0.0)
    sure = memories_at(0.5)

    assert sections(everything) - sections(sure) == {"Weak topic"}
    assert {"Common error type", "Learning progress"} <= sections(sure)
    assert all(memory["confidence"] >= 0.5 for memory in sure)
    assert memories_at(0.99) == []


def test_evidence_has_its_own_field() -> None:
    for memory in memories_at(0.0):
        assert ";" not in memory["content"]
        assert memory["memory_id"] not in memory["content"]
        assert all(" #" in place for place in memory["evidence"])
