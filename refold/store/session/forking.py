"""Forks: sessions that continue another session from a seq."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from refold.domain import errors, ports
from refold.domain.envelope import Draft
from refold.domain.events import Fork
from refold.domain.ids import check_session_id
from refold.domain.session import labelling
from refold.store.appends import Order
from refold.store.history import forked_state
from refold.store.session.core import SessionCore, recorded_labels
from refold.store.vault import numbers_for_fork

S = TypeVar("S", bound=SessionCore)


def fork(session: S, at: int, *, session_id: str) -> S:
    """Begin a session that continues ``session`` after seq ``at``; it has no labels.

    session_id: the id of the new session.

    Raises what ``Session.fork`` raises.
    """
    check_session_id(session_id)
    head = session.head()
    if not 1 <= at <= head.seq:
        why = f"cannot fork at seq {at}: it is not in the session"
        raise errors.InvalidEvent(why)
    stream = session.stream._replace(session_id=session_id)
    child = replace(session, stream=stream)
    event = Fork(session_id=session.session_id, at_seq=at)
    order = Order(stream, (Draft(event),), expected_seq=0)
    # A fork inherits numbered placeholders, but not the values that they stand for.
    numbers = numbers_for_fork(head.state.numbers)
    state = forked_state(session.writer.log, stream, event)
    # The fork also redacts the secrets that its parent showed up to the fork.
    learned: dict[Any, int] = {}
    for secret, shown_at in head.state.learned.items():
        if shown_at <= at:
            learned[secret] = 0  # known before the fork's first event
    state = state._replace(numbers=numbers, learned=learned)
    session.writer.append(order, forked_head=ports.Head(state))
    return child


def pass_labels(session: SessionCore, child: S) -> S:
    """Give ``child`` the labels of ``session``; returns ``child``."""
    labels = recorded_labels(session)
    if labels:
        child.append(labelling(labels))
        # The event has redacted labels; the index needs hashes of the original ones.
        session.writer.log.label_like(child.stream, session.stream)
    return child


def continue_exported(session: SessionCore, exported: ports.Exported) -> bool:
    """Make an empty session a fork that continues an exported context.

    Returns False if the session has other events, or if this store lacks the exported
    event; the caller then treats the entries as the client's own.
    """
    state = session.writer.log.head(session.stream).state
    place = (exported.session_id, exported.seq)
    if state.head_seq > 0:
        return state.forked_from == place
    stream = session.stream._replace(session_id=exported.session_id)
    if stream == session.stream:
        return False
    try:
        events = session.writer.log.read(stream, spans=[(exported.seq, exported.seq)])
    except errors.Erased:
        return False
    if [str(event.event_id) for event in events] != [exported.event_id]:
        return False
    origin = replace(session, stream=stream)
    child = fork(origin, exported.seq, session_id=session.session_id)
    pass_labels(origin, child)
    return True


def lineage(session: SessionCore) -> tuple[str, ...]:
    """Return the names of a session and of those from which it was forked.

    A context of the session may show events of all of them.

    Raises SessionNotFound, Erased.
    """
    names = [session.session_id]
    origin = session.head().state.forked_from
    while origin is not None:
        name, _ = origin
        names.append(name)
        stream = session.stream._replace(session_id=name)
        origin = replace(session, stream=stream).head().state.forked_from
    return tuple(names)
