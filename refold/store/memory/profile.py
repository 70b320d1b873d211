"""The profile of a user who consented: verdicts on their work, and preferences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from refold.domain import events
from refold.domain.ports import EventLog
from refold.domain.preferences import stated, unstated
from refold.projections.memory.labels import Taxonomy
from refold.projections.memory.profile import Profile, Stated, profile
from refold.projections.memory.verdicts import SessionVerdicts
from refold.store.history import read_pages
from refold.store.memory.consent import (
    DECLARATIVE_MEMORY,
    ConsentStatus,
    UserDecisions,
    read_decisions,
    session_of_user,
)
from refold.store.memory.extracts import Extract, extracts
from refold.store.memory.sessions import for_each_session, verdicts_of_session
from refold.store.memory.views import VERDICTS_PREFIX, drop_views


def profile_of(
    log: EventLog, user_id: str, now: int, *, taxonomy: Taxonomy | None = None
) -> Profile:
    """Build the profile of a user.  Sessions that did not change are not read again.

    The profile of a user who has not consented, or opted out of memory, is empty, and
    the stored views of verdicts are dropped.  Sessions that cannot be read, and items
    that have expired, are left out.

    now:      microseconds since 1970.
    taxonomy: the types of error; None is the taxonomy that Refold ships.

    Raises Erased; CorruptEvent and KeyUnavailable if the user's consent cannot be read.
    """
    decisions = read_decisions(log, user_id)
    if not decisions.consent.declarative_memory:
        # Without a decision on this scope, no view was ever stored.
        if DECLARATIVE_MEMORY in decisions.consent.scopes:
            drop_views(log, user_id, VERDICTS_PREFIX)
        return Profile(user_id)
    return profile(
        user_id,
        _sessions_with_verdicts(log, user_id, now),
        _preferences(log, user_id),
        now=now,
        taxonomy=taxonomy,
        forgotten=decisions.forgotten,
    )


def _sessions_with_verdicts(
    log: EventLog, user_id: str, now: int
) -> Iterator[SessionVerdicts]:
    """Yield the verdicts of each session, and of extracts of erased sessions."""
    for _, verdicts in for_each_session(log, user_id, verdicts_of_session):
        yield verdicts
    for extract in extracts(log, user_id, "user", now):
        yield _unexpired(extract)


def _unexpired(extract: Extract) -> SessionVerdicts:
    """Return the facts in an extract without those that have expired."""
    verdicts = SessionVerdicts.load(extract.content)
    # All three kinds of items come from the tallies.
    if {"error", "topic", "progress"} <= set(extract.gone):
        verdicts = replace(verdicts, tallies=())
    if "mistake" in extract.gone:
        verdicts = replace(verdicts, mistakes=())
    return verdicts


def _preferences(log: EventLog, user_id: str) -> dict[str, Stated]:
    """Return the last value of each preference that was stated under consent."""
    preferences: dict[str, Stated] = {}
    decisions = UserDecisions(ConsentStatus({}))
    stream = session_of_user(user_id)
    for envelope in read_pages(log, stream, types=("consent", "state")):
        decisions = decisions.after([envelope])
        update = envelope.payload
        if not isinstance(update, events.StateUpdate):
            continue
        for key in unstated(update):
            preferences.pop(key, None)
        if decisions.consent.declarative_memory:
            for key, value in stated(update):
                preferences[key] = Stated(value, envelope.seq, envelope.at)
    return preferences
