"""A session stays if it, or any fork descending from it, was used in time."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

from hypothesis import given, strategies as st

import refold
from refold.domain.erasure import RetentionPolicy
from refold.store import SessionStore
from refold.testing.event_log import user_inputs
from tests.support.nested import problems_of

DAY = 24 * 3600 * 1_000_000
POLICY = RetentionPolicy(sessions=timedelta(days=30))


class Planned(NamedTuple):
    """A session: the number of its parent, and the day of its last append."""

    parent: int | None
    day: int


@st.composite
def histories(draw: st.DrawFn) -> list[Planned]:
    planned: list[Planned] = []
    for number in range(draw(st.integers(1, 7))):
        parents = st.none() | st.integers(0, number - 1) if number else st.none()
        planned.append(Planned(draw(parents), draw(st.integers(1, 60))))
    return planned


def needed(planned: list[Planned]) -> set[int]:
    """Return the used sessions and all their ancestors, by the definition."""
    needed_numbers = set()
    for number, session in enumerate(planned):
        if session.day > 30:
            needed_numbers.add(number)
            parent = session.parent
            while parent is not None:
                needed_numbers.add(parent)
                parent = planned[parent].parent
    return needed_numbers


@given(histories())
def test_exactly_the_needed_sessions_are_kept(planned: list[Planned]) -> None:
    with refold.open("memory://") as opened:
        today = [0]
        writer = opened.writer
        store = SessionStore(
            opened.log,
            writer.redactor,
            writer.limits,
            clock=lambda: (today[0] + 1) * DAY,
        )
        for number, session in enumerate(planned):
            if session.parent is None:
                store.session(user_id="ada", session_id=f"s{number}").append(
                    user_inputs("x")
                )
            else:
                store.session(user_id="ada", session_id=f"s{session.parent}").fork(
                    1, session_id=f"s{number}"
                )
        for day, number in sorted(
            (session.day, number) for number, session in enumerate(planned)
        ):
            today[0] = day
            store.session(user_id="ada", session_id=f"s{number}").append(
                user_inputs("y")
            )
        today[0] = 60

        plan = store.erasures.retain(POLICY, dry_run=True)
        done = store.erasures.retain(POLICY)

        expected = {f"s{number}" for number in needed(planned)}
        assert {info.session_id for info in store.sessions()} == expected
        assert plan.sessions == done.sessions
        assert len(done.sessions) + len(expected) == len(planned)
        assert plan.kept == done.kept
        assert not problems_of(store.verify())
        for name in expected:
            assert (
                store.session(user_id="ada", session_id=name)
                .context("keep_all")
                .messages
            )
