"""Procedural memory of one user or of many, built from the facts of sessions."""

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
from refold.store.memory.consent import read_decisions
from refold.store.memory.extracts import extracts
from refold.store.memory.sessions import (
    EVERYTHING,
    Selection,
    facts_of_session,
    for_each_session,
)
from refold.store.memory.views import (
    ADVICE_PREFIX,
    FACTS_PREFIX,
    VERDICTS_PREFIX,
    drop_views,
)


@repr_without_texts
class Memory(NamedTuple):
    """The procedural memory that is built from a user's sessions.

    sessions: the number of sessions that it is built from.
    success:  the mean outcome of the sessions, 0 to 1, with which items are compared.
    means:    the mean outcome of each scenario.
    items:    the items, the most certain first.
    effort:   the medians of tokens, milliseconds and iterations, by scenario.
    effect:   for each item, the outcomes of the sessions that were shown the item,
              compared with those of the other sessions.
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
        """Return the item with this id, or None."""
        for item in self.items:
            if item.memory_id == memory_id:
                return item
        return None

    def advice(self, *, now: int, **choice_args: Unpack[ChoiceArgs]) -> Advice:
        """Choose the advice that a model may be shown.

        now: microseconds since 1970.

        Raises InvalidConfiguration.
        """
        choice = choice_from(choice_args)
        candidates = shortlist(self.items, choice.scenario, now=now, means=self.means)
        return choose(candidates, choice, now=now)


def build_memory(
    log: EventLog, user_id: str, selection: Selection = EVERYTHING
) -> Memory:
    """Build the memory of a user.  Sessions that did not change are not read again.

    A session that cannot be read is left out; ``verify`` reports it.  The memory of a
    user who opted out is empty, and the stored views of memory are dropped.

    Raises Erased; CorruptEvent and KeyUnavailable if the user's consent cannot be read.
    """
    decisions = read_decisions(log, user_id)
    if decisions.consent.memory_opt_out:
        drop_views(log, user_id, FACTS_PREFIX, VERDICTS_PREFIX, ADVICE_PREFIX)
        return _empty_memory(user_id, opted_out=True)
    sessions = list(facts_of_sessions(log, user_id, selection))
    return memory_from(user_id, sessions, decisions.forgotten)


def means_of(sessions: Iterable[SessionFacts]) -> dict[str, float]:
    """Return the mean outcome of the sessions without taints, by scenario."""
    means: dict[str, float] = {}
    for scenario, members in by_scenario(untainted(sessions)).items():
        outcomes = [
            session.success for session in members if session.success is not None
        ]
        if outcomes:
            means[scenario] = sum(outcomes) / len(outcomes)
    return means


def memory_from(
    user_id: str,
    sessions: Sequence[SessionFacts],
    forgotten: frozenset[str] = frozenset(),
) -> Memory:
    """Build memory from the facts of these sessions.

    forgotten: the ids of items that the user removed.  Items with the same content in
               other scenarios are removed, too.
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
    """Return the kind and the content of an item, which no scenario changes."""
    return item.kind, canonical(item.content)


def _empty_memory(user_id: str, *, opted_out: bool = False) -> Memory:
    """Return a memory without sessions and items."""
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
    """Build the memory of all users who did not opt out.

    k:   the smallest number of users whose sessions must show an item.
    now: microseconds since 1970.

    Raises InvalidConfiguration for ``k`` below 5.
    """
    sessions_of_users: dict[str, list[SessionFacts]] = {}
    forgotten: dict[str, frozenset[str]] = {}
    for user_id, _ in groupby(listed(log.sessions), lambda info: info.user_id):
        with suppress(errors.CorruptEvent, errors.Erased, errors.KeyUnavailable):
            decisions = read_decisions(log, user_id)
            if not decisions.consent.memory_opt_out:
                selection = Selection(now=now)
                sessions_of_users[user_id] = list(
                    facts_of_sessions(log, user_id, selection)
                )
                forgotten[user_id] = decisions.forgotten
    shared_items = shared(sessions_of_users, k, forgotten)
    if not shared_items:
        return _empty_memory(NOBODY)
    sessions: list[SessionFacts] = []
    for members in sessions_of_users.values():
        sessions += members
    # Only scenarios with shared items are named: another name could identify a user.
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


def facts_of_sessions(
    log: EventLog, user_id: str, selection: Selection = EVERYTHING
) -> Iterator[SessionFacts]:
    """Yield the facts of each session of the user.

    If the selection has a time, facts that are kept of erased sessions follow.
    Sessions that cannot be read are left out.
    """
    read = partial(facts_of_session, selection=selection)
    for info, facts in for_each_session(log, user_id, read):
        if selection.project in (None, facts.project):
            # An event is recorded after it happened, so a later time is wrong.
            latest = microseconds(info.updated_at)
            yield replace(
                facts,
                began_at=min(facts.began_at, latest),
                ended_at=min(facts.ended_at, latest),
            )
    if selection.now is not None and selection.agent is None:
        for extract in extracts(log, user_id, "tools", selection.now):
            facts = SessionFacts.load(extract.content)
            if selection.project in (None, facts.project):
                yield replace(facts, gone=extract.gone)
