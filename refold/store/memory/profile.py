"""The profile of a user who consented: verdicts on their work, and preferences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from refold.domain import events
from refold.domain.ports import EventLog
from refold.domain.preferences import stated, unstated
from refold.projections.memory.labels import Taxonomy
from refold.projections.memory.profile import Profile, Stated, profile
from refold.projections.memory.verdicts import Judged
from refold.store.history import read_pages
from refold.store.memory.consent import (
    DECLARATIVE_MEMORY,
    ConsentStatus,
    Wishes,
    session_of_user,
    wishes,
)
from refold.store.memory.extracts import Extract, extracts
from refold.store.memory.sessions import judged_in, of_each_session
from refold.store.memory.views import JUDGED, drop_views


def profile_of(
    log: EventLog, user_id: str, now: int, *, taxonomy: Taxonomy | None = None
) -> Profile:
    """Build the profile of a user; sessions that did not change are not read again.

    The profile of a user who has not consented, or opted out of memory, is empty, and
    stored views are dropped.  Sessions that cannot be read, and items that have
    expired, are left out.

    now:      microseconds since 1970.
    taxonomy: None is the one that Refold ships.

    Raises Erased; CorruptEvent and KeyUnavailable if the user's consent cannot be read.
    """
    wanted = wishes(log, user_id)
    if not wanted.consent.declarative_memory:
        # Without any decision on it, nothing was ever stored.
        if DECLARATIVE_MEMORY in wanted.consent.scopes:
            drop_views(log, user_id, JUDGED)
        return Profile(user_id)
    return profile(
        user_id,
        _judged_sessions(log, user_id, now),
        _preferences(log, user_id),
        now=now,
        taxonomy=taxonomy,
        forgotten=wanted.forgotten,
    )


def _judged_sessions(log: EventLog, user_id: str, now: int) -> Iterator[Judged]:
    for _, judged in of_each_session(log, user_id, judged_in):
        yield judged
    for extract in extracts(log, user_id, "user", now):
        yield _unexpired(extract)


def _unexpired(extract: Extract) -> Judged:
    """What an erased session still shows."""
    judged = Judged.load(extract.content)
    if {"error", "topic", "progress"} <= set(extract.gone):
        judged = replace(judged, tallies=())
    if "mistake" in extract.gone:
        judged = replace(judged, mistakes=())
    return judged


def _preferences(log: EventLog, user_id: str) -> dict[str, Stated]:
    """The current value of each preference that was stated with the user's consent."""
    preferences: dict[str, Stated] = {}
    wanted = Wishes(ConsentStatus({}))
    stream = session_of_user(user_id)
    for envelope in read_pages(log, stream, types=("consent", "state")):
        wanted = wanted.after([envelope])
        update = envelope.payload
        if not isinstance(update, events.StateUpdate):
            continue
        for key in unstated(update):
            preferences.pop(key, None)
        if wanted.consent.declarative_memory:
            for key, value in stated(update):
                preferences[key] = Stated(value, envelope.seq, envelope.at)
    return preferences
