"""What each session of a user shows: read from a stored view, or from its events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

from refold.domain import errors, events
from refold.domain.ids import MAIN, StreamId
from refold.domain.ports import EventLog, SessionInfo, StoredView
from refold.projections.memory import verdicts
from refold.projections.memory.sessions import (
    EXTRACTOR_VERSION,
    Classifier,
    SessionFacts,
    SessionFold,
    facts_of,
)
from refold.store.history import read_pages
from refold.store.memory.views import JUDGED, SHOWN, keep_view

T = TypeVar("T")
# The names of the stored views.
NAME: Final = f"{SHOWN}{EXTRACTOR_VERSION}"
DECLARED_NAME: Final = f"{JUDGED}{verdicts.EXTRACTOR_VERSION}"


class Selection(NamedTuple):
    """The part of a user's sessions that memory is built from.

    classify: returns the scenario of a session that no ``meta.scenario`` tags.
    agent:    only the calls of this agent, of several in a session.
    project:  only sessions that are tagged with this ``meta.project``.
    now:      in microseconds since 1970: what memory keeps of erased sessions counts
              until it expires.  None leaves it out.
    """

    classify: Classifier | None = None
    agent: str | None = None
    project: str | None = None
    now: int | None = None


EVERYTHING: Final = Selection()


def of_each_session(
    log: EventLog, user_id: str, read: Callable[[EventLog, SessionInfo], T]
) -> Iterator[tuple[SessionInfo, T]]:
    """Yield what ``read`` returns for each session of an agent.

    Sessions that cannot be read are left out.
    """
    for info in log.sessions(user_id):
        if info.is_apart:
            continue
        with suppress(errors.CorruptEvent, errors.Erased, errors.KeyUnavailable):
            yield info, read(log, info)


def shown_in(log: EventLog, info: SessionInfo, selection: Selection) -> SessionFacts:
    """Return what one session shows.

    It is stored if it covers the whole session and the session is live.
    """
    stream = StreamId(info.user_id, info.session_id, MAIN)
    covers_all = selection.classify is None and selection.agent is None
    stored = log.load_view(stream, NAME) if covers_all else None
    stored_seq = stored.through_seq if stored else 0
    if stored and stored.body and stored_seq == info.head_seq:
        return SessionFacts.load(stored.body)
    envelopes = read_pages(log, stream)
    shown = facts_of(stream.session_id, envelopes, selection.classify, selection.agent)
    if covers_all and info.is_live and shown.upto_seq > stored_seq:
        view = StoredView(shown.upto_seq, 0, shown.dump())
        keep_view(log, stream, NAME, view, replaces=stored_seq)
    return shown


def judged_in(log: EventLog, info: SessionInfo) -> verdicts.Judged:
    """Return what the verdicts of one session show; store it for a live session."""
    stream = StreamId(info.user_id, info.session_id, MAIN)
    stored = log.load_view(stream, DECLARED_NAME)
    stored_seq = stored.through_seq if stored else 0
    # Taints come from the extractor that watches tools, and change with its version.
    if (
        stored
        and stored_seq == info.head_seq
        and stored.body.get("watched") == EXTRACTOR_VERSION
    ):
        return verdicts.Judged.load(stored.body["judged"])  # type: ignore[arg-type]  # as saved below
    watching = SessionFold(stream.session_id)
    judging = verdicts.Judge(stream.session_id)
    for envelope in read_pages(log, stream):
        watching.take(envelope)
        judging.take(envelope)
    judged = judging.judged(watching.shown().taints)
    if info.is_live:
        body: events.JsonObject = {
            "watched": EXTRACTOR_VERSION,
            "judged": judged.dump(),
        }
        view = StoredView(judged.upto_seq, 0, body)
        keep_view(log, stream, DECLARED_NAME, view, replaces=stored_seq)
    return judged
