"""Lines about a user cite evidence, certainty, and reasons for omissions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from refold.projections.memory.profile import MOST, Stated, lines, why_not
from refold.projections.memory.verdicts import SessionVerdicts
from tests.projections.declared import (
    DAY,
    RIGHT,
    START,
    WRONG,
    judged_session,
    profile_of,
)

SIGN: dict[str, Any] = {"error_type": "sign error"}


def daily(
    *results: str, days: Sequence[float] = (0, 1, 2), **fields: Any
) -> list[SessionVerdicts]:
    return [judged_session(*results, day=day, **fields) for day in days]


def test_an_area_cites_all_its_evidence() -> None:
    derived = profile_of(*daily(WRONG, **SIGN))
    stated_lines = lines(derived, START + 10 * DAY)
    by_section = {line.text.partition(":")[0]: line for line in stated_lines}
    weak = by_section["- Weak topic"]
    error = by_section["- Common error type"]

    area = by_section["- Improvement area"]

    evidence = [line.text.partition("; ")[2] for line in (weak, error)]
    assert area.text == f"- Improvement area: practice_fractions; {', '.join(evidence)}"
    assert {*area.cited} == {*weak.cited, *error.cited} == {"s-0000.0", "s-0001.0"}


def test_a_line_is_as_certain_as_its_item() -> None:
    stated = {"large_print": Stated(True, 4, START)}
    derived = profile_of(*daily(RIGHT, WRONG, WRONG, **SIGN), preferences=stated)
    items = {item.memory_id: item for item in derived.items}

    stated_lines = lines(derived, START + 10 * DAY)

    sure: dict[str, float] = {}
    for line in stated_lines:
        section = line.text.partition(":")[0].removeprefix("- ")
        sure[section] = line.confidence
        if section not in ("Improvement area", "Recent mistake"):
            assert line.confidence == items[line.memory_id].confidence
    assert sure["Preference"] == 1.0
    assert sure["Weak topic"] < sure["Common error type"]
    assert sure["Improvement area"] == sure["Common error type"]
    assert sure["Recent mistake"] == sure["Common error type"]


def test_an_unstated_item_has_a_reason() -> None:
    stated = {f"key_{nr}": Stated(nr, 4, START) for nr in range(MOST + 1)}
    steered = judged_session(WRONG, day=4, topic="sets", taints=("marked",))
    few = judged_session(WRONG, day=5, topic="angles", error_type="copy error")
    derived = profile_of(*daily(WRONG, **SIGN), steered, few, preferences=stated)

    def unsaid(**content: Any) -> list[str]:
        (item,) = (
            candidate
            for candidate in derived.items
            if content.items() <= candidate.content.items()
        )
        return why_not(derived, item, now=START + 10 * DAY, threshold=0.5)

    assert unsaid(topic="fractions", standing="weak") == []
    assert unsaid(error="copy_error", count=1) == ["too few sessions show it"]
    assert unsaid(topic="angles", standing="weak") == ["too few sessions show it"]
    assert unsaid(level=0.0) == []  # a low value does not mean uncertainty
    assert unsaid(topic="angles", nr=1) == [
        "no example of an error or topic that a model is shown"
    ]
    preferred = [unsaid(key=f"key_{nr}") for nr in range(MOST + 1)]
    assert preferred.count([]) == MOST
    assert [f"behind the first {MOST} of its kind"] in preferred


def test_tainted_and_stale_items_are_marked() -> None:
    steered = daily(WRONG, days=(3, 4, 5), taints=("marked",), **SIGN)
    worse = daily(WRONG, topic="sets", days=(0, 1, 2))
    better = daily(RIGHT, topic="sets", days=range(20, 30))
    derived = profile_of(
        *steered, judged_session(WRONG, day=6), *worse, *better, day=30
    )

    reasons = {
        reason
        for item in derived.items
        if item.content.get("standing") == "weak"
        for reason in why_not(derived, item, now=START + 30 * DAY, threshold=0.5)
    }

    assert reasons == {
        "tainted: 3 sessions cannot count for it",
        "stale: newer sessions say the contrary",
    }
