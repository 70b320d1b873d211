"""The profile of a user who consented, kept by session as procedural memory is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from refold.domain.envelope import Envelope
from refold.domain.errors import CorruptEvent, Erased, KeyUnavailable
from refold.domain.events import JsonObject, StateUpdate
from refold.domain.ids import MAIN, USER_SESSION, StreamId
from refold.domain.ports import EventLog, SessionInfo, StoredView
from refold.domain.preferences import stated, unstated
from refold.projections.memory.declared.judged import EXTRACTOR, Judged, Judging
from refold.projections.memory.declared.profile import Profile, Stated, profile
from refold.projections.memory.declared.taxonomy import Taxonomy
from refold.projections.memory.shown import EXTRACTOR as WATCHED, Watching
from refold.store.kept import JUDGED, drop_kept, keep
from refold.store.paging import read_on
from refold.store.users import DECLARATIVE_MEMORY, ConsentStatus, Wishes, wishes

NAME: Final = f"{JUDGED}{EXTRACTOR}"


def profile_of(
    log: EventLog, user_id: str, now: int, *, taxonomy: Taxonomy | None = None
) -> Profile:
    """Make the profile of a user from the log; what did not change is not read again.

    Of a user who has not consented, or opted out of memory, it is empty; what was kept
    is dropped.  A session that cannot be read is left out.

    now:      in microseconds since 1970; what has expired then is left out.
    taxonomy: None is the packaged one.

    Raises Erased, and where it cannot be told what the user allows, CorruptEvent and
    KeyUnavailable.
    """
    wanted = wishes(log, user_id)
    if not wanted.consent.declarative_memory:
        if DECLARATIVE_MEMORY in wanted.consent.scopes:  # else nothing was ever kept
            drop_kept(log, user_id, JUDGED)
        return Profile(user_id)
    return profile(
        user_id,
        _judged(log, user_id),
        _preferences(log, user_id),
        now=now,
        taxonomy=taxonomy,
        forgotten=wanted.forgotten,
    )


def _preferences(log: EventLog, user_id: str) -> dict[str, Stated]:
    """The last word on each, of those that were stated while the user consented."""
    stream = StreamId(user_id, USER_SESSION, MAIN)
    found: dict[str, Stated] = {}
    wanted = Wishes(ConsentStatus({}))
    for envelope in read_on(log, stream, types=("consent", "state")):
        wanted = wanted.after([envelope])
        if isinstance(envelope.payload, StateUpdate):
            for key in unstated(envelope.payload):
                found.pop(key, None)
            if wanted.consent.declarative_memory:
                found.update(_stated(envelope, envelope.payload))
    return found


def _stated(envelope: Envelope, update: StateUpdate) -> Iterator[tuple[str, Stated]]:
    for key, value in stated(update):
        yield key, Stated(value, envelope.seq, envelope.at)


def _judged(log: EventLog, user_id: str) -> Iterator[Judged]:
    for info in log.sessions(user_id):
        if info.status == "erased" or info.session_id.startswith("_"):
            continue
        with suppress(CorruptEvent, Erased, KeyUnavailable):
            yield _of_session(log, info)


def _of_session(log: EventLog, info: SessionInfo) -> Judged:
    """What one session's verdicts show; nothing is kept of one that is frozen."""
    stream = StreamId(info.user_id, info.session_id, MAIN)
    stored = log.load_view(stream, NAME)
    known = stored.through_seq if stored else 0
    # The taints are of what watches tools: when that becomes another, so do they.
    if stored and (known, stored.body.get("watched")) == (info.head_seq, WATCHED):
        return Judged.load(stored.body["judged"])  # type: ignore[arg-type]  # as saved below
    judged = _read(log, stream)
    if info.is_live:
        body: JsonObject = {"watched": WATCHED, "judged": judged.dump()}
        view = StoredView(judged.upto_seq, 0, body)
        keep(log, stream, NAME, view, replaces=known)
    return judged


def _read(log: EventLog, stream: StreamId) -> Judged:
    watching, judging = Watching(stream.session_id), Judging(stream.session_id)
    for envelope in read_on(log, stream):
        watching.take(envelope)
        judging.take(envelope)
    return judging.judged(watching.shown().taints)
