"""A profile is what its sessions show: in any order, whichever came twice, or went."""

from __future__ import annotations

import json
import random
from typing import Any

from hypothesis import given, strategies as st

from refold.domain.canonical import canonical
from refold.projections.memory.items import INDEPENDENT
from refold.projections.memory.profile import Stated, lines, profile
from refold.projections.memory.verdicts import SessionVerdicts
from tests.projections.declared import DAY, START, events_of, judge, verdicts

NOW = START + 100 * DAY
RESULTS = st.lists(
    st.sampled_from(["correct", "incorrect", "uncertain"]), min_size=1, max_size=4
)
WHAT = st.fixed_dictionaries(
    {
        "subject": st.sampled_from([None, "math", "Maths", "physics"]),
        "topic": st.sampled_from([None, "fraction", "fractions", "Angles", "sets"]),
        "error_type": st.sampled_from(
            [None, "sign error", "符号错误", "slip", "slips of pen", "a: sentence"]
        ),
    }
)
STATED = st.dictionaries(
    st.sampled_from(["language", "large_print"]),
    st.builds(Stated, st.sampled_from([True, "zh", 3]), st.just(2), st.just(NOW)),
)


@st.composite
def sessions(draw: st.DrawFn) -> list[SessionVerdicts]:
    """Some sessions of different names, on some days."""
    days = draw(st.lists(st.integers(0, 99), max_size=7))
    return [one_session(draw, f"s-{nr}", day) for nr, day in enumerate(days)]


def one_session(draw: st.DrawFn, name: str, day: int) -> SessionVerdicts:
    drawn = draw(st.lists(st.tuples(RESULTS, WHAT), min_size=1, max_size=3))
    first = 1
    events = []
    for results, fields in drawn:
        events.append(verdicts(*results, first=first, **fields))
        first += draw(st.integers(0, len(results)))  # some items get another verdict
    taints = draw(st.sampled_from([(), (), ("untrusted_result",)]))
    return judge(name, events_of(*events, day=day, name=name), taints)


def written(sessions: list[SessionVerdicts], stated: dict[str, Stated]) -> bytes:
    return canonical(profile("ada", sessions, stated, now=NOW).to_json())


@given(sessions(), STATED, st.randoms(use_true_random=False))
def test_the_order_of_sessions_does_not_matter(
    sessions: list[SessionVerdicts], stated: dict[str, Stated], shuffling: random.Random
) -> None:
    other = [*sessions, *sessions[:2]]
    shuffling.shuffle(other)

    assert written(other, stated) == written(sessions, stated)


@given(sessions())
def test_a_stored_profile_stays_the_same(sessions: list[SessionVerdicts]) -> None:
    stored = [
        SessionVerdicts.load(json.loads(json.dumps(session.dump())))
        for session in sessions
    ]

    assert stored == sessions


@given(sessions(), st.data())
def test_removing_a_session_removes_its_effect(
    sessions: list[SessionVerdicts], data: st.DataObject
) -> None:
    if not sessions:
        return
    gone = data.draw(st.sampled_from(sessions))

    left = profile("ada", [session for session in sessions if session != gone], now=NOW)

    written = canonical(left.to_json()).decode()
    assert f'"{gone.session_id}"' not in written


@given(sessions())
def test_a_tainted_session_changes_no_number(sessions: list[SessionVerdicts]) -> None:
    clean = [session for session in sessions if not session.taints]

    with_, without = (
        profile("ada", sessions_used, now=NOW) for sessions_used in (sessions, clean)
    )

    numbers: Any = [
        (p.error_frequency, p.learning_progress, p.levels, p.recent_mistakes)
        for p in (with_, without)
    ]
    assert numbers[0] == numbers[1]
    assert {item.memory_id for item in with_.items} == {
        item.memory_id for item in without.items
    }


@given(sessions(), STATED)
def test_a_profile_claims_no_more_than_its_evidence(
    sessions: list[SessionVerdicts], stated: dict[str, Stated]
) -> None:
    derived = profile("ada", sessions, stated, now=NOW)

    assert len({item.memory_id for item in derived.items}) == len(derived.items)
    for item in derived.items:
        assert 0 <= item.confidence <= 1
        assert 0 <= item.against <= 1
        assert item.created_at <= item.updated_at < item.expires_at
        assert not (item.established and item.sessions < INDEPENDENT)
    assert (
        not set(derived.weak_topics) & set(derived.strong_topics)
        or len(
            {item.content["subject"] for item in derived.items if item.kind == "topic"}
        )
        > 1
    )
    assert all(0 <= level <= 1 for level in derived.learning_progress.values())
    assert {line.memory_id for line in lines(derived, NOW)} <= {
        item.memory_id for item in derived.items
    }
