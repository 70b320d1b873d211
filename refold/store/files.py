"""Histories of files, read from the events of a run and of its sub-agents."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from typing import Final

from refold.domain import errors
from refold.domain.envelope import Envelope
from refold.domain.ports import EventLog
from refold.projections.files.history import TYPES, FileHistories
from refold.store.history import with_whole_texts
from refold.store.session.session import Session

_MOST_AGENTS: Final = 1_000  # sessions of sub-agents that are read


def with_sub_agents(session: Session) -> list[Session]:
    """Return a session and those of its sub-agents, which are named ``S~agent``."""
    prefix = f"{session.session_id}~"
    infos = session.writer.log.sessions(
        session.user_id, after=(session.user_id, prefix), limit=_MOST_AGENTS
    )
    named = takewhile(lambda info: info.session_id.startswith(prefix), infos)
    sub_agents: list[Session] = []
    for info in named:
        stream = session.stream._replace(session_id=info.session_id)
        sub_agents.append(replace(session, stream=stream))
    return [session, *sub_agents]


def file_histories(sessions: Iterable[Session]) -> FileHistories:
    """Fold the events of these sessions, in order of time.

    A fork has the events of its origin up to the fork.

    Raises SessionNotFound, Erased.
    """
    streams = [_timed(session) for session in sessions]
    histories = FileHistories()
    for _, _, envelope in heapq.merge(*streams, key=_time_and_session):
        histories.take(envelope)
    histories.end()
    return histories


def size_of(sessions: Iterable[Session]) -> int:
    """Return the number of events of these sessions.  Raises what ``head`` raises."""
    return sum(session.head().seq for session in sessions)


def _time_and_session(timed: tuple[int, str, Envelope]) -> tuple[int, str]:
    """Return the key by which the events of several sessions are merged."""
    time, session_id, _ = timed
    return time, session_id


def _timed(session: Session) -> Iterator[tuple[int, str, Envelope]]:
    """Yield the events of a session with their times, which never decrease."""
    newest = 0
    for envelope in _with_origin(session, None):
        newest = max(newest, envelope.at)
        yield newest, session.session_id, envelope


def _with_origin(session: Session, upto: int | None) -> Iterator[Envelope]:
    """Yield the events of a session, after those that its origin had at the fork."""
    origin = session.head().state.forked_from
    if origin is not None:
        session_id, at_seq = origin
        stream = session.stream._replace(session_id=session_id)
        yield from _with_origin(replace(session, stream=stream), at_seq)
    for envelope in session.history.pages(upto=upto):
        if envelope.type in TYPES:
            yield _whole(session.writer.log, envelope)


def _whole(log: EventLog, envelope: Envelope) -> Envelope:
    """Return an event with its whole texts, unless they were deleted."""
    if not envelope.blobs:
        return envelope
    with suppress(errors.Expired):
        payload = with_whole_texts(log, envelope, type(envelope.payload))
        return envelope.model_copy(update={"payload": payload})
    return envelope
