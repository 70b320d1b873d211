"""A session stays if it, or anything forked from it, however far, was used in time."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

from hypothesis import given, strategies as st

import refold
from refold.domain.erasure import RetentionPolicy
from refold.store import SessionStore
from refold.testing.event_log import user_inputs

DAY = 24 * 3600 * 1_000_000
POLICY = RetentionPolicy(sessions=timedelta(days=30))


class Planned(NamedTuple):
    """A session: what it is forked from, by number, and the day of its last append."""

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
    """By the definition: who was used, and all that those go on from."""
    kept = set()
    for number, one in enumerate(planned):
        if one.day > 30:
            kept.add(number)
            parent = one.parent
            while parent is not None:
                kept.add(parent)
                parent = planned[parent].parent
    return kept


@given(histories())
def test_exactly_the_needed_sessions_are_kept(planned: list[Planned]) -> None:
    with refold.open("memory://") as opened:
        today, writer = [0], opened.writer
        store = SessionStore(
            opened.log,
            writer.redactor,
            writer.limits,
            clock=lambda: (today[0] + 1) * DAY,
        )
        for number, one in enumerate(planned):
            if one.parent is None:
                store.session(user_id="ada", session_id=f"s{number}").append(
                    user_inputs("x")
                )
            else:
                store.session(user_id="ada", session_id=f"s{one.parent}").fork(
                    1, session_id=f"s{number}"
                )
        for day, number in sorted((one.day, n) for n, one in enumerate(planned)):
            today[0] = day
            store.session(user_id="ada", session_id=f"s{number}").append(
                user_inputs("y")
            )
        today[0] = 60

        plan = store.erasures.retain(POLICY, dry_run=True)
        done = store.erasures.retain(POLICY)

        kept = {f"s{number}" for number in needed(planned)}
        assert {info.session_id for info in store.sessions()} == kept
        assert plan.sessions == done.sessions
        assert len(done.sessions) + len(kept) == len(planned)
        assert plan.kept == done.kept
        assert not [p for _, proved in store.verify() for p in proved.problems]
        for name in kept:
            assert (
                store.session(user_id="ada", session_id=name)
                .context("keep_all")
                .messages
            )
