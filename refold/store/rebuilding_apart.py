"""Rebuilding many sessions in several processes, forked from this one.

A fold is Python from end to end, so threads share one core.  Each process is given one
session after another and writes as any other writer does: what a killed one leaves is
what a killed rebuild leaves, and the next run goes on behind it.
"""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.process import BaseProcess
from typing import Any, Final, TypeAlias

from refold.domain.ports import SessionInfo
from refold.store.rebuilding import Rebuilt

Told: TypeAlias = Callable[[int], None]
Progress: TypeAlias = Callable[[SessionInfo, int], None]
Rebuild: TypeAlias = Callable[[SessionInfo, Told], Rebuilt]
_KILLED: Final = "the process that rebuilt it was killed: run it again"


def can_fork() -> bool:
    """Whether processes can be forked here: never beside threads, which may hold locks.

    On macOS the system's own libraries do not survive it.
    """
    return sys.platform == "linux" and threading.active_count() == 1


def rebuild_apart(
    rebuild: Rebuild, sessions: Sequence[SessionInfo], jobs: int, told: Progress | None
) -> Iterator[Rebuilt]:
    """Rebuild ``sessions`` in ``jobs`` processes, which are there when this returns.

    Yields each session when it is done; one whose process was killed is a problem of
    its own.  What a rebuild raises is raised here, and ends the others.
    """
    team = _Team(rebuild, min(jobs, len(sessions)))
    return team.run(deque(sessions), told)


class _Team:
    """The processes, and the session that each is at."""

    def __init__(self, rebuild: Rebuild, size: int) -> None:
        self._processes: list[BaseProcess] = []
        self._ends: list[Connection] = []
        self._at: dict[Connection, SessionInfo] = {}
        context = multiprocessing.get_context("fork")
        for _ in range(size):
            ours, theirs = Pipe()
            self._ends.append(ours)
            process = context.Process(
                target=_serve, args=(rebuild, theirs, tuple(self._ends)), daemon=True
            )
            process.start()
            theirs.close()
            self._processes.append(process)

    def run(
        self, waiting: deque[SessionInfo], told: Progress | None
    ) -> Iterator[Rebuilt]:
        try:
            for end in self._ends:
                self._give(end, waiting)
            while self._at:
                heard = wait(list(self._at))
                for end in [end for end in self._at if end in heard]:
                    yield from self._heard(end, waiting, told)
            for info in waiting:
                yield _lost(info)
        finally:
            self._end()

    def _give(self, end: Connection, waiting: deque[SessionInfo]) -> None:
        if waiting:
            info = waiting.popleft()
            self._at[end] = info
            try:
                end.send(info)
            except OSError:
                return  # it was killed: its end says so when it is read

    def _heard(
        self, end: Connection, waiting: deque[SessionInfo], told: Progress | None
    ) -> Iterator[Rebuilt]:
        try:
            kind, what = end.recv()
        except (EOFError, OSError):
            yield _lost(self._at.pop(end))
            return
        if kind == "walked":
            if told is not None:
                told(self._at[end], what)
            return
        del self._at[end]
        if kind == "failed":
            raise _unpacked(*what)
        yield what
        self._give(end, waiting)

    def _end(self) -> None:
        for end in self._ends:
            end.close()
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()


def _lost(info: SessionInfo) -> Rebuilt:
    return Rebuilt(info.user_id, info.session_id, problem=_KILLED)


def _serve(rebuild: Rebuild, end: Connection, parents: tuple[Connection, ...]) -> None:
    """Rebuild one session after another, until the other end closes."""
    # Held open here, the parent's ends would outlive the parent.
    for other in parents:
        other.close()
    # Ctrl-C reaches the whole group: it is the parent that ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        while True:
            info = end.recv()
            try:
                done = rebuild(info, lambda count: end.send(("walked", count)))
            except Exception as error:
                end.send(("failed", _packed(error)))
            else:
                end.send(("done", done))
    except (EOFError, OSError):
        return


def _packed(error: Exception) -> tuple[type[Exception], tuple[Any, ...], Any]:
    """What an error is made of: most of ours take other arguments than they keep."""
    packed = type(error), error.args, vars(error)
    try:
        pickle.dumps(packed)
    except Exception:
        return RuntimeError, (f"{type(error).__name__}: {error}",), {}
    return packed


def _unpacked(
    kind: type[Exception], args: tuple[Any, ...], fields: dict[str, Any]
) -> Exception:
    error = kind.__new__(kind, *args)
    error.args = args
    vars(error).update(fields)
    return error
