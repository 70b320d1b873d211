"""The memory of a user: what each session shows, kept until the session moves on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple, Unpack

from refold.domain.canonical import canonical
from refold.domain.errors import CorruptEvent, Erased, KeyUnavailable
from refold.domain.ids import MAIN, StreamId
from refold.domain.ports import EventLog, SessionInfo, StoredView
from refold.projections.memory.advice import (
    ChoosingArgs,
    choose,
    chosen_by,
    shortlist,
)
from refold.projections.memory.families import families, untainted
from refold.projections.memory.item import Item
from refold.projections.memory.items import effort, items
from refold.projections.memory.lift import Lift, lifts
from refold.projections.memory.scenarios import GENERAL, Classifier, by_scenario
from refold.projections.memory.section import Advice
from refold.projections.memory.shared import NOBODY, shared
from refold.projections.memory.shown import EXTRACTOR, Shown, watch
from refold.store.kept import ADVICE, JUDGED, SHOWN, drop_kept, keep
from refold.store.paging import read_on
from refold.store.users import wishes

NAME: Final = f"{SHOWN}{EXTRACTOR}"


class Of(NamedTuple):
    """What memory is made of: of all, or of one agent, or of one project.

    classify: names the scenario of sessions that no ``meta.scenario`` tags.
    agent:    only what this agent called, of several in a session.
    project:  only sessions that are tagged with this ``meta.project``.
    """

    classify: Classifier | None = None
    agent: str | None = None
    project: str | None = None


EVERYTHING: Final = Of()


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


def remember(log: EventLog, user_id: str, of: Of = EVERYTHING) -> Memory:
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
    return together_of(user_id, list(watched(log, user_id, of)), wanted.forgotten)


def means_of(shown: Iterable[Shown]) -> dict[str, float]:
    """How sessions ended that are not tainted, by scenario."""
    return {
        name: sum(ended) / len(ended)
        for name, some in by_scenario(untainted(shown)).items()
        if (ended := [one.success for one in some if one.success is not None])
    }


def together_of(
    user_id: str, shown: Sequence[Shown], forgotten: frozenset[str] = frozenset()
) -> Memory:
    """What these sessions show together, without what the user wants to be gone.

    What is gone in one scenario is gone in all: it is the same thing.
    """
    shown = families(shown)
    means, every = means_of(shown), items(shown, user_id)
    gone = {_thing(one) for one in every if one.memory_id in forgotten}
    return Memory(
        user_id,
        len(shown),
        means.get(GENERAL),
        means,
        [one for one in every if _thing(one) not in gone],
        effort(shown),
        lifts(shown),
    )


def _thing(item: Item) -> tuple[str, bytes]:
    return item.kind, canonical(item.content)


def shared_memory(log: EventLog, k: int) -> Memory:
    """What the sessions of all users show, each thing by ``k`` of them or more.

    Who opted out is left out, and a user of whom it cannot be told whether they did.
    """
    users = sorted({info.user_id for info in log.sessions()})
    by_user: dict[str, list[Shown]] = {}
    forgotten: dict[str, frozenset[str]] = {}
    for user_id in users:
        with suppress(CorruptEvent, Erased, KeyUnavailable):
            wanted = wishes(log, user_id)
            if not wanted.consent.memory_opt_out:
                by_user[user_id] = list(watched(log, user_id))
                forgotten[user_id] = wanted.forgotten
    found = shared(by_user, k, forgotten)
    if not found:
        return Memory(NOBODY, 0, None, {}, [], {}, [])
    everything = [one for some in by_user.values() for one in some]
    told = {item.scenario for item in found} | {GENERAL}
    means = {name: at for name, at in means_of(everything).items() if name in told}
    return Memory(NOBODY, len(everything), means.get(GENERAL), means, found, {}, [])


def watched(log: EventLog, user_id: str, of: Of = EVERYTHING) -> Iterator[Shown]:
    """What each session of the user shows, those left out that cannot be read."""
    for info in log.sessions(user_id):
        if info.status == "erased" or info.session_id.startswith("_"):
            continue
        with suppress(CorruptEvent, Erased, KeyUnavailable):
            shown = _of_session(log, info, of)
            if of.project in (None, shown.project):
                # Nothing happened after it was recorded, whatever a clock said.
                yield replace(
                    shown,
                    began_at=min(shown.began_at, info.updated_at),
                    ended_at=min(shown.ended_at, info.updated_at),
                )


def _of_session(log: EventLog, info: SessionInfo, of: Of) -> Shown:
    """What one session shows; of a part, or as another classifies it, nothing is kept.

    Nor is anything of a session that is frozen: what is there stays as it is.
    """
    stream = StreamId(info.user_id, info.session_id, MAIN)
    whole = of.classify is None and of.agent is None
    stored = log.load_view(stream, NAME) if whole else None
    known = stored.through_seq if stored else 0
    if stored and stored.body and known == info.head_seq:
        return Shown.load(stored.body)
    shown = watch(stream.session_id, read_on(log, stream), of.classify, of.agent)
    if whole and info.is_live and shown.upto_seq > known:
        view = StoredView(shown.upto_seq, 0, shown.dump())
        keep(log, stream, NAME, view, replaces=known)
    return shown
