"""The memory of a user: what each session shows, kept until the session moves on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from refold.domain.errors import CorruptEvent, Erased, KeyUnavailable
from refold.domain.ids import MAIN, StreamId
from refold.domain.ports import PAGE, EventLog, StoredView
from refold.projections.memory.items import Item, effort, items
from refold.projections.memory.scenarios import GENERAL, Classifier
from refold.projections.memory.shown import EXTRACTOR, Shown, Watching

# Beside the views of strategies, sealed and dropped like them.
NAME = f"memory-{EXTRACTOR}"


class Memory(NamedTuple):
    """What a user's sessions show together.

    success: the mean of how sessions ended, 0 to 1: what an item is measured by.
    items:   the surest first.
    effort:  by scenario, the medians of tokens, milliseconds and iterations.
    """

    user_id: str
    sessions: int
    success: float | None
    items: list[Item]
    effort: dict[str, dict[str, float]]

    def named(self, memory_id: str) -> Item | None:
        """The item of that id."""
        return next((one for one in self.items if one.memory_id == memory_id), None)


def remember(
    log: EventLog, user_id: str, *, classify: Classifier | None, together: bool
) -> Memory:
    """Make the memory of a user from the log; what did not change is not read again.

    A session that cannot be read is left out: ``verify`` says what is wrong with it.
    """
    shown = list(_shown(log, user_id, classify))
    if together:
        shown = [replace(one, scenario=GENERAL) for one in shown]
    ended = [one.success for one in shown if one.success is not None]
    success = sum(ended) / len(ended) if ended else None
    return Memory(user_id, len(shown), success, items(shown), effort(shown))


def _shown(log: EventLog, user_id: str, classify: Classifier | None) -> Iterator[Shown]:
    for info in log.sessions(user_id):
        if info.status == "erased" or info.session_id.startswith("_"):
            continue
        with suppress(CorruptEvent, Erased, KeyUnavailable):
            yield _of_session(log, StreamId(user_id, info.session_id, MAIN), classify)


def _of_session(log: EventLog, stream: StreamId, classify: Classifier | None) -> Shown:
    """What one session shows; with a classifier of the caller's nothing is kept."""
    stored = None if classify else log.load_view(stream, NAME)
    known = stored.through_seq if stored else 0
    if stored and stored.body and known == log.head(stream).seq:
        return Shown.load(stored.body)
    shown = _watched(log, stream, classify)
    if classify is None and shown.upto_seq > known:
        view = StoredView(shown.upto_seq, 0, shown.dump())
        log.save_view(stream, NAME, view, replaces=known)
    return shown


def _watched(log: EventLog, stream: StreamId, classify: Classifier | None) -> Shown:
    watching, after = Watching(stream.session_id, classify), 0
    while page := log.read(stream, after=after, limit=PAGE):
        for envelope in page:
            watching.take(envelope)
        after = page[-1].seq
    return watching.shown()
