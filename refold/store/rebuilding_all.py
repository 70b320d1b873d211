"""Rebuilding many sessions, several at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from threading import Event
from typing import TypeAlias

from refold.domain.errors import (
    CorruptEvent,
    Erased,
    InvalidConfiguration,
    KeyUnavailable,
)
from refold.domain.ids import MAIN, RESERVED, StreamId
from refold.domain.ports import SessionInfo
from refold.store.rebuilding import Rebuilder, Rebuilt
from refold.store.rebuilding_apart import Told, can_fork, rebuild_apart

Progress: TypeAlias = Callable[[SessionInfo, int], None]


class _Stopped(Exception):
    """Another session's rebuild failed, or nobody waits for this one any more."""


def rebuild_all(
    rebuilder: Rebuilder,
    sessions: Sequence[SessionInfo],
    *,
    jobs: int,
    progress: Progress | None = None,
) -> Iterator[Rebuilt]:
    """Rebuild ``sessions``, up to ``jobs`` at a time; yields each when it is done.

    In processes where that can be, else in threads; in threads too where summaries
    cost, for who waits for a model needs no core, and its client should not be forked.
    A session that cannot be read is a problem of its own.  What ends the whole (an
    error, or the caller having enough) ends those under way at their next step.

    Raises InvalidConfiguration if ``jobs`` is under 1.
    """
    if jobs < 1:
        raise InvalidConfiguration(f"jobs must be at least 1, got {jobs}")
    wanted = [info for info in sessions if info.session_id not in RESERVED]
    if jobs == 1 or len(wanted) < 2:
        return (_one(rebuilder, info, progress, Event()) for info in wanted)
    if not rebuilder.costs and rebuilder.writer.log.shared and can_fork():
        return rebuild_apart(partial(_alone, rebuilder), wanted, jobs, progress)
    return _beside(rebuilder, wanted, jobs, progress)


def _beside(
    rebuilder: Rebuilder,
    sessions: Sequence[SessionInfo],
    jobs: int,
    progress: Progress | None,
) -> Iterator[Rebuilt]:
    stop, pool = Event(), ThreadPoolExecutor(jobs, "refold-rebuild")
    try:
        futures = [
            pool.submit(_one, rebuilder, info, progress, stop) for info in sessions
        ]
        for future in as_completed(futures):
            yield future.result()
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


def _alone(rebuilder: Rebuilder, info: SessionInfo, told: Told) -> Rebuilt:
    try:
        return _one(rebuilder, info, lambda _, done: told(done), Event())
    finally:
        if rebuilder.writer.audit is not None:  # this process is ended, not closed
            rebuilder.writer.audit.flush()


def _one(
    rebuilder: Rebuilder, info: SessionInfo, progress: Progress | None, stop: Event
) -> Rebuilt:
    def told(done: int) -> None:
        if stop.is_set():
            raise _Stopped
        if progress is not None:
            progress(info, done)

    try:
        return rebuilder.run(StreamId(info.user_id, info.session_id, MAIN), told)
    except (CorruptEvent, Erased, KeyUnavailable) as error:
        return Rebuilt(info.user_id, info.session_id, problem=str(error))
