"""The memory of a user: what each session shows, kept until the session moves on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple, Unpack

from refold.domain.errors import CorruptEvent, Erased, KeyUnavailable
from refold.domain.ids import MAIN, StreamId
from refold.domain.ports import EventLog, SessionInfo, StoredView
from refold.projections.memory.advice import (
    Advice,
    ChoosingArgs,
    choose,
    chosen_by,
    shortlist,
)
from refold.projections.memory.item import Item
from refold.projections.memory.items import effort, items
from refold.projections.memory.lift import Lift, lifts
from refold.projections.memory.scenarios import GENERAL, Classifier, by_scenario
from refold.projections.memory.shared import NOBODY, shared
from refold.projections.memory.shown import EXTRACTOR, Shown, watch
from refold.store.kept import ADVICE, JUDGED, SHOWN, drop_kept
from refold.store.paging import read_on
from refold.store.users import wishes

NAME: Final = f"{SHOWN}{EXTRACTOR}"


class Memory(NamedTuple):
    """What a user's sessions show together.

    success: the mean of how sessions ended, 0 to 1: what an item is measured by;
             ``means`` are those of each scenario.
    items:   the surest first.
    effort:  by scenario, the medians of tokens, milliseconds and iterations.
    effect:  how sessions ended that were shown an item, against the others.
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
        """The item of that id."""
        return next((one for one in self.items if one.memory_id == memory_id), None)

    def advice(self, *, now: int, **how: Unpack[ChoosingArgs]) -> Advice:
        """What of it may be said to a model, ``now`` in microseconds since 1970.

        Raises InvalidConfiguration.
        """
        choosing = chosen_by(how)
        listed = shortlist(self.items, choosing.scenario, now=now, means=self.means)
        return choose(listed, choosing, now=now)


def remember(
    log: EventLog, user_id: str, *, classify: Classifier | None = None
) -> Memory:
    """Make the memory of a user from the log; what did not change is not read again.

    A session that cannot be read is left out: ``verify`` says what is wrong with it.
    Of a user who opted out of memory there is none, and what was kept of it is dropped.

    Raises Erased, and where it cannot be told what the user allows, CorruptEvent and
    KeyUnavailable.
    """
    wanted = wishes(log, user_id)
    if wanted.consent.memory_opt_out:
        drop_kept(log, user_id, SHOWN, JUDGED, ADVICE)
        return Memory(user_id, 0, None, {}, [], {}, [], opted_out=True)
    shown = [one for _, one in watched(log, user_id, classify)]
    return together_of(user_id, shown, wanted.forgotten)


def means_of(shown: Iterable[Shown]) -> dict[str, float]:
    """How sessions ended, by scenario."""
    return {
        name: sum(ended) / len(ended)
        for name, some in by_scenario(shown).items()
        if (ended := [one.success for one in some if one.success is not None])
    }


def together_of(
    user_id: str, shown: list[Shown], forgotten: frozenset[str] = frozenset()
) -> Memory:
    """What these sessions show together, without what the user wants to be gone."""
    means = means_of(shown)
    found = [one for one in items(shown, user_id) if one.memory_id not in forgotten]
    return Memory(
        user_id,
        len(shown),
        means.get(GENERAL),
        means,
        found,
        effort(shown),
        lifts(shown),
    )


def shared_memory(log: EventLog, k: int) -> Memory:
    """What the sessions of all users show, each thing by ``k`` of them or more.

    Who opted out is left out, and a user of whom it cannot be told whether they did.
    """
    users = sorted({info.user_id for info in log.sessions()})
    by_user: dict[str, list[Shown]] = {}
    for user_id in users:
        with suppress(CorruptEvent, Erased, KeyUnavailable):
            if not wishes(log, user_id).consent.memory_opt_out:
                by_user[user_id] = [one for _, one in watched(log, user_id)]
    found = shared(by_user, k)
    if not found:
        return Memory(NOBODY, 0, None, {}, [], {}, [])
    everything = [one for some in by_user.values() for one in some]
    means = means_of(everything)
    return Memory(NOBODY, len(everything), means.get(GENERAL), means, found, {}, [])


def watched(
    log: EventLog, user_id: str, classify: Classifier | None = None
) -> Iterator[tuple[SessionInfo, Shown]]:
    """What each session of the user shows, those left out that cannot be read."""
    for info in log.sessions(user_id):
        if info.status == "erased" or info.session_id.startswith("_"):
            continue
        with suppress(CorruptEvent, Erased, KeyUnavailable):
            yield info, _of_session(log, info, classify)


def _of_session(log: EventLog, info: SessionInfo, classify: Classifier | None) -> Shown:
    """What one session shows; with a classifier of the caller's nothing is kept.

    Nor is anything of a session that is frozen: what is there stays as it is.
    """
    stream = StreamId(info.user_id, info.session_id, MAIN)
    stored = None if classify else log.load_view(stream, NAME)
    known = stored.through_seq if stored else 0
    if stored and stored.body and known == info.head_seq:
        return Shown.load(stored.body)
    shown = _fold(log, stream, classify)
    if classify is None and info.is_live and shown.upto_seq > known:
        view = StoredView(shown.upto_seq, 0, shown.dump())
        log.save_view(stream, NAME, view, replaces=known)
    return shown


def _fold(log: EventLog, stream: StreamId, classify: Classifier | None) -> Shown:
    return watch(stream.session_id, read_on(log, stream), classify)
