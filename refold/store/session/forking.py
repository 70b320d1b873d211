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
            learned[secret] = 0
    state = state._replace(numbers=numbers, learned=learned)
    session.writer.append(order, forked_head=ports.Head(state))
    return child


def pass_labels(session: SessionCore, child: S) -> S:
    """Give ``child`` the labels of ``session``; returns ``child``."""
    labels = recorded_labels(session)
    if labels:
        child.append(labelling(labels))
        session.writer.log.label_like(child.stream, session.stream)
    return child
