"""The facts that sessions of a user show, from a stored view or from their events."""

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
from refold.store.memory.views import FACTS_PREFIX, VERDICTS_PREFIX, keep_view

T = TypeVar("T")
# The names of the stored views.  A new version of an extractor reads no older view.
FACTS_NAME: Final = f"{FACTS_PREFIX}{EXTRACTOR_VERSION}"
VERDICTS_NAME: Final = f"{VERDICTS_PREFIX}{verdicts.EXTRACTOR_VERSION}"


class Selection(NamedTuple):
    """The part of a user's sessions that memory is built from.

    classify: returns the scenario of a session that no ``meta.scenario`` tags.
    agent:    selects the calls of this agent, if several agents share a session.
    project:  selects the sessions that are tagged with this ``meta.project``.
    now:      selects the extracts of erased sessions that have not expired at this
              time, in microseconds since 1970.  None leaves out all extracts.
    """

    classify: Classifier | None = None
    agent: str | None = None
    project: str | None = None
    now: int | None = None


EVERYTHING: Final = Selection()


def for_each_session(
    log: EventLog, user_id: str, read: Callable[[EventLog, SessionInfo], T]
) -> Iterator[tuple[SessionInfo, T]]:
    """Yield each session of the user, with the result of ``read``.

    Erased sessions, internal sessions, and sessions that cannot be read are left out.
    """
    for info in log.sessions(user_id):
        if info.is_erased_or_internal:
            continue
        with suppress(errors.CorruptEvent, errors.Erased, errors.KeyUnavailable):
            yield info, read(log, info)


def facts_of_session(
    log: EventLog, info: SessionInfo, selection: Selection
) -> SessionFacts:
    """Return the facts that one session shows.

    The facts of a live session are stored as a view, unless the selection leaves out
    part of the session.
    """
    stream = StreamId(info.user_id, info.session_id, MAIN)
    covers_all = selection.classify is None and selection.agent is None
    stored: StoredView | None = None
    if covers_all:
        stored = log.load_view(stream, FACTS_NAME)
    stored_seq = stored.through_seq if stored else 0
    if stored and stored.body and stored_seq == info.head_seq:
        return SessionFacts.load(stored.body)
    envelopes = read_pages(log, stream)
    facts = facts_of(stream.session_id, envelopes, selection.classify, selection.agent)
    if covers_all and info.is_live and facts.upto_seq > stored_seq:
        view = StoredView(facts.upto_seq, 0, facts.dump())
        keep_view(log, stream, FACTS_NAME, view, replaces=stored_seq)
    return facts


def verdicts_of_session(log: EventLog, info: SessionInfo) -> verdicts.SessionVerdicts:
    """Return the facts that the verdicts of one session show.

    The facts of a live session are stored as a view.
    """
    stream = StreamId(info.user_id, info.session_id, MAIN)
    stored = log.load_view(stream, VERDICTS_NAME)
    stored_seq = stored.through_seq if stored else 0
    if stored and stored_seq == info.head_seq:
        # Taints come from the extractor of facts, and change with its version.
        taints_are_current = stored.body.get("watched") == EXTRACTOR_VERSION
        if taints_are_current:
            return verdicts.SessionVerdicts.load(stored.body["judged"])  # type: ignore[arg-type]  # saved below
    facts = SessionFold(stream.session_id)
    judge = verdicts.Judge(stream.session_id)
    for envelope in read_pages(log, stream):
        facts.take(envelope)
        judge.take(envelope)
    session = judge.verdicts(facts.shown().taints)
    if info.is_live:
        body: events.JsonObject = {
            "watched": EXTRACTOR_VERSION,
            "judged": session.dump(),
        }
        view = StoredView(session.upto_seq, 0, body)
        keep_view(log, stream, VERDICTS_NAME, view, replaces=stored_seq)
    return session
