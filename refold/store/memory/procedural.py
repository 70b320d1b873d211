"""Procedural memory of a user, and of many users, built from what sessions show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import NamedTuple, Unpack

from refold.domain import errors
from refold.domain.canonical import canonical
from refold.domain.envelope import microseconds
from refold.domain.model import repr_without_texts
from refold.domain.ports import EventLog, listed
from refold.projections.context.budget import Advice
from refold.projections.memory.advice import ChoiceArgs, choice_from, choose, shortlist
from refold.projections.memory.items import (
    NOBODY,
    Item,
    Lift,
    effort,
    items,
    lifts,
    shared,
)
from refold.projections.memory.sessions import (
    GENERAL,
    SessionFacts,
    by_scenario,
    untainted,
    with_families,
)
from refold.store.memory.consent import wishes
from refold.store.memory.extracts import extracts
from refold.store.memory.sessions import (
    EVERYTHING,
    Selection,
    of_each_session,
    shown_in,
)
from refold.store.memory.views import ADVICE, JUDGED, SHOWN, drop_views


@repr_without_texts
class Memory(NamedTuple):
    """The procedural memory that a user's sessions show together.

    sessions: how many sessions it is built from.
    success:  the mean outcome of the sessions, 0 to 1, which items are measured by.
    means:    the mean outcome of each scenario.
    items:    the most certain first.
    effort:   by scenario, the medians of tokens, milliseconds and iterations.
    effect:   how sessions ended that were shown an item, against the others.
    """

    user_id: str
    sessions: int
    success: float | None
    means: dict[str, float]
    items: list[Item]
    effort: dict[str, dict[str, float]]
    effect: list[Lift]
    opted_out: bool = False

    def named(self, memory_id: str) -> Item | None:
        """The item with this id, or None."""
        return next((item for item in self.items if item.memory_id == memory_id), None)

    def advice(self, *, now: int, **how: Unpack[ChoiceArgs]) -> Advice:
        """Choose the advice that a model may be shown.

        now: microseconds since 1970.

        Raises InvalidConfiguration.
        """
        choice = choice_from(how)
        candidates = shortlist(self.items, choice.scenario, now=now, means=self.means)
        return choose(candidates, choice, now=now)


def remember(log: EventLog, user_id: str, selection: Selection = EVERYTHING) -> Memory:
    """Build the memory of a user; sessions that did not change are not read again.

    A session that cannot be read is left out: ``verify`` reports it.  The memory of a
    user who opted out is empty, and its stored views are dropped.

    Raises Erased; CorruptEvent and KeyUnavailable if the user's consent cannot be read.
    """
    wanted = wishes(log, user_id)
    if wanted.consent.memory_opt_out:
        drop_views(log, user_id, SHOWN, JUDGED, ADVICE)
        return _empty_memory(user_id, opted_out=True)
    sessions = list(watched(log, user_id, selection))
    return memory_of(user_id, sessions, wanted.forgotten)


def means_of(sessions: Iterable[SessionFacts]) -> dict[str, float]:
    """The mean outcome of the sessions without taints, by scenario."""
    means: dict[str, float] = {}
    for scenario, members in by_scenario(untainted(sessions)).items():
        outcomes = [
            session.success for session in members if session.success is not None
        ]
        if outcomes:
            means[scenario] = sum(outcomes) / len(outcomes)
    return means


def memory_of(
    user_id: str,
    sessions: Sequence[SessionFacts],
    forgotten: frozenset[str] = frozenset(),
) -> Memory:
    """Build the memory that these sessions show together.

    forgotten: ids of items that the user removed.  An item with the same content in
               another scenario is removed with them.
    """
    sessions = with_families(sessions)
    means = means_of(sessions)
    every_item = items(sessions, user_id)
    removed = {_content(item) for item in every_item if item.memory_id in forgotten}
    return Memory(
        user_id=user_id,
        sessions=len(sessions),
        success=means.get(GENERAL),
        means=means,
        items=[item for item in every_item if _content(item) not in removed],
        effort=effort(sessions),
        effect=lifts(sessions),
    )


def _content(item: Item) -> tuple[str, bytes]:
    """What an item states, whatever its scenario."""
    return item.kind, canonical(item.content)


def _empty_memory(user_id: str, *, opted_out: bool = False) -> Memory:
    return Memory(
        user_id=user_id,
        sessions=0,
        success=None,
        means={},
        items=[],
        effort={},
        effect=[],
        opted_out=opted_out,
    )


def shared_memory(log: EventLog, k: int, now: int) -> Memory:
    """Build the memory of all users who did not opt out; each item is of ``k`` users.

    now: microseconds since 1970.

    Raises InvalidConfiguration for ``k`` below 5.
    """
    sessions_of_users: dict[str, list[SessionFacts]] = {}
    forgotten: dict[str, frozenset[str]] = {}
    for user_id, _ in groupby(listed(log.sessions), lambda info: info.user_id):
        with suppress(errors.CorruptEvent, errors.Erased, errors.KeyUnavailable):
            wanted = wishes(log, user_id)
            if not wanted.consent.memory_opt_out:
                selection = Selection(now=now)
                sessions_of_users[user_id] = list(watched(log, user_id, selection))
                forgotten[user_id] = wanted.forgotten
    shared_items = shared(sessions_of_users, k, forgotten)
    if not shared_items:
        return _empty_memory(NOBODY)
    sessions: list[SessionFacts] = []
    for members in sessions_of_users.values():
        sessions += members
    # The name of any other scenario could identify a user.
    scenarios = {item.scenario for item in shared_items} | {GENERAL}
    means = {
        scenario: mean
        for scenario, mean in means_of(sessions).items()
        if scenario in scenarios
    }
    return Memory(
        user_id=NOBODY,
        sessions=len(sessions),
        success=means.get(GENERAL),
        means=means,
        items=shared_items,
        effort={},
        effect=[],
    )


def watched(
    log: EventLog, user_id: str, selection: Selection = EVERYTHING
) -> Iterator[SessionFacts]:
    """Yield what each session of the user shows, and what extracts keep of erased ones.

    Sessions that cannot be read are left out.
    """
    read = partial(shown_in, selection=selection)
    for info, shown in of_each_session(log, user_id, read):
        if selection.project in (None, shown.project):
            # Nothing happens after it is recorded: a later time is of a wrong clock.
            latest = microseconds(info.updated_at)
            yield replace(
                shown,
                began_at=min(shown.began_at, latest),
                ended_at=min(shown.ended_at, latest),
            )
    if selection.now is not None and selection.agent is None:
        for extract in extracts(log, user_id, "tools", selection.now):
            shown = SessionFacts.load(extract.content)
            if selection.project in (None, shown.project):
                yield replace(shown, gone=extract.gone)
