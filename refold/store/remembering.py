"""The memory of a user: what each session shows, kept until the session moves on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Final, NamedTuple

from refold.domain.errors import CorruptEvent, Erased, KeyUnavailable
from refold.domain.ids import MAIN, StreamId
from refold.domain.ports import PAGE, EventLog, SessionInfo, StoredView
from refold.projections.memory.items import Item, effort, items
from refold.projections.memory.scenarios import GENERAL, Classifier
from refold.projections.memory.shown import EXTRACTOR, Shown, Watching
from refold.store.users import consent_status

# Beside the views of strategies, sealed and dropped like them.
_KEPT: Final = "memory-"
NAME: Final = f"{_KEPT}{EXTRACTOR}"


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
    Of a user who opted out of memory there is none, and what was kept of it is dropped.

    Raises Erased, and where it cannot be told what the user allows, CorruptEvent and
    KeyUnavailable.
    """
    if consent_status(log, user_id).memory_opt_out:
        _forget(log, user_id)
        return Memory(user_id, 0, None, [], {})
    shown = list(_shown(log, user_id, classify))
    if together:
        shown = [replace(one, scenario=GENERAL) for one in shown]
    ended = [one.success for one in shown if one.success is not None]
    success = sum(ended) / len(ended) if ended else None
    return Memory(user_id, len(shown), success, items(shown), effort(shown))


def _forget(log: EventLog, user_id: str) -> None:
    """Drop what is kept; other views go with it, and are folded again when needed."""
    for info in log.sessions(user_id):
        # A frozen user stays as they are: it is dropped when they go on.
        names = log.view_names(user_id, info.session_id) if info.is_live else []
        if any(name.startswith(_KEPT) for name in names):
            log.drop_views(user_id, info.session_id)


def _shown(log: EventLog, user_id: str, classify: Classifier | None) -> Iterator[Shown]:
    for info in log.sessions(user_id):
        if info.status == "erased" or info.session_id.startswith("_"):
            continue
        with suppress(CorruptEvent, Erased, KeyUnavailable):
            yield _of_session(log, info, classify)


def _of_session(log: EventLog, info: SessionInfo, classify: Classifier | None) -> Shown:
    """What one session shows; with a classifier of the caller's nothing is kept.

    Nor is anything of a session that is frozen: what is there stays as it is.
    """
    stream = StreamId(info.user_id, info.session_id, MAIN)
    stored = None if classify else log.load_view(stream, NAME)
    known = stored.through_seq if stored else 0
    if stored and stored.body and known == log.head(stream).seq:
        return Shown.load(stored.body)
    shown = _watched(log, stream, classify)
    if classify is None and info.is_live and shown.upto_seq > known:
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
